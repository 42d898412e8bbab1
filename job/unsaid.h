/* unsaid.h - what a request leaves unsaid of a run of another program than moefold: filled in
 * with what that program's release does by default (software profile, `unsaid`), and counted, so
 * that the band of a prediction covers what else it may be.
 *
 * moefold itself runs what a layout says, defaults included: its profile leaves nothing open.
 */
#ifndef MF_JOB_UNSAID_H
#define MF_JOB_UNSAID_H

#include "job/job.h"

/* The options that --unsure may name: " a b c". */
extern const char mf_unsaid_words[];

/* Fills the job's layout, not yet resolved, and says in j->unsaid what was not said, or is named by
 * j->asked.unsure. Errors: MF_USAGE for a word of it. */
mf_status mf_unsaid_fill(mf_job *j, mf_err *e);

/* The same for a search, which chooses the dispatcher itself: CUDA graphs alone. */
void mf_unsaid_hold(mf_job *j);

/* What a program of such defaults captures of layers that recompute so: the likeliest that can be,
 * for layers that are recomputed whole cannot be captured in parts. `otherwise`: where it has no
 * default. */
mf_graph_mode mf_unsaid_graph(const mf_unsaid *u, const mf_model *m, uint16_t recompute,
                              mf_graph_mode otherwise);

/* Other layouts that the same words may mean, resolved; returns how many (at most
 * MF_UNSAID_WAYS). */
#define MF_UNSAID_WAYS (MF_UNSAID_MAX * MF_UNSAID_MAX)
int mf_unsaid_others(const mf_job *j, mf_layout *out);

/* Share of the step time by which the band widens on each side. */
double mf_unsaid_widening(const mf_job *j);

/* "cuda-graph, overlap"; "" where all is said. */
void mf_unsaid_format(unsigned unsaid, char *out, size_t size);

#endif
