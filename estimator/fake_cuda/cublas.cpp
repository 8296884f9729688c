// cuBLAS and cuBLASLt: handles keep their state, matrix products do nothing.

#include <cstdlib>
#include <cstring>

#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {

constexpr int kOk = 0;

struct Blas {
  void* stream = nullptr;
  int math_mode = 0, pointer_mode = 0, atomics_mode = 0, sm_count_target = 0;
};

// Opaque descriptors that nobody looks into.
int make_opaque(void** out) {
  *out = std::calloc(1, 64);
  return kOk;
}
int drop_opaque(void* descriptor) {
  std::free(descriptor);
  return kOk;
}

// A scalar result lies on the host or on the device, as the handle's pointer mode says.
int zero_result(void* result, size_t bytes) {
  if (!on_device(result)) std::memset(result, 0, bytes);
  return kOk;
}

}  // namespace

// ---- handles ----

API int cublasCreate_v2(Blas** handle) {
  note_library("cublas");
  if (!touch_device()) return 1;  // not initialized
  *handle = new Blas;
  return kOk;
}
API int cublasDestroy_v2(Blas* handle) {
  delete handle;
  return kOk;
}
API int cublasGetVersion_v2(Blas*, int* version) {
  *version = cuda_version() * 10;
  return kOk;
}
API int cublasSetStream_v2(Blas* handle, void* stream) {
  handle->stream = stream;
  return kOk;
}
API int cublasGetStream_v2(Blas* handle, void** stream) {
  *stream = handle->stream;
  return kOk;
}
API int cublasSetWorkspace_v2(Blas*, void* workspace, size_t bytes) {
  if (workspace && bytes) log_event(EventKind::blas_workspace, workspace, bytes);
  return kOk;
}
#define STATE(Name, member)                           \
  API int cublasSet##Name(Blas* handle, int value) {  \
    handle->member = value;                           \
    return kOk;                                       \
  }                                                   \
  API int cublasGet##Name(Blas* handle, int* value) { \
    *value = handle->member;                          \
    return kOk;                                       \
  }
STATE(MathMode, math_mode)
STATE(PointerMode_v2, pointer_mode)
STATE(AtomicsMode, atomics_mode)
STATE(SmCountTarget, sm_count_target)
#undef STATE
API const char* cublasGetStatusString(int) { return "CUBLAS_STATUS"; }
API const char* cublasGetStatusName(int) { return "CUBLAS_STATUS"; }
NO_OP(cublasLoggerConfigure)

// ---- copies between host and device ----

API int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                          int kind, void* stream);

API int cublasSetMatrixAsync(int rows, int columns, int element, const void* from, int from_rows, void* to, int to_rows,
                             void* stream) {
  return cudaMemcpy2DAsync(to, static_cast<size_t>(to_rows) * element, from, static_cast<size_t>(from_rows) * element,
                           static_cast<size_t>(rows) * element, static_cast<size_t>(columns), 4, stream);
}
API int cublasGetMatrixAsync(int rows, int columns, int element, const void* from, int from_rows, void* to, int to_rows,
                             void* stream) {
  return cublasSetMatrixAsync(rows, columns, element, from, from_rows, to, to_rows, stream);
}
API int cublasSetVectorAsync(int count, int element, const void* from, int from_step, void* to, int to_step,
                             void* stream) {
  return cublasSetMatrixAsync(1, count, element, from, from_step, to, to_step, stream);
}
API int cublasGetVectorAsync(int count, int element, const void* from, int from_step, void* to, int to_step,
                             void* stream) {
  return cublasSetMatrixAsync(1, count, element, from, from_step, to, to_step, stream);
}

// ---- scalar results ----

#define REDUCTION(name, bytes) \
  API int name(Blas*, int, const void*, int, void* result) { return zero_result(result, bytes); }
REDUCTION(cublasSasum_v2, 4)
REDUCTION(cublasDasum_v2, 8)
REDUCTION(cublasScasum_v2, 4)
REDUCTION(cublasDzasum_v2, 8)
REDUCTION(cublasSnrm2_v2, 4)
REDUCTION(cublasDnrm2_v2, 8)
REDUCTION(cublasScnrm2_v2, 4)
REDUCTION(cublasDznrm2_v2, 8)
REDUCTION(cublasIsamax_v2, 4)
REDUCTION(cublasIdamax_v2, 4)
REDUCTION(cublasIcamax_v2, 4)
REDUCTION(cublasIzamax_v2, 4)
REDUCTION(cublasIsamin_v2, 4)
REDUCTION(cublasIdamin_v2, 4)
REDUCTION(cublasIcamin_v2, 4)
REDUCTION(cublasIzamin_v2, 4)
#undef REDUCTION

