/* measure_nccl_cuda.c - collectives through NCCL on the GPUs of one host, one thread a rank.
 *
 * Operations follow each other on a stream, as in a training step that has work queued, over
 * buffers that rotate. The time of a batch is that of the slowest rank. `bytes` is counted as
 * nccl-tests counts it (profiles/ops_table.h).
 */
#include "executor/measure/measure_gpus_cuda.h"
#include "kernels/device/cuda_check.h"
#include "kernels/gemm/gemm_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = MF_MEASURE_RANKS, BATCHES_MAX = MF_MEASURE_RANK_BATCHES };
enum { AGAIN = 2 /* readings more of what spreads */ };
typedef mf_measure_rank rank;
typedef mf_measure_job job;
static const size_t buffer_B = MF_MEASURE_BUFFER_B;

/* One message of a collective on one rank. */
typedef struct message {
    char *send, *recv;
    size_t size_B; /* as nccl-tests counts it */
    int rank, ranks;
    bool in_place;
    ncclComm_t comm;
    cudaStream_t stream;
} message;

/* --- collectives ------------------------------------------------------------------------------ */

static const ncclDataType_t element = ncclBfloat16;
enum { ELEMENT_B = 2 };

static ncclResult_t all_reduce(const message *m) {
    return ncclAllReduce(m->send, m->in_place ? m->send : m->recv, m->size_B / ELEMENT_B, element,
                         ncclSum, m->comm, m->stream);
}

static ncclResult_t all_gather(const message *m) {
    size_t part_B = m->size_B / (size_t)m->ranks;
    const char *own = m->in_place ? m->recv + (size_t)m->rank * part_B : m->send;
    return ncclAllGather(own, m->recv, part_B / ELEMENT_B, element, m->comm, m->stream);
}

static ncclResult_t reduce_scatter(const message *m) {
    size_t part_B = m->size_B / (size_t)m->ranks;
    char *own = m->in_place ? m->send + (size_t)m->rank * part_B : m->recv;
    return ncclReduceScatter(m->send, own, part_B / ELEMENT_B, element, ncclSum, m->comm,
                             m->stream);
}

static ncclResult_t all_to_all(const message *m) {
    size_t part_B = m->size_B / (size_t)m->ranks, n = part_B / ELEMENT_B;
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < m->ranks && result == ncclSuccess; r++) {
        size_t at = (size_t)r * part_B;
        result = ncclSend(m->send + at, n, element, r, m->comm, m->stream);
        result = result == ncclSuccess ? ncclRecv(m->recv + at, n, element, r, m->comm, m->stream)
                                       : result;
    }
    ncclResult_t end = ncclGroupEnd();
    return result == ncclSuccess ? end : result;
}

static ncclResult_t send_recv(const message *m) {
    size_t n = m->size_B / ELEMENT_B;
    int next = (m->rank + 1) % m->ranks, last = (m->rank + m->ranks - 1) % m->ranks;
    ncclResult_t result = ncclGroupStart();
    result =
        result == ncclSuccess ? ncclSend(m->send, n, element, next, m->comm, m->stream) : result;
    result =
        result == ncclSuccess ? ncclRecv(m->recv, n, element, last, m->comm, m->stream) : result;
    ncclResult_t end = ncclGroupEnd();
    return result == ncclSuccess ? end : result;
}

static const struct collective {
    const char *name;
    ncclResult_t (*run)(const message *m);
} collectives[] = {{"all_reduce", all_reduce},
                   {"all_gather", all_gather},
                   {"reduce_scatter", reduce_scatter},
                   {"all_to_all", all_to_all},
                   {"send_recv", send_recv}};

static const struct collective *collective_of(const char *name) {
    for (size_t i = 0; i < sizeof collectives / sizeof collectives[0]; i++) {
        if (strcmp(collectives[i].name, name) == 0) {
            return &collectives[i];
        }
    }
    return NULL;
}

/* --- ranks ------------------------------------------------------------------------------------ */

