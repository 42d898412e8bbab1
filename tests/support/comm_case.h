/* comm_case.h - every operation of a communicator over every group of a layout, with data whose
 * result is known. Values are small integers: their sums are exact in every type and order. */
#ifndef MF_TESTS_COMM_CASE_H
#define MF_TESTS_COMM_CASE_H

#include "executor/comm/comm_ops.h"
#include "kernels/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CASE_RANKS = 16,
    CASE_MORE = 8, /* elements behind a result, which nobody may touch */
    CASE_LONG = 10000
};

/* Where operands lie; NULL functions: host memory. */
typedef struct comm_memory {
    void *(*place)(const void *data, size_t size_B); /* a copy */
    void (*fetch)(void *data, void *from, size_t size_B);
    void (*drop)(void *p);
    bool streams;   /* sends may wait for their receive */
    bool sums_bf16; /* all-reduces take it */
} comm_memory;

typedef struct comm_case {
    mf_comm *comm;
    const comm_memory *memory;
    mf_group_kind group;
    int64_t n, me, who[CASE_RANKS]; /* members, this rank's place, world ranks */
    int64_t count;
    int failed, checks;
    mf_err e;
} comm_case;

static inline void case_set(void *data, mf_comm_type type, int64_t k, double v) {
    switch (type) {
    case MF_COMM_F32:
        ((float *)data)[k] = (float)v;
        break;
    case MF_COMM_F64:
        ((double *)data)[k] = v;
        break;
    case MF_COMM_BF16:
        ((uint16_t *)data)[k] = mf_kernel_bf16_round((float)v);
        break;
    case MF_COMM_I32:
        ((int32_t *)data)[k] = (int32_t)v;
        break;
    }
}

static inline double case_get(const void *data, mf_comm_type type, int64_t k) {
    return type == MF_COMM_F32    ? (double)((const float *)data)[k]
           : type == MF_COMM_F64  ? ((const double *)data)[k]
           : type == MF_COMM_BF16 ? (double)mf_kernel_bf16_widen(((const uint16_t *)data)[k])
                                  : (double)((const int32_t *)data)[k];
}

static inline double case_value(int64_t rank, int64_t k) {
    return (double)((rank * 7 + k * 3 + rank * k) % 5 + 1);
}

/* `count` elements and the ones behind, all -1. */
static inline void *case_allocate(mf_comm_type type, int64_t count) {
    void *data = malloc((size_t)(count + CASE_MORE) * mf_comm_type_B(type));
    for (int64_t k = 0; data != NULL && k < count + CASE_MORE; k++) {
        case_set(data, type, k, -1.0);
    }
    return data;
}

static inline void *case_own(int64_t rank, mf_comm_type type, int64_t count) {
    void *data = case_allocate(type, count);
    for (int64_t k = 0; data != NULL && k < count; k++) {
        case_set(data, type, k, case_value(rank, k));
    }
    return data;
}

/* Frees the host's copy and returns where the operation finds it. */
static inline void *case_place(const comm_case *t, void *data, mf_comm_type type, int64_t count) {
    if (t->memory->place == NULL) {
        return data;
    }
    void *placed = t->memory->place(data, (size_t)(count + CASE_MORE) * mf_comm_type_B(type));
    free(data);
    return placed;
}

static inline void *case_fetch(const comm_case *t, void *placed, mf_comm_type type, int64_t count) {
    if (t->memory->fetch == NULL) {
        return placed;
    }
    void *data = case_allocate(type, count);
    t->memory->fetch(data, placed, (size_t)(count + CASE_MORE) * mf_comm_type_B(type));
    t->memory->drop(placed);
    return data;
}

static inline void case_drop(const comm_case *t, void *placed) {
    t->memory->drop != NULL ? t->memory->drop(placed) : free(placed);
}

static inline void case_say(comm_case *t, const char *what, int64_t k, double got, double want) {
    if (t->failed++ < 5) {
        printf("rank %lld, group %d of %lld, count %lld: %s: element %lld is %g, not %g\n",
               (long long)mf_comm_rank(t->comm), (int)t->group, (long long)t->n,
               (long long)t->count, what, (long long)k, got, want);
    }
}

static inline bool case_ok(comm_case *t, mf_status s, const char *what) {
    t->checks++;
    if (s != MF_OK) {
        printf("rank %lld, group %d: %s: %s\n", (long long)mf_comm_rank(t->comm), (int)t->group,
               what, t->e.text);
        t->failed++;
    }
    return s == MF_OK;
}

