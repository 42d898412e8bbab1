/* mpi_operations.c - collectives and messages over MPI, in host memory.
 *
 * MPI counts in int, so long messages go in several calls, piece by piece. Where all members know
 * all counts they all choose either one call for everything or taking turns; a message between two
 * ranks is split alike by both.
 */
#include "executor/comm/comm_ops.h"

#ifdef MF_HAVE_MPI

#include "executor/comm/comm_mpi.h"
#include "kernels/kernel.h"

#include <stdlib.h>
#include <string.h>

/* --- pieces -------------------------------------------------------------------------------------
 */

/* Elements of the piece that starts at `at` of `count`. */
static int piece_at(const mf_mpi_state *s, int64_t at, int64_t count) {
    return at >= count ? 0 : (int)(count - at < s->piece ? count - at : s->piece);
}

static int64_t sum_of(const int64_t *counts, int64_t members) {
    int64_t sum = 0;
    for (int64_t i = 0; i < members; i++) {
        sum += counts[i];
    }
    return sum;
}

static MPI_Datatype datatype(mf_comm_type t) {
    return t == MF_COMM_F32   ? MPI_FLOAT
           : t == MF_COMM_F64 ? MPI_DOUBLE
           : t == MF_COMM_I32 ? MPI_INT32_T
                              : MPI_UINT16_T; /* moved, never summed */
}

/* --- collectives --------------------------------------------------------------------------------
 */

static mf_status copy(mf_comm *c, const void *in, void *out, size_t size_B, mf_err *e) {
    (void)c, (void)e;
    memmove(out, in, size_B);
    return MF_OK;
}

static mf_status all_reduce(mf_comm *c, int g, mf_comm_type type, mf_comm_reduce op, void *data,
                            int64_t count, mf_err *e) {
    mf_mpi_state *s = c->state;
    if (type == MF_COMM_BF16) {
        return mf_err_set(e, MF_INTERNAL, "no program sums BF16 over all of a group's ranks");
    }
    for (int64_t at = 0; at < count; at += s->piece) {
        MF_MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, (char *)data + (size_t)at * mf_comm_type_B(type),
                                 piece_at(s, at, count), datatype(type),
                                 op == MF_COMM_MAX ? MPI_MAX : MPI_SUM, s->group[g]),
                   e);
    }
    return MF_OK;
}

/* Each member in turn gives its part to the others, piece by piece. */
static mf_status give_in_turns(mf_comm *c, int g, mf_comm_type type, void *data,
                               const int64_t *counts, mf_err *e) {
    mf_mpi_state *s = c->state;
    char *part = data;
    for (int i = 0; i < (int)c->size[g]; i++) {
        for (int64_t at = 0; at < counts[i]; at += s->piece) {
            MF_MPI_TRY(MPI_Bcast(part + (size_t)at * mf_comm_type_B(type),
                                 piece_at(s, at, counts[i]), datatype(type), i, s->group[g]),
                       e);
        }
        part += (size_t)counts[i] * mf_comm_type_B(type);
    }
    return MF_OK;
}

static mf_status all_gather(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                            int64_t count, mf_err *e) {
    mf_mpi_state *s = c->state;
    if (count <= s->piece) {
        MF_MPI_TRY(MPI_Allgather(in, (int)count, datatype(type), out, (int)count, datatype(type),
                                 s->group[g]),
                   e);
        return MF_OK;
    }
    int64_t counts[MF_COMM_MAX_GROUP] = {0};
    size_t part_B = (size_t)count * mf_comm_type_B(type);
    for (int64_t i = 0; i < c->size[g]; i++) {
        counts[i] = count;
    }
    memmove((char *)out + (size_t)c->member[g] * part_B, in, part_B);
    return give_in_turns(c, g, type, out, counts, e);
}

/* Counts and displacements as MPI takes them: at most a piece altogether. */
typedef struct int_counts {
    int count[MF_COMM_MAX_GROUP], at[MF_COMM_MAX_GROUP];
} int_counts;

static void narrow(const int64_t *counts, int64_t members, int_counts *out) {
    int at = 0;
    for (int64_t i = 0; i < members; i++) {
        out->count[i] = (int)counts[i];
        out->at[i] = at;
        at += out->count[i];
    }
}

