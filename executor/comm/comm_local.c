/* comm_local.c - ranks of one host without MPI, which meet in a shared file. Whoever starts them
 * names it in MOEFOLD_RANK, MOEFOLD_RANKS and MOEFOLD_RANKS_FILE (comm_launch.h does). */
#include "executor/comm/comm_local.h"
#include "executor/comm/comm_status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

mf_local mf_local_world = {.file = -1};

/* --- processes ----------------------------------------------------------------------------------
 */

static bool launched(void) {
    return getenv("MOEFOLD_RANK") != NULL && getenv("MOEFOLD_RANKS") != NULL &&
           getenv("MOEFOLD_RANKS_FILE") != NULL;
}

static bool running(void) {
    return mf_local_world.base != NULL;
}

/* A number below `end` of the environment; -1: there is none. */
static int64_t number(const char *name, int64_t end) {
    const char *text = getenv(name);
    char *rest = NULL;
    errno = 0;
    long long n = text == NULL ? -1 : strtoll(text, &rest, 10);
    return text == NULL || errno != 0 || rest == text || *rest != '\0' || n < 0 || n >= end ? -1
                                                                                            : n;
}

static mf_status start(mf_err *e) {
    if (running()) {
        return MF_OK;
    }
    int64_t ranks = number("MOEFOLD_RANKS", MF_COMM_MAX_GROUP + 1);
    int64_t rank = number("MOEFOLD_RANK", ranks);
    if (ranks < 1 || rank < 0) {
        return mf_err_set(e, MF_USAGE,
                          "MOEFOLD_RANK %s of MOEFOLD_RANKS %s: expected 0 <= rank < "
                          "ranks <= %d",
                          getenv("MOEFOLD_RANK"), getenv("MOEFOLD_RANKS"), MF_COMM_MAX_GROUP);
    }
    return mf_local_join(&mf_local_world, getenv("MOEFOLD_RANKS_FILE"), rank, ranks, e);
}

static mf_status place(int64_t *rank, int64_t *size, mf_err *e) {
    (void)e;
    *rank = mf_local_world.me;
    *size = mf_local_world.ranks;
    return MF_OK;
}

static void stop(void) {
    mf_local_leave(&mf_local_world);
}

static void end_all(int code) {
    mf_local_end(&mf_local_world, code);
}

/* --- memory of the host -------------------------------------------------------------------------
 */

typedef struct shared_view {
    void *data;
    uint64_t size_B;
} shared_view;

static void release(mf_comm_shared *shared) {
    shared_view *v = shared->own;
    mf_local_drop(v->data, v->size_B);
    free(v);
}

static mf_status map_shared(mf_comm *c, size_t head_B, size_t each_B, mf_comm_shared *out,
                            mf_err *e) {
    shared_view *v = calloc(1, sizeof *v);
    *out = (mf_comm_shared){
        .ranks = mf_local_world.ranks, .me = mf_local_world.me, .own = v, .release = release};
    mf_status all =
        mf_comm_agree(c, v != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "ranks: out of memory"), e);
    if (all != MF_OK || v == NULL) {
        free(v);
        return all;
    }
    v->size_B = head_B + (size_t)mf_local_world.ranks * each_B;
    uint64_t offset = 0;
    mf_status status =
        mf_local_world.me == 0 ? mf_local_take(&mf_local_world, v->size_B, &offset, e) : MF_OK;
    double place =
        status == MF_OK ? (double)offset : -1.0; /* only rank 0 has one: the others send 0 */
    mf_status sent = mf_local_all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_SUM, &place, 1, e);
    status = status == MF_OK ? sent : status;
    if (status == MF_OK && place < 0.0) {
        status = mf_err_set(e, MF_LIBRARY, "rank 0 has no memory to share");
    }
    if (status == MF_OK) {
        status = mf_local_view(&mf_local_world, (uint64_t)place, v->size_B, &v->data, e);
    }
    if (status != MF_OK) {
        free(v);
        return status;
    }
    out->data = v->data;
    return MF_OK;
}

/* --- communicators ------------------------------------------------------------------------------
 */

static mf_status copy(mf_comm *c, const void *in, void *out, size_t size_B, mf_err *e) {
    (void)c, (void)e;
    memmove(out, in, size_B);
    return MF_OK;
}

static void destroy(mf_comm *c) {
    mf_local_state *s = c->state;
    if (s == NULL) {
        return;
    }
    for (int i = 0; s->seen != NULL && i < mf_local_world.ranks * MF_COMM_SLOTS; i++) {
        mf_local_drop(s->seen[i].data, s->seen[i].allocated_B);
    }
    for (int g = 0; g < MF_COMM_GROUPS; g++) {
        free(s->group[g].who);
    }
    mf_local_world.live &= ~(UINT32_C(1) << s->live);
    free(s->seen);
    free(s);
}

/* A new group's rounds continue the counts of an earlier group in its row. All members have to pass
 * here before one of them counts on. */
