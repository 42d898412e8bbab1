/* Training on a device that works behind the host (tests/support/shadow_device.h): a step begins
 * before the one in front of it was read, and everything that a run writes and tells is that of the
 * CPU, to the bit; steps that have to be left out or run again, too. */
#include "tests/support/sampled.h"
#include "tests/support/shadow_device.h"
#include "tests/support/test.h"

#include "core/memory/memory.h"
#include "executor/comm/comm_launch.h"
#include "executor/train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 9, LINE_B = 4096, LINES = 64 };

/* --- a run ---------------------------------------------------------------------------------------
 */

typedef struct seen {
    mf_device *device;     /* NULL: not looked at */
    int64_t steps, ahead;  /* steps, and those of them behind which work was entered already */
    int64_t stop_at, last; /* 0: never */
    int64_t bad[2];        /* steps, from the first to the last, whose loss is spoilt; 0: none */
    bool behind;           /* the host */
    int64_t passes;        /* forward, begun */
    int64_t warnings;
    FILE *losses;     /* NULL: not written down */
    char warned[512]; /* the first of them */
} seen;

static int stepped(void *user, const mf_train_metrics *m) {
    seen *s = user;
    s->steps++;
    s->ahead += s->device != NULL && shadow_left(s->device) > 0;
    s->last = m->step;
    if (s->losses != NULL) {
        fprintf(s->losses, "%a %a\n", m->lm_loss, m->grad_norm);
    }
    return m->step == s->stop_at;
}

static void warned(void *user, const char *line) {
    seen *s = user;
    if (s->warnings++ == 0) {
        snprintf(s->warned, sizeof s->warned, "%s", line);
    }
}

enum { MICRO_BATCHES = 2 };

/* What the embedding gives is no number, in some steps. */
static void spoil(void *user, const mf_exec_op *x) {
    seen *s = user;
    if (x->block == NULL || x->op->kind != MF_OP_EMBEDDING_FWD) {
        return;
    }
    int64_t step = s->passes++ / MICRO_BATCHES + 1;
    /* A bad step is run once more, but not where the next one had begun. */
    const int64_t again = s->bad[0] == 0 ? 0 : s->behind ? s->bad[1] : s->bad[0];
    for (int64_t k = again; k > 0 && k <= s->bad[1]; k++) {
        step -= step > k;
    }
    mf_err e;
    if (step >= s->bad[0] && step <= s->bad[1]) {
        assert_ok(x->queue->device->ops->fill(x->queue, x->out[0].data, 0xff, 4, &e));
    }
}

typedef struct fixture {
    mf_model model;
    mf_cluster cluster;
    mf_layout layout;
    mf_train_options o;
    seen seen;
    char out[64];
} fixture;

static void open_fixture(fixture *w, const char *family, mf_device *device, bool graph) {
    char path[128];
    mf_err e;
    memset(w, 0, sizeof *w);
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", family);
    assert_ok(mf_model_load(path, &w->model, &e));
    mf_cluster cpu; /* by whose figures ops are divided into pieces, on the GPU's shadow, too */
    assert_ok(mf_cluster_load("cpu", &cpu, &e));
    assert_ok(mf_cluster_load(device->ops->on_host ? "cpu" : "h200", &w->cluster, &e));
    w->cluster.scaleup_Bps = cpu.scaleup_Bps;
    w->cluster.nic_Bps = cpu.nic_Bps;
    w->cluster.gpu.sms = cpu.gpu.sms;
    memcpy(w->cluster.gpu.peak_flops, cpu.gpu.peak_flops, sizeof cpu.gpu.peak_flops);
    mf_layout_init(&w->layout);
    w->layout.gpus = 1;
    w->layout.mbs = 2;
    w->layout.gbs = 4;
    w->layout.seq = 32;
    w->layout.precision = MF_PREC_BF16;
    w->layout.overlap = 0;
    w->layout.dispatcher = MF_DISPATCH_ALLGATHER;
    assert_ok(mf_layout_resolve(&w->layout, &w->model, &e));
    mf_train_options_init(&w->o);
    w->o.model = &w->model;
    w->o.cluster = &w->cluster;
    w->o.layout = &w->layout;
    w->o.device = device;
    w->o.data = "/usr/share/common-licenses/GPL-3";
    w->o.steps = STEPS;
    w->o.lr = 1e-2;
    w->o.exec.graph = graph;
    w->o.stepped = stepped;
    w->o.warned = warned;
    w->o.user = &w->seen;
    snprintf(w->out, sizeof w->out, "/tmp/mf-ahead-XXXXXX");
    assert_non_null(mkdtemp(w->out));
    w->o.out = w->out;
    w->seen.device = device;
}

