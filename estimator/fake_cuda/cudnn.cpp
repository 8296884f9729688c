// cuDNN: the library, and the calls of which there is one per operation.

#include "cudnn.h"
#include "real_cudnn.h"

#include <cstdlib>

using namespace gpumem;

// ---- library and handle ----

API size_t cudnnGetVersion() { return static_cast<size_t>(cudnn_version()); }
API size_t cudnnGetCudartVersion() { return static_cast<size_t>(cuda_version()); }
API int cudnnGetProperty(int which, int* value) {
  const int version = cudnn_version();
  *value = which == 0 ? version / 10000 : which == 1 ? version / 100 % 100 : version % 100;
  return kDnnOk;
}
API const char* cudnnGetErrorString(int status) {
  return status == kDnnOk ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}
API void cudnnGetLastErrorString(char* text, size_t length) {
  if (length) *text = '\0';
  if (const RealCudnn* real = real_cudnn()) real->last_error(text, length);
}
API int cudnnCreate(DnnHandle** handle) {
  if (!touch_device()) return kDnnNotInitialized;
  note_library("cudnn");
  return make(handle);
}
API int cudnnDestroy(DnnHandle* handle) { return drop(handle); }
API int cudnnSetStream(DnnHandle* handle, void* stream) {
  handle->stream = stream;
  return kDnnOk;
}
API int cudnnGetStream(DnnHandle* handle, void** stream) {
  *stream = handle->stream;
  return kDnnOk;
}
NO_OP(cudnnGraphVersionCheck)
NO_OP(cudnnOpsVersionCheck)
NO_OP(cudnnCnnVersionCheck)
NO_OP(cudnnAdvVersionCheck)
NO_OP(cudnnSetCallback)

// ---- descriptors that are only carried around ----

#define OPAQUE(Name)                                                                             \
  API int cudnnCreate##Name##Descriptor(void** out) { return *out = std::calloc(1, 8), kDnnOk; } \
  API int cudnnDestroy##Name##Descriptor(void* descriptor) {                                     \
    std::free(descriptor);                                                                       \
    return kDnnOk;                                                                               \
  }
OPAQUE(Activation)
OPAQUE(CTCLoss)
OPAQUE(Convolution)
OPAQUE(Dropout)
OPAQUE(Pooling)
OPAQUE(SpatialTransformer)
OPAQUE(LRN)
OPAQUE(ReduceTensor)
OPAQUE(OpTensor)
#undef OPAQUE
NO_OP(cudnnSetActivationDescriptor)
NO_OP(cudnnSetCTCLossDescriptor)
NO_OP(cudnnSetCTCLossDescriptorEx)
NO_OP(cudnnSetCTCLossDescriptor_v8)
NO_OP(cudnnSetCTCLossDescriptor_v9)
NO_OP(cudnnSetConvolutionGroupCount)
NO_OP(cudnnSetConvolutionMathType)
NO_OP(cudnnSetConvolution2dDescriptor)
NO_OP(cudnnSetConvolutionNdDescriptor)
NO_OP(cudnnSetDropoutDescriptor)
NO_OP(cudnnRestoreDropoutDescriptor)
NO_OP(cudnnSetPooling2dDescriptor)
NO_OP(cudnnSetPoolingNdDescriptor)
NO_OP(cudnnSetSpatialTransformerNdDescriptor)

// ---- tensors and filters ----

namespace {

int set_sizes(Tensor& tensor, int data_type, int dims, const int* sizes, const int* strides) {
  if (dims < 0 || dims > Tensor::kMaxDims) return kDnnBadParameter;
  tensor.type = data_type;
  tensor.dims = dims;
  std::copy_n(sizes, dims, tensor.sizes);
  if (strides) std::copy_n(strides, dims, tensor.strides);
  return kDnnOk;
}

}  // namespace

API int cudnnCreateTensorDescriptor(Tensor** out) { return make(out); }
API int cudnnDestroyTensorDescriptor(Tensor* tensor) { return drop(tensor); }
API int cudnnCreateFilterDescriptor(Tensor** out) { return make(out); }
API int cudnnDestroyFilterDescriptor(Tensor* filter) { return drop(filter); }
API int cudnnSetTensorNdDescriptor(Tensor* tensor, int type, int dims, const int* sizes, const int* strides) {
  return set_sizes(*tensor, type, dims, sizes, strides);
}
API int cudnnSetTensor4dDescriptor(Tensor* tensor, int, int type, int n, int c, int h, int w) {
  tensor->set(type, {n, c, h, w});
  return kDnnOk;
}
API int cudnnSetFilterNdDescriptor(Tensor* filter, int type, int format, int dims, const int* sizes) {
  filter->format = format;
  return set_sizes(*filter, type, dims, sizes, nullptr);
}
API int cudnnGetTensorNdDescriptor(const Tensor* tensor, int wanted, int* type, int* dims, int* sizes, int* strides) {
  *type = tensor->type;
  *dims = tensor->dims;
  const int count = std::clamp(wanted, 0, tensor->dims);
  std::copy_n(tensor->sizes, count, sizes);
  std::copy_n(tensor->strides, count, strides);
  return kDnnOk;
}
API int cudnnGetFilterNdDescriptor(const Tensor* filter, int wanted, int* type, int* format, int* dims, int* sizes) {
  *type = filter->type;
  *format = filter->format;
  *dims = filter->dims;
  std::copy_n(filter->sizes, std::clamp(wanted, 0, filter->dims), sizes);
  return kDnnOk;
}

