/* measure_run_cuda.c - the loop over points on one GPU; versions and state of the machine. */
#include "executor/measure_cuda.h"
#include "kernels/cuda_check.h"
#include "kernels/gemm_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STATE_EVERY = 16 }; /* points between two looks at clocks and temperature */
static const size_t keep_free_B = (size_t)4 << 30;
static const size_t workspace_B = (size_t)64 << 20;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- session ---------------------------------------------------------------------------------- */

static void session_close(mf_measure_session *s) {
    mf_gemm_cuda_library_close(s->cublas);
    if (s->cudnn_close != NULL) {
        s->cudnn_close(s->cudnn);
    }
    for (size_t i = 0; i < sizeof s->event / sizeof s->event[0]; i++) {
        if (s->event[i] != NULL) {
            (void)cudaEventDestroy(s->event[i]);
        }
    }
    (void)cudaFree(s->arena);
    (void)cudaFree(s->workspace);
    if (s->stream != NULL) {
        (void)cudaStreamDestroy(s->stream);
    }
}

static mf_status session_open(mf_measure_session *s, int device, uint64_t seed, mf_err *e) {
    mf_status status = MF_OK;
    int count = 0, l2_B = 0;
    size_t free_B = 0, all_B = 0;
    memset(s, 0, sizeof *s);
    if (cudaGetDeviceCount(&count) != cudaSuccess || count <= device) {
        return mf_err_set(e, MF_USAGE,
                          "no GPU to measure; measurements made elsewhere can be imported "
                          "(nccl-tests output or CSV)");
    }
    s->device = device;
    s->seed = seed;
    s->looked_s = now_s();
    MF_CUDA_GOTO(cudaSetDevice(device), e);
    MF_CUDA_GOTO(cudaDeviceGetAttribute(&s->sms, cudaDevAttrMultiProcessorCount, device), e);
    MF_CUDA_GOTO(cudaDeviceGetAttribute(&l2_B, cudaDevAttrL2CacheSize, device), e);
    s->l2_B = (size_t)l2_B;
    MF_CUDA_GOTO(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), e);
    for (size_t i = 0; i < sizeof s->event / sizeof s->event[0]; i++) {
        MF_CUDA_GOTO(cudaEventCreate(&s->event[i]), e);
    }
    s->workspace_B = workspace_B;
    MF_CUDA_GOTO(cudaMalloc(&s->workspace, s->workspace_B), e);
    MF_CUDA_GOTO(cudaMemGetInfo(&free_B, &all_B), e);
    s->arena_B = (free_B - free_B / 4 > keep_free_B ? free_B - free_B / 4 : free_B / 2) / 256 * 256;
    MF_CUDA_GOTO(cudaMalloc((void **)&s->arena, s->arena_B), e);
out:
    return status;
}

void mf_measure_versions(char *text, size_t size) {
    char cublas[32];
    int runtime = 0, driver = 0;
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
    mf_gemm_cuda_version(cublas, sizeof cublas);
    snprintf(text, size, "cuda=%d.%d driver=%d.%d cublas=%s", runtime / 1000, runtime % 1000 / 10,
             driver / 1000, driver % 1000 / 10, cublas);
}

/* --- state ------------------------------------------------------------------------------------ */

/* The few functions of NVML that are needed, by their documented names and values. */
struct mf_measure_nvml {
    void *library, *device;
    int (*clock)(void *device, int kind, unsigned *MHz);
    int (*temperature)(void *device, int sensor, unsigned *C);
    int (*power)(void *device, unsigned *mW);
    int (*processes)(void *device, unsigned *count, void *infos);
    int (*reasons)(void *device, unsigned long long *bits);
};
enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEMORY = 2, NVML_INSUFFICIENT_SIZE = 7 };
static const unsigned long long nvml_hot_bits = 0x20 | 0x40 | 0x80; /* software, hardware, brake */

static bool find(void *library, const char *name, void *function) {
    void *p = dlsym(library, name);
    memcpy(function, &p, sizeof p); /* ISO C has no cast from object to function pointers */
    return p != NULL;
}

mf_measure_nvml *mf_measure_nvml_open(int device) {
    int (*init)(void) = NULL;
    int (*by_bus)(const char *, void **) = NULL;
    char bus[32] = "";
    mf_measure_nvml *n = calloc(1, sizeof *n);
    if (n == NULL) {
        return NULL;
    }
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    bool ok = n->library != NULL && find(n->library, "nvmlInit_v2", &init) &&
              find(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &by_bus) &&
              find(n->library, "nvmlDeviceGetClockInfo", &n->clock) &&
              find(n->library, "nvmlDeviceGetTemperature", &n->temperature) &&
              find(n->library, "nvmlDeviceGetPowerUsage", &n->power) &&
              find(n->library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->processes) &&
              find(n->library, "nvmlDeviceGetCurrentClocksThrottleReasons", &n->reasons) &&
              cudaDeviceGetPCIBusId(bus, (int)sizeof bus, device) == cudaSuccess && init() == 0 &&
              by_bus(bus, &n->device) == 0;
    if (!ok) {
        mf_measure_nvml_close(n);
        return NULL;
    }
    return n;
}

void mf_measure_nvml_close(mf_measure_nvml *n) {
    if (n != NULL && n->library != NULL) {
        (void)dlclose(n->library);
    }
    free(n);
}

