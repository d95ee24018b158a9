/* A made-up CUDA driver (libcuda.so.1) for machines without a GPU. It is written from the public header alone.

   Device memory is a memfd per physical allocation, so exporting and importing it by descriptor is the real thing, across
   processes and past the death of its maker. A device address is reserved and never accessible: host code that touches
   it faults. Work on a stream runs a while later, on a thread of its own, or only when somebody waits for it: what a
   program does not wait for is visibly not there.

   What hardware refuses is refused here: mapping at an offset, sizes that are not a multiple of the granularity, writing
   through a read-only mapping (an illegal address, which spoils the context for good), reading past an allocation, use
   after a fork, work on a device that was lost.

   The environment says what there is:
     MADE_UP_GPUS          how many devices (2); CUDA_VISIBLE_DEVICES hides and reorders them, by number or UUID
     MADE_UP_GPU_DELAY_US  how long work on a stream waits (300), kernels four times as long; "lazy": until somebody
                           waits for it
     MADE_UP_GPU_MIB       memory of each device, as far as this process allocates it (4096)
     MADE_UP_GPU_INIT      what cuInit returns (0)
     MADE_UP_GPU_VMM       0: no virtual memory management;  MADE_UP_GPU_RDMA  0: no GPUDirect
     MADE_UP_GPU_PEERS     0: no device reaches another one's memory
     MADE_UP_GPU_LOST      a file: once it exists, every device is lost
     MADE_UP_GPU_LOG       1: what was refused, 2: memory and launches, 3: copies too                                    */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define __CUDA_API_VERSION_INTERNAL /* the header then renames no symbols */
#include <cuda.h>
#undef cuGetProcAddress

#define GPUS 16
#define GRANULE (2ul << 20)
#define API __attribute__((visibility("default"))) CUresult
#define READS 1
#define WRITES 3

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}
static int verbosity(void) {
    static int level = -1;
    if (level < 0) level = (int)number("MADE_UP_GPU_LOG", 0);
    return level;
}
#define LOG(level, ...) do { if (verbosity() >= level) { fprintf(stderr, "[gpu %d] ", getpid()); fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); } } while (0)

/* One lock for everything. It is recursive, since callbacks and unmapping look around again; it is held once wherever
   somebody waits for `changed`. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
#define LOCK pthread_mutex_lock(&lock)
#define UNLOCK pthread_mutex_unlock(&lock)

/* --- devices ------------------------------------------------------------------------------------------------------- */

static pid_t started; /* the process that called cuInit */
static int visible[GPUS], visible_count;

static void uuid_text(int gpu, char *text) { sprintf(text, "GPU-00000000-0000-4000-8000-0000000000%02x", gpu); }

static void find_devices(void) {
    int real = (int)number("MADE_UP_GPUS", 2);
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    char copy[1024], text[64];
    visible_count = 0;
    if (!given) {
        for (int i = 0; i < real && i < GPUS; i++) visible[visible_count++] = i;
        return;
    }
    snprintf(copy, sizeof copy, "%s", given);
    for (char *rest = copy, *item; (item = strsep(&rest, ",")) && visible_count < GPUS;) {
        int found = -1;
        for (int i = 0; i < real; i++) {
            uuid_text(i, text);
            if (!strcmp(item, text)) found = i;
        }
        if (found < 0 && *item >= '0' && *item <= '9' && atoi(item) < real) found = atoi(item);
        if (found < 0) return; /* the first that does not exist ends the list */
        visible[visible_count++] = found;
    }
}
static int exists(CUdevice device) { return device >= 0 && device < visible_count; }
static int ordinal_of(int gpu) {
    for (int i = 0; i < visible_count; i++)
        if (visible[i] == gpu) return i;
    return CU_DEVICE_INVALID;
}
static int peers(void) { return (int)number("MADE_UP_GPU_PEERS", 1); }

/* --- contexts: one per device; an error in a kernel or a copy spoils it for good -------------------------------------- */

struct CUctx_st { int device, retained; unsigned flags; CUresult spoilt; };
static struct CUctx_st primary[GPUS];
static __thread CUcontext stack[64];
static __thread int depth;
#define CURRENT (depth ? stack[depth - 1] : NULL)

