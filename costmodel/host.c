/* host.c - what ops cost the host that issues them: as the software profile says, or as launches
 * were measured. */
#include "costmodel/cost_internal.h"

#include <math.h>

/* Launches behind one op of the program, as eager frameworks and our executor issue them. */
static double launches(const mf_op *op) {
    static const uint8_t count[MF_OP_COUNT] = {
        [MF_OP_ATTENTION_BWD] = 3,     [MF_OP_EMBEDDING_BWD] = 2,  [MF_OP_RMSNORM_BWD] = 2,
        [MF_OP_ROUTER_FWD] = 6,        [MF_OP_ROUTER_BWD] = 5,     [MF_OP_PERMUTE] = 3,
        [MF_OP_UNPERMUTE] = 2,         [MF_OP_GRAD_NORM] = 3,      [MF_OP_ADAMW] = 4,
        [MF_OP_CROSS_ENTROPY_FWD] = 3, [MF_OP_DISPATCH] = 4,       [MF_OP_COMBINE] = 3,
        [MF_OP_GROUPED_GEMM] = 2,      [MF_OP_ROUTER_DROP] = 2,    [MF_OP_SCAN_FWD] = 5,
        [MF_OP_SCAN_BWD] = 8,          [MF_OP_INDEX_FWD] = 3,      [MF_OP_INDEX_BWD] = 4,
        [MF_OP_CONV_BWD] = 2,          [MF_OP_GATED_NORM_BWD] = 2, [MF_OP_COMPRESS_FWD] = 2,
        [MF_OP_COMPRESS_BWD] = 3,      [MF_OP_HYPER_READ_FWD] = 2, [MF_OP_HYPER_READ_BWD] = 3,
        [MF_OP_HYPER_WRITE_BWD] = 2,   [MF_OP_CROSS_ENTROPY] = 2,
    };
    return count[op->kind] > 0 ? count[op->kind] : 1;
}

static double host_speed(const mf_cost *cost) {
    double share = cost->software.gpu_eff[MF_RATE_HOST][cost->gpu_kind];
    return share > 0 ? share : 1;
}

/* Host time of one launch. */
static double launch_s(const mf_cost *cost, mf_graph_mode graph) {
    const mf_software *s = &cost->software;
    if (!(s->host_measured > 0) || !(cost->launch.stream_s > 0)) {
        return s->host_op_s * s->host_graph[graph] / host_speed(cost);
    }
    return graph == MF_GRAPH_STEP && cost->launch.replay_s > 0
               ? cost->launch.replay_s
               : cost->launch.stream_s * s->host_graph[graph];
}

double mf_cost_host_s(const mf_cost *cost, const mf_op *op, mf_graph_mode graph) {
    return launches(op) * launch_s(cost, graph);
}

double mf_cost_host_block_s(const mf_cost *cost, mf_graph_mode graph) {
    return cost->software.host_layer_s * cost->software.host_graph[graph] / host_speed(cost);
}

/* Share of it that remains where the host need not know the counts: gaps between small kernels. */
static const double without_counts = 0.2;

double mf_cost_host_sync_s(const mf_cost *cost, const mf_op *op, mf_graph_mode graph) {
    bool routes =
        (op->kind == MF_OP_ROUTER_FWD && op->pass == MF_PASS_F) || op->kind == MF_OP_ROUTER_BWD;
    double sync_s = routes ? cost->software.moe_sync_s : 0;
    sync_s *= op->flags & MF_OPF_CAPACITY ? without_counts : 1;
    return sync_s * cost->software.host_graph[graph] / host_speed(cost);
}
