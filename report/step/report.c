/* report.c - a predicted step for people. */
#include "report/step/report.h"

#include "job/figures/reported_memory.h"
#include "job/load/job.h"
#include "job/load/unsaid.h"
#include "launch/target/target.h"
#include "report/basis/host_copies_text.h"
#include "report/text/show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

/* --- layout ----------------------------------------------------------------------------------- */

void mf_report_layout_text(const mf_layout *l, char *out, size_t size) {
    snprintf(out, size, "TP %lld  CP %lld  PP %lld  VPP %lld  EP %lld  ETP %lld  DP %lld  EDP %lld",
             LL(l->tp), LL(l->cp), LL(l->pp), LL(l->vpp), LL(l->ep), LL(l->etp), LL(l->dp),
             LL(l->edp));
}

/* What is not at its quiet default, so that the line stays short. */
static void print_choices(FILE *out, const mf_report *r) {
    const mf_layout *l = &r->plan->layout;
    char overlap[64];
    mf_overlap_format(l->overlap, overlap, sizeof overlap);
    fprintf(out, "            %s, %s", mf_schedule_text(l->schedule),
            mf_precision_text(l->precision));
    if (l->fp8_attention) {
        fputs(", FP8 attention", out);
    }
    if (l->deterministic) {
        fputs(", deterministic", out);
    }
    if (l->fp8_primary_weights) {
        fputs(", FP8 primary weights", out);
    }
    if (r->model->experts > 0) {
        fprintf(out, ", %s dispatcher, ZeRO %d, expert ZeRO %d", mf_dispatcher_text(l->dispatcher),
                l->zero, l->expert_zero);
    } else {
        fprintf(out, ", ZeRO %d", l->zero);
    }
    if (l->cp > 1) {
        fprintf(out, ", %s CP", mf_cp_type_text(l->cp_type));
    }
    fprintf(out, ", overlap %s", overlap);
    if (l->grads_bf16) {
        fputs(", BF16 gradients", out);
    }
    if (l->moments_bf16) {
        fputs(", BF16 moments", out);
    }
    if (l->graph != MF_GRAPH_NONE) {
        fprintf(out, ", %s CUDA graphs", mf_graph_text(l->graph));
    }
    if (l->offload_optimizer > 0) {
        fprintf(out, ", %.0f %% of the optimizer on the host", 100 * l->offload_optimizer);
    }
    if (l->traits != 0) {
        char traits[256];
        mf_traits_format(l->traits, traits, sizeof traits);
        fprintf(out, ", %s", traits);
    }
    putc('\n', out);
}

static bool same_choice(mf_memory_choice a, mf_memory_choice b) {
    return a.recompute == b.recompute && a.offload == b.offload;
}

enum { MAX_RUNS = 4 };

/* "in layers 0 to 57", "in layer 3, 7 to 9" or, past a few runs, "in 31 layers". Layers are counted
 * from 0, MTP depths behind them. */
static void where_text(const mf_assignment *a, mf_memory_choice c, char *out, size_t size) {
    const int end = a->positions - 1;
    int runs = 0, layers = 0;
    for (int at = 1; at < end; at++) {
        bool here = same_choice(a->memory[at], c);
        layers += here;
        runs += here && (at == 1 || !same_choice(a->memory[at - 1], c));
    }
    if (layers == end - 1) {
        snprintf(out, size, "in every layer");
        return;
    }
    if (runs > MAX_RUNS) {
        snprintf(out, size, "in %d layers", layers);
        return;
    }
    snprintf(out, size, "in layer%s", layers == 1 ? "" : "s");
    const char *gap = " ";
    for (int from = 1, to; from < end; from = to) {
        for (to = from + 1; to < end && same_choice(a->memory[to], a->memory[from]); to++) {
        }
        if (same_choice(a->memory[from], c)) {
            const size_t used = strlen(out);
            snprintf(out + used, size - used, to - from == 1 ? "%s%d" : "%s%d to %d", gap, from - 1,
                     to - 2);
            gap = ", ";
        }
    }
}

static bool listed_before(const mf_assignment *a, int at) {
    for (int i = 1; i < at; i++) {
        if (same_choice(a->memory[i], a->memory[at])) {
            return true;
        }
    }
    return false;
}

