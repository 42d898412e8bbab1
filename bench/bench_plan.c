/* bench_plan.c - whole plans: how long they take, what they prove, and what each mechanism of the
 * search is worth.
 *
 * Usage: bench_plan [--jobs all | --jobs NAME,...] [--without MECHANISM,...] [--threads N]
 *                   [--effort N] [--plans DIR]
 *        bench_plan --table FILE [--jobs NAME,...] [--without MECHANISM,...] [--effort N]
 *        bench_plan --list
 *
 * The first form prints a line for every job (those that have a figure to
 * reach unless --jobs says otherwise): wall time, CPU time beside the effort that was counted, peak
 * memory, gap, best step, and how many layouts a core prices in a second (those with a bound of
 * their own, over the core's time in bounds of families and layouts). `!` marks a figure that is
 * missed; figures depend on the machine.
 *
 * The second form measures every job with everything and without each mechanism, on one thread, by
 * counted effort (which depends on no machine; caches by CPU time); it appends what FILE lacks, so
 * that it goes on where it was stopped, and prints the table of docs/planner.md.
 *
 * Every search is a process of its own, so that its memory and CPU time are its own. Exit 1 when a
 * search fails. $MF_BENCH_LIMIT_S (default 120): a search that takes more CPU time is interrupted.
 */
#define _DEFAULT_SOURCE /* wait4 */
#include "core/base/clock.h"
#include "core/base/heap_prefault.h"
#include "planner/planner.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct job {
    const char *name, *what, *model, *cluster;
    int64_t gpus, gbs, seq;
    double gap, figure_s; /* 0: the default; none */
} job;

static const job jobs[] = {
    {"mixtral@128", "Mixtral-8x22B, 128 GPUs", "mixtral-8x22b", "h100", 128, 256, 4096, 0, 1},
    {"dsv3@1k", "DeepSeek-V3, 1,024 GPUs", "deepseek-v3", "h100", 1024, 8192, 4096, 0, 2},
    {"dsv3@16k", "DeepSeek-V3, 16,384 GPUs", "deepseek-v3", "h100", 16384, 16384, 4096, 0, 10},
    {"mixtral@40", "Mixtral-8x22B, 40 GPUs", "mixtral-8x22b", "h100", 40, 240, 4096, 0, 0},
    {"qwen3@64", "Qwen3-235B, 64 GPUs", "qwen3-235b-a22b", "h100", 64, 512, 4096, 0, 0},
    {"gpt-oss@256", "GPT-OSS-120B, 256 GPUs", "gpt-oss-120b", "h100", 256, 512, 4096, 0, 0},
    {"llama@2k", "Llama-3 405B, 2,048 GPUs", "llama3-405b", "h100", 2048, 2048, 8192, 0, 0},
    {"qwen3@16", "Qwen3-30B, 16 GPUs", "qwen3-30b-a3b", "h100", 16, 256, 4096, 0, 0},
    {"gpt-oss@8", "GPT-OSS-20B, 8 GPUs", "gpt-oss-20b", "h100", 8, 128, 4096, 0, 0},
    {"olmoe@12", "OLMoE, 12 H200, batch 12", "olmoe-1b-7b", "h200", 12, 12, 4096, 0, 0},
    {"moonlight@8", "Moonlight, 8 H200, gap 1 %", "moonlight-16b-a3b", "h200", 8, 32, 4096, 0.01,
     0},
    {"llama@64", "Llama-3 70B, 64 GPUs", "llama3-70b", "h100", 64, 512, 4096, 0, 0},
    {"kimi@2k", "Kimi-K2, 2,048 GPUs", "kimi-k2", "h100", 2048, 4096, 4096, 0, 0},
    {"dsv3@128k", "DeepSeek-V3, 256 H200, 131,072 tokens", "deepseek-v3", "h200", 256, 64, 131072,
     0, 0},
    /* Jobs that rows of the table in docs/planner.md name beside these fourteen. */
    {"dsv3@192", "DeepSeek-V3, 192 GPUs", "deepseek-v3", "h100", 192, 15360, 4096, 0, 0},
    {"dsv3@3k", "DeepSeek-V3, 3,072 B200, gap 5 %", "deepseek-v3", "b200", 3072, 8192, 4096, 0.05,
     0},
    {"dsv3@5k", "DeepSeek-V3, 5,120 B200, gap 5 %", "deepseek-v3", "b200", 5120, 8192, 4096, 0.05,
     0},
    {"dsv3@8k", "DeepSeek-V3, 8,192 B200, gap 5 %", "deepseek-v3", "b200", 8192, 8192, 4096, 0.05,
     0},
    {"qwen3@2k", "Qwen3-235B, 2,048 H200", "qwen3-235b-a22b", "h200", 2048, 1024, 4096, 0, 0},
    {"llama4@1k", "Llama-4 Maverick, 1,024 H200", "llama4-maverick", "h200", 1024, 4096, 4096, 0,
     0},
    {"llama@512", "Llama-3 405B, 512 GPUs", "llama3-405b", "h100", 512, 512, 8192, 0, 0},
    {"minimax@512", "MiniMax-Text-01, 512 H200", "minimax-text-01", "h200", 512, 2048, 4096, 0, 0},
    {"mixtral@16", "Mixtral-8x7B, 16 GPUs", "mixtral-8x7b", "h100", 16, 128, 4096, 0, 0},
    {"llama@16", "Llama-3 8B, 16 GPUs", "llama3-8b", "h100", 16, 128, 4096, 0, 0},
    {"qwen3@8", "Qwen3-8B, 8 GPUs, gap 0.01 %", "qwen3-8b", "h100", 8, 64, 4096, 0.0001, 0},
};
enum { JOBS = sizeof jobs / sizeof jobs[0], MEASURED_THREADS = 2 };

