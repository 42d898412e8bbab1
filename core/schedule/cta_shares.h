/* cta_shares.h - shares a GPU's multiprocessors among kernels that wait for other ranks. Each of a
 * rank's queues may be at a collective that waits, while messages of all slots and one receive
 * wait, too: all these kernels must be resident on the GPU together (executor/step/streams.c). Each
 * of NCCL's thread blocks takes a multiprocessor. */
#ifndef MF_CORE_CTA_SHARES_H
#define MF_CORE_CTA_SHARES_H

#include "core/layout/layout.h"

enum {
    /* Thread blocks of a message's kernel; those of all slots may wait during a rank's work. */
    MF_MESSAGE_CTAS = 8,
    /* The most that NCCL takes for a collective on its own. */
    MF_NCCL_TAKES_CTAS = 32
};

typedef struct mf_cta_shares {
    int free;  /* multiprocessors not used by messages */
    int kinds; /* collectives that may wait at the same time; EP's are one of them */
    int each;  /* thread blocks of each, at most what NCCL takes */
} mf_cta_shares;

/* The shares of a GPU with `sms` multiprocessors. */
mf_cta_shares mf_cta_shares_of(const mf_layout *l, int64_t sms);

#endif
