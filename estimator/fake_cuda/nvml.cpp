// A stand-in for NVML (libnvidia-ml.so.1): what monitoring and PyTorch ask of it, answered from the files of a
// pretend node.
//
// $GPUMEM_FAKE_NODE names the node's folder: devices.json, procs/, accounting. Without it, the answers are the
// devices of the fake CUDA device of this process, without processes. $GPUMEM_FAKE_NVML_FAULT makes every call
// fail as NVML does: `gpu_lost` or `uninitialized`.

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "export.h"
#include "usage_scan.h"

using namespace gpumem;

namespace {

enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kGpuLost = 15,
  kArgumentVersionMismatch = 25,
};

struct Device {
  int index = 0, minor = 0, cc_major = 0, cc_minor = 0;
  std::string uuid, name;
  uint64_t memory_bytes = 0;
};

std::mutex g_mutex;  // guards what follows
int g_initialized = 0;
std::vector<Device>* g_devices = nullptr;  // handles point into it: replaced only when all have shut down

std::string node_file(const char* name) {
  const char* node = std::getenv("GPUMEM_FAKE_NODE");
  return node && *node ? std::string(node) + "/" + name : std::string();
}

std::string read_file(const std::string& path) {
  constexpr size_t most = 1 << 20;
  std::string text;
  const int file = path.empty() ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  char chunk[4096];
  for (ssize_t length; text.size() < most && (length = ::read(file, chunk, sizeof chunk)) > 0;)
    text.append(chunk, static_cast<size_t>(length));
  ::close(file);
  return text;
}

// The values of one flat JSON object, as text; enough for devices.json, which this project writes.
class Json {
 public:
  explicit Json(const std::string& text) : text_(text) {}

  // The next object of the array; false at its end.
  bool next(std::map<std::string, std::string>& object) {
    object.clear();
    at_ = text_.find('{', at_);
    if (at_ == std::string::npos) return false;
    ++at_;
    while (at_ < text_.size() && peek() != '}') {
      const std::string key = value();
      if (peek() == ':') ++at_;
      object[key] = value();
      if (peek() == ',') ++at_;
    }
    return true;
  }

 private:
  char peek() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '}';
  }
  std::string value() {
    std::string out;
    const char first = peek();
    if (first == '"') {
      for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
        if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
        out += text_[at_];
      }
      ++at_;
    } else if (first == '[') {
      for (++at_; at_ < text_.size() && text_[at_] != ']'; ++at_) out += text_[at_];
      ++at_;
    } else {
      for (; at_ < text_.size() && !std::strchr(",}] \t\r\n", text_[at_]); ++at_) out += text_[at_];
      if (out.empty()) at_ = text_.size();  // malformed: stop
    }
    return out;
  }

  const std::string& text_;
  size_t at_ = 0;
};

std::vector<Device> devices_of_node() {
  std::vector<Device> devices;
  const std::string text = read_file(node_file("devices.json"));
  Json json(text);
  for (std::map<std::string, std::string> object; devices.size() < 64 && json.next(object);) {
    Device device;
    device.index = std::atoi(object["index"].c_str());
    device.minor = object.count("minor") ? std::atoi(object["minor"].c_str()) : device.index;
    device.uuid = object["uuid"];
    device.name = object["name"];
    device.memory_bytes = std::strtoull(object["memory_bytes"].c_str(), nullptr, 10);
    std::sscanf(object["compute_capability"].c_str(), "%d , %d", &device.cc_major, &device.cc_minor);
    devices.push_back(std::move(device));
  }
  std::sort(devices.begin(), devices.end(), [](const Device& a, const Device& b) { return a.index < b.index; });
  return devices;
}

// Devices that CUDA_VISIBLE_DEVICES hides are there for NVML, but nothing is known of them.
std::vector<Device> devices_of_process() {
  using Query = int (*)(int, const char**, const char**, uint64_t*, int*, int*, int*);
  const auto query = reinterpret_cast<Query>(dlsym(RTLD_DEFAULT, "gpumem_device"));
  std::vector<Device> devices;
  Device device;
  const char *name = nullptr, *uuid = nullptr;
  for (int ordinal = 0;
       query && query(ordinal, &name, &uuid, &device.memory_bytes, &device.index, &device.cc_major, &device.cc_minor);
       ++ordinal) {
    device.name = name;
    device.uuid = uuid;
    device.minor = device.index;
    if (devices.size() <= static_cast<size_t>(device.index)) devices.resize(static_cast<size_t>(device.index) + 1);
    devices[static_cast<size_t>(device.index)] = device;
  }
  return devices;
}

