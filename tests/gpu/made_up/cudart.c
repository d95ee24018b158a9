/* CUDA's runtime (libcudart.so.12) on public driver calls alone, as far as CuPy asks for it. The build adds every other
   symbol that CuPy is linked to; those refuse. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <string.h>

extern CUresult cuMemAlloc_v2(CUdeviceptr *, size_t), cuMemFree_v2(CUdeviceptr), cuMemGetInfo_v2(size_t *, size_t *),
    cuStreamDestroy_v2(CUstream), cuEventDestroy_v2(CUevent), cuIpcOpenMemHandle_v2(CUdeviceptr *, CUipcMemHandle, unsigned),
    cuMemHostRegister_v2(void *, size_t, unsigned), cuDeviceTotalMem_v2(size_t *, CUdevice);

#define API __attribute__((visibility("default"))) int
#define TEXT __attribute__((visibility("default"))) const char *
static __thread int device, last;

/* The codes of driver and runtime are the same where CuPy looks. */
static int report(int code) {
    if (code && code != CUDA_ERROR_NOT_READY) last = code;
    return code;
}
static int enter(void) { /* the runtime makes the device's context current by itself */
    CUcontext context = NULL;
    CUdevice current = -1;
    CUresult r = cuInit(0);
    if (r) return r;
    cuCtxGetCurrent(&context);
    if (context) cuCtxGetDevice(&current);
    if (current == device) return 0;
    r = cuDevicePrimaryCtxRetain(&context, device);
    return r ? r : cuCtxSetCurrent(context);
}
#define ENTERED(call) do { int code_ = enter(); return report(code_ ? code_ : (int)(call)); } while (0)

TEXT cudaGetErrorName(int e) { const char *s = NULL; cuGetErrorName(e, &s); return s ? s : "cudaErrorUnknown"; }
TEXT cudaGetErrorString(int e) { const char *s = NULL; cuGetErrorString(e, &s); return s ? s : "unknown error"; }
API cudaGetLastError(void) { int e = last; last = 0; return e; }
API cudaPeekAtLastError(void) { return last; }
API cudaDriverGetVersion(int *v) { return report(cuDriverGetVersion(v)); }
API cudaRuntimeGetVersion(int *v) { *v = 12090; return 0; }
API cudaGetDeviceCount(int *n) { CUresult r = cuInit(0); return report(r ? r : cuDeviceGetCount(n)); }
API cudaGetDevice(int *d) {
    CUcontext context = NULL;
    CUdevice found;
    if (!cuCtxGetCurrent(&context) && context && !cuCtxGetDevice(&found)) device = found;
    *d = device;
    return 0;
}
API cudaSetDevice(int d) {
    int n = 0;
    cuInit(0);
    cuDeviceGetCount(&n);
    if (d < 0 || d >= n) return last = CUDA_ERROR_INVALID_DEVICE;
    device = d;
    return report(enter());
}
API cudaDeviceGetAttribute(int *v, int a, int d) { cuInit(0); return report(cuDeviceGetAttribute(v, a, d)); }
API cudaDeviceGetPCIBusId(char *s, int n, int d) { cuInit(0); return report(cuDeviceGetPCIBusId(s, n, d)); }
API cudaDeviceGetByPCIBusId(int *d, const char *s) { cuInit(0); return report(cuDeviceGetByPCIBusId(d, s)); }
API cudaGetDeviceProperties_v2(char *p, int d) { /* name, UUID and total memory; the rest is zero */
    cuInit(0);
    memset(p, 0, 1032);
    cuDeviceGetName(p, 256, d);
    cuDeviceGetUuid((CUuuid *)(p + 256), d);
    return report(cuDeviceTotalMem_v2((size_t *)(p + 288), d));
}
API cudaDeviceSynchronize(void) { ENTERED(cuCtxSynchronize()); }
API cudaDeviceCanAccessPeer(int *c, int a, int b) { cuInit(0); return report(cuDeviceCanAccessPeer(c, a, b)); }
API cudaDeviceEnablePeerAccess(int d, unsigned f) { ENTERED(cuCtxEnablePeerAccess(NULL, f)); }
API cudaDeviceGetLimit(size_t *v, int l) { *v = 1024; return 0; }
API cudaDeviceGetStreamPriorityRange(int *a, int *b) { *a = *b = 0; return 0; }
API cudaDeviceGetDefaultMemPool(void **p, int d) { *p = (void *)8; return 0; }
API cudaProfilerStart(void) { return 0; }
API cudaProfilerStop(void) { return 0; }

