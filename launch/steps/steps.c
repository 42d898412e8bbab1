/* steps.c - one dimension at a time, each value simulated. */
#include "launch/steps/steps.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mf_steps_clear(mf_steps *s) {
    free(s->step);
    *s = (mf_steps){0};
}

/* --- dimensions ------------------------------------------------------------------------------- */

#define R(name) MF_RECOMPUTE_##name
#define O(name) MF_OFFLOAD_##name
#define MOST_VALUES 64
#define MOST_VPP 16

/* Dimensions that hold a number of the layout. */
static const struct number {
    const char *option;
    size_t at;
    bool experts; /* of models with experts alone */
    int64_t most; /* every value up to it; 0 = divisors of the GPUs */
} numbers[] = {
    {"--tp", offsetof(mf_layout, tp), false, 0},
    {"--cp", offsetof(mf_layout, cp), false, 0},
    {"--pp", offsetof(mf_layout, pp), false, 0},
    {"--vpp", offsetof(mf_layout, vpp), false, MOST_VPP},
    {"--ep", offsetof(mf_layout, ep), true, 0},
    {"--etp", offsetof(mf_layout, etp), true, 0},
    {"--micro-batch", offsetof(mf_layout, mbs), false, MF_SPACE_MAX_MBS},
};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };
enum { VPP = 3 }; /* its place */

enum {
    SCHEDULE = NUMBERS,
    ZERO,
    DISPATCHER,
    GRAPH,
    OVERLAP,
    RECOMPUTE,
    OFFLOAD,
    OPTIMIZER,
    MOMENTS,
    DIMENSIONS
};

static const uint16_t recomputed[] = {
    R(NONE),
    R(ACT),
    R(NORM) | R(ACT),
    R(NORM) | R(ACT) | R(MLA_UP_PROJ),
    R(CORE_ATTN),
    R(NORM) | R(ACT) | R(MLA_UP_PROJ) | R(SHARED_EXPERT) | R(MLP),
    R(NORM) | R(ACT) | R(MLA_UP_PROJ) | R(MOE) | R(MLP),
    R(LAYER),
};
static const uint16_t offloaded[] = {
    O(NONE),
    O(EXPERT_FC1) | O(FFN),
    O(EXPERT_FC1) | O(FFN) | O(EXPERT_IN),
    O(EXPERT_FC1) | O(FFN) | O(EXPERT_IN) | O(INPUT) | O(QKV) | O(ATTN_OUT),
};
static const uint8_t overlaps[] = {MF_OVERLAP_DP, MF_OVERLAP_TP, MF_OVERLAP_DP | MF_OVERLAP_TP};
static const double on_host[] = {0, 0.25, 0.5, 0.75, 1};

/* What a search chooses unless it is pinned; 0: it never does. */
static const uint32_t chosen[DIMENSIONS] = {
    MF_PIN(TP),
    MF_PIN(CP),
    MF_PIN(PP),
    MF_PIN(VPP),
    MF_PIN(EP),
    MF_PIN(ETP),
    MF_PIN(MICRO_BATCH),
    [SCHEDULE] = MF_PIN(SCHEDULE),
    [ZERO] = MF_PIN(ZERO) | MF_PIN(EXPERT_ZERO),
    [DISPATCHER] = MF_PIN(DISPATCHER),
    [RECOMPUTE] = MF_PIN(RECOMPUTE),
    [OFFLOAD] = MF_PIN(OFFLOAD),
};

#define LIST_OF(table, i, value)                                                                   \
    do {                                                                                           \
        if ((i) >= (int)(sizeof(table) / sizeof(table)[0])) {                                      \
            return false;                                                                          \
        }                                                                                          \
        (value) = (table)[i];                                                                      \
    } while (0)

/* VPP follows from the schedule: more chunks are interleaved, one is not. */
static void settle_order(mf_layout *l) {
    if (l->pp == 1 && l->schedule != MF_SCHED_MERGED) {
        l->vpp = 1;
    }
    if (l->schedule == MF_SCHED_1F1B && l->vpp > 1) {
        l->schedule = MF_SCHED_INTERLEAVED;
    } else if (l->schedule == MF_SCHED_INTERLEAVED && l->vpp == 1) {
        l->schedule = MF_SCHED_1F1B;
    }
}

