/* Training runs that are interrupted: signals save and the run goes on from there, killed ranks
 * take the others with them and are named, saves that are interrupted leave a whole checkpoint.
 *
 * 25 saves are killed, most of them of runs of one rank, which begin at once. MF_KILLS: how many
 * instead (`make test-kills` takes 1,000). MF_TEST: the one test to run (a pattern).
 */
#include "core/base/clock.h"
#include "executor/checkpoint/checkpoint.h"
#include "tests/support/rng.h"
#include "tests/support/sampled.h"
#include "tests/support/train_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

/* Number of the rank that a process is, by its launcher. */
static int rank_of(pid_t process) {
    static const char key[] = "OMPI_COMM_WORLD_RANK=";
    static char text[1 << 16];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)process);
    FILE *f = fopen(path, "r");
    size_t size = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    text[size] = '\0';
    if (f != NULL) {
        fclose(f);
    }
    for (size_t i = 0; i < size; i += strlen(text + i) + 1) {
        if (strncmp(text + i, key, sizeof key - 1) == 0) {
            return atoi(text + i + sizeof key - 1);
        }
    }
    return -1;
}

/* One line says that a rank is gone: this one, in a step, at something. */
static bool log_names_the_rank(const char *out, int rank) {
    char path[160], line[4096], mine[40];
    int lines = 0, named = 0;
    snprintf(path, sizeof path, "%s/%s.log", scratch, out);
    snprintf(mine, sizeof mine, "moefold train: rank %d ", rank);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *at = strstr(line, " is gone: step ");
        const char *comma = at != NULL ? strstr(at, ", ") : NULL;
        lines += at != NULL;
        named += comma != NULL && strlen(comma) > 5 && strncmp(line, mine, strlen(mine)) == 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return lines == 1 && named == 1;
}

static void a_signal_saves_and_a_restart_continues_from_there(void **state) {
    (void)state;
    const char *layout = several_ranks ? folded() : single;
    char more[256], path[200];
    pid_t child = begin("signal", MAX_STEPS, layout); /* more than end before the signal */
    static double x[MAX_STEPS][3];
    assert_true(await_steps(child, "signal", 3));
    kill(child, SIGTERM);
    int code = end(child);
    if (code != 130) {
        show_log("signal");
    }
    assert_int_equal(code, 130);
    int steps = read_losses("signal", x);
    assert_in_range(steps, 3, MAX_STEPS - 1);
    snprintf(path, sizeof path, "%s/signal/checkpoints/step-%08d/manifest.json", scratch, steps);
    assert_int_equal(access(path, R_OK), 0);
    snprintf(more, sizeof more, "%s --resume", layout);
    run("signal", steps, more, 0);
}

/* Also one that comes while the launcher starts mpirun, or mpirun the ranks, is heard. */
static void a_signal_while_ranks_start_ends_the_run(void **state) {
    (void)state;
    const char *layout = several_ranks ? folded() : single;
    char out[24];
    for (int i = 0; i < 10; i += case_stride(9)) {
        snprintf(out, sizeof out, "early%d", i);
        pid_t child = begin(out, MAX_STEPS, layout), ranks[16];
        nap(0.02 + 0.02 * i * i / 2.0);
        kill(child, i % 2 ? SIGINT : SIGTERM);
        int code = end(child);
        if (code != 130 && code != 128 + SIGTERM && code != 128 + SIGINT) { /* not yet listening */
            show_log(out);
            fail_msg("signal %d: exit code %d", i, code);
        }
        assert_int_equal(find_ranks(out, child, ranks, 16), 0);
    }
}

/* Kills one rank of several: of a run that has taken `after` steps (0: that begins), up to `later`
 * seconds later. False: the run was through. */
static bool kill_one(const char *out, int steps, int after, double later, int which, rng *r) {
    pid_t child = begin(out, steps, folded()), ranks[16];
    int found = 0;
    while (found < folded_ranks() && !has_ended(child)) {
        found = find_ranks(out, child, ranks, 16);
        nap(0.005); /* looking costs one */
    }
    assert_int_equal(found, folded_ranks());
    assert_true(await_steps(child, out, after));
    pid_t victim = ranks[which];
    int rank = rank_of(victim);
    nap(later * (double)rng_range(r, 0, 1000) / 1000.0);
    double start = mf_clock_s();
    bool killed = rank >= 0 && kill(victim, SIGKILL) == 0;
    int code = end(child);
    double took = mf_clock_s() - start;
    if (code == 0) {
        return false;
    }
    if (!killed || !log_names_the_rank(out, rank) || code != 1) {
        show_log(out);
        fail_msg("exit code %d, not one line that names rank %d and its op", code, rank);
    }
    printf("rank %d killed after step %d, all ranks gone %.2f s later\n", rank, after, took);
    assert_below(took, 10.0);
    assert_int_equal(find_ranks(out, child, ranks, 16), 0);
    return true;
}

