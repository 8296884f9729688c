// Functions that are told apart by which argument they answer through.
//
// Several hundred library functions only write a size behind one of many pointers. On the ABIs that CUDA has
// (x86-64, AArch64) integers and pointers are passed alike, so that the n-th can be taken without declaring all.
#pragma once

#include <cstdarg>

// Defines `name`, whose argument number `position` (from 0, at least 1) is a T*, and which returns what
// `answer(T*)` returns. No earlier argument may be a floating-point number.
#define ANSWERS_THROUGH(name, position, T, answer)                 \
  API int name(void* first, ...) {                                 \
    va_list arguments;                                             \
    va_start(arguments, first);                                    \
    for (int i = 1; i < (position); ++i) va_arg(arguments, void*); \
    T* const out = va_arg(arguments, T*);                          \
    va_end(arguments);                                             \
    return answer(out);                                            \
  }
