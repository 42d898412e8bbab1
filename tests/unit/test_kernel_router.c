/* Router reference: selection rules, probabilities, losses and gradients against double precision.
 */
#include "tests/support/kernel_test.h"

#include "kernels/moe/router_choices.h"

enum { ROWS = 6, EXPERTS = 12, TOP_K = 4, GROUPS = 4, SCOPES = 2 };

typedef struct setting {
    mf_route_score score;
    bool normalise, bias;
    float scaling;
    int64_t groups, group_topk;
    mf_route_group group_score;
} setting;

static const setting settings[] = {
    {MF_ROUTE_SOFTMAX, false, false, 1.0f, 1, 1, MF_ROUTE_GROUP_MAX},      /* Qwen2-MoE */
    {MF_ROUTE_SOFTMAX, true, false, 1.0f, 1, 1, MF_ROUTE_GROUP_MAX},       /* Mixtral, Qwen3-MoE */
    {MF_ROUTE_SOFTMAX, false, false, 16.0f, 4, 2, MF_ROUTE_GROUP_MAX},     /* DeepSeek-V2 */
    {MF_ROUTE_TOPK_SOFTMAX, false, false, 1.0f, 1, 1, MF_ROUTE_GROUP_MAX}, /* GPT-OSS */
    {MF_ROUTE_SIGMOID, true, true, 2.5f, 4, 2, MF_ROUTE_GROUP_TOP2},       /* DeepSeek-V3 */
    {MF_ROUTE_SIGMOID, false, true, 1.0f, 1, 1, MF_ROUTE_GROUP_MAX},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

/* One layer's router and both losses in double; selection is passed in (it carries no gradient). */
typedef struct model {
    const setting *set;
    double logits[ROWS * EXPERTS], dprob[ROWS * TOP_K], prob[ROWS * TOP_K], score[ROWS * EXPERTS];
    double lse[ROWS], aux, z;
    int32_t index[ROWS * TOP_K];
    int32_t scope[ROWS];
} model;

static const double aux_coefficient = 0.3, z_coefficient = 0.2, tokens = ROWS / 2.0;

static void model_scores(model *k, int r, double *p) {
    double sum = 0.0, sigmoid_sum = 0.0;
    for (int i = 0; i < EXPERTS; i++) {
        double x = k->logits[r * EXPERTS + i];
        sum += exp(x);
        sigmoid_sum += 1 / (1 + exp(-x));
    }
    k->lse[r] = log(sum);
    for (int i = 0; i < EXPERTS; i++) {
        double x = k->logits[r * EXPERTS + i];
        bool sigmoid = k->set->score == MF_ROUTE_SIGMOID;
        k->score[r * EXPERTS + i] = sigmoid ? 1 / (1 + exp(-x)) : exp(x) / sum;
        p[i] = sigmoid ? k->score[r * EXPERTS + i] / sigmoid_sum : k->score[r * EXPERTS + i];
    }
}

static double model_loss(const double *unused, void *user) {
    (void)unused;
    model *k = user;
    double loss = 0.0, count[SCOPES][EXPERTS] = {{0}}, sum[SCOPES][EXPERTS] = {{0}};
    k->aux = k->z = 0.0;
    for (int r = 0; r < ROWS; r++) {
        double p[EXPERTS], chosen = 0.0;
        model_scores(k, r, p);
        for (int j = 0; j < TOP_K; j++) {
            chosen += k->score[r * EXPERTS + k->index[r * TOP_K + j]];
            count[k->scope[r]][k->index[r * TOP_K + j]] += 1;
        }
        bool divide = k->set->normalise || k->set->score == MF_ROUTE_TOPK_SOFTMAX;
        for (int j = 0; j < TOP_K; j++) {
            int s = r * TOP_K + j;
            k->prob[s] = k->score[r * EXPERTS + k->index[s]] * (double)k->set->scaling /
                         (divide ? chosen : 1.0);
            loss += k->prob[s] * k->dprob[s];
        }
        for (int i = 0; i < EXPERTS; i++) {
            sum[k->scope[r]][i] += p[i];
        }
        k->z += k->lse[r] * k->lse[r] / ROWS;
    }
    for (int c = 0; c < SCOPES; c++) {
        for (int i = 0; i < EXPERTS; i++) {
            k->aux += EXPERTS / (TOP_K * tokens * tokens) * count[c][i] * sum[c][i] / SCOPES;
        }
    }
    return loss + aux_coefficient * k->aux + z_coefficient * k->z;
}

/* The selection by the rules of router.h, written as sorts of (value, index). */
static void model_select(const setting *s, const double *score, const float *bias, int32_t *index) {
    double choice[EXPERTS], run[GROUPS];
    for (int i = 0; i < EXPERTS; i++) {
        choice[i] = score[i] + (s->bias ? (double)bias[i] : 0.0);
    }
    int width = EXPERTS / (int)s->groups;
    for (int g = 0; g < s->groups && s->groups > 1; g++) {
        double top[2] = {-1e9, -1e9};
        for (int i = g * width; i < (g + 1) * width; i++) {
            if (choice[i] > top[0]) {
                top[1] = top[0], top[0] = choice[i];
            } else if (choice[i] > top[1]) {
                top[1] = choice[i];
            }
        }
        run[g] = s->group_score == MF_ROUTE_GROUP_TOP2 ? top[0] + top[1] : top[0];
    }
    for (int g = 0; g < s->groups && s->groups > 1; g++) {
        int better = 0;
        for (int o = 0; o < s->groups; o++) {
            better += run[o] > run[g] || (run[o] >= run[g] && o < g);
        }
        for (int i = g * width; i < (g + 1) * width && better >= s->group_topk; i++) {
            choice[i] = -1e9;
        }
    }
    for (int i = 0; i < EXPERTS; i++) {
        int better = 0;
        for (int o = 0; o < EXPERTS; o++) {
            better += choice[o] > choice[i] || (choice[o] >= choice[i] && o < i);
        }
        if (better < TOP_K) {
            index[better] = i;
        }
    }
}

/* Counts, sums of probabilities, both losses; count becomes the weights of the auxiliary loss. */
static void check_losses(const setting *s, const model *k, const float *scores,
                         const int32_t *index, const float *lse, float *count) {
    float sum[SCOPES * EXPERTS] = {0};
    double aux = 1.0, z = 2.0; /* added to */
    mf_kernel_router_stats st = {.rows = ROWS,
                                 .experts = EXPERTS,
                                 .top_k = TOP_K,
                                 .score = s->score,
                                 .scopes = SCOPES,
                                 .scope = k->scope,
                                 .scores = scores,
                                 .index = index,
                                 .count = count,
                                 .prob_sum = sum};
    assert_ok(mf_kernel_router_stats_add(&st, NULL));
    mf_kernel_router_aux au = {.experts = EXPERTS,
                               .top_k = TOP_K,
                               .scopes = SCOPES,
                               .tokens = tokens,
                               .weight_scale = (float)aux_coefficient,
                               .count = count,
                               .prob_sum = sum,
                               .aux = &aux,
                               .weight = count};
    assert_ok(mf_kernel_router_aux_loss(&au, NULL));
    assert_ok(mf_kernel_router_z_sum(ROWS, lse, &z, NULL));
    assert_below(fabs((aux - 1.0) / k->aux - 1.0), 1e-6);
    assert_below(fabs((z - 2.0) / ROWS / k->z - 1.0), 1e-6);
}

static void check_setting(const setting *s) {
    model *k = kt_zeros(sizeof *k);
    k->set = s;
    float *logits = kt_random(MF_KERNEL_F32, ROWS * EXPERTS, -2, 2, k->logits);
    float *bias = kt_random(MF_KERNEL_F32, EXPERTS, -0.2, 0.2, NULL);
    float *dprob = kt_random(MF_KERNEL_F32, ROWS * TOP_K, -1, 1, k->dprob);
    float *scores = kt_poison(sizeof(float) * ROWS * EXPERTS), lse[ROWS];
    float *prob = kt_poison(sizeof(float) * ROWS * TOP_K);
    int32_t *index = kt_poison(sizeof(int32_t) * ROWS * TOP_K);
    for (int r = 0; r < ROWS; r++) {
        double p[EXPERTS];
        k->scope[r] = r % SCOPES;
        model_scores(k, r, p);
        model_select(s, k->score + r * EXPERTS, bias, k->index + r * TOP_K);
    }
    mf_kernel_router f = {.rows = ROWS,
                          .experts = EXPERTS,
                          .top_k = TOP_K,
                          .score = s->score,
                          .normalise = s->normalise,
                          .scaling = s->scaling,
                          .groups = s->groups,
                          .group_topk = s->group_topk,
                          .group_score = s->group_score,
                          .logits = logits,
                          .bias = s->bias ? bias : NULL,
                          .scores = scores,
                          .prob = prob,
                          .index = index,
                          .lse = lse};
    assert_ok(mf_kernel_router_forward(&f, NULL));
    (void)model_loss(NULL, k);
    assert_memory_equal(index, k->index, sizeof k->index);
    kt_assert_close(prob, MF_KERNEL_F32, k->prob, ROWS * TOP_K, 1e-6);
    kt_assert_close(scores, MF_KERNEL_F32, k->score, ROWS * EXPERTS, 1e-6);
    kt_assert_close(lse, MF_KERNEL_F32, k->lse, ROWS, 1e-6);

    float again[ROWS * TOP_K];
    f.prob = again;
    assert_ok(mf_kernel_router_probabilities(&f, NULL));
    assert_memory_equal(again, prob, sizeof again);

    float count[SCOPES * EXPERTS] = {0};
    check_losses(s, k, scores, index, lse, count);
    double want[ROWS * EXPERTS];
    kt_gradient(model_loss, k, k->logits, ROWS * EXPERTS, want);
    mf_kernel_router_grad b = {.rows = ROWS,
                               .experts = EXPERTS,
                               .top_k = TOP_K,
                               .score = s->score,
                               .normalise = s->normalise,
                               .scaling = s->scaling,
                               .scores = scores,
                               .index = index,
                               .dprob = dprob,
                               .aux_weight = count,
                               .scope = k->scope,
                               .logits = logits,
                               .lse = lse,
                               .z_weight = (float)(z_coefficient / ROWS),
                               .dlogits = scores};
    assert_ok(mf_kernel_router_backward(&b, NULL));
    kt_assert_close(scores, MF_KERNEL_F32, want, ROWS * EXPERTS, 3e-6);
    free(k), free(logits), free(bias), free(dprob), free(scores), free(prob), free(index);
}

static void every_routing_rule_matches_double_and_its_differences(void **state) {
    (void)state;
    for (int i = 0; i < SETTINGS; i++) {
        check_setting(&settings[i]);
    }
}

static void equal_scores_go_to_the_lower_index(void **state) {
    (void)state;
    float logits[EXPERTS] = {0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 0, 0}, scores[EXPERTS], prob[TOP_K];
    int32_t index[TOP_K];
    mf_kernel_router f = {.rows = 1,
                          .experts = EXPERTS,
                          .top_k = TOP_K,
                          .score = MF_ROUTE_SOFTMAX,
                          .scaling = 1.0f,
                          .groups = 1,
                          .logits = logits,
                          .scores = scores,
                          .prob = prob,
                          .index = index};
    assert_ok(mf_kernel_router_forward(&f, NULL));
    const int32_t want[TOP_K] = {1, 2, 4, 5};
    assert_memory_equal(index, want, sizeof want);
}

static void capacity_keeps_the_likeliest_slots_of_each_sample(void **state) {
    (void)state;
    /* Expert 0: rows 0, 1, 3 of sample 0 (probabilities .2 .9 .9), row 2 of sample 1. */
    const float prob[] = {0.2f, 0.9f, 0.1f, 0.9f};
    const int32_t index[] = {0, 0, 0, 0}, sample[] = {0, 0, 1, 0};
    float prob_kept[4];
    int32_t kept[4];
    mf_kernel_router_drop a = {.rows = 4,
                               .experts = 2,
                               .top_k = 1,
                               .capacity = 1,
                               .samples = 2,
                               .sample = sample,
                               .prob = prob,
                               .index = index,
                               .prob_kept = prob_kept,
                               .index_kept = kept};
    assert_ok(mf_kernel_router_capacity(&a, NULL));
    const int32_t want[] = {-1, 0, 0, -1};
    assert_memory_equal(kept, want, sizeof want);
    assert_true(prob_kept[0] == 0.0f);
    assert_true(prob_kept[1] == 0.9f);
    assert_true(prob_kept[3] == 0.0f);
}

/* Rounding of sums in another order must not choose between tokens that are alike. */
static void capacity_takes_probabilities_that_differ_by_rounding_for_equal(void **state) {
    (void)state;
    enum { LIKES = 5 };
    const float prob[LIKES] = {0.5f, nextafterf(0.5f, 1.0f), 0.5002f, nextafterf(0.5f, 0.0f), 0.6f};
    const int32_t index[LIKES] = {0};
    float prob_kept[LIKES];
    int32_t kept[LIKES];
    mf_kernel_router_drop a = {.rows = LIKES,
                               .experts = 1,
                               .top_k = 1,
                               .capacity = 3,
                               .samples = 1,
                               .prob = prob,
                               .index = index,
                               .prob_kept = prob_kept,
                               .index_kept = kept};
    assert_ok(mf_kernel_router_capacity(&a, NULL));
    const int32_t want[LIKES] = {0, -1, 0, -1, 0}; /* the two above, and the first of its like */
    assert_memory_equal(kept, want, sizeof want);
    assert_true(prob_kept[0] == prob[0]);
    assert_true(prob_kept[1] == 0.0f);
    assert_true(prob_kept[4] == prob[4]);
    assert_above(mf_kernel_router_order(0x7fffffffu), mf_kernel_router_order(0x7f800000u));
    assert_above(mf_kernel_router_order(0x3f800000u), mf_kernel_router_order(0x3f7fe000u));
    assert_at_most(mf_kernel_router_order(0x80000001u), mf_kernel_router_order(0u));
    assert_below(mf_kernel_router_order(0xbf800000u), mf_kernel_router_order(0xbf000000u));
}

static void bias_moves_towards_experts_with_few_tokens(void **state) {
    (void)state;
    const float count[] = {5, 3, 1, 3};
    float bias[] = {0, 0, 0.5f, 1};
    const int32_t no = 0, yes = 1;
    mf_kernel_router_bias a = {
        .experts = 4, .rate = 0.25f, .count = count, .bias = bias, .skip = &yes};
    assert_ok(mf_kernel_router_bias_update(&a, NULL));
    assert_true(bias[0] == 0.0f);
    assert_true(bias[2] == 0.5f);
    a.skip = &no;
    assert_ok(mf_kernel_router_bias_update(&a, NULL));
    assert_true(bias[0] == -0.25f);
    assert_true(bias[1] == 0.0f);
    assert_true(bias[2] == 0.75f);
    assert_true(bias[3] == 1.0f);
    a.skip = NULL;
    assert_ok(mf_kernel_router_bias_update(&a, NULL));
    assert_true(bias[0] == -0.5f);
    assert_true(bias[1] == 0.0f);
    assert_true(bias[2] == 1.0f);
    assert_true(bias[3] == 1.0f);
}

/* Two samples of six tokens, cut over two CP ranks of three tokens each, and those over two TP
 * ranks: what ranks write together is what one rank writes that holds all. */
static void forced_balance_knows_a_token_wherever_it_lies(void **state) {
    (void)state;
    enum { MBS = 2, SEQ = 6, RUN = 3, K = 2, N = 5 };
    const int32_t position[2][MBS * RUN] = {{0, 2, 5, 0, 2, 5}, {4, 1, 3, 4, 1, 3}};
    static const int32_t straight[MBS * SEQ] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5};
    int32_t whole[MBS * SEQ * K];
    const mf_kernel_router_force all = {.rows = MBS * SEQ,
                                        .top_k = K,
                                        .experts = N,
                                        .seq = SEQ,
                                        .run = SEQ,
                                        .position = straight,
                                        .index = whole};
    assert_ok(mf_kernel_router_force_choices(&all, NULL));
    for (int c = 0; c < 2; c++) {
        for (int t = 0; t < 2; t++) {
            int32_t index[RUN * K];
            const mf_kernel_router_force a = {.rows = RUN,
                                              .top_k = K,
                                              .experts = N,
                                              .seq = SEQ,
                                              .run = RUN,
                                              .first_row = (int64_t)t * RUN,
                                              .position = position[c],
                                              .index = index};
            assert_ok(mf_kernel_router_force_choices(&a, NULL));
            for (int i = 0; i < RUN * K; i++) { /* TP rank t holds sample t */
                int token = t * SEQ + position[c][t * RUN + i / K];
                assert_int_equal(index[i], whole[token * K + i % K]);
            }
        }
    }
}

