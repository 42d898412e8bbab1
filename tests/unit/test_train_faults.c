/* Every I/O call of a run that reads a checkpoint, writes another and exports its weights fails
 * once in turn (tests/preload/fault_io.c): full disks, faulty ones, short writes, interrupted
 * calls. The run either does as if nothing had been, or ends with exit code 1 or 2 and one line
 * that names file, reason and, of several ranks, which; the checkpoint before stands, and the run
 * goes on from there to the very weights of one that nothing happened to.
 *
 * A sample of them, drawn from the first and the last call of each name on each file. MF_FAULTS:
 * how many instead; "all" (`make test-faults`): every call, by one kind of fault each, and the
 * first and the last of each name on each file by every kind; "K/N": of all every Nth call, from
 * the Kth. MF_TEST: the one test to run (a pattern).
 */
#include "tests/support/rng.h"
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

#include <errno.h>

/* The first run saves up to SAVED, the second, which is hit, twice more: beside a step and at the
 * end.
 */
enum { CALLS_MOST = 4096, SAVED = 2, STEPS = 4 };

static char library[512];

typedef struct io_call {
    char name[16], path[200];
} io_call;

static io_call all[CALLS_MOST];

static const struct {
    const char *name;
    int number;
} kinds[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EINTR", EINTR}, {"SHORT", 0}};
enum { KINDS = 4, ALWAYS = 1 /* any call can fail by it */ };

/* Path of a call in the folder of its run. */
static const char *place_of(const io_call *c) {
    const char *at =
        strncmp(c->path, scratch, strlen(scratch)) == 0 ? c->path + strlen(scratch) + 1 : c->path;
    const char *slash = strchr(at, '/'), *events = "/events.out.tfevents.";
    if (slash != NULL && strncmp(slash, events, strlen(events)) == 0) {
        return events; /* a time, a host and a process follow */
    }
    return slash != NULL ? slash : "";
}

/* A run on OUT; of `rank` call `c` (NULL: none) fails, the turn-th (1: the first) of its name on
 * its file. Without mpirun ranks start at once. */
static int train(const char *out, int steps, const char *fold, const char *rank, const io_call *c,
                 int turn, const char *how) {
    return shell(
        "rm -f %s/calls %s/%s.log; env LD_PRELOAD=%s MF_FAULT_UNDER=%s/%s MF_FAULT_RANK=%s "
        "%s%s MF_FAULT_PATH=%s MF_FAULT_CALL=%d MF_FAULT_KIND=%s MF_FAULT_LOG=%s/calls "
        "PATH=/nowhere "
        "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 "
        "%s train --init %s/in --data %s/%s/text --global-batch 4 --seq 32 --lr 1e-3 "
        "--lr-schedule constant --save-every 1 --steps %d --resume %s --out %s/%s "
        ">>%s/%s.log 2>&1",
        scratch, scratch, out, turn < 0 ? "" : library, scratch, out, rank,
        c != NULL ? "MF_FAULT_NAME=" : "", c != NULL ? c->name : "", c != NULL ? place_of(c) : "",
        turn, how, scratch, binary, scratch, scratch, out, steps, fold, scratch, out, scratch, out);
}

/* The calls of the last run. */
static int read_calls(void) {
    char path[128], line[512];
    int n = 0, number;
    snprintf(path, sizeof path, "%s/calls", scratch);
    FILE *f = fopen(path, "r");
    while (f != NULL && n < CALLS_MOST && fgets(line, sizeof line, f) != NULL &&
           sscanf(line, "%d %15s %199s", &number, all[n].name, all[n].path) == 3) {
        n++;
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static bool is_whole(const char *out, const char *whole) {
    return shell("cd %s && cmp -s %s/hf/model.safetensors %s/hf/model.safetensors && "
                 "test -d %s/checkpoints/step-%08d",
                 scratch, out, whole, out, STEPS) == 0;
}

/* The line of a failure: ours, with a file of the run and the reason. */
static bool names_failure(const char *out, const char *rank, int number) {
    char path[160], line[4096], speaker[32];
    bool reported = false;
    snprintf(path, sizeof path, "%s/%s.log", scratch, out);
    snprintf(speaker, sizeof speaker, "rank %s", rank);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        reported = reported ||
                   (strncmp(line, "moefold train: ", 15) == 0 && strstr(line, scratch) != NULL &&
                    (strstr(line, strerror(number)) != NULL || strstr(line, "offset ") != NULL) &&
                    (rank[0] == '-' || strstr(line, speaker) != NULL));
    }
    if (f != NULL) {
        fclose(f);
    }
    return reported;
}

/* A line a step, all of them there. */
static bool is_metrics_whole(void) {
    return shell("grep -o '\"step\": *[0-9]*' %s/tried/metrics.jsonl | grep -o '[0-9]*' | "
                 "tr '\\n' ' ' | grep -qx '1 2 3 4 '",
                 scratch) == 0;
}

static int wrong(const char *when, const io_call *c, int turn, int kind, int code) {
    show_log("tried");
    (void)shell("grep FAILS %s/calls", scratch);
    printf("%s %s %d of %s, %s: exit code %d\n", when, c->name, turn, place_of(c), kinds[kind].name,
           code);
    return 1;
}

/* One fault: what went wrong. *tried counts those of calls that can fail so. */
static int fail_once(const char *base, const char *whole, const char *fold, const char *rank,
                     const io_call *c, int turn, int kind, int *tried) {
    assert_int_equal(shell("cd %s && rm -rf tried && cp -r %s tried", scratch, base), 0);
    int code = train("tried", STEPS, fold, rank, c, turn, kinds[kind].name);
    if (shell("grep -q FAILS %s/calls", scratch) != 0) {
        return 0;
    }
    ++*tried;
    bool right = code == 0 ? is_whole("tried", whole)
                           : code <= 2 && names_failure("tried", rank, kinds[kind].number);
    if (!right) {
        return wrong("at", c, turn, kind, code);
    }
    if (code != 0) {
        code = train("tried", STEPS, fold, rank, NULL, -1, "");
        if (code != 0 || !is_whole("tried", whole) || log_has("tried", "step 1/") ||
            log_has("tried", "step 2/")) {
            return wrong("behind", c, turn, kind, code);
        }
    }
    if (!is_metrics_whole()) {
        return wrong("in metrics.jsonl of", c, turn, kind, code);
    }
    same_steps("tried", whole, STEPS);
    return 0;
}

/* A call to try. at_end: it is the first or the last of its name on its file. */
typedef struct trial {
    int call, turn;
    bool at_end;
} trial;

/* Calls to try: every one, or those at an end. */
static int choose(int calls, bool every, trial *out) {
    int n = 0;
    for (int i = 0; i < calls; i++) {
        int before = 0, behind = 0;
        for (int j = 0; j < calls; j++) {
            bool same =
                strcmp(all[i].name, all[j].name) == 0 && strcmp(all[i].path, all[j].path) == 0;
            before += same && j < i;
            behind += same && j > i;
        }
        if (every || before == 0 || behind == 0) {
            out[n++] = (trial){i, before + 1, before == 0 || behind == 0};
        }
    }
    return n;
}

/* What MF_FAULTS asks for: `draws` of the calls at an end (0: of all), or a share of all. */
typedef struct extent {
    bool every;
    int draws, first, step;
} extent;

static extent wanted(int sample) {
    const char *text = getenv("MF_FAULTS");
    extent x = {.every = text != NULL, .first = 1, .step = 1};
    if (text != NULL && sscanf(text, "%d/%d", &x.first, &x.step) == 2) {
        assert_at_least(x.first, 1);
        assert_at_most(x.first, x.step);
    } else if (text == NULL || strcmp(text, "all") != 0) {
        x.every = false;
        x.draws = text != NULL ? atoi(text) : cases_sampled() ? 2 : sample;
    }
    return x;
}

typedef struct tally {
    int calls, tried, failed;
} tally;

/* By every kind, or by one: the i-th, or that which any call can fail by. */
static void fail_by(const char *base, const char *whole, const char *fold, const char *rank,
                    const trial *t, bool every, int i, tally *n) {
    const int before = n->tried;
    for (int k = 0; k < KINDS; k++) {
        if (every || k == i % KINDS) {
            n->failed += fail_once(base, whole, fold, rank, &all[t->call], t->turn, k, &n->tried);
        }
    }
    if (!every && n->tried == before) {
        n->failed += fail_once(base, whole, fold, rank, &all[t->call], t->turn, ALWAYS, &n->tried);
    }
    n->calls += n->tried > before;
}

static void fail_in_turn(const char *base, const char *whole, const char *fold, const char *rank,
                         int sample) {
    const extent x = wanted(sample);
    tally n = {0};
    assert_int_equal(
        shell("mkdir %s/%s && cp %s/text %s/%s/text", scratch, base, scratch, scratch, base), 0);
    assert_int_equal(train(base, SAVED, fold, rank, NULL, -1, ""), 0);
    assert_int_equal(shell("cd %s && cp -r %s %s", scratch, base, whole), 0);
    assert_int_equal(train(whole, STEPS, fold, rank, NULL, 0, ""), 0);
    const int calls = read_calls();
    assert_in_range(calls, 50, CALLS_MOST - 1);
    assert_true(is_whole(whole, whole));
    static trial t[CALLS_MOST];
    const int trials = choose(calls, x.every, t);
    rng r = rng_init((uint64_t)getpid());
    for (int i = 0; i < x.draws; i++) {
        fail_by(base, whole, fold, rank, &t[rng_range(&r, 0, trials - 1)], false, i, &n);
    }
    for (int i = x.first - 1; x.draws == 0 && i < trials; i += x.step) {
        fail_by(base, whole, fold, rank, &t[i], t[i].at_end, i / x.step, &n);
    }
    printf("%d faults in %d of %d calls, %d not as promised\n", n.tried, n.calls, calls, n.failed);
    assert_above(n.tried, 0);
    assert_int_equal(n.failed, 0);
}

static void every_call_of_one_rank_may_fail(void **state) {
    (void)state;
    fail_in_turn("base-1", "whole-1", "--gpus 1", "-", 32);
}

static void every_call_of_another_rank_may_fail(void **state) {
    (void)state;
    fail_in_turn("base-2", "whole-2", "--gpus 2 --ep 2", "1", 8);
}

static int open_faults(const char *argv0) {
    if (!train_run_open(argv0)) {
        return 1;
    }
    snprintf(library, sizeof library, "%s", binary);
    char *slash = strrchr(library, '/');
    snprintf(slash, sizeof library - (size_t)(slash - library), "/fault_io.so");
    return shell("test -r %s && cd tests/data/hf && cp -r qwen3_moe %s/in && "
                 "cp /usr/share/common-licenses/GPL-3 %s/text",
                 library, scratch, scratch);
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_of_one_rank_may_fail),
        cmocka_unit_test(every_call_of_another_rank_may_fail),
    };
    return open_faults(argv[0]) == 0 ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL))
                                     : 1;
}
