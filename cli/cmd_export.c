/* cmd_export.c - `moefold export`: a plan as Megatron-LM flags or Megatron-Bridge overrides. */
#include "cli/commands.h"
#include "cli/export.h"
#include "cli/job.h"
#include "cli/output.h"
#include "cli/prices.h"

#include <stdlib.h>
#include <string.h>

typedef struct format {
    const char *name;
    const char *program, *commit; /* whose spelling it is, and as of when */
    bool bridge;
} format;

static const format formats[] = {
    {"megatron", "Megatron-LM", "d98e8a64ddf34856e74b24714e3bedb2f5a39553 (2026-08-22)", false},
    {"bridge", "Megatron-Bridge", "067f987df03b8355b03192d88d70f1709fedf51a (2026-08-22)", true},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static mf_status find_format(const char *name, const format **out, mf_err *e) {
    const char *known[FORMATS];
    for (int i = 0; i < FORMATS; i++) {
        known[i] = formats[i].name;
        if (strcmp(name, known[i]) == 0) {
            *out = &formats[i];
            return MF_OK;
        }
    }
    const char *near = mf_nearest_word(name, known, FORMATS);
    return mf_err_set(e, MF_USAGE,
                      "--format: unknown format \"%s\"%s%s%s: expected one of megatron bridge",
                      name, near != NULL ? " (did you mean \"" : "", near != NULL ? near : "",
                      near != NULL ? "\"?)" : "");
}

/* One setting as the shell reads it. */
static void item_text(const format *f, const mf_export_item *it, char *out, size_t size) {
    char value[sizeof it->value + 2];
    bool quote = strpbrk(it->value, "|*") != NULL;
    if (!f->bridge) {
        snprintf(out, size, "%s%s%s%s%s", it->flag, it->value[0] != '\0' ? " " : "",
                 quote ? "'" : "", it->value, quote ? "'" : "");
        return;
    }
    snprintf(value, sizeof value, it->list ? "[%s]" : "%s",
             it->value[0] != '\0' ? it->value : "true");
    for (char *p = value; *p != '\0'; p++) {
        *p = *p == ' ' ? ',' : *p;
    }
    quote = quote || it->list;
    snprintf(out, size, quote ? "'%s=%s'" : "%s=%s", it->key, value);
}

static bool has(const format *f, const mf_export_item *it) {
    return (f->bridge ? it->key : it->flag) != NULL;
}

static void print_text(FILE *out, const format *f, const mf_plan *p, const mf_export *x) {
    char text[sizeof x->item[0].value + 128];
    fprintf(out, "# %s on %lld x %s, as %s spells it at commit\n# %s\n", p->model.name,
            (long long)p->layout.gpus, p->provenance.cluster, f->program, f->commit);
    fputs("# The flags of the model itself are not part of a plan.\n", out);
    for (int i = 0; i < x->notes; i++) {
        fprintf(out, "# not the same: %s\n", x->note[i]);
    }
    bool first = true;
    for (int i = 0; i < x->items; i++) {
        if (has(f, &x->item[i])) {
            item_text(f, &x->item[i], text, sizeof text);
            fprintf(out, "%s%s", first ? "" : " \\\n", text);
            first = false;
        }
    }
    putc('\n', out);
}

static mf_status print_json(FILE *out, const format *f, const mf_export *x, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "format", f->name);
    mf_json_write_string(&w, "program", f->program);
    mf_json_write_string(&w, "commit", f->commit);
    mf_json_write_object(&w, "settings", false);
    for (int i = 0; i < x->items; i++) {
        const mf_export_item *it = &x->item[i];
        if (has(f, it)) {
            mf_json_write_string(&w, f->bridge ? it->key : it->flag,
                                 it->value[0] != '\0' ? it->value : "true");
        }
    }
    mf_json_write_end(&w);
    mf_json_write_array(&w, "not_the_same", false);
    for (int i = 0; i < x->notes; i++) {
        mf_json_write_string(&w, NULL, x->note[i]);
    }
    mf_json_write_end(&w);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    const format *f = &formats[0];
    mf_job j = {0};
    mf_export *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    mf_status s = mf_args_require(a, MF_OPT_PLAN, e);
    if (s == MF_OK && a->value[MF_OPT_FORMAT].given) {
        s = find_format(a->value[MF_OPT_FORMAT].text, &f, e);
    }
    if (s == MF_OK) {
        s = mf_job_load_plan(&j, a, e);
    }
    if (s == MF_OK) {
        mf_export_plan(&j.plan, &j.model, x);
        if (a->value[MF_OPT_JSON].given) {
            s = print_json(cli->out, f, x, e);
        } else {
            print_text(cli->out, f, &j.plan, x);
        }
    }
    free(x);
    mf_job_clear(&j);
    return s;
}

static const mf_option_id options[] = {MF_OPT_PLAN, MF_OPT_MODEL, MF_OPT_SET,  MF_OPT_FORMAT,
                                       MF_OPT_JSON, MF_OPT_HELP,  MF_OPT_COUNT};

const mf_command mf_cmd_export = {
    .name = "export",
    .summary = "a plan as Megatron-LM flags or Megatron-Bridge overrides",
    .usage = {"--plan FILE [--format megatron|bridge]"},
    .about = "Writes a plan in the words of Megatron-LM or Megatron-Bridge, as of the commit that "
             "the first line names. What those programs cannot express, or do in another way, "
             "stands in front as a comment.",
    .example = "moefold export --plan plan.json",
    .options = options,
    .run = run,
};