void mf_measure_nvml_read(mf_measure_nvml *n, mf_measure_state *out) {
    unsigned mW = 0;
    unsigned long long reasons = 0;
    memset(out, 0, sizeof *out);
    if (n == NULL) {
        return;
    }
    out->known = n->clock(n->device, NVML_CLOCK_SM, &out->sm_MHz) == 0 &&
                 n->clock(n->device, NVML_CLOCK_MEMORY, &out->memory_MHz) == 0 &&
                 n->temperature(n->device, 0, &out->temperature_C) == 0;
    out->power_W = n->power(n->device, &mW) == 0 ? mW / 1000 : 0;
    out->hot = n->reasons(n->device, &reasons) == 0 && (reasons & nvml_hot_bits) != 0;
    int result = n->processes(n->device, &out->processes, NULL); /* only how many */
    out->processes = result == NVML_INSUFFICIENT_SIZE ? out->processes : 0;
}

/* --- the loop --------------------------------------------------------------------------------- */

static const struct family {
    const char *op;
    mf_measure_op measure;
} families[] = {
    {"gemm", mf_measure_gemm},
    {"attention", mf_measure_attention},
    {"grouped_gemm", mf_measure_grouped},
    {"memory", mf_measure_memory},
    {"copy", mf_measure_copy},
    {"copy_h2d", mf_measure_host_copy},
    {"copy_d2h", mf_measure_host_copy},
    {"launch", mf_measure_launches},
};

static mf_measure_op family_of(const char *op) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].op, op) == 0) {
            return families[i].measure;
        }
    }
    return NULL;
}

static void finish(mf_point *p, const mf_measure_options *o, const mf_measure_time *t,
                   const char *versions, const mf_measure_state *state) {
    char drawn[sizeof p->source];
    snprintf(p->gpu, sizeof p->gpu, "%s", o->gpu);
    snprintf(p->versions, sizeof p->versions, "%s", versions);
    snprintf(p->date, sizeof p->date, "%s", o->date);
    p->time_s = t->time_s;
    p->low_s = t->low_s;
    p->high_s = t->high_s;
    p->samples = t->samples;
    memcpy(drawn, p->source, sizeof drawn);
    if (state->known) {
        snprintf(p->source, sizeof p->source, "moefold profile, %.80s; SM %u MHz, %u C", drawn,
                 state->sm_MHz, state->temperature_C);
    } else {
        snprintf(p->source, sizeof p->source, "moefold profile, %.80s", drawn);
    }
}

static mf_status measure_list(mf_measure_session *s, const mf_measure_options *o,
                              const mf_measure_list *l, mf_measure_file *file,
                              mf_measure_counts *counts, mf_err *e) {
    char versions[sizeof l->point[0].versions];
    mf_measure_nvml *nvml = mf_measure_nvml_open(s->device);
    mf_measure_state state = {.known = false};
    mf_status status = MF_OK;
    double start = now_s();
    mf_measure_versions(versions, sizeof versions);
    mf_measure_nvml_read(nvml, &state);
    if (!o->shared && state.processes > 1) {
        status = mf_err_set(e, MF_INPUT, "GPU %d is used by another process", s->device);
        goto out;
    }
    for (int64_t i = 0; i < l->n; i++) {
        mf_point p = l->point[i];
        mf_measure_time t = {.samples = 0};
        mf_err why;
        mf_measure_op measure = family_of(p.op);
        double spent = now_s() - start;
        if (mf_measure_file_has(file, &p)) {
            counts->skipped++;
            continue;
        }
        if (o->limit_s > 0 && spent > o->limit_s) {
            counts->left = l->n - i;
            break;
        }
        mf_err_clear(&why);
        s->used_B = 0;
        status = measure == NULL ? MF_INPUT : measure(s, &p, &t, &why);
        if (status == MF_INPUT) {
            counts->refused++;
            status = MF_OK;
            continue;
        }
        if (status != MF_OK) {
            char key[512];
            mf_point_format(&p, key, sizeof key);
            status = mf_err_set(e, status, "%s: %s", key, why.text);
            goto out;
        }
        if (counts->measured % STATE_EVERY == 0) {
            mf_measure_nvml_read(nvml, &state);
        }
        if (state.hot) {
            status = mf_err_set(e, MF_INPUT, "GPU %d slows down from heat (%u C, SM %u MHz)",
                                s->device, state.temperature_C, state.sm_MHz);
            goto out;
        }
        finish(&p, o, &t, versions, &state);
        status = mf_measure_file_append(file, &p, e);
        if (status != MF_OK) {
            goto out;
        }
        counts->measured++;
        if (o->progress != NULL) {
            double each = (now_s() - start) / (double)counts->measured;
            o->progress(i + 1, l->n, &p, each * (double)(l->n - i - 1), o->user);
        }
    }
out:
    mf_measure_nvml_close(nvml);
    return status;
}

mf_status mf_measure_gpu(const mf_measure_options *o, const mf_measure_list *l,
                         mf_measure_counts *counts, mf_err *e) {
    mf_measure_session s;
    mf_measure_file *file = NULL;
    memset(counts, 0, sizeof *counts);
    mf_status status = session_open(&s, 0, o->seed, e);
    status = status == MF_OK ? mf_measure_file_open(o->csv_path, &file, e) : status;
    status = status == MF_OK ? measure_list(&s, o, l, file, counts, e) : status;
    mf_measure_file_close(file);
    session_close(&s);
    return status;
}
