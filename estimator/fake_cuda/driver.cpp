// The CUDA driver API (libcuda): contexts, virtual memory, modules and launches, for torch's own use of it,
// Triton, and whoever opens libcuda.so.1.

#include <cstdio>
#include <cstring>

#include "architecture.h"
#include "cuda_types.h"
#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {

// A context is known by the address of its device's slot.
char g_contexts[kMaxDevices];
thread_local bool t_current_is_set = false;

int ordinal_of(const void* context) {
  const auto offset = static_cast<const char*>(context) - g_contexts;
  return offset >= 0 && devices_of_process().has_device(static_cast<int>(offset)) ? static_cast<int>(offset) : -1;
}
bool valid(int ordinal) { return devices_of_process().has_device(ordinal); }
int ready() {
  if (devices_of_process().devices.empty()) return kNoDevice;
  return touch_device() ? kSuccess : kOutOfMemory;
}

// Something that a handle can point to.
char g_module, g_function;

}  // namespace

// ---- initialisation and devices ----

API int cuInit(unsigned) { return devices_of_process().devices.empty() ? kNoDevice : kSuccess; }
API int cuDriverGetVersion(int* version) {
  *version = cuda_version();
  return kSuccess;
}
API int cuGetErrorString(int status, const char** text) {
  *text = status_text(status);
  return kSuccess;
}
API int cuGetErrorName(int status, const char** name) {
  *name = status == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : status == kSuccess ? "CUDA_SUCCESS" : "CUDA_ERROR";
  return kSuccess;
}
API int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(devices_of_process().devices.size());
  return kSuccess;
}
API int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return valid(ordinal) ? kSuccess : kInvalidDevice;
}
API int cuDeviceGetName(char* text, int length, int device) {
  if (!valid(device)) return kInvalidDevice;
  std::snprintf(text, static_cast<size_t>(length), "%s", devices_of_process().devices[device].spec.name.c_str());
  return kSuccess;
}
API int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  if (!valid(device)) return kInvalidDevice;
  *bytes = devices_of_process().devices[device].spec.total_bytes;
  return kSuccess;
}
API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (!valid(device)) return kInvalidDevice;
  *value = device_attribute(attribute, device);
  return kSuccess;
}
API int cuDeviceComputeCapability(int* major, int* minor, int device) {
  if (!valid(device)) return kInvalidDevice;
  *major = device_attribute(kComputeCapabilityMajor, device);
  *minor = device_attribute(kComputeCapabilityMinor, device);
  return kSuccess;
}
API int cudaGetDeviceProperties(unsigned char* out, int ordinal);
API int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  constexpr size_t uuid_offset = 256, largest_layout = 1032;
  unsigned char properties[largest_layout];
  if (const int status = cudaGetDeviceProperties(properties, device)) return status;
  std::memcpy(uuid, properties + uuid_offset, 16);
  return kSuccess;
}
API int cuDeviceGetUuid(unsigned char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API int cudaDeviceGetPCIBusId(char* text, int length, int ordinal);
API int cuDeviceGetPCIBusId(char* text, int length, int device) { return cudaDeviceGetPCIBusId(text, length, device); }
API int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return kSuccess;
}

// ---- contexts ----

API int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (!valid(device)) return kInvalidDevice;
  *context = &g_contexts[device];
  Guard world;
  return world->open_context(device) ? kSuccess : kOutOfMemory;
}
NO_OP(cuDevicePrimaryCtxRelease_v2)
NO_OP(cuDevicePrimaryCtxSetFlags_v2)
API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (!valid(device)) return kInvalidDevice;
  Guard world;
  if (flags) *flags = 0;
  if (active) *active = world->devices[device].context;
  return kSuccess;
}
API int cuCtxGetCurrent(void** context) {
  const int ordinal = current_device();
  const bool exists = valid(ordinal) && devices_of_process().devices[ordinal].context;
  *context = exists || t_current_is_set ? &g_contexts[ordinal] : nullptr;
  return kSuccess;
}
API int cuCtxSetCurrent(void* context) {
  t_current_is_set = context != nullptr;
  if (!context) return kSuccess;
  const int ordinal = ordinal_of(context);
  if (ordinal < 0) return kInvalidContext;
  current_device() = ordinal;
  return kSuccess;
}
API int cuCtxPushCurrent_v2(void* context) { return cuCtxSetCurrent(context); }
API int cuCtxPopCurrent_v2(void** context) { return context ? cuCtxGetCurrent(context) : kSuccess; }
API int cuCtxCreate_v2(void** context, unsigned, int device) { return cuDevicePrimaryCtxRetain(context, device); }
API int cuCtxCreate_v4(void** context, void*, unsigned, int device) {
  return cuDevicePrimaryCtxRetain(context, device);
}
NO_OP(cuCtxDestroy_v2)
API int cuCtxGetDevice(int* device) {
  *device = current_device();
  return kSuccess;
}
API int cuCtxGetApiVersion(void*, unsigned* version) {
  *version = 3020;
  return kSuccess;
}
API int cuCtxGetLimit(size_t* value, int) {
  *value = 0;
  return kSuccess;
}
NO_OP(cuCtxSetLimit)
NO_OP(cuCtxSynchronize)
NO_OP(cuCtxEnablePeerAccess)
API int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return kSuccess;
}

