/* energy.c - what ops take under the power cap, and how much slower a step is for it.
 *
 * One line for the energy of an op: J/byte, J/FLOP of products and of attention, and what the GPU
 * draws whatever runs. Of the H200 the terms come from five kernels, each run for two seconds after
 * seven of warming up (2026-11-23, 1.45 to 1.98 GHz): 8192^3 products 1.132 J in 1.647 ms; grouped
 * products of 8 x 2,048 rows, 6,144 -> 16,384 3.392 J in 4.913 ms and of 64 x 512 rows, 2,048 ->
 * 1,024 0.171 J in 0.248 ms; attention forward of 2 x 4,096 tokens, 48 heads of 128 0.561 J in
 * 0.813 ms; a copy of 1 GiB 0.288 J in 0.509 ms. They agree with the terms within 3 % (tested). Of
 * attention's backward pass they are 1.11 pJ: with that the 31 runs of one H200 that may be fitted
 * (bench/gpu/runs-h200.csv) are 1.7 % off in the mean, bias +0.7 (with 1.2 1.9 %, +1.0; three
 * kernels alone took 1.42 on another H200). The power that is drawn whatever runs is an
 * assumption until energies were measured by `profile --energy`: the other terms follow from it,
 * sums of long runs hardly change with it.
 */
#include "costmodel/cost_internal.h"

#include <math.h>
#include <string.h>

static const struct {
    double byte_J, product_J, attention_J, attention_bwd_J; /* of BF16, heads of 128 */
} h200 = {98e-12, 0.783e-12, 1.01e-12, 1.11e-12};

/* --- the clock --------------------------------------------------------------------------------
 *
 * A faster clock takes more voltage, and energy grows with its square: J/FLOP above are those at
 * 1,480 of an H200's 1,980 MHz, where steps under the cap settle, and grow by 0.6 % for each % of
 * clock there: voltage is taken to be linear in the clock, so that they are (0.7 + 0.3 clock over
 * 1,480 MHz)^2. What takes 1.18 times as long as rested runs at 1,476 MHz (a product of 8192^3, 786
 * TFLOP/s in a burst, 667 on and on): the clock is that power of the stretch. Below 1,420 MHz
 * nothing was seen; there kernels are taken to need as many cycles as at 1,420. Slope and power are
 * those at which the 46 runs of one, two and four H200 that may be fitted were closest when they
 * were chosen (those of two and four GPUs have been measured again since): 2.73 % root mean square;
 * with a slope of 0 2.97, 0.3 2.76, 0.85 and the power 1.5 3.3, 2.2 3.1. */
static const double settled_clock = 1480.0 / 1980, lowest_seen = 1420.0 / 1980;
static const double joules_by_clock = 0.6, clock_by_stretch = 1.82;

/* No GPU's clock falls below a third of its highest for the power cap alone. */
static const double lowest_clock = 1.0 / 3, most_stretch = 3;

/* The stretch at the lowest clock that was seen. */
static const double lowest_seen_stretch = 1.2004053913582442;

static double clock_of(double stretch) {
    const double clock = stretch < lowest_seen_stretch
                             ? pow(stretch, -clock_by_stretch)
                             : lowest_seen * lowest_seen_stretch / stretch;
    return fmax(clock, lowest_clock);
}

/* How fast clock_of falls: its derivative, without the sign. */
static double clock_falls(double stretch) {
    const double clock = clock_of(stretch);
    return clock > lowest_clock
               ? (stretch < lowest_seen_stretch ? clock_by_stretch : 1) * clock / stretch
               : 0;
}

/* Over the one at the clock of long runs. */
static double voltage_at(double clock) {
    return 1 + joules_by_clock / 2 * (clock / settled_clock - 1);
}

/* Energy of products and attention over that at the clock of long runs. */
static double joules_at(double clock) {
    return voltage_at(clock) * voltage_at(clock);
}

/* J/byte of what products and attention read, mostly, over that of a copy: until points say. */
static const double operand_share = 0.565;

/* A GPU of 700 W settles at 690 W, and draws 150 of them whatever runs: others as much of what they
 * ship with. */
static const double settled = 690.0 / 700.0, idle_share = 150.0 / 700.0;

/* J/FLOP of BF16 over an H200's: power over the best product that was measured, of the first GPU of
 * each architecture with such a figure (profiles/clusters: a100, b200, mi300x, mi355x), over 700 W
 * and 794.5 TFLOP/s of the H100. So all of them settle as far below their best product as it does.
 */
