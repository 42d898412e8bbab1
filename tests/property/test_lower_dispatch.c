/* The fused dispatcher's program: where exchanges put rows into the order of experts and take them
 * out of it, no permute and unpermute stand beside them, and prices say what that takes. */
#include "core/program/dispatch_memory.h"
#include "core/program/lower.h"
#include "costmodel/cost.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static mf_err e;

typedef struct where {
    const char *cluster;
    int64_t ep, etp;
    mf_dispatcher dispatcher;
    unsigned traits;
    mf_precision precision;
    bool ordered;
} where;

#define FUSED MF_DISPATCH_FUSED

/* A domain of h100 has 8 GPUs. */
static const where places[] = {
    {"h100", 8, 1, FUSED, 0, MF_PREC_BF16, true},
    {"h100", 2, 1, FUSED, 0, MF_PREC_FP8_BLOCK, true},
    {"cpu", 8, 1, FUSED, 0, MF_PREC_BF16, true},
    {"cpu", 4, 1, FUSED, 0, MF_PREC_FP32, true},
    {"h100", 16, 1, FUSED, 0, MF_PREC_BF16, false}, /* over the network */
    {"h100", 4, 2, FUSED, 0, MF_PREC_BF16, false},  /* ETP ranks share rows as they came */
    {"cpu", 4, 2, FUSED, 0, MF_PREC_BF16, false},
    {"h100", 8, 1, FUSED, MF_TRAIT_DISPATCH_PERMUTES, MF_PREC_BF16, false}, /* another program */
    {"h100", 8, 1, MF_DISPATCH_ALLTOALL, 0, MF_PREC_BF16, false},
    {"cpu", 8, 1, MF_DISPATCH_ALLGATHER, 0, MF_PREC_BF16, false},
};
enum { PLACES = sizeof places / sizeof places[0] };

static mf_block *lower_at(const where *w, mf_cluster *c, mf_layout *l, uint16_t recompute,
                          bool split) {
    const mf_model m = test_model_moe(false);
    mf_block *b = NULL;
    mf_layout_init(l);
    l->gpus = l->gbs = 16;
    l->ep = w->ep;
    l->etp = w->etp;
    l->dispatcher = w->dispatcher;
    l->traits = (uint16_t)w->traits;
    l->precision = w->precision;
    assert_ok(mf_cluster_load(w->cluster, c, &e));
    assert_ok(mf_layout_resolve(l, &m, &e));
    const mf_memory_choice choice = {recompute, 0};
    const mf_block_key key = mf_block_key_layer(1, choice, split);
    assert_ok(mf_block_lower(&m, l, c, &key, &b, &e));
    return b;
}

static const mf_op *find(const mf_block *b, mf_op_kind kind, unsigned pass) {
    for (int i = 0; i < b->nops; i++) {
        if (b->ops[i].kind == kind && b->ops[i].pass == pass) {
            return &b->ops[i];
        }
    }
    return NULL;
}

static const mf_op *must_find(const mf_block *b, mf_op_kind kind, unsigned pass) {
    const mf_op *op = find(b, kind, pass);
    if (op == NULL) {
        fail_msg("%s: no %s in pass %u", b->label, mf_op_text(kind), pass);
    }
    return op;
}

/* The gradient of one exchange is the other one, by the same maps. */
static void check_in_order(const mf_block *b, const mf_layout *l, int64_t rows, bool split) {
    const unsigned passes[] = {MF_PASS_F, MF_PASS_R, MF_PASS_B, MF_PASS_W};
    for (int i = 0; i < 4; i++) {
        assert_null(find(b, MF_OP_PERMUTE, passes[i]));
        assert_null(find(b, MF_OP_UNPERMUTE, passes[i]));
    }
    const mf_op *there = must_find(b, MF_OP_DISPATCH, MF_PASS_F);
    const mf_op *back = must_find(b, MF_OP_COMBINE, MF_PASS_F);
    const mf_op *again = find(b, MF_OP_DISPATCH, MF_PASS_R);
    const mf_op *dy = must_find(b, MF_OP_DISPATCH, MF_PASS_B);
    const mf_op *dx = must_find(b, MF_OP_COMBINE, MF_PASS_B);
    const int16_t map = again != NULL ? again->out[1] : there->out[1];
    const mf_op *all[] = {there, back, dy, dx};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(all[i]->dim[MF_OP_DIM_ORDERED], rows);
    }
    assert_int_equal(b->tensors[there->out[0]].rows, rows);
    assert_int_equal(b->tensors[dy->out[0]].rows, rows);
    assert_int_equal(back->in[1], there->in[1]);
    assert_int_equal(back->in[2], there->out[1]);
    assert_int_equal(dy->in[1], there->in[1]);
    assert_int_equal(dy->in[2], map);
    assert_int_equal(dx->in[2], there->in[1]);
    assert_int_equal(dx->in[3], map);
    assert_int_equal(dx->marks, split ? 0 : 1); /* weight gradients of experts first */
    assert_int_equal(l->etp, 1);
}

