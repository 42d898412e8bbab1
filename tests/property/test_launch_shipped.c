/* test_launch_shipped.c - every shipped model on two clusters, with layouts drawn by a seed: what a
 * target can be told of it is read back as the same job, and what it cannot is refused by name.
 *
 * One layout a model on each of the clusters; MF_LAUNCH_DRAWS=N: as many. */
#include "tests/support/test.h"

#include "tests/support/launch_case.h"

static const char *const clusters[] = {"h100", "gb200"};

typedef struct world {
    mf_cluster cluster[2];
    mf_cost *cost[2];
    int said, refused;
} world;

static void open_world(world *w) {
    mf_err e;
    mf_err_clear(&e);
    for (int i = 0; i < 2; i++) {
        mf_software software;
        assert_int_equal(mf_cluster_load(clusters[i], &w->cluster[i], &e), MF_OK);
        assert_int_equal(mf_software_load("megatron-26.06", &software, &e), MF_OK);
        assert_int_equal(mf_cost_create(&w->cluster[i], &software, NULL, &w->cost[i], &e), MF_OK);
    }
}

static void close_world(world *w) {
    mf_cost_destroy(w->cost[0]);
    mf_cost_destroy(w->cost[1]);
}

/* What no flag says is named in one line. */
static void check_refused(const mf_err *e, const mf_model *m) {
    assert_non_null(strstr(e->text, m->name));
    assert_null(strchr(e->text, '\n'));
    assert_true(strstr(e->text, ": ") != NULL || strstr(e->text, m->family) != NULL);
}

static void check_named(mf_target t, const mf_model *m, const mf_cluster *c, const mf_plan *drawn) {
    mf_plan p = *drawn;
    mf_model_identity have, found;
    mf_read_model model;
    mf_read r = {0};
    mf_err e;
    mf_err_clear(&e);
    concede(t, m, &p);
    char *script = named_script_of(t, m, c, &p, m->name);
    assert_int_equal(mf_read_text(&r, "script", script, NULL, &e), MF_OK);
    if (mf_read_find_model(&r, NULL, &model, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    mf_model_identify(m, &have);
    mf_model_identify(&model.model, &found);
    assert_string_equal(have.fingerprint, found.fingerprint);
    mf_read_clear(&r);
    free(script);
}

static void check_model(world *w, rng *r, const mf_model *m, int draws) {
    for (int i = 0; i < draws; i++) {
        mf_plan p;
        const int at = i % 2;
        for (int t = 0; t < MF_TARGET_COUNT; t++) {
            mf_err e;
            mf_err_clear(&e);
            if (mf_target_check_model((mf_target)t, m, m->name, &e) != MF_OK) {
                check_refused(&e, m);
                w->refused++;
                continue;
            }
            w->said++;
            draw(r, m, &p);
            check_named((mf_target)t, m, &w->cluster[at], &p);
            check(w->cost[at], &w->cluster[at], m, (mf_target)t, &p);
        }
    }
}

static void test_shipped_models_are_read_back_or_refused(void **state) {
    (void)state;
    const char *draws = getenv("MF_LAUNCH_DRAWS");
    size_t count = 0;
    const char *const *names = mf_model_shipped(&count);
    world w = {0};
    open_world(&w);
    rng r = rng_init(64);
    for (size_t i = 0; i < count; i++) {
        mf_model m;
        mf_err e;
        mf_err_clear(&e);
        assert_int_equal(mf_model_load(names[i], &m, &e), MF_OK);
        if (mf_model_not_lowered(&m) == NULL) {
            check_model(&w, &r, &m, draws != NULL ? 2 * atoi(draws) : 2);
        }
    }
    close_world(&w);
    printf("%d jobs read back as they were, %d refused\n", w.said, w.refused);
    assert_at_least(w.said, 120);
    assert_at_least(w.refused, 60);
}

/* Parts that no flag says, by model and what the refusal calls them. */
static void test_what_cannot_be_said_is_named(void **state) {
    (void)state;
    static const struct {
        const char *model, *part;
        bool bridge; /* a recipe of Megatron-Bridge builds it all the same */
    } rows[] = {
        {"qwen3-next-80b-a3b", "linear attention", false},
        {"kimi-linear-48b-a3b", "linear attention", false},
        {"minimax-text-01", "linear attention", false},
        {"nemotron-3-nano", "Mamba-2", false},
        {"granite-4.0-h-small", "Mamba-2", false},
        {"llama4-maverick", "attention inside chunks", false},
        {"mimo-v2-flash", "values of another width", false},
        {"gemma-4-26b-a4b", "GELU", false},
        {"deepseek-v3.2", "sparse attention", false},
        {"glm-5", "sparse attention", false},
        {"olmoe-1b-7b", "norms over whole queries and keys", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mf_model m;
        mf_err e;
        mf_err_clear(&e);
        assert_int_equal(mf_model_load(rows[i].model, &m, &e), MF_OK);
        assert_int_equal(mf_target_check_model(MF_TARGET_MEGATRON, &m, m.name, &e), MF_INFEASIBLE);
        if (strstr(e.text, rows[i].part) == NULL) {
            fail_msg("%s", e.text);
        }
        assert_int_equal(mf_target_check_model(MF_TARGET_BRIDGE, &m, m.name, NULL),
                         rows[i].bridge ? MF_OK : MF_INFEASIBLE);
    }
}

/* A recipe builds the model of its name alone. */
static void test_a_changed_model_is_not_the_recipes(void **state) {
    (void)state;
    const char *const wider[] = {"hidden_size=4096"}, *const depths[] = {
                                                          "num_nextn_predict_layers=0"};
    mf_model m;
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(mf_model_load("deepseek-v3", &m, &e), MF_OK);
    assert_true(mf_target_has_recipe(&m, "deepseek-v3"));
    assert_int_equal(mf_model_load_with("deepseek-v3", depths, 1, &m, &e), MF_OK);
    assert_true(mf_target_has_recipe(&m, "deepseek-v3"));
    assert_int_equal(mf_model_load_with("deepseek-v3", wider, 1, &m, &e), MF_OK);
    assert_false(mf_target_has_recipe(&m, "deepseek-v3"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped_models_are_read_back_or_refused),
        cmocka_unit_test(test_what_cannot_be_said_is_named),
        cmocka_unit_test(test_a_changed_model_is_not_the_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
