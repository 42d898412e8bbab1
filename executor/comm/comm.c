/* comm.c - what all communicators have in common: sizes and ranks of groups, groups of one member,
 * and calls into the implementation's table. */
#include "executor/comm/comm_ops.h"

#include <assert.h>
#include <stdlib.h>

/* The transports; the first that applies is used. */
static const mf_comm_transport *const transports[] = {
    &mf_comm_local,
#ifdef MF_HAVE_MPI
    &mf_comm_mpi,
#endif
    &mf_comm_one,
};
enum { TRANSPORTS = sizeof transports / sizeof transports[0] };

static const mf_comm_transport *launched(void) {
    for (size_t i = 0; i < TRANSPORTS; i++) {
        if (transports[i]->launched()) {
            return transports[i];
        }
    }
    return &mf_comm_one;
}

static const mf_comm_transport *running(void) {
    for (size_t i = 0; i < TRANSPORTS; i++) {
        if (transports[i]->running()) {
            return transports[i];
        }
    }
    return &mf_comm_one;
}

/* --- processes ----------------------------------------------------------------------------------
 */

bool mf_comm_has_mpi(void) {
#ifdef MF_HAVE_MPI
    return true;
#else
    return false;
#endif
}

bool mf_comm_launched(void) {
    return launched() != &mf_comm_one;
}

mf_status mf_comm_start(int64_t *rank, int64_t *size, mf_err *e) {
    const mf_comm_transport *t = launched();
    *rank = 0;
    *size = 1;
    mf_status status = t->start(e);
    return status == MF_OK ? t->place(rank, size, e) : status;
}

void mf_comm_stop(void) {
    running()->stop();
}

void mf_comm_abort(int code) {
    running()->abort(code);
    exit(code);
}

/* --- communicators ------------------------------------------------------------------------------
 */

size_t mf_comm_type_B(mf_comm_type type) {
    return type == MF_COMM_F64 ? 8 : type == MF_COMM_BF16 ? 2 : 4;
}

mf_comm *mf_comm_new(const mf_layout *l, int64_t rank, mf_err *e) {
    mf_comm *c = calloc(1, sizeof *c);
    if (c == NULL) {
        mf_err_set(e, MF_NOMEM, "communicators: out of memory");
        return NULL;
    }
    c->layout = *l;
    c->rank = rank;
    for (int g = 0; g < MF_COMM_GROUPS; g++) {
        mf_group_shape s = {1, 1};
        if (g < MF_GROUP_COUNT) {
            s = mf_layout_group(l, (mf_group_kind)g);
        }
        c->size[g] = s.size;
        c->member[g] = rank / s.stride % s.size;
    }
    return c;
}

mf_status mf_comm_create(const mf_layout *l, mf_comm **out, mf_err *e) {
    const mf_comm_transport *t = running();
    int64_t rank, size;
    *out = NULL;
    mf_status status = t->place(&rank, &size, e);
    if (status != MF_OK) {
        return status;
    }
    if (l->gpus != size) {
        return mf_err_set(e, MF_LAYOUT, "the layout is for %lld ranks, %lld are running",
                          (long long)l->gpus, (long long)size);
    }
    mf_comm *c = mf_comm_new(l, rank, e);
    if (c == NULL) {
        return MF_NOMEM;
    }
    status = (size > 1 ? t : &mf_comm_one)->open(c, e);
    if (status != MF_OK) {
        mf_comm_destroy(c);
        return status;
    }
    *out = c;
    return MF_OK;
}

void mf_comm_destroy(mf_comm *c) {
    if (c != NULL && c->ops != NULL && c->ops->destroy != NULL) {
        c->ops->destroy(c);
    }
    free(c);
}

void mf_comm_add_again(mf_comm *c) {
    c->asked = 0;
}

mf_status mf_comm_add(mf_comm *c, int64_t color, mf_group_kind *out, mf_err *e) {
    *out = (mf_group_kind)(MF_GROUP_COUNT + c->asked);
    if (c->asked < c->added) {
        c->asked++;
        return MF_OK;
    }
    if (c->added == MF_COMM_MAX_ADDED) {
        return mf_err_set(e, MF_INTERNAL, "no place for another group");
    }
    c->asked = ++c->added;
    return c->ops->add(c, (int)*out, color, e);
}

