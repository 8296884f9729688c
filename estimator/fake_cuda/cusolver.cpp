// cuSOLVER: handles exist, factorisations do nothing, work sizes follow what others have published.

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "arguments.h"
#include "export.h"
#include "process.h"
#include "solver_workspace.h"

using namespace gpumem;

namespace {

constexpr int kOk = 0;
constexpr int kWorkElements = 1024;  // of a routine whose sizes nobody has published

int make(void** out) {
  *out = std::calloc(1, 64);
  return kOk;
}
int drop(void* handle) {
  std::free(handle);
  return kOk;
}

// ---- answers to questions for a workspace ----

int elements(uint64_t count, int* out) {
  note_invented("cusolver workspace");
  if (out) *out = static_cast<int>(std::min<uint64_t>(count, INT_MAX));
  return kOk;
}
int bytes(uint64_t count, size_t* on_device, size_t* on_host) {
  note_invented("cusolver workspace");
  if (on_device) *on_device = count;
  if (on_host) *on_host = 0;
  return kOk;
}
int unknown_elements(int* out) {
  note_invented("cusolver workspace of unknown size");
  if (out) *out = kWorkElements;
  return kOk;
}
int unknown_bytes(size_t* out) {
  note_invented("cusolver workspace of unknown size");
  if (out) *out = kWorkElements * sizeof(double);
  return kOk;
}

// A routine ran with this workspace.
int ran_in(const void* workspace, uint64_t size) {
  if (workspace && size) log_event(EventKind::solver_workspace, workspace, size);
  return kOk;
}
int ran_in(const void* workspace, int count, size_t element) {
  return ran_in(workspace, static_cast<uint64_t>(std::max(count, 0)) * element);
}

// Of a cudaDataType.
constexpr bool is_complex(int type) { return type == 4 || type == 5; }
constexpr uint64_t size_of(int type) { return (type == 1 || type == 5 ? 8 : 4) * (is_complex(type) ? 2 : 1); }

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

// ---- routines with published work sizes: name, bytes of an element, whether it is complex ----

#define REAL(macro, prefix, routine) macro(prefix##S##routine, 4, false) macro(prefix##D##routine, 8, false)
#define COMPLEX(macro, prefix, routine) macro(prefix##C##routine, 8, true) macro(prefix##Z##routine, 16, true)

#define SYEVD(name, element, complex)                                                            \
  API int name##_bufferSize(void*, int, int, int n, const void*, int, const void*, int* lwork) { \
    return elements(eigen_workspace(n, complex), lwork);                                         \
  }                                                                                              \
  API int name(void*, int, int, int, void*, int, void*, void* work, int lwork, void*) {          \
    return ran_in(work, lwork, element);                                                         \
  }
REAL(SYEVD, cusolverDn, syevd)
COMPLEX(SYEVD, cusolverDn, heevd)

#define SYEVJ(name, element, complex)                                                                   \
  API int name##_bufferSize(void*, int, int, int n, const void*, int, const void*, int* lwork, void*) { \
    return elements(jacobi_eigen_workspace(n, 1, complex), lwork);                                      \
  }                                                                                                     \
  API int name(void*, int, int, int, void*, int, void*, void* work, int lwork, void*, void*) {          \
    return ran_in(work, lwork, element);                                                                \
  }
REAL(SYEVJ, cusolverDn, syevj)
COMPLEX(SYEVJ, cusolverDn, heevj)

#define SYEVJ_BATCHED(name, element, complex)                                                                      \
  API int name##_bufferSize(void*, int, int, int n, const void*, int, const void*, int* lwork, void*, int batch) { \
    return elements(jacobi_eigen_workspace(n, batch, complex), lwork);                                             \
  }                                                                                                                \
  API int name(void*, int, int, int, void*, int, void*, void* work, int lwork, void*, void*, int) {                \
    return ran_in(work, lwork, element);                                                                           \
  }
REAL(SYEVJ_BATCHED, cusolverDn, syevjBatched)
COMPLEX(SYEVJ_BATCHED, cusolverDn, heevjBatched)

#define GESVDJ(name, element, complex)                                                                             \
  API int name##_bufferSize(void*, int, int, int m, int n, const void*, int, const void*, const void*, int,        \
                            const void*, int, int* lwork, void*) {                                                 \
    return elements(jacobi_svd_workspace(m, n), lwork);                                                            \
  }                                                                                                                \
  API int name(void*, int, int, int, int, void*, int, void*, void*, int, void*, int, void* work, int lwork, void*, \
               void*) {                                                                                            \
    return ran_in(work, lwork, element);                                                                           \
  }
REAL(GESVDJ, cusolverDn, gesvdj)
COMPLEX(GESVDJ, cusolverDn, gesvdj)

#define GEQRF(name, element, complex)                                              \
  API int name##_bufferSize(void*, int, int n, const void*, int, int* lwork) {     \
    return elements(qr_workspace(n), lwork);                                       \
  }                                                                                \
  API int name(void*, int, int, void*, int, void*, void* work, int lwork, void*) { \
    return ran_in(work, lwork, element);                                           \
  }
REAL(GEQRF, cusolverDn, geqrf)
COMPLEX(GEQRF, cusolverDn, geqrf)

#define ORGQR(name, element, complex)                                                            \
  API int name##_bufferSize(void*, int m, int, int, const void*, int, const void*, int* lwork) { \
    return elements(make_q_workspace(m), lwork);                                                 \
  }                                                                                              \
  API int name(void*, int, int, int, void*, int, const void*, void* work, int lwork, void*) {    \
    return ran_in(work, lwork, element);                                                         \
  }
