// NVRTC: compiles nothing, and hands back an empty image that the fake driver accepts.

#include <cstring>

#include "export.h"
#include "process.h"

using namespace gpumem;

namespace {

constexpr int kOk = 0;
constexpr size_t kImageBytes = 8;

struct Program {
  std::set<std::string> names;  // kept: callers hold pointers to them
};

int image_bytes(size_t* bytes) {
  *bytes = kImageBytes;
  return kOk;
}
int empty_image(char* out) {
  std::memset(out, 0, kImageBytes);
  return kOk;
}

}  // namespace

API int nvrtcVersion(int* major, int* minor) {
  *major = cuda_version() / 1000;
  *minor = cuda_version() % 1000 / 10;
  return kOk;
}
API const char* nvrtcGetErrorString(int) { return "NVRTC status"; }
API int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return kOk;
}
API int nvrtcGetSupportedArchs(int* out) {
  const World& world = devices_of_process();
  *out = world.devices.empty() ? 80 : world.devices[0].spec.cc_major * 10 + world.devices[0].spec.cc_minor;
  return kOk;
}
API int nvrtcCreateProgram(Program** out, const char*, const char*, int, const char* const*, const char* const*) {
  *out = new Program;
  return kOk;
}
API int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kOk;
}
API int nvrtcAddNameExpression(Program* program, const char* name) {
  program->names.insert(name);
  return kOk;
}
API int nvrtcGetLoweredName(Program* program, const char* name, const char** out) {
  *out = program->names.insert(name).first->c_str();
  return kOk;
}
NO_OP(nvrtcCompileProgram)
API int nvrtcGetCUBINSize(Program*, size_t* bytes) { return image_bytes(bytes); }
API int nvrtcGetCUBIN(Program*, char* out) { return empty_image(out); }
API int nvrtcGetPTXSize(Program*, size_t* bytes) { return image_bytes(bytes); }
API int nvrtcGetPTX(Program*, char* out) { return empty_image(out); }
API int nvrtcGetProgramLogSize(Program*, size_t* bytes) {
  *bytes = 1;
  return kOk;
}
API int nvrtcGetProgramLog(Program*, char* out) {
  *out = '\0';
  return kOk;
}
