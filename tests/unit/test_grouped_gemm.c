/* test_grouped_gemm.c - the reference of the expert products, and the choices of the CUDA kernel:
 * its tiles cover every output once, its configs fit the GPU. */
#include "tests/support/test.h"

#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/grouped_gemm/grouped_gemm_tiles.h"
#include "kernels/kernel.h"
#include "kernels/moe/swiglu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t state;

static uint32_t next_random(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static uint64_t seed_random(void) {
    const char *text = getenv("MF_SEED");
    state = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)state);
    return state;
}

static void fill(uint16_t *p, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        p[i] = mf_kernel_bf16_round((float)((int)(next_random() % 129) - 64) / 16.0f);
    }
}

/* --- reference ---------------------------------------------------------------------------------
 */
enum { E = 3, N = 5, K = 4, ROWS = 8 };
static const int32_t offsets[E + 1] = {0, 3, 3, 7}; /* the second is empty, the last row is free */

typedef struct tensors {
    uint16_t x[ROWS * K], dy[ROWS * N], w[E * N * K], y[ROWS * N], dx[ROWS * K];
    float dw[E * N * K];
} tensors;

static tensors make_tensors(void) {
    tensors t;
    fill(t.x, ROWS * K);
    fill(t.dy, ROWS * N);
    fill(t.w, E * N * K);
    memset(t.y, 0xff, sizeof t.y);
    memset(t.dx, 0xff, sizeof t.dx);
    for (int i = 0; i < E * N * K; i++) {
        t.dw[i] = 1000.0f;
    }
    return t;
}

static mf_kernel_grouped_gemm problem(mf_grouped_kind kind, bool accumulate, tensors *t) {
    mf_kernel_grouped_gemm g = {.kind = kind,
                                .accumulate = accumulate,
                                .experts = E,
                                .rows = ROWS,
                                .n = N,
                                .k = K,
                                .offsets = offsets};
    g.a = kind == MF_GROUPED_FORWARD ? t->x : t->dy;
    g.b = kind == MF_GROUPED_WGRAD ? t->x : t->w;
    g.out = kind == MF_GROUPED_FORWARD ? (void *)t->y
            : kind == MF_GROUPED_DGRAD ? (void *)t->dx
                                       : (void *)t->dw;
    return g;
}

static float at(const uint16_t *p, int i) {
    return mf_kernel_bf16_widen(p[i]);
}

static int expert_of(int row) {
    return row < 3 ? 0 : row < 7 ? 2 : -1;
}

static void forward_multiplies_each_row_by_its_experts_weight(void **s) {
    (void)s;
    tensors t = make_tensors();
    const mf_kernel_grouped_gemm g = problem(MF_GROUPED_FORWARD, false, &t);
    assert_ok(mf_kernel_grouped_gemm_run(&g, NULL));
    for (int r = 0; r < ROWS; r++) {
        for (int n = 0; n < N; n++) {
            const int e = expert_of(r);
            float sum = 0;
            for (int k = 0; e >= 0 && k < K; k++) {
                sum += at(t.x, r * K + k) * at(t.w, (e * N + n) * K + k);
            }
            const uint16_t want = e < 0 ? 0xffff : mf_kernel_bf16_round(sum);
            assert_int_equal(t.y[r * N + n], want);
        }
    }
}

static void dgrad_multiplies_by_the_transposed_weight(void **s) {
    (void)s;
    tensors t = make_tensors();
    const mf_kernel_grouped_gemm g = problem(MF_GROUPED_DGRAD, false, &t);
    assert_ok(mf_kernel_grouped_gemm_run(&g, NULL));
    for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < K; k++) {
            const int e = expert_of(r);
            float sum = 0;
            for (int n = 0; e >= 0 && n < N; n++) {
                sum += at(t.dy, r * N + n) * at(t.w, (e * N + n) * K + k);
            }
            const uint16_t want = e < 0 ? 0xffff : mf_kernel_bf16_round(sum);
            assert_int_equal(t.dx[r * K + k], want);
        }
    }
}

