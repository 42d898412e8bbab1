/* Faults planted on purpose, each one a known trap of training with many kinds of parallelism, are
 * caught by the comparison with one rank; without the fault the same layout passes. */
#include "tests/support/grid_run.h"
#include "tests/support/sampled.h"

/* --- what can go wrong beside an op left out ----------------------------------------------------
 */

static void scale_experts(grid_case *g, const mf_exec_op *op, const char *at, float factor) {
    const mf_params *list = mf_exec_params(g->exec);
    for (int i = 0; i < list->count && strcmp(op->op->name, at) == 0; i++) {
        int64_t first, count;
        float *w = mf_exec_own_gradient(g->exec, i, &first, &count);
        for (int64_t k = 0; k < count && list->list[i].expert; k++) {
            w[k] *= factor;
        }
    }
}

/* Out of the norm's sight while it is taken. */
static void hide_experts(grid_case *g, const mf_exec_op *op) {
    scale_experts(g, op, "grad_norm", 1e-20f);
}

static void show_experts(grid_case *g, const mf_exec_op *op) {
    scale_experts(g, op, "grad_norm", 1e20f);
}

static void average_experts(grid_case *g, const mf_exec_op *op) {
    /* Once, before the norm: as if the sum had been a mean. */
    scale_experts(g, op, "grad_norm", 1.0f / (float)g->layout.edp);
}

static void multiply_experts(grid_case *g, const mf_exec_op *op) {
    /* The all-to-all has summed over these already. */
    scale_experts(g, op, "grad_norm", (float)(g->layout.ep * g->layout.etp));
}

/* Gradients that count twice in the norm: scaled while it is taken. */
static void scale_in_norm(grid_case *g, const mf_exec_op *op, mf_gradient_sum sum, bool tables,
                          double times) {
    const mf_params *list = mf_exec_params(g->exec);
    for (int i = 0; i < list->count && op->op->step_end == MF_STEP_END_GRAD_NORM; i++) {
        const mf_param *q = &list->list[i];
        bool table = q->table != MF_TABLE_NONE;
        int64_t first, count, from = (q->rows - q->sum_rows) * q->cols;
        float *w = mf_exec_own_gradient(g->exec, i, &first, &count);
        for (int64_t k = 0; k < count && (tables ? table : q->sum == sum); k++) {
            w[k] *= tables || first + k >= from ? (float)sqrt(times) : 1.0f;
        }
    }
}

static void count_tp_twice(grid_case *g, const mf_exec_op *op) {
    scale_in_norm(g, op, MF_SUM_TP, false, (double)g->layout.tp);
}

static void count_tp_once(grid_case *g, const mf_exec_op *op) {
    scale_in_norm(g, op, MF_SUM_TP, false, 1.0 / (double)g->layout.tp);
}

static void count_kv_twice(grid_case *g, const mf_exec_op *op) {
    scale_in_norm(g, op, MF_SUM_KV, false, 2.0);
}

static void count_kv_once(grid_case *g, const mf_exec_op *op) {
    scale_in_norm(g, op, MF_SUM_KV, false, 0.5);
}

static void count_tables_twice(grid_case *g, const mf_exec_op *op) {
    scale_in_norm(g, op, MF_SUM_NONE, true, 2.0);
}

static void count_tables_once(grid_case *g, const mf_exec_op *op) {
    scale_in_norm(g, op, MF_SUM_NONE, true, 0.5);
}

static mf_exec_env *env_of(const mf_exec_op *op) {
    union {
        const mf_exec_env *read;
        mf_exec_env *write;
    } env = {.read = op->env};
    return env.write;
}

static void scale_aux(const mf_exec_op *op, float factor) {
    if (op->op->kind == MF_OP_ROUTER_BWD) {
        env_of(op)->aux_scale *= factor;
    }
}

static void scale_aux_by_tp(grid_case *g, const mf_exec_op *op) {
    scale_aux(op, (float)g->layout.tp);
}

static void unscale_aux_by_tp(grid_case *g, const mf_exec_op *op) {
    scale_aux(op, 1.0f / (float)g->layout.tp);
}

static void scale_aux_by_cp(grid_case *g, const mf_exec_op *op) {
    scale_aux(op, (float)g->layout.cp);
}

static void unscale_aux_by_cp(grid_case *g, const mf_exec_op *op) {
    scale_aux(op, 1.0f / (float)g->layout.cp);
}