int fault(bool about_a_device) {
  const char* wanted = std::getenv("GPUMEM_FAKE_NVML_FAULT");
  if (!wanted) return kSuccess;
  if (std::strcmp(wanted, "uninitialized") == 0) return kUninitialized;
  return about_a_device && std::strcmp(wanted, "gpu_lost") == 0 ? kGpuLost : kSuccess;
}

// What every call checks first: kSuccess, or what to return.
int check() {
  if (const int status = fault(false)) return status;
  std::lock_guard lock(g_mutex);
  return g_initialized ? kSuccess : kUninitialized;
}
int check(const Device* device) {
  if (const int status = check()) return status;
  if (const int status = fault(true)) return status;
  return device ? kSuccess : kInvalidArgument;
}
#define CHECK(...) \
  if (const int status = check(__VA_ARGS__)) return status

int copy_text(const std::string& text, char* out, unsigned length) {
  if (!out) return kInvalidArgument;
  if (text.size() >= length) return kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

int find_device(Device** out, bool (*matches)(const Device&, const void*), const void* wanted) {
  CHECK();
  if (const int status = fault(true)) return status;
  for (Device& device : *g_devices)
    if (matches(device, wanted)) return *out = &device, kSuccess;
  return kNotFound;
}

// ---- processes ----

struct Process {
  UsageLayout layout;
  UsageOfDevice usage;
  bool running;
};

// Those that have used this device, the oldest first.
std::vector<Process> processes_of(const Device& device) {
  std::vector<Process> found;
  scan_usage(node_file("procs").c_str(), [&](const UsageLayout& layout) {
    const UsageOfDevice* usage = usage_of(layout, device.uuid);
    if (usage && usage->peak) found.push_back({layout, *usage, is_running(layout)});
  });
  std::sort(found.begin(), found.end(),
            [](const Process& a, const Process& b) { return a.layout.start_unix_us < b.layout.start_unix_us; });
  return found;
}

std::vector<Process> running_on(const Device& device) {
  std::vector<Process> found = processes_of(device);
  found.erase(std::remove_if(found.begin(), found.end(), [](const Process& p) { return !p.running || !p.usage.used; }),
              found.end());
  return found;
}

struct ProcessInfo1 {
  unsigned pid;
  unsigned long long used;
};
struct ProcessInfo2 {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessInfo1) == 16 && sizeof(ProcessInfo2) == 24);

// NVML's way with lists: too little room is an error that tells how much is needed.
template <typename Item, typename Source, typename Convert>
int copy_list(const std::vector<Source>& items, unsigned* count, Item* out, Convert convert) {
  if (!count) return kInvalidArgument;
  const auto needed = static_cast<unsigned>(items.size());
  const unsigned room = *count;
  *count = needed;
  if (needed > room) return kInsufficientSize;
  if (needed && !out) return kInvalidArgument;
  std::transform(items.begin(), items.end(), out, convert);
  return kSuccess;
}

template <typename Info>
int running_processes(const Device* device, unsigned* count, Info* out) {
  CHECK(device);
  return copy_list(running_on(*device), count, out, [](const Process& process) {
    Info info{};
    info.pid = process.layout.pid;
    info.used = process.usage.used;
    if constexpr (sizeof(Info) == sizeof(ProcessInfo2)) info.gpu_instance = info.compute_instance = ~0u;
    return info;
  });
}

int no_processes(const Device* device, unsigned* count) {
  CHECK(device);
  if (!count) return kInvalidArgument;
  *count = 0;
  return kSuccess;
}

bool accounting_is_on() { return read_file(node_file("accounting")).compare(0, 1, "1") == 0; }

}  // namespace

// ---- library ----

API int nvmlInitWithFlags(unsigned) {
  std::lock_guard lock(g_mutex);
  if (g_initialized == 0) {
    std::vector<Device> devices = node_file("").empty() ? devices_of_process() : devices_of_node();
    if (devices.empty()) return kDriverNotLoaded;
    delete g_devices;
    g_devices = new std::vector<Device>(std::move(devices));
  }
  ++g_initialized;
  return kSuccess;
}
API int nvmlInit_v2() { return nvmlInitWithFlags(0); }
API int nvmlInit() { return nvmlInitWithFlags(0); }
API int nvmlShutdown() {
  std::lock_guard lock(g_mutex);
  if (g_initialized == 0) return kUninitialized;
  --g_initialized;
  return kSuccess;
}
API const char* nvmlErrorString(int result) {
  switch (result) {
    case kSuccess: return "Success";
    case kUninitialized: return "Uninitialized";
    case kInvalidArgument: return "Invalid Argument";
    case kNotSupported: return "Not Supported";
    case kNoPermission: return "Insufficient Permissions";
    case kNotFound: return "Not Found";
    case kInsufficientSize: return "Insufficient Size";
    case kDriverNotLoaded: return "Driver Not Loaded";
    case kGpuLost: return "GPU is lost";
    case kArgumentVersionMismatch: return "Argument Version Mismatch";
    default: return "Unknown Error";
  }
}
API int nvmlSystemGetDriverVersion(char* out, unsigned length) {
  CHECK();
  return copy_text("580.00.00", out, length);
}
API int nvmlSystemGetNVMLVersion(char* out, unsigned length) {
  CHECK();
  return copy_text("13.580.00.00", out, length);
}
API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  CHECK();
  *version = 13000;
  return kSuccess;
}
API int nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

