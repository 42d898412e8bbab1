/* The executor against a model of its own in plain double precision
 * (tests/support/reference_model.h): losses, every gradient and three AdamW steps of families and
 * routing choices that no checkpoint from outside covers, on one rank and folded. The program
 * starts itself again under mpirun. */
#include "executor/checkpoint/checkpoint.h"
#include "tests/support/account.h"
#include "tests/support/model_cases.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include <sys/wait.h>

#define BOUND 1e-5

/* --- one case -----------------------------------------------------------------------------------
 */

typedef struct fixture {
    mf_model model;
    mf_layout layout;
    mf_cluster cluster;
    mf_assignment assignment;
    mf_program *program;
    mf_schedule *schedule;
    mf_comm *comm;
    mf_exec *exec;
    account account;
    int32_t tokens[SAMPLES * (SEQ + 1)];
} fixture;

static mf_cost *cost;

static void look_on(void *user, const mf_exec_op *op) {
    fixture *w = user;
    account_look(&w->account, op);
}

static mf_status open_fixture(fixture *w, const model_case *c, const spec *s, mf_err *e) {
    mf_exec_options o;
    memset(w, 0, sizeof *w);
    w->layout = layout_of(s);
    w->layout.aux_scope = (mf_aux_scope)c->scope;
    w->layout.capacity_factor = c->capacity;
    w->layout.pad_to_capacity = c->padded;
    w->layout.precision = c->bf16 > 0 ? MF_PREC_BF16 : MF_PREC_FP32;
    mf_exec_options_init(&o);
    o.aux_coef = c->aux;
    o.bias_rate = c->bias_rate;
    o.z_coef = c->z;
    o.force_balance = c->forced;
    o.eps = 1e-5;
    o.after_op = look_on;
    o.user = w;
    mf_status st = read_model(c, &w->model, e);
    st = st == MF_OK ? mf_cluster_load("cpu", &w->cluster, e) : st;
    st = st == MF_OK ? mf_layout_resolve(&w->layout, &w->model, e) : st;
    st = st == MF_OK ? mf_assignment_even(&w->model, &w->layout, &w->assignment, e) : st;
    st = st == MF_OK
             ? mf_program_lower(&w->model, &w->layout, &w->cluster, &w->assignment, &w->program, e)
             : st;
    st = st == MF_OK ? mf_schedule_create(&w->layout, &w->schedule, e) : st;
    st = st == MF_OK ? mf_comm_create(&w->layout, &w->comm, e) : st;
    st = st == MF_OK
             ? mf_exec_create(w->program, w->schedule, w->comm, mf_device_cpu(), &o, &w->exec, e)
             : st;
    if (st == MF_OK) {
        account_open(&w->account, w->program, w->schedule, w->exec, w->comm, cost);
    }
    return st;
}

static void close_fixture(fixture *w) {
    mf_exec_destroy(w->exec);
    mf_comm_destroy(w->comm);
    mf_schedule_destroy(w->schedule);
    mf_program_destroy(w->program);
}

static mf_status sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    const fixture *w = user;
    (void)e;
    memcpy(tokens, w->tokens + index * (SEQ + 1), (SEQ + 1) * sizeof *tokens);
    return MF_OK;
}

/* The reference's tensor that holds (row, col) of a piece, and where: slices of tensors over
 * experts have names of their own. */
static const ref_tensor *hub_tensor(ref_model *r, const mf_param *q, const mf_param_piece *p,
                                    int64_t row, int64_t col, int64_t *at) {
    char name[200];
    if (p->slice == 0) {
        const ref_tensor *t = ref_find(r, p->name);
        *at = mf_param_piece_element(p, row, col, t != NULL && q->cols > 1 ? t->cols : 1);
        return t;
    }
    int64_t element = mf_param_piece_element(p, row, col, 0), size = p->slice * p->slice_cols;
    snprintf(name, sizeof name, "%s[%lld]", p->name, (long long)(element / size));
    *at = element % size;
    return ref_find(r, name);
}