/* Ranks that hold one of a token's experts, in the mean over tokens; every expert has as many
 * choices, to one, whatever the number of tokens, and no token one twice. */
static double ranks_of_a_token(int64_t count, int64_t k, int64_t experts, int64_t ranks) {
    int32_t *index = calloc((size_t)(count * k), sizeof *index);
    int32_t *position = calloc((size_t)count, sizeof *position);
    int64_t *seen = calloc((size_t)experts, sizeof *seen);
    double sum = 0;
    assert_non_null(index);
    assert_non_null(position);
    assert_non_null(seen);
    for (int64_t t = 0; t < count; t++) {
        position[t] = (int32_t)t;
    }
    const mf_kernel_router_force a = {.rows = count,
                                      .top_k = k,
                                      .experts = experts,
                                      .seq = count,
                                      .run = count,
                                      .position = position,
                                      .index = index};
    assert_ok(mf_kernel_router_force_choices(&a, NULL));
    for (int64_t t = 0; t < count; t++) {
        uint64_t mine = 0;
        for (int64_t j = 0; j < k; j++) {
            const int32_t e = index[t * k + j];
            assert_in_range(e, 0, experts - 1);
            seen[e]++;
            mine |= (uint64_t)1 << e / (experts / ranks);
            for (int64_t i = 0; i < j; i++) {
                assert_int_not_equal(index[t * k + i], e);
            }
        }
        sum += __builtin_popcountll(mine);
    }
    for (int64_t e = 0; e < experts; e++) {
        const int64_t least = count * k / experts;
        assert_in_range(seen[e], least, least + 1);
    }
    free(index);
    free(position);
    free(seen);
    return sum / (double)count;
}

