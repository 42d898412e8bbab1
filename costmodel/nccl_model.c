/* nccl_model.c - NCCL's own estimate of a collective: the best of its algorithms and protocols.
 *
 * time = latency + bytes / algorithm bandwidth, per algorithm (ring, tree, NVLS, NVLS tree, PAT)
 * and protocol (LL, LL128, Simple). Constants and formulas are facts of NCCL 2.30.7 (its tuner:
 * base latencies, latencies per hop, protocol efficiencies, LL caps, the plateau of long rings). A
 * ring over several domains runs once per member of the domain, each through its own NIC: their
 * sum, up to the scale-up rate.
 */
#include "costmodel/cost_internal.h"

#include <math.h>

enum { LL, LL128, SIMPLE, PROTOCOLS };
static const double ring_base_s[PROTOCOLS] = {6.6e-6, 14e-6, 8.4e-6};
static const double tree_base_s[PROTOCOLS] = {6.8e-6, 14e-6, 8.4e-6};
static const double ring_in_s[PROTOCOLS] = {0.6e-6, 1.9e-6, 3.4e-6};
static const double ring_net_s[PROTOCOLS] = {2.7e-6, 4.0e-6, 14e-6};
static const double tree_in_s[PROTOCOLS] = {0.6e-6, 1.25e-6, 4.0e-6};
static const double tree_net_s[PROTOCOLS] = {5.0e-6, 8.5e-6, 14e-6};
static const double ring_eff[PROTOCOLS] = {0.5, 0.92, 1.0};
static const double tree_eff_in[PROTOCOLS] = {0.92 / 3.8, 0.92 * 7 / 9, 0.92};
static const double tree_eff_net[PROTOCOLS] = {0.92 / 3.8, 0.92 * 120 / 128, 0.92};
static const double net_post_s[PROTOCOLS] = {1e-6, 1e-6, 3e-6}; /* host work per network step */
static const double ring_plateau = 1.4; /* Simple all-reduce rings over hosts */
static const double nvls_s = 25e-6, nvls_net_s = 20.9e-6;
static const double pat_base_s = 8e-6, pat_rank_s = 2.8e-6, pat_eff = 0.75;
/* Bus bandwidth of NVLink multicast over the ring's: 478 to 367 GB/s on 8 H200, 842 to 682 on 8
 * B200 (nccl-tests); it needs five GPUs to win. */
static const double nvls_gain = 1.27;
static const double nvls_ranks = 5;
static const double host_gpus = 8; /* most that a host has */
/* Point-to-point: a launch, and the proxy's work per peer across the network. */
static const double p2p_base_s = 8.4e-6;
static const double p2p_peer_s = 0.3e-6;
static const double p2p_pair_share = 0.9; /* one pair's share of the collective rate */

/* The tuner's hops hold an ordinary network; only latency beyond it is added. */
static const double usual_net_s = 5e-6;

static double extra_net_s(const mf_geometry *g) {
    return fmax(0, g->net_latency_s - usual_net_s);
}

/* The same of the hops inside a domain. */
static const double usual_in_s = 0.6e-6;

static double extra_in_s(const mf_geometry *g) {
    return fmax(0, g->in_latency_s - usual_in_s);
}

typedef struct best {
    double time_s, latency_s;
} best;

static void take(best *b, double latency_s, double transfer_s) {
    b->time_s = fmin(b->time_s, latency_s + transfer_s);
    b->latency_s = fmin(b->latency_s, latency_s);
}

/* Rate of all rings together through one GPU. */
static double ring_Bps(const mf_geometry *g) {
    if (g->domains <= 1) {
        return g->in_Bps;
    }
    return g->inside > 1 ? fmin(g->in_Bps, g->inside * g->net_Bps) : g->net_Bps;
}

/* LL is held back by its flags: caps by generation inside a host, by the CPU across. */
static double ll_cap_Bps(const mf_geometry *g) {
    if (g->domains > 1) {
        return g->domains > 2 ? 20.4e9 : 39e9;
    }
    return g->in_Bps > 600e9 ? 282e9 : g->in_Bps > 300e9 ? 141e9 : 87.7e9;
}

static double capped(const mf_geometry *g, int protocol, double Bps) {
    return protocol == LL ? fmin(Bps, ll_cap_Bps(g)) : Bps;
}

/* rounds: 2 for an all-reduce (reduce-scatter, all-gather), else 1. */
static void rings(const mf_geometry *g, double bytes, double rounds, best *b) {
    double steps = rounds * (g->n - 1), net_steps = rounds * (g->domains - 1);
    double share = rounds * (g->n - 1) / g->n;
    for (int p = 0; p < PROTOCOLS; p++) {
        bool across = g->domains > 1;
        double in_s = (across ? fmax(ring_in_s[p], net_post_s[p]) : ring_in_s[p]) +
                      extra_in_s(g) * (p == SIMPLE ? 2 : 1);
        double net_s = (g->inside > 1 ? ring_net_s[p] : tree_net_s[p]) +
                       extra_net_s(g) * (p == SIMPLE ? 2 : 1);
        double latency = ring_base_s[p] + (steps - net_steps) * in_s + net_steps * net_s;
        if (across && rounds > 1 && p == SIMPLE) {
            latency *= ring_plateau;
        }
        take(b, latency, share * bytes / capped(g, p, ring_Bps(g) * ring_eff[p]));
    }
}

