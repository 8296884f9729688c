#include "small_copies.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace gpumem {
namespace {

constexpr size_t kLargest = 64 * 1024;  // bytes of one copy
constexpr size_t kMost = 256;           // copies at one time

// Start -> contents; ranges never overlap.
using Copies = std::map<uint64_t, std::vector<char>>;

std::mutex g_lock;
std::atomic<bool> g_any{false};

Copies& copies() {
  static auto* const all = new Copies;
  return *all;
}

// The copy that holds all of a range.
Copies::iterator find(uint64_t start, size_t bytes) {
  auto next = copies().upper_bound(start);
  if (next == copies().begin()) return copies().end();
  const auto found = std::prev(next);
  const uint64_t offset = start - found->first;
  return offset <= found->second.size() && bytes <= found->second.size() - offset ? found : copies().end();
}

// A range that is written anew: copies within it, or partly in it, are no longer what they were.
void drop(uint64_t start, size_t bytes) {
  auto entry = copies().upper_bound(start);
  if (entry != copies().begin()) --entry;
  while (entry != copies().end() && entry->first < start + bytes)
    entry = entry->first + entry->second.size() > start ? copies().erase(entry) : std::next(entry);
}

void store(uint64_t start, const char* contents, size_t bytes) {
  if (const auto whole = find(start, bytes); whole != copies().end()) {
    std::memmove(whole->second.data() + (start - whole->first), contents, bytes);
    return;
  }
  drop(start, bytes);
  if (bytes > kLargest || copies().size() >= kMost) return;
  copies()[start].assign(contents, contents + bytes);
  g_any = true;
}

template <typename Number>
void scale(char* contents, size_t count, int factor) {
  for (size_t i = 0; i < count; ++i) {
    Number number;
    std::memcpy(&number, contents + i * sizeof number, sizeof number);
    // A collective wraps around as well; unsigned, so that it may.
    if constexpr (std::is_integral_v<Number>)
      number = static_cast<Number>(static_cast<uint64_t>(number) * static_cast<uint64_t>(factor));
    else
      number *= static_cast<Number>(factor);
    std::memcpy(contents + i * sizeof number, &number, sizeof number);
  }
}

size_t size_of(Element element) { return element == Element::int64 || element == Element::float64 ? 8 : 4; }

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

void remember_copy(const void* on_device, const void* host, size_t bytes) {
  if (bytes > kLargest && !g_any) return;
  std::lock_guard<std::mutex> lock(g_lock);
  store(address_of(on_device), static_cast<const char*>(host), bytes);
}

void forward_copy(void* to, const void* from, size_t bytes) {
  if (!g_any || to == from) return;
  std::lock_guard<std::mutex> lock(g_lock);
  const auto source = find(address_of(from), bytes);
  if (source == copies().end()) return drop(address_of(to), bytes);
  const char* const first = source->second.data() + (address_of(from) - source->first);
  const std::vector<char> contents(first, first + bytes);
  store(address_of(to), contents.data(), bytes);
}

bool recall_copy(void* host, const void* on_device, size_t bytes) {
  if (!g_any) return false;
  std::lock_guard<std::mutex> lock(g_lock);
  const auto found = find(address_of(on_device), bytes);
  if (found == copies().end()) return false;
  std::memcpy(host, found->second.data() + (address_of(on_device) - found->first), bytes);
  return true;
}

void forget_copies() {
  if (!g_any) return;
  std::lock_guard<std::mutex> lock(g_lock);
  copies().clear();
  g_any = false;
}

void scale_copy(void* on_device, size_t count, Element element, int factor) {
  if (!g_any) return;
  std::lock_guard<std::mutex> lock(g_lock);
  const uint64_t start = address_of(on_device);
  const size_t bytes = count * size_of(element);
  const auto found = find(start, bytes);
  if (element == Element::other || found == copies().end()) return drop(start, bytes);
  char* const contents = found->second.data() + (start - found->first);
  switch (element) {
    case Element::int32: return scale<int32_t>(contents, count, factor);
    case Element::int64: return scale<int64_t>(contents, count, factor);
    case Element::float32: return scale<float>(contents, count, factor);
    default: return scale<double>(contents, count, factor);
  }
}

}  // namespace gpumem
