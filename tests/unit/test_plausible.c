/* Warnings: the best published runs are the best rows of bench/published, slips get a
 * warning, and neither shipped examples nor published jobs get any. */
#include "core/base/number_text.h"
#include "core/base/today.h"
#include "core/program/program.h"
#include "planner/explain/plausible.h"
#include "tests/support/cli_test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THIS_DAY "1793491200" /* 2026-11-01, from which prices are as old as they are */

/* --- published runs --------------------------------------------------------------------------- */

enum {
    FIELDS = 28,
    F_ID = 0,
    F_GPU = 4,
    F_GPUS = 5,
    F_PRECISION = 6,
    F_SEQ = 7,
    F_GBS = 8,
    F_TFLOPS = 22,
    F_MFU = 23
};

/* Cuts a line of CSV in place; quoted fields may hold commas. */
static int cut(char *line, char *field[FIELDS]) {
    int n = 0;
    for (char *p = line; n < FIELDS;) {
        field[n++] = p;
        bool quoted = *p == '"';
        for (p += quoted; *p != '\0' && (quoted ? *p != '"' : *p != ','); p++) {
        }
        if (quoted && *p == '"') {
            *p++ = '\0';
        }
        if (*p != ',') {
            break;
        }
        *p++ = '\0';
    }
    return n;
}

static mf_math math_of(const char *precision) {
    return strstr(precision, "FP8") != NULL   ? MF_MATH_FP8
           : strstr(precision, "FP4") != NULL ? MF_MATH_FP4
                                              : MF_MATH_BF16;
}

/* Of the GPU's shipped cluster; H800 has the arithmetic of H100. */
static mf_cluster cluster_of(const char *gpu) {
    char name[32];
    mf_cluster c;
    size_t n = 0;
    for (; gpu[n] != '\0' && n + 1 < sizeof name; n++) {
        name[n] = (char)tolower((unsigned char)gpu[n]);
    }
    name[n] = '\0';
    assert_ok(mf_cluster_load(strcmp(name, "h800") == 0 ? "h100" : name, &c, NULL));
    return c;
}

static void the_table_holds_the_best_published_rows(void **state) {
    (void)state;
    FILE *f = fopen("bench/published/published.csv", "r");
    char line[8192], *field[FIELDS];
    int rows = 0, met = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        if (line[0] == '#' || strncmp(line, "id,", 3) == 0 || cut(line, field) < F_MFU + 1) {
            continue;
        }
        const mf_math math = math_of(field[F_PRECISION]);
        const mf_cluster c = cluster_of(field[F_GPU]);
        const double by_rate = strtod(field[F_TFLOPS], NULL) * 1e12 / c.gpu.peak_flops[math];
        const double said = strtod(field[F_MFU], NULL) / 100;
        const double mfu = by_rate > said ? by_rate : said;
        const mf_published_mfu *best = mf_published_mfu_of(&c.gpu, math);
        rows++;
        if (best == NULL) {
            fail_msg("%s: no figure for %s", field[F_ID], field[F_GPU]);
        }
        if (mfu > best->mfu + 6e-4) { /* it is rounded */
            fail_msg("%s: %.4f is above %.3f, %s", field[F_ID], mfu, best->mfu, best->source);
        }
        char id[40];
        snprintf(id, sizeof id, "(row %.30s)", field[F_ID]);
        if (strstr(best->source, id) != NULL) {
            assert_close(mfu, best->mfu, 6e-4 + 0.01 * best->mfu);
            met++;
        }
    }
    fclose(f);
    assert_above(rows, 400);
    assert_int_equal(met, 6); /* every line of the table names a row */
}

/* --- slips ------------------------------------------------------------------------------------ */

