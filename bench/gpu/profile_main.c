/* profile_main.c - measures this machine's GPU over the general grid and appends to a CSV file.
 *     profile_main OUT.csv [-gpu NAME] [-limit SECONDS] [-seed N] [-op NAME] [-date ISO] [-plan]
 *     -collectives RANKS   the collectives of RANKS GPUs instead
 *     -plan                print the points and stop (needs no GPU)
 */
#include "executor/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void progress(int64_t done, int64_t total, const mf_point *last, double left_s, void *user) {
    (void)user;
    if (done % 100 == 0 || done == total) {
        fprintf(stderr, "%lld of %lld, about %.0f s to go (%s)\n", (long long)done,
                (long long)total, left_s, last->op);
    }
}

static void print_plan(const mf_measure_list *l) {
    for (int64_t i = 0; i < l->n; i++) {
        char key[512];
        mf_point_format(&l->point[i], key, sizeof key);
        printf("%s\t%s\t%s\n", key, l->point[i].holdout ? "held out" : "fit", l->point[i].source);
    }
}

/* Keeps the points of one op. */
static void keep_op(mf_measure_list *l, const char *op) {
    int64_t kept = 0;
    for (int64_t i = 0; i < l->n; i++) {
        if (strcmp(l->point[i].op, op) == 0) {
            l->point[kept++] = l->point[i];
        }
    }
    l->n = kept;
}

int main(int argc, char **argv) {
    char today[16];
    time_t now = time(NULL);
    struct tm date;
    mf_measure_options o = {
        .gpu = "h200", .csv_path = "profile.csv", .date = today, .seed = 1, .progress = progress};
    mf_measure_list l = {NULL, 0, 0};
    mf_measure_counts counts = {0, 0, 0, 0};
    mf_err e;
    int ranks = 0;
    bool plan = false;
    const char *op = NULL;
    strftime(today, sizeof today, "%Y-%m-%d", gmtime_r(&now, &date));
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "-plan") == 0) {
            plan = true;
        } else if (argv[i][0] != '-') {
            o.csv_path = argv[i];
        } else {
            i++;
            o.gpu = strcmp(argv[i - 1], "-gpu") == 0 ? value : o.gpu;
            o.date = strcmp(argv[i - 1], "-date") == 0 ? value : o.date;
            op = strcmp(argv[i - 1], "-op") == 0 ? value : op;
            o.limit_s = strcmp(argv[i - 1], "-limit") == 0 ? atof(value) : o.limit_s;
            o.seed = strcmp(argv[i - 1], "-seed") == 0 ? strtoull(value, NULL, 10) : o.seed;
            ranks = strcmp(argv[i - 1], "-collectives") == 0 ? atoi(value) : ranks;
        }
    }
    mf_err_clear(&e);
    mf_status status = ranks > 0 ? mf_measure_plan_collectives(ranks, o.seed, &l, &e)
                                 : mf_measure_plan_gpu(o.seed, &l, &e);
    if (status == MF_OK && op != NULL) {
        keep_op(&l, op);
    }
    if (status == MF_OK && plan) {
        print_plan(&l);
    } else if (status == MF_OK) {
        status = ranks > 0 ? mf_measure_collectives(&o, &l, &counts, &e)
                           : mf_measure_gpu(&o, &l, &counts, &e);
    }
    if (status != MF_OK) {
        fprintf(stderr, "%s\n", e.text);
    } else if (!plan) {
        printf("measured %lld, there already %lld, refused %lld, left %lld\n",
               (long long)counts.measured, (long long)counts.skipped, (long long)counts.refused,
               (long long)counts.left);
    }
    mf_measure_list_clear(&l);
    return mf_status_exit_code(status);
}
