// The CUDA runtime (libcudart): errors, devices and their properties, the way to the driver API.

#include "runtime.h"

#include <cstdio>
#include <cstring>

using namespace gpumem;

namespace {
thread_local int t_last_error = kSuccess;
}

int gpumem::note(int status) {
  if (status != kSuccess && status != kNotReady) t_last_error = status;
  return status;
}

int gpumem::ready() {
  if (touch_device()) return kSuccess;
  return note(devices_of_process().devices.empty() ? kNoDevice : kOutOfMemory);
}

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
