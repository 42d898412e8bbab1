/* shadow_window.c - windows of a fused dispatcher (mf_device_ops.window_open) between the shadows
 * of several processes: what ranks give each other goes through the shadow's communicator, and the
 * reference of kernels/dispatch does the rest. Rows and sums share the window, as on a GPU.
 */
#include "tests/support/shadow_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = MF_DISPATCH_RANKS_MAX };

struct mf_dispatch_group {
    mf_dispatch_shape shape;
    mf_dispatch_view view;
    mf_comm *wire;
    int me;
    void *memory; /* the window, and what follows */
    uint16_t *rows;
    int32_t *index;
    float *prob;
};

typedef enum phase { ARRIVE, LEAVE, JOIN } phase;

typedef struct window_work {
    phase phase;
    mf_dispatch_group *g;
    mf_kernel_dispatch d;
    mf_kernel_combine c;
} window_work;

static int64_t rows_of(const mf_dispatch_shape *s) {
    return s->tokens * s->cols;
}

static int64_t choices_of(const mf_dispatch_shape *s) {
    return s->tokens * s->top_k;
}

/* --- what the references do: arrays of all ranks, of which this one's are real ------------------
 */

typedef struct everyone {
    mf_kernel_dispatch d[RANKS];
    mf_kernel_combine c[RANKS];
    mf_dispatch_view v[RANKS];
    int32_t *none; /* as many as any array of choices has */
    uint16_t *out;
    char *windows;
} everyone;

