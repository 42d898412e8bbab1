/* test_grouped_gemm.cu - the grouped GEMM on a GPU against sums in double on the same GPU.
 *
 * Every case: fresh random inputs, NaN in the token rows past the last segment, outputs poisoned
 * and followed by a canary, error as relative norm and as largest error in units of the sum's
 * deviation, a second run equal to the first to the bit. */
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "tests/gpu/gpu_random.cuh"

#include <math.h>
#include <string.h>
#include <vector>

namespace {

constexpr int64_t CANARY = 4096; /* elements after the output */
constexpr int MORE_ROWS = 70;    /* that belong to no expert */
constexpr double BF16_NORM = 3e-3, F32_NORM = 1e-5;
constexpr double BF16_LARGEST = 3e-2, F32_LARGEST = 1e-4;

struct Case {
    const char *name;
    mf_grouped_kind kind;
    bool accumulate;
    int64_t n, k;
    std::vector<int> counts;
    int poisoned; /* expert whose inputs are NaN and whose outputs are not looked at; -1: none */
    bool bf16;    /* wgrad */
};

struct Sums {
    double error2, ref2, largest;
    unsigned long long bad; /* not finite, or written where nothing may be */
};

__device__ double widen(uint16_t v) {
    return (double)__uint_as_float((uint32_t)v << 16);
}

/* One thread an output element; compares with out and adds to sums. before: out as it was. */
__global__ void compare(mf_kernel_grouped_gemm g, int skip_expert, const float *before,
                        Sums *sums) {
    const int64_t cols = g.kind == MF_GROUPED_FORWARD ? g.n : g.k;
    const int64_t rows = g.kind == MF_GROUPED_WGRAD ? g.n * g.experts : g.rows;
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= rows * cols) {
        return;
    }
    const int64_t row = i / cols, col = i % cols;
    double sum = 0, deviation = 1;
    double got;
    if (g.kind == MF_GROUPED_WGRAD) {
        const int64_t expert = row / g.n, r = row % g.n;
        if (expert == skip_expert) {
            return;
        }
        for (int64_t t = g.offsets[expert]; t < g.offsets[expert + 1]; t++) {
            sum += widen(g.a[t * g.n + r]) * widen(g.b[t * g.k + col]);
        }
        deviation = sqrt((double)(g.offsets[expert + 1] - g.offsets[expert]) + 1);
        sum += before ? (double)before[i] : 0;
        got = g.bf16 ? widen(((const uint16_t *)g.out)[i]) : (double)((const float *)g.out)[i];
    } else {
        const uint16_t bits = ((const uint16_t *)g.out)[i];
        if (row >= g.offsets[g.experts]) {
            if (bits != 0xffff) {
                atomicAdd(&sums->bad, 1ull);
            }
            return;
        }
        int expert = 0;
        while (row >= g.offsets[expert + 1]) {
            expert++;
        }
        if (expert == skip_expert) {
            return;
        }
        const uint16_t *w = g.b + expert * g.n * g.k;
        const int64_t length = g.kind == MF_GROUPED_FORWARD ? g.k : g.n;
        for (int64_t j = 0; j < length; j++) {
            sum += widen(g.a[row * length + j]) *
                   widen(g.kind == MF_GROUPED_FORWARD ? w[col * g.k + j] : w[j * g.k + col]);
        }
        deviation = sqrt((double)length);
        got = widen(bits);
    }
    if (!isfinite(got)) {
        atomicAdd(&sums->bad, 1ull);
        return;
    }
    const double error = got - sum;
    atomicAdd(&sums->error2, error * error);
    atomicAdd(&sums->ref2, sum * sum);
    const double largest = fabs(error) / deviation;
    atomicMax((unsigned long long *)&sums->largest,
              (unsigned long long)__double_as_longlong(largest)); /* positive: order kept */
}

