/* test_attention.c - cuDNN attention against the C reference: causal and full, grouped heads, MLA
 * widths, packed sequences of several lengths, sliding window, keys that reach further back than
 * queries, sinks, strides; forward with log-sum-exp and all gradients; fresh random inputs and
 * poisoned outputs. Bounds are on |got - want| / |want|: BF16 probabilities and results leave 3e-3,
 * their gradients 6e-3.
 *   test_attention [--small]     --small: no long sequences
 */
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/device/cuda_check.h"
#include "tests/gpu/gpu_draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int passed, failed;
static void *library;

static void must(cudaError_t r) {
    if (r != cudaSuccess) {
        printf("FATAL %s\n", cudaGetErrorString(r));
        exit(1);
    }
}

typedef struct both {
    void *host, *device;
    size_t size_B;
    mf_kernel_dtype type;
} both;

static both poisoned(int64_t n, mf_kernel_dtype type) {
    both b = {.size_B = (size_t)n * mf_kernel_dtype_B(type), .type = type};
    b.host = malloc(b.size_B + 64);
    if (b.host == NULL) {
        exit(1);
    }
    memset(b.host, 0xff, b.size_B);
    must(cudaMalloc(&b.device, b.size_B + 64));
    must(cudaMemset(b.device, 0xff, b.size_B));
    return b;
}

static both filled(int64_t n, mf_kernel_dtype type, double size) {
    both b = poisoned(n, type);
    for (int64_t i = 0; i < n; i++) {
        mf_kernel_put(b.host, type, i, (float)uniform(-size, size));
    }
    must(cudaMemcpy(b.device, b.host, b.size_B, cudaMemcpyHostToDevice));
    return b;
}

static void drop(both *b) {
    free(b->host);
    (void)cudaFree(b->device);
}

