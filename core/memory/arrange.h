/* arrange.h - gives addresses to tensors whose lifetimes are known.
 *
 * Much of a step repeats: the blocks of each micro-batch need the same tensors as those of the one
 * before. So tensors that outlive an op are first put into *slots* that they use in turn (as many
 * slots as tensors are alive together, which is exact for equal sizes), and transient tensors that
 * always coexist with the same slots have one place. That leaves at most a few hundred nodes,
 * however many micro-batches there are, and these are packed by first fit in several orders.
 */
#ifndef MF_CORE_ARRANGE_H
#define MF_CORE_ARRANGE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* A thing (a tensor) that is alive during steps [first, last]. Its parts may have separate places.
 * Things of a group have the same size and parts; transient ones of a group are never alive at the
 * same time. */
typedef struct mf_lifetime {
    int64_t first, last, size;
    const int64_t *part; /* [parts] sizes, their sum is size; NULL: one part */
    int parts;
    int32_t group;
    int32_t turn; /* of things that are not transient: which of its group, in order of birth */
    bool transient;
    int64_t *out; /* [parts] receives their places in bytes from the start; may be NULL */
} mf_lifetime;

typedef struct mf_lifetimes {
    int count, allocated;
    mf_lifetime *list;
    bool failed;   /* no memory */
    int64_t looks; /* at pairs of things, which its arrangement took so far, about */
} mf_lifetimes;

/* Adds a lifetime, unless its size is 0. */
void mf_lifetimes_add(mf_lifetimes *x, mf_lifetime one);
void mf_lifetimes_clear(mf_lifetimes *x);

/* Writes a place for each thing, so that things alive at the same time do not overlap. *size_B: the
 * end of the highest; *bound_B: the most bytes alive together, a lower bound for every arrangement.
 * alone: things may also be arranged one by one, which costs more time. Sorts the list. Equal lists
 * give equal places. Errors: MF_NOMEM. */
mf_status mf_arrange(mf_lifetimes *x, bool alone, int64_t *size_B, int64_t *bound_B, mf_err *e);
/* The same, but stops at the first arrangement with gaps of at most gaps_B bytes; without one it is
 * the result of mf_arrange. */
mf_status mf_arrange_within(mf_lifetimes *x, bool alone, int64_t gaps_B, int64_t *size_B,
                            int64_t *bound_B, mf_err *e);

#endif
