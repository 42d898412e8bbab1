/* Every CUDA kernel against its C reference: fresh random inputs, poisoned outputs, aligned and odd
 * sizes, guards behind every buffer. MF_SEED=n repeats a run. */
#include "tests/gpu/gpu_test.cuh"

#include "kernels/adamw.h"
#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gate.h"
#include "kernels/grad_norm.h"
#include "kernels/mla.h"
#include "kernels/permute.h"
#include "kernels/quantise.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"

static const mf_kernel_dtype F32 = MF_KERNEL_F32;
static const mf_kernel_dtype types[] = {MF_KERNEL_F32, MF_KERNEL_BF16};

static void test_rmsnorm(mf_kernel_dtype d, int64_t rows, int64_t groups, int64_t cols,
                         int64_t pad) {
    int64_t xs = groups * cols + pad, ys = groups * cols;
    for (int add = 0; add < 2; add++) {
        CASE("rmsnorm", "%s rows %lld groups %lld cols %lld pad %lld add %d", name_of(d),
             (long long)rows, (long long)groups, (long long)cols, (long long)pad, add);
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
                                       P(w),
                                       P(y),
                                       (float *)P(rstd)};
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
                                            P(w),
                                            (float *)P(rstd),
                                            P(dy),
                                            add ? P(dx) : nullptr,
                                            P(dx),
                                            (float *)P(dw),
                                            P(work)};
                return a;
            },
            mf_kernel_rmsnorm_backward, mf_kernel_rmsnorm_backward_cuda);
        compare("dx", &dx, d, bound_of(d));
        compare("dweight", &dw, F32, 1e-5);
        free_all();
    }
}

static void test_rope(mf_kernel_dtype d, int64_t rows, int64_t heads, int64_t rot, int64_t dim,
                      bool interleaved) {
    CASE("rope", "%s rows %lld heads %lld rot %lld of %lld %s", name_of(d), (long long)rows,
         (long long)heads, (long long)rot, (long long)dim, interleaved ? "pairs" : "halves");
    both x = random_values(rows * heads * dim, d, -1, 1), pos = random_ints(rows, 0, 99);
    both c = poison(100 * rot / 2, F32), s = poison(100 * rot / 2, F32);
    mf_kernel_rope_table(10000.0, rot, 100, (float *)c.host, (float *)s.host);
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
                        bool with_bias, bool with_prob) {
    CASE("swiglu", "%s rows %lld cols %lld groups %lld clamped %d bias %d prob %d", name_of(d),
         (long long)rows, (long long)cols, (long long)groups, clamped, with_bias, with_prob);
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
                                    groups};
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

typedef struct routing {
    mf_route_score score;
    bool normalise, bias;
    int64_t experts, top_k, groups, group_topk;
    mf_route_group group;
} routing;

/* The wrappers give the launchers without a struct one. */
typedef struct z_sum_args {
    int64_t rows;
    const float *lse;
    float *sum;
} z_sum_args;
static mf_status z_sum(const z_sum_args *a, mf_err *e) {
    return mf_kernel_router_z_sum(a->rows, a->lse, a->sum, e);
}
static mf_status z_sum_cuda(const z_sum_args *a, void *s, mf_err *e) {
    return mf_kernel_router_z_sum_cuda(a->rows, a->lse, a->sum, s, e);
}
typedef struct bias_update_args {
    int64_t experts;
    const float *count;
    float *bias;
} bias_update_args;
static mf_status bias_update(const bias_update_args *a, mf_err *e) {
    return mf_kernel_router_bias_update(a->experts, 0.25f, a->count, a->bias, e);
}
static mf_status bias_update_cuda(const bias_update_args *a, void *s, mf_err *e) {
    return mf_kernel_router_bias_update_cuda(a->experts, 0.25f, a->count, a->bias, s, e);
}

