/* exchange.cu - CUDA kernels of what rows say of their choices between ranks: a thread a choice. */
#include "kernels/device/cuda_common.cuh"
#include "kernels/moe/exchange.h"

#define THREADS 256

__device__ static inline int64_t item(void) {
    return (int64_t)blockIdx.x * THREADS + threadIdx.x;
}

static __global__ void choices_keep(mf_kernel_choices_keep a) {
    mf_await();
    const int64_t i = item();
    if (i < a.count) {
        const int64_t own = a.index[i] - a.first;
        a.index[i] = own >= 0 && own < a.experts ? (int32_t)own : -1;
    }
}

/* Runs of a slot's experts stand one behind the other: the last that begins at the row or before
 * it. */
static __global__ void choices_of_rows(mf_kernel_choices_of_rows a) {
    mf_await();
    const int64_t row = item();
    if (row >= a.ranks * a.rank_rows) {
        return;
    }
    const int each = (int)(a.experts / a.ranks), first = (int)(row / a.rank_rows) * each;
    int low = first, high = first + each - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (a.offsets[middle] <= row) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const int64_t within = row - a.offsets[low];
    a.index[row] = within >= 0 && within < a.counts[low] ? low - first : -1;
}

static __global__ void choices_ranks(mf_kernel_choices_ranks a) {
    mf_await();
    const int64_t i = item();
    if (i >= a.tokens * a.ranks) {
        return;
    }
    const int64_t t = i / a.ranks;
    const int each = (int)(a.experts / a.ranks), r = (int)(i - t * a.ranks);
    int32_t rank = -1;
    for (int64_t k = 0; k < a.top_k; k++) {
        const int32_t x = a.index[t * a.top_k + k];
        rank = x >= 0 && x / each == r ? r : rank;
    }
    a.rank[i] = rank;
}

static __global__ void choices_send(mf_kernel_choices_send a) {
    mf_await();
    const int64_t i = item();
    if (i >= a.rows * a.top_k) {
        return;
    }
    const int64_t row = i / a.top_k;
    const int32_t slot = a.slot_of_row[row];
    const int each = (int)(a.experts / a.ranks), ranks = (int)a.ranks;
    const int64_t from = (int64_t)(slot / ranks) * a.top_k + (i - row * a.top_k);
    const int32_t r = slot % ranks, x = slot >= 0 ? a.index[from] : -1;
    const bool there = x >= 0 && x / each == r;
    a.row_index[i] = there ? x - r * each : -1;
    a.row_prob[i] = there ? a.prob[from] : 0.0f;
}

static __global__ void choices_return(mf_kernel_choices_return a) {
    mf_await();
    const int64_t i = item();
    if (i >= a.tokens * a.top_k) {
        return;
    }
    const int64_t t = i / a.top_k;
    const int32_t x = a.index[i];
    const int each = (int)(a.experts / a.ranks);
    const int64_t row = x >= 0 ? a.row_of_slot[t * a.ranks + x / each] : -1;
    a.out[i] = row >= 0 ? a.row_value[row * a.top_k + (i - t * a.top_k)] : 0.0f;
}

/* A thread for each of `items`; nothing to do where there are none. */
template <typename Args>
static mf_status run(void (*kernel)(Args), const Args &a, int64_t items, void *stream, mf_err *e) {
    if (items > 0) {
        MF_LAUNCH(kernel, (unsigned)mf_ceil_div(items, THREADS), THREADS, 0, (cudaStream_t)stream,
                  e, a);
        MF_KERNEL_LAUNCHED(e);
    }
    return MF_OK;
}

extern "C" mf_status mf_kernel_choices_keep_own_cuda(const mf_kernel_choices_keep *a, void *stream,
                                                     mf_err *e) {
    return run(choices_keep, *a, a->count, stream, e);
}

extern "C" mf_status mf_kernel_choices_of_sent_rows_cuda(const mf_kernel_choices_of_rows *a,
                                                         void *stream, mf_err *e) {
    return run(choices_of_rows, *a, a->ranks * a->rank_rows, stream, e);
}

extern "C" mf_status mf_kernel_choices_find_ranks_cuda(const mf_kernel_choices_ranks *a,
                                                       void *stream, mf_err *e) {
    return run(choices_ranks, *a, a->tokens * a->ranks, stream, e);
}

extern "C" mf_status mf_kernel_choices_send_copies_cuda(const mf_kernel_choices_send *a,
                                                        void *stream, mf_err *e) {
    return run(choices_send, *a, a->rows * a->top_k, stream, e);
}

extern "C" mf_status mf_kernel_choices_return_values_cuda(const mf_kernel_choices_return *a,
                                                          void *stream, mf_err *e) {
    return run(choices_return, *a, a->tokens * a->top_k, stream, e);
}
