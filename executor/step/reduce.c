/* reduce.c - gradients summed over ranks, once a step: data-parallel reductions, copies of weights
 * inside a data-parallel rank, tables that several stages hold. */
#include "executor/step/exec.h"

#include <assert.h>
#include <stdlib.h>

int mf_exec_zero(const mf_exec *x, int side) {
    return side == 0 ? x->p->layout.zero : x->p->layout.expert_zero;
}

mf_group_kind mf_exec_zero_group(int side) {
    return side == 0 ? MF_GROUP_DP_CP : MF_GROUP_EDP;
}

static int64_t ranks_of(const mf_exec *x, int side) {
    const mf_layout *l = &x->p->layout;
    return side == 0 ? l->dp * l->cp : l->edp;
}

bool mf_exec_range(const mf_exec *x, int position, int side, int64_t *begin, int64_t *end) {
    return mf_params_range(&x->params, position, side == 1, begin, end);
}

void mf_exec_part(int64_t elements, int64_t ranks, int64_t i, int64_t *first, int64_t *end) {
    const int64_t each = elements / ranks;
    *first = i * each;
    *end = i + 1 < ranks ? *first + each : elements;
}

void mf_exec_shares(const mf_exec *x, int position, int side, int64_t begin, int64_t end,
                    int64_t *counts) {
    const int64_t ranks = ranks_of(x, side);
    int64_t from, to;
    mf_exec_range(x, position, side, &from, &to);
    for (int64_t i = 0; i < ranks; i++) {
        int64_t a, b;
        mf_exec_part(to - from, ranks, i, &a, &b);
        a = from + a > begin ? from + a : begin;
        b = from + b < end ? from + b : end;
        counts[i] = b > a ? b - a : 0;
    }
}

int64_t mf_exec_in_shard(const mf_exec *x, int position, int side, int64_t element) {
    const owned_part *p = &x->positions[position].owned[side];
    return p->at + element - p->begin;
}

/* --- data-parallel ranks ------------------------------------------------------------------------
 */

/* In place on the flat gradients: under ZeRO-1 this rank's share of each position is complete. */
static mf_status reduce_side(mf_exec *x, int position, int side, mf_err *e) {
    const mf_op *op = &x->p->dp[position].reduce[side];
    int64_t begin, end, counts[MF_COMM_MAX_GROUP] = {0};
    mf_group_kind group = mf_exec_zero_group(side);
    if (!(op->bytes > 0) || !mf_exec_range(x, position, side, &begin, &end)) {
        return MF_OK;
    }
    float *g = x->gradients[side] + begin;
    mf_status status = MF_OK;
    if (!mf_exec_runs(x, op)) {
        mf_exec_ran(x, op);
        return MF_OK;
    }
    if (op->kind == MF_OP_ALL_REDUCE) {
        status = mf_comm_all_reduce(x->wire, group, MF_COMM_F32, MF_COMM_SUM, g, end - begin, e);
    } else {
        mf_exec_shares(x, position, side, begin, end, counts);
        int64_t at = 0, me = mf_comm_group_rank(x->comm, group);
        for (int64_t i = 0; i < me; i++) {
            at += counts[i];
        }
        bool in_place = !mf_exec_device(x)->on_host; /* as NCCL can and MPI cannot */
        status = mf_comm_reduce_scatter(x->wire, group, MF_COMM_F32, g,
                                        in_place ? g + at : (float *)x->scratch, counts, e);
        if (status == MF_OK && !in_place) {
            status = mf_exec_copy(x, g + at, x->scratch, (size_t)counts[me] * sizeof *g, e);
        }
    }
    mf_exec_ran(x, op);
    return status;
}

mf_status mf_exec_reduce_position(mf_exec *x, int position, mf_err *e) {
    mf_status status = reduce_side(x, position, 0, e);
    return status == MF_OK ? reduce_side(x, position, 1, e) : status;
}

mf_status mf_exec_reduce_positions(mf_exec *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        bool left = x->positions[i].block != NULL && !x->beside.reduced[i];
        status = left ? mf_exec_reduce_position(x, i, e) : MF_OK;
    }
    return status == MF_OK ? mf_exec_beside_join(x, e) : status;
}

/* --- copies inside a data-parallel rank ---------------------------------------------------------
 */

/* Copies' elements that this rank reduces, and their gradients. */
static int64_t copied(const mf_exec *x, int i, mf_gradient_sum sum, float **gradient) {
    const mf_param *q = &x->params.list[i];
    int64_t first, count, begin = (q->rows - q->sum_rows) * q->cols;
    if (q->sum != sum) {
        return 0;
    }
    *gradient = mf_exec_own_gradient(x, i, &first, &count);
    int64_t skipped = begin > first ? begin - first : 0;
    *gradient += skipped;
    return count > skipped ? count - skipped : 0;
}

