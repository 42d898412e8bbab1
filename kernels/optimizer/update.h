/* update.h - what an update of the weights needs to know of its step, kept where the kernels run:
 * a step that was captured once replays with other values, and no value comes back to the host.
 *
 * The caller sets lr before a step (and the others once: step to that of the checkpoint, the rest
 * to 0). When the gradients' squares are summed over ranks, mf_kernel_update_begin_step decides
 * whether the update takes place and sets what it needs; mf_kernel_adamw_update and
 * mf_kernel_router_bias_update read it. After the step the caller reads what happened.
 */
#ifndef MF_KERNELS_UPDATE_H
#define MF_KERNELS_UPDATE_H

#include "kernels/kernel.h"

typedef struct mf_kernel_update_state {
    int64_t step;      /* updates made, this one included */
    int64_t skipped;   /* updates left out */
    int32_t skip;      /* this update is left out: 1, else 0 */
    int32_t overflow;  /* not 0: some rows had no place (the `sticky` word of the permute maps); set
                          by others, and stays: a step behind one that has to be run again makes no
                          update, either */
    float lr;          /* set by the caller */
    float limit;       /* likewise: of the first of the sums beside the norm; 0: none */
    float clip;        /* factor of the gradient clipping */
    float norm;        /* of the gradients, before clipping */
    float rate;        /* lr / (1 - beta1^step) */
    float root;        /* 1 / sqrt(1 - beta2^step) */
    int64_t began_ns;  /* when work was begun last, by the clock of where the kernels run */
    int64_t worked_ns; /* all in all, from there to where it paused: mf_kernel_work_clock_turn */
} mf_kernel_update_state;

/* norm and clip become what mf_kernel_grad_clip_factor makes of sum_sq. The update is left out when
 * the norm or one of the other sums is no finite number, the first of these is above the limit, or
 * rows overflowed: then skip = 1, skipped grows, and step, rate and root stay. Else skip = 0, step
 * grows, and rate and root are those of the new step, which is what mf_kernel_adamw_update computes
 * of lr and step given by value. */
typedef struct mf_kernel_update_begin {
    const double *sum_sq;      /* [1] squares of all gradients */
    const double *also_finite; /* [also_count] sums that must be finite, too, such as losses */
    int64_t also_count;        /* 0: none */
    float max_norm;            /* <= 0: do not clip */
    float grad_scale, beta1, beta2;
    mf_kernel_update_state *state;
} mf_kernel_update_begin;

/* Work that is timed begins where the queue has come to, or pauses there: what stands between the
 * two is added to worked_ns, and to *span_ns of the pause. Then the
 * word that the host watches becomes `place`. */
typedef struct mf_kernel_work_clock {
    bool begins;
    mf_kernel_update_state *state;
    int64_t *span_ns;
    int32_t *word; /* mf_kernel_progress; NULL: nothing is reported to the host */
    int32_t place;
} mf_kernel_work_clock;

/* Tells the host how far the queue has come: what is in front of it has ended. A kernel writes the
 * word, since the copy engine would take ten times as long to begin. */
typedef struct mf_kernel_progress {
    int32_t *word; /* in the host's memory, which the device can write to */
    int32_t place;
} mf_kernel_progress;

MF_KERNEL_C_BEGIN
mf_status mf_kernel_progress_tell(const mf_kernel_progress *a, mf_err *e);
mf_status mf_kernel_progress_tell_cuda(const mf_kernel_progress *a, void *stream, mf_err *e);
mf_status mf_kernel_work_clock_turn(const mf_kernel_work_clock *a, mf_err *e);
mf_status mf_kernel_work_clock_turn_cuda(const mf_kernel_work_clock *a, void *stream, mf_err *e);
mf_status mf_kernel_update_begin_step(const mf_kernel_update_begin *a, mf_err *e);
mf_status mf_kernel_update_begin_step_cuda(const mf_kernel_update_begin *a, void *stream,
                                           mf_err *e);
MF_KERNEL_C_END
#endif
