// cuDNN: descriptors, recurrent weights, and the backend (graph) API with one engine for every operation.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {

constexpr int kOk = 0;
constexpr int kBadParameter = 2000;

// cuDNN chooses its workspaces by its own heuristics. They are taken as 0 until they are measured, and this
// is said: `what` names the kind of plan.
uint64_t workspace_bytes(const char* what) {
  note_invented(what);
  return 0;
}

uint64_t element_bytes(int data_type) {
  switch (data_type) {
    case 1:                  // double
    case 10: return 8;       // int64
    case 2:                  // half
    case 9: return 2;        // bfloat16
    case 3:                  // int8
    case 6:                  // uint8
    case 11:                 // boolean
    case 12:
    case 13: return 1;       // fp8
    default: return 4;       // float, int32
  }
}

template <typename T>
int make(T** out) {
  *out = new T{};
  return kOk;
}
template <typename T>
int drop(T* descriptor) {
  delete descriptor;
  return kOk;
}

}  // namespace

// ---- library and handle ----

namespace {
struct Dnn {
  void* stream = nullptr;
};
}  // namespace

API size_t cudnnGetVersion() { return static_cast<size_t>(cudnn_version()); }
API size_t cudnnGetCudartVersion() { return static_cast<size_t>(cuda_version()); }
API int cudnnGetProperty(int which, int* value) {
  const int version = cudnn_version();
  *value = which == 0 ? version / 10000 : which == 1 ? version / 100 % 100 : version % 100;
  return kOk;
}
API const char* cudnnGetErrorString(int status) { return status == kOk ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM"; }
API void cudnnGetLastErrorString(char* text, size_t length) {
  if (length) *text = '\0';
}
API int cudnnCreate(Dnn** handle) {
  if (!touch_device()) return 1001;  // not initialized
  return make(handle);
}
API int cudnnDestroy(Dnn* handle) { return drop(handle); }
API int cudnnSetStream(Dnn* handle, void* stream) {
  handle->stream = stream;
  return kOk;
}
API int cudnnGetStream(Dnn* handle, void** stream) {
  *stream = handle->stream;
  return kOk;
}
NO_OP(cudnnGraphVersionCheck)
NO_OP(cudnnOpsVersionCheck)
NO_OP(cudnnCnnVersionCheck)
NO_OP(cudnnAdvVersionCheck)
NO_OP(cudnnSetCallback)

// ---- descriptors that are only carried around ----

#define OPAQUE(Name)                                                                      \
  API int cudnnCreate##Name##Descriptor(void** out) { return *out = std::calloc(1, 8), kOk; } \
  API int cudnnDestroy##Name##Descriptor(void* descriptor) {                              \
    std::free(descriptor);                                                                \
    return kOk;                                                                           \
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

constexpr int kMaxDims = 8;

struct Tensor {
  int type = 0, format = 0, dims = 0;
  int sizes[kMaxDims] = {}, strides[kMaxDims] = {};

  void set(int data_type, std::initializer_list<int> shape) {
    type = data_type;
    dims = 0;
    for (const int size : shape) sizes[dims++] = size;
    for (int i = dims - 1, stride = 1; i >= 0; stride *= sizes[i--]) strides[i] = stride;
  }
};

int set_sizes(Tensor& tensor, int data_type, int dims, const int* sizes, const int* strides) {
  if (dims < 0 || dims > kMaxDims) return kBadParameter;
  tensor.type = data_type;
  tensor.dims = dims;
  std::copy_n(sizes, dims, tensor.sizes);
  if (strides) std::copy_n(strides, dims, tensor.strides);
  return kOk;
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
  return kOk;
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
  return kOk;
}
API int cudnnGetFilterNdDescriptor(const Tensor* filter, int wanted, int* type, int* format, int* dims, int* sizes) {
  *type = filter->type;
  *format = filter->format;
  *dims = filter->dims;
  std::copy_n(filter->sizes, std::clamp(wanted, 0, filter->dims), sizes);
  return kOk;
}

// ---- recurrent networks ----

namespace {

struct SequenceData {
  int type = 0, longest = 0, batch = 0, width = 0;
};

struct Recurrent {
  int mode = 0, bias_mode = 0, directions = 1, type = 0;
  int input = 0, hidden = 0, projected = 0, layers = 0;

  enum Mode { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };
  enum BiasMode { kNoBias = 0, kInputBias = 1, kBothBiases = 2, kHiddenBias = 3 };

  int gates() const { return mode == kLstm ? 4 : mode == kGru ? 3 : 1; }
  bool projects() const { return projected > 0 && projected != hidden; }
  int output() const { return projects() ? projected : hidden; }
  int pseudo_layers() const { return layers * directions; }
  int input_of(int pseudo_layer) const { return pseudo_layer / directions == 0 ? input : output() * directions; }

  // Matrix `id` of a layer: the gates' input matrices, then the gates' recurrent ones, then the projection.
  int matrices() const { return 2 * gates() + projects(); }
  int rows(int id) const { return id == 2 * gates() ? projected : hidden; }
  int columns(int pseudo_layer, int id) const {
    return id < gates() ? input_of(pseudo_layer) : id < 2 * gates() ? output() : hidden;
  }
  bool has_bias(int id) const {
    if (id >= 2 * gates()) return false;
    return bias_mode == kBothBiases || bias_mode == (id < gates() ? kInputBias : kHiddenBias);
  }

  uint64_t matrix_elements(int pseudo_layer, int id) const {
    return static_cast<uint64_t>(rows(id)) * static_cast<uint64_t>(columns(pseudo_layer, id));
  }
  // Where a matrix begins: all matrices of all layers come first, in order.
  uint64_t matrix_offset(int pseudo_layer, int id) const {
    uint64_t offset = 0;
    for (int layer = 0; layer <= pseudo_layer; ++layer)
      for (int i = 0; i < (layer == pseudo_layer ? id : matrices()); ++i) offset += matrix_elements(layer, i);
    return offset;
  }
  uint64_t biases_of_layer() const {
    uint64_t count = 0;
    for (int id = 0; id < 2 * gates(); ++id) count += has_bias(id);
    return count * static_cast<uint64_t>(hidden);
  }
  uint64_t bias_offset(int pseudo_layer, int id) const {
    uint64_t offset = matrix_offset(pseudo_layers(), 0) + biases_of_layer() * static_cast<uint64_t>(pseudo_layer);
    for (int i = 0; i < id; ++i) offset += has_bias(i) ? static_cast<uint64_t>(hidden) : 0;
    return offset;
  }
  uint64_t weight_elements() const { return bias_offset(pseudo_layers(), 0); }
};

}  // namespace

API int cudnnCreateRNNDescriptor(Recurrent** out) { return make(out); }
API int cudnnDestroyRNNDescriptor(Recurrent* network) { return drop(network); }
API int cudnnCreateRNNDataDescriptor(SequenceData** out) { return make(out); }
API int cudnnDestroyRNNDataDescriptor(SequenceData* data) { return drop(data); }
API int cudnnSetRNNDescriptor_v8(Recurrent* network, int, int mode, int bias_mode, int direction_mode, int, int type, int,
                                 int, int input, int hidden, int projected, int layers, void*, uint32_t) {
  *network = {mode, bias_mode, direction_mode + 1, type, input, hidden, projected, layers};
  return kOk;
}
API int cudnnSetRNNDataDescriptor(SequenceData* data, int type, int, int longest, int batch, int width, const int*,
                                  void*) {
  *data = {type, longest, batch, width};
  return kOk;
}
API int cudnnGetRNNWeightSpaceSize(Dnn*, const Recurrent* network, size_t* bytes) {
  *bytes = network->weight_elements() * element_bytes(network->type);
  return kOk;
}
API int cudnnGetRNNWeightParams(Dnn*, const Recurrent* network, int pseudo_layer, size_t, const char* weights, int id,
                                Tensor* matrix, const void** matrix_address, Tensor* bias, const void** bias_address) {
  const uint64_t element = element_bytes(network->type);
  if (pseudo_layer < 0 || pseudo_layer >= network->pseudo_layers() || id < 0) return kBadParameter;
  const bool exists = id < network->matrices();
  if (matrix_address) *matrix_address = exists ? weights + network->matrix_offset(pseudo_layer, id) * element : nullptr;
  if (matrix && exists) matrix->set(network->type, {1, network->rows(id), network->columns(pseudo_layer, id)});
  const bool has_bias = exists && network->has_bias(id);
  if (bias_address) *bias_address = has_bias ? weights + network->bias_offset(pseudo_layer, id) * element : nullptr;
  if (bias && has_bias) bias->set(network->type, {1, network->hidden, 1});
  return kOk;
}
// Invented: per step, sequence and unit, the workspace holds the gates of one layer's directions; what training
// keeps is the gates, the state and the output of every layer.
API int cudnnGetRNNTempSpaceSizes(Dnn*, const Recurrent* network, int training, const SequenceData* data,
                                  size_t* workspace, size_t* reserve) {
  note_invented("cudnn recurrent workspace");
  const uint64_t units = static_cast<uint64_t>(data->longest) * static_cast<uint64_t>(data->batch) *
                         static_cast<uint64_t>(network->hidden) * element_bytes(network->type);
  if (workspace) *workspace = units * static_cast<uint64_t>(network->gates() * network->directions);
  if (reserve) *reserve = training ? units * static_cast<uint64_t>((network->gates() + 2) * network->pseudo_layers()) : 0;
  return kOk;
}
API int cudnnDropoutGetStatesSize(Dnn*, size_t* bytes) {
  // One generator per resident thread.
  constexpr uint64_t state_bytes = 48;
  note_invented("cudnn dropout states");
  const Device& device = devices_of_process().devices[current_device()];
  *bytes = static_cast<uint64_t>(device.spec.sm_count) * 2048 * state_bytes;
  return kOk;
}
NO_OP(cudnnBuildRNNDynamic)
NO_OP(cudnnRNNForward)
NO_OP(cudnnRNNBackwardData_v8)
NO_OP(cudnnRNNBackwardWeights_v8)

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
  if (wanted < 1) return kBadParameter;
  constexpr int deterministic = 1, implicit_precomputed_gemm = 1;
  *found = 1;
  results[0] = {implicit_precomputed_gemm, kOk, 1.0f, workspace_bytes(kConvolution), deterministic, 0, {}};
  return kOk;
}

}  // namespace

