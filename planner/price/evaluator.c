/* evaluator.c - costs from lowering and cost model, steps from memory plan and simulator. */
#include "planner/price/evaluator.h"

#include "core/memory/memory_inputs.h"
#include "planner/price/block_cache.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stdlib.h>

/* Least load that any layer of the class puts on its busiest rank: balanced routing has 1. */
static double least_load(const mf_evaluator_real *o, const mf_layout *l, const mf_block_key *key) {
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

static double op_s(const mf_evaluator_real *o, const mf_op *op) {
    mf_price price;
    if (!(op->bytes > 0) && !(op->flops > 0)) {
        return 0.0;
    }
    mf_cost_op(o->cost, op, 1.0, &price);
    return price.time_s;
}

/* Of several ops, looked up together: MF_STEP_END_MAX at most. */
static void ops_s(const mf_evaluator_real *o, const mf_op *ops, int n, double *time_s) {
    mf_price price[MF_STEP_END_MAX];
    mf_cost_ops(o->cost, ops, n, 1.0, price);
    for (int i = 0; i < n; i++) {
        time_s[i] = price[i].time_s;
    }
}

static void real_step_comm(void *self, const mf_layout *l, mf_param_count params, double *reduce_s,
                           double *gather_s) {
    const mf_evaluator_real *o = self;
    mf_dp_ops dp = mf_param_dp_ops(l, params);
    const mf_op ops[] = {dp.reduce[0], dp.reduce[1], dp.gather[0], dp.gather[1]};
    double time_s[4];
    ops_s(o, ops, 4, time_s);
    *reduce_s = time_s[0] + time_s[1];
    *gather_s = time_s[2] + time_s[3];
}

static mf_price collective(const mf_evaluator_real *o, const mf_op *op) {
    mf_price p = {0};
    if (op->bytes > 0) {
        mf_cost_op(o->cost, op, 1.0, &p);
    }
    return p.time_s > 0 ? p : (mf_price){0};
}

static double network(const mf_price *p) {
    return p->link == MF_LINK_NETWORK ? p->link_share : 0;
}

/* As simulator/step_chunk.c has it: the SMs of the block's own kind of collective, or the software
 * profile's exposed share. */
static mf_step_overlap real_step_overlap(void *self, const mf_layout *l, mf_param_count params) {
    const mf_evaluator_real *o = self;
    if (!(l->overlap & MF_OVERLAP_DP)) {
        return (mf_step_overlap){.lost = 1};
    }
    mf_dp_ops dp = mf_param_dp_ops(l, params);
    int last = op_s(o, &dp.reduce[1]) > 0 ? 1 : 0;
    const mf_price gather = collective(o, &dp.gather[last]),
                   reduce = collective(o, &dp.reduce[last]);
    double least = fmin(fmin(gather.sm_share, reduce.sm_share), 0.9);
    return (mf_step_overlap){.lost = fmax(least, mf_cost_exposed(o->cost, MF_OVERLAP_DP)),
                             .network = {network(&gather), network(&reduce)}};
}

/* Exchanges of loads that differ fill links differently. */
static bool balanced(const mf_evaluator_real *o) {
    return !o->routing || o->routing->kind == MF_ROUTING_BALANCED;
}

static mf_status real_cost(void *self, const mf_layout *l, const mf_block_key *key, bool exact,
                           mf_block_cost *out, mf_err *e) {
    const mf_evaluator_real *o = self;
    const mf_block_prices prices = {o->model, o->cost};
    mf_status status =
        mf_block_cache_cost(o->block_cache, &prices, l, key, least_load(o, l, key), exact, out, e);
    if (status == MF_OK && !balanced(o)) {
        out->f.network = out->b.network = out->w.network = 0;
    }
    return status;
}

static mf_status real_pair(void *self, const mf_layout *l, const mf_block_key *forward,
                           const mf_block_key *backward, double *time_s, mf_err *e) {
    const mf_evaluator_real *o = self;
    const mf_block_prices prices = {o->model, o->cost};
    const mf_block_side f = {*forward, least_load(o, l, forward)},
                        b = {*backward, least_load(o, l, backward)};
    return mf_block_cache_pair(o->block_cache, &prices, l, &f, &b, time_s, e);
}

static void real_send(void *self, const mf_layout *l, double *send_s, double *hold_s) {
    const mf_evaluator_real *o = self;
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

/* The optimizer's ops of a stage. */
typedef struct end_ops {
    int n;
    mf_op op[MF_STEP_END_MAX];
    double time_s[MF_STEP_END_MAX];
} end_ops;

static void find_end_ops(const mf_evaluator_real *o, const mf_layout *l, mf_param_count params,
                         end_ops *out) {
    const mf_step_end end = {.params = params};
    out->n = mf_param_optimizer(l, &end, out->op, MF_STEP_END_MAX);
    ops_s(o, out->op, out->n, out->time_s);
}

/* Of an update and the copies of offloaded states beside it the longest counts
 * (simulator/step_end.c). */
static mf_op_kind longest_update(const end_ops *ops) {
    mf_op_kind longest = MF_OP_ADAMW;
    double most_s = 0.0;
    for (int i = 0; i < ops->n; i++) {
        if (is_update((mf_op_kind)ops->op[i].kind) && ops->time_s[i] > most_s) {
            most_s = ops->time_s[i];
            longest = (mf_op_kind)ops->op[i].kind;
        }
    }
    return longest;
}

/* Times of the optimizer on a stage: before all stages meet and after, of quantising weights, and
 * what does not depend on the stage's parameters. */
typedef struct optimizer {
    double norm_s, update_s, quantise_s, fixed_s;
} optimizer;

/* Of the update and its copies the one that `longest` names. */
static optimizer sum_of(const end_ops *ops, const mf_layout *l, mf_op_kind longest) {
    bool met = l->gpus == 1;
    optimizer x = {0};
    for (int i = 0; i < ops->n; i++) {
        const mf_op *op = &ops->op[i];
        const double time_s = ops->time_s[i];
        if (is_update((mf_op_kind)op->kind) && (mf_op_kind)op->kind != longest) {
            continue;
        }
        if (op->group == MF_GROUP_WORLD) {
            x.fixed_s += time_s;
            met = true;
        } else if (op->kind == MF_OP_QUANTISE) {
            x.quantise_s += time_s;
        } else {
            *(met ? &x.update_s : &x.norm_s) += time_s;
        }
    }
    return x;
}

/* The same in fixed_s alone, which needs no parameters. */
static double world_s(const mf_evaluator_real *o, const mf_layout *l) {
    mf_op op[MF_STEP_END_MAX];
    const mf_step_end end = {.params = {0, 0, 0}};
    const int n = mf_param_optimizer(l, &end, op, MF_STEP_END_MAX);
    double sum_s = 0.0;
    for (int i = 0; i < n; i++) {
        sum_s += op[i].group == MF_GROUP_WORLD ? op_s(o, &op[i]) : 0.0;
    }
    return sum_s;
}

/* For one stage with these parameters. */
static optimizer optimizer_of(const mf_evaluator_real *o, const mf_layout *l, mf_param_count params,
                              mf_op_kind longest) {
    end_ops ops;
    find_end_ops(o, l, params, &ops);
    return sum_of(&ops, l, longest);
}

/* The least rate (by parameter) of any part of all parameters, which take `x`, that a stage may
 * have. Small ops usually take longer by the byte, but measured ones not always. */
static optimizer least_rate_of(const mf_evaluator_real *o, const mf_layout *l, mf_param_count all,
                               mf_op_kind longest, optimizer x) {
    for (int64_t part = 2; part <= 64 && all.dense + all.expert > 0; part *= 2) {
        const mf_param_count held = {all.dense / part, all.expert / part,
                                     all.dense_matrices / part};
        const optimizer y = optimizer_of(o, l, held, longest);
        const double times = (double)part;
        x.norm_s = fmin(x.norm_s, MF_STEP_END_SAFETY * times * y.norm_s);
        x.update_s = fmin(x.update_s, MF_STEP_END_SAFETY * times * y.update_s);
        x.quantise_s = fmin(x.quantise_s, MF_STEP_END_SAFETY * times * y.quantise_s);
    }
    return x;
}

/* What the two sides take together, of what they take one without the other: 1 at most. */
static double scale(double together_s, double dense_s, double expert_s) {
    return dense_s + expert_s > 0 ? fmin(together_s / (dense_s + expert_s), 1) : 0;
}

/* The two sides are priced one without the other and scaled to what both take together. */
static mf_step_end_cost real_step_end(void *self, const mf_layout *l, mf_param_count all) {
    const mf_evaluator_real *o = self;
    mf_step_end_cost t = {0, 1, 0, 0, 0, 0, 0};
    const double fixed_s = mf_cost_software(o->cost)->fixed_step_s;
    if (l->overlap & MF_OVERLAP_DP) {
        t.exposed = mf_cost_exposed(o->cost, MF_OVERLAP_DP);
    }
    if (all.dense + all.expert + all.dense_matrices ==
        0) { /* the caller asks for the fixed costs */
        t.fixed_s = world_s(o, l) + fixed_s;
        return t;
    }
    end_ops ops;
    find_end_ops(o, l, all, &ops);
    const mf_op_kind longest = longest_update(&ops);
    const optimizer both = least_rate_of(o, l, all, longest, sum_of(&ops, l, longest));
    const optimizer dense =
        optimizer_of(o, l, (mf_param_count){all.dense, 0, all.dense_matrices}, longest);
    const optimizer expert = optimizer_of(o, l, (mf_param_count){0, all.expert, 0}, longest);
    t.fixed_s = both.fixed_s + fixed_s;
    const double norm = scale(both.norm_s, dense.norm_s, expert.norm_s);
    const double update = scale(both.update_s, dense.update_s, expert.update_s);
    /* the two sides may be sharded differently */
    const double quantise = scale(both.quantise_s, dense.quantise_s, expert.quantise_s);
    if (all.dense > 0) {
        t.norm_dense_s = norm * dense.norm_s / (double)all.dense;
        t.update_dense_s = update * dense.update_s / (double)all.dense;
    }
    if (all.expert > 0) {
        t.norm_expert_s = norm * expert.norm_s / (double)all.expert;
        t.update_expert_s = update * expert.update_s / (double)all.expert;
        t.update_expert_s += quantise * expert.quantise_s / (double)all.expert;
    }
    if (all.dense_matrices > 0) {
        t.update_matrix_s = quantise * dense.quantise_s / (double)all.dense_matrices;
    }
    return t;
}

static double real_flops_s(void *self, const mf_layout *l, double flops) {
    const mf_evaluator_real *o = self;
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
    const mf_evaluator_real *o = self;
    const mf_cluster *c = mf_cost_cluster(o->cost);
    mf_inputs inputs;
    mf_memory_inputs(o->model, l, &inputs);
    return mf_memory_context_B(c, l) + mf_memory_comm_B(c, l) + (double)inputs.size_B;
}

/* Do stages that hold embedding or head have copies of a table of another stage? A tied head is one
 * of the embedding; an MTP depth holds a copy of both, so that either the stage of the head has one
 * of the embedding, or the depth's has one of the head. */
static bool has_copies(const mf_evaluator_real *o, const mf_layout *l) {
    const mf_model *m = o->model;
    const bool apart = mf_layout_stage_of(l, 0) != mf_layout_stage_of(l, l->pp * l->vpp - 1);
    return apart && (m->tied_embeddings || m->mtp_layers > 0) &&
           !mf_cluster_is_cpu(mf_cost_cluster(o->cost));
}

/* Of two copies, in positions that hold nothing else. */
static double real_tables_B(void *self, const mf_layout *l) {
    const mf_evaluator_real *o = self;
    const int64_t table = mf_model_local_vocab(o->model, l->tp) * o->model->hidden;
    return has_copies(o, l) ? 4.0 * (double)mf_memory_table_sum(l, 2, table, table) : 0.0;
}

static double real_tables_comm_B(void *self, const mf_layout *l) {
    const mf_evaluator_real *o = self;
    return has_copies(o, l) ? mf_memory_table_comm_B(mf_cost_cluster(o->cost), l, 2) : 0.0;
}

/* As core/memory has them: CPU ranks keep the scratch in a part that other ops use, too. */
static void real_unreduced_B(void *self, const mf_layout *l, mf_param_count params, double *whole,
                             double *scratch) {
    const mf_evaluator_real *o = self;
    const bool apart = (l->zero >= 2 || l->expert_zero >= 2) && l->gpus > 1 &&
                       !mf_cluster_is_cpu(mf_cost_cluster(o->cost));
    *whole = mf_memory_unreduced_of_B(l, params.dense, params.expert);
    *scratch = apart ? 4.0 * (double)(params.dense + params.expert) : 0.0;
}

static double real_usable_B(void *self, const mf_layout *l) {
    const mf_evaluator_real *o = self;
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
    out->sure_stages = m->sure_stages;
    out->looks = m->looks;
}

/* A question about a step. */
typedef enum asked {
    ASKED_STEP, /* simulated time, memory with the gaps of its arrangement */
    ASKED_PLAY, /* simulated time, memory without gaps */
    ASKED_FIT,  /* memory alone, with gaps */
    ASKED_SUMS  /* memory alone, without gaps */
} asked;

/* The memory plan alone. */
static mf_status memory_alone(const mf_program *program, const mf_layout *l, bool gaps,
                              int64_t sure_stages, mf_step *out, mf_err *e) {
    mf_schedule *schedule = NULL;
    mf_memory *memory = NULL;
    mf_status status = mf_schedule_create(l, &schedule, e);
    if (status == MF_OK) {
        status = gaps ? mf_memory_fit(program, schedule, sure_stages, &memory, e)
                      : mf_memory_sums(program, schedule, &memory, e);
    }
    if (status == MF_OK) {
        note_memory(memory, out);
    }
    mf_memory_destroy(memory);
    mf_schedule_destroy(schedule);
    return status;
}

static mf_status simulated(const mf_evaluator_real *o, const mf_program *program, bool gaps,
                           mf_step *out, mf_err *e) {
    mf_sim *sim = NULL;
    const mf_sim_options options = {
        .routing = o->routing, .cancel = o->cancel, .judge = gaps, .sums = !gaps};
    mf_status status = mf_sim_step(o->cost, program, &options, &sim, e);
    if (status == MF_OK) {
        out->time_s = sim->step_time_s;
        note_memory(sim->memory, out);
    }
    mf_sim_destroy(sim);
    return status;
}

/* sure_stages: of ASKED_FIT, as in mf_memory_fit. */
static mf_status lowered(const mf_evaluator_real *o, const mf_layout *l, const mf_assignment *a,
                         asked what, int64_t sure_stages, mf_step *out, mf_err *e) {
    mf_program *program = NULL;
    *out = (mf_step){.fits = false};
    mf_status status = mf_program_lower(o->model, l, mf_cost_cluster(o->cost), a, &program, e);
    if (status == MF_OK) {
        status = what == ASKED_STEP || what == ASKED_PLAY
                     ? simulated(o, program, what == ASKED_STEP, out, e)
                     : memory_alone(program, l, what == ASKED_FIT, sure_stages, out, e);
    }
    mf_program_destroy(program);
    return status;
}

static mf_status real_step(void *self, const mf_layout *l, const mf_assignment *a, mf_step *out,
                           mf_err *e) {
    return lowered(self, l, a, ASKED_STEP, 0, out, e);
}

static mf_status real_fit(void *self, const mf_layout *l, const mf_assignment *a,
                          int64_t sure_stages, mf_step *out, mf_err *e) {
    return lowered(self, l, a, ASKED_FIT, sure_stages, out, e);
}

static mf_status real_play(void *self, const mf_layout *l, const mf_assignment *a, mf_step *out,
                           mf_err *e) {
    return lowered(self, l, a, ASKED_PLAY, 0, out, e);
}

static mf_status real_count(void *self, const mf_layout *l, const mf_assignment *a, mf_step *out,
                            mf_err *e) {
    return lowered(self, l, a, ASKED_SUMS, 0, out, e);
}

int64_t mf_evaluator_step_ns(const mf_layout *l) {
    const double events = (double)(l->micro_batches * l->pp * l->vpp);
    return MF_STEP_NS + (int64_t)(MF_STEP_EVENT_NS * events);
}

int64_t mf_evaluator_memory_ns(int64_t positions, int64_t looks) {
    return MF_MEMORY_POSITION_NS * positions + (int64_t)(MF_MEMORY_LOOK_NS * (double)looks);
}

mf_evaluator mf_evaluator_init(mf_evaluator_real *real) {
    static const mf_evaluator_ops ops = {
        .cost = real_cost,
        .pair = real_pair,
        .send = real_send,
        .step_comm = real_step_comm,
        .beside = real_step_overlap,
        .step_end = real_step_end,
        .flops_s = real_flops_s,
        .fixed_B = real_fixed_B,
        .tables_B = real_tables_B,
        .tables_comm_B = real_tables_comm_B,
        .unreduced_B = real_unreduced_B,
        .usable_B = real_usable_B,
        .step = real_step,
        .fit = real_fit,
        .play = real_play,
        .count = real_count,
        .schedule = real_schedule,
    };
    return (mf_evaluator){.ops = &ops,
                          .self = real,
                          .model = real->model,
                          .without = real->without,
                          .ends_differ = mf_cost_software(real->cost)->copies_in_pass > 0};
}
