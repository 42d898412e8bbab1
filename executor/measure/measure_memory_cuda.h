/* measure_memory_cuda.h - what the kinds of memory-bound kernels share while they are measured: the
 * arguments of a set of operands, and the arena that they are made in.
 *
 *     measure_memory_cuda.c          a point in, a time out
 *     measure_memory_rows_cuda.c     kernels over rows: norms, activations, slices, casts
 *     measure_memory_tokens_cuda.c   routing, embedding, loss, optimizer
 */
#ifndef MF_EXECUTOR_MEASURE_MEMORY_CUDA_H
#define MF_EXECUTOR_MEASURE_MEMORY_CUDA_H

#include "executor/measure/measure_cuda.h"
#include "kernels/attention/attention_merge.h"
#include "kernels/attention/rope.h"
#include "kernels/moe/gate.h"
#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "kernels/moe/swiglu.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/rows/bias.h"
#include "kernels/rows/cast.h"
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/embedding.h"
#include "kernels/rows/norm_split.h"
#include "kernels/rows/quantise.h"
#include "kernels/rows/rmsnorm.h"

/* Rows of a usual width. */
enum {
    MF_MEASURE_HIDDEN = 4096,
    MF_MEASURE_EXPERTS = 128,
    MF_MEASURE_TOP_K = 8,
    MF_MEASURE_HEAD = 128,
    MF_MEASURE_VOCAB = 32768,
    MF_MEASURE_POSITIONS = 8192
};

/* Arguments of one set, for one or two kernels in a row. */
typedef union mf_measure_args {
    mf_kernel_rmsnorm norm;
    mf_kernel_rmsnorm_grad norm_grad;
    mf_kernel_norm_split norm_sum;
    mf_kernel_attention_merge merge;
    mf_kernel_rope rope;
    mf_kernel_swiglu swiglu;
    mf_kernel_swiglu_grad swiglu_grad;
    mf_kernel_add add;
    mf_kernel_gate gate;
    mf_kernel_gate_grad gate_grad;
    struct {
        mf_kernel_router choose;
        mf_kernel_router_stats stats;
    } router;
    mf_kernel_router_grad router_grad;
    mf_kernel_router_drop drop;
    struct {
        mf_kernel_permute_map map;
        mf_kernel_permute rows;
    } permute;
    mf_kernel_unpermute unpermute;
    mf_kernel_copy_rows split;
    mf_kernel_quantise quantise;
    mf_kernel_bias_grad bias_grad;
    mf_kernel_ce_stats loss;
    mf_kernel_ce_grad loss_grad;
    mf_kernel_ce_whole loss_whole;
    mf_kernel_grad_norm grad_norm;
    mf_kernel_adamw adamw;
    mf_kernel_cast cast;
    mf_kernel_embedding embedding;
    mf_kernel_embedding_grad embedding_grad;
} mf_measure_args;

/* Operands of one set, as they are taken from the session's arena. */
typedef struct mf_measure_maker {
    mf_measure_session *s;
    int64_t rows;
    bool full; /* the arena was too small */
} mf_measure_maker;

/* Device memory with random data; NULL (and full) when there is no more. */
void *mf_measure_make(mf_measure_maker *m, size_t size_B, mf_measure_data data);
void *mf_measure_make_bf16(mf_measure_maker *m, int64_t n);
float *mf_measure_make_f32(mf_measure_maker *m, int64_t n);
void *mf_measure_make_raw(mf_measure_maker *m, size_t size_B); /* left as it is */
int32_t *mf_measure_make_ints(mf_measure_maker *m, int64_t n, int64_t below);
/* A copy of host memory, which may be freed when the stream is synchronised. */
void *mf_measure_make_copy(mf_measure_maker *m, const void *host, size_t size_B);

typedef struct mf_measure_kind {
    const char *name;
    double row_B; /* what lowering counts for a row */
    void (*make)(mf_measure_maker *m, mf_measure_args *a);
    mf_status (*run)(const mf_measure_args *a, void *stream, mf_err *e);
} mf_measure_kind;

/* By name; NULL when the file has none such. */
const mf_measure_kind *mf_measure_kind_of_rows(const char *name);
const mf_measure_kind *mf_measure_kind_of_tokens(const char *name);

#endif