#define CONVOLUTION(Direction)                                                                                   \
  API int cudnnGetConvolution##Direction##Algorithm_v7(Dnn*, void*, void*, void*, void*, int wanted, int* found, \
                                                       AlgorithmPerformance* results) {                          \
    return one_algorithm(wanted, found, results);                                                                \
  }                                                                                                              \
  API int cudnnFindConvolution##Direction##AlgorithmEx(Dnn*, void*, const void*, void*, const void*, void*,      \
                                                       void*, void*, int wanted, int* found,                     \
                                                       AlgorithmPerformance* results, void*, size_t) {           \
    return one_algorithm(wanted, found, results);                                                                \
  }                                                                                                              \
  API int cudnnGetConvolution##Direction##WorkspaceSize(Dnn*, void*, void*, void*, void*, int, size_t* bytes) {  \
    *bytes = workspace_bytes(kConvolution);                                                                      \
    return kOk;                                                                                                  \
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

API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(Dnn*, int, int, void*, void*, void*, void*, void*,
                                                                 size_t* bytes) {
  *bytes = workspace_bytes("cudnn batch norm workspace");
  return kOk;
}
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(Dnn*, int, int, void*, void*, void*, void*, void*, void*,
                                                          void*, size_t* bytes) {
  *bytes = workspace_bytes("cudnn batch norm workspace");
  return kOk;
}
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(Dnn*, int, int, void*, void*, size_t* bytes) {
  *bytes = workspace_bytes("cudnn batch norm workspace");
  return kOk;
}
NO_OP(cudnnBatchNormalizationForwardTraining)
NO_OP(cudnnBatchNormalizationForwardTrainingEx)
NO_OP(cudnnBatchNormalizationForwardInference)
NO_OP(cudnnBatchNormalizationBackward)
NO_OP(cudnnBatchNormalizationBackwardEx)

