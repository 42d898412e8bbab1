/* The text of products and of remembered algorithms: what is printed is read back, and nothing that
 * is not a choice is taken for one. */
#include "tests/support/kernel_test.h"

#include "kernels/gemm/gemm_autotune.h"
#include "kernels/gemm/gemm_choice.h"

static mf_gemm_choice random_choice(void) {
    mf_gemm_choice c;
    memset(&c, 0, sizeof c);
    snprintf(c.library, sizeof c.library, "cublas-13.%d.%d", (int)kt_int(0, 99), (int)kt_int(0, 9));
    snprintf(c.gpu, sizeof c.gpu, "sm_%d", (int)kt_int(80, 120));
    int32_t *numbers[] = {&c.algorithm, &c.tile,        &c.stages,  &c.split_k, &c.reduction,
                          &c.swizzle,   &c.inner_shape, &c.cluster, &c.custom};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        *numbers[i] = (int32_t)kt_int(-3, INT32_MAX);
    }
    int64_t words = kt_int(0, MF_GEMM_STATE_WORDS);
    for (int64_t i = 0; i < words; i++) {
        c.state[i] = (uint64_t)kt_int(0, INT64_MAX - 1) * 2 + (uint64_t)kt_int(0, 1);
    }
    return c;
}

static void a_choice_survives_its_text(void **state) {
    (void)state;
    for (int i = 0; i < 1000; i++) {
        mf_gemm_choice c = random_choice(), back;
        char text[MF_GEMM_CHOICE_TEXT];
        mf_gemm_choice_print(&c, text);
        assert_below(strlen(text), MF_GEMM_CHOICE_TEXT - 1);
        assert_ok(mf_gemm_choice_read(text, &back, NULL));
        assert_memory_equal(&back, &c, sizeof c);
    }
}

/* Cut anywhere, or with one character replaced, a text is refused or reads as something else. */
static void a_damaged_choice_is_refused_or_different(void **state) {
    (void)state;
    mf_gemm_choice c = random_choice(), back;
    c.state[MF_GEMM_STATE_WORDS - 1] = 1; /* the longest text */
    char text[MF_GEMM_CHOICE_TEXT], cut[MF_GEMM_CHOICE_TEXT];
    mf_gemm_choice_print(&c, text);
    for (size_t i = 0; text[i] != '\0'; i++) {
        memcpy(cut, text, i);
        cut[i] = '\0';
        if (mf_gemm_choice_read(cut, &back, NULL) == MF_OK) {
            assert_memory_not_equal(&back, &c, sizeof c); /* whole words of the state are gone */
            assert_int_equal(strlen(strrchr(cut, ' ') + 1) % 16, 0);
        }
        memcpy(cut, text, sizeof cut);
        cut[i] = text[i] == '~' ? '!' : '~';
        if (mf_gemm_choice_read(cut, &back, NULL) == MF_OK) {
            assert_memory_not_equal(&back, &c, sizeof c); /* a version is any word */
        }
    }
}

static void bad_choices_are_refused_by_name(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"", "cublas-VERSION"},
        {"cudnn-9 sm_90", "cublas-VERSION"},
        {"cublas-13.0.2 90", "sm_NN"},
        {"cublas-13.0.2 sm_90 tile 1", "\"algorithm\""},
        {"cublas-13.0.2 sm_90 algorithm 66 tile x", "\"tile\""},
        {"cublas-13.0.2 sm_90 algorithm 66666666666 tile 1", "\"algorithm\""},
        {"cublas-13.0.2 sm_90 algorithm 1 tile 1 stages 1 split_k 1 reduction 1 swizzle 1 "
         "inner_shape 1 cluster 1 custom 1 state 12",
         "\"state\""},
        {"cublas-13.0.2 sm_90 algorithm 1 tile 1 stages 1 split_k 1 reduction 1 swizzle 1 "
         "inner_shape 1 cluster 1 custom 1 state 0123456789abcdef more",
         "\"state\""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        mf_gemm_choice c = {.tile = 77};
        mf_err e;
        mf_err_clear(&e);
        assert_int_equal(mf_gemm_choice_read(wrong[i][0], &c, &e), MF_INPUT);
        assert_non_null(strstr(e.text, wrong[i][1]));
        assert_int_equal(c.tile, 77);
    }
}

static void a_shape_has_one_line_and_different_shapes_different_lines(void **state) {
    (void)state;
    mf_gemm_cuda_shape s = {.form = MF_GEMM_TN,
                            .a_type = MF_GEMM_BF16,
                            .b_type = MF_GEMM_BF16,
                            .m = INT64_MAX,
                            .n = INT64_MAX,
                            .k = INT64_MAX,
                            .lda = INT64_MAX,
                            .ldb = INT64_MAX,
                            .ldc = INT64_MAX,
                            .accumulate = true};
    char text[MF_GEMM_SHAPE_TEXT], other[MF_GEMM_SHAPE_TEXT];
    mf_gemm_shape_print(&s, text);
    assert_below(strlen(text), MF_GEMM_SHAPE_TEXT - 1); /* the longest there is */
    s.m = s.n = s.k = s.lda = s.ldb = s.ldc = 8;
    mf_gemm_shape_print(&s, text);
    assert_string_equal(
        text, "tn bf16 bf16 f32 scales none none m 8 n 8 k 8 lda 8 ldb 8 ldc 8 add 1 bias 0");
    for (int i = 0; i < 8; i++) {
        mf_gemm_cuda_shape t = s;
        t.form = i == 0 ? MF_GEMM_NT : t.form;
        t.c_type = i == 1 ? MF_GEMM_BF16 : t.c_type;
        t.accumulate = i == 2 ? false : t.accumulate;
        t.bias = i == 3;
        t.ldc = i == 4 ? 16 : t.ldc;
        t.b_scale = i == 5 ? MF_GEMM_SCALE_128X128 : t.b_scale;
        t.activation = i == 6 ? MF_GEMM_GELU : t.activation;
        t.bias_grad = i == 7;
        mf_gemm_shape_print(&t, other);
        assert_string_not_equal(text, other);
    }
}

