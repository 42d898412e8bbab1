/* `simulate --json`: the promised fields are there, and the numbers agree with each other. */
#include "executor/checkpoint/checkpoint.h"
#include "report/text/show.h"
#include "tests/support/cli_test.h"
#include "tests/support/sampled.h"

#include <math.h>
#include <unistd.h>

#define MIXTRAL                                                                                    \
    "simulate --model mixtral-8x22b --cluster h100 --gpus 128 --global-batch 256 --seq 4096 "

static void close_to(double a, double b) {
    if (!(fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)))) {
        fail_msg("%.17g is not %.17g", a, b);
    }
}

static void check_step(const mf_json_value *o) {
    static const char *const breakdown[] = {"compute",    "recompute",  "exposed_tp", "exposed_cp",
                                            "exposed_ep", "exposed_pp", "exposed_dp", "bubble",
                                            "optimizer",  "host",       "offload"};
    const mf_json_value *b = cli_member(o, "breakdown_s"), *stages = cli_member(o, "stages");
    double step = cli_number(o, "step_time_s"), peak = 0;
    assert_at_most(cli_number(o, "step_time_low_s"), step);
    assert_at_least(cli_number(o, "step_time_high_s"), step);
    assert_int_equal(mf_json_size(b), sizeof breakdown / sizeof breakdown[0]);
    for (size_t i = 0; i < mf_json_size(b); i++) {
        assert_string_equal(mf_json_key_at(b, i), breakdown[i]);
    }
    assert_below(fabs(cli_sum(b) - step), 1e-6 * step);
    for (size_t i = 0; i < mf_json_size(stages); i++) {
        const mf_json_value *s = mf_json_at(stages, i);
        close_to(cli_sum(cli_member(s, "memory_B")), cli_number(s, "peak_memory_B"));
        close_to(cli_number(s, "headroom_B"),
                 cli_number(o, "usable_B") - cli_number(s, "peak_memory_B"));
        assert_at_most(cli_number(s, "busy_s"), step * (1 + 1e-9));
        peak = fmax(peak, cli_number(s, "peak_memory_B"));
    }
    close_to(peak, cli_number(o, "peak_memory_B"));
    assert_int_equal(cli_bool(o, "fits"), peak <= cli_number(o, "usable_B"));
}

static void the_parts_add_up(void **state) {
    (void)state;
    cli_result r = cli_json(MIXTRAL "--tp 2 --pp 8 --ep 8 --json");
    const mf_json_value *o = mf_json_root(r.json), *l = cli_member(o, "layout");
    check_step(o);
    double tokens = 256.0 * 4096, step = cli_number(o, "step_time_s");
    close_to(cli_number(o, "tokens_per_s_per_gpu"), tokens / step / 128);
    close_to(cli_number(o, "mfu"),
             cli_number(o, "model_tflops_per_gpu") / cli_number(o, "peak_tflops"));
    close_to(cli_number(o, "mfu_bf16"),
             cli_number(o, "model_tflops_per_gpu") / cli_number(o, "peak_bf16_tflops"));
    assert_close(cli_number(l, "dp"), 8, 0);
    assert_close(cli_number(l, "edp"), 2, 0);
    assert_int_equal(mf_json_size(cli_member(o, "stages")), 8);
    cli_free(&r);
}

static void a_layout_over_memory_is_simulated_and_said_not_to_fit(void **state) {
    (void)state;
    cli_result r = cli_json(MIXTRAL "--json"); /* exit 0 */
    check_step(mf_json_root(r.json));
    assert_false(cli_bool(mf_json_root(r.json), "fits"));
    assert_below(cli_number(mf_json_root(r.json), "headroom_B"), 0);
    cli_free(&r);
}

static void fp8_is_held_against_the_fp8_peak(void **state) {
    (void)state;
    cli_result r = cli_json(MIXTRAL "--tp 2 --pp 8 --ep 8 --precision fp8-block --json");
    const mf_json_value *o = mf_json_root(r.json);
    check_step(o);
    assert_above(cli_number(o, "peak_tflops"), 1.5 * cli_number(o, "peak_bf16_tflops"));
    assert_below(cli_number(o, "mfu"), cli_number(o, "mfu_bf16"));
    cli_free(&r);
}

