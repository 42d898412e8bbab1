/* lower_context.c - core attention over a context-parallel group: rings, gathers, all-to-all. */
#include "core/program/lower_attention.h"

#include "core/base/scratch.h"

#include <math.h>
#include <string.h>

/* One attention call over seq_q x seq_k positions with so many (query, key) pairs a head. */
static mf_op *core_attention(mf_build *bd, const mf_lower_heads *a, int64_t heads, int64_t kv_heads,
                             int64_t seq_q, int64_t seq_k, double pairs, const int16_t in[3],
                             int16_t sinks, int16_t out, int16_t lse) {
    double batch = (double)bd->l->mbs;
    mf_op *op = mf_build_op(bd, MF_OP_ATTENTION_FWD, "core_attention", MF_STREAM_COMPUTE);
    op->dim[MF_OP_DIM_BATCH] = bd->l->mbs;
    op->dim[MF_OP_DIM_HEADS] = heads;
    op->dim[MF_OP_DIM_KV_HEADS] = kv_heads;
    op->dim[MF_OP_DIM_SEQ_Q] = seq_q;
    op->dim[MF_OP_DIM_SEQ_K] = seq_k;
    op->dim[MF_OP_DIM_D_QK] = a->d_qk;
    op->dim[MF_OP_DIM_D_V] = a->d_v;
    op->dim[MF_OP_DIM_WINDOW] = a->window;
    op->alpha = (float)a->scale;
    op->flags |= MF_OPF_CAUSAL;
    op->flags |= a->chunked ? MF_OPF_CHUNKED : 0;
    op->flags |= a->sparse ? MF_OPF_SPARSE : 0;
    if (bd->l->fp8_attention) {
        op->math = MF_MATH_FP8;
    }
    op->flops = 2.0 * pairs * (double)heads * (double)(a->d_qk + a->d_v);
    op->bytes = bd->act_B * batch *
                ((double)seq_q * (double)heads * (double)(a->d_qk + a->d_v) +
                 (double)seq_k * (double)kv_heads * (double)(a->d_qk + a->d_v));
    for (int i = 0; i < 3; i++) {
        mf_op_in(op, in[i]);
    }
    mf_op_in(op, sinks);
    mf_op_out(op, out);
    mf_op_out(op, lse);
    mf_build_last(bd)->final_out = out;
    mf_build_last(bd)->final_lse = lse;
    return op;
}

static int16_t attention_output(mf_build *bd, const char *name, int64_t rows, int64_t cols) {
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_CORE_ATTN;
    int16_t o = mf_build_tensor(bd, name, rows, cols, bd->act_B);
    bd->drop = outer;
    mf_build_t(bd, o)->offload = MF_OFFLOAD_ATTN_OUT;
    return o;
}

/* Softmax statistics: saved and dropped together with the output. */
static int16_t attention_lse(mf_build *bd, int64_t rows, int64_t heads) {
    uint16_t outer = bd->drop;
    bd->drop |= MF_RECOMPUTE_CORE_ATTN;
    int16_t lse = mf_build_tensor(bd, "lse", rows, heads, 4.0);
    bd->drop = outer;
    return lse;
}

/* A tensor on its way through the CP group. */
typedef struct travel {
    mf_op_kind kind;
    const char *name;
    mf_group_shape shape;
    double bytes; /* of the whole tensor */
    int16_t from, to;
} travel;

/* A received tensor is a copy that lives until the attention call and is fetched again for
 * gradients. */
static travel travel_of(mf_build *bd, mf_op_kind kind, const char *name, mf_group_shape shape,
                        double bytes, int16_t x, int64_t rows, int64_t cols) {
    int16_t y = mf_build_tensor(bd, name, rows, cols, bd->act_B);
    mf_build_t(bd, y)->drop |= MF_DROP_ALWAYS;
    return (travel){kind, name, shape, bytes, x, y};
}

static void send(mf_build *bd, const travel *x, int64_t piece, int64_t pieces) {
    mf_op *op = mf_build_collective(bd, x->kind, x->name, MF_STREAM_CP, MF_GROUP_CP,
                                    x->bytes / (double)pieces);
    op->shape = x->shape;
    op->dim[MF_OP_DIM_PLACES] = x->kind == MF_OP_SEND_RECV ? 1 : 0;
    mf_op_piece(op, piece, pieces);
    mf_op_in(op, x->from);
    mf_op_out(op, x->to);
}

