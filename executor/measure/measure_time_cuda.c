/* measure_time_cuda.c - timing of anything that can be launched, and the device memory it works on.
 *
 * The clock of a GPU at its power limit falls after some 60 ms of heavy work, to what the mean
 * power of the last tenth of a second allows. Readings are taken before that happens: work is
 * metered, and the GPU rests until a reading can run at full clocks. So times are those of a GPU
 * that is not throttled; what a long step loses to power is a matter of the step, not of the op.
 *
 * Kernels shorter than graph_below_s are captured into a graph of as many as fill batch_s, so that
 * a batch shows neither the host's launch time nor the resolution of events. Everything is queued
 * before the first batch is waited for.
 */
#include "core/base/clock.h"
#include "executor/measure/measure_cuda.h"
#include "kernels/device/cuda_check.h"

#include <time.h>

static const double graph_below_s = 300e-6;
static const double batch_s = 400e-6;  /* wanted length of a batch of short kernels */
static const double warm_s = 2e-3;     /* of runs before the first batch */
static const double reading_s = 8e-3;  /* wanted length of all batches */
static const double longest_s = 36e-3; /* ... which long kernels stretch to at most */
static const double duty = 0.4;        /* share of the time that the GPU may work and stay cool */
enum { RUNS_MAX = 128, BATCHES_MIN = 3, BATCHES_WANTED = 7 };
enum { AGAIN = 1 /* readings more of what spreads */ };

/* --- rest ------------------------------------------------------------------------------------- */

/* All time since the last look counts as work: the host's part is small beside the GPU's. */
static void look(mf_measure_session *s) {
    double now = mf_clock_s();
    s->heat_s += (1 - duty) * (now - s->looked_s);
    s->looked_s = now;
}

void mf_measure_busy(mf_measure_session *s) {
    look(s);
}

void mf_measure_idled(mf_measure_session *s) {
    double now = mf_clock_s();
    s->heat_s -= duty * (now - s->looked_s);
    s->heat_s = s->heat_s > 0 ? s->heat_s : 0;
    s->looked_s = now;
}

void mf_measure_rest(mf_measure_session *s) {
    look(s);
    if (s->heat_s > 0) {
        double rest_s = s->heat_s / duty;
        rest_s = rest_s < 0.25 ? rest_s : 0.25; /* as long as it takes to forget everything */
        struct timespec t = {0, (long)(rest_s * 1e9)};
        (void)cudaStreamSynchronize(s->stream);
        nanosleep(&t, NULL);
        s->heat_s = 0;
        s->looked_s = mf_clock_s();
    }
}

/* --- runs ------------------------------------------------------------------------------------- */

typedef struct batch {
    mf_measure_launch launch;
    void *op;
    int64_t next; /* run number */
    int runs;     /* in a batch */
    cudaGraphExec_t graph;
} batch;

static mf_status launch_runs(batch *b, int runs, cudaStream_t stream, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < runs && status == MF_OK; i++) {
        status = b->launch(b->op, b->next++, stream, e);
    }
    return status;
}

static mf_status elapsed(mf_measure_session *s, int i, int j, double *time_s, mf_err *e) {
    float ms = 0.0f;
    MF_CUDA_TRY(cudaEventSynchronize(s->event[j]), e);
    MF_CUDA_TRY(cudaEventElapsedTime(&ms, s->event[i], s->event[j]), e);
    *time_s = (double)ms * 1e-3;
    return MF_OK;
}

/* A first idea of the time of one run. */
static mf_status estimate(mf_measure_session *s, batch *b, double *time_s, mf_err *e) {
    mf_status status = launch_runs(b, 2, s->stream, e);
    for (int round = 0, runs = 1; status == MF_OK && round < 2; round++) {
        MF_CUDA_TRY(cudaEventRecord(s->event[0], s->stream), e);
        status = launch_runs(b, runs, s->stream, e);
        MF_CUDA_TRY(cudaEventRecord(s->event[1], s->stream), e);
        status = status == MF_OK ? elapsed(s, 0, 1, time_s, e) : status;
        *time_s /= runs;
        if (*time_s > graph_below_s) {
            break;
        }
        runs = 10;
    }
    return status;
}

static mf_status capture(mf_measure_session *s, batch *b, mf_err *e) {
    cudaGraph_t graph = NULL;
    MF_CUDA_TRY(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal), e);
    mf_status status = launch_runs(b, b->runs, s->stream, e);
    cudaError_t result = cudaStreamEndCapture(s->stream, &graph);
    if (status == MF_OK && result != cudaSuccess) {
        status = MF_CUDA_SET(e, result, "cudaStreamEndCapture");
    }
    if (status == MF_OK) {
        result = cudaGraphInstantiate(&b->graph, graph, 0);
        status = result == cudaSuccess ? MF_OK : MF_CUDA_SET(e, result, "cudaGraphInstantiate");
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    return status;
}

static mf_status run_batch(mf_measure_session *s, batch *b, mf_err *e) {
    if (b->graph != NULL) {
        MF_CUDA_TRY(cudaGraphLaunch(b->graph, s->stream), e);
        return MF_OK;
    }
    return launch_runs(b, b->runs, s->stream, e);
}

