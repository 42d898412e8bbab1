/* Token permutation, regrouping and embedding references. */
#include "tests/support/kernel_test.h"

#include "kernels/moe/permute.h"
#include "kernels/rows/embedding.h"

enum { TOKENS = 9, TOP_K = 3, EXPERTS = 5, COLS = 4, SLOTS = TOKENS * TOP_K, ROWS_MAX = 48 };

typedef struct maps {
    int32_t index[SLOTS], counts[EXPERTS], offsets[EXPERTS + 1], row_of_slot[SLOTS];
    int32_t slot_of_row[ROWS_MAX], overflow, sticky;
} maps;

/* Random distinct experts for each token, none for expert 2, a few dropped slots. */
static void build_runs(maps *m, int64_t align, int64_t least, int64_t rows_max) {
    for (int t = 0; t < TOKENS; t++) {
        int first = (int)kt_int(0, 3);
        for (int j = 0; j < TOP_K; j++) {
            int x = (first + j) % 4;
            m->index[t * TOP_K + j] = kt_int(0, 9) == 0 ? -1 : x + (x >= 2);
        }
    }
    mf_kernel_permute_map a = {.tokens = TOKENS,
                               .top_k = TOP_K,
                               .experts = EXPERTS,
                               .align = align,
                               .least = least,
                               .rows_max = rows_max,
                               .index = m->index,
                               .counts = m->counts,
                               .offsets = m->offsets,
                               .row_of_slot = m->row_of_slot,
                               .slot_of_row = m->slot_of_row,
                               .overflow = &m->overflow,
                               .sticky = &m->sticky};
    assert_ok(mf_kernel_permute_map_build(&a, NULL));
}

static void build(maps *m, int64_t align, int64_t rows_max) {
    build_runs(m, align, 0, rows_max);
}

static void map_sorts_slots_by_expert_and_keeps_their_order(void **state) {
    (void)state;
    for (int64_t align = 1; align <= 4; align += 3) {
        maps m;
        build(&m, align, ROWS_MAX);
        assert_int_equal(m.overflow, 0);
        int row = 0, placed = 0;
        for (int x = 0; x < EXPERTS; x++) {
            assert_int_equal(m.offsets[x], row);
            int count = 0;
            for (int s = 0; s < SLOTS; s++) {
                if (m.index[s] == x) {
                    assert_int_equal(m.slot_of_row[row], s);
                    assert_int_equal(m.row_of_slot[s], row);
                    row++, count++, placed++;
                }
            }
            assert_int_equal(m.counts[x], count);
            for (; row % align; row++) {
                assert_int_equal(m.slot_of_row[row], -1);
            }
        }
        assert_int_equal(m.offsets[EXPERTS], row);
        for (int s = 0; s < SLOTS; s++) {
            placed += m.index[s] < 0 && m.row_of_slot[s] == -1;
        }
        assert_int_equal(placed, SLOTS);
    }
}

/* Runs of a fixed length: what is not there is a row of nothing. */
static void runs_are_no_shorter_than_their_least(void **state) {
    (void)state;
    maps m;
    build_runs(&m, 1, 9, ROWS_MAX);
    assert_int_equal(m.overflow, 0);
    for (int x = 0; x < EXPERTS; x++) {
        assert_int_equal(m.offsets[x], 9 * x);
        assert_at_most(m.counts[x], 9);
        for (int r = 0; r < 9; r++) {
            assert_int_equal(m.slot_of_row[9 * x + r] >= 0, r < m.counts[x]);
        }
    }
    assert_int_equal(m.offsets[EXPERTS], 9 * EXPERTS);
}

static void map_reports_overflow_and_writes_nothing_past_the_end(void **state) {
    (void)state;
    maps m;
    m.slot_of_row[10] = 12345;
    m.sticky = 0;
    build(&m, 1, 10);
    int32_t asked = m.sticky; /* thousandths of the ten rows, rounded up */
    assert_int_equal(m.overflow, 1);
    assert_int_equal(asked, 100 * m.offsets[EXPERTS]);
    assert_int_equal(m.slot_of_row[10], 12345);
    for (int s = 0; s < SLOTS; s++) {
        assert_below(m.row_of_slot[s], 10);
    }
    build(&m, 1, 11); /* the word holds what was asked for most */
    assert_int_equal(m.overflow, 1);
    const int32_t again = mf_kernel_asked(m.offsets[EXPERTS], 11);
    asked = again > asked ? again : asked;
    assert_int_equal(m.sticky, asked);
    build(&m, 1, ROWS_MAX); /* which fits: the word about all maps stays */
    assert_int_equal(m.overflow, 0);
    assert_int_equal(m.sticky, asked);
    m.sticky = 0;
    build(&m, 1, ROWS_MAX);
    assert_int_equal(m.sticky, 0);
}

