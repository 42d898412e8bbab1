/* Lowered layers that keep a state or choose their keys: FLOPs, states and traffic are those of the
 * published formulas, in figures that were worked out apart from this code. */
#include "core/memory/memory_inputs.h"
#include "core/program/lower.h"
#include "costmodel/cost_internal.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

typedef struct fixture {
    mf_model m;
    mf_layout l;
    mf_program *p;
} fixture;

static mf_status open_fixture(fixture *w, const char *name, int64_t tp, int64_t cp, int64_t seq,
                              mf_err *e) {
    mf_cluster c;
    mf_assignment a;
    memset(w, 0, sizeof *w);
    mf_layout_init(&w->l);
    w->l.gpus = tp * cp;
    w->l.tp = tp;
    w->l.cp = cp;
    w->l.cp_type = MF_CP_ALLGATHER;
    w->l.gbs = 1;
    w->l.seq = seq;
    mf_status s = mf_model_load(name, &w->m, e);
    s = s == MF_OK ? mf_cluster_load("h200", &c, e) : s;
    s = s == MF_OK ? mf_layout_resolve(&w->l, &w->m, e) : s;
    s = s == MF_OK ? mf_assignment_even(&w->m, &w->l, &a, e) : s;
    return s == MF_OK ? mf_program_lower(&w->m, &w->l, &c, &a, &w->p, e) : s;
}

static fixture lowered(const char *name, int64_t tp, int64_t cp, int64_t seq) {
    fixture w;
    mf_err e;
    if (open_fixture(&w, name, tp, cp, seq, &e) != MF_OK) {
        fail_msg("%s: %s", name, e.text);
    }
    return w;
}

/* The block of the first layer with that mixer. */
static const mf_block *layer_of(const fixture *w, mf_mixer_kind kind) {
    for (int64_t i = 0; i < w->m.layers; i++) {
        if (w->m.layer_classes[w->m.layer_class[i]].mixer == kind) {
            return w->p->blocks[w->p->block_of[1 + i]];
        }
    }
    fail_msg("%s: no such layer", w->m.name);
    return NULL;
}

static const mf_op *find(const mf_block *b, mf_op_kind kind, unsigned passes) {
    for (int i = 0; i < b->nops; i++) {
        if (b->ops[i].kind == kind && (b->ops[i].pass & passes)) {
            return &b->ops[i];
        }
    }
    return NULL;
}

static const mf_tensor *tensor(const mf_block *b, const char *name) {
    for (int i = 0; i < b->ntensors; i++) {
        if (strcmp(b->tensors[i].name, name) == 0) {
            return &b->tensors[i];
        }
    }
    fail_msg("%s: no %s", b->label, name);
    return NULL;
}

/* FLOPs of the products among projections, forward. */
static double projections(const mf_block *b) {
    double sum = 0.0;
    for (int i = 0; i < b->nforward; i++) {
        const mf_op *op = &b->ops[i];
        sum += op->kind == MF_OP_GEMM && op->module == MF_MODULE_ATTN_PROJ ? op->flops : 0.0;
    }
    return sum;
}

