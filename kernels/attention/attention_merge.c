/* attention_merge.c - reference of the merge of partial attention. */
#include "kernels/attention/attention_merge.h"

#include <math.h>

mf_status mf_kernel_attention_merge_run(const mf_kernel_attention_merge *a, mf_err *e) {
    (void)e;
    for (int64_t h = 0; h < a->heads; h++) {
        for (int64_t r = 0; r < a->rows; r++) {
            float *lse = &a->lse[h * a->rows + r], lse2 = a->lse2[h * a->rows + r];
            float high = fmaxf(*lse, lse2);
            if (isinf(high)) {
                continue;
            }
            float sum = high + logf(expf(*lse - high) + expf(lse2 - high));
            float w1 = expf(*lse - sum), w2 = expf(lse2 - sum);
            int64_t base = r * a->o_row + h * a->o_head;
            for (int64_t c = base; c < base + a->v_dim; c++) {
                mf_kernel_put(a->o, a->o_dtype, c,
                              w1 * mf_kernel_get(a->o, a->o_dtype, c) +
                                  w2 * mf_kernel_get(a->o2, a->o2_dtype, c));
            }
            *lse = sum;
        }
    }
    return MF_OK;
}
