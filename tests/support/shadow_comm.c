/* shadow_comm.c - communication between the shadows of several processes, as NCCL does it: deferred
 * work of a queue, which others have to take part in (shadow_exchange.c). */
#include "tests/support/shadow_exchange.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- the table ----------------------------------------------------------------------------------
 */

/* An exchange of a channel with nothing to send or receive yet; *size_B of its arguments. NULL: no
 * memory. */
static exchange *exchange_new(const mf_comm *c, exchange_kind kind, int at, mf_comm_type type,
                              size_t *size_B) {
    const comm_state *s = c->state;
    const int n = s->channel[at].n;
    *size_B = sizeof(exchange) + (size_t)n * sizeof(share);
    exchange *x = calloc(1, *size_B);
    if (x != NULL) {
        x->kind = kind;
        x->channel = at;
        x->type = type;
        for (int k = 0; k < n; k++) {
            x->share[k].send_B = x->share[k].receive_B = -1;
        }
    }
    return x;
}

static mf_status check_memory(const shadow *d, const exchange *x, const char *p, int64_t size_B,
                              mf_err *e) {
    const shadow_allocation *r = size_B > 0 ? shadow_allocation_of(d, p, size_B) : NULL;
    return size_B <= 0 || (r != NULL && r->device)
               ? MF_OK
               : mf_err_set(e, MF_LIBRARY,
                            "shadow: %s (%s) of %lld bytes that are no device memory",
                            shadow_exchange_names[x->kind], d->label, (long long)size_B);
}

/* Enters an exchange, which it frees. */
static mf_status enter(mf_comm *c, exchange *x, size_t size_B, mf_err *e) {
    comm_state *s = c->state;
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    mf_status status = MF_OK;
    for (int k = 0; k < s->channel[x->channel].n && status == MF_OK; k++) {
        status = check_memory(s->device, x, x->share[k].from, x->share[k].send_B, e);
        status = status == MF_OK
                     ? check_memory(s->device, x, x->share[k].to, x->share[k].receive_B, e)
                     : status;
    }
    if (status == MF_OK && !s->device->preparing) {
        const shadow_item like = {.kind = SHADOW_COMM,
                                  .name = shadow_exchange_names[x->kind],
                                  .lane = s->channel[x->channel].lane,
                                  .args = x,
                                  .args_B = size_B,
                                  .comm = &shadow_exchange_work,
                                  .state = s};
        status = shadow_enter(s->device, s->queue, &like, NULL, e);
    }
    free(x);
    return status;
}

static void use_stream(mf_comm *c, void *stream) {
    comm_state *s = c->state;
    s->queue = stream != NULL ? stream : &s->device->queue[SHADOW_NO_STREAM];
}

static mf_status copy(mf_comm *c, const void *in, void *out, size_t size_B, mf_err *e) {
    const comm_state *s = c->state;
    return s->device->ops.copy(&s->queue->queue, out, in, size_B, e);
}

static mf_status all_reduce(mf_comm *c, int g, mf_comm_type type, mf_comm_reduce op, void *data,
                            int64_t count, mf_err *e) {
    size_t size_B;
    exchange *x = exchange_new(c, ALL_REDUCE, g, type, &size_B);
    for (int64_t k = 0; x != NULL && k < c->size[g]; k++) {
        x->sums = true;
        x->reduce = op;
        x->share[k] = (share){.from = data, .to = data};
        x->share[k].send_B = x->share[k].receive_B = count * (int64_t)mf_comm_type_B(type);
    }
    return enter(c, x, size_B, e);
}

static mf_status all_gather(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                            int64_t count, mf_err *e) {
    const int64_t each_B = count * (int64_t)mf_comm_type_B(type);
    size_t size_B;
    exchange *x = exchange_new(c, ALL_GATHER, g, type, &size_B);
    for (int64_t k = 0; x != NULL && k < c->size[g]; k++) {
        x->share[k] = (share){in, (char *)out + k * each_B, each_B, each_B};
    }
    return enter(c, x, size_B, e);
}

static mf_status all_gather_v(mf_comm *c, int g, mf_comm_type type, void *data,
                              const int64_t *counts, mf_err *e) {
    const int64_t width = (int64_t)mf_comm_type_B(type), me = c->member[g];
    size_t size_B;
    exchange *x = exchange_new(c, ALL_GATHER_V, g, type, &size_B);
    char *at = data, *own = data;
    for (int64_t k = 0; k < me; k++) {
        own += counts[k] * width;
    }
    for (int64_t k = 0; x != NULL && k < c->size[g]; k++) {
        x->share[k] = (share){own, at, counts[me] * width, counts[k] * width};
        at += counts[k] * width;
    }
    return enter(c, x, size_B, e);
}

static mf_status reduce_scatter(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                                const int64_t *counts, mf_err *e) {
    const int64_t width = (int64_t)mf_comm_type_B(type), own_B = counts[c->member[g]] * width;
    size_t size_B;
    exchange *x = exchange_new(c, REDUCE_SCATTER, g, type, &size_B);
    const char *from = in;
    for (int64_t k = 0; x != NULL && k < c->size[g]; k++) {
        x->sums = true;
        x->share[k] = (share){from, out, counts[k] * width, own_B};
        from += counts[k] * width;
    }
    return enter(c, x, size_B, e);
}

