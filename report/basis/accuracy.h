/* accuracy.h - how good predictions of this kind were: runs of the same program, GPU and kind of
 * model that were published or are our own, beside what was predicted of them (docs/ACCURACY.md).
 */
#ifndef MF_REPORT_ACCURACY_H
#define MF_REPORT_ACCURACY_H

#include "core/base/json_write.h"
#include "core/model/model.h"
#include "costmodel/cost.h"

typedef enum mf_accuracy_kind {
    MF_ACCURACY_SPLIT,    /* published runs of a kind of model, "dense" or "moe" */
    MF_ACCURACY_SOFTWARE, /* published runs under a software profile */
    MF_ACCURACY_GPU,      /* published runs on a kind of GPU */
    MF_ACCURACY_OWN       /* runs of moefold on a kind of GPU */
} mf_accuracy_kind;

/* Errors of step times, predicted over measured minus one, in %; below 0: not stated. */
typedef struct mf_accuracy_row {
    mf_accuracy_kind kind;
    const char *key, *of;
    int runs;
    double mean, p90, bias, worst; /* absolute ones, but for the bias */
    double inside;                 /* share of the runs whose time lay inside the band */
} mf_accuracy_row;

/* All, as docs/ACCURACY.md has them. */
extern const mf_accuracy_row mf_accuracy_rows[];
extern const int mf_accuracy_row_count;

/* Whether a row is about predictions for this program, GPU and model: runs of moefold for its own
 * profile, published ones for others. */
bool mf_accuracy_tells_of(const mf_accuracy_row *row, const char *software, const char *gpu,
                          bool moe);

/* An object of the array that is open: {"of", "runs", "mean_error", "p90_error", "worst_error",
 * "bias", "inside_band"}, shares; null: not stated. */
void mf_accuracy_json_row(mf_json_writer *w, const mf_accuracy_row *row);

/* Member "accuracy": the rows of one prediction; empty: nobody ran such a job. */
void mf_accuracy_json(mf_json_writer *w, const mf_software *s, const char *gpu, const mf_model *m);

#endif
