/* log.c - numbers behind known words, and their medians. */
#include "launch/log/log.h"

#include "core/base/file.h"
#include "core/base/sort.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WARM_UP 10
enum { MOST_LOG_B = 256 << 20 };
/* What no step takes, no GPU computes and none holds: such lines are damaged. */
#define MOST_STEP_S 1e7
#define MOST_TFLOPS 1e6
#define MOST_MEMORY_B 1e15

void mf_log_clear(mf_log *l) {
    free(l->time_s);
    free(l->rate);
    *l = (mf_log){0};
}

static void add(double **list, int *count, int *allocated, double value) {
    if (*count == *allocated) {
        int more = *allocated > 0 ? 2 * *allocated : 256;
        double *grown = realloc(*list, (size_t)more * sizeof *grown);
        if (grown == NULL) {
            return;
        }
        *list = grown;
        *allocated = more;
    }
    (*list)[(*count)++] = value;
}

/* The number behind `words` in a line of `length`; false when there is none up to `most`. */
static bool number_behind(const char *line, size_t length, const char *words, double most,
                          double *out) {
    size_t n = strlen(words);
    for (size_t i = 0; i + n < length; i++) {
        if (strncmp(line + i, words, n) == 0) {
            const char *at = line + i + n, *end = line + length;
            while (at < end && (isspace((unsigned char)*at) || *at == ':')) {
                at++;
            }
            char *stop = NULL;
            *out = at < end ? strtod(at, &stop) : 0;
            return stop != NULL && stop > at && *out > 0 && *out <= most;
        }
    }
    return false;
}

static void read_line(mf_log *l, const char *line, size_t length) {
    static const struct {
        const char *words;
        double unit;
    } times[] = {{"elapsed time per iteration (ms)", 1e-3}, {"Step Time", 1}},
      memory[] = {{"max allocated", 1048576}, /* "memory (MB)", by 1024 x 1024 */
                  {"mem-max-allocated-bytes", 1},
                  {"mem-max-allocated-gigabytes", 1e9}};
    static const char *const rates[] = {"throughput per GPU (TFLOP/s/GPU)", "GPU utilization"};
    double value;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        if (number_behind(line, length, times[i].words, MOST_STEP_S / times[i].unit, &value)) {
            add(&l->time_s, &l->steps, &l->times_allocated, value * times[i].unit);
            break;
        }
    }
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        if (number_behind(line, length, rates[i], MOST_TFLOPS, &value)) {
            add(&l->rate, &l->rates, &l->rates_allocated, value);
            break;
        }
    }
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        if (number_behind(line, length, memory[i].words, MOST_MEMORY_B / memory[i].unit, &value) &&
            value * memory[i].unit > l->memory_B) {
            l->memory_B = value * memory[i].unit;
        }
    }
}

/* Of what follows the warm-up; *used is how many those are. */
static double settled_median(const double *list, int count, int *used) {
    int skip = count / 10 < MOST_WARM_UP ? count / 10 : MOST_WARM_UP;
    skip = skip == 0 && count > 2 ? 1 : skip;
    int n = count - skip;
    double *sorted = n > 0 ? malloc((size_t)n * sizeof *sorted) : NULL;
    double middle = 0;
    if (sorted != NULL) {
        memcpy(sorted, list + skip, (size_t)n * sizeof *sorted);
        middle = mf_median(sorted, (size_t)n);
    }
    free(sorted);
    *used = n;
    return middle;
}

void mf_log_read(mf_log *l, const char *text) {
    int rates = 0;
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, "\n");
        read_line(l, at, length);
        at += length + (at[length] == '\n');
    }
    l->step_time_s = settled_median(l->time_s, l->steps, &l->used);
    l->tflops = settled_median(l->rate, l->rates, &rates);
}

mf_status mf_log_load(mf_log *l, const char *path, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    mf_status s = mf_file_load(path, MOST_LOG_B, &text, &length, e);
    if (s == MF_OK) {
        mf_log_read(l, text);
    }
    free(text);
    if (s == MF_OK && l->steps == 0) {
        s = mf_err_set(e, MF_INPUT,
                       "%s: expected step times (\"elapsed time per iteration (ms)\" or \"Step "
                       "Time\"), found none",
                       path);
    }
    return s;
}