/* As many as of a router that chooses at random (the same closed form as in prices of exchanges):
 * a rule such as neighbours in turn puts all of a token's experts on one rank, and the tokens that
 * a warp of the fused dispatcher takes to the same one. */
static void forced_balance_spreads_a_token_as_a_router_would(void **state) {
    (void)state;
    static const int64_t of[][4] = {/* tokens, top_k, experts, ranks */
                                    {4096, 8, 64, 2},   {4096, 8, 64, 8},   {2048, 8, 256, 64},
                                    {4096, 2, 8, 2},    {4096, 2, 8, 8},    {4096, 4, 60, 4},
                                    {1000, 6, 160, 16}, {2048, 10, 512, 32}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        double none = 1; /* chance that a rank has none: experts of others are chosen all along */
        const double others = (double)(of[i][2] - of[i][2] / of[i][3]);
        for (int64_t j = 0; j < of[i][1]; j++) {
            none *= (others - (double)j) / (double)(of[i][2] - j);
        }
        const double expected = (double)of[i][3] * (1 - none);
        const double found = ranks_of_a_token(of[i][0], of[i][1], of[i][2], of[i][3]);
        assert_true(fabs(found / expected - 1) < 0.03);
    }
    (void)ranks_of_a_token(5, 3, 7, 7); /* fewer choices than a run has, and one at its end */
}