static void test_router(const routing *t, int64_t rows) {
    int64_t n = t->experts, k = t->top_k, scopes = 3;
    CASE("router", "score %d experts %lld top %lld groups %lld rows %lld", (int)t->score,
         (long long)n, (long long)k, (long long)t->groups, (long long)rows);
    both logits = random_values(rows * n, F32, -3, 3), bias = random_values(n, F32, -0.1, 0.1);
    both scores = poison(rows * n, F32), prob = poison(rows * k, F32), lse = poison(rows, F32);
    both index = poison(rows * k, F32), scope = random_ints(rows, 0, scopes - 1);
    both dprob = random_values(rows * k, F32, -1, 1), dlogits = poison(rows * n, F32);
    both count = make((size_t)(scopes * n) * 4, 0), sum = make((size_t)(scopes * n) * 4, 0);
    both weight = poison(scopes * n, F32), aux = make(4, 0), z = make(4, 0);
    both work = make(mf_kernel_router_workspace_B(scopes, n), 0xff);
    run_both<mf_kernel_router>(
        [&](bool dev) {
            mf_kernel_router a = {rows,
                                  n,
                                  k,
                                  t->score,
                                  t->normalise,
                                  2.5f,
                                  t->groups,
                                  t->group_topk,
                                  t->group,
                                  (float *)P(logits),
                                  t->bias ? (float *)P(bias) : nullptr,
                                  (float *)P(scores),
                                  (float *)P(prob),
                                  (int32_t *)P(index),
                                  (float *)P(lse)};
            return a;
        },
        mf_kernel_router_forward, mf_kernel_router_forward_cuda);
    compare("scores", &scores, F32, 1e-6);
    compare("lse", &lse, F32, 1e-6);
    /* Where two choices differ by a rounding, the sides may pick differently: at most one row in
     * 2000. The rest of the test continues from the reference's picks on both sides. */
    compare_bits("index", &index, (double)(rows / 2000 + 2) * 8);
    upload(&index), upload(&scores);
    run_both<mf_kernel_router_stats>(
        [&](bool dev) {
            mf_kernel_router_stats a = {rows,
                                        n,
                                        k,
                                        t->score,
                                        scopes,
                                        (int32_t *)P(scope),
                                        (float *)P(scores),
                                        (int32_t *)P(index),
                                        (float *)P(count),
                                        (float *)P(sum),
                                        P(work)};
            return a;
        },
        mf_kernel_router_stats_add, mf_kernel_router_stats_add_cuda);
    compare("count", &count, F32, 0.0);
    compare("prob_sum", &sum, F32, 5e-6);
    run_both<mf_kernel_router_aux>(
        [&](bool dev) {
            mf_kernel_router_aux a = {n,
                                      k,
                                      scopes,
                                      rows / 3.0,
                                      0.1f,
                                      (float *)P(count),
                                      (float *)P(sum),
                                      (float *)P(aux),
                                      (float *)P(weight)};
            return a;
        },
        mf_kernel_router_aux_loss, mf_kernel_router_aux_loss_cuda);
    compare("aux", &aux, F32, 5e-6);
    compare("weight", &weight, F32, 1e-6);
    run_both<mf_kernel_router_grad>(
        [&](bool dev) {
            mf_kernel_router_grad a = {rows,
                                       n,
                                       k,
                                       t->score,
                                       t->normalise,
                                       2.5f,
                                       (float *)P(scores),
                                       (int32_t *)P(index),
                                       (float *)P(dprob),
                                       (float *)P(weight),
                                       (int32_t *)P(scope),
                                       (float *)P(logits),
                                       (float *)P(lse),
                                       0.01f,
                                       (float *)P(dlogits)};
            return a;
        },
        mf_kernel_router_backward, mf_kernel_router_backward_cuda);
    compare("dlogits", &dlogits, F32, 5e-6);
    upload(&prob);
    both kept = poison(rows * k, F32), prob_kept = poison(rows * k, F32);
    run_both<mf_kernel_router_drop>(
        [&](bool dev) {
            mf_kernel_router_drop a = {rows,
                                       n,
                                       k,
                                       rows * k / n / 4 + 1,
                                       scopes,
                                       (int32_t *)P(scope),
                                       (float *)P(prob),
                                       (int32_t *)P(index),
                                       (float *)P(prob_kept),
                                       (int32_t *)P(kept)};
            return a;
        },
        mf_kernel_router_capacity, mf_kernel_router_capacity_cuda);
    compare_bits("kept", &kept, 0);
    compare_bits("prob_kept", &prob_kept, 0);
    run_both<z_sum_args>(
        [&](bool dev) {
            z_sum_args a = {rows, (float *)P(lse), (float *)P(z)};
            return a;
        },
        z_sum, z_sum_cuda);
    compare("z", &z, F32, 1e-6);
    run_both<bias_update_args>(
        [&](bool dev) {
            bias_update_args a = {n, (float *)P(count), (float *)P(bias)};
            return a;
        },
        bias_update, bias_update_cuda);
    compare("bias", &bias, F32, 0.0);
    free_all();
}