API int cudnnGetCTCLossWorkspaceSize(Dnn*, void*, void*, const int*, const int*, const int*, int, void*, size_t* bytes) {
  *bytes = workspace_bytes("cudnn ctc workspace");
  return kOk;
}
API int cudnnGetCTCLossWorkspaceSize_v8(Dnn*, int, void*, void*, void*, size_t* bytes) {
  *bytes = workspace_bytes("cudnn ctc workspace");
  return kOk;
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

// ---- the backend API: a descriptor is a bag of attributes ----

namespace {

struct Attribute {
  int64_t count = 0;
  std::vector<char> bytes;
};
struct Descriptor {
  int kind = 0;
  std::map<int, Attribute> attributes;
};

// cudnnBackendAttributeName_t
enum AttributeName {
  kHeuristicResults = 202,
  kConfigEngine = 300,
  kConfigKnobChoices = 302,
  kConfigWorkspaceSize = 303,
  kPlanWorkspaceSize = 402,
  kGraphEngineCount = 802,
  kVariantPackWorkspace = 1003,
  kEngineKnobInfo = 1302,
  kEngineNumericalNote = 1303,
  kEngineLayoutInfo = 1304,
  kEngineBehaviorNote = 1305,
};

// Bytes of one element of a cudnnBackendAttributeType_t.
size_t attribute_bytes(int type) {
  switch (type) {
    case 0:              // handle
    case 3:              // int64
    case 5:              // double
    case 6:              // pointer
    case 15:             // descriptor
    case 26: return 8;   // fraction: two int32
    case 2:              // boolean
    case 24: return 1;   // char
    default: return 4;   // enumerations, int32, float
  }
}

void answer(int64_t value, int64_t wanted, int64_t* count, void* out) {
  *count = 1;
  if (out && wanted > 0) std::memcpy(out, &value, sizeof value);
}

}  // namespace

API int cudnnBackendCreateDescriptor(int kind, Descriptor** out) {
  *out = new Descriptor{kind, {}};
  return kOk;
}
API int cudnnBackendDestroyDescriptor(Descriptor* descriptor) { return drop(descriptor); }
NO_OP(cudnnBackendInitialize)
NO_OP(cudnnBackendFinalize)
API int cudnnBackendSetAttribute(Descriptor* descriptor, int name, int type, int64_t count, const void* values) {
  if (count < 0) return kBadParameter;
  Attribute& attribute = descriptor->attributes[name];
  attribute.count = count;
  const auto* bytes = static_cast<const char*>(values);
  attribute.bytes.assign(bytes, bytes + (values ? static_cast<size_t>(count) * attribute_bytes(type) : 0));
  return kOk;
}
API int cudnnBackendGetAttribute(const Descriptor* descriptor, int name, int type, int64_t wanted, int64_t* count,
                                 void* out) {
  int64_t ignored = 0;
  if (!count) count = &ignored;
  switch (name) {
    // The caller's own descriptors are filled in: they may stay as they are.
    case kHeuristicResults:
    case kConfigEngine: *count = 1; return kOk;
    case kConfigKnobChoices:
    case kEngineKnobInfo:
    case kEngineNumericalNote:
    case kEngineLayoutInfo:
    case kEngineBehaviorNote: *count = 0; return kOk;
    case kGraphEngineCount: answer(1, wanted, count, out); return kOk;
    case kConfigWorkspaceSize:
    case kPlanWorkspaceSize:
      answer(static_cast<int64_t>(workspace_bytes("cudnn workspace")), wanted, count, out);
      return kOk;
    default: break;
  }
  const size_t room = wanted > 0 ? static_cast<size_t>(wanted) * attribute_bytes(type) : 0;
  const auto found = descriptor->attributes.find(name);
  if (found != descriptor->attributes.end()) {
    *count = found->second.count;
    if (out) std::memcpy(out, found->second.bytes.data(), std::min(found->second.bytes.size(), room));
  } else {
    *count = 1;
    if (out) std::memset(out, 0, room);
  }
  return kOk;
}
API int cudnnBackendExecute(Dnn*, const Descriptor*, const Descriptor* variant_pack) {
  const uint64_t bytes = workspace_bytes("cudnn workspace");
  const auto workspace = variant_pack->attributes.find(kVariantPackWorkspace);
  if (bytes && workspace != variant_pack->attributes.end() && workspace->second.bytes.size() == sizeof(void*)) {
    const void* pointer = nullptr;
    std::memcpy(&pointer, workspace->second.bytes.data(), sizeof pointer);
    log_event(EventKind::dnn_workspace, pointer, bytes);
  }
  return touch_device() ? kOk : 1001;
}
API int cudnnBackendPopulateCudaGraph(Dnn*, const Descriptor*, const Descriptor*, void*) { return 3000; }  // not supported
