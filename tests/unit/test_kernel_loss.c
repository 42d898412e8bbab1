/* Cross-entropy over a split vocabulary, AdamW and the gradient norm against double precision. */
#include "tests/support/kernel_test.h"

#include "kernels/optimizer/grad_norm.h"
#include "kernels/rows/cross_entropy.h"

#include <time.h>

enum { ROWS = 5, VOCAB = 22, PADDED = 24, RANKS = 3, PART = PADDED / RANKS };

typedef struct ce_case {
    double logits[ROWS * PADDED], loss[ROWS];
    int32_t target[ROWS];
} ce_case;

static const double ce_scale = 0.25;

static double ce_loss(const double *unused, void *user) {
    (void)unused;
    ce_case *k = user;
    double total = 0.0;
    for (int r = 0; r < ROWS; r++) {
        double sum = 0.0;
        for (int v = 0; v < VOCAB; v++) {
            sum += exp(k->logits[r * PADDED + v]);
        }
        k->loss[r] = k->target[r] < 0 ? 0.0 : log(sum) - k->logits[r * PADDED + k->target[r]];
        total += k->loss[r];
    }
    return total * ce_scale;
}

/* The other way to the loss: the maximum over ranks, rescaled sums, the sum over ranks. */
static void combine_as_one(mf_kernel_ce_combine c, float *stats) {
    float own[RANKS][ROWS], all[3 * ROWS] = {0};
    for (int r = 0; r < ROWS; r++) {
        all[r] = -INFINITY;
        for (int p = 0; p < RANKS; p++) {
            own[p][r] = stats[p * 3 * ROWS + r];
            all[r] = own[p][r] > all[r] ? own[p][r] : all[r];
        }
    }
    for (int p = 0; p < RANKS; p++) {
        float *part = stats + p * 3 * ROWS;
        memcpy(part, all, ROWS * sizeof *all);
        const mf_kernel_ce_rescale a = {.rows = ROWS, .own_highest = own[p], .stats = part};
        assert_ok(mf_kernel_cross_entropy_rescale(&a, NULL));
        for (int i = ROWS; i < 3 * ROWS; i++) {
            all[i] += part[i];
        }
    }
    c.ranks = 1, c.stats = all;
    assert_ok(mf_kernel_cross_entropy_combine(&c, NULL));
}

static void check_cross_entropy(mf_kernel_dtype d) {
    ce_case *k = kt_zeros(sizeof *k);
    void *logits = kt_random(d, ROWS * PADDED, -4, 4, k->logits);
    float stats[RANKS * 3 * ROWS], lse[ROWS], loss[ROWS];
    double sum = 1.0; /* added to */
    for (int r = 0; r < ROWS; r++) {
        k->target[r] = r == 2 ? -100 : (int32_t)kt_int(0, VOCAB - 1);
    }
    k->target[0] = VOCAB - 1;
    for (int p = 0; p < RANKS; p++) {
        mf_kernel_ce_stats s = {.dtype = d,
                                .rows = ROWS,
                                .cols = PART,
                                .stride = PADDED,
                                .begin = (int64_t)p * PART,
                                .vocab = VOCAB,
                                .logits = mf_kernel_row(logits, d, p, PART),
                                .target = k->target,
                                .stats = stats + p * 3 * ROWS};
        assert_ok(mf_kernel_cross_entropy_stats(&s, NULL));
    }
    mf_kernel_ce_combine c = {.rows = ROWS,
                              .ranks = RANKS,
                              .stats = stats,
                              .target = k->target,
                              .lse = lse,
                              .loss = loss,
                              .loss_sum = &sum,
                              .loss_scale = 0.5};
    assert_ok(mf_kernel_cross_entropy_combine(&c, NULL));
    double want_sum = 0.5 * ce_loss(NULL, k) / ce_scale;
    kt_assert_close(loss, MF_KERNEL_F32, k->loss, ROWS, 1e-6);
    assert_below(fabs((sum - 1.0) / want_sum - 1.0), 1e-6);
    combine_as_one(c, stats);
    kt_assert_close(loss, MF_KERNEL_F32, k->loss, ROWS, 1e-6);
    assert_below(fabs((sum - 1.0) / want_sum - 2.0), 1e-6);
    double want[ROWS * PADDED];
    kt_gradient(ce_loss, k, k->logits, ROWS * PADDED, want);
    for (int p = 0; p < RANKS; p++) {
        mf_kernel_ce_grad b = {.dtype = d,
                               .rows = ROWS,
                               .cols = PART,
                               .stride = PADDED,
                               .begin = (int64_t)p * PART,
                               .vocab = VOCAB,
                               .target = k->target,
                               .lse = lse,
                               .scale = (float)ce_scale,
                               .logits = mf_kernel_row_mut(logits, d, p, PART)};
        assert_ok(mf_kernel_cross_entropy_backward(&b, NULL));
    }
    kt_assert_close(logits, d, want, ROWS * PADDED, kt_bound(d));
    for (int r = 0; r < ROWS; r++) { /* padding of the table gets exactly no gradient */
        for (int v = VOCAB; v < PADDED; v++) {
            assert_true(mf_kernel_get(logits, d, r * PADDED + v) == 0.0f);
        }
    }
    free(k), free(logits);
}

