/* bench_sim.c - times of the simulator: DeepSeek-V3 on 1,024 GPUs (PP 16, 128 micro-batches), one
 * rank per stage and every rank; blocks alone; events and ops per second; memory of the process.
 *
 * Prints one line a measurement: name, seconds, the figure to reach. A figure that is missed is
 * marked, since it depends on the machine; exit 1 on an error.
 */
#include "core/base/clock.h"
#include "simulator/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct job {
    mf_model model;
    mf_cluster cluster;
    mf_layout layout;
    mf_cost *cost;
    mf_program *program;
    double lower_s;
} job;

static mf_status prepare(job *j, const char *model, mf_schedule_kind schedule, int64_t vpp,
                         mf_err *e) {
    mf_software software;
    mf_assignment a;
    memset(j, 0, sizeof *j);
    mf_status status = mf_model_load(model, &j->model, e);
    status = status == MF_OK ? mf_cluster_load("h100", &j->cluster, e) : status;
    status = status == MF_OK ? mf_software_load("moefold", &software, e) : status;
    if (status == MF_OK) {
        status = mf_cost_create(&j->cluster, &software, NULL, &j->cost, e);
    }
    mf_layout_init(&j->layout);
    j->layout.gpus = 1024;
    j->layout.pp = 16;
    j->layout.vpp = vpp;
    j->layout.ep = 64;
    j->layout.gbs = 8192;
    j->layout.seq = 4096;
    j->layout.schedule = schedule;
    if (status == MF_OK) {
        status = mf_layout_resolve(&j->layout, &j->model, e);
    }
    double start = mf_clock_s();
    if (status == MF_OK) {
        status = mf_assignment_even(&j->model, &j->layout, &a, e);
    }
    if (status == MF_OK) {
        status = mf_program_lower(&j->model, &j->layout, &j->cluster, &a, &j->program, e);
    }
    j->lower_s = mf_clock_s() - start;
    return status;
}

static void release(job *j) {
    mf_program_destroy(j->program);
    mf_cost_destroy(j->cost);
}

/* Best of `runs`, since other work on the machine only adds. */
static mf_status simulate(const job *j, bool every_rank, const char *routing, int runs, mf_err *e) {
    mf_routing r;
    mf_status status = mf_routing_parse(routing, &r, e);
    double best = 1e30, step_s = 0, events = 0, ops = 0;
    for (int i = 0; i < runs && status == MF_OK; i++) {
        mf_sim_options o = {.every_rank = every_rank, .routing = &r};
        mf_sim *s = NULL;
        double start = mf_clock_s();
        status = mf_sim_step(j->cost, j->program, &o, &s, e);
        double took = mf_clock_s() - start;
        if (status == MF_OK) {
            best = took < best ? took : best;
            step_s = s->step_time_s;
            events = (double)s->events;
            ops = (double)s->ops;
        }
        mf_sim_destroy(s);
    }
    if (status == MF_OK) {
        double total = best + j->lower_s, limit = every_rank ? 10.0 : 0.3;
        printf("simulate %s, 1,024 x h100, PP 16, %s%s, %lld micro-batches, %s, %s\n",
               j->model.name, mf_schedule_text(j->layout.schedule),
               j->layout.vpp > 1 ? " VPP 2" : "", (long long)j->layout.micro_batches,
               every_rank ? "every rank" : "one rank a stage", routing);
        printf("    %8.4f s with lowering (figure: <= %g s): %s; step %.3f s; %.3g events/s, "
               "%.3g ops/s\n",
               total, limit, total <= limit ? "met" : "MISSED", step_s, events / best, ops / best);
    }
    mf_routing_clear(&r);
    return status;
}

static mf_status blocks(const job *j, mf_err *e) {
    const mf_block *b = j->program->blocks[j->program->block_of[10]];
    enum { RUNS = 2000 };
    double ops = 0, start = mf_clock_s();
    for (int i = 0; i < RUNS; i++) {
        mf_block_time t;
        mf_status status = mf_sim_block(j->cost, &j->layout, b, MF_PASS_BACKWARD, NULL,
                                        1 + 1e-3 * i, false, &t, e);
        if (status != MF_OK) {
            return status;
        }
        ops += t.nops;
    }
    double took = mf_clock_s() - start;
    start = mf_clock_s();
    double sum = 0;
    for (int i = 0; i < RUNS; i++) {
        sum += mf_sim_block_bound(j->cost, &j->layout, b, MF_PASS_BACKWARD, 1 + 1e-3 * i);
    }
    double bound = mf_clock_s() - start;
    printf("block %s, backward: %.1f us, %.3g ops/s; its bound %.1f us (mean %.3g ms)\n", b->label,
           took / RUNS * 1e6, ops / took, bound / RUNS * 1e6, sum / RUNS * 1e3);
    return MF_OK;
}

static mf_status memory(const job *j, mf_err *e) {
    enum { RUNS = 100 };
    mf_schedule *s = NULL;
    mf_status status = mf_schedule_create(&j->layout, &s, e);
    double start = mf_clock_s();
    for (int i = 0; i < RUNS && status == MF_OK; i++) {
        mf_memory *m = NULL;
        status = mf_memory_plan(j->program, s, &m, e);
        mf_memory_destroy(m);
    }
    printf("memory plan of 16 stages: %.1f us\n", (mf_clock_s() - start) / RUNS * 1e6);
    mf_schedule_destroy(s);
    return status;
}

static mf_status run(mf_err *e) {
    static const struct {
        mf_schedule_kind schedule;
        int64_t vpp;
        bool every_rank;
        const char *routing;
        int runs;
    } cases[] = {
        {MF_SCHED_1F1B, 1, false, "balanced", 10},
        {MF_SCHED_INTERLEAVED, 2, false, "zipf:0.5", 10},
        {MF_SCHED_MERGED, 2, false, "balanced", 10},
        {MF_SCHED_ZB_V, 2, false, "balanced", 10},
        {MF_SCHED_1F1B, 1, true, "balanced", 2},
        {MF_SCHED_1F1B, 1, true, "zipf:0.5", 1},
        {MF_SCHED_INTERLEAVED, 2, true, "zipf:0.5", 1},
    };
    mf_status status = MF_OK;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && status == MF_OK; i++) {
        job j;
        status = prepare(&j, "deepseek-v3", cases[i].schedule, cases[i].vpp, e);
        if (status == MF_OK) {
            status = simulate(&j, cases[i].every_rank, cases[i].routing, cases[i].runs, e);
        }
        if (status == MF_OK && i == 0 && (status = blocks(&j, e)) == MF_OK) {
            status = memory(&j, e);
        }
        release(&j);
    }
    return status;
}

int main(void) {
    mf_err e;
    struct rusage use;
    mf_err_clear(&e);
    mf_status status = run(&e);
    getrusage(RUSAGE_SELF, &use);
    printf("peak memory of the process: %.1f MB\n", (double)use.ru_maxrss / 1024.0);
    if (status != MF_OK) {
        fprintf(stderr, "bench_sim: %s\n", e.text);
    }
    return status == MF_OK ? 0 : 1;
}
