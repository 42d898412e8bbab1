/* steps.c - one dimension at a time, each value simulated. */
#include "launch/steps/step_player.h"
#include "launch/steps/step_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mf_steps_clear(mf_steps *s) {
    free(s->step);
    *s = (mf_steps){0};
}

/* --- playing ---------------------------------------------------------------------------------- */

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
            dimension == MF_STEP_RECOMPUTE ? out->memory[i].recompute : from->memory[i].recompute;
        out->memory[i].offload =
            dimension == MF_STEP_OFFLOAD ? out->memory[i].offload : from->memory[i].offload;
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
static bool can_say(const mf_step_player *x, mf_one_step *step) {
    mf_plan plan;
    if (x->target == NULL) {
        return true;
    }
    mf_plan_init(&plan);
    plan.layout = step->layout;
    plan.assignment = step->assignment;
    return mf_target_concede(*x->target, x->p->model, &plan, refuse, NULL, NULL) == MF_OK;
}

/* The same as where it comes from, or as a step that was played: sets that differ in modules which
 * the model lacks. */
static bool is_known(const mf_step_player *x, const mf_layout *from, const mf_layout *l) {
    bool known = mf_step_same(from, l);
    for (int i = 0; i < x->out->count && !known; i++) {
        known = mf_step_same(&x->out->step[i].layout, l);
    }
    return known;
}

bool mf_steps_add(mf_steps *s, const mf_one_step *step) {
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
static mf_status weigh(const mf_step_player *x, mf_one_step *step, mf_err *e) {
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

mf_status mf_steps_play(mf_step_player *x, mf_one_step *step, const mf_layout *from,
                        const mf_assignment *a, int other, mf_err *e) {
    const mf_model *m = x->p->model;
    mf_plan plan;
    if (x->cancel != NULL && *x->cancel) {
        return mf_err_set(e, MF_INTERRUPTED, "interrupted");
    }
    if (!mf_layout_valid(&step->layout, m) || is_known(x, from, &step->layout) ||
        assign(m, &step->layout, a, step->dimension, &step->assignment) != MF_OK) {
        return MF_OK;
    }
    if (other == MF_STEP_RECOMPUTE || other == MF_STEP_OFFLOAD) { /* of a pair */
        for (int i = 0; i < step->assignment.positions; i++) {
            step->assignment.memory[i] = step->layout.memory;
        }
    }
    if (!can_say(x, step)) {
        return MF_OK;
    }
    mf_status s = x->weigh ? weigh(x, step, e) : MF_OK;
    if (s == MF_OK && x->weigh && !step->fits) {
        return mf_steps_add(x->out, step) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
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
        s = mf_steps_add(x->out, step) ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_plan_clear(&plan);
    return s;
}

int mf_steps_by_time(const void *a, const void *b) {
    const mf_one_step *x = a, *y = b;
    if (x->fits != y->fits) {
        return y->fits - x->fits;
    }
    return (x->step_time_s > y->step_time_s) - (x->step_time_s < y->step_time_s);
}

bool mf_steps_is_tried(const mf_step_player *x, int dimension) {
    const uint32_t by_search = mf_step_chosen(dimension);
    if (dimension == MF_STEP_GRAPH ||
        dimension == MF_STEP_OVERLAP) { /* memory is the same; CPU ranks have neither */
        return !x->to_fit && !mf_cluster_is_cpu(mf_cost_cluster(x->p->cost));
    }
    return !x->asked || by_search == 0 || (by_search & x->p->pinned) != 0;
}

mf_status mf_steps_play_single(mf_step_player *x, const mf_layout *l, const mf_assignment *a,
                               mf_err *e) {
    const mf_problem *p = x->p;
    mf_steps *out = x->out;
    mf_status s = MF_OK;
    *out = (mf_steps){0};
    for (int d = 0; d < MF_STEP_DIMENSIONS && s == MF_OK; d++) {
        if (!mf_steps_is_tried(x, d)) {
            continue;
        }
        for (int i = 0; i < MF_STEP_MOST_VALUES && s == MF_OK; i++) {
            mf_one_step step = {.dimension = d, .value = i, .layout = *l};
            if (mf_step_set(d, i, p->model, &step.layout)) {
                mf_step_name(d, &step.layout, step.what, sizeof step.what);
                s = mf_steps_play(x, &step, l, a, d, e);
            }
        }
    }
    if (out->count > 0) {
        qsort(out->step, (size_t)out->count, sizeof *out->step, mf_steps_by_time);
    }
    return s;
}

mf_status mf_steps_single(const mf_problem *p, const mf_layout *l, const mf_assignment *a,
                          const mf_target *target, const volatile int *cancel, mf_steps *out,
                          mf_err *e) {
    mf_step_player x = {.p = p, .target = target, .cancel = cancel, .out = out};
    return mf_steps_play_single(&x, l, a, e);
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
    const mf_step_player said = {.p = &p, .target = &t};
    int kept = 0;
    for (int i = 0; i < x->remedies; i++) {
        mf_one_step step = {.layout = *l, .assignment = *a};
        if (!apply_option(x->remedy[i].what, &step.layout) || can_say(&said, &step)) {
            x->remedy[kept++] = x->remedy[i];
        }
    }
    x->remedies = kept;
}
