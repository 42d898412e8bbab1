/* test_published.c - published rows are read as their sources ran them, and the split into fitted
 * and held-out rows hangs on nothing that reading fills in. */
#include "bench/published/predict.h"
#include "cli/cli.h"
#include "core/base/json.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct table {
    pub_row *rows;
    int count;
    int predicted; /* so many rows hold predictions of the profiles that ship */
} table;

static int load(void **state) {
    table *t = calloc(1, sizeof *t);
    mf_err e = {.text = ""};
    if (t == NULL || pub_rows_load("bench/published/published.csv", &t->rows, &t->count, &e)) {
        print_error("%s\n", e.text);
        free(t);
        return -1;
    }
    *state = t;
    return 0;
}

static int unload(void **state) {
    table *t = *state;
    pub_rows_free(t->rows, t->count);
    free(t);
    return 0;
}

static const pub_row *row(void **state, const char *id) {
    const table *t = *state;
    for (int i = 0; i < t->count; i++) {
        if (strcmp(t->rows[i].id, id) == 0) {
            return &t->rows[i];
        }
    }
    fail_msg("no row %s", id);
    return NULL;
}

static void the_held_out_third_is_the_one_it_always_was(void **state) {
    const table *t = *state;
    int held = 0, predicted = 0;
    for (int i = 0; i < t->count; i++) {
        predicted += !t->rows[i].skipped[0];
        held += !t->rows[i].skipped[0] && t->rows[i].held_out;
    }
    assert_int_equal(predicted, 381);
    assert_int_equal(held, 126);
    assert_true(row(state, "bra-149")->held_out); /* VPP filled in */
    assert_true(row(state, "ll3-003")->held_out);
    assert_false(row(state, "mpf-081")->held_out); /* ETP filled in */
}

static void a_method_without_folding_keeps_etp_at_tp(void **state) {
    assert_int_equal(row(state, "mpf-081")->layout.etp, 8);
    assert_int_equal(row(state, "mpf-078")->layout.etp, 1); /* with folding */
}

static void an_unsaid_vpp_is_that_of_the_neighbours(void **state) {
    const pub_row *r = row(state, "bra-149");
    assert_int_equal(r->layout.vpp, 5);
    assert_int_equal(r->layout.schedule, MF_SCHED_INTERLEAVED);
    assert_int_equal(row(state, "bra-119")->layout.vpp, 1); /* its recipe sets none */
}

static bool asks(const pub_row *r, const char *word) {
    for (int i = 0; i < r->command.count; i++) {
        if (strcmp(r->command.word[i], word) == 0) {
            return true;
        }
    }
    return false;
}

static void what_a_row_leaves_unsaid_its_command_line_does(void **state) {
    const pub_row *r = row(state, "bra-229"); /* graph and dispatcher: 25.11 has two of each */
    assert_false(asks(r, "--cuda-graph") || asks(r, "--dispatcher"));
    assert_int_equal(r->layout.graph, MF_GRAPH_PARTIAL);
    r = row(state, "bra-071"); /* both stated */
    assert_true(asks(r, "--cuda-graph"));
    assert_true(asks(r, "--dispatcher"));
    r = row(state, "bra-149"); /* looked up: VPP of the neighbours */
    assert_true(asks(r, "--vpp"));
    assert_true(asks(r, "--unsure"));
}

static void stages_hold_what_megatrons_layout_says(void **state) {
    const pub_row *r = row(state, "bra-071"); /* PP4 VPP4, one MTP depth: Et*4|(t*4|)*14tmL */
    mf_assignment a = r->job->plan.assignment;
    assert_int_equal(a.vstages, 16);
    assert_int_equal(a.first[1], 5);
    assert_int_equal(a.first[15], 61);
    assert_int_equal(a.first[16], 64);
    r = row(state, "lad-001"); /* printed: Et|(tt|)*30L, no MTP */
    a = r->job->plan.assignment;
    assert_int_equal(a.first[1], 2);
    assert_int_equal(a.first[2], 4);
    assert_int_equal(a.first[31], 62);
    assert_int_equal(a.first[32], 63);
}

