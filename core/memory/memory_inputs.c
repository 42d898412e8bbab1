/* memory_inputs.c - sizes of what ops need beside tensors. */
#include "core/memory/memory_inputs.h"

#include <string.h>

static int64_t place(mf_inputs *x, int64_t size_B) {
    int64_t at = x->size_B;
    x->size_B += mf_align_B(size_B);
    return at;
}

void mf_memory_inputs(const mf_model *m, const mf_layout *l, mf_inputs *out) {
    mf_inputs *x = out;
    mf_rope_table tables[MF_MODEL_MAX_CLASSES];
    const int count = mf_model_rope_tables(m, tables);
    int64_t rows = l->mbs * (l->seq / l->cp), positions = mf_model_positions(m);
    *x = (mf_inputs){.size_B = 0};
    for (int side = 0; side < (mf_layout_merges(l) ? 2 : 1); side++) {
        x->rows[side] = place(x, 4 * 2 * rows * (m->mtp_layers + 1));
    }
    x->positions = place(x, 4 * rows);
    x->cu = place(x, 4 * (l->mbs + 1));
    x->full_cu = place(x, 4 * (l->mbs + 1));
    x->near_cu = place(x, 4 * (l->mbs + 1));
    x->ring_position = place(x, 4 * rows * l->cp);
    x->full_position = place(x, 4 * rows * l->cp);
    x->near_position = place(x, 4 * rows * l->cp);
    x->sample = place(x, 4 * rows);
    x->place = place(x, 4 * rows * l->cp);
    x->place_sample = place(x, 4 * rows * l->cp);
    x->rope = place(x, 4 * l->seq * m->head_dim * (count > 1 ? count : 1));
    x->sums = place(x, 8 * (MF_STEP_SUMS + positions));
    x->update = place(x, MF_UPDATE_B);
    x->loads = place(x, 4 * positions * m->experts);
    x->report_B = x->size_B - x->sums;
    x->corrections = place(x, 4 * positions * m->experts);
    x->experts_of_token = place(x, 4 * mf_model_hashed_layers(m) * m->vocab * m->top_k);
}