static void split_cross_entropy_matches_double_and_its_differences(void **state) {
    (void)state;
    check_cross_entropy(MF_KERNEL_F32);
    check_cross_entropy(MF_KERNEL_BF16);
}

/* In one, all columns here: as stats, combine and backward one after the other. */
static void whole_cross_entropy_is_its_three_steps(void **state) {
    (void)state;
    const mf_kernel_dtype types[] = {MF_KERNEL_F32, MF_KERNEL_BF16};
    for (int i = 0; i < 2; i++) {
        ce_case *k = kt_zeros(sizeof *k);
        float stats[3 * ROWS], lse[ROWS];
        double sum = 1.0, want[ROWS * PADDED]; /* the sum is added to */
        void *logits = kt_random(types[i], ROWS * PADDED, -4, 4, k->logits);
        for (int r = 0; r < ROWS; r++) {
            k->target[r] = r == 2 ? -100 : (int32_t)kt_int(0, VOCAB - 1);
        }
        const mf_kernel_ce_whole a = {.dtype = types[i],
                                      .rows = ROWS,
                                      .cols = PADDED,
                                      .stride = PADDED,
                                      .vocab = VOCAB,
                                      .target = k->target,
                                      .scale = (float)ce_scale,
                                      .logits = logits,
                                      .stats = stats,
                                      .lse = lse,
                                      .loss_sum = &sum,
                                      .loss_scale = 0.5};
        kt_gradient(ce_loss, k, k->logits, ROWS * PADDED, want);
        assert_ok(mf_kernel_cross_entropy(&a, NULL));
        assert_below(fabs((sum - 1.0) / (0.5 * ce_loss(NULL, k) / ce_scale) - 1.0), 1e-6);
        kt_assert_close(logits, types[i], want, ROWS * PADDED, kt_bound(types[i]));
        free(k), free(logits);
    }
}

static void cross_entropy_survives_extreme_logits(void **state) {
    (void)state;
    float logits[4] = {3e38f, -3e38f, 0.0f, -INFINITY}, stats[3], lse[1], loss[1];
    int32_t target[1] = {0};
    mf_kernel_ce_stats s = {.rows = 1,
                            .cols = 4,
                            .stride = 4,
                            .vocab = 4,
                            .logits = logits,
                            .target = target,
                            .stats = stats};
    assert_ok(mf_kernel_cross_entropy_stats(&s, NULL));
    mf_kernel_ce_combine c = {
        .rows = 1, .ranks = 1, .stats = stats, .target = target, .lse = lse, .loss = loss};
    assert_ok(mf_kernel_cross_entropy_combine(&c, NULL));
    assert_true(loss[0] == 0.0f);
}

/* A rank with nothing but padding, beside one with logits, or with another such. */
static void rescaling_survives_ranks_without_columns(void **state) {
    (void)state;
    float stats[6] = {2.0f, -INFINITY};
    const float own[2] = {-INFINITY, -INFINITY};
    mf_kernel_ce_rescale a = {.rows = 2, .own_highest = own, .stats = stats};
    assert_ok(mf_kernel_cross_entropy_rescale(&a, NULL));
    assert_true(stats[2] == 0.0f);
    assert_true(stats[3] == 0.0f);
    const float lower[2] = {1.0f, -INFINITY};
    stats[2] = 4.0f, a.own_highest = lower;
    assert_ok(mf_kernel_cross_entropy_rescale(&a, NULL));
    assert_true(stats[2] == 4.0f * expf(-1.0f));
    assert_true(stats[3] == 0.0f);
    assert_true(stats[0] == 2.0f);
}

