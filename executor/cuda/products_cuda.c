/* products_cuda.c - dense products through cuBLASLt, one plan for each shape that a program has,
 * and grouped products by our own kernel. While the device prepares, a plan is made and its
 * algorithms are timed on the operands' own memory; in a step a plan is looked up. */
#include "executor/cuda/device_cuda.h"
#include "executor/cuda/noise.h"

#include "kernels/gemm/gemm_cuda.h"

#include <stdlib.h>
#include <string.h>

/* Of cuBLASLt: what NVIDIA recommends for Hopper. Part of the memory plan's context. */
#define WORKSPACE_B ((size_t)32 << 20)

typedef struct plan {
    mf_gemm_cuda_shape shape;
    mf_gemm_cuda *gemm;
} plan;

struct mf_cuda_products {
    void *library, *workspace;
    plan *list;
    int count, allocated;
};

mf_status mf_cuda_products_open(mf_cuda_products **out, mf_err *e) {
    mf_cuda_products *p = calloc(1, sizeof *p);
    *out = p;
    if (p == NULL) {
        return mf_err_set(e, MF_NOMEM, "products: out of memory");
    }
    mf_status status = mf_gemm_cuda_library_open(&p->library, e);
    if (status == MF_OK && cudaMalloc(&p->workspace, WORKSPACE_B) != cudaSuccess) {
        status = mf_err_set(e, MF_NOMEM, "products: no %zu bytes of workspace", WORKSPACE_B);
    }
    return status;
}

void mf_cuda_products_close(mf_cuda_products *p) {
    if (p == NULL) {
        return;
    }
    for (int i = 0; i < p->count; i++) {
        mf_gemm_cuda_destroy(p->list[i].gemm);
    }
    if (p->workspace != NULL) {
        (void)cudaFree(p->workspace);
    }
    mf_gemm_cuda_library_close(p->library);
    free(p->list);
    free(p);
}

static mf_gemm_type type_of(mf_kernel_dtype d) {
    return d == MF_KERNEL_BF16 ? MF_GEMM_BF16 : MF_GEMM_F32;
}

/* The least alignment of the operands if it is below 16 bytes, else 0: weights that follow an odd
 * number of attention sinks in memory are unaligned. */
static int32_t alignment_of(const mf_device_gemm *a) {
    const void *operands[] = {a->g.a, a->g.b, a->g.c, a->add, a->g.bias};
    uintptr_t bits = 0;
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++) {
        bits |= (uintptr_t)operands[i];
    }
    bits &= 15;
    return (int32_t)(bits & (~bits + 1));
}

/* Every byte is written, so that shapes compare as bytes. */
static void shape_of(const mf_device_gemm *a, mf_gemm_cuda_shape *s) {
    const mf_kernel_gemm *g = &a->g;
    memset(s, 0, sizeof *s);
    s->form = g->form;
    s->a_type = type_of(g->a_dtype);
    s->b_type = type_of(g->b_dtype);
    s->c_type = type_of(g->c_dtype);
    s->m = g->m;
    s->n = g->n;
    s->k = g->k;
    s->lda = g->lda;
    s->ldb = g->ldb;
    s->ldc = g->ldc;
    s->accumulate = g->accumulate || a->add != NULL;
    s->bias = g->bias != NULL;
    s->align_B = alignment_of(a);
}

static plan *find(const mf_cuda_products *p, const mf_gemm_cuda_shape *s) {
    for (int i = 0; i < p->count; i++) {
        if (memcmp(&p->list[i].shape, s, sizeof *s) == 0) {
            return &p->list[i];
        }
    }
    return NULL;
}

static mf_gemm_cuda_data data_of(const mf_cuda_products *p, const mf_device_gemm *a) {
    return (mf_gemm_cuda_data){.a = a->g.a,
                               .b = a->g.b,
                               .bias = a->g.bias,
                               .c = a->g.c,
                               .add = a->add,
                               .workspace = p->workspace,
                               .alpha = a->g.alpha};
}