/* This rank's parameters from the reference's, by name. */
static void copy_weights(fixture *w, ref_model *r) {
    const mf_params *list = mf_exec_params(w->exec);
    mf_rank_coords at = mf_layout_coords(&w->layout, mf_comm_rank(w->comm));
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        mf_param_piece p;
        float *values = calloc((size_t)(q->rows * q->cols), sizeof *values);
        assert_non_null(values);
        for (int k = 0; mf_param_piece_at(w->program, &at, q, k, &p); k++) {
            for (int64_t j = 0; j < p.rows * p.cols; j++) {
                int64_t row = j / p.cols, col = j % p.cols, at_hub = 0;
                const ref_tensor *from = hub_tensor(r, q, &p, row, col, &at_hub);
                values[(p.at_row + row) * q->cols + p.at_col + col] =
                    from != NULL ? (float)from->value[at_hub] : NAN;
            }
        }
        assert_int_equal(mf_exec_set_param(w->exec, i, values, NULL), MF_OK);
        free(values);
    }
    for (int i = 0; i < w->assignment.positions; i++) {
        char name[128];
        float *bias = mf_exec_correction_bias(w->exec, i);
        if (bias != NULL && mf_param_correction_bias(w->program, i, name, sizeof name)) {
            for (int64_t k = 0; k < w->model.experts; k++) {
                bias[k] = (float)ref_find(r, name)->value[k];
            }
        }
    }
}

/* Largest relative error of this rank's gradients, tensor by tensor; of the correction biases. */
static double gradient_error(fixture *w, ref_model *r, char worst[160]) {
    const mf_params *list = mf_exec_params(w->exec);
    mf_rank_coords at = mf_layout_coords(&w->layout, mf_comm_rank(w->comm));
    double most = 0.0;
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        int64_t first, count, pieces = 0;
        mf_param_piece p;
        const float *own = mf_exec_own_gradient(w->exec, i, &first, &count);
        for (int k = 0; mf_param_piece_at(w->program, &at, q, k, &p); k++, pieces++) {
            double difference = 0.0, size = 1e-24;
            for (int64_t j = 0; j < p.rows * p.cols; j++) {
                int64_t row = j / p.cols, col = j % p.cols, at_hub = 0;
                int64_t here = (p.at_row + row) * q->cols + p.at_col + col;
                const ref_tensor *want = hub_tensor(r, q, &p, row, col, &at_hub);
                double g = want != NULL ? want->grad[at_hub] : (double)NAN;
                if (here >= first && here < first + count) {
                    double d = (double)own[here - first] - g;
                    difference += d * d;
                }
                size += count > 0 ? g * g : 0.0; /* of the whole tensor, others' share as well */
            }
            /* Few elements of a shard may be smaller than what bf16 leaves of larger ones. */
            double least = w->layout.precision == MF_PREC_BF16 ? 1e-3 * r->r.grad_norm : 0.0;
            double error = sqrt(difference) / (sqrt(size) + least);
            if (!(error <= most)) {
                most = isnan(error) ? (double)INFINITY : error;
                snprintf(worst, 160, "%.120s (%.1e of %.1e)", p.name, sqrt(difference), sqrt(size));
            }
        }
        if (pieces == 0) {
            most = (double)INFINITY;
            snprintf(worst, 160, "%s has no hub name", q->name);
        }
    }
    return most;
}

static double bias_error(fixture *w, ref_model *r) {
    double most = 0.0;
    for (int i = 0; i < w->assignment.positions; i++) {
        char name[128];
        const float *bias = mf_exec_correction_bias(w->exec, i);
        if (bias != NULL && mf_param_correction_bias(w->program, i, name, sizeof name)) {
            for (int64_t k = 0; k < w->model.experts; k++) {
                most = fmax(most, fabs((double)bias[k] - ref_find(r, name)->value[k]));
            }
        }
    }
    return most;
}

static double off(double got, double want) {
    double error = fabs(got - want) / (fabs(want) + 1e-9);
    return isnan(error) ? (double)INFINITY : error;
}

static double compare_step(fixture *w, ref_model *r, const mf_exec_result *got, char worst[160]) {
    const ref_result *want = &r->r;
    const struct {
        const char *name;
        double error;
    } parts[] = {
        {"lm loss", off(got->lm_loss, want->lm_loss)},
        {"mtp loss", off(got->mtp_loss, want->mtp_loss)},
        {"aux loss", r->o.aux_coef > 0 ? off(got->aux_loss, want->aux_loss) : 0.0},
        {"z loss", r->o.z_coef > 0 ? off(got->z_loss, want->z_loss) : 0.0},
        {"norm", off(got->grad_norm, want->grad_norm)},
    };
    double most = gradient_error(w, r, worst);
    double sums = w->layout.precision == MF_PREC_BF16 ? 10.0 : 1.0; /* rounding averages out */
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!(sums * parts[i].error <= most)) {
            most = sums * parts[i].error;
            snprintf(worst, 160, "%s (%.1e)", parts[i].name, most);
        }
    }
    return most;
}