static int16_t to_neighbour(mf_build *bd, const char *name, mf_group_shape shape, int16_t x) {
    const mf_tensor from = *mf_build_t(bd, x);
    const travel way = travel_of(bd, MF_OP_SEND_RECV, name, shape, mf_tensor_balanced_B(&from), x,
                                 from.rows, from.cols);
    send(bd, &way, 0, 1);
    return way.to;
}

/* Ring over `steps` members: K and V travel while attention works on those of the step before. */
static int16_t ring(mf_build *bd, const mf_lower_heads *a, int64_t heads, int64_t kv_heads,
                    int64_t seq_local, double pairs, mf_group_shape shape, int16_t q, int16_t k,
                    int16_t v) {
    int64_t rows = seq_local * bd->l->mbs;
    int16_t out = attention_output(bd, "attention_out", rows, heads * a->d_v);
    int16_t lse = attention_lse(bd, rows, heads);
    double out_B = (double)rows * (double)(heads * a->d_v) * bd->act_B;
    for (int64_t step = 0; step < shape.size; step++) {
        int16_t next_k = MF_NO_TENSOR, next_v = MF_NO_TENSOR;
        if (step + 1 < shape.size) { /* issued first, so that it runs beside this step */
            next_k = to_neighbour(bd, "cp_ring_k", shape, k);
            next_v = to_neighbour(bd, "cp_ring_v", shape, v);
        }
        bool only = shape.size == 1;
        int16_t o =
            only ? out : mf_build_tensor(bd, "attention_part", rows, heads * a->d_v, bd->act_B);
        int16_t s = only ? lse : mf_build_tensor(bd, "lse_part", rows, heads, 4.0);
        const int16_t in[3] = {q, k, v};
        mf_op *part =
            core_attention(bd, a, heads, kv_heads, seq_local, seq_local, pairs / (double)shape.size,
                           in, step == 0 ? a->sinks : MF_NO_TENSOR, o, s);
        mf_build_last(bd)->final_out = out;
        mf_build_last(bd)->final_lse = lse;
        if (!only) {
            part->flags |= step > 0 ? MF_OPF_ACC_FP32 : 0; /* its own keys: whole and causal */
            mf_build_t(bd, o)->drop |= MF_DROP_ALWAYS;
            mf_build_t(bd, s)->drop |= MF_DROP_ALWAYS;
            mf_op *op = mf_build_memory_op(bd, MF_OP_ATTENTION_MERGE, "attention_merge", rows,
                                           heads * a->d_v, (step == 0 ? 2.0 : 3.0) * out_B);
            mf_op_in(op, o);
            mf_op_in(op, s);
            mf_op_out(op, out);
            mf_op_out(op, lse);
        }
        k = next_k;
        v = next_v;
    }
    return out;
}

/* All-to-all that exchanges heads for sequence inside a group of `shape.size` members. */
static travel heads_for_sequence(mf_build *bd, const char *name, mf_group_shape shape, int16_t x,
                                 int64_t heads, int64_t d, bool back) {
    mf_tensor from = *mf_build_t(bd, x);
    int64_t n = shape.size;
    int64_t rows = back ? from.rows / n : from.rows * n;
    /* Fewer KV heads than members: each is sent to several. */
    int64_t local = back ? heads : heads >= n ? heads / n : 1;
    double bytes = (double)from.rows * (double)(heads >= n ? heads : n) * (double)d * bd->act_B;
    if (back) {
        bytes = mf_tensor_balanced_B(&from);
    }
    const travel way = travel_of(bd, MF_OP_ALL_TO_ALL, name, shape, bytes, x, rows, local * d);
    /* The inputs of core attention and of the output projection are saved rather than exchanged
     * again. */
    mf_tensor *t = mf_build_t(bd, way.to);
    t->drop = (uint16_t)((t->drop & ~MF_DROP_ALWAYS) |
                         (back ? MF_RECOMPUTE_CORE_ATTN : MF_RECOMPUTE_MLA_UP_PROJ));
    t->offload = back ? MF_OFFLOAD_ATTN_OUT : MF_OFFLOAD_QKV;
    return way;
}

