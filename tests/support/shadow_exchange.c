/* shadow_exchange.c - how ranks exchange: what a member gives to another lies in memory that both
 * see, in one of two places that they use in turns, until it is taken. */
#include "tests/support/shadow_exchange.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const shadow_exchange_names[] = {"all_reduce",     "all_gather", "all_gather_v",
                                             "reduce_scatter", "all_to_all", "ring",
                                             "send",           "receive",    "barrier"};

/* A place in the shared memory. A member that is in turn t has been met in turn t - 1: two turns at
 * a time are under way. */
typedef struct letter {
    atomic_ullong given, taken; /* turns */
    int kind, type, reduce, tag;
    int64_t size_B;
    char label[SHADOW_LABEL];
} letter;

enum { PLACE_B = 512 << 10, NUMBERS = MF_COMM_GROUPS + MF_COMM_SLOTS };

size_t shadow_shared_B(int64_t ranks) {
    return (size_t)(NUMBERS * ranks * ranks * 2) * PLACE_B;
}

static void channel_name(const comm_state *s, const exchange *x, char *text, size_t size) {
    if (x->channel >= MF_COMM_GROUPS) {
        snprintf(text, size, "slot %d", (x->channel - MF_COMM_GROUPS) / 2);
    } else if (x->channel < MF_GROUP_COUNT) {
        snprintf(text, size, "group %s", mf_group_text((mf_group_kind)x->channel));
    } else {
        snprintf(text, size, "an added group of %d", channel_of(s, x)->n);
    }
}

/* --- letters ------------------------------------------------------------------------------------
 */

/* Of this turn. The same on both sides: whom it goes to tells a slot's neighbours apart. */
static letter *letter_of(const comm_state *s, const exchange *x, int from, int to) {
    const channel *c = channel_of(s, x);
    bool slot = x->channel >= MF_COMM_GROUPS;
    int64_t number = slot ? MF_COMM_GROUPS + (x->channel - MF_COMM_GROUPS) / 2 : x->channel;
    int64_t pair = (number * s->ranks + c->who[from]) * s->ranks + c->who[to];
    return (letter *)(void *)(s->shared + (2 * pair + (int64_t)(x->turn % 2)) * PLACE_B);
}

static bool has_come(const comm_state *s, const exchange *x, int from, int to) {
    return atomic_load_explicit(&letter_of(s, x, from, to)->given, memory_order_acquire) == x->turn;
}

static bool was_taken(const comm_state *s, const exchange *x, int from, int to) {
    return atomic_load_explicit(&letter_of(s, x, from, to)->taken, memory_order_acquire) == x->turn;
}

static mf_status give(const comm_state *s, const exchange *x, int to, const char *label,
                      mf_err *e) {
    const share *p = &x->share[to];
    letter *l = letter_of(s, x, channel_of(s, x)->me, to);
    if ((size_t)p->send_B > PLACE_B - sizeof *l) {
        return mf_err_set(e, MF_INTERNAL, "shadow: a message of %lld bytes: %d is the most",
                          (long long)p->send_B, PLACE_B);
    }
    assert(atomic_load(&l->given) == atomic_load(&l->taken));
    l->kind = x->kind == RECEIVE ? SEND : (int)x->kind;
    l->type = (int)x->type;
    l->reduce = (int)x->reduce;
    l->tag = x->tag;
    l->size_B = p->send_B;
    snprintf(l->label, sizeof l->label, "%s", label);
    if (p->send_B > 0) {
        memcpy(l + 1, p->from, (size_t)p->send_B);
    }
    atomic_store_explicit(&l->given, x->turn, memory_order_release);
    return MF_OK;
}

/* What member `from` gave, if that is what is expected. */
static mf_status look(const comm_state *s, const exchange *x, int from, const char *label,
                      const char **data, mf_err *e) {
    const letter *l = letter_of(s, x, from, channel_of(s, x)->me);
    const int kind = x->kind == RECEIVE ? SEND : (int)x->kind;
    char where[64];
    *data = (const char *)(l + 1);
    if (l->kind == kind && l->type == (int)x->type && l->reduce == (int)x->reduce &&
        l->size_B == x->share[from].receive_B && l->tag == x->tag) {
        return MF_OK;
    }
    channel_name(s, x, where, sizeof where);
    return mf_err_set(
        e, MF_LIBRARY,
        "shadow: %s does not meet itself: rank %d does %s of %lld bytes, type %d, tag %d (%s) "
        "and here it is %s of %lld bytes, type %d, tag %d (%s)",
        where, channel_of(s, x)->who[from], shadow_exchange_names[l->kind], (long long)l->size_B,
        l->type, l->tag, l->label, shadow_exchange_names[kind], (long long)x->share[from].receive_B,
        (int)x->type, x->tag, label);
}

/* --- sums ---------------------------------------------------------------------------------------
 */

static double value_of(const char *p, mf_comm_type type, int64_t i) {
    switch (type) {
    case MF_COMM_F64:
        return ((const double *)(const void *)p)[i];
    case MF_COMM_I32:
        return ((const int32_t *)(const void *)p)[i];
    case MF_COMM_F32:
        return (double)((const float *)(const void *)p)[i];
    case MF_COMM_BF16:
        break;
    }
    return (double)mf_kernel_get(p, MF_KERNEL_BF16, i);
}