static void full_recomputation_of_some_layers_leaves_the_others_alone(void **state) {
    const pub_row *r = row(state, "bra-242"); /* full:5 layers (block) */
    mf_assignment a = r->job->plan.assignment;
    int layers = 0;
    for (int i = 0; i < a.positions; i++) {
        layers += mf_position_kind_of(&r->model, i) == MF_POS_LAYER &&
                  a.memory[i].recompute == MF_RECOMPUTE_LAYER;
    }
    assert_int_equal(layers, 5);
}

static mf_program *lowered(const pub_row *r) {
    mf_program *program = NULL;
    mf_err e = {.text = ""};
    if (mf_program_lower(&r->model, &r->layout, &r->cluster, &r->job->plan.assignment, &program,
                         &e) != MF_OK) {
        fail_msg("%s: %s", r->id, e.text);
    }
    return program;
}

/* Of all layers: FLOPs of the products of a pass. */
static double product_flops(const mf_program *p, uint8_t pass) {
    double sum = 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_block *b = p->blocks[p->block_of[i]];
        for (int k = 0; k < b->nops && b->flops_r > 0; k++) {
            sum += b->ops[k].kind == MF_OP_GEMM && b->ops[k].pass == pass ? b->ops[k].flops : 0;
        }
    }
    return sum;
}

static void selective_checkpoints_of_ops_repeat_every_second_product(void **state) {
    mf_program *p = lowered(row(state, "tt-001"));
    /* Llama3-8B, weights of wk, wo, w3 over those of all seven */
    const double h = 4096, kv = 1024, ffn = 14336;
    double share = (kv + h + ffn) / (2 * h + 2 * kv + 3 * ffn);
    double got = product_flops(p, MF_PASS_R) / product_flops(p, MF_PASS_F);
    mf_program_destroy(p);
    assert_above(got, 0.999 * share);
    assert_below(got, 1.001 * share);
}

/* Bytes that TP gathers in the forward pass of all layers, and that are quantised there. */
static void gathered(const pub_row *r, double *gather_B, double *quantise_B) {
    mf_program *p = lowered(r);
    *gather_B = *quantise_B = 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_block *b = p->blocks[p->block_of[i]];
        for (int k = 0; k < b->nforward && b->flops_r > 0; k++) {
            const mf_op *op = &b->ops[k];
            bool gathers = op->kind == MF_OP_ALL_GATHER && op->stream == MF_STREAM_TP;
            *gather_B += gathers ? op->bytes : 0;
            *quantise_B += op->kind == MF_OP_QUANTISE ? op->bytes : 0;
        }
    }
    mf_program_destroy(p);
}

static void rowwise_scales_travel_in_bf16_and_are_found_by_every_rank(void **state) {
    double narrow_B, narrow_q, wide_B, wide_q;
    gathered(row(state, "tt-021"), &narrow_B, &narrow_q); /* one scale per tensor */
    gathered(row(state, "tt-023"), &wide_B, &wide_q);
    assert_above(wide_B, 1.8 * narrow_B); /* scales of blocks travel too */
    assert_above(wide_q, 2 * narrow_q);
}

/* Of the first layer: bytes of an element of all its ops of a kind, a row of `width` each. */
static double bytes_an_element(const pub_row *r, mf_op_kind kind) {
    mf_program *p = lowered(r);
    const mf_block *b = p->blocks[p->block_of[mf_position_kind_of(&r->model, 0) != MF_POS_LAYER]];
    double bytes = 0, elements = 0;
    for (int k = 0; k < b->nops; k++) {
        const mf_op *op = &b->ops[k];
        if (op->kind == kind) {
            bytes += op->bytes;
            elements += (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS];
        }
    }
    mf_program_destroy(p);
    assert_above(elements, 0);
    return bytes / elements;
}

/* DeepSeek-V3 on GB200 before Transformer Engine fused attention of such heads there: 64 heads of a
 * rank, all pairs of 4096 tokens; 8 bytes of each pass through memory forward, 14 backward. */