// ---- memory ----

API int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  if (const int status = ready()) return status;
  Guard world;
  *free_bytes = world->free_bytes(current_device());
  *total_bytes = world->devices[current_device()].spec.total_bytes;
  return kSuccess;
}
API int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  if (const int status = ready()) return status;
  if (bytes == 0) return kInvalidValue;
  Guard world;
  *out = world->allocate(current_device(), bytes);
  return *out ? kSuccess : kOutOfMemory;
}
API int cuMemFree_v2(uint64_t address) {
  Guard world;
  return world->release(address) ? kSuccess : kInvalidValue;
}
API int cuMemAllocAsync(uint64_t* out, size_t bytes, void*) {
  if (const int status = ready()) return status;
  Guard world;
  *out = world->allocate_from(world->devices[current_device()].pool, bytes);
  return *out ? kSuccess : kOutOfMemory;
}
API int cuMemFreeAsync(uint64_t address, void*) { return cuMemFree_v2(address); }
API int cuMemGetAddressRange_v2(uint64_t* start, size_t* bytes, uint64_t address) {
  Guard world;
  const auto range = world->allocation_at(address);
  if (!range) return kNotFound;
  if (start) *start = range->start;
  if (bytes) *bytes = range->bytes;
  return kSuccess;
}
API int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  *out = host_allocate(bytes);
  return *out ? kSuccess : kOutOfMemory;
}
API int cuMemFreeHost(void* pointer) { return host_free(pointer) ? kSuccess : kInvalidValue; }
API int cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned) {
  host_register(pointer, bytes);
  return kSuccess;
}
API int cuMemHostUnregister(void* pointer) { return host_unregister(pointer) ? kSuccess : kInvalidValue; }
API int cuMemHostGetDevicePointer_v2(uint64_t* out, void* pointer, unsigned) {
  *out = reinterpret_cast<uint64_t>(pointer);
  return kSuccess;
}

#define COPY(name, to_type, from_type, ...)                            \
  API int name(to_type to, from_type from, size_t bytes __VA_ARGS__) { \
    copy((void*)to, (const void*)from, bytes);                         \
    return ready();                                                    \
  }
COPY(cuMemcpy, uint64_t, uint64_t)
COPY(cuMemcpyAsync, uint64_t, uint64_t, , void*)
COPY(cuMemcpyHtoD_v2, uint64_t, const void*)
COPY(cuMemcpyHtoDAsync_v2, uint64_t, const void*, , void*)
COPY(cuMemcpyDtoH_v2, void*, uint64_t)
COPY(cuMemcpyDtoHAsync_v2, void*, uint64_t, , void*)
COPY(cuMemcpyDtoD_v2, uint64_t, uint64_t)
COPY(cuMemcpyDtoDAsync_v2, uint64_t, uint64_t, , void*)
#undef COPY
NO_OP(cuMemsetD8_v2)
NO_OP(cuMemsetD8Async)
NO_OP(cuMemsetD16_v2)
NO_OP(cuMemsetD16Async)
NO_OP(cuMemsetD32_v2)
NO_OP(cuMemsetD32Async)

namespace {
enum PointerAttribute {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerDevice = 3,
  kPointerHost = 4,
  kPointerBufferId = 7,
  kPointerIsManaged = 8,
  kPointerOrdinal = 9,
  kPointerRangeStart = 11,
  kPointerRangeSize = 12,
  kPointerMapped = 13,
};

template <typename T>
int answer(void* out, T value) {
  std::memcpy(out, &value, sizeof value);
  return kSuccess;
}
}  // namespace

