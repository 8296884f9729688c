// The CUDA runtime (libcudart): memory of devices and hosts, copies, pools.

#include <cstring>

#include "runtime.h"

using namespace gpumem;

// ---- device memory ----

API int cudaMalloc(void** out, size_t bytes) {
  *out = nullptr;
  if (const int status = ready()) return status;
  if (bytes == 0) return kSuccess;
  Guard world;
  *out = pointer_of(world->allocate(current_device(), bytes));
  return *out ? kSuccess : note(kOutOfMemory);
}
API int cudaMallocPitch(void** out, size_t* pitch, size_t width, size_t height) {
  *pitch = round_up(width, 512);
  return cudaMalloc(out, *pitch * height);
}
API int cudaFree(void* pointer) {
  if (const int status = ready()) return status;
  if (!pointer) return kSuccess;
  Guard world;
  return world->release(address_of(pointer)) ? kSuccess : note(kInvalidValue);
}
API int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const int status = ready()) return status;
  Guard world;
  if (free_bytes) *free_bytes = world->free_bytes(current_device());
  if (total_bytes) *total_bytes = world->devices[current_device()].spec.total_bytes;
  return kSuccess;
}
API int cudaPointerGetAttributes(PointerAttributes* out, const void* pointer) {
  std::memset(out, 0, sizeof *out + (cuda_version() >= 13000 ? 8 * sizeof(long) : 0));
  const int ordinal = devices_of_process().device_of(address_of(pointer));
  if (ordinal >= 0) {
    *out = {kOnDevice, ordinal, pointer, nullptr};
  } else if (is_pinned(pointer)) {
    *out = {kHost, current_device(), pointer, pointer};
  } else {
    *out = {kUnregistered, -2, nullptr, pointer};
  }
  return kSuccess;
}

// ---- host memory ----

API int cudaHostAlloc(void** out, size_t bytes, unsigned) {
  if (const int status = ready()) return status;
  *out = host_allocate(bytes);
  return *out ? kSuccess : note(kOutOfMemory);
}
API int cudaMallocHost(void** out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }
// Managed memory may lie on either side: it is kept on the host, and this is said.
API int cudaMallocManaged(void** out, size_t bytes, unsigned) {
  note_invented("managed memory");
  return cudaHostAlloc(out, bytes, 0);
}
API int cudaFreeHost(void* pointer) {
  if (!pointer) return kSuccess;
  return host_free(pointer) ? kSuccess : note(kInvalidValue);
}
API int cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  if (const int status = ready()) return status;
  host_register(pointer, bytes);
  return kSuccess;
}
API int cudaHostUnregister(void* pointer) { return host_unregister(pointer) ? kSuccess : note(kInvalidValue); }
API int cudaHostGetDevicePointer(void** out, void* pointer, unsigned) {
  *out = pointer;
  return kSuccess;
}
API int cudaHostGetFlags(unsigned* flags, void*) {
  *flags = 0;
  return kSuccess;
}
NO_OP(cudaMemPrefetchAsync)
NO_OP(cudaMemAdvise)

// ---- copies ----

API int cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  copy(to, from, bytes);
  return ready();
}
API int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) {
  copy(to, from, bytes);
  return ready();
}
API int cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  copy(to, from, bytes);
  return ready();
}
API int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void*) {
  copy(to, from, bytes);
  return ready();
}
API int cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, int) {
  copy_rows(to, to_pitch, from, from_pitch, width, rows);
  return ready();
}
API int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                          int, void*) {
  copy_rows(to, to_pitch, from, from_pitch, width, rows);
  return ready();
}
API int cudaMemset(void* to, int value, size_t bytes) {
  fill(to, value, bytes);
  return ready();
}
API int cudaMemsetAsync(void* to, int value, size_t bytes, void*) {
  fill(to, value, bytes);
  return ready();
}
NO_OP(cudaMemset2D)
NO_OP(cudaMemset2DAsync)
NO_OP(cudaMemcpyToSymbol)
NO_OP(cudaMemcpyToSymbolAsync)
API int cudaMemcpyFromSymbol(void* to, const void*, size_t bytes, size_t, int) {
  fill(to, 0, bytes);
  return ready();
}
API int cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, int kind, void*) {
  return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}

// ---- stream-ordered memory ----

