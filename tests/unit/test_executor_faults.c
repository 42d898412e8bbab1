/* Faults planted on purpose, each one a known trap of training with many kinds of parallelism, are
 * caught by the comparison with one rank; without the fault the same layout passes. */
#include "tests/grid_run.h"

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

static mf_exec_env *env_of(const mf_exec_op *op) {
    union {
        const mf_exec_env *read;
        mf_exec_env *write;
    } env = {.read = op->env};
    return env.write;
}

static void scale_aux_by_tp(grid_case *g, const mf_exec_op *op) {
    if (op->op->kind == MF_OP_ROUTER_BWD) {
        env_of(op)->aux_scale *= (float)g->layout.tp;
    }
}

static void unscale_aux(grid_case *g, const mf_exec_op *op) {
    if (op->op->kind == MF_OP_ROUTER_BWD) {
        env_of(op)->aux_scale /= (float)g->layout.tp;
    }
}

/* A mean per micro-batch that is never divided by their number. */
static void scale_loss(grid_case *g, const mf_exec_op *op) {
    if (op->op->kind == MF_OP_CROSS_ENTROPY_BWD) {
        env_of(op)->loss_scale *= (float)g->layout.micro_batches;
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

/* What an expert without tokens finds in memory that nobody wrote. */
static void leave_garbage(grid_case *g, const mf_exec_op *op) {
    (void)g;
    if (op->op->kind != MF_OP_GROUPED_GEMM || op->op->pass != MF_PASS_W) {
        return;
    }
    int64_t groups = op->op->dim[3], size = op->out[0].rows / groups * op->out[0].cols;
    const mf_exec_tensor *map = &op->in[op->nin - 1];
    const int32_t *offsets = map->data;
    float *gradient = op->out[0].data;
    for (int64_t i = 0; i < groups; i++) {
        if (offsets[i + 1] - offsets[i] < 3) { /* few rows stand for none: small models use all */
            gradient[i * size] += 1.0f;
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

/* --- the faults ---------------------------------------------------------------------------------
 */

enum { QWEN2, DEEPSEEK, QWEN3_TIED, MIXTRAL, DROPPING, LLAMA };

typedef struct trap {
    grid_fault fault;
    int ranks, model;
    int tp, cp, pp, ep, etp, mbs, zero, expert_zero;
    mf_schedule_kind schedule;
    uint16_t recompute;
} trap;

static const trap traps[] = {
    /* ranks model tp cp pp ep etp mbs zero expert_zero schedule recompute */
    {{"norm and router gradients without the sum over TP", "sum_replicated", NULL, NULL},
     2,
     MIXTRAL,
     2,
     1,
     1,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"K and V gradients without the sum over their copies", "sum_kv_heads", NULL, NULL},
     4,
     MIXTRAL,
     4,
     1,
     1,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"expert gradients not summed over EDP", "reduce_experts", NULL, NULL},
     2,
     MIXTRAL,
     1,
     1,
     1,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"expert gradients not summed over EDP, block by block", "reduce_experts", NULL, NULL},
     2,
     MIXTRAL,
     1,
     1,
     1,
     1,
     1,
     2,
     1,
     2,
     MF_SCHED_1F1B,
     0},
    {{"dense gradients not summed over DP", "reduce_gradients", NULL, NULL},
     2,
     LLAMA,
     1,
     1,
     1,
     1,
     1,
     4,
     0,
     0,
     MF_SCHED_1F1B,
     0},
    {{"parameters not gathered after the update", "gather_parameters", NULL, NULL},
     2,
     LLAMA,
     1,
     1,
     1,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"weights not gathered for a block", "gather_weights", NULL, NULL},
     2,
     LLAMA,
     1,
     1,
     1,
     1,
     1,
     4,
     3,
     1,
     MF_SCHED_1F1B,
     0},
    {{"tied tables not summed over stages", "embedding_copies", NULL, NULL},
     2,
     QWEN3_TIED,
     1,
     1,
     2,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"counts of the auxiliary loss not summed over CP", "aux_loss_counts", NULL, NULL},
     2,
     MIXTRAL,
     1,
     2,
     1,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"auxiliary loss that grows with TP", NULL, scale_aux_by_tp, unscale_aux},
     2,
     MIXTRAL,
     2,
     1,
     1,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"a mean per micro-batch where a sum is meant", NULL, scale_loss, NULL},
     2,
     LLAMA,
     1,
     1,
     1,
     1,
     1,
     2,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"expert gradients missing from the norm", NULL, hide_experts, show_experts},
     2,
     MIXTRAL,
     1,
     1,
     1,
     2,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"expert gradients divided by EDP", NULL, average_experts, NULL},
     2,
     MIXTRAL,
     1,
     1,
     1,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"recomputation that routes differently", NULL, route_otherwise, route_back},
     2,
     MIXTRAL,
     1,
     1,
     1,
     2,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     MF_RECOMPUTE_MOE},
    {{"gradients of experts without tokens", NULL, NULL, leave_garbage},
     2,
     QWEN3_TIED,
     1,
     1,
     1,
     2,
     1,
     1,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"positions of own keys a place off", NULL, lag_positions, restore_positions},
     2,
     LLAMA,
     1,
     2,
     1,
     1,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
    {{"a weight gradient that a split schedule forgets", "o_proj", NULL, NULL},
     2,
     LLAMA,
     1,
     1,
     2,
     1,
     1,
     2,
     1,
     1,
     MF_SCHED_ZB_H1,
     0},
    {{"expert counts of one rank alone", "expert_counts", NULL, NULL},
     2,
     DEEPSEEK,
     1,
     1,
     1,
     2,
     1,
     4,
     1,
     1,
     MF_SCHED_1F1B,
     0},
};
enum { TRAPS = sizeof traps / sizeof traps[0] };

