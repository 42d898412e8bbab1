/* CUDA kernels that move and turn heads in one pass, and the gate's product, against their C
 * references: fresh random inputs, poisoned outputs, heads of shipped models and odd ones, guards
 * behind every buffer. MF_SEED=n repeats a run. */
#include "tests/gpu/gpu_test.cuh"
#include "tests/support/rope_table.h"

#include "kernels/attention/mla_rope.h"
#include "kernels/attention/qk_rope.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/rope_split.h"
#include "kernels/moe/gate.h"

#define POSITIONS 100

static const mf_kernel_dtype F32 = MF_KERNEL_F32;
static const mf_kernel_dtype types[] = {MF_KERNEL_F32, MF_KERNEL_BF16};

typedef struct angles {
    both positions, cos, sin;
} angles;

static angles angles_of(int64_t rows, int64_t rot) {
    angles a;
    a.positions = random_ints(rows, 0, POSITIONS - 1);
    a.cos = poison(POSITIONS * rot / 2, F32), a.sin = poison(POSITIONS * rot / 2, F32);
    plain_rope_table(10000.0, rot, POSITIONS, (float *)a.cos.host, (float *)a.sin.host);
    upload(&a.cos), upload(&a.sin);
    return a;
}

/* Heads of a fused projection; pad: columns between its rows. */
typedef struct heads_case {
    mf_kernel_dtype d;
    int64_t rows, heads, kv, dim, rot, pad;
    bool pairs;
    int stays = 0; /* bits of q and k that are copied */
} heads_case;

static int64_t stride_of(const heads_case *k) {
    return (k->heads + 2 * k->kv) * k->dim + k->pad;
}

static mf_kernel_rope_shape shape_of(const heads_case *k, const angles *w, bool dev) {
    mf_kernel_rope_shape s = {};
    s.dtype = k->d, s.rows = k->rows, s.heads = k->heads, s.kv_heads = k->kv;
    s.head_dim = k->dim, s.rot_dim = k->rot, s.joined_stride = stride_of(k);
    s.q_stays = k->stays & 1, s.k_stays = k->stays & 2;
    s.interleaved = k->pairs, s.positions = (int32_t *)P(w->positions);
    s.cos = (float *)P(w->cos), s.sin = (float *)P(w->sin);
    return s;
}

static void describe(const char *op, const heads_case *k, const char *more) {
    CASE(op, "%s rows %lld heads %lld + 2 x %lld of %lld, %lld turn, %s, pad %lld, stays %d%s",
         name_of(k->d), (long long)k->rows, (long long)k->heads, (long long)k->kv,
         (long long)k->dim, (long long)k->rot, k->pairs ? "pairs" : "halves", (long long)k->pad,
         k->stays, more);
}

/* wanted: bits of q, k, v. */
static void test_split(const heads_case &c, int wanted) {
    char more[32];
    snprintf(more, sizeof more, ", wanted %d", wanted);
    describe("rope_split", &c, more);
    const int64_t nq = c.rows * c.heads * c.dim, nk = c.rows * c.kv * c.dim;
    angles w = angles_of(c.rows, c.rot);
    both joined = random_values(c.rows * stride_of(&c), c.d, -2, 2);
    both q = poison(nq, c.d), k = poison(nk, c.d), v = poison(nk, c.d);
    run_both<mf_kernel_rope_split>(
        [&](bool dev) {
            mf_kernel_rope_split a = {};
            a.shape = shape_of(&c, &w, dev), a.joined = P(joined);
            a.q = wanted & 1 ? P(q) : nullptr;
            a.k = wanted & 2 ? P(k) : nullptr;
            a.v = wanted & 4 ? P(v) : nullptr;
            return a;
        },
        mf_kernel_rope_split_run, mf_kernel_rope_split_run_cuda);
    compare("q", &q, c.d, bound_of(c.d));
    compare("k", &k, c.d, bound_of(c.d));
    compare_bits("v", &v, 0);
    free_all();
}

