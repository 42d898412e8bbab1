/* oracle.c - quotes from lowering and cost model, steps from memory plan and simulator. */
#include "planner/oracle.h"

#include "core/memory_inputs.h"

#include <math.h>
#include <stdlib.h>

/* Streams run their ops in order; an op waits for the producers of what it reads, a piece of an
 * overlapped op at least for the first piece. Without host and contention this is the least time
 * any play of the block can take. */
typedef struct path {
    double stream_s[MF_STREAM_COUNT]; /* end of the last op of each stream */
    double handed_s;                  /* what the next block waits for is there */
    double *first_s, *ready_s; /* [tensors] when its first, its last producer is done; no producer:
                                * +-HUGE_VAL */
} path;

/* start_s 0: ops that wait for nothing start with the block. -HUGE_VAL: they are done long before,
 * and what counts is how long the block takes from its boundary tensors on. */
static void path_init(path *p, const mf_block *b, unsigned passes, double start_s) {
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        p->stream_s[s] = start_s;
    }
    p->handed_s = 0.0;
    for (int t = 0; t < b->ntensors; t++) {
        bool input = b->tensors[t].class == MF_TENSOR_BOUNDARY;
        p->first_s[t] = input ? 0.0 : HUGE_VAL;
        p->ready_s[t] = input ? 0.0 : -HUGE_VAL;
    }
    for (int i = 0; i < b->nops; i++) {
        for (int k = 0; k < b->ops[i].nout && (b->ops[i].pass & passes); k++) {
            p->first_s[b->ops[i].out[k]] = HUGE_VAL;
            p->ready_s[b->ops[i].out[k]] = -HUGE_VAL;
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

/* Ops that the simulator plays beside the block, waiting for nothing. */
static bool detached(const mf_layout *l, const mf_op *op) {
    if (op->stream == MF_STREAM_DP) {
        return (l->overlap & MF_OVERLAP_DP) != 0;
    }
    return op->stream == MF_STREAM_D2H || (op->flags & MF_OPF_PREFETCH) != 0;
}

/* The part of a layer that a block is, in the passes that are quoted. */
typedef enum block_part {
    WHOLE,
    FIRST_HALF, /* the other one starts when it is handed its input, beside weight gradients */
    SECOND_HALF /* what does not wait for its input may have run beside the other one */
} block_part;

/* room_s: for four figures of every tensor. */
static mf_pass_quote quote_passes(const mf_cost *cost, const mf_layout *l, const mf_block *b,
                                  unsigned passes, block_part part, double load, double *room_s) {
    mf_pass_quote q = {0, 0, 0, 0, 0, 0, 0};
    path p = {.first_s = room_s, .ready_s = room_s + b->ntensors};
    path from_input = {.first_s = room_s + 2 * b->ntensors, .ready_s = room_s + 3 * b->ntensors};
    double busy_s[MF_STREAM_COUNT] = {0};
    path_init(&p, b, passes, 0.0);
    if (part == SECOND_HALF) {
        path_init(&from_input, b, passes, -HUGE_VAL);
    }
    for (int i = 0; i < b->nops; i++) {
        const mf_op *op = &b->ops[i];
        mf_price price;
        if (!(op->pass & passes)) {
            continue;
        }
        mf_cost_op(cost, op, load, &price);
        q.host_s += q.host_s > 0.0 ? 0.0 : mf_cost_host_block_s(cost, l->graph);
        q.host_s += mf_cost_host_s(cost, op, l->graph);
        q.sync_s += mf_cost_host_sync_s(cost, op, l->graph);
        busy_s[op->stream] += price.time_s;
        if (!detached(l, op)) {
            path_op(&p, b, op, price.time_s);
        }
        if (!detached(l, op) && part == SECOND_HALF) {
            path_op(&from_input, b, op, price.time_s);
        }
    }
    q.compute_s = busy_s[MF_STREAM_COMPUTE];
    q.ep_s = busy_s[MF_STREAM_EP];
    q.chain_s = q.path_s = p.stream_s[MF_STREAM_COMPUTE];
    if (part == FIRST_HALF) {
        q.chain_s = p.handed_s;
    } else if (part == SECOND_HALF) {
        double end_s = from_input.stream_s[MF_STREAM_COMPUTE];
        q.chain_s = end_s > 0.0 ? end_s : 0.0;
    }
    for (int s = 0; s < MF_STREAM_COUNT; s++) {
        q.path_s = busy_s[s] > q.path_s ? busy_s[s] : q.path_s;
    }
    q.chain_s += q.sync_s;
    q.path_s += q.sync_s;
    return q;
}

static block_part part_of(const mf_block_key *key, bool forward) {
    if (key->kind != MF_POS_LAYER || key->parts == MF_HALF_BOTH) {
        return WHOLE;
    }
    return (key->parts == MF_HALF_ATTENTION) == forward ? FIRST_HALF : SECOND_HALF;
}

/* Least load that any layer of the class puts on its busiest rank: balanced routing has 1. */
static double least_load(const mf_oracle_real *o, const mf_layout *l, const mf_block_key *key) {
    const mf_model *m = o->model;
    if (!o->routing || o->routing->kind == MF_ROUTING_BALANCED || m->experts == 0 ||
        (key->kind != MF_POS_LAYER && key->kind != MF_POS_MTP)) {
        return 1.0;
    }
    double least = 0.0;
    int64_t moe = 0; /* routing counts layers that route, MTP depths behind them */
    for (int64_t i = 0; i < m->layers + m->mtp_layers; i++) {
        bool mtp = i >= m->layers;
        uint8_t class = mtp ? m->mtp_class : m->layer_class[i];
        if (m->layer_classes[class].ffn != MF_FFN_MOE) {
            continue;
        }
        if (mtp == (key->kind == MF_POS_MTP) && class == key->layer_class) {
            double load = mf_routing_max_load(o->routing, m, l->ep, moe);
            least = least > 0.0 && least < load ? least : load;
        }
        moe++;
    }
    return least > 1.0 ? least : 1.0;
}

static mf_status simulate_pass(const mf_oracle_real *o, const mf_layout *l, const mf_block *b,
                               unsigned passes, double load, mf_pass_quote *q, mf_err *e) {
    return mf_sim_block_gpu_s(o->cost, l, b, passes, NULL, load, &q->time_s, e);
}

static double op_s(const mf_oracle_real *o, const mf_op *op) {
    mf_price price;
    if (!(op->bytes > 0) && !(op->flops > 0)) {
        return 0.0;
    }
    mf_cost_op(o->cost, op, 1.0, &price);
    return price.time_s;
}

static void real_once(void *self, const mf_layout *l, mf_param_count params, double *reduce_s,
                      double *gather_s) {
    const mf_oracle_real *o = self;
    mf_dp_ops dp = mf_param_dp_ops(l, params);
    *reduce_s = op_s(o, &dp.reduce[0]) + op_s(o, &dp.reduce[1]);
    *gather_s = op_s(o, &dp.gather[0]) + op_s(o, &dp.gather[1]);
}

static void quote_memory(const mf_block *b, bool split, mf_quote *q) {
    q->saved_B = (double)b->saved_B;
    q->held_B = split ? (double)b->held_B : 0.0;
    q->offload_B = (double)b->offload_B;
    q->boundary_B = (double)b->boundary_B;
    q->gather_B = (double)b->gather_B;
    q->comm_B = (double)b->comm_B;
    q->local_f_B = (double)b->local_f_B;
    q->local_b_B = (double)(split ? b->local_bs_B : b->local_b_B);
    q->local_w_B = split ? (double)b->local_w_B : 0.0;
    q->params = b->params;
    q->flops = b->flops_f + b->flops_b + b->flops_w;
}

static mf_status real_quote(void *self, const mf_layout *l, const mf_block_key *key, bool exact,
                            mf_quote *out, mf_err *e) {
    const mf_oracle_real *o = self;
    mf_block *b = NULL;
    double *room_s = NULL;
    *out = (mf_quote){.saved_B = 0};
    mf_status status = mf_block_lower(o->model, l, mf_cost_cluster(o->cost), key, &b, e);
    if (status != MF_OK) {
        return status;
    }
    room_s = malloc((4 * (size_t)b->ntensors + 1) * sizeof *room_s);
    if (!room_s) {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
        goto out;
    }
    double load = least_load(o, l, key);
    unsigned back = key->split ? MF_PASS_R | MF_PASS_B : MF_PASS_BACKWARD;
    out->f = quote_passes(o->cost, l, b, MF_PASS_F, part_of(key, true), load, room_s);
    out->b = quote_passes(o->cost, l, b, back, part_of(key, false), load, room_s);
    if (key->split) {
        out->w = quote_passes(o->cost, l, b, MF_PASS_W, WHOLE, load, room_s);
    }
    quote_memory(b, key->split, out);
    if (exact) {
        status = simulate_pass(o, l, b, MF_PASS_F, load, &out->f, e);
        if (status == MF_OK) {
            status = simulate_pass(o, l, b, back, load, &out->b, e);
        }
        if (status == MF_OK && key->split) {
            status = simulate_pass(o, l, b, MF_PASS_W, load, &out->w, e);
        }
    }
out:
    free(room_s);
    mf_block_destroy(b);
    return status;
}

static mf_status real_pair(void *self, const mf_layout *l, const mf_block_key *forward,
                           const mf_block_key *backward, double *time_s, mf_err *e) {
    const mf_oracle_real *o = self;
    const mf_cluster *c = mf_cost_cluster(o->cost);
    mf_block *f = NULL, *b = NULL;
    mf_status status = mf_block_lower(o->model, l, c, forward, &f, e);
    if (status == MF_OK) {
        status = mf_block_lower(o->model, l, c, backward, &b, e);
    }
    if (status == MF_OK) {
        double lf = least_load(o, l, forward), lb = least_load(o, l, backward);
        status = mf_sim_block_gpu_s(o->cost, l, f, MF_PASS_F | MF_PASS_BACKWARD, b,
                                    lf < lb ? lf : lb, time_s, e);
    }
    mf_block_destroy(f);
    mf_block_destroy(b);
    return status;
}

static void real_send(void *self, const mf_layout *l, double *send_s, double *hold_s) {
    const mf_oracle_real *o = self;
    mf_op op = mf_pipeline_send(o->model, l, "send");
    *send_s = op_s(o, &op);
    *hold_s = *send_s;
    if (l->overlap & MF_OVERLAP_PP) {
        *hold_s *= mf_cost_exposed(o->cost, MF_OVERLAP_PP);
    }
}

static bool is_update(mf_op_kind k) {
    return k == MF_OP_ADAMW || mf_op_kind_class(k) == MF_CLASS_COPY;
}

/* Of an update and the copies of offloaded states beside it the longest counts
 * (simulator/step_once.c): which one it is for these parameters. */
static mf_op_kind longest_update(const mf_oracle_real *o, const mf_layout *l,
                                 mf_param_count params) {
    mf_op ops[MF_ONCE_MAX];
    const mf_once once = {.params = params};
    int n = mf_param_optimizer(l, &once, ops, MF_ONCE_MAX);
    mf_op_kind longest = MF_OP_ADAMW;
    double most_s = 0.0;
    for (int i = 0; i < n; i++) {
        double time_s = op_s(o, &ops[i]);
        if (is_update((mf_op_kind)ops[i].kind) && time_s > most_s) {
            most_s = time_s;
            longest = (mf_op_kind)ops[i].kind;
        }
    }
    return longest;
}

/* Ops before all stages meet (norm) and after (update), for one stage with these parameters; of
 * the update and its copies the one that `longest` names. What does not depend on the parameters
 * goes to *fixed_s, quantising weights to *quantise_s. */
static void optimizer_s(const mf_oracle_real *o, const mf_layout *l, mf_param_count params,
                        mf_op_kind longest, double *norm_s, double *update_s, double *fixed_s,
                        double *quantise_s) {
    mf_op ops[MF_ONCE_MAX];
    const mf_once once = {.params = params};
    int n = mf_param_optimizer(l, &once, ops, MF_ONCE_MAX);
    bool met = l->gpus == 1;
    *norm_s = *update_s = *fixed_s = *quantise_s = 0.0;
    for (int i = 0; i < n; i++) {
        double time_s = op_s(o, &ops[i]);
        if (is_update((mf_op_kind)ops[i].kind) && (mf_op_kind)ops[i].kind != longest) {
            continue;
        }
        if (ops[i].group == MF_GROUP_WORLD) {
            *fixed_s += time_s;
            met = true;
        } else if (ops[i].kind == MF_OP_QUANTISE) {
            *quantise_s += time_s;
        } else {
            *(met ? update_s : norm_s) += time_s;
        }
    }
}

/* Time grows at most in proportion to the parameters (small ops are slower by the byte), so the
 * rate at all of them is the least rate of any share. The two sides are priced one without the
 * other and scaled to what both take together. */
static mf_tail real_tail(void *self, const mf_layout *l, mf_param_count all) {
    const mf_oracle_real *o = self;
    mf_tail t = {0, 1, 0, 0, 0, 0, 0};
    double norm_s[3], update_s[3], quantise_s[3];
    const mf_param_count side[3] = {all, {all.dense, 0, all.dense_matrices}, {0, all.expert, 0}};
    mf_op_kind longest = longest_update(o, l, all);
    for (int i = 0; i < 3; i++) {
        optimizer_s(o, l, side[i], longest, &norm_s[i], &update_s[i], &t.fixed_s, &quantise_s[i]);
    }
    t.fixed_s += mf_cost_software(o->cost)->fixed_step_s;
    if (l->overlap & MF_OVERLAP_DP) {
        t.exposed = mf_cost_exposed(o->cost, MF_OVERLAP_DP);
    }
    double norm = norm_s[1] + norm_s[2] > 0 ? norm_s[0] / (norm_s[1] + norm_s[2]) : 0;
    double update = update_s[1] + update_s[2] > 0 ? update_s[0] / (update_s[1] + update_s[2]) : 0;
    norm = norm < 1 ? norm : 1;
    update = update < 1 ? update : 1;
    if (all.dense > 0) {
        t.norm_dense_s = norm * norm_s[1] / (double)all.dense;
        t.update_dense_s = update * update_s[1] / (double)all.dense;
    }
    if (all.expert > 0) {
        t.norm_expert_s = norm * norm_s[2] / (double)all.expert;
        t.update_expert_s = update * update_s[2] / (double)all.expert;
    }
    if (all.dense_matrices + all.expert > 0) {
        t.update_matrix_s = quantise_s[0] / (double)(all.dense_matrices + all.expert);
        t.update_expert_s += t.update_matrix_s;
    }
    return t;
}

static double real_flops_s(void *self, const mf_layout *l, double flops) {
    const mf_oracle_real *o = self;
    const mf_gpu *gpu = &mf_cost_cluster(o->cost)->gpu;
    double peak = gpu->peak_flops[MF_MATH_FP32];
    for (int m = 0; m < MF_MATH_COUNT && l->precision != MF_PREC_FP32; m++) {
        bool low = m == MF_MATH_FP8 || m == MF_MATH_FP4;
        if (!(low && l->precision == MF_PREC_BF16) && gpu->peak_flops[m] > peak) {
            peak = gpu->peak_flops[m];
        }
    }
    return peak > 0 ? flops / peak : 0.0;
}

static double real_fixed_B(void *self, const mf_layout *l) {
    const mf_oracle_real *o = self;
    const mf_cluster *c = mf_cost_cluster(o->cost);
    mf_inputs inputs;
    mf_memory_inputs(o->model, l, &inputs);
    return mf_memory_context_B(c, l) + mf_memory_comm_B(c, l) + (double)inputs.size_B;
}

static double real_usable_B(void *self, const mf_layout *l) {
    const mf_oracle_real *o = self;
    return mf_cluster_usable_B(mf_cost_cluster(o->cost), l->reserve);
}

static mf_status real_schedule(void *self, const mf_layout *l, mf_schedule **out, mf_err *e) {
    (void)self;
    return mf_schedule_create(l, out, e);
}

static void note_memory(const mf_memory *m, mf_step *out) {
    out->fits = m->fits;
    out->peak_B = m->peak_B;
    out->usable_B = m->usable_B;
    out->stage = m->peak_stage;
}

static mf_status real_step(void *self, const mf_layout *l, const mf_assignment *a, bool simulate,
                           mf_step *out, mf_err *e) {
    const mf_oracle_real *o = self;
    mf_program *program = NULL;
    mf_schedule *schedule = NULL;
    mf_memory *memory = NULL;
    mf_sim *sim = NULL;
    *out = (mf_step){.fits = false};
    mf_status status = mf_program_lower(o->model, l, mf_cost_cluster(o->cost), a, &program, e);
    if (status == MF_OK && simulate) {
        mf_sim_options options = {.routing = o->routing, .cancel = o->cancel};
        status = mf_sim_step(o->cost, program, &options, &sim, e);
        if (status == MF_OK) {
            out->time_s = sim->step_time_s;
            note_memory(sim->memory, out);
        }
    } else if (status == MF_OK) {
        status = mf_schedule_create(l, &schedule, e);
        if (status == MF_OK) {
            status = mf_memory_plan(program, schedule, &memory, e);
        }
        if (status == MF_OK) {
            note_memory(memory, out);
        }
    }
    mf_sim_destroy(sim);
    mf_memory_destroy(memory);
    mf_schedule_destroy(schedule);
    mf_program_destroy(program);
    return status;
}

mf_oracle mf_oracle_init(mf_oracle_real *real) {
    static const mf_oracle_ops ops = {
        .quote = real_quote,
        .pair = real_pair,
        .send = real_send,
        .once = real_once,
        .tail = real_tail,
        .flops_s = real_flops_s,
        .fixed_B = real_fixed_B,
        .usable_B = real_usable_B,
        .step = real_step,
        .schedule = real_schedule,
    };
    return (mf_oracle){&ops, real, real->model};
}