API int cuPointerGetAttribute(void* out, int attribute, uint64_t address) {
  Guard world;
  const int ordinal = world->device_of(address);
  const auto range = world->allocation_at(address);
  switch (attribute) {
    case kPointerContext: return ordinal < 0 ? kInvalidValue : answer(out, &g_contexts[ordinal]);
    case kPointerMemoryType: return ordinal < 0 ? kInvalidValue : answer(out, unsigned{2});
    // Host pointers are valid on the device too: addresses are unified.
    case kPointerDevice: return answer(out, address);
    case kPointerHost: return ordinal >= 0 ? kInvalidValue : answer(out, address);
    case kPointerBufferId: return answer(out, range ? range->start : address);
    case kPointerIsManaged: return answer(out, unsigned{0});
    case kPointerOrdinal: return ordinal < 0 ? kInvalidValue : answer(out, ordinal);
    case kPointerRangeStart: return range ? answer(out, range->start) : kInvalidValue;
    case kPointerRangeSize: return range ? answer(out, range->bytes) : kInvalidValue;
    case kPointerMapped: return answer(out, unsigned{1});
    default: return kNotSupported;
  }
}
API int cuPointerGetAttributes(unsigned count, const int* attributes, void** out, uint64_t address) {
  for (unsigned i = 0; i < count; ++i) cuPointerGetAttribute(out[i], attributes[i], address);
  return kSuccess;
}
NO_OP(cuPointerSetAttribute)

// ---- virtual memory ----

API int cuMemGetAllocationGranularity(size_t* bytes, const PhysicalProperties*, int) {
  *bytes = kGranule;
  return kSuccess;
}
API int cuMemAddressReserve(uint64_t* out, size_t bytes, size_t, uint64_t, unsigned long long) {
  if (const int status = ready()) return status;
  Guard world;
  *out = world->reserve_addresses(current_device(), bytes);
  return *out ? kSuccess : kOutOfMemory;
}
API int cuMemAddressFree(uint64_t address, size_t) {
  Guard world;
  return world->free_addresses(address) ? kSuccess : kInvalidValue;
}
API int cuMemCreate(uint64_t* out, size_t bytes, const PhysicalProperties* properties, unsigned long long) {
  if (const int status = ready()) return status;
  constexpr int device_location = 1;
  if (bytes == 0 || bytes % kGranule) return kInvalidValue;
  if (properties->location.type != device_location) return kNotSupported;
  Guard world;
  if (!world->has_device(properties->location.id)) return kInvalidDevice;
  *out = world->create_physical(properties->location.id, bytes);
  return *out ? kSuccess : kOutOfMemory;
}
API int cuMemRelease(uint64_t handle) {
  Guard world;
  return world->release_physical(handle) ? kSuccess : kInvalidValue;
}
API int cuMemMap(uint64_t address, size_t bytes, size_t, uint64_t handle, unsigned long long) {
  Guard world;
  return world->map_physical(address, bytes, handle) ? kSuccess : kInvalidValue;
}
API int cuMemUnmap(uint64_t address, size_t bytes) {
  Guard world;
  return world->unmap(address, bytes) ? kSuccess : kInvalidValue;
}
NO_OP(cuMemSetAccess)
API int cuMemGetAccess(unsigned long long* flags, const MemoryLocation*, uint64_t) {
  *flags = 3;  // read and write
  return kSuccess;
}
API int cuMemRetainAllocationHandle(uint64_t* out, void* pointer) {
  Guard world;
  *out = world->physical_at(reinterpret_cast<uint64_t>(pointer));
  return world->retain_physical(*out) ? kSuccess : kInvalidValue;
}
API int cuMemGetAllocationPropertiesFromHandle(PhysicalProperties* out, uint64_t handle) {
  Guard world;
  const int ordinal = world->device_of_physical(handle);
  if (ordinal < 0) return kInvalidValue;
  *out = {};
  out->type = 1;  // pinned
  out->location = {1, ordinal};
  return kSuccess;
}

// Sharing physical memory between processes, multicast and green contexts are not there; callers have to ask.
#define NOT_SUPPORTED(name) \
  API int name() { return kNotSupported; }