static mf_status all_gather_v(mf_comm *c, int g, mf_comm_type type, void *data,
                              const int64_t *counts, mf_err *e) {
    mf_mpi_state *s = c->state;
    int_counts n;
    if (sum_of(counts, c->size[g]) > s->piece) {
        return give_in_turns(c, g, type, data, counts, e);
    }
    narrow(counts, c->size[g], &n);
    MF_MPI_TRY(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, n.count, n.at,
                              datatype(type), s->group[g]),
               e);
    return MF_OK;
}

/* Every pair of ranks exchanges on its own: in each round one piece of what each has for the other.
 * A pair is done after as many rounds as its longer message has pieces, and both know that. */
static mf_status exchange(mf_comm *c, int g, size_t width, const void *in, const int64_t *send,
                          void *out, const int64_t *receive, mf_err *e) {
    mf_mpi_state *s = c->state;
    int members = (int)c->size[g], requests = 1;
    for (int64_t at = 0; requests > 0; at += s->piece) {
        const char *from = in;
        char *to = out;
        requests = 0;
        for (int i = 0; i < members; i++) {
            int64_t send_B = send[i] * (int64_t)width, receive_B = receive[i] * (int64_t)width;
            bool own = i == c->member[g];
            if (!own && at < receive_B) {
                MF_MPI_TRY(MPI_Irecv(to + at, piece_at(s, at, receive_B), MPI_BYTE, i, 0,
                                     s->group[g], &s->exchange[requests++]),
                           e);
            }
            if (!own && at < send_B) {
                MF_MPI_TRY(MPI_Isend(from + at, piece_at(s, at, send_B), MPI_BYTE, i, 0,
                                     s->group[g], &s->exchange[requests++]),
                           e);
            }
            if (own && at == 0 && send_B > 0) {
                memmove(to, from, (size_t)send_B);
            }
            from += send_B;
            to += receive_B;
        }
        MF_MPI_TRY(MPI_Waitall(requests, s->exchange, MPI_STATUSES_IGNORE), e);
    }
    return MF_OK;
}

/* Memory for `elements`: lent, or allocated in the first step and kept. */
static uint16_t *elements_for(mf_comm *c, int64_t elements, mf_err *e) {
    mf_mpi_state *s = c->state;
    if (elements <= c->lent_elements) {
        return c->lent;
    }
    if (elements > s->own_elements) {
        uint16_t *own = realloc(s->own, (size_t)elements * sizeof *own);
        if (own == NULL) {
            mf_err_set(e, MF_NOMEM, "ranks: out of memory");
            return NULL;
        }
        s->own = own;
        s->own_elements = elements;
    }
    return s->own;
}

/* Sums the parts of all members in float in order of group rank, rounded at the end. */
static mf_status sum_bf16(mf_comm *c, int g, const void *in, void *out, const int64_t *counts,
                          mf_err *e) {
    int64_t members = c->size[g], own = counts[c->member[g]], same[MF_COMM_MAX_GROUP];
    uint16_t *parts = elements_for(c, members * own, e);
    if (parts == NULL && own > 0) {
        return MF_NOMEM;
    }
    for (int64_t i = 0; i < members; i++) {
        same[i] = own;
    }
    mf_status status = exchange(c, g, sizeof *parts, in, counts, parts, same, e);
    for (int64_t k = 0; k < own && status == MF_OK; k++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < members; i++) {
            sum += mf_kernel_bf16_widen(parts[i * own + k]);
        }
        ((uint16_t *)out)[k] = mf_kernel_bf16_round(sum);
    }
    return status;
}

static mf_status reduce_scatter(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                                const int64_t *counts, mf_err *e) {
    mf_mpi_state *s = c->state;
    int_counts n;
    if (type == MF_COMM_BF16) {
        return sum_bf16(c, g, in, out, counts, e);
    }
    if (sum_of(counts, c->size[g]) <= s->piece) {
        narrow(counts, c->size[g], &n);
        MF_MPI_TRY(MPI_Reduce_scatter(in, out, n.count, datatype(type), MPI_SUM, s->group[g]), e);
        return MF_OK;
    }
    const char *part = in;
    for (int i = 0; i < (int)c->size[g]; i++) { /* the members' sums in turn */
        for (int64_t at = 0; at < counts[i]; at += s->piece) {
            size_t at_B = (size_t)at * mf_comm_type_B(type);
            void *sum = i == c->member[g] ? (char *)out + at_B : NULL;
            MF_MPI_TRY(MPI_Reduce(part + at_B, sum, piece_at(s, at, counts[i]), datatype(type),
                                  MPI_SUM, i, s->group[g]),
                       e);
        }
        part += (size_t)counts[i] * mf_comm_type_B(type);
    }
    return MF_OK;
}

