/* test_attention_ranks.c - attention over context-parallel ranks, and inside chunks, on one GPU:
 * every rank's queries against the keys of each rank, and of all of them, as the device runs them,
 * against the C reference with the positions of the tokens; forward, and gradients that are added
 * to what stands (of one rank: written). `test_attention_ranks cpu` has the CPU stand in, which
 * tests the test. MF_SEED=n repeats a run.
 */
#include "executor/device/cuda_side.h"
#include "kernels/attention/attention.h"
#include "tests/gpu/gpu_draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct setup {
    int64_t cp, batch, heads, kv_heads, seq, qk_dim, v_dim, window;
    bool sink;
    bool chunked; /* inside chunks of `window` positions */
} setup;

typedef struct both {
    void *host, *device;
    int64_t count;
    mf_kernel_dtype type;
} both;

enum { BUFFERS = 128, WORKSPACE_B = 64 << 20 };
static const mf_kernel_dtype BF16 = MF_KERNEL_BF16, F32 = MF_KERNEL_F32;
static int passed, failed, buffers;
static both kept[BUFFERS];
static mf_device *device;
static mf_queue *queue;
static bool stand_in;          /* the CPU */
static void *kernel_workspace; /* of the device's kernels */

static void must(mf_status s, const mf_err *e) {
    if (s != MF_OK) {
        printf("FATAL %s\n", e->text);
        exit(1);
    }
}

static void copy(void *to, const void *from, size_t size_B) {
    mf_err e;
    must(device->ops->copy(queue, to, from, size_B, &e), &e);
    must(device->ops->wait(device, &e), &e);
}

static size_t size_B(const both *b) {
    return (size_t)b->count * mf_kernel_dtype_B(b->type);
}

static void upload(const both *b) {
    copy(b->device, b->host, size_B(b));
}

/* Random values up to `size`; with size 0 bytes that are none. */
static both make(int64_t count, mf_kernel_dtype type, double size) {
    both b = {.count = count, .type = type};
    mf_err e;
    b.host = malloc(size_B(&b) + 64);
    if (b.host == NULL || buffers == BUFFERS) {
        exit(1);
    }
    must(device->ops->allocate(device, (int64_t)size_B(&b) + 64, &b.device, &e), &e);
    memset(b.host, 0xff, size_B(&b));
    for (int64_t i = 0; size > 0 && i < count; i++) {
        mf_kernel_put(b.host, type, i, (float)uniform(-size, size));
    }
    upload(&b);
    kept[buffers++] = b;
    return b;
}

static void free_all(void) {
    while (buffers > 0) {
        buffers--;
        free(kept[buffers].host);
        device->ops->release(device, kept[buffers].device);
    }
}

/* Statistics of rows that see no key: minus infinity, or as good as it. */
static bool nothing(double x) {
    return x < -1e38;
}

static void compare(const char *what, const char *name, const both *b, double bound) {
    void *got = malloc(size_B(b) + 64);
    double difference = 0, size = 0;
    if (got == NULL) {
        exit(1);
    }
    copy(got, b->device, size_B(b));
    for (int64_t i = 0; i < b->count; i++) {
        double x = (double)mf_kernel_get(got, b->type, i);
        double y = (double)mf_kernel_get(b->host, b->type, i);
        bool alike = nothing(x) && nothing(y);
        difference += alike ? 0 : (x - y) * (x - y);
        size += alike ? 0 : y * y;
    }
    double error = sqrt(difference) / (sqrt(size) + 1e-30);
    bool ok = error <= bound;
    ok ? passed++ : failed++;
    printf("%s %s %s: error %.2g (bound %.1g)\n", ok ? "ok   " : "FAIL ", what, name, error, bound);
    free(got);
}

/* --- one rank's queries against some keys --------------------------------------------------------
 */

typedef struct rank_case {
    const setup *t;
    both q, d_o, sink, o, lse; /* o, lse: final ones, over all keys */
    both cu_q, cu_k, q_pos, k_pos;
    mf_device_sequences s;
    char what[160];
} rank_case;

static int64_t position_of(const setup *t, int64_t rank, int64_t i) {
    int64_t half = t->seq / (2 * t->cp);
    return i < half ? rank * half + i : (2 * t->cp - 1 - rank) * half + i - half;
}