/* Device buffer with its size. */
struct Buffer {
    void *p = NULL;
    size_t size_B;
    explicit Buffer(size_t n) : size_B(n) {
        GPU_MUST(cudaMalloc(&p, n ? n : 16));
    }
    ~Buffer() {
        cudaFree(p);
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
};

void poison_rows(const Buffer &b, int64_t cols, int64_t from, int64_t to) {
    if (to > from) {
        GPU_MUST(cudaMemset((uint16_t *)b.p + from * cols, 0xff, (size_t)((to - from) * cols) * 2));
    }
}

/* Rows behind the last expert's, and those of the expert that the case poisons. */
void poison_unused(const Case &c, const std::vector<int32_t> &offsets, const Buffer &x,
                   int64_t cols) {
    poison_rows(x, cols, offsets.back(), offsets.back() + MORE_ROWS);
    if (c.poisoned >= 0) {
        poison_rows(x, cols, offsets[c.poisoned], offsets[c.poisoned + 1]);
    }
}

/* Tiles taken as they come are the same to the bit, and the count of turns ends at 0. */
void check_taken(const Case &c, const mf_kernel_grouped_gemm &g, const Buffer &out,
                 const std::vector<uint8_t> &start, const std::vector<uint8_t> &first) {
    mf_err e;
    mf_err_clear(&e);
    std::vector<uint8_t> taken(first.size());
    Buffer turns(4);
    uint32_t left = 1;
    mf_kernel_grouped_gemm as_they_come = g;
    as_they_come.turns = (uint32_t *)turns.p;
    GPU_MUST(cudaMemset(turns.p, 0, 4));
    GPU_MUST(cudaMemcpy(out.p, start.data(), out.size_B, cudaMemcpyDefault));
    const mf_status status = mf_kernel_grouped_gemm_run_cuda(&as_they_come, NULL, &e);
    GPU_MUST(cudaDeviceSynchronize());
    GPU_MUST(cudaMemcpy(taken.data(), out.p, out.size_B, cudaMemcpyDefault));
    GPU_MUST(cudaMemcpy(&left, turns.p, 4, cudaMemcpyDefault));
    GPU_CHECK(status == MF_OK && left == 0 && memcmp(taken.data(), first.data(), taken.size()) == 0,
              "%s: tiles as they come: %s, %u turns left over", c.name,
              status == MF_OK ? "as in order" : e.text, left);
}

/* Errors of the result in `out` against the reference; before: what it was added to. */
Sums sums_of(const Case &c, const mf_kernel_grouped_gemm &g, int64_t outs, const Buffer &before) {
    Sums sums;
    Buffer sums_dev(sizeof sums);
    GPU_MUST(cudaMemset(sums_dev.p, 0, sizeof sums));
    if (outs > 0) {
        compare<<<(unsigned)((outs + 255) / 256), 256>>>(
            g, c.poisoned, c.accumulate ? (const float *)before.p : NULL, (Sums *)sums_dev.p);
        GPU_MUST(cudaGetLastError());
    }
    GPU_MUST(cudaMemcpy(&sums, sums_dev.p, sizeof sums, cudaMemcpyDefault));
    return sums;
}

void run_case(const Case &c, uint64_t seed) {
    const int experts = (int)c.counts.size();
    std::vector<int32_t> offsets(1, 0);
    for (int n : c.counts) {
        offsets.push_back(offsets.back() + n);
    }
    const int64_t used = offsets.back(), rows = used + MORE_ROWS;
    const bool forward = c.kind == MF_GROUPED_FORWARD, wgrad = c.kind == MF_GROUPED_WGRAD;
    const int64_t weights = experts * c.n * c.k;
    const int64_t a_cols = forward ? c.k : c.n, out_cols = forward ? c.n : c.k;
    const int64_t outs = wgrad ? weights : rows * out_cols;
    const bool f32 = wgrad && !c.bf16;
    const size_t element = f32 ? 4 : 2;
    Buffer a((size_t)(rows * a_cols) * 2), b((size_t)(wgrad ? rows * c.k : weights) * 2);
    Buffer out((size_t)(outs + CANARY) * element), dev_offsets(offsets.size() * 4);
    Buffer before(wgrad ? (size_t)weights * 4 : 16);
    gpu_normal(a.p, rows * a_cols, seed);
    gpu_normal(b.p, wgrad ? rows * c.k : weights, seed + 1);
    poison_unused(c, offsets, a, a_cols);
    if (wgrad) {
        poison_unused(c, offsets, b, c.k);
    }
    GPU_MUST(cudaMemcpy(dev_offsets.p, offsets.data(), offsets.size() * 4, cudaMemcpyDefault));

    mf_kernel_grouped_gemm g;
    memset(&g, 0, sizeof g);
    g.kind = c.kind;
    g.accumulate = c.accumulate;
    g.experts = experts;
    g.rows = rows;
    g.n = c.n;
    g.k = c.k;
    g.offsets = (const int32_t *)dev_offsets.p;
    g.a = (const uint16_t *)a.p;
    g.b = (const uint16_t *)b.p;
    g.out = out.p;
    g.bf16 = c.bf16;
    std::vector<uint8_t> first(out.size_B), second(out.size_B), start(out.size_B, 0xff);
    if (c.accumulate) {
        for (size_t i = 0; i < (size_t)weights; i++) {
            const float v = (float)(gpu_mix(seed + i) % 2001) / 100.0f - 10.0f;
            memcpy(&start[i * 4], &v, 4);
        }
        GPU_MUST(cudaMemcpy(before.p, start.data(), (size_t)weights * 4, cudaMemcpyDefault));
    }
    mf_err e;
    mf_err_clear(&e);
    mf_status status = MF_OK;
    for (std::vector<uint8_t> *copy : {&second, &first}) {
        GPU_MUST(cudaMemcpy(out.p, start.data(), out.size_B, cudaMemcpyDefault));
        status = mf_kernel_grouped_gemm_run_cuda(&g, NULL, &e);
        if (status != MF_OK) {
            GPU_CHECK(false, "%s: %s", c.name, e.text);
            return;
        }
        GPU_MUST(cudaDeviceSynchronize());
        GPU_MUST(cudaMemcpy(copy->data(), out.p, out.size_B, cudaMemcpyDefault));
    }
    check_taken(c, g, out, start, first);
    const Sums sums = sums_of(c, g, outs, before);
    bool canary = true;
    for (size_t i = (size_t)outs * element; i < first.size(); i++) {
        canary = canary && first[i] == 0xff;
    }
    const double norm = sums.ref2 > 0 ? sqrt(sums.error2 / sums.ref2) : sqrt(sums.error2);
    const bool near =
        norm <= (f32 ? F32_NORM : BF16_NORM) && sums.largest <= (f32 ? F32_LARGEST : BF16_LARGEST);
    const bool same = memcmp(first.data(), second.data(), first.size()) == 0;
    static const char *const kinds[] = {"forward", "dgrad", "wgrad"};
    GPU_CHECK(near && sums.bad == 0 && canary && same,
              "%-7s%s %-26s n %5lld k %5lld rows %6lld: error %.2e, largest %.1e, bad %llu%s%s",
              kinds[c.kind],
              c.accumulate ? "+"
              : c.bf16     ? "h"
                           : " ",
              c.name, (long long)c.n, (long long)c.k, (long long)used, norm, sums.largest, sums.bad,
              canary ? "" : ", canary overwritten", same ? "" : ", runs differ");
}

/* A weight gradient is added to `before` by a config that fetches or one that does not. */
std::vector<uint8_t> added(const mf_kernel_grouped_gemm &g, const Buffer &before, bool fetches) {
    mf_grouped_device dev;
    int sms = 0, smem_B = 0;
    GPU_MUST(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    GPU_MUST(cudaDeviceGetAttribute(&smem_B, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    dev.sm_count = sms;
    dev.smem_max_B = smem_B;
    dev.l2_B = 0;
    mf_kernel_grouped_gemm shape = g; /* with that many rows an expert */
    shape.rows = fetches ? 0 : (int64_t)g.experts << 20;
    mf_grouped_config config;
    mf_err e;
    mf_err_clear(&e);
    std::vector<uint8_t> out(before.size_B);
    GPU_MUST(cudaMemcpy(g.out, before.p, before.size_B, cudaMemcpyDefault));
    if (mf_grouped_config_choose(&shape, &dev, &config, &e) != MF_OK ||
        mf_grouped_config_fetches(&config) != fetches ||
        mf_kernel_grouped_gemm_run_cuda_config(&g, &config, NULL, &e) != MF_OK) {
        GPU_CHECK(false, "to add %s: %s", fetches ? "what is fetched" : "in L2", e.text);
    }
    GPU_MUST(cudaDeviceSynchronize());
    GPU_MUST(cudaMemcpy(out.data(), g.out, out.size(), cudaMemcpyDefault));
    return out;
}

/* What L2 adds and what the kernel adds to what it fetches is the same to the bit, short tiles
 * by every edge among them; the sums are not what was there before. */
void fetched_as_in_l2(uint64_t seed) {
    static const struct {
        int64_t n, k;
        int32_t counts[5];
    } cases[] = {{256, 256, {64, 1, 0, 300, 128}},    {712, 328, {257, 130, 1000, 3, 64}},
                 {8, 8, {5, 0, 77, 64, 640}},         {136, 264, {1, 2, 3, 4, 5}},
                 {4096, 1032, {700, 65, 320, 1, 99}}, {640, 2048, {0, 0, 0, 0, 2000}}};
    for (const auto &c : cases) {
        int32_t offsets[6] = {0};
        for (int i = 0; i < 5; i++) {
            offsets[i + 1] = offsets[i] + c.counts[i];
        }
        const int64_t rows = offsets[5];
        Buffer a((size_t)(rows * c.n) * 2), b((size_t)(rows * c.k) * 2), at(sizeof offsets);
        Buffer before((size_t)(5 * c.n * c.k) * 4), out(before.size_B);
        gpu_normal(a.p, rows * c.n, seed);
        gpu_normal(b.p, rows * c.k, seed + 1);
        gpu_normal(before.p, (int64_t)before.size_B / 2, seed + 2); /* pairs of bf16 are floats */
        GPU_MUST(cudaMemcpy(at.p, offsets, sizeof offsets, cudaMemcpyDefault));
        mf_kernel_grouped_gemm g;
        memset(&g, 0, sizeof g);
        g.kind = MF_GROUPED_WGRAD;
        g.accumulate = true;
        g.experts = 5;
        g.rows = rows;
        g.n = c.n;
        g.k = c.k;
        g.offsets = (const int32_t *)at.p;
        g.a = (const uint16_t *)a.p;
        g.b = (const uint16_t *)b.p;
        g.out = out.p;
        std::vector<uint8_t> there(before.size_B);
        GPU_MUST(cudaMemcpy(there.data(), before.p, there.size(), cudaMemcpyDefault));
        const std::vector<uint8_t> l2 = added(g, before, false), here = added(g, before, true);
        size_t unlike = 0, changed = 0;
        for (size_t i = 0; i < l2.size(); i += 4) {
            unlike += memcmp(&l2[i], &here[i], 4) != 0;
            changed += memcmp(&l2[i], &there[i], 4) != 0;
        }
        GPU_CHECK(
            unlike == 0 && changed > l2.size() / 4 / 8,
            "n %4lld k %4lld: fetched and added as L2 adds: %llu of %llu unlike, %llu changed",
            (long long)c.n, (long long)c.k, (unsigned long long)unlike,
            (unsigned long long)l2.size() / 4, (unsigned long long)changed);
    }
}

/* The same captured graph, replayed after the offsets changed on the device, follows them. */
void graph_follows_offsets(uint64_t seed) {
    const int64_t rows = 512, n = 256, k = 128;
    const int32_t layouts[2][4] = {{0, 100, 300, 512}, {0, 257, 257, 400}};
    Buffer a(rows * k * 2), b(3 * n * k * 2), out(rows * n * 2), offsets(16),
        sums_dev(sizeof(Sums));
    gpu_normal(a.p, rows * k, seed);
    gpu_normal(b.p, 3 * n * k, seed + 1);
    mf_kernel_grouped_gemm g = {MF_GROUPED_FORWARD,
                                false,
                                3,
                                rows,
                                n,
                                k,
                                (const int32_t *)offsets.p,
                                (const uint16_t *)a.p,
                                (const uint16_t *)b.p,
                                out.p,
                                false,
                                NULL,
                                NULL,
                                NULL};
    GPU_MUST(cudaMemcpy(offsets.p, layouts[0], 16, cudaMemcpyDefault));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    mf_err e;
    mf_err_clear(&e);
    GPU_MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GPU_MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    const mf_status status = mf_kernel_grouped_gemm_run_cuda(&g, stream, &e);
    GPU_MUST(cudaStreamEndCapture(stream, &graph));
    GPU_MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        Sums sums;
        GPU_MUST(cudaMemcpy(offsets.p, layouts[i], 16, cudaMemcpyDefault));
        GPU_MUST(cudaMemset(out.p, 0xff, out.size_B));
        GPU_MUST(cudaMemset(sums_dev.p, 0, sizeof sums));
        GPU_MUST(cudaDeviceSynchronize());
        GPU_MUST(cudaGraphLaunch(exec, stream));
        GPU_MUST(cudaStreamSynchronize(stream));
        compare<<<(unsigned)(rows * n / 256), 256>>>(g, -1, NULL, (Sums *)sums_dev.p);
        GPU_MUST(cudaMemcpy(&sums, sums_dev.p, sizeof sums, cudaMemcpyDefault));
        const double norm = sqrt(sums.error2 / sums.ref2);
        GPU_CHECK(status == MF_OK && sums.bad == 0 && norm < BF16_NORM,
                  "captured graph, offsets %d: error %.2e, bad %llu %s", i, norm, sums.bad, e.text);
    }
    GPU_MUST(cudaGraphExecDestroy(exec));
    GPU_MUST(cudaGraphDestroy(graph));
    GPU_MUST(cudaStreamDestroy(stream));
}

void refuses_odd_columns(void) {
    mf_kernel_grouped_gemm g;
    memset(&g, 0, sizeof g);
    g.experts = 1;
    g.rows = 16;
    g.n = 12;
    g.k = 64;
    mf_err e;
    mf_err_clear(&e);
    GPU_CHECK(mf_kernel_grouped_gemm_run_cuda(&g, NULL, &e) == MF_INPUT, "n 12 is refused: %s",
              e.text);
}

std::vector<int> random_counts(int experts, int most, uint64_t seed) {
    std::vector<int> counts;
    for (int i = 0; i < experts; i++) {
        const uint64_t r = gpu_mix(seed + (uint64_t)i * 7919);
        counts.push_back(r % 4 == 0 ? 0 : (int)((r >> 8) % (uint64_t)(most + 1)));
    }
    return counts;
}

} // namespace

int main(int argc, char **argv) {
    const bool small = argc > 1 && strcmp(argv[1], "--small") == 0; /* for slow checkers */
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_need(1, 9);
    const uint64_t seed = gpu_seed();
    std::vector<Case> cases;
    for (int kind = 0; kind < 5; kind++) {
        const mf_grouped_kind kd = (mf_grouped_kind)(kind < 3 ? kind : 2);
        const bool acc = kind == 3, half = kind == 4;
        cases.push_back({"one whole tile pair", kd, acc, 256, 256, {256}, -1, half});
        cases.push_back({"one short tile", kd, acc, 256, 64, {1}, -1, half});
        cases.push_back({"odd tile rows", kd, acc, 512, 192, {128, 384, 129}, -1, half});
        cases.push_back({"empty experts", kd, acc, 320, 264, {0, 100, 0, 0, 65, 63, 0}, -1, half});
        cases.push_back({"all empty", kd, acc, 128, 128, {0, 0, 0}, -1, half});
        cases.push_back({"narrow", kd, acc, 8, 8, {5, 70, 130}, -1, half});
        cases.push_back({"odd sizes", kd, acc, 712, 328, {1, 2, 3, 77, 200, 255, 257}, -1, half});
        cases.push_back({"NaN neighbour", kd, acc, 264, 200, {33, 90, 127, 300}, 1, half});
        if (!small) {
            cases.push_back(
                {"many experts", kd, acc, 256, 128, random_counts(200, 90, seed), -1, half});
            cases.push_back(
                {"random counts", kd, acc, 1408, 1032, random_counts(13, 900, seed + 9), -1, half});
            cases.push_back({"long", kd, acc, 512, 2048, {4096, 100}, -1, half});
            cases.push_back(
                {"more tiles than blocks", kd, acc, 4096, 2048, {1024, 512, 700}, -1, half});
        }
    }
    for (size_t i = 0; i < cases.size(); i++) {
        run_case(cases[i], gpu_mix(seed + i));
    }
    fetched_as_in_l2(seed + 77);
    graph_follows_offsets(seed);
    refuses_odd_columns();
    return gpu_report();
}
