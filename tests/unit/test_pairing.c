/* test_pairing.c - how the blocks of a merged event are laid against each other. */
#include "core/program/pairing.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

enum { MOST = 7 };

typedef struct rows {
    bool f[MOST], b[MOST];
    int nf, nb;
} rows;

/* Most that blocks from (i, j) on are worth, by trying everything. */
static int best_worth(const rows *r, int i, int j) {
    int best = 0;
    if (i < r->nf && j < r->nb) {
        int both = r->f[i] + r->b[j], worth = both == 2 ? 8 : both == 1 ? 2 : 1;
        best = worth + best_worth(r, i + 1, j + 1);
        int other = best_worth(r, i + 1, j);
        best = other > best ? other : best;
        other = best_worth(r, i, j + 1);
        best = other > best ? other : best;
    }
    return best;
}

/* Every block of both rows once and in order; returns what the pairs are worth. */
static int check_steps(const rows *r, const mf_pairing *x) {
    int i = 0, j = 0, sum = 0;
    for (int k = 0; k < x->count; k++) {
        const mf_pairing_step *s = &x->step[k];
        assert_true(s->f >= 0 || s->b >= 0);
        assert_true(s->f < 0 || s->f == i);
        assert_true(s->b < 0 || s->b == j);
        if (s->f >= 0 && s->b >= 0) {
            int both = r->f[i] + r->b[j];
            sum += both == 2 ? 8 : both == 1 ? 2 : 1;
        }
        i += s->f >= 0;
        j += s->b >= 0;
    }
    assert_int_equal(i, r->nf);
    assert_int_equal(j, r->nb);
    return sum;
}

/* A model whose layers are MoE where the bits say so: layer i of both rows together. */
static void lay(const rows *r, mf_pairing *x) {
    mf_model m = test_model_moe(false);
    mf_layout l = {.ep = 2, .etp = 1};
    int dense = -1, moe = -1;
    for (int c = 0; c < m.classes; c++) {
        *(m.layer_classes[c].ffn == MF_FFN_MOE ? &moe : &dense) = c;
    }
    assert_at_least(dense, 0);
    assert_at_least(moe, 0);
    m.layers = r->nf + r->nb;
    for (int k = 0; k < r->nf; k++) {
        m.layer_class[k] = (uint8_t)(r->f[k] ? moe : dense);
    }
    for (int k = 0; k < r->nb; k++) { /* backward from the last */
        m.layer_class[r->nf + r->nb - 1 - k] = (uint8_t)(r->b[k] ? moe : dense);
    }
    const int first[] = {1, 1 + r->nf, 1 + r->nf + r->nb};
    mf_pairing_make(x, &m, &l, first, 0, 1);
}

static void no_other_order_is_worth_more(void **state) {
    (void)state;
    mf_pairing x;
    assert_ok(mf_pairing_init(&x, MOST, NULL));
    for (int nf = 1; nf <= 5; nf++) {
        for (int nb = 1; nb <= 5; nb++) {
            for (unsigned bits = 0; bits < 1u << (nf + nb); bits++) {
                rows r = {.nf = nf, .nb = nb};
                for (int k = 0; k < nf + nb; k++) {
                    *(k < nf ? &r.f[k] : &r.b[k - nf]) = (bits >> k) & 1u;
                }
                lay(&r, &x);
                assert_int_equal(check_steps(&r, &x), best_worth(&r, 0, 0));
            }
        }
    }
    mf_pairing_clear(&x);
}

static void layers_that_exchange_wait_for_each_other(void **state) {
    (void)state;
    mf_pairing x;
    assert_ok(mf_pairing_init(&x, MOST, NULL));
    rows r = {.f = {0, 0, 0, 1}, .b = {1, 1, 1}, .nf = 4, .nb = 3};
    lay(&r, &x); /* the first dense layer runs alone, so that the MoE layer has a partner */
    assert_int_equal(x.count, 4);
    assert_int_equal(x.step[0].f, 0);
    assert_int_equal(x.step[0].b, 0);
    assert_int_equal(x.step[2].f, 2);
    assert_int_equal(x.step[2].b, -1);
    assert_int_equal(x.step[3].f, 3);
    assert_int_equal(x.step[3].b, 2);
    mf_pairing_clear(&x);
}

static void equal_blocks_are_paired_in_turn(void **state) {
    (void)state;
    mf_pairing x;
    assert_ok(mf_pairing_init(&x, MOST, NULL));
    rows r = {.f = {1, 1}, .b = {1, 1, 1}, .nf = 2, .nb = 3};
    lay(&r, &x);
    assert_int_equal(x.count, 3);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(x.step[k].f, k < 2 ? k : -1);
        assert_int_equal(x.step[k].b, k);
    }
    mf_pairing_alone(&x, true, 2);
    assert_int_equal(x.count, 2);
    assert_int_equal(x.step[1].f, -1);
    assert_int_equal(x.step[1].b, 1);
    mf_pairing_clear(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_other_order_is_worth_more),
        cmocka_unit_test(layers_that_exchange_wait_for_each_other),
        cmocka_unit_test(equal_blocks_are_paired_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
