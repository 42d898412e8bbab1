/* local_collectives.c - collectives of the ranks of one host over a shared file.
 *
 * A collective goes in rounds. In a round every member writes a part of its data into its own half
 * of the file (the two halves take turns), counts itself in, reads the others' parts when they are
 * in, and counts itself out. A half is written again when all its readers are out. Sums go in order
 * of group rank, so that all members get the same bits.
 */
#include "executor/comm/comm_local.h"
#include "kernels/kernel.h"

#include <string.h>

enum { HEAD_B = 64, ALIGN_B = 64 };

/* --- rounds -------------------------------------------------------------------------------------
 */

static int row_of(const mf_comm *c, int g) {
    const mf_local_state *s = c->state;
    return s->live * MF_COMM_GROUPS + g;
}

/* Waits until all members are out of `round`. */
static mf_status all_left(const int *who, int n, int row, uint64_t round, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < n && status == MF_OK; i++) {
        status =
            mf_local_wait(&mf_local_world, &mf_local_turn_of(who[i], row)->left, round, who[i], e);
    }
    return status;
}

/* Where this rank writes its part of the next round. */
static mf_status begin(mf_comm *c, int g, char **half, mf_err *e) {
    mf_local_state *s = c->state;
    uint64_t round = ++s->group[g].round;
    *half = mf_local_half(&mf_local_world, mf_local_world.me, round);
    int h = (int)(round % 2), n = mf_local_world.shown[h].n;
    mf_status status = all_left(mf_local_world.shown[h].who, n, mf_local_world.shown[h].row,
                                mf_local_world.shown[h].round, e);
    mf_local_world.shown[h].row = row_of(c, g);
    mf_local_world.shown[h].round = round;
    mf_local_world.shown[h].n = (int)c->size[g];
    memcpy(mf_local_world.shown[h].who, s->group[g].who, (size_t)c->size[g] * sizeof(int));
    return status;
}

static void show(mf_comm *c, int g) {
    const mf_local_state *s = c->state;
    atomic_store_explicit(&mf_local_turn_of(mf_local_world.me, row_of(c, g))->entered,
                          s->group[g].round, memory_order_release);
}

/* What a member has written in this round. */
static mf_status shown_by(mf_comm *c, int g, int64_t member, const char **part, mf_err *e) {
    const mf_local_state *s = c->state;
    int rank = s->group[g].who[member];
    *part = mf_local_half(&mf_local_world, rank, s->group[g].round);
    return mf_local_wait(&mf_local_world, &mf_local_turn_of(rank, row_of(c, g))->entered,
                         s->group[g].round, rank, e);
}

static mf_status shown_by_all(mf_comm *c, int g, const char **parts, mf_err *e) {
    mf_status status = MF_OK;
    for (int64_t i = 0; i < c->size[g] && status == MF_OK; i++) {
        status = shown_by(c, g, i, &parts[i], e);
    }
    return status;
}

static void end(mf_comm *c, int g) {
    const mf_local_state *s = c->state;
    atomic_store_explicit(&mf_local_turn_of(mf_local_world.me, row_of(c, g))->left,
                          s->group[g].round, memory_order_release);
}

/* --- sums ---------------------------------------------------------------------------------------
 */

