// cuFFT: plans have numbers. How large a work area is follows from how a plan factorises, which only cuFFT knows, and that
// answers with a device alone. The answer here is the most that its documentation leads to expect ("cufftEstimate": large
// primes may take eight times as much as a power of 2 of similar size), for the complex data once.

#include <algorithm>
#include <atomic>
#include <span>

#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {
constexpr int kOk = 0;

constexpr long long kLargestSmallPrime = 127;  // "Accuracy and performance": above, Bluestein's algorithm
constexpr size_t kOfLargePrimes = 8;

bool has_large_prime(long long size) {
  for (long long prime = 2; prime <= kLargestSmallPrime; ++prime)
    while (size % prime == 0) size /= prime;
  return size > 1;
}

// `execution` is a cudaDataType.
size_t complex_bytes(int execution) {
  constexpr int half = 6, brain = 15, twice = 5;
  return execution == half || execution == brain ? 4 : execution == twice ? 16 : 8;
}

size_t work_bytes(std::span<const long long> sizes, long long batch, int execution) {
  note_invented("cufft workspace");
  if (std::ranges::any_of(sizes, [](long long size) { return size < 1; })) return 0;
  size_t bytes = complex_bytes(execution) * static_cast<size_t>(std::max(batch, 1LL));
  for (const long long size : sizes) bytes *= static_cast<size_t>(size);
  return std::ranges::any_of(sizes, has_large_prime) ? kOfLargePrimes * bytes : bytes;
}

int unknown_bytes(size_t* out) {
  note_invented("cufft workspace");
  if (out) *out = 0;
  return kOk;
}
}  // namespace

API int cufftCreate(int* plan) {
  note_library("cufft");
  static std::atomic<int> plans{0};
  *plan = ++plans;
  return kOk;
}
API int cufftPlan1d(int* plan, int, int, int) { return cufftCreate(plan); }
API int cufftPlan2d(int* plan, int, int, int) { return cufftCreate(plan); }
API int cufftPlan3d(int* plan, int, int, int, int) { return cufftCreate(plan); }
API int cufftPlanMany(int* plan, int, int*, int*, int, int, int*, int, int, int, int) { return cufftCreate(plan); }
API int cufftGetVersion(int* version) {
  *version = cuda_version() / 1000 * 1000;
  return kOk;
}
API int cufftXtMakePlanMany(int, int dimensions, const long long* sizes, void*, long long, long long, int, void*,
                            long long, long long, int, long long batch, size_t* bytes, int execution) {
  if (bytes) *bytes = work_bytes({sizes, static_cast<size_t>(std::max(dimensions, 0))}, batch, execution);
  return kOk;
}
API int cufftMakePlanMany(int, int, void*, void*, int, int, void*, int, int, int, int, size_t* bytes) {
  return unknown_bytes(bytes);
}
API int cufftMakePlanMany64(int, int, void*, void*, long long, long long, void*, long long, long long, int, long long,
                            size_t* bytes) {
  return unknown_bytes(bytes);
}
API int cufftGetSize(int, size_t* bytes) { return unknown_bytes(bytes); }
NO_OP(cufftDestroy)
NO_OP(cufftSetAutoAllocation)
NO_OP(cufftSetStream)
NO_OP(cufftSetWorkArea)
NO_OP(cufftXtExec)
NO_OP(cufftExecC2C)
NO_OP(cufftExecR2C)
NO_OP(cufftExecC2R)
NO_OP(cufftExecZ2Z)
NO_OP(cufftExecD2Z)
NO_OP(cufftExecZ2D)
