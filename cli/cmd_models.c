/* cmd_models.c - `moefold models`: the models that ship, or one model and its parameters. */
#include "cli/cli.h"
#include "cli/commands.h"
#include "core/model/model.h"
#include "job/load/job.h"
#include "report/inputs/model_report.h"
#include "report/text/output.h"

#include <stdlib.h>
#include <string.h>

static int by_family(const void *a, const void *b) {
    const mf_model *x = a, *y = b;
    int order = strcmp(x->family, y->family);
    return order != 0 ? order : strcmp(x->name, y->name);
}

/* All that ship, those of a family together. */
static mf_status list(const mf_cli *cli, mf_json_writer *w, mf_err *e) {
    size_t count;
    const char *const *names = mf_model_shipped(&count);
    mf_model *m = calloc(count, sizeof *m);
    if (m == NULL) {
        return mf_err_set(e, MF_NOMEM, "models: out of memory");
    }
    mf_status s = MF_OK;
    for (size_t i = 0; i < count && s == MF_OK; i++) {
        s = mf_model_load(names[i], &m[i], e);
    }
    if (s == MF_OK) {
        qsort(m, count, sizeof *m, by_family);
    }
    if (s == MF_OK && w == NULL) {
        mf_model_report_heads(cli->out);
    }
    for (size_t i = 0; i < count && s == MF_OK; i++) {
        if (w != NULL) {
            mf_model_report_json(w, &m[i]);
        } else {
            mf_model_report_row(cli->out, &m[i]);
        }
    }
    free(m);
    return s;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_json_writer w;
    mf_model m;
    mf_status s = MF_OK;
    bool json = a->value[MF_OPT_JSON].given;
    const mf_job_request asked = {.strict = a->value[MF_OPT_STRICT].given, .notes = a->notes};
    mf_json_writer_init(&w);
    if (a->words == 0 && a->set_count > 0) {
        return mf_err_set(e, MF_USAGE, "--set needs the name of a model");
    }
    if (a->words == 1) {
        s = mf_model_load_with(a->word[0], a->set, (size_t)a->set_count, &m, e);
        s = s == MF_OK ? mf_job_say_left_out(&asked, &m, e) : s;
        if (s == MF_OK && json) {
            mf_model_report_json(&w, &m);
        } else if (s == MF_OK) {
            mf_model_report_print(cli->out, &m);
        }
    } else if (json) {
        mf_json_write_array(&w, NULL, false);
        s = list(cli, &w, e);
        mf_json_write_end(&w);
    } else {
        s = list(cli, NULL, e);
    }
    if (s == MF_OK && json) {
        s = mf_output_json(&w, cli->out, e);
    }
    mf_json_writer_clear(&w);
    return s;
}

static const mf_option_id options[] = {MF_OPT_SET,  MF_OPT_STRICT, MF_OPT_VERBOSE,
                                       MF_OPT_JSON, MF_OPT_HELP,   MF_OPT_COUNT};

const mf_command mf_cmd_models = {
    .name = "models",
    .summary = "the models that ship, or one model and where its parameters are",
    .usage = {"[NAME|FILE] [--set KEY=VALUE] [--json]"},
    .about = "Without a name it lists the shipped models by family, with what can be done with "
             "each: planned, trained on CPU ranks (CPU) or on GPUs (GPU), exported to Megatron; "
             "else its parameters are counted. With a name, or a path to a Hugging Face "
             "config.json, it shows that model.\nParameters are summed tensor by tensor. MTP "
             "depths are counted apart, as the public totals do.",
    .example = "moefold models deepseek-v3",
    .words = 1,
    .options = options,
    .run = run,
};
