// What the host has copied to a device reads back as it was, until a kernel runs that may have changed it.
//
// Ranks agree on small tables (sizes of buckets, counts) by copying them in, through a collective and out again,
// with no kernel between: PyTorch's C++ reads them back and lays out its buffers by them.
#pragma once

#include <cstddef>

namespace gpumem {

void remember_copy(const void* on_device, const void* host, size_t bytes);
void forward_copy(void* to, const void* from, size_t bytes);         // from device to device
bool recall_copy(void* host, const void* on_device, size_t bytes);  // false: not known
void forget_copies();

enum class Element { other, int32, int64, float32, float64 };
void scale_copy(void* on_device, size_t count, Element element, int factor);  // what is known there

}  // namespace gpumem
