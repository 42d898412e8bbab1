/* search.c - the best-first loop: picks nodes, runs tasks, merges what they found and decides when
 * to stop. */
#include "planner/search/search_state.h"

#include "core/base/flag.h"
#include "planner/tuning/limits.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool mf_search_uses(const mf_search_state *s, mf_mechanism m) {
    return mf_uses(s->r->evaluator->without, m);
}

double mf_search_asked_gap(const mf_search_state *s) {
    return s->r->gap > 0.0 ? s->r->gap : MF_DEFAULT_GAP;
}

int64_t mf_search_budget(const mf_search_state *s) {
    return s->r->budget ? s->r->budget : MF_DEFAULT_BUDGET_US;
}

int mf_search_top(const mf_search_state *s) {
    return s->r->top > 0 ? s->r->top : MF_DEFAULT_TOP;
}

/* Step time of a known plan: only faster ones are looked for. HUGE_VAL: none is known. */
static double known_s(const mf_search_state *s) {
    return s->r->known_s > 0.0 ? s->r->known_s : HUGE_VAL;
}

bool mf_search_has_plan(const mf_search_state *s) {
    return s->nfound > 0 || s->r->known_s > 0.0;
}

/* --- plans found ------------------------------------------------------------------------------ */

static void keep_found(mf_search_state *s, const mf_search_found *f) {
    double open_s = HUGE_VAL;
    int at = 0;
    for (int i = 0; i < s->nfound; i++) {
        if (mf_search_same_degrees(&s->found[i].layout, &f->layout)) {
            if (s->found[i].time_s <= f->time_s) {
                return;
            }
            open_s = s->found[i].open_s;
            memmove(&s->found[i], &s->found[i + 1], (size_t)(s->nfound - i - 1) * sizeof *f);
            s->nfound--;
            break;
        }
    }
    while (at < s->nfound && s->found[at].time_s <= f->time_s) {
        at++;
    }
    memmove(&s->found[at + 1], &s->found[at], (size_t)(s->nfound - at) * sizeof *f);
    s->found[at] = *f;
    s->found[at].open_s = open_s;
    if (s->nfound < s->most_found) {
        s->nfound++;
    } else {
        s->unlisted_s = fmin(s->unlisted_s, s->found[s->nfound].open_s);
    }
    s->best_s = fmin(s->found[0].time_s, known_s(s));
}

/* --- tasks ------------------------------------------------------------------------------------ */

/* Keeps the children's memory: freeing it on the thread that commits would contend with the task's
 * thread, which allocated it. */
static void clear_outcome(mf_search_outcome *out) {
    mf_search_node *child = out->child;
    int64_t allocated = out->allocated;
    if (allocated > MF_KEPT_CHILDREN) {
        free(child);
        child = NULL;
        allocated = 0;
    }
    memset(out, 0, offsetof(mf_search_outcome, plan));
    out->child = child;
    out->allocated = allocated;
}

static void free_tasks(mf_search_state *s) {
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        for (int k = 0; k < MF_TASK_NODES; k++) {
            free(s->task[i].out[k].child);
            mf_costs_noted_clear(&s->task[i].asked[k]);
        }
    }
}

static double thread_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void improve(mf_search_state *s, mf_search_task *t) {
    mf_search_outcome *out = &t->out[0];
    clear_outcome(out);
    mf_block_costs_note(&t->asked[0]);
    out->status =
        mf_search_improve_plan(&s->context, &s->improving, t->aim[0].most_us, out, &out->err);
}

static void work_on(void *self, int slot) {
    mf_search_state *s = self;
    mf_search_task *t = &s->task[slot];
    const double start_s = thread_s();
    if (t->count == 0) {
        improve(s, t);
    }
    for (int i = 0; i < t->count; i++) {
        mf_search_outcome *out = &t->out[i];
        clear_outcome(out);
        out->seen = t->seen;
        mf_block_costs_note(&t->asked[i]);
        if (t->node[i].level < MF_LEVEL_LAYOUT) {
            mf_search_split(&s->context, &t->node[i], &t->aim[i], out);
        } else {
            mf_search_refine(&s->context, &t->node[i], &t->aim[i], out);
        }
    }
    mf_block_costs_note(NULL);
    t->cpu_s = thread_s() - start_s;
}