/* Elements [from, from + count) of data are those of `rank` from `first` on. */
static inline void case_same(comm_case *t, const char *what, const void *data, mf_comm_type type,
                             int64_t from, int64_t count, int64_t rank, int64_t first) {
    for (int64_t k = 0; k < count; k++) {
        double got = case_get(data, type, from + k), want = case_value(rank, first + k);
        if (got != want) {
            case_say(t, what, from + k, got, want);
            return;
        }
    }
}

static inline void case_untouched(comm_case *t, const char *what, const void *data,
                                  mf_comm_type type, int64_t count) {
    for (int64_t k = count; k < count + CASE_MORE; k++) {
        if (case_get(data, type, k) != -1.0) {
            case_say(t, what, k, case_get(data, type, k), -1.0);
        }
    }
}

static inline double case_reduced(const comm_case *t, mf_comm_reduce op, int64_t k) {
    double sum = 0.0, most = 0.0;
    for (int64_t i = 0; i < t->n; i++) {
        double v = case_value(t->who[i], k);
        sum += v;
        most = v > most ? v : most;
    }
    return op == MF_COMM_SUM ? sum : most;
}

/* --- operations ---------------------------------------------------------------------------------
 */

static inline void case_all_reduce(comm_case *t, mf_comm_type type, mf_comm_reduce op) {
    int64_t n = t->count;
    void *data = case_place(t, case_own(mf_comm_rank(t->comm), type, n), type, n);
    bool ok =
        case_ok(t, mf_comm_all_reduce(t->comm, t->group, type, op, data, n, &t->e), "all-reduce");
    data = case_fetch(t, data, type, n);
    for (int64_t k = 0; k < n && ok; k++) {
        double got = case_get(data, type, k), want = case_reduced(t, op, k);
        if (got != want) {
            case_say(t, "all-reduce", k, got, want);
            break;
        }
    }
    case_untouched(t, "all-reduce", data, type, n);
    free(data);
}

static inline void case_all_gather(comm_case *t, mf_comm_type type) {
    int64_t n = t->count, all = n * t->n;
    void *in = case_place(t, case_own(mf_comm_rank(t->comm), type, n), type, n);
    void *out = case_place(t, case_allocate(type, all), type, all);
    case_ok(t, mf_comm_all_gather(t->comm, t->group, type, in, out, n, &t->e), "all-gather");
    out = case_fetch(t, out, type, all);
    for (int64_t i = 0; i < t->n; i++) {
        case_same(t, "all-gather", out, type, i * n, n, t->who[i], 0);
    }
    case_untouched(t, "all-gather", out, type, all);
    free(out);
    case_drop(t, in);
}

/* Parts that differ, one of them of nothing; or equal ones. */
static inline int64_t case_counts(const comm_case *t, bool equal, int64_t *counts, int64_t *at) {
    int64_t sum = 0;
    for (int64_t i = 0; i < t->n; i++) {
        counts[i] = equal ? t->count : i == 1 ? 0 : t->count + 3 * i;
        if (i == t->me) {
            *at = sum;
        }
        sum += counts[i];
    }
    return sum;
}

static inline void case_all_gather_v(comm_case *t, mf_comm_type type, bool equal) {
    int64_t counts[CASE_RANKS], at = 0, all = case_counts(t, equal, counts, &at), from = 0;
    void *data = case_allocate(type, all);
    for (int64_t k = 0; k < counts[t->me]; k++) {
        case_set(data, type, at + k, case_value(t->who[t->me], k));
    }
    data = case_place(t, data, type, all);
    case_ok(t, mf_comm_all_gather_v(t->comm, t->group, type, data, counts, &t->e), "all-gather-v");
    data = case_fetch(t, data, type, all);
    for (int64_t i = 0; i < t->n; from += counts[i++]) {
        case_same(t, "all-gather-v", data, type, from, counts[i], t->who[i], 0);
    }
    case_untouched(t, "all-gather-v", data, type, all);
    free(data);
}

static inline void case_reduce_scatter(comm_case *t, mf_comm_type type, bool equal) {
    int64_t counts[CASE_RANKS], at = 0, all = case_counts(t, equal, counts, &at);
    int64_t own = counts[t->me];
    void *in = case_place(t, case_own(mf_comm_rank(t->comm), type, all), type, all);
    void *out = case_place(t, case_allocate(type, own), type, own);
    bool ok = case_ok(t, mf_comm_reduce_scatter(t->comm, t->group, type, in, out, counts, &t->e),
                      "scatter");
    out = case_fetch(t, out, type, own);
    for (int64_t k = 0; k < own && ok; k++) {
        double got = case_get(out, type, k), want = case_reduced(t, MF_COMM_SUM, at + k);
        if (got != want) {
            case_say(t, "reduce-scatter", k, got, want);
            break;
        }
    }
    case_untouched(t, "reduce-scatter", out, type, own);
    free(out);
    case_drop(t, in);
}

