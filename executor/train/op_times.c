/* op_times.c - a clock around every op, sums over ranks, op_times.json. */
#include "executor/train/op_times.h"

#include "core/base/clock.h"
#include "core/base/json.h"
#include "core/base/json_write.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/comm/comm_status.h"
#include "executor/files/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The times of one op template; `step` sums are added when the step is over. */
typedef struct tally {
    double sum_s, min_s, max_s, count;
} tally;

typedef struct named {
    const char *name; /* static */
    tally done, step;
} named;

/* An op of an asynchronous device: between marks 2i and 2i + 1. */
typedef struct marked {
    const mf_block *b; /* NULL: outside blocks */
    const mf_op *op;
} marked;

struct mf_op_timer {
    const mf_program *p;
    mf_device *device;
    mf_queue *queue;
    bool off;
    marked *marks; /* of the step that runs */
    int64_t nmarks, allocated;
    int *first; /* [nblocks + 1] */
    tally *done, *step;
    named step_end[MF_OP_TIMES_STEP_END];
    int step_end_ops;
    double started_s, step_time_s;
    int64_t steps;
};

static int ops_of(const mf_op_timer *t) {
    return t->first[t->p->nblocks];
}

mf_status mf_op_timer_create(const mf_program *p, mf_device *device, mf_op_timer **out, mf_err *e) {
    *out = NULL;
    mf_op_timer *t = calloc(1, sizeof *t);
    if (t != NULL) {
        t->p = p;
        t->device = device;
        t->queue = device->ops->queue(device, MF_STREAM_COMPUTE);
        t->first = calloc((size_t)p->nblocks + 1, sizeof *t->first);
    }
    if (t == NULL || t->first == NULL) {
        free(t);
        return mf_err_set(e, MF_NOMEM, "op times: out of memory");
    }
    for (int i = 0; i < p->nblocks; i++) {
        t->first[i + 1] = t->first[i] + p->blocks[i]->nops;
    }
    t->done = calloc((size_t)ops_of(t) + 1, sizeof *t->done);
    t->step = calloc((size_t)ops_of(t) + 1, sizeof *t->step);
    if (t->done == NULL || t->step == NULL) {
        mf_op_timer_destroy(t);
        return mf_err_set(e, MF_NOMEM, "op times: out of memory");
    }
    *out = t;
    return MF_OK;
}

void mf_op_timer_destroy(mf_op_timer *t) {
    if (t != NULL) {
        free(t->marks);
        free(t->first);
        free(t->done);
        free(t->step);
        free(t);
    }
}

void mf_op_timer_use(mf_op_timer *t, bool on) {
    t->off = !on;
}

/* Where the mark before the i-th op of a step stands; the one behind it follows. */
static int64_t mark_of(int64_t i) {
    return MF_DEVICE_STEP_MARKS + 2 * i;
}

/* A mark that cannot be made ends the timing, not the run. */
static void put_mark(mf_op_timer *t, int64_t slot) {
    mf_err ignored;
    t->off |= t->device->ops->mark(t->queue, slot, &ignored) != MF_OK;
}

void mf_op_timer_begin(mf_op_timer *t) {
    t->started_s = mf_clock_s();
    if (t->device->ops->mark != NULL && !t->off) {
        put_mark(t, mark_of(t->nmarks));
    }
}

static void add(tally *to, const tally *one) {
    if (one->count > 0) {
        to->min_s = to->count > 0 && to->min_s < one->min_s ? to->min_s : one->min_s;
        to->max_s = to->max_s > one->max_s ? to->max_s : one->max_s;
        to->sum_s += one->sum_s;
        to->count += one->count;
    }
}

static void add_step_end(mf_op_timer *t, const char *name, const tally *one) {
    int i = 0;
    while (i < t->step_end_ops && strcmp(t->step_end[i].name, name) != 0) {
        i++;
    }
    if (i < MF_OP_TIMES_STEP_END) {
        t->step_end[i].name = name;
        t->step_end_ops = i < t->step_end_ops ? t->step_end_ops : i + 1;
        add(&t->step_end[i].step, one);
    }
}

static void tell(mf_op_timer *t, const mf_block *b, const mf_op *op, double took) {
    const tally one = {took, took, took, 1.0};
    if (b == NULL) {
        add_step_end(t, op->name, &one);
        return;
    }
    for (int i = 0; i < t->p->nblocks; i++) {
        if (t->p->blocks[i] == b) {
            add(&t->step[t->first[i] + (op - b->ops)], &one);
            return;
        }
    }
}