static mf_status all_to_all(mf_comm *c, int g, size_t width, const void *in, const int64_t *send,
                            void *out, const int64_t *receive, mf_err *e) {
    size_t size_B;
    exchange *x = exchange_new(c, ALL_TO_ALL, g, MF_COMM_I32, &size_B);
    const char *from = in;
    char *to = out;
    for (int64_t k = 0; x != NULL && k < c->size[g]; k++) {
        x->accepted = true;
        x->share[k] = (share){from, to, send[k] * (int64_t)width, receive[k] * (int64_t)width};
        from += x->share[k].send_B;
        to += x->share[k].receive_B;
    }
    return enter(c, x, size_B, e);
}

static mf_status ring(mf_comm *c, int g, int64_t to, int64_t from, const void *in, void *out,
                      size_t bytes, mf_err *e) {
    size_t size_B;
    exchange *x = exchange_new(c, RING, g, MF_COMM_I32, &size_B);
    if (x != NULL) {
        x->accepted = true;
        x->share[to].from = in;
        x->share[to].send_B = (int64_t)bytes;
        x->share[from].to = out;
        x->share[from].receive_B = (int64_t)bytes;
    }
    return enter(c, x, size_B, e);
}

static mf_status barrier(mf_comm *c, mf_err *e) {
    size_t size_B;
    exchange *x = exchange_new(c, BARRIER, MF_GROUP_WORLD, MF_COMM_I32, &size_B);
    for (int64_t k = 0; x != NULL && k < c->size[MF_GROUP_WORLD]; k++) {
        x->share[k].send_B = x->share[k].receive_B = 0;
    }
    return enter(c, x, size_B, e);
}

/* --- messages between stages ---------------------------------------------------------------------
 */

/* Of a slot the line to the next stage, or to the one before. Of two stages, which are both to each
 * other, messages count as going up: as with NCCL. -1: no neighbour. */
static int line_to(const mf_comm *c, int slot, int64_t rank, bool sends) {
    const comm_state *s = c->state;
    const int next = MF_COMM_GROUPS + 2 * slot, before = next + 1;
    bool above = s->channel[next].n == 2 && s->channel[next].who[1] == rank;
    bool below = s->channel[before].n == 2 && s->channel[before].who[1] == rank;
    return above && below ? (sends ? next : before) : above ? next : below ? before : -1;
}

static mf_status message(mf_comm *c, int slot, int64_t rank, int tag, const void *from, void *to,
                         size_t bytes, mf_err *e) {
    const int line = line_to(c, slot, rank, from != NULL);
    size_t size_B;
    if (line < 0) {
        return mf_err_set(e, MF_INTERNAL, "rank %lld and rank %lld are no neighbouring stages",
                          (long long)c->rank, (long long)rank);
    }
    exchange *x = exchange_new(c, from != NULL ? SEND : RECEIVE, line, MF_COMM_I32, &size_B);
    if (x != NULL) {
        x->tag = tag;
        x->accepted = true;
        x->share[1] = (share){.from = from, .to = to};
        x->share[1].send_B = from != NULL ? (int64_t)bytes : -1;
        x->share[1].receive_B = from != NULL ? -1 : (int64_t)bytes;
    }
    return enter(c, x, size_B, e);
}

static mf_status send_message(mf_comm *c, int slot, int64_t to, int tag, const void *data,
                              size_t size_B, mf_err *e) {
    return message(c, slot, to, tag, data, NULL, size_B, e);
}

static mf_status receive_message(mf_comm *c, int slot, int64_t from, int tag, void *data,
                                 size_t size_B, mf_err *e) {
    return message(c, slot, from, tag, NULL, data, size_B, e);
}

/* --- making them ---------------------------------------------------------------------------------
 */

