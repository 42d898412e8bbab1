/* inspect.c - checks what ops read and write, to find the first bad value of a step. */
#include "executor/train/inspect.h"

#include "core/program/lower.h"
#include "core/program/pass_text.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))
/* The square of a larger value overflows FP32, whose largest number is 3.4e38. */
#define LARGEST 1e19f

struct mf_inspect {
    mf_exec *exec;
    const mf_model *model;
    mf_device *device;
    char *copy; /* host memory for a tensor of an asynchronous device */
    size_t copy_B;
    mf_inspect_origin origin;
    mf_status failed; /* error of the device while ops were checked */
    mf_err why;
    char text[320];
};

typedef struct bad_value {
    int64_t row, col;
    float value;
} bad_value;

mf_status mf_inspect_create(mf_exec *x, const mf_model *m, mf_device *d, mf_inspect **out,
                            mf_err *e) {
    mf_inspect *s = calloc(1, sizeof *s);
    *out = s;
    if (s == NULL) {
        return mf_err_set(e, MF_NOMEM, "a step that is looked at: out of memory");
    }
    *s = (mf_inspect){.exec = x, .model = m, .device = d};
    return MF_OK;
}

void mf_inspect_destroy(mf_inspect *s) {
    if (s != NULL) {
        free(s->copy);
    }
    free(s);
}

/* --- numbers ------------------------------------------------------------------------------------
 */

