/* checkpoint_read.c - pieces of all ranks' files, found by hub tensor, checked before use. */
#include "executor/checkpoint/checkpoint_manifest.h"
#include "executor/checkpoint/checkpoint_pieces.h"
#include "executor/files/files.h"
#include "executor/step/exec.h"

#include "core/base/crc32c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

typedef struct fragment {
    mf_checkpoint_piece at; /* kind, tensor, row, col, rows, cols */
    uint32_t crc;
    bool checked;
    const mf_st_tensor *data;
} fragment;

struct mf_checkpoint {
    mf_checkpoint_manifest manifest;
    mf_safetensors **set; /* [files] */
    fragment *list;       /* by kind, tensor, place */
    size_t count;
};

void mf_checkpoint_close(mf_checkpoint *c) {
    if (c == NULL) {
        return;
    }
    for (int64_t i = 0; c->set != NULL && i < c->manifest.files; i++) {
        mf_safetensors_close(c->set[i]);
    }
    free(c->set);
    free(c->list);
    mf_checkpoint_manifest_clear(&c->manifest);
    free(c);
}

const mf_train_progress *mf_checkpoint_progress(const mf_checkpoint *c) {
    return &c->manifest.progress;
}

/* --- opening -----------------------------------------------------------------------------------
 */

static int by_tensor(const void *a, const void *b) {
    const fragment *x = a, *y = b;
    int order = x->at.kind - y->at.kind;
    order = order != 0 ? order : strcmp(x->at.tensor, y->at.tensor);
    if (order != 0) {
        return order;
    }
    return x->at.row != y->at.row ? (x->at.row < y->at.row ? -1 : 1)
                                  : (x->at.col > y->at.col) - (x->at.col < y->at.col);
}

static mf_status open_file(mf_checkpoint *c, const char *folder, int64_t i, mf_err *e) {
    char path[4096], name[40];
    const mf_checkpoint_file *want = &c->manifest.file[i];
    mf_checkpoint_file found = {0};
    mf_checkpoint_file_name(i, name);
    if (!mf_path_join(path, sizeof path, folder, name, NULL)) {
        return mf_err_set(e, MF_IO, "%s: path too long", folder);
    }
    mf_status status = mf_checkpoint_file_look(path, &found, e);
    if (status != MF_OK) {
        return status;
    }
    if (found.size_B != want->size_B) {
        return mf_err_set(e, MF_DAMAGED, "%s: offset %lld: %lld bytes, the manifest says %lld",
                          path, LL(found.size_B < want->size_B ? found.size_B : want->size_B),
                          LL(found.size_B), LL(want->size_B));
    }
    if (found.header_crc != want->header_crc) {
        return mf_err_set(e, MF_DAMAGED, "%s: offset 0: the header's CRC-32C is %08x, not %08x",
                          path, found.header_crc, want->header_crc);
    }
    status = mf_safetensors_open(path, &c->set[i], e);
    if (status == MF_OK && (int64_t)mf_safetensors_count(c->set[i]) != want->tensors) {
        status = mf_err_set(e, MF_DAMAGED, "%s: %zu tensors, the manifest says %lld", path,
                            mf_safetensors_count(c->set[i]), LL(want->tensors));
    }
    return status;
}

static mf_status add_fragments(mf_checkpoint *c, const mf_safetensors *s, mf_err *e) {
    for (size_t i = 0; i < mf_safetensors_count(s); i++) {
        fragment *f = &c->list[c->count];
        const mf_st_tensor *t = mf_safetensors_at(s, i);
        if (!mf_checkpoint_parse_name(t->name, &f->at, &f->crc) || t->dims != 2 ||
            t->dtype > MF_ST_BF16) {
            return mf_err_set(e, MF_DAMAGED, "%s: offset %lld: tensor \"%.200s\" is no piece",
                              t->file, LL(t->offset), t->name);
        }
        f->at.rows = t->shape[0];
        f->at.cols = t->shape[1];
        f->data = t;
        c->count++;
    }
    return MF_OK;
}

