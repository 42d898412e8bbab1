/* bench_grouped_gemm.cu - speed of the grouped GEMM at expert shapes of real models, one GPU.
 *
 *   bench_grouped_gemm [--variant raster,balance[,taken]]... [--row N]... [--ragged]
 * [--once]
 *
 * For each row and problem: TFLOP/s of the config that the kernel chooses (or of each variant,
 * timed in turns; taken 0: each block has its share of the tiles, as no step has), the median over
 * rounds of back-to-back launches on random data. Operands and outputs are several times the L2, so
 * every launch finds it full of something else. limit: the rate at which the least bytes alone
 * would take all the time at 4.3 TB/s, when that is below the matrix rate. --ragged draws the
 * experts' counts at random with the same sum. wgrad overwrites f32; wgrad+ adds to f32.
 */
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "tests/gpu/gpu_random.cuh"

#include <algorithm>
#include <math.h>
#include <string.h>
#include <vector>

namespace {

struct Row {
    const char *name;
    int experts, tokens;
    int64_t hidden, ffn;
};

const Row ROWS[] = {
    {"Mixtral-8x22B EP4", 2, 8192, 6144, 16384}, {"DeepSeek-V3 EP32", 8, 4096, 7168, 2048},
    {"Qwen3-235B EP16", 8, 2048, 4096, 1536},    {"Qwen2-57B EP4", 16, 4096, 3584, 2560},
    {"DeepSeek-V3 EP8", 32, 1024, 7168, 2048},   {"small", 64, 256, 2048, 1408},
    {"Qwen3-30B", 128, 1024, 2048, 768},         {"OLMoE", 64, 512, 2048, 1024},
};

struct Problem {
    const char *name;
    mf_grouped_kind kind;
    bool second; /* FC2: [hidden, ffn]; FC1 is [2 ffn, hidden] */
    bool accumulate;
};

const Problem PROBLEMS[] = {
    {"FC1", MF_GROUPED_FORWARD, false, false},     {"FC2", MF_GROUPED_FORWARD, true, false},
    {"FC1 wgrad", MF_GROUPED_WGRAD, false, false}, {"FC1 dgrad", MF_GROUPED_DGRAD, false, false},
    {"FC1 wgrad+", MF_GROUPED_WGRAD, false, true}, {"FC2 wgrad", MF_GROUPED_WGRAD, true, false},
    {"FC2 dgrad", MF_GROUPED_DGRAD, true, false},
};

bool once; /* one launch each, for profilers */
int rounds = 9;
constexpr double COPY_BPS = 4.3e12, MATRIX_FLOPS = 800e12;

void must(mf_status status, const mf_err &e) {
    if (status != MF_OK) {
        printf("%s\n", e.text);
        exit(1);
    }
}

mf_grouped_device device(void) {
    mf_grouped_device d;
    int l2 = 0;
    GPU_MUST(cudaDeviceGetAttribute(&d.sm_count, cudaDevAttrMultiProcessorCount, 0));
    GPU_MUST(cudaDeviceGetAttribute(&d.smem_max_B, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    GPU_MUST(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0));
    d.l2_B = l2;
    return d;
}

struct Variant {
    int raster, balance; /* -1: as chosen */
    int taken;
};

mf_grouped_config apply(mf_grouped_config c, const Variant &v) {
    c.raster = v.raster < 0 ? c.raster : v.raster;
    c.balance = v.balance < 0 ? c.balance : v.balance;
    return c;
}

std::vector<int32_t> make_offsets(const Row &r, bool ragged, uint64_t seed) {
    std::vector<int32_t> offsets;
    const int32_t total = r.experts * r.tokens;
    offsets.push_back(0);
    for (int i = 1; i < r.experts; i++) {
        const int32_t random = (int32_t)(gpu_mix(seed + (uint64_t)i) % (uint64_t)(total + 1));
        offsets.push_back(ragged ? random : i * r.tokens);
    }
    offsets.push_back(total);
    std::sort(offsets.begin(), offsets.end());
    return offsets;
}

/* Median seconds of one launch of each variant. */
std::vector<double> time_variants(const mf_kernel_grouped_gemm &g,
                                  const std::vector<mf_grouped_config> &configs,
                                  const std::vector<Variant> &variants, uint32_t *turns) {
    cudaEvent_t from, to;
    mf_err e;
    mf_err_clear(&e);
    GPU_MUST(cudaEventCreate(&from));
    GPU_MUST(cudaEventCreate(&to));
    const double flops = mf_grouped_flops(&g, g.rows);
    const int launches = once ? 1 : std::max(2, std::min(20, (int)(10e-3 / (flops / 600e12))));
    std::vector<std::vector<double>> times(configs.size());
    for (int round = once ? 0 : -1; round < (once ? 1 : rounds); round++) {
        for (size_t v = 0; v < configs.size(); v++) {
            mf_kernel_grouped_gemm with = g;
            with.turns = variants[v].taken != 0 ? turns : NULL;
            GPU_MUST(cudaEventRecord(from));
            for (int i = 0; i < launches; i++) {
                must(mf_kernel_grouped_gemm_run_cuda_config(&with, &configs[v], NULL, &e), e);
            }
            GPU_MUST(cudaEventRecord(to));
            GPU_MUST(cudaEventSynchronize(to));
            float ms = 0;
            GPU_MUST(cudaEventElapsedTime(&ms, from, to));
            if (round >= 0) {
                times[v].push_back((double)ms * 1e-3 / launches);
            }
        }
    }
    std::vector<double> medians;
    for (auto &t : times) {
        std::sort(t.begin(), t.end());
        medians.push_back(t[t.size() / 2]);
    }
    GPU_MUST(cudaEventDestroy(from));
    GPU_MUST(cudaEventDestroy(to));
    return medians;
}

struct Options {
    std::vector<Variant> variants;
    std::vector<int> rows;
    bool ragged = false;
};

bool parse(int argc, char **argv, Options *o) {
    for (int i = 1; i < argc; i++) {
        Variant v = {-1, -1, 1};
        if (!strcmp(argv[i], "--variant") && i + 1 < argc) {
            (void)sscanf(argv[++i], "%d,%d,%d", &v.raster, &v.balance, &v.taken);
            o->variants.push_back(v);
        } else if (!strcmp(argv[i], "--row") && i + 1 < argc) {
            o->rows.push_back(atoi(argv[++i]));
        } else if (!strcmp(argv[i], "--ragged")) {
            o->ragged = true;
        } else if (!strcmp(argv[i], "--rounds") && i + 1 < argc) {
            rounds = std::max(1, atoi(argv[++i]));
        } else if (!strcmp(argv[i], "--once")) {
            once = true;
        } else {
            printf("usage: %s [--variant raster,balance[,taken]] [--row N] [--ragged] "
                   "[--once]\n",
                   argv[0]);
            return false;
        }
    }
    if (o->variants.empty()) {
        o->variants.push_back({-1, -1, 1});
    }
    return true;
}

} // namespace

int main(int argc, char **argv) {
    Options o;
    if (!parse(argc, argv, &o)) {
        return 2;
    }
    const std::vector<Variant> &variants = o.variants;
    gpu_need(1, 9);
    const uint64_t seed = gpu_seed();
    const mf_grouped_device dev = device();
    std::vector<double> log_sum(variants.size(), 0.0);
    uint32_t *turns;
    GPU_MUST(cudaMalloc((void **)&turns, sizeof *turns));
    GPU_MUST(cudaMemset(turns, 0, sizeof *turns));
    int lines = 0;
    mf_err e;
    mf_err_clear(&e);
    for (int r = 0; r < (int)(sizeof ROWS / sizeof ROWS[0]); r++) {
        if (!o.rows.empty() && std::find(o.rows.begin(), o.rows.end(), r) == o.rows.end()) {
            continue;
        }
        const Row &row = ROWS[r];
        const int64_t tokens = (int64_t)row.experts * row.tokens;
        const int64_t n1 = 2 * row.ffn, weights = row.experts * n1 * row.hidden;
        void *x, *dy, *w, *dw, *offsets_dev;
        GPU_MUST(cudaMalloc(&x, (size_t)(tokens * std::max(row.hidden, row.ffn)) * 2));
        GPU_MUST(cudaMalloc(&dy, (size_t)(tokens * std::max(n1, row.hidden)) * 2));
        GPU_MUST(cudaMalloc(&w, (size_t)weights * 2));
        GPU_MUST(cudaMalloc(&dw, (size_t)weights * 4));
        GPU_MUST(cudaMemset(dw, 0, (size_t)weights * 4));
        const std::vector<int32_t> offsets = make_offsets(row, o.ragged, seed);
        GPU_MUST(cudaMalloc(&offsets_dev, offsets.size() * 4));
        GPU_MUST(cudaMemcpy(offsets_dev, offsets.data(), offsets.size() * 4, cudaMemcpyDefault));
        gpu_normal(w, weights, seed + 1);
        for (const Problem &p : PROBLEMS) {
            mf_kernel_grouped_gemm g;
            memset(&g, 0, sizeof g);
            g.kind = p.kind;
            g.accumulate = p.accumulate;
            g.experts = row.experts;
            g.rows = tokens;
            g.n = p.second ? row.hidden : n1;
            g.k = p.second ? row.ffn : row.hidden;
            g.offsets = (const int32_t *)offsets_dev;
            gpu_normal(x, tokens * g.k, seed + 2);
            gpu_normal(dy, tokens * g.n, seed + 3);
            g.a = (const uint16_t *)(p.kind == MF_GROUPED_FORWARD ? x : dy);
            g.b = (const uint16_t *)(p.kind == MF_GROUPED_WGRAD ? x : w);
            g.out = p.kind == MF_GROUPED_FORWARD ? dy : p.kind == MF_GROUPED_DGRAD ? x : dw;
            mf_grouped_config chosen;
            must(mf_grouped_config_choose(&g, &dev, &chosen, &e), e);
            std::vector<mf_grouped_config> configs;
            for (const Variant &v : variants) {
                configs.push_back(apply(chosen, v));
            }
            const std::vector<double> times = time_variants(g, configs, variants, turns);
            const double flops = mf_grouped_flops(&g, tokens);
            const double by_bytes = flops / (mf_grouped_least_B(&g, tokens) / COPY_BPS);
            printf("%-18s %-10s limit %4.0f  TFLOP/s", row.name, p.name,
                   std::min(by_bytes, MATRIX_FLOPS) * 1e-12);
            for (size_t v = 0; v < times.size(); v++) {
                printf(" %6.1f", flops / times[v] * 1e-12);
                log_sum[v] += log(flops / times[v] * 1e-12);
            }
            printf("\n");
            lines++;
        }
        for (void *p : {x, dy, w, dw, offsets_dev}) {
            GPU_MUST(cudaFree(p));
        }
    }
    printf("%-18s %-10s             TFLOP/s", "geometric mean", "");
    for (double s : log_sum) {
        printf(" %6.1f", exp(s / lines));
    }
    printf("\n");
    return 0;
}
