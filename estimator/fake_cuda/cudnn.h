// What the parts of the fake cuDNN share.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "export.h"
#include "process.h"

namespace gpumem {

constexpr int kDnnOk = 0;
constexpr int kDnnNotInitialized = 1001;
constexpr int kDnnBadParameter = 2000;
constexpr int kDnnNotSupported = 3000;

struct DnnHandle {
  void* stream = nullptr;
};

template <typename T>
int make(T** out) {
  *out = new T{};
  return kDnnOk;
}
template <typename T>
int drop(T* descriptor) {
  delete descriptor;
  return kDnnOk;
}

// cuDNN chooses its workspaces by its own heuristics. Where there is no rule for them they are taken as 0, and this is
// said: `what` names the kind of plan.
inline uint64_t workspace_bytes(const char* what) {
  note_invented(what);
  return 0;
}

// A tensor or filter descriptor.
struct Tensor {
  static constexpr int kMaxDims = 8;
  int type = 0, format = 0, dims = 0;
  int sizes[kMaxDims] = {}, strides[kMaxDims] = {};

  void set(int data_type, std::initializer_list<int> shape) {
    type = data_type;
    dims = 0;
    for (const int size : shape) sizes[dims++] = size;
    for (int i = dims - 1, stride = 1; i >= 0; stride *= sizes[i--]) strides[i] = stride;
  }
};

}  // namespace gpumem
