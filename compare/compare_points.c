/* compare_points.c - ops of a program as keys of the store, and a run's times under them. */
#include "compare/compare_points.h"

#include "costmodel/cost_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- keys --------------------------------------------------------------------------------------
 */

static void set_dtype(mf_point *p, const mf_op *op) {
    mf_point_set(p, "dtype", op->math == MF_MATH_FP32 ? "fp32" : "bf16");
}

static bool gemm_point(const mf_op *op, const mf_layout *l, mf_point *p) {
    (void)l;
    bool wgrad = (op->flags & MF_OPF_WGRAD) != 0;
    set_dtype(p, op);
    mf_point_set_i64(p, "m", op->dim[MF_OP_DIM_M]);
    mf_point_set_i64(p, "n", op->dim[MF_OP_DIM_N]);
    mf_point_set_i64(p, "k", op->dim[MF_OP_DIM_K]);
    mf_point_set(p, "layout", wgrad ? "tn" : op->pass == MF_PASS_B ? "nn" : "nt");
    mf_point_set_i64(p, "acc", (op->flags & MF_OPF_ACC_FP32) != 0);
    return op->math <= MF_MATH_BF16;
}

/* The key speaks of the weight [n, k] and of rows per expert, whatever the pass. */
static bool grouped_point(const mf_op *op, const mf_layout *l, mf_point *p) {
    (void)l;
    bool wgrad = (op->flags & MF_OPF_WGRAD) != 0, dgrad = !wgrad && op->pass == MF_PASS_B;
    int64_t groups = op->dim[MF_OP_DIM_GROUPS], rows = op->dim[wgrad ? MF_OP_DIM_K : MF_OP_DIM_M];
    set_dtype(p, op);
    mf_point_set_i64(p, "experts", groups);
    mf_point_set_i64(p, "m", rows / groups);
    mf_point_set_i64(p, "n", op->dim[wgrad ? MF_OP_DIM_M : dgrad ? MF_OP_DIM_K : MF_OP_DIM_N]);
    mf_point_set_i64(p, "k", op->dim[wgrad || dgrad ? MF_OP_DIM_N : MF_OP_DIM_K]);
    mf_point_set(p, "pass", wgrad ? "wgrad" : dgrad ? "dgrad" : "fwd");
    mf_point_set_i64(p, "acc", (op->flags & MF_OPF_ACC_FP32) != 0);
    /* The key is of a product alone. */
    return op->math <= MF_MATH_BF16 && groups > 0 && rows >= groups && !(op->flags & MF_OPF_ACT);
}

static bool attention_point(const mf_op *op, const mf_layout *l, mf_point *p) {
    (void)l;
    mf_point_set(p, "pass", op->kind == MF_OP_ATTENTION_BWD ? "bwd" : "fwd");
    mf_point_set_i64(p, "b", op->dim[MF_OP_DIM_BATCH]);
    mf_point_set_i64(p, "h", op->dim[MF_OP_DIM_HEADS]);
    mf_point_set_i64(p, "hkv", op->dim[MF_OP_DIM_KV_HEADS]);
    mf_point_set_i64(p, "s", op->dim[MF_OP_DIM_SEQ_Q]);
    mf_point_set_i64(p, "skv", op->dim[MF_OP_DIM_SEQ_K]);
    mf_point_set_i64(p, "dqk", op->dim[MF_OP_DIM_D_QK]);
    mf_point_set_i64(p, "dv", op->dim[MF_OP_DIM_D_V]);
    mf_point_set_i64(p, "causal", (op->flags & MF_OPF_CAUSAL) != 0);
    mf_point_set_i64(p, "window", op->dim[MF_OP_DIM_WINDOW]);
    mf_point_set(p, "impl", "reference");
    set_dtype(p, op);
    return op->math <= MF_MATH_BF16;
}

static bool memory_point(const mf_op *op, const mf_layout *l, mf_point *p) {
    (void)l;
    mf_point_set(p, "op", mf_op_text((mf_op_kind)op->kind));
    mf_point_set_i64(p, "bytes", (int64_t)op->bytes);
    return op->bytes >= 1;
}

static bool collective_point(const mf_op *op, const mf_layout *l, mf_point *p) {
    (void)l;
    mf_point_set_i64(p, "bytes", (int64_t)op->bytes);
    mf_point_set_i64(p, "ranks", op->shape.size);
    return op->bytes >= 1 && op->shape.size > 1;
}

/* Points are of the exchange alone: one that puts rows into the order of experts, too, has none. */
static bool dispatch_point(const mf_op *op, const mf_layout *l, mf_point *p) {
    int64_t element_B = op->math == MF_MATH_FP32 ? 4 : 2;
    set_dtype(p, op);
    mf_point_set_i64(p, "tokens", op->dim[MF_OP_DIM_TOKENS]);
    mf_point_set_i64(p, "hidden", op->dim[MF_OP_DIM_ROW_B] / element_B);
    mf_point_set_i64(p, "topk", op->dim[MF_OP_DIM_TOP_K]);
    mf_point_set_i64(p, "experts", op->dim[MF_OP_DIM_EXPERTS]);
    mf_point_set_i64(p, "ranks", op->shape.size);
    mf_point_set(p, "impl", mf_dispatcher_text(l->dispatcher));
    /* The key says nothing of routers that reach some groups of experts only, but for 8 of 256
     * experts, where it means DeepSeek-V3's 4 groups (costmodel/point_op.c). */
    bool deepseek_v3 = op->dim[MF_OP_DIM_EXPERTS] == 256 && op->dim[MF_OP_DIM_TOP_K] == 8;
    return op->math <= MF_MATH_BF16 && op->shape.size > 1 && op->dim[MF_OP_DIM_ORDERED] == 0 &&
           op->dim[MF_OP_DIM_GROUPS_MAX] == (deepseek_v3 ? 4 : 0);
}

