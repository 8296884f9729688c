// How much workspace cuDNN asks for a convolution: a rule, not a measurement.
//
// Tensor cores want the channels last. For tensors with the channels second, the plan that is chosen on a GPU with
// tensor cores copies them into its workspace first (profiles in github.com/pytorch/pytorch/issues/81940). Which
// directions and sizes do so is fitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpumem {

// A tensor as a descriptor has it: sizes and strides in elements, batch (or channels out) first, then channels.
struct TensorShape {
  int type = 0;  // cudnnDataType_t
  std::vector<int64_t> sizes, strides;

  uint64_t elements() const;
  // Channels lie beside each other, or it makes no difference.
  bool channels_last() const;
};

// The tensors of the forward pass; of a backward pass, these are the gradients of the image, the filter and the result
// that are read or written instead.
struct Convolution {
  enum class Direction { forward, data, filter };
  Direction direction = Direction::forward;
  TensorShape image, filter, result;

  int64_t groups() const;
};

// From how many positions of the image on the tensors are copied, by direction; 0: never. The defaults are fitted to
// published peaks of VGG and ResNet (docs/estimate.md); `gpumem calibrate` measures them.
struct CopiedFrom {
  uint64_t forward = 64 * 64, data = 0, filter = 20 * 20;
};

// Bytes that an engine with tensor cores asks for; `compute_capability` is 80 for 8.0.
uint64_t tensor_core_workspace(const Convolution& convolution, int compute_capability, const CopiedFrom& copied_from);

// Without groups, and with a filter of one position.
bool is_matrix_product(const Convolution& convolution);

// Bytes of copies of all three tensors: hardly a plan asks for more.
uint64_t largest_workspace(const Convolution& convolution);

}  // namespace gpumem