static void follow(mf_comm *c, int g) {
    mf_local_state *s = c->state;
    uint64_t most = 0;
    for (int64_t i = 0; i < c->size[g]; i++) {
        int row = s->live * MF_COMM_GROUPS + g;
        uint64_t theirs = atomic_load(&mf_local_turn_of(s->group[g].who[i], row)->entered);
        most = theirs > most ? theirs : most;
    }
    s->group[g].round = most;
}

static int *list(int64_t n, mf_err *e) {
    int *who = calloc((size_t)n, sizeof *who);
    if (who == NULL) {
        mf_err_set(e, MF_NOMEM, "communicators: out of memory");
    }
    return who;
}

static mf_status add(mf_comm *c, int g, int64_t color, mf_err *e) {
    mf_local_state *s = c->state;
    int ranks = mf_local_world.ranks;
    int32_t mine = color < 0 ? -1 : (int32_t)color, *all = list(ranks, e);
    int *who = s->group[g].who = list(ranks, e);
    mf_status status = all == NULL || who == NULL
                           ? MF_NOMEM
                           : mf_local_all_gather(c, MF_GROUP_WORLD, MF_COMM_I32, &mine, all, 1, e);
    c->size[g] = 0;
    for (int r = 0; r < ranks && status == MF_OK; r++) {
        if (r == mf_local_world.me) {
            c->member[g] = c->size[g];
        }
        if (r == mf_local_world.me || (mine >= 0 && all[r] == mine)) {
            who[c->size[g]++] = r;
        }
    }
    free(all);
    if (status == MF_OK) {
        follow(c, g);
        status = mf_local_barrier(c, e);
    }
    return status;
}

/* The group of all ranks, before there is a communicator. */
static mf_status meet(mf_err *e) {
    mf_local_turn *own = mf_local_turn_of(mf_local_world.me, MF_LOCAL_ALL);
    uint64_t round = atomic_fetch_add(&own->entered, 1) + 1;
    mf_status status = MF_OK;
    for (int r = 0; r < mf_local_world.ranks && status == MF_OK; r++) {
        status = mf_local_wait(&mf_local_world, &mf_local_turn_of(r, MF_LOCAL_ALL)->entered, round,
                               r, e);
    }
    return status;
}

static mf_status connect_groups(mf_comm *c, mf_err *e) {
    mf_local_state *s = c->state;
    for (int g = 0; g < MF_GROUP_COUNT; g++) {
        mf_group_shape shape = mf_layout_group(&c->layout, (mf_group_kind)g);
        int64_t first = mf_layout_group_first(&c->layout, (mf_group_kind)g, c->rank);
        s->group[g].who = list(shape.size, e);
        if (s->group[g].who == NULL) {
            return MF_NOMEM;
        }
        for (int64_t i = 0; i < shape.size; i++) {
            s->group[g].who[i] = (int)(first + i * shape.stride);
        }
    }
    mf_status status = meet(e);
    for (int i = 0; i < MF_COMM_SLOTS; i++) { /* messages of a failed rank that nobody received */
        atomic_store(&mf_local_rank_of(&mf_local_world, mf_local_world.me)->slot[s->live][i].number,
                     0);
    }
    for (int g = 0; g < MF_GROUP_COUNT && status == MF_OK; g++) {
        follow(c, g);
    }
    status = status == MF_OK ? meet(e) : status;
    for (int g = 0; g < MF_GROUP_COUNT && status == MF_OK; g++) {
        status = c->size[g] > 1 ? mf_comm_try_group(c, g, "ranks", e) : MF_OK;
    }
    return status;
}

static const mf_comm_ops ops = {
    .destroy = destroy,
    .add = add,
    .copy = copy,
    .all_reduce = mf_local_all_reduce,
    .all_gather = mf_local_all_gather,
    .all_gather_v = mf_local_all_gather_v,
    .reduce_scatter = mf_local_reduce_scatter,
    .all_to_all = mf_local_all_to_all,
    .ring = mf_local_ring,
    .send = mf_local_send,
    .wait_send = mf_local_wait_send,
    .receive = mf_local_receive,
    .barrier = mf_local_barrier,
    .map_shared = map_shared,
};

static mf_status open_local(mf_comm *c, mf_err *e) {
    int live = 0;
    while (live < MF_LOCAL_LIVE && (mf_local_world.live >> live & 1) != 0) {
        live++;
    }
    if (live == MF_LOCAL_LIVE) {
        return mf_err_set(e, MF_INTERNAL, "more than %d communicators at a time", MF_LOCAL_LIVE);
    }
    mf_local_state *s = calloc(1, sizeof *s);
    c->ops = &ops;
    c->state = s;
    if (s == NULL) {
        return mf_err_set(e, MF_NOMEM, "communicators: out of memory");
    }
    s->live = live;
    mf_local_world.live |= UINT32_C(1) << live;
    s->seen = calloc((size_t)mf_local_world.ranks * MF_COMM_SLOTS, sizeof *s->seen);
    return s->seen == NULL ? mf_err_set(e, MF_NOMEM, "communicators: out of memory")
                           : connect_groups(c, e);
}

const mf_comm_transport mf_comm_local = {
    .launched = launched,
    .running = running,
    .start = start,
    .place = place,
    .stop = stop,
    .abort = end_all,
    .open = open_local,
};
