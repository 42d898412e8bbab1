/* The expert product that writes its activation: what lowering makes of it, in which programs; what
 * it costs; and that training leaves the same bytes as with an activation in a pass of its own. */
#include "costmodel/cost.h"
#include "tests/support/sampled.h"
#include "tests/support/shadow_case.h"
#include "tests/support/test.h"

#include <math.h>

static mf_err e;

/* --- lowering ----------------------------------------------------------------------------------
 */

typedef struct fixture {
    mf_model m;
    mf_layout l;
    mf_cluster c;
    mf_block *b; /* of a MoE layer */
} fixture;

static void lower(fixture *w, const char *name, const char *change, uint32_t traits,
                  mf_precision precision, uint16_t recompute) {
    memset(w, 0, sizeof *w);
    assert_ok(mf_model_load_with(name, &change, change != NULL, &w->m, &e));
    assert_ok(mf_cluster_load("h200", &w->c, &e));
    mf_layout_init(&w->l);
    w->l.gpus = w->l.gbs = 1;
    w->l.seq = 4096;
    w->l.precision = precision;
    w->l.software_traits = traits;
    if (mf_layout_resolve(&w->l, &w->m, &e) != MF_OK) {
        fail_msg("%s: %s", name, e.text);
    }
    int layer_class = 0;
    while (w->m.layer_classes[layer_class].ffn != MF_FFN_MOE) {
        layer_class++;
    }
    const mf_block_key key =
        mf_block_key_layer((uint8_t)layer_class, (mf_memory_choice){.recompute = recompute}, false);
    if (mf_block_lower(&w->m, &w->l, &w->c, &key, &w->b, &e) != MF_OK) {
        fail_msg("%s: %s", name, e.text);
    }
}

static const mf_op *find(const mf_block *b, mf_op_kind kind, unsigned pass, const char *name) {
    const mf_op *found = NULL;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        bool named = name == NULL || strcmp(op->name, name) == 0;
        if (op->kind == kind && op->pass == pass && named &&
            (op->module == MF_MODULE_EXPERTS || name != NULL)) {
            assert_null(found);
            found = op;
        }
    }
    return found;
}

static const char *tensor(const mf_block *b, int16_t t) {
    return b->tensors[t].name;
}

/* Qwen3-30B-A3B: 4,096 tokens to 8 experts of width 768 each. */
static void the_product_writes_three_columns_for_two(void **state) {
    (void)state;
    fixture fused, apart;
    lower(&fused, "qwen3-30b-a3b", NULL, 0, MF_PREC_BF16, 0);
    lower(&apart, "qwen3-30b-a3b", NULL, MF_TRAIT_ACT_PASS, MF_PREC_BF16, 0);
    const mf_op *f = find(fused.b, MF_OP_GROUPED_GEMM, MF_PASS_F, "expert_fc1");
    const mf_op *a = find(apart.b, MF_OP_GROUPED_GEMM, MF_PASS_F, "expert_fc1");
    const mf_op *pass = find(apart.b, MF_OP_SWIGLU_FWD, MF_PASS_F, NULL);
    const double column_B = 2.0 * 4096 * 8 * 768;
    assert_null(find(fused.b, MF_OP_SWIGLU_FWD, MF_PASS_F, NULL));
    assert_non_null(pass);
    assert_true(f->flags & MF_OPF_ACT);
    assert_true(!(a->flags & MF_OPF_ACT));
    assert_int_equal(fused.b->nforward, apart.b->nforward - 1);
    assert_close(f->bytes - a->bytes, column_B, 0.5);
    assert_close(a->bytes + pass->bytes - f->bytes, 2 * column_B, 0.5); /* no more read again */
    assert_true(f->flops == a->flops);
    assert_int_equal(f->nin, 4);
    assert_string_equal(tensor(fused.b, f->in[1]), "expert_fc1");
    assert_string_equal(tensor(fused.b, f->in[2]), "row_probs");
    assert_string_equal(tensor(fused.b, f->in[3]), "row_map");
    assert_int_equal(f->nout, 2);
    assert_string_equal(tensor(fused.b, f->out[0]), "expert_fc1");
    assert_string_equal(tensor(fused.b, f->out[1]), "activation");
    assert_int_equal(fused.b->tensors[f->out[0]].cols, 2 * 768);
    assert_int_equal(fused.b->tensors[f->out[1]].cols, 768);
    assert_int_equal(fused.b->saved_B, apart.b->saved_B);
    mf_block_destroy(fused.b);
    mf_block_destroy(apart.b);
}