bool mf_compare_point(const mf_op *op, const mf_layout *l, const char *gpu, mf_point *out) {
    static const struct {
        mf_op_kind kind;
        const char *name;
        bool (*fill)(const mf_op *op, const mf_layout *l, mf_point *p);
    } table[] = {
        {MF_OP_GEMM, "gemm", gemm_point},
        {MF_OP_GROUPED_GEMM, "grouped_gemm", grouped_point},
        {MF_OP_ATTENTION_FWD, "attention", attention_point},
        {MF_OP_ATTENTION_BWD, "attention", attention_point},
        {MF_OP_ALL_REDUCE, "all_reduce", collective_point},
        {MF_OP_ALL_GATHER, "all_gather", collective_point},
        {MF_OP_REDUCE_SCATTER, "reduce_scatter", collective_point},
        {MF_OP_ALL_TO_ALL, "all_to_all", collective_point},
        {MF_OP_SEND_RECV, "send_recv", collective_point},
        {MF_OP_DISPATCH, "dispatch", dispatch_point},
        {MF_OP_COMBINE, "combine", dispatch_point},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].kind == (mf_op_kind)op->kind) {
            mf_point_init(out, gpu, table[i].name);
            return table[i].fill(op, l, out);
        }
    }
    mf_point_init(out, gpu, "memory");
    return mf_op_kind_class((mf_op_kind)op->kind) == MF_CLASS_MEMORY && memory_point(op, l, out);
}

/* --- times -------------------------------------------------------------------------------------
 */

/* Adds a time to the point of the same key, or begins one. sum: samples times time. */
static mf_status add_time(mf_point *list, int64_t *count, const mf_point *p,
                          const mf_op_time_row *r, bool collective, mf_err *e) {
    char key[512], other[512];
    double time_s = collective ? r->min_s : r->mean_s;
    int64_t at = 0;
    mf_point own = *p;
    mf_status status = mf_point_canonical(&own, e);
    mf_point_format(&own, key, sizeof key);
    for (; at < *count; at++) {
        mf_point_format(&list[at], other, sizeof other);
        if (strcmp(key, other) == 0) {
            break;
        }
    }
    if (status != MF_OK || time_s <= 0) {
        return status;
    }
    if (at == *count) {
        list[(*count)++] = own;
        list[at].low_s = r->min_s;
    }
    mf_point *q = &list[at];
    double samples = (double)(q->samples + r->count);
    q->time_s += (time_s - q->time_s) * (double)r->count / samples;
    q->samples += r->count;
    q->low_s = fmin(q->low_s, r->min_s);
    q->high_s = fmax(q->high_s, collective ? r->mean_s : r->max_s);
    return MF_OK;
}

static mf_status collect(const mf_job *j, const mf_op_times *t, const char *run, mf_point *list,
                         int64_t *count, mf_err *e) {
    mf_status status = MF_OK;
    *count = 0;
    for (int64_t i = 0; i < t->count && status == MF_OK; i++) {
        const mf_op_time_row *r = &t->row[i];
        const mf_op *op = &j->program->blocks[r->block]->ops[r->op];
        mf_point p;
        if (mf_compare_point(op, &j->program->layout, j->cluster.gpu.name, &p)) {
            snprintf(p.source, sizeof p.source, "training run %.100s", run);
            status = add_time(list, count, &p, r, op->group != MF_GROUP_NONE, e);
        }
    }
    for (int64_t i = 0; i < *count; i++) {
        list[i].low_s = fmin(list[i].low_s, list[i].time_s);
        list[i].high_s = fmax(list[i].high_s, list[i].time_s);
    }
    return status;
}

/* Points of the run into a store. */
static mf_status put_points(const mf_job *j, const mf_op_times *t, const char *run, mf_store *store,
                            int64_t *points, mf_err *e) {
    mf_point *list = calloc((size_t)t->count + 1, sizeof *list);
    if (list == NULL) {
        return mf_err_set(e, MF_NOMEM, "compare: out of memory");
    }
    mf_status status = collect(j, t, run, list, points, e);
    status = status == MF_OK ? mf_store_begin(store, e) : status;
    for (int64_t i = 0; i < *points && status == MF_OK; i++) {
        status = mf_store_put(store, &list[i], e);
    }
    status = status == MF_OK ? mf_store_commit(store, e) : status;
    free(list);
    return status;
}

mf_status mf_compare_export(const mf_job *j, const mf_op_times *t, const char *run,
                            const char *path, int64_t *points, mf_err *e) {
    mf_store *store = NULL;
    mf_status status = mf_store_open(":memory:", &store, e);
    status = status == MF_OK ? put_points(j, t, run, store, points, e) : status;
    status = status == MF_OK ? mf_store_export_csv(store, path, e) : status;
    mf_store_close(store);
    return status;
}

mf_status mf_compare_record(const mf_job *j, const mf_op_times *t, const char *run,
                            const char *path, int64_t *points, mf_err *e) {
    mf_store *store = NULL;
    mf_status status = access(path, F_OK) == 0 ? MF_OK : mf_store_rebuild(path, e);
    status = status == MF_OK ? mf_store_open(path, &store, e) : status;
    status = status == MF_OK ? put_points(j, t, run, store, points, e) : status;
    mf_store_close(store);
    return status;
}
