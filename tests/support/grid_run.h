/* grid_run.h - a layout of several ranks against the reference of one (tests/support/grid_case.h);
 * programs that start themselves again. */
#ifndef MF_TESTS_GRID_RUN_H
#define MF_TESTS_GRID_RUN_H

#include "tests/support/account.h"
#include "tests/support/grid_case.h"
#include "tests/support/self_ranks.h"
#include "tests/support/test.h"

#include <sys/wait.h>
#include <unistd.h>

#define GRID_BOUND 1e-5
#define GRID_CAUGHT (10 * GRID_BOUND) /* a planted mistake is off by more */

/* --- what ran -----------------------------------------------------------------------------------
 */

/* A mistake planted on purpose: an op left out, or data changed around one. */
typedef struct grid_fault {
    const char *name;
    const char *skips;   /* name of the op left out; NULL: none */
    unsigned skips_pass; /* in this pass alone; 0: in all */
    void (*before)(grid_case *g, const mf_exec_op *op);
    void (*after)(grid_case *g, const mf_exec_op *op);
    void (*change)(grid_case *g); /* of the program, before an executor is made for it */
} grid_fault;

typedef struct grid_run_case {
    const grid_model *model;
    const mf_layout *layout;
    grid_reference *ref;
    const mf_cost *cost;
    const grid_fault *fault; /* NULL: none */
} grid_run_case;

typedef struct grid_watch {
    grid_case *g;
    const grid_fault *fault;
    account account;
    uint64_t order[MF_GROUP_COUNT]; /* of the collectives over each group: a running mark */
} grid_watch;

/* Which collective, and of what size: its members have to agree on the order of these. */
static inline void grid_mark(grid_watch *w, const mf_op *op) {
    if (op->group >= MF_GROUP_COUNT || op->group == MF_GROUP_PP || op->kind == MF_OP_SEND_RECV) {
        return;
    }
    uint64_t *mark = &w->order[op->group];
    for (const char *c = op->name; *c != '\0'; c++) {
        *mark = (*mark ^ (unsigned char)*c) * 0x100000001b3u;
    }
    *mark = (*mark ^ (uint64_t)op->bytes ^ op->pass) * 0x100000001b3u;
}

static inline bool grid_skips(void *user, const mf_op *op) {
    const grid_watch *w = user;
    const grid_fault *f = w->fault;
    return f != NULL && f->skips != NULL && strcmp(f->skips, op->name) == 0 &&
           (f->skips_pass == 0 || f->skips_pass == op->pass);
}

static inline void grid_before(void *user, const mf_exec_op *x) {
    const grid_watch *w = user;
    if (w->fault != NULL && w->fault->before != NULL) {
        w->fault->before(w->g, x);
    }
}

/* Padded to the capacity, each expert has as many rows as any other, whatever the routing. */
static inline bool grid_padded(const mf_layout *l, const mf_model *m, const mf_exec_op *x) {
    int64_t rows = mf_layout_padded_rows(l, m), experts = x->op->dim[MF_OP_DIM_GROUPS];
    bool even = rows > 0 && x->op->dim[MF_OP_DIM_M] == rows * experts;
    const int32_t *from = even ? mf_ops_row_map_operand(x)->data : NULL;
    for (int64_t i = 0; even && i <= experts; i++) {
        even = from[i] == i * rows;
    }
    return even;
}

static inline void grid_look(void *user, const mf_exec_op *x) {
    grid_watch *w = user;
    const mf_layout *l = &w->g->layout;
    if (w->fault != NULL && w->fault->after != NULL) {
        w->fault->after(w->g, x);
    }
    account_look(&w->account, x);
    if (l->pad_to_capacity && x->op->kind == MF_OP_GROUPED_GEMM && x->op->pass == MF_PASS_F) {
        w->account.foreign += !grid_padded(l, &w->g->model, x);
    }
    grid_mark(w, x->op);
}

/* --- one case -----------------------------------------------------------------------------------
 */

static inline double grid_relative(double got, double want) {
    double error = fabs(want) > 0 ? fabs(got / want - 1.0) : fabs(got);
    return isnan(error) ? (double)INFINITY : error;
}

