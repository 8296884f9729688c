// What runtime and driver share: attributes, launch checks, copies, pinned memory, error names.

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "architecture.h"
#include "cuda_types.h"
#include "export.h"
#include "process.h"
#include "small_copies.h"

namespace gpumem {
namespace {

const Architecture& architecture_of(int ordinal) {
  const DeviceSpec& spec = devices_of_process().devices[ordinal].spec;
  return architecture(spec.cc_major, spec.cc_minor);
}

struct StatusText {
  int status;
  const char *runtime_name, *text;
};

constexpr StatusText kStatusTexts[] = {
    {kSuccess, "cudaSuccess", "no error"},
    {kInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {kOutOfMemory, "cudaErrorMemoryAllocation", "out of memory"},
    {kInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {kMissingConfiguration, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {kNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {kInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {kInvalidContext, "cudaErrorDeviceUninitialized", "invalid device context"},
    {kInvalidHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {kIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {kNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {kNotReady, "cudaErrorNotReady", "device not ready"},
    {kNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

const StatusText& find_status(int status) {
  static constexpr StatusText unknown = {999, "cudaErrorUnknown", "unknown error"};
  for (const StatusText& entry : kStatusTexts)
    if (entry.status == status) return entry;
  return unknown;
}

// Pages of host memory that cost nothing until they are touched.
void* anonymous_pages(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

// Zeroes host memory; of a big range the pages are given back rather than touched, for a script may well
// read a whole model back.
void zero_host(void* destination, size_t bytes) {
  constexpr uint64_t page = 4096, big = kMiB;
  const auto start = reinterpret_cast<uint64_t>(destination), first = round_up(start, page);
  const uint64_t last = (start + bytes) / page * page;
  if (bytes < big || madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) {
    std::memset(destination, 0, bytes);
    return;
  }
  // Pages of a shared or file mapping come back with their contents.
  const auto word = [](uint64_t address) { return *reinterpret_cast<const uint64_t*>(address); };
  if (word(first) || word((first + last) / 2 / 8 * 8) || word(last - 8)) {
    std::memset(destination, 0, bytes);
    return;
  }
  std::memset(destination, 0, first - start);
  std::memset(reinterpret_cast<void*>(last), 0, start + bytes - last);
}

// Pinned host ranges; the lock of the world guards them.
struct HostRange {
  size_t bytes;
  bool ours;
};
std::map<uint64_t, HostRange>& host_ranges() {
  static auto* const ranges = new std::map<uint64_t, HostRange>;
  return *ranges;
}

}  // namespace

const char* status_name(int status) { return find_status(status).runtime_name; }
const char* status_text(int status) { return find_status(status).text; }

int device_attribute(int attribute, int ordinal) {
  const DeviceSpec& spec = devices_of_process().devices[ordinal].spec;
  const Architecture& arch = architecture_of(ordinal);
  switch (attribute) {
    case kMaxThreadsPerBlock:
    case kMaxBlockDimX:
    case kMaxBlockDimY: return kThreadsPerBlock;
    case kMaxBlockDimZ: return 64;
    case kMaxGridDimX:
    case kMaxPitch: return 2147483647;
    case kMaxGridDimY:
    case kMaxGridDimZ: return 65535;
    case kMaxSharedMemoryPerBlock: return kSharedPerBlock;
    case kTotalConstantMemory: return 65536;
    case kWarpSize: return 32;
    case kMaxRegistersPerBlock:
    case kMaxRegistersPerMultiprocessor: return kRegistersPerSm;
    case kClockRate: return 1'500'000;  // kHz
    case kMemoryClockRate: return 2'000'000;
    case kMemoryBusWidth: return 5120;
    case kTextureAlignment: return 512;
    case kTexturePitchAlignment: return 32;
    case kMultiProcessorCount: return spec.sm_count;
    case kPciBusId: return spec.physical_index + 1;
    case kL2CacheSize: return arch.l2_cache_bytes;
    case kMaxThreadsPerMultiProcessor: return arch.threads_per_sm;
    case kAsyncEngineCount: return 3;
    case kComputeCapabilityMajor: return spec.cc_major;
    case kComputeCapabilityMinor: return spec.cc_minor;
    case kMaxSharedMemoryPerMultiprocessor: return arch.shared_per_sm;
    case kMaxSharedMemoryPerBlockOptin: return arch.shared_per_block_optin;
    case kMaxBlocksPerMultiprocessor: return arch.blocks_per_sm;
    case kReservedSharedMemoryPerBlock: return arch.cc >= 80 ? kReservedSharedPerBlock : 0;
    case kClusterLaunch: return arch.cc >= 90;
    case kGpuOverlap:
    case kCanMapHostMemory:
    case kConcurrentKernels:
    case kEccEnabled:
    case kUnifiedAddressing:
    case kStreamPrioritiesSupported:
    case kGlobalL1CacheSupported:
    case kLocalL1CacheSupported:
    case kManagedMemory:
    case kConcurrentManagedAccess:
    case kComputePreemptionSupported:
    case kCooperativeLaunch:
    case kHostRegisterSupported:
    case kVirtualMemoryManagementSupported:
    case kPosixFileDescriptorSupported:
    case kMemoryPoolsSupported:
    case kIpcEventSupport: return 1;
    default: return 0;
  }
}

int blocks_per_multiprocessor(int block_threads, size_t dynamic_shared_bytes) {
  const int ordinal = current_device();
  if (!devices_of_process().has_device(ordinal) || block_threads <= 0) return 0;
  const Architecture& arch = architecture_of(ordinal);
  const int warps = (block_threads + 31) / 32;
  int blocks = std::min(arch.blocks_per_sm, arch.threads_per_sm / (warps * 32));
  if (dynamic_shared_bytes > 0)
    blocks = std::min<int>(blocks, static_cast<int>(static_cast<size_t>(arch.shared_per_sm) /
                                                    (dynamic_shared_bytes + kReservedSharedPerBlock)));
  note_invented("occupancy");
  return blocks;
}

int check_launch(Dim3 grid, Dim3 block, size_t dynamic_shared_bytes) {
  if (!touch_device()) return devices_of_process().devices.empty() ? kNoDevice : kOutOfMemory;
  if (!grid.x || !grid.y || !grid.z || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
    return kInvalidConfiguration;
  if (!block.x || !block.y || !block.z || block.z > 64 ||
      static_cast<uint64_t>(block.x) * block.y * block.z > kThreadsPerBlock)
    return kInvalidConfiguration;
  forget_copies();
  const int most = architecture_of(current_device()).shared_per_block_optin;
  return dynamic_shared_bytes > static_cast<size_t>(most) ? kInvalidValue : kSuccess;
}

void copy(void* destination, const void* source, size_t bytes) {
  if (bytes == 0) return;
  const bool to_device = on_device(destination), from_device = on_device(source);
  if (to_device && from_device) {
    forward_copy(destination, source, bytes);
  } else if (to_device) {
    log_event(EventKind::copied_in, destination, bytes);
    remember_copy(destination, source, bytes);
  } else if (from_device) {
    log_event(EventKind::copied_out, source, bytes);
    if (!recall_copy(destination, source, bytes)) zero_host(destination, bytes);
  } else {
    std::memmove(destination, source, bytes);
  }
}

void copy_rows(void* destination, size_t destination_pitch, const void* source, size_t source_pitch, size_t width,
               size_t rows) {
  if (width == 0 || rows == 0) return;
  const bool to_device = on_device(destination), from_device = on_device(source);
  if (to_device && !from_device) {
    log_event(EventKind::copied_in, destination, (rows - 1) * destination_pitch + width);
  } else if (!to_device && from_device) {
    log_event(EventKind::copied_out, source, (rows - 1) * source_pitch + width);
    for (size_t row = 0; row < rows; ++row)
      std::memset(static_cast<char*>(destination) + row * destination_pitch, 0, width);
  } else if (!to_device) {
    for (size_t row = 0; row < rows; ++row)
      std::memmove(static_cast<char*>(destination) + row * destination_pitch,
                   static_cast<const char*>(source) + row * source_pitch, width);
  }
}

void fill(void* destination, int value, size_t bytes) {
  if (!on_device(destination)) {
    std::memset(destination, value, bytes);
  } else {
    forget_copies();
  }
}

void* host_allocate(size_t bytes) {
  const size_t rounded = round_up(bytes ? bytes : 1, 4096);
  void* pages = anonymous_pages(rounded);
  Guard guard;
  if (pages) host_ranges()[reinterpret_cast<uint64_t>(pages)] = {rounded, true};
  return pages;
}

bool host_free(void* pointer) {
  Guard guard;
  const auto range = host_ranges().find(reinterpret_cast<uint64_t>(pointer));
  if (range == host_ranges().end() || !range->second.ours) return false;
  munmap(pointer, range->second.bytes);
  host_ranges().erase(range);
  return true;
}

void host_register(void* pointer, size_t bytes) {
  Guard guard;
  host_ranges()[reinterpret_cast<uint64_t>(pointer)] = {bytes, false};
}

bool host_unregister(void* pointer) {
  Guard guard;
  return host_ranges().erase(reinterpret_cast<uint64_t>(pointer)) > 0;
}

bool is_pinned(const void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  Guard guard;
  const auto next = host_ranges().upper_bound(address);
  return next != host_ranges().begin() && address - std::prev(next)->first < std::prev(next)->second.bytes;
}

void* driver_function(const char* name) {
  static void* const self = [] {
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(&driver_function), &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                                                                    : nullptr;
  }();
  if (!self || std::strncmp(name, "cu", 2) != 0) return nullptr;
  // A library asks for the plain name and means the newest version of it.
  const std::string versioned = std::string(name) + "_v2";
  void* function = dlsym(self, versioned.c_str());
  return function ? function : dlsym(self, name);
}

}  // namespace gpumem
