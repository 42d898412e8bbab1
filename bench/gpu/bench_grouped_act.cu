/* bench_grouped_act.cu - the first expert product and its activation on one GPU under load: apart
 * (grouped GEMM, then the activation's kernel) beside fused (in the grouped GEMM's epilogue).
 *
 *   bench_grouped_act [--row N]... [--seconds S]
 *
 * Rows are what one GPU holds of real models' steps, experts ragged as a random router leaves them.
 * The GPU first works for 2 S seconds; then apart, fused and the product alone take turns of S
 * seconds, three each, so that all run at the clocks that the power cap leaves. The printed times
 * are medians of one call; the gain is of the first two. */
#include "tests/gpu/gpu_random.cuh"
#include "tests/gpu/grouped_act.cuh"

#include <algorithm>
#include <string.h>
#include <vector>

namespace {

struct Row {
    const char *name;
    int experts;
    int64_t tokens; /* routed rows of all experts */
    int64_t hidden, ffn;
};

const Row ROWS[] = {
    {"mixtral-8x22b", 8, 32768, 6144, 16384},
    {"deepseek-v3", 32, 65536, 7168, 2048},
    {"qwen3-30b-a3b", 128, 131072, 2048, 768},
    {"olmoe-1b-7b", 64, 32768, 2048, 1024},
};

enum { APART, FUSED, ALONE, WAYS, TURNS = 3 };

double turn_s = 1.5;

void must(mf_status status, const mf_err &e) {
    if (status != MF_OK) {
        printf("%s\n", e.text);
        exit(1);
    }
}

/* Within 15 % of balance, the last expert takes what is left. */
std::vector<int32_t> make_offsets(const Row &r, uint64_t seed) {
    std::vector<int32_t> offsets(1, 0);
    const double mean = (double)r.tokens / r.experts;
    for (int i = 1; i < r.experts; i++) {
        const double share = 0.85 + 0.3 * (double)(gpu_mix(seed + (uint64_t)i) % 1000) * 1e-3;
        const int64_t next = offsets.back() + (int64_t)(mean * share);
        offsets.push_back((int32_t)std::min(next, r.tokens));
    }
    offsets.push_back((int32_t)r.tokens);
    return offsets;
}

void call(const mf_kernel_grouped_gemm &g, int way) {
    mf_err e;
    mf_err_clear(&e);
    mf_kernel_grouped_gemm product = g;
    product.act = way == FUSED ? g.act : NULL;
    must(mf_kernel_grouped_gemm_run_cuda(&product, NULL, &e), e);
    if (way == APART) {
        const mf_kernel_swiglu a = activation_of(g);
        must(mf_kernel_swiglu_forward_cuda(&a, NULL, &e), e);
    }
}

/* Seconds of one call, over `seconds` of calls. */
double time_of(const mf_kernel_grouped_gemm &g, int way, double seconds) {
    cudaEvent_t from, to;
    GPU_MUST(cudaEventCreate(&from));
    GPU_MUST(cudaEventCreate(&to));
    double spent = 0;
    int calls = 0;
    const int batch = std::max(2, (int)(0.05 / (mf_grouped_flops(&g, g.rows) / 600e12)));
    while (spent < seconds) {
        float ms = 0;
        GPU_MUST(cudaEventRecord(from));
        for (int i = 0; i < batch; i++) {
            call(g, way);
        }
        GPU_MUST(cudaEventRecord(to));
        GPU_MUST(cudaEventSynchronize(to));
        GPU_MUST(cudaEventElapsedTime(&ms, from, to));
        spent += (double)ms * 1e-3;
        calls += batch;
    }
    GPU_MUST(cudaEventDestroy(from));
    GPU_MUST(cudaEventDestroy(to));
    return spent / calls;
}

void *allocate(int64_t elements, int64_t element_B) {
    void *p = NULL;
    GPU_MUST(cudaMalloc(&p, (size_t)(elements * element_B)));
    GPU_MUST(cudaMemset(p, 0, (size_t)(elements * element_B)));
    return p;
}

void bench(const Row &r, uint64_t seed) {
    const int64_t n = 2 * r.ffn;
    const std::vector<int32_t> offsets = make_offsets(r, seed);
    std::vector<float> prob((size_t)r.tokens);
    for (size_t i = 0; i < prob.size(); i++) {
        prob[i] = (float)(gpu_mix(seed + i) % 1000) * 1e-3f;
    }
    mf_kernel_grouped_gemm g;
    memset(&g, 0, sizeof g);
    g.kind = MF_GROUPED_FORWARD;
    g.experts = r.experts;
    g.rows = r.tokens;
    g.n = n;
    g.k = r.hidden;
    void *a = allocate(r.tokens * r.hidden, 2), *w = allocate(r.experts * n * r.hidden, 2);
    void *out = allocate(r.tokens * n, 2), *act = allocate(r.tokens * r.ffn, 2);
    void *at = allocate((int64_t)offsets.size(), 4), *p = allocate(r.tokens, 4);
    gpu_normal(a, r.tokens * r.hidden, seed + 1);
    gpu_normal(w, r.experts * n * r.hidden, seed + 2);
    GPU_MUST(cudaMemcpy(at, offsets.data(), offsets.size() * 4, cudaMemcpyDefault));
    GPU_MUST(cudaMemcpy(p, prob.data(), prob.size() * 4, cudaMemcpyDefault));
    g.offsets = (const int32_t *)at;
    g.a = (const uint16_t *)a;
    g.b = (const uint16_t *)w;
    g.prob = (const float *)p;
    g.out = out;
    g.act = (uint16_t *)act;
    double median[WAYS], turns[WAYS][TURNS];
    (void)time_of(g, APART, 2 * turn_s);
    for (int t = 0; t < TURNS; t++) {
        for (int way = 0; way < WAYS; way++) {
            turns[way][t] = time_of(g, way, turn_s);
        }
    }
    for (int way = 0; way < WAYS; way++) {
        std::sort(turns[way], turns[way] + TURNS);
        median[way] = turns[way][TURNS / 2];
    }
    printf("%-14s apart %8.1f us  fused %8.1f us  gain %5.2f %%  product alone %8.1f us (%.0f "
           "TFLOP/s)\n",
           r.name, median[APART] * 1e6, median[FUSED] * 1e6,
           100 * (median[APART] / median[FUSED] - 1), median[ALONE] * 1e6,
           mf_grouped_flops(&g, g.rows) / median[ALONE] * 1e-12);
    for (void *q : {a, w, out, act, at, p}) {
        GPU_MUST(cudaFree(q));
    }
}

} // namespace

int main(int argc, char **argv) {
    std::vector<int> rows;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--row") && i + 1 < argc) {
            rows.push_back(atoi(argv[++i]));
        } else if (!strcmp(argv[i], "--seconds") && i + 1 < argc) {
            turn_s = std::max(0.1, atof(argv[++i]));
        } else {
            printf("usage: %s [--row N]... [--seconds S]\n", argv[0]);
            return 2;
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_need(1, 9);
    const uint64_t seed = gpu_seed();
    for (int r = 0; r < (int)(sizeof ROWS / sizeof ROWS[0]); r++) {
        if (rows.empty() || std::find(rows.begin(), rows.end(), r) != rows.end()) {
            bench(ROWS[r], seed);
        }
    }
    return 0;
}
