/* update_terms.h - the few numbers of an update that are computed once a step, in double: one text
 * for host and device, every operation of which is rounded by itself on both, so that they agree.
 */
#ifndef MF_KERNELS_UPDATE_TERMS_H
#define MF_KERNELS_UPDATE_TERMS_H

#include "kernels/optimizer/update.h"

#include <math.h>

#ifdef __CUDACC__
#define MF_UPDATE_INLINE static __host__ __device__ __forceinline__
#else
#define MF_UPDATE_INLINE static inline
#endif

/* a + b, never fused with what made a or b. */
MF_UPDATE_INLINE double mf_update_add(double a, double b) {
#ifdef __CUDA_ARCH__
    return __dadd_rn(a, b);
#else
    return a + b;
#endif
}

/* 1 - beta^step: what the moments lack after `step` steps from zero. */
MF_UPDATE_INLINE double mf_update_lack(float beta, int64_t step) {
    return mf_update_add(1.0, -pow((double)beta, (double)step));
}

/* lr / (1 - beta1^step) */
MF_UPDATE_INLINE float mf_update_rate(float lr, float beta1, int64_t step) {
    return (float)((double)lr / mf_update_lack(beta1, step));
}

/* 1 / sqrt(1 - beta2^step) */
MF_UPDATE_INLINE float mf_update_root(float beta2, int64_t step) {
    return (float)(1.0 / sqrt(mf_update_lack(beta2, step)));
}

/* Norm of the gradients and the factor that clips them. */
MF_UPDATE_INLINE void mf_update_clip(double sum_sq, float grad_scale, float max_norm, float *norm,
                                     float *clip) {
    const double length = sqrt(sum_sq) * (double)grad_scale;
    const double factor = max_norm > 0.0f ? (double)max_norm / mf_update_add(length, 1e-6) : 1.0;
    *norm = (float)length;
    *clip = factor < 1.0 ? (float)factor : 1.0f;
}

/* now_ns: of one clock, which only grows. */
MF_UPDATE_INLINE void mf_update_turn(const mf_kernel_work_clock *a, int64_t now_ns) {
    if (a->begins) {
        a->state->began_ns = now_ns;
    } else {
        a->state->worked_ns += now_ns - a->state->began_ns;
        *a->span_ns += now_ns - a->state->began_ns;
    }
    if (a->word != NULL) {
        *(volatile int32_t *)a->word = a->place;
    }
}

/* finite: whether all sums beside the norm are. */
MF_UPDATE_INLINE void mf_update_decide(const mf_kernel_update_begin *a, bool finite) {
    mf_kernel_update_state *s = a->state;
    mf_update_clip(*a->sum_sq, a->grad_scale, a->max_norm, &s->norm, &s->clip);
    const bool above = s->limit > 0.0f && a->also_count > 0 && *a->also_finite > (double)s->limit;
    s->skip = !finite || !isfinite(s->norm) || above || s->overflow != 0;
    if (s->skip) {
        s->skipped++;
        return;
    }
    s->step++;
    s->rate = mf_update_rate(s->lr, a->beta1, s->step);
    s->root = mf_update_root(a->beta2, s->step);
}

#endif