REAL(ORGQR, cusolverDn, orgqr)
COMPLEX(ORGQR, cusolverDn, ungqr)

#define ORMQR(name, element, complex)                                                                              \
  API int name##_bufferSize(void*, int side, int, int m, int n, int k, const void*, int, const void*, const void*, \
                            int, int* lwork) {                                                                     \
    return elements(apply_q_workspace(side ? n : m, k), lwork);                                                    \
  }                                                                                                                \
  API int name(void*, int, int, int, int, int, const void*, int, const void*, void*, int, void* work, int lwork,   \
               void*) {                                                                                            \
    return ran_in(work, lwork, element);                                                                           \
  }
REAL(ORMQR, cusolverDn, ormqr)
COMPLEX(ORMQR, cusolverDn, unmqr)

API int cusolverDnXsyevd_bufferSize(void*, void*, int, int, int64_t n, int type, const void*, int64_t, int, const void*,
                                    int, size_t* on_device, size_t* on_host) {
  return bytes(eigen_workspace(n, is_complex(type)) * size_of(type), on_device, on_host);
}
API int cusolverDnXsyevd(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void* work, size_t size,
                         void*, size_t, void*) {
  return ran_in(work, size);
}
API int cusolverDnXsyevBatched_bufferSize(void*, void*, int, int, int64_t n, int type, const void*, int64_t, int,
                                          const void*, int, size_t* on_device, size_t* on_host, int64_t batch) {
  return bytes(eigen_batched_workspace(n, batch, is_complex(type)) * size_of(type), on_device, on_host);
}
API int cusolverDnXsyevBatched(void*, void*, int, int, int64_t, int, void*, int64_t, int, void*, int, void* work,
                               size_t size, void*, size_t, void*, int64_t) {
  return ran_in(work, size);
}
API int cusolverDnXgeqrf_bufferSize(void*, void*, int64_t, int64_t n, int type, const void*, int64_t, int, const void*,
                                    int, size_t* on_device, size_t* on_host) {
  return bytes(qr_workspace(n) * size_of(type), on_device, on_host);
}
API int cusolverDnXgeqrf(void*, void*, int64_t, int64_t, int, void*, int64_t, int, void*, int, void* work, size_t size,
                         void*, size_t, void*) {
  return ran_in(work, size);
}

// ---- the others, by the place of `lwork` ----

#define LWORK_3(name) ANSWERS_THROUGH(name, 3, int, unknown_elements)
#define LWORK_4(name) ANSWERS_THROUGH(name, 4, int, unknown_elements)
#define LWORK_5(name) ANSWERS_THROUGH(name, 5, int, unknown_elements)
#define LWORK_11(name) ANSWERS_THROUGH(name, 11, int, unknown_elements)
#define LWORK_16(name) ANSWERS_THROUGH(name, 16, int, unknown_elements)
FOR_SDCZ(LWORK_3, cusolverDn, gesvd_bufferSize)
FOR_SDCZ(LWORK_4, cusolverDn, sytrf_bufferSize)
FOR_SDCZ(LWORK_5, cusolverDn, getrf_bufferSize)
FOR_SDCZ(LWORK_5, cusolverDn, potrf_bufferSize)
FOR_SDCZ(LWORK_11, cusolverDn, gesvdjBatched_bufferSize)
FOR_SDCZ(LWORK_16, cusolverDn, gesvdaStridedBatched_bufferSize)

// ---- in bytes on device and host, side by side ----

#define WORK_BYTES(name, position)                                 \
  API int name(void* first, ...) {                                 \
    va_list arguments;                                             \
    va_start(arguments, first);                                    \
    for (int i = 1; i < (position); ++i) va_arg(arguments, void*); \
    unknown_bytes(va_arg(arguments, size_t*));                     \
    size_t* const on_host = va_arg(arguments, size_t*);            \
    va_end(arguments);                                             \
    if (on_host) *on_host = 0;                                     \
    return kOk;                                                    \
  }
WORK_BYTES(cusolverDnXpotrf_bufferSize, 8)
WORK_BYTES(cusolverDnXgetrf_bufferSize, 8)
WORK_BYTES(cusolverDnXsytrs_bufferSize, 11)
WORK_BYTES(cusolverDnXgeev_bufferSize, 17)
#undef WORK_BYTES

// ---- computations of these: `info` lies on the device ----

FOR_SDCZ(NO_OP, cusolverDn, gesvd)
FOR_SDCZ(NO_OP, cusolverDn, gesvdjBatched)
FOR_SDCZ(NO_OP, cusolverDn, gesvdaStridedBatched)
FOR_SDCZ(NO_OP, cusolverDn, sytrf)
FOR_SDCZ(NO_OP, cusolverDn, getrf)
FOR_SDCZ(NO_OP, cusolverDn, getrs)
FOR_SDCZ(NO_OP, cusolverDn, potrf)
FOR_SDCZ(NO_OP, cusolverDn, potrs)
FOR_SDCZ(NO_OP, cusolverDn, potrfBatched)
FOR_SDCZ(NO_OP, cusolverDn, potrsBatched)
NO_OP(cusolverDnXpotrf)
NO_OP(cusolverDnXpotrs)
NO_OP(cusolverDnXgetrf)
NO_OP(cusolverDnXgetrs)
NO_OP(cusolverDnXsytrs)
NO_OP(cusolverDnXgeev)