bool mf_report_memory_choice(const mf_assignment *a, int *at, char *out, size_t size) {
    char recompute[160], offload[160], where[96];
    for (int i = *at + 1; i < a->positions - 1; i++) { /* without embedding and head */
        const mf_memory_choice c = a->memory[i];
        if ((c.recompute == 0 && c.offload == 0) || listed_before(a, i)) {
            continue;
        }
        mf_recompute_format(c.recompute, recompute, sizeof recompute);
        mf_offload_format(c.offload, offload, sizeof offload);
        where_text(a, c, where, sizeof where);
        snprintf(out, size, "%s%s%s%s%s %s", c.recompute != 0 ? "recompute " : "",
                 c.recompute != 0 ? recompute : "", c.recompute != 0 && c.offload != 0 ? ", " : "",
                 c.offload != 0 ? "offload " : "", c.offload != 0 ? offload : "", where);
        *at = i;
        return true;
    }
    return false;
}

static void print_memory_choices(FILE *out, const mf_assignment *a) {
    char text[448];
    for (int at = 0; mf_report_memory_choice(a, &at, text, sizeof text);) {
        fprintf(out, "            %s\n", text);
    }
}

mf_report mf_report_of(const mf_job *j, const mf_plan *plan) {
    return (mf_report){.model = &j->model,
                       .cluster = &j->cluster,
                       .plan = plan,
                       .routing = &j->routing,
                       .correction = &j->correction,
                       .made_for = j->made_for,
                       .unsaid = j->unsaid,
                       .software = &j->software,
                       .measured = j->cost != NULL ? mf_cost_measured(j->cost) : ""};
}

void mf_report_print_correction(FILE *out, const mf_kept_correction *k) {
    char text[320];
    if (k != NULL && k->used) {
        mf_corrections_say(k, text, sizeof text);
        fprintf(out, "corrected   %s\n", text);
    }
}

mf_status mf_report_add_up(mf_report *r, const mf_job *j, mf_err *e) {
    mf_status s = mf_step_power_of(j, r->plan, &r->power, e);
    s = s == MF_OK ? mf_host_copies_of_plan(j, r->plan, &r->copies, e) : s;
    return s == MF_OK ? mf_reported_memory(j, r->plan, &r->reported_B, e) : s;
}

double mf_report_logged_memory(const mf_report *r, bool *allocated) {
    const uint32_t printed = r->software->memory_report;
    const bool known = printed != 0 && r->reported_B > 0;
    *allocated = known && (printed & MF_REPORT_ALLOCATED) != 0;
    return known ? r->reported_B : r->plan->prediction.peak_memory_B;
}

void mf_report_program_text(const mf_software *s, mf_precision precision, const char *gpu,
                            const char *measured, char *out, size_t size) {
    size_t used = 0;
    int n = snprintf(out, size, "%s%s%s%s in %s", s->name, s->date[0] ? " (figures of " : "",
                     s->date, s->date[0] ? ")" : "", mf_precision_text(precision));
    used = n > 0 && (size_t)n < size ? (size_t)n : 0;
    if (measured[0] != '\0') {
        snprintf(out + used, size - used, "; ops of %s measured until %s", gpu, measured);
    } else {
        snprintf(out + used, size - used, "; no op of %s was measured", gpu);
    }
}

const char *mf_report_gpu_not_trained(const mf_software *s, const mf_cluster *c) {
    return strcmp(s->name, MF_SOFTWARE_OURS) == 0 && !mf_cluster_is_cpu(c) &&
                   strcmp(c->gpu.arch, "hopper") != 0
               ? "its kernels run on Hopper GPUs alone (H100, H200)"
               : NULL;
}

const char *mf_report_not_trained(const mf_software *s, const mf_model *m, const mf_layout *l,
                                  const mf_cluster *c) {
    const bool cpu = mf_cluster_is_cpu(c);
    const char *model = cpu ? mf_model_not_executed(m) : mf_model_not_on_gpu(m);
    if (strcmp(s->name, MF_SOFTWARE_OURS) != 0) {
        return NULL;
    }
    if (model == NULL && mf_report_gpu_not_trained(s, c) != NULL) {
        return mf_report_gpu_not_trained(s, c);
    }
    return model != NULL ? model : mf_layout_not_executed(l, cpu);
}

