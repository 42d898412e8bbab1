/* `moefold train` as its users run it: resumed runs take the very steps of one that was not cut,
 * signals save, killed ranks take the others with them and are named, saves that are cut short
 * leave a whole checkpoint, TensorBoard's file holds what metrics.jsonl holds.
 *
 * MF_KILLS: how many saves are killed (default 6; `make test-kills` takes 50). MF_TEST: the one
 * test to run (a pattern). */
#include "core/json.h"
#include "executor/checkpoint.h"
#include "executor/comm.h"
#include "tests/hf_case.h"
#include "tests/rng.h"
#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STEPS = 4096 };

static char binary[512], scratch[64];
static const char *self;
static bool several_ranks;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(double s) {
    const struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

/* --- runs --------------------------------------------------------------------------------------
 */

#define JOB                                                                                        \
    "--init tests/data/hf/qwen3_moe --data /usr/share/common-licenses/GPL-3 --global-batch 4 "     \
    "--seq 32 --lr 1e-3 --warmup 3 --save-every 1"
static const char folded[] = "--gpus 4 --tp 2 --cp 2 --ep 4 --dispatcher alltoall";
static const char single[] = "--gpus 1";

/* Starts the program; what it says goes to OUT.log. */
static pid_t begin(const char *out, int steps, const char *more) {
    char command[2048];
    snprintf(command, sizeof command,
             "exec env ASAN_OPTIONS=detect_leaks=0 %s train " JOB
             " --steps %d --out %s/%s %s >%s/%s.log 2>&1",
             binary, steps, scratch, out, more, scratch, out);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return child;
}

static int end(pid_t child) {
    int result = 0;
    waitpid(child, &result, 0);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
}

static void show_log(const char *out) {
    char command[160];
    snprintf(command, sizeof command, "tail -n 20 %s/%s.log", scratch, out);
    if (system(command) != 0) {
        printf("no log\n");
    }
}

static bool log_has(const char *out, const char *text) {
    char path[160], line[4096];
    bool found = false;
    snprintf(path, sizeof path, "%s/%s.log", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        found = found || strstr(line, text) != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

/* Behind `text`: the step, a comma, and what was being done in it. */
static bool log_names_an_op(const char *out, const char *text) {
    char path[160], line[4096];
    bool named = false;
    snprintf(path, sizeof path, "%s/%s.log", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, text);
        long long step = at != NULL ? strtoll(at + strlen(text), NULL, 10) : 0;
        at = at != NULL ? strstr(at, ", ") : NULL;
        named = named || (step > 0 && at != NULL && strlen(at) > 5);
    }
    if (f != NULL) {
        fclose(f);
    }
    return named;
}

static void run(const char *out, int steps, const char *more, int expected) {
    int code = end(begin(out, steps, more));
    if (code != expected) {
        show_log(out);
        fail_msg("%s: exit code %d, expected %d", out, code, expected);
    }
}

/* Everything but times, as it was written: the same text is the same bits. */
static int read_losses(const char *out, double (*values)[3]) {
    static const char *const keys[3] = {"lm_loss", "aux_loss", "grad_norm"};
    char path[160], line[4096];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", scratch, out);
    FILE *f = fopen(path, "r");
    while (f != NULL && n < MAX_STEPS && fgets(line, sizeof line, f) != NULL) {
        mf_json *doc = NULL;
        int64_t step = 0;
        mf_err e;
        if (mf_json_parse("metrics", line, strlen(line), &doc, &e) != MF_OK) {
            fail_msg("%s: %s", path, e.text);
        }
        assert_ok(mf_json_get_i64(mf_json_root(doc), "step", 1, 1 << 20, &step, NULL));
        assert_int_equal(step, n + 1);
        for (int k = 0; k < 3; k++) {
            assert_ok(mf_json_get_f64(mf_json_root(doc), keys[k], 0, 1e9, &values[n][k], NULL));
        }
        mf_json_destroy(doc);
        n++;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static void same_steps(const char *a, const char *b, int steps) {
    static double x[MAX_STEPS][3], y[MAX_STEPS][3];
    assert_int_equal(read_losses(a, x), steps);
    assert_int_equal(read_losses(b, y), steps);
    for (int i = 0; i < steps; i++) {
        if (memcmp(x[i], y[i], sizeof x[i]) != 0) {
            fail_msg("step %d of %s: loss %.17g, %s: %.17g", i + 1, a, x[i][0], b, y[i][0]);
        }
    }
}

/* --- processes ---------------------------------------------------------------------------------
 */

/* The ranks of the run that writes to `out`: they have our program's name and this folder among
 * their arguments, and are not its launcher. */
static int find_ranks(const char *out, pid_t launcher, pid_t *pid, int most) {
    char path[300], text[4096], mark[128];
    int n = 0;
    DIR *d = opendir("/proc");
    struct dirent *entry;
    snprintf(mark, sizeof mark, "%s/%s", scratch, out);
    while (n < most && d != NULL && (entry = readdir(d)) != NULL) {
        pid_t p = (pid_t)atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int fd = p > 0 && p != launcher ? open(path, O_RDONLY) : -1;
        ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
        if (fd >= 0) {
            close(fd);
        }
        if (length <= 0 || strstr(text, "moefold") == NULL) {
            continue; /* argv[0] is the first text */
        }
        for (ssize_t i = 0; i < length; i++) {
            text[i] = text[i] == '\0' ? ' ' : text[i];
        }
        text[length] = '\0';
        if (strstr(text, mark) != NULL) {
            pid[n++] = p;
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

/* --- tests -------------------------------------------------------------------------------------
 */

static void a_resumed_run_takes_the_steps_of_one_that_was_not_cut(void **state) {
    (void)state;
    const char *layout = several_ranks ? folded : single;
    char more[256];
    run("whole", 8, layout, 0);
    run("cut", 8, layout, 0);
    same_steps("whole", "cut", 8); /* the same run twice is the same run */
    /* Taken back to step 5: the others go, as after a crash. */
    char command[300];
    snprintf(command, sizeof command, "cd %s/cut/checkpoints && rm -r step-00000008 step-00000007",
             scratch);
    assert_int_equal(system(command), 0);
    snprintf(more, sizeof more, "%s --resume", layout);
    run("cut", 8, more, 0);
    assert_true(log_has("cut", "step-00000006"));
    same_steps("whole", "cut", 8);
    run("cut", 8, layout, 2); /* no run is written over without a word */
    assert_true(log_has("cut", "--resume"));
    snprintf(more, sizeof more, "%s --resume --seed 3", layout);
    run("cut", 9, more, 2); /* another stream */
    assert_true(log_has("cut", "another stream"));
}

/* Half-width weights and moments, and weights that no rank has whole, come back bit by bit. */
static void bf16_and_sharded_runs_resume_as_if_they_were_not_cut(void **state) {
    (void)state;
    const char *layout = several_ranks ? "--gpus 2 --ep 2 --zero 3 --expert-zero 2 --dtype bf16 "
                                         "--moments bf16 --resume"
                                       : "--gpus 1 --dtype bf16 --moments bf16 --resume";
    char command[300], more[256];
    run("half", 5, layout, 0);
    snprintf(more, sizeof more, "%s --offload-optimizer 40%%", layout);
    run("half-host", 5, more, 0); /* wherever its states are kept */
    same_steps("half", "half-host", 5);
    run("half-cut", 5, layout, 0);
    snprintf(command, sizeof command,
             "cd %s/half-cut/checkpoints && rm -r step-00000005 step-00000004", scratch);
    assert_int_equal(system(command), 0);
    run("half-cut", 5, layout, 0);
    assert_true(log_has("half-cut", "step-00000003"));
    same_steps("half", "half-cut", 5);
    snprintf(command, sizeof command,
             "cd %s && cmp half/hf/model.safetensors half-cut/hf/model.safetensors", scratch);
    assert_int_equal(system(command), 0);
}

/* --- other layouts -----------------------------------------------------------------------------
 */

typedef struct other_layout {
    const char *options;
    int ranks, tp, cp, pp, ep, etp, zero, expert_zero;
} other_layout;

static const other_layout others[] = {
    {"--gpus 2 --pp 2 --micro-batch 2", 2, 1, 1, 2, 1, 1, 1, 1},
    {"--gpus 4 --ep 2 --etp 2 --zero 3 --expert-zero 2", 4, 1, 1, 1, 2, 2, 3, 2},
    {"--gpus 1", 1, 1, 1, 1, 1, 1, 1, 1},
};
enum { OTHERS = sizeof others / sizeof others[0] };

/* A rank of layout `which`: what it holds after loading the newest checkpoint of `from`, saved as a
 * checkpoint of `to`. */
static int pass_on(const char *from, const char *to, int which) {
    const other_layout *o = &others[which];
    char path[256] = "";
    hf_case h;
    mf_layout l;
    mf_exec_options options;
    mf_checkpoint *c = NULL;
    int64_t rank, size;
    mf_err e = {.text = ""};
    hf_layout_init(&l);
    mf_exec_options_init(&options);
    l.gpus = o->ranks;
    l.tp = o->tp;
    l.cp = o->cp;
    l.pp = o->pp;
    l.ep = o->ep;
    l.etp = o->etp;
    l.zero = (uint8_t)o->zero;
    l.expert_zero = (uint8_t)o->expert_zero;
    l.mbs = 1;
    mf_status s = mf_comm_start(&rank, &size, &e);
    s = s == MF_OK ? hf_open(&h, "qwen3_moe", &l, &options, &e) : s;
    s = s == MF_OK ? mf_checkpoint_newest(from, path, sizeof path, &e) : s;
    s = s == MF_OK ? mf_checkpoint_open(path, &h.model, &c, &e) : s;
    s = s == MF_OK ? mf_checkpoint_load(c, h.exec, &e) : s;
    s = s == MF_OK ? mf_exec_share_weights(h.exec, &e) : s;
    s = s == MF_OK ? mf_checkpoint_save(h.exec, to, mf_checkpoint_stands(c), 3, &e) : s;
    if (s != MF_OK) {
        printf("rank %lld: %s\n", (long long)rank, e.text);
        return 1;
    }
    mf_checkpoint_close(c);
    hf_close(&h);
    mf_comm_stop();
    return 0;
}

/* A run cut under one layout goes on under others. Its state passes through each of them and back,
 * after which the run takes the steps of one that was not cut, bit by bit; under the other layouts
 * it takes them as far as sums in another order go. */
static void a_run_goes_on_under_another_layout(void **state) {
    (void)state;
    static double x[MAX_STEPS][3], y[MAX_STEPS][3];
    char more[256], command[1024], out[32];
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: other layouts are not tested\n");
        return;
    }
    snprintf(more, sizeof more, "%s --z-coef 0.01 --aux-loss sequence", folded);
    run("moved-whole", 7, more, 0);
    assert_true(log_has("moved-whole", "  z "));
    assert_int_equal(read_losses("moved-whole", x), 7);
    snprintf(command, sizeof command,
             "cd %s && cp -r moved-whole moved && cd moved/checkpoints && rm -r step-00000007 "
             "step-00000006 && mv step-00000005 ../../from-0",
             scratch);
    assert_int_equal(system(command), 0);
    for (int i = 0; i < OTHERS; i++) {
        snprintf(command, sizeof command,
                 "cd %s && mkdir -p to-%d moved-%d/checkpoints && cp -r from-%d "
                 "moved-%d/checkpoints/step-00000005 && cp moved-whole/metrics.jsonl moved-%d && "
                 "mkdir at-%d && mv from-%d at-%d/step-00000005",
                 scratch, i, i, i, i, i, i, i, i);
        assert_int_equal(system(command), 0);
        snprintf(out, sizeof out, "moved-%d", i);
        snprintf(more, sizeof more, "%s --z-coef 0.01 --aux-loss sequence --resume",
                 others[i].options);
        run(out, 7, more, 0);
        assert_true(log_has(out, "step-00000005"));
        assert_int_equal(read_losses(out, y), 7);
        for (int k = 0; k < 21; k++) {
            assert_close(y[k / 3][k % 3] / x[k / 3][k % 3], 1.0, 1e-5);
        }
        snprintf(
            command, sizeof command,
            "mpirun --allow-run-as-root --oversubscribe --mca btl_vader_single_copy_mechanism "
            "none -x ASAN_OPTIONS=detect_leaks=0 -n %d %s --pass-on %s/at-%d %s/to-%d %d && mv "
            "%s/to-%d/step-00000005 %s/from-%d",
            others[i].ranks, self, scratch, i, scratch, i, i, scratch, i, scratch, i + 1);
        assert_int_equal(system(command), 0);
    }
    snprintf(command, sizeof command, "cd %s && mv from-%d moved/checkpoints/step-00000005",
             scratch, OTHERS);
    assert_int_equal(system(command), 0);
    snprintf(more, sizeof more, "%s --z-coef 0.01 --aux-loss sequence --resume", folded);
    run("moved", 7, more, 0);
    assert_true(log_has("moved", "step-00000005"));
    same_steps("moved-whole", "moved", 7);
    snprintf(command, sizeof command,
             "cd %s && cmp moved/hf/model.safetensors moved-whole/hf/model.safetensors", scratch);
    assert_int_equal(system(command), 0);
}

/* Experts that the hub keeps in tensors over all of them: through checkpoints of one layout into
 * another, out as a folder, in again. */
static void experts_of_one_tensor_pass_through_checkpoints_and_folders(void **state) {
    (void)state;
    static const char config[] =
        "{\"model_type\": \"gpt_oss\", \"hidden_size\": 16, \"vocab_size\": 256, "
        "\"num_attention_heads\": 4, \"num_hidden_layers\": 2, \"num_key_value_heads\": 2, "
        "\"head_dim\": 8, \"intermediate_size\": 8, \"num_local_experts\": 8, "
        "\"experts_per_token\": 3, \"sliding_window\": 5, \"swiglu_limit\": 7.0, "
        "\"max_position_embeddings\": 64, \"rope_theta\": 100}";
    static const struct {
        const char *from, *name, *more, *fold, *out;
    } runs[] = {{"--model", "oss.json", "--steps 2", "4 --ep 2 --etp 2 --zero 3", "oss"},
                {"--model", "oss.json", "--steps 3 --resume", "2 --tp 2 --ep 2", "oss"},
                {"--init", "oss/hf", "--steps 0", "1", "oss-again"}};
    static double x[MAX_STEPS][3];
    char command[1400], path[96];
    snprintf(path, sizeof path, "%s/oss.json", scratch);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(config, f) >= 0 && fclose(f) == 0);
    for (int i = 0; i < 3; i++) {
        snprintf(command, sizeof command,
                 "env ASAN_OPTIONS=detect_leaks=0 %s train --data /usr/share/common-licenses/GPL-3 "
                 "--global-batch 4 --seq 32 %s %s/%s %s --gpus %s --out %s/%s >%s/oss.log 2>&1",
                 binary, runs[i].from, scratch, runs[i].name, runs[i].more,
                 several_ranks ? runs[i].fold : "1", scratch, runs[i].out, scratch);
        if (system(command) != 0) {
            show_log("oss");
            fail_msg("run %d failed", i);
        }
    }
    assert_int_equal(read_losses("oss", x), 3);
    snprintf(command, sizeof command, "cd %s && cmp oss/hf/model.safetensors %s", scratch,
             "oss-again/hf/model.safetensors");
    assert_int_equal(system(command), 0);
}

/* Runs `moefold compare` on a run; its output goes to OUT.log. */
static int compare(const char *out, const char *more) {
    char command[4096];
    snprintf(command, sizeof command,
             "env ASAN_OPTIONS=detect_leaks=0 %s compare --run %s/%s %s >%s/%s.log 2>&1", binary,
             scratch, out, more, scratch, out);
    int result = system(command);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128;
}

static void what_a_run_measured_stands_beside_what_was_predicted(void **state) {
    (void)state;
    char path[160];
    mf_json *doc = NULL;
    mf_err e;
    assert_int_equal(compare("whole", "--tolerance 1%"),
                     4); /* nobody predicts a busy CPU so well */
    assert_true(log_has("whole", "! "));
    assert_int_equal(compare("whole", "--tolerance 100 --json"), 0);
    snprintf(path, sizeof path, "%s/whole.log", scratch);
    if (mf_json_load(path, &doc, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    const mf_json_value *root = mf_json_root(doc), *ops = mf_json_find(root, "ops");
    double step_s = 0.0, sum_s = 0.0;
    assert_ok(mf_json_get_f64(root, "measured_step_time_s", 1e-6, 1e3, &step_s, &e));
    bool named[3] = {false};
    for (size_t i = 0; i < mf_json_size(ops); i++) {
        const char *name = NULL;
        double measured_s = 0.0, predicted_s = 0.0;
        assert_ok(mf_json_get_string(mf_json_at(ops, i), "op", &name, &e));
        assert_ok(mf_json_get_f64(mf_json_at(ops, i), "measured_s", 0, 1e3, &measured_s, &e));
        assert_ok(mf_json_get_f64(mf_json_at(ops, i), "predicted_s", 1e-12, 1e3, &predicted_s, &e));
        sum_s += measured_s;
        named[0] = named[0] || strcmp(name, "expert_fc1") == 0;
        named[1] = named[1] || strcmp(name, "adamw") == 0;
        named[2] = named[2] || strcmp(name, "cross_entropy") == 0;
    }
    assert_true(named[0] && named[1] && named[2]);
    /* Ops of a CPU rank run one after the other: together they are the step. */
    assert_close(sum_s / step_s, 1.0, 0.15);
    mf_json_destroy(doc);
    /* Into a profile store and back: what was measured is what is then predicted. */
    char command[2048];
    snprintf(command, sizeof command, "--tolerance 100 --export %s/times.csv", scratch);
    assert_int_equal(compare("whole", command), 0);
    snprintf(command, sizeof command, "%s profile --store %s/store --import %s/times.csv >%s/p.log",
             binary, scratch, scratch, scratch);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "--tolerance 100 --record %s/direct", scratch);
    assert_int_equal(compare("whole", command), 0);
    snprintf(command, sizeof command,
             "%s profile --store %s/direct --export %s/a.csv >%s/p.log && %s profile --store "
             "%s/store --export %s/b.csv >%s/p.log && cmp %s/a.csv %s/b.csv",
             binary, scratch, scratch, scratch, binary, scratch, scratch, scratch, scratch,
             scratch);
    assert_int_equal(system(command), 0); /* the same by either way */
    snprintf(command, sizeof command, "--tolerance 100 --json --store %s/store", scratch);
    assert_int_equal(compare("whole", command), 0);
    if (mf_json_load(path, &doc, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    ops = mf_json_find(mf_json_root(doc), "ops");
    int products = 0;
    for (size_t i = 0; i < mf_json_size(ops); i++) {
        const char *name = NULL;
        double error = 0.0;
        assert_ok(mf_json_get_string(mf_json_at(ops, i), "op", &name, &e));
        if (strcmp(name, "qkv_proj") == 0 || strcmp(name, "lm_head") == 0) {
            assert_ok(mf_json_get_f64(mf_json_at(ops, i), "error", -1, 1e9, &error, &e));
            assert_close(error, 0.0, 0.25);
            products++;
        }
    }
    assert_true(products >= 5);
    mf_json_destroy(doc);
    /* A plan for other ranks, and for other ops. */
    snprintf(command, sizeof command,
             "%s simulate --model tests/data/hf/qwen3_moe --cluster cpu --gpus 1 --global-batch 4 "
             "--seq 32 --precision fp32 --recompute moe --out %s/other.json >%s/other.log",
             binary, scratch, scratch);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "--plan %s/other.json", scratch);
    assert_int_equal(compare("whole", command), 2);
    assert_true(log_has("whole", several_ranks ? "4 ranks" : "not what the plan lowers to"));
}

static void a_signal_saves_and_the_run_goes_on_from_there(void **state) {
    (void)state;
    const char *layout = several_ranks ? folded : single;
    char more[256], path[200];
    pid_t child = begin("signal", MAX_STEPS, layout); /* more than end before the signal */
    static double x[MAX_STEPS][3];
    for (int i = 0; i < 1000 && read_losses("signal", x) < 3; i++) {
        nap(0.02);
    }
    kill(child, SIGTERM);
    int code = end(child);
    if (code != 130) {
        show_log("signal");
    }
    assert_int_equal(code, 130);
    int steps = read_losses("signal", x);
    assert_in_range(steps, 3, MAX_STEPS - 1);
    snprintf(path, sizeof path, "%s/signal/checkpoints/step-%08d/manifest.json", scratch, steps);
    assert_int_equal(access(path, R_OK), 0);
    snprintf(more, sizeof more, "%s --resume", layout);
    run("signal", steps, more, 0);
}

static void a_killed_rank_is_named_and_takes_the_others_along(void **state) {
    (void)state;
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: killed ranks are not tested\n");
        return;
    }
    rng r = rng_init((uint64_t)getpid());
    static double x[MAX_STEPS][3];
    int rounds = getenv("MF_KILLS") != NULL ? 8 : 2; /* each rank twice */
    for (int round = 0; round < rounds; round++) {
        char out[16], expected[64];
        snprintf(out, sizeof out, "kill%d", round);
        pid_t child = begin(out, 5000, folded), ranks[16];
        for (int i = 0; i < 1000 && read_losses(out, x) < 2; i++) {
            nap(0.02);
        }
        assert_int_equal(find_ranks(out, child, ranks, 16), 4);
        pid_t victim = ranks[rounds > 2 ? round % 4 : rng_range(&r, 0, 3)];
        nap(0.001 * (double)rng_range(&r, 0, 200));
        double start = now_s();
        kill(victim, SIGKILL);
        int code = end(child);
        double took = now_s() - start;
        snprintf(expected, sizeof expected, "(process %d) is gone: step ", (int)victim);
        if (!log_names_an_op(out, expected) || code != 1) {
            show_log(out);
            fail_msg("exit code %d, no line with \"%s\"", code, expected);
        }
        printf("all ranks gone %.2f s after one was killed\n", took);
        assert_true(took < 10.0);
        assert_int_equal(find_ranks(out, child, ranks, 16), 0);
    }
}

static int check_tensor(const mf_model_tensor *t, void *user) {
    mf_err e;
    float *values = malloc((size_t)(t->rows * t->cols) * sizeof *values);
    for (int kind = 0; kind < (t->buffer ? 1 : MF_EXEC_STATES); kind++) {
        if (mf_checkpoint_tensor(user, kind, t, values, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
    }
    free(values);
    return 0;
}

/* Waits until a save is under way, for two seconds at most. */
static void await_save(const char *out) {
    char folder[160];
    snprintf(folder, sizeof folder, "%s/%s/checkpoints", scratch, out);
    for (double until = now_s() + 2.0; now_s() < until;) {
        bool found = false;
        DIR *d = opendir(folder);
        struct dirent *entry;
        while (d != NULL && (entry = readdir(d)) != NULL) {
            found = found || strncmp(entry->d_name, "tmp-", 4) == 0;
        }
        if (d != NULL) {
            closedir(d);
        }
        if (found) {
            return;
        }
    }
}

static void killed_saves_leave_a_whole_checkpoint(void **state) {
    (void)state;
    enum { STEPS = 60 };
    const char *layout = several_ranks ? "--gpus 2 --ep 2 --resume" : "--gpus 1 --resume";
    const char *wanted = getenv("MF_KILLS");
    int kills = wanted != NULL ? atoi(wanted) : 6, done = 0, in_save = 0, resumed = 0;
    char path[256];
    mf_model m;
    mf_err e;
    rng r = rng_init((uint64_t)getpid());
    run("calm", STEPS, layout, 0);
    assert_ok(mf_model_load("tests/data/hf/qwen3_moe/config.json", &m, &e));
    for (int attempt = 0; in_save < kills && attempt < 20 * kills; attempt++) {
        static double x[MAX_STEPS][3];
        pid_t child = begin("storm", STEPS, layout), ranks[16];
        int before = read_losses("storm", x);
        for (int i = 0; i < 500 && read_losses("storm", x) <= before && before < STEPS - 1; i++) {
            nap(0.01);
        }
        int n = several_ranks ? find_ranks("storm", child, ranks, 16) : 1;
        await_save("storm");
        /* somewhere in a save, be it a slow or a quick one */
        nap((attempt % 2 ? 0.004 : 0.03) * (double)rng_range(&r, 0, 1000) / 1000.0);
        if (n > 0) {
            kill(several_ranks ? ranks[rng_range(&r, 0, n - 1)] : child, SIGKILL);
            done++;
        }
        if (end(child) == 0) { /* it was through */
            snprintf(path, sizeof path, "rm -r %s/storm", scratch);
            assert_int_equal(system(path), 0);
            continue;
        }
        snprintf(path, sizeof path, "ls %s/storm/checkpoints | grep -q tmp-", scratch);
        in_save += system(path) == 0;
        char folder[160];
        mf_checkpoint *c = NULL;
        snprintf(folder, sizeof folder, "%s/storm/checkpoints", scratch);
        mf_checkpoint_newest(folder, path, sizeof path, &e);
        if (path[0] == '\0') {
            continue; /* killed before the first one */
        }
        if (mf_checkpoint_open(path, &m, &c, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        mf_model_tensors(&m, check_tensor, c);
        resumed += mf_checkpoint_stands(c)->step > 0;
        mf_checkpoint_close(c);
    }
    printf("%d kills, %d in a save, %d with a checkpoint to go on from\n", done, in_save, resumed);
    assert_true(in_save >= kills);
    run("storm", STEPS, layout, 0);
    same_steps("calm", "storm", STEPS);
}

static void a_launcher_of_ones_own_gives_the_ranks(void **state) {
    (void)state;
    static const char *const layout[] = {"--gpus 2 --ep 2", "--gpus 4 --ep 4"};
    static const int expected[] = {0, 2};
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: launchers are not tested\n");
        return;
    }
    for (int k = 0; k < 2; k++) {
        char command[4096];
        snprintf(command, sizeof command,
                 "mpirun --allow-run-as-root --oversubscribe -x ASAN_OPTIONS=detect_leaks=0 "
                 "--mca btl_vader_single_copy_mechanism none -n 2 %s train " JOB
                 " --steps 2 --out %s/own%d %s >%s/own%d.log 2>&1",
                 binary, scratch, k, layout[k], scratch, k);
        int result = system(command);
        assert_true(WIFEXITED(result));
        assert_int_equal(WEXITSTATUS(result), expected[k]);
    }
    assert_true(log_has("own0", "step 2/2"));
    assert_true(log_has("own1", "the layout is for 4 ranks, 2 are running"));
}

/* --- TensorBoard's file, read by its definition ------------------------------------------------
 */

static uint32_t bitwise_crc(const unsigned char *at, size_t size) {
    uint32_t v = ~0u;
    for (size_t i = 0; i < size; i++) {
        v ^= at[i];
        for (int k = 0; k < 8; k++) {
            v = (v >> 1) ^ (v & 1 ? 0x82f63b78u : 0);
        }
    }
    v = ~v;
    return ((v >> 15) | (v << 17)) + 0xa282ead8u;
}

static uint64_t little(const unsigned char *at, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        v = v << 8 | at[i];
    }
    return v;
}

typedef struct field {
    unsigned number, wire;
    uint64_t value;
    const unsigned char *bytes; /* wire type 2 */
} field;

static uint64_t varint(const unsigned char **at) {
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char b = *(*at)++;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) {
            return v;
        }
    }
}

static field next_field(const unsigned char **at) {
    uint64_t key = varint(at);
    field f = {.number = (unsigned)(key >> 3), .wire = (unsigned)(key & 7)};
    if (f.wire == 0) {
        f.value = varint(at);
    } else if (f.wire == 2) {
        f.value = varint(at);
        f.bytes = *at;
        *at += f.value;
    } else {
        int bytes = f.wire == 1 ? 8 : 4;
        f.value = little(*at, bytes);
        *at += bytes;
    }
    return f;
}

/* Of a Summary: the value of `tag`. */
static float scalar_of(const field *summary, const char *tag) {
    const unsigned char *at = summary->bytes, *last = at + summary->value;
    while (at < last) {
        field value = next_field(&at);
        const unsigned char *in = value.bytes;
        bool mine = false;
        float number = NAN;
        while (in < value.bytes + value.value) {
            field f = next_field(&in);
            mine = mine || (f.number == 1 && f.value == strlen(tag) &&
                            memcmp(f.bytes, tag, (size_t)f.value) == 0);
            if (f.number == 2) {
                uint32_t bits = (uint32_t)f.value;
                memcpy(&number, &bits, sizeof number);
            }
        }
        if (mine) {
            return number;
        }
    }
    return NAN;
}

static void the_event_file_holds_what_the_lines_hold(void **state) {
    (void)state;
    char path[512] = "", folder[128];
    static double x[MAX_STEPS][3];
    static unsigned char bytes[1 << 18];
    snprintf(folder, sizeof folder, "%s/whole", scratch);
    int steps = read_losses("whole", x), seen = 0, records = 0;
    DIR *d = opendir(folder);
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        if (strstr(entry->d_name, "tfevents") != NULL) {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        }
    }
    closedir(d);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t size = fread(bytes, 1, sizeof bytes, f), at = 0;
    fclose(f);
    for (; at + 12 <= size; records++) {
        size_t length = (size_t)little(bytes + at, 8);
        assert_int_equal(little(bytes + at + 8, 4), bitwise_crc(bytes + at, 8));
        assert_true(at + 16 + length <= size);
        assert_int_equal(little(bytes + at + 12 + length, 4), bitwise_crc(bytes + at + 12, length));
        const unsigned char *in = bytes + at + 12, *last = in + length;
        int64_t step = -1;
        while (in < last) {
            field e = next_field(&in);
            step = e.number == 2 ? (int64_t)e.value : step;
            if (e.number == 3) {
                assert_int_equal(records, 0);
                assert_memory_equal(e.bytes, "brain.Event:2", 13);
            }
            if (e.number == 5) {
                assert_true((double)scalar_of(&e, "lm_loss") == (double)(float)x[seen][0]);
                assert_true((double)scalar_of(&e, "grad_norm") == (double)(float)x[seen][2]);
                assert_int_equal(step, ++seen);
            }
        }
        at += 16 + length;
    }
    assert_int_equal(at, size);
    assert_int_equal(seen, steps);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_takes_the_steps_of_one_that_was_not_cut),
        cmocka_unit_test(a_run_goes_on_under_another_layout),
        cmocka_unit_test(experts_of_one_tensor_pass_through_checkpoints_and_folders),
        cmocka_unit_test(bf16_and_sharded_runs_resume_as_if_they_were_not_cut),
        cmocka_unit_test(the_event_file_holds_what_the_lines_hold),
        cmocka_unit_test(what_a_run_measured_stands_beside_what_was_predicted),
        cmocka_unit_test(a_signal_saves_and_the_run_goes_on_from_there),
        cmocka_unit_test(a_launcher_of_ones_own_gives_the_ranks),
        cmocka_unit_test(a_killed_rank_is_named_and_takes_the_others_along),
        cmocka_unit_test(killed_saves_leave_a_whole_checkpoint),
    };
    self = argv[0];
    if (argc > 4 && strcmp(argv[1], "--pass-on") == 0) {
        return pass_on(argv[2], argv[3], atoi(argv[4]));
    }
    char *slash = NULL; /* BUILD/tests/unit/test_x -> BUILD/moefold */
    snprintf(binary, sizeof binary, "%s", argv[0]);
    for (int up = 0; up < 3 && (slash = strrchr(binary, '/')) != NULL; up++) {
        *slash = '\0';
    }
    strncat(binary, "/moefold", sizeof binary - strlen(binary) - 1);
    snprintf(scratch, sizeof scratch, "/tmp/mf-train-XXXXXX");
    if (mkdtemp(scratch) == NULL) {
        return 1;
    }
    several_ranks = mf_comm_has_mpi() && system("command -v mpirun >/dev/null 2>&1") == 0;
    cmocka_set_test_filter(getenv("MF_TEST"));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command) == 0 ? failed : 1;
}