#define FIGURE_B 1e9
#define FIGURE_GAP 0.03
#define FIGURE_PRICED 1e5

/* What a search's process tells its parent: less than a pipe takes in one piece. */
typedef struct outcome {
    mf_status status;
    mf_search_stats stats;
    double best_s, wall_s;
    char text[sizeof(((mf_err *)0)->text)];
} outcome;

static volatile int cancel;

static void on_alarm(int signal_number) {
    (void)signal_number;
    cancel = 1;
}

static mf_status load(const job *r, mf_model *m, mf_cost **cost, mf_err *e) {
    mf_cluster cluster = {0};
    mf_software software = {0};
    mf_status status = mf_model_load(r->model, m, e);
    if (status == MF_OK) {
        status = mf_cluster_load(r->cluster, &cluster, e);
    }
    if (status == MF_OK) {
        status = mf_software_load(NULL, &software, e);
    }
    return status == MF_OK ? mf_cost_create(&cluster, &software, NULL, cost, e) : status;
}

/* How jobs are searched. */
typedef struct setting {
    int threads;
    mf_mechanisms without;
    int64_t effort_s;  /* 0: the default */
    const char *plans; /* folder for the best plans; NULL: they are not written */
} setting;

static mf_status save(const job *r, const char *folder, const mf_plan *plan, mf_err *e) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.json", folder, r->name);
    return mf_plan_save(plan, path, e);
}

static void search(const job *r, const setting *with, outcome *out) {
    const double start_s = mf_clock_s();
    mf_heap_prefault prefault;
    mf_model model;
    mf_cost *cost = NULL;
    mf_err e;
    mf_err_clear(&e);
    memset(out, 0, sizeof *out);
    mf_heap_set_up();
    mf_heap_begin_prefault(&prefault, with->threads);
    out->status = load(r, &model, &cost, &e);
    mf_heap_end_prefault(&prefault);
    if (out->status == MF_OK) {
        mf_problem p = {.model = &model, .cost = cost};
        mf_search_options o;
        mf_search_result x;
        mf_layout_init(&p.base);
        p.base.gpus = r->gpus;
        p.base.gbs = r->gbs;
        p.base.seq = r->seq;
        mf_search_options_init(&o);
        o.threads = with->threads;
        o.without = with->without;
        o.budget = 1000000 * with->effort_s;
        o.gap = r->gap;
        o.cancel = &cancel;
        out->status = mf_planner_search(&p, &o, &x, &e);
        out->wall_s = mf_clock_s() - start_s;
        out->stats = x.stats;
        out->best_s = x.count > 0 ? x.plan[0].prediction.step_time_s : 0;
        if (x.count > 0 && with->plans != NULL) {
            mf_status saved = save(r, with->plans, &x.plan[0], &e);
            out->status = out->status == MF_OK ? saved : out->status;
        }
        mf_search_result_clear(&x);
    }
    memcpy(out->text, e.text, sizeof out->text);
    mf_cost_destroy(cost);
}

