/* Dispatch and combine, references: one copy a token and owner, choices renumbered, sums by owner,
 * gradients to where the choice came from. */
#include "kernels/dispatch/dispatch.h"
#include "tests/support/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, TOKENS = 4, COLS = 8, TOP_K = 3, EXPERTS = 6, EACH = EXPERTS / RANKS };

static const mf_dispatch_shape shape = {RANKS, TOKENS, COLS, TOP_K, EXPERTS, false};

/* Choices of rank 0, 1, 2. */
static const int32_t choices[RANKS][TOKENS][TOP_K] = {
    {{0, 1, 4}, {5, -1, 2}, {-1, -1, -1}, {3, 2, 1}},
    {{2, 3, -1}, {4, 5, 0}, {1, 0, 3}, {5, 2, 0}},
    {{0, 2, 4}, {1, 3, 5}, {4, 4, 4}, {-1, 3, -1}},
};

typedef struct fixture {
    uint16_t x[RANKS][TOKENS][COLS];
    float prob[RANKS][TOKENS][TOP_K];
    void *window[RANKS];
    mf_dispatch_view view[RANKS];
    mf_kernel_dispatch d[RANKS];
} fixture;

static int setup(void **state) {
    fixture *w = calloc(1, sizeof *w);
    assert_non_null(w);
    for (int r = 0; r < RANKS; r++) {
        for (int t = 0; t < TOKENS; t++) {
            for (int i = 0; i < COLS; i++) {
                w->x[r][t][i] = mf_kernel_bf16_round((float)(100 * r + 10 * t + i));
            }
            for (int j = 0; j < TOP_K; j++) {
                w->prob[r][t][j] = 0.5f * (float)(1 + r + t + j);
            }
        }
        w->window[r] = malloc(mf_dispatch_window_B(&shape));
        assert_non_null(w->window[r]);
        memset(w->window[r], 0xff, mf_dispatch_window_B(&shape));
        w->view[r] = mf_dispatch_view_of(&shape, w->window[r]);
        w->d[r] = (mf_kernel_dispatch){&w->x[r][0][0], &choices[r][0][0], &w->prob[r][0][0], false};
    }
    *state = w;
    return 0;
}

static int teardown(void **state) {
    fixture *w = *state;
    for (int r = 0; r < RANKS; r++) {
        free(w->window[r]);
    }
    free(w);
    return 0;
}

static bool owns(int rank, const int32_t *choice) {
    for (int j = 0; j < TOP_K; j++) {
        if (choice[j] >= 0 && choice[j] / EACH == rank) {
            return true;
        }
    }
    return false;
}

static void rows_go_once_to_every_owner_and_nowhere_else(void **state) {
    fixture *w = *state;
    assert_int_equal(mf_kernel_dispatch_run(&shape, w->d, w->view, NULL), MF_OK);
    for (int to = 0; to < RANKS; to++) {
        for (int from = 0; from < RANKS; from++) {
            for (int t = 0; t < TOKENS; t++) {
                const uint16_t *row = w->view[to].rows + (from * TOKENS + t) * COLS;
                bool sent = owns(to, choices[from][t]);
                for (int i = 0; i < COLS; i++) {
                    assert_int_equal(row[i], sent ? w->x[from][t][i] : 0xffff);
                }
            }
        }
    }
}

static void choices_are_seen_as_the_owners_own_experts(void **state) {
    fixture *w = *state;
    assert_int_equal(mf_kernel_dispatch_run(&shape, w->d, w->view, NULL), MF_OK);
    const int32_t *seen = w->view[1].index; /* rank 1 owns experts 2 and 3 */
    const int32_t want[TOKENS][TOP_K] = {{-1, -1, -1}, {-1, -1, 0}, {-1, -1, -1}, {1, 0, -1}};
    assert_memory_equal(seen, want, sizeof want);
    assert_memory_equal(w->view[1].prob, w->prob[0], sizeof w->prob[0]);
}

