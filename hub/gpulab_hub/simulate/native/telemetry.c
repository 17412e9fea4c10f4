/* What a GPU or a MIG device does right now. */
#include "machine.h"
#include <string.h>
#include <time.h>

/* A MIG parent's own figures are shown to those who may see all of its slices. */
static int hidden(const Target *t) { return !t->mig && t->gpu->mig_current && !may_look_around(); }

static uint64_t microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* The first version counts what the driver reserves as used; the second tells it apart. */
NVML nvmlDeviceGetMemoryInfo(Handle handle, Memory *out) {
  TARGET(find, handle);
  if (hidden(&t)) return NO_PERMISSION;
  uint64_t total = t.mig ? t.mig->memory : t.gpu->memory;
  uint64_t used = t.mig ? t.mig->memory_used : t.gpu->memory_used + t.gpu->reserved;
  *out = (Memory){total, total - used, used};
  return OK;
}

NVML nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2 *out) {
  TARGET(find, handle);
  if (out->version != VERSIONED(MemoryV2, 2)) return FUNCTION_NOT_FOUND;
  if (hidden(&t)) return NO_PERMISSION;
  uint64_t total = t.mig ? t.mig->memory : t.gpu->memory;
  uint64_t reserved = t.mig ? 0 : t.gpu->reserved;
  uint64_t used = t.mig ? t.mig->memory_used : t.gpu->memory_used;
  *out = (MemoryV2){out->version, total, reserved, total - reserved - used, used};
  return OK;
}

NVML nvmlDeviceGetBAR1MemoryInfo(Handle handle, Memory *out) {
  TARGET(find, handle);
  uint64_t total = (uint64_t)(t.mig ? 16 : 128) << 30;
  *out = (Memory){total, total - (1 << 20), 1 << 20};
  return OK;
}

NVML nvmlDeviceGetUtilizationRates(Handle handle, Utilization *out) {
  TARGET(find_gpu, handle);
  if (t.gpu->mig_current) return NOT_SUPPORTED;
  *out = (Utilization){t.gpu->gpu_percent, t.gpu->memory_percent};
  return OK;
}

static int idle_engine(Handle handle, uint32_t *percent, uint32_t *period) {
  TARGET(find_gpu, handle);
  if (t.gpu->mig_current) return NOT_SUPPORTED;
  *percent = 0;
  *period = 100000;
  return OK;
}
NVML nvmlDeviceGetEncoderUtilization(Handle h, uint32_t *percent, uint32_t *period) {
  return idle_engine(h, percent, period);
}
NVML nvmlDeviceGetDecoderUtilization(Handle h, uint32_t *percent, uint32_t *period) {
  return idle_engine(h, percent, period);
}

NVML nvmlDeviceGetTemperature(Handle handle, uint32_t sensor, uint32_t *celsius) {
  TARGET(find_gpu, handle);
  if (sensor) return INVALID_ARGUMENT;
  *celsius = t.gpu->celsius;
  return OK;
}

NVML nvmlDeviceGetTemperatureV(Handle handle, TemperatureV1 *out) {
  TARGET(find_gpu, handle);
  if (out->version != VERSIONED(TemperatureV1, 1)) return ARGUMENT_VERSION_MISMATCH;
  if (out->sensor) return INVALID_ARGUMENT;
  out->celsius = (int32_t)t.gpu->celsius;
  return OK;
}

#define FIGURE(function, type, field)      \
  NVML function(Handle handle, type *out) { \
    TARGET(find_gpu, handle);               \
    *out = t.gpu->field;                    \
    return OK;                              \
  }
FIGURE(nvmlDeviceGetPowerUsage, uint32_t, milliwatts)
FIGURE(nvmlDeviceGetEnforcedPowerLimit, uint32_t, limit_milliwatts)
FIGURE(nvmlDeviceGetPowerManagementLimit, uint32_t, limit_milliwatts)
FIGURE(nvmlDeviceGetTotalEnergyConsumption, uint64_t, millijoules)
FIGURE(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, clock_reasons)
FIGURE(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, clock_reasons)

NVML nvmlDeviceGetPerformanceState(Handle handle, uint32_t *state) {
  TARGET(find, handle);
  *state = 0;
  return OK;
}

/* Clock types: graphics, SM, memory, video. */
NVML nvmlDeviceGetClockInfo(Handle handle, uint32_t type, uint32_t *mhz) {
  TARGET(find_gpu, handle);
  if (type > 3) return INVALID_ARGUMENT;
  *mhz = type == 2 ? t.gpu->memory_mhz : t.gpu->sm_mhz;
  return OK;
}

NVML nvmlDeviceGetMaxClockInfo(Handle handle, uint32_t type, uint32_t *mhz) {
  TARGET(find_gpu, handle);
  if (type > 3) return INVALID_ARGUMENT;
  *mhz = type == 2 ? t.gpu->memory_max_mhz : t.gpu->sm_max_mhz;
  return OK;
}

