/* Copies to host memory: `plan` leaves them out unless it is asked, says what they would gain in
 * the layout that it chose, and what of its step rests on them where it was asked. */
#include "tests/support/cli_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOB                                                                                        \
    "plan --model qwen3-30b-a3b --cluster h200 --gpus 4 --global-batch 64 --seq 8192 --threads 2 " \
    "--top 1 --cp 1 --etp 1 --effort 1 --json "

static double step_of(const cli_result *r) {
    return cli_number(cli_member(mf_json_root(r->json), "best"), "step_time_s");
}

static const mf_json_value *copies_of(const cli_result *r) {
    return cli_member(mf_json_root(r->json), "host_copies");
}

static void a_plan_says_what_copies_would_gain(void **state) {
    (void)state;
    cli_result without = cli_json(JOB), with = cli_json(JOB "--search-offload");
    const double gained_s = cli_number(copies_of(&without), "step_time_with_s");
    assert_false(cli_bool(copies_of(&without), "used"));
    assert_below(gained_s, 0.995 * step_of(&without));
    /* The whole search with copies has that layout, too. */
    assert_true(cli_bool(copies_of(&with), "used"));
    assert_at_most(step_of(&with), gained_s * (1 + 1e-12));
    assert_close(cli_number(copies_of(&with), "step_time_without_s"), step_of(&without), 0);
    cli_free(&without);
    cli_free(&with);
}

/* Nothing is said of them where the user holds what is offloaded. */
static void pinned_offload_is_not_looked_into(void **state) {
    (void)state;
    cli_result r = cli_json(JOB "--offload none");
    assert_int_equal(mf_json_value_type(cli_member(copies_of(&r), "step_time_with_s")),
                     MF_JSON_NULL);
    cli_free(&r);
}

/* OLMoE's states alone are more than an H100 holds. */
static void optimizer_states_go_to_the_host_where_nothing_fits(void **state) {
    (void)state;
#define ALONE "plan --model olmoe-1b-7b --cluster h100 --gpus 1 --global-batch 8 --seq 4096 --json "
    cli_result r = cli_json(ALONE), held;
    assert_true(cli_bool(copies_of(&r), "optimizer"));
    assert_true(cli_bool(copies_of(&r), "used"));
    assert_false(cli_bool(copies_of(&r), "fits_without"));
    cli_free(&r);
    held = cli_run(ALONE "--offload-optimizer 0", NULL);
    assert_int_equal(held.code, 3);
    assert_non_null(strstr(held.err, "nothing fits: the leanest layout"));
    cli_free(&held);
}

/* --- every command that shows such a plan says what was not measured ----------------------------
 */

#define OLMOE " --model olmoe-1b-7b --global-batch 16 --seq 4096 --offload-optimizer 1"
static const char unmeasured[] = "GPUs of a host copy at once";

/* Folds the lines that a text was wrapped into. */
static bool says(const char *text, const char *words) {
    char *flat = strdup(text);
    size_t n = 0;
    for (const char *at = text; *at != '\0'; at++) {
        const bool blank = *at == ' ' || *at == '\n';
        if (!blank || (n > 0 && flat[n - 1] != ' ')) {
            flat[n++] = blank ? ' ' : *at;
        }
    }
    flat[n] = '\0';
    const bool found = strstr(flat, words) != NULL;
    free(flat);
    return found;
}

static void assert_printed(const char *line, const cli_result *r, const char *words,
                           bool expected) {
    if (says(r->out, words) != expected) {
        fail_msg("%s: expected %s\"%s\" in\n%s", line, expected ? "" : "no ", words, r->out);
    }
}

static void assert_says(const char *line, const char *words, bool expected) {
    cli_result r = cli_run(line, NULL);
    assert_printed(line, &r, words, expected);
    cli_free(&r);
}

/* One GPU alone copies as it was measured; two of a host, or another kind of GPU, do not. */
static void simulate_and_explain_say_what_was_measured_of_copies(void **state) {
    (void)state;
    static const struct {
        const char *on, *words;
        bool measured;
        int64_t gpus;
    } cases[] = {
        {" --cluster h200 --gpus 1", "measured on one h200", true, 1},
        {" --cluster h200 --gpus 2", "how fast 2 GPUs of a host copy at once", false, 2},
        {" --cluster h200 --gpus 16 --ep 8", "how fast 8 GPUs of a host copy at once", false, 8},
        {" --cluster b200 --gpus 1", "how fast a b200 copies was not measured", false, 1},
    };
    static const char *const commands[] = {"simulate", "explain"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t k = 0; k < (i < 2 ? 2 : 1); k++) {
            char line[256];
            snprintf(line, sizeof line, "%s" OLMOE "%s", commands[k], cases[i].on);
            assert_says(line, cases[i].words, true);
            assert_says(line, "measured on one", cases[i].measured);
            snprintf(line, sizeof line, "%s" OLMOE "%s --json", commands[k], cases[i].on);
            cli_result r = cli_json(line);
            assert_true(cli_bool(copies_of(&r), "used"));
            assert_int_equal(cli_bool(copies_of(&r), "measured"), cases[i].measured);
            assert_int_equal((int64_t)cli_number(copies_of(&r), "gpus_of_a_host"), cases[i].gpus);
            cli_free(&r);
        }
    }
    assert_says("simulate --model olmoe-1b-7b --global-batch 16 --seq 4096 --cluster h200 --gpus 8",
                "host copies", false);
}

