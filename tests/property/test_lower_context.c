/* Context parallelism in the step program: what each kind exchanges, what it keeps, and that every
 * kind does the same attention. */
#include "core/program/lower.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#include <math.h>

static mf_layout layout_of(mf_cp_type type, int64_t cp, int64_t seq) {
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = cp;
    l.cp = cp;
    l.cp_type = type;
    l.gbs = 1;
    l.seq = seq;
    l.zero = l.expert_zero = 0;
    return l;
}

static mf_block *lowered(const mf_model *m, mf_layout l, uint16_t recompute) {
    mf_cluster c = test_cluster();
    mf_block *b = NULL;
    mf_err e;
    mf_block_key key = mf_block_key_layer(0, (mf_memory_choice){recompute, 0}, false);
    if (mf_layout_resolve(&l, m, &e) != MF_OK || mf_block_lower(m, &l, &c, &key, &b, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return b;
}

static int count(const mf_block *b, mf_op_kind kind, uint8_t pass, int64_t places) {
    int n = 0;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        n += op->kind == (uint8_t)kind && (op->pass & pass) && op->stream != MF_STREAM_TP &&
             (places == 0 || op->dim[MF_OP_DIM_PLACES] == places);
    }
    return n;
}

static double flops(const mf_block *b, mf_op_kind kind, uint8_t pass) {
    double sum = 0;
    for (int i = 0; i < b->nops; i++) {
        sum += b->ops[i].kind == (uint8_t)kind && b->ops[i].pass == pass ? b->ops[i].flops : 0;
    }
    return sum;
}

/* The ring goes round once forward and once back, with the gradients of K and V beside them. */
static void a_ring_turns_back_for_gradients(void **state) {
    (void)state;
    const mf_model models[] = {test_model_dense(), test_model_moe(true)};
    for (int i = 0; i < 2; i++) {
        for (int64_t cp = 2; cp <= 16; cp *= 2) {
            mf_block *b = lowered(&models[i], layout_of(MF_CP_RING, cp, 4096), 0);
            int sends = 2 * (int)(cp - 1);
            assert_int_equal(count(b, MF_OP_SEND_RECV, MF_PASS_F, 1), sends);
            assert_int_equal(count(b, MF_OP_SEND_RECV, MF_PASS_R, -1), sends);
            assert_int_equal(count(b, MF_OP_SEND_RECV, MF_PASS_R, 0), sends);
            assert_int_equal(count(b, MF_OP_SEND_RECV, MF_PASS_B, -1), sends);
            assert_int_equal(count(b, MF_OP_ATTENTION_FWD, MF_PASS_F, 0), cp);
            assert_int_equal(count(b, MF_OP_ATTENTION_BWD, MF_PASS_B, 0), cp);
            mf_block_destroy(b);
            /* Core attention again: forward once more, and then back from where that ended. */
            b = lowered(&models[i], layout_of(MF_CP_RING, cp, 4096), MF_RECOMPUTE_CORE_ATTN);
            assert_int_equal(count(b, MF_OP_SEND_RECV, MF_PASS_R, 1), sends);
            assert_int_equal(count(b, MF_OP_SEND_RECV, MF_PASS_R, -1), sends - 2);
            mf_block_destroy(b);
        }
    }
}

/* A rank with the same share of the sequence needs the same memory on a ring of any length: only
 * the steps at work are there, never the keys of all. */
static void a_longer_ring_needs_no_more_memory(void **state) {
    (void)state;
    const mf_model m = test_model_dense();
    static const uint16_t recompute[] = {0, MF_RECOMPUTE_CORE_ATTN, MF_RECOMPUTE_LAYER};
    for (size_t i = 0; i < sizeof recompute / sizeof recompute[0]; i++) {
        mf_block *short_ring = lowered(&m, layout_of(MF_CP_RING, 8, 8 * 512), recompute[i]);
        mf_block *long_ring = lowered(&m, layout_of(MF_CP_RING, 128, 128 * 512), recompute[i]);
        assert_int_equal(long_ring->saved_B, short_ring->saved_B);
        assert_int_equal(long_ring->local_f_B, short_ring->local_f_B);
        assert_int_equal(long_ring->local_b_B, short_ring->local_b_B);
        mf_block_destroy(short_ring);
        mf_block_destroy(long_ring);
    }
}

/* All-gather CP does hold them all. */
static void all_gather_holds_the_whole_sequence(void **state) {
    (void)state;
    const mf_model m = test_model_dense();
    mf_block *ring = lowered(&m, layout_of(MF_CP_RING, 8, 32768), 0);
    mf_block *gather = lowered(&m, layout_of(MF_CP_ALLGATHER, 8, 32768), 0);
    int64_t kv_B = 2 * 32768 * m.kv_heads * m.head_dim * 2;
    assert_int_equal(count(gather, MF_OP_ALL_GATHER, MF_PASS_F, 0), 2);
    assert_int_equal(count(gather, MF_OP_SEND_RECV, 0xff, 0), 0);
    assert_at_least(gather->local_f_B, kv_B);
    assert_below(ring->local_f_B, kv_B);
    mf_block_destroy(ring);
    mf_block_destroy(gather);
}

/* Hierarchical CP: all-to-all inside the NVLink domain of 8, a ring of the domains beyond it. */
static void hierarchical_rings_between_domains(void **state) {
    (void)state;
    const mf_model m = test_model_dense();
    mf_block *b = lowered(&m, layout_of(MF_CP_HIERARCHICAL, 32, 32768), 0);
    assert_int_equal(count(b, MF_OP_ALL_TO_ALL, MF_PASS_F, 0), 4); /* q k v there, o back */
    assert_int_equal(count(b, MF_OP_ALL_TO_ALL, MF_PASS_B, 0), 4);
    assert_int_equal(count(b, MF_OP_SEND_RECV, MF_PASS_F, 1), 2 * (32 / 8 - 1));
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        if (op->stream == MF_STREAM_CP) {
            bool near = op->kind == MF_OP_ALL_TO_ALL;
            assert_int_equal(op->shape.size, near ? 8 : 4);
            assert_int_equal(op->shape.stride, near ? 1 : 8);
        }
    }
    mf_block_destroy(b);
    b = lowered(&m, layout_of(MF_CP_HIERARCHICAL, 8, 32768), 0); /* all inside */
    assert_int_equal(count(b, MF_OP_SEND_RECV, 0xff, 0), 0);
    mf_block_destroy(b);
}