static const struct {
    const char *arch;
    double W, flops;
} architectures[] = {{"ampere", 400, 271.2e12},
                     {"blackwell", 1000, 1745e12},
                     {"cdna3", 750, 668.4e12},
                     {"cdna4", 1400, 1565e12},
                     {"", 700, 794.5e12}};

/* The highest clock of the multiprocessors, by the driver: of H100 and H200. */
static const struct {
    const char *arch;
    double Hz;
} clocks[] = {{"hopper", 1980e6}, {"", 0}};

/* The power that a GPU draws whatever runs is at most this share of its power cap. */
static const double most_idle = 0.8;

/* J/FLOP over that of BF16. FP8: 22 kernels on one H200 (`profile --energy`, 2026-11-24); FP32 and
 * FP4 are assumptions: work of the matrix units by width. */
static const double narrower[MF_MATH_COUNT] = {
    [MF_MATH_FP32] = 4, [MF_MATH_BF16] = 1, [MF_MATH_FP8] = 0.6, [MF_MATH_FP4] = 0.3};

enum { PRODUCT, ATTENTION, ATTENTION_BWD };

void mf_energy_init(mf_energy *m, const mf_cluster *c, double shipped_W) {
    const mf_gpu *gpu = &c->gpu;
    size_t at = 0, clock = 0;
    while (clocks[clock].arch[0] != '\0' && strcmp(clocks[clock].arch, gpu->arch) != 0) {
        clock++;
    }
    while (architectures[at].arch[0] != '\0' && strcmp(architectures[at].arch, gpu->arch) != 0) {
        at++;
    }
    *m = (mf_energy){.cap_W = settled * gpu->power_w,
                     .shipped_cap_W = settled * shipped_W,
                     .idle_W = fmin(idle_share * shipped_W, most_idle * settled * gpu->power_w),
                     .clock_Hz = clocks[clock].Hz,
                     .byte_J = h200.byte_J,
                     .operand_J = operand_share * h200.byte_J};
    for (int math = 0; math < MF_MATH_COUNT; math++) {
        const double share =
            architectures[at].W / architectures[at].flops / (700 / 794.5e12) * narrower[math];
        m->flop_J[PRODUCT][math] = share * h200.product_J;
        m->flop_J[ATTENTION][math] = share * h200.attention_J;
        m->flop_J[ATTENTION_BWD][math] = share * h200.attention_bwd_J;
    }
    if (mf_cluster_is_cpu(c)) { /* charged their full power, busy or idle */
        *m = (mf_energy){.cap_W = gpu->power_w, .shipped_cap_W = shipped_W, .idle_W = gpu->power_w};
    }
}

/* --- of an op --------------------------------------------------------------------------------- */

/* Queries and outputs, keys and values, once; their gradients and another reading of them. */
static double attention_bytes(const mf_op *op) {
    const int64_t *d = op->dim;
    double widths = (double)(d[MF_OP_DIM_D_QK] + d[MF_OP_DIM_D_V]);
    double rows = (double)d[MF_OP_DIM_SEQ_Q] * (double)d[MF_OP_DIM_HEADS] +
                  (double)d[MF_OP_DIM_SEQ_K] * (double)d[MF_OP_DIM_KV_HEADS];
    double once = (double)d[MF_OP_DIM_BATCH] * rows * widths * mf_math_element_B(op->math);
    return op->kind == MF_OP_ATTENTION_BWD ? 2.5 * once : once;
}

/* Of the 4,096 tokens of the kernel that attention's energy is from: half a block of 128 keys
 * beside the 2,048 that a query sees. */
static const double walked_then = 1 + 64 / 2048.5;

/* FLOPs that take as much energy with heads of 128 and 4,096 tokens. Exponentials and sums are one
 * a pair of tokens, however wide the head: what attention takes above products of as many FLOPs is
 * theirs. */
static double attention_flops(const mf_op *op) {
    const double of_128 = op->kind == MF_OP_ATTENTION_BWD ? h200.attention_bwd_J : h200.attention_J;
    const double widths = (double)(op->dim[MF_OP_DIM_D_QK] + op->dim[MF_OP_DIM_D_V]);
    const double pairs = 1 - h200.product_J / of_128;
    const double flops = op->flops * mf_attention_walked(op) / walked_then;
    return widths > 0 ? flops * (1 + pairs * (256 / widths - 1)) : flops;
}

