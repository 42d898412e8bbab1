/* bench_picks.c - is the plan that `moefold plan` picks the fastest? For three jobs of one GPU
 * every layout is run, with the memory choices that `plan` makes for it, then the best of them with
 * other recomputation; for three jobs of two GPUs (--gpus 2) every way to share the work.
 *
 *     bench_picks FILE --cluster CLUSTER [--gpus 2] [--only TEXT] [--seconds S] [--warm S]
 *         [--watch S] [--keep DIR]                                  runs
 *     bench_picks FILE --cluster CLUSTER [--gpus 2] --table yes     tells
 *
 * Runs that are not in FILE yet are trained and added, one line each, as in bench_runs. Each is a
 * job with a layout pinned: its plan file is what `moefold train` gets. A layout that does not fit
 * CLUSTER has no plan and no run; for a job of which no layout fits the next of the list takes its
 * place. --table: for each job, what was measured and predicted of each layout, and how far the
 * planner's pick is from the best measured.
 */
#include "bench/gpu/runs.h"
#include "core/base/clock.h"

#include <math.h>

enum { JOBS = 3, PLAN_TEXT = 1 << 16 };

/* The first three jobs that fit are run. */
#define STEP "--seq 4096 --cuda-graph step --offload none --offload-optimizer 0"
static const char *const jobs_of_one[] = {
    "--model mixtral-8x7b --set num_hidden_layers=2 --global-batch 4 " STEP,
    "--model qwen3-30b-a3b --set num_hidden_layers=4 --global-batch 4 " STEP,
    "--model olmoe-1b-7b --global-batch 4 " STEP,
    "--model olmoe-1b-7b --set num_hidden_layers=8 --global-batch 4 " STEP,
    NULL,
};

static const char *const jobs_of_two[] = {
    "--model qwen3-30b-a3b --set num_hidden_layers=8 --global-batch 8 " STEP,
    "--model olmoe-1b-7b --global-batch 8 " STEP,
    "--model mixtral-8x7b --set num_hidden_layers=4 --global-batch 8 " STEP,
    NULL,
};

/* Every micro-batch and schedule of four samples; with one micro-batch gpipe is 1f1b. What `plan`
 * recomputes is pinned in the last ones. */
static const char *const layouts_of_one[] = {
    " --micro-batch 1 --schedule 1f1b",
    " --micro-batch 2 --schedule 1f1b",
    " --micro-batch 4 --schedule 1f1b",
    " --micro-batch 1 --schedule gpipe",
    " --micro-batch 2 --schedule gpipe",
    " --micro-batch 1 --schedule merged",
    " --micro-batch 2 --schedule merged",
    " --micro-batch 4 --schedule merged",
    " --micro-batch 2 --schedule 1f1b --recompute norm,act",
    " --micro-batch 4 --schedule 1f1b --recompute norm,act",
    " --micro-batch 4 --schedule 1f1b --recompute full",
    NULL,
};

/* Samples, experts, matrices, tokens or stages shared; schedules and the rest are `plan`'s choice
 * where none is named. */
static const char *const layouts_of_two[] = {
#define SAMPLES " --tp 1 --cp 1 --pp 1 --etp 1 "
    SAMPLES "--ep 2 --micro-batch 2",
    SAMPLES "--ep 1 --micro-batch 2",
    " --tp 2 --pp 1 --ep 2 --micro-batch 2",
    " --pp 2 --schedule 1f1b --micro-batch 1",
    " --cp 2 --pp 1 --ep 2 --micro-batch 1",
    SAMPLES "--ep 2 --micro-batch 1",
    SAMPLES "--ep 1 --micro-batch 1",
    " --pp 2 --schedule zb-v --micro-batch 1",
    " --tp 1 --cp 1 --pp 1 --etp 2 --micro-batch 1",
    " --tp 2 --pp 1 --ep 2 --micro-batch 1",
    " --pp 2 --schedule interleaved --micro-batch 1",
    SAMPLES "--ep 2 --micro-batch 4",
    SAMPLES "--ep 1 --micro-batch 4",
    " --tp 2 --pp 1 --etp 2 --micro-batch 1",
    " --tp 2 --pp 1 --ep 1 --etp 1 --micro-batch 1",
    " --cp 2 --pp 1 --ep 1 --etp 1 --micro-batch 1",
    " --pp 2 --schedule zb-h1 --micro-batch 1",
    " --pp 2 --schedule 1f1b --micro-batch 2",
    " --pp 2 --schedule zb-v --micro-batch 2",
    SAMPLES "--ep 2 --schedule merged --micro-batch 2",
    NULL,
};

typedef struct share {
    int gpus;
    const char *const *jobs, *const *layouts;
} share;

