/* comm.c - communicators of a layout over MPI; local copies with one rank. */
#include "executor/comm.h"

#include "executor/comm_wait.h"
#include "kernels/kernel.h"

#include <stdlib.h>
#include <string.h>

#ifdef MF_HAVE_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>
#endif

enum { GROUPS = MF_GROUP_COUNT + MF_COMM_MAX_ADDED };

struct mf_comm {
    mf_layout layout;
    int64_t rank;
    int added;
    int64_t size[GROUPS], member[GROUPS];
#ifdef MF_HAVE_MPI
    MPI_Comm group[GROUPS];
    MPI_Comm pipeline; /* the world again, for messages between stages */
    MPI_Request send[MF_COMM_SLOTS];
    uint16_t *pieces; /* of a sum of BF16; lent, or own */
    int64_t pieces_room;
    uint16_t *own_pieces;
#endif
};

static size_t type_B(mf_comm_type t) {
    return t == MF_COMM_F64 ? 8 : t == MF_COMM_BF16 ? 2 : 4;
}

bool mf_comm_has_mpi(void) {
#ifdef MF_HAVE_MPI
    return true;
#else
    return false;
#endif
}

int64_t mf_comm_rank(const mf_comm *c) {
    return c->rank;
}

int64_t mf_comm_group_size(const mf_comm *c, mf_group_kind g) {
    return c->size[g];
}

int64_t mf_comm_group_rank(const mf_comm *c, mf_group_kind g) {
    return c->member[g];
}

#ifdef MF_HAVE_MPI

/* The one way MPI's results travel: its own words and the call's text. */
#define MF_MPI_TRY(call, e)                                                                        \
    do {                                                                                           \
        int mpi_result_ = (call);                                                                  \
        if (mpi_result_ != MPI_SUCCESS) {                                                          \
            return mpi_failed(mpi_result_, #call, e);                                              \
        }                                                                                          \
    } while (0)

static mf_status mpi_failed(int result, const char *call, mf_err *e) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(result, text, &length);
    return mf_err_set(e, MF_LIBRARY, "MPI: %.80s: %s", call, text);
}

bool mf_comm_launched(void) {
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK",
                                        "SLURM_STEP_ID"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (getenv(marks[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static bool running(void) {
    int started = 0, ended = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    return started && !ended;
}

/* Do more ranks stand on this host than it has cores? */
static mf_status count_neighbours(bool *crowded, mf_err *e) {
    MPI_Comm host;
    int here = 1;
    MF_MPI_TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
               e);
    MF_MPI_TRY(MPI_Comm_size(host, &here), e);
    MF_MPI_TRY(MPI_Comm_free(&host), e);
    *crowded = here > sysconf(_SC_NPROCESSORS_ONLN);
    return MF_OK;
}

mf_status mf_comm_start(int64_t *rank, int64_t *size, mf_err *e) {
    *rank = 0;
    *size = 1;
    if (!mf_comm_launched()) {
        return MF_OK;
    }
    int r, n;
    bool first = !running(), crowded = false;
    if (first) {
        MF_MPI_TRY(MPI_Init(NULL, NULL), e);
    }
    MF_MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), e);
    mf_status status = first ? count_neighbours(&crowded, e) : MF_OK;
    if (status != MF_OK) {
        return status;
    }
    if (first) {
        mf_comm_wait_asleep(crowded);
    }
    MF_MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &r), e);
    MF_MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &n), e);
    *rank = r;
    *size = n;
    return MF_OK;
}

void mf_comm_stop(void) {
    if (running()) {
        MPI_Finalize();
    }
}

void mf_comm_abort(int code) {
    if (running()) {
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    exit(code);
}

static MPI_Datatype datatype(mf_comm_type t) {
    return t == MF_COMM_F32   ? MPI_FLOAT
           : t == MF_COMM_F64 ? MPI_DOUBLE
           : t == MF_COMM_I32 ? MPI_INT32_T
                              : MPI_UINT16_T; /* moved, never summed */
}

static mf_status connect_groups(mf_comm *c, mf_err *e) {
    MF_MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &c->pipeline), e);
    for (int g = 0; g < MF_GROUP_COUNT; g++) {
        if (mf_layout_group(&c->layout, (mf_group_kind)g).size == 1) {
            continue;
        }
        int64_t first = mf_layout_group_first(&c->layout, (mf_group_kind)g, c->rank);
        MF_MPI_TRY(MPI_Comm_split(MPI_COMM_WORLD, (int)first, (int)c->rank, &c->group[g]), e);
        MF_MPI_TRY(MPI_Comm_set_errhandler(c->group[g], MPI_ERRORS_RETURN), e);
        double sum = 1.0;
        mf_status status =
            mf_comm_all_reduce(c, (mf_group_kind)g, MF_COMM_F64, MF_COMM_SUM, &sum, 1, e);
        int member = -1;
        MPI_Comm_rank(c->group[g], &member);
        if (status != MF_OK) {
            return status;
        }
        if ((int64_t)(sum + 0.5) != c->size[g] || member != c->member[g]) {
            return mf_err_set(e, MF_LIBRARY, "MPI: group %s has %g members, not %lld",
                              mf_group_text((mf_group_kind)g), sum, (long long)c->size[g]);
        }
    }
    return MF_OK;
}

