/* Precision recipes in the step program: what is quantised, what it costs to do so, what is kept
 * and what travels. */
#include "core/program/lower.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

/* Bytes of an operand element, scales included, written out from the formats' definitions. */
static const struct {
    mf_precision precision;
    double element_B, reads;
} recipes[] = {
    {MF_PREC_FP8_TENSOR, 1.0, 2},
    {MF_PREC_FP8_BLOCK, 1.0 + 4.0 / 128, 1},
    {MF_PREC_MXFP8, 1.0 + 1.0 / 32, 1},
    {MF_PREC_NVFP4, 0.5 + 1.0 / 16, 3},
};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

static mf_layout layout_of(mf_precision precision) {
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = 16;
    l.tp = 2;
    l.ep = 4;
    l.gbs = 64;
    l.seq = 4096;
    l.dispatcher = MF_DISPATCH_ALLTOALL;
    l.precision = precision;
    return l;
}

static mf_program *lowered_on(const mf_cluster *c, const mf_model *m, mf_layout *l) {
    mf_assignment a;
    mf_program *p = NULL;
    mf_err e;
    if (mf_layout_resolve(l, m, &e) != MF_OK || mf_assignment_even(m, l, &a, &e) != MF_OK ||
        mf_program_lower(m, l, c, &a, &p, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return p;
}

static mf_program *lowered(const mf_model *m, mf_layout *l) {
    const mf_cluster c = test_cluster();
    return lowered_on(&c, m, l);
}

static const mf_block *moe_block(const mf_program *p) {
    return p->blocks[p->block_of[3]]; /* embedding, one dense layer, then Mixture of Experts */
}

/* Both products of a covered linear layer and of the experts, and their weight gradients, read
 * operands of the recipe's width; router, norms and attention do not. */
static void covered_products_read_quantised_operands(void **state) {
    (void)state;
    for (int r = 0; r < RECIPES; r++) {
        const mf_model m = test_model_moe(true);
        mf_layout l = layout_of(recipes[r].precision);
        mf_program *p = lowered(&m, &l);
        const mf_block *b = moe_block(p);
        int covered = 0, router = 0;
        for (int i = 0; i < b->nops; i++) {
            const mf_op *op = &b->ops[i];
            if (op->kind != MF_OP_GEMM && op->kind != MF_OP_GROUPED_GEMM) {
                continue;
            }
            bool is_router = strcmp(op->name, "router") == 0;
            double first_B = b->tensors[op->in[0]].element_B;
            assert_int_equal(op->math,
                             is_router ? MF_MATH_BF16 : mf_precision_math(recipes[r].precision));
            if (is_router) {
                router++;
                assert_at_least(first_B, 2.0);
            } else {
                covered++;
                assert_close(first_B, recipes[r].element_B, 1e-12);
            }
            if (op->flags & MF_OPF_WGRAD && !is_router) {
                assert_close(b->tensors[op->in[1]].element_B, recipes[r].element_B, 1e-12);
            }
        }
        assert_int_equal(router, 3);
        assert_at_least(covered, 3 * 7); /* MLA's four, o_proj, shared FC1/2, expert FC1/2 */
        mf_program_destroy(p);
    }
}

/* A quantise op reads BF16 as often as its scales need and writes along rows and columns. */
static void quantising_costs_its_reads_and_two_copies(void **state) {
    (void)state;
    for (int r = 0; r < RECIPES; r++) {
        const mf_model m = test_model_moe(false);
        mf_layout l = layout_of(recipes[r].precision);
        mf_program *p = lowered(&m, &l);
        const mf_block *b = moe_block(p);
        int seen = 0;
        for (int i = 0; i < b->nops; i++) {
            const mf_op *op = &b->ops[i];
            if (op->kind == MF_OP_QUANTISE) {
                double n = (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS];
                double from_B = b->tensors[op->in[0]].element_B;
                assert_close(op->bytes /
                                 (n * (recipes[r].reads * from_B + 2 * recipes[r].element_B)),
                             1.0, 1e-12);
                assert_close(b->tensors[op->out[0]].element_B, recipes[r].element_B, 1e-12);
                seen++;
            }
        }
        assert_at_least(seen, 6);
        mf_program_destroy(p);
        l = layout_of(MF_PREC_BF16);
        p = lowered(&m, &l);
        b = moe_block(p);
        for (int i = 0; i < b->nops; i++) {
            assert_true(b->ops[i].kind != MF_OP_QUANTISE);
        }
        mf_program_destroy(p);
    }
}

/* Quantised inputs are what is saved: the experts' rows and activations shrink with the format. */
static double quantised_bytes(const mf_program *p) {
    const mf_block *b = moe_block(p);
    double bytes = 0;
    for (int i = 0; i < b->nops; i++) {
        bytes += b->ops[i].kind == MF_OP_QUANTISE ? b->ops[i].bytes : 0;
        assert_at_least(b->ops[i].bytes, 0);
    }
    return bytes;
}

/* Two reads of BF16 and two copies of a byte: six bytes an element, or five. */
static void one_scale_is_written_in_one_order_where_products_read_either(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        mf_precision precision;
        double share;
    } cases[] = {{"blackwell", MF_PREC_FP8_TENSOR, 5.0 / 6},
                 {"hopper", MF_PREC_FP8_TENSOR, 1},
                 {"blackwell", MF_PREC_MXFP8, 1},
                 {"blackwell", MF_PREC_NVFP4, 1}};
    const mf_model m = test_model_moe(true);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_cluster c = test_cluster();
        mf_layout l = layout_of(cases[i].precision);
        snprintf(c.gpu.arch, sizeof c.gpu.arch, "%s", cases[i].arch);
        mf_program *both = lowered_on(&c, &m, &l);
        l.software_traits = MF_TRAIT_ONE_ORDER;
        mf_program *one = lowered_on(&c, &m, &l);
        assert_close(quantised_bytes(one) / quantised_bytes(both), cases[i].share, 1e-12);
        mf_program_destroy(one);
        l.software_traits |= MF_TRAIT_FUSED_EXPERTS; /* some cost no pass at all */
        one = lowered_on(&c, &m, &l);
        assert_below(quantised_bytes(one), cases[i].share * quantised_bytes(both));
        mf_program_destroy(one);
        mf_program_destroy(both);
    }
}

