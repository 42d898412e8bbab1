/* device.c - a cluster's GPU as the formulas see it. */
#include "costmodel/cost_internal.h"

#include <string.h>

/* Share of the data-sheet peak that a large matrix product reaches where nobody measured it: the
 * measured ratio of a sibling (A100 .87; H100 .80, .71; B200 .78, .76; MI300X .51, MI325X .60,
 * MI355X .62: facts behind profiles/clusters). */
typedef struct arch_share {
    const char *arch;
    double matmul, copy;
} arch_share;
static const arch_share shares[] = {
    {"ampere", 0.87, 0.80}, {"hopper", 0.80, 0.87}, {"blackwell", 0.77, 0.88},
    {"cdna3", 0.55, 0.80},  {"cdna4", 0.62, 0.80},  {"", 0.70, 0.80},
};

static const arch_share *share_of(const char *arch) {
    const arch_share *s = shares;
    while (s->arch[0] != '\0' && strcmp(s->arch, arch) != 0) {
        s++;
    }
    return s;
}

void mf_device_init(mf_cost_device *d, const mf_cluster *c) {
    const mf_gpu *g = &c->gpu;
    const arch_share *share = share_of(g->arch);
    *d = (mf_cost_device){.cluster = c,
                          .sms = g->sms > 0 ? (double)g->sms : 1,
                          .memory_Bps = g->memory_Bps,
                          .l2_B = g->l2_B,
                          .host_Bps = c->host_Bps > 0 ? c->host_Bps : g->memory_Bps};
    d->copy_Bps = g->memory_measured_Bps > 0 ? g->memory_measured_Bps : share->copy * g->memory_Bps;
    double peak = 0, rate = 0;
    for (int m = 0; m < MF_MATH_COUNT; m++) {
        if (g->peak_flops[m] > 0) {
            peak = g->peak_flops[m];
            rate = g->measured_flops[m] > 0 ? g->measured_flops[m] : share->matmul * peak;
        }
        d->peak[m] = peak; /* a type without units runs as the next wider one */
        d->rate[m] = rate;
    }
    for (int m = MF_MATH_COUNT - 2; m >= 0; m--) { /* nothing wider known: the narrower */
        if (d->peak[m] <= 0) {
            d->peak[m] = d->peak[m + 1];
            d->rate[m] = d->rate[m + 1];
        }
    }
}
