/* The option table is sound, and argv is read against it. */
#include "tests/support/test.h"

#include "cli/cli.h"
#include "launch/words/megatron_flags.h"

#include <string.h>

static const mf_option_id some[] = {MF_OPT_MODEL,    MF_OPT_SET,        MF_OPT_TP,
                                    MF_OPT_VPP,      MF_OPT_ZERO,       MF_OPT_RESERVE,
                                    MF_OPT_SCHEDULE, MF_OPT_OVERLAP,    MF_OPT_TOKEN_HEADROOM,
                                    MF_OPT_MOMENTS,  MF_OPT_GRAD_DTYPE, MF_OPT_JSON,
                                    MF_OPT_COUNT};

static mf_args args;
static mf_err err;

static mf_status parse(const char *a, const char *b, const char *c, const char *d) {
    const char *argv[] = {a, b, c, d};
    int argc = 0;
    while (argc < 4 && argv[argc] != NULL) {
        argc++;
    }
    mf_err_clear(&err);
    return mf_args_parse(argc, argv, some, 1, &args, &err);
}

static void refuse(const char *a, const char *b, const char *text) {
    assert_int_equal(parse(a, b, NULL, NULL), MF_USAGE);
    assert_string_equal(err.text, text);
}

static void every_option_has_a_name_help_and_a_kind_that_fits(void **state) {
    (void)state;
    for (int i = 0; i < MF_OPT_COUNT; i++) {
        const mf_option *o = mf_option_get((mf_option_id)i);
        assert_non_null(o->name);
        assert_non_null(o->help);
        assert_true(o->help[strlen(o->help) - 1] != '.');
        assert_int_equal(o->kind == MF_VALUE_FLAG, o->argument == NULL);
        assert_int_equal(mf_option_find(o->name, strlen(o->name), NULL), i); /* names differ */
    }
}

static void every_command_is_documented_and_ends_with_help(void **state) {
    (void)state;
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        size_t n = 0;
        assert_non_null((*c)->summary);
        assert_non_null((*c)->usage[0]);
        assert_non_null((*c)->about);
        while ((*c)->options[n] != MF_OPT_COUNT) {
            n++;
        }
        assert_above(n, 0);
        assert_int_equal((*c)->options[n - 1], MF_OPT_HELP);
        assert_ptr_equal(mf_cli_command_find((*c)->name), *c);
    }
}

static void values_stand_behind_a_blank_or_an_equals_sign(void **state) {
    (void)state;
    assert_int_equal(parse("--tp", "8", "--vpp=4", "word"), MF_OK);
    assert_int_equal(args.value[MF_OPT_TP].i, 8);
    assert_int_equal(args.value[MF_OPT_VPP].i, 4);
    assert_int_equal(args.words, 1);
    assert_string_equal(args.word[0], "word");
    assert_int_equal(parse("--", "--tp", NULL, NULL), MF_OK);
    assert_string_equal(args.word[0], "--tp");
}

static void shares_take_a_percent_sign(void **state) {
    (void)state;
    assert_int_equal(parse("--reserve", "5%", NULL, NULL), MF_OK);
    assert_float_equal(args.value[MF_OPT_RESERVE].f, 0.05, 1e-12);
    assert_int_equal(parse("--reserve", "0.05", NULL, NULL), MF_OK);
    assert_float_equal(args.value[MF_OPT_RESERVE].f, 0.05, 1e-12);
    refuse("--reserve", "5GB", "--reserve: expected a share such as 0.05 or 5%, got \"5GB\"");
    refuse("--reserve", "150%",
           "--reserve: expected a share from 0 to 0.99 (or 0% to 99%), got \"150%\"");
    refuse("--reserve", "nan", "--reserve: expected a share such as 0.05 or 5%, got \"nan\"");
    refuse("--reserve", "0x1p-4", "--reserve: expected a share such as 0.05 or 5%, got \"0x1p-4\"");
}