/* What comes behind the forward pass: op by op as before. */
static void check_backward(const mf_block *fused, const mf_block *apart) {
    const int shift = apart->nforward - fused->nforward;
    assert_int_equal(fused->nops, apart->nops - shift);
    for (int i = fused->nforward; i < fused->nops; i++) {
        const mf_op *f = &fused->ops[i], *a = &apart->ops[i + shift];
        assert_string_equal(f->name, a->name);
        assert_int_equal(f->kind, a->kind);
        assert_int_equal(f->flags, a->flags);
        assert_int_equal(f->nin, a->nin);
        assert_int_equal(f->nout, a->nout);
        assert_int_equal(f->sums, a->sums);
        assert_close(f->bytes, a->bytes, 0.5);
        assert_close(f->flops, a->flops, 0.5);
        assert_memory_equal(f->dim, a->dim, sizeof f->dim);
        for (int k = 0; k < f->nin; k++) {
            assert_string_equal(tensor(fused, f->in[k]), tensor(apart, a->in[k]));
        }
        for (int k = 0; k < f->nout; k++) {
            assert_string_equal(tensor(fused, f->out[k]), tensor(apart, a->out[k]));
        }
    }
}

static void gradients_are_those_of_a_pass_of_its_own(void **state) {
    (void)state;
    static const uint16_t recompute[] = {0, MF_RECOMPUTE_ACT, MF_RECOMPUTE_CORE_ATTN};
    for (size_t i = 0; i < sizeof recompute / sizeof recompute[0]; i++) {
        fixture fused, apart;
        lower(&fused, "deepseek-v3", "n_routed_experts=32", 0, MF_PREC_BF16, recompute[i]);
        lower(&apart, "deepseek-v3", "n_routed_experts=32", MF_TRAIT_ACT_PASS, MF_PREC_BF16,
              recompute[i]);
        check_backward(fused.b, apart.b);
        const mf_op *op = find(fused.b, MF_OP_SWIGLU_BWD, MF_PASS_B, NULL);
        assert_non_null(op);
        assert_true(fused.b->ops[op->forward].flags & MF_OPF_ACT);
        assert_int_equal(fused.b->saved_B, apart.b->saved_B);
        mf_block_destroy(fused.b);
        mf_block_destroy(apart.b);
    }
}

static void an_activation_that_was_not_kept_is_made_again_from_gate_and_up(void **state) {
    (void)state;
    fixture w;
    lower(&w, "mixtral-8x7b", NULL, 0, MF_PREC_BF16, MF_RECOMPUTE_ACT);
    const mf_op *op = find(w.b, MF_OP_SWIGLU_FWD, MF_PASS_R, NULL);
    assert_non_null(op);
    assert_null(find(w.b, MF_OP_GROUPED_GEMM, MF_PASS_R, NULL));
    assert_int_equal(op->makes, 2); /* the second output of the product */
    assert_int_equal(op->nin, 3);
    assert_int_equal(op->nout, 1);
    assert_int_equal(w.b->tensors[op->in[0]].class, MF_TENSOR_SAVED);
    assert_close(op->bytes, 3 * 2.0 * 4096 * 2 * 14336, 0.5);
    mf_block_destroy(w.b);
    /* of what was not kept either, the product writes both again */
    lower(&w, "mixtral-8x7b", NULL, 0, MF_PREC_BF16, MF_RECOMPUTE_EXPERTS);
    assert_null(find(w.b, MF_OP_SWIGLU_FWD, MF_PASS_R, NULL));
    op = find(w.b, MF_OP_GROUPED_GEMM, MF_PASS_R, NULL);
    assert_non_null(op);
    assert_true(op->flags & MF_OPF_ACT);
    assert_int_equal(op->makes, 3);
    assert_int_equal(op->nout, 2);
    mf_block_destroy(w.b);
}

