/* test_dispatch.cu - dispatch and combine between GPUs against the C reference, and dispatched rows
 * against NCCL's all-gather: fresh random routing with dropped choices, tokens without experts and
 * ranks without tokens, poisoned windows and outputs, two rounds on one group (the second must not
 * see the first). Combined rows differ from the reference by fused multiply-adds at most. */
#include "kernels/dispatch/dispatch.h"
#include "kernels/moe/permute.h"
#include "tests/gpu/gpu_ranks.cuh"

#include <atomic>
#include <math.h>
#include <mutex>
#include <string.h>

namespace {

constexpr double COMBINE_NORM = 2e-3;
constexpr int32_t PADDING = 7; /* rows of y that no slot names */

enum Routing { UNIFORM, TO_RANK_ZERO, NEIGHBOURS };
/* Rows of y: in the order of experts with weights; a row a token; in the order of experts, into
 * which what was dispatched is put from the window, as a step does. Of the last two rows and sums
 * share the window's memory. */
enum Rows { WEIGHTED, BY_TOKEN, ORDERED };

struct Case {
    const char *name;
    int64_t tokens, cols, top_k, experts_a_rank;
    Routing routing;
    Rows rows;
};

/* One rank's side of a round, on the host. */
struct Side {
    std::vector<uint16_t> x, y, out, ordered;
    std::vector<int32_t> index, row_of_slot, slot_of_row, offsets;
    std::vector<float> prob, weight, slot_grad;
    std::vector<uint8_t> window, arrived; /* arrived: as it was before combine */
    mf_dispatch_view view;
};

uint64_t state;
uint64_t dice(uint64_t n) {
    state = gpu_mix(state);
    return state % n;
}
float value(void) {
    return (float)dice(20001) / 10000.0f - 1.0f;
}

/* Distinct experts for every token; some choices dropped. */
void route(const mf_dispatch_shape &s, Routing how, int rank, std::vector<int32_t> &index) {
    const int32_t each = (int32_t)(s.experts / s.ranks);
    index.assign((size_t)(s.tokens * s.top_k), -1);
    for (int64_t t = 0; t < s.tokens; t++) {
        int32_t *choice = &index[(size_t)(t * s.top_k)];
        const int32_t first = how == NEIGHBOURS ? (rank + 1) % s.ranks * each : 0;
        const uint64_t range = how == UNIFORM ? (uint64_t)s.experts : (uint64_t)each;
        for (int64_t j = 0; j < s.top_k; j++) {
            bool fresh = false;
            for (int tries = 0; tries < 50 && !fresh; tries++) {
                choice[j] = first + (int32_t)dice(range);
                fresh = true;
                for (int64_t i = 0; i < j; i++) {
                    fresh = fresh && choice[i] != choice[j];
                }
            }
            choice[j] = fresh && dice(10) > 0 && t % 17 != 3 ? choice[j] : -1;
        }
    }
}

template <typename T> void randomise(std::vector<T> &v, int64_t n) {
    v.resize((size_t)n);
    for (T &x : v) {
        if constexpr (sizeof(T) == 2) {
            x = mf_kernel_bf16_round(value());
        } else {
            x = value();
        }
    }
}

/* A window's rows into the order of experts, by the side's map (or its copies on a GPU). */
mf_kernel_permute order_of(const mf_dispatch_shape &s, const Side &side, const void *rows,
                           void *out) {
    mf_kernel_permute m = {};
    m.dtype = MF_KERNEL_BF16;
    m.rows = side.offsets.back();
    m.cols = s.cols;
    m.top_k = s.top_k;
    m.slot_of_row = side.slot_of_row.data();
    m.row_of_slot = side.row_of_slot.data();
    m.tokens = s.ranks * s.tokens;
    m.x = rows;
    m.out = out;
    m.sparse = true;
    return m;
}

/* Inputs, and what the reference makes of them. */
std::vector<Side> reference_round(const mf_dispatch_shape &s, Routing how, Rows what) {
    const bool by_token = what == BY_TOKEN;
    std::vector<Side> sides((size_t)s.ranks);
    std::vector<mf_kernel_dispatch> d;
    std::vector<mf_kernel_combine> c;
    std::vector<mf_dispatch_view> views;
    const int64_t slots = s.ranks * s.tokens * s.top_k, each = s.experts / s.ranks;
    mf_err e;
    mf_err_clear(&e);
    for (int r = 0; r < s.ranks; r++) {
        Side &side = sides[(size_t)r];
        route(s, how, r, side.index);
        randomise(side.x, s.tokens * s.cols);
        randomise(side.prob, s.tokens * s.top_k);
        randomise(side.weight, slots);
        randomise(side.slot_grad, slots);
        side.out.assign((size_t)(s.tokens * s.cols), 0xffff);
        side.window.assign(mf_dispatch_window_B(&s), 0xff);
        side.view = mf_dispatch_view_of(&s, side.window.data());
        views.push_back(side.view);
        d.push_back({side.x.data(), side.index.data(), side.prob.data(), false});
    }
    MF_MUST(mf_kernel_dispatch_run(&s, d.data(), views.data(), &e), e);
    for (Side &side : sides) {
        side.arrived = side.window; /* the sums of combine may come to lie there */
    }
    for (Side &side : sides) { /* the experts' rows in expert order, as permute finds it */
        std::vector<int32_t> counts((size_t)each);
        int32_t overflow = 0;
        side.offsets.resize((size_t)each + 1);
        side.slot_of_row.resize((size_t)slots);
        side.row_of_slot.assign((size_t)slots, -1);
        std::vector<uint8_t> work(mf_kernel_permute_workspace_B(slots, each));
        mf_kernel_permute_map m = {s.ranks * s.tokens,
                                   s.top_k,
                                   each,
                                   1,
                                   slots,
                                   side.view.index,
                                   counts.data(),
                                   side.offsets.data(),
                                   side.row_of_slot.data(),
                                   side.slot_of_row.data(),
                                   &overflow,
                                   work.data(),
                                   0,
                                   nullptr,
                                   0,
                                   0};
        MF_MUST(mf_kernel_permute_map_build(&m, &e), e);
        randomise(side.y, (side.offsets[(size_t)each] + PADDING) * s.cols);
        side.ordered.assign((size_t)(side.offsets[(size_t)each] * s.cols), 0xffff);
        const mf_kernel_permute order = order_of(s, side, side.arrived.data(), side.ordered.data());
        MF_MUST(mf_kernel_permute_forward(&order, &e), e);
        if (s.top_k > 1 && what != ORDERED) { /* a choice dropped after dispatch */
            side.row_of_slot[dice((uint64_t)slots)] = -1;
        }
        if (by_token) { /* fewer than expert rows: those that lie there do */
            int32_t rows = 0;
            side.row_of_slot.resize((size_t)(s.ranks * s.tokens));
            for (int64_t t = 0; t < s.ranks * s.tokens; t++) {
                bool here = false;
                for (int64_t j = 0; j < s.top_k; j++) {
                    here = here || side.view.index[t * s.top_k + j] >= 0;
                }
                side.row_of_slot[(size_t)t] = here && dice(20) > 0 ? rows++ : -1;
            }
        }
        c.push_back({side.y.data(), side.view.index, side.row_of_slot.data(),
                     what == WEIGHTED ? side.weight.data() : nullptr, side.slot_grad.data(),
                     side.index.data(), side.out.data(), by_token, false});
    }
    MF_MUST(mf_kernel_combine_run(&s, c.data(), views.data(), &e), e);
    return sides;
}

/* Device copies that go with the block. */
struct Held {
    std::vector<void *> held;
    void *take(size_t size_B) {
        void *p = NULL;
        GPU_MUST(cudaMalloc(&p, size_B + 256));
        GPU_MUST(cudaMemset(p, 0xff, size_B + 256));
        held.push_back(p);
        return p;
    }
    template <typename T> T *upload(const std::vector<T> &v) {
        T *p = (T *)take(v.size() * sizeof(T));
        GPU_MUST(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyDefault));
        return p;
    }
    ~Held() {
        for (void *p : held) {
            cudaFree(p);
        }
    }
};

