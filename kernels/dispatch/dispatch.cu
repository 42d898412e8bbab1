/* dispatch.cu - CUDA side of dispatch and combine on NCCL's device API: the group, both launches,
 * and the kernel of dispatch (that of combine: combine_device.cuh).
 *
 * Dispatch: a warp takes a token; the copy engine brings its row into shared memory, AHEAD pieces
 * in advance, and lane p sends it to rank p if that needs it. Block b of every rank works on the
 * same tokens, so that a barrier between the blocks of one number is enough: before the first store
 * (the peers have read what lay there) and after the last.
 */
#include "kernels/dispatch/combine_device.cuh"
#include "kernels/dispatch/dispatch_group.cuh"

#include <stdlib.h>

#define DISPATCH_WARPS_MOST 16
#define STAGES 6 /* pieces of a warp in shared memory, */
#define AHEAD 3  /* of which so many are on their way in */
#define PIECE_MOST_B (16 << 10)
#define PIECES_B (32 << 10) /* of all warps, one each: two warps for wide rows, more for narrow */

struct mf_dispatch_group {
    mf_dispatch_shape shape;
    mf_dispatch_view view;
    ncclComm_t comm;
    ncclWindow_t window;
    ncclDevComm device;
    void *base;
    int rank, share_most_B;
    mf_dispatch_blocks blocks; /* neither 0, `alone` the more */
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

/* Barrier of this block with those of the same number on all ranks. */
__device__ static void meet(ncclLsaBarrierSession<ncclCoopCta> &barrier, bool after_stores) {
    arrive_at_peers(barrier, ncclCoopCta(), after_stores);
    barrier.wait(ncclCoopCta(), cuda::memory_order_acquire);
}

/* Tells every rank what the token's choices are to it. A warp; lane j holds choice j. */
__device__ static void send_choices(const Group &r, const mf_kernel_dispatch &d, int64_t t,
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
    char *smem; /* [STAGES, piece_B] of this warp */
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
        return smem + turn % STAGES * piece_B;
    }
    __device__ void fetch(int64_t turn) const { /* one lane */
        uint64_t *full = &bar[turn % STAGES];
        mf_bulk_expect(full, size_B(turn));
        mf_bulk_load(stage(turn), x + token(turn) * row_B + offset_B(turn), size_B(turn), full);
    }
};

__global__ void __launch_bounds__(DISPATCH_WARPS_MOST * 32, 1)
    dispatch_kernel(const __grid_constant__ ncclDevComm comm, const __grid_constant__ Group r,
                    mf_kernel_dispatch d, int pieces, uint32_t piece_B) {
    extern __shared__ __align__(128) char smem[]; /* [warps, STAGES, piece_B] */
    __shared__ uint64_t bars[DISPATCH_WARPS_MOST][STAGES];
    ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    Pieces q = {(const char *)d.x,
                smem + (size_t)warp * STAGES * piece_B,
                bars[warp],
                (int64_t)warp * gridDim.x + blockIdx.x,
                (int64_t)gridDim.x * (blockDim.x / 32),
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
    meet(barrier, false); /* also: the barriers of the stages are there for all */
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
    meet(barrier, true);
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
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER /* which NCCL asks for from 2.29 on */
    ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements needs;
    memset(&needs, 0, sizeof needs);
#endif
    needs.lsaBarrierCount =
        (1 + MF_COMBINE_TEAMS_MOST) * g->blocks.alone; /* of dispatch, of combine */
    NCCL_TRY(ncclDevCommCreate(g->comm, &needs, &g->device));
    g->has_device = true;
    if (g->device.lsaSize != ranks || g->window == NULL) {
        return mf_err_set(e, MF_INPUT, "dispatch: %d of %d ranks share an NVLink domain",
                          g->device.lsaSize, ranks);
    }
    return MF_OK;
}

extern "C" mf_status mf_dispatch_group_create(void *nccl, const mf_dispatch_shape *shape,
                                              mf_dispatch_blocks blocks, mf_dispatch_group **out,
                                              mf_err *e) {
    *out = NULL;
    mf_status status = mf_dispatch_check(shape, e);
    if (status != MF_OK) {
        return status;
    }
    int device = 0, sms = 0;
    MF_CUDA_TRY(cudaGetDevice(&device), e);
    MF_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), e);
    int share_most_B = 0;
    MF_CUDA_TRY(
        cudaDeviceGetAttribute(&share_most_B, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), e);
    mf_dispatch_group *g = (mf_dispatch_group *)calloc(1, sizeof *g);
    if (g == NULL) {
        return mf_err_set(e, MF_NOMEM, "dispatch: out of memory");
    }
    g->shape = *shape;
    g->comm = (ncclComm_t)nccl;
    g->share_most_B = share_most_B;
    /* All blocks of a kernel run at once. */
    g->blocks.alone = blocks.alone > 0 && blocks.alone < sms ? blocks.alone : sms;
    g->blocks.beside =
        blocks.beside > 0 && blocks.beside < g->blocks.alone ? blocks.beside : g->blocks.alone;
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

static Group group_of(const mf_dispatch_group *g) {
    const mf_dispatch_shape *s = &g->shape;
    const char *base = (const char *)g->base;
    Group r = {g->window,
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
               (size_t)((const char *)g->view.prob_grad - base),
               (unsigned)g->blocks.alone};
    return r;
}

static int blocks_of(const mf_dispatch_group *g, bool beside) {
    return beside ? g->blocks.beside : g->blocks.alone;
}

extern "C" mf_status mf_kernel_dispatch_run_cuda(mf_dispatch_group *g, const mf_kernel_dispatch *d,
                                                 void *stream, mf_err *e) {
    if (!mf_aligned(d->x)) {
        return mf_err_set(e, MF_INPUT, "dispatch: tokens must be aligned to 16 bytes");
    }
    const int64_t row_B = g->shape.cols * (int64_t)sizeof(mf_bf16);
    const int64_t pieces = mf_ceil_div(row_B, PIECE_MOST_B);
    const uint32_t piece_B = (uint32_t)(mf_ceil_div(row_B, pieces * 128) * 128);
    const unsigned most = PIECES_B / piece_B;
    const unsigned warps = most < DISPATCH_WARPS_MOST ? most : DISPATCH_WARPS_MOST;
    const size_t share_B = (size_t)warps * STAGES * piece_B;
    MF_CUDA_TRY(cudaFuncSetAttribute(dispatch_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)share_B),
                e);
    dispatch_kernel<<<(unsigned)blocks_of(g, d->beside), warps * 32, share_B,
                      (cudaStream_t)stream>>>(g->device, group_of(g), *d, (int)pieces, piece_B);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}

extern "C" mf_status mf_kernel_combine_run_cuda(mf_dispatch_group *g, const mf_kernel_combine *c,
                                                void *stream, mf_err *e) {
    if (!mf_aligned(c->y) || !mf_aligned(c->out)) {
        return mf_err_set(e, MF_INPUT, "combine: rows must be aligned to 16 bytes");
    }
    const int blocks = blocks_of(g, c->beside);
    mf_combine_plan p;
    mf_combine_plan_choose(&g->shape, blocks, g->share_most_B, &p);
    MF_CUDA_TRY(cudaFuncSetAttribute(combine_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)p.share_B),
                e);
    const unsigned threads = p.teams * (p.adders + MF_COMBINE_OTHERS) * 32;
    combine_kernel<<<(unsigned)blocks, threads, p.share_B, (cudaStream_t)stream>>>(
        g->device, group_of(g), *c, p);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