/* The i-th divisor of n, from 1 on; 0 past the last. */
static int64_t divisor(int64_t n, int i) {
    int seen = 0;
    for (int64_t d = 1; d <= n; d++) {
        if (n % d == 0 && seen++ == i) {
            return d;
        }
    }
    return 0;
}

static int64_t number_of(const struct number *n, int i, const mf_layout *l) {
    return n->most > 0 ? i + 1 : divisor(l->gpus, i);
}

static int64_t number_in(const struct number *n, const mf_layout *l) {
    int64_t value;
    memcpy(&value, (const char *)l + n->at, sizeof value);
    return value;
}

static bool set_number(const struct number *n, int i, const mf_model *m, mf_layout *l) {
    const int64_t value = number_of(n, i, l);
    if (value == 0 || (n->experts && m->experts == 0) || (n->most > 0 && value > n->most)) {
        return false;
    }
    *(int64_t *)(void *)((char *)l + n->at) = value;
    settle_order(l);
    return true;
}

/* Is the feed-forward part of some layer dense? */
static bool has_dense(const mf_model *m) {
    for (int at = 0; at < mf_model_positions(m); at++) {
        const mf_position_kind kind = mf_position_kind_of(m, at);
        if ((kind == MF_POS_LAYER || kind == MF_POS_MTP) && !mf_position_is_moe(m, at)) {
            return true;
        }
    }
    return false;
}

/* What there is to recompute, and to offload: options name nothing else
 * (job/load/option_applicability.h refuses it). */
static uint16_t modules_of(const mf_model *m) {
    uint16_t mask = R(NORM) | R(ACT) | R(CORE_ATTN) | R(LAYER);
    mask |= m->attn == MF_ATTN_MLA ? R(MLA_UP_PROJ) : 0;
    mask |= m->experts > 0 ? R(MOE) : 0;
    mask |= has_dense(m) ? R(MLP) : 0;
    return (uint16_t)(mask | (m->experts > 0 && m->shared_ffn > 0 ? R(SHARED_EXPERT) : 0));
}

static uint16_t copies_of(const mf_model *m) {
    const bool shared = m->experts > 0 && m->shared_ffn > 0;
    const uint16_t mask = m->experts > 0 ? O(EXPERT_FC1) | O(EXPERT_IN) : 0;
    return (uint16_t)(mask | O(INPUT) | O(QKV) | O(ATTN_OUT) |
                      (shared || has_dense(m) ? O(FFN) : 0));
}

/* The i-th value of a dimension; false past the last. */
static bool set_value(int dimension, int i, const mf_model *m, mf_layout *l) {
    if (dimension < NUMBERS) {
        return set_number(&numbers[dimension], i, m, l);
    }
    switch (dimension) {
    case SCHEDULE:
        l->schedule = (mf_schedule_kind)i;
        return i < MF_SCHED_COUNT;
    case ZERO:
        l->zero = (uint8_t)(i / 4);
        l->expert_zero = (uint8_t)(m->experts > 0 ? i % 4 : l->zero);
        return i < 16;
    case DISPATCHER:
        l->dispatcher = (mf_dispatcher)i;
        return m->experts > 0 && i < MF_DISPATCH_COUNT;
    case GRAPH:
        l->graph = (mf_graph_mode)i;
        return i < MF_GRAPH_COUNT;
    case OVERLAP: { /* besides what runs beside compute already */
        uint8_t more;
        LIST_OF(overlaps, i, more);
        l->overlap |= more;
        return true;
    }
    case RECOMPUTE:
        LIST_OF(recomputed, i, l->memory.recompute);
        l->memory.recompute &= modules_of(m);
        return true;
    case OFFLOAD:
        LIST_OF(offloaded, i, l->memory.offload);
        l->memory.offload &= copies_of(m);
        l->offload_share = 1;
        return true;
    case OPTIMIZER:
        LIST_OF(on_host, i, l->offload_optimizer);
        return true;
    default:
        l->moments_bf16 = i == 1;
        return i < 2;
    }
}

