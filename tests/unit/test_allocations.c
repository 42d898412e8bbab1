/* Every allocation of a plan, a simulation and the start of a training run, of one rank and of the
 * second of two, fails once in turn (tests/preload/fault_malloc.c). The command then says that
 * memory is out, in one line (the other rank may add that this one has ended), and ends with an
 * exit code of its own; or it does without, and its
 * results are those of a run in which none failed. Nothing that it asked for is kept.
 *
 * A sample of them: MF_ALLOCATIONS says of how many (`make test-allocations`: all), or which of all
 * as "K/N": every Nth, from the Kth, so that N processes share them. Nothing under sanitizers,
 * which allocate themselves. MF_TEST: the one test to run (a pattern).
 */
#include "tests/support/rng.h"
#include "tests/support/train_run.h"

enum { OUTPUT_B = 1 << 20 };

static char library[512];
static const char *rank = ""; /* MF_ALLOC_RANK, where one of several ranks is meant */
static char calm[OUTPUT_B], tried[OUTPUT_B], said[OUTPUT_B];

typedef struct outcome {
    int code;
    bool reported; /* the shim has */
    long calls, failed, kept;
    unsigned long by;
} outcome;

static void slurp(const char *name, char *out) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", scratch, name);
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(out, 1, OUTPUT_B - 1, f) : 0;
    if (f != NULL) {
        fclose(f);
    }
    out[n] = '\0';
}

static bool read_outcome(const char *line, outcome *o) {
    return sscanf(line, "calls %ld failed %ld kept %ld by %lx", &o->calls, &o->failed, &o->kept,
                  &o->by) == 4;
}

static int code_of(int result) {
    return WIFEXITED(result) ? WEXITSTATUS(result) : 128 + WTERMSIG(result);
}

/* The command, with more variables for the shim. */
static int start(const char *command, const char *variables) {
    static char text[4096];
    snprintf(text, sizeof text,
             "cd %s && rm -rf run log* && cd - >/dev/null && LD_PRELOAD=%s MF_ALLOC_LOG=%s/log %s "
             "PATH=/nowhere %s %s %s >%s/out 2>%s/err </dev/null",
             scratch, library, scratch, variables, rank, binary, command, scratch, scratch);
    return code_of(system(text));
}

/* Allocation `call` of the command fails; 0: none. */
static outcome run_once(const char *command, long call) {
    static char log[OUTPUT_B];
    char variable[64];
    outcome o = {.reported = false};
    snprintf(variable, sizeof variable, "MF_ALLOC_CALL=%ld", call);
    o.code = start(command, variable);
    slurp("log", log);
    o.reported = read_outcome(log, &o);
    return o;
}

/* One line of the program, which speaks of memory. A rank that waits for the one that ended may see
 * it go before the launcher does, and says so. */
static bool is_told(const char *errors) {
    int lines = 0;
    bool memory = false;
    slurp(errors, said);
    for (const char *at = said; *at != '\0'; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL)) {
        const size_t length = strcspn(at, "\n");
        char line[4096];
        snprintf(line, sizeof line, "%.*s", (int)(length < 4095 ? length : 4095), at);
        lines += strncmp(line, "moefold", 7) == 0 &&
                 strstr(line, "rank 1 has ended while rank 0 waits for it") == NULL;
        memory = memory || strstr(line, "memory") != NULL;
    }
    return lines == 1 && memory;
}

static bool is_right(const outcome *o, bool compares, const char *output, const char *errors) {
    if (!o->reported || o->kept != 0 || o->code > 3) {
        return false;
    }
    if (o->code != 0) {
        return is_told(errors);
    }
    slurp(output, tried);
    return !compares || strcmp(calm, tried) == 0;
}

/* Which allocations fail, one a run: every step-th from the first one, or so many drawn. */
typedef struct choice {
    long first, step, drawn; /* drawn: 0 where they are taken in turn */
} choice;

static choice choose(long calls, int sample) {
    const char *wanted = getenv("MF_ALLOCATIONS");
    choice c = {.first = 1, .step = 1};
    if (wanted != NULL && sscanf(wanted, "%ld/%ld", &c.first, &c.step) == 2) {
        assert_at_least(c.first, 1);
        assert_at_least(c.step, c.first);
        assert_at_most(c.step, calls);
        return c;
    }
    const long most = wanted != NULL ? atol(wanted) : sample;
    c.drawn = most < calls ? most : 0;
    return c;
}

typedef struct tally {
    long done, did_without, wrong;
} tally;

static void count(tally *n, long call, const outcome *o, bool compares, const char *output,
                  const char *errors) {
    n->done += o->failed;
    n->did_without += o->failed != 0 && o->code == 0;
    if (!is_right(o, compares, output, errors)) {
        slurp(errors, said);
        printf("allocation %ld: exit code %d, %ld kept (0x%lx): %.300s\n", call, o->code, o->kept,
               o->by, said);
        n->wrong++;
    }
}

