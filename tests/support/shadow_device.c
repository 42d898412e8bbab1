/* shadow_device.c - the table of the shadow device: calls that enter work. */
#include "tests/support/shadow_private.h"

#include "executor/cuda/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shadow_queue *of(mf_queue *q) {
    return (shadow_queue *)(void *)q;
}

/* --- memory --------------------------------------------------------------------------------------
 */

static void describe(const mf_device *d, char *text, size_t size) {
    (void)d;
    snprintf(text, size, "shadow of a GPU");
}

static mf_status allocate(mf_device *d, int64_t size_B, void **out, mf_err *e) {
    return shadow_allocate(shadow_of(d), size_B, true, out, e);
}

static mf_status allocate_host(mf_device *d, int64_t size_B, void **out, mf_err *e) {
    return shadow_allocate(shadow_of(d), size_B, false, out, e);
}

/* As cudaFree: all earlier work is done; its errors are kept until somebody asks. */
static void release(mf_device *d, void *memory) {
    shadow *x = shadow_of(d);
    mf_err ignored;
    if (memory != NULL) {
        if (x->capture != NULL) {
            (void)shadow_refuse_capture(x, "memory is released", &x->failed);
        } else if (shadow_run(x, NULL, &ignored) == MF_OK) {
            shadow_put_away(x);
        }
        shadow_release(x, memory);
    }
}

static int64_t used_B(mf_device *d) {
    const shadow *x = shadow_of(d);
    int64_t all_B = 0;
    for (int i = 0; i < x->allocations; i++) {
        all_B += x->allocation[i].device ? x->allocation[i].size_B : 0;
    }
    return all_B;
}

/* --- queues --------------------------------------------------------------------------------------
 */

static mf_queue *queue_of(mf_device *d, mf_stream stream) {
    return &shadow_of(d)->queue[stream].queue;
}

static mf_status side_queue(mf_device *d, int i, mf_queue **out, mf_err *e) {
    (void)e;
    *out = &shadow_of(d)->queue[SHADOW_SIDE + i].queue;
    return MF_OK;
}

static mf_status enter(mf_queue *q, shadow_kind kind, const void *args, size_t args_B,
                       shadow_item **out, mf_err *e) {
    shadow *x = shadow_of(q->device);
    const shadow_item like = {.kind = kind,
                              .name = shadow_kind_name(kind),
                              .lane = -1,
                              .args = (void *)(uintptr_t)args,
                              .args_B = args_B};
    return shadow_enter(x, of(q), &like, out, e);
}

/* Memory that is neither the device's nor pinned is read when the call is made; a copy to it is
 * waited for: so do the copies of CUDA. */
static mf_status copy(mf_queue *q, void *to, const void *from, size_t size_B, mf_err *e) {
    shadow *x = shadow_of(q->device);
    const int64_t size = (int64_t)size_B;
    bool to_ours = shadow_allocation_of(x, to, size) != NULL;
    bool from_ours = shadow_allocation_of(x, from, size) != NULL;
    if (x->preparing || size_B == 0) {
        return MF_OK;
    }
    mf_status status = to_ours && from_ours
                           ? MF_OK
                           : shadow_refuse_capture(x, "memory that is not pinned is copied", e);
    shadow_copy *a = status == MF_OK ? malloc(sizeof *a + (from_ours ? 0 : size_B)) : NULL;
    if (a == NULL) {
        return status == MF_OK ? mf_err_set(e, MF_NOMEM, "shadow: out of memory") : status;
    }
    *a = (shadow_copy){.to = to, .from = from_ours ? from : NULL, .size_B = size_B};
    if (!from_ours) {
        memcpy(a + 1, from, size_B);
    }
    shadow_item *i = NULL;
    status = enter(q, SHADOW_COPY, a, sizeof *a + (from_ours ? 0 : size_B), &i, e);
    free(a);
    if (status == MF_OK && !to_ours) {
        status = shadow_run(x, i, e);
        for (int k = 0; k < SHADOW_QUEUES && status == MF_OK; k++) { /* the host knows it is done */
            shadow_push(&x->queue[k].chain[0].also, i);
        }
    }
    return status;
}