template <typename T> std::vector<T> download(const T *p, size_t n) {
    std::vector<T> v(n);
    GPU_MUST(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDefault));
    return v;
}

/* Bytes in which two arrays differ: to the bit, poison included. */
template <typename T> int64_t unlike(const std::vector<T> &a, const T *b) {
    int64_t n = 0;
    for (size_t i = 0; i < a.size(); i++) {
        n += memcmp(&a[i], b + i, sizeof(T)) != 0;
    }
    return n;
}

struct Found {
    int64_t rows = 0, ordered = 0, index = 0, prob = 0, gathered = 0, prob_grad = 0, wrong = 0;
    double error2 = 0, ref2 = 0;
};

/* One round of one rank on its GPU. */
/* Which kernels take the blocks of one that compute runs beside. */
struct Beside {
    bool dispatch, combine;
};

void device_round(GpuRanks &ranks, const mf_dispatch_shape &s, mf_dispatch_group *g,
                  const Side &side, Rows what, Beside beside, int rank, cudaStream_t stream,
                  Found &found) {
    Held m;
    mf_err e;
    mf_err_clear(&e);
    const mf_dispatch_view *v = mf_dispatch_group_view(g);
    const size_t rows = (size_t)(s.ranks * s.tokens), row = (size_t)s.cols, k = (size_t)s.top_k;
    const uint16_t *x = m.upload(side.x);
    const int32_t *index = m.upload(side.index);
    const mf_kernel_dispatch d = {x, index, m.upload(side.prob), beside.dispatch};
    uint16_t *out = (uint16_t *)m.take((size_t)s.tokens * row * 2);
    const int32_t *row_of_slot = m.upload(side.row_of_slot);
    const bool by_token = what == BY_TOKEN;
    uint16_t *ordered = (uint16_t *)m.take(side.ordered.size() * 2);
    mf_kernel_permute order = order_of(s, side, v->rows, ordered);
    order.slot_of_row = m.upload(side.slot_of_row);
    order.row_of_slot = row_of_slot;
    const mf_kernel_combine c = {m.upload(side.y),
                                 v->index,
                                 row_of_slot,
                                 what == WEIGHTED ? m.upload(side.weight) : nullptr,
                                 m.upload(side.slot_grad),
                                 index,
                                 out,
                                 by_token,
                                 beside.combine};
    uint16_t *gathered = (uint16_t *)m.take(rows * row * 2);
    uint16_t *kept = (uint16_t *)m.take(rows * row * 2); /* before sums take their place */
    GPU_MUST(cudaMemset(v->rows, 0xff, mf_dispatch_window_B(&s) - 256));
    GPU_MUST(cudaDeviceSynchronize());
    ranks.meet();
    MF_MUST(mf_kernel_dispatch_run_cuda(g, &d, stream, &e), e);
    ranks.meet(); /* on one GPU every dispatch is queued before anything behind one of them */
    GPU_MUST(cudaMemcpyAsync(kept, v->rows, rows * row * 2, cudaMemcpyDeviceToDevice, stream));
    if (what == ORDERED && order.rows > 0) {
        MF_MUST(mf_kernel_permute_forward_cuda(&order, stream, &e), e);
    }
    MF_MUST(mf_kernel_combine_run_cuda(g, &c, stream, &e), e);
    NCCL_MUST(ncclAllGather(x, gathered, (size_t)s.tokens * row, ncclBfloat16,
                            ranks.comm[(size_t)rank], stream));
    GPU_MUST(cudaStreamSynchronize(stream));
    const std::vector<uint16_t> got = download(kept, rows * row);
    const std::vector<uint16_t> all = download(gathered, rows * row);
    found.rows = unlike(got, (const uint16_t *)side.arrived.data());
    if (what == ORDERED) {
        found.ordered = unlike(download(ordered, side.ordered.size()), side.ordered.data());
    }
    found.index = unlike(download(v->index, rows * k), side.view.index);
    found.prob = unlike(download(v->prob, rows * k), side.view.prob);
    found.prob_grad = unlike(download(v->prob_grad, (size_t)s.tokens * k), side.view.prob_grad);
    for (size_t i = 0; i < rows; i++) {
        bool sent = false;
        for (size_t j = 0; j < k; j++) {
            sent = sent || side.view.index[i * k + j] >= 0;
        }
        found.gathered += sent && memcmp(&got[i * row], &all[i * row], row * 2) != 0;
    }
    const std::vector<uint16_t> sums = download(out, (size_t)s.tokens * row);
    for (size_t i = 0; i < sums.size(); i++) {
        const double a = mf_kernel_bf16_widen(sums[i]), b = mf_kernel_bf16_widen(side.out[i]);
        found.wrong += !isfinite(a);
        found.error2 += (a - b) * (a - b);
        found.ref2 += b * b;
    }
    ranks.meet();
}