/* Terms beside the idle one: bytes, FLOPs as BF16's. */
static void terms_of(const mf_op *op, double x[MF_ENERGY_TERMS]) {
    memset(x, 0, MF_ENERGY_TERMS * sizeof *x);
    switch (mf_op_kind_class((mf_op_kind)op->kind)) {
    case MF_CLASS_GEMM:
    case MF_CLASS_GROUPED:
        x[MF_ENERGY_PRODUCT] = op->flops;
        x[MF_ENERGY_OPERAND] = mf_gemm_bytes(op);
        break;
    case MF_CLASS_ATTENTION:
        x[op->kind == MF_OP_ATTENTION_BWD ? MF_ENERGY_ATTENTION_BWD : MF_ENERGY_ATTENTION] =
            attention_flops(op);
        x[MF_ENERGY_OPERAND] = attention_bytes(op);
        break;
    case MF_CLASS_MEMORY:
    case MF_CLASS_COPY:
        x[MF_ENERGY_BYTE] = op->bytes;
        break;
    case MF_CLASS_COLLECTIVE:
    case MF_CLASS_P2P: /* read here, written there */
        x[MF_ENERGY_BYTE] = 2 * op->bytes;
        break;
    }
}

/* Energy of the op above what the GPU draws anyway, at the clock of long runs; not its pass over
 * memory (mf_op_pass). */
static double own_J(const mf_energy *m, const mf_op *op) {
    double x[MF_ENERGY_TERMS];
    terms_of(op, x);
    return m->byte_J * x[MF_ENERGY_BYTE] + m->operand_J * x[MF_ENERGY_OPERAND] +
           m->flop_J[PRODUCT][op->math] * x[MF_ENERGY_PRODUCT] +
           m->flop_J[ATTENTION][op->math] * x[MF_ENERGY_ATTENTION] +
           m->flop_J[ATTENTION_BWD][op->math] * x[MF_ENERGY_ATTENTION_BWD];
}

/* While a collective is in flight, beside its bytes in memory: of the runs of two and four H200
 * that may be fitted, power is 3.2 and 5.3 % off with it and the clock 2.8 and 4.0; with 220 W 3.6
 * and 5.5, and 3.0 and 4.4. Two H200 that do nothing but reduce 128 MB draw 157 W more than at
 * rest, the bytes included; one that waits in a collective for the other draws no more than at
 * rest. Of other GPUs as much of what they ship with. */
static const double flight_W = 260, h200_cap_W = 690;

mf_power mf_cost_power(const mf_cost *cost) {
    const mf_energy *m = &cost->energy;
    return (mf_power){.cap_W = m->cap_W,
                      .idle_W = m->idle_W,
                      .clock_Hz = m->clock_Hz,
                      .settled_clock = settled_clock,
                      .flight_W = mf_cluster_is_cpu(&cost->cluster)
                                      ? 0
                                      : flight_W * m->shipped_cap_W / h200_cap_W,
                      .measured = m->measured};
}

double mf_cost_clock_share(double stretch) {
    return clock_of(stretch);
}

bool mf_cost_is_clocked(const mf_op *op) {
    mf_op_class class = mf_op_kind_class((mf_op_kind)op->kind);
    return class == MF_CLASS_GEMM || class == MF_CLASS_GROUPED || class == MF_CLASS_ATTENTION;
}

bool mf_cost_is_collective(const mf_op *op) {
    mf_op_class class = mf_op_kind_class((mf_op_kind)op->kind);
    return class == MF_CLASS_COLLECTIVE || class == MF_CLASS_P2P;
}

/* NCCL's kernels move what they send through multiprocessors: inside a domain, where no network is
 * what they wait for, they take as long as the clock says. Rested it was the highest, in a step it
 * is about that of long runs: of DeepSeek-V3 with TP 2 on two H200 they take 18 % more, and up. So
 * do CP's collectives (no run with CP may be fitted: this is TP's figure); its rings, which run
 * beside attention, are left as they are. */
