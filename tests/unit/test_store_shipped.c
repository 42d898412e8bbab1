/* The measured points that ship: all load, none overwrites another, and the times give back the
 * published rates. */
#include "core/base/paths.h"
#include "tests/support/test.h"

#include "core/cluster/cluster.h"
#include "core/model/model.h"
#include "kernels/gemm/gemm_choice.h"
#include "profiles/ops_table.h"
#include "profiles/store.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static mf_store *s;
static mf_err e;

static int open_shipped(void **state) {
    (void)state;
    mf_err_clear(&e);
    if (mf_store_open_shipped(&s, &e) != MF_OK) {
        fprintf(stderr, "%s\n", e.text);
        return -1;
    }
    return 0;
}

static int close_store(void **state) {
    (void)state;
    mf_store_close(s);
    return 0;
}

static void no_row_overwrites_another(void **state) {
    (void)state;
    char folder[1024], path[1400];
    int64_t sum = 0, rows, count;
    mf_store *one;
    snprintf(folder, sizeof folder, "%s/measured", mf_data_dir());
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *d = readdir(dir); d != NULL; d = readdir(dir)) {
        if (strstr(d->d_name, ".csv") == NULL) {
            continue;
        }
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        assert_ok(mf_store_open(":memory:", &one, &e));
        assert_ok(mf_store_import_csv(one, path, &count, &e));
        assert_above(count, 0);
        mf_store_close(one);
        sum += count;
    }
    closedir(dir);
    assert_ok(mf_store_check(s, &rows, NULL, &e));
    assert_int_equal(rows, sum);
    assert_at_least(rows, 200);
}

static int check_point(const mf_point *p, void *user) {
    mf_cluster *c = user;
    assert_ok(mf_cluster_load(p->gpu, c, NULL)); /* the GPU of every point is a shipped cluster */
    assert_above(strlen(p->source), 10);
    bool share = strcmp(p->op, "launch") == 0; /* of a graph's replay */
    assert_above(p->time_s, (share ? 1e-9 : 1e-7));
    assert_below(p->time_s, 10.0);
    double bytes = mf_point_value(p, "bytes"), limit_s = 0.0;
    if (strcmp(p->op, "gemm") == 0) {
        int math = strcmp(mf_point_word(p, "dtype"), "bf16") == 0 ? MF_MATH_BF16 : MF_MATH_FP8;
        limit_s = 2.0 * mf_point_value(p, "m") * mf_point_value(p, "n") * mf_point_value(p, "k") /
                  c->gpu.peak_flops[math];
    } else if (strcmp(p->op, "copy") == 0) {
        limit_s = 2.0 * bytes / c->gpu.memory_Bps;
    } else if (strncmp(p->op, "copy_", 5) == 0) {
        limit_s = bytes / c->host_Bps;
    }
    if (p->time_s < limit_s) {
        fail_msg("%s %s: %g s is faster than the data sheet's %g s", p->gpu, p->op, p->time_s,
                 limit_s);
    }
    return 0;
}

static void every_point_has_a_source_and_beats_no_data_sheet(void **state) {
    (void)state;
    mf_cluster c;
    int64_t damaged;
    assert_ok(mf_store_each(s, NULL, NULL, check_point, &c, &damaged, &e));
    assert_int_equal(damaged, 0);
}

typedef struct wanted {
    const char *key;
    double time_s;
} wanted;

static int match(const mf_point *p, void *user) {
    wanted *w = user;
    char key[640];
    mf_point_format(p, key, sizeof key);
    if (strcmp(key, w->key) == 0) {
        w->time_s = p->time_s;
    }
    return 0;
}

/* Work in FLOPs or bytes over the published rate. */
static void expect_rate(const char *gpu, const char *text, double work, double rate) {
    char key[640];
    mf_point p;
    assert_ok(mf_point_parse(text, &p, NULL));
    mf_point_format(&p, key, sizeof key);
    wanted w = {.key = key};
    assert_ok(mf_store_each(s, gpu, p.op, match, &w, NULL, &e));
    if (!(fabs(work / w.time_s - rate) <= 1e-4 * rate)) {
        fail_msg("%s %s: %g instead of %g", gpu, key, work / w.time_s, rate);
    }
}

