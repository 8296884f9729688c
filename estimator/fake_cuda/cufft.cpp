// cuFFT: plans have numbers; their work areas are invented (0): the real ones follow from how a plan factorises.

#include <atomic>

#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {
constexpr int kOk = 0;

int work_bytes(size_t* out) {
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
API int cufftXtMakePlanMany(int, int, void*, void*, long long, long long, int, void*, long long, long long, int,
                            long long, size_t* bytes, int) {
  return work_bytes(bytes);
}
API int cufftMakePlanMany(int, int, void*, void*, int, int, void*, int, int, int, int, size_t* bytes) {
  return work_bytes(bytes);
}
API int cufftMakePlanMany64(int, int, void*, void*, long long, long long, void*, long long, long long, int, long long,
                            size_t* bytes) {
  return work_bytes(bytes);
}
API int cufftGetSize(int, size_t* bytes) { return work_bytes(bytes); }
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
