/* CUDA kernels of routing, permutation and embedding against their C references: fresh random
 * inputs, poisoned outputs, aligned and odd sizes, guards behind every buffer. MF_SEED=n repeats a
 * run. */
#include "tests/gpu/gpu_test.cuh"

#include "kernels/moe/permute.h"
#include "kernels/moe/router.h"
#include "kernels/rows/embedding.h"

static const mf_kernel_dtype F32 = MF_KERNEL_F32;
static const mf_kernel_dtype types[] = {MF_KERNEL_F32, MF_KERNEL_BF16};

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
    double *sum;
} z_sum_args;
static mf_status z_sum(const z_sum_args *a, mf_err *e) {
    return mf_kernel_router_z_sum(a->rows, a->lse, a->sum, e);
}
static mf_status z_sum_cuda(const z_sum_args *a, void *s, mf_err *e) {
    return mf_kernel_router_z_sum_cuda(a->rows, a->lse, a->sum, s, e);
}

/* Wide enough that experts are near each other. */
static const float JITTER = 0.2f;

/* A setting's tensors; losses are counted over three scopes. */
struct RouterCase {
    const routing *t;
    int64_t rows, n, k, scopes;
    both logits, bias, scores, prob, again, lse, index, scope, dprob, dlogits;
    both count, sum, weight, aux, z, skip, work;
};

static RouterCase make_router(const routing *t, int64_t rows) {
    RouterCase c;
    c.t = t;
    c.rows = rows, c.n = t->experts, c.k = t->top_k, c.scopes = 3;
    c.logits = random_values(rows * c.n, F32, -3, 3);
    c.bias = random_values(c.n, F32, -0.1, 0.1);
    c.scores = poison(rows * c.n, F32), c.prob = poison(rows * c.k, F32);
    c.again = poison(rows * c.k, F32), c.lse = poison(rows, F32);
    c.index = poison(rows * c.k, F32), c.scope = random_ints(rows, 0, c.scopes - 1);
    c.dprob = random_values(rows * c.k, F32, -1, 1), c.dlogits = poison(rows * c.n, F32);
    c.count = make((size_t)(c.scopes * c.n) * 4, 0), c.sum = make((size_t)(c.scopes * c.n) * 4, 0);
    c.weight = poison(c.scopes * c.n, F32), c.aux = make(8, 0), c.z = make(8, 0);
    c.skip = make(4, 0), c.work = make(mf_kernel_router_workspace_B(c.scopes, c.n), 0xff);
    return c;
}

static mf_kernel_router router_of(const RouterCase &c, bool dev, const both &prob) {
    const routing *t = c.t;
    mf_kernel_router a = {c.rows,
                          c.n,
                          c.k,
                          t->score,
                          t->normalise,
                          2.5f,
                          t->groups,
                          t->group_topk,
                          t->group,
                          (float *)P(c.logits),
                          t->bias ? (float *)P(c.bias) : nullptr,
                          (float *)P(c.scores),
                          (float *)P(prob),
                          (int32_t *)P(c.index),
                          (float *)P(c.lse),
                          JITTER};
    return a;
}

/* Scores, choices and their probabilities. */
static void check_choices(RouterCase &c) {
    run_both<mf_kernel_router>([&](bool dev) { return router_of(c, dev, c.prob); },
                               mf_kernel_router_forward, mf_kernel_router_forward_cuda);
    const auto given = [&](bool dev) { return router_of(c, dev, c.again); };
    run_both<mf_kernel_router>(given, mf_kernel_router_probabilities,
                               mf_kernel_router_probabilities_cuda);
    same_bits("probabilities of the same choices", &c.prob, &c.again);
    compare("scores", &c.scores, F32, 1e-6);
    compare("lse", &c.lse, F32, 1e-6);
    /* Where two choices differ by a rounding, the sides may pick differently: at most one row in
     * 2000. The rest of the test continues from the reference's picks on both sides. */
    compare_bits("index", &c.index, (double)(c.rows / 2000 + 2) * 8);
    upload(&c.index), upload(&c.scores);
    run_both<mf_kernel_router>(given, mf_kernel_router_probabilities,
                               mf_kernel_router_probabilities_cuda);
    compare("probabilities", &c.again, F32, 1e-6);
}

