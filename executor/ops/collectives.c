/* collectives.c - regions of tensor and context parallelism: gathers, scatters, sums, exchanges. */
#include "executor/ops/ops.h"

#include "executor/ops/transport.h"

mf_comm_type mf_ops_type(const mf_exec_tensor *t) {
    return t->dtype == MF_KERNEL_BF16 ? MF_COMM_BF16 : MF_COMM_F32;
}

size_t mf_ops_row_B(const mf_exec_tensor *t) {
    return (size_t)t->cols * mf_kernel_dtype_B(t->dtype);
}

mf_group_kind mf_ops_group(const mf_exec_op *x) {
    const mf_exec_env *env = x->env;
    if (x->op->group == MF_GROUP_CP && env->near > 1 && env->near < env->layout->cp) {
        int64_t neighbours = mf_layout_group(env->layout, MF_GROUP_CP).stride;
        return x->op->shape.stride == neighbours ? env->cp_near : env->cp_far;
    }
    return (mf_group_kind)x->op->group;
}

/* --- gathers and scatters ----------------------------------------------------------------------
 */

/* The order of a gathered tensor's rows: `runs` runs of `run` rows of each member. TP: one run of
 * each member. CP: sample after sample, each in order of position; member m holds chunks m and 2 *
 * members - 1 - m, one run each. */
typedef struct row_order {
    int64_t members, runs, run; /* rows of one member = runs * run */
    bool chunks;                /* of CP */
    int64_t from, to;           /* rows of each run that this piece moves, */
    int64_t col, cols;          /* and columns of each row */
} row_order;

/* First row of member m's run r. */
static int64_t first_of_run(int64_t members, bool chunks, int64_t run, int64_t m, int64_t r) {
    if (!chunks) {
        return (r * members + m) * run;
    }
    const int64_t sample = r / 2, chunk = r % 2 == 0 ? m : 2 * members - 1 - m;
    return (sample * 2 * members + chunk) * run;
}

static row_order order_of(const mf_exec_op *x, int64_t local_rows, int64_t width) {
    const mf_op *op = x->op;
    row_order o = {.members = mf_comm_group_size(x->env->comm, mf_ops_group(x)), .runs = 1};
    o.chunks = op->group == MF_GROUP_CP;
    if (o.chunks) {
        o.runs = 2 * x->env->layout->mbs;
    }
    o.run = local_rows / o.runs;
    o.to = o.run;
    o.cols = width;
    if (mf_op_split_axis(op) == MF_SPLIT_ROWS) {
        o.from = o.run * op->piece / op->pieces;
        o.to = o.run * (op->piece + 1) / op->pieces;
    } else if (mf_op_split_axis(op) == MF_SPLIT_HEADS) {
        o.cols = width / op->pieces;
        o.col = op->piece * o.cols;
    }
    return o;
}

/* Copies `rows` rows between a tensor, from element `at` on, and the packed buffer. */
static mf_status move_rows(const mf_exec_op *x, const row_order *o, const mf_exec_tensor *t,
                           int64_t at, int64_t rows, char *packed, bool out, mf_err *e) {
    char *there = mf_ops_at(t, at + o->col);
    return out ? mf_ops_copy(x, t->dtype, rows, o->cols, packed, o->cols, there, t->cols, e)
               : mf_ops_copy(x, t->dtype, rows, o->cols, there, t->cols, packed, o->cols, e);
}

/* Copies between a gathered tensor and the packed order [member][run][row]. */
static mf_status pack(const mf_exec_op *x, const row_order *o, const mf_exec_tensor *gathered,
                      char *packed, bool out, mf_err *e) {
    int64_t rows = o->to - o->from;
    size_t moved = (size_t)(rows * o->cols) * mf_kernel_dtype_B(gathered->dtype);
    mf_status status = MF_OK;
    for (int64_t i = 0; i < o->members * o->runs && status == MF_OK; i++) {
        int64_t m = i / o->runs, r = i % o->runs;
        int64_t first = first_of_run(o->members, o->chunks, o->run, m, r);
        int64_t at = (first + o->from) * gathered->cols;
        status = move_rows(x, o, gathered, at, rows, packed + (size_t)i * moved, out, e);
    }
    return status;
}