/* Positions of `rows` rows of each sequence; rank -1: all, in order. */
static void place(const setup *t, int64_t rank, int64_t rows, both *cu, both *position) {
    *cu = make(t->batch + 1, F32, 0);
    *position = make(t->batch * rows, F32, 0);
    for (int64_t b = 0; b <= t->batch; b++) {
        ((int32_t *)cu->host)[b] = (int32_t)(b * rows);
    }
    for (int64_t i = 0; i < t->batch * rows; i++) {
        int64_t at = rank < 0 ? i % rows : position_of(t, rank, i % rows);
        ((int32_t *)position->host)[i] = (int32_t)at;
    }
    upload(cu);
    upload(position);
}

static void *on(const both *b, bool host) {
    return host ? b->host : b->device;
}

static mf_kernel_attention_shape shape_of(const rank_case *c, bool host) {
    const setup *t = c->t;
    return (mf_kernel_attention_shape){.dtype = BF16,
                                       .sequences = t->batch,
                                       .cu_q = on(&c->cu_q, host),
                                       .cu_k = on(&c->cu_k, host),
                                       .q_pos = on(&c->q_pos, host),
                                       .k_pos = on(&c->k_pos, host),
                                       .heads = t->heads,
                                       .kv_heads = t->kv_heads,
                                       .qk_dim = t->qk_dim,
                                       .v_dim = t->v_dim,
                                       .causal = true,
                                       .window = t->window,
                                       .chunked = t->chunked,
                                       .scale = (float)(1.0 / sqrt((double)t->qk_dim)),
                                       .q_row = t->heads * t->qk_dim,
                                       .q_head = t->qk_dim,
                                       .k_row = t->kv_heads * t->qk_dim,
                                       .k_head = t->qk_dim,
                                       .v_row = t->kv_heads * t->v_dim,
                                       .v_head = t->v_dim,
                                       .o_row = t->heads * t->v_dim,
                                       .o_head = t->v_dim,
                                       .sink = t->sink ? on(&c->sink, host) : NULL};
}

static mf_kernel_attention forward_args(const rank_case *c, const both *k, const both *v,
                                        const both *o, const both *lse, bool host) {
    return (mf_kernel_attention){.shape = shape_of(c, host),
                                 .q = on(&c->q, host),
                                 .k = on(k, host),
                                 .v = on(v, host),
                                 .o_dtype = BF16,
                                 .o = on(o, host),
                                 .lse = on(lse, host)};
}

/* Plans are made first, as before a run's first step. */
static void run_forward(const mf_device_attention *a) {
    mf_err e;
    if (device->ops->prepare != NULL) {
        must(device->ops->prepare(device, true, &e), &e);
        must(device->ops->attention(queue, a, &e), &e);
        must(device->ops->prepare(device, false, &e), &e);
    }
    must(device->ops->attention(queue, a, &e), &e);
}

static void run_backward(const mf_device_attention_grad *a) {
    mf_err e;
    if (device->ops->prepare != NULL) {
        must(device->ops->prepare(device, true, &e), &e);
        must(device->ops->attention_grad(queue, a, &e), &e);
        must(device->ops->prepare(device, false, &e), &e);
    }
    must(device->ops->attention_grad(queue, a, &e), &e);
}

/* Statistics of one rank as the library has them: chunk by chunk, in each by sequence, then by
 * head. Only in the order in which they are compared or sent up. */
static void to_library(const setup *t, const both *lse) {
    const int64_t rows = t->batch * t->seq, chunk = t->chunked ? t->window : t->seq;
    float *all = lse->host, *was = malloc(size_B(lse) + 4);
    if (was == NULL) {
        exit(1);
    }
    memcpy(was, all, size_B(lse));
    for (int64_t at = 0; at < t->seq && t->cp == 1 && !stand_in; at += chunk) {
        const int64_t n = t->seq - at < chunk ? t->seq - at : chunk;
        float *block = all + t->batch * t->heads * at;
        for (int64_t i = 0; i < t->batch * t->heads; i++) {
            const int64_t b = i / t->heads, h = i % t->heads;
            memcpy(block + i * n, was + h * rows + b * t->seq + at, (size_t)n * sizeof *block);
        }
    }
    free(was);
}