static void a_killed_rank_is_named_and_takes_the_others_along(void **state) {
    (void)state;
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: killed ranks are not tested\n");
        return;
    }
    /* In any step; before there is one; once all are taken. */
    static const struct {
        int steps, after;
        double later;
    } moments[] = {{5000, 2, 0.2}, {5000, 0, 0.05}, {5000, 0, 1.0}, {3, 3, 0.05}};
    enum { MOMENTS = sizeof moments / sizeof moments[0] };
    rng r = rng_init((uint64_t)getpid());
    int rounds = getenv("MF_KILLS") != NULL ? 4 : 1; /* of each rank at each moment */
    for (int round = 0; round < rounds * MOMENTS; round += case_stride(4)) {
        int m = round % MOMENTS, tries = 0;
        bool killed = false;
        for (; !killed && tries < 20; tries++) {
            char out[40];
            int which = rounds > 1 ? round / MOMENTS : (int)rng_range(&r, 0, folded_ranks() - 1);
            snprintf(out, sizeof out, "kill%d-%d", round, tries);
            killed = kill_one(out, moments[m].steps, moments[m].after, moments[m].later, which, &r);
        }
        assert_true(killed);
    }
}

/* kill -9 of what the user started: neither mpirun nor a rank is left. */
static void a_killed_launcher_takes_its_ranks_along(void **state) {
    (void)state;
    pid_t ranks[16];
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: killed launchers are not tested\n");
        return;
    }
    pid_t child = begin("launcher", MAX_STEPS, folded());
    assert_true(await_steps(child, "launcher", 2));
    assert_at_least(find_ranks("launcher", child, ranks, 16), folded_ranks());
    kill(child, SIGKILL);
    assert_int_equal(end(child), 128 + SIGKILL);
    double since_s = mf_clock_s();
    while (find_ranks("launcher", child, ranks, 16) > 0 && mf_clock_s() - since_s < 120.0) {
        nap(0.05);
    }
    printf("all ranks gone %.2f s behind their launcher\n", mf_clock_s() - since_s);
    assert_int_equal(find_ranks("launcher", child, ranks, 16), 0);
}

/* An mpirun that starts rank 0, which MPI_Init ends, and then hangs. */
static void a_launcher_that_hangs_is_ended(void **state) {
    (void)state;
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: there is no launcher\n");
        return;
    }
    static const char fake[] =
        "#!/bin/sh\n"
        "shift 2\n"
        "OMPI_MCA_pml=none OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 \"$@\" >/dev/null 2>&1\n"
        "exec sleep 600\n";
    char path[160], old[4096], changed[4352];
    snprintf(old, sizeof old, "%s", getenv("PATH"));
    snprintf(path, sizeof path, "%s/mpirun", scratch);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(fake, f);
    fclose(f);
    assert_int_equal(chmod(path, 0755), 0);
    snprintf(changed, sizeof changed, "%s:%s", scratch, old);
    setenv("PATH", changed, 1);
    double start = mf_clock_s();
    pid_t child = begin("hangs", 5000, folded());
    setenv("PATH", old, 1);
    int code = end(child);
    double took = mf_clock_s() - start;
    remove(path);
    if (code != 1 || !log_has("hangs", "is gone: step 0, ")) {
        show_log("hangs");
        fail_msg("exit code %d after %.1f s", code, took);
    }
    assert_in_range((int)took, 8, 30);
}