/* Counts, sums of probabilities, and the losses of both. */
static void check_losses(RouterCase &c) {
    run_both<mf_kernel_router_stats>(
        [&](bool dev) {
            mf_kernel_router_stats a = {c.rows,
                                        c.n,
                                        c.k,
                                        c.t->score,
                                        c.scopes,
                                        (int32_t *)P(c.scope),
                                        (float *)P(c.scores),
                                        (int32_t *)P(c.index),
                                        (float *)P(c.count),
                                        (float *)P(c.sum),
                                        P(c.work)};
            return a;
        },
        mf_kernel_router_stats_add, mf_kernel_router_stats_add_cuda);
    compare("count", &c.count, F32, 0.0);
    compare("prob_sum", &c.sum, F32, 5e-6);
    run_both<mf_kernel_router_aux>(
        [&](bool dev) {
            mf_kernel_router_aux a = {c.n,
                                      c.k,
                                      c.scopes,
                                      c.rows / 3.0,
                                      0.1f,
                                      (float *)P(c.count),
                                      (float *)P(c.sum),
                                      (double *)P(c.aux),
                                      (float *)P(c.weight)};
            return a;
        },
        mf_kernel_router_aux_loss, mf_kernel_router_aux_loss_cuda);
    compare_doubles("aux", &c.aux, 5e-6);
    compare("weight", &c.weight, F32, 1e-6);
    run_both<z_sum_args>(
        [&](bool dev) {
            z_sum_args a = {c.rows, (float *)P(c.lse), (double *)P(c.z)};
            return a;
        },
        z_sum, z_sum_cuda);
    compare_doubles("z", &c.z, 1e-6);
}

static void check_gradients(RouterCase &c) {
    run_both<mf_kernel_router_grad>(
        [&](bool dev) {
            mf_kernel_router_grad a = {c.rows,
                                       c.n,
                                       c.k,
                                       c.t->score,
                                       c.t->normalise,
                                       2.5f,
                                       (float *)P(c.scores),
                                       (int32_t *)P(c.index),
                                       (float *)P(c.dprob),
                                       (float *)P(c.weight),
                                       (int32_t *)P(c.scope),
                                       (float *)P(c.logits),
                                       (float *)P(c.lse),
                                       0.01f,
                                       (float *)P(c.dlogits),
                                       JITTER};
            return a;
        },
        mf_kernel_router_backward, mf_kernel_router_backward_cuda);
    compare("dlogits", &c.dlogits, F32, 5e-6);
}

/* The bias that balances choices: with no word that says to skip it, one that does not, one that
 * does. */
static void check_bias(RouterCase &c) {
    for (int skips = 0; skips < 3; skips++) {
        *(int32_t *)c.skip.host = skips == 2;
        upload(&c.skip);
        run_both<mf_kernel_router_bias>(
            [&](bool dev) {
                mf_kernel_router_bias a = {c.n, 0.25f, (float *)P(c.count), (float *)P(c.bias),
                                           skips > 0 ? (int32_t *)P(c.skip) : nullptr};
                return a;
            },
            mf_kernel_router_bias_update, mf_kernel_router_bias_update_cuda);
        compare("bias", &c.bias, F32, 0.0);
    }
}

static void test_router(const routing *t, int64_t rows) {
    CASE("router", "score %d experts %lld top %lld groups %lld rows %lld", (int)t->score,
         (long long)t->experts, (long long)t->top_k, (long long)t->groups, (long long)rows);
    RouterCase c = make_router(t, rows);
    check_choices(c);
    check_losses(c);
    check_gradients(c);
    check_bias(c);
    free_all();
}

