/* family_times.c - the figures that bounds of families rest on: costs of a few blocks, and what
 * they add up to. */
#include "planner/bound/family_blocks.h"

#include "planner/price/cost_key.h"
#include "planner/price/least_cost.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* --- layer times ------------------------------------------------------------------------------ */

mf_family_bound_pass mf_family_bound_pass_of(const mf_block_cost *q) {
    mf_family_bound_pass p = {.f_s = mf_larger(q->f.bound_s, q->f.time_s),
                              .b_s = mf_larger(q->b.bound_s, q->b.time_s),
                              .w_s = mf_larger(q->w.bound_s, q->w.time_s)};
    double compute_s = q->f.compute_s + q->b.compute_s, ep_s = q->f.ep_s + q->b.ep_s;
    p.time_s[MF_PASS_MODE_PLAIN] = p.f_s + p.b_s;
    /* in one go, weight gradients run while exchanges travel: split off, they come behind these */
    p.time_s[MF_PASS_MODE_SPLIT] = p.f_s + p.b_s + p.w_s;
    p.time_s[MF_PASS_MODE_MERGED] =
        mf_larger(mf_larger(compute_s, ep_s) + q->f.sync_s + q->b.sync_s, mf_larger(p.f_s, p.b_s));
    p.pair_f_s = p.full_f_s = mf_smaller(q->f.compute_s, p.f_s);
    p.pair_b_s = p.rest_b_s = mf_smaller(q->b.compute_s, p.b_s);
    p.ep_f_s = q->f.ep_s;
    p.ep_b_s = q->b.ep_s;
    p.compute_s = p.pair_f_s + p.pair_b_s;
    return p;
}

/* Two halves of a layer: paths add up, and so do the sums of each stream. An MTP depth is a layer
 * and a head (NULL = none), whose paths may run side by side. */
static mf_family_bound_pass pass_of_halves(const mf_block_cost *a, const mf_block_cost *b,
                                           const mf_block_cost *head) {
    mf_block_cost sum = *a;
    mf_pass_cost *to[2] = {&sum.f, &sum.b};
    const mf_pass_cost *with[2] = {&b->f, &b->b};
    for (int i = 0; i < 2; i++) {
        to[i]->path_s += with[i]->path_s;
        to[i]->sync_s += with[i]->sync_s;
        to[i]->compute_s += with[i]->compute_s;
        to[i]->ep_s += with[i]->ep_s;
        if (head) {
            to[i]->compute_s += i == 0 ? head->f.compute_s : head->b.compute_s;
        }
        to[i]->bound_s = mf_larger(to[i]->path_s, mf_larger(to[i]->compute_s, to[i]->ep_s));
    }
    return mf_family_bound_pass_of(&sum);
}

void mf_family_bound_add_pass(mf_family_bound_pass *sum, const mf_family_bound_pass *p,
                              double times) {
    sum->f_s += times * p->f_s;
    sum->b_s += times * p->b_s;
    sum->w_s += times * p->w_s;
    sum->compute_s += times * p->compute_s;
    for (int m = 0; m < MF_PASS_MODES; m++) {
        sum->time_s[m] += times * p->time_s[m];
    }
}

void mf_family_bound_add_params(mf_param_count *sum, const mf_param_count *p, int64_t times) {
    sum->dense += times * p->dense;
    sum->expert += times * p->expert;
    sum->dense_matrices += times * p->dense_matrices;
}

static mf_param_count sum_params(const mf_param_count *a, const mf_param_count *b) {
    mf_param_count sum = *a;
    mf_family_bound_add_params(&sum, b, 1);
    return sum;
}

int64_t mf_family_bound_layers_of(const mf_model *m, int layer_class) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->layers; i++) {
        n += m->layer_class[i] == layer_class;
    }
    return n;
}

static int64_t moe_layers(const mf_model *m) {
    int64_t moe = 0;
    for (int64_t i = 0; i < m->layers; i++) {
        moe += m->layer_classes[m->layer_class[i]].ffn == MF_FFN_MOE;
    }
    return moe;
}

