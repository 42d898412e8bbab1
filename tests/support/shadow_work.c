/* shadow_work.c - work that waits for its turn, and an order in which it is done. */
#include "core/base/clock.h"
#include "tests/support/shadow_private.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *more(void *list, int64_t count, int64_t *allocated, size_t each_B) {
    if (count < *allocated) {
        return list;
    }
    *allocated = 2 * *allocated + 8;
    list = realloc(list, (size_t)*allocated * each_B);
    if (list == NULL) {
        fprintf(stderr, "shadow: out of memory\n");
        abort();
    }
    return list;
}

void shadow_push(shadow_items *list, shadow_item *i) {
    list->item = more(list->item, list->count, &list->allocated, sizeof *list->item);
    list->item[list->count++] = i;
}

static void free_item(shadow_item *i) {
    free(i->args);
    free(i->deps.item);
    free(i->next.item);
    free(i->wait);
    shadow_spans_clear(&i->spans);
    free(i);
}

void shadow_forget_items(shadow_items *list) {
    for (int64_t i = 0; i < list->count; i++) {
        free_item(list->item[i]);
    }
    free(list->item);
    *list = (shadow_items){0};
}

/* --- entering -----------------------------------------------------------------------------------
 */

static void rest_on(shadow_item *i, shadow_item *dep) {
    if (dep == NULL || dep == i) {
        return;
    }
    for (int64_t k = 0; k < i->deps.count; k++) {
        if (i->deps.item[k] == dep) {
            return;
        }
    }
    shadow_push(&i->deps, dep);
    shadow_push(&dep->next, i);
    i->waits += !dep->done;
}

