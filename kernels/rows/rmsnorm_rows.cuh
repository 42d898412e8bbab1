/* rmsnorm_rows.cuh - backward of the norm over wide units (a unit: a group of a row): one block a
 * multiprocessor, of teams that go on independently of each other. A team walks over units that the
 * copy engine brings into its ring in shared memory, EACH vectors a thread. The sum over a unit
 * takes one barrier of the team. Two vectors stay in registers until the sum is there, so that the
 * unit's place is filled again behind that barrier; four are read twice, and the barrier says that
 * all are done with the unit before. A thread meets the same columns in every unit: its part
 * of dweight stays in registers, and a block leaves one partial row.
 */
#ifndef MF_KERNELS_RMSNORM_ROWS_CUH
#define MF_KERNELS_RMSNORM_ROWS_CUH

#include "kernels/device/cuda_bulk.cuh"
#include "kernels/device/cuda_common.cuh"
#include "kernels/rows/norm_units.cuh"
#include "kernels/rows/rmsnorm.h"

#define STAGES_MAX 2 /* units in a team's ring: with more it is slower by up to 8 % */
#define TEAMS_MAX 8
#define RINGS_MAX_B (200 * 1024) /* of a multiprocessor, for its teams' rings */
#define NORM_THREADS 512         /* of a block, at most */
/* With two vectors a thread, registers are dealt as for so many: 80 a thread, which is 6 % faster
 * than 95, and the blocks that add up dweight find space beside it. */
#define NORM_THREADS_DEALT 768

/* The shape of the backward kernel's launch. */
typedef struct norm_plan {
    int each;         /* vectors of a thread */
    int lanes, teams; /* threads of a team (whole warps), teams of a block */
    int stages;       /* not a constant: with one the compiled code is 5 % slower */
    int unit_B;
    float shift; /* is added to weights */
} norm_plan;

/* Two vectors a thread where two teams or more can take a unit each and there is nothing to add
 * (three streams of two vectors spill). False when the unit is too wide for the fast path. */
static bool choose_plan(int64_t cols, int width, int streams, norm_plan *p) {
    const int64_t vectors = cols / width, unit_B = vectors * 16;
    p->each = streams == 2 && vectors <= NORM_THREADS ? 2 : 4;
    p->lanes = (int)mf_ceil_div(vectors, 32 * p->each) * 32;
    p->teams = NORM_THREADS / p->lanes;
    p->teams = p->teams > TEAMS_MAX ? TEAMS_MAX : p->teams;
    p->unit_B = (int)unit_B;
    p->stages = STAGES_MAX;
    while (p->teams > 1 && unit_B * streams * STAGES_MAX * p->teams > RINGS_MAX_B) {
        p->teams--;
    }
    return p->teams >= 1 && unit_B * streams * STAGES_MAX * p->teams <= RINGS_MAX_B;
}

static int plan_smem_B(const norm_plan *p, int streams) {
    return p->unit_B * streams * p->stages * p->teams;
}

/* Where a unit begins in a matrix with rows of `stride` elements. */
__device__ static inline int64_t unit_offset(const mf_kernel_rmsnorm_grad &a, int unit,
                                             int64_t stride) {
    if (a.groups == 1) {
        return unit * stride;
    }
    const int row = unit / (int)a.groups;
    return row * stride + (unit - row * (int)a.groups) * a.cols;
}

/* By the first lanes of a warp: a unit of x, dy (and dx_add) into a slot that was read before,
 * behind a barrier. */
template <typename T, int STREAMS>
__device__ static inline void fetch_unit(const mf_kernel_rmsnorm_grad &a, int unit, char *slot,
                                         uint32_t unit_B, uint64_t *bar) {
    const int s = (int)threadIdx.x % 32;
    if (s == 0) {
        mf_bulk_expect(bar, unit_B * STREAMS);
    }
    __syncwarp();
    if (s < STREAMS) {
        mf_bulk_fence(); /* what the slot held was read by ordinary loads */
        const void *from = s == 0 ? a.x : s == 1 ? a.dy : a.dx_add;
        const int64_t at = unit_offset(a, unit, s == 1 ? a.y_stride : a.x_stride);
        mf_bulk_load(slot + s * unit_B, (const T *)from + at, unit_B, bar);
    }
}

/* The sum over a team's threads, with one barrier of the team; `smem`: 2 * lanes / 32 floats,
 * whose halves take turns. */
__device__ static inline float sum_of_team(float x, int team, int lanes, float *smem, int turn) {
    const int lane = (int)threadIdx.x % 32, warps = lanes / 32;
    x = mf_warp_sum(x);
    if (warps == 1) {
        return x; /* the next barrier of a warp is its next shuffle */
    }
    float *const mine = smem + (turn & 1) * warps;
    if (lane == 0) {
        mine[((int)threadIdx.x - team * lanes) / 32] = x;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(lanes) : "memory");
    return mf_warp_sum(lane < warps ? mine[lane] : 0.0f);
}

