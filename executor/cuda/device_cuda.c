/* device_cuda.c - a GPU as a device: its memory, its streams, the kernels of kernels/. */
#include "executor/cuda/device_cuda.h"

#include "executor/cuda/comm_nccl_cuda.h"
#include "executor/device/cuda_side.h"
#include "kernels/device/cuda_check.h"

#include <stdio.h>
#include <stdlib.h>

/* --- memory --------------------------------------------------------------------------------------
 */

static void describe(const mf_device *d, char *text, size_t size) {
    const mf_device_cuda *x = (const mf_device_cuda *)(const void *)d;
    char clock[32] = "";
    int kHz = 0;
    if (cudaDeviceGetAttribute(&kHz, cudaDevAttrClockRate, x->index) == cudaSuccess && kHz > 0) {
        snprintf(clock, sizeof clock, ", up to %d MHz", kHz / 1000);
    }
    snprintf(text, size, "%s (GPU %d%s)", x->name, x->index, clock);
}

static mf_status allocate(mf_device *d, int64_t size_B, void **out, mf_err *e) {
    size_t aligned_B = (size_t)mf_align_B(size_B > 0 ? size_B : 1), free_B = 0, all_B = 0;
    (void)d;
    *out = NULL;
    MF_CUDA_TRY(cudaMemGetInfo(&free_B, &all_B), e);
    cudaError_t result = cudaMalloc(out, aligned_B);
    if (result == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return mf_err_set(
            e, MF_NOMEM,
            "%.2f GB are needed at once, the GPU has %.2f of %.2f GB free, %.2f in use",
            1e-9 * (double)aligned_B, 1e-9 * (double)free_B, 1e-9 * (double)all_B,
            1e-9 * (double)(all_B - free_B));
    }
    MF_CUDA_TRY(result, e);
    MF_CUDA_TRY(cudaMemset(*out, 0, aligned_B), e);
    MF_CUDA_TRY(cudaDeviceSynchronize(), e); /* our stream does not wait for the default one */
    return MF_OK;
}

static void release(mf_device *d, void *memory) {
    (void)d;
    if (memory != NULL) {
        (void)cudaFree(memory);
    }
}

static mf_status allocate_host(mf_device *d, int64_t size_B, void **out, mf_err *e) {
    (void)d;
    *out = NULL;
    MF_CUDA_TRY(
        cudaHostAlloc(out, (size_t)mf_align_B(size_B > 0 ? size_B : 1), cudaHostAllocDefault), e);
    return MF_OK;
}

static void release_host(mf_device *d, void *memory) {
    (void)d;
    if (memory != NULL) {
        (void)cudaFreeHost(memory);
    }
}

static int64_t used_B(mf_device *d) {
    size_t free_B = 0, all_B = 0;
    (void)d;
    return cudaMemGetInfo(&free_B, &all_B) == cudaSuccess ? (int64_t)(all_B - free_B) : 0;
}

static bool draw(mf_device *d, mf_device_draw *out) {
    const mf_nvml *n = mf_cuda_of(d)->nvml;
    unsigned long long mJ = 0;
    unsigned MHz = 0;
    if (n == NULL || n->energy == NULL || n->energy(n->device, &mJ) != 0 ||
        n->clock(n->device, MF_NVML_CLOCK_SM, &MHz) != 0) {
        return false;
    }
    *out = (mf_device_draw){1e-3 * (double)mJ, (double)MHz};
    return true;
}

/* --- queues --------------------------------------------------------------------------------------
 */

/* urgent: its kernels begin before those of other queues that wait for space on the GPU. */
static mf_status open_queue(mf_device *d, mf_cuda_queue *q, bool urgent, mf_err *e) {
    cudaStream_t stream = NULL;
    int least = 0, greatest = 0;
    q->queue.device = d;
    MF_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), e);
    MF_CUDA_TRY(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least), e);
    q->queue.stream = stream;
    MF_CUDA_TRY(cudaEventCreateWithFlags(&q->reached, cudaEventDisableTiming), e);
    MF_CUDA_TRY(cudaMalloc((void **)&q->turns, sizeof *q->turns), e);
    MF_CUDA_TRY(cudaMemset(q->turns, 0, sizeof *q->turns), e);
    return MF_OK;
}