static void scores_of_unfused_attention_pass_through_memory(void **state) {
    mf_program *p = lowered(row(state, "dgx-090")), *fused = lowered(row(state, "bra-161"));
    const mf_block *b = p->blocks[p->block_of[1]];
    const double pairs = 64.0 * 4096 * 4096;
    int seen = 0;
    for (int k = 0; k < b->nops; k++) {
        const mf_op *op = &b->ops[k];
        if (op->kind == MF_OP_ATTENTION_FWD || op->kind == MF_OP_ATTENTION_BWD) {
            bool forward = op->kind == MF_OP_ATTENTION_FWD;
            assert_true(op->flags & MF_OPF_SCORES);
            assert_above(op->bytes / pairs, (forward ? 7.99 : 13.99));
            assert_below(op->bytes / pairs, (forward ? 8.01 : 14.01));
            seen++;
        }
    }
    assert_int_equal(seen, 3); /* forward, again, backward */
    b = fused->blocks[fused->block_of[1]];
    for (int k = 0; k < b->nops; k++) {
        assert_false(b->ops[k].flags & MF_OPF_SCORES);
    }
    mf_program_destroy(p);
    mf_program_destroy(fused);
}

/* A piece of a product costs its share of the whole where pieces run beside each other, and more
 * where one follows the other. */
static void pieces_on_several_streams_cost_their_share(void **state) {
    const pub_row *r = row(state, "dgx-139"); /* Llama3-70B, TP 4 overlapped */
    mf_program *p = lowered(r);
    const mf_block *b = p->blocks[p->block_of[1]];
    mf_software s;
    mf_cost *cost = NULL;
    assert_ok(mf_software_load(r->software, &s, NULL));
    assert_ok(mf_cost_create(&r->cluster, &s, NULL, &cost, NULL));
    int seen = 0;
    for (int k = 0; k < b->nops; k++) {
        if (b->ops[k].kind != MF_OP_GEMM || b->ops[k].pieces <= 1) {
            continue;
        }
        mf_op piece = b->ops[k], alone = piece, whole = piece;
        mf_price share, apart, all;
        assert_true(piece.flags & MF_OPF_TOGETHER);
        alone.flags = whole.flags = piece.flags & ~(uint32_t)MF_OPF_TOGETHER;
        whole.dim[MF_OP_DIM_M] *= piece.pieces;
        whole.flops *= piece.pieces;
        whole.bytes *= piece.pieces;
        mf_cost_op(cost, &piece, 1, &share);
        mf_cost_op(cost, &alone, 1, &apart);
        mf_cost_op(cost, &whole, 1, &all);
        assert_below(fabs(piece.pieces * share.time_s / all.time_s - 1), 1e-9);
        assert_at_most(share.time_s, 1.001 * apart.time_s);
        seen++;
    }
    assert_above(seen, 0);
    mf_cost_destroy(cost);
    mf_program_destroy(p);
}

static bool near(double a, double b) {
    return fabs(a - b) < 1e-3 * b;
}

static void megatron_copies_queries_and_adds_gradients_of_residuals(void **state) {
    const pub_row *megatron = row(state, "dgx-139"), *compiled = row(state, "tt-019");
    /* Llama3-70B: 64 heads, 8 of keys; a kernel alone moves 4 bytes an element. */
    assert_true(near(bytes_an_element(compiled, MF_OP_ROPE_FWD), 4));
    assert_true(near(bytes_an_element(megatron, MF_OP_ROPE_FWD), 4 + 4.0 * 64 / 72));
    assert_true(near(bytes_an_element(megatron, MF_OP_ROPE_BWD), 4 + 4.0 * 80 / 72));
    /* Without fused RoPE five times a kernel's, and the copy; Qwen3-8B: 32 heads, 8 of keys. */
    assert_true(
        near(bytes_an_element(row(state, "card-036"), MF_OP_ROPE_FWD), 5 * 4 + 4.0 * 32 / 40));
    assert_true(near(bytes_an_element(row(state, "card-036"), MF_OP_SWIGLU_FWD), 1.7 * 3 * 2));
    assert_true(near(bytes_an_element(compiled, MF_OP_RMSNORM_BWD), 8));
    assert_true(near(bytes_an_element(megatron, MF_OP_RMSNORM_BWD), 12));
}