static int warned(const char *line, const char *says) {
    cli_result r = cli_run(line, NULL);
    int n = 0;
    if (r.code != 0) {
        fail_msg("%s: %s", line, r.err);
    }
    for (const char *p = r.err; (p = strstr(p, "warning: ")) != NULL; p++) {
        n++;
    }
    if (says != NULL && strstr(r.err, says) == NULL) {
        fail_msg("%s: %s", line, r.err);
    }
    cli_free(&r);
    return n;
}

#define OLMOE "simulate --model olmoe-1b-7b --cluster h100 --pp 1 "

static void slips_are_named(void **state) {
    (void)state;
    assert_int_equal(warned(OLMOE "--gpus 8 --global-batch 64 --seq 4095", "4096?"), 1);
    assert_int_equal(warned(OLMOE "--gpus 8 --global-batch 64 --seq 8192 --recompute layer",
                            "longer than the 4096 positions"),
                     1);
    assert_int_equal(warned(OLMOE "--gpus 12 --global-batch 48 --seq 4096", "no whole nodes"), 1);
    assert_int_equal(warned(OLMOE "--gpus 8 --global-batch 131072 --seq 4096", "counts samples"),
                     1);
    assert_int_equal(warned("simulate --model qwen3-8b --cluster gb200 --gpus 4 --global-batch 32 "
                            "--seq 4096",
                            "not measured on gb200"),
                     2); /* and more than was published */
}

/* Of a job of a model that takes sequences of any length. */
static mf_doubts doubts_of(const char *cluster, int64_t gpus, int64_t gbs, int64_t seq) {
    mf_model m = {.name = "any"};
    mf_layout l;
    mf_cluster c;
    mf_doubts d = {0};
    mf_layout_init(&l);
    l.gpus = gpus;
    l.gbs = gbs;
    l.seq = seq;
    assert_ok(mf_cluster_load(cluster, &c, NULL));
    mf_doubt_job(&d, &m, &c, &l);
    return d;
}

static void expect_doubt(const char *cluster, int64_t gpus, int64_t gbs, int64_t seq,
                         const char *says) {
    const mf_doubts d = doubts_of(cluster, gpus, gbs, seq);
    if (d.count != 1 || strstr(d.text[0], says) == NULL) {
        fail_msg("%lld GPUs, batch %lld, sequence %lld: %d warnings, not \"%s\" but \"%s\"",
                 (long long)gpus, (long long)gbs, (long long)seq, d.count, says, d.text[0]);
    }
}

static void a_number_one_key_beside_a_usual_one_is_named_with_it(void **state) {
    (void)state;
    static const int64_t sequences[][2] = {
        {409, 4096},   {496, 4096},     {4906, 4096},     {4069, 4096},
        {4094, 4096},  {4000, 4096},    {819, 8192},      {8129, 8192},
        {204, 2048},   {2408, 2048},    {1638, 16384},    {3276, 32768},
        {6553, 65536}, {13107, 131072}, {131073, 131072}, {1000, 1024},
    };
    for (size_t i = 0; i < sizeof sequences / sizeof sequences[0]; i++) {
        char says[80];
        snprintf(says, sizeof says, "--seq %lld looks like a slip: %lld?",
                 (long long)sequences[i][0], (long long)sequences[i][1]);
        expect_doubt("h100", 64, 256, sequences[i][0], says);
    }
    expect_doubt("h100", 64, 256, 5000, "no multiple of 64");
    expect_doubt("h100", 8, 4096, 4, "was a suffix left out (4k)?");
    expect_doubt("h100", 8, 256, 128, "was a suffix left out (128k)?");

    expect_doubt("h100", 128, 250, 4096, "--global-batch 250 looks like a slip: 256?");
    expect_doubt("h100", 8, 255, 4096, "--global-batch 255 looks like a slip: 256?");
    expect_doubt("h100", 1024, 1042, 4096, "--global-batch 1042 looks like a slip: 1024?");
    expect_doubt("h100", 8, 25600, 4096, "is a digit too many?");
    expect_doubt("h100", 1024, 8, 4096, "was a digit left out?");

    expect_doubt("h100", 1042, 2048, 4096, "1042 GPUs are no whole nodes of 8: 1024?");
    expect_doubt("h100", 12, 48, 4096, "12 GPUs are no whole nodes of 8");
    assert_null(strchr(doubts_of("h100", 12, 48, 4096).text[0], '?')); /* nothing is near */
    assert_null(strchr(doubts_of("h100", 9, 9, 4096).text[0], '?'));
    expect_doubt("gb200", 127, 256, 4096, "127 GPUs are no whole nodes of 4: 128?");
}