static bool contiguous(const row_order *o, const mf_exec_tensor *t) {
    return o->runs == 1 && o->to - o->from == o->run && o->cols == t->cols;
}

/* Elements that each member moves. */
static int64_t elements_of_member(const row_order *o) {
    return o->runs * (o->to - o->from) * o->cols;
}

static mf_status gather_rows(const mf_exec_op *x, const mf_exec_tensor *in,
                             const mf_exec_tensor *out, int64_t local_rows, mf_err *e) {
    const row_order o = order_of(x, local_rows, in->cols);
    const int64_t count = elements_of_member(&o);
    const size_t element_B = mf_kernel_dtype_B(in->dtype);
    bool whole = contiguous(&o, in);
    mf_ops_scratch s = mf_ops_scratch_of(x);
    char *all = whole ? out->data : mf_ops_take(&s, (size_t)(o.members * count) * element_B);
    const char *from = mf_ops_at(in, o.from * in->cols); /* pieces of rows have one run */
    mf_status status = MF_OK;
    if (o.cols < in->cols) {
        char *own = mf_ops_take(&s, (size_t)count * element_B);
        status = move_rows(x, &o, in, 0, local_rows, own, false, e);
        from = own;
    }
    if (status == MF_OK) {
        status =
            mf_comm_all_gather(x->env->comm, mf_ops_group(x), mf_ops_type(in), from, all, count, e);
    }
    return status == MF_OK && !whole ? pack(x, &o, out, all, true, e) : status;
}

static mf_status scatter_rows(const mf_exec_op *x, const mf_exec_tensor *in,
                              const mf_exec_tensor *out, int64_t local_rows, mf_err *e) {
    const row_order o = order_of(x, local_rows, in->cols);
    int64_t counts[MF_COMM_MAX_GROUP], each = elements_of_member(&o);
    const size_t element_B = mf_kernel_dtype_B(in->dtype);
    bool whole = contiguous(&o, in), by_columns = o.cols < in->cols;
    mf_ops_scratch s = mf_ops_scratch_of(x);
    char *all = whole ? in->data : mf_ops_take(&s, (size_t)(o.members * each) * element_B);
    mf_status status = whole ? MF_OK : pack(x, &o, in, all, false, e);
    for (int64_t m = 0; m < o.members; m++) {
        counts[m] = each;
    }
    char *to = mf_ops_at(out, o.from * out->cols + o.col);
    bool adds = x->sum[0].data == out->data; /* a piece adds to what another op wrote */
    bool apart = adds || by_columns;
    char *part = apart ? mf_ops_take(&s, (size_t)each * element_B) : to;
    if (status == MF_OK) {
        status = mf_comm_reduce_scatter(x->env->comm, mf_ops_group(x), mf_ops_type(in), all, part,
                                        counts, e);
    }
    if (status != MF_OK || !apart) {
        return status;
    }
    const mf_kernel_copy_rows a = {.dtype = out->dtype,
                                   .rows = each / o.cols,
                                   .cols = o.cols,
                                   .src_stride = o.cols,
                                   .dst_stride = out->cols,
                                   .accumulate = adds,
                                   .src = part,
                                   .dst = to};
    return mf_ops_device(x)->copy_rows(x->queue, &a, e);
}

/* Rows of one member inside an ETP exchange: as many on both sides. */
static int64_t etp_rows(const mf_exec_op *x, const mf_exec_tensor *local,
                        const mf_exec_tensor *all) {
    int64_t each = all->rows_max / x->env->layout->etp;
    return local->rows_max < each ? local->rows_max : each;
}

