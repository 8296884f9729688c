// CUPTI: a profiler may subscribe; nothing is ever recorded.

#include <cstddef>
#include <cstdint>

#include "export.h"

namespace {
constexpr int kOk = 0;
constexpr int kNoMoreRecords = 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED
char g_subscriber;
}  // namespace

API int cuptiGetVersion(uint32_t* version) {
  *version = 130000;
  return kOk;
}
API int cuptiGetResultString(int, const char** text) {
  *text = "CUPTI status";
  return kOk;
}
API int cuptiGetCallbackName(int, uint32_t, const char** name) {
  *name = "";
  return kOk;
}
API int cuptiSubscribe(void** subscriber, void*, void*) {
  *subscriber = &g_subscriber;
  return kOk;
}
API int cuptiActivityGetNextRecord(uint8_t*, size_t, void** record) {
  *record = nullptr;
  return kNoMoreRecords;
}
API int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
  *dropped = 0;
  return kOk;
}
API int cuptiActivityPopExternalCorrelationId(int, uint64_t* last) {
  if (last) *last = 0;
  return kOk;
}
API int cuptiActivityGetAttribute(int, size_t*, size_t* value) {
  *value = 0;
  return kOk;
}
API int cuptiGetTimestamp(uint64_t* timestamp) {
  *timestamp = 0;
  return kOk;
}
NO_OP(cuptiUnsubscribe)
NO_OP(cuptiEnableCallback)
NO_OP(cuptiEnableDomain)
NO_OP(cuptiFinalize)
NO_OP(cuptiActivityEnable)
NO_OP(cuptiActivityDisable)
NO_OP(cuptiActivityEnableDriverApi)
NO_OP(cuptiActivityEnableRuntimeApi)
NO_OP(cuptiActivityEnableCudaEventDeviceTimestamps)
NO_OP(cuptiActivityEnableLatencyTimestamps)
NO_OP(cuptiActivityFlushAll)
NO_OP(cuptiActivityRegisterCallbacks)
NO_OP(cuptiActivityRegisterTimestampCallback)
NO_OP(cuptiActivityPushExternalCorrelationId)
NO_OP(cuptiActivitySetAttribute)