static void check_forward(const rank_case *c, const both *k, const both *v) {
    const int64_t rows = c->q.count / (c->t->heads * c->t->qk_dim);
    both o = make(rows * c->t->heads * c->t->v_dim, BF16, 0);
    both lse = make(rows * c->t->heads, F32, 0);
    const mf_kernel_attention want = forward_args(c, k, v, &o, &lse, true);
    const mf_device_attention got = {.a = forward_args(c, k, v, &o, &lse, false),
                                     .s = c->s,
                                     .workspace = kernel_workspace,
                                     .workspace_B = WORKSPACE_B};
    mf_err e;
    must(mf_kernel_attention_forward(&want, &e), &e);
    to_library(c->t, &lse);
    run_forward(&got);
    compare(c->what, "o", &o, 5e-3);
    compare(c->what, "lse", &lse, 1e-3);
}

static mf_kernel_attention_grad backward_args(const rank_case *c, const both *k, const both *v,
                                              const both grad[3], const both *dsink, void *work,
                                              bool host) {
    return (mf_kernel_attention_grad){.shape = shape_of(c, host),
                                      .q = on(&c->q, host),
                                      .k = on(k, host),
                                      .v = on(v, host),
                                      .o = on(&c->o, host),
                                      .d_o = on(&c->d_o, host),
                                      .lse = on(&c->lse, host),
                                      .grad_dtype = BF16,
                                      .accumulate = c->t->cp > 1,
                                      .dq = on(&grad[0], host),
                                      .dk = on(&grad[1], host),
                                      .dv = on(&grad[2], host),
                                      .dsink = c->t->sink ? on(dsink, host) : NULL,
                                      .workspace = work};
}

static void check_backward(const rank_case *c, const both *k, const both *v) {
    const both grad[3] = {make(c->q.count, BF16, 0.5), make(k->count, BF16, 0.5),
                          make(v->count, BF16, 0.5)};
    both dsink = make(c->t->heads, F32, 0.5);
    void *work = malloc(mf_kernel_attention_workspace_B(c->t->seq, c->t->qk_dim, c->t->v_dim));
    mf_err e;
    if (work == NULL) {
        exit(1);
    }
    const mf_kernel_attention_grad want = backward_args(c, k, v, grad, &dsink, work, true);
    const mf_device_attention_grad got = {
        .a = backward_args(c, k, v, grad, &dsink, kernel_workspace, false),
        .s = c->s,
        .workspace_B = WORKSPACE_B};
    must(mf_kernel_attention_backward(&want, &e), &e);
    to_library(c->t, &c->lse);
    upload(&c->lse);
    run_backward(&got);
    compare(c->what, "dq", &grad[0], 8e-3);
    compare(c->what, "dk", &grad[1], 8e-3);
    compare(c->what, "dv", &grad[2], 8e-3);
    if (c->t->sink) {
        compare(c->what, "dsink", &dsink, 8e-3);
    }
    free(work);
}

/* --- all ranks ----------------------------------------------------------------------------------
 */

/* The rows of rank `from` among those of all, sequence by sequence. */
static both rows_of(const setup *t, const both *all, int64_t from, int64_t cols) {
    const int64_t local = t->seq / t->cp;
    both b = make(t->batch * local * cols, BF16, 0);
    for (int64_t i = 0; i < t->batch * local; i++) {
        int64_t row = i / local * t->seq + position_of(t, from, i % local);
        memcpy((uint16_t *)b.host + i * cols, (const uint16_t *)all->host + row * cols,
               (size_t)cols * sizeof(uint16_t));
    }
    upload(&b);
    return b;
}

/* Queries of rank `me`; o and lse over all keys, as a merge would leave them. */
static void open_rank(rank_case *c, const setup *t, int64_t me, const both *k, const both *v) {
    const int64_t local = t->seq / t->cp, rows = t->batch * local;
    mf_err e;
    *c = (rank_case){.t = t};
    c->q = make(rows * t->heads * t->qk_dim, BF16, 1);
    c->d_o = make(rows * t->heads * t->v_dim, BF16, 1);
    c->sink = make(t->heads, F32, 1);
    c->o = make(rows * t->heads * t->v_dim, BF16, 0);
    c->lse = make(rows * t->heads, F32, 0);
    place(t, me, local, &c->cu_q, &c->q_pos);
    place(t, -1, t->seq, &c->cu_k, &c->k_pos);
    c->s = (mf_device_sequences){.seq_q = local,
                                 .seq_k = t->seq,
                                 .keys = t->cp > 1 ? MF_KEYS_ALL : MF_KEYS_OWN,
                                 .member = me,
                                 .members = t->cp};
    const mf_kernel_attention a = forward_args(c, k, v, &c->o, &c->lse, true);
    must(mf_kernel_attention_forward(&a, &e), &e);
    upload(&c->o);
}

