/* The space of layouts: the lists and their product against plain loops over every degree. */
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include "core/program/lower.h"
#include "core/schedule/schedule.h"
#include "planner/space/space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mf_model tiny(int64_t layers, int64_t experts) {
    mf_model m;
    memset(&m, 0, sizeof m);
    snprintf(m.name, sizeof m.name, "tiny");
    m.layers = layers;
    m.hidden = 64;
    m.vocab = 128;
    m.heads = 12;
    m.kv_heads = 4;
    m.head_dim = 16;
    m.v_head_dim = 16;
    m.ffn = experts ? 0 : 96;
    m.moe_ffn = experts ? 24 : 0;
    m.experts = experts;
    m.top_k = experts ? 2 : 0;
    m.classes = 1;
    m.layer_classes[0].ffn = experts ? MF_FFN_MOE : MF_FFN_DENSE;
    return m;
}

/* A choice that cannot matter stands at its first value. */
static bool is_canonical(const mf_model *m, const mf_layout *l) {
    return (l->cp > 1 || l->cp_type == MF_CP_RING) &&
           (l->ep > 1 || l->dispatcher == MF_DISPATCH_FUSED) &&
           (l->dp * l->cp > 1 || l->zero == 0) &&
           ((m->experts > 0 && l->edp > 1) || l->expert_zero == 0) &&
           (l->vpp > 1 || l->micro_batches > 1 ||
            (l->schedule != MF_SCHED_GPIPE && l->schedule != MF_SCHED_MERGED));
}

/* The cut that the search names: chunks on one stage, or more of them that leave the largest chunk
 * as large as one fewer does. */
static bool chunks_help(const mf_model *m, const mf_layout *l) {
    int64_t largest = 0, before = 0;
    if (l->pp == 1) {
        return l->vpp == 1;
    }
    while (largest * l->pp * l->vpp < m->layers) {
        largest++;
    }
    while (before * l->pp * (l->vpp - 1) < m->layers && l->vpp > 2) {
        before++;
    }
    return l->vpp <= 2 || largest < before;
}

static int64_t count_by_loops(const mf_model *m, const mf_layout *base) {
    int64_t count = 0, n = base->gpus;
    for (int64_t tp = 1; tp <= n; tp++)
        for (int64_t cp = 1; cp <= n; cp++)
            for (int64_t pp = 1; pp <= n; pp++)
                for (int64_t ep = 1; ep <= n; ep++)
                    for (int64_t etp = 1; etp <= n; etp++)
                        for (int64_t mbs = 1; mbs <= 8; mbs++)
                            for (int code = 0; code < MF_CP_COUNT * MF_DISPATCH_COUNT; code++) {
                                mf_layout l = *base;
                                l.tp = tp, l.cp = cp, l.pp = pp, l.ep = ep, l.etp = etp;
                                l.mbs = mbs;
                                l.cp_type = (mf_cp_type)(code % MF_CP_COUNT);
                                l.dispatcher = (mf_dispatcher)(code / MF_CP_COUNT);
                                l.schedule = MF_SCHED_GPIPE;
                                l.vpp = 1;
                                if (!mf_layout_valid(&l, m)) {
                                    continue;
                                }
                                for (int z = 0; z < 16; z++)
                                    for (int k = 0; k < MF_SCHED_COUNT; k++)
                                        for (int64_t vpp = 1; vpp <= m->layers + 2; vpp++) {
                                            l.zero = (uint8_t)(z / 4);
                                            l.expert_zero = (uint8_t)(z % 4);
                                            l.schedule = (mf_schedule_kind)k;
                                            l.vpp = vpp;
                                            count += mf_layout_valid(&l, m) &&
                                                     is_canonical(m, &l) && chunks_help(m, &l);
                                        }
                            }
    return count;
}

static mf_space space_of(const mf_model *m, int64_t gpus, int64_t gbs) {
    mf_space s = {.model = m};
    mf_layout_init(&s.base);
    s.base.gpus = gpus;
    s.base.gbs = gbs;
    s.base.seq = 48;
    return s;
}