const char *mf_report_inexpressible(const char *why) {
    return strcmp(why, "ZeRO") == 0     ? "unequal ZeRO levels of dense and expert parameters"
           : strcmp(why, "memory") == 0 ? "memory choices by layer"
                                        : why;
}

static void print_program(FILE *out, const mf_report *r) {
    char text[240];
    const char *lacks = mf_report_not_trained(r->software, r->model, &r->plan->layout, r->cluster);
    const mf_under_megatron *m = r->megatron;
    mf_report_program_text(r->software, r->plan->layout.precision, r->cluster->gpu.name,
                           r->measured, text, sizeof text);
    fprintf(out, "%s  %s\n", lacks == NULL ? "trained by" : "priced as ", text);
    if (lacks != NULL) {
        fprintf(out, "            %s does not train it yet: %s\n", r->software->name, lacks);
    }
    if (m != NULL && m->why[0] != '\0') {
        fprintf(out, "            Megatron cannot express its %s\n",
                mf_report_inexpressible(m->why));
    } else if (m != NULL) {
        char corrected[48] = "";
        if (m->factor > 0) {
            snprintf(corrected, sizeof corrected, ", corrected by %.3f,", m->factor);
        }
        fprintf(out, "            %s%s would take %s for this plan, %.0f %% %s\n", m->software,
                corrected, mf_show_time(m->step_time_s).s, 100 * fabs(m->more),
                m->more < 0 ? "less" : "more");
    }
}

void mf_report_print_job(FILE *out, const mf_report *r) {
    const mf_layout *l = &r->plan->layout;
    char degrees[160];
    mf_report_layout_text(l, degrees, sizeof degrees);
    fprintf(out, "%s on %s x %s, %s sample%s of %s tokens a step\n", r->model->name,
            mf_show_i64(l->gpus).s, r->cluster->name, mf_show_i64(l->gbs).s, l->gbs == 1 ? "" : "s",
            mf_show_i64(l->seq).s);
    print_program(out, r);
    fprintf(out, "layout      %s\n", degrees);
    fprintf(out, "            %s micro-batch%s of %lld sample%s\n", mf_show_i64(l->micro_batches).s,
            l->micro_batches == 1 ? "" : "es", LL(l->mbs), l->mbs == 1 ? "" : "s");
    print_choices(out, r);
    print_memory_choices(out, &r->plan->assignment);
    if (r->made_for[0] != '\0') {
        bool same = strcmp(r->made_for, r->plan->provenance.cluster) == 0;
        fprintf(out, "made for    %s%s: what is predicted here is for this one\n", r->made_for,
                same ? " of other figures" : "");
    }
    fprintf(out, "rests on    software profile %s, routing %s, measurements %s\n",
            r->plan->provenance.software, r->plan->provenance.routing,
            r->plan->provenance.measurements);
    mf_report_print_correction(out, r->correction);
    if (r->unsaid != 0) {
        char words[128];
        mf_unsaid_format(r->unsaid, words, sizeof words);
        fprintf(out, "unsaid      %s: the band covers what else they may be\n", words);
    }
    putc('\n', out);
}

/* --- time and memory -------------------------------------------------------------------------- */

static int64_t peak_stage(const mf_plan_prediction *p) {
    int64_t at = 0;
    for (int64_t i = 1; i < p->stages; i++) {
        at = p->stage[i].peak_B > p->stage[at].peak_B ? i : at;
    }
    return at;
}

/* A GPU's FLOP/s without decimals, a small machine's with its own prefix. */
static mf_shown flops(double per_s) {
    mf_shown text = mf_show_rate(per_s, "FLOP/s");
    if (per_s >= 1e12) {
        snprintf(text.s, sizeof text.s, "%.0f TFLOP/s", per_s / 1e12);
    }
    return text;
}

