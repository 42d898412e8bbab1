/* report.c - a predicted step for people: its time, its memory, its stages. */
#include "report/step/report.h"

#include "job/figures/reported_memory.h"
#include "job/load/job.h"
#include "report/basis/host_copies_text.h"
#include "report/text/show.h"

#include <math.h>
#include <string.h>

#define LL(x) ((long long)(x))

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
                "            an expert rank gets %.2f times the balanced rows, but has memory for "
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