static void wgrad_sums_over_the_experts_tokens_only(void **s) {
    (void)s;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        tensors t = make_tensors();
        const mf_kernel_grouped_gemm g = problem(MF_GROUPED_WGRAD, accumulate != 0, &t);
        assert_ok(mf_kernel_grouped_gemm_run(&g, NULL));
        for (int i = 0; i < E * N * K; i++) {
            float sum = 0;
            for (int r = 0; r < ROWS; r++) {
                if (expert_of(r) == i / (N * K)) {
                    sum += at(t.dy, r * N + i / K % N) * at(t.x, r * K + i % K);
                }
            }
            assert_float_equal(t.dw[i], accumulate ? 1000.0f + sum : sum, 1e-3);
        }
    }
}

static void wgrad_without_sums_can_be_bf16(void **s) {
    (void)s;
    tensors t = make_tensors();
    uint16_t half[E * N * K];
    mf_kernel_grouped_gemm g = problem(MF_GROUPED_WGRAD, false, &t);
    assert_ok(mf_kernel_grouped_gemm_run(&g, NULL));
    g.out = half;
    g.bf16 = true;
    assert_ok(mf_kernel_grouped_gemm_run(&g, NULL));
    for (int i = 0; i < E * N * K; i++) {
        assert_int_equal(half[i], mf_kernel_bf16_round(t.dw[i]));
    }
}

static void offsets_past_the_buffer_are_read_as_its_end(void **s) {
    (void)s;
    static const int32_t overflowing[E + 1] = {0, 3, 90, 100};
    tensors t = make_tensors();
    mf_kernel_grouped_gemm g = problem(MF_GROUPED_FORWARD, false, &t);
    g.offsets = overflowing;
    g.rows = ROWS - 1;
    assert_ok(mf_kernel_grouped_gemm_run(&g, NULL));
    assert_int_not_equal(t.y[(ROWS - 2) * N], 0xffff);
    assert_int_equal(t.y[(ROWS - 1) * N], 0xffff);
}

/* The same bits as a product and the activation behind it. */
static void activation_equals_that_of_a_pass_of_its_own(void **s) {
    (void)s;
    enum { F = 3 };
    for (int weighted = 0; weighted < 2; weighted++) {
        tensors t = make_tensors();
        uint16_t y[ROWS * 2 * F], act[ROWS * F], want[ROWS * F];
        float prob[ROWS];
        uint16_t w[E * 2 * F * K];
        fill(w, E * 2 * F * K);
        for (int r = 0; r < ROWS; r++) {
            prob[r] = 0.1f * (float)(r + 1);
        }
        memset(act, 0xff, sizeof act);
        memset(want, 0xff, sizeof want);
        mf_kernel_grouped_gemm g = problem(MF_GROUPED_FORWARD, false, &t);
        g.n = (int64_t)2 * F;
        g.b = w;
        g.out = y;
        g.act = act;
        g.prob = weighted ? prob : NULL;
        assert_ok(mf_kernel_grouped_gemm_run(&g, NULL));
        const mf_kernel_swiglu apart = {
            .shape = {.dtype = MF_KERNEL_BF16, .rows = 7, .cols = F, .prob = g.prob},
            .gate_up = y,
            .y = want};
        assert_ok(mf_kernel_swiglu_forward(&apart, NULL));
        assert_memory_equal(act, want, sizeof act);
        for (int r = 0; r < 7; r++) { /* by the formula, of what was rounded */
            const float gate = at(y, r * 2 * F), up = at(y, r * 2 * F + F);
            const float value = gate / (1 + expf(-gate)) * up * (weighted ? prob[r] : 1);
            assert_float_equal(at(act, r * F), value, 0.01f * fabsf(value) + 1e-6f);
        }
    }
}

static void work_counts_operations_and_least_bytes(void **s) {
    (void)s;
    tensors t = make_tensors();
    mf_kernel_grouped_gemm g = problem(MF_GROUPED_FORWARD, false, &t);
    assert_float_equal(mf_grouped_flops(&g, 7), 2 * 7 * N * K, 0);
    assert_float_equal(mf_grouped_least_B(&g, 7), 2 * 7 * (N + K) + 2 * E * N * K, 0);
    uint16_t act[1];
    g.n = 6;
    g.act = act;
    assert_float_equal(mf_grouped_least_B(&g, 7), 2 * 7 * (6 + 3 + K) + 2 * E * 6 * K, 0);
    g = problem(MF_GROUPED_WGRAD, true, &t);
    assert_float_equal(mf_grouped_least_B(&g, 7), 2 * 7 * (N + K) + 8 * E * N * K, 0);
}