static void times_give_back_the_published_rates(void **state) {
    (void)state;
    expect_rate("h200", "gemm dtype=bf16 m=4096 n=7168 k=2048", 2.0 * 4096 * 7168 * 2048, 689e12);
    expect_rate("h200", "gemm dtype=fp8-tensor m=32768 n=4096 k=7168", 2.0 * 32768 * 4096 * 7168,
                1500e12);
    expect_rate("h200", "attention h=128 s=4096 dqk=128", 2.0 * 128 * 4096 * 4096 * 128, 610e12);
    expect_rate("h200", "attention pass=bwd b=2 h=48 s=4096 dqk=128",
                2.5 * 2 * 2.0 * 48 * 4096 * 4096 * 128, 503e12);
    expect_rate("h200", "attention h=32 s=32768 dqk=128 impl=fa2", 2.0 * 32 * 32768 * 32768 * 128,
                345e12);
    expect_rate("h200", "grouped_gemm dtype=bf16 experts=8 m=4096 n=4096 k=7168",
                2.0 * 8 * 4096 * 4096 * 7168, 621e12);
    expect_rate("h200", "grouped_gemm dtype=bf16 experts=8 m=4096 n=7168 k=2048",
                2.0 * 8 * 4096 * 2048 * 7168, 638e12);
    expect_rate("h200", "grouped_gemm dtype=bf16 experts=64 m=256 n=2816 k=2048 pass=wgrad",
                2.0 * 64 * 256 * 2816 * 2048, 308e12);
    expect_rate("h200", "all_to_all bytes=16MiB ranks=4", 0.75 * 16777216, 183e9);
    expect_rate("h200", "all_reduce bytes=256MiB ranks=4", 1.5 * 268435456, 340e9);
    expect_rate("h200", "peer_rows mode=store bytes=117000000 row=14336 ranks=4 blocks=132", 117e6,
                331e9);
    expect_rate("a100", "all_reduce bytes=1MiB ranks=8 inplace=1", 1.75 * 1048576, 36.22e9);
    expect_rate("gb200", "all_reduce bytes=8GiB ranks=1440 nodes=360",
                2.0 * 1439 / 1440 * 8589934592, 381.48e9);
    expect_rate("h200", "reduce_scatter bytes=16GiB ranks=8 algo=ring", 0.875 * 17179869184,
                362.9e9);
    expect_rate("h100", "all_reduce bytes=8GiB ranks=64 nodes=8 algo=sharp",
                2.0 * 63 / 64 * 8589934592, 386.56e9);
    expect_rate("gb200",
                "dispatch tokens=4096 hidden=7168 topk=8 experts=256 ranks=64 nodes=16 "
                "impl=hybridep",
                1.0, 1.0 / 675e-6);
}

static int count_op(const mf_point *p, void *user) {
    (void)p;
    ++*(int *)user;
    return 0;
}

static void every_row_of_the_collective_tables_is_there(void **state) {
    (void)state;
    static const struct {
        const char *gpu, *op;
        int least;
    } wanted_counts[] = {{"a100", "all_reduce", 9},   {"h100", "all_reduce", 15},
                         {"h200", "all_reduce", 15},  {"b200", "all_reduce", 24},
                         {"gb200", "all_reduce", 17}, {"mi300x", "all_reduce", 2},
                         {"h200", "all_gather", 5},   {"h100", "dispatch", 4}};
    for (size_t i = 0; i < sizeof wanted_counts / sizeof wanted_counts[0]; i++) {
        int count = 0;
        assert_ok(mf_store_each(s, wanted_counts[i].gpu, wanted_counts[i].op, count_op, &count,
                                NULL, &e));
        assert_at_least(count, wanted_counts[i].least);
    }
}

static int check_choice(const mf_point *p, const char *text, void *user) {
    mf_gemm_choice c;
    char again[MF_GEMM_CHOICE_TEXT];
    assert_string_equal(p->op, "gemm");
    assert_ok(mf_gemm_choice_read(text, &c, &e));
    mf_gemm_choice_print(&c, again);
    assert_string_equal(again, text);
    assert_above(c.tile, 0);
    ++*(int64_t *)user;
    return 0;
}

/* Every product of the grid has the algorithm that it ran with. */
static void every_choice_is_one_that_kernels_understand(void **state) {
    (void)state;
    int64_t choices = 0, damaged = -1;
    assert_ok(mf_store_each_choice(s, "h200", check_choice, &choices, &damaged, &e));
    assert_int_equal(damaged, 0);
    assert_above(choices, 2000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_is_one_that_kernels_understand),
        cmocka_unit_test(no_row_overwrites_another),
        cmocka_unit_test(every_point_has_a_source_and_beats_no_data_sheet),
        cmocka_unit_test(times_give_back_the_published_rates),
        cmocka_unit_test(every_row_of_the_collective_tables_is_there),
    };
    return cmocka_run_group_tests(tests, open_shipped, close_store);
}
