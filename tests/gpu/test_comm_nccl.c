/* test_comm_nccl.c - communicators over NCCL: every operation over every group gives what it has
 * to, also replayed from a CUDA graph. One process a GPU, which this program starts of itself; on
 * one GPU its ranks share it where NCCL allows that, and where it does not that is said. */
#include "executor/comm/comm_launch.h"
#include "executor/cuda/comm_nccl_cuda.h"
#include "tests/gpu/gpu.h"
#include "tests/support/comm_case.h"

enum { TESTS = 3, BUFFERS = 4, BUFFER_B = 16 << 20, REPLAYS = 3, COUNT = 1000 };

/* --- operands in device memory ------------------------------------------------------------------
 */

static char *arena;
static int next_buffer;
static cudaStream_t stream;

/* An operation has at most three operands at a time. */
static void *place(const void *data, size_t size_B) {
    char *result = arena + (size_t)(next_buffer++ % BUFFERS) * BUFFER_B;
    if (size_B > BUFFER_B) {
        printf("FAIL  an operand of %zu bytes\n", size_B);
        exit(1);
    }
    GPU_MUST(cudaMemcpyAsync(result, data, size_B, cudaMemcpyHostToDevice, stream));
    GPU_MUST(cudaStreamSynchronize(stream));
    return result;
}

static void fetch(void *data, void *from, size_t size_B) {
    GPU_MUST(cudaMemcpyAsync(data, from, size_B, cudaMemcpyDeviceToHost, stream));
    GPU_MUST(cudaStreamSynchronize(stream));
}

static void drop(void *p) {
    (void)p;
    GPU_MUST(cudaStreamSynchronize(stream));
}

static const comm_memory device = {
    .place = place, .fetch = fetch, .drop = drop, .streams = true, .sums_bf16 = true};

/* --- a graph ------------------------------------------------------------------------------------
 */

typedef struct graph_case {
    mf_comm *c;
    int64_t ranks, rank;
    float *sum, *gathered, *scattered, *sent, *received, *passed[2];
    int64_t part[CASE_RANKS], at, own;
    cudaStream_t side;
    cudaEvent_t forked, joined;
} graph_case;

static float *result(int i) {
    return (float *)(void *)(arena + (size_t)BUFFERS * BUFFER_B) + (size_t)i * COUNT * CASE_RANKS;
}

/* Stages of even number send before they receive. */
static mf_status pass_on(const graph_case *x, int slot, int64_t to, int64_t from, float *data,
                         float *out, mf_err *e) {
    mf_status s = MF_OK;
    bool first = mf_comm_group_rank(x->c, MF_GROUP_PP) % 2 == 0;
    for (int turn = 0; turn < 2 && s == MF_OK; turn++) {
        s = first == (turn == 0)
                ? mf_comm_send(x->c, slot, to, 0, data, COUNT * sizeof(float), e)
                : mf_comm_receive(x->c, slot, from, 0, out, COUNT * sizeof(float), e);
    }
    return s == MF_OK ? mf_comm_wait_send(x->c, slot, e) : s;
}

/* The world's sum in place, then what else there is, of that sum; messages beside it on a stream of
 * their own. */
static mf_status enqueue(const graph_case *x, mf_err *e) {
    const mf_group_kind w = MF_GROUP_WORLD;
    int64_t other = (x->rank + x->ranks / 2) % x->ranks, each[CASE_RANKS];
    for (int64_t i = 0; i < x->ranks; i++) {
        each[i] = 7;
    }
    GPU_MUST(cudaEventRecord(x->forked, stream));
    GPU_MUST(cudaStreamWaitEvent(x->side, x->forked, 0));
    mf_comm_use_stream(x->c, x->side);
    mf_status s = pass_on(x, 2, other, other, x->sent, x->passed[0], e);
    GPU_MUST(cudaEventRecord(x->joined, x->side));
    mf_comm_use_stream(x->c, stream);
    s = s == MF_OK ? mf_comm_all_reduce(x->c, w, MF_COMM_F32, MF_COMM_SUM, x->sum, COUNT, e) : s;
    s = s == MF_OK ? mf_comm_reduce_scatter(x->c, w, MF_COMM_F32, x->sum, x->scattered, x->part, e)
                   : s;
    s = s == MF_OK ? mf_comm_all_gather_v(x->c, w, MF_COMM_F32, x->gathered, x->part, e) : s;
    s = s == MF_OK ? mf_comm_all_to_all(x->c, w, sizeof(float), x->sent, each, x->received, each, e)
                   : s;
    s = s == MF_OK ? pass_on(x, 0, other, other, x->sent, x->passed[1], e) : s;
    s = s == MF_OK ? mf_comm_barrier(x->c, e) : s;
    GPU_MUST(cudaStreamWaitEvent(stream, x->joined, 0));
    return s;
}