double mf_report_max_load(const mf_report *r, bool *overflows) {
    const mf_model *m = r->model;
    const mf_layout *l = &r->plan->layout;
    int64_t layers = m->mtp_layers;
    double most = 1;
    for (int64_t i = 0; i < m->layers; i++) {
        layers += m->layer_classes[m->layer_class[i]].ffn == MF_FFN_MOE;
    }
    for (int64_t i = 0; m->experts > 0 && i < layers; i++) {
        most = fmax(most, mf_routing_max_load(r->routing, m, l->ep, i));
    }
    /* What capacity drops needs no space. */
    *overflows = l->capacity_factor == 0 && most > mf_layout_token_headroom(l) * (1 + 1e-9);
    return most;
}

static void print_memory(FILE *out, const mf_report *r) {
    const mf_plan_prediction *p = &r->plan->prediction;
    double headroom = p->usable_B - p->peak_memory_B, host_B = 0;
    for (int64_t i = 0; i < p->stages; i++) {
        host_B = fmax(host_B, p->stage[i].host_B);
    }
    fprintf(out, "memory      %s of %s usable on stage %lld: ", mf_show_bytes(p->peak_memory_B).s,
            mf_show_bytes(p->usable_B).s, LL(peak_stage(p)));
    if (p->fits) {
        fprintf(out, "fits, headroom %s\n", mf_show_bytes(headroom).s);
    } else if (headroom < 0) {
        fprintf(out, "DOES NOT FIT, over by %s\n", mf_show_bytes(-headroom).s);
    } else {
        fprintf(out, "DOES NOT FIT, it offloads %s to a host that has %s for each GPU\n",
                mf_show_bytes(host_B).s, mf_show_bytes(r->cluster->host_memory_B).s);
    }
    if (r->reported_B > 0 && r->software->memory_report != 0) {
        fprintf(out, "            %s itself would print a peak of %s%s\n", r->software->name,
                mf_show_bytes(r->reported_B).s,
                r->software->memory_report & MF_REPORT_ALLOCATED ? ", allocated by PyTorch" : "");
    }
    bool overflows;
    double load = mf_report_max_load(r, &overflows);
    if (overflows) {
        fprintf(out,
                "            an expert rank gets %.2f times the balanced rows, but has room for "
                "%g: a run would\n"
                "            go on with more, where that fits (--token-headroom)\n",
                load, r->plan->layout.token_headroom);
    }
}

bool mf_report_carries_energy(const mf_step_power *p, const char *gpu) {
    return p->known && !p->measured && strcmp(gpu, "h200") != 0;
}

/* What each GPU draws, and what the step takes on it and on all of them. */
static void print_power(FILE *out, const mf_report *r) {
    const mf_step_power *p = &r->power;
    const int64_t gpus = r->plan->layout.gpus;
    if (!p->known) {
        return;
    }
    fprintf(out, "power       %.0f W a GPU (mean)", p->power_W);
    if (p->clock_Hz > 0) {
        fprintf(out, ", %.0f MHz", p->clock_Hz / 1e6);
    }
    fprintf(out, "%s\nenergy      %s a step and GPU",
            mf_report_carries_energy(p, r->cluster->gpu.name) ? ", scaled from H200" : "",
            mf_show_rate(p->energy_J, "J").s);
    if (gpus > 1) {
        fprintf(out, ", %s on %s GPUs", mf_show_rate((double)gpus * p->energy_J, "J").s,
                mf_show_i64(gpus).s);
    }
    putc('\n', out);
}

void mf_report_print_time(FILE *out, const mf_report *r) {
    const mf_plan_prediction *p = &r->plan->prediction;
    mf_math math = mf_precision_math(r->plan->layout.precision);
    const double *peak = r->cluster->gpu.peak_flops;
    fprintf(out, "step time   %s  (%s to %s)\n", mf_show_time(p->step_time_s).s,
            mf_show_time(p->step_time_low_s).s, mf_show_time(p->step_time_high_s).s);
    fprintf(out, "rate        %s tokens/s/GPU, %s/GPU\n",
            mf_show_i64(llround(p->tokens_per_s_per_gpu)).s,
            mf_show_rate(p->model_tflops_per_gpu * 1e12, "FLOP/s").s);
    fprintf(out, "MFU         %s of %s", mf_show_percent(p->mfu).s, flops(peak[math]).s);
    if (math != MF_MATH_BF16) {
        fprintf(out, ", %s of %s in BF16", mf_show_percent(p->mfu_bf16).s,
                flops(peak[MF_MATH_BF16]).s);
    }
    fprintf(out, "\n            FLOPs %s\n", mf_flops_convention);
    print_power(out, r);
    print_memory(out, r);
    mf_host_copies_print(out, &r->copies);
}