static void name_step(int dimension, const mf_layout *l, char *out, size_t size) {
    char mask[96];
    if (dimension < NUMBERS) {
        snprintf(out, size, "%s %lld", numbers[dimension].option,
                 (long long)number_in(&numbers[dimension], l));
    } else if (dimension == SCHEDULE) {
        snprintf(out, size, "--schedule %s", mf_schedule_text(l->schedule));
    } else if (dimension == ZERO) {
        snprintf(out, size, "--zero %d --expert-zero %d", l->zero, l->expert_zero);
    } else if (dimension == DISPATCHER) {
        snprintf(out, size, "--dispatcher %s", mf_dispatcher_text(l->dispatcher));
    } else if (dimension == GRAPH) {
        snprintf(out, size, "--cuda-graph %s", mf_graph_text(l->graph));
    } else if (dimension == OVERLAP) {
        mf_overlap_format(l->overlap, mask, sizeof mask);
        snprintf(out, size, "--overlap %s", mask);
    } else if (dimension == RECOMPUTE) {
        mf_recompute_format(l->memory.recompute, mask, sizeof mask);
        snprintf(out, size, "--recompute %s", mask);
    } else if (dimension == OFFLOAD) {
        mf_offload_format(l->memory.offload, mask, sizeof mask);
        snprintf(out, size, "--offload %s", mask);
    } else if (dimension == OPTIMIZER) {
        snprintf(out, size, "--offload-optimizer %g%%", 100 * l->offload_optimizer);
    } else {
        snprintf(out, size, "--moments %s", l->moments_bf16 ? "bf16" : "fp32");
    }
}

/* --- playing ---------------------------------------------------------------------------------- */

typedef struct player {
    const mf_problem *p;
    const mf_target *target;
    const volatile int *cancel;
    mf_steps *out;
    bool to_fit; /* steps that leave the memory as it is are passed over */
    bool weigh;  /* only what may fit by the sums of its memory is simulated */
    bool asked;  /* no steps of what a search chooses */
} player;

/* The layers of the stages it comes from, where there are as many; choices of the dimension that
 * changed, for every layer. */
static mf_status assign(const mf_model *m, const mf_layout *l, const mf_assignment *from,
                        int dimension, mf_assignment *out) {
    mf_status s = mf_assignment_even(m, l, out, NULL);
    bool same_stages = from->vstages == out->vstages && l->schedule != MF_SCHED_ZB_V;
    if (s != MF_OK) {
        return s;
    }
    if (same_stages) {
        memcpy(out->first, from->first, sizeof out->first);
    }
    for (int i = 0; i < out->positions; i++) {
        out->memory[i].recompute =
            dimension == RECOMPUTE ? out->memory[i].recompute : from->memory[i].recompute;
        out->memory[i].offload =
            dimension == OFFLOAD ? out->memory[i].offload : from->memory[i].offload;
    }
    return mf_assignment_check(m, l, out, NULL);
}

static mf_status refuse(void *user, const mf_plan *p, const mf_concession *c, mf_err *e) {
    (void)user;
    (void)p;
    (void)c;
    (void)e;
    return MF_INFEASIBLE;
}

/* Can the target run the step's plan unchanged? */
static bool can_say(const player *x, mf_one_step *step) {
    mf_plan plan;
    if (x->target == NULL) {
        return true;
    }
    mf_plan_init(&plan);
    plan.layout = step->layout;
    plan.assignment = step->assignment;
    return mf_target_concede(*x->target, x->p->model, &plan, refuse, NULL, NULL) == MF_OK;
}

/* In all that a step may change. */
static bool same_layout(const mf_layout *a, const mf_layout *b) {
    return a->tp == b->tp && a->cp == b->cp && a->pp == b->pp && a->vpp == b->vpp &&
           a->ep == b->ep && a->etp == b->etp && a->mbs == b->mbs && a->schedule == b->schedule &&
           a->zero == b->zero && a->expert_zero == b->expert_zero &&
           a->dispatcher == b->dispatcher && a->graph == b->graph && a->overlap == b->overlap &&
           a->memory.recompute == b->memory.recompute && a->memory.offload == b->memory.offload &&
           a->moments_bf16 == b->moments_bf16 && a->offload_optimizer == b->offload_optimizer;
}

bool mf_step_is_of_held(const mf_layout *from, const mf_one_step *step) {
    mf_layout held = *from;
    held.moments_bf16 = step->layout.moments_bf16;
    held.offload_optimizer = step->layout.offload_optimizer;
    return same_layout(&held, &step->layout);
}

/* The same as where it comes from, or as a step that was played: sets that differ in modules which
 * the model lacks. */
static bool is_known(const player *x, const mf_layout *from, const mf_layout *l) {
    bool known = same_layout(from, l);
    for (int i = 0; i < x->out->count && !known; i++) {
        known = same_layout(&x->out->step[i].layout, l);
    }
    return known;
}

