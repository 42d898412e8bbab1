/* Communicators in host memory: every operation over every group gives what it has to, also where
 * messages are longer than one call takes. The program starts itself again as several ranks. */
#include "executor/comm/comm_launch.h"
#include "executor/comm/comm_status.h"
#include "tests/support/comm_case.h"
#include "tests/support/sampled.h"
#include "tests/support/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const comm_memory host = {0};
static const char *program;

/* BF16 is summed in float and rounded once: 256 + 1 + 1 and so on, where each step would round to
 * 256 again. */
static int sums_once(mf_comm *c, int64_t ranks, mf_err *e) {
    enum { EACH = 5 };
    uint16_t in[CASE_RANKS * EACH], out[EACH];
    int64_t counts[CASE_RANKS];
    for (int64_t i = 0; i < ranks; i++) {
        counts[i] = EACH;
    }
    for (int64_t k = 0; k < ranks * EACH; k++) {
        in[k] = mf_kernel_bf16_round(mf_comm_rank(c) == 0 ? 256.0f : 1.0f);
    }
    bool ok = mf_comm_reduce_scatter(c, MF_GROUP_WORLD, MF_COMM_BF16, in, out, counts, e) == MF_OK;
    for (int k = 0; k < EACH && ok; k++) {
        ok = out[k] == mf_kernel_bf16_round(256.0f + (float)(ranks - 1));
    }
    return !ok;
}

/* A second communicator beside the first, with other groups, and a third in its place. */
static int in_turns(const mf_layout *l, mf_comm *first, int *checks) {
    int failed = 0;
    for (int i = 0; i < 3; i++) {
        mf_comm *c = NULL;
        mf_group_kind added = MF_GROUP_NONE;
        mf_layout other = *l;
        mf_err e = {.text = ""};
        if (i % 2 == 0) {
            other.tp = l->gpus;
            other.dp = other.pp = 1;
            other.ep = 1;
            other.edp = l->gpus;
        }
        if (mf_comm_create(&other, &c, &e) != MF_OK ||
            mf_comm_add(c, mf_comm_rank(c) % 2, &added, &e) != MF_OK) {
            printf("%s\n", e.text);
            return 1;
        }
        failed += case_run(c, &other, added, &host, 11, checks);
        failed += mf_comm_barrier(first, &e) != MF_OK;
        failed += case_run(c, &other, added, &host, 12, checks);
        mf_comm_destroy(c);
    }
    return failed;
}

/* Every rank writes its place, and sees the others'. */
static int shared_memory(mf_comm *c, int ranks, mf_err *e) {
    mf_comm_shared s;
    if (ranks == 1) {
        return 0;
    }
    if (mf_comm_map_shared(c, 2 * sizeof(int), sizeof(int), &s, e) != MF_OK || s.ranks != ranks) {
        return 1;
    }
    volatile int *seen = s.data;
    int failed = seen[0] != 0 || seen[1] != 0;
    seen[2 + s.me] = s.me + 1;
    failed += mf_comm_barrier(c, e) != MF_OK;
    for (int r = 0; r < ranks; r++) {
        failed += seen[2 + r] != r + 1;
    }
    failed += mf_comm_barrier(c, e) != MF_OK;
    s.release(&s);
    return failed;
}

/* However often the outcome of one rank's failure is agreed on, that rank keeps the only words of
 * it; one that has none gets some; of two with words the lower speaks. */
static int agreed_and_reported_once(mf_comm *c, int64_t ranks) {
    int failed = 0;
    for (int64_t k = 0; k < 3 * ranks; k++) {
        const int64_t who = k / 3, also = k % 3 == 2 ? ranks - 1 : who;
        bool fails = mf_comm_rank(c) == who || mf_comm_rank(c) == also;
        mf_err e = {.text = ""};
        mf_status status = !fails       ? MF_OK
                           : k % 3 == 1 ? MF_NOMEM
                                        : mf_err_set(&e, MF_IO, "rank's own words");
        for (int times = 0; times < 3; times++) {
            status = mf_comm_agree(c, status, &e);
        }
        bool speaks = e.text[0] != '\0';
        failed += status != (k % 3 == 1 ? MF_NOMEM : MF_IO) || speaks != (mf_comm_rank(c) == who) ||
                  (speaks && k % 3 != 1 && strcmp(e.text, "rank's own words") != 0);
    }
    return failed;
}

/* Counts of one piece and less, and of many pieces when they are short. */
static int child(int ranks) {
    static const int64_t pieces[] = {0, 7, 1000};
    int64_t rank = 0, size = 1;
    int failed = 0, checks = 0;
    mf_err e = {.text = ""};
    mf_comm *c = NULL;
    mf_group_kind added = MF_GROUP_NONE, none = MF_GROUP_NONE;
    mf_layout l = case_layout(ranks);
    if (mf_comm_start(&rank, &size, &e) != MF_OK || size != ranks ||
        mf_comm_create(&l, &c, &e) != MF_OK || mf_comm_add(c, rank % 2, &added, &e) != MF_OK ||
        mf_comm_add(c, rank == 0 ? -1 : 3, &none, &e) != MF_OK) {
        printf("ranks: %lld of %d: %s\n", (long long)size, ranks, e.text);
        return 1;
    }
    failed += mf_comm_group_size(c, none) != (rank == 0 || ranks == 1 ? 1 : ranks - 1);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        if (pieces[i] > 0) {
            mf_comm_mpi_set_longest(c, pieces[i]);
        }
        failed += case_run(c, &l, added, &host, 1, &checks);
        failed += case_run(c, &l, added, &host, 37, &checks);
        failed += sums_once(c, ranks, &e);
    }
    failed += case_run(c, &l, added, &host, 3000, &checks);
    failed += in_turns(&l, c, &checks);
    if (getenv("MOEFOLD_RANKS_FILE") != NULL) { /* several rounds of what ranks show each other */
        failed += case_run(c, &l, added, &host, 140001, &checks);
    }
    failed += shared_memory(c, ranks, &e);
    failed += agreed_and_reported_once(c, ranks);
    if (rank == 0) {
        printf("%d ranks: %d operations, %d wrong\n", ranks, checks, failed);
    }
    mf_comm_destroy(c);
    mf_comm_stop();
    return failed > 0;
}