static mf_status fill(mf_queue *q, void *to, int byte, size_t size_B, mf_err *e) {
    shadow *x = shadow_of(q->device);
    const shadow_fill a = {.to = to, .byte = byte, .size_B = size_B};
    const shadow_allocation *r = shadow_allocation_of(x, to, (int64_t)size_B);
    if (size_B > 0 && (r == NULL || !r->device)) {
        return mf_err_set(e, MF_LIBRARY, "shadow: fill (%s) of memory that is not the device's",
                          x->label);
    }
    return x->preparing || size_B == 0 ? MF_OK : enter(q, SHADOW_FILL, &a, sizeof a, NULL, e);
}

static mf_status zero(mf_queue *q, void *to, size_t size_B, mf_err *e) {
    return fill(q, to, 0, size_B, e);
}

static mf_status wait_for_all(mf_device *d, mf_err *e) {
    shadow *x = shadow_of(d);
    mf_status status = shadow_refuse_capture(x, "the host waits", e);
    status = status == MF_OK ? shadow_run(x, NULL, e) : status;
    if (status == MF_OK) {
        shadow_put_away(x);
    }
    return status;
}

static mf_status point(mf_queue *q, int slot, mf_err *e) {
    const int64_t no_time = -1;
    shadow *x = shadow_of(q->device);
    mf_status status = shadow_refuse_capture(x, "a point is put down", e);
    return status == MF_OK ? enter(q, SHADOW_MARK, &no_time, sizeof no_time, &x->point[slot], e)
                           : status;
}

static mf_status reach(mf_device *d, int slot, mf_err *e) {
    shadow *x = shadow_of(d);
    mf_status status = shadow_refuse_capture(x, "the host waits", e);
    status = status == MF_OK ? shadow_run(x, x->o.eager ? NULL : x->point[slot], e) : status;
    for (int k = 0; k < SHADOW_QUEUES && status == MF_OK; k++) { /* the host knows it is done */
        shadow_push(&x->queue[k].chain[0].also, x->point[slot]);
    }
    return status;
}

static mf_status mark(mf_queue *q, int64_t slot, mf_err *e) {
    shadow *x = shadow_of(q->device);
    mf_status status = shadow_refuse_capture(x, "a mark is put down", e);
    if (slot < x->marks) {
        x->mark[slot] = 0; /* not reached */
    }
    return status == MF_OK ? enter(q, SHADOW_MARK, &slot, sizeof slot, NULL, e) : status;
}

static mf_status between(mf_device *d, int64_t from, int64_t to, double *time_s, mf_err *e) {
    const shadow *x = shadow_of(d);
    if (from >= x->marks || to >= x->marks || !(x->mark[from] > 0 && x->mark[to] > 0)) {
        return mf_err_set(e, MF_LIBRARY, "shadow: marks are read that have not been reached");
    }
    *time_s = x->mark[to] - x->mark[from];
    return MF_OK;
}

static mf_status prepare(mf_device *d, bool begin, mf_err *e) {
    shadow_of(d)->preparing = begin;
    return wait_for_all(d, e);
}

/* --- plans of products and attention
 * --------------------------------------------------------------
 */

static void gemm_plan(const mf_device_gemm *a, shadow_plan *p) {
    const mf_kernel_gemm *g = &a->g;
    const int64_t word[] = {SHADOW_gemm,    g->form, g->a_dtype, g->b_dtype,
                            g->c_dtype,     g->m,    g->n,       g->k,
                            g->lda,         g->ldb,  g->ldc,     g->accumulate || a->add != NULL,
                            g->bias != NULL};
    memcpy(p->word, word, sizeof word);
}

