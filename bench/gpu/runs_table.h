/* runs_table.h - runs of a file beside what `moefold simulate` says of their options: row by row,
 * and how far off it is. Needs no GPU. */
#ifndef MF_BENCH_RUNS_TABLE_H
#define MF_BENCH_RUNS_TABLE_H

#include "bench/gpu/run_rows.h"

#include <math.h>
#include <stdint.h>
#include <unistd.h>

typedef struct runs_asked {
    const char *program;        /* moefold */
    const char *file, *cluster; /* runs, and where they were measured: a shipped name or a file */
    const char *note;           /* of that cluster; NULL: none */
    int gpus;                   /* of each run */
    bool models;                /* of other models: all of them held out */
} runs_asked;

/* What a row has at its end where it was measured before kernels of our own computed the gradients
 * of MLA's attention: its prediction is for that program. */
#define OLDER_PROGRAM " --traits general_attention"

static inline void runs_without(char *text, const char *word) {
    char *at = strstr(text, word);
    if (at != NULL) {
        memmove(at, at + strlen(word), strlen(at + strlen(word)) + 1);
    }
}

/* What `train` is told to force, `simulate` is told as --routing; without it, it is balanced. */
static inline void runs_as_simulate_has_it(char *text) {
    runs_without(text, " --force-balance");
    char *at = strstr(text, " --force-routing");
    if (at != NULL) {
        memmove(at + 3, at + 9, strlen(at + 9) + 1);
    }
}

/* Without what no prediction reads: experts that share a GPU take as long whoever gets the rows. */
static inline void runs_without_routing(char *text) {
    runs_as_simulate_has_it(text);
    char *at = strstr(text, "--ep ") == NULL ? strstr(text, " --routing ") : NULL;
    if (at != NULL) {
        const char *behind = at + 11 + strcspn(at + 11, " ");
        memmove(at, behind, strlen(behind) + 1);
    }
}

static inline void runs_take(const char *line, const char *key, double *out) {
    double value = runs_own_field(line, key);
    *out = value > 0 ? value : *out;
}

/* A file for --routing, "" where routing says nothing; the caller removes it. */
static inline void runs_write_routing(const char *routing, char path[RUNS_TEXT]) {
    path[0] = '\0';
    if (routing[0] == '\0') {
        return;
    }
    snprintf(path, RUNS_TEXT, "/tmp/bench-runs-routing-XXXXXX");
    const int file = mkstemp(path);
    FILE *f = file >= 0 ? fdopen(file, "w") : NULL;
    for (const char *c = routing; f != NULL && *c != '\0'; c++) {
        fputc(*c == ' ' ? ',' : *c == ';' ? '\n' : *c, f);
    }
    if (f == NULL || fclose(f) != 0) {
        training_give_up(path);
    }
}

static inline void runs_predict(const runs_asked *o, run_row *r) {
    char command[3 * TRAINING_LINE], line[TRAINING_LINE], text[RUNS_TEXT];
    char routing[RUNS_TEXT], headroom[40] = "";
    runs_write_routing(r->routing, routing);
    if (r->headroom > 0) {
        snprintf(headroom, sizeof headroom, " --token-headroom %.3g", r->headroom);
    }
    snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, r->arguments);
    runs_as_simulate_has_it(text);
    snprintf(command, sizeof command, "'%s' simulate --json --cluster %s %s%s%s%s%s 2>/dev/null",
             o->program, o->cluster, o->gpus == 1 ? "--gpus 1 " : "", text, headroom,
             routing[0] != '\0' ? " --routing " : "", routing);
    FILE *f = popen(command, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        runs_take(line, "step_time_s", &r->predicted_s);
        runs_take(line, "peak_memory_B", &r->predicted_B);
        runs_take(line, "clock_MHz", &r->predicted_MHz);
        runs_take(line, "power_W", &r->predicted_W);
    }
    if (f == NULL || pclose(f) != 0) {
        training_give_up(command);
    }
    if (routing[0] != '\0') {
        remove(routing);
    }
}

/* By the options; a run stays where it was when --traits says that an older program was measured.
 */
static inline bool runs_is_held_out(const runs_asked *o, const run_row *r) {
    char text[RUNS_TEXT];
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
    memcpy(text, r->arguments, sizeof text);
    runs_without(text, OLDER_PROGRAM);
    for (const char *c = text; *c != '\0'; c++) {
        h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
    }
    return o->models || (h ^ h >> 32) % 3 == 0;
}

/* Of the two kinds of --offload. */
static inline bool runs_copy_to_the_host(const run_row *r) {
    return strstr(r->arguments, "--offload") != NULL;
}

static inline bool runs_same_model(const run_row *a, const run_row *b) {
    const char *one = strstr(a->arguments, "--model "), *two = strstr(b->arguments, "--model ");
    return one != NULL && two != NULL && strcspn(one + 8, " ") == strcspn(two + 8, " ") &&
           strncmp(one, two, 8 + strcspn(one + 8, " ")) == 0;
}

