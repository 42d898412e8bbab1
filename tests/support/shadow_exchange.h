/* shadow_exchange.h - private to the shadow's communicator: one operation of a communicator, and
 * how it goes on. */
#ifndef MF_TESTS_SHADOW_EXCHANGE_H
#define MF_TESTS_SHADOW_EXCHANGE_H

#include "tests/support/shadow_private.h"

enum { CHANNELS = MF_COMM_GROUPS + 2 * MF_COMM_SLOTS, FILE_NAME = 64 };

/* Members that wait for each other in one order: a group, or for one slot this rank with that of
 * the next stage, or of the one before. */
typedef struct channel {
    int n, me, lane;
    int *who; /* world ranks */
    uint64_t turn;
} channel;

typedef struct comm_state {
    shadow *device;
    mf_comm *host;
    shadow_queue *queue;
    int64_t ranks;
    char *shared; /* memory that all ranks see: shadow_shared_B */
    channel channel[CHANNELS];
} comm_state;

typedef enum exchange_kind {
    ALL_REDUCE,
    ALL_GATHER,
    ALL_GATHER_V,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    RING,
    SEND,
    RECEIVE,
    BARRIER
} exchange_kind;

extern const char *const shadow_exchange_names[];

/* What goes to a member, and comes from it. Sizes < 0: nothing does. */
typedef struct share {
    const char *from;
    char *to;
    int64_t send_B, receive_B;
} share;

typedef struct exchange {
    exchange_kind kind;
    int channel, tag;
    mf_comm_type type;
    mf_comm_reduce reduce;
    bool sums;     /* what comes is summed, into the first share's place */
    bool accepted; /* what went is to be taken before this is done */
    uint64_t turn;
    share share[]; /* [members] */
} exchange;

static inline channel *channel_of(const comm_state *s, const exchange *x) {
    return (channel *)(uintptr_t)&s->channel[x->channel];
}

/* Bytes of the memory that so many ranks exchange in; zeros at the beginning. */
size_t shadow_shared_B(int64_t ranks);
/* With a comm_state as the item's state and an exchange as its arguments. */
extern const shadow_comm_work shadow_exchange_work;

#endif
