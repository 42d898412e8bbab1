/* lower_mixer.c - forward pass of mixers that keep a state of fixed size: gated delta nets, Kimi's
 * delta attention, Mamba-2, lightning attention.
 *
 * All are alike: a projection; a short causal convolution of every channel (not lightning); decays
 * (and, of delta rules, steps) from a few channels of their own; a scan that takes `chunk`
 * positions together, by products inside a chunk and a state between chunks; a norm of its output
 * times a gate; a projection back. TP has heads of its own; CP trades heads for sequence, as
 * DeepSpeed-Ulysses does for attention and Megatron-LM for these (core/ssm), so that a rank scans
 * whole sequences.
 *
 * Sources: Yang et al. 2024 (gated delta networks, arXiv:2412.06464) and Kimi Linear
 * (arXiv:2510.26692) for the delta rules, Dao & Gu 2024 (SSD, arXiv:2405.21060) for Mamba-2,
 * MiniMax-01 (arXiv:2501.08313) for lightning attention; which products a chunk takes as the public
 * kernels do it (flash-linear-attention: ops/gated_delta_rule, ops/kda, ops/lightning_attn).
 */
#include "core/program/lower_attention.h"
#include "core/program/mixer_costs.h"

/* Widths on this rank: before the exchange over CP, and (divided by `cp`) inside it. */
typedef struct mixer {
    const mf_mixer_shape *x;
    mf_mixer_kind kind;
    int64_t cp;                     /* ranks that trade heads for sequence */
    int64_t keys, values;           /* columns of all keys (or state matrices), of all values */
    int64_t key_heads, value_heads; /* of this TP rank */
    int64_t rows;                   /* inside the exchange */
} mixer;

static mixer mixer_of(const mf_build *bd) {
    const mf_mixer_shape *x = &bd->m->mixer;
    const mf_layer_class *c = &bd->m->layer_classes[bd->key.layer_class];
    int64_t tp = bd->l->tp, cp = mf_layout_group(bd->l, MF_GROUP_CP).size;
    mixer s = {.x = x,
               .kind = c->mixer,
               .cp = cp,
               .key_heads = x->key_heads / tp,
               .value_heads = x->value_heads / tp,
               .rows = bd->tokens_attn * cp};
    s.keys = s.key_heads * x->key_dim;
    s.values = s.value_heads * x->value_dim;
    return s;
}

/* Channels that are convolved (all that the scan reads), and those of decays and steps. */
static int64_t scanned_cols(const mixer *s) {
    return 2 * s->keys + s->values;
}

static mf_scan_shape scan_shape(const mixer *s) {
    return (mf_scan_shape){
        s->kind,         s->rows,    s->key_heads / s->cp, s->x->key_dim, s->value_heads / s->cp,
        s->x->value_dim, s->x->chunk};
}

static int64_t decay_cols(const mixer *s) {
    const mf_scan_shape shape = scan_shape(s);
    return mf_scan_decays(&shape) * s->cp;
}

static int16_t tensor(mf_build *bd, const char *name, int64_t rows, int64_t cols, double element_B,
                      uint16_t drop) {
    uint16_t outer = bd->drop;
    bd->drop |= drop;
    int16_t t = mf_build_tensor(bd, name, rows, cols, element_B);
    bd->drop = outer;
    return t;
}

/* Exchanges heads for sequence over the CP group; `back`: from few heads of all positions. */
static int16_t exchange(mf_build *bd, const mixer *s, const char *name, int16_t x, bool back) {
    if (s->cp == 1) {
        return x;
    }
    const mf_tensor from = *mf_build_t(bd, x);
    int64_t rows = back ? from.rows / s->cp : from.rows * s->cp;
    int64_t cols = back ? from.cols * s->cp : from.cols / s->cp;
    int16_t y = tensor(bd, name, rows, cols, bd->act_B, back ? MF_RECOMPUTE_CORE_ATTN : 0);
    mf_op *op = mf_build_collective(bd, MF_OP_ALL_TO_ALL, name, MF_STREAM_CP, MF_GROUP_CP,
                                    (double)from.rows * (double)from.cols * bd->act_B);
    mf_op_in(op, x);
    mf_op_out(op, y);
    return y;
}

