/* dispatch.h - tokens to the GPUs of their experts and back, inside one NVLink domain.
 *
 * `ranks` GPUs hold the experts in blocks: rank r owns experts [r * experts / ranks, ...). Every
 * rank brings `tokens` tokens of `cols` bf16 with top_k choices of experts (negative: none).
 *
 * Dispatch sends each token once to every rank that owns one of its experts, however many it owns.
 * A rank finds token t of rank s in its row s * tokens + t; rows that nobody sent stay as they
 * were. Beside the rows lie the choices as this rank sees them: index [ranks * tokens, top_k], the
 * number of the expert among its own or -1, and the probabilities. That is what permute.h's map
 * takes: counts, offsets and expert order are made from it on the GPU, and nothing comes to the
 * host.
 *
 * Combine brings the experts' results back: the owner adds up its experts' rows of a token, times
 * `weight` if given, rounds the sum to bf16 and sends one row; to its own such sum the token's rank
 * adds those of the other owners in the order of ranks. Gradients of probabilities, one number a
 * choice, ride along. Each is the other's gradient: of dispatch, combine without weight; of
 * combine, dispatch of dy (then permute.h's weighted permutation and weight gradient on the owner).
 *
 * Where the experts' rows of a token were added up before, y has a row for each token that came
 * (`by_token`), and combine sends that.
 *
 * A window's rows and the partial sums of combine may lie in the same memory (`shared`) where a
 * rank has read what a dispatch brought before it enqueues the next combine.
 *
 * On a GPU rows go through the copy engine into the peers' memory (NCCL symmetric windows); what
 * may be sent lies inside the group's window, mf_dispatch_view says where. Ranks call create, the
 * two kernels and destroy in the same order, each with its own GPU current; the kernels enqueue,
 * never synchronise, and wait for each other on the GPU, so all ranks' streams must be able to run.
 */
#ifndef MF_KERNELS_DISPATCH_H
#define MF_KERNELS_DISPATCH_H

#include "kernels/kernel.h"

#define MF_DISPATCH_RANKS_MAX 32
#define MF_DISPATCH_TOP_K_MAX 32

typedef struct mf_dispatch_shape {
    int ranks;
    int64_t tokens, cols, top_k, experts; /* experts: a multiple of ranks; cols: of 8 */
    bool shared;                          /* view.partial lies where view.rows does */
} mf_dispatch_shape;

/* What peers write on one rank. */
typedef struct mf_dispatch_view {
    uint16_t *rows;    /* bf16 [ranks * tokens, cols]: dispatched tokens */
    int32_t *index;    /* [ranks * tokens, top_k] */
    float *prob;       /* [ranks * tokens, top_k] */
    uint16_t *partial; /* bf16 [ranks * tokens, cols]: scratch of combine */
    float *prob_grad;  /* [tokens, top_k] of this rank's own tokens */
} mf_dispatch_view;

typedef struct mf_kernel_dispatch {
    const uint16_t *x;    /* bf16 [tokens, cols] */
    const int32_t *index; /* [tokens, top_k] */
    const float *prob;    /* [tokens, top_k], or NULL: the view's are not written */
    bool beside;          /* compute runs at the same time: fewer blocks; on all ranks alike */
} mf_kernel_dispatch;

typedef struct mf_kernel_combine {
    const uint16_t *y;          /* bf16 [rows, cols], in expert order */
    const int32_t *local;       /* [ranks * tokens, top_k]: view.index, or a copy kept since */
    const int32_t *row_of_slot; /* [ranks * tokens * top_k]: row of y; -1: not here, or dropped.
                                   by_token: [ranks * tokens] */
    const float *weight;        /* [ranks * tokens * top_k], or NULL: 1, as by_token */
    const float *slot_grad;     /* ditto, or NULL: sent into the view's prob_grad, of all choices
                                   here of a token that has a row */
    const int32_t *index;       /* [tokens, top_k]: this rank's own choices, as dispatched */
    uint16_t *out;              /* bf16 [tokens, cols]; may hold sums of own rows meanwhile */
    bool by_token;
    bool beside; /* as of dispatch */
} mf_kernel_combine;

MF_KERNEL_C_BEGIN
/* MF_INPUT with the reason when the shape is outside the terms above. */
mf_status mf_dispatch_check(const mf_dispatch_shape *s, mf_err *e);

/* Bytes of the window that holds a view, and the view inside a window at `base`. */
size_t mf_dispatch_window_B(const mf_dispatch_shape *s);
mf_dispatch_view mf_dispatch_view_of(const mf_dispatch_shape *s, void *base);