/* Experts of uneven favour, one of them every token's: each gets its places, a token none twice. */
static void forced_choices_take_the_places_they_are_given(void **state) {
    (void)state;
    enum { T = 10, K = 3, N = 5 };
    static const int32_t first[N + 1] = {0, 2, 12, 12, 21, 30},
                                   position[T] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    int32_t index[T * K], seen[N] = {0};
    const mf_kernel_router_force a = {.rows = T,
                                      .top_k = K,
                                      .experts = N,
                                      .seq = T,
                                      .run = T,
                                      .position = position,
                                      .index = index,
                                      .first = first,
                                      .tokens = T,
                                      .stride = 7};
    assert_ok(mf_kernel_router_force_choices(&a, NULL));
    for (int t = 0; t < T; t++) {
        for (int j = 0; j < K; j++) {
            const int32_t expert = index[t * K + j];
            assert_in_range(expert, 0, N - 1);
            seen[expert]++;
            for (int i = 0; i < j; i++) {
                assert_int_not_equal(index[t * K + i], expert);
            }
        }
    }
    for (int n = 0; n < N; n++) {
        assert_int_equal(seen[n], first[n + 1] - first[n]);
    }
}

static void counts_of_scopes_and_loads_are_those_of_the_choices(void **state) {
    (void)state;
    enum { R = 4, K = 2, N = 3, S = 2 };
    const int32_t index[R * K] = {0, 1, 0, 2, 2, 1, 0, -1}, scope[R] = {0, 1, 1, 0};
    float load[N] = {10, 0, 4}, count[S * N] = {7, 7, 7, 7, 7, 7};
    mf_kernel_router_count a = {.rows = R,
                                .top_k = K,
                                .experts = N,
                                .scopes = S,
                                .scope = scope,
                                .index = index,
                                .load = load,
                                .count = count};
    assert_ok(mf_kernel_router_count_choices(&a, NULL));
    const float of_scope[S * N] = {2, 1, 0, 1, 1, 2}, seen[N] = {13, 2, 6};
    assert_memory_equal(count, of_scope, sizeof of_scope);
    assert_memory_equal(load, seen, sizeof seen);
    a.scopes = 1, a.scope = NULL, a.load = NULL;
    assert_ok(mf_kernel_router_count_choices(&a, NULL));
    const float of_all[N] = {3, 2, 2};
    assert_memory_equal(count, of_all, sizeof of_all);
    a.global = true, a.load = load; /* load comes first: 16, 4, 8 of 28 seen, eight choices here */
    assert_ok(mf_kernel_router_count_choices(&a, NULL));
    const float mean[N] = {(float)(16.0 * 8 / 28), (float)(4.0 * 8 / 28), (float)(8.0 * 8 / 28)};
    assert_memory_equal(count, mean, sizeof mean);
    a.global = false, a.count = NULL;
    assert_ok(mf_kernel_router_count_choices(&a, NULL));
    assert_true(load[0] == 19.0f);
    assert_true(load[1] == 6.0f);
    assert_true(load[2] == 10.0f);
}

