/* test_launch_shipped.c - every shipped model on two clusters, with layouts drawn by a seed: what a
 * target can express is read back as the same job, and what it cannot is refused by name.
 *
 * One layout a model on each of the clusters; MF_LAUNCH_DRAWS=N: as many. */
#include "tests/support/test.h"

#include "tests/support/launch_case.h"

static const char *const clusters[] = {"h100", "gb200"};

typedef struct fixture {
    mf_cluster cluster[2];
    mf_cost *cost[2];
    int said, refused;
} fixture;

static void open_fixture(fixture *w) {
    mf_err e;
    mf_err_clear(&e);
    for (int i = 0; i < 2; i++) {
        mf_software software;
        assert_int_equal(mf_cluster_load(clusters[i], &w->cluster[i], &e), MF_OK);
        assert_int_equal(mf_software_load("megatron-26.06", &software, &e), MF_OK);
        assert_int_equal(mf_cost_create(&w->cluster[i], &software, NULL, &w->cost[i], &e), MF_OK);
    }
}

static void close_fixture(fixture *w) {
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

static void check_model(fixture *w, rng *r, const mf_model *m, int draws) {
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
    fixture w = {0};
    open_fixture(&w);
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
    close_fixture(&w);
    printf("%d jobs read back as they were, %d refused\n", w.said, w.refused);
    assert_at_least(w.said, 120);
    assert_at_least(w.refused, 60);
}

/* Parts that no flag says, by model and what the refusal calls them. */
static void test_what_cannot_be_said_is_named(void **state) {
    (void)state;
    static const struct {
        const char *model, *part;
        bool bridge;        /* a recipe of Megatron-Bridge builds it all the same */
        const char *recipe; /* that builds something else, and is refused by name */
    } rows[] = {
        {"kimi-linear-48b-a3b", "linear attention", false, NULL},
        {"minimax-text-01", "linear attention", false, NULL},
        {"granite-4.0-h-small", "layers of a mixer with a state and a feed-forward part", false,
         NULL},
        {"llama4-maverick", "attention inside chunks", false, NULL},
        {"mimo-v2-flash", "values of another width", false, NULL},
        {"gemma-4-26b-a4b", "GELU", false, NULL},
        {"minimax-m3", "sparse attention by blocks of keys", true, NULL},
        {"deepseek-v4-flash", "attention over compressed keys", false,
         "its recipe deepseek_v4_flash_pretrain_config needs"},
        {"step-3.5-flash", "gates of whole heads", false,
         "its recipe step35_196b_a11b_pretrain_config makes"},
        {"kimi-k3", "a norm behind experts in a latent space", false, NULL},
        {"olmoe-1b-7b", "norms over whole queries and keys", true, NULL},
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
        assert_int_equal(mf_target_check_model(MF_TARGET_BRIDGE, &m, m.name, &e),
                         rows[i].bridge ? MF_OK : MF_INFEASIBLE);
        if (rows[i].recipe != NULL && strstr(e.text, rows[i].recipe) == NULL) {
            fail_msg("%s", e.text);
        }
    }
}

static const mf_setting *setting_of(const mf_settings *s, const char *name) {
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->item[i].name, name) == 0) {
            return &s->item[i];
        }
    }
    return NULL;
}

/* What tells layers apart that are not plain attention, against what Megatron-LM's own scripts of
 * these models say (tests/functional_tests/test_cases/nemotron) and their config.json. */
