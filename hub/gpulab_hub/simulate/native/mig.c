/* MIG: modes, profiles, placements, instances and MIG devices. */
#include "machine.h"
#include <string.h>

enum { LAST_PROFILE = 0x10 };

/* On a physical GPU the driver answers "invalid argument" here, not "not supported". */
#define MIG_TARGET(handle)                \
  TARGET(find, handle);                   \
  if (!t.mig) return INVALID_ARGUMENT

static const Profile *by_number(const Gpu *gpu, uint32_t number) {
  for (uint32_t i = 0; i < gpu->profiles; i++)
    if (gpu->profile[i].number == number) return &gpu->profile[i];
  return NULL;
}

static const Profile *by_id(const Gpu *gpu, uint32_t id) {
  for (uint32_t i = 0; i < gpu->profiles; i++)
    if (gpu->profile[i].id == id) return &gpu->profile[i];
  return NULL;
}

NVML nvmlDeviceGetMigMode(Handle handle, uint32_t *current, uint32_t *pending) {
  TARGET(find_gpu, handle);
  if (!t.gpu->mig_capable) return NOT_SUPPORTED;
  *current = t.gpu->mig_current;
  *pending = t.gpu->mig_pending;
  return OK;
}

NVML nvmlDeviceGetMaxMigDeviceCount(Handle handle, uint32_t *count) {
  TARGET(find_gpu, handle);
  *count = t.gpu->mig_current ? t.gpu->mig_most : 0;
  return OK;
}

/* The index counts what the caller may see, without gaps. */
NVML nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, uint32_t index, Handle *mig) {
  TARGET(find_gpu, handle);
  if (!t.gpu->mig_current) return NOT_FOUND;
  if (index >= t.gpu->mig_most) return INVALID_ARGUMENT;
  for (uint32_t at = 0; at < MAX_MIGS; at++)
    if (visible_mig(t.gpu_at, at) && index-- == 0) {
      *mig = mig_handle(t.gpu_at, at);
      return OK;
    }
  return NOT_FOUND;
}

NVML nvmlDeviceIsMigDeviceHandle(Handle handle, uint32_t *is_mig) {
  TARGET(find, handle);
  *is_mig = t.mig != NULL;
  return OK;
}

NVML nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle handle, Handle *gpu) {
  MIG_TARGET(handle);
  *gpu = gpu_handle(t.gpu_at);
  return OK;
}

NVML nvmlDeviceGetGpuInstanceId(Handle handle, uint32_t *id) {
  MIG_TARGET(handle);
  *id = t.mig->gi;
  return OK;
}

NVML nvmlDeviceGetComputeInstanceId(Handle handle, uint32_t *id) {
  MIG_TARGET(handle);
  *id = t.mig->ci;
  return OK;
}

NVML nvmlDeviceGetAttributes_v2(Handle handle, Attributes *out) {
  TARGET(find, handle);
  if (!t.mig) return NOT_SUPPORTED;
  const Profile *p = &t.gpu->profile[t.mig->profile];
  *out = (Attributes){p->sms,  p->copy,   p->decode, p->encode,    p->jpeg,
                      p->ofa,  p->slices, p->slices, p->memory_mib};
  return OK;
}

NVML nvmlDeviceGetGpuInstanceProfileInfo(Handle handle, uint32_t number, ProfileInfo *out) {
  TARGET(find_gpu, handle);
  if (number > LAST_PROFILE) return INVALID_ARGUMENT;
  const Profile *p = by_number(t.gpu, number);
  if (!p) return NOT_SUPPORTED;
  *out = (ProfileInfo){p->id,     0,         p->slices, p->most, p->sms,       p->copy,
                       p->decode, p->encode, p->jpeg,   p->ofa,  p->memory_mib};
  return OK;
}

static int profile_v2(const Profile *p, ProfileInfoV2 *out) {
  if (out->version != VERSIONED(ProfileInfoV2, 2)) return ARGUMENT_VERSION_MISMATCH;
  if (!p) return NOT_SUPPORTED;
  *out = (ProfileInfoV2){out->version, p->id,     0,       p->slices, p->most,       p->sms, p->copy,
                         p->decode,    p->encode, p->jpeg, p->ofa,    p->memory_mib, {0}};
  memcpy(out->name, p->name, sizeof out->name);
  return OK;
}