static mf_layout layout_of(const trap *t) {
    mf_layout l;
    grid_layout_init(&l);
    l.gpus = t->ranks;
    l.tp = t->tp;
    l.cp = t->cp;
    l.pp = t->pp;
    l.ep = t->ep;
    l.etp = t->etp;
    l.mbs = t->mbs;
    l.zero = (uint8_t)t->zero;
    l.expert_zero = (uint8_t)t->expert_zero;
    l.schedule = t->schedule;
    l.memory.recompute = t->recompute;
    return l;
}

/* Over all ranks. */
static double error_of(const grid_run_case *c, char worst[200], mf_err *e) {
    double error = grid_run(c, worst, e);
    error = isnan(error) ? (double)INFINITY : error;
    mf_layout l = *c->layout;
    mf_model m;
    mf_comm *comm = NULL;
    if (grid_model_load(c->model, &m, e) != MF_OK || mf_layout_resolve(&l, &m, e) != MF_OK ||
        mf_comm_create(&l, &comm, e) != MF_OK ||
        mf_comm_all_reduce(comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &error, 1, e) != MF_OK) {
        error = (double)INFINITY;
    }
    mf_comm_destroy(comm);
    return error;
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
    for (int i = 0; i < TRAPS; i++) {
        const trap *t = &traps[i];
        char worst[200] = "", sound_worst[200] = "";
        mf_layout l = layout_of(t);
        grid_run_case c = {&grid_models[t->model], &l, &ref[t->model], cost, NULL};
        if (t->ranks != ranks) {
            continue;
        }
        double sound = error_of(&c, sound_worst, &e);
        c.fault = &t->fault;
        double caught = error_of(&c, worst, &e);
        bool bad = !(sound <= GRID_BOUND) || !(caught > 10 * GRID_BOUND);
        failed += bad;
        if (rank == 0) {
            printf("%-56s %.1e without, %.1e with (%s)%s\n", t->fault.name, sound, caught, worst,
                   bad ? " NOT CAUGHT" : "");
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
    grid_program = argv[0];
    if (argc > 3 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]), argv[3]);
    }
    return cmocka_run_group_tests(tests, grid_references_make, grid_references_drop);
}