static CUresult initialised(void) { return started == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
static CUresult state_of(CUcontext context) {
    const char *file = getenv("MADE_UP_GPU_LOST");
    if (!context->spoilt && file && *file && !access(file, F_OK)) context->spoilt = CUDA_ERROR_DEVICE_UNAVAILABLE;
    return context->spoilt;
}
#define NEED_DRIVER do { CUresult r_ = initialised(); if (r_) return r_; } while (0)
#define NEED_DEVICE(d) do { NEED_DRIVER; if (!exists(d)) return CUDA_ERROR_INVALID_DEVICE; } while (0)
#define NEED_CONTEXT do { NEED_DRIVER; if (!CURRENT) return CUDA_ERROR_INVALID_CONTEXT; CUresult r_ = state_of(CURRENT); if (r_) return r_; } while (0)

/* --- memory ---------------------------------------------------------------------------------------------------------- */

struct physical {
    int fd, gpu, references, rdma, ours; /* ours: made here, and counted in `used` */
    size_t size;
    char *bytes;
    unsigned long long handle_types, id;
};
enum kind { NONE, RESERVED, MAPPED, ALLOCATED, OPENED, PINNED, REGISTERED };
struct range {
    enum kind kind;
    uintptr_t start;
    size_t size;
    struct physical *physical;
    unsigned char access[GPUS];
    unsigned flags;
};
static struct range *ranges;
static int range_count, range_room;
static unsigned long long ids = 1;
static size_t used[GPUS];

static struct range *find(uintptr_t at) {
    for (int i = 0; i < range_count; i++)
        if (ranges[i].kind && at - ranges[i].start < ranges[i].size) return &ranges[i];
    return NULL;
}
static struct range *find_start(uintptr_t at, enum kind kind) {
    struct range *found = find(at);
    return found && found->start == at && found->kind == kind ? found : NULL;
}
static struct range *add(uintptr_t start, size_t size, enum kind kind) {
    struct range *place = NULL;
    for (int i = 0; i < range_count && !place; i++)
        if (!ranges[i].kind) place = &ranges[i];
    if (!place) {
        if (range_count == range_room) ranges = realloc(ranges, (range_room += 256) * sizeof *ranges);
        place = &ranges[range_count++];
    }
    *place = (struct range){.kind = kind, .start = start, .size = size};
    return place;
}
static int on_device(const struct range *r) { return r && (r->kind == MAPPED || r->kind == ALLOCATED || r->kind == OPENED); }
static size_t capacity(void) { return (size_t)number("MADE_UP_GPU_MIB", 4096) << 20; }

static CUresult make(struct physical **made, size_t size, int gpu, unsigned long long types, int rdma) {
    char name[64];
    if (used[gpu] + size > capacity()) return CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(name, sizeof name, "gpu:%d:%llx:%d", gpu, types, rdma); /* what an importer must know travels in the name */
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    char *bytes = ftruncate(fd, (off_t)size) ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(bytes, 0xAB, size < 4096 ? size : 4096); /* fresh memory holds anything */
    *(*made = malloc(sizeof **made)) = (struct physical){fd, gpu, 1, rdma, 1, size, bytes, types, ids++};
    used[gpu] += size;
    return CUDA_SUCCESS;
}
static CUresult import(struct physical **made, int fd) {
    char path[64], name[128];
    struct stat info;
    int gpu, rdma;
    unsigned long long types;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, name, sizeof name - 1);
    if (n < 0) return CUDA_ERROR_INVALID_VALUE;
    name[n] = 0;
    if (sscanf(name, "/memfd:gpu:%d:%llx:%d", &gpu, &types, &rdma) != 3 || fstat(fd, &info)) return CUDA_ERROR_INVALID_VALUE;
    if ((fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    char *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *(*made = malloc(sizeof **made)) = (struct physical){fd, gpu, 1, rdma, 0, (size_t)info.st_size, bytes, types, ids++};
    return CUDA_SUCCESS;
}
static void drop(struct physical *p) {
    if (--p->references) return;
    munmap(p->bytes, p->size);
    close(p->fd);
    if (p->ours) used[p->gpu] -= p->size;
    free(p);
}
static uintptr_t reserve(size_t size) {
    char *at = mmap(NULL, size + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 0;
    uintptr_t start = ((uintptr_t)at + GRANULE - 1) & ~(GRANULE - 1), spare = start - (uintptr_t)at;
    if (spare) munmap(at, spare);
    if (spare < GRANULE) munmap((char *)start + size, GRANULE - spare);
    return start;
}
/* Where a device finds these bytes. NULL: it may not touch them. */
static char *reach(uintptr_t at, size_t size, int gpu, int wants) {
    struct range *r = find(at);
    if (!r) return (char *)at; /* pageable memory of the host */
    if (at - r->start + size > r->size) {
        LOG(1, "an access leaves its allocation at %lx", (unsigned long)at);
        return NULL;
    }
    if (!on_device(r)) return r->kind == RESERVED ? NULL : (char *)at;
    if ((r->access[gpu] & wants) != wants) {
        LOG(1, "device %d may not %s %lx", gpu, wants == WRITES ? "write to" : "read", (unsigned long)at);
        return NULL;
    }
    return r->physical->bytes + (at - r->start);
}
static void allow(struct range *r) { /* plain allocations: their own device, and its peers */
    for (int gpu = 0; gpu < GPUS; gpu++) r->access[gpu] = gpu == r->physical->gpu || peers() ? WRITES : 0;
}

/* --- streams ----------------------------------------------------------------------------------------------------------- */

enum work { COPY, FILL, SIGNAL, AWAIT, CALL, CALLBACK, KERNEL };
typedef int (*kernel)(void **, const unsigned *, void *(*reach)(uintptr_t, int, int));
struct launch { kernel code; unsigned shape[7]; void *arguments[64]; unsigned char room[4096]; };
struct operation {
    enum work work;
    uintptr_t to, from;
    size_t size;
    unsigned value, width;
    CUevent event;
    unsigned long long turn;
    CUhostFn function;
    CUstreamCallback callback;
    void *data;
    double due;
    CUcontext context;
    struct operation *next;
};
struct CUstream_st { struct operation *first, *last; int nonblocking, running; CUcontext context; CUstream next; };
struct CUevent_st { unsigned long long recorded, done; CUstream stream; CUcontext context; double at; };
static struct CUstream_st legacy[GPUS]; /* the default stream of each context */
static CUstream others;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int lazy(void) {
    const char *text = getenv("MADE_UP_GPU_DELAY_US");
    return text && !strcmp(text, "lazy");
}
static double delay(void) {
    static double seconds = -1;
    if (seconds < 0) seconds = 1e-6 * (double)number("MADE_UP_GPU_DELAY_US", 300);
    return seconds;
}
static void drain(CUstream s);
static char *reach_locked(uintptr_t at, size_t size, int gpu, int wants) {
    LOCK;
    char *there = reach(at, size, gpu, wants);
    UNLOCK;
    return there;
}
static void *reach_for_kernel(uintptr_t at, int gpu, int writes) { return reach_locked(at, 1, gpu, writes ? WRITES : READS); }

static void perform(CUstream s, struct operation *o) { /* without the lock: kernels take long, callbacks call back */
    int gpu = visible[o->context->device], spoilt = state_of(o->context) != CUDA_SUCCESS;
    char *to, *from;
    switch (o->work) {
    case COPY:
        to = reach_locked(o->to, o->size, gpu, WRITES);
        from = reach_locked(o->from, o->size, gpu, READS);
        if (!to || !from) o->context->spoilt = CUDA_ERROR_ILLEGAL_ADDRESS;
        else if (!spoilt) memmove(to, from, o->size);
        LOG(3, "copied %zu", o->size);
        break;
    case FILL:
        to = reach_locked(o->to, o->size, gpu, WRITES);
        if (!to) o->context->spoilt = CUDA_ERROR_ILLEGAL_ADDRESS;
        else if (!spoilt) for (size_t i = 0; i < o->size; i += o->width) memcpy(to + i, &o->value, o->width);
        break;
    case SIGNAL:
        LOCK;
        if (o->event->done < o->turn) {
            o->event->done = o->turn;
            o->event->at = now();
        }
        pthread_cond_broadcast(&changed);
        UNLOCK;
        break;
    case AWAIT:
        LOCK;
        while (o->event->done < o->turn) {
            CUstream other = o->event->stream;
            if (other != s && other->first && !other->running) drain(other);
            else pthread_cond_wait(&changed, &lock);
        }
        UNLOCK;
        break;
    case CALL: o->function(o->data); break;
    case CALLBACK: o->callback(s, state_of(o->context), o->data); break;
    case KERNEL: {
        struct launch *l = o->data;
        if (!spoilt && l->code(l->arguments, l->shape, reach_for_kernel)) o->context->spoilt = CUDA_ERROR_ILLEGAL_ADDRESS;
        free(l);
        break;
    }
    }
}
static void run_one(CUstream s) { /* with the lock, which is open meanwhile */
    struct operation *o = s->first;
    if (!(s->first = o->next)) s->last = NULL;
    s->running = 1;
    UNLOCK;
    perform(s, o);
    free(o);
    LOCK;
    s->running = 0;
    pthread_cond_broadcast(&changed);
}
static void drain(CUstream s) {
    while (s->first || s->running)
        if (s->running) pthread_cond_wait(&changed, &lock);
        else run_one(s);
}
static void drain_blocking(CUcontext context) {
    for (CUstream s = others; s; s = s->next)
        if (!s->nonblocking && s->context == context) drain(s);
}
static void drain_all(CUcontext context) {
    drain(&legacy[context->device]);
    for (CUstream s = others; s; s = s->next)
        if (s->context == context) drain(s);
}
static CUstream due_next(double *soonest) {
    CUstream next = NULL;
    for (int i = 0; i < GPUS; i++)
        if (legacy[i].first && !legacy[i].running && legacy[i].first->due < *soonest) *soonest = (next = &legacy[i])->first->due;
    for (CUstream s = others; s; s = s->next)
        if (s->first && !s->running && s->first->due < *soonest) *soonest = (next = s)->first->due;
    return next;
}
static void *work_off(void *nothing) { /* a device works by itself, a while later */
    LOCK;
    for (;;) {
        double soonest = now() + 1;
        CUstream next = due_next(&soonest);
        double wait = soonest - now();
        if (next && wait <= 0) {
            run_one(next);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)(1e9 * (wait < 0 ? 0 : wait));
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&changed, &lock, &until);
    }
    return nothing;
}
static CUstream stream_of(CUstream given) {
    return !given || given == CU_STREAM_LEGACY || given == CU_STREAM_PER_THREAD ? &legacy[CURRENT->device] : given;
}
static CUresult push(CUstream given, struct operation o, int wait) {
    static int working;
    LOCK;
    if (!working && !lazy()) {
        pthread_t thread;
        working = 1;
        pthread_create(&thread, NULL, work_off, NULL);
        pthread_detach(thread);
    }
    CUstream s = stream_of(given);
    if (!s->context) s->context = CURRENT;
    /* The default stream and streams that block wait for each other. */
    if (s == &legacy[s->context->device]) drain_blocking(s->context);
    else if (!s->nonblocking) drain(&legacy[s->context->device]);
    o.context = s->context;
    o.due = now() + (o.work == KERNEL ? 4 : 1) * delay(); /* else a copy that should wait for a kernel would do so by chance */
    struct operation *copy = malloc(sizeof o);
    *copy = o;
    if (s->last) s->last->next = copy;
    else s->first = copy;
    s->last = copy;
    if (wait) drain(s);
    else pthread_cond_broadcast(&changed);
    CUresult result = wait ? s->context->spoilt : CUDA_SUCCESS;
    UNLOCK;
    return result;
}

/* --- the driver, its devices and contexts -------------------------------------------------------------------------------- */

API cuInit(unsigned flags) {
    CUresult wanted = (CUresult)number("MADE_UP_GPU_INIT", 0);
    if (wanted) return wanted;
    if (started && started != getpid()) return CUDA_ERROR_NOT_INITIALIZED; /* as after a fork */
    if (!started) find_devices();
    if (!visible_count) return CUDA_ERROR_NO_DEVICE;
    started = getpid();
    return CUDA_SUCCESS;
}
API cuDriverGetVersion(int *version) { *version = 12090; return 0; }
API cuDeviceGetCount(int *count) { NEED_DRIVER; *count = visible_count; return 0; }
API cuDeviceGet(CUdevice *device, int ordinal) { NEED_DEVICE(ordinal); *device = ordinal; return 0; }
API cuDeviceGetName(char *name, int room, CUdevice d) { NEED_DEVICE(d); snprintf(name, (size_t)room, "Made-up GPU %d", visible[d]); return 0; }
API cuDeviceTotalMem_v2(size_t *bytes, CUdevice d) { NEED_DEVICE(d); *bytes = capacity(); return 0; }
API cuDeviceGetUuid(CUuuid *uuid, CUdevice d) {
    NEED_DEVICE(d);
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[6] = 0x40;
    uuid->bytes[8] = (char)0x80;
    uuid->bytes[15] = (char)visible[d];
    return 0;
}
API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice d) { return cuDeviceGetUuid(uuid, d); }
API cuDeviceGetPCIBusId(char *text, int room, CUdevice d) { NEED_DEVICE(d); snprintf(text, (size_t)room, "0000:%02x:00.0", 0x10 + visible[d]); return 0; }
API cuDeviceGetByPCIBusId(CUdevice *d, const char *text) {
    unsigned domain, bus;
    NEED_DRIVER;
    if (sscanf(text, "%x:%x", &domain, &bus) < 2) return CUDA_ERROR_INVALID_VALUE;
    *d = ordinal_of((int)bus - 0x10);
    return exists(*d) ? 0 : CUDA_ERROR_INVALID_DEVICE;
}
API cuDeviceComputeCapability(int *major, int *minor, CUdevice d) { NEED_DEVICE(d); *major = 8; *minor = 0; return 0; }
API cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice d) {
    NEED_DEVICE(d);
    switch ((int)what) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 8; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = 0x10 + visible[d]; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 0x7fffffff; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 2; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = (int)number("MADE_UP_GPU_VMM", 1); break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: *value = (int)number("MADE_UP_GPU_RDMA", 1); break;
    default: *value = 0; /* no managed memory, no pools, no events between processes, no dma-buf, no fabric */
    }
    return 0;
}
API cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b) { NEED_DEVICE(a); NEED_DEVICE(b); *can = a != b && peers(); return 0; }
API cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute what, CUdevice a, CUdevice b) {
    NEED_DEVICE(a);
    *value = what == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED && a != b && peers();
    return 0;
}
API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice d) {
    NEED_DEVICE(d);
    LOCK;
    primary[d].device = d;
    primary[d].retained++;
    UNLOCK;
    *context = &primary[d];
    return 0;
}
API cuDevicePrimaryCtxRelease_v2(CUdevice d) { LOCK; if (primary[d].retained) primary[d].retained--; UNLOCK; return 0; }
API cuDevicePrimaryCtxRelease(CUdevice d) { return cuDevicePrimaryCtxRelease_v2(d); }
API cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) { NEED_DEVICE(d); if (flags) *flags = primary[d].flags; *active = primary[d].retained > 0; return 0; }
API cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned flags) { NEED_DEVICE(d); primary[d].flags = flags; return 0; }
API cuCtxGetCurrent(CUcontext *c) { NEED_DRIVER; *c = CURRENT; return 0; }
API cuCtxSetCurrent(CUcontext c) {
    NEED_DRIVER;
    if (!c) { if (depth) depth--; return 0; }
    if (!depth) depth = 1;
    stack[depth - 1] = c;
    return 0;
}
API cuCtxPushCurrent_v2(CUcontext c) { NEED_DRIVER; if (!c || depth == 64) return CUDA_ERROR_INVALID_CONTEXT; stack[depth++] = c; return 0; }
API cuCtxPopCurrent_v2(CUcontext *c) { if (!depth) return CUDA_ERROR_INVALID_CONTEXT; depth--; if (c) *c = stack[depth]; return 0; }
API cuCtxGetDevice(CUdevice *d) { NEED_DRIVER; if (!CURRENT) return CUDA_ERROR_INVALID_CONTEXT; *d = CURRENT->device; return 0; }
API cuCtxGetDevice_v2(CUdevice *d, CUcontext c) { c = c ? c : CURRENT; if (!c) return CUDA_ERROR_INVALID_CONTEXT; *d = c->device; return 0; }
API cuCtxGetId(CUcontext c, unsigned long long *id) { c = c ? c : CURRENT; if (!c) return CUDA_ERROR_INVALID_CONTEXT; *id = (unsigned long long)c->device + 1; return 0; }
API cuCtxGetFlags(unsigned *flags) { NEED_CONTEXT; *flags = CURRENT->flags; return 0; }
API cuCtxSetFlags(unsigned flags) { NEED_CONTEXT; CURRENT->flags = flags; return 0; }
API cuCtxGetApiVersion(CUcontext c, unsigned *version) { *version = 12090; return 0; }
API cuCtxSynchronize(void) { NEED_CONTEXT; LOCK; drain_all(CURRENT); UNLOCK; return CURRENT->spoilt; }
API cuCtxGetStreamPriorityRange(int *least, int *greatest) { if (least) *least = 0; if (greatest) *greatest = 0; return 0; }
API cuCtxEnablePeerAccess(CUcontext c, unsigned flags) { return peers() ? 0 : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED; }
API cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 1024; return 0; }