void run_case(GpuRanks &ranks, const Case &c, int blocks) {
    const mf_dispatch_shape s = {
        ranks.count, c.tokens, c.cols, c.top_k, c.experts_a_rank * ranks.count, c.rows != WEIGHTED};
    std::vector<mf_dispatch_group *> groups((size_t)ranks.count);
    ranks.run([&](int r, cudaStream_t) {
        mf_err e;
        mf_err_clear(&e);
        const int most = blocks > 0 ? blocks : gpu_rank_blocks(s.ranks);
        MF_MUST(mf_dispatch_group_create(ranks.comm[(size_t)r], &s, {most, most / 3 + 1},
                                         &groups[(size_t)r], &e),
                e);
    });
    static const Beside of_round[] = {{false, false}, {false, true}, {true, false}};
    for (int round = 0; round < 3; round++) {
        const std::vector<Side> sides = reference_round(s, c.routing, c.rows);
        std::vector<Found> found((size_t)ranks.count);
        ranks.run([&](int r, cudaStream_t stream) {
            device_round(ranks, s, groups[(size_t)r], sides[(size_t)r], c.rows, of_round[round], r,
                         stream, found[(size_t)r]);
        });
        for (int r = 0; r < ranks.count; r++) {
            const Found &f = found[(size_t)r];
            const double error = sqrt(f.error2) / (sqrt(f.ref2) + 1e-30);
            GPU_CHECK(f.rows + f.ordered + f.index + f.prob + f.gathered + f.prob_grad + f.wrong ==
                              0 &&
                          error < COMBINE_NORM,
                      "%-18s rank %d of %d round %d: %lld rows, %lld in order, %lld index, %lld "
                      "prob, %lld from all-gather, %lld gradients unlike; combine %.1e, %lld not "
                      "finite",
                      c.name, r, s.ranks, round, (long long)f.rows, (long long)f.ordered,
                      (long long)f.index, (long long)f.prob, (long long)f.gathered,
                      (long long)f.prob_grad, error, (long long)f.wrong);
        }
    }
    ranks.run([&](int r, cudaStream_t) { mf_dispatch_group_destroy(groups[(size_t)r]); });
}