/* Capacity: equal probabilities, slots without an expert, samples side by side and mixed. */
static void test_drop(int64_t rows, int64_t k, int64_t experts, int64_t capacity, int64_t samples,
                      bool coarse) {
    CASE("router_drop", "rows %lld top %lld experts %lld capacity %lld samples %lld coarse %d",
         (long long)rows, (long long)k, (long long)experts, (long long)capacity, (long long)samples,
         coarse);
    int64_t slots = rows * k;
    both index = random_ints(slots, -1, experts - 1), prob = random_values(slots, F32, 0, 1);
    both sample = random_ints(rows, 0, samples - 1);
    both kept = poison(slots, F32), prob_kept = poison(slots, F32);
    both work = make(mf_kernel_router_drop_workspace_B(slots, experts), 0xff);
    for (int64_t i = 0; i < slots && coarse; i++) { /* many ties */
        ((float *)prob.host)[i] = floorf(((float *)prob.host)[i] * 4) / 4;
    }
    upload(&prob);
    run_both<mf_kernel_router_drop>(
        [&](bool dev) {
            mf_kernel_router_drop a = {rows,
                                       experts,
                                       k,
                                       capacity,
                                       samples,
                                       samples > 1 ? (int32_t *)P(sample) : nullptr,
                                       (float *)P(prob),
                                       (int32_t *)P(index),
                                       (float *)P(prob_kept),
                                       (int32_t *)P(kept),
                                       P(work)};
            return a;
        },
        mf_kernel_router_capacity, mf_kernel_router_capacity_cuda);
    compare_bits("kept", &kept, 0);
    compare_bits("prob_kept", &prob_kept, 0);
    free_all();
}

struct PermuteCase {
    mf_kernel_dtype d;
    int64_t tokens, k, experts, cols, align, slots, least, most;
    bool tight;
    both index, counts, off, over, sticky, row, slot, work;
};

/* The map; with `tight`, more rows than fit. */
static void check_map(PermuteCase &c) {
    int64_t fits = c.most;
    const auto map = [&](bool dev) {
        mf_kernel_permute_map a = {c.tokens,
                                   c.k,
                                   c.experts,
                                   c.align,
                                   fits,
                                   (int32_t *)P(c.index),
                                   (int32_t *)P(c.counts),
                                   (int32_t *)P(c.off),
                                   (int32_t *)P(c.row),
                                   (int32_t *)P(c.slot),
                                   (int32_t *)P(c.over),
                                   P(c.work),
                                   c.least,
                                   (int32_t *)P(c.sticky),
                                   0,
                                   0};
        return a;
    };
    fits = 0; /* what overflowed once is remembered */
    run_both<mf_kernel_permute_map>(map, mf_kernel_permute_map_build,
                                    mf_kernel_permute_map_build_cuda);
    compare_bits("sticky", &c.sticky, 0);
    report(*(int32_t *)c.sticky.host == INT32_MAX, "sticky", *(int32_t *)c.sticky.host, INT32_MAX);
    fits = c.most;
    if (!c.tight) { /* or not, where there was none before */
        *(int32_t *)c.sticky.host = 0;
        upload(&c.sticky);
    }
    run_both<mf_kernel_permute_map>(map, mf_kernel_permute_map_build,
                                    mf_kernel_permute_map_build_cuda);
    compare_bits("sticky", &c.sticky, 0);
    compare_bits("counts", &c.counts, 0);
    compare_bits("offsets", &c.off, 0);
    compare_bits("row_of_slot", &c.row, 0);
    compare_bits("slot_of_row", &c.slot, 0);
    compare_bits("overflow", &c.over, 0);
}

