#include "process.h"

#include <pthread.h>
#include <sys/mman.h>

#include <mutex>

#include "usage_file.h"

namespace gpumem {
namespace {

// Never destroyed: calls may come from other libraries' destructors.
struct Process {
  std::mutex mutex;
  World world;
  UsageFile* usage = nullptr;
};

Process& process() {
  static Process* const instance = [] {
    auto* made = new Process;
    // A fork while another thread holds the lock must not leave the child with a locked world.
    pthread_atfork([] { process().mutex.lock(); }, [] { process().mutex.unlock(); },
                   [] {
                     Process& child = process();
                     child.world.forget_usage();
                     if (child.usage) child.usage->forget();
                     child.mutex.unlock();
                   });
    return made;
  }();
  return *instance;
}

thread_local int t_current_device = 0;
thread_local double t_plans_ran_ms = 0;
thread_local int t_touched = -1;  // the device whose context this thread last saw
int g_cuda_version = 13000;
int g_cudnn_version = 92400;

}  // namespace

Guard::Guard() { process().mutex.lock(); }
Guard::~Guard() { process().mutex.unlock(); }
World* Guard::operator->() const { return &process().world; }
World& Guard::operator*() const { return process().world; }

const World& devices_of_process() { return process().world; }
int& current_device() { return t_current_device; }
int cuda_version() { return g_cuda_version; }
void set_cuda_version(int version) { g_cuda_version = version; }
int cudnn_version() { return g_cudnn_version; }
void set_cudnn_version(int version) { g_cudnn_version = version; }

double& plans_ran_ms() { return t_plans_ran_ms; }

bool touch_device() {
  const int device = t_current_device;
  const World& world = devices_of_process();
  if (!world.has_device(device)) return false;
  if (t_touched == device && world.devices[device].context) return true;
  Guard guard;
  if (!guard->open_context(device)) return false;
  t_touched = device;
  return true;
}

void note_invented(const char* what) {
  Guard guard;
  guard->note_invented(what);
}

void note_library(const char* name) {
  Guard guard;
  guard->note_library(name);
}

void note_convolution(uint64_t largest_workspace) {
  Guard guard;
  guard->note_convolution(largest_workspace);
}

void log_event(EventKind kind, const void* address, uint64_t bytes) {
  Guard guard;
  guard->log(kind, reinterpret_cast<uint64_t>(address), bytes);
}

bool publish_under(const char* node_dir) {
  Guard guard;
  Process& self = process();
  if (!self.usage) self.usage = UsageFile::under(node_dir);
  if (!self.usage) return false;
  guard->changed = [](const World& world) { process().usage->update(world); };
  guard->used_by_others = [](const DeviceSpec& spec) { return process().usage->used_by_others(spec.uuid); };
  return true;
}

}  // namespace gpumem