/* Least key of all open nodes. */
double mf_search_least_open(const mf_search_state *s) {
    double least_s = mf_search_queue_least(&s->queue);
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        const mf_search_task *t = &s->task[i];
        for (int k = 0; t->in_flight && k < t->count; k++) {
            least_s = fmin(least_s, t->begun[k].key_s);
        }
    }
    return least_s;
}

static int tasks_in_flight(const mf_search_state *s) {
    int flying = 0;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        flying += s->task[i].in_flight;
    }
    return flying;
}

bool mf_search_is_flying(const mf_search_state *s) {
    return tasks_in_flight(s) > 0;
}

static bool is_cheap(const mf_search_node *n) {
    return n->level < MF_LEVEL_LAYOUT || (n->level == MF_LEVEL_LAYOUT && n->tries == 0);
}

/* May the node on top of the queue join the task? */
static bool joins_batch(const mf_search_state *s, const mf_search_task *t, int64_t usual_us) {
    return t->count < (mf_search_uses(s, MF_MECHANISM_BATCHES) ? MF_TASK_NODES : 1) &&
           usual_us < MF_TASK_US && is_cheap(&t->node[0]) &&
           mf_search_queue_below(&s->queue, s->target_s) &&
           is_cheap(mf_search_queue_top(&s->queue));
}

/* Are layouts tried for a fair plan before trees begin? */
static bool tries_first(const mf_search_state *s) {
    return s->evaluated < MF_FIRST_TRIES &&
           (double)s->first_tries_us < MF_FIRST_TRIES_SHARE * (double)(s->work - s->blocks_us);
}

/* Tells a task how far bounds and plans of a node are of interest. */
static mf_search_aim aim_at(const mf_search_state *s, const mf_search_node *n) {
    const int top = mf_search_top(s);
    mf_search_aim aim = {.best_s = s->best_s,
                         .most_us = mf_search_most_us(s),
                         .target_s = s->target_s,
                         .keep_s = s->nfound >= top ? s->found[top - 1].time_s : HUGE_VAL,
                         .wants_plan = !mf_search_has_plan(s) || tries_first(s)};
    if (n->tries == 0 && n->key_s * MF_CLOSER_NEAR > s->target_s && mf_search_looks_closer(s)) {
        aim.target_s = s->best_s / (1.0 + MF_CLOSER_GAP * mf_search_asked_gap(s));
    }
    if (s->ranking) {
        const int place = mf_search_rank_place(s, n);
        aim.wants_plan = place < 0;
        aim.best_s = aim.keep_s = mf_search_rank_cutoff(s, place);
        aim.target_s = mf_search_rank_target(s, aim.best_s);
    }
    return aim;
}

/* What a node takes where that decides when its task commits: more where it has more virtual
 * stages, and where a plan is wanted of it. */
static int64_t due_us(const mf_search_state *s, const mf_search_node *n) {
    const int64_t usual_us = mf_search_usual_us(n);
    if (n->level == MF_LEVEL_LAYOUT && n->tries > 0 && (!mf_search_has_plan(s) || tries_first(s))) {
        return MF_FIRST_TRY_US;
    }
    if (n->level != MF_LEVEL_RELAXATION) {
        return usual_us;
    }
    const mf_layout l = mf_search_layout(&s->context, n);
    const int64_t vstages = l.pp * l.vpp;
    return vstages > MF_USUAL_VSTAGES ? usual_us * vstages / MF_USUAL_VSTAGES : usual_us;
}

static void start_task(mf_search_state *s, mf_search_task *t, int64_t *usual_us) {
    t->count = 0;
    *usual_us = 0;
    do {
        mf_search_node n = mf_search_queue_pop(&s->queue);
        t->node[t->count] = t->begun[t->count] = n;
        t->begun[t->count++].tried = (mf_partition_tried){0};
        *usual_us += due_us(s, &n);
    } while (joins_batch(s, t, *usual_us));
    for (int i = 0; i < t->count; i++) {
        t->aim[i] = aim_at(s, &t->node[i]);
    }
    t->seen = s->merged;
    t->in_flight = true;
}

static int64_t oldest_seen(const mf_search_state *s) {
    int64_t oldest = s->merged;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        if (s->task[i].in_flight && s->task[i].seen < oldest) {
            oldest = s->task[i].seen;
        }
    }
    return oldest;
}