static void attention_plan(const mf_kernel_attention_shape *s, const mf_device_sequences *q,
                           bool backward, shadow_plan *p) {
    const int64_t word[] = {backward ? SHADOW_attention_grad : SHADOW_attention,
                            s->dtype,
                            s->sequences,
                            s->heads,
                            s->kv_heads,
                            s->qk_dim,
                            s->v_dim,
                            s->window,
                            s->q_row,
                            s->k_row,
                            s->v_row,
                            s->o_row,
                            s->sink != NULL,
                            q->seq_q,
                            q->seq_k,
                            q->keys,
                            q->member,
                            q->members};
    memcpy(p->word, word, sizeof word);
}

/* What libraries do has a plan, which is made while the device prepares. */
static mf_status find_plan(shadow *x, shadow_kind kind, const void *args, mf_err *e) {
    shadow_plan p = {{0}};
    const mf_device_attention *f = args;
    const mf_device_attention_grad *b = args;
    if (kind == SHADOW_gemm) {
        gemm_plan(args, &p);
    } else if (kind == SHADOW_attention) {
        attention_plan(&f->a.shape, &f->s, false, &p);
    } else if (kind == SHADOW_attention_grad) {
        attention_plan(&b->a.shape, &b->s, true, &p);
    } else {
        return MF_OK;
    }
    for (int64_t i = 0; i < x->plans; i++) {
        if (memcmp(&x->plan[i], &p, sizeof p) == 0) {
            return MF_OK;
        }
    }
    if (!x->preparing) {
        return x->o.unprepared ? MF_OK
                               : mf_err_set(e, MF_INTERNAL, "shadow: %s (%s) was not prepared",
                                            shadow_kind_name(kind), x->label);
    }
    if (x->plans == x->plans_allocated) {
        x->plans_allocated = 2 * x->plans_allocated + 32;
        shadow_plan *more = realloc(x->plan, (size_t)x->plans_allocated * sizeof *more);
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
        }
        x->plan = more;
    }
    x->plan[x->plans++] = p;
    return MF_OK;
}

/* --- kernels
 * --------------------------------------------------------------------------------------
 */

/* All that the arguments point at is the device's. */
static mf_status check_operands(const shadow *x, shadow_kind kind, const void *args, mf_err *e) {
    shadow_spans s = {0};
    mf_status status = MF_OK;
    shadow_kernel_spans(kind, args, false, &s);
    for (int k = 0; k < s.count && status == MF_OK; k++) {
        const int64_t size_B = shadow_span_end(&s.span[k]) - s.span[k].begin;
        const shadow_allocation *r = shadow_allocation_of(x, s.span[k].begin, size_B);
        if (r == NULL || !r->device) {
            status = mf_err_set(e, MF_LIBRARY,
                                "shadow: %s (%s) is to %s %lld bytes that are no device memory",
                                shadow_kind_name(kind), x->label,
                                s.span[k].writes ? "write" : "read", (long long)size_B);
        }
    }
    shadow_spans_clear(&s);
    return status;
}

static mf_status kernel(mf_queue *q, shadow_kind kind, const void *args, mf_err *e) {
    shadow *x = shadow_of(q->device);
    mf_status status = check_operands(x, kind, args, e);
    status = status == MF_OK ? find_plan(x, kind, args, e) : status;
    return status != MF_OK || x->preparing
               ? status
               : enter(q, kind, args, shadow_kernel_args_B(kind), NULL, e);
}

#define SHADOW_ONE(entry, type)                                                                    \
    static mf_status enter_##entry(mf_queue *q, const type *a, mf_err *e) {                        \
        return kernel(q, SHADOW_##entry, a, e);                                                    \
    }
SHADOW_KERNELS
#undef SHADOW_ONE

/* --- open and close
 * -------------------------------------------------------------------------------
 */