/* Collective. */
static inline double grid_parameter_error(grid_case *g, const grid_reference *ref, bool gradient,
                                          char worst[200]) {
    const mf_params *list = mf_exec_params(g->exec);
    double most = 0.0;
    char name[200];
    grid_sums sums;
    grid_sums_init(&sums, ref);
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        int64_t first = 0, count = q->rows * q->cols;
        const float *values = gradient ? NULL : mf_exec_param(g->exec, i);
        if (gradient) {
            values = mf_exec_own_gradient(g->exec, i, &first, &count);
        } else if (values == NULL) {
            values = mf_exec_own_weight(g->exec, i, &first, &count);
        }
        double error = grid_error(g, ref, q, gradient, values, first, count, &sums, name);
        if (error > most) {
            most = error;
            snprintf(worst, 200, "%s", name);
        }
    }
    double whole = grid_sums_error(g, ref, &sums, gradient, name);
    if (whole > most) {
        most = whole;
        snprintf(worst, 200, "%s", name);
    }
    grid_sums_clear(&sums);
    return most;
}

static inline void grid_note(double *most, double error, char worst[200], int step,
                             const char *what) {
    if (error > *most) {
        *most = error;
        snprintf(worst, 200, "step %d %.150s", step, what);
    }
}

/* Ranks that call collectives in different orders wait for ever, or worse, go on. */
static inline double grid_order(const grid_case *g, const grid_watch *w, char text[200]) {
    for (int k = 0; k < MF_GROUP_COUNT; k++) {
        mf_group_kind group = (mf_group_kind)k;
        double mark = (double)(w->order[k] >> 12), most[2] = {mark, -mark};
        if (group == MF_GROUP_PP || group == MF_GROUP_WORLD) {
            continue; /* stages do different things */
        }
        if (mf_comm_all_reduce(g->comm, group, MF_COMM_F64, MF_COMM_MAX, most, 2, NULL) != MF_OK ||
            most[0] + most[1] != 0.0) {
            snprintf(text, 200, "order of collectives over %s", mf_group_text(group));
            return (double)INFINITY;
        }
    }
    return 0.0;
}

static inline mf_status grid_step(grid_case *g, const grid_run_case *c, grid_watch *w, double *most,
                                  char worst[200], mf_err *e) {
    const mf_exec_batch batch = {grid_sample, g};
    mf_exec_result r = {0};
    mf_status status = mf_exec_step(g->exec, &batch, 1e-3, &r, e);
    int step = (int)g->step;
    char text[200] = "";
    if (status != MF_OK) {
        return status;
    }
    grid_note(most, grid_relative(r.lm_loss, c->ref->lm_loss[step]), worst, step + 1, "loss");
    grid_note(most, grid_relative(r.grad_norm, c->ref->norm[step]), worst, step + 1, "norm");
    grid_note(most, grid_relative(r.mtp_loss, c->ref->mtp_loss[step]), worst, step + 1, "MTP loss");
    grid_note(most, grid_relative(r.aux_loss, c->ref->aux_loss[step]), worst, step + 1, "aux loss");
    if (step == 0) {
        double error = grid_parameter_error(g, c->ref, true, text);
        grid_note(most, error, worst, 1, text);
    }
    /* A fault is to be caught by what it does, not by what was left out. */
    if (c->fault == NULL && !account_step(&w->account, &r, text)) {
        grid_note(most, (double)INFINITY, worst, step + 1, text);
    }
    grid_note(most, grid_order(g, w, text), worst, step + 1, text);
    return MF_OK;
}

/* Whether some rank is off by so much that the fault is caught: what comes after adds nothing. */
static inline bool grid_caught(const grid_case *g, double most) {
    return mf_comm_all_reduce(g->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, &most, 1, NULL) ==
               MF_OK &&
           most > GRID_CAUGHT;
}

/* Largest error of a case on this rank, NAN when it did not run; why in `worst`. With a fault it
 * ends after the step in which that is caught. */