static void run_rank(const setup *t, int64_t me) {
    const int64_t k_cols = t->kv_heads * t->qk_dim, v_cols = t->kv_heads * t->v_dim;
    const both k = make(t->batch * t->seq * k_cols, BF16, 1);
    const both v = make(t->batch * t->seq * v_cols, BF16, 1);
    rank_case c;
    open_rank(&c, t, me, &k, &v);
    for (int64_t from = -1; from < (t->window > 0 ? 0 : t->cp); from++) {
        both k_from = k, v_from = v;
        if (t->sink && from >= 0 && from != me) {
            continue; /* a sink takes part once, with a rank's own keys or with all */
        }
        if (from >= 0) {
            k_from = rows_of(t, &k, from, k_cols);
            v_from = rows_of(t, &v, from, v_cols);
            place(t, from, t->seq / t->cp, &c.cu_k, &c.k_pos);
            c.s.seq_k = t->seq / t->cp;
            c.s.keys = from == me ? MF_KEYS_OWN : from < me ? MF_KEYS_BEFORE : MF_KEYS_BEHIND;
        }
        snprintf(
            c.what, sizeof c.what, "cp%lld b%lld h%lld/%lld s%lld d%lld/%lld %c%lld%s %lld<%lld",
            (long long)t->cp, (long long)t->batch, (long long)t->heads, (long long)t->kv_heads,
            (long long)t->seq, (long long)t->qk_dim, (long long)t->v_dim, t->chunked ? 'c' : 'w',
            (long long)t->window, t->sink ? " sink" : "", (long long)me, (long long)from);
        check_forward(&c, &k_from, &v_from);
        check_backward(&c, &k_from, &v_from);
    }
    free_all();
}

int main(int argc, char **argv) {
    static const setup cases[] = {
        {2, 1, 4, 2, 512, 128, 128, 0, false, false},
        {2, 2, 4, 4, 256, 192, 128, 0, false, false},
        {3, 2, 2, 1, 384, 64, 64, 0, false, false},
        {4, 1, 2, 2, 1024, 128, 128, 0, false, false},
        {2, 2, 4, 2, 512, 64, 64, 100, false, false},
        {2, 1, 2, 2, 256, 64, 64, 0, true, false},
        {1, 2, 4, 2, 512, 128, 128, 128, false, true},
        {1, 1, 2, 2, 320, 64, 64, 128, false, true},
        {1, 2, 4, 1, 256, 128, 128, 1024, false, true},
        {2, 2, 4, 2, 512, 128, 128, 128, false, true},
        {2, 1, 2, 2, 512, 64, 64, 192, false, true},
        {1, 2, 4, 2, 128, 128, 128, 32, false, true},
    };
    const char *text = getenv("MF_SEED");
    unsigned long long seed =
        text != NULL ? strtoull(text, NULL, 10) : (unsigned long long)time(NULL);
    stand_in = argc > 1 && strcmp(argv[1], "cpu") == 0;
    int gpus = 0;
    mf_err e;
    if (!stand_in && (mf_device_cuda_count(&gpus, &e) != MF_OK || gpus == 0)) {
        printf("MF_SKIPPED 1 no GPU: attention over ranks was compiled, not run\n");
        return 0;
    }
    printf("seed %llu%s\n", seed, stand_in ? ", the CPU stands in" : "");
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    device = mf_device_cpu();
    if (!stand_in) {
        must(mf_device_cuda_open(0, &device, &e), &e);
    }
    queue = device->ops->queue(device, MF_STREAM_COMPUTE);
    must(device->ops->allocate(device, WORKSPACE_B, &kernel_workspace, &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int64_t me = 0; me < cases[i].cp; me++) {
            run_rank(&cases[i], me);
        }
    }
    device->ops->release(device, kernel_workspace);
    device->ops->close(device);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
