/* CUDA kernels of what is done with the router's choices against their C references: fresh random
 * inputs, poisoned outputs, guards behind every buffer. MF_SEED=n repeats a run. */
#include "tests/gpu/gpu_test.cuh"

#include "kernels/moe/router_choices.h"

#include <algorithm>

static const mf_kernel_dtype F32 = MF_KERNEL_F32;

static void test_force(int64_t mbs, int64_t run, int64_t cp, int64_t ranks, int64_t k,
                       int64_t experts, bool uneven = false) {
    const int64_t region = mbs * run, rows = region / ranks, seq = run * cp;
    CASE("force", "samples %lld run %lld cp %lld ranks %lld top %lld experts %lld", (long long)mbs,
         (long long)run, (long long)cp, (long long)ranks, (long long)k, (long long)experts);
    both position = random_ints(region, 0, seq - 1), index = poison(rows * k, F32);
    both first = random_ints(experts + 1, 0, (int)(mbs * seq * k));
    if (uneven) { /* ascending, from no place to all */
        int32_t *f = (int32_t *)first.host;
        f[0] = 0;
        f[experts] = (int32_t)(mbs * seq * k);
        std::sort(f, f + experts + 1);
        upload(&first);
    }
    for (int64_t t = 0; t < ranks; t++) {
        run_both<mf_kernel_router_force>(
            [&](bool dev) {
                mf_kernel_router_force a = {rows,
                                            k,
                                            experts,
                                            seq,
                                            run,
                                            t * rows,
                                            (int32_t *)P(position),
                                            (int32_t *)P(index),
                                            uneven ? (int32_t *)P(first) : nullptr,
                                            mbs * seq,
                                            1};
                return a;
            },
            mf_kernel_router_force_choices, mf_kernel_router_force_choices_cuda);
        compare_bits("index", &index, 0);
    }
    free_all();
}

/* In turn: counts of scopes, of all rows, the mean over what was seen, loads alone. */
static void test_count(int64_t rows, int64_t k, int64_t experts, int64_t scopes) {
    CASE("count", "rows %lld top %lld experts %lld scopes %lld", (long long)rows, (long long)k,
         (long long)experts, (long long)scopes);
    both index = random_ints(rows * k, -1, experts - 1);
    both scope = random_ints(rows, 0, scopes - 1);
    both load = make((size_t)experts * 4, 0);
    for (int kind = 0; kind < 4; kind++) {
        const int64_t parts = kind == 0 ? scopes : 1;
        both count = poison(parts * experts, F32);
        run_both<mf_kernel_router_count>(
            [&](bool dev) {
                mf_kernel_router_count a = {rows,
                                            k,
                                            experts,
                                            parts,
                                            kind == 0 ? (int32_t *)P(scope) : nullptr,
                                            kind == 2,
                                            (int32_t *)P(index),
                                            kind != 1 ? (float *)P(load) : nullptr,
                                            kind != 3 ? (float *)P(count) : nullptr};
                return a;
            },
            mf_kernel_router_count_choices, mf_kernel_router_count_choices_cuda);
        compare_bits("load", &load, 0);
        compare_bits("count", &count, 0);
    }
    free_all();
}

/* Rows of which the places are any order; those of one rank come back. */
static void test_place(int64_t rows, int64_t k) {
    CASE("place", "rows %lld top %lld", (long long)rows, (long long)k);
    both place = make((size_t)rows * 4, 0), src = random_ints(rows * k, -1, 1 << 20);
    int32_t *to = (int32_t *)place.host;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t other = whole(0, r);
        to[r] = to[other];
        to[other] = (int32_t)r;
    }
    upload(&place);
    const int64_t first = rows / 3, own = rows - first;
    both placed = poison(rows * k, F32), back = poison(own * k, F32);
    run_both<mf_kernel_router_place>(
        [&](bool dev) {
            mf_kernel_router_place a = {rows, k, (int32_t *)P(place), false, 0, P(src), P(placed)};
            return a;
        },
        mf_kernel_router_place_rows, mf_kernel_router_place_rows_cuda);
    compare_bits("placed", &placed, 0);
    run_both<mf_kernel_router_place>(
        [&](bool dev) {
            mf_kernel_router_place a = {own,       k,      (int32_t *)P(place), true, first,
                                        P(placed), P(back)};
            return a;
        },
        mf_kernel_router_place_rows, mf_kernel_router_place_rows_cuda);
    compare_bits("back", &back, 0);
    report(memcmp(back.host, (int32_t *)src.host + first * k, back.size_B) == 0, "there and back",
           1, 0);
    free_all();
}

/* shift: elements off the alignment of vectors. */
static void test_keep(int64_t count, int64_t shift, bool in_place) {
    CASE("keep", "count %lld shift %lld in place %d", (long long)count, (long long)shift, in_place);
    both kept = random_ints(count + shift, -2, 5), prob = random_values(count + shift, F32, 0, 1);
    both out = poison(count + shift, F32);
    run_both<mf_kernel_router_keep>(
        [&](bool dev) {
            mf_kernel_router_keep a = {count, (int32_t *)P(kept) + shift, (float *)P(prob) + shift,
                                       (in_place ? (float *)P(prob) : (float *)P(out)) + shift};
            return a;
        },
        mf_kernel_router_keep_values, mf_kernel_router_keep_values_cuda);
    compare_bits("out", in_place ? &prob : &out, 0);
    free_all();
}

int main(void) {
    begin_tests();
    test_force(2, 64, 1, 4, 2, 8);
    test_force(3, 50, 4, 2, 8, 384);
    test_force(1, 333, 2, 1, 1, 5);
    test_force(2, 64, 2, 2, 4, 60, true);
    test_force(1, 1000, 1, 1, 8, 128, true);
    for (int64_t scopes = 1; scopes < 6; scopes += 2) {
        test_count(1, 1, 4, scopes);
        test_count(1000, 2, 8, scopes);
        test_count(5000, 8, 256, scopes);
        test_count(777, 6, 500, scopes);
    }
    test_place(1, 1);
    test_place(1000, 8);
    test_place(333, 3);
    for (int i = 0; i < 8; i++) {
        test_keep(i < 4 ? 4096 : 1001, i & 1, i & 2);
    }
    test_keep(3, 0, false);
    return end_tests();
}
