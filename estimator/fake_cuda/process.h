// The one world of this process, its lock, and what threads share.
#pragma once

#include "world.h"

namespace gpumem {

// Holds the lock of the world. Not recursive.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  World* operator->() const;
  World& operator*() const;
};

// For reading what never changes once the devices are added: their number, specs and windows.
const World& devices_of_process();

int& current_device();  // per thread, an ordinal
int cuda_version();     // as CUDA writes it: 13000 for 13.0
void set_cuda_version(int version);
int cudnn_version();  // as cuDNN writes it: 92400 for 9.24.0
void set_cudnn_version(int version);

// Makes the context of the current device; false: no such device, or no room.
bool touch_device();
inline bool on_device(const void* pointer) {
  return devices_of_process().device_of(reinterpret_cast<uint64_t>(pointer)) >= 0;
}

void note_invented(const char* what);
void note_library(const char* name);
void note_convolution(uint64_t largest_workspace);
// How long the plans of cuDNN that this thread has executed are taken to have run, milliseconds.
double& plans_ran_ms();
void log_event(EventKind kind, const void* address, uint64_t bytes);

// Where the live use of this process is published: a file under NODE/procs, made at the first use of a device.
// False when there is no such folder.
bool publish_under(const char* node_dir);

}  // namespace gpumem