static void test_layers_of_hybrids_and_sparse_attention_are_written(void **state) {
    (void)state;
    static const struct {
        const char *model, *name, *value;
    } rows[] = {
        {"nemotron-3-super", "hybrid-layer-pattern",
         "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*"
         "EMEMEMEME/*E"},
        {"nemotron-3-super", "mamba-num-heads", "128"},
        {"nemotron-3-super", "moe-latent-size", "1024"},
        {"nemotron-3-super", "moe-shared-expert-intermediate-size", "5376"},
        {"nemotron-3-super", "position-embedding-type", "none"},
        {"nemotron-3-super", "squared-relu", "true"},
        {"nemotron-3-super", "num-layers", NULL},
        {"nemotron-3-super", "moe-layer-freq", NULL},
        {"qwen3-next-80b-a3b", "experimental-attention-variant", "gdn"},
        {"qwen3-next-80b-a3b", "linear-num-value-heads", "32"},
        {"qwen3-next-80b-a3b", "attention-output-gate", "true"},
        {"qwen3-next-80b-a3b", "apply-layernorm-1p", "true"},
        {"qwen3-next-80b-a3b", "rotary-percent", "0.25"},
        {"qwen3-next-80b-a3b", "hybrid-layer-pattern", NULL},
        {"deepseek-v3.2", "experimental-attention-variant", "dsa"},
        {"deepseek-v3.2", "dsa-indexer-n-heads", "64"},
        {"deepseek-v3.2", "dsa-indexer-topk-freq", NULL},
        {"glm-5.2", "dsa-indexer-topk-freq", "4"},
        {"glm-5.2", "dsa-indexer-skip-topk-offset", "3"},
        {"deepseek-v3", "experimental-attention-variant", NULL},
    };
    const mf_cluster c = test_cluster();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mf_settings s = {0};
        mf_model m;
        mf_plan p;
        mf_err e;
        mf_plan_init(&p);
        p.layout.gpus = p.layout.gbs = 1;
        p.layout.seq = 4096;
        assert_int_equal(mf_model_load(rows[i].model, &m, &e), MF_OK);
        assert_int_equal(mf_target_check_model(MF_TARGET_MEGATRON, &m, m.name, NULL), MF_OK);
        assert_int_equal(mf_layout_resolve(&p.layout, &m, &e), MF_OK);
        assert_int_equal(mf_assignment_even(&m, &p.layout, &p.assignment, &e), MF_OK);
        const mf_launch x = {.model = &m, .cluster = &c, .plan = &p, .model_name = m.name};
        mf_write_model(&m, &p.layout, &s);
        mf_write_layout(&x, &s);
        const mf_setting *found = setting_of(&s, rows[i].name);
        if ((found == NULL) != (rows[i].value == NULL) ||
            (found != NULL && strcmp(found->value, rows[i].value) != 0)) {
            fail_msg("%s: --%s %s", rows[i].model, rows[i].name,
                     found != NULL ? found->value : "is not there");
        }
        mf_settings_clear(&s);
    }
}

/* Layers that share a choice of keys stand in one chunk with the one that makes it. */
static void test_chunks_begin_with_a_layer_that_chooses(void **state) {
    (void)state;
    mf_model m;
    mf_plan p;
    mf_err e;
    assert_int_equal(mf_model_load("glm-5.2", &m, &e), MF_OK);
    for (int64_t pp = 1; pp <= 16; pp *= 2) {
        mf_plan_init(&p);
        p.layout.gpus = p.layout.gbs = p.layout.pp = pp;
        p.layout.seq = 4096;
        assert_int_equal(mf_layout_resolve(&p.layout, &m, &e), MF_OK);
        assert_int_equal(mf_assignment_even(&m, &p.layout, &p.assignment, &e), MF_OK);
        concede(MF_TARGET_MEGATRON, &m, &p);
        for (int v = 1; v < p.assignment.vstages; v++) {
            const int at = p.assignment.first[v];
            assert_true(mf_position_kind_of(&m, at) != MF_POS_LAYER ||
                        mf_target_class_at(&m, at)->indexer);
        }
    }
}

/* A recipe builds the model of its name alone; other numbers of equal layers are a setting. */
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
    const char *const lower[] = {"num_hidden_layers=32"};
    assert_int_equal(mf_model_load_with("qwen3-30b-a3b", lower, 1, &m, &e), MF_OK);
    assert_true(mf_target_has_recipe(&m, "qwen3-30b-a3b"));
    assert_int_equal(mf_model_load_with("deepseek-v3", lower, 1, &m, &e), MF_OK);
    assert_false(mf_target_has_recipe(&m, "deepseek-v3")); /* its recipe lists which are dense */
}

/* Where no recipe builds a model, the script for Megatron-Bridge does: fields as its config.json
 * says them, a provider of its kind, and nothing that is asked for before it starts. */
