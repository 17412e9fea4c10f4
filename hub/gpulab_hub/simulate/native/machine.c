/* The mapped state, handles, and what this process may see of the machine.
 *
 * The state file is found by $GPULAB_SIMULATE, else at the place where containers get it. It names the
 * directory of the stand-in device nodes. Where that very directory is, this is the host and every node in it
 * counts. Elsewhere this is a container: then only nodes in /dev count that have the right numbers and that
 * the device cgroup lets us open. A node without a driver answers ENXIO; one that the cgroup forbids, EPERM.
 */
#define _GNU_SOURCE
#include "machine.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CONTAINER_STATE "/usr/local/share/gpulab/simulated-machine"

enum { NO_ATTACH = 2 };
enum { KIND_GPU = 1, KIND_MIG = 2, KIND_GPU_INSTANCE = 3, KIND_COMPUTE_INSTANCE = 4 };

State *machine;
static uint32_t users;
static uint32_t visible[MAX_GPUS], visible_count;
static int in_container, all_visible;
static int held[MAX_GPUS + 1], held_count; /* as the driver's nodes are held open while NVML is used */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void wait_while(const uint32_t *flag) {
  while (*(const volatile uint32_t *)flag) usleep(20000);
}

uint64_t microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t counted(const Traffic *traffic, uint64_t at) {
  double seconds = at > traffic->since ? (double)(at - traffic->since) / 1e6 : 0;
  return traffic->base + (uint64_t)((double)traffic->rate * seconds);
}

/* Real calls keep a processor busy in the kernel, and so does this: its own time counts, not the clock's. */
static void take_time(void) {
  struct timespec begin, now;
  if (!machine->delay) return;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < (long)machine->delay);
}

/* A node that nothing serves cannot be held open, but its place can: /proc shows it as it shows a real one. */
static void hold(const char *path) {
  int file = open(path, O_PATH | O_CLOEXEC);
  if (file >= 0) held[held_count++] = file;
}

static void let_go(void) {
  while (held_count) close(held[--held_count]);
}

/* Whether a node is there, is the device that it should be, and may be opened. */
static int granted(const char *name, uint32_t major, uint32_t minor, int mode) {
  char path[640];
  struct statx node;
  snprintf(path, sizeof path, "%s/%s", in_container ? "/dev" : machine->nodes, name);
  if (statx(AT_FDCWD, path, 0, STATX_TYPE, &node)) return 0;
  if (!S_ISCHR(node.stx_mode) || node.stx_rdev_major != major || node.stx_rdev_minor != minor) return 0;
  int file = open(path, mode | O_CLOEXEC | O_NONBLOCK);
  if (file >= 0) close(file);
  return file >= 0 || errno == ENXIO || errno == ENODEV;
}

static void hold_node(const char *name) {
  char path[640];
  snprintf(path, sizeof path, "%s/%s", in_container ? "/dev" : machine->nodes, name);
  hold(path);
}

static int granted_capability(uint32_t minor) {
  char name[64];
  snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%u", minor);
  return granted(name, machine->major_caps, minor, O_RDONLY);
}

/* With NO_ATTACH the driver shows no GPU, whatever may be opened. */
static void look_at_nodes(uint32_t flags) {
  struct statx found;
  all_visible = !machine->nodes[0]; /* a machine without nodes, for processes of the host only */
  in_container = !all_visible && (statx(AT_FDCWD, machine->nodes, 0, STATX_INO, &found) != 0 ||
                                  found.stx_ino != machine->nodes_inode);
  visible_count = 0;
  if (!all_visible) hold_node("nvidiactl");
  if (flags & NO_ATTACH) return;
  for (uint32_t at = 0; at < machine->gpus && at < MAX_GPUS; at++) {
    char name[32];
    uint32_t minor = machine->gpu[at].minor;
    snprintf(name, sizeof name, "nvidia%u", minor);
    if (!all_visible && !granted(name, machine->major_gpu, minor, O_RDWR)) continue;
    visible[visible_count++] = at;
    if (!all_visible) hold_node(name);
  }
}

static int map_state(void) {
  const char *path = getenv("GPULAB_SIMULATE");
  int file = open(path && *path ? path : CONTAINER_STATE, O_RDONLY | O_CLOEXEC);
  if (file < 0) return DRIVER_NOT_LOADED;
  off_t size = lseek(file, 0, SEEK_END);
  State *mapped = size == (off_t)sizeof(State) ? mmap(0, sizeof(State), PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) return VERSION_MISMATCH;
  if (mapped->magic != MAGIC || mapped->size != sizeof(State)) {
    munmap(mapped, sizeof(State));
    return VERSION_MISMATCH;
  }
  machine = mapped;
  return OK;
}

