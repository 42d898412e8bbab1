/* Router reference: selection rules, probabilities, losses and gradients against double precision.
 */
#include "tests/kernel_test.h"

#include "kernels/router.h"

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

    float count[SCOPES * EXPERTS] = {0}, sum[SCOPES * EXPERTS] = {0}, aux = 0.0f, z = 0.0f;
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
    z /= ROWS;
    kt_assert_close(&aux, MF_KERNEL_F32, &k->aux, 1, 1e-6);
    kt_assert_close(&z, MF_KERNEL_F32, &k->z, 1, 1e-6);
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
    assert_true(prob_kept[0] == 0.0f && prob_kept[1] == 0.9f && prob_kept[3] == 0.0f);
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
    assert_true(prob_kept[0] == prob[0] && prob_kept[1] == 0.0f && prob_kept[4] == prob[4]);
    assert_true(mf_kernel_router_order(0x7fffffffu) > mf_kernel_router_order(0x7f800000u));
    assert_true(mf_kernel_router_order(0x3f800000u) > mf_kernel_router_order(0x3f7fe000u));
    assert_true(mf_kernel_router_order(0x80000001u) <= mf_kernel_router_order(0u));
    assert_true(mf_kernel_router_order(0xbf800000u) < mf_kernel_router_order(0xbf000000u));
}

static void bias_moves_towards_experts_with_few_tokens(void **state) {
    (void)state;
    const float count[] = {5, 3, 1, 3};
    float bias[] = {0, 0, 0.5f, 1};
    assert_ok(mf_kernel_router_bias_update(4, 0.25f, count, bias, NULL));
    assert_true(bias[0] == -0.25f && bias[1] == 0.0f && bias[2] == 0.75f && bias[3] == 1.0f);
}

int main(void) {
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_routing_rule_matches_double_and_its_differences),
        cmocka_unit_test(equal_scores_go_to_the_lower_index),
        cmocka_unit_test(capacity_keeps_the_likeliest_slots_of_each_sample),
        cmocka_unit_test(capacity_takes_probabilities_that_differ_by_rounding_for_equal),
        cmocka_unit_test(bias_moves_towards_experts_with_few_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
