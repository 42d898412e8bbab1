/* rope_split.cu - split and join on the GPU: the moves of heads in rope_heads.cu. */
#include "kernels/attention/rope_split.h"

extern "C" mf_status mf_kernel_rope_split_run_cuda(const mf_kernel_rope_split *a, void *stream,
                                                   mf_err *e) {
    const mf_kernel_rope_heads heads = mf_kernel_rope_split_heads(a);
    return mf_kernel_rope_heads_move_cuda(&heads, stream, e);
}

extern "C" mf_status mf_kernel_rope_join_run_cuda(const mf_kernel_rope_join *a, void *stream,
                                                  mf_err *e) {
    const mf_kernel_rope_heads heads = mf_kernel_rope_join_heads(a);
    return mf_kernel_rope_heads_move_cuda(&heads, stream, e);
}
