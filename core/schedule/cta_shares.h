/* cta_shares.h - how a GPU's multiprocessors are shared among kernels that wait for other ranks.
 * Each of a rank's queues may be at a collective of its own that waits, beside the messages of all
 * slots and one that is received: all of their kernels need room on the GPU at once
 * (executor/step/streams.c). NCCL's thread blocks take a multiprocessor each. */
#ifndef MF_CORE_CTA_SHARES_H
#define MF_CORE_CTA_SHARES_H

#include "core/layout/layout.h"

enum {
    /* Thread blocks of a message's kernel: those of all slots may wait at once beside a rank's
       work. */
    MF_MESSAGE_CTAS = 8,
    /* What NCCL takes at most for a collective by itself. */
    MF_NCCL_TAKES_CTAS = 32
};

typedef struct mf_cta_shares {
    int free;  /* multiprocessors that messages leave */
    int kinds; /* of collectives that may wait at once; EP's are one of them */
    int each;  /* thread blocks of one of them, at most what NCCL takes */
} mf_cta_shares;

/* Of a GPU of so many multiprocessors. */
mf_cta_shares mf_cta_shares_of(const mf_layout *l, int64_t sms);

#endif