/* What one rank has for another: nothing at times. */
static inline int64_t case_sent(const comm_case *t, int64_t from, int64_t to) {
    return (from + 2 * to) % 3 == 0 ? 0 : t->count + from - to + CASE_RANKS;
}

/* Elements of three floats. */
static inline void case_all_to_all(comm_case *t) {
    const mf_comm_type type = MF_COMM_F32;
    int64_t send[CASE_RANKS], receive[CASE_RANKS], sent = 0, received = 0, at = 0;
    int64_t me = mf_comm_rank(t->comm);
    for (int64_t i = 0; i < t->n; i++) {
        sent += 3 * (send[i] = case_sent(t, me, t->who[i]));
        received += 3 * (receive[i] = case_sent(t, t->who[i], me));
    }
    void *in = case_allocate(type, sent);
    for (int64_t i = 0; i < t->n; i++) {
        for (int64_t k = 0; k < 3 * send[i]; k++) {
            case_set(in, type, at++, case_value(me, t->who[i] + k));
        }
    }
    in = case_place(t, in, type, sent);
    void *out = case_place(t, case_allocate(type, received), type, received);
    case_ok(t,
            mf_comm_all_to_all(t->comm, t->group, 3 * sizeof(float), in, send, out, receive, &t->e),
            "all-to-all");
    out = case_fetch(t, out, type, received);
    at = 0;
    for (int64_t i = 0; i < t->n; at += 3 * receive[i++]) {
        case_same(t, "all-to-all", out, type, at, 3 * receive[i], t->who[i], me);
    }
    case_untouched(t, "all-to-all", out, type, received);
    free(out);
    case_drop(t, in);
}

static inline void case_ring(comm_case *t, int64_t steps) {
    const mf_comm_type type = MF_COMM_I32;
    int64_t n = t->count, from = t->who[((t->me - steps) % t->n + t->n) % t->n];
    void *in = case_place(t, case_own(mf_comm_rank(t->comm), type, n), type, n);
    void *out = case_place(t, case_allocate(type, n), type, n);
    case_ok(t, mf_comm_ring(t->comm, t->group, steps, in, out, (size_t)n * 4, &t->e), "ring");
    out = case_fetch(t, out, type, n);
    case_same(t, "ring", out, type, 0, n, from, 0);
    case_untouched(t, "ring", out, type, n);
    free(out);
    case_drop(t, in);
}

/* --- messages between stages: group PP ----------------------------------------------------------
 */

static inline void case_receive(comm_case *t, int slot, int64_t from, int tag, int64_t first) {
    const mf_comm_type type = MF_COMM_F32;
    void *out = case_place(t, case_allocate(type, t->count), type, t->count);
    case_ok(t,
            mf_comm_receive(t->comm, slot, from, tag, out, (size_t)t->count * sizeof(float), &t->e),
            "receive");
    out = case_fetch(t, out, type, t->count);
    case_same(t, "receive", out, type, 0, t->count, from, first);
    case_untouched(t, "receive", out, type, t->count);
    free(out);
}

/* To the next stage in every slot; stages of even number send first. */
static inline void case_messages(comm_case *t) {
    const mf_comm_type type = MF_COMM_F32;
    int64_t next = t->who[(t->me + 1) % t->n], last = t->who[(t->me + t->n - 1) % t->n];
    size_t size_B = (size_t)t->count * sizeof(float);
    for (int slot = 0; slot < MF_COMM_SLOTS; slot++) {
        void *in = case_place(t, case_own(mf_comm_rank(t->comm), type, t->count), type, t->count);
        for (int turn = 0; turn < 2; turn++) {
            if (turn == t->me % 2) {
                case_ok(t, mf_comm_send(t->comm, slot, next, 5, in, size_B, &t->e), "send");
            } else {
                case_receive(t, slot, last, 5, 0);
            }
        }
        case_ok(t, mf_comm_wait_send(t->comm, slot, &t->e), "wait");
        case_drop(t, in);
    }
}