static void close_queue(mf_cuda_queue *q) {
    (void)cudaFree(q->turns);
    if (q->reached != NULL) {
        (void)cudaEventDestroy(q->reached);
    }
    if (q->queue.stream != NULL) {
        (void)cudaStreamDestroy(q->queue.stream);
    }
}

/* Communication is short of time, and takes few of the GPU's multiprocessors. */
static mf_status open_queues(mf_device_cuda *x, mf_err *e) {
    mf_status status = MF_OK;
    for (int i = 0; i < MF_STREAM_COUNT && status == MF_OK; i++) {
        status = open_queue(&x->device, &x->stream[i], i != MF_STREAM_COMPUTE, e);
    }
    return status;
}

static mf_queue *queue_of(mf_device *d, mf_stream stream) {
    return &mf_cuda_of(d)->stream[stream].queue;
}

static mf_status side_queue(mf_device *d, int i, mf_queue **out, mf_err *e) {
    mf_cuda_queue *q = &mf_cuda_of(d)->side[i];
    *out = &q->queue;
    return q->reached != NULL ? MF_OK : open_queue(d, q, false, e);
}

static mf_status copy(mf_queue *q, void *to, const void *from, size_t size_B, mf_err *e) {
    if (!mf_cuda_preparing(q)) {
        MF_CUDA_TRY(cudaMemcpyAsync(to, from, size_B, cudaMemcpyDefault, q->stream), e);
    }
    return MF_OK;
}

static mf_status fill(mf_queue *q, void *to, int byte, size_t size_B, mf_err *e) {
    if (!mf_cuda_preparing(q) && size_B > 0) {
        MF_CUDA_TRY(cudaMemsetAsync(to, byte, size_B, q->stream), e);
    }
    return MF_OK;
}

static mf_status zero(mf_queue *q, void *to, size_t size_B, mf_err *e) {
    return fill(q, to, 0, size_B, e);
}

static mf_status wait_for_all(mf_device *d, mf_err *e) {
    const mf_device_cuda *x = mf_cuda_of(d);
    for (int i = 0; i < MF_STREAM_COUNT; i++) {
        MF_CUDA_TRY(cudaStreamSynchronize(x->stream[i].queue.stream), e);
    }
    for (int i = 0; i < MF_DEVICE_SIDE_QUEUES; i++) {
        if (x->side[i].reached != NULL) {
            MF_CUDA_TRY(cudaStreamSynchronize(x->side[i].queue.stream), e);
        }
    }
    return MF_OK;
}

/* What waits keeps what was recorded then: one event for each queue is enough. */
static mf_status order(mf_queue *before, mf_queue *behind, mf_err *e) {
    if (before != behind && !mf_cuda_preparing(before)) {
        const mf_cuda_queue *first = (const mf_cuda_queue *)(const void *)before;
        MF_CUDA_TRY(cudaEventRecord(first->reached, before->stream), e);
        MF_CUDA_TRY(cudaStreamWaitEvent(behind->stream, first->reached, 0), e);
    }
    return MF_OK;
}

static mf_status make_signals(mf_device_cuda *x, int64_t signals, mf_err *e) {
    cudaEvent_t *list = realloc(x->signal, (size_t)signals * sizeof *list);
    if (list == NULL) {
        return mf_err_set(e, MF_NOMEM, "signals: out of memory");
    }
    x->signal = list;
    while (x->signals < signals) {
        MF_CUDA_TRY(cudaEventCreateWithFlags(&x->signal[x->signals], cudaEventDisableTiming), e);
        x->signals++;
    }
    return MF_OK;
}

static mf_status put_signal(mf_queue *before, int slot, mf_err *e) {
    mf_device_cuda *x = mf_cuda_of(before->device);
    mf_status status = slot < x->signals ? MF_OK : make_signals(x, 2 * (int64_t)slot + 64, e);
    if (status == MF_OK && !x->preparing) { /* events are made before a step is captured */
        MF_CUDA_TRY(cudaEventRecord(x->signal[slot], before->stream), e);
    }
    return status;
}

static mf_status await_signal(mf_queue *behind, int slot, mf_err *e) {
    const mf_device_cuda *x = mf_cuda_of(behind->device);
    if (!x->preparing) {
        MF_CUDA_TRY(cudaStreamWaitEvent(behind->stream, x->signal[slot], 0), e);
    }
    return MF_OK;
}

