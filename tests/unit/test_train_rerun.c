/* Steps whose numbers are bad: a bit that flips once in what an op gives, an op that errs from some
 * step on, a weight that is no number, a loss that leaps. None of it reaches the weights; rank,
 * layer, op and tensor are named, and transient faults differ from lasting ones. On one
 * rank, two and four, which this program starts itself (--child). Where nothing is wrong no layout
 * has a bad value. */
#include "tests/support/grid_draw.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include "executor/comm/comm_launch.h"
#include "executor/train/inspect.h"
#include "executor/train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 14, BAD = 11 };

/* --- faults -------------------------------------------------------------------------------------
 */

typedef enum fault { CALM, FLIPS, ERRS, WEIGHT, LEAPS } fault;

typedef struct fixture {
    mf_model model;
    mf_cluster cluster;
    mf_layout layout;
    mf_train_options o;
    fault fault;
    bool faulty;        /* this rank is at fault */
    const mf_op *first; /* of this rank's forward pass; a step has one micro-batch */
    int first_position;
    int64_t passes, times, warnings, skipped, last_step;
    double loss;
    char warned[1024];
} fixture;

/* An op in the second layer of its kind, behind which more follows. */
static bool is_the_one(const mf_exec_op *x) {
    return x->block != NULL && x->position == 2 && x->op->pass == MF_PASS_F &&
           strcmp(x->op->name, "input_norm") == 0;
}

static void flip(const mf_exec_tensor *t) {
    uint32_t *bits = t->data;
    int64_t i = 0;
    while (i + 1 < t->rows * t->cols && (bits[i] & 0x7f800000u) != 0x3f800000u) {
        i++; /* to a number from 1 to 2 */
    }
    bits[i] ^= 0x40000000u; /* the highest bit of the exponent: no number, or none that is finite */
}

static void spoil_weight(const mf_exec_op *x) {
    for (int k = 0; k < x->nin; k++) {
        if (x->block->tensors[x->op->in[k]].class == MF_TENSOR_WEIGHT) {
            ((float *)x->in[k].data)[3] = NAN;
        }
    }
}

static void plant(void *user, const mf_exec_op *x) {
    fixture *w = user;
    if (w->first == NULL && x->block != NULL && x->op->pass == MF_PASS_F) {
        w->first = x->op;
        w->first_position = x->position;
    }
    w->passes += x->block != NULL && x->op == w->first && x->position == w->first_position;
    const bool due = w->faulty && w->passes >= BAD;
    if (!due || x->block == NULL) {
        return;
    }
    if (w->fault == FLIPS && is_the_one(x) && w->times++ == 0) {
        flip(&x->out[0]);
    } else if (w->fault == ERRS && is_the_one(x)) {
        ((float *)x->out[0].data)[5] = NAN;
    } else if (w->fault == LEAPS &&
               (x->op->kind == MF_OP_CROSS_ENTROPY || x->op->kind == MF_OP_CROSS_ENTROPY_FWD) &&
               w->passes <= BAD + 1) {
        *x->env->loss_sum += 1e5;
    }
}

static void plant_in_weight(void *user, const mf_exec_op *x) {
    fixture *w = user;
    if (w->fault == WEIGHT && w->faulty && w->passes >= BAD && is_the_one(x) && w->times++ == 0) {
        spoil_weight(x);
    }
}

/* --- runs ---------------------------------------------------------------------------------------
 */

static int stepped(void *user, const mf_train_metrics *m) {
    fixture *w = user;
    w->last_step = m->step;
    w->skipped = (int64_t)m->skipped;
    w->loss = m->lm_loss;
    return 0;
}

static void warned(void *user, const char *line) {
    fixture *w = user;
    if (w->warnings++ == 0) {
        snprintf(w->warned, sizeof w->warned, "%s", line);
    }
}

static void lay_out(fixture *w, int ranks) {
    mf_layout *l = &w->layout;
    mf_err e;
    mf_layout_init(l);
    l->gpus = ranks;
    l->tp = ranks == 2 ? 2 : 1;
    l->pp = l->ep = ranks == 4 ? 2 : 1;
    l->mbs = ranks == 4 ? 2 : 4;
    l->gbs = 4;
    l->seq = 32;
    l->precision = MF_PREC_FP32;
    l->overlap = 0;
    l->dispatcher = MF_DISPATCH_ALLTOALL;
    l->token_headroom = (double)l->ep;
    assert_ok(mf_layout_resolve(l, &w->model, &e));
    assert_int_equal(l->micro_batches, 1);
}