/* A team has one unit less than the first of its block where units do not come out even. It goes
 * through that barrier as well: racecheck cannot follow blocks whose threads take different
 * numbers of named barriers (it reports shared memory that __syncthreads orders). */
__device__ static inline void even_out(int first_unit, int all, int step, int team, int lanes) {
    const int own = (all - first_unit + step - 1) / step;
    const int most = (all - (int)blockIdx.x + step - 1) / step;
    if (lanes > 32 && own < most) {
        asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(lanes) : "memory");
    }
}

/* Adds up the teams' parts of dweight and writes the block's partial row. `smem`: teams * cols
 * floats that all are done with. */
template <int N, int EACH>
__device__ static void put_partial(const float (&dw)[EACH][N], const norm_plan &p, int team,
                                   int thread, int cols, float *smem, float *partial) {
    float *const out = p.teams > 1 ? smem + team * cols : partial;
#pragma unroll
    for (int v = 0; v < EACH; v++) {
        const int c = (v * p.lanes + thread) * N;
        if (c < cols) {
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                *reinterpret_cast<float4 *>(out + c + i) =
                    make_float4(dw[v][i], dw[v][i + 1], dw[v][i + 2], dw[v][i + 3]);
            }
        }
    }
    if (p.teams > 1) {
        __syncthreads();
        for (int c = (int)threadIdx.x * 4; c < cols; c += (int)blockDim.x * 4) {
            float4 sum = *reinterpret_cast<const float4 *>(smem + c);
            for (int t = 1; t < p.teams; t++) {
                const float4 more = *reinterpret_cast<const float4 *>(smem + t * cols + c);
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            *reinterpret_cast<float4 *>(partial + c) = sum;
        }
    }
}

/* What stays with a thread through all units: its columns' weights and parts of dweight. */
template <typename T, int N, int EACH> struct norm_columns {
    mf_raw<T, N> weight[EACH];
    float dw[EACH][N];
};

template <typename T, int N, int EACH, bool SHIFT>
__device__ static inline void begin_columns(norm_columns<T, N, EACH> &own, const void *weight,
                                            int lanes, int thread, int cols) {
#pragma unroll
    for (int v = 0; v < EACH; v++) {
        const int c = (v * lanes + thread) * N;
        if (c < cols) {
            own.weight[v] =
                SHIFT ? fetch_weight<T, N>(weight, c) : mf_fetch<T, N>((const T *)weight + c);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            own.dw[v][i] = 0.0f;
        }
    }
}

/* A thread's vectors of a unit. */
template <typename T, int N, int EACH, bool ADD> struct norm_unit {
    mf_raw<T, N> x[EACH], dy[EACH], add[EACH];

    /* Vector v out of the ring; `from`: the thread's first element of x. */
    __device__ void fetch(const T *from, int v, int lanes, int cols) {
        x[v] = mf_fetch<T, N>(from + v * lanes * N);
        dy[v] = mf_fetch<T, N>(from + cols + v * lanes * N);
        if constexpr (ADD) {
            add[v] = mf_fetch<T, N>(from + 2 * cols + v * lanes * N);
        }
    }
};

/* Adds the unit to the thread's part of dweight. Returns its part of the sum over x * dy * w. */
template <typename T, int N, int EACH, bool ADD, bool SHIFT>
__device__ static inline float add_unit(norm_columns<T, N, EACH> &own,
                                        norm_unit<T, N, EACH, ADD> &u, const T *from, float rstd,
                                        const norm_plan &p, int thread, int cols) {
    constexpr bool HOLD = EACH == 2;
    float dot = 0.0f;
    if constexpr (HOLD) {
#pragma unroll
        for (int v = 0; v < EACH; v++) {
            if ((v * p.lanes + thread) * N < cols) {
                u.fetch(from, v, p.lanes, cols);
            }
        }
    }
#pragma unroll
    for (int v = 0; v < EACH; v++) {
        if ((v * p.lanes + thread) * N < cols) {
            if constexpr (!HOLD) {
                u.fetch(from, v, p.lanes, cols);
            }
            float vx[N], vy[N], w[N];
            mf_widen(vx, u.x[v]);
            mf_widen(vy, u.dy[v]);
            mf_widen(w, own.weight[v]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float product = vx[i] * vy[i];
                own.dw[v][i] += product * rstd;
                dot += product * (SHIFT ? w[i] + p.shift : w[i]);
            }
        }
    }
    return dot;
}