static void fill(float *to, int64_t count, float value) {
    float *data = malloc((size_t)count * sizeof *data);
    for (int64_t k = 0; data != NULL && k < count; k++) {
        data[k] = value;
    }
    GPU_MUST(
        cudaMemcpyAsync(to, data, (size_t)count * sizeof *data, cudaMemcpyHostToDevice, stream));
    GPU_MUST(cudaStreamSynchronize(stream));
    free(data);
}

/* Elements [from, from + count) are `value`. */
static int differ(const char *what, const float *from, int64_t count, double value) {
    float *data = malloc((size_t)count * sizeof *data + 1);
    int wrong = 0;
    GPU_MUST(
        cudaMemcpyAsync(data, from, (size_t)count * sizeof *data, cudaMemcpyDeviceToHost, stream));
    GPU_MUST(cudaStreamSynchronize(stream));
    for (int64_t k = 0; k < count; k++) {
        wrong += (double)data[k] != value;
    }
    if (wrong > 0) {
        printf("graph: %s: %d of %lld are not %g (the first is %g)\n", what, wrong,
               (long long)count, value, (double)data[0]);
    }
    free(data);
    return wrong > 0;
}

static void prepare(graph_case *x) {
    int64_t sum = 0;
    for (int64_t i = 0; i < x->ranks; i++) { /* parts that differ */
        x->part[i] = COUNT / x->ranks + (i == 0 ? x->ranks : -1);
        x->at = i == x->rank ? sum : x->at;
        sum += x->part[i];
    }
    x->own = x->part[x->rank];
    x->sum = result(0);
    x->gathered = result(1);
    x->scattered = result(2);
    x->sent = result(3);
    x->received = result(4);
    x->passed[0] = result(5);
    x->passed[1] = result(6);
    fill(x->sum, COUNT + CASE_RANKS, 1.0f);
    fill(x->gathered, COUNT + CASE_RANKS, -1.0f);
    fill(x->gathered + x->at, x->own, (float)x->rank);
    fill(x->sent, COUNT, (float)(x->rank + 100));
    GPU_MUST(cudaStreamCreateWithFlags(&x->side, cudaStreamNonBlocking));
    GPU_MUST(cudaEventCreateWithFlags(&x->forked, cudaEventDisableTiming));
    GPU_MUST(cudaEventCreateWithFlags(&x->joined, cudaEventDisableTiming));
}

static int check(const graph_case *x) {
    double power = 1.0;
    int64_t from = 0, other = (x->rank + x->ranks / 2) % x->ranks;
    int wrong = 0;
    for (int i = 0; i < REPLAYS; i++) {
        power *= (double)x->ranks;
    }
    wrong += differ("sum", x->sum, COUNT, power);
    for (int64_t i = 0; i < x->ranks; from += x->part[i++]) {
        wrong += differ("gather", x->gathered + from, x->part[i], (double)i);
        wrong += differ("all-to-all", x->received + 7 * i, 7, (double)i + 100);
    }
    /* Of what lies behind the sum's elements nothing is summed up before. */
    int64_t inside = x->at + x->own < COUNT ? x->own : COUNT - x->at;
    wrong += differ("scatter", x->scattered, inside, power * (double)x->ranks);
    wrong += differ("side", x->passed[0], COUNT, (double)other + 100);
    return wrong + differ("main", x->passed[1], COUNT, (double)other + 100);
}

static int run_graph(mf_comm *c, mf_err *e) {
    graph_case x = {
        .c = c, .ranks = mf_comm_group_size(c, MF_GROUP_WORLD), .rank = mf_comm_rank(c)};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    prepare(&x);
    GPU_MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    mf_status s = enqueue(&x, e);
    GPU_MUST(cudaStreamEndCapture(stream, &graph));
    if (s != MF_OK) {
        printf("graph: %s\n", e->text);
        return 1;
    }
    GPU_MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < REPLAYS; i++) {
        GPU_MUST(cudaGraphLaunch(exec, stream));
    }
    GPU_MUST(cudaStreamSynchronize(stream));
    int wrong = check(&x);
    GPU_MUST(cudaGraphExecDestroy(exec));
    GPU_MUST(cudaGraphDestroy(graph));
    GPU_MUST(cudaEventDestroy(x.forked));
    GPU_MUST(cudaEventDestroy(x.joined));
    GPU_MUST(cudaStreamDestroy(x.side));
    return wrong;
}

