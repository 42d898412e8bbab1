/* update.c - reference of what comes before an update of the weights. */
#include "kernels/optimizer/update_terms.h"

#include <time.h>

mf_status mf_kernel_update_begin_step(const mf_kernel_update_begin *a, mf_err *e) {
    (void)e;
    bool finite = true;
    for (int64_t i = 0; i < a->also_count; i++) {
        finite = finite && isfinite(a->also_finite[i]);
    }
    mf_update_decide(a, finite);
    return MF_OK;
}

mf_status mf_kernel_progress_tell(const mf_kernel_progress *a, mf_err *e) {
    (void)e;
    *(volatile int32_t *)a->word = a->place;
    return MF_OK;
}

mf_status mf_kernel_work_clock_turn(const mf_kernel_work_clock *a, mf_err *e) {
    struct timespec t;
    (void)e;
    clock_gettime(CLOCK_MONOTONIC, &t);
    mf_update_turn(a, (int64_t)t.tv_sec * 1000000000 + t.tv_nsec);
    return MF_OK;
}
