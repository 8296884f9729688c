// cuDNN: the backend (graph) API. A descriptor is a bag of attributes, and every graph has one engine.

#include <cstring>

#include "cudnn.h"

using namespace gpumem;

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
    case 0:             // handle
    case 3:             // int64
    case 5:             // double
    case 6:             // pointer
    case 15:            // descriptor
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

}  // namespace

API int cudnnBackendCreateDescriptor(int kind, Descriptor** out) {
  *out = new Descriptor{kind, {}};
  return kDnnOk;
}
API int cudnnBackendDestroyDescriptor(Descriptor* descriptor) { return drop(descriptor); }
NO_OP(cudnnBackendInitialize)
NO_OP(cudnnBackendFinalize)
API int cudnnBackendSetAttribute(Descriptor* descriptor, int name, int type, int64_t count, const void* values) {
  if (count < 0) return kDnnBadParameter;
  Attribute& attribute = descriptor->attributes[name];
  attribute.count = count;
  const auto* bytes = static_cast<const char*>(values);
  attribute.bytes.assign(bytes, bytes + (values ? static_cast<size_t>(count) * attribute_bytes(type) : 0));
  return kDnnOk;
}
API int cudnnBackendGetAttribute(const Descriptor* descriptor, int name, int type, int64_t wanted, int64_t* count,
                                 void* out) {
  int64_t ignored = 0;
  if (!count) count = &ignored;
  switch (name) {
    // The caller's own descriptors are filled in: they may stay as they are.
    case kHeuristicResults:
    case kConfigEngine: *count = 1; return kDnnOk;
    case kConfigKnobChoices:
    case kEngineKnobInfo:
    case kEngineNumericalNote:
    case kEngineLayoutInfo:
    case kEngineBehaviorNote: *count = 0; return kDnnOk;
    case kGraphEngineCount: answer(1, wanted, count, out); return kDnnOk;
    case kConfigWorkspaceSize:
    case kPlanWorkspaceSize:
      answer(static_cast<int64_t>(workspace_bytes("cudnn workspace")), wanted, count, out);
      return kDnnOk;
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
API int cudnnBackendExecute(DnnHandle*, const Descriptor*, const Descriptor* variant_pack) {
  const uint64_t bytes = workspace_bytes("cudnn workspace");
  const auto workspace = variant_pack->attributes.find(kVariantPackWorkspace);
  if (bytes && workspace != variant_pack->attributes.end() && workspace->second.bytes.size() == sizeof(void*)) {
    const void* pointer = nullptr;
    std::memcpy(&pointer, workspace->second.bytes.data(), sizeof pointer);
    log_event(EventKind::dnn_workspace, pointer, bytes);
  }
  return touch_device() ? kDnnOk : kDnnNotInitialized;
}
API int cudnnBackendPopulateCudaGraph(DnnHandle*, const Descriptor*, const Descriptor*, void*) {
  return 3000;
}  // not supported
