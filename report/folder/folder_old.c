/* folder_old.c - what the report before this one has left in a folder. */
#include "report/folder/folder_parts.h"

#include "core/base/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OLD_PATH_SIZE = 4096, OLD_REPORT_B = 64 << 20 };

/* A file that only some reports have, as they call it ("plan-h100-128.json"): what else stands in a
 * list is no file of ours, whoever wrote the list. */
static bool is_ours(const char *name) {
    static const char *const kind[] = {"plan", "trace"};
    const char *end = strrchr(name, '.');
    if (end == NULL || strchr(name, '/') != NULL) {
        return false;
    }
    if (strcmp(end, ".csv") == 0) {
        return strcmp(name, "candidates.csv") == 0 || strcmp(name, "compared.csv") == 0;
    }
    for (size_t i = 0; i < sizeof kind / sizeof kind[0]; i++) {
        const size_t length = strlen(kind[i]);
        if (strcmp(end, ".json") == 0 && strncmp(name, kind[i], length) == 0 &&
            (name + length == end || name[length] == '-')) {
            return true;
        }
    }
    return false;
}

static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    return a != NULL && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

static void write_marked(const char *dir, const char *name, mf_json_writer *w) {
    char path[OLD_PATH_SIZE];
    mf_folder_mark mark;
    mf_json_write_object(w, NULL, true);
    mf_json_write_string(w, "path", name);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) < sizeof path &&
        mf_folder_mark_file(path, &mark)) {
        mf_folder_mark_write(w, &mark);
    }
    mf_json_write_end(w);
}

/* Does the command line name the file, or the run that has it? Any word may be a file (`--cluster
 * FILE`), or have one behind its first '='. */
static bool is_input(mf_report_folder to, const char *path) {
    bool some = to.run != NULL && same_file(to.run, to.dir);
    for (int i = 0; i < to.argc && !some; i++) {
        const char *value = strchr(to.argv[i], '=');
        some = same_file(to.argv[i], path) || (value != NULL && same_file(value + 1, path));
    }
    return some;
}

static const char *text_of(const mf_json_value *x) {
    const char *text = NULL;
    return x != NULL && mf_json_string(x, &text, NULL) == MF_OK ? text : "";
}

/* Is the file what the list says of it, and no link to another? What somebody has changed since, or
 * put into its place, is no report's. */
static bool is_as_listed(const char *path, const mf_json_value *listed) {
    struct stat info;
    mf_folder_mark now;
    int64_t bytes = -1;
    const mf_json_value *size = mf_json_find(listed, "bytes");
    return size != NULL && mf_json_i64(size, 0, INT64_C(1) << 53, &bytes, NULL) == MF_OK &&
           lstat(path, &info) == 0 && S_ISREG(info.st_mode) && (int64_t)info.st_size == bytes &&
           mf_folder_mark_file(path, &now) && now.crc32c[0] != '\0' &&
           strcmp(now.crc32c, text_of(mf_json_find(listed, "crc32c"))) == 0;
}

/* A file of the old report: removed, unless this report has one of that name. What the user has
 * just given as input stays, and is of this report from now on. */
static void settle_file(mf_report_folder to, const mf_json_value *listed,
                        const char *const *written, size_t count, mf_json_writer *w) {
    char path[OLD_PATH_SIZE];
    const char *name = text_of(mf_json_find(listed, "path"));
    bool kept =
        !is_ours(name) || (size_t)snprintf(path, sizeof path, "%s/%s", to.dir, name) >= sizeof path;
    for (size_t i = 0; i < count && !kept; i++) {
        kept = strcmp(written[i], name) == 0;
    }
    if (kept || !is_as_listed(path, listed)) {
        return;
    }
    if (is_input(to, path)) {
        write_marked(to.dir, name, w);
    } else {
        (void)unlink(path);
    }
}

void mf_folder_settle(mf_report_folder to, const char *const *written, size_t count,
                      mf_json_writer *w) {
    char path[OLD_PATH_SIZE], *text = NULL;
    size_t length = 0;
    mf_json *doc = NULL;
    snprintf(path, sizeof path, "%s/report.json", to.dir);
    mf_json_write_array(w, "files", false);
    for (size_t i = 0; i < count; i++) {
        write_marked(to.dir, written[i], w);
    }
    if (mf_file_load(path, OLD_REPORT_B, &text, &length, NULL) == MF_OK &&
        mf_json_parse("report.json", text, length, &doc, NULL) == MF_OK &&
        strncmp(text_of(mf_json_find(mf_json_root(doc), "generator")), "moefold", 7) == 0) {
        const mf_json_value *files = mf_json_find(mf_json_root(doc), "files");
        for (size_t i = 0; files != NULL && i < mf_json_size(files); i++) {
            settle_file(to, mf_json_at(files, i), written, count, w);
        }
    }
    mf_json_write_end(w);
    mf_json_destroy(doc);
    free(text);
}
