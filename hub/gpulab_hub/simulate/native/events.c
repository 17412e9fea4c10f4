/* Events, from the ring in the state file; and GPM, the only utilisation of MIG devices. */
#define _GNU_SOURCE
#include "machine.h"
#include <stdlib.h>
#include <unistd.h>

enum { SUPPORTED_EVENTS = 0xff9f, METRIC_GRAPHICS = 1, METRIC_SM = 2 };

typedef struct {
  uint64_t seen, types[MAX_GPUS];
} EventSet;

NVML nvmlDeviceGetSupportedEventTypes(Handle handle, uint64_t *types) {
  TARGET(find_gpu, handle);
  *types = SUPPORTED_EVENTS;
  return OK;
}

NVML nvmlEventSetCreate(EventSet **set) {
  STARTED();
  *set = calloc(1, sizeof **set);
  if (!*set) return UNKNOWN;
  (*set)->seen = machine->events;
  return OK;
}

NVML nvmlEventSetFree(EventSet *set) {
  free(set);
  return OK;
}

NVML nvmlDeviceRegisterEvents(Handle handle, uint64_t types, EventSet *set) {
  TARGET(find_gpu, handle);
  set->types[t.gpu_at] |= types;
  return OK;
}

/* Writers fill an entry first and raise the counter last. */
NVML nvmlEventSetWait_v2(EventSet *set, EventData *out, uint32_t milliseconds) {
  for (uint32_t waited = 0;; waited += 10) {
    STARTED();
    while (set->seen < *(volatile uint64_t *)&machine->events) {
      const Event *e = &machine->event[set->seen++ % MAX_EVENTS];
      if (e->gpu >= MAX_GPUS || !(set->types[e->gpu] & e->type)) continue;
      *out = (EventData){gpu_handle(e->gpu), e->type, e->data, e->gi, e->ci};
      return OK;
    }
    if (waited >= milliseconds) return TIMEOUT;
    usleep(10000);
  }
}

typedef struct { double sm; } Sample;
typedef struct { uint32_t version, supported; } Support;
typedef struct {
  uint32_t id;
  int result;
  double value;
  struct { char *name, *long_name, *unit; } info;
} Metric;
typedef struct {
  uint32_t version, count;
  Sample *first, *second;
  Metric metric[]; /* callers of different releases have arrays of different lengths */
} MetricsQuery;

NVML nvmlGpmQueryDeviceSupport(Handle handle, Support *out) {
  TARGET(find, handle);
  if (out->version != 1) return ARGUMENT_VERSION_MISMATCH;
  out->supported = t.gpu->cc_major >= 9;
  return OK;
}

NVML nvmlGpmSampleAlloc(Sample **sample) {
  *sample = calloc(1, sizeof **sample);
  return *sample ? OK : UNKNOWN;
}

NVML nvmlGpmSampleFree(Sample *sample) {
  free(sample);
  return OK;
}

NVML nvmlGpmMigSampleGet(Handle handle, uint32_t gi, Sample *sample) {
  TARGET(find_gpu, handle);
  if (t.gpu->cc_major < 9) return NOT_SUPPORTED;
  for (uint32_t i = 0; i < MAX_MIGS; i++)
    if (t.gpu->mig_current && t.gpu->mig[i].used && t.gpu->mig[i].gi == gi) {
      sample->sm = t.gpu->mig[i].sm_percent;
      return OK;
    }
  return INVALID_ARGUMENT;
}

NVML nvmlGpmSampleGet(Handle handle, Sample *sample) {
  TARGET(find, handle);
  if (t.gpu->cc_major < 9) return NOT_SUPPORTED;
  sample->sm = t.mig ? t.mig->sm_percent : t.gpu->gpu_percent;
  return OK;
}

NVML nvmlGpmMetricsGet(MetricsQuery *query) {
  if (query->version != 1) return ARGUMENT_VERSION_MISMATCH;
  for (uint32_t i = 0; i < query->count; i++) {
    Metric *m = &query->metric[i];
    m->result = m->id == METRIC_GRAPHICS || m->id == METRIC_SM ? OK : NOT_SUPPORTED;
    m->value = query->second->sm;
  }
  return OK;
}