/* Members of the CP group inside one NVLink domain. */
static int64_t cp_inside_domain(const mf_build *bd, const mf_lower_heads *a) {
    mf_group_shape cp = mf_layout_group(bd->l, MF_GROUP_CP);
    int64_t domain = bd->c->domain_gpus_used / cp.stride;
    int64_t inside = 1;
    while (inside * 2 <= cp.size && inside * 2 <= domain && cp.size % (inside * 2) == 0 &&
           a->heads % (inside * 2) == 0) {
        inside *= 2;
    }
    return inside;
}

/* Attention that may be split by heads, so that it overlaps its group's exchanges. */
typedef struct by_heads {
    int64_t heads, kv_heads; /* of this rank then */
    int64_t seq_q, seq_k;
    double pairs;
    mf_group_shape shape;
    double q_B, kv_B; /* of queries and outputs, of keys and values that travel */
} by_heads;

/* At the end of a kernel, whose thread blocks have TILE queries each, multiprocessors are idle: as
 * if TAIL blocks more ran on each (measured on H200: 1.5 forward, less backward; ATTENTION_SHARE is
 * the fraction of the peak that full ones reach). Of a message beside compute, HIDDEN is gained:
 * compute is slower meanwhile, and backward passes compute more per message. */
#define TILE 128
#define TAIL 1.0
#define ATTENTION_SHARE 0.6
#define HIDDEN 0.6

/* Pieces have KV heads of their own, or several have one together, and then keys are not split. */
static bool can_split(const by_heads *x, int64_t pieces) {
    bool shared = x->q_B > 0 && x->heads % pieces == 0 && pieces % x->kv_heads == 0;
    return x->kv_heads % pieces == 0 || shared;
}

/* The number of pieces: the largest for which the overlap gains more than the kernels' tails
 * lose. */
static int64_t pieces_of(const mf_build *bd, const mf_lower_heads *a, const by_heads *x) {
    const mf_cluster *c = bd->c;
    bool near = x->shape.size * x->shape.stride <= c->domain_gpus_used;
    double flops = 2.0 * x->pairs * (double)x->heads * (double)(a->d_qk + a->d_v);
    double compute_s = flops / (ATTENTION_SHARE * c->gpu.peak_flops[MF_MATH_BF16]);
    const int64_t blocks = (x->seq_q + TILE - 1) / TILE;
    double tiles = (double)(bd->l->mbs * x->heads * blocks);
    double tail_s = TAIL * compute_s * (double)(c->gpu.sms - 1) / tiles, most_s = 0.0;
    int64_t best = 1;
    for (int64_t n = 2; (bd->l->overlap & MF_OVERLAP_CP) && n <= MF_MOST_PIECES; n++) {
        if (!can_split(x, n)) {
            continue;
        }
        double split_B = x->q_B + (x->kv_heads % n == 0 ? x->kv_B : 0.0);
        double travel_s = split_B / (near ? c->scaleup_Bps : c->nic_Bps);
        double beside_s = fmin(compute_s, travel_s) * (double)(n - 1) / (double)n;
        double gain_s = HIDDEN * beside_s - tail_s * (double)(n - 1);
        if (gain_s > most_s) {
            most_s = gain_s;
            best = n;
        }
    }
    return best;
}

/* Attention of the heads of one piece. */
static void attention_piece(mf_build *bd, const mf_lower_heads *a, const by_heads *x,
                            const int16_t in[3], int16_t out, int16_t lse, int64_t piece,
                            int64_t pieces) {
    int64_t kv_heads = x->kv_heads > pieces ? x->kv_heads / pieces : 1;
    mf_op *op = core_attention(bd, a, x->heads / pieces, kv_heads, x->seq_q, x->seq_k, x->pairs, in,
                               a->sinks, out, lse);
    mf_op_piece(op, piece, pieces);
}

