/* A made-up NVRTC (libnvrtc.so.12): it has CUDA sources compiled for this processor by compile_kernels.py beside it. A
   "cubin" is a shared object behind the mark that the made-up driver knows. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int
enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, COMPILATION = 6 };
typedef struct { char *source, *log, *image; size_t image_size; } Program;

API nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 9; return SUCCESS; }
__attribute__((visibility("default"))) const char *nvrtcGetErrorString(int code) {
    return code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : code ? "NVRTC_ERROR" : "NVRTC_SUCCESS";
}
API nvrtcGetNumSupportedArchs(int *n) { *n = 1; return SUCCESS; }
API nvrtcGetSupportedArchs(int *archs) { *archs = 80; return SUCCESS; }
API nvrtcCreateProgram(Program **out, const char *source, const char *name, int headers, const char *const *texts, const char *const *names) {
    if (headers) return INVALID_INPUT;
    *out = calloc(1, sizeof **out);
    (*out)->source = strdup(source);
    return SUCCESS;
}
API nvrtcDestroyProgram(Program **p) {
    free((*p)->source);
    free((*p)->log);
    free((*p)->image);
    free(*p);
    *p = NULL;
    return SUCCESS;
}
API nvrtcAddNameExpression(Program *p, const char *name) { return SUCCESS; }
API nvrtcGetLoweredName(Program *p, const char *name, const char **out) { *out = name; return SUCCESS; }

static char *take(const char *folder, const char *name, size_t *size) { /* read a file and remove it */
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    *size = fread(data, 1, *size, file);
    data[*size] = 0;
    fclose(file);
    unlink(path);
    return data;
}
API nvrtcCompileProgram(Program *p, int count, const char *const *options) {
    char folder[] = "/tmp/made-up-nvrtc-XXXXXX", path[4096], script[4096];
    const char *python = getenv("MADE_UP_PYTHON");
    Dl_info info;
    int status;
    size_t size;
    if (!mkdtemp(folder)) return OUT_OF_MEMORY;
    dladdr((void *)nvrtcVersion, &info);
    snprintf(script, sizeof script, "%s", info.dli_fname);
    strcpy(strrchr(script, '/') + 1, "compile_kernels.py");
    snprintf(path, sizeof path, "%s/source.cu", folder);
    FILE *file = fopen(path, "w");
    fputs(p->source, file);
    fclose(file);
    const char **arguments = calloc((size_t)count + 4, sizeof *arguments);
    arguments[0] = python ? python : "python3";
    arguments[1] = script;
    arguments[2] = folder;
    for (int i = 0; i < count; i++) arguments[3 + i] = options[i];
    pid_t child = vfork();
    if (!child) {
        execvp(arguments[0], (char **)arguments);
        _exit(127);
    }
    waitpid(child, &status, 0);
    free(arguments);
    free(p->log);
    p->log = take(folder, "log", &size);
    char *object = take(folder, "image", &size);
    unlink(path);
    rmdir(folder);
    if (!object) return COMPILATION;
    uint64_t length = size;
    p->image_size = size + 16;
    p->image = malloc(p->image_size);
    memcpy(p->image, "MADE-UP1", 8);
    memcpy(p->image + 8, &length, 8);
    memcpy(p->image + 16, object, size);
    free(object);
    return SUCCESS;
}
API nvrtcGetCUBINSize(Program *p, size_t *n) { *n = p->image_size; return SUCCESS; }
API nvrtcGetCUBIN(Program *p, char *out) { memcpy(out, p->image, p->image_size); return SUCCESS; }
static const char ptx[] = "//\n// made-up NVRTC: there is no PTX\n//\n"; /* CuPy reads its comments */
API nvrtcGetPTXSize(Program *p, size_t *n) { *n = sizeof ptx; return SUCCESS; }
API nvrtcGetPTX(Program *p, char *out) { memcpy(out, ptx, sizeof ptx); return SUCCESS; }
API nvrtcGetProgramLogSize(Program *p, size_t *n) { *n = p->log ? strlen(p->log) + 1 : 1; return SUCCESS; }
API nvrtcGetProgramLog(Program *p, char *out) { strcpy(out, p->log ? p->log : ""); return SUCCESS; }
