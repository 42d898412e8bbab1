/* unsaid.h - options that a request for another program than moefold does not state. They get the
 * defaults of that program's release (software profile, `unsaid`), and the band of a prediction
 * covers what else they may be.
 *
 * moefold itself runs exactly what a layout says, defaults included, so its profile leaves nothing
 * open.
 */
#ifndef MF_JOB_UNSAID_H
#define MF_JOB_UNSAID_H

#include "job/load/job.h"

/* The options that --unsure may name: " a b c". */
extern const char mf_unsaid_words[];

/* Fills in the job's layout before it is resolved, and sets in j->unsaid the options that were not
 * given or that j->asked.unsure names. Errors: MF_USAGE for an unknown word in it. */
mf_status mf_unsaid_fill(mf_job *j, mf_err *e);

/* The same for a search, which chooses the dispatcher itself: sets only CUDA graphs. */
void mf_unsaid_hold(mf_job *j);

/* The likeliest CUDA graphs of a program with these defaults for layers with this recomputation:
 * layers that are recomputed whole cannot be captured in parts. `otherwise`: used when the program
 * has no default. */
mf_graph_mode mf_unsaid_graph(const mf_profile_defaults *u, const mf_model *m, uint16_t recompute,
                              mf_graph_mode otherwise);

/* Lists other layouts that the same request may mean, resolved; returns how many (at most
 * MF_UNSAID_WAYS). */
#define MF_UNSAID_WAYS (MF_DEFAULTS_MAX * MF_DEFAULTS_MAX)
int mf_unsaid_others(const mf_job *j, mf_layout *out);

/* Share of the step time by which the band widens on each side. */
double mf_unsaid_widening(const mf_job *j);

/* "cuda-graph, overlap"; "" when nothing is open. */
void mf_unsaid_format(unsigned unsaid, char *out, size_t size);

#endif