static int in_child(const job *r, const setting *with, int to) {
    const char *limit = getenv("MF_BENCH_LIMIT_S");
    const struct itimerval until = {.it_value.tv_sec = limit ? strtol(limit, NULL, 10) : 120};
    outcome out;
    signal(SIGPROF, on_alarm);
    setitimer(ITIMER_PROF, &until, NULL);
    search(r, with, &out);
    return write(to, &out, sizeof out) == (ssize_t)sizeof out ? 0 : 1;
}

/* False: the search failed, which is said. */
static bool run(const job *r, const setting *with, outcome *out, struct rusage *usage) {
    int ends[2], status = 0;
    if (pipe(ends) != 0) {
        return false;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        _exit(in_child(r, with, ends[1]));
    }
    close(ends[1]);
    bool reported = child > 0 && read(ends[0], out, sizeof *out) == (ssize_t)sizeof *out;
    close(ends[0]);
    bool ended = child > 0 && wait4(child, &status, 0, usage) == child && reported &&
                 WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ended) {
        fprintf(stderr, "%s: the search's process ended early\n", r->what);
    } else if (out->status != MF_OK && out->status != MF_INTERRUPTED) {
        fprintf(stderr, "%s: %s\n", r->what, out->text);
        ended = false;
    }
    return ended;
}