/* Marks the end of an op, which is described only now. */
static void end_marked(mf_op_timer *t, const mf_block *b, const mf_op *op) {
    if (t->nmarks == t->allocated) {
        int64_t allocated = 2 * t->allocated + 4096;
        marked *more = realloc(t->marks, (size_t)allocated * sizeof *more);
        if (more == NULL) {
            t->off = true;
            return;
        }
        t->marks = more;
        t->allocated = allocated;
    }
    if (!t->off) {
        t->marks[t->nmarks] = (marked){b, op};
        put_mark(t, mark_of(t->nmarks) + 1);
        t->nmarks++;
    }
}

void mf_op_timer_end(mf_op_timer *t, const mf_block *b, const mf_op *op) {
    double now = mf_clock_s(), took = now - t->started_s;
    t->started_s = now;
    if (t->device->ops->mark != NULL) {
        end_marked(t, b, op);
    } else if (!t->off) {
        tell(t, b, op, took);
    }
}

static void read_marks(mf_op_timer *t) {
    mf_err ignored;
    for (int64_t i = 0; i < t->nmarks; i++) {
        double took = 0.0;
        if (t->device->ops->between(t->device, mark_of(i), mark_of(i) + 1, &took, &ignored) ==
            MF_OK) {
            tell(t, t->marks[i].b, t->marks[i].op, took);
        }
    }
    t->nmarks = 0;
}

void mf_op_timer_step(mf_op_timer *t, double step_time_s, bool keep) {
    read_marks(t);
    keep = keep && !t->off;
    for (int i = 0; keep && i < ops_of(t); i++) {
        add(&t->done[i], &t->step[i]);
    }
    for (int i = 0; i < t->step_end_ops; i++) {
        if (keep) {
            add(&t->step_end[i].done, &t->step_end[i].step);
        }
        t->step_end[i].step = (tally){0};
    }
    memset(t->step, 0, (size_t)ops_of(t) * sizeof *t->step);
    t->steps += keep;
    t->step_time_s += keep ? step_time_s : 0.0;
}

/* --- over ranks, and out -----------------------------------------------------------------------
 */

static mf_status sum_ranks(mf_op_timer *t, mf_comm *c, mf_err *e) {
    int n = ops_of(t);
    double *sums = calloc((size_t)n * 4 + 1, sizeof *sums);
    bool allocated = sums != NULL;
    mf_status status =
        mf_comm_agree(c, allocated ? MF_OK : mf_err_set(e, MF_NOMEM, "op times: out of memory"), e);
    if (sums == NULL || status != MF_OK) {
        free(sums);
        return status;
    }
    double *most = sums + 2 * (size_t)n;
    for (int i = 0; i < n && status == MF_OK; i++) {
        sums[2 * i] = t->done[i].sum_s;
        sums[2 * i + 1] = t->done[i].count;
        most[2 * i] = t->done[i].count > 0 ? -t->done[i].min_s : -1e30;
        most[2 * i + 1] = t->done[i].max_s;
    }
    if (status == MF_OK) {
        status = mf_comm_all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_SUM, sums, 2 * n, e);
    }
    if (status == MF_OK) {
        status = mf_comm_all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, most, 2 * n, e);
    }
    for (int i = 0; i < n && status == MF_OK; i++) {
        t->done[i] = (tally){sums[2 * i], -most[2 * i], most[2 * i + 1], sums[2 * i + 1]};
    }
    free(sums);
    return status;
}

static const char *pass_text(int pass) {
    return pass == MF_PASS_F   ? "forward"
           : pass == MF_PASS_R ? "recomputation"
           : pass == MF_PASS_B ? "input_gradient"
                               : "weight_gradient";
}

static void write_op(mf_json_writer *w, const mf_op_timer *t, int block, int op) {
    const mf_block *b = t->p->blocks[block];
    const tally *d = &t->done[t->first[block] + op];
    if (d->count == 0) {
        return;
    }
    mf_json_write_object(w, NULL, true);
    mf_json_write_i64(w, "block", block);
    mf_json_write_i64(w, "op", op);
    mf_json_write_string(w, "label", b->label);
    mf_json_write_string(w, "name", b->ops[op].name);
    mf_json_write_string(w, "kind", mf_op_text((mf_op_kind)b->ops[op].kind));
    mf_json_write_string(w, "pass", pass_text(b->ops[op].pass));
    mf_json_write_i64(w, "count", (int64_t)d->count);
    mf_json_write_f64(w, "mean_s", d->sum_s / d->count);
    mf_json_write_f64(w, "min_s", d->min_s);
    mf_json_write_f64(w, "max_s", d->max_s);
    mf_json_write_end(w);
}