static void copies_count_tokens_and_foreign_owners(void **state) {
    (void)state;
    assert_int_equal(mf_dispatch_copies(&shape, &choices[0][0][0], 0), 4);
    assert_int_equal(mf_dispatch_copies(&shape, &choices[2][0][0], 2), 5);
}

/* Expert x multiplies by x + 1: combine must return sum over choices of weight * (x + 1) * row. */
static void combine_adds_what_all_experts_made(void **state) {
    fixture *w = *state;
    enum { SLOTS = RANKS * TOKENS * TOP_K };
    static uint16_t y[RANKS][SLOTS][COLS], out[RANKS][TOKENS][COLS];
    static int32_t row_of[RANKS][SLOTS];
    static float grad[RANKS][SLOTS];
    mf_kernel_combine c[RANKS];
    assert_int_equal(mf_kernel_dispatch_run(&shape, w->d, w->view, NULL), MF_OK);
    for (int r = 0; r < RANKS; r++) {
        int rows = 0;
        for (int s = 0; s < SLOTS; s++) {
            int32_t expert = w->view[r].index[s];
            row_of[r][s] = expert < 0 ? -1 : rows++;
            grad[r][s] = (float)(1000 * r + s);
            for (int i = 0; expert >= 0 && i < COLS; i++) {
                float x = mf_kernel_bf16_widen(w->view[r].rows[s / TOP_K * COLS + i]);
                y[r][row_of[r][s]][i] = mf_kernel_bf16_round((float)(r * EACH + expert + 1) * x);
            }
        }
        c[r] = (mf_kernel_combine){.y = &y[r][0][0],
                                   .local = w->view[r].index,
                                   .row_of_slot = row_of[r],
                                   .weight = w->view[r].prob,
                                   .slot_grad = grad[r],
                                   .index = &choices[r][0][0],
                                   .out = &out[r][0][0]};
    }
    assert_int_equal(mf_kernel_combine_run(&shape, c, w->view, NULL), MF_OK);
    for (int r = 0; r < RANKS; r++) {
        for (int t = 0; t < TOKENS; t++) {
            for (int i = 0; i < COLS; i++) {
                double want = 0;
                for (int j = 0; j < TOP_K; j++) {
                    int32_t x = choices[r][t][j];
                    want += x < 0 ? 0
                                  : (double)w->prob[r][t][j] * (x + 1) *
                                        (double)mf_kernel_bf16_widen(w->x[r][t][i]);
                }
                double got = (double)mf_kernel_bf16_widen(out[r][t][i]);
                assert_at_most(fabs(got - want), 1.2e-2 * want + 1e-6);
            }
            for (int j = 0; j < TOP_K; j++) {
                int32_t x = choices[r][t][j];
                if (x >= 0) {
                    const int owner = x / EACH, slot = (r * TOKENS + t) * TOP_K + j;
                    float sent = (float)(1000 * owner + slot);
                    assert_float_equal(w->view[r].prob_grad[t * TOP_K + j], sent, 0);
                }
            }
        }
    }
}

/* A row for each token that came, made of all its experts here: it is sent once, however many those
 * are, with the gradients of all of them. Rows and sums share the window. */
