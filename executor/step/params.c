/* params.c - list of a rank's parameters, and their values from a checkpoint. */
#include "executor/step/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

/* --- the list ----------------------------------------------------------------------------------
 */

static bool is_parameter(const mf_tensor *t) {
    return t->class == MF_TENSOR_WEIGHT && t->part != UINT8_MAX;
}

/* The linear map that a bias belongs to: weight and bias are operands 1 and 2 of its product. */
static const char *owner_of_bias(const mf_block *b, int16_t t) {
    for (int i = 0; i < b->nforward; i++) {
        const mf_op *op = &b->ops[i];
        if ((op->kind == MF_OP_GEMM || op->kind == MF_OP_GROUPED_GEMM) && op->nin > 2 &&
            op->in[2] == t) {
            return op->name;
        }
    }
    return NULL;
}

mf_status mf_params_list(const mf_program *p, int64_t stage, mf_params *out, mf_err *e) {
    *out = (mf_params){0};
    int positions = p->assignment.positions, capacity = 0;
    for (int i = 0; i < positions; i++) {
        capacity += p->blocks[p->block_of[i]]->ntensors;
    }
    out->list = calloc((size_t)capacity + 1, sizeof *out->list);
    out->first = calloc((size_t)positions + 1, sizeof *out->first);
    if (out->list == NULL || out->first == NULL) {
        mf_params_clear(out);
        return mf_err_set(e, MF_NOMEM, "parameters: out of memory");
    }
    for (int v = 0; v < p->assignment.vstages; v++) {
        bool mine = mf_layout_stage_of(&p->layout, v) == stage;
        for (int i = p->assignment.first[v]; i < p->assignment.first[v + 1]; i++) {
            const mf_block *b = p->blocks[p->block_of[i]];
            out->first[i] = out->count;
            for (int16_t t = 0; mine && t < b->ntensors; t++) {
                const mf_tensor *w = &b->tensors[t];
                if (!is_parameter(w)) {
                    continue;
                }
                const char *owner = owner_of_bias(b, t);
                mf_param q = {.position = i,
                              .tensor = t,
                              .name = owner != NULL ? owner : w->name,
                              .bias = owner != NULL,
                              .table = (mf_table)w->table,
                              .expert = w->part == MF_PART_EXPERT,
                              .sum = (mf_gradient_sum)w->sum,
                              .sum_rows = w->sum_rows,
                              .rows = w->rows,
                              .cols = w->cols};
                int64_t *half = q.expert ? &out->expert : &out->dense;
                q.offset = *half;
                *half += q.rows * q.cols;
                out->list[out->count++] = q;
            }
        }
    }
    out->first[positions] = out->count;
    return MF_OK;
}

bool mf_params_range(const mf_params *p, int position, bool expert, int64_t *begin, int64_t *end) {
    *begin = *end = -1;
    for (int i = p->first[position]; i < p->first[position + 1]; i++) {
        const mf_param *q = &p->list[i];
        if (q->expert == expert) {
            *begin = *begin < 0 ? q->offset : *begin;
            *end = q->offset + q->rows * q->cols;
        }
    }
    return *begin >= 0;
}

void mf_params_clear(mf_params *p) {
    free(p->list);
    free(p->first);
    *p = (mf_params){0};
}

int mf_params_find(const mf_params *p, const mf_program *program, int position, int16_t tensor) {
    const mf_tensor *w = &program->blocks[program->block_of[position]]->tensors[tensor];
    for (int i = p->first[position]; i < p->first[position + 1]; i++) {
        if (p->list[i].tensor == tensor) {
            return i;
        }
    }
    /* Shared: held by an earlier embedding or MTP depth, or by the head. */
    bool tied = program->model.tied_embeddings;
    for (int i = 0; i < p->count && w->table != MF_TABLE_NONE; i++) {
        mf_table table = p->list[i].table;
        if (table == w->table || (tied && table == MF_TABLE_EMBEDDING)) {
            return i;
        }
    }
    return -1;
}

/* --- loading ---------------------------------------------------------------------------------- */

typedef struct shape_check {
    const mf_safetensors *from;
    const mf_st_tensor *wrong;
    mf_model_tensor expected;
} shape_check;