static void mixers_take_the_flops_of_their_formulas(void **state) {
    (void)state;
    /* MFLOP a token and layer: products (Megatron-Bridge's counter, with Mamba's own width), the
     * scan of the public kernels, the convolution. */
    static const struct {
        const char *name;
        mf_mixer_kind kind;
        double products, scan, conv;
    } cases[] = {
        {"qwen3.5-397b-a17b", MF_MIXER_GDN, 235.9, 11.53, 0.098},
        {"kimi-k3", MF_MIXER_KDA, 887.2, 17.30, 0.295},
        {"nemotron-3-nano", MF_MIXER_MAMBA2, 77.4, 3.41, 0.049},
        {"nemotron-3-ultra", MF_MIXER_MAMBA2, 843.0, 12.85, 0.147},
        {"minimax-text-01", MF_MIXER_LIGHTNING, 503.3, 12.58, 0.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture w = lowered(cases[i].name, 1, 1, 4096);
        const mf_block *b = layer_of(&w, cases[i].kind);
        const mf_op *conv = find(b, MF_OP_CONV_FWD, MF_PASS_F);
        double per = 1e-6 / 4096.0;
        assert_close(projections(b) * per / cases[i].products, 1.0, 2e-3);
        assert_close(find(b, MF_OP_SCAN_FWD, MF_PASS_F)->flops * per / cases[i].scan, 1.0, 2e-3);
        assert_close(conv != NULL ? conv->flops * per : 0.0, cases[i].conv, 1e-3);
        mf_program_destroy(w.p);
    }
}

/* States between chunks: 32 and 48 KiB a token, for the pass alone; twice that where gradients of
 * them stand beside; saved is what the kernels keep. */
static void scan_states_live_for_one_pass(void **state) {
    (void)state;
    fixture w = lowered("qwen3.5-397b-a17b", 1, 1, 4096);
    const mf_block *b = layer_of(&w, MF_MIXER_GDN);
    const mf_op *back = find(b, MF_OP_SCAN_BWD, MF_PASS_B);
    assert_int_equal(tensor(b, "chunk_states")->bytes, 4096 * 32 * 1024);
    assert_int_equal(b->tensors[back->out[back->nout - 1]].bytes, 2 * 4096 * 32 * 1024);
    assert_int_equal(tensor(b, "chunk_states")->class, MF_TENSOR_LOCAL);
    assert_int_equal(tensor(b, "chunk_matrices")->class, MF_TENSOR_SAVED);
    assert_int_equal(tensor(b, "chunk_matrices")->bytes, 4096 * 64 * 64 * 2);
    assert_int_equal(tensor(b, "decays")->bytes, 4096 * 2 * 64 * 4);
    mf_program_destroy(w.p);
    w = lowered("kimi-k3", 1, 1, 4096);
    b = layer_of(&w, MF_MIXER_KDA);
    assert_int_equal(tensor(b, "chunk_states")->bytes, 4096 * 48 * 1024);
    assert_int_equal(tensor(b, "decays")->bytes, 4096 * (96 * 128 + 96) * 4);
    mf_program_destroy(w.p);
}

static void ranks_share_a_scan_by_heads(void **state) {
    (void)state;
    fixture one = lowered("qwen3-next-80b-a3b", 1, 1, 8192),
            four = lowered("qwen3-next-80b-a3b", 2, 2, 8192);
    const mf_block *whole = layer_of(&one, MF_MIXER_GDN), *part = layer_of(&four, MF_MIXER_GDN);
    const mf_op *all = find(whole, MF_OP_SCAN_FWD, MF_PASS_F);
    const mf_op *own = find(part, MF_OP_SCAN_FWD, MF_PASS_F);
    assert_close(own->flops * 4.0, all->flops, 1.0);
    assert_int_equal(own->dim[MF_OP_DIM_ROWS], 8192); /* whole sequences */
    assert_int_equal(own->dim[MF_OP_DIM_SCAN_VALUE_HEADS] * 4,
                     all->dim[MF_OP_DIM_SCAN_VALUE_HEADS]);
    const mf_op *exchange = find(part, MF_OP_ALL_TO_ALL, MF_PASS_F);
    assert_non_null(exchange);
    assert_int_equal(exchange->group, MF_GROUP_CP);
    assert_null(find(whole, MF_OP_ALL_TO_ALL, MF_PASS_F));
    mf_program_destroy(one.p);
    mf_program_destroy(four.p);
}

static void layouts_that_mixers_cannot_take_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t tp, cp;
        const char *text;
    } cases[] = {
        {"qwen3-next-80b-a3b", 16, 2, "does not divide the 16 key heads"},
        {"kimi-linear-48b-a3b", 1, 2, "delta attention with decays by channel"},
        {"granite-4.0-h-small", 2, 1, "does not divide the 1 key heads (groups)"},
        {"deepseek-v4-flash", 16, 1, "does not divide the 64 query heads in 8 output groups"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture w;
        mf_err e;
        assert_int_equal(open_fixture(&w, cases[i].name, cases[i].tp, cases[i].cp, 8192, &e),
                         MF_LAYOUT);
        assert_non_null(strstr(e.text, cases[i].text));
    }
    mf_model m;
    mf_layout l;
    mf_err e;
    assert_ok(mf_model_load("deepseek-v3.2", &m, &e));
    mf_layout_init(&l);
    l.gpus = l.cp = 2;
    l.gbs = 1;
    l.seq = 8192;
    assert_int_equal(mf_layout_resolve(&l, &m, &e), MF_LAYOUT); /* a ring */
    assert_non_null(strstr(e.text, "--cp-type allgather"));
}

