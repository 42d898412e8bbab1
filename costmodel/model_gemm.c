/* model_gemm.c - time of matrix products: tiles over SMs in waves, and the bytes they move.
 *
 * A tile of bm x bn costs its multiply-adds at an SM's share of the sustained rate plus a fixed
 * time (pipeline fill and drain, epilogue); tiles run in waves over the SMs; the best of the
 * candidate tiles and of splitting the sum (with its extra traffic and kernel) is taken. The kernel
 * costs the larger of that and of its bytes (a soft maximum, since both are busy near the ridge),
 * plus a launch. Long kernels lose clocks to power: a slowly falling factor.
 */
#include "costmodel/cost_internal.h"

#include <math.h>
#include <string.h>

/* Parameters: efficiency of the main loop over the sustained rate; fixed time of a 128x256 tile;
 * launch; exponent of the power factor; share of a partly filled wave that is lost; how much small
 * tiles starve; share of the copy bandwidth that operands and results move at. */
enum { P_EFF, P_TILE_S, P_LAUNCH_S, P_POWER, P_WAVE, P_STARVE, P_BYTES };

enum { SPLITS_MAX = 16 };                /* of the sum over k */
static const double partial_share = 1.0; /* of a result written in parts of sectors, on top */

/* Tile shapes that libraries for Hopper and later choose among. Operands of a tile are used `reuse`
 * times for each pass through shared memory. */
typedef struct tile_shape {
    double m, n, per_m, per_n, reuse;
} tile_shape;
#define TILE(rows, cols)                                                                           \
    { rows, cols, 1.0 / (rows), 1.0 / (cols), (double)(rows) * (cols) / ((rows) + (cols)), }
static const tile_shape tiles[] = {
    TILE(128, 256), TILE(256, 128), TILE(192, 192), TILE(320, 128), TILE(128, 224), TILE(224, 128),
    TILE(128, 192), TILE(192, 128), TILE(256, 96),  TILE(128, 160), TILE(160, 128), TILE(128, 128),
    TILE(64, 256),  TILE(256, 64),  TILE(128, 96),  TILE(96, 128),  TILE(64, 192),  TILE(192, 64),
    TILE(64, 128),  TILE(128, 64),  TILE(64, 96),   TILE(96, 64),   TILE(64, 64),   TILE(128, 32),
    TILE(32, 128),  TILE(64, 32)};
static const double best_reuse = 256.0 / 3; /* of 128 x 256 */

/* What cuBLASLt's kernels for Hopper have in 8 bits, as its choices for 800 shapes show: with a
 * scale per tensor no tile wider than 160; with scales per block 128 x 128 alone, in weight
 * gradients (both operands in blocks of a row) also half of it by any width. */
static const tile_shape tiles_8_bit[] = {
    TILE(128, 160), TILE(160, 128), TILE(128, 144), TILE(144, 128), TILE(128, 128), TILE(128, 112),
    TILE(112, 128), TILE(96, 128),  TILE(128, 96),  TILE(64, 256),  TILE(256, 64),  TILE(64, 192),
    TILE(192, 64),  TILE(80, 128),  TILE(128, 80),  TILE(64, 128),  TILE(128, 64),  TILE(64, 96),
    TILE(96, 64),   TILE(64, 64),   TILE(64, 32),   TILE(32, 64)};
static const tile_shape tiles_blocks[] = {TILE(128, 128)};
static const tile_shape tiles_blocks_wgrad[] = {TILE(128, 128), TILE(256, 64), TILE(192, 64),
                                                TILE(128, 64),  TILE(96, 64),  TILE(64, 64),
                                                TILE(32, 64)};

typedef struct tile_set {
    const tile_shape *tile;
    size_t count;
} tile_set;
#define TILES(list)                                                                                \
    (tile_set) {                                                                                   \
        list, sizeof list / sizeof list[0]                                                         \
    }

static tile_set tiles_of(const mf_cost_device *d, const mf_op *op) {
    if (op->math != MF_MATH_FP8 || d->cluster == NULL ||
        strcmp(d->cluster->gpu.arch, "hopper") != 0) {
        return TILES(tiles);
    }
    return !(op->flags & MF_OPF_BLOCK_SCALED) ? TILES(tiles_8_bit)
           : op->flags & MF_OPF_WGRAD         ? TILES(tiles_blocks_wgrad)
                                              : TILES(tiles_blocks);
}

double mf_math_element_B(int math) {
    static const double bytes[MF_MATH_COUNT] = {4, 2, 1, 0.5625 /* one scale byte per 16 */};
    return bytes[math];
}

static double output_B(const mf_op *op) {
    if (op->flags & MF_OPF_ACC_FP32) {
        return op->flags & MF_OPF_ANEW ? 4 : 8; /* read, add, write */
    }
    return op->math == MF_MATH_FP32 ? 4 : 2;
}

/* The next whole number at or above x, 0 <= x < 2^53: pricing calls it millions of times. */
static double whole_above(double x) {
    return (double)(int64_t)(x + (1 - 1e-9));
}

/* --- one product's tiles ---------------------------------------------------------------------- */

typedef struct product {
    double m, n, k, groups; /* of each of the groups */
    double out_B;
    double rate_sm;
    double ends; /* share of a tile's ends that stays in the way of the next tile */
    tile_set tiles;
} product;