/* --- virtual memory: none of this needs a context --------------------------------------------------------------------------- */

#define PHYSICAL(handle) ((struct physical *)(uintptr_t)(handle))
API cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags o) { NEED_DRIVER; *size = GRANULE; return 0; }
API cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *p, unsigned long long flags) {
    struct physical *made;
    NEED_DRIVER;
    if (!number("MADE_UP_GPU_VMM", 1)) return CUDA_ERROR_NOT_SUPPORTED;
    if (!size || size % GRANULE || flags || p->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !exists(p->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (p->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if (p->allocFlags.gpuDirectRDMACapable && !number("MADE_UP_GPU_RDMA", 1)) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult state = state_of(&primary[p->location.id]);
    if (state) return state;
    LOCK;
    CUresult r = make(&made, size, visible[p->location.id], p->requestedHandleTypes, p->allocFlags.gpuDirectRDMACapable);
    UNLOCK;
    if (!r) *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    LOG(2, "create %zu: %d", size, r);
    return r;
}
API cuMemRelease(CUmemGenericAllocationHandle handle) { LOCK; drop(PHYSICAL(handle)); UNLOCK; return 0; }
API cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags) return CUDA_ERROR_NOT_SUPPORTED;
    if (!(PHYSICAL(handle)->handle_types & type)) return CUDA_ERROR_INVALID_VALUE;
    int fd = fcntl(PHYSICAL(handle)->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return 0;
}
API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *given, CUmemAllocationHandleType type) {
    struct physical *made;
    NEED_DRIVER;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    LOCK;
    CUresult r = import(&made, (int)(intptr_t)given);
    UNLOCK;
    if (!r) *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return r;
}
API cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
    NEED_DRIVER;
    if (!size || size % GRANULE) return CUDA_ERROR_INVALID_VALUE;
    LOCK;
    uintptr_t start = reserve(size);
    if (start) add(start, size, RESERVED);
    UNLOCK;
    *at = start;
    return start ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}
