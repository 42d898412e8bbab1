/* arrange.h - addresses for things that come and go at known times.
 *
 * Much of a step repeats: the blocks of the next micro-batch need what those of the last one did,
 * one place further round. So things that stay are first put into *slots* that they take turns in
 * (as many as stand at once, which is exact for equal sizes), and things that are only at work for
 * a moment, and always beside the same slots, share one place. What remains, a few hundred nodes at
 * most, however many micro-batches there are, is packed by first fit in several orders.
 */
#ifndef MF_CORE_ARRANGE_H
#define MF_CORE_ARRANGE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Stands during steps [first, last]: parts that may stand apart, each its size. Things of a group
 * are alike in size and parts; transient ones of a group never stand at the same time. */
typedef struct mf_lifetime {
    int64_t first, last, size;
    const int64_t *part; /* [parts] sizes, their sum is size; NULL: one part */
    int parts;
    int32_t group;
    int32_t turn; /* of things that are not transient: which of its group, in order of birth */
    bool transient;
    int64_t *out; /* [parts] gets their places, bytes from the start; may be NULL */
} mf_lifetime;

typedef struct mf_lifetimes {
    int count, allocated;
    mf_lifetime *list;
    bool failed; /* no memory */
} mf_lifetimes;

/* Adds one, unless it is empty. */
void mf_lifetimes_add(mf_lifetimes *x, mf_lifetime one);
void mf_lifetimes_clear(mf_lifetimes *x);

/* Writes a place for each, such that things that stand at the same time do not overlap. *size_B:
 * the end of the highest; *bound_B: most that stands at once, which no arrangement can undercut.
 * alone: things may also be arranged one by one, which costs more and does not repeat. Sorts the
 * list. The same for equal lists. Errors: MF_NOMEM. */
mf_status mf_arrange(mf_lifetimes *x, bool alone, int64_t *size_B, int64_t *bound_B, mf_err *e);
/* The same until gaps of so many bytes are met: what needs more is what mf_arrange finds. */
mf_status mf_arrange_within(mf_lifetimes *x, bool alone, int64_t gaps_B, int64_t *size_B,
                            int64_t *bound_B, mf_err *e);

#endif
