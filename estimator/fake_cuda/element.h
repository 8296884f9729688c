// Sizes of cuDNN's types.
#pragma once

#include <cstdint>

namespace gpumem {

// Bytes of one element of a cudnnDataType_t.
constexpr uint64_t element_bytes(int data_type) {
  switch (data_type) {
    case 1:             // double
    case 10: return 8;  // int64
    case 2:             // half
    case 9: return 2;   // bfloat16
    case 3:             // int8
    case 6:             // uint8
    case 11:            // boolean
    case 12:
    case 13: return 1;  // fp8
    default: return 4;  // float, int32
  }
}

}  // namespace gpumem