API cuMemAddressFree(CUdeviceptr at, size_t size) {
    LOCK;
    struct range *r = find_start(at, RESERVED);
    int right = r && r->size == size;
    if (right) {
        munmap((void *)at, size);
        r->kind = NONE;
    }
    UNLOCK;
    return right ? 0 : CUDA_ERROR_INVALID_VALUE;
}
API cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    LOCK;
    struct range *r = find_start(at, RESERVED);
    int right = r && r->size == size && !offset && !flags && size <= PHYSICAL(handle)->size;
    if (right) {
        r->kind = MAPPED;
        r->physical = PHYSICAL(handle);
        r->physical->references++;
        memset(r->access, 0, sizeof r->access);
    }
    UNLOCK;
    return right ? 0 : CUDA_ERROR_INVALID_VALUE;
}
API cuMemUnmap(CUdeviceptr at, size_t size) { /* it waits for nothing: work that still reads it meets an illegal address */
    NEED_DRIVER;
    LOCK;
    struct range *r = find_start(at, MAPPED);
    int right = r && r->size == size;
    if (right) {
        r->kind = RESERVED;
        drop(r->physical);
        r->physical = NULL;
    }
    UNLOCK;
    return right ? 0 : CUDA_ERROR_INVALID_VALUE;
}
API cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count) {
    CUresult result = 0;
    NEED_DRIVER;
    LOCK;
    struct range *r = find_start(at, MAPPED);
    if (!r || r->size != size) result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && !result; i++) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !exists(desc[i].location.id)) result = CUDA_ERROR_INVALID_DEVICE;
        else if (visible[desc[i].location.id] != r->physical->gpu && !peers()) result = CUDA_ERROR_INVALID_DEVICE;
        else r->access[visible[desc[i].location.id]] = (unsigned char)desc[i].flags;
    }
    UNLOCK;
    return result;
}
API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at) {
    LOCK;
    struct range *r = find(at);
    CUresult result = on_device(r) ? 0 : CUDA_ERROR_INVALID_VALUE;
    if (!result) *flags = r->access[visible[location->id]];
    UNLOCK;
    return result;
}
API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at) {
    LOCK;
    struct range *r = find((uintptr_t)at);
    CUresult result = r && r->kind == MAPPED ? 0 : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        r->physical->references++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)r->physical;
    }
    UNLOCK;
    return result;
}
API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle) {
    struct physical *p = PHYSICAL(handle);
    memset(out, 0, sizeof *out);
    out->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    out->requestedHandleTypes = (CUmemAllocationHandleType)p->handle_types;
    out->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    out->location.id = ordinal_of(p->gpu);
    out->allocFlags.gpuDirectRDMACapable = (unsigned char)p->rdma;
    return 0;
}