static void the_product_of_lists_counts_what_loops_count(void **state) {
    (void)state;
    static const struct {
        int64_t gpus, gbs, layers, experts;
    } cases[] = {{1, 4, 3, 4},  {2, 8, 4, 4},   {4, 16, 5, 0}, {4, 12, 4, 8},
                 {6, 12, 7, 6}, {8, 24, 3, 12}, {8, 8, 9, 8},  {12, 24, 5, 12}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += (size_t)case_stride(3)) {
        mf_model m = tiny(cases[i].layers, cases[i].experts);
        mf_space s = space_of(&m, cases[i].gpus, cases[i].gbs);
        int64_t count = 0;
        assert_ok(mf_space_count(&s, &count, NULL));
        int64_t truth = count_by_loops(&m, &s.base);
        assert_above(truth, 0);
        if (count != truth) {
            fail_msg("case %zu: %lld, loops say %lld", i, (long long)count, (long long)truth);
        }
    }
}

/* Walks the lists as the search does and sees that every layout resolves and none comes twice. */
static void walking_the_lists_gives_each_layout_once(void **state) {
    (void)state;
    mf_model m = tiny(4, 8);
    mf_space s = space_of(&m, 8, 16);
    static mf_dense_point dense[4000];
    static mf_expert_point experts[400];
    static mf_order_point orders[100];
    static mf_zero_point zeros[16];
    int64_t seen = 0, count = 0;
    mf_layout before;
    memset(&before, 0, sizeof before);
    assert_ok(mf_space_count(&s, &count, NULL));
    int64_t nd = mf_space_dense(&s, dense, 4000);
    assert_below(nd, 4000);
    for (int64_t i = 0; i < nd; i++) {
        int64_t nx = mf_space_experts(&s, dense[i].pp, experts, 400);
        int64_t no = mf_space_orders(&s, dense[i].pp, dense[i].micro_batches, orders, 100);
        for (int64_t j = 0; j < nx; j++) {
            for (int64_t k = 0; k < no; k++) {
                int64_t edp = s.base.gpus / (dense[i].pp * experts[j].ep * experts[j].etp);
                int64_t nz = mf_space_zeros(&s, dense[i].dp * dense[i].cp, edp, zeros, 16);
                for (int64_t z = 0; z < nz; z++) {
                    mf_layout l =
                        mf_space_layout(&s, &dense[i], &experts[j], &orders[k], &zeros[z]);
                    assert_true(is_canonical(&m, &l));
                    assert_true(l.dp == dense[i].dp);
                    assert_true(l.micro_batches == dense[i].micro_batches);
                    assert_true(memcmp(&l, &before, sizeof l) != 0);
                    before = l;
                    seen++;
                }
            }
        }
    }
    assert_true(seen == count);
}

static bool same_events(const mf_schedule *a, const mf_schedule *b) {
    bool same = a->split == b->split && a->chunks == b->chunks;
    for (int64_t p = 0; same && p < a->stages; p++) {
        same = a->count[p] == b->count[p];
        for (int64_t i = 0; same && i < a->count[p]; i++) {
            const mf_event *x = &a->events[p][i], *y = &b->events[p][i];
            same = x->pass == y->pass && x->chunk == y->chunk && x->chunk2 == y->chunk2 &&
                   x->micro_batch == y->micro_batch && x->micro_batch2 == y->micro_batch2;
        }
    }
    return same;
}

static mf_schedule *schedule_of(int64_t pp, int64_t micro_batches, const mf_order_point *o) {
    mf_layout l;
    mf_schedule *out = NULL;
    mf_model m = tiny(16, 0);
    mf_layout_init(&l);
    l.gpus = l.pp = pp;
    l.gbs = micro_batches;
    l.seq = 48;
    l.vpp = o->vpp;
    l.schedule = (mf_schedule_kind)o->schedule;
    if (mf_layout_resolve(&l, &m, NULL) == MF_OK) {
        assert_ok(mf_schedule_create(&l, &out, NULL));
    }
    return out;
}

/* How many of the orders play what this schedule plays. */
static int64_t orders_as(const mf_schedule *s, int64_t pp, int64_t micro_batches,
                         const mf_order_point *orders, int64_t n) {
    int64_t as = 0;
    for (int64_t i = 0; i < n; i++) {
        mf_schedule *own = schedule_of(pp, micro_batches, &orders[i]);
        as += same_events(s, own);
        mf_schedule_destroy(own);
    }
    return as;
}

