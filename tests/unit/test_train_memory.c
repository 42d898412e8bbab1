/* One number of memory on CPU ranks: `plan`, `fit`, `simulate`, `explain` and `train` say the same
 * peak for the same plan, to the byte, and the arena that train allocates is that number. MF_TEST:
 * the one test to run (a pattern). */
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

static mf_json *loaded(const char *name) {
    char path[128];
    mf_json *doc = NULL;
    mf_err e;
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    if (mf_json_load(path, &doc, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return doc;
}

/* Runs the program; the JSON that it prints. */
static mf_json *answer_of(const char *format, ...) {
    char command[2300], words[1500];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    snprintf(command, sizeof command,
             "env ASAN_OPTIONS=detect_leaks=0 %s %s --json >%s/predicted.json "
             "2>%s/predicted.log",
             binary, words, scratch, scratch);
    if (system(command) != 0) {
        show_log("predicted");
        fail_msg("%s", words);
    }
    return loaded("predicted.json");
}

static double member(const mf_json_value *object, const char *key) {
    double x = 0;
    mf_err e;
    if (mf_json_get_f64(object, key, 0, 1e15, &x, &e) != MF_OK) {
        fail_msg("%s", e.text);
    }
    return x;
}

static double number(mf_json *doc, const char *key) {
    double x = member(mf_json_root(doc), key);
    mf_json_destroy(doc);
    return x;
}

typedef struct memory_case {
    const char *model, *job; /* of plan: pins and batch */
    const char *layout;      /* the options of simulate, explain and train besides */
} memory_case;

static const memory_case folded_cases[] = {
    {"tests/data/hf/qwen3_moe",
     "--gpus 4 --global-batch 8 --seq 32 --precision fp32 --tp 2 --cp 1 --pp 1 --ep 4 --etp 1",
     "--dispatcher alltoall --zero 1 --expert-zero 1"},
    {"tests/data/hf/deepseek_v3",
     "--gpus 4 --global-batch 4 --seq 32 --precision bf16 --tp 1 --cp 1 --pp 2 --ep 2 --etp 1",
     "--schedule zb-h1 --dispatcher allgather --recompute experts"},
    {"tests/data/hf/llama",
     "--gpus 2 --global-batch 4 --seq 32 --precision fp32 --tp 2 --cp 1 --pp 1", ""},
};
static const memory_case single_cases[] = {
    {"tests/data/hf/mixtral", "--gpus 1 --global-batch 4 --seq 32 --precision fp32", ""}};

static const char text[] = "--data /usr/share/common-licenses/GPL-3";

/* The search's plan, by every reader of its file. */
static void planned(const memory_case *c) {
    mf_json *doc =
        answer_of("plan --model %s --cluster cpu %s --out %s/plan.json", c->model, c->job, scratch);
    const mf_json_value *best = mf_json_find(mf_json_root(doc), "best");
    const mf_json_value *layout = mf_json_find(best, "layout");
    double peak_B = member(best, "peak_memory_B"), ep = member(layout, "ep");
    assert_above(peak_B, 0);
    assert_true(member(layout, "token_headroom") == ep);
    mf_json_destroy(doc);
    doc = loaded("plan.json"); /* holds the number that was resolved */
    assert_true(member(mf_json_find(mf_json_root(doc), "layout"), "token_headroom") == ep);
    mf_json_destroy(doc);
    doc = answer_of("simulate --plan %s/plan.json --model %s", scratch, c->model);
    assert_true(number(doc, "peak_memory_B") == peak_B);
    doc = answer_of("explain --plan %s/plan.json --model %s", scratch, c->model);
    assert_true(number(doc, "peak_memory_B") == peak_B);
    doc = answer_of("train --plan %s/plan.json --model %s %s --steps 1", scratch, c->model, text);
    const double others = member(mf_json_root(doc), "cores_used_by_others");
    assert_at_least(others, 0);
    assert_at_most(others, 1);
    assert_true(member(mf_json_root(doc), "predicted_memory_B") == peak_B);
    assert_true(number(doc, "memory_B") == peak_B);
}

/* A layout by flags. */
static void stated(const memory_case *c) {
    mf_json *doc =
        answer_of("simulate --model %s --cluster cpu %s %s", c->model, c->job, c->layout);
    double peak_B = number(doc, "peak_memory_B");
    doc = answer_of("explain --model %s --cluster cpu %s %s", c->model, c->job, c->layout);
    assert_true(number(doc, "peak_memory_B") == peak_B);
    doc = answer_of("train --model %s %s %s %s --steps 1", c->model, c->job, c->layout, text);
    assert_true(member(mf_json_root(doc), "predicted_memory_B") == peak_B);
    assert_true(number(doc, "memory_B") == peak_B);
}

/* What fit finds to need the least, as simulated. */
static void fitted(const memory_case *c) {
    mf_json *doc = answer_of("fit --model %s --cluster cpu %s", c->model, c->job);
    const mf_json_value *entry = mf_json_at(mf_json_find(mf_json_root(doc), "entries"), 0);
    const mf_json_value *l = mf_json_find(entry, "layout");
    static const char *const keys[] = {"schedule", "dispatcher", "cp_type", "recompute", "offload"};
    const char *word[5];
    double peak_B = member(entry, "peak_memory_B");
    for (int i = 0; i < 5; i++) {
        assert_ok(mf_json_get_string(l, keys[i], &word[i], NULL));
    }
    char flags[512];
    snprintf(flags, sizeof flags,
             "--micro-batch %g --vpp %g --zero %g --expert-zero %g --schedule %s --dispatcher %s "
             "--cp-type %s --recompute %s --offload %s",
             member(l, "micro_batch"), member(l, "vpp"), member(l, "zero"),
             member(l, "expert_zero"), word[0], word[1], word[2], word[3], word[4]);
    mf_json_destroy(doc);
    doc = answer_of("simulate --model %s --cluster cpu %s %s", c->model, c->job, flags);
    assert_true(number(doc, "peak_memory_B") == peak_B);
    doc = answer_of("train --model %s %s %s %s --steps 1", c->model, c->job, flags, text);
    assert_true(number(doc, "memory_B") == peak_B);
}

static void every_command_says_the_same_peak(void **state) {
    (void)state;
    const memory_case *c = several_ranks ? folded_cases : single_cases;
    size_t n = several_ranks ? sizeof folded_cases / sizeof folded_cases[0] : 1;
    for (size_t i = 0; i < n; i += (size_t)case_stride(8)) {
        planned(&c[i]);
        stated(&c[i]);
        fitted(&c[i]);
    }
}

/* Runs `train` with more options; its log is NAME.log, its folder NAME. */
static void trained(const char *name, const char *options) {
    char command[1300];
    snprintf(command, sizeof command,
             "env ASAN_OPTIONS=detect_leaks=0 %s train --model tests/data/hf/mixtral %s --steps 4 "
             "%s --out %s/%s >%s/%s.log 2>&1",
             binary, text, options, scratch, name, scratch, name);
    assert_int_equal(system(command), 0);
}

static void a_step_that_needs_more_headroom_than_is_given_is_run_again_with_it(void **state) {
    (void)state;
    static const char *const by[] = {"alltoall", "allgather", "fused"};
    char options[400], command[300];
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: ranks that receive rows are not tested\n");
        return;
    }
    for (size_t i = 0; i < sizeof by / sizeof by[0]; i += (size_t)case_stride(3)) {
        char tight[24], ample[24], job[200];
        snprintf(tight, sizeof tight, "tight-%s", by[i]);
        snprintf(ample, sizeof ample, "ample-%s", by[i]);
        snprintf(job, sizeof job,
                 "--gpus 2 --ep 2 --global-batch 4 --seq 16 --precision fp32 --dispatcher %s",
                 by[i]);
        mf_json *doc = answer_of("simulate --model tests/data/hf/mixtral --cluster cpu %s", job);
        double worst_B = number(doc, "peak_memory_B");
        mf_json_destroy(answer_of("simulate --model tests/data/hf/mixtral --cluster cpu %s "
                                  "--token-headroom 1 --out %s/%s.json",
                                  job, scratch, tight));
        snprintf(options, sizeof options, "%s.json", tight);
        doc = loaded(options);
        assert_true(member(mf_json_find(mf_json_root(doc), "layout"), "token_headroom") == 1.0);
        mf_json_destroy(doc);
        doc = answer_of("simulate --plan %s/%s.json --model tests/data/hf/mixtral", scratch, tight);
        assert_below(number(doc, "peak_memory_B"), worst_B);
        snprintf(options, sizeof options, "--plan %s/%s.json", scratch, tight);
        trained(tight, options);
        assert_true(log_has(tight, "step 1: routing asked for "));
        snprintf(options, sizeof options, "--cluster cpu %s", job);
        trained(ample, options);
        assert_false(log_has(ample, "routing asked for "));
        same_steps(tight, ample, 4);
        snprintf(command, sizeof command,
                 "cmp %s/%s/hf/model.safetensors %s/%s/hf/model.safetensors", scratch, tight,
                 scratch, ample);
        assert_int_equal(system(command), 0);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_says_the_same_peak),
        cmocka_unit_test(a_step_that_needs_more_headroom_than_is_given_is_run_again_with_it),
    };
    return train_run_open(argv[0]) ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL)) : 1;
}