static mf_status make_channel(comm_state *s, int at, int64_t first, int64_t stride, int64_t n,
                              int64_t me, mf_err *e) {
    shadow *d = s->device;
    channel *c = &s->channel[at];
    c->who = calloc((size_t)n + 1, sizeof *c->who);
    shadow_lane *lane = realloc(d->lane, ((size_t)d->lanes + 1) * sizeof *lane);
    d->lane = lane != NULL ? lane : d->lane;
    if (c->who == NULL || lane == NULL) {
        return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    d->lane[d->lanes] = (shadow_lane){{NULL}};
    c->lane = d->lanes++;
    c->n = (int)n;
    c->me = (int)me;
    for (int64_t k = 0; k < n; k++) {
        c->who[k] = (int)(first + k * stride);
    }
    return MF_OK;
}

/* This rank, and the one `up` stages on in its pipeline. */
static mf_status make_line(mf_comm *c, int at, int64_t up, mf_err *e) {
    comm_state *s = c->state;
    const int64_t stages = c->size[MF_GROUP_PP], own = c->member[MF_GROUP_PP];
    const int64_t other = (own + up + stages) % stages;
    mf_status status = make_channel(s, at, c->rank, 0, stages > 1 ? 2 : 1, 0, e);
    if (status == MF_OK && stages > 1) {
        s->channel[at].who[1] = (int)(mf_layout_group_first(&c->layout, MF_GROUP_PP, c->rank) +
                                      other * mf_layout_group(&c->layout, MF_GROUP_PP).stride);
    }
    return status;
}

static mf_status add(mf_comm *c, int g, int64_t color, mf_err *e) {
    comm_state *s = c->state;
    const int64_t ranks = c->layout.gpus;
    double own = (double)color, *all = calloc((size_t)ranks + 1, sizeof *all);
    if (all == NULL) {
        return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    mf_status status = mf_comm_all_gather(s->host, MF_GROUP_WORLD, MF_COMM_F64, &own, all, 1, e);
    status = status == MF_OK ? make_channel(s, g, 0, 1, ranks, 0, e) : status;
    c->size[g] = c->member[g] = 0;
    for (int64_t k = 0; k < ranks && status == MF_OK; k++) {
        if (color >= 0 && (int64_t)all[k] == color) {
            c->member[g] = k == c->rank ? c->size[g] : c->member[g];
            s->channel[g].who[c->size[g]++] = (int)k;
        }
    }
    s->channel[g].n = (int)c->size[g];
    s->channel[g].me = (int)c->member[g];
    c->size[g] = c->size[g] > 0 ? c->size[g] : 1;
    free(all);
    return status;
}

/* Memory that all ranks see: of a file that rank 0 makes, and that is gone from its folder when all
 * have it. */
static mf_status map_shared(comm_state *s, mf_err *e) {
    const size_t size_B = shadow_shared_B(s->ranks);
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    union {
        char text[FILE_NAME];
        int32_t words[FILE_NAME / 4];
    } u;
    int file = -1;
    memset(&u, 0, sizeof u);
    if (mf_comm_rank(s->host) == 0) {
        snprintf(u.text, sizeof u.text, "%s/moefold-shadow-XXXXXX", base);
        file = mkstemp(u.text);
        file = file >= 0 && ftruncate(file, (off_t)size_B) == 0 ? file : -1;
    }
    mf_status status = mf_comm_all_reduce(s->host, MF_GROUP_WORLD, MF_COMM_I32, MF_COMM_SUM,
                                          u.words, FILE_NAME / 4, e);
    if (status == MF_OK && mf_comm_rank(s->host) > 0) {
        file = open(u.text, O_RDWR);
    }
    void *shared =
        file >= 0 ? mmap(NULL, size_B, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    s->shared = shared != MAP_FAILED ? shared : NULL;
    status = status == MF_OK ? mf_comm_barrier(s->host, e) : status;
    if (mf_comm_rank(s->host) == 0) {
        (void)unlink(u.text);
    }
    if (file >= 0) {
        close(file);
    }
    return status == MF_OK && s->shared == NULL
               ? mf_err_set(e, MF_IO, "shadow: %s: no memory for several ranks", base)
               : status;
}

static void destroy(mf_comm *c) {
    comm_state *s = c->state;
    mf_err ignored;
    if (s == NULL) {
        return;
    }
    (void)shadow_run(s->device, NULL, &ignored);
    if (s->shared != NULL) {
        munmap(s->shared, shadow_shared_B(s->ranks));
    }
    for (int k = 0; k < CHANNELS; k++) {
        free(s->channel[k].who);
    }
    free(s);
}

static const mf_comm_ops ops = {
    .destroy = destroy,
    .add = add,
    .use_stream = use_stream,
    .copy = copy,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .all_gather_v = all_gather_v,
    .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all,
    .ring = ring,
    .send = send_message,
    .receive = receive_message,
    .barrier = barrier,
};

mf_status shadow_comm_create(mf_device *d, mf_comm *host, const mf_layout *l, mf_comm **out,
                             mf_err *e) {
    *out = NULL;
    mf_comm *c = mf_comm_new(l, mf_comm_rank(host), e);
    comm_state *s = c != NULL ? calloc(1, sizeof *s) : NULL;
    if (s == NULL) {
        mf_comm_destroy(c);
        return mf_err_set(e, MF_NOMEM, "shadow: out of memory");
    }
    c->ops = &ops;
    c->state = s;
    s->device = shadow_of(d);
    s->host = host;
    use_stream(c, NULL);
    s->ranks = l->gpus;
    mf_status status = map_shared(s, e);
    for (int g = 0; g < MF_GROUP_COUNT && status == MF_OK; g++) {
        const mf_group_kind kind = (mf_group_kind)g;
        status = make_channel(s, g, mf_layout_group_first(l, kind, c->rank),
                              mf_layout_group(l, kind).stride, c->size[g], c->member[g], e);
    }
    for (int i = 0; i < 2 * MF_COMM_SLOTS && status == MF_OK; i++) {
        status = make_line(c, MF_COMM_GROUPS + i, i % 2 == 0 ? 1 : -1, e);
    }
    if (status != MF_OK) {
        mf_comm_destroy(c);
        return status;
    }
    *out = c;
    return MF_OK;
}
