/* search_effort.c - counts effort: the usual cost of a node, the limit of a task, and when the
 * budget is spent.
 *
 * What a search does next depends on the effort spent so far, never on the budget. So a search with
 * a larger budget repeats that with the smaller one and goes on: its plan is no slower and its gap
 * no wider.
 */
#include "planner/search/search_state.h"
#include "planner/tuning/limits.h"

#include <stddef.h>

int64_t mf_search_usual_us(const mf_search_node *n) {
    static const int32_t us[][2] = {
#define X(level, first, again) [MF_LEVEL_##level] = {first, again},
        MF_USUAL_MAP(X)
#undef X
    };
    return us[n->level][n->tries > 0];
}

int64_t mf_search_most_us(const mf_search_state *s) {
    const int64_t part_us = s->work / MF_TASK_PART;
    return part_us > MF_TASK_MOST_US ? part_us : MF_TASK_MOST_US;
}

/* --- what nodes of a kind took ---------------------------------------------------------------- */

static int kind_of(const mf_search_node *n) {
    const int tries = n->tries < MF_TAKEN_TRIES ? n->tries : MF_TAKEN_TRIES - 1;
    return n->level * MF_TAKEN_TRIES + tries;
}

void mf_search_note_taken(mf_search_state *s, const mf_search_node *n, int64_t work_us) {
    s->taken[kind_of(n)].us += work_us;
    s->taken[kind_of(n)].nodes++;
}

/* The mean of its kind so far; before any has committed, its usual effort, and no large part of
 * what all others took: nodes of a small problem take little. */
static int64_t expected_us(const mf_search_state *s, const mf_search_node *n) {
    const mf_search_taken *t = &s->taken[kind_of(n)];
    /* a hybrid model's relaxations take all that they may */
    const int64_t usual_us = n->level == MF_LEVEL_RELAXATION ? MF_ROOT_US : mf_search_usual_us(n);
    const int64_t part_us = s->work / MF_TASKS_IN_FLIGHT;
    return t->nodes > 0 ? t->us / t->nodes : usual_us < part_us ? usual_us : part_us;
}

/* The most that a search without a plan may use. */
static int64_t unfound_us(const mf_search_state *s) {
    const int64_t budget_us = mf_search_budget(s);
    return s->r->unfound != 0                              ? s->r->unfound
           : budget_us > 0 && budget_us < MF_FIRST_PLAN_US ? MF_FIRST_PLAN_US
                                                           : budget_us;
}

bool mf_search_is_spent(const mf_search_state *s) {
    const int64_t budget_us = mf_search_has_plan(s) ? mf_search_budget(s) : unfound_us(s);
    int64_t work_us = s->work;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        const mf_search_task *t = &s->task[i];
        for (int k = 0; t->in_flight && k < t->count; k++) {
            work_us += expected_us(s, &t->begun[k]);
        }
    }
    if (s->queue.nodes > 0) {
        work_us += expected_us(s, mf_search_queue_top(&s->queue)) / 2;
    }
    return budget_us > 0 && work_us >= budget_us;
}