static void uneven_routing_costs_time(void **state) {
    (void)state;
    cli_result even = cli_json(MIXTRAL "--tp 2 --pp 8 --ep 8 --json");
    cli_result zipf = cli_json(MIXTRAL "--tp 2 --pp 8 --ep 8 --json --routing zipf:1.2");
    check_step(mf_json_root(zipf.json));
    assert_above(cli_number(mf_json_root(zipf.json), "step_time_s"),
                 cli_number(mf_json_root(even.json), "step_time_s"));
    cli_free(&even);
    cli_free(&zipf);
}

/* Memory holds the token headroom's rows, whatever the routing: more than these is said. */
static void routing_beyond_the_token_headroom_is_named(void **state) {
    (void)state;
    static const struct {
        const char *with;
        bool uneven, overflows;
    } cases[] = {
        {"--routing balanced", false, false},
        {"--routing zipf:0", false, false},
        {"--routing zipf:1.2", true, true},
        {"--routing zipf:1.2 --token-headroom 8", true, false}, /* all rows there are */
        {"--routing zipf:1.2 --capacity-factor 2", true, false},
        {"--routing zipf:1.2 --capacity-factor 1", false, false}}; /* the rest is dropped */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += (size_t)case_stride(2)) {
        char line[256];
        snprintf(line, sizeof line, MIXTRAL "--tp 2 --pp 8 --ep 8 %s", cases[i].with);
        cli_result text = cli_run(line, NULL);
        assert_int_equal(strstr(text.out, "times the balanced rows") != NULL, cases[i].overflows);
        strcat(line, " --json");
        cli_result r = cli_json(line);
        double load = cli_number(mf_json_root(r.json), "max_routed_load");
        assert_int_equal(cli_bool(mf_json_root(r.json), "tokens_overflow"), cases[i].overflows);
        assert_at_least(load, 1);
        assert_at_most(load, 8);
        assert_int_equal(load > 1, cases[i].uneven);
        cli_free(&text);
        cli_free(&r);
    }
}

static void a_pending_interrupt_ends_with_130(void **state) {
    (void)state;
    const volatile int cancel = 1;
    cli_result r = cli_run(MIXTRAL "--tp 2 --pp 8 --ep 8", &cancel);
    assert_int_equal(r.code, 130);
    assert_string_equal(r.out, "");
    cli_free(&r);
}

#define MEGATRON MIXTRAL "--tp 2 --pp 8 --ep 8 --software megatron-26.06 --json "
#define SAID                                                                                       \
    "--cuda-graph none --dispatcher alltoall --recompute none --overlap dp,pp --micro-batch 1 "    \
    "--vpp 1 "

static double figure(const char *line, const char *key) {
    cli_result r = cli_json(line);
    double value = cli_number(mf_json_root(r.json), key);
    cli_free(&r);
    return value;
}

static void options_left_out_of_another_programs_job_widen_the_band(void **state) {
    (void)state;
    static const char *const lines[] = {
        MEGATRON SAID, MEGATRON SAID "--unsure overlap", MEGATRON SAID "--unsure overlap,vpp",
        MEGATRON "--cuda-graph none --dispatcher alltoall", MEGATRON};
    double last = 1;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i += (size_t)case_stride(4)) {
        double width = figure(lines[i], "step_time_high_s") / figure(lines[i], "step_time_low_s");
        assert_true(i == 3 ? width > last * (1 - 1e-9) : width > last);
        last = width;
    }
    /* moefold runs what a layout says, defaults included. */
    close_to(figure(MIXTRAL "--ep 8 --pp 8 --json", "step_time_high_s"),
             figure(MIXTRAL "--ep 8 --pp 8 --cuda-graph none --dispatcher fused --recompute none "
                            "--overlap dp,pp --micro-batch 1 --vpp 1 --json",
                    "step_time_high_s"));
}

/* What is left unsaid of a program of its own means the same to `plan` and `capacity`, which hold
 * it, as to `simulate`; layers that are recomputed whole are not captured in parts. */
