/* Lowering: what must hold of every block of every layout. */
#include "core/program/lower.h"
#include "tests/support/models.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef void (*block_check)(const mf_block *b, const mf_layout *l);

static void over_random_programs(uint64_t seed, int count, block_check check) {
    rng r = rng_init(seed);
    mf_cluster c = test_cluster();
    const mf_model models[] = {test_model_moe(false), test_model_moe(true), test_model_dense()};
    for (int i = 0; i < count; i++) {
        const mf_model *m = &models[i % 3];
        mf_layout l = test_random_layout(&r, m, 256);
        mf_assignment a;
        mf_program *p;
        mf_err e;
        if (mf_assignment_even(m, &l, &a, &e) != MF_OK ||
            mf_program_lower(m, &l, &c, &a, &p, &e) != MF_OK) {
            fail_msg("%s", e.text);
            return;
        }
        for (int b = 0; b < p->nblocks; b++) {
            check(p->blocks[b], &l);
        }
        mf_program_destroy(p);
    }
}

static bool makes(const mf_op *op, int t) {
    for (int k = 0; k < op->nout; k++) {
        if (op->out[k] == t) {
            return true;
        }
    }
    return false;
}

static bool reads(const mf_op *op, int t) {
    for (int k = 0; k < op->nin; k++) {
        if (op->in[k] == t) {
            return true;
        }
    }
    return false;
}

/* Every input was made earlier, or stands from outside the block. */
static void check_order(const mf_block *b, const mf_layout *l) {
    (void)l;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        assert_true((i < b->nforward) == (op->pass == MF_PASS_F));
        assert_above(op->nin + op->nout, 0);
        for (int k = 0; k < op->nin; k++) {
            const mf_tensor *t = &b->tensors[op->in[k]];
            bool outside = t->class == MF_TENSOR_WEIGHT || t->class == MF_TENSOR_BOUNDARY ||
                           t->class == MF_TENSOR_GRADIENT || op->in[k] == 0;
            bool made = false;
            for (int j = 0; j < i && !made; j++) {
                made = makes(&b->ops[j], op->in[k]);
            }
            if (!made && !outside && t->class != MF_TENSOR_SAVED) {
                fail_msg("%s: op %d %s reads %s before it is made", b->label, i, op->name, t->name);
            }
        }
    }
}

static void ops_read_only_what_was_made_before(void **state) {
    (void)state;
    over_random_programs(11, 400, check_order);
}

/* What the backward passes read of the forward pass is saved (or a weight, or offloaded). */
static void check_saved(const mf_block *b, const mf_layout *l) {
    (void)l;
    int64_t saved = 0;
    for (int t = 0; t < b->ntensors; t++) {
        bool forward = false, backward = false;
        for (int i = 0; i < b->nops; i++) {
            forward |= i < b->nforward && makes(&b->ops[i], t);
            backward |= i >= b->nforward && reads(&b->ops[i], t);
        }
        const mf_tensor *x = &b->tensors[t];
        if (forward && backward && x->class != MF_TENSOR_SAVED && x->class != MF_TENSOR_WEIGHT) {
            fail_msg("%s: backward reads %s, which is not saved", b->label, x->name);
        }
        if (x->class == MF_TENSOR_SAVED) {
            if (!backward) {
                fail_msg("%s: %s is saved for nobody", b->label, x->name);
            }
            saved += mf_align_B(x->bytes);
        }
    }
    assert_int_equal(saved, b->saved_B);
}

static void saved_is_exactly_what_backward_reads(void **state) {
    (void)state;
    over_random_programs(12, 300, check_saved);
}

