/* exchange.c - reference of what rows say of their choices between ranks. */
#include "kernels/moe/exchange.h"

mf_status mf_kernel_choices_keep_own(const mf_kernel_choices_keep *a, mf_err *e) {
    (void)e;
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t own = a->index[i] - a->first;
        a->index[i] = own >= 0 && own < a->experts ? (int32_t)own : -1;
    }
    return MF_OK;
}

mf_status mf_kernel_choices_of_sent_rows(const mf_kernel_choices_of_rows *a, mf_err *e) {
    const int64_t each = a->experts / a->ranks;
    (void)e;
    for (int64_t row = 0; row < a->ranks * a->rank_rows; row++) {
        const int64_t first = row / a->rank_rows * each;
        a->index[row] = -1;
        for (int64_t x = first; x < first + each; x++) {
            const int64_t within = row - a->offsets[x];
            if (within >= 0 && within < a->counts[x]) {
                a->index[row] = (int32_t)(x - first);
            }
        }
    }
    return MF_OK;
}

mf_status mf_kernel_choices_find_ranks(const mf_kernel_choices_ranks *a, mf_err *e) {
    const int64_t each = a->experts / a->ranks;
    (void)e;
    for (int64_t i = 0; i < a->tokens * a->ranks; i++) {
        const int64_t t = i / a->ranks, r = i % a->ranks;
        a->rank[i] = -1;
        for (int64_t k = 0; k < a->top_k; k++) {
            const int32_t x = a->index[t * a->top_k + k];
            a->rank[i] = x >= 0 && x / each == r ? (int32_t)r : a->rank[i];
        }
    }
    return MF_OK;
}

mf_status mf_kernel_choices_send_copies(const mf_kernel_choices_send *a, mf_err *e) {
    const int64_t each = a->experts / a->ranks;
    (void)e;
    for (int64_t i = 0; i < a->rows * a->top_k; i++) {
        const int64_t slot = a->slot_of_row[i / a->top_k];
        const int64_t t = slot / a->ranks, r = slot % a->ranks, from = t * a->top_k + i % a->top_k;
        const int32_t x = slot >= 0 ? a->index[from] : -1;
        const bool there = x >= 0 && x / each == r;
        a->row_index[i] = there ? (int32_t)(x - r * each) : -1;
        a->row_prob[i] = there ? a->prob[from] : 0.0f;
    }
    return MF_OK;
}

mf_status mf_kernel_choices_return_values(const mf_kernel_choices_return *a, mf_err *e) {
    const int64_t each = a->experts / a->ranks;
    (void)e;
    for (int64_t i = 0; i < a->tokens * a->top_k; i++) {
        const int64_t t = i / a->top_k;
        const int32_t x = a->index[i];
        const int64_t row = x >= 0 ? a->row_of_slot[t * a->ranks + x / each] : -1;
        a->out[i] = row >= 0 ? a->row_value[row * a->top_k + i % a->top_k] : 0.0f;
    }
    return MF_OK;
}