/* Queries stay; keys and values of the whole samples are gathered. */
static int16_t gathered_keys(mf_build *bd, const mf_lower_heads *a, mf_group_shape cp, double pairs,
                             int16_t q, int16_t k, int16_t v) {
    int64_t rows = bd->l->seq * bd->l->mbs;
    int64_t k_cols = a->kv_heads * a->d_qk, v_cols = a->kv_heads * a->d_v;
    const travel way[2] = {
        travel_of(bd, MF_OP_ALL_GATHER, "cp_all_gather_k", cp,
                  (double)rows * (double)k_cols * bd->act_B, k, rows, k_cols),
        travel_of(bd, MF_OP_ALL_GATHER, "cp_all_gather_v", cp,
                  (double)rows * (double)v_cols * bd->act_B, v, rows, v_cols),
    };
    const by_heads x = {.heads = a->heads,
                        .kv_heads = a->kv_heads,
                        .seq_q = bd->l->seq / cp.size,
                        .seq_k = bd->l->seq,
                        .pairs = pairs,
                        .shape = cp,
                        .kv_B = way[0].bytes + way[1].bytes};
    const int64_t pieces = pieces_of(bd, a, &x);
    for (int64_t i = 0; i < pieces; i++) {
        send(bd, &way[0], i, pieces);
        send(bd, &way[1], i, pieces);
    }
    int16_t out = attention_output(bd, "attention_out", a->tokens, a->heads * a->d_v);
    int16_t lse = attention_lse(bd, a->tokens, a->heads);
    const int16_t in[3] = {q, way[0].to, way[1].to};
    for (int64_t i = 0; i < pieces; i++) {
        attention_piece(bd, a, &x, in, out, lse, i, pieces);
    }
    return out;
}

/* Exchanges heads for sequence among `near` members, then runs a ring over the `far` ones. The ring
 * overlaps compute in any case; without one, attention is split by heads to overlap the
 * exchanges. */
static int16_t exchanged_heads(mf_build *bd, const mf_lower_heads *a, mf_group_shape near,
                               mf_group_shape far, int64_t seq, double pairs, int16_t q, int16_t k,
                               int16_t v) {
    const travel way[3] = {
        heads_for_sequence(bd, "cp_all_to_all_q", near, q, a->heads, a->d_qk, false),
        heads_for_sequence(bd, "cp_all_to_all_k", near, k, a->kv_heads, a->d_qk, false),
        heads_for_sequence(bd, "cp_all_to_all_v", near, v, a->kv_heads, a->d_v, false),
    };
    const by_heads x = {.heads = a->heads / near.size,
                        .kv_heads = a->kv_heads >= near.size ? a->kv_heads / near.size : 1,
                        .seq_q = seq,
                        .seq_k = seq,
                        .pairs = pairs,
                        .shape = near,
                        .q_B = 2.0 * way[0].bytes,
                        .kv_B = way[1].bytes + way[2].bytes};
    const int64_t pieces = far.size == 1 ? pieces_of(bd, a, &x) : 1;
    const bool keys_too = x.kv_heads % pieces == 0;
    for (int t = 1; t < 3 && !keys_too; t++) {
        send(bd, &way[t], 0, 1);
    }
    for (int64_t i = 0; i < pieces; i++) { /* all are sent before the first comes back */
        for (int t = 0; t < (keys_too ? 3 : 1); t++) {
            send(bd, &way[t], i, pieces);
        }
    }
    const int16_t in[3] = {way[0].to, way[1].to, way[2].to};
    if (far.size > 1) {
        int16_t o = ring(bd, a, x.heads, x.kv_heads, seq, pairs, far, in[0], in[1], in[2]);
        const travel back =
            heads_for_sequence(bd, "cp_all_to_all_o", near, o, a->heads, a->d_v, true);
        send(bd, &back, 0, 1);
        return back.to;
    }
    int64_t rows = seq * bd->l->mbs;
    int16_t out = attention_output(bd, "attention_out", rows, x.heads * a->d_v);
    int16_t lse = attention_lse(bd, rows, x.heads);
    const travel back =
        heads_for_sequence(bd, "cp_all_to_all_o", near, out, a->heads, a->d_v, true);
    for (int64_t i = 0; i < pieces; i++) {
        attention_piece(bd, a, &x, in, out, lse, i, pieces);
        send(bd, &back, i, pieces);
    }
    return back.to;
}