static void open_fixture(fixture *w, int ranks, int64_t rank, fault f) {
    mf_err e;
    memset(w, 0, sizeof *w);
    assert_ok(mf_model_load("tests/data/hf/qwen3_moe/config.json", &w->model, &e));
    assert_ok(mf_cluster_load("cpu", &w->cluster, &e));
    lay_out(w, ranks);
    w->fault = f;
    /* Whose stage has the layer; or the loss; or who keeps the part of the weight, of two
     * data-parallel ranks the first. */
    const bool keeps = ranks == 1 || (ranks == 4 && f == WEIGHT);
    w->faulty = rank == (keeps ? 0 : f == LEAPS ? ranks - 1 : 1);
    mf_train_options_init(&w->o);
    w->o.model = &w->model;
    w->o.cluster = &w->cluster;
    w->o.layout = &w->layout;
    w->o.data = "/usr/share/common-licenses/GPL-3";
    w->o.steps = STEPS;
    w->o.stepped = stepped;
    w->o.warned = warned;
    w->o.user = w;
    w->o.exec.before_op = plant_in_weight;
    w->o.exec.after_op = plant;
    w->o.exec.user = w;
}

/* What each fault is to lead to: without --rerun, and with it, where two bad steps in a row may be.
 */
typedef struct outcome {
    mf_status plain, rerun;
    int64_t skipped;   /* of the plain run; -1: it does not come to its end */
    const char *words; /* of the first warning, or of the end */
    bool named;        /* rank, layer, op and tensor are */
} outcome;

static const outcome outcomes[] = {
    [CALM] = {MF_OK, MF_OK, 0, "", false},
    [FLIPS] = {MF_OK, MF_TRANSIENT, 1, "a fault that passed", false},
    [ERRS] = {MF_DIVERGED, MF_LASTING, -1, "op input_norm: its output ", true},
    [WEIGHT] = {MF_DIVERGED, MF_LASTING, -1, "; so is its weight ", true},
    [LEAPS] = {MF_OK, MF_OK, 1, "a spike (the same again, of finite values)", false},
};

static bool is_as_expected(const fixture *w, int ranks, mf_status status, const mf_err *e) {
    const outcome *want = &outcomes[w->fault];
    const char *text = w->warned[0] != '\0' ? w->warned : e->text;
    char where[64], step[16];
    snprintf(step, sizeof step, "step %d: ", BAD);
    const int named = ranks == 1 || (ranks == 4 && w->fault == WEIGHT) ? 0 : 1;
    snprintf(where, sizeof where, "rank %d, layer 1 (", named);
    bool right = status == (w->o.rerun ? want->rerun : want->plain) &&
                 strstr(text, want->words) != NULL &&
                 (want->named ? strstr(text, where) != NULL : true) &&
                 (w->fault == CALM || strstr(text, step) != NULL);
    if (status == MF_OK) {
        right = right && w->last_step == STEPS && w->skipped == want->skipped && isfinite(w->loss);
    }
    if (!right) {
        fprintf(stderr, "fault %d on %d ranks%s: status %d, step %d, %d left out: %s: %s\n",
                (int)w->fault, ranks, w->o.rerun ? ", --rerun" : "", (int)status, (int)w->last_step,
                (int)w->skipped, w->warned, e->text);
    }
    return right;
}

static bool run_fault(int ranks, int64_t rank, fault f, bool rerun) {
    static fixture w;
    bool alone = false;
    mf_err e = {.text = ""};
    open_fixture(&w, ranks, rank, f);
    w.o.rerun = rerun;
    w.o.max_skips = 2;
    mf_status status = mf_train(&w.o, &alone, &e);
    return rank != 0 || is_as_expected(&w, ranks, status, &e);
}

/* --- nothing is wrong ---------------------------------------------------------------------------
 */

static void look_before(void *user, const mf_exec_op *x) {
    mf_inspect **s = user;
    mf_inspect_before(*s, x);
}

static void look_after(void *user, const mf_exec_op *x) {
    mf_inspect **s = user;
    mf_inspect_after(*s, x);
}