static void unsaid_graphs_are_the_same_in_a_search(void **state) {
    (void)state;
    static const struct {
        const char *model, *ep, *recompute, *graph;
    } jobs[] = {
        {"olmoe-1b-7b", "4", "none", "partial"},
        {"olmoe-1b-7b", "4", "full", "none"},
        {"qwen3-8b", "1", "none", "step"},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i += (size_t)case_stride(3)) {
        char job[512], line[640];
        snprintf(job, sizeof job,
                 "--global-batch 64 --seq 4096 --software megatron-26.06 --tp 1 --cp 1 --pp 1 "
                 "--vpp 1 --ep %s --micro-batch 1 --schedule 1f1b --dispatcher alltoall --zero 1 "
                 "--expert-zero 1 --recompute %s --json",
                 jobs[i].ep, jobs[i].recompute);
        snprintf(line, sizeof line, "simulate --model %s --cluster h200 --gpus 8 %s", jobs[i].model,
                 job);
        cli_result r = cli_json(line);
        const mf_json_value *o = mf_json_root(r.json);
        const double step_s = cli_number(o, "step_time_s");
        const char *graph = "";
        mf_json_string(cli_member(cli_member(o, "layout"), "cuda_graph"), &graph, NULL);
        assert_string_equal(graph, jobs[i].graph);
        cli_free(&r);

        snprintf(line, sizeof line, "plan --model %s --cluster h200 --gpus 8 %s", jobs[i].model,
                 job);
        r = cli_json(line);
        o = cli_member(mf_json_root(r.json), "best");
        close_to(cli_number(o, "step_time_s"), step_s);
        cli_free(&r);

        if (i > 0) { /* what one search holds, the other does */
            continue;
        }
        snprintf(line, sizeof line, "capacity --models %s --clusters h200 --sizes 8 %s",
                 jobs[i].model, job);
        r = cli_json(line);
        o = mf_json_at(cli_member(mf_json_root(r.json), "cells"), 0);
        close_to(cli_number(o, "step_time_s"), step_s);
        cli_free(&r);
    }
}

/* Measured anew at 302 TFLOP/s (rpr-001 of bench/published); docs/simulator.md has the command. */
static void a_published_recipe_of_qwen3_235b_comes_out(void **state) {
    (void)state;
    const double tflops =
        figure("simulate --model qwen3-235b-a22b --cluster h100 --gpus 256 --global-batch 2048 "
               "--seq 4096 --software megatron-26.06 --tp 2 --pp 8 --vpp 4 --ep 32 --micro-batch 1 "
               "--schedule merged --recompute norm,act --json",
               "model_tflops_per_gpu");
    assert_below(fabs(tflops / 302 - 1), 0.15);
}

static void padded_experts_need_no_counts(void **state) {
    (void)state;
    cli_result drop = cli_json(MEGATRON SAID "--capacity-factor 1");
    cli_result pad = cli_json(MEGATRON SAID "--capacity-factor 1 --pad-to-capacity");
    const mf_json_value *b = cli_member(mf_json_root(drop.json), "breakdown_s");
    double host_s = cli_number(b, "host");
    b = cli_member(mf_json_root(pad.json), "breakdown_s");
    assert_below(cli_number(b, "host"), 0.6 * host_s);
    cli_free(&drop);
    cli_free(&pad);
}

static void traits_change_the_step_time(void **state) {
    (void)state;
    double plain_s = figure(MEGATRON SAID, "step_time_s");
    assert_below(figure(MEGATRON SAID "--traits fused_experts", "step_time_s"), plain_s);
    assert_above(figure(MEGATRON SAID "--traits unfused_rope,unfused_act", "step_time_s"), plain_s);
    cli_result r = cli_run(MIXTRAL "--traits fused_expert", NULL);
    assert_int_equal(r.code, 2);
    cli_free(&r);
}

static void a_pipeline_layout_places_the_layers_that_it_writes(void **state) {
    (void)state;
    double even_s = figure(MIXTRAL "--tp 2 --pp 4 --ep 8 --json", "step_time_s");
    close_to(figure(MIXTRAL "--tp 2 --pp 4 --ep 8 --pipeline-layout Et*14|(t*14|)*2t*14L --json",
                    "step_time_s"),
             even_s);
    assert_above(figure(MIXTRAL
                        "--tp 2 --pp 4 --ep 8 --pipeline-layout Et*20|(t*12|)*2t*12L --json",
                        "step_time_s"),
                 1.1 * even_s);
    static const char *const bad[] = {"Et*14|(t*14|)*2t*13L",  "Et*56L", "E|t*56|t|L", "Et*", "(t",
                                      "Et*14|(t*14|)*2t*14L)", "x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[256];
        snprintf(line, sizeof line, MIXTRAL "--tp 2 --pp 4 --ep 8 --pipeline-layout %s", bad[i]);
        cli_result r = cli_run(line, NULL);
        assert_int_equal(r.code, 2);
        cli_free(&r);
    }
    double all_s = figure(MIXTRAL "--tp 2 --pp 4 --ep 8 --recompute full --json", "step_time_s");
    double some_s = figure(
        MIXTRAL "--tp 2 --pp 4 --ep 8 --recompute full --recompute-layers 5 --json", "step_time_s");
    assert_above(some_s, even_s);
    assert_below(some_s, all_s);
}