double mf_cost_slowed(const mf_cost *cost, const mf_op *op, double stretch) {
    mf_price p;
    if (mf_cost_is_clocked(op)) {
        return stretch;
    }
    const bool waited_for = op->stream == MF_STREAM_TP ||
                            (op->stream == MF_STREAM_CP &&
                             mf_op_kind_class((mf_op_kind)op->kind) == MF_CLASS_COLLECTIVE);
    if (!(cost->software.power_cap > 0) || !mf_cost_is_collective(op) || !waited_for) {
        return 1;
    }
    mf_cost_op(cost, op, 1, &p);
    if (p.link != MF_LINK_SCALEUP || p.time_s <= 0) {
        return 1;
    }
    mf_op pass;
    mf_price over_memory = {0};
    if (mf_chunk_pass(op, &pass)) { /* as fast at any clock */
        mf_cost_op(cost, &pass, 1, &over_memory);
    }
    return 1 + (1 / settled_clock - 1) * (1 - over_memory.time_s / p.time_s);
}

double mf_cost_energy_J(const mf_cost *cost, const mf_op *op, double load, double time_s,
                        double clock) {
    mf_op o = mf_cost_loaded(op, load), pass;
    const bool passes = mf_op_pass(&cost->cluster, &o, &pass);
    const double drawn_W =
        cost->energy.idle_W + (mf_cost_is_collective(op) ? mf_cost_power(cost).flight_W : 0);
    return drawn_W * time_s +
           own_J(&cost->energy, &o) * (mf_cost_is_clocked(op) ? joules_at(clock) : 1) +
           (passes ? own_J(&cost->energy, &pass) : 0);
}

/* Finds the stretch at which the work draws just the power cap: a slower clock gives it more time
 * and it needs less energy. The excess is convex in the stretch, so Newton's steps come from below.
 */
static double stretch_under(double cap_W, const mf_energy *m, const mf_work *w) {
    const double spare_W = fmax(cap_W - m->idle_W, 1);
    double stretch = 1;
    for (int i = 0; i < 40 && w->clocked_s > 0 && stretch < most_stretch; i++) {
        const double clock = clock_of(stretch);
        const double over_J = w->clocked_J * joules_at(clock) + w->other_J -
                              spare_W * (stretch * w->clocked_s + w->other_s);
        const double falls_J = w->clocked_J * joules_by_clock * voltage_at(clock) / settled_clock *
                               clock_falls(stretch);
        const double step = over_J / (spare_W * w->clocked_s + falls_J);
        if (!(step > 1e-13)) {
            break;
        }
        stretch += step;
    }
    return fmin(stretch, most_stretch);
}

double mf_cost_stretch_of(const mf_cost *cost, const mf_work *w) {
    return stretch_under(cost->energy.cap_W, &cost->energy, w);
}

bool mf_cost_is_capped(const mf_cost *cost) {
    const mf_energy *m = &cost->energy;
    return !mf_cluster_is_cpu(&cost->cluster) &&
           (cost->software.power_cap > 0 ||
            (cost->software.fitted_power > 0 && m->cap_W < m->shipped_cap_W));
}

double mf_cost_sustained_s(const mf_cost *cost, const mf_op *op, double load, double time_s) {
    const mf_energy *m = &cost->energy;
    const mf_op o = mf_cost_loaded(op, load);
    const double J = own_J(m, &o);
    if (mf_cost_is_clocked(op)) {
        return time_s * stretch_under(m->cap_W, m, &(mf_work){.clocked_s = time_s, .clocked_J = J});
    }
    return J > 0 ? fmax(time_s, J / fmax(m->cap_W - m->idle_W, 1)) : time_s;
}

/* --- of a block ------------------------------------------------------------------------------- */

double mf_cost_stretch(const mf_cost *cost, const mf_block *b, double load, const double *op_s) {
    const mf_energy *m = &cost->energy;
    const bool fitted = !(cost->software.power_cap > 0);
    const double more = fitted ? cost->software.fitted_power : cost->software.power_cap;
    mf_work w = {0};
    if (!mf_cost_is_capped(cost)) {
        return 1;
    }
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        const bool clocked = mf_cost_is_clocked(op);
        mf_op loaded = mf_cost_loaded(op, load), pass;
        if (mf_dispatch_pass(&cost->cluster, &loaded, &pass) ||
            mf_chunk_pass(&loaded, &pass)) { /* as if nothing computed meanwhile */
            mf_price p;
            mf_cost_op(cost, &pass, 1.0, &p);
            w.other_s += p.time_s;
            w.other_J += own_J(&cost->energy, &pass);
        }
        if (op->stream != MF_STREAM_COMPUTE) {
            continue;
        }
        mf_price p = {.time_s = op_s != NULL ? op_s[i] : 0};
        if (op_s == NULL) {
            mf_cost_op(cost, op, load, &p);
        }
        *(clocked ? &w.clocked_s : &w.other_s) += p.time_s;
        *(clocked ? &w.clocked_J : &w.other_J) += own_J(&cost->energy, &loaded);
        if (mf_bias_pass(&loaded, &pass)) {
            w.other_J += own_J(&cost->energy, &pass);
        }
    }
    w.clocked_J *= more;
    w.other_J *= more;
    return stretch_under(m->cap_W, m, &w) / (fitted ? stretch_under(m->shipped_cap_W, m, &w) : 1);
}

