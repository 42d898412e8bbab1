/* CUDA kernels of the loss, the optimizer, casts and quantisation against their C references: fresh
 * random inputs, poisoned outputs, aligned and odd sizes, guards behind every buffer. MF_SEED=n
 * repeats a run. */
#include "tests/gpu/gpu_test.cuh"

#include "kernels/attention/mla.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/grad_norm.h"
#include "kernels/rows/cast.h"
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/quantise.h"

static const mf_kernel_dtype F32 = MF_KERNEL_F32;
static const mf_kernel_dtype types[] = {MF_KERNEL_F32, MF_KERNEL_BF16};

static void test_cross_entropy(mf_kernel_dtype d, int64_t rows, int64_t part, int64_t ranks,
                               int64_t vocab, int64_t pad) {
    int64_t stride = part * ranks + pad;
    CASE("cross_entropy", "%s rows %lld part %lld ranks %lld vocab %lld stride %lld", name_of(d),
         (long long)rows, (long long)part, (long long)ranks, (long long)vocab, (long long)stride);
    both logits = random_values(rows * stride, d, -8, 8), target = random_ints(rows, -1, vocab - 1);
    both stats = poison(ranks * 3 * rows, F32), lse = poison(rows, F32), loss = poison(rows, F32);
    both sum = make(8, 0);
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
                                      (double *)P(sum),
                                      0.125};
            return a;
        },
        mf_kernel_cross_entropy_combine, mf_kernel_cross_entropy_combine_cuda);
    compare("lse", &lse, F32, 2e-6);
    compare("loss", &loss, F32, 2e-6);
    compare_doubles("loss_sum", &sum, 2e-6);
    both own = random_values(rows, F32, -8, 8);
    run_both<mf_kernel_ce_rescale>(
        [&](bool dev) {
            mf_kernel_ce_rescale a = {rows, (float *)P(own), (float *)P(stats)};
            return a;
        },
        mf_kernel_cross_entropy_rescale, mf_kernel_cross_entropy_rescale_cuda);
    compare("rescaled", &stats, F32, 5e-6);
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

/* Loss and gradient in one, of a rank that has all columns. */
static void test_cross_entropy_whole(mf_kernel_dtype d, int64_t rows, int64_t cols, int64_t vocab,
                                     int64_t pad) {
    const int64_t stride = cols + pad;
    CASE("cross_entropy whole", "%s rows %lld cols %lld vocab %lld stride %lld", name_of(d),
         (long long)rows, (long long)cols, (long long)vocab, (long long)stride);
    both logits = random_values(rows * stride, d, -8, 8), target = random_ints(rows, -1, vocab - 1);
    both stats = poison(3 * rows, F32), lse = poison(rows, F32);
    both sum = make(8, 0);
    run_both<mf_kernel_ce_whole>(
        [&](bool dev) {
            mf_kernel_ce_whole a = {d,
                                    rows,
                                    cols,
                                    stride,
                                    vocab,
                                    (int32_t *)P(target),
                                    0.25f,
                                    P(logits),
                                    (float *)P(stats),
                                    (float *)P(lse),
                                    (double *)P(sum),
                                    0.125};
            return a;
        },
        mf_kernel_cross_entropy, mf_kernel_cross_entropy_cuda);
    compare("stats", &stats, F32, 5e-6);
    compare("lse", &lse, F32, 2e-6);
    compare_doubles("loss_sum", &sum, 2e-6);
    compare("dlogits", &logits, d, d == F32 ? 5e-6 : bound_of(d));
    free_all();
}

enum { N = 6 };
static const int64_t counts[N] = {5, 40000, 1, 100003, 32768, 4096};

/* Parameters of all sizes, one of them in FP32 alone. */
struct Parameters {
    both master[N], grad[N], m[N], v[N], param[N];
    mf_kernel_adamw_tensor host[N], dev[N];
    mf_kernel_grad_tensor grad_host[N], grad_dev[N];
};

