/* bench_mla_grad.cu - gradients of MLA's attention on one GPU under load: cuDNN's, which sum in
 * memory, beside our own kernels, which keep score gradients (kernels/attention/mla_grad.h), in as
 * many groups of heads as the memory plan gives them.
 *
 *   bench_mla_grad [--seconds S]
 *
 * Each runs for S/2 seconds before it is timed for S, so that clocks are those of the power cap. */
#include "kernels/attention/attention_cuda.h"
#include "tests/gpu/gpu_random.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern "C" { /* core/program/scratch.h, which is C alone */
int64_t mf_attention_kept_groups(int64_t batch, int64_t heads, int64_t seq);
}

namespace {

enum { QK = 192, VALUE = 128 };

struct Row {
    int64_t batch, heads, seq;
};

const Row ROWS[] = {{2, 128, 4096}, {1, 16, 4096},  {4, 64, 1024},  {4, 8, 2048}, {1, 16, 8192},
                    {4, 32, 8192},  {1, 128, 8192}, {1, 16, 16384}, {2, 2, 16384}};

double held_s = 0.5;

void must(mf_status status, const mf_err &e) {
    if (status != MF_OK) {
        printf("%s\n", e.text);
        exit(1);
    }
}

mf_attention_cuda_shape shape_of(const Row &r) {
    mf_attention_cuda_shape s;
    memset(&s, 0, sizeof s);
    s.batch = r.batch;
    s.heads = s.kv_heads = r.heads;
    s.seq_q = s.seq_k = r.seq;
    s.qk_dim = QK;
    s.v_dim = VALUE;
    s.q = s.k = mf_attention_packed(r.seq, r.heads, QK);
    s.v = s.o = mf_attention_packed(r.seq, r.heads, VALUE);
    s.scale = 1.0f / sqrtf((float)QK);
    s.causal = true;
    s.pieces = 1;
    return s;
}

/* A plan with its workspace; the last one's is given back. */
struct Plan {
    mf_attention_cuda *attention;
    void *workspace;
    size_t workspace_B;
};

Plan open(void *library, const mf_attention_cuda_shape &s) {
    Plan p = {NULL, NULL, 0};
    mf_err e;
    must(mf_attention_cuda_create(library, &s, &p.attention, &e), e);
    p.workspace_B = mf_attention_cuda_workspace_B(p.attention);
    GPU_MUST(cudaMalloc(&p.workspace, p.workspace_B + 256));
    return p;
}

void close(Plan *p) {
    GPU_MUST(cudaDeviceSynchronize());
    GPU_MUST(cudaFree(p->workspace));
    mf_attention_cuda_destroy(p->attention);
}

/* Milliseconds of `runs` calls. */
float timed(const Plan &p, mf_attention_cuda_data d, int runs) {
    cudaEvent_t mark[2];
    float ms = 0;
    mf_err e;
    d.workspace = p.workspace;
    for (cudaEvent_t &m : mark) {
        GPU_MUST(cudaEventCreate(&m));
    }
    GPU_MUST(cudaEventRecord(mark[0]));
    for (int i = 0; i < runs; i++) {
        must(mf_attention_cuda_run(p.attention, &d, NULL, &e), e);
    }
    GPU_MUST(cudaEventRecord(mark[1]));
    GPU_MUST(cudaEventSynchronize(mark[1]));
    GPU_MUST(cudaEventElapsedTime(&ms, mark[0], mark[1]));
    for (cudaEvent_t &m : mark) {
        GPU_MUST(cudaEventDestroy(m));
    }
    return ms;
}

double held_ms(const Plan &p, const mf_attention_cuda_data &d) {
    (void)timed(p, d, 1);
    const double once = timed(p, d, 2) / 2;
    const int runs = (int)(held_s * 1e3 / once) + 1;
    (void)timed(p, d, runs / 2 + 1);
    return timed(p, d, runs) / runs;
}

void *operand(int64_t elements, uint64_t seed) {
    void *p = NULL;
    GPU_MUST(cudaMalloc(&p, (size_t)elements * 2));
    gpu_normal(p, elements, seed);
    return p;
}

void run(void *library, const Row &r) {
    const int64_t rows = r.batch * r.seq * r.heads;
    mf_attention_cuda_shape s = shape_of(r);
    mf_attention_cuda_data d;
    void *made[] = {operand(rows * QK, 1),    operand(rows * QK, 2),    operand(rows * VALUE, 3),
                    operand(rows * VALUE, 4), operand(rows * VALUE, 5), operand(rows * QK, 6),
                    operand(rows * QK, 7),    operand(rows * VALUE, 8), operand(rows * 2, 9)};
    memset(&d, 0, sizeof d);
    d.q = made[0];
    d.k = made[1];
    d.v = made[2];
    d.d_o = made[3];
    d.o = made[4];
    d.dq = made[5];
    d.dk = made[6];
    d.dv = made[7];
    d.lse = (float *)made[8];
    Plan forward = open(library, s);
    (void)timed(forward, d, 1);
    close(&forward);
    s.backward = s.general = true;
    Plan theirs = open(library, s);
    const double theirs_ms = held_ms(theirs, d), theirs_MB = 1e-6 * (double)theirs.workspace_B;
    close(&theirs);
    s.general = false;
    s.pieces = mf_attention_kept_groups(r.batch, r.heads, r.seq);
    Plan ours = open(library, s);
    const double ours_ms = held_ms(ours, d);
    const double flops = 2.0 * (double)(r.batch * r.heads) * (double)r.seq * (double)r.seq / 2 *
                         (3 * QK + 2 * VALUE);
    printf("%3lld x %5lld, %3lld heads  cuDNN %8.3f ms %7.1f MB   own %8.3f ms %7.1f MB, %3lld "
           "groups   %5.0f TFLOP/s, %.2f\n",
           (long long)r.batch, (long long)r.seq, (long long)r.heads, theirs_ms, theirs_MB, ours_ms,
           1e-6 * (double)ours.workspace_B, (long long)s.pieces, flops / ours_ms * 1e-9,
           theirs_ms / ours_ms);
    fflush(stdout);
    close(&ours);
    for (void *p : made) {
        GPU_MUST(cudaFree(p));
    }
}

} // namespace

int main(int argc, char **argv) {
    void *library = NULL;
    int count = 0;
    mf_err e;
    if (argc == 3 && strcmp(argv[1], "--seconds") == 0) {
        held_s = atof(argv[2]);
    }
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("MF_SKIPPED 1 no GPU: nothing was measured\n");
        return 0;
    }
    must(mf_attention_cuda_library_open(&library, &e), e);
    for (const Row &r : ROWS) {
        run(library, r);
    }
    mf_attention_cuda_library_close(library);
    return 0;
}