/* --- from points ------------------------------------------------------------------------------ */

/* Fewer points do not determine the terms. Shorter kernels are mostly launches: of 29 kernels of 3
 * to 50 us on an H200 18 drew less than 500 W. */
enum { ENERGIES_MIN = 12 };
static const double least_s = 50e-6;
static const double point_noise = 0.05, prior_spread = 0.3;

/* Solves a[n][n] x = b for a symmetric positive matrix; b becomes x. */
static void solve(double a[MF_ENERGY_TERMS][MF_ENERGY_TERMS], double b[MF_ENERGY_TERMS]) {
    const int n = MF_ENERGY_TERMS;
    for (int k = 0; k < n; k++) {
        for (int i = k + 1; i < n; i++) {
            double f = a[i][k] / a[k][k];
            for (int j = k; j < n; j++) {
                a[i][j] -= f * a[k][j];
            }
            b[i] -= f * b[k];
        }
    }
    for (int k = n - 1; k >= 0; k--) {
        for (int j = k + 1; j < n; j++) {
            b[k] -= a[k][j] * b[j];
        }
        b[k] /= a[k][k];
    }
}

/* Least squares of relative errors over factors on the terms as they were carried over, each of
 * which is held near 1. */
void mf_energy_fit(mf_energy *m, const mf_energy_point *point, size_t n) {
    double a[MF_ENERGY_TERMS][MF_ENERGY_TERMS] = {{0}}, b[MF_ENERGY_TERMS];
    size_t long_ones = 0;
    for (size_t i = 0; i < n; i++) {
        long_ones += point[i].sustained_s >= least_s;
    }
    if (long_ones < ENERGIES_MIN) {
        return;
    }
    for (int k = 0; k < MF_ENERGY_TERMS; k++) {
        a[k][k] = b[k] = 1 / (prior_spread * prior_spread);
    }
    for (size_t i = 0; i < n; i++) {
        const mf_energy_point *p = &point[i];
        double x[MF_ENERGY_TERMS], weight = 1 / (point_noise * p->energy_J);
        const double at_clock = joules_at(clock_of(fmax(1, p->sustained_s / p->rested_s)));
        if (p->sustained_s < least_s) {
            continue;
        }
        terms_of(&p->op, x);
        x[MF_ENERGY_BYTE] *= m->byte_J * weight;
        x[MF_ENERGY_OPERAND] *= m->operand_J * at_clock * weight;
        x[MF_ENERGY_PRODUCT] *= m->flop_J[PRODUCT][p->op.math] * at_clock * weight;
        x[MF_ENERGY_ATTENTION] *= m->flop_J[ATTENTION][p->op.math] * at_clock * weight;
        x[MF_ENERGY_ATTENTION_BWD] *= m->flop_J[ATTENTION_BWD][p->op.math] * at_clock * weight;
        x[MF_ENERGY_IDLE] = m->idle_W * p->sustained_s * weight;
        for (int j = 0; j < MF_ENERGY_TERMS; j++) {
            for (int k = 0; k < MF_ENERGY_TERMS; k++) {
                a[j][k] += x[j] * x[k];
            }
            b[j] += x[j] / point_noise;
        }
    }
    solve(a, b);
    for (int k = 0; k < MF_ENERGY_TERMS; k++) {
        b[k] = fmin(fmax(b[k], 0.1), 10);
    }
    m->byte_J *= b[MF_ENERGY_BYTE];
    m->operand_J *= b[MF_ENERGY_OPERAND];
    m->idle_W = fmin(m->idle_W * b[MF_ENERGY_IDLE], most_idle * m->cap_W);
    for (int math = 0; math < MF_MATH_COUNT; math++) {
        m->flop_J[PRODUCT][math] *= b[MF_ENERGY_PRODUCT];
        m->flop_J[ATTENTION][math] *= b[MF_ENERGY_ATTENTION];
        m->flop_J[ATTENTION_BWD][math] *= b[MF_ENERGY_ATTENTION_BWD];
    }
    m->measured = true;
}
