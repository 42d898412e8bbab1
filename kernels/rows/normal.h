/* normal.h - initial weights: normal numbers that depend on a key and their place alone, the same
 * bits on every device. */
#ifndef MF_KERNEL_NORMAL_H
#define MF_KERNEL_NORMAL_H

#include "kernels/kernel.h"

/* A block of `rows` x `cols` of a tensor whose rows are `width` wide, at (at_row, at_col) there;
 * its first element is number (row, col) of what the key names. Of the tensor, `w` holds elements
 * [first, first + count); others of the block are left out. */
typedef struct mf_kernel_normal {
    float *w; /* [count] */
    int64_t first, count, width;
    int64_t at_row, at_col, rows, cols;
    uint64_t key;
    int64_t row, col; /* col < 2^24 */
    double deviation;
} mf_kernel_normal;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_normal_values(const mf_kernel_normal *a, mf_err *e);
mf_status mf_kernel_normal_values_cuda(const mf_kernel_normal *a, void *stream, mf_err *e);
MF_KERNEL_C_END
#endif
