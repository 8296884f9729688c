// When a process started, in clock ticks since boot: with the pid it names one process for good.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpumem {

// 0 when there is no such process (field 22 of /proc/<pid>/stat, after the name in brackets).
inline uint64_t start_ticks_of(int pid) {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* field = std::strrchr(text, ')');
  for (int i = 2; field && i < 22; ++i) field = std::strchr(field + 1, ' ');
  return field ? std::strtoull(field, nullptr, 10) : 0;
}

}  // namespace gpumem