/* Never divided by how many micro-batches there are. */
static void scale_aux_by_micro_batches(grid_case *g, const mf_exec_op *op) {
    scale_aux(op, (float)g->layout.micro_batches);
}

static void unscale_aux_by_micro_batches(grid_case *g, const mf_exec_op *op) {
    scale_aux(op, 1.0f / (float)g->layout.micro_batches);
}

static bool makes_loss_gradient(const mf_exec_op *op) {
    return op->op->kind == MF_OP_CROSS_ENTROPY_BWD || op->op->kind == MF_OP_CROSS_ENTROPY;
}

/* A mean per micro-batch that is never divided by their number. */
static void scale_loss(grid_case *g, const mf_exec_op *op) {
    if (makes_loss_gradient(op)) {
        env_of(op)->loss_scale *= (float)g->layout.micro_batches;
    }
}

/* Divided by this rank's labels, not by those of all. */
static void scale_loss_by_ranks(grid_case *g, const mf_exec_op *op) {
    if (makes_loss_gradient(op)) {
        env_of(op)->loss_scale *= (float)(g->layout.dp * g->layout.cp);
    }
}

/* Of accumulated gradients the last micro-batch's alone. */
static void forget_before(grid_case *g, const mf_exec_op *op) {
    (void)g;
    if (op->op->kind == MF_OP_GEMM && op->op->pass == MF_PASS_W) {
        memset(op->out[0].data, 0, (size_t)(op->out[0].rows * op->out[0].cols) * sizeof(float));
    }
}

static void shift_choices(const mf_exec_op *op, int64_t by) {
    int32_t *choice = op->in[1].data;
    int64_t experts = op->env->model->experts;
    for (int64_t i = 0; i < op->in[1].rows * op->in[1].cols; i++) {
        choice[i] = choice[i] < 0 ? choice[i] : (int32_t)((choice[i] + by + experts) % experts);
    }
}

/* The second pass through the router takes the next expert. */
static void route_otherwise(grid_case *g, const mf_exec_op *op) {
    (void)g;
    if (op->op->kind == MF_OP_ROUTER_FWD && op->op->pass == MF_PASS_R) {
        shift_choices(op, 1);
    }
}

static void route_back(grid_case *g, const mf_exec_op *op) {
    (void)g;
    if (op->op->kind == MF_OP_ROUTER_FWD && op->op->pass == MF_PASS_R) {
        shift_choices(op, -1);
    }
}

/* Does no token take this expert? So grid_starve has it. */
static bool is_idle(const grid_case *g, int64_t local) {
    int64_t expert =
        mf_layout_coords(&g->layout, mf_comm_rank(g->comm)).e * (g->model.experts / g->layout.ep) +
        local;
    return expert == 1 || expert == g->model.experts - 1;
}

/* What an expert without tokens finds in memory that nobody wrote. */
static void leave_garbage(grid_case *g, const mf_exec_op *op) {
    if (op->op->kind != MF_OP_GROUPED_GEMM || op->op->pass != MF_PASS_W) {
        return;
    }
    int64_t groups = op->op->dim[MF_OP_DIM_GROUPS],
            size = op->out[0].rows / groups * op->out[0].cols;
    const int32_t *offsets = mf_ops_row_map_operand(op)->data;
    float *gradient = op->out[0].data;
    for (int64_t i = 0; i < groups; i++) {
        if (is_idle(g, i) && offsets[i + 1] == offsets[i]) {
            gradient[i * size] += 1.0f;
        }
    }
}

/* As if the optimizer passed over what has no gradient: its weights do not decay. */
static void forget_idle_experts(grid_case *g, const mf_exec_op *op) {
    const mf_params *list = mf_exec_params(g->exec);
    int64_t experts = g->model.experts / g->layout.ep;
    for (int i = 0; i < list->count && op->op->step_end == MF_STEP_END_ADAMW; i++) {
        const mf_param *q = &list->list[i];
        int64_t first, count, size = q->rows * q->cols / experts;
        float *w = mf_exec_own_weight(g->exec, i, &first, &count);
        for (int64_t k = 0; k < count && q->expert; k++) {
            w[k] /= is_idle(g, (first + k) / size) ? 1.0f - 1e-3f * 0.1f : 1.0f;
        }
    }
}

static int64_t poisoned;

