/* attention_packing.cu - where packed sequences begin, from their first rows. */
#include "kernels/attention/attention_cuda.h"
#include "kernels/device/cuda_common.cuh"

static __global__ void packing(const int32_t *cu, int batch, int64_t step, int q_row, int k_row,
                               int v_row, int o_row, int32_t *out) {
    for (int i = (int)threadIdx.x; i <= batch; i += (int)blockDim.x) {
        const int32_t row = cu[i];
        if (i < batch) {
            out[i] = cu[i + 1] - row;
        }
        out[step + i] = row * q_row;
        out[2 * step + i] = row * k_row;
        out[3 * step + i] = row * v_row;
        out[4 * step + i] = row * o_row;
    }
}

extern "C" mf_status mf_attention_packing_cuda(const mf_attention_cuda_shape *s, const int32_t *cu,
                                               int32_t *out, void *stream, mf_err *e) {
    const int64_t step = (int64_t)(mf_attention_packing_B(s->batch) / sizeof(int32_t)) / 5;
    packing<<<1, 256, 0, (cudaStream_t)stream>>>(cu, (int)s->batch, step, (int)s->q.row,
                                                 (int)s->k.row, (int)s->v.row, (int)s->o.row, out);
    MF_KERNEL_LAUNCHED(e);
    return MF_OK;
}
