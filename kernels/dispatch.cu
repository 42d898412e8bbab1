/* dispatch.cu - CUDA side of dispatch and combine: one kernel each, on NCCL's device API.
 *
 * Dispatch: a warp takes a token; the copy engine brings its row into shared memory, AHEAD pieces
 * in advance, and lane p sends it to rank p if that needs it. Combine: a warp takes a piece of a
 * token: it sums the rows of its own experts for every other rank and stores the sums there, then,
 * behind a barrier, adds up what came back. Block b of every rank works on the same tokens or
 * pieces, so that a barrier between the blocks of one number is enough: before the first store (the
 * peers have read what lay there) and after the last.
 */
#include "kernels/cuda_bulk.cuh"
#include "kernels/cuda_common.cuh"
#include "kernels/dispatch.h"

#include <nccl_device.h>

#include <stdlib.h>

#define DISPATCH_WARPS 2
#define DISPATCH_THREADS (DISPATCH_WARPS * 32)
#define STAGES 6 /* pieces of a warp in shared memory, */
#define AHEAD 3  /* of which so many are on their way in */
#define PIECE_MOST_B (16 << 10)

#define COMBINE_WARPS 16
#define COMBINE_THREADS (COMBINE_WARPS * 32)
#define VECTOR 8 /* bf16 in 16 bytes */
#define FLIGHT 4 /* rows of a sum in flight */
#define ACROSS 2 /* vectors of a lane in a piece */
#define PIECE_COLS (32 * VECTOR * ACROSS)
#define OUTBOX 4      /* pieces of a warp on their way out */
#define CHUNKS 4      /* of the work, when there is enough: */
#define CHUNK_TURNS 3 /* pieces of a warp in a chunk, at least */

struct mf_dispatch_group {
    mf_dispatch_shape shape;
    mf_dispatch_view view;
    ncclComm_t comm;
    ncclWindow_t window;
    ncclDevComm device;
    void *base;
    int rank, blocks;
    bool has_window, has_device;
};