static mf_status open_points(mf_device_cuda *x, mf_err *e) {
    for (int i = 0; i < MF_DEVICE_POINTS; i++) { /* a host that waits gives its core away */
        MF_CUDA_TRY(
            cudaEventCreateWithFlags(&x->point[i], cudaEventDisableTiming | cudaEventBlockingSync),
            e);
    }
    return MF_OK;
}

static mf_status point(mf_queue *q, int slot, mf_err *e) {
    MF_CUDA_TRY(cudaEventRecord(mf_cuda_of(q->device)->point[slot], q->stream), e);
    return MF_OK;
}

static mf_status reach(mf_device *d, int slot, mf_err *e) {
    MF_CUDA_TRY(cudaEventSynchronize(mf_cuda_of(d)->point[slot]), e);
    return MF_OK;
}

static mf_status connect_ranks(mf_device *d, mf_comm *host, const mf_layout *l, mf_comm **out,
                               mf_err *e) {
    (void)d; /* which is current */
    return mf_comm_nccl_create(host, l, out, e);
}

/* NCCL's ring adds in the order of the ring, and one protocol divides messages in one way. */
static void fix(mf_device *d) {
    mf_cuda_of(d)->fixed = true;
    (void)setenv("NCCL_ALGO", "Ring", 0);
    (void)setenv("NCCL_PROTO", "Simple", 0);
}

static mf_status prepare(mf_device *d, bool begin, mf_err *e) {
    mf_cuda_of(d)->preparing = begin;
    return wait_for_all(d, e);
}

/* --- marks ---------------------------------------------------------------------------------------
 */

static mf_status make_marks(mf_device_cuda *x, int64_t marks, mf_err *e) {
    cudaEvent_t *list = realloc(x->mark, (size_t)marks * sizeof *list);
    if (list == NULL) {
        return mf_err_set(e, MF_NOMEM, "marks: out of memory");
    }
    x->mark = list;
    while (x->marks < marks) {
        MF_CUDA_TRY(cudaEventCreate(&x->mark[x->marks]), e);
        x->marks++;
    }
    return MF_OK;
}

static mf_status mark(mf_queue *q, int64_t slot, mf_err *e) {
    mf_device_cuda *x = mf_cuda_of(q->device);
    mf_status status = slot < x->marks ? MF_OK : make_marks(x, 2 * slot + 1024, e);
    if (status == MF_OK) {
        MF_CUDA_TRY(cudaEventRecord(x->mark[slot], q->stream), e);
    }
    return status;
}

static mf_status between(mf_device *d, int64_t from, int64_t to, double *time_s, mf_err *e) {
    mf_device_cuda *x = mf_cuda_of(d);
    float ms = 0.0f;
    MF_CUDA_TRY(cudaEventElapsedTime(&ms, x->mark[from], x->mark[to]), e);
    *time_s = 1e-3 * (double)ms;
    return MF_OK;
}

/* --- kernels -------------------------------------------------------------------------------------
 */

#define X(entry, type, function)                                                                   \
    static mf_status run_##entry(mf_queue *q, const type *a, mf_err *e) {                          \
        return mf_cuda_preparing(q) ? MF_OK : function##_cuda(a, q->stream, e);                    \
    }
MF_KERNEL_LIST(X)
#undef X

static mf_status router_z(mf_queue *q, const mf_device_z *a, mf_err *e) {
    return mf_cuda_preparing(q)
               ? MF_OK
               : mf_kernel_router_z_sum_cuda(a->rows, a->lse, a->sum, q->stream, e);
}

/* --- open and close ------------------------------------------------------------------------------
 */

static void close_cuda(mf_device *d) {
    mf_device_cuda *x = mf_cuda_of(d);
    if (x == NULL) {
        return;
    }
    mf_cuda_products_close(x->products);
    mf_cuda_attentions_close(x->attentions);
    mf_nvml_let_go(x->nvml);
    for (int64_t i = 0; i < x->marks; i++) {
        (void)cudaEventDestroy(x->mark[i]);
    }
    free(x->mark);
    for (int i = 0; i < MF_DEVICE_POINTS; i++) {
        if (x->point[i] != NULL) {
            (void)cudaEventDestroy(x->point[i]);
        }
    }
    for (int64_t i = 0; i < x->signals; i++) {
        (void)cudaEventDestroy(x->signal[i]);
    }
    free(x->signal);
    for (int i = 0; i < MF_STREAM_COUNT; i++) {
        close_queue(&x->stream[i]);
    }
    for (int i = 0; i < MF_DEVICE_SIDE_QUEUES; i++) {
        close_queue(&x->side[i]);
    }
    free(x);
}

