/* Op keys: one canonical spelling, whatever the user writes; what is refused, and how. */
#include "tests/support/test.h"

#include "profiles/ops_table.h"
#include "profiles/store.h"

#include <math.h>
#include <string.h>

static void expect_key(const char *text, const char *key) {
    mf_point p;
    mf_err e;
    char out[640];
    mf_err_clear(&e);
    if (mf_point_parse(text, &p, &e) != MF_OK) {
        fail_msg("%s: %s", text, e.text);
    }
    mf_point_format(&p, out, sizeof out);
    assert_string_equal(out, key);
    mf_point again;
    assert_ok(mf_point_parse(out, &again, &e)); /* canonical text stays as it is */
    assert_memory_equal(&p, &again, sizeof p);
}

static void expect_refused(const char *text, const char *part) {
    mf_point p;
    mf_err e;
    mf_err_clear(&e);
    assert_int_equal(mf_point_parse(text, &p, &e), MF_INPUT);
    if (strstr(e.text, part) == NULL) {
        fail_msg("\"%s\": expected \"%s\" in: %s", text, part, e.text);
    }
}

static void keys_come_out_in_the_order_of_the_table_with_fallbacks(void **state) {
    (void)state;
    expect_key("gemm m=4096 n=7168 k=2048 dtype=bf16",
               "gemm dtype=bf16 m=4096 n=7168 k=2048 layout=nt acc=0");
    expect_key("  gemm\tk=1 acc=1 layout=tn n=2  m=3 dtype=fp8-block ",
               "gemm dtype=fp8-block m=3 n=2 k=1 layout=tn acc=1");
    expect_key(
        "attention h=32 s=8192 dqk=128",
        "attention pass=fwd b=1 h=32 hkv=32 s=8192 skv=8192 dqk=128 dv=128 causal=1 window=0 "
        "dtype=bf16 impl=cudnn");
    expect_key("attention pass=bwd b=2 h=128 hkv=8 s=4096 skv=65536 dqk=192 dv=128 causal=0",
               "attention pass=bwd b=2 h=128 hkv=8 s=4096 skv=65536 dqk=192 dv=128 causal=0 "
               "window=0 dtype=bf16 impl=cudnn");
    expect_key("all_reduce bytes=16MiB ranks=8",
               "all_reduce bytes=16777216 ranks=8 nodes=1 inplace=0 algo=auto");
    expect_key("copy_d2h bytes=2GiB", "copy_d2h bytes=2147483648");
    expect_key("memory op=rmsnorm_fwd bytes=1", "memory op=rmsnorm_fwd bytes=1");
}

static void wrong_keys_are_refused_with_the_nearest_right_one(void **state) {
    (void)state;
    expect_refused("gem m=1 n=1 k=1 dtype=bf16", "did you mean \"gemm\"?");
    expect_refused("xyzzy", "known: gemm grouped_gemm attention");
    expect_refused("", "expected an op");
    expect_refused("gemm m=1 n=1 k=1 dtyp=bf16", "did you mean \"dtype\"?");
    expect_refused("gemm m=1 n=1 dtype=bf16", "gemm: k is missing (length of the sums)");
    expect_refused("gemm m=1 n=1 k=1 m=1 dtype=bf16", "m stands twice");
    expect_refused("gemm m=1 n=1 k= dtype=bf16", "expected key=value, got \"k=\"");
    expect_refused("gemm =1", "expected key=value");
    expect_refused("gemm m", "expected key=value");
    expect_refused("gemm abcdefghijklmnopqrstuvwxyz=1", "unknown key");
    expect_refused("gemm m=1234567890123456789012345678901234567890", "too long");
    expect_refused("gemm m=12345678901234567890123456", "too long");
}

static void wrong_values_are_refused_with_what_was_expected(void **state) {
    (void)state;
    expect_refused("gemm m=0 n=1 k=1 dtype=bf16", "m: expected a whole number >= 1, got \"0\"");
    expect_refused("gemm m=-4 n=1 k=1 dtype=bf16", "got \"-4\"");
    expect_refused("gemm m=4.0 n=1 k=1 dtype=bf16", "got \"4.0\"");
    expect_refused("gemm m=010 n=1 k=1 dtype=bf16", "got \"010\"");
    expect_refused("gemm m=0x10 n=1 k=1 dtype=bf16", "got \"0x10\"");
    expect_refused("gemm m=9007199254740993 n=1 k=1 dtype=bf16", "whole number");
    expect_refused("gemm m=1 n=1 k=1 dtype=fp8", "one of bf16 fp32 fp8-tensor");
    expect_refused("gemm m=1 n=1 k=1 dtype=bf16 acc=2", "0 or 1");
    expect_refused("copy bytes=16MB", "bytes such as 4096 or 16MiB");
    expect_refused("copy bytes=9007199254740992GiB", "bytes such as");
    expect_refused("memory op=Norm bytes=4", "a name of a-z");
}

static void values_of_numbers_are_numbers_and_of_words_are_not(void **state) {
    (void)state;
    mf_point p;
    assert_ok(mf_point_parse("gemm m=4096 n=7168 k=2048 dtype=bf16", &p, NULL));
    assert_true(mf_point_value(&p, "n") == 7168.0);
    assert_true(isnan(mf_point_value(&p, "dtype")));
    assert_true(isnan(mf_point_value(&p, "bytes")));
    assert_string_equal(mf_point_word(&p, "dtype"), "bf16");
    assert_string_equal(mf_point_word(&p, "bytes"), "");
    assert_null(mf_point_find(&p, "bytes"));
}

