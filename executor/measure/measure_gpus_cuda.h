/* measure_gpus_cuda.h - what the files that measure between GPUs share; nobody outside includes
 * it.
 *
 * One thread is one rank and drives one GPU. All threads of a reading call the same functions in
 * the same order.
 */
#ifndef MF_EXECUTOR_MEASURE_GPUS_CUDA_H
#define MF_EXECUTOR_MEASURE_GPUS_CUDA_H

#include "executor/measure/measure_nccl_cuda.h"

#include <nccl.h>

#include <pthread.h>

enum { MF_MEASURE_RANKS = 8, MF_MEASURE_RANK_BATCHES = 25 };

#define MF_NCCL_TRY(call, e)                                                                       \
    do {                                                                                           \
        ncclResult_t nccl_result_ = (call);                                                        \
        if (nccl_result_ != ncclSuccess) {                                                         \
            return mf_err_set(e, MF_LIBRARY, "NCCL: %s: %s", #call,                                \
                              ncclGetErrorString(nccl_result_));                                   \
        }                                                                                          \
    } while (0)

typedef struct mf_measure_rank {
    struct mf_measure_gpus *gpus;
    int index;
    cudaStream_t compute, comm;
    cudaEvent_t event[2 * MF_MEASURE_RANK_BATCHES + 2];
    char *send, *recv; /* MF_MEASURE_BUFFER_B each */
    void *cublas, *workspace;
    char *operands; /* of the product beside */
    double estimate_s[2], batch_s[MF_MEASURE_RANK_BATCHES];
    mf_status status;
    mf_err why;
} mf_measure_rank;

/* What the threads of one reading share. */
typedef struct mf_measure_job {
    const mf_point *point;
    const struct collective *collective;
    size_t size_B;
    bool in_place;
    int ranks;
    int runs, batches; /* chosen by rank 0 between two barriers */
    bool beside, of_comm, product, exchange;
    int64_t product_size;
    pthread_barrier_t barrier;
} mf_measure_job;

struct mf_measure_gpus {
    int ranks;
    mf_measure_rank rank[MF_MEASURE_RANKS];
    ncclComm_t comm[MF_MEASURE_RANKS + 1][MF_MEASURE_RANKS]; /* [group size][rank] */
    mf_measure_job job;
};

/* Twice the largest message, so that buffers can rotate. */
#define MF_MEASURE_BUFFER_B ((size_t)2304 << 20)

/* Enqueues run number i on the rank's communication stream. */
typedef mf_status (*mf_measure_call)(mf_measure_rank *r, void *user, int64_t i, mf_err *e);
/* Enqueues runs first, first + 1, ... */
mf_status mf_measure_rank_calls(mf_measure_rank *r, mf_measure_call call, void *user, int64_t first,
                                int runs, mf_err *e);
/* Time from the rank's event a to its event b; waits for it. */
mf_status mf_measure_rank_between(mf_measure_rank *r, int a, int b, double *time_s, mf_err *e);
/* Longest of the ranks' estimates number `which`. */
double mf_measure_slowest_s(const mf_measure_gpus *w, int which);
/* x as a whole number from least to most. */
int mf_measure_within(double x, int least, int most);

/* Times a call that all ranks make: batches into r->batch_s, their number and the runs in each into
 * the job. Short ones become graphs of as many as fill a batch, so that the host's launch time does
 * not show; `captured`: the call may be (what it enqueues is the same every time). */
mf_status mf_measure_rank_time(mf_measure_rank *r, mf_measure_call call, void *user, bool captured,
                               mf_err *e);

/* What runs beside: products of m = n = k up to that size, or copies. */
enum { MF_MEASURE_PRODUCT_MAX = 8192 };
#define MF_MEASURE_OPERANDS_B                                                                      \
    ((size_t)3 * MF_MEASURE_PRODUCT_MAX * MF_MEASURE_PRODUCT_MAX * 2) /* of such a product */
#define MF_MEASURE_COPY_B ((size_t)256 << 20)

/* measure_contention_cuda.c: times the job's side of a call and the job's compute at the same time.
 */
mf_status mf_measure_rank_beside(mf_measure_rank *r, mf_measure_call call, void *user, mf_err *e);

/* measure_dispatch_cuda.c: MF_INPUT when the point's exchange cannot be measured here. */
mf_status mf_measure_dispatch_check(const mf_point *p, mf_err *e);
/* Times the job's point, a dispatch or a combine. */
mf_status mf_measure_rank_dispatch(mf_measure_rank *r, mf_err *e);

#endif