int16_t mf_lower_context(mf_build *bd, const mf_lower_heads *a, int16_t q, int16_t k, int16_t v) {
    mf_group_shape cp = mf_layout_group(bd->l, MF_GROUP_CP);
    int64_t seq_local = bd->l->seq / cp.size;
    double pairs = a->pairs / (double)cp.size; /* zig-zag shards: the same for every rank */
    mf_group_shape none = {1, 1};
    if (cp.size == 1) {
        return ring(bd, a, a->heads, a->kv_heads, seq_local, pairs, none, q, k, v);
    }
    switch (bd->l->cp_type) {
    case MF_CP_RING:
        return ring(bd, a, a->heads, a->kv_heads, seq_local, pairs, cp, q, k, v);
    case MF_CP_ALLGATHER:
        return gathered_keys(bd, a, cp, pairs, q, k, v);
    case MF_CP_ALLTOALL:
    case MF_CP_HIERARCHICAL: {
        int64_t inside = bd->l->cp_type == MF_CP_ALLTOALL ? cp.size : cp_inside_domain(bd, a);
        mf_group_shape near = {inside, cp.stride};
        mf_group_shape far = {cp.size / inside, cp.stride * inside};
        return inside == 1 ? ring(bd, a, a->heads, a->kv_heads, seq_local, pairs, far, q, k, v)
                           : exchanged_heads(bd, a, near, far, seq_local * inside,
                                             pairs * (double)inside, q, k, v);
    }
    case MF_CP_COUNT:
        break;
    }
    return q;
}

int16_t mf_lower_shared_keys(mf_build *bd, const mf_lower_heads *a, int16_t q, int16_t keys) {
    int64_t cp = mf_layout_group(bd->l, MF_GROUP_CP).size;
    int16_t out = attention_output(bd, "attention_out", a->tokens, a->heads * a->d_v);
    int16_t lse = attention_lse(bd, a->tokens, a->heads);
    int64_t rows = mf_build_t(bd, keys)->rows / bd->l->mbs;
    const int16_t in[3] = {q, keys, keys};
    mf_op *op = core_attention(bd, a, a->heads, 1, bd->l->seq / cp, rows, a->pairs / (double)cp, in,
                               a->sinks, out, lse);
    op->bytes -= bd->act_B * (double)mf_build_t(bd, keys)->rows * (double)a->d_v; /* one load */
    return out;
}

/* --- rings hold two steps ------------------------------------------------------------------------
 */

/* By tensor: the last op so far of CP's stream that wrote it, and the last of compute that read it;
 * -1. */
typedef struct last_uses {
    int *written, *read;
} last_uses;

static void note_uses(last_uses *last, const mf_op *op, int i) {
    for (int k = 0; op->stream == MF_STREAM_CP && k < op->nout; k++) {
        last->written[op->out[k]] = i;
    }
    for (int k = 0; op->stream == MF_STREAM_COMPUTE && k < op->nin; k++) {
        last->read[op->in[k]] = i;
    }
}

/* Lets the message of op i wait for the attention of the step before its own. */
static void pace_message(mf_build *bd, const last_uses *last, int i) {
    mf_block *b = bd->b;
    mf_op *op = &b->ops[i];
    const int first = op->pass == MF_PASS_F ? 0 : b->nforward;
    const int came = last->written[op->in[0]];
    const int16_t held = came >= first ? b->ops[came].in[0] : MF_NO_TENSOR;
    const bool local = held != MF_NO_TENSOR && b->tensors[held].class == MF_TENSOR_LOCAL;
    if (local && last->read[held] >= first) {
        /* statistics are small; dq is there until the last step */
        const mf_op *read = &b->ops[last->read[held]];
        mf_op_in(op, read->out[read->kind == MF_OP_ATTENTION_FWD ? read->nout - 1 : 0]);
        op->marks++;
    }
}

/* Keys and values of two steps of a ring are in memory at a time: those that attention reads and
 * those that arrive. So a message waits for the attention of the step before its own, whose keys it
 * may overwrite. That costs no time: attention of one step ends before the message beside it does,
 * or the next message is not what the ring waits for. */
void mf_lower_pace_rings(mf_build *bd) {
    mf_block *b = bd->b;
    const size_t tensors = (size_t)b->ntensors;
    last_uses last = {mf_scratch_take((2 * tensors + 1) * sizeof *last.written), NULL};
    if (last.written == NULL) {
        bd->status = MF_NOMEM;
        return;
    }
    memset(last.written, 0xff, 2 * tensors * sizeof *last.written);
    last.read = last.written + tensors;
    for (int i = 0; i < b->nops && bd->status == MF_OK; i++) {
        if (b->ops[i].kind == MF_OP_SEND_RECV && b->ops[i].stream == MF_STREAM_CP) {
            pace_message(bd, &last, i);
        }
        note_uses(&last, &b->ops[i], i);
    }
    mf_scratch_give(last.written);
}