/* Rows behind the last expert's hold what nobody wrote: nothing may come of it. */
static void poison_rows(grid_case *g, const mf_exec_op *op) {
    (void)g;
    if (op->op->kind != MF_OP_GROUPED_GEMM || op->op->pass == MF_PASS_W) {
        return;
    }
    const int32_t *offsets = mf_ops_row_map_operand(op)->data;
    const mf_exec_tensor *t = &op->out[0];
    float *data = t->data;
    for (int64_t i = offsets[op->op->dim[MF_OP_DIM_GROUPS]] * t->cols; i < t->rows_max * t->cols;
         i++) {
        data[i] = NAN;
        poisoned++;
    }
}

/* Of what is recomputed another choice is dropped than was at first. */
static void drop_otherwise(grid_case *g, const mf_exec_op *op) {
    int32_t *kept = op->out[0].data;
    (void)g;
    if (op->op->kind == MF_OP_ROUTER_DROP && op->op->pass == MF_PASS_R) {
        for (int64_t i = 0; i < op->out[0].rows * op->out[0].cols; i++) {
            if (kept[i] >= 0) {
                kept[i] = -1;
                return;
            }
        }
    }
}

/* The first to come are kept, not the most probable. */
static void keep_the_first(grid_case *g, const mf_exec_op *op) {
    if (op->op->kind != MF_OP_ROUTER_DROP || op->op->pass != MF_PASS_F) {
        return;
    }
    int64_t k = g->model.top_k, seq = g->layout.seq, n = op->out[0].rows * k;
    const int32_t *map = op->in[0].data;
    int32_t *kept = op->out[0].data;
    for (int64_t from = 0; from < n; from += seq * k) {
        for (int32_t x = 0; x < g->model.experts; x++) {
            int64_t left = 0;
            for (int64_t i = from; i < from + seq * k; i++) {
                left += kept[i] == x;
            }
            for (int64_t i = from; i < from + seq * k; i++) {
                if (map[i] == x) {
                    kept[i] = left-- > 0 ? x : -1;
                }
            }
        }
    }
}

/* Keys of a ring step with the positions of the step before. */
static void lag_positions(grid_case *g, const mf_exec_op *op) {
    if (op->op->kind == MF_OP_ATTENTION_FWD && op->op->pass == MF_PASS_F) {
        int32_t *p = (int32_t *)(uintptr_t)op->env->position;
        for (int64_t i = 0; i < g->layout.mbs * (g->layout.seq / g->layout.cp); i++) {
            p[i] += 1;
        }
    }
}

static void restore_positions(grid_case *g, const mf_exec_op *op) {
    if (op->op->kind == MF_OP_ATTENTION_FWD && op->op->pass == MF_PASS_F) {
        int32_t *p = (int32_t *)(uintptr_t)op->env->position;
        for (int64_t i = 0; i < g->layout.mbs * (g->layout.seq / g->layout.cp); i++) {
            p[i] -= 1;
        }
    }
}

/* Keys and values gathered the other way round, on one rank. */
static void swap_gathers(grid_case *g) {
    for (int b = 0; b < g->program->nblocks && mf_comm_rank(g->comm) == 0; b++) {
        mf_block *block = g->program->blocks[b];
        for (int i = 0; i + 1 < block->nops; i++) {
            mf_op *k = &block->ops[i], *v = k + 1, keep = *k;
            if (strcmp(k->name, "cp_all_gather_k") != 0 || k->pass != MF_PASS_F ||
                strcmp(v->name, "cp_all_gather_v") != 0) {
                continue;
            }
            *k = *v;
            *v = keep;
            for (int o = 0; o < block->nops; o++) {
                int16_t *f = &block->ops[o].forward;
                *f = (int16_t)(*f == i ? i + 1 : *f == i + 1 ? i : *f);
            }
        }
    }
}

/* --- the faults ---------------------------------------------------------------------------------
 */

enum { QWEN2, DEEPSEEK, QWEN3_TIED, MIXTRAL, DROPPING, PADDED, LLAMA, STARVED };

/* Degrees of 0 stand for 1. */
typedef struct trap {
    grid_fault fault;
    int ranks, model;
    int tp, cp, pp, ep, etp, mbs, zero, expert_zero;
    mf_schedule_kind schedule;
    mf_cp_type cp_type;
    uint16_t recompute;
    bool harmless; /* nothing may come of it */
} trap;

