// cuSOLVER: handles exist, factorisations do nothing, work sizes are invented.

#include <cstdlib>

#include "arguments.h"
#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {

constexpr int kOk = 0;
constexpr int kWorkElements = 1024;

int make(void** out) {
  *out = std::calloc(1, 64);
  return kOk;
}
int drop(void* handle) {
  std::free(handle);
  return kOk;
}
int work_elements(int* out) {
  note_invented("cusolver workspace");
  if (out) *out = kWorkElements;
  return kOk;
}
int work_bytes(size_t* out) {
  note_invented("cusolver workspace");
  if (out) *out = kWorkElements * sizeof(double);
  return kOk;
}

}  // namespace

API int cusolverDnCreate(void** handle) {
  note_library("cusolver");
  return make(handle);
}
API int cusolverDnDestroy(void* handle) { return drop(handle); }
API int cusolverDnCreateParams(void** params) { return make(params); }
API int cusolverDnDestroyParams(void* params) { return drop(params); }
API int cusolverDnCreateGesvdjInfo(void** info) { return make(info); }
API int cusolverDnDestroyGesvdjInfo(void* info) { return drop(info); }
API int cusolverDnCreateSyevjInfo(void** info) { return make(info); }
API int cusolverDnDestroySyevjInfo(void* info) { return drop(info); }
API int cusolverGetVersion(int* version) {
  *version = cuda_version() / 1000 * 1000;
  return kOk;
}
API int cusolverGetProperty(int which, int* value) {
  *value = which == 0 ? cuda_version() / 1000 : 0;
  return kOk;
}
NO_OP(cusolverDnSetStream)
NO_OP(cusolverDnSetDeterministicMode)
NO_OP(cusolverDnXgesvdjSetMaxSweeps)
NO_OP(cusolverDnXgesvdjSetSortEig)
NO_OP(cusolverDnXgesvdjSetTolerance)
NO_OP(cusolverDnXsyevjSetMaxSweeps)
NO_OP(cusolverDnXsyevjSetSortEig)
NO_OP(cusolverDnXsyevjSetTolerance)

// ---- work sizes in elements, by the place of `lwork` ----

#define LWORK_3(name) ANSWERS_THROUGH(name, 3, int, work_elements)
#define LWORK_4(name) ANSWERS_THROUGH(name, 4, int, work_elements)
#define LWORK_5(name) ANSWERS_THROUGH(name, 5, int, work_elements)
#define LWORK_7(name) ANSWERS_THROUGH(name, 7, int, work_elements)
#define LWORK_11(name) ANSWERS_THROUGH(name, 11, int, work_elements)
#define LWORK_12(name) ANSWERS_THROUGH(name, 12, int, work_elements)
#define LWORK_16(name) ANSWERS_THROUGH(name, 16, int, work_elements)
FOR_SDCZ(LWORK_3, cusolverDn, gesvd_bufferSize)
FOR_SDCZ(LWORK_4, cusolverDn, sytrf_bufferSize)
FOR_SDCZ(LWORK_5, cusolverDn, geqrf_bufferSize)
FOR_SDCZ(LWORK_5, cusolverDn, getrf_bufferSize)
FOR_SDCZ(LWORK_5, cusolverDn, potrf_bufferSize)
FOR_SD(LWORK_7, cusolverDn, orgqr_bufferSize)
FOR_CZ(LWORK_7, cusolverDn, ungqr_bufferSize)
FOR_SD(LWORK_7, cusolverDn, syevd_bufferSize)
FOR_CZ(LWORK_7, cusolverDn, heevd_bufferSize)
FOR_SD(LWORK_7, cusolverDn, syevj_bufferSize)
FOR_CZ(LWORK_7, cusolverDn, heevj_bufferSize)
FOR_SD(LWORK_7, cusolverDn, syevjBatched_bufferSize)
FOR_CZ(LWORK_7, cusolverDn, heevjBatched_bufferSize)
FOR_SD(LWORK_11, cusolverDn, ormqr_bufferSize)
FOR_CZ(LWORK_11, cusolverDn, unmqr_bufferSize)
FOR_SDCZ(LWORK_11, cusolverDn, gesvdjBatched_bufferSize)
FOR_SDCZ(LWORK_12, cusolverDn, gesvdj_bufferSize)
FOR_SDCZ(LWORK_16, cusolverDn, gesvdaStridedBatched_bufferSize)

// ---- work sizes in bytes on device and host, side by side ----

#define WORK_BYTES(name, position)                                 \
  API int name(void* first, ...) {                                 \
    va_list arguments;                                             \
    va_start(arguments, first);                                    \
    for (int i = 1; i < (position); ++i) va_arg(arguments, void*); \
    work_bytes(va_arg(arguments, size_t*));                        \
    size_t* const on_host = va_arg(arguments, size_t*);            \
    va_end(arguments);                                             \
    if (on_host) *on_host = 0;                                     \
    return kOk;                                                    \
  }
WORK_BYTES(cusolverDnXpotrf_bufferSize, 8)
WORK_BYTES(cusolverDnXgetrf_bufferSize, 8)
WORK_BYTES(cusolverDnXgeqrf_bufferSize, 10)
WORK_BYTES(cusolverDnXsyevd_bufferSize, 11)
WORK_BYTES(cusolverDnXsyevBatched_bufferSize, 11)
WORK_BYTES(cusolverDnXsytrs_bufferSize, 11)
WORK_BYTES(cusolverDnXgeev_bufferSize, 17)
#undef WORK_BYTES

// ---- computations: `info` lies on the device ----

FOR_SDCZ(NO_OP, cusolverDn, gesvd)
FOR_SDCZ(NO_OP, cusolverDn, gesvdj)
FOR_SDCZ(NO_OP, cusolverDn, gesvdjBatched)
FOR_SDCZ(NO_OP, cusolverDn, gesvdaStridedBatched)
FOR_SDCZ(NO_OP, cusolverDn, sytrf)
FOR_SDCZ(NO_OP, cusolverDn, geqrf)
FOR_SDCZ(NO_OP, cusolverDn, getrf)
FOR_SDCZ(NO_OP, cusolverDn, getrs)
FOR_SDCZ(NO_OP, cusolverDn, potrf)
FOR_SDCZ(NO_OP, cusolverDn, potrs)
FOR_SDCZ(NO_OP, cusolverDn, potrfBatched)
FOR_SDCZ(NO_OP, cusolverDn, potrsBatched)
FOR_SD(NO_OP, cusolverDn, orgqr)
FOR_CZ(NO_OP, cusolverDn, ungqr)
FOR_SD(NO_OP, cusolverDn, ormqr)
FOR_CZ(NO_OP, cusolverDn, unmqr)
FOR_SD(NO_OP, cusolverDn, syevd)
FOR_CZ(NO_OP, cusolverDn, heevd)
FOR_SD(NO_OP, cusolverDn, syevj)
FOR_CZ(NO_OP, cusolverDn, heevj)
FOR_SD(NO_OP, cusolverDn, syevjBatched)
FOR_CZ(NO_OP, cusolverDn, heevjBatched)
NO_OP(cusolverDnXpotrf)
NO_OP(cusolverDnXpotrs)
NO_OP(cusolverDnXgetrf)
NO_OP(cusolverDnXgetrs)
NO_OP(cusolverDnXgeqrf)
NO_OP(cusolverDnXsyevd)
NO_OP(cusolverDnXsyevBatched)
NO_OP(cusolverDnXsytrs)
NO_OP(cusolverDnXgeev)