mf_status mf_comm_create(const mf_layout *l, mf_comm **out, mf_err *e) {
    *out = NULL;
    int rank = 0, size = 1;
    if (running()) {
        MF_MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &rank), e);
        MF_MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &size), e);
    }
    if (l->gpus != size) {
        return mf_err_set(e, MF_LAYOUT, "the layout is for %lld ranks, %d are running",
                          (long long)l->gpus, size);
    }
    mf_comm *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return mf_err_set(e, MF_NOMEM, "communicators: out of memory");
    }
    c->layout = *l;
    c->rank = rank;
    c->pipeline = MPI_COMM_NULL;
    for (int i = 0; i < MF_COMM_SLOTS; i++) {
        c->send[i] = MPI_REQUEST_NULL;
    }
    for (int g = 0; g < GROUPS; g++) {
        c->group[g] = MPI_COMM_NULL;
    }
    for (int g = 0; g < MF_GROUP_COUNT; g++) {
        mf_group_shape s = mf_layout_group(l, (mf_group_kind)g);
        c->size[g] = s.size;
        c->member[g] = c->rank / s.stride % s.size;
    }
    mf_status status = size > 1 ? connect_groups(c, e) : MF_OK;
    if (status != MF_OK) {
        mf_comm_destroy(c);
        return status;
    }
    *out = c;
    return MF_OK;
}

mf_status mf_comm_add(mf_comm *c, int64_t color, mf_group_kind *out, mf_err *e) {
    if (c->added == MF_COMM_MAX_ADDED) {
        return mf_err_set(e, MF_INTERNAL, "no room for another group");
    }
    int g = MF_GROUP_COUNT + c->added++, size = 1, member = 0;
    if (c->layout.gpus > 1) {
        MF_MPI_TRY(MPI_Comm_split(MPI_COMM_WORLD, color < 0 ? MPI_UNDEFINED : (int)color,
                                  (int)c->rank, &c->group[g]),
                   e);
    }
    if (c->group[g] != MPI_COMM_NULL) {
        MF_MPI_TRY(MPI_Comm_set_errhandler(c->group[g], MPI_ERRORS_RETURN), e);
        MF_MPI_TRY(MPI_Comm_size(c->group[g], &size), e);
        MF_MPI_TRY(MPI_Comm_rank(c->group[g], &member), e);
    }
    c->size[g] = size;
    c->member[g] = member;
    *out = (mf_group_kind)g;
    return MF_OK;
}

void mf_comm_destroy(mf_comm *c) {
    if (c == NULL) {
        return;
    }
    if (running()) {
        for (int g = 0; g < GROUPS; g++) {
            if (c->group[g] != MPI_COMM_NULL) {
                MPI_Comm_free(&c->group[g]);
            }
        }
        if (c->pipeline != MPI_COMM_NULL) {
            MPI_Comm_free(&c->pipeline);
        }
    }
    free(c->own_pieces);
    free(c);
}

mf_status mf_comm_all_reduce(mf_comm *c, mf_group_kind g, mf_comm_type type, mf_comm_reduce op,
                             void *data, int64_t count, mf_err *e) {
    if (c->size[g] > 1 && type == MF_COMM_BF16) {
        return mf_err_set(e, MF_INTERNAL, "no program sums BF16 over all of a group's ranks");
    }
    if (c->size[g] > 1) {
        MF_MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, data, (int)count, datatype(type),
                                 op == MF_COMM_MAX ? MPI_MAX : MPI_SUM, c->group[g]),
                   e);
    }
    return MF_OK;
}

mf_status mf_comm_all_gather(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                             void *out, int64_t count, mf_err *e) {
    if (c->size[g] == 1) {
        memmove(out, in, (size_t)count * type_B(type));
        return MF_OK;
    }
    MF_MPI_TRY(
        MPI_Allgather(in, (int)count, datatype(type), out, (int)count, datatype(type), c->group[g]),
        e);
    return MF_OK;
}

/* Counts and displacements as MPI takes them, in units of `unit`. */
typedef struct int_counts {
    int count[MF_COMM_MAX_GROUP], at[MF_COMM_MAX_GROUP];
} int_counts;