/* PyTorch's AdamW, step by step in double. */
static void adamw_follows_the_published_rule_for_ten_steps(void **state) {
    (void)state;
    enum { N = 37, STEPS = 10 };
    const double lr = 1e-2, b1 = 0.9, b2 = 0.95, eps = 1e-2, decay = 0.1, clip = 0.5, scale = 2.0;
    double p[N], m[N] = {0}, v[N] = {0}, g[N];
    float *master = kt_random(MF_KERNEL_F32, N, -1, 1, p);
    float fm[N] = {0}, fv[N] = {0}, fclip = (float)clip;
    uint16_t param[N];
    for (int step = 1; step <= STEPS; step++) {
        float *grad = kt_random(MF_KERNEL_F32, N, -1, 1, g);
        mf_kernel_adamw_tensor t = {.master = master,
                                    .param = param,
                                    .grad = grad,
                                    .m = fm,
                                    .v = fv,
                                    .count = N,
                                    .decay = (float)decay};
        mf_kernel_adamw a = {.moments = MF_KERNEL_F32,
                             .lr = (float)lr,
                             .beta1 = (float)b1,
                             .beta2 = (float)b2,
                             .eps = (float)eps,
                             .grad_scale = (float)scale,
                             .step = step,
                             .clip = &fclip,
                             .tensors = 1,
                             .tensor = &t};
        assert_ok(mf_kernel_adamw_update(&a, NULL));
        for (int i = 0; i < N; i++) {
            double x = g[i] * clip * scale;
            p[i] *= 1 - lr * decay;
            m[i] = b1 * m[i] + (1 - b1) * x;
            v[i] = b2 * v[i] + (1 - b2) * x * x;
            double mh = m[i] / (1 - pow(b1, step)), vh = v[i] / (1 - pow(b2, step));
            p[i] -= lr * mh / (sqrt(vh) + eps);
        }
        free(grad);
    }
    kt_assert_close(master, MF_KERNEL_F32, p, N, 1e-6);
    kt_assert_close(fm, MF_KERNEL_F32, m, N, 1e-6);
    kt_assert_close(fv, MF_KERNEL_F32, v, N, 1e-6);
    for (int i = 0; i < N; i++) {
        assert_int_equal(param[i], mf_kernel_bf16_round(master[i]));
    }
    free(master);
}

static void adamw_with_bf16_moments_stays_near_float_moments(void **state) {
    (void)state;
    enum { N = 64 };
    double start[N];
    float *a = kt_random(MF_KERNEL_F32, N, -1, 1, start), *b = malloc(sizeof(float) * N);
    memcpy(b, a, sizeof(float) * N);
    float *grad = kt_random(MF_KERNEL_F32, N, -1, 1, NULL), fm[N] = {0}, fv[N] = {0};
    uint16_t hm[N] = {0}, hv[N] = {0};
    for (int half = 0; half < 2; half++) {
        for (int step = 1; step <= 5; step++) {
            mf_kernel_adamw_tensor t = {.master = half ? b : a,
                                        .grad = grad,
                                        .m = half ? (void *)hm : (void *)fm,
                                        .v = half ? (void *)hv : (void *)fv,
                                        .count = N};
            mf_kernel_adamw u = {.moments = half ? MF_KERNEL_BF16 : MF_KERNEL_F32,
                                 .lr = 0.1f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .grad_scale = 1.0f,
                                 .step = step,
                                 .tensors = 1,
                                 .tensor = &t};
            assert_ok(mf_kernel_adamw_update(&u, NULL));
        }
    }
    double moved[N], change[N];
    for (int i = 0; i < N; i++) {
        moved[i] = (double)a[i] - start[i];
        b[i] = (float)((double)b[i] - start[i]);
        change[i] = (double)fm[i];
    }
    kt_assert_close(b, MF_KERNEL_F32, moved, N, 1e-2);
    kt_assert_close(hm, MF_KERNEL_BF16, change, N, 1e-2);
    free(a), free(b), free(grad);
}

