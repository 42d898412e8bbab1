/* normal.c - reference of initial weights. */
#include "kernels/rows/normal.h"

#include "kernels/rows/normal_value.h"

mf_status mf_kernel_normal_values(const mf_kernel_normal *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows; r++) {
        const int64_t row = (a->at_row + r) * a->width + a->at_col - a->first;
        const int64_t from = row < 0 ? -row : 0;
        const int64_t to = a->count - row < a->cols ? a->count - row : a->cols;
        for (int64_t c = from; c < to; c++) {
            const int64_t element = ((a->row + r) << 24) + a->col + c;
            a->w[row + c] = (float)(a->deviation * mf_normal_at(a->key, element));
        }
    }
    return MF_OK;
}