#define DOT(name, bytes) \
  API int name(Blas*, int, const void*, int, const void*, int, void* result) { return zero_result(result, bytes); }
DOT(cublasSdot_v2, 4)
DOT(cublasDdot_v2, 8)
DOT(cublasCdotu_v2, 8)
DOT(cublasCdotc_v2, 8)
DOT(cublasZdotu_v2, 16)
DOT(cublasZdotc_v2, 16)
#undef DOT
API int cublasDotEx(Blas*, int, const void*, int, int, const void*, int, int, void* result, int, int) {
  return zero_result(result, 2);  // no element type is smaller
}
API int cublasDotcEx(Blas* handle, int n, const void* x, int xt, int xi, const void* y, int yt, int yi, void* result,
                     int rt, int et) {
  return cublasDotEx(handle, n, x, xt, xi, y, yt, yi, result, rt, et);
}

// ---- factorisations in batches tell on the host that no argument was wrong ----

#define GEQRF(name) \
  API int name(Blas*, int, int, void*, int, void*, int* info, int) { return *info = 0; }
FOR_SDCZ(GEQRF, cublas, geqrfBatched)
#undef GEQRF
#define TENTH_IS_INFO(name) \
  API int name(Blas*, int, int, int, const void*, int, const void*, void*, int, int* info) { return *info = 0; }
FOR_SDCZ(TENTH_IS_INFO, cublas, getrsBatched)
#undef TENTH_IS_INFO
#define GELS(name) \
  API int name(Blas*, int, int, int, int, void*, int, void*, int, int* info, int*, int) { return *info = 0; }
FOR_SDCZ(GELS, cublas, gelsBatched)
#undef GELS
FOR_SDCZ(NO_OP, cublas, getrfBatched)
FOR_SDCZ(NO_OP, cublas, getriBatched)
FOR_SDCZ(NO_OP, cublas, matinvBatched)

// ---- level 1 ----

FOR_SDCZ(NO_OP, cublas, axpy_v2)
FOR_SDCZ(NO_OP, cublas, copy_v2)
FOR_SDCZ(NO_OP, cublas, scal_v2)
FOR_SDCZ(NO_OP, cublas, swap_v2)
FOR_SDCZ(NO_OP, cublas, rot_v2)
FOR_SDCZ(NO_OP, cublas, rotg_v2)
FOR_SD(NO_OP, cublas, rotm_v2)
FOR_SD(NO_OP, cublas, rotmg_v2)
NO_OP(cublasCsrot_v2)
NO_OP(cublasZdrot_v2)
NO_OP(cublasCsscal_v2)
NO_OP(cublasZdscal_v2)
NO_OP(cublasAxpyEx)
NO_OP(cublasScalEx)

// ---- level 2 ----

FOR_SDCZ(NO_OP, cublas, gemv_v2)
FOR_SDCZ(NO_OP, cublas, symv_v2)
FOR_SDCZ(NO_OP, cublas, syr_v2)
FOR_SDCZ(NO_OP, cublas, syr2_v2)
FOR_SDCZ(NO_OP, cublas, trmv_v2)
FOR_SDCZ(NO_OP, cublas, trsv_v2)
FOR_SD(NO_OP, cublas, ger_v2)
FOR_CZ(NO_OP, cublas, gerc_v2)
FOR_CZ(NO_OP, cublas, geru_v2)
FOR_CZ(NO_OP, cublas, hemv_v2)
FOR_CZ(NO_OP, cublas, her_v2)
FOR_CZ(NO_OP, cublas, her2_v2)

// ---- level 3 ----

