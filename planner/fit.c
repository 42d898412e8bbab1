/* fit.c - phase 1: for every combination of degrees, does it fit, and by how much.
 *
 * Each combination is judged at its leanest: smallest micro-batch, plain 1F1B, and the best of a
 * few lean choices of ZeRO, recomputation and offload (full recomputation makes one layer's
 * workspace large, ZeRO-3 gathers weights, so the leanest is not the same everywhere). Memory needs
 * no more micro-batches than fill the pipeline.
 */
#include "planner/planner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

static bool pinned(const mf_problem *p, mf_dim d) {
    return (p->pinned >> d & 1u) != 0;
}

/* --- one combination -------------------------------------------------------------------------- */

/* Peak of one layout with its memory choice everywhere. False when it cannot be laid out. */
static bool judge(const mf_problem *p, const mf_layout *l, mf_fit_entry *out, mf_err *e,
                  mf_status *status) {
    mf_layout few = *l;
    mf_assignment a;
    mf_program *program = NULL;
    mf_schedule *schedule = NULL;
    mf_memory *memory = NULL;
    /* In-flight counts are complete after a pipeline's fill; groups of PP stay whole. */
    int64_t enough = 2 * l->pp * l->vpp;
    if (few.micro_batches > enough) {
        few.micro_batches = enough;
        few.gbs = enough * few.mbs * few.dp;
    }
    mf_status s = mf_assignment_even(p->model, &few, &a, e);
    if (s == MF_LAYOUT) {
        return false;
    }
    if (s == MF_OK) {
        s = mf_program_lower(p->model, &few, mf_cost_cluster(p->cost), &a, &program, e);
    }
    if (s == MF_OK) {
        s = mf_schedule_create(&few, &schedule, e);
    }
    if (s == MF_OK) {
        s = mf_memory_plan(program, schedule, &memory, e);
    }
    if (s == MF_OK) {
        const mf_memory_stage *peak = &memory->stage[memory->peak_stage];
        *out = (mf_fit_entry){.layout = *l,
                              .fits = memory->fits,
                              .peak_B = memory->peak_B,
                              .usable_B = memory->usable_B,
                              .headroom_B = memory->usable_B - memory->peak_B,
                              .stage = memory->peak_stage};
        for (int k = 0; k < MF_MEM_COUNT; k++) {
            if (peak->kind_B[k] > out->dominant_B) {
                out->dominant = (mf_memory_kind)k;
                out->dominant_B = peak->kind_B[k];
            }
        }
    }
    mf_memory_destroy(memory);
    mf_schedule_destroy(schedule);
    mf_program_destroy(program);
    *status = s;
    return s == MF_OK;
}

/* Lean choices, the usual leanest first. */
static const struct {
    uint8_t zero;
    uint16_t recompute, offload;
} lean[] = {
    {3, MF_RECOMPUTE_LAYER, MF_OFFLOAD_INPUT},
    {1, MF_RECOMPUTE_LAYER, MF_OFFLOAD_INPUT},
    {3, MF_RECOMPUTE_NORM | MF_RECOMPUTE_ACT | MF_RECOMPUTE_MLA_UP_PROJ | MF_RECOMPUTE_MLP, 0},
    {2, 0, 0},
};

static mf_status best_of(const mf_problem *p, mf_layout l, mf_fit_entry *out, bool *laid_out,
                         mf_err *e) {
    *laid_out = false;
    for (size_t i = 0; i < sizeof lean / sizeof lean[0]; i++) {
        mf_fit_entry now;
        mf_status status = MF_OK;
        if (!pinned(p, MF_DIM_ZERO)) {
            l.zero = lean[i].zero;
        }
        if (!pinned(p, MF_DIM_EXPERT_ZERO)) {
            l.expert_zero = lean[i].zero;
        }
        if (!pinned(p, MF_DIM_RECOMPUTE)) {
            l.memory.recompute = lean[i].recompute;
        }
        if (!pinned(p, MF_DIM_OFFLOAD)) {
            l.memory.offload = lean[i].offload;
        }
        if (judge(p, &l, &now, e, &status) &&
            (!*laid_out || (now.fits && !out->fits) ||
             (now.fits == out->fits && now.peak_B < out->peak_B))) {
            *out = now;
            *laid_out = true;
        }
        if (status != MF_OK) {
            return status;
        }
        if (*laid_out && out->fits) {
            break; /* it fits at its leanest: the others only say the same */
        }
    }
    return MF_OK;
}

/* --- all combinations ------------------------------------------------------------------------- */