NVML nvmlDeviceGetGpuInstanceProfileInfoV(Handle handle, uint32_t number, ProfileInfoV2 *out) {
  TARGET(find_gpu, handle);
  if (number > LAST_PROFILE) return INVALID_ARGUMENT;
  return profile_v2(by_number(t.gpu, number), out);
}

NVML nvmlDeviceGetGpuInstanceProfileInfoByIdV(Handle handle, uint32_t id, ProfileInfoV2 *out) {
  TARGET(find_gpu, handle);
  return profile_v2(by_id(t.gpu, id), out);
}

NVML nvmlDeviceGetGpuInstancePossiblePlacements_v2(Handle handle, uint32_t id, Placement *out, uint32_t *count) {
  TARGET(find_gpu, handle);
  const Profile *p = by_id(t.gpu, id);
  if (!p) return NOT_SUPPORTED;
  uint32_t room = *count;
  *count = p->places;
  if (!out) return OK;
  if (room < p->places) return INSUFFICIENT_SIZE;
  for (uint32_t i = 0; i < p->places; i++) out[i] = (Placement){p->start[i], p->size};
  return OK;
}

NVML nvmlDeviceGetGpuInstanceRemainingCapacity(Handle handle, uint32_t id, uint32_t *count) {
  TARGET(find_gpu, handle);
  const Profile *p = by_id(t.gpu, id);
  if (!p) return NOT_SUPPORTED;
  uint32_t taken = 0, have = 0, free = 0;
  for (uint32_t i = 0; i < MAX_MIGS; i++) {
    const Mig *mig = &t.gpu->mig[i];
    if (!mig->used) continue;
    taken |= ((1u << mig->size) - 1) << mig->start;
    have += &t.gpu->profile[mig->profile] == p;
  }
  for (uint32_t i = 0; i < p->places; i++) {
    uint32_t bits = ((1u << p->size) - 1) << p->start[i];
    if (taken & bits) continue;
    taken |= bits;
    free++;
  }
  *count = free < p->most - have ? free : p->most - have;
  return OK;
}

NVML nvmlDeviceGetGpuInstances(Handle handle, uint32_t id, Handle *out, uint32_t *count) {
  TARGET(find_gpu, handle);
  *count = 0;
  if (!t.gpu->mig_current) return OK;
  if (!may_look_around()) return NO_PERMISSION;
  const Profile *p = by_id(t.gpu, id);
  if (!p) return NOT_SUPPORTED;
  for (uint32_t i = 0; i < MAX_MIGS; i++)
    if (t.gpu->mig[i].used && &t.gpu->profile[t.gpu->mig[i].profile] == p)
      out[(*count)++] = gpu_instance_handle(t.gpu_at, i);
  return OK;
}

NVML nvmlDeviceGetGpuInstanceById(Handle handle, uint32_t id, Handle *out) {
  TARGET(find_gpu, handle);
  if (!t.gpu->mig_current) return NOT_FOUND;
  if (!may_look_around()) return NO_PERMISSION;
  for (uint32_t i = 0; i < MAX_MIGS; i++)
    if (t.gpu->mig[i].used && t.gpu->mig[i].gi == id) {
      *out = gpu_instance_handle(t.gpu_at, i);
      return OK;
    }
  return NOT_FOUND;
}

NVML nvmlGpuInstanceGetInfo(Handle handle, GpuInstanceInfo *out) {
  TARGET(find_instance, handle);
  *out = (GpuInstanceInfo){gpu_handle(t.gpu_at), t.mig->gi, t.gpu->profile[t.mig->profile].id,
                           {t.mig->start, t.mig->size}};
  return OK;
}

NVML nvmlGpuInstanceGetComputeInstanceById(Handle handle, uint32_t id, Handle *out) {
  TARGET(find_instance, handle);
  if (t.mig->ci != id) return NOT_FOUND;
  *out = compute_instance_handle(t.gpu_at, t.mig_at);
  return OK;
}

NVML nvmlComputeInstanceGetInfo_v2(Handle handle, ComputeInstanceInfo *out) {
  TARGET(find_instance, handle);
  *out = (ComputeInstanceInfo){gpu_handle(t.gpu_at), gpu_instance_handle(t.gpu_at, t.mig_at), t.mig->ci, 0,
                               {0, t.gpu->profile[t.mig->profile].slices}};
  return OK;
}
