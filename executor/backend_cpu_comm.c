/* backend_cpu_comm.c - collectives of a block on the CPU: regions of tensor and context
 * parallelism, and the exchange of routed rows by its three dispatchers. */
#include "executor/backend_cpu.h"

#include "kernels/cast.h"

#include <math.h>
#include <string.h>

static mf_comm_type type_of(const mf_exec_tensor *t) {
    return t->dtype == MF_KERNEL_BF16 ? MF_COMM_BF16 : MF_COMM_F32;
}

static size_t row_B(const mf_exec_tensor *t) {
    return (size_t)t->cols * mf_kernel_dtype_B(t->dtype);
}

static mf_group_kind group_of(const mf_exec_op *x) {
    const mf_exec_env *env = x->env;
    if (x->op->group == MF_GROUP_CP && env->near > 1 && env->near < env->layout->cp) {
        int64_t neighbours = mf_layout_group(env->layout, MF_GROUP_CP).stride;
        return x->op->shape.stride == neighbours ? env->cp_near : env->cp_far;
    }
    return (mf_group_kind)x->op->group;
}

/* --- gathers and scatters ----------------------------------------------------------------------
 */

/* How the rows of a gathered tensor lie: runs of `run` rows, and member m's run r at row
 * (r * members + m) * run. TP: one run a member. CP keys: a run for each sample. */
typedef struct row_order {
    int64_t members, runs, run; /* rows of one member = runs * run */
    int64_t from, to;           /* rows of each run that this piece moves, */
    int64_t col, cols;          /* and columns of each row */
} row_order;

static row_order order_of(const mf_exec_op *x, int64_t local_rows, int64_t width) {
    const mf_op *op = x->op;
    row_order o = {.members = mf_comm_group_size(x->env->comm, group_of(x)), .runs = 1};
    if (op->group == MF_GROUP_CP) {
        o.runs = x->env->layout->mbs;
    }
    o.run = local_rows / o.runs;
    o.to = o.run;
    o.cols = width;
    if (mf_op_cut(op) == MF_CUT_ROWS) {
        o.from = o.run * op->piece / op->pieces;
        o.to = o.run * (op->piece + 1) / op->pieces;
    } else if (mf_op_cut(op) == MF_CUT_HEADS) {
        o.cols = width / op->pieces;
        o.col = op->piece * o.cols;
    }
    return o;
}

/* Moves `rows` rows between a tensor, from element `at` on, and what is packed. */
static void move_rows(const row_order *o, const mf_exec_tensor *t, int64_t at, int64_t rows,
                      char *packed, bool out) {
    size_t moved = (size_t)o->cols * mf_kernel_dtype_B(t->dtype);
    int64_t stride = t->cols;
    if (o->cols == t->cols) { /* one behind the other */
        moved *= (size_t)rows;
        rows = 1;
    }
    for (int64_t r = 0; r < rows; r++) {
        char *there = mf_cpu_at(t, at + o->col + r * stride), *here = packed + (size_t)r * moved;
        memcpy(out ? there : here, out ? here : there, moved);
    }
}

/* Moves between a gathered tensor and [member][run][row] packed. */
static void pack(const row_order *o, const mf_exec_tensor *gathered, char *packed, bool out) {
    int64_t rows = o->to - o->from;
    size_t moved = (size_t)(rows * o->cols) * mf_kernel_dtype_B(gathered->dtype);
    for (int64_t m = 0; m < o->members; m++) {
        for (int64_t r = 0; r < o->runs; r++) {
            move_rows(o, gathered, ((r * o->members + m) * o->run + o->from) * gathered->cols, rows,
                      packed + (size_t)(m * o->runs + r) * moved, out);
        }
    }
}

static bool contiguous(const row_order *o, const mf_exec_tensor *t) {
    return o->runs == 1 && o->to - o->from == o->run && o->cols == t->cols;
}

/* Elements that each member moves. */
static int64_t share_of(const row_order *o) {
    return o->runs * (o->to - o->from) * o->cols;
}

