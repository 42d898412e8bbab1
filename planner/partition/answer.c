/* answer.c - answers of the partition problem: counts by cell, written out as assignments. */
#include "planner/partition/partition.h"

#include <stdlib.h>
#include <string.h>

/* --- answers ---------------------------------------------------------------------------------- */

size_t mf_partition_cells(const mf_partition *in) {
    return (size_t)in->vstages * (size_t)in->slots * MF_CATALOGUE_MAX;
}

size_t mf_partition_cell(const mf_partition *in, int v, int slot, int m) {
    return ((size_t)v * (size_t)in->slots + (size_t)slot) * MF_CATALOGUE_MAX + (size_t)m;
}

const mf_partition_class *mf_partition_class_at(const mf_partition *in, int v, int slot) {
    return &in->class[in->slot[slot].class_of[in->variant[v]]];
}

int mf_partition_choice_of(const mf_partition_class *c, mf_memory_choice memory) {
    for (int m = 0; m < c->choices; m++) {
        if (c->choice[m].memory.recompute == memory.recompute &&
            c->choice[m].memory.offload == memory.offload) {
            return m;
        }
    }
    return -1;
}

bool mf_partition_stands_before(const mf_partition_class *c, int m, int other) {
    const mf_partition_choice *a = &c->choice[m], *b = &c->choice[other];
    const double a_s = mf_partition_ends_later_s(a), b_s = mf_partition_ends_later_s(b);
    return a_s > b_s || (!(a_s < b_s) && a->cost.local_b_B > b->cost.local_b_B);
}

int mf_partition_next_choice(const mf_partition_class *c, const int32_t *left) {
    int best = -1;
    for (int m = 0; m < c->choices; m++) {
        if (left[m] > 0 && (best < 0 || mf_partition_stands_before(c, m, best))) {
            best = m;
        }
    }
    return best;
}

/* Positions on virtual stage v, from *next on. */
static bool write_vstage(const mf_partition *in, int v, int32_t *left, int *next,
                         mf_assignment *out) {
    const size_t from = mf_partition_cell(in, v, 0, 0), to = mf_partition_cell(in, v + 1, 0, 0);
    int n = 0;
    for (size_t i = from; i < to; i++) {
        n += left[i];
    }
    if (*next + n > in->positions) {
        return false;
    }
    for (int i = 0; i < n; i++, (*next)++) {
        const int slot = in->slot_at[*next];
        const mf_partition_class *c = mf_partition_class_at(in, v, slot);
        int32_t *of_slot = left + mf_partition_cell(in, v, slot, 0);
        const int m = mf_partition_next_choice(c, of_slot);
        if (m < 0) {
            return false; /* out of order: the next position is not among them */
        }
        of_slot[m]--;
        out->memory[*next] = c->choice[m].memory;
    }
    return n > 0;
}

mf_status mf_partition_write(const mf_partition *in, const int32_t *count, mf_assignment *out,
                             mf_err *e) {
    size_t cells = mf_partition_cells(in);
    int32_t *left = malloc(cells * sizeof *left);
    bool good = in->vstages <= MF_MAX_VSTAGES;
    int next = 0;
    if (left == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    memset(out, 0, sizeof *out);
    memcpy(left, count, cells * sizeof *left);
    out->positions = in->positions;
    out->vstages = in->vstages;
    for (int v = 0; good && v < in->vstages; v++) {
        out->first[v] = next;
        good = write_vstage(in, v, left, &next, out);
    }
    free(left);
    if (good) {
        out->first[in->vstages] = next;
    }
    return good && next == in->positions
               ? MF_OK
               : mf_err_set(e, MF_INTERNAL, "counts do not make an assignment");
}