static mf_status write_file(const mf_op_timer *t, int64_t ranks, int64_t first_step,
                            const char *path, mf_err *e) {
    mf_json_writer w;
    char model[20];
    char *text = NULL;
    size_t length = 0;
    mf_checkpoint_fingerprint(&t->p->model, model);
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "format", MF_OP_TIMES_FORMAT);
    mf_json_write_i64(&w, "version", MF_OP_TIMES_VERSION);
    mf_json_write_string(&w, "model_fingerprint", model);
    mf_json_write_f64(&w, "aux_coef", t->p->model.aux_loss_coef);
    mf_json_write_string(&w, "aux_scope", mf_aux_scope_text(t->p->layout.aux_scope));
    mf_json_write_i64(&w, "ranks", ranks);
    mf_json_write_i64(&w, "first_step", first_step);
    mf_json_write_i64(&w, "steps", t->steps);
    mf_json_write_f64(&w, "step_time_s", t->steps > 0 ? t->step_time_s / (double)t->steps : 0.0);
    mf_json_write_array(&w, "ops", false);
    for (int i = 0; i < t->p->nblocks; i++) {
        for (int k = 0; k < t->p->blocks[i]->nops; k++) {
            write_op(&w, t, i, k);
        }
    }
    mf_json_write_end(&w);
    mf_json_write_array(&w, "once", false);
    for (int i = 0; i < t->step_end_ops; i++) {
        if (t->step_end[i].done.count > 0) {
            mf_json_write_object(&w, NULL, true);
            mf_json_write_string(&w, "name", t->step_end[i].name);
            mf_json_write_i64(&w, "count", (int64_t)t->step_end[i].done.count);
            mf_json_write_f64(&w, "sum_s", t->step_end[i].done.sum_s);
            mf_json_write_end(&w);
        }
    }
    mf_json_write_end(&w);
    mf_json_write_end(&w);
    mf_status status = mf_json_writer_finish(&w, &text, &length, e);
    status = status == MF_OK ? mf_file_write(path, text, length, e) : status;
    free(text);
    return status;
}

mf_status mf_op_timer_write(mf_op_timer *t, mf_comm *c, int64_t first_step, const char *path,
                            mf_err *e) {
    mf_status status = sum_ranks(t, c, e);
    if (status == MF_OK && mf_comm_rank(c) == 0) {
        status = write_file(t, mf_comm_group_size(c, MF_GROUP_WORLD), first_step, path, e);
    }
    return mf_comm_agree(c, status, e);
}

/* --- in ----------------------------------------------------------------------------------------
 */

void mf_op_times_clear(mf_op_times *t) {
    free(t->row);
    *t = (mf_op_times){0};
}

static mf_status read_row(const mf_json_value *v, mf_op_time_row *r, mf_err *e) {
    const char *label = "", *name = "", *kind = "", *pass = "";
    int64_t block = 0, op = 0;
    mf_status s = mf_json_want(v, MF_JSON_OBJECT, e);
    s = s == MF_OK ? mf_json_get_i64(v, "block", 0, 1000000, &block, e) : s;
    s = s == MF_OK ? mf_json_get_i64(v, "op", 0, 1000000, &op, e) : s;
    s = s == MF_OK ? mf_json_get_string(v, "label", &label, e) : s;
    s = s == MF_OK ? mf_json_get_string(v, "name", &name, e) : s;
    s = s == MF_OK ? mf_json_get_string(v, "kind", &kind, e) : s;
    s = s == MF_OK ? mf_json_get_string(v, "pass", &pass, e) : s;
    s = s == MF_OK ? mf_json_get_i64(v, "count", 1, INT64_C(1) << 52, &r->count, e) : s;
    s = s == MF_OK ? mf_json_get_f64(v, "mean_s", 0, 1e9, &r->mean_s, e) : s;
    s = s == MF_OK ? mf_json_get_f64(v, "min_s", 0, 1e9, &r->min_s, e) : s;
    s = s == MF_OK ? mf_json_get_f64(v, "max_s", 0, 1e9, &r->max_s, e) : s;
    r->block = (int)block;
    r->op = (int)op;
    snprintf(r->label, sizeof r->label, "%s", label);
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->kind, sizeof r->kind, "%s", kind);
    snprintf(r->pass, sizeof r->pass, "%s", pass);
    return s;
}

