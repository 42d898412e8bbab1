/* predict.c - one prediction a row: lower, simulate, compare. Cost models are made once for each
 * (cluster, profile) that is needed. */
#include "bench/published/predict.h"

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

static mf_status add_cost(pub_costs *t, const pub_profiles *p, const pub_row *r, mf_store *store,
                          mf_err *e) {
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
                         : mf_cost_create(&r->cluster, &p->software[r->profile], store, cost, e);
}

mf_status pub_costs_create(const pub_profiles *p, const pub_row *rows, int count, pub_costs **out,
                           mf_err *e) {
    mf_store *store = NULL;
    pub_costs *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status status = mf_store_open_shipped(&store, e);
    for (int i = 0; i < count && status == MF_OK; i++) {
        if (!rows[i].skipped[0]) {
            status = add_cost(t, p, &rows[i], store, e);
        }
    }
    mf_store_close(store);
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

/* memory_B may be NULL. */
static mf_status simulate(const mf_cost *cost, const pub_row *r, const mf_layout *l, mf_sim **sim,
                          double *memory_B, mf_err *e) {
    mf_program *program = NULL;
    mf_sim_options options = {0};
    mf_status status = pub_lower(r, l, &program, e);
    if (status == MF_OK) {
        status = mf_sim_step(cost, program, &options, sim, e);
    }
    if (status == MF_OK && memory_B != NULL) {
        *memory_B = pub_reported_memory_B(r, program, (*sim)->memory);
    }
    mf_program_destroy(program);
    return status;
}

/* Step time with `rounds` x PP micro-batches. */
static mf_status shorter(const mf_cost *cost, const pub_row *r, mf_layout l, int64_t rounds,
                         double *time_s, mf_err *e) {
    mf_sim *sim = NULL;
    l.gbs = rounds * l.pp * l.mbs * l.dp;
    mf_status status = mf_layout_resolve(&l, &r->model, e);
    status = status == MF_OK ? simulate(cost, r, &l, &sim, NULL, e) : status;
    *time_s = status == MF_OK ? sim->step_time_s : 0;
    mf_sim_destroy(sim);
    return status;
}

/* One way in which the row may have run, for a fit: of a long step the filled pipeline goes on
 * evenly, so that two shorter ones tell its length. */
static mf_status quick_way(const mf_cost *cost, const pub_row *r, const mf_layout *l,
                           double *time_s, mf_err *e) {
    enum { SHORT = 2, LONG = 4 };
    if (l->micro_batches < 2 * (SHORT + LONG) * l->pp) {
        mf_sim *sim = NULL;
        mf_status status = simulate(cost, r, l, &sim, NULL, e);
        *time_s = status == MF_OK ? sim->step_time_s : 0;
        mf_sim_destroy(sim);
        return status;
    }
    double few, more;
    mf_status status = shorter(cost, r, *l, SHORT, &few, e);
    status = status == MF_OK ? shorter(cost, r, *l, LONG, &more, e) : status;
    if (status == MF_OK) {
        double rounds = (double)l->micro_batches / (double)l->pp;
        *time_s = more + (rounds - LONG) * (more - few) / (LONG - SHORT);
    }
    return status;
}

static void predict_quickly(const mf_cost *cost, pub_row *r) {
    mf_err e;
    mf_err_clear(&e);
    double log_s = 0;
    for (int i = 0; i < r->ways; i++) {
        double time_s;
        if (quick_way(cost, r, &r->way[i], &time_s, &e) != MF_OK) {
            snprintf(r->skipped, sizeof r->skipped, "prediction failed: %.70s", e.text);
            return;
        }
        log_s += log(time_s) / r->ways;
    }
    r->predicted_s = exp(log_s);
}

/* What the row leaves unsaid and no way stands for moves steps by about this much (facts: noise of
 * MoE rows with flags ignored 10.7 %, of dense rows 3.1 %). */
static double widening(const pub_row *r) {
    int unsaid = 0;
    for (unsigned bits = r->unknown; bits; bits &= bits - 1) {
        unsaid++;
    }
    return (r->moe ? 0.08 : 0.03) * (unsaid > 2 ? 2 : unsaid);
}

/* The geometric mean over the ways; the band covers all of them. */
static void predict_row(const mf_cost *cost, pub_row *r) {
    mf_err e;
    mf_err_clear(&e);
    double log_s = 0, low = HUGE_VAL, high = 0;
    memset(r->breakdown_s, 0, sizeof r->breakdown_s);
    r->predicted_memory_B = 0;
    r->fits = true;
    for (int i = 0; i < r->ways; i++) {
        mf_sim *sim = NULL;
        double memory_B;
        if (simulate(cost, r, &r->way[i], &sim, &memory_B, &e) != MF_OK) {
            snprintf(r->skipped, sizeof r->skipped, "prediction failed: %.70s", e.text);
            return;
        }
        log_s += log(sim->step_time_s) / r->ways;
        low = fmin(low, sim->low_s);
        high = fmax(high, sim->high_s);
        r->predicted_memory_B += memory_B / r->ways;
        r->fits &= sim->memory->fits;
        for (int k = 0; k < MF_BD_COUNT; k++) {
            r->breakdown_s[k] += sim->breakdown_s[k] / r->ways;
        }
        mf_sim_destroy(sim);
    }
    r->predicted_s = exp(log_s);
    r->low_s = low * (1.0 - widening(r));
    r->high_s = high * (1.0 + widening(r));
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
        const mf_cost *cost = w->costs->cost[cluster_of(w->costs, r->cluster.name)][r->profile];
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