/* None fails: how many there are. */
static long run_calmly(const char *command) {
    const outcome base = run_once(command, 0);
    slurp("out", calm);
    if (!base.reported || base.code != 0 || base.kept != 0) {
        slurp("err", said);
        fail_msg("exit code %d, %ld blocks kept: %s", base.code, base.kept, said);
    }
    return base.calls;
}

static void hold(const tally *n, long calls) {
    printf("%ld of %ld allocations failed, %ld of them were done without, %ld not as promised\n",
           n->done, calls, n->did_without, n->wrong);
    assert_above(n->done, 0);
    assert_int_equal(n->wrong, 0);
}

static bool is_skipped(void) {
    if (getenv("MF_SANITIZED") != NULL) {
        printf("MF_SKIPPED 1 sanitizers allocate themselves\n");
        return true;
    }
    return false;
}

/* A run each. compares: what the command prints is the same whenever it runs. */
static void fail_in_turn(const char *command, bool compares, int sample) {
    if (is_skipped()) {
        return;
    }
    const long calls = run_calmly(command);
    const choice c = choose(calls, sample);
    rng r = rng_init((uint64_t)getpid());
    tally n = {0};
    for (long i = c.first; i <= (c.drawn > 0 ? c.drawn : calls); i += c.step) {
        const long call = c.drawn > 0 ? rng_range(&r, 1, calls) : i;
        const outcome o = run_once(command, call);
        count(&n, call, &o, compares, "out", "err");
    }
    hold(&n, calls);
}

/* One run, which forks a child for each: for commands of one thread. What comes before a failure
 * runs once, and most end right behind it: an eighth of the time. */
static void fail_in_children(const char *command, bool compares, int sample) {
    if (is_skipped()) {
        return;
    }
    const long calls = run_calmly(command);
    choice c = choose(calls, sample);
    rng r = rng_init((uint64_t)getpid());
    tally n = {0};
    outcome o = {.reported = false};
    long call;
    int result;
    char text[256], path[128], output[64], errors[64];
    if (c.drawn > 0) {
        c.step = calls / c.drawn;
        c.first = rng_range(&r, 1, c.step);
    }
    snprintf(text, sizeof text, "MF_ALLOC_FORK=%ld/%ld", c.first, c.step);
    assert_int_equal(start(command, text), 0);
    snprintf(path, sizeof path, "%s/log", scratch);
    FILE *log = fopen(path, "r");
    assert_non_null(log);
    while (fgets(text, sizeof text, log) != NULL) {
        if (sscanf(text, "call %ld status %d", &call, &result) != 2) {
            o.reported = read_outcome(text, &o);
            continue;
        }
        o.code = code_of(result);
        snprintf(output, sizeof output, "log.out.%ld", call);
        snprintf(errors, sizeof errors, "log.err.%ld", call);
        count(&n, call, &o, compares, output, errors);
        o = (outcome){.reported = false};
    }
    fclose(log);
    /* Nothing failed in the parent, which saw every call. */
    assert_true(o.reported);
    assert_true(o.failed == 0);
    assert_true(o.kept == 0);
    assert_true(o.calls == calls);
    hold(&n, calls);
}

static void any_allocation_of_a_plan_may_fail(void **state) {
    (void)state;
    fail_in_children("plan --model tests/data/hf/mixtral/config.json --cluster h100 --gpus 2 "
                     "--global-batch 8 --seq 128 --threads 1 --effort 1 --json",
                     false, 40);
}

static void any_allocation_of_a_simulation_may_fail(void **state) {
    (void)state;
    fail_in_children(
        "simulate --model mixtral-8x7b --cluster h100 --gpus 16 --global-batch 64 --seq 2048 "
        "--ep 8 --pp 2",
        true, 30);
}

static void fail_in_training(const char *layout, int sample) {
    char command[512];
    snprintf(command, sizeof command,
             "train --init tests/data/hf/qwen3_moe --data /usr/share/common-licenses/GPL-3 "
             "--global-batch 4 --seq 32 %s --steps 2 --out %s/run",
             layout, scratch);
    fail_in_turn(command, false, sample);
}

static void any_allocation_of_the_start_of_training_may_fail(void **state) {
    (void)state;
    fail_in_training("--gpus 1", 30);
}

/* No mpirun is in its PATH: ranks meet in a file. */
static void any_allocation_of_the_second_of_two_ranks_may_fail(void **state) {
    (void)state;
    rank = "MF_ALLOC_RANK=1";
    fail_in_training("--gpus 2 --ep 2", 12);
    rank = "";
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_of_a_plan_may_fail),
        cmocka_unit_test(any_allocation_of_a_simulation_may_fail),
        cmocka_unit_test(any_allocation_of_the_start_of_training_may_fail),
        cmocka_unit_test(any_allocation_of_the_second_of_two_ranks_may_fail),
    };
    if (!train_run_open(argv[0])) {
        return 1;
    }
    snprintf(library, sizeof library, "%s", binary);
    char *slash = strrchr(library, '/');
    snprintf(slash, sizeof library - (size_t)(slash - library), "/fault_malloc.so");
    return train_run_close(cmocka_run_group_tests(tests, NULL, NULL));
}
