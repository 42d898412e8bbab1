/* local_messages.c - messages between ranks of one host: each slot of a sender has memory of its
 * own in the shared file, where the message stays until its receiver has copied it. */
#include "executor/comm/comm_local.h"

#include <string.h>

static mf_local_slot *slot_of(const mf_comm *c, int rank, int slot) {
    const mf_local_state *s = c->state;
    return &mf_local_rank_of(&mf_local_world, rank)->slot[s->live][slot];
}

/* The address of a message in this process. */
static mf_status look_at(mf_comm *c, int rank, int slot, void **out, mf_err *e) {
    const mf_local_state *s = c->state;
    const mf_local_slot *m = slot_of(c, rank, slot);
    mf_local_seen *v = &s->seen[rank * MF_COMM_SLOTS + slot];
    mf_status status = MF_OK;
    if (v->offset != m->offset) {
        mf_local_drop(v->data, v->allocated_B);
        *v = (mf_local_seen){.offset = m->offset, .allocated_B = m->allocated_B};
        status = mf_local_view(&mf_local_world, m->offset, m->allocated_B, &v->data, e);
    }
    *out = v->data;
    return status;
}

mf_status mf_local_wait_send(mf_comm *c, int slot, mf_err *e) {
    const mf_local_slot *m = slot_of(c, mf_local_world.me, slot);
    mf_status status = MF_OK;
    for (int turns = 0; status == MF_OK && atomic_load(&m->number) != 0;) {
        status = mf_local_pause(&mf_local_world, atomic_load(&m->to), &turns, e);
    }
    return status;
}

mf_status mf_local_send(mf_comm *c, int slot, int64_t to, int tag, const void *data, size_t size_B,
                        mf_err *e) {
    mf_local_state *s = c->state;
    mf_local_slot *m = slot_of(c, mf_local_world.me, slot);
    void *memory = NULL;
    mf_status status = mf_local_wait_send(c, slot, e);
    if (status == MF_OK && size_B > m->allocated_B) {
        status = mf_local_take(&mf_local_world, size_B, &m->offset, e);
        m->allocated_B = status == MF_OK ? size_B : 0;
    }
    if (status == MF_OK && size_B > 0) {
        status = look_at(c, mf_local_world.me, slot, &memory, e);
    }
    if (status != MF_OK) {
        return status;
    }
    if (size_B > 0) {
        memcpy(memory, data, size_B);
    }
    m->size_B = size_B;
    atomic_store(&m->to, (int)to);
    atomic_store(&m->tag, tag);
    atomic_store(&m->number, ++s->sent);
    return MF_OK;
}

/* The number of the message to this rank with this tag; 0: there is none. Other receivers may take
 * theirs and the sender post again meanwhile: no two messages have one number. */
static uint64_t number_of(const mf_local_slot *m, int tag) {
    uint64_t number = atomic_load(&m->number);
    bool mine = number != 0 && atomic_load(&m->to) == mf_local_world.me &&
                atomic_load(&m->tag) == tag && atomic_load(&m->number) == number;
    return mine ? number : 0;
}

/* The slot of the first message with this tag; -1: none is there. A message that is seen has made
 * all before it visible, so that a second look finds an earlier one. */
static int first_with(const mf_comm *c, int from, int tag) {
    int found = -1;
    uint64_t first = 0;
    for (int look = 0; look < 2; look++) {
        for (int i = 0; i < MF_COMM_SLOTS; i++) {
            uint64_t number = number_of(slot_of(c, from, i), tag);
            if (number != 0 && (found < 0 || number < first)) {
                found = i;
                first = number;
            }
        }
        if (found < 0) {
            return found;
        }
    }
    return found;
}

mf_status mf_local_receive(mf_comm *c, int slot, int64_t from, int tag, void *data, size_t size_B,
                           mf_err *e) {
    int rank = (int)from, found = first_with(c, rank, tag);
    mf_status status = MF_OK;
    void *memory;
    (void)slot; /* the tag identifies the message */
    for (int turns = 0; found < 0; found = first_with(c, rank, tag)) {
        status = mf_local_pause(&mf_local_world, rank, &turns, e);
        if (status != MF_OK) {
            return status;
        }
    }
    mf_local_slot *m = slot_of(c, rank, found);
    if (m->size_B != size_B) {
        return mf_err_set(e, MF_INTERNAL, "a message of %llu bytes, not of %llu",
                          (unsigned long long)m->size_B, (unsigned long long)size_B);
    }
    if (size_B > 0) {
        status = look_at(c, rank, found, &memory, e);
        if (status == MF_OK) {
            memcpy(data, memory, size_B);
        }
    }
    atomic_store(&m->number, 0);
    return status;
}
