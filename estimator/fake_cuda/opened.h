#pragma once

// From now on, notes the files that are opened for reading in the file `notes`, each path ended by NUL.
void note_opened_files(const char* notes);