typedef struct path {
    maps *m;
    double x[TOKENS * COLS], weight[SLOTS], dy[TOKENS * COLS], y[TOKENS * COLS];
    double in[ROWS_MAX * COLS];
} path;

/* Permute, unpermute with weights: y[t] = sum_j w[t, j] * (in[row] + x[t]). */
static double path_loss(const double *unused, void *user) {
    (void)unused;
    path *k = user;
    double loss = 0.0;
    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < COLS; c++) {
            double y = 0.0;
            for (int j = 0; j < TOP_K; j++) {
                int row = k->m->row_of_slot[t * TOP_K + j];
                y += row < 0
                         ? 0.0
                         : k->weight[t * TOP_K + j] * (k->in[row * COLS + c] + k->x[t * COLS + c]);
            }
            k->y[t * COLS + c] = y;
            loss += y * k->dy[t * COLS + c];
        }
    }
    return loss;
}

static void permute_and_unpermute_match_double_and_its_differences(void **state) {
    (void)state;
    path *k = kt_zeros(sizeof *k);
    maps m;
    build(&m, 4, ROWS_MAX);
    k->m = &m;
    mf_kernel_dtype d = MF_KERNEL_F32;
    float *x = kt_random(d, TOKENS * COLS, -1, 1, k->x);
    float *weight = kt_random(d, SLOTS, -1, 1, k->weight);
    float *dy = kt_random(d, TOKENS * COLS, -1, 1, k->dy);
    float *in = kt_random(d, ROWS_MAX * COLS, -1, 1, k->in);
    float *rows = kt_poison(sizeof(float) * ROWS_MAX * COLS);
    mf_kernel_permute p = {.dtype = d,
                           .rows = ROWS_MAX,
                           .cols = COLS,
                           .top_k = TOP_K,
                           .rows_dev = &m.offsets[EXPERTS],
                           .slot_of_row = m.slot_of_row,
                           .x = x,
                           .out = rows};
    assert_ok(mf_kernel_permute_forward(&p, NULL));
    for (int r = 0; r < m.offsets[EXPERTS]; r++) {
        for (int c = 0; c < COLS; c++) {
            float want = m.slot_of_row[r] < 0 ? 0.0f : x[m.slot_of_row[r] / TOP_K * COLS + c];
            assert_true(rows[r * COLS + c] == want);
            rows[r * COLS + c] += in[r * COLS + c];
        }
    }
    assert_true(isnan(rows[ROWS_MAX * COLS - 1])); /* rows past the count stay untouched */
    float y[TOKENS * COLS], add[TOKENS * COLS], dweight[SLOTS], drows[ROWS_MAX * COLS];
    for (int i = 0; i < TOKENS * COLS; i++) {
        add[i] = 1.0f;
    }
    mf_kernel_unpermute u = {.dtype = d,
                             .tokens = TOKENS,
                             .cols = COLS,
                             .top_k = TOP_K,
                             .row_of_slot = m.row_of_slot,
                             .weight = weight,
                             .in = rows,
                             .add = add,
                             .y = y};
    assert_ok(mf_kernel_unpermute_forward(&u, NULL));
    (void)path_loss(NULL, k);
    for (int i = 0; i < TOKENS * COLS; i++) {
        k->y[i] += 1.0;
    }
    kt_assert_close(y, d, k->y, TOKENS * COLS, 1e-6);

    double want_w[SLOTS], want_in[ROWS_MAX * COLS], want_x[TOKENS * COLS];
    kt_gradient(path_loss, k, k->weight, SLOTS, want_w);
    kt_gradient(path_loss, k, k->in, m.offsets[EXPERTS] * COLS, want_in);
    kt_gradient(path_loss, k, k->x, TOKENS * COLS, want_x);
    mf_kernel_unpermute_dweight w = {.dtype = d,
                                     .tokens = TOKENS,
                                     .cols = COLS,
                                     .top_k = TOP_K,
                                     .row_of_slot = m.row_of_slot,
                                     .dy = dy,
                                     .in = rows,
                                     .dweight = dweight};
    assert_ok(mf_kernel_unpermute_weight_grad(&w, NULL));
    kt_assert_close(dweight, d, want_w, SLOTS, 1e-6);
    p.x = dy, p.weight = weight, p.out = drows;
    assert_ok(mf_kernel_permute_forward(&p, NULL));
    kt_assert_close(drows, d, want_in, m.offsets[EXPERTS] * COLS, 1e-6);
    u.in = drows, u.weight = NULL, u.add = NULL;
    assert_ok(mf_kernel_unpermute_forward(&u, NULL));
    kt_assert_close(y, d, want_x, TOKENS * COLS, 1e-6);
    free(k), free(x), free(weight), free(dy), free(in), free(rows);
}

