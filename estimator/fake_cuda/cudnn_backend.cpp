// cuDNN: the backend (graph) API. A descriptor is a bag of attributes. What is computed is of interest for
// convolutions and attention alone. Where a real cuDNN can be asked, all descriptors of a graph with a convolution have
// one of that library behind them, which answers; only executing is pretended. For attention there is a rule: cuDNN
// would compile its kernels, for seconds, before it answers.
//
// Where there is no cuDNN to ask, a graph with a convolution has two engines, with tensor cores and without.

#include <cstring>
#include <memory>

#include "attention.h"
#include "convolution.h"
#include "cudnn.h"
#include "real_cudnn.h"

using namespace gpumem;

namespace {

struct Attribute {
  int type = 0;
  int64_t count = 0;
  std::vector<char> bytes;
};
struct Descriptor {
  int kind = 0;
  std::map<int, Attribute> attributes;
  // What it is about, from the operation on through graph, heuristics, engine and configuration to the plan.
  std::shared_ptr<const Convolution> convolution;
  std::shared_ptr<const Attention> attention;
  int64_t engine = 0;
  RealDescriptor real = nullptr;

  void take_subject_of(const Descriptor& part) {
    convolution = part.convolution;
    attention = part.attention;
  }
};

// cudnnBackendDescriptorType_t
enum DescriptorKind {
  kEngine = 2,
  kEngineHeuristics = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kConvolutionBackwardFilter = 11,
  kConvolutionBackwardData = 12,
  kGraph = 15,
  kVariantPack = 16,
  kMatrixProduct = 19,
  kReduction = 22,
  kRandomNumbers = 33,
  kAttentionForward = 41,
};

// cudnnBackendAttributeName_t
enum AttributeName {
  kHeuristicResults = 202,
  kHeuristicsDevice = 204,
  kConfigEngine = 300,
  kConfigKnobChoices = 302,
  kConfigWorkspaceSize = 303,
  kPlanWorkspaceSize = 402,
  kPlanDevice = 407,
  kForwardFilter = 703,  // the filter, followed by the image and the result
  kBackwardDataFilter = 709,
  kBackwardFilterFilter = 715,
  kGraphOperations = 801,
  kGraphEngineCount = 802,
  kTensorType = 901,
  kTensorSizes = 902,
  kTensorStrides = 903,
  kTensorIsVirtual = 907,
  kVariantPackWorkspace = 1003,
  kEngineIndex = 1301,
  kEngineKnobInfo = 1302,
  kEngineNumericalNote = 1303,
  kEngineLayoutInfo = 1304,
  kEngineBehaviorNote = 1305,
  kEngineDevice = 1307,
  kMatrixProductResult = 1522,
  kReductionFrom = 1610,
  kReductionTo = 1611,
  kAttentionQueries = 2800,
  kAttentionKeys = 2801,
  kAttentionDropoutSeed = 2815,
};

enum Engine { kTensorCores, kNoTensorCores };
constexpr int64_t kEnginesOfConvolutions = 2;

// Of other graphs the first is named, but PyTorch asks for some engines of attention by their numbers.
constexpr int64_t kEnginesOfOthers = 100;

// cudnnBackendAttributeType_t
constexpr int kHandleType = 0, kInt64Type = 3, kDescriptorType = 15;

constexpr int64_t kMostOfProduct = 1 << 20;

// Of a plan it is known what it copies to its workspace. Among equals, PyTorch takes the one that cuDNN names first.
constexpr double kLaunchMs = 0.01, kBytesPerMs = 1e9;

// Bytes of one element of a cudnnBackendAttributeType_t.
size_t attribute_bytes(int type) {
  switch (type) {
    case 0:             // handle
    case 3:             // int64
    case 5:             // double
    case 6:             // pointer
    case kDescriptorType:
    case 26: return 8;  // fraction: two int32
    case 2:             // boolean
    case 24: return 1;  // char
    default: return 4;  // enumerations, int32, float
  }
}

void answer(int64_t value, int64_t wanted, int64_t* count, void* out) {
  *count = 1;
  if (out && wanted > 0) std::memcpy(out, &value, sizeof value);
}

template <typename T>
std::vector<T> values_of(const Descriptor& descriptor, int name) {
  const auto found = descriptor.attributes.find(name);
  if (found == descriptor.attributes.end()) return {};
  std::vector<T> values(found->second.bytes.size() / sizeof(T));
  std::memcpy(values.data(), found->second.bytes.data(), values.size() * sizeof(T));
  return values;
}

template <typename T>
T value_of(const Descriptor& descriptor, int name) {
  const auto values = values_of<T>(descriptor, name);
  return values.empty() ? T{} : values[0];
}

TensorShape shape_of(const Descriptor& operation, int name) {
  const auto* tensor = value_of<const Descriptor*>(operation, name);
  if (!tensor) return {};
  return {value_of<int>(*tensor, kTensorType), values_of<int64_t>(*tensor, kTensorSizes),
          values_of<int64_t>(*tensor, kTensorStrides)};
}

std::shared_ptr<const Convolution> convolution_of(const Descriptor& operation) {
  using enum Convolution::Direction;
  const auto made = [&](Convolution::Direction direction, int first) {
    return std::make_shared<const Convolution>(Convolution{
        direction, shape_of(operation, first + 1), shape_of(operation, first), shape_of(operation, first + 2)});
  };
  switch (operation.kind) {
    case kConvolutionForward: return made(forward, kForwardFilter);
    case kConvolutionBackwardData: return made(data, kBackwardDataFilter);
    case kConvolutionBackwardFilter: return made(filter, kBackwardFilterFilter);
    default: return nullptr;
  }
}

// Whether a reduction is over heads alone: those of the queries that share one of keys and values.
bool sums_heads(const TensorShape& from, TensorShape to) {
  if (from.sizes.size() != 4 || to.sizes.size() != 4 || from.sizes[1] == to.sizes[1]) return false;
  to.sizes[1] = from.sizes[1];
  return from.sizes == to.sizes;
}

// A forward pass is one operation, or, with older versions of PyTorch, has two matrix products; a backward pass has five.
std::shared_ptr<const Attention> attention_of(const Descriptor& graph) {
  constexpr int single_precision = 0;
  Attention found;
  int products = 0;
  bool whole = false;
  for (const auto* operation : values_of<const Descriptor*>(graph, kGraphOperations)) {
    if (!operation) return nullptr;
    if (operation->kind == kRandomNumbers) found.drops_out = true;
    if (operation->kind == kAttentionForward) {
      whole = true;
      found.drops_out = operation->attributes.contains(kAttentionDropoutSeed);
      found.scores = shape_of(*operation, kAttentionQueries);
      const TensorShape keys = shape_of(*operation, kAttentionKeys);
      if (found.scores.sizes.size() != 4 || keys.sizes.size() != 4) return nullptr;
      found.scores.sizes[3] = keys.sizes[2];
    }
    if (operation->kind == kMatrixProduct) {
      const auto* tensor = value_of<const Descriptor*>(*operation, kMatrixProductResult);
      const TensorShape result = shape_of(*operation, kMatrixProductResult);
      if (++products == 1) found.scores = result;
      if (tensor && !value_of<char>(*tensor, kTensorIsVirtual) && result.type == single_precision)
        found.accumulated = result;
    }
    if (operation->kind == kReduction) {
      const TensorShape from = shape_of(*operation, kReductionFrom);
      if (sums_heads(from, shape_of(*operation, kReductionTo))) found.summed.push_back(from);
    }
  }
  return whole || products == 2 || products == 5 ? std::make_shared<const Attention>(found) : nullptr;
}

// The attribute by which a kind of descriptor is told its device; 0: it is not.
int device_attribute_of(int kind) {
  switch (kind) {
    case kEngine: return kEngineDevice;
    case kEngineHeuristics: return kHeuristicsDevice;
    case kExecutionPlan: return kPlanDevice;
    default: return 0;
  }
}

// Whether the real library answers for it.
bool really(const Descriptor& descriptor) { return descriptor.real && descriptor.convolution; }

// Null where there is no library to ask.
RealDescriptor real_of(Descriptor& descriptor) {
  if (!descriptor.real && device_properties(current_device()))
    real_cudnn()->create(descriptor.kind, &descriptor.real);
  return descriptor.real;
}

// An array of the caller's descriptors, as those of the real library.
std::vector<RealDescriptor> real_ones(Descriptor* const* values, int64_t count) {
  std::vector<RealDescriptor> found;
  for (int64_t i = 0; i < count; ++i) found.push_back(values[i] ? real_of(*values[i]) : nullptr);
  return found;
}

int finalize_real(Descriptor& descriptor);

int set_real(const Descriptor& descriptor, int name, const Attribute& attribute) {
  if (attribute.type == kHandleType) return kDnnOk;  // the device is told otherwise
  if (attribute.type != kDescriptorType)
    return real_cudnn()->set(descriptor.real, name, attribute.type, attribute.count, attribute.bytes.data());
  const auto parts = values_of<Descriptor*>(descriptor, name);
  for (Descriptor* part : parts)
    if (part && !part->real)
      if (const int status = finalize_real(*part); status != kDnnOk) return status;
  const auto real_parts = real_ones(parts.data(), attribute.count);
  return real_cudnn()->set(descriptor.real, name, kDescriptorType, attribute.count, real_parts.data());
}

int get_real(const Descriptor& descriptor, int name, int type, int64_t wanted, int64_t* count, void* out) {
  if (type != kDescriptorType || !out) return real_cudnn()->get(descriptor.real, name, type, wanted, count, out);
  auto* const ours = static_cast<Descriptor**>(out);
  std::vector<RealDescriptor> parts = real_ones(ours, wanted);  // the real library fills them in
  for (int64_t i = 0; i < wanted; ++i)
    if (ours[i]) ours[i]->take_subject_of(descriptor);
  return real_cudnn()->get(descriptor.real, name, type, wanted, count, parts.data());
}

// Tells the real library all that is known of a descriptor, and of the parts that it has not been told of. This is done
// when a convolution is finalized and not before: most programs with attention have none, and do without the library.
int finalize_real(Descriptor& descriptor) {
  if (!real_of(descriptor)) return kDnnNotSupported;
  for (const auto& [name, attribute] : descriptor.attributes)
    if (const int status = set_real(descriptor, name, attribute); status != kDnnOk) return status;
  if (const int name = device_attribute_of(descriptor.kind)) {
    const RealDescriptor device = device_properties(current_device());
    if (const int status = real_cudnn()->set(descriptor.real, name, kDescriptorType, 1, &device); status != kDnnOk)
      return status;
  }
  return real_cudnn()->finalize(descriptor.real);
}

int64_t workspace_of_real(const Descriptor& plan) {
  int64_t bytes = 0, count = 0;
  get_real(plan, kPlanWorkspaceSize, kInt64Type, 1, &count, &bytes);
  return bytes;
}

// A dense convolution of one position is a matrix product. Without a device cuDNN names plans for it that copy every
// tensor; measured runs did not take them, perhaps because it has an engine over cuBLASLt, which needs a device.
bool refused(const Descriptor& plan) {
  return plan.kind == kExecutionPlan && is_matrix_product(*plan.convolution) && workspace_of_real(plan) > kMostOfProduct;
}

uint64_t workspace_of(const Descriptor& plan) {
  const DeviceSpec& gpu = devices_of_process().devices[current_device()].spec;
  const int compute_capability = gpu.cc_major * 10 + gpu.cc_minor;
  if (plan.attention) {
    note_invented("cudnn attention workspace");
    return attention_workspace(*plan.attention, compute_capability);
  }
  if (!plan.convolution) return workspace_bytes("cudnn workspace");
  note_invented("cudnn convolution workspace");
  if (really(plan)) return static_cast<uint64_t>(workspace_of_real(plan));
  if (plan.engine != kTensorCores) return 0;
  return tensor_core_workspace(*plan.convolution, compute_capability, gpu.convolutions);
}

}  // namespace

