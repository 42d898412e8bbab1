/* Which of several ranks is reported as slow, where devices are asynchronous: by each device's own
 * clock, over 20 steps; no rank is reported for a few milliseconds, for a first step or for a small
 * difference. Ranks are processes of this program. */
#include "executor/comm/comm_launch.h"
#include "executor/train/run.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, WINDOW = 20, OPS = 2, POSITIONS = 6, SLOW_LAYER = 2 };

/* So far: half of what a device works is in the first layer's first op and what follows it, the
 * rest in the second op of another layer. */
static int64_t span_ns[POSITIONS * OPS];

static int warnings;
static char last[512];

static void warned(void *user, const char *line) {
    (void)user;
    warnings++;
    snprintf(last, sizeof last, "%s", line);
}

/* So many more steps of 100 ms, in which this rank's device works for worked_s. */
static void steps(run *r, int count, double worked_s, mf_train_metrics *m) {
    mf_err e;
    const mf_exec_result result = {.took_s = 0.1, .worked_s = worked_s, .span_ns = span_ns};
    for (int i = 0; i < count; i++) {
        span_ns[OPS] += 25000000;
        span_ns[(1 + SLOW_LAYER) * OPS + 1] += (int64_t)(1e9 * worked_s) - 25000000;
        r->done++;
        r->own++;
        mf_run_pace_begin(r);
        if (mf_run_pace_end(r, &result, m, &e) != MF_OK) {
            printf("%s\n", e.text);
            mf_comm_abort(1);
        }
    }
}

static void require(bool truth, int line) {
    if (!truth) {
        printf("line %d: %d warnings, the last: %s\n", line, warnings, last);
        mf_comm_abort(1);
    }
}
#define REQUIRE(truth) require(truth, __LINE__)

static void judge(run *r, int64_t rank) {
    const int said = rank == 0; /* for all */
    mf_train_metrics m = {0};
    steps(r, 1, rank == 2 ? 9.0 : 0.05, &m); /* the first one counts for nothing */
    steps(r, WINDOW, 0.05, &m);
    steps(r, 2 * WINDOW, rank == 2 ? 0.05 / 0.78 : 0.05, &m);
    REQUIRE(warnings == 0);
    steps(r, WINDOW, rank == 2 ? 0.08 : 0.05, &m);
    REQUIRE(warnings == said);
    REQUIRE(!said || m.slowest_rank == 2.0);
    REQUIRE(!said || (strstr(last, ": rank 2 on ") != NULL && strstr(last, " is slow: ") != NULL &&
                      strstr(last, "(score 0.") != NULL));
    REQUIRE(!said || strstr(last, ", most from fc1 (forward) of layer 2 on: 0.0") != NULL);
    REQUIRE(!said || (fabs(m.work_slowest_s - 0.08) < 1e-9 && fabs(m.work_median_s - 0.05) < 1e-9));
    steps(r, WINDOW, rank == 2 ? 0.08 : 0.05, &m); /* it is said once, */
    steps(r, WINDOW, 0.05, &m);                    /* and it is well again */
    REQUIRE(warnings == said);
    steps(r, WINDOW, rank == 3 ? 0.08 : 0.05, &m);
    REQUIRE(warnings == 2 * said);
    REQUIRE(!said || strstr(last, ": rank 3 on ") != NULL);
    steps(r, WINDOW, 0.001, &m);
    steps(r, WINDOW, rank == 1 ? 0.009 : 0.001, &m);
    REQUIRE(warnings == 2 * said);
}

static int child(void) {
    static const mf_device_ops behind = {.on_host = false};
    mf_device device = {.ops = &behind};
    const mf_model model = {.layers = 4, .heads = 4, .kv_heads = 4};
    const mf_train_options o = {.warned = warned};
    mf_op ops[OPS] = {{.name = "qkv_proj", .pass = MF_PASS_F}, {.name = "fc1", .pass = MF_PASS_F}};
    mf_block block = {.ops = ops, .nops = OPS}, *blocks[] = {&block};
    static mf_program program;
    run r = {.o = &o, .device = &device, .program = &program};
    program.model = model;
    program.blocks = blocks;
    program.nblocks = 1;
    program.assignment.positions = POSITIONS;
    int64_t rank = 0, size = 1;
    mf_err e = {.text = ""};
    mf_layout_init(&r.layout);
    r.layout.gpus = RANKS;
    r.layout.gbs = RANKS;
    REQUIRE(mf_comm_start(&rank, &size, &e) == MF_OK && size == RANKS);
    REQUIRE(mf_layout_resolve(&r.layout, &model, &e) == MF_OK);
    REQUIRE(mf_comm_create(&r.layout, &r.comm, &e) == MF_OK);
    REQUIRE(mf_run_has_pace(&r) && mf_run_pace_open(&r, &e) == MF_OK);
    judge(&r, rank);
    mf_run_pace_close(&r);
    mf_comm_destroy(r.comm);
    mf_comm_stop();
    return 0;
}

static void a_slow_device_is_named_by_its_own_clock(void **state) {
    (void)state;
    char self[4096], child_word[] = "--child", *argv[] = {self, child_word, NULL};
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    int code = -1;
    mf_err e;
    assert_above(length, 0);
    self[length] = '\0';
    assert_ok(mf_comm_launch(RANKS, argv, NULL, &code, &e));
    assert_int_equal(code, 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_device_is_named_by_its_own_clock),
    };
    return argc > 1 && strcmp(argv[1], "--child") == 0 ? child()
                                                       : cmocka_run_group_tests(tests, NULL, NULL);
}