/* The device's values against the host's. */
static void compare(const char *what, const char *name, const both *b, double bound) {
    size_t n = b->size_B / mf_kernel_dtype_B(b->type);
    void *got = malloc(b->size_B + 64);
    double difference = 0, size = 0;
    if (got == NULL) {
        exit(1);
    }
    must(cudaMemcpy(got, b->device, b->size_B, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) {
        double x = (double)mf_kernel_get(got, b->type, (int64_t)i);
        double y = (double)mf_kernel_get(b->host, b->type, (int64_t)i);
        bool alike = (isinf(x) && isinf(y) && (x > 0) == (y > 0)) || (isnan(x) && isnan(y));
        difference += alike ? 0 : (x - y) * (x - y);
        size += alike ? 0 : y * y;
    }
    double error = sqrt(difference) / (sqrt(size) + 1e-30);
    bool ok = error <= bound;
    ok ? passed++ : failed++;
    printf("%s %s %s: error %.2g (bound %.1g)\n", ok ? "ok   " : "FAIL ", what, name, error, bound);
    free(got);
}

typedef struct setup {
    int64_t batch, heads, kv_heads, seq_q, seq_k, qk_dim, v_dim;
    bool causal;
    int64_t window;
    bool sink;
    bool packed; /* sequences of lengths up to seq_q */
} setup;

static int64_t length_of(const setup *t, int64_t i) {
    return t->packed ? 1 + (t->seq_q - 1) * ((i * 2 + 1) % t->batch + 1) / t->batch : t->seq_q;
}

/* cuDNN keeps lse as [batch, heads, longest]; the reference as [heads, rows]. Rows past the end of
 * a packed sequence are as the device left them. */
static void reorder(const setup *t, const int32_t *cu, const float *reference, const both *lse) {
    float *out = lse->host;
    must(cudaMemcpy(out, lse->device, lse->size_B, cudaMemcpyDeviceToHost));
    for (int64_t b = 0; b < t->batch; b++) {
        for (int64_t h = 0; h < t->heads; h++) {
            memcpy(out + (b * t->heads + h) * t->seq_q, reference + h * cu[t->batch] + cu[b],
                   (size_t)(cu[b + 1] - cu[b]) * sizeof *out);
        }
    }
}

/* Inputs of a case, and outputs that both sides fill in: poison until then. */
typedef struct tensors {
    both q, k, v, d_o, sink, o, lse, dq, dk, dv, dsink;
} tensors;
enum { TENSORS = sizeof(tensors) / sizeof(both) };

static tensors make_tensors(const setup *t, int64_t q_rows, int64_t k_rows) {
    const int64_t q_values = q_rows * t->heads * t->qk_dim, o_values = q_rows * t->heads * t->v_dim;
    const int64_t k_values = k_rows * t->kv_heads * t->qk_dim;
    const int64_t v_values = k_rows * t->kv_heads * t->v_dim;
    tensors x = {.q = filled(q_values, MF_KERNEL_BF16, 1.7),
                 .k = filled(k_values, MF_KERNEL_BF16, 1.7),
                 .v = filled(v_values, MF_KERNEL_BF16, 1.7),
                 .d_o = filled(o_values, MF_KERNEL_BF16, 1.0),
                 .sink = filled(t->heads, MF_KERNEL_F32, 2.0),
                 .o = poisoned(o_values, MF_KERNEL_BF16),
                 .lse = poisoned(t->batch * t->seq_q * t->heads, MF_KERNEL_F32),
                 .dq = poisoned(q_values, MF_KERNEL_BF16),
                 .dk = poisoned(k_values, MF_KERNEL_BF16),
                 .dv = poisoned(v_values, MF_KERNEL_BF16),
                 .dsink = poisoned(t->heads, MF_KERNEL_F32)};
    return x;
}

static void drop_tensors(tensors *x) {
    both *all[TENSORS] = {&x->q,   &x->k,  &x->v,  &x->d_o, &x->sink, &x->o,
                          &x->lse, &x->dq, &x->dk, &x->dv,  &x->dsink};
    for (int i = 0; i < TENSORS; i++) {
        drop(all[i]);
    }
}

static mf_attention_cuda_shape cuda_shape(const setup *t) {
    return (mf_attention_cuda_shape){.batch = t->batch,
                                     .heads = t->heads,
                                     .kv_heads = t->kv_heads,
                                     .seq_q = t->seq_q,
                                     .seq_k = t->seq_k,
                                     .qk_dim = t->qk_dim,
                                     .v_dim = t->v_dim,
                                     .q = mf_attention_packed(t->seq_q, t->heads, t->qk_dim),
                                     .k = mf_attention_packed(t->seq_k, t->kv_heads, t->qk_dim),
                                     .v = mf_attention_packed(t->seq_k, t->kv_heads, t->v_dim),
                                     .o = mf_attention_packed(t->seq_q, t->heads, t->v_dim),
                                     .scale = 1.0f / sqrtf((float)t->qk_dim),
                                     .causal = t->causal,
                                     .window = t->window,
                                     .sink = t->sink,
                                     .packed = t->packed,
                                     .pieces = 1};
}

static mf_attention_cuda_data cuda_data(const tensors *x) {
    return (mf_attention_cuda_data){.q = x->q.device,
                                    .k = x->k.device,
                                    .v = x->v.device,
                                    .sink = x->sink.device,
                                    .o = x->o.device,
                                    .lse = x->lse.device,
                                    .d_o = x->d_o.device,
                                    .dq = x->dq.device,
                                    .dk = x->dk.device,
                                    .dv = x->dv.device,
                                    .dsink = x->dsink.device};
}

static void fail_with(const char *what, const char *why) {
    printf("FAIL  %s: %s\n", what, why);
    failed++;
}

/* Where sequences begin, and the position of every row in its own. */
typedef struct rows {
    int32_t cu_q[16], cu_k[16];
    int32_t *q_pos, *k_pos;
} rows;

static int32_t *positions(const int32_t *cu, int64_t sequences, int64_t first) {
    int32_t *pos = malloc((size_t)cu[sequences] * sizeof *pos);
    if (pos == NULL) {
        exit(1);
    }
    for (int64_t i = 0; i < sequences; i++) {
        for (int32_t r = cu[i]; r < cu[i + 1]; r++) {
            pos[r] = (int32_t)(r - cu[i] + first);
        }
    }
    return pos;
}

static rows make_rows(const setup *t) {
    rows x = {{0}, {0}, NULL, NULL};
    for (int64_t i = 0; i < t->batch; i++) {
        x.cu_q[i + 1] = x.cu_q[i] + (int32_t)length_of(t, i);
        x.cu_k[i + 1] = x.cu_k[i] + (int32_t)(t->packed ? length_of(t, i) : t->seq_k);
    }
    x.q_pos = positions(x.cu_q, t->batch, t->seq_k - t->seq_q);
    x.k_pos = positions(x.cu_k, t->batch, 0);
    return x;
}

/* The C reference, forward and backward, into the host's side of x. */
static void run_reference(const setup *t, const rows *at, const tensors *x, void *lse) {
    mf_kernel_attention_shape shape = {.dtype = MF_KERNEL_BF16,
                                       .sequences = t->batch,
                                       .cu_q = at->cu_q,
                                       .cu_k = at->cu_k,
                                       .q_pos = at->q_pos,
                                       .k_pos = at->k_pos,
                                       .heads = t->heads,
                                       .kv_heads = t->kv_heads,
                                       .qk_dim = t->qk_dim,
                                       .v_dim = t->v_dim,
                                       .causal = t->causal,
                                       .window = t->window,
                                       .scale = 1.0f / sqrtf((float)t->qk_dim),
                                       .q_row = t->heads * t->qk_dim,
                                       .q_head = t->qk_dim,
                                       .k_row = t->kv_heads * t->qk_dim,
                                       .k_head = t->qk_dim,
                                       .v_row = t->kv_heads * t->v_dim,
                                       .v_head = t->v_dim,
                                       .o_row = t->heads * t->v_dim,
                                       .o_head = t->v_dim,
                                       .sink = t->sink ? x->sink.host : NULL};
    mf_kernel_attention forward = {shape,          x->q.host, x->k.host, x->v.host,
                                   MF_KERNEL_BF16, x->o.host, lse};
    (void)mf_kernel_attention_forward(&forward, NULL);
    void *scratch = malloc(mf_kernel_attention_workspace_B(t->seq_k, t->qk_dim, t->v_dim));
    memset(x->dsink.host, 0, x->dsink.size_B);
    mf_kernel_attention_grad backward = {.shape = shape,
                                         .q = x->q.host,
                                         .k = x->k.host,
                                         .v = x->v.host,
                                         .o = x->o.host,
                                         .d_o = x->d_o.host,
                                         .lse = lse,
                                         .grad_dtype = MF_KERNEL_BF16,
                                         .dq = x->dq.host,
                                         .dk = x->dk.host,
                                         .dv = x->dv.host,
                                         .dsink = t->sink ? x->dsink.host : NULL,
                                         .workspace = scratch};
    (void)mf_kernel_attention_backward(&backward, NULL);
    free(scratch);
}

/* One pass on the device, in a workspace of poison. False: it did not run. */
static bool run_device(const char *what, const mf_attention_cuda_shape *s,
                       mf_attention_cuda_data d) {
    mf_attention_cuda *plan = NULL;
    mf_err e;
    if (mf_attention_cuda_create(library, s, &plan, &e) != MF_OK) {
        fail_with(what, e.text);
        return false;
    }
    must(cudaMalloc(&d.workspace, mf_attention_cuda_workspace_B(plan) + 256));
    must(cudaMemset(d.workspace, 0xff, mf_attention_cuda_workspace_B(plan)));
    if (mf_attention_cuda_run(plan, &d, NULL, &e) != MF_OK) {
        fail_with(what, e.text);
    }
    must(cudaDeviceSynchronize());
    (void)cudaFree(d.workspace);
    mf_attention_cuda_destroy(plan);
    return true;
}

static void run_case(const setup *t) {
    char what[160];
    snprintf(what, sizeof what, "b%lld h%lld/%lld s%lld/%lld d%lld/%lld%s window %lld%s%s",
             (long long)t->batch, (long long)t->heads, (long long)t->kv_heads, (long long)t->seq_q,
             (long long)t->seq_k, (long long)t->qk_dim, (long long)t->v_dim,
             t->causal ? " causal" : "", (long long)t->window, t->sink ? " sink" : "",
             t->packed ? " packed" : "");
    rows at = make_rows(t);
    tensors x = make_tensors(t, at.cu_q[t->batch], at.cu_k[t->batch]);
    both lse = poisoned(at.cu_q[t->batch] * t->heads, MF_KERNEL_F32); /* the reference's */
    run_reference(t, &at, &x, lse.host);
    mf_attention_cuda_shape s = cuda_shape(t);
    mf_attention_cuda_data d = cuda_data(&x);
    void *packing = NULL, *cu = NULL;
    must(cudaMalloc(&packing, mf_attention_packing_B(t->batch)));
    must(cudaMalloc(&cu, sizeof at.cu_q));
    must(cudaMemcpy(cu, at.cu_q, sizeof at.cu_q, cudaMemcpyHostToDevice));
    if (t->packed && mf_attention_packing_cuda(&s, cu, packing, NULL, NULL) != MF_OK) {
        fail_with(what, "packing");
    }
    d.packing = packing;
    if (run_device(what, &s, d)) {
        compare(what, "o", &x.o, 4e-3);
        reorder(t, at.cu_q, lse.host, &x.lse);
        compare(what, "lse", &x.lse, 1e-5);
    }
    /* Backward from the reference's own forward pass. */
    s.backward = true;
    must(cudaMemcpy(x.o.device, x.o.host, x.o.size_B, cudaMemcpyHostToDevice));
    must(cudaMemcpy(x.lse.device, x.lse.host, x.lse.size_B, cudaMemcpyHostToDevice));
    if (run_device(what, &s, d)) {
        compare(what, "dq", &x.dq, 8e-3);
        compare(what, "dk", &x.dk, 8e-3);
        compare(what, "dv", &x.dv, 8e-3);
        if (t->sink) {
            compare(what, "dsink", &x.dsink, 8e-3);
        }
    }
    drop_tensors(&x);
    drop(&lse);
    (void)cudaFree(packing);
    (void)cudaFree(cu);
    free(at.q_pos);
    free(at.k_pos);
}

/* --- again ------------------------------------------------------------------------------------ */

enum { AGAIN = 8 };

/* Computes the gradients of one shape AGAIN times and says how many runs differ from the first in a
 * bit of dq, dk, dv, and how long the last took. A check where they are fixed, else to compare. */
static void run_again(mf_attention_cuda_shape s, mf_attention_cuda_data d, const both *const *grad,
                      const char *what) {
    mf_attention_cuda *plan = NULL;
    mf_err e;
    int differ[3] = {0, 0, 0};
    float ms = 0;
    cudaEvent_t begin, end;
    if (mf_attention_cuda_create(library, &s, &plan, &e) != MF_OK) {
        fail_with(what, e.text);
        return;
    }
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    const size_t need_B = mf_attention_cuda_workspace_B(plan);
    must(cudaMalloc(&d.workspace, need_B + 256));
    void *first[3], *now = malloc(grad[0]->size_B);
    for (int i = 0; i < AGAIN; i++) {
        must(cudaEventRecord(begin, NULL));
        if (mf_attention_cuda_run(plan, &d, NULL, &e) != MF_OK) {
            fail_with(what, e.text);
        }
        must(cudaEventRecord(end, NULL));
        must(cudaDeviceSynchronize());
        must(cudaEventElapsedTime(&ms, begin, end));
        for (int k = 0; k < 3; k++) {
            if (i == 0) {
                first[k] = malloc(grad[k]->size_B);
                must(
                    cudaMemcpy(first[k], grad[k]->device, grad[k]->size_B, cudaMemcpyDeviceToHost));
            } else {
                must(cudaMemcpy(now, grad[k]->device, grad[k]->size_B, cudaMemcpyDeviceToHost));
                differ[k] += memcmp(first[k], now, grad[k]->size_B) != 0;
            }
        }
    }
    const bool same = differ[0] + differ[1] + differ[2] == 0;
    passed += s.fixed && same;
    failed += s.fixed && !same;
    printf(
        "%s %s%s, %d pieces: of %d runs again %d, %d, %d differ in dq, dk, dv; %.3f ms, workspace "
        "%.1f MB\n",
        !s.fixed ? "     "
        : same   ? "ok   "
                 : "FAIL ",
        what, s.fixed ? " fixed" : "", (int)s.pieces, AGAIN - 1, differ[0], differ[1], differ[2],
        (double)ms, 1e-6 * (double)need_B);
    for (int k = 0; k < 3; k++) {
        free(first[k]);
    }
    free(now);
    must(cudaEventDestroy(begin));
    must(cudaEventDestroy(end));
    (void)cudaFree(d.workspace);
    mf_attention_cuda_destroy(plan);
}

static void again(const setup *t) {
    char what[160];
    snprintf(what, sizeof what, "b%lld h%lld/%lld s%lld d%lld/%lld%s", (long long)t->batch,
             (long long)t->heads, (long long)t->kv_heads, (long long)t->seq_q, (long long)t->qk_dim,
             (long long)t->v_dim, t->sink ? " sink" : "");
    tensors x = make_tensors(t, t->batch * t->seq_q, t->batch * t->seq_k);
    mf_attention_cuda_shape s = cuda_shape(t);
    mf_attention_cuda_data d = cuda_data(&x);
    if (run_device(what, &s, d)) {
        const both *grad[3] = {&x.dq, &x.dk, &x.dv};
        s.backward = true;
        const bool own = t->qk_dim == 192;
        for (int way = 0; way < 4; way++) { /* cuDNN, as is, fixed, and a piece for each key head */
            if (way == 1 && !own) {
                continue;
            }
            s.general = way == 0;
            s.fixed = way > 1;
            s.pieces = way == 3 ? t->kv_heads : 1;
            run_again(s, d, grad, what);
            for (int g = 0; g < 3; g++) {
                both y = *grad[g];
                if (way == 0) {
                    must(cudaMemcpy(y.host, y.device, y.size_B, cudaMemcpyDeviceToHost));
                } else {
                    compare(what, g == 0 ? "dq" : g == 1 ? "dk" : "dv", &y, 6e-3);
                }
            }
        }
    }
    drop_tensors(&x);
}

int main(int argc, char **argv) {
    static const setup long_ones[] = {
        {1, 16, 16, 4096, 4096, 128, 128, true, 0, false, false},
        {2, 32, 4, 4096, 4096, 128, 128, true, 0, false, false},
        {1, 16, 16, 4096, 4096, 192, 128, true, 0, false, false},
        {1, 4, 4, 16384, 16384, 192, 128, true, 0, false, false},
        {1, 16, 2, 4096, 4096, 64, 64, true, 128, true, false},
        {1, 4, 4, 16384, 16384, 128, 128, true, 0, false, false},
        {2, 128, 128, 4096, 4096, 192, 128, true, 0, false, false},
    };
    static const setup cases[] = {
        {1, 2, 2, 128, 128, 64, 64, false, 0, false, false},
        {2, 4, 2, 256, 256, 128, 128, true, 0, false, false},
        {1, 4, 4, 200, 200, 128, 128, true, 0, false, false},
        {2, 2, 2, 192, 192, 192, 128, true, 0, false, false},
        {1, 1, 1, 256, 256, 192, 128, true, 0, false, false},
        {2, 3, 3, 768, 768, 192, 128, true, 0, false, false},
        {3, 2, 2, 1024, 1024, 192, 128, true, 0, false, false},
        {1, 8, 1, 320, 320, 64, 64, true, 0, false, false},
        {1, 4, 2, 384, 384, 128, 128, true, 100, false, false},
        {1, 4, 2, 128, 384, 128, 128, true, 0, false, false},
        {1, 4, 2, 300, 300, 64, 64, true, 128, true, false},
        {1, 2, 2, 256, 256, 64, 64, true, 0, true, false},
        {5, 4, 4, 300, 300, 128, 128, true, 0, false, true},
        {4, 8, 2, 512, 512, 128, 128, true, 0, false, true},
        {3, 2, 2, 256, 256, 192, 128, true, 0, false, true},
        {7, 4, 2, 384, 384, 64, 64, true, 100, false, true},
        {4, 2, 2, 200, 200, 128, 128, false, 0, false, true},
    };
    int count = 0;
    const char *text = getenv("MF_SEED");
    unsigned long long seed =
        text != NULL ? strtoull(text, NULL, 10) : (unsigned long long)time(NULL);
    mf_err e;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("MF_SKIPPED 1 no GPU: attention through cuDNN was compiled, not run\n");
        return 0;
    }
    printf("seed %llu\n", seed);
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    if (mf_attention_cuda_library_open(&library, &e) != MF_OK) {
        printf("FATAL %s\n", e.text);
        return 1;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_case(&cases[i]);
    }
    const bool small = argc > 1 && strcmp(argv[1], "--small") == 0; /* for a sanitizer */
    for (size_t i = 0; i < sizeof long_ones / sizeof long_ones[0] && !small; i++) {
        again(&long_ones[i]);
    }
    mf_attention_cuda_library_close(library);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