static void close_fixture(const fixture *w) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", w->out);
    assert_int_equal(system(command), 0);
}

static mf_status train(fixture *w, mf_err *e) {
    bool alone = false;
    e->text[0] = '\0';
    return mf_train(&w->o, &alone, e);
}

/* A member of a line of metrics.jsonl with its value, as it is written. */
static void member(const char *line, const char *key, char *out, size_t size) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *at = strstr(line, quoted);
    if (at == NULL) {
        fail_msg("no %s in %s", key, line);
        return;
    }
    snprintf(out, size, "%.*s", (int)strcspn(at, ",}"), at);
}

/* Lines of metrics.jsonl without what follows the clock. */
static int read_lines(const fixture *w, char lines[LINES][512]) {
    static const char *const keys[] = {
        "step",      "samples", "lm_loss", "aux_loss",
        "grad_norm", "skipped", "lr",      "expert_load_max_over_mean"};
    char path[128], line[LINE_B];
    int n = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", w->out);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (n < LINES && fgets(line, sizeof line, f) != NULL) {
        lines[n][0] = '\0';
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            char one[64];
            member(line, keys[k], one, sizeof one);
            strncat(lines[n], one, sizeof lines[n] - strlen(lines[n]) - 1);
            strncat(lines[n], " ", sizeof lines[n] - strlen(lines[n]) - 1);
        }
        n++;
    }
    fclose(f);
    return n;
}

static void same_lines(const fixture *a, const fixture *b) {
    static char x[LINES][512], y[LINES][512];
    int n = read_lines(a, x);
    assert_int_equal(read_lines(b, y), n);
    for (int i = 0; i < n; i++) {
        assert_string_equal(x[i], y[i]);
    }
}

static void same_file(const fixture *a, const fixture *b, const char *name) {
    char command[256];
    snprintf(command, sizeof command, "cmp %s/%s %s/%s", a->out, name, b->out, name);
    assert_int_equal(system(command), 0);
}

/* --- steps ahead ---------------------------------------------------------------------------------
 */

static void runs_are_those_of_the_cpu(void **state) {
    static const struct {
        const char *family;
        bool graph, eager;
        int64_t save_every;
    } kinds[] = {{"mixtral", true, false, 0},
                 {"mixtral", true, true, 2},
                 {"deepseek_v3", false, false, 3},
                 {"llama", true, false, 1}};
    (void)state;
    for (size_t i = cases_sampled(); i < sizeof kinds / sizeof kinds[0];
         i += (size_t)case_stride(4)) {
        const shadow_options so = {.seed = i, .eager = kinds[i].eager};
        shadow_twin twin;
        mf_device *shadow;
        fixture cpu, gpu;
        mf_err e;
        assert_ok(shadow_open(&so, &shadow, &e));
        open_fixture(&cpu, kinds[i].family, shadow_twin_open(&so, &twin), false);
        open_fixture(&gpu, kinds[i].family, shadow, kinds[i].graph);
        cpu.seen.device = NULL;
        cpu.o.save_every = gpu.o.save_every = kinds[i].save_every;
        cpu.o.keep = gpu.o.keep = 0;
        if (train(&cpu, &e) != MF_OK || train(&gpu, &e) != MF_OK) {
            fail_msg("%s: %s", kinds[i].family, e.text);
        }
        same_lines(&cpu, &gpu);
        same_file(&cpu, &gpu, "hf/model.safetensors");
        if (kinds[i].save_every > 0) {
            same_file(&cpu, &gpu, "checkpoints/step-00000006/rank-00000.safetensors");
        }
        assert_int_equal(gpu.seen.steps, STEPS);
        /* Not behind the four that are timed op by op, nor behind the last one, nor across saves.
         */
        int64_t most = STEPS - 5;
        int64_t saves = kinds[i].save_every == 2 ? 2 : kinds[i].save_every == 3 ? 1 : 0;
        int64_t ahead = kinds[i].save_every == 1 ? 0 : most - saves;
        assert_int_equal(gpu.seen.ahead, kinds[i].eager ? 0 : ahead);
        close_fixture(&cpu);
        close_fixture(&gpu);
        shadow->ops->close(shadow);
    }
}