/* First fragment of (kind, tensor); *end is behind the last. */
static size_t find(const mf_checkpoint *c, int kind, const char *tensor, size_t *end) {
    size_t low = 0, high = c->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const mf_checkpoint_piece *at = &c->list[middle].at;
        bool before = at->kind != kind ? at->kind < kind : strcmp(at->tensor, tensor) < 0;
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    *end = low;
    while (*end < c->count && c->list[*end].at.kind == kind &&
           strcmp(c->list[*end].at.tensor, tensor) == 0) {
        ++*end;
    }
    return low;
}

typedef struct cover {
    const mf_checkpoint *c;
    size_t claimed;
    int64_t experts;
    mf_status status;
    mf_err *e;
} cover;

static int check_cover(const mf_model_tensor *t, void *user) {
    cover *w = user;
    mf_checkpoint_slice s;
    bool slice = mf_checkpoint_slice_of(t, &s);
    if (slice && s.expert > 0) {
        return 0; /* counted with the first */
    }
    const char *name = slice ? s.tensor : t->name;
    int64_t wanted = t->rows * t->cols * (slice ? w->experts : 1);
    for (int kind = 0; kind < (t->buffer ? 1 : MF_EXEC_STATES); kind++) {
        size_t end, i = find(w->c, kind, name, &end);
        int64_t elements = 0;
        w->claimed += end - i;
        for (; i < end; i++) {
            elements += w->c->list[i].at.rows * w->c->list[i].at.cols;
        }
        if (elements != wanted) {
            w->status =
                mf_err_set(w->e, MF_DAMAGED, "the pieces of \"%s\" hold %lld of %lld elements",
                           name, LL(elements), LL(wanted));
            return 1;
        }
    }
    return 0;
}

