// The controls of the fake device: what the tracer calls before torch is loaded, and reads afterwards.

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "cuda_types.h"
#include "export.h"
#include "process.h"
#include "real_cudnn.h"

using namespace gpumem;

namespace {

constexpr uint64_t kTiB = 1ull << 40;

// Addresses that nobody may touch and that cost nothing; less of them where the address space is limited.
Range reserve_window() {
  for (uint64_t bytes = 4 * kTiB; bytes >= kTiB / 16; bytes /= 2) {
    void* start = mmap(nullptr, bytes + kGranule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start != MAP_FAILED) return {round_up(reinterpret_cast<uint64_t>(start), kGranule), bytes};
  }
  return {};
}

size_t copy_names(const std::set<std::string>& names, char* out, size_t max) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "\n") + name;
  if (out && max) {
    const size_t length = std::min(text.size(), max - 1);
    std::memcpy(out, text.data(), length);
    out[length] = '\0';
  }
  return text.size();
}

}  // namespace

// The ordinal of the new device; -1: too many, or no room for its addresses.
API int gpumem_add_device(const char* name, const char* uuid, uint64_t total_bytes, uint64_t context_bytes,
                          int cc_major, int cc_minor, int sm_count, int physical_index) {
  const Range window = reserve_window();
  if (window.bytes == 0) return -1;
  Guard world;
  return world->add_device({name, uuid, total_bytes, context_bytes, cc_major, cc_minor, sm_count, physical_index, {}},
                           window);
}

// From how many positions on workspaces of convolutions hold copies: forward, by data, by filter.
API void gpumem_set_convolutions(int ordinal, const uint64_t* positions) {
  Guard world;
  if (world->has_device(ordinal)) world->devices[ordinal].spec.convolutions = {positions[0], positions[1], positions[2]};
}

// For the stand-in NVML when it lies in the same process; 0 when there is no such device.
API int gpumem_device(int ordinal, const char** name, const char** uuid, uint64_t* total_bytes, int* physical_index,
                      int* cc_major, int* cc_minor) {
  const World& world = devices_of_process();
  if (!world.has_device(ordinal)) return 0;
  const DeviceSpec& spec = world.devices[ordinal].spec;
  *name = spec.name.c_str();
  *uuid = spec.uuid.c_str();
  *total_bytes = spec.total_bytes;
  *physical_index = spec.physical_index;
  *cc_major = spec.cc_major;
  *cc_minor = spec.cc_minor;
  return 1;
}

API void gpumem_set_cuda_version(int version) { set_cuda_version(version); }

API void gpumem_set_cudnn_version(int version) { set_cudnn_version(version); }

API void gpumem_set_cudnn_library(const char* path) { set_cudnn_library(path); }

API void gpumem_set_limit(int enforce) {
  Guard world;
  world->enforce_limit = enforce != 0;
}

API int gpumem_publish(const char* node_dir) { return publish_under(node_dir) ? 0 : 1; }

API void gpumem_mark() {
  Guard world;
  world->begin_interval();
}

API size_t gpumem_events(Event* out, size_t max) {
  Guard world;
  const auto& events = world->events();
  if (out) std::copy_n(events.begin(), std::min(max, events.size()), out);
  return events.size();
}

API size_t gpumem_unknown_names(char* out, size_t max) {
  Guard world;
  return copy_names(world->unknown(), out, max);
}

API size_t gpumem_invented_names(char* out, size_t max) {
  Guard world;
  return copy_names(world->invented(), out, max);
}

API size_t gpumem_library_names(char* out, size_t max) {
  Guard world;
  return copy_names(world->libraries(), out, max);
}

// The ranks of each communicator of NCCL.
API size_t gpumem_communicators(int* out, size_t max) {
  Guard world;
  const auto& ranks = world->communicators();
  if (out) std::copy_n(ranks.begin(), std::min(max, ranks.size()), out);
  return ranks.size();
}

// How many different kernels were launched.
API size_t gpumem_kernels() {
  Guard world;
  return world->kernels();
}

API uint64_t gpumem_largest_convolution() {
  Guard world;
  return world->largest_convolution();
}

API void gpumem_usage(int ordinal, uint64_t* used, uint64_t* peak) {
  Guard world;
  const bool known = world->has_device(ordinal);
  if (used) *used = known ? world->devices[ordinal].used : 0;
  if (peak) *peak = known ? world->devices[ordinal].peak : 0;
}

// The placeholders of the facades end here: note the name, and say "success"; of the driver's, "not supported".
API uint64_t gpumem_unknown_call(const char* name) {
  Guard world;
  world->note_unknown(name);
  return 0;
}
API uint64_t gpumem_unsupported_call(const char* name) {
  gpumem_unknown_call(name);
  return kNotSupported;
}
