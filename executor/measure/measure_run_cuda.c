/* measure_run_cuda.c - the loop over points on one GPU; versions and state of the machine. */
#include "core/base/clock.h"
#include "executor/measure/measure_cuda.h"
#include "executor/measure/measure_nccl_cuda.h"
#include "executor/measure/measure_nvml.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/device/cuda_check.h"
#include "kernels/gemm/gemm_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_EVERY = 16 }; /* points between two looks at clocks and temperature */
static const size_t keep_free_B = (size_t)4 << 30;
static const size_t workspace_B = (size_t)64 << 20;

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
    s->looked_s = mf_clock_s();
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

/* --- state ------------------------------------------------------------------------------------ */

static void versions_of(char *text, size_t size) {
    char cublas[32], cudnn[32], driver[96] = "";
    int runtime = 0;
    int (*read_driver)(char *, unsigned) = NULL;
    mf_nvml *n = mf_nvml_find(0);
    if (n == NULL || !mf_nvml_function(n->library, "nvmlSystemGetDriverVersion", &read_driver) ||
        read_driver(driver, sizeof driver) != 0) {
        snprintf(driver, sizeof driver, "unknown");
    }
    mf_nvml_let_go(n);
    (void)cudaRuntimeGetVersion(&runtime);
    mf_gemm_cuda_version(cublas, sizeof cublas);
    mf_attention_cuda_version(cudnn, sizeof cudnn);
    snprintf(text, size, "cuda=%d.%d driver=%.40s cublas=%s cudnn=%s", runtime / 1000,
             runtime % 1000 / 10, driver, cublas, cudnn);
}

/* --- the loop --------------------------------------------------------------------------------- */

static mf_status first_wgrad(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                             mf_err *e) {
    return mf_measure_dim(p, "experts") > 0 ? mf_measure_grouped(s, p, out, e)
                                            : mf_measure_gemm(s, p, out, e);
}

