/* CUDA kernels of an update whose values stand on the device, against their C references and
 * against updates by value. MF_SEED=n repeats a run. */
#include "tests/gpu/gpu_test.cuh"

#include "kernels/optimizer/grad_norm.h"
#include "kernels/rows/normal.h"

#include <cstddef>

static const mf_kernel_dtype F32 = MF_KERNEL_F32;

/* What is decided before an update, step after step: with a norm under and over the clip, sums that
 * are no numbers, rows that overflowed. */
static void test_update_begin(float beta1, float beta2, int steps) {
    CASE("update_begin", "beta %g %g", (double)beta1, (double)beta2);
    enum { SUMS = 40 };
    both sq = make(8, 0), also = make(SUMS * 8, 0);
    both state = make(sizeof(mf_kernel_update_state), 0);
    mf_kernel_update_state *s = (mf_kernel_update_state *)state.host;
    int64_t skipped = 0;
    for (int step = 1; step <= steps; step++) {
        const int bad = (int)whole(0, 9);
        *(double *)sq.host = bad == 1 ? INFINITY : bad == 2 ? NAN : uniform(0, 8);
        for (int i = 0; i < SUMS; i++) {
            ((double *)also.host)[i] = uniform(-1, 1);
        }
        if (bad == 3) {
            ((double *)also.host)[whole(0, SUMS - 1)] = bits() & 1 ? NAN : -INFINITY;
        }
        s->lr = (float)uniform(1e-6, 1e-2);
        s->overflow = bad == 4;
        skipped += bad >= 1 && bad <= 4;
        upload(&sq), upload(&also), upload(&state);
        run_both<mf_kernel_update_begin>(
            [&](bool dev) {
                mf_kernel_update_begin a = {(double *)P(sq),
                                            (double *)P(also),
                                            SUMS,
                                            1.0f,
                                            0.5f,
                                            beta1,
                                            beta2,
                                            (mf_kernel_update_state *)P(state)};
                return a;
            },
            mf_kernel_update_begin_step, mf_kernel_update_begin_step_cuda);
        if (std::isnan(s->norm)) { /* of any bits */
            s->norm = 0.0f;
            must(cudaMemset((char *)state.device + offsetof(mf_kernel_update_state, norm), 0, 4),
                 "memset");
        }
        compare_bits("state", &state, 0);
    }
    report(s->skipped == skipped && s->step == steps - skipped, "steps", (double)s->step,
           (double)(steps - skipped));
    free_all();
}

/* One tensor on both sides: master, moments, bf16 copy. */
typedef struct trained {
    both of[4], table;
    mf_kernel_adamw_tensor host;
} trained;

static mf_kernel_adamw_tensor tensor_of(bool dev, const trained &t, const both &grad, int64_t n) {
    return {(float *)P(t.of[0]),
            (uint16_t *)P(t.of[3]),
            (float *)P(grad),
            P(t.of[1]),
            P(t.of[2]),
            n,
            0.1f};
}

/* Fresh values, or those of `as`. */
static trained make_trained(mf_kernel_dtype moments, const both &grad, int64_t n,
                            const trained *as) {
    const mf_kernel_dtype type[4] = {F32, moments, moments, MF_KERNEL_BF16};
    trained t;
    for (int i = 0; i < 4; i++) {
        t.of[i] = random_values(n, type[i], 0, 1);
        if (as) {
            memcpy(t.of[i].host, as->of[i].host, t.of[i].size_B);
            upload(&t.of[i]);
        }
    }
    t.host = tensor_of(false, t, grad, n);
    t.table = make(sizeof t.host, 0);
    const mf_kernel_adamw_tensor there = tensor_of(true, t, grad, n);
    memcpy(t.table.host, &there, sizeof there);
    upload(&t.table);
    return t;
}

/* What begins an update: the state's way, and the clip by value. */
static void begin_both(const both &sq, const both &state, const both &norm, const both &clip) {
    run_both<mf_kernel_update_begin>(
        [&](bool dev) {
            mf_kernel_update_begin a = {(double *)P(sq),
                                        nullptr,
                                        0,
                                        1.0f,
                                        0.5f,
                                        0.9f,
                                        0.95f,
                                        (mf_kernel_update_state *)P(state)};
            return a;
        },
        mf_kernel_update_begin_step, mf_kernel_update_begin_step_cuda);
    run_both<mf_kernel_grad_clip>(
        [&](bool dev) {
            mf_kernel_grad_clip a = {(double *)P(sq), 1.0f, 0.5f, (float *)P(norm),
                                     (float *)P(clip)};
            return a;
        },
        mf_kernel_grad_clip_factor, mf_kernel_grad_clip_factor_cuda);
}