// ---- devices ----

API int nvmlDeviceGetCount_v2(unsigned* count) {
  CHECK();
  *count = static_cast<unsigned>(g_devices->size());
  return kSuccess;
}
API int nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** out) {
  CHECK();
  if (const int status = fault(true)) return status;
  if (index >= g_devices->size()) return kInvalidArgument;
  *out = &(*g_devices)[index];
  return kSuccess;
}
API int nvmlDeviceGetHandleByIndex(unsigned index, Device** out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }
API int nvmlDeviceGetHandleByUUID(const char* uuid, Device** out) {
  return find_device(
      out, [](const Device& device, const void* wanted) { return device.uuid == static_cast<const char*>(wanted); },
      uuid);
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device** out) {
  unsigned domain = 0, bus = 0;
  if (!id || std::sscanf(id, "%x:%x", &domain, &bus) != 2) return kInvalidArgument;
  return find_device(
      out,
      [](const Device& device, const void* wanted) {
        return static_cast<unsigned>(device.index) + 1 == *static_cast<const unsigned*>(wanted);
      },
      &bus);
}
API int nvmlDeviceGetUUID(const Device* device, char* out, unsigned length) {
  CHECK(device);
  return copy_text(device->uuid, out, length);
}
API int nvmlDeviceGetName(const Device* device, char* out, unsigned length) {
  CHECK(device);
  return copy_text(device->name, out, length);
}
API int nvmlDeviceGetIndex(const Device* device, unsigned* index) {
  CHECK(device);
  *index = static_cast<unsigned>(device->index);
  return kSuccess;
}
API int nvmlDeviceGetMinorNumber(const Device* device, unsigned* minor) {
  CHECK(device);
  *minor = static_cast<unsigned>(device->minor);
  return kSuccess;
}
API int nvmlDeviceGetCudaComputeCapability(const Device* device, int* major, int* minor) {
  CHECK(device);
  if (device->cc_major == 0) return kNotSupported;
  *major = device->cc_major;
  *minor = device->cc_minor;
  return kSuccess;
}

namespace {
struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, pci_device_id, subsystem_id;
  char id[32];
};
static_assert(sizeof(PciInfo) == 68);
}  // namespace

API int nvmlDeviceGetPciInfo_v3(const Device* device, PciInfo* out) {
  CHECK(device);
  *out = {};
  out->bus = static_cast<unsigned>(device->index) + 1;
  std::snprintf(out->legacy_id, sizeof out->legacy_id, "0000:%02X:00.0", out->bus);
  std::snprintf(out->id, sizeof out->id, "00000000:%02X:00.0", out->bus);
  return kSuccess;
}
API int nvmlDeviceGetPciInfo_v2(const Device* device, PciInfo* out) { return nvmlDeviceGetPciInfo_v3(device, out); }

