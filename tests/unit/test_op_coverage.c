/* Every op that lowering can emit has a reference, is measured, has a measured row that ships, and
 * a place in the table of kernels/README.md: no hole stays unseen. */
#include "tests/support/test.h"

#include "costmodel/cost_internal.h"
#include "executor/measure/measure.h"
#include "executor/ops/ops.h"
#include "profiles/store.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds that layouts are planned with and nothing runs or measures yet: their prices are derived.
 * `train` refuses models that need them (core/model/model_limits.c). */
static bool is_planned_alone(mf_op_kind k) {
    static const mf_op_kind kinds[] = {
        MF_OP_RELU2_FWD,       MF_OP_RELU2_BWD,       MF_OP_CONV_FWD,       MF_OP_CONV_BWD,
        MF_OP_DECAY_FWD,       MF_OP_DECAY_BWD,       MF_OP_SCAN_FWD,       MF_OP_SCAN_BWD,
        MF_OP_INDEX_FWD,       MF_OP_INDEX_BWD,       MF_OP_GATED_NORM_FWD, MF_OP_GATED_NORM_BWD,
        MF_OP_COMPRESS_FWD,    MF_OP_COMPRESS_BWD,    MF_OP_HYPER_READ_FWD, MF_OP_HYPER_READ_BWD,
        MF_OP_HYPER_WRITE_FWD, MF_OP_HYPER_WRITE_BWD,
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i] == k) {
            return true;
        }
    }
    return false;
}

/* Of kinds that the CPU backend's table does not run, what does. */
static const char *runs_elsewhere(mf_op_kind k) {
    static const struct {
        mf_op_kind kind;
        const char *where;
    } others[] = {
        {MF_OP_QUANTISE, "CPU ranks compute in FP32 and BF16; kernels/rows/quantise.c"},
        {MF_OP_GRAD_NORM, "executor/step/optimizer.c"},
        {MF_OP_ADAMW, "executor/step/optimizer.c"},
        {MF_OP_CAST, "no op of lowering casts alone yet; kernels/rows/cast.c"},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (others[i].kind == k) {
            return others[i].where;
        }
    }
    return NULL;
}

/* Kinds that nobody measures, each with its reason. */
static const char *not_measured(mf_op_kind k) {
    return is_planned_alone(k) ? "nothing runs it" : NULL;
}

static void every_op_has_a_reference(void **state) {
    (void)state;
    for (int k = 0; k < MF_OP_COUNT; k++) {
        bool runs = mf_exec_op_function((mf_op_kind)k) != NULL,
             elsewhere = runs_elsewhere((mf_op_kind)k) != NULL || is_planned_alone((mf_op_kind)k);
        if (runs == elsewhere) {
            fail_msg("%s: %s", mf_op_text((mf_op_kind)k),
                     runs ? "runs, but is listed as if not" : "nothing runs it");
        }
    }
}

typedef struct seen {
    const mf_cluster *cluster;
    bool kind[MF_OP_COUNT];
} seen;

static int see(const mf_point *p, void *user) {
    seen *s = user;
    mf_op op;
    if (mf_cost_point_op(p, s->cluster, &op, NULL) == MF_OK && !(op.flags & MF_SAMPLE_COPY)) {
        s->kind[op.kind] = true;
    }
    return 0;
}

static void expect_all(const seen *s, const char *what) {
    for (int k = 0; k < MF_OP_COUNT; k++) {
        bool excused = not_measured((mf_op_kind)k) != NULL;
        if (s->kind[k] == excused) {
            fail_msg("%s: %s", mf_op_text((mf_op_kind)k),
                     excused ? "listed as not measured, but it is" : what);
        }
    }
}

static void every_op_is_measured(void **state) {
    (void)state;
    mf_cluster c;
    mf_measure_list l = {NULL, 0, 0};
    seen s = {&c, {false}};
    assert_ok(mf_cluster_load("h200", &c, NULL));
    assert_ok(mf_measure_plan_gpu(1, &l, NULL));
    assert_ok(mf_measure_plan_collectives(2, 1, &l, NULL));
    for (int64_t i = 0; i < l.n; i++) {
        (void)see(&l.point[i], &s);
    }
    expect_all(&s, "no point of the general grid measures it");
    mf_measure_list_clear(&l);
}

static int see_shipped(const mf_point *p, void *user) {
    return strcmp(p->gpu, "h200") == 0 && p->high_s > p->low_s ? see(p, user) : 0;
}

static void every_op_has_measured_rows_that_ship(void **state) {
    (void)state;
    mf_cluster c;
    seen s = {&c, {false}};
    assert_ok(mf_cluster_load("h200", &c, NULL));
    assert_ok(mf_store_each_shipped(see_shipped, &s, NULL));
    expect_all(&s, "no row that ships was measured");
}

static void every_op_is_in_the_table_of_kernels(void **state) {
    (void)state;
    const size_t size = 1 << 18;
    char *text = calloc(size, 1);
    FILE *f = fopen(MF_DATA_DIR "/../kernels/README.md", "r");
    assert_non_null(text);
    assert_non_null(f);
    assert_above(fread(text, 1, size - 1, f), 0);
    fclose(f);
    for (int k = 0; k < MF_OP_COUNT; k++) {
        char row[64];
        snprintf(row, sizeof row, "\n| `%s` |", mf_op_text((mf_op_kind)k));
        if (strstr(text, row) == NULL) {
            fail_msg("kernels/README.md has no row of %s", mf_op_text((mf_op_kind)k));
        }
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_reference),
        cmocka_unit_test(every_op_is_measured),
        cmocka_unit_test(every_op_has_measured_rows_that_ship),
        cmocka_unit_test(every_op_is_in_the_table_of_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
