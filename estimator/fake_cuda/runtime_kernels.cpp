// The CUDA runtime (libcudart): kernels and device variables.

#include <cstdlib>

#include "architecture.h"
#include "runtime.h"

using namespace gpumem;

// ---- kernels: registered, never run ----

namespace {

// A kernel launch is split in two calls of the compiler's code on the same thread.
struct PendingLaunch {
  Dim3 grid, block;
  size_t shared_bytes;
  void* stream;
};
constexpr int kMaxPending = 32;
thread_local PendingLaunch t_pending[kMaxPending];
thread_local int t_pending_count = 0;

// __device__ variables; the lock of the world guards them.
struct Symbol {
  size_t bytes;
  uint64_t address[kMaxDevices];  // 0: not asked for yet
};
std::unordered_map<const void*, Symbol>& symbols() {
  static auto* const known = new std::unordered_map<const void*, Symbol>;
  return *known;
}

// Kernels that were launched are counted: each is loaded at its first launch (CUDA_MODULE_LOADING=LAZY).
void note_kernel(const void* function) {
  thread_local const void* last = nullptr;
  if (function == last) return;
  last = function;
  Guard world;
  world->note_kernel(function);
}

}  // namespace

API void** __cudaRegisterFatBinary(void*) { return static_cast<void**>(std::calloc(1, sizeof(void*))); }
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void** handle) { std::free(handle); }
API char __cudaInitModule(void**) { return 1; }
API void __cudaRegisterFunction() {}
API void __cudaRegisterManagedVar() {}
API void __cudaRegisterVar(void**, const void* variable, char*, const char*, int, size_t bytes, int, int) {
  Guard guard;
  symbols()[variable] = {bytes, {}};
}
API int __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return kSuccess;
}
API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared_bytes, void* stream) {
  if (t_pending_count == kMaxPending) return 1;
  t_pending[t_pending_count++] = {grid, block, shared_bytes, stream};
  return 0;
}
API int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared_bytes, void** stream) {
  if (t_pending_count == 0) return kMissingConfiguration;
  const PendingLaunch& launch = t_pending[--t_pending_count];
  *grid = launch.grid;
  *block = launch.block;
  *shared_bytes = launch.shared_bytes;
  *stream = launch.stream;
  return kSuccess;
}
API int cudaLaunchKernel(const void* function, Dim3 grid, Dim3 block, void**, size_t shared_bytes, void*) {
  note_kernel(function);
  return note(check_launch(grid, block, shared_bytes));
}
API int __cudaLaunchKernel(const void* function, Dim3 grid, Dim3 block, void**, size_t shared_bytes, void*) {
  note_kernel(function);
  return note(check_launch(grid, block, shared_bytes));
}
API int cudaLaunchCooperativeKernel(const void* function, Dim3 grid, Dim3 block, void**, size_t shared_bytes,
                                    void*) {
  note_kernel(function);
  return note(check_launch(grid, block, shared_bytes));
}
API int cudaLaunchKernelExC(const LaunchConfig* config, const void* function, void**) {
  note_kernel(function);
  return note(check_launch(config->grid, config->block, config->dynamic_shared_bytes));
}
API int cudaFuncGetAttributes(FunctionAttributes* out, const void*) {
  if (const int status = ready()) return status;
  const DeviceSpec& spec = devices_of_process().devices[current_device()].spec;
  *out = {};
  out->max_threads_per_block = kThreadsPerBlock;
  out->registers = 32;
  out->ptx_version = out->binary_version = spec.cc_major * 10 + spec.cc_minor;
  out->max_dynamic_shared_bytes = kSharedPerBlock;
  return kSuccess;
}
NO_OP(cudaFuncSetAttribute)
NO_OP(cudaFuncSetCacheConfig)
NO_OP(cudaFuncSetSharedMemConfig)
NO_OP(cudaKernelSetAttributeForDevice)
API int cudaLibraryLoadData(void** out, ...) {
  *out = new char;
  return kSuccess;
}
API int cudaLibraryUnload(void* library) {
  delete static_cast<char*>(library);
  return kSuccess;
}
API int cudaLibraryGetKernel(const void** kernel, const void* library, const char*) {
  *kernel = library;
  return kSuccess;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads,
                                                               size_t shared_bytes, unsigned) {
  *blocks = blocks_per_multiprocessor(threads, shared_bytes);
  return kSuccess;
}
API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, size_t shared_bytes) {
  *blocks = blocks_per_multiprocessor(threads, shared_bytes);
  return kSuccess;
}
API int cudaOccupancyMaxActiveClusters(int* clusters, const void*, const LaunchConfig*) {
  note_invented("occupancy");
  *clusters = 1;
  return kSuccess;
}
API int cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int, int) {
  note_invented("occupancy");
  *bytes = kSharedPerBlock;
  return kSuccess;
}
// Device globals lie outside of the memory that is counted: they belong to the context.
API int cudaGetSymbolAddress(void** out, const void* variable) {
  if (const int status = ready()) return status;
  Guard world;
  const auto symbol = symbols().find(variable);
  if (symbol == symbols().end()) return note(kNotFound);
  uint64_t& address = symbol->second.address[current_device()];
  if (!address) address = world->reserve_addresses(current_device(), symbol->second.bytes);
  *out = pointer_of(address);
  return address ? kSuccess : note(kOutOfMemory);
}
API int cudaGetSymbolSize(size_t* bytes, const void* variable) {
  Guard guard;
  const auto symbol = symbols().find(variable);
  if (symbol == symbols().end()) return note(kNotFound);
  *bytes = symbol->second.bytes;
  return kSuccess;
}
API int cudaGetFuncBySymbol(const void** function, const void* symbol) {
  *function = symbol;
  return kSuccess;
}
