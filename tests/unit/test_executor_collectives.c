/* No collective of a program is there for nothing: left out on all ranks, each one by itself, the
 * comparison with one rank notices. So that a sum, gather or exchange that lowering forgot would be
 * noticed, too. Received data of what is left out are zeros. The program starts itself again.
 */
#include "tests/support/grid_run.h"
#include "tests/support/sampled.h"

enum { QWEN2, DEEPSEEK, QWEN3_TIED, MIXTRAL, DROPPING, PADDED, LLAMA, STARVED };

static const struct {
    int ranks, model, tp, cp, pp, ep, etp, mbs, zero;
    mf_cp_type cp_type;
    mf_dispatcher dispatcher;
    uint16_t recompute;
} cases[] = {
    {2, DROPPING, 2, 1, 1, 2, 1, 1, 3, MF_CP_RING, MF_DISPATCH_FUSED, 0},
    {2, QWEN2, 1, 2, 1, 1, 2, 4, 1, MF_CP_RING, MF_DISPATCH_ALLTOALL, 0},
    {2, QWEN3_TIED, 1, 1, 2, 1, 1, 4, 1, MF_CP_RING, MF_DISPATCH_ALLTOALL, 0},
    {4, DEEPSEEK, 2, 2, 1, 4, 1, 4, 1, MF_CP_ALLTOALL, MF_DISPATCH_ALLTOALL, 0},
    {4, MIXTRAL, 4, 1, 1, 2, 2, 2, 1, MF_CP_RING, MF_DISPATCH_ALLGATHER, 0},
    {4, MIXTRAL, 1, 2, 1, 2, 1, 2, 2, MF_CP_ALLGATHER, MF_DISPATCH_FUSED, MF_RECOMPUTE_MOE},
    {4, LLAMA, 2, 1, 1, 1, 1, 4, 0, MF_CP_RING, MF_DISPATCH_FUSED, MF_RECOMPUTE_LAYER},
};
enum { CASES = sizeof cases / sizeof cases[0], MOST = 64 };

/* The collective that is left out: by name and pass. */
typedef struct collective {
    char name[48];
    unsigned pass;
} collective;

static collective left_out;

/* What would have been received. */
static void clear(grid_case *g, const mf_exec_op *op) {
    (void)g;
    if (op->block == NULL || op->op->pass != left_out.pass ||
        strcmp(op->op->name, left_out.name) != 0) {
        return;
    }
    for (int k = 0; k < op->op->nout; k++) {
        const mf_exec_tensor *t = &op->out[k];
        if (op->sum[k].data == NULL && (op->nin == 0 || t->data != op->in[0].data)) {
            memset(t->data, 0, (size_t)(t->rows_max * t->cols) * mf_kernel_dtype_B(t->dtype));
        }
    }
}

static int add(collective *list, int n, const mf_op *op) {
    bool sends = op->group == MF_GROUP_PP || op->group == MF_GROUP_NONE;
    if (sends || op->group >= MF_GROUP_COUNT || op->shape.size < 2 || n == MOST) {
        return n;
    }
    for (int i = 0; i < n; i++) {
        if (list[i].pass == op->pass && strcmp(list[i].name, op->name) == 0) {
            return n;
        }
    }
    list[n].pass = op->pass;
    snprintf(list[n].name, sizeof list[n].name, "%s", op->name);
    return n + 1;
}

/* All that the program has, of all stages, so that every rank goes through the same list. */
static int collectives_of(const grid_case *g, collective list[MOST]) {
    const mf_program *p = g->program;
    int n = 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_block *b = p->blocks[p->block_of[i]];
        for (int k = 0; k < b->nops; k++) {
            n = add(list, n, &b->ops[k]);
        }
        for (int k = 0; k < 2; k++) {
            n = p->dp[i].reduce[k].bytes > 0 ? add(list, n, &p->dp[i].reduce[k]) : n;
            n = p->dp[i].gather[k].bytes > 0 ? add(list, n, &p->dp[i].gather[k]) : n;
        }
    }
    for (int64_t s = 0; s < g->layout.pp; s++) {
        mf_op ops[MF_STEP_END_MAX];
        int count = mf_program_optimizer(p, s, ops, MF_STEP_END_MAX);
        for (int k = 0; k < count; k++) {
            n = add(list, n, &ops[k]);
        }
    }
    return n;
}