#define NCCL_TRY(call)                                                                             \
    do {                                                                                           \
        ncclResult_t result_ = (call);                                                             \
        if (result_ != ncclSuccess) {                                                              \
            return mf_err_set(e, MF_LIBRARY, "NCCL: %s: %s", #call, ncclGetErrorString(result_));  \
        }                                                                                          \
    } while (0)

/* --- device ----------------------------------------------------------------------------------- */

/* What both kernels know of the group: offsets into every rank's window. */
struct Room {
    ncclWindow_t window;
    int ranks, rank;
    int64_t tokens, cols, top_k, each; /* each: experts of a rank */
    size_t rows, partial, index, prob, prob_grad;
};

template <typename T> __device__ static T *at_peer(const Room &r, size_t offset, int peer) {
    return (T *)ncclGetLsaPointer(r.window, offset, peer);
}

/* The ranks that own an expert of the token, as bits; lane j holds choice j (or -1). */
__device__ static unsigned owners(const Room &r, int choice) {
    const unsigned bit = choice >= 0 ? 1u << (choice / (int)r.each) : 0u;
    return __reduce_or_sync(0xffffffffu, bit);
}

__device__ static int choice_of(const Room &r, const int32_t *index, int64_t t) {
    const int lane = (int)threadIdx.x % 32;
    return lane < r.top_k ? index[t * r.top_k + lane] : -1;
}

typedef mf_raw<mf_bf16, VECTOR> Vector;

/* Barrier of this block with those of the same number on all ranks. */
__device__ static void meet(ncclLsaBarrierSession<ncclCoopCta> &barrier) {
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

/* Tells every rank what the token's choices are to it. A warp; lane j holds choice j. */
__device__ static void send_choices(const Room &r, const mf_kernel_dispatch &d, int64_t t,
                                    int choice) {
    const int lane = (int)threadIdx.x % 32, owner = choice >= 0 ? choice / (int)r.each : -1;
    const int64_t slot = (r.rank * r.tokens + t) * r.top_k + lane;
    if (lane >= r.top_k) {
        return;
    }
    const float prob = d.prob ? d.prob[t * r.top_k + lane] : 0.0f;
    for (int p = 0; p < r.ranks; p++) {
        at_peer<int32_t>(r, r.index, p)[slot] = owner == p ? choice - p * (int)r.each : -1;
        if (d.prob) {
            at_peer<float>(r, r.prob, p)[slot] = prob;
        }
    }
}

/* The pieces that a warp sends, one after the other: `pieces` to a token. */
struct Pieces {
    const char *x;
    char *share; /* [STAGES, piece_B] of this warp */
    uint64_t *bar;
    int64_t first, step, count; /* token of the first, between tokens; pieces in all */
    uint32_t row_B, piece_B;
    int pieces;
    __device__ int64_t token(int64_t turn) const {
        return first + turn / pieces * step;
    }
    __device__ uint32_t offset_B(int64_t turn) const {
        return (uint32_t)(turn % pieces) * piece_B;
    }
    __device__ uint32_t size_B(int64_t turn) const {
        const uint32_t left_B = row_B - offset_B(turn);
        return left_B < piece_B ? left_B : piece_B;
    }
    __device__ char *stage(int64_t turn) const {
        return share + turn % STAGES * piece_B;
    }
    __device__ void fetch(int64_t turn) const { /* one lane */
        uint64_t *full = &bar[turn % STAGES];
        mf_bulk_expect(full, size_B(turn));
        mf_bulk_load(stage(turn), x + token(turn) * row_B + offset_B(turn), size_B(turn), full);
    }
};

__global__ void __launch_bounds__(DISPATCH_THREADS, 1)
    dispatch_kernel(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Room r,
                    mf_kernel_dispatch d, int pieces, uint32_t piece_B) {
    extern __shared__ __align__(128) char share[]; /* [DISPATCH_WARPS, STAGES, piece_B] */
    __shared__ uint64_t bars[DISPATCH_WARPS][STAGES];
    ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    Pieces q = {(const char *)d.x,
                share + (size_t)warp * STAGES * piece_B,
                bars[warp],
                (int64_t)warp * gridDim.x + blockIdx.x,
                (int64_t)gridDim.x * DISPATCH_WARPS,
                0,
                (uint32_t)(r.cols * sizeof(mf_bf16)),
                piece_B,
                pieces};
    q.count = q.first < r.tokens ? ((r.tokens - q.first - 1) / q.step + 1) * pieces : 0;
    if (lane == 0) {
        for (int i = 0; i < STAGES; i++) {
            mf_bulk_init(&q.bar[i]);
        }
        mf_bulk_init_done();
        for (int i = 0; i < AHEAD && i < q.count; i++) {
            q.fetch(i);
        }
    }
    int next = q.count > 0 ? choice_of(r, d.index, q.first) : -1;
    meet(barrier); /* also: the barriers of the stages are there for all */
    unsigned mask = 0;
    for (int64_t turn = 0; turn < q.count; turn++) {
        const int64_t t = q.token(turn);
        if (turn % pieces == 0) {
            const int choice = next;
            next = turn + pieces < q.count ? choice_of(r, d.index, t + q.step) : -1;
            mask = owners(r, choice);
            send_choices(r, d, t, choice);
        }
        mf_bulk_wait(&q.bar[turn % STAGES], (uint32_t)(turn / STAGES) & 1);
        if (lane < r.ranks && (mask >> lane & 1)) {
            char *to = at_peer<char>(r, r.rows, lane) + (r.rank * r.tokens + t) * q.row_B;
            mf_bulk_store(to + q.offset_B(turn), q.stage(turn), q.size_B(turn));
        }
        mf_bulk_commit();
        mf_bulk_wait_read<STAGES - AHEAD>(); /* what was sent STAGES - AHEAD turns ago has left */
        __syncwarp();
        if (lane == 0 && turn + AHEAD < q.count) {
            q.fetch(turn + AHEAD);
        }
    }
    mf_bulk_wait_done<0>();
    meet(barrier);
}

/* Sums of the rows of y that lanes' `row` name (-1: none), times the lanes' weights: the pieces of
 * columns from c on, ACROSS of them, 32 pieces apart. */
__device__ static void sum_rows(const Room &r, const mf_bf16 *y, int row, float weight, int64_t c,
                                float (&sum)[ACROSS][VECTOR]) {
    unsigned with = __ballot_sync(0xffffffffu, row >= 0);
#pragma unroll
    for (int i = 0; i < ACROSS * VECTOR; i++) {
        sum[i / VECTOR][i % VECTOR] = 0.0f;
    }
    while (with) {
        Vector piece[FLIGHT][ACROSS];
        float w[FLIGHT];
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            const int j = with ? __ffs((int)with) - 1 : 0;
            const int64_t from = __shfl_sync(0xffffffffu, row, j) * r.cols;
            w[f] = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
            for (int a = 0; a < ACROSS; a++) {
                const int64_t at = c + a * 32 * VECTOR;
                piece[f][a] = {};
                if (with && at < r.cols) {
                    piece[f][a] = mf_fetch_once<mf_bf16, VECTOR>(y + from + at);
                }
            }
            with &= with - 1;
        }
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
#pragma unroll
            for (int a = 0; a < ACROSS; a++) {
                float v[VECTOR];
                mf_widen(v, piece[f][a]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    sum[a][i] += w[f] * v[i];
                }
            }
        }
    }
}

