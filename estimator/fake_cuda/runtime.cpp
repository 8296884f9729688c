// The CUDA runtime (libcudart): devices, memory, streams, events, graphs, launches.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "architecture.h"
#include "cuda_types.h"
#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {

thread_local int t_last_error = kSuccess;

// Returns the status, and keeps an error for cudaGetLastError.
int note(int status) {
  if (status != kSuccess && status != kNotReady) t_last_error = status;
  return status;
}

// kSuccess when the current device has its context.
int ready() {
  if (touch_device()) return kSuccess;
  return note(devices_of_process().devices.empty() ? kNoDevice : kOutOfMemory);
}

bool valid(int ordinal) { return devices_of_process().has_device(ordinal); }
uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
void* pointer_of(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

// ---- errors and versions ----

API int cudaGetLastError() {
  const int status = t_last_error;
  t_last_error = kSuccess;
  return status;
}
API int cudaPeekAtLastError() { return t_last_error; }
API const char* cudaGetErrorName(int status) { return status_name(status); }
API const char* cudaGetErrorString(int status) { return status_text(status); }
API int cudaRuntimeGetVersion(int* version) {
  *version = cuda_version();
  return kSuccess;
}
API int cudaDriverGetVersion(int* version) {
  *version = cuda_version();
  return kSuccess;
}

// ---- devices ----

API int cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(devices_of_process().devices.size());
  return *count ? kSuccess : note(kNoDevice);
}
API int cudaGetDevice(int* ordinal) {
  *ordinal = current_device();
  return devices_of_process().devices.empty() ? note(kNoDevice) : kSuccess;
}
API int cudaSetDevice(int ordinal) {
  if (!valid(ordinal)) return note(devices_of_process().devices.empty() ? kNoDevice : kInvalidDevice);
  current_device() = ordinal;
  // Since CUDA 12 this makes the context at once.
  return cuda_version() >= 12000 ? ready() : kSuccess;
}
API int cudaChooseDevice(int* ordinal, const void*) {
  *ordinal = 0;
  return valid(0) ? kSuccess : note(kNoDevice);
}
NO_OP(cudaSetDeviceFlags)
API int cudaGetDeviceFlags(unsigned* flags) {
  *flags = 0;
  return kSuccess;
}
API int cudaInitDevice(int ordinal, unsigned, unsigned) {
  if (!valid(ordinal)) return note(kInvalidDevice);
  Guard world;
  return world->open_context(ordinal) ? kSuccess : note(kOutOfMemory);
}
API int cudaDeviceReset() {
  Guard world;
  if (world->has_device(current_device())) world->close_context(current_device());
  return kSuccess;
}
API int cudaDeviceSynchronize() { return ready(); }
API int cudaDeviceGetAttribute(int* value, int attribute, int ordinal) {
  if (!valid(ordinal)) return note(kInvalidDevice);
  *value = device_attribute(attribute, ordinal);
  return kSuccess;
}
API int cudaDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  *can = ordinal != peer;
  return kSuccess;
}
NO_OP(cudaDeviceEnablePeerAccess)
NO_OP(cudaDeviceDisablePeerAccess)
API int cudaDeviceGetP2PAttribute(int* value, int, int, int) {
  *value = 0;
  return kSuccess;
}
API int cudaDeviceGetPCIBusId(char* text, int length, int ordinal) {
  if (!valid(ordinal)) return note(kInvalidDevice);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", device_attribute(kPciBusId, ordinal));
  return kSuccess;
}
API int cudaDeviceGetByPCIBusId(int* ordinal, const char* text) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(text, "%x:%x", &domain, &bus) != 2) return note(kInvalidValue);
  for (*ordinal = 0; valid(*ordinal); ++*ordinal)
    if (device_attribute(kPciBusId, *ordinal) == static_cast<int>(bus)) return kSuccess;
  return note(kInvalidDevice);
}
API int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return kSuccess;
}
API int cudaDeviceGetLimit(size_t* value, int) {
  *value = 0;
  return kSuccess;
}
NO_OP(cudaDeviceSetLimit)
NO_OP(cudaDeviceSetCacheConfig)
NO_OP(cudaDeviceSetSharedMemConfig)
NO_OP(cudaCtxResetPersistingL2Cache)
NO_OP(cudaProfilerStart)
NO_OP(cudaProfilerStop)

