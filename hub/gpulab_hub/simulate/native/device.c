/* The library itself, and what a GPU is. */
#include "machine.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
  switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case VERSION_MISMATCH: return "Driver/library version mismatch";
    case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
  }
}

NVML nvmlSystemGetDriverVersion(char *out, uint32_t room) {
  STARTED();
  return put_text(out, room, machine->driver);
}

NVML nvmlSystemGetNVMLVersion(char *out, uint32_t room) {
  STARTED();
  return put_text(out, room, machine->nvml);
}

NVML nvmlSystemGetCudaDriverVersion_v2(int *version) {
  STARTED();
  *version = (int)machine->cuda;
  return OK;
}

NVML nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

NVML nvmlSystemGetProcessName(uint32_t pid, char *out, uint32_t room) {
  STARTED();
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/comm", pid);
  FILE *file = fopen(path, "r");
  if (!file) return NOT_FOUND;
  char *line = fgets(out, (int)room, file);
  fclose(file);
  if (!line) return NOT_FOUND;
  out[strcspn(out, "\n")] = 0;
  return OK;
}

NVML nvmlDeviceGetCount_v2(uint32_t *count) {
  STARTED();
  *count = visible_gpus();
  return OK;
}

NVML nvmlDeviceGetHandleByIndex_v2(uint32_t index, Handle *handle) {
  STARTED();
  int at = visible_gpu(index);
  if (at < 0) return INVALID_ARGUMENT;
  *handle = gpu_handle((uint32_t)at);
  TARGET(look, *handle);
  return OK;
}

NVML nvmlDeviceGetHandleByUUID(const char *uuid, Handle *handle) {
  STARTED();
  for (uint32_t index = 0; index < visible_gpus(); index++) {
    uint32_t at = (uint32_t)visible_gpu(index);
    Gpu *gpu = &machine->gpu[at];
    if (!strcmp(uuid, gpu->uuid)) {
      *handle = gpu_handle(at);
      return gpu->lost ? GPU_IS_LOST : OK;
    }
    for (uint32_t mig = 0; mig < MAX_MIGS; mig++)
      if (gpu->mig[mig].used && !strcmp(uuid, gpu->mig[mig].uuid) && visible_mig(at, mig)) {
        *handle = mig_handle(at, mig);
        return OK;
      }
  }
  return NOT_FOUND;
}

NVML nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Handle *handle) {
  STARTED();
  for (uint32_t index = 0; index < visible_gpus(); index++) {
    const char *known = machine->gpu[visible_gpu(index)].bus_id;
    if (!strcasecmp(bus_id, known) || !strcasecmp(bus_id, known + 4)) {
      *handle = gpu_handle((uint32_t)visible_gpu(index));
      return OK;
    }
  }
  return NOT_FOUND;
}

NVML nvmlDeviceGetName(Handle handle, char *out, uint32_t room) {
  TARGET(find, handle);
  return put_text(out, room, t.mig ? t.mig->name : t.gpu->name);
}

NVML nvmlDeviceGetUUID(Handle handle, char *out, uint32_t room) {
  TARGET(find, handle);
  return put_text(out, room, t.mig ? t.mig->uuid : t.gpu->uuid);
}

NVML nvmlDeviceGetSerial(Handle handle, char *out, uint32_t room) {
  TARGET(find_gpu, handle);
  return put_text(out, room, t.gpu->serial);
}

NVML nvmlDeviceGetIndex(Handle handle, uint32_t *index) {
  TARGET(find, handle);
  *index = t.mig ? t.mig_at : gpu_index(t.gpu_at);
  return OK;
}

NVML nvmlDeviceGetMinorNumber(Handle handle, uint32_t *minor) {
  TARGET(find_gpu, handle);
  *minor = t.gpu->minor;
  return OK;
}

NVML nvmlDeviceGetModuleId(Handle handle, uint32_t *id) {
  TARGET(find_gpu, handle);
  *id = t.gpu_at + 1;
  return OK;
}

NVML nvmlDeviceGetBoardId(Handle handle, uint32_t *id) {
  TARGET(find_gpu, handle);
  *id = t.gpu->bus << 8 | t.gpu->device;
  return OK;
}

static void fill_pci(const Gpu *gpu, PciInfo *info) {
  memset(info, 0, sizeof *info);
  snprintf(info->legacy, sizeof info->legacy, "%.15s", gpu->bus_id + 4);
  snprintf(info->bus_id, sizeof info->bus_id, "%.31s", gpu->bus_id);
  info->domain = gpu->domain;
  info->bus = gpu->bus;
  info->device = gpu->device;
  info->pci_id = gpu->pci_id;
  info->subsystem_id = gpu->subsystem_id;
}

