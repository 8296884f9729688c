// The file by which a process on a pretend device tells the stand-in NVML what it uses.
//
// NODE/procs/<pid>-<start time in clock ticks>, little-endian, updated in place, kept after the process ended.
#pragma once

#include <cstdint>

namespace gpumem {

constexpr char kUsageMagic[8] = {'G', 'P', 'U', 'M', 'E', 'M', '0', '1'};

struct UsageOfDevice {
  char uuid[64];
  uint64_t used, peak;  // bytes, context included
};

struct UsageLayout {
  char magic[8];
  uint32_t pid;
  uint32_t n_devices;  // at most 16
  uint64_t starttime_ticks;
  uint64_t start_unix_us;
  uint64_t end_unix_us;  // 0: running, or killed
  UsageOfDevice devices[16];
};

static_assert(sizeof(UsageLayout) == 40 + 16 * 80, "the layout is read by other programs");

}  // namespace gpumem