namespace {

// Where the fields of cudaDeviceProp lie: CUDA 12 (cudaGetDeviceProperties_v2) and CUDA 13 differ.
struct Field {
  int attribute;
  uint16_t offset12, offset13;
  bool wide;  // a size_t
};
constexpr Field kFields[] = {
    {kMaxSharedMemoryPerBlock, 296, 296, true},
    {kMaxRegistersPerBlock, 304, 304, false},
    {kWarpSize, 308, 308, false},
    {kMaxPitch, 312, 312, true},
    {kMaxThreadsPerBlock, 320, 320, false},
    {kMaxBlockDimX, 324, 324, false},
    {kMaxBlockDimY, 328, 328, false},
    {kMaxBlockDimZ, 332, 332, false},
    {kMaxGridDimX, 336, 336, false},
    {kMaxGridDimY, 340, 340, false},
    {kMaxGridDimZ, 344, 344, false},
    {kClockRate, 348, 0, false},
    {kTotalConstantMemory, 352, 352, true},
    {kComputeCapabilityMajor, 360, 360, false},
    {kComputeCapabilityMinor, 364, 364, false},
    {kTextureAlignment, 368, 368, true},
    {kTexturePitchAlignment, 376, 376, true},
    {kGpuOverlap, 384, 0, false},
    {kMultiProcessorCount, 388, 384, false},
    {kCanMapHostMemory, 400, 392, false},
    {kConcurrentKernels, 576, 560, false},
    {kEccEnabled, 580, 564, false},
    {kPciBusId, 584, 568, false},
    {kAsyncEngineCount, 600, 584, false},
    {kUnifiedAddressing, 604, 588, false},
    {kMemoryClockRate, 608, 0, false},
    {kMemoryBusWidth, 612, 592, false},
    {kL2CacheSize, 616, 596, false},
    {kMaxThreadsPerMultiProcessor, 624, 604, false},
    {kStreamPrioritiesSupported, 628, 608, false},
    {kGlobalL1CacheSupported, 632, 612, false},
    {kLocalL1CacheSupported, 636, 616, false},
    {kMaxSharedMemoryPerMultiprocessor, 640, 624, true},
    {kMaxRegistersPerMultiprocessor, 648, 632, false},
    {kManagedMemory, 652, 636, false},
    {kConcurrentManagedAccess, 676, 656, false},
    {kComputePreemptionSupported, 680, 660, false},
    {kCooperativeLaunch, 688, 668, false},
    {kMaxSharedMemoryPerBlockOptin, 696, 672, true},
    {kMaxBlocksPerMultiprocessor, 712, 688, false},
    {kReservedSharedMemoryPerBlock, 720, 696, true},
    {kHostRegisterSupported, 728, 704, false},
    {kMemoryPoolsSupported, 744, 720, false},
    {kIpcEventSupport, 768, 744, false},
    {kClusterLaunch, 772, 748, false},
};
constexpr size_t kNameBytes = 256, kUuidOffset = 256, kTotalMemoryOffset = 288;
constexpr size_t kSize12 = 1032, kSize13 = 1008;

// The sixteen bytes of "GPU-0a1b…".
void write_uuid(const std::string& text, unsigned char* out) {
  int digits = 0;
  for (size_t i = text.compare(0, 4, "GPU-") == 0 ? 4 : 0; i < text.size() && digits < 32; ++i) {
    const char* const hex = "0123456789abcdef";
    const char* const digit = std::strchr(hex, text[i] | 0x20);
    if (text[i] == '-' || !digit) continue;
    unsigned char& byte = out[digits / 2];
    byte = static_cast<unsigned char>(byte << 4 | (digit - hex));
    ++digits;
  }
}

}  // namespace