/* Blackwell accumulates in a memory of its own, so that a tile is written out while the next one is
 * worked on. At this share forward, input-gradient and weight-gradient products of SimuMax's table
 * (B200, BF16, 364 of more than 0.3 TFLOP) lie at the same distance from these prices within 2 %.
 */
static double ends_of(const mf_cost_device *d) {
    static const double beside_the_next = 0.25;
    bool blackwell = d->cluster != NULL && strcmp(d->cluster->gpu.arch, "blackwell") == 0;
    return blackwell ? beside_the_next : 1;
}

static double waves(double count, double per_sm, double lost) {
    double whole = count * per_sm;
    return lost * whole_above(whole) + (1 - lost) * (whole > 1 ? whole : 1);
}

/* Small tiles starve the matrix units: the rate falls as reuse / (reuse + starve), 1 for the best.
 */
static double compute_time(const mf_cost_device *d, const product *p, const double *t) {
    const double lost = t[P_WAVE] < 1 ? t[P_WAVE] : 1, starve = t[P_STARVE], per_sm = 1 / d->sms;
    const double pass_s = 2 / (p->rate_sm * (1 + starve / best_reuse));
    const double split_s = p->groups * p->m * p->n * 8 / (2 * d->copy_Bps); /* of partial sums */
    double best = HUGE_VAL;
    for (size_t i = 0; i < p->tiles.count; i++) {
        const tile_shape *s = &p->tiles.tile[i];
        double count = p->groups * whole_above(p->m * s->per_m) * whole_above(p->n * s->per_n);
        double per_k = (s->m + s->n) * (s->reuse + starve) * pass_s;
        if (count * per_sm * p->k * per_k > best) {
            continue; /* even without waves and ends */
        }
        double fixed = p->ends * t[P_TILE_S] * (0.4 + 0.6 / (128.0 * 256.0) * s->m * s->n);
        for (int split = 1; split <= SPLITS_MAX; split *= 2) {
            if (split > 1 && (count * split > 2 * d->sms || p->k < 128 * split)) {
                break;
            }
            double k = 64 * whole_above(p->k / (64 * split));
            double time = waves(count * split, per_sm, lost) * (k * per_k + fixed);
            time +=
                split > 1 ? split * split_s + t[P_LAUNCH_S] : 0; /* a kernel more, that sums them */
            best = time < best ? time : best;
        }
    }
    return best;
}

static double soft_max(double a, double b) {
    double hi = fmax(a, b), q = fmin(a, b) / hi;
    return hi * sqrt(sqrt(1 + q * q * q * q));
}

static double kernel_time(const mf_cost_device *d, const product *p, double bytes,
                          const double *t) {
    double compute = compute_time(d, p, t);
    compute *= pow(1 + fmin(compute, 20e-3) / 1e-3, t[P_POWER]);
    return t[P_LAUNCH_S] + soft_max(compute, bytes / (d->copy_Bps * t[P_BYTES]));
}

/* --- families --------------------------------------------------------------------------------- */

double mf_gemm_bytes(const mf_op *op) {
    double m = (double)op->dim[MF_OP_DIM_M], n = (double)op->dim[MF_OP_DIM_N];
    double k = (double)op->dim[MF_OP_DIM_K], in = mf_math_element_B(op->math), out = output_B(op);
    out *= op->flags & MF_OPF_ACT ? 1.5 : 1; /* half as many columns more: the activation */
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

static double gemm_time(const mf_cost_device *d, const mf_op *op, const double *t) {
    product p = {(double)op->dim[MF_OP_DIM_M],
                 (double)op->dim[MF_OP_DIM_N],
                 (double)op->dim[MF_OP_DIM_K],
                 1,
                 output_B(op),
                 t[P_EFF] * d->rate[op->math] / d->sms,
                 ends_of(d),
                 tiles_of(d, op)};
    return kernel_time(d, &p, mf_gemm_bytes(op) + partial_sectors_B(op), t);
}

/* Rows of all experts are dim M; a weight gradient sums over them: then they are dim K. */
static double grouped_time(const mf_cost_device *d, const mf_op *op, const double *t) {
    double groups = fmax(1, (double)op->dim[MF_OP_DIM_GROUPS]);
    bool wgrad = (op->flags & MF_OPF_WGRAD) != 0;
    product p = {(double)op->dim[MF_OP_DIM_M] / (wgrad ? 1 : groups),
                 (double)op->dim[MF_OP_DIM_N],
                 (double)op->dim[MF_OP_DIM_K] / (wgrad ? groups : 1),
                 groups,
                 output_B(op),
                 t[P_EFF] * d->rate[op->math] / d->sms,
                 ends_of(d),
                 tiles_of(d, op)};
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

double mf_anew_share(const mf_family *family, const mf_cost_device *d, const double *theta,
                     const mf_op *adds) {
    mf_op anew = *adds;
    anew.flags |= MF_OPF_ANEW;
    return family->base(d, &anew, theta) / family->base(d, adds, theta);
}

double mf_gemm_limit_s(const mf_cost_device *d, const mf_op *op) {
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

/* Rows are read and written. */
bool mf_bias_pass(const mf_op *op, mf_op *out) {
    if ((op->flags & MF_OPF_BIAS) == 0) {
        return false;
    }
    const double elements = (double)op->dim[MF_OP_DIM_M] * (double)op->dim[MF_OP_DIM_N];
    *out = (mf_op){.kind = MF_OP_ADD,
                   .pass = op->pass,
                   .math = op->math,
                   .shape = {1, 1},
                   .bytes = 2 * elements * output_B(op)};
    return true;
}