/* --- plain allocations, memory of the host, sharing between processes of old ----------------------------------------------- */

static CUresult give_out(CUdeviceptr *at, struct physical *p, enum kind kind) {
    uintptr_t start = reserve(p->size);
    if (!start) {
        drop(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct range *r = add(start, p->size, kind);
    r->physical = p;
    allow(r);
    *at = start;
    return CUDA_SUCCESS;
}
static CUresult give_up(CUdeviceptr at, enum kind kind) {
    if (!at) return 0;
    NEED_CONTEXT;
    LOCK;
    drain_all(CURRENT);
    struct range *r = find_start(at, kind);
    if (r) {
        munmap((void *)r->start, r->size);
        drop(r->physical);
        r->kind = NONE;
    }
    UNLOCK;
    return r ? 0 : CUDA_ERROR_INVALID_VALUE;
}
API cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
    struct physical *p;
    NEED_CONTEXT;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    LOCK;
    CUresult result = make(&p, (size + GRANULE - 1) & ~(GRANULE - 1), visible[CURRENT->device], 0, 0);
    if (!result) result = give_out(at, p, ALLOCATED);
    UNLOCK;
    return result;
}
API cuMemFree_v2(CUdeviceptr at) { return give_up(at, ALLOCATED); }
API cuMemAllocAsync(CUdeviceptr *at, size_t size, CUstream s) { return cuMemAlloc_v2(at, size); }
API cuMemFreeAsync(CUdeviceptr at, CUstream s) { return cuMemFree_v2(at); }
API cuMemAllocManaged(CUdeviceptr *at, size_t size, unsigned flags) { return CUDA_ERROR_NOT_SUPPORTED; }
API cuMemGetInfo_v2(size_t *left, size_t *total) { NEED_CONTEXT; *total = capacity(); *left = *total - used[visible[CURRENT->device]]; return 0; }
API cuMemHostAlloc(void **at, size_t size, unsigned flags) {
    NEED_CONTEXT;
    size_t whole = (size + 4095) & ~4095ul;
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    LOCK;
    add((uintptr_t)p, whole, PINNED)->flags = flags;
    UNLOCK;
    *at = p;
    return 0;
}
API cuMemAllocHost_v2(void **at, size_t size) { return cuMemHostAlloc(at, size, 0); }
API cuMemFreeHost(void *at) {
    NEED_CONTEXT;
    LOCK;
    drain_all(CURRENT);
    struct range *r = find_start((uintptr_t)at, PINNED);
    if (r) {
        munmap(at, r->size);
        r->kind = NONE;
    }
    UNLOCK;
    return r ? 0 : CUDA_ERROR_INVALID_VALUE;
}
API cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    NEED_CONTEXT;
    LOCK;
    struct range *there = find((uintptr_t)at);
    if (!there) add((uintptr_t)at, size, REGISTERED)->flags = flags;
    UNLOCK;
    return there ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : 0;
}
API cuMemHostUnregister(void *at) {
    LOCK;
    struct range *r = find_start((uintptr_t)at, REGISTERED);
    if (r) r->kind = NONE;
    UNLOCK;
    return r ? 0 : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
API cuMemHostGetDevicePointer_v2(CUdeviceptr *d, void *at, unsigned flags) { *d = (CUdeviceptr)at; return 0; }
API cuMemHostGetFlags(unsigned *flags, void *at) {
    LOCK;
    struct range *r = find((uintptr_t)at);
    if (r) *flags = r->flags;
    UNLOCK;
    return r ? 0 : CUDA_ERROR_INVALID_VALUE;
}
API cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr at) {
    LOCK;
    struct range *r = find(at);
    CUresult result = on_device(r) ? 0 : CUDA_ERROR_NOT_FOUND;
    if (!result && start) *start = r->start;
    if (!result && size) *size = r->size;
    UNLOCK;
    return result;
}
struct ipc_handle { pid_t pid; int fd; };
API cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
    LOCK;
    struct range *r = find(at);
    CUresult result = r && r->kind == ALLOCATED ? 0 : CUDA_ERROR_INVALID_VALUE; /* not for virtual memory */
    memset(handle, 0, sizeof *handle);
    if (!result) *(struct ipc_handle *)handle = (struct ipc_handle){getpid(), r->physical->fd};
    UNLOCK;
    return result;
}
API cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags) {
    struct ipc_handle h;
    char path[64];
    struct physical *p;
    NEED_CONTEXT;
    memcpy(&h, &handle, sizeof h);
    if (h.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_MAP_FAILED;
    LOCK;
    CUresult result = import(&p, fd);
    close(fd);
    if (!result) result = give_out(at, p, OPENED);
    UNLOCK;
    return result;
}
API cuIpcCloseMemHandle(CUdeviceptr at) { return give_up(at, OPENED); }

/* --- what a pointer is -------------------------------------------------------------------------------------------------------- */

API cuPointerGetAttribute(void *out, CUpointer_attribute what, CUdeviceptr at) {
    struct range r = {0};
    NEED_DRIVER;
    LOCK;
    struct range *found = find(at);
    if (found) r = *found;
    unsigned long long id = on_device(&r) ? r.physical->id : r.start, types = on_device(&r) ? r.physical->handle_types : 0;
    int ordinal = on_device(&r) ? ordinal_of(r.physical->gpu) : 0;
    UNLOCK;
    if (r.kind == NONE || r.kind == RESERVED) return CUDA_ERROR_INVALID_VALUE;
    int device = on_device(&r);
    switch (what) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)out = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; return 0;
    case CU_POINTER_ATTRIBUTE_CONTEXT: /* virtual memory has none */
        *(CUcontext *)out = (r.kind == ALLOCATED || r.kind == OPENED) && ordinal >= 0 ? &primary[ordinal] : NULL;
        return 0;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = at; return 0;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (device) return CUDA_ERROR_INVALID_VALUE;
        *(CUdeviceptr *)out = at;
        return 0;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = 0; return 0;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned *)out = r.kind == ALLOCATED; return 0;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = ordinal; return 0;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = id; return 0;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = r.start; return 0;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = r.size; return 0;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)out = 1; return 0;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)out = types; return 0;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(void **)out = NULL; return 0;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(unsigned *)out = device && CURRENT ? r.access[visible[CURRENT->device]] : WRITES; return 0;
    default: LOG(1, "pointer attribute %d is not known", what); return CUDA_ERROR_INVALID_VALUE;
    }
}
API cuPointerGetAttributes(unsigned count, CUpointer_attribute *what, void **out, CUdeviceptr at) {
    NEED_DRIVER;
    for (unsigned i = 0; i < count; i++) {
        if (!cuPointerGetAttribute(out[i], what[i], at)) continue;
        switch (what[i]) {
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out[i] = CU_DEVICE_INVALID; break;
        case CU_POINTER_ATTRIBUTE_CONTEXT:
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)out[i] = 0; break;
        default: *(unsigned *)out[i] = 0;
        }
    }
    return 0;
}
API cuPointerSetAttribute(const void *value, CUpointer_attribute what, CUdeviceptr at) {
    LOCK;
    struct range *r = find(at);
    CUresult result = !r ? CUDA_ERROR_INVALID_VALUE : r->kind == MAPPED ? CUDA_ERROR_NOT_SUPPORTED : 0;
    UNLOCK;
    return result;
}
API cuMemRangeGetAttribute(void *out, size_t size, CUmem_range_attribute what, CUdeviceptr at, size_t count) { return CUDA_ERROR_INVALID_VALUE; }

