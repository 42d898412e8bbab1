/* test_shadow_grid.c - folded layouts on shadows of GPUs (tests/support/shadow_device.h): every
 * rank's steps leave what they leave on CPU ranks, to the bit, in whatever order queues are worked
 * on; no two of a rank's queues touch the same bytes at once; and nobody waits for ever. Layouts
 * are those of test_executor_grid. Ranks are processes of this program.
 *
 *     test_shadow_grid --case RANKS [CASE]  the layouts of so many ranks, or one of them
 *     test_shadow_grid --child RANKS [CASE] the same, on ranks of another launcher
 *     MF_SHADOW_CASES=60 test_shadow_grid   so many of each number of ranks
 */
#include "executor/comm/comm_launch.h"
#include "tests/support/sampled.h"
#include "tests/support/shadow_grid.h"

#include <unistd.h>

static const struct { int ranks, cases; } grids[] = {{1, 6}, {2, 11}, {4, 11}, {8, 4}};

static const shadow_grid_rules rules = {.slots = true};

static int child(int ranks, int only) {
    int64_t rank = 0, size = 1;
    int failed = 0, cases = 0, played = 0;
    mf_err e = {.text = ""};
    if (mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    for (size_t k = 0; k < sizeof grids / sizeof grids[0]; k++) {
        cases = grids[k].ranks == ranks ? grids[k].cases : cases;
    }
    cases = getenv("MF_SHADOW_CASES") != NULL ? atoi(getenv("MF_SHADOW_CASES")) : cases;
    rng r = grid_seed(ranks);
    for (int i = 0; i < cases || i <= only; i++) {
        mf_layout l;
        char name[320];
        const grid_model *m = grid_draw(&r, ranks, &l);
        l.precision = i % 2 == 0 ? MF_PREC_FP32 : MF_PREC_BF16;
        /* An odd stride goes through both precisions and seeds of either parity. */
        const bool left = cases_sampled() && i % 5 != 3;
        if (m->starved || (only >= 0 ? i != only : left)) {
            continue;
        }
        played++;
        if (shadow_grid_compare(m, &l, &rules, 100 * (uint64_t)ranks + (uint64_t)i, &e) != MF_OK) {
            grid_describe(&l, m, name, sizeof name);
            printf("rank %lld: case %d (%s %s): %s\n", (long long)rank, i, name,
                   mf_precision_text(l.precision), e.text);
            failed++;
            mf_comm_abort(1);
        }
    }
    if (rank == 0) {
        printf("%d ranks: %d layouts, %d failed on rank 0\n", ranks, played, failed);
    }
    mf_comm_stop();
    return failed > 0;
}

static int launch_case(int ranks, char *only) {
    char count[16], self[4096], child_word[] = "--child";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_above(length, 0);
    self[length] = '\0';
    snprintf(count, sizeof count, "%d", ranks);
    char *argv[] = {self, child_word, count, only, NULL};
    int code = -1;
    mf_err e;
    assert_ok(mf_comm_launch(ranks, argv, NULL, &code, &e));
    return code;
}

static void launch(int ranks) {
    assert_int_equal(launch_case(ranks, NULL), 0);
}

static void one_rank_leaves_what_the_cpu_leaves(void **state) {
    (void)state;
    launch(1);
}

static void two_ranks_leave_what_cpus_leave(void **state) {
    (void)state;
    launch(2);
}

static void four_ranks_leave_what_cpus_leave(void **state) {
    (void)state;
    launch(4);
}

static void eight_ranks_leave_what_cpus_leave(void **state) {
    (void)state;
    launch(8);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_leaves_what_the_cpu_leaves),
        cmocka_unit_test(two_ranks_leave_what_cpus_leave),
        cmocka_unit_test(four_ranks_leave_what_cpus_leave),
        cmocka_unit_test(eight_ranks_leave_what_cpus_leave),
    };
    if (argc > 2 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]), argc > 3 ? atoi(argv[3]) : -1);
    }
    if (argc > 2 && strcmp(argv[1], "--case") == 0) {
        return launch_case(atoi(argv[2]), argc > 3 ? argv[3] : NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