static void test_permute(mf_kernel_dtype d, int64_t tokens, int64_t k, int64_t experts,
                         int64_t cols, int64_t align, bool tight) {
    int64_t slots = tokens * k, least = tight ? 0 : 3 * align;
    int64_t most = tight ? slots / 2 : slots + experts * (align + least);
    CASE("permute", "%s tokens %lld top %lld experts %lld cols %lld align %lld tight %d",
         name_of(d), (long long)tokens, (long long)k, (long long)experts, (long long)cols,
         (long long)align, tight);
    both index = random_ints(slots, -1, experts - 1);
    both counts = poison(experts, F32), off = poison(experts + 1, F32), over = poison(1, F32);
    both row = poison(slots, F32), slot = poison(most, F32);
    both work = make(mf_kernel_permute_workspace_B(slots, experts), 0xff);
    run_both<mf_kernel_permute_map>(
        [&](bool dev) {
            mf_kernel_permute_map a = {tokens,
                                       k,
                                       experts,
                                       align,
                                       most,
                                       (int32_t *)P(index),
                                       (int32_t *)P(counts),
                                       (int32_t *)P(off),
                                       (int32_t *)P(row),
                                       (int32_t *)P(slot),
                                       (int32_t *)P(over),
                                       P(work),
                                       least};
            return a;
        },
        mf_kernel_permute_map_build, mf_kernel_permute_map_build_cuda);
    compare_bits("counts", &counts, 0);
    compare_bits("offsets", &off, 0);
    compare_bits("row_of_slot", &row, 0);
    compare_bits("slot_of_row", &slot, 0);
    compare_bits("overflow", &over, 0);
    both x = random_values(tokens * cols, d, -1, 1), w = random_values(slots, F32, -1, 1);
    both y = poison(tokens * cols, d), dw = poison(slots, F32);
    both in = random_values(most * cols, d, -1, 1);
    for (int mode = 0; mode < 4; mode++) {
        both out = poison(most * cols, d);
        run_both<mf_kernel_permute>(
            [&](bool dev) {
                mf_kernel_permute a = {d,
                                       most,
                                       cols,
                                       k,
                                       (int32_t *)P(off) + experts,
                                       (int32_t *)P(slot),
                                       mode & 1 ? (int32_t *)P(row) : nullptr,
                                       tokens,
                                       mode & 2 ? (float *)P(w) : nullptr,
                                       P(x),
                                       P(out)};
                return a;
            },
            mf_kernel_permute_forward, mf_kernel_permute_forward_cuda);
        compare("out", &out, d, mode & 2 ? bound_of(d) : 0.0);
    }
    run_both<mf_kernel_unpermute>(
        [&](bool dev) {
            mf_kernel_unpermute a = {d,     tokens, cols, k, (int32_t *)P(row), (float *)P(w),
                                     P(in), P(x),   P(y)};
            return a;
        },
        mf_kernel_unpermute_forward, mf_kernel_unpermute_forward_cuda);
    compare("y", &y, d, bound_of(d));
    run_both<mf_kernel_unpermute_dweight>(
        [&](bool dev) {
            mf_kernel_unpermute_dweight a = {d,    tokens, cols,          k, (int32_t *)P(row),
                                             P(x), P(in),  (float *)P(dw)};
            return a;
        },
        mf_kernel_unpermute_weight_grad, mf_kernel_unpermute_weight_grad_cuda);
    compare("dweight", &dw, F32, 1e-5);
    both sc = poison(most, F32);
    run_both<mf_kernel_permute_scalar>(
        [&](bool dev) {
            mf_kernel_permute_scalar a = {most, (int32_t *)P(off) + experts, (int32_t *)P(slot),
                                          (float *)P(w), (float *)P(sc)};
            return a;
        },
        mf_kernel_permute_scalars, mf_kernel_permute_scalars_cuda);
    compare("scalars", &sc, F32, 0.0);
    free_all();
}

