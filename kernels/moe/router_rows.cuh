/* router_rows.cuh - a row of expert values over the lanes of a warp, for the router's kernels.
 *
 * A lane holds V values: runs of VEC experts side by side (4 where rows are whole vectors of 16
 * bytes, else 1), the next run 32 lanes further on. V * 32 >= experts.
 */
#ifndef MF_KERNELS_ROUTER_ROWS_CUH
#define MF_KERNELS_ROUTER_ROWS_CUH

#include "kernels/device/cuda_common.cuh"
#include "kernels/moe/router.h"

#define WARPS 8 /* of a block; a row each */

/* The expert in slot i of this lane. */
template <int VEC> __device__ static inline int expert_of(int i) {
    const int lane = (int)threadIdx.x % 32;
    return VEC == 1 ? lane + 32 * i : i / VEC * (32 * VEC) + lane * VEC + i % VEC;
}

/* Slots past the experts get `none`. */
template <int V, int VEC>
__device__ static inline void load_row(float (&x)[V], const float *row, int experts, float none) {
#pragma unroll
    for (int i = 0; i < V; i += VEC) {
        const int e = expert_of<VEC>(i);
        if constexpr (VEC == 4) {
            const float4 v = e < experts ? *reinterpret_cast<const float4 *>(row + e)
                                         : make_float4(none, none, none, none);
            x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
        } else {
            x[i] = e < experts ? row[e] : none;
        }
    }
}

template <int V, int VEC>
__device__ static inline void store_row(float *row, const float (&x)[V], int experts) {
#pragma unroll
    for (int i = 0; i < V; i += VEC) {
        const int e = expert_of<VEC>(i);
        if (e < experts) {
            if constexpr (VEC == 4) {
                *reinterpret_cast<float4 *>(row + e) =
                    make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
            } else {
                row[e] = x[i];
            }
        }
    }
}

static inline mf_status mf_router_check_sizes(int64_t experts, int64_t top_k, mf_err *e) {
    if (experts > MF_ROUTE_MAX_EXPERTS || top_k > MF_ROUTE_MAX_TOPK) {
        return mf_err_set(e, MF_INPUT, "router: %lld experts, top-%lld are more than %d, %d",
                          (long long)experts, (long long)top_k, MF_ROUTE_MAX_EXPERTS,
                          MF_ROUTE_MAX_TOPK);
    }
    return MF_OK;
}

/* Calls launch(V, VEC) for the slots a lane needs; whole: rows are vectors of 16 bytes. */
#define FOR_WIDTH(experts, whole, launch)                                                          \
    if ((experts) <= 32) {                                                                         \
        launch(1, 1);                                                                              \
    } else if ((experts) <= 64) {                                                                  \
        launch(2, 1);                                                                              \
    } else if ((experts) <= 128) {                                                                 \
        FOR_VECTORS(4, whole, launch)                                                              \
    } else if ((experts) <= 256) {                                                                 \
        FOR_VECTORS(8, whole, launch)                                                              \
    } else {                                                                                       \
        FOR_VECTORS(16, whole, launch)                                                             \
    }
#define FOR_VECTORS(V, whole, launch)                                                              \
    if (whole) {                                                                                   \
        launch(V, 4);                                                                              \
    } else {                                                                                       \
        launch(V, 1);                                                                              \
    }

#endif
