/* bench_plan.c - whole plans against the clock, prices read and fitted, memory set up as the
 * command does: wall and CPU time, peak memory, the proof, and how many layouts a core prices in a
 * second: those with a bound of their own, over the core's time in bounds of families and layouts;
 * relaxations, trees and programs are not pricing.
 *
 * Usage: bench_plan [MOEFOLD [NAME]]. NAME picks the rows whose name holds it. Every row is a
 * process of its own, so that its peak memory is its own. Exit 1 when a search fails; figures that
 * are missed are marked, they depend on the machine. $MF_BENCH_LIMIT_S (default 120): a search that
 * takes longer is interrupted and shown as such.
 */
#define _DEFAULT_SOURCE /* wait4 */
#include "cli/heap.h"
#include "planner/planner.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct row {
    const char *name, *model;
    int64_t gpus, gbs;
    double figure_s;
} row;

static const row rows[] = {
    {"Mixtral-8x22B, 128 GPUs", "mixtral-8x22b", 128, 256, 1},
    {"DeepSeek-V3, 1,024 GPUs", "deepseek-v3", 1024, 8192, 2},
    {"DeepSeek-V3, 16,384 GPUs", "deepseek-v3", 16384, 16384, 10},
};
enum { ROWS = sizeof rows / sizeof rows[0], THREADS = 2 };

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

static mf_status load(const row *r, mf_model *m, mf_cost **cost, mf_err *e) {
    mf_cluster cluster = {0};
    mf_software software = {0};
    mf_status status = mf_model_load(r->model, m, e);
    if (status == MF_OK) {
        status = mf_cluster_load("h100", &cluster, e);
    }
    if (status == MF_OK) {
        status = mf_software_load(NULL, &software, e);
    }
    return status == MF_OK ? mf_cost_create(&cluster, &software, NULL, cost, e) : status;
}

static double clock_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void search(const row *r, outcome *out) {
    const double start_s = clock_s();
    mf_heap_warming warming;
    mf_model model;
    mf_cost *cost = NULL;
    mf_err e;
    mf_err_clear(&e);
    memset(out, 0, sizeof *out);
    mf_heap_set_up();
    mf_heap_begin_warming(&warming, THREADS);
    out->status = load(r, &model, &cost, &e);
    mf_heap_end_warming(&warming);
    if (out->status == MF_OK) {
        mf_problem p = {.model = &model, .cost = cost};
        mf_search_options o;
        mf_search_result x;
        mf_layout_init(&p.base);
        p.base.gpus = r->gpus;
        p.base.gbs = r->gbs;
        p.base.seq = 4096;
        mf_search_options_init(&o);
        o.threads = THREADS;
        o.cancel = &cancel;
        out->status = mf_planner_search(&p, &o, &x, &e);
        out->wall_s = clock_s() - start_s;
        out->stats = x.stats;
        out->best_s = x.count > 0 ? x.plan[0].prediction.step_time_s : 0;
        mf_search_result_clear(&x);
    }
    memcpy(out->text, e.text, sizeof out->text);
    mf_cost_destroy(cost);
}

static int in_child(const row *r, int to) {
    const char *limit = getenv("MF_BENCH_LIMIT_S");
    outcome out;
    signal(SIGALRM, on_alarm);
    alarm(limit ? (unsigned)strtoul(limit, NULL, 10) : 120u);
    search(r, &out);
    return write(to, &out, sizeof out) == (ssize_t)sizeof out ? 0 : 1;
}

static bool run(const row *r, outcome *out, struct rusage *usage) {
    int ends[2], status = 0;
    if (pipe(ends) != 0) {
        return false;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        _exit(in_child(r, ends[1]));
    }
    close(ends[1]);
    bool told = child > 0 && read(ends[0], out, sizeof *out) == (ssize_t)sizeof *out;
    close(ends[0]);
    return child > 0 && wait4(child, &status, 0, usage) == child && told && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static const char *mark(bool met) {
    return met ? "" : " !";
}

static void print(const row *r, const outcome *x, const struct rusage *u) {
    double cpu_s = (double)u->ru_utime.tv_sec + 1e-6 * (double)u->ru_utime.tv_usec +
                   (double)u->ru_stime.tv_sec + 1e-6 * (double)u->ru_stime.tv_usec;
    double memory_B = (double)u->ru_maxrss * 1024.0;
    bool found = x->best_s > 0;
    double rate = x->stats.pricing_s > 0 ? (double)x->stats.priced / x->stats.pricing_s : 0;
    printf("%-26s %7.2f s%s of %2.0f  cpu %7.2f s  %6.0f MB%s  gap %6.2f %%%s  best %.4g s  "
           "%lld layouts, %lld priced in %.2f s (%.3g /s/core%s), %lld programs, %lld steps%s\n",
           r->name, x->wall_s, mark(x->wall_s <= r->figure_s), r->figure_s, cpu_s, memory_B / 1e6,
           mark(memory_B <= FIGURE_B), found ? 100 * x->stats.gap : HUGE_VAL,
           mark(found && x->stats.gap <= FIGURE_GAP), x->best_s, (long long)x->stats.space,
           (long long)x->stats.priced, x->stats.pricing_s, rate, mark(rate >= FIGURE_PRICED),
           (long long)x->stats.milp_solved, (long long)x->stats.simulated,
           x->stats.interrupted ? ", interrupted" : "");
}

int main(int argc, char **argv) {
    bool good = true;
    printf("searches on %d threads; ! marks a figure that is missed\n", (int)THREADS);
    for (int i = 0; i < ROWS; i++) {
        outcome x;
        struct rusage usage;
        if (argc > 2 && strstr(rows[i].name, argv[2]) == NULL) {
            continue;
        }
        if (!run(&rows[i], &x, &usage)) {
            fprintf(stderr, "%s: the search's process ended early\n", rows[i].name);
            good = false;
        } else if (x.status != MF_OK && x.status != MF_INTERRUPTED) {
            fprintf(stderr, "%s: %s\n", rows[i].name, x.text);
            good = false;
        } else {
            print(&rows[i], &x, &usage);
        }
    }
    return good ? 0 : 1;
}
