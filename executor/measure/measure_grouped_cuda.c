/* measure_grouped_cuda.c - the expert products, rows balanced over the experts. */
#include "executor/measure/measure_cuda.h"
#include "kernels/device/cuda_check.h"
#include "kernels/grouped_gemm/grouped_gemm.h"

#include <stdlib.h>
#include <string.h>

typedef struct grouped {
    int sets;
    mf_kernel_grouped_gemm set[MF_MEASURE_SETS];
} grouped;

static mf_status launch(void *op, int64_t i, cudaStream_t stream, mf_err *e) {
    grouped *g = op;
    return mf_kernel_grouped_gemm_run_cuda(&g->set[i % g->sets], stream, e);
}

static mf_status describe(const mf_point *p, mf_kernel_grouped_gemm *g, mf_err *e) {
    const bool first = strcmp(p->op, "first_wgrad") == 0;
    const char *pass = first ? "wgrad" : mf_point_word(p, "pass");
    const bool wgrad = strcmp(pass, "wgrad") == 0;
    if (strcmp(mf_point_word(p, "dtype"), "bf16") != 0 ||
        (!first && (mf_measure_dim(p, "acc") != 0) != wgrad)) {
        return mf_err_set(e, MF_INPUT, "no kernel for this kind of grouped product");
    }
    *g = (mf_kernel_grouped_gemm){.kind = wgrad                      ? MF_GROUPED_WGRAD
                                          : strcmp(pass, "fwd") == 0 ? MF_GROUPED_FORWARD
                                                                     : MF_GROUPED_DGRAD,
                                  .accumulate = wgrad && !first,
                                  .experts = (int32_t)mf_measure_dim(p, "experts"),
                                  .n = mf_measure_dim(p, "n"),
                                  .k = mf_measure_dim(p, "k")};
    g->rows = mf_measure_dim(p, "m") * g->experts;
    return MF_OK;
}

/* Where each expert's rows begin. */
static const int32_t *take_offsets(mf_measure_session *s, const mf_kernel_grouped_gemm *g) {
    size_t size_B = (size_t)(g->experts + 1) * sizeof(int32_t);
    int32_t *host = malloc(size_B), *p = mf_measure_take(s, size_B, MF_DATA_NONE);
    if (host == NULL || p == NULL) {
        free(host);
        return NULL;
    }
    for (int32_t i = 0; i <= g->experts; i++) {
        host[i] = (int32_t)(g->rows / g->experts) * i;
    }
    cudaError_t result = cudaMemcpyAsync(p, host, size_B, cudaMemcpyHostToDevice, s->stream);
    (void)cudaStreamSynchronize(s->stream); /* the host's copy goes */
    free(host);
    return result == cudaSuccess ? p : NULL;
}

/* The word by which the blocks of a product take its tiles, as in a step. */
static uint32_t *take_turns(mf_measure_session *s) {
    uint32_t *p = mf_measure_take(s, sizeof *p, MF_DATA_NONE);
    return p != NULL && cudaMemsetAsync(p, 0, sizeof *p, s->stream) == cudaSuccess ? p : NULL;
}

mf_status mf_measure_grouped(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                             mf_err *e) {
    grouped g = {.sets = 0};
    mf_kernel_grouped_gemm shape;
    mf_status status = describe(p, &shape, e);
    if (status != MF_OK) {
        return status;
    }
    bool wgrad = shape.kind == MF_GROUPED_WGRAD;
    size_t x_B = (size_t)(shape.rows * shape.k) * 2, y_B = (size_t)(shape.rows * shape.n) * 2;
    size_t w_B = (size_t)(shape.experts * shape.n * shape.k) * (wgrad ? 4 : 2);
    shape.offsets = take_offsets(s, &shape);
    shape.turns = take_turns(s);
    g.sets = mf_measure_sets(s, x_B + y_B + w_B);
    for (int i = 0; i < g.sets; i++) {
        void *x = mf_measure_take(s, x_B, MF_DATA_BF16), *y = mf_measure_take(s, y_B, MF_DATA_BF16);
        void *w = mf_measure_take(s, w_B, wgrad ? MF_DATA_F32 : MF_DATA_BF16);
        if (x == NULL || y == NULL || w == NULL || shape.offsets == NULL || shape.turns == NULL) {
            return mf_err_set(e, MF_INPUT, "the product does not fit into the GPU's memory");
        }
        g.set[i] = shape;
        g.set[i].a = shape.kind == MF_GROUPED_FORWARD ? x : y;
        g.set[i].b = wgrad ? x : w;
        g.set[i].out = wgrad ? w : shape.kind == MF_GROUPED_FORWARD ? y : x;
    }
    return mf_measure_run(s, launch, &g, out, e);
}
