// The CUDA runtime (libcudart): streams, events, capture and graphs.

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>

#include "runtime.h"

using namespace gpumem;

// ---- streams, events, capture ----

namespace {

struct Graph;

std::atomic<bool> g_collectives_held{false};

bool is_watchdog_of_nccl() {
  thread_local const bool is = [] {
    char name[16] = "";
    return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && std::strcmp(name, "pt_nccl_watchdg") == 0;
  }();
  return is;
}

struct Stream {
  int device = 0, priority = 0;
  unsigned flags = 0;
  Graph* capturing = nullptr;
  unsigned long long capture_id = 0;
  bool held = false;      // what is recorded now stays undone ...
  uint64_t releases = 0;  // ... until this has grown
};

struct UserObject {
  void* pointer;
  void (*destroy)(void*);
  std::atomic<unsigned> references;
};

struct Graph {
  std::vector<UserObject*> objects;
};

struct TimedEvent {
  timespec recorded{};
  double plans_ran_ms = 0;  // by then
  const Stream* stream = nullptr;
  uint64_t release = 0;  // of the stream, that lets the event be done
  bool done() const { return !stream || stream->releases >= release; }
};

constexpr uint64_t kPerThreadStream = 2;

// The handles 0, 1 and 2 name the default streams of the current device.
Stream& stream_of(Stream* handle) {
  static Stream* const defaults = new Stream[kMaxDevices];
  return address_of(handle) <= kPerThreadStream ? defaults[current_device()] : *handle;
}

void release_object(UserObject* object, unsigned count) {
  if (object->references.fetch_sub(count) > count) return;
  if (object->destroy) object->destroy(object->pointer);
  delete object;
}

}  // namespace

