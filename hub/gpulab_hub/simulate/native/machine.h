/* The mapped state, handles, and what this process may see of the machine. */
#pragma once
#include "nvml.h"

/* What a handle stands for; `mig` is NULL for a physical GPU. */
typedef struct {
  Gpu *gpu;
  Mig *mig;
  uint32_t gpu_at, mig_at;
} Target;

extern State *machine;

int started(void);                        /* OK, or UNINITIALIZED; waits while the machine hangs, takes its time */
int find(Handle handle, Target *target);  /* a GPU or a MIG device */
int look(Handle handle, Target *target);  /* the same within a call that has taken its time already */
void wait_for(const Target *target, const char *function); /* while calls of that function hang on that GPU */
uint64_t microseconds(void);              /* of Unix time */
uint64_t counted(const Traffic *traffic, uint64_t at);
int find_gpu(Handle handle, Target *target);      /* NOT_SUPPORTED for a MIG device */
int find_instance(Handle handle, Target *target); /* a GPU instance or a compute instance */
uint32_t visible_gpus(void);
int visible_gpu(uint32_t index);          /* position in the state of the index-th visible GPU, or -1 */
uint32_t gpu_index(uint32_t at);          /* its inverse */
int visible_mig(uint32_t gpu_at, uint32_t mig_at);
int may_look_around(void);                /* whether the caller may see what is not its own */
int inside_container(void);

Handle gpu_handle(uint32_t gpu);
Handle mig_handle(uint32_t gpu, uint32_t mig);
Handle gpu_instance_handle(uint32_t gpu, uint32_t mig);
Handle compute_instance_handle(uint32_t gpu, uint32_t mig);

int put_text(char *out, uint32_t room, const char *text);

/* Declares `t` for a handle, or returns why there is none. */
#define TARGET(finder, handle) \
  Target t;                    \
  do {                         \
    int code_ = finder(handle, &t); \
    if (code_) return code_;   \
    wait_for(&t, __func__);    \
  } while (0)
#define STARTED()             \
  do {                        \
    int code_ = started();    \
    if (code_) return code_;  \
  } while (0)