static void test_regroup(int64_t sources, int64_t experts, int64_t each, int64_t most) {
    CASE("regroup", "sources %lld experts %lld most %lld", (long long)sources, (long long)experts,
         (long long)most);
    both counts = random_ints(sources * experts, 0, each), off = poison(experts + 1, F32);
    both from = poison(most, F32), to = poison(most, F32), over = poison(1, F32);
    run_both<mf_kernel_regroup>(
        [&](bool dev) {
            mf_kernel_regroup a = {sources,
                                   experts,
                                   most,
                                   (int32_t *)P(counts),
                                   (int32_t *)P(off),
                                   (int32_t *)P(from),
                                   (int32_t *)P(to),
                                   (int32_t *)P(over)};
            return a;
        },
        mf_kernel_permute_regroup, mf_kernel_permute_regroup_cuda);
    compare_bits("offsets", &off, 0);
    compare_bits("from", &from, 0);
    compare_bits("to", &to, 0);
    compare_bits("overflow", &over, 0);
    free_all();
}

/* hot: most tokens are the same few, so that runs cross many pieces. */
static void test_embedding(mf_kernel_dtype d, int64_t tokens, int64_t cols, int64_t vocab,
                           bool hot) {
    CASE("embedding", "%s tokens %lld cols %lld vocab %lld hot %d", name_of(d), (long long)tokens,
         (long long)cols, (long long)vocab, hot);
    int64_t begin = vocab / 3;
    both token = random_ints(tokens, 0, vocab * 2);
    for (int64_t t = 0; hot && t < tokens; t++) {
        if (whole(0, 9) > 1) {
            ((int32_t *)token.host)[t] = (int32_t)(begin + whole(0, 2));
        }
    }
    upload(&token);
    both table = random_values(vocab * cols, d, -1, 1), y = poison(tokens * cols, d);
    both dy = random_values(tokens * cols, d, -1, 1);
    both grad = random_values(vocab * cols, F32, -1, 1);
    both work = make(mf_kernel_embedding_workspace_B(tokens, vocab, cols), 0xff);
    run_both<mf_kernel_embedding>(
        [&](bool dev) {
            mf_kernel_embedding a = {d,        tokens, cols, begin, vocab, (int32_t *)P(token),
                                     P(table), P(y)};
            return a;
        },
        mf_kernel_embedding_forward, mf_kernel_embedding_forward_cuda);
    compare("y", &y, d, 0.0);
    run_both<mf_kernel_embedding_grad>(
        [&](bool dev) {
            mf_kernel_embedding_grad a = {
                d,     tokens,           cols,   begin, vocab, (int32_t *)P(token),
                P(dy), (float *)P(grad), P(work)};
            return a;
        },
        mf_kernel_embedding_backward, mf_kernel_embedding_backward_cuda);
    compare("dtable", &grad, F32, 3e-6);
    free_all();
}