static double seconds(struct timeval t) {
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

/* --- figures ---------------------------------------------------------------------------------- */

static const char *mark(bool met) {
    return met ? "" : " !";
}

static void print(const job *r, const outcome *x, const struct rusage *u) {
    double memory_B = (double)u->ru_maxrss * 1024.0;
    bool found = x->best_s > 0;
    double rate = x->stats.pricing_s > 0 ? (double)x->stats.priced / x->stats.pricing_s : 0;
    printf("%-26s %7.2f s%s", r->what, x->wall_s,
           mark(r->figure_s <= 0 || x->wall_s <= r->figure_s));
    if (r->figure_s > 0) {
        printf(" of %2.0f", r->figure_s);
    }
    printf("  cpu %7.2f s, counted %7.2f  %6.0f MB%s  gap %6.2f %%%s  best %.5g s  "
           "%lld layouts, %lld priced in %.2f s (%.3g /s/core%s), %lld programs, %lld steps: %s\n",
           seconds(u->ru_utime) + seconds(u->ru_stime), 1e-6 * (double)x->stats.work,
           memory_B / 1e6, mark(memory_B <= FIGURE_B), found ? 100 * x->stats.gap : HUGE_VAL,
           mark(found && x->stats.gap <= FIGURE_GAP), x->best_s, (long long)x->stats.space,
           (long long)x->stats.priced, x->stats.pricing_s, rate, mark(rate >= FIGURE_PRICED),
           (long long)x->stats.milp_solved, (long long)x->stats.simulated, x->stats.ended);
}

static bool print_jobs(const bool *chosen, const setting *with) {
    bool good = true;
    printf("searches on %d threads; ! marks a figure that is missed\n", with->threads);
    for (int i = 0; i < JOBS; i++) {
        outcome x;
        struct rusage usage;
        if (!chosen[i]) {
            continue;
        }
        if (run(&jobs[i], with, &x, &usage)) {
            print(&jobs[i], &x, &usage);
        } else {
            good = false;
        }
    }
    return good;
}

/* --- what mechanisms are worth ---------------------------------------------------------------- */

typedef struct measured {
    bool known;
    double cpu_s, work_s, gap, best_s; /* work_s: counted, the same in every run */
} measured;

/* [0]: with everything; then without each mechanism. */
enum { SETTINGS = 1 + MF_MECHANISMS };
typedef measured table[SETTINGS][JOBS];

static const char *setting_name(int i) {
    return i == 0 ? "everything" : mf_mechanism_text((mf_mechanism)(i - 1));
}

static void read_table(const char *path, table t) {
    char job_name[40], name[40];
    measured m = {.known = true};
    FILE *f = fopen(path, "r");
    while (f != NULL && fscanf(f, "%39s %39s %lf %lf %lf %lf", job_name, name, &m.cpu_s, &m.work_s,
                               &m.gap, &m.best_s) == 6) {
        for (int i = 0; i < SETTINGS; i++) {
            for (int k = 0; k < JOBS; k++) {
                if (strcmp(name, setting_name(i)) == 0 && strcmp(job_name, jobs[k].name) == 0) {
                    t[i][k] = m;
                }
            }
        }
    }
    if (f != NULL) {
        fclose(f);
    }
}

static bool measure(const char *path, int i, int k, int64_t effort_s, measured *out) {
    const setting with = {
        .threads = 1, .without = i == 0 ? 0 : (mf_mechanisms)1 << (i - 1), .effort_s = effort_s};
    outcome x;
    struct rusage usage;
    if (!run(&jobs[k], &with, &x, &usage)) {
        return false;
    }
    *out = (measured){true, seconds(usage.ru_utime), 1e-6 * (double)x.stats.work, x.stats.gap,
                      x.best_s};
    FILE *f = fopen(path, "a");
    if (f == NULL) {
        perror(path);
        return false;
    }
    fprintf(f, "%s %s %.2f %.6f %.6f %.9g\n", jobs[k].name, setting_name(i), out->cpu_s,
            out->work_s, out->gap, out->best_s);
    return fclose(f) == 0;
}

/* What a mechanism must change somewhere to be kept. */
#define KEPT_SHARE 0.002
#define KEPT_TIMES 1.2
/* Shorter searches are timed too badly to tell. */
#define TIMED_S 0.5

/* Caches change no figure, counted effort included: they are timed. */
static bool is_cache(mf_mechanism m) {
    return m == MF_MECHANISM_BLOCK_CACHE || m == MF_MECHANISM_COST_CACHE ||
           m == MF_MECHANISM_KEPT_FIGURES;
}

/* A gap counts as far as it is wider than the one that was asked for. */
static double beyond(const job *r, const measured *m) {
    return fmax(0.0, m->gap - (r->gap > 0 ? r->gap : FIGURE_GAP));
}

/* One cell: what is worse without the mechanism, as far as it counts; "" = nothing, "?" = unknown.
 * Worse: the plan by so much, the gap by so many points, time by so many times. */
static void print_cell(const job *r, const measured *all, const measured *less, bool counts) {
    if (!all->known || !less->known) {
        printf("|?");
        return;
    }
    double slower = less->best_s / all->best_s - 1.0, wider = beyond(r, less) - beyond(r, all);
    double longer = counts ? less->work_s / all->work_s : less->cpu_s / all->cpu_s;
    printf("|");
    if (slower >= KEPT_SHARE || slower <= -KEPT_SHARE) {
        printf("plan %+.1f %% ", 100 * slower);
    }
    if (wider >= KEPT_SHARE || wider <= -KEPT_SHARE) {
        printf("gap %+.1f ", 100 * wider);
    }
    if ((longer >= KEPT_TIMES || longer <= 1 / KEPT_TIMES) &&
        (counts || less->cpu_s >= TIMED_S || all->cpu_s >= TIMED_S)) {
        printf("%.2fx", longer);
    }
}

static void print_table(const bool *chosen, mf_mechanisms without, table t) {
    printf("|without");
    for (int k = 0; k < JOBS; k++) {
        if (chosen[k]) {
            printf("|%s", jobs[k].name);
        }
    }
    printf("|\n|---");
    for (int k = 0; k < JOBS; k++) {
        printf("%s", chosen[k] ? "|---" : "");
    }
    printf("|\n|*everything on*");
    for (int k = 0; k < JOBS; k++) {
        if (chosen[k]) {
            printf("|%.1f s, gap %.1f %%, %.4g s", t[0][k].cpu_s, 100 * t[0][k].gap,
                   t[0][k].best_s);
        }
    }
    printf("|\n");
    for (int i = 1; i < SETTINGS; i++) {
        if (mf_uses(without, (mf_mechanism)(i - 1))) {
            continue;
        }
        printf("|%s", setting_name(i));
        for (int k = 0; k < JOBS; k++) {
            if (chosen[k]) {
                print_cell(&jobs[k], &t[0][k], &t[i][k], !is_cache((mf_mechanism)(i - 1)));
            }
        }
        printf("|\n");
    }
}

static bool make_table(const char *path, const bool *chosen, const setting *with) {
    const mf_mechanisms without = with->without;
    static table t;
    bool good = true;
    read_table(path, t);
    for (int i = 0; i < SETTINGS; i++) {
        bool wanted = i == 0 || !mf_uses(without, (mf_mechanism)(i - 1));
        for (int k = 0; k < JOBS; k++) {
            if (wanted && chosen[k] && !t[i][k].known) {
                good = measure(path, i, k, with->effort_s, &t[i][k]) && good;
            }
        }
    }
    print_table(chosen, without, t);
    return good;
}

/* --- options ---------------------------------------------------------------------------------- */

typedef struct options {
    bool chosen[JOBS];
    setting with;
    const char *table;
    bool list;
} options;

/* Names between commas; false when there is one that nobody knows. */
static bool choose_jobs(const char *names, bool chosen[JOBS]) {
    char text[256];
    bool good = true;
    snprintf(text, sizeof text, "%s", names);
    for (char *name = strtok(text, ","); name != NULL; name = strtok(NULL, ",")) {
        bool found = false;
        for (int i = 0; i < JOBS; i++) {
            bool this = strcmp(name, "all") == 0 || strcmp(name, jobs[i].name) == 0;
            chosen[i] |= this;
            found |= this;
        }
        if (!found) {
            fprintf(stderr, "bench_plan: there is no job `%s`; --list names them\n", name);
            good = false;
        }
    }
    return good;
}

static bool choose_mechanisms(const char *names, mf_mechanisms *out) {
    char text[1024];
    bool good = true;
    snprintf(text, sizeof text, "%s", names);
    for (char *name = strtok(text, ","); name != NULL; name = strtok(NULL, ",")) {
        mf_mechanism m;
        if (mf_mechanism_parse(name, &m)) {
            *out |= (mf_mechanisms)1 << m;
        } else {
            fprintf(stderr, "bench_plan: there is no mechanism `%s`; --list names them\n", name);
            good = false;
        }
    }
    return good;
}

static bool read_options(int argc, char **argv, options *o) {
    bool good = true, some = false;
    *o = (options){.with = {.threads = MEASURED_THREADS}};
    for (int i = 1; i < argc && good; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--list") == 0) {
            o->list = true;
        } else if (value == NULL) {
            good = false;
        } else if (strcmp(argv[i], "--jobs") == 0) {
            good = choose_jobs(value, o->chosen);
            some = true;
        } else if (strcmp(argv[i], "--without") == 0) {
            good = choose_mechanisms(value, &o->with.without);
        } else if (strcmp(argv[i], "--threads") == 0) {
            o->with.threads = atoi(value);
        } else if (strcmp(argv[i], "--effort") == 0) {
            o->with.effort_s = strtol(value, NULL, 10);
        } else if (strcmp(argv[i], "--plans") == 0) {
            o->with.plans = value;
        } else if (strcmp(argv[i], "--table") == 0) {
            o->table = value;
        } else {
            good = false;
        }
        i += !o->list;
    }
    for (int i = 0; i < JOBS && !some; i++) {
        o->chosen[i] = o->table != NULL || jobs[i].figure_s > 0;
    }
    if (o->table != NULL && o->with.without == 0) {
        o->with.without = ~(mf_mechanisms)0;
    }
    return good;
}

int main(int argc, char **argv) {
    options o;
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_plan [--jobs all|NAME,...] [--without MECHANISM,...] "
                        "[--threads N] [--effort N] [--plans DIR] [--table FILE] | --list\n");
        return 2;
    }
    if (o.list) {
        for (int i = 0; i < JOBS; i++) {
            printf("%-16s %s\n", jobs[i].name, jobs[i].what);
        }
        for (int i = 0; i < MF_MECHANISMS; i++) {
            printf("%-16s %s\n", mf_mechanism_text((mf_mechanism)i),
                   mf_mechanism_meaning((mf_mechanism)i));
        }
        return 0;
    }
    bool good =
        o.table != NULL ? make_table(o.table, o.chosen, &o.with) : print_jobs(o.chosen, &o.with);
    return good ? 0 : 1;
}