/* --- copies: pageable memory is read before the call returns, or is waited for, as documented --------------------------------- */

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s, int wait) {
    NEED_CONTEXT;
    if (!size) return 0;
    struct operation o = {.work = COPY, .to = to, .from = from, .size = size};
    LOCK;
    int to_pageable = !find(to), from_pageable = !find(from);
    UNLOCK;
    if (wait || to_pageable) return push(s, o, 1);
    if (!from_pageable) return push(s, o, 0);
    char *read = malloc(size);
    memcpy(read, (void *)from, size);
    o.from = (uintptr_t)read;
    push(s, o, 0);
    return push(s, (struct operation){.work = CALL, .function = free, .data = read}, 0);
}
API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(to, from, n, NULL, 1); }
API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return copy(to, from, n, s, 0); }
API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) { return copy(to, (CUdeviceptr)from, n, NULL, 1); }
API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) { return copy((CUdeviceptr)to, from, n, NULL, 1); }
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(to, from, n, NULL, 0); } /* does not wait */
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s) { return copy(to, (CUdeviceptr)from, n, s, 0); }
API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s) { return copy((CUdeviceptr)to, from, n, s, 0); }
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return copy(to, from, n, s, 0); }
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t n, CUstream s) { return copy(to, from, n, s, 0); }
static CUresult fill(CUdeviceptr to, unsigned value, unsigned width, size_t count, CUstream s) {
    NEED_CONTEXT;
    return count ? push(s, (struct operation){.work = FILL, .to = to, .value = value, .width = width, .size = width * count}, 0) : 0;
}
API cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream s) { return fill(to, v, 1, n, s); }
API cuMemsetD16Async(CUdeviceptr to, unsigned short v, size_t n, CUstream s) { return fill(to, v, 2, n, s); }
API cuMemsetD32Async(CUdeviceptr to, unsigned v, size_t n, CUstream s) { return fill(to, v, 4, n, s); }
API cuMemsetD8_v2(CUdeviceptr to, unsigned char v, size_t n) { return fill(to, v, 1, n, NULL); }
API cuMemsetD32_v2(CUdeviceptr to, unsigned v, size_t n) { return fill(to, v, 4, n, NULL); }