static float number_at(const void *data, mf_kernel_dtype dtype, int64_t i) {
    uint32_t bits;
    if (dtype == MF_KERNEL_BF16) {
        bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    } else {
        bits = ((const uint32_t *)data)[i];
    }
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool find_bad(const void *data, mf_kernel_dtype dtype, int64_t rows, int64_t cols,
                     bad_value *out) {
    for (int64_t i = 0; i < rows * cols; i++) {
        const float value = number_at(data, dtype, i);
        if (!(fabsf(value) <= LARGEST)) {
            *out = (bad_value){i / cols, i % cols, value};
            return true;
        }
    }
    return false;
}

/* The tensor in host memory, after all work of the device; NULL when it cannot be read. */
static const void *on_host(mf_inspect *s, mf_queue *q, const void *data, size_t size_B) {
    const mf_device_ops *device = s->device->ops;
    if (device->on_host) {
        return data;
    }
    if (s->copy_B < size_B) {
        free(s->copy);
        s->copy = malloc(size_B);
        s->copy_B = s->copy != NULL ? size_B : 0;
    }
    if (s->copy == NULL) {
        s->failed = mf_err_set(&s->why, MF_NOMEM, "a step that is looked at: out of memory");
        return NULL;
    }
    s->failed = device->copy(q, s->copy, data, size_B, &s->why);
    s->failed = s->failed == MF_OK ? device->wait(s->device, &s->why) : s->failed;
    return s->failed == MF_OK ? s->copy : NULL;
}

typedef struct number_text {
    char s[24];
} number_text;

/* "nan" without a sign. */
static number_text text_of(float value) {
    number_text t = {"nan"};
    if (!isnan(value)) {
        snprintf(t.s, sizeof t.s, "%g", (double)value);
    }
    return t;
}

/* --- operands -----------------------------------------------------------------------------------
 */

static const mf_tensor *tensor_of(const mf_exec_op *op, int16_t t) {
    return &op->block->tensors[t];
}

/* Is it a tensor that is not checked: indices, or attention's statistics, which are -inf where a
 * row sees no key? Goes by name, as a recomputed tensor does not say what made it. */
static bool is_beside(const mf_block *b, const mf_tensor *t) {
    bool found = false;
    for (int16_t i = 0; i < b->ntensors && !found; i++) {
        const mf_tensor *x = &b->tensors[i];
        const mf_op *from = x->producer >= 0 ? &b->ops[x->producer] : NULL;
        const bool attention = from != NULL && (from->kind == MF_OP_ATTENTION_FWD ||
                                                from->kind == MF_OP_ATTENTION_MERGE);
        found = (x->indices || (attention && from->out[0] != i)) && strcmp(x->name, t->name) == 0;
    }
    return found;
}

/* Does the tensor hold numbers, in the device's memory? */
static bool has_numbers(const mf_exec_op *op, const mf_tensor *t, const mf_exec_tensor *at) {
    const bool wide = t->element_B == 4.0, narrow = t->element_B == 2.0;
    return at->data != NULL && !is_beside(op->block, t) && !t->gather_mark && (wide || narrow) &&
           t->rows > 0 && t->cols > 0;
}

static int64_t rows_of(const mf_tensor *t, const mf_exec_tensor *at) {
    return t->routed ? at->rows_max : t->rows;
}

static bool is_bad(mf_inspect *s, const mf_exec_op *op, const mf_tensor *t,
                   const mf_exec_tensor *at, bad_value *out) {
    if (!has_numbers(op, t, at) || s->failed != MF_OK) {
        return false;
    }
    const int64_t rows = rows_of(t, at);
    const size_t size_B = (size_t)(rows * t->cols) * mf_kernel_dtype_B(at->dtype);
    const void *data = on_host(s, op->queue, at->data, size_B);
    return data != NULL && find_bad(data, at->dtype, rows, t->cols, out);
}

static bool overlaps(const mf_exec_tensor *a, const mf_exec_tensor *b) {
    const char *x = a->data, *y = b->data;
    const int64_t x_B = a->rows_max * a->cols * (int64_t)mf_kernel_dtype_B(a->dtype);
    const int64_t y_B = b->rows_max * b->cols * (int64_t)mf_kernel_dtype_B(b->dtype);
    return x != NULL && y != NULL && x < y + y_B && y < x + x_B;
}

/* May the output be cleared before the op, because its old values are not used? Ops leave rows that
 * are not routed here, and other ops' pieces, as they are. */
static bool may_clear(const mf_exec_op *op, int k) {
    const mf_exec_tensor *out = &op->out[k];
    const mf_tensor *t = tensor_of(op, op->op->out[k]);
    bool free_of_others = has_numbers(op, t, out) && op->first[k] && op->sum[k].data == NULL &&
                          t->class != MF_TENSOR_GRADIENT;
    for (int i = 0; i < op->op->nin && free_of_others && i < op->nin; i++) {
        free_of_others = !overlaps(out, &op->in[i]);
    }
    return free_of_others;
}

void mf_inspect_before(mf_inspect *s, const mf_exec_op *op) {
    for (int k = 0; op->block != NULL && k < op->op->nout && s->failed == MF_OK; k++) {
        if (may_clear(op, k)) {
            const mf_exec_tensor *out = &op->out[k];
            s->failed = s->device->ops->zero(
                op->queue, out->data,
                (size_t)(out->rows_max * out->cols) * mf_kernel_dtype_B(out->dtype), &s->why);
        }
    }
}

/* --- what is found ------------------------------------------------------------------------------
 */

static void place_text(const mf_inspect *s, int position, const char *label, char *out,
                       size_t size) {
    const mf_position_kind kind = mf_position_kind_of(s->model, position);
    if (kind == MF_POS_LAYER || kind == MF_POS_MTP) {
        char place[32];
        mf_position_text(s->model, position, place, sizeof place);
        snprintf(out, size, "%s (%s)", place, label);
    } else {
        snprintf(out, size, "%s", label);
    }
}

static void add_text(mf_inspect *s, const char *text) {
    const size_t length = strlen(s->text);
    snprintf(s->text + length, sizeof s->text - length, "%s", text);
}

/* Checks the op's weights and other inputs, which no op of this rank has made. */
static void find_cause(mf_inspect *s, const mf_exec_op *op) {
    bad_value bad;
    s->origin = op->op->group == MF_GROUP_NONE ? MF_INSPECT_MADE : MF_INSPECT_RECEIVED;
    for (int k = 0; k < op->nin; k++) {
        const mf_tensor *t = tensor_of(op, op->op->in[k]);
        if (!is_bad(s, op, t, &op->in[k], &bad)) {
            continue;
        }
        char text[120];
        snprintf(text, sizeof text, "; so is its %s %s at row %lld, column %lld (%s)",
                 t->class == MF_TENSOR_WEIGHT ? "weight" : "input", t->name, LL(bad.row),
                 LL(bad.col), text_of(bad.value).s);
        add_text(s, text);
        s->origin = t->class == MF_TENSOR_WEIGHT ? MF_INSPECT_MADE : MF_INSPECT_RECEIVED;
        return;
    }
}

void mf_inspect_after(mf_inspect *s, const mf_exec_op *op) {
    bad_value bad;
    char place[96];
    for (int k = 0; op->block != NULL && k < op->op->nout && s->origin == MF_INSPECT_NOTHING; k++) {
        const mf_tensor *t = tensor_of(op, op->op->out[k]);
        if (!is_bad(s, op, t, &op->out[k], &bad)) {
            continue;
        }
        place_text(s, op->position, op->block->label, place, sizeof place);
        snprintf(s->text, sizeof s->text,
                 "%s, %s, op %s: its output %s is %s at row %lld, column %lld", place,
                 mf_pass_text(op->op->pass), op->op->name, t->name, text_of(bad.value).s,
                 LL(bad.row), LL(bad.col));
        find_cause(s, op);
    }
}

/* Sums over ranks are not ops of a block: checks the gradients themselves. */
static void look_at_gradients(mf_inspect *s) {
    const mf_params *list = mf_exec_params(s->exec);
    mf_queue *q = s->device->ops->queue(s->device, MF_STREAM_COMPUTE);
    for (int i = 0; i < list->count && s->failed == MF_OK; i++) {
        int64_t first, count;
        bad_value bad;
        const float *g = mf_exec_own_gradient(s->exec, i, &first, &count);
        const void *data = count > 0 ? on_host(s, q, g, (size_t)count * sizeof *g) : NULL;
        if (data != NULL && find_bad(data, MF_KERNEL_F32, 1, count, &bad)) {
            char place[96];
            place_text(s, list->list[i].position, "its position", place, sizeof place);
            s->origin = MF_INSPECT_SUMMED;
            snprintf(s->text, sizeof s->text,
                     "%s: the gradient of %s, summed over ranks, is %s at element %lld", place,
                     list->list[i].name, text_of(bad.value).s, LL(first + bad.col));
            return;
        }
    }
}

mf_status mf_inspect_end(mf_inspect *s, mf_inspect_origin *origin, char *text, size_t size,
                         mf_err *e) {
    if (s->origin == MF_INSPECT_NOTHING) {
        look_at_gradients(s);
    }
    *origin = s->origin;
    snprintf(text, size, "%s", s->text);
    return s->failed == MF_OK ? MF_OK : mf_err_set(e, s->failed, "%s", s->why.text);
}