static mf_status out_of_memory(mf_err *e) {
    return mf_err_set(e, MF_NOMEM, "out of memory for the search's queue");
}

/* A node whose key is at or above the cutoff holds no plan that is wanted. */
static double cutoff(const mf_search_state *s, const mf_search_node *n) {
    return s->ranking ? mf_search_rank_cutoff(s, mf_search_rank_place(s, n)) : s->best_s;
}

/* No task can raise the layout's bound any more: it stays in the proof as it is. */
static void give_up(mf_search_state *s, const mf_search_node *n) {
    if (s->ranking) {
        const int place = mf_search_rank_place(s, n);
        double *open_s = place >= 0 ? &s->found[place].open_s : &s->unlisted_s;
        *open_s = fmin(*open_s, n->key_s);
        return;
    }
    s->blocked_count += n->key_s < s->target_s;
    if (n->key_s < s->blocking.key_s) {
        s->blocking = *n;
        s->blocking.tried = (mf_partition_tried){0};
    }
}

/* Counts the blocks that this task was the first to ask for. */
static void count_blocks(const mf_search_state *s, mf_costs_noted *asked, mf_search_outcome *out) {
    const int64_t blocks_ns = mf_block_costs_count(asked);
    out->blocks_ns = s->r->lowers ? blocks_ns : 0;
    out->work_ns += out->blocks_ns;
}

/* A node takes a microsecond at least, for its place in the queue. */
static int64_t work_us(const mf_search_outcome *o) {
    return (o->work_ns + 999) / 1000;
}

static mf_status merge(mf_search_state *s, mf_search_node *node, mf_search_outcome *o, mf_err *e) {
    mf_status status = o->status;
    if (status != MF_OK && e) {
        *e = o->err;
    }
    s->priced += o->priced;
    s->evaluated += o->evaluated;
    s->simulated += o->simulated;
    s->milps += o->milps;
    s->milp_failed += o->milp_failed;
    s->work += work_us(o);
    s->first_tries_us +=
        s->evaluated <= MF_FIRST_TRIES && o->evaluated ? work_us(o) - o->blocks_ns / 1000 : 0;
    s->blocks_us += o->blocks_ns / 1000;
    if (o->found) {
        double before_s = s->best_s;
        keep_found(s, &o->plan);
        if (s->best_s < before_s && status == MF_OK && !s->ranking) {
            s->slow = false;
            status = mf_search_open_again(s, e);
        }
    }
    s->merged++;
    if (o->paths) {
        o->paths->since = s->merged;
        mf_search_keep_path_set(&s->context, o->paths, oldest_seen(s));
    }
    if (o->proof) {
        o->proof->since = s->merged;
        mf_search_keep_path_set(&s->context, o->proof, oldest_seen(s));
    }
    if (status == MF_INTERRUPTED && !mf_search_queue_push(&s->queue, node)) { /* still open */
        status = out_of_memory(e);
    }
    for (int64_t i = 0; i < o->children; i++) {
        mf_search_node *n = &o->child[i];
        if (status != MF_OK || n->key_s >= cutoff(s, n)) {
            mf_partition_tried_clear(&n->tried);
        } else if (n->level == MF_LEVEL_EXACT && n->tries == MF_SEARCH_DONE) {
            mf_partition_tried_clear(&n->tried);
            give_up(s, n);
        } else if (!mf_search_queue_push(&s->queue, n)) {
            mf_partition_tried_clear(&n->tried);
            status = out_of_memory(e);
        }
    }
    return status;
}

/* --- the search ------------------------------------------------------------------------------- */

double mf_search_lower_bound(const mf_search_state *s) {
    return s->ranking
               ? fmin(s->proven_s, s->best_s)
               : fmax(s->held_s, fmin(mf_search_least_open(s), fmin(s->best_s, s->blocking.key_s)));
}

static mf_status push_all(mf_search_state *s, const mf_search_outcome *out, mf_err *e) {
    mf_status status = MF_OK;
    for (int64_t i = 0; i < out->children && status == MF_OK; i++) {
        status = mf_search_queue_push(&s->queue, &out->child[i]) ? MF_OK : out_of_memory(e);
    }
    return status;
}

