/* Measured ops as points of the profile store: the key of an op is the key that prices it. */
#include "compare/compare_points.h"
#include "costmodel/cost_internal.h"
#include "tests/support/test.h"

#include <stdio.h>

static mf_program *lower(const char *family, mf_precision precision, int ranks, mf_cluster *c) {
    char path[128];
    mf_model m;
    mf_layout l;
    mf_assignment a;
    mf_program *p = NULL;
    mf_err e;
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", family);
    mf_layout_init(&l);
    l.gpus = ranks;
    l.tp = ranks == 4 ? 2 : 1;
    l.ep = ranks;
    l.gbs = 8;
    l.seq = 64;
    l.precision = precision;
    l.dispatcher = ranks == 4 ? MF_DISPATCH_ALLTOALL : MF_DISPATCH_FUSED;
    if (mf_model_load(path, &m, &e) != MF_OK || mf_cluster_load("cpu", c, &e) != MF_OK ||
        mf_layout_resolve(&l, &m, &e) != MF_OK || mf_assignment_even(&m, &l, &a, &e) != MF_OK ||
        mf_program_lower(&m, &l, c, &a, &p, &e) != MF_OK) {
        fail_msg("%s: %s", family, e.text);
    }
    return p;
}

static void an_op_is_priced_as_the_point_that_it_is_kept_under(void **state) {
    (void)state;
    static const char *const families[] = {"mixtral", "qwen3_moe", "deepseek_v3"};
    int found[MF_OP_COUNT] = {0}, without = 0;
    for (int k = 0; k < 12; k++) {
        mf_cluster c;
        mf_software s;
        mf_cost *cost = NULL;
        mf_err e;
        mf_program *p =
            lower(families[k % 3], k % 2 ? MF_PREC_BF16 : MF_PREC_FP32, k < 6 ? 4 : 2, &c);
        assert_ok(mf_software_load("moefold", &s, &e));
        assert_ok(mf_cost_create(&c, &s, NULL, &cost, &e));
        for (int i = 0; i < p->nblocks; i++) {
            for (int n = 0; n < p->blocks[i]->nops; n++) {
                const mf_op *op = &p->blocks[i]->ops[n];
                mf_point point;
                mf_op again;
                mf_price a, b;
                if (!mf_compare_point(op, &p->layout, "cpu", &point)) {
                    without++;
                    continue;
                }
                if (mf_point_canonical(&point, &e) != MF_OK ||
                    mf_cost_point_op(&point, &c, &again, &e) != MF_OK) {
                    fail_msg("%s: %s", op->name, e.text);
                }
                mf_cost_op(cost, op, 1.0, &a);
                mf_cost_op(cost, &again, 1.0, &b);
                char text[256];
                mf_point_format(&point, text, sizeof text);
                if (fabs(a.time_s / b.time_s - 1.0) > 0.01) {
                    fail_msg("%s (%s): %.4g s, as \"%s\" %.4g s", op->name, p->blocks[i]->label,
                             a.time_s, text, b.time_s);
                }
                found[op->kind]++;
            }
        }
        mf_cost_destroy(cost);
        mf_program_destroy(p);
    }
    static const mf_op_kind wanted[] = {
        MF_OP_GEMM,          MF_OP_GROUPED_GEMM, MF_OP_ALL_GATHER, MF_OP_ATTENTION_FWD,
        MF_OP_ATTENTION_BWD, MF_OP_DISPATCH,     MF_OP_COMBINE,    MF_OP_REDUCE_SCATTER,
        MF_OP_PERMUTE,       MF_OP_RMSNORM_BWD,  MF_OP_SWIGLU_FWD, MF_OP_ROUTER_FWD};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (found[wanted[i]] == 0) {
            fail_msg("no %s has a point", mf_op_text(wanted[i]));
        }
    }
    printf("%d ops have no key\n", without);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_op_is_priced_as_the_point_that_it_is_kept_under),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