/* Of a GPU that its owner has capped. */
static cli_result under_cap(const char *command, int power_w) {
    char path[] = "/tmp/moefold-power-XXXXXX", line[256];
    FILE *f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    fprintf(f,
            "{\"extends\": \"h200\", \"name\": \"capped\", "
            "\"gpu\": {\"power_w\": {\"value\": %d, \"source\": \"test\"}}}\n",
            power_w);
    fclose(f);
    snprintf(line, sizeof line,
             "%s --model mixtral-8x22b --gpus 32 --pp 4 --ep 8 --global-batch 32 --seq 4096 "
             "--json --cluster %s",
             command, path);
    cli_result r = cli_json(line);
    remove(path);
    return r;
}

static double recovered_s(const mf_json_value *o) {
    const mf_json_value *remedies = cli_member(o, "remedies");
    for (size_t i = 0; i < mf_json_size(remedies); i++) {
        const mf_json_value *x = mf_json_at(remedies, i);
        const char *what = NULL;
        assert_ok(mf_json_string(cli_member(x, "what"), &what, NULL));
        if (strstr(what, "a power cap that holds on average") != NULL) {
            return cli_number(x, "step_time_s");
        }
    }
    return 0;
}

/* Runs of several H200 as they were measured (docs/RUNS2.md, docs/RUNS4.md): one waits for
 * collectives so often that its clock hardly falls, the next one less, stages of the third wait for
 * one another, and the last gathers its parameters beside what it computes. */
static void clock_and_power_beside_waits_are_as_measured(void **state) {
    (void)state;
    static const struct {
        const char *job;
        double MHz, W, near_W;
    } seen[] = {
        {"--gpus 2 --model olmoe-1b-7b --set num_hidden_layers=8 --tp 2 --ep 2 --global-batch 4",
         1946, 643, 0.045},
        {"--gpus 4 --model mixtral-8x7b --set num_hidden_layers=2 --tp 2 --ep 4 --global-batch 8",
         1589, 691, 0.045},
        {"--gpus 2 --model mixtral-8x7b --set num_hidden_layers=2 --pp 2 --global-batch 8", 1651,
         666, 0.09},
        {"--gpus 4 --model llama3-8b --set num_hidden_layers=6 --zero 3 --global-batch 8", 1532,
         693, 0.045},
    };
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
        char line[320];
        snprintf(line, sizeof line,
                 "simulate %s --cluster h200 --micro-batch 1 --seq 4096 --cuda-graph step --json",
                 seen[i].job);
        cli_result r = cli_json(line);
        const mf_json_value *o = mf_json_root(r.json);
        assert_close(cli_number(o, "clock_MHz") / seen[i].MHz, 1, 0.025);
        assert_close(cli_number(o, "power_W") / seen[i].W, 1, seen[i].near_W);
        cli_free(&r);
    }
}

static void an_owners_cap_slows_steps_and_less_so_if_it_holds_on_average(void **state) {
    (void)state;
    cli_result low = under_cap("simulate", 450), none = under_cap("simulate", 2000);
    cli_result usual = under_cap("explain", 700);
    const mf_json_value *o = mf_json_root(usual.json);
    const double usual_s = cli_number(o, "step_time_s");
    const double none_s = cli_number(mf_json_root(none.json), "step_time_s");
    assert_above(cli_number(mf_json_root(low.json), "step_time_s"), 1.2 * usual_s);
    assert_below(cli_number(mf_json_root(low.json), "power_W"), 450);
    assert_below(cli_number(o, "power_W"), 700);
    assert_above(usual_s, 1.05 * none_s); /* which nothing slows down */
    assert_at_least(recovered_s(o), none_s * (1 - 1e-9));
    assert_below(recovered_s(o), usual_s);
    cli_free(&low);
    cli_free(&none);
    cli_free(&usual);
}

