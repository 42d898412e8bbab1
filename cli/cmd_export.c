/* cmd_export.c - `moefold export`: a plan as a job of another program that starts. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "core/base/file.h"
#include "job/exchange/export_job.h"
#include "job/load/prices.h"
#include "launch/words/words.h"
#include "launch/write/write.h"
#include "report/text/output.h"
#include "report/text/show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct exported {
    mf_exported as; /* what the target runs */
    mf_launcher launcher;
    char model[96], cluster[64];
} exported;

/* --- output ----------------------------------------------------------------------------------- */

static mf_launch launch_of(const exported *x) {
    return (mf_launch){.target = x->as.target,
                       .launcher = x->launcher,
                       .model = &x->as.job.model,
                       .cluster = &x->as.job.cluster,
                       .plan = &x->as.job.plan,
                       .model_name = x->model,
                       .cluster_name = x->cluster};
}

static mf_status print_script(FILE *out, const exported *x, mf_err *e) {
    const mf_launch l = launch_of(x);
    const char *notes[MF_MOST_DIFFERENCES];
    for (int i = 0; i < x->as.notes; i++) {
        notes[i] = x->as.note[i].text;
    }
    return mf_write_script(&l, notes, x->as.notes, out, e);
}

static mf_status save_script(const char *path, const exported *x, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    if (f == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = print_script(f, x, e);
    const bool whole = !ferror(f);
    if ((fclose(f) != 0 || !whole) && s == MF_OK) {
        s = mf_err_set(e, MF_NOMEM, "out of memory");
    }
    s = s == MF_OK ? mf_file_save(path, text, length, e) : s;
    free(text);
    return s == MF_IO ? mf_err_prefix(e, "--out") : s;
}

/* What the file holds. */
static void print_saved(FILE *out, const char *path, const exported *x) {
    const mf_target_info *info = mf_target_info_of(x->as.target);
    fprintf(out, "%s starts the plan with %s (commit %.12s): bash %s\n", path, info->program,
            info->commit, path);
    for (int i = 0; i < x->as.notes; i++) {
        fprintf(out, "not the same  %s\n", x->as.note[i].text);
    }
    if (strncmp(x->as.job.software.name, "megatron", 8) != 0) {
        fprintf(out,
                "predicted     %s a step as %s trains; as %s does: moefold import %s --software "
                "%s\n",
                mf_show_time(x->as.job.plan.prediction.step_time_s).s, x->as.job.software.name,
                info->program, path, mf_software_newest_megatron());
    }
}

static void json_settings(mf_json_writer *w, const char *key, mf_target t, const mf_settings *s) {
    char text[4608];
    mf_json_write_object(w, key, false);
    for (int i = 0; i < s->count; i++) {
        const mf_setting *it = &s->item[i];
        const mf_word *word = mf_word_of_flag(it->name, strlen(it->name));
        word = word != NULL ? word : mf_word_of_key(it->name, strlen(it->name));
        if (word == NULL || !mf_write_item(t, it, text, sizeof text)) {
            continue;
        }
        char name[160];
        bool flag = t == MF_TARGET_MEGATRON;
        snprintf(name, sizeof name, "%s%s", flag ? "--" : "", flag ? word->flag : word->key);
        bool off = word->kind == MF_WORD_SWITCH && !flag &&
                   (strcmp(it->value, "true") == 0) == word->inverse;
        mf_json_write_string(w, name, off ? "false" : it->value);
    }
    mf_json_write_end(w);
}

static mf_status print_json(FILE *out, const exported *x, mf_err *e) {
    const mf_target_info *info = mf_target_info_of(x->as.target);
    const mf_launch l = launch_of(x);
    const mf_plan_prediction *now = &x->as.job.plan.prediction;
    mf_settings settings = {0}, environment = {0};
    mf_write_settings(&l, &settings);
    mf_write_environment(&l, &environment);
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "format", info->word);
    mf_json_write_string(&w, "program", info->program);
    mf_json_write_string(&w, "commit", info->commit);
    json_settings(&w, "settings", x->as.target, &settings);
    mf_json_write_object(&w, "environment", false);
    for (int i = 0; i < environment.count; i++) {
        mf_json_write_string(&w, environment.item[i].name, environment.item[i].value);
    }
    mf_json_write_end(&w);
    mf_json_write_array(&w, "not_the_same", false);
    for (int i = 0; i < x->as.notes; i++) {
        mf_json_write_object(&w, NULL, true);
        mf_json_write_string(&w, "what", x->as.note[i].text);
        mf_json_write_f64(&w, "step_time_change_s", x->as.note[i].step_time_change_s);
        mf_json_write_f64(&w, "peak_memory_change_B", x->as.note[i].peak_memory_change_B);
        mf_json_write_end(&w);
    }
    mf_json_write_end(&w);
    mf_json_write_bool(&w, "fits", now->fits);
    mf_json_write_f64(&w, "step_time_s", now->step_time_s);
    mf_json_write_f64(&w, "peak_memory_B", now->peak_memory_B);
    mf_json_write_f64(&w, "plan_step_time_s", x->as.before.step_time_s);
    mf_json_write_f64(&w, "plan_peak_memory_B", x->as.before.peak_memory_B);
    mf_json_write_end(&w);
    mf_settings_clear(&settings);
    mf_settings_clear(&environment);
    return mf_output_json(&w, out, e);
}

