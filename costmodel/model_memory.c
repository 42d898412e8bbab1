/* model_memory.c - time of ops bound by device memory, and of copies to and from the host.
 *
 * launch + bytes / (copy bandwidth x efficiency of the kind); what fits into L2 moves faster. The
 * efficiencies are priors until the kind is measured (points "memory op=KIND bytes=..."): streaming
 * kernels reach nearly the copy rate, reductions and gathers less.
 */
#include "costmodel/cost_internal.h"

#include <math.h>

enum { P_EFF, P_LAUNCH_S, P_RATE };
static const double l2_gain = 1.6;  /* reading what the last kernel left in L2 */
static const double l2_limit = 2.5; /* no GPU's L2 is faster than this over its memory */

double mf_memory_limit_s(const mf_cost_device *d, double bytes) {
    return fmax(bytes - d->l2_B, bytes / l2_limit) / d->memory_Bps;
}

static double memory_time(const mf_cost_device *d, const mf_op *op, const double *t) {
    double cached = d->l2_B > 0 ? 1 / (1 + op->bytes / d->l2_B) : 0;
    double rate = d->copy_Bps * t[P_EFF] * (1 + (l2_gain - 1) * cached * cached);
    return t[P_LAUNCH_S] + op->bytes / rate;
}

static double copy_time(const mf_cost_device *d, const mf_op *op, const double *t) {
    return t[P_LAUNCH_S] + op->bytes / (d->host_Bps * t[P_EFF]);
}

static int size_coords(const mf_op *op, double *x) {
    x[0] = log(fmax(1, op->bytes));
    return 1;
}

/* Kinds with products of their own: the longer of their traffic and of those. What share of the
 * rate of large products small ones reach inside a recurrence or a selection nobody has measured
 * here: the priors are wide, and so are the bands. */
static double products_time(const mf_cost_device *d, const mf_op *op, const double *t) {
    double rate = d->rate[op->math] * t[P_RATE];
    return fmax(memory_time(d, op, t), t[P_LAUNCH_S] + op->flops / rate);
}

#define PRODUCTS_FAMILY(label, eff, launch_us, rate)                                               \
    { label, 3, {eff, launch_us * 1e-6, rate}, {0.3, 0.3, 0.6}, products_time, size_coords, 0.5, }

/* Efficiency prior and launch prior (several small kernels: several launches). */
#define MEMORY_FAMILY(label, eff, launch_us)                                                       \
    { label, 2, {eff, launch_us * 1e-6}, {0.15, 0.3}, memory_time, size_coords, 0.12, }