static mf_status open_all(mf_checkpoint *c, const char *path, const mf_model *m, mf_err *e) {
    char own[20];
    size_t total = 0;
    mf_checkpoint_fingerprint(m, own);
    if (strcmp(own, c->manifest.model) != 0) {
        return mf_err_set(e, MF_INPUT, "it was written for another model than %s", m->name);
    }
    c->set = calloc((size_t)c->manifest.files, sizeof(mf_safetensors *));
    if (c->set == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status status = MF_OK;
    for (int64_t i = 0; i < c->manifest.files && status == MF_OK; i++) {
        status = open_file(c, path, i, e);
        total += status == MF_OK ? mf_safetensors_count(c->set[i]) : 0;
    }
    if (status != MF_OK) {
        return status;
    }
    c->list = calloc(total + 1, sizeof *c->list);
    if (c->list == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    for (int64_t i = 0; i < c->manifest.files && status == MF_OK; i++) {
        status = add_fragments(c, c->set[i], e);
    }
    if (status != MF_OK) {
        return status;
    }
    qsort(c->list, c->count, sizeof *c->list, by_tensor);
    cover w = {.c = c, .experts = m->experts, .e = e};
    mf_model_tensors(m, check_cover, &w);
    if (w.status == MF_OK && w.claimed != c->count) {
        return mf_err_set(e, MF_DAMAGED, "%zu of %zu pieces belong to no tensor of the model",
                          c->count - w.claimed, c->count);
    }
    return w.status;
}

mf_status mf_checkpoint_open(const char *path, const mf_model *m, mf_checkpoint **out, mf_err *e) {
    *out = NULL;
    mf_checkpoint *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return mf_err_set(e, MF_NOMEM, "checkpoint: out of memory");
    }
    mf_status status = mf_checkpoint_manifest_read(path, &c->manifest, e);
    status =
        status == MF_OK ? mf_checkpoint_check_name(path, c->manifest.progress.step, e) : status;
    status = status == MF_OK ? open_all(c, path, m, e) : status;
    if (status != MF_OK) {
        mf_checkpoint_close(c);
        return mf_err_prefix(e, "checkpoint %s", path);
    }
    *out = c;
    return MF_OK;
}

/* --- reading -----------------------------------------------------------------------------------
 */

static mf_status check(fragment *f, mf_err *e) {
    const mf_st_tensor *t = f->data;
    if (f->checked) {
        return MF_OK;
    }
    uint32_t found = mf_crc32c(0, t->data, (size_t)(t->count * mf_st_dtype_B(t->dtype)));
    if (found != f->crc) {
        return mf_err_set(
            e, MF_DAMAGED, "%s: offset %lld: tensor \"%s\": the CRC-32C of its %lld bytes is %08x",
            t->file, LL(t->offset), t->name, LL(t->count * mf_st_dtype_B(t->dtype)), found);
    }
    mf_status status = mf_safetensors_check_finite(t, e);
    f->checked = status == MF_OK;
    if (status != MF_OK && e != NULL) {
        e->status = MF_DAMAGED;
    }
    return status == MF_OK ? MF_OK : MF_DAMAGED;
}

/* A rectangle of a hub tensor that is wanted, and where its elements go. */
typedef struct wanted {
    int64_t row, col, rows, cols;
    int64_t at;         /* element of `out` that its first one is */
    int64_t first, end; /* of out, those that are wanted */
    char *out;          /* element `first` */
    mf_kernel_dtype dtype;
} wanted;

static void put_value(const wanted *w, int64_t at, float v) {
    if (w->dtype == MF_KERNEL_BF16) {
        ((uint16_t *)(void *)w->out)[at - w->first] = mf_kernel_bf16_round(v);
    } else {
        memcpy(w->out + 4 * (at - w->first), &v, 4);
    }
}

/* Elements that the fragment gave. */
static int64_t copy(const fragment *f, const wanted *w) {
    const mf_checkpoint_piece *p = &f->at;
    int64_t row = p->row > w->row ? p->row : w->row, copied = 0;
    int64_t row_end = p->row + p->rows < w->row + w->rows ? p->row + p->rows : w->row + w->rows;
    int64_t col = p->col > w->col ? p->col : w->col;
    int64_t col_end = p->col + p->cols < w->col + w->cols ? p->col + p->cols : w->col + w->cols;
    for (int64_t r = row; r < row_end; r++) {
        for (int64_t c = col; c < col_end; c++) {
            int64_t to = w->at + (r - w->row) * w->cols + c - w->col;
            if (to >= w->first && to < w->end) {
                put_value(w, to, mf_st_get(f->data, (r - p->row) * p->cols + c - p->col));
                copied++;
            }
        }
    }
    return copied;
}

static bool touches(const mf_checkpoint_piece *p, const wanted *w) {
    return p->row < w->row + w->rows && w->row < p->row + p->rows && p->col < w->col + w->cols &&
           w->col < p->col + p->cols;
}

static mf_status read_rectangle(mf_checkpoint *c, int kind, const char *tensor, const wanted *w,
                                mf_err *e) {
    size_t end, i = find(c, kind, tensor, &end);
    int64_t a = w->at > w->first ? w->at : w->first, copied = 0;
    int64_t b = w->at + w->rows * w->cols < w->end ? w->at + w->rows * w->cols : w->end;
    mf_status status = MF_OK;
    for (; i < end && a < b && status == MF_OK; i++) {
        if (touches(&c->list[i].at, w)) {
            status = check(&c->list[i], e);
            copied += status == MF_OK ? copy(&c->list[i], w) : 0;
        }
    }
    if (status == MF_OK && a < b && copied != b - a) {
        status = mf_err_set(e, MF_DAMAGED, "the pieces of \"%s\" give %lld of %lld elements",
                            tensor, LL(copied), LL(b - a));
    }
    return status;
}

static mf_status load_param(mf_checkpoint *c, mf_exec *x, int i, mf_err *e) {
    const mf_param *q = &x->params.list[i];
    mf_param_piece p;
    mf_exec_state s;
    mf_status status = mf_exec_state_of(x, i, &s, e);
    for (int k = 0; s.count > 0 && mf_param_piece_at(x->p, &x->at, q, k, &p); k++) {
        for (int kind = 0; kind < MF_EXEC_STATES && status == MF_OK; kind++) {
            const wanted w = {.row = p.row,
                              .col = p.col,
                              .rows = p.rows,
                              .cols = p.cols,
                              .at = p.at_row * q->cols + p.at_col,
                              .first = s.first,
                              .end = s.first + s.count,
                              .out = s.value[kind],
                              .dtype = s.dtype[kind]};
            status = read_rectangle(c, kind, p.name, &w, e);
        }
    }
    return status == MF_OK ? mf_exec_state_put(x, i, &s, e) : status;
}

static mf_status load_correction(mf_checkpoint *c, mf_exec *x, int position, mf_err *e) {
    char name[128];
    float *bias = x->positions[position].correction, values[MF_ROUTE_MAX_EXPERTS];
    const wanted w = {.rows = x->p->model.experts,
                      .cols = 1,
                      .end = x->p->model.experts,
                      .out = (char *)(void *)values,
                      .dtype = MF_KERNEL_F32};
    if (bias == NULL || !mf_param_correction_bias(x->p, position, name, sizeof name)) {
        return MF_OK;
    }
    mf_status status = read_rectangle(c, MF_EXEC_WEIGHT, name, &w, e);
    return status == MF_OK
               ? mf_exec_put(x, bias, values, (size_t)x->p->model.experts * sizeof *bias, e)
               : status;
}

mf_status mf_checkpoint_load(mf_checkpoint *c, mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        status = load_param(c, x, i, e);
    }
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        status = load_correction(c, x, i, e);
    }
    const mf_train_progress *progress = &c->manifest.progress;
    return status == MF_OK
               ? mf_exec_set_steps(x, progress->step - progress->skipped, progress->skipped, e)
               : status;
}