static void draw(Parameters *p, mf_kernel_dtype moments) {
    for (int i = 0; i < N; i++) {
        p->master[i] = random_values(counts[i], F32, -1, 1);
        p->grad[i] = random_values(counts[i], F32, -1, 1);
        p->m[i] = random_values(counts[i], moments, -1, 1);
        p->v[i] = random_values(counts[i], moments, 0, 1);
        p->param[i] = poison(counts[i], MF_KERNEL_BF16);
        bool half = i != 2;
        mf_kernel_adamw_tensor h = {(float *)p->master[i].host,
                                    half ? (uint16_t *)p->param[i].host : nullptr,
                                    (float *)p->grad[i].host,
                                    p->m[i].host,
                                    p->v[i].host,
                                    counts[i],
                                    i % 2 ? 0.1f : 0.0f};
        p->host[i] = p->dev[i] = h;
        p->dev[i].master = (float *)p->master[i].device;
        p->dev[i].param = half ? (uint16_t *)p->param[i].device : nullptr;
        p->dev[i].grad = (float *)p->grad[i].device;
        p->dev[i].m = p->m[i].device;
        p->dev[i].v = p->v[i].device;
        p->grad_host[i].grad = (float *)p->grad[i].host;
        p->grad_dev[i].grad = (float *)p->grad[i].device;
        p->grad_host[i].count = p->grad_dev[i].count = counts[i];
    }
}

static void test_optimizer(mf_kernel_dtype moments) {
    CASE("adamw", "moments %s", name_of(moments));
    Parameters p;
    draw(&p, moments);
    int64_t chunks = mf_kernel_chunks(counts, N, nullptr);
    both chunk = make((size_t)chunks * sizeof(mf_kernel_chunk), 0);
    mf_kernel_chunks(counts, N, (mf_kernel_chunk *)chunk.host);
    upload(&chunk);
    both tensors = make(sizeof p.host, 0), grads = make(sizeof p.grad_host, 0), sq = make(8, 0);
    memcpy(tensors.host, p.dev, sizeof p.dev);
    memcpy(grads.host, p.grad_dev, sizeof p.grad_dev);
    upload(&tensors), upload(&grads);
    both work = make((size_t)chunks * 8, 0xff), norm = poison(1, F32), clip = poison(1, F32);
    run_both<mf_kernel_grad_norm>(
        [&](bool dev) {
            mf_kernel_grad_norm a = {N,
                                     chunks,
                                     dev ? (mf_kernel_grad_tensor *)grads.device : p.grad_host,
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
                                 dev ? (mf_kernel_adamw_tensor *)tensors.device : p.host,
                                 (mf_kernel_chunk *)P(chunk),
                                 nullptr};
            return a;
        },
        mf_kernel_adamw_update, mf_kernel_adamw_update_cuda);
    for (int i = 0; i < N; i++) {
        compare("master", &p.master[i], F32, 1e-6);
        compare("m", &p.m[i], moments, bound_of(moments));
        compare("v", &p.v[i], moments, bound_of(moments));
        compare("param", &p.param[i], MF_KERNEL_BF16, 1.5e-3);
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

static void all_losses(void) {
    for (mf_kernel_dtype d : types) {
        test_cross_entropy(d, 20, 32000, 1, 32000, 0);
        test_cross_entropy(d, 9, 19072, 2, 38100, 0);
        test_cross_entropy(d, 33, 64, 4, 250, 8);
        test_cross_entropy(d, 33, 37, 3, 105, 1);
        test_cross_entropy_whole(d, 20, 32000, 32000, 0);
        test_cross_entropy_whole(d, 9, 129280, 129280, 0);   /* eight blocks */
        test_cross_entropy_whole(d, 7, 50304, 50257, 0);     /* padded within a vector */
        test_cross_entropy_whole(d, 5, 256000, 255000, 128); /* whole threads see padding */
        test_cross_entropy_whole(d, 3, 270336, 270000, 0);   /* no cluster holds it */
        test_cross_entropy_whole(d, 300, 256, 256, 0);
        test_cross_entropy_whole(d, 33, 37, 35, 1);
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

int main(void) {
    begin_tests();
    all_losses();
    return end_tests();
}