static void test_a_model_without_a_recipe_is_built_by_its_script(void **state) {
    (void)state;
    static const struct {
        const char *model, *line; /* NULL: started with a recipe */
    } rows[] = {
        {"mixtral-8x22b", "\nmodel = GPTModelProvider(transformer_layer_spec=layers)\n"},
        {"mixtral-8x22b", "    model.num_query_groups=8\n"},
        {"mixtral-8x22b", "    model.moe_router_load_balancing_type=aux_loss\n"},
        {"mixtral-8x22b", "    model.activation_func=silu\n"},
        {"mixtral-8x22b", "    model.layernorm_epsilon=1e-05\n"},
        {"mixtral-8x22b", "    model.vocab_size=32768\n"},
        {"deepseek-v3-proxy", "\nmodel = MLAModelProvider(transformer_layer_spec=layers)\n"},
        {"deepseek-v3-proxy", "    model.multi_latent_attention=true\n"},
        {"deepseek-v3-proxy", "    'model.moe_layer_freq=[0,0,0,1,1,"},
        {"deepseek-v3-proxy", "    model.moe_router_score_function=sigmoid\n"},
        {"glm-5",
         "\nlayers = specs.get_transformer_block_with_experimental_attention_variant_spec\n"},
        {"glm-5", "    model.dsa_indexer_topk=2048\n"},
        {"glm-5", "    model.dsa_indexer_rotate_activation=false\n"},
        {"deepseek-v3.2",
         "    model.experimental_attention_variant=dsa\n"}, /* a family of ours alone */
        {"qwen3.5-397b-a17b", "    'model.linear_attention_freq=[1,1,1,0,1,1,1,0,"},
        {"qwen3.5-397b-a17b", "    model.layernorm_zero_centered_gamma=true\n"},
        {"llama2-70b", "    model.add_bias_linear=false\n"},
        {"llama2-70b", "    model.share_embeddings_and_output_weights=false\n"},
        {"qwen3-30b-a3b", NULL},
    };
    const mf_cluster c = test_cluster();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mf_model m;
        mf_plan p;
        mf_err e;
        mf_err_clear(&e);
        mf_plan_init(&p);
        p.layout.gpus = p.layout.gbs = 1;
        p.layout.seq = 4096;
        assert_int_equal(mf_model_load(rows[i].model, &m, &e), MF_OK);
        assert_int_equal(mf_target_check_model(MF_TARGET_BRIDGE, &m, m.name, &e), MF_OK);
        assert_int_equal(mf_layout_resolve(&p.layout, &m, &e), MF_OK);
        assert_int_equal(mf_assignment_even(&m, &p.layout, &p.assignment, &e), MF_OK);
        char *script = named_script_of(MF_TARGET_BRIDGE, &m, &c, &p, m.name);
        if (strstr(script, rows[i].line != NULL ? rows[i].line : "RECIPE:-qwen3_30b_a3b") == NULL) {
            fail_msg("%s: no line %s", rows[i].model, rows[i].line);
        }
        assert_null(strstr(script, "RECIPE:?"));
        assert_int_equal(strstr(script, "-c \"$TRAIN\"") != NULL, rows[i].line != NULL);
        free(script);
    }
}

/* A name of Megatron-Bridge's says what the plan does, or all of the precision is said. */
static void test_a_precision_by_name_is_the_plans(void **state) {
    (void)state;
    static const struct {
        mf_precision precision;
        bool grads_bf16, primary;
        const char *line;
    } rows[] = {
        {MF_PREC_BF16, false, false, "    mixed_precision=bf16_mixed\n"},
        {MF_PREC_BF16, true, false, "grad_reduce_in_fp32:false}'\n"},
        {MF_PREC_MXFP8, false, true, "    mixed_precision=bf16_with_mxfp8_mixed\n"},
        {MF_PREC_MXFP8, false, false, ",fp8:e4m3,fp8_recipe:mxfp8,fp8_param_gather:false}'\n"},
        {MF_PREC_FP8_TENSOR, false, true,
         ",fp8:hybrid,fp8_recipe:tensorwise,fp8_param_gather:true}'\n"},
        {MF_PREC_FP32, false, false, "    mixed_precision=null\n"},
    };
    const mf_cluster c = test_cluster();
    const mf_model m = test_model_moe(true);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mf_plan p, back;
        mf_err e;
        mf_err_clear(&e);
        mf_plan_init(&p);
        p.layout.gpus = 8;
        p.layout.gbs = 8;
        p.layout.ep = 8;
        p.layout.seq = 2048;
        p.layout.zero = p.layout.expert_zero = 1;
        p.layout.precision = rows[i].precision;
        p.layout.grads_bf16 = rows[i].grads_bf16;
        p.layout.fp8_primary_weights = rows[i].primary;
        assert_int_equal(mf_layout_resolve(&p.layout, &m, &e), MF_OK);
        assert_int_equal(mf_assignment_even(&m, &p.layout, &p.assignment, &e), MF_OK);
        char *script = script_of(MF_TARGET_BRIDGE, &m, &c, &p);
        if (strstr(script, rows[i].line) == NULL) {
            fail_msg("no line %s", rows[i].line);
        }
        read_back(script, &m, &back);
        free(script);
        assert_int_equal(back.layout.precision, rows[i].precision);
        assert_int_equal(back.layout.grads_bf16, rows[i].grads_bf16);
        assert_int_equal(back.layout.fp8_primary_weights, rows[i].primary);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped_models_are_read_back_or_refused),
        cmocka_unit_test(test_what_cannot_be_said_is_named),
        cmocka_unit_test(test_a_model_without_a_recipe_is_built_by_its_script),
        cmocka_unit_test(test_a_precision_by_name_is_the_plans),
        cmocka_unit_test(test_layers_of_hybrids_and_sparse_attention_are_written),
        cmocka_unit_test(test_chunks_begin_with_a_layer_that_chooses),
        cmocka_unit_test(test_a_changed_model_is_not_the_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
