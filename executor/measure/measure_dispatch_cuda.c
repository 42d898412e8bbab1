/* measure_dispatch_cuda.c - tokens to the GPUs of their experts and back: the kernels of
 * kernels/dispatch/dispatch.h (impl=fused), and NCCL's all-to-all of the rows, one for each choice
 * of a token (impl=alltoall). Routing is drawn with the point's imbalance; only the exchange is
 * timed.
 */
#include "executor/measure/measure_gpus_cuda.h"
#include "executor/measure/measure_route.h"
#include "kernels/device/cuda_check.h"
#include "kernels/dispatch/dispatch.h"
#include "kernels/moe/permute.h"

#include <stdlib.h>
#include <string.h>

/* An exchange beside compute: rows as wide as the widest of the grid, so many that they have the
 * point's bytes, to 32 experts a rank. */
enum { BESIDE_COLS = 7168, BESIDE_TOP_K = 8, BESIDE_EACH = 32 };

static bool is_beside(const mf_point *p) {
    return strcmp(p->op, "beside") == 0;
}

static bool is_combine(const mf_point *p) {
    return strcmp(is_beside(p) ? mf_point_word(p, "comm") : p->op, "combine") == 0;
}

static int64_t skew_of(const mf_point *p) {
    return is_beside(p) ? 100 : mf_measure_dim(p, "skew");
}

static mf_dispatch_shape shape_of(const mf_point *p) {
    if (is_beside(p)) {
        const int ranks = (int)mf_measure_dim(p, "ranks");
        return (mf_dispatch_shape){.ranks = ranks,
                                   .tokens = mf_measure_dim(p, "bytes") /
                                             (2 * (int64_t)BESIDE_COLS * BESIDE_TOP_K),
                                   .cols = BESIDE_COLS,
                                   .top_k = BESIDE_TOP_K,
                                   .experts = (int64_t)BESIDE_EACH * ranks};
    }
    return (mf_dispatch_shape){.ranks = (int)mf_measure_dim(p, "ranks"),
                               .tokens = mf_measure_dim(p, "tokens"),
                               .cols = mf_measure_dim(p, "hidden"),
                               .top_k = mf_measure_dim(p, "topk"),
                               .experts = mf_measure_dim(p, "experts")};
}

static bool is_fused(const mf_point *p) {
    return is_beside(p) || strcmp(mf_point_word(p, "impl"), "fused") == 0;
}

mf_status mf_measure_dispatch_check(const mf_point *p, mf_err *e) {
    const mf_dispatch_shape s = shape_of(p);
    const int64_t skew = skew_of(p);
    mf_status status = mf_dispatch_check(&s, e);
    if (status != MF_OK) {
        return status;
    }
    if (!is_fused(p) && strcmp(mf_point_word(p, "impl"), "alltoall") != 0) {
        return mf_err_set(e, MF_INPUT, "no dispatcher \"%s\" here", mf_point_word(p, "impl"));
    }
    if (!is_beside(p) &&
        (strcmp(mf_point_word(p, "dtype"), "bf16") != 0 || mf_measure_dim(p, "nodes") != 1)) {
        return mf_err_set(e, MF_INPUT, "rows are exchanged in BF16 inside one host");
    }
    if (s.ranks < 2 || skew < 100 || skew > 100 * (int64_t)s.ranks ||
        s.top_k > s.experts / s.ranks) {
        return mf_err_set(e, MF_INPUT, "this routing cannot be drawn");
    }
    /* what the fullest rank takes in, a row for every choice */
    const double rows = (double)s.tokens * (double)s.top_k * (double)skew / 100;
    return rows * (double)s.cols * 2 <= (double)MF_MEASURE_BUFFER_B &&
                   (double)(s.ranks * s.tokens * s.top_k) * (double)s.cols * 2 <=
                       (double)MF_MEASURE_BUFFER_B
               ? MF_OK
               : mf_err_set(e, MF_INPUT, "the rows do not fit into the buffers");
}

/* --- the kernels of this project -------------------------------------------------------------- */