static void put_value(char *p, mf_comm_type type, int64_t i, double v) {
    switch (type) {
    case MF_COMM_F64:
        ((double *)(void *)p)[i] = v;
        return;
    case MF_COMM_I32:
        ((int32_t *)(void *)p)[i] = (int32_t)v;
        return;
    case MF_COMM_F32:
        ((float *)(void *)p)[i] = (float)v;
        return;
    case MF_COMM_BF16:
        break;
    }
    mf_kernel_put(p, MF_KERNEL_BF16, i, (float)v);
}

/* In order of member; floats and BF16 in float, as communicators of the host do. */
static void combine(const exchange *x, const char *const *part, int n, char *to, int64_t size_B) {
    const int64_t count = size_B / (int64_t)mf_comm_type_B(x->type);
    assert(part[0] != NULL && to != NULL);
    for (int64_t i = 0; i < count; i++) {
        double all = value_of(part[0], x->type, i);
        for (int k = 1; k < n; k++) {
            assert(part[k] != NULL);
            double v = value_of(part[k], x->type, i);
            double sum = all + v;
            bool wide = x->type == MF_COMM_F64;
            all = x->reduce == MF_COMM_MAX ? (v > all ? v : all) : wide ? sum : (double)(float)sum;
        }
        put_value(to, x->type, i, all);
    }
}

/* --- as work of the device -----------------------------------------------------------------------
 */

static mf_status begin(shadow_item *i, mf_err *e) {
    comm_state *s = i->state;
    exchange *x = i->args;
    channel *c = channel_of(s, x);
    mf_status status = MF_OK;
    x->turn = ++c->turn;
    for (int k = 0; k < c->n && status == MF_OK; k++) {
        status = x->share[k].send_B >= 0 ? give(s, x, k, i->label, e) : MF_OK;
    }
    return status;
}

/* The first member that is still missing; -1: none. */
static int missing(const comm_state *s, const exchange *x) {
    const channel *c = channel_of(s, x);
    for (int k = 0; k < c->n; k++) {
        if (x->share[k].receive_B >= 0 && !has_come(s, x, k, c->me)) {
            return k;
        }
    }
    return -1;
}

static int not_accepted(const comm_state *s, const exchange *x) {
    const channel *c = channel_of(s, x);
    for (int k = 0; k < c->n && x->accepted; k++) {
        if (x->share[k].send_B >= 0 && !was_taken(s, x, c->me, k)) {
            return k;
        }
    }
    return -1;
}

static mf_status take_all(const comm_state *s, exchange *x, const char *label, mf_err *e) {
    const channel *c = channel_of(s, x);
    const char *part[MF_COMM_MAX_GROUP] = {NULL};
    mf_status status = MF_OK;
    for (int k = 0; k < c->n && status == MF_OK; k++) {
        const share *p = &x->share[k];
        status = p->receive_B >= 0 ? look(s, x, k, label, &part[k], e) : MF_OK;
        if (status == MF_OK && p->receive_B > 0 && !x->sums) {
            memcpy(p->to, part[k], (size_t)p->receive_B);
        }
    }
    if (status == MF_OK && x->sums && x->share[0].receive_B > 0) {
        combine(x, part, c->n, x->share[0].to, x->share[0].receive_B);
    }
    for (int k = 0; k < c->n && status == MF_OK; k++) {
        if (x->share[k].receive_B >= 0) {
            atomic_store_explicit(&letter_of(s, x, k, c->me)->taken, x->turn, memory_order_release);
            x->share[k].receive_B = -1;
        }
    }
    return status;
}

static mf_status poll(shadow_item *i, bool *done, mf_err *e) {
    const comm_state *s = i->state;
    exchange *x = i->args;
    *done = false;
    if (missing(s, x) >= 0) {
        return MF_OK;
    }
    mf_status status = take_all(s, x, i->label, e);
    *done = status == MF_OK && not_accepted(s, x) < 0;
    return status;
}

static void spans(const shadow_item *i, shadow_spans *out) {
    const comm_state *s = i->state;
    const exchange *x = i->args;
    for (int k = 0; k < channel_of(s, x)->n; k++) {
        const share *p = &x->share[k];
        shadow_span_add(out, p->from, 1, p->send_B, p->send_B, false);
        shadow_span_add(out, x->sums && k > 0 ? NULL : p->to, 1, p->receive_B, p->receive_B, true);
    }
}

static void in_words(const shadow_item *i, char *text, size_t size) {
    const comm_state *s = i->state;
    const exchange *x = i->args;
    char where[64];
    int k = missing(s, x), other = not_accepted(s, x);
    channel_name(s, x, where, sizeof where);
    if (k >= 0 || other >= 0) {
        snprintf(text, size, "rank %d to %s, %s, tag %d, turn %llu",
                 channel_of(s, x)->who[k >= 0 ? k : other], k >= 0 ? "come" : "receive", where,
                 x->tag, (unsigned long long)x->turn);
    } else {
        snprintf(text, size, "nothing");
    }
}

const shadow_comm_work shadow_exchange_work = {begin, poll, spans, in_words};
