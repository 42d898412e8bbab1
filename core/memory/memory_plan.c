/* memory_plan.c - the memory plan of all stages: what is in use at the same time, and gaps between
 * addresses. */
#include "core/memory/memory.h"
#include "core/memory/memory_place.h"

#include <math.h>
#include <stdlib.h>

void mf_memory_destroy(mf_memory *m) {
    if (m == NULL) {
        return;
    }
    free(m->stage);
    free(m);
}

static mf_status count_stages(const mf_program *p, const mf_schedule *s, mf_memory **out,
                              mf_err *e) {
    mf_memory *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->stage = calloc((size_t)s->stages, sizeof *m->stage);
    }
    *out = m;
    if (m == NULL || m->stage == NULL) {
        return mf_err_set(e, MF_NOMEM, "memory plan: out of memory");
    }
    m->stages = s->stages;
    m->capacity_B = p->cluster.gpu.memory_B;
    m->usable_B = mf_cluster_usable_B(&p->cluster, p->layout.reserve);
    mf_status status = MF_OK;
    for (int64_t i = 0; i < s->stages && status == MF_OK; i++) {
        status = mf_memory_count(p, s, i, &m->stage[i], e);
    }
    return status;
}

/* Adds the gaps of a stage's device or host memory; any that are below budget_B will do. */
static mf_status arrange_stage(const mf_program *p, const mf_schedule *s, int64_t i, bool host,
                               double budget_B, mf_memory *m, mf_err *e) {
    mf_place_size x = {0};
    mf_memory_stage *stage = &m->stage[i];
    int64_t enough_B =
        budget_B > 1.0 ? (int64_t)budget_B - 1 : 0; /* below the budget, however it was rounded */
    mf_status status = mf_memory_place_size(p, s, i, host, enough_B, &x, e);
    m->looks += x.looks;
    double gaps_B = (double)(x.size_B - x.bound_B);
    if (host) {
        stage->host_B += gaps_B;
    } else {
        stage->kind_B[MF_MEM_GAPS] = gaps_B;
        stage->peak_B += gaps_B;
    }
    return status;
}

static void find_peak(mf_memory *m) {
    m->peak_B = 0;
    for (int64_t i = 0; i < m->stages; i++) {
        if (m->stage[i].peak_B > m->peak_B) {
            m->peak_B = m->stage[i].peak_B;
            m->peak_stage = i;
        }
    }
}

static void find_fits(const mf_program *p, mf_memory *m) {
    double host_B = p->cluster.host_memory_B > 0 ? p->cluster.host_memory_B : (double)INFINITY;
    m->fits = m->peak_B <= m->usable_B;
    for (int64_t i = 0; i < m->stages; i++) {
        m->fits = m->fits && m->stage[i].host_B <= host_B;
    }
}

/* Stages that have to be arranged: all; */
static mf_status arrange_all(const mf_program *p, const mf_schedule *s, mf_memory *m, mf_err *e) {
    mf_status status = MF_OK;
    for (int64_t i = 0; i < m->stages && status == MF_OK; i++) {
        status = arrange_stage(p, s, i, false, 0, m, e);
        if (status == MF_OK) {
            status = arrange_stage(p, s, i, true, 0, m, e);
        }
    }
    return status;
}

/* Of the stages that are not arranged and might need more than those that are, the one that seems
 * to need most; -1: none. */
static int64_t next_stage(const mf_memory *m, const bool *done, bool host) {
    double sure_B = 0;
    int64_t next = -1;
    for (int64_t i = 0; i < m->stages; i++) {
        sure_B = done[i] ? fmax(sure_B, host ? m->stage[i].host_B : m->stage[i].peak_B) : sure_B;
    }
    for (int64_t i = 0; i < m->stages; i++) {
        const mf_memory_stage *x = &m->stage[i];
        double now_B = host ? x->host_B : x->peak_B, most_B = host ? x->host_most_B : x->most_B;
        double best_B = next < 0 ? -1 : host ? m->stage[next].host_B : m->stage[next].peak_B;
        next = !done[i] && most_B > sure_B && now_B > best_B ? i : next;
    }
    return next;
}