typedef struct exchange {
    mf_dispatch_shape shape;
    bool combine;
    mf_dispatch_group *group;
    mf_kernel_dispatch dispatch;
    mf_kernel_combine back;
    char *memory; /* everything below lies in it */
    int32_t *index, *local[5];
    float *ones;
    void *work, *sums;
} exchange;

static mf_status run_exchange(mf_measure_rank *r, void *user, int64_t i, mf_err *e) {
    const exchange *x = user;
    (void)i;
    return x->combine ? mf_kernel_combine_run_cuda(x->group, &x->back, r->comm, e)
                      : mf_kernel_dispatch_run_cuda(x->group, &x->dispatch, r->comm, e);
}

static void *part(char **at, size_t size_B) {
    void *p = *at;
    *at += (size_B + 255) / 256 * 256;
    return p;
}

/* Routes into host memory, and from there to where the kernels read it. */
static mf_status route(const mf_measure_rank *r, const exchange *x, mf_err *e) {
    const mf_point *p = r->gpus->job.point;
    const size_t n = (size_t)(x->shape.tokens * x->shape.top_k);
    const size_t slots = n * (size_t)x->shape.ranks;
    int32_t *index = malloc(n * sizeof *index);
    float *ones = malloc(slots * sizeof *ones);
    cudaError_t result = cudaErrorMemoryAllocation;
    if (index != NULL && ones != NULL) {
        mf_measure_route(index, x->shape.tokens, x->shape.top_k, x->shape.experts, x->shape.ranks,
                         skew_of(p), (uint64_t)r->index + 17);
        for (size_t i = 0; i < slots; i++) {
            ones[i] = 0.125f;
        }
        result = cudaMemcpy(x->index, index, n * sizeof *index, cudaMemcpyHostToDevice);
        if (result == cudaSuccess) {
            result = cudaMemcpy(x->ones, ones, slots * sizeof *ones, cudaMemcpyHostToDevice);
        }
    }
    free(index);
    free(ones);
    return result == cudaSuccess ? MF_OK : MF_CUDA_SET(e, result, "routing");
}

static mf_status place(mf_measure_rank *r, exchange *x, mf_err *e) {
    const mf_dispatch_shape *s = &x->shape;
    const int64_t each = s->experts / s->ranks, slots = s->ranks * s->tokens * s->top_k;
    const size_t map_B = ((size_t)slots + (size_t)each + 1) * sizeof(int32_t);
    const size_t work_B = mf_kernel_permute_workspace_B(slots, each);
    char *at;
    MF_CUDA_TRY(cudaMalloc((void **)&x->memory,
                           8 * (map_B + 256) + work_B + (size_t)(s->tokens * s->cols) * 2 + 4096),
                e);
    at = x->memory;
    x->index = part(&at, (size_t)(s->tokens * s->top_k) * sizeof *x->index);
    x->ones = part(&at, (size_t)slots * sizeof *x->ones);
    for (size_t i = 0; i < sizeof x->local / sizeof x->local[0]; i++) {
        x->local[i] = part(&at, map_B);
    }
    x->work = part(&at, work_B);
    x->sums = part(&at, (size_t)(s->tokens * s->cols) * 2);
    return route(r, x, e);
}

/* Dispatches once, so that the owners know their rows, and makes the map that combine reads. */
static mf_status prepare(mf_measure_rank *r, exchange *x, mf_err *e) {
    const mf_dispatch_shape *s = &x->shape;
    const int64_t slots = s->ranks * s->tokens * s->top_k;
    const mf_dispatch_view *v = mf_dispatch_group_view(x->group);
    x->dispatch = (mf_kernel_dispatch){(const uint16_t *)r->send, x->index, x->ones, false};
    x->back = (mf_kernel_combine){.y = (const uint16_t *)r->recv,
                                  .local = v->index,
                                  .row_of_slot = x->local[2],
                                  .weight = x->ones,
                                  .index = x->index,
                                  .out = x->sums};
    const mf_kernel_permute_map map = {.tokens = s->ranks * s->tokens,
                                       .top_k = s->top_k,
                                       .experts = s->experts / s->ranks,
                                       .align = 1,
                                       .rows_max = slots,
                                       .index = v->index,
                                       .counts = x->local[0],
                                       .offsets = x->local[1],
                                       .row_of_slot = x->local[2],
                                       .slot_of_row = x->local[3],
                                       .overflow = x->local[4],
                                       .workspace = x->work};
    mf_status status = mf_kernel_dispatch_run_cuda(x->group, &x->dispatch, r->comm, e);
    status = status == MF_OK ? mf_kernel_permute_map_build_cuda(&map, r->comm, e) : status;
    MF_CUDA_TRY(cudaStreamSynchronize(r->comm), e);
    return status;
}