API int cudnnBackendCreateDescriptor(int kind, Descriptor** out) {
  *out = new Descriptor;
  (*out)->kind = kind;
  return kDnnOk;
}
API int cudnnBackendDestroyDescriptor(Descriptor* descriptor) {
  if (descriptor && descriptor->real) real_cudnn()->destroy(descriptor->real);
  return drop(descriptor);
}
NO_OP(cudnnBackendInitialize)
API int cudnnBackendFinalize(Descriptor* descriptor) {
  if (auto convolution = convolution_of(*descriptor)) descriptor->convolution = convolution;
  if (descriptor->kind == kGraph && !descriptor->convolution) descriptor->attention = attention_of(*descriptor);
  if (descriptor->kind == kEngine) descriptor->engine = value_of<int64_t>(*descriptor, kEngineIndex);
  if (!descriptor->convolution || !device_properties(current_device())) return kDnnOk;
  const int status = finalize_real(*descriptor);
  return status == kDnnOk && refused(*descriptor) ? kDnnNotSupported : status;
}
API int cudnnBackendSetAttribute(Descriptor* descriptor, int name, int type, int64_t count, const void* values) {
  if (count < 0) return kDnnBadParameter;
  Attribute& attribute = descriptor->attributes[name];
  attribute.type = type;
  attribute.count = count;
  const auto* bytes = static_cast<const char*>(values);
  attribute.bytes.assign(bytes, bytes + (values ? static_cast<size_t>(count) * attribute_bytes(type) : 0));
  if (type == kDescriptorType)
    for (const Descriptor* part : values_of<const Descriptor*>(*descriptor, name))
      if (part && (part->convolution || part->attention)) {
        descriptor->take_subject_of(*part);
        descriptor->engine = part->engine;
      }
  return kDnnOk;
}
API int cudnnBackendGetAttribute(const Descriptor* descriptor, int name, int type, int64_t wanted, int64_t* count,
                                 void* out) {
  int64_t ignored = 0;
  if (!count) count = &ignored;
  if (really(*descriptor)) return get_real(*descriptor, name, type, wanted, count, out);
  switch (name) {
    // The caller's own descriptors are filled in.
    case kHeuristicResults:
    case kConfigEngine: {
      const int64_t engines = name == kHeuristicResults && descriptor->convolution ? kEnginesOfConvolutions : 1;
      *count = out && wanted > 0 ? std::min<int64_t>(engines, wanted) : engines;
      if (out && wanted > 0)
        for (int64_t i = 0; i < *count; ++i) {
          Descriptor* filled = static_cast<Descriptor**>(out)[i];
          if (!filled) continue;
          filled->take_subject_of(*descriptor);
          filled->engine = name == kHeuristicResults ? i : descriptor->engine;
        }
      return kDnnOk;
    }
    case kEngineNumericalNote: {
      constexpr int tensor_core = 0;
      const bool noted = descriptor->convolution && descriptor->engine == kTensorCores;
      *count = noted;
      if (noted && out && wanted > 0) std::memcpy(out, &tensor_core, sizeof tensor_core);
      return kDnnOk;
    }
    case kConfigKnobChoices:
    case kEngineKnobInfo:
    case kEngineLayoutInfo:
    case kEngineBehaviorNote: *count = 0; return kDnnOk;
    case kGraphEngineCount:
      answer(descriptor->convolution ? kEnginesOfConvolutions : kEnginesOfOthers, wanted, count, out);
      return kDnnOk;
    case kConfigWorkspaceSize:
    case kPlanWorkspaceSize: answer(static_cast<int64_t>(workspace_of(*descriptor)), wanted, count, out); return kDnnOk;
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
  return kDnnOk;
}
API int cudnnBackendExecute(DnnHandle*, const Descriptor* plan, const Descriptor* variant_pack) {
  const uint64_t bytes = workspace_of(*plan);
  plans_ran_ms() += kLaunchMs + static_cast<double>(bytes) / kBytesPerMs;
  if (plan->convolution) note_convolution(largest_workspace(*plan->convolution));
  if (const void* workspace = value_of<const void*>(*variant_pack, kVariantPackWorkspace); bytes && workspace)
    log_event(plan->attention ? EventKind::attention_workspace : EventKind::dnn_workspace, workspace, bytes);
  return touch_device() ? kDnnOk : kDnnNotInitialized;
}
API int cudnnBackendPopulateCudaGraph(DnnHandle*, const Descriptor*, const Descriptor*, void*) {
  return kDnnNotSupported;
}