static mf_status gather_rows(const mf_exec_op *x, const mf_exec_tensor *in,
                             const mf_exec_tensor *out, int64_t local_rows, mf_err *e) {
    const row_order o = order_of(x, local_rows, in->cols);
    const int64_t count = share_of(&o);
    bool whole = contiguous(&o, in);
    char *all = x->env->scratch;
    const char *from = mf_cpu_at(in, o.from * in->cols); /* pieces of rows have one run */
    if (o.cols < in->cols) {
        char *own = all + (size_t)(o.members * count) * mf_kernel_dtype_B(in->dtype);
        move_rows(&o, in, 0, local_rows, own, false);
        from = own;
    }
    mf_status status = mf_comm_all_gather(x->env->comm, group_of(x), type_of(in), from,
                                          whole ? out->data : all, count, e);
    if (status == MF_OK && !whole) {
        pack(&o, out, all, true);
    }
    return status;
}

static mf_status scatter_rows(const mf_exec_op *x, const mf_exec_tensor *in,
                              const mf_exec_tensor *out, int64_t local_rows, mf_err *e) {
    const row_order o = order_of(x, local_rows, in->cols);
    int64_t counts[MF_COMM_MAX_GROUP], each = share_of(&o);
    bool whole = contiguous(&o, in), by_columns = o.cols < in->cols;
    if (!whole) {
        pack(&o, in, x->env->scratch, false);
    }
    for (int64_t m = 0; m < o.members; m++) {
        counts[m] = each;
    }
    char *to = mf_cpu_at(out, o.from * out->cols + o.col);
    bool adds = x->sum[0].data == out->data; /* a piece, onto what another op wrote */
    char *part = (char *)x->env->scratch + (size_t)(o.members * each) * sizeof(float);
    mf_status status = mf_comm_reduce_scatter(x->env->comm, group_of(x), type_of(in),
                                              whole ? in->data : x->env->scratch,
                                              adds || by_columns ? part : to, counts, e);
    if (status != MF_OK || !(adds || by_columns)) {
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
    return mf_kernel_copy_rows_strided(&a, e);
}

/* Rows of one member inside an ETP exchange: both sides hold as many. */
static int64_t etp_rows(const mf_exec_op *x, const mf_exec_tensor *local,
                        const mf_exec_tensor *all) {
    int64_t share = all->rows_max / x->env->layout->etp;
    return local->rows_max < share ? local->rows_max : share;
}

static void no_choices_after(const mf_exec_tensor *map, int64_t rows) {
    int32_t *index = map->data;
    for (int64_t i = rows * map->cols; i < map->rows_max * map->cols; i++) {
        index[i] = -1;
    }
}

mf_status mf_cpu_all_gather(const mf_exec_op *x, mf_err *e) {
    bool etp = x->op->group == MF_GROUP_ETP;
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    int64_t rows = etp ? etp_rows(x, in, out) : in->rows;
    mf_status status = gather_rows(x, in, out, rows, e);
    for (int k = 1; k < 3 && x->op->nout > 1 && status == MF_OK; k++) {
        status = gather_rows(x, &x->in[k], &x->out[k], rows, e);
    }
    if (x->op->nout > 1) {
        no_choices_after(&x->out[1], rows * x->env->layout->etp);
    }
    return status == MF_OK ? mf_cpu_add_sum(x, 0, e) : status;
}

mf_status mf_cpu_reduce_scatter(const mf_exec_op *x, mf_err *e) {
    bool etp = x->op->group == MF_GROUP_ETP;
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    int64_t rows = etp ? etp_rows(x, out, in) : out->rows;
    mf_status status = scatter_rows(x, in, out, rows, e);
    if (status == MF_OK) {
        status = mf_cpu_add_sum(x, 0, e);
    }
    if (status == MF_OK && x->op->nout > 1) {
        status = scatter_rows(x, &x->in[1], &x->out[1], rows, e);
    }
    return status;
}

mf_status mf_cpu_all_reduce(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *t = &x->out[0];
    mf_comm *c = x->env->comm;
    if (strcmp(x->op->name, "loss_all_reduce") != 0) {
        return mf_comm_all_reduce(c, group_of(x), MF_COMM_F32, MF_COMM_SUM, t->data,
                                  t->rows * t->cols, e);
    }
    /* [3, rows]: highest logit, sum of exponentials below it, target logit. */
    float *stats = t->data, *own = x->env->scratch;
    int64_t rows = t->rows;
    memcpy(own, stats, (size_t)rows * sizeof *own);
    mf_status status = mf_comm_all_reduce(c, group_of(x), MF_COMM_F32, MF_COMM_MAX, stats, rows, e);
    for (int64_t r = 0; r < rows; r++) {
        stats[rows + r] *= expf(own[r] - stats[r]);
    }
    return status == MF_OK ? mf_comm_all_reduce(c, group_of(x), MF_COMM_F32, MF_COMM_SUM,
                                                stats + rows, 2 * rows, e)
                           : status;
}

/* --- all-to-all --------------------------------------------------------------------------------
 */

/* Slices of columns against slices of rows. `wide`: rows of one member, all columns; `tall`: all
 * rows (a run for each sample), the columns of one member. Fewer column slices than members: member
 * j takes slice j * slices / members, and the way back sums what was taken twice. A piece moves
 * columns [col, col + cols) of every slice. */
typedef struct trade {
    int64_t members, runs, run, slices, width; /* width: columns of a slice */
    int64_t col, cols;
} trade;

/* Moves rows of `cols` columns between a tensor, from element `at` on, and what is packed. */
static mf_status move_columns(const trade *t, const mf_exec_tensor *x, int64_t at, int64_t rows,
                              char *packed, bool out, bool accumulate, mf_err *e) {
    char *there = mf_cpu_at(x, at);
    const mf_kernel_copy_rows a = {.dtype = x->dtype,
                                   .rows = rows,
                                   .cols = t->cols,
                                   .src_stride = out ? t->cols : x->cols,
                                   .dst_stride = out ? x->cols : t->cols,
                                   .accumulate = accumulate,
                                   .src = out ? packed : there,
                                   .dst = out ? there : packed};
    return mf_kernel_copy_rows_strided(&a, e);
}

/* Member i's rows of `tall`, run by run. */
static mf_status move_runs(const trade *t, const mf_exec_tensor *tall, int64_t i, char *packed,
                           bool out, mf_err *e) {
    size_t run_B = (size_t)(t->run * t->cols) * mf_kernel_dtype_B(tall->dtype);
    mf_status status = MF_OK;
    for (int64_t r = 0; r < t->runs && status == MF_OK; r++) {
        status = move_columns(t, tall, (r * t->members + i) * t->run * t->width + t->col, t->run,
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
    char *send = x->env->scratch, *receive = send + (size_t)t->members * member_B;
    mf_status status = MF_OK;
    for (int64_t j = 0; j < t->members && status == MF_OK; j++) {
        int64_t at = j * t->slices / t->members * t->width + t->col;
        char *packed = send + (size_t)j * member_B;
        counts[j] = rows;
        status = grow ? move_columns(t, wide, at, rows, packed, false, false, e)
                      : move_runs(t, tall, j, packed, false, e);
    }
    if (status == MF_OK) {
        status =
            mf_comm_all_to_all(x->env->comm, group_of(x), row, send, counts, receive, counts, e);
    }
    for (int64_t j = 0; j < t->members && status == MF_OK; j++) {
        int64_t slice = j * t->slices / t->members;
        char *packed = receive + (size_t)j * member_B;
        status = grow ? move_runs(t, tall, j, packed, true, e)
                      : move_columns(t, wide, slice * t->width + t->col, rows, packed, true,
                                     slice == last, e);
        last = slice;
    }
    return status;
}

mf_status mf_cpu_all_to_all(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    trade t = {.members = x->op->shape.size, .runs = 1};
    bool grow = out->rows > in->rows; /* to all rows */
    const mf_exec_tensor *wide = grow ? in : out, *tall = grow ? out : in;
    if (x->op->group == MF_GROUP_CP) {
        t.runs = x->env->layout->mbs;
    }
    t.run = wide->rows / t.runs;
    t.width = tall->cols;
    t.slices = wide->cols / t.width;
    t.cols = mf_op_cut(x->op) == MF_CUT_HEADS ? t.width / x->op->pieces : t.width;
    t.col = x->op->piece * t.cols;
    mf_status status = trade_slices(x, &t, wide, tall, grow, e);
    return status == MF_OK ? mf_cpu_add_sum(x, 0, e) : status;
}

mf_status mf_cpu_send_recv(const mf_exec_op *x, mf_err *e) {
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    mf_status status = mf_comm_ring(x->env->comm, group_of(x), x->op->dim[0] < 0 ? -1 : 1, in->data,
                                    out->data, (size_t)in->rows * row_B(in), e);
    return status == MF_OK ? mf_cpu_add_sum(x, 0, e) : status;
}

/* --- routed rows -------------------------------------------------------------------------------
 */

typedef struct exchange {
    const mf_exec_op *x;
    mf_comm *comm;
    int64_t ep, me, local; /* members, own place, experts of a member */
    int64_t tokens, top_k, experts;
    int64_t send[MF_COMM_MAX_GROUP], receive[MF_COMM_MAX_GROUP], sent, received;
    mf_dispatcher by;
} exchange;

static exchange exchange_of(const mf_exec_op *x) {
    exchange s = {.x = x, .comm = x->env->comm};
    s.ep = mf_comm_group_size(s.comm, MF_GROUP_EP);
    s.me = mf_comm_group_rank(s.comm, MF_GROUP_EP);
    s.tokens = x->op->dim[0];
    s.top_k = x->op->dim[2];
    s.experts = x->op->dim[3];
    s.local = s.experts / s.ep;
    s.by = (mf_dispatcher)x->op->dim[4];
    return s;
}

static void read_counts(exchange *s, const int32_t *counts) {
    s->sent = s->received = 0;
    for (int64_t i = 0; i < s->ep; i++) {
        s->send[i] = counts[i];
        s->receive[i] = counts[s->ep + i];
        s->sent += s->send[i];
        s->received += s->receive[i];
    }
}

/* Does a token go to member j? */
static bool reaches(const exchange *s, const int32_t *choice, int64_t j) {
    for (int64_t k = 0; k < s->top_k; k++) {
        if (choice[k] >= 0 && choice[k] / s->local == j) {
            return true;
        }
    }
    return false;
}

/* Rows for each member: of the own permute's runs, or one for each token that it gets. */
static mf_status find_counts(exchange *s, const void *map, int32_t *counts, int64_t rows_max,
                             mf_err *e) {
    int64_t ones[MF_COMM_MAX_GROUP];
    for (int64_t j = 0; j < s->ep; j++) {
        ones[j] = 1;
        counts[j] = 0;
        if (s->by == MF_DISPATCH_ALLTOALL) {
            const int32_t *offsets = map;
            counts[j] = offsets[(j + 1) * s->local] - offsets[j * s->local];
            continue;
        }
        for (int64_t t = 0; t < s->tokens; t++) {
            counts[j] += reaches(s, (const int32_t *)map + t * s->top_k, j);
        }
    }
    mf_status status = mf_comm_all_to_all(s->comm, MF_GROUP_EP, sizeof(int32_t), counts, ones,
                                          counts + s->ep, ones, e);
    if (status != MF_OK) {
        return status;
    }
    read_counts(s, counts);
    if (s->received > rows_max) {
        return mf_err_set(e, MF_INFEASIBLE,
                          "%s: %lld routed rows arrive in a buffer of %lld: the token headroom "
                          "%.3g is too small for this routing",
                          s->x->block->label, (long long)s->received, (long long)rows_max,
                          mf_layout_token_headroom(s->x->env->layout));
    }
    return MF_OK;
}

static mf_status forth(exchange *s, size_t width, const void *in, void *out, mf_err *e) {
    return mf_comm_all_to_all(s->comm, MF_GROUP_EP, width, in, s->send, out, s->receive, e);
}

static mf_status back(exchange *s, size_t width, const void *in, void *out, mf_err *e) {
    return mf_comm_all_to_all(s->comm, MF_GROUP_EP, width, in, s->receive, out, s->send, e);
}

/* One copy of a token's row for each member that it reaches, by member, then by token. */
static void spread(const exchange *s, const int32_t *map, const mf_exec_tensor *in, char *to) {
    size_t width = row_B(in);
    for (int64_t j = 0; j < s->ep; j++) {
        for (int64_t t = 0; t < s->tokens; t++) {
            if (reaches(s, map + t * s->top_k, j)) {
                memcpy(to, (const char *)in->data + (size_t)t * width, width);
                to += width;
            }
        }
    }
}

/* The choices of those copies: experts of the member by its own numbering, others -1. */
static void spread_choices(const exchange *s, const int32_t *map, int32_t *to) {
    for (int64_t j = 0; j < s->ep; j++) {
        for (int64_t t = 0; t < s->tokens; t++) {
            const int32_t *choice = map + t * s->top_k;
            if (!reaches(s, choice, j)) {
                continue;
            }
            for (int64_t k = 0; k < s->top_k; k++) {
                bool there = choice[k] >= 0 && choice[k] / s->local == j;
                *to++ = there ? (int32_t)(choice[k] - j * s->local) : -1;
            }
        }
    }
}

/* out[t] = the sum of what came back of its copies. */
static mf_status join(const exchange *s, const int32_t *map, const char *from,
                      const mf_exec_tensor *out, mf_err *e) {
    size_t width = row_B(out);
    mf_status status = MF_OK;
    memset(out->data, 0, (size_t)s->tokens * width);
    for (int64_t j = 0; j < s->ep && status == MF_OK; j++) {
        for (int64_t t = 0; t < s->tokens && status == MF_OK; t++) {
            if (!reaches(s, map + t * s->top_k, j)) {
                continue;
            }
            void *row = (char *)out->data + (size_t)t * width;
            const mf_kernel_add a = {
                .dtype = out->dtype, .count = out->cols, .a = row, .b = from, .y = row};
            status = mf_kernel_add_values(&a, e);
            from += width;
        }
    }
    return status;
}

static mf_status dispatch_gathered(exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    mf_status status = mf_comm_all_gather(s->comm, MF_GROUP_EP, type_of(&x->in[0]), x->in[0].data,
                                          x->out[0].data, s->tokens * x->in[0].cols, e);
    if (x->op->pass == MF_PASS_B || status != MF_OK) {
        return status;
    }
    int32_t *map = x->out[1].data, *counts = x->op->nout > 3 ? x->out[3].data : NULL;
    status = mf_comm_all_gather(s->comm, MF_GROUP_EP, MF_COMM_I32, x->in[1].data, map,
                                s->tokens * s->top_k, e);
    for (int64_t i = 0; i < s->tokens * s->ep * s->top_k; i++) {
        bool here = map[i] >= 0 && map[i] / s->local == s->me;
        map[i] = here ? (int32_t)(map[i] - s->me * s->local) : -1;
    }
    for (int64_t i = 0; counts != NULL && i < 2 * s->ep; i++) {
        counts[i] = (int32_t)s->tokens;
    }
    return status == MF_OK ? mf_comm_all_gather(s->comm, MF_GROUP_EP, MF_COMM_F32, x->in[2].data,
                                                x->out[2].data, s->tokens * s->top_k, e)
                           : status;
}

/* Counts come from the operand (gradients), or are found and left in the output. */
static mf_status counts_of(exchange *s, const void *map, mf_err *e) {
    const mf_exec_op *x = s->x;
    if (x->op->kind == MF_OP_COMBINE || x->op->pass == MF_PASS_B) {
        read_counts(s, x->in[x->nin - 1].data);
        return MF_OK;
    }
    int32_t unkept[2 * MF_COMM_MAX_GROUP];
    return find_counts(s, map, x->op->nout > 3 ? x->out[3].data : unkept, x->out[0].rows_max, e);
}

mf_status mf_cpu_dispatch(const mf_exec_op *x, mf_err *e) {
    exchange s = exchange_of(x);
    bool gradient = x->op->pass == MF_PASS_B;
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    mf_status status = MF_OK;
    if (s.by == MF_DISPATCH_ALLGATHER) {
        status = dispatch_gathered(&s, e);
        return status == MF_OK ? mf_cpu_add_sum(x, 0, e) : status;
    }
    const void *map = x->in[1].data;
    status = counts_of(&s, map, e);
    bool copies = s.by == MF_DISPATCH_FUSED;
    char *scratch = copies ? x->env->exchange : x->env->scratch;
    if (status == MF_OK && copies) {
        spread(&s, map, in, scratch);
    }
    if (status == MF_OK) {
        status = forth(&s, row_B(in), copies ? scratch : in->data, out->data, e);
    }
    if (gradient || status != MF_OK) {
        return status == MF_OK ? mf_cpu_add_sum(x, 0, e) : status;
    }
    /* What travels beside the rows. */
    int64_t choices = copies ? s.top_k : 1;
    int32_t *ids = (int32_t *)scratch;
    if (copies) {
        spread_choices(&s, map, ids);
    } else {
        const int32_t *offsets = map;
        for (int64_t n = 0; n < s.experts; n++) {
            for (int32_t r = offsets[n]; r < offsets[n + 1]; r++) {
                ids[r] = (int32_t)(n % s.local);
            }
        }
    }
    size_t width = (size_t)choices * 4;
    status = forth(&s, width, ids, x->out[1].data, e);
    if (status == MF_OK && copies) {
        spread(&s, map, &x->in[2], scratch);
    }
    if (status == MF_OK) {
        status =
            forth(&s, width, copies ? (const void *)scratch : x->in[2].data, x->out[2].data, e);
    }
    no_choices_after(&x->out[1], s.received);
    return status;
}

/* Gradients of the probabilities of a token's choices: each from the member that holds the expert.
 */
static void join_probs(const exchange *s, const int32_t *map, const float *from, float *out) {
    memset(out, 0, (size_t)(s->tokens * s->top_k) * sizeof *out);
    for (int64_t j = 0; j < s->ep; j++) {
        for (int64_t t = 0; t < s->tokens; t++) {
            const int32_t *choice = map + t * s->top_k;
            if (!reaches(s, choice, j)) {
                continue;
            }
            for (int64_t k = 0; k < s->top_k; k++) {
                bool there = choice[k] >= 0 && choice[k] / s->local == j;
                out[t * s->top_k + k] += there ? from[k] : 0.0f;
            }
            from += s->top_k;
        }
    }
}

static mf_status combine_gathered(exchange *s, mf_err *e) {
    const mf_exec_op *x = s->x;
    int64_t counts[MF_COMM_MAX_GROUP];
    for (int k = 0; k < x->op->nout; k++) {
        for (int64_t i = 0; i < s->ep; i++) {
            counts[i] = s->tokens * x->out[k].cols;
        }
        mf_status status = mf_comm_reduce_scatter(s->comm, MF_GROUP_EP, type_of(&x->in[k]),
                                                  x->in[k].data, x->out[k].data, counts, e);
        if (status != MF_OK) {
            return status;
        }
    }
    return MF_OK;
}

mf_status mf_cpu_combine(const mf_exec_op *x, mf_err *e) {
    exchange s = exchange_of(x);
    bool gradient = x->op->pass == MF_PASS_B;
    const mf_exec_tensor *in = &x->in[0], *out = &x->out[0];
    const void *map = x->in[gradient ? 2 : 1].data;
    mf_status status = MF_OK;
    if (s.by == MF_DISPATCH_ALLGATHER) {
        status = combine_gathered(&s, e);
        return status == MF_OK ? mf_cpu_add_sum(x, 0, e) : status;
    }
    status = counts_of(&s, map, e);
    bool copies = s.by == MF_DISPATCH_FUSED;
    char *scratch = copies ? x->env->exchange : x->env->scratch;
    if (status == MF_OK) {
        status = back(&s, row_B(in), in->data, copies ? scratch : out->data, e);
    }
    if (status == MF_OK && copies) {
        status = join(&s, map, scratch, out, e);
    }
    if (status == MF_OK) {
        status = mf_cpu_add_sum(x, 0, e);
    }
    if (!gradient || status != MF_OK) {
        return status;
    }
    size_t width = (size_t)x->in[1].cols * 4;
    status = back(&s, width, x->in[1].data, copies ? scratch : x->out[1].data, e);
    if (status == MF_OK && copies) {
        join_probs(&s, map, (const float *)(const void *)scratch, x->out[1].data);
    }
    return status;
}
