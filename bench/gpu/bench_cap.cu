/* bench_cap.cu - what products take at the GPU's power cap, by shape and by what stands in their
 * operands: rested, and run after run; joules a FLOP by the driver's counter. What pauses are worth
 * between products. And a loss between products, rested and as it runs at the clock to which these
 * bring the GPU.
 *
 *   bench_cap [--seconds S]
 *
 * Each product runs for S/2 seconds before it is measured for S. Algorithms are chosen as for steps
 * (kernels/gemm/gemm_cuda.h). */
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/rows/cross_entropy.h"
#include "tests/gpu/gpu_random.cuh"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern "C" { /* C alone */
#include "executor/measure/measure_nvml.h"
}

namespace {

double held_s = 1.2;
const size_t WORKSPACE = 64u << 20;

struct Row {
    const char *name;
    mf_gemm_form form;
    int64_t m, n, k;
    bool add; /* to a float result */
    int a, b; /* what the operands hold */
};
enum { NORMAL, WEIGHTS, LOGIT_GRADIENTS };

const Row ROWS[] = {
    {"qwen3 head", MF_GEMM_NT, 4096, 151936, 2048, false, NORMAL, NORMAL},
    {"qwen3 head", MF_GEMM_NT, 4096, 151936, 2048, false, NORMAL, WEIGHTS},
    {"qwen3 head", MF_GEMM_NN, 4096, 2048, 151936, false, NORMAL, WEIGHTS},
    {"qwen3 head", MF_GEMM_NN, 4096, 2048, 151936, false, LOGIT_GRADIENTS, WEIGHTS},
    {"qwen3 head", MF_GEMM_TN, 151936, 2048, 4096, true, NORMAL, NORMAL},
    {"qwen3 head", MF_GEMM_TN, 151936, 2048, 4096, true, LOGIT_GRADIENTS, NORMAL},
    {"deepseek head", MF_GEMM_NT, 4096, 129280, 7168, false, NORMAL, WEIGHTS},
    {"deepseek head", MF_GEMM_NN, 4096, 7168, 129280, false, LOGIT_GRADIENTS, WEIGHTS},
    {"deepseek head", MF_GEMM_TN, 129280, 7168, 4096, true, LOGIT_GRADIENTS, NORMAL},
    {"square", MF_GEMM_NT, 8192, 8192, 8192, false, NORMAL, NORMAL},
    {"square", MF_GEMM_NT, 8192, 8192, 8192, false, NORMAL, WEIGHTS},
    {"dense fc1", MF_GEMM_NT, 8192, 36864, 7168, false, NORMAL, WEIGHTS},
    {"dense fc2", MF_GEMM_NT, 8192, 7168, 18432, false, NORMAL, WEIGHTS},
    {"dense fc1 wgrad", MF_GEMM_TN, 36864, 7168, 8192, true, NORMAL, NORMAL},
    {"o_proj", MF_GEMM_NT, 8192, 7168, 16384, false, NORMAL, WEIGHTS},
    {"qkv", MF_GEMM_NT, 16384, 5120, 2048, false, NORMAL, WEIGHTS},
    {"qkv dgrad", MF_GEMM_NN, 16384, 2048, 5120, false, NORMAL, WEIGHTS},
    {"qkv wgrad", MF_GEMM_TN, 5120, 2048, 16384, true, NORMAL, NORMAL},
    {"q_b", MF_GEMM_NT, 8192, 24576, 1536, false, NORMAL, WEIGHTS},
    {"mixtral qkv", MF_GEMM_NT, 16384, 8192, 6144, false, NORMAL, WEIGHTS},
};

void must(mf_status status, const mf_err &e) {
    if (status != MF_OK) {
        printf("%s\n", e.text);
        exit(1);
    }
}

/* --- the driver --------------------------------------------------------------------------------
 */

mf_nvml *driver;

double total_J() {
    unsigned long long mJ = 0;
    if (driver == NULL || driver->energy == NULL || driver->energy(driver->device, &mJ) != 0) {
        printf("the driver does not count the GPU's energy\n");
        exit(1);
    }
    return 1e-3 * (double)mJ;
}

double clock_MHz() {
    mf_measure_state now;
    mf_measure_nvml_read(driver, &now);
    return now.sm_MHz;
}

/* --- operands ----------------------------------------------------------------------------------
 */

/* Gradients of logits of a new model: probabilities near 1 / columns, spread by e^normal. */
__global__ void make_gradients(__nv_bfloat16 *p, int64_t n, float scale) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        p[i] = __float2bfloat16_rn(scale * expf(0.9f * __bfloat162float(p[i])));
    }
}

__global__ void make_smaller(__nv_bfloat16 *p, int64_t n, float scale) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        p[i] = __float2bfloat16_rn(scale * __bfloat162float(p[i]));
    }
}

