/* bench_dispatch.cu - dispatch and combine between the GPUs of one host beside NCCL's all-to-all of
 * the same bytes: GB/s out of each GPU (what leaves for other GPUs over the time of the slowest),
 * and the share of the limit. The limit is the longer of two times, both rates measured here: what
 * leaves, over a copy of 1 GiB to the next GPU while all GPUs copy; and what must pass this GPU's
 * memory (each row read once, each row that arrives or stays written and, in combine, read once
 * more), over a copy inside the GPU. NCCL's all-gather of as many bytes out of each GPU stands
 * beside.
 *
 *     bench_dispatch [-cols N] [-blocks N]... [tokens...]
 *
 * Top 8 of 64 experts a rank, uniform routing; without arguments 7168 columns, a range of tokens
 * and of blocks, 0 for all multiprocessors.
 */
#include "kernels/dispatch/dispatch.h"
#include "kernels/moe/permute.h"
#include "tests/gpu/gpu_random.cuh"
#include "tests/gpu/gpu_ranks.cuh"

#include <algorithm>
#include <string.h>

namespace {

constexpr int64_t TOP_K = 8, EACH = 64;
constexpr int RUNS = 20, REPEATS = 7;

template <typename T> T *upload(const std::vector<T> &v) {
    T *p = NULL;
    GPU_MUST(cudaMalloc(&p, v.size() * sizeof(T) + 256));
    GPU_MUST(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyDefault));
    return p;
}

uint64_t seed_of(int64_t tokens, int rank) {
    return (uint64_t)tokens * 31 + (uint64_t)rank;
}

/* TOP_K experts of `experts`, all different. */
std::vector<int32_t> route(int64_t tokens, int64_t experts, uint64_t seed) {
    std::vector<int32_t> index;
    for (int64_t t = 0; t < tokens; t++) {
        while ((int64_t)index.size() < (t + 1) * TOP_K) {
            seed = gpu_mix(seed);
            const int32_t x = (int32_t)(seed % (uint64_t)experts);
            if (std::find(index.begin() + t * TOP_K, index.end(), x) == index.end()) {
                index.push_back(x);
            }
        }
    }
    return index;
}