/* Whichever schedules a program can run. */
static void each_order_of_events_is_listed_once(void **state) {
    (void)state;
    const mf_model m = tiny(16, 0);
    for (uint32_t kinds = 1; kinds < 1u << MF_SCHED_COUNT; kinds++) {
        for (int64_t pp = 1; pp <= 4; pp++) {
            for (int64_t n = 1; n <= 4; n++) {
                mf_order_point orders[100];
                mf_space s = space_of(&m, pp, n);
                s.limits.schedules = kinds;
                const int64_t listed = mf_space_orders(&s, pp, n, orders, 100);
                for (int k = 0; k < MF_SCHED_COUNT; k++) {
                    const mf_order_point plain = {(uint8_t)k, k == MF_SCHED_ZB_V ? 2 : 1};
                    mf_schedule *all = schedule_of(pp, n, &plain);
                    if (all != NULL && (kinds & 1u << k) != 0) {
                        assert_int_equal(orders_as(all, pp, n, orders, listed), 1);
                    }
                    mf_schedule_destroy(all);
                }
            }
        }
    }
}

static void a_pinned_dimension_keeps_its_value(void **state) {
    (void)state;
    mf_model m = tiny(4, 8);
    mf_space s = space_of(&m, 8, 16);
    s.pinned = MF_PIN(TP) | MF_PIN(PP) | MF_PIN(EP) | MF_PIN(SCHEDULE) | MF_PIN(VPP) |
               MF_PIN(MICRO_BATCH) | MF_PIN(ZERO) | MF_PIN(EXPERT_ZERO) | MF_PIN(DISPATCHER) |
               MF_PIN(CP) | MF_PIN(ETP) | MF_PIN(CP_TYPE);
    s.base.tp = 2;
    s.base.pp = 2;
    s.base.ep = 4;
    int64_t count = 0;
    assert_ok(mf_space_count(&s, &count, NULL));
    assert_true(count == 1);
    s.pinned &= ~MF_PIN(ETP); /* ranks left over 2 x 4: none for ETP 2; EP alone */
    assert_ok(mf_space_count(&s, &count, NULL));
    assert_true(count == 1);
    s.pinned &= ~MF_PIN(EP); /* EP x ETP within 4 ranks: (1,1..4) (2,1..2) (4,1) */
    assert_ok(mf_space_count(&s, &count, NULL));
    assert_true(count == 6);
    s.base.tp = 5; /* divides nothing here */
    assert_ok(mf_space_count(&s, &count, NULL));
    assert_true(count == 0);
}