mf_status shadow_enter(shadow *x, shadow_queue *q, const shadow_item *like, shadow_item **out,
                       mf_err *e) {
    bool capture = x->capture != NULL;
    if (capture && !q->captured) {
        return mf_err_set(e, MF_LIBRARY,
                          "shadow: %s (%s) is entered on queue %d, which the capture does not hold",
                          like->name, x->label, q->index);
    }
    shadow_item *i = calloc(1, sizeof *i);
    void *args = malloc(like->args_B + 1);
    if (i == NULL || args == NULL) {
        free(i);
        free(args);
        return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    *i = *like;
    i->args = args;
    memcpy(i->args, like->args, like->args_B);
    snprintf(i->label, sizeof i->label, "%s", like->label[0] != '\0' ? like->label : x->label);
    i->queue = q->index;
    i->number = ++x->entered;
    if (x->o.plant != NULL) {
        x->o.plant(x->o.user, i->number, i->kind, i->args);
    }
    shadow_chain *c = &q->chain[capture];
    rest_on(i, c->last);
    for (int64_t k = 0; k < c->also.count; k++) {
        rest_on(i, c->also.item[k]);
    }
    c->also.count = 0;
    c->last = i;
    if (i->lane >= 0) {
        rest_on(i, x->lane[i->lane].last[capture]);
        x->lane[i->lane].last[capture] = i;
    }
    shadow_push(capture ? &x->capture->items : &x->all, i);
    if (!capture) {
        x->left++;
        if (i->waits == 0) {
            shadow_push(&x->ready, i);
        }
    }
    if (out != NULL) {
        *out = i;
    }
    return MF_OK;
}

/* --- doing --------------------------------------------------------------------------------------
 */

static void want(shadow *x, shadow_item *until) {
    shadow_items stack = {0};
    for (int64_t k = 0; k < x->all.count; k++) {
        x->all.item[k]->wanted = until == NULL;
    }
    if (until != NULL) {
        shadow_push(&stack, until);
    }
    while (stack.count > 0) {
        shadow_item *i = stack.item[--stack.count];
        if (i->wanted || i->done) {
            continue;
        }
        i->wanted = true;
        for (int64_t k = 0; k < i->deps.count; k++) {
            shadow_push(&stack, i->deps.item[k]);
        }
    }
    free(stack.item);
}

/* One of those that nothing is missing for, taken off the list; NULL: none. */
static shadow_item *take_ready(shadow *x) {
    int64_t best = -1, seen = 0;
    for (int64_t k = 0; k < x->ready.count; k++) {
        const shadow_item *i = x->ready.item[k];
        if (!i->wanted) {
            continue;
        }
        seen++;
        if (x->o.seed == 0) {
            best = best < 0 || i->number < x->ready.item[best]->number ? k : best;
            continue;
        }
        x->random = x->random * 6364136223846793005u + 1442695040888963407u;
        best = best < 0 || (x->random >> 33) % (uint64_t)seen == 0 ? k : best;
    }
    if (best < 0) {
        return NULL;
    }
    shadow_item *i = x->ready.item[best];
    x->ready.item[best] = x->ready.item[--x->ready.count];
    return i;
}

static void finish(shadow *x, shadow_item *i) {
    i->done = true;
    x->left--;
    for (int64_t k = 0; k < i->next.count; k++) {
        if (--i->next.item[k]->waits == 0) {
            shadow_push(&x->ready, i->next.item[k]);
        }
    }
}

static void find_spans(shadow_item *i) {
    if (i->kind < SHADOW_KERNEL_COUNT) {
        shadow_kernel_spans(i->kind, i->args, true, &i->spans);
    } else if (i->kind == SHADOW_COPY) {
        const shadow_copy *a = i->args;
        shadow_span_add(&i->spans, a->from, 1, (int64_t)a->size_B, (int64_t)a->size_B, false);
        shadow_span_add(&i->spans, a->to, 1, (int64_t)a->size_B, (int64_t)a->size_B, true);
    } else if (i->kind == SHADOW_FILL) {
        const shadow_fill *a = i->args;
        shadow_span_add(&i->spans, a->to, 1, (int64_t)a->size_B, (int64_t)a->size_B, true);
    } else if (i->comm != NULL) {
        i->comm->spans(i, &i->spans);
    }
}

/* Tables may point anywhere: what they name is known only now. */
static mf_status check_spans(const shadow *x, const shadow_item *i, mf_err *e) {
    for (int k = 0; k < i->spans.count && i->kind < SHADOW_KERNEL_COUNT; k++) {
        const shadow_span *s = &i->spans.span[k];
        const shadow_allocation *r =
            shadow_allocation_of(x, s->begin, shadow_span_end(s) - s->begin);
        if (r == NULL || !r->device) {
            return mf_err_set(e, MF_LIBRARY,
                              "shadow: %s (%s) %s %lld bytes that are no device memory", i->name,
                              i->label, s->writes ? "writes" : "reads",
                              (long long)(shadow_span_end(s) - s->begin));
        }
    }
    return MF_OK;
}

static mf_status mark_time(shadow *x, int64_t slot) {
    if (slot < 0) { /* a point */
        return MF_OK;
    }
    while (slot >= x->marks) {
        int64_t marks = x->marks;
        x->mark = more(x->mark, marks, &x->marks, sizeof *x->mark);
        memset(x->mark + marks, 0, (size_t)(x->marks - marks) * sizeof *x->mark);
    }
    x->mark[slot] = mf_clock_s();
    return MF_OK;
}

enum { CHECKED = 5 };

static mf_status do_item(shadow *x, shadow_item *i, mf_err *e) {
    if (i->kind < SHADOW_KERNEL_COUNT) {
        mf_status status = check_spans(x, i, e);
        return status != MF_OK ? status
               : x->o.checks_spans && x->checked[i->kind]++ < CHECKED
                   ? shadow_check_kernel(x, i, e)
                   : shadow_kernel_run(i->kind, i->args, e);
    }
    if (i->kind == SHADOW_COPY) {
        const shadow_copy *a = i->args;
        memmove(a->to, a->from != NULL ? a->from : (const void *)(a + 1), a->size_B);
    } else if (i->kind == SHADOW_FILL) {
        const shadow_fill *a = i->args;
        memset(a->to, a->byte, a->size_B);
    } else if (i->kind == SHADOW_MARK) {
        return mark_time(x, *(const int64_t *)i->args);
    }
    return MF_OK;
}

static mf_status begin(shadow *x, shadow_item *i, mf_err *e) {
    i->begun = true;
    i->turn = x->turns++;
    find_spans(i);
    if (i->comm != NULL) {
        shadow_push(&x->begun, i);
        return i->comm->begin(i, e);
    }
    mf_status status = do_item(x, i, e);
    if (status == MF_OK) {
        finish(x, i);
    }
    return status == MF_OK ? MF_OK : mf_err_prefix(e, "%s (%s)", i->name, i->label);
}

/* Asks after all that other processes take part in; *moved: some of it came to its end. */
static mf_status poll_begun(shadow *x, bool *moved, mf_err *e) {
    mf_status status = MF_OK;
    *moved = false;
    for (int64_t k = 0; k < x->begun.count && status == MF_OK;) {
        shadow_item *i = x->begun.item[k];
        bool done = false;
        status = i->comm->poll(i, &done, e);
        if (status == MF_OK && done) {
            x->begun.item[k] = x->begun.item[--x->begun.count];
            finish(x, i);
            *moved = true;
        } else {
            k++;
        }
    }
    return status;
}

/* What everyone waits for. */
static mf_status stuck(const shadow *x, mf_err *e) {
    mf_status status = mf_err_set(e, MF_LIBRARY, "shadow: deadlock:");
    char text[MF_ERR_TEXT_MAX];
    for (int64_t k = 0; k < x->begun.count && k < 8; k++) {
        const shadow_item *i = x->begun.item[k];
        char one[256];
        i->comm->describe(i, one, sizeof one);
        if (e != NULL) {
            snprintf(text, sizeof text, "%.1500s %s (%s) on queue %d waits for %.250s;", e->text,
                     i->name, i->label, i->queue, one);
            status = mf_err_set(e, MF_LIBRARY, "%s", text);
        }
    }
    return status;
}

/* Turns of waiting for other processes before a rank sleeps in between. */
enum { YIELDS = 200 };

static mf_status run_wanted(shadow *x, mf_err *e) {
    const double patience_s = x->o.timeout_s > 0 ? x->o.timeout_s : 20.0;
    const struct timespec pause = {.tv_nsec = 50 * 1000};
    double since_s = 0.0;
    int idle = 0;
    mf_status status = MF_OK;
    for (;;) {
        shadow_item *i = take_ready(x);
        bool moved = i != NULL, came = false;
        status = i != NULL ? begin(x, i, e) : MF_OK;
        status = status == MF_OK ? poll_begun(x, &came, e) : status;
        if (status != MF_OK) {
            return status;
        }
        if (moved || came) {
            idle = 0;
            continue;
        }
        if (x->begun.count == 0) {
            return MF_OK;
        }
        since_s = idle == 0 ? mf_clock_s() : since_s;
        if (mf_clock_s() - since_s > patience_s) {
            return stuck(x, e);
        }
        if (++idle < YIELDS) {
            sched_yield();
        } else {
            nanosleep(&pause, NULL);
        }
    }
}

mf_status shadow_run(shadow *x, shadow_item *until, mf_err *e) {
    if (x->failed.status != MF_OK) {
        return mf_err_set(e, x->failed.status, "%s", x->failed.text);
    }
    if (x->left > 0) {
        shadow_unlock(x);
        want(x, until);
        (void)run_wanted(x, &x->failed);
        shadow_lock(x);
    }
    return x->failed.status == MF_OK ? MF_OK
                                     : mf_err_set(e, x->failed.status, "%s", x->failed.text);
}

/* --- what was done ------------------------------------------------------------------------------
 */

/* Places are those of the recording; work of an earlier epoch is ordered before by the host. */
static void record(shadow *x, shadow_item *i) {
    x->recorded = more(x->recorded, x->recorded_count, &x->recorded_allocated, sizeof *x->recorded);
    i->wait = malloc(((size_t)i->deps.count + 1) * sizeof *i->wait);
    assert(i->wait != NULL);
    for (int64_t k = 0; k < i->deps.count; k++) {
        i->wait[k] = i->deps.item[k]->place;
    }
    i->place = x->recorded_count;
    x->recorded[x->recorded_count++] = (shadow_work){.kind = i->kind,
                                                     .name = i->name,
                                                     .label = i->label,
                                                     .queue = i->queue,
                                                     .number = i->number,
                                                     .turn = i->turn,
                                                     .epoch = x->epoch,
                                                     .args = i->args,
                                                     .spans = i->spans,
                                                     .waits = (int)i->deps.count,
                                                     .wait = i->wait};
    shadow_push(&x->kept, i);
}

/* Chains end here: what follows is ordered behind all of it by the host, who has waited. */
static void end_chains(shadow *x) {
    for (int k = 0; k < SHADOW_QUEUES; k++) {
        x->queue[k].chain[0].last = NULL;
        x->queue[k].chain[0].also.count = 0;
    }
    for (int k = 0; k < x->lanes; k++) {
        x->lane[k].last[0] = NULL;
    }
    shadow_end_signals(x);
}

void shadow_put_away(shadow *x) {
    assert(x->left == 0 && x->ready.count == 0 && x->begun.count == 0);
    end_chains(x);
    for (int64_t k = 0; k < x->all.count; k++) {
        if (x->o.records) {
            record(x, x->all.item[k]);
        } else {
            free_item(x->all.item[k]);
        }
    }
    x->all.count = 0;
    x->epoch++;
}

int64_t shadow_recorded(const mf_device *d, const shadow_work **out) {
    const shadow *x = shadow_of(d);
    *out = x->recorded;
    return x->recorded_count;
}

void shadow_drop_recording(mf_device *d) {
    shadow *x = shadow_of(d);
    shadow_forget_items(&x->kept);
    x->recorded_count = 0;
}