/* those that decide the largest of all; */
static mf_status arrange_largest(const mf_program *p, const mf_schedule *s, mf_memory *m,
                                 mf_err *e) {
    bool *arranged = calloc(2 * (size_t)m->stages, sizeof *arranged);
    mf_status status = MF_OK;
    if (arranged == NULL) {
        return mf_err_set(e, MF_NOMEM, "memory plan: out of memory");
    }
    for (int host = 0; host < 2; host++) {
        bool *done = arranged + host * m->stages;
        for (int64_t i; status == MF_OK && (i = next_stage(m, done, host == 1)) >= 0;) {
            done[i] = true;
            status = arrange_stage(p, s, i, host == 1, 0, m, e);
        }
    }
    free(arranged);
    return status;
}

/* those that fit without gaps and might not with them; the first sure_stages are known to fit and
 * left out. loose: only as far as shows that they fit. */
static mf_status arrange_some(const mf_program *p, const mf_schedule *s, bool loose, mf_memory *m,
                              mf_err *e) {
    double host_B = p->cluster.host_memory_B > 0 ? p->cluster.host_memory_B : (double)INFINITY;
    mf_status status = MF_OK;
    for (int64_t i = m->sure_stages; i < m->stages && status == MF_OK; i++) {
        const mf_memory_stage *x = &m->stage[i];
        if (x->peak_B > m->usable_B || x->host_B > host_B) {
            break;
        }
        if (x->most_B > m->usable_B) {
            status = arrange_stage(p, s, i, false, loose ? m->usable_B - x->peak_B : 0, m, e);
        }
        if (status == MF_OK && x->peak_B > m->usable_B) {
            break; /* one that does not fit is enough */
        }
        if (x->host_most_B > host_B && status == MF_OK) {
            status = arrange_stage(p, s, i, true, loose ? host_B - x->host_B : 0, m, e);
        }
        m->sure_stages += m->sure_stages == i && x->host_B <= host_B;
    }
    return status;
}

static mf_status arrange_doubtful(const mf_program *p, const mf_schedule *s, mf_memory *m,
                                  mf_err *e) {
    return arrange_some(p, s, false, m, e);
}

static mf_status arrange_loosely(const mf_program *p, const mf_schedule *s, mf_memory *m,
                                 mf_err *e) {
    return arrange_some(p, s, true, m, e);
}

static mf_status plan(const mf_program *p, const mf_schedule *s, int64_t sure_stages,
                      mf_status (*arrange)(const mf_program *p, const mf_schedule *s, mf_memory *m,
                                           mf_err *e),
                      mf_memory **out, mf_err *e) {
    mf_memory *m = NULL;
    mf_status status = count_stages(p, s, &m, e);
    if (status == MF_OK) {
        m->sure_stages = sure_stages;
        status = arrange(p, s, m, e);
    }
    *out = NULL;
    if (status != MF_OK) {
        mf_memory_destroy(m);
        return status;
    }
    find_peak(m);
    find_fits(p, m);
    *out = m;
    return MF_OK;
}

mf_status mf_memory_plan(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e) {
    return plan(p, s, 0, arrange_all, out, e);
}

mf_status mf_memory_peak(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e) {
    return plan(p, s, 0, arrange_largest, out, e);
}

static mf_status arrange_none(const mf_program *p, const mf_schedule *s, mf_memory *m, mf_err *e) {
    (void)p, (void)s, (void)m, (void)e;
    return MF_OK;
}

mf_status mf_memory_sums(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e) {
    return plan(p, s, 0, arrange_none, out, e);
}

mf_status mf_memory_judge(const mf_program *p, const mf_schedule *s, mf_memory **out, mf_err *e) {
    return plan(p, s, 0, arrange_doubtful, out, e);
}

mf_status mf_memory_fit(const mf_program *p, const mf_schedule *s, int64_t sure_stages,
                        mf_memory **out, mf_err *e) {
    return plan(p, s, sure_stages, arrange_loosely, out, e);
}
