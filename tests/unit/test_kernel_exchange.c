/* Choices between expert-parallel ranks: slots of equal size, what their rows say of themselves,
 * and what comes back to whom. */
#include "tests/support/kernel_test.h"

#include "core/program/row_map.h"
#include "kernels/moe/exchange.h"
#include "kernels/moe/permute.h"

enum { TOKENS = 23, TOP_K = 3, RANKS = 4, EACH = 3, EXPERTS = RANKS * EACH };
enum { SLOTS = TOKENS * TOP_K, ROWS = RANKS * SLOTS };

typedef struct routing {
    int32_t index[SLOTS], rank[TOKENS * RANKS];
    float prob[SLOTS];
    int32_t data[2 * EXPERTS + 2 + ROWS + SLOTS + TOKENS * RANKS];
    int32_t sticky;
} routing;

/* Distinct experts for each token, some dropped. */
static void draw(routing *r) {
    for (int t = 0; t < TOKENS; t++) {
        int first = (int)kt_int(0, EXPERTS - 1), step = (int)kt_int(1, 3);
        for (int k = 0; k < TOP_K; k++) {
            bool dropped = kt_int(0, 9) == 0;
            r->index[t * TOP_K + k] = dropped ? -1 : (first + k * step) % EXPERTS;
            r->prob[t * TOP_K + k] = (float)kt_uniform(0.1, 1);
        }
    }
    r->sticky = 0;
}

/* Slots of `rows` rows for each rank; index [TOKENS, choices] of `experts` experts. */
static mf_row_map build(routing *r, const int32_t *index, int64_t choices, int64_t experts,
                        int64_t rows) {
    const mf_row_map m = mf_row_map_of(r->data, experts, RANKS * rows, (int64_t)TOKENS * choices);
    const mf_kernel_permute_map a = {.tokens = TOKENS,
                                     .top_k = choices,
                                     .experts = experts,
                                     .align = 1,
                                     .ranks = RANKS,
                                     .rank_rows = rows,
                                     .rows_max = RANKS * rows,
                                     .index = index,
                                     .counts = m.counts,
                                     .offsets = m.offsets,
                                     .row_of_slot = m.row_of_slot,
                                     .slot_of_row = m.slot_of_row,
                                     .overflow = m.overflow,
                                     .sticky = &r->sticky};
    memset(r->data, 0x5a, sizeof r->data);
    assert_ok(mf_kernel_permute_map_build(&a, NULL));
    return m;
}

/* Rows of a rank in order of expert, then of slot, from where its slot begins. */
static void rows_of_each_rank_begin_where_its_slot_does(void **state) {
    (void)state;
    routing r;
    draw(&r);
    const mf_row_map m = build(&r, r.index, TOP_K, EXPERTS, SLOTS);
    int placed = 0;
    assert_int_equal(*m.overflow, 0);
    assert_int_equal(r.sticky, 0);
    assert_int_equal(m.offsets[EXPERTS], RANKS * SLOTS);
    for (int x = 0; x < EXPERTS; x++) {
        int64_t row = x % EACH == 0 ? x / EACH * SLOTS : m.offsets[x - 1] + m.counts[x - 1];
        assert_int_equal(m.offsets[x], row);
        for (int s = 0; s < SLOTS; s++) {
            if (r.index[s] == x) {
                assert_int_equal(m.slot_of_row[row], s);
                assert_int_equal(m.row_of_slot[s], row);
                row++, placed++;
            }
        }
        assert_int_equal(row, m.offsets[x] + m.counts[x]);
    }
    for (int64_t i = 0; i < RANKS * SLOTS; i++) {
        placed -= m.slot_of_row[i] >= 0;
    }
    assert_int_equal(placed, 0);
}

/* As many as the fullest slot has: they fit; one less, and one slot alone loses rows. */
static void a_slot_that_is_full_loses_rows_and_says_so(void **state) {
    (void)state;
    routing r;
    draw(&r);
    int64_t of_rank[RANKS] = {0}, most = 0;
    for (int s = 0; s < SLOTS; s++) {
        of_rank[r.index[s] < 0 ? 0 : r.index[s] / EACH] += r.index[s] >= 0;
    }
    for (int i = 0; i < RANKS; i++) {
        most = of_rank[i] > most ? of_rank[i] : most;
    }
    mf_row_map m = build(&r, r.index, TOP_K, EXPERTS, most);
    assert_int_equal(*m.overflow, 0);
    m = build(&r, r.index, TOP_K, EXPERTS, most - 1);
    assert_int_equal(*m.overflow, 1);
    assert_int_equal(r.sticky, mf_kernel_asked(most, most - 1));
    for (int s = 0; s < SLOTS; s++) {
        int64_t row = m.row_of_slot[s], slot = r.index[s] / EACH * (most - 1);
        if (row >= 0) {
            assert_int_equal(m.slot_of_row[row], s);
            assert_at_least(row, slot);
            assert_below(row, slot + most - 1);
            of_rank[r.index[s] / EACH]--;
        }
    }
    for (int i = 0; i < RANKS; i++) {
        assert_true(of_rank[i] == 0 || of_rank[i] == 1);
    }
}

