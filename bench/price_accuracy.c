/* price_accuracy.c - prices of points that were kept out of every fit, against their measurements.
 *     price_accuracy [-cluster NAME] [-all] [-worst N] [CSV...]
 * Without files: the shipped measurements. Prints, per op and precision, the number of held-out
 * points, the median and 90th percentile of |price / measured - 1|, the bias (mean of price /
 * measured - 1), the same within each pass, and the share of points inside their band.
 * -all judges the points that were fitted, too (they must come back); -worst lists the N worst.
 */
#include "costmodel/cost.h"
#include "costmodel/cost_internal.h"
#include "profiles/store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    char label[64];
    char key[200];
    double error; /* price / measured - 1 */
    bool inside;
} row;

typedef struct rows {
    row *row;
    int n, room;
    const mf_cluster *cluster;
    const mf_cost *cost;
    bool all;
} rows;

static int by_label_and_size(const void *a, const void *b) {
    const row *p = a, *q = b;
    int order = strcmp(p->label, q->label);
    double x = fabs(p->error), y = fabs(q->error);
    return order != 0 ? order : (x > y) - (x < y);
}

static int by_size(const void *a, const void *b) {
    const row *p = a, *q = b;
    double x = fabs(p->error), y = fabs(q->error);
    return (x < y) - (x > y);
}

/* "gemm bf16 tn", "attention fwd", "memory adamw", "all_reduce 3" */
static void label_of(const mf_point *p, char *out, size_t size) {
    static const char *const keys[] = {"op", "dtype", "layout", "pass", "ranks"};
    size_t at = (size_t)snprintf(out, size, "%s", p->op);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const mf_point_dim *d = mf_point_find(p, keys[i]);
        if (d != NULL && at < size && !(strcmp(p->op, "attention") == 0 && i == 1)) {
            at += (size_t)snprintf(out + at, size - at, " %.20s", d->text);
        }
    }
}

static int take(const mf_point *p, void *user) {
    rows *r = user;
    mf_op op;
    mf_price price;
    if ((!p->holdout && !r->all) || mf_cost_point_op(p, r->cluster, &op, NULL) != MF_OK) {
        return 0;
    }
    if (r->n == r->room) {
        int room = r->room > 0 ? 2 * r->room : 512;
        row *more = realloc(r->row, (size_t)room * sizeof *more);
        if (more == NULL) {
            return 1;
        }
        r->row = more;
        r->room = room;
    }
    mf_cost_op(r->cost, &op, 1, &price);
    row *x = &r->row[r->n++];
    label_of(p, x->label, sizeof x->label);
    mf_point_format(p, x->key, sizeof x->key);
    x->error = price.time_s / p->time_s - 1;
    x->inside = p->time_s >= price.low_s && p->time_s <= price.high_s;
    return 0;
}

/* One line over rows first .. last-1, which are sorted by |error|. */
static void print_line(const char *label, const row *r, int n) {
    double bias = 0;
    int inside = 0;
    for (int i = 0; i < n; i++) {
        bias += r[i].error / n;
        inside += r[i].inside;
    }
    printf("| %-28s | %4d | %5.1f %% | %5.1f %% | %+5.1f %% | %3.0f %% |\n", label, n,
           100 * fabs(r[n / 2].error), 100 * fabs(r[n * 9 / 10].error), 100 * bias,
           100.0 * inside / n);
}

/* Kernels (products, attention, memory) apart from what moves between GPUs and host. */
static bool is_kernel(const row *r) {
    static const char *const ops[] = {"gemm", "grouped_gemm", "attention", "memory", "copy "};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (strncmp(r->label, ops[i], strlen(ops[i])) == 0 || strcmp(r->label, "copy") == 0) {
            return true;
        }
    }
    return false;
}

static void print_table(rows *r) {
    printf("| op | points | median | 90th | bias | in band |\n|---|---|---|---|---|---|\n");
    qsort(r->row, (size_t)r->n, sizeof *r->row, by_label_and_size);
    for (int i = 0; i < r->n;) {
        int j = i;
        while (j < r->n && strcmp(r->row[j].label, r->row[i].label) == 0) {
            j++;
        }
        print_line(r->row[i].label, r->row + i, j - i);
        i = j;
    }
    row *some = malloc((size_t)(r->n + 1) * sizeof *some);
    for (int kernels = 1; kernels >= 0 && some != NULL; kernels--) {
        int n = 0;
        for (int i = 0; i < r->n; i++) {
            if (is_kernel(&r->row[i]) == (kernels == 1)) {
                some[n] = r->row[i];
                some[n++].label[0] = '\0';
            }
        }
        if (n > 0) {
            qsort(some, (size_t)n, sizeof *some, by_label_and_size);
            print_line(kernels ? "all kernels" : "all links", some, n);
        }
    }
    free(some);
}

static mf_status judge(const char *name, char **files, int nfiles, bool all, int worst, mf_err *e) {
    mf_cluster c;
    mf_software s;
    mf_store *store = NULL;
    mf_cost *cost = NULL;
    rows r = {NULL, 0, 0, &c, NULL, all};
    mf_status status = mf_cluster_load(name, &c, e);
    status = status == MF_OK ? mf_software_load("ideal", &s, e) : status;
    if (status == MF_OK) {
        status =
            nfiles > 0 ? mf_store_open(":memory:", &store, e) : mf_store_open_shipped(&store, e);
    }
    for (int i = 0; i < nfiles && status == MF_OK; i++) {
        status = mf_store_import_csv(store, files[i], NULL, e);
    }
    c.domain_gpus_used = c.domain_gpus;
    status = status == MF_OK ? mf_cost_create(&c, &s, store, &cost, e) : status;
    r.cost = cost;
    status = status == MF_OK ? mf_store_each(store, c.gpu.name, NULL, take, &r, NULL, e) : status;
    if (status == MF_OK && r.n > 0) {
        print_table(&r);
        qsort(r.row, (size_t)r.n, sizeof *r.row, by_size);
        for (int i = 0; i < worst && i < r.n; i++) {
            printf("%+6.1f %%  %s\n", 100 * r.row[i].error, r.row[i].key);
        }
    }
    free(r.row);
    mf_cost_destroy(cost);
    mf_store_close(store);
    return status;
}

int main(int argc, char **argv) {
    const char *cluster = "h200";
    bool all = false;
    int worst = 0, nfiles = 0;
    char **files = calloc((size_t)argc + 1, sizeof *files);
    mf_err e;
    if (files == NULL) {
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "-cluster") == 0 && more) {
            cluster = argv[++i];
        } else if (strcmp(argv[i], "-worst") == 0 && more) {
            worst = atoi(argv[++i]);
        } else if (strcmp(argv[i], "-all") == 0) {
            all = true;
        } else {
            files[nfiles++] = argv[i];
        }
    }
    mf_err_clear(&e);
    mf_status status = judge(cluster, files, nfiles, all, worst, &e);
    if (status != MF_OK) {
        fprintf(stderr, "price_accuracy: %s\n", e.text);
    }
    free(files);
    return mf_status_exit_code(status);
}
