/* model_attention.c - time of fused attention, forward and backward.
 *
 * One work item is 128 query rows of one head; it walks over the keys that its rows may see in
 * blocks of 128, so that a causal or windowed edge costs half a block more than it counts. Items
 * spread over the SMs; the longest cannot be split. Forward the last ones leave SMs idle for a
 * share of it; backward they are taken head by head, and what counts is when the last head's
 * longest is taken. Narrow heads leave more of the time to the ends of the products: the rate falls
 * as d / (d + d0), d the mean head width. Beside the products run the exponentials, one per pair,
 * on units of their own: Blackwell doubled the products of an SM and not its exponentials, so that
 * there they bound heads of 128 and less; Blackwell Ultra doubled both.
 */
#include "costmodel/cost_internal.h"

#include <math.h>
#include <string.h>

/* Parameters: efficiency over the sustained BF16 rate; d0; share of the longest item that the last
 * SMs still work on when the others have nothing left (backward: of what by_heads says); launch;
 * fixed time of an item. */
enum { P_EFF, P_WIDTH, P_TAIL, P_LAUNCH_S, P_ITEM_S };
static const double block = 128;
/* Gradients of MLA that keep their score gradients, over those that are summed in memory: eight
 * shapes of an H200, 1.09 with 16,384 rows to 1.47 with 2,048 (kernels/attention/mla_grad.h). */
static const double kept_gain = 1.25;
static const double fp8_gain = 1.26; /* FP8 attention over BF16: fit of public rows */

typedef struct shape {
    double batch, heads, kv_heads, sq, sk, d_qk, d_v;
    double keys;     /* that a query sees, mean */
    double keys_max; /* that the last query sees */
    bool edged;      /* causal or windowed */
} shape;

/* Backward: five products where forward has two. */
static double products_of(const mf_op *op) {
    return op->kind == MF_OP_ATTENTION_BWD ? 2.5 : 1;
}

static shape shape_of(const mf_op *op) {
    shape s = {(double)op->dim[MF_OP_DIM_BATCH],    (double)op->dim[MF_OP_DIM_HEADS],
               (double)op->dim[MF_OP_DIM_KV_HEADS], (double)op->dim[MF_OP_DIM_SEQ_Q],
               (double)op->dim[MF_OP_DIM_SEQ_K],    (double)op->dim[MF_OP_DIM_D_QK],
               (double)op->dim[MF_OP_DIM_D_V],      0,
               (double)op->dim[MF_OP_DIM_SEQ_K],    false};
    double window = (double)op->dim[MF_OP_DIM_WINDOW];
    if (window > 0) {
        s.keys_max = fmin(s.keys_max, window);
    }
    /* From the FLOPs: context parallelism leaves a rank pairs that dims alone do not tell. */
    double rows = s.batch * s.heads * s.sq * 2 * (s.d_qk + s.d_v) * products_of(op);
    s.keys = fmax(1, fmin(op->flops / rows, s.sk));
    s.keys_max = fmax(s.keys_max, s.keys);
    s.edged = s.keys < s.sk * (1 - 1e-9);
    return s;
}

double mf_attention_keys(const mf_op *op) {
    double sq = (double)op->dim[MF_OP_DIM_SEQ_Q], sk = (double)op->dim[MF_OP_DIM_SEQ_K];
    double window = (double)op->dim[MF_OP_DIM_WINDOW];
    if ((op->flags & MF_OPF_CAUSAL) == 0) {
        return sq * (window > 0 ? fmin(window, sk) : sk);
    }
    double first = fmax(1, sk - sq + 1); /* keys of the first query */
    if (window <= 0 || window >= sk) {
        return sq * (first + sk) / 2;
    }
    if (window <= first) {
        return sq * window;
    }
    double ramp = window - first; /* queries that see less than the window */
    return ramp * (first + window - 1) / 2 + (sq - ramp) * window;
}

double mf_attention_walked(const mf_op *op) {
    const shape s = shape_of(op);
    return s.edged ? 1 + 0.5 * block / s.keys : 1;
}

double mf_attention_square_flops(const mf_op *op) {
    const shape s = shape_of(op);
    /* Backward four products, none of them made again. */
    return (op->kind == MF_OP_ATTENTION_BWD ? 2 : 1) * 2 * s.batch * s.heads * s.sq * s.sk *
           (s.d_qk + s.d_v);
}

static double bytes_of(const shape *s, const mf_op *op) {
    double q = s->heads * s->sq * (s->d_qk + s->d_v), kv = s->kv_heads * s->sk * (s->d_qk + s->d_v);
    double e = op->math == MF_MATH_FP32 ? 4 : 2;
    double forward = s->batch * e * (q + kv);
    if (op->kind == MF_OP_ATTENTION_FWD) {
        return forward;
    }
    return 2 * forward + s->batch * s->heads * s->sq * s->d_v * e;
}

/* Of score gradients that are written and read (MF_OPF_ORDERED): of those tiles that queries see,
 * under a window of all (541 us of 210 without, H200, 16 heads, 4,096 keys, a window of 128). */
static double ordered_B(const shape *s, const mf_op *op) {
    const double keys = op->dim[MF_OP_DIM_WINDOW] > 0 ? s->sk : s->keys;
    return op->flags & MF_OPF_ORDERED ? 2 * 2 * s->batch * s->heads * s->sq * keys : 0;
}

static double rate_of(const mf_cost_device *d, int math) {
    return math == MF_MATH_FP32   ? d->rate[MF_MATH_FP32]
           : math == MF_MATH_BF16 ? d->rate[MF_MATH_BF16]
                                  : d->rate[MF_MATH_BF16] * fp8_gain;
}

