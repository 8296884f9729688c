#include "real_cudnn.h"

#include <dlfcn.h>

#include <array>
#include <mutex>
#include <string>
#include <utility>

#include "cudnn.h"
#include "cuda_types.h"

namespace gpumem {
namespace {

constexpr size_t kFirstDeviceless = 90800;

// cudnn_graph.h
constexpr int kDeviceProperties = 38, kPropertiesJson = 2702, kCharType = 24;

std::string& library_path() {
  static auto* const path = new std::string;
  return *path;
}

template <typename Function>
bool find(Function& function, void* library, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

const RealCudnn* load() {
  if (library_path().empty()) return nullptr;
  // A namespace of its own: the library must not find the stand-ins in the place of the libraries that it needs.
  void* const library = dlmopen(LM_ID_NEWLM, library_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return nullptr;
  auto* const real = new RealCudnn{};
  const bool whole = find(real->version, library, "cudnnGetVersion") &&
                     find(real->create, library, "cudnnBackendCreateDescriptor") &&
                     find(real->destroy, library, "cudnnBackendDestroyDescriptor") &&
                     find(real->finalize, library, "cudnnBackendFinalize") &&
                     find(real->set, library, "cudnnBackendSetAttribute") &&
                     find(real->get, library, "cudnnBackendGetAttribute") &&
                     find(real->last_error, library, "cudnnGetLastErrorString");
  if (whole && real->version() >= kFirstDeviceless) return real;
  delete real;
  dlclose(library);
  return nullptr;
}

// As cuDNN writes it for a real device. (OpenXLA makes such a text by itself, too: openxla/xla#41021.)
std::string properties_text(int ordinal) {
  const auto of = [&](Attribute attribute) { return device_attribute(attribute, ordinal); };
  const DeviceSpec& spec = devices_of_process().devices[ordinal].spec;
  const std::array<std::pair<const char*, long long>, 21> numbers{{
      {"deviceVer", spec.cc_major * 100 + spec.cc_minor * 10},
      {"driverVer", cuda_version()},
      {"cudaDeviceId", ordinal},
      {"pciDeviceId", 0},
      {"multiProcessorCount", spec.sm_count},
      {"smCountOrigin", 0},  // all of the device
      {"totalGlobalMem", static_cast<long long>(spec.total_bytes)},
      {"warpSize", of(kWarpSize)},
      {"regsPerBlock", of(kMaxRegistersPerBlock)},
      {"maxRegistersPerSM", of(kMaxRegistersPerMultiprocessor)},
      {"maxSharedMemoryPerBlock", of(kMaxSharedMemoryPerBlock)},
      {"maxSharedMemoryPerBlockOptin", of(kMaxSharedMemoryPerBlockOptin)},
      {"reservedSharedMemoryPerBlock", of(kReservedSharedMemoryPerBlock)},
      {"maxCtasPerSM", of(kMaxBlocksPerMultiprocessor)},
      {"maxThreadsPerBlock", of(kMaxThreadsPerBlock)},
      {"maxThreadsPerSM", of(kMaxThreadsPerMultiProcessor)},
      {"isTccDriver", 0},
      {"supportCoopLaunch", of(kCooperativeLaunch)},
      {"smClockRateKHz", of(kClockRate)},
      {"memClockRateKHz", of(kMemoryClockRate)},
      {"l2CacheSize", of(kL2CacheSize)},
  }};
  std::string text = "{\"deviceName\":\"GPU\"";  // a name from outside would have to be escaped
  for (const auto& [name, value] : numbers) text += std::string(",\"") + name + "\":" + std::to_string(value);
  const auto three = [&](const char* name, Attribute x, Attribute y, Attribute z) {
    text += std::string(",\"") + name + "\":[" + std::to_string(of(x)) + "," + std::to_string(of(y)) + "," +
            std::to_string(of(z)) + "]";
  };
  three("maxGridSize", kMaxGridDimX, kMaxGridDimY, kMaxGridDimZ);
  three("maxBlockSize", kMaxBlockDimX, kMaxBlockDimY, kMaxBlockDimZ);
  return text + "}";
}

RealDescriptor describe(const RealCudnn& real, int ordinal) {
  RealDescriptor properties = nullptr;
  if (real.create(kDeviceProperties, &properties) != kDnnOk) return nullptr;
  const std::string text = properties_text(ordinal);
  if (real.set(properties, kPropertiesJson, kCharType, static_cast<int64_t>(text.size()) + 1, text.c_str()) == kDnnOk &&
      real.finalize(properties) == kDnnOk)
    return properties;
  real.destroy(properties);
  return nullptr;
}

}  // namespace

void set_cudnn_library(const char* path) { library_path() = path; }

const RealCudnn* real_cudnn() {
  static const RealCudnn* const loaded = load();
  return loaded;
}

RealDescriptor device_properties(int ordinal) {
  static std::mutex mutex;
  static std::array<RealDescriptor, kMaxDevices> described{};
  const RealCudnn* const real = real_cudnn();
  if (!real || !devices_of_process().has_device(ordinal)) return nullptr;
  const std::lock_guard lock(mutex);
  RealDescriptor& properties = described[static_cast<size_t>(ordinal)];
  if (!properties) properties = describe(*real, ordinal);
  return properties;
}

}  // namespace gpumem
