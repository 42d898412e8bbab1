/* comm_nccl_cuda.c - communicators of a layout over NCCL, in device memory, on a stream. */
#include "executor/cuda/comm_nccl_cuda.h"

#include "core/schedule/schedule.h"
#include "executor/comm/comm_ops.h"
#include "executor/comm/comm_status.h"
#include "executor/cuda/cta_shares_cuda.h"
#include "kernels/device/cuda_check.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SHARES_GPU_FROM = 23000 /* version of NCCL */, UUID_I32 = 4, ID_I32 = 32 };

/* Of one slot: with the next stage of the pipeline and with the one before, of two ranks each. */
typedef struct pair_comms {
    ncclComm_t next, before;
} pair_comms;

typedef struct nccl_state {
    cudaStream_t stream;
    ncclComm_t
        group[MF_COMM_GROUPS];   /* NULL: of one member. The others are split from the world's */
    bool shared[MF_COMM_GROUPS]; /* with an earlier group of the same ranks */
    pair_comms slot[MF_COMM_SLOTS];
    double *word;     /* [2] on the device: of barriers and trials */
    bool shares_gpus; /* ranks of the world do */
} nccl_state;

/* The one way NCCL's results travel: its own words and the call's text. */
#define NCCL_TRY(call, e)                                                                          \
    do {                                                                                           \
        ncclResult_t nccl_result_ = (call);                                                        \
        if (nccl_result_ != ncclSuccess) {                                                         \
            return nccl_failed(nccl_result_, #call, e);                                            \
        }                                                                                          \
    } while (0)

static mf_status nccl_failed(ncclResult_t result, const char *call, mf_err *e) {
    const char *more = ncclGetLastError(NULL);
    int length = more == NULL ? 0 : (int)strcspn(more, "\n");
    return mf_err_set(e, MF_LIBRARY, "NCCL: %.60s: %s%s%.*s", call, ncclGetErrorString(result),
                      length > 0 ? ": " : "", length < 160 ? length : 160,
                      more == NULL ? "" : more);
}

/* What calls between ncclGroupStart and here came to. */
static mf_status end_group(ncclResult_t inside, const char *what, mf_err *e) {
    ncclResult_t end = ncclGroupEnd();
    ncclResult_t result = inside != ncclSuccess ? inside : end;
    return result == ncclSuccess ? MF_OK : nccl_failed(result, what, e);
}

static ncclDataType_t datatype(mf_comm_type t) {
    return t == MF_COMM_F32    ? ncclFloat32
           : t == MF_COMM_F64  ? ncclFloat64
           : t == MF_COMM_BF16 ? ncclBfloat16
                               : ncclInt32;
}

/* --- collectives --------------------------------------------------------------------------------
 */

static void use_stream(mf_comm *c, void *stream) {
    nccl_state *s = c->state;
    s->stream = stream;
}

static mf_status copy(mf_comm *c, const void *in, void *out, size_t size_B, mf_err *e) {
    const nccl_state *s = c->state;
    MF_CUDA_TRY(cudaMemcpyAsync(out, in, size_B, cudaMemcpyDeviceToDevice, s->stream), e);
    return MF_OK;
}

static mf_status all_reduce(mf_comm *c, int g, mf_comm_type type, mf_comm_reduce op, void *data,
                            int64_t count, mf_err *e) {
    const nccl_state *s = c->state;
    NCCL_TRY(ncclAllReduce(data, data, (size_t)count, datatype(type),
                           op == MF_COMM_MAX ? ncclMax : ncclSum, s->group[g], s->stream),
             e);
    return MF_OK;
}

static mf_status all_gather(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                            int64_t count, mf_err *e) {
    const nccl_state *s = c->state;
    NCCL_TRY(ncclAllGather(in, out, (size_t)count, datatype(type), s->group[g], s->stream), e);
    return MF_OK;
}

/* Do all members have as many, but the last perhaps more? *left: how many more. */
static bool equal(const int64_t *counts, int64_t members, int64_t *left) {
    *left = counts[members - 1] - counts[0];
    for (int64_t i = 1; i < members - 1; i++) {
        if (counts[i] != counts[0]) {
            return false;
        }
    }
    return *left >= 0;
}

/* As many as every member has go in one collective, what the last member has more in another. */
static mf_status all_gather_equal(mf_comm *c, int g, mf_comm_type type, char *data, int64_t count,
                                  int64_t left, mf_err *e) {
    const nccl_state *s = c->state;
    const size_t part_B = (size_t)count * mf_comm_type_B(type);
    char *last = data + (size_t)c->size[g] * part_B;
    NCCL_TRY(ncclGroupStart(), e);
    ncclResult_t result = ncclSuccess;
    if (count > 0) {
        result = ncclAllGather(data + (size_t)c->member[g] * part_B, data, (size_t)count,
                               datatype(type), s->group[g], s->stream);
    }
    if (left > 0 && result == ncclSuccess) {
        result = ncclBroadcast(last, last, (size_t)left, datatype(type), (int)c->size[g] - 1,
                               s->group[g], s->stream);
    }
    return end_group(result, "ncclAllGather", e);
}

static mf_status reduce_scatter_equal(mf_comm *c, int g, mf_comm_type type, const char *in,
                                      char *out, int64_t count, int64_t left, mf_err *e) {
    const nccl_state *s = c->state;
    const size_t part_B = (size_t)count * mf_comm_type_B(type);
    NCCL_TRY(ncclGroupStart(), e);
    ncclResult_t result = ncclSuccess;
    if (count > 0) {
        result = ncclReduceScatter(in, out, (size_t)count, datatype(type), ncclSum, s->group[g],
                                   s->stream);
    }
    if (left > 0 && result == ncclSuccess) {
        const bool last = c->member[g] == c->size[g] - 1;
        result =
            ncclReduce(in + (size_t)c->size[g] * part_B, last ? out + part_B : NULL, (size_t)left,
                       datatype(type), ncclSum, (int)c->size[g] - 1, s->group[g], s->stream);
    }
    return end_group(result, "ncclReduceScatter", e);
}

static mf_status all_gather_v(mf_comm *c, int g, mf_comm_type type, void *data,
                              const int64_t *counts, mf_err *e) {
    const nccl_state *s = c->state;
    char *part = data;
    int64_t left;
    if (equal(counts, c->size[g], &left)) {
        return all_gather_equal(c, g, type, data, counts[0], left, e);
    }
    NCCL_TRY(ncclGroupStart(), e);
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < (int)c->size[g] && result == ncclSuccess; i++) {
        if (counts[i] > 0) {
            result = ncclBroadcast(part, part, (size_t)counts[i], datatype(type), i, s->group[g],
                                   s->stream);
        }
        part += (size_t)counts[i] * mf_comm_type_B(type);
    }
    return end_group(result, "ncclBroadcast", e);
}