static void finals_hold_what_may_be_fastest(void **state) {
    (void)state;
    const double one[] = {2e-3};
    mf_gemm_autotune f = mf_gemm_autotune_of(one, 1, 2);
    assert_int_equal(f.count, 1);
    assert_int_equal(f.rounds, 1);
    /* fastest first, none beyond 10 %, as many as there is space for */
    const double six[] = {1.30e-4, 1.05e-4, 1.00e-4, 1.08e-4, 1.02e-4, 1.06e-4};
    f = mf_gemm_autotune_of(six, 6, 5);
    const int want[] = {2, 4, 1};
    assert_int_equal(f.count, 3);
    assert_memory_equal(f.proposal, want, sizeof want);
    /* the library's guess displaces the slowest of them */
    const double guess[] = {1.09e-4, 1.05e-4, 1.00e-4, 1.08e-4, 1.02e-4, 1.06e-4};
    f = mf_gemm_autotune_of(guess, 6, 5);
    assert_int_equal(f.proposal[2], 0);
    assert_int_equal(f.proposal[1], 4);
    /* long products get fewer rounds of fewer proposals, every one gets three */
    const double brief[] = {1e-5, 1e-5}, longer[] = {1e-1, 1e-1, 1.01e-1, 1e-1};
    assert_int_equal(mf_gemm_autotune_of(brief, 2, 11).rounds, MF_GEMM_ROUNDS);
    f = mf_gemm_autotune_of(longer, 4, 1);
    assert_int_equal(f.count, 2);
    assert_int_equal(f.rounds, 3);
    /* at the power cap all near the fastest have their turn, once */
    const double capped[] = {1.09e-3, 1.05e-3, 1.00e-3, 1.20e-3, 1.02e-3, 1.06e-3, 1.11e-3, 1.5e-3};
    const int order[] = {2, 4, 1, 5, 0};
    f = mf_gemm_autotune_at_cap(capped, 8);
    assert_int_equal(f.count, 5);
    assert_int_equal(f.rounds, 1);
    assert_memory_equal(f.proposal, order, sizeof order);
    const double all[] = {1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.00};
    f = mf_gemm_autotune_at_cap(all, 8);
    assert_int_equal(f.count, MF_GEMM_AUTOTUNE_MOST);
    assert_int_equal(f.proposal[0], 7);
    assert_int_equal(f.proposal[MF_GEMM_AUTOTUNE_MOST - 1], 4);
}

/* A clock that moves between rounds by more than proposals differ does not choose, and neither
 * does a reading that a disturbance made long. */
static void the_least_median_wins(void **state) {
    (void)state;
    for (int trial = 0; trial < 500; trial++) {
        mf_gemm_autotune f = {.count = 2 + (int)kt_int(0, MF_GEMM_AUTOTUNE_MOST - 2)};
        f.rounds = 3 + 2 * (int)kt_int(0, 1);
        const int best = (int)kt_int(0, f.count - 1);
        const bool moves = kt_int(0, 1) == 1; /* the clock; else one reading is disturbed */
        mf_gemm_rounds at = {{{0.0}}};
        double found_s;
        int turns[MF_GEMM_AUTOTUNE_MOST] = {0};
        for (int r = 0; r < f.rounds; r++) {
            const double clock = moves ? kt_uniform(1.0, 1.1) : 1.0;
            unsigned seen = 0;
            for (int place = 0; place < f.count; place++) {
                const int i = mf_gemm_turn(&f, r, place);
                f.proposal[i] = 7 * (i + 1) % 5 + 10 * i;
                at.time_s[i][r] = 1e-4 * clock * (i == best ? 1.0 : 1.02 + 0.01 * i);
                seen |= 1u << i;
                turns[i] += place;
            }
            assert_int_equal(seen, (1u << f.count) - 1);
        }
        at.time_s[best][kt_int(0, f.rounds - 1)] *= moves ? 1.0 : 3.0;
        assert_int_equal(mf_gemm_winner(&f, &at, &found_s), best);
        for (int i = 0; i < f.count; i++) { /* nobody is always last */
            assert_true(f.rounds < f.count || turns[i] < f.rounds * (f.count - 1));
        }
    }
    /* of equals the library's better guess */
    mf_gemm_autotune f = {.count = 3, .rounds = 3, .proposal = {6, 1, 4}};
    const mf_gemm_rounds even = {
        {{1.000, 1.000, 1.001}, {1.004, 1.003, 1.003}, {1.006, 1.007, 1.006}}};
    double found_s;
    assert_int_equal(mf_gemm_winner(&f, &even, &found_s), 1);
    assert_true(found_s == 1.003);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finals_hold_what_may_be_fastest),
        cmocka_unit_test(the_least_median_wins),
        cmocka_unit_test(a_choice_survives_its_text),
        cmocka_unit_test(a_damaged_choice_is_refused_or_different),
        cmocka_unit_test(bad_choices_are_refused_by_name),
        cmocka_unit_test(a_shape_has_one_line_and_different_shapes_different_lines),
    };
    kt_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