static void regroup_turns_source_runs_into_expert_runs(void **state) {
    (void)state;
    enum { SOURCES = 3, LOCAL = 2, MAX = 16 };
    /* source 0: 2 rows of expert 0, 1 of expert 1; source 1: none, 3; source 2: 1, 2. */
    const int32_t counts[] = {2, 1, 0, 3, 1, 2};
    const int32_t want[] = {0, 1, 6, 2, 3, 4, 5, 7, 8};
    int32_t offsets[LOCAL + 1], from[MAX], to[MAX], overflow;
    mf_kernel_regroup a = {.sources = SOURCES,
                           .experts = LOCAL,
                           .rows_max = MAX,
                           .counts = counts,
                           .offsets = offsets,
                           .from = from,
                           .to = to,
                           .overflow = &overflow};
    assert_ok(mf_kernel_permute_regroup(&a, NULL));
    assert_int_equal(offsets[1], 3);
    assert_int_equal(offsets[2], 9);
    assert_int_equal(overflow, 0);
    for (int r = 0; r < MAX; r++) {
        assert_int_equal(from[r], r < 9 ? want[r] : -1);
        assert_int_equal(r < 9 ? to[from[r]] : to[r], r < 9 ? r : -1);
    }
    float src[MAX], out[MAX];
    for (int r = 0; r < MAX; r++) {
        src[r] = (float)r;
        out[r] = -1.0f;
    }
    mf_kernel_permute_scalar s = {
        .rows = MAX, .rows_dev = &offsets[LOCAL], .map = from, .src = src, .out = out};
    assert_ok(mf_kernel_permute_scalars(&s, NULL));
    for (int r = 0; r < MAX; r++) {
        assert_true(out[r] == (r < 9 ? (float)want[r] : -1.0f));
    }
    a.rows_max = 8;
    assert_ok(mf_kernel_permute_regroup(&a, NULL));
    assert_int_equal(overflow, 1);
}

static void embedding_reads_rows_and_sums_their_gradients(void **state) {
    (void)state;
    enum { VOCAB = 6, BEGIN = 10 };
    const int32_t token[TOKENS] = {10, 15, 10, 9, 16, 12, 10, 15, 11};
    double table[VOCAB * COLS], dy[TOKENS * COLS], want[TOKENS * COLS] = {0}, grad[VOCAB * COLS];
    for (int bf16 = 0; bf16 < 2; bf16++) {
        mf_kernel_dtype d = bf16 ? MF_KERNEL_BF16 : MF_KERNEL_F32;
        void *t = kt_random(d, VOCAB * COLS, -1, 1, table);
        void *g = kt_random(d, TOKENS * COLS, -1, 1, dy);
        void *y = kt_poison(sizeof(float) * TOKENS * COLS);
        float dtable[VOCAB * COLS];
        for (int i = 0; i < VOCAB * COLS; i++) {
            grad[i] = 1.0, dtable[i] = 1.0f;
        }
        for (int i = 0; i < TOKENS; i++) {
            int v = token[i] - BEGIN;
            for (int c = 0; c < COLS && v >= 0 && v < VOCAB; c++) {
                want[i * COLS + c] = table[v * COLS + c];
                grad[v * COLS + c] += dy[i * COLS + c];
            }
        }
        mf_kernel_embedding f = {.dtype = d,
                                 .tokens = TOKENS,
                                 .cols = COLS,
                                 .begin = BEGIN,
                                 .vocab = VOCAB,
                                 .token = token,
                                 .table = t,
                                 .y = y};
        assert_ok(mf_kernel_embedding_forward(&f, NULL));
        kt_assert_close(y, d, want, TOKENS * COLS, 0.0);
        mf_kernel_embedding_grad b = {.dtype = d,
                                      .tokens = TOKENS,
                                      .cols = COLS,
                                      .begin = BEGIN,
                                      .vocab = VOCAB,
                                      .token = token,
                                      .dy = g,
                                      .dtable = dtable};
        assert_ok(mf_kernel_embedding_backward(&b, NULL));
        kt_assert_close(dtable, MF_KERNEL_F32, grad, VOCAB * COLS, 1e-6);
        free(t), free(g), free(y);
    }
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map_sorts_slots_by_expert_and_keeps_their_order),
        cmocka_unit_test(runs_are_no_shorter_than_their_least),
        cmocka_unit_test(map_reports_overflow_and_writes_nothing_past_the_end),
        cmocka_unit_test(permute_and_unpermute_match_double_and_its_differences),
        cmocka_unit_test(regroup_turns_source_runs_into_expert_runs),
        cmocka_unit_test(embedding_reads_rows_and_sums_their_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