static mf_status read_step_end(const mf_json_value *root, mf_op_times *out, mf_err *e) {
    const mf_json_value *list = mf_json_find(root, "once");
    if (list == NULL || mf_json_value_type(list) != MF_JSON_ARRAY ||
        mf_json_size(list) > MF_OP_TIMES_STEP_END) {
        return mf_json_fail(root, e, "\"once\": expected a short list");
    }
    mf_status s = MF_OK;
    out->step_end_count = (int)mf_json_size(list);
    for (int i = 0; i < out->step_end_count && s == MF_OK; i++) {
        const mf_json_value *v = mf_json_at(list, (size_t)i);
        const char *name = "";
        mf_op_times_step_end *o = &out->step_end[i];
        s = mf_json_want(v, MF_JSON_OBJECT, e);
        s = s == MF_OK ? mf_json_get_string(v, "name", &name, e) : s;
        s = s == MF_OK ? mf_json_get_i64(v, "count", 1, INT64_C(1) << 52, &o->count, e) : s;
        s = s == MF_OK ? mf_json_get_f64(v, "sum_s", 0, 1e12, &o->sum_s, e) : s;
        snprintf(o->name, sizeof o->name, "%s", name);
    }
    return s;
}

static mf_status read_body(const mf_json_value *root, mf_op_times *out, mf_err *e) {
    const char *format = "", *model = "", *scope = "";
    int64_t version = 0;
    mf_status s = mf_json_want(root, MF_JSON_OBJECT, e);
    s = s == MF_OK ? mf_json_get_string(root, "format", &format, e) : s;
    s = s == MF_OK ? mf_json_get_i64(root, "version", 1, 1000, &version, e) : s;
    if (s == MF_OK && (strcmp(format, MF_OP_TIMES_FORMAT) != 0 || version != MF_OP_TIMES_VERSION)) {
        return mf_json_fail(root, e, "expected %s version %d", MF_OP_TIMES_FORMAT,
                            MF_OP_TIMES_VERSION);
    }
    s = s == MF_OK ? mf_json_get_string(root, "model_fingerprint", &model, e) : s;
    s = s == MF_OK ? mf_json_get_i64(root, "ranks", 1, 1 << 24, &out->ranks, e) : s;
    s = s == MF_OK ? mf_json_opt_i64(root, "first_step", 1, INT64_C(1) << 52, &out->first_step, e)
                   : s;
    s = s == MF_OK ? mf_json_get_i64(root, "steps", 0, INT64_C(1) << 52, &out->steps, e) : s;
    s = s == MF_OK ? mf_json_get_f64(root, "step_time_s", 0, 1e9, &out->step_time_s, e) : s;
    s = s == MF_OK ? mf_json_get_f64(root, "aux_coef", 0, 1e6, &out->aux_coef, e) : s;
    s = s == MF_OK ? mf_json_get_string(root, "aux_scope", &scope, e) : s;
    if (s == MF_OK && mf_aux_scope_parse(scope, &out->aux_scope, NULL) != MF_OK) {
        s = mf_json_fail(mf_json_find(root, "aux_scope"), e,
                         "\"aux_scope\": expected micro-batch, sequence or global, got \"%.40s\"",
                         scope);
    }
    const mf_json_value *ops = s == MF_OK ? mf_json_find(root, "ops") : NULL;
    if (s != MF_OK) {
        return s;
    }
    if (ops == NULL || mf_json_value_type(ops) != MF_JSON_ARRAY) {
        return mf_json_fail(root, e, "\"ops\": expected a list");
    }
    snprintf(out->model, sizeof out->model, "%s", model);
    out->count = (int64_t)mf_json_size(ops);
    out->row = calloc((size_t)out->count + 1, sizeof *out->row);
    if (out->row == NULL) {
        return mf_err_set(e, MF_NOMEM, "op times: out of memory");
    }
    for (int64_t i = 0; i < out->count && s == MF_OK; i++) {
        s = read_row(mf_json_at(ops, (size_t)i), &out->row[i], e);
    }
    return s == MF_OK ? read_step_end(root, out, e) : s;
}

mf_status mf_op_times_load(const char *path, mf_op_times *out, mf_err *e) {
    mf_json *doc = NULL;
    *out = (mf_op_times){0};
    mf_status status = mf_json_load(path, &doc, e);
    status = status == MF_OK ? read_body(mf_json_root(doc), out, e) : status;
    mf_json_destroy(doc);
    return status;
}
