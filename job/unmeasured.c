/* unmeasured.c - the share of a plan's time that no measurement of its GPU stands for. */
#include "job/unmeasured.h"

#include "job/account.h"

#include <stdlib.h>
#include <string.h>

double mf_unmeasured_share(const mf_job *j, const mf_layout *l, const mf_assignment *a) {
    mf_program *program = NULL;
    mf_account *sum = malloc(sizeof *sum);
    double share = 0;
    if (sum != NULL && mf_program_lower(&j->model, l, &j->cluster, a, &program, NULL) == MF_OK) {
        mf_account_stage(program, j->cost, NULL, 0, sum);
        const double s = sum->basis_s[MF_BASIS_TRANSFERRED] + sum->basis_s[MF_BASIS_DERIVED];
        share = sum->total_s > 0 ? s / sum->total_s : 0;
    }
    mf_program_destroy(program);
    free(sum);
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

void mf_doubt_prices(mf_doubts *out, const mf_job *j, double share) {
    if (j->host.known) {
        return; /* this machine was measured */
    }
    if (share > MF_UNMEASURED_SHARE && strcmp(j->cluster.name, "cpu") == 0) {
        doubt_cores(out, &j->cluster);
    } else {
        mf_doubt_unmeasured(out, &j->cluster, share);
    }
}
