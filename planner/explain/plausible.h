/* plausible.h - warnings about jobs that look like slips, and about predictions better than any
 * published run. One line each; none changes a number.
 */
#ifndef MF_PLANNER_PLAUSIBLE_H
#define MF_PLANNER_PLAUSIBLE_H

#include "core/cluster/cluster.h"
#include "core/layout/layout.h"
#include "core/model/model.h"

enum { MF_DOUBTS_MOST = 12 };

typedef struct mf_doubts {
    int count;
    char text[MF_DOUBTS_MOST][280];
} mf_doubts;

/* The best run that was published for a kind of GPU and arithmetic. */
typedef struct mf_published_mfu {
    double mfu; /* of the dense peak of that arithmetic */
    const char *source;
} mf_published_mfu;
/* NULL: none is known. */
const mf_published_mfu *mf_published_mfu_of(const mf_gpu *gpu, mf_math math);

/* Adds a warning unless the list holds it already or is full. */
void mf_doubt(mf_doubts *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Figures of its file that look like slips of the unit. */
void mf_doubt_cluster(mf_doubts *d, const mf_cluster *c);
/* These, sequence, batch and number of GPUs. */
void mf_doubt_job(mf_doubts *d, const mf_model *m, const mf_cluster *c, const mf_layout *l);
/* mfu: of the dense peak of the layout's precision; `where` stands in front ("" = nothing). */
void mf_doubt_mfu(mf_doubts *d, const mf_cluster *c, const mf_layout *l, double mfu,
                  const char *where);
/* share: of the step's ops, by time, whose price rests on data sheets or on another GPU. */
#define MF_UNMEASURED_SHARE 0.5
void mf_doubt_unmeasured(mf_doubts *d, const mf_cluster *c, double share);
/* Warns where a software profile that `compare --log` wrote (its name is BASE@CLUSTER) is used on
 * another cluster than the one that was measured. */
void mf_doubt_correction(mf_doubts *d, const char *software, const char *cluster);
/* A price given by hand that looks like a slip (of a file's mf_doubt_cluster tells), that has no
 * date (unless it was given by hand), or whose date
 * ("2026-11-30", or "2026-11": its first day) is more than MF_PRICE_DAYS before `today`
 * (core/base/today.h). */
enum { MF_PRICE_DAYS = 180 };
void mf_doubt_price(mf_doubts *d, const char *cluster, double usd_gpu_h, const char *date,
                    bool by_hand, int64_t today);
/* Tokens of a whole run. */
void mf_doubt_tokens(mf_doubts *d, double tokens);

#endif
