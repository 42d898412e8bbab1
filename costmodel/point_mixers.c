/* point_mixers.c - convolutions, scans and indexers by hand-given shapes, as lowering makes them of
 * a model. */
#include "costmodel/point_mixers.h"
#include "core/program/mixer_costs.h"

#include <math.h>
#include <string.h>

mf_status mf_point_conv(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    const bool backward = mf_point_is(p, "pass", "bwd");
    const int64_t rows = mf_point_int(p, "s", 1), cols = mf_point_int(p, "channels", 1);
    (void)c;
    (void)e;
    op->kind = backward ? MF_OP_CONV_BWD : MF_OP_CONV_FWD;
    op->dim[MF_OP_DIM_ROWS] = rows;
    op->dim[MF_OP_DIM_COLS] = cols;
    op->dim[MF_OP_DIM_TAPS] = mf_point_int(p, "taps", 4);
    op->bytes = 4.0 * (double)rows * (double)cols * (backward ? MF_CONV_GRADIENT_BYTES : 1.0);
    return MF_OK;
}

static mf_mixer_kind rule_of(const mf_point *p) {
    return mf_point_is(p, "rule", "gdn")      ? MF_MIXER_GDN
           : mf_point_is(p, "rule", "kda")    ? MF_MIXER_KDA
           : mf_point_is(p, "rule", "mamba2") ? MF_MIXER_MAMBA2
                                              : MF_MIXER_LIGHTNING;
}

mf_status mf_point_scan(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    const bool backward = mf_point_is(p, "pass", "bwd");
    const mf_scan_shape s = {.rule = rule_of(p),
                             .rows = mf_point_int(p, "s", 1),
                             .key_heads = mf_point_int(p, "hk", 1),
                             .key_dim = mf_point_int(p, "dk", 1),
                             .value_heads = mf_point_int(p, "hv", 1),
                             .value_dim = mf_point_int(p, "dv", 1),
                             .chunk = mf_point_int(p, "chunk", 64)};
    (void)c;
    if (s.value_heads % s.key_heads != 0) {
        return mf_err_set(e, MF_USAGE, "scan: hk=%lld does not divide hv=%lld",
                          (long long)s.key_heads, (long long)s.value_heads);
    }
    op->kind = backward ? MF_OP_SCAN_BWD : MF_OP_SCAN_FWD;
    op->dim[MF_OP_DIM_ROWS] = s.rows;
    op->dim[MF_OP_DIM_COLS] = s.value_heads * s.value_dim;
    op->dim[MF_OP_DIM_SCAN_RULE] = s.rule;
    op->dim[MF_OP_DIM_SCAN_KEY_HEADS] = s.key_heads;
    op->dim[MF_OP_DIM_SCAN_KEY_DIM] = s.key_dim;
    op->dim[MF_OP_DIM_SCAN_VALUE_HEADS] = s.value_heads;
    op->dim[MF_OP_DIM_SCAN_VALUE_DIM] = s.value_dim;
    op->dim[MF_OP_DIM_SCAN_CHUNK] = s.chunk;
    op->bytes = mf_scan_bytes(&s, 2.0) * (backward ? MF_SCAN_GRADIENT_BYTES : 1.0);
    op->flops = mf_scan_flops(&s) * (backward ? mf_scan_gradient(&s) : 1.0);
    return MF_OK;
}

/* Pairs of s queries and the keys that they see, of which each keeps at most `most`. */
static double seen_pairs(double s, double keys, bool causal, double most) {
    double first = keys - s + 1.0; /* keys of the first query */
    if (!causal || most <= first) {
        return s * most;
    }
    double ramp = most - first + 1.0;
    return ramp * (first + most) / 2.0 + (s - ramp) * most;
}

mf_status mf_point_index(const mf_point *p, const mf_cluster *c, mf_op *op, mf_err *e) {
    const bool backward = mf_point_is(p, "pass", "bwd"), causal = mf_point_int(p, "causal", 1) != 0;
    const int64_t b = mf_point_int(p, "b", 1), s = mf_point_int(p, "s", 1),
                  keys = mf_point_int(p, "keys", s);
    const int64_t h = mf_point_int(p, "h", 1), d = mf_point_int(p, "d", 1),
                  topk = mf_point_int(p, "topk", 1);
    const int64_t kept = topk < keys ? topk : keys;
    (void)c;
    if (causal && keys < s) {
        return mf_err_set(e, MF_USAGE, "index: causal=1 needs keys >= s, got keys=%lld s=%lld",
                          (long long)keys, (long long)s);
    }
    double scored = (double)b * seen_pairs((double)s, (double)keys, causal, (double)keys);
    double chosen = (double)b * seen_pairs((double)s, (double)keys, causal, (double)kept);
    op->kind = backward ? MF_OP_INDEX_BWD : MF_OP_INDEX_FWD;
    op->dim[MF_OP_DIM_ROWS] = b * s;
    op->dim[MF_OP_DIM_COLS] = kept;
    op->dim[MF_OP_DIM_INDEX_HEADS] = h;
    op->dim[MF_OP_DIM_INDEX_DIM] = d;
    op->dim[MF_OP_DIM_INDEX_KEYS] = keys;
    op->dim[MF_OP_DIM_INDEX_TOPK] = kept;
    op->bytes = (double)b * (2.0 * (double)d * ((double)s * (double)h + (double)keys) +
                             4.0 * (double)s * (double)kept) +
                mf_index_score_bytes(scored);
    op->bytes *= backward ? MF_INDEX_GRADIENT_BYTES : 1.0;
    op->flops = backward
                    ? mf_index_gradient_flops(chosen, h, d, (double)mf_point_int(p, "teacher", 0))
                    : mf_index_flops(scored, h, d);
    return MF_OK;
}