static void scales_of_rows_cost_passes_and_leave_products_a_single_scale(void **state) {
    mf_program *p = lowered(row(state, "tt-023"));
    const mf_block *b = p->blocks[p->block_of[1]];
    const double read_B = 2, both_B = 2 * (1 + 4.0 / 128),
                 tp = 8; /* every rank, what is gathered */
    double quantise_B = 0, wanted_B = 0;
    for (int k = 0; k < b->nops; k++) {
        const mf_op *op = &b->ops[k];
        double elements = (double)op->dim[MF_OP_DIM_ROWS] * (double)op->dim[MF_OP_DIM_COLS];
        if (op->kind == MF_OP_GEMM) {
            bool backward = op->pass == MF_PASS_B || op->pass == MF_PASS_W;
            assert_false(op->flags & MF_OPF_BLOCK_SCALED);
            wanted_B += op->math == MF_MATH_FP8 && backward ? 4 * elements : 0;
        } else if (op->kind == MF_OP_QUANTISE) {
            double ranks = op->dim[MF_OP_DIM_COLS] == 8192 ? tp : 1;
            quantise_B += op->bytes;
            wanted_B += ranks * elements * (3 * read_B + both_B);
        }
    }
    mf_program_destroy(p);
    assert_true(near(quantise_B, wanted_B));
}

/* Of the first layer with experts: its block. */
static const mf_block *expert_block(const mf_program *p) {
    for (int i = 0; i < p->assignment.positions; i++) {
        if (p->blocks[p->block_of[i]]->params.expert > 0) {
            return p->blocks[p->block_of[i]];
        }
    }
    fail_msg("no experts");
    return NULL;
}

static void hybridep_puts_rows_into_order_as_part_of_the_exchange(void **state) {
    mf_program *p = lowered(row(state, "brn-002"));
    const mf_block *b = expert_block(p);
    mf_merged_op *order = calloc(2 * (size_t)b->nops, sizeof *order);
    int n = mf_block_merge(b, b, order), with = 0;
    for (int i = 1; i < n; i++) {
        const mf_op *before = &b->ops[order[i - 1].op], *op = &b->ops[order[i].op];
        bool one = (before->kind == MF_OP_DISPATCH && op->kind == MF_OP_PERMUTE) ||
                   (before->kind == MF_OP_UNPERMUTE && op->kind == MF_OP_COMBINE);
        assert_true(op->kind != MF_OP_PERMUTE || op->stream == MF_STREAM_EP);
        with += one && order[i].side == order[i - 1].side;
    }
    assert_int_equal(with, 4); /* both ways of both sides */
    free(order);
    mf_program_destroy(p);
    p = lowered(row(state, "mcm-004")); /* DeepEP */
    b = expert_block(p);
    for (int k = 0; k < b->nops; k++) {
        assert_true(b->ops[k].kind != MF_OP_PERMUTE || b->ops[k].stream == MF_STREAM_COMPUTE);
    }
    mf_program_destroy(p);
}

/* Bytes of an element of the activation of GPT-OSS's experts, where the hidden size is as wide. */
static void activations_that_end_a_kernel_early_cost_their_copies(void **state) {
    static const struct {
        const char *id;
        double bytes;
    } want[] = {{"bra-076", 3 * 2 + 16 + 28}, /* clamp, bias; HybridEP pads */
                {"bra-167", 3 * 2 + 16 + 28}, /* BF16 behind an all-to-all: nothing to pad */
                {"bra-028", 3 * 2 + 16 + 28}, /* MXFP8 behind HybridEP */
                {"brn-005", 0}};              /* fused with the products */
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mf_program *p = lowered(row(state, want[i].id));
        const mf_block *b = expert_block(p);
        for (int k = 0; k < b->nforward; k++) {
            const mf_op *op = &b->ops[k];
            if (op->kind == MF_OP_SWIGLU_FWD && (op->flags & MF_OPF_ROUTED)) {
                assert_int_equal(op->dim[MF_OP_DIM_COLS], 2880);
                double each = op->bytes / ((double)op->dim[MF_OP_DIM_ROWS] * 2880);
                assert_above(each, want[i].bytes - 0.1);
                assert_below(each, want[i].bytes + 0.1);
            }
        }
        mf_program_destroy(p);
    }
}

