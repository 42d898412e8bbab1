/* measure_gemm_cuda.c - dense products through cuBLASLt, as training runs them. */
#include "executor/measure/measure_cuda.h"
#include "kernels/gemm/gemm_cuda.h"

#include <string.h>

/* A weight gradient that writes: a row of its result for each output, as weights lie. */
static mf_status describe_first(const mf_point *p, mf_gemm_cuda_shape *s, mf_err *e) {
    *s = (mf_gemm_cuda_shape){.form = MF_GEMM_TN,
                              .a_type = MF_GEMM_BF16,
                              .b_type = MF_GEMM_BF16,
                              .c_type = MF_GEMM_F32,
                              .m = mf_measure_dim(p, "n"),
                              .n = mf_measure_dim(p, "k"),
                              .k = mf_measure_dim(p, "m")};
    s->lda = s->m;
    s->ldb = s->ldc = s->n;
    return strcmp(mf_point_word(p, "dtype"), "bf16") == 0
               ? MF_OK
               : mf_err_set(e, MF_INPUT, "no kernel writes FP32 weight gradients of %s operands",
                            mf_point_word(p, "dtype"));
}

/* dtype of the key -> operands and scales. FP8 operands of a gradient are the transposed copies
 * made when they were quantised, so that every form runs as NT; a weight gradient has 1x128 blocks
 * on both sides, the other passes 128x128 blocks of the weight. */
static mf_status describe(const mf_point *p, mf_gemm_cuda_shape *s, mf_err *e) {
    if (strcmp(p->op, "first_wgrad") == 0) {
        return describe_first(p, s, e);
    }
    const char *dtype = mf_point_word(p, "dtype"), *layout = mf_point_word(p, "layout");
    bool fp8 = strncmp(dtype, "fp8", 3) == 0, wgrad = strcmp(layout, "tn") == 0;
    *s = (mf_gemm_cuda_shape){.form = fp8                         ? MF_GEMM_NT
                                      : strcmp(layout, "nt") == 0 ? MF_GEMM_NT
                                      : wgrad                     ? MF_GEMM_TN
                                                                  : MF_GEMM_NN,
                              .m = mf_measure_dim(p, "m"),
                              .n = mf_measure_dim(p, "n"),
                              .k = mf_measure_dim(p, "k"),
                              .accumulate = mf_measure_dim(p, "acc") != 0};
    if (strcmp(dtype, "bf16") == 0) {
        s->a_type = s->b_type = s->c_type = MF_GEMM_BF16;
    } else if (strcmp(dtype, "fp32") == 0) {
        s->a_type = s->b_type = s->c_type = MF_GEMM_F32;
    } else if (fp8) {
        bool block = strcmp(dtype, "fp8-block") == 0;
        s->a_type = s->b_type = MF_GEMM_E4M3;
        s->c_type = MF_GEMM_BF16;
        s->a_scale = block ? MF_GEMM_SCALE_1X128 : MF_GEMM_SCALE_TENSOR;
        s->b_scale = !block  ? MF_GEMM_SCALE_TENSOR
                     : wgrad ? MF_GEMM_SCALE_1X128
                             : MF_GEMM_SCALE_128X128;
    } else {
        return mf_err_set(e, MF_INPUT, "no kernel for %s products on this GPU", dtype);
    }
    if (s->accumulate) {
        s->c_type = MF_GEMM_F32;
    }
    s->lda = s->form == MF_GEMM_TN ? s->m : s->k;
    s->ldb = s->form == MF_GEMM_NT ? s->k : s->n;
    s->ldc = s->n;
    return MF_OK;
}

static size_t type_B(mf_gemm_type t) {
    return t == MF_GEMM_F32 ? 4 : t == MF_GEMM_BF16 ? 2 : 1;
}

static mf_measure_data type_data(mf_gemm_type t) {
    return t == MF_GEMM_F32 ? MF_DATA_F32 : t == MF_GEMM_BF16 ? MF_DATA_BF16 : MF_DATA_E4M3;
}