static void apart(mf_build *bd, int16_t joined, const int16_t *part, int count) {
    const mf_tensor from = *mf_build_t(bd, joined);
    mf_op *op = mf_build_memory_op(bd, MF_OP_SPLIT, "mixer_split", from.rows, from.cols,
                                   2.0 * (double)from.rows * (double)from.cols * bd->act_B);
    mf_op_in(op, joined);
    for (int i = 0; i < count; i++) {
        mf_op_out(op, part[i]);
    }
}

/* y = silu(convolution of the last `conv` positions, channel by channel). */
static int16_t short_conv(mf_build *bd, const mixer *s, int16_t x) {
    int64_t cols = scanned_cols(s), local = cols / s->cp;
    int16_t w = mf_build_weight(bd, "conv", MF_PART_MIXER, cols * s->x->conv, 1);
    int16_t bias =
        s->x->conv_bias ? mf_build_weight(bd, "conv_bias", MF_PART_MIXER, cols, 1) : MF_NO_TENSOR;
    int16_t y = tensor(bd, "conv", s->rows, local, bd->act_B, MF_RECOMPUTE_CORE_ATTN);
    mf_op *op = mf_build_memory_op(bd, MF_OP_CONV_FWD, "short_conv", s->rows, local,
                                   2.0 * (double)s->rows * (double)local * bd->act_B);
    op->dim[MF_OP_DIM_TAPS] = s->x->conv;
    op->flops = 2.0 * (double)s->rows * (double)local * (double)s->x->conv;
    mf_op_in(op, x);
    mf_op_in(op, w);
    mf_op_in(op, bias);
    mf_op_out(op, y);
    return y;
}

/* Decays (softplus, times -exp(A_log)) and steps (sigmoid) in float. */
static int16_t decays(mf_build *bd, const mixer *s, int16_t raw) {
    int64_t cols = decay_cols(s), local = cols / s->cp;
    int64_t biases = s->kind == MF_MIXER_KDA ? s->keys : s->value_heads;
    int16_t a_log = mf_build_weight(bd, "A_log", MF_PART_MIXER, s->value_heads, 1);
    int16_t dt_bias = mf_build_weight(bd, "dt_bias", MF_PART_MIXER, biases, 1);
    int16_t y = tensor(bd, "decays", s->rows, local, 4.0, MF_RECOMPUTE_CORE_ATTN);
    mf_op *op = mf_build_memory_op(bd, MF_OP_DECAY_FWD, "decay", s->rows, local,
                                   (double)s->rows * (double)local * (bd->act_B + 4.0));
    mf_op_in(op, raw);
    mf_op_in(op, a_log);
    mf_op_in(op, dt_bias);
    mf_op_out(op, y);
    return y;
}

/* States between chunks, which a pass writes and reads, and which are computed again for gradients:
 * rows of one head's [dk, dv] for each chunk. */
static int16_t chunk_states(mf_build *bd, const mixer *s) {
    int64_t chunks = (s->rows + s->x->chunk - 1) / s->x->chunk;
    int16_t t = tensor(bd, "chunk_states", chunks * (s->value_heads / s->cp),
                       s->x->key_dim * s->x->value_dim, bd->act_B, MF_DROP_ALWAYS);
    mf_build_t(bd, t)->indices = true; /* nothing flows back through it */
    return t;
}