/* GLM-5: 64 heads over latents of 512 and 64 columns; 32 index heads of 128 on every pair. */
static void chosen_keys_cost_what_is_chosen_and_the_indexer_everything(void **state) {
    (void)state;
    for (int64_t s = 2048; s <= 131072; s *= 8) {
        fixture w = lowered("glm-5", 1, 1, s);
        const mf_block *b = layer_of(&w, MF_MIXER_ATTENTION);
        const mf_op *core = find(b, MF_OP_ATTENTION_FWD, MF_PASS_F);
        const mf_op *index = find(b, MF_OP_INDEX_FWD, MF_PASS_F);
        const mf_op *learns = find(b, MF_OP_INDEX_BWD, MF_PASS_B);
        double n = (double)s, k = 2048.0, pairs = n * (n + 1.0) / 2.0;
        double chosen = s > 2048 ? n * (k - k * (k - 1.0) / (2.0 * n)) : pairs;
        double pair = s > 2048 ? 2.0 * 64.0 * 1088.0 : 2.0 * 64.0 * 512.0;
        assert_close(core->flops / (chosen * pair), 1.0, 1e-9);
        assert_close(index->flops / (pairs * 2.0 * 32.0 * 129.0), 1.0, 1e-9);
        double own = chosen * (2.0 * 2.0 * 32.0 * 129.0 + 2.0 * 64.0 * 576.0);
        assert_close(learns->flops / own, 1.0, 1e-9);
        mf_program_destroy(w.p);
    }
    fixture w = lowered("glm-5.2", 1, 1, 8192); /* 21 of 78 layers hold an indexer */
    int holds = 0, attends = 0;
    for (int64_t i = 0; i < w.m.layers; i++) {
        const mf_block *b = w.p->blocks[w.p->block_of[1 + i]];
        const mf_op *core = find(b, MF_OP_ATTENTION_FWD, MF_PASS_F);
        holds += find(b, MF_OP_INDEX_FWD, MF_PASS_F) != NULL;
        attends += core->flags & MF_OPF_SPARSE ? 1 : 0;
    }
    assert_int_equal(holds, 21);
    assert_int_equal(attends, 78);
    mf_program_destroy(w.p);
}

/* Nothing flows from the indexer into the layer: its products have no gradient of their input. */
static void an_indexer_is_detached(void **state) {
    (void)state;
    fixture w = lowered("deepseek-v3.2", 1, 1, 8192);
    const mf_block *b = layer_of(&w, MF_MIXER_ATTENTION);
    int products = 0;
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        bool of_index = op->kind == MF_OP_GEMM && strncmp(op->name, "index_", 6) == 0;
        products += of_index && op->pass == MF_PASS_W;
        assert_false(of_index && op->pass == MF_PASS_B);
    }
    assert_int_equal(products, 3);
    mf_program_destroy(w.p);
}

/* Nemotron 3 Ultra: rows of 2048 travel to its experts in place of 8192. */
static void experts_in_a_latent_space_get_narrow_rows(void **state) {
    (void)state;
    fixture w = lowered("nemotron-3-ultra", 1, 1, 4096);
    const mf_block *b = layer_of(&w, MF_MIXER_NONE);
    assert_int_equal(find(b, MF_OP_PERMUTE, MF_PASS_F)->dim[MF_OP_DIM_COLS], 2048);
    assert_int_equal(find(b, MF_OP_GROUPED_GEMM, MF_PASS_F)->dim[MF_OP_DIM_K], 2048);
    assert_non_null(find(b, MF_OP_RELU2_FWD, MF_PASS_F));
    assert_null(find(b, MF_OP_SWIGLU_FWD, MF_PASS_F));
    mf_program_destroy(w.p);
}

