/* Tables that several stages hold (tied, or read by depths of multi-token prediction) stand in a
 * checkpoint once; models with them pass from layout to layout, every weight and moment bit by bit.
 * The program starts itself again under mpirun. */
#include "executor/checkpoint/checkpoint.h"
#include "executor/files/files.h"
#include "tests/support/grid_case.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include <sys/wait.h>
#include <unistd.h>

static const char *program;

/* Several MTP depths that read both tables; the same with one table for both; tied without. */
static const grid_model models[] = {
    {"two depths", "deepseek_v3", 0, {"vocab_size=61", "num_nextn_predict_layers=2"}, false, false},
    {"two depths, tied",
     "deepseek_v3",
     0,
     {"vocab_size=61", "num_nextn_predict_layers=2", "tie_word_embeddings=true"},
     false,
     false},
    {"tied", "qwen3_moe", 0, {"vocab_size=61", "tie_word_embeddings=true"}, false, false},
};
enum { MODELS = sizeof models / sizeof models[0] };

static const struct {
    int ranks, tp, pp, vpp, ep, zero, expert_zero;
    mf_schedule_kind schedule;
} layouts[] = {
    {1, 1, 1, 1, 1, 1, 1, MF_SCHED_1F1B}, {2, 1, 2, 1, 1, 1, 1, MF_SCHED_1F1B},
    {4, 1, 4, 1, 1, 0, 0, MF_SCHED_1F1B}, {4, 2, 2, 1, 2, 3, 1, MF_SCHED_ZB_H1},
    {2, 1, 2, 2, 1, 2, 2, MF_SCHED_ZB_V}, {4, 2, 2, 2, 2, 1, 0, MF_SCHED_INTERLEAVED},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* State of three steps ("-"), or what the newest checkpoint of `from` holds, into one of `to`. */
static int pass_on(int model, int which, const char *from, const char *to) {
    const mf_train_progress progress = {.step = 3, .samples = 24, .seq = GRID_SEQ};
    grid_case g;
    mf_layout l;
    mf_exec_options o;
    mf_checkpoint *c = NULL;
    char path[256];
    int64_t rank, size;
    mf_err e = {.text = ""};
    grid_layout_init(&l);
    grid_options(&o);
    l.gpus = layouts[which].ranks;
    l.tp = layouts[which].tp;
    l.pp = layouts[which].pp;
    l.vpp = layouts[which].vpp;
    l.ep = layouts[which].ep;
    l.zero = (uint8_t)layouts[which].zero;
    l.expert_zero = (uint8_t)layouts[which].expert_zero;
    l.schedule = layouts[which].schedule;
    l.mbs = 1;
    mf_status s = mf_comm_start(&rank, &size, &e);
    s = s == MF_OK ? grid_open(&g, &models[model], &l, &o, NULL, &e) : s;
    const mf_exec_batch batch = {grid_sample, &g};
    for (g.step = 0; s == MF_OK && strcmp(from, "-") == 0 && g.step < 3; g.step++) {
        mf_exec_result r;
        s = mf_exec_step(g.exec, &batch, 1e-3, &r, &e);
    }
    if (s == MF_OK && strcmp(from, "-") != 0) {
        s = mf_checkpoint_newest(from, path, sizeof path, &e);
        s = s == MF_OK ? mf_checkpoint_open(path, &g.model, &c, &e) : s;
        s = s == MF_OK ? mf_checkpoint_load(c, g.exec, &e) : s;
        s = s == MF_OK ? mf_exec_share_weights(g.exec, &e) : s;
        mf_checkpoint_close(c);
    }
    s = s == MF_OK ? mf_checkpoint_save(g.exec, to, &progress, 3, &e) : s;
    if (s != MF_OK) {
        printf("rank %lld of layout %d: %s\n", (long long)rank, which, e.text);
        fflush(stdout);
        mf_comm_abort(1);
    }
    grid_close(&g);
    mf_comm_stop();
    return 0;
}

typedef struct pair {
    mf_checkpoint *a, *b;
    int64_t tensors;
} pair;

static int same_tensor(const mf_model_tensor *t, void *user) {
    pair *p = user;
    size_t n = (size_t)(t->rows * t->cols);
    float *x = calloc(n + 1, sizeof *x), *y = calloc(n + 1, sizeof *y);
    mf_err e;
    for (int kind = 0; kind < (t->buffer ? 1 : MF_EXEC_STATES); kind++, p->tensors++) {
        if (mf_checkpoint_tensor(p->a, kind, t, x, &e) != MF_OK ||
            mf_checkpoint_tensor(p->b, kind, t, y, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        assert_memory_equal(x, y, n * sizeof *x);
    }
    free(x);
    free(y);
    return 0;
}

static mf_checkpoint *open_newest(const char *folder, const mf_model *m) {
    char path[256];
    mf_checkpoint *c = NULL;
    mf_err e;
    if (mf_checkpoint_newest(folder, path, sizeof path, &e) != MF_OK ||
        mf_checkpoint_open(path, m, &c, &e) != MF_OK) { /* pieces too many are an error there */
        fail_msg("%s", e.text);
    }
    return c;
}

static void copied_tables_stand_once_and_pass_through_all_layouts(void **state) {
    (void)state;
    if (!mf_comm_has_mpi() || system("command -v mpirun >/dev/null 2>&1") != 0) {
        printf("MF_SKIPPED 1 no MPI: checkpoints of several ranks are not tested\n");
        return;
    }
    for (int k = 0; k < case_count(MODELS, 1); k++) {
        char folder[] = "/tmp/mf-copies-XXXXXX", from[64], to[64], command[1024];
        mf_model m;
        pair p = {0};
        assert_non_null(mkdtemp(folder));
        assert_ok(grid_model_load(&models[k], &m, NULL));
        for (int i = 0; i < LAYOUTS; i++) {
            snprintf(from, sizeof from, "%s/%d", folder, i - 1);
            snprintf(to, sizeof to, "%s/%d", folder, i);
            snprintf(command, sizeof command,
                     "mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "
                     "--mca btl_vader_single_copy_mechanism none -x ASAN_OPTIONS=detect_leaks=0 "
                     "-n %d %s --child %d %d %s %s",
                     layouts[i].ranks, program, k, i, i == 0 ? "-" : from, to);
            int result = system(command);
            if (!WIFEXITED(result) || WEXITSTATUS(result) != 0) {
                fail_msg("%s: %s failed", models[k].name, command);
            }
            mf_checkpoint_close(p.a);
            p.a = p.b;
            p.b = open_newest(to, &m);
            if (i > 0) {
                mf_model_tensors(&m, same_tensor, &p);
            }
        }
        assert_above(p.tensors, 100 * (LAYOUTS - 1));
        mf_checkpoint_close(p.a);
        mf_checkpoint_close(p.b);
        snprintf(command, sizeof command, "rm -r %s", folder);
        assert_int_equal(system(command), 0);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copied_tables_stand_once_and_pass_through_all_layouts),
    };
    program = argv[0];
    if (argc > 5 && strcmp(argv[1], "--child") == 0) {
        return pass_on(atoi(argv[2]), atoi(argv[3]), argv[4], argv[5]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