static void rows_that_were_added_up_before_are_sent_once(void **state) {
    fixture *w = *state;
    enum { ROWS = RANKS * TOKENS };
    static uint16_t y[RANKS][ROWS][COLS], out[RANKS][TOKENS][COLS];
    static int32_t row_of[RANKS][ROWS];
    static float grad[RANKS][ROWS * TOP_K];
    mf_dispatch_shape s = shape;
    mf_kernel_combine c[RANKS];
    s.shared = true;
    assert_int_equal(mf_dispatch_window_B(&shape) - mf_dispatch_window_B(&s), 256);
    for (int r = 0; r < RANKS; r++) {
        w->view[r] = mf_dispatch_view_of(&s, w->window[r]);
        assert_ptr_equal(w->view[r].rows, w->view[r].partial);
    }
    assert_int_equal(mf_kernel_dispatch_run(&s, w->d, w->view, NULL), MF_OK);
    for (int r = 0; r < RANKS; r++) {
        int rows = 0;
        for (int t = 0; t < ROWS; t++) {
            const bool here = owns(r, choices[t / TOKENS][t % TOKENS]);
            row_of[r][t] = here ? rows++ : -1;
            for (int i = 0; here && i < COLS; i++) {
                float x = mf_kernel_bf16_widen(w->view[r].rows[t * COLS + i]);
                y[r][row_of[r][t]][i] = mf_kernel_bf16_round((float)(r + 1) * x);
            }
            for (int j = 0; j < TOP_K; j++) {
                grad[r][t * TOP_K + j] = (float)(1000 * r + t * TOP_K + j);
            }
        }
        c[r] = (mf_kernel_combine){.y = &y[r][0][0],
                                   .local = w->view[r].index,
                                   .row_of_slot = row_of[r],
                                   .slot_grad = grad[r],
                                   .index = &choices[r][0][0],
                                   .out = &out[r][0][0],
                                   .by_token = true};
    }
    assert_int_equal(mf_kernel_combine_run(&s, c, w->view, NULL), MF_OK);
    for (int r = 0; r < RANKS; r++) {
        for (int t = 0; t < TOKENS; t++) {
            double factor = 0;
            for (int owner = 0; owner < RANKS; owner++) {
                factor += owns(owner, choices[r][t]) ? owner + 1 : 0;
            }
            for (int i = 0; i < COLS; i++) {
                const double want = factor * (double)mf_kernel_bf16_widen(w->x[r][t][i]);
                const double got = (double)mf_kernel_bf16_widen(out[r][t][i]);
                assert_at_most(fabs(got - want), 1.2e-2 * want + 1e-6);
            }
            for (int j = 0; j < TOP_K; j++) {
                const int32_t x = choices[r][t][j];
                const int owner = x / EACH, slot = (r * TOKENS + t) * TOP_K + j;
                const float sent = (float)(1000 * owner + slot);
                if (x >= 0) {
                    assert_float_equal(w->view[r].prob_grad[t * TOP_K + j], sent, 0);
                }
            }
        }
    }
}

static void shapes_outside_the_terms_are_refused(void **state) {
    (void)state;
    const mf_dispatch_shape wrong[] = {{33, 4, 8, 2, 66, false}, {2, 4, 12, 2, 4, false},
                                       {2, 4, 8, 33, 64, false}, {3, 4, 8, 2, 64, false},
                                       {2, -1, 8, 2, 64, true},  {4, 1 << 28, 8, 2, 64, true}};
    mf_err e;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        mf_err_clear(&e);
        assert_int_equal(mf_dispatch_check(&wrong[i], &e), MF_INPUT);
        assert_non_null(strstr(e.text, "dispatch"));
    }
}

/* What team t of the plan works on, by the steps the kernel takes: every piece of every token
 * once, in as many turns as the chunks hold. */
