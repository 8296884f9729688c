#include "attention.h"

#include <algorithm>

#include "element.h"

namespace gpumem {
namespace {

constexpr uint64_t kAlignment = 128;
constexpr int64_t kRows = 8;  // an accumulator has whole groups of so many

// Blackwell leaves to the engine of older GPUs what is no longer or wider than this and drops nothing out.
constexpr int64_t kShort = 128, kNarrow = 128;

constexpr uint64_t kTile = 128;

uint64_t tensor_bytes(const TensorShape& tensor, uint64_t bytes_each) {
  return (tensor.elements() * bytes_each + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t accumulator(TensorShape gradient) {
  gradient.sizes[2] = (gradient.sizes[2] + kRows - 1) / kRows * kRows;
  return tensor_bytes(gradient, element_bytes(gradient.type));
}

// A bit for each score, in tiles.
uint64_t dropout_mask(const TensorShape& scores) {
  if (scores.sizes.size() != 4) return 0;
  const auto tiled = [](int64_t length) { return (static_cast<uint64_t>(length) + kTile - 1) / kTile * kTile; };
  return static_cast<uint64_t>(scores.sizes[0] * scores.sizes[1]) * tiled(scores.sizes[2]) * tiled(scores.sizes[3]) / 8;
}

bool is_small(const Attention& attention) {
  const auto& scores = attention.scores.sizes;
  return !attention.drops_out && scores.size() == 4 && std::min(scores[2], scores[3]) <= kShort &&
         attention.accumulated.sizes[3] <= kNarrow;
}

}  // namespace

uint64_t attention_workspace(const Attention& attention, int compute_capability) {
  const bool hopper = compute_capability / 10 == 9, blackwell = compute_capability / 10 == 10;
  const bool accumulates = attention.accumulated.sizes.size() == 4;
  uint64_t bytes = 0;
  for (const TensorShape& tensor : attention.summed) {
    bytes += tensor_bytes(tensor, element_bytes(tensor.type));
    if (blackwell && !accumulates) bytes += tensor_bytes(tensor, sizeof(float));
  }
  if (accumulates && !hopper && (!blackwell || is_small(attention))) bytes += accumulator(attention.accumulated);
  if (blackwell && attention.drops_out) bytes += dropout_mask(attention.scores);
  if (hopper) return bytes + 256;
  return bytes ? bytes + kAlignment : 0;
}

}  // namespace gpumem