/* The script where --out is, and what is in it on the terminal; else the script. */
static mf_status print(const mf_args *a, FILE *out, const exported *x, mf_err *e) {
    const char *path = mf_args_text(a, MF_OPT_OUT, NULL);
    mf_status s = path != NULL ? save_script(path, x, e) : MF_OK;
    if (s != MF_OK) {
        return s;
    }
    if (a->value[MF_OPT_JSON].given) {
        return print_json(out, x, e);
    }
    if (path != NULL) {
        print_saved(out, path, x);
        return MF_OK;
    }
    return print_script(out, x, e);
}

/* --- the command ------------------------------------------------------------------------------ */

static mf_status read_options(const mf_args *a, exported *x, mf_err *e) {
    const char *launcher = mf_args_text(a, MF_OPT_LAUNCHER, "torchrun");
    mf_status s = mf_args_require(a, MF_OPT_PLAN, e);
    s = s == MF_OK ? mf_args_check_out(a, e) : s;
    if (s == MF_OK && a->value[MF_OPT_FORMAT].given) {
        s = mf_target_parse(a->value[MF_OPT_FORMAT].text, &x->as.target, e);
        s = s == MF_OK ? s : mf_err_prefix(e, "--format");
    }
    x->launcher = strcmp(launcher, "srun") == 0 ? MF_LAUNCHER_SRUN : MF_LAUNCHER_TORCHRUN;
    if (s == MF_OK && strcmp(launcher, "srun") != 0 && strcmp(launcher, "torchrun") != 0) {
        s = mf_err_set(e, MF_USAGE, "--launcher: expected srun or torchrun, got \"%s\"", launcher);
    }
    return s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    exported *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = read_options(a, x, e);
    if (s == MF_OK) {
        s = mf_args_load(&x->as.job, a, mf_job_load, e);
    }
    if (s == MF_OK) {
        snprintf(x->model, sizeof x->model, "%s",
                 mf_args_text(a, MF_OPT_MODEL, x->as.job.plan.model.name));
        snprintf(x->cluster, sizeof x->cluster, "%s", x->as.job.plan.provenance.cluster);
        s = mf_target_check_model(x->as.target, &x->as.job.model, x->model, e);
    }
    if (s == MF_OK) {
        s = mf_export_concede(&x->as, a->value[MF_OPT_FORCE].given, e);
    }
    if (s == MF_OK) {
        s = print(a, cli->out, x, e);
    }
    mf_job_clear(&x->as.job);
    free(x);
    return s;
}

static const mf_option_id options[] = {
    MF_OPT_PLAN,     MF_OPT_MODEL, MF_OPT_SET,    MF_OPT_STRICT,   MF_OPT_CLUSTER,
    MF_OPT_SOFTWARE, MF_OPT_STORE, MF_OPT_FORMAT, MF_OPT_LAUNCHER, MF_OPT_FORCE,
    MF_OPT_OUT,      MF_OPT_JSON,  MF_OPT_HELP,   MF_OPT_COUNT};

const mf_command mf_cmd_export = {
    .name = "export",
    .summary = "a plan as a job of Megatron-LM or Megatron-Bridge that starts",
    .usage = {"--plan FILE [--format megatron|bridge] [--launcher torchrun|srun] [--out FILE]"},
    .about =
        "Writes a script that starts the plan with Megatron-LM or Megatron-Bridge, as of the "
        "commit that it names at its top: flags of the model and of the plan, "
        "optimizer, schedule of the rate, environment variables that the program insists on, and "
        "the launch line. Start it in the program's folder, on every node (torchrun; HEAD names "
        "the first of several) or once in an allocation (srun). It trains on mock data until "
        "DATA_PATH and TOKENIZER_MODEL name something else; LR, MIN_LR, STEPS, WARMUP (a share of "
        "the steps) and CHECKPOINTS are read from the environment, too. Without --out the script "
        "is printed. For Megatron-Bridge the script names the recipe that builds the model; where "
        "there is none it has a short program of its own that builds it.\nWhat the program cannot "
        "express is replaced by what it runs "
        "instead, choices by layer of what is recomputed by the fastest choice for all layers "
        "that fits; the "
        "script begins with a list of these differences, each with its memory and its time. A plan "
        "that no longer fits with them is refused (exit code 3) without --force, a model with "
        "parts that the program cannot build in any case.",
    .example = "moefold export --plan plan.json --out launch.sh",
    .options = options,
    .run = run,
};
