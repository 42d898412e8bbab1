/* rmsnorm_rows.cuh - backward of the norm over wide rows: resident blocks walk over stages of rows
 * that the copy engine brings into shared memory several stages ahead; each thread keeps its share
 * of dweight in registers, and a block leaves one partial row.
 */
#ifndef MF_KERNELS_RMSNORM_ROWS_CUH
#define MF_KERNELS_RMSNORM_ROWS_CUH

#include "kernels/cuda_bulk.cuh"
#include "kernels/cuda_common.cuh"
#include "kernels/rmsnorm.h"

#define STAGES_MAX 6
#define SHARE_MAX_B (200 * 1024) /* of a multiprocessor, for all its blocks' stages */
#define STREAM_B 16384           /* of a stream in a stage that several short rows share */

/* How the backward kernel is cut. */
typedef struct norm_plan {
    int lanes, threads;
    int rows_per_stage, stages;
    int stage_B, stream_B; /* a stage, and one of its streams (x, dy, ...) */
} norm_plan;

#define EACH 4 /* vectors of a thread */

/* False when the row is too wide for the fast path. */
static bool choose_plan(int64_t groups, int64_t cols, int width, int streams, norm_plan *p) {
    int64_t row_B = groups * cols * (16 / width), need = mf_ceil_div(cols / width, EACH);
    if (need > 512 || row_B * streams > SHARE_MAX_B / 2) {
        return false;
    }
    p->lanes = need <= 128 ? mf_pow2_up(need) : (int)mf_ceil_div(need, 32) * 32;
    p->threads = p->lanes <= 128 ? 256 : p->lanes;
    p->rows_per_stage = row_B < STREAM_B ? (int)(STREAM_B / row_B) : 1;
    p->stream_B = (int)row_B * p->rows_per_stage;
    p->stage_B = p->stream_B * streams;
    int resident = 512 / p->threads;
    resident = resident < 2 ? 2 : resident > 8 ? 8 : resident;
    int stages = SHARE_MAX_B / resident / p->stage_B;
    p->stages = stages < 2 ? 2 : stages > STAGES_MAX ? STAGES_MAX : stages;
    return true;
}

/* The ring of stages of one block. Streams: pointers to rows `stride` elements apart. */
template <typename T, int STREAMS> struct row_ring {
    const T *stream[STREAMS];
    int64_t stride[STREAMS];
    int64_t rows;
    uint32_t row_B;
    norm_plan plan;
    char *share;
    uint64_t *bar;

    __device__ int64_t first_row(int turn) const {
        return ((int64_t)turn * gridDim.x + blockIdx.x) * plan.rows_per_stage;
    }
    __device__ int turns(void) const {
        int64_t all = (rows + plan.rows_per_stage - 1) / plan.rows_per_stage;
        return (int)((all - blockIdx.x + gridDim.x - 1) / gridDim.x);
    }
    /* After a barrier that all threads reach once they are done with stage `done`. */
    __device__ void refill(int done, int all) const {
        if (threadIdx.x < 32 && done >= 0 && done + plan.stages < all) {
            fetch(done + plan.stages);
        }
    }
    __device__ T *unit(int turn, int s, int offset) const {
        return (T *)(share + turn % plan.stages * plan.stage_B + s * plan.stream_B) + offset;
    }
    /* By the first warp. */
    __device__ void fetch(int turn) const {
        int64_t row = first_row(turn);
        int count = (int)(rows - row < plan.rows_per_stage ? rows - row : plan.rows_per_stage);
        int slot = turn % plan.stages, lane = (int)threadIdx.x;
        if (lane == 0) {
            mf_bulk_expect(&bar[slot], row_B * STREAMS * count);
        }
        __syncwarp();
#pragma unroll
        for (int s = 0; s < STREAMS; s++) {
#pragma unroll 1
            for (int r = lane; r < count; r += 32) {
                mf_bulk_load(share + slot * plan.stage_B + s * plan.stream_B + r * row_B,
                             stream[s] + (row + r) * stride[s], row_B, &bar[slot]);
            }
        }
    }
    __device__ void start(void) const {
        if (threadIdx.x == 0) {
            for (int s = 0; s < plan.stages; s++) {
                mf_bulk_init(&bar[s]);
            }
            mf_bulk_init_done();
        }
        __syncthreads();
        int n = turns();
        for (int t = 0; t < plan.stages && t < n && threadIdx.x < 32; t++) {
            fetch(t);
        }
    }
    __device__ void wait(int turn) const {
        mf_bulk_wait(&bar[turn % plan.stages], (uint32_t)(turn / plan.stages) & 1);
    }
};

/* Where a thread's k-th vector lies. Teams side by side start at different vectors, so that those
 * of one warp that are narrower than a row of banks read different banks. */
__device__ static inline int vector_at(int k, int n, int lanes) {
    int team = (int)threadIdx.x / lanes, lane = (int)threadIdx.x % lanes;
    return ((lanes < 8 ? (k + team) % EACH : k) * lanes + lane) * n;
}

