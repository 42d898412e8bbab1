/* test_grouped_oracle.cu - the grouped GEMM against cublasGemmGroupedBatchedEx, which takes its
 * sizes on the host: fresh random inputs, skewed and empty experts, poisoned outputs. bf16 results
 * are rounded once on either side: |ours - theirs| / |theirs| stays below 4e-3 (2.4e-3 expected).
 * The f32 weight gradient is compared with cuBLAS's product of the same values as f32: below 1e-5.
 */
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "tests/gpu/gpu_random.cuh"

#include <cublas_v2.h>
#include <math.h>
#include <string.h>
#include <vector>

namespace {

constexpr double BF16_NORM = 4e-3, F32_NORM = 1e-5;

struct Case {
    const char *name;
    int64_t n, k;
    std::vector<int> counts;
};

/* Device memory that goes with the block. */
struct Memory {
    std::vector<void *> held;
    void *take(size_t size_B) {
        void *p = NULL;
        GPU_MUST(cudaMalloc(&p, size_B + 256));
        GPU_MUST(cudaMemset(p, 0xff, size_B + 256));
        held.push_back(p);
        return p;
    }
    ~Memory() {
        for (void *p : held) {
            cudaFree(p);
        }
    }
};

__global__ void widen(const uint16_t *in, float *out, int64_t n) {
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = __uint_as_float((uint32_t)in[i] << 16);
    }
}

float *widened(Memory &m, const void *in, int64_t n) {
    float *out = (float *)m.take((size_t)n * 4);
    widen<<<(unsigned)((n + 255) / 256), 256>>>((const uint16_t *)in, out, n);
    GPU_MUST(cudaGetLastError());
    return out;
}

/* One group an expert with tokens, in cuBLAS's column-major terms (all matrices transposed). */
struct Groups {
    std::vector<cublasOperation_t> op_a, op_b;
    std::vector<int> m, n, k, lda, ldb, ldc, size;
    std::vector<float> alpha, beta;
    std::vector<const void *> a, b;
    std::vector<void *> c;
};

void add_group(Groups &g, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, int64_t lda,
               int64_t ldb, const void *a, const void *b, void *c) {
    g.op_a.push_back(trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    g.op_b.push_back(trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    g.m.push_back((int)m);
    g.n.push_back((int)n);
    g.k.push_back((int)k);
    g.lda.push_back((int)lda);
    g.ldb.push_back((int)ldb);
    g.ldc.push_back((int)m);
    g.size.push_back(1);
    g.alpha.push_back(1.0f);
    g.beta.push_back(0.0f);
    g.a.push_back(a);
    g.b.push_back(b);
    g.c.push_back(c);
}

template <typename T> T *on_device(Memory &m, const std::vector<T> &v) {
    T *p = (T *)m.take(v.size() * sizeof(T));
    GPU_MUST(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyDefault));
    return p;
}

bool run_groups(cublasHandle_t library, Memory &m, const Groups &g, cudaDataType_t in,
                cudaDataType_t out) {
    const cublasStatus_t result = cublasGemmGroupedBatchedEx(
        library, g.op_a.data(), g.op_b.data(), g.m.data(), g.n.data(), g.k.data(), g.alpha.data(),
        on_device(m, g.a), in, g.lda.data(), on_device(m, g.b), in, g.ldb.data(), g.beta.data(),
        on_device(m, g.c), out, g.ldc.data(), (int)g.m.size(), g.size.data(), CUBLAS_COMPUTE_32F);
    GPU_MUST(cudaDeviceSynchronize());
    if (result != CUBLAS_STATUS_SUCCESS) {
        GPU_CHECK(false, "cublasGemmGroupedBatchedEx: %s", cublasGetStatusString(result));
    }
    return result == CUBLAS_STATUS_SUCCESS;
}

/* The same product by cuBLAS, into `out`. */
bool oracle(cublasHandle_t library, const mf_kernel_grouped_gemm &g, const std::vector<int> &counts,
            void *out) {
    Memory m;
    Groups groups;
    const bool wgrad = g.kind == MF_GROUPED_WGRAD;
    const float *a32 = wgrad ? widened(m, g.a, g.rows * g.n) : NULL;
    const float *b32 = wgrad ? widened(m, g.b, g.rows * g.k) : NULL;
    int64_t row = 0;
    for (size_t e = 0; e < counts.size(); row += counts[e], e++) {
        const int64_t tokens = counts[e], weight = (int64_t)e * g.n * g.k;
        if (tokens == 0) {
            continue;
        }
        if (g.kind == MF_GROUPED_FORWARD) {
            add_group(groups, true, false, g.n, tokens, g.k, g.k, g.k, g.b + weight,
                      g.a + row * g.k, (uint16_t *)out + row * g.n);
        } else if (g.kind == MF_GROUPED_DGRAD) {
            add_group(groups, false, false, g.k, tokens, g.n, g.k, g.n, g.b + weight,
                      g.a + row * g.n, (uint16_t *)out + row * g.k);
        } else {
            add_group(groups, false, true, g.k, g.n, tokens, g.k, g.n, b32 + row * g.k,
                      a32 + row * g.n, (float *)out + weight);
        }
    }
    return run_groups(library, m, groups, wgrad ? CUDA_R_32F : CUDA_R_16BF,
                      wgrad ? CUDA_R_32F : CUDA_R_16BF);
}

/* Relative norm of the difference over the elements that cuBLAS wrote; unwritten ones are NaN on
 * both sides, or zero on ours (the gradient of an expert without tokens). */
double distance(const void *ours, const void *theirs, bool f32, int64_t n, int64_t *odd) {
    std::vector<uint8_t> x((size_t)n * 4), y((size_t)n * 4);
    const size_t size_B = (size_t)n * (f32 ? 4 : 2);
    GPU_MUST(cudaMemcpy(x.data(), ours, size_B, cudaMemcpyDefault));
    GPU_MUST(cudaMemcpy(y.data(), theirs, size_B, cudaMemcpyDefault));
    double error = 0, size = 0;
    *odd = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits[2];
        for (int side = 0; side < 2; side++) {
            const uint8_t *from = side ? y.data() : x.data();
            uint16_t half;
            memcpy(&half, from + i * 2, 2);
            bits[side] = (uint32_t)half << 16;
            if (f32) {
                memcpy(&bits[side], from + i * 4, 4);
            }
        }
        float p, q;
        memcpy(&p, &bits[0], 4);
        memcpy(&q, &bits[1], 4);
        if (isnan(q)) {
            *odd += f32 ? p != 0.0f : !isnan(p);
            continue;
        }
        *odd += isnan(p);
        error += ((double)p - (double)q) * ((double)p - (double)q);
        size += (double)q * (double)q;
    }
    return sqrt(error) / (sqrt(size) + 1e-30);
}

