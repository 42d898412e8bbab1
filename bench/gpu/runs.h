/* runs.h - training runs that are added to a file as they come (run_rows.h): a file that is there
 * already lacks some of them and is completed. */
#ifndef MF_BENCH_RUNS_H
#define MF_BENCH_RUNS_H

#include "bench/gpu/training.h"
#include "core/base/clock.h"

enum {
    RUNS_TOKENS = 1 << 22,
    RUNS_VOCABULARY = 32000,
    RUNS_STEPS = 5 /* at least */
};

/* How long a run is warmed up and watched; when a call begins no further run; where what a run
 * wrote about itself is kept, times of its ops among it, for `moefold compare` (NULL: nowhere). */
typedef struct run_times {
    double warm_s, watch_s, seconds;
    const char *keep;
} run_times;

/* An option that each of these benchmarks has; false: it is another. */
static inline bool runs_take_option(run_times *t, const char *option, const char *value) {
    if (strcmp(option, "--keep") == 0) {
        t->keep = value;
        return true;
    }
    double *figure = strcmp(option, "--seconds") == 0 ? &t->seconds
                     : strcmp(option, "--warm") == 0  ? &t->warm_s
                     : strcmp(option, "--watch") == 0 ? &t->watch_s
                                                      : NULL;
    if (figure != NULL) {
        *figure = strtod(value, NULL);
    }
    return figure != NULL;
}

static inline void runs_add(const char *path, const run_row *r) {
    FILE *f = fopen(path, "a");
    if (f == NULL) {
        training_give_up(strerror(errno));
    }
    if (ftell(f) == 0) {
        fprintf(f, "options of moefold train,step_s,memory_B,clock_MHz,power_W,steps,routing,"
                   "token_headroom\n");
    }
    fprintf(f, "\"%s\",%.6g,%.9g,%.0f,%.0f,%d,\"%s\",%.3g\n", r->arguments, r->step_s, r->memory_B,
            r->clock_MHz, r->power_W, r->steps, r->routing, r->headroom);
    if (fclose(f) != 0) {
        training_give_up(strerror(errno));
    }
}

static inline const run_row *runs_find(const run_row *rows, int n, const char *arguments) {
    for (int i = 0; i < n; i++) {
        if (strcmp(rows[i].arguments, arguments) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static inline int runs_split(char *text, char **words, int most) {
    int n = 0;
    for (char *save = NULL, *word = strtok_r(text, " ", &save); word != NULL && n < most;
         word = strtok_r(NULL, " ", &save)) {
        words[n++] = word;
    }
    return n;
}

/* What the run's routing.csv says, counts rounded. */
static inline void runs_take_routing(const char *folder, run_row *r) {
    char path[TRAINING_LINE], line[TRAINING_LINE];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/run/routing.csv", folder);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *save = NULL;
        for (char *word = strtok_r(line, ",\n", &save); line[0] != '#' && word != NULL;
             word = strtok_r(NULL, ",\n", &save)) {
            const char *mark = word != line ? " " : n > 0 ? ";" : "";
            n += (size_t)snprintf(r->routing + n, sizeof r->routing - n, "%s%.0f", mark,
                                  strtod(word, NULL));
            if (n >= sizeof r->routing) {
                training_give_up("a run's routing is longer than a row of the file holds");
            }
        }
    }
    if (f != NULL) {
        fclose(f);
    }
}

/* What the run said, its first 256 KiB; until the next call. */
static inline char *runs_log(const char *folder) {
    static char log[1 << 18];
    char path[TRAINING_LINE];
    snprintf(path, sizeof path, "%s/log", folder);
    FILE *f = fopen(path, "r");
    log[f != NULL ? fread(log, 1, sizeof log - 1, f) : 0] = '\0';
    if (f != NULL) {
        fclose(f);
    }
    return log;
}

/* A fused dispatcher that went through NCCL after all, as where the library is not the one that it
 * was built for: that is not what is predicted. */
static inline bool runs_lacks_windows(const char *folder) {
    char *at = strstr(runs_log(folder), "fused, in slots of equal size");
    if (at != NULL) {
        fprintf(stderr, "bench: the dispatcher is %.*s\n", (int)strcspn(at, "\n"), at);
    }
    return at != NULL;
}

/* The headroom that the run went on with when routing had asked for more, as its log says last:
 * "...
 * (--token-headroom X has it from the start)". */
static inline void runs_take_headroom(const char *folder, run_row *r) {
    static const char option[] = "--token-headroom", has[] = "has it from the start";
    char *end;
    for (char *at = strstr(runs_log(folder), option); at != NULL; at = strstr(end, option)) {
        const double headroom = strtod(at + strlen(option), &end);
        r->headroom = strncmp(end + strspn(end, " \n"), has, 3) == 0 ? headroom : r->headroom;
    }
}

/* KEEP/NNN, of the row that is the NNN-th of the file. */
static inline void runs_keep(const char *keep, const char *folder, const char *file) {
    static run_row rows[RUNS_MOST];
    char command[2 * TRAINING_LINE];
    const int n = runs_read(file, rows);
    snprintf(command, sizeof command,
             "mkdir -p '%.1000s/%03d' && cp '%.1000s'/run/*.json '%.1000s'/run/*.jsonl "
             "'%.1000s/%03d'",
             keep, n, folder, folder, keep, n);
    if (system(command) != 0) {
        fprintf(stderr, "bench: what the run wrote is not kept\n");
    }
}

/* Trains with the options `how` and adds the row to `file` under the name `arguments`. Tells either
 * way. False: the run failed. */
static inline bool runs_train(const char *file, const run_times *t, const char *folder,
                              const training_gpus *gpus, const char *arguments, const char *how) {
    enum { HANGS_S = 60 };
    char text[RUNS_TEXT], path[TRAINING_LINE], command[TRAINING_LINE + 64], *words[TRAINING_WORDS];
    const training_window window = {t->warm_s, t->watch_s, t->warm_s + t->watch_s + HANGS_S,
                                    RUNS_STEPS};
    const double at_s = mf_clock_s();
    training_result result = {0};
    run_row r = {.steps = 0};
    snprintf(path, sizeof path, "%s/run", folder);
    training_remove(path);
    snprintf(text, sizeof text, "%s", how);
    const int n = runs_split(text, words, TRAINING_WORDS);
    const bool seen =
        training_watch(training_start(folder, words, n), folder, &window, gpus, &result) &&
        !runs_lacks_windows(folder);
    if (seen) {
        snprintf(r.arguments, sizeof r.arguments, "%s", arguments);
        r.step_s = result.step_s;
        r.memory_B = (double)result.own_B;
        r.clock_MHz = result.clock_MHz;
        r.power_W = result.power_W;
        r.steps = result.steps;
        if (strstr(how, "--ep ") != NULL && strstr(how, "--force-") == NULL) {
            runs_take_routing(folder, &r);
            runs_take_headroom(folder, &r);
        }
        runs_add(file, &r);
        if (t->keep != NULL) {
            runs_keep(t->keep, folder, file);
        }
        printf("%8.1f ms %7.2f GB %5.0f MHz %4.0f W %3d steps, headroom %.3g, %5.1f s  %s\n",
               1e3 * r.step_s, 1e-9 * r.memory_B, r.clock_MHz, r.power_W, r.steps, r.headroom,
               mf_clock_s() - at_s, arguments);
    } else {
        printf("failed after %.1f s  %s\n", mf_clock_s() - at_s, arguments);
        fflush(stdout);
        snprintf(command, sizeof command, "tail -n 2 '%s/log'", folder);
        (void)!system(command);
    }
    fflush(stdout);
    return seen;
}

#endif
