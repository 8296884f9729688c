// Reads the usage files of a pretend node. They are written by anybody: nothing in them is trusted.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "proc_stat.h"
#include "usage_layout.h"

namespace gpumem {

inline bool is_running(const UsageLayout& usage) {
  return usage.starttime_ticks && start_ticks_of(static_cast<int>(usage.pid)) == usage.starttime_ticks;
}

// What the process takes of this device; null when it does not see it.
inline const UsageOfDevice* usage_of(const UsageLayout& usage, const std::string& uuid) {
  for (uint32_t i = 0; i < usage.n_devices; ++i) {
    const char* text = usage.devices[i].uuid;
    if (uuid.size() == strnlen(text, sizeof usage.devices[i].uuid) &&
        uuid.compare(0, uuid.size(), text, uuid.size()) == 0)
      return &usage.devices[i];
  }
  return nullptr;
}

// Calls visit(const UsageLayout&) for every well-formed file of the folder.
template <typename Visit>
void scan_usage(const char* folder_path, Visit visit) {
  DIR* folder = opendir(folder_path);
  if (!folder) return;
  while (const dirent* entry = readdir(folder)) {
    unsigned pid = 0;
    unsigned long long ticks = 0;
    if (std::sscanf(entry->d_name, "%u-%llu", &pid, &ticks) != 2) continue;
    const int file = openat(dirfd(folder), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) continue;
    UsageLayout usage;
    const ssize_t length = ::read(file, &usage, sizeof usage);
    ::close(file);
    if (length == static_cast<ssize_t>(sizeof usage) &&
        std::memcmp(usage.magic, kUsageMagic, sizeof kUsageMagic) == 0 && usage.pid == pid &&
        usage.starttime_ticks == ticks && usage.n_devices <= 16)
      visit(usage);
  }
  closedir(folder);
}

}  // namespace gpumem