static bool add(mf_steps *s, const mf_one_step *step) {
    if (s->count == s->allocated) {
        int allocated = s->allocated > 0 ? 2 * s->allocated : 32;
        mf_one_step *grown = realloc(s->step, (size_t)allocated * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        s->step = grown;
        s->allocated = allocated;
    }
    s->step[s->count++] = *step;
    return true;
}

/* By the sums of its memory alone, which no arrangement goes below; its time is left open. */
static mf_status weigh(const player *x, mf_one_step *step, mf_err *e) {
    mf_program *program = NULL;
    mf_schedule *schedule = NULL;
    mf_memory *memory = NULL;
    mf_layout l = step->layout;
    mf_status s = mf_layout_resolve(&l, x->p->model, e);
    if (s == MF_OK) {
        s = mf_program_lower(x->p->model, &l, mf_cost_cluster(x->p->cost), &step->assignment,
                             &program, e);
    }
    s = s == MF_OK ? mf_schedule_create(&l, &schedule, e) : s;
    s = s == MF_OK ? mf_memory_sums(program, schedule, &memory, e) : s;
    if (s == MF_OK) {
        step->fits = memory->fits;
        step->peak_B = memory->peak_B;
    }
    mf_memory_destroy(memory);
    mf_schedule_destroy(schedule);
    mf_program_destroy(program);
    return s;
}

/* Plays a step whose layout is set; one that is not valid is passed over. */
static mf_status play(player *x, mf_one_step *step, const mf_layout *from, const mf_assignment *a,
                      int other, mf_err *e) {
    const mf_model *m = x->p->model;
    mf_plan plan;
    if (x->cancel != NULL && *x->cancel) {
        return mf_err_set(e, MF_INTERRUPTED, "interrupted");
    }
    if (!mf_layout_valid(&step->layout, m) || is_known(x, from, &step->layout) ||
        assign(m, &step->layout, a, step->dimension, &step->assignment) != MF_OK) {
        return MF_OK;
    }
    if (other == RECOMPUTE || other == OFFLOAD) { /* of a pair */
        for (int i = 0; i < step->assignment.positions; i++) {
            step->assignment.memory[i] = step->layout.memory;
        }
    }
    if (!can_say(x, step)) {
        return MF_OK;
    }
    mf_status s = x->weigh ? weigh(x, step, e) : MF_OK;
    if (s == MF_OK && x->weigh && !step->fits) {
        return add(x->out, step) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    }
    if (s != MF_OK) {
        return s;
    }
    s = mf_planner_predict(x->p, &step->layout, &step->assignment, &plan, NULL, e);
    if (s == MF_OK) {
        step->fits = plan.prediction.fits;
        step->step_time_s = plan.prediction.step_time_s;
        step->low_s = plan.prediction.step_time_low_s;
        step->high_s = plan.prediction.step_time_high_s;
        step->peak_B = plan.prediction.peak_memory_B;
        s = add(x->out, step) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_plan_clear(&plan);
    return s;
}

static int by_time(const void *a, const void *b) {
    const mf_one_step *x = a, *y = b;
    if (x->fits != y->fits) {
        return y->fits - x->fits;
    }
    return (x->step_time_s > y->step_time_s) - (x->step_time_s < y->step_time_s);
}

static int by_peak(const void *a, const void *b) {
    const mf_one_step *x = a, *y = b;
    return (x->peak_B > y->peak_B) - (x->peak_B < y->peak_B);
}

static bool is_tried(const player *x, int dimension) {
    const uint32_t by_search = chosen[dimension];
    if (dimension == GRAPH ||
        dimension == OVERLAP) { /* memory is the same; CPU ranks have neither */
        return !x->to_fit && !mf_cluster_is_cpu(mf_cost_cluster(x->p->cost));
    }
    return !x->asked || by_search == 0 || (by_search & x->p->pinned) != 0;
}

static mf_status play_single(player *x, const mf_layout *l, const mf_assignment *a, mf_err *e) {
    const mf_problem *p = x->p;
    mf_steps *out = x->out;
    mf_status s = MF_OK;
    *out = (mf_steps){0};
    for (int d = 0; d < DIMENSIONS && s == MF_OK; d++) {
        if (!is_tried(x, d)) {
            continue;
        }
        for (int i = 0; i < MOST_VALUES && s == MF_OK; i++) {
            mf_one_step step = {.dimension = d, .value = i, .layout = *l};
            if (set_value(d, i, p->model, &step.layout)) {
                name_step(d, &step.layout, step.what, sizeof step.what);
                s = play(x, &step, l, a, d, e);
            }
        }
    }
    if (out->count > 0) {
        qsort(out->step, (size_t)out->count, sizeof *out->step, by_time);
    }
    return s;
}

mf_status mf_steps_single(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                          const mf_target *target, const volatile int *cancel, mf_steps *out,
                          mf_err *e) {
    player x = {.p = p, .target = target, .cancel = cancel, .out = out};
    return play_single(&x, l, a, e);
}

/* --- what an explanation proposes --------------------------------------------------------------
 */

/* Sets what "--schedule merged" and the like say; false: it is no such option. */
static bool apply_option(const char *what, mf_layout *l) {
    char option[32], value[32];
    uint8_t overlap;
    if (sscanf(what, "--%31s %31s", option, value) != 2) {
        return false;
    }
    if (strcmp(option, "schedule") == 0) {
        return mf_schedule_parse(value, &l->schedule, NULL) == MF_OK;
    }
    if (strcmp(option, "dispatcher") == 0) {
        return mf_dispatcher_parse(value, &l->dispatcher, NULL) == MF_OK;
    }
    if (strcmp(option, "cuda-graph") == 0) {
        return mf_graph_parse(value, &l->graph, NULL) == MF_OK;
    }
    if (strcmp(option, "overlap") == 0 && mf_overlap_parse(value, &overlap, NULL) == MF_OK) {
        l->overlap |= overlap;
        return true;
    }
    return false;
}

void mf_steps_keep_said(mf_target t, const mf_model *m, const mf_layout *l, const mf_assignment *a,
                        mf_explanation *x) {
    const mf_problem p = {.model = m};
    const player said = {.p = &p, .target = &t};
    int kept = 0;
    for (int i = 0; i < x->remedies; i++) {
        mf_one_step step = {.layout = *l, .assignment = *a};
        if (!apply_option(x->remedy[i].what, &step.layout) || can_say(&said, &step)) {
            x->remedy[kept++] = x->remedy[i];
        }
    }
    x->remedies = kept;
}

/* --- pairs ------------------------------------------------------------------------------------ */

/* Pairs that are weighed, and those of them that are simulated: a second of one core at most. */
#define MOST_WEIGHED 600
#define MOST_PLAYED 60
/* Two steps together may take less than their times and peaks let expect. */
#define TIME_SLACK 1.15
#define PEAK_SLACK 1.25

/* Two steps of a list, with what they let expect: shares of time and peak multiply. */
typedef struct couple {
    int first, second;
    double time_s, rank_s; /* rank_s: time_s times what it is above the usable memory, squared */
} couple;

static int by_rank(const void *a, const void *b) {
    const couple *x = a, *y = b;
    if (x->rank_s != y->rank_s) {
        return x->rank_s > y->rank_s ? 1 : -1;
    }
    return x->first != y->first ? x->first - y->first : x->second - y->second;
}

/* Couples that may fit, best rank first; the caller frees them. NULL: no memory. One that fits
 * alone is coupled with what makes it faster. */
static couple *find_couples(const mf_steps *single, const mf_plan_prediction *now, int *count) {
    const size_t n = (size_t)single->count;
    couple *out = malloc((n * n / 2 + 1) * sizeof *out);
    *count = 0;
    for (int i = 0; out != NULL && i < single->count; i++) {
        for (int k = i + 1; k < single->count; k++) {
            const mf_one_step *x = &single->step[i], *y = &single->step[k];
            const double time_s = x->step_time_s * y->step_time_s / now->step_time_s;
            const double peak_B = x->peak_B * y->peak_B / now->peak_memory_B;
            const double above = peak_B > now->usable_B ? peak_B / now->usable_B : 1;
            const bool slower = (x->fits && y->step_time_s >= now->step_time_s) ||
                                (y->fits && x->step_time_s >= now->step_time_s);
            if (x->dimension != y->dimension && !slower && above <= PEAK_SLACK) {
                out[(*count)++] = (couple){i, k, time_s, time_s * above * above};
            }
        }
    }
    if (*count > 0) {
        qsort(out, (size_t)*count, sizeof *out, by_rank);
    }
    return out;
}

/* The time of the most-th fastest that fits, HUGE_VAL where there are fewer. */
static double slowest_kept(const mf_steps *s, int most) {
    double last_s = 0;
    for (int i = 0; i < most && last_s < HUGE_VAL; i++) {
        double next_s = HUGE_VAL;
        for (int k = 0; k < s->count; k++) {
            const mf_one_step *x = &s->step[k];
            next_s = x->fits && x->step_time_s > last_s ? fmin(next_s, x->step_time_s) : next_s;
        }
        last_s = next_s;
    }
    return last_s;
}

static mf_status play_pair(player *x, const mf_layout *l, const mf_assignment *a,
                           const mf_one_step *first, const mf_one_step *second, mf_err *e) {
    const mf_model *m = x->p->model;
    mf_one_step pair = {
        .dimension = first->dimension, .layout = *l, .faster_only = first->fits || second->fits};
    char name[2][120];
    if (first->dimension == VPP) { /* the number of stages first: one has no chunks */
        const mf_one_step *last = first;
        first = second;
        second = last;
    }
    set_value(first->dimension, first->value, m, &pair.layout);
    name_step(first->dimension, &pair.layout, name[0], sizeof name[0]);
    if (!set_value(second->dimension, second->value, m, &pair.layout)) {
        return MF_OK;
    }
    name_step(second->dimension, &pair.layout, name[1], sizeof name[1]);
    snprintf(pair.what, sizeof pair.what, "%s %s", name[0], name[1]);
    bool memory = first->dimension == RECOMPUTE || first->dimension == OFFLOAD ||
                  second->dimension == RECOMPUTE || second->dimension == OFFLOAD;
    return play(x, &pair, l, a, memory ? RECOMPUTE : -1, e);
}

static mf_status play_pairs(player *x, const mf_layout *l, const mf_assignment *a,
                            const mf_steps *single, const mf_plan_prediction *now, int most,
                            mf_err *e) {
    mf_status s = MF_OK;
    int count, weighed = 0, played = 0;
    couple *pair = find_couples(single, now, &count);
    if (pair == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    double slowest_s = slowest_kept(x->out, most);
    for (int i = 0; i < count && s == MF_OK; i++) {
        const int before = x->out->count;
        if (weighed == MOST_WEIGHED || played == MOST_PLAYED) {
            break;
        }
        if (pair[i].time_s > slowest_s * TIME_SLACK) {
            continue;
        }
        s = play_pair(x, l, a, &single->step[pair[i].first], &single->step[pair[i].second], e);
        if (x->out->count > before) {
            const mf_one_step *last = &x->out->step[before];
            weighed++;
            played += last->step_time_s > 0;
            slowest_s = last->fits ? slowest_kept(x->out, most) : slowest_s;
        }
    }
    free(pair);
    return s;
}

/* Keeps those that fit, at most `most`; of the pairs with a step that fits alone, the one that is
 * faster than all else. */
static void keep_fitting(mf_steps *s, int most) {
    int kept = 0;
    qsort(s->step, (size_t)s->count, sizeof *s->step, by_time);
    for (int i = 0; i < s->count && kept < most && s->step[i].fits; i++) {
        if (!s->step[i].faster_only || i == 0) {
            s->step[kept++] = s->step[i];
        }
    }
    s->count = kept;
}

/* A number that is valid only beside another (EP 32 with fewer stages) lets expect what the next
 * smaller valid one does. */
static void guess(mf_one_step *step, const mf_steps *single, const mf_layout *l,
                  const mf_plan_prediction *now) {
    const struct number *n = &numbers[step->dimension];
    const int64_t value = number_of(n, step->value, l);
    int64_t nearest = number_in(n, l) < value ? number_in(n, l) : 0;
    step->step_time_s = now->step_time_s;
    step->peak_B = now->peak_memory_B;
    for (int i = 0; i < single->count; i++) {
        const mf_one_step *x = &single->step[i];
        const int64_t has = number_in(n, &x->layout);
        if (x->dimension == step->dimension && has < value && has > nearest) {
            nearest = has;
            step->step_time_s = x->step_time_s;
            step->peak_B = x->peak_B;
        }
    }
}

/* Adds numbers that are not valid alone to the valid single steps. */
static mf_status add_beside(const player *x, const mf_layout *l, const mf_plan_prediction *now,
                            mf_steps *single, mf_err *e) {
    const mf_steps valid = *single;
    mf_steps more = {0};
    mf_status s = MF_OK;
    for (int d = 0; d < NUMBERS && s == MF_OK; d++) {
        for (int i = 0; i < MOST_VALUES && s == MF_OK; i++) {
            mf_one_step step = {.dimension = d, .value = i, .layout = *l};
            if (!is_tried(x, d) || !set_value(d, i, x->p->model, &step.layout) ||
                (mf_layout_valid(&step.layout, x->p->model) &&
                 number_in(&numbers[d], &step.layout) == number_of(&numbers[d], i, l))) {
                continue;
            }
            guess(&step, &valid, l, now);
            s = add(&more, &step) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
        }
    }
    for (int i = 0; i < more.count && s == MF_OK; i++) {
        s = add(single, &more.step[i]) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_steps_clear(&more);
    return s;
}

static mf_status find_to_fit(const player *how, const mf_layout *l, const mf_assignment *a,
                             int most, mf_err *e) {
    mf_steps single = {0};
    mf_plan now;
    mf_steps *out = how->out;
    player alone = *how, x = *how;
    alone.out = &single;
    x.weigh = true;
    *out = (mf_steps){0};
    mf_status s = mf_planner_predict(how->p, l, a, &now, NULL, e);
    if (s != MF_OK) {
        return s;
    }
    s = play_single(&alone, l, a, e);
    for (int i = 0; i < single.count && s == MF_OK; i++) {
        s = add(out, &single.step[i]) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    }
    s = s == MF_OK ? add_beside(how, l, &now.prediction, &single, e) : s;
    if (s == MF_OK && single.count > 0) {
        qsort(single.step, (size_t)single.count, sizeof *single.step, by_peak);
        s = play_pairs(&x, l, a, &single, &now.prediction, most, e);
    }
    mf_steps_clear(&single);
    mf_plan_clear(&now);
    if (out->count > 0) {
        keep_fitting(out, most);
    }
    return s;
}

mf_status mf_steps_to_fit(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                          const mf_target *target, const volatile int *cancel, int most,
                          mf_steps *out, mf_err *e) {
    const player how = {.p = p, .target = target, .cancel = cancel, .out = out, .to_fit = true};
    return find_to_fit(&how, l, a, most, e);
}

mf_status mf_steps_to_fit_asked(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                                const mf_target *target, const volatile int *cancel, int most,
                                mf_steps *out, mf_err *e) {
    const player how = {
        .p = p, .target = target, .cancel = cancel, .out = out, .to_fit = true, .asked = true};
    return find_to_fit(&how, l, a, most, e);
}

void mf_steps_copy_asked(const mf_problem *p, const mf_layout *from, mf_layout *to) {
    const uint32_t pinned = p->pinned;
    for (int d = 0; d < NUMBERS; d++) {
        if ((pinned & chosen[d]) != 0) {
            memcpy((char *)to + numbers[d].at, (const char *)from + numbers[d].at, sizeof to->tp);
        }
    }
    to->schedule = (pinned & MF_PIN(SCHEDULE)) != 0 ? from->schedule : to->schedule;
    to->zero = (pinned & MF_PIN(ZERO)) != 0 ? from->zero : to->zero;
    to->expert_zero = (pinned & MF_PIN(EXPERT_ZERO)) != 0 ? from->expert_zero : to->expert_zero;
    to->dispatcher = (pinned & MF_PIN(DISPATCHER)) != 0 ? from->dispatcher : to->dispatcher;
    if ((pinned & MF_PIN(RECOMPUTE)) != 0) {
        to->memory.recompute = from->memory.recompute;
    }
    if ((pinned & MF_PIN(OFFLOAD)) != 0) {
        to->memory.offload = from->memory.offload;
        to->offload_share = from->offload_share;
    }
    to->moments_bf16 = from->moments_bf16;
    to->offload_optimizer = from->offload_optimizer;
}

mf_problem mf_steps_ask(const mf_problem *p, const mf_one_step *step) {
    mf_problem out = *p;
    mf_steps_copy_asked(p, &step->layout, &out.base);
    if (out.base.zero != p->base.zero || out.base.expert_zero != p->base.expert_zero) {
        out.base.zero = step->layout.zero; /* the step names both */
        out.base.expert_zero = step->layout.expert_zero;
        out.pinned |= chosen[ZERO];
    }
    return out;
}
