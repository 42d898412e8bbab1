/* swiglu_value.cuh - one element of the gated activation on a GPU: the same bits wherever it is
 * found, in a pass of its own (swiglu.cu) or behind the product (grouped_gemm). */
#ifndef MF_KERNELS_SWIGLU_VALUE_CUH
#define MF_KERNELS_SWIGLU_VALUE_CUH

#include "kernels/device/cuda_common.cuh"

/* silu(gate) * up. T: what gate and up were read as. */
template <typename T> __device__ inline float mf_swiglu_value(float gate, float up) {
    return gate * mf_sigmoid<T>(gate) * up;
}

/* It, and its derivatives. */
typedef struct mf_swiglu_slopes {
    float y, d_gate, d_up;
} mf_swiglu_slopes;

template <typename T> __device__ inline mf_swiglu_slopes mf_swiglu_slopes_of(float gate, float up) {
    const float sig = mf_sigmoid<T>(gate);
    mf_swiglu_slopes out;
    out.d_up = gate * sig;
    out.y = out.d_up * up;
    out.d_gate = sig * __fmaf_rn(gate, 1.0f - sig, 1.0f) * up;
    return out;
}

#endif
