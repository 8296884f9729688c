// What the parts of the fake CUDA runtime share.
#pragma once

#include "cuda_types.h"
#include "export.h"
#include "process.h"

namespace gpumem {

// Returns the status, and keeps an error for cudaGetLastError.
int note(int status);

// kSuccess when the current device has its context.
int ready();

inline bool valid(int ordinal) { return devices_of_process().has_device(ordinal); }
inline uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
inline void* pointer_of(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace gpumem