static void exchanges_order_rows_inside_a_domain_and_on_cpus(void **state) {
    (void)state;
    static const uint16_t recompute[] = {0, MF_RECOMPUTE_MOE, MF_RECOMPUTE_LAYER};
    for (int i = 0; i < PLACES; i++) {
        for (int k = 0; k < 6; k++) {
            mf_cluster c;
            mf_layout l;
            const bool split = k >= 3;
            mf_block *b = lower_at(&places[i], &c, &l, recompute[k % 3], split);
            const int64_t tokens = l.mbs * l.seq / (l.cp * l.tp);
            assert_true((find(b, MF_OP_DISPATCH, MF_PASS_R) != NULL) == (k % 3 > 0));
            if (places[i].ordered) {
                check_in_order(b, &l, tokens * test_model_moe(false).top_k, split);
            } else {
                must_find(b, MF_OP_PERMUTE, MF_PASS_F);
                must_find(b, MF_OP_UNPERMUTE, MF_PASS_F);
                must_find(b, MF_OP_PERMUTE, MF_PASS_B);
                must_find(b, MF_OP_UNPERMUTE, MF_PASS_B);
                assert_int_equal(must_find(b, MF_OP_DISPATCH, MF_PASS_F)->dim[MF_OP_DIM_ORDERED],
                                 0);
            }
            mf_block_destroy(b);
        }
    }
}

/* Rows of fixed number for each expert are ordered, too: as many as there are. */
static void padded_rows_are_ordered(void **state) {
    (void)state;
    mf_model m = test_model_moe(false);
    mf_cluster c;
    mf_layout l;
    mf_block *b = NULL;
    mf_layout_init(&l);
    l.gpus = l.gbs = l.ep = 8;
    l.capacity_factor = 1.5;
    l.pad_to_capacity = true;
    assert_ok(mf_cluster_load("h100", &c, &e));
    assert_ok(mf_layout_resolve(&l, &m, &e));
    const mf_block_key key = mf_block_key_layer(1, (mf_memory_choice){0, 0}, false);
    assert_ok(mf_block_lower(&m, &l, &c, &key, &b, &e));
    check_in_order(b, &l, mf_layout_padded_rows(&l, &m) * m.experts / l.ep, false);
    mf_block_destroy(b);
}

static double price_of(const mf_cost *cost, const mf_op *op, double load) {
    mf_price p;
    mf_cost_op(cost, op, load, &p);
    return p.time_s;
}

/* How many tokens reach a rank: prices count experts that are drawn without putting them back. */
#define NEAR 0.02

/* On GPUs dispatch takes a permute's time more, and combine, whose points are of rows in order, no
 * more; CPU ranks take an unpermute's as well. Energy goes with the pass. */
static void a_price_says_what_the_order_takes(void **state) {
    (void)state;
    static const char *const clusters[] = {"h100", "cpu"};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 4; k++) {
            const double load = k % 2 == 0 ? 1.0 : 1.7;
            where w = {clusters[i], k < 2 ? 8 : 2, 1, FUSED, 0, MF_PREC_BF16, true};
            mf_cluster c;
            mf_layout l;
            mf_software s;
            mf_cost *cost = NULL;
            mf_block *ordered = lower_at(&w, &c, &l, 0, false);
            w.traits = MF_TRAIT_PIECES_TOGETHER;
            mf_block *apart = lower_at(&w, &c, &l, 0, false);
            assert_ok(mf_software_load("moefold", &s, &e));
            assert_ok(mf_cost_create(&c, &s, NULL, &cost, &e));
            const unsigned passes[] = {MF_PASS_F, MF_PASS_B};
            for (int p = 0; p < 2; p++) {
                const mf_op *there[] = {must_find(ordered, MF_OP_DISPATCH, passes[p]),
                                        must_find(apart, MF_OP_DISPATCH, passes[p]),
                                        must_find(apart, MF_OP_PERMUTE, passes[p])};
                const mf_op *back[] = {must_find(ordered, MF_OP_COMBINE, passes[p]),
                                       must_find(apart, MF_OP_COMBINE, passes[p]),
                                       must_find(apart, MF_OP_UNPERMUTE, passes[p])};
                const double pass_J = mf_cost_energy_J(cost, there[2], load, 0, 1);
                assert_close(price_of(cost, there[0], load) /
                                 (price_of(cost, there[1], load) + price_of(cost, there[2], load)),
                             1.0, NEAR);
                assert_close(price_of(cost, back[0], load) /
                                 (price_of(cost, back[1], load) +
                                  (i == 1 ? price_of(cost, back[2], load) : 0.0)),
                             1.0, NEAR);
                assert_close(mf_cost_energy_J(cost, there[0], load, 0, 1) -
                                 mf_cost_energy_J(cost, there[1], load, 0, 1) - pass_J,
                             0.0, 2.0 * NEAR * pass_J + 1e-12);
            }
            mf_cost_destroy(cost);
            mf_block_destroy(ordered);
            mf_block_destroy(apart);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_order_rows_inside_a_domain_and_on_cpus),
        cmocka_unit_test(padded_rows_are_ordered),
        cmocka_unit_test(a_price_says_what_the_order_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