/* The step that has begun when the request comes is finished, reported and saved. */
static void an_end_that_is_asked_for_comes_behind_the_step_on_its_way(void **state) {
    const shadow_options so = {.seed = 0};
    mf_device *shadow;
    fixture w;
    mf_err e;
    (void)state;
    assert_ok(shadow_open(&so, &shadow, &e));
    open_fixture(&w, "llama", shadow, true);
    w.seen.stop_at = 6;
    assert_int_equal(train(&w, &e), MF_INTERRUPTED);
    assert_int_equal(w.seen.last, 7);
    assert_string_equal(e.text, "ended after step 7, which is saved");
    w.seen.stop_at = 0;
    w.o.resume = true;
    assert_int_equal(train(&w, &e), MF_OK);
    assert_int_equal(w.seen.last, STEPS);
    close_fixture(&w);
    shadow->ops->close(shadow);
}

/* --- steps that are left out ---------------------------------------------------------------------
 */

#define FIRST                                                                                      \
    "rank 0, embedding, forward, op embedding: its output embedding is nan at row 0, column 0"

/* Spoils steps 6 and 7, of which `in_row` may follow each other; ends behind `end`, 0: at the end.
 */
static mf_status train_spoilt(fixture *w, mf_device *device, int64_t in_row, int64_t end,
                              mf_err *e) {
    open_fixture(w, "mixtral", device, false);
    w->seen.bad[0] = 6;
    w->seen.bad[1] = 7;
    w->seen.behind = !device->ops->on_host;
    w->seen.stop_at = end;
    w->o.exec.after_op = spoil;
    w->o.exec.user = &w->seen;
    w->o.max_skips = in_row;
    return train(w, e);
}

static void what_is_not_finite_is_left_out_named_and_counted(void **state) {
    (void)state;
    for (int behind = cases_sampled(); behind < 2; behind++) { /* the host */
        const shadow_options so = {.seed = 0};
        static char lines[LINES][512];
        shadow_twin twin;
        mf_device *device = shadow_twin_open(&so, &twin);
        fixture whole, cut, ended;
        mf_err e;
        if (behind) {
            assert_ok(shadow_open(&so, &device, &e));
        }
        assert_int_equal(train_spoilt(&whole, device, 2, 0, &e), MF_OK);
        assert_int_equal(whole.seen.warnings, 2);
        assert_string_equal(
            whole.seen.warned,
            behind ? "step 6: the loss is not a number: its update is left out (1 in a row)"
                   : "step 6: the loss is not a number (first bad value: " FIRST
                     "): its update is left out (1 in a row)");
        assert_int_equal(read_lines(&whole, lines), STEPS);
        assert_non_null(strstr(lines[5], "\"lm_loss\": null"));
        assert_non_null(strstr(lines[4], "\"skipped\": 0"));
        assert_non_null(strstr(lines[8], "\"skipped\": 2"));
        assert_null(strstr(lines[7], "null"));
        /* What a checkpoint says of updates is not what it says of steps. */
        assert_int_equal(train_spoilt(&cut, device, 2, behind ? 6 : 7, &e), MF_INTERRUPTED);
        assert_int_equal(cut.seen.last, 7);
        cut.seen.stop_at = cut.seen.bad[0] = cut.seen.bad[1] = 0;
        cut.o.resume = true;
        assert_int_equal(train(&cut, &e), MF_OK);
        same_lines(&whole, &cut);
        same_file(&whole, &cut, "hf/model.safetensors");
        assert_int_equal(train_spoilt(&ended, device, 1, 0, &e), MF_DIVERGED);
        assert_string_equal(e.text, "step 7: the loss is not a number (first bad value: " FIRST
                                    "), the update of 2 steps in a row left out: training has "
                                    "diverged");
        close_fixture(&whole);
        close_fixture(&cut);
        close_fixture(&ended);
        if (behind) {
            device->ops->close(device);
        }
    }
}

/* --- steps that are run again --------------------------------------------------------------------
 */

/* A run of two ranks: with space for twice the balanced number of rows; or for that number alone,
 * in memory that has enough for more, for more if all layers are recomputed, or for no more at all.
 */
typedef enum kind { AMPLE, TIGHT, RECOMPUTED, NOWHERE } kind;