mf_status mf_search_begin(mf_search_state *s, mf_err *e) {
    mf_search_outcome first = {.status = MF_OK};
    mf_status status = mf_search_start(&s->context, &first, e);
    status = status == MF_OK ? push_all(s, &first, e) : status;
    free(first.child);
    return status;
}

static void keep_plan(void *self, const mf_search_found *f) {
    mf_search_state *s = self;
    keep_found(s, f);
}

/* Puts layouts that are to be tried in front of all open nodes. */
static mf_status push_tries(mf_search_state *s, mf_search_outcome *out, mf_err *e) {
    s->vain_tries = out->children > 0 ? 0 : s->vain_tries;
    s->simulated += out->simulated;
    s->work += work_us(out);
    return push_all(s, out, e);
}

/* Lets the search try some of the open layouts next. */
static mf_status try_open(mf_search_state *s, mf_search_outcome *out, mf_err *e) {
    const mf_search_open all = {.list = {s->queue.node, s->queue.aside},
                                .count = {s->queue.used, s->queue.asides},
                                .best_s = s->best_s,
                                .target_s = s->best_s / (1.0 + mf_search_asked_gap(s))};
    return mf_search_try_open(&s->context, &all, mf_search_lower_bound(s), out, e);
}

/* Simulates layouts that fit, and lets the search try some that resemble the fastest next. */
static mf_status try_fits(mf_search_state *s, mf_search_outcome *out, mf_err *e) {
    return mf_search_try_fits(&s->context, s->r, mf_search_lower_bound(s), s->best_s, keep_plan, s,
                              out, e);
}

/* Lets the search try other layouts of the best plan's degrees. */
static mf_status try_near(mf_search_state *s, mf_search_outcome *out, mf_err *e) {
    s->neared_s = s->best_s;
    return mf_search_try_near(&s->context, &s->found[0], mf_search_lower_bound(s), out, e);
}

static mf_status try_starts(mf_search_state *s, mf_search_outcome *out, mf_err *e) {
    return mf_search_begin_with(s->r, keep_plan, s, out, e);
}

typedef mf_status find_tries(mf_search_state *s, mf_search_outcome *out, mf_err *e);

static void take(mf_search_state *s, find_tries *find) {
    mf_search_outcome *out = calloc(1, sizeof *out);
    if (!out) {
        s->status = mf_err_set(&s->err, MF_NOMEM, "out of memory");
        return;
    }
    mf_costs_noted asked = {0};
    s->held_s = mf_search_lower_bound(s);
    mf_block_costs_note(&asked);
    s->status = find(s, out, &s->err);
    mf_block_costs_note(NULL);
    count_blocks(s, &asked, out);
    mf_costs_noted_clear(&asked);
    s->status = s->status == MF_OK ? push_tries(s, out, &s->err) : s->status;
    s->interrupted |= s->status == MF_INTERRUPTED;
    s->status = s->status == MF_INTERRUPTED ? MF_OK : s->status;
    free(out->child);
    free(out);
}

static bool can_continue(const mf_search_state *s) {
    return s->status == MF_OK && !s->interrupted;
}

/* Is the gap wider than the one that was asked for? */
static bool gap_is_open(const mf_search_state *s) {
    return s->nfound > 0 &&
           mf_search_lower_bound(s) < s->best_s / (1.0 + mf_search_asked_gap(s)) * (1.0 - 1e-9);
}

/* Is the best plan another one than when positions were last moved? */
static bool has_new_best(const mf_search_state *s) {
    return mf_search_uses(s, MF_MECHANISM_STEP_SEARCH) && s->nfound > 0 &&
           s->found[0].time_s <= s->best_s && s->best_s < s->improved_s && gap_is_open(s);
}

/* Are layouts left that were listed to be tried? */
static bool has_tries(const mf_search_state *s) {
    bool some = s->queue.nodes > 0 && mf_search_queue_top(&s->queue)->level == MF_LEVEL_TRY;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        const mf_search_task *t = &s->task[i];
        some = some || (t->in_flight && t->count > 0 && t->begun[0].level == MF_LEVEL_TRY);
    }
    return some;
}

/* Are layouts of the best plan's degrees to be tried, after open ones of all degrees? They would
 * use up the patience of a search that has any. */
