/* A training step takes no memory of its own: everything that it works in stands in the arena (or
 * was made with the executor). Allocations that come from this program's code are counted, on one
 * rank and on several; what MPI does inside is its own affair. The program starts itself again
 * under mpirun. */
#include "tests/support/grid_case.h"
#include "tests/support/test.h"

#include <errno.h>
#include <sys/wait.h>

/* --- counting ----------------------------------------------------------------------------------
 */

static int64_t allocations;
static bool counting;

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define COUNTS 1
/* The library's own names of what is replaced here. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern char __executable_start, etext;

static void count(const void *caller) {
    const char *from = caller;
    allocations += counting && from >= &__executable_start && from < &etext;
}

__attribute__((noinline)) void *malloc(size_t size) {
    count(__builtin_return_address(0));
    return __libc_malloc(size);
}

__attribute__((noinline)) void *calloc(size_t n, size_t size) {
    count(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

__attribute__((noinline)) void *realloc(void *old, size_t size) {
    count(__builtin_return_address(0));
    return __libc_realloc(old, size);
}

__attribute__((noinline)) void *aligned_alloc(size_t align, size_t size) {
    count(__builtin_return_address(0));
    return __libc_memalign(align, size);
}
#else
#define COUNTS 0
#endif

/* --- layouts ------------------------------------------------------------------------------------
 */

static const struct {
    int ranks, tp, cp, pp, ep, etp, mbs, zero;
    mf_schedule_kind schedule;
    mf_precision precision;
    int model; /* of grid_models */
    double host;
} cases[] = {
    {1, 1, 1, 1, 1, 1, 2, 1, MF_SCHED_1F1B, MF_PREC_FP32, 1, 0.0},
    {1, 1, 1, 1, 1, 1, 2, 1, MF_SCHED_1F1B, MF_PREC_BF16, 0, 0.5},
    {1, 1, 1, 1, 1, 1, 2, 1, MF_SCHED_MERGED, MF_PREC_FP32, 4, 0.0},
    {4, 2, 2, 1, 4, 1, 4, 3, MF_SCHED_1F1B, MF_PREC_BF16, 1, 0.5},
    {4, 2, 1, 2, 1, 2, 2, 1, MF_SCHED_ZB_H1, MF_PREC_BF16, 2, 0.0},
    {4, 1, 1, 2, 2, 1, 1, 2, MF_SCHED_MERGED, MF_PREC_FP32, 5, 0.0},
    {4, 4, 1, 1, 2, 2, 4, 0, MF_SCHED_1F1B, MF_PREC_BF16, 0, 0.0},
};

static int child(int ranks) {
    int64_t rank, size;
    mf_err e = {.text = ""};
    int failed = 0;
    if (mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks) {
        printf("ranks: %s\n", e.text);
        return 1;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        grid_case g;
        mf_layout l;
        mf_exec_options o;
        if (cases[i].ranks != ranks) {
            continue;
        }
        grid_layout_init(&l);
        grid_options(&o);
        o.z_coef = 0.01;
        l.gpus = ranks;
        l.tp = cases[i].tp;
        l.cp = cases[i].cp;
        l.pp = cases[i].pp;
        l.ep = cases[i].ep;
        l.etp = cases[i].etp;
        l.mbs = cases[i].mbs;
        l.zero = l.expert_zero = (uint8_t)cases[i].zero;
        l.schedule = cases[i].schedule;
        l.precision = cases[i].precision;
        l.offload_optimizer = cases[i].host;
        mf_status s = grid_open(&g, &grid_models[cases[i].model], &l, &o, NULL, &e);
        for (g.step = 0; g.step < 2 && s == MF_OK; g.step++) { /* the first one, too */
            const mf_exec_batch batch = {grid_sample, &g};
            mf_exec_result r;
            allocations = 0;
            counting = true;
            s = mf_exec_step(g.exec, &batch, 1e-3, &r, &e);
            counting = false;
            if (allocations > 0) {
                printf("rank %lld, case %zu: %lld allocations in step %lld\n", (long long)rank, i,
                       (long long)allocations, (long long)g.step + 1);
                failed++;
            }
        }
        double arena = s == MF_OK ? (double)mf_exec_arena_B(g.exec) : 0.0;
        if (s == MF_OK &&
            (arena != (double)mf_exec_high_B(g.exec) || arena != mf_exec_planned_B(g.exec))) {
            printf("rank %lld, case %zu: arena %.0f of %.0f\n", (long long)rank, i, arena,
                   mf_exec_planned_B(g.exec));
            failed++;
        }
        if (s != MF_OK) {
            printf("rank %lld, case %zu: %s\n", (long long)rank, i, e.text);
            fflush(stdout);
            mf_comm_abort(1);
        }
        grid_close(&g);
    }
    mf_comm_stop();
    return failed > 0;
}

static const char *program;

static void launch(int ranks) {
    char command[512];
    if (!COUNTS) {
        printf("MF_SKIPPED 1 allocations cannot be counted in this build\n");
        return;
    }
    if (ranks > 1 && (!mf_comm_has_mpi() || system("command -v mpirun >/dev/null 2>&1") != 0)) {
        printf("MF_SKIPPED 1 no MPI: %d ranks are not tested\n", ranks);
        return;
    }
    fflush(stdout);
    if (ranks == 1) {
        snprintf(command, sizeof command, "%s --child 1", program);
    } else {
        snprintf(command, sizeof command,
                 "mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "
                 "--mca btl_vader_single_copy_mechanism none -n %d %s --child %d",
                 ranks, program, ranks);
    }
    int result = system(command);
    assert_true(WIFEXITED(result));
    assert_true(WEXITSTATUS(result) == 0);
}

static void a_step_of_one_rank_takes_no_memory(void **state) {
    (void)state;
    launch(1);
}

static void a_step_of_four_ranks_takes_no_memory(void **state) {
    (void)state;
    launch(4);
}

/* Counting works. */
static void allocations_of_this_program_are_counted(void **state) {
    (void)state;
    mf_cluster c;
    allocations = 0;
    counting = true;
    assert_ok(mf_cluster_load("cpu", &c, NULL));
    counting = false;
    assert_true((allocations > 0) == COUNTS);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_of_this_program_are_counted),
        cmocka_unit_test(a_step_of_one_rank_takes_no_memory),
        cmocka_unit_test(a_step_of_four_ranks_takes_no_memory),
    };
    program = argv[0];
    if (argc > 2 && strcmp(argv[1], "--child") == 0) {
        return child(atoi(argv[2]));
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