/* add: 0 none, 1 apart, 2 in place. */
static void test_join(const heads_case &c, int add) {
    char more[32];
    snprintf(more, sizeof more, ", add %d", add);
    describe("rope_join", &c, more);
    const int64_t nq = c.rows * c.heads * c.dim, nk = c.rows * c.kv * c.dim;
    angles w = angles_of(c.rows, c.rot);
    both dq = random_values(nq, c.d, -2, 2), dk = random_values(nk, c.d, -2, 2);
    both dv = random_values(nk, c.d, -2, 2);
    both other = random_values(c.rows * stride_of(&c), c.d, -2, 2);
    both out = random_values(c.rows * stride_of(&c), c.d, -2, 2);
    run_both<mf_kernel_rope_join>(
        [&](bool dev) {
            mf_kernel_rope_join a = {};
            a.shape = shape_of(&c, &w, dev);
            a.dq = P(dq), a.dk = P(dk), a.dv = P(dv), a.djoined = P(out);
            a.add = add == 0 ? nullptr : add == 1 ? P(other) : P(out);
            return a;
        },
        mf_kernel_rope_join_run, mf_kernel_rope_join_run_cuda);
    compare("djoined", &out, c.d, bound_of(c.d));
    free_all();
}

static void test_qk_rope(const heads_case &c, int wanted, bool add) {
    char more[48];
    snprintf(more, sizeof more, ", wanted %d, add %d", wanted, add);
    describe("qk_rope", &c, more);
    const int64_t nq = c.rows * c.heads * c.dim, nk = c.rows * c.kv * c.dim;
    angles w = angles_of(c.rows, c.rot);
    both joined = random_values(c.rows * stride_of(&c), c.d, -2, 2);
    both wq = random_values(c.dim, c.d, 0.5, 1.5), wk = random_values(c.dim, c.d, 0.5, 1.5);
    both q = poison(nq, c.d), k = poison(nk, c.d), v = poison(nk, c.d);
    both rstd = random_values(c.rows * (c.heads + c.kv), F32, 0.5, 1.5);
    run_both<mf_kernel_qk_rope>(
        [&](bool dev) {
            mf_kernel_qk_rope a = {};
            a.shape = shape_of(&c, &w, dev), a.eps = 1e-6f, a.joined = P(joined);
            a.weight_q = P(wq), a.weight_k = P(wk), a.rstd = (float *)P(rstd);
            a.q = wanted & 1 ? P(q) : nullptr;
            a.k = wanted & 2 ? P(k) : nullptr;
            a.v = wanted & 4 ? P(v) : nullptr;
            return a;
        },
        mf_kernel_qk_rope_forward, mf_kernel_qk_rope_forward_cuda);
    compare("q", &q, c.d, bound_of(c.d));
    compare("k", &k, c.d, bound_of(c.d));
    compare_bits("v", &v, 0);
    compare("rstd", &rstd, F32, 1e-6);
    both dq = random_values(nq, c.d, -1, 1), dk = random_values(nk, c.d, -1, 1);
    both dv = random_values(nk, c.d, -1, 1), dw = random_values(2 * c.dim, F32, -1, 1);
    both out = random_values(c.rows * stride_of(&c), c.d, -1, 1);
    both work = make(mf_kernel_qk_rope_workspace_B(c.dim), 0xff);
    run_both<mf_kernel_qk_rope_grad>(
        [&](bool dev) {
            mf_kernel_qk_rope_grad a = {};
            a.shape = shape_of(&c, &w, dev), a.joined = P(joined);
            a.weight_q = P(wq), a.weight_k = P(wk), a.rstd = (float *)P(rstd);
            a.dq = P(dq), a.dk = P(dk), a.dv = P(dv), a.add = add ? P(out) : nullptr;
            a.djoined = P(out), a.dweight = (float *)P(dw), a.workspace = P(work);
            return a;
        },
        mf_kernel_qk_rope_backward, mf_kernel_qk_rope_backward_cuda);
    compare("djoined", &out, c.d, bound_of(c.d));
    compare("dweight", &dw, F32, 1e-5);
    free_all();
}

/* Latent attention. */
typedef struct mla_case {
    mf_kernel_dtype d;
    int64_t rows, heads, nope, rope, v_dim, rank;
    bool pairs;
} mla_case;

