// cuSPARSE and cuSPARSELt: descriptors keep their shapes, products do nothing, buffer sizes are invented (0).

#include <cstdlib>
#include <cstring>

#include "arguments.h"
#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {

constexpr int kOk = 0;

int make(void** out) {
  *out = std::calloc(1, 64);
  return kOk;
}
int drop(void* handle) {
  std::free(handle);
  return kOk;
}
template <typename T>
int buffer_bytes(T* out) {
  note_invented("cusparse workspace");
  if (out) *out = 0;
  return kOk;
}
// How many elements a sparse result has follows from data: with zeros everywhere, none.
int result_elements(int* out) {
  note_invented("sparse result size");
  if (out && !on_device(out)) *out = 0;
  return kOk;
}

struct SparseMatrix {
  int64_t rows, columns, elements;
};

}  // namespace

// ---- handles and descriptors ----

API int cusparseCreate(void** handle) { return make(handle); }
API int cusparseDestroy(void* handle) { return drop(handle); }
API const char* cusparseGetErrorString(int) { return "cuSPARSE status"; }
API const char* cusparseGetErrorName(int) { return "CUSPARSE_STATUS"; }
API int cusparseGetVersion(void*, int* version) {
  *version = cuda_version();
  return kOk;
}
#define DESCRIPTOR(Name)                                         \
  API int cusparseCreate##Name(void** out) { return make(out); } \
  API int cusparseDestroy##Name(void* descriptor) { return drop(descriptor); }
DESCRIPTOR(Bsrsm2Info)
DESCRIPTOR(Bsrsv2Info)
DESCRIPTOR(MatDescr)
DESCRIPTOR(DnMat)
DESCRIPTOR(DnVec)
#undef DESCRIPTOR
#define OPERATION(Name)                                                  \
  API int cusparse##Name##_createDescr(void** out) { return make(out); } \
  API int cusparse##Name##_destroyDescr(void* descriptor) { return drop(descriptor); }
OPERATION(SpGEMM)
OPERATION(SpSM)
OPERATION(SpSV)
#undef OPERATION
#define SPARSE_MATRIX(Name)                                                                           \
  API int cusparseCreate##Name(SparseMatrix** out, int64_t rows, int64_t columns, int64_t elements) { \
    *out = new SparseMatrix{rows, columns, elements};                                                 \
    return kOk;                                                                                       \
  }
SPARSE_MATRIX(Coo)
SPARSE_MATRIX(Csr)
SPARSE_MATRIX(Csc)
#undef SPARSE_MATRIX
API int cusparseDestroySpMat(SparseMatrix* matrix) {
  delete matrix;
  return kOk;
}
API int cusparseSpMatGetSize(const SparseMatrix* matrix, int64_t* rows, int64_t* columns, int64_t* elements) {
  *rows = matrix->rows;
  *columns = matrix->columns;
  *elements = matrix->elements;
  return kOk;
}
NO_OP(cusparseCsrSetPointers)
NO_OP(cusparseCsrSetStridedBatch)
NO_OP(cusparseCooSetStridedBatch)
NO_OP(cusparseDnMatSetStridedBatch)
NO_OP(cusparseSpMatSetAttribute)
NO_OP(cusparseSetMatDiagType)
NO_OP(cusparseSetMatFillMode)
NO_OP(cusparseSetMatIndexBase)
NO_OP(cusparseSetMatType)
NO_OP(cusparseSetPointerMode)
NO_OP(cusparseSetStream)

// ---- buffer sizes, by the place of the answer ----

#define BYTES(name, position) ANSWERS_THROUGH(name, position, size_t, buffer_bytes)
BYTES(cusparseSDDMM_bufferSize, 10)
BYTES(cusparseSpMM_bufferSize, 10)
BYTES(cusparseSpMV_bufferSize, 9)
BYTES(cusparseSpSM_bufferSize, 10)
BYTES(cusparseSpSV_bufferSize, 9)
BYTES(cusparseSpGEMM_workEstimation, 11)
BYTES(cusparseSpGEMM_compute, 11)
BYTES(cusparseXcoosort_bufferSizeExt, 6)
BYTES(cusparseXcsrsort_bufferSizeExt, 6)
#define GEAM_BYTES(name) BYTES(name, 19)
FOR_SDCZ(GEAM_BYTES, cusparse, csrgeam2_bufferSizeExt)
#define SM_BYTES(name) ANSWERS_THROUGH(name, 13, int, buffer_bytes)
FOR_SDCZ(SM_BYTES, cusparse, bsrsm2_bufferSize)
#define SV_BYTES(name) ANSWERS_THROUGH(name, 11, int, buffer_bytes)
FOR_SDCZ(SV_BYTES, cusparse, bsrsv2_bufferSize)
ANSWERS_THROUGH(cusparseXcsrgeam2Nnz, 13, int, result_elements)