/* --- streams and events: neither is ever freed, since work may still name it ---------------------------------------------------- */

API cuStreamCreate(CUstream *out, unsigned flags) {
    NEED_CONTEXT;
    CUstream s = calloc(1, sizeof *s);
    s->nonblocking = flags & CU_STREAM_NON_BLOCKING;
    s->context = CURRENT;
    LOCK;
    s->next = others;
    others = s;
    UNLOCK;
    *out = s;
    return 0;
}
API cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) { return cuStreamCreate(out, flags); }
API cuStreamDestroy_v2(CUstream s) {
    LOCK;
    drain(s);
    for (CUstream *at = &others; *at; at = &(*at)->next)
        if (*at == s) { *at = s->next; break; }
    UNLOCK;
    return 0;
}
API cuStreamSynchronize(CUstream given) {
    NEED_CONTEXT;
    LOCK;
    CUstream s = stream_of(given);
    if (s == &legacy[CURRENT->device]) drain_blocking(CURRENT);
    drain(s);
    CUresult result = s->context ? s->context->spoilt : 0;
    UNLOCK;
    return result;
}
API cuStreamQuery(CUstream given) {
    NEED_CONTEXT;
    LOCK;
    CUstream s = stream_of(given);
    int busy = s->first || s->running;
    UNLOCK;
    return busy ? CUDA_ERROR_NOT_READY : CURRENT->spoilt;
}
API cuStreamGetCtx(CUstream s, CUcontext *c) { NEED_CONTEXT; *c = stream_of(s)->context ? stream_of(s)->context : CURRENT; return 0; }
API cuStreamGetFlags(CUstream s, unsigned *flags) { NEED_CONTEXT; *flags = (unsigned)stream_of(s)->nonblocking; return 0; }
API cuStreamGetPriority(CUstream s, int *priority) { *priority = 0; return 0; }
API cuStreamGetId(CUstream s, unsigned long long *id) { *id = (uintptr_t)s; return 0; }
API cuStreamGetDevice(CUstream s, CUdevice *d) { NEED_CONTEXT; *d = stream_of(s)->context ? stream_of(s)->context->device : CURRENT->device; return 0; }
API cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *status) { *status = CU_STREAM_CAPTURE_STATUS_NONE; return 0; }
API cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) {
    NEED_CONTEXT;
    return e->recorded ? push(s, (struct operation){.work = AWAIT, .event = e, .turn = e->recorded}, 0) : 0;
}
API cuStreamAddCallback(CUstream s, CUstreamCallback callback, void *data, unsigned flags) { NEED_CONTEXT; return push(s, (struct operation){.work = CALLBACK, .callback = callback, .data = data}, 0); }
API cuLaunchHostFunc(CUstream s, CUhostFn function, void *data) { NEED_CONTEXT; return push(s, (struct operation){.work = CALL, .function = function, .data = data}, 0); }
API cuEventCreate(CUevent *out, unsigned flags) { NEED_CONTEXT; *out = calloc(1, sizeof **out); (*out)->context = CURRENT; return 0; }
API cuEventDestroy_v2(CUevent e) { return 0; }
API cuEventRecord(CUevent e, CUstream s) {
    NEED_CONTEXT;
    CUcontext of_stream = stream_of(s)->context;
    if (e->context != (of_stream ? of_stream : CURRENT)) return CUDA_ERROR_INVALID_HANDLE;
    LOCK;
    unsigned long long turn = ++e->recorded;
    e->stream = stream_of(s);
    UNLOCK;
    return push(s, (struct operation){.work = SIGNAL, .event = e, .turn = turn}, 0);
}
API cuEventRecordWithFlags(CUevent e, CUstream s, unsigned flags) { return cuEventRecord(e, s); }
API cuEventQuery(CUevent e) {
    NEED_DRIVER;
    LOCK;
    int there = e->done >= e->recorded;
    UNLOCK;
    return there ? state_of(e->context) : CUDA_ERROR_NOT_READY;
}
API cuEventSynchronize(CUevent e) {
    NEED_DRIVER;
    LOCK;
    while (e->done < e->recorded)
        if (e->stream->first && !e->stream->running && lazy()) run_one(e->stream);
        else pthread_cond_wait(&changed, &lock);
    UNLOCK;
    return state_of(e->context);
}
API cuEventElapsedTime(float *ms, CUevent a, CUevent b) { *ms = (float)(1e3 * (b->at - a->at)); return 0; }

