/* report_breakdown.c - where a step goes, what holds it back, and what helps against that. */
#include "report/step/report.h"

#include "launch/target/target.h"
#include "report/text/show.h"

#include <string.h>

enum { HINTS = 5 };
typedef struct remedy {
    const char *key;
    const char *name; /* as a part of a sentence */
    const char *hint[HINTS];
} remedy;

static const remedy remedies[] = {
    {"bubble",
     "the pipeline bubble",
     {"more micro-batches", "fewer stages", "more chunks (--vpp)", "a zero-bubble schedule"}},
    {"exposed_ep",
     "expert communication",
     {"--overlap ep with the merged schedule", "EP inside one NVLink domain"}},
    {"exposed_tp", "tensor-parallel communication", {"less TP", "--overlap tp"}},
    {"exposed_cp",
     "context-parallel communication",
     {"less CP", "another --cp-type", "--overlap cp"}},
    {"exposed_dp",
     "gradient reduction and parameter gather",
     {"--overlap dp", "a lower ZeRO level", "a larger global batch"}},
    {"exposed_pp", "sends between stages", {"--overlap pp", "fewer chunks"}},
    {"recompute", "recomputation", {"recomputing less where memory allows", "offload instead"}},
    {"host",
     "the host, which issues too slowly",
     {"--cuda-graph", "a larger micro-batch", "fewer and larger ops"}},
    {"optimizer", "the optimizer", {"a higher ZeRO level", "less of it on the host"}},
    {"offload", "copies to and from host memory", {"offloading less"}},
};
enum { REMEDIES = sizeof remedies / sizeof remedies[0] };

static double figure(const mf_plan_prediction *p, const char *key) {
    for (int i = 0; i < p->breakdown_count; i++) {
        if (strcmp(p->breakdown_s[i].key, key) == 0) {
            return p->breakdown_s[i].value;
        }
    }
    return 0;
}

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* What the layout does already, or what does nothing for it. */
static bool is_pointless(const char *hint, const mf_report *r) {
#define X(name, text, bit) {"--overlap " text, MF_OVERLAP_##name},
    static const struct {
        const char *flag;
        unsigned bit;
    } overlaps[] = {MF_OVERLAP_MAP(X)};
#undef X
    const mf_layout *l = &r->plan->layout;
    for (size_t i = 0; i < sizeof overlaps / sizeof overlaps[0]; i++) {
        if (begins(hint, overlaps[i].flag)) {
            bool ring = overlaps[i].bit == MF_OVERLAP_CP && l->cp_type == MF_CP_RING;
            bool merged = overlaps[i].bit != MF_OVERLAP_EP || mf_layout_merges(l);
            return ring || ((l->overlap & overlaps[i].bit) != 0 && merged);
        }
    }
    double bandwidth_Bps, latency_s;
    const bool theirs = strcmp(r->software->name, MF_SOFTWARE_OURS) != 0;
    return (begins(hint, "EP inside") &&
            mf_cluster_link(r->cluster, l->etp * l->ep, &bandwidth_Bps, &latency_s)) ||
           (begins(hint, "--cuda-graph") &&
            (mf_cluster_is_cpu(r->cluster) || l->graph == MF_GRAPH_STEP ||
             (theirs && l->graph == MF_GRAPH_PARTIAL && !mf_target_captures_step(r->model, l)))) ||
           (begins(hint, "a zero-bubble") && mf_layout_splits(l)) ||
           (begins(hint, "a lower ZeRO") && l->zero == 0 && l->expert_zero == 0) ||
           (begins(hint, "a higher ZeRO") && l->zero == 3 && l->expert_zero == 3) ||
           (begins(hint, "fewer chunks") && l->vpp == 1) ||
           (begins(hint, "less of it on the host") && !(l->offload_optimizer > 0));
}

static void print_hints(FILE *out, const remedy *one, const mf_report *r) {
    const char *before = "; what helps: ";
    for (int i = 0; i < HINTS && one->hint[i] != NULL; i++) {
        if (!is_pointless(one->hint[i], r)) {
            fprintf(out, "%s%s", before, one->hint[i]);
            before = ", ";
        }
    }
}

void mf_report_print_breakdown(FILE *out, const mf_report *r) {
    const mf_plan_prediction *p = &r->plan->prediction;
    fputs("\nwhere the step goes, on the busiest rank (exposed: compute waits for it)\n", out);
    for (int i = 0; i < p->breakdown_count; i++) {
        double v = p->breakdown_s[i].value, share = v / p->step_time_s;
        if (share < 0.0005) {
            continue;
        }
        fprintf(out, "  %-11s %10s  %7s", p->breakdown_s[i].key, mf_show_time(v).s,
                mf_show_percent(share).s);
        mf_show_bar(out, v, p->step_time_s, 40);
        putc('\n', out);
    }
    bool taken[REMEDIES] = {false};
    for (int n = 0; n < 3; n++) {
        int best = -1;
        for (int i = 0; i < REMEDIES; i++) {
            if (!taken[i] &&
                (best < 0 || figure(p, remedies[i].key) > figure(p, remedies[best].key))) {
                best = i;
            }
        }
        double share = figure(p, remedies[best].key) / p->step_time_s;
        if (share < 0.02) {
            break;
        }
        taken[best] = true;
        fprintf(out, "%s%s, %s", n == 0 ? "held back by  " : "              ", remedies[best].name,
                mf_show_percent(share).s);
        print_hints(out, &remedies[best], r);
        putc('\n', out);
    }
}
