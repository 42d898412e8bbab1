/* runs_accuracy.c - `make runs-accuracy`: predicts the training runs that were measured on our own
 * GPUs (bench/gpu/runs-*.csv) by `moefold simulate` and writes their part of docs/ACCURACY.md, and
 * a page for each file. Needs no GPU.
 *
 *     runs_accuracy MOEFOLD                 the summary to stdout
 *     runs_accuracy MOEFOLD -write FOLDER   ACCURACY.md and the pages in FOLDER
 */
#include "bench/gpu/runs_table.h"

#include <errno.h>

static const char begin_mark[] = "<!-- runs: written by make runs-accuracy -->\n";
static const char next_mark[] = "<!-- prices: written by make price-accuracy -->\n";

/* A file of runs. whole: run by run in ACCURACY.md, too. */
static const struct source {
    const char *file, *cluster, *page, *name;
    int gpus;
    bool models, whole;
    const char *note; /* of the cluster */
} sources[] = {
    {"bench/gpu/runs-h200.csv", "h200", "RUNS.md", "one H200", 1, false, true, NULL},
    {"bench/gpu/runs-h200-x2.csv", "bench/gpu/h200-x2.json", "RUNS2.md", "two H200", 2, false, true,
     "The cluster's file states what the host's memory gave both GPUs together, fitted to one of "
     "these runs: Qwen3's with all optimizer states on the host."},
    {"bench/gpu/runs-h200-x4.csv", "h200", "RUNS4.md", "four H200", 4, false, true, NULL},
    {"bench/gpu/runs-h200-models.csv", "h200", "RUNS_MODELS.md", "other models, one H200", 1, true,
     false, NULL},
    {"bench/gpu/runs-h200-x2-models.csv", "bench/gpu/h200-x2.json", "RUNS2_MODELS.md",
     "other models, two H200", 2, true, false, NULL},
    {"bench/gpu/runs-h100-models.csv", "h100", "RUNS_MODELS_H100.md", "other models, one H100", 1,
     true, false, NULL},
};
enum { SOURCES = sizeof sources / sizeof sources[0] };

static run_row rows[SOURCES][RUNS_MOST];
static int counts[SOURCES];

static runs_asked asked_of(const char *program, const struct source *s) {
    return (runs_asked){.program = program,
                        .file = s->file,
                        .cluster = s->cluster,
                        .gpus = s->gpus,
                        .models = s->models,
                        .note = s->note};
}

static void write_summary(FILE *out) {
    runs_tell_summary_head(out);
    for (int i = 0; i < SOURCES; i++) {
        char of[64];
        snprintf(of, sizeof of, "%s: ", sources[i].name);
        runs_tell_summary(out, of, rows[i], counts[i]);
    }
}

static void write_part(FILE *out, const char *program) {
    fprintf(out,
            "%s# Runs of our own, predicted and measured\n\nMade by `make runs-accuracy`; do not "
            "edit. Training runs of this project on its GPUs (`bench/gpu/runs-*.csv`, each row a "
            "run of `moefold train`), predicted by `moefold simulate` with the same options. "
            "Power, clock and memory are those of the driver.\n",
            begin_mark);
    write_summary(out);
    for (int i = 0; i < SOURCES; i++) {
        const struct source *s = &sources[i];
        const runs_asked asked = asked_of(program, s);
        if (s->whole) {
            fprintf(out, "\n## Runs of %s\n\n", s->name);
            runs_tell_method(out, &asked, "`make runs-accuracy` wrote this table");
            runs_tell_rows(out, rows[i], counts[i]);
        }
    }
    fprintf(out, "\nRun by run for the other models: [RUNS_MODELS.md](RUNS_MODELS.md) (H200), "
                 "[RUNS2_MODELS.md](RUNS2_MODELS.md) (two H200), "
                 "[RUNS_MODELS_H100.md](RUNS_MODELS_H100.md).\n\n");
}

static FILE *open_in(const char *folder, const char *name, const char *mode) {
    char path[RUNS_TEXT];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, mode);
    if (f == NULL) {
        fprintf(stderr, "runs_accuracy: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    return f;
}

static void close_written(FILE *f) {
    const bool failed = ferror(f) != 0;
    if (fclose(f) != 0 || failed) {
        training_give_up("a page cannot be written");
    }
}

/* What stands before our part and behind it stays. */
static void write_accuracy(const char *folder, const char *program) {
    enum { MOST = 1 << 22 };
    char *text = calloc(1, MOST);
    FILE *f = open_in(folder, "ACCURACY.md", "r");
    if (text == NULL || fread(text, 1, MOST - 1, f) == MOST - 1) {
        training_give_up("ACCURACY.md is larger than expected");
    }
    fclose(f);
    const char *behind = strstr(text, next_mark);
    char *ours = strstr(text, begin_mark);
    const char *end = ours != NULL ? ours : behind != NULL ? behind : text + strlen(text);
    f = open_in(folder, "ACCURACY.md", "w");
    fwrite(text, 1, (size_t)(end - text), f);
    fputs(end > text + 1 && end[-1] == '\n' && end[-2] != '\n' ? "\n" : "", f);
    write_part(f, program);
    fputs(behind != NULL ? behind : "", f);
    close_written(f);
    free(text);
}

int main(int argc, char **argv) {
    const bool write = argc == 4 && strcmp(argv[2], "-write") == 0;
    if (argc != 2 && !write) {
        fprintf(stderr, "runs_accuracy MOEFOLD [-write FOLDER]\n");
        return 2;
    }
    for (int i = 0; i < SOURCES; i++) {
        const runs_asked asked = asked_of(argv[1], &sources[i]);
        counts[i] = runs_predict_all(&asked, rows[i]);
        if (counts[i] == 0) {
            training_give_up(sources[i].file);
        }
        if (write) {
            FILE *page = open_in(argv[3], sources[i].page, "w");
            runs_tell_page(page, &asked, rows[i], counts[i]);
            close_written(page);
        }
    }
    if (write) {
        write_accuracy(argv[3], argv[1]);
    }
    write_summary(stdout);
    return 0;
}