/* --- messages -----------------------------------------------------------------------------------
 */

static mf_status ring(mf_comm *c, int g, int64_t to, int64_t from, const void *in, void *out,
                      size_t size_B, mf_err *e) {
    mf_mpi_state *s = c->state;
    for (int64_t at = 0; at < (int64_t)size_B; at += s->piece) {
        int n = piece_at(s, at, (int64_t)size_B);
        MF_MPI_TRY(MPI_Sendrecv((const char *)in + at, n, MPI_BYTE, (int)to, 0, (char *)out + at, n,
                                MPI_BYTE, (int)from, 0, s->group[g], MPI_STATUS_IGNORE),
                   e);
    }
    return MF_OK;
}

/* An empty message is one empty piece. */
static mf_status send_message(mf_comm *c, int slot, int64_t to, int tag, const void *data,
                              size_t size_B, mf_err *e) {
    mf_mpi_state *s = c->state;
    mf_mpi_message *m = &s->send[slot];
    int64_t size = (int64_t)size_B, pieces = size > s->piece ? (size - 1) / s->piece + 1 : 1;
    if (pieces > m->allocated) {
        MPI_Request *more = realloc(m->request, (size_t)pieces * sizeof(MPI_Request));
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "ranks: out of memory");
        }
        m->request = more;
        m->allocated = (int)pieces;
    }
    for (m->pieces = 0; m->pieces < pieces; m->pieces++) {
        int64_t at = m->pieces * s->piece;
        MF_MPI_TRY(MPI_Isend((const char *)data + at, piece_at(s, at, size), MPI_BYTE, (int)to, tag,
                             s->pipeline, &m->request[m->pieces]),
                   e);
    }
    return MF_OK;
}

static mf_status wait_send(mf_comm *c, int slot, mf_err *e) {
    mf_mpi_state *s = c->state;
    int pieces = s->send[slot].pieces;
    s->send[slot].pieces = 0;
    MF_MPI_TRY(MPI_Waitall(pieces, s->send[slot].request, MPI_STATUSES_IGNORE), e);
    return MF_OK;
}

static mf_status receive_message(mf_comm *c, int slot, int64_t from, int tag, void *data,
                                 size_t size_B, mf_err *e) {
    mf_mpi_state *s = c->state;
    int64_t at = 0, size = (int64_t)size_B;
    (void)slot; /* the tag identifies the message */
    do {
        MF_MPI_TRY(MPI_Recv((char *)data + at, piece_at(s, at, size), MPI_BYTE, (int)from, tag,
                            s->pipeline, MPI_STATUS_IGNORE),
                   e);
        at += s->piece;
    } while (at < size);
    return MF_OK;
}

static mf_status barrier(mf_comm *c, mf_err *e) {
    mf_mpi_state *s = c->state;
    MF_MPI_TRY(MPI_Barrier(s->group[MF_GROUP_WORLD]), e);
    return MF_OK;
}

/* --- the table ----------------------------------------------------------------------------------
 */

const mf_comm_ops mf_mpi_ops = {
    .destroy = mf_mpi_destroy,
    .add = mf_mpi_add,
    .copy = copy,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .all_gather_v = all_gather_v,
    .reduce_scatter = reduce_scatter,
    .all_to_all = exchange,
    .ring = ring,
    .send = send_message,
    .wait_send = wait_send,
    .receive = receive_message,
    .barrier = barrier,
    .map_shared = mf_mpi_map_shared,
};

void mf_comm_mpi_set_longest(mf_comm *c, int64_t piece) {
    if (c->ops == &mf_mpi_ops) {
        ((mf_mpi_state *)c->state)->piece = piece;
    }
}

#else

void mf_comm_mpi_set_longest(mf_comm *c, int64_t piece) {
    (void)c, (void)piece;
}

#endif