/* What people train with, and small tries on CPU ranks. */
static void usual_numbers_raise_no_doubt(void **state) {
    (void)state;
    static const int64_t sequences[] = {256,  512,   1024,  1536,  2048,  3072,  4096,   6144,
                                        8192, 10240, 16384, 32768, 40960, 65536, 131072, 163840};
    static const int64_t batches[] = {1,  2,   4,   8,   12,  20,   48,   60,
                                      96, 100, 160, 252, 720, 1008, 2240, 15360};
    static const int64_t gpus[] = {1, 2, 3, 4, 6, 8, 16, 24, 72, 96, 280, 576, 720, 1152, 2048};
    for (size_t i = 0; i < sizeof sequences / sizeof sequences[0]; i++) {
        assert_int_equal(doubts_of("h100", 8, 64, sequences[i]).count, 0);
    }
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        assert_int_equal(doubts_of("h100", 16, batches[i], 4096).count, 0);
    }
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        assert_int_equal(doubts_of("h100", gpus[i], 1024, 4096).count, 0);
    }
    assert_int_equal(doubts_of("cpu", 2, 1, 16).count, 0);
    assert_int_equal(doubts_of("cpu", 3, 7, 100).count, 0);
}

static void no_published_job_looks_like_a_slip(void **state) {
    (void)state;
    FILE *f = fopen("bench/published/published.csv", "r");
    char line[8192], *field[FIELDS];
    int jobs = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        if (line[0] == '#' || strncmp(line, "id,", 3) == 0 || cut(line, field) < F_MFU + 1) {
            continue;
        }
        const int64_t gpus = atoll(field[F_GPUS]), seq = atoll(field[F_SEQ]),
                      gbs = atoll(field[F_GBS]);
        if (gpus > 0 && seq > 0 && gbs > 0) {
            const mf_doubts d =
                doubts_of(strstr(field[F_GPU], "GB") != NULL ? "gb200" : "h100", gpus, gbs, seq);
            if (d.count > 0) {
                fail_msg("%s: %s", field[F_ID], d.text[0]);
            }
            jobs++;
        }
    }
    fclose(f);
    assert_above(jobs, 500);
}

/* Of a long cluster's name a profile's has the beginning. */
static void a_correction_from_another_cluster_is_named(void **state) {
    (void)state;
    mf_doubts d = {0};
    mf_doubt_correction(&d, "megatron-26.06@h100", "h100");
    mf_doubt_correction(&d, "megatron-26.06@gb200-nvl7", "gb200-nvl72");
    mf_doubt_correction(&d, "megatron-26.06", "gb200");
    assert_int_equal(d.count, 0);
    mf_doubt_correction(&d, "megatron-26.06@h100", "gb200");
    assert_int_equal(d.count, 1);
    assert_non_null(strstr(d.text[0], "measured on h100, not on gb200"));
}

#define LLAMA "--model llama3-8b --cluster h100 --gpus 8 --global-batch 64 --seq 4096 "

