/* space.c - lists of degrees and choices, and the product of their lengths. */
#include "planner/space/space.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *mf_dim_text(mf_dim d) {
    static const char *const text[] = {
#define X(name, text) text,
        MF_DIM_MAP(X)
#undef X
    };
    return d < MF_DIM_COUNT ? text[d] : "?";
}

/* Values that a dimension takes: all in the list, or the pinned one. */
typedef struct degrees {
    int count;
    int64_t value[512]; /* no number below 2^28 has more divisors */
} degrees;

/* Of the members that a limit names; 0 = all. */
static bool allowed(uint32_t members, int member) {
    return members == 0 || ((members >> member) & 1u) != 0;
}

static bool pinned(const mf_space *s, mf_dim d) {
    return (s->pinned >> d) & 1u;
}

static void divisors(const mf_space *s, mf_dim dim, int64_t pin, int64_t n, degrees *out) {
    out->count = 0;
    if (pinned(s, dim)) {
        out->value[out->count++] = pin;
        return;
    }
    for (int64_t d = 1; d <= n / d; d++) {
        if (n % d == 0) {
            out->value[out->count++] = d;
        }
    }
    for (int i = out->count - 1; i >= 0; i--) {
        if (n / out->value[i] > out->value[out->count - 1]) {
            out->value[out->count++] = n / out->value[i];
        }
    }
}

static void range(const mf_space *s, mf_dim dim, int64_t pin, int64_t most, degrees *out) {
    bool held = pinned(s, dim);
    out->count = 0;
    for (int64_t v = held ? pin : 1; v <= (held ? pin : most); v++) {
        if (out->count < 512) {
            out->value[out->count++] = v;
        }
    }
}

/* The base with every searched dimension at its smallest: the values set afterwards decide whether
 * it is valid. */
static mf_layout plain(const mf_space *s) {
    mf_layout l = s->base;
    l.tp = l.cp = l.pp = l.vpp = l.ep = l.etp = l.mbs = 1;
    l.schedule = MF_SCHED_GPIPE;
    l.cp_type = MF_CP_RING;
    l.dispatcher = MF_DISPATCH_FUSED;
    return l;
}

static uint32_t precisions(const mf_space *s) {
    bool held = s->precisions == 0 || pinned(s, MF_DIM_PRECISION);
    return held ? 1u << s->base.precision : s->precisions;
}

/* Hierarchical CP exchanges inside the NVLink domain and is a ring beyond it: with all of its group
 * inside it is the all-to-all one, with no two of it a ring. */
static bool is_of_one_level(const mf_space *s, mf_layout l) {
    const mf_group_shape cp = mf_layout_group(&l, MF_GROUP_CP);
    const bool halves = (cp.size & (cp.size - 1)) == 0; /* only such are all inside */
    l.cp_type = MF_CP_ALLTOALL;
    return (halves && cp.size * cp.stride <= s->domain_gpus && mf_layout_valid(&l, s->model)) ||
           (s->domain_gpus > 0 && (cp.size % 2 != 0 || 2 * cp.stride > s->domain_gpus));
}

/* Context-parallel types that differ for this (tp, cp); with CP 1 they are all the same. */
static int cp_types(const mf_space *s, mf_layout l, uint8_t out[MF_CP_COUNT]) {
    int count = 0;
    bool held = pinned(s, MF_DIM_CP_TYPE);
    if (l.cp == 1) {
        out[0] = held ? (uint8_t)s->base.cp_type : MF_CP_RING;
        return 1;
    }
    for (int t = 0; t < MF_CP_COUNT; t++) {
        l.cp_type = (mf_cp_type)t;
        const bool searched = held ? l.cp_type == s->base.cp_type
                                   : l.cp_type != MF_CP_HIERARCHICAL || !is_of_one_level(s, l);
        if (searched && mf_layout_valid(&l, s->model)) {
            out[count++] = (uint8_t)t;
        }
    }
    return count;
}

/* The dense points of one (pp, tp, cp, mbs): precisions and context-parallel types. */
static int64_t dense_choices(const mf_space *s, mf_layout l, mf_dense_point *out, int64_t count,
                             int64_t max) {
    uint8_t types[MF_CP_COUNT];
    if (!mf_layout_valid(&l, s->model)) {
        return count;
    }
    int ntypes = cp_types(s, l, types);
    for (int p = 0; p < MF_PREC_COUNT; p++) {
        for (int t = 0; t < ntypes && ((precisions(s) >> p) & 1u); t++) {
            if (count < max) {
                out[count] = (mf_dense_point){
                    .precision = (uint8_t)p,
                    .cp_type = types[t],
                    .tp = (int32_t)l.tp,
                    .cp = (int32_t)l.cp,
                    .pp = (int32_t)l.pp,
                    .mbs = (int32_t)l.mbs,
                    .dp = l.dp,
                    .micro_batches = l.micro_batches,
                };
            }
            count++;
        }
    }
    return count;
}