static bool is_calm(const grid_model *m, const mf_layout *l) {
    mf_inspect_origin origin = MF_INSPECT_NOTHING;
    mf_inspect *s = NULL;
    mf_exec_options o;
    mf_exec_result result;
    grid_case g;
    bool calm = true;
    char text[320] = "";
    mf_err e = {.text = ""};
    grid_options(&o);
    o.before_op = look_before;
    o.after_op = look_after;
    o.user = &s;
    mf_status status = grid_open(&g, m, l, &o, NULL, &e);
    const mf_exec_batch batch = {grid_sample, &g};
    /* The second step works in what the first has left. */
    for (int i = 0; i < 2 && status == MF_OK; i++) {
        status = mf_inspect_create(g.exec, &g.model, mf_device_cpu(), &s, &e);
        status = status == MF_OK ? mf_exec_gradients(g.exec, &batch, &result, &e) : status;
        status = status == MF_OK ? mf_inspect_end(s, &origin, text, sizeof text, &e) : status;
        mf_inspect_destroy(s);
        s = NULL;
        if (status != MF_OK || origin != MF_INSPECT_NOTHING) {
            char name[320];
            grid_describe(l, m, name, sizeof name);
            fprintf(stderr, "%s: %s%s\n", name, text, e.text);
            calm = false;
        }
    }
    grid_close(&g);
    return calm && status == MF_OK;
}

static bool all_are_calm(int ranks) {
    const char *wanted = getenv("MF_CASES");
    const int cases = wanted != NULL ? atoi(wanted) : cases_sampled() ? 3 : 12;
    rng r = grid_seed(ranks);
    bool calm = true;
    for (int i = 0; i < cases; i++) {
        mf_layout l;
        const grid_model *m = grid_draw(&r, ranks, &l);
        calm = is_calm(m, &l) && calm;
    }
    return calm;
}

/* --- the frame ----------------------------------------------------------------------------------
 */

static int child(int ranks, const char *what) {
    int64_t rank = 0, size = 1;
    mf_err e;
    if (mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        return 1;
    }
    bool right = true;
    if (what[0] == 'c') {
        right = all_are_calm(ranks);
    } else {
        const fault f = (fault)atoi(what);
        right = cases_sampled() || run_fault(ranks, rank, f, false);
        right = run_fault(ranks, rank, f, true) && right;
    }
    mf_comm_stop();
    return right ? 0 : 1;
}

static void launch(const char *what) {
    static const int counts[] = {1, 2, 4};
    char self[4096], flag[] = "--child", word[8], number[8];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_above(length, 0);
    self[length] = '\0';
    snprintf(word, sizeof word, "%s", what);
    /* Four ranks agree on a fault as two do: sanitizers see two. */
    for (size_t i = cases_sampled(); i < sizeof counts / sizeof counts[0];
         i += (size_t)case_stride(2)) {
        int code = -1;
        mf_err e;
        snprintf(number, sizeof number, "%d", counts[i]);
        char *argv[] = {self, flag, number, word, NULL};
        assert_ok(mf_comm_launch(counts[i], argv, NULL, &code, &e));
        if (code != 0) {
            fail_msg("%d ranks: exit code %d", counts[i], code);
        }
    }
}

static void launch_fault(fault f) {
    char what[8];
    snprintf(what, sizeof what, "%d", (int)f);
    launch(what);
}

static void a_calm_run_is_left_alone(void **state) {
    (void)state;
    launch_fault(CALM);
}

static void a_bit_that_flips_once_is_a_fault_that_passed(void **state) {
    (void)state;
    launch_fault(FLIPS);
}

static void an_op_that_errs_is_named_and_lasts(void **state) {
    (void)state;
    launch_fault(ERRS);
}

static void a_weight_that_is_no_number_is_named_and_lasts(void **state) {
    (void)state;
    launch_fault(WEIGHT);
}

static void a_loss_that_leaps_makes_no_update(void **state) {
    (void)state;
    launch_fault(LEAPS);
}

static void no_layout_has_bad_values_where_nothing_is_wrong(void **state) {
    (void)state;
    launch("c");
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]), argv[3]);
    }
    cmocka_set_test_filter(getenv("MF_TEST"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_calm_run_is_left_alone),
        cmocka_unit_test(a_bit_that_flips_once_is_a_fault_that_passed),
        cmocka_unit_test(an_op_that_errs_is_named_and_lasts),
        cmocka_unit_test(a_weight_that_is_no_number_is_named_and_lasts),
        cmocka_unit_test(a_loss_that_leaps_makes_no_update),
        cmocka_unit_test(no_layout_has_bad_values_where_nothing_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