typedef struct product {
    mf_gemm_cuda *plan;
    int sets;
    mf_gemm_cuda_data data[MF_MEASURE_SETS];
} product;

static mf_status launch(void *op, int64_t i, cudaStream_t stream, mf_err *e) {
    product *g = op;
    return mf_gemm_cuda_run(g->plan, &g->data[i % g->sets], stream, e);
}

/* Scales of the finest blocks, whatever the mode reads of them. */
static size_t scale_count(int64_t rows, int64_t k) {
    return (size_t)((rows + 3) / 4 * 4 * ((k + 127) / 128 + 4));
}

static mf_status take_sets(mf_measure_session *s, const mf_gemm_cuda_shape *g, product *out,
                           mf_err *e) {
    size_t a_B = (size_t)(g->m * g->k) * type_B(g->a_type);
    size_t b_B = (size_t)(g->n * g->k) * type_B(g->b_type);
    size_t c_B = (size_t)(g->m * g->n) * type_B(g->c_type);
    float *scale = NULL;
    if (g->a_type == MF_GEMM_E4M3) {
        size_t of_a = scale_count(g->m, g->k), of_b = scale_count(g->n, g->k);
        scale = mf_measure_take(s, (of_a > of_b ? of_a : of_b) * sizeof *scale, MF_DATA_SCALE);
    }
    out->sets = mf_measure_sets(s, a_B + b_B + c_B);
    for (int i = 0; i < out->sets; i++) {
        out->data[i] = (mf_gemm_cuda_data){
            .a = mf_measure_take(s, a_B, type_data(g->a_type)),
            .b = mf_measure_take(s, b_B, type_data(g->b_type)),
            .c = mf_measure_take(s, c_B, g->accumulate ? MF_DATA_F32 : MF_DATA_NONE),
            .a_scale = scale,
            .b_scale = scale,
            .workspace = s->workspace,
            .alpha = 1.0f};
        if (out->data[i].a == NULL || out->data[i].b == NULL || out->data[i].c == NULL) {
            return mf_err_set(e, MF_INPUT, "the product does not fit into the GPU's memory");
        }
    }
    return MF_OK;
}

/* The remembered algorithm, if this library takes it, else the fastest of its proposals; `choice`
 * says which. */
static mf_status choose(mf_measure_session *s, product *g, mf_measure_choice *choice, mf_err *e) {
    _Static_assert(MF_CHOICE_MAX >= MF_GEMM_CHOICE_TEXT, "a store holds every choice");
    mf_gemm_choice c;
    mf_status status = MF_OK;
    if (choice->text[0] == '\0' || mf_gemm_choice_read(choice->text, &c, NULL) != MF_OK ||
        mf_gemm_cuda_use(g->plan, &c, NULL) != MF_OK) {
        status = mf_gemm_cuda_tune(g->plan, g->data, g->sets, s->stream, NULL, e);
    }
    status = status == MF_OK ? mf_gemm_cuda_choice(g->plan, &c, e) : status;
    if (status == MF_OK) {
        mf_gemm_choice_print(&c, choice->text);
    }
    return status;
}

mf_status mf_measure_gemm(mf_measure_session *s, const mf_point *p, mf_measure_time *out,
                          mf_err *e) {
    mf_gemm_cuda_shape shape;
    product g = {.plan = NULL};
    mf_status status = describe(p, &shape, e);
    if (status == MF_OK && s->cublas == NULL) {
        status = mf_gemm_cuda_library_open(&s->cublas, e);
    }
    status = status == MF_OK ? take_sets(s, &shape, &g, e) : status;
    mf_measure_busy(s); /* the library looks for algorithms */
    status = status == MF_OK ? mf_gemm_cuda_create(s->cublas, &shape, s->workspace_B, &g.plan, e)
                             : status;
    mf_measure_idled(s);
    status = status == MF_OK ? choose(s, &g, &out->choice, e) : status;
    status = status == MF_OK ? mf_measure_run(s, launch, &g, out, e) : status;
    mf_gemm_cuda_destroy(g.plan);
    return status;
}