/* The steps of a case beside the reference's. */
static mf_status run_steps(const model_case *c, fixture *w, ref_model *r, FILE *f, double *error,
                           char worst[160], mf_err *e) {
    const mf_exec_batch batch = {sample, w};
    double bound = c->bf16 > 0 ? c->bf16 : BOUND;
    char text[200] = "";
    for (int step = 0; step < STEPS; step++) {
        mf_exec_result result;
        draw_tokens(&w->model, c->draw, step, w->tokens);
        if (!read_step(f, r, false)) {
            return mf_err_set(e, MF_IO, "%s ends early", trails);
        }
        mf_status st = mf_exec_step(w->exec, &batch, r->o.lr, &result, e);
        if (st != MF_OK) {
            return st;
        }
        if (*error <= bound) {
            *error = fmax(*error, compare_step(w, r, &result, worst));
        }
        if (!account_step(&w->account, &result, text)) {
            snprintf(worst, 160, "step %d: %.140s", step, text);
            *error = (double)INFINITY;
        }
        if (c->capacity > 0.0 && r->r.dropped == 0) {
            snprintf(worst, 160, "step %d: nothing was dropped", step);
            *error = (double)INFINITY;
        }
        if (!c->forced && r->r.nearest < 1e-5) {
            snprintf(worst, 160, "step %d: a tie of %.1e", step, r->r.nearest);
            *error = (double)INFINITY;
        }
    }
    return read_step(f, r, true) ? MF_OK : mf_err_set(e, MF_IO, "%s ends early", trails);
}

/* Largest error over ranks and steps; NAN when it cannot run. */
static double run_case(const model_case *c, const spec *s, FILE *f, long at, char worst[160],
                       mf_err *e) {
    fixture w;
    ref_model r = {0};
    double error = 0.0;
    mf_status st = open_fixture(&w, c, s, e);
    if (st == MF_OK) {
        const ref_options o = reference_options(c, &w.layout);
        ref_init(&r, &w.model, &o);
        copy_weights(&w, &r);
        st = fseek(f, at, SEEK_SET) == 0 ? run_steps(c, &w, &r, f, &error, worst, e) : MF_IO;
        error = fmax(error, bias_error(&w, &r));
        st = st == MF_OK ? mf_comm_all_reduce(w.comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX,
                                              &error, 1, e)
                         : st;
        ref_clear(&r);
    }
    close_fixture(&w);
    return st == MF_OK ? error : (double)NAN;
}

/* --- grids --------------------------------------------------------------------------------------
 */