/* Independent lifetimes by brute force: two locals alive at once never share bytes. */
static void check_workspace(const mf_block *b, unsigned passes, int64_t high) {
    enum { MAX = 1024 };
    static int first[MAX], last[MAX];
    assert_at_most(b->ntensors, MAX);
    for (int t = 0; t < b->ntensors; t++) {
        first[t] = last[t] = -1;
        for (int i = 0; i < b->nops; i++) {
            if ((b->ops[i].pass & passes) && (makes(&b->ops[i], t) || reads(&b->ops[i], t))) {
                first[t] = first[t] < 0 ? i : first[t];
                last[t] = i;
            }
        }
    }
    int64_t top = 0;
    for (int t = 0; t < b->ntensors; t++) {
        const mf_tensor *x = &b->tensors[t];
        if (x->class != MF_TENSOR_LOCAL || first[t] < 0) {
            continue;
        }
        assert_at_least(x->offset_B, 0);
        assert_true(x->offset_B % MF_ALIGN_B == 0);
        top = x->offset_B + x->bytes > top ? x->offset_B + x->bytes : top;
        for (int u = 0; u < t; u++) {
            const mf_tensor *y = &b->tensors[u];
            if (y->class != MF_TENSOR_LOCAL || first[u] < 0 || first[u] > last[t] ||
                first[t] > last[u]) {
                continue;
            }
            if (x->offset_B < y->offset_B + y->bytes && y->offset_B < x->offset_B + x->bytes) {
                fail_msg("%s: %s and %s overlap", b->label, x->name, y->name);
            }
        }
    }
    assert_at_most(top, high);
}

static void check_workspaces(const mf_block *b, const mf_layout *l) {
    bool split = l->schedule == MF_SCHED_ZB_H1 || l->schedule == MF_SCHED_ZB_V;
    check_workspace(b, MF_PASS_F, b->local_f_B);
    if (split) {
        check_workspace(b, MF_PASS_R | MF_PASS_B, b->local_bs_B);
        check_workspace(b, MF_PASS_W, b->local_w_B);
    } else {
        check_workspace(b, MF_PASS_BACKWARD, b->local_b_B);
    }
}

static void local_tensors_alive_together_share_no_bytes(void **state) {
    (void)state;
    over_random_programs(13, 200, check_workspaces);
}

/* Each GEMM has one weight gradient of the same work; recomputation repeats forward ops only. */
static void check_flops(const mf_block *b, const mf_layout *l) {
    (void)l;
    double gemm_f = 0, gemm_w = 0, attention_f = 0, attention_b = 0;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        bool gemm = op->kind == MF_OP_GEMM || op->kind == MF_OP_GROUPED_GEMM;
        gemm_f += gemm && op->pass == MF_PASS_F ? op->flops : 0;
        gemm_w += gemm && op->pass == MF_PASS_W ? op->flops : 0;
        attention_f += op->kind == MF_OP_ATTENTION_FWD && op->pass == MF_PASS_F ? op->flops : 0;
        attention_b += op->kind == MF_OP_ATTENTION_BWD ? op->flops : 0;
        if (op->pass == MF_PASS_R) {
            assert_in_range(op->forward, 0, b->nforward - 1);
            const mf_op *f = &b->ops[op->forward];
            bool act = op->kind == MF_OP_SWIGLU_FWD && (f->flags & MF_OPF_ACT) && op->makes == 2;
            assert_true(f->kind == op->kind || act);
        }
    }
    assert_close(gemm_w / (gemm_f + 1), gemm_f / (gemm_f + 1), 1e-9);
    assert_close(attention_b / (attention_f + 1), 2.5 * attention_f / (attention_f + 1), 1e-6);
}

static void each_gemm_has_one_weight_gradient_and_attention_five_products(void **state) {
    (void)state;
    over_random_programs(14, 200, check_flops);
}

/* --- parameters ------------------------------------------------------------------------------- */

/* Summed over the ranks of all stages, local shards give the model once for each replica. */
static void shards_of_all_ranks_sum_to_the_model(void **state) {
    (void)state;
    rng r = rng_init(15);
    mf_cluster c = test_cluster();
    mf_model m = test_model_moe(true);
    double routed = (double)(m.layers - 1 + 1) * (double)m.experts * 3.0 * (double)m.hidden *
                    (double)m.moe_ffn; /* seven MoE layers and the MTP depth */
    for (int i = 0; i < 200; i++) {
        mf_layout l = test_random_layout(&r, &m, 256);
        l.memory = (mf_memory_choice){0, 0};
        mf_assignment a;
        mf_program *p;
        assert_ok(mf_assignment_even(&m, &l, &a, NULL));
        assert_ok(mf_program_lower(&m, &l, &c, &a, &p, NULL));
        double expert = 0;
        for (int64_t s = 0; s < l.pp; s++) {
            expert += (double)mf_program_stage_params(p, s).expert;
        }
        assert_close(expert * (double)(l.ep * l.etp) / routed, 1.0, 1e-12);
        mf_program_destroy(p);
    }
}

