/* Text of `plan` and `simulate`: rows of plans can be told apart, power and energy say of what they
 * are. */
#include "core/base/file.h"
#include "report/text/show.h"
#include "tests/support/cli_test.h"

#include <stdlib.h>
#include <sys/resource.h>

#define MIXTRAL "--model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 "

/* Of this process and those that it waited for. */
static double cpu_s(void) {
    struct rusage own, others;
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &others);
    return (double)(own.ru_utime.tv_sec + others.ru_utime.tv_sec) +
           1e-6 * (double)(own.ru_utime.tv_usec + others.ru_utime.tv_usec);
}

enum { PLANS = 6, TEXT = 160 };

/* The degrees and choices of a row: all behind its memory. */
static void read_rows(const char *out, char (*row)[TEXT]) {
    const char *at = strstr(out, "\nplans (");
    assert_non_null(at);
    for (int i = 0; i < PLANS; i++) {
        char begin[24];
        snprintf(begin, sizeof begin, "\n  %2d  ", i + 1);
        at = strstr(at, begin);
        assert_non_null(at);
        const char *share = strstr(at, " %  ");
        assert_non_null(share);
        snprintf(row[i], TEXT, "%.*s", (int)strcspn(share, "\n"), share);
    }
}

/* Of plans with the same degrees a line says what the later one does otherwise than the first; a
 * plan that two searches met is there once, or there would be nothing to say. */
static void plans_that_look_alike_say_what_differs(void **state) {
    (void)state;
    cli_result r = cli_run("plan " MIXTRAL
                           "--runs-on megatron --software moefold --pp 2 --ep 4 --top 6 --effort 4",
                           NULL);
    char row[PLANS][TEXT], says[PLANS][TEXT] = {""};
    int alike = 0;
    assert_int_equal(r.code, 0);
    read_rows(r.out, row);
    for (int i = 1; i < PLANS; i++) {
        int as = 0;
        while (strcmp(row[as], row[i]) != 0) {
            as++;
        }
        if (as == i) {
            continue;
        }
        char begin[64];
        snprintf(begin, sizeof begin, "plan %d is plan %d, but ", i + 1, as + 1);
        const char *at = strstr(r.out, begin);
        if (at == NULL) {
            fail_msg("no \"%s\":\n%s", begin, r.out);
            return;
        }
        snprintf(says[i], TEXT, "%.*s", (int)strcspn(at + strlen(begin), "\n"), at + strlen(begin));
        assert_memory_equal(says[i], "recompute ", 10);
        for (int k = 0; k < i; k++) {
            assert_true(strcmp(row[k], row[i]) != 0 || strcmp(says[k], says[i]) != 0);
        }
        alike++;
    }
    assert_above(alike, 0); /* a case that says something */
    cli_free(&r);
}

/* A plan that Megatron can express is one of those that nothing limits, too, however short the
 * searches were; the page says so with the numbers of JSON. */
static void a_limit_never_makes_a_plan_faster(void **state) {
    (void)state;
    static const char *const jobs[] = {
        MIXTRAL "--effort 1", MIXTRAL "--effort 3",
        "--model qwen3-30b-a3b --cluster h100 --gpus 16 --global-batch 64 --seq 4096 --effort 1",
        "--model llama3-8b --cluster h200 --gpus 8 --global-batch 64 --seq 4096 --effort 1"};
    char line[512], dir[] = "/tmp/moefold-limit-XXXXXX", path[64], *page = NULL;
    size_t length = 0;
    int costs = 0;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        snprintf(line, sizeof line, "plan %s --runs-on megatron --json -o %s", jobs[i], dir);
        cli_result r = cli_json(line);
        const mf_json_value *root = mf_json_root(r.json);
        const double best_s = cli_number(cli_member(root, "best"), "step_time_s");
        const double free_s = cli_number(cli_member(root, "search"), "unlimited_step_time_s");
        assert_at_most(free_s, best_s);
        assert_above(free_s, 0.2 * best_s);
        assert_int_equal(strstr(cli_text(root, "verdict"), "; the limits of Megatron-LM cost ") !=
                             NULL,
                         free_s < best_s);
        costs += free_s < best_s;
        snprintf(path, sizeof path, "%s/report.html", dir);
        assert_ok(mf_file_load(path, 64 << 20, &page, &length, NULL));
        assert_non_null(strstr(page, "data-at=\"/search/unlimited_step_time_s\""));
        assert_non_null(strstr(page, free_s < best_s
                                         ? "found; this plan runs on megatron"
                                         : "no faster plan was found than for megatron"));
        free(page);
        cli_free(&r);
    }
    assert_above(costs, 0); /* a case that says something */
    snprintf(line, sizeof line, "rm -rf %s", dir);
    assert_int_equal(system(line), 0);
}

