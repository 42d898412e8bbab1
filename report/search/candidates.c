/* candidates.c - plans that compete as CSV. */
#include "report/search/candidates.h"

#include "report/step/report.h"

#include <math.h>
#include <string.h>

typedef struct candidate {
    const char *what; /* "plan 1", "--tp 4" */
    const mf_layout *layout;
    const mf_assignment *assignment;
    bool fits;
    double step_time_s, low_s, high_s, peak_B, mfu; /* NAN: not known */
} candidate;

void mf_candidates_memory(const mf_assignment *a, char *out, size_t size) {
    char one[448];
    size_t used = 0;
    snprintf(out, size, "none");
    for (int at = 0; used < size && mf_report_memory_choice(a, &at, one, sizeof one);) {
        used += (size_t)snprintf(out + used, size - used, "%s%s", used > 0 ? "; " : "", one);
    }
}

/* "8 8 7": the positions of each virtual stage. */
static void say_split(const mf_assignment *a, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (int v = 0; v < a->vstages && used < size; v++) {
        used += (size_t)snprintf(out + used, size - used, "%s%d", v > 0 ? " " : "",
                                 a->first[v + 1] - a->first[v]);
    }
}

static void write_known(FILE *f, double value) {
    if (isfinite(value)) {
        fprintf(f, "%.17g", value);
    }
    putc(',', f);
}

static void write_head(FILE *f) {
    fputs("step_time_s,step_time_low_s,step_time_high_s,peak_memory_B,mfu,tp,cp,pp,vpp,ep,etp,dp,"
          "micro_batch,zero,expert_zero,schedule,dispatcher,precision,cp_type,overlap,cuda_graph,"
          "moments,offload_optimizer,memory,positions,fits,candidate\n",
          f);
}

static void write_row(FILE *f, const candidate *c) {
    const mf_layout *l = c->layout;
    char overlap[64], memory[2048], split[4096];
    mf_overlap_format(l->overlap, overlap, sizeof overlap);
    mf_candidates_memory(c->assignment, memory, sizeof memory);
    say_split(c->assignment, split, sizeof split);
    write_known(f, c->step_time_s);
    write_known(f, c->low_s);
    write_known(f, c->high_s);
    write_known(f, c->peak_B);
    write_known(f, c->mfu);
    fprintf(f, "%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%d,%d,%s,%s,%s,", (long long)l->tp,
            (long long)l->cp, (long long)l->pp, (long long)l->vpp, (long long)l->ep,
            (long long)l->etp, (long long)l->dp, (long long)l->mbs, l->zero, l->expert_zero,
            mf_schedule_text(l->schedule), mf_dispatcher_text(l->dispatcher),
            mf_precision_text(l->precision));
    fprintf(f, "%s,\"%s\",%s,%s,%.17g,\"%s\",\"%s\",%d,\"%s\"\n", mf_cp_type_text(l->cp_type),
            overlap, mf_graph_text(l->graph), l->moments_bf16 ? "bf16" : "fp32",
            l->offload_optimizer, memory, split, c->fits, c->what);
}

static void write_plan(FILE *f, const mf_plan *plan, const char *what) {
    const mf_plan_prediction *p = &plan->prediction;
    write_row(f, &(candidate){.what = what,
                              .layout = &plan->layout,
                              .assignment = &plan->assignment,
                              .fits = p->fits,
                              .step_time_s = p->step_time_s,
                              .low_s = p->step_time_low_s,
                              .high_s = p->step_time_high_s,
                              .peak_B = p->peak_memory_B,
                              .mfu = p->mfu});
}

void mf_candidates_of_search(FILE *f, const mf_search_result *r) {
    char what[32];
    write_head(f);
    for (int i = 0; i < r->count; i++) {
        snprintf(what, sizeof what, "plan %d", i + 1);
        write_plan(f, &r->plan[i], what);
    }
}

static void write_steps(FILE *f, const mf_steps *steps) {
    for (int i = 0; i < steps->count; i++) {
        const mf_one_step *s = &steps->step[i];
        write_row(f, &(candidate){.what = s->what,
                                  .layout = &s->layout,
                                  .assignment = &s->assignment,
                                  .fits = s->fits,
                                  .step_time_s = s->step_time_s,
                                  .low_s = s->low_s > 0 ? s->low_s : (double)NAN,
                                  .high_s = s->high_s > 0 ? s->high_s : (double)NAN,
                                  .peak_B = s->peak_B,
                                  .mfu = (double)NAN});
    }
}

void mf_candidates_of_tune(FILE *f, const mf_tuning *t) {
    const mf_plan *best = mf_tuning_better_plan(t);
    write_head(f);
    write_plan(f, &t->job->plan, "present");
    if (best != NULL) {
        write_plan(f, best, "best");
    }
    write_steps(f, &t->to_fit);
    write_steps(f, &t->steps);
}
