/* candidates.h - candidates.csv of a report: plans that compete, one a line, with every choice that
 * tells them apart. Texts stand in quotes.
 */
#ifndef MF_REPORT_CANDIDATES_H
#define MF_REPORT_CANDIDATES_H

#include "job/search/tune.h"
#include "planner/planner.h"

#include <stdio.h>

/* The plans of a search, best first. */
void mf_candidates_of_search(FILE *f, const mf_search_result *r);

/* The present layout, the best plan if there is a better one, what would make the present layout
 * fit, and all single steps from it, each as the option that it is. */
void mf_candidates_of_tune(FILE *f, const mf_tuning *t);

/* The memory choice of every layer, as "recompute norm in layers 0 to 7; ...", "none" where nothing
 * is recomputed or offloaded. */
void mf_candidates_memory(const mf_assignment *a, char *out, size_t size);

#endif