static void test_cross_entropy(mf_kernel_dtype d, int64_t rows, int64_t part, int64_t ranks,
                               int64_t vocab, int64_t pad) {
    int64_t stride = part * ranks + pad;
    CASE("cross_entropy", "%s rows %lld part %lld ranks %lld vocab %lld stride %lld", name_of(d),
         (long long)rows, (long long)part, (long long)ranks, (long long)vocab, (long long)stride);
    both logits = random_values(rows * stride, d, -8, 8), target = random_ints(rows, -1, vocab - 1);
    both stats = poison(ranks * 3 * rows, F32), lse = poison(rows, F32), loss = poison(rows, F32);
    both sum = random_values(1, F32, 0, 1);
    for (int64_t p = 0; p < ranks; p++) {
        run_both<mf_kernel_ce_stats>(
            [&](bool dev) {
                mf_kernel_ce_stats a = {d,
                                        rows,
                                        part,
                                        stride,
                                        p * part,
                                        vocab,
                                        mf_kernel_row(P(logits), d, p, part),
                                        (int32_t *)P(target),
                                        (float *)P(stats) + p * 3 * rows};
                return a;
            },
            mf_kernel_cross_entropy_stats, mf_kernel_cross_entropy_stats_cuda);
    }
    compare("stats", &stats, F32, 5e-6);
    run_both<mf_kernel_ce_combine>(
        [&](bool dev) {
            mf_kernel_ce_combine a = {rows,
                                      ranks,
                                      (float *)P(stats),
                                      (int32_t *)P(target),
                                      (float *)P(lse),
                                      (float *)P(loss),
                                      (float *)P(sum)};
            return a;
        },
        mf_kernel_cross_entropy_combine, mf_kernel_cross_entropy_combine_cuda);
    compare("lse", &lse, F32, 2e-6);
    compare("loss", &loss, F32, 2e-6);
    compare("loss_sum", &sum, F32, 2e-6);
    for (int64_t p = 0; p < ranks; p++) {
        run_both<mf_kernel_ce_grad>(
            [&](bool dev) {
                mf_kernel_ce_grad a = {d,
                                       rows,
                                       part,
                                       stride,
                                       p * part,
                                       vocab,
                                       (int32_t *)P(target),
                                       (float *)P(lse),
                                       0.25f,
                                       mf_kernel_row_mut(P(logits), d, p, part)};
                return a;
            },
            mf_kernel_cross_entropy_backward, mf_kernel_cross_entropy_backward_cuda);
    }
    compare("dlogits", &logits, d, d == F32 ? 5e-6 : bound_of(d));
    free_all();
}

static void test_optimizer(mf_kernel_dtype moments) {
    const int64_t counts[] = {5, 40000, 1, 100003, 32768, 4096};
    enum { N = 6 };
    CASE("adamw", "moments %s", name_of(moments));
    both master[N], grad[N], m[N], v[N], param[N];
    mf_kernel_adamw_tensor host[N], dev_copy[N];
    mf_kernel_grad_tensor gh[N], gd[N];
    for (int i = 0; i < N; i++) {
        master[i] = random_values(counts[i], F32, -1, 1);
        grad[i] = random_values(counts[i], F32, -1, 1);
        m[i] = random_values(counts[i], moments, -1, 1);
        v[i] = random_values(counts[i], moments, 0, 1);
        param[i] = poison(counts[i], MF_KERNEL_BF16);
        bool half = i != 2;
        mf_kernel_adamw_tensor h = {(float *)master[i].host,
                                    half ? (uint16_t *)param[i].host : nullptr,
                                    (float *)grad[i].host,
                                    m[i].host,
                                    v[i].host,
                                    counts[i],
                                    i % 2 ? 0.1f : 0.0f};
        host[i] = dev_copy[i] = h;
        dev_copy[i].master = (float *)master[i].device;
        dev_copy[i].param = half ? (uint16_t *)param[i].device : nullptr;
        dev_copy[i].grad = (float *)grad[i].device;
        dev_copy[i].m = m[i].device;
        dev_copy[i].v = v[i].device;
        gh[i].grad = (float *)grad[i].host, gd[i].grad = (float *)grad[i].device;
        gh[i].count = gd[i].count = counts[i];
    }
    int64_t chunks = mf_kernel_chunks(counts, N, nullptr);
    both chunk = make((size_t)chunks * sizeof(mf_kernel_chunk), 0);
    mf_kernel_chunks(counts, N, (mf_kernel_chunk *)chunk.host);
    upload(&chunk);
    both tensors = make(sizeof host, 0), grads = make(sizeof gh, 0), sq = make(8, 0);
    memcpy(tensors.host, dev_copy, sizeof host);
    memcpy(grads.host, gd, sizeof gd);
    upload(&tensors), upload(&grads);
    both work = make((size_t)chunks * 8, 0xff), norm = poison(1, F32), clip = poison(1, F32);
    run_both<mf_kernel_grad_norm>(
        [&](bool dev) {
            mf_kernel_grad_norm a = {N,
                                     chunks,
                                     dev ? (mf_kernel_grad_tensor *)grads.device : gh,
                                     (mf_kernel_chunk *)P(chunk),
                                     (double *)P(sq),
                                     P(work)};
            return a;
        },
        mf_kernel_grad_norm_add, mf_kernel_grad_norm_add_cuda);
    run_both<mf_kernel_grad_clip>(
        [&](bool dev) {
            mf_kernel_grad_clip a = {(double *)P(sq), 1.0f, 0.5f, (float *)P(norm),
                                     (float *)P(clip)};
            return a;
        },
        mf_kernel_grad_clip_factor, mf_kernel_grad_clip_factor_cuda);
    compare("norm", &norm, F32, 1e-6);
    compare("clip", &clip, F32, 1e-6);
    run_both<mf_kernel_adamw>(
        [&](bool dev) {
            mf_kernel_adamw a = {moments,
                                 1e-2f,
                                 0.9f,
                                 0.95f,
                                 1e-8f,
                                 0.5f,
                                 3,
                                 (float *)P(clip),
                                 N,
                                 chunks,
                                 dev ? (mf_kernel_adamw_tensor *)tensors.device : host,
                                 (mf_kernel_chunk *)P(chunk)};
            return a;
        },
        mf_kernel_adamw_update, mf_kernel_adamw_update_cuda);
    for (int i = 0; i < N; i++) {
        compare("master", &master[i], F32, 1e-6);
        compare("m", &m[i], moments, bound_of(moments));
        compare("v", &v[i], moments, bound_of(moments));
        compare("param", &param[i], MF_KERNEL_BF16, 1.5e-3);
    }
    free_all();
}

