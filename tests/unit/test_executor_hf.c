/* The executor against Hugging Face: loss, logits, every gradient, auxiliary losses and ten AdamW
 * steps of twenty model families, float32, one rank (three of them by tests/data/hf/make_gated.py).
 */
#include "executor/train/train.h"
#include "tests/support/hf_case.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

static const char *const families[] = {"llama",
                                       "mixtral",
                                       "qwen2_moe",
                                       "qwen3_moe",
                                       "deepseek_v3",
                                       "minimax_m2",
                                       "ernie4_5_moe",
                                       "dots1",
                                       "hy_v3",
                                       "glm4_moe",
                                       "olmoe",
                                       "granitemoe",
                                       "granitemoeshared",
                                       "hunyuan_v1_moe",
                                       "phimoe",
                                       "mimo_v2_flash",
                                       "llama4_text",
                                       "qwen3_next",
                                       "step3p5",
                                       "step3_text"};
#define FAMILIES (sizeof families / sizeof families[0])
#define BOUND 1e-5

static mf_cost *cost;

static void open_case(hf_case *h, const char *family, const mf_exec_options *o) {
    mf_layout l;
    mf_err e;
    hf_layout_init(&l);
    if (hf_open(h, family, &l, o, cost, &e) != MF_OK) {
        fail_msg("%s: %s", family, e.text);
    }
}

static void run(hf_case *h, double lr, mf_exec_result *out) {
    const mf_exec_batch batch = {hf_sample, h};
    mf_err e;
    mf_status status = lr > 0 ? mf_exec_step(h->exec, &batch, lr, out, &e)
                              : mf_exec_gradients(h->exec, &batch, out, &e);
    if (status != MF_OK) {
        fail_msg("%s", e.text);
    }
}

/* Of a whole step of a case that hf_watch looks on. */
static void account_for(hf_case *h, const mf_exec_result *r) {
    char text[200];
    if (!account_step(&h->account, r, text)) {
        fail_msg("%s", text);
    }
}

static void loss_logits_and_every_gradient_equal_hugging_face(void **state) {
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        hf_case h;
        mf_exec_options o;
        mf_exec_options_init(&o);
        o.after_op = hf_watch;
        o.user = &h;
        open_case(&h, families[f], &o);
        mf_exec_result r;
        run(&h, 0.0, &r);
        const mf_json_value *want = mf_json_root(h.expected);
        double loss_error = fabs(r.lm_loss / hf_number(want, "lm_loss") - 1.0);
        double norm_error = fabs(r.grad_norm / hf_number(want, "grad_norm_lm_only") - 1.0);
        double aux_error = hf_aux_error(&h, &r), logits_error = hf_logits_error(&h);
        char worst[160] = "";
        int compared;
        double gradient_error = hf_gradient_error(&h, worst, &compared);
        printf("%-12s loss %.1e logits %.1e gradients %.1e (%d, worst %s) norm %.1e aux %.1e\n",
               families[f], loss_error, logits_error, gradient_error, compared, worst, norm_error,
               aux_error);
        assert_at_most(loss_error, BOUND);
        assert_at_most(logits_error, BOUND);
        assert_at_most(gradient_error, BOUND);
        assert_at_most(norm_error, BOUND);
        assert_at_most(aux_error, BOUND);
        hf_close(&h);
    }
}

static void check_trajectory(const char *family, const char *key, double coef) {
    hf_case h;
    mf_exec_options o;
    mf_exec_options_init(&o);
    o.aux_coef = coef;
    o.after_op = hf_watch;
    o.user = &h;
    open_case(&h, family, &o);
    const mf_json_value *adamw = mf_json_find(mf_json_root(h.expected), "adamw");
    const mf_json_value *rows = mf_json_find(adamw, key);
    double worst = 0.0;
    assert_int_equal(mf_json_size(rows), 10);
    for (h.step = 0; h.step < 10 / case_stride(4); h.step++) {
        mf_exec_result r;
        run(&h, 1e-3, &r);
        account_for(&h, &r);
        const mf_json_value *row = mf_json_at(rows, (size_t)h.step);
        bool same = !h.model.correction_bias; /* else the reference counts other choices */
        double aux = same ? hf_number(row, "aux_sum") : 0.0;
        double off[3] = {fabs(r.lm_loss / hf_number(row, "lm_loss") - 1.0),
                         fabs(r.grad_norm / hf_number(row, "grad_norm") - 1.0),
                         aux > 0 ? fabs(r.aux_loss / aux - 1.0) : 0.0};
        assert_true(coef == 0.0 || aux > 0);
        for (int k = 0; k < 3; k++) {
            worst = isnan(off[k]) ? (double)INFINITY : fmax(worst, off[k]);
        }
    }
    printf("%-12s %d steps, %s: %.1e\n", family, (int)h.step, key, worst);
    assert_at_most(worst, BOUND);
    hf_close(&h);
}