void *operand(int64_t n, int holds, uint64_t seed) {
    void *p;
    GPU_MUST(cudaMalloc(&p, 2 * n));
    gpu_normal(p, n, seed);
    if (holds == WEIGHTS) {
        make_smaller<<<1024, 256>>>((__nv_bfloat16 *)p, n, 0.02f);
    } else if (holds == LOGIT_GRADIENTS) {
        make_gradients<<<1024, 256>>>((__nv_bfloat16 *)p, n, 1e-10f);
    }
    return p;
}

/* --- products ----------------------------------------------------------------------------------
 */

struct Product {
    mf_gemm_cuda *plan;
    mf_gemm_cuda_data data;
};

Product open(void *library, const Row &r) {
    Product p;
    memset(&p, 0, sizeof p);
    mf_gemm_cuda_shape s;
    memset(&s, 0, sizeof s);
    s.form = r.form;
    s.a_type = s.b_type = MF_GEMM_BF16;
    s.c_type = r.add ? MF_GEMM_F32 : MF_GEMM_BF16;
    s.m = r.m, s.n = r.n, s.k = r.k;
    s.lda = r.form == MF_GEMM_TN ? r.m : r.k;
    s.ldb = r.form == MF_GEMM_NT ? r.k : r.n;
    s.ldc = r.n;
    s.accumulate = r.add;
    mf_err e;
    must(mf_gemm_cuda_create(library, &s, WORKSPACE, &p.plan, &e), e);
    void *workspace, *c;
    GPU_MUST(cudaMalloc(&workspace, WORKSPACE));
    GPU_MUST(cudaMalloc(&c, r.m * r.n * (r.add ? 4 : 2)));
    GPU_MUST(cudaMemset(c, 0, r.m * r.n * (r.add ? 4 : 2)));
    p.data.a = operand(r.m * r.k, r.a, 1);
    p.data.b = operand(r.n * r.k, r.b, 2);
    p.data.c = c;
    p.data.workspace = workspace;
    p.data.alpha = 1;
    GPU_MUST(cudaDeviceSynchronize());
    must(mf_gemm_cuda_tune_for_steps(p.plan, &p.data, NULL, &e), e);
    return p;
}

void close(Product *p) {
    GPU_MUST(cudaDeviceSynchronize());
    GPU_MUST(cudaFree((void *)p->data.a));
    GPU_MUST(cudaFree((void *)p->data.b));
    GPU_MUST(cudaFree(p->data.c));
    GPU_MUST(cudaFree(p->data.workspace));
    mf_gemm_cuda_destroy(p->plan);
}

cudaEvent_t mark[2];

/* Milliseconds of each of `runs`. */
float timed(const Product &p, int runs) {
    mf_err e;
    float ms = 0;
    GPU_MUST(cudaEventRecord(mark[0]));
    for (int i = 0; i < runs; i++) {
        must(mf_gemm_cuda_run(p.plan, &p.data, NULL, &e), e);
    }
    GPU_MUST(cudaEventRecord(mark[1]));
    GPU_MUST(cudaEventSynchronize(mark[1]));
    GPU_MUST(cudaEventElapsedTime(&ms, mark[0], mark[1]));
    return ms / runs;
}

/* Runs for about s seconds; milliseconds, joules of one run, mean clock. */
void held(const Product &p, double rested_ms, double s, double *ms, double *J, double *MHz) {
    const int runs = (int)(25 / rested_ms) + 1;
    const double first_J = total_J();
    double sum_ms = 0, clocks = 0;
    int chunks = 0;
    while (sum_ms < 1e3 * s) {
        sum_ms += timed(p, runs) * runs;
        clocks += clock_MHz();
        chunks++;
    }
    const double last_J = total_J();
    *ms = sum_ms / (chunks * runs);
    *J = (last_J - first_J) / (chunks * runs);
    *MHz = clocks / chunks;
}

void product(void *library, const Row &r) {
    static const char *form[] = {"nt", "nn", "tn"}, *holds[] = {"normal", "weights", "gradients"};
    Product p = open(library, r);
    double ms, J, MHz, least = 1e9;
    for (int i = 0; i < 5; i++) {
        usleep(80000);
        timed(p, 1);
        const double one = timed(p, 2);
        least = one < least ? one : least;
    }
    held(p, least, held_s / 2, &ms, &J, &MHz);
    held(p, least, held_s, &ms, &J, &MHz);
    const double flops = 2.0 * (double)r.m * (double)r.n * (double)r.k;
    printf("%-16s %s %6lld %6lld %6lld %-9s %-9s rested %7.3f ms %4.0f TFLOP/s  held %7.3f ms "
           "%4.0f TFLOP/s  x %.3f  %4.0f MHz %3.0f W  %.3f pJ/FLOP\n",
           r.name,
           form[r.form == MF_GEMM_NT   ? 0
                : r.form == MF_GEMM_NN ? 1
                                       : 2],
           (long long)r.m, (long long)r.n, (long long)r.k, holds[r.a], holds[r.b], least,
           flops / least / 1e9, ms, flops / ms / 1e9, ms / least, MHz, J / ms * 1e3,
           J / flops * 1e12);
    fflush(stdout);
    close(&p);
}