/* The most that a rank needs. */
static double peak_of(const fixture *w) {
    mf_assignment a;
    mf_program *p = NULL;
    mf_schedule *s = NULL;
    mf_memory *plan = NULL;
    mf_err e;
    assert_ok(mf_assignment_even(&w->model, &w->layout, &a, &e));
    assert_ok(mf_program_lower(&w->model, &w->layout, &w->cluster, &a, &p, &e));
    assert_ok(mf_schedule_create(&w->layout, &s, &e));
    assert_ok(mf_memory_plan(p, s, &plan, &e));
    double peak_B = plan->peak_B;
    mf_memory_destroy(plan);
    mf_schedule_destroy(s);
    mf_program_destroy(p);
    return peak_B;
}

static void lay_out(fixture *w, const char *dispatcher, kind k) {
    mf_err e;
    w->layout.gpus = w->layout.ep = 2;
    w->layout.mbs = 1;
    w->layout.dispatcher = dispatcher[0] == 'f'   ? MF_DISPATCH_FUSED
                           : dispatcher[3] == 't' ? MF_DISPATCH_ALLTOALL
                                                  : MF_DISPATCH_ALLGATHER;
    w->layout.token_headroom = k == AMPLE ? 2.0 : 1.0;
    if (k == RECOMPUTED || k == NOWHERE) {
        w->layout.memory.recompute = k == NOWHERE ? MF_RECOMPUTE_LAYER : 0;
        w->layout.reserve = 0.0;
        assert_ok(mf_layout_resolve(&w->layout, &w->model, &e));
        w->cluster.gpu.memory_B = peak_of(w);
    }
}

static bool as_expected(kind k, int64_t rank, mf_status status, const fixture *w, const mf_err *e) {
    bool again = strstr(w->seen.warned, "routing asked for ") != NULL;
    bool recomputed = strstr(w->seen.warned, "all layers recomputed") != NULL;
    bool ok = k == NOWHERE
                  ? status == MF_INFEASIBLE &&
                        (rank != 0 || strstr(e->text, "with that headroom fits") != NULL)
                  : status == MF_OK &&
                        (rank != 0 || (again == (k != AMPLE) && recomputed == (k == RECOMPUTED)));
    if (!ok) {
        fprintf(stderr, "rank %d: %s: %s\n", (int)rank, w->seen.warned, e->text);
    }
    return ok;
}

static int child(const char *out, const char *dispatcher, kind k) {
    const shadow_options so = {.unprepared = true};
    mf_device *shadow = NULL;
    int64_t rank, size;
    fixture w;
    mf_err e;
    if (mf_comm_start(&rank, &size, &e) != MF_OK || shadow_open(&so, &shadow, &e) != MF_OK) {
        return 1;
    }
    open_fixture(&w, "mixtral", shadow, true);
    close_fixture(&w); /* its folder: ranks share another */
    lay_out(&w, dispatcher, k);
    /* Without a folder no step is timed op by op: one is on its way from the first on. */
    char losses[80];
    snprintf(losses, sizeof losses, "%s/losses", out);
    w.seen.losses = rank == 0 ? fopen(losses, "w") : NULL;
    w.o.out = dispatcher[3] == 'g' && k != NOWHERE ? out : NULL;
    mf_status status = train(&w, &e);
    if (w.seen.losses != NULL) {
        fclose(w.seen.losses);
    }
    bool ok = as_expected(k, rank, status, &w, &e);
    mf_comm_stop();
    shadow->ops->close(shadow);
    return ok ? 0 : 1;
}

static void launch(fixture *w, const char *dispatcher, kind k) {
    char self[4096], flag[] = "--child", number[8], by[16];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_above(length, 0);
    self[length] = '\0';
    snprintf(w->out, sizeof w->out, "/tmp/mf-ahead-XXXXXX");
    assert_non_null(mkdtemp(w->out));
    snprintf(by, sizeof by, "%s", dispatcher);
    snprintf(number, sizeof number, "%d", (int)k);
    char *argv[] = {self, flag, w->out, by, number, NULL};
    int code = -1;
    mf_err e;
    assert_ok(mf_comm_launch(2, argv, NULL, &code, &e));
    assert_int_equal(code, 0);
}