FOR_SDCZ(NO_OP, cublas, gemm_v2)
FOR_SDCZ(NO_OP, cublas, gemmBatched)
FOR_SDCZ(NO_OP, cublas, gemmStridedBatched)
FOR_SDCZ(NO_OP, cublas, symm_v2)
FOR_SDCZ(NO_OP, cublas, syrk_v2)
FOR_SDCZ(NO_OP, cublas, syr2k_v2)
FOR_SDCZ(NO_OP, cublas, trmm_v2)
FOR_SDCZ(NO_OP, cublas, trsm_v2)
FOR_SDCZ(NO_OP, cublas, trsmBatched)
FOR_SDCZ(NO_OP, cublas, geam)
FOR_SDCZ(NO_OP, cublas, dgmm)
FOR_CZ(NO_OP, cublas, hemm_v2)
FOR_CZ(NO_OP, cublas, herk_v2)
FOR_CZ(NO_OP, cublas, her2k_v2)
NO_OP(cublasHgemm)
NO_OP(cublasHgemmStridedBatched)
NO_OP(cublasSgemmEx)
NO_OP(cublasCgemmEx)
NO_OP(cublasGemmEx)
NO_OP(cublasGemmEx_64)
NO_OP(cublasGemmBatchedEx)
NO_OP(cublasGemmStridedBatchedEx)
NO_OP(cublasGemmStridedBatchedEx_64)
NO_OP(cublasGemmGroupedBatchedEx)

// ---- cuBLASLt ----

namespace {

struct Algorithm {
  uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96);

}  // namespace

API size_t cublasLtGetVersion() { return static_cast<size_t>(cuda_version()) * 10; }
API size_t cublasLtGetCudartVersion() { return static_cast<size_t>(cuda_version()); }
API int cublasLtCreate(void** handle) { return make_opaque(handle); }
API int cublasLtDestroy(void* handle) { return drop_opaque(handle); }
API int cublasLtMatmulDescCreate(void** out, int, int) { return make_opaque(out); }
API int cublasLtMatmulDescDestroy(void* descriptor) { return drop_opaque(descriptor); }
API int cublasLtMatrixLayoutCreate(void** out, int, uint64_t, uint64_t, int64_t) { return make_opaque(out); }
API int cublasLtMatrixLayoutDestroy(void* layout) { return drop_opaque(layout); }
API int cublasLtMatmulPreferenceCreate(void** out) { return make_opaque(out); }
API int cublasLtMatmulPreferenceDestroy(void* preference) { return drop_opaque(preference); }
API int cublasLtMatrixTransformDescCreate(void** out, int) { return make_opaque(out); }
API int cublasLtMatrixTransformDescDestroy(void* descriptor) { return drop_opaque(descriptor); }
NO_OP(cublasLtMatmulDescSetAttribute)
NO_OP(cublasLtMatrixLayoutSetAttribute)
NO_OP(cublasLtMatmulPreferenceSetAttribute)
NO_OP(cublasLtMatrixTransformDescSetAttribute)
NO_OP(cublasLtMatrixTransform)

// One algorithm, which needs no workspace: the caller has its workspace already, whatever the answer.
API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted,
                                       HeuristicResult* results, int* found) {
  *found = wanted > 0 ? 1 : 0;
  if (*found) results[0] = {{}, 0, kOk, 1.0f, {}};
  return kOk;
}
API int cublasLtMatmulAlgoGetIds(void*, int, int, int, int, int, int, int wanted, int* ids, int* found) {
  *found = wanted > 0 ? 1 : 0;
  if (*found) ids[0] = 0;
  return kOk;
}
API int cublasLtMatmulAlgoInit(void*, int, int, int, int, int, int, int, Algorithm* algorithm) {
  *algorithm = {};
  return kOk;
}
API int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const Algorithm*, HeuristicResult* result) {
  *result = {{}, 0, kOk, 1.0f, {}};
  return kOk;
}
API int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm*, int, void* out, size_t bytes, size_t* written) {
  std::memset(out, 0, bytes);
  if (written) *written = bytes;
  return kOk;
}
API int cublasLtMatmulAlgoCapGetAttribute(const Algorithm*, int, void* out, size_t bytes, size_t* written) {
  std::memset(out, 0, bytes);
  if (written) *written = bytes;
  return kOk;
}
NO_OP(cublasLtMatmulAlgoConfigSetAttribute)
API int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                       void*, void*, void*, const Algorithm*, void* workspace, size_t bytes, void*) {
  if (workspace && bytes) log_event(EventKind::blas_workspace, workspace, bytes);
  return touch_device() ? kOk : 1;
}