/* --- a loss between products -------------------------------------------------------------------
 */

float loss_ms(const mf_kernel_ce_whole &a) {
    mf_err e;
    float ms = 0;
    GPU_MUST(cudaEventRecord(mark[0]));
    must(mf_kernel_cross_entropy_cuda(&a, NULL, &e), e);
    GPU_MUST(cudaEventRecord(mark[1]));
    GPU_MUST(cudaEventSynchronize(mark[1]));
    GPU_MUST(cudaEventElapsedTime(&ms, mark[0], mark[1]));
    return ms;
}

void loss(void *library, int64_t rows, int64_t cols, int64_t hidden) {
    const Row head = {"", MF_GEMM_NT, rows, cols, hidden, false, NORMAL, WEIGHTS};
    Product p = open(library, head);
    mf_kernel_ce_whole a;
    memset(&a, 0, sizeof a);
    a.dtype = MF_KERNEL_BF16;
    a.rows = rows;
    a.cols = a.stride = a.vocab = cols;
    GPU_MUST(cudaMalloc((void **)&a.target, rows * 4));
    GPU_MUST(cudaMemset((void *)a.target, 0, rows * 4));
    GPU_MUST(cudaMalloc((void **)&a.stats, rows * 12));
    GPU_MUST(cudaMalloc((void **)&a.lse, rows * 4));
    a.logits = p.data.c;
    a.scale = 1;
    double rested = 1e9, sum = 0;
    int n = 0;
    for (int i = 0; i < 6; i++) {
        usleep(80000);
        timed(p, 1);
        const double ms = loss_ms(a);
        rested = ms < rested ? ms : rested;
    }
    double spent = 0;
    while (spent < 1500) {
        spent += 6 * timed(p, 6);
        const double ms = loss_ms(a);
        spent += ms;
        if (spent > 500) {
            sum += ms, n++;
        }
    }
    printf(
        "loss and gradient of %lld x %lld: rested %.3f ms, between products %.3f ms, x %.3f, %.0f "
        "MHz\n",
        (long long)rows, (long long)cols, rested, sum / n, sum / n / rested, clock_MHz());
    fflush(stdout);
    close(&p);
}

/* --- pauses ------------------------------------------------------------------------------------
 */

/* A product runs for busy_ms, then the GPU waits for idle_ms, again and again: how fast is it, and
 * what is drawn in the mean? */
void paused(const Product &p, double rested_ms, double busy_ms, double idle_ms) {
    const int runs = (int)(busy_ms / (1.15 * rested_ms)) + 1;
    double first_J = 0, spent_ms = 0, sum_ms = 0, clocks = 0, counted_ms = 0;
    int chunks = 0;
    while (spent_ms < 2500) {
        const double ms = timed(p, runs) * runs;
        const double now_MHz = clock_MHz();
        usleep((useconds_t)(1e3 * idle_ms));
        spent_ms += ms + idle_ms;
        if (spent_ms > 1000) {
            if (chunks == 0) {
                first_J = total_J();
            } else {
                counted_ms += ms + idle_ms;
            }
            sum_ms += ms;
            clocks += now_MHz;
            chunks++;
        }
    }
    const double last_J = total_J();
    printf("busy %6.1f ms, waits %6.1f ms: x %.3f of rested, %4.0f MHz at the end, %3.0f W\n",
           sum_ms / chunks, idle_ms, sum_ms / (chunks * runs * rested_ms), clocks / chunks,
           1e3 * (last_J - first_J) / counted_ms);
    fflush(stdout);
}

void pauses(void *library) {
    const Row square = {"", MF_GEMM_NT, 8192, 8192, 8192, false, NORMAL, WEIGHTS};
    Product p = open(library, square);
    double least = 1e9;
    for (int i = 0; i < 5; i++) {
        usleep(80000);
        timed(p, 1);
        const double one = timed(p, 2);
        least = one < least ? one : least;
    }
    static const double busy[] = {8, 25, 80, 250, 800};
    for (double ms : busy) {
        paused(p, least, ms, 0.1 * ms);
        paused(p, least, ms, 0.3 * ms);
    }
    close(&p);
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--seconds") == 0) {
        held_s = atof(argv[2]);
    } else if (argc != 1) {
        printf("expected no option, or --seconds S\n");
        return 2;
    }
    driver = mf_nvml_find(0);
    for (int i = 0; i < 2; i++) {
        GPU_MUST(cudaEventCreate(&mark[i]));
    }
    void *library;
    mf_err e;
    must(mf_gemm_cuda_library_open(&library, &e), e);
    pauses(library);
    for (const Row &r : ROWS) {
        product(library, r);
    }
    loss(library, 4096, 151936, 2048);
    loss(library, 4096, 50304, 2048);
    loss(library, 4096, 129280, 7168);
    mf_gemm_cuda_library_close(library);
    return 0;
}