static void a_plan_of_combine_covers_every_piece_once(void **state) {
    (void)state;
    for (int i = 0; i < 300; i++) {
        const mf_dispatch_shape s = {.ranks = (int)kt_int(1, 8),
                                     .tokens = kt_int(0, 1) ? kt_int(0, 40) : kt_int(0, 3000),
                                     .cols = 8 * kt_int(1, 3000),
                                     .top_k = 4,
                                     .experts = 64};
        const int blocks = (int)kt_int(1, 160), share_B = (int)kt_int(100000, 232448);
        mf_combine_plan p;
        mf_combine_plan_choose(&s, blocks, share_B, &p);
        assert_at_least(p.slots, MF_COMBINE_SLOTS_LEAST);
        assert_at_most(p.slots, MF_COMBINE_SLOTS_MOST);
        assert_at_least(p.teams, 1);
        assert_at_most(p.teams, MF_COMBINE_TEAMS_MOST);
        assert_at_most(p.teams * (p.adders + MF_COMBINE_OTHERS), MF_COMBINE_WARPS_MOST);
        assert_int_equal(p.adders * MF_COMBINE_WARP_COLS, p.piece_cols);
        assert_int_equal(p.step, (uint32_t)blocks * p.teams);
        assert_true(p.team_B * p.teams == p.share_B);
        assert_true(p.team_B % 128 == 0);
        assert_at_most(p.share_B, (uint32_t)share_B);
        assert_at_most(p.chunks, MF_COMBINE_CHUNKS_MOST);
        assert_at_least(p.lag, 2);
        assert_at_most(p.early, 1); /* a later telling confirms what was sent */
        assert_at_most(p.piece_cols, MF_COMBINE_ADDERS_MOST * MF_COMBINE_WARP_COLS);
        assert_at_least((int64_t)p.pieces * p.piece_cols, s.cols);
        assert_below((int64_t)(p.pieces - 1) * p.piece_cols, s.cols);
        unsigned char *seen = calloc((size_t)p.count + 1, 1);
        assert_non_null(seen);
        for (uint32_t b = 0; b < p.step; b++) {
            uint32_t number = b, token = b / p.pieces, piece = b % p.pieces, turns = 0;
            for (; number < p.count; turns++) {
                assert_below((int64_t)token, s.tokens);
                assert_below(piece, p.pieces);
                assert_int_equal(seen[token * p.pieces + piece]++, 0);
                number += p.step, token += p.step_tokens, piece += p.step_pieces;
                if (piece >= p.pieces) {
                    piece -= p.pieces, token++;
                }
            }
            assert_at_most(turns, p.each * p.chunks);
        }
        for (uint32_t u = 0; u < p.count; u++) {
            assert_int_equal(seen[u], 1);
        }
        free(seen);
    }
}

/* Wide rows: one team, or two where blocks are few; narrow ones: as many as have units. Early sums
 * unless rows are wide and units many. */
static void plans_of_training_sizes_fill_shared_memory(void **state) {
    (void)state;
    const struct {
        int64_t tokens, cols;
        int blocks;
        const char *plan;
    } known[] = {
        {4096, 7168, 132,
         "4096 units, pieces of 7168 columns, teams of 14 adders: 1, 16 chunks of 2 finished 3 "
         "later, ring of 14, 230400 bytes"},
        {4096, 7168, 32,
         "4096 units, pieces of 7168 columns, teams of 14 adders: 2, 16 chunks of 4 finished 3 "
         "later, ring of 6, 231424 bytes"},
        {1024, 7168, 132,
         "1024 units, pieces of 7168 columns, teams of 14 adders: 2, 2 chunks of 2 finished 2 "
         "later with early sums, ring of 6, 231424 bytes"},
        {4096, 1024, 132,
         "4096 units, pieces of 1024 columns, teams of 2 adders: 8, 2 chunks of 2 finished 2 "
         "later with early sums, ring of 11, 221184 bytes"},
        {32768, 1024, 132,
         "32768 units, pieces of 1024 columns, teams of 2 adders: 8, 16 chunks of 2 finished 3 "
         "later with early sums, ring of 11, 221184 bytes"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const mf_dispatch_shape s = {.ranks = 4,
                                     .tokens = known[i].tokens,
                                     .cols = known[i].cols,
                                     .top_k = 8,
                                     .experts = 256};
        mf_combine_plan p;
        char text[200];
        mf_combine_plan_choose(&s, known[i].blocks, 232448, &p);
        assert_string_equal(mf_combine_plan_print(&p, text, sizeof text), known[i].plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_of_combine_covers_every_piece_once),
        cmocka_unit_test(plans_of_training_sizes_fill_shared_memory),
        cmocka_unit_test_setup_teardown(rows_go_once_to_every_owner_and_nowhere_else, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(choices_are_seen_as_the_owners_own_experts, setup,
                                        teardown),
        cmocka_unit_test(copies_count_tokens_and_foreign_owners),
        cmocka_unit_test_setup_teardown(combine_adds_what_all_experts_made, setup, teardown),
        cmocka_unit_test_setup_teardown(rows_that_were_added_up_before_are_sent_once, setup,
                                        teardown),
        cmocka_unit_test(shapes_outside_the_terms_are_refused),
    };
    kt_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