static const mf_family memory_kinds[MF_OP_COUNT] = {
    [MF_OP_RELU2_FWD] = MEMORY_FAMILY("relu2_fwd", 0.92, 3.5),
    [MF_OP_RELU2_BWD] = MEMORY_FAMILY("relu2_bwd", 0.90, 3.5),
    [MF_OP_CONV_FWD] = MEMORY_FAMILY("conv_fwd", 0.60, 4),
    [MF_OP_CONV_BWD] = MEMORY_FAMILY("conv_bwd", 0.45, 8),
    [MF_OP_DECAY_FWD] = MEMORY_FAMILY("decay_fwd", 0.70, 4),
    [MF_OP_DECAY_BWD] = MEMORY_FAMILY("decay_bwd", 0.50, 8),
    [MF_OP_GATED_NORM_FWD] = MEMORY_FAMILY("gated_norm_fwd", 0.80, 4),
    [MF_OP_GATED_NORM_BWD] = MEMORY_FAMILY("gated_norm_bwd", 0.65, 8),
    [MF_OP_SCAN_FWD] = PRODUCTS_FAMILY("scan_fwd", 0.70, 25, 0.25),
    [MF_OP_SCAN_BWD] = PRODUCTS_FAMILY("scan_bwd", 0.60, 50, 0.20),
    [MF_OP_COMPRESS_FWD] = MEMORY_FAMILY("compress_fwd", 0.60, 8),
    [MF_OP_COMPRESS_BWD] = MEMORY_FAMILY("compress_bwd", 0.45, 12),
    [MF_OP_HYPER_READ_FWD] = MEMORY_FAMILY("hyper_read_fwd", 0.70, 8),
    [MF_OP_HYPER_READ_BWD] = MEMORY_FAMILY("hyper_read_bwd", 0.55, 12),
    [MF_OP_HYPER_WRITE_FWD] = MEMORY_FAMILY("hyper_write_fwd", 0.85, 4),
    [MF_OP_HYPER_WRITE_BWD] = MEMORY_FAMILY("hyper_write_bwd", 0.65, 8),
    [MF_OP_INDEX_FWD] = PRODUCTS_FAMILY("index_fwd", 0.70, 15, 0.40),
    [MF_OP_INDEX_BWD] = PRODUCTS_FAMILY("index_bwd", 0.60, 25, 0.25),
    [MF_OP_EMBEDDING_FWD] = MEMORY_FAMILY("embedding_fwd", 0.80, 4),
    [MF_OP_EMBEDDING_BWD] = MEMORY_FAMILY("embedding_bwd", 0.50, 8),
    [MF_OP_RMSNORM_FWD] = MEMORY_FAMILY("rmsnorm_fwd", 0.88, 3.5),
    [MF_OP_RMSNORM_BWD] = MEMORY_FAMILY("rmsnorm_bwd", 0.78, 7),
    [MF_OP_NORM_SUM] = MEMORY_FAMILY("norm_sum", 0.85, 3.5),
    [MF_OP_ROPE_FWD] = MEMORY_FAMILY("rope_fwd", 0.85, 3.5),
    [MF_OP_ROPE_BWD] = MEMORY_FAMILY("rope_bwd", 0.85, 3.5),
    [MF_OP_SWIGLU_FWD] = MEMORY_FAMILY("swiglu_fwd", 0.92, 3.5),
    [MF_OP_SWIGLU_BWD] = MEMORY_FAMILY("swiglu_bwd", 0.90, 3.5),
    [MF_OP_ADD] = MEMORY_FAMILY("add", 0.95, 3.5),
    [MF_OP_GATE_FWD] = MEMORY_FAMILY("gate_fwd", 0.85, 3.5),
    [MF_OP_GATE_BWD] = MEMORY_FAMILY("gate_bwd", 0.80, 5),
    [MF_OP_ROUTER_FWD] = MEMORY_FAMILY("router_fwd", 0.50, 15),
    [MF_OP_ROUTER_BWD] = MEMORY_FAMILY("router_bwd", 0.50, 10),
    [MF_OP_ROUTER_DROP] = MEMORY_FAMILY("router_drop", 0.30, 15),
    [MF_OP_PERMUTE] = MEMORY_FAMILY("permute", 0.80, 6),
    [MF_OP_UNPERMUTE] = MEMORY_FAMILY("unpermute", 0.75, 6),
    [MF_OP_SPLIT] = MEMORY_FAMILY("split", 0.95, 3.5),
    [MF_OP_QUANTISE] = MEMORY_FAMILY("quantise", 0.75, 4),
    [MF_OP_BIAS_BWD] = MEMORY_FAMILY("bias_bwd", 0.80, 5),
    [MF_OP_ATTENTION_MERGE] = MEMORY_FAMILY("attention_merge", 0.85, 4),
    [MF_OP_CROSS_ENTROPY] = MEMORY_FAMILY("cross_entropy", 0.74, 7),
    [MF_OP_CROSS_ENTROPY_FWD] = MEMORY_FAMILY("cross_entropy_fwd", 0.80, 8),
    [MF_OP_CROSS_ENTROPY_BWD] = MEMORY_FAMILY("cross_entropy_bwd", 0.88, 4),
    [MF_OP_GRAD_NORM] = MEMORY_FAMILY("grad_norm", 0.90, 10),
    [MF_OP_ADAMW] = MEMORY_FAMILY("adamw", 0.90, 10),
    [MF_OP_CAST] = MEMORY_FAMILY("cast", 0.92, 4),
};

const mf_family *mf_family_memory(mf_op_kind kind) {
    return memory_kinds[kind].base != NULL ? &memory_kinds[kind] : NULL;
}

/* Pinned copies reach 0.88 of PCIe 5 x16 (H200: 55.4 and 55.1 of 63 GB/s; facts of
 * profiles/clusters). */
const mf_family mf_family_copy = {
    "copy", 2, {0.88, 8e-6}, {0.1, 0.3}, copy_time, size_coords, 0.05,
};
