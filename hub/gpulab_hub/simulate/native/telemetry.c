/* What a GPU or a MIG device does right now. */
#include "machine.h"
#include <string.h>
#include <unistd.h>

/* A MIG parent's own figures are shown to those who may see all of its slices. */
static int hidden(const Target *t) { return !t->mig && t->gpu->mig_current && !may_look_around(); }

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
  *count = type == 1 ? t.gpu->ecc_uncorrected : t.gpu->ecc_corrected;
  return OK;
}

/* While slices are there, a parent does not tell its rows. */
static int rows_hidden(const Gpu *gpu) {
  if (gpu->mig_current)
    for (uint32_t i = 0; i < MAX_MIGS; i++)
      if (gpu->mig[i].used) return 1;
  return 0;
}

NVML nvmlDeviceGetRemappedRows(Handle handle, uint32_t *corrected, uint32_t *uncorrected, uint32_t *pending,
                               uint32_t *failed) {
  TARGET(find_gpu, handle);
  if (rows_hidden(t.gpu)) return NOT_SUPPORTED;
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

enum { ALL_LINKS = 0xFFFFFFFF, FIELD_NVLINK_SENT = 138, FIELD_NVLINK_RECEIVED = 139 };

static void wide(FieldValue *v, uint64_t value) {
  v->type = VALUE_ULONGLONG;
  v->value = value;
}

/* The power limit, temperature of the memory and the like have 32 bits, and so have PCIe's bytes: they wrap. */
static void narrow(FieldValue *v, uint64_t value) {
  v->type = VALUE_UINT;
  v->value = (uint32_t)value;
}

/* Errors since the driver was loaded; links; remapped rows; power: average, instant, limit; PCIe. */
static void fill_field(const Gpu *gpu, FieldValue *v) {
  uint64_t now = microseconds();
  v->result = OK;
  v->time = (int64_t)now;
  switch (v->field) {
    case 3: wide(v, gpu->ecc_corrected); break;
    case 4: wide(v, gpu->ecc_uncorrected); break;
    case 82: narrow(v, gpu->memory_celsius); break;
    case 83: wide(v, gpu->millijoules); break;
    case 91: narrow(v, gpu->nvlinks); break;
    case FIELD_NVLINK_SENT: wide(v, counted(&gpu->nvlink_sent, now) / 1024); break;
    case FIELD_NVLINK_RECEIVED: wide(v, counted(&gpu->nvlink_received, now) / 1024); break;
    case 142: wide(v, gpu->rows_correctable); break;
    case 143: wide(v, gpu->rows_uncorrectable); break;
    case 144: wide(v, gpu->rows_pending); break;
    case 145: wide(v, gpu->rows_failed); break;
    case 185: case 186: narrow(v, gpu->milliwatts); break;
    case 190: narrow(v, gpu->limit_milliwatts); break;
    case 197: narrow(v, counted(&gpu->pcie_sent, now)); break;
    case 198: narrow(v, counted(&gpu->pcie_received, now)); break;
    default: v->result = NOT_SUPPORTED;
  }
  int link = v->field == FIELD_NVLINK_SENT || v->field == FIELD_NVLINK_RECEIVED;
  int row = v->field >= 142 && v->field <= 145, error = v->field == 3 || v->field == 4;
  if (link && (!gpu->nvlinks || v->scope != ALL_LINKS)) v->result = NOT_SUPPORTED;
  if ((row && rows_hidden(gpu)) || (error && !gpu->ecc)) v->result = NOT_SUPPORTED;
}

NVML nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue *values) {
  TARGET(find_gpu, handle);
  for (int i = 0; i < count; i++) fill_field(t.gpu, &values[i]);
  return OK;
}

/* It measures for 20 ms, and the caller waits. KiB a second. */
NVML nvmlDeviceGetPcieThroughput(Handle handle, uint32_t counter, uint32_t *kib) {
  TARGET(find_gpu, handle);
  if (counter > 1) return INVALID_ARGUMENT;
  usleep(20000);
  *kib = (uint32_t)((counter ? t.gpu->pcie_received.rate : t.gpu->pcie_sent.rate) / 1024);
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

/* Only those that ran something are listed. */
NVML nvmlDeviceGetProcessUtilization(Handle handle, ProcessUtilization *out, uint32_t *count, uint64_t since) {
  (void)since;
  TARGET(find_gpu, handle);
  if (t.gpu->mig_current) return NOT_SUPPORTED;
  uint32_t room = *count, found = 0;
  for (uint32_t i = 0; i < MAX_PROCESSES; i++) {
    const Process *p = &t.gpu->process[i];
    if (!concerns(&t, p) || !p->sm_percent) continue;
    if (out && found < room) out[found] = (ProcessUtilization){p->pid, microseconds(), p->sm_percent, 0, 0, 0};
    found++;
  }
  *count = found;
  if (!found) return NOT_FOUND;
  return !out || found > room ? INSUFFICIENT_SIZE : OK;
}
