/* router_near.cuh - MF_ROUTE_SPARSEMIXER on a GPU: a warp a row, the row's logits in registers.
 * Each choice is one of a softmax over the experts that were not chosen before it and are near it.
 */
#ifndef MF_KERNELS_ROUTER_NEAR_CUH
#define MF_KERNELS_ROUTER_NEAR_CUH

#include "kernels/moe/router_rows.cuh"

/* The lane's slots of experts that are chosen, a bit each. */
template <int V, int VEC> __device__ static inline unsigned slot_of(int expert) {
    unsigned slots = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        slots |= expert_of<VEC>(i) == expert ? 1u << i : 0u;
    }
    return slots;
}

/* Of a choice with logit `chosen`: p = exp(logit - chosen) of the experts near it, 0 of others and
 * of those in `taken`. The sum over the row, which the chosen one's 1 is a part of. */
template <int V, int VEC>
__device__ static inline float near_exps(const float (&logit)[V], float chosen, unsigned taken,
                                         float jitter, int experts, float (&p)[V]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) {
        const float far = (chosen - logit[i]) / fmaxf(fabsf(logit[i]), chosen);
        const bool out =
            expert_of<VEC>(i) >= experts || (taken >> i & 1u) != 0 || far > 2.0f * jitter;
        p[i] = out ? 0.0f : expf(logit[i] - chosen);
        sum += p[i];
    }
    return mf_warp_sum(sum);
}

/* prob of the choices in index. */
template <int V, int VEC>
__global__ void __launch_bounds__(WARPS * 32) router_near(mf_kernel_router a) {
    mf_await();
    const int n = (int)a.experts, k = (int)a.top_k;
    const int64_t r = (int64_t)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    if (r >= a.rows) {
        return;
    }
    float logit[V], p[V];
    unsigned taken = 0;
    load_row<V, VEC>(logit, a.logits + r * n, n, 0.0f);
    for (int j = 0; j < k; j++) {
        const int expert = a.index[r * k + j];
        const float sum = near_exps<V, VEC>(logit, a.logits[r * n + expert], taken, a.jitter, n, p);
        taken |= slot_of<V, VEC>(expert);
        if (threadIdx.x % 32 == 0) {
            a.prob[r * k + j] = a.scaling / sum;
        }
    }
}

/* Adds to dlogits, which stand, what comes through the choices' probabilities. */
template <int V, int VEC>
__global__ void __launch_bounds__(WARPS * 32) router_near_grad(mf_kernel_router_grad a) {
    mf_await();
    const int n = (int)a.experts, k = (int)a.top_k;
    const int64_t r = (int64_t)blockIdx.x * WARPS + (int)threadIdx.x / 32;
    if (r >= a.rows) {
        return;
    }
    float logit[V], p[V], d[V];
    unsigned taken = 0;
    load_row<V, VEC>(logit, a.logits + r * n, n, 0.0f);
    load_row<V, VEC>(d, a.dlogits + r * n, n, 0.0f);
    for (int j = 0; j < k; j++) {
        const int expert = a.index[r * k + j];
        const float part =
            1.0f / near_exps<V, VEC>(logit, a.logits[r * n + expert], taken, a.jitter, n, p);
        const float by = a.scaling * a.dprob[r * k + j] * part;
        const unsigned mine = slot_of<V, VEC>(expert);
        taken |= mine;
#pragma unroll
        for (int i = 0; i < V; i++) {
            d[i] += by * ((mine >> i & 1u ? 1.0f : 0.0f) - p[i] * part);
        }
    }
    store_row<V, VEC>(a.dlogits + r * n, d, n);
}

#endif