/* dx = dy * w * rstd - x * f [+ add]; `dx`: the thread's first element. */
template <typename T, int N, int EACH, bool ADD, bool SHIFT>
__device__ static inline void put_dx(T *dx, const norm_columns<T, N, EACH> &own,
                                     norm_unit<T, N, EACH, ADD> &u, const T *from, float rstd,
                                     float f, const norm_plan &p, int thread, int cols) {
#pragma unroll
    for (int v = 0; v < EACH; v++) {
        if ((v * p.lanes + thread) * N < cols) {
            if constexpr (EACH != 2) {
                u.fetch(from, v, p.lanes, cols);
            }
            float vx[N], vy[N], w[N];
            mf_widen(vx, u.x[v]);
            mf_widen(vy, u.dy[v]);
            mf_widen(w, own.weight[v]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                vx[i] = vy[i] * (SHIFT ? w[i] + p.shift : w[i]) * rstd - vx[i] * f;
            }
            if constexpr (ADD) {
                mf_widen(vy, u.add[v]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    vx[i] += vy[i];
                }
            }
            mf_store(dx + v * p.lanes * N, vx);
        }
    }
}

/* SHIFT: weights are shifted or are not there; a kernel of its own, for registers are short. */
template <typename T, int N, bool ADD, int EACH, bool SHIFT>
__global__ void __launch_bounds__(EACH == 2 ? NORM_THREADS_DEALT : NORM_THREADS)
    norm_backward(mf_kernel_rmsnorm_grad a, norm_plan p, float *partial) {
    extern __shared__ __align__(128) char smem[];
    __shared__ float sums[2 * NORM_THREADS / 32];
    __shared__ uint64_t bars[TEAMS_MAX * STAGES_MAX];
    constexpr int STREAMS = ADD ? 3 : 2;
    constexpr bool HOLD = EACH == 2;
    const int cols = (int)a.cols, all = (int)(a.rows * a.groups);
    const int team = (int)threadIdx.x / p.lanes, thread = (int)threadIdx.x - team * p.lanes;
    const int step = (int)gridDim.x * p.teams, slot_B = p.unit_B * STREAMS;
    char *const ring = smem + team * slot_B * p.stages;
    uint64_t *const bar = bars + team * STAGES_MAX;
    if (threadIdx.x < TEAMS_MAX * STAGES_MAX) {
        mf_bulk_init(&bars[threadIdx.x]);
        mf_bulk_init_done();
    }
    __syncthreads();
    mf_await();
    int unit = team * (int)gridDim.x + (int)blockIdx.x;
    if (thread < 32) {
        for (int s = 0; s < p.stages && unit + s * step < all; s++) {
            fetch_unit<T, STREAMS>(a, unit + s * step, ring + s * slot_B, (uint32_t)p.unit_B,
                                   &bar[s]);
        }
    }
    norm_columns<T, N, EACH> own;
    begin_columns<T, N, EACH, SHIFT>(own, a.weight, p.lanes, thread, cols);
    float rstd = unit < all ? a.rstd[unit] : 0.0f;
    int slot = 0, parity = 0;
    for (int turn = 0; unit < all; turn++, unit += step) {
        norm_unit<T, N, EACH, ADD> u;
        const T *const from = (const T *)(ring + slot * slot_B) + thread * N;
        mf_bulk_wait(&bar[slot], (uint32_t)parity);
        float dot = add_unit<T, N, EACH, ADD, SHIFT>(own, u, from, rstd, p, thread, cols);
        const float next_rstd = unit + step < all ? a.rstd[unit + step] : 0.0f;
        dot = sum_of_team(dot, team, p.lanes, sums + 2 * (p.lanes / 32) * team, turn);
        if (thread < 32) {
            const int done = HOLD ? unit : unit - step, next = done + p.stages * step;
            const int free = HOLD ? slot : slot == 0 ? p.stages - 1 : slot - 1;
            if (next < all && (HOLD || turn > 0)) {
                fetch_unit<T, STREAMS>(a, next, ring + free * slot_B, (uint32_t)p.unit_B,
                                       &bar[free]);
            }
        }
        const float f = dot / (float)cols * rstd * rstd * rstd;
        put_dx<T, N, EACH, ADD, SHIFT>((T *)a.dx + unit_offset(a, unit, a.x_stride) + thread * N,
                                       own, u, from, rstd, f, p, thread, cols);
        rstd = next_rstd;
        slot++;
        if (slot == p.stages) {
            slot = 0;
            parity ^= 1;
        }
    }
    if (partial) {
        even_out(team * (int)gridDim.x + (int)blockIdx.x, all, step, team, p.lanes);
        __syncthreads(); /* all teams are done with their rings */
        put_partial<N, EACH>(own.dw, p, team, thread, cols, (float *)smem,
                             partial + (int64_t)blockIdx.x * cols);
    }
}

#endif