API int cudaGetDeviceProperties(unsigned char* out, int ordinal) {
  if (!valid(ordinal)) return note(kInvalidDevice);
  const bool new_layout = cuda_version() >= 13000;
  const DeviceSpec& spec = devices_of_process().devices[ordinal].spec;
  std::memset(out, 0, new_layout ? kSize13 : kSize12);
  std::snprintf(reinterpret_cast<char*>(out), kNameBytes, "%s", spec.name.c_str());
  write_uuid(spec.uuid, out + kUuidOffset);
  const size_t total = spec.total_bytes;
  std::memcpy(out + kTotalMemoryOffset, &total, sizeof total);
  for (const Field& field : kFields) {
    const size_t offset = new_layout ? field.offset13 : field.offset12;
    const int value = device_attribute(field.attribute, ordinal);
    const auto wide = static_cast<size_t>(value);
    if (offset) std::memcpy(out + offset, field.wide ? static_cast<const void*>(&wide) : &value, field.wide ? 8 : 4);
  }
  return kSuccess;
}
API int cudaGetDeviceProperties_v2(unsigned char* out, int ordinal) { return cudaGetDeviceProperties(out, ordinal); }

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

// ---- streams, events, capture ----

namespace {

struct Graph;

struct Stream {
  int device = 0, priority = 0;
  unsigned flags = 0;
  Graph* capturing = nullptr;
  unsigned long long capture_id = 0;
};

struct UserObject {
  void* pointer;
  void (*destroy)(void*);
  std::atomic<unsigned> references;
};

struct Graph {
  std::vector<UserObject*> objects;
};

struct TimedEvent {
  timespec recorded{};
};

constexpr uint64_t kPerThreadStream = 2;

// The handles 0, 1 and 2 name the default streams of the current device.
Stream& stream_of(Stream* handle) {
  static Stream* const defaults = new Stream[kMaxDevices];
  return address_of(handle) <= kPerThreadStream ? defaults[current_device()] : *handle;
}

void release_object(UserObject* object, unsigned count) {
  if (object->references.fetch_sub(count) > count) return;
  if (object->destroy) object->destroy(object->pointer);
  delete object;
}

}  // namespace

