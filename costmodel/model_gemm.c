/* model_gemm.c - time of matrix products: tiles over SMs in waves, and the bytes they move.
 *
 * A tile of bm x bn costs its multiply-adds at an SM's share of the sustained rate plus a fixed
 * time (pipeline fill and drain, epilogue); tiles run in waves over the SMs; the best of the
 * candidate tiles and of splitting the sum (with its extra traffic) is taken. The kernel costs the
 * larger of that and of its bytes (a soft maximum, since both are busy near the ridge), plus a
 * launch. Long kernels lose clocks to power: a slowly falling factor.
 */
#include "costmodel/cost_internal.h"

#include <math.h>

/* Parameters: efficiency of the main loop over the sustained rate; fixed time of a 128x256 tile;
 * launch; exponent of the power factor; share of a partly filled wave that is lost; rate of grouped
 * weight gradients over the other passes. */
enum { P_EFF, P_TILE_S, P_LAUNCH_S, P_POWER, P_WAVE, P_STARVE, P_BYTES };

enum { SPLITS_MAX = 16 };                /* of the sum over k */
static const double partial_share = 1.0; /* of a result written in parts of sectors, on top */

/* Tile shapes that libraries for Hopper and later choose among. */
static const struct tile_shape {
    double m, n;
} tiles[] = {{128, 256}, {256, 128}, {192, 192}, {320, 128}, {128, 224}, {224, 128}, {128, 192},
             {192, 128}, {256, 96},  {128, 160}, {160, 128}, {128, 128}, {64, 256},  {256, 64},
             {128, 96},  {96, 128},  {64, 192},  {192, 64},  {64, 128},  {128, 64},  {64, 96},
             {96, 64},   {64, 64},   {128, 32},  {32, 128},  {64, 32}};

double mf_math_element_B(int math) {
    static const double bytes[MF_MATH_COUNT] = {4, 2, 1, 0.5625 /* one scale byte per 16 */};
    return bytes[math];
}

static double output_B(const mf_op *op) {
    if (op->flags & MF_OPF_ACC_FP32) {
        return 8; /* read, add, write */
    }
    return op->math == MF_MATH_FP32 ? 4 : 2;
}

static double ceil_div(double a, double b) {
    return ceil(a / b);
}

/* --- one product's tiles ---------------------------------------------------------------------- */

typedef struct product {
    double m, n, k, groups; /* of each of the groups */
    double out_B;
    double rate_sm;
} product;

static double waves(double count, double sms, double lost) {
    double whole = count / sms;
    return lost * ceil(whole) + (1 - lost) * fmax(whole, 1);
}

/* Operands of a tile pass through shared memory m n / (m + n) times less often than they are used:
 * small tiles starve the matrix units. 1 for 128 x 256. */
static double tile_share(const struct tile_shape *s, double starve) {
    const double reuse = s->m * s->n / (s->m + s->n), best = 256.0 / 3;
    return reuse / (reuse + starve) * (1 + starve / best);
}

static double compute_time(const mf_device *d, const product *p, const double *t) {
    double best = HUGE_VAL, lost = fmin(t[P_WAVE], 1);
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        const struct tile_shape *s = &tiles[i];
        double count = p->groups * ceil_div(p->m, s->m) * ceil_div(p->n, s->n);
        double fixed = t[P_TILE_S] * (0.4 + 0.6 * s->m * s->n / (128.0 * 256.0));
        double per_k = 2 * s->m * s->n / (p->rate_sm * tile_share(s, t[P_STARVE]));
        if (count / d->sms * p->k * per_k > best) {
            continue; /* even without waves and ends */
        }
        for (int split = 1; split <= SPLITS_MAX; split *= 2) {
            if (split > 1 && (count * split > 2 * d->sms || p->k < 128 * split)) {
                break;
            }
            double k = 64 * ceil_div(p->k / split, 64);
            double time = waves(count * split, d->sms, lost) * (k * per_k + fixed);
            if (split > 1) { /* partial sums out and in again, mostly through L2 */
                time += split * p->groups * p->m * p->n * 8 / (2 * d->copy_Bps);
            }
            best = fmin(best, time);
        }
    }
    return best;
}

static double soft_max(double a, double b) {
    double hi = fmax(a, b), q = fmin(a, b) / hi;
    return hi * sqrt(sqrt(1 + q * q * q * q));
}

static double kernel_time(const mf_device *d, const product *p, double bytes, const double *t) {
    double compute = compute_time(d, p, t);
    compute *= pow(1 + fmin(compute, 20e-3) / 1e-3, t[P_POWER]);
    return t[P_LAUNCH_S] + soft_max(compute, bytes / (d->copy_Bps * t[P_BYTES]));
}

/* --- families --------------------------------------------------------------------------------- */

double mf_gemm_bytes(const mf_op *op) {
    double m = (double)op->dim[MF_OP_DIM_M], n = (double)op->dim[MF_OP_DIM_N];
    double k = (double)op->dim[MF_OP_DIM_K], in = mf_math_element_B(op->math), out = output_B(op);
    if (op->kind != MF_OP_GROUPED_GEMM) {
        return in * (m * k + k * n) + out * m * n;
    }
    double groups = (double)op->dim[MF_OP_DIM_GROUPS];
    if (op->flags & MF_OPF_WGRAD) {
        return in * k * (m + n) + out * groups * m * n;
    }
    return in * (m * k + groups * n * k) + out * m * n;
}

