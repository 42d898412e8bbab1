/* report.h - a predicted step, for people and as JSON. */
#ifndef MF_REPORT_REPORT_H
#define MF_REPORT_REPORT_H

#include "core/plan/plan.h"
#include "job/figures/step_power.h"
#include "job/load/under_megatron.h"
#include "job/search/host_copies.h"
#include "planner/planner.h"
#include "report/text/output.h"

#include <stdio.h>

/* What is reported: a plan with a prediction, and what it is a plan for. All borrowed. */
typedef struct mf_report {
    const mf_model *model;
    const mf_cluster *cluster;
    const mf_plan *plan;
    const mf_routing *routing;
    const mf_kept_correction *correction; /* of the software's prices; NULL: none */
    const char *made_for; /* cluster that a plan file was made for, if another one; "" */
    unsigned unsaid;      /* options that are guesses (job/load/unsaid.h) */
    const mf_software *software;
    const char *measured;              /* date of the newest measurement of the cluster's GPU; "" */
    const mf_under_megatron *megatron; /* the same plan there; NULL: not asked */
    mf_step_power power;   /* of the plan (mf_step_power_of); not known: none is printed */
    mf_host_copies copies; /* of the plan; not counted: not printed */
    double reported_B;     /* peak that its program prints (mf_reported_memory); 0: not asked */
} mf_report;

/* A line on a correction that prices rest on; nothing where none is used. */
void mf_report_print_correction(FILE *out, const mf_kept_correction *k);

/* Of a job and one of its plans; nothing of Megatron, neither power nor copies. */
mf_report mf_report_of(const mf_job *j, const mf_plan *plan);
/* Adds power, host copies and reported memory of a plan that has a prediction. Errors: those of
 * lowering. */
mf_status mf_report_add_up(mf_report *r, const mf_job *j, mf_err *e);

/* Memory that stands beside a log's: what the program would print, where its profile says what that
 * is (*allocated: what PyTorch allocates, without CUDA context, NCCL's buffers and gaps), else the
 * whole peak. r was added up. */
double mf_report_logged_memory(const mf_report *r, bool *allocated);

/* Are its energies those of an H200, carried over to this kind of GPU? */
bool mf_report_carries_energy(const mf_step_power *p, const char *gpu);
/* Member "energies_of": the GPU whose joules of ops they are. */
void mf_report_energies_json(mf_json_writer *w, bool carried, const char *gpu);

/* "moefold in bf16; ops of h100 measured until 2026-11-22" */
void mf_report_program_text(const mf_software *s, mf_precision precision, const char *gpu,
                            const char *measured, char *out, size_t size);

/* What moefold's own executor does not do yet of what its prices are for, so that nobody trains it:
 * of the model, the GPU or the layout's arithmetic. NULL: nothing, or prices of another program. */
const char *mf_report_gpu_not_trained(const mf_software *s, const mf_cluster *c); /* of the GPU */
const char *mf_report_not_trained(const mf_software *s, const mf_model *m, const mf_layout *l,
                                  const mf_cluster *c);

/* Routed rows of the busiest expert rank of any layer over the balanced number (>= 1), and whether
 * they are more than the plan's token headroom has space for, so that a run would go on with more
 * space. */
double mf_report_max_load(const mf_report *r, bool *overflows);

/* Members of the object that `simulate --json` prints, into the object that is open in w. */
void mf_report_json(mf_json_writer *w, const mf_report *r);
/* Of it, what Megatron would take: "in_megatron": {...}. */
void mf_report_under_megatron_json(mf_json_writer *w, const mf_under_megatron *m);
/* For people: mf_under_megatron.why, which Megatron cannot express. */
const char *mf_report_inexpressible(const char *why);

/* The same for people: layout, time, memory, breakdown, stages. */
void mf_report_print(FILE *out, const mf_report *r);
/* Parts of it. */
void mf_report_print_job(FILE *out, const mf_report *r);       /* two or three lines */
void mf_report_print_time(FILE *out, const mf_report *r);      /* step time, rates, memory */
void mf_report_print_breakdown(FILE *out, const mf_report *r); /* bars, what holds it back */
void mf_report_print_stages(FILE *out, const mf_report *r);    /* memory by kind, busy, idle */
/* What some layers recompute or offload, one choice a call: "recompute core_attn in layers 0 to
 * 57". *at is 0 before the first. False: there is no more. */
bool mf_report_memory_choice(const mf_assignment *a, int *at, char *out, size_t size);

/* "TP 2  CP 1  PP 8 ..." in one line. */
void mf_report_layout_text(const mf_layout *l, char *out, size_t size);
/* What an explanation would change, and what it gains: nothing when there is nothing. */
void mf_report_print_remedies(FILE *out, const mf_explanation *x);
/* "remedies": [{"what", "step_time_s", "gain", "basis"}], and the same behind "explanation":
 * {"memory", "time"}. */
void mf_report_json_remedies(mf_json_writer *w, const mf_explanation *x);
void mf_report_json_explanation(mf_json_writer *w, const mf_explanation *x);

#endif