/* Bytes of all states there and back, at the price of a copy. */
static void copies_take_what_their_bytes_cost(void **state) {
    (void)state;
    cli_result r = cli_json("simulate" OLMOE " --cluster h200 --gpus 1 --json");
    const double bytes = 12 * cli_number(cli_member(mf_json_root(r.json), "model"), "parameters");
    const double rate_Bps = 2 * bytes / cli_number(copies_of(&r), "copies_s");
    assert_below(50e9, rate_Bps);
    assert_below(rate_Bps, 60e9);
    cli_free(&r);
}

/* What the GPUs of a host share of its memory, where the cluster says it. */
static void what_is_shared_of_the_hosts_memory_is_said(void **state) {
    (void)state;
    char path[] = "/tmp/moefold-cluster-XXXXXX", line[256];
    const int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    assert_non_null(f);
    fputs("{\"extends\": \"h200\", \"host_shared_GBps\": null}", f);
    fclose(f);
    assert_says("simulate" OLMOE " --cluster h200 --gpus 8",
                "priced as sharing 450.0 GB/s of its memory", true);
    assert_says("simulate" OLMOE " --cluster h200 --gpus 1", "of its memory", false);
    snprintf(line, sizeof line, "simulate" OLMOE " --cluster %s --gpus 8", path);
    assert_says(line, "what they share of its memory is not known", true);
    cli_result shared = cli_json("simulate" OLMOE " --cluster h200 --gpus 8 --json");
    snprintf(line, sizeof line, "simulate" OLMOE " --cluster %s --gpus 8 --json", path);
    cli_result alone = cli_json(line);
    assert_close(cli_number(copies_of(&shared), "host_shared_Bps"), 450e9, 1);
    assert_int_equal(mf_json_value_type(cli_member(copies_of(&alone), "host_shared_Bps")),
                     MF_JSON_NULL);
    assert_above(cli_number(mf_json_root(shared.json), "step_time_s"),
                 cli_number(mf_json_root(alone.json), "step_time_s"));
    cli_free(&shared);
    cli_free(&alone);
    unlink(path);
}

static void a_plan_file_keeps_its_copies(void **state) {
    (void)state;
    char path[] = "/tmp/moefold-copies-XXXXXX", line[256];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(line, sizeof line, "simulate" OLMOE " --cluster h200 --gpus 8 --out %s", path);
    assert_says(line, unmeasured, true);
    snprintf(line, sizeof line, "simulate --plan %s", path);
    assert_says(line, unmeasured, true);
    snprintf(line, sizeof line, "explain --plan %s", path);
    assert_says(line, unmeasured, true);
    unlink(path);
}

static void capacity_says_which_plans_copy_and_whose_joules_it_takes(void **state) {
    (void)state;
#define CELLS                                                                                      \
    "capacity --models qwen3-30b-a3b --global-batch 64 --seq 8192 --tokens 1B --search-offload "   \
    "--sizes 4 --threads 2 --effort 1 --clusters "
    cli_result r = cli_run(CELLS "h200", NULL);
    assert_printed(CELLS "h200", &r, "host copies 1 plan rests, with up to", true);
    assert_printed(CELLS "h200", &r, unmeasured, true);
    assert_printed(CELLS "h200", &r, "scaled from an H200", false);
    cli_free(&r);
    /* Two clusters, of a model and a layout that take no search. */
#define TWO                                                                                        \
    "capacity --models olmoe-1b-7b --global-batch 16 --seq 4096 --offload-optimizer 1 "            \
    "--tokens 1B --sizes 4 --pp 1 --cp 1 --tp 1 --etp 1 --ep 4 --micro-batch 1 --effort 1 "        \
    "--clusters h200,b200"
    assert_says(TWO, "joules of a step's ops (b200: scaled from an H200)", true);
    r = cli_json(TWO " --json");
    const mf_json_value *cells = cli_member(mf_json_root(r.json), "cells");
    static const char *const energies[] = {"h200", "h200"};
    for (size_t i = 0; i < 2; i++) {
        const mf_json_value *cell = mf_json_at(cells, i);
        const char *of = NULL;
        assert_int_equal(mf_json_get_string(cell, "energies_of", &of, NULL), MF_OK);
        assert_string_equal(of, energies[i]);
        assert_false(cli_bool(cli_member(cell, "host_copies"), "measured"));
    }
    cli_free(&r);
}

/* Remedies that put states on the host. */
static void fit_says_it_of_remedies(void **state) {
    (void)state;
    assert_says("fit --model olmoe-1b-7b --cluster h100 --gpus 2 --global-batch 8 --seq 4096 "
                "--reserve 0.5 --effort 1",
                unmeasured, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_says_what_copies_would_gain),
        cmocka_unit_test(optimizer_states_go_to_the_host_where_nothing_fits),
        cmocka_unit_test(pinned_offload_is_not_looked_into),
        cmocka_unit_test(simulate_and_explain_say_what_was_measured_of_copies),
        cmocka_unit_test(copies_take_what_their_bytes_cost),
        cmocka_unit_test(what_is_shared_of_the_hosts_memory_is_said),
        cmocka_unit_test(a_plan_file_keeps_its_copies),
        cmocka_unit_test(capacity_says_which_plans_copy_and_whose_joules_it_takes),
        cmocka_unit_test(fit_says_it_of_remedies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
