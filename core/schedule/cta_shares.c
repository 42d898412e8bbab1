/* cta_shares.c - thread blocks of kernels that wait for other ranks. */
#include "core/schedule/cta_shares.h"

#include "core/schedule/schedule.h"

mf_cta_shares mf_cta_shares_of(const mf_layout *l, int64_t sms) {
    const int kinds =
        (l->tp > 1) + (l->cp > 1) + (l->ep * l->etp > 1) + (l->dp * l->cp > 1) + (l->edp > 1);
    const int sends = 2 * mf_schedule_sending(l), messages = sends > 0 ? sends + 1 : 0;
    const int left = (int)sms - messages * MF_MESSAGE_CTAS, most = left / (kinds > 0 ? kinds : 1);
    return (mf_cta_shares){.free = left,
                           .kinds = kinds,
                           .each =
                               most > 0 && most < MF_NCCL_TAKES_CTAS ? most : MF_NCCL_TAKES_CTAS};
}