mf_status mf_comm_try_group(mf_comm *c, int g, const char *library, mf_err *e) {
    double sum = 1.0;
    mf_status status = c->ops->all_reduce(c, g, MF_COMM_F64, MF_COMM_SUM, &sum, 1, e);
    if (status == MF_OK && (int64_t)(sum + 0.5) != c->size[g]) {
        return mf_err_set(e, MF_LIBRARY, "%s: group %s has %g members, not %lld", library,
                          mf_group_text((mf_group_kind)g), sum, (long long)c->size[g]);
    }
    return status;
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

void mf_comm_lend(mf_comm *c, void *memory, int64_t elements) {
    c->lent = memory;
    c->lent_elements = elements;
}

void mf_comm_use_stream(mf_comm *c, void *stream) {
    if (c->ops->use_stream != NULL) {
        c->ops->use_stream(c, stream);
    }
}

mf_status mf_comm_map_shared(mf_comm *c, size_t head_B, size_t each_B, mf_comm_shared *out,
                             mf_err *e) {
    if (c->ops->map_shared == NULL) {
        return mf_err_set(e, MF_INTERNAL, "ranks: no memory to share");
    }
    return c->ops->map_shared(c, head_B, each_B, out, e);
}

mf_status mf_comm_place_in_host(mf_comm *c, int64_t *out, mf_err *e) {
    mf_comm_shared s = {0};
    *out = 0;
    if (c->size[MF_GROUP_WORLD] == 1) {
        return MF_OK;
    }
    mf_status status = mf_comm_map_shared(c, 1, 1, &s, e);
    if (status == MF_OK) {
        *out = s.me;
        assert(s.release != NULL);
        s.release(&s);
    }
    return status;
}

/* --- waiting ------------------------------------------------------------------------------------
 */

void mf_comm_on_wait(mf_comm *c, mf_comm_wait_fn fn, void *user) {
    c->on_wait = fn;
    c->on_wait_user = user;
}

static void tell_wait(const mf_comm *c, bool waits) {
    if (c->on_wait != NULL) {
        c->on_wait(c->on_wait_user, waits);
    }
}

static mf_status after_wait(const mf_comm *c, mf_status status) {
    tell_wait(c, false);
    return status;
}

/* A call that waits for other ranks. */
#define WAITING(call) (tell_wait(c, true), after_wait(c, call))

/* --- operations ---------------------------------------------------------------------------------
 */

static mf_status copy(mf_comm *c, const void *in, void *out, int64_t count, size_t width,
                      mf_err *e) {
    return in == out || count == 0 ? MF_OK : c->ops->copy(c, in, out, (size_t)count * width, e);
}

mf_status mf_comm_all_reduce(mf_comm *c, mf_group_kind g, mf_comm_type type, mf_comm_reduce op,
                             void *data, int64_t count, mf_err *e) {
    return c->size[g] == 1 ? MF_OK
                           : WAITING(c->ops->all_reduce(c, (int)g, type, op, data, count, e));
}

mf_status mf_comm_all_gather(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                             void *out, int64_t count, mf_err *e) {
    return c->size[g] == 1 ? copy(c, in, out, count, mf_comm_type_B(type), e)
                           : WAITING(c->ops->all_gather(c, (int)g, type, in, out, count, e));
}

mf_status mf_comm_all_gather_v(mf_comm *c, mf_group_kind g, mf_comm_type type, void *data,
                               const int64_t *counts, mf_err *e) {
    return c->size[g] == 1 ? MF_OK
                           : WAITING(c->ops->all_gather_v(c, (int)g, type, data, counts, e));
}

mf_status mf_comm_reduce_scatter(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                                 void *out, const int64_t *counts, mf_err *e) {
    return c->size[g] == 1 ? copy(c, in, out, counts[0], mf_comm_type_B(type), e)
                           : WAITING(c->ops->reduce_scatter(c, (int)g, type, in, out, counts, e));
}

mf_status mf_comm_all_to_all(mf_comm *c, mf_group_kind g, size_t width, const void *in,
                             const int64_t *send, void *out, const int64_t *receive, mf_err *e) {
    return c->size[g] == 1
               ? copy(c, in, out, send[0], width, e)
               : WAITING(c->ops->all_to_all(c, (int)g, width, in, send, out, receive, e));
}

mf_status mf_comm_ring(mf_comm *c, mf_group_kind g, int64_t steps, const void *in, void *out,
                       size_t size_B, mf_err *e) {
    int64_t n = c->size[g], me = c->member[g], ahead = (steps % n + n) % n;
    return ahead == 0 ? copy(c, in, out, 1, size_B, e)
                      : WAITING(c->ops->ring(c, (int)g, (me + ahead) % n, (me + n - ahead) % n, in,
                                             out, size_B, e));
}

mf_status mf_comm_send(mf_comm *c, int slot, int64_t to, int tag, const void *data, size_t size_B,
                       mf_err *e) {
    assert(slot >= 0 && slot < MF_COMM_SLOTS);
    return c->ops->send == NULL ? mf_err_set(e, MF_INTERNAL, "a send with one rank")
                                : c->ops->send(c, slot, to, tag, data, size_B, e);
}

mf_status mf_comm_wait_send(mf_comm *c, int slot, mf_err *e) {
    return c->ops->wait_send == NULL ? MF_OK : WAITING(c->ops->wait_send(c, slot, e));
}

mf_status mf_comm_receive(mf_comm *c, int slot, int64_t from, int tag, void *data, size_t size_B,
                          mf_err *e) {
    assert(slot >= 0 && slot < MF_COMM_SLOTS);
    return c->ops->receive == NULL ? mf_err_set(e, MF_INTERNAL, "a receive with one rank")
                                   : WAITING(c->ops->receive(c, slot, from, tag, data, size_B, e));
}

mf_status mf_comm_barrier(mf_comm *c, mf_err *e) {
    return c->size[MF_GROUP_WORLD] == 1 ? MF_OK : WAITING(c->ops->barrier(c, e));
}
