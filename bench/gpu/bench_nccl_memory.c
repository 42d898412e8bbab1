/* bench_nccl_memory.c - what NCCL takes of each GPU's memory, step by step: the figures of
 * core/memory/comm_memory.c.
 *
 *     bench_nccl_memory [RANKS]
 *
 * Ranks [2] are processes with a GPU each, as in training. Every line tells what the driver counts
 * as used on rank 0's GPU, what that is more than in the line before, and what NCCL itself counts
 * for the communicator that the line uses (NCCL 2.32 tells). Each series starts in new processes.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 16, CTAS_UNSET = 0 };

static const size_t small_B = 1024, large_B = (size_t)256 << 20;

#define TRY_CUDA(call)                                                                             \
    do {                                                                                           \
        cudaError_t result_ = (call);                                                              \
        if (result_ != cudaSuccess) {                                                              \
            fprintf(stderr, "bench_nccl_memory: %s: %s\n", #call, cudaGetErrorString(result_));    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        ncclResult_t result_ = (call);                                                             \
        if (result_ != ncclSuccess) {                                                              \
            fprintf(stderr, "bench_nccl_memory: %s: %s\n", #call, ncclGetErrorString(result_));    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef struct rank {
    int rank, ranks;
    cudaStream_t stream;
    char *in, *out; /* [large_B] */
    double used_B;  /* at the last line printed */
    const char *series;
} rank;

static double used_B(void) {
    size_t free_B = 0, total_B = 0;
    TRY_CUDA(cudaMemGetInfo(&free_B, &total_B));
    return (double)(total_B - free_B);
}

static void tell(rank *r, const char *what, ncclComm_t comm) {
    TRY_CUDA(cudaStreamSynchronize(r->stream));
    uint64_t total = 0, persists = 0;
#if NCCL_VERSION_CODE >= 23200
    if (comm != NULL) {
        TRY(ncclCommMemStats(comm, ncclStatGpuMemTotal, &total));
        TRY(ncclCommMemStats(comm, ncclStatGpuMemPersist, &persists));
    }
#else
    (void)comm;
#endif
    double now_B = used_B();
    if (r->rank == 0) {
        printf("%-22s %-44s %9.1f %+9.1f %9.1f %9.1f\n", r->series, what, 1e-6 * now_B,
               1e-6 * (now_B - r->used_B), 1e-6 * (double)total, 1e-6 * (double)persists);
        fflush(stdout);
    }
    r->used_B = now_B;
}

/* --- what a communicator is used for ------------------------------------------------------------
 */

static void reduce(rank *r, ncclComm_t comm, size_t size_B) {
    TRY(ncclAllReduce(r->in, r->out, size_B / 4, ncclFloat32, ncclSum, comm, r->stream));
}

static void gather(rank *r, ncclComm_t comm, size_t size_B) {
    TRY(ncclAllGather(r->in, r->out, size_B / (size_t)r->ranks, ncclUint8, comm, r->stream));
}

static void scatter(rank *r, ncclComm_t comm, size_t size_B) {
    TRY(ncclReduceScatter(r->in, r->out, size_B / 4 / (size_t)r->ranks, ncclFloat32, ncclSum, comm,
                          r->stream));
}

static void exchange(rank *r, ncclComm_t comm, size_t size_B) {
    size_t each_B = size_B / (size_t)r->ranks;
    TRY(ncclGroupStart());
    for (int i = 0; i < r->ranks; i++) {
        TRY(ncclSend(r->in + (size_t)i * each_B, each_B, ncclUint8, i, comm, r->stream));
        TRY(ncclRecv(r->out + (size_t)i * each_B, each_B, ncclUint8, i, comm, r->stream));
    }
    TRY(ncclGroupEnd());
}

static void pass_on(rank *r, ncclComm_t comm, size_t size_B) {
    TRY(ncclGroupStart());
    TRY(ncclSend(r->in, size_B, ncclUint8, (r->rank + 1) % r->ranks, comm, r->stream));
    TRY(ncclRecv(r->out, size_B, ncclUint8, (r->rank + r->ranks - 1) % r->ranks, comm, r->stream));
    TRY(ncclGroupEnd());
}

static const struct use {
    char letter;
    const char *name;
    void (*run)(rank *r, ncclComm_t comm, size_t size_B);
} uses[] = {{'r', "all-reduce", reduce},
            {'g', "all-gather", gather},
            {'s', "reduce-scatter", scatter},
            {'x', "all-to-all", exchange},
            {'m', "message to the next", pass_on}};