static const mf_device_ops ops = {
    .name = "cuda",
    .fused_sums = true,
    .close = close_cuda,
    .describe = describe,
    .fix = fix,
    .allocate = allocate,
    .release = release,
    .allocate_host = allocate_host,
    .release_host = release_host,
    .used_B = used_B,
    .draw = draw,
    .queue = queue_of,
    .side_queue = side_queue,
    .copy = copy,
    .zero = zero,
    .fill = fill,
    .wait = wait_for_all,
    .order = order,
    .signal = put_signal,
    .await = await_signal,
    .point = point,
    .reach = reach,
    .connect = connect_ranks,
    .window_open = mf_cuda_window_open,
    .window_close = mf_cuda_window_close,
    .window_dispatch = mf_cuda_window_dispatch,
    .window_combine = mf_cuda_window_combine,
    .mark = mark,
    .between = between,
    .prepare = prepare,
    .capture_begin = mf_cuda_capture_begin,
    .capture_end = mf_cuda_capture_end,
    .play = mf_cuda_play,
    .forget = mf_cuda_forget,
#define X(entry, type, function) .entry = run_##entry,
    MF_KERNEL_LIST(X)
#undef X
        .gemm = mf_cuda_gemm,
    .grouped = mf_cuda_grouped,
    .attention = mf_cuda_attention,
    .attention_grad = mf_cuda_attention_grad,
    .router_z = router_z,
    .scratch_B = mf_cuda_scratch_B,
};

/* Streams that share a connection wait for each other, and what is sent waits for other ranks: a
 * connection for each (executor/step/messages.c). CUDA reads this when it is called first. */
static void before_first_call(void) {
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

mf_status mf_device_cuda_open(int index, mf_device **out, mf_err *e) {
    struct cudaDeviceProp prop;
    *out = NULL;
    before_first_call();
    MF_CUDA_TRY(cudaSetDevice(index), e);
    MF_CUDA_TRY(cudaGetDeviceProperties(&prop, index), e);
    if (prop.major != 9 || prop.minor != 0) {
        return mf_err_set(e, MF_INFEASIBLE,
                          "GPU %d (%s) has compute capability %d.%d: the kernels are built for 9.0 "
                          "(H100, H200)",
                          index, prop.name, prop.major, prop.minor);
    }
    mf_device_cuda *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "GPU: out of memory");
    }
    x->device.ops = &ops;
    x->index = index;
    snprintf(x->name, sizeof x->name, "%.60s", prop.name);
    mf_status status = open_queues(x, e);
    status = status == MF_OK ? open_points(x, e) : status;
    status = status == MF_OK ? mf_cuda_products_open(&x->products, e) : status;
    status = status == MF_OK ? mf_cuda_attentions_open(&x->attentions, e) : status;
    if (status != MF_OK) {
        close_cuda(&x->device);
        return status;
    }
    x->nvml = mf_nvml_find(index);
    *out = &x->device;
    return MF_OK;
}

mf_status mf_device_cuda_count(int *out, mf_err *e) {
    *out = 0;
    before_first_call();
    cudaError_t result = cudaGetDeviceCount(out);
    if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        return MF_OK;
    }
    MF_CUDA_TRY(result, e);
    return MF_OK;
}

static mf_status name_of(int index, char *text, size_t size, mf_err *e) {
    struct cudaDeviceProp prop;
    MF_CUDA_TRY(cudaGetDeviceProperties(&prop, index), e);
    snprintf(text, size, "%s", prop.name);
    return MF_OK;
}

static const mf_cuda_side side = {.abi = MF_CUDA_SIDE_ABI,
                                  .count = mf_device_cuda_count,
                                  .name = name_of,
                                  .open = mf_device_cuda_open};

const mf_cuda_side *mf_cuda_side_of(void) {
    return &side;
}