static int16_t scan(mf_build *bd, const mixer *s, int16_t x, int16_t decay) {
    const mf_scan_shape shape = scan_shape(s);
    int64_t values = s->values / s->cp;
    int16_t skip = s->kind == MF_MIXER_MAMBA2
                       ? mf_build_weight(bd, "D", MF_PART_MIXER, s->value_heads, 1)
                       : MF_NO_TENSOR;
    int16_t y = tensor(bd, "scanned", s->rows, values, bd->act_B, MF_RECOMPUTE_CORE_ATTN);
    int64_t kept = mf_scan_matrices(s->kind) * shape.value_heads * shape.chunk;
    int16_t inner =
        kept > 0 ? tensor(bd, "chunk_matrices", s->rows, kept, bd->act_B, MF_RECOMPUTE_CORE_ATTN)
                 : MF_NO_TENSOR;
    if (inner != MF_NO_TENSOR) {
        mf_build_t(bd, inner)->indices = true;
    }
    int16_t states = chunk_states(bd, s);
    mf_build_t(bd, y)->offload = MF_OFFLOAD_ATTN_OUT;
    mf_op *op = mf_build_memory_op(bd, MF_OP_SCAN_FWD, "chunked_scan", s->rows, values,
                                   mf_scan_bytes(&shape, bd->act_B));
    op->dim[MF_OP_DIM_SCAN_RULE] = s->kind;
    op->dim[MF_OP_DIM_SCAN_KEY_HEADS] = shape.key_heads;
    op->dim[MF_OP_DIM_SCAN_KEY_DIM] = shape.key_dim;
    op->dim[MF_OP_DIM_SCAN_VALUE_HEADS] = shape.value_heads;
    op->dim[MF_OP_DIM_SCAN_VALUE_DIM] = shape.value_dim;
    op->dim[MF_OP_DIM_SCAN_CHUNK] = shape.chunk;
    op->flops = mf_scan_flops(&shape);
    mf_op_in(op, x);
    mf_op_in(op, decay);
    mf_op_in(op, skip);
    mf_op_out(op, y);
    mf_op_out(op, states);
    mf_op_out(op, inner);
    return y;
}

/* The norm of each head (Mamba-2: of each group's heads; lightning: of all) times its gate. Where
 * several ranks hold heads of one norm, this leaves out the few bytes of their sums. */
static int16_t gated_norm(mf_build *bd, const mixer *s, int16_t x, int16_t gate) {
    int64_t cols = s->values / s->cp;
    bool by_channel = s->kind == MF_MIXER_MAMBA2 || s->kind == MF_MIXER_LIGHTNING;
    int64_t norms = s->kind == MF_MIXER_MAMBA2      ? s->key_heads
                    : s->kind == MF_MIXER_LIGHTNING ? 1
                                                    : s->value_heads / s->cp;
    int16_t gamma = mf_build_weight(bd, "mixer_norm", MF_PART_NORM,
                                    by_channel ? s->values : s->x->value_dim, 1);
    if (by_channel) {
        mf_build_sum(bd, gamma, MF_SUM_NONE, 0);
    }
    int16_t y = tensor(bd, "gated_norm", s->rows, cols, bd->act_B, MF_RECOMPUTE_NORM);
    int16_t rstd = tensor(bd, "rstd", s->rows, norms, 4.0, 0);
    mf_op *op = mf_build_memory_op(bd, MF_OP_GATED_NORM_FWD, "gated_norm", s->rows, cols,
                                   3.0 * (double)s->rows * (double)cols * bd->act_B);
    op->eps = (float)bd->m->rms_norm_eps;
    mf_op_in(op, x);
    mf_op_in(op, gate);
    mf_op_in(op, gamma);
    mf_op_out(op, y);
    mf_op_out(op, rstd);
    return y;
}

/* One projection gives what the scan reads, decays and steps, and the output's gate: columns side
 * by side, by CP rank. */
typedef struct parts {
    int16_t scanned, raw, gate;
} parts;

static parts project(mf_build *bd, const mixer *s, int16_t xn) {
    int64_t scanned = scanned_cols(s), raw = decay_cols(s), gate = s->values;
    mf_linear w = {"mixer_in_proj",      MF_PART_MIXER, bd->m->hidden,
                   scanned + raw + gate, false,         bd->math};
    int16_t joined = mf_lower_column_parallel(bd, &w, xn);
    joined = exchange(bd, s, "cp_all_to_all_in", joined, false);
    parts p = {tensor(bd, "scan_in", s->rows, scanned / s->cp, bd->act_B, 0),
               raw > 0 ? tensor(bd, "decay_in", s->rows, raw / s->cp, bd->act_B, 0) : MF_NO_TENSOR,
               tensor(bd, "gate", s->rows, gate / s->cp, bd->act_B, 0)};
    mf_build_t(bd, p.scanned)->offload = MF_OFFLOAD_QKV;
    mf_build_t(bd, p.gate)->offload = MF_OFFLOAD_QKV;
    const int16_t list[3] = {p.scanned, p.gate, p.raw};
    apart(bd, joined, list, raw > 0 ? 3 : 2);
    return p;
}