static inline double grid_run(const grid_run_case *c, char worst[200], mf_err *e) {
    grid_case g;
    mf_exec_options o;
    double most = 0.0;
    char text[200] = "";
    grid_watch w = {.g = &g, .fault = c->fault};
    grid_options(&o);
    o.before_op = grid_before;
    o.after_op = grid_look;
    o.skips = grid_skips;
    o.user = &w;
    void (*change)(grid_case *) = c->fault != NULL ? c->fault->change : NULL;
    mf_status status = grid_open(&g, c->model, c->layout, &o, change, e);
    if (status == MF_OK) {
        account_open(&w.account, g.program, g.schedule, g.exec, g.comm, c->cost);
    }
    bool caught = false;
    for (g.step = 0; g.step < GRID_STEPS && status == MF_OK && !caught; g.step++) {
        status = grid_step(&g, c, &w, &most, worst, e);
        caught = status == MF_OK && c->fault != NULL && grid_caught(&g, most);
    }
    if (status == MF_OK && !caught) {
        double error = grid_parameter_error(&g, c->ref, false, text);
        grid_note(&most, error, worst, GRID_STEPS, text);
        if (grid_biases(&g, c->ref, false) > 0) {
            grid_note(&most, (double)INFINITY, worst, GRID_STEPS, "correction biases");
        }
    }
    grid_close(&g);
    return status == MF_OK ? most : (double)NAN;
}

/* Over all ranks. A case that did not run is off by INFINITY. */
static inline double grid_run_everywhere(const grid_run_case *c, char worst[200], mf_err *e) {
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

/* --- references and ranks -----------------------------------------------------------------------
 */

static inline bool grid_references_read(const char *path, grid_reference ref[GRID_MODELS]) {
    FILE *f = fopen(path, "rb");
    bool ok = f != NULL;
    for (int i = 0; i < GRID_MODELS && ok; i++) {
        ok = grid_reference_move(f, &ref[i], false);
    }
    if (f != NULL) {
        fclose(f);
    }
    return ok;
}

static const char *grid_program;
static char grid_references[64];

static inline int grid_references_make(void **state) {
    (void)state;
    snprintf(grid_references, sizeof grid_references, "/tmp/moefold-grid-%ld", (long)getpid());
    FILE *f = fopen(grid_references, "wb");
    bool ok = f != NULL;
    for (int i = 0; i < GRID_MODELS && ok; i++) {
        grid_reference ref;
        mf_err e;
        ok = grid_reference_make(&grid_models[i], &ref, &e) == MF_OK;
        if (!ok) {
            printf("%s: %s\n", grid_models[i].name, e.text);
            break;
        }
        printf("%-19s loss %.6f %.6f %.6f norm %.4f, nearest choice %.1e, %g idle experts\n",
               grid_models[i].name, ref.lm_loss[0], ref.lm_loss[1], ref.lm_loss[2], ref.norm[0],
               ref.nearest, ref.idle);
        ok = ref.nearest > 1e-6 && (ref.idle > 0) >= grid_models[i].starved &&
             grid_reference_move(f, &ref, true);
        grid_reference_clear(&ref);
    }
    return f != NULL && fclose(f) == 0 && ok ? 0 : -1;
}

static inline int grid_references_drop(void **state) {
    (void)state;
    return remove(grid_references);
}

static inline void grid_launch(int ranks) {
    char command[512];
    self_command(command, sizeof command, SELF_LEAKS, grid_program, ranks, grid_references);
    fflush(stdout);
    int result = system(command);
    assert_true(WIFEXITED(result));
    assert_true(WEXITSTATUS(result) == 0);
}

/* The begin of a main that also runs as launcher and as rank ("PROGRAM --child RANKS REFERENCES"):
 * the exit code of such a process; -1: this process runs the tests. */
static inline int grid_other_than_tests(int argc, char **argv,
                                        int (*child)(int ranks, const char *references)) {
    grid_program = argv[0];
    int launched = self_launch(argc, argv);
    if (launched >= 0) {
        return launched;
    }
    return argc > 3 && strcmp(argv[1], "--child") == 0 ? child(atoi(argv[2]), argv[3]) : -1;
}

#endif
