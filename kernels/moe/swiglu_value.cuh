/* swiglu_value.cuh - one element of the gated activation on a GPU: the same bits wherever it is
 * found, in a pass of its own (swiglu.cu) or behind the product (grouped_gemm). */
#ifndef MF_KERNELS_SWIGLU_VALUE_CUH
#define MF_KERNELS_SWIGLU_VALUE_CUH

#include "kernels/device/cuda_common.cuh"

/* silu(gate) * up. T: what gate and up were read as. */
template <typename T> __device__ inline float mf_swiglu_value(float gate, float up) {
    return gate * mf_sigmoid<T>(gate) * up;
}

#endif