static const share shares[] = {
    {1, jobs_of_one, layouts_of_one},
    {2, jobs_of_two, layouts_of_two},
};

typedef struct options {
    const char *file, *only, *cluster;
    const share *share;
    bool table;
    run_times times;
} options;

/* --- plans --------------------------------------------------------------------------------------
 */

/* What runs: the plan's layout and memory choices. */
typedef struct plan {
    char text[PLAN_TEXT];
    double step_s;
} plan;

static bool read_plan(const char *path, plan *p) {
    static char all[PLAN_TEXT];
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(all, 1, sizeof all - 1, f) : 0;
    all[n] = '\0';
    if (f != NULL) {
        fclose(f);
    }
    const char *begin = strstr(all, "\"layout\""), *end = strstr(all, "\"prediction\"");
    if (begin == NULL || end == NULL || end < begin) {
        return false;
    }
    snprintf(p->text, sizeof p->text, "%.*s", (int)(end - begin), begin);
    p->step_s = training_field(end, "step_time_s");
    if (training_field(p->text, "micro_batches") < 1.5) { /* gpipe is 1f1b */
        char *schedule = strstr(p->text, "\"schedule\": \"gpipe\"");
        if (schedule != NULL) {
            memcpy(schedule, "\"schedule\": \"1f1b\"", strlen("\"schedule\": \"1f1b\""));
            memmove(schedule + strlen("\"schedule\": \"1f1b\""),
                    schedule + strlen("\"schedule\": \"gpipe\""),
                    strlen(schedule + strlen("\"schedule\": \"gpipe\"")) + 1);
        }
    }
    return true;
}

/* false: nothing fits. */
static bool make_plan(const options *o, const char *arguments, const char *path, plan *p) {
    char program[TRAINING_LINE], command[3 * TRAINING_LINE];
    training_program(program, sizeof program);
    snprintf(command, sizeof command,
             "'%s' plan --cluster %s --gpus %d %s --out '%s' >/dev/null 2>&1", program, o->cluster,
             o->share->gpus, arguments, path);
    const int code = system(command);
    if (!WIFEXITED(code) || (WEXITSTATUS(code) != 0 && WEXITSTATUS(code) != 3)) {
        training_give_up(command);
    }
    return WEXITSTATUS(code) == 0 && read_plan(path, p);
}

/* --- training -----------------------------------------------------------------------------------
 */

typedef struct state {
    const options *o;
    const char *folder;
    training_gpus gpus;
    run_row rows[RUNS_MOST];
    int there;
    double begun_s;
} state;

static bool train_layout(state *s, const char *job, const char *layout) {
    static plan p;
    char arguments[RUNS_TEXT], path[TRAINING_LINE], how[RUNS_TEXT];
    snprintf(path, sizeof path, "%s/plan.json", s->folder);
    snprintf(arguments, sizeof arguments, "%s%s", job, layout);
    if (mf_clock_s() - s->begun_s > s->o->times.seconds ||
        runs_find(s->rows, s->there, arguments) != NULL || !make_plan(s->o, arguments, path, &p)) {
        return true;
    }
    /* Plans are priced for balanced routing. The runs of one GPU were made with a new router's. */
    snprintf(how, sizeof how, "--plan %.400s%s", path,
             s->o->share->gpus > 1 ? " --force-balance" : "");
    return runs_train(s->o->file, &s->o->times, s->folder, &s->gpus, arguments, how);
}

/* Jobs in turns, so that a file that was interrupted has some layouts of each. Runs that failed. */
static int train_all(state *s, const char *const *job, int count) {
    int failed = 0;
    for (int i = 0; s->o->share->layouts[i] != NULL; i++) {
        for (int k = 0; k < count; k++) {
            failed += !train_layout(s, job[k], s->o->share->layouts[i]);
        }
    }
    return failed;
}

/* --- the table ----------------------------------------------------------------------------------
 */

