/* unmeasured.c - the share of a plan's time that no measurement of its GPU stands for. */
#include "job/figures/unmeasured.h"

#include "job/figures/account.h"

#include <stdlib.h>
#include <string.h>

void mf_basis_shares(const mf_job *j, const mf_layout *l, const mf_assignment *a,
                     double out[MF_BASIS_COUNT]) {
    mf_program *program = NULL;
    mf_account *sum = malloc(sizeof *sum);
    for (int b = 0; b < MF_BASIS_COUNT; b++) {
        out[b] = 0;
    }
    if (sum != NULL && mf_program_lower(&j->model, l, &j->cluster, a, &program, NULL) == MF_OK) {
        mf_account_stage(program, j->cost, NULL, 0, sum);
        for (int b = 0; b < MF_BASIS_COUNT && sum->total_s > 0; b++) {
            out[b] = sum->basis_s[b] / sum->total_s;
        }
    }
    mf_program_destroy(program);
    free(sum);
}

double mf_unmeasured_of(const double share[MF_BASIS_COUNT]) {
    return share[MF_BASIS_TRANSFERRED] + share[MF_BASIS_DERIVED];
}

double mf_unmeasured_share(const mf_job *j, const mf_layout *l, const mf_assignment *a) {
    double share[MF_BASIS_COUNT];
    mf_basis_shares(j, l, a, share);
    return mf_unmeasured_of(share);
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