static void rows_say_which_of_their_ranks_experts_they_are_for(void **state) {
    (void)state;
    routing r;
    int32_t choice[ROWS];
    draw(&r);
    for (int64_t rows = SLOTS; rows > 0; rows -= SLOTS - 2) { /* with places and without */
        const mf_row_map m = build(&r, r.index, TOP_K, EXPERTS, rows);
        const mf_kernel_choices_of_rows a = {.ranks = RANKS,
                                             .experts = EXPERTS,
                                             .rank_rows = rows,
                                             .offsets = m.offsets,
                                             .counts = m.counts,
                                             .index = choice};
        assert_ok(mf_kernel_choices_of_sent_rows(&a, NULL));
        for (int64_t row = 0; row < RANKS * rows; row++) {
            int32_t s = m.slot_of_row[row];
            assert_int_equal(choice[row], s < 0 ? -1 : r.index[s] % EACH);
        }
    }
}

static void a_rank_keeps_the_choices_of_its_own_experts(void **state) {
    (void)state;
    for (int rank = 0; rank < RANKS; rank++) {
        routing r;
        int32_t kept[SLOTS];
        draw(&r);
        memcpy(kept, r.index, sizeof kept);
        const mf_kernel_choices_keep a = {
            .count = SLOTS, .first = rank * EACH, .experts = EACH, .index = kept};
        assert_ok(mf_kernel_choices_keep_own(&a, NULL));
        for (int s = 0; s < SLOTS; s++) {
            bool own = r.index[s] >= 0 && r.index[s] / EACH == rank;
            assert_int_equal(kept[s], own ? r.index[s] - rank * EACH : -1);
        }
    }
}

/* A copy of a token for each of its ranks; what it takes along comes back to where it was. */
static void copies_take_their_ranks_choices_along_and_bring_values_back(void **state) {
    (void)state;
    routing r;
    int32_t choice[RANKS * TOKENS * TOP_K];
    float prob[RANKS * TOKENS * TOP_K], back[SLOTS] = {0};
    draw(&r);
    const mf_kernel_choices_ranks ranks = {.tokens = TOKENS,
                                           .top_k = TOP_K,
                                           .ranks = RANKS,
                                           .experts = EXPERTS,
                                           .index = r.index,
                                           .rank = r.rank};
    assert_ok(mf_kernel_choices_find_ranks(&ranks, NULL));
    for (int i = 0; i < TOKENS * RANKS; i++) {
        bool reaches = false;
        for (int k = 0; k < TOP_K; k++) {
            int32_t x = r.index[i / RANKS * TOP_K + k];
            reaches |= x >= 0 && x / EACH == i % RANKS;
        }
        assert_int_equal(r.rank[i], reaches ? i % RANKS : -1);
    }
    const mf_row_map m = build(&r, r.rank, RANKS, RANKS, TOKENS);
    assert_int_equal(*m.overflow, 0);
    const mf_kernel_choices_send send = {.rows = RANKS * TOKENS,
                                         .top_k = TOP_K,
                                         .ranks = RANKS,
                                         .experts = EXPERTS,
                                         .slot_of_row = m.slot_of_row,
                                         .index = r.index,
                                         .prob = r.prob,
                                         .row_index = choice,
                                         .row_prob = prob};
    assert_ok(mf_kernel_choices_send_copies(&send, NULL));
    int sent = 0, chosen = 0;
    for (int i = 0; i < RANKS * TOKENS * TOP_K; i++) {
        int32_t copy = m.slot_of_row[i / TOP_K];
        int32_t x = copy < 0 ? -1 : r.index[copy / RANKS * TOP_K + i % TOP_K];
        bool there = x >= 0 && x / EACH == i / TOP_K / TOKENS;
        assert_int_equal(choice[i], there ? x % EACH : -1);
        sent += there;
    }
    for (int s = 0; s < SLOTS; s++) {
        chosen += r.index[s] >= 0;
    }
    assert_int_equal(sent, chosen);
    const mf_kernel_choices_return values = {.tokens = TOKENS,
                                             .top_k = TOP_K,
                                             .ranks = RANKS,
                                             .experts = EXPERTS,
                                             .row_of_slot = m.row_of_slot,
                                             .index = r.index,
                                             .row_value = prob,
                                             .out = back};
    assert_ok(mf_kernel_choices_return_values(&values, NULL));
    for (int s = 0; s < SLOTS; s++) {
        assert_close((double)back[s], r.index[s] < 0 ? 0.0 : (double)r.prob[s], 0.0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_each_rank_begin_where_its_slot_does),
        cmocka_unit_test(a_slot_that_is_full_loses_rows_and_says_so),
        cmocka_unit_test(rows_say_which_of_their_ranks_experts_they_are_for),
        cmocka_unit_test(a_rank_keeps_the_choices_of_its_own_experts),
        cmocka_unit_test(copies_take_their_ranks_choices_along_and_bring_values_back),
    };
    kt_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