static void close_shadow(mf_device *d) {
    shadow *x = shadow_of(d);
    mf_err ignored;
    if (x == NULL) {
        return;
    }
    (void)shadow_run(x, NULL, &ignored);
    shadow_unwatch(x);
    shadow_forget(x->capture);
    shadow_drop_recording(d);
    shadow_forget_items(&x->all);
    for (int k = 0; k < SHADOW_QUEUES; k++) {
        free(x->queue[k].chain[0].also.item);
        free(x->queue[k].chain[1].also.item);
    }
    shadow_release_all(x);
    free(x->ready.item);
    free(x->begun.item);
    free(x->lane);
    for (int64_t k = 0; k < x->signals; k++) {
        free(x->signal[k].at.item);
    }
    free(x->signal);
    free(x->mark);
    free(x->plan);
    free(x->images);
    free(x->recorded);
    free(x);
}

static const mf_device_ops table = {
    .name = "shadow",
    .mixed = true,
    .close = close_shadow,
    .describe = describe,
    .allocate = allocate,
    .release = release,
    .allocate_host = allocate_host,
    .release_host = release,
    .used_B = used_B,
    .queue = queue_of,
    .side_queue = side_queue,
    .copy = copy,
    .zero = zero,
    .fill = fill,
    .wait = wait_for_all,
    .order = shadow_order,
    .signal = shadow_signal_down,
    .await = shadow_await,
    .connect = shadow_comm_create,
    .window_open = shadow_window_open,
    .window_close = shadow_window_close,
    .window_dispatch = shadow_window_dispatch,
    .window_combine = shadow_window_combine,
    .point = point,
    .reach = reach,
    .mark = mark,
    .between = between,
    .prepare = prepare,
    .capture_begin = shadow_capture_begin,
    .capture_end = shadow_capture_end,
    .play = shadow_play,
    .forget = shadow_forget,
#define SHADOW_ONE(entry, type) .entry = enter_##entry,
    SHADOW_KERNELS
#undef SHADOW_ONE
        .scratch_B = mf_cuda_scratch_B,
};

static void translate_as(const shadow_options *o, mf_device_ops *ops) {
    ops->mixed = !o->one_type;
    ops->fused_sums = o->fused_sums;
}

mf_status shadow_open(const shadow_options *o, mf_device **out, mf_err *e) {
    shadow *x = calloc(1, sizeof *x);
    *out = NULL;
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    x->o = *o;
    x->random = o->seed;
    x->ops = table;
    translate_as(o, &x->ops);
    x->device.ops = &x->ops;
    for (int k = 0; k < SHADOW_QUEUES; k++) {
        x->queue[k].queue = (mf_queue){.device = &x->device, .stream = &x->queue[k]};
        x->queue[k].index = k;
    }
    shadow_watch(x);
    *out = &x->device;
    return MF_OK;
}

/* --- the CPU in its place ------------------------------------------------------------------------
 */

static mf_status twin_side_queue(mf_device *d, int i, mf_queue **out, mf_err *e) {
    (void)i, (void)e;
    *out = &((shadow_twin *)(void *)d)->queue;
    return MF_OK;
}

static mf_queue *twin_queue(mf_device *d, mf_stream stream) {
    (void)stream;
    return &((shadow_twin *)(void *)d)->queue;
}

mf_device *shadow_twin_open(const shadow_options *o, shadow_twin *t) {
    t->ops = *mf_device_cpu()->ops;
    t->ops.queue = twin_queue;
    t->ops.side_queue = twin_side_queue;
    translate_as(o, &t->ops);
    t->device.ops = &t->ops;
    t->queue = (mf_queue){.device = &t->device};
    return &t->device;
}

void shadow_label(mf_device *d, const char *label) {
    shadow *x = shadow_of(d);
    snprintf(x->label, sizeof x->label, "%s", label);
}

int64_t shadow_left(const mf_device *d) {
    return shadow_of(d)->left;
}

int64_t shadow_awaits(const mf_device *d) {
    return shadow_of(d)->awaits;
}

void shadow_leave_out(mf_device *d, int64_t order, int64_t await) {
    shadow_of(d)->o.no_order = order;
    shadow_of(d)->no_await = await;
}

int64_t shadow_orders(const mf_device *d) {
    return shadow_of(d)->orders;
}