/* The slice as its experts compute with it, then as the hub keeps it. */
static mf_status read_slice(mf_checkpoint *c, int kind, const mf_checkpoint_slice *s, float *out,
                            mf_err *e) {
    float *rows = calloc((size_t)(s->rows * s->cols) + 1, sizeof *rows);
    if (rows == NULL) {
        return mf_err_set(e, MF_NOMEM, "checkpoint: out of memory");
    }
    const wanted w = {.row = s->expert * s->rows,
                      .rows = s->rows,
                      .cols = s->cols,
                      .end = s->rows * s->cols,
                      .out = (char *)(void *)rows,
                      .dtype = MF_KERNEL_F32};
    const mf_param_piece hub = {
        .slice = s->halves > 0 ? s->rows : 0, .slice_cols = s->cols, .halves = s->halves};
    mf_status status = read_rectangle(c, kind, s->tensor, &w, e);
    for (int64_t r = 0; r < s->rows && status == MF_OK; r++) {
        for (int64_t k = 0; k < s->cols; k++) {
            out[mf_param_piece_element(&hub, r, k, s->cols)] = rows[r * s->cols + k];
        }
    }
    free(rows);
    return status;
}

mf_status mf_checkpoint_tensor(mf_checkpoint *c, int kind, const mf_model_tensor *t, float *out,
                               mf_err *e) {
    mf_checkpoint_slice s;
    if (mf_checkpoint_slice_of(t, &s)) {
        return read_slice(c, kind, &s, out, e);
    }
    /* A vector's pieces are columns of one element, however the hub shapes it. */
    bool vector = t->rows == 1 || t->cols == 1;
    int64_t count = t->rows * t->cols;
    const wanted w = {.rows = vector ? count : t->rows,
                      .cols = vector ? 1 : t->cols,
                      .end = count,
                      .out = (char *)(void *)out,
                      .dtype = MF_KERNEL_F32};
    return read_rectangle(c, kind, t->name, &w, e);
}
