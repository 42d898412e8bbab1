/* Ranks of one host that look after each other: who works at one thing for ever is named and ends,
 * with all others; who takes long where that says nothing is left alone. */
#include "core/base/clock.h"
#include "executor/comm/comm_launch.h"
#include "executor/comm/rank_watch.h"
#include "tests/support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 2 };
#define HANG_S 0.6

static void nap(double s) {
    const struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

/* --- a rank -------------------------------------------------------------------------------------
 */

typedef struct rank_of_two {
    mf_comm *comm;
    mf_rank_watch *watch;
    int64_t me;
} rank_of_two;

static void say(void *user, const char *line) {
    FILE *f = fopen(user, "a");
    if (f != NULL) {
        fprintf(f, "%s\n", line);
        fclose(f);
    }
}

/* The other rank waits for it behind that. */
static int work(const rank_of_two *r, double s) {
    mf_err e;
    if (r->me == 1) {
        nap(s);
    }
    return mf_comm_barrier(r->comm, &e) == MF_OK ? 0 : 90;
}

static int step(const rank_of_two *r, bool first, double s) {
    mf_rank_watch_enter_step(r->watch, first);
    mf_rank_watch_set_phase(r->watch, 7, "expert_fc1");
    int code = work(r, s);
    mf_rank_watch_leave_step(r->watch);
    return code;
}

static int waits_for_the_other(const rank_of_two *r) {
    char byte = 0;
    mf_err e;
    mf_rank_watch_enter_step(r->watch, false);
    mf_rank_watch_set_phase(r->watch, 7, "receive");
    return mf_comm_receive(r->comm, 0, 1 - r->me, 3, &byte, 1, &e) == MF_OK ? 0 : 90;
}

static int stops(const rank_of_two *r) {
    if (r->me == 1) {
        mf_rank_watch_set_phase(r->watch, 7, "checkpoint");
        raise(SIGSTOP);
    }
    return work(r, 0.0);
}

/* Before its own patience ends, as a thread that looks after a device does. */
static int blames(const rank_of_two *r) {
    if (r->me == 0) {
        nap(0.2);
        mf_rank_watch_find_stopped(r->watch);
        return 91;
    }
    return stops(r);
}

static int waited(const rank_of_two *r) {
    int code = work(r, 1.0);
    double s = mf_rank_watch_waited_s(r->watch);
    return code != 0 ? code : r->me == 0 ? (s > 0.8 ? 0 : 92) : (s < 0.7 ? 0 : 93);
}

static int be_rank(const char *what, char *log) {
    const bool patient = strcmp(what, "patient") == 0 || strcmp(what, "blames") == 0;
    rank_of_two r = {0};
    mf_layout l;
    mf_model m;
    int64_t ranks;
    mf_err e = {.text = ""};
    mf_layout_init(&l);
    l.gpus = l.gbs = RANKS;
    if (mf_model_load("tests/data/hf/llama/config.json", &m, &e) != MF_OK ||
        mf_layout_resolve(&l, &m, &e) != MF_OK || mf_comm_start(&r.me, &ranks, &e) != MF_OK ||
        mf_comm_create(&l, &r.comm, &e) != MF_OK ||
        mf_rank_watch_open(r.comm, NULL, patient ? 0.0 : HANG_S, say, log, &r.watch, &e) != MF_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 94;
    }
    int code = 95;
    if (strcmp(what, "works") == 0 || strcmp(what, "patient") == 0) {
        code = step(&r, false, strcmp(what, "works") == 0 ? 60.0 : 1.5);
    } else if (strcmp(what, "first") == 0) {
        code = step(&r, true, 1.5);
    } else if (strcmp(what, "between") == 0) {
        mf_rank_watch_set_phase(r.watch, 7, "checkpoint");
        code = work(&r, 1.5);
    } else if (strcmp(what, "longer") == 0) { /* 4 times the first step's 0.5 s */
        code = step(&r, true, 0.5);
        code = code == 0 ? step(&r, false, 1.5) : code;
    } else if (strcmp(what, "knot") == 0) {
        code = waits_for_the_other(&r);
    } else if (strcmp(what, "stops") == 0) {
        code = stops(&r);
    } else if (strcmp(what, "blames") == 0) {
        code = blames(&r);
    } else if (strcmp(what, "waited") == 0) {
        code = waited(&r);
    }
    mf_rank_watch_close(r.watch, true);
    mf_comm_destroy(r.comm);
    mf_comm_stop();
    return code;
}

/* --- two of them --------------------------------------------------------------------------------
 */

typedef struct outcome {
    int code, lines;
    double took_s;
    char said[1024]; /* the last line */
} outcome;

static outcome play(const char *what) {
    char self[] = "/proc/self/exe", word[] = "--rank", log[] = "/tmp/mf-watch-XXXXXX", name[16];
    char *argv[] = {self, word, name, log, NULL};
    outcome o = {0};
    mf_err e;
    int file = mkstemp(log);
    assert_at_least(file, 0);
    close(file);
    snprintf(name, sizeof name, "%s", what);
    double began_s = mf_clock_s();
    assert_ok(mf_comm_launch(RANKS, argv, NULL, &o.code, &e)); /* no rank is left behind that */
    o.took_s = mf_clock_s() - began_s;
    FILE *f = fopen(log, "r");
    assert_non_null(f);
    while (fgets(o.said, sizeof o.said, f) != NULL) {
        o.lines++;
    }
    fclose(f);
    unlink(log);
    printf("%-8s exit code %d after %.2f s %s", what, o.code, o.took_s,
           o.lines > 0 ? o.said : "\n");
    return o;
}

static void is_named(const char *what, const char *begins, const char *has) {
    char host[64] = "";
    outcome o = play(what);
    assert_int_equal(o.lines, 1);
    assert_true(strncmp(o.said, begins, strlen(begins)) == 0);
    assert_non_null(strstr(o.said, has));
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    assert_non_null(strstr(o.said, host));
    assert_true(o.code == 1 || o.code == 128 + SIGKILL);
    assert_below(o.took_s, 10.0);
}

static void goes_on(const char *what, double least_s) {
    outcome o = play(what);
    assert_int_equal(o.lines, 0);
    assert_int_equal(o.code, 0);
    assert_at_least(o.took_s, least_s);
}

static void a_rank_that_works_at_one_thing_for_ever_is_named(void **state) {
    (void)state;
    is_named("works", "rank 1 (process ", "hangs: step 7, for 0.");
}

static void a_rank_that_takes_long_where_that_says_nothing_is_left_alone(void **state) {
    (void)state;
    goes_on("first", 1.5);
    goes_on("between", 1.5);
    goes_on("longer", 2.0);
    goes_on("patient", 1.5);
}

static void ranks_that_wait_for_one_another_are_named(void **state) {
    (void)state;
    is_named("knot", "the 2 ranks of ", "rank 1 (process ");
}

static void a_stopped_rank_is_named_wherever_it_is(void **state) {
    (void)state;
    is_named("stops", "rank 1 (process ", "step 7, its process is stopped for 0.");
    is_named("blames", "rank 1 (process ", "step 7, its process is stopped for 0 s");
}

static void what_a_rank_waits_is_counted(void **state) {
    (void)state;
    goes_on("waited", 1.0);
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--rank") == 0) {
        return be_rank(argv[2], argv[3]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_works_at_one_thing_for_ever_is_named),
        cmocka_unit_test(a_rank_that_takes_long_where_that_says_nothing_is_left_alone),
        cmocka_unit_test(ranks_that_wait_for_one_another_are_named),
        cmocka_unit_test(a_stopped_rank_is_named_wherever_it_is),
        cmocka_unit_test(what_a_rank_waits_is_counted),
    };
    cmocka_set_test_filter(getenv("MF_TEST"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
