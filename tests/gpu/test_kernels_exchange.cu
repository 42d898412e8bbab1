/* CUDA kernels of choices between ranks, and of rows in slots, against their C references: fresh
 * random inputs, poisoned outputs, guards behind every buffer. MF_SEED=n repeats a run. */
#include "tests/gpu/gpu_test.cuh"

#include "kernels/moe/exchange.h"
#include "kernels/moe/permute.h"

static const mf_kernel_dtype F32 = MF_KERNEL_F32;

typedef struct grid {
    int64_t tokens, top_k, ranks, experts, rows; /* rows: of a rank's slot */
} grid;

typedef struct maps {
    both counts, off, row, slot, over, sticky;
} maps;

/* The map of `index` [tokens, choices] with a slot for each rank. */
static maps build_map(const grid *g, const both &index, int64_t choices, int64_t experts) {
    const int64_t slots = g->tokens * choices, most = g->ranks * g->rows;
    maps m = {poison(experts, F32), poison(experts + 1, F32), poison(slots, F32),
              poison(most, F32),    poison(1, F32),           make(4, 0)};
    both work = make(mf_kernel_permute_workspace_B(slots, experts), 0xff);
    run_both<mf_kernel_permute_map>(
        [&](bool dev) {
            mf_kernel_permute_map a = {};
            a.tokens = g->tokens;
            a.top_k = choices;
            a.experts = experts;
            a.align = 1;
            a.rows_max = most;
            a.ranks = g->ranks;
            a.rank_rows = g->rows;
            a.index = (int32_t *)P(index);
            a.counts = (int32_t *)P(m.counts);
            a.offsets = (int32_t *)P(m.off);
            a.row_of_slot = (int32_t *)P(m.row);
            a.slot_of_row = (int32_t *)P(m.slot);
            a.overflow = (int32_t *)P(m.over);
            a.sticky = (int32_t *)P(m.sticky);
            a.workspace = P(work);
            return a;
        },
        mf_kernel_permute_map_build, mf_kernel_permute_map_build_cuda);
    compare_bits("counts", &m.counts, 0);
    compare_bits("offsets", &m.off, 0);
    compare_bits("row_of_slot", &m.row, 0);
    compare_bits("slot_of_row", &m.slot, 0);
    compare_bits("overflow", &m.over, 0);
    compare_bits("sticky", &m.sticky, 0);
    return m;
}

/* A row for each choice. */
static void test_choices(const grid *g, bool fits) {
    CASE("choices", "tokens %lld top %lld ranks %lld experts %lld rows %lld", (long long)g->tokens,
         (long long)g->top_k, (long long)g->ranks, (long long)g->experts, (long long)g->rows);
    const int64_t slots = g->tokens * g->top_k;
    both index = random_ints(slots, -1, g->experts - 1);
    maps m = build_map(g, index, g->top_k, g->experts);
    report((*(int32_t *)m.over.host == 0) == fits, "fits", *(int32_t *)m.over.host, !fits);
    both choice = poison(g->ranks * g->rows, F32);
    run_both<mf_kernel_choices_of_rows>(
        [&](bool dev) {
            mf_kernel_choices_of_rows a = {g->ranks,
                                           g->experts,
                                           g->rows,
                                           (int32_t *)P(m.off),
                                           (int32_t *)P(m.counts),
                                           (int32_t *)P(choice)};
            return a;
        },
        mf_kernel_choices_of_sent_rows, mf_kernel_choices_of_sent_rows_cuda);
    compare_bits("choices of rows", &choice, 0);
    run_both<mf_kernel_choices_keep>(
        [&](bool dev) {
            const int64_t each = g->experts / g->ranks;
            mf_kernel_choices_keep a = {slots, (g->ranks - 1) * each, each, (int32_t *)P(index)};
            return a;
        },
        mf_kernel_choices_keep_own, mf_kernel_choices_keep_own_cuda);
    compare_bits("own choices", &index, 0);
    free_all();
}

/* A copy for each rank. */
static void test_copies(const grid *g, bool fits) {
    CASE("copies", "tokens %lld top %lld ranks %lld experts %lld rows %lld", (long long)g->tokens,
         (long long)g->top_k, (long long)g->ranks, (long long)g->experts, (long long)g->rows);
    const int64_t slots = g->tokens * g->top_k, rows = g->ranks * g->rows;
    both index = random_ints(slots, -1, g->experts - 1), prob = random_values(slots, F32, 0, 1);
    both rank = poison(g->tokens * g->ranks, F32), back = poison(slots, F32);
    run_both<mf_kernel_choices_ranks>(
        [&](bool dev) {
            mf_kernel_choices_ranks a = {
                g->tokens, g->top_k, g->ranks, g->experts, (int32_t *)P(index), (int32_t *)P(rank)};
            return a;
        },
        mf_kernel_choices_find_ranks, mf_kernel_choices_find_ranks_cuda);
    compare_bits("ranks", &rank, 0);
    maps m = build_map(g, rank, g->ranks, g->ranks);
    report((*(int32_t *)m.over.host == 0) == fits, "fits", *(int32_t *)m.over.host, !fits);
    both row_index = poison(rows * g->top_k, F32), row_prob = poison(rows * g->top_k, F32);
    run_both<mf_kernel_choices_send>(
        [&](bool dev) {
            mf_kernel_choices_send a = {rows,
                                        g->top_k,
                                        g->ranks,
                                        g->experts,
                                        (int32_t *)P(m.slot),
                                        (int32_t *)P(index),
                                        (float *)P(prob),
                                        (int32_t *)P(row_index),
                                        (float *)P(row_prob)};
            return a;
        },
        mf_kernel_choices_send_copies, mf_kernel_choices_send_copies_cuda);
    compare_bits("choices that travel", &row_index, 0);
    compare_bits("probabilities that travel", &row_prob, 0);
    run_both<mf_kernel_choices_return>(
        [&](bool dev) {
            mf_kernel_choices_return a = {g->tokens,
                                          g->top_k,
                                          g->ranks,
                                          g->experts,
                                          (int32_t *)P(m.row),
                                          (int32_t *)P(index),
                                          (float *)P(row_prob),
                                          (float *)P(back)};
            return a;
        },
        mf_kernel_choices_return_values, mf_kernel_choices_return_values_cuda);
    compare_bits("values that come back", &back, 0);
    free_all();
}

int main(void) {
    begin_tests();
    /* Of one launch of the sort, and of three (over 262,144 slots). */
    const grid padded[] = {{999, 8, 8, 256, 1300},
                           {300, 2, 4, 8, 600},
                           {77, 3, 3, 9, 240},
                           {1, 1, 2, 2, 1},
                           {40000, 8, 16, 512, 24000}};
    for (const grid &g : padded) {
        test_choices(&g, true);
        test_copies(&g, true);
    }
    const grid tight[] = {{999, 8, 8, 256, 100}, {300, 2, 2, 8, 50}, {40000, 8, 16, 512, 3000}};
    for (const grid &g : tight) {
        test_choices(&g, false);
        test_copies(&g, false);
    }
    return end_tests();
}