void run_cases(GpuRanks &ranks, bool small) {
    run_case(ranks, {"odd sizes", 129, 1032, 3, 5, UNIFORM, WEIGHTED}, 0);
    run_case(ranks, {"all to rank 0", 77, 264, 2, 4, TO_RANK_ZERO, WEIGHTED}, 3);
    run_case(ranks, {"a row a token", 131, 520, 4, 4, UNIFORM, BY_TOKEN}, 5);
    run_case(ranks, {"in order", 131, 520, 4, 4, UNIFORM, ORDERED}, 5);
    if (!small) {
        run_case(ranks, {"uniform", 300, 512, 8, 64, UNIFORM, WEIGHTED}, 0);
        run_case(ranks, {"one token", 1, 8, 1, 1, UNIFORM, WEIGHTED}, 0);
        run_case(ranks, {"neighbours", 200, 2048, 4, 8, NEIGHBOURS, WEIGHTED}, 16);
        run_case(ranks, {"wide rows", 70, 20008, 2, 3, UNIFORM, WEIGHTED}, 2);
        run_case(ranks, {"DeepSeek-V3", 1024, 7168, 8, 32, UNIFORM, WEIGHTED}, 0);
        run_case(ranks, {"in order of it", 1024, 7168, 8, 32, UNIFORM, ORDERED}, 32);
        run_case(ranks, {"narrow, in order", 4096, 1024, 8, 16, NEIGHBOURS, ORDERED}, 0);
        run_case(ranks, {"tokens of it", 1024, 7168, 8, 32, UNIFORM, BY_TOKEN}, 32);
        run_case(ranks, {"narrow tokens", 4096, 1024, 8, 16, UNIFORM, BY_TOKEN}, 0);
    }
}

} // namespace

int main(int argc, char **argv) {
    const bool small = argc > 1 && strcmp(argv[1], "--small") == 0; /* for slow checkers */
    setvbuf(stdout, NULL, _IOLBF, 0);
    const std::vector<int> counts = gpu_rank_counts(1);
    state = gpu_seed();
    const char *again = getenv("MF_REPEAT"); /* to find what happens seldom */
    for (int i = 0, times = again ? atoi(again) : 1; i < times; i++) {
        for (int count : counts) {
            GpuRanks ranks(count);
            run_cases(ranks, small);
        }
    }
    return gpu_report();
}