NVML nvmlInitWithFlags(uint32_t flags) {
  pthread_mutex_lock(&lock);
  int code = OK;
  if (!users) {
    if (machine) munmap(machine, sizeof(State));
    machine = NULL;
    code = map_state();
    if (!code) {
      wait_while(&machine->hang);
      code = machine->init_error;
    }
    if (!code) look_at_nodes(flags);
    if (!code && !visible_count && !(flags & NO_ATTACH)) code = DRIVER_NOT_LOADED;
    if (code) let_go();
  }
  if (!code) users++;
  pthread_mutex_unlock(&lock);
  return code;
}

NVML nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
NVML nvmlInit(void) { return nvmlInitWithFlags(0); }

NVML nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  int code = users ? OK : UNINITIALIZED;
  if (users && !--users) let_go();
  pthread_mutex_unlock(&lock);
  return code;
}

static int ready(void) {
  if (!machine || !users) return UNINITIALIZED;
  wait_while(&machine->hang);
  return (int)*(volatile uint32_t *)&machine->init_error; /* the driver went away while we had it open */
}

int started(void) {
  int code = ready();
  if (!code) take_time();
  return code;
}

void wait_for(const Target *target, const char *function) {
  const char *hangs = target->gpu->hang_call;
  while (*(const volatile char *)hangs && !strncmp(function, hangs, strlen(hangs))) usleep(20000);
}

int inside_container(void) { return in_container; }
uint32_t visible_gpus(void) { return visible_count; }
int visible_gpu(uint32_t index) { return index < visible_count ? (int)visible[index] : -1; }

uint32_t gpu_index(uint32_t at) {
  for (uint32_t index = 0; index < visible_count; index++)
    if (visible[index] == at) return index;
  return NOTHING;
}

int visible_mig(uint32_t gpu_at, uint32_t mig_at) {
  Mig *mig = &machine->gpu[gpu_at].mig[mig_at];
  if (!mig->used) return 0;
  return all_visible || (granted_capability(mig->gi_minor) && granted_capability(mig->ci_minor));
}

/* The driver asks for the capability "mig/monitor" (minor 2) or "mig/config" (minor 1). */
int may_look_around(void) {
  if (machine->unprivileged) return 0;
  return all_visible || granted_capability(2) || granted_capability(1);
}

/* Handles are opaque to callers: a kind and two positions, never dereferenced. */
static Handle handle_of(uint32_t kind, uint32_t gpu, uint32_t mig) {
  return (Handle)(uintptr_t)(kind << 28 | gpu << 8 | mig);
}
Handle gpu_handle(uint32_t gpu) { return handle_of(KIND_GPU, gpu, 0); }
Handle mig_handle(uint32_t gpu, uint32_t mig) { return handle_of(KIND_MIG, gpu, mig); }
Handle gpu_instance_handle(uint32_t gpu, uint32_t mig) { return handle_of(KIND_GPU_INSTANCE, gpu, mig); }
Handle compute_instance_handle(uint32_t gpu, uint32_t mig) { return handle_of(KIND_COMPUTE_INSTANCE, gpu, mig); }

static int locate(Handle handle, Target *target, uint32_t *kind) {
  int code = ready();
  if (code) return code;
  uint32_t value = (uint32_t)(uintptr_t)handle;
  *kind = value >> 28;
  target->gpu_at = value >> 8 & 0xff;
  target->mig_at = value & 0xff;
  if (!*kind || *kind > KIND_COMPUTE_INSTANCE || target->gpu_at >= machine->gpus) return INVALID_ARGUMENT;
  target->gpu = &machine->gpu[target->gpu_at];
  target->mig = NULL;
  if (*kind != KIND_GPU) {
    if (target->mig_at >= MAX_MIGS || !target->gpu->mig[target->mig_at].used) return INVALID_ARGUMENT;
    target->mig = &target->gpu->mig[target->mig_at];
  }
  wait_while(&target->gpu->hang);
  if (target->gpu->lost) return GPU_IS_LOST;
  return target->gpu->reset_required ? RESET_REQUIRED : OK;
}

int look(Handle handle, Target *target) {
  uint32_t kind;
  int code = locate(handle, target, &kind);
  return code ? code : kind <= KIND_MIG ? OK : INVALID_ARGUMENT;
}

int find(Handle handle, Target *target) {
  STARTED();
  return look(handle, target);
}

int find_gpu(Handle handle, Target *target) {
  int code = find(handle, target);
  return code ? code : target->mig ? NOT_SUPPORTED : OK;
}

int find_instance(Handle handle, Target *target) {
  STARTED();
  uint32_t kind;
  int code = locate(handle, target, &kind);
  return code ? code : kind >= KIND_GPU_INSTANCE ? OK : INVALID_ARGUMENT;
}

int put_text(char *out, uint32_t room, const char *text) {
  if (!out) return INVALID_ARGUMENT;
  if (strlen(text) + 1 > room) return INSUFFICIENT_SIZE;
  strcpy(out, text);
  return OK;
}