static void narrow(const int64_t *counts, int64_t members, size_t unit, int_counts *out) {
    int at = 0;
    for (int64_t i = 0; i < members; i++) {
        out->count[i] = (int)counts[i] * (int)unit;
        out->at[i] = at;
        at += out->count[i];
    }
}

mf_status mf_comm_all_gather_v(mf_comm *c, mf_group_kind g, mf_comm_type type, void *data,
                               const int64_t *counts, mf_err *e) {
    int_counts n;
    if (c->size[g] == 1) {
        return MF_OK;
    }
    narrow(counts, c->size[g], 1, &n);
    MF_MPI_TRY(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, n.count, n.at,
                              datatype(type), c->group[g]),
               e);
    return MF_OK;
}

void mf_comm_lend(mf_comm *c, void *room, int64_t elements) {
    c->pieces = room;
    c->pieces_room = elements;
}

/* The pieces of all members, summed in float in order of group rank, rounded once. */
static mf_status sum_bf16(mf_comm *c, mf_group_kind g, const void *in, void *out,
                          const int64_t *counts, mf_err *e) {
    int64_t members = c->size[g], own = counts[c->member[g]], room = members * own;
    int_counts send, receive;
    int64_t same[MF_COMM_MAX_GROUP];
    if (room > c->pieces_room) { /* grows in the first step, then stands */
        uint16_t *pieces = realloc(c->own_pieces, (size_t)room * sizeof *pieces);
        if (pieces == NULL) {
            return mf_err_set(e, MF_NOMEM, "ranks: out of memory");
        }
        c->pieces = c->own_pieces = pieces;
        c->pieces_room = room;
    }
    for (int64_t i = 0; i < members; i++) {
        same[i] = own;
    }
    narrow(counts, members, 1, &send);
    narrow(same, members, 1, &receive);
    MF_MPI_TRY(MPI_Alltoallv(in, send.count, send.at, MPI_UINT16_T, c->pieces, receive.count,
                             receive.at, MPI_UINT16_T, c->group[g]),
               e);
    for (int64_t k = 0; k < own; k++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < members; i++) {
            sum += mf_kernel_bf16_widen(c->pieces[i * own + k]);
        }
        ((uint16_t *)out)[k] = mf_kernel_bf16_round(sum);
    }
    return MF_OK;
}

mf_status mf_comm_reduce_scatter(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                                 void *out, const int64_t *counts, mf_err *e) {
    int_counts n;
    if (c->size[g] == 1) {
        memmove(out, in, (size_t)counts[0] * type_B(type));
        return MF_OK;
    }
    if (type == MF_COMM_BF16) {
        return sum_bf16(c, g, in, out, counts, e);
    }
    narrow(counts, c->size[g], 1, &n);
    MF_MPI_TRY(MPI_Reduce_scatter(in, out, n.count, datatype(type), MPI_SUM, c->group[g]), e);
    return MF_OK;
}

mf_status mf_comm_all_to_all(mf_comm *c, mf_group_kind g, size_t width, const void *in,
                             const int64_t *send, void *out, const int64_t *receive, mf_err *e) {
    int_counts s, r;
    if (c->size[g] == 1) {
        memmove(out, in, (size_t)send[0] * width);
        return MF_OK;
    }
    narrow(send, c->size[g], width, &s);
    narrow(receive, c->size[g], width, &r);
    MF_MPI_TRY(
        MPI_Alltoallv(in, s.count, s.at, MPI_BYTE, out, r.count, r.at, MPI_BYTE, c->group[g]), e);
    return MF_OK;
}

mf_status mf_comm_ring(mf_comm *c, mf_group_kind g, int64_t steps, const void *in, void *out,
                       size_t size_B, mf_err *e) {
    int64_t n = c->size[g], me = c->member[g];
    if (n == 1) {
        memmove(out, in, size_B);
        return MF_OK;
    }
    int to = (int)((me + steps + n) % n), from = (int)((me - steps + n) % n);
    MF_MPI_TRY(MPI_Sendrecv(in, (int)size_B, MPI_BYTE, to, 0, out, (int)size_B, MPI_BYTE, from, 0,
                            c->group[g], MPI_STATUS_IGNORE),
               e);
    return MF_OK;
}

mf_status mf_comm_send(mf_comm *c, int slot, int64_t to, int tag, const void *data, size_t size_B,
                       mf_err *e) {
    MF_MPI_TRY(MPI_Isend(data, (int)size_B, MPI_BYTE, (int)to, tag, c->pipeline, &c->send[slot]),
               e);
    return MF_OK;
}

mf_status mf_comm_wait_send(mf_comm *c, int slot, mf_err *e) {
    MF_MPI_TRY(MPI_Wait(&c->send[slot], MPI_STATUS_IGNORE), e);
    return MF_OK;
}