/* Five steps, of which the third is left out: by a state, and by values. */
static void adamw_by_state_is_adamw_by_values(void **state) {
    (void)state;
    enum { N = 50, STEPS = 5 };
    float *master[2], *m[2], *v[2], *grad = kt_random(MF_KERNEL_F32, N, -1, 1, NULL);
    uint16_t *param[2];
    for (int way = 0; way < 2; way++) {
        master[way] = kt_zeros(N * sizeof(float)), param[way] = kt_zeros(N * sizeof(uint16_t));
        m[way] = kt_zeros(N * sizeof(float)), v[way] = kt_zeros(N * sizeof(float));
    }
    mf_kernel_update_state s = {.step = 0};
    const double sum = 9.0;
    mf_kernel_update_begin begin = {.sum_sq = &sum,
                                    .max_norm = 1.0f,
                                    .grad_scale = 0.5f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .state = &s};
    for (int step = 1, made = 1; step <= STEPS; step++) {
        bool left_out = step == 3;
        s.lr = 0.01f * (float)step, s.overflow = left_out;
        assert_ok(mf_kernel_update_begin_step(&begin, NULL));
        for (int way = left_out; way < 2; way++) {
            mf_kernel_adamw_tensor t = {.master = master[way],
                                        .param = param[way],
                                        .grad = grad,
                                        .m = m[way],
                                        .v = v[way],
                                        .count = N,
                                        .decay = 0.1f};
            mf_kernel_adamw a = {.moments = MF_KERNEL_F32,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .grad_scale = 0.5f,
                                 .tensors = 1,
                                 .tensor = &t,
                                 .state = way ? &s : NULL};
            float norm, clip;
            mf_kernel_grad_clip c = {
                .sum_sq = &sum, .max_norm = 1.0f, .grad_scale = 0.5f, .norm = &norm, .clip = &clip};
            assert_ok(mf_kernel_grad_clip_factor(&c, NULL));
            assert_true(norm == s.norm);
            assert_true(clip == s.clip);
            if (!way) {
                a.lr = s.lr, a.step = made, a.clip = &clip;
            }
            assert_ok(mf_kernel_adamw_update(&a, NULL));
        }
        made += !left_out;
        assert_memory_equal(master[0], master[1], N * sizeof(float));
        assert_memory_equal(param[0], param[1], N * sizeof(uint16_t));
        assert_memory_equal(m[0], m[1], N * sizeof(float));
        assert_memory_equal(v[0], v[1], N * sizeof(float));
    }
    assert_true(master[0][0] != 0.0f);
    assert_true(s.step == STEPS - 1);
    assert_true(s.skipped == 1);
    for (int way = 0; way < 2; way++) {
        free(master[way]), free(param[way]), free(m[way]), free(v[way]);
    }
    free(grad);
}

static void updates_of_what_is_no_number_are_left_out(void **state) {
    (void)state;
    mf_kernel_update_state s = {.step = 6, .lr = 0.5f};
    double sum = 4.0, also[3] = {1.0, -2.0, 3.0};
    mf_kernel_update_begin a = {.sum_sq = &sum,
                                .also_finite = also,
                                .also_count = 3,
                                .max_norm = 0.5f,
                                .grad_scale = 1.0f,
                                .beta1 = 0.9f,
                                .beta2 = 0.99f,
                                .state = &s};
    assert_ok(mf_kernel_update_begin_step(&a, NULL));
    const double b1 = (double)0.9f, b2 = (double)0.99f;
    assert_true(s.skip == 0);
    assert_true(s.step == 7);
    assert_true(s.skipped == 0);
    assert_true(s.norm == 2.0f);
    assert_true(s.clip == (float)(0.5 / (2.0 + 1e-6)));
    assert_true(s.rate == (float)(0.5 / (1.0 - pow(b1, 7.0))));
    assert_true(s.root == (float)(1.0 / sqrt(1.0 - pow(b2, 7.0))));
    for (int bad = 0; bad < 4; bad++) {
        sum = bad == 0 ? (double)NAN : bad == 1 ? (double)INFINITY : 4.0;
        also[2] = bad == 2 ? (double)NAN : 3.0;
        s.overflow = bad == 3;
        assert_ok(mf_kernel_update_begin_step(&a, NULL));
        assert_true(s.skip == 1);
        assert_true(s.step == 7);
        assert_true(s.skipped == bad + 1);
        assert_true(s.rate == (float)(0.5 / (1.0 - pow(b1, 7.0))));
    }
    s.overflow = 0;
    assert_ok(mf_kernel_update_begin_step(&a, NULL));
    assert_true(s.skip == 0);
    assert_true(s.step == 8);
    assert_true(s.skipped == 4);
}

