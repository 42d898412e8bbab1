/* `moefold train` as its users run it: resumed runs take the very steps of one that was not
 * interrupted, on the same layout and by way of others; what was measured stands beside what was
 * predicted; a launcher of one's own gives the ranks. MF_TEST: the one test to run (a pattern). */
#include "executor/checkpoint/checkpoint.h"
#include "tests/support/hf_case.h"
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

static const char *self;

static void a_resumed_run_takes_the_steps_of_one_that_was_not_interrupted(void **state) {
    (void)state;
    const char *layout = several_ranks ? folded() : single;
    char more[256];
    snprintf(more, sizeof more, "%s --record %s/recorded", layout, scratch);
    run("whole", 8, more, 0);
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
static void bf16_and_sharded_runs_resume_as_if_they_were_not_interrupted(void **state) {
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
    {"--gpus 2 --pp 2 --micro-batch 2", 2, 1, 1, 2, 1, 1, 1, 1}, /* alone in a sample */
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
    s = s == MF_OK ? hf_open(&h, "qwen3_moe", &l, &options, NULL, &e) : s;
    s = s == MF_OK ? mf_checkpoint_newest(from, path, sizeof path, &e) : s;
    s = s == MF_OK ? mf_checkpoint_open(path, &h.model, &c, &e) : s;
    s = s == MF_OK ? mf_checkpoint_load(c, h.exec, &e) : s;
    s = s == MF_OK ? mf_exec_share_weights(h.exec, &e) : s;
    s = s == MF_OK ? mf_checkpoint_save(h.exec, to, mf_checkpoint_progress(c), 3, &e) : s;
    if (s != MF_OK) {
        printf("rank %lld: %s\n", (long long)rank, e.text);
        return 1;
    }
    mf_checkpoint_close(c);
    hf_close(&h);
    mf_comm_stop();
    return 0;
}

/* A run interrupted under one layout goes on under others. Its state passes through each of them
 * and back, after which the run takes the steps of one that was not interrupted, bit by bit; under
 * the other layouts it takes them as far as sums in another order go. */
static void a_run_continues_under_another_layout(void **state) {
    (void)state;
    static double x[MAX_STEPS][3], y[MAX_STEPS][3];
    char more[256], command[1024], out[32];
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: other layouts are not tested\n");
        return;
    }
    snprintf(more, sizeof more, "%s --z-coef 0.01 --aux-loss sequence", folded());
    run("moved-whole", 7, more, 0);
    assert_true(log_has("moved-whole", "  z "));
    assert_int_equal(read_losses("moved-whole", x), 7);
    snprintf(command, sizeof command,
             "cd %s && cp -r moved-whole moved && cd moved/checkpoints && rm -r step-00000007 "
             "step-00000006 && mv step-00000005 ../../from-0",
             scratch);
    assert_int_equal(system(command), 0);
    const int tried = case_count(OTHERS, 1);
    for (int i = 0; i < tried; i++) {
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
             scratch, tried);
    assert_int_equal(system(command), 0);
    snprintf(more, sizeof more, "%s --z-coef 0.01 --aux-loss sequence --resume", folded());
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
    assert_at_least(fputs(config, f), 0);
    assert_true(fclose(f) == 0);
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

/* What a run writes as hf/ is a folder like the one it began with: config.json says what --set has
 * made of the model, and the weights go in and out bit by bit under any layout. */
static void a_folder_that_came_out_goes_in_by_itself(void **state) {
    (void)state;
    static const struct {
        const char *from, *set, *fold;
    } runs[] = {
        {"deepseek_v3", "--set num_nextn_predict_layers=0", "--gpus 4 --tp 2 --ep 2 --etp 2"},
        {"qwen2_moe", "--set rope_theta=20000", "--gpus 4 --pp 2 --ep 2 --zero 3"},
    };
    char command[2300];
    for (int i = 0; i < case_count(2, 1); i++) {
        snprintf(command, sizeof command,
                 "at=%s; export ASAN_OPTIONS=detect_leaks=0; "
                 "run() { %s train --data /usr/share/common-licenses/GPL-3 --global-batch 4 "
                 "--seq 32 --steps 0 \"$@\" >>$at/folder.log 2>&1; }; "
                 "run --init tests/data/hf/%s %s %s --out $at/in%d && "
                 "run --init $at/in%d/hf --out $at/again%d && "
                 "cmp $at/in%d/hf/model.safetensors $at/again%d/hf/model.safetensors && "
                 "cmp $at/in%d/hf/config.json $at/again%d/config.json",
                 scratch, binary, runs[i].from, runs[i].set, several_ranks ? runs[i].fold : "", i,
                 i, i, i, i, i, i);
        if (system(command) != 0) {
            show_log("folder");
            fail_msg("%s", runs[i].from);
        }
    }
}

/* Runs `moefold compare` on a run; its output goes to OUT.log, behind it what it says where it
 * fails. */
static int compare(const char *out, const char *more) {
    char command[4096];
    snprintf(
        command, sizeof command,
        "at=%s/%s; env ASAN_OPTIONS=detect_leaks=0 %s compare --run $at %s >$at.log 2>$at.err; "
        "code=$?; [ $code = 0 ] || cat $at.err >>$at.log; exit $code",
        scratch, out, binary, more);
    int result = system(command);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128;
}

/* Each op of a comparison has both times; the sum of the measured ones. */
static double measured_s_of(const mf_json_value *ops) {
    mf_err e;
    double sum_s = 0.0;
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
    assert_true(named[0]);
    assert_true(named[1]);
    assert_true(named[2]);
    return sum_s;
}

/* With the run's own measurements in the store its products are predicted as measured. */
static void assert_products_near(const mf_json_value *ops) {
    mf_err e;
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
    assert_at_least(products, 5);
}

static void measured_times_are_compared_with_predicted_ones(void **state) {
    (void)state;
    char path[160];
    mf_json *doc = NULL;
    mf_err e;
    assert_int_equal(compare("whole", "--tolerance 1%"),
                     4); /* nobody predicts a busy CPU so well */
    assert_true(log_has("whole", "! "));
    assert_int_equal(compare("whole", "--tolerance 10000% --json"), 0);
    snprintf(path, sizeof path, "%s/whole.log", scratch);
    if (mf_json_load(path, &doc, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    const mf_json_value *root = mf_json_root(doc);
    double step_s = 0.0;
    assert_ok(mf_json_get_f64(root, "measured_step_time_s", 1e-6, 1e3, &step_s, &e));
    /* Ops of a CPU rank run one after the other: together they are the step. */
    assert_close(measured_s_of(mf_json_find(root, "ops")) / step_s, 1.0, 0.15);
    mf_json_destroy(doc);
    /* Into a profile store and back: what was measured is what is then predicted. */
    char command[2048];
    snprintf(command, sizeof command, "--tolerance 10000%% --export %s/times.csv", scratch);
    assert_int_equal(compare("whole", command), 0);
    snprintf(command, sizeof command, "%s profile --store %s/store --import %s/times.csv >%s/p.log",
             binary, scratch, scratch, scratch);
    assert_int_equal(system(command), 0);
    if (cases_sampled()) {
        return; /* what follows asks for the same in other ways */
    }
    snprintf(command, sizeof command, "--tolerance 10000%% --refit %s/direct", scratch);
    assert_int_equal(compare("whole", command), 0);
    snprintf(command, sizeof command,
             "%s profile --store %s/direct --export %s/a.csv >%s/p.log && %s profile --store "
             "%s/store --export %s/b.csv >%s/p.log && cmp %s/a.csv %s/b.csv",
             binary, scratch, scratch, scratch, binary, scratch, scratch, scratch, scratch,
             scratch);
    assert_int_equal(system(command), 0);                      /* the same by either way */
    snprintf(command, sizeof command, "%s/recorded", scratch); /* train itself did */
    assert_int_equal(access(command, R_OK), 0);
    snprintf(command, sizeof command,
             "%s profile --store %s/recorded --export %s/c.csv >%s/p.log && cmp %s/a.csv %s/c.csv",
             binary, scratch, scratch, scratch, scratch, scratch);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "--tolerance 10000%% --json --store %s/store", scratch);
    assert_int_equal(compare("whole", command), 0);
    if (mf_json_load(path, &doc, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    assert_products_near(mf_json_find(mf_json_root(doc), "ops"));
    mf_json_destroy(doc);
    /* A plan for other ranks, and for other ops. */
    snprintf(command, sizeof command,
             "%s simulate --model tests/data/hf/qwen3_moe --cluster cpu --gpus 1 --global-batch 4 "
             "--seq 32 --precision fp32 --recompute moe --out %s/other.json >%s/other.log",
             binary, scratch, scratch);
    assert_int_equal(system(command), 0);
    snprintf(command, sizeof command, "--plan %s/other.json", scratch);
    assert_int_equal(compare("whole", command), 2);
    assert_true(log_has("whole", several_ranks ? (folded_ranks() == 4 ? "4 ranks" : "2 ranks")
                                               : "not what the plan lowers to"));
}

/* Runs of one token have equal probabilities, but for the order of sums: who is dropped must not
 * follow from that. */
static void dropping_in_text_with_runs_is_that_of_one_rank(void **state) {
    (void)state;
    static const char *const layouts[] = {"--gpus 1 --micro-batch 8", "--gpus 2 --tp 2",
                                          "--gpus 4 --tp 2 --cp 2 --ep 4 --micro-batch 8",
                                          "--gpus 2 --ep 2 --micro-batch 2"};
    static double x[MAX_STEPS][3], y[MAX_STEPS][3];
    char command[1024], out[16], path[96];
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: dropping under layouts is not tested\n");
        return;
    }
    snprintf(path, sizeof path, "%s/runs", scratch);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 2000; i++) { /* no run is whole in every sample */
        for (int k = 0; k < 3 + i * 7 % 11; k++) {
            fputc("- =.#0"[i % 6], f);
        }
    }
    assert_int_equal(fclose(f), 0);
    for (int i = 0; i < 4; i += case_stride(3)) {
        snprintf(out, sizeof out, "runs%d", i);
        snprintf(command, sizeof command,
                 "env ASAN_OPTIONS=detect_leaks=0 %s train --init tests/data/hf/deepseek_v3 --set "
                 "num_nextn_predict_layers=0 --data %s --global-batch 8 --seq 32 --lr 1e-3 "
                 "--steps 3 --capacity-factor 1 --aux-loss sequence %s --out %s/%s >%s/%s.log 2>&1",
                 binary, path, layouts[i], scratch, out, scratch, out);
        if (system(command) != 0) {
            show_log(out);
            fail_msg("%s", layouts[i]);
        }
        assert_int_equal(read_losses(out, i == 0 ? x : y), 3);
        for (int k = 0; i > 0 && k < 9; k++) {
            assert_close(y[k / 3][k % 3] / x[k / 3][k % 3], 1.0, 1e-6);
        }
    }
}

/* The most popular of 16 experts by zipf:1 would take 0.3 of all choices, 4.7 times the balanced
 * number; a token chooses it once of four times. Under every layout it is the same expert. */
static void forced_routing_is_what_simulate_takes(void **state) {
    (void)state;
    static const char *const layouts[] = {"--gpus 1 --micro-batch 2", "--gpus 2 --tp 2 --ep 2",
                                          "--gpus 2 --cp 2 --ep 2"};
    char command[1024], path[128], out[24];
    for (int i = 0; i < (several_ranks ? 3 : 1); i++) {
        int counts[16], hottest = 0, sum = 0;
        snprintf(out, sizeof out, "forced%d", i);
        snprintf(command, sizeof command,
                 "env ASAN_OPTIONS=detect_leaks=0 %s train --init tests/data/hf/qwen3_moe --data "
                 "README.md --global-batch 4 --seq 32 --steps 2 --force-routing zipf:1 %s --out "
                 "%s/%s >%s/%s.log 2>&1",
                 binary, layouts[i], scratch, out, scratch, out);
        if (system(command) != 0) {
            show_log(out);
            fail_msg("%s", layouts[i]);
        }
        snprintf(path, sizeof path, "%s/%s/routing.csv", scratch, out);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        assert_int_equal(fscanf(f, "#%*[^\n] %d", &counts[0]), 1);
        for (int k = 1; k < 16; k++) {
            assert_int_equal(fscanf(f, ".0,%d", &counts[k]), 1);
        }
        assert_int_equal(fclose(f), 0);
        for (int k = 0; k < 16; k++) {
            sum += counts[k];
            hottest = counts[k] > counts[hottest] ? k : hottest;
        }
        assert_int_equal(sum, 4 * 32 * 4);
        assert_int_equal(counts[hottest], 4 * 32);
        assert_int_equal(hottest, 1);
    }
}

/* What ails all ranks at once is said once, and they end. */
static void a_fault_of_all_ranks_is_one_line(void **state) {
    (void)state;
    char command[1024];
    snprintf(command, sizeof command,
             "env ASAN_OPTIONS=detect_leaks=0 %s train --model tests/data/hf/qwen3_moe --set "
             "vocab_size=64 --data /usr/share/common-licenses/GPL-3 --global-batch 4 --seq 32 "
             "--steps 2 %s 2>%s/fault.log >%s/fault.out",
             binary, several_ranks ? "--gpus 4 --ep 4" : "", scratch, scratch);
    int result = system(command);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 2);
    assert_true(log_has("fault", "GPL-3: token "));
    assert_true(log_has("fault", "is outside the vocabulary of 64"));
    /* mpirun's event loop warns at times of pipes that closed while it ended its ranks */
    snprintf(command, sizeof command,
             "test $(grep -v '^\\[warn\\] Epoll MOD' %s/fault.log | grep -c .) = 1", scratch);
    assert_int_equal(system(command), 0);
}

/* Rank 1 of two that a launcher starts, whose host has no such folder. */
static void what_one_rank_alone_lacks_it_says_itself(void **state) {
    (void)state;
    char command[2048];
    snprintf(
        command, sizeof command,
        "export ASAN_OPTIONS=detect_leaks=0 MOEFOLD_RANKS=2 MOEFOLD_RANKS_FILE=%s/lacks; "
        "MOEFOLD_RANK=0 timeout 60 %s train " JOB " --gpus 2 --ep 2 --steps 2 --out %s/lacks0 "
        ">%s/lacks0.log 2>&1 & "
        "MOEFOLD_RANK=1 %s train --init /nowhere/model --data /nowhere/corpus --global-batch 4 "
        "--seq 32 --gpus 2 --ep 2 --steps 2 >%s/lacks1.log 2>&1; code=$?; wait; exit $code",
        scratch, binary, scratch, scratch, binary, scratch);
    int result = system(command);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 2);
    assert_true(log_has("lacks1", "moefold train: rank 1: /nowhere/model"));
    assert_false(log_has("lacks0", "step 1/2"));
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

/* A machine that has no mpirun: the same steps, and the exit code and the words of a fault. */
static void ranks_start_without_mpirun(void **state) {
    (void)state;
    static const char *const more[] = {"", "--data /nowhere/corpus"};
    static const int expected[] = {0, 2};
    for (int k = 0; k < 2; k++) {
        char command[4096];
        snprintf(command, sizeof command,
                 "env PATH=/nowhere ASAN_OPTIONS=detect_leaks=0 \"$(realpath %s)\" train " JOB
                 " --steps 2 --gpus 2 --ep 2 %s --out %s/alone%d >%s/alone%d.log 2>&1",
                 binary, more[k], scratch, k, scratch, k);
        int result = system(command);
        assert_true(WIFEXITED(result));
        assert_int_equal(WEXITSTATUS(result), expected[k]);
    }
    assert_true(log_has("alone0", "step 2/2"));
    assert_true(log_has("alone0", "2 CPU processes"));
    assert_true(log_has("alone1", "/nowhere/corpus"));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_takes_the_steps_of_one_that_was_not_interrupted),
        cmocka_unit_test(a_run_continues_under_another_layout),
        cmocka_unit_test(experts_of_one_tensor_pass_through_checkpoints_and_folders),
        cmocka_unit_test(a_folder_that_came_out_goes_in_by_itself),
        cmocka_unit_test(bf16_and_sharded_runs_resume_as_if_they_were_not_interrupted),
        cmocka_unit_test(measured_times_are_compared_with_predicted_ones),
        cmocka_unit_test(dropping_in_text_with_runs_is_that_of_one_rank),
        cmocka_unit_test(forced_routing_is_what_simulate_takes),
        cmocka_unit_test(a_fault_of_all_ranks_is_one_line),
        cmocka_unit_test(what_one_rank_alone_lacks_it_says_itself),
        cmocka_unit_test(a_launcher_of_ones_own_gives_the_ranks),
        cmocka_unit_test(ranks_start_without_mpirun),
    };
    self = argv[0];
    start_with = cases_sampled() ? WITHOUT_MPIRUN : "";
    if (argc > 4 && strcmp(argv[1], "--pass-on") == 0) {
        return pass_on(argv[2], argv[3], atoi(argv[4]));
    }
    return train_run_open(argv[0]) ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL)) : 1;
}