/* The kernel knows SwiGLU in BF16, with halves of a multiple of 8 columns. */
static void what_the_kernel_does_not_know_stays_apart(void **state) {
    (void)state;
    static const struct {
        const char *model, *change;
        uint32_t traits;
        mf_precision precision;
        bool fused;
    } cases[] = {
        {"mixtral-8x7b", NULL, 0, MF_PREC_BF16, true},
        {"mixtral-8x7b", NULL, 0, MF_PREC_FP8_BLOCK, false},
        {"mixtral-8x7b", "intermediate_size=1004", 0, MF_PREC_BF16, false},
        {"mixtral-8x7b", NULL, MF_TRAIT_ACT_PASS, MF_PREC_BF16, false},
        {"mixtral-8x7b", NULL, MF_TRAIT_UNFUSED_ACT, MF_PREC_BF16, false},
        {"mixtral-8x7b", NULL, MF_TRAIT_EXPERT_COPIES, MF_PREC_BF16, false},
        {"mixtral-8x7b", NULL, MF_TRAIT_FUSED_EXPERTS, MF_PREC_BF16, false},
        {"mixtral-8x7b", NULL, MF_TRAIT_RESIDUAL_PASS, MF_PREC_BF16, true},
        {"gpt-oss-20b", NULL, 0, MF_PREC_BF16, false},     /* biases, a clamp */
        {"nemotron-3-nano", NULL, 0, MF_PREC_BF16, false}, /* relu squared */
        {"llama4-maverick", NULL, 0, MF_PREC_BF16, false}, /* probabilities on what experts read */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture w;
        lower(&w, cases[i].model, cases[i].change, cases[i].traits, cases[i].precision, 0);
        const mf_op *fc1 = find(w.b, MF_OP_GROUPED_GEMM, MF_PASS_F, "expert_fc1");
        if (cases[i].fused != ((fc1->flags & MF_OPF_ACT) != 0)) {
            fail_msg("case %zu: %s", i, cases[i].model);
        }
        bool apart = find(w.b, MF_OP_SWIGLU_FWD, MF_PASS_F, NULL) != NULL ||
                     find(w.b, MF_OP_RELU2_FWD, MF_PASS_F, NULL) != NULL;
        assert_true(apart != cases[i].fused);
        mf_block_destroy(w.b);
    }
}

static void programs_of_others_activate_in_a_pass_of_its_own(void **state) {
    (void)state;
    size_t count;
    const char *const *names = mf_software_shipped(&count);
    int fused = 0;
    for (size_t i = 0; i < count; i++) {
        mf_software s;
        assert_ok(mf_software_load(names[i], &s, &e));
        bool own = strcmp(names[i], "moefold") == 0 || strcmp(names[i], "ideal") == 0;
        assert_int_equal((s.traits & MF_TRAIT_ACT_PASS) != 0, !own);
        fused += own;
    }
    assert_int_equal(fused, 2);
    uint32_t traits = 0;
    assert_ok(mf_traits_parse("act_pass", &traits, &e));
    assert_int_equal(traits, MF_TRAIT_ACT_PASS);
}

/* --- what it costs -----------------------------------------------------------------------------
 */

