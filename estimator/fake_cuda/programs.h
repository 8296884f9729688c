#pragma once

// From now on, programs that have a stand-in in `folder`/bin are replaced by it when they are executed.
void replace_programs(const char* folder);