typedef struct sweep {
    const mf_problem *p;
    mf_space space;
    const volatile int *cancel;
    bool first_only; /* stop at the first that fits */
    mf_fit_result *r;
    int64_t capacity;
    bool found;
    mf_err *e;
} sweep;

static mf_status append(sweep *w, const mf_fit_entry *entry) {
    mf_fit_result *r = w->r;
    if (r->count == w->capacity) {
        int64_t capacity = w->capacity ? 2 * w->capacity : 256;
        mf_fit_entry *grown = realloc(r->entry, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            return mf_err_set(w->e, MF_NOMEM, "fit: out of memory");
        }
        r->entry = grown;
        w->capacity = capacity;
    }
    r->entry[r->count++] = *entry;
    r->feasible += entry->fits;
    w->found |= entry->fits;
    return MF_OK;
}

/* The layout of a pair of points at the order that needs least; false when there is none. */
static bool lean_layout(const sweep *w, const mf_dense_point *d, const mf_expert_point *x,
                        mf_layout *out) {
    enum { MAX_ORDERS = 512 };
    mf_order_point orders[MAX_ORDERS];
    int64_t n = mf_space_orders(&w->space, d->pp, d->micro_batches, orders, MAX_ORDERS);
    n = n < MAX_ORDERS ? n : MAX_ORDERS;
    const mf_order_point *best = NULL;
    for (int64_t i = 0; i < n; i++) { /* 1F1B without chunks keeps least in flight */
        bool plain = orders[i].schedule == MF_SCHED_1F1B;
        if (best == NULL || (plain && best->schedule != MF_SCHED_1F1B)) {
            best = &orders[i];
        }
    }
    mf_zero_point zero = {w->space.base.zero, w->space.base.expert_zero};
    if (best == NULL) {
        return false;
    }
    *out = mf_space_layout(&w->space, d, x, best, &zero);
    return true;
}

/* Dense points of the same degrees differ in micro-batch, CP type, precision: the first is lean. */
static bool same_degrees(const mf_dense_point *a, const mf_dense_point *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp;
}

static bool same_expert_degrees(const mf_expert_point *a, const mf_expert_point *b) {
    return a->ep == b->ep && a->etp == b->etp;
}

static mf_status visit(sweep *w, const mf_dense_point *d, const mf_expert_point *experts,
                       int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        /* The last dispatcher of a pair of degrees counts: prefer all-to-all, which keeps no
         * registered buffers. */
        bool chosen = experts[i].dispatcher == MF_DISPATCH_ALLTOALL || experts[i].ep == 1 ||
                      pinned(w->p, MF_DIM_DISPATCHER);
        bool again =
            i > 0 && same_expert_degrees(&experts[i], &experts[i - 1]) && experts[i].ep == 1;
        if (!chosen || again) {
            continue;
        }
        mf_layout l;
        mf_fit_entry entry = {0};
        bool laid_out = false;
        if (!lean_layout(w, d, &experts[i], &l)) {
            continue;
        }
        mf_status status = best_of(w->p, l, &entry, &laid_out, w->e);
        if (status == MF_OK && laid_out) {
            status = append(w, &entry);
        }
        if (status != MF_OK || (w->first_only && w->found)) {
            return status;
        }
        if (w->cancel != NULL && *w->cancel) {
            return mf_err_set(w->e, MF_INTERRUPTED, "fit: interrupted");
        }
    }
    return MF_OK;
}

static mf_status run_sweep(sweep *w) {
    int64_t dense_count = mf_space_dense(&w->space, NULL, 0);
    mf_dense_point *dense = calloc((size_t)dense_count + 1, sizeof *dense);
    mf_expert_point *experts = NULL;
    mf_status status = dense ? MF_OK : mf_err_set(w->e, MF_NOMEM, "fit: out of memory");
    if (dense != NULL) {
        mf_space_dense(&w->space, dense, dense_count);
    }
    int64_t expert_count = 0;
    for (int64_t i = 0; status == MF_OK && dense != NULL && i < dense_count; i++) {
        if (i > 0 && same_degrees(&dense[i], &dense[i - 1])) {
            continue;
        }
        if (i == 0 || dense[i].pp != dense[i - 1].pp) {
            free(experts);
            expert_count = mf_space_experts(&w->space, dense[i].pp, NULL, 0);
            experts = calloc((size_t)expert_count + 1, sizeof *experts);
            if (experts == NULL) {
                status = mf_err_set(w->e, MF_NOMEM, "fit: out of memory");
                break;
            }
            mf_space_experts(&w->space, dense[i].pp, experts, expert_count);
        }
        status = visit(w, &dense[i], experts, expert_count);
        if (w->first_only && w->found) {
            break;
        }
    }
    free(experts);
    free(dense);
    return status;
}

