/* measure_ranks.h - measures what ranks on this machine's CPU cores take. No GPU needed. */
#ifndef MF_EXECUTOR_MEASURE_RANKS_H
#define MF_EXECUTOR_MEASURE_RANKS_H

#include <stdint.h>

typedef struct mf_ranks_measured {
    double took_s; /* wall time */
    int noisy;     /* ops that took very different times, and enough of the whole to matter */
} mf_ranks_measured;

/* Trains a small Mixture-of-Experts model on so many ranks of this machine, six steps each with
 * micro-batches of two samples and of one (seconds, 90 at most for either), by this very program
 * with MOEFOLD_CPU=off, and keeps what that took in two files of `folder`, which is made: a profile
 * store with the times of ops, and a software profile with the factor by which whole steps took
 * longer than the ops say. A file appears whole or not at all, the store first. Of what an earlier
 * store at that place holds the same op keeps its shorter time: what disturbs makes times longer.
 * Returns NULL, or why nothing is kept. */
const char *mf_measure_ranks(int64_t ranks, const char *folder, const char *store,
                             const char *software, mf_ranks_measured *out);

#endif