static void zero_levels_shrink_what_they_shard(void **state) {
    (void)state;
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = l.dp = 8;
    l.edp = 4;
    mf_param_count n = {1000000, 4000000, 900000};
    const struct {
        uint8_t level;
        double weights, gradients, optimizer; /* bytes: BF16, FP32, FP32 master + two moments */
    } want[] = {
        {0, 5e6 * 2, 5e6 * 4, 5e6 * 12},
        {1, 5e6 * 2, 5e6 * 4, (1e6 / 8 + 4e6 / 4) * 12},
        {2, 5e6 * 2, (1e6 / 8 + 4e6 / 4) * 4, (1e6 / 8 + 4e6 / 4) * 12},
        {3, (1e6 / 8 + 4e6 / 4) * 2, (1e6 / 8 + 4e6 / 4) * 4, (1e6 / 8 + 4e6 / 4) * 12},
    };
    for (int i = 0; i < 4; i++) {
        l.zero = l.expert_zero = want[i].level;
        mf_stage_memory s = mf_param_memory(&l, n);
        assert_close(s.weights_B, want[i].weights, 1);
        assert_close(s.gradients_B, want[i].gradients, 1);
        assert_close(s.optimizer_B, want[i].optimizer, 1);
    }
    l.moments_bf16 = true;
    l.offload_optimizer = 0.5;
    mf_stage_memory s = mf_param_memory(&l, n);
    assert_close(s.optimizer_B, (1e6 / 8 + 4e6 / 4) * 8 * 0.5, 1);
    assert_close(s.optimizer_host_B, s.optimizer_B, 1);
}

/* --- choices ---------------------------------------------------------------------------------- */

static mf_block *lower_layer(const mf_model *m, mf_layout *l, uint16_t recompute,
                             uint16_t offload) {
    mf_cluster c = test_cluster();
    mf_block *b = NULL;
    assert_ok(mf_layout_resolve(l, m, NULL));
    mf_memory_choice choice = {recompute, offload};
    mf_block_key key = mf_block_key_layer(1, choice, false);
    assert_ok(mf_block_lower(m, l, &c, &key, &b, NULL));
    return b;
}

static void recomputation_trades_saved_bytes_for_ops(void **state) {
    (void)state;
    mf_model m = test_model_moe(true);
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = l.gbs = l.ep = 8;
    mf_block *none = lower_layer(&m, &l, 0, 0);
    assert_at_most(none->flops_r, 0);
    const uint16_t each[] = {MF_RECOMPUTE_NORM,          MF_RECOMPUTE_ACT,
                             MF_RECOMPUTE_MLA_UP_PROJ,   MF_RECOMPUTE_CORE_ATTN,
                             MF_RECOMPUTE_SHARED_EXPERT, MF_RECOMPUTE_EXPERTS,
                             MF_RECOMPUTE_MOE,           MF_RECOMPUTE_LAYER};
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        mf_block *b = lower_layer(&m, &l, each[i], 0);
        assert_below(b->saved_B, none->saved_B);
        assert_above(b->nops, none->nops);
        mf_block_destroy(b);
    }
    /* Whole-layer recomputation keeps the input, the routing map and four bytes a row per norm. */
    mf_block *full = lower_layer(&m, &l, MF_RECOMPUTE_LAYER, 0);
    int64_t tokens = l.seq, input = tokens * m.hidden * 2, map = tokens * m.top_k * 4;
    assert_in_range(full->saved_B, input + map, input + map + 5 * tokens * 4 + 16 * MF_ALIGN_B);
    assert_above(full->flops_r, 0.7 * full->flops_f);
    assert_at_most(full->flops_r, full->flops_f);
    mf_block_destroy(full);
    mf_block_destroy(none);
}

