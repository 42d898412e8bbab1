/* args_request.c - a command line as a request for a job. */
#include "cli/args_request.h"

#include "cli/host_measure.h"
#include "job/search/runs_on.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *mf_args_text(const mf_args *a, mf_option_id id, const char *absent) {
    return a->value[id].given ? a->value[id].text : absent;
}

mf_status mf_args_check_out(const mf_args *a, mf_err *e) {
    const char *path = mf_args_text(a, MF_OPT_OUT, NULL);
    char folder[4096] = ".";
    struct stat info;
    if (path == NULL) {
        return MF_OK;
    }
    const char *slash = strrchr(path, '/');
    if (slash != NULL) {
        const int length = slash == path ? 1 : (int)(slash - path);
        snprintf(folder, sizeof folder, "%.*s", length, path);
    }
    const bool there = stat(path, &info) == 0;
    if (there && S_ISDIR(info.st_mode)) {
        errno = EISDIR;
    } else if (access(there ? path : folder, W_OK) == 0) {
        return MF_OK;
    }
    return mf_err_set(e, MF_IO, "--out: %s: %s", path, strerror(errno));
}

mf_report_folder mf_args_report(const mf_args *a, const mf_cli *cli) {
    return (mf_report_folder){.dir = mf_args_text(a, MF_OPT_REPORT, NULL),
                              .command = cli->command != NULL ? cli->command->name : "",
                              .argc = cli->argc,
                              .argv = cli->argv,
                              .plan = mf_args_text(a, MF_OPT_PLAN, NULL),
                              .log = mf_args_text(a, MF_OPT_LOG, NULL),
                              .run = mf_args_text(a, MF_OPT_RUN, NULL),
                              .store = mf_args_text(a, MF_OPT_STORE, NULL),
                              .word = a->word,
                              .words = a->words,
                              .cancel = cli->cancel};
}

static uint32_t given_options(const mf_args *a) {
    uint32_t bits = 0;
    for (int k = 0; k < MF_GIVEN_COUNT; k++) {
        const char *name = mf_given_option_name((mf_given_option)k);
        bits |= a->value[mf_option_find(name, strlen(name), NULL)].given ? 1u << k : 0;
    }
    return bits;
}

/* The first option given that a plan rules out. */
static const char *layout_option(const mf_args *a) {
    for (int id = 0; id < MF_OPT_COUNT; id++) {
        const mf_option *o = mf_option_get((mf_option_id)id);
        if (a->value[id].given && id != MF_OPT_DETERMINISTIC &&
            (o->apply != NULL || o->group == MF_OPTS_CHOICES)) {
            return o->name;
        }
    }
    return NULL;
}

mf_status mf_args_request(const mf_args *a, mf_job_request *out, mf_err *e) {
    mf_job_request_init(out);
    out->model = mf_args_text(a, MF_OPT_MODEL, NULL);
    out->cluster = mf_args_text(a, MF_OPT_CLUSTER, NULL);
    out->set = a->set;
    out->set_count = (size_t)a->set_count;
    out->strict = a->value[MF_OPT_STRICT].given;
    out->software = mf_args_text(a, MF_OPT_SOFTWARE, NULL);
    if (!a->value[MF_OPT_PLAN].given && a->words == 0) { /* neither says who runs it */
        out->software = mf_runs_on_software(mf_args_text(a, MF_OPT_RUNS_ON, NULL), out->software);
    }
    out->store = mf_args_text(a, MF_OPT_STORE, NULL);
    out->corrected = a->corrected;
    out->routing = mf_args_text(a, MF_OPT_ROUTING, mf_args_text(a, MF_OPT_FORCE_ROUTING, NULL));
    out->plan = mf_args_text(a, MF_OPT_PLAN, NULL);
    out->beside_plan = layout_option(a);
    out->pinned = mf_args_pinned(a);
    out->given = given_options(a);
    out->stages = mf_args_text(a, MF_OPT_PIPELINE_LAYOUT, NULL);
    out->recompute_layers = a->value[MF_OPT_RECOMPUTE_LAYERS].i;
    out->unsure = mf_args_text(a, MF_OPT_UNSURE, NULL);
    out->precisions = mf_args_text(a, MF_OPT_PRECISIONS, NULL);
    out->notes = a->notes;
    mf_status s = mf_args_apply(a, &out->layout, e);
    out->layout.deterministic |= a->value[MF_OPT_RERUN].given; /* which compares bits */
    return s;
}

mf_status mf_args_require_sizes(const mf_args *a, mf_err *e) {
    static const mf_option_id ids[] = {MF_OPT_GPUS, MF_OPT_GLOBAL_BATCH, MF_OPT_SEQ};
    mf_status s = MF_OK;
    for (size_t i = 0; s == MF_OK && i < sizeof ids / sizeof ids[0]; i++) {
        s = mf_args_require(a, ids[i], e);
    }
    return s;
}

mf_status mf_args_load(mf_job *j, const mf_args *a, mf_job_load_fn load, mf_err *e) {
    mf_job_request r;
    mf_job_init(j);
    mf_status s = mf_args_request(a, &r, e);
    return s == MF_OK ? mf_host_load_job(j, &r, load, a->notes, e) : s;
}

static mf_status apply(const void *user, mf_layout *l, mf_err *e) {
    return mf_args_apply(user, l, e);
}

mf_status mf_args_load_changed(mf_job *j, const mf_args *a, mf_err *e) {
    mf_job_request r;
    mf_job_init(j);
    mf_status s = mf_args_request(a, &r, e);
    r.change = apply;
    r.change_user = a;
    return s == MF_OK ? mf_host_load_job(j, &r, mf_job_load_layout, a->notes, e) : s;
}

mf_status mf_args_effort(const mf_args *a, int64_t *out, mf_err *e) {
    const mf_value *v = &a->value[MF_OPT_EFFORT];
    if (v->given && v->i == 0) {
        return mf_err_set(e, MF_USAGE,
                          "--effort: expected an integer from 1 to 1000000, got \"0\"");
    }
    *out = v->given ? v->i * 1000000 : *out;
    return MF_OK;
}

mf_status mf_args_import(mf_imported *x, const mf_args *a, mf_err *e) {
    mf_import_request r = {
        .word = a->word, .words = a->words, .recipe = mf_args_text(a, MF_OPT_RECIPE, NULL)};
    mf_status s = mf_args_request(a, &r.asked, e);
    return s == MF_OK ? mf_import_load(&r, x, e) : s;
}