int64_t mf_space_dense(const mf_space *s, mf_dense_point *out, int64_t max) {
    int64_t count = 0;
    degrees pp, tp, cp, mbs;
    mf_layout l = plain(s);
    divisors(s, MF_DIM_PP, s->base.pp, s->base.gpus, &pp);
    divisors(s, MF_DIM_TP, s->base.tp, s->base.gpus, &tp);
    divisors(s, MF_DIM_CP, s->base.cp, s->base.gpus, &cp);
    range(s, MF_DIM_MICRO_BATCH, s->base.mbs, MF_SPACE_MAX_MBS, &mbs);
    for (int p = 0; p < pp.count; p++) {
        for (int t = 0; t < tp.count; t++) {
            for (int c = 0; c < cp.count; c++) {
                for (int b = 0; b < mbs.count; b++) {
                    l.pp = pp.value[p];
                    l.tp = tp.value[t];
                    l.cp = cp.value[c];
                    l.mbs = mbs.value[b];
                    count = dense_choices(s, l, out, count, max);
                }
            }
        }
    }
    return count;
}

/* The rules of the expert side; they do not depend on the attention side beyond PP. */
static bool expert_rules_hold(const mf_space *s, int64_t pp, int64_t ep, int64_t etp) {
    const mf_model *m = s->model;
    mf_layout l = plain(s);
    if (m->experts == 0) {
        return ep == 1 && etp == 1;
    }
    /* a batch that always divides, and one rank's attention: only the expert rules are left */
    l.pp = pp;
    l.ep = ep;
    l.etp = etp;
    l.gbs = s->base.gpus / pp;
    return s->base.gpus % pp == 0 && mf_layout_valid(&l, m);
}

int64_t mf_space_experts(const mf_space *s, int64_t pp, mf_expert_point *out, int64_t max) {
    int64_t count = 0, ranks = s->base.gpus / pp;
    bool held = pinned(s, MF_DIM_DISPATCHER);
    mf_dispatcher only = held ? s->base.dispatcher : MF_DISPATCH_FUSED;
    degrees ep, etp;
    divisors(s, MF_DIM_EP, s->base.ep, s->model->experts > 0 ? ranks : 1, &ep);
    divisors(s, MF_DIM_ETP, s->base.etp, s->model->experts > 0 ? ranks : 1, &etp);
    for (int i = 0; i < ep.count; i++) {
        for (int j = 0; j < etp.count; j++) {
            const bool least = s->model->experts == 0 || ep.value[i] >= s->limits.least_ep;
            if (!least || !expert_rules_hold(s, pp, ep.value[i], etp.value[j])) {
                continue;
            }
            for (int d = 0; d < MF_DISPATCH_COUNT; d++) {
                const bool one = held || ep.value[i] == 1;
                if (one ? (mf_dispatcher)d != only : !allowed(s->limits.dispatchers, d)) {
                    continue;
                }
                if (count < max) {
                    out[count] = (mf_expert_point){(int32_t)pp, (int32_t)ep.value[i],
                                                   (int32_t)etp.value[j], (uint8_t)d};
                }
                count++;
            }
        }
    }
    return count;
}

/* More chunks only help when they make the largest chunk smaller: of VPP with equal largest chunks
 * only the smallest is searched. On one stage chunks just follow one another. */
static bool is_useful_vpp(const mf_space *s, int64_t pp, int64_t vpp) {
    int64_t layers = s->model->layers;
    if (vpp <= 2 || pinned(s, MF_DIM_VPP)) {
        return vpp == 1 || pp > 1 || pinned(s, MF_DIM_VPP);
    }
    int64_t now = (layers + pp * vpp - 1) / (pp * vpp);
    int64_t before = (layers + pp * (vpp - 1) - 1) / (pp * (vpp - 1));
    return pp > 1 && now < before;
}

static bool may_take(const mf_space *s, int schedule) {
    return allowed(s->limits.schedules, schedule) &&
           (!pinned(s, MF_DIM_SCHEDULE) || (mf_schedule_kind)schedule == s->base.schedule);
}