static mf_status open_rank(rank *r, mf_err *e) {
    int low = 0, high = 0;
    MF_CUDA_TRY(cudaSetDevice(r->index), e);
    MF_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&low, &high), e);
    MF_CUDA_TRY(cudaStreamCreateWithPriority(&r->compute, cudaStreamNonBlocking, low), e);
    MF_CUDA_TRY(cudaStreamCreateWithPriority(&r->comm, cudaStreamNonBlocking, high), e);
    for (size_t i = 0; i < sizeof r->event / sizeof r->event[0]; i++) {
        MF_CUDA_TRY(cudaEventCreate(&r->event[i]), e);
    }
    MF_CUDA_TRY(cudaMalloc((void **)&r->send, buffer_B), e);
    MF_CUDA_TRY(cudaMalloc((void **)&r->recv, buffer_B), e);
    MF_CUDA_TRY(cudaMalloc((void **)&r->operands, MF_MEASURE_OPERANDS_B + 2 * MF_MEASURE_COPY_B),
                e);
    MF_CUDA_TRY(cudaMalloc(&r->workspace, (size_t)64 << 20), e);
    mf_status status = mf_gemm_cuda_library_open(&r->cublas, e);
    return status != MF_OK ? status
                           : mf_measure_fill(r->operands, MF_MEASURE_OPERANDS_B, MF_DATA_BF16,
                                             (uint64_t)r->index + 77, r->compute, e);
}

mf_status mf_measure_gpus_open(int ranks, mf_measure_gpus **out, mf_err *e) {
    int devices[RANKS_MAX], count = 0;
    mf_status status = MF_OK;
    *out = NULL;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < ranks || ranks > RANKS_MAX) {
        return mf_err_set(e, MF_USAGE,
                          "collectives of %d ranks need as many GPUs, found %d (at most %d)", ranks,
                          count, RANKS_MAX);
    }
    mf_measure_gpus *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
    }
    w->ranks = ranks;
    /* Buffers of a step are not registered: those of captured calls shall not be, either. */
    (void)setenv("NCCL_GRAPH_REGISTER", "0", 1);
    for (int i = 0; i < ranks && status == MF_OK; i++) {
        devices[i] = i;
        w->rank[i].gpus = w;
        w->rank[i].index = i;
        status = open_rank(&w->rank[i], e);
    }
    for (int n = 2; n <= ranks && status == MF_OK; n++) {
        ncclResult_t result = ncclCommInitAll(w->comm[n], n, devices);
        if (result != ncclSuccess) {
            status =
                mf_err_set(e, MF_LIBRARY, "NCCL: ncclCommInitAll: %s", ncclGetErrorString(result));
        }
    }
    if (status != MF_OK) {
        mf_measure_gpus_close(w);
        return status;
    }
    *out = w;
    return MF_OK;
}

void mf_measure_gpus_close(mf_measure_gpus *w) {
    if (w == NULL) {
        return;
    }
    for (int n = 2; n <= w->ranks; n++) {
        for (int i = 0; i < n; i++) {
            if (w->comm[n][i] != NULL) {
                (void)ncclCommDestroy(w->comm[n][i]);
            }
        }
    }
    for (int i = 0; i < w->ranks; i++) {
        rank *r = &w->rank[i];
        void *memory[] = {r->send, r->recv, r->operands, r->workspace};
        (void)cudaSetDevice(i);
        mf_gemm_cuda_library_close(r->cublas);
        for (size_t m = 0; m < sizeof memory / sizeof memory[0]; m++) {
            (void)cudaFree(memory[m]);
        }
    }
    free(w);
}