static void bad_values_name_the_option_and_what_is_expected(void **state) {
    (void)state;
    refuse("--tp", "eight", "--tp: expected an integer > 0, got \"eight\"");
    refuse("--tp", "8x", "--tp: expected an integer > 0, got \"8x\"");
    refuse("--tp", "0", "--tp: expected an integer > 0, got \"0\"");
    refuse("--tp", "-2", "--tp: expected an integer > 0, got \"-2\"");
    refuse("--tp", "1.5", "--tp: expected an integer > 0, got \"1.5\"");
    refuse("--tp", "", "--tp: expected an integer > 0, got \"\"");
    refuse("--tp", "99999999999999999999",
           "--tp: expected an integer of at most 268435456, got \"99999999999999999999\"");
    refuse("--zero", "4", "--zero: expected an integer from 0 to 3, got \"4\"");
    refuse("--token-headroom", "0.5", "--token-headroom: expected a number >= 1, got \"0.5\"");
    refuse("--token-headroom", "inf", "--token-headroom: expected a number >= 1, got \"inf\"");
    refuse("--moments", "fp16", "--moments: unknown dtype \"fp16\": expected one of fp32 bf16");
    refuse("--grad-dtype", "bf8", "--grad-dtype: unknown dtype \"bf8\": expected one of fp32 bf16");
    refuse("--model", "", "--model: expected NAME|FILE, got \"\"");
    refuse("--tp", "--vpp", "--tp: expected N, got the option --vpp");
    refuse("--tp", NULL, "--tp: expected N after it");
    refuse("--json=1", NULL, "--json takes no value, got \"1\"");
}

static void words_are_checked_while_parsing_with_a_near_one(void **state) {
    (void)state;
    assert_int_equal(parse("--schedule", "1f1", NULL, NULL), MF_USAGE);
    assert_non_null(
        strstr(err.text, "--schedule: unknown schedule \"1f1\" (did you mean \"1f1b\"?)"));
    assert_int_equal(parse("--overlap", "dp,pq", NULL, NULL), MF_USAGE);
    assert_non_null(strstr(err.text, "--overlap: unknown overlap \"pq\""));
}

static void unknown_and_repeated_options_are_refused(void **state) {
    (void)state;
    refuse("--tpp", "8", "unknown option --tpp (did you mean --tp?)");
    refuse("--frobnicate", NULL, "unknown option --frobnicate");
    refuse("-t", "8", "unknown option -t (did you mean --tp?)");
    refuse("--ep", "8", "--ep is an option of other commands, not of this command");
    assert_int_equal(parse("--tp", "8", "--tp", "4"), MF_USAGE);
    assert_string_equal(err.text, "--tp: given twice (\"8\" and \"4\")");
    assert_int_equal(parse("one", "two", NULL, NULL), MF_USAGE);
    assert_int_equal(parse("--set", "a=1", "--set", "b=2"), MF_OK);
    assert_int_equal(args.set_count, 2);
    assert_string_equal(args.set[1], "b=2");
}

static void layout_options_reach_the_layout(void **state) {
    (void)state;
    mf_layout l;
    mf_layout_init(&l);
    assert_int_equal(parse("--tp=2", "--vpp=4", "--reserve=10%", "--overlap=none"), MF_OK);
    assert_int_equal(mf_args_apply(&args, &l, &err), MF_OK);
    assert_int_equal(l.tp, 2);
    assert_int_equal(l.vpp, 4);
    assert_int_equal(l.overlap, MF_OVERLAP_NONE);
    assert_float_equal(l.reserve, 0.1, 1e-12);
    assert_int_equal(l.schedule, MF_SCHED_INTERLEAVED); /* the default with VPP > 1 */
    mf_layout_init(&l);
    assert_int_equal(parse("--vpp=4", "--schedule=merged", NULL, NULL), MF_OK);
    assert_int_equal(mf_args_apply(&args, &l, &err), MF_OK);
    assert_int_equal(l.schedule, MF_SCHED_MERGED);
}