static void saved_activations_shrink_with_the_format(void **state) {
    (void)state;
    const mf_model m = test_model_moe(true);
    static const mf_precision order[] = {MF_PREC_BF16, MF_PREC_FP8_BLOCK, MF_PREC_FP8_TENSOR,
                                         MF_PREC_NVFP4};
    int64_t before = INT64_MAX;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        mf_layout l = layout_of(order[i]);
        mf_program *p = lowered(&m, &l);
        assert_below(moe_block(p)->saved_B, before);
        before = moe_block(p)->saved_B;
        mf_program_destroy(p);
    }
}

/* Weights: BF16 and two quantised orientations; or, where these are primary, they alone. */
static void primary_weights_leave_no_bf16_copy(void **state) {
    (void)state;
    const mf_param_count count = {.dense = 1000000, .expert = 7000000, .dense_matrices = 900000};
    for (int r = 0; r < RECIPES; r++) {
        mf_layout l = layout_of(recipes[r].precision);
        double q = recipes[r].element_B, low = 7.9e6, rest = 0.1e6;
        l.zero = l.expert_zero = 1;
        const mf_model m = test_model_moe(false);
        assert_ok(mf_layout_resolve(&l, &m, NULL));
        assert_close(mf_param_memory(&l, count).weights_B / (low * (2 + 2 * q) + rest * 2), 1.0,
                     1e-12);
        l.fp8_primary_weights = true;
        assert_close(mf_param_memory(&l, count).weights_B / (low * 2 * q + rest * 2), 1.0, 1e-12);
    }
}

/* What travels then is quantised too, in one orientation: after the step with ZeRO-1, before each
 * pass of a block with ZeRO-3. Norms, router and tables travel in BF16. */
static void primary_weights_are_gathered_quantised(void **state) {
    (void)state;
    const mf_model m = test_model_moe(true);
    for (int r = 0; r < RECIPES; r++) {
        for (int level = 1; level <= 3; level += 2) {
            mf_layout l = layout_of(recipes[r].precision);
            l.zero = l.expert_zero = (uint8_t)level;
            l.fp8_primary_weights = true;
            mf_program *p = lowered(&m, &l);
            const mf_block *b = moe_block(p);
            double low = (double)b->params.dense_matrices, rest = (double)b->params.dense - low;
            double q = recipes[r].element_B;
            assert_above(rest, 0);
            assert_above(low, rest);
            double dense_B = low * q + rest * 2, expert_B = (double)b->params.expert * q;
            const mf_dp_ops *ops = &p->dp[3];
            if (level == 1) {
                assert_close(ops->gather[0].bytes / dense_B, 1.0, 1e-9);
                assert_close(ops->gather[1].bytes / expert_B, 1.0, 1e-9);
            }
            int seen = 0;
            for (int i = 0; i < b->nops; i++) {
                const mf_op *op = &b->ops[i];
                if (op->kind == MF_OP_ALL_GATHER && op->stream == MF_STREAM_DP) {
                    bool expert = op->group == MF_GROUP_EDP;
                    assert_close(op->bytes / (expert ? expert_B : dense_B), 1.0, 1e-9);
                    seen++;
                }
            }
            assert_int_equal(seen, level == 3 ? 4 : 0);
            mf_program_destroy(p);
        }
    }
}

