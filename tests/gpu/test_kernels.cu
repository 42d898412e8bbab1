/* CUDA kernels of norms, rotary embedding and activations against their C references: fresh random
 * inputs, poisoned outputs, aligned and odd sizes, guards behind every buffer. MF_SEED=n repeats a
 * run. */
#include "tests/gpu/gpu_test.cuh"
#include "tests/support/rope_table.h"

#include "kernels/attention/attention_merge.h"
#include "kernels/attention/output_gate.h"
#include "kernels/attention/rope.h"
#include "kernels/moe/gate.h"
#include "kernels/moe/swiglu.h"
#include "kernels/rows/bias.h"
#include "kernels/rows/layernorm.h"
#include "kernels/rows/norm_split.h"
#include "kernels/rows/rmsnorm.h"

static const mf_kernel_dtype F32 = MF_KERNEL_F32;
static const mf_kernel_dtype types[] = {MF_KERNEL_F32, MF_KERNEL_BF16};

static void test_rmsnorm(mf_kernel_dtype d, int64_t rows, int64_t groups, int64_t cols,
                         int64_t pad) {
    int64_t xs = groups * cols + pad, ys = groups * cols;
    for (int way = 0; way < 6; way++) {
        const int add = way % 2;
        const bool plus_one = way / 2 == 1, plain = way / 2 == 2;
        CASE("rmsnorm", "%s rows %lld groups %lld cols %lld pad %lld add %d plus %d plain %d",
             name_of(d), (long long)rows, (long long)groups, (long long)cols, (long long)pad, add,
             plus_one, plain);
        both x = random_values(rows * xs, d, -2, 2), more = random_values(rows * xs, d, -2, 2);
        both w = random_values(cols, d, 0.5, 1.5), dy = random_values(rows * ys, d, -1, 1);
        both sum = poison(rows * xs, d), y = poison(rows * ys, d),
             rstd = poison(rows * groups, F32);
        both dx = random_values(rows * xs, d, -1, 1), dw = random_values(cols, F32, -1, 1);
        both work = make(mf_kernel_rmsnorm_workspace_B(cols), 0xff);
        run_both<mf_kernel_rmsnorm>(
            [&](bool dev) {
                mf_kernel_rmsnorm a = {d,
                                       rows,
                                       groups,
                                       cols,
                                       xs,
                                       ys,
                                       1e-5f,
                                       P(x),
                                       add ? P(more) : nullptr,
                                       add ? P(sum) : nullptr,
                                       plain ? nullptr : P(w),
                                       P(y),
                                       (float *)P(rstd),
                                       plus_one};
                return a;
            },
            mf_kernel_rmsnorm_forward, mf_kernel_rmsnorm_forward_cuda);
        compare("y", &y, d, bound_of(d));
        compare("rstd", &rstd, F32, 1e-6);
        compare("sum", &sum, d, 0.0);
        run_both<mf_kernel_rmsnorm_grad>(
            [&](bool dev) {
                mf_kernel_rmsnorm_grad a = {d,
                                            rows,
                                            groups,
                                            cols,
                                            xs,
                                            ys,
                                            add ? P(sum) : P(x),
                                            plain ? nullptr : P(w),
                                            (float *)P(rstd),
                                            P(dy),
                                            add ? P(dx) : nullptr,
                                            P(dx),
                                            plain ? nullptr : (float *)P(dw),
                                            P(work),
                                            plus_one};
                return a;
            },
            mf_kernel_rmsnorm_backward, mf_kernel_rmsnorm_backward_cuda);
        compare("dx", &dx, d, bound_of(d));
        compare("dweight", &dw, F32, 1e-5);
        free_all();
    }
}

