/* plan.h - the plan file: one decision, complete and versioned, that the simulator predicts and the
 * executor runs.
 *
 * A plan holds a layout, the layers of every virtual stage, the memory choice of every layer, the
 * precision, what was predicted for it with bands, and what all this rests on. As JSON (the format
 * is docs/planner.md, "The plan file"): strict on the way in (unknown keys, wrong types, ranges and
 * inconsistent lengths are refused with file:line:col), canonical on the way out. It holds no clock
 * and no counter, so the same plan gives the same bytes, and reading what was written and
 * writing it again gives the same bytes.
 */
#ifndef MF_CORE_PLAN_H
#define MF_CORE_PLAN_H

#include "core/base/json.h"
#include "core/base/json_write.h"
#include "core/cluster/cluster.h"
#include "core/memory/memory.h"
#include "core/program/lower.h"

#define MF_PLAN_FORMAT "moefold-plan"
#define MF_PLAN_VERSION 1

typedef struct mf_plan_provenance {
    char generator[64]; /* "moefold 0.1" */
    char cluster[64];   /* as mf_cluster_load takes it */
    char cluster_fingerprint[20];
    char software[32];
    char measurements[96]; /* which profile store: "shipped", a file's name, ... */
    char routing[512];     /* "balanced", "zipf:1.2", a file's path */
    bool searched;         /* false: a layout given by hand */
    int64_t space;         /* distinct valid layouts that were considered */
    double lower_bound_s;  /* no plan of the space is faster under this cost model */
    double gap;            /* step time over it, minus one; infinite: nothing was proven */
} mf_plan_provenance;

#define MF_PLAN_MAX_FIGURES 32

/* A named part of a prediction, e.g. {"exposed_ep", 0.12}. */
typedef struct mf_plan_figure {
    char key[32];
    double value;
} mf_plan_figure;

typedef struct mf_plan_stage {
    double peak_B, host_B;
    double kind_B[MF_MEM_COUNT]; /* sums to peak_B */
    double busy_s, idle_s;
} mf_plan_stage;

typedef struct mf_plan_prediction {
    bool fits;
    double step_time_s, step_time_low_s, step_time_high_s;
    double tokens_per_s_per_gpu, model_tflops_per_gpu, mfu, mfu_bf16;
    double peak_memory_B, capacity_B, usable_B;
    int breakdown_count;
    mf_plan_figure breakdown_s[MF_PLAN_MAX_FIGURES]; /* sums to step_time_s */
    int64_t stages;
    mf_plan_stage *stage; /* [stages]; owned */
} mf_plan_prediction;

typedef struct mf_plan {
    mf_model_identity model;
    mf_layout layout; /* resolved; its `memory` is the choice of most layers */
    mf_assignment assignment;
    bool predicted; /* prediction holds something */
    mf_plan_prediction prediction;
    mf_plan_provenance provenance;
} mf_plan;

/* An empty plan / frees what a plan owns. */
void mf_plan_init(mf_plan *p);
void mf_plan_clear(mf_plan *p);

/* Canonical text; the caller frees *out. Errors: MF_NOMEM. */
mf_status mf_plan_to_json(const mf_plan *p, char **out, size_t *length, mf_err *e);
/* The same written into a text that is being built (`plan --json` holds plans). */
void mf_plan_write(mf_json_writer *w, const char *key, const mf_plan *p);
/* A layout alone, with the spellings of the command line: the "layout" of `simulate --json`. */
void mf_plan_write_layout(mf_json_writer *w, const char *key, const mf_layout *l);
/* Members of the object that is open: a stage's busy and idle time, and its memory by kind. */
void mf_plan_write_stage_use(mf_json_writer *w, const mf_plan_stage *s);
/* Writes a file (through a temporary beside it, so that no half plan is ever seen). MF_IO. */
mf_status mf_plan_save(const mf_plan *p, const char *path, mf_err *e);

/* From a parsed file. *out is initialised and is to be cleared, also after an error. Errors:
 * MF_INPUT with file:line:col; MF_NOMEM. The layout's degrees are those of the file, not yet held
 * against a model: see mf_plan_check. */
mf_status mf_plan_from_json(const mf_json *doc, mf_plan *out, mf_err *e);
mf_status mf_plan_load(const char *path, mf_plan *out, mf_err *e);

/* Holds a plan against the model it is to be run with: same fingerprint, layout valid and equal to
 * what its degrees resolve to, assignment complete and in order. Errors: MF_INPUT, MF_LAYOUT. */
mf_status mf_plan_check(const mf_plan *p, const mf_model *m, mf_err *e);

#endif
