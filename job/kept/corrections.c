/* corrections.c - finds, keeps and says corrections from logs. */
#include "job/kept/corrections.h"

#include "core/base/fingerprint.h"
#include "core/base/json.h"
#include "core/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool find_folder(char *out, size_t size) {
    const char *said = getenv("MOEFOLD_CORRECTIONS"), *data = getenv("XDG_DATA_HOME");
    const char *home = getenv("HOME");
    int n = 0;
    if (said != NULL && said[0] != '\0') {
        n = snprintf(out, size, "%s", said);
        return strcmp(said, "off") != 0 && (size_t)n < size;
    }
    if (data != NULL && data[0] == '/') {
        n = snprintf(out, size, "%s/moefold/corrections", data);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(out, size, "%s/.local/share/moefold/corrections", home);
    }
    return n > 0 && (size_t)n < size;
}

/* All folders on the way. */
static mf_status make_folders(const char *folder, mf_err *e) {
    char path[800];
    snprintf(path, sizeof path, "%s", folder);
    for (char *at = path + 1;; at++) {
        const char was = *at;
        if (was != '/' && was != '\0') {
            continue;
        }
        *at = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            return mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno));
        }
        *at = was;
        if (was == '\0') {
            return MF_OK;
        }
    }
}

/* A cluster by its name and its figures: another machine has another name, or other figures. */
static uint64_t name_machine(const mf_cluster *c) {
    char figures[20];
    mf_cluster_fingerprint(c, figures);
    return mf_fingerprint_text(mf_fingerprint_text(0, c->name), figures);
}

/* A shipped profile, of a program that prints such logs. */
static bool is_shipped(const char *name) {
    size_t count;
    const char *const *shipped = mf_software_shipped(&count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, shipped[i]) == 0) {
            return strcmp(name, MF_SOFTWARE_OURS) != 0 && strcmp(name, "ideal") != 0;
        }
    }
    return false;
}

mf_status mf_corrections_path(const mf_job_request *r, const mf_cluster *c, const mf_software *s,
                              bool make, char out[1024], mf_err *e) {
    char folder[800];
    const char *own = r->software != NULL ? r->software : "";
    const bool file = strchr(own, '/') != NULL || mf_text_ends_with(own, ".json");
    if (r->store != NULL) {
        return mf_err_set(e, MF_USAGE,
                          "a correction is kept of shipped prices alone, not of those of --store: "
                          "leave --store out");
    }
    if (mf_cluster_is_cpu(c)) {
        return mf_err_set(e, MF_USAGE,
                          "no correction is kept of CPU ranks, whose times moefold measures on "
                          "this machine: leave --correct out");
    }
    if (file) {
        return mf_err_set(e, MF_USAGE,
                          "a correction is kept of shipped profiles alone, not of the file %.200s: "
                          "give --software %s, or write another file with --out FILE",
                          own, mf_software_newest_megatron());
    }
    if (!is_shipped(s->name)) {
        return mf_err_set(e, MF_USAGE,
                          "the log is of Megatron, but the plan is priced with the profile %s: "
                          "give --software %s to correct Megatron's times",
                          s->name, mf_software_newest_megatron());
    }
    if (!find_folder(folder, sizeof folder)) {
        return mf_err_set(e, MF_USAGE,
                          "there is no folder to keep corrections in: MOEFOLD_CORRECTIONS names "
                          "one (it is off, or HOME is not set)");
    }
    snprintf(out, 1024, "%s/%.31s-%016" PRIx64 ".json", folder, s->name, name_machine(c));
    return make ? make_folders(folder, e) : MF_OK;
}

/* What a kept file says beside the profile that it is. */
static mf_status read_kept(const char *path, const char *base, mf_kept_correction *out,
                           char date[16], mf_err *e) {
    mf_json *doc = NULL;
    const char *extends = "", *log = "", *when = "", *figures = "";
    mf_status s = mf_json_load(path, &doc, e);
    const mf_json_value *root = s == MF_OK ? mf_json_root(doc) : NULL;
    const mf_json_value *from = s == MF_OK ? mf_json_find(root, "measured") : NULL;
    if (s == MF_OK && (from == NULL || mf_json_value_type(from) != MF_JSON_OBJECT)) {
        s = mf_json_fail(root, e, "\"measured\" is missing: what the correction rests on");
    }
    s = s == MF_OK ? mf_json_get_string(root, "extends", &extends, e) : s;
    s = s == MF_OK
            ? mf_json_get_f64(mf_json_find(root, "step_factor"), "value", 0.1, 10, &out->factor, e)
            : s;
    s = s == MF_OK ? mf_json_get_string(from, "log", &log, e) : s;
    s = s == MF_OK ? mf_json_get_string(from, "date", &when, e) : s;
    s = s == MF_OK ? mf_json_get_string(from, "software_date", &figures, e) : s;
    if (s == MF_OK && strcmp(extends, base) != 0) {
        s = mf_json_fail(mf_json_find(root, "extends"), e, "expected %s, whose place this is",
                         base);
    }
    snprintf(out->base, sizeof out->base, "%s", base);
    snprintf(out->log, sizeof out->log, "%.200s", log);
    snprintf(out->date, sizeof out->date, "%.15s", when);
    snprintf(out->file, sizeof out->file, "%s", path);
    snprintf(date, 16, "%.15s", figures);
    mf_json_destroy(doc);
    return s;
}

mf_status mf_corrections_use(const mf_job_request *r, const mf_cluster *c, mf_software *s,
                             mf_kept_correction *out, mf_err *e) {
    char path[1024], figures[16];
    mf_software slower;
    *out = (mf_kept_correction){.used = false};
    if (!r->corrected || mf_corrections_path(r, c, s, false, path, NULL) != MF_OK ||
        access(path, F_OK) != 0) {
        return MF_OK;
    }
    mf_status status = mf_software_load(path, &slower, e); /* checks all of it */
    status = status == MF_OK ? read_kept(path, s->name, out, figures, e) : status;
    if (status != MF_OK) {
        return mf_err_prefix(e, "a kept correction (--no-corrections leaves it out)");
    }
    if (strcmp(figures, s->date) != 0) {
        if (r->notes != NULL) {
            fprintf(r->notes,
                    "note: the correction of %s on %s by %s is left out: it was found with other "
                    "figures of that profile; compare --log --correct finds it anew\n",
                    s->name, c->name, out->log);
        }
        *out = (mf_kept_correction){.used = false};
        return MF_OK;
    }
    out->used = true;
    *s = slower;
    return MF_OK;
}

void mf_corrections_say(const mf_kept_correction *k, char *out, size_t size) {
    snprintf(out, size, "%.3f times the time of %s, by %.160s on %s (--no-corrections)", k->factor,
             k->base, k->log, k->date);
}

void mf_corrections_json(mf_json_writer *w, const mf_kept_correction *k) {
    if (k == NULL || !k->used) {
        return;
    }
    mf_json_write_object(w, "correction", false);
    mf_json_write_string(w, "software", k->base);
    mf_json_write_f64(w, "factor", k->factor);
    mf_json_write_string(w, "log", k->log);
    mf_json_write_string(w, "date", k->date);
    mf_json_write_string(w, "file", k->file);
    mf_json_write_end(w);
}