/* A run on GPUs at their power cap hears of it from `compare`, as a layout does from `explain`. */
static void compare_names_the_remedy_of_a_power_cap(void **state) {
    (void)state;
    char folder[] = "/tmp/moefold-run-XXXXXX", path[96], line[512], print[20];
    mf_model m;
    assert_non_null(mkdtemp(folder));
    snprintf(line, sizeof line,
             "simulate --model mixtral-8x22b --gpus 32 --pp 4 --ep 8 --global-batch 32 --seq 4096 "
             "--json --cluster h200 --out %s/plan.json",
             folder);
    cli_result r = cli_json(line);
    assert_ok(mf_model_load("mixtral-8x22b", &m, NULL));
    mf_checkpoint_fingerprint(&m, print);
    snprintf(path, sizeof path, "%s/op_times.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "{\"format\": \"moefold-op-times\", \"version\": 1, \"model_fingerprint\": \"%s\", "
            "\"aux_coef\": 0.02, \"aux_scope\": \"global\", \"ranks\": 32, \"steps\": 3, "
            "\"step_time_s\": %.9f, \"ops\": [{\"block\": 0, \"op\": 0, \"label\": \"embedding\", "
            "\"name\": \"embedding\", \"kind\": \"embedding_fwd\", \"pass\": \"forward\", "
            "\"count\": 12, "
            "\"mean_s\": 1e-3, \"min_s\": 1e-3, \"max_s\": 1e-3}], \"once\": []}\n",
            print, cli_number(mf_json_root(r.json), "step_time_s"));
    fclose(f);
    cli_free(&r);
    snprintf(line, sizeof line, "compare --run %s", folder);
    r = cli_run(line, NULL);
    assert_non_null(strstr(r.out, "\n  a power cap that holds on average over the\n"));
    cli_free(&r);
    /* its page, on which ops say where they are as words, below their names */
    snprintf(line, sizeof line, "compare --run %s --tolerance 9999%% -o %s/page", folder, folder);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    snprintf(line, sizeof line,
             "grep -q '>embedding<small class=\"words\">embedding, forward</small></td><td><data "
             "data-at=\"/compare/ops/0/predicted_s\"' %s/page/report.html",
             folder);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line, "rm -rf %s/page", folder);
    assert_int_equal(system(line), 0);
    snprintf(line, sizeof line, "compare --run %s --json", folder);
    r = cli_json(line);
    assert_above(recovered_s(mf_json_root(r.json)), 0);
    cli_free(&r);
    remove(path);
    snprintf(path, sizeof path, "%s/plan.json", folder);
    remove(path);
    remove(folder);
}

/* The sentence at the end says the figures of the JSON that it is a member of. */
static void assert_decides(const char *line, const char *best) {
    cli_result r = cli_json(line);
    const mf_json_value *root = mf_json_root(r.json), *step = root;
    char want[160];
    const char *said;
    assert_ok(mf_json_get_string(root, "verdict", &said, NULL));
    if (best != NULL) {
        step = cli_member(root, best);
        step = strcmp(best, "fastest") == 0 ? mf_json_at(cli_member(step, "plans"), 0) : step;
    }
    snprintf(want, sizeof want, "takes %s a step (%s to %s)",
             mf_show_time(cli_number(step, "step_time_s")).s,
             mf_show_time(cli_number(step, "step_time_low_s")).s,
             mf_show_time(cli_number(step, "step_time_high_s")).s);
    assert_non_null(strstr(said, want));
    const double headroom_B = cli_number(step, "headroom_B");
    snprintf(want, sizeof want, headroom_B >= 0 ? "leaves %s of memory free" : "lacks %s of memory",
             mf_show_bytes(fabs(headroom_B)).s);
    assert_non_null(strstr(said, want));
    if (best != NULL) {
        const mf_json_value *proof =
            strcmp(best, "best") == 0 ? cli_member(root, "search") : cli_member(root, "fastest");
        const mf_json_value *l = cli_member(step, "layout");
        snprintf(want, sizeof want, "no plan takes less than %s, gap %s",
                 mf_show_time(cli_number(proof, "lower_bound_s")).s,
                 mf_show_percent(cli_number(proof, "gap")).s);
        assert_non_null(strstr(said, want));
        assert_int_equal(strstr(said, "far from proven: ") != NULL, cli_number(proof, "gap") > 0.2);
        snprintf(want, sizeof want,
                 "(TP %.0f CP %.0f PP %.0f VPP %.0f EP %.0f ETP %.0f, micro-batch",
                 cli_number(l, "tp"), cli_number(l, "cp"), cli_number(l, "pp"),
                 cli_number(l, "vpp"), cli_number(l, "ep"), cli_number(l, "etp"));
        assert_non_null(strstr(said, want));
    }
    cli_free(&r);
}

