/* op_price.h - one op alone: its time, its bus bandwidth and its energy. */
#ifndef MF_JOB_OP_PRICE_H
#define MF_JOB_OP_PRICE_H

#include "costmodel/cost.h"

typedef struct mf_op_priced {
    char key[256]; /* as the profile store spells the op, canonical */
    mf_op what;
    mf_price price;
    double busbw_Bps;             /* 0 where nccl-tests defines none */
    double sustained_s, energy_J; /* run after run under the power cap; 0 for collectives */
} mf_op_priced;

/* Prices the op that word[0] names, with its dims in the other words ("m=4096"; their keys and
 * defaults: profiles/ops_table.h). A collective whose ranks do not fit on one host spans as few
 * hosts as hold them, unless a word says how many. Bus bandwidth is counted as nccl-tests does.
 * Errors: MF_USAGE for words that are too long or a collective that its hosts cannot hold;
 * MF_LAYOUT for scales that the GPU's products do not take; those of mf_cost_price_text.
 * Thread-safe. */
mf_status mf_op_price(const mf_cost *cost, const char *const *word, int words, mf_op_priced *out,
                      mf_err *e);

#endif