static void tell_job(const state *s, const char *job, const char *path) {
    static plan pick, p;
    char arguments[RUNS_TEXT];
    const char *picked = NULL;
    double best_s = 0, pick_s = 0, off = 0, most = 0;
    int runs = 0;
    if (!make_plan(s->o, job, path, &pick)) {
        return;
    }
    printf(
        "\n`%s`\n\n| layout | measured | predicted | error | memory | |\n|---|---|---|---|---|---"
        "|\n",
        job);
    const char *const *layouts = s->o->share->layouts;
    for (int i = 0; layouts[i] != NULL; i++) {
        snprintf(arguments, sizeof arguments, "%s%s", job, layouts[i]);
        const run_row *r = runs_find(s->rows, s->there, arguments);
        const bool fits = make_plan(s->o, arguments, path, &p);
        const bool is_pick = fits && strcmp(p.text, pick.text) == 0;
        if (r == NULL || !fits) {
            printf("| `%s` | %s | | | | |\n", layouts[i] + 1, fits ? "not run" : "does not fit");
            continue;
        }
        const double error = p.step_s / r->step_s - 1;
        runs++;
        off += fabs(error);
        most = fmax(most, fabs(error));
        best_s = runs == 1 ? r->step_s : fmin(best_s, r->step_s);
        if (is_pick && picked == NULL) {
            picked = layouts[i] + 1;
            pick_s = r->step_s;
        }
        printf("| `%s` | %.1f ms | %.1f ms | %+.1f %% | %.2f GB | %s |\n", layouts[i] + 1,
               1e3 * r->step_s, 1e3 * p.step_s, 100 * error, 1e-9 * r->memory_B,
               is_pick ? "the planner's pick" : "");
    }
    if (picked != NULL) {
        printf("\nPredictions are %.1f %% off in the mean, %.1f %% at most.\n", 100 * off / runs,
               100 * most);
        printf("The planner's pick takes %.1f ms, the best of %d runs %.1f ms: %.1f %% more.\n",
               1e3 * pick_s, runs, 1e3 * best_s, 100 * (pick_s / best_s - 1));
    } else {
        printf("\nThe planner's pick was not run.\n");
    }
}

/* --- the program --------------------------------------------------------------------------------
 */

/* The first JOBS that CLUSTER has space for, less those that are not asked for. */
static int choose_jobs(const state *s, const char *path, const char **chosen) {
    static plan p;
    int count = 0, fit = 0;
    const char *const *jobs = s->o->share->jobs;
    for (int i = 0; jobs[i] != NULL && fit < JOBS; i++) {
        if (make_plan(s->o, jobs[i], path, &p)) {
            fit++;
            if (s->o->only == NULL || strstr(jobs[i], s->o->only) != NULL) {
                chosen[count++] = jobs[i];
            }
        }
    }
    return count;
}

static int work(state *s) {
    const char *chosen[JOBS];
    char path[TRAINING_LINE];
    snprintf(path, sizeof path, "%s/plan.json", s->folder);
    const int count = choose_jobs(s, path, chosen);
    if (!s->o->table) {
        return train_all(s, chosen, count);
    }
    const bool one = s->o->share->gpus == 1;
    const char *gpus = one ? "one GPU" : "two GPUs";
    printf("# Every layout of three jobs on %s, and the planner's pick\n\n"
           "`bench_picks FILE --cluster %s%s` trains every layout of three jobs on %s, with the "
           "memory choices that `moefold plan` makes for it%s;\n`--table yes` wrote this: the pick "
           "is what `plan` takes when it is free to.\n",
           gpus, s->o->cluster, one ? "" : " --gpus 2", gpus,
           one ? "" : " and routing balanced by force");
    for (int i = 0; i < count; i++) {
        tell_job(s, chosen[i], path);
    }
    return 0;
}

static options read_options(int argc, char **argv) {
    options o = {.share = &shares[0], .times = {.warm_s = 1.5, .watch_s = 2, .seconds = 1e9}};
    bool bad = argc < 2 || argc % 2 != 0;
    for (int i = 2; !bad && i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--only") == 0) {
            o.only = value;
        } else if (strcmp(argv[i], "--cluster") == 0) {
            o.cluster = value;
        } else if (strcmp(argv[i], "--gpus") == 0) {
            bad = strcmp(value, "1") != 0 && strcmp(value, "2") != 0;
            o.share = &shares[value[0] == '2'];
        } else if (strcmp(argv[i], "--table") == 0) {
            o.table = true;
        } else {
            bad = !runs_take_option(&o.times, argv[i], value);
        }
    }
    if (bad || o.cluster == NULL) {
        training_give_up("bench_picks FILE --cluster CLUSTER [--gpus 2] [--table yes] [--only "
                         "TEXT] [--seconds S] [--warm S] [--watch S] [--keep DIR]");
    }
    o.file = argv[1];
    return o;
}

int main(int argc, char **argv) {
    static state s;
    const options o = read_options(argc, argv);
    char folder[] = "/tmp/bench-picks-XXXXXX";
    s.o = &o;
    s.folder = folder;
    s.begun_s = mf_clock_s();
    s.there = runs_read(o.file, s.rows);
    if (!o.table && !training_gpus_find(o.share->gpus, &s.gpus)) {
        printf("%d GPUs, not %d: nothing to train on\n", s.gpus.count, o.share->gpus);
        return 0;
    }
    if (mkdtemp(folder) == NULL) {
        training_give_up(strerror(errno));
    }
    if (!o.table) {
        training_tokens(folder, RUNS_VOCABULARY, RUNS_TOKENS);
    }
    const int failed = work(&s);
    training_remove(folder);
    return failed > 0;
}