/* Once a step: all covered weights, or only a rank's own when those travel quantised. */
static void weights_are_quantised_once_a_step(void **state) {
    (void)state;
    const mf_model m = test_model_moe(true);
    for (int r = 0; r < RECIPES; r++) {
        double bytes[2] = {0, 0};
        for (int primary = 0; primary < 2; primary++) {
            mf_layout l = layout_of(recipes[r].precision);
            l.fp8_primary_weights = primary;
            mf_program *p = lowered(&m, &l);
            mf_op ops[64];
            int n = mf_program_optimizer(p, 0, ops, 64);
            mf_param_count all = mf_program_stage_params(p, 0);
            for (int i = 0; i < n; i++) {
                bytes[primary] += ops[i].kind == MF_OP_QUANTISE ? ops[i].bytes : 0;
            }
            double dense = (double)all.dense_matrices, expert = (double)all.expert;
            double rows = primary ? ceil(dense / 8) + ceil(expert / 4) : dense + expert;
            assert_close(bytes[primary] / (rows * (2 + 2 * recipes[r].element_B)), 1.0, 1e-9);
            mf_program_destroy(p);
        }
        assert_below(bytes[1], bytes[0]);
    }
}

/* What a program moves and holds of gradients, in bytes. */
typedef struct gradients {
    double held, reduced, made, step;
    int wide; /* weight gradients that add to an FP32 sum */
} gradients;

static gradients gradients_of(const mf_model *m, int level, bool bf16) {
    mf_layout l = layout_of(MF_PREC_BF16);
    l.zero = l.expert_zero = (uint8_t)level;
    l.grads_bf16 = bf16;
    mf_program *p = lowered(m, &l);
    mf_param_count all = mf_program_stage_params(p, 0);
    gradients g = {.held = mf_param_memory(&l, all).gradients_B};
    for (int i = 0; i < p->assignment.positions; i++) {
        g.reduced += p->dp[i].reduce[0].bytes + p->dp[i].reduce[1].bytes;
        const mf_block *b = p->blocks[p->block_of[i]];
        for (int k = 0; k < b->nops; k++) {
            const mf_op *op = &b->ops[k];
            bool reduces = op->module == MF_MODULE_GRADIENTS && op->stream == MF_STREAM_DP;
            g.reduced += reduces ? op->bytes : 0;
            g.wide += (op->flags & MF_OPF_WGRAD) && (op->flags & MF_OPF_ACC_FP32);
        }
        for (int t = 0; t < b->ntensors; t++) {
            bool gradient = b->tensors[t].class == MF_TENSOR_GRADIENT;
            g.made += gradient ? (double)b->tensors[t].bytes : 0;
        }
    }
    mf_op ops[64];
    int n = mf_program_optimizer(p, 0, ops, 64);
    for (int i = 0; i < n; i++) {
        bool reads = ops[i].kind == MF_OP_GRAD_NORM || ops[i].kind == MF_OP_ADAMW;
        g.step += reads ? ops[i].bytes : 0;
    }
    mf_program_destroy(p);
    return g;
}

static void gradients_in_bf16_take_half_the_bytes_everywhere(void **state) {
    (void)state;
    const mf_model m = test_model_moe(true);
    for (int level = 0; level <= 3; level++) {
        gradients wide = gradients_of(&m, level, false), narrow = gradients_of(&m, level, true);
        assert_above(wide.held, 0);
        assert_above(wide.reduced, 0);
        assert_above(wide.made, 0);
        assert_above(wide.wide, 0);
        assert_close(narrow.held / wide.held, 0.5, 1e-9);
        assert_close(narrow.reduced / wide.reduced, 0.5, 1e-9);
        assert_close(narrow.made / wide.made, 0.5, 1e-6);
        assert_int_equal(narrow.wide, 0);
        /* The norm reads 4 or 2 bytes an element; AdamW those, master and moments in and out (24)
         * and the parameter in and out (4). */
        assert_close(narrow.step / wide.step, (2 + 2 + 28.0) / (4 + 4 + 28), 1e-3);
    }
    mf_layout l = layout_of(MF_PREC_FP32);
    l.grads_bf16 = true;
    mf_err e = {.text = ""};
    assert_int_not_equal(mf_layout_resolve(&l, &m, &e), MF_OK);
    assert_non_null(strstr(e.text, "gradients of FP32 weights accumulate in fp32"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(covered_products_read_quantised_operands),
        cmocka_unit_test(quantising_costs_its_reads_and_two_copies),
        cmocka_unit_test(one_scale_is_written_in_one_order_where_products_read_either),
        cmocka_unit_test(saved_activations_shrink_with_the_format),
        cmocka_unit_test(primary_weights_leave_no_bf16_copy),
        cmocka_unit_test(primary_weights_are_gathered_quantised),
        cmocka_unit_test(weights_are_quantised_once_a_step),
        cmocka_unit_test(gradients_in_bf16_take_half_the_bytes_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