static void a_verdict_says_the_figures_of_its_json(void **state) {
    (void)state;
#define OLMOE "--model olmoe-1b-7b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 --cp 1 "
    assert_decides("plan " OLMOE "--pp 1 --tp 1 --json", "best");
    assert_decides("plan --model qwen3-235b-a22b --cluster h100 --gpus 256 --global-batch 256 "
                   "--seq 4096 --effort 1 --json",
                   "best"); /* a wide gap */
    assert_decides("fit " OLMOE "--pp 1 --tp 1 --effort 1 --json", "fastest");
    assert_decides("simulate " OLMOE "--ep 8 --json", NULL);
    assert_decides("simulate " OLMOE "--ep 8 --reserve 90% --json", NULL);
    assert_decides("explain " OLMOE "--ep 8 --json", NULL);
    assert_decides("explain " OLMOE "--ep 8 --reserve 70% --json", NULL);
}

/* What explain says to run it with can be typed, and takes what it says. */
static void explain_names_an_option_that_does_it(void **state) {
    (void)state;
    static const char *const jobs[] = {OLMOE "--ep 8 --json",
                                       OLMOE "--ep 8 --reserve 70% --json"}; /* does not fit */
    for (size_t i = 0; i < 2; i++) {
        char line[512], option[240], want[320];
        const char *said;
        snprintf(line, sizeof line, "explain %s", jobs[i]);
        cli_result r = cli_json(line);
        assert_ok(mf_json_get_string(mf_json_root(r.json), "verdict", &said, NULL));
        const char *at = strstr(said, "; run it with ");
        assert_non_null(at);
        at += strlen("; run it with ");
        const char *end = strstr(at, ": that ");
        assert_non_null(end);
        snprintf(option, sizeof option, "%.*s", (int)(end - at), at);
        snprintf(line, sizeof line, "simulate %s %s", jobs[i], option);
        cli_result q = cli_json(line);
        assert_true(cli_bool(mf_json_root(q.json), "fits"));
        snprintf(want, sizeof want, "%stakes %s", i == 1 ? ": that fits and " : ": that ",
                 mf_show_time(cli_number(mf_json_root(q.json), "step_time_s")).s);
        assert_non_null(strstr(end, want));
        cli_free(&q);
        cli_free(&r);
    }
}

/* Options beside a plan change what they name; layers recompute what they did there, on the stages
 * where they stood if these are the same. What comes out can be saved, and is a plan. */