/* --- ranks --------------------------------------------------------------------------------------
 */

static int run_cases(mf_comm *c, const mf_layout *l, int *checks, mf_err *e) {
    static const int64_t counts[] = {1, 37, 5003};
    mf_group_kind added = MF_GROUP_NONE, none = MF_GROUP_NONE;
    int64_t rank = mf_comm_rank(c);
    int failed = 0;
    if (mf_comm_add(c, rank % 2, &added, e) != MF_OK ||
        mf_comm_add(c, rank == 0 ? -1 : 3, &none, e) != MF_OK) {
        printf("rank %lld: %s\n", (long long)rank, e->text);
        return 1;
    }
    failed += mf_comm_group_size(c, none) != (rank == 0 || l->gpus == 1 ? 1 : l->gpus - 1);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        failed += case_run(c, l, added, &device, counts[i], checks);
    }
    return l->gpus > 1 ? failed + run_graph(c, e) : failed;
}

/* Ranks of this process's host; GPUs go round. */
static int child(int gpus, bool refused) {
    int64_t rank = 0, ranks = 1;
    int failed = 0, checks = 0;
    mf_err e = {.text = ""};
    mf_comm *host = NULL, *c = NULL;
    if (mf_comm_start(&rank, &ranks, &e) != MF_OK) {
        printf("FAIL  ranks: %s\n", e.text);
        return 1;
    }
    mf_layout l = case_layout(ranks);
    l.schedule = MF_SCHED_ZB_V; /* uses every slot */
    l.vpp = 2;
    GPU_MUST(cudaSetDevice((int)(rank % gpus)));
    GPU_MUST(cudaMalloc((void **)&arena, (size_t)(BUFFERS + 2) * BUFFER_B));
    GPU_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    mf_status s = mf_comm_create(&l, &host, &e);
    s = s == MF_OK ? mf_comm_nccl_create(host, &l, &c, &e) : s;
    if (refused) {
        failed = s != MF_LIBRARY || c != NULL ||
                 (rank == 0 && strstr(e.text, "ranks 0 and 1 have the same GPU") == NULL);
    } else if (s != MF_OK) {
        printf("rank %lld: %s\n", (long long)rank, e.text);
        failed = 1;
    } else {
        mf_comm_use_stream(c, stream);
        failed = run_cases(c, &l, &checks, &e);
    }
    if (rank == 0 && !refused) {
        printf("      %lld ranks: %d operations\n", (long long)ranks, checks);
    }
    fflush(stdout);
    if (failed > 0) {
        mf_comm_abort(1); /* others may wait on their GPUs */
    }
    mf_comm_destroy(c);
    mf_comm_destroy(host);
    mf_comm_stop();
    return 0;
}

static void launch(char *self, int ranks, int gpus, bool refused) {
    char count[16], run_word[] = "--rank", refuse_word[] = "--refused";
    char *argv[] = {self, refused ? refuse_word : run_word, count, NULL};
    int code = -1;
    mf_err e = {.text = ""};
    snprintf(count, sizeof count, "%d", gpus);
    mf_status s = mf_comm_launch(ranks, argv, NULL, &code, &e);
    GPU_CHECK(s == MF_OK && code == 0, "NCCL, %d ranks on %d GPUs%s: exit %d %s", ranks, gpus,
              refused ? ", refused" : "", code, e.text);
}

int main(int argc, char **argv) {
    char self[] = "/proc/self/exe";
    int gpus = 0;
    if (argc > 2) {
        return child(atoi(argv[2]), strcmp(argv[1], "--refused") == 0);
    }
    gpu_need(TESTS, 9);
    GPU_MUST(cudaGetDeviceCount(&gpus));
    launch(self, 1, gpus, false);
    if (gpus > 1) {
        launch(self, 2, gpus, false);
        launch(self, gpus >= 8 ? 8 : gpus >= 4 ? 4 : 2, gpus, false);
    } else if (mf_comm_nccl_shares_gpus()) {
        launch(self, 2, gpus, false);
        launch(self, 4, gpus, false);
    } else {
        launch(self, 2, gpus, true);
        printf("MF_SKIPPED 1 several ranks on one GPU need NCCL 2.30\n");
    }
    return gpu_report();
}
