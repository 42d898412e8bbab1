/* measure_cuda.h - what the files of measuring share; nobody outside includes it.
 *
 *     measure_run_cuda.c       the loop over points, the state of the GPU
 *     measure_time_cuda.c      timing of anything that can be launched
 *     measure_energy_cuda.c    energy of the same, run after run
 *     measure_fill.cu          random data
 *     measure_*_cuda.c         one family of ops each: a point in, a time out
 */
#ifndef MF_EXECUTOR_MEASURE_CUDA_H
#define MF_EXECUTOR_MEASURE_CUDA_H

#include "executor/measure/measure_nvml.h"
#include "executor/measure/measure_reading.h"

#include <cuda_runtime_api.h>

#define MF_MEASURE_SETS 64    /* most sets of operands that are rotated */
#define MF_MEASURE_BATCHES 41 /* most batches of one reading */

/* Launches run number `i` on the stream. */
typedef mf_status (*mf_measure_launch)(void *op, int64_t i, cudaStream_t stream, mf_err *e);

/* One GPU at work. */
typedef struct mf_measure_session {
    int device;
    cudaStream_t stream;
    cudaEvent_t event[MF_MEASURE_BATCHES + 1];
    char *arena; /* device memory; taken anew for every point */
    size_t arena_B, used_B;
    void *workspace; /* of libraries */
    size_t workspace_B;
    size_t l2_B;
    int sms;
    uint64_t seed;
    double heat_s, looked_s; /* work beyond what the GPU does at full clocks; see mf_measure_rest */
    mf_nvml *joules;         /* counts energy; NULL: that is not asked for */
    void *cublas, *cudnn;    /* opened by their families on first use */
    void (*cudnn_close)(void *);
} mf_measure_session;

/* A family: measures a point of its op. MF_INPUT when no kernel takes the shape. */
typedef mf_status (*mf_measure_op)(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                                   mf_err *e);

mf_status mf_measure_gemm(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                          mf_err *e);
mf_status mf_measure_grouped(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                             mf_err *e);
mf_status mf_measure_attention(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                               mf_err *e);
mf_status mf_measure_memory(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                            mf_err *e);
mf_status mf_measure_copy(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                          mf_err *e);
mf_status mf_measure_host_copy(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                               mf_err *e);
mf_status mf_measure_launches(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                              mf_err *e);

/* --- device memory of a point ----------------------------------------------------------------- */

typedef enum mf_measure_data {
    MF_DATA_BF16,  /* normal, deviation 1 */
    MF_DATA_F32,   /* normal, deviation 1 */
    MF_DATA_E4M3,  /* normal, deviation 16, rounded */
    MF_DATA_SCALE, /* floats in [0.5, 1) */
    MF_DATA_NONE   /* left as it is */
} mf_measure_data;

/* `size_B` bytes of the arena, 256-byte aligned, filled; NULL when it does not hold them. */
void *mf_measure_take(mf_measure_session *s, size_t size_B, mf_measure_data data);
/* Sets of operands needed so that a set has left the L2 cache when it comes round again: at least
 * 1, at most MF_MEASURE_SETS and what the arena holds. */
int mf_measure_sets(const mf_measure_session *s, size_t set_B);

/* Fills with random data; enqueues. size_B is rounded down to 16 bytes. */
mf_status mf_measure_fill(void *p, size_t size_B, mf_measure_data data, uint64_t seed, void *stream,
                          mf_err *e);
/* int32 values 0 .. below-1 at random. */
mf_status mf_measure_fill_int(int32_t *p, int64_t n, int32_t below, uint64_t seed, void *stream,
                              mf_err *e);
/* A kernel that does nothing. */
mf_status mf_measure_nothing(void *stream, mf_err *e);

/* --- timing ----------------------------------------------------------------------------------- */

/* Lets the GPU rest until it can work at full clocks for some 40 ms. */
void mf_measure_rest(mf_measure_session *s);

/* Around long work of the host alone, such as compiling a plan: what passes between the two counts
 * as rest of the GPU, what came before the first as work. */
void mf_measure_busy(mf_measure_session *s);
void mf_measure_idled(mf_measure_session *s);

/* Times `launch`; where the session counts energy also that. */
mf_status mf_measure_run(mf_measure_session *s, mf_measure_launch launch, void *op,
                         mf_measure_time *out, mf_err *e);

/* Enqueues work on the session's stream that takes about time_s; the same each time. */
typedef struct mf_measure_work {
    mf_status (*enqueue)(void *user, mf_err *e);
    void *user;
    double time_s;
} mf_measure_work;

/* Energy and time of one such work under the power cap: it runs without a rest until the clock has
 * settled, and then as long as it takes to read the driver's counter to the percent. Errors:
 * MF_LIBRARY. */
mf_status mf_measure_energy(mf_measure_session *s, const mf_measure_work *w, double *energy_J,
                            double *sustained_s, mf_err *e);

/* Integer dim of a canonical point. */
int64_t mf_measure_dim(const mf_point *p, const char *key);

#endif