static void recomputation_never_routes_again(void **state) {
    (void)state;
    mf_model m = test_model_moe(false);
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = l.gbs = l.ep = 8;
    mf_block *b = lower_layer(&m, &l, MF_RECOMPUTE_LAYER, 0);
    for (int i = b->nforward; i < b->nops; i++) {
        for (int k = 0; k < b->ops[i].nout; k++) {
            assert_false(b->tensors[b->ops[i].out[k]].indices);
        }
    }
    mf_block_destroy(b);
}

static void offloaded_tensors_leave_and_return_once(void **state) {
    (void)state;
    mf_model m = test_model_moe(false);
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = l.gbs = l.ep = 8;
    mf_block *kept = lower_layer(&m, &l, 0, 0);
    mf_block *b = lower_layer(&m, &l, 0, MF_OFFLOAD_QKV | MF_OFFLOAD_EXPERT_FC1);
    assert_above(b->offload_B, 0);
    assert_int_equal(b->saved_B + b->offload_B, kept->saved_B);
    double out = 0, in = 0;
    for (int i = 0; i < b->nops; i++) {
        out += b->ops[i].kind == MF_OP_COPY_D2H ? b->ops[i].bytes : 0;
        in += b->ops[i].kind == MF_OP_COPY_H2D ? b->ops[i].bytes : 0;
    }
    assert_above(out, 0);
    assert_close(out, in, 0.5);
    mf_block_destroy(b);
    mf_block_destroy(kept);
}

static void communication_appears_with_its_degree_only(void **state) {
    (void)state;
    mf_model m = test_model_moe(true);
    mf_layout l;
    mf_layout_init(&l);
    mf_block *b = lower_layer(&m, &l, 0, 0);
    for (int i = 0; i < b->nops; i++) {
        assert_int_equal(b->ops[i].group, MF_GROUP_NONE);
    }
    mf_block_destroy(b);
    l.gpus = l.gbs = 16;
    l.tp = 2;
    l.cp = 2;
    l.ep = 4;
    l.etp = 2;
    b = lower_layer(&m, &l, 0, 0);
    int seen[MF_GROUP_COUNT] = {0};
    for (int i = 0; i < b->nops; i++) {
        if (b->ops[i].group != MF_GROUP_NONE) {
            seen[b->ops[i].group]++;
            mf_group_shape s = mf_layout_group(&l, (mf_group_kind)b->ops[i].group);
            assert_int_equal(b->ops[i].shape.size, s.size);
        }
    }
    assert_true(seen[MF_GROUP_TP]);
    assert_true(seen[MF_GROUP_CP]);
    assert_true(seen[MF_GROUP_EP]);
    assert_true(seen[MF_GROUP_ETP]);
    mf_block_destroy(b);
}

/* Row-parallel GEMMs in FP8: the gradient of their sum travels quantised, as the input of a
 * column-parallel GEMM does, and nothing is quantised twice. */
static void gradients_are_gathered_in_the_precision_that_reads_them(void **state) {
    (void)state;
    const mf_model m = test_model_dense();
    mf_cluster c = test_cluster();
    double bytes[2] = {0, 0}; /* bf16, fp8: of backward gathers for row-parallel GEMMs */
    for (int low = 0; low < 2; low++) {
        mf_layout l;
        mf_layout_init(&l);
        l.gpus = l.tp = 2;
        l.seq = 128;
        l.gbs = 1;
        l.precision = low ? MF_PREC_FP8_TENSOR : MF_PREC_BF16;
        mf_assignment a;
        mf_program *p;
        assert_ok(mf_layout_resolve(&l, &m, NULL));
        assert_ok(mf_assignment_even(&m, &l, &a, NULL));
        assert_ok(mf_program_lower(&m, &l, &c, &a, &p, NULL));
        for (int i = 0; i < p->nblocks; i++) {
            const mf_block *b = p->blocks[i];
            for (int k = 0; k < b->nops && strncmp(b->label, "layer", 5) == 0; k++) {
                const mf_op *op = &b->ops[k];
                if (op->kind == MF_OP_ALL_GATHER && op->pass == MF_PASS_B) {
                    bytes[low] += op->bytes;
                    assert_true(!low || b->tensors[op->in[0]].element_B < 1.5);
                }
            }
        }
        mf_program_destroy(p);
    }
    assert_above(bytes[0], 0);
    assert_above(bytes[1], 0.49 * bytes[0]);
    assert_below(bytes[1], 0.55 * bytes[0]);
}