static mf_status reduce_scatter(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                                const int64_t *counts, mf_err *e) {
    const nccl_state *s = c->state;
    const char *part = in;
    int64_t left;
    if (equal(counts, c->size[g], &left)) {
        return reduce_scatter_equal(c, g, type, in, out, counts[0], left, e);
    }
    NCCL_TRY(ncclGroupStart(), e);
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < (int)c->size[g] && result == ncclSuccess; i++) {
        if (counts[i] > 0) {
            result = ncclReduce(part, i == c->member[g] ? out : NULL, (size_t)counts[i],
                                datatype(type), ncclSum, i, s->group[g], s->stream);
        }
        part += (size_t)counts[i] * mf_comm_type_B(type);
    }
    return end_group(result, "ncclReduce", e);
}

static mf_status all_to_all(mf_comm *c, int g, size_t width, const void *in, const int64_t *send,
                            void *out, const int64_t *receive, mf_err *e) {
    const nccl_state *s = c->state;
    const char *from = in;
    char *to = out;
    NCCL_TRY(ncclGroupStart(), e);
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < (int)c->size[g] && result == ncclSuccess; i++) {
        size_t send_B = (size_t)send[i] * width, receive_B = (size_t)receive[i] * width;
        if (send_B > 0) {
            result = ncclSend(from, send_B, ncclUint8, i, s->group[g], s->stream);
        }
        if (receive_B > 0 && result == ncclSuccess) {
            result = ncclRecv(to, receive_B, ncclUint8, i, s->group[g], s->stream);
        }
        from += send_B;
        to += receive_B;
    }
    return end_group(result, "all-to-all", e);
}