/* Rows and scalars along the map and back, with their gradients. */
static void check_moves(PermuteCase &c) {
    both x = random_values(c.tokens * c.cols, c.d, -1, 1), w = random_values(c.slots, F32, -1, 1);
    both y = poison(c.tokens * c.cols, c.d), dw = poison(c.slots, F32);
    both in = random_values(c.most * c.cols, c.d, -1, 1);
    for (int mode = 0; mode < 8; mode++) {
        both out = poison(c.most * c.cols, c.d);
        run_both<mf_kernel_permute>(
            [&](bool dev) {
                mf_kernel_permute a = {c.d,
                                       c.most,
                                       c.cols,
                                       c.k,
                                       (int32_t *)P(c.off) + c.experts,
                                       (int32_t *)P(c.slot),
                                       mode & 1 ? (int32_t *)P(c.row) : nullptr,
                                       c.tokens,
                                       mode & 2 ? (float *)P(w) : nullptr,
                                       P(x),
                                       P(out),
                                       (mode & 4) != 0};
                return a;
            },
            mf_kernel_permute_forward, mf_kernel_permute_forward_cuda);
        compare("out", &out, c.d, mode & 2 ? bound_of(c.d) : 0.0);
    }
    run_both<mf_kernel_unpermute>(
        [&](bool dev) {
            mf_kernel_unpermute a = {c.d,           c.tokens, c.cols, c.k, (int32_t *)P(c.row),
                                     (float *)P(w), P(in),    P(x),   P(y)};
            return a;
        },
        mf_kernel_unpermute_forward, mf_kernel_unpermute_forward_cuda);
    compare("y", &y, c.d, bound_of(c.d));
    run_both<mf_kernel_unpermute_dweight>(
        [&](bool dev) {
            mf_kernel_unpermute_dweight a = {
                c.d, c.tokens, c.cols, c.k, (int32_t *)P(c.row), P(x), P(in), (float *)P(dw)};
            return a;
        },
        mf_kernel_unpermute_weight_grad, mf_kernel_unpermute_weight_grad_cuda);
    compare("dweight", &dw, F32, 1e-5);
    both sc = poison(c.most, F32);
    run_both<mf_kernel_permute_scalar>(
        [&](bool dev) {
            mf_kernel_permute_scalar a = {c.most, (int32_t *)P(c.off) + c.experts,
                                          (int32_t *)P(c.slot), (float *)P(w), (float *)P(sc)};
            return a;
        },
        mf_kernel_permute_scalars, mf_kernel_permute_scalars_cuda);
    compare("scalars", &sc, F32, 0.0);
}

static void test_permute(mf_kernel_dtype d, int64_t tokens, int64_t k, int64_t experts,
                         int64_t cols, int64_t align, bool tight) {
    CASE("permute", "%s tokens %lld top %lld experts %lld cols %lld align %lld tight %d",
         name_of(d), (long long)tokens, (long long)k, (long long)experts, (long long)cols,
         (long long)align, tight);
    PermuteCase c;
    c.d = d, c.tokens = tokens, c.k = k, c.experts = experts, c.cols = cols, c.align = align;
    c.tight = tight, c.slots = tokens * k, c.least = tight ? 0 : 3 * align;
    c.most = tight ? c.slots / 2 : c.slots + experts * (align + c.least);
    c.index = random_ints(c.slots, -1, experts - 1);
    c.counts = poison(experts, F32), c.off = poison(experts + 1, F32), c.over = poison(1, F32);
    c.sticky = make(4, 0);
    c.row = poison(c.slots, F32), c.slot = poison(c.most, F32);
    c.work = make(mf_kernel_permute_workspace_B(c.slots, experts), 0xff);
    check_map(c);
    check_moves(c);
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
static void test_embedding(mf_kernel_dtype d, int64_t tokens, int64_t cols, int64_t vocab, bool hot,
                           float scale = 0.0f) {
    CASE("embedding", "%s tokens %lld cols %lld vocab %lld hot %d scale %g", name_of(d),
         (long long)tokens, (long long)cols, (long long)vocab, hot, (double)scale);
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
            mf_kernel_embedding a = {
                d, tokens, cols, begin, vocab, scale, (int32_t *)P(token), P(table), P(y)};
            return a;
        },
        mf_kernel_embedding_forward, mf_kernel_embedding_forward_cuda);
    compare("y", &y, d, 0.0);
    run_both<mf_kernel_embedding_grad>(
        [&](bool dev) {
            mf_kernel_embedding_grad a = {
                d,     tokens,           cols,   begin, vocab, scale, (int32_t *)P(token),
                P(dy), (float *)P(grad), P(work)};
            return a;
        },
        mf_kernel_embedding_backward, mf_kernel_embedding_backward_cuda);
    compare("dtable", &grad, F32, 3e-6);
    free_all();
}