/* Median seconds a call over the repeats, of this rank. */
double time_s(GpuRanks &ranks, cudaStream_t stream, const std::function<void()> &call) {
    cudaEvent_t a, b;
    std::vector<double> all;
    GPU_MUST(cudaEventCreate(&a));
    GPU_MUST(cudaEventCreate(&b));
    for (int i = 0; i < REPEATS + 2; i++) {
        GPU_MUST(cudaStreamSynchronize(stream));
        ranks.meet();
        call();
        GPU_MUST(cudaEventRecord(a, stream));
        for (int j = 0; j < RUNS; j++) {
            call();
        }
        GPU_MUST(cudaEventRecord(b, stream));
        GPU_MUST(cudaEventSynchronize(b));
        float ms = 0;
        GPU_MUST(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2) {
            all.push_back(ms * 1e-3 / RUNS);
        }
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

struct Times {
    double dispatch, combine, all_to_all, all_gather;
    int64_t sent_B, dispatch_B, combine_B; /* out of the GPU; through its memory */
};

struct Rates {
    double link,
        memory; /* bytes a second: out of a GPU to the next; read plus written inside one */
};

Rates measure_rates(GpuRanks &ranks) {
    const size_t size_B = (size_t)1 << 30;
    std::vector<void *> from((size_t)ranks.count), to((size_t)ranks.count);
    std::vector<Rates> all((size_t)ranks.count);
    ranks.run([&](int r, cudaStream_t stream) {
        const int next = (r + 1) % ranks.count;
        GPU_MUST(cudaMalloc(&from[(size_t)r], size_B));
        GPU_MUST(cudaMalloc(&to[(size_t)r], size_B));
        gpu_normal(from[(size_t)r], (int64_t)size_B / 2, 7);
        const cudaError_t peer = cudaDeviceEnablePeerAccess(next, 0);
        if (peer != cudaErrorPeerAccessAlreadyEnabled) {
            GPU_MUST(peer);
        }
        (void)cudaGetLastError();
        GPU_MUST(cudaDeviceSynchronize());
        ranks.meet();
        const double link_s = time_s(ranks, stream, [&] {
            GPU_MUST(
                cudaMemcpyPeerAsync(to[(size_t)next], next, from[(size_t)r], r, size_B, stream));
        });
        const double memory_s = time_s(ranks, stream, [&] {
            GPU_MUST(cudaMemcpyAsync(to[(size_t)r], from[(size_t)r], size_B,
                                     cudaMemcpyDeviceToDevice, stream));
        });
        all[(size_t)r] = {(double)size_B / link_s, 2.0 * (double)size_B / memory_s};
        ranks.meet();
        GPU_MUST(cudaFree(from[(size_t)r]));
        GPU_MUST(cudaFree(to[(size_t)r]));
    });
    Rates least = all[0];
    for (const Rates &x : all) {
        least.link = std::min(least.link, x.link);
        least.memory = std::min(least.memory, x.memory);
    }
    return least;
}

void all_to_all(ncclComm_t comm, int ranks, int rank, const char *send, char *recv, size_t part_B,
                cudaStream_t stream) {
    NCCL_MUST(ncclGroupStart());
    for (int p = 0; p < ranks; p++) {
        if (p != rank) {
            NCCL_MUST(ncclSend(send + (size_t)p * part_B, part_B, ncclChar, p, comm, stream));
            NCCL_MUST(ncclRecv(recv + (size_t)p * part_B, part_B, ncclChar, p, comm, stream));
        }
    }
    NCCL_MUST(ncclGroupEnd());
}

/* Rows of tokens that rank r receives from all ranks, itself among them, and its experts' rows. */
void count_rows(const mf_dispatch_shape &s, int r, int64_t *tokens, int64_t *rows) {
    const int64_t each = s.experts / s.ranks;
    *tokens = *rows = 0;
    for (int from = 0; from < s.ranks; from++) {
        const std::vector<int32_t> index = route(s.tokens, s.experts, seed_of(s.tokens, from));
        for (int64_t t = 0; t < s.tokens; t++) {
            int64_t here = 0;
            for (int64_t j = 0; j < TOP_K; j++) {
                here += index[(size_t)(t * TOP_K + j)] / each == r;
            }
            *rows += here;
            *tokens += here > 0;
        }
    }
}

struct Job {
    int64_t tokens, cols;
    int blocks;
};

void measure(GpuRanks &ranks, const Job &j, int r, cudaStream_t stream, Times &out) {
    const int64_t tokens = j.tokens, cols = j.cols;
    const mf_dispatch_shape s = {ranks.count, tokens, cols, TOP_K, EACH * ranks.count, false};
    const int64_t slots = s.ranks * tokens * TOP_K;
    const ncclComm_t comm = ranks.comm[(size_t)r];
    mf_dispatch_group *g = NULL;
    mf_err e;
    mf_err_clear(&e);
    MF_MUST(mf_dispatch_group_create(comm, &s, {j.blocks, 0}, &g, &e), e);
    const mf_dispatch_view *v = mf_dispatch_group_view(g);
    const std::vector<int32_t> index = route(tokens, s.experts, seed_of(tokens, r));
    void *x, *y, *sums, *work;
    GPU_MUST(cudaMalloc(&x, (size_t)(tokens * cols) * 2));
    GPU_MUST(cudaMalloc(&y, (size_t)(slots * cols) * 2));
    GPU_MUST(cudaMalloc(&sums, (size_t)(tokens * cols) * 2));
    GPU_MUST(cudaMalloc(&work, mf_kernel_permute_workspace_B(slots, EACH)));
    gpu_normal(x, tokens * cols, 5);
    gpu_normal(y, slots * cols, 6);
    std::vector<float> ones((size_t)slots, 0.125f);
    std::vector<int32_t> none((size_t)slots + EACH + 1);
    int32_t *row_of = upload(none), *slot_of = upload(none), *counts = upload(none);
    int32_t *offsets = upload(none), *over = upload(none);
    const mf_kernel_dispatch d = {(const uint16_t *)x, upload(index), upload(ones)};
    const mf_kernel_combine c = {(const uint16_t *)y, v->index, row_of, upload(ones), NULL, d.index,
                                 (uint16_t *)sums};
    const mf_kernel_permute_map m = {
        s.ranks * tokens, TOP_K,  EACH,    1,    slots, v->index, counts,
        offsets,          row_of, slot_of, over, work,  0,        nullptr};
    out.sent_B = mf_dispatch_copies(&s, index.data(), r) * cols * 2;
    int64_t here, rows;
    count_rows(s, r, &here, &rows);
    out.dispatch_B = (tokens + here) * cols * 2;
    out.combine_B = (rows + 2 * mf_dispatch_copies(&s, index.data(), r) + tokens) * cols * 2;
    /* The same on all ranks: what rank 0 sends, in equal parts. */
    const std::vector<int32_t> first = route(tokens, s.experts, seed_of(tokens, 0));
    const size_t part_B =
        (size_t)(mf_dispatch_copies(&s, first.data(), 0) * cols * 2) / (size_t)(s.ranks - 1);
    char *send, *recv;
    GPU_MUST(cudaMalloc(&send, part_B * (size_t)s.ranks + 256));
    GPU_MUST(cudaMalloc(&recv, part_B * (size_t)s.ranks * 2 + 256));
    GPU_MUST(cudaDeviceSynchronize());
    ranks.meet();
    out.dispatch =
        time_s(ranks, stream, [&] { MF_MUST(mf_kernel_dispatch_run_cuda(g, &d, stream, &e), e); });
    MF_MUST(mf_kernel_permute_map_build_cuda(&m, stream, &e), e);
    out.combine =
        time_s(ranks, stream, [&] { MF_MUST(mf_kernel_combine_run_cuda(g, &c, stream, &e), e); });
    out.all_to_all =
        time_s(ranks, stream, [&] { all_to_all(comm, s.ranks, r, send, recv, part_B, stream); });
    out.all_gather = time_s(ranks, stream, [&] {
        NCCL_MUST(ncclAllGather(send, recv, part_B, ncclChar, comm, stream));
    });
    ranks.meet();
    mf_dispatch_group_destroy(g);
    for (void *p : {x, y, sums, work, (void *)send, (void *)recv, (void *)row_of, (void *)slot_of,
                    (void *)counts, (void *)offsets, (void *)over}) {
        GPU_MUST(cudaFree(p));
    }
}

/* One line of the table: the slowest rank's times. */
void print_row(const Job &j, const std::vector<Times> &t, const Rates &rates) {
    Times worst = t[0];
    for (const Times &x : t) {
        worst.dispatch = std::max(worst.dispatch, x.dispatch);
        worst.combine = std::max(worst.combine, x.combine);
        worst.all_to_all = std::max(worst.all_to_all, x.all_to_all);
        worst.all_gather = std::max(worst.all_gather, x.all_gather);
    }
    const double sent = (double)worst.sent_B, link_s = sent / rates.link;
    const double out_s = std::max(link_s, (double)worst.dispatch_B / rates.memory);
    const double back_s = std::max(link_s, (double)worst.combine_B / rates.memory);
    printf(
        "| %lld | %.2f | %d | %.1f | %.0f | %.0f%% | %.1f | %.0f | %.0f%% | %.1f | %.0f | %.1f | "
        "%.0f |%s\n",
        (long long)j.tokens, sent / (1 << 20), j.blocks, worst.dispatch * 1e6,
        sent / worst.dispatch * 1e-9, 100 * out_s / worst.dispatch, worst.combine * 1e6,
        sent / worst.combine * 1e-9, 100 * back_s / worst.combine, worst.all_to_all * 1e6,
        sent / worst.all_to_all * 1e-9, worst.all_gather * 1e6, sent / worst.all_gather * 1e-9,
        worst.dispatch > worst.all_to_all || worst.combine > worst.all_to_all
            ? " slower than all-to-all"
            : "");
    fflush(stdout);
}

} // namespace

int main(int argc, char **argv) {
    std::vector<int64_t> sizes;
    std::vector<int> blocks;
    int64_t cols = 7168;
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "-cols") == 0 && more) {
            cols = atoll(argv[++i]);
        } else if (strcmp(argv[i], "-blocks") == 0 && more) {
            blocks.push_back(atoi(argv[++i]));
        } else {
            sizes.push_back(atoll(argv[i]));
        }
    }
    if (sizes.empty()) {
        sizes = {32, 64, 128, 256, 1024, 4096, 16384};
    }
    if (blocks.empty()) {
        blocks = {24, (int)MF_DISPATCH_BLOCKS_BESIDE, 64, 0};
    }
    GpuRanks ranks(gpu_rank_counts(1).back());
    const Rates rates = measure_rates(ranks);
    printf("%d GPUs, %lld columns, top %lld of %lld experts; link %.0f GB/s, copy %.0f GB/s\n",
           ranks.count, (long long)cols, (long long)TOP_K, (long long)(EACH * ranks.count),
           rates.link * 1e-9, rates.memory * 1e-9);
    printf("| tokens | sent MiB | blocks | dispatch us | GB/s | of limit | combine us | GB/s | of "
           "limit | all-to-all us | GB/s | all-gather us | GB/s |\n|---%s\n",
           "|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (int64_t tokens : sizes) {
        for (int b : blocks) {
            const Job j = {tokens, cols, b};
            std::vector<Times> t((size_t)ranks.count);
            ranks.run(
                [&](int r, cudaStream_t stream) { measure(ranks, j, r, stream, t[(size_t)r]); });
            print_row(j, t, rates);
        }
    }
    return 0;
}