#define COMBINE(T)                                                                                 \
    do {                                                                                           \
        T *to = out;                                                                               \
        memcpy(to, parts[0], (size_t)count * sizeof *to);                                          \
        for (int64_t i = 1; i < members; i++) {                                                    \
            const T *from = (const T *)(const void *)parts[i];                                     \
            for (int64_t k = 0; k < count; k++) {                                                  \
                to[k] = op == MF_COMM_SUM ? to[k] + from[k] : from[k] > to[k] ? from[k] : to[k];   \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* In float, rounded at the end. */
static void combine_bf16(const char *const *parts, int64_t members, mf_comm_reduce op,
                         uint16_t *out, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        float all = 0.0f;
        for (int64_t i = 0; i < members; i++) {
            float v = mf_kernel_bf16_widen(((const uint16_t *)(const void *)parts[i])[k]);
            all = i == 0 ? v : op == MF_COMM_SUM ? all + v : v > all ? v : all;
        }
        out[k] = mf_kernel_bf16_round(all);
    }
}

static void combine(const char *const *parts, int64_t members, mf_comm_type type, mf_comm_reduce op,
                    void *out, int64_t count) {
    switch (type) {
    case MF_COMM_F32:
        COMBINE(float);
        break;
    case MF_COMM_F64:
        COMBINE(double);
        break;
    case MF_COMM_I32:
        COMBINE(int32_t);
        break;
    case MF_COMM_BF16:
        combine_bf16(parts, members, op, out, count);
        break;
    }
}

/* --- collectives --------------------------------------------------------------------------------
 */

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Copies; a part may be empty, with NULL for its address. */
static void move(void *to, const void *from, size_t size_B) {
    if (size_B > 0) {
        memcpy(to, from, size_B);
    }
}

/* How many of `count` a round from `at` on moves. */
static size_t left_of(int64_t count, int64_t at, int64_t most) {
    return at >= count ? 0 : (size_t)least(count - at, most);
}

mf_status mf_local_all_reduce(mf_comm *c, int g, mf_comm_type type, mf_comm_reduce op, void *data,
                              int64_t count, mf_err *e) {
    const char *parts[MF_COMM_MAX_GROUP] = {NULL};
    size_t width = mf_comm_type_B(type);
    int64_t most = MF_LOCAL_HALF_B / (int64_t)width;
    mf_status status = MF_OK;
    for (int64_t at = 0; at < count && status == MF_OK; at += most) {
        char *half, *here = (char *)data + (size_t)at * width;
        size_t n = left_of(count, at, most);
        status = begin(c, g, &half, e);
        if (status != MF_OK) {
            return status;
        }
        move(half, here, n * width);
        show(c, g);
        status = shown_by_all(c, g, parts, e);
        if (status == MF_OK) {
            combine(parts, c->size[g], type, op, here, (int64_t)n);
        }
        end(c, g);
    }
    return status;
}

/* Gathers counts[i] bytes of each member, at[i] bytes into `data`; this rank's are already
 * there. */
static mf_status gather(mf_comm *c, int g, char *data, const int64_t *counts, const int64_t *at,
                        mf_err *e) {
    int64_t longest = 0, me = c->member[g];
    mf_status status = MF_OK;
    for (int64_t i = 0; i < c->size[g]; i++) {
        longest = counts[i] > longest ? counts[i] : longest;
    }
    for (int64_t from = 0; from < longest && status == MF_OK; from += MF_LOCAL_HALF_B) {
        char *half;
        const char *part;
        status = begin(c, g, &half, e);
        if (status != MF_OK) {
            return status;
        }
        move(half, data + at[me] + from, left_of(counts[me], from, MF_LOCAL_HALF_B));
        show(c, g);
        for (int64_t i = 0; i < c->size[g] && status == MF_OK; i++) {
            status = shown_by(c, g, i, &part, e);
            if (status == MF_OK && i != me) {
                move(data + at[i] + from, part, left_of(counts[i], from, MF_LOCAL_HALF_B));
            }
        }
        end(c, g);
    }
    return status;
}

mf_status mf_local_all_gather_v(mf_comm *c, int g, mf_comm_type type, void *data,
                                const int64_t *counts, mf_err *e) {
    int64_t size_B[MF_COMM_MAX_GROUP] = {0}, at_B[MF_COMM_MAX_GROUP] = {0}, sum_B = 0;
    for (int64_t i = 0; i < c->size[g]; i++) {
        size_B[i] = counts[i] * (int64_t)mf_comm_type_B(type);
        at_B[i] = sum_B;
        sum_B += size_B[i];
    }
    return gather(c, g, data, size_B, at_B, e);
}

mf_status mf_local_all_gather(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                              int64_t count, mf_err *e) {
    int64_t counts[MF_COMM_MAX_GROUP] = {0};
    size_t part_B = (size_t)count * mf_comm_type_B(type);
    for (int64_t i = 0; i < c->size[g]; i++) {
        counts[i] = count;
    }
    if (part_B > 0) {
        memmove((char *)out + (size_t)c->member[g] * part_B, in, part_B);
    }
    return mf_local_all_gather_v(c, g, type, out, counts, e);
}

/* Bytes of a half for each member. */
static int64_t slot_B(const mf_comm *c, int g) {
    return (MF_LOCAL_HALF_B - HEAD_B) / c->size[g] / ALIGN_B * ALIGN_B;
}

/* One round: elements [at, at + most) of each member's part. */
static mf_status scatter_round(mf_comm *c, int g, mf_comm_type type, const char *in, char *out,
                               const int64_t *counts, int64_t at, mf_err *e) {
    const char *parts[MF_COMM_MAX_GROUP] = {NULL};
    size_t width = mf_comm_type_B(type);
    int64_t each_B = slot_B(c, g), most = each_B / (int64_t)width, me = c->member[g];
    char *half;
    mf_status status = begin(c, g, &half, e);
    if (status != MF_OK) {
        return status;
    }
    for (int64_t i = 0; i < c->size[g]; i++) {
        move(half + i * each_B, in + (size_t)at * width, left_of(counts[i], at, most) * width);
        in += (size_t)counts[i] * width;
    }
    show(c, g);
    status = shown_by_all(c, g, parts, e);
    for (int64_t i = 0; i < c->size[g] && status == MF_OK; i++) {
        parts[i] += me * each_B;
    }
    int64_t n = (int64_t)left_of(counts[me], at, most);
    if (status == MF_OK && n > 0) {
        combine(parts, c->size[g], type, MF_COMM_SUM, out + (size_t)at * width, n);
    }
    end(c, g);
    return status;
}

mf_status mf_local_reduce_scatter(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                                  const int64_t *counts, mf_err *e) {
    int64_t longest = 0, most = slot_B(c, g) / (int64_t)mf_comm_type_B(type);
    mf_status status = MF_OK;
    for (int64_t i = 0; i < c->size[g]; i++) {
        longest = counts[i] > longest ? counts[i] : longest;
    }
    for (int64_t at = 0; at < longest && status == MF_OK; at += most) {
        status = scatter_round(c, g, type, in, out, counts, at, e);
    }
    return status;
}

/* One round: bytes [at, at + share) of each message. *longest grows to the longest message that any
 * member sends: its length precedes the data. */
static mf_status exchange_round(mf_comm *c, int g, size_t width, const char *in,
                                const int64_t *send, char *out, const int64_t *receive, int64_t at,
                                int64_t *longest, mf_err *e) {
    int64_t each_B = slot_B(c, g), me = c->member[g];
    char *half;
    mf_status status = begin(c, g, &half, e);
    if (status != MF_OK) {
        return status;
    }
    memcpy(half, longest, sizeof *longest);
    for (int64_t i = 0; i < c->size[g]; i++) {
        int64_t size_B = send[i] * (int64_t)width;
        move(half + HEAD_B + i * each_B, in + at, left_of(size_B, at, each_B));
        in += size_B;
    }
    show(c, g);
    for (int64_t i = 0; i < c->size[g] && status == MF_OK; i++) {
        const char *part;
        int64_t size_B = receive[i] * (int64_t)width, theirs;
        status = shown_by(c, g, i, &part, e);
        if (status == MF_OK) {
            memcpy(&theirs, part, sizeof theirs);
            *longest = theirs > *longest ? theirs : *longest;
            move(out + at, part + HEAD_B + me * each_B, left_of(size_B, at, each_B));
        }
        out += size_B;
    }
    end(c, g);
    return status;
}

mf_status mf_local_all_to_all(mf_comm *c, int g, size_t width, const void *in, const int64_t *send,
                              void *out, const int64_t *receive, mf_err *e) {
    int64_t longest = 0, at = 0;
    mf_status status = MF_OK;
    for (int64_t i = 0; i < c->size[g]; i++) {
        int64_t size_B = send[i] * (int64_t)width;
        longest = size_B > longest ? size_B : longest;
    }
    do {
        status = exchange_round(c, g, width, in, send, out, receive, at, &longest, e);
        at += slot_B(c, g);
    } while (at < longest && status == MF_OK);
    return status;
}

mf_status mf_local_ring(mf_comm *c, int g, int64_t to, int64_t from, const void *in, void *out,
                        size_t size_B, mf_err *e) {
    mf_status status = MF_OK;
    (void)to;
    for (size_t at = 0; at < size_B && status == MF_OK; at += MF_LOCAL_HALF_B) {
        char *half;
        const char *part;
        size_t n = left_of((int64_t)size_B, (int64_t)at, MF_LOCAL_HALF_B);
        status = begin(c, g, &half, e);
        if (status != MF_OK) {
            return status;
        }
        move(half, (const char *)in + at, n);
        show(c, g);
        status = shown_by(c, g, from, &part, e);
        if (status == MF_OK) {
            move((char *)out + at, part, n);
        }
        end(c, g);
    }
    return status;
}

mf_status mf_local_barrier(mf_comm *c, mf_err *e) {
    const char *parts[MF_COMM_MAX_GROUP];
    char *half;
    mf_status status = begin(c, MF_GROUP_WORLD, &half, e);
    if (status == MF_OK) {
        show(c, MF_GROUP_WORLD);
        status = shown_by_all(c, MF_GROUP_WORLD, parts, e);
        end(c, MF_GROUP_WORLD);
    }
    return status;
}