static void a_merged_order_plays_every_op_once_and_in_order(void **state) {
    (void)state;
    mf_model m = test_model_moe(true);
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = l.gbs = l.ep = 8;
    mf_block *b = lower_layer(&m, &l, 0, 0);
    mf_merged_op *order = calloc((size_t)b->nops + 1, sizeof *order);
    assert_non_null(order);
    int n = mf_block_merge(b, b, order);
    assert_int_equal(n, b->nops);
    int next[2] = {0, b->nforward};
    bool beside = false;
    for (int i = 0; i < n; i++) {
        assert_int_equal(order[i].op, next[order[i].side]);
        next[order[i].side]++;
        /* After an exchange of one side the other side computes. */
        bool exchange = b->ops[order[i].op].stream == MF_STREAM_EP;
        beside |= exchange && i + 1 < n && order[i + 1].side != order[i].side;
    }
    assert_true(beside);
    free(order);
    mf_block_destroy(b);
}

/* DeepSeek-V3 on 256 GPUs, PP4 VPP4 EP64: Megatron-LM reports 131.0 GB of activations. In flight
 * on stage 0 under interleaving: (PP-1)*2 + (VPP-1)*PP + 1 chunks of four layers. */
static void saved_activations_of_deepseek_v3_meet_the_published_figure(void **state) {
    (void)state;
    mf_model m = test_model_moe(true);
    m.layers = 61;
    m.hidden = 7168;
    m.vocab = 129280;
    m.heads = m.kv_heads = 128;
    m.head_dim = 192;
    m.q_lora_rank = 1536;
    m.kv_lora_rank = 512;
    m.qk_nope_head_dim = m.v_head_dim = 128;
    m.qk_rope_head_dim = 64;
    m.ffn = 18432;
    m.moe_ffn = m.shared_ffn = 2048;
    m.experts = 256;
    m.top_k = 8;
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = 256;
    l.pp = l.vpp = 4;
    l.ep = 64;
    l.gbs = 4096;
    l.schedule = MF_SCHED_INTERLEAVED;
    l.dispatcher = MF_DISPATCH_ALLTOALL;
    l.token_headroom = 1.0;
    mf_block *moe = lower_layer(&m, &l, 0, 0);
    mf_block *dense = NULL;
    mf_cluster c = test_cluster();
    mf_memory_choice keep = {0, 0};
    mf_block_key key = mf_block_key_layer(0, keep, false);
    assert_ok(mf_block_lower(&m, &l, &c, &key, &dense, NULL));
    /* Chunk 0 of stage 0 (three dense layers, one MoE layer) has 7 micro-batches in flight. */
    double bytes = 7.0 * (3.0 * (double)dense->saved_B + (double)moe->saved_B) +
                   12.0 * 4.0 * (double)moe->saved_B;
    printf("activations %.1f GB, published 131.0 GB\n", bytes / 1e9);
    assert_close(bytes / 131.0e9, 1.0, 0.03);
    mf_block_destroy(dense);
    mf_block_destroy(moe);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_read_only_what_was_made_before),
        cmocka_unit_test(saved_is_exactly_what_backward_reads),
        cmocka_unit_test(local_tensors_alive_together_share_no_bytes),
        cmocka_unit_test(each_gemm_has_one_weight_gradient_and_attention_five_products),
        cmocka_unit_test(shards_of_all_ranks_sum_to_the_model),
        cmocka_unit_test(zero_levels_shrink_what_they_shard),
        cmocka_unit_test(recomputation_trades_saved_bytes_for_ops),
        cmocka_unit_test(recomputation_never_routes_again),
        cmocka_unit_test(offloaded_tensors_leave_and_return_once),
        cmocka_unit_test(communication_appears_with_its_degree_only),
        cmocka_unit_test(gradients_are_gathered_in_the_precision_that_reads_them),
        cmocka_unit_test(a_merged_order_plays_every_op_once_and_in_order),
        cmocka_unit_test(saved_activations_of_deepseek_v3_meet_the_published_figure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