static void options_beside_a_plan_change_its_layout(void **state) {
    (void)state;
#define WHOLE "--model mixtral-8x7b --cluster h100 --seq 4096 "
#define SPLIT WHOLE "--pp 4 --pipeline-layout Et*6|t*8|t*9|t*9L "
#define SIZE "--gpus 32 --global-batch 64 "
#define FEW "--recompute layer --recompute-layers 3 "
    static const struct {
        const char *change, *same;
    } cases[] = {
        {"--ep 4", SPLIT SIZE FEW "--tp 2 --ep 4"},
        {"--ep 2 --zero 2 --dispatcher alltoall",
         SPLIT SIZE FEW "--tp 2 --ep 2 --zero 2 --dispatcher alltoall"},
        {"--recompute none", SPLIT SIZE "--tp 2 --ep 8"},
        {"--recompute norm,act", SPLIT SIZE "--tp 2 --ep 8 --recompute norm,act"},
        {"--gpus 64 --global-batch 256", SPLIT FEW "--tp 2 --ep 8 --gpus 64 --global-batch 256"},
        {"--tp 1 --cuda-graph partial --recompute none",
         SPLIT SIZE "--tp 1 --ep 8 --cuda-graph partial"},
        {"--recompute none --pp 2", WHOLE SIZE "--tp 2 --pp 2 --ep 8"},
        {"--recompute none --pp 2 --vpp 2", WHOLE SIZE "--tp 2 --pp 2 --vpp 2 --ep 8"},
    };
    char plan[] = "/tmp/mf_changed_XXXXXX", line[640];
    const int fd = mkstemp(plan);
    assert_true(fd >= 0);
    close(fd);
    snprintf(line, sizeof line, "simulate " SPLIT SIZE FEW "--tp 2 --ep 8 --json --out %s", plan);
    cli_result r = cli_json(line);
    cli_free(&r);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(line, sizeof line, "simulate %s --json", cases[i].same);
        cli_result whole = cli_json(line);
        snprintf(line, sizeof line, "simulate --plan %s %s --json --out %s.new", plan,
                 cases[i].change, plan);
        r = cli_json(line);
        snprintf(line, sizeof line, "simulate --plan %s.new --json", plan);
        cli_result saved = cli_json(line);
        const double step_s = cli_number(mf_json_root(whole.json), "step_time_s");
        const double peak_B = cli_number(mf_json_root(whole.json), "peak_memory_B");
        close_to(cli_number(mf_json_root(r.json), "step_time_s"), step_s);
        close_to(cli_number(mf_json_root(r.json), "peak_memory_B"), peak_B);
        close_to(cli_number(mf_json_root(saved.json), "step_time_s"), step_s);
        cli_free(&saved);
        cli_free(&r);
        cli_free(&whole);
    }
    snprintf(line, sizeof line, "explain --plan %s --ep 4", plan);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "EP 4 "));
    cli_free(&r);
    snprintf(line, sizeof line, "simulate --plan %s --ep 3", plan);
    r = cli_run(line, NULL);
    assert_int_equal(r.code, 2);
    assert_non_null(strstr(r.err, ", changed: "));
    cli_free(&r);
    unlink(plan);
    snprintf(line, sizeof line, "%s.new", plan);
    unlink(line);
}

/* Where the time goes is said in the unit in which the step time is. */
static void explain_says_short_steps_in_milliseconds(void **state) {
    (void)state;
    static const char *const batch[] = {"--global-batch 16 ", "--global-batch 256 "};
    for (int i = 0; i < 2; i++) {
        char line[256], said[64];
        snprintf(line, sizeof line,
                 "explain --model olmoe-1b-7b --cluster h100 --gpus 8 --seq 4096 --ep 8 %s--json",
                 batch[i]);
        cli_result r = cli_json(line);
        const mf_json_value *root = mf_json_root(r.json);
        const double step_s = cli_number(root, "step_time_s");
        assert_int_equal(step_s < 1, i == 0);
        snprintf(said, sizeof said, "of %.4g %s a step", step_s * (i == 0 ? 1e3 : 1),
                 i == 0 ? "ms" : "s");
        assert_non_null(strstr(r.out, said));
        cli_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(explain_says_short_steps_in_milliseconds),
        cmocka_unit_test(the_parts_add_up),
        cmocka_unit_test(a_layout_over_memory_is_simulated_and_said_not_to_fit),
        cmocka_unit_test(fp8_is_held_against_the_fp8_peak),
        cmocka_unit_test(uneven_routing_costs_time),
        cmocka_unit_test(routing_beyond_the_token_headroom_is_named),
        cmocka_unit_test(a_pending_interrupt_ends_with_130),
        cmocka_unit_test(options_left_out_of_another_programs_job_widen_the_band),
        cmocka_unit_test(unsaid_graphs_are_the_same_in_a_search),
        cmocka_unit_test(a_published_recipe_of_qwen3_235b_comes_out),
        cmocka_unit_test(padded_experts_need_no_counts),
        cmocka_unit_test(traits_change_the_step_time),
        cmocka_unit_test(a_pipeline_layout_places_the_layers_that_it_writes),
        cmocka_unit_test(clock_and_power_beside_waits_are_as_measured),
        cmocka_unit_test(a_verdict_says_the_figures_of_its_json),
        cmocka_unit_test(explain_names_an_option_that_does_it),
        cmocka_unit_test(options_beside_a_plan_change_its_layout),
        cmocka_unit_test(an_owners_cap_slows_steps_and_less_so_if_it_holds_on_average),
        cmocka_unit_test(compare_names_the_remedy_of_a_power_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
