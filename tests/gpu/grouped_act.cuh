/* grouped_act.cuh - the activation of a gated expert product as the pass of its own that a program
 * without the fused one has: what the fused kernel is held against. */
#ifndef MF_TESTS_GROUPED_ACT_CUH
#define MF_TESTS_GROUPED_ACT_CUH

#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/moe/swiglu.h"

#include <string.h>

/* Of g's out, into g's act. */
static inline mf_kernel_swiglu activation_of(const mf_kernel_grouped_gemm &g) {
    mf_kernel_swiglu a;
    memset(&a, 0, sizeof a);
    a.shape.dtype = MF_KERNEL_BF16;
    a.shape.kind = MF_SWIGLU_SILU;
    a.shape.rows = g.rows;
    a.shape.cols = g.n / 2;
    a.shape.rows_dev = &g.offsets[g.experts];
    a.shape.prob = g.prob;
    a.gate_up = g.out;
    a.y = g.act;
    return a;
}

#endif
