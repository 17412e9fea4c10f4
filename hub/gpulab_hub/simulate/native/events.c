/* Events, from the ring in the state file; and GPM, the only utilisation of MIG devices. */
#define _GNU_SOURCE
#include "machine.h"
#include <stdlib.h>
#include <unistd.h>

enum { SUPPORTED_EVENTS = 0xff9f, METRIC_GRAPHICS = 1, METRIC_SM = 2 };
enum { METRIC_PCIE_SENT = 20, METRIC_PCIE_RECEIVED = 21, METRIC_NVLINK_RECEIVED = 60, METRIC_NVLINK_SENT = 61 };

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

typedef struct {
  uint64_t at, pcie_sent, pcie_received, nvlink_sent, nvlink_received;
  double sm;
} Sample;
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

static void take_sample(const Gpu *gpu, double sm, Sample *sample) {
  uint64_t now = microseconds();
  *sample = (Sample){now, counted(&gpu->pcie_sent, now), counted(&gpu->pcie_received, now),
                     counted(&gpu->nvlink_sent, now), counted(&gpu->nvlink_received, now), sm};
}

NVML nvmlGpmMigSampleGet(Handle handle, uint32_t gi, Sample *sample) {
  TARGET(find_gpu, handle);
  if (t.gpu->cc_major < 9) return NOT_SUPPORTED;
  for (uint32_t i = 0; i < MAX_MIGS; i++)
    if (t.gpu->mig_current && t.gpu->mig[i].used && t.gpu->mig[i].gi == gi) {
      take_sample(t.gpu, t.gpu->mig[i].sm_percent, sample);
      return OK;
    }
  return INVALID_ARGUMENT;
}

NVML nvmlGpmSampleGet(Handle handle, Sample *sample) {
  TARGET(find, handle);
  if (t.gpu->cc_major < 9) return NOT_SUPPORTED;
  take_sample(t.gpu, t.mig ? t.mig->sm_percent : t.gpu->gpu_percent, sample);
  return OK;
}

/* MiB a second. */
static double rate(uint64_t before, uint64_t after, uint64_t microseconds) {
  return microseconds && after >= before ? (double)(after - before) / 1048576 * 1e6 / (double)microseconds : 0;
}

static int measured(const Sample *a, const Sample *b, Metric *m) {
  uint64_t time = b->at - a->at;
  switch (m->id) {
    case METRIC_GRAPHICS: case METRIC_SM: m->value = b->sm; break;
    case METRIC_PCIE_SENT: m->value = rate(a->pcie_sent, b->pcie_sent, time); break;
    case METRIC_PCIE_RECEIVED: m->value = rate(a->pcie_received, b->pcie_received, time); break;
    case METRIC_NVLINK_SENT: m->value = rate(a->nvlink_sent, b->nvlink_sent, time); break;
    case METRIC_NVLINK_RECEIVED: m->value = rate(a->nvlink_received, b->nvlink_received, time); break;
    default: return NOT_SUPPORTED;
  }
  return OK;
}

NVML nvmlGpmMetricsGet(MetricsQuery *query) {
  STARTED();
  if (query->version != 1) return ARGUMENT_VERSION_MISMATCH;
  for (uint32_t i = 0; i < query->count; i++) {
    Metric *m = &query->metric[i];
    m->result = measured(query->first, query->second, m);
  }
  return OK;
}
