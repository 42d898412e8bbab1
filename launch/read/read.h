/* read.h - a job that exists, read from what starts it or from what it printed: a Megatron-LM
 * command line or script, the argument dump of a log, flags in YAML (ModelZoo), Megatron-Bridge's
 * overrides or recipes.
 */
#ifndef MF_LAUNCH_READ_H
#define MF_LAUNCH_READ_H

#include "launch/words/settings.h"

#include "core/plan/plan.h"

#define MF_READ_MAX_UNKNOWN 64

/* What a text said. All zero is empty. */
typedef struct mf_read {
    mf_settings settings;  /* in the names of launch/words/words.h */
    mf_settings given;     /* NAME=VALUE from the caller: no text sets these otherwise */
    mf_settings variables; /* NAME=VALUE of a shell */
    mf_settings moefold;   /* "# moefold: --cluster h100": what the target has no flag for */
    mf_settings unknown;   /* flags and keys that launch/words/words.h does not have */
    bool overrides;        /* of Megatron-Bridge's configuration stood in it */
    bool assumed;          /* some of the layout is as recipes begin, which none was read of */
    int launches;          /* jobs that a script starts, where there are several */
    char *python;          /* all Python texts so far: functions call one another across files */
    mf_settings modules;   /* files whose texts were added because another imports them */
    int taken;         /* functions of the last one that were read, each time they were called */
    size_t unfolded_B; /* of variables' values that were read as flags, in the last shell text */
} mf_read;

void mf_read_clear(mf_read *r);

/* Adds what a text says; later words win. `name` is the file's, for messages. recipe: of a Python
 * file, the function to read (with those that it calls in texts read before), of a script that
 * starts several jobs, the job's number; NULL = all of it, the last job.
 * Variables ($NAME, ${NAME}, ${NAME:-x}) stand for what `variables` holds by then. Errors:
 * MF_INPUT, MF_NOMEM. A Python file brings the modules that it imports, where they lie beside it.
 */
mf_status mf_read_text(mf_read *r, const char *name, const char *text, const char *recipe,
                       mf_err *e);
mf_status mf_read_file(mf_read *r, const char *path, const char *recipe, mf_err *e);

/* One setting by the name of a flag, a key or a dump's name; what is not known is listed. */
void mf_read_flag(mf_read *r, const char *flag, size_t length, const char *value);
void mf_read_key(mf_read *r, const char *key, size_t length, const char *value);
void mf_read_dest(mf_read *r, const char *dest, size_t length, const char *value);

/* model_configs/benchmarking/MODEL.yaml in a folder above the script: what ModelZoo's launcher
 * reads for its MODEL. False: there is none. */
bool mf_read_modelzoo_config(const char *script, const char *model, char *out, size_t size);

/* The settings that variables of ModelZoo's launcher stand for (TP, PP, VPP, PR, DISPATCHER, ...).
 */
mf_status mf_read_modelzoo(mf_read *r, mf_err *e);
/* Sets the variables that a script leaves unset to that launcher's defaults for its MODEL. */
void mf_read_modelzoo_defaults(mf_read *r);

/* The shipped model that the flags describe, and overrides ("num_hidden_layers=4") that make it
 * that model; `set` receives up to 8. name: what the caller says, NULL = found by the flags.
 * Errors: MF_INPUT when no shipped model has these widths. */
#define MF_READ_MAX_SET 8
typedef struct mf_read_model {
    char name[96];
    int sets;
    char set[MF_READ_MAX_SET][64];
    mf_model model;
} mf_read_model;
mf_status mf_read_find_model(mf_read *r, const char *name, mf_read_model *out, mf_err *e);

/* Layout and assignment, with Megatron's defaults for what is not said (ETP = TP, one micro-batch a
 * rank, no distributed optimizer, ...), beside overrides without a recipe with those of Bridge's
 * recipes. gpus: 0 = from the launch line. Errors: MF_INPUT,
 * MF_LAYOUT. */
mf_status mf_read_plan(mf_read *r, const mf_model *m, int64_t gpus, mf_plan *out, mf_err *e);

/* "Et*3|t*4|(tt|)*3mL": positions of virtual stages; *stages is their number. Errors: MF_INPUT. */
mf_status mf_read_stages(const char *text, const mf_model *m, mf_assignment *out, mf_err *e);
/* "MEM*E|ME", "/" before each MTP depth: the same of a hybrid, by the letters of its layers; one
 * stage leaves *out alone.
 */
mf_status mf_read_letters(const char *text, const mf_model *m, mf_assignment *out, mf_err *e);

#endif
