/* doubts.c - warnings about a job and its prediction. */
#include "report/doubts.h"

#include "job/account.h"

#include <stdlib.h>
#include <string.h>

/* Share of the time of the first stage's ops that rests on data sheets or on another GPU; 0 where
 * it is not known. */
static double unmeasured(const mf_job *j, const mf_plan *plan) {
    mf_program *program = NULL;
    mf_account *a = malloc(sizeof *a);
    double share = 0;
    if (a != NULL && mf_program_lower(&j->model, &plan->layout, &j->cluster, &plan->assignment,
                                      &program, NULL) == MF_OK) {
        mf_account_stage(program, j->cost, NULL, 0, a);
        const double s = a->basis_s[MF_BASIS_TRANSFERRED] + a->basis_s[MF_BASIS_DERIVED];
        share = a->total_s > 0 ? s / a->total_s : 0;
    }
    mf_program_destroy(program);
    free(a);
    return share;
}

/* What ships for CPU ranks was measured nowhere. */
static void doubt_cores(mf_doubts *out, const mf_cluster *c) {
    mf_doubt(out,
             "cluster cpu is not this machine: it assumes a core of %.0f GFLOP/s and %.0f GB/s for "
             "every rank. Train a few steps; compare --run RUN --record STORE takes this machine's "
             "times, and --store STORE prices from them",
             c->gpu.peak_flops[MF_MATH_FP32] / 1e9, c->gpu.memory_Bps / 1e9);
}

void mf_doubts_of_plan(const mf_job *j, const mf_plan *plan, mf_doubts *out) {
    *out = (mf_doubts){0};
    mf_doubt_job(out, &j->model, &j->cluster, &plan->layout);
    mf_doubt_mfu(out, &j->cluster, &plan->layout, plan->prediction.mfu, "");
    mf_doubt_correction(out, j->software.name, j->cluster.name);
    const double share = unmeasured(j, plan);
    if (j->host.known) {
        return; /* this machine was measured */
    }
    if (share > MF_UNMEASURED_SHARE && strcmp(j->cluster.name, "cpu") == 0) {
        doubt_cores(out, &j->cluster);
    } else {
        mf_doubt_unmeasured(out, &j->cluster, share);
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