static bool is_time_for_near(const mf_search_state *s) {
    return can_continue(s) && s->opened && !mf_search_is_impatient(s) && !s->ranking && !s->spent &&
           !has_tries(s) && mf_search_uses(s, MF_MECHANISM_TRY_OPEN) && s->nfound > 0 &&
           s->found[0].time_s <= s->best_s && s->best_s < s->neared_s * (1.0 - MF_NEAR_GAIN) &&
           gap_is_open(s);
}

/* Is the best plan to be improved now? done: there is nothing else to start. */
static bool is_time_to_improve(const mf_search_state *s, bool done) {
    const int64_t from = s->improve_at ? s->improve_at : MF_STEP_SEARCH_US;
    return can_continue(s) && !s->ranking && !s->spent && !s->improves &&
           (s->work >= from || (done && !mf_search_is_flying(s))) && has_new_best(s);
}

/* Is the best plan to be improved once more, with twice the effort? Only if the last improvement
 * used all of its effort and nothing else is left to do. A search with limited patience has no
 * effort to spare. */
static bool is_time_to_improve_more(const mf_search_state *s) {
    return can_continue(s) && !s->ranking && !s->spent && s->improve_cut &&
           !mf_search_is_flying(s) && !mf_search_is_impatient(s) && gap_is_open(s) &&
           2 * s->improve_us <= s->work / MF_IMPROVE_PART;
}

/* Positions and memory choices of the best plan are changed by what steps take, beside other tasks.
 */
static void start_improving(mf_search_state *s, mf_search_task *t, bool more, int64_t *usual_us) {
    const int64_t share_us = (int64_t)(MF_STEP_SEARCH_SHARE * (double)s->work);
    s->improving = s->found[0];
    s->improves = true;
    t->count = 0;
    t->aim[0].most_us = s->improve_us =
        more && share_us < 2 * s->improve_us ? 2 * s->improve_us : share_us;
    t->seen = s->merged;
    t->in_flight = true;
    *usual_us = 2 * t->aim[0].most_us;
}

static void commit_improved(mf_search_state *s, mf_search_task *t) {
    mf_search_outcome *out = &t->out[0];
    const double before_s = s->best_s;
    count_blocks(s, &t->asked[0], out);
    s->simulated += out->simulated;
    s->work += work_us(out);
    s->improves = false;
    s->improved_s = out->plan.time_s;
    s->improve_cut = out->cut;
    s->improve_at = s->work + (int64_t)(MF_STEP_SEARCH_AGAIN * (double)s->work);
    s->interrupted |= out->status == MF_INTERRUPTED;
    if (s->status == MF_OK && out->status != MF_OK && out->status != MF_INTERRUPTED) {
        s->status = out->status;
        s->err = out->err;
    }
    if (out->found) {
        keep_found(s, &out->plan);
    }
    if (s->best_s < before_s) {
        s->slow = false;
        s->status = s->status == MF_OK ? mf_search_open_again(s, &s->err) : s->status;
    }
}

/* The last phase of a search, which begins when nothing else is left or after MF_TRY_OPEN_US: it
 * tries open layouts if the gap is wide, then works on the least bounds, parked trees included.
 * False: it has begun before, or the effort is used. */
static bool start_last_phase(mf_search_state *s) {
    if (s->opened || s->spent) {
        return false;
    }
    s->opened = true;
    s->narrowed_at = s->work;
    if (gap_is_open(s)) {
        take(s, try_open);
        s->patient = true;
        s->status = s->status == MF_OK ? mf_search_open_again(s, &s->err) : s->status;
    }
    return true;
}

/* A search with patience drops its tries after MF_VAIN_TRIES without a better plan; their layouts
 * stay open. Only tries that fit are counted: where memory is tight, the least bounds belong to
 * layouts that do not fit. */
static void drop_vain_tries(mf_search_state *s) {
    while (mf_search_is_impatient(s) && s->vain_tries >= MF_VAIN_TRIES && s->queue.nodes > 0 &&
           mf_search_queue_top(&s->queue)->level == MF_LEVEL_TRY) {
        (void)mf_search_queue_pop(&s->queue);
    }
}

/* Tasks in flight of nodes that take long. */
static int long_tasks_in_flight(const mf_search_state *s) {
    int flying = 0;
    for (int i = 0; i < MF_TASKS_IN_FLIGHT; i++) {
        flying += s->task[i].in_flight && s->task[i].count > 0 && !is_cheap(&s->task[i].begun[0]);
    }
    return flying;
}

