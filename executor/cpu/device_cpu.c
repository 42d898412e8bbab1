/* device_cpu.c - the CPU as a device: the host's memory, reference kernels, all done on return. */
#include "executor/device/device.h"

#include "executor/cpu/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mf_device cpu;
static mf_queue queue = {.device = &cpu};

/* --- memory --------------------------------------------------------------------------------------
 */

static void close_cpu(mf_device *d) {
    (void)d;
}

static void describe(const mf_device *d, char *text, size_t size) {
    (void)d;
    snprintf(text, size, "CPU");
}

static mf_status allocate(mf_device *d, int64_t size_B, void **out, mf_err *e) {
    (void)d;
    *out = aligned_alloc(MF_ALIGN_B, (size_t)mf_align_B(size_B));
    if (*out == NULL) {
        return mf_err_set(e, MF_NOMEM, "no %lld bytes of memory", (long long)size_B);
    }
    memset(*out, 0, (size_t)mf_align_B(size_B));
    return MF_OK;
}

static void release(mf_device *d, void *memory) {
    (void)d;
    free(memory);
}

static int64_t used_B(mf_device *d) {
    (void)d;
    return 0;
}

static mf_queue *queue_of(mf_device *d, mf_stream stream) {
    (void)d, (void)stream;
    return &queue;
}

static mf_status side_queue(mf_device *d, int i, mf_queue **out, mf_err *e) {
    (void)d, (void)i, (void)e;
    *out = &queue;
    return MF_OK;
}

static mf_status copy(mf_queue *q, void *to, const void *from, size_t size_B, mf_err *e) {
    (void)q, (void)e;
    memcpy(to, from, size_B);
    return MF_OK;
}

static mf_status fill(mf_queue *q, void *to, int byte, size_t size_B, mf_err *e) {
    (void)q, (void)e;
    memset(to, byte, size_B);
    return MF_OK;
}

static mf_status zero(mf_queue *q, void *to, size_t size_B, mf_err *e) {
    return fill(q, to, 0, size_B, e);
}

static mf_status wait_for_all(mf_device *d, mf_err *e) {
    (void)d, (void)e;
    return MF_OK;
}

static mf_status order(mf_queue *before, mf_queue *behind, mf_err *e) {
    (void)before, (void)behind, (void)e;
    return MF_OK;
}

static mf_status signal_or_await(mf_queue *q, int slot, mf_err *e) {
    (void)q, (void)slot, (void)e;
    return MF_OK;
}

/* --- kernels -------------------------------------------------------------------------------------
 */

#define X(entry, type, function)                                                                   \
    static mf_status run_##entry(mf_queue *q, const type *a, mf_err *e) {                          \
        (void)q;                                                                                   \
        return function(a, e);                                                                     \
    }
MF_KERNEL_LIST(X)
#undef X

/* Copies the addend into the result, then adds the product. */
static mf_status gemm(mf_queue *q, const mf_device_gemm *a, mf_err *e) {
    mf_kernel_gemm g = a->g;
    (void)q;
    if (a->add != NULL && a->add != g.c) {
        const mf_kernel_copy_rows begin = {.dtype = g.c_dtype,
                                           .rows = g.m,
                                           .cols = g.n,
                                           .src_stride = g.ldc,
                                           .dst_stride = g.ldc,
                                           .src = a->add,
                                           .dst = g.c};
        mf_status status = mf_kernel_copy_rows_strided(&begin, e);
        if (status != MF_OK) {
            return status;
        }
    }
    g.accumulate |= a->add != NULL;
    return mf_kernel_gemm_run(&g, e);
}

static void *element(const void *base, mf_kernel_dtype d, int64_t i) {
    return mf_kernel_row_mut((void *)(uintptr_t)base, d, i, 1);
}