mf_status mf_comm_receive(mf_comm *c, int64_t from, int tag, void *data, size_t size_B, mf_err *e) {
    MF_MPI_TRY(
        MPI_Recv(data, (int)size_B, MPI_BYTE, (int)from, tag, c->pipeline, MPI_STATUS_IGNORE), e);
    return MF_OK;
}

mf_status mf_comm_barrier(mf_comm *c, mf_err *e) {
    if (c->size[MF_GROUP_WORLD] > 1) {
        MF_MPI_TRY(MPI_Barrier(c->group[MF_GROUP_WORLD]), e);
    }
    return MF_OK;
}

#else /* one rank */

mf_status mf_comm_start(int64_t *rank, int64_t *size, mf_err *e) {
    (void)e;
    *rank = 0;
    *size = 1;
    return MF_OK;
}

bool mf_comm_launched(void) {
    return false;
}

void mf_comm_stop(void) {
}

void mf_comm_abort(int code) {
    exit(code);
}

mf_status mf_comm_create(const mf_layout *l, mf_comm **out, mf_err *e) {
    *out = NULL;
    if (l->gpus != 1) {
        return mf_err_set(e, MF_LAYOUT, "the layout is for %lld ranks, and this build has no MPI",
                          (long long)l->gpus);
    }
    mf_comm *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return mf_err_set(e, MF_NOMEM, "communicators: out of memory");
    }
    c->layout = *l;
    for (int g = 0; g < GROUPS; g++) {
        c->size[g] = 1;
    }
    *out = c;
    return MF_OK;
}

mf_status mf_comm_add(mf_comm *c, int64_t color, mf_group_kind *out, mf_err *e) {
    (void)color;
    if (c->added == MF_COMM_MAX_ADDED) {
        return mf_err_set(e, MF_INTERNAL, "no room for another group");
    }
    *out = (mf_group_kind)(MF_GROUP_COUNT + c->added++);
    return MF_OK;
}

void mf_comm_destroy(mf_comm *c) {
    free(c);
}

mf_status mf_comm_all_reduce(mf_comm *c, mf_group_kind g, mf_comm_type type, mf_comm_reduce op,
                             void *data, int64_t count, mf_err *e) {
    (void)c, (void)g, (void)type, (void)op, (void)data, (void)count, (void)e;
    return MF_OK;
}

mf_status mf_comm_all_gather(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                             void *out, int64_t count, mf_err *e) {
    (void)c, (void)g, (void)e;
    memmove(out, in, (size_t)count * type_B(type));
    return MF_OK;
}

mf_status mf_comm_all_gather_v(mf_comm *c, mf_group_kind g, mf_comm_type type, void *data,
                               const int64_t *counts, mf_err *e) {
    (void)c, (void)g, (void)type, (void)data, (void)counts, (void)e;
    return MF_OK;
}

mf_status mf_comm_reduce_scatter(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                                 void *out, const int64_t *counts, mf_err *e) {
    (void)c, (void)g, (void)e;
    memmove(out, in, (size_t)counts[0] * type_B(type));
    return MF_OK;
}

mf_status mf_comm_all_to_all(mf_comm *c, mf_group_kind g, size_t width, const void *in,
                             const int64_t *send, void *out, const int64_t *receive, mf_err *e) {
    (void)c, (void)g, (void)receive, (void)e;
    memmove(out, in, (size_t)send[0] * width);
    return MF_OK;
}

mf_status mf_comm_ring(mf_comm *c, mf_group_kind g, int64_t steps, const void *in, void *out,
                       size_t size_B, mf_err *e) {
    (void)c, (void)g, (void)steps, (void)e;
    memmove(out, in, size_B);
    return MF_OK;
}

mf_status mf_comm_send(mf_comm *c, int slot, int64_t to, int tag, const void *data, size_t size_B,
                       mf_err *e) {
    (void)c, (void)slot, (void)to, (void)tag, (void)data, (void)size_B;
    return mf_err_set(e, MF_INTERNAL, "a send with one rank");
}

mf_status mf_comm_wait_send(mf_comm *c, int slot, mf_err *e) {
    (void)c, (void)slot, (void)e;
    return MF_OK;
}

mf_status mf_comm_receive(mf_comm *c, int64_t from, int tag, void *data, size_t size_B, mf_err *e) {
    (void)c, (void)from, (void)tag, (void)data, (void)size_B;
    return mf_err_set(e, MF_INTERNAL, "a receive with one rank");
}

mf_status mf_comm_barrier(mf_comm *c, mf_err *e) {
    (void)c, (void)e;
    return MF_OK;
}

#endif
