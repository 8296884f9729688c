// Notes which files the programs of a dry run open for reading, whatever they are written in, and which they look for
// in vain (with a "-" before the path): an estimate holds as long as the ones stay as they are, and the others do not
// appear. What belongs to the system or to an installation of Python is left out.
//
// Part of the library that every program of a dry run loads (start.cpp). A program that calls the kernel by itself is
// not seen. Everything here may run in a signal handler or between fork and exec: nothing is allocated or locked.

#undef _FORTIFY_SOURCE

#include "opened.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
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
constexpr int most_absent = 256;
constexpr const char* of_system[] = {"/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib", "/run/", "/bin/",
                                     "/memfd:"};
constexpr const char* of_installation[] = {"/site-packages/", "/dist-packages/", "/lib/python3", "/lib/python2"};
constexpr const char* of_tools[] = {"/__pycache__", "/__init__.", "/.git/"};

char g_notes[4096];
std::atomic<std::uint64_t> g_seen[2 * most_paths];
std::atomic<int> g_count{0}, g_absent{0};

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

void write_down(const char* text, std::size_t length) {
  constexpr int appending = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const long file = syscall(SYS_openat, AT_FDCWD, g_notes, appending, 0600);
  if (file < 0) return;
  if (syscall(SYS_write, file, text, length) < 0) *g_notes = '\0';  // no room
  syscall(SYS_close, file);
}

void note(int folder, const char* path, int flags) {
  if (!*g_notes || !path || !*path) return;
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_DIRECTORY | O_CREAT | O_PATH))) return;
  const int error = errno;
  char whole[8192];
  const std::size_t length = absolute(folder, path, whole);
  if (length && is_noteworthy(whole) && is_new(whole)) write_down(whole, length);
  errno = error;
}

// A file or folder was looked for that is not there, if that is what `errno` says.
void note_absent(int folder, const char* path) {
  if ((errno != ENOENT && errno != ENOTDIR) || !*g_notes || !path || !*path) return;
  const int error = errno;
  char marked[8193] = "-";
  char(&whole)[8192] = reinterpret_cast<char(&)[8192]>(marked[1]);
  const std::size_t length = g_absent.load(std::memory_order_relaxed) < most_absent ? absolute(folder, path, whole) : 0;
  bool is_of_tool = false;
  if (length)
    for (const char* const part : of_tools) is_of_tool = is_of_tool || std::strstr(whole, part);
  if (length && !is_of_tool && is_noteworthy(whole) && is_new(marked)) {
    g_absent.fetch_add(1, std::memory_order_relaxed);
    write_down(marked, length + 1);
  }
  errno = error;
}

int opened(int folder, const char* path, int flags, unsigned mode) {
  const int file = static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
  if (file >= 0)
    note(folder, path, flags);
  else
    note_absent(folder, path);
  return file;
}

using Open = FILE* (*)(const char*, const char*);

FILE* opened(const char* name, const char* path, const char* mode) {
  const Open open = reinterpret_cast<Open>(dlsym(RTLD_NEXT, name));
  FILE* const file = open ? open(path, mode) : nullptr;
  if (!file) note_absent(AT_FDCWD, path);
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

// The other ways to look for a file: the C library's own function, and a note if there is none.
#define LOOKED_FOR(type, name, parameters, arguments, failed, folder)                \
  API type name parameters {                                                         \
    static type(*real) parameters;                                                   \
    if (!real) real = reinterpret_cast<type(*) parameters>(dlsym(RTLD_NEXT, #name)); \
    if (!real) {                                                                     \
      errno = ENOSYS;                                                                \
      return failed;                                                                 \
    }                                                                                \
    const auto result = real arguments;                                              \
    if (result == failed) note_absent(folder, path);                                 \
    return result;                                                                   \
  }
#define STAT(name, buffer) \
  LOOKED_FOR(int, name, (const char* path, struct buffer* into), (path, into), -1, AT_FDCWD)
#define OLD_STAT(name, buffer) \
  LOOKED_FOR(int, name, (int version, const char* path, struct buffer* into), (version, path, into), -1, AT_FDCWD)
#define STAT_AT(name, buffer)                                                                 \
  LOOKED_FOR(int, name, (int folder, const char* path, struct buffer* into, int flags),       \
             (folder, path, into, flags), -1, folder)
#define ACCESS(name) LOOKED_FOR(int, name, (const char* path, int mode), (path, mode), -1, AT_FDCWD)

STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
OLD_STAT(__xstat, stat)  // of programs built for a C library before 2.33
OLD_STAT(__xstat64, stat64)
OLD_STAT(__lxstat, stat)
OLD_STAT(__lxstat64, stat64)
STAT_AT(fstatat, stat)
STAT_AT(fstatat64, stat64)
LOOKED_FOR(int, statx, (int folder, const char* path, int flags, unsigned mask, struct statx* into),
           (folder, path, flags, mask, into), -1, folder)
ACCESS(access)
ACCESS(eaccess)
ACCESS(euidaccess)
LOOKED_FOR(int, faccessat, (int folder, const char* path, int mode, int flags), (folder, path, mode, flags), -1, folder)
LOOKED_FOR(DIR*, opendir, (const char* path), (path), nullptr, AT_FDCWD)
