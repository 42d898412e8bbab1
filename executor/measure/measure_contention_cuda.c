/* measure_contention_cuda.c - what compute and communication cost each other when they run at the
 * same time: one of them is timed while the other has work queued.
 */
#include "executor/measure/measure_gpus_cuda.h"
#include "kernels/device/cuda_check.h"
#include "kernels/gemm/gemm_cuda.h"

#include <time.h>

enum { RUNS_MAX = 64, PROBES = 4 };
typedef mf_measure_rank rank;
typedef mf_measure_job job;

static size_t operand_B(int64_t size) {
    return (size_t)(size * size) * 2;
}

static mf_status compute(rank *r, mf_gemm_cuda *plan, int runs, mf_err *e) {
    int64_t size = r->gpus->job.product_size;
    mf_status status = MF_OK;
    if (plan == NULL) {
        char *from = r->operands + MF_MEASURE_OPERANDS_B;
        for (int i = 0; i < runs; i++) {
            MF_CUDA_TRY(cudaMemcpyAsync(from + MF_MEASURE_COPY_B, from, MF_MEASURE_COPY_B,
                                        cudaMemcpyDeviceToDevice, r->compute),
                        e);
        }
        return MF_OK;
    }
    mf_gemm_cuda_data d = {.a = r->operands,
                           .b = r->operands + operand_B(size),
                           .c = r->operands + 2 * operand_B(size),
                           .workspace = r->workspace,
                           .alpha = 1.0f};
    for (int i = 0; i < runs && status == MF_OK; i++) {
        status = mf_gemm_cuda_run(plan, &d, r->compute, e);
    }
    return status;
}

/* The measured side runs a batch while the other one has work for longer than the batch lasts. */
static mf_status read_beside(rank *r, mf_gemm_cuda *plan, mf_measure_call call, void *user,
                             mf_err *e) {
    job *j = &r->gpus->job;
    mf_status status = mf_measure_rank_calls(r, call, user, 0, 2, e);
    status = status == MF_OK ? compute(r, plan, 1, e) : status;
    MF_CUDA_TRY(cudaStreamSynchronize(r->compute), e);
    MF_CUDA_TRY(cudaEventRecord(r->event[0], r->comm), e);
    status = status == MF_OK ? mf_measure_rank_calls(r, call, user, 2, PROBES, e) : status;
    MF_CUDA_TRY(cudaEventRecord(r->event[1], r->comm), e);
    status = status == MF_OK ? mf_measure_rank_between(r, 0, 1, &r->estimate_s[0], e) : status;
    MF_CUDA_TRY(cudaEventRecord(r->event[0], r->compute), e);
    status = status == MF_OK ? compute(r, plan, PROBES, e) : status;
    MF_CUDA_TRY(cudaEventRecord(r->event[1], r->compute), e);
    status = status == MF_OK ? mf_measure_rank_between(r, 0, 1, &r->estimate_s[1], e) : status;
    pthread_barrier_wait(&j->barrier);
    double comm_s = mf_measure_slowest_s(r->gpus, 0) / PROBES;
    double compute_s = mf_measure_slowest_s(r->gpus, 1) / PROBES;
    double mine_s = j->of_comm ? comm_s : compute_s, other_s = j->of_comm ? compute_s : comm_s;
    int runs = mf_measure_within(3e-3 / mine_s, 2, RUNS_MAX), batches = 7;
    int other = mf_measure_within(3 * mine_s * runs / other_s, 2, 800);
    const struct timespec rest = {0, 15000000};
    cudaStream_t stream = j->of_comm ? r->comm : r->compute;
    for (int b = 0; b < batches && status == MF_OK; b++) {
        nanosleep(&rest, NULL); /* stay below the power limit */
        pthread_barrier_wait(&j->barrier);
        status = j->of_comm ? compute(r, plan, other, e)
                            : mf_measure_rank_calls(r, call, user, 0, other, e);
        /* one ahead, so that both sides are under way when the clock starts */
        status = status != MF_OK ? status
                 : j->of_comm    ? mf_measure_rank_calls(r, call, user, 0, 1, e)
                                 : compute(r, plan, 1, e);
        MF_CUDA_TRY(cudaEventRecord(r->event[0], stream), e);
        status = status != MF_OK ? status
                 : j->of_comm    ? mf_measure_rank_calls(r, call, user, 1, runs, e)
                                 : compute(r, plan, runs, e);
        MF_CUDA_TRY(cudaEventRecord(r->event[1], stream), e);
        status = status == MF_OK ? mf_measure_rank_between(r, 0, 1, &r->batch_s[b], e) : status;
        r->batch_s[b] /= runs;
        MF_CUDA_TRY(cudaStreamSynchronize(r->comm), e);
        MF_CUDA_TRY(cudaStreamSynchronize(r->compute), e);
    }
    if (r->index == 0) {
        j->runs = runs;
        j->batches = batches;
    }
    return status;
}

mf_status mf_measure_rank_beside(rank *r, mf_measure_call call, void *user, mf_err *e) {
    const job *j = &r->gpus->job;
    mf_gemm_cuda *plan = NULL;
    mf_status status = MF_OK;
    if (j->product) {
        int64_t n = j->product_size;
        mf_gemm_cuda_shape s = {.form = MF_GEMM_NT,
                                .a_type = MF_GEMM_BF16,
                                .b_type = MF_GEMM_BF16,
                                .c_type = MF_GEMM_BF16,
                                .m = n,
                                .n = n,
                                .k = n,
                                .lda = n,
                                .ldb = n,
                                .ldc = n};
        status = mf_gemm_cuda_create(r->cublas, &s, (size_t)64 << 20, &plan, e);
    }
    MF_CUDA_TRY(cudaDeviceSynchronize(), e);
    status = status == MF_OK ? read_beside(r, plan, call, user, e) : status;
    mf_gemm_cuda_destroy(plan);
    return status;
}