NOT_SUPPORTED(cuMemExportToShareableHandle)
NOT_SUPPORTED(cuMemImportFromShareableHandle)
NOT_SUPPORTED(cuMulticastAddDevice)
NOT_SUPPORTED(cuMulticastBindMem)
NOT_SUPPORTED(cuMulticastCreate)
NOT_SUPPORTED(cuMulticastUnbind)
NOT_SUPPORTED(cuGreenCtxCreate)
NOT_SUPPORTED(cuGreenCtxDestroy)
NOT_SUPPORTED(cuGreenCtxStreamCreate)
NOT_SUPPORTED(cuCtxFromGreenCtx)
NOT_SUPPORTED(cuDevResourceGenerateDesc)
NOT_SUPPORTED(cuDevSmResourceSplitByCount)
NOT_SUPPORTED(cuDeviceGetDevResource)
#undef NOT_SUPPORTED
// What a CUDA runtime asks for that is linked into a library statically; these tables are documented nowhere.
API int cuGetExportTable(const void** table, const void*) {
  Guard world;
  world->note_unknown("cuGetExportTable (of a library with a CUDA runtime of its own)");
  *table = nullptr;
  return kNotSupported;
}
NO_OP(cuLogsRegisterCallback)
NO_OP(cuLogsUnregisterCallback)

// ---- streams and events: those of the runtime ----

API int cudaStreamCreateWithPriority(void** out, unsigned flags, int priority);
API int cudaStreamDestroy(void* stream);
API int cudaStreamIsCapturing(void* stream, int* status);
API int cudaEventCreateWithFlags(void** out, unsigned flags);
API int cudaEventDestroy(void* event);
API int cudaEventRecord(void* event, void* stream);
API int cudaEventElapsedTime(float* milliseconds, void* start, void* end);

API int cuStreamCreateWithPriority(void** out, unsigned flags, int priority) {
  return cudaStreamCreateWithPriority(out, flags, priority);
}
API int cuStreamCreate(void** out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
API int cuStreamDestroy_v2(void* stream) { return cudaStreamDestroy(stream); }
API int cuStreamIsCapturing(void* stream, int* status) { return cudaStreamIsCapturing(stream, status); }
API int cuStreamGetCtx(void*, void** context) { return cuCtxGetCurrent(context); }
NO_OP(cuStreamSynchronize)
NO_OP(cuStreamQuery)
NO_OP(cuStreamWaitEvent)
NO_OP(cuStreamWriteValue32_v2)
NO_OP(cuStreamWaitValue32_v2)
NO_OP(cuStreamWriteValue64_v2)
NO_OP(cuStreamWaitValue64_v2)
API int cuEventCreate(void** out, unsigned flags) { return cudaEventCreateWithFlags(out, flags); }
API int cuEventDestroy_v2(void* event) { return cudaEventDestroy(event); }
API int cuEventRecord(void* event, void* stream) { return cudaEventRecord(event, stream); }
NO_OP(cuEventSynchronize)
NO_OP(cuEventQuery)
API int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}

// ---- modules and launches ----