enum { USES = sizeof uses / sizeof uses[0] };

static void use(rank *r, ncclComm_t comm, char letter, size_t size_B) {
    for (int i = 0; i < USES; i++) {
        if (uses[i].letter == letter) {
            char text[96];
            uses[i].run(r, comm, size_B);
            snprintf(text, sizeof text, "%s of %.3g MB", uses[i].name, 1e-6 * (double)size_B);
            tell(r, text, comm);
        }
    }
}

/* --- series -------------------------------------------------------------------------------------
 * One character is one action: a use of the communicator that was made last, small in lower case
 * and large in upper; '+' makes another of all ranks. ctas: at most so many thread blocks. */
static const struct series {
    const char *name, *actions;
    int ctas;
} series[] = {
    {"sums", "+rRgGsS", CTAS_UNSET},
    {"exchanges", "+rxX", CTAS_UNSET},
    {"exchanges first", "+xXrR", CTAS_UNSET},
    {"messages", "+rmM", CTAS_UNSET},
    {"three groups", "+rR+rRgG+rxX", CTAS_UNSET},
    {"16 blocks", "+rR+rxX", 16},
    {"8 blocks", "+rR+rmM+mM", 8},
    {"4 blocks", "+rR+xX", 4},
};
enum { SERIES = sizeof series / sizeof series[0] };

static ncclComm_t make(rank *r, ncclComm_t world, const ncclUniqueId *id, int ctas) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t made = NULL;
    if (ctas != CTAS_UNSET) {
        config.maxCTAs = ctas;
    }
    if (world == NULL) {
        TRY(ncclCommInitRankConfig(&made, r->ranks, *id, r->rank, &config));
    } else {
        TRY(ncclCommSplit(world, 0, r->rank, &made, &config));
    }
    tell(r, world == NULL ? "the first communicator" : "a communicator split from it", made);
    return made;
}

static void run(rank *r, const struct series *s, const ncclUniqueId *id) {
    ncclComm_t world = NULL, comm = NULL;
    r->series = s->name;
    TRY_CUDA(cudaSetDevice(r->rank));
    TRY_CUDA(cudaStreamCreate(&r->stream));
    TRY_CUDA(cudaMalloc((void **)&r->in, large_B));
    TRY_CUDA(cudaMalloc((void **)&r->out, large_B));
    TRY_CUDA(cudaMemset(r->in, 0, large_B));
    tell(r, "context and 537 MB of data", NULL);
    for (const char *a = s->actions; *a != '\0'; a++) {
        if (*a == '+') {
            comm = make(r, world, id, s->ctas);
            world = world == NULL ? comm : world;
        } else {
            bool large = *a >= 'A' && *a <= 'Z';
            use(r, comm, large ? (char)(*a - 'A' + 'a') : *a, large ? large_B : small_B);
        }
    }
}

/* Rank 0 puts the id where all can read it. */
static void run_process(int me, int ranks, const struct series *s, void *shared) {
    struct meeting {
        volatile int ready;
        ncclUniqueId id;
    } *m = shared;
    rank r = {.rank = me, .ranks = ranks};
    if (me == 0) {
        TRY(ncclGetUniqueId(&m->id));
        __sync_synchronize();
        m->ready = 1;
    }
    while (m->ready == 0) {
        usleep(1000);
    }
    run(&r, s, &m->id);
    exit(0);
}

int main(int argc, char **argv) {
    int ranks = argc > 1 ? atoi(argv[1]) : 2, failed = 0;
    if (ranks < 2 || ranks > RANKS_MAX) {
        fprintf(stderr, "bench_nccl_memory: ranks are 2 to %d\n", RANKS_MAX);
        return 2;
    }
    printf("%-22s %-44s %9s %9s %9s %9s   MB, NCCL %d\n", "series", "after", "used", "more",
           "NCCL's", "stays", NCCL_VERSION_CODE);
    fflush(stdout);
    for (int i = 0; i < SERIES && failed == 0; i++) {
        void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        for (int k = 0; k < ranks; k++) {
            if (fork() == 0) {
                run_process(k, ranks, &series[i], shared);
            }
        }
        for (int k = 0; k < ranks; k++) {
            int status = 0;
            wait(&status);
            failed += status != 0;
        }
        munmap(shared, 4096);
    }
    return failed != 0;
}
