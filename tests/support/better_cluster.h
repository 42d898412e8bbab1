/* better_cluster.h - clusters that are better than another in some figures and worse in none. */
#ifndef MF_TESTS_BETTER_CLUSTER_H
#define MF_TESTS_BETTER_CLUSTER_H

#include "core/cluster/cluster.h"
#include "tests/support/random_op.h"

/* Figures that are better when they grow, each by up to a half more or not at all; several numbers
 * that say one thing grow together. */
static inline void more(uint64_t *seed, int count, double *const *figure) {
    double by = between(seed, 0, 1) ? 1 + (double)between(seed, 1, 50) / 100 : 1;
    for (int i = 0; i < count; i++) {
        *figure[i] *= by;
    }
}

static inline mf_cluster better_cluster(uint64_t *seed, mf_cluster c) {
    mf_gpu *g = &c.gpu;
    for (int m = 0; m < MF_MATH_COUNT; m++) {
        more(seed, 2, (double *[]){&g->peak_flops[m], &g->measured_flops[m]});
    }
    more(seed, 2, (double *[]){&g->memory_Bps, &g->memory_measured_Bps});
    more(seed, 1, (double *[]){&g->l2_B});
    more(seed, 1, (double *[]){&g->memory_B});
    more(seed, 1, (double *[]){&g->power_w});
    more(seed, 1, (double *[]){&c.scaleup_Bps});
    more(seed, 1, (double *[]){&c.scaleup_effective_Bps});
    more(seed, 1, (double *[]){&c.scaleup_pair_Bps});
    more(seed, 1, (double *[]){&c.scaleup_pair_effective_Bps});
    more(seed, 1, (double *[]){&c.nic_Bps});
    more(seed, 1, (double *[]){&c.host_Bps});
    more(seed, 1, (double *[]){&c.host_shared_Bps});
    more(seed, 1, (double *[]){&c.host_memory_B});
    c.scaleup_latency_s /= 1 + (double)between(seed, 0, 1);
    c.nic_latency_s /= 1 + (double)between(seed, 0, 3);
    for (int t = 0; t < c.tiers; t++) {
        c.tier[t].latency_s /= 1 + (double)between(seed, 0, 3);
    }
    return c;
}

#endif