/* Rows of the result that end within a sector of memory (32 bytes) are written sector by sector in
 * parts: each is read, merged and written again. */
static double partial_sectors_B(const mf_op *op) {
    const bool wide = (op->flags & MF_OPF_ACC_FP32) != 0 || op->math == MF_MATH_FP32;
    const int64_t row_B = op->dim[MF_OP_DIM_N] * (wide ? 4 : 2);
    double size_B = (double)op->dim[MF_OP_DIM_M] * (double)row_B;
    return row_B % 32 != 0 ? partial_share * size_B : 0;
}

static double gemm_time(const mf_device *d, const mf_op *op, const double *t) {
    product p = {(double)op->dim[MF_OP_DIM_M],
                 (double)op->dim[MF_OP_DIM_N],
                 (double)op->dim[MF_OP_DIM_K],
                 1,
                 output_B(op),
                 t[P_EFF] * d->rate[op->math] / d->sms};
    return kernel_time(d, &p, mf_gemm_bytes(op) + partial_sectors_B(op), t);
}

/* Rows of all experts are dim M; a weight gradient sums over them: then they are dim K. */
static double grouped_time(const mf_device *d, const mf_op *op, const double *t) {
    double groups = fmax(1, (double)op->dim[MF_OP_DIM_GROUPS]);
    bool wgrad = (op->flags & MF_OPF_WGRAD) != 0;
    product p = {(double)op->dim[MF_OP_DIM_M] / (wgrad ? 1 : groups),
                 (double)op->dim[MF_OP_DIM_N],
                 (double)op->dim[MF_OP_DIM_K] / (wgrad ? groups : 1),
                 groups,
                 output_B(op),
                 t[P_EFF] * d->rate[op->math] / d->sms};
    return kernel_time(d, &p, mf_gemm_bytes(op), t);
}

/* Weight gradients are variants of their own (family.c); the other two passes differ by the layout
 * of an operand, which is a distance of its own. */
static double pass_coord(const mf_op *op) {
    bool wgrad = (op->flags & MF_OPF_WGRAD) != 0;
    return (!wgrad && op->pass == MF_PASS_B ? 0.2 : 0) + (op->flags & MF_OPF_ACC_FP32 ? 0.3 : 0);
}

/* Sizes that leave the last tile ragged run other code. */
static double ragged(int64_t size, int64_t tile) {
    return size % tile != 0 ? 0.3 : 0;
}

static int gemm_coords(const mf_op *op, double *x) {
    x[0] = log((double)op->dim[MF_OP_DIM_M]);
    x[1] = log((double)op->dim[MF_OP_DIM_N]);
    x[2] = log((double)op->dim[MF_OP_DIM_K]);
    x[3] = pass_coord(op);
    x[4] = ragged(op->dim[MF_OP_DIM_M], 64);
    x[5] = ragged(op->dim[MF_OP_DIM_N], 64) + ragged(op->dim[MF_OP_DIM_K], 64);
    return 6;
}

static int grouped_coords(const mf_op *op, double *x) {
    double groups = fmax(1, (double)op->dim[MF_OP_DIM_GROUPS]);
    bool wgrad = (op->flags & MF_OPF_WGRAD) != 0;
    x[0] = log((double)op->dim[MF_OP_DIM_M] / (wgrad ? 1 : groups));
    x[1] = log((double)op->dim[MF_OP_DIM_N]);
    x[2] = log((double)op->dim[MF_OP_DIM_K] / (wgrad ? groups : 1));
    x[3] = 0.5 * log(groups);
    x[4] = pass_coord(op);
    return 5;
}

double mf_gemm_limit_s(const mf_device *d, const mf_op *op) {
    double flops = 2.0 * (double)op->dim[MF_OP_DIM_M] * (double)op->dim[MF_OP_DIM_N] *
                   (double)op->dim[MF_OP_DIM_K];
    return fmax(flops / d->peak[op->math], mf_memory_limit_s(d, mf_gemm_bytes(op)));
}

/* Priors: efficiencies near the sustained rate (large cuBLAS products define it), a few
 * microseconds for a tile's ends and a launch. */
const mf_family mf_family_gemm = {
    "gemm",
    7,
    {1.05, 1.5e-6, 3.5e-6, 0.05, 0.7, 40, 0.95},
    {0.12, 0.6, 0.3, 0.8, 0.3, 0.5, 0.15},
    gemm_time,
    gemm_coords,
    0.05,
};
const mf_family mf_family_grouped = {
    "grouped_gemm",
    7,
    {0.95, 2e-6, 5e-6, 0.05, 0.7, 40, 0.95},
    {0.12, 0.6, 0.3, 0.8, 0.3, 0.5, 0.15},
    grouped_time,
    grouped_coords,
    0.07,
};