API int cudaStreamCreateWithPriority(Stream** out, unsigned flags, int priority) {
  if (const int status = ready()) return status;
  *out = new Stream{current_device(), priority, flags, nullptr, 0};
  return kSuccess;
}
API int cudaStreamCreateWithFlags(Stream** out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
API int cudaStreamCreate(Stream** out) { return cudaStreamCreateWithPriority(out, 0, 0); }
API int cudaStreamDestroy(Stream* stream) {
  if (address_of(stream) > kPerThreadStream) delete stream;
  return kSuccess;
}
NO_OP(cudaStreamSynchronize)
NO_OP(cudaStreamQuery)
NO_OP(cudaStreamWaitEvent)
NO_OP(cudaStreamAttachMemAsync)
NO_OP(cudaStreamCopyAttributes)
NO_OP(cudaStreamSetAttribute)
API int cudaStreamGetPriority(Stream* stream, int* priority) {
  *priority = stream_of(stream).priority;
  return kSuccess;
}
API int cudaStreamGetFlags(Stream* stream, unsigned* flags) {
  *flags = stream_of(stream).flags;
  return kSuccess;
}
API int cudaStreamGetDevice(Stream* stream, int* ordinal) {
  *ordinal = address_of(stream) <= kPerThreadStream ? current_device() : stream->device;
  return kSuccess;
}
API int cudaStreamGetId(Stream* stream, unsigned long long* id) {
  *id = address_of(stream);
  return kSuccess;
}
// Everything before has been done: the function runs at once.
API int cudaLaunchHostFunc(Stream*, void (*function)(void*), void* argument) {
  function(argument);
  return kSuccess;
}
API int cudaStreamAddCallback(Stream* stream, void (*callback)(Stream*, int, void*), void* argument, unsigned) {
  callback(stream, kSuccess, argument);
  return kSuccess;
}

API int cudaEventCreateWithFlags(TimedEvent** out, unsigned) {
  if (const int status = ready()) return status;
  *out = new TimedEvent;
  return kSuccess;
}
API int cudaEventCreate(TimedEvent** out) { return cudaEventCreateWithFlags(out, 0); }
API int cudaEventDestroy(TimedEvent* event) {
  delete event;
  return kSuccess;
}
API int cudaEventRecord(TimedEvent* event, Stream*) {
  clock_gettime(CLOCK_MONOTONIC, &event->recorded);
  return kSuccess;
}
API int cudaEventRecordWithFlags(TimedEvent* event, Stream* stream, unsigned) { return cudaEventRecord(event, stream); }
NO_OP(cudaEventQuery)
NO_OP(cudaEventSynchronize)
// Wall time, and never zero: scripts divide by it.
API int cudaEventElapsedTime(float* milliseconds, TimedEvent* start, TimedEvent* end) {
  const double elapsed = static_cast<double>(end->recorded.tv_sec - start->recorded.tv_sec) * 1e3 +
                         static_cast<double>(end->recorded.tv_nsec - start->recorded.tv_nsec) * 1e-6;
  *milliseconds = std::max(static_cast<float>(elapsed), 1e-3f);
  return kSuccess;
}
API int cudaEventElapsedTime_v2(float* milliseconds, TimedEvent* start, TimedEvent* end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}
API int cudaIpcGetEventHandle(IpcHandle* handle, TimedEvent*) {
  std::memset(handle, 0, sizeof *handle);
  return kSuccess;
}
API int cudaIpcOpenEventHandle(TimedEvent** out, IpcHandle) { return cudaEventCreateWithFlags(out, 0); }

namespace {

enum CaptureStatus { kCaptureNone = 0, kCaptureActive = 1 };

int begin_capture(Stream* handle, Graph* graph) {
  static std::atomic<unsigned long long> captures{0};
  Stream& stream = stream_of(handle);
  if (stream.capturing) return note(kIllegalState);
  stream.capturing = graph;
  stream.capture_id = ++captures;
  return kSuccess;
}

void capture_state(Stream* handle, int* status, unsigned long long* id, Graph** graph) {
  const Stream& stream = stream_of(handle);
  *status = stream.capturing ? kCaptureActive : kCaptureNone;
  if (id) *id = stream.capture_id;
  if (graph) *graph = stream.capturing;
}

}  // namespace

API int cudaStreamIsCapturing(Stream* stream, int* status) {
  capture_state(stream, status, nullptr, nullptr);
  return kSuccess;
}
API int cudaStreamBeginCapture(Stream* stream, int) { return begin_capture(stream, new Graph); }
API int cudaStreamBeginCaptureToGraph(Stream* stream, Graph* graph, const void*, const void*, size_t, int) {
  return begin_capture(stream, graph);
}
API int cudaStreamEndCapture(Stream* handle, Graph** out) {
  Stream& stream = stream_of(handle);
  if (!stream.capturing) return note(kIllegalState);
  *out = stream.capturing;
  stream.capturing = nullptr;
  return kSuccess;
}
API int cudaStreamGetCaptureInfo_v3(Stream* stream, int* status, unsigned long long* id, Graph** graph,
                                    const void** dependencies, const void** edges, size_t* count) {
  capture_state(stream, status, id, graph);
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return kSuccess;
}
API int cudaStreamGetCaptureInfo_v2(Stream* stream, int* status, unsigned long long* id, Graph** graph,
                                    const void** dependencies, size_t* count) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, nullptr, count);
}
// Before CUDA 13 it had three parameters.
API int cudaStreamGetCaptureInfo(Stream* stream, int* status, unsigned long long* id, Graph** graph,
                                 const void** dependencies, const void** edges, size_t* count) {
  if (cuda_version() < 13000) return cudaStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr, nullptr, nullptr);
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}
NO_OP(cudaStreamUpdateCaptureDependencies)
NO_OP(cudaStreamUpdateCaptureDependencies_v2)
API int cudaThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int t_mode = 0;
  std::swap(*mode, t_mode);
  return kSuccess;
}

// ---- graphs: nothing is recorded, a launch does nothing ----