static void launch(int ranks) {
    char command[512];
    if (!mf_comm_has_mpi() || system("command -v mpirun >/dev/null 2>&1") != 0) {
        printf("MF_SKIPPED 1 no MPI: %d ranks are not tested\n", ranks);
        skip();
    }
    fflush(stdout);
    snprintf(command, sizeof command,
             "mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 "
             "--mca btl_vader_single_copy_mechanism none -x ASAN_OPTIONS=detect_leaks=0 "
             "-n %d %s --child %d", /* MPI's own leaks are not ours */
             ranks, program, ranks);
    int result = system(command);
    assert_true(WIFEXITED(result));
    assert_true(WEXITSTATUS(result) == 0);
}

static int launch_here(int ranks, const char *what) {
    char count[16], self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_above(length, 0);
    self[length] = '\0';
    snprintf(count, sizeof count, "%d", ranks);
    char child_word[] = "--child", *argv[] = {self, child_word, count, NULL, NULL};
    char word[16];
    snprintf(word, sizeof word, "%s", what);
    argv[3] = *what != '\0' ? word : NULL;
    int code = -1;
    mf_err e;
    assert_ok(mf_comm_launch(ranks, argv, NULL, &code, &e));
    return code;
}

static void ranks_of_one_host_agree_with_the_definition(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= case_count(8, 4); ranks *= 2 * case_stride(2)) {
        assert_int_equal(launch_here(ranks, ""), 0);
    }
}

/* Rank 1 ends in the middle of things: the others do not wait for ever. */
static int end_badly(const char *how) {
    int64_t rank, size;
    mf_err e = {.text = ""};
    mf_comm *c;
    mf_layout l = case_layout(4);
    if (mf_comm_start(&rank, &size, &e) != MF_OK || mf_comm_create(&l, &c, &e) != MF_OK) {
        return 1;
    }
    if (rank == 1 && strcmp(how, "kill") == 0) {
        raise(SIGKILL);
    } else if (rank == 1 && strcmp(how, "abort") == 0) {
        mf_comm_abort(3);
    }
    bool reported = rank == 1 || (mf_comm_barrier(c, &e) == MF_LIBRARY && strstr(e.text, "rank 1"));
    mf_comm_destroy(c);
    mf_comm_stop();
    return reported ? 0 : 1;
}

static void a_rank_of_this_host_that_ends_is_missed(void **state) {
    (void)state;
    assert_int_equal(launch_here(4, "stop"), 0);
    assert_int_equal(launch_here(4, "abort"), 3);
    assert_int_equal(launch_here(4, "kill"), 128 + SIGKILL);
}

static void what_the_environment_says_is_checked(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"2", "2"}, {"-1", "2"},   {"x", "2"},
                                         {"0", "0"}, {"0", "9999"}, {"", "2"}};
    int64_t rank, size;
    mf_err e;
    setenv("MOEFOLD_RANKS_FILE", "/nowhere/file", 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("MOEFOLD_RANK", bad[i][0], 1);
        setenv("MOEFOLD_RANKS", bad[i][1], 1);
        assert_true(mf_comm_launched());
        assert_int_equal(mf_comm_start(&rank, &size, &e), MF_USAGE);
    }
    setenv("MOEFOLD_RANK", "1", 1);
    assert_int_equal(mf_comm_start(&rank, &size, &e), MF_LIBRARY); /* no such folder */
    unsetenv("MOEFOLD_RANK");
    assert_false(mf_comm_launched());
}

static void one_rank_copies(void **state) {
    (void)state;
    assert_int_equal(child(1), 0);
}

static void two_ranks_of_mpi_agree_with_the_definition(void **state) {
    (void)state;
    launch(2);
}

static void four_ranks_of_mpi_agree_with_the_definition(void **state) {
    (void)state;
    if (!cases_sampled()) { /* as two of them do it, and four of one host */
        launch(4);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_copies),
        cmocka_unit_test(ranks_of_one_host_agree_with_the_definition),
        cmocka_unit_test(a_rank_of_this_host_that_ends_is_missed),
        cmocka_unit_test(what_the_environment_says_is_checked),
        cmocka_unit_test(two_ranks_of_mpi_agree_with_the_definition),
        cmocka_unit_test(four_ranks_of_mpi_agree_with_the_definition),
    };
    program = argv[0];
    if (argc > 2 && strcmp(argv[1], "--child") == 0) {
        return argc > 3 ? end_badly(argv[3]) : child(atoi(argv[2]));
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