static mf_space space_of(const mf_problem *p, int64_t gpus) {
    mf_space s = {.model = p->model, .base = p->base, .pinned = p->pinned};
    s.precisions = p->precisions;
    s.base.gpus = gpus;
    return s;
}

/* --- sizes ------------------------------------------------------------------------------------ */

static mf_status fits_at(const mf_problem *p, int64_t gpus, const volatile int *cancel, bool *fits,
                         mf_err *e) {
    mf_fit_result scratch = {0};
    sweep w = {.p = p,
               .space = space_of(p, gpus),
               .cancel = cancel,
               .first_only = true,
               .r = &scratch,
               .e = e};
    mf_status status = run_sweep(&w);
    *fits = w.found;
    mf_fit_result_clear(&scratch);
    return status;
}

/* Doubles until something fits, then tries whole nodes in between, from below. */
static mf_status smallest_size(const mf_problem *p, const volatile int *cancel, int64_t *out,
                               mf_err *e) {
    const mf_cluster *c = mf_cost_cluster(p->cost);
    int64_t node = c->gpus_per_node > 0 ? c->gpus_per_node : 1;
    int64_t most = c->max_gpus > 0 ? (int64_t)c->max_gpus : (int64_t)1 << 17;
    int64_t low = p->base.gpus, high = 0;
    *out = 0;
    for (int64_t n = low * 2; n <= most && high == 0; n *= 2) {
        bool fits = false;
        mf_status status = fits_at(p, n, cancel, &fits, e);
        if (status != MF_OK) {
            return status;
        }
        if (fits) {
            high = n;
        } else {
            low = n;
        }
    }
    if (high == 0) {
        return MF_OK;
    }
    int64_t step = (high - low) / 8 / node * node;
    step = step < node ? node : step;
    for (int64_t n = low + step; n < high; n += step) {
        bool fits = false;
        mf_status status = fits_at(p, n, cancel, &fits, e);
        if (status != MF_OK) {
            return status;
        }
        if (fits) {
            high = n;
        }
    }
    *out = high;
    return MF_OK;
}

/* --- result ----------------------------------------------------------------------------------- */

static int by_headroom(const void *a, const void *b) {
    const mf_fit_entry *x = a, *y = b;
    if (x->fits != y->fits) {
        return x->fits ? -1 : 1;
    }
    return x->headroom_B > y->headroom_B ? -1 : x->headroom_B < y->headroom_B;
}

static void say_missing(mf_fit_result *r) {
    if (r->count == 0) {
        snprintf(r->missing, sizeof r->missing,
                 "no combination of degrees divides GPUs, heads, experts and batch");
        return;
    }
    const mf_fit_entry *f = &r->entry[0];
    const mf_layout *l = &f->layout;
    snprintf(r->missing, sizeof r->missing,
             "the leanest layout (TP %lld, CP %lld, PP %lld, EP %lld, ETP %lld) needs %.1f GB on "
             "stage %lld, usable are %.1f GB: %.1f GB are missing; %s take %.1f GB of it",
             LL(l->tp), LL(l->cp), LL(l->pp), LL(l->ep), LL(l->etp), f->peak_B / 1e9, LL(f->stage),
             f->usable_B / 1e9, -f->headroom_B / 1e9, mf_memory_text(f->dominant),
             f->dominant_B / 1e9);
}

mf_status mf_planner_fit(const mf_problem *p, const volatile int *cancel, mf_fit_result *result,
                         mf_err *e) {
    *result = (mf_fit_result){0};
    sweep w = {.p = p, .space = space_of(p, p->base.gpus), .cancel = cancel, .r = result, .e = e};
    mf_status status = run_sweep(&w);
    if (status != MF_OK) {
        mf_fit_result_clear(result);
        return status;
    }
    if (result->count > 0) {
        qsort(result->entry, (size_t)result->count, sizeof *result->entry, by_headroom);
    }
    if (result->feasible > 0) {
        result->smallest_gpus = p->base.gpus;
        return MF_OK;
    }
    say_missing(result);
    status = smallest_size(p, cancel, &result->smallest_gpus, e);
    return status != MF_OK ? status : mf_err_set(e, MF_INFEASIBLE, "%s", result->missing);
}

void mf_fit_result_clear(mf_fit_result *r) {
    free(r->entry);
    *r = (mf_fit_result){0};
}