namespace {
int no_zero_pivot(int* position) {
  if (position && !on_device(position)) *position = -1;
  return kOk;
}
}  // namespace
ANSWERS_THROUGH(cusparseXbsrsm2_zeroPivot, 2, int, no_zero_pivot)
ANSWERS_THROUGH(cusparseXbsrsv2_zeroPivot, 2, int, no_zero_pivot)

// ---- computations ----

NO_OP(cusparseSDDMM)
NO_OP(cusparseSDDMM_preprocess)
NO_OP(cusparseSpGEMM_copy)
NO_OP(cusparseSpMM)
NO_OP(cusparseSpMM_preprocess)
NO_OP(cusparseSpMV)
NO_OP(cusparseSpMV_preprocess)
NO_OP(cusparseSpSM_analysis)
NO_OP(cusparseSpSM_solve)
NO_OP(cusparseSpSV_analysis)
NO_OP(cusparseSpSV_solve)
NO_OP(cusparseCreateIdentityPermutation)
NO_OP(cusparseXcoo2csr)
NO_OP(cusparseXcoosortByRow)
NO_OP(cusparseXcsrsort)
FOR_SDCZ(NO_OP, cusparse, bsrmm)
FOR_SDCZ(NO_OP, cusparse, bsrmv)
FOR_SDCZ(NO_OP, cusparse, bsrsm2_analysis)
FOR_SDCZ(NO_OP, cusparse, bsrsm2_solve)
FOR_SDCZ(NO_OP, cusparse, bsrsv2_analysis)
FOR_SDCZ(NO_OP, cusparse, bsrsv2_solve)
FOR_SDCZ(NO_OP, cusparse, csrgeam2)

// ---- cuSPARSELt: 2:4 sparsity. Its descriptors are structures of the caller's, of 512 bytes or more. ----

namespace {
struct StructuredMatrix {
  int64_t rows, columns;
  int type;  // cudaDataType
};

// Half of the values, and two bits of metadata for each of them.
uint64_t compressed_bytes(const StructuredMatrix& matrix) {
  const auto elements = static_cast<uint64_t>(matrix.rows) * static_cast<uint64_t>(matrix.columns);
  constexpr int kFloat32 = 0, kFloat16 = 2, kBfloat16 = 14;
  const uint64_t element = matrix.type == kFloat32 ? 4 : matrix.type == kFloat16 || matrix.type == kBfloat16 ? 2 : 1;
  return elements / 2 * element + elements / 2 / 4;
}

int keep_shape(StructuredMatrix* out, int64_t rows, int64_t columns, int type) {
  *out = {rows, columns, type};
  return kOk;
}
}  // namespace

API int cusparseLtInit(void*) { return touch_device() ? kOk : 1; }
NO_OP(cusparseLtDestroy)
API int cusparseLtStructuredDescriptorInit(const void*, StructuredMatrix* out, int64_t rows, int64_t columns, int64_t,
                                           uint32_t, int type, int, int) {
  return keep_shape(out, rows, columns, type);
}
API int cusparseLtDenseDescriptorInit(const void*, StructuredMatrix* out, int64_t rows, int64_t columns, int64_t,
                                      uint32_t, int type, int) {
  return keep_shape(out, rows, columns, type);
}
API int cusparseLtSpMMACompressedSize2(const void*, const StructuredMatrix* matrix, size_t* bytes, size_t* buffer) {
  note_invented("cusparselt compressed size");
  *bytes = compressed_bytes(*matrix);
  *buffer = 0;
  return kOk;
}
API int cusparseLtMatmulGetWorkspace(const void*, const void*, size_t* bytes) { return buffer_bytes(bytes); }
API int cusparseLtMatmulAlgGetAttribute(const void*, const void*, int, void* out, size_t bytes) {
  // Asked for the algorithm's number and its limit: there is one.
  std::memset(out, 0, bytes);
  return kOk;
}
API int cusparseLtMatmulAlgSelectionInit(const void*, void*, const void*, int) { return kOk; }
NO_OP(cusparseLtMatDescriptorDestroy)
NO_OP(cusparseLtMatmulDescriptorInit)
NO_OP(cusparseLtMatmulDescSetAttribute)
NO_OP(cusparseLtMatmulAlgSetAttribute)
NO_OP(cusparseLtMatmulPlanInit)
NO_OP(cusparseLtMatmulPlanDestroy)
NO_OP(cusparseLtMatmul)
NO_OP(cusparseLtMatmulSearch)
NO_OP(cusparseLtSpMMACompress2)