static int check_shape(const mf_model_tensor *t, void *user) {
    shape_check *c = user;
    const mf_st_tensor *found = mf_safetensors_find(c->from, t->name);
    if (found == NULL) {
        return 0; /* reported by the rank that needs it */
    }
    int64_t width = found->dims >= 2 ? found->shape[found->dims - 1] : 1;
    bool same = found->count == t->rows * t->cols && (t->cols == 1 || width == t->cols);
    if (!same || found->dims > 2) {
        c->wrong = found;
        c->expected = *t;
        return 1;
    }
    return 0;
}

/* A piece of a tensor over all experts. */
static mf_status read_slices(const mf_model *m, const mf_param *q, const mf_st_tensor *t,
                             const mf_param_piece *p, float *to, mf_err *e) {
    if (t->dims == 0 || t->count != m->experts * p->slice * p->slice_cols ||
        t->shape[t->dims - 1] != p->slice) {
        return mf_err_set(
            e, MF_INPUT,
            "%s: offset %lld: tensor \"%s\" has %lld elements, %s wants %lld x %lld x "
            "%lld",
            t->file, LL(t->offset), t->name, LL(t->count), m->name, LL(m->experts),
            LL(p->slice_cols), LL(p->slice));
    }
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t c = 0; c < p->cols; c++) {
            to[(p->at_row + r) * q->cols + p->at_col + c] =
                mf_st_get(t, mf_param_piece_element(p, r, c, 0));
        }
    }
    return MF_OK;
}

static mf_status missing(const mf_program *p, const mf_param *q, const mf_safetensors *from,
                         const char *name, mf_err *e) {
    bool mtp = mf_position_kind_of(&p->model, q->position) == MF_POS_MTP;
    const char *remedy = mtp ? "; --set num_nextn_predict_layers=0 trains without MTP" : "";
    return mf_safetensors_missing(from, name, remedy, e);
}

mf_status mf_params_load(const mf_params *list, const mf_program *p, const mf_rank_coords *c,
                         const mf_safetensors *from, float *dense, float *expert_half, mf_err *e) {
    shape_check check = {.from = from};
    mf_model_tensors(&p->model, check_shape, &check);
    if (check.wrong != NULL) {
        return mf_err_set(e, MF_INPUT,
                          "%s: offset %lld: tensor \"%s\" has %lld elements in %d dimensions, %s "
                          "wants %lld x %lld",
                          check.wrong->file, LL(check.wrong->offset), check.wrong->name,
                          LL(check.wrong->count), check.wrong->dims, p->model.name,
                          LL(check.expected.rows), LL(check.expected.cols));
    }
    for (int k = 0; k < list->count; k++) {
        const mf_param *q = &list->list[k];
        float *to = (q->expert ? expert_half : dense) + q->offset;
        memset(to, 0, (size_t)(q->rows * q->cols) * sizeof *to);
        mf_param_piece piece;
        int i = 0;
        for (; mf_param_piece_at(p, c, q, i, &piece); i++) {
            const mf_st_tensor *t = mf_safetensors_find(from, piece.name);
            if (t == NULL) {
                return missing(p, q, from, piece.name, e);
            }
            if (piece.slice > 0) {
                mf_status status = read_slices(&p->model, q, t, &piece, to, e);
                if (status != MF_OK) {
                    return status;
                }
                continue;
            }
            /* A vector may stand as one row of a matrix, as Qwen2-MoE's gate does. */
            bool flat = q->cols == 1 && t->dims == 2 && t->shape[0] == 1;
            int64_t width = flat ? t->shape[1] : 0;
            if (flat && (piece.row != 0 || piece.rows != width)) {
                return mf_err_set(e, MF_INPUT, "%s: \"%s\": expected %lld elements, got %lld",
                                  t->file, t->name, LL(piece.rows), LL(width));
            }
            float *at = to + piece.at_row * q->cols + piece.at_col;
            mf_status status =
                flat ? mf_st_read(t, 0, 1, 0, width, at, width, e)
                     : mf_st_read(t, piece.row, piece.rows, piece.col, piece.cols, at, q->cols, e);
            if (status != MF_OK) {
                return status;
            }
        }
        if (i == 0 && q->table == MF_TABLE_NONE) { /* a table's rows may all be padding */
            return mf_err_set(e, MF_INPUT, "%s: no hub name for \"%s\" of this family",
                              p->model.name, q->name);
        }
    }
    return MF_OK;
}