/* Bytes that TP scatters in the forward pass of a layer over those of its backward pass. */
static double scattered(const pub_row *r) {
    mf_program *p = lowered(r);
    double bytes[2] = {0, 0};
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_block *b = p->blocks[p->block_of[i]];
        for (int k = 0; k < b->nops; k++) {
            const mf_op *op = &b->ops[k];
            if (op->kind == MF_OP_REDUCE_SCATTER && op->stream == MF_STREAM_TP &&
                (op->flags & MF_OPF_OVERLAPPED)) {
                bytes[k >= b->nforward] += op->bytes;
            }
        }
    }
    mf_program_destroy(p);
    return bytes[0] / bytes[1];
}

static void nemo_scatters_forward_sums_in_fp8(void **state) {
    double fp8 = scattered(row(state, "dgx-145")), bf16 = scattered(row(state, "dgx-139"));
    assert_above(fp8, 0.499 * bf16);
    assert_below(fp8, 0.501 * bf16);
}

static void flags_are_those_of_the_sources_recipes(void **state) {
    assert_true(row(state, "bra-019")->layout.overlap & MF_OVERLAP_TP);
    assert_false(row(state, "bra-020")->layout.overlap & MF_OVERLAP_TP); /* NVFP4 */
    assert_int_equal(row(state, "tt-019")->layout.overlap & (MF_OVERLAP_DP | MF_OVERLAP_TP),
                     MF_OVERLAP_DP); /* "none" is said of TP */
    assert_int_equal(row(state, "smx-002")->layout.overlap, MF_OVERLAP_NONE);
    assert_true(row(state, "bra-019")->layout.fp8_primary_weights);
    assert_true(row(state, "tt-011")->layout.fp8_primary_weights);
    assert_false(row(state, "tt-023")->layout.fp8_primary_weights); /* rowwise */
    assert_int_equal(row(state, "ll3-003")->layout.cp_type, MF_CP_ALLGATHER);
    assert_int_equal(row(state, "tt-010")->layout.zero, 3);
    assert_below(row(state, "tt-018")->layout.zero, 3); /* pipelines keep weights gathered */
}

static void a_recipe_fills_in_what_a_row_leaves_out(void **state) {
    const pub_row *r = row(state, "skl-046"); /* qwen3_30b_a3b_pretrain_config */
    assert_int_equal(r->layout.memory.recompute, MF_RECOMPUTE_LAYER);
    assert_int_equal(r->layout.dispatcher, MF_DISPATCH_FUSED);
    assert_int_equal(r->layout.graph, MF_GRAPH_NONE);
    assert_true(asks(r, "--unsure"));
    assert_false(pub_flags_known(r)); /* not by the row itself */
    r = row(state, "card-036");
    assert_int_equal(r->layout.memory.recompute, MF_RECOMPUTE_NONE);
    assert_true(asks(r, "--unsure"));
    assert_false(asks(row(state, "card-001"), "--unsure")); /* its recipe was not read */
    r = row(state, "dgx-106"); /* Llama 4, H100, BF16: NeMo's recipe drops tokens */
    assert_above(r->layout.capacity_factor, 0);
    assert_true(r->layout.pad_to_capacity);
    assert_true(r->layout.overlap & MF_OVERLAP_TP);
    assert_int_equal(r->layout.dispatcher, MF_DISPATCH_ALLTOALL);
    assert_int_equal(r->layout.graph, MF_GRAPH_NONE);
    assert_int_equal(row(state, "dgx-107")->layout.graph, MF_GRAPH_PARTIAL); /* FP8 */
    assert_int_equal(row(state, "dgx-103")->layout.graph, MF_GRAPH_NONE);    /* GB200 */
    assert_false(pub_flags_known(r));
}