/* --- tiles -------------------------------------------------------------------------------------
 */
/* Pairs of all experts, as the kernel counts them. */
static int total_pairs(const mf_grouped_space *sp, const int32_t *offs) {
    int pairs = 0;
    for (int x = 0; x < sp->experts; x++) {
        int32_t begin, count, tiles_m;
        mf_grouped_segment(sp, offs, x, &begin, &count);
        pairs += mf_grouped_pairs(sp, count, &tiles_m);
    }
    return pairs;
}

/* Checks a turn of both blocks and marks the boxes (128 x 64) that they write. */
static void check_tiles(const mf_grouped_space *sp, const int32_t *offs, const mf_grouped_tile *t,
                        int *visits, size_t per_expert, int boxes_n) {
    assert_int_equal(t[0].by_rows, t[1].by_rows);
    assert_int_equal(t[0].expert, t[1].expert);
    if (t[0].by_rows) { /* what is shared must be the same */
        assert_int_equal(t[0].n, t[1].n);
        assert_int_equal(t[0].boxes, t[1].boxes);
    } else {
        assert_int_equal(t[0].m, t[1].m);
    }
    for (int r = 0; r < 2; r++) {
        int32_t begin, count;
        mf_grouped_segment(sp, offs, t[r].expert, &begin, &count);
        assert_int_equal(t[r].begin, begin);
        assert_int_equal(t[r].count, count);
        assert_at_least(t[r].m, 0);
        assert_below(t[r].m, (sp->out_rows ? sp->out_rows : count));
        assert_at_least(t[r].n, 0);
        assert_at_least(t[r].boxes, 0);
        assert_at_most(t[r].boxes, 4);
        if (sp->gated) {
            assert_int_equal(t[r].boxes % 2, 0);
            assert_int_equal(t[r].n % (2 * MF_GROUPED_BOX), 0);
        }
        for (int i = 0; i < t[r].boxes; i++) {
            const int box = t[r].n / MF_GROUPED_BOX + i;
            assert_below(box, boxes_n);
            visits[(size_t)t[r].expert * per_expert +
                   (size_t)(t[r].m / MF_GROUPED_TILE_M * boxes_n + box)]++;
        }
    }
}

/* Walks all clusters as the kernel does and counts how often each box is visited. */
static void check_cover(const mf_grouped_space *sp, const int32_t *offs, int clusters,
                        bool balance) {
    const int halves = sp->gated ? 2 : 1;
    const int boxes_n = (sp->out_cols / halves + MF_GROUPED_BOX - 1) / MF_GROUPED_BOX * halves;
    const int rows_most = sp->out_rows ? sp->out_rows : sp->rows;
    const size_t per_expert = (size_t)(rows_most / MF_GROUPED_TILE_M + 1) * (size_t)boxes_n;
    int *visits = calloc((size_t)sp->experts * per_expert + 1, sizeof *visits);
    assert_non_null(visits);
    mf_grouped_split split = {0, 1};
    if (balance) {
        split = mf_grouped_split_choose(sp, total_pairs(sp, offs), clusters);
    }
    int fewest = INT32_MAX, most = 0;
    for (int c = 0; c < clusters; c++) {
        mf_grouped_walk walk[2] = {mf_grouped_walk_start(), mf_grouped_walk_start()};
        mf_grouped_tile t[2] = {{0}, {0}};
        int whole = 0;
        for (int k = 0;; k++) {
            const int turn = mf_grouped_turn(&split, k, c, clusters);
            if (turn < 0) {
                continue;
            }
            const bool more = mf_grouped_walk_seek(sp, &split, offs, &walk[0], turn, 0, &t[0]);
            assert_int_equal(mf_grouped_walk_seek(sp, &split, offs, &walk[1], turn, 1, &t[1]),
                             more);
            if (!more) {
                break;
            }
            whole += turn >= split.pairs_sliced * split.slices;
            check_tiles(sp, offs, t, visits, per_expert, boxes_n);
        }
        fewest = whole < fewest ? whole : fewest;
        most = whole > most ? whole : most;
    }
    assert_at_most(most - fewest, (balance ? 0 : 1));
    for (int x = 0; x < sp->experts; x++) {
        int32_t begin, count;
        mf_grouped_segment(sp, offs, x, &begin, &count);
        const int rows = sp->skip_empty && count == 0 ? 0 : sp->out_rows ? sp->out_rows : count;
        for (size_t i = 0; i < per_expert; i++) {
            const bool inside = (int)(i / (size_t)boxes_n) * MF_GROUPED_TILE_M < rows;
            assert_int_equal(visits[(size_t)x * per_expert + i], inside ? 1 : 0);
        }
    }
    free(visits);
}