/* What this rank's experts made of the piece from column c on of token t of rank `to`. A warp;
 * false: none of them has the token. */
__device__ static bool own_sum(const Room &r, const mf_kernel_combine &k, int to, int64_t t,
                               int64_t c, float (&sum)[ACROSS][VECTOR]) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t slot = (to * r.tokens + t) * r.top_k + lane;
    const int row = lane < r.top_k ? k.row_of_slot[slot] : -1;
    const float weight = lane < r.top_k && k.weight ? k.weight[slot] : 1.0f;
    const bool mine = lane < r.top_k && k.local[slot] >= 0; /* rows may have been dropped since */
    if (!__any_sync(0xffffffffu, mine)) {
        return false;
    }
    if (k.slot_grad && row >= 0 && c < PIECE_COLS) { /* with the first piece */
        at_peer<float>(r, r.prob_grad, to)[t * r.top_k + lane] = k.slot_grad[slot];
    }
    sum_rows(r, (const mf_bf16 *)k.y, row, weight, c, sum);
    return true;
}

/* A warp's buffers on the way from the sums to the copy engine. */
struct Outbox {
    char *share; /* [OUTBOX, PIECE_COLS] bf16 of this warp */
    int next;
};

/* Stores a piece of a sum to a peer: 1 KiB at once, which the links carry better than stores of
 * single warps. */
__device__ static void send_piece(Outbox &o, const float (&sum)[ACROSS][VECTOR], mf_bf16 *to,
                                  int64_t cols_left) {
    const int lane = (int)threadIdx.x % 32;
    mf_bf16 *buffer = (mf_bf16 *)o.share + o.next * PIECE_COLS;
    o.next = (o.next + 1) % OUTBOX;
    if (lane == 0) {
        mf_bulk_wait_read<OUTBOX - 1>();
    }
    __syncwarp();
#pragma unroll
    for (int a = 0; a < ACROSS; a++) {
        mf_store(buffer + (a * 32 + lane) * VECTOR, sum[a]);
    }
    mf_bulk_fence();
    __syncwarp();
    if (lane == 0) {
        const int64_t cols = cols_left < PIECE_COLS ? cols_left : PIECE_COLS;
        mf_bulk_store(to, buffer, (uint32_t)(cols * (int64_t)sizeof *to));
        mf_bulk_commit();
    }
}

/* Sums for all ranks of piece `first` (its first column) of token t, to where they belong. */
__device__ static void send_back(const Room &r, const mf_kernel_combine &k, Outbox &o, int64_t t,
                                 int64_t first) {
    const int64_t c = first + threadIdx.x % 32 * VECTOR;
    for (int i = 1; i <= r.ranks; i++) { /* each rank begins with another; itself last */
        const int to = (r.rank + i) % r.ranks;
        float sum[ACROSS][VECTOR];
        if (!own_sum(r, k, to, t, c, sum)) {
            continue;
        }
        mf_bf16 *out = at_peer<mf_bf16>(r, r.partial, to) + (r.rank * r.tokens + t) * r.cols;
        if (to != r.rank) {
            send_piece(o, sum, out + first, r.cols - first);
            continue;
        }
#pragma unroll
        for (int a = 0; a < ACROSS; a++) {
            if (c + a * 32 * VECTOR < r.cols) {
                mf_store(out + c + a * 32 * VECTOR, sum[a]);
            }
        }
    }
}

