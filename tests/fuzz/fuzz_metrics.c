/* Fuzz target: any bytes as the metrics.jsonl of a run that goes on after a step. What stays is the
 * front of it: whole lines, each of a step up to that one; the next line goes behind them. */
#define MF_FUZZ_WORDS                                                                              \
    "{\"step\": 1}\n", "{\"step\": 2}\n", "{\"step\": 9}\n", "\n", "{", "}", "\"step\"", "1e999",  \
        "-1", "9007199254740993", "\xff", "\r\n", "[[[[", "\"", "\\u0000"
#include "tests/fuzz/driver.h"

#include "core/base/json.h"
#include "executor/train/metrics.h"
#include "tests/fuzz/file.h"

enum { LAST = 3, MOST_B = 1 << 18 };

static void require(int truth) {
    if (!truth) {
        abort();
    }
}

/* The event files that TensorBoard reads are new in every run. */
static void drop_events(void) {
    char path[512];
    DIR *d = opendir(fuzz_folder());
    require(d != NULL);
    for (struct dirent *x; (x = readdir(d)) != NULL;) {
        if (strstr(x->d_name, "tfevents") != NULL) {
            snprintf(path, sizeof path, "%s/%s", fuzz_folder(), x->d_name);
            unlink(path);
        }
    }
    closedir(d);
}

static void require_line(const char *line, size_t length) {
    mf_json *doc = NULL;
    int64_t step = 0;
    require(mf_json_parse("line", line, length, &doc, NULL) == MF_OK);
    require(mf_json_get_i64(mf_json_root(doc), "step", 1, LAST, &step, NULL) == MF_OK);
    mf_json_destroy(doc);
}

/* What stays of these bytes as a file of a run's folder; the next line goes behind it. */
static size_t keep_in_folder(const uint8_t *data, size_t size, char kept[MOST_B]) {
    mf_metrics *m;
    mf_err e;
    const char *path = fuzz_file("metrics.jsonl", data, size);
    mf_err_clear(&e);
    require(mf_metrics_open(fuzz_folder(), LAST, (mf_metrics_parts){false, false, false, false}, &m,
                            &e) == MF_OK);
    FILE *f = fopen(path, "rb");
    require(f != NULL);
    size_t left = fread(kept, 1, MOST_B, f);
    fclose(f);
    const mf_train_metrics next = {.step = LAST + 1};
    require(mf_metrics_add(m, &next, &e) == MF_OK && mf_metrics_close(m, &e) == MF_OK);
    drop_events();
    return left;
}

/* The same from memory. */
static size_t keep(const uint8_t *data, size_t size, char kept[MOST_B]) {
    char *text = NULL;
    size_t left = 0;
    FILE *old = fmemopen((void *)(uintptr_t)data, size, "r"), *new = open_memstream(&text, &left);
    require(old != NULL && new != NULL &&mf_metrics_copy_lines(old, LAST, new));
    fclose(old);
    require(fclose(new) == 0 && left <= MOST_B);
    memcpy(kept, text, left);
    free(text);
    return left;
}

/* From memory; one input of 256 as a file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char kept[MOST_B]; /* large for a stack */
    size_t left =
        size % 256 == 255 || size == 0 ? keep_in_folder(data, size, kept) : keep(data, size, kept);
    require(left <= size && memcmp(kept, data, left) == 0);
    for (size_t at = 0; at < left;) {
        const char *end = memchr(kept + at, '\n', left - at);
        require(end != NULL);
        require_line(kept + at, (size_t)(end - kept) + 1 - at);
        at = (size_t)(end - kept) + 1;
    }
    return 0;
}