/* Every kind of CP does 1/CP of the causal attention of one rank, forward and backward. */
static void every_kind_shares_attention_evenly(void **state) {
    (void)state;
    const mf_model m = test_model_dense();
    mf_block *whole = lowered(&m, layout_of(MF_CP_RING, 1, 16384), 0);
    for (int type = 0; type < MF_CP_COUNT; type++) {
        for (int64_t cp = 2; cp <= 16; cp *= 2) {
            mf_block *b = lowered(&m, layout_of((mf_cp_type)type, cp, 16384), 0);
            double share = (double)cp * flops(b, MF_OP_ATTENTION_FWD, MF_PASS_F) /
                           flops(whole, MF_OP_ATTENTION_FWD, MF_PASS_F);
            assert_close(share, 1.0, 1e-9);
            share = (double)cp * flops(b, MF_OP_ATTENTION_BWD, MF_PASS_B) /
                    flops(whole, MF_OP_ATTENTION_BWD, MF_PASS_B);
            assert_close(share, 1.0, 1e-9);
            mf_block_destroy(b);
        }
    }
    mf_block_destroy(whole);
}

/* The longest ring can be lowered; one more is a layout error that names another way. */
static void a_ring_has_a_longest_length(void **state) {
    (void)state;
    const mf_model m = test_model_moe(true);
    mf_block *b = lowered(&m, layout_of(MF_CP_RING, MF_CP_RING_MAX, 1 << 20), MF_RECOMPUTE_LAYER);
    assert_int_equal(count(b, MF_OP_ATTENTION_FWD, MF_PASS_F, 0), MF_CP_RING_MAX);
    mf_block_destroy(b);
    mf_layout l = layout_of(MF_CP_RING, 2 * MF_CP_RING_MAX, 1 << 20);
    mf_err e;
    assert_int_equal(mf_layout_resolve(&l, &m, &e), MF_LAYOUT);
    assert_non_null(strstr(e.text, "at most 1024 ranks (all-gather"));
    l.cp_type = MF_CP_ALLGATHER;
    assert_ok(mf_layout_resolve(&l, &m, &e));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_turns_back_for_gradients),
        cmocka_unit_test(a_longer_ring_needs_no_more_memory),
        cmocka_unit_test(all_gather_holds_the_whole_sequence),
        cmocka_unit_test(hierarchical_rings_between_domains),
        cmocka_unit_test(every_kind_shares_attention_evenly),
        cmocka_unit_test(a_ring_has_a_longest_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