NVML nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo *info) {
  TARGET(find, handle);
  fill_pci(t.gpu, info);
  return OK;
}

NVML nvmlDeviceGetCudaComputeCapability(Handle handle, int *major, int *minor) {
  TARGET(find, handle);
  *major = (int)t.gpu->cc_major;
  *minor = (int)t.gpu->cc_minor;
  return OK;
}

NVML nvmlDeviceGetArchitecture(Handle handle, uint32_t *architecture) {
  TARGET(find, handle);
  *architecture = t.gpu->architecture;
  return OK;
}

NVML nvmlDeviceGetNumGpuCores(Handle handle, uint32_t *cores) {
  TARGET(find_gpu, handle);
  *cores = t.gpu->cores;
  return OK;
}

NVML nvmlDeviceGetComputeMode(Handle handle, uint32_t *mode) {
  TARGET(find, handle);
  *mode = 0;
  return OK;
}

NVML nvmlDeviceGetPersistenceMode(Handle handle, uint32_t *mode) {
  TARGET(find_gpu, handle);
  *mode = 1;
  return OK;
}

NVML nvmlDeviceGetEccMode(Handle handle, uint32_t *current, uint32_t *pending) {
  TARGET(find_gpu, handle);
  *current = *pending = t.gpu->ecc;
  return OK;
}

static int pair(Handle first, Handle second, Target *a, Target *b) {
  int code = find_gpu(first, a);
  return code ? code : look(second, b);
}

NVML nvmlDeviceGetTopologyCommonAncestor(Handle first, Handle second, uint32_t *level) {
  Target a, b;
  int code = pair(first, second, &a, &b);
  if (!code) *level = machine->topology[a.gpu_at][b.gpu_at];
  return code;
}

/* Capabilities: read, write, NVLink, atomics, property; a MIG parent has none. */
NVML nvmlDeviceGetP2PStatus(Handle first, Handle second, uint32_t capability, uint32_t *status) {
  Target a, b;
  int code = pair(first, second, &a, &b);
  if (code) return code;
  if (capability > 4) return INVALID_ARGUMENT;
  int linked = machine->links[a.gpu_at][b.gpu_at] > 0;
  int denied = a.gpu->mig_current || b.gpu->mig_current || capability == 4 || (capability == 2 && !linked);
  *status = denied ? 5 : 0;
  return OK;
}

NVML nvmlDeviceGetNvLinkState(Handle handle, uint32_t link, uint32_t *active) {
  TARGET(find_gpu, handle);
  if (!t.gpu->nvlinks) return NOT_SUPPORTED;
  if (link >= t.gpu->nvlinks) return INVALID_ARGUMENT;
  *active = 1;
  return OK;
}

/* Where a link ends: at a switch, or at another GPU; links are numbered in the order of the GPUs. */
static const Gpu *other_end(const Target *t, uint32_t link) {
  for (uint32_t other = 0; !machine->switched && other < machine->gpus; other++) {
    if (link < machine->links[t->gpu_at][other]) return &machine->gpu[other];
    link -= machine->links[t->gpu_at][other];
  }
  return NULL;
}

NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle handle, uint32_t link, PciInfo *info) {
  TARGET(find_gpu, handle);
  if (!t.gpu->nvlinks) return NOT_SUPPORTED;
  if (link >= t.gpu->nvlinks) return INVALID_ARGUMENT;
  const Gpu *other = other_end(&t, link);
  if (other) {
    fill_pci(other, info);
    return OK;
  }
  memset(info, 0, sizeof *info);
  strcpy(info->legacy, "FFFFFFF:FF:FF.0");
  strcpy(info->bus_id, "FFFFFFFF:FF:FF.0");
  info->domain = info->pci_id = NOTHING;
  info->bus = info->device = 255;
  return OK;
}

NVML nvmlDeviceGetNvLinkRemoteDeviceType(Handle handle, uint32_t link, uint32_t *type) {
  TARGET(find_gpu, handle);
  if (!t.gpu->nvlinks) return NOT_SUPPORTED;
  if (link >= t.gpu->nvlinks) return INVALID_ARGUMENT;
  *type = other_end(&t, link) ? 0 : 2;
  return OK;
}