static void test_cast(int64_t n) {
    for (int c = 0; c < 8; c++) {
        mf_kernel_dtype s = types[c & 1], d = types[c >> 1 & 1];
        bool add = c & 4;
        CASE("cast", "%s to %s n %lld add %d", name_of(s), name_of(d), (long long)n, add);
        both src = random_values(n, s, -1, 1), dst = random_values(n, d, -1, 1);
        run_both<mf_kernel_cast>(
            [&](bool dev) {
                mf_kernel_cast a = {s, d, n, 0.75f, add, P(src), P(dst)};
                return a;
            },
            mf_kernel_cast_values, mf_kernel_cast_values_cuda);
        compare("dst", &dst, d, bound_of(d));
        free_all();
    }
    for (mf_kernel_dtype d : types) {
        CASE("add", "%s n %lld", name_of(d), (long long)n);
        both a = random_values(n, d, -1, 1), b = random_values(n, d, -1, 1);
        run_both<mf_kernel_add>(
            [&](bool dev) {
                mf_kernel_add x = {d, n, P(a), P(b), P(a)};
                return x;
            },
            mf_kernel_add_values, mf_kernel_add_values_cuda);
        compare("y", &a, d, 0.0);
        free_all();
        int64_t cols = n % 7 ? 40 : 33, rows = 50;
        both src = random_values(rows * (cols + 8), d, -1, 1), dst = poison(rows * (cols + 16), d);
        for (int add = 0; add < 2; add++) {
            run_both<mf_kernel_copy_rows>(
                [&](bool dev) {
                    mf_kernel_copy_rows x = {d,         rows,     cols,   cols + 8,
                                             cols + 16, add != 0, P(src), P(dst)};
                    return x;
                },
                mf_kernel_copy_rows_strided, mf_kernel_copy_rows_strided_cuda);
            compare("rows", &dst, d, 0.0);
        }
        free_all();
    }
}