/* The block of the first layer whose keys are compressed so. */
static const mf_block *compressed_by(const fixture *w, int64_t ratio) {
    for (int64_t i = 0; i < w->m.layers; i++) {
        if (w->m.layer_classes[w->m.layer_class[i]].compress == ratio) {
            return w->p->blocks[w->p->block_of[1 + i]];
        }
    }
    fail_msg("%s: no layer of ratio %lld", w->m.name, (long long)ratio);
    return NULL;
}

/* DeepSeek-V4-Flash at 8,192 tokens, by hand. MFLOP a token of projections: 2 (4096 x 1024 + 1024 x
 * 32768 + 4096 x 512 + 32768 x 1024 + 8192 x 4096); a compressor at 128: 2 x 2 x 4096 x 512; at 4:
 * twice that, an indexer of 1024 x 8192 + 4096 x 64 and its compressor 4 x 4096 x 128. Pairs: a
 * window of 128, and compressed keys up to the query, at 4 no more than 512 of them. */
static void compressed_keys_cost_what_is_seen(void **state) {
    (void)state;
    static const struct {
        int64_t ratio;
        double products, pairs;
    } cases[] = {
        {0, 213.909504, 1040448.0},
        {128, 222.298112, 1040448.0 + 258112.0},
        {4, 252.182528, 1040448.0 + 3669504.0},
    };
    fixture w = lowered("deepseek-v4-flash", 1, 1, 8192);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const mf_block *b = compressed_by(&w, cases[i].ratio);
        const mf_op *core = find(b, MF_OP_ATTENTION_FWD, MF_PASS_F);
        assert_close(projections(b) / 8192e6 / cases[i].products, 1.0, 1e-9);
        assert_close(core->flops / (cases[i].pairs * 2.0 * 64.0 * 1024.0), 1.0, 1e-9);
        assert_close(find(b, MF_OP_ATTENTION_BWD, MF_PASS_B)->flops / core->flops, 2.5, 1e-9);
        assert_int_equal(core->in[1], core->in[2]);
        assert_int_equal(find(b, MF_OP_ATTENTION_BWD, MF_PASS_B)->nout, 3); /* dq dk dsinks */
        assert_true((find(b, MF_OP_INDEX_FWD, MF_PASS_F) != NULL) == (cases[i].ratio == 4));
        assert_true((find(b, MF_OP_COMPRESS_BWD, MF_PASS_B) != NULL) == (cases[i].ratio > 0));
    }
    /* Every compressed key is scored; the loss of 3,669,504 chosen pairs is the indexer's own. */
    const mf_block *b = compressed_by(&w, 4);
    const mf_op *index = find(b, MF_OP_INDEX_FWD, MF_PASS_F);
    const mf_op *learns = find(b, MF_OP_INDEX_BWD, MF_PASS_B);
    assert_close(index->flops / (8192.0 * 2048.0 * 2.0 * 64.0 * 129.0), 1.0, 1e-9);
    double own = 3669504.0 * (2.0 * 2.0 * 64.0 * 129.0 + 2.0 * 64.0 * 512.0);
    assert_close(learns->flops / own, 1.0, 1e-9);
    mf_program_destroy(w.p);
    w = lowered("deepseek-v4-flash", 2, 4, 8192); /* heads over TP, queries over CP */
    const mf_op *part = find(compressed_by(&w, 4), MF_OP_ATTENTION_FWD, MF_PASS_F);
    assert_close(part->flops * 8.0 / (cases[2].pairs * 2.0 * 64.0 * 1024.0), 1.0, 1e-9);
    assert_int_equal(part->dim[MF_OP_DIM_SEQ_K], 8192 + 2048);
    mf_program_destroy(w.p);
}

