// The state of the pretend devices of one process: pure bookkeeping, no system calls, no locks.
//
// Sizes and addresses are bytes. Addresses are of nothing: they lie in windows that nobody may read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "convolution.h"

namespace gpumem {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kGranule = 2 * kMiB;  // physical memory is handed out in 2 MiB pages
constexpr uint64_t kPoolGranule = 512;   // cudaMallocAsync rounds to this within its pool
constexpr size_t kMaxDevices = 16;       // what a usage file holds
constexpr size_t kMaxEvents = 1'000'000;

constexpr uint64_t round_up(uint64_t bytes, uint64_t granule) { return (bytes + granule - 1) / granule * granule; }

struct Range {
  uint64_t start = 0;
  uint64_t bytes = 0;
  bool holds(uint64_t address) const { return address >= start && address - start < bytes; }
};

// Hands out ranges of a window, first fit.
class AddressSpace {
 public:
  AddressSpace() = default;
  explicit AddressSpace(Range window) : window_(window) { clear(); }

  const Range& window() const { return window_; }
  std::optional<uint64_t> take(uint64_t bytes);
  // Gives a range back by its start; its size, or 0 if there is none.
  uint64_t give(uint64_t start);
  // The taken range that holds this address.
  std::optional<Range> find(uint64_t address) const;
  void clear();

 private:
  Range window_;
  std::map<uint64_t, uint64_t> taken_, holes_;  // start -> bytes
};

struct DeviceSpec {
  std::string name, uuid;
  uint64_t total_bytes = 0, context_bytes = 0;
  int cc_major = 0, cc_minor = 0, sm_count = 0, physical_index = 0;
  CopiedFrom convolutions = {};
};

// A pool of stream-ordered memory (cudaMallocAsync).
struct Pool {
  int device = 0;
  uint64_t threshold = 0;  // what may stay reserved though unused
  uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
};

struct Device {
  DeviceSpec spec;
  AddressSpace memory;    // cudaMalloc
  AddressSpace virtuals;  // cuMemAddressReserve, IPC mappings, device globals
  bool context = false;
  uint64_t used = 0, peak = 0;
  Pool pool;
};

enum class EventKind : uint32_t {
  copied_in = 1,
  blas_workspace = 2,
  dnn_workspace = 3,
  copied_out = 4,
  solver_workspace = 5,
  attention_workspace = 6,
};

struct Event {
  uint32_t interval, kind;
  uint64_t address, bytes;
};

class World {
 public:
  // Told after every change of a device's use; asked what other processes use of it. Both may be absent.
  void (*changed)(const World&) = nullptr;
  uint64_t (*used_by_others)(const DeviceSpec&) = nullptr;
  bool enforce_limit = true;

  std::vector<Device> devices;

  // The ordinal of the new device, -1 when there are too many. `window` is split for the device's spaces.
  int add_device(DeviceSpec spec, Range window);
  int device_of(uint64_t address) const;  // -1: host memory
  bool has_device(int ordinal) const { return ordinal >= 0 && ordinal < static_cast<int>(devices.size()); }

  // The first use of a device makes its context; false when that does not fit.
  bool open_context(int ordinal);
  void close_context(int ordinal);
  uint64_t free_bytes(int ordinal) const;

  // 0 when there is no room.
  uint64_t allocate(int ordinal, uint64_t bytes);
  uint64_t allocate_from(Pool& pool, uint64_t bytes);
  bool release(uint64_t address);
  void trim(Pool& pool, uint64_t keep);
  std::optional<Range> allocation_at(uint64_t address) const;

  // Virtual memory management: physical handles, mapped into reserved addresses.
  uint64_t reserve_addresses(int ordinal, uint64_t bytes);
  bool free_addresses(uint64_t address);
  uint64_t create_physical(int ordinal, uint64_t bytes);  // 0 when there is no room
  bool retain_physical(uint64_t handle);
  bool release_physical(uint64_t handle);
  bool map_physical(uint64_t address, uint64_t bytes, uint64_t handle);
  bool unmap(uint64_t address, uint64_t bytes);
  uint64_t physical_at(uint64_t address) const;  // 0: nothing mapped there
  int device_of_physical(uint64_t handle) const;

  void begin_interval() { ++interval_; }
  void log(EventKind kind, uint64_t address, uint64_t bytes);
  const std::vector<Event>& events() const { return events_; }

  void note_unknown(const char* name) { unknown_.insert(name); }
  void note_invented(const char* name) { invented_.insert(name); }
  // A library that has loaded code or taken memory on the device by now; a communicator of NCCL and its ranks.
  void note_library(const char* name) { libraries_.insert(name); }
  const std::set<std::string>& libraries() const { return libraries_; }
  void note_communicator(int ranks) { communicators_.push_back(ranks); }
  const std::vector<int>& communicators() const { return communicators_; }
  void note_kernel(const void* function) { kernels_.insert(function); }
  size_t kernels() const { return kernels_.size(); }
  void note_convolution(uint64_t bytes) { largest_convolution_ = std::max(largest_convolution_, bytes); }
  // The most that a convolution may have asked for as workspace, so far.
  uint64_t largest_convolution() const { return largest_convolution_; }
  const std::set<std::string>& unknown() const { return unknown_; }
  const std::set<std::string>& invented() const { return invented_; }

  // A forked child starts without contexts and allocations; the devices stay.
  void forget_usage();

 private:
  struct Physical {
    int device;
    uint64_t bytes;
    int references;
  };
  struct Mapping {
    uint64_t bytes, handle;
  };

  bool charge(Device& device, uint64_t bytes);
  void refund(Device& device, uint64_t bytes);

  std::unordered_map<uint64_t, Pool*> pooled_;  // address -> the pool that it came from
  std::unordered_map<uint64_t, Physical> physicals_;
  std::map<uint64_t, Mapping> mappings_;
  uint64_t next_physical_ = 1;
  uint32_t interval_ = 0;
  std::vector<Event> events_;
  std::set<std::string> unknown_, invented_, libraries_;
  std::vector<int> communicators_;
  std::unordered_set<const void*> kernels_;
  uint64_t largest_convolution_ = 0;
};

}  // namespace gpumem