/* What a target's families of choices hold in turn was not pinned by anybody. */
static void only_what_was_given_is_said_to_be_pinned(void **state) {
    (void)state;
    cli_result r =
        cli_json("plan --model qwen3-30b-a3b --cluster h100 --gpus 32 --global-batch 256 "
                 "--seq 4096 --runs-on megatron --ep 8 --effort 1 --json");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, ", ep (pinned)"));
    assert_null(strstr(r.out, ", recompute (pinned)"));
    cli_free(&r);
}

/* Power is one GPU's; energy that of one GPU and of all. */
static void power_and_energy_say_of_what_they_are(void **state) {
    (void)state;
#define STEP "simulate " MIXTRAL "--ep 8 "
    cli_result r = cli_run(STEP, NULL), j = cli_json(STEP "--json");
    const mf_json_value *o = mf_json_root(j.json);
    const double energy_J = cli_number(o, "energy_J_per_gpu");
    char line[192];
    snprintf(line, sizeof line,
             "\npower       %.0f W a GPU (mean), %.0f MHz, scaled from H200\n"
             "energy      %s a step and GPU, %s on 16 GPUs\n",
             cli_number(o, "power_W"), cli_number(o, "clock_MHz"), mf_show_rate(energy_J, "J").s,
             mf_show_rate(16 * energy_J, "J").s);
    if (strstr(r.out, line) == NULL) {
        fail_msg("no%sin\n%s", line, r.out);
    }
    cli_free(&r);
    cli_free(&j);
}

/* What nothing fits without is no secret of the table of host copies. */
static void the_verdict_says_when_optimizer_states_went_to_the_host(void **state) {
    (void)state;
#define SMALL                                                                                      \
    "plan --model olmoe-1b-7b --cluster h100 --global-batch 4 --seq 4096 --effort 1 --json "
    static const char without[] = "; no plan fits without optimizer states in host memory; ";
    cli_result r = cli_json(SMALL "--gpus 1");
    const mf_json_value *best = cli_member(mf_json_root(r.json), "best");
    assert_close(cli_number(cli_member(best, "layout"), "offload_optimizer"), 1, 0);
    assert_non_null(strstr(cli_text(mf_json_root(r.json), "verdict"), without));
    cli_free(&r);
    r = cli_json(SMALL "--gpus 4 --offload-optimizer 1"); /* asked for */
    assert_null(strstr(cli_text(mf_json_root(r.json), "verdict"), "fits without"));
    cli_free(&r);
}

/* Where parameters of all layers together are too many, bounds say so although layers of the
 * smallest kind would fit everywhere: else the search would go on for minutes. */
static void what_fits_nowhere_is_told_soon(void **state) {
    (void)state;
    const double start_s = cpu_s();
    cli_result r = cli_run("plan --model llama4-maverick --cluster h100 --gpus 64 --global-batch "
                           "256 --seq 4096 --offload-optimizer 0 --tp 1 --cp 1 --threads 1",
                           NULL);
    assert_int_equal(r.code, 3);
    assert_non_null(strstr(r.err, "nothing fits: the leanest layout"));
    const double took_s = cpu_s() - start_s;
    printf("  %.2f s of CPU time\n", took_s);
    assert_below(took_s, getenv("MF_SANITIZED") != NULL ? 120.0 : 15.0);
    cli_free(&r);
}

/* A target has up to 14 families of plans, which need a bound each: with little effort one search
 * bounds several. Every plan keeps a bound below it. */
static void a_limited_search_keeps_to_its_effort(void **state) {
    (void)state;
    static const char *const jobs[] = {
        "--model deepseek-v3 --gpus 1024 --global-batch 8192",
        "--model mixtral-8x22b --gpus 128 --global-batch 256",
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        char line[256];
        double counted = 0;
        snprintf(line, sizeof line,
                 "plan %s --cluster h100 --seq 4096 --runs-on megatron --effort 1 --json", jobs[i]);
        cli_result r = cli_json(line);
        const mf_json_value *search = cli_member(mf_json_root(r.json), "search");
        assert_int_equal(sscanf(cli_text(search, "ended"), "its effort of %lf", &counted), 1);
        assert_at_most(counted, 1.5);
        assert_above(cli_number(search, "lower_bound_s"), 0);
        assert_above(cli_number(search, "gap"), 0);
        cli_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_nowhere_is_told_soon),
        cmocka_unit_test(plans_that_look_alike_say_what_differs),
        cmocka_unit_test(a_limit_never_makes_a_plan_faster),
        cmocka_unit_test(a_limited_search_keeps_to_its_effort),
        cmocka_unit_test(only_what_was_given_is_said_to_be_pinned),
        cmocka_unit_test(power_and_energy_say_of_what_they_are),
        cmocka_unit_test(the_verdict_says_when_optimizer_states_went_to_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
