// Publishes what this process uses, and sums up what the other processes of the pretend node use.
#pragma once

#include <string>

#include "usage_layout.h"
#include "world.h"

namespace gpumem {

class UsageFile {
 public:
  // Null when NODE/procs is no folder. The file itself is made at the first use of a device.
  static UsageFile* under(const char* node_dir);

  void update(const World& world);
  uint64_t used_by_others(const std::string& uuid) const;
  // In a forked child: the mapped file is the parent's.
  void forget();
  void end();

 private:
  explicit UsageFile(std::string folder) : folder_(std::move(folder)) {}
  bool open();

  std::string folder_;
  UsageLayout* layout_ = nullptr;
  bool refused_ = false;
};

}  // namespace gpumem