/* --- modules: an image is a shared object that the made-up NVRTC compiled from the kernel's source ------------------------------ */

struct CUmod_st { void *library; };
struct CUfunc_st { kernel code; const int *sizes; };
API cuModuleLoadData(CUmodule *out, const void *image) {
    const unsigned char *bytes = image;
    char path[64];
    uint64_t size;
    NEED_CONTEXT;
    if (memcmp(bytes, "MADE-UP1", 8)) {
        LOG(1, "an image that is not ours");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    memcpy(&size, bytes + 8, 8);
    int fd = memfd_create("kernels", MFD_CLOEXEC);
    for (uint64_t at = 0; at < size;) {
        ssize_t n = write(fd, bytes + 16 + at, size - at);
        if (n <= 0) return CUDA_ERROR_OUT_OF_MEMORY;
        at += (uint64_t)n;
    }
    /* It stays open: dlopen knows libraries by name, and this number must not name another one. */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        LOG(0, "%s", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *(*out = malloc(sizeof **out)) = (struct CUmod_st){library};
    return 0;
}
API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, CUjit_option *options, void **values) { return cuModuleLoadData(out, image); }
API cuModuleUnload(CUmodule m) { return 0; }
API cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
    char symbol[512];
    snprintf(symbol, sizeof symbol, "made_up_run_%s", name);
    void *code = dlsym(m->library, symbol);
    snprintf(symbol, sizeof symbol, "made_up_sizes_%s", name);
    void *sizes = dlsym(m->library, symbol);
    if (!code || !sizes) return CUDA_ERROR_NOT_FOUND;
    *(*out = malloc(sizeof **out)) = (struct CUfunc_st){(kernel)code, sizes};
    return 0;
}
API cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *size, CUmodule m, const char *name) { return CUDA_ERROR_NOT_FOUND; }
API cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) { *mode = CU_MODULE_LAZY_LOADING; return 0; }
API cuFuncGetAttribute(int *value, CUfunction_attribute what, CUfunction f) { *value = what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0; return 0; }
API cuFuncSetAttribute(CUfunction f, CUfunction_attribute what, int value) { return 0; }
API cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, CUoccupancyB2DSize s, size_t shared, int limit) { *grid = 4; *block = 256; return 0; }
API cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **given, void **extra) {
    NEED_CONTEXT;
    struct launch *l = calloc(1, sizeof *l);
    size_t at = 0;
    *l = (struct launch){.code = f->code, .shape = {gx, gy, gz, bx, by, bz, (unsigned)visible[CURRENT->device]}};
    for (int i = 0; f->sizes[i] >= 0; i++) {
        memcpy(l->room + at, given[i], (size_t)f->sizes[i]);
        l->arguments[i] = l->room + at;
        at += ((size_t)f->sizes[i] + 15) & ~15ul;
    }
    LOG(2, "launch");
    return push(s, (struct operation){.work = KERNEL, .data = l}, 0);
}

/* --- errors, and how callers find all this ------------------------------------------------------------------------------------------- */

static const struct { CUresult code; const char *name, *text; } errors[] = {
#define ERROR(code, text) {code, #code, text}
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "device is busy or unavailable"),
    ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
};
#define LOOK_UP(field) do { for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++) if (errors[i].code == code) { *out = errors[i].field; return 0; } *out = NULL; return CUDA_ERROR_INVALID_VALUE; } while (0)
API cuGetErrorName(CUresult code, const char **out) { LOOK_UP(name); }
API cuGetErrorString(CUresult code, const char **out) { LOOK_UP(text); }
API cuProfilerStart(void) { return 0; }
API cuProfilerStop(void) { return 0; }
API cuGetExportTable(const void **table, const CUuuid *id) { *table = NULL; LOG(1, "private tables do not exist here"); return CUDA_ERROR_NOT_FOUND; }
API cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    static void *self;
    char symbol[128];
    if (!self) {
        Dl_info info;
        dladdr((void *)cuInit, &info);
        self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    snprintf(symbol, sizeof symbol, "%s_v2", name);
    void *found = dlsym(self, symbol), *plain = dlsym(self, name);
    if (!found || (plain && !strcmp(name, "cuCtxGetDevice"))) found = plain;
    *out = found;
    if (status) *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (!found) LOG(1, "%s is not made up (version %d)", name, version);
    return found ? 0 : CUDA_ERROR_NOT_FOUND;
}
API cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) { return cuGetProcAddress_v2(name, out, version, flags, NULL); }
/* UCX is linked to pools, which are not made up. */
#define MISSING(name) API made_up_##name(void) __asm__(#name); CUresult made_up_##name(void) { LOG(1, #name " is not made up"); return CUDA_ERROR_NOT_SUPPORTED; }
MISSING(cuMemPoolDestroy)
MISSING(cuMemPoolExportPointer)
MISSING(cuMemPoolExportToShareableHandle)
MISSING(cuMemPoolImportFromShareableHandle)
MISSING(cuMemPoolImportPointer)
MISSING(cuMemPoolSetAccess)