/* At the figure nothing is said, above it the figure and whose it is. */
static void an_mfu_above_all_published_of_that_gpu_and_precision_is_named(void **state) {
    (void)state;
    static const char *const gpus[] = {"h100", "h200", "gb200", "b300"};
    static const mf_precision kinds[] = {MF_PREC_BF16, MF_PREC_FP8_BLOCK};
    for (int i = 0; i < 8; i++) {
        mf_cluster c;
        mf_layout l;
        mf_doubts d = {0};
        mf_layout_init(&l);
        l.precision = kinds[i % 2];
        assert_ok(mf_cluster_load(gpus[i / 2], &c, NULL));
        const mf_published_mfu *best = mf_published_mfu_of(&c.gpu, mf_precision_math(l.precision));
        assert_non_null(best);
        mf_doubt_mfu(&d, &c, &l, best->mfu, "");
        assert_int_equal(d.count, 0);
        mf_doubt_mfu(&d, &c, &l, best->mfu + 0.002, "");
        assert_int_equal(d.count, 1);
        assert_non_null(strstr(d.text[0], "is above all that was published for this GPU"));
        assert_non_null(strstr(d.text[0], best->source));
    }
    /* by commands: what the hardware allows is more than anybody published, what runs is not */
    assert_int_equal(warned("simulate --software ideal " LLAMA,
                            "is above all that was published for this GPU and bf16: 65.8 %"),
                     1);
    assert_int_equal(warned("explain --software ideal " LLAMA, "is above all that was published"),
                     1);
    assert_int_equal(warned("simulate " LLAMA, NULL), 0);
}

/* It holds to what Megatron can express there, as plan does: nothing is to be said. */
static void capacity_holds_to_megatron_under_its_profile(void **state) {
    (void)state;
    assert_int_equal(warned("capacity --models olmoe-1b-7b --clusters mi325x --sizes 16 "
                            "--global-batch 64 --seq 4096 --pp 1 --cp 1 --recompute none "
                            "--offload none --software megatron-26.02",
                            "not measured on mi325x"),
                     1); /* of what Megatron cannot express nothing */
}

static void sound_jobs_are_not_warned_of(void **state) {
    (void)state;
    static const char *const lines[] = {
        OLMOE "--gpus 8 --global-batch 64 --seq 4096",
        OLMOE "--gpus 4 --global-batch 64 --seq 2048",
        "simulate --model mixtral-8x22b --cluster h100 --gpus 128 --global-batch 256 --seq 4096 "
        "--tp 2 --pp 8 --ep 8",
        "simulate --model deepseek-v3 --cluster h100 --gpus 1024 --global-batch 15360 --seq 4096 "
        "--tp 2 --pp 8 --ep 64 --recompute layer",
        "simulate --model llama3-405b --cluster h100 --gpus 576 --global-batch 252 --seq 8192 "
        "--tp 8 --pp 9 --vpp 7 --cp 2 --recompute selective",
        "capacity --models olmoe-1b-7b --clusters h200 --sizes 16 --global-batch 64 --seq 4096 "
        "--pp 1 --cp 1 --recompute none --offload none --tokens 1T --price h200=2.9@2026-11-01",
        "capacity --models olmoe-1b-7b --clusters h100 --sizes 16 --global-batch 64 --seq 4096 "
        "--pp 1 --cp 1 --recompute none --offload none --tokens 1T --price h100=2.5",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (warned(lines[i], NULL) != 0) {
            (void)warned(lines[i], "no warning here");
        }
    }
}

