/* norm_units.cuh - what the norms' kernels have in common: how a forward pass is split into units
 * (a unit: a group of a row), and what a unit is multiplied with.
 */
#ifndef MF_KERNELS_NORM_UNITS_CUH
#define MF_KERNELS_NORM_UNITS_CUH

#include "kernels/device/cuda_common.cuh"

/* The shape of a forward kernel's launch: plain numbers, printable. */
typedef struct unit_plan {
    int lanes, threads, each; /* threads of a unit, of a block; vectors of a thread */
} unit_plan;

/* False where a unit is too wide for the fast path. */
static bool choose_units(int64_t cols, int width, unit_plan *p) {
    int64_t vectors = cols / width;
    p->each = vectors <= 256 ? 2 : 4;
    int64_t need = mf_ceil_div(vectors, p->each);
    p->lanes = need <= 32 ? mf_pow2_up(need) : (int)mf_ceil_div(need, 32) * 32;
    p->threads = need <= 32 ? 128 : p->lanes;
    return need <= 512;
}

/* Weights from column c on as they lie in memory; 1 where the norm has none. */
template <typename T, int N>
__device__ static inline mf_raw<T, N> fetch_weight(const void *weight, int64_t c) {
    if (weight != nullptr) {
        return mf_fetch<T, N>((const T *)weight + c);
    }
    mf_raw<T, N> raw;
    float ones[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        ones[i] = 1.0f;
    }
    mf_store((T *)&raw, ones);
    return raw;
}

#endif
