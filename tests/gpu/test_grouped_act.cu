/* test_grouped_act.cu - the activation in the epilogue of the grouped GEMM on a GPU, against the
 * product and the activation kernel one after the other: equal to the bit.
 *
 * Every case: fresh random inputs, NaN in rows and probabilities past the last segment, outputs
 * poisoned and followed by a canary, with and without probabilities, tiles of whole rounds and cut
 * ones, a second run equal to the first to the bit. */
#include "tests/gpu/gpu_random.cuh"
#include "tests/gpu/grouped_act.cuh"

#include <string.h>
#include <vector>

namespace {

constexpr int64_t CANARY = 4096; /* elements after an output */
constexpr int64_t SPARE = 70;    /* rows past the last segment */

struct Case {
    const char *name;
    int64_t ffn, k; /* columns of gate and of up */
    std::vector<int> counts;
    int64_t missing; /* rows that the buffers are short of (an overflow) */
};

struct Buffer {
    void *p = NULL;
    size_t size_B;
    explicit Buffer(size_t n) : size_B(n) {
        GPU_MUST(cudaMalloc(&p, n));
        GPU_MUST(cudaMemset(p, 0xff, n));
    }
    ~Buffer() {
        cudaFree(p);
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
};

struct Counts {
    unsigned long long differ, written; /* elements; written: where nothing may be */
    unsigned long long finite;          /* of those that may be */
};

/* Elements [0, used) must be equal, [used, all) as they were poisoned. */
__global__ void compare(const uint16_t *a, const uint16_t *b, int64_t used, int64_t all,
                        Counts *to) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * blockDim.x) {
        if (i >= used) {
            atomicAdd(&to->written, a[i] != 0xffff || b[i] != 0xffff ? 1ull : 0ull);
        } else {
            atomicAdd(&to->differ, a[i] != b[i] ? 1ull : 0ull);
            atomicAdd(&to->finite, (a[i] & 0x7f80) != 0x7f80 ? 1ull : 0ull);
        }
    }
}

__global__ void random_probabilities(float *p, int64_t n, uint64_t seed) {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        p[i] = (float)(gpu_mix(seed + (uint64_t)i) % 100000) * 1e-5f;
    }
}

Counts compared(const Buffer &a, const Buffer &b, int64_t used) {
    Counts host, *dev = NULL;
    GPU_MUST(cudaMalloc(&dev, sizeof host));
    GPU_MUST(cudaMemset(dev, 0, sizeof host));
    compare<<<512, 256>>>((const uint16_t *)a.p, (const uint16_t *)b.p, used, (int64_t)a.size_B / 2,
                          dev);
    GPU_MUST(cudaMemcpy(&host, dev, sizeof host, cudaMemcpyDefault));
    GPU_MUST(cudaFree(dev));
    return host;
}

/* The two kernels of a program without the fused one. */
mf_status run_apart(mf_kernel_grouped_gemm g, mf_err *e) {
    const mf_kernel_swiglu a = activation_of(g);
    g.act = NULL;
    const mf_status status = mf_kernel_grouped_gemm_run_cuda(&g, NULL, e);
    return status == MF_OK ? mf_kernel_swiglu_forward_cuda(&a, NULL, e) : status;
}