static bool main_is_moe(const mf_model *m, int64_t moe) {
    return 2 * moe >= m->layers;
}

/* Do so many layers have the less common kind of FFN that they are no exceptions? */
static bool is_mixed(const mf_model *m, int64_t moe) {
    const int64_t fewer = main_is_moe(m, moe) ? m->layers - moe : moe;
    return (double)fewer >= MF_KINDS_SHARE * (double)m->layers && fewer > 0;
}

bool mf_family_bound_is_main(const mf_model *m, int layer_class) {
    const bool is_moe = m->layer_classes[layer_class].ffn == MF_FFN_MOE;
    const int64_t moe = moe_layers(m);
    return is_moe == main_is_moe(m, moe) || is_mixed(m, moe);
}

int mf_family_bound_layers(const mf_model *m) {
    const int64_t moe = moe_layers(m);
    if (is_mixed(m, moe)) {
        return (int)m->layers;
    }
    return (int)(main_is_moe(m, moe) ? moe : m->layers - moe);
}

int mf_family_bound_kinds(const mf_model *m) {
    return mf_family_bound_kind_of(m, m->classes);
}

int mf_family_bound_kind_of(const mf_model *m, int layer_class) {
    int kind = 0;
    for (int c = 0; c < layer_class; c++) {
        kind += mf_family_bound_layers_of(m, c) > 0 && mf_family_bound_is_main(m, c);
    }
    return kind;
}

void mf_family_bound_run(const mf_model *m, int *first, int *last) {
    const bool moe = main_is_moe(m, moe_layers(m));
    *first = 1; /* behind the embedding */
    *last = 0;
    if (is_mixed(m, moe_layers(m))) {
        *last = (int)m->layers;
        return;
    }
    for (int64_t from = 0, i = 0; i <= m->layers; i++) {
        if (i == m->layers || (m->layer_classes[m->layer_class[i]].ffn == MF_FFN_MOE) != moe) {
            if (i - from > *last - *first + 1) {
                *first = (int)from + 1;
                *last = (int)i;
            }
            from = i + 1;
        }
    }
}

/* A pass is nothing but times: those alone come first. */
enum { ALL_TIMES = sizeof(mf_family_bound_pass) / sizeof(double), ALONE = 3 + MF_PASS_MODES };

static void least_times(mf_family_bound_pass *least, const mf_family_bound_pass *p, int times) {
    double *to = (double *)least;
    const double *from = (const double *)p;
    for (int i = 0; i < times; i++) {
        to[i] = mf_smaller(to[i], from[i]);
    }
}

void mf_family_bound_least_alone(mf_family_bound_pass *least, const mf_family_bound_pass *p) {
    least_times(least, p, ALONE);
}

static double anew_of(const mf_block_cost *q) {
    return q->anew_s[0] + q->anew_s[1];
}

static void add_other(mf_layer_times *r, const mf_family_bound_pass *p,
                      const mf_param_count *params, double anew_s, int64_t count, int64_t first,
                      int64_t last) {
    mf_family_bound_add_params(&r->all_params, params, count);
    r->anew_s += (double)count * anew_s;
    if (count > 0 && r->others < MF_FAMILY_OTHERS) {
        r->other[r->others++] = (mf_family_bound_other){(int)count, (int)first, (int)last, *p,
                                                        *params,    0.0,        0.0,       anew_s};
    }
}

/* A kind of main layers: at the end of the list, until all others are known. */
static void add_kind(mf_layer_times *r, const mf_family_bound_pass *p, const mf_param_count *params,
                     int64_t count) {
    const int at = MF_FAMILY_OTHERS - ++r->kinds;
    if (at >= r->others) {
        r->other[at] = (mf_family_bound_other){.count = (int)count, .pass = *p, .params = *params};
    }
}

/* Least time of a pair of two kinds, which may be less than that of either with its own. */
static double unlike_pair_s(const mf_family_bound_pass *f, const mf_family_bound_pass *b) {
    const double stream_s = mf_larger(f->pair_f_s + b->pair_b_s, f->ep_f_s + b->ep_b_s);
    return mf_larger(stream_s, mf_larger(f->f_s, b->b_s));
}