API cudaMalloc(void **p, size_t n) { ENTERED(cuMemAlloc_v2((CUdeviceptr *)p, n)); }
API cudaFree(void *p) { ENTERED(cuMemFree_v2((CUdeviceptr)p)); }
API cudaMallocAsync(void **p, size_t n, CUstream s) { return cudaMalloc(p, n); }
API cudaFreeAsync(void *p, CUstream s) { return cudaFree(p); }
API cudaHostAlloc(void **p, size_t n, unsigned f) { ENTERED(cuMemHostAlloc(p, n, f)); }
API cudaFreeHost(void *p) { ENTERED(cuMemFreeHost(p)); }
API cudaHostRegister(void *p, size_t n, unsigned f) { ENTERED(cuMemHostRegister_v2(p, n, f)); }
API cudaHostUnregister(void *p) { return report(cuMemHostUnregister(p)); }
API cudaMemGetInfo(size_t *a, size_t *b) { ENTERED(cuMemGetInfo_v2(a, b)); }
API cudaMemcpy(void *d, const void *s, size_t n, int k) { ENTERED(cuMemcpy((CUdeviceptr)d, (CUdeviceptr)s, n)); }
API cudaMemcpyAsync(void *d, const void *s, size_t n, int k, CUstream t) { ENTERED(cuMemcpyAsync((CUdeviceptr)d, (CUdeviceptr)s, n, t)); }
API cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, CUstream t) { ENTERED(cuMemcpyAsync((CUdeviceptr)d, (CUdeviceptr)s, n, t)); }
API cudaMemset(void *d, int v, size_t n) { ENTERED(cuMemsetD8Async((CUdeviceptr)d, (unsigned char)v, n, 0)); }
API cudaMemsetAsync(void *d, int v, size_t n, CUstream t) { ENTERED(cuMemsetD8Async((CUdeviceptr)d, (unsigned char)v, n, t)); }
struct attributes { int type, device; void *device_pointer, *host_pointer; };
API cudaPointerGetAttributes(struct attributes *a, const void *p) {
    unsigned type;
    int owner;
    *a = (struct attributes){0, CU_DEVICE_INVALID, NULL, (void *)p};
    if (cuInit(0) || cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)p)) return 0;
    cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)p);
    int on_device = type == CU_MEMORYTYPE_DEVICE;
    *a = (struct attributes){on_device ? 2 : 1, owner, (void *)p, on_device ? NULL : (void *)p};
    return 0;
}
API cudaIpcGetMemHandle(CUipcMemHandle *h, void *p) { return report(cuIpcGetMemHandle(h, (CUdeviceptr)p)); }
API cudaIpcOpenMemHandle(void **p, CUipcMemHandle h, unsigned f) { ENTERED(cuIpcOpenMemHandle_v2((CUdeviceptr *)p, h, f)); }
API cudaIpcCloseMemHandle(void *p) { ENTERED(cuIpcCloseMemHandle((CUdeviceptr)p)); }

API cudaStreamCreate(CUstream *s) { ENTERED(cuStreamCreate(s, 0)); }
API cudaStreamCreateWithFlags(CUstream *s, unsigned f) { ENTERED(cuStreamCreate(s, f)); }
API cudaStreamCreateWithPriority(CUstream *s, unsigned f, int p) { ENTERED(cuStreamCreate(s, f)); }
API cudaStreamDestroy(CUstream s) { return report(cuStreamDestroy_v2(s)); }
API cudaStreamSynchronize(CUstream s) { ENTERED(cuStreamSynchronize(s)); }
API cudaStreamQuery(CUstream s) { ENTERED(cuStreamQuery(s)); }
API cudaStreamWaitEvent(CUstream s, CUevent e, unsigned f) { ENTERED(cuStreamWaitEvent(s, e, f)); }
API cudaStreamAddCallback(CUstream s, CUstreamCallback f, void *u, unsigned fl) { ENTERED(cuStreamAddCallback(s, f, u, fl)); }
API cudaLaunchHostFunc(CUstream s, CUhostFn f, void *u) { ENTERED(cuLaunchHostFunc(s, f, u)); }
API cudaStreamIsCapturing(CUstream s, int *status) { *status = 0; return 0; }
API cudaStreamGetPriority(CUstream s, int *p) { *p = 0; return 0; }
API cudaStreamGetFlags(CUstream s, unsigned *f) { ENTERED(cuStreamGetFlags(s, f)); }
API cudaEventCreate(CUevent *e) { ENTERED(cuEventCreate(e, 0)); }
API cudaEventCreateWithFlags(CUevent *e, unsigned f) { ENTERED(cuEventCreate(e, f)); }
API cudaEventDestroy(CUevent e) { return report(cuEventDestroy_v2(e)); }
API cudaEventRecord(CUevent e, CUstream s) { ENTERED(cuEventRecord(e, s)); }
API cudaEventQuery(CUevent e) { return report(cuEventQuery(e)); }
API cudaEventSynchronize(CUevent e) { return report(cuEventSynchronize(e)); }
API cudaEventElapsedTime(float *ms, CUevent a, CUevent b) { return report(cuEventElapsedTime(ms, a, b)); }