static mf_status ring(mf_comm *c, int g, int64_t to, int64_t from, const void *in, void *out,
                      size_t size_B, mf_err *e) {
    const nccl_state *s = c->state;
    NCCL_TRY(ncclGroupStart(), e);
    ncclResult_t result = ncclSend(in, size_B, ncclUint8, (int)to, s->group[g], s->stream);
    if (result == ncclSuccess) {
        result = ncclRecv(out, size_B, ncclUint8, (int)from, s->group[g], s->stream);
    }
    return end_group(result, "ring", e);
}

static mf_status barrier(mf_comm *c, mf_err *e) {
    const nccl_state *s = c->state;
    return all_reduce(c, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_MAX, s->word, 1, e);
}

/* --- messages between stages --------------------------------------------------------------------
 */

/* Stages of the pipeline, from this one to `rank`'s going up; -1: of another pipeline. */
static int64_t stages_up(const mf_comm *c, int64_t rank) {
    mf_group_shape pp = mf_layout_group(&c->layout, MF_GROUP_PP);
    bool same = rank >= 0 && rank < c->layout.gpus && rank % pp.stride == c->rank % pp.stride;
    return same ? (rank / pp.stride - c->rank / pp.stride + pp.size) % pp.size : -1;
}

/* The communicator of a message between this rank and `other`, and the other's place in it: that of
 * the lower rank is 0. All messages of a slot go up, or all go down; of two stages, which are both
 * next to and before each other, they count as going up. */
static mf_status pair_of(const mf_comm *c, int slot, int64_t other, bool sends, ncclComm_t *out,
                         int *member, mf_err *e) {
    const nccl_state *s = c->state;
    int64_t stages = c->size[MF_GROUP_PP], up = stages_up(c, other);
    bool above = up == 1, below = up == stages - 1;
    if (stages == 1 || !(above || below)) {
        return mf_err_set(e, MF_INTERNAL, "rank %lld and rank %lld are no neighbouring stages",
                          (long long)c->rank, (long long)other);
    }
    bool next = above && below ? sends : above;
    *out = next ? s->slot[slot].next : s->slot[slot].before;
    *member = other > c->rank;
    return MF_OK;
}

static mf_status send_message(mf_comm *c, int slot, int64_t to, int tag, const void *data,
                              size_t size_B, mf_err *e) {
    const nccl_state *s = c->state;
    ncclComm_t pair = NULL;
    int member = 0;
    (void)tag;
    mf_status status = pair_of(c, slot, to, true, &pair, &member, e);
    if (status == MF_OK) {
        NCCL_TRY(ncclSend(data, size_B, ncclUint8, member, pair, s->stream), e);
    }
    return status;
}

static mf_status receive_message(mf_comm *c, int slot, int64_t from, int tag, void *data,
                                 size_t size_B, mf_err *e) {
    const nccl_state *s = c->state;
    ncclComm_t pair = NULL;
    int member = 0;
    (void)tag;
    mf_status status = pair_of(c, slot, from, false, &pair, &member, e);
    if (status == MF_OK) {
        NCCL_TRY(ncclRecv(data, size_B, ncclUint8, member, pair, s->stream), e);
    }
    return status;
}

/* --- making them --------------------------------------------------------------------------------
 */

