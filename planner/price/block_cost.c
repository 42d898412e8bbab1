/* block_cost.c - the cost of a block from the times of its ops: sums, and longest paths. */
#include "planner/price/block_cost.h"

#include <math.h>

/* Streams run their ops in order; an op waits for the producers of what it reads, a piece of an
 * overlapped op at least for the first piece. Without host and contention this is the least time
 * any play of the block can take. */
typedef struct path {
    double stream_s[MF_STREAM_COUNT]; /* end of the last op of each stream */
    double handed_s;                  /* the tensors that the next block waits for are there */
    double *first_s, *ready_s; /* [tensors] when its first, its last producer is done; no producer:
                                * +-HUGE_VAL */
} path;

/* Where ops of some passes stand. */
typedef struct ops_of {
    unsigned passes;
    int first, end;
} ops_of;

static ops_of find_ops(const mf_block *b, unsigned passes) {
    ops_of x = {.passes = passes};
    mf_block_ops_of(b, passes, &x.first, &x.end);
    return x;
}

/* start_s 0: ops that wait for nothing start with the block. -HUGE_VAL: they are done long before,
 * and what counts is how long the block takes from its boundary tensors on. */
static void path_init(path *p, const mf_block *b, const ops_of *x, double start_s) {
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        p->stream_s[s] = start_s;
    }
    p->handed_s = 0.0;
    for (int t = 0; t < b->ntensors; t++) {
        bool input = b->tensors[t].class == MF_TENSOR_BOUNDARY;
        p->first_s[t] = input ? 0.0 : HUGE_VAL;
        p->ready_s[t] = input ? 0.0 : -HUGE_VAL;
    }
    for (int i = x->first; i < x->end; i++) { /* tensors made by the passes are no inputs */
        const mf_op *op = &b->ops[i];
        for (int k = 0; k < op->nout && (op->pass & x->passes); k++) {
            p->first_s[op->out[k]] = HUGE_VAL;
            p->ready_s[op->out[k]] = -HUGE_VAL;
        }
    }
}

static void path_op(path *p, const mf_block *b, const mf_op *op, double time_s) {
    bool piece = (op->flags & MF_OPF_OVERLAPPED) != 0;
    double start_s = p->stream_s[op->stream];
    for (int i = 0; i < op->nin; i++) {
        double ready_s = piece ? p->first_s[op->in[i]] : p->ready_s[op->in[i]];
        start_s = ready_s > start_s && ready_s < HUGE_VAL ? ready_s : start_s;
    }
    double end_s = start_s + time_s;
    p->stream_s[op->stream] = end_s;
    for (int i = 0; i < op->nout; i++) {
        double *first_s = &p->first_s[op->out[i]], *ready_s = &p->ready_s[op->out[i]];
        *first_s = end_s < *first_s ? end_s : *first_s;
        *ready_s = end_s > *ready_s ? end_s : *ready_s;
        if (b->tensors[op->out[i]].class == MF_TENSOR_BOUNDARY && *ready_s > p->handed_s) {
            p->handed_s = *ready_s;
        }
    }
}

/* The part of a layer that a block is, in the passes that are priced. */
typedef enum block_part {
    WHOLE,
    FIRST_HALF, /* the other one starts when it is handed its input, beside weight gradients */
    SECOND_HALF /* what does not wait for its input may have run beside the other one */
} block_part;

void mf_block_cost_dp(mf_pass_cost *q, double rest_s, double dp_s) {
    q->bound_s = (dp_s > rest_s ? dp_s : rest_s) + q->sync_s;
}

/* *rest_s: bound_s without the data-parallel stream. scratch_s: for four figures of every tensor.
 */
static mf_pass_cost passes_cost(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                                const double *op_s, unsigned passes, block_part part,
                                double *rest_s, double *scratch_s) {
    mf_pass_cost q = {0};
    path p = {.first_s = scratch_s, .ready_s = scratch_s + b->ntensors};
    path from_input = {.first_s = scratch_s + 2 * b->ntensors,
                       .ready_s = scratch_s + 3 * b->ntensors};
    double busy_s[MF_STREAM_COUNT] = {0};
    const ops_of x = find_ops(b, passes);
    path_init(&p, b, &x, 0.0);
    if (part == SECOND_HALF) {
        path_init(&from_input, b, &x, -HUGE_VAL);
    }
    for (int i = x.first; i < x.end; i++) {
        const mf_op *op = &b->ops[i];
        if (!(op->pass & passes)) {
            continue;
        }
        double time_s = op_s[i];
        q.host_s += q.host_s > 0.0 ? 0.0 : mf_cost_host_block_s(cost, l->graph);
        q.host_s += mf_cost_host_s(cost, op, l->graph);
        q.sync_s += mf_cost_host_sync_s(cost, op, l->graph);
        busy_s[op->stream] += time_s;
        if (!mf_sim_detached(l, op)) {
            path_op(&p, b, op, time_s);
        }
        if (!mf_sim_detached(l, op) && part == SECOND_HALF) {
            path_op(&from_input, b, op, time_s);
        }
    }
    q.compute_s = busy_s[MF_STREAM_COMPUTE];
    q.ep_s = busy_s[MF_STREAM_EP];
    q.path_s = q.bound_s = p.stream_s[MF_STREAM_COMPUTE];
    if (part == FIRST_HALF) {
        q.path_s = p.handed_s;
    } else if (part == SECOND_HALF) {
        double end_s = from_input.stream_s[MF_STREAM_COMPUTE];
        q.path_s = end_s > 0.0 ? end_s : 0.0;
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        q.bound_s = busy_s[s] > q.bound_s && s != MF_STREAM_DP ? busy_s[s] : q.bound_s;
    }
    *rest_s = q.bound_s;
    q.path_s += q.sync_s;
    mf_block_cost_dp(&q, *rest_s, busy_s[MF_STREAM_DP]);
    return q;
}