/* Others are known: kinds stand behind them, if there are several and a place for each. */
static void close_kinds(mf_layer_times *r) {
    mf_family_bound_other kind[MF_FAMILY_OTHERS];
    if (r->kinds < 2 || r->others + r->kinds > MF_FAMILY_OTHERS) {
        r->kinds = 0;
        return;
    }
    for (int i = 0; i < r->kinds; i++) {
        kind[i] = r->other[MF_FAMILY_OTHERS - 1 - i];
    }
    memcpy(&r->other[r->others], kind, (size_t)r->kinds * sizeof *kind);
    for (int i = 0; i < r->kinds; i++) {
        for (int k = 0; k < r->kinds; k++) {
            double *merged_s = &r->layer.time_s[MF_PASS_MODE_MERGED];
            *merged_s = mf_smaller(*merged_s, unlike_pair_s(&kind[i].pass, &kind[k].pass));
        }
    }
}

/* Other layers of a class. */
static void add_other_layers(mf_layer_times *r, const mf_model *m, int class,
                             const mf_family_bound_pass *p, const mf_param_count *params,
                             double anew_s) {
    int64_t first = 0, last = m->layers - 1;
    while (m->layer_class[first] != class) {
        first++;
    }
    while (m->layer_class[last] != class) {
        last--;
    }
    add_other(r, p, params, anew_s, mf_family_bound_layers_of(m, class), 1 + first, 1 + last);
}

static void add_depths(mf_layer_times *r, const mf_model *m, const mf_family_bound_pass *p,
                       const mf_param_count *params, double anew_s) {
    add_other(r, p, params, anew_s, m->mtp_layers, 1 + m->layers, m->layers + m->mtp_layers);
}

/* What each has at least: ZeRO may shard more of one kind of parameters than of the other. */
static void least_params(mf_param_count *least, const mf_param_count *p) {
    least->dense = p->dense < least->dense ? p->dense : least->dense;
    least->expert = p->expert < least->expert ? p->expert : least->expert;
    if (p->dense_matrices < least->dense_matrices) {
        least->dense_matrices = p->dense_matrices;
    }
}

/* A class of layers joins the model. */
static void add_layers(mf_layer_times *r, const mf_model *m, int class,
                       const mf_family_bound_pass *p, const mf_param_count *params, double anew_s) {
    int64_t n = mf_family_bound_layers_of(m, class);
    mf_family_bound_add_pass(&r->all, p, (double)n);
    if (n == 0) {
        return;
    }
    r->f_least_s = mf_smaller(r->f_least_s, p->f_s);
    r->b_least_s = mf_smaller(r->b_least_s, p->b_s);
    if (!mf_family_bound_is_main(m, class)) {
        add_other_layers(r, m, class, p, params, anew_s);
        return;
    }
    add_kind(r, p, params, n);
    mf_family_bound_add_params(&r->all_params, params, n);
    r->anew_s += (double)n * anew_s;
    const double pair_s = p->time_s[MF_PASS_MODE_MERGED];
    r->hidden_s = mf_larger(r->hidden_s, pair_s - p->compute_s);
    r->spare_s = mf_smaller(r->spare_s, p->f_s + p->b_s - pair_s);
    if (r->layers == 0) {
        r->layer = *p;
        r->layer_params = *params;
        r->layer_anew_s[0] = r->layer_anew_s[1] = anew_s;
    } else {
        r->layer_anew_s[0] = mf_smaller(r->layer_anew_s[0], anew_s);
        r->layer_anew_s[1] = mf_larger(r->layer_anew_s[1], anew_s);
        least_times(&r->layer, p, ALL_TIMES);
        least_params(&r->layer_params, params);
    }
    r->layers += (int)n;
}