/* Rows that lie beside 0, as sums of many layers do: the mean has to be taken off. */
static void test_layernorm(mf_kernel_dtype d, int64_t rows, int64_t cols) {
    for (int add = 0; add < 3; add++) { /* none, apart, in place */
        CASE("layernorm", "%s rows %lld cols %lld add %d", name_of(d), (long long)rows,
             (long long)cols, add);
        both x = random_values(rows * cols, d, -1, 3), w = random_values(2 * cols, d, 0.5, 1.5);
        both dy = random_values(rows * cols, d, -1, 1), y = poison(rows * cols, d);
        both more = random_values(rows * cols, d, -1, 1), rstd = poison(rows, F32);
        both dx = add < 2 ? poison(rows * cols, d) : more, dw = random_values(2 * cols, F32, -1, 1);
        both work = make(mf_kernel_layernorm_workspace_B(cols), 0xff);
        run_both<mf_kernel_layernorm>(
            [&](bool dev) {
                mf_kernel_layernorm a = {d, rows, cols, 1e-5f, P(x), P(w), P(y), (float *)P(rstd)};
                return a;
            },
            mf_kernel_layernorm_forward, mf_kernel_layernorm_forward_cuda);
        compare("y", &y, d, bound_of(d));
        compare("rstd", &rstd, F32, 1e-6);
        run_both<mf_kernel_layernorm_grad>(
            [&](bool dev) {
                mf_kernel_layernorm_grad a = {d,      rows,
                                              cols,   P(x),
                                              P(w),   (float *)P(rstd),
                                              P(dy),  add > 0 ? P(more) : nullptr,
                                              P(dx),  (float *)P(dw),
                                              P(work)};
                return a;
            },
            mf_kernel_layernorm_backward, mf_kernel_layernorm_backward_cuda);
        compare("dx", &dx, d, bound_of(d));
        compare("dweight, dbias", &dw, F32, 1e-5);
        free_all();
    }
}

/* A rank's part of rows that several ranks share: sums as if the others had added theirs. */
static void test_norm_split(mf_kernel_dtype d, int64_t rows, int64_t cols, int64_t pad) {
    int64_t xs = cols + pad, ys = cols + 2 * pad;
    CASE("norm_split", "%s rows %lld cols %lld pad %lld", name_of(d), (long long)rows,
         (long long)cols, (long long)pad);
    both x = random_values(rows * xs, d, -2, 2), w = random_values(cols, d, 0.5, 1.5);
    both dy = random_values(rows * ys, d, -1, 1), sum = poison(rows, F32), dot = poison(rows, F32);
    both y = poison(rows * ys, d), rstd = poison(rows, F32), dx = poison(rows * xs, d);
    both dw = random_values(cols, F32, -1, 1);
    both work = make(mf_kernel_norm_split_workspace_B(cols), 0xff);
    auto fill = [&](bool dev, both *sums) {
        mf_kernel_norm_split a = {d,
                                  rows,
                                  cols,
                                  3 * cols,
                                  xs,
                                  ys,
                                  1e-5f,
                                  0.5f,
                                  P(x),
                                  P(w),
                                  (float *)P(*sums),
                                  P(y),
                                  (float *)P(rstd),
                                  P(dy),
                                  P(dx),
                                  (float *)P(dw),
                                  P(work)};
        return a;
    };
    auto squares = [&](bool dev) { return fill(dev, &sum); };
    auto dots = [&](bool dev) { return fill(dev, &dot); };
    run_both<mf_kernel_norm_split>(squares, mf_kernel_norm_split_square,
                                   mf_kernel_norm_split_square_cuda);
    compare("sum", &sum, F32, 1e-6);
    run_both<mf_kernel_norm_split>(squares, mf_kernel_norm_split_forward,
                                   mf_kernel_norm_split_forward_cuda);
    compare("y", &y, d, bound_of(d));
    compare("rstd", &rstd, F32, 1e-6);
    run_both<mf_kernel_norm_split>(dots, mf_kernel_norm_split_dot, mf_kernel_norm_split_dot_cuda);
    compare("dot", &dot, F32, 5e-6);
    run_both<mf_kernel_norm_split>(dots, mf_kernel_norm_split_backward,
                                   mf_kernel_norm_split_backward_cuda);
    compare("dx", &dx, d, bound_of(d));
    compare("dweight", &dw, F32, 1e-5);
    free_all();
}

static void test_rope(mf_kernel_dtype d, int64_t rows, int64_t heads, int64_t rot, int64_t dim,
                      bool interleaved) {
    CASE("rope", "%s rows %lld heads %lld rot %lld of %lld %s", name_of(d), (long long)rows,
         (long long)heads, (long long)rot, (long long)dim, interleaved ? "pairs" : "halves");
    both x = random_values(rows * heads * dim, d, -1, 1), pos = random_ints(rows, 0, 99);
    both c = poison(100 * rot / 2, F32), s = poison(100 * rot / 2, F32);
    plain_rope_table(10000.0, rot, 100, (float *)c.host, (float *)s.host);
    upload(&c), upload(&s);
    for (int inverse = 0; inverse < 2; inverse++) {
        run_both<mf_kernel_rope>(
            [&](bool dev) {
                mf_kernel_rope a = {d,
                                    rows,
                                    heads,
                                    rot,
                                    heads * dim,
                                    dim,
                                    interleaved,
                                    inverse != 0,
                                    (int32_t *)P(pos),
                                    (float *)P(c),
                                    (float *)P(s),
                                    P(x)};
                return a;
            },
            mf_kernel_rope_apply, mf_kernel_rope_apply_cuda);
        compare("x", &x, d, bound_of(d));
    }
    free_all();
}