static int check_tensor(const mf_model_tensor *t, void *user) {
    mf_err e;
    float *values = malloc((size_t)(t->rows * t->cols) * sizeof *values);
    for (int kind = 0; kind < (t->buffer ? 1 : MF_EXEC_STATES); kind++) {
        if (mf_checkpoint_tensor(user, kind, t, values, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
    }
    free(values);
    return 0;
}

/* Waits until there is a checkpoint (step-), or a save is under way (tmp-), or the run has ended.
 */
static void await_folder(pid_t child, const char *out, const char *begins) {
    char folder[160];
    snprintf(folder, sizeof folder, "%s/%s/checkpoints", scratch, out);
    while (!has_ended(child)) {
        bool found = false;
        DIR *d = opendir(folder);
        struct dirent *entry;
        while (d != NULL && (entry = readdir(d)) != NULL) {
            found = found || strncmp(entry->d_name, begins, strlen(begins)) == 0;
        }
        if (d != NULL) {
            closedir(d);
        }
        if (found) {
            return;
        }
        nap(0.0002);
    }
}

/* Every checkpoint of a folder holds every tensor as it was written; the step of the newest, -1
 * when there is none. */
static int64_t check_all(const char *folder, const mf_model *m) {
    int64_t newest = -1;
    DIR *d = opendir(folder);
    struct dirent *entry;
    while (d != NULL && (entry = readdir(d)) != NULL) {
        char path[512];
        mf_checkpoint *c = NULL;
        mf_err e;
        if (strncmp(entry->d_name, "step-", 5) != 0) {
            continue;
        }
        snprintf(path, sizeof path, "%s/%.200s", folder, entry->d_name);
        if (mf_checkpoint_open(path, m, &c, &e) != MF_OK) {
            fail_msg("%s", e.text);
        }
        mf_model_tensors(m, check_tensor, c);
        int64_t step = mf_checkpoint_progress(c)->step;
        newest = step > newest ? step : newest;
        mf_checkpoint_close(c);
    }
    if (d != NULL) {
        closedir(d);
    }
    return newest;
}

/* The steps that stand are those of the calm run; how many. */
static int same_first(const char *calm, const char *storm) {
    static double x[MAX_STEPS][3], y[MAX_STEPS][3];
    const int steps = read_losses(storm, y);
    assert_at_least(read_losses(calm, x), steps);
    for (int i = 0; i < steps; i++) {
        if (memcmp(x[i], y[i], sizeof x[i]) != 0) {
            fail_msg("step %d of %s: loss %.17g, calm: %.17g", i + 1, storm, y[i][0], x[i][0]);
        }
    }
    return steps;
}

/* Waits until a save is under way: the first one of this start, or one after another or two. */
static void await_save(pid_t child, const char *out, int64_t newest, int before) {
    char name[32];
    if (before > 0) {
        snprintf(name, sizeof name, "step-%08lld", (long long)newest + before);
        await_folder(child, out, name);
    }
    await_folder(child, out, "tmp-");
}

/* Kills saves of a run that begins again each time, until it has taken a step behind `kills` of
 * them: there is always a checkpoint that is whole, never an older one than before, the run goes on
 * from it, and every step that it takes is that of a run that nobody killed. */
static void kill_saves(int kills, bool one_rank, const char *name) {
    const int last = case_count(40, 12); /* step */
    const char *layout = one_rank ? "--gpus 1 --resume" : "--gpus 2 --ep 2 --resume";
    char calm[32], storm[32];
    snprintf(calm, sizeof calm, "calm-%s", name);
    snprintf(storm, sizeof storm, "storm-%s", name);
    int done = 0, in_save = 0, back = 0, compared = 0, resumed = 0, anew = 0, silent = 0,
        through = 0;
    bool cut = false; /* the start before was killed in a save and left a checkpoint */
    int64_t newest = -1;
    char path[256], folder[160], from[64];
    mf_model m;
    rng r = rng_init((uint64_t)getpid());
    run(calm, last, layout, 0);
    assert_ok(mf_model_load("tests/data/hf/qwen3_moe/config.json", &m, NULL));
    snprintf(folder, sizeof folder, "%s/%s/checkpoints", scratch, storm);
    for (int attempt = 0; back < kills && attempt < 20 * kills; attempt++) {
        pid_t child = begin(storm, last, layout), ranks[16];
        await_line(child, storm, "stream  "); /* what the one before has left is gone */
        int n = one_rank ? 1 : find_ranks(storm, child, ranks, 16);
        /* of the first save of a run one in four is killed */
        await_save(child, storm, newest < 0 ? 0 : newest,
                   newest < 0 ? attempt % 4 != 3 : (int)rng_range(&r, 0, 2));
        /* somewhere in a save, be it a slow or a quick one */
        nap((attempt % 2 ? 0.004 : 0.03) * (double)rng_range(&r, 0, 1000) / 1000.0);
        if (n > 0) {
            kill(one_rank ? child : ranks[rng_range(&r, 0, n - 1)], SIGKILL);
            done++;
        }
        bool whole = end(child) == 0;
        snprintf(from, sizeof from, "step-%08lld", (long long)newest);
        bool began = log_has(storm, "stream  ");
        const int steps = same_first(calm, storm);
        const int taken = steps - (newest > 0 ? (int)newest : 0);
        if (began && newest > 0 && !log_has(storm, from)) {
            show_log(storm);
            fail_msg("the run did not go on from %s", from);
        }
        resumed += began && newest > 0;
        back += began && cut && taken > 0;
        compared += taken > 0 ? taken : 0;
        cut = false;
        anew += began && newest <= 0; /* there was no checkpoint */
        silent += !began;             /* it was killed before it said from where */
        if (whole) {                  /* it was through */
            same_steps(calm, storm, last);
            snprintf(path, sizeof path, "rm -r %s/%s", scratch, storm);
            assert_int_equal(system(path), 0);
            newest = -1;
            through++;
            continue;
        }
        snprintf(path, sizeof path, "ls %s | grep -q tmp-", folder);
        bool killed_in_save = system(path) == 0;
        in_save += killed_in_save;
        int64_t now = check_all(folder, &m);
        if (now < newest) {
            fail_msg("step %lld was saved, now the newest is %lld", (long long)newest,
                     (long long)now);
        }
        newest = now;
        cut = killed_in_save && newest > 0;
        if (newest >= last - 2) { /* from the start again */
            snprintf(path, sizeof path, "rm -r %s/%s", scratch, storm);
            assert_int_equal(system(path), 0);
            newest = -1;
            cut = false;
        }
    }
    printf("%s: %d kills, %d in a save, behind %d of which the run went on; %d steps compared; of "
           "%d starts %d resumed, %d had no checkpoint, %d were killed before they said; %d runs "
           "through\n",
           storm, done, in_save, back, compared, resumed + anew + silent, resumed, anew, silent,
           through);
    assert_at_least(back, kills);
    run(storm, last, layout, 0);
    same_steps(calm, storm, last);
}

/* `share` of all in 50; half as many as that by itself. */
static int kills_of(int share) {
    const char *wanted = getenv("MF_KILLS");
    return wanted != NULL    ? (atoi(wanted) * share + 49) / 50
           : cases_sampled() ? 1
                             : (share + 1) / 2;
}

static void killed_saves_of_one_rank_leave_a_whole_checkpoint(void **state) {
    (void)state;
    kill_saves(kills_of(several_ranks ? 30 : 35), true, "one");
}

/* Ranks that this program starts itself, as there is no mpirun to be found, begin at once. */
static void killed_saves_of_two_ranks_leave_a_whole_checkpoint(void **state) {
    (void)state;
    char old[4096], folder[160], command[400];
    snprintf(old, sizeof old, "%s", getenv("PATH"));
    snprintf(folder, sizeof folder, "%s/bin", scratch);
    snprintf(command, sizeof command,
             "mkdir %s && for p in env ls grep rm; do ln -s $(command -v $p) %s; done", folder,
             folder);
    assert_int_equal(system(command), 0);
    setenv("PATH", folder, 1);
    kill_saves(kills_of(15), false, "two");
    setenv("PATH", old, 1);
}

static void killed_saves_under_mpirun_leave_a_whole_checkpoint(void **state) {
    (void)state;
    if (!several_ranks) {
        printf("MF_SKIPPED 1 no MPI: saves of its ranks are not killed\n");
        return;
    }
    kill_saves(kills_of(5), false, "mpi");
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_saves_and_a_restart_continues_from_there),
        cmocka_unit_test(a_signal_while_ranks_start_ends_the_run),
        cmocka_unit_test(a_killed_rank_is_named_and_takes_the_others_along),
        cmocka_unit_test(a_killed_launcher_takes_its_ranks_along),
        cmocka_unit_test(a_launcher_that_hangs_is_ended),
        cmocka_unit_test(killed_saves_of_one_rank_leave_a_whole_checkpoint),
        cmocka_unit_test(killed_saves_of_two_ranks_leave_a_whole_checkpoint),
        cmocka_unit_test(killed_saves_under_mpirun_leave_a_whole_checkpoint),
    };
    return train_run_open(argv[0]) ? train_run_close(cmocka_run_group_tests(tests, NULL, NULL)) : 1;
}
