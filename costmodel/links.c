/* links.c - how a group lies on the machine, and how many units a token's experts touch. */
#include "costmodel/cost_internal.h"

#include <math.h>
#include <string.h>

/* NVSwitch of Hopper and Blackwell multicasts and reduces. */
static bool has_nvls(const mf_cluster *c) {
    return strcmp(c->gpu.arch, "hopper") == 0 || strcmp(c->gpu.arch, "blackwell") == 0;
}

void mf_geometry_of(const mf_cluster *c, mf_group_shape shape, mf_geometry *g) {
    int64_t n = shape.size > 0 ? shape.size : 1, stride = shape.stride > 0 ? shape.stride : 1;
    int64_t domain = c->domain_gpus_used > 0 ? c->domain_gpus_used : c->domain_gpus;
    domain = domain > 0 ? domain : 1;
    int64_t span = (n - 1) * stride + 1;
    int64_t inside = span <= domain ? n : (stride < domain ? domain / stride : 1);
    *g = (mf_geometry){.n = (double)n,
                       .inside = (double)inside,
                       .domains = ceil((double)n / (double)inside),
                       .in_peak_Bps = c->scaleup_Bps,
                       .net_peak_Bps = c->nic_Bps,
                       .in_latency_s = c->scaleup_latency_s,
                       .nvls = has_nvls(c)};
    if (c->scaleup_pair_Bps > 0 && inside > 1) { /* a mesh: one link per peer */
        g->in_peak_Bps = fmin(g->in_peak_Bps, (double)(inside - 1) * c->scaleup_pair_Bps);
    }
    g->in_Bps = mf_cluster_scaleup_reached_Bps(c, inside);
    double net = c->nic_efficiency > 0 ? c->nic_Bps * c->nic_efficiency : c->nic_Bps;
    g->net_latency_s = c->nic_latency_s;
    if (g->domains > 1) {
        double Bps, latency_s;
        /* at least one GPU more than the domain: this group does cross it */
        bool in = mf_cluster_link(c, span > domain ? span : domain + 1, &Bps, &latency_s);
        g->net_Bps = in ? net : Bps;
        g->net_latency_s = in ? g->net_latency_s : latency_s;
    } else {
        g->net_Bps = net;
    }
    if (g->net_Bps <= 0) { /* no network given: the scale-up link is all there is */
        g->net_Bps = g->in_Bps;
        g->net_peak_Bps = g->in_peak_Bps;
    }
    if (g->in_Bps <= 0) {
        g->in_Bps = g->net_Bps;
        g->in_peak_Bps = g->net_peak_Bps;
    }
}

/* P(none of k picks without replacement out of `all` falls into `mine`). */
static double miss(double all, double mine, double k) {
    const double many = 256; /* no router picks more; then the draws are as good as independent */
    double p = 1;
    if (!(k < many)) {
        return pow(fmax(0, 1 - mine / all), k);
    }
    for (int i = 0; i < (int)k; i++) {
        p *= fmax(0, all - mine - i) / fmax(1, all - i);
    }
    return p;
}

double mf_expected_hits(double experts, double top_k, double units, double groups,
                        double groups_max) {
    double mine = experts / units;
    if (groups_max <= 0 || groups_max >= groups) {
        return units * (1 - miss(experts, mine, top_k));
    }
    double group = experts / groups, open = groups_max * group; /* experts that may be picked */
    if (units >= groups) {
        return units * (groups_max / groups) * (1 - miss(open, mine, top_k));
    }
    /* A unit holds several whole groups: sum over how many of them the token may reach. */
    double held = groups / units, hit = 0;
    int limit = (int)groups_max, most = (int)fmin(held, groups_max);
    for (int h = 1; h <= most; h++) { /* hypergeometric P(h of held are open) */
        double p = 1;
        for (int i = 0; i < limit; i++) {
            p *= (i < h ? held - i : groups - held - (i - h)) / (groups - i);
        }
        for (int i = 0; i < h; i++) { /* ways to order the h among the draws */
            p *= (groups_max - i) / (i + 1.0);
        }
        hit += fmax(0, p) * (1 - miss(open, h * group, top_k));
    }
    return units * hit;
}