static void rows_without_a_place_let_the_step_run_again_with_headroom(void **state) {
    static const struct {
        const char *by;
        kind k;
    } runs[] = {{"allgather", TIGHT}, {"alltoall", TIGHT}, {"fused", TIGHT}, {"fused", RECOMPUTED}};
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i += (size_t)case_stride(4)) {
        fixture tight = {0}, ample = {0};
        launch(&tight, runs[i].by, runs[i].k);
        launch(&ample, runs[i].by, AMPLE);
        same_file(&tight, &ample, "losses");
        if (i == 0) {
            same_lines(&tight, &ample);
            same_file(&tight, &ample, "hf/model.safetensors");
        }
        close_fixture(&tight);
        close_fixture(&ample);
    }
}

static void a_run_ends_where_no_memory_holds_more_rows(void **state) {
    fixture w = {0};
    (void)state;
    launch(&w, "fused", NOWHERE);
    close_fixture(&w);
}

/* --- a device that is full -----------------------------------------------------------------------
 */

static mf_device_ops full;

static mf_status no_memory(mf_device *d, int64_t size_B, void **out, mf_err *e) {
    (void)d;
    *out = NULL;
    return mf_err_set(e, MF_NOMEM, "%lld bytes are needed", (long long)size_B);
}

static void what_does_not_fit_is_said_beside_the_plan(void **state) {
    const shadow_options so = {.seed = 0};
    mf_device *shadow;
    fixture w;
    mf_err e;
    (void)state;
    assert_ok(shadow_open(&so, &shadow, &e));
    const mf_device_ops *as_it_was = shadow->ops;
    full = *as_it_was;
    full.allocate = no_memory;
    shadow->ops = &full;
    open_fixture(&w, "llama", shadow, true);
    assert_int_equal(train(&w, &e), MF_NOMEM);
    assert_int_equal(mf_status_exit_code(MF_NOMEM), 1);
    const char *start = "out of memory: the plan predicts ";
    if (strncmp(e.text, start, strlen(start)) != 0 || strstr(e.text, " bytes are needed") == NULL) {
        fail_msg("%s", e.text);
    }
    close_fixture(&w);
    shadow->ops = as_it_was;
    shadow->ops->close(shadow);
}

/* --- a device that hangs -------------------------------------------------------------------------
 */

static mf_device_ops hanging;
static mf_status (*reach)(mf_device *d, int slot, mf_err *e);
static int reached;

static mf_status reach_twice(mf_device *d, int slot, mf_err *e) {
    while (++reached > 2) {
        sleep(1);
    }
    return reach(d, slot, e);
}

static void say(void *user, const char *line) {
    (void)user;
    puts(line);
    fflush(stdout);
}

static int hang(const char *log) {
    const shadow_options so = {.seed = 0};
    mf_device *shadow;
    fixture w;
    mf_err e;
    if (freopen(log, "w", stdout) == NULL || shadow_open(&so, &shadow, &e) != MF_OK) {
        return 90;
    }
    hanging = *shadow->ops;
    reach = hanging.reach;
    hanging.reach = reach_twice;
    shadow->ops = &hanging;
    open_fixture(&w, "llama", shadow, true);
    close_fixture(&w);
    w.o.out = NULL;
    w.o.hang_s = 0.3;
    w.o.lost = say;
    return train(&w, &e) == MF_OK ? 91 : 92;
}

static void a_device_that_hangs_is_named_and_ends_the_process(void **state) {
    char log[] = "/tmp/mf-hang-XXXXXX", line[512] = "", want[256], host[64] = "";
    int result = 0, file = mkstemp(log);
    (void)state;
    assert_at_least(file, 0);
    close(file);
    pid_t child = fork();
    if (child == 0) {
        _exit(hang(log));
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 1);
    FILE *f = fopen(log, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    unlink(log);
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    snprintf(want, sizeof want,
             "rank 0 (process %d on %s) hangs: step 3, nothing has moved on its GPU for "
             "0.3 s; it is behind an update\n",
             (int)child, host);
    assert_string_equal(line, want);
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--child") == 0) {
        return child(argv[2], argv[3], (kind)atoi(argv[4]));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_are_those_of_the_cpu),
        cmocka_unit_test(an_end_that_is_asked_for_comes_behind_the_step_on_its_way),
        cmocka_unit_test(what_is_not_finite_is_left_out_named_and_counted),
        cmocka_unit_test(rows_without_a_place_let_the_step_run_again_with_headroom),
        cmocka_unit_test(a_run_ends_where_no_memory_holds_more_rows),
        cmocka_unit_test(what_does_not_fit_is_said_beside_the_plan),
        cmocka_unit_test(a_device_that_hangs_is_named_and_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