static void ten_adamw_steps_follow_hugging_face(void **state) {
    (void)state;
    for (size_t f = 0; f < FAMILIES; f += (size_t)case_stride(4)) {
        check_trajectory(families[f], "lm_only", 0.0);
    }
}

static void ten_adamw_steps_with_auxiliary_loss_follow_hugging_face(void **state) {
    (void)state;
    check_trajectory("mixtral", "lm_plus_coef_times_sum_of_layers_aux", 0.02);
    if (cases_sampled()) {
        return;
    }
    check_trajectory("qwen2_moe", "lm_plus_coef_times_sum_of_layers_aux", 0.001);
    check_trajectory("qwen3_moe", "lm_plus_coef_times_sum_of_layers_aux", 0.001);
    check_trajectory("olmoe", "lm_plus_coef_times_sum_of_layers_aux", 0.01);
    check_trajectory("granitemoe", "lm_plus_coef_times_sum_of_layers_aux", 0.01);
    check_trajectory("granitemoeshared", "lm_plus_coef_times_sum_of_layers_aux", 0.001);
    check_trajectory("qwen3_next", "lm_plus_coef_times_sum_of_layers_aux", 0.001);
}

/* The total loss along its own gradient rises by the gradient's length: the slope by central
 * differences, for what the references do not hold (MTP depths, tied embeddings). */
static void check_slope(const char *family, const char *const *overrides, size_t count) {
    char path[128];
    hf_case h = {.step = 0};
    mf_exec_options o;
    mf_err e;
    hf_layout_init(&h.layout);
    h.layout.mbs = 2; /* two micro-batches */
    mf_exec_options_init(&o);
    o.mtp_coef = 1.5;
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", family);
    if (mf_model_load_with(path, overrides, count, &h.model, &e) != MF_OK ||
        mf_cluster_load("cpu", &h.cluster, &e) != MF_OK ||
        hf_open_file("llama", "batch.safetensors", &h.batch, &e) != MF_OK ||
        mf_layout_resolve(&h.layout, &h.model, &e) != MF_OK ||
        mf_assignment_even(&h.model, &h.layout, &h.assignment, &e) != MF_OK ||
        mf_program_lower(&h.model, &h.layout, &h.cluster, &h.assignment, &h.program, &e) != MF_OK ||
        mf_schedule_create(&h.layout, &h.schedule, &e) != MF_OK ||
        mf_comm_create(&h.layout, &h.comm, &e) != MF_OK ||
        mf_exec_create(h.program, h.schedule, h.comm, mf_device_cpu(), &o, &h.exec, &e) != MF_OK) {
        fail_msg("%s: %s", family, e.text);
    }
    mf_rank_coords at = mf_layout_coords(&h.layout, 0);
    assert_int_equal(mf_train_init_weights(h.exec, h.program, &at, 7, &e), MF_OK);
    const mf_params *list = mf_exec_params(h.exec);
    int64_t total = list->dense + list->expert;
    float *direction = calloc((size_t)total, sizeof *direction);
    assert_non_null(direction);
    mf_exec_result r;
    double norm = 0.0, loss[2] = {0.0, 0.0};
    run(&h, 0.0, &r);
    norm = r.grad_norm;
    for (int side = -1; side < 2; side++) { /* keep the direction, then both sides */
        int64_t k = 0;
        for (int i = 0; i < list->count; i++) {
            float *w = mf_exec_param(h.exec, i), *g = mf_exec_gradient(h.exec, i);
            for (int64_t j = 0; j < list->list[i].rows * list->list[i].cols; j++, k++) {
                direction[k] = side < 0 ? (float)((double)g[j] / norm) : direction[k];
                w[j] += direction[k] * (side < 0 ? 0.0f : side == 0 ? 1e-3f : -2e-3f);
            }
        }
        if (side >= 0) {
            run(&h, 0.0, &r);
            loss[side] = r.lm_loss + (h.model.mtp_layers > 0 ? o.mtp_coef * r.mtp_loss : 0.0);
        }
    }
    double slope = (loss[0] - loss[1]) / 2e-3;
    printf("%-12s slope %.6f, gradient norm %.6f, MTP loss %.4f\n", family, slope, norm,
           r.mtp_loss);
    assert_close(slope / norm, 1.0, 5e-5);
    free(direction);
    hf_close(&h);
}