API int cudaDeviceGetDefaultMemPool(Pool** out, int ordinal) {
  if (!valid(ordinal)) return note(kInvalidDevice);
  Guard world;
  *out = &world->devices[ordinal].pool;
  return kSuccess;
}
API int cudaDeviceGetMemPool(Pool** out, int ordinal) { return cudaDeviceGetDefaultMemPool(out, ordinal); }
NO_OP(cudaDeviceSetMemPool)
API int cudaMemPoolCreate(Pool** out, const PoolProperties* properties) {
  if (!valid(properties->location.id)) return note(kInvalidValue);
  *out = new Pool;
  (*out)->device = properties->location.id;
  return kSuccess;
}
API int cudaMemPoolDestroy(Pool* pool) {
  Guard world;
  world->trim(*pool, 0);
  return kSuccess;  // not deleted: allocations of it may still be there
}
NO_OP(cudaMemPoolSetAccess)
API int cudaMemPoolGetAccess(int* flags, Pool*, const void*) {
  *flags = 3;  // read and write
  return kSuccess;
}

namespace {
enum PoolAttribute { kReleaseThreshold = 4, kReserved = 5, kReservedHigh = 6, kUsed = 7, kUsedHigh = 8 };
}

API int cudaMemPoolSetAttribute(Pool* pool, int attribute, void* value) {
  Guard world;
  switch (attribute) {
    case kReleaseThreshold: std::memcpy(&pool->threshold, value, sizeof pool->threshold); break;
    case kReservedHigh: pool->reserved_high = pool->reserved; break;
    case kUsedHigh: pool->used_high = pool->used; break;
    default: break;  // how freed memory is reused: nothing to remember
  }
  return kSuccess;
}
API int cudaMemPoolGetAttribute(Pool* pool, int attribute, void* value) {
  Guard world;
  const int enabled = 1;
  const uint64_t* number = nullptr;
  switch (attribute) {
    case kReleaseThreshold: number = &pool->threshold; break;
    case kReserved: number = &pool->reserved; break;
    case kReservedHigh: number = &pool->reserved_high; break;
    case kUsed: number = &pool->used; break;
    case kUsedHigh: number = &pool->used_high; break;
    default: std::memcpy(value, &enabled, sizeof enabled); return kSuccess;
  }
  std::memcpy(value, number, sizeof *number);
  return kSuccess;
}
API int cudaMemPoolTrimTo(Pool* pool, size_t keep) {
  Guard world;
  world->trim(*pool, keep);
  return kSuccess;
}
API int cudaMallocFromPoolAsync(void** out, size_t bytes, Pool* pool, void*) {
  if (const int status = ready()) return status;
  note_invented("growth of memory pools");
  Guard world;
  *out = pointer_of(world->allocate_from(*pool, bytes));
  return *out ? kSuccess : note(kOutOfMemory);
}
API int cudaMallocAsync(void** out, size_t bytes, void* stream) {
  *out = nullptr;
  if (const int status = ready()) return status;
  Pool* pool = nullptr;
  cudaDeviceGetDefaultMemPool(&pool, current_device());
  return cudaMallocFromPoolAsync(out, bytes, pool, stream);
}
API int cudaFreeAsync(void* pointer, void*) { return cudaFree(pointer); }
API int cudaDeviceGetGraphMemAttribute(int, int, uint64_t* value) {
  *value = 0;
  return kSuccess;
}
NO_OP(cudaDeviceSetGraphMemAttribute)
NO_OP(cudaDeviceGraphMemTrim)

// ---- memory shared between processes: an address of its own in each of them, counted where it was allocated ----

namespace {
struct IpcMemory {
  uint64_t bytes;
  uint32_t device;
};
}  // namespace

API int cudaIpcGetMemHandle(IpcHandle* handle, void* pointer) {
  Guard world;
  const auto range = world->allocation_at(address_of(pointer));
  if (!range) return note(kInvalidValue);
  const IpcMemory memory{range->bytes, static_cast<uint32_t>(world->device_of(range->start))};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle->bytes, &memory, sizeof memory);
  return kSuccess;
}
API int cudaIpcOpenMemHandle(void** out, IpcHandle handle, unsigned) {
  IpcMemory memory;
  std::memcpy(&memory, handle.bytes, sizeof memory);
  Guard world;
  if (!world->has_device(static_cast<int>(memory.device))) return note(kInvalidValue);
  *out = pointer_of(world->reserve_addresses(static_cast<int>(memory.device), memory.bytes));
  return *out ? kSuccess : note(kOutOfMemory);
}
API int cudaIpcCloseMemHandle(void* pointer) {
  Guard world;
  return world->free_addresses(address_of(pointer)) ? kSuccess : note(kInvalidValue);
}
