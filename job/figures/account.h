/* account.h - prices the ops of one stage's step one by one and sums them by module, by op and by
 * basis of the price.
 *
 * Unlike the simulation it has no overlap: communication counts in full even where it overlaps with
 * compute, and waiting does not count. It says what the work costs; the simulation says when it is
 * done.
 */
#ifndef MF_JOB_ACCOUNT_H
#define MF_JOB_ACCOUNT_H

#include "core/program/lower.h"
#include "costmodel/cost.h"
#include "simulator/sim.h"

/* An op of some kind, name and pass, over all layers and micro-batches of the step. */
typedef struct mf_account_op {
    const char *name; /* static */
    uint8_t kind, pass, module;
    int64_t count;
    double time_s, limit_s; /* sums */
    double flops, bytes;
    uint8_t basis; /* of the instance that costs most */
    double most_s;
} mf_account_op;

#define MF_ACCOUNT_MAX_OPS 512

typedef struct mf_account {
    int64_t stage;
    double compute_s[MF_MODULE_COUNT];       /* compute stream */
    double communication_s[MF_MODULE_COUNT]; /* collectives, sends, copies */
    double basis_s[MF_BASIS_COUNT];
    double total_s;
    int nops;
    mf_account_op op[MF_ACCOUNT_MAX_OPS]; /* costliest first */
} mf_account;

/* Sums the step of `stage`; routing NULL = balanced (else each layer at its largest load). More
 * than MF_ACCOUNT_MAX_OPS different ops are summed in the totals alone. */
void mf_account_stage(const mf_program *p, const mf_cost *cost, const mf_routing *routing,
                      int64_t stage, mf_account *out);

#endif