mf_status mf_ops_no_choices_after(const mf_exec_op *x, const mf_exec_tensor *map, int64_t rows,
                                  mf_err *e) {
    const size_t rest = (size_t)((map->rows_max - rows) * map->cols) * sizeof(int32_t);
    return mf_ops_device(x)->fill(x->queue, mf_ops_at(map, rows * map->cols), 0xff, rest, e);
}

mf_status mf_op_all_gather(const mf_exec_op *x, mf_err *e) {
    bool etp = x->op->group == MF_GROUP_ETP;
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    int64_t rows = etp ? etp_rows(x, in, out) : in->rows;
    mf_status status = gather_rows(x, in, out, rows, e);
    for (int k = 1; k < 3 && x->op->nout > 1 && status == MF_OK; k++) {
        status = gather_rows(x, &x->in[k], &x->out[k], rows, e);
    }
    if (x->op->nout > 1 && status == MF_OK) {
        status = mf_ops_no_choices_after(x, &x->out[1], rows * x->env->layout->etp, e);
    }
    return status == MF_OK ? mf_ops_add_sum(x, 0, e) : status;
}

mf_status mf_op_reduce_scatter(const mf_exec_op *x, mf_err *e) {
    bool etp = x->op->group == MF_GROUP_ETP;
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    int64_t rows = etp ? etp_rows(x, out, in) : out->rows;
    mf_status status = scatter_rows(x, in, out, rows, e);
    if (status == MF_OK) {
        status = mf_ops_add_sum(x, 0, e);
    }
    if (status == MF_OK && x->op->nout > 1) {
        status = scatter_rows(x, &x->in[1], &x->out[1], rows, e);
    }
    return status;
}

mf_status mf_op_all_reduce(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *t = &x->out[0];
    mf_comm *c = x->env->comm;
    if (x->op->reduce == MF_REDUCE_SUM) {
        return mf_comm_all_reduce(c, mf_ops_group(x), MF_COMM_F32, MF_COMM_SUM, t->data,
                                  t->rows * t->cols, e);
    }
    /* Joins statistics of the loss, [3, rows]: highest logit, sum of exponentials below it, target
     * logit. */
    int64_t rows = t->rows;
    mf_ops_scratch s = mf_ops_scratch_of(x);
    float *stats = t->data, *own = mf_ops_take(&s, (size_t)rows * sizeof *own);
    const mf_kernel_ce_rescale rescale = {.rows = rows, .own_highest = own, .stats = stats};
    mf_status status = mf_ops_device(x)->copy(x->queue, own, stats, (size_t)rows * sizeof *own, e);
    if (status == MF_OK) {
        status = mf_comm_all_reduce(c, mf_ops_group(x), MF_COMM_F32, MF_COMM_MAX, stats, rows, e);
    }
    status = status == MF_OK ? mf_ops_device(x)->loss_rescale(x->queue, &rescale, e) : status;
    return status == MF_OK ? mf_comm_all_reduce(c, mf_ops_group(x), MF_COMM_F32, MF_COMM_SUM,
                                                stats + rows, 2 * rows, e)
                           : status;
}

/* --- all-to-all --------------------------------------------------------------------------------
 */

/* Exchanges slices of columns for slices of rows. `wide`: rows of one member, all columns; `tall`:
 * all rows (in runs as above), the columns of one member. With fewer column slices than members,
 * member j gets slice j * slices / members, and the way back sums slices that several got. A piece
 * moves columns [col, col + cols) of every slice. */
typedef struct trade {
    int64_t members, runs, run, slices, width; /* width: columns of a slice */
    bool chunks;
    int64_t col, cols;
} trade;

/* Copies rows of `cols` columns between a tensor, from element `at` on, and the packed buffer. */
static mf_status move_columns(const mf_exec_op *x, const trade *t, const mf_exec_tensor *tensor,
                              int64_t at, int64_t rows, char *packed, bool out, bool accumulate,
                              mf_err *e) {
    char *there = mf_ops_at(tensor, at);
    const mf_kernel_copy_rows a = {.dtype = tensor->dtype,
                                   .rows = rows,
                                   .cols = t->cols,
                                   .src_stride = out ? t->cols : tensor->cols,
                                   .dst_stride = out ? tensor->cols : t->cols,
                                   .accumulate = accumulate,
                                   .src = out ? packed : there,
                                   .dst = out ? there : packed};
    return mf_ops_device(x)->copy_rows(x->queue, &a, e);
}