/* Are as many tasks in flight as the request allows? Fewer long tasks may fly: they go on after the
 * effort is used, and know less of each other. At first fewer of any kind may: else a short search
 * would begin everything before it knows anything. */
static bool is_full(const mf_search_state *s) {
    const int flying = tasks_in_flight(s);
    if ((s->r->flight > 0 && flying >= s->r->flight) ||
        (s->work < MF_MANY_TASKS_US && flying >= MF_LONG_TASKS_IN_FLIGHT)) {
        return true;
    }
    return s->queue.nodes > 0 && !is_cheap(mf_search_queue_top(&s->queue)) &&
           long_tasks_in_flight(s) >= MF_LONG_TASKS_IN_FLIGHT;
}

static bool start(void *self, int slot, int64_t *usual_us) {
    mf_search_state *s = self;
    if (is_full(s)) {
        return false;
    }
    const int64_t fits_after = s->r->fits_work ? s->r->fits_work : MF_FIT_FIRST_US;
    s->interrupted |= mf_flag_is_set(s->r->cancel);
    if (can_continue(s) && s->r->list_fit_candidates && !s->fits_tried && !mf_search_has_plan(s) &&
        s->work >= fits_after) {
        s->fits_tried = true;
        take(s, try_fits);
        s->fits_s = s->best_s;
        s->fits_tries = MF_FIT_LEAST_TRIES;
        s->narrowed_at = s->work; /* the tasks that start now may narrow the gap */
    }
    drop_vain_tries(s);
    if (is_time_for_near(s)) {
        take(s, try_near);
    }
    bool done = !can_continue(s) || mf_search_is_done(s);
    if (is_time_to_improve(s, done)) {
        start_improving(s, &s->task[slot], false, usual_us);
        return true;
    }
    while (done && can_continue(s) && !s->ranking && !mf_search_is_flying(s) &&
           start_last_phase(s)) {
        done = !can_continue(s) || mf_search_is_done(s);
    }
    if (done && is_time_to_improve_more(s)) {
        start_improving(s, &s->task[slot], true, usual_us);
        return true;
    }
    if (done && can_continue(s) && !s->ranking && !mf_search_is_flying(s) && mf_search_ranks(s)) {
        s->status = mf_search_rank_begin(s, &s->err);
        done = !can_continue(s) || mf_search_is_done(s);
    }
    if (done) {
        return false;
    }
    start_task(s, &s->task[slot], usual_us);
    return true;
}

/* Merges the outcomes of a task. */
static void commit(void *self, int slot) {
    mf_search_state *s = self;
    mf_search_task *t = &s->task[slot];
    t->in_flight = false;
    if (t->count == 0) {
        commit_improved(s, t);
    }
    s->pricing_s += t->count > 0 && t->node[0].level <= MF_LEVEL_LAYOUT ? t->cpu_s : 0.0;
    for (int i = 0; i < t->count; i++) {
        count_blocks(s, &t->asked[i], &t->out[i]);
        mf_search_note_taken(s, &t->node[i], work_us(&t->out[i]));
        s->fits_tries -= t->node[i].level == MF_LEVEL_TRY;
        const double before_s = s->best_s;
        mf_status one = merge(s, &t->node[i], &t->out[i], s->status == MF_OK ? &s->err : NULL);
        s->interrupted |= one == MF_INTERRUPTED;
        s->status = s->status == MF_OK && one != MF_INTERRUPTED ? one : s->status;
        s->vain_tries = s->best_s < before_s ? 0 : s->vain_tries + t->out[i].tried;
        t->out[i].children = 0; /* handed over */
        t->out[i].paths = t->out[i].proof = NULL;
    }
    mf_search_note_gap(s);
    if (s->r->progress && s->status == MF_OK) {
        s->r->progress(s->r->user, s->best_s, mf_search_lower_bound(s), s->priced, s->milps);
    }
}

/* After the effort is used, a task cannot raise the proof if all of its bounds are at or above the
 * least bound that is open without it. Tries are never useless. */