static mf_gradient_sum sum_of(const mf_op *op) {
    assert(op->step_end >= MF_STEP_END_SUM_KV && op->step_end <= MF_STEP_END_SUM_ETP);
    return op->step_end == MF_STEP_END_SUM_KV   ? MF_SUM_KV
           : op->step_end == MF_STEP_END_SUM_TP ? MF_SUM_TP
                                                : MF_SUM_ETP;
}

mf_status mf_exec_sum_copies(mf_exec *x, const mf_op *op, mf_err *e) {
    mf_gradient_sum sum = sum_of(op);
    mf_group_kind group = sum == MF_SUM_KV ? x->kv_copies : (mf_group_kind)op->group;
    float *packed = x->scratch;
    mf_status status = MF_OK;
    for (int out = 0; out < 2 && status == MF_OK; out++) {
        int64_t at = 0;
        for (int i = 0; i < x->params.count && status == MF_OK; i++) {
            float *g = NULL;
            int64_t count = copied(x, i, sum, &g);
            if (count > 0) {
                status = mf_exec_copy(x, out ? g : packed + at, out ? packed + at : g,
                                      (size_t)count * sizeof *g, e);
                at += count;
            }
        }
        if (out == 0 && status == MF_OK) {
            status = mf_comm_all_reduce(x->wire, group, MF_COMM_F32, MF_COMM_SUM, packed, at, e);
        }
    }
    return status;
}

/* --- tables of several stages -------------------------------------------------------------------
 */

static bool is_table(const mf_exec *x, const mf_param *q, mf_table table) {
    return q->table != MF_TABLE_NONE && (x->p->model.tied_embeddings || q->table == table);
}