mf_status run_fused(const mf_kernel_grouped_gemm &g, int balance, mf_err *e) {
    mf_grouped_device dev = {132, 232448, 0};
    GPU_MUST(cudaDeviceGetAttribute(&dev.sm_count, cudaDevAttrMultiProcessorCount, 0));
    GPU_MUST(cudaDeviceGetAttribute(&dev.smem_max_B, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    mf_grouped_config c;
    mf_status status = mf_grouped_config_choose(&g, &dev, &c, e);
    c.balance = balance;
    status = status == MF_OK ? mf_kernel_grouped_gemm_run_cuda_config(&g, &c, NULL, e) : status;
    GPU_MUST(cudaDeviceSynchronize());
    return status;
}

void run_case(const Case &c, bool weighted, int balance, uint64_t seed) {
    const int experts = (int)c.counts.size();
    std::vector<int32_t> offsets(1, 0);
    for (int n : c.counts) {
        offsets.push_back(offsets.back() + n);
    }
    const int64_t rows = c.missing ? offsets.back() - c.missing : offsets.back() + SPARE;
    const int64_t used = c.missing ? rows : (int64_t)offsets.back(), n = 2 * c.ffn;
    const size_t y_B = (size_t)(rows * n + CANARY) * 2, act_B = (size_t)(rows * c.ffn + CANARY) * 2;
    Buffer a((size_t)(rows * c.k) * 2), w((size_t)(experts * n * c.k) * 2), y1(y_B), y2(y_B);
    Buffer act1(act_B), act2(act_B), again(act_B), prob((size_t)rows * 4), at(offsets.size() * 4);
    gpu_normal(a.p, used * c.k, seed);
    gpu_normal(w.p, experts * n * c.k, seed + 1);
    random_probabilities<<<1, 256>>>((float *)prob.p, used, seed + 2);
    GPU_MUST(cudaMemcpy(at.p, offsets.data(), at.size_B, cudaMemcpyDefault));

    mf_kernel_grouped_gemm g;
    memset(&g, 0, sizeof g);
    g.kind = MF_GROUPED_FORWARD;
    g.experts = experts;
    g.rows = rows;
    g.n = n;
    g.k = c.k;
    g.offsets = (const int32_t *)at.p;
    g.a = (const uint16_t *)a.p;
    g.b = (const uint16_t *)w.p;
    g.prob = weighted ? (const float *)prob.p : NULL;
    g.out = y1.p;
    g.act = (uint16_t *)act1.p;
    mf_err e;
    mf_err_clear(&e);
    mf_status status = run_apart(g, &e);
    g.out = y2.p;
    g.act = (uint16_t *)act2.p;
    status = status == MF_OK ? run_fused(g, balance, &e) : status;
    g.act = (uint16_t *)again.p;
    status = status == MF_OK ? run_fused(g, balance, &e) : status;
    const Counts y = compared(y1, y2, used * n), act = compared(act1, act2, used * c.ffn);
    const Counts twice = compared(act2, again, used * c.ffn);
    const bool same = y.differ + act.differ + twice.differ == 0;
    const bool outside = y.written + act.written + twice.written == 0;
    const bool finite = y.finite == (unsigned long long)(used * n) &&
                        act.finite == (unsigned long long)(used * c.ffn);
    GPU_CHECK(status == MF_OK && same && outside && finite,
              "%-22s ffn %5lld k %4lld rows %6lld%s%s: y differs at %llu, act at %llu, again at "
              "%llu, written outside %llu%s %s",
              c.name, (long long)c.ffn, (long long)c.k, (long long)used,
              weighted ? ", weighted" : "", balance ? "" : ", whole tiles", y.differ, act.differ,
              twice.differ, y.written + act.written + twice.written, finite ? "" : ", not finite",
              status == MF_OK ? "" : e.text);
}

std::vector<int> random_counts(int experts, int most, uint64_t seed) {
    std::vector<int> counts;
    for (int i = 0; i < experts; i++) {
        const uint64_t r = gpu_mix(seed + (uint64_t)i * 7919);
        counts.push_back(r % 4 == 0 ? 0 : (int)((r >> 8) % (uint64_t)(most + 1)));
    }
    return counts;
}

void refuses_what_it_cannot_write(void) {
    mf_kernel_grouped_gemm g;
    uint16_t act;
    mf_err e;
    mf_err_clear(&e);
    memset(&g, 0, sizeof g);
    g.experts = 1;
    g.rows = 16;
    g.n = 24; /* halves of 12 */
    g.k = 64;
    g.act = &act;
    GPU_CHECK(mf_kernel_grouped_gemm_run_cuda(&g, NULL, &e) == MF_INPUT, "halves of 12: %s",
              e.text);
    g.n = 32;
    g.kind = MF_GROUPED_DGRAD;
    GPU_CHECK(mf_kernel_grouped_gemm_run_cuda(&g, NULL, &e) == MF_INPUT, "of a gradient: %s",
              e.text);
}

} // namespace

int main(int argc, char **argv) {
    const bool small = argc > 1 && strcmp(argv[1], "--small") == 0; /* for slow checkers */
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_need(1, 9);
    const uint64_t seed = gpu_seed();
    std::vector<Case> cases = {
        {"one whole tile pair", 128, 256, {256}, 0},
        {"one row", 128, 64, {1}, 0},
        {"odd tile rows", 256, 192, {128, 384, 129}, 0},
        {"empty experts", 160, 264, {0, 100, 0, 0, 65, 63, 0}, 0},
        {"all empty", 64, 128, {0, 0, 0}, 0},
        {"narrow", 8, 8, {5, 70, 130}, 0},
        {"one box and a bit", 72, 64, {40, 300}, 0},
        {"a box of the last tile", 192, 72, {130, 17, 16, 15}, 0},
        {"a bit of the last tile", 136, 328, {1, 2, 3, 77, 200, 255, 257}, 0},
        {"two boxes and a bit", 264, 200, {33, 90, 127, 300}, 0},
        {"an overflow", 192, 128, {100, 200, 300}, 150},
    };
    if (!small) {
        cases.push_back({"many experts", 128, 128, random_counts(200, 90, seed), 0});
        cases.push_back({"OLMoE", 1024, 2048, random_counts(64, 900, seed), 0});
        cases.push_back({"Qwen3", 768, 2048, random_counts(128, 700, seed + 1), 0});
        cases.push_back({"DeepSeek-V3", 2048, 7168, random_counts(8, 1500, seed + 2), 0});
        cases.push_back({"Mixtral", 16384, 6144, {0, 311, 1024, 700}, 0});
    }
    for (size_t i = 0; i < cases.size(); i++) {
        for (int way = 0; way < 4; way++) {
            run_case(cases[i], way % 2 != 0, way / 2, seed + 100 * i + (uint64_t)way);
        }
    }
    refuses_what_it_cannot_write();
    return gpu_report();
}