NVML nvmlDeviceGetTotalEccErrors(Handle handle, uint32_t type, uint32_t counter, uint64_t *count) {
  (void)counter;
  TARGET(find_gpu, handle);
  if (!t.gpu->ecc) return NOT_SUPPORTED;
  *count = type == 1 ? t.gpu->ecc_uncorrected : 0;
  return OK;
}

NVML nvmlDeviceGetRemappedRows(Handle handle, uint32_t *corrected, uint32_t *uncorrected, uint32_t *pending,
                               uint32_t *failed) {
  TARGET(find_gpu, handle);
  if (t.gpu->mig_current)
    for (uint32_t i = 0; i < MAX_MIGS; i++)
      if (t.gpu->mig[i].used) return NOT_SUPPORTED;
  *corrected = t.gpu->rows_correctable;
  *uncorrected = t.gpu->rows_uncorrectable;
  *pending = t.gpu->rows_pending;
  *failed = t.gpu->rows_failed;
  return OK;
}

NVML nvmlDeviceGetUnrepairableMemoryFlag_v1(Handle handle, uint32_t *flag) {
  TARGET(find_gpu, handle);
  *flag = t.gpu->rows_failed != 0;
  return OK;
}

/* Field values: average and instant power, memory temperature, energy, number of NVLinks. */
NVML nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue *values) {
  TARGET(find_gpu, handle);
  for (int i = 0; i < count; i++) {
    FieldValue *v = &values[i];
    v->result = OK;
    v->time = (int64_t)microseconds();
    switch (v->field) {
      case 185: case 186: v->value = t.gpu->milliwatts; break;
      case 82: v->value = t.gpu->memory_celsius; break;
      case 83: v->value = t.gpu->millijoules; break;
      case 91: v->value = t.gpu->nvlinks; break;
      default: v->result = NOT_SUPPORTED;
    }
  }
  return OK;
}

/* Processes. Host pids mean nothing in a container, and the driver lists none there. */
static int concerns(const Target *t, const Process *p) {
  if (!p->used || inside_container()) return 0;
  return !t->mig || (p->gi == t->mig->gi && p->ci == t->mig->ci);
}

NVML nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, uint32_t *count, ProcessInfo *out) {
  TARGET(find, handle);
  if (hidden(&t)) return NO_PERMISSION;
  uint32_t room = *count, found = 0;
  for (uint32_t i = 0; i < MAX_PROCESSES; i++) {
    const Process *p = &t.gpu->process[i];
    if (!concerns(&t, p)) continue;
    int sliced = t.gpu->mig_current != 0;
    if (out && found < room)
      out[found] = (ProcessInfo){p->pid, p->memory, sliced ? p->gi : NOTHING, sliced ? p->ci : NOTHING};
    found++;
  }
  *count = found;
  return found > room || (found && !out) ? INSUFFICIENT_SIZE : OK;
}

static int no_processes(Handle handle, uint32_t *count) {
  TARGET(find, handle);
  if (hidden(&t)) return NO_PERMISSION;
  *count = 0;
  return OK;
}
NVML nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, uint32_t *count, ProcessInfo *out) {
  (void)out;
  return no_processes(handle, count);
}
NVML nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle handle, uint32_t *count, ProcessInfo *out) {
  (void)out;
  return no_processes(handle, count);
}

NVML nvmlDeviceGetRunningProcessDetailList(Handle handle, ProcessDetailList *list) {
  TARGET(find, handle);
  if (hidden(&t)) return NO_PERMISSION;
  uint32_t found = 0;
  for (uint32_t i = 0; i < MAX_PROCESSES; i++) {
    const Process *p = &t.gpu->process[i];
    if (!concerns(&t, p)) continue;
    int sliced = t.gpu->mig_current != 0;
    if (list->list && found < list->count)
      list->list[found] = (ProcessDetail){p->pid, p->memory, sliced ? p->gi : NOTHING, sliced ? p->ci : NOTHING, 0};
    found++;
  }
  int small = found && (!list->list || found > list->count);
  list->count = found;
  return small ? INSUFFICIENT_SIZE : OK;
}

NVML nvmlDeviceGetProcessUtilization(Handle handle, ProcessUtilization *out, uint32_t *count, uint64_t since) {
  (void)since;
  TARGET(find_gpu, handle);
  if (t.gpu->mig_current) return NOT_SUPPORTED;
  uint32_t room = *count, found = 0;
  for (uint32_t i = 0; i < MAX_PROCESSES; i++) {
    const Process *p = &t.gpu->process[i];
    if (!concerns(&t, p)) continue;
    if (out && found < room) out[found] = (ProcessUtilization){p->pid, microseconds(), p->sm_percent, 0, 0, 0};
    found++;
  }
  *count = found;
  if (!found) return NOT_FOUND;
  return !out || found > room ? INSUFFICIENT_SIZE : OK;
}
