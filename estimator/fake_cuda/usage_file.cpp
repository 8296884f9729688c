#include "usage_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "usage_scan.h"

namespace gpumem {
namespace {

uint64_t now_us() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

// Other processes read the file while we write it.
void store(uint64_t& place, uint64_t value) { __atomic_store_n(&place, value, __ATOMIC_RELAXED); }
uint64_t load(const uint64_t& place) { return __atomic_load_n(&place, __ATOMIC_RELAXED); }

UsageFile* g_at_exit = nullptr;

}  // namespace

UsageFile* UsageFile::under(const char* node_dir) {
  if (!node_dir || !*node_dir) return nullptr;
  std::string folder = std::string(node_dir) + "/procs";
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return nullptr;
  return new UsageFile(std::move(folder));
}

bool UsageFile::open() {
  if (layout_ || refused_) return layout_ != nullptr;
  refused_ = true;  // one try: a node that cannot be written to must not slow the job down
  const uint64_t ticks = start_ticks_of(getpid());
  const std::string path = folder_ + "/" + std::to_string(getpid()) + "-" + std::to_string(ticks);
  // The folder is writable by all: never follow a link, never write into somebody else's file.
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (file < 0) return false;
  struct stat status{};
  void* memory = MAP_FAILED;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() && status.st_nlink == 1 &&
      fchmod(file, 0644) == 0 && ftruncate(file, sizeof(UsageLayout)) == 0)
    memory = mmap(nullptr, sizeof(UsageLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return false;
  layout_ = static_cast<UsageLayout*>(memory);
  refused_ = false;
  if (std::memcmp(layout_->magic, kUsageMagic, sizeof kUsageMagic) != 0) layout_->start_unix_us = now_us();
  layout_->pid = static_cast<uint32_t>(getpid());
  layout_->starttime_ticks = ticks;
  layout_->end_unix_us = 0;
  std::memcpy(layout_->magic, kUsageMagic, sizeof kUsageMagic);
  if (!g_at_exit)
    std::atexit([] {
      if (g_at_exit) g_at_exit->end();
    });
  g_at_exit = this;
  return true;
}

void UsageFile::update(const World& world) {
  if (!open()) return;
  for (size_t i = 0; i < world.devices.size(); ++i) {
    UsageOfDevice& entry = layout_->devices[i];
    const Device& device = world.devices[i];
    std::snprintf(entry.uuid, sizeof entry.uuid, "%s", device.spec.uuid.c_str());
    store(entry.used, device.used);
    // The file outlives an exec: the same process may have used more before.
    store(entry.peak, std::max(load(entry.peak), device.peak));
  }
  layout_->n_devices = static_cast<uint32_t>(world.devices.size());
}

uint64_t UsageFile::used_by_others(const std::string& uuid) const {
  uint64_t sum = 0;
  scan_usage(folder_.c_str(), [&](const UsageLayout& other) {
    if (other.pid == static_cast<uint32_t>(getpid())) return;
    const UsageOfDevice* usage = usage_of(other, uuid);
    if (usage && usage->used && is_running(other)) sum += usage->used;
  });
  return sum;
}

void UsageFile::forget() {
  if (layout_) munmap(layout_, sizeof(UsageLayout));
  layout_ = nullptr;
  refused_ = false;
  g_at_exit = nullptr;
}

void UsageFile::end() {
  if (!layout_) return;
  for (UsageOfDevice& device : layout_->devices) store(device.used, 0);
  store(layout_->end_unix_us, now_us());
}

}  // namespace gpumem