/* Where the stages keep their copies. */
static mf_status find_copies(mf_exec *x, mf_table table, mf_err *e) {
    table_copies *t = &x->table[table];
    int64_t stages = x->p->layout.pp;
    t->copy = calloc((size_t)stages, sizeof *t->copy);
    t->mine = t->param = -1;
    if (t->copy == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    for (int64_t s = 0; s < stages; s++) {
        mf_params list;
        if (!mf_program_holds(x->p, s, table)) {
            continue;
        }
        mf_status status = mf_params_list(x->p, s, &list, e);
        if (status != MF_OK) {
            return status;
        }
        for (int i = 0; i < list.count; i++) {
            if (is_table(x, &list.list[i], table)) {
                t->mine = s == x->stage ? t->count : t->mine;
                t->param = s == x->stage ? i : t->param;
                int64_t begin, end;
                mf_params_range(&list, list.list[i].position, false, &begin, &end);
                t->copy[t->count++] = (table_copy){s, list.list[i].offset - begin, end - begin};
                break;
            }
        }
        mf_params_clear(&list);
    }
    return MF_OK;
}

/* Does every rank reduce all gradients of its stage? Then all of a table's are summed in place. */
static bool has_whole_gradients(const mf_exec *x) {
    return mf_exec_zero(x, 0) == 0 || ranks_of(x, 0) == 1;
}

mf_status mf_exec_reduce_init(mf_exec *x, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    int64_t place = mf_comm_rank(x->comm) % (l->gpus / l->pp);
    mf_status status = MF_OK;
    x->step_end_ops = mf_program_optimizer(x->p, x->stage, x->step_end, MF_STEP_END_MAX);
    for (int64_t s = 0, made = 0; s < l->pp && made == 0; s++) { /* the same on all stages */
        mf_op ops[MF_STEP_END_MAX];
        int n = mf_program_optimizer(x->p, s, ops, MF_STEP_END_MAX);
        for (int i = 0; i < n && made == 0 && status == MF_OK; i++) {
            if (ops[i].step_end == MF_STEP_END_SUM_KV) {
                int64_t color = mf_comm_rank(x->comm) / ops[i].shape.size;
                status = mf_exec_add_group(x, color, &x->kv_copies, e);
                made = 1;
            }
        }
    }
    for (int t = 0; t < MF_TABLES && status == MF_OK; t++) {
        status = find_copies(x, (mf_table)t, e);
        if (status == MF_OK && x->table[t].count > 1) {
            bool in = x->table[t].mine >= 0;
            const bool whole = has_whole_gradients(x); /* a communicator takes half a GB */
            mf_group_kind *group = whole ? &x->table[t].same : &x->table[t].shards;
            const int64_t color = whole ? place : x->at.t;
            status = mf_exec_add_group(x, in ? color : -1, group, e);
        }
    }
    return status;
}

void mf_exec_reduce_clear(mf_exec *x) {
    for (int t = 0; t < MF_TABLES; t++) {
        free(x->table[t].copy);
    }
}

/* Elements of a table that data-parallel rank i of a copy's stage reduces. */
static void window(const mf_exec *x, const table_copy *c, int64_t elements, int64_t i,
                   int64_t *first, int64_t *end) {
    int64_t a, b;
    mf_exec_part(c->elements, ranks_of(x, 0), i, &a, &b);
    a -= c->offset;
    b -= c->offset;
    *first = a > 0 ? a : 0;
    *end = b < elements ? b : elements;
    *end = *end > *first ? *end : *first;
}

/* Stages shard their gradients differently: each rank sends every other rank the part that that
 * rank reduces. Sums run stage by stage, so that all copies get equal bits. */
static mf_status sum_shards(mf_exec *x, const table_copies *t, mf_err *e) {
    const mf_param *q = &x->params.list[t->param];
    int64_t elements = q->rows * q->cols, ranks = ranks_of(x, 0), first, end, total = 0;
    int64_t counts[MF_COMM_MAX_GROUP], me = mf_comm_group_rank(x->comm, MF_GROUP_DP_CP);
    window(x, &t->copy[t->mine], elements, me, &first, &end);
    int64_t owned_first, owned;
    float *g = mf_exec_own_gradient(x, t->param, &owned_first, &owned); /* element `first` */
    float *send = x->scratch, *receive = send + (t->count - 1) * (end - first);
    float *sum = receive + (t->count - 1) * (end - first);
    mf_status status = MF_OK;
    for (int c = 0; c < t->count; c++) {
        for (int64_t i = 0; i < ranks; i++) {
            int64_t a, b;
            window(x, &t->copy[c], elements, i, &a, &b);
            a = a > first ? a : first;
            b = b < end ? b : end;
            counts[c * ranks + i] = c != t->mine && b > a ? b - a : 0;
            if (counts[c * ranks + i] > 0) {
                status = status == MF_OK ? mf_exec_copy(x, send + total, g + a - first,
                                                        (size_t)(b - a) * sizeof *g, e)
                                         : status;
                total += b - a;
            }
        }
    }
    if (status == MF_OK) {
        status =
            mf_comm_all_to_all(x->wire, t->shards, sizeof *g, send, counts, receive, counts, e);
    }
    for (int c = 0; c < t->count && status == MF_OK; c++) {
        const mf_kernel_cast add = {.count = end - first,
                                    .alpha = 1.0f,
                                    .accumulate = c > 0,
                                    .src = c == t->mine ? g : receive,
                                    .dst = sum};
        receive += c == t->mine ? 0 : end - first;
        status = mf_exec_device(x)->cast(x->queue, &add, e);
    }
    return status == MF_OK ? mf_exec_copy(x, g, sum, (size_t)(end - first) * sizeof *g, e) : status;
}

mf_status mf_exec_sum_tables(mf_exec *x, const mf_op *op, mf_err *e) {
    const table_copies *t =
        &x->table[op->step_end == MF_STEP_END_HEAD_COPIES ? MF_TABLE_HEAD : MF_TABLE_EMBEDDING];
    if (has_whole_gradients(x)) {
        int64_t first, count;
        float *g = mf_exec_own_gradient(x, t->param, &first, &count);
        return mf_comm_all_reduce(x->wire, t->same, MF_COMM_F32, MF_COMM_SUM, g, count, e);
    }
    return sum_shards(x, t, e);
}

/* --- what pass O needs --------------------------------------------------------------------------
 */

int64_t mf_exec_counted(const mf_exec *x, const mf_param *q) {
    for (int t = 0; t < MF_TABLES; t++) { /* of copies on several stages the first */
        if (x->table[t].mine > 0 && q == &x->params.list[x->table[t].param]) {
            return 0;
        }
    }
    bool first = q->sum == MF_SUM_TP    ? x->at.t == 0
                 : q->sum == MF_SUM_ETP ? x->at.et == 0
                 : q->sum == MF_SUM_KV  ? mf_comm_group_rank(x->comm, x->kv_copies) == 0
                                        : true;
    return (first ? q->rows : q->rows - q->sum_rows) * q->cols;
}

int64_t mf_exec_reduce_scratch(const mf_exec *x) {
    int64_t sums[MF_SUM_COUNT] = {0}, most = x->p->assignment.positions * x->p->model.experts;
    for (int i = 0; i < x->params.count; i++) {
        const mf_param *q = &x->params.list[i];
        sums[q->sum] += q->sum_rows * q->cols;
        most = sums[q->sum] > most ? sums[q->sum] : most;
    }
    for (int t = 0; t < MF_TABLES; t++) {
        const table_copies *c = &x->table[t];
        if (c->mine >= 0 && c->count > 1 && !has_whole_gradients(x)) {
            const mf_param *q = &x->params.list[c->param];
            int64_t first, end;
            window(x, &c->copy[c->mine], q->rows * q->cols,
                   mf_comm_group_rank(x->comm, MF_GROUP_DP_CP), &first, &end);
            int64_t need = (2 * c->count - 1) * (end - first);
            most = need > most ? need : most;
        }
    }
    return most;
}
