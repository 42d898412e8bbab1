/* cluster_fingerprint.c - what tells one cluster from another. */
#include "core/base/fingerprint.h"
#include "core/cluster/cluster.h"

#include <inttypes.h>
#include <stdio.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

void mf_cluster_fingerprint(const mf_cluster *c, char out[20]) {
    const int64_t whole[] = {c->gpu.sms, c->gpus_per_node, c->domain_gpus, c->domain_gpus_used,
                             c->tiers};
    const double real[] = {c->gpu.memory_B,     c->gpu.memory_Bps,    c->gpu.memory_measured_Bps,
                           c->gpu.l2_B,         c->scaleup_Bps,       c->scaleup_effective_Bps,
                           c->scaleup_pair_Bps, c->scaleup_latency_s, c->nic_Bps,
                           c->nic_efficiency,   c->nic_latency_s,     c->host_Bps,
                           c->host_memory_B,    c->gpu.power_w};
    uint64_t h = MF_FINGERPRINT_SEED;
    for (size_t i = 0; i < COUNT(whole); i++) {
        h = mf_fingerprint_i64(h, whole[i]);
    }
    for (size_t i = 0; i < COUNT(real); i++) {
        h = mf_fingerprint_f64(h, real[i]);
    }
    if (c->scaleup_pair_effective_Bps > 0.0) { /* a mesh */
        h = mf_fingerprint_f64(h, c->scaleup_pair_effective_Bps);
    }
    if (c->host_shared_Bps > 0.0) {
        h = mf_fingerprint_f64(mf_fingerprint_i64(h, 1), c->host_shared_Bps);
    }
    for (int i = 0; i < MF_MATH_COUNT; i++) {
        h = mf_fingerprint_f64(h, c->gpu.peak_flops[i]);
        h = mf_fingerprint_f64(h, c->gpu.measured_flops[i]);
    }
    for (int i = 0; i < c->tiers; i++) {
        h = mf_fingerprint_i64(h, c->tier[i].gpus);
        h = mf_fingerprint_f64(h, c->tier[i].oversubscription);
        h = mf_fingerprint_f64(h, c->tier[i].latency_s);
    }
    snprintf(out, 20, "%016" PRIx64, h);
}
