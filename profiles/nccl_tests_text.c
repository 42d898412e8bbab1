/* nccl_tests_text.c - the table that nccl-tests prints, with whatever a launcher mixes into it. */
#include "core/base/text.h"
#include "profiles/nccl_tests.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 4096, TOKENS = 48, COLUMNS = 32, HOSTS = 1024 };

/* What a column holds. The two halves of a table have the same names: their order tells which is
 * which. */
typedef enum column {
    COL_SIZE,
    COL_TYPE,
    COL_REDOP,
    COL_TIME,
    COL_ALGBW,
    COL_BUSBW,
    COL_WRONG,
    COL_OTHER,
} column;

typedef struct reader {
    mf_nccl_run *run;
    char line[LINE_MAX_BYTES];
    char *token[TOKENS];
    int tokens;
    column column[COLUMNS];
    int columns;
    int extra; /* tokens of a timestamp behind the last column */
    int64_t max_rank, threads_gpus;
    uint64_t host[HOSTS]; /* hashes of the host names seen */
    int hosts;
} reader;

/* Behind "[1,0]<stdout>:" of mpirun --tag-output or "3: " of srun -l. */
static char *skip_tag(char *line) {
    char *p = line + strspn(line, " \t");
    if (*p == '[') {
        char *close = strstr(p, "]<std");
        char *colon = close != NULL ? strchr(close, ':') : NULL;
        if (colon != NULL && strcspn(p, " \t") > (size_t)(close - p)) {
            return colon + 1;
        }
    }
    size_t digits = strspn(p, "0123456789");
    return digits > 0 && p[digits] == ':' && p[digits + 1] == ' ' ? p + digits + 1 : line;
}

static void split(reader *r, char *line) {
    r->tokens = 0;
    for (char *p = line; r->tokens < TOKENS;) {
        p += strspn(p, " \t\r");
        if (*p == '\0') {
            break;
        }
        r->token[r->tokens++] = p;
        p += strcspn(p, " \t\r");
        if (*p != '\0') {
            *p++ = '\0';
        }
    }
}

static bool all_digits(const char *text) {
    return text[0] != '\0' && text[strspn(text, "0123456789")] == '\0';
}

/* --- comment lines -------------------------------------------------------------------------- */

static void see_host(reader *r, const char *host, size_t length) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++) {
        h = (h ^ (unsigned char)host[i]) * UINT64_C(0x100000001b3);
    }
    for (int i = 0; i < r->hosts; i++) {
        if (r->host[i] == h) {
            return;
        }
    }
    if (r->hosts < HOSTS) {
        r->host[r->hosts++] = h;
    }
}

/* "#  Rank  3 Group  0 Pid 12 on host device  3 [0x01] NAME"; old versions have no group. */
static mf_status see_rank(reader *r, const char *line, mf_err *e) {
    long rank = -1, group = 0;
    if (sscanf(line, "# Rank %8ld Group %8ld", &rank, &group) < 1 || rank < 0) {
        return MF_OK;
    }
    if (group != 0) {
        return mf_err_set(e, MF_INPUT, "a run split into groups cannot be imported");
    }
    r->max_rank = rank > r->max_rank ? rank : r->max_rank;
    const char *host = strstr(line, " on ");
    if (host != NULL) {
        host += 4 + strspn(host + 4, " ");
        see_host(r, host, strcspn(host, " "));
    }
    return MF_OK;
}

static int64_t number_behind(const char *line, const char *label) {
    const char *at = strstr(line, label);
    return at != NULL ? strtol(at + strlen(label), NULL, 10) : 0;
}

static void see_settings(reader *r, const char *line) {
    int64_t threads = number_behind(line, "nThread "), gpus = number_behind(line, "nGpus ");
    if (threads > 0 && gpus > 0 && threads < 65536 && gpus < 65536) {
        r->threads_gpus = threads * gpus;
    }
    const char *warmup = strstr(line, "warmup iters:");
    int64_t iterations = warmup != NULL ? number_behind(warmup + 13, " iters:") : 0;
    if (iterations > 0) {
        r->run->samples = iterations;
    }
    mf_nccl_name_version(r->run, number_behind(line, "nccl-library="));
}

