/* measure_host_cuda.c - copies on the device and to the host, and what a launch costs the host. */
#include "core/base/clock.h"
#include "executor/measure/measure_cuda.h"
#include "executor/measure/measure_draw.h"
#include "kernels/device/cuda_check.h"

#include <string.h>

typedef struct copy {
    int sets;
    size_t size_B;
    void *from[MF_MEASURE_SETS], *to[MF_MEASURE_SETS];
} copy;

static mf_status launch_copy(void *op, int64_t i, cudaStream_t stream, mf_err *e) {
    copy *c = op;
    int set = (int)(i % c->sets);
    MF_CUDA_TRY(cudaMemcpyAsync(c->to[set], c->from[set], c->size_B, cudaMemcpyDefault, stream), e);
    return MF_OK;
}

mf_status mf_measure_copy(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                          mf_err *e) {
    copy c = {.size_B = (size_t)mf_measure_dim(p, "bytes")};
    c.sets = mf_measure_sets(s, 2 * c.size_B);
    for (int i = 0; i < c.sets; i++) {
        c.from[i] = mf_measure_take(s, c.size_B, MF_DATA_BF16);
        c.to[i] = mf_measure_take(s, c.size_B, MF_DATA_NONE);
        if (c.from[i] == NULL || c.to[i] == NULL) {
            return mf_err_set(e, MF_INPUT, "the copy does not fit into the GPU's memory");
        }
    }
    return mf_measure_run(s, launch_copy, &c, out, e);
}

/* Random bytes: some that are drawn, again and again. */
static void fill_host(char *to, size_t size_B, uint64_t seed) {
    enum { DRAWN = 1 << 17 };
    for (size_t at = 0; at < size_B;) {
        size_t part = size_B - at;
        if (at < DRAWN * sizeof(uint64_t)) {
            uint64_t bits = mf_measure_random(&seed);
            part = part < sizeof bits ? part : sizeof bits;
            memcpy(to + at, &bits, part);
        } else {
            part = part < at ? part : at; /* what is there once more */
            memcpy(to + at, to, part);
        }
        at += part;
    }
}

mf_status mf_measure_host_copy(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                               mf_err *e) {
    copy c = {.sets = 1, .size_B = (size_t)mf_measure_dim(p, "bytes")};
    mf_status status = MF_OK;
    void *host = NULL, *device = mf_measure_take(s, c.size_B, MF_DATA_BF16);
    if (device == NULL) {
        return mf_err_set(e, MF_INPUT, "the copy does not fit into the GPU's memory");
    }
    MF_CUDA_TRY(cudaHostAlloc(&host, c.size_B, cudaHostAllocDefault), e);
    fill_host(host, c.size_B, s->seed++);
    bool up = strcmp(p->op, "copy_h2d") == 0;
    c.from[0] = up ? host : device;
    c.to[0] = up ? device : host;
    status = mf_measure_run(s, launch_copy, &c, out, e);
    (void)cudaStreamSynchronize(s->stream);
    (void)cudaFreeHost(host);
    return status;
}

/* --- launches --------------------------------------------------------------------------------- */

enum { LAUNCHES = 400, READINGS = 31 };

/* Host time of one launch into a stream that is never full. */
static mf_status stream_launch(mf_measure_session *s, double *time_s, mf_err *e) {
    mf_status status = MF_OK;
    double start = mf_clock_s();
    for (int i = 0; i < LAUNCHES && status == MF_OK; i++) {
        status = mf_measure_nothing(s->stream, e);
    }
    *time_s = (mf_clock_s() - start) / LAUNCHES;
    MF_CUDA_TRY(cudaStreamSynchronize(s->stream), e);
    return status;
}

static mf_status nothing_graph(mf_measure_session *s, cudaGraphExec_t *out, mf_err *e) {
    cudaGraph_t graph = NULL;
    mf_status status = MF_OK;
    MF_CUDA_TRY(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal), e);
    for (int i = 0; i < LAUNCHES && status == MF_OK; i++) {
        status = mf_measure_nothing(s->stream, e);
    }
    MF_CUDA_TRY(cudaStreamEndCapture(s->stream, &graph), e);
    MF_CUDA_TRY(cudaGraphInstantiate(out, graph, 0), e);
    MF_CUDA_TRY(cudaGraphDestroy(graph), e);
    return status;
}

/* Per kernel of a graph of empty ones: device time, or with `host` the host's time of the replay.
 */
static mf_status graph_launch(mf_measure_session *s, cudaGraphExec_t graph, bool host,
                              double *time_s, mf_err *e) {
    float ms = 0.0f;
    MF_CUDA_TRY(cudaEventRecord(s->event[0], s->stream), e);
    double start = mf_clock_s();
    MF_CUDA_TRY(cudaGraphLaunch(graph, s->stream), e);
    double host_s = mf_clock_s() - start;
    MF_CUDA_TRY(cudaEventRecord(s->event[1], s->stream), e);
    MF_CUDA_TRY(cudaEventSynchronize(s->event[1]), e);
    MF_CUDA_TRY(cudaEventElapsedTime(&ms, s->event[0], s->event[1]), e);
    *time_s = (host ? host_s : (double)ms * 1e-3) / LAUNCHES;
    return MF_OK;
}

mf_status mf_measure_launches(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                              mf_err *e) {
    double value[READINGS + 2];
    cudaGraphExec_t graph = NULL;
    bool host = strcmp(mf_point_word(p, "mode"), "replay") == 0;
    bool replay = host || strcmp(mf_point_word(p, "mode"), "graph") == 0;
    mf_status status = replay ? nothing_graph(s, &graph, e) : MF_OK;
    for (int i = 0; i < READINGS + 2 && status == MF_OK; i++) {
        status =
            replay ? graph_launch(s, graph, host, &value[i], e) : stream_launch(s, &value[i], e);
    }
    if (status == MF_OK) {
        mf_measure_summary(value + 2, READINGS, out); /* the first two warm up */
        out->samples = (int64_t)READINGS * LAUNCHES;
    }
    if (graph != NULL) {
        (void)cudaGraphExecDestroy(graph);
    }
    return status;
}