// ---- the older calls, one per operation ----

namespace {

constexpr const char* kConvolution = "cudnn workspace";

// cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t
struct AlgorithmPerformance {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math_type, reserved[3];
};
static_assert(sizeof(AlgorithmPerformance) == 48);

int one_algorithm(int wanted, int* found, AlgorithmPerformance* results) {
  if (wanted < 1) return kDnnBadParameter;
  constexpr int deterministic = 1, implicit_precomputed_gemm = 1;
  *found = 1;
  results[0] = {implicit_precomputed_gemm, kDnnOk, 1.0f, workspace_bytes(kConvolution), deterministic, 0, {}};
  return kDnnOk;
}

}  // namespace

#define CONVOLUTION(Direction)                                                                                         \
  API int cudnnGetConvolution##Direction##Algorithm_v7(DnnHandle*, void*, void*, void*, void*, int wanted, int* found, \
                                                       AlgorithmPerformance* results) {                                \
    return one_algorithm(wanted, found, results);                                                                      \
  }                                                                                                                    \
  API int cudnnFindConvolution##Direction##AlgorithmEx(DnnHandle*, void*, const void*, void*, const void*, void*,      \
                                                       void*, void*, int wanted, int* found,                           \
                                                       AlgorithmPerformance* results, void*, size_t) {                 \
    return one_algorithm(wanted, found, results);                                                                      \
  }                                                                                                                    \
  API int cudnnGetConvolution##Direction##WorkspaceSize(DnnHandle*, void*, void*, void*, void*, int, size_t* bytes) {  \
    *bytes = workspace_bytes(kConvolution);                                                                            \
    return kDnnOk;                                                                                                     \
  }
CONVOLUTION(Forward)
CONVOLUTION(BackwardData)
CONVOLUTION(BackwardFilter)
#undef CONVOLUTION
NO_OP(cudnnConvolutionForward)
NO_OP(cudnnConvolutionBackwardData)
NO_OP(cudnnConvolutionBackwardFilter)
NO_OP(cudnnConvolutionBackwardBias)
NO_OP(cudnnConvolutionBiasActivationForward)

namespace {

// cuDNN's documentation: anything but channels last is done by the functions that take no workspace.
uint64_t batch_norm_bytes(const Tensor* x) {
  const bool channels_last = x && x->dims > 2 && x->strides[1] == 1 && x->strides[0] != x->sizes[1] && x->sizes[1] > 1;
  return channels_last ? workspace_bytes("cudnn batch norm workspace") : 0;
}

}  // namespace

API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(DnnHandle*, int, int, const Tensor* x, void*, void*,
                                                                 void*, void*, size_t* bytes) {
  *bytes = batch_norm_bytes(x);
  return kDnnOk;
}
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(DnnHandle*, int, int, const Tensor* x, void*, void*, void*,
                                                          void*, void*, void*, size_t* bytes) {
  *bytes = batch_norm_bytes(x);
  return kDnnOk;
}
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(DnnHandle*, int, int, void*, const Tensor* x,
                                                             size_t* bytes) {
  *bytes = batch_norm_bytes(x);
  return kDnnOk;
}
NO_OP(cudnnBatchNormalizationForwardTraining)
NO_OP(cudnnBatchNormalizationForwardTrainingEx)
NO_OP(cudnnBatchNormalizationForwardInference)
NO_OP(cudnnBatchNormalizationBackward)
NO_OP(cudnnBatchNormalizationBackwardEx)

API int cudnnGetCTCLossWorkspaceSize(DnnHandle*, void*, void*, const int*, const int*, const int*, int, void*,
                                     size_t* bytes) {
  *bytes = workspace_bytes("cudnn ctc workspace");
  return kDnnOk;
}
API int cudnnGetCTCLossWorkspaceSize_v8(DnnHandle*, int, void*, void*, void*, size_t* bytes) {
  *bytes = workspace_bytes("cudnn ctc workspace");
  return kDnnOk;
}
NO_OP(cudnnCTCLoss)
NO_OP(cudnnCTCLoss_v8)
NO_OP(cudnnPoolingForward)
NO_OP(cudnnPoolingBackward)
NO_OP(cudnnActivationForward)
NO_OP(cudnnActivationBackward)
NO_OP(cudnnSoftmaxForward)
NO_OP(cudnnSoftmaxBackward)
NO_OP(cudnnSpatialTfGridGeneratorForward)
NO_OP(cudnnSpatialTfGridGeneratorBackward)
NO_OP(cudnnSpatialTfSamplerForward)
NO_OP(cudnnSpatialTfSamplerBackward)
NO_OP(cudnnAddTensor)
NO_OP(cudnnTransformTensor)
NO_OP(cudnnScaleTensor)
NO_OP(cudnnSetTensor)
