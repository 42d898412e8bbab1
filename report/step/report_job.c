/* report_job.c - what was predicted: the job, the program that trains it and its layout, for
 * people.
 */
#include "report/step/report.h"

#include "job/load/job.h"
#include "job/load/unsaid.h"
#include "report/text/show.h"

#include <math.h>
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

/* --- who trains it ---------------------------------------------------------------------------- */

void mf_report_print_correction(FILE *out, const mf_kept_correction *k) {
    char text[320];
    if (k != NULL && k->used) {
        mf_corrections_say(k, text, sizeof text);
        fprintf(out, "corrected   %s\n", text);
    }
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