static mf_status fused(mf_measure_rank *r, mf_err *e) {
    const mf_measure_job *j = &r->gpus->job;
    exchange x = {.shape = shape_of(j->point), .combine = is_combine(j->point)};
    mf_status status = place(r, &x, e);
    status =
        status == MF_OK
            ? mf_dispatch_group_create(
                  r->gpus->comm[j->ranks][r->index], &x.shape,
                  (mf_dispatch_blocks){j->beside ? MF_DISPATCH_BLOCKS_BESIDE : 0, 0}, &x.group, e)
            : status;
    status = status == MF_OK ? prepare(r, &x, e) : status;
    if (status == MF_OK) {
        status = j->beside ? mf_measure_rank_beside(r, run_exchange, &x, e)
                           : mf_measure_rank_time(r, run_exchange, &x, false, e);
    }
    (void)cudaStreamSynchronize(r->comm);
    mf_dispatch_group_destroy(x.group);
    (void)cudaFree(x.memory);
    return status;
}

/* --- NCCL's all-to-all ------------------------------------------------------------------------ */

typedef struct rows {
    size_t out_B[MF_MEASURE_RANKS], in_B[MF_MEASURE_RANKS]; /* to and from each rank */
} rows;

static mf_status run_rows(mf_measure_rank *r, void *user, int64_t i, mf_err *e) {
    const rows *x = user;
    const mf_measure_job *j = &r->gpus->job;
    ncclComm_t comm = r->gpus->comm[j->ranks][r->index];
    size_t sent_B = 0, taken_B = 0;
    (void)i;
    MF_NCCL_TRY(ncclGroupStart(), e);
    for (int p = 0; p < j->ranks; p++) {
        MF_NCCL_TRY(ncclSend(r->send + sent_B, x->out_B[p], ncclChar, p, comm, r->comm), e);
        MF_NCCL_TRY(ncclRecv(r->recv + taken_B, x->in_B[p], ncclChar, p, comm, r->comm), e);
        sent_B += x->out_B[p];
        taken_B += x->in_B[p];
    }
    MF_NCCL_TRY(ncclGroupEnd(), e);
    return MF_OK;
}

static mf_status all_to_all(mf_measure_rank *r, mf_err *e) {
    const mf_measure_job *j = &r->gpus->job;
    const mf_dispatch_shape s = shape_of(j->point);
    const int64_t skew = mf_measure_dim(j->point, "skew");
    const bool back = strcmp(j->point->op, "combine") == 0;
    rows x = {{0}, {0}};
    for (int p = 0; p < j->ranks; p++) {
        double n = (double)s.tokens * (double)s.top_k;
        size_t row_B = (size_t)s.cols * 2;
        size_t theirs = (size_t)(n * mf_measure_route_share(p, s.ranks, skew) + 0.5) * row_B;
        size_t mine = (size_t)(n * mf_measure_route_share(r->index, s.ranks, skew) + 0.5) * row_B;
        x.out_B[p] = back ? mine : theirs;
        x.in_B[p] = back ? theirs : mine;
    }
    return mf_measure_rank_time(r, run_rows, &x, true, e);
}

mf_status mf_measure_rank_dispatch(mf_measure_rank *r, mf_err *e) {
    return is_fused(r->gpus->job.point) ? fused(r, e) : all_to_all(r, e);
}