/* Adds up the teams' shares of dweight and writes the block's partial row. */
template <int N>
__device__ static void put_partial(const float (&dw)[EACH][N], int lanes, int64_t cols,
                                   float *share, float *partial) {
    int teams = (int)blockDim.x / lanes;
    float *out = teams > 1 ? share + (int64_t)(threadIdx.x / lanes) * cols : partial;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int c = vector_at(k, N, lanes);
        if (c < cols) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                out[c + i] = dw[k][i];
            }
        }
    }
    if (teams > 1) {
        __syncthreads();
        for (int c = (int)threadIdx.x; c < cols; c += (int)blockDim.x) {
            float sum = 0.0f;
            for (int t = 0; t < teams; t++) {
                sum += share[t * cols + c];
            }
            partial[c] = sum;
        }
    }
}

template <typename T, int N, bool ADD>
__global__ void __launch_bounds__(512)
    norm_backward(mf_kernel_rmsnorm_grad a, norm_plan p, float *partial) {
    mf_await();
    extern __shared__ __align__(128) char share[];
    __shared__ float scratch[64];
    __shared__ uint64_t bar[STAGES_MAX];
    int team = (int)threadIdx.x / p.lanes;
    int teams = p.threads / p.lanes, groups = (int)a.groups;
    row_ring<T, ADD ? 3 : 2> ring;
    ring.stream[0] = (const T *)a.x, ring.stride[0] = a.x_stride;
    ring.stream[1] = (const T *)a.dy, ring.stride[1] = a.y_stride;
    if (ADD) {
        ring.stream[1 + ADD] = (const T *)a.dx_add, ring.stride[1 + ADD] = a.x_stride;
    }
    ring.rows = a.rows, ring.row_B = (uint32_t)(groups * a.cols * sizeof(T));
    ring.plan = p, ring.share = share, ring.bar = bar;
    ring.start();
    mf_raw<T, N> weight[EACH];
    float dw[EACH][N];
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int c = vector_at(k, N, p.lanes);
        if (c < a.cols) {
            weight[k] = mf_fetch<T, N>((const T *)a.weight + c);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            dw[k][i] = 0.0f;
        }
    }
    int turns = ring.turns(), cols = (int)a.cols;
    int units = p.rows_per_stage * groups, passes = (units + teams - 1) / teams;
    int step_row = teams / groups, step_g = teams % groups, sums = 0;
    for (int turn = 0; turn < turns; turn++) {
        /* rstd comes from global memory: asked for before the wait. */
        int64_t row0 = ring.first_row(turn), r0 = row0 + team / groups;
        float next_rstd = team < units && r0 < a.rows ? a.rstd[row0 * groups + team] : 0.0f;
        ring.wait(turn);
        int unit = team, at_row = team / groups, g = team % groups;
        for (int pass = 0; pass < passes; pass++, unit += teams, at_row += step_row, g += step_g) {
            if (g >= groups) {
                g -= groups;
                at_row++;
            }
            int64_t r = row0 + at_row;
            bool live = unit < units && r < a.rows;
            const T *x = ring.unit(turn, 0, unit * cols), *dy = ring.unit(turn, 1, unit * cols);
            const T *add = ring.unit(turn, 1 + ADD, unit * cols);
            float rstd = next_rstd, dot = 0.0f;
            if (pass + 1 < passes && row0 * groups + unit + teams < a.rows * groups) {
                next_rstd = a.rstd[row0 * groups + unit + teams];
            }
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                int c = vector_at(k, N, p.lanes);
                if (!live || c >= cols) {
                    continue;
                }
                float vx[N], vy[N], w[N];
                mf_load(vx, x + c);
                mf_load(vy, dy + c);
                mf_widen(w, weight[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float product = vx[i] * vy[i];
                    dw[k][i] += product * rstd;
                    dot += product * w[i];
                }
            }
            dot = mf_team_sum(dot, p.lanes, scratch, sums++);
            if (teams == 1 && pass == 0) {
                ring.refill(turn - 1, turns); /* the sum was a barrier */
            }
            float f = dot / (float)a.cols * rstd * rstd;
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                int c = vector_at(k, N, p.lanes);
                if (!live || c >= cols) {
                    continue;
                }
                float vx[N], vy[N], w[N];
                mf_load(vx, x + c);
                mf_load(vy, dy + c);
                mf_widen(w, weight[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    vx[i] = rstd * (vy[i] * w[i] - vx[i] * f);
                }
                if (ADD) {
                    mf_load(vy, add + c);
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        vx[i] += vy[i];
                    }
                }
                mf_store((T *)a.dx + r * a.x_stride + g * a.cols + c, vx);
            }
        }
        if (teams > 1) {
            __syncthreads();
            ring.refill(turn, turns);
        }
    }
    if (partial) {
        put_partial<N>(dw, p.lanes, a.cols, (float *)share, partial + (int64_t)blockIdx.x * a.cols);
    }
}

#endif