static void test_attention_merge(mf_kernel_dtype d, mf_kernel_dtype d2, int64_t rows, int64_t heads,
                                 int64_t width) {
    CASE("attention_merge", "%s with %s rows %lld heads %lld width %lld", name_of(d), name_of(d2),
         (long long)rows, (long long)heads, (long long)width);
    int64_t n = rows * heads * width;
    both o = random_values(n, d, -1, 1), o2 = random_values(n, d2, -1, 1);
    both lse = random_values(rows * heads, F32, -6, 6),
         lse2 = random_values(rows * heads, F32, -6, 6);
    for (int64_t i = 0; i < rows * heads; i++) { /* rows that saw no key on one side, or on both */
        float none = -INFINITY;
        if (i % 7 == 0 || i % 7 == 2) {
            ((float *)lse.host)[i] = none;
        }
        if (i % 7 == 1 || i % 7 == 2) {
            ((float *)lse2.host)[i] = none;
        }
    }
    upload(&lse), upload(&lse2);
    run_both<mf_kernel_attention_merge>(
        [&](bool dev) {
            mf_kernel_attention_merge a = {
                rows, heads,           width, heads * width, width,           d,
                P(o), (float *)P(lse), d2,    P(o2),         (float *)P(lse2)};
            return a;
        },
        mf_kernel_attention_merge_run, mf_kernel_attention_merge_run_cuda);
    compare("o", &o, d, bound_of(d));
    for (int64_t i = 0; i < rows * heads;
         i++) { /* -inf on both sides is right; compare() takes no inf */
        float *x = &((float *)lse.host)[i], got;
        must(cudaMemcpy(&got, (float *)lse.device + i, 4, cudaMemcpyDeviceToHost), "download");
        if (std::isinf(*x) && got == *x) {
            *x = got = 0.0f;
            must(cudaMemcpy((float *)lse.device + i, &got, 4, cudaMemcpyHostToDevice), "upload");
        }
    }
    compare("lse", &lse, F32, 1e-6);
    free_all();
}

/* Random offsets of `groups` groups over at most `rows` rows, some empty. */
static both random_offsets(int64_t groups, int64_t rows) {
    both b = make((size_t)(groups + 1) * 4, 0);
    int32_t *o = (int32_t *)b.host;
    for (int64_t g = 0; g < groups; g++) {
        int64_t most = rows * (g + 1) / groups;
        o[g + 1] = whole(0, 3) == 0 ? o[g] : (int32_t)whole(o[g], most);
    }
    upload(&b);
    return b;
}

static void test_swiglu(mf_kernel_dtype d, int64_t rows, int64_t cols, int64_t groups, bool clamped,
                        bool with_bias, bool with_prob, bool prob_in = false) {
    CASE("swiglu", "%s rows %lld cols %lld groups %lld clamped %d bias %d prob %d in %d",
         name_of(d), (long long)rows, (long long)cols, (long long)groups, clamped, with_bias,
         with_prob, prob_in);
    both gu = random_values(rows * 2 * cols, d, -4, 4), dy = random_values(rows * cols, d, -1, 1);
    both prob = random_values(rows, F32, 0.1, 1), bias = random_values(groups * 2 * cols, d, -1, 1);
    both off = random_offsets(groups, rows), y = poison(rows * cols, d), dp = poison(rows, F32);
    auto shape = [&](bool dev) {
        int32_t *o = (int32_t *)P(off);
        mf_kernel_swiglu_shape s = {d,
                                    clamped ? MF_SWIGLU_CLAMPED : MF_SWIGLU_SILU,
                                    1.702f,
                                    2.001f,
                                    rows,
                                    cols,
                                    with_bias ? o + groups : nullptr,
                                    with_prob ? (float *)P(prob) : nullptr,
                                    with_bias ? P(bias) : nullptr,
                                    o,
                                    groups,
                                    prob_in};
        return s;
    };
    run_both<mf_kernel_swiglu>(
        [&](bool dev) {
            mf_kernel_swiglu a = {shape(dev), P(gu), P(y)};
            return a;
        },
        mf_kernel_swiglu_forward, mf_kernel_swiglu_forward_cuda);
    compare("y", &y, d, bound_of(d));
    run_both<mf_kernel_swiglu_grad>(
        [&](bool dev) {
            mf_kernel_swiglu_grad a = {shape(dev), P(gu), P(dy), P(gu),
                                       with_prob ? (float *)P(dp) : nullptr};
            return a;
        },
        mf_kernel_swiglu_backward, mf_kernel_swiglu_backward_cuda);
    compare("dgate_up", &gu, d, bound_of(d));
    compare("dprob", &dp, F32, 1e-5);
    free_all();
}