static const trap traps[] = {
    /* Who reduces what. */
    {{"norm and router gradients without the sum over TP", .skips = "sum_replicated"},
     .ranks = 2,
     .model = MIXTRAL,
     .tp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"K and V gradients without the sum over their copies", .skips = "sum_kv_heads"},
     .ranks = 4,
     .model = MIXTRAL,
     .tp = 4,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"expert gradients not summed over EDP", .skips = "reduce_experts"},
     .ranks = 2,
     .model = MIXTRAL,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"expert gradients not summed over EDP, block by block", .skips = "reduce_experts"},
     .ranks = 2,
     .model = MIXTRAL,
     .mbs = 2,
     .zero = 1,
     .expert_zero = 2},
    {{"dense gradients not summed over DP", .skips = "reduce_gradients"},
     .ranks = 2,
     .model = LLAMA,
     .mbs = 4},
    {{"parameters not gathered after the update", .skips = "gather_parameters"},
     .ranks = 2,
     .model = LLAMA,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"weights not gathered for a block", .skips = "gather_weights"},
     .ranks = 2,
     .model = LLAMA,
     .mbs = 4,
     .zero = 3,
     .expert_zero = 1},
    {{"tied tables not summed over stages", .skips = "embedding_copies"},
     .ranks = 2,
     .model = QWEN3_TIED,
     .pp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"expert counts of one rank alone", .skips = "expert_counts"},
     .ranks = 2,
     .model = DEEPSEEK,
     .ep = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    /* Scale. */
    {{"a mean per micro-batch where a sum is meant", .before = scale_loss},
     .ranks = 2,
     .model = LLAMA,
     .mbs = 2,
     .zero = 1,
     .expert_zero = 1},
    {{"a mean over the labels of one rank", .before = scale_loss_by_ranks},
     .ranks = 2,
     .model = MIXTRAL,
     .cp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"the gradient of the last micro-batch alone", .before = forget_before},
     .ranks = 2,
     .model = LLAMA,
     .pp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"expert gradients divided by EDP", .before = average_experts},
     .ranks = 2,
     .model = MIXTRAL,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"expert gradients summed over EP and ETP once more", .before = multiply_experts},
     .ranks = 4,
     .model = MIXTRAL,
     .ep = 2,
     .etp = 2,
     .mbs = 2,
     .zero = 1,
     .expert_zero = 1},
    /* The norm, each element once. */
    {{"expert gradients missing from the norm", .before = hide_experts, .after = show_experts},
     .ranks = 2,
     .model = MIXTRAL,
     .ep = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"TP replicas twice in the norm", .before = count_tp_twice, .after = count_tp_once},
     .ranks = 2,
     .model = MIXTRAL,
     .tp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"K and V copies twice in the norm", .before = count_kv_twice, .after = count_kv_once},
     .ranks = 4,
     .model = MIXTRAL,
     .tp = 4,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"tied copies twice in the norm", .before = count_tables_twice, .after = count_tables_once},
     .ranks = 2,
     .model = QWEN3_TIED,
     .pp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    /* The auxiliary loss. */
    {{"counts of the auxiliary loss not summed over CP", .skips = "aux_loss_counts"},
     .ranks = 2,
     .model = MIXTRAL,
     .cp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"counts of the auxiliary loss not summed over TP", .skips = "aux_loss_counts"},
     .ranks = 2,
     .model = QWEN2,
     .tp = 2,
     .mbs = 1,
     .zero = 1,
     .expert_zero = 1},
    {{"auxiliary loss that grows with TP", .before = scale_aux_by_tp, .after = unscale_aux_by_tp},
     .ranks = 2,
     .model = MIXTRAL,
     .tp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"auxiliary loss that grows with CP", .before = scale_aux_by_cp, .after = unscale_aux_by_cp},
     .ranks = 2,
     .model = QWEN2,
     .cp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"auxiliary loss that grows with micro-batches", .before = scale_aux_by_micro_batches,
      .after = unscale_aux_by_micro_batches},
     .ranks = 2,
     .model = QWEN2,
     .ep = 2,
     .mbs = 2,
     .zero = 1,
     .expert_zero = 1},
    /* Recomputation. */
    {{"recomputation that routes differently", .before = route_otherwise, .after = route_back},
     .ranks = 2,
     .model = MIXTRAL,
     .ep = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1,
     .recompute = MF_RECOMPUTE_MOE},
    {{"recomputation that drops differently", .after = drop_otherwise},
     .ranks = 2,
     .model = DROPPING,
     .ep = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1,
     .recompute = MF_RECOMPUTE_MOE},
    {{"the first kept, not the most probable", .after = keep_the_first},
     .ranks = 2,
     .model = DROPPING,
     .ep = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    /* Experts that receive no token. */
    {{"gradients of experts without tokens", .after = leave_garbage},
     .ranks = 2,
     .model = STARVED,
     .ep = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"experts without tokens passed over by the optimizer", .after = forget_idle_experts},
     .ranks = 2,
     .model = STARVED,
     .ep = 2,
     .mbs = 4},
    {{"rows behind the last expert's, which nobody wrote", .after = poison_rows},
     .ranks = 2,
     .model = STARVED,
     .ep = 2,
     .mbs = 4,
     .zero = 1,
     .harmless = true},
    /* Order. */
    {{"collectives in another order on one rank", .change = swap_gathers},
     .ranks = 2,
     .model = MIXTRAL,
     .cp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1,
     .cp_type = MF_CP_ALLGATHER},
    {{"positions of own keys a place off", .before = lag_positions, .after = restore_positions},
     .ranks = 2,
     .model = LLAMA,
     .cp = 2,
     .mbs = 4,
     .zero = 1,
     .expert_zero = 1},
    {{"a weight gradient that a split schedule forgets", .skips = "o_proj"},
     .ranks = 2,
     .model = LLAMA,
     .pp = 2,
     .mbs = 2,
     .zero = 1,
     .expert_zero = 1,
     .schedule = MF_SCHED_ZB_H1},
};
enum { TRAPS = sizeof traps / sizeof traps[0] };