/* Which runs a line of the summary is about: -1 either. */
typedef struct runs_choice {
    const char *name;
    int held_out, host_copies;
} runs_choice;

static inline bool runs_is_chosen(const runs_choice *c, const run_row *r) {
    return (c->held_out < 0 || r->held_out == (c->held_out > 0)) &&
           (c->host_copies < 0 || runs_copy_to_the_host(r) == (c->host_copies > 0));
}

static inline int runs_count(const runs_choice *c, const run_row *rows, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        count += runs_is_chosen(c, &rows[i]);
    }
    return count;
}

/* Do they differ in nothing that a prediction reads? Then there is no order to predict. */
static inline bool runs_predict_the_same(const run_row *a, const run_row *b) {
    char one[RUNS_TEXT], two[RUNS_TEXT];
    memcpy(one, a->arguments, sizeof one);
    memcpy(two, b->arguments, sizeof two);
    runs_without_routing(one);
    runs_without_routing(two);
    return strcmp(one, two) == 0;
}

/* Kendall's tau of the order of steps, over pairs of one model that were measured that share of the
 * shorter step apart, or more. Both of a pair are chosen. */
static inline double runs_find_tau(const runs_choice *c, const run_row *rows, int n, double apart,
                                   int *pairs) {
    double agree = 0;
    *pairs = 0;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) {
            double a = rows[i].step_s - rows[k].step_s;
            double b = rows[i].predicted_s - rows[k].predicted_s;
            if (fabs(a) >= apart * fmin(rows[i].step_s, rows[k].step_s) &&
                runs_same_model(&rows[i], &rows[k]) && !runs_predict_the_same(&rows[i], &rows[k]) &&
                runs_is_chosen(c, &rows[i]) && runs_is_chosen(c, &rows[k])) {
                ++*pairs;
                agree += a * b > 0 ? 1 : a * b < 0 ? -1 : 0;
            }
        }
    }
    return *pairs > 0 ? agree / *pairs : 1;
}

typedef struct runs_sums {
    double size, bias, worst;
    int count;
} runs_sums;

/* measured 0: not known, does not count. */
static inline void runs_add_error(runs_sums *s, double predicted, double measured) {
    if (measured == 0) {
        return;
    }
    const double e = predicted / measured - 1;
    s->count++;
    s->size += 100 * fabs(e);
    s->bias += 100 * e;
    s->worst = fmax(s->worst, 100 * fabs(e));
}

static inline void runs_tell_choice(FILE *out, const char *of, const runs_choice *c,
                                    const run_row *rows, int n) {
    runs_sums step = {0}, memory = {0}, clock = {0};
    for (int i = 0; i < n; i++) {
        const run_row *r = &rows[i];
        if (runs_is_chosen(c, r)) {
            runs_add_error(&step, r->predicted_s, r->step_s);
            runs_add_error(&memory, r->predicted_B, r->memory_B);
            runs_add_error(&clock, r->predicted_MHz, r->clock_MHz);
        }
    }
    if (step.count == 0) {
        return;
    }
    fprintf(out, "| %s%s | %d | %.1f %% | %+.1f %% | %.1f %% |", of, c->name, step.count,
            step.size / step.count, step.bias / step.count, step.worst);
    if (memory.count == 0) {
        fputs(" - | - |", out);
    } else if (memory.count < step.count) {
        fprintf(out, " %.2f %% (%d runs) | %.2f %% |", memory.size / memory.count, memory.count,
                memory.worst);
    } else {
        fprintf(out, " %.2f %% | %.2f %% |", memory.size / memory.count, memory.worst);
    }
    fprintf(out, " %.1f %% | %.1f %% |", clock.size / clock.count, clock.worst);
    for (int k = 0; k < 2; k++) {
        int pairs;
        const double tau = runs_find_tau(c, rows, n, k == 0 ? 0 : RUNS_APART, &pairs);
        fprintf(out, pairs > 0 ? " %.3f of %d |" : " - |", tau, pairs);
    }
    fputs("\n", out);
}

static inline void runs_tell_summary_head(FILE *out) {
    fprintf(out,
            "\n| runs | | mean error | bias | worst | memory, mean | worst | clock, mean | worst | "
            "order of steps: Kendall's tau over pairs of one model that differ in more than "
            "`--force-balance` | of those %g %% apart or more |\n"
            "|---|---|---|---|---|---|---|---|---|---|---|\n",
            100 * RUNS_APART);
}

/* `of`: what stands in front of each line's name. */
static inline void runs_tell_summary(FILE *out, const char *of, const run_row *rows, int n) {
    static const runs_choice choices[] = {
        {"all", -1, -1},
        {"all, without copies to the host", -1, 0},
        {"fitted, without copies to the host", 0, 0},
        {"held out", 1, -1},
        {"held out, without copies to the host", 1, 0},
        {"with copies to the host", -1, 1},
    };
    enum { CHOICES = sizeof choices / sizeof choices[0] };
    for (int i = 0; i < CHOICES; i++) {
        bool said = false; /* by a line above about the same runs */
        for (int k = 0; k < i; k++) {
            const runs_choice *c = &choices[i], *wider = &choices[k];
            said |= (wider->held_out < 0 || wider->held_out == c->held_out) &&
                    (wider->host_copies < 0 || wider->host_copies == c->host_copies) &&
                    runs_count(wider, rows, n) == runs_count(c, rows, n);
        }
        if (!said) {
            runs_tell_choice(out, of, &choices[i], rows, n);
        }
    }
}