void mf_measure_nccl_version(char *text, size_t size) {
    int version = 0;
    (void)ncclGetVersion(&version);
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* --- what runs -------------------------------------------------------------------------------- */

static message message_of(const rank *r, int64_t i) {
    const job *j = &r->gpus->job;
    size_t spare_B = buffer_B - j->size_B, step = (j->size_B + 4095) / 4096 * 4096;
    size_t places = spare_B / step + 1, at = (size_t)i % places * step;
    return (message){r->send + at,
                     r->recv + at,
                     j->size_B,
                     r->index,
                     j->ranks,
                     j->in_place,
                     r->gpus->comm[j->ranks][r->index],
                     r->comm};
}

static mf_status one_message(rank *r, void *user, int64_t i, mf_err *e) {
    message m = message_of(r, i);
    (void)user;
    MF_NCCL_TRY(r->gpus->job.collective->run(&m), e);
    return MF_OK;
}

/* --- one reading, in the thread of a rank ----------------------------------------------------- */

static mf_status read_rank(rank *r, mf_err *e) {
    job *j = &r->gpus->job;
    size_t fill_B = 3 * j->size_B < buffer_B ? 3 * j->size_B + 4096 : buffer_B;
    MF_CUDA_TRY(cudaSetDevice(r->index), e);
    mf_status status =
        mf_measure_fill(r->send, fill_B, MF_DATA_BF16, (uint64_t)r->index + 1, r->comm, e);
    status =
        status == MF_OK ? mf_measure_fill(r->recv, fill_B, MF_DATA_BF16, 9, r->comm, e) : status;
    MF_CUDA_TRY(cudaDeviceSynchronize(), e);
    pthread_barrier_wait(&j->barrier);
    if (status == MF_OK) {
        status = j->exchange ? mf_measure_rank_dispatch(r, e)
                 : j->beside ? mf_measure_rank_beside(r, one_message, NULL, e)
                             : mf_measure_rank_time(r, one_message, NULL, true, e);
    }
    return status;
}

static void *rank_thread(void *user) {
    rank *r = user;
    mf_err_clear(&r->why);
    r->status = read_rank(r, &r->why);
    return NULL;
}

/* Runs the job on its ranks, and takes the slowest rank of every batch. A rank that fails leaves
 * the others waiting inside NCCL: nothing is left but to end the process, which the caller of a
 * failed library call does anyway. */
static mf_status run_job(mf_measure_gpus *w, mf_measure_time *out, mf_err *e) {
    pthread_t thread[RANKS_MAX];
    double value[BATCHES_MAX];
    mf_status status = MF_OK;
    pthread_barrier_init(&w->job.barrier, NULL, (unsigned)w->job.ranks);
    for (int i = 0; i < w->job.ranks; i++) {
        if (pthread_create(&thread[i], NULL, rank_thread, &w->rank[i]) != 0) {
            return mf_err_set(e, MF_NOMEM, "measuring: no thread");
        }
    }
    for (int i = 0; i < w->job.ranks; i++) {
        pthread_join(thread[i], NULL);
        if (w->rank[i].status != MF_OK && status == MF_OK) {
            status = mf_err_set(e, w->rank[i].status, "rank %d: %s", i, w->rank[i].why.text);
        }
    }
    pthread_barrier_destroy(&w->job.barrier);
    for (int b = 0; b < w->job.batches && status == MF_OK; b++) {
        value[b] = 0;
        for (int i = 0; i < w->job.ranks; i++) {
            double t = w->rank[i].batch_s[b];
            value[b] = t > value[b] ? t : value[b];
        }
    }
    if (status == MF_OK) {
        mf_measure_summary(value, w->job.batches, out);
        out->samples = (int64_t)w->job.batches * w->job.runs;
    }
    return status;
}

static mf_status take_reading(void *gpus, mf_measure_time *out, mf_err *e) {
    return run_job(gpus, out, e);
}

static mf_status quiet_reading(mf_measure_gpus *w, mf_measure_time *out, mf_err *e) {
    return mf_measure_quietest(take_reading, w, AGAIN, out, e);
}

mf_status mf_measure_gpus_point(mf_measure_gpus *w, const mf_point *p, mf_measure_time *out,
                                mf_err *e) {
    bool beside = strcmp(p->op, "beside") == 0;
    memset(&w->job, 0, sizeof w->job);
    w->job.point = p;
    const char *what = beside ? mf_point_word(p, "comm") : p->op;
    if (beside) {
        w->job.beside = true;
        w->job.of_comm = strcmp(mf_point_word(p, "of"), "comm") == 0;
        w->job.product = strcmp(mf_point_word(p, "op"), "gemm") == 0;
        w->job.product_size = mf_measure_dim(p, "size");
        if (w->job.product && w->job.product_size > MF_MEASURE_PRODUCT_MAX) {
            return mf_err_set(e, MF_INPUT, "products beside collectives: at most %d",
                              MF_MEASURE_PRODUCT_MAX);
        }
    }
    if (strcmp(what, "dispatch") == 0 || strcmp(what, "combine") == 0) {
        w->job.exchange = true;
        w->job.size_B = MF_MEASURE_BUFFER_B; /* all of the buffers is filled */
        w->job.ranks = (int)mf_measure_dim(p, "ranks");
        mf_status status = mf_measure_dispatch_check(p, e);
        return status == MF_OK && w->job.ranks <= w->ranks ? quiet_reading(w, out, e)
               : status != MF_OK
                   ? status
                   : mf_err_set(e, MF_INPUT, "%d ranks of %d GPUs", w->job.ranks, w->ranks);
    }
    w->job.collective = collective_of(what);
    w->job.ranks = (int)mf_measure_dim(p, "ranks");
    w->job.size_B = (size_t)mf_measure_dim(p, "bytes");
    if (w->job.collective == NULL || w->job.ranks < 2 || w->job.ranks > w->ranks ||
        w->job.size_B * 2 > buffer_B || (!beside && mf_measure_dim(p, "nodes") != 1) ||
        w->job.size_B % ((size_t)w->job.ranks * ELEMENT_B) != 0) {
        return mf_err_set(e, MF_INPUT, "this collective cannot be measured here");
    }
    w->job.in_place = !beside && mf_measure_dim(p, "inplace") != 0;
    return quiet_reading(w, out, e);
}
