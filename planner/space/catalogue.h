/* catalogue.h - the memory choices that a search considers for a layer. */
#ifndef MF_PLANNER_CATALOGUE_H
#define MF_PLANNER_CATALOGUE_H

#include "core/layout/layout.h"
#include "core/model/model.h"

#define MF_CATALOGUE_MAX 32

/* The choices of a layer class, from the one that keeps all to the one that keeps least; every one
 * of them differs for this class. pinned: MF_PIN(RECOMPUTE), MF_PIN(OFFLOAD) keep base's. Returns
 * the count. */
int mf_catalogue(const mf_model *m, uint8_t layer_class, uint32_t pinned, mf_memory_choice base,
                 mf_memory_choice out[MF_CATALOGUE_MAX]);

#endif