/* A table of 129,280 tokens and 6 experts, in three of 43 layers and none of the MTP block: the
 * router's products and their gradients are those of other layers, each token reads its own number
 * and its row of the table, no bias is balanced, and the tables stand in memory. */
static void a_table_chooses_experts_by_token(void **state) {
    (void)state;
    fixture w = lowered("deepseek-v4-flash", 1, 1, 4096);
    const mf_block *by_table = w.p->blocks[w.p->block_of[1]];
    const mf_block *by_score = w.p->blocks[w.p->block_of[4]];
    const mf_block *both[] = {by_table, by_score};
    double flops[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < both[k]->nops; i++) {
            const mf_op *op = &both[k]->ops[i];
            flops[k] += op->kind == MF_OP_GEMM && strcmp(op->name, "router") == 0 ? op->flops : 0;
        }
        assert_non_null(find(both[k], MF_OP_ROUTER_BWD, MF_PASS_B));
    }
    assert_close(flops[0] / (3.0 * 2.0 * 4096.0 * 4096.0 * 256.0), 1.0, 1e-9);
    assert_close(flops[0] / flops[1], 1.0, 1e-9);
    const mf_op *table = find(by_table, MF_OP_ROUTER_FWD, MF_PASS_F);
    const mf_op *score = find(by_score, MF_OP_ROUTER_FWD, MF_PASS_F);
    assert_string_equal(table->name, "router_table");
    assert_close(table->bytes - score->bytes, 4096.0 * 4.0 * (1.0 + 6.0), 0.5);
    mf_step_end end;
    mf_program_step_end(w.p, 0, &end);
    assert_close(end.expert_counts, (43.0 - 3.0 + 1.0) * 256.0, 0.5);
    mf_inputs with, without;
    mf_memory_inputs(&w.m, &w.l, &with);
    for (int i = 0; i < w.m.classes; i++) {
        w.m.layer_classes[i].hashed = false;
    }
    mf_memory_inputs(&w.m, &w.l, &without);
    assert_int_equal(with.size_B - without.size_B, 3 * 129280 * 6 * 4);
    mf_program_destroy(w.p);
}

/* Four copies of a row of 4,096: what is read is one, what is written all, twice a layer; they all
 * travel between stages. */
static void copies_of_the_residual_travel(void **state) {
    (void)state;
    fixture w = lowered("deepseek-v4-flash", 1, 1, 4096);
    const mf_block *b = compressed_by(&w, 0);
    int reads = 0, writes = 0;
    for (int i = 0; i < b->nforward; i++) {
        const mf_op *op = &b->ops[i];
        if (op->kind == MF_OP_HYPER_READ_FWD) {
            assert_close(op->bytes / (4096.0 * (5.0 * 8192.0 + 8.0 * 24.0)), 1.0, 1e-9);
            reads++;
        } else if (op->kind == MF_OP_HYPER_WRITE_FWD) {
            assert_close(op->bytes / (4096.0 * (9.0 * 8192.0 + 4.0 * 20.0)), 1.0, 1e-9);
            writes++;
        }
    }
    assert_true(reads == 2);
    assert_true(writes == 2);
    assert_int_equal(b->boundary_B, 4096 * 4 * 4096 * 2);
    const mf_block *begin = w.p->blocks[w.p->block_of[0]];
    const mf_block *end = w.p->blocks[w.p->block_of[w.p->assignment.positions - 1]];
    assert_non_null(find(begin, MF_OP_HYPER_WRITE_FWD, MF_PASS_F));
    assert_non_null(find(end, MF_OP_HYPER_READ_BWD, MF_PASS_B));
    mf_layout l = w.l;
    l.pp = 2;
    l.gpus = 2;
    assert_ok(mf_layout_resolve(&l, &w.m, NULL));
    assert_close(mf_pipeline_send(&w.m, &l, "send").bytes, 4096.0 * 4.0 * 8192.0, 0.5);
    mf_program_destroy(w.p);
}