/* Maps on two streams raise one word, each of two sizes: what the larger asks for stays. */
static void test_sticky(int64_t tokens, int64_t k, int64_t experts) {
    CASE("sticky", "tokens %lld top %lld experts %lld", (long long)tokens, (long long)k,
         (long long)experts);
    enum { STREAMS = 2, ROUNDS = 200 };
    cudaStream_t stream[STREAMS];
    mf_kernel_permute_map map[STREAMS];
    both sticky = make(4, 0);
    for (int i = 0; i < STREAMS; i++) {
        const int64_t rows = tokens * (i + 1), slots = rows * k;
        both index = random_ints(slots, 0, experts - 1), counts = poison(experts, F32);
        both off = poison(experts + 1, F32), row = poison(slots, F32), slot = poison(slots, F32);
        both over = poison(1, F32), work = make(mf_kernel_permute_workspace_B(slots, experts), 0);
        map[i] = {rows,
                  k,
                  experts,
                  1,
                  tokens * k / 2,
                  (int32_t *)index.device,
                  (int32_t *)counts.device,
                  (int32_t *)off.device,
                  (int32_t *)row.device,
                  (int32_t *)slot.device,
                  (int32_t *)over.device,
                  work.device,
                  0,
                  (int32_t *)sticky.device,
                  0,
                  0};
        must(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking), "stream");
    }
    int lost = 0;
    for (int r = 0; r < ROUNDS; r++) {
        int32_t got = 0;
        must(cudaMemset(sticky.device, 0, 4), "clear");
        must(cudaDeviceSynchronize(), "clear");
        for (int i = 0; i < STREAMS; i++) {
            mf_err e;
            const mf_kernel_permute_map *one = &map[(r + i) % STREAMS];
            must(mf_kernel_permute_map_build_cuda(one, stream[(r + i) % STREAMS], &e) == MF_OK
                     ? cudaSuccess
                     : cudaErrorUnknown,
                 "map");
        }
        must(cudaDeviceSynchronize(), "maps");
        must(cudaMemcpy(&got, sticky.device, 4, cudaMemcpyDeviceToHost), "download");
        lost += got != mf_kernel_asked(STREAMS * tokens * k, tokens * k / 2);
    }
    report(lost == 0, "rounds in which the larger was lost", lost, 0);
    for (int i = 0; i < STREAMS; i++) {
        must(cudaStreamDestroy(stream[i]), "stream");
    }
    free_all();
}

/* small: for slow checkers */
static void all_routing(bool small) {
    const routing kinds[] = {
        {MF_ROUTE_SOFTMAX, false, false, 8, 2, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SOFTMAX, true, false, 128, 8, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SOFTMAX, false, false, 160, 6, 8, 3, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SOFTMAX, false, false, 60, 4, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_TOPK_SOFTMAX, false, false, 32, 4, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SPARSEMIXER, false, false, 16, 2, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SPARSEMIXER, false, false, 60, 4, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SPARSEMIXER, false, false, 132, 3, 1, 1, MF_ROUTE_GROUP_MAX},
        {MF_ROUTE_SIGMOID, true, true, 256, 8, 8, 4, MF_ROUTE_GROUP_TOP2},
        {MF_ROUTE_SIGMOID, true, true, 384, 8, 1, 1, MF_ROUTE_GROUP_TOP2},
    };
    for (const routing &k : kinds) {
        test_router(&k, 1);
        test_router(&k, 1000);
    }
    for (int coarse = 0; coarse < 2; coarse++) {
        test_drop(700, 2, 8, 100, 1, coarse);
        test_drop(1000, 8, 128, 40, 3, coarse);
        test_drop(512, 8, 384, 5, 2, coarse);
        test_drop(2000, 1, 1, 777, 1, coarse);
        test_drop(300, 4, 16, 1000, 4, coarse);
        test_drop(5, 2, 3, 1, 1, coarse);
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
        test_embedding(d, 5000, 64, 151936, false, 12.0f);
        test_embedding(d, 5003, 72, 1000, true, 0.1f);
        test_embedding(d, 333, 37, 77, true, 1.5f);
        test_embedding(d, 20001, 40, 9000, true); /* more than blocks look through */
    }
    if (!small) { /* more items than one cluster sorts */
        test_permute(MF_KERNEL_BF16, 140000, 2, 100, 8, 3, false);
        test_embedding(MF_KERNEL_BF16, 270000, 8, 700, true);
        test_drop(33000, 8, 2, 50, 1, false);
    }
    test_sticky(1000, 2, 64);
    test_sticky(40000, 2, 64); /* more items than one cluster sorts */
    test_regroup(4, 8, 100, 3200);
    test_regroup(64, 4, 9, 1000);
    test_regroup(2, 2, 5, 7);
}

int main(int argc, char **argv) {
    begin_tests();
    all_routing(argc > 1 && strcmp(argv[1], "--small") == 0);
    return end_tests();
}