/* A matrix of low rank: narrow on own tokens, then wide and by TP rank. */
static int16_t low_rank(mf_build *bd, const char *down, const char *up, int16_t xn, int64_t cols) {
    int64_t rank = bd->m->mixer.key_dim;
    mf_linear narrow = {down, MF_PART_MIXER, bd->m->hidden, rank, false, bd->math};
    mf_linear wide = {up, MF_PART_MIXER, rank, cols, false, bd->math};
    int first = bd->b->ntensors;
    int16_t x =
        mf_lower_linear(bd, &narrow, bd->quant_B > 0 ? mf_lower_quantise(bd, xn) : xn, bd->tokens);
    mf_build_sum_since(bd, first, MF_SUM_TP, rank);
    return mf_lower_column_parallel(bd, &wide, x);
}

/* Kimi's delta attention: decays per channel by a low-rank product; steps with q, k and v; a gate
 * of low rank or not. */
static parts project_kda(mf_build *bd, const mixer *s, int16_t xn) {
    const bool full = s->x->full_rank_gate;
    int64_t scanned = scanned_cols(s), gate = full ? s->values : 0, step = s->value_heads;
    mf_linear w = {"mixer_in_proj",       MF_PART_MIXER, bd->m->hidden,
                   scanned + step + gate, false,         bd->math};
    int16_t joined = mf_lower_column_parallel(bd, &w, xn);
    int16_t decay = low_rank(bd, "f_a_proj", "f_b_proj", xn, s->keys);
    parts p = {tensor(bd, "scan_in", s->rows, scanned, bd->act_B, 0),
               tensor(bd, "decay_in", s->rows, s->keys + step, bd->act_B, 0), MF_NO_TENSOR};
    int16_t steps = tensor(bd, "step_in", s->rows, step, bd->act_B, 0);
    p.gate = full ? tensor(bd, "gate", s->rows, gate, bd->act_B, 0)
                  : low_rank(bd, "g_a_proj", "g_b_proj", xn, s->values);
    const int16_t list[3] = {p.scanned, steps, p.gate};
    apart(bd, joined, list, full ? 3 : 2);
    mf_op *op = mf_build_memory_op(bd, MF_OP_SPLIT, "mixer_join", s->rows, s->keys + step,
                                   2.0 * (double)s->rows * (double)(s->keys + step) * bd->act_B);
    mf_op_in(op, decay);
    mf_op_in(op, steps);
    mf_op_out(op, p.raw);
    return p;
}

static int16_t recurrent(mf_build *bd, int16_t xn) {
    mixer s = mixer_of(bd);
    parts p = s.kind == MF_MIXER_KDA ? project_kda(bd, &s, xn) : project(bd, &s, xn);
    bd->module = MF_MODULE_CORE_ATTN;
    int16_t q = s.kind == MF_MIXER_LIGHTNING ? p.scanned : short_conv(bd, &s, p.scanned);
    int16_t decay = p.raw != MF_NO_TENSOR ? decays(bd, &s, p.raw) : MF_NO_TENSOR;
    int16_t o = scan(bd, &s, q, decay);
    o = gated_norm(bd, &s, o, p.gate);
    o = exchange(bd, &s, "cp_all_to_all_out", o, true);
    bd->module = MF_MODULE_ATTN_PROJ;
    mf_linear w = {"mixer_out_proj", MF_PART_MIXER, s.values, bd->m->hidden, false, bd->math};
    int first = bd->b->nops;
    int16_t y = mf_lower_row_parallel(bd, &w, o);
    mf_build_alpha_since(bd, first, mf_factor(bd->m->residual_multiplier));
    return y;
}

int16_t mf_lower_mixer(mf_build *bd, int16_t x) {
    bd->module = MF_MODULE_ATTN_NORM;
    const mf_hyper_half half = mf_lower_hyper_in(bd, x);
    int16_t xn = mf_lower_norm(bd, "input_norm", half.read, bd->tokens, bd->m->hidden);
    bd->module = MF_MODULE_ATTN_PROJ;
    bool compressed = bd->m->layer_classes[bd->key.layer_class].mixer == MF_MIXER_COMPRESSED;
    int16_t y = compressed ? mf_lower_compressed(bd, xn) : recurrent(bd, xn);
    bd->module = MF_MODULE_FFN_NORM;
    return mf_lower_hyper_out(bd, "mixer_residual", &half, &y, 1);
}