/* Once for all tests that look at predictions: it takes long. Sanitizers see some of the rows.
 */
static void predict_all(table *t) {
    pub_profiles profiles;
    pub_costs *costs = NULL;
    if (t->predicted > 0) {
        return;
    }
    assert_ok(pub_profiles_load(&profiles, t->rows, t->count, NULL));
    assert_ok(pub_costs_create(&profiles, t->rows, t->count, &costs, NULL));
    t->predicted = t->count / case_stride(20);
    pub_predict(costs, &profiles, t->rows, t->predicted, false);
    pub_costs_destroy(costs);
}

/* Of the rows that state one: published runs of Megatron on B200 report exactly what is allocated;
 * all others within what was reached, rounded up. Hybrids (Nemotron 3, four rows of one source) are
 * further off, and counted apart. */
static void predicted_memory_is_what_the_program_would_report(void **state) {
    table *t = *state;
    predict_all(t);
    if (t->predicted < t->count) {
        return; /* a mean is of all */
    }
    double sum[2] = {0, 0}; /* of transformers, of hybrids */
    int n[2] = {0, 0};
    for (int i = 0; i < t->count; i++) {
        const pub_row *r = &t->rows[i];
        if (!r->skipped[0] && r->memory_B > 0) {
            double error = r->predicted_memory_B / r->memory_B - 1;
            const bool hybrid = strncmp(r->model_name, "Nemotron", 8) == 0;
            sum[hybrid] += fabs(error);
            n[hybrid]++;
            if (strcmp(r->source, "smx") == 0 && fabs(error) > 0.01) {
                fail_msg("%s: memory %+.1f %%", r->id, 100 * error);
            }
        }
    }
    assert_int_equal(n[0], 42);
    assert_int_equal(n[1], 4);
    assert_at_most(sum[0] / n[0], 0.03);
    assert_at_most(sum[1] / n[1], 0.14);
}

typedef struct errors {
    int n, inside;
    double sum, bias;
} errors;

static errors errors_of(const table *t, bool held_out, bool moe, bool flags_known) {
    errors e = {0, 0, 0, 0};
    for (int i = 0; i < t->count; i++) {
        const pub_row *r = &t->rows[i];
        if (r->skipped[0] || r->held_out != held_out || r->moe != moe ||
            (moe && pub_flags_known(r) != flags_known)) {
            continue;
        }
        double error = r->predicted_s / r->step_s - 1;
        e.n++;
        e.sum += fabs(error);
        e.bias += error;
        e.inside += r->step_s >= r->low_s && r->step_s <= r->high_s;
    }
    return e;
}

/* What was reached, rounded up: a change that costs accuracy shows here. The targets of rows that
 * were never fitted are 5 % (dense), 8 and 12 % (MoE, flags known and unsaid), bias 2 %, 90 % of
 * them inside their bands. */
static void predictions_are_as_near_as_they_were(void **state) {
    table *t = *state;
    static const struct {
        bool held_out, moe, flags_known;
        double mean, bias, inside;
    } most[] = {{true, false, true, 0.06, 0.03, 0.95},  {false, false, true, 0.037, 0.03, 0.95},
                {true, true, true, 0.08, 0.03, 0.90},   {true, true, false, 0.12, 0.03, 0.90},
                {false, true, true, 0.125, 0.03, 0.85}, {false, true, false, 0.135, 0.05, 0.85}};
    predict_all(t);
    for (size_t i = 0; t->predicted == t->count && i < sizeof most / sizeof most[0]; i++) {
        errors e = errors_of(t, most[i].held_out, most[i].moe, most[i].flags_known);
        assert_above(e.n, 30);
        if (e.sum > most[i].mean * e.n || fabs(e.bias) > most[i].bias * e.n ||
            e.inside < most[i].inside * e.n) {
            fail_msg("group %zu: mean error %.1f %%, bias %+.1f %%, %d of %d in their bands", i,
                     100 * e.sum / e.n, 100 * e.bias / e.n, e.inside, e.n);
        }
    }
}