static mf_layout layout_of(size_t i) {
    mf_layout l;
    grid_layout_init(&l);
    l.gpus = cases[i].ranks;
    l.tp = cases[i].tp;
    l.cp = cases[i].cp;
    l.pp = cases[i].pp;
    l.ep = cases[i].ep;
    l.etp = cases[i].etp;
    l.mbs = cases[i].mbs;
    l.zero = l.expert_zero = (uint8_t)cases[i].zero;
    l.cp_type = cases[i].cp_type;
    l.dispatcher = cases[i].dispatcher;
    l.memory.recompute = cases[i].recompute;
    return l;
}

static mf_status list_of(const grid_model *m, const mf_layout *l, collective list[MOST], int *count,
                         mf_err *e) {
    grid_case g;
    mf_exec_options o;
    grid_options(&o);
    mf_status s = grid_open(&g, m, l, &o, NULL, e);
    *count = s == MF_OK ? collectives_of(&g, list) : 0;
    grid_close(&g);
    return s;
}

/* How many of a case's collectives are not missed. */
static int run_case(size_t i, grid_reference *ref, const mf_cost *cost, bool talks, int *left) {
    static collective list[MOST];
    mf_layout l = layout_of(i);
    mf_err e = {.text = ""};
    int count, failed = 0;
    const grid_model *m = &grid_models[cases[i].model];
    grid_run_case c = {m, &l, &ref[cases[i].model], cost, NULL};
    char worst[200] = "";
    double sound = grid_run_everywhere(&c, worst, &e);
    if (list_of(m, &l, list, &count, &e) != MF_OK || !(sound <= GRID_BOUND)) {
        printf("case %zu: %.1e %s %s\n", i, sound, worst, e.text);
        return 1;
    }
    /* What sanitizers look for is in each of them: some will do. */
    int stride = case_stride(40);
    for (int k = 0; k < count; k += stride, ++*left) {
        left_out = list[k];
        const grid_fault fault = {.name = left_out.name,
                                  .skips = left_out.name,
                                  .skips_pass = left_out.pass,
                                  .before = clear};
        c.fault = &fault;
        double error = grid_run_everywhere(&c, worst, &e);
        bool missed = error > GRID_CAUGHT;
        failed += !missed;
        if (talks && !missed) {
            printf("case %zu: %s of pass %u is not missed: %.1e\n", i, left_out.name, left_out.pass,
                   error);
        }
    }
    return failed;
}

static int child(int ranks, const char *references) {
    static grid_reference ref[GRID_MODELS];
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    mf_cost *cost = account_cost(&e);
    int failed = 0, left = 0;
    if (cost == NULL || !grid_references_read(references, ref) ||
        mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    for (size_t i = 0; i < CASES; i += (size_t)case_stride(3)) {
        failed += cases[i].ranks == ranks ? run_case(i, ref, cost, rank == 0, &left) : 0;
    }
    if (rank == 0) {
        printf("%d ranks: %d collectives left out, %d not missed\n", ranks, left, failed);
    }
    mf_cost_destroy(cost);
    for (int i = 0; i < GRID_MODELS; i++) {
        grid_reference_clear(&ref[i]);
    }
    mf_comm_stop();
    return failed > 0 || left < case_count(5, 1);
}

static void collectives_of_two_ranks_are_missed(void **state) {
    (void)state;
    grid_launch(2);
}

static void collectives_of_four_ranks_are_missed(void **state) {
    (void)state;
    grid_launch(4);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_of_two_ranks_are_missed),
        cmocka_unit_test(collectives_of_four_ranks_are_missed),
    };
    int code = grid_other_than_tests(argc, argv, child);
    return code >= 0 ? code
                     : cmocka_run_group_tests(tests, grid_references_make, grid_references_drop);
}