/* The sum of what the owners sent, of the piece whose columns from c on are this lane's. */
__device__ static void add_up(const Room &r, const mf_kernel_combine &k, int64_t t, int64_t c) {
    const unsigned mask = owners(r, choice_of(r, k.index, t));
    const mf_bf16 *partial = at_peer<mf_bf16>(r, r.partial, r.rank);
    float sum[ACROSS][VECTOR] = {};
    for (unsigned left = mask; left; left &= left - 1) {
        const mf_bf16 *theirs = partial + ((__ffs((int)left) - 1) * r.tokens + t) * r.cols + c;
#pragma unroll
        for (int a = 0; a < ACROSS; a++) {
            float v[VECTOR] = {};
            if (c + a * 32 * VECTOR < r.cols) {
                mf_widen(v, mf_fetch_once<mf_bf16, VECTOR>(theirs + a * 32 * VECTOR));
            }
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                sum[a][i] += v[i];
            }
        }
    }
#pragma unroll
    for (int a = 0; a < ACROSS; a++) {
        if (c + a * 32 * VECTOR < r.cols) {
            mf_store((mf_bf16 *)k.out + t * r.cols + c + a * 32 * VECTOR, sum[a]);
        }
    }
}

/* The work comes in `chunks`: one is added up while the next one's sums are on their way. */
__global__ void __launch_bounds__(COMBINE_THREADS, 1)
    combine_kernel(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Room r,
                   mf_kernel_combine k, unsigned pieces, unsigned chunks) {
    extern __shared__ __align__(128) char share[]; /* [COMBINE_WARPS, OUTBOX, PIECE_COLS] bf16 */
    ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const unsigned count = (unsigned)r.tokens * pieces, step = gridDim.x * COMBINE_WARPS;
    const unsigned turns = (count + step - 1) / step, each = (turns + chunks - 1) / chunks;
    const unsigned first = (unsigned)warp * gridDim.x + blockIdx.x;
    Outbox o = {share + (size_t)warp * OUTBOX * PIECE_COLS * sizeof(mf_bf16), 0};
    meet(barrier);
    for (unsigned chunk = 0; chunk <= chunks; chunk++) {
        for (unsigned i = chunk * each; i < (chunk + 1) * each && chunk < chunks; i++) {
            const unsigned unit = first + i * step;
            if (unit < count) {
                send_back(r, k, o, unit / pieces, unit % pieces * PIECE_COLS);
            }
        }
        if (lane == 0) {
            mf_bulk_wait_done<0>();
        }
        if (chunk > 0) {
            barrier.wait(ncclCoopCta(), cuda::memory_order_acq_rel);
        }
        if (chunk < chunks) {
            barrier.arrive(ncclCoopCta(), cuda::memory_order_acq_rel);
        }
        for (unsigned i = (chunk - 1) * each; chunk > 0 && i < chunk * each; i++) {
            const unsigned unit = first + i * step;
            if (unit < count) {
                add_up(r, k, unit / pieces, unit % pieces * PIECE_COLS + lane * VECTOR);
            }
        }
    }
}

/* --- host ------------------------------------------------------------------------------------- */

static mf_status open_group(mf_dispatch_group *g, mf_err *e) {
    int version = 0, ranks = 0;
    NCCL_TRY(ncclGetVersion(&version));
    if (version != NCCL_VERSION_CODE) {
        return mf_err_set(e, MF_LIBRARY, "dispatch: built for NCCL %d, %d runs", NCCL_VERSION_CODE,
                          version);
    }
    NCCL_TRY(ncclCommCount(g->comm, &ranks));
    NCCL_TRY(ncclCommUserRank(g->comm, &g->rank));
    if (ranks != g->shape.ranks) {
        return mf_err_set(e, MF_INPUT, "dispatch: a communicator of %d ranks for %d", ranks,
                          g->shape.ranks);
    }
    const size_t size_B = mf_dispatch_window_B(&g->shape);
    NCCL_TRY(ncclMemAlloc(&g->base, size_B));
    g->view = mf_dispatch_view_of(&g->shape, g->base);
    NCCL_TRY(ncclCommWindowRegister(g->comm, g->base, size_B, &g->window, NCCL_WIN_COLL_SYMMETRIC));
    g->has_window = true;
    ncclDevCommRequirements needs;
    memset(&needs, 0, sizeof needs);
    needs.lsaBarrierCount = g->blocks;
    NCCL_TRY(ncclDevCommCreate(g->comm, &needs, &g->device));
    g->has_device = true;
    if (g->device.lsaSize != ranks || g->window == NULL) {
        return mf_err_set(e, MF_INPUT, "dispatch: %d of %d ranks share an NVLink domain",
                          g->device.lsaSize, ranks);
    }
    return MF_OK;
}

