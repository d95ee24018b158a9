/* A made-up NVML (libnvidia-ml.so.1). It reads what there is from the file MADE_UP_NVML, one thing per line:

     gpu NAME BUS numa=N mem=MIB       a device; its UUID is that of the made-up driver's device of the same number
     nvlink A B                        a link between two devices
     nvswitch A                        a link to a switch
     path A B INTERNAL|PIX|PXB|PHB|NODE|SYS
     nop2p A B CODE                    why the two cannot reach each other's memory

   Without that file it describes the MADE_UP_GPUS devices of the made-up driver. UCX and ucxx ask for some of this as
   they load, and do not start if a function is missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };
#define API __attribute__((visibility("default"))) int
#define GPUS 16
#define LINKS 18
#define SWITCH (-2)

struct gpu { char name[64], bus[32], uuid[64]; int numa, links[LINKS], link_count; unsigned long long total; };
static struct gpu gpus[GPUS];
static int count, initialised, paths[GPUS][GPUS], p2p[GPUS][GPUS];

typedef struct gpu *Device;
typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem; char id[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;

static struct gpu *add(const char *name, const char *bus, int numa, unsigned long long mib) {
    struct gpu *g = &gpus[count];
    memset(g, 0, sizeof *g);
    snprintf(g->name, sizeof g->name, "%s", name);
    snprintf(g->bus, sizeof g->bus, "%s", bus);
    snprintf(g->uuid, sizeof g->uuid, "GPU-00000000-0000-4000-8000-0000000000%02x", count++);
    g->numa = numa;
    g->total = mib << 20;
    return g;
}
static int path_number(const char *name) {
    static const char *names[] = {"INTERNAL", "PIX", "PXB", "PHB", "NODE", "SYS"};
    for (int i = 0; i < 6; i++)
        if (!strcmp(names[i], name)) return 10 * i;
    return 50;
}
static void read_line(const char *line) {
    char name[64], bus[32], text[32];
    int a, b, value;
    unsigned long long mib;
    if (sscanf(line, "gpu %63s %31s numa=%d mem=%llu", name, bus, &value, &mib) == 4) add(name, bus, value, mib);
    else if (sscanf(line, "nvlink %d %d", &a, &b) == 2) {
        gpus[a].links[gpus[a].link_count++] = b;
        gpus[b].links[gpus[b].link_count++] = a;
    } else if (sscanf(line, "nvswitch %d", &a) == 1) gpus[a].links[gpus[a].link_count++] = SWITCH;
    else if (sscanf(line, "path %d %d %31s", &a, &b, text) == 3) paths[a][b] = paths[b][a] = path_number(text);
    else if (sscanf(line, "nop2p %d %d %d", &a, &b, &value) == 3) p2p[a][b] = p2p[b][a] = value;
}
API nvmlInit_v2(void) {
    const char *path = getenv("MADE_UP_NVML"), *number = getenv("MADE_UP_GPUS");
    char line[512];
    count = 0;
    memset(p2p, 0, sizeof p2p);
    for (int a = 0; a < GPUS; a++)
        for (int b = 0; b < GPUS; b++) paths[a][b] = a == b ? 0 : 50;
    if (!path || !*path) {
        for (int i = 0; i < (number ? atoi(number) : 2); i++) {
            snprintf(line, sizeof line, "0000:%02x:00.0", 0x10 + i);
            add("Made-up-GPU", line, -1, 4096);
        }
        return initialised = 1, SUCCESS;
    }
    FILE *file = fopen(path, "r");
    if (!file) return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    return initialised = 1, SUCCESS;
}
API nvmlInit(void) { return nvmlInit_v2(); }
API nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
API nvmlShutdown(void) { return initialised ? SUCCESS : UNINITIALIZED; }
__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Unknown Error";
    }
}
API nvmlSystemGetDriverVersion(char *text, unsigned room) { snprintf(text, room, "575.0.made-up"); return SUCCESS; }
API nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12090; return SUCCESS; }
API nvmlSystemGetCudaDriverVersion(int *version) { *version = 12090; return SUCCESS; }
API nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)count; return initialised ? SUCCESS : UNINITIALIZED; }
API nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
    if ((int)index >= count) return INVALID_ARGUMENT;
    *out = &gpus[index];
    return SUCCESS;
}
API nvmlDeviceGetHandleByUUID(const char *uuid, Device *out) {
    for (int i = 0; i < count; i++)
        if (!strcmp(uuid, gpus[i].uuid)) return *out = &gpus[i], SUCCESS;
    return NOT_FOUND;
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device *out) {
    unsigned wanted[3], found[3];
    if (sscanf(bus, "%x:%x:%x", wanted, wanted + 1, wanted + 2) < 3) return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        if (sscanf(gpus[i].bus, "%x:%x:%x", found, found + 1, found + 2) == 3 && !memcmp(wanted, found, sizeof found))
            return *out = &gpus[i], SUCCESS;
    return NOT_FOUND;
}
API nvmlDeviceGetIndex(Device d, unsigned *index) { *index = (unsigned)(d - gpus); return SUCCESS; }
API nvmlDeviceGetMinorNumber(Device d, unsigned *number) { return nvmlDeviceGetIndex(d, number); }
API nvmlDeviceGetName(Device d, char *text, unsigned room) { snprintf(text, room, "%s", d->name); return SUCCESS; }
API nvmlDeviceGetUUID(Device d, char *text, unsigned room) { snprintf(text, room, "%s", d->uuid); return SUCCESS; }
API nvmlDeviceGetPciInfo_v3(Device d, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    sscanf(d->bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    return SUCCESS;
}
API nvmlDeviceGetMemoryInfo(Device d, Memory *m) { *m = (Memory){d->total, d->total, 0}; return SUCCESS; }
API nvmlDeviceGetBAR1MemoryInfo(Device d, Memory *m) { return nvmlDeviceGetMemoryInfo(d, m); }
API nvmlDeviceGetNumaNodeId(Device d, unsigned *node) { *node = (unsigned)d->numa; return d->numa < 0 ? NOT_SUPPORTED : SUCCESS; }
API nvmlDeviceGetCpuAffinity(Device d, unsigned words, unsigned long *mask) {
    memset(mask, 0, words * sizeof *mask);
    mask[0] = d->numa > 0 ? 2 : 1;
    return SUCCESS;
}
API nvmlDeviceGetMigMode(Device d, unsigned *now, unsigned *pending) { return NOT_SUPPORTED; }
API nvmlDeviceGetMaxMigDeviceCount(Device d, unsigned *n) { *n = 0; return SUCCESS; }
API nvmlDeviceGetMaxPcieLinkGeneration(Device d, unsigned *value) { *value = 5; return SUCCESS; }
API nvmlDeviceGetMaxPcieLinkWidth(Device d, unsigned *value) { *value = 16; return SUCCESS; }
API nvmlDeviceGetFieldValues(Device d, int n, void *values) { return NOT_SUPPORTED; }
API nvmlDeviceGetNvLinkState(Device d, unsigned link, unsigned *state) {
    if (link >= LINKS) return INVALID_ARGUMENT;
    *state = 1;
    return (int)link < d->link_count ? SUCCESS : NOT_SUPPORTED;
}
API nvmlDeviceGetNvLinkVersion(Device d, unsigned link, unsigned *version) { *version = 4; return (int)link < d->link_count ? SUCCESS : NOT_SUPPORTED; }
API nvmlDeviceGetNvLinkRemotePciInfo_v2(Device d, unsigned link, Pci *pci) {
    if ((int)link >= d->link_count) return NOT_SUPPORTED;
    if (d->links[link] != SWITCH) return nvmlDeviceGetPciInfo_v3(&gpus[d->links[link]], pci);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0xc0;
    strcpy(pci->id, "00000000:C0:00.0");
    return SUCCESS;
}
API nvmlDeviceGetNvLinkRemoteDeviceType(Device d, unsigned link, int *type) {
    if ((int)link >= d->link_count) return NOT_SUPPORTED;
    *type = d->links[link] == SWITCH ? 2 : 0;
    return SUCCESS;
}
API nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int *level) { *level = paths[a - gpus][b - gpus]; return SUCCESS; }
API nvmlDeviceGetP2PStatus(Device a, Device b, int capability, int *status) { *status = p2p[a - gpus][b - gpus]; return SUCCESS; }