static void gradients_of_mtp_and_tied_embeddings_are_slopes(void **state) {
    (void)state;
    /* Every expert is chosen: choices that change would make the loss jump. */
    const char *const mtp[] = {"num_nextn_predict_layers=1", "num_experts_per_tok=16", "n_group=1",
                               "topk_group=1"};
    const char *const mtp2[] = {"num_nextn_predict_layers=2", "num_experts_per_tok=16", "n_group=1",
                                "topk_group=1"};
    const char *const tied[] = {"tie_word_embeddings=true"};
    check_slope("llama", tied, 0);
    check_slope("llama", tied, 1);
    check_slope("deepseek_v3", mtp, 4);
    check_slope("deepseek_v3", mtp2, 4);
}

/* The weights of another model, with tensors of the same names. */
static void weights_of_another_shape_are_refused_by_name(void **state) {
    (void)state;
    hf_case h;
    mf_exec_options o;
    mf_safetensors *other = NULL;
    mf_err e;
    mf_exec_options_init(&o);
    open_case(&h, "qwen3_moe", &o);
    assert_ok(mf_safetensors_open("tests/data/hf/qwen2_moe", &other, &e));
    assert_int_equal(mf_exec_load(h.exec, other, &e), MF_INPUT);
    assert_non_null(strstr(e.text, "model.layers.0.self_attn.q_proj.weight"));
    mf_safetensors_close(other);
    hf_close(&h);
}

/* Families that are planned and not executed yet: one line, before anything runs. */
static void what_cannot_run_is_refused_by_name(void **state) {
    (void)state;
    static const char *const refused[][2] = {
        {"qwen3-next-80b-a3b", "gated delta nets"},
        {"glm-5", "sparse attention with an indexer"},
    };
    const char *const few[] = {"num_hidden_layers=2", "num_nextn_predict_layers=0"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        hf_case h;
        mf_layout l;
        mf_exec_options o;
        mf_err e;
        char text[200];
        memset(&h, 0, sizeof h);
        hf_layout_init(&l);
        mf_exec_options_init(&o);
        assert_ok(mf_model_load_with(refused[i][0], few, 2, &h.model, &e));
        assert_ok(mf_cluster_load("cpu", &h.cluster, &e));
        assert_ok(mf_layout_resolve(&l, &h.model, &e));
        assert_ok(mf_assignment_even(&h.model, &l, &h.assignment, &e));
        assert_ok(mf_program_lower(&h.model, &l, &h.cluster, &h.assignment, &h.program, &e));
        assert_ok(mf_schedule_create(&l, &h.schedule, &e));
        assert_ok(mf_comm_create(&l, &h.comm, &e));
        assert_int_equal(
            mf_exec_create(h.program, h.schedule, h.comm, mf_device_cpu(), &o, &h.exec, &e),
            MF_INFEASIBLE);
        snprintf(text, sizeof text, "the cpu backend does not run %s yet", refused[i][1]);
        assert_string_equal(e.text, text);
        h.exec = NULL;
        hf_close(&h);
    }
}

/* Blocks of all families, one micro-batch in flight: to the byte what fit and plan promise. */
static void the_arena_is_the_memory_plan(void **state) {
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        for (int64_t mbs = case_stride(2); mbs <= 4; mbs *= 2 * case_stride(2)) {
            hf_case h;
            mf_layout l;
            mf_exec_options o;
            mf_err e;
            hf_layout_init(&l);
            mf_exec_options_init(&o);
            l.mbs = mbs;
            if (hf_open(&h, families[f], &l, &o, NULL, &e) != MF_OK) {
                fail_msg("%s", e.text);
            }
            assert_close((double)mf_exec_arena_B(h.exec), mf_exec_planned_B(h.exec), 0.0);
            mf_memory_stage counted;
            assert_ok(mf_memory_count(h.program, h.schedule, 0, &counted, &e));
            assert_close((double)mf_exec_arena_B(h.exec), counted.peak_B, 0.0); /* no gaps */
            hf_close(&h);
        }
    }
}

static int make_cost(void **state) {
    (void)state;
    cost = account_cost(NULL);
    return cost != NULL ? 0 : -1;
}

static int drop_cost(void **state) {
    (void)state;
    mf_cost_destroy(cost);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_logits_and_every_gradient_equal_hugging_face),
        cmocka_unit_test(ten_adamw_steps_follow_hugging_face),
        cmocka_unit_test(ten_adamw_steps_with_auxiliary_loss_follow_hugging_face),
        cmocka_unit_test(gradients_of_mtp_and_tied_embeddings_are_slopes),
        cmocka_unit_test(weights_of_another_shape_are_refused_by_name),
        cmocka_unit_test(what_cannot_run_is_refused_by_name),
        cmocka_unit_test(the_arena_is_the_memory_plan),
    };
    return cmocka_run_group_tests(tests, make_cost, drop_cost);
}