mf_status mf_family_bound_cost(mf_block_costs *q, const mf_layout *l, mf_position_kind kind,
                               int layer_class, unsigned parts, bool split, bool exact,
                               mf_memory_choice memory, mf_block_cost *out, mf_err *e) {
    mf_block_key key = {.kind = kind,
                        .layer_class = (uint8_t)layer_class,
                        .parts = (uint8_t)parts,
                        .split = split,
                        .shared_embedding = true,
                        .shared_head = true,
                        .unplaced = kind == MF_POS_LAYER && !exact,
                        .memory = memory};
    return exact ? mf_block_costs_least_anywhere(q, l, &key, out, e)
                 : mf_block_costs_get(q, l, &key, false, out, e);
}

static const mf_memory_choice keep_all = {0, 0};

/* Embedding and head. */
static mf_status add_ends(mf_block_costs *q, const mf_layout *l, bool split, bool exact,
                          mf_layer_times *r, mf_block_cost *head, mf_err *e) {
    mf_block_cost embedding;
    mf_status status = mf_family_bound_cost(q, l, MF_POS_EMBEDDING, 0, MF_HALF_BOTH, split, exact,
                                            keep_all, &embedding, e);
    if (status == MF_OK) {
        status = mf_family_bound_cost(q, l, MF_POS_HEAD, 0, MF_HALF_BOTH, split, exact, keep_all,
                                      head, e);
    }
    if (status != MF_OK) {
        return status;
    }
    r->embedding = mf_family_bound_pass_of(&embedding);
    r->head = mf_family_bound_pass_of(head);
    r->embedding_params = embedding.params;
    r->head_params = head->params;
    r->end_work_B[0] = mf_block_sure_work_B(&embedding, split);
    r->end_work_B[1] = mf_block_sure_work_B(head, split);
    mf_family_bound_add_pass(&r->all, &r->embedding, 1.0);
    mf_family_bound_add_pass(&r->all, &r->head, 1.0);
    r->positions = mf_model_positions(mf_block_costs_evaluator(q)->model);
    mf_family_bound_run(mf_block_costs_evaluator(q)->model, &r->first, &r->last);
    r->head_anew_s = anew_of(head);
    add_other(r, &r->embedding, &embedding.params, anew_of(&embedding), 1, 0, 0);
    add_other(r, &r->head, &head->params, r->head_anew_s, 1, r->positions - 1, r->positions - 1);
    return MF_OK;
}

/* Both halves of a class are priced: its layers join, and the MTP depths of it. */
static void add_halves(mf_layer_times *r, const mf_model *m, int class, const mf_block_cost *a,
                       const mf_block_cost *f, const mf_block_cost *head,
                       const mf_param_count *params) {
    mf_family_bound_pass p = pass_of_halves(a, f, NULL);
    const double anew_s = anew_of(a) + anew_of(f);
    add_layers(r, m, class, &p, params, anew_s);
    if (m->mtp_class == class) { /* its projection of two states is no part of the halves */
        p = pass_of_halves(a, f, head);
        mf_family_bound_add_pass(&r->all, &p, (double)m->mtp_layers);
        add_depths(r, m, &p, params, anew_s + anew_of(head));
    }
}

static void start(mf_layer_times *r) {
    static const mf_family_bound_hull none[2];
    memset(r, 0, offsetof(mf_layer_times, other));
    r->hull = none;
    r->f_least_s = r->b_least_s = r->spare_s = INFINITY;
}

/* What the FFN half of a layer depends on: the rows of a rank, and TP. */
static mf_layout ffn_layout(const mf_layout *l) {
    mf_layout f = *l;
    const int64_t divisor = mf_common_divisor(l->cp, l->mbs);
    f.cp = l->cp / divisor;
    f.mbs = l->mbs / divisor;
    f.cp_type = MF_CP_RING;
    f.zero = f.expert_zero = 0;
    return f;
}

static mf_layout attention_layout(const mf_layout *l) {
    mf_layout a = *l;
    a.ep = a.etp = 1;
    a.dispatcher = MF_DISPATCH_FUSED;
    a.zero = a.expert_zero = 0;
    return a;
}

