/* Which points are measured, and the file that remembers them: no GPU is needed for either. */
#include "tests/test.h"

#include "executor/measure.h"
#include "executor/measure_draw.h"
#include "executor/measure_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t count(const mf_measure_list *l, const char *op, bool held) {
    int64_t n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        n += strcmp(l->point[i].op, op) == 0 && (l->point[i].holdout != 0) == held;
    }
    return n;
}

static void the_general_grid_holds_out_five_hundred_shapes(void **state) {
    (void)state;
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_plan_gpu(1, &l, NULL));
    assert_true(count(&l, "gemm", true) >= 500);
    assert_true(count(&l, "gemm", false) >= 1000);
    assert_true(count(&l, "grouped_gemm", true) >= 80 && count(&l, "attention", true) >= 40);
    assert_true(count(&l, "memory", false) >= 100 && count(&l, "launch", false) == 2);
    mf_measure_list_clear(&l);
}

static int by_key(const void *a, const void *b) {
    return strcmp(a, b);
}

static void points_are_canonical_and_stand_once(void **state) {
    (void)state;
    enum { KEY = 400 };
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_plan_gpu(7, &l, NULL));
    char *keys = calloc((size_t)l.n, KEY);
    assert_non_null(keys);
    for (int64_t i = 0; i < l.n; i++) {
        mf_point again;
        mf_point_format(&l.point[i], keys + i * KEY, KEY);
        assert_ok(mf_point_parse(keys + i * KEY, &again, NULL));
        assert_int_equal(again.dims, l.point[i].dims);
        assert_true(l.point[i].source[0] != '\0');
    }
    qsort(keys, (size_t)l.n, KEY, by_key);
    for (int64_t i = 1; i < l.n; i++) {
        assert_string_not_equal(keys + (i - 1) * KEY, keys + i * KEY);
    }
    free(keys);
    mf_measure_list_clear(&l);
}

static void a_seed_gives_the_same_points_and_another_seed_others(void **state) {
    (void)state;
    mf_measure_list a = {NULL, 0, 0}, b = {NULL, 0, 0}, c = {NULL, 0, 0};
    assert_ok(mf_measure_plan_gpu(3, &a, NULL));
    assert_ok(mf_measure_plan_gpu(3, &b, NULL));
    assert_ok(mf_measure_plan_gpu(4, &c, NULL));
    assert_int_equal(a.n, b.n);
    int64_t differ = 0;
    for (int64_t i = 0; i < a.n; i++) {
        assert_memory_equal(&a.point[i].dim, &b.point[i].dim, sizeof a.point[i].dim);
        differ += i < c.n && memcmp(&a.point[i].dim, &c.point[i].dim, sizeof a.point[i].dim) != 0;
    }
    assert_true(differ > a.n / 2);
    mf_measure_list_clear(&a);
    mf_measure_list_clear(&b);
    mf_measure_list_clear(&c);
}

static void a_key_is_added_once_and_bad_ones_are_refused(void **state) {
    (void)state;
    mf_measure_list l = {NULL, 0, 0};
    assert_ok(mf_measure_list_add(&l, "gemm dtype=bf16 m=8 n=8 k=8", true, "test", NULL));
    assert_ok(
        mf_measure_list_add(&l, "gemm k=8 n=8 m=8 dtype=bf16 layout=nt", false, "test", NULL));
    assert_int_equal(l.n, 1);
    assert_int_equal(l.point[0].holdout, 1);
    assert_int_equal(mf_measure_list_add(&l, "gemm dtype=bf16 m=8", false, "test", NULL), MF_INPUT);
    mf_measure_list_clear(&l);
}

/* Weight gradients of experts: the op's dims are those of the product, the key's of the weight. */
static void ops_of_a_program_become_keys(void **state) {
    (void)state;
    char key[256];
    mf_op op = {.kind = MF_OP_GROUPED_GEMM,
                .pass = MF_PASS_W,
                .math = MF_MATH_BF16,
                .flags = MF_OPF_WGRAD | MF_OPF_ACC_FP32,
                .dim = {4096, 7168, 8 * 512, 8}};
    assert_true(mf_measure_op_key(&op, MF_PREC_BF16, key, sizeof key));
    assert_string_equal(key,
                        "grouped_gemm dtype=bf16 experts=8 m=512 n=4096 k=7168 pass=wgrad acc=1");
    mf_op dgrad = {.kind = MF_OP_GEMM, .pass = MF_PASS_B, .math = MF_MATH_FP8, .dim = {64, 32, 16}};
    assert_true(mf_measure_op_key(&dgrad, MF_PREC_FP8_BLOCK, key, sizeof key));
    assert_string_equal(key, "gemm dtype=fp8-block m=64 n=32 k=16 layout=nn acc=0");
    mf_op gather = {.kind = MF_OP_ALL_GATHER, .bytes = 1e6};
    assert_false(mf_measure_op_key(&gather, MF_PREC_BF16, key, sizeof key));
}

static void a_file_remembers_what_was_measured(void **state) {
    (void)state;
    char path[] = "/tmp/mf_measure_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    remove(path);
    mf_measure_file *f;
    mf_point p, other;
    assert_ok(mf_point_parse("gemm dtype=bf16 m=128 n=256 k=512", &p, NULL));
    assert_ok(mf_point_parse("gemm dtype=bf16 m=128 n=256 k=1024", &other, NULL));
    snprintf(p.gpu, sizeof p.gpu, "h200");
    snprintf(p.source, sizeof p.source, "a test, with a comma");
    p.time_s = p.low_s = p.high_s = 1e-5;
    p.samples = 7;
    assert_ok(mf_measure_file_open(path, &f, NULL));
    assert_false(mf_measure_file_has(f, &p));
    assert_ok(mf_measure_file_append(f, &p, NULL));
    mf_measure_file_close(f);
    assert_ok(mf_measure_file_open(path, &f, NULL));
    assert_true(mf_measure_file_has(f, &p));
    assert_false(mf_measure_file_has(f, &other));
    mf_measure_file_close(f);
    FILE *damaged = fopen(path, "a");
    assert_non_null(damaged);
    fputs("h200,gemm,dtype=bf16 m=12\n", damaged);
    fclose(damaged);
    assert_int_equal(mf_measure_file_open(path, &f, NULL), MF_INPUT);
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_general_grid_holds_out_five_hundred_shapes),
        cmocka_unit_test(points_are_canonical_and_stand_once),
        cmocka_unit_test(a_seed_gives_the_same_points_and_another_seed_others),
        cmocka_unit_test(a_key_is_added_once_and_bad_ones_are_refused),
        cmocka_unit_test(ops_of_a_program_become_keys),
        cmocka_unit_test(a_file_remembers_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
