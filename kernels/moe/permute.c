/* permute.c - reference of the token permutation. */
#include "kernels/moe/permute.h"

#include <assert.h>

/* Slots that one block of the CUDA kernels counts. */
#define SLOTS_PER_BLOCK 1024

size_t mf_kernel_permute_workspace_B(int64_t slots, int64_t experts) {
    int64_t blocks = (slots + SLOTS_PER_BLOCK - 1) / SLOTS_PER_BLOCK;
    return (size_t)(blocks * experts + experts) * sizeof(int32_t);
}

/* First rows of all runs; thousandths of their space that they ask for, of the fullest slot where
 * there are slots. */
static int32_t place_runs(const mf_kernel_permute_map *a) {
    const int64_t each = a->ranks > 0 ? a->experts / a->ranks : a->experts;
    int32_t asked = 0;
    a->offsets[0] = 0;
    for (int64_t x = 0; x < a->experts; x++) {
        int64_t padded = (a->counts[x] + a->align - 1) / a->align * a->align;
        padded = padded > a->least ? padded : a->least;
        a->offsets[x + 1] = a->offsets[x] + (int32_t)padded;
        if (a->ranks > 0 && (x + 1) % each == 0) {
            const int64_t first = x / each * a->rank_rows;
            int32_t slot = mf_kernel_asked(a->offsets[x + 1] - first, a->rank_rows);
            asked = slot > asked ? slot : asked;
            a->offsets[x + 1] = (int32_t)(first + a->rank_rows);
        }
    }
    const int32_t all = mf_kernel_asked(a->offsets[a->experts], a->rows_max);
    return all > asked ? all : asked;
}

/* Rows before this one are those that expert x may have. */
static int64_t end_of(const mf_kernel_permute_map *a, int32_t x) {
    return a->ranks > 0 ? (x / (a->experts / a->ranks) + 1) * a->rank_rows : a->rows_max;
}

mf_status mf_kernel_permute_map_build(const mf_kernel_permute_map *a, mf_err *e) {
    (void)e;
    assert(a->align >= 1 && a->least % a->align == 0);
    assert(a->ranks == 0 || (a->align == 1 && a->least == 0 && a->experts % a->ranks == 0 &&
                             a->ranks * a->rank_rows <= a->rows_max));
    int64_t slots = a->tokens * a->top_k;
    for (int64_t x = 0; x < a->experts; x++) {
        a->counts[x] = 0;
    }
    for (int64_t s = 0; s < slots; s++) {
        assert(a->index[s] >= -1 && a->index[s] < a->experts);
        if (a->index[s] >= 0) {
            a->counts[a->index[s]]++;
        }
    }
    const int32_t asked = place_runs(a);
    *a->overflow = asked > MF_KERNEL_ALL_SPACE;
    if (a->sticky && *a->overflow && asked > *a->sticky) {
        *a->sticky = asked;
    }
    for (int64_t r = 0; r < a->rows_max; r++) {
        a->slot_of_row[r] = -1;
    }
    /* counts[] runs as the cursor of each expert and ends as it began. */
    for (int64_t x = 0; x < a->experts; x++) {
        a->counts[x] = 0;
    }
    for (int64_t s = 0; s < slots; s++) {
        int32_t x = a->index[s];
        a->row_of_slot[s] = -1;
        if (x < 0) {
            continue;
        }
        int32_t row = a->offsets[x] + a->counts[x]++;
        if (row < end_of(a, x)) {
            a->row_of_slot[s] = row;
            a->slot_of_row[row] = (int32_t)s;
        }
    }
    return MF_OK;
}

mf_status mf_kernel_permute_forward(const mf_kernel_permute *a, mf_err *e) {
    (void)e;
    int64_t rows = mf_kernel_rows(a->rows, a->rows_dev);
    for (int64_t r = 0; r < rows; r++) {
        int64_t slot = a->slot_of_row[r];
        int64_t token = slot < 0 ? 0 : slot / a->top_k;
        float w = slot < 0 ? 0.0f : a->weight ? a->weight[slot] : 1.0f;
        for (int64_t c = 0; c < a->cols; c++) {
            float x = slot < 0 ? 0.0f : mf_kernel_get(a->x, a->dtype, token * a->cols + c);
            mf_kernel_put(a->out, a->dtype, r * a->cols + c, w * x);
        }
    }
    return MF_OK;
}

mf_status mf_kernel_unpermute_forward(const mf_kernel_unpermute *a, mf_err *e) {
    (void)e;
    for (int64_t t = 0; t < a->tokens; t++) {
        for (int64_t c = 0; c < a->cols; c++) {
            float sum = a->add ? mf_kernel_get(a->add, a->dtype, t * a->cols + c) : 0.0f;
            for (int64_t j = 0; j < a->top_k; j++) {
                int64_t slot = t * a->top_k + j, row = a->row_of_slot[slot];
                if (row >= 0) {
                    sum += (a->weight ? a->weight[slot] : 1.0f) *
                           mf_kernel_get(a->in, a->dtype, row * a->cols + c);
                }
            }
            mf_kernel_put(a->y, a->dtype, t * a->cols + c, sum);
        }
    }
    return MF_OK;
}

mf_status mf_kernel_unpermute_weight_grad(const mf_kernel_unpermute_dweight *a, mf_err *e) {
    (void)e;
    for (int64_t s = 0; s < a->tokens * a->top_k; s++) {
        int64_t row = a->row_of_slot[s], t = s / a->top_k;
        double dot = 0.0;
        for (int64_t c = 0; row >= 0 && c < a->cols; c++) {
            dot += (double)mf_kernel_get(a->dy, a->dtype, t * a->cols + c) *
                   (double)mf_kernel_get(a->in, a->dtype, row * a->cols + c);
        }
        a->dweight[s] = (float)dot;
    }
    return MF_OK;
}

mf_status mf_kernel_permute_scalars(const mf_kernel_permute_scalar *a, mf_err *e) {
    (void)e;
    int64_t rows = mf_kernel_rows(a->rows, a->rows_dev);
    for (int64_t r = 0; r < rows; r++) {
        a->out[r] = a->map[r] < 0 ? 0.0f : a->src[a->map[r]];
    }
    return MF_OK;
}

mf_status mf_kernel_permute_regroup(const mf_kernel_regroup *a, mf_err *e) {
    (void)e;
    for (int64_t r = 0; r < a->rows_max; r++) {
        a->from[r] = -1;
        a->to[r] = -1;
    }
    int64_t row = 0;
    for (int64_t x = 0; x < a->experts; x++) {
        a->offsets[x] = (int32_t)row;
        for (int64_t s = 0; s < a->sources; s++) {
            int64_t old = 0;
            for (int64_t i = 0; i < s * a->experts + x; i++) {
                old += a->counts[i];
            }
            for (int64_t i = 0; i < a->counts[s * a->experts + x]; i++, row++, old++) {
                if (row < a->rows_max && old < a->rows_max) {
                    a->from[row] = (int32_t)old;
                    a->to[old] = (int32_t)row;
                }
            }
        }
    }
    a->offsets[a->experts] = (int32_t)row;
    *a->overflow = row > a->rows_max;
    return MF_OK;
}