/* One micro-batch on one chunk a stage goes forward and back, whichever of these is said: the one
 * that every program knows stands for them, or the next that may be taken. */
static bool is_said_already(const mf_space *s, int schedule, int64_t vpp, int64_t micro_batches) {
    static const int alike[] = {MF_SCHED_1F1B, MF_SCHED_GPIPE, MF_SCHED_MERGED};
    enum { ALIKE = sizeof alike / sizeof alike[0] };
    int first = ALIKE, own = ALIKE;
    for (int i = ALIKE - 1; i >= 0; i--) {
        first = may_take(s, alike[i]) ? i : first;
        own = alike[i] == schedule ? i : own;
    }
    return own < ALIKE && own > first && vpp == 1 && micro_batches == 1;
}

int64_t mf_space_orders(const mf_space *s, int64_t pp, int64_t micro_batches, mf_order_point *out,
                        int64_t max) {
    int64_t count = 0, positions = s->model->layers + s->model->mtp_layers + 2;
    degrees vpp;
    mf_layout l = plain(s);
    /* schedule rules see PP, VPP and the number of micro-batches only: let PP be all there is */
    l.gpus = pp;
    l.pp = pp;
    l.gbs = micro_batches;
    assert(pp > 0);
    range(s, MF_DIM_VPP, s->base.vpp, positions / pp, &vpp);
    for (int k = 0; k < MF_SCHED_COUNT; k++) {
        if (!may_take(s, k)) {
            continue;
        }
        for (int i = 0; i < vpp.count; i++) {
            l.schedule = (mf_schedule_kind)k;
            l.vpp = vpp.value[i];
            const bool whole = s->limits.chunked && pp > 1 && l.vpp == 1;
            const bool many = s->limits.most_chunks > 0 && pp * l.vpp > s->limits.most_chunks;
            const bool said = is_said_already(s, k, l.vpp, micro_batches);
            if (whole || many || said || !is_useful_vpp(s, pp, l.vpp) ||
                !mf_layout_valid(&l, s->model)) {
                continue;
            }
            if (count < max) {
                out[count] = (mf_order_point){(uint8_t)k, (int32_t)l.vpp};
            }
            count++;
        }
    }
    return count;
}

/* Levels of one side: all that differ, or the pinned one. */
static int levels(const mf_space *s, mf_dim dim, uint8_t pin, bool differ, uint8_t out[4]) {
    if (pinned(s, dim)) {
        out[0] = pin;
        return 1;
    }
    for (uint8_t z = 0; z < 4; z++) {
        out[z] = z;
    }
    return differ ? 4 : 1;
}

int64_t mf_space_zeros(const mf_space *s, int64_t dense_ranks, int64_t expert_ranks,
                       mf_zero_point *out, int64_t max) {
    uint8_t dense[4], expert[4];
    bool experts_differ = s->model->experts > 0 && expert_ranks > 1;
    int n = levels(s, MF_DIM_ZERO, s->base.zero, dense_ranks > 1, dense);
    int k = levels(s, MF_DIM_EXPERT_ZERO, s->base.expert_zero, experts_differ, expert);
    int64_t count = 0;
    for (int i = 0; i < n * k; i++) {
        const mf_zero_point z = {dense[i / k], expert[i % k]};
        const bool both = dense_ranks > 1 && experts_differ;
        if (s->limits.equal_zero && both && z.zero != z.expert_zero) {
            continue;
        }
        if (count < max) {
            out[count] = z;
        }
        count++;
    }
    return count;
}

int mf_space_compare(const int64_t (*keys)[2], int count) {
    int i = 0;
    while (i < count && keys[i][0] == keys[i][1]) {
        i++;
    }
    return i == count ? 0 : keys[i][0] < keys[i][1] ? -1 : 1;
}

mf_layout mf_space_layout(const mf_space *s, const mf_dense_point *d, const mf_expert_point *x,
                          const mf_order_point *o, const mf_zero_point *z) {
    mf_layout l = s->base;
    l.precision = (mf_precision)d->precision;
    l.tp = d->tp;
    l.cp = d->cp;
    l.pp = d->pp;
    l.mbs = d->mbs;
    l.cp_type = (mf_cp_type)d->cp_type;
    l.ep = x->ep;
    l.etp = x->etp;
    l.dispatcher = (mf_dispatcher)x->dispatcher;
    l.schedule = (mf_schedule_kind)o->schedule;
    l.vpp = o->vpp;
    l.zero = z->zero;
    l.expert_zero = z->expert_zero;
    bool valid = mf_layout_valid(&l, s->model);
    assert(valid);
    (void)valid;
    return l;
}