/* Several at once: received by tag, and of one tag in order. Sends return at once here. */
static inline void case_tags(comm_case *t) {
    static const int order[MF_COMM_SLOTS] = {2, 0, 1, 3};
    static const int tag[MF_COMM_SLOTS] = {7, 7, 9, 8}; /* of slots 0 and 1 the same */
    int64_t next = t->who[(t->me + 1) % t->n], last = t->who[(t->me + t->n - 1) % t->n];
    float *in[MF_COMM_SLOTS];
    for (int slot = 0; slot < MF_COMM_SLOTS; slot++) {
        in[slot] = case_own(mf_comm_rank(t->comm), MF_COMM_F32, t->count + slot);
        case_ok(t,
                mf_comm_send(t->comm, slot, next, tag[slot], in[slot] + slot,
                             (size_t)t->count * sizeof(float), &t->e),
                "send");
    }
    for (int k = 0; k < MF_COMM_SLOTS; k++) {
        case_receive(t, order[k], last, tag[order[k]], order[k]);
    }
    for (int slot = 0; slot < MF_COMM_SLOTS; slot++) {
        case_ok(t, mf_comm_wait_send(t->comm, slot, &t->e), "wait");
        free(in[slot]);
    }
}

/* --- all of it ----------------------------------------------------------------------------------
 */

/* TP 2 from four ranks on, PP 2, EP 2 from eight on; ZeRO and the like do not matter. */
static inline mf_layout case_layout(int64_t ranks) {
    mf_layout l;
    mf_layout_init(&l);
    l.gpus = ranks;
    l.pp = ranks > 1 ? 2 : 1;
    l.tp = ranks > 2 ? 2 : 1;
    l.dp = ranks / (l.pp * l.tp);
    l.etp = 1;
    l.ep = ranks > 4 ? 2 : 1;
    l.edp = ranks / (l.pp * l.ep);
    return l;
}

static inline void case_group(comm_case *t) {
    static const mf_comm_type types[] = {MF_COMM_F32, MF_COMM_F64, MF_COMM_I32, MF_COMM_BF16};
    for (int i = 0; i < 4; i++) {
        if (types[i] != MF_COMM_BF16 || t->memory->sums_bf16 || t->n == 1) {
            for (int op = 0; op < 2 && (t->n > 1 || i == 0); op++) {
                case_all_reduce(t, types[i], op == 0 ? MF_COMM_SUM : MF_COMM_MAX);
            }
        }
        case_all_gather(t, types[i]);
        case_all_gather_v(t, types[i], true);
        case_all_gather_v(t, types[i], false);
        if (types[i] != MF_COMM_I32) {
            case_reduce_scatter(t, types[i], true);
            case_reduce_scatter(t, types[i], false);
        }
    }
    case_all_to_all(t);
    case_ring(t, 1);
    case_ring(t, -1);
    case_ring(t, 3);
    if (t->group == MF_GROUP_PP && t->n > 1) {
        case_messages(t);
        if (!t->memory->streams) {
            case_tags(t);
        }
    }
}

/* Counts of `count` elements over all groups of the layout, and over `added`, the ranks that are
 * even or odd; of long ones over the world and PP. Returns how many checks failed. */
static inline int case_run(mf_comm *c, const mf_layout *l, mf_group_kind added,
                           const comm_memory *memory, int64_t count, int *checks) {
    comm_case t = {.comm = c, .memory = memory, .count = count};
    int64_t rank = mf_comm_rank(c);
    for (int g = 0; g <= MF_GROUP_COUNT; g++) {
        mf_group_shape s = g < MF_GROUP_COUNT ? mf_layout_group(l, (mf_group_kind)g)
                                              : (mf_group_shape){(l->gpus + 1) / 2, 2};
        int64_t first =
            g < MF_GROUP_COUNT ? mf_layout_group_first(l, (mf_group_kind)g, rank) : rank % 2;
        t.group = g < MF_GROUP_COUNT ? (mf_group_kind)g : added;
        t.n = mf_comm_group_size(c, t.group);
        t.me = mf_comm_group_rank(c, t.group);
        if (count > CASE_LONG && g != MF_GROUP_WORLD && g != MF_GROUP_PP) {
            continue;
        }
        if (t.n != s.size || first + t.me * s.stride != rank) {
            printf("rank %lld is %lld of %lld in group %d\n", (long long)rank, (long long)t.me,
                   (long long)t.n, g);
            return 1;
        }
        for (int64_t i = 0; i < t.n; i++) {
            t.who[i] = first + i * s.stride;
        }
        case_group(&t);
        case_ok(&t, mf_comm_barrier(c, &t.e), "barrier");
    }
    *checks += t.checks;
    return t.failed;
}

#endif