/* "--schedule" of "--overlap ep --schedule merged" and so on: each is an option of ours. */
static void the_names_given_for_megatron_flags_are_options(void **state) {
    (void)state;
    const char *here, *flag;
    size_t flags = 0;
    for (; (flag = mf_megatron_flag_at(flags, &here)) != NULL; flags++) {
        int options = 0;
        for (const char *p = strstr(here, "--"); p != NULL; p = strstr(p, "--")) {
            p += 2;
            if (mf_option_find(p, strcspn(p, " ,"), NULL) == MF_OPT_COUNT) {
                fail_msg("%s: %s", flag, here);
            }
            options++;
        }
        assert_above(options, 0);
        /* where the names are the same there is nothing to say */
        assert_true(mf_option_find(flag, strlen(flag), NULL) == MF_OPT_COUNT);
    }
    assert_above(flags, 30);
    assert_string_equal(mf_megatron_flag_here("tensor_model_parallel_size"), "--tp");
    assert_null(mf_megatron_flag_here("bananas"));
}

/* Of every name that others have for something, on every command: options that an answer names are
 * the command's, unless it says whose they are. */
static void a_command_answers_with_options_that_it_has(void **state) {
    (void)state;
    const char *flag, *here, *plain;
    int elsewhere = 0, derived = 0;
    for (const mf_command *const *c = mf_cli_commands(); *c != NULL; c++) {
        for (size_t i = 0; (flag = mf_megatron_flag_at(i, &here)) != NULL ||
                           (flag = mf_megatron_flag_derived_at(i)) != NULL;
             i++) {
            const char *names[] = {flag, mf_megatron_flag_derived_at(i)};
            for (size_t k = 0; k < 2 && names[k] != NULL; k++) {
                char option[96];
                snprintf(option, sizeof option, "--%s", names[k]);
                const char *argv[] = {option, "1"};
                if (mf_option_find(names[k], strlen(names[k]), (*c)->options) != MF_OPT_COUNT) {
                    continue;
                }
                mf_err_clear(&err);
                assert_int_equal(mf_args_parse(2, argv, (*c)->options, 1, &args, &err), MF_USAGE);
                elsewhere += strstr(err.text, ", not of this command") != NULL;
                derived += mf_megatron_flag_derived(names[k], &plain) != NULL;
                const char *p = strstr(err.text, option);
                assert_non_null(p);
                while (strstr(err.text, "not of this command") == NULL &&
                       strstr(err.text, "stand behind all else") == NULL &&
                       (p = strstr(p + 2, "--")) != NULL) {
                    const size_t length = strcspn(p + 2, " ,;?)");
                    if (mf_option_find(p + 2, length, (*c)->options) == MF_OPT_COUNT) {
                        fail_msg("%s: %s", (*c)->name, err.text);
                    }
                }
            }
        }
    }
    assert_above(elsewhere, 50);
    assert_above(derived, 50);
}

/* A forgotten percent sign: 90 is no 9,000 %. */
static void a_share_above_three_has_a_percent_sign(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double high, value; /* value < 0: refused */
    } cases[] = {{"90", 100, -1},      {"3.5", 100, -1}, {"3", 100, 3},   {"400%", 100, 4},
                 {"0.9", 1, 0.9},      {"5", 1, -1},     {"5%", 1, 0.05}, {"1.5", 1, -1},
                 {"0.99", 0.99, 0.99}, {"2", 0.99, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double x = -1;
        const mf_status s = mf_parse_share(cases[i].text, 0, cases[i].high, &x, &err);
        assert_int_equal(s, cases[i].value < 0 ? MF_USAGE : MF_OK);
        assert_float_equal(x, cases[i].value, 1e-12);
        if (s != MF_OK) {
            char hint[64];
            snprintf(hint, sizeof hint, ": write %s%% or ", cases[i].text);
            assert_non_null(strstr(err.text, hint));
            assert_int_equal(strstr(err.text, " from 0 to ") != NULL, cases[i].high <= 1);
        }
        mf_err_clear(&err);
    }
    for (int id = 0; id < MF_OPT_COUNT; id++) { /* of every option that takes a share */
        const mf_option *o = mf_option_get((mf_option_id)id);
        if (o->kind == MF_VALUE_SHARE) {
            const mf_option_id only[] = {(mf_option_id)id, MF_OPT_COUNT};
            char option[64];
            snprintf(option, sizeof option, "--%s", o->name);
            const char *argv[] = {option, "90"};
            mf_err_clear(&err);
            assert_int_equal(mf_args_parse(2, argv, only, 0, &args, &err), MF_USAGE);
            assert_non_null(strstr(err.text, "got \"90\": write 90% or 0.9"));
        }
    }
}