static int child(int ranks, int only_case, int only_spec) {
    static trail_index index;
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    int failed = 0, ran = 0;
    double most = 0.0, rough = 0.0;
    FILE *f = fopen(trails, "rb");
    cost = account_cost(&e);
    if (f == NULL || fread(&index, sizeof index, 1, f) != 1 || cost == NULL ||
        mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    for (size_t c = 0; c < CASES; c++) {
        for (size_t i = 0; i < SPECS; i++) {
            bool chosen = is_chosen(c, i) && (only_case < 0 || only_case == (int)c) &&
                          (only_spec < 0 || only_spec == (int)i);
            if (specs[i].ranks != ranks || !chosen || index.at[c][i] == 0) {
                continue;
            }
            char worst[160] = "";
            double error = run_case(&cases[c], &specs[i], f, index.at[c][i], worst, &e);
            ran++;
            if (isnan(error)) {
                printf("rank %lld: %s, layout %zu: %s\n", (long long)rank, cases[c].name, i,
                       e.text);
                fflush(stdout);
                mf_comm_abort(1);
            }
            double bound = cases[c].bf16 > 0 ? cases[c].bf16 : BOUND;
            failed += error > bound;
            most = cases[c].bf16 > 0 ? most : fmax(most, error);
            rough = cases[c].bf16 > 0 ? fmax(rough, error) : rough;
            if (error > bound && worst[0] != '\0') {
                printf("rank %lld: %s, layout %zu: %.1e %s\n", (long long)rank, cases[c].name, i,
                       error, worst);
                fflush(stdout);
            }
        }
    }
    if (rank == 0) {
        printf("%d ranks: %d cases, %d failed, worst %.1e in float, %.1e in bf16\n", ranks, ran,
               failed, most, rough);
    }
    fclose(f);
    mf_cost_destroy(cost);
    mf_comm_stop();
    return failed > 0 || ran == 0;
}

/* --- weights from a file ------------------------------------------------------------------------
 */

enum { FILE_TENSORS = 64 };

typedef struct hub_file {
    mf_st_source list[FILE_TENSORS];
    char name[FILE_TENSORS][160];
    float *data[FILE_TENSORS];
    size_t count;
} hub_file;

/* The reference's weights as the hub keeps them: slices [e] of one name side by side. */
static void to_hub(const ref_model *r, hub_file *f) {
    for (int i = 0; i < r->count; i++) {
        const ref_tensor *t = &r->tensor[i];
        int64_t n = t->rows * t->cols, slices = 1;
        const char *slice = strchr(t->name, '[');
        if (slice != NULL && atoi(slice + 1) != 0) {
            continue; /* with the first of its name */
        }
        slices = slice != NULL ? r->m.experts : 1;
        size_t at = f->count++;
        assert_below(at, FILE_TENSORS);
        snprintf(f->name[at], sizeof f->name[at], "%s", t->name);
        f->name[at][strcspn(f->name[at], "[")] = '\0';
        f->data[at] = calloc((size_t)(n * slices), sizeof(float));
        assert_non_null(f->data[at]);
        for (int64_t e = 0; e < slices; e++) {
            char name[192];
            snprintf(name, sizeof name, slice != NULL ? "%s[%lld]" : "%s", f->name[at],
                     (long long)e);
            for (int k = 0; k < r->count; k++) {
                for (int64_t j = 0; strcmp(r->tensor[k].name, name) == 0 && j < n; j++) {
                    f->data[at][e * n + j] = (float)r->tensor[k].value[j];
                }
            }
        }
        mf_st_source *s = &f->list[at];
        *s = (mf_st_source){.name = f->name[at], .dtype = MF_ST_F32, .data = f->data[at]};
        if (slice != NULL) {
            s->shape[s->dims++] = slices;
        }
        if (t->cols > 1) {
            s->shape[s->dims++] = t->rows;
        }
        s->shape[s->dims++] = t->cols > 1 ? t->cols : t->rows;
    }
}

/* A checkpoint of what was read, exported, is what was read. */
static void leaves_as_it_came(fixture *w, const mf_safetensors *from) {
    char folder[] = "/tmp/mf-model-XXXXXX", path[256], hf[64], command[64];
    const mf_train_progress progress = {.step = 1, .seq = SEQ};
    mf_checkpoint *c = NULL;
    mf_safetensors *back = NULL;
    mf_err e = {.text = ""};
    assert_non_null(mkdtemp(folder));
    snprintf(hf, sizeof hf, "%s/hf", folder);
    if (mf_checkpoint_save(w->exec, folder, &progress, 1, &e) != MF_OK ||
        mf_checkpoint_newest(folder, path, sizeof path, &e) != MF_OK ||
        mf_checkpoint_open(path, &w->model, &c, &e) != MF_OK ||
        mf_checkpoint_export(c, &w->model, hf, INT64_C(1) << 30, &e) != MF_OK ||
        mf_safetensors_open(hf, &back, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    assert_int_equal(mf_safetensors_count(back), mf_safetensors_count(from));
    for (size_t i = 0; i < mf_safetensors_count(from); i++) {
        const mf_st_tensor *t = mf_safetensors_at(from, i);
        const mf_st_tensor *u = mf_safetensors_find(back, t->name);
        if (u == NULL || u->dims != t->dims || u->count != t->count) {
            fail_msg("%s: %d of %d dimensions", t->name, u == NULL ? 0 : u->dims, t->dims);
            continue;
        }
        for (int d = 0; d < t->dims; d++) {
            assert_int_equal(u->shape[d], t->shape[d]);
        }
        assert_memory_equal(u->data, t->data, (size_t)t->count * sizeof(float));
    }
    mf_safetensors_close(back);
    mf_checkpoint_close(c);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void tensors_over_all_experts_go_in_and_out_as_the_hub_keeps_them(void **state) {
    (void)state;
    const model_case *c = cases;
    while (strcmp(c->name, "gpt_oss") != 0) {
        c++;
    }
    static hub_file f;
    char path[] = "/tmp/mf-hub-XXXXXX";
    fixture w;
    ref_model r;
    mf_safetensors *from = NULL;
    mf_err e = {.text = ""};
    if (open_fixture(&w, c, &specs[0], &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    const ref_options o = reference_options(c, &w.layout);
    ref_init(&r, &w.model, &o);
    to_hub(&r, &f);
    int file = mkstemp(path);
    assert_at_least(file, 0);
    close(file);
    if (mf_safetensors_write(path, f.list, f.count, &e) != MF_OK ||
        mf_safetensors_open(path, &from, &e) != MF_OK || mf_exec_load(w.exec, from, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    const mf_params *list = mf_exec_params(w.exec);
    mf_rank_coords at = mf_layout_coords(&w.layout, 0);
    int64_t read = 0;
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        mf_param_piece p;
        for (int k = 0; mf_param_piece_at(w.program, &at, q, k, &p); k++) {
            for (int64_t j = 0; j < p.rows * p.cols; j++, read++) {
                int64_t row = j / p.cols, col = j % p.cols, hub = 0;
                const ref_tensor *want = hub_tensor(&r, q, &p, row, col, &hub);
                float got = mf_exec_param(w.exec, i)[(p.at_row + row) * q->cols + p.at_col + col];
                assert_close((double)got, want->value[hub], 0.0);
            }
        }
    }
    assert_int_equal(read, list->dense + list->expert);
    leaves_as_it_came(&w, from);
    mf_safetensors_close(from);
    remove(path);
    for (size_t i = 0; i < f.count; i++) {
        free(f.data[i]);
    }
    ref_clear(&r);
    close_fixture(&w);
}

/* For the test that runs here. */
static int make_all(void **state) {
    cost = account_cost(NULL);
    return cost != NULL ? make_trails(state) : -1;
}

static int drop_all(void **state) {
    mf_cost_destroy(cost);
    return drop_trails(state);
}

static const char *program;

static void run_grid(int ranks) {
    char command[512];
    if (ranks > 1 && (!mf_comm_has_mpi() || system("command -v mpirun >/dev/null 2>&1") != 0)) {
        printf("MF_SKIPPED 1 no MPI: %d ranks are not tested\n", ranks);
        skip();
    }
    fflush(stdout);
    if (ranks == 1) {
        snprintf(command, sizeof command, "%s --child 1 %s", program, trails);
    } else {
        snprintf(command, sizeof command,
                 "mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "
                 "--mca btl_vader_single_copy_mechanism none -x ASAN_OPTIONS=detect_leaks=0 "
                 "-n %d %s --child %d %s",
                 ranks, program, ranks, trails);
    }
    int result = system(command);
    assert_true(WIFEXITED(result));
    assert_true(WEXITSTATUS(result) == 0);
}

static void one_rank_equals_the_double_precision_model(void **state) {
    (void)state;
    run_grid(1);
}

static void two_ranks_equal_the_double_precision_model(void **state) {
    (void)state;
    run_grid(2);
}

static void four_ranks_equal_the_double_precision_model(void **state) {
    (void)state;
    run_grid(4);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_over_all_experts_go_in_and_out_as_the_hub_keeps_them),
        cmocka_unit_test(one_rank_equals_the_double_precision_model),
        cmocka_unit_test(two_ranks_equal_the_double_precision_model),
        cmocka_unit_test(four_ranks_equal_the_double_precision_model),
    };
    program = argv[0];
    if (argc > 3 && strcmp(argv[1], "--child") == 0) {
        snprintf(trails, sizeof trails, "%s", argv[3]);
        return child(atoi(argv[2]), argc > 4 ? atoi(argv[4]) : -1, argc > 5 ? atoi(argv[5]) : -1);
    }
    return cmocka_run_group_tests(tests, make_all, drop_all);
}