static void rows_go_to_their_places_and_come_back(void **state) {
    (void)state;
    const int32_t place[4] = {2, 0, 3, 1};
    const float src[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float placed[8], back[4];
    mf_kernel_router_place a = {.rows = 4, .top_k = 2, .place = place, .src = src, .dst = placed};
    assert_ok(mf_kernel_router_place_rows(&a, NULL));
    const float want[8] = {3, 4, 7, 8, 1, 2, 5, 6};
    assert_memory_equal(placed, want, sizeof want);
    a.rows = 2, a.back = true, a.first = 1, a.src = placed, a.dst = back;
    assert_ok(mf_kernel_router_place_rows(&a, NULL));
    assert_memory_equal(back, src + 2, sizeof back);
}

static void values_of_dropped_choices_are_zero(void **state) {
    (void)state;
    const int32_t kept[3] = {0, -1, 7};
    float prob[3] = {0.5f, 0.25f, 0.125f};
    const mf_kernel_router_keep a = {.count = 3, .kept = kept, .prob = prob, .out = prob};
    assert_ok(mf_kernel_router_keep_values(&a, NULL));
    assert_true(prob[0] == 0.5f);
    assert_true(prob[1] == 0.0f);
    assert_true(prob[2] == 0.125f);
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_routing_rule_matches_double_and_its_differences),
        cmocka_unit_test(equal_scores_go_to_the_lower_index),
        cmocka_unit_test(capacity_keeps_the_likeliest_slots_of_each_sample),
        cmocka_unit_test(capacity_takes_probabilities_that_differ_by_rounding_for_equal),
        cmocka_unit_test(bias_moves_towards_experts_with_few_tokens),
        cmocka_unit_test(forced_choices_take_the_places_they_are_given),
        cmocka_unit_test(forced_balance_knows_a_token_wherever_it_lies),
        cmocka_unit_test(forced_balance_spreads_a_token_as_a_router_would),
        cmocka_unit_test(counts_of_scopes_and_loads_are_those_of_the_choices),
        cmocka_unit_test(rows_go_to_their_places_and_come_back),
        cmocka_unit_test(values_of_dropped_choices_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