static void test_mla(mf_kernel_dtype d, int64_t rows, int64_t heads, int64_t nope, int64_t rope,
                     int64_t v_dim, int64_t stride) {
    CASE("mla", "%s rows %lld heads %lld nope %lld rope %lld v %lld", name_of(d), (long long)rows,
         (long long)heads, (long long)nope, (long long)rope, (long long)v_dim);
    both kv = random_values(rows * heads * (nope + v_dim), d, -1, 1);
    both kr = random_values(rows * stride, d, -1, 1), k = poison(rows * heads * (nope + rope), d);
    both v = poison(rows * heads * v_dim, d);
    both dkv = poison(rows * heads * (nope + v_dim), d), dkr = poison(rows * stride, d);
    for (int with_v = 0; with_v < 2; with_v++) {
        run_both<mf_kernel_mla>(
            [&](bool dev) {
                mf_kernel_mla a = {d,
                                   rows,
                                   heads,
                                   nope,
                                   rope,
                                   v_dim,
                                   stride,
                                   P(kv),
                                   P(kr),
                                   P(k),
                                   with_v ? P(v) : nullptr};
                return a;
            },
            mf_kernel_mla_pack, mf_kernel_mla_pack_cuda);
        compare("k", &k, d, 0.0);
        compare("v", &v, d, 0.0);
    }
    run_both<mf_kernel_mla_grad>(
        [&](bool dev) {
            mf_kernel_mla_grad a = {d,      rows, heads, nope,   rope,  v_dim,
                                    stride, P(k), P(v),  P(dkv), P(dkr)};
            return a;
        },
        mf_kernel_mla_unpack_grad, mf_kernel_mla_unpack_grad_cuda);
    compare("dkv", &dkv, d, 0.0);
    compare("dk_rope", &dkr, d, bound_of(d));
    free_all();
}

static void test_quantise(mf_kernel_dtype d, mf_quant_block block, int64_t rows, int64_t cols,
                          bool pow2, bool turned) {
    CASE("quantise", "%s block %d rows %lld cols %lld pow2 %d turned %d", name_of(d), (int)block,
         (long long)rows, (long long)cols, pow2, turned);
    int64_t bi = (rows + 127) / 128, bj = (cols + 127) / 128;
    both x = random_values(rows * cols, d, -1, 1), q = make((size_t)(rows * cols), 0xff);
    both qt = make((size_t)(rows * cols), 0xff), s = poison(rows * bj, F32);
    both st = poison(cols * bi, F32), work = make(mf_kernel_quantise_workspace_B(), 0xff);
    for (int64_t c = 0; c < cols; c++) { /* a row of zeros, and an outlier */
        mf_kernel_put(x.host, d, (rows / 2) * cols + c, 0.0f);
    }
    mf_kernel_put(x.host, d, 0, 100.0f);
    upload(&x);
    run_both<mf_kernel_quantise>(
        [&](bool dev) {
            mf_kernel_quantise a = {d,
                                    block,
                                    pow2,
                                    rows,
                                    cols,
                                    P(x),
                                    (uint8_t *)P(q),
                                    turned ? (uint8_t *)P(qt) : nullptr,
                                    (float *)P(s),
                                    1,
                                    rows,
                                    (float *)P(st),
                                    bi,
                                    1,
                                    P(work)};
            return a;
        },
        mf_kernel_quantise_e4m3, mf_kernel_quantise_e4m3_cuda);
    compare("scale", &s, F32, 1e-7);
    compare_bits("q", &q, 0);
    compare_bits("qt", &qt, 0);
    if (turned && block == MF_QUANT_1X128) {
        compare("scale_t", &st, F32, 1e-7);
    }
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
        test_rope(d, 77, 40, 128, 128, false);
        test_rope(d, 77, 5, 64, 192, true);
        test_rope(d, 31, 3, 32, 64, false);
        test_rope(d, 31, 3, 6, 10, false);
        test_rope(d, 31, 3, 6, 10, true);
    }
}

