/* pairing.h - which blocks of a merged event run side by side.
 *
 * A merged event runs the forward blocks of one chunk (in order) beside the backward blocks of
 * another (from the last); the two of a pair take turns so that one computes while the other
 * exchanges tokens. It pays to pair blocks that exchange with blocks that exchange; a block that
 * does not exchange hides little of another's exchange, and two that do not hide nothing. So the
 * two rows are aligned, order kept, such that most such pairs come about; of equal alignments, the
 * one that pairs early. Memory plan, simulator, planner and executor all follow this one order.
 */
#ifndef MF_CORE_PAIRING_H
#define MF_CORE_PAIRING_H

#include "core/program/lower.h"

/* One step: block f of the forward row, block b of the backward row (0 is the chunk's last), both,
 * or one alone (the other is -1). */
typedef struct mf_pairing_step {
    int16_t f, b;
} mf_pairing_step;

typedef struct mf_pairing {
    int count;
    mf_pairing_step *step;
    int longest;
    int *worth; /* scratch */
} mf_pairing;

/* Allocates for chunks of at most `longest` blocks. Errors: MF_NOMEM. */
mf_status mf_pairing_init(mf_pairing *x, int longest, mf_err *e);
void mf_pairing_clear(mf_pairing *x);

/* Blocks of the longest virtual stage; first[vstages + 1]: as in mf_assignment. */
int mf_pairing_longest(const int *first, int vstages);

/* Does this position send tokens to experts on other ranks? */
bool mf_position_exchanges(const mf_model *m, const mf_layout *l, int position);

/* Steps of virtual stage vf's forward beside vb's backward. Allocates nothing. */
void mf_pairing_make(mf_pairing *x, const mf_model *m, const mf_layout *l, const int *first,
                     int64_t vf, int64_t vb);

/* Steps of one pass alone. */
void mf_pairing_alone(mf_pairing *x, bool backward, int blocks);

#endif
