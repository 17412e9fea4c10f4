/* What NVML's callers see: return codes and structures, as far as the simulation answers. */
#pragma once
#include <stddef.h>
#include "state.h"

enum {
  OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15,
  RESET_REQUIRED = 16, VERSION_MISMATCH = 18, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};

#define NVML __attribute__((visibility("default"))) int
#define NOTHING 0xFFFFFFFFu /* "no GPU instance", as the driver says it */
#define VERSIONED(type, number) ((uint32_t)sizeof(type) | ((uint32_t)(number) << 24))

typedef void *Handle;
typedef struct { uint64_t total, free, used; } Memory;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } MemoryV2;
typedef struct { uint32_t gpu, memory; } Utilization;
typedef struct { uint32_t pid; uint64_t memory; uint32_t gi, ci; } ProcessInfo;
typedef struct { uint32_t pid; uint64_t memory; uint32_t gi, ci; uint64_t protected_memory; } ProcessDetail;
typedef struct { uint32_t version, mode, count; ProcessDetail *list; } ProcessDetailList;
typedef struct { uint32_t pid; uint64_t time; uint32_t sm, memory, encode, decode; } ProcessUtilization;
typedef struct {
  char legacy[16];
  uint32_t domain, bus, device, pci_id, subsystem_id;
  char bus_id[32];
} PciInfo;
typedef struct {
  uint32_t sms, copy, decode, encode, jpeg, ofa, gi_slices, ci_slices;
  uint64_t memory_mib;
} Attributes;
typedef struct {
  uint32_t id, p2p, slices, most, sms, copy, decode, encode, jpeg, ofa;
  uint64_t memory_mib;
} ProfileInfo;
typedef struct {
  uint32_t version, id, p2p, slices, most, sms, copy, decode, encode, jpeg, ofa;
  uint64_t memory_mib;
  char name[96];
} ProfileInfoV2;
typedef struct { uint32_t start, size; } Placement;
typedef struct { Handle device; uint32_t id, profile; Placement place; } GpuInstanceInfo;
typedef struct { Handle device, instance; uint32_t id, profile; Placement place; } ComputeInstanceInfo;
typedef struct { uint32_t version, sensor; int32_t celsius; } TemperatureV1;
typedef struct {
  uint32_t field, scope;
  int64_t time, latency;
  uint32_t type, result;
  uint64_t value;
} FieldValue;
typedef struct { Handle device; uint64_t type, data; uint32_t gi, ci; } EventData;
enum { VALUE_UINT = 1, VALUE_ULONGLONG = 3 };
