/* Corrections that `compare --log --correct` keeps: found again for their software on their cluster
 * alone, named, and left out when asked to. */
#include "tests/support/cli_test.h"
#include "tests/support/sampled.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define SIZES "--gpus 16 --global-batch 64 --seq 4096 "
#define QWEN "--model qwen3-30b-a3b --cluster h100 " SIZES
#define LAYOUT "--pp 2 --ep 8 "

static char dir[64], kept[128];

static void path_of(const char *name, char out[256]) {
    snprintf(out, 256, "%s/%s", dir, name);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* The one file that is kept; "" = none. */
static void kept_file(char out[512]) {
    DIR *d = opendir(kept);
    out[0] = '\0';
    for (struct dirent *x; d != NULL && (x = readdir(d)) != NULL;) {
        if (x->d_name[0] != '.') {
            assert_string_equal(out, ""); /* a newer one takes the place of the older */
            snprintf(out, 512, "%s/%s", kept, x->d_name);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}

static double step_s(const char *line) {
    char whole[512];
    snprintf(whole, sizeof whole, "%s --json", line);
    cli_result r = cli_json(whole);
    const double s = cli_number(mf_json_root(r.json), "step_time_s");
    cli_free(&r);
    return s;
}

/* What is said, with the exit code in front. */
static char *said_by(const char *line) {
    cli_result r = cli_run(line, NULL);
    char *all = malloc(strlen(r.out) + strlen(r.err) + 16);
    assert_non_null(all);
    sprintf(all, "%d\n%s%s", r.code, r.out, r.err);
    cli_free(&r);
    return all;
}

static void assert_says(const char *line, const char *text, bool says) {
    char *all = said_by(line);
    if ((strstr(all, text) != NULL) != says) {
        fail_msg("%s: \"%s\" %s:\n%s", line, text, says ? "is missing" : "stands there", all);
    }
    free(all);
}

/* A log of a step that takes so long. */
static void compare(double measured_s, const char *more, int code) {
    char log[256], plan[256], text[256], line[1024];
    path_of("train.log", log);
    path_of("plan.json", plan);
    snprintf(text, sizeof text,
             " iteration 1/ 9 | elapsed time per iteration (ms): 9000.0 |\n"
             " iteration 2/ 9 | elapsed time per iteration (ms): %.6f |\n"
             " iteration 3/ 9 | elapsed time per iteration (ms): %.6f |\n",
             1e3 * measured_s, 1e3 * measured_s);
    write_text(log, text);
    snprintf(line, sizeof line, "compare --plan %s --log %s --tolerance 99%% %s", plan, log, more);
    cli_result r = cli_run(line, NULL);
    if (r.code != code) {
        fail_msg("%s: exit %d\n%s%s", line, r.code, r.out, r.err);
    }
    cli_free(&r);
}

static double plain_s; /* of the plan, without any correction */

static int set_up(void **state) {
    (void)state;
    char line[512], name[] = "/tmp/moefold-corrections-XXXXXX";
    assert_non_null(mkdtemp(name));
    snprintf(dir, sizeof dir, "%s", name);
    snprintf(kept, sizeof kept, "%s/some/where", dir);
    setenv("MOEFOLD_CORRECTIONS", kept, 1);
    setenv("SOURCE_DATE_EPOCH", "1795996800", 1);
    snprintf(line, sizeof line,
             "simulate " QWEN LAYOUT "--software megatron-26.06 --out %s/plan.json", dir);
    plain_s = step_s(line);
    return 0;
}

static void forget(void) {
    char file[512];
    kept_file(file);
    if (file[0] != '\0') {
        remove(file);
    }
}

static int clean_up(void **state) {
    (void)state;
    char path[256];
    forget();
    remove(kept);
    snprintf(path, sizeof path, "%s/some", dir);
    remove(path);
    static const char *const files[] = {"train.log", "plan.json", "other.json", "ours.json"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        path_of(files[i], path);
        remove(path);
    }
    return remove(dir);
}

/* What a file of the report folder holds, owned; the file is removed. */
static char *report_file(const char *name) {
    char path[256], *text = calloc(1, 1 << 22);
    assert_non_null(text);
    snprintf(path, sizeof path, "%s/report/%s", dir, name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, (1 << 22) - 1, f)] = '\0';
    fclose(f);
    remove(path);
    return text;
}

/* The figure of a place stands on the page as report.json has it; *out is it. */
static void assert_on_page(const char *page, const char *place, const char *json, double *out) {
    char words[128];
    *out = 0;
    snprintf(words, sizeof words, "data-at=\"%s\" value=\"", place);
    const char *at = strstr(page, words), *key = strrchr(place, '/') + 1;
    if (at == NULL) {
        fail_msg("no %s on the page", place);
        return;
    }
    *out = strtod(at + strlen(words), NULL);
    snprintf(words, sizeof words, "\"%s\": %.17g", key, *out);
    if (strstr(json, words) == NULL) {
        fail_msg("%s: no %s in report.json", place, words);
    }
}

/* A page of a comparison has the factor, and what became of it; pages of predictions that rest on
 * it have it, too. */
static void pages_have_the_factor(void **state) {
    (void)state;
    static const char *const rest[] = {"inputs.json", "plan.json", "trace.json", "compared.csv",
                                       "candidates.csv"};
    char folder[256], line[512], more[320];
    double factor;
    path_of("report", folder);
    for (int kept_too = 0; kept_too < 2; kept_too++) {
        snprintf(more, sizeof more, "%s -o %s", kept_too ? "--correct" : "", folder);
        compare(1.25 * plain_s, more, 0);
        char *page = report_file("report.html"), *json = report_file("report.json");
        assert_on_page(page, "/compare/step_factor", json, &factor);
        assert_close(factor, 1.25, 2e-3);
        assert_true((strstr(page, "; kept, predictions on h100 use it") != NULL) == kept_too);
        free(page);
        free(json);
    }
    snprintf(line, sizeof line, "simulate " QWEN LAYOUT "--software megatron-26.06 -o %s", folder);
    assert_says(line, "\ncorrected   1.250 times", true);
    char *page = report_file("report.html"), *json = report_file("report.json");
    assert_on_page(page, "/step/correction/factor", json, &factor);
    assert_close(factor, 1.25, 2e-3);
    free(page);
    free(json);
    snprintf(line, sizeof line,
             "capacity --models qwen3-30b-a3b --clusters h100 --sizes 16 --global-batch 64 --seq "
             "4096 --pp 2 --ep 8 --tp 1 --cp 1 --effort 1 --runs-on megatron -o %s",
             folder);
    assert_says(line, "\ncorrected   h100: 1.250 times", true);
    page = report_file("report.html");
    json = report_file("report.json");
    assert_on_page(page, "/capacity/cells/0/correction/factor", json, &factor);
    assert_close(factor, 1.25, 2e-3);
    free(page);
    free(json);
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        snprintf(line, sizeof line, "%s/%s", folder, rest[i]);
        remove(line);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* The measured step comes out, under any name of the profile, and goes with the option. */
static void a_correction_is_found_again_and_named(void **state) {
    (void)state;
    static const char simulate[] = "simulate " QWEN LAYOUT "--software megatron-26.07";
    static const char named[] = "\ncorrected   1.250 times the time of megatron-26.06, by ";
    char file[512];
    char *before = said_by(simulate);
    assert_null(strstr(before, "corrected "));
    compare(1.1 * plain_s, "", 0);
    kept_file(file);
    assert_string_equal(file, ""); /* which nobody asked for */
    compare(1.1 * plain_s, "--correct", 0);
    assert_close(step_s(simulate), 1.1 * plain_s, 2e-3 * plain_s);
    compare(1.25 * plain_s, "--correct", 0); /* without the one that is there */
    assert_close(step_s(simulate), 1.25 * plain_s, 2e-3 * plain_s);
    assert_says(simulate, named, true);
    assert_says(simulate, "/train.log on 2026-11-30 (--no-corrections)\n", true);
    assert_says("simulate " QWEN LAYOUT "--software megatron-26.07 --no-corrections", before, true);
    setenv("MOEFOLD_CORRECTIONS", "off", 1);
    assert_says(simulate, before, true);
    compare(1.1 * plain_s, "--correct", 2);
    setenv("MOEFOLD_CORRECTIONS", kept, 1);
    free(before);
}

/* A job that is faster than its prediction has one, too, as far as links and GPUs allow: then what
 * comes nearest is said, and nothing to keep is proposed. */
static void less_time_is_explained_to_the_limits_of_the_machine(void **state) {
    (void)state;
    static const double shares[] = {0.93, 0.8, 0.65};
    static const char simulate[] = "simulate " QWEN LAYOUT "--software megatron-26.06";
    char line[1024], log[256], plan[256];
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        compare(shares[i] * plain_s, "--correct", 0);
        assert_close(step_s(simulate), shares[i] * plain_s, 2e-3 * plain_s);
    }
    forget();
    path_of("train.log", log);
    path_of("plan.json", plan);
    compare(0.01 * plain_s, "", 4);
    snprintf(line, sizeof line, "compare --plan %s --log %s", plan, log);
    assert_says(line, "none explains it: with a tenth of the time of megatron-26.06 the step takes",
                true);
    assert_says(line, "--correct", false);
}

static void each_command_that_predicts_names_it(void **state) {
    (void)state;
    char plan[256], line[512];
    path_of("other.json", plan);
    compare(1.25 * plain_s, "--correct", 0);
    snprintf(line, sizeof line,
             "plan " QWEN "--runs-on megatron --pp 2 --ep 8 --tp 1 --cp 1 --effort 1 --out %s",
             plan);
    assert_says(line, "\ncorrected   1.250 times", true);
    if (!cases_sampled()) {
        assert_says("fit " QWEN "--runs-on bridge --effort 0", "\ncorrected   1.250 times", true);
        assert_says("explain " QWEN LAYOUT "--software megatron-26.06", "\ncorrected   1.250 ",
                    true);
        snprintf(line, sizeof line, "tune --plan %s --effort 1", plan);
        assert_says(line, "\ncorrected   1.250 times", true);
        assert_says(
            "capacity --models qwen3-30b-a3b --clusters h100,h200 --sizes 16 --global-batch 64 "
            "--seq 4096 --pp 2 --ep 8 --tp 1 --cp 1 --effort 1 --runs-on megatron",
            "\ncorrected   h100: 1.250 times", true);
    }
    cli_result r = cli_json("capacity --models qwen3-30b-a3b --clusters h100,h200 --sizes 16 "
                            "--global-batch 64 --seq 4096 --pp 2 --ep 8 --tp 1 --cp 1 --effort 1 "
                            "--runs-on megatron --json");
    const mf_json_value *cells = cli_member(mf_json_root(r.json), "cells");
    const mf_json_value *c = cli_member(mf_json_at(cells, 0), "correction");
    assert_close(cli_number(c, "factor"), 1.25, 2e-3);
    assert_string_equal(cli_text(c, "software"), "megatron-26.06");
    assert_string_equal(cli_text(c, "date"), "2026-11-30");
    assert_null(mf_json_find(mf_json_at(cells, 1), "correction"));
    cli_free(&r);
    /* the plan that was made with it, where it is and where it is not */
    snprintf(line, sizeof line, "simulate --plan %s", plan);
    assert_says(line, "\ncorrected   1.250 times", true);
    snprintf(line, sizeof line, "simulate --plan %s --no-corrections", plan);
    assert_says(line, "note: the plan's times are of megatron-26.06@h100, these of megatron-26.06 ",
                true);
}

static void no_other_software_or_machine_is_corrected(void **state) {
    (void)state;
    char ours[256], line[512];
    path_of("ours.json", ours);
    write_text(ours, "{\"extends\": \"h100\", \"name\": \"ours\"}\n");
    compare(1.25 * plain_s, "--correct", 0);
    assert_says("simulate " QWEN LAYOUT "--software megatron-26.04", "corrected ", false);
    assert_says("simulate " QWEN LAYOUT, "\ncorrected ", false);
    assert_says("simulate --model qwen3-30b-a3b --cluster h200 " SIZES LAYOUT
                "--software megatron-26.06",
                "corrected ", false);
    snprintf(line, sizeof line,
             "simulate --model qwen3-30b-a3b --cluster %s " SIZES LAYOUT
             "--software megatron-26.06",
             ours);
    assert_says(line, "corrected ", false); /* of the same figures, but another name */
    write_text(ours, "{\"extends\": \"h100\", \"name\": \"h100\", \"nic_Gbitps\": 200}\n");
    assert_says(line, "corrected ", false); /* and of the same name, but other figures */
    write_text(ours, "{\"extends\": \"h100\", \"name\": \"h100\", \"price_usd_gpu_h\": 2}\n");
    assert_says(line, "\ncorrected   1.250 times", true); /* what times do not depend on */
}

static void what_cannot_be_kept_is_refused(void **state) {
    (void)state;
    char file[512], line[1024], log[256], plan[256];
    forget();
    path_of("train.log", log);
    path_of("plan.json", plan);
    compare(1.25 * plain_s, "--correct --software moefold", 2);
    snprintf(line, sizeof line, "compare --plan %s --log %s --correct --software moefold", plan,
             log);
    assert_says(line,
                "compare: --correct: the log is of Megatron, but the plan is priced with the "
                "profile moefold: give --software megatron-26.06 to correct Megatron's times\n",
                true);
    compare(1000 * plain_s, "--correct", 2); /* more than ten times */
    write_text(log,
               " iteration 2/ 9 | elapsed time per iteration (ms): 2000.0 | throughput per GPU "
               "(TFLOP/s/GPU): 900.0 |\n");
    snprintf(line, sizeof line, "compare --plan %s --log %s --tolerance 99%% --correct", plan, log);
    assert_says(line, "\n            not written: the log may be of another job; --force writes\n",
                true);
    kept_file(file);
    assert_string_equal(file, "");
    assert_says("compare --run /nowhere --correct", "--correct: expected --log FILE", true);
}

/* A factor below a half or above two is warned of, and neither kept nor written unless forced. */
static void a_factor_that_no_machine_has_is_doubted(void **state) {
    (void)state;
    static const struct {
        double share; /* measured over predicted */
        bool doubted;
    } rows[] = {{1.9, false}, {2.2, true}};
    char line[1024], log[256], plan[256], other[256], file[512];
    path_of("train.log", log);
    path_of("plan.json", plan);
    path_of("other.json", other);
    remove(other);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static const char warning[] = "the log is of another job, cluster or software more likely "
                                      "than of a machine that is so slow";
        const bool doubted = rows[i].doubted;
        forget();
        compare(rows[i].share * plain_s, "--correct", doubted ? 4 : 0);
        kept_file(file);
        assert_int_equal(file[0] == '\0', doubted);
        forget();
        snprintf(line, sizeof line, "compare --plan %s --log %s --tolerance 99%%", plan, log);
        assert_says(line, warning, doubted);
        assert_says(line, "next: the same with the plan, cluster and software of the log's job",
                    doubted);
        snprintf(line, sizeof line, "compare --plan %s --log %s --tolerance 99%% --out %s", plan,
                 log, other);
        assert_says(line, "written: the log may be of another job, cluster or software", doubted);
        assert_int_equal(access(other, F_OK) != 0, doubted);
        remove(other);
        snprintf(line, sizeof line, "compare --plan %s --log %s --tolerance 99%% --json", plan,
                 log);
        cli_result r = cli_json(line);
        assert_int_equal(mf_json_size(cli_member(mf_json_root(r.json), "warnings")), doubted);
        cli_free(&r);
        compare(rows[i].share * plain_s, "--correct --force", 0);
        kept_file(file);
        assert_string_not_equal(file, "");
        assert_close(step_s("simulate " QWEN LAYOUT "--software megatron-26.06"),
                     rows[i].share * plain_s, 3e-3 * plain_s);
    }
    forget();
}

/* What a plan of moefold's would take under Megatron rests on it, too. */
static void the_other_program_is_corrected_too(void **state) {
    (void)state;
    static const char ours[] = "simulate " QWEN LAYOUT;
    static const char table[] =
        "capacity --models qwen3-30b-a3b --clusters h100,h200 --sizes 16 --global-batch 64 --seq "
        "4096 --pp 2 --ep 8 --tp 1 --cp 1 --schedule 1f1b --recompute none --zero 1 --expert-zero "
        "1 --effort 1";
    char line[512];
    double time_s[2];
    forget();
    for (int corrected = 0; corrected < 2; corrected++) {
        snprintf(line, sizeof line, "%s--json", ours);
        cli_result r = cli_json(line);
        const mf_json_value *there = cli_member(mf_json_root(r.json), "in_megatron");
        time_s[corrected] = cli_number(there, "step_time_s");
        const mf_json_value *factor = cli_member(there, "correction_factor");
        if (corrected) {
            assert_close(cli_number(there, "correction_factor"), 1.25, 2e-3);
        } else {
            assert_int_equal(mf_json_value_type(factor), MF_JSON_NULL);
        }
        cli_free(&r);
        assert_says(ours, "megatron-26.06, corrected by 1.250, would take", corrected);
        assert_says(table, "megatron-26.06, corrected, would change", corrected);
        compare(1.25 * plain_s, "--correct", 0);
    }
    assert_above(time_s[1], 1.2 * time_s[0]);
    snprintf(line, sizeof line, "%s--no-corrections", ours);
    assert_says(line, "megatron-26.06 would take", true);
}

/* A file that is damaged is named; one from before the profile was fitted anew is left out. */
static void a_kept_file_is_checked(void **state) {
    (void)state;
    static const char simulate[] = "simulate " QWEN LAYOUT "--software megatron-26.06";
    char file[512], text[2048];
    compare(1.25 * plain_s, "--correct", 0);
    kept_file(file);
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    char *figures = strstr(text, "\"software_date\": \"20");
    assert_non_null(figures);
    figures[strlen("\"software_date\": \"")] = '1';
    write_text(file, text);
    assert_says(simulate, "is left out: it was found with other figures of that profile", true);
    assert_close(step_s(simulate), plain_s, 1e-9);
    write_text(file, "{\"name\": \"x@y\", \"extends\": \"megatron-26.06\", \"step_factor\": "
                     "{\"value\": 1.2, \"source\": \"x\"}}");
    assert_says(simulate, "2\nmoefold simulate: a kept correction (--no-corrections leaves it out)",
                true);
    write_text(file, "{\"name\": \"x@y\", \"extends\": \"megatron-26.04\", \"step_factor\": "
                     "{\"value\": 1.2, \"source\": \"x\"}, \"measured\": {\"log\": \"x\", "
                     "\"date\": \"\", \"software_date\": \"\"}}");
    assert_says(simulate, "expected megatron-26.06, whose place this is", true);
    assert_says("simulate " QWEN LAYOUT "--software megatron-26.06 --no-corrections", "0\n", true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_correction_is_found_again_and_named),
        cmocka_unit_test(less_time_is_explained_to_the_limits_of_the_machine),
        cmocka_unit_test(each_command_that_predicts_names_it),
        cmocka_unit_test(pages_have_the_factor),
        cmocka_unit_test(no_other_software_or_machine_is_corrected),
        cmocka_unit_test(a_factor_that_no_machine_has_is_doubted),
        cmocka_unit_test(the_other_program_is_corrected_too),
        cmocka_unit_test(what_cannot_be_kept_is_refused),
        cmocka_unit_test(a_kept_file_is_checked),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