/* Pairs of neighbouring stages are made, and go, in turns, the last and the first among them: in
 * turn 0 those that begin at an even stage, in turn 1 those at an odd one; of an odd number of
 * stages the last with the first is turn 2. No rank is in two pairs of a turn. */
static int turn_of(int64_t first, int64_t stages) {
    return first == stages - 1 && stages % 2 == 1 ? 2 : (int)(first % 2);
}

static int turns_of(const mf_comm *c) {
    return c->size[MF_GROUP_PP] % 2 == 0 ? 2 : 3;
}

/* In the order in which they were made: each end of a pair waits for the other. */
static void destroy_slot(const mf_comm *c, const pair_comms *slot) {
    mf_group_shape pp = mf_layout_group(&c->layout, MF_GROUP_PP);
    int64_t stage = c->rank / pp.stride;
    for (int turn = 0; turn < turns_of(c); turn++) {
        ncclComm_t pair = turn_of(stage, pp.size) == turn ? slot->next : NULL;
        pair = turn_of((stage + pp.size - 1) % pp.size, pp.size) == turn ? slot->before : pair;
        if (pair != NULL) {
            (void)ncclCommDestroy(pair);
        }
    }
}

static void destroy(mf_comm *c) {
    nccl_state *s = c->state;
    if (s == NULL) {
        return;
    }
    for (int i = MF_COMM_SLOTS - 1; i >= 0; i--) {
        destroy_slot(c, &s->slot[i]);
    }
    for (int g = MF_COMM_GROUPS - 1; g >= 0; g--) {
        if (s->group[g] != NULL && !s->shared[g] && g != MF_GROUP_WORLD) {
            (void)ncclCommDestroy(s->group[g]);
        }
    }
    if (s->group[MF_GROUP_WORLD] != NULL) {
        (void)ncclCommDestroy(s->group[MF_GROUP_WORLD]);
    }
    (void)cudaFree(s->word);
    free(s);
}

/* Collectives of all kinds can be resident on the GPU together. (In a graph NCCL lets those of one
 * communicator follow one another as the host enters them: one that is used on two queues needs
 * that, mf_layout_group_shared.) */
static mf_status limit_ctas(const mf_comm *c, ncclConfig_t *config, mf_err *e) {
    mf_cta_shares s;
    mf_status status = mf_cuda_cta_shares(&c->layout, &s, e);
    if (status == MF_OK && s.each < MF_NCCL_TAKES_CTAS) {
        config->maxCTAs = s.each;
    }
    return status;
}

/* Every member gives 1: do they all answer, and is this rank where it should be? */
static mf_status try_comm(const nccl_state *s, ncclComm_t comm, int64_t size, int64_t member,
                          const char *name, mf_err *e) {
    double sum = 1.0;
    int rank = -1;
    NCCL_TRY(ncclCommUserRank(comm, &rank), e);
    MF_CUDA_TRY(cudaMemcpyAsync(s->word, &sum, sizeof sum, cudaMemcpyHostToDevice, s->stream), e);
    NCCL_TRY(ncclAllReduce(s->word, s->word, 1, ncclFloat64, ncclSum, comm, s->stream), e);
    MF_CUDA_TRY(cudaMemcpyAsync(&sum, s->word, sizeof sum, cudaMemcpyDeviceToHost, s->stream), e);
    MF_CUDA_TRY(cudaStreamSynchronize(s->stream), e);
    if ((int64_t)(sum + 0.5) != size || rank != member) {
        return mf_err_set(e, MF_LIBRARY, "NCCL: group %s has %g members, not %lld", name, sum,
                          (long long)size);
    }
    return MF_OK;
}

static mf_status split(mf_comm *c, int color, ncclComm_t *out, mf_err *e) {
    const nccl_state *s = c->state;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    mf_status status = limit_ctas(c, &config, e);
    if (status == MF_OK) {
        NCCL_TRY(ncclCommSplit(s->group[MF_GROUP_WORLD], color, (int)c->rank, out, &config), e);
    }
    return status;
}

