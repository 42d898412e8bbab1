/* doubts.c - warnings about a job and its prediction. */
#include "report/basis/doubts.h"

#include "job/figures/unmeasured.h"

#include <string.h>

void mf_doubts_of_plan(const mf_job *j, const mf_plan *plan, mf_doubts *out) {
    *out = (mf_doubts){0};
    mf_doubt_job(out, &j->model, &j->cluster, &plan->layout);
    mf_doubt_mfu(out, &j->cluster, &plan->layout, plan->prediction.mfu, "");
    mf_doubt_correction(out, j->software.name, j->cluster.name);
    mf_doubt_prices(out, j, mf_unmeasured_share(j, &plan->layout, &plan->assignment));
}

void mf_doubts_of_change(const mf_job *j, const mf_plan *from, const mf_plan *to, mf_doubts *out) {
    const bool said = mf_unmeasured_share(j, &to->layout, &to->assignment) > MF_UNMEASURED_SHARE;
    mf_doubts_of_plan(j, to, out);
    if (!said) {
        mf_doubt_prices(out, j, mf_unmeasured_share(j, &from->layout, &from->assignment));
    }
}

void mf_doubt_runner(mf_doubts *out, const mf_job *j, const mf_runs_on *on) {
    if (on->limited && j->asked.software == NULL &&
        strcmp(j->software.name, MF_SOFTWARE_OURS) == 0) {
        mf_doubt(out, "times are moefold's, %s runs it: --software %s has its times",
                 mf_target_info_of(on->target)->program, mf_software_newest_megatron());
    }
}

void mf_doubts_print(FILE *notes, const mf_doubts *d) {
    for (int i = 0; notes != NULL && i < d->count; i++) {
        fprintf(notes, "warning: %s\n", d->text[i]);
    }
}

void mf_doubts_json(mf_json_writer *w, const mf_doubts *d) {
    mf_json_write_array(w, "warnings", false);
    for (int i = 0; i < d->count; i++) {
        mf_json_write_string(w, NULL, d->text[i]);
    }
    mf_json_write_end(w);
}