/* Member i's rows of `tall`, run by run. */
static mf_status move_runs(const mf_exec_op *x, const trade *t, const mf_exec_tensor *tall,
                           int64_t i, char *packed, bool out, mf_err *e) {
    size_t run_B = (size_t)(t->run * t->cols) * mf_kernel_dtype_B(tall->dtype);
    mf_status status = MF_OK;
    for (int64_t r = 0; r < t->runs && status == MF_OK; r++) {
        int64_t first = first_of_run(t->members, t->chunks, t->run, i, r);
        status = move_columns(x, t, tall, first * t->width + t->col, t->run,
                              packed + (size_t)r * run_B, out, false, e);
    }
    return status;
}

/* `wide` to `tall`, or back. */
static mf_status trade_slices(const mf_exec_op *x, const trade *t, const mf_exec_tensor *wide,
                              const mf_exec_tensor *tall, bool grow, mf_err *e) {
    size_t row = (size_t)t->cols * mf_kernel_dtype_B(wide->dtype);
    int64_t rows = t->runs * t->run, counts[MF_COMM_MAX_GROUP], last = -1;
    size_t member_B = (size_t)rows * row;
    mf_ops_scratch s = mf_ops_scratch_of(x);
    char *send = mf_ops_take(&s, (size_t)t->members * member_B);
    char *receive = mf_ops_take(&s, (size_t)t->members * member_B);
    mf_status status = MF_OK;
    for (int64_t j = 0; j < t->members && status == MF_OK; j++) {
        int64_t at = j * t->slices / t->members * t->width + t->col;
        char *packed = send + (size_t)j * member_B;
        counts[j] = rows;
        status = grow ? move_columns(x, t, wide, at, rows, packed, false, false, e)
                      : move_runs(x, t, tall, j, packed, false, e);
    }
    if (status == MF_OK) {
        status = mf_comm_all_to_all(x->env->comm, mf_ops_group(x), row, send, counts, receive,
                                    counts, e);
    }
    for (int64_t j = 0; j < t->members && status == MF_OK; j++) {
        int64_t slice = j * t->slices / t->members;
        char *packed = receive + (size_t)j * member_B;
        status = grow ? move_runs(x, t, tall, j, packed, true, e)
                      : move_columns(x, t, wide, slice * t->width + t->col, rows, packed, true,
                                     slice == last, e);
        last = slice;
    }
    return status;
}

mf_status mf_op_all_to_all(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    trade t = {.members = x->op->shape.size, .runs = 1};
    bool grow = out->rows > in->rows; /* from few rows to all */
    const mf_exec_tensor *wide = grow ? in : out, *tall = grow ? out : in;
    t.chunks = x->op->group == MF_GROUP_CP;
    if (t.chunks) {
        t.runs = 2 * x->env->layout->mbs;
    }
    t.run = wide->rows / t.runs;
    t.width = tall->cols;
    t.slices = wide->cols / t.width;
    t.cols = mf_op_split_axis(x->op) == MF_SPLIT_HEADS ? t.width / x->op->pieces : t.width;
    t.col = x->op->piece * t.cols;
    mf_status status = trade_slices(x, &t, wide, tall, grow, e);
    return status == MF_OK ? mf_ops_add_sum(x, 0, e) : status;
}

mf_status mf_op_send_recv(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    mf_status status =
        mf_comm_ring(x->env->comm, mf_ops_group(x), x->op->dim[MF_OP_DIM_PLACES] < 0 ? -1 : 1,
                     in->data, out->data, (size_t)in->rows * mf_ops_row_B(in), e);
    return status == MF_OK ? mf_ops_add_sum(x, 0, e) : status;
}
