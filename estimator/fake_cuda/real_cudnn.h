// The user's own cuDNN, asked what it would do on the target GPU.
//
// Its graph API answers without a device: heuristics and plans are made for a descriptor of device properties
// (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR; cuDNN 9.8 and newer, "Deviceless ahead-of-time compilation" in its documentation).
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem {

using RealDescriptor = void*;

// The functions of the graph API, as in cudnn_graph.h.
struct RealCudnn {
  size_t (*version)();
  int (*create)(int kind, RealDescriptor* out);
  int (*destroy)(RealDescriptor);
  int (*finalize)(RealDescriptor);
  int (*set)(RealDescriptor, int name, int type, int64_t count, const void* values);
  int (*get)(RealDescriptor, int name, int type, int64_t wanted, int64_t* count, void* out);
  void (*last_error)(char* text, size_t length);
};

// Where the library is; before the first use.
void set_cudnn_library(const char* path);

// Null where there is none, or none that answers without a device. Loaded at the first call, some 0.2 s.
const RealCudnn* real_cudnn();

// The properties of a device of this process, finalized; null if cuDNN does not know such a device.
RealDescriptor device_properties(int ordinal);

}  // namespace gpumem
