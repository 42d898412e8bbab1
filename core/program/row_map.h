/* row_map.h - where the parts of a row map stand, which PERMUTE makes and the ops of experts read.
 *
 * Rows stand in runs, one for each expert. A slot is one choice of one token: slot s is choice
 * s % choices of token s / choices. The parts, of int32, in this order:
 *
 *   offsets     [experts + 1]  first row of each run, with its padding; the last: rows of all
 *   overflow    [1]            1: those are more than rows there are; else 0
 *   counts      [experts]      rows of each run that are no padding
 *   slot_of_row [rows]         -1: padding, or past the last run
 *   row_of_slot [slots]        -1: dropped, or no row left
 */
#ifndef MF_CORE_ROW_MAP_H
#define MF_CORE_ROW_MAP_H

#include <stdint.h>

typedef struct mf_row_map {
    int64_t experts, rows_max, slots;
    int32_t *offsets, *overflow, *counts, *slot_of_row, *row_of_slot;
} mf_row_map;

/* Elements of a row map for so many experts, rows and slots. */
static inline int64_t mf_row_map_elements(int64_t experts, int64_t rows, int64_t slots) {
    return (experts + 1) + 1 + experts + rows + slots;
}

/* The parts of the row map at `data`, which holds rows_max rows and so many slots. */
static inline mf_row_map mf_row_map_of(void *data, int64_t experts, int64_t rows_max,
                                       int64_t slots) {
    mf_row_map m = {.experts = experts, .rows_max = rows_max, .slots = slots};
    m.offsets = data;
    m.overflow = m.offsets + experts + 1;
    m.counts = m.overflow + 1;
    m.slot_of_row = m.counts + experts;
    m.row_of_slot = m.slot_of_row + rows_max;
    return m;
}

#endif