static block_part part_of(const mf_block_key *key, bool forward) {
    if (key->kind != MF_POS_LAYER || key->parts == MF_HALF_BOTH) {
        return WHOLE;
    }
    return (key->parts == MF_HALF_ATTENTION) == forward ? FIRST_HALF : SECOND_HALF;
}

static void add_workspaces(const mf_block *b, bool split, mf_block_cost *q) {
    q->local_f_B = (double)b->local_f_B;
    q->local_b_B = (double)(split ? b->local_bs_B : b->local_b_B);
    q->local_w_B = split ? (double)b->local_w_B : 0.0;
}

enum { MOST_TOUCHED = MF_OP_MAX_IN + MF_OP_MAX_OUT };

/* Local tensors that an op of the passes touches where it computes; returns their number. */
static int touched(const mf_block *b, const mf_op *op, unsigned passes, int16_t out[MOST_TOUCHED]) {
    int n = 0;
    if ((op->pass & passes) == 0 || op->stream != MF_STREAM_COMPUTE) {
        return 0;
    }
    for (int k = 0; k < op->nin + op->nout; k++) {
        const int16_t t = k < op->nin ? op->in[k] : op->out[k - op->nin];
        if (b->tensors[t].class == MF_TENSOR_LOCAL) {
            out[n++] = t;
        }
    }
    return n;
}

/* The most bytes of local tensors that are between the first and the last touch of the passes'
 * compute ops at one moment: they lie side by side in any workspace. scratch: for two figures of
 * every tensor. */
static double most_alive_B(const mf_block *b, unsigned passes, double *scratch) {
    const ops_of x = find_ops(b, passes);
    double *last = scratch, *size_B = scratch + b->ntensors; /* 0: not alive */
    double alive_B = 0.0, most_B = 0.0;
    int16_t t[MOST_TOUCHED];
    for (int i = x.first; i < x.end; i++) {
        for (int k = touched(b, &b->ops[i], passes, t); k-- > 0;) {
            last[t[k]] = i;
            size_B[t[k]] = 0.0;
        }
    }
    for (int i = x.first; i < x.end; i++) {
        const int n = touched(b, &b->ops[i], passes, t);
        for (int k = 0; k < n; k++) {
            alive_B -= size_B[t[k]];
            size_B[t[k]] = (double)mf_align_B(b->tensors[t[k]].bytes);
            alive_B += size_B[t[k]];
        }
        most_B = alive_B > most_B ? alive_B : most_B;
        for (int k = 0; k < n; k++) {
            alive_B -= last[t[k]] <= i ? size_B[t[k]] : 0.0;
            size_B[t[k]] = last[t[k]] <= i ? 0.0 : size_B[t[k]];
        }
    }
    return most_B;
}

static void memory_cost(const mf_cost *cost, const mf_block *b, const mf_block_key *key,
                        double *scratch, mf_block_cost *q) {
    const bool split = key->split;
    bool cpu = mf_cluster_is_cpu(mf_cost_cluster(cost)); /* whose scratch is planned by itself */
    q->saved_B = (double)b->saved_B;
    q->held_B = split ? (double)b->held_B : 0.0;
    q->offload_B = (double)b->offload_B;
    q->boundary_B = (double)b->boundary_B;
    q->gather_B = (double)b->gather_B;
    q->comm_B = (double)(b->comm_B[0] + (cpu ? 0 : mf_block_scratch_B(b)));
    q->compute_B = cpu ? 0.0 : (double)mf_align_B(b->scratch_B[MF_STREAM_COMPUTE]);
    q->summed_B = cpu ? 0.0 : 4.0 * (double)b->replicas.of[MF_SUM_TP];
    q->merged_comm_B = (double)(b->comm_B[1] - b->comm_B[0]);
    add_workspaces(b, split, q);
    if (key->kind == MF_POS_MTP && key->memory.recompute == 0 && key->memory.offload == 0) {
        const unsigned back = split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
        q->alive_B = most_alive_B(b, back, scratch);
    }
    q->params = b->params;
    q->flops = b->flops_f + b->flops_b + b->flops_w;
}

void mf_block_cost_make(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                        const mf_block_key *key, const double *op_s, double *scratch_s,
                        mf_block_cost *out, double rest_s[3]) {
    unsigned back = key->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
    *out = (mf_block_cost){
        .f = passes_cost(cost, l, b, op_s, MF_PASS_F, part_of(key, true), &rest_s[0], scratch_s)};
    rest_s[2] = 0.0;
    out->b = passes_cost(cost, l, b, op_s, back, part_of(key, false), &rest_s[1], scratch_s);
    if (key->split) {
        out->w = passes_cost(cost, l, b, op_s, MF_PASS_W, WHOLE, &rest_s[2], scratch_s);
    }
    memory_cost(cost, b, key, scratch_s, out);
}