static mf_kernel_mla_shape mla_shape_of(const mla_case *k, const angles *w, bool dev) {
    mf_kernel_mla_shape s = {};
    s.dtype = k->d, s.rows = k->rows, s.heads = k->heads;
    s.nope = k->nope, s.rope = k->rope, s.v_dim = k->v_dim, s.interleaved = k->pairs;
    s.positions = (int32_t *)P(w->positions);
    s.cos = (float *)P(w->cos), s.sin = (float *)P(w->sin);
    return s;
}

static void describe_mla(const char *op, const mla_case *k, int which) {
    CASE(op, "%s rows %lld heads %lld of %lld + %lld and %lld, rank %lld, %s, %d", name_of(k->d),
         (long long)k->rows, (long long)k->heads, (long long)k->nope, (long long)k->rope,
         (long long)k->v_dim, (long long)k->rank, k->pairs ? "pairs" : "halves", which);
}

/* wanted: 1 queries, 2 keys, 4 values; 8: queries where they stand. */
static void test_mla_forward(const mla_case &c, int wanted) {
    describe_mla("mla_rope", &c, wanted);
    const int64_t n = c.rows * c.heads, qk = c.nope + c.rope, latent = c.rank + c.rope;
    angles w = angles_of(c.rows, c.rope);
    both q = random_values(n * qk, c.d, -2, 2),
         kv = random_values(n * (c.nope + c.v_dim), c.d, -2, 2);
    both low = random_values(c.rows * latent, c.d, -2, 2);
    both q_out = poison(n * qk, c.d), k = poison(n * qk, c.d), v = poison(n * c.v_dim, c.d);
    run_both<mf_kernel_mla_rope>(
        [&](bool dev) {
            mf_kernel_mla_rope a = {};
            a.shape = mla_shape_of(&c, &w, dev), a.rope_stride = latent;
            a.q = P(q), a.kv = P(kv), a.k_rope = mf_kernel_row(P(low), c.d, c.rank, 1);
            a.q_out = wanted & 1 ? P(q_out) : wanted & 8 ? P(q) : nullptr;
            a.k_out = wanted & 2 ? P(k) : nullptr;
            a.v_out = wanted & 4 ? P(v) : nullptr;
            return a;
        },
        mf_kernel_mla_rope_forward, mf_kernel_mla_rope_forward_cuda);
    compare("q", wanted & 8 ? &q : &q_out, c.d, bound_of(c.d));
    compare("k", &k, c.d, bound_of(c.d));
    compare_bits("v", &v, 0);
    free_all();
}

/* add: 0 none, 1 apart, 2 in place; 3: none, and dq is turned where it stands. */
static void test_mla_backward(const mla_case &c, int add) {
    describe_mla("mla_rope gradient", &c, add);
    const int64_t n = c.rows * c.heads, qk = c.nope + c.rope, wide = c.nope + c.v_dim;
    const int64_t count[3] = {n * qk, n * wide, c.rows * (c.rank + c.rope)};
    const char *const name[3] = {"dq", "dkv", "dlatent"};
    angles w = angles_of(c.rows, c.rope);
    both dq = random_values(n * qk, c.d, -2, 2), dk = random_values(n * qk, c.d, -2, 2);
    both dv = random_values(n * c.v_dim, c.d, -2, 2), other[3], out[3];
    for (int i = 0; i < 3; i++) {
        other[i] = random_values(count[i], c.d, -2, 2);
        out[i] = add >= 2 ? random_values(count[i], c.d, -2, 2) : poison(count[i], c.d);
    }
    const bool adds = add == 1 || add == 2;
    run_both<mf_kernel_mla_rope_grad>(
        [&](bool dev) {
            const both *more = add == 2 ? out : other;
            mf_kernel_mla_rope_grad a = {};
            a.shape = mla_shape_of(&c, &w, dev), a.kv_rank = c.rank;
            a.dq = add == 3 ? P(out[0]) : P(dq), a.dk = P(dk), a.dv = P(dv);
            a.add_q = adds ? P(more[0]) : nullptr;
            a.add_kv = adds ? P(more[1]) : nullptr;
            a.add_latent = adds ? P(more[2]) : nullptr;
            a.dq_in = P(out[0]), a.dkv = P(out[1]), a.dlatent = P(out[2]);
            return a;
        },
        mf_kernel_mla_rope_backward, mf_kernel_mla_rope_backward_cuda);
    for (int i = 0; i < 3; i++) {
        compare(name[i], &out[i], c.d, bound_of(c.d));
    }
    free_all();
}

