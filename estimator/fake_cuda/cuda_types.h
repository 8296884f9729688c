// The few CUDA types and codes that the fake runtime and driver need, declared after the public documentation.
// CUDA's runtime and driver number their errors and device attributes alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem {

enum Status : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidConfiguration = 9,
  kMissingConfiguration = 52,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kNotSupported = 801,
};

enum CopyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kAnyToAny = 4 };

enum MemoryType : int { kUnregistered = 0, kHost = 1, kOnDevice = 2, kManaged = 3 };

// cudaDeviceAttr and CUdevice_attribute.
enum Attribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxBlockDimX = 2,
  kMaxBlockDimY = 3,
  kMaxBlockDimZ = 4,
  kMaxGridDimX = 5,
  kMaxGridDimY = 6,
  kMaxGridDimZ = 7,
  kMaxSharedMemoryPerBlock = 8,
  kTotalConstantMemory = 9,
  kWarpSize = 10,
  kMaxPitch = 11,
  kMaxRegistersPerBlock = 12,
  kClockRate = 13,
  kTextureAlignment = 14,
  kGpuOverlap = 15,
  kMultiProcessorCount = 16,
  kCanMapHostMemory = 19,
  kConcurrentKernels = 31,
  kEccEnabled = 32,
  kPciBusId = 33,
  kMemoryClockRate = 36,
  kMemoryBusWidth = 37,
  kL2CacheSize = 38,
  kMaxThreadsPerMultiProcessor = 39,
  kAsyncEngineCount = 40,
  kUnifiedAddressing = 41,
  kTexturePitchAlignment = 51,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kStreamPrioritiesSupported = 78,
  kGlobalL1CacheSupported = 79,
  kLocalL1CacheSupported = 80,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxRegistersPerMultiprocessor = 82,
  kManagedMemory = 83,
  kConcurrentManagedAccess = 89,
  kComputePreemptionSupported = 90,
  kCooperativeLaunch = 95,
  kMaxSharedMemoryPerBlockOptin = 97,
  kHostRegisterSupported = 99,
  kVirtualMemoryManagementSupported = 102,
  kPosixFileDescriptorSupported = 103,
  kMaxBlocksPerMultiprocessor = 106,
  kReservedSharedMemoryPerBlock = 111,
  kMemoryPoolsSupported = 115,
  kClusterLaunch = 120,
  kIpcEventSupport = 125,
};

struct Dim3 {
  unsigned x, y, z;
};

struct LaunchConfig {
  Dim3 grid, block;
  size_t dynamic_shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

struct FunctionAttributes {
  size_t shared_bytes, const_bytes, local_bytes;
  int max_threads_per_block, registers, ptx_version, binary_version, cache_mode_ca;
  int max_dynamic_shared_bytes, preferred_shared_carveout;
  int cluster[4], cluster_scheduling, non_portable_cluster_allowed, reserved[16];
};
static_assert(sizeof(FunctionAttributes) == 144);

struct PointerAttributes {  // CUDA 13 adds eight reserved words
  int type, device;
  const void *device_pointer, *host_pointer;
};

struct MemoryLocation {
  int type, id;  // type 1: a device
};

struct PoolProperties {
  int allocation_type, handle_types;
  MemoryLocation location;
};

struct PhysicalProperties {  // CUmemAllocationProp
  int type, handle_types;
  MemoryLocation location;
  void* win32;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(sizeof(PhysicalProperties) == 32);

struct IpcHandle {
  char bytes[64];
};

const char* status_name(int status);
const char* status_text(int status);

// What this device answers to an attribute query.
int device_attribute(int attribute, int ordinal);

// Resident blocks per multiprocessor: limited by threads and shared memory; registers are not known.
int blocks_per_multiprocessor(int block_threads, size_t dynamic_shared_bytes);
// kSuccess, or why the launch would fail.
int check_launch(Dim3 grid, Dim3 block, size_t dynamic_shared_bytes);

// Copies as a device without contents does: what is read back is zero, what is sent is only noted.
void copy(void* destination, const void* source, size_t bytes);
void copy_rows(void* destination, size_t destination_pitch, const void* source, size_t source_pitch, size_t width,
               size_t rows);
void fill(void* destination, int value, size_t bytes);

// Pinned or registered host memory.
void* host_allocate(size_t bytes);
bool host_free(void* pointer);
void host_register(void* pointer, size_t bytes);
bool host_unregister(void* pointer);
bool is_pinned(const void* pointer);

// A function of the driver API by name (without version suffix too); null when there is none.
void* driver_function(const char* name);

}  // namespace gpumem