/* BF16 FLOPs of products that an SM does in the time of one exponential: 16 of these a clock on all
 * (NVIDIA's Hopper and Blackwell white papers; 32 on Blackwell Ultra). 0 = not known, no bound. */
static double flops_per_exponential(const mf_gpu *gpu) {
    static const struct {
        const char *name;
        double flops;
    } known[] = {
        {"b300", 256}, {"gb300", 256}, {"blackwell", 512}, {"hopper", 256}, {"ampere", 128}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(gpu->name, known[i].name) == 0 || strcmp(gpu->arch, known[i].name) == 0) {
            return known[i].flops;
        }
    }
    return 0;
}

static double soft_max(double a, double b) {
    double q = fmin(a, b) / fmax(a, b);
    return fmax(a, b) * sqrt(sqrt(1 + q * q * q * q));
}

/* How long items run that are taken in order, head by head, each head's longest first, with `waves`
 * on every SM in all; lengths are even in [2 - longest, longest] of the mean. At time t an SM has
 * taken exp(t / longest) of them, and after 1 + longest of them one more by item (a renewal
 * process); the last head's longest is taken when the heads before it are. */
static double by_heads(double heads, double waves, double longest) {
    double taken = waves * (heads - 1) / heads;
    double last = taken <= 1        ? 0
                  : taken <= exp(1) ? longest * log(taken)
                                    : longest + taken - exp(1);
    return last + longest;
}

static double attention_time(const mf_cost_device *d, const mf_op *op, const double *t) {
    shape s = shape_of(op);
    double width = (s.d_qk + s.d_v) / 2;
    double rate = t[P_EFF] * rate_of(d, op->math) * width / (width + t[P_WIDTH]);
    rate *= op->flags & MF_OPF_KEPT ? kept_gain : 1;
    double rows = block * ceil(s.sq / block); /* a last short block costs a whole one */
    double flops = op->flops * rows / s.sq;
    if (s.edged) {
        flops *= (s.keys + block / 2) / s.keys;
    }
    double items = s.batch * s.heads * rows / block, waves = items / d->sms, sum = flops / rate;
    if (d->cluster != NULL && d->peak[MF_MATH_BF16] > 0) {
        double pairs = flops / (2 * (s.d_qk + s.d_v) * products_of(op));
        double each = flops_per_exponential(&d->cluster->gpu) / d->peak[MF_MATH_BF16];
        sum = soft_max(sum, pairs * each);
    }
    double edge = s.keys_max / s.keys, longest = sum * edge / waves;
    double tail = t[P_TAIL] * (longest + t[P_ITEM_S]) * (1 - exp(-waves));
    if (op->kind == MF_OP_ATTENTION_BWD && !(op->flags & MF_OPF_PACKED)) {
        double end = by_heads(s.batch * s.heads, waves, edge);
        tail = t[P_TAIL] * fmax(0, end - waves) * (sum / waves + t[P_ITEM_S]);
    }
    double compute = fmax(longest + t[P_ITEM_S], sum + waves * t[P_ITEM_S] + tail);
    return t[P_LAUNCH_S] + fmax(compute, bytes_of(&s, op) / d->copy_Bps) +
           ordered_B(&s, op) / d->copy_Bps;
}

static int attention_coords(const mf_op *op, double *x) {
    shape s = shape_of(op);
    x[0] = 0.5 * log(s.batch * s.heads);
    x[1] = log(s.sq);
    x[2] = log(s.keys);
    x[3] = 2 * log(s.d_qk + s.d_v);
    x[4] = (s.edged ? 0 : 0.5) + (op->flags & MF_OPF_PACKED ? 2 : 0) +
           (op->flags & MF_OPF_KEPT ? 4 : 0);                              /* kernels apart */
    x[5] = 0.1 * log(s.heads / fmax(1, s.kv_heads)) + 0.01 * log(s.batch); /* change little */
    return 6;
}

/* Each row of a head adds its share to the gradient of the head's sink, one after the other: of
 * GPT-OSS on one and two H200 the backward pass takes 1.5 to 1.65 ns a row and head more than
 * without sinks, with windows as without, at clocks about a tenth slower than rested. */
static const double sink_s = 1.4e-9;

double mf_attention_sinks_s(const mf_op *op) {
    const double rows = (double)op->dim[MF_OP_DIM_BATCH] * (double)op->dim[MF_OP_DIM_SEQ_Q];
    return op->flags & MF_OPF_SINKS ? sink_s * rows * (double)op->dim[MF_OP_DIM_HEADS] : 0;
}

double mf_attention_limit_s(const mf_cost_device *d, const mf_op *op) {
    shape s = shape_of(op);
    int math = op->math == MF_MATH_FP4 ? MF_MATH_FP8 : op->math;
    return fmax(op->flops / d->peak[math], mf_memory_limit_s(d, bytes_of(&s, op)));
}

const mf_family mf_family_attention_fwd = {
    "attention_fwd",  5,    {0.90, 12, 0.6, 5e-6, 1e-6}, {0.15, 0.5, 0.5, 0.4, 0.8}, attention_time,
    attention_coords, 0.08,
};
const mf_family mf_family_attention_bwd = {
    "attention_bwd",
    5,
    {0.75, 12, 0.6, 10e-6, 8e-6},
    {0.15, 0.5, 0.5, 0.4, 0.8},
    attention_time,
    attention_coords,
    0.08,
};