static bool is_useless(void *self, int slot) {
    const mf_search_state *s = self;
    const mf_search_task *t = &s->task[slot];
    const double stays_s = fmin(mf_search_queue_least(&s->queue), s->blocking.key_s);
    bool useless = s->spent && !s->ranking && can_continue(s) && t->count > 0;
    for (int i = 0; useless && i < t->count; i++) {
        useless = t->begun[i].key_s >= stays_s && t->begun[i].level != MF_LEVEL_TRY;
    }
    return useless;
}

/* Drops a task: its nodes return to the queue as they were. */
static void drop(void *self, int slot) {
    mf_search_state *s = self;
    mf_search_task *t = &s->task[slot];
    t->in_flight = false;
    for (int i = 0; i < t->count; i++) {
        mf_search_outcome *out = &t->out[i];
        mf_search_node n = t->begun[i];
        n.tried = t->node[i].tried;
        for (int64_t k = 0; k < out->children; k++) {
            mf_partition_tried_clear(&out->child[k].tried);
        }
        if (out->paths) {
            mf_search_path_set_free(out->paths);
        }
        if (out->proof) {
            mf_search_path_set_free(out->proof);
        }
        clear_outcome(out);
        /* The costs that it asked for are charged to nobody: whether it ran is chance. */
        t->asked[i].count = 0;
        if (!mf_search_queue_push(&s->queue, &n)) {
            mf_partition_tried_clear(&n.tried);
            s->status = s->status == MF_OK ? out_of_memory(&s->err) : s->status;
        }
    }
}

static mf_status run(mf_search_state *s, mf_err *e) {
    static const mf_task_pool_ops ops = {
        .start = start, .work = work_on, .commit = commit, .is_useless = is_useless, .drop = drop};
    s->status = mf_search_begin(s, e);
    if (s->status == MF_OK && s->r->starts > 0) {
        take(s, try_starts);
    }
    if (s->status == MF_OK) {
        mf_task_pool_run(&ops, s, s->r->threads);
        if (s->status != MF_OK && e) {
            *e = s->err;
        }
    }
    return s->status;
}

mf_status mf_search_run(const mf_search_request *r, mf_search_report *out, mf_err *e) {
    memset(out, 0, sizeof *out);
    mf_search_state *s = calloc(1, sizeof *s);
    if (!s) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    s->r = r;
    s->best_s = known_s(s);
    s->blocking.key_s = s->target_s = s->unlisted_s = s->narrowed = s->fits_s =
        s->unblocked_best_s = s->mark.gap = s->improved_s = s->neared_s = HUGE_VAL;
    mf_search_queue_init(&s->queue);
    s->patient = !mf_search_uses(s, MF_MECHANISM_PARKING);
    s->opened = !mf_search_uses(s, MF_MECHANISM_TRY_OPEN);
    s->most_found = mf_search_top(s) > MF_SEARCH_FOUND ? mf_search_top(s) : MF_SEARCH_FOUND;
    s->found = calloc((size_t)s->most_found + 1, sizeof *s->found);
    mf_block_costs *own = NULL;
    mf_order_book *own_orders = NULL;
    mf_status status = s->found ? MF_OK : mf_err_set(e, MF_NOMEM, "out of memory");
    if (status == MF_OK && r->costs == NULL) {
        status = mf_block_costs_create(r->evaluator, &own, e);
    }
    if (status == MF_OK && r->orders == NULL) {
        status = mf_order_book_create(&own_orders, e);
    }
    if (status == MF_OK) {
        status = mf_search_context_init(&s->context, own != NULL ? own : r->costs,
                                        own_orders != NULL ? own_orders : r->orders, &r->space, e);
    }
    if (status == MF_OK) {
        s->context.cancel = r->cancel;
        s->context.fault = r->fault;
        s->work = r->lowers ? MF_READY_US : 0;
        status = run(s, e);
        out->stats.interrupted = s->interrupted;
    }
    if (status == MF_OK) {
        mf_search_note_end(s);
        status = mf_search_report_of(s, out, e);
    }
    mf_search_context_clear(&s->context);
    mf_block_costs_destroy(own);
    mf_order_book_destroy(own_orders);
    mf_search_queue_clear(&s->queue);
    free_tasks(s);
    free(s->found);
    free(s);
    return status;
}

void mf_search_report_clear(mf_search_report *r) {
    free(r->found);
    memset(r, 0, sizeof *r);
}
