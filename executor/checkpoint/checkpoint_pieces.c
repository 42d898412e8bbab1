/* checkpoint_pieces.c - rectangles of hub tensors that a rank writes. */
#include "executor/checkpoint/checkpoint_pieces.h"

#include "core/model/hub_names.h"
#include "executor/step/exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[MF_EXEC_STATES] = {"weight", "moment1", "moment2"};

/* --- names -------------------------------------------------------------------------------------
 */

void mf_checkpoint_name(const mf_checkpoint_piece *p, uint32_t crc,
                        char out[MF_CHECKPOINT_NAME_MAX]) {
    snprintf(out, MF_CHECKPOINT_NAME_MAX, "%s|%s|%lld,%lld|%08x", kinds[p->kind], p->tensor,
             (long long)p->row, (long long)p->col, crc);
}

static bool parse_number(const char **at, int base, int64_t most, char end, int64_t *out) {
    const char *digits = *at;
    *out = 0;
    for (; **at != '\0' && **at != end; ++*at) {
        int d = **at >= '0' && **at <= '9' ? **at - '0' : **at - 'a' + 10;
        if (d < 0 || d >= base || *out > (most - d) / base) {
            return false;
        }
        *out = *out * base + d;
    }
    return *at > digits && **at == end;
}

bool mf_checkpoint_parse_name(const char *text, mf_checkpoint_piece *p, uint32_t *crc) {
    *p = (mf_checkpoint_piece){.kind = -1};
    const char *at = strchr(text, '|');
    for (int k = 0; at != NULL && k < MF_EXEC_STATES; k++) {
        size_t n = strlen(kinds[k]);
        p->kind = (size_t)(at - text) == n && memcmp(text, kinds[k], n) == 0 ? k : p->kind;
    }
    const char *end = at != NULL ? strchr(at + 1, '|') : NULL;
    if (p->kind < 0 || end == NULL || (size_t)(end - at - 1) >= sizeof p->tensor) {
        return false;
    }
    memcpy(p->tensor, at + 1, (size_t)(end - at - 1));
    int64_t sum = 0;
    at = end + 1;
    bool ok = parse_number(&at, 10, INT64_C(1) << 48, ',', &p->row) && at++ &&
              parse_number(&at, 10, INT64_C(1) << 48, '|', &p->col) && at++ &&
              parse_number(&at, 16, UINT32_MAX, '\0', &sum);
    *crc = (uint32_t)sum;
    return ok;
}

bool mf_checkpoint_slice_of(const mf_model_tensor *t, mf_checkpoint_slice *out) {
    const char *mark = strchr(t->name, '[');
    if (mark == NULL) {
        return false;
    }
    bool bias = t->cols == 1, rows = t->fused == MF_HUB_EXPERTS_ROWS;
    bool turns = t->fused == MF_HUB_EXPERTS_INTERLEAVED && strstr(t->name, "gate_up") != NULL;
    *out = (mf_checkpoint_slice){.expert = strtoll(mark + 1, NULL, 10),
                                 .rows = bias || rows ? t->rows : t->cols,
                                 .cols = bias   ? 1
                                         : rows ? t->cols
                                                : t->rows,
                                 .halves = rows    ? 0
                                           : turns ? 2
                                                   : 1};
    memcpy(out->tensor, t->name, (size_t)(mark - t->name));
    return true;
}

/* --- what to write -----------------------------------------------------------------------------
 */

typedef struct piece_writer {
    const mf_param *q;
    const mf_param_piece *piece;
    const mf_exec_state *state;
    mf_checkpoint_piece_fn fn;
    void *user;
} piece_writer;

/* Elements [a, b) of the local parameter, all in one row or in whole rows. */
static mf_status emit(const piece_writer *c, int64_t a, int64_t b, mf_err *e) {
    int64_t width = c->q->cols, rows = (b - a) / width;
    mf_checkpoint_piece p = {.row = c->piece->row + a / width - c->piece->at_row,
                             .col = c->piece->col + a % width,
                             .rows = rows > 0 ? rows : 1,
                             .cols = rows > 0 ? width : b - a};
    memcpy(p.tensor, c->piece->name, sizeof p.tensor);
    mf_status status = MF_OK;
    for (p.kind = 0; p.kind < MF_EXEC_STATES && status == MF_OK; p.kind++) {
        size_t size = c->state->dtype[p.kind] == MF_KERNEL_BF16 ? 2 : 4;
        p.dtype = c->state->dtype[p.kind];
        p.data = (const char *)c->state->value[p.kind] + (size_t)(a - c->state->first) * size;
        status = c->fn(&p, c->user, e);
    }
    return status;
}