API int cudaStreamCreateWithPriority(Stream** out, unsigned flags, int priority) {
  if (const int status = ready()) return status;
  *out = new Stream{current_device(), priority, flags};
  return kSuccess;
}
API int cudaStreamCreateWithFlags(Stream** out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
API int cudaStreamCreate(Stream** out) { return cudaStreamCreateWithPriority(out, 0, 0); }
API int cudaStreamDestroy(Stream* stream) {
  if (address_of(stream) > kPerThreadStream) delete stream;
  return kSuccess;
}
NO_OP(cudaStreamSynchronize)
NO_OP(cudaStreamQuery)
NO_OP(cudaStreamWaitEvent)
NO_OP(cudaStreamAttachMemAsync)
NO_OP(cudaStreamCopyAttributes)
NO_OP(cudaStreamSetAttribute)
API int cudaStreamGetPriority(Stream* stream, int* priority) {
  *priority = stream_of(stream).priority;
  return kSuccess;
}
API int cudaStreamGetFlags(Stream* stream, unsigned* flags) {
  *flags = stream_of(stream).flags;
  return kSuccess;
}
API int cudaStreamGetDevice(Stream* stream, int* ordinal) {
  *ordinal = address_of(stream) <= kPerThreadStream ? current_device() : stream->device;
  return kSuccess;
}
API int cudaStreamGetId(Stream* stream, unsigned long long* id) {
  *id = address_of(stream);
  return kSuccess;
}
// Everything before has been done: the function runs at once.
API int cudaLaunchHostFunc(Stream*, void (*function)(void*), void* argument) {
  function(argument);
  return kSuccess;
}
API int cudaStreamAddCallback(Stream* stream, void (*callback)(Stream*, int, void*), void* argument, unsigned) {
  callback(stream, kSuccess, argument);
  return kSuccess;
}

API int cudaEventCreateWithFlags(TimedEvent** out, unsigned) {
  if (const int status = ready()) return status;
  *out = new TimedEvent;
  return kSuccess;
}
API int cudaEventCreate(TimedEvent** out) { return cudaEventCreateWithFlags(out, 0); }
API int cudaEventDestroy(TimedEvent* event) {
  delete event;
  return kSuccess;
}
API int cudaEventRecord(TimedEvent* event, Stream* handle) {
  clock_gettime(CLOCK_MONOTONIC, &event->recorded);
  event->plans_ran_ms = plans_ran_ms();
  const Stream& stream = stream_of(handle);
  event->stream = stream.held ? &stream : nullptr;
  event->release = stream.releases + 1;
  return kSuccess;
}
API int cudaEventRecordWithFlags(TimedEvent* event, Stream* stream, unsigned) { return cudaEventRecord(event, stream); }
API void gpumem_hold_collectives(int held) { g_collectives_held = held != 0; }

// NCCL's watchdog of PyTorch lets go of a collective's tensors when it finds its event complete, at some time of
// its own. It is told to wait until the tracer says so, that a trace does not depend on the machine's speed.
API int cudaEventQuery(TimedEvent* event) {
  const bool waits = g_collectives_held && is_watchdog_of_nccl();
  return event->done() && !waits ? kSuccess : kNotReady;
}
NO_OP(cudaEventSynchronize)
// Everything is done at once, unless a test holds a stream: then its events stay pending until it lets go.
API void gpumem_hold_stream(Stream* handle, int hold) {
  Stream& stream = stream_of(handle);
  if (stream.held && !hold) ++stream.releases;
  stream.held = hold != 0;
}
// Wall time, and never zero: scripts divide by it. Where plans of cuDNN ran, the time that they are taken to need:
// PyTorch chooses one by it (cudnn.benchmark), and must choose the same on a busy machine.
API int cudaEventElapsedTime(float* milliseconds, TimedEvent* start, TimedEvent* end) {
  if (end->plans_ran_ms > start->plans_ran_ms) {
    *milliseconds = static_cast<float>(end->plans_ran_ms - start->plans_ran_ms);
    return kSuccess;
  }
  const double elapsed = static_cast<double>(end->recorded.tv_sec - start->recorded.tv_sec) * 1e3 +
                         static_cast<double>(end->recorded.tv_nsec - start->recorded.tv_nsec) * 1e-6;
  *milliseconds = std::max(static_cast<float>(elapsed), 1e-3f);
  return kSuccess;
}
API int cudaEventElapsedTime_v2(float* milliseconds, TimedEvent* start, TimedEvent* end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}
API int cudaIpcGetEventHandle(IpcHandle* handle, TimedEvent*) {
  std::memset(handle, 0, sizeof *handle);
  return kSuccess;
}
API int cudaIpcOpenEventHandle(TimedEvent** out, IpcHandle) { return cudaEventCreateWithFlags(out, 0); }

namespace {

enum CaptureStatus { kCaptureNone = 0, kCaptureActive = 1 };

int begin_capture(Stream* handle, Graph* graph) {
  static std::atomic<unsigned long long> captures{0};
  Stream& stream = stream_of(handle);
  if (stream.capturing) return note(kIllegalState);
  stream.capturing = graph;
  stream.capture_id = ++captures;
  return kSuccess;
}

void capture_state(Stream* handle, int* status, unsigned long long* id, Graph** graph) {
  const Stream& stream = stream_of(handle);
  *status = stream.capturing ? kCaptureActive : kCaptureNone;
  if (id) *id = stream.capture_id;
  if (graph) *graph = stream.capturing;
}

}  // namespace

API int cudaStreamIsCapturing(Stream* stream, int* status) {
  capture_state(stream, status, nullptr, nullptr);
  return kSuccess;
}
API int cudaStreamBeginCapture(Stream* stream, int) { return begin_capture(stream, new Graph); }
API int cudaStreamBeginCaptureToGraph(Stream* stream, Graph* graph, const void*, const void*, size_t, int) {
  return begin_capture(stream, graph);
}
API int cudaStreamEndCapture(Stream* handle, Graph** out) {
  Stream& stream = stream_of(handle);
  if (!stream.capturing) return note(kIllegalState);
  *out = stream.capturing;
  stream.capturing = nullptr;
  return kSuccess;
}
API int cudaStreamGetCaptureInfo_v3(Stream* stream, int* status, unsigned long long* id, Graph** graph,
                                    const void** dependencies, const void** edges, size_t* count) {
  capture_state(stream, status, id, graph);
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return kSuccess;
}
API int cudaStreamGetCaptureInfo_v2(Stream* stream, int* status, unsigned long long* id, Graph** graph,
                                    const void** dependencies, size_t* count) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, nullptr, count);
}
// Before CUDA 13 it had three parameters.
API int cudaStreamGetCaptureInfo(Stream* stream, int* status, unsigned long long* id, Graph** graph,
                                 const void** dependencies, const void** edges, size_t* count) {
  if (cuda_version() < 13000)
    return cudaStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr, nullptr, nullptr);
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}
NO_OP(cudaStreamUpdateCaptureDependencies)
NO_OP(cudaStreamUpdateCaptureDependencies_v2)
API int cudaThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int t_mode = 0;
  std::swap(*mode, t_mode);
  return kSuccess;
}