/* The line that names the columns; false when it is another. */
static mf_status see_header(reader *r, const char *line, bool *is_header, mf_err *e) {
    static const struct {
        const char *name;
        column what;
    } known[] = {{"size", COL_SIZE},   {"type", COL_TYPE},   {"redop", COL_REDOP},
                 {"time", COL_TIME},   {"algbw", COL_ALGBW}, {"busbw", COL_BUSBW},
                 {"#wrong", COL_WRONG}};
    char copy[LINE_MAX_BYTES];
    snprintf(copy, sizeof copy, "%s", line);
    *is_header = false;
    if (strstr(line, " size ") == NULL || strstr(line, " count ") == NULL) {
        return MF_OK;
    }
    if (strstr(line, "cputime") != NULL) {
        return mf_err_set(e, MF_INPUT, "CPU times (-C) are no times of the collective");
    }
    if (strstr(line, " time ") == NULL) {
        return MF_OK;
    }
    split(r, copy + 1); /* behind the # */
    r->columns = r->extra = 0;
    for (int i = 0; i < r->tokens && r->columns < COLUMNS; i++) {
        if (strcmp(r->token[i], "timestamp") == 0) {
            r->extra = 2;
            break;
        }
        column what = COL_OTHER;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
            what = strcmp(known[k].name, r->token[i]) == 0 ? known[k].what : what;
        }
        r->column[r->columns++] = what;
    }
    *is_header = true;
    return MF_OK;
}

static mf_status read_comment(reader *r, const char *line, mf_err *e) {
    bool header;
    mf_status st = MF_OK;
    if (strstr(line, "_perf") != NULL && (r->columns == 0 || strstr(line, "starting") != NULL)) {
        st = mf_nccl_name_program(r->run, line, e);
    }
    st = st == MF_OK ? see_rank(r, line, e) : st;
    if (st == MF_OK) {
        see_settings(r, line);
        st = see_header(r, line, &header, e);
    }
    return st;
}

/* --- rows ----------------------------------------------------------------------------------- */

/* What must be known before the first row. */
static mf_status settle(reader *r, mf_err *e) {
    mf_nccl_run *run = r->run;
    mf_status st = run->op == NULL ? mf_nccl_name_program(run, run->name, e) : MF_OK;
    if (st != MF_OK) {
        return st;
    }
    mf_nccl_name_file(run, run->name);
    if (run->op == NULL) {
        return mf_err_set(e, MF_INPUT,
                          "neither output nor file name says which collective this is "
                          "(all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf, "
                          "sendrecv_perf)");
    }
    if (run->ranks == 0) {
        run->ranks = r->max_rank >= 0 ? r->max_rank + 1 : r->threads_gpus;
    }
    if (run->ranks <= 0) {
        return mf_err_set(e, MF_INPUT, "the lines \"#  Rank ...\" are missing");
    }
    if (run->nodes <= 0) {
        run->nodes = r->hosts > 0 ? r->hosts : 1;
    }
    if (r->columns == 0) { /* no header: the columns of every version since 2.12 */
        static const column usual[] = {COL_SIZE,  COL_OTHER, COL_TYPE,  COL_REDOP, COL_OTHER,
                                       COL_TIME,  COL_ALGBW, COL_BUSBW, COL_WRONG, COL_TIME,
                                       COL_ALGBW, COL_BUSBW, COL_WRONG};
        r->columns = (int)(sizeof usual / sizeof usual[0]);
        memcpy(r->column, usual, sizeof usual);
    }
    return MF_OK;
}

