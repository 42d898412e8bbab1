/* rmsnorm.cu - CUDA kernels of the root-mean-square norm.
 *
 * Backward of narrow groups: rmsnorm_narrow.cuh. Forward: `lanes` threads (a part of a warp for
 * QK-norm, a small block for hidden) fetch a unit - a group of a row - into registers, a few
 * 16-byte loads a thread, reduce and store. Backward: resident blocks walk over stages of rows that
 * the copy engine brings into shared memory several stages ahead; each thread keeps its share of
 * dweight in registers, and a block leaves one partial row, which a second kernel adds. Slow path
 * (any alignment and width): the same arithmetic, one element at a time.
 */
#include "kernels/cuda_bulk.cuh"
#include "kernels/cuda_common.cuh"
#include "kernels/rmsnorm.h"
#include "kernels/rmsnorm_narrow.cuh"

#define STAGES_MAX 6
#define SHARE_MAX_B (200 * 1024) /* of a multiprocessor, for all its blocks' stages */
#define STREAM_B 16384           /* of a stream in a stage that several short rows share */

/* How the forward kernel is cut: plain numbers, printable. */
typedef struct unit_plan {
    int lanes, threads, each; /* threads of a unit, of a block; vectors of a thread */
} unit_plan;

static bool choose_units(int64_t cols, int width, unit_plan *p) {
    int64_t vectors = cols / width;
    p->each = vectors <= 256 ? 2 : 4;
    int64_t need = mf_ceil_div(vectors, p->each);
    p->lanes = need <= 32 ? mf_pow2_up(need) : (int)mf_ceil_div(need, 32) * 32;
    p->threads = need <= 32 ? 128 : p->lanes;
    return need <= 512;
}

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

template <typename T, int N, int K, bool ADD>
__global__ void norm_forward(mf_kernel_rmsnorm a, int lanes) {
    __shared__ float scratch[64];
    int lane = (int)threadIdx.x % lanes, cols = (int)a.cols;
    int64_t unit = (int64_t)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    bool live = unit < a.rows * a.groups;
    int64_t r = unit / a.groups, g = unit % a.groups, at = r * a.x_stride + g * a.cols;
    const T *x = (const T *)a.x + at;
    mf_raw<T, N> raw[K];
    float square = 0.0f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (k * lanes + lane) * N;
        if (live && c < cols) {
            raw[k] = mf_fetch_once<T, N>(x + c);
        }
    }
    if (ADD) {
        mf_raw<T, N> more[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * lanes + lane) * N;
            if (live && c < cols) {
                more[k] = mf_fetch_once<T, N>((const T *)a.add + at + c);
            }
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * lanes + lane) * N;
            if (live && c < cols) {
                float s[N], t[N];
                mf_widen(s, raw[k]);
                mf_widen(t, more[k]);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    s[i] += t[i];
                }
                mf_store((T *)&raw[k], s);
                *reinterpret_cast<mf_raw<T, N> *>((T *)a.sum + at + c) = raw[k];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (live && (k * lanes + lane) * N < cols) {
            float s[N];
            mf_widen(s, raw[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                square += s[i] * s[i];
            }
        }
    }
    square = mf_group_sum(square, lanes, scratch, 0);
    float rstd = 1.0f / sqrtf(square / (float)cols + a.eps);
    T *y = (T *)a.y + r * a.y_stride + g * a.cols;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (k * lanes + lane) * N;
        if (live && c < cols) {
            float s[N], w[N];
            mf_load(w, (const T *)a.weight + c);
            mf_widen(s, raw[k]);
#pragma unroll
            for (int i = 0; i < N; i++) {
                s[i] = s[i] * rstd * w[i];
            }
            mf_store(y + c, s);
        }
    }
    if (a.rstd && live && lane == 0) {
        a.rstd[unit] = rstd;
    }
}

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
    cudaTriggerProgrammaticLaunchCompletion(); /* the sum's blocks wait for the first free place */
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

/* Any alignment and width: a block a unit. */
template <typename T> __global__ void norm_forward_any(mf_kernel_rmsnorm a) {
    __shared__ float scratch[64];
    int64_t r = blockIdx.x / a.groups, g = blockIdx.x % a.groups;
    int64_t at = r * a.x_stride + g * a.cols;
    const T *s = a.add ? (const T *)a.sum : (const T *)a.x;
    float square = 0.0f;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        float x[1], t[1];
        mf_load(x, (const T *)a.x + at + c);
        if (a.add) {
            mf_load(t, (const T *)a.add + at + c);
            x[0] = mf_round_as((T *)nullptr, x[0] + t[0]);
            mf_store((T *)a.sum + at + c, x);
        }
        square += x[0] * x[0];
    }
    square = mf_group_sum(square, (int)blockDim.x, scratch, 0);
    float rstd = 1.0f / sqrtf(square / (float)a.cols + a.eps);
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        float x[1], w[1];
        mf_load(x, s + at + c);
        mf_load(w, (const T *)a.weight + c);
        x[0] = x[0] * rstd * w[0];
        mf_store((T *)a.y + r * a.y_stride + g * a.cols + c, x);
    }
    if (a.rstd && threadIdx.x == 0) {
        a.rstd[blockIdx.x] = rstd;
    }
}

