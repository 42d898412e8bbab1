/* import_job.c - words as a job: scripts, logs, recipes, flags, variables. */
#include "job/exchange/import_job.h"

#include "core/base/file.h"
#include "core/base/version.h"
#include "job/load/prices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_variable(const char *word) {
    size_t length = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return length > 0 && word[length] == '=';
}

/* A word that stands for no file: NAME=VALUE, or an override of Megatron-Bridge. */
static bool is_text(const char *word) {
    return is_variable(word) || (strchr(word, '=') != NULL && strchr(word, '/') == NULL) ||
           strncmp(word, "--", 2) == 0;
}

/* Words are one command line, files between them. A flag and its value may be two words. */
static mf_status read_words(const mf_import_request *r, mf_imported *x, mf_err *e) {
    char line[16384] = "";
    for (int i = 0; i < r->words; i++) {
        if (is_variable(r->word[i])) {
            char name[128];
            const char *value = strchr(r->word[i], '=');
            snprintf(name, sizeof name, "%.*s", (int)(value - r->word[i]), r->word[i]);
            mf_settings_put(&x->read.given, name, "%s", value + 1);
            mf_settings_put(&x->read.variables, name, "%s", value + 1);
        }
    }
    for (int i = 0; i < r->words; i++) {
        bool value =
            i > 0 && strncmp(r->word[i - 1], "--", 2) == 0 && strchr(r->word[i - 1], '=') == NULL;
        size_t used = strlen(line);
        if (is_text(r->word[i]) || value) {
            snprintf(line + used, sizeof line - used, "%s '%s'", used > 0 ? " " : "", r->word[i]);
            continue;
        }
        mf_status s = mf_read_file(&x->read, r->word[i], r->recipe, e);
        if (s != MF_OK) {
            return s;
        }
    }
    mf_status s = mf_read_text(&x->read, "command line", line, NULL, e);
    if (s == MF_OK && r->recipe != NULL) {
        mf_settings_put(&x->read.settings, "recipe", "%s", r->recipe);
    }
    return s;
}

/* ModelZoo's scripts name a model whose flags lie beside them: those come first, unless the flags
 * of a model were given. */
static mf_status read_config(const mf_import_request *r, mf_imported *x, bool described,
                             mf_err *e) {
    char path[4096];
    const char *model = mf_settings_text(&x->read.variables, "MODEL", "");
    for (int i = 0; i < r->words && !described; i++) {
        if (!is_text(r->word[i]) && mf_read_modelzoo_config(r->word[i], model, path, sizeof path)) {
            return mf_read_file(&x->read, path, NULL, e);
        }
    }
    return MF_OK;
}

/* Reads the words twice: a variable that is set late may be used in a file that is read earlier. */
static mf_status read_all(const mf_import_request *r, mf_imported *x, mf_err *e) {
    if (r->words == 0) {
        return mf_err_set(e, MF_USAGE, "expected a script, a log, a recipe or flags");
    }
    mf_status s = read_words(r, x, e);
    if (s == MF_OK) {
        const bool described = mf_settings_has(&x->read.settings, "hidden-size");
        mf_settings_clear(&x->read.settings);
        mf_settings_clear(&x->read.unknown);
        mf_read_modelzoo_defaults(&x->read);
        s = read_config(r, x, described, e);
    }
    s = s == MF_OK ? read_words(r, x, e) : s;
    s = s == MF_OK ? mf_read_modelzoo(&x->read, e) : s;
    for (int i = 0; i < r->words && s == MF_OK; i++) {
        char *text = NULL;
        size_t length = 0;
        if (!is_text(r->word[i]) &&
            mf_file_load(r->word[i], 64 << 20, &text, &length, NULL) == MF_OK) {
            mf_log_read(&x->log, text);
        }
        free(text);
    }
    return s;
}

/* The cluster and, with it, prices: what the job is simulated on. */
static mf_status price(const mf_import_request *r, mf_imported *x, mf_err *e) {
    mf_job *j = &x->job;
    const char *ours = mf_settings_text(&x->read.moefold, "cluster", NULL);
    mf_plan_provenance *p = &j->plan.provenance;
    const char *cluster = r->asked.cluster != NULL ? r->asked.cluster : ours;
    const char *software =
        mf_settings_text(&x->read.moefold, "software", mf_software_newest_megatron());
    if (cluster == NULL) {
        return mf_err_set(e, MF_USAGE, "--cluster is required: no text says what GPUs they are");
    }
    const char *routing;
    j->asked = r->asked;
    mf_status s =
        mf_job_read_routing(j, mf_settings_text(&x->read.moefold, "routing", ""), &routing, e);
    s = s == MF_OK ? mf_prices_read(&j->asked, cluster, software, &j->cluster, &j->software, e) : s;
    if (s == MF_OK) {
        s = mf_corrections_use(&j->asked, &j->cluster, &j->software, &j->correction, e);
    }
    s = s == MF_OK ? mf_prices_create(&j->asked, &j->cluster, &j->software, &j->cost, e) : s;
    if (s == MF_OK) {
        j->plan.layout.software_traits = j->software.traits;
        snprintf(p->generator, sizeof p->generator, "%s", MF_GENERATOR);
        snprintf(p->cluster, sizeof p->cluster, "%s", cluster);
        snprintf(p->software, sizeof p->software, "%s", j->software.name);
        snprintf(p->measurements, sizeof p->measurements, "%s",
                 r->asked.store != NULL ? r->asked.store : "shipped");
        snprintf(p->routing, sizeof p->routing, "%s", routing);
        mf_cluster_fingerprint(&x->job.cluster, p->cluster_fingerprint);
        s = mf_job_check_cluster(&x->job.plan.layout, &x->job.cluster, e);
    }
    return s == MF_OK ? mf_job_simulate(&x->job, &(mf_sim_options){0}, e) : s;
}

mf_status mf_import_load(const mf_import_request *r, mf_imported *x, mf_err *e) {
    const int64_t gpus = mf_request_gives(&r->asked, MF_GIVEN_GPUS) ? r->asked.layout.gpus : 0;
    mf_routing_init(&x->job.routing);
    mf_status s = read_all(r, x, e);
    if (s == MF_OK) {
        s = mf_read_find_model(&x->read, r->asked.model, &x->found, e);
    }
    if (s == MF_OK) {
        x->job.model = x->found.model;
        s = mf_read_plan(&x->read, &x->job.model, gpus, &x->job.plan, e);
    }
    if (s == MF_OK) {
        snprintf(x->job.plan.model.name, sizeof x->job.plan.model.name, "%s", x->found.name);
    }
    return s == MF_OK ? price(r, x, e) : s;
}

void mf_import_clear(mf_imported *x) {
    mf_log_clear(&x->log);
    mf_read_clear(&x->read);
    mf_job_clear(&x->job);
}