void run_case(cublasHandle_t library, const Case &c, mf_grouped_kind kind, uint64_t seed) {
    static const char *const kinds[] = {"forward", "dgrad", "wgrad"};
    Memory m;
    std::vector<int32_t> offsets(1, 0);
    for (int n : c.counts) {
        offsets.push_back(offsets.back() + n);
    }
    const int64_t rows = offsets.back(), weights = (int64_t)c.counts.size() * c.n * c.k;
    const bool forward = kind == MF_GROUPED_FORWARD, wgrad = kind == MF_GROUPED_WGRAD;
    const int64_t a_n = rows * (forward ? c.k : c.n), b_n = wgrad ? rows * c.k : weights;
    const int64_t out_n = wgrad ? weights : rows * (forward ? c.n : c.k);
    void *a = m.take((size_t)a_n * 2), *b = m.take((size_t)b_n * 2);
    void *ours = m.take((size_t)out_n * 4), *theirs = m.take((size_t)out_n * 4);
    gpu_normal(a, a_n, seed);
    gpu_normal(b, b_n, seed + 1);
    mf_kernel_grouped_gemm g = {kind,
                                false,
                                (int32_t)c.counts.size(),
                                rows,
                                c.n,
                                c.k,
                                on_device(m, offsets),
                                (const uint16_t *)a,
                                (const uint16_t *)b,
                                ours,
                                false,
                                NULL,
                                NULL,
                                NULL};
    mf_err e;
    mf_err_clear(&e);
    if (mf_kernel_grouped_gemm_run_cuda(&g, NULL, &e) != MF_OK) {
        GPU_CHECK(false, "%s %s: %s", kinds[kind], c.name, e.text);
        return;
    }
    GPU_MUST(cudaDeviceSynchronize());
    if (!oracle(library, g, c.counts, theirs)) {
        return;
    }
    int64_t odd = 0;
    const double error = distance(ours, theirs, wgrad, out_n, &odd);
    GPU_CHECK(error <= (wgrad ? F32_NORM : BF16_NORM) && odd == 0,
              "%-7s %-18s n %5lld k %5lld rows %6lld: %.2e from cuBLAS, %lld unlike", kinds[kind],
              c.name, (long long)c.n, (long long)c.k, (long long)rows, error, (long long)odd);
}

} // namespace

int main(int argc, char **argv) {
    const bool small = argc > 1 && strcmp(argv[1], "--small") == 0; /* for slow checkers */
    gpu_need(1, 9);
    const uint64_t seed = gpu_seed();
    std::vector<Case> cases = {{"one expert", 128, 192, {130}},
                               {"odd counts", 264, 328, {1, 77, 200, 3}},
                               {"empty experts", 320, 136, {0, 65, 0, 129, 0}}};
    if (!small) {
        cases.push_back({"skewed", 1408, 2048, {1500, 3, 0, 700, 41, 0, 90, 9}});
        cases.push_back({"many", 768, 512, std::vector<int>(96, 61)});
    }
    cublasHandle_t library = NULL;
    GPU_CHECK(cublasCreate(&library) == CUBLAS_STATUS_SUCCESS, "cublasCreate");
    for (size_t i = 0; i < cases.size(); i++) {
        for (int kind = 0; kind < MF_GROUPED_KINDS; kind++) {
            run_case(library, cases[i], (mf_grouped_kind)kind, gpu_mix(seed + i * 3 + kind));
        }
    }
    cublasDestroy(library);
    return gpu_report();
}