static void trees(const mf_geometry *g, double bytes, best *b) {
    const double *eff = g->domains > 1 ? tree_eff_net : tree_eff_in;
    double levels = ceil(log2(g->domains));
    /* A chain through a host; hosts of one domain form a tree over its links. */
    double chain = fmin(g->inside, host_gpus), hosts = ceil(log2(g->inside / chain));
    for (int p = 0; p < PROTOCOLS; p++) {
        double latency =
            tree_base_s[p] + 2 * ((chain - 1 + hosts) * (tree_in_s[p] + extra_in_s(g)) +
                                  levels * (tree_net_s[p] + extra_net_s(g)));
        take(b, latency, 2 * bytes / capped(g, p, ring_Bps(g) * eff[p]));
    }
}

static void multicast(const mf_geometry *g, double bytes, best *b) {
    if (!g->nvls || g->inside < nvls_ranks) {
        return;
    }
    double levels = ceil(log2(g->domains));
    double in_s = 2 * (g->inside - 1) / g->inside * bytes / (g->in_Bps * nvls_gain), net_s = 0;
    if (g->domains > 1) { /* reduced inside, then a double binary tree over the domains */
        net_s = 2 * (g->domains - 1) / g->domains * bytes / (g->inside * g->net_Bps);
    }
    take(b, nvls_s + 2 * levels * (nvls_net_s + extra_net_s(g)), fmax(in_s, net_s));
}

/* Logarithmic all-gather and reduce-scatter, one GPU per domain only. */
static void pat(const mf_geometry *g, double bytes, best *b) {
    if (g->inside > 1 || g->domains <= 1) {
        return;
    }
    double levels = ceil(log2(g->n));
    take(b, pat_base_s + levels * (tree_net_s[SIMPLE] + extra_net_s(g)) / 3.5 + g->n * pat_rank_s,
         bytes / (pat_eff * g->net_Bps));
}

static void all_to_all(const mf_geometry *g, double bytes, best *b) {
    double hop =
        g->domains > 1 ? ring_net_s[SIMPLE] + extra_net_s(g) : ring_in_s[SIMPLE] + extra_in_s(g);
    double in_s = bytes * (g->inside - 1) / g->n / g->in_Bps;
    double net_s = bytes * (g->n - g->inside) / g->n / g->net_Bps;
    take(b, p2p_base_s + hop + p2p_peer_s * (g->n - 1), fmax(in_s, net_s));
}

/* To the next member: across the network when any neighbouring pair of the group is, since the
 * slowest pair sets the pace of a pipeline. */
static void send_recv(const mf_geometry *g, double bytes, best *b) {
    bool net = g->domains > 1;
    double hop = net ? ring_net_s[SIMPLE] + extra_net_s(g) : ring_in_s[SIMPLE] + extra_in_s(g);
    take(b, p2p_base_s + hop, bytes / (net ? g->net_Bps : p2p_pair_share * g->in_Bps));
}

double mf_nccl_time_s(const mf_geometry *g, mf_op_kind kind, double bytes, bool nvls,
                      double *latency_s) {
    best b = {HUGE_VAL, HUGE_VAL};
    if (kind == MF_OP_ALL_REDUCE) {
        rings(g, bytes, 2, &b);
        trees(g, bytes, &b);
        if (nvls) {
            multicast(g, bytes, &b);
        }
    } else if (kind == MF_OP_ALL_GATHER || kind == MF_OP_REDUCE_SCATTER) {
        rings(g, bytes, 1, &b);
        pat(g, bytes, &b);
    } else if (kind == MF_OP_ALL_TO_ALL) {
        all_to_all(g, bytes, &b);
    } else {
        send_recv(g, bytes, &b);
    }
    *latency_s = b.latency_s;
    return b.time_s;
}

/* CTAs that NCCL and the fused dispatchers run: 24 channels over NVLink, 16 where the network is
 * the bottleneck, 8 for one pair; DeepEP and HybridEP 24. */
double mf_collective_sms(mf_op_kind kind, const mf_geometry *g) {
    if (kind == MF_OP_SEND_RECV) {
        return 8;
    }
    if (kind == MF_OP_DISPATCH || kind == MF_OP_COMBINE) {
        return 24;
    }
    return g->domains > 1 && g->inside * g->net_Bps < g->in_Bps ? 16 : 24;
}