static mf_status add(mf_comm *c, int g, int64_t color, mf_err *e) {
    nccl_state *s = c->state;
    int size = 1, member = 0;
    if (c->layout.gpus > 1) {
        mf_status status = split(c, color < 0 ? NCCL_SPLIT_NOCOLOR : (int)color, &s->group[g], e);
        if (status != MF_OK) {
            return status;
        }
    }
    if (s->group[g] != NULL) {
        NCCL_TRY(ncclCommCount(s->group[g], &size), e);
        NCCL_TRY(ncclCommUserRank(s->group[g], &member), e);
    }
    c->size[g] = size;
    c->member[g] = member;
    return size > 1 ? try_comm(s, s->group[g], size, member, "added", e) : MF_OK;
}

static mf_status connect_world(mf_comm *c, mf_comm *host, mf_err *e) {
    nccl_state *s = c->state;
    union {
        ncclUniqueId id;
        int32_t words[ID_I32];
    } u;
    _Static_assert(sizeof u.id == sizeof u.words, "an id is what is sent");
    memset(&u, 0, sizeof u);
    mf_status status = MF_OK;
    if (c->rank == 0) {
        ncclResult_t result = ncclGetUniqueId(&u.id);
        status = result == ncclSuccess ? MF_OK : nccl_failed(result, "ncclGetUniqueId", e);
    }
    status = mf_comm_agree(host, status, e);
    if (status == MF_OK) { /* the others give zeros */
        status =
            mf_comm_all_reduce(host, MF_GROUP_WORLD, MF_COMM_I32, MF_COMM_SUM, u.words, ID_I32, e);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    status = status == MF_OK ? limit_ctas(c, &config, e) : status;
    if (status == MF_OK) {
        NCCL_TRY(ncclCommInitRankConfig(&s->group[MF_GROUP_WORLD], (int)c->layout.gpus, u.id,
                                        (int)c->rank, &config),
                 e);
        status = try_comm(s, s->group[MF_GROUP_WORLD], c->layout.gpus, c->rank, "world", e);
    }
    return status;
}

static mf_status connect_group(mf_comm *c, mf_group_kind g, ncclComm_t *out, mf_err *e) {
    int64_t first = mf_layout_group_first(&c->layout, g, c->rank);
    mf_status status = split(c, (int)first, out, e);
    return status == MF_OK ? try_comm(c->state, *out, c->size[g], c->member[g], mf_group_text(g), e)
                           : status;
}

/* Each tells the other its rank: what is sent first would wait, on the host, for its receive. */
static mf_status try_pair(const mf_comm *c, ncclComm_t pair, int64_t other, mf_err *e) {
    const nccl_state *s = c->state;
    const double mine = (double)c->rank;
    double got = -1.0;
    int me = 0;
    NCCL_TRY(ncclCommUserRank(pair, &me), e);
    MF_CUDA_TRY(cudaMemcpyAsync(s->word, &mine, sizeof mine, cudaMemcpyHostToDevice, s->stream), e);
    NCCL_TRY(ncclGroupStart(), e);
    ncclResult_t result = ncclSend(s->word, 1, ncclFloat64, 1 - me, pair, s->stream);
    if (result == ncclSuccess) {
        result = ncclRecv(s->word + 1, 1, ncclFloat64, 1 - me, pair, s->stream);
    }
    mf_status status = end_group(result, "a message", e);
    if (status != MF_OK) {
        return status;
    }
    MF_CUDA_TRY(cudaMemcpyAsync(&got, s->word + 1, sizeof got, cudaMemcpyDeviceToHost, s->stream),
                e);
    MF_CUDA_TRY(cudaStreamSynchronize(s->stream), e);
    return (int64_t)got == other
               ? MF_OK
               : mf_err_set(e, MF_LIBRARY, "NCCL: rank %g answers in place of rank %lld", got,
                            (long long)other);
}

static mf_status connect_pair(mf_comm *c, int turn, pair_comms *slot, mf_err *e) {
    const nccl_state *s = c->state;
    mf_group_shape pp = mf_layout_group(&c->layout, MF_GROUP_PP);
    int64_t stage = c->rank / pp.stride, before = (stage + pp.size - 1) % pp.size;
    bool first = turn_of(stage, pp.size) == turn, second = turn_of(before, pp.size) == turn;
    int64_t other = first ? (stage + 1) % pp.size : before;
    int64_t color = c->rank % pp.stride + (first ? stage : before) * pp.stride;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t none = NULL, *pair = first ? &slot->next : second ? &slot->before : &none;
    config.maxCTAs = MF_MESSAGE_CTAS;
#if NCCL_VERSION_CODE >= 23000
    /* Else NCCL orders all communication that is captured as the host enters it: a send would hold
     * up what its rank receives. Steps of a graph and others do not run at the same time. */
    config.graphUsageMode = 1;
    config.graphStreamOrdering = 0;
#endif
    NCCL_TRY(ncclCommSplit(s->group[MF_GROUP_WORLD],
                           first || second ? (int)color : NCCL_SPLIT_NOCOLOR, (int)c->rank, pair,
                           &config),
             e);
    return *pair != NULL ? try_pair(c, *pair, c->rank + (other - stage) * pp.stride, e) : MF_OK;
}

static mf_status connect_slot(mf_comm *c, mf_comm *host, pair_comms *slot, mf_err *e) {
    mf_status status = MF_OK;
    for (int turn = 0; turn < turns_of(c) && status == MF_OK; turn++) {
        status = mf_comm_agree(host, connect_pair(c, turn, slot, e), e);
    }
    return status;
}

static mf_status connect_groups(mf_comm *c, mf_comm *host, mf_err *e) {
    nccl_state *s = c->state;
    int slots = 2 * mf_schedule_sending(&c->layout);
    mf_status status = mf_comm_agree(host, connect_world(c, host, e), e);
    for (int g = 0; g < MF_GROUP_COUNT && status == MF_OK; g++) {
        const int same = (int)mf_layout_group_shared(&c->layout, (mf_group_kind)g);
        s->shared[g] = same != g;
        if (c->size[g] > 1 && s->shared[g]) {
            s->group[g] = s->group[same];
        } else if (c->size[g] > 1 && g != MF_GROUP_WORLD) {
            status = connect_group(c, (mf_group_kind)g, &s->group[g], e);
            status = mf_comm_agree(host, status, e);
        }
    }
    for (int i = 0; i < slots && status == MF_OK; i++) {
        status = connect_slot(c, host, &s->slot[i], e);
    }
    return status;
}

bool mf_comm_nccl_shares_gpus(void) {
    return NCCL_VERSION_CODE >= SHARES_GPU_FROM;
}

/* Sets what NCCL has to know before its first call where ranks share a GPU. */
static mf_status share_gpus(const int32_t *all, int64_t ranks, bool *shared, mf_err *e) {
    assert(all != NULL);
    *shared = false;
    for (int64_t i = 1; i < ranks; i++) {
        for (int64_t j = 0; j < i; j++) {
            if (memcmp(&all[i * UUID_I32], &all[j * UUID_I32], UUID_I32 * sizeof *all) != 0) {
                continue;
            }
            if (!mf_comm_nccl_shares_gpus()) {
                return mf_err_set(e, MF_LIBRARY,
                                  "ranks %lld and %lld have the same GPU: NCCL allows that from "
                                  "2.30 on, this is %d.%d.%d",
                                  (long long)j, (long long)i, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
            }
            *shared = true;
            (void)setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
            (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
            (void)setenv("NCCL_MAX_CTAS", ranks > 4 ? "2" : ranks > 2 ? "4" : "8", 0);
            return MF_OK;
        }
    }
    return MF_OK;
}

static mf_status compare_gpus(mf_comm *host, bool *shared, mf_err *e) {
    struct cudaDeviceProp *gpu = calloc(1, sizeof *gpu);
    int64_t ranks = mf_comm_group_size(host, MF_GROUP_WORLD);
    int32_t *all = calloc((size_t)ranks, UUID_I32 * sizeof *all), own[UUID_I32] = {0};
    int device = 0;
    mf_status status =
        gpu != NULL && all != NULL ? MF_OK : mf_err_set(e, MF_NOMEM, "NCCL: out of memory");
    if (status == MF_OK) {
        cudaError_t result = cudaGetDevice(&device);
        result = result == cudaSuccess ? cudaGetDeviceProperties(gpu, device) : result;
        status = result == cudaSuccess ? MF_OK : MF_CUDA_SET(e, result, "cudaGetDeviceProperties");
        _Static_assert(sizeof gpu->uuid == sizeof own, "a GPU's name is what is sent");
        memcpy(own, &gpu->uuid, sizeof own);
    }
    status = mf_comm_agree(host, status, e);
    if (status == MF_OK) {
        status = mf_comm_all_gather(host, MF_GROUP_WORLD, MF_COMM_I32, own, all, UUID_I32, e);
    }
    if (status == MF_OK) {
        status = mf_comm_agree(host, share_gpus(all, ranks, shared, e), e);
    }
    free(all);
    free(gpu);
    return status;
}

static mf_status check_version(mf_err *e) {
    int v = 0;
    NCCL_TRY(ncclGetVersion(&v), e);
    if (v != NCCL_VERSION_CODE) {
        return mf_err_set(e, MF_LIBRARY, "NCCL: compiled for %d.%d.%d, found %d.%d.%d", NCCL_MAJOR,
                          NCCL_MINOR, NCCL_PATCH, v / 10000, v / 100 % 100, v % 100);
    }
    return MF_OK;
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

void *mf_comm_nccl_group(const mf_comm *c, mf_group_kind g) {
    return c->ops == &ops ? ((const nccl_state *)c->state)->group[g] : NULL;
}

bool mf_comm_nccl_is_shared(const mf_comm *c) {
    return c->ops == &ops && ((const nccl_state *)c->state)->shares_gpus;
}

static mf_status prepare(mf_comm *host, const mf_layout *l, mf_comm **out, mf_err *e) {
    if (l->gpus != mf_comm_group_size(host, MF_GROUP_WORLD)) {
        return mf_err_set(e, MF_LAYOUT, "the layout is for %lld ranks, %lld are running",
                          (long long)l->gpus, (long long)mf_comm_group_size(host, MF_GROUP_WORLD));
    }
    mf_comm *c = *out = mf_comm_new(l, mf_comm_rank(host), e);
    if (c == NULL) {
        return MF_NOMEM;
    }
    nccl_state *s = c->state = calloc(1, sizeof *s);
    c->ops = &ops;
    if (s == NULL) {
        return mf_err_set(e, MF_NOMEM, "NCCL: out of memory");
    }
    MF_CUDA_TRY(cudaMalloc((void **)&s->word, 2 * sizeof *s->word), e);
    return check_version(e);
}

mf_status mf_comm_nccl_create(mf_comm *host, const mf_layout *l, mf_comm **out, mf_err *e) {
    mf_comm *c = NULL;
    *out = NULL;
    bool shared = false;
    mf_status status = compare_gpus(host, &shared, e);
    if (status == MF_OK) {
        status = mf_comm_agree(host, prepare(host, l, &c, e), e);
    }
    if (status == MF_OK) {
        ((nccl_state *)c->state)->shares_gpus = shared;
    }
    if (status == MF_OK && l->gpus > 1) {
        status = connect_groups(c, host, e);
    }
    if (status != MF_OK) {
        mf_comm_destroy(c);
        return status;
    }
    *out = c;
    return MF_OK;
}