static void every_box_of_every_expert_is_written_once(void **s) {
    (void)s;
    seed_random();
    for (int round = 0; round < 400; round++) {
        int32_t offs[12] = {0};
        const int experts = 1 + (int)(next_random() % 11);
        for (int x = 0; x < experts; x++) {
            offs[x + 1] = offs[x] + (next_random() % 3 ? (int32_t)(next_random() % 1200) : 0);
        }
        const mf_grouped_space sp = {
            .experts = experts,
            .rows = offs[experts] - (int32_t)(next_random() % 5 == 0 ? offs[experts] / 3 : 0),
            .out_rows = next_random() % 2 ? 8 * (1 + (int32_t)(next_random() % 100)) : 0,
            .out_cols = 8 * (1 + (int32_t)(next_random() % 300)),
            .skip_empty = next_random() % 2 != 0,
            .raster = 1 + (int32_t)(next_random() % 9),
        };
        mf_grouped_space halves = sp;
        halves.gated = 1;
        halves.out_rows = 0;
        halves.out_cols *= 2;
        check_cover(&halves, offs, 1 + (int)(next_random() % 70), next_random() % 2 != 0);
        check_cover(&sp, offs, 1 + (int)(next_random() % 70), next_random() % 2 != 0);
    }
}

static void tiles_that_run_together_form_a_near_square(void **s) {
    (void)s;
    const mf_grouped_space sp = {1, 8192, 0, 8192, 1, 8, 0};
    const int32_t offs[2] = {0, 8192};
    const mf_grouped_split split = {0, 1};
    mf_grouped_walk w = mf_grouped_walk_start();
    mf_grouped_tile t = {0};
    int m_most = 0, n_most = 0;
    for (int turn = 0; turn < 64; turn++) {
        assert_true(mf_grouped_walk_seek(&sp, &split, offs, &w, turn, 1, &t));
        m_most = t.m > m_most ? t.m : m_most;
        n_most = t.n > n_most ? t.n : n_most;
    }
    assert_int_equal(m_most + MF_GROUPED_TILE_M, 2048);
    assert_int_equal(n_most + MF_GROUPED_TILE_N, 2048);
}

static void a_short_first_round_takes_what_is_over(void **s) {
    (void)s;
    static const struct {
        int pairs, clusters, sliced, slices, gated;
    } cases[] = {
        {66, 66, 0, 1, 0},    /* nothing over */
        {2048, 66, 2, 4, 0},  /* 2 over: 8 quarter slices */
        {3584, 66, 20, 2, 0}, /* 20 over: 40 halves in one round beat 80 quarters in two */
        {1024, 66, 34, 1, 0}, /* 34 over: slices would need too many rounds */
        {131, 66, 65, 1, 0},  /* 65 over: whole */
        {3, 66, 3, 4, 0},     /* fewer pairs than clusters */
        {2048, 66, 2, 2, 1},  /* gate and up: no less than a box of each */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const mf_grouped_space sp = {.gated = cases[i].gated};
        const mf_grouped_split x = mf_grouped_split_choose(&sp, cases[i].pairs, cases[i].clusters);
        assert_int_equal(x.pairs_sliced, cases[i].sliced);
        assert_int_equal(cases[i].sliced ? x.slices : 1, cases[i].slices);
    }
}