template <typename T> __global__ void norm_backward_any(mf_kernel_rmsnorm_grad a) {
    __shared__ float scratch[64];
    int64_t r = blockIdx.x / a.groups, g = blockIdx.x % a.groups;
    int64_t at = r * a.x_stride + g * a.cols, yt = r * a.y_stride + g * a.cols;
    float rstd = a.rstd[blockIdx.x], dot = 0.0f, x[1], dy[1], w[1];
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        mf_load(x, (const T *)a.x + at + c);
        mf_load(dy, (const T *)a.dy + yt + c);
        mf_load(w, (const T *)a.weight + c);
        dot += dy[0] * w[0] * x[0];
    }
    dot = mf_group_sum(dot, (int)blockDim.x, scratch, 0);
    float f = dot / (float)a.cols * rstd * rstd;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        mf_load(x, (const T *)a.x + at + c);
        mf_load(dy, (const T *)a.dy + yt + c);
        mf_load(w, (const T *)a.weight + c);
        float dx[1] = {rstd * (dy[0] * w[0] - x[0] * f)};
        if (a.dx_add) {
            mf_load(w, (const T *)a.dx_add + at + c);
            dx[0] += w[0];
        }
        mf_store((T *)a.dx + at + c, dx);
    }
}

/* partial[block] = the sum of dy * x * rstd over the block's units; before dx overwrites dy. */
template <typename T> __global__ void norm_weight_any(mf_kernel_rmsnorm_grad a, float *partial) {
    int64_t c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= a.cols) {
        return;
    }
    float sum = 0.0f, x[1], dy[1];
    for (int64_t u = blockIdx.x; u < a.rows * a.groups; u += gridDim.x) {
        int64_t r = u / a.groups, g = u % a.groups;
        mf_load(x, (const T *)a.x + r * a.x_stride + g * a.cols + c);
        mf_load(dy, (const T *)a.dy + r * a.y_stride + g * a.cols + c);
        sum += dy[0] * x[0] * a.rstd[u];
    }
    partial[blockIdx.x * a.cols + c] = sum;
}

/* dweight[c] += sum of the blocks' partial rows. 32 columns and 32 strands of rows a block. */
static __global__ void norm_weight_sum(const float *partial, int blocks, int64_t cols,
                                       float *dweight) {
    __shared__ float share[32][33];
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    const int64_t mine = (int64_t)blockIdx.x * 32 + threadIdx.y;
    const float old = mine < cols ? dweight[mine] : 0.0f; /* the predecessor does not write it */
    float sum = 0.0f;
    cudaGridDependencySynchronize();
#pragma unroll 8
    for (int b = (int)threadIdx.y; b < blocks; b += 32) {
        sum += c < cols ? partial[b * cols + c] : 0.0f;
    }
    share[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = mf_warp_sum(share[threadIdx.x][threadIdx.y]); /* of column `mine` */
    if (threadIdx.x == 0 && mine < cols) {
        dweight[mine] = old + sum;
    }
}

/* Partial rows that the workspace holds. */
static int64_t partial_rows(int64_t cols) {
    return (int64_t)(mf_kernel_rmsnorm_workspace_B(cols) / sizeof(float)) / cols;
}

static mf_status sum_weights(const mf_kernel_rmsnorm_grad *a, int blocks, cudaStream_t stream,
                             mf_err *e) {
    return mf_launch_behind(norm_weight_sum, dim3((unsigned)mf_ceil_div(a->cols, 32)), dim3(32, 32),
                            stream, e, (const float *)a->workspace, blocks, a->cols, a->dweight);
}

/* Blocks that fill the device with this kernel, at most one a stage. */
static mf_status resident_blocks(const void *kernel, const norm_plan *p, size_t share_B,
                                 int64_t rows, int64_t cols, int *blocks, mf_err *e) {
    int device, sms, resident;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    MF_CUDA_TRY(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)share_B), e);
    MF_CUDA_TRY(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, p->threads, share_B), e);
    int64_t most = (int64_t)sms * (resident < 1 ? 1 : resident);
    int64_t work = mf_ceil_div(rows, p->rows_per_stage);
    most = most < partial_rows(cols) ? most : partial_rows(cols);
    *blocks = (int)(work < most ? work : most);
    return MF_OK;
}

template <typename T, int N, int K>
static void launch_forward(const mf_kernel_rmsnorm *a, const unit_plan *p, cudaStream_t stream) {
    unsigned blocks = (unsigned)mf_ceil_div(a->rows * a->groups, p->threads / p->lanes);
    if (a->add) {
        norm_forward<T, N, K, true><<<blocks, p->threads, 0, stream>>>(*a, p->lanes);
    } else {
        norm_forward<T, N, K, false><<<blocks, p->threads, 0, stream>>>(*a, p->lanes);
    }
}

