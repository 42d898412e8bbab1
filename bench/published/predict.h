/* predict.h - predicts published rows under named software profiles, and fits the profiles. */
#ifndef MF_PUBLISHED_PREDICT_H
#define MF_PUBLISHED_PREDICT_H

#include "bench/published/rows.h"
#include "costmodel/cost.h"

#define PUB_MAX_PROFILES 16

typedef struct pub_profiles {
    int count;
    mf_software software[PUB_MAX_PROFILES];
} pub_profiles;

/* Every profile that a row asks for, loaded by name; rows get its index. */
mf_status pub_profiles_load(pub_profiles *p, pub_row *rows, int count, mf_err *e);

/* Cost models of every cluster and profile that the rows need; *out to be destroyed. */
typedef struct pub_costs pub_costs;
mf_status pub_costs_create(const pub_profiles *p, const pub_row *rows, int count, pub_costs **out,
                           mf_err *e);
void pub_costs_destroy(pub_costs *costs);

/* Fills the predictions of all rows under the profiles' values as they stand, on two threads, as
 * `moefold simulate` makes them (mf_job_simulate); for a fit, the step times alone of rows that are
 * not held out, with long steps extrapolated. Rows that turn out impossible to predict get a
 * `skipped` reason. */
void pub_predict(pub_costs *costs, const pub_profiles *p, pub_row *rows, int count, bool fitting);

/* Prints where the time of a row's first way goes, by kind of op. */
mf_status pub_print_ops(const pub_profiles *p, const pub_row *r, mf_err *e);

/* Whether the row says all that moves MoE steps most: graph, dispatcher, overlap, micro-batch. */
bool pub_flags_known(const pub_row *r);

/* Fits the profiles on rows that are not held out, near their priors (bench/published/priors) and
 * starting from where they stand; the rows hold the predictions of the result. Prints progress to
 * stderr. */
mf_status pub_fit(pub_costs *costs, pub_profiles *p, pub_row *rows, int count, mf_err *e);

/* Prints to stdout how well priors of other widths predict folds of the fitted rows that a fit
 * leaves out, step times taken as linear around the profiles. Held-out rows take no part. */
mf_status pub_cross_validate(pub_costs *costs, const pub_profiles *p, pub_row *rows, int count,
                             mf_err *e);

/* Writes fitted values back into profiles/software/NAME.json (the "value" members). */
mf_status pub_profiles_save(const pub_profiles *p, mf_err *e);

#endif