static inline const char *runs_subject(const runs_asked *o) {
    return o->models      ? (o->gpus == 1 ? "other models" : "other models on two GPUs")
           : o->gpus == 1 ? "one GPU"
           : o->gpus == 2 ? "two GPUs"
                          : "four GPUs";
}

/* How such runs are made and predicted. */
static inline void runs_tell_method(FILE *out, const runs_asked *o, const char *wrote) {
    char option[40] = "";
    if (o->gpus > 1) {
        snprintf(option, sizeof option, "%s --gpus %d", o->models ? " --runs models" : "", o->gpus);
    } else if (o->models) {
        snprintf(option, sizeof option, " --runs models");
    }
    fprintf(
        out,
        "`bench_runs FILE%s` trains each of its runs that FILE (`%s`) lacks, %s: what `moefold "
        "simulate --cluster %s%s`\nsays of the same options, beside what was measured: the "
        "mean of the steps in three seconds (--watch) that begin 2.5 (--warm) behind the "
        "first step,\nthe most memory that the driver counted%s, and the mean clock and power "
        "meanwhile. Tokens are random, routing is a new router's own where no `--force-...` "
        "stands (of which `simulate` is given `--force-routing`, as `--routing`),\nlearning "
        "rate and auxiliary loss "
        "keep it so; with `--ep` the prediction is for the rows that the run's experts got, "
        "where FILE has them (`--routing`), and for the headroom that the run went on with when "
        "they asked for more (`--token-headroom`, as its warning says). %s%s%s\n\n",
        option, o->file, wrote, o->cluster, o->gpus == 1 ? " --gpus 1" : "",
        o->gpus == 1 ? "" : " on the fullest GPU",
        o->models ? "No run of these models was ever used to fit a price."
                  : "A third of the runs, by a hash of their options, is held out: no price "
                    "may be fitted to it.",
        o->note != NULL ? " " : "", o->note != NULL ? o->note : "");
}

static inline void runs_tell_rows(FILE *out, const run_row *rows, int n) {
    fprintf(out, "| options | held out | measured | predicted | error | memory | predicted | error "
                 "| clock | predicted | error | power | predicted "
                 "|\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    bool all_memory = true;
    for (int i = 0; i < n; i++) {
        const run_row *r = &rows[i];
        all_memory &= r->memory_B > 0;
        char headroom[48] = "", memory[64] = "- | - | -";
        if (r->headroom > 0) {
            snprintf(headroom, sizeof headroom, ", went on with headroom %.3g", r->headroom);
        }
        if (r->memory_B > 0) {
            snprintf(memory, sizeof memory, "%.2f GB | %.2f GB | %+.2f %%", 1e-9 * r->memory_B,
                     1e-9 * r->predicted_B, 100 * (r->predicted_B / r->memory_B - 1));
        }
        fprintf(out,
                "| `%s`%s | %s | %.1f ms | %.1f ms | %+.1f %% | %s | "
                "%.0f MHz | %.0f MHz | %+.1f %% | %.0f W | %.0f W |\n",
                r->arguments, headroom, r->held_out ? "yes" : "", 1e3 * r->step_s,
                1e3 * r->predicted_s, 100 * (r->predicted_s / r->step_s - 1), memory, r->clock_MHz,
                r->predicted_MHz, 100 * (r->predicted_MHz / r->clock_MHz - 1), r->power_W,
                r->predicted_W);
    }
    if (!all_memory) {
        fputs("\n-: before 2026-11-28 a run with EP 1 held more rows than come; its memory is left "
              "out until it runs again.\n",
              out);
    }
}

/* Reads the file and predicts its rows; how many there are. */
static inline int runs_predict_all(const runs_asked *o, run_row rows[RUNS_MOST]) {
    const int n = runs_read(o->file, rows);
    for (int i = 0; i < n; i++) {
        runs_predict(o, &rows[i]);
        rows[i].held_out = runs_is_held_out(o, &rows[i]);
    }
    return n;
}

/* A page of a file's runs. */
static inline void runs_tell_page(FILE *out, const runs_asked *o, const run_row *rows, int n) {
    const char *folder = strrchr(o->cluster, '/');
    const char *name = folder != NULL ? folder + 1 : o->cluster;
    fprintf(out, "# Runs of %s (%.*s), predicted and measured\n\n", runs_subject(o),
            (int)strcspn(name, "."), name);
    runs_tell_method(out, o, "`make runs-accuracy` wrote this file");
    runs_tell_rows(out, rows, n);
    runs_tell_summary_head(out);
    runs_tell_summary(out, "", rows, n);
}

#endif
