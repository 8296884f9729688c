// Notes which files the programs of a dry run open for reading, whatever they are written in: an estimate holds as
// long as these stay as they are. What belongs to the system or to an installation of Python is left out.
//
// Part of the library that every program of a dry run loads (start.cpp). A program that calls the kernel by itself is
// not seen. Everything here may run in a signal handler or between fork and exec: nothing is allocated or locked.

#undef _FORTIFY_SOURCE

#include "opened.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "export.h"

namespace {

constexpr int most_paths = 2048;  // of one process
constexpr const char* of_system[] = {"/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib", "/run/", "/bin/"};
constexpr const char* of_installation[] = {"/site-packages/", "/dist-packages/", "/lib/python3", "/lib/python2"};

char g_notes[4096];
std::atomic<std::uint64_t> g_seen[2 * most_paths];
std::atomic<int> g_count{0};

bool is_noteworthy(const char* path) {
  for (const char* const start : of_system)
    if (std::strncmp(path, start, std::strlen(start)) == 0) return false;
  for (const char* const part : of_installation)
    if (std::strstr(path, part)) return false;
  return true;
}

// Whether this is the first time that the process, or the one it was forked from, opens it.
bool is_new(const char* path) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char* at = path; *at; ++at) hash = (hash ^ static_cast<unsigned char>(*at)) * 1099511628211u;
  hash |= 1;
  if (g_count.load(std::memory_order_relaxed) >= most_paths) return false;
  for (std::size_t place = hash % (2 * most_paths);; place = (place + 1) % (2 * most_paths)) {
    std::uint64_t there = 0;
    if (g_seen[place].compare_exchange_strong(there, hash, std::memory_order_relaxed)) {
      g_count.fetch_add(1, std::memory_order_relaxed);
      return true;
    }
    if (there == hash) return false;
  }
}

// The path from the root on, with a NUL behind it; its length with that, or 0.
std::size_t absolute(int folder, const char* path, char (&whole)[8192]) {
  std::size_t length = 0;
  if (*path != '/') {
    if (folder == AT_FDCWD) {
      const long got = syscall(SYS_getcwd, whole, 4096);
      if (got <= 1 || *whole != '/') return 0;
      length = static_cast<std::size_t>(got) - 1;
    } else {
      char link[64];
      std::snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      const ssize_t got = readlink(link, whole, 4096);
      if (got <= 0 || *whole != '/') return 0;
      length = static_cast<std::size_t>(got);
    }
    whole[length++] = '/';
  }
  const std::size_t rest = std::strlen(path);
  if (length + rest + 1 > 4096) return 0;
  std::memcpy(whole + length, path, rest + 1);
  return length + rest + 1;
}

void note(int folder, const char* path, int flags) {
  if (!*g_notes || !path || !*path) return;
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_DIRECTORY | O_CREAT | O_PATH))) return;
  const int error = errno;
  char whole[8192];
  const std::size_t length = absolute(folder, path, whole);
  if (length && is_noteworthy(whole) && is_new(whole)) {
    constexpr int appending = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    const long file = syscall(SYS_openat, AT_FDCWD, g_notes, appending, 0600);
    if (file >= 0) {
      if (syscall(SYS_write, file, whole, length) < 0) *g_notes = '\0';  // no room
      syscall(SYS_close, file);
    }
  }
  errno = error;
}

int opened(int folder, const char* path, int flags, unsigned mode) {
  const int file = static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
  if (file >= 0) note(folder, path, flags);
  return file;
}

using Open = FILE* (*)(const char*, const char*);

FILE* opened(const char* name, const char* path, const char* mode) {
  const Open open = reinterpret_cast<Open>(dlsym(RTLD_NEXT, name));
  FILE* const file = open ? open(path, mode) : nullptr;
  if (file && mode && *mode == 'r' && !std::strchr(mode, '+')) note(AT_FDCWD, path, O_RDONLY);
  return file;
}

constexpr bool has_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

}  // namespace

void note_opened_files(const char* notes) { std::snprintf(g_notes, sizeof g_notes, "%s", notes); }

#define WITH_MODE(call)                               \
  unsigned mode = 0;                                  \
  if (has_mode(flags)) {                              \
    va_list rest;                                     \
    va_start(rest, flags);                            \
    mode = va_arg(rest, unsigned);                    \
    va_end(rest);                                     \
  }                                                   \
  return call

API int open(const char* path, int flags, ...) { WITH_MODE(opened(AT_FDCWD, path, flags, mode)); }
API int open64(const char* path, int flags, ...) { WITH_MODE(opened(AT_FDCWD, path, flags, mode)); }
API int openat(int folder, const char* path, int flags, ...) { WITH_MODE(opened(folder, path, flags, mode)); }
API int openat64(int folder, const char* path, int flags, ...) { WITH_MODE(opened(folder, path, flags, mode)); }
API int __open_2(const char* path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
API int __open64_2(const char* path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
API int __openat_2(int folder, const char* path, int flags) { return opened(folder, path, flags, 0); }
API int __openat64_2(int folder, const char* path, int flags) { return opened(folder, path, flags, 0); }
API FILE* fopen(const char* path, const char* mode) { return opened("fopen", path, mode); }
API FILE* fopen64(const char* path, const char* mode) { return opened("fopen64", path, mode); }