/* --- breakdown -------------------------------------------------------------------------------- */

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

/* --- stages ----------------------------------------------------------------------------------- */

static double largest_of_kind(const mf_plan_prediction *p, int kind) {
    double most = 0;
    for (int64_t i = 0; i < p->stages; i++) {
        most = fmax(most, p->stage[i].kind_B[kind]);
    }
    return most;
}

/* Stages whose printed figures would be the same share a line. */
static bool same_line(const mf_plan_stage *a, const mf_plan_stage *b, double step_time_s) {
    bool same =
        fabs(a->peak_B - b->peak_B) < 5e6 && fabs(a->busy_s - b->busy_s) < 1e-3 * step_time_s;
    for (int k = 0; k < MF_MEM_COUNT; k++) {
        same = same && fabs(a->kind_B[k] - b->kind_B[k]) < 5e6;
    }
    return same;
}

void mf_report_print_stages(FILE *out, const mf_report *r) {
    static const char *const heads[MF_MEM_COUNT] = {
        [MF_MEM_WEIGHTS] = "weights",   [MF_MEM_GRADIENTS] = "grads", [MF_MEM_OPTIMIZER] = "optim",
        [MF_MEM_ACTIVATIONS] = "activ", [MF_MEM_HELD] = "held",       [MF_MEM_BOUNDARY] = "p2p",
        [MF_MEM_WORKSPACE] = "scratch", [MF_MEM_GATHERED] = "gather", [MF_MEM_COMM] = "comm",
        [MF_MEM_INPUTS] = "inputs",     [MF_MEM_CONTEXT] = "context", [MF_MEM_GAPS] = "gaps",
    };
    const mf_plan_prediction *p = &r->plan->prediction;
    bool host = false;
    fprintf(out, "\nmemory by stage at its peak, in GB (capacity %.1f)\n  %-7s %6s",
            p->capacity_B / 1e9, "stage", "peak");
    for (int k = 0; k < MF_MEM_COUNT; k++) {
        if (largest_of_kind(p, k) >= 5e6) {
            fprintf(out, " %7s", heads[k]);
        }
    }
    for (int64_t i = 0; i < p->stages; i++) {
        host = host || p->stage[i].host_B > 0;
    }
    fprintf(out, "%s    busy\n", host ? "    host" : "");
    for (int64_t from = 0, to; from < p->stages; from = to) {
        const mf_plan_stage *s = &p->stage[from];
        char range[24];
        for (to = from + 1; to < p->stages && same_line(s, &p->stage[to], p->step_time_s); to++) {
        }
        snprintf(range, sizeof range, to - from > 1 ? "%lld-%lld" : "%lld", LL(from), LL(to - 1));
        fprintf(out, "  %-7s %6.2f", range, s->peak_B / 1e9);
        for (int k = 0; k < MF_MEM_COUNT; k++) {
            if (largest_of_kind(p, k) >= 5e6) {
                fprintf(out, " %7.2f", s->kind_B[k] / 1e9);
            }
        }
        if (host) {
            fprintf(out, " %7.2f", s->host_B / 1e9);
        }
        fprintf(out, " %7s\n", mf_show_percent(s->busy_s / p->step_time_s).s);
    }
}

void mf_report_print(FILE *out, const mf_report *r) {
    mf_report_print_job(out, r);
    mf_report_print_time(out, r);
    mf_report_print_breakdown(out, r);
    mf_report_print_stages(out, r);
}

void mf_report_print_remedies(FILE *out, const mf_explanation *x) {
    if (x->remedies > 0) {
        fprintf(out, "\nwhat would help\n  %-46s %10s %8s  %s\n", "with", "step time", "gain",
                "known by");
    }
    for (int i = 0; i < x->remedies; i++) {
        const mf_remedy *r = &x->remedy[i];
        mf_show_name(out, r->what, 46);
        fprintf(out, " %10s %8s  %s\n", mf_show_time(r->step_time_s).s, mf_show_percent(r->gain).s,
                r->basis);
    }
}