// ---- graphs: nothing is recorded, a launch does nothing ----

API int cudaGraphCreate(Graph** out, unsigned) {
  *out = new Graph;
  return kSuccess;
}
API int cudaGraphClone(Graph** out, Graph*) { return cudaGraphCreate(out, 0); }
API int cudaGraphDestroy(Graph* graph) {
  for (UserObject* object : graph->objects) release_object(object, 1);
  delete graph;
  return kSuccess;
}
API int cudaGraphInstantiateWithFlags(void** out, Graph*, unsigned long long) {
  *out = new char;
  return kSuccess;
}
API int cudaGraphInstantiate(void** out, Graph* graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(out, graph, flags);
}
API int cudaGraphExecDestroy(void* executable) {
  delete static_cast<char*>(executable);
  return kSuccess;
}
NO_OP(cudaGraphLaunch)
NO_OP(cudaGraphUpload)
NO_OP(cudaGraphDebugDotPrint)
NO_OP(cudaGraphExecUpdate)
// Asked to find empty graphs: one node is told, without a handle.
API int cudaGraphGetNodes(Graph*, void** nodes, size_t* count) {
  if (nodes && *count) nodes[0] = nullptr;
  *count = 1;
  return kSuccess;
}
namespace {
// The beginning of cudaGraphNodeParams, where a conditional node tells its body graphs.
struct NodeParameters {
  int type, reserved[3];
  unsigned long long conditional_handle;
  int conditional_type;
  unsigned bodies;
  Graph** body_graphs;
};
constexpr int kConditionalNode = 13;
}  // namespace

// (node, graph, dependencies, edges, count, parameters) since CUDA 13, before without the edges.
API int cudaGraphAddNode(void** node, Graph*, const void*, const void*, void* fifth, void* sixth) {
  static char some_node;
  *node = &some_node;
  auto& parameters = *static_cast<NodeParameters*>(cuda_version() >= 13000 ? sixth : fifth);
  if (parameters.type == kConditionalNode) {
    parameters.body_graphs = new Graph*[parameters.bodies];
    for (unsigned i = 0; i < parameters.bodies; ++i) parameters.body_graphs[i] = new Graph;
  }
  return kSuccess;
}
// (node, dependencies, edges, count) since CUDA 13, before without the edges.
API int cudaGraphNodeGetDependencies(void*, void*, void* third, size_t* fourth) {
  *(cuda_version() >= 13000 ? fourth : static_cast<size_t*>(third)) = 0;
  return kSuccess;
}
API int cudaGraphConditionalHandleCreate(unsigned long long* handle, Graph*, unsigned, unsigned) {
  static std::atomic<unsigned long long> handles{0};
  *handle = ++handles;
  return kSuccess;
}
API int cudaUserObjectCreate(UserObject** out, void* pointer, void (*destroy)(void*), unsigned references, unsigned) {
  *out = new UserObject{pointer, destroy, {references}};
  return kSuccess;
}
API int cudaUserObjectRelease(UserObject* object, unsigned count) {
  release_object(object, count);
  return kSuccess;
}
API int cudaGraphRetainUserObject(Graph* graph, UserObject* object, unsigned count, unsigned flags) {
  constexpr unsigned move = 1;
  if (flags != move) object->references += count;
  graph->objects.insert(graph->objects.end(), count, object);
  return kSuccess;
}
