#include "convolution.h"

#include "element.h"

namespace gpumem {
namespace {

// Tensor cores read 16 bytes of channels at a time: an image of three colours has too few.
constexpr uint64_t kLeastChannelBytes = 16;

constexpr uint64_t kAlignment = 512;

uint64_t positions(const TensorShape& tensor) {
  uint64_t count = 1;
  for (std::size_t i = 2; i < tensor.sizes.size(); ++i) count *= static_cast<uint64_t>(tensor.sizes[i]);
  return count;
}

uint64_t channel_bytes(const TensorShape& tensor) {
  return tensor.sizes.size() < 2 ? 0 : static_cast<uint64_t>(tensor.sizes[1]) * element_bytes(tensor.type);
}

// Half precision from Volta on, TF32 in the place of single precision from Ampere on.
bool has_tensor_cores(int data_type, int compute_capability) {
  constexpr int single = 0, half = 2, brain = 9;
  if (data_type == single || data_type == brain) return compute_capability >= 80;
  return data_type == half && compute_capability >= 70;
}

// A copy with the channels last; none where they lie so already.
uint64_t copy_bytes(const TensorShape& tensor) {
  if (tensor.channels_last()) return 0;
  return (tensor.elements() * element_bytes(tensor.type) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

uint64_t TensorShape::elements() const {
  uint64_t count = 1;
  for (const int64_t size : sizes) count *= static_cast<uint64_t>(size);
  return count;
}

bool TensorShape::channels_last() const {
  if (sizes.size() < 3 || strides.size() != sizes.size()) return true;
  return sizes[1] == 1 || positions(*this) == 1 || strides[1] == 1;
}

int64_t Convolution::groups() const {
  if (image.sizes.size() < 2 || filter.sizes.size() < 2 || filter.sizes[1] == 0) return 1;
  return image.sizes[1] / filter.sizes[1];
}

bool is_matrix_product(const Convolution& convolution) {
  return convolution.groups() == 1 && positions(convolution.filter) == 1;
}

uint64_t largest_workspace(const Convolution& convolution) {
  return copy_bytes(convolution.image) + copy_bytes(convolution.filter) + copy_bytes(convolution.result);
}

uint64_t tensor_core_workspace(const Convolution& convolution, int compute_capability, const CopiedFrom& copied_from) {
  const auto& [direction, image, filter, result] = convolution;
  if (!has_tensor_cores(image.type, compute_capability) || convolution.groups() != 1) return 0;
  if (positions(filter) <= 1 || channel_bytes(image) < kLeastChannelBytes) return 0;
  const auto copied = [&](uint64_t least) { return least != 0 && positions(image) >= least; };
  switch (direction) {
    case Convolution::Direction::forward: return copied(copied_from.forward) ? largest_workspace(convolution) : 0;
    case Convolution::Direction::data: return copied(copied_from.data) ? largest_workspace(convolution) : 0;
    case Convolution::Direction::filter:
      return copied(copied_from.filter) ? copy_bytes(image) + copy_bytes(result) : 0;
  }
  return 0;
}

}  // namespace gpumem