/* Choices of the expert side of one pipeline degree, ZeRO levels of both sides' groups included. */
static mf_status count_experts(const mf_space *s, int64_t pp, int64_t dense_ranks, int64_t *out,
                               mf_err *e) {
    int64_t n = mf_space_experts(s, pp, NULL, 0);
    mf_expert_point *points = calloc((size_t)n + 1, sizeof *points);
    if (!points) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    *out = 0;
    mf_space_experts(s, pp, points, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t ranks = s->base.gpus / (pp * points[i].ep * points[i].etp);
        *out += mf_space_zeros(s, dense_ranks, ranks, NULL, 0);
    }
    free(points);
    return MF_OK;
}

mf_status mf_space_count(const mf_space *s, int64_t *out, mf_err *e) {
    mf_status status = MF_OK;
    int64_t n = mf_space_dense(s, NULL, 0), pp = 0, ranks = 0, micro_batches = 0;
    int64_t experts[2] = {0, 0}, orders = 0; /* with dense parameters on one rank, on several */
    mf_dense_point *dense = calloc((size_t)n + 1, sizeof *dense);
    *out = 0;
    if (!dense) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_space_dense(s, dense, n);
    for (int64_t i = 0; i < n && status == MF_OK; i++) {
        const mf_dense_point *d = &dense[i];
        if (d->pp != pp) {
            status = count_experts(s, d->pp, 1, &experts[0], e);
            status = status == MF_OK ? count_experts(s, d->pp, 2, &experts[1], e) : status;
        }
        if (d->pp != pp || d->micro_batches != micro_batches) {
            orders = mf_space_orders(s, d->pp, d->micro_batches, NULL, 0);
        }
        pp = d->pp;
        micro_batches = d->micro_batches;
        ranks = d->dp * d->cp;
        *out += orders * experts[ranks > 1];
    }
    free(dense);
    return status;
}

/* A line that grows, truncated to its size. */
typedef struct line {
    char *text;
    size_t size, used;
} line;

MF_PRINTF(2, 3) static void say(line *x, const char *format, ...) {
    va_list list;
    if (x->used < x->size) {
        va_start(list, format);
        const int n = vsnprintf(x->text + x->used, x->size - x->used, format, list);
        va_end(list);
        x->used += n > 0 ? (size_t)n : 0;
    }
}

void mf_space_describe_left_out(const mf_space *s, char *out, size_t size) {
    const mf_layout *b = &s->base;
    char overlap[64], headroom[32] = "ep";
    line x = {.text = out, .size = size};
    mf_overlap_format(b->overlap, overlap, sizeof overlap);
    if (!b->headroom_worst_case) {
        snprintf(headroom, sizeof headroom, "%g", b->token_headroom);
    }
    say(&x, "held: overlap %s, cuda_graph %s, moments %s, offload_optimizer %g, token_headroom %s",
        overlap, mf_graph_text(b->graph), b->moments_bf16 ? "bf16" : "fp32", b->offload_optimizer,
        headroom);
    if (!pinned(s, MF_DIM_MICRO_BATCH)) {
        say(&x, ", micro_batch up to %d", MF_SPACE_MAX_MBS);
    }
    if (b->grads_bf16) {
        say(&x, ", grad_dtype bf16");
    }
    if (s->precisions == 0 || pinned(s, MF_DIM_PRECISION)) {
        say(&x, ", precision %s", mf_precision_text(b->precision));
    }
    const char *left = "; left out: ";
    if (!pinned(s, MF_DIM_VPP)) {
        say(&x, "%sVPP that make the largest chunk no smaller, VPP > 1 on one stage", left);
        left = ", ";
    }
    bool recompute = !pinned(s, MF_DIM_RECOMPUTE), offload = !pinned(s, MF_DIM_OFFLOAD);
    if (recompute || offload) {
        say(&x, "%s%s%s%s sets beyond the usual ones", left, recompute ? "recompute" : "",
            recompute && offload ? " and " : "", offload ? "offload" : "");
    }
    for (int d = 0; d < MF_DIM_COUNT; d++) {
        if (pinned(s, (mf_dim)d)) {
            say(&x, ", %s (pinned)", mf_dim_text((mf_dim)d));
        }
    }
}