/* add: 0 none, 1 apart, 2 in place. */
static void test_gate_product(mf_kernel_dtype d, int64_t rows, int64_t cols, int add) {
    CASE("gate product", "%s rows %lld cols %lld add %d", name_of(d), (long long)rows,
         (long long)cols, add);
    both x = random_values(rows * cols, d, -1, 1), w = random_values(cols, d, -1, 1);
    both gate = poison(rows, F32), dgate = random_values(rows, F32, -1, 1);
    both other = random_values(rows * cols, d, -1, 1), dx = random_values(rows * cols, d, -1, 1);
    both dw = random_values(cols, F32, -1, 1), work = make(mf_kernel_gate_workspace_B(cols), 0xff);
    run_both<mf_kernel_gate_logit>(
        [&](bool dev) {
            mf_kernel_gate_logit a = {d, rows, cols, P(x), P(w), (float *)P(gate)};
            return a;
        },
        mf_kernel_gate_logits, mf_kernel_gate_logits_cuda);
    compare("gate", &gate, F32, 5e-6);
    run_both<mf_kernel_gate_input_grad>(
        [&](bool dev) {
            mf_kernel_gate_input_grad a = {};
            a.dtype = d, a.rows = rows, a.cols = cols, a.dgate = (float *)P(dgate);
            a.x = P(x), a.weight = P(w), a.dx = P(dx), a.dweight = (float *)P(dw);
            a.add = add == 0 ? nullptr : add == 1 ? P(other) : P(dx);
            a.workspace = P(work);
            return a;
        },
        mf_kernel_gate_input_backward, mf_kernel_gate_input_backward_cuda);
    compare("dx", &dx, d, bound_of(d));
    compare("dweight", &dw, F32, 1e-5);
    free_all();
}

/* Sums over rows come out the same each time. */
static void test_sums_repeat(void) {
    const mf_kernel_dtype d = MF_KERNEL_BF16;
    const heads_case c = {d, 3000, 8, 2, 128, 128, 0, false};
    const int64_t nq = c.rows * c.heads * c.dim, nk = c.rows * c.kv * c.dim;
    describe("qk_rope", &c, ", again");
    angles w = angles_of(c.rows, c.rot);
    both joined = random_values(c.rows * stride_of(&c), d, -2, 2);
    both wq = random_values(c.dim, d, 0.5, 1.5), dq = random_values(nq, d, -1, 1);
    both dk = random_values(nk, d, -1, 1), dv = random_values(nk, d, -1, 1);
    both rstd = random_values(c.rows * (c.heads + c.kv), F32, 0.5, 1.5);
    both out = poison(c.rows * stride_of(&c), d), dw = make(2 * 128 * 4, 0);
    both work = make(mf_kernel_qk_rope_workspace_B(c.dim), 0xff);
    for (int turn = 0; turn < 4; turn++) {
        const bool dev = true;
        mf_kernel_qk_rope_grad a = {};
        a.shape = shape_of(&c, &w, dev), a.joined = P(joined), a.weight_q = a.weight_k = P(wq);
        a.rstd = (float *)P(rstd), a.dq = P(dq), a.dk = P(dk), a.dv = P(dv), a.djoined = P(out);
        a.dweight = (float *)P(dw), a.workspace = P(work);
        must(cudaMemset(dw.device, 0, dw.size_B), "clear");
        mf_err e;
        mf_err_clear(&e);
        if (mf_kernel_qk_rope_backward_cuda(&a, nullptr, &e) != MF_OK) {
            printf("FATAL %s: %s\n", T.op, e.text);
            exit(1);
        }
        if (turn == 0) {
            must(cudaMemcpy(dw.host, dw.device, dw.size_B, cudaMemcpyDeviceToHost), "download");
        }
        compare_bits("dweight", &dw, 0);
    }
    free_all();
}

