/* run_rows.h - a file of training runs, one line each, as bench_runs and bench_picks write it; and
 * what moefold prints, read line by line. Needs no GPU. */
#ifndef MF_BENCH_RUN_ROWS_H
#define MF_BENCH_RUN_ROWS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRAINING_LINE = 4096, RUNS_MOST = 256, RUNS_TEXT = 512, RUNS_ROUTING = 1 << 13 };

static inline void training_give_up(const char *what) {
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* Share of a step within which the order of two runs is not known: the same run, measured on two
 * GPUs, differs by 0.2 to 1.9 % (runs-h200.csv, picks-h200.csv). */
#define RUNS_APART 0.01

typedef struct run_row {
    char arguments[RUNS_TEXT];
    double step_s, clock_MHz, power_W; /* means over the GPUs */
    double memory_B;                   /* of the fullest GPU; 0: not known */
    int steps;
    double headroom; /* space for rows on a rank that the run ended with; 0: that of its start */
    bool held_out;   /* and these: of a table */
    double predicted_s, predicted_B, predicted_MHz, predicted_W;
    char routing[RUNS_ROUTING]; /* rows of each expert, layers behind ';'; "": balanced, or of no
                                   ranks that differ by it */
} run_row;

static inline double training_field(const char *line, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(line, quoted);
    return at != NULL ? strtod(at + strlen(quoted), NULL) : 0;
}

/* A field of the outermost object of indented JSON, of a line: not of Megatron's step or of a
 * stage. 0: it is another line. */
static inline double runs_own_field(const char *line, const char *key) {
    return strncmp(line, "  \"", 3) == 0 ? training_field(line, key) : 0;
}

/* "ROUTING" and HEADROOM, which rows of older files lack. */
static inline void runs_read_end(char *text, run_row *r) {
    char *end = *text == '"' ? strchr(text + 1, '"') : NULL;
    if (end != NULL) {
        *end = '\0';
        snprintf(r->routing, sizeof r->routing, "%s", text + 1);
        r->headroom = end[1] == ',' ? strtod(end + 2, NULL) : 0;
    }
}

/* "ARGUMENTS",step_s,memory_B,clock_MHz,power_W,steps,"ROUTING",HEADROOM */
static inline int runs_read(const char *path, run_row *rows) {
    char line[TRAINING_LINE + RUNS_ROUTING];
    int n = 0;
    FILE *f = fopen(path, "r");
    while (f != NULL && n < RUNS_MOST && fgets(line, sizeof line, f) != NULL) {
        run_row *r = &rows[n];
        int end = 0;
        *r = (run_row){.steps = 0};
        if (sscanf(line, "\"%511[^\"]\",%lf,%lf,%lf,%lf,%d,%n", r->arguments, &r->step_s,
                   &r->memory_B, &r->clock_MHz, &r->power_W, &r->steps, &end) == 6) {
            runs_read_end(line + end, r);
            n++;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

#endif
