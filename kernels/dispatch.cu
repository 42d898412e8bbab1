/* dispatch.cu - CUDA side of dispatch and combine: one kernel each, on NCCL's device API.
 *
 * A warp takes a token. Dispatch holds a piece of its row in registers and stores it to every rank
 * that needs it; combine sums the experts' rows of a piece and stores the sum to the token's rank.
 * Block b of every rank works on the same tokens, so that a barrier between the blocks of one
 * number is enough: before the first store (the peers have read what lay there) and after the last.
 */
#include "kernels/cuda_common.cuh"
#include "kernels/dispatch.h"

#include <nccl_device.h>

#include <stdlib.h>

#define DISPATCH_THREADS 512
#define DISPATCH_WARPS (DISPATCH_THREADS / 32)
#define FLIGHT 4 /* vectors of a lane, or rows of a sum, in flight */
#define ACROSS 2 /* vectors of a row of a sum */
#define VECTOR 8 /* bf16 in 16 bytes */

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

typedef mf_raw<mf_bf16, VECTOR> Piece;

/* Barrier of this block with those of the same number on all ranks. */
__device__ static void meet(ncclLsaBarrierSession<ncclCoopCta> &barrier) {
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

__global__ void __launch_bounds__(DISPATCH_THREADS, 1)
    dispatch_kernel(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Room r,
                    mf_kernel_dispatch d) {
    ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
    const int lane = (int)threadIdx.x % 32;
    meet(barrier);
    for (int64_t t = (int64_t)blockIdx.x * DISPATCH_WARPS + threadIdx.x / 32; t < r.tokens;
         t += (int64_t)gridDim.x * DISPATCH_WARPS) {
        const int choice = choice_of(r, d.index, t);
        const unsigned mask = owners(r, choice);
        const int64_t row = r.rank * r.tokens + t, slot = row * r.top_k + lane;
        const int owner = choice >= 0 ? choice / (int)r.each : -1;
        const float prob = d.prob && lane < r.top_k ? d.prob[t * r.top_k + lane] : 0.0f;
        for (int p = 0; p < r.ranks; p++) {
            if (lane < r.top_k) {
                at_peer<int32_t>(r, r.index, p)[slot] = owner == p ? choice - p * (int)r.each : -1;
            }
            if (d.prob && lane < r.top_k) {
                at_peer<float>(r, r.prob, p)[slot] = prob;
            }
        }
        const mf_bf16 *x = (const mf_bf16 *)d.x + t * r.cols;
        for (int64_t c0 = lane * VECTOR; c0 < r.cols; c0 += 32 * VECTOR * FLIGHT) {
            Piece piece[FLIGHT];
#pragma unroll
            for (int f = 0; f < FLIGHT; f++) {
                const int64_t c = c0 + f * 32 * VECTOR;
                if (c < r.cols) {
                    piece[f] = mf_fetch_once<mf_bf16, VECTOR>(x + c);
                }
            }
            for (int i = 1; i <= r.ranks; i++) { /* neighbours first, each rank another */
                const int p = (r.rank + i) % r.ranks;
                if (!(mask >> p & 1)) {
                    continue;
                }
                mf_bf16 *to = at_peer<mf_bf16>(r, r.rows, p) + row * r.cols;
#pragma unroll
                for (int f = 0; f < FLIGHT; f++) {
                    const int64_t c = c0 + f * 32 * VECTOR;
                    if (c < r.cols) {
                        *reinterpret_cast<Piece *>(to + c) = piece[f];
                    }
                }
            }
        }
    }
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
        Piece piece[FLIGHT][ACROSS];
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

/* Sends what this rank's experts made of token t of rank `to`. A warp. */
__device__ static void send_back(const Room &r, const mf_kernel_combine &k, int to, int64_t t) {
    const int lane = (int)threadIdx.x % 32;
    const int64_t slot = (to * r.tokens + t) * r.top_k + lane;
    const int row = lane < r.top_k ? k.row_of_slot[slot] : -1;
    if (!__any_sync(0xffffffffu, row >= 0)) {
        return;
    }
    const float weight = row >= 0 && k.weight ? k.weight[slot] : 1.0f;
    if (k.slot_grad && row >= 0) {
        at_peer<float>(r, r.prob_grad, to)[t * r.top_k + lane] = k.slot_grad[slot];
    }
    mf_bf16 *out = at_peer<mf_bf16>(r, r.partial, to) + (r.rank * r.tokens + t) * r.cols;
    for (int64_t c0 = 0; c0 < r.cols; c0 += 32 * VECTOR * ACROSS) {
        const int64_t c = c0 + lane * VECTOR;
        float sum[ACROSS][VECTOR];
        sum_rows(r, (const mf_bf16 *)k.y, row, weight, c, sum);
#pragma unroll
        for (int a = 0; a < ACROSS; a++) {
            if (c + a * 32 * VECTOR < r.cols) {
                mf_store(out + c + a * 32 * VECTOR, sum[a]);
            }
        }
    }
}

__global__ void __launch_bounds__(DISPATCH_THREADS, 1)
    combine_kernel(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Room r,
                   mf_kernel_combine k) {
    ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
    const int lane = (int)threadIdx.x % 32;
    const int64_t first = (int64_t)blockIdx.x * DISPATCH_WARPS + threadIdx.x / 32;
    const int64_t step = (int64_t)gridDim.x * DISPATCH_WARPS;
    meet(barrier);
    for (int64_t t = first; t < r.tokens; t += step) {
        for (int i = 1; i <= r.ranks; i++) {
            send_back(r, k, (r.rank + i) % r.ranks, t);
        }
    }
    meet(barrier);
    const mf_bf16 *partial = at_peer<mf_bf16>(r, r.partial, r.rank);
    for (int64_t t = first; t < r.tokens; t += step) {
        const unsigned mask = owners(r, choice_of(r, k.index, t));
        for (int64_t c = lane * VECTOR; c < r.cols; c += 32 * VECTOR) {
            float sum[VECTOR] = {};
            for (unsigned left = mask; left; left &= left - 1) {
                const int64_t row = (__ffs((int)left) - 1) * r.tokens + t;
                float v[VECTOR];
                mf_widen(v, mf_fetch_once<mf_bf16, VECTOR>(partial + row * r.cols + c));
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    sum[i] += v[i];
                }
            }
            mf_store((mf_bf16 *)k.out + t * r.cols + c, sum);
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
    dispatch_kernel<<<(unsigned)g->blocks, DISPATCH_THREADS, 0, (cudaStream_t)stream>>>(
        g->device, room_of(g), *d);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_combine_run_cuda(mf_dispatch_group *g, const mf_kernel_combine *c,
                                                void *stream, mf_err *e) {
    if (!mf_aligned(c->y) || !mf_aligned(c->out)) {
        return mf_err_set(e, MF_INPUT, "combine: rows must be aligned to 16 bytes");
    }
    combine_kernel<<<(unsigned)g->blocks, DISPATCH_THREADS, 0, (cudaStream_t)stream>>>(
        g->device, room_of(g), *c);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
