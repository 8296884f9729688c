// What the launch limits are on each compute capability.
// Source: CUDA C++ Programming Guide, "Technical specifications per compute capability".
#pragma once

namespace gpumem {

struct Architecture {
  int cc;  // 90 for 9.0
  int threads_per_sm, blocks_per_sm;
  int shared_per_sm, shared_per_block_optin;  // bytes
  int l2_cache_bytes;                         // of the usual card
};

constexpr int kThreadsPerBlock = 1024;
constexpr int kRegistersPerSm = 65536;
constexpr int kSharedPerBlock = 48 * 1024;
constexpr int kReservedSharedPerBlock = 1024;  // by CUDA itself, from 8.0 on

constexpr Architecture kArchitectures[] = {
    {70, 2048, 32, 96 * 1024, 96 * 1024, 6 << 20},      {75, 1024, 16, 64 * 1024, 64 * 1024, 4 << 20},
    {80, 2048, 32, 164 * 1024, 163 * 1024, 40 << 20},   {86, 1536, 16, 100 * 1024, 99 * 1024, 6 << 20},
    {89, 1536, 24, 100 * 1024, 99 * 1024, 72 << 20},    {90, 2048, 32, 228 * 1024, 227 * 1024, 50 << 20},
    {100, 2048, 32, 228 * 1024, 227 * 1024, 126 << 20}, {103, 2048, 32, 228 * 1024, 227 * 1024, 126 << 20},
    {120, 1536, 24, 100 * 1024, 99 * 1024, 96 << 20},
};

// That of the nearest older compute capability that is known.
constexpr const Architecture& architecture(int cc_major, int cc_minor) {
  const Architecture* best = &kArchitectures[0];
  for (const Architecture& candidate : kArchitectures)
    if (candidate.cc <= cc_major * 10 + cc_minor) best = &candidate;
  return *best;
}

}  // namespace gpumem