/* An update by the state is one by values, to the bit; one that is left out writes nothing. */
static void test_update_by_state(mf_kernel_dtype moments, int64_t n) {
    CASE("adamw by state", "moments %s n %lld", name_of(moments), (long long)n);
    both grad = random_values(n, F32, -1, 1), sq = make(8, 0);
    both norm = poison(1, F32), clip = poison(1, F32);
    *(double *)sq.host = uniform(0, 8);
    upload(&sq);
    const int64_t chunks = mf_kernel_chunks(&n, 1, nullptr);
    both chunk = make((size_t)chunks * sizeof(mf_kernel_chunk), 0);
    mf_kernel_chunks(&n, 1, (mf_kernel_chunk *)chunk.host);
    upload(&chunk);
    const trained by_value = make_trained(moments, grad, n, nullptr);
    const trained by_state = make_trained(moments, grad, n, &by_value);
    both state = make(sizeof(mf_kernel_update_state), 0);
    mf_kernel_update_state *s = (mf_kernel_update_state *)state.host;
    int64_t made = 0;
    for (int step = 1; step <= 5; step++) {
        s->lr = 1e-2f / (float)step;
        s->overflow = step == 4;
        made += step != 4;
        upload(&state);
        begin_both(sq, state, norm, clip);
        for (int way = step == 4; way < 2; way++) { /* by value, by state */
            const trained &t = way ? by_state : by_value;
            run_both<mf_kernel_adamw>(
                [&](bool dev) {
                    mf_kernel_adamw a = {moments,
                                         way ? 0.0f : s->lr,
                                         0.9f,
                                         0.95f,
                                         1e-8f,
                                         0.5f,
                                         way ? 0 : made,
                                         way ? nullptr : (float *)P(clip),
                                         1,
                                         chunks,
                                         dev ? (mf_kernel_adamw_tensor *)t.table.device : &t.host,
                                         (mf_kernel_chunk *)P(chunk),
                                         way ? (mf_kernel_update_state *)P(state) : nullptr};
                    return a;
                },
                mf_kernel_adamw_update, mf_kernel_adamw_update_cuda);
        }
        for (int i = 0; i < 4; i++) {
            same_bits("by value and by state", &by_value.of[i], &by_state.of[i]);
        }
    }
    free_all();
}

/* Initial weights: a block of a tensor, of which a stretch of elements is kept. All bits alike. */
static void test_normal(int64_t rows, int64_t cols, int64_t width, int64_t first, int64_t count) {
    CASE("normal", "%lld x %lld of width %lld, elements %lld on", (long long)rows, (long long)cols,
         (long long)width, (long long)first);
    const uint64_t key = bits();
    const int64_t row = whole(0, 1 << 20), col = whole(0, 1 << 20), at_row = whole(0, 2),
                  at_col = whole(0, width - cols);
    both w = make((size_t)count * sizeof(float), 0x55);
    upload(&w);
    run_both<mf_kernel_normal>(
        [&](bool dev) {
            mf_kernel_normal a = {(float *)P(w), first, count, width, at_row, at_col,
                                  rows,          cols,  key,   row,   col,    0.02};
            return a;
        },
        mf_kernel_normal_values, mf_kernel_normal_values_cuda);
    compare_bits("weights", &w, 0);
    free_all();
}

int main(void) {
    begin_tests();
    test_normal(1, 1, 1, 0, 1);
    test_normal(257, 129, 131, 0, 260 * 131);
    test_normal(257, 129, 200, 7777, 5000); /* a shard in the middle */
    test_normal(2048, 4096, 4096, 0, 2050 * 4096);
    test_update_begin(0.9f, 0.95f, 500);
    test_update_begin(0.9f, 0.999f, 500);
    test_update_begin(0.99f, 0.9999f, 500);
    test_update_by_state(F32, 70001);
    test_update_by_state(MF_KERNEL_BF16, 70001);
    return end_tests();
}