/* An FFN half at the FLOP limit: a FLOP is a FLOP on every expert side, whose parameters nobody
 * knows yet. */
static mf_block_cost at_limit(const mf_evaluator *o, const mf_layout *l, const mf_block_cost *ffn) {
    const double least_s = o->ops->flops_s(o->self, l, ffn->flops);
    mf_block_cost limit = {.flops = ffn->flops, .params = {0, 0, 0}};
    limit.f.path_s = limit.f.compute_s = limit.b.path_s = least_s / 3.0;
    limit.b.compute_s = least_s * 2.0 / 3.0; /* weight gradients hold nobody up */
    return limit;
}

/* From halves of layers, FFNs priced under `ffn`; limit: at the FLOP limit. */
static mf_status from_halves(mf_block_costs *q, const mf_layout *l, const mf_layout *attention,
                             const mf_layout *ffn, bool limit, mf_layer_times *out, mf_err *e) {
    const mf_evaluator *o = mf_block_costs_evaluator(q);
    mf_block_cost head;
    start(out);
    mf_status status = add_ends(q, attention, false, false, out, &head, e);
    for (int c = 0; c < o->model->classes && status == MF_OK; c++) {
        mf_block_cost a, f;
        status = mf_family_bound_cost(q, attention, MF_POS_LAYER, c, MF_HALF_ATTENTION, false,
                                      false, keep_all, &a, e);
        if (status == MF_OK) {
            status = mf_family_bound_cost(q, ffn, MF_POS_LAYER, c, MF_HALF_FFN, false, false,
                                          keep_all, &f, e);
        }
        if (status == MF_OK) {
            f = limit ? at_limit(o, l, &f) : f;
            const mf_param_count params = sum_params(&a.params, &f.params);
            add_halves(out, o->model, c, &a, &f, &head, &params);
        }
    }
    close_kinds(out);
    mf_family_bound_charge_others(out);
    return status;
}

mf_status mf_layer_times_dense(mf_block_costs *q, const mf_layout *l, mf_layer_times *out,
                               mf_err *e) {
    const mf_layout attention = attention_layout(l), ffn = ffn_layout(&attention);
    return from_halves(q, l, &attention, &ffn, true, out, e);
}

mf_status mf_layer_times_halves(mf_block_costs *q, const mf_layout *l, mf_layer_times *out,
                                mf_err *e) {
    const mf_layout attention = attention_layout(l), ffn = ffn_layout(l);
    return from_halves(q, l, &attention, &ffn, false, out, e);
}

static mf_status whole(mf_block_costs *q, const mf_layout *l, bool exact, mf_layer_times *out,
                       mf_err *e) {
    const mf_model *m = mf_block_costs_evaluator(q)->model;
    mf_pass_mode mode = mf_pass_mode_of(l->schedule);
    bool split = mode == MF_PASS_MODE_SPLIT;
    start(out);
    mf_block_cost head, mtp;
    mf_status status = add_ends(q, l, split, exact, out, &head, e);
    if (status == MF_OK && m->mtp_layers > 0) {
        status = mf_family_bound_cost(q, l, MF_POS_MTP, m->mtp_class, MF_HALF_BOTH, split, exact,
                                      keep_all, &mtp, e);
    }
    if (status == MF_OK && m->mtp_layers > 0) {
        mf_family_bound_pass p = mf_family_bound_pass_of(&mtp);
        mf_family_bound_add_pass(&out->all, &p, (double)m->mtp_layers);
        add_depths(out, m, &p, &mtp.params, anew_of(&mtp));
    }
    for (int c = 0; c < m->classes && status == MF_OK; c++) {
        mf_block_cost x;
        status = mf_family_bound_cost(q, l, MF_POS_LAYER, c, MF_HALF_BOTH, split, exact, keep_all,
                                      &x, e);
        if (status == MF_OK) {
            mf_family_bound_pass p = mf_family_bound_pass_of(&x);
            add_layers(out, m, c, &p, &x.params, anew_of(&x));
        }
        if (status == MF_OK && mf_family_bound_is_main(m, c) &&
            mf_family_bound_layers_of(m, c) > 0) {
            const bool first = out->layers == mf_family_bound_layers_of(m, c);
            out->layer_comm_B = first ? x.comm_B : mf_smaller(out->layer_comm_B, x.comm_B);
            out->layer_gather_B = first ? x.gather_B : mf_smaller(out->layer_gather_B, x.gather_B);
            out->layer_boundary_B =
                first ? x.boundary_B : mf_smaller(out->layer_boundary_B, x.boundary_B);
        }
    }
    close_kinds(out);
    if (status == MF_OK && exact && mode == MF_PASS_MODE_MERGED && l->ep > 1) {
        status = mf_family_bound_merge(q, l, out, e);
    }
    mf_family_bound_charge_others(out);
    return status;
}