/* What `moefold simulate` prints for a row's command line: step time and its band, and the peak of
 * memory that the row's program would print. */
enum { PRINTED = 4 };
static void simulated(const pub_row *r, double got[PRINTED]) {
    static const char *const keys[PRINTED] = {"step_time_s", "step_time_low_s", "step_time_high_s",
                                              "reported_memory_B"};
    const char *argv[PUB_WORDS + 3] = {"moefold", "simulate", "--json"};
    char *text = NULL;
    size_t size = 0;
    mf_json *doc = NULL;
    mf_cli cli = {.out = open_memstream(&text, &size), .err = stderr};
    for (int i = 0; i < r->command.count; i++) {
        argv[3 + i] = r->command.word[i];
    }
    assert_non_null(cli.out);
    assert_int_equal(mf_cli_run(r->command.count + 3, argv, &cli), 0);
    fclose(cli.out);
    assert_ok(mf_json_parse(r->id, text, size, &doc, NULL));
    for (int k = 0; k < PRINTED; k++) {
        assert_ok(mf_json_get_f64(mf_json_root(doc), keys[k], 0, 1e15, &got[k], NULL));
    }
    mf_json_destroy(doc);
    free(text);
}

/* All rows; every eighth where sanitizers make each ten times as long. */
static void the_command_line_of_a_row_gives_its_number(void **state) {
    table *t = *state;
    const int every = case_stride(8);
    predict_all(t);
    for (int i = 0, n = 0; i < t->predicted; i++) {
        const pub_row *r = &t->rows[i];
        if (r->skipped[0] || n++ % every != 0) {
            continue;
        }
        const double want[PRINTED] = {r->predicted_s, r->low_s, r->high_s, r->predicted_memory_B};
        double got[PRINTED];
        simulated(r, got);
        if (memcmp(got, want, sizeof want) != 0) {
            fail_msg(
                "%s: simulate says %.17g s (%.17g to %.17g) and %.17g B, validate %.17g (%.17g "
                "to %.17g) and %.17g",
                r->id, got[0], got[1], got[2], got[3], want[0], want[1], want[2], want[3]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_held_out_third_is_the_one_it_always_was),
        cmocka_unit_test(a_method_without_folding_keeps_etp_at_tp),
        cmocka_unit_test(an_unsaid_vpp_is_that_of_the_neighbours),
        cmocka_unit_test(what_a_row_leaves_unsaid_its_command_line_does),
        cmocka_unit_test(stages_hold_what_megatrons_layout_says),
        cmocka_unit_test(full_recomputation_of_some_layers_leaves_the_others_alone),
        cmocka_unit_test(selective_checkpoints_of_ops_repeat_every_second_product),
        cmocka_unit_test(rowwise_scales_travel_in_bf16_and_are_found_by_every_rank),
        cmocka_unit_test(megatron_copies_queries_and_adds_gradients_of_residuals),
        cmocka_unit_test(scales_of_rows_cost_passes_and_leave_products_a_single_scale),
        cmocka_unit_test(pieces_on_several_streams_cost_their_share),
        cmocka_unit_test(scores_of_unfused_attention_pass_through_memory),
        cmocka_unit_test(flags_are_those_of_the_sources_recipes),
        cmocka_unit_test(a_recipe_fills_in_what_a_row_leaves_out),
        cmocka_unit_test(predicted_memory_is_what_the_program_would_report),
        cmocka_unit_test(predictions_are_as_near_as_they_were),
        cmocka_unit_test(the_command_line_of_a_row_gives_its_number),
        cmocka_unit_test(nemo_scatters_forward_sums_in_fp8),
        cmocka_unit_test(hybridep_puts_rows_into_order_as_part_of_the_exchange),
        cmocka_unit_test(activations_that_end_a_kernel_early_cost_their_copies),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