/* More than the product, less than both. */
static void the_fused_product_costs_less_than_two_passes(void **state) {
    (void)state;
    static const char *const models[] = {"mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        fixture w, apart;
        mf_software s;
        mf_cost *cost;
        mf_price product, both, pass;
        lower(&w, models[i], NULL, 0, MF_PREC_BF16, 0);
        lower(&apart, models[i], NULL, MF_TRAIT_ACT_PASS, MF_PREC_BF16, 0);
        assert_ok(mf_software_load("moefold", &s, &e));
        assert_ok(mf_cost_create(&w.c, &s, NULL, &cost, &e));
        const mf_op *f = find(w.b, MF_OP_GROUPED_GEMM, MF_PASS_F, "expert_fc1");
        const mf_op *a = find(apart.b, MF_OP_GROUPED_GEMM, MF_PASS_F, "expert_fc1");
        const mf_op *act = find(apart.b, MF_OP_SWIGLU_FWD, MF_PASS_F, NULL);
        mf_cost_op(cost, f, 1, &both);
        mf_cost_op(cost, a, 1, &product);
        mf_cost_op(cost, act, 1, &pass);
        assert_above(both.time_s, product.time_s);
        assert_below(both.time_s, product.time_s + pass.time_s);
        const double fused_J = mf_cost_energy_J(cost, f, 1, 0, 1);
        const double apart_J =
            mf_cost_energy_J(cost, a, 1, 0, 1) + mf_cost_energy_J(cost, act, 1, 0, 1);
        assert_above(fused_J, mf_cost_energy_J(cost, a, 1, 0, 1));
        assert_below(fused_J, apart_J);
        mf_cost_destroy(cost);
        mf_block_destroy(w.b);
        mf_block_destroy(apart.b);
    }
}

/* --- what training leaves ----------------------------------------------------------------------
 */

static void act_pass(mf_layout *l) {
    l->software_traits = MF_TRAIT_ACT_PASS;
}

/* States of all parameters behind two steps, and the losses and norms (five figures) of the last.
 */
static void train(const shadow_setup *setup, bool fused, shadow_bytes *out) {
    shadow_case c;
    shadow_bytes results = {0};
    *out = (shadow_bytes){0};
    if (shadow_case_open(&c, setup, mf_device_cpu(), &e) != MF_OK) {
        fail_msg("%s: %s", setup->family, e.text);
    }
    int activating = 0;
    for (int i = 0; i < c.program->nblocks; i++) {
        for (int k = 0; k < c.program->blocks[i]->nops; k++) {
            activating += (c.program->blocks[i]->ops[k].flags & MF_OPF_ACT) != 0;
        }
    }
    assert_true((activating > 0) == fused);
    assert_ok(shadow_steps(&c, 2, &results, &e));
    shadow_bytes_add(out, results.data, 5 * sizeof(double));
    assert_ok(shadow_keep_states(&c, out, &e));
    shadow_bytes_clear(&results);
    shadow_case_close(&c);
}

static void training_leaves_the_same_bytes(void **state) {
    (void)state;
    static const shadow_setup setups[] = {
        {.family = "mixtral", .precision = MF_PREC_BF16},
        {.family = "mixtral", .precision = MF_PREC_BF16, .recompute = MF_RECOMPUTE_ACT},
        {.family = "mixtral", .precision = MF_PREC_FP32, .recompute = MF_RECOMPUTE_EXPERTS},
        {.family = "mixtral",
         .precision = MF_PREC_BF16,
         .recompute = MF_RECOMPUTE_ACT,
         .offload = MF_OFFLOAD_EXPERT_FC1},
        {.family = "olmoe", .precision = MF_PREC_BF16, .capacity = 1.0, .aux_coef = 0.02},
        {.family = "qwen2_moe", .precision = MF_PREC_BF16, .recompute = MF_RECOMPUTE_LAYER},
        {.family = "deepseek_v3", .precision = MF_PREC_BF16},
    };
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i += (size_t)case_stride(3)) {
        shadow_bytes fused, apart;
        shadow_setup other = setups[i];
        other.layout = act_pass;
        train(&setups[i], true, &fused);
        train(&other, false, &apart);
        assert_above(fused.size_B, 10000);
        assert_int_equal(fused.size_B, apart.size_B);
        assert_memory_equal(fused.data, apart.data, fused.size_B);
        shadow_bytes_clear(&fused);
        shadow_bytes_clear(&apart);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_product_writes_three_columns_for_two),
        cmocka_unit_test(gradients_are_those_of_a_pass_of_its_own),
        cmocka_unit_test(an_activation_that_was_not_kept_is_made_again_from_gate_and_up),
        cmocka_unit_test(what_the_kernel_does_not_know_stays_apart),
        cmocka_unit_test(programs_of_others_activate_in_a_pass_of_its_own),
        cmocka_unit_test(the_fused_product_costs_less_than_two_passes),
        cmocka_unit_test(training_leaves_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