API int cudaGraphCreate(Graph** out, unsigned) {
  *out = new Graph;
  return kSuccess;
}
API int cudaGraphClone(Graph** out, Graph*) { return cudaGraphCreate(out, 0); }
API int cudaGraphDestroy(Graph* graph) {
  for (UserObject* object : graph->objects) release_object(object, 1);
  delete graph;
  return kSuccess;
}
API int cudaGraphInstantiateWithFlags(void** out, Graph*, unsigned long long) {
  *out = new char;
  return kSuccess;
}
API int cudaGraphInstantiate(void** out, Graph* graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
API int cudaGraphExecDestroy(void* executable) {
  delete static_cast<char*>(executable);
  return kSuccess;
}
NO_OP(cudaGraphLaunch)
NO_OP(cudaGraphUpload)
NO_OP(cudaGraphDebugDotPrint)
NO_OP(cudaGraphExecUpdate)
// Asked to find empty graphs: one node is told, without a handle.
API int cudaGraphGetNodes(Graph*, void** nodes, size_t* count) {
  if (nodes && *count) nodes[0] = nullptr;
  *count = 1;
  return kSuccess;
}
namespace {
// The beginning of cudaGraphNodeParams, where a conditional node tells its body graphs.
struct NodeParameters {
  int type, reserved[3];
  unsigned long long conditional_handle;
  int conditional_type;
  unsigned bodies;
  Graph** body_graphs;
};
constexpr int kConditionalNode = 13;
}  // namespace

// (node, graph, dependencies, edges, count, parameters) since CUDA 13, before without the edges.
API int cudaGraphAddNode(void** node, Graph*, const void*, const void*, void* fifth, void* sixth) {
  static char some_node;
  *node = &some_node;
  auto& parameters = *static_cast<NodeParameters*>(cuda_version() >= 13000 ? sixth : fifth);
  if (parameters.type == kConditionalNode) {
    parameters.body_graphs = new Graph*[parameters.bodies];
    for (unsigned i = 0; i < parameters.bodies; ++i) parameters.body_graphs[i] = new Graph;
  }
  return kSuccess;
}
// (node, dependencies, edges, count) since CUDA 13, before without the edges.
API int cudaGraphNodeGetDependencies(void*, void*, void* third, size_t* fourth) {
  *(cuda_version() >= 13000 ? fourth : static_cast<size_t*>(third)) = 0;
  return kSuccess;
}
API int cudaGraphConditionalHandleCreate(unsigned long long* handle, Graph*, unsigned, unsigned) {
  static std::atomic<unsigned long long> handles{0};
  *handle = ++handles;
  return kSuccess;
}
API int cudaUserObjectCreate(UserObject** out, void* pointer, void (*destroy)(void*), unsigned references, unsigned) {
  *out = new UserObject{pointer, destroy, {references}};
  return kSuccess;
}
API int cudaUserObjectRelease(UserObject* object, unsigned count) {
  release_object(object, count);
  return kSuccess;
}
API int cudaGraphRetainUserObject(Graph* graph, UserObject* object, unsigned count, unsigned flags) {
  constexpr unsigned move = 1;
  if (flags != move) object->references += count;
  graph->objects.insert(graph->objects.end(), count, object);
  return kSuccess;
}

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
API int cudaLaunchKernel(const void*, Dim3 grid, Dim3 block, void**, size_t shared_bytes, Stream*) {
  return note(check_launch(grid, block, shared_bytes));
}
API int __cudaLaunchKernel(const void*, Dim3 grid, Dim3 block, void**, size_t shared_bytes, Stream*) {
  return note(check_launch(grid, block, shared_bytes));
}
API int cudaLaunchCooperativeKernel(const void*, Dim3 grid, Dim3 block, void**, size_t shared_bytes, Stream*) {
  return note(check_launch(grid, block, shared_bytes));
}
API int cudaLaunchKernelExC(const LaunchConfig* config, const void*, void**) {
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

// ---- the way to the driver API ----

API int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int* status) {
  constexpr int found = 0, not_found = 1;
  *function = driver_function(name);
  if (status) *status = *function ? found : not_found;
  return kSuccess;
}
API int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, int* status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