static void all_activations(void) {
    for (mf_kernel_dtype d : types) {
        for (int i = 0; i < 8; i++) {
            test_swiglu(d, 100, 1408, 8, i & 1, i & 2, i & 4);
            test_swiglu(d, 57, 33, 3, i & 1, i & 2, i & 4);
        }
        test_swiglu(d, 20, 16384, 2, false, false, true);
        test_bias(d, 500, 640, 1);
        test_bias(d, 500, 648, 7);
        test_bias(d, 77, 35, 5);
        test_gate(d, 100, 2048);
        test_gate(d, 33, 71);
    }
}

/* small: for slow checkers */
static void all_routing(bool small) {
    const routing kinds[] = {
        {MF_ROUTE_SOFTMAX, false, false, 8, 2, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SOFTMAX, true, false, 128, 8, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SOFTMAX, false, false, 160, 6, 8, 3, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SOFTMAX, false, false, 60, 4, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_TOPK_SOFTMAX, false, false, 32, 4, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SIGMOID, true, true, 256, 8, 8, 4, MF_ROUTE_GROUP_TOP2},
        {MF_ROUTE_SIGMOID, true, true, 384, 8, 1, 1, MF_ROUTE_GROUP_TOP2},
    };
    for (const routing &k : kinds) {
        test_router(&k, 1);
        test_router(&k, 1000);
    }
    for (mf_kernel_dtype d : types) {
        test_permute(d, 1500, 8, 256, 256, 1, false);
        test_permute(d, 300, 2, 8, 7168, 16, false);
        test_permute(d, 99, 3, 5, 37, 4, false);
        test_permute(d, 200, 4, 16, 64, 1, true);
        test_permute(d, 3000, 1, 512, 16, 1, false);
        test_permute(d, 20000, 2, 100, 8, 1, false);
        test_embedding(d, 5000, 64, 151936, false);
        test_embedding(d, 5003, 72, 1000, true);
        test_embedding(d, 40, 2056, 500, true);
        test_embedding(d, 333, 37, 77, false);
    }
    if (!small) { /* more items than one cluster sorts */
        test_permute(MF_KERNEL_BF16, 140000, 2, 100, 8, 3, false);
        test_embedding(MF_KERNEL_BF16, 270000, 8, 700, true);
    }
    test_regroup(4, 8, 100, 3200);
    test_regroup(64, 4, 9, 1000);
    test_regroup(2, 2, 5, 7);
}

static void all_losses(void) {
    for (mf_kernel_dtype d : types) {
        test_cross_entropy(d, 20, 32000, 1, 32000, 0);
        test_cross_entropy(d, 9, 19072, 2, 38100, 0);
        test_cross_entropy(d, 33, 64, 4, 250, 8);
        test_cross_entropy(d, 33, 37, 3, 105, 1);
        test_optimizer(d);
    }
    test_cast(100000);
    test_cast(777);
    for (mf_kernel_dtype d : types) {
        test_mla(d, 40, 16, 128, 64, 128, 576);
        test_mla(d, 33, 3, 16, 8, 16, 24);
        test_mla(d, 7, 3, 5, 3, 6, 4);
        for (int i = 0; i < 4; i++) {
            const mf_quant_block blocks[] = {MF_QUANT_TENSOR, MF_QUANT_1X128, MF_QUANT_128X128};
            for (mf_quant_block b : blocks) {
                test_quantise(d, b, 512, 384, i & 1, i & 2);
                test_quantise(d, b, 130, 200, i & 1, i & 2);
                test_quantise(d, b, 77, 131, i & 1, i & 2);
                test_quantise(d, b, 272, 136, i & 1, i & 2);
            }
        }
    }
}

int main(int argc, char **argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("MF_SKIPPED 1 no GPU: CUDA kernels were compiled, not run\n");
        return 0;
    }
    const char *text = getenv("MF_SEED");
    unsigned long long seed =
        text ? strtoull(text, nullptr, 10) : (unsigned long long)time(nullptr);
    printf("seed %llu\n", seed);
    T.state = seed * 0x9e3779b97f4a7c15ull + 1;
    all_norms();
    all_activations();
    all_routing(argc > 1 && strcmp(argv[1], "--small") == 0);
    all_losses();
    printf("%d passed, %d failed\n", T.passed, T.failed);
    return T.failed != 0;
}
