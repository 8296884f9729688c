// NCCL for one rank of many: communicators know their size, and every other rank has what this one has. What NCCL
// allocates for its buffers is not known, and this is said.

#include <cstring>

#include "cuda_types.h"
#include "export.h"
#include "process.h"
#include "small_copies.h"

using namespace gpumem;

namespace {

constexpr int kOk = 0;

struct UniqueId {
  char bytes[128];
};
struct Communicator {
  int size = 1, rank = 0, device = 0;
};

int make(Communicator** out, int size, int rank) {
  if (!touch_device()) return 1;  // unhandled CUDA error
  if (size > 1) note_invented("nccl buffers");
  {
    Guard world;
    world->note_communicator(size);
  }
  *out = new Communicator{size, rank, current_device()};
  return kOk;
}

}  // namespace

API int ncclGetVersion(int* version) {
  *version = 23007;
  return kOk;
}
API const char* ncclGetErrorString(int status) { return status == kOk ? "no error" : "unhandled cuda error"; }
API const char* ncclGetLastError(Communicator*) { return ""; }
API int ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof *id);
  return kOk;
}
API int ncclCommGetUniqueId(Communicator*, UniqueId* id) { return ncclGetUniqueId(id); }
API int ncclCommInitRank(Communicator** out, int size, UniqueId, int rank) { return make(out, size, rank); }
API int ncclCommInitRankConfig(Communicator** out, int size, UniqueId, int rank, void*) {
  return make(out, size, rank);
}
API int ncclCommInitRankScalable(Communicator** out, int size, int rank, int, UniqueId*, void*) {
  return make(out, size, rank);
}
API int ncclCommInitAll(Communicator** out, int count, const int*) {
  for (int rank = 0; rank < count; ++rank)
    if (const int status = make(&out[rank], count, rank)) return status;
  return kOk;
}
API int ncclCommSplit(Communicator* parent, int color, int, Communicator** out, void*) {
  constexpr int no_color = -1;
  if (color == no_color) return *out = nullptr, kOk;
  return make(out, parent->size, parent->rank);
}
API int ncclCommShrink(Communicator* parent, int*, int excluded, Communicator** out, void*, int) {
  return make(out, parent->size - excluded, parent->rank);
}
API int ncclCommGrow(Communicator* parent, int size, const UniqueId*, int rank, Communicator** out, void*) {
  return make(out, size, rank < 0 && parent ? parent->rank : rank);
}
API int ncclCommDestroy(Communicator* communicator) {
  delete communicator;
  return kOk;
}
API int ncclCommAbort(Communicator* communicator) { return ncclCommDestroy(communicator); }
API int ncclCommCount(const Communicator* communicator, int* count) {
  *count = communicator->size;
  return kOk;
}
API int ncclCommCuDevice(const Communicator* communicator, int* device) {
  *device = communicator->device;
  return kOk;
}
API int ncclCommUserRank(const Communicator* communicator, int* rank) {
  *rank = communicator->rank;
  return kOk;
}
API int ncclCommGetAsyncError(Communicator*, int* status) {
  *status = kOk;
  return kOk;
}
API int ncclCommRegister(const Communicator*, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return kOk;
}
API int ncclCommWindowRegister(Communicator*, void* buffer, size_t, void** window, int) {
  *window = buffer;
  return kOk;
}
API int ncclWinGetUserPtr(Communicator*, void* window, void** out) {
  *out = window;
  return kOk;
}
API int ncclCommMemStats(Communicator*, int, uint64_t* value) {
  *value = 0;
  return kOk;
}
API int cudaMalloc(void** out, size_t bytes);
API int cudaFree(void* pointer);
API int ncclMemAlloc(void** out, size_t bytes) { return cudaMalloc(out, bytes) ? 1 : kOk; }
API int ncclMemFree(void* pointer) { return cudaFree(pointer) ? 1 : kOk; }
API int ncclRedOpCreatePreMulSum(int* operation, void*, int, int, Communicator*) {
  constexpr int first_own_operation = 5;
  *operation = first_own_operation;
  return kOk;
}

namespace {

// ncclDataType_t; what it lacks here is not known to be read back as a number.
Element element_of(int type) {
  switch (type) {
    case 2:
    case 3: return Element::int32;
    case 4:
    case 5: return Element::int64;
    case 7: return Element::float32;
    case 8: return Element::float64;
    default: return Element::other;
  }
}

size_t bytes_of(int type) {
  switch (type) {
    case 2:
    case 3:
    case 7: return 4;  // int32, uint32, float32
    case 4:
    case 5:
    case 8: return 8;  // int64, uint64, float64
    case 6:
    case 9: return 2;  // float16, bfloat16
    default: return 1;  // int8, uint8, float8
  }
}

int reduce(const void* sent, void* received, size_t count, int type, int operation, const Communicator* communicator) {
  constexpr int sum = 0, product = 1;
  if (!received) return kOk;
  forward_copy(received, sent, count * bytes_of(type));
  if (operation == sum) scale_copy(received, count, element_of(type), communicator->size);
  if (operation == product) forget_copies();
  return kOk;
}

}  // namespace

API int ncclAllReduce(const void* sent, void* received, size_t count, int type, int operation,
                      Communicator* communicator, void*) {
  return reduce(sent, received, count, type, operation, communicator);
}
API int ncclReduce(const void* sent, void* received, size_t count, int type, int operation, int,
                   Communicator* communicator, void*) {
  return reduce(sent, received, count, type, operation, communicator);
}
API int ncclAllGather(const void* sent, void* received, size_t count, int type, Communicator* communicator, void*) {
  const size_t bytes = count * bytes_of(type);
  for (int rank = 0; rank < communicator->size; ++rank)
    forward_copy(static_cast<char*>(received) + static_cast<size_t>(rank) * bytes, sent, bytes);
  return kOk;
}
API int ncclBroadcast(const void* sent, void* received, size_t count, int type, int, Communicator*, void*) {
  if (sent) forward_copy(received, sent, count * bytes_of(type));
  return kOk;
}
NO_OP(ncclBcast)
API int ncclGroupSimulateEnd(void*) { return kOk; }
NO_OP(ncclGroupStart)
NO_OP(ncclGroupEnd)
NO_OP(ncclCommFinalize)
NO_OP(ncclCommResume)
NO_OP(ncclCommRevoke)
NO_OP(ncclCommSuspend)
NO_OP(ncclCommDeregister)
NO_OP(ncclCommWindowDeregister)
NO_OP(ncclRedOpDestroy)
NO_OP(ncclAlltoAll)
NO_OP(ncclGather)
NO_OP(ncclScatter)
NO_OP(ncclReduceScatter)
NO_OP(ncclSend)
NO_OP(ncclRecv)
NO_OP(ncclSignal)
NO_OP(ncclPutSignal)
NO_OP(ncclWaitSignal)

// Symmetric memory between GPUs is not there.
#define NOT_SUPPORTED(name)          \
  API int name() {                   \
    constexpr int invalid_usage = 5; \
    return invalid_usage;            \
  }
NOT_SUPPORTED(ncclDevCommCreate)
NOT_SUPPORTED(ncclDevCommDestroy)
NOT_SUPPORTED(ncclGetLsaMultimemDevicePointer)
NOT_SUPPORTED(ncclGetPeerDevicePointer)