static void test_bias(mf_kernel_dtype d, int64_t rows, int64_t cols, int64_t groups) {
    CASE("bias", "%s rows %lld cols %lld groups %lld", name_of(d), (long long)rows, (long long)cols,
         (long long)groups);
    both x = random_values(rows * cols, d, -1, 1), bias = random_values(groups * cols, d, -1, 1);
    both scale = random_values(rows, F32, -1, 1), off = random_offsets(groups, rows);
    both dy = random_values(rows * cols, d, -1, 1), db = random_values(groups * cols, F32, -1, 1);
    both ds = random_values(rows, F32, -1, 1);
    both work = make(mf_kernel_bias_workspace_B(groups, cols), 0xff);
    auto last = [&](bool dev) { return (int32_t *)P(off) + groups; };
    run_both<mf_kernel_bias>(
        [&](bool dev) {
            mf_kernel_bias a = {d,
                                rows,
                                cols,
                                cols,
                                groups > 1 ? last(dev) : nullptr,
                                groups,
                                groups > 1 ? (int32_t *)P(off) : nullptr,
                                (float *)P(scale),
                                P(bias),
                                P(x)};
            return a;
        },
        mf_kernel_bias_add, mf_kernel_bias_add_cuda);
    compare("x", &x, d, bound_of(d));
    run_both<mf_kernel_bias_grad>(
        [&](bool dev) {
            mf_kernel_bias_grad a = {d,
                                     rows,
                                     cols,
                                     cols,
                                     groups > 1 ? last(dev) : nullptr,
                                     groups,
                                     groups > 1 ? (int32_t *)P(off) : nullptr,
                                     (float *)P(scale),
                                     P(bias),
                                     P(dy),
                                     (float *)P(db),
                                     (float *)P(ds),
                                     P(work)};
            return a;
        },
        mf_kernel_bias_backward, mf_kernel_bias_backward_cuda);
    compare("dbias", &db, F32, 5e-6);
    compare("dscale", &ds, F32, 5e-6);
    free_all();
}

