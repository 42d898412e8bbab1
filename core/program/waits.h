/* waits.h - which ops of a block have ended before another begins. An op waits for the op before it
 * on its stream, for the ops that wrote its inputs last (where those are split the same way, for
 * the same piece), and for the ops that wrote an output that it adds to. Ops of one stream end in
 * their order, so one number per stream says it all. */
#ifndef MF_CORE_WAITS_H
#define MF_CORE_WAITS_H

#include "core/program/program.h"

/* Of each stream the last op that has ended, by its number in the block; -1: none. */
typedef struct mf_ended {
    int16_t op[MF_STREAM_COUNT];
} mf_ended;

typedef struct mf_waits {
    const mf_block *b;
    unsigned passes;
    int first, end;  /* range of the passes' ops; ops of other passes may be among them */
    mf_ended *at;    /* [end - first] before each op begins; filled by mf_waits_add */
    int16_t *writer; /* [tensors] the last op so far that wrote it; -1 */
    int16_t *before; /* [end - first] the piece before, of what an op writes; -1 */
    int16_t last[MF_STREAM_COUNT]; /* op of each stream so far; -1 */
} mf_waits;

/* Ready for the first op. Errors: MF_NOMEM, after which there is nothing to clear. */
mf_status mf_waits_open(mf_waits *w, const mf_block *b, unsigned passes);
void mf_waits_clear(mf_waits *w);

static inline bool mf_waits_plays(const mf_waits *w, int i) {
    return (w->b->ops[i].pass & w->passes) != 0;
}

/* What has ended before op i of the passes begins. Call it for the ops in their order, one time
 * each. */
void mf_waits_add(mf_waits *w, int i);

/* Op i, added last, waits for op `before` as well. */
void mf_waits_for(mf_waits *w, int i, int before);

/* True when op `before` has ended before op i, already added, begins. */
static inline bool mf_waits_ended(const mf_waits *w, int i, int before) {
    return w->at[i - w->first].op[w->b->ops[before].stream] >= before;
}

#endif
