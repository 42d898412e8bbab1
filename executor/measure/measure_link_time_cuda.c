/* measure_link_time_cuda.c - timing of a call that every rank makes: in its thread, on its stream.
 *
 * Calls shorter than graph_below_s are captured, as many as fill batch_s: eager ones would be as
 * slow as the host that launches them, which is priced apart.
 */
#include "executor/measure/measure_gpus_cuda.h"
#include "kernels/device/cuda_check.h"

enum { RUNS_MAX = 64, PROBES = 4 };
static const double graph_below_s = 100e-6;
static const double batch_s = 400e-6;
static const double reading_s = 12e-3;

typedef mf_measure_rank rank;
typedef mf_measure_job job;

mf_status mf_measure_rank_calls(rank *r, mf_measure_call call, void *user, int64_t first, int runs,
                                mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < runs && status == MF_OK; i++) {
        status = call(r, user, first + i, e);
    }
    return status;
}

mf_status mf_measure_rank_between(rank *r, int a, int b, double *time_s, mf_err *e) {
    float ms = 0.0f;
    MF_CUDA_TRY(cudaEventSynchronize(r->event[b]), e);
    MF_CUDA_TRY(cudaEventElapsedTime(&ms, r->event[a], r->event[b]), e);
    *time_s = (double)ms * 1e-3;
    return MF_OK;
}

double mf_measure_slowest_s(const mf_measure_gpus *w, int which) {
    double worst = 0;
    for (int i = 0; i < w->job.ranks; i++) {
        double t = w->rank[i].estimate_s[which];
        worst = t > worst ? t : worst;
    }
    return worst;
}

int mf_measure_within(double x, int least, int most) {
    return x < least ? least : x > most ? most : (int)x;
}

static mf_status capture(rank *r, mf_measure_call call, void *user, int64_t first, int runs,
                         cudaGraphExec_t *out, mf_err *e) {
    cudaGraph_t graph = NULL;
    MF_CUDA_TRY(cudaStreamBeginCapture(r->comm, cudaStreamCaptureModeThreadLocal), e);
    mf_status status = mf_measure_rank_calls(r, call, user, first, runs, e);
    cudaError_t result = cudaStreamEndCapture(r->comm, &graph);
    if (status == MF_OK && result == cudaSuccess) {
        result = cudaGraphInstantiate(out, graph, 0);
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    return status != MF_OK || result == cudaSuccess ? status : MF_CUDA_SET(e, result, "capturing");
}

typedef struct batch {
    mf_measure_call call;
    void *user;
    int64_t next;
    int runs;
    cudaGraphExec_t graph;
} batch;

static mf_status run_batch(rank *r, batch *b, mf_err *e) {
    if (b->graph != NULL) {
        MF_CUDA_TRY(cudaGraphLaunch(b->graph, r->comm), e);
        return MF_OK;
    }
    mf_status status = mf_measure_rank_calls(r, b->call, b->user, b->next, b->runs, e);
    b->next += b->runs;
    return status;
}

static mf_status read_batches(rank *r, batch *b, int batches, mf_err *e) {
    mf_status status = run_batch(r, b, e);
    MF_CUDA_TRY(cudaEventRecord(r->event[0], r->comm), e);
    for (int i = 0; i < batches && status == MF_OK; i++) {
        status = run_batch(r, b, e);
        MF_CUDA_TRY(cudaEventRecord(r->event[i + 1], r->comm), e);
    }
    for (int i = 0; i < batches && status == MF_OK; i++) {
        status = mf_measure_rank_between(r, i, i + 1, &r->batch_s[i], e);
        r->batch_s[i] /= b->runs;
    }
    return status;
}

mf_status mf_measure_rank_time(rank *r, mf_measure_call call, void *user, bool captured,
                               mf_err *e) {
    job *j = &r->gpus->job;
    batch b = {.call = call, .user = user, .next = 2 + PROBES};
    mf_status status = mf_measure_rank_calls(r, call, user, 0, 2, e);
    MF_CUDA_TRY(cudaEventRecord(r->event[0], r->comm), e);
    status = status == MF_OK ? mf_measure_rank_calls(r, call, user, 2, PROBES, e) : status;
    MF_CUDA_TRY(cudaEventRecord(r->event[1], r->comm), e);
    status = status == MF_OK ? mf_measure_rank_between(r, 0, 1, &r->estimate_s[0], e) : status;
    pthread_barrier_wait(&j->barrier);
    double estimate_s = mf_measure_slowest_s(r->gpus, 0) / PROBES;
    b.runs = mf_measure_within(batch_s / estimate_s, 1, RUNS_MAX);
    int batches = mf_measure_within(reading_s / (estimate_s * b.runs), 7, MF_MEASURE_RANK_BATCHES);
    if (status == MF_OK && captured && estimate_s < graph_below_s) {
        status = capture(r, call, user, b.next, b.runs, &b.graph, e);
    }
    status = status == MF_OK ? read_batches(r, &b, batches, e) : status;
    if (b.graph != NULL) {
        (void)cudaGraphExecDestroy(b.graph);
    }
    if (r->index == 0) {
        j->runs = b.runs;
        j->batches = batches;
    }
    return status;
}