static mf_op by_hand(const char *text) {
    mf_cluster c;
    mf_point p;
    mf_op op;
    mf_err e;
    assert_ok(mf_cluster_load("h200", &c, &e));
    if (mf_point_parse(text, &p, &e) != MF_OK || mf_cost_point_op(&p, &c, &op, &e) != MF_OK) {
        fail_msg("%s: %s", text, e.text);
    }
    return op;
}

/* What `price` makes of a shape given by hand is what lowering makes of the model that has it. */
static void shapes_by_hand_are_those_of_models(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mf_mixer_kind mixer;
        mf_op_kind kind;
        const char *point;
    } cases[] = {
        {"qwen3.5-397b-a17b", MF_MIXER_GDN, MF_OP_SCAN_FWD,
         "scan rule=gdn s=4096 hk=16 dk=128 hv=64 dv=128"},
        {"qwen3.5-397b-a17b", MF_MIXER_GDN, MF_OP_SCAN_BWD,
         "scan rule=gdn pass=bwd s=4096 hk=16 dk=128 hv=64 dv=128"},
        {"kimi-k3", MF_MIXER_KDA, MF_OP_SCAN_FWD, "scan rule=kda s=4096 hk=96 dk=128"},
        {"nemotron-3-ultra", MF_MIXER_MAMBA2, MF_OP_SCAN_BWD,
         "scan rule=mamba2 pass=bwd s=4096 hk=8 dk=128 hv=256 dv=64 chunk=128"},
        {"minimax-text-01", MF_MIXER_LIGHTNING, MF_OP_SCAN_FWD,
         "scan rule=lightning s=4096 hk=64 dk=128 chunk=256"},
        {"qwen3.5-397b-a17b", MF_MIXER_GDN, MF_OP_CONV_FWD, "conv s=4096 channels=12288"},
        {"qwen3.5-397b-a17b", MF_MIXER_GDN, MF_OP_CONV_BWD, "conv pass=bwd s=4096 channels=12288"},
        {"deepseek-v3.2", MF_MIXER_ATTENTION, MF_OP_INDEX_FWD, "index s=4096 h=64 d=128 topk=2048"},
        {"deepseek-v3.2", MF_MIXER_ATTENTION, MF_OP_INDEX_BWD,
         "index pass=bwd s=4096 h=64 d=128 topk=2048 teacher=73728"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture w = lowered(cases[i].name, 1, 1, 4096);
        const mf_op *op =
            find(layer_of(&w, cases[i].mixer), cases[i].kind, MF_PASS_F | MF_PASS_BACKWARD);
        const mf_op hand = by_hand(cases[i].point);
        bool conv = cases[i].kind == MF_OP_CONV_FWD || cases[i].kind == MF_OP_CONV_BWD;
        assert_int_equal(hand.kind, cases[i].kind);
        assert_close(hand.bytes / op->bytes, 1.0, 1e-9);
        assert_close(conv ? 1.0 : hand.flops / op->flops, 1.0, 1e-9);
        for (int d = 0; d < MF_OP_DIMS; d++) {
            assert_int_equal(hand.dim[d], op->dim[d]);
        }
        mf_program_destroy(w.p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixers_take_the_flops_of_their_formulas),
        cmocka_unit_test(scan_states_live_for_one_pass),
        cmocka_unit_test(ranks_share_a_scan_by_heads),
        cmocka_unit_test(layouts_that_mixers_cannot_take_are_refused),
        cmocka_unit_test(chosen_keys_cost_what_is_chosen_and_the_indexer_everything),
        cmocka_unit_test(an_indexer_is_detached),
        cmocka_unit_test(compressed_keys_cost_what_is_seen),
        cmocka_unit_test(a_table_chooses_experts_by_token),
        cmocka_unit_test(copies_of_the_residual_travel),
        cmocka_unit_test(experts_in_a_latent_space_get_narrow_rows),
        cmocka_unit_test(shapes_by_hand_are_those_of_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
