// Has the stand-ins of a dry run (`shims.py`) executed whatever PATH has become: a module, an activated environment or
// a container image brings its own `mpirun`, `huggingface-cli` or `nvidia-smi`, which would come first.
//
// Part of the library that every program of a dry run loads (start.cpp). Everything here may run between vfork and
// exec: nothing is allocated or locked. What the script names by a relative path is a program of its own, and stays.

#include "programs.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "export.h"

namespace {

using Path = char[4096];

Path g_folder;

using Spawn = int (*)(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const[],
                      char* const[]);

// What is executed in the place of `program`: `place`, where the stand-in lies, or itself.
const char* instead(const char* program, Path& place) {
  if (!*g_folder || !program) return program;
  const char* const slash = std::strrchr(program, '/');
  if (slash && *program != '/') return program;
  const std::size_t length = std::strlen(g_folder);
  if (std::strncmp(program, g_folder, length) == 0 && program[length] == '/') return program;
  const char* const name = slash ? slash + 1 : program;
  const int written = std::snprintf(place, sizeof place, "%s/bin/%s", g_folder, name);
  if (!*name || written >= static_cast<int>(sizeof place)) return program;
  const int error = errno;
  const bool has = access(place, X_OK) == 0;
  errno = error;
  return has ? place : program;
}

int execute(const char* path, char* const arguments[], char* const environment[]) {
  return static_cast<int>(syscall(SYS_execve, path, arguments, environment));
}

template <typename Function>
bool find_next(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  return function != nullptr;
}

int execute_found(const char* program, char* const arguments[], char* const environment[]) {
  Path place;
  int (*real)(const char*, char* const[], char* const[]);
  const char* const path = instead(program, place);
  if (path == place || !find_next(real, "execvpe")) return execute(path, arguments, environment);
  return real(program, arguments, environment);
}

int spawn(const char* name, pid_t* pid, const char* program, const posix_spawn_file_actions_t* actions,
          const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  Path place;
  Spawn real;
  if (!find_next(real, name)) return ENOSYS;
  return real(pid, instead(program, place), actions, attributes, arguments, environment);
}

}  // namespace

void replace_programs(const char* folder) { std::snprintf(g_folder, sizeof g_folder, "%s", folder); }

API int execve(const char* path, char* const arguments[], char* const environment[]) {
  Path place;
  return execute(instead(path, place), arguments, environment);
}
API int execv(const char* path, char* const arguments[]) { return execve(path, arguments, environ); }
API int execvpe(const char* program, char* const arguments[], char* const environment[]) {
  return execute_found(program, arguments, environment);
}
API int execvp(const char* program, char* const arguments[]) { return execute_found(program, arguments, environ); }
API int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                    const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  return spawn("posix_spawn", pid, path, actions, attributes, arguments, environment);
}
API int posix_spawnp(pid_t* pid, const char* program, const posix_spawn_file_actions_t* actions,
                     const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  return spawn("posix_spawnp", pid, program, actions, attributes, arguments, environment);
}
