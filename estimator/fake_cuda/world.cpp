#include "world.h"

#include <algorithm>

namespace gpumem {

void AddressSpace::clear() {
  taken_.clear();
  holes_ = {{window_.start, window_.bytes}};
}

std::optional<uint64_t> AddressSpace::take(uint64_t bytes) {
  const auto hole =
      std::find_if(holes_.begin(), holes_.end(), [&](const auto& candidate) { return candidate.second >= bytes; });
  if (bytes == 0 || hole == holes_.end()) return std::nullopt;
  const auto [start, size] = *hole;
  holes_.erase(hole);
  if (size > bytes) holes_.emplace(start + bytes, size - bytes);
  taken_.emplace(start, bytes);
  return start;
}

uint64_t AddressSpace::give(uint64_t start) {
  const auto range = taken_.find(start);
  if (range == taken_.end()) return 0;
  const uint64_t bytes = range->second;
  taken_.erase(range);
  auto hole = holes_.emplace(start, bytes).first;
  const auto next = std::next(hole);
  if (next != holes_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole != holes_.begin()) {
    const auto previous = std::prev(hole);
    if (previous->first + previous->second == hole->first) {
      previous->second += hole->second;
      holes_.erase(hole);
    }
  }
  return bytes;
}

std::optional<Range> AddressSpace::find(uint64_t address) const {
  auto next = taken_.upper_bound(address);
  if (next == taken_.begin()) return std::nullopt;
  const Range range{std::prev(next)->first, std::prev(next)->second};
  if (!range.holds(address)) return std::nullopt;
  return range;
}

int World::add_device(DeviceSpec spec, Range window) {
  if (devices.size() >= kMaxDevices) return -1;
  const uint64_t quarter = window.bytes / 4;  // one for cudaMalloc, three for reserved addresses
  Device device;
  device.spec = std::move(spec);
  device.memory = AddressSpace({window.start, quarter});
  device.virtuals = AddressSpace({window.start + quarter, window.bytes - quarter});
  device.pool.device = static_cast<int>(devices.size());
  devices.reserve(kMaxDevices);  // pointers to pools stay valid
  devices.push_back(std::move(device));
  return static_cast<int>(devices.size()) - 1;
}

int World::device_of(uint64_t address) const {
  for (size_t i = 0; i < devices.size(); ++i)
    if (devices[i].memory.window().holds(address) || devices[i].virtuals.window().holds(address))
      return static_cast<int>(i);
  return -1;
}

uint64_t World::free_bytes(int ordinal) const {
  const Device& device = devices[ordinal];
  const uint64_t taken = device.used + (used_by_others ? used_by_others(device.spec) : 0);
  return taken < device.spec.total_bytes ? device.spec.total_bytes - taken : 0;
}

bool World::charge(Device& device, uint64_t bytes) {
  if (enforce_limit && bytes > free_bytes(static_cast<int>(&device - devices.data()))) return false;
  device.used += bytes;
  device.peak = std::max(device.peak, device.used);
  if (changed) changed(*this);
  return true;
}

void World::refund(Device& device, uint64_t bytes) {
  device.used -= std::min(bytes, device.used);
  if (changed) changed(*this);
}

bool World::open_context(int ordinal) {
  Device& device = devices[ordinal];
  if (device.context) return true;
  device.context = charge(device, device.spec.context_bytes);
  return device.context;
}

void World::close_context(int ordinal) {
  Device& device = devices[ordinal];
  const bool had_context = device.context;
  device.context = false;
  device.memory.clear();
  if (had_context) refund(device, device.used);
}

uint64_t World::allocate(int ordinal, uint64_t bytes) {
  Device& device = devices[ordinal];
  const uint64_t rounded = round_up(bytes, kGranule);
  if (rounded < bytes || !charge(device, rounded)) return 0;
  const auto address = device.memory.take(rounded);
  if (!address) refund(device, rounded);
  return address.value_or(0);
}

uint64_t World::allocate_from(Pool& pool, uint64_t bytes) {
  Device& device = devices[pool.device];
  const uint64_t rounded = round_up(std::max<uint64_t>(bytes, 1), kPoolGranule);
  const uint64_t needed = round_up(pool.used + rounded, kGranule);
  if (rounded < bytes) return 0;
  if (needed > pool.reserved) {
    if (!charge(device, needed - pool.reserved)) return 0;
    pool.reserved = needed;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  }
  const auto address = device.memory.take(rounded);
  if (!address) return 0;
  pool.used += rounded;
  pool.used_high = std::max(pool.used_high, pool.used);
  pooled_[*address] = &pool;
  return *address;
}

bool World::release(uint64_t address) {
  const int ordinal = device_of(address);
  if (ordinal < 0) return false;
  const uint64_t bytes = devices[ordinal].memory.give(address);
  if (bytes == 0) return false;
  const auto pooled = pooled_.find(address);
  if (pooled == pooled_.end()) {
    refund(devices[ordinal], bytes);
    return true;
  }
  Pool& pool = *pooled->second;
  pooled_.erase(pooled);
  pool.used -= bytes;
  if (pool.reserved > pool.threshold) trim(pool, pool.threshold);
  return true;
}

void World::trim(Pool& pool, uint64_t keep) {
  const uint64_t target = std::max(round_up(pool.used, kGranule), keep);
  if (target >= pool.reserved) return;
  refund(devices[pool.device], pool.reserved - target);
  pool.reserved = target;
}

std::optional<Range> World::allocation_at(uint64_t address) const {
  const int ordinal = device_of(address);
  if (ordinal < 0) return std::nullopt;
  const Device& device = devices[ordinal];
  if (auto range = device.memory.find(address)) return range;
  auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return device.virtuals.find(address);
  const Range mapped{std::prev(next)->first, std::prev(next)->second.bytes};
  if (mapped.holds(address)) return mapped;
  return device.virtuals.find(address);
}

uint64_t World::reserve_addresses(int ordinal, uint64_t bytes) {
  const uint64_t rounded = round_up(bytes, kGranule);
  return rounded < bytes ? 0 : devices[ordinal].virtuals.take(rounded).value_or(0);
}

bool World::free_addresses(uint64_t address) {
  const int ordinal = device_of(address);
  return ordinal >= 0 && devices[ordinal].virtuals.give(address) > 0;
}

uint64_t World::create_physical(int ordinal, uint64_t bytes) {
  if (!charge(devices[ordinal], bytes)) return 0;
  physicals_[next_physical_] = {ordinal, bytes, 1};
  return next_physical_++;
}

bool World::retain_physical(uint64_t handle) {
  const auto found = physicals_.find(handle);
  if (found == physicals_.end()) return false;
  ++found->second.references;
  return true;
}

bool World::release_physical(uint64_t handle) {
  const auto found = physicals_.find(handle);
  if (found == physicals_.end()) return false;
  if (--found->second.references == 0) {
    refund(devices[found->second.device], found->second.bytes);
    physicals_.erase(found);
  }
  return true;
}

bool World::map_physical(uint64_t address, uint64_t bytes, uint64_t handle) {
  if (device_of(address) < 0 || mappings_.count(address) || !retain_physical(handle)) return false;
  mappings_[address] = {bytes, handle};
  return true;
}

bool World::unmap(uint64_t address, uint64_t bytes) {
  auto mapping = mappings_.lower_bound(address);
  bool any = false;
  while (mapping != mappings_.end() && mapping->first - address < bytes) {
    release_physical(mapping->second.handle);
    mapping = mappings_.erase(mapping);
    any = true;
  }
  return any;
}

uint64_t World::physical_at(uint64_t address) const {
  auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return 0;
  const auto& [start, mapping] = *std::prev(next);
  return address - start < mapping.bytes ? mapping.handle : 0;
}

int World::device_of_physical(uint64_t handle) const {
  const auto found = physicals_.find(handle);
  return found == physicals_.end() ? -1 : found->second.device;
}

void World::log(EventKind kind, uint64_t address, uint64_t bytes) {
  if (events_.size() >= kMaxEvents) {
    note_invented("event log is full");
    return;
  }
  events_.push_back({interval_, static_cast<uint32_t>(kind), address, bytes});
}

void World::forget_usage() {
  for (Device& device : devices) {
    device.memory.clear();
    device.virtuals.clear();
    device.context = false;
    device.used = device.peak = 0;
    device.pool = {device.pool.device, 0, 0, 0, 0, 0};
  }
  pooled_.clear();
  physicals_.clear();
  mappings_.clear();
  events_.clear();
}

}  // namespace gpumem