/* The same texts, in the order of standard error. */
static void json_holds_what_standard_error_says(void **state) {
    (void)state;
    setenv("SOURCE_DATE_EPOCH", "1806000000", 1); /* 2027-03-25 */
    cli_result r = cli_json("capacity --models olmoe-1b-7b --clusters h100 --sizes 16 "
                            "--global-batch 64 --seq 4095 --pp 1 --cp 1 --recompute none "
                            "--offload none --tokens 15 --json");
    const mf_json_value *warnings = cli_member(mf_json_root(r.json), "warnings");
    const char *const says[] = {"--tokens 15 is little",
                                "the price of h100 is of 2026-09-20, more than 180 days ago",
                                "4096?"};
    assert_int_equal(mf_json_size(warnings), 3);
    for (size_t i = 0; i < 3; i++) {
        const char *text = NULL;
        assert_ok(mf_json_string(mf_json_at(warnings, i), &text, NULL));
        assert_non_null(strstr(text, says[i]));
        assert_non_null(strstr(r.err, text));
    }
    cli_free(&r);
    setenv("SOURCE_DATE_EPOCH", THIS_DAY, 1);
    r = cli_json(OLMOE "--gpus 8 --global-batch 64 --seq 4096 --json");
    assert_int_equal(mf_json_size(cli_member(mf_json_root(r.json), "warnings")), 0);
    cli_free(&r);
    r = cli_json("plan --model olmoe-1b-7b --cluster h100 --gpus 8 --global-batch 64 --seq 4095 "
                 "--pp 1 --cp 1 --tp 1 --gap 50% --json");
    assert_int_equal(mf_json_size(cli_member(mf_json_root(r.json), "warnings")), 1);
    cli_free(&r);
}

/* Shipped prices have a day each, and none of them is doubted on the day that tests take for today.
 */
static void a_price_is_doubted_without_a_date_and_when_it_is_old(void **state) {
    (void)state;
    static const struct {
        double usd;
        const char *date;
        bool by_hand;
        int64_t after; /* days from 2026-05-18 to today */
        const char *says;
    } prices[] = {
        {2, "2026-05-18", false, 180, NULL},
        {2, "2026-05-18", false, 181, "the price of x is of 2026-05-18, more than 180 days ago: "},
        {2, "2026-05-18", true, 181, "the price of x is of 2026-05-18, more than 180 days ago: "},
        {2, "2026-05", false, 163, NULL},
        {2, "2026-05", false, 164, "the price of x is of 2026-05, more than 180 days ago: "},
        {2, "", true, 1000, NULL},
        {2, "", false, 0, "the price of x has no date"},
        {2, "date not resolved", false, 0, "the price of x has no date"},
        {1000, "2026-05-18", true, 0, "looks like a slip"},
        {0, "", false, 0, NULL},
    };
    int64_t day = 0;
    assert_ok(mf_parse_date("2026-05-18", &day, NULL));
    for (size_t i = 0; i < sizeof prices / sizeof prices[0]; i++) {
        mf_doubts d = {0};
        mf_doubt_price(&d, "x", prices[i].usd, prices[i].date, prices[i].by_hand,
                       day + prices[i].after);
        assert_int_equal(d.count, prices[i].says != NULL);
        assert_true(d.count == 0 || strstr(d.text[0], prices[i].says) != NULL);
    }
    size_t count;
    const char *const *name = mf_cluster_shipped(&count);
    for (size_t i = 0; i < count; i++) {
        mf_cluster c;
        mf_doubts d = {0};
        assert_ok(mf_cluster_load(name[i], &c, NULL));
        mf_doubt_price(&d, c.name, c.price_usd_gpu_h, c.price_date, false, mf_today());
        assert_int_equal(d.count, 0);
        assert_true(!(c.price_usd_gpu_h > 0) || c.price_source[0] != '\0');
    }
}

int main(void) {
    setenv("SOURCE_DATE_EPOCH", THIS_DAY, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_holds_the_best_published_rows),
        cmocka_unit_test(slips_are_named),
        cmocka_unit_test(a_number_one_key_beside_a_usual_one_is_named_with_it),
        cmocka_unit_test(usual_numbers_raise_no_doubt),
        cmocka_unit_test(no_published_job_looks_like_a_slip),
        cmocka_unit_test(a_correction_from_another_cluster_is_named),
        cmocka_unit_test(an_mfu_above_all_published_of_that_gpu_and_precision_is_named),
        cmocka_unit_test(capacity_holds_to_megatron_under_its_profile),
        cmocka_unit_test(sound_jobs_are_not_warned_of),
        cmocka_unit_test(a_price_is_doubted_without_a_date_and_when_it_is_old),
        cmocka_unit_test(json_holds_what_standard_error_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