static mf_status read_batches(mf_measure_session *s, batch *b, double estimate_s, int batches,
                              mf_measure_time *out, mf_err *e) {
    double value[MF_MEASURE_BATCHES];
    mf_status status = MF_OK;
    int warm = (int)(warm_s / (estimate_s * b->runs)) + 1;
    mf_measure_rest(s);
    for (int i = 0; i < warm && status == MF_OK; i++) {
        status = run_batch(s, b, e);
    }
    MF_CUDA_TRY(cudaEventRecord(s->event[0], s->stream), e);
    for (int i = 0; i < batches && status == MF_OK; i++) {
        status = run_batch(s, b, e);
        MF_CUDA_TRY(cudaEventRecord(s->event[i + 1], s->stream), e);
    }
    for (int i = 0; i < batches && status == MF_OK; i++) {
        status = elapsed(s, i, i + 1, &value[i], e);
        value[i] /= b->runs;
    }
    if (status == MF_OK) {
        mf_measure_summary(value, batches, out);
        out->samples = (int64_t)batches * b->runs;
    }
    return status;
}

static int batches_of(double batch_time_s) {
    double wanted = reading_s / batch_time_s, most = longest_s / batch_time_s;
    wanted = wanted < BATCHES_WANTED ? BATCHES_WANTED : wanted;
    wanted = wanted > most ? most : wanted;
    wanted = wanted < BATCHES_MIN ? BATCHES_MIN : wanted;
    return wanted > MF_MEASURE_BATCHES ? MF_MEASURE_BATCHES : (int)wanted;
}

typedef struct reading {
    mf_measure_session *s;
    batch *b;
    double estimate_s;
    int batches;
} reading;

static mf_status take_reading(void *user, mf_measure_time *out, mf_err *e) {
    reading *r = user;
    mf_status status = read_batches(r->s, r->b, r->estimate_s, r->batches, out, e);
    r->estimate_s = status == MF_OK ? out->time_s : r->estimate_s;
    return status;
}

typedef struct batch_again {
    mf_measure_session *s;
    batch *b;
} batch_again;

static mf_status enqueue_batch(void *user, mf_err *e) {
    const batch_again *a = user;
    return run_batch(a->s, a->b, e);
}

static mf_status read_energy(mf_measure_session *s, batch *b, mf_measure_time *out, mf_err *e) {
    batch_again again = {s, b};
    const mf_measure_work w = {enqueue_batch, &again, out->time_s * b->runs};
    mf_status status = mf_measure_energy(s, &w, &out->energy_J, &out->sustained_s, e);
    out->energy_J /= b->runs;
    out->sustained_s /= b->runs;
    return status;
}

mf_status mf_measure_run(mf_measure_session *s, mf_measure_launch launch, void *op,
                         mf_measure_time *out, mf_err *e) {
    batch b = {launch, op, 0, 1, NULL};
    double estimate_s = 0.0;
    mf_status status = estimate(s, &b, &estimate_s, e);
    if (status == MF_OK && estimate_s < graph_below_s) {
        double wanted = batch_s / estimate_s;
        b.runs = wanted > RUNS_MAX ? RUNS_MAX : wanted < 2 ? 2 : (int)wanted;
        mf_measure_busy(s);
        status = capture(s, &b, e);
        mf_measure_idled(s);
    }
    reading r = {s, &b, estimate_s, batches_of(estimate_s * b.runs)};
    status = status == MF_OK ? mf_measure_quietest(take_reading, &r, AGAIN, out, e) : status;
    if (status == MF_OK && s->joules != NULL) {
        status = read_energy(s, &b, out, e);
    }
    if (b.graph != NULL) {
        (void)cudaGraphExecDestroy(b.graph);
    }
    return status;
}

/* --- device memory ---------------------------------------------------------------------------- */

void *mf_measure_take(mf_measure_session *s, size_t size_B, mf_measure_data data) {
    size_t aligned_B = (size_B + 511) / 256 * 256;
    if (aligned_B > s->arena_B - s->used_B) {
        return NULL;
    }
    char *p = s->arena + s->used_B;
    s->used_B += aligned_B;
    if (data != MF_DATA_NONE &&
        mf_measure_fill(p, (size_B + 15) / 16 * 16, data, s->seed++, s->stream, NULL) != MF_OK) {
        return NULL;
    }
    return p;
}

int mf_measure_sets(const mf_measure_session *s, size_t set_B) {
    size_t enough = 3 * s->l2_B / (set_B + 1) + 1,
           fitting = (s->arena_B - s->used_B) / (set_B + 4096);
    enough = enough < fitting ? enough : fitting;
    enough = enough < MF_MEASURE_SETS ? enough : MF_MEASURE_SETS;
    return enough < 1 ? 1 : (int)enough;
}

int64_t mf_measure_dim(const mf_point *p, const char *key) {
    return (int64_t)mf_point_value(p, key);
}
