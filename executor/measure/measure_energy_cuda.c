/* measure_energy_cuda.c - the energy that a kernel takes, run after run under the power cap.
 *
 * The driver's counter of energy moves in steps, some ten a second. The work is queued in chunks of
 * some milliseconds, ahead of the GPU by more than it takes to ask the driver (5 ms were seen); the
 * counter is read each time a chunk has ended. A reading begins with a step of the counter, ends
 * with another one, and counts the chunks between.
 */
#include "core/base/clock.h"
#include "executor/measure/measure_cuda.h"
#include "kernels/device/cuda_check.h"

static const double chunk_s = 12e-3;
static const double settle_s = 0.8; /* the cap's control takes some tenths of a second */
static const double window_s = 1.5;
static const double longest_s = 8.0; /* a counter that stands still is none */
enum { MEETINGS = 4 };               /* chunks that are queued */

/* Where the counter made a step. */
typedef struct step {
    double at_s;
    int64_t chunks; /* that had ended */
    unsigned long long mJ;
} step;

typedef struct counter {
    mf_measure_session *s;
    const mf_measure_work *w;
    int runs;       /* of the work in a chunk */
    int64_t queued; /* chunks */
    step last;
} counter;

static mf_status queue_chunk(counter *c, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < c->runs && status == MF_OK; i++) {
        status = c->w->enqueue(c->w->user, e);
    }
    MF_CUDA_TRY(cudaEventRecord(c->s->event[c->queued % MEETINGS], c->s->stream), e);
    c->queued++;
    return status;
}

/* Goes on until the counter makes a step at `from_s` or later. */
static mf_status next_step(counter *c, double from_s, step *out, mf_err *e) {
    for (;;) {
        mf_status status = queue_chunk(c, e);
        if (status != MF_OK) {
            return status;
        }
        MF_CUDA_TRY(cudaEventSynchronize(c->s->event[c->queued % MEETINGS]), e);
        step now = {.at_s = mf_clock_s(), .chunks = c->queued - MEETINGS + 1};
        if (c->s->joules->energy(c->s->joules->device, &now.mJ) != 0) {
            return mf_err_set(e, MF_LIBRARY, "the driver no longer counts the GPU's energy");
        }
        bool moved = now.mJ != c->last.mJ && c->last.at_s > 0;
        if (moved || c->last.at_s == 0) {
            c->last = now;
        }
        if (moved && now.at_s >= from_s) {
            *out = now;
            return MF_OK;
        }
        if (now.at_s - c->last.at_s > longest_s) {
            return mf_err_set(e, MF_LIBRARY, "the driver's counter of energy stands still");
        }
    }
}

mf_status mf_measure_energy(mf_measure_session *s, const mf_measure_work *w, double *energy_J,
                            double *sustained_s, mf_err *e) {
    counter c = {.s = s, .w = w, .runs = (int)(chunk_s / w->time_s) + 1};
    step first = {0}, last = {0};
    mf_status status = MF_OK;
    for (int i = 0; i < MEETINGS - 1 && status == MF_OK; i++) {
        status = queue_chunk(&c, e);
    }
    status = status == MF_OK ? next_step(&c, mf_clock_s() + settle_s, &first, e) : status;
    status = status == MF_OK ? next_step(&c, first.at_s + window_s, &last, e) : status;
    MF_CUDA_TRY(cudaStreamSynchronize(s->stream), e);
    if (status == MF_OK) {
        double works = (double)(last.chunks - first.chunks) * c.runs;
        *energy_J = 1e-3 * (double)(last.mJ - first.mJ) / works;
        *sustained_s = (last.at_s - first.at_s) / works;
    }
    return status;
}