/* The product of expert g, whose rows are [first, first + rows). */
static mf_kernel_gemm expert_product(const mf_device_grouped *a, int64_t g, int64_t first,
                                     int64_t rows) {
    const int64_t n = a->n, k = a->k;
    const int64_t a_cols = a->kind == MF_GROUPED_FORWARD ? k : n;
    mf_kernel_gemm p = {.a_dtype = a->dtype,
                        .b_dtype = a->dtype,
                        .c_dtype = a->out_dtype,
                        .lda = a_cols,
                        .ldb = k,
                        .alpha = 1.0f,
                        .a = element(a->a, a->dtype, first * a_cols)};
    if (a->kind == MF_GROUPED_WGRAD) {
        p.form = MF_GEMM_TN;
        p.m = n;
        p.n = p.ldc = k;
        p.k = rows;
        p.accumulate = a->accumulate;
        p.b = element(a->b, a->dtype, first * k);
        p.c = element(a->out, a->out_dtype, g * n * k);
        return p;
    }
    bool forward = a->kind == MF_GROUPED_FORWARD;
    p.form = forward ? MF_GEMM_NT : MF_GEMM_NN;
    p.m = rows;
    p.n = p.ldc = forward ? n : k;
    p.k = forward ? k : n;
    p.b = element(a->b, a->dtype, g * n * k);
    p.c = element(a->out, a->out_dtype, first * p.n);
    return p;
}

/* Where the rows of expert g begin: past the buffer's end there are none. */
static int64_t first_row(const mf_device_grouped *a, int64_t g) {
    return a->offsets[g] < a->rows ? a->offsets[g] : a->rows;
}

/* Writes the activation of all experts' rows, after their products. */
static mf_status activate(const mf_device_grouped *a, mf_err *e) {
    const int64_t first = first_row(a, 0), half = a->n / 2;
    const mf_kernel_swiglu s = {.shape = {.dtype = a->out_dtype,
                                          .kind = MF_SWIGLU_SILU,
                                          .rows = first_row(a, a->experts) - first,
                                          .cols = half,
                                          .prob = a->prob != NULL ? a->prob + first : NULL},
                                .gate_up = element(a->out, a->out_dtype, first * a->n),
                                .y = element(a->act, a->out_dtype, first * half)};
    return mf_kernel_swiglu_forward(&s, e);
}

static mf_status grouped(mf_queue *q, const mf_device_grouped *a, mf_err *e) {
    mf_status status = MF_OK;
    (void)q;
    for (int64_t g = 0; g < a->experts && status == MF_OK; g++) {
        int64_t first = first_row(a, g), rows = first_row(a, g + 1) - first;
        const mf_kernel_gemm p = expert_product(a, g, first, rows);
        if (rows > 0) {
            status = mf_kernel_gemm_run(&p, e);
        } else if (a->kind == MF_GROUPED_WGRAD && !a->accumulate) {
            memset(p.c, 0, (size_t)(p.m * p.n) * mf_kernel_dtype_B(p.c_dtype));
        }
    }
    return status == MF_OK && a->act != NULL ? activate(a, e) : status;
}

static mf_status attention(mf_queue *q, const mf_device_attention *a, mf_err *e) {
    (void)q;
    return mf_kernel_attention_forward(&a->a, e);
}

static mf_status attention_grad(mf_queue *q, const mf_device_attention_grad *a, mf_err *e) {
    (void)q;
    return mf_kernel_attention_backward(&a->a, e);
}

static mf_status router_z(mf_queue *q, const mf_device_z *a, mf_err *e) {
    (void)q;
    return mf_kernel_router_z_sum(a->rows, a->lse, a->sum, e);
}

/* --- the table -----------------------------------------------------------------------------------
 */

static const mf_device_ops ops = {
    .name = "cpu",
    .on_host = true,
    .mixed = true,
    .close = close_cpu,
    .describe = describe,
    .allocate = allocate,
    .release = release,
    .allocate_host = allocate,
    .release_host = release,
    .used_B = used_B,
    .queue = queue_of,
    .side_queue = side_queue,
    .copy = copy,
    .zero = zero,
    .fill = fill,
    .wait = wait_for_all,
    .order = order,
    .signal = signal_or_await,
    .await = signal_or_await,
#define X(entry, type, function) .entry = run_##entry,
    MF_KERNEL_LIST(X)
#undef X
        .gemm = gemm,
    .grouped = grouped,
    .attention = attention,
    .attention_grad = attention_grad,
    .router_z = router_z,
    .scratch_B = mf_cpu_scratch_B,
};

static mf_device cpu = {.ops = &ops};

mf_device *mf_device_cpu(void) {
    return &cpu;
}