template <typename T, int N, bool ADD>
static mf_status launch_backward(const mf_kernel_rmsnorm_grad *a, const norm_plan *p,
                                 cudaStream_t stream, mf_err *e) {
    int blocks;
    size_t share_B = (size_t)(p->stage_B * p->stages);
    size_t teams_B = (size_t)(p->threads / p->lanes * a->cols) * sizeof(float);
    share_B = share_B > teams_B ? share_B : teams_B;
    mf_status status = resident_blocks((const void *)norm_backward<T, N, ADD>, p, share_B, a->rows,
                                       a->cols, &blocks, e);
    if (status != MF_OK) {
        return status;
    }
    float *partial = a->dweight ? (float *)a->workspace : nullptr;
    norm_backward<T, N, ADD><<<(unsigned)blocks, p->threads, share_B, stream>>>(*a, *p, partial);
    MF_KERNEL_LAUNCHED(e);
    return partial ? sum_weights(a, blocks, stream, e) : MF_OK;
}

/* Groups of at most a vector a thread of a warp. */
template <typename T, int N, bool ADD>
static mf_status launch_narrow(const mf_kernel_rmsnorm_grad *a, cudaStream_t stream, mf_err *e) {
    int device, sms, resident, lanes = mf_pow2_up(a->cols / N);
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    MF_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                    &resident, norm_backward_narrow<T, N, ADD>, NARROW_THREADS, 0),
                e);
    int64_t work = mf_ceil_div(a->rows * a->groups, NARROW_THREADS / lanes);
    int64_t most = (int64_t)sms * (resident < 1 ? 1 : resident);
    most = most < partial_rows(a->cols) ? most : partial_rows(a->cols);
    int blocks = (int)(work < most ? work : most);
    float *partial = a->dweight ? (float *)a->workspace : nullptr;
    norm_backward_narrow<T, N, ADD>
        <<<(unsigned)blocks, NARROW_THREADS, 0, stream>>>(*a, lanes, partial);
    MF_KERNEL_LAUNCHED(e);
    return partial ? sum_weights(a, blocks, stream, e) : MF_OK;
}

template <typename T, int N>
static mf_status run_forward(const mf_kernel_rmsnorm *a, cudaStream_t stream, mf_err *e) {
    unit_plan p;
    bool fast = N > 1 && choose_units(a->cols, N, &p);
    if constexpr (N > 1) {
        if (fast && p.each == 2) {
            launch_forward<T, N, 2>(a, &p, stream);
        } else if (fast) {
            launch_forward<T, N, 4>(a, &p, stream);
        }
    }
    if (!fast) {
        norm_forward_any<T><<<(unsigned)(a->rows * a->groups), 256, 0, stream>>>(*a);
    }
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

template <typename T, int N>
static mf_status run_backward(const mf_kernel_rmsnorm_grad *a, cudaStream_t stream, mf_err *e) {
    norm_plan p;
    if constexpr (N > 1) {
        if (a->cols <= 32 * N && a->rows * a->groups <= INT32_MAX) {
            return a->dx_add ? launch_narrow<T, N, true>(a, stream, e)
                             : launch_narrow<T, N, false>(a, stream, e);
        }
        if (choose_plan(a->groups, a->cols, N, a->dx_add ? 3 : 2, &p)) {
            return a->dx_add ? launch_backward<T, N, true>(a, &p, stream, e)
                             : launch_backward<T, N, false>(a, &p, stream, e);
        }
    }
    if (a->dweight) {
        int64_t units = a->rows * a->groups, most = partial_rows(a->cols);
        dim3 grid((unsigned)(units < most ? units : most), (unsigned)mf_ceil_div(a->cols, 256));
        norm_weight_any<T><<<grid, 256, 0, stream>>>(*a, (float *)a->workspace);
        MF_KERNEL_LAUNCHED(e);
        mf_status status = sum_weights(a, (int)grid.x, stream, e);
        if (status != MF_OK) {
            return status;
        }
    }
    norm_backward_any<T><<<(unsigned)(a->rows * a->groups), 256, 0, stream>>>(*a);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_rmsnorm_forward_cuda(const mf_kernel_rmsnorm *a, void *stream,
                                                    mf_err *e) {
    if (a->rows == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->x, a->dtype, a->cols, a->x_stride) &&
                mf_vectors(a->y, a->dtype, a->cols, a->y_stride) && mf_aligned(a->weight) &&
                mf_aligned(a->add) && mf_aligned(a->sum);
    return MF_KERNEL_PICK(run_forward, a->dtype, fast, a, (cudaStream_t)stream, e);
}

extern "C" mf_status mf_kernel_rmsnorm_backward_cuda(const mf_kernel_rmsnorm_grad *a, void *stream,
                                                     mf_err *e) {
    if (a->rows == 0) {
        return MF_OK;
    }
    bool fast = mf_vectors(a->x, a->dtype, a->cols, a->x_stride) &&
                mf_vectors(a->dy, a->dtype, a->cols, a->y_stride) && mf_aligned(a->dx) &&
                mf_aligned(a->dx_add) && mf_aligned(a->weight);
    return MF_KERNEL_PICK(run_backward, a->dtype, fast, a, (cudaStream_t)stream, e);
}
