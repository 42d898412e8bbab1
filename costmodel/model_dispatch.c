/* model_dispatch.c - tokens to their experts and back, by NCCL all-to-all and by the fused
 * dispatchers (one copy per destination rank over NVLink; across domains one copy per destination
 * domain over RDMA, forwarded there by NVLink: DeepEP, HybridEP). The all-gather dispatcher is a
 * collective and priced as one.
 *
 * Rows that leave a rank: k copies per token (all-to-all), or the expected number of distinct
 * ranks and domains that the k experts of a token lie on. NVLink and network work at the same
 * time; the slower one counts.
 */
#include "costmodel/cost_internal.h"

#include <math.h>

/* Parameters: efficiency of the scale-up link, of the network, fixed time (metadata, barriers); of
 * the all-to-all, how slowly bandwidth climbs at middle sizes (as collective.c has it). */
enum { P_IN, P_NET, P_FIXED_S, P_CLIMB };

typedef struct traffic {
    double in_B, net_B; /* that leave a rank by either link */
} traffic;

/* Choices of the fullest rank over the mean of ranks: what routing adds to the op's bytes. */
static double load_of(const mf_op *op) {
    double balanced = (double)op->dim[MF_OP_DIM_TOKENS] * (double)op->dim[MF_OP_DIM_TOP_K] *
                      (double)op->dim[MF_OP_DIM_ROW_B];
    return balanced > 0 ? op->bytes / balanced : 1;
}

/* Share of the tokens with at least one of k choices on a rank that gets `load` times its part of
 * the choices, over that of a balanced one: a token is sent once however many choices lie there. */
static double sent_part(const mf_op *op, const mf_geometry *g) {
    double k = (double)op->dim[MF_OP_DIM_TOP_K], load = load_of(op);
    if (!(load > 1) || k < 1 || g->n <= 1) {
        return load;
    }
    return (1 - pow(1 - fmin(1, load / g->n), k)) / (1 - pow(1 - 1 / g->n, k));
}

static traffic all_to_all_traffic(const mf_op *op, const mf_geometry *g) {
    double bytes = op->bytes;
    return (traffic){bytes * (g->inside - 1) / g->n, bytes * (g->n - g->inside) / g->n};
}

static double route_groups(const mf_op *op) {
    return op->dim[MF_OP_DIM_ROUTE_GROUPS] > 0 ? (double)op->dim[MF_OP_DIM_ROUTE_GROUPS] : 8;
}

static traffic fused_traffic(const mf_op *op, const mf_geometry *g) {
    double tokens_B = op->bytes / load_of(op) / fmax(1, (double)op->dim[MF_OP_DIM_TOP_K]);
    tokens_B *= sent_part(op, g);
    double experts = (double)op->dim[MF_OP_DIM_EXPERTS], k = (double)op->dim[MF_OP_DIM_TOP_K];
    double limit = (double)op->dim[MF_OP_DIM_GROUPS_MAX];
    double groups = route_groups(op);
    double ranks = mf_expected_hits(experts, k, g->n, groups, limit);
    traffic t = {tokens_B * ranks * (g->inside - 1) / g->inside, 0};
    if (g->domains > 1) {
        double domains = mf_expected_hits(experts, k, g->domains, groups, limit);
        t.net_B = tokens_B * domains * (g->domains - 1) / g->domains;
    }
    return t;
}

bool mf_dispatch_pass(const mf_cluster *c, const mf_op *op, mf_op *out) {
    const bool dispatch = op->kind == MF_OP_DISPATCH;
    if (!(dispatch || (op->kind == MF_OP_COMBINE && mf_cluster_is_cpu(c))) ||
        op->dim[MF_OP_DIM_ORDERED] <= 0) {
        return false;
    }
    const double come = (double)op->dim[MF_OP_DIM_TOKENS] *
                        mf_expected_hits((double)op->dim[MF_OP_DIM_EXPERTS],
                                         (double)op->dim[MF_OP_DIM_TOP_K], (double)op->shape.size,
                                         route_groups(op), (double)op->dim[MF_OP_DIM_GROUPS_MAX]);
    const double rows = come + (double)op->dim[MF_OP_DIM_ORDERED];
    *out = (mf_op){.kind = dispatch ? MF_OP_PERMUTE : MF_OP_UNPERMUTE,
                   .pass = op->pass,
                   .math = op->math,
                   .shape = {1, 1},
                   .bytes = load_of(op) * rows * (double)op->dim[MF_OP_DIM_ROW_B]};
    return true;
}

static double link_time(const mf_geometry *g, traffic v, const double *t) {
    return fmax(v.in_B / (g->in_Bps * t[P_IN]), v.net_B / (g->net_Bps * t[P_NET]));
}

static double fused_time(const mf_cost_device *d, const mf_op *op, const double *t) {
    mf_geometry g;
    mf_geometry_of(d->cluster, op->shape, &g);
    return t[P_FIXED_S] + link_time(&g, fused_traffic(op, &g), t) +
           2 * g.net_latency_s * (g.domains > 1);
}

static double all_to_all_time(const mf_cost_device *d, const mf_op *op, const double *t) {
    mf_geometry g;
    mf_geometry_of(d->cluster, op->shape, &g);
    double link_s = link_time(&g, all_to_all_traffic(op, &g), t);
    return t[P_FIXED_S] + link_s + t[P_CLIMB] * sqrt(t[P_FIXED_S] * link_s) + 0.3e-6 * g.n;
}

static int dispatch_coords(const mf_op *op, double *x) {
    x[0] = log(fmax(1, op->bytes));
    x[1] = log((double)op->shape.size);
    x[2] = log((double)op->shape.stride);
    x[3] = 0.3 * log(fmax(1, (double)op->dim[MF_OP_DIM_TOP_K])); /* the formula knows most of it */
    x[4] = log(fmax(0.1, load_of(op)));
    return 5;
}

double mf_dispatch_limit_s(const mf_cluster *c, const mf_op *op) {
    mf_geometry g;
    mf_geometry_of(c, op->shape, &g);
    traffic v = fused_traffic(op, &g);
    if (op->dim[MF_OP_DIM_DISPATCHER] == MF_DISPATCH_ALLTOALL) {
        v = all_to_all_traffic(op, &g);
    }
    return fmax(v.in_B / g.in_peak_Bps, v.net_B / g.net_peak_Bps);
}

/* Priors: HybridEP on 8 and 64 GB200 and H100 (391, 675, 661, 4626 us for 4,096 tokens of 14,336 B,
 * 8 of 256 experts in 4 of 8 groups) and NCCL's all-to-all there (735, 930, 1265, 9164 us). */
const mf_family mf_family_dispatch_fused = {
    "dispatch (fused)", 3, {0.90, 1.0, 80e-6}, {0.15, 0.1, 0.5}, fused_time, dispatch_coords, 0.12,
};
const mf_family mf_family_dispatch_alltoall = {
    "dispatch (all-to-all)", 4,    {0.90, 1.0, 20e-6, 0.3}, {0.15, 0.1, 0.5, 1.0}, all_to_all_time,
    dispatch_coords,         0.12,
};
