// How much workspace cuDNN asks for scaled dot product attention: a rule that repeats the answers of cuDNN 9.24.
//
// The gradient of the queries in single precision and a number for each row are not in it: they belong to cuDNN's
// frontend, which is a part of PyTorch and adds them by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "convolution.h"

namespace gpumem {

// What of a graph the workspace hangs on.
struct Attention {
  // Backward: the gradients of keys and values for each head of the queries, where several of these share one.
  std::vector<TensorShape> summed;
  // Backward: the gradient of the queries in single precision; empty where the graph has none.
  TensorShape accumulated;
  // The scores of the queries for the keys, one matrix for each head.
  TensorShape scores;
  bool drops_out = false;
};

// Bytes; `compute_capability` is 80 for 8.0.
uint64_t attention_workspace(const Attention& attention, int compute_capability);

}  // namespace gpumem