static void sizes_take_k_and_batches_m(void **state) {
    (void)state;
    int64_t n = 0;
    assert_int_equal(mf_parse_size("2k", 1, 1 << 28, &n, &err), MF_OK);
    assert_int_equal(n, 2048);
    assert_int_equal(mf_parse_size("1M", 1, 1 << 28, &n, &err), MF_OK);
    assert_int_equal(n, 1048576);
    assert_int_equal(mf_parse_size("4K", 1, 1 << 28, &n, &err), MF_OK);
    assert_int_equal(n, 4096);
    assert_int_equal(mf_parse_size("2m", 1, 1 << 28, &n, &err), MF_OK);
    assert_int_equal(n, 2097152);
    assert_int_equal(mf_parse_size("4096", 1, 1 << 28, &n, &err), MF_OK);
    assert_int_equal(n, 4096);
    static const char *const bad[] = {"k", "0k", "-1k", "1.5k", "2g", "999M", "9999999999999999M",
                                      ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_err_clear(&err);
        assert_int_equal(mf_parse_size(bad[i], 1, 1 << 28, &n, &err), MF_USAGE);
        assert_non_null(strstr(err.text, "expected an integer"));
    }
}

static void a_deadline_is_a_time_or_a_date(void **state) {
    (void)state;
    double s = 0;
    const double now_s = 1796083200; /* 2026-12-01 00:00 UTC */
    static const struct {
        const char *text;
        double days;
    } good[] = {{"30d", 30},        {"12h", 0.5},        {"2026-12-02", 1},
                {"2027-01-01", 31}, {"2027-12-01", 365}, {"2028-03-01", 456}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(mf_parse_until(good[i].text, now_s, 1, 1e10, &s, &err), MF_OK);
        assert_float_equal(s / 86400, good[i].days, 1e-9);
    }
    static const char *const bad[] = {"2026-12-01", "2026-11-30", "2027-13-01", "2027-02-29",
                                      "2027-00-10", "2027-1-100", "20270101",   "2027-01-01x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_err_clear(&err);
        assert_int_equal(mf_parse_until(bad[i], now_s, 1, 1e10, &s, &err), MF_USAGE);
    }
    mf_err_clear(&err);
    assert_int_equal(mf_parse_until("60", now_s, 1, 1e10, &s, &err), MF_USAGE);
    assert_string_equal(err.text,
                        "expected a time such as 30d or a date such as 2027-01-31, got \"60\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_option_has_a_name_help_and_a_kind_that_fits),
        cmocka_unit_test(every_command_is_documented_and_ends_with_help),
        cmocka_unit_test(values_stand_behind_a_blank_or_an_equals_sign),
        cmocka_unit_test(shares_take_a_percent_sign),
        cmocka_unit_test(bad_values_name_the_option_and_what_is_expected),
        cmocka_unit_test(words_are_checked_while_parsing_with_a_near_one),
        cmocka_unit_test(unknown_and_repeated_options_are_refused),
        cmocka_unit_test(layout_options_reach_the_layout),
        cmocka_unit_test(the_names_given_for_megatron_flags_are_options),
        cmocka_unit_test(a_command_answers_with_options_that_it_has),
        cmocka_unit_test(a_share_above_three_has_a_percent_sign),
        cmocka_unit_test(sizes_take_k_and_batches_m),
        cmocka_unit_test(a_deadline_is_a_time_or_a_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