/* Elements [a, b): the rest of a row, whole rows, the start of a row. */
static mf_status emit_range(const piece_writer *c, int64_t a, int64_t b, mf_err *e) {
    int64_t width = c->q->cols;
    mf_status status = MF_OK;
    while (a < b && status == MF_OK) {
        int64_t row_end = (a / width + 1) * width, to = b;
        if (a % width != 0) {
            to = row_end < b ? row_end : b;
        } else if (b - a >= width) {
            to = b / width * width;
        }
        status = emit(c, a, to, e);
        a = to;
    }
    return status;
}

/* Embedding and head that a stage holds as copies (tied, or read by an MTP depth) are written by
 * the stage of the embedding, or of the head. */
static bool is_copy(const mf_exec *x, const mf_param *q) {
    const mf_assignment *a = &x->p->assignment;
    const mf_layout *l = &x->p->layout;
    if (q->table == MF_TABLE_NONE) {
        return false;
    }
    bool last = q->table == MF_TABLE_HEAD && !x->p->model.tied_embeddings;
    int64_t owner = mf_layout_stage_of(l, last ? a->vstages - 1 : 0);
    return x->stage != owner;
}

static mf_status emit_param(mf_exec *x, int i, mf_checkpoint_piece_fn fn, void *user, mf_err *e) {
    const mf_param *q = &x->params.list[i];
    mf_exec_state state;
    mf_param_piece piece;
    mf_group_kind group;
    mf_status status = MF_OK;
    status = mf_exec_state_of(x, i, &state, e);
    int64_t first = state.first, end = first + state.count;
    if (mf_exec_state_copied(x, i, &group)) {
        int64_t members = mf_comm_group_size(x->comm, group);
        int64_t me = mf_comm_group_rank(x->comm, group);
        first = state.first + state.count * me / members;
        end = state.first + state.count * (me + 1) / members;
    }
    int k = 0;
    for (; status == MF_OK && mf_param_piece_at(x->p, &x->at, q, k, &piece); k++) {
        const piece_writer c = {q, &piece, &state, fn, user};
        int64_t a = piece.at_row * q->cols, b = a + piece.rows * q->cols;
        if (piece.at_col != 0 || piece.cols != q->cols) {
            return mf_err_set(e, MF_INTERNAL, "%s: a piece of part of its columns", piece.name);
        }
        a = a > first ? a : first;
        b = b < end ? b : end;
        if (piece.first_replica && a < b) {
            status = emit_range(&c, a, b, e);
        }
    }
    if (k == 0 && q->table == MF_TABLE_NONE) { /* a table's rows may all be padding */
        return mf_err_set(e, MF_INFEASIBLE, "%s: no hub name for \"%s\" of this family",
                          x->p->model.name, q->name);
    }
    return status;
}

mf_status mf_checkpoint_pieces(mf_exec *x, mf_checkpoint_piece_fn fn, void *user, mf_err *e) {
    const float *corrections = NULL;
    mf_status status = mf_exec_corrections(x, &corrections, e);
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        if (!is_copy(x, &x->params.list[i])) {
            status = emit_param(x, i, fn, user, e);
        }
    }
    bool first = mf_comm_group_rank(x->comm, MF_GROUP_TP_CP_DP) == 0;
    for (int i = 0; first && i < x->p->assignment.positions && status == MF_OK; i++) {
        mf_checkpoint_piece p = {.kind = MF_EXEC_WEIGHT,
                                 .rows = x->p->model.experts,
                                 .cols = 1,
                                 .dtype = MF_KERNEL_F32,
                                 .data = corrections + i * x->p->model.experts};
        if (x->positions[i].correction != NULL &&
            mf_param_correction_bias(x->p, i, p.tensor, sizeof p.tensor)) {
            status = fn(&p, user, e);
        }
    }
    return status;
}