static int one_or(int degree) {
    return degree > 0 ? degree : 1;
}

static mf_layout layout_of(const trap *t) {
    mf_layout l;
    grid_layout_init(&l);
    l.gpus = t->ranks;
    l.tp = one_or(t->tp);
    l.cp = one_or(t->cp);
    l.pp = one_or(t->pp);
    l.ep = one_or(t->ep);
    l.etp = one_or(t->etp);
    l.mbs = t->mbs;
    l.zero = (uint8_t)t->zero;
    l.expert_zero = (uint8_t)t->expert_zero;
    l.schedule = t->schedule == MF_SCHED_GPIPE ? MF_SCHED_1F1B : t->schedule;
    l.cp_type = t->cp_type;
    l.memory.recompute = t->recompute;
    return l;
}

static int child(int ranks, const char *references) {
    static grid_reference ref[GRID_MODELS];
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    mf_cost *cost = account_cost(&e);
    int failed = 0;
    if (cost == NULL || !grid_references_read(references, ref) ||
        mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    /* Sanitizers see every fourth: what they look for is in the layout, not in the mistake. */
    for (int i = 0; i < TRAPS; i += case_stride(4)) {
        const trap *t = &traps[i];
        char worst[200] = "", sound_worst[200] = "";
        mf_layout l = layout_of(t);
        grid_run_case c = {&grid_models[t->model], &l, &ref[t->model], cost, NULL};
        if (t->ranks != ranks) {
            continue;
        }
        double sound = grid_run_everywhere(&c, sound_worst, &e);
        c.fault = &t->fault;
        double caught = grid_run_everywhere(&c, worst, &e);
        bool seen = t->harmless ? caught <= GRID_BOUND && poisoned > 0 : caught > GRID_CAUGHT;
        bool bad = !(sound <= GRID_BOUND) || !seen;
        failed += bad;
        if (rank == 0) {
            printf("%-56s %.1e without, %.1e with (%s)%s\n", t->fault.name, sound, caught, worst,
                   bad           ? " NOT CAUGHT"
                   : t->harmless ? " as it should"
                                 : "");
        }
        if (bad && sound_worst[0] != '\0' && !(sound <= GRID_BOUND)) {
            printf("rank %lld: %s %s\n", (long long)rank, sound_worst, e.text);
        }
        fflush(stdout);
    }
    mf_cost_destroy(cost);
    for (int i = 0; i < GRID_MODELS; i++) {
        grid_reference_clear(&ref[i]);
    }
    mf_comm_stop();
    return failed > 0;
}

static void faults_on_two_ranks_are_caught(void **state) {
    (void)state;
    grid_launch(2);
}

static void faults_on_four_ranks_are_caught(void **state) {
    (void)state;
    grid_launch(4);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_on_two_ranks_are_caught),
        cmocka_unit_test(faults_on_four_ranks_are_caught),
    };
    int code = grid_other_than_tests(argc, argv, child);
    return code >= 0 ? code
                     : cmocka_run_group_tests(tests, grid_references_make, grid_references_drop);
}