/* Tokens and bytes that `rank` sends to other ranks: one row of cols a token and rank. */
int64_t mf_dispatch_copies(const mf_dispatch_shape *s, const int32_t *index, int rank);

/* References: all ranks in one address space; arrays of `ranks` structs. */
mf_status mf_kernel_dispatch_run(const mf_dispatch_shape *s, const mf_kernel_dispatch *d,
                                 const mf_dispatch_view *v, mf_err *e);
mf_status mf_kernel_combine_run(const mf_dispatch_shape *s, const mf_kernel_combine *c,
                                const mf_dispatch_view *v, mf_err *e);

/* How the CUDA kernel of combine divides its work: plain numbers, chosen without a GPU. A unit is a
 * piece of a token; team t of all teams has units t, t + teams, ...;
 * kernels/dispatch/combine_device.cuh has the words. */
enum {
    MF_COMBINE_ADDERS_MOST = 14, /* warps of a team that add up, */
    MF_COMBINE_WARP_COLS = 512,  /* each so many columns of a row */
    MF_COMBINE_OTHERS = 2,       /* warps of a team that do not */
    MF_COMBINE_WARPS_MOST = 32,  /* of a block */
    MF_COMBINE_TEAMS_MOST = 8,   /* of a block */
    MF_COMBINE_OUTBOX = 2,       /* sums of a warp on their way out */
    MF_COMBINE_SLOTS_LEAST = 4,  /* of a ring; as many rows are put into it at once */
    MF_COMBINE_SLOTS_MOST = 16,
    MF_COMBINE_CHUNKS_MOST = 16, /* more flags cost more than they hide (measured on H200) */
    MF_COMBINE_SMEM_B = 1024     /* barriers, counters and descriptors of a team */
};

typedef struct mf_combine_plan {
    uint32_t pieces, piece_cols;       /* of a token; columns of all but the last, of 512 */
    uint32_t teams, adders;            /* of a block; of a team */
    uint32_t count;                    /* units */
    uint32_t step;                     /* from a team's unit to its next one: all teams; */
    uint32_t step_tokens, step_pieces; /* the same in tokens, and pieces over */
    uint32_t each, chunks;             /* units of a team in a chunk, and chunks */
    uint32_t lag;                      /* phases between sending a chunk and finishing it */
    uint32_t early;                    /* 1: own rows are added up while others' are sent */
    uint32_t slots;                    /* of a team's ring, a piece each */
    uint32_t team_B, share_B;          /* shared memory of a team; of a block, at most as given */
} mf_combine_plan;

/* blocks: of the kernel; share_most_B: shared memory of a block, at least 100,000. */
void mf_combine_plan_choose(const mf_dispatch_shape *s, int blocks, int share_most_B,
                            mf_combine_plan *out);

/* One line, truncated to size; returns text. */
char *mf_combine_plan_print(const mf_combine_plan *p, char *text, size_t size);

/* Blocks of a kernel that runs beside compute: a quarter of an H200. */
enum { MF_DISPATCH_BLOCKS_BESIDE = 32 };

typedef struct mf_dispatch_group mf_dispatch_group;

/* Thread blocks that the kernels take, one a multiprocessor: of one that runs alone (0: all
 * multiprocessors), and of one that compute runs beside (0: as many). */
typedef struct mf_dispatch_blocks {
    int alone, beside;
} mf_dispatch_blocks;

/* Collective. nccl: an ncclComm_t of shape->ranks ranks in one NVLink domain. The NCCL that runs
 * must be the one this was built for (its device structures change between patches). Errors:
 * MF_INPUT, MF_LIBRARY, MF_NOMEM. */
mf_status mf_dispatch_group_create(void *nccl, const mf_dispatch_shape *shape,
                                   mf_dispatch_blocks blocks, mf_dispatch_group **out, mf_err *e);
void mf_dispatch_group_destroy(mf_dispatch_group *g);
const mf_dispatch_view *mf_dispatch_group_view(const mf_dispatch_group *g);

mf_status mf_kernel_dispatch_run_cuda(mf_dispatch_group *g, const mf_kernel_dispatch *d,
                                      void *stream, mf_err *e);
mf_status mf_kernel_combine_run_cuda(mf_dispatch_group *g, const mf_kernel_combine *c, void *stream,
                                     mf_err *e);
MF_KERNEL_C_END
#endif