/* Windows of 0xff that nobody reads, and no choices. */
static mf_status everyone_open(const mf_dispatch_group *g, everyone *x, mf_err *e) {
    const mf_dispatch_shape *s = &g->shape;
    const size_t window_B = mf_dispatch_window_B(s), all = (size_t)(s->ranks * choices_of(s));
    memset(x, 0, sizeof *x);
    x->none = malloc((all + 1) * sizeof *x->none);
    x->out = malloc(((size_t)rows_of(s) + 1) * sizeof *x->out);
    x->windows = malloc((size_t)s->ranks * window_B);
    if (x->none == NULL || x->out == NULL || x->windows == NULL) {
        return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    memset(x->none, 0xff, all * sizeof *x->none);
    memset(x->windows, 0xff, (size_t)s->ranks * window_B);
    for (int r = 0; r < s->ranks; r++) {
        x->v[r] = mf_dispatch_view_of(s, x->windows + (size_t)r * window_B);
        x->c[r] = (mf_kernel_combine){
            .local = x->none, .row_of_slot = x->none, .index = x->none, .out = x->out};
    }
    return MF_OK;
}

static void everyone_close(everyone *x) {
    free(x->none);
    free(x->out);
    free(x->windows);
}

/* Everyone's tokens stand in memory of this rank. */
static mf_status arrive(const window_work *w, everyone *x, mf_err *e) {
    const mf_dispatch_group *g = w->g;
    const int64_t choices = choices_of(&g->shape);
    for (int r = 0; r < g->shape.ranks; r++) {
        x->d[r] =
            (mf_kernel_dispatch){g->rows + r * rows_of(&g->shape), g->index + r * choices,
                                 w->d.prob != NULL ? g->prob + r * choices : NULL, w->d.beside};
    }
    x->v[g->me] = g->view;
    return mf_kernel_dispatch_run(&g->shape, x->d, x->v, e);
}

/* What this rank sends to each, one behind the other. */
static mf_status leave(const window_work *w, everyone *x, mf_err *e) {
    const mf_dispatch_group *g = w->g;
    const mf_dispatch_shape *s = &g->shape;
    const int64_t rows = rows_of(s), choices = choices_of(s);
    x->c[g->me] = w->c;
    x->c[g->me].index = x->none;
    x->c[g->me].out = x->out;
    mf_status status = mf_kernel_combine_run(s, x->c, x->v, e);
    for (int r = 0; r < s->ranks && status == MF_OK; r++) {
        assert(x->v[r].partial != NULL);
        memcpy(g->rows + r * rows, x->v[r].partial + g->me * rows, (size_t)rows * 2);
        memcpy(g->prob + r * choices, x->v[r].prob_grad, (size_t)choices * 4);
    }
    return status;
}

/* In the order of ranks, so that it is what slots come to, to the bit; kernels begin with their
 * own. A gradient that nobody wrote stays as it was. */
static mf_status join(const window_work *w) {
    const mf_dispatch_group *g = w->g;
    const mf_dispatch_shape *s = &g->shape;
    const int64_t each = s->experts / s->ranks, choices = choices_of(s);
    float *back = (float *)(void *)g->index; /* where they came to */
    for (int64_t i = 0; i < rows_of(s); i++) {
        const int32_t *choice = w->c.index + i / s->cols * s->top_k;
        float total = 0.0f;
        for (int r = 0; r < s->ranks; r++) {
            bool owns = false;
            for (int64_t j = 0; j < s->top_k; j++) {
                owns = owns || (choice[j] >= 0 && choice[j] / each == r);
            }
            total += owns ? mf_kernel_bf16_widen(g->view.partial[r * rows_of(s) + i]) : 0.0f;
        }
        w->c.out[i] = mf_kernel_bf16_round(total);
    }
    for (int64_t i = 0; i < choices && w->c.slot_grad != NULL; i++) {
        const int64_t at = w->c.index[i] >= 0 ? w->c.index[i] / each * choices + i : -1;
        if (at >= 0 && g->index[at] != -1) {
            g->view.prob_grad[i] = back[at];
        }
    }
    return MF_OK;
}

/* --- as work of the device -----------------------------------------------------------------------
 */

static mf_status begin(shadow_item *i, mf_err *e) {
    (void)i, (void)e;
    return MF_OK;
}

static mf_status poll(shadow_item *i, bool *done, mf_err *e) {
    const window_work *w = i->args;
    everyone x;
    mf_status status = everyone_open(w->g, &x, e);
    if (status == MF_OK) {
        status = w->phase == ARRIVE  ? arrive(w, &x, e)
                 : w->phase == LEAVE ? leave(w, &x, e)
                                     : join(w);
    }
    everyone_close(&x);
    *done = status == MF_OK;
    return status;
}

static void span(shadow_spans *out, const void *p, int64_t size_B, bool writes) {
    if (p != NULL) {
        shadow_span_add(out, p, 1, size_B, size_B, writes);
    }
}

/* Rows of y that a map names. */
static int64_t named_rows(const window_work *w) {
    const mf_dispatch_shape *s = &w->g->shape;
    const int64_t slots = s->ranks * (w->c.by_token ? s->tokens : choices_of(s));
    int64_t rows = 0;
    for (int64_t k = 0; k < slots; k++) {
        rows = w->c.row_of_slot[k] >= rows ? w->c.row_of_slot[k] + 1 : rows;
    }
    return rows;
}

static void spans(const shadow_item *i, shadow_spans *out) {
    const window_work *w = i->args;
    const mf_dispatch_group *g = w->g;
    const mf_dispatch_shape *s = &g->shape;
    const int64_t all_B = s->ranks * rows_of(s) * 2, own_B = choices_of(s) * 4;
    const int64_t each_B = s->ranks * own_B;
    span(out, g->rows, all_B, w->phase == LEAVE);
    span(out, g->index, each_B, false);
    span(out, g->prob, each_B, w->phase == LEAVE);
    if (w->phase == ARRIVE) {
        span(out, g->view.rows, all_B, true);
        span(out, g->view.index, each_B, true);
        span(out, w->d.prob != NULL ? g->view.prob : NULL, each_B, true);
    } else if (w->phase == LEAVE) {
        span(out, w->c.y, named_rows(w) * s->cols * 2, false);
        span(out, w->c.local, each_B, false);
        span(out, w->c.row_of_slot, w->c.by_token ? s->ranks * s->tokens * 4 : each_B, false);
        span(out, w->c.slot_grad, each_B, false);
    } else {
        span(out, g->view.partial, all_B, false);
        span(out, w->c.index, own_B, false);
        span(out, w->c.out, rows_of(s) * 2, true);
        span(out, w->c.slot_grad != NULL ? g->view.prob_grad : NULL, own_B, true);
    }
}

static void in_words(const shadow_item *i, char *text, size_t size) {
    (void)i;
    text[0] = '\0';
    (void)size;
}

static const shadow_comm_work work = {begin, poll, spans, in_words};

static mf_status enter(mf_queue *q, const window_work *w, mf_err *e) {
    static const char *const names[] = {"window_arrive", "window_leave", "window_join"};
    const shadow_item like = {.kind = SHADOW_COMM,
                              .name = names[w->phase],
                              .lane = -1,
                              .args = (void *)(uintptr_t)w,
                              .args_B = sizeof *w,
                              .comm = &work,
                              .state = w->g};
    return shadow_enter(shadow_of(q->device), q->stream, &like, NULL, e);
}

/* A kernel on a queue of its own has compute beside it and takes fewer blocks; on compute's queue
 * it has the GPU for itself. */
static mf_status check_beside(mf_queue *q, bool beside, mf_err *e) {
    const bool own = q != q->device->ops->queue(q->device, MF_STREAM_COMPUTE);
    return beside == own ? MF_OK
                         : mf_err_set(e, MF_INTERNAL,
                                      "shadow: an exchange %s the queue of compute has `beside` %d",
                                      own ? "off" : "on", beside);
}

/* --- the device's table -------------------------------------------------------------------------
 */

mf_status shadow_window_open(mf_device *d, mf_comm *wire, const mf_dispatch_shape *s,
                             mf_dispatch_group **out, mf_dispatch_view *view, mf_err *e) {
    const size_t window_B = mf_dispatch_window_B(s);
    const size_t rows_B = (size_t)mf_align_B(s->ranks * rows_of(s) * 2);
    const size_t choices_B = (size_t)mf_align_B(s->ranks * choices_of(s) * 4);
    *out = NULL;
    mf_status status = shadow_of(d)->o.slots ? mf_err_set(e, MF_INFEASIBLE, "slots are wanted")
                                             : mf_dispatch_check(s, e);
    mf_dispatch_group *g = status == MF_OK ? calloc(1, sizeof *g) : NULL;
    if (g == NULL) {
        return status != MF_OK ? status : mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    g->shape = *s;
    g->wire = wire;
    g->me = (int)mf_comm_group_rank(wire, MF_GROUP_EP);
    status = shadow_allocate(shadow_of(d), (int64_t)(window_B + rows_B + 2 * choices_B) + 4096,
                             true, &g->memory, e);
    if (status != MF_OK) {
        free(g);
        return status;
    }
    char *at = g->memory;
    *view = g->view = mf_dispatch_view_of(s, at);
    at += mf_align_B((int64_t)window_B);
    g->rows = (uint16_t *)(void *)at;
    g->index = (int32_t *)(void *)(at + rows_B);
    g->prob = (float *)(void *)(at + rows_B + choices_B);
    *out = g;
    return MF_OK;
}

void shadow_window_close(mf_device *d, mf_dispatch_group *g) {
    mf_err ignored;
    (void)d->ops->wait(d, &ignored);
    shadow_release(shadow_of(d), g->memory);
    free(g);
}

mf_status shadow_window_dispatch(mf_queue *q, mf_dispatch_group *g, const mf_kernel_dispatch *a,
                                 mf_err *e) {
    const int64_t choices = choices_of(&g->shape);
    const window_work w = {.phase = ARRIVE, .g = g, .d = *a};
    mf_status status = check_beside(q, a->beside, e);
    if (status == MF_OK) {
        status = mf_comm_all_gather(g->wire, MF_GROUP_EP, MF_COMM_BF16, a->x, g->rows,
                                    rows_of(&g->shape), e);
    }
    if (status == MF_OK) {
        status =
            mf_comm_all_gather(g->wire, MF_GROUP_EP, MF_COMM_I32, a->index, g->index, choices, e);
    }
    if (status == MF_OK && a->prob != NULL) {
        status =
            mf_comm_all_gather(g->wire, MF_GROUP_EP, MF_COMM_F32, a->prob, g->prob, choices, e);
    }
    return status == MF_OK ? enter(q, &w, e) : status;
}

mf_status shadow_window_combine(mf_queue *q, mf_dispatch_group *g, const mf_kernel_combine *a,
                                mf_err *e) {
    const mf_dispatch_shape *s = &g->shape;
    window_work w = {.phase = LEAVE, .g = g, .c = *a};
    int64_t rows[RANKS], choices[RANKS];
    for (int r = 0; r < s->ranks; r++) {
        rows[r] = rows_of(s);
        choices[r] = choices_of(s);
    }
    mf_status status = check_beside(q, a->beside, e);
    status = status == MF_OK ? enter(q, &w, e) : status;
    if (status == MF_OK) {
        status =
            mf_comm_all_to_all(g->wire, MF_GROUP_EP, 2, g->rows, rows, g->view.partial, rows, e);
    }
    if (status == MF_OK) {
        status =
            mf_comm_all_to_all(g->wire, MF_GROUP_EP, 4, g->prob, choices, g->index, choices, e);
    }
    w.phase = JOIN;
    return status == MF_OK ? enter(q, &w, e) : status;
}