API int cuModuleLoadData(void** module, const void*) {
  *module = &g_module;
  return ready();
}
API int cuModuleLoad(void** module, const char*) { return cuModuleLoadData(module, nullptr); }
API int cuModuleLoadDataEx(void** module, const void* image, unsigned, void*, void**) {
  return cuModuleLoadData(module, image);
}
API int cuModuleLoadFatBinary(void** module, const void* image) { return cuModuleLoadData(module, image); }
NO_OP(cuModuleUnload)
API int cuModuleGetFunction(void** function, void*, const char*) {
  *function = &g_function;
  return kSuccess;
}
API int cuModuleGetGlobal_v2(uint64_t* address, size_t* bytes, void*, const char*) {
  // Its size is not known: one page for whatever it is.
  constexpr size_t page = 4096;
  Guard world;
  if (address) *address = world->reserve_addresses(current_device(), page);
  if (bytes) *bytes = page;
  return kSuccess;
}
API int cuLibraryLoadData(void** library, ...) { return cuModuleLoadData(library, nullptr); }
NO_OP(cuLibraryUnload)
API int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = &g_function;
  return kSuccess;
}
API int cuLibraryGetModule(void** module, void*) {
  *module = &g_module;
  return kSuccess;
}
API int cuKernelGetFunction(void** function, void*) {
  *function = &g_function;
  return kSuccess;
}
API int cuLinkCreate_v2(unsigned, void*, void**, void** state) {
  *state = &g_module;
  return kSuccess;
}
NO_OP(cuLinkAddData_v2)
NO_OP(cuLinkDestroy)
API int cuLinkComplete(void*, void** image, size_t* bytes) {
  static char empty_image[8];
  *image = empty_image;
  if (bytes) *bytes = sizeof empty_image;
  return kSuccess;
}
API int cuFuncGetAttribute(int* value, int attribute, void*) {
  enum { kMaxThreads = 0, kRegisters = 4, kPtxVersion = 5, kBinaryVersion = 6, kMaxDynamicShared = 8 };
  const int ordinal = current_device();
  if (!valid(ordinal)) return kInvalidContext;
  const DeviceSpec& spec = devices_of_process().devices[ordinal].spec;
  switch (attribute) {
    case kMaxThreads: *value = kThreadsPerBlock; break;
    case kRegisters: *value = 32; break;
    case kPtxVersion:
    case kBinaryVersion: *value = spec.cc_major * 10 + spec.cc_minor; break;
    case kMaxDynamicShared: *value = kSharedPerBlock; break;
    default: *value = 0;
  }
  return kSuccess;
}
NO_OP(cuFuncSetAttribute)
NO_OP(cuFuncSetCacheConfig)
API int cuLaunchKernel(void*, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared_bytes, void*, void**, void**) {
  return check_launch({gx, gy, gz}, {bx, by, bz}, shared_bytes);
}
API int cuLaunchCooperativeKernel(void*, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                  unsigned shared_bytes, void*, void**) {
  return check_launch({gx, gy, gz}, {bx, by, bz}, shared_bytes);
}
API int cuLaunchKernelEx(const LaunchConfig* config, void*, void**, void**) {
  // CUlaunchConfig: six unsigneds, then unsigned shared bytes where the runtime has a size_t.
  return check_launch(config->grid, config->block, static_cast<uint32_t>(config->dynamic_shared_bytes));
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, size_t shared_bytes) {
  *blocks = blocks_per_multiprocessor(threads, shared_bytes);
  return kSuccess;
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void*, int threads, size_t shared_bytes,
                                                             unsigned) {
  *blocks = blocks_per_multiprocessor(threads, shared_bytes);
  return kSuccess;
}
API int cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) {
  note_invented("occupancy");
  *clusters = 1;
  return kSuccess;
}

namespace {
int clear_tensor_map(void* map) {
  std::memset(map, 0, 128);  // CUtensorMap
  return kSuccess;
}
}  // namespace

API int cuTensorMapEncodeTiled(void* map, ...) { return clear_tensor_map(map); }
API int cuTensorMapEncodeIm2col(void* map, ...) { return clear_tensor_map(map); }

// ---- by name ----

API int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
  *function = driver_function(name);
  if (status) *status = *function ? 0 : 1;  // found, not found
  return *function ? kSuccess : kNotFound;
}
API int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// Names from before a version suffix was added.
#define ALIAS(name, newest) API decltype(newest) name __attribute__((alias(#newest)));
ALIAS(cuCtxCreate, cuCtxCreate_v2)
ALIAS(cuCtxDestroy, cuCtxDestroy_v2)
ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2)
ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2)
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2)
ALIAS(cuDeviceTotalMem, cuDeviceTotalMem_v2)
ALIAS(cuEventDestroy, cuEventDestroy_v2)
ALIAS(cuLinkAddData, cuLinkAddData_v2)
ALIAS(cuLinkCreate, cuLinkCreate_v2)
ALIAS(cuMemAlloc, cuMemAlloc_v2)
ALIAS(cuMemFree, cuMemFree_v2)
ALIAS(cuMemGetAddressRange, cuMemGetAddressRange_v2)
ALIAS(cuMemGetInfo, cuMemGetInfo_v2)
ALIAS(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2)
ALIAS(cuMemHostRegister, cuMemHostRegister_v2)
ALIAS(cuMemcpyDtoD, cuMemcpyDtoD_v2)
ALIAS(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)
ALIAS(cuMemcpyDtoH, cuMemcpyDtoH_v2)
ALIAS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)
ALIAS(cuMemcpyHtoD, cuMemcpyHtoD_v2)
ALIAS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)
ALIAS(cuMemsetD16, cuMemsetD16_v2)
ALIAS(cuMemsetD32, cuMemsetD32_v2)
ALIAS(cuMemsetD8, cuMemsetD8_v2)
ALIAS(cuModuleGetGlobal, cuModuleGetGlobal_v2)
ALIAS(cuStreamDestroy, cuStreamDestroy_v2)
ALIAS(cuStreamWaitValue32, cuStreamWaitValue32_v2)
ALIAS(cuStreamWaitValue64, cuStreamWaitValue64_v2)
ALIAS(cuStreamWriteValue32, cuStreamWriteValue32_v2)
ALIAS(cuStreamWriteValue64, cuStreamWriteValue64_v2)