mf_status mf_layer_times_whole(mf_block_costs *q, const mf_layout *l, mf_layer_times *out,
                               mf_err *e) {
    return whole(q, l, true, out, e);
}

mf_status mf_layer_times_paths(mf_block_costs *q, const mf_layout *l, mf_layer_times *out,
                               mf_err *e) {
    return whole(q, l, false, out, e);
}

void mf_layer_times_copy(mf_layer_times *to, const mf_layer_times *from) {
    memcpy(to, from, offsetof(mf_layer_times, other));
    memcpy(to->other, from->other, (size_t)(from->others + from->kinds) * sizeof *to->other);
}

static void larger_pass(mf_family_bound_pass *p, const mf_family_bound_pass *with) {
    double *to = (double *)p;
    const double *from = (const double *)with;
    for (int i = 0; i < ALONE; i++) {
        to[i] = mf_larger(to[i], from[i]);
    }
}

/* Of a position other than a main layer: what main layers of either hide of it stays hidden. */
static void larger_other(mf_family_bound_pass *p, const mf_family_bound_pass *with) {
    const double merged_s =
        mf_smaller(p->time_s[MF_PASS_MODE_MERGED], with->time_s[MF_PASS_MODE_MERGED]);
    larger_pass(p, with);
    p->time_s[MF_PASS_MODE_MERGED] = merged_s;
}

void mf_layer_times_larger(mf_layer_times *r, const mf_layer_times *with,
                           mf_family_bound_choices *choices) {
    if (r->choices) {
        const int count = r->choices->count;
        memmove(choices, r->choices,
                offsetof(mf_family_bound_choices, pass) + (size_t)count * sizeof choices->pass[0]);
        for (int i = 0; i < count; i++) {
            const int kind = choices->kind[i];
            larger_pass(&choices->pass[i],
                        r->kinds > 0 ? &with->other[with->others + kind].pass : &with->layer);
        }
        r->choices = choices;
    }
    larger_pass(&r->all, &with->all);
    larger_pass(&r->layer, &with->layer);
    for (int i = r->others; i < r->others + r->kinds; i++) {
        larger_pass(&r->other[i].pass, &with->other[i].pass);
    }
    larger_other(&r->embedding, &with->embedding);
    larger_other(&r->head, &with->head);
    for (int i = 0; i < 2; i++) {
        r->end_least_s[i] = mf_smaller(r->end_least_s[i], with->end_least_s[i]);
    }
    for (int i = 0; i < r->others; i++) {
        larger_other(&r->other[i].pass, &with->other[i].pass);
    }
    r->f_least_s = mf_larger(r->f_least_s, with->f_least_s);
    r->b_least_s = mf_larger(r->b_least_s, with->b_least_s);
    r->layer_comm_B = mf_larger(r->layer_comm_B, with->layer_comm_B);
    r->layer_gather_B = with->layer_gather_B;
    r->anew_s = with->anew_s;
    r->layer_anew_s[0] = with->layer_anew_s[0];
    r->layer_anew_s[1] = with->layer_anew_s[1];
    r->head_anew_s = with->head_anew_s;
    for (int i = 0; i < r->others; i++) {
        r->other[i].anew_s = with->other[i].anew_s;
    }
}