static void chunks_cover_every_element_once(void **state) {
    (void)state;
    const int64_t counts[] = {3, 0, 2 * MF_KERNEL_CHUNK + 1, MF_KERNEL_CHUNK};
    int64_t n = mf_kernel_chunks(counts, 4, NULL);
    assert_int_equal(n, 5);
    mf_kernel_chunk c[5];
    assert_int_equal(mf_kernel_chunks(counts, 4, c), n);
    int64_t seen[4] = {0};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(c[i].begin, seen[c[i].tensor]);
        seen[c[i].tensor] += c[i].count;
    }
    assert_memory_equal(seen, counts, sizeof counts);
}

static void grad_norm_clips_to_the_given_norm(void **state) {
    (void)state;
    enum { N = 100 };
    double g[2][N], sum = 0.0;
    float *a = kt_random(MF_KERNEL_F32, N, -1, 1, g[0]),
          *b = kt_random(MF_KERNEL_F32, N, -1, 1, g[1]);
    for (int i = 0; i < 2 * N; i++) {
        sum += g[i / N][i % N] * g[i / N][i % N];
    }
    const mf_kernel_grad_tensor t[] = {{a, N}, {b, N}};
    double got = 0.0;
    mf_kernel_grad_norm k = {.tensors = 2, .tensor = t, .sum_sq = &got};
    assert_ok(mf_kernel_grad_norm_add(&k, NULL));
    assert_below(fabs(got / sum - 1.0), 1e-12);
    float norm, clip;
    mf_kernel_grad_clip c = {
        .sum_sq = &got, .max_norm = 1.0f, .grad_scale = 0.5f, .norm = &norm, .clip = &clip};
    assert_ok(mf_kernel_grad_clip_factor(&c, NULL));
    assert_below(fabs((double)norm - 0.5 * sqrt(sum)), 1e-5);
    assert_below(fabs((double)clip * (double)norm - 1.0), 1e-5);
    c.max_norm = 1e9f;
    assert_ok(mf_kernel_grad_clip_factor(&c, NULL));
    assert_true(clip == 1.0f);
    c.max_norm = 0.0f;
    assert_ok(mf_kernel_grad_clip_factor(&c, NULL));
    assert_true(clip == 1.0f);
    free(a), free(b);
}

static void work_time_adds_up_over_its_turns(void **state) {
    (void)state;
    const struct timespec moment = {.tv_nsec = 3000000};
    mf_kernel_update_state s = {.worked_ns = 0};
    int64_t span_ns[2] = {0};
    const mf_kernel_work_clock begin = {.begins = true, .state = &s};
    const mf_kernel_work_clock pauses[] = {{.state = &s, .span_ns = &span_ns[0]},
                                           {.state = &s, .span_ns = &span_ns[1]}};
    for (int64_t i = 1; i <= 2; i++) {
        assert_ok(mf_kernel_work_clock_turn(&begin, NULL));
        nanosleep(&moment, NULL);
        assert_ok(mf_kernel_work_clock_turn(&pauses[i - 1], NULL));
        assert_at_least(s.worked_ns, i * moment.tv_nsec);
    }
    const int64_t worked_ns = s.worked_ns, began_ns = s.began_ns;
    nanosleep(&moment, NULL);
    assert_ok(mf_kernel_work_clock_turn(&begin, NULL));
    assert_int_equal(s.worked_ns, worked_ns); /* what it rested does not count */
    assert_at_least(s.began_ns - began_ns, 2 * moment.tv_nsec);
    assert_at_least(span_ns[0], moment.tv_nsec);
    assert_at_least(span_ns[1], moment.tv_nsec);
    assert_int_equal(span_ns[0] + span_ns[1], worked_ns);
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_cross_entropy_matches_double_and_its_differences),
        cmocka_unit_test(whole_cross_entropy_is_its_three_steps),
        cmocka_unit_test(cross_entropy_survives_extreme_logits),
        cmocka_unit_test(rescaling_survives_ranks_without_columns),
        cmocka_unit_test(adamw_follows_the_published_rule_for_ten_steps),
        cmocka_unit_test(adamw_with_bf16_moments_stays_near_float_moments),
        cmocka_unit_test(adamw_by_state_is_adamw_by_values),
        cmocka_unit_test(updates_of_what_is_no_number_are_left_out),
        cmocka_unit_test(work_time_adds_up_over_its_turns),
        cmocka_unit_test(chunks_cover_every_element_once),
        cmocka_unit_test(grad_norm_clips_to_the_given_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