/* A space that pins leave empty names a rule; any other names none. */
static void pins_that_leave_nothing_name_the_rule_they_break(void **state) {
    (void)state;
    mf_model m = tiny(4, 8);
    static const struct {
        uint32_t pins;
        int64_t tp, pp, ep, mbs;
        const char *rule; /* NULL: the space is not empty */
    } cases[] = {
        {0, 1, 1, 1, 1, NULL},
        {MF_PIN(TP), 4, 1, 1, 1, NULL},
        {MF_PIN(TP), 5, 1, 1, 1, "TP 5"},
        {MF_PIN(EP) | MF_PIN(TP), 4, 1, 3, 1, "EP 3"},
        {MF_PIN(TP) | MF_PIN(PP), 4, 4, 1, 1, "TP 4 x CP 1 x PP 4 = 16 does not divide"},
        {MF_PIN(MICRO_BATCH), 1, 1, 1, 32, "micro-batch 32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mf_space s = space_of(&m, 8, 16);
        mf_err e;
        s.pinned = cases[i].pins;
        s.base.tp = cases[i].tp;
        s.base.pp = cases[i].pp;
        s.base.ep = cases[i].ep;
        s.base.mbs = cases[i].mbs;
        mf_status status = mf_space_rule(&s, &e);
        assert_int_equal(status, cases[i].rule != NULL ? MF_LAYOUT : MF_OK);
        if (cases[i].rule != NULL && strstr(e.text, cases[i].rule) == NULL) {
            fail_msg("%zu: \"%s\" does not say %s", i, e.text, cases[i].rule);
        }
    }
    mf_space s = space_of(&m, 7 * 11, 1); /* empty by itself: no pin is to blame */
    s.pinned = MF_PIN(TP);
    assert_ok(mf_space_rule(&s, NULL));
    mf_err e;
    s.base.pad_to_capacity = true; /* what is held breaks a rule */
    assert_int_equal(mf_space_rule(&s, &e), MF_LAYOUT);
    assert_non_null(strstr(e.text, "capacity factor must be above 0"));
}

static void what_is_held_is_said(void **state) {
    (void)state;
    mf_model m = tiny(4, 8);
    mf_space s = space_of(&m, 8, 16);
    char text[400];
    s.pinned = MF_PIN(TP);
    mf_space_describe_left_out(&s, text, sizeof text);
    assert_non_null(strstr(text, "overlap dp,pp"));
    assert_non_null(strstr(text, "tp (pinned)"));
    assert_non_null(strstr(text, "precision bf16"));
    assert_non_null(strstr(text, "recompute and offload sets beyond"));
    s.pinned = MF_PIN(VPP) | MF_PIN(RECOMPUTE);
    mf_space_describe_left_out(&s, text, sizeof text);
    assert_non_null(strstr(text, "; left out: offload sets beyond"));
    s.pinned |= MF_PIN(OFFLOAD);
    mf_space_describe_left_out(&s, text, sizeof text);
    assert_null(strstr(text, "left out"));
}

/* Are a layer's blocks, forward and backward, the same ops? */
static bool lowers_alike(const mf_model *m, const mf_cluster *c, const mf_dense_point *d,
                         mf_cp_type one, mf_cp_type other) {
    const mf_cp_type type[2] = {one, other};
    const mf_block_key key = mf_block_key_layer(0, (mf_memory_choice){0}, false);
    mf_block *b[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        mf_layout l;
        mf_layout_init(&l);
        l.gpus = 64;
        l.gbs = 64;
        l.seq = 4096;
        l.tp = d->tp;
        l.cp = d->cp;
        l.pp = d->pp;
        l.mbs = d->mbs;
        l.cp_type = type[i];
        if (mf_layout_resolve(&l, m, NULL) == MF_OK) {
            assert_ok(mf_block_lower(m, &l, c, &key, &b[i], NULL));
        }
    }
    bool alike = b[0] != NULL && b[1] != NULL && b[0]->nops == b[1]->nops;
    for (int i = 0; alike && i < b[0]->nops; i++) {
        const mf_op *x = &b[0]->ops[i], *y = &b[1]->ops[i];
        alike = x->kind == y->kind && x->shape.size == y->shape.size &&
                x->shape.stride == y->shape.stride && !(x->bytes < y->bytes) &&
                !(x->bytes > y->bytes) && x->pieces == y->pieces;
    }
    mf_block_destroy(b[0]);
    mf_block_destroy(b[1]);
    return alike;
}

/* On 64 GPUs of nodes of 8: every (tp, cp, pp, mbs) that has a ring has hierarchical CP as well,
 * but where it lowers to the ring or to all-to-all CP. */
static void hierarchical_cp_counts_where_it_is_another_type(void **state) {
    (void)state;
    static mf_dense_point dense[20000];
    mf_model m;
    mf_cluster c = {0};
    mf_err e;
    assert_ok(mf_model_load("mixtral-8x22b", &m, &e));
    assert_ok(mf_cluster_load("h100", &c, &e));
    mf_space s = space_of(&m, 64, 64);
    s.base.seq = 4096;
    s.domain_gpus = c.domain_gpus_used;
    const int64_t n = mf_space_dense(&s, dense, 20000);
    assert_below(n, 20000);
    int both[2] = {0, 0};
    for (int64_t i = 0; i < n; i += case_stride(7)) {
        const mf_dense_point *d = &dense[i];
        if (d->cp_type != MF_CP_RING || d->cp == 1 || d->mbs > 1) {
            continue;
        }
        bool listed = false;
        for (int64_t k = i; k < n && dense[k].tp == d->tp && dense[k].cp == d->cp; k++) {
            listed |= dense[k].cp_type == MF_CP_HIERARCHICAL && dense[k].mbs == d->mbs;
        }
        const bool ring = lowers_alike(&m, &c, d, MF_CP_HIERARCHICAL, MF_CP_RING);
        const bool exchange = lowers_alike(&m, &c, d, MF_CP_HIERARCHICAL, MF_CP_ALLTOALL);
        if (listed == (ring || exchange)) {
            fail_msg("tp %d cp %d: %s, ring %d, all-to-all %d", (int)d->tp, (int)d->cp,
                     listed ? "listed" : "left out", ring, exchange);
        }
        both[listed]++;
    }
    assert_above(both[0], 0);
    assert_above(both[1], 0);
    s.pinned = MF_PIN(CP_TYPE);
    s.base.cp_type = MF_CP_HIERARCHICAL;
    assert_above(mf_space_dense(&s, dense, 20000), both[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_product_of_lists_counts_what_loops_count),
        cmocka_unit_test(walking_the_lists_gives_each_layout_once),
        cmocka_unit_test(each_order_of_events_is_listed_once),
        cmocka_unit_test(a_pinned_dimension_keeps_its_value),
        cmocka_unit_test(pins_that_leave_nothing_name_the_rule_they_break),
        cmocka_unit_test(what_is_held_is_said),
        cmocka_unit_test(hierarchical_cp_counts_where_it_is_another_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