static mf_status read_row(reader *r, mf_err *e) {
    double size = 0.0;
    const char *type = "", *redop = "";
    mf_nccl_result half[2] = {{.wrong = (double)NAN}, {.wrong = (double)NAN}};
    int now = -1;
    mf_status st = settle(r, e);
    if (st != MF_OK) {
        return st;
    }
    if (r->tokens != r->columns && r->tokens != r->columns + r->extra) {
        return mf_err_set(e, MF_INPUT, "expected %d columns, got %d: is the row truncated?",
                          r->columns, r->tokens);
    }
    for (int i = 0; i < r->columns; i++) {
        const char *text = r->token[i];
        column what = r->column[i];
        now += what == COL_TIME;
        if (what == COL_TYPE) {
            type = text;
        } else if (what == COL_REDOP) {
            redop = text;
        }
        if (what == COL_TYPE || what == COL_REDOP || what == COL_OTHER ||
            (what == COL_WRONG && strcmp(text, "N/A") == 0)) {
            continue;
        }
        double value;
        if (!mf_text_f64(text, &value) || value < 0.0 || value > 9e15) {
            return mf_err_set(e, MF_INPUT, "column %d: expected a number, got \"%.40s\"", i + 1,
                              text);
        }
        if (what == COL_SIZE) {
            size = value;
        } else if (now < 0 || now > 1) {
            return mf_err_set(e, MF_INPUT, "the header names no such column %d", i + 1);
        } else if (what == COL_TIME) {
            half[now].time_us = value;
            half[now].present = true;
        } else if (what == COL_ALGBW) {
            half[now].algbw_GBps = value;
        } else if (what == COL_BUSBW) {
            half[now].busbw_GBps = value;
        } else {
            half[now].wrong = value;
        }
    }
    return mf_nccl_add_row(r->run, size, type, redop, half, e);
}

/* A result row begins with size, count and a type; all else is somebody's log. */
static bool is_row(const reader *r) {
    return r->tokens >= 3 && all_digits(r->token[0]) && all_digits(r->token[1]) &&
           isalpha((unsigned char)r->token[2][0]) != 0;
}

static mf_status read_line(reader *r, mf_err *e) {
    char *line = skip_tag(r->line);
    char *start = line + strspn(line, " \t");
    if (*start == '#') {
        return read_comment(r, start, e);
    }
    const char *version = strstr(line, "NCCL version ");
    if (version != NULL && r->run->versions[0] == '\0') {
        version += 13;
        size_t n = strspn(version, "0123456789.");
        snprintf(r->run->versions, sizeof r->run->versions, "nccl=%.*s", (int)(n < 20 ? n : 20),
                 version);
        return MF_OK;
    }
    if (r->run->op == NULL && r->columns == 0 && strstr(line, "_perf ") != NULL) {
        return mf_nccl_name_program(r->run, line, e); /* the command, echoed */
    }
    split(r, line);
    return is_row(r) ? read_row(r, e) : MF_OK;
}

mf_status mf_nccl_read_text(mf_nccl_run *run, const char *text, size_t length, mf_err *e) {
    mf_status st = MF_OK;
    reader *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return mf_err_set(e, MF_NOMEM, "%s: out of memory", run->name);
    }
    r->run = run;
    r->max_rank = -1;
    int number = 1;
    for (size_t at = 0; st == MF_OK && at < length; number++) {
        const char *newline = memchr(text + at, '\n', length - at);
        size_t n = newline != NULL ? (size_t)(newline - text) - at : length - at;
        size_t keep = n < sizeof r->line - 1 ? n : sizeof r->line - 1;
        memcpy(r->line, text + at, keep);
        r->line[keep] = '\0'; /* a NUL inside ends the line early */
        mf_err why;
        mf_err_clear(&why);
        st = read_line(r, &why);
        if (st != MF_OK) {
            mf_err_set(e, st, "%s:%d: %s", run->name, number, why.text);
        }
        at += n + 1;
    }
    free(r);
    return st;
}