namespace {
struct Memory1 {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemory2Version = sizeof(Memory2) | 2u << 24;
}  // namespace

API int nvmlDeviceGetMemoryInfo(const Device* device, Memory1* out) {
  CHECK(device);
  uint64_t used = 0;
  for (const Process& process : running_on(*device)) used += process.usage.used;
  used = std::min(used, device->memory_bytes);
  *out = {device->memory_bytes, device->memory_bytes - used, used};
  return kSuccess;
}
API int nvmlDeviceGetMemoryInfo_v2(const Device* device, Memory2* out) {
  if (!out || out->version != kMemory2Version) return kArgumentVersionMismatch;
  Memory1 memory{};
  if (const int status = nvmlDeviceGetMemoryInfo(device, &memory)) return status;
  *out = {kMemory2Version, memory.total, 0, memory.free, memory.used};
  return kSuccess;
}
API int nvmlDeviceGetUtilizationRates(const Device* device, unsigned out[2]) {
  CHECK(device);
  out[0] = out[1] = 0;
  return kSuccess;
}
API int nvmlDeviceGetPersistenceMode(const Device* device, int* mode) {
  CHECK(device);
  *mode = 1;
  return kSuccess;
}
API int nvmlDeviceSetPersistenceMode(const Device* device, int) {
  CHECK(device);
  return geteuid() == 0 ? kSuccess : kNoPermission;
}

// ---- processes ----

API int nvmlDeviceGetComputeRunningProcesses(const Device* device, unsigned* count, ProcessInfo1* out) {
  return running_processes(device, count, out);
}
API int nvmlDeviceGetComputeRunningProcesses_v2(const Device* device, unsigned* count, ProcessInfo2* out) {
  return running_processes(device, count, out);
}
API int nvmlDeviceGetComputeRunningProcesses_v3(const Device* device, unsigned* count, ProcessInfo2* out) {
  return running_processes(device, count, out);
}
#define NO_PROCESSES(name) \
  API int name(const Device* device, unsigned* count, void*) { return no_processes(device, count); }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
#undef NO_PROCESSES

// ---- accounting ----

namespace {
struct AccountingStats {
  unsigned gpu_utilization, memory_utilization;
  unsigned long long max_memory_usage, time_ms, start_time_us;
  unsigned is_running, reserved[5];
};
static_assert(sizeof(AccountingStats) == 56);
constexpr unsigned kAccountingBuffer = 4000;
}  // namespace

API int nvmlDeviceGetAccountingMode(const Device* device, int* mode) {
  CHECK(device);
  *mode = accounting_is_on();
  return kSuccess;
}
API int nvmlDeviceSetAccountingMode(const Device* device, int mode) {
  CHECK(device);
  const std::string path = node_file("accounting");
  const int file = path.empty() ? -1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return kNoPermission;
  const bool written = ::write(file, mode ? "1\n" : "0\n", 2) == 2;
  ::close(file);
  return written ? kSuccess : kNoPermission;
}
API int nvmlDeviceGetAccountingBufferSize(const Device* device, unsigned* size) {
  CHECK(device);
  *size = kAccountingBuffer;
  return kSuccess;
}
API int nvmlDeviceGetAccountingPids(const Device* device, unsigned* count, unsigned* out) {
  CHECK(device);
  if (!accounting_is_on()) return kNotSupported;
  std::vector<Process> found = processes_of(*device);
  if (found.size() > kAccountingBuffer) found.erase(found.begin(), found.end() - kAccountingBuffer);
  return copy_list(found, count, out, [](const Process& process) { return process.layout.pid; });
}
API int nvmlDeviceGetAccountingStats(const Device* device, unsigned pid, AccountingStats* out) {
  CHECK(device);
  if (!out) return kInvalidArgument;
  if (!accounting_is_on()) return kNotSupported;
  const std::vector<Process> found = processes_of(*device);
  const auto last = std::find_if(found.rbegin(), found.rend(), [&](const Process& p) { return p.layout.pid == pid; });
  if (last == found.rend()) return kNotFound;
  const UsageLayout& layout = last->layout;
  *out = {};
  out->max_memory_usage = last->usage.peak;
  out->start_time_us = layout.start_unix_us;
  out->is_running = last->running;
  // As NVML has it: 0 until the process has ended.
  if (!last->running && layout.end_unix_us > layout.start_unix_us)
    out->time_ms = (layout.end_unix_us - layout.start_unix_us) / 1000;
  return kSuccess;
}
API int nvmlDeviceClearAccountingPids(const Device* device) {
  CHECK(device);
  return geteuid() == 0 ? kSuccess : kNoPermission;
}

// ---- what these devices do not have ----

namespace {
struct FabricInfo {
  unsigned version;
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique;
  unsigned char state;  // 0: no fabric
};
}  // namespace

API int nvmlDeviceGetGpuFabricInfoV(const Device* device, FabricInfo* out) {
  CHECK(device);
  *out = {out->version, {}, kSuccess, 0, 0};
  return kSuccess;
}

#define NOT_SUPPORTED(name)            \
  API int name(const Device* device) { \
    CHECK(device);                     \
    return kNotSupported;              \
  }
NOT_SUPPORTED(nvmlDeviceGetMigMode)
NOT_SUPPORTED(nvmlDeviceGetMaxMigDeviceCount)
NOT_SUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
NOT_SUPPORTED(nvmlDeviceGetNvLinkState)
NOT_SUPPORTED(nvmlDeviceGetNvLinkCapability)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_SUPPORTED(nvmlDeviceGetP2PStatus)
NOT_SUPPORTED(nvmlDeviceGetTemperature)
NOT_SUPPORTED(nvmlDeviceGetPowerUsage)
NOT_SUPPORTED(nvmlDeviceGetClockInfo)