/* What a holds is an activation or its gradient, and nobody's yet; b is a weight but for weight
 * gradients. */
static mf_status fill_operands(const mf_queue *q, const mf_device_gemm *a, mf_err *e) {
    const mf_kernel_gemm *g = &a->g;
    bool tn = g->form == MF_GEMM_TN;
    int64_t rows = tn ? g->k : g->m;
    mf_status status = mf_cuda_noise((void *)(uintptr_t)g->a, g->a_dtype,
                                     (rows - 1) * g->lda + (tn ? g->m : g->k), q->stream, e);
    return status == MF_OK && tn ? mf_cuda_noise((void *)(uintptr_t)g->b, g->b_dtype,
                                                 (rows - 1) * g->ldb + g->n, q->stream, e)
                                 : status;
}

static mf_status make(const mf_queue *q, const mf_device_gemm *a, const mf_gemm_cuda_shape *s,
                      mf_err *e) {
    mf_cuda_products *p = mf_cuda_of(q->device)->products;
    if (p->count == p->allocated) {
        int allocated = 2 * p->allocated + 32;
        plan *list = realloc(p->list, (size_t)allocated * sizeof *list);
        if (list == NULL) {
            return mf_err_set(e, MF_NOMEM, "products: out of memory");
        }
        p->list = list;
        p->allocated = allocated;
    }
    plan *made = &p->list[p->count];
    made->shape = *s;
    mf_status status = mf_gemm_cuda_create(p->library, s, WORKSPACE_B, &made->gemm, e);
    if (status != MF_OK) {
        return status;
    }
    p->count++;
    if (mf_cuda_of(q->device)->fixed) { /* the library's first proposal, the same at each start */
        return MF_OK;
    }
    const mf_gemm_cuda_data data = data_of(p, a);
    status = fill_operands(q, a, e);
    return status == MF_OK ? mf_gemm_cuda_tune_for_steps(made->gemm, &data, q->stream, e) : status;
}

mf_status mf_cuda_gemm(mf_queue *q, const mf_device_gemm *a, mf_err *e) {
    mf_cuda_products *p = mf_cuda_of(q->device)->products;
    mf_gemm_cuda_shape s;
    shape_of(a, &s);
    plan *known = find(p, &s);
    if (known == NULL) {
        return mf_cuda_preparing(q)
                   ? make(q, a, &s, e)
                   : mf_err_set(e, MF_INTERNAL, "a product of %lld x %lld x %lld was not prepared",
                                (long long)s.m, (long long)s.n, (long long)s.k);
    }
    const mf_gemm_cuda_data data = data_of(p, a);
    return mf_cuda_preparing(q) ? MF_OK : mf_gemm_cuda_run(known->gemm, &data, q->stream, e);
}

mf_status mf_cuda_grouped(mf_queue *q, const mf_device_grouped *a, mf_err *e) {
    const mf_kernel_grouped_gemm g = {.kind = a->kind,
                                      .accumulate = a->accumulate,
                                      .experts = (int32_t)a->experts,
                                      .rows = a->rows,
                                      .n = a->n,
                                      .k = a->k,
                                      .offsets = a->offsets,
                                      .a = a->a,
                                      .b = a->b,
                                      .out = a->out,
                                      .bf16 = a->kind == MF_GROUPED_WGRAD &&
                                              a->out_dtype == MF_KERNEL_BF16,
                                      .act = a->act,
                                      .prob = a->prob,
                                      .turns = ((mf_cuda_queue *)q)->turns};
    if (a->dtype != MF_KERNEL_BF16) {
        return mf_err_set(e, MF_INTERNAL, "grouped products of floats on a GPU");
    }
    return mf_cuda_preparing(q) ? MF_OK : mf_kernel_grouped_gemm_run_cuda(&g, q->stream, e);
}