static void a_point_built_in_any_order_equals_the_parsed_one(void **state) {
    (void)state;
    mf_point built, parsed;
    mf_point_init(&built, "", "gemm");
    mf_point_set_i64(&built, "k", 2048);
    mf_point_set_i64(&built, "m", 1);
    mf_point_set(&built, "dtype", "bf16");
    mf_point_set_i64(&built, "n", 7168);
    mf_point_set_i64(&built, "m", 4096); /* replaces */
    assert_ok(mf_point_canonical(&built, NULL));
    assert_ok(mf_point_parse("gemm m=4096 n=7168 k=2048 dtype=bf16", &parsed, NULL));
    assert_memory_equal(&built, &parsed, sizeof built);
}

static mf_point sound(void) {
    mf_point p;
    assert_ok(mf_point_parse("copy bytes=4096", &p, NULL));
    strcpy(p.gpu, "h200");
    p.time_s = p.low_s = p.high_s = 1e-6;
    return p;
}

static void only_sound_points_pass_the_check(void **state) {
    (void)state;
    mf_point p = sound();
    assert_ok(mf_point_check(&p, NULL));
    p.time_s = 0.0;
    assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
    p = sound();
    p.time_s = p.high_s = (double)INFINITY;
    assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
    p = sound();
    p.low_s = 2e-6; /* above the median */
    assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
    p = sound();
    strcpy(p.gpu, "H 200");
    assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
    p = sound();
    memset(p.gpu, 'a', sizeof p.gpu); /* no end */
    assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
    p = sound();
    strcpy(p.source, "a\nb");
    assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
    p = sound();
    strcpy(p.source, "\xff");
    assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
    p = sound();
    p.holdout = 2;
    assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
}

static void dates_are_iso_dates(void **state) {
    (void)state;
    static const char *const good[] = {"", "2026", "2026-11", "2026-11-21"};
    static const char *const bad[] = {"21.11.2026", "2026-13", "2026-11-40", "2026-1", "soon"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        mf_point p = sound();
        strcpy(p.date, good[i]);
        assert_ok(mf_point_check(&p, NULL));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        mf_point p = sound();
        strcpy(p.date, bad[i]);
        assert_int_equal(mf_point_check(&p, NULL), MF_INPUT);
    }
}

static void every_row_of_the_table_can_be_spelled(void **state) {
    (void)state;
    size_t count;
    const mf_op_row *rows = mf_op_rows(&count);
    for (size_t i = 0; i < count; i++) {
        mf_point p;
        mf_point_init(&p, "", rows[i].name);
        for (int d = 0; d < rows[i].dims; d++) {
            const mf_op_dim *dim = &rows[i].dim[d];
            if (dim->fallback == NULL) {
                const char *text = dim->kind == MF_DIM_IS_WORD ? dim->words[0] : "1";
                mf_point_set(&p, dim->key, text);
            }
            assert_below(strlen(dim->key), sizeof p.dim[0].key);
            assert_true(dim->meaning[0] != '\0');
        }
        mf_err e;
        mf_err_clear(&e);
        if (mf_point_canonical(&p, &e) != MF_OK) {
            fail_msg("%s: %s", rows[i].name, e.text);
        }
        assert_int_equal(p.dims, rows[i].dims);
        assert_ptr_equal(mf_op_row_find(rows[i].name), &rows[i]);
    }
}

static void bus_bandwidth_follows_nccl_tests(void **state) {
    (void)state;
    assert_true(mf_op_busbw_factor("all_reduce", 8) == 1.75);
    assert_true(mf_op_busbw_factor("all_gather", 8) == 0.875);
    assert_true(mf_op_busbw_factor("reduce_scatter", 4) == 0.75);
    assert_true(mf_op_busbw_factor("all_to_all", 2) == 0.5);
    assert_true(mf_op_busbw_factor("send_recv", 2) == 1.0);
    assert_true(mf_op_busbw_factor("gemm", 2) == 0.0);
}

static void formatting_into_a_small_buffer_truncates(void **state) {
    (void)state;
    mf_point p = sound();
    char text[8];
    memset(text, 'x', sizeof text);
    mf_point_format(&p, text, 5);
    assert_string_equal(text, "copy");
    mf_point_format(&p, text, 7);
    assert_string_equal(text, "copy b");
    mf_point_format(&p, text, 0);
    assert_string_equal(text, "copy b");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_come_out_in_the_order_of_the_table_with_fallbacks),
        cmocka_unit_test(wrong_keys_are_refused_with_the_nearest_right_one),
        cmocka_unit_test(wrong_values_are_refused_with_what_was_expected),
        cmocka_unit_test(values_of_numbers_are_numbers_and_of_words_are_not),
        cmocka_unit_test(a_point_built_in_any_order_equals_the_parsed_one),
        cmocka_unit_test(only_sound_points_pass_the_check),
        cmocka_unit_test(dates_are_iso_dates),
        cmocka_unit_test(every_row_of_the_table_can_be_spelled),
        cmocka_unit_test(bus_bandwidth_follows_nccl_tests),
        cmocka_unit_test(formatting_into_a_small_buffer_truncates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