extern "C" mf_status mf_dispatch_group_create(void *nccl, const mf_dispatch_shape *shape,
                                              int blocks, mf_dispatch_group **out, mf_err *e) {
    *out = NULL;
    mf_status status = mf_dispatch_check(shape, e);
    if (status != MF_OK) {
        return status;
    }
    int device = 0, sms = 0;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    mf_dispatch_group *g = (mf_dispatch_group *)calloc(1, sizeof *g);
    if (g == NULL) {
        return mf_err_set(e, MF_NOMEM, "dispatch: out of memory");
    }
    g->shape = *shape;
    g->comm = (ncclComm_t)nccl;
    g->blocks = blocks > 0 && blocks < sms ? blocks : sms; /* all of them run at once */
    status = open_group(g, e);
    if (status != MF_OK) {
        mf_dispatch_group_destroy(g);
        return status;
    }
    *out = g;
    return MF_OK;
}

extern "C" void mf_dispatch_group_destroy(mf_dispatch_group *g) {
    if (g == NULL) {
        return;
    }
    if (g->has_device) {
        (void)ncclDevCommDestroy(g->comm, &g->device);
    }
    if (g->has_window && g->window != NULL) {
        (void)ncclCommWindowDeregister(g->comm, g->window);
    }
    if (g->base != NULL) {
        (void)ncclMemFree(g->base);
    }
    free(g);
}

extern "C" const mf_dispatch_view *mf_dispatch_group_view(const mf_dispatch_group *g) {
    return &g->view;
}

static Room room_of(const mf_dispatch_group *g) {
    const mf_dispatch_shape *s = &g->shape;
    const char *base = (const char *)g->base;
    Room r = {g->window,
              s->ranks,
              g->rank,
              s->tokens,
              s->cols,
              s->top_k,
              s->experts / s->ranks,
              (size_t)((const char *)g->view.rows - base),
              (size_t)((const char *)g->view.partial - base),
              (size_t)((const char *)g->view.index - base),
              (size_t)((const char *)g->view.prob - base),
              (size_t)((const char *)g->view.prob_grad - base)};
    return r;
}

extern "C" mf_status mf_kernel_dispatch_run_cuda(mf_dispatch_group *g, const mf_kernel_dispatch *d,
                                                 void *stream, mf_err *e) {
    if (!mf_aligned(d->x)) {
        return mf_err_set(e, MF_INPUT, "dispatch: tokens must be aligned to 16 bytes");
    }
    const int64_t row_B = g->shape.cols * (int64_t)sizeof(mf_bf16);
    const int64_t pieces = mf_ceil_div(row_B, PIECE_MOST_B);
    const uint32_t piece_B = (uint32_t)(mf_ceil_div(row_B, pieces * 128) * 128);
    const size_t share_B = (size_t)DISPATCH_WARPS * STAGES * piece_B;
    MF_CUDA_TRY(cudaFuncSetAttribute(dispatch_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)share_B),
                e);
    dispatch_kernel<<<(unsigned)g->blocks, DISPATCH_THREADS, share_B, (cudaStream_t)stream>>>(
        g->device, room_of(g), *d, (int)pieces, piece_B);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_combine_run_cuda(mf_dispatch_group *g, const mf_kernel_combine *c,
                                                void *stream, mf_err *e) {
    if (!mf_aligned(c->y) || !mf_aligned(c->out)) {
        return mf_err_set(e, MF_INPUT, "combine: rows must be aligned to 16 bytes");
    }
    const unsigned pieces = (unsigned)mf_ceil_div(g->shape.cols, PIECE_COLS);
    const int64_t turns = mf_ceil_div(g->shape.tokens * pieces, (int64_t)g->blocks * COMBINE_WARPS);
    const int64_t chunks = turns / CHUNK_TURNS < CHUNKS ? turns / CHUNK_TURNS : CHUNKS;
    const size_t share_B = (size_t)COMBINE_WARPS * OUTBOX * PIECE_COLS * sizeof(mf_bf16);
    MF_CUDA_TRY(cudaFuncSetAttribute(combine_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)share_B),
                e);
    combine_kernel<<<(unsigned)g->blocks, COMBINE_THREADS, share_B, (cudaStream_t)stream>>>(
        g->device, room_of(g), *c, pieces, (unsigned)(chunks < 1 ? 1 : chunks));
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