/* --- configs -----------------------------------------------------------------------------------
 */
static const mf_grouped_device h200 = {132, 232448, 60 << 20};

static void chosen_configs_fit_the_device_and_print(void **s) {
    (void)s;
    tensors t = make_tensors();
    for (int kind = 0; kind < MF_GROUPED_KINDS; kind++) {
        mf_kernel_grouped_gemm g = problem((mf_grouped_kind)kind, false, &t);
        g.n = 4096;
        g.k = 7168;
        mf_grouped_config c;
        char text[200];
        assert_ok(mf_grouped_config_choose(&g, &h200, &c, NULL));
        assert_at_most(c.smem_B, h200.smem_max_B);
        assert_at_most(c.blocks, h200.sm_count);
        assert_true(c.blocks % c.cluster == 0);
        assert_non_null(strstr(mf_grouped_config_print(&c, text, sizeof text), "128x256x64"));
        char truncated[8];
        assert_string_equal(mf_grouped_config_print(&c, truncated, sizeof truncated), "128x256");
    }
}

static void shapes_outside_the_copy_engines_terms_are_refused(void **s) {
    (void)s;
    tensors t = make_tensors();
    mf_kernel_grouped_gemm g = problem(MF_GROUPED_FORWARD, false, &t);
    mf_grouped_config c;
    mf_err e;
    mf_err_clear(&e);
    g.n = 4100;
    g.k = 64;
    assert_int_equal(mf_grouped_config_choose(&g, &h200, &c, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "4100"));
    uint16_t act[1];
    g.n = 4104; /* halves of 2,052 */
    assert_ok(mf_grouped_config_choose(&g, &h200, &c, &e));
    g.act = act;
    assert_int_equal(mf_grouped_config_choose(&g, &h200, &c, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "4104"));
    g.act = NULL;
    g.n = 4096;
    g.rows = (int64_t)1 << 31;
    assert_int_equal(mf_grouped_config_choose(&g, &h200, &c, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "2147483648 rows"));
}

static void configs_that_cannot_run_are_refused(void **s) {
    (void)s;
    tensors t = make_tensors();
    mf_kernel_grouped_gemm g = problem(MF_GROUPED_FORWARD, false, &t);
    g.n = g.k = 64;
    mf_grouped_config good, bad;
    assert_ok(mf_grouped_config_choose(&g, &h200, &good, NULL));
    const mf_grouped_device small = {132, 100 << 10, 60 << 20};
    assert_int_equal(mf_grouped_config_check(&good, &small, NULL), MF_INPUT);
    bad = good;
    bad.stages = 17;
    assert_int_equal(mf_grouped_config_check(&bad, &h200, NULL), MF_INPUT);
    bad = good;
    bad.blocks = 131;
    assert_int_equal(mf_grouped_config_check(&bad, &h200, NULL), MF_INPUT);
    bad = good;
    bad.raster = 0;
    assert_int_equal(mf_grouped_config_check(&bad, &h200, NULL), MF_INPUT);
}

int main(void) {
    seed_random();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_multiplies_each_row_by_its_experts_weight),
        cmocka_unit_test(dgrad_multiplies_by_the_transposed_weight),
        cmocka_unit_test(wgrad_sums_over_the_experts_tokens_only),
        cmocka_unit_test(wgrad_without_sums_can_be_bf16),
        cmocka_unit_test(offsets_past_the_buffer_are_read_as_its_end),
        cmocka_unit_test(activation_equals_that_of_a_pass_of_its_own),
        cmocka_unit_test(work_counts_operations_and_least_bytes),
        cmocka_unit_test(every_box_of_every_expert_is_written_once),
        cmocka_unit_test(tiles_that_run_together_form_a_near_square),
        cmocka_unit_test(a_short_first_round_takes_what_is_over),
        cmocka_unit_test(chosen_configs_fit_the_device_and_print),
        cmocka_unit_test(shapes_outside_the_copy_engines_terms_are_refused),
        cmocka_unit_test(configs_that_cannot_run_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