static void all_heads(mf_kernel_dtype d) {
    const heads_case cases[] = {
        {d, 77, 32, 4, 128, 128, 0, false},  /* Qwen3-30B */
        {d, 65, 16, 16, 128, 128, 0, false}, /* OLMoE */
        {d, 41, 48, 8, 128, 128, 0, false},  /* Mixtral */
        {d, 53, 64, 8, 64, 64, 0, false},    /* GPT-OSS */
        {d, 37, 12, 2, 128, 64, 0, false},   /* a part turns */
        {d, 37, 12, 2, 128, 64, 16, true},   {d, 29, 5, 3, 80, 32, 8, false},
        {d, 29, 5, 3, 72, 40, 8, true},      {d, 23, 9, 1, 256, 256, 0, false},
        {d, 19, 3, 2, 512, 128, 0, true},    {d, 31, 3, 1, 24, 12, 0, false},
        {d, 31, 3, 2, 10, 6, 1, false},      {d, 31, 3, 2, 10, 6, 3, true},
        {d, 1, 1, 1, 128, 128, 0, false},    {d, 7, 2, 1, 1030, 1030, 0, false},
    };
    for (const heads_case &c : cases) {
        for (int wanted = 1; wanted < 8; wanted += 2) {
            test_split(c, wanted);
        }
        test_split(c, 2), test_split(c, 6);
        for (int add = 0; add < 3; add++) {
            test_join(c, add);
        }
        test_qk_rope(c, 7, false);
        test_qk_rope(c, 7, true);
        test_qk_rope(c, 6, false);
    }
    const heads_case apart[] = {
        {d, 65, 40, 8, 128, 0, 0, true, 3},    /* Llama 4: no positions, */
        {d, 65, 40, 8, 128, 128, 0, true, 2},  /* queries alone by a factor of their position */
        {d, 41, 64, 0, 256, 256, 0, false, 0}, /* Step-3: queries, and keys, of their own */
        {d, 41, 0, 1, 256, 256, 0, false, 0},  {d, 29, 5, 3, 10, 0, 1, false, 3},
        {d, 29, 5, 3, 10, 6, 3, true, 1},
    };
    for (const heads_case &c : apart) {
        test_split(c, 7);
        test_join(c, 0), test_join(c, 1);
    }
}

static void all_latent(mf_kernel_dtype d) {
    const mla_case cases[] = {
        {d, 33, 128, 128, 64, 128, 512, true}, /* DeepSeek-V3 */
        {d, 33, 16, 128, 64, 128, 512, true},  /* DeepSeek-V2-Lite, Moonlight */
        {d, 33, 16, 128, 64, 128, 512, false}, {d, 21, 5, 64, 32, 96, 256, false},
        {d, 21, 7, 40, 24, 72, 88, true},      {d, 21, 3, 5, 6, 7, 9, true},
        {d, 21, 3, 5, 6, 7, 9, false},         {d, 9, 2, 8, 256, 8, 16, true},
    };
    for (const mla_case &c : cases) {
        test_mla_forward(c, 7), test_mla_forward(c, 1), test_mla_forward(c, 6);
        test_mla_forward(c, 2), test_mla_forward(c, 4), test_mla_forward(c, 14);
        for (int add = 0; add < 4; add++) {
            test_mla_backward(c, add);
        }
    }
}

int main(void) {
    begin_tests();
    for (mf_kernel_dtype d : types) {
        all_heads(d);
        all_latent(d);
        for (int add = 0; add < 3; add++) {
            test_gate_product(d, 300, 2048, add);
            test_gate_product(d, 5000, 1024, add);
            test_gate_product(d, 37, 7168, add);
            test_gate_product(d, 20, 64, add);
            test_gate_product(d, 333, 71, add);
        }
    }
    test_sums_repeat();
    return end_tests();
}
