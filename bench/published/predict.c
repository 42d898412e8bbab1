/* predict.c - one prediction a row, as `moefold simulate` makes it. Cost models are made once for
 * each (cluster, profile) that is needed. */
#include "bench/published/predict.h"

#include "job/figures/reported_memory.h"

#include "simulator/sim.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CLUSTERS 16

struct pub_costs {
    int clusters;
    char name[MAX_CLUSTERS][64];
    mf_cost *cost[MAX_CLUSTERS][PUB_MAX_PROFILES];
};

static int index_of(const pub_profiles *p, const char *name) {
    for (int i = 0; i < p->count; i++) {
        if (strcmp(p->software[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

mf_status pub_profiles_load(pub_profiles *p, pub_row *rows, int count, mf_err *e) {
    p->count = 0;
    for (int i = 0; i < count; i++) {
        mf_software want;
        rows[i].profile = -1;
        if (rows[i].skipped[0]) {
            continue;
        }
        mf_status status = mf_software_load(rows[i].software, &want, e);
        if (status != MF_OK) {
            return status;
        }
        rows[i].profile = index_of(p, want.name);
        if (rows[i].profile >= 0) {
            continue;
        }
        if (p->count == PUB_MAX_PROFILES) {
            return mf_err_set(e, MF_INTERNAL, "more software profiles than %d", PUB_MAX_PROFILES);
        }
        rows[i].profile = p->count;
        p->software[p->count++] = want;
    }
    return MF_OK;
}

/* --- cost models ------------------------------------------------------------------------------ */

static int cluster_of(const pub_costs *t, const char *name) {
    for (int i = 0; i < t->clusters; i++) {
        if (strcmp(t->name[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

/* From the shipped measurements, as commands take them. */
static mf_status add_cost(pub_costs *t, const pub_profiles *p, const pub_row *r, mf_err *e) {
    int cluster = cluster_of(t, r->cluster.name);
    if (cluster < 0) {
        if (t->clusters == MAX_CLUSTERS) {
            return mf_err_set(e, MF_INTERNAL, "more clusters than %d", MAX_CLUSTERS);
        }
        cluster = t->clusters++;
        snprintf(t->name[cluster], sizeof t->name[0], "%s", r->cluster.name);
    }
    mf_cost **cost = &t->cost[cluster][r->profile];
    return *cost != NULL ? MF_OK
                         : mf_cost_create(&r->cluster, &p->software[r->profile], NULL, cost, e);
}

mf_status pub_costs_create(const pub_profiles *p, const pub_row *rows, int count, pub_costs **out,
                           mf_err *e) {
    pub_costs *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status status = MF_OK;
    for (int i = 0; i < count && status == MF_OK; i++) {
        if (!rows[i].skipped[0]) {
            status = add_cost(t, p, &rows[i], e);
        }
    }
    if (status != MF_OK) {
        pub_costs_destroy(t);
        return status;
    }
    *out = t;
    return MF_OK;
}

void pub_costs_destroy(pub_costs *t) {
    for (int c = 0; t != NULL && c < t->clusters; c++) {
        for (int k = 0; k < PUB_MAX_PROFILES; k++) {
            mf_cost_destroy(t->cost[c][k]);
        }
    }
    free(t);
}

/* --- one row ---------------------------------------------------------------------------------- */

bool pub_flags_known(const pub_row *r) {
    return (r->unknown & (PUB_UNKNOWN_GRAPH | PUB_UNKNOWN_DISPATCHER | PUB_UNKNOWN_OVERLAP |
                          PUB_UNKNOWN_MBS)) == 0;
}

/* Step time with `rounds` x PP micro-batches; 0: as many as there are. */
static mf_status quick_step(const mf_cost *cost, const mf_job *j, int64_t rounds, double *time_s,
                            mf_err *e) {
    mf_layout l = j->plan.layout;
    mf_program *program = NULL;
    mf_sim *sim = NULL;
    const mf_sim_options options = {.routing = &j->routing, .sums = true};
    l.gbs = rounds > 0 ? rounds * l.pp * l.mbs * l.dp : l.gbs;
    mf_status s = mf_layout_resolve(&l, &j->model, e);
    s = s == MF_OK ? mf_program_lower(&j->model, &l, &j->cluster, &j->plan.assignment, &program, e)
                   : s;
    s = s == MF_OK ? mf_sim_step(cost, program, &options, &sim, e) : s;
    *time_s = s == MF_OK ? sim->step_time_s : 0;
    mf_sim_destroy(sim);
    mf_program_destroy(program);
    return s;
}

/* For a fit: of a long step the filled pipeline goes on evenly, so that two shorter ones tell its
 * length. */
static void predict_quickly(const mf_cost *cost, pub_row *r) {
    enum { SHORT = 2, LONG = 4 };
    const mf_layout *l = &r->layout;
    mf_err e;
    mf_err_clear(&e);
    double few = 0, more = 0;
    mf_status s = MF_OK;
    if (l->micro_batches < 2 * (SHORT + LONG) * l->pp) {
        s = quick_step(cost, r->job, 0, &r->predicted_s, &e);
    } else {
        s = quick_step(cost, r->job, SHORT, &few, &e);
        s = s == MF_OK ? quick_step(cost, r->job, LONG, &more, &e) : s;
        double rounds = (double)l->micro_batches / (double)l->pp;
        r->predicted_s = more + (rounds - LONG) * (more - few) / (LONG - SHORT);
    }
    if (s != MF_OK) {
        snprintf(r->skipped, sizeof r->skipped, "prediction failed: %.70s", e.text);
    }
}

static void predict_row(mf_cost *cost, pub_row *r) {
    mf_job *j = r->job;
    mf_err e;
    mf_err_clear(&e);
    const mf_sim_options options = {0};
    j->cost = cost;
    j->borrowed = true;
    if (mf_job_simulate(j, &options, &e) != MF_OK ||
        mf_reported_memory(j, &j->plan, &r->predicted_memory_B, &e) != MF_OK) {
        snprintf(r->skipped, sizeof r->skipped, "prediction failed: %.70s", e.text);
        return;
    }
    const mf_plan_prediction *p = &j->plan.prediction;
    r->predicted_s = p->step_time_s;
    r->low_s = p->step_time_low_s;
    r->high_s = p->step_time_high_s;
    r->fits = p->fits;
    memcpy(r->breakdown_s, j->sim->breakdown_s, sizeof j->sim->breakdown_s);
    mf_job_forget(j);
}

/* --- all rows --------------------------------------------------------------------------------- */

typedef struct work {
    const pub_costs *costs;
    pub_row *rows;
    int count, first;
    bool fitting;
} work;

static void *predict_some(void *arg) {
    const work *w = arg;
    for (int i = w->first; i < w->count; i += 2) {
        pub_row *r = &w->rows[i];
        if (r->skipped[0] || (r->held_out && w->fitting)) {
            continue;
        }
        mf_cost *cost = w->costs->cost[cluster_of(w->costs, r->cluster.name)][r->profile];
        if (w->fitting) {
            predict_quickly(cost, r);
        } else {
            predict_row(cost, r);
        }
    }
    return NULL;
}

void pub_predict(pub_costs *costs, const pub_profiles *p, pub_row *rows, int count, bool fitting) {
    for (int c = 0; c < costs->clusters; c++) {
        for (int k = 0; k < p->count; k++) {
            if (costs->cost[c][k] != NULL) {
                mf_cost_set_software(costs->cost[c][k], &p->software[k]);
            }
        }
    }
    work half[2];
    pthread_t other;
    for (int k = 0; k < 2; k++) {
        half[k] = (work){costs, rows, count, k, fitting};
    }
    bool threaded = pthread_create(&other, NULL, predict_some, &half[1]) == 0;
    predict_some(&half[0]);
    if (threaded) {
        pthread_join(other, NULL);
    } else {
        predict_some(&half[1]);
    }
}