static void test_gate(mf_kernel_dtype d, int64_t rows, int64_t cols) {
    CASE("gate", "%s rows %lld cols %lld", name_of(d), (long long)rows, (long long)cols);
    both x = random_values(rows * cols, d, -1, 1), gate = random_values(rows, F32, -3, 3);
    both add = random_values(rows * cols, d, -1, 1), y = poison(rows * cols, d);
    both dy = random_values(rows * cols, d, -1, 1), dg = poison(rows, F32);
    run_both<mf_kernel_gate>(
        [&](bool dev) {
            mf_kernel_gate a = {d, rows, cols, (float *)P(gate), P(x), P(add), P(y)};
            return a;
        },
        mf_kernel_gate_forward, mf_kernel_gate_forward_cuda);
    compare("y", &y, d, bound_of(d));
    run_both<mf_kernel_gate_grad>(
        [&](bool dev) {
            mf_kernel_gate_grad a = {d,    rows,  cols,  (float *)P(gate),
                                     P(x), P(dy), P(dy), (float *)P(dg)};
            return a;
        },
        mf_kernel_gate_backward, mf_kernel_gate_backward_cuda);
    compare("dx", &dy, d, bound_of(d));
    compare("dgate", &dg, F32, 1e-5);
    free_all();
}
static void test_output_gate(mf_kernel_dtype d, int64_t rows, int64_t heads, int64_t width) {
    CASE("output_gate", "%s rows %lld gates %lld of %lld columns", name_of(d), (long long)rows,
         (long long)heads, (long long)width);
    const int64_t cols = heads * width;
    both x = random_values(rows * cols, d, -1, 1), gate = random_values(rows * heads, d, -3, 3);
    both dy = random_values(rows * cols, d, -1, 1), y = poison(rows * cols, d);
    both dx = poison(rows * cols, d), dg = poison(rows * heads, d);
    run_both<mf_kernel_output_gate>(
        [&](bool dev) {
            mf_kernel_output_gate a = {d, rows, cols, width, P(gate), P(x), P(y)};
            return a;
        },
        mf_kernel_output_gate_forward, mf_kernel_output_gate_forward_cuda);
    compare("y", &y, d, bound_of(d));
    run_both<mf_kernel_output_gate_grad>(
        [&](bool dev) {
            mf_kernel_output_gate_grad a = {d,    rows,  cols,  width, P(gate),
                                            P(x), P(dy), P(dx), P(dg)};
            return a;
        },
        mf_kernel_output_gate_backward, mf_kernel_output_gate_backward_cuda);
    compare("dx", &dx, d, bound_of(d));
    compare("dgate", &dg, d, bound_of(d));
    free_all();
}
static void all_norms(void) {
    for (mf_kernel_dtype d : types) {
        test_rmsnorm(d, 37, 1, 7168, 0);
        test_rmsnorm(d, 300, 1, 2048, 8);
        test_rmsnorm(d, 65, 1, 4096, 0);
        test_rmsnorm(d, 1, 1, 8192, 0);
        test_rmsnorm(d, 3, 1, 6144, 0);
        test_rmsnorm(d, 1001, 8, 128, 16);
        test_rmsnorm(d, 333, 5, 64, 0);
        test_rmsnorm(d, 200, 1, 512, 64);
        test_rmsnorm(d, 17, 3, 37, 1);
        test_rmsnorm(d, 9, 1, 1531, 0);
        test_rmsnorm(d, 2000, 1, 32, 0);
        test_layernorm(d, 1000, 4096);
        test_layernorm(d, 37, 2048);
        test_layernorm(d, 3, 8192);
        test_layernorm(d, 5, 16384);
        test_layernorm(d, 1, 264);
        test_layernorm(d, 2000, 64);
        test_layernorm(d, 700, 1531);
        test_layernorm(d, 9, 37);
        test_norm_split(d, 1000, 512, 0);
        test_norm_split(d, 37, 2048, 64);
        test_norm_split(d, 5000, 4096, 0);
        test_norm_split(d, 3, 136, 8);
        test_norm_split(d, 211, 71, 3);
        test_rope(d, 77, 40, 128, 128, false);
        test_rope(d, 77, 5, 64, 192, true);
        test_rope(d, 31, 3, 32, 64, false);
        test_rope(d, 31, 3, 6, 10, false);
        test_rope(d, 31, 3, 6, 10, true);
        for (mf_kernel_dtype d2 : types) {
            test_attention_merge(d, d2, 61, 6, 128);
            test_attention_merge(d, d2, 130, 3, 64);
            test_attention_merge(d, d2, 17, 2, 37);
        }
    }
}

static void all_activations(void) {
    for (mf_kernel_dtype d : types) {
        for (int i = 0; i < 8; i++) {
            test_swiglu(d, 100, 1408, 8, i & 1, i & 2, i & 4);
            test_swiglu(d, 57, 33, 3, i & 1, i & 2, i & 4);
        }
        test_swiglu(d, 20, 16384, 2, false, false, true);
        test_swiglu(d, 100, 1408, 8, false, false, true, true);
        test_swiglu(d, 57, 33, 3, false, false, true, true);
        test_swiglu(d, 3, 8192, 1, false, false, true, true);
        test_bias(d, 500, 640, 1);
        test_bias(d, 500, 648, 7);
        test_bias(d, 77, 35, 5);
        test_gate(d, 100, 2048);
        test_gate(d, 33, 71);
        test_output_gate(d, 100, 32, 1);
        test_output_gate(d, 33, 71, 1);
        test_output_gate(d, 100, 16, 128);
        test_output_gate(d, 33, 3, 71);
    }
}

int main(void) {
    begin_tests();
    all_norms();
    all_activations();
    return end_tests();
}