static const struct family {
    const char *op;
    mf_measure_op measure;
} families[] = {
    {"gemm", mf_measure_gemm},
    {"attention", mf_measure_attention},
    {"attention_packed", mf_measure_attention},
    {"grouped_gemm", mf_measure_grouped},
    {"first_wgrad", first_wgrad},
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

/* Measures one point; `user` is a session or an mf_measure_gpus. */
typedef mf_status (*measure_fn)(void *user, const mf_point *p, mf_measure_time *out, mf_err *e);

typedef struct loop {
    const mf_measure_options *o;
    measure_fn measure;
    void *user;
    bool collectives; /* which points of the list are meant */
    mf_nvml *nvml;
    mf_measure_state first, state;
    int64_t measured;
} loop;

/* Measures a point and hands it out. */
static mf_status one_point(loop *l, int64_t index, const mf_point *p, mf_err *e) {
    mf_measure_time t = {.samples = 0};
    mf_err why;
    if (l->o->choice != NULL) {
        t.choice = l->o->choice[index];
    }
    mf_err_clear(&why);
    mf_status status = l->measure(l->user, p, &t, &why);
    if (status == MF_INPUT) {
        l->o->refused(index, why.text, l->o->user);
        return MF_OK;
    }
    if (status != MF_OK) {
        char key[512];
        mf_point_format(p, key, sizeof key);
        return mf_err_set(e, status, "%s: %s", key, why.text);
    }
    if (l->measured % STATE_EVERY == 0) {
        mf_measure_nvml_read(l->nvml, &l->state);
        l->first = l->measured == 0 ? l->state : l->first;
    }
    l->measured++;
    status = mf_measure_state_check(&l->first, &l->state, l->o->shared, e);
    if (status != MF_OK) {
        return status;
    }
    const mf_measure_reading r = {.choice = t.choice,
                                  .time_s = t.time_s,
                                  .low_s = t.low_s,
                                  .high_s = t.high_s,
                                  .energy_J = t.energy_J,
                                  .sustained_s = t.sustained_s,
                                  .samples = t.samples,
                                  .sm_MHz = (int)l->state.sm_MHz,
                                  .temperature_C = (int)l->state.temperature_C};
    l->o->measured(index, &r, l->o->user);
    return MF_OK;
}

static mf_status run_list(loop *l, const mf_measure_list *list, mf_err *e) {
    mf_status status = MF_OK;
    l->nvml = mf_nvml_find(0);
    for (int64_t i = 0; i < list->n && status == MF_OK; i++) {
        if (mf_measure_op_is_collective(list->point[i].op) == l->collectives) {
            status = one_point(l, i, &list->point[i], e);
        }
    }
    mf_nvml_let_go(l->nvml);
    return status;
}

static mf_status session_point(void *user, const mf_point *p, mf_measure_time *out, mf_err *e) {
    mf_measure_session *s = user;
    mf_measure_op measure = family_of(p->op);
    s->used_B = 0;
    return measure != NULL ? measure(s, p, out, e)
                           : mf_err_set(e, MF_INPUT, "%s is not measured on one GPU", p->op);
}

mf_status mf_measure_gpu(const mf_measure_options *o, const mf_measure_list *list, mf_err *e) {
    mf_measure_session s;
    loop l = {.o = o, .measure = session_point, .user = &s};
    mf_status status = session_open(&s, 0, o->seed, e);
    s.joules = status == MF_OK && o->energy ? mf_nvml_find(0) : NULL;
    if (status == MF_OK && o->energy && (s.joules == NULL || s.joules->energy == NULL)) {
        status = mf_err_set(e, MF_LIBRARY, "the driver does not count this GPU's energy");
    }
    status = status == MF_OK ? run_list(&l, list, e) : status;
    mf_nvml_let_go(s.joules);
    session_close(&s);
    return status;
}

static mf_status world_point(void *user, const mf_point *p, mf_measure_time *out, mf_err *e) {
    return mf_measure_gpus_point(user, p, out, e);
}

mf_status mf_measure_collectives(const mf_measure_options *o, const mf_measure_list *list,
                                 mf_err *e) {
    mf_measure_gpus *w = NULL;
    int64_t ranks = 0;
    loop l = {.o = o, .measure = world_point, .collectives = true};
    for (int64_t i = 0; i < list->n; i++) {
        bool link = mf_measure_op_is_collective(list->point[i].op);
        double n = link ? mf_point_value(&list->point[i], "ranks") : 0;
        ranks = n > (double)ranks ? (int64_t)n : ranks;
    }
    if (ranks == 0) {
        return MF_OK;
    }
    mf_status status = mf_measure_gpus_open((int)ranks, &w, e);
    if (status == MF_OK) {
        l.user = w;
        status = run_list(&l, list, e);
    }
    mf_measure_gpus_close(w);
    return status;
}

/* --- the machine ------------------------------------------------------------------------------ */

mf_status mf_measure_look(mf_measure_machine *out, mf_err *e) {
    struct cudaDeviceProp p;
    int count = 0;
    memset(out, 0, sizeof *out);
    cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess || count < 1) {
        return mf_err_set(e, MF_USAGE, "no GPU to measure (%s)",
                          result == cudaSuccess ? "none found" : cudaGetErrorString(result));
    }
    MF_CUDA_TRY(cudaGetDeviceProperties(&p, 0), e);
    snprintf(out->device, sizeof out->device, "%.79s", p.name);
    out->memory_B = (double)p.totalGlobalMem;
    mf_measure_gpu_name(out->device, out->memory_B, out->gpu, sizeof out->gpu);
    for (int i = 0; i < count; i++) {
        struct cudaDeviceProp q;
        mf_measure_state state;
        MF_CUDA_TRY(cudaGetDeviceProperties(&q, i), e);
        out->gpus += strcmp(p.name, q.name) == 0;
        mf_nvml *n = mf_nvml_find(i);
        mf_measure_nvml_read(n, &state);
        mf_nvml_let_go(n);
        bool known = out->processes >= 0 && state.processes >= 0;
        out->processes = known ? out->processes + state.processes : -1;
        out->hot = out->hot || state.hot;
        out->sm_MHz = i == 0 ? (int)state.sm_MHz : out->sm_MHz;
        out->temperature_C = i == 0 ? (int)state.temperature_C : out->temperature_C;
    }
    versions_of(out->versions, sizeof out->versions);
    mf_measure_nccl_version(out->nccl, sizeof out->nccl);
    return MF_OK;
}
