/* price_accuracy.c - prices of points that were kept out of every fit, against their measurements.
 *     price_accuracy [-cluster NAME] [-all] [-worst N] [CSV...]
 *     price_accuracy -write docs/ACCURACY.md
 * The first form prints, per op and precision, the number of held-out points, the median and 90th
 * percentile of |price / measured - 1|, the bias (mean of price / measured - 1) and the share of
 * points inside their band, and how many are off by more than 10 %. Without files: the shipped
 * calibration on its held-out points (profiles/measured/held_out/profile_NAME.csv); with files: a
 * store made of those alone, on their own held-out points. -all judges the points that were fitted,
 * too (they must come back); -worst lists the N worst. A shape that the fit was shown on another
 * GPU, whose residuals a GPU of the same architecture takes over, counts as seen and is not judged.
 * The second form writes the tables of every GPU with held-out points, as the last section of the
 * file, in place of what stood there.
 */
#include "core/base/paths.h"
#include "core/model/model.h"
#include "costmodel/cost.h"
#include "costmodel/cost_internal.h"
#include "profiles/store.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char marker[] = "<!-- prices: written by make price-accuracy -->\n";
static const char *const judged_gpus[] = {"h200", "h100"};
enum { GPUS = sizeof judged_gpus / sizeof judged_gpus[0] };

/* --- rows ------------------------------------------------------------------------------------- */

enum { KEY = 200 };

typedef enum kind { KERNELS, COLLECTIVES, EXCHANGES, COPIES, KINDS } kind;
static const char *const kind_names[KINDS] = {"kernels", "collectives", "dispatch and combine",
                                              "copies"};

typedef struct row {
    char label[64];
    char key[KEY];
    double error; /* price / measured - 1 */
    bool inside;
    kind kind;
} row;

/* Op keys of the points that a fit reads, of whatever GPU, sorted. */
typedef struct seen_keys {
    char (*key)[KEY];
    size_t n, allocated;
} seen_keys;

typedef struct rows {
    row *row;
    int n, allocated, seen; /* seen: left out, since the fit knows the shape from another GPU */
    const mf_cluster *cluster;
    const mf_cost *cost;
    const seen_keys *keys;
    bool all;
} rows;

static int by_key(const void *a, const void *b) {
    return strcmp(a, b);
}

static int take_seen(const mf_point *p, void *user) {
    seen_keys *k = user;
    if (p->holdout) {
        return 0;
    }
    if (k->n == k->allocated) {
        size_t allocated = k->allocated > 0 ? 2 * k->allocated : 4096;
        char(*more)[KEY] = realloc(k->key, allocated * sizeof *more);
        if (more == NULL) {
            return 1;
        }
        k->key = more;
        k->allocated = allocated;
    }
    mf_point_format(p, k->key[k->n++], KEY);
    return 0;
}

static int by_label_and_size(const void *a, const void *b) {
    const row *p = a, *q = b;
    int order = strcmp(p->label, q->label);
    double x = fabs(p->error), y = fabs(q->error);
    return order != 0 ? order : (x > y) - (x < y);
}

static int by_size(const void *a, const void *b) {
    const row *p = a, *q = b;
    double x = fabs(p->error), y = fabs(q->error);
    return (x > y) - (x < y);
}

/* "gemm bf16 tn", "attention fwd", "memory adamw", "all_reduce 3" */
static void label_of(const mf_point *p, char *out, size_t size) {
    static const char *const keys[] = {"op", "dtype", "layout", "pass", "ranks"};
    size_t at = (size_t)snprintf(out, size, "%s", p->op);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const mf_point_dim *d = mf_point_find(p, keys[i]);
        if (d != NULL && at < size && !(strncmp(p->op, "attention", 9) == 0 && i == 1)) {
            at += (size_t)snprintf(out + at, size - at, " %.20s", d->text);
        }
    }
}

static kind kind_of(const mf_point *p) {
    static const struct {
        const char *op;
        kind kind;
    } ops[] = {{"gemm", KERNELS},       {"grouped_gemm", KERNELS},     {"first_wgrad", KERNELS},
               {"attention", KERNELS},  {"attention_packed", KERNELS}, {"memory", KERNELS},
               {"dispatch", EXCHANGES}, {"combine", EXCHANGES},        {"copy", COPIES},
               {"copy_h2d", COPIES},    {"copy_d2h", COPIES}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (strcmp(p->op, ops[i].op) == 0) {
            return ops[i].kind;
        }
    }
    return COLLECTIVES;
}

static int take(const mf_point *p, void *user) {
    rows *r = user;
    mf_op op;
    mf_price price;
    char key[KEY];
    if ((!p->holdout && !r->all) || mf_cost_point_op(p, r->cluster, &op, NULL) != MF_OK) {
        return 0;
    }
    mf_point_format(p, key, sizeof key);
    if (!r->all && r->keys->n > 0 && bsearch(key, r->keys->key, r->keys->n, KEY, by_key) != NULL) {
        r->seen++;
        return 0;
    }
    if (r->n == r->allocated) {
        int allocated = r->allocated > 0 ? 2 * r->allocated : 512;
        row *more = realloc(r->row, (size_t)allocated * sizeof *more);
        if (more == NULL) {
            return 1;
        }
        r->row = more;
        r->allocated = allocated;
    }
    mf_cost_op(r->cost, &op, 1, &price);
    row *x = &r->row[r->n++];
    label_of(p, x->label, sizeof x->label);
    memcpy(x->key, key, sizeof key);
    x->error = price.time_s / p->time_s - 1;
    x->inside = p->time_s >= price.low_s && p->time_s <= price.high_s;
    x->kind = kind_of(p);
    return 0;
}

/* Judges the points of `judged` with prices that rest on `store` (NULL: what ships). */
static mf_status judge(const char *name, mf_store *store, mf_store *judged, bool all, rows *r,
                       mf_err *e) {
    mf_cluster c;
    mf_software s;
    mf_cost *cost = NULL;
    seen_keys keys = {NULL, 0, 0};
    mf_status status = mf_cluster_load(name, &c, e);
    status = status == MF_OK ? mf_software_load("ideal", &s, e) : status;
    c.domain_gpus_used = c.domain_gpus;
    status = status == MF_OK ? mf_cost_create(&c, &s, store, &cost, e) : status;
    if (status == MF_OK) { /* as costmodel/sample.c reads them */
        status = store != NULL ? mf_store_each(store, NULL, NULL, take_seen, &keys, NULL, e)
                               : mf_store_each_shipped(take_seen, &keys, e);
    }
    if (keys.n > 0) {
        qsort(keys.key, keys.n, KEY, by_key);
    }
    *r = (rows){.cluster = &c, .cost = cost, .keys = &keys, .all = all};
    status = status == MF_OK ? mf_store_each(judged, c.gpu.name, NULL, take, r, NULL, e) : status;
    mf_cost_destroy(cost);
    free(keys.key);
    return status;
}

static mf_status judge_shipped(const char *name, bool all, rows *r, mf_err *e) {
    char path[1400];
    mf_store *judged = NULL;
    snprintf(path, sizeof path, "%s/measured/held_out/profile_%s.csv", mf_data_dir(), name);
    mf_status status =
        all ? mf_store_open_shipped(&judged, e) : mf_store_open(":memory:", &judged, e);
    status = status == MF_OK ? mf_store_import_csv(judged, path, NULL, e) : status;
    status = status == MF_OK ? judge(name, NULL, judged, all, r, e) : status;
    mf_store_close(judged);
    return status;
}

/* --- tables ----------------------------------------------------------------------------------- */

typedef struct figures {
    int n, tail;                      /* of them off by more than tail_error */
    double median, p90, bias, inside; /* shares of 1 */
} figures;

static const double tail_error = 0.10;

/* Rows sorted by |error|. */
static figures figures_of(const row *r, int n) {
    figures f = {.n = n};
    for (int i = 0; i < n; i++) {
        f.bias += r[i].error / n;
        f.inside += (r[i].inside ? 1.0 : 0.0) / n;
        f.tail += fabs(r[i].error) > tail_error;
    }
    f.median = n > 0 ? fabs(r[n / 2].error) : 0;
    f.p90 = n > 0 ? fabs(r[n * 9 / 10].error) : 0;
    return f;
}

static void print_line(FILE *out, const char *label, const figures *f) {
    fprintf(out, "| %s | %d | %.1f | %.1f | %+.1f | %.0f | %d |\n", label, f->n, 100 * f->median,
            100 * f->p90, 100 * f->bias, 100 * f->inside, f->tail);
}

static figures total_of(const rows *r, kind which) {
    row *some = malloc((size_t)(r->n + 1) * sizeof *some);
    int n = 0;
    for (int i = 0; i < r->n && some != NULL; i++) {
        if (r->row[i].kind == which) {
            some[n++] = r->row[i];
        }
    }
    if (n > 0) {
        qsort(some, (size_t)n, sizeof *some, by_size);
    }
    figures f = figures_of(some, some != NULL ? n : 0);
    free(some);
    return f;
}

static void print_table(FILE *out, rows *r) {
    fprintf(out, "| op | points | median | p90 | bias | inside band | beyond 10 %% "
                 "|\n|---|---|---|---|---|---|---|\n");
    if (r->n == 0) {
        return;
    }
    qsort(r->row, (size_t)r->n, sizeof *r->row, by_label_and_size);
    for (int i = 0, j; i < r->n; i = j) {
        for (j = i; j < r->n && strcmp(r->row[j].label, r->row[i].label) == 0;) {
            j++;
        }
        figures f = figures_of(r->row + i, j - i);
        print_line(out, r->row[i].label, &f);
    }
    for (kind k = KERNELS; k < KINDS; k++) {
        char label[48];
        figures f = total_of(r, k);
        snprintf(label, sizeof label, "**all %s**", kind_names[k]);
        if (f.n > 0) {
            print_line(out, label, &f);
        }
    }
}

static void print_worst(const rows *r, int worst) {
    if (r->n > 0) {
        qsort(r->row, (size_t)r->n, sizeof *r->row, by_size);
    }
    for (int i = 0; i < worst && i < r->n; i++) {
        const row *x = &r->row[r->n - 1 - i];
        printf("%+6.1f %%  %s\n", 100 * x->error, x->key);
    }
}

/* --- the section of docs/ACCURACY.md ---------------------------------------------------------- */

static const char *word(bool met) {
    return met ? "met" : "not met";
}

static void print_targets(FILE *out, const char *gpu, const rows *r) {
    figures k = total_of(r, KERNELS);
    fprintf(out, "| %s: kernels, %d shapes never measured, median error | <= 3 | %.1f | %s |\n",
            gpu, k.n, 100 * k.median, word(k.median <= 0.03));
    fprintf(out, "| %s: kernels, 90th percentile | <= 10 | %.1f | %s |\n", gpu, 100 * k.p90,
            word(k.p90 <= 0.10));
    fprintf(out, "| %s: kernels, bias | <= 1 | %+.1f | %s |\n", gpu, 100 * k.bias,
            word(fabs(k.bias) <= 0.01));
    for (kind i = COLLECTIVES; i < KINDS; i++) {
        figures l = total_of(r, i);
        if (l.n > 0) {
            fprintf(out, "| %s: %s, %d sizes never measured, median error | <= 5 | %.1f | %s |\n",
                    gpu, kind_names[i], l.n, 100 * l.median, word(l.median <= 0.05));
        }
    }
}

static void print_section(FILE *out, rows *all) {
    fprintf(out, "%s# Prices against measurements\n\n", marker);
    fprintf(
        out,
        "Made by `make price-accuracy`; do not edit. Shapes drawn at random over the ranges of "
        "the shipped models, and ops of those models under random layouts, measured by `moefold "
        "profile` and kept out of every fit (`profiles/measured/held_out/`); prices from the "
        "shipped calibration under the software profile `ideal`. Errors are price over "
        "measurement minus one, in %%; inside band: share of the measurements that lie between "
        "the price's low and high; beyond 10 %%: points, which make up the tail. Groups of three "
        "of four GPUs are held out whole.\n\n");
    fprintf(out, "| what | target | reached | |\n|---|---|---|---|\n");
    for (int i = 0; i < GPUS; i++) {
        print_targets(out, judged_gpus[i], &all[i]);
    }
    for (int i = 0; i < GPUS; i++) {
        fprintf(out, "\n## %s\n\n", judged_gpus[i]);
        if (all[i].seen > 0) {
            fprintf(out,
                    "%d more shapes that were held out here are not judged: the fit knows them "
                    "from another GPU of this architecture.\n\n",
                    all[i].seen);
        }
        print_table(out, &all[i]);
    }
}

/* What stands in front of the section; "" when there is no such file. To be freed. */
static char *read_front(const char *path, mf_err *e) {
    FILE *in = fopen(path, "rb");
    size_t size = 0, allocated = 1 << 20;
    char *text = malloc(allocated + 1);
    if (text == NULL) {
        mf_err_set(e, MF_NOMEM, "%s: out of memory", path);
    } else if (in != NULL) {
        size = fread(text, 1, allocated, in);
    }
    if (in != NULL) {
        fclose(in);
    }
    if (text != NULL) {
        text[size] = '\0';
        char *at = strstr(text, marker);
        if (at != NULL) {
            *at = '\0';
        }
    }
    return text;
}

static mf_status write_section(const char *path, mf_err *e) {
    rows all[GPUS] = {{.row = NULL}};
    mf_status status = MF_OK;
    char part[1400];
    FILE *out = NULL;
    char *front = read_front(path, e);
    status = front != NULL ? MF_OK : MF_NOMEM;
    for (int i = 0; i < GPUS && status == MF_OK; i++) {
        status = judge_shipped(judged_gpus[i], false, &all[i], e);
    }
    snprintf(part, sizeof part, "%s.part-%ld", path, (long)getpid());
    if (status == MF_OK && (out = fopen(part, "wb")) == NULL) {
        status = mf_err_set(e, MF_IO, "%s: %s", part, strerror(errno));
    }
    if (status == MF_OK) {
        size_t length = strlen(front);
        fputs(front, out);
        if (length > 1 && strcmp(front + length - 2, "\n\n") != 0) {
            fputc('\n', out);
        }
        print_section(out, all);
        bool failed = ferror(out) != 0;
        failed = fclose(out) != 0 || failed || rename(part, path) != 0;
        status = failed ? mf_err_set(e, MF_IO, "%s: %s", path, strerror(errno)) : MF_OK;
    }
    for (int i = 0; i < GPUS; i++) {
        free(all[i].row);
    }
    free(front);
    return status;
}

/* --- the program ------------------------------------------------------------------------------ */

static mf_status print_gpu(const char *name, char **files, int nfiles, bool all, int worst,
                           mf_err *e) {
    rows r = {.row = NULL};
    mf_store *store = NULL;
    mf_status status = MF_OK;
    if (nfiles == 0) {
        status = judge_shipped(name, all, &r, e);
    } else {
        status = mf_store_open(":memory:", &store, e);
        for (int i = 0; i < nfiles && status == MF_OK; i++) {
            status = mf_store_import_csv(store, files[i], NULL, e);
        }
        status = status == MF_OK ? judge(name, store, store, all, &r, e) : status;
    }
    if (status == MF_OK) {
        print_table(stdout, &r);
        print_worst(&r, worst);
    }
    free(r.row);
    mf_store_close(store);
    return status;
}

int main(int argc, char **argv) {
    const char *cluster = "h200", *write = NULL;
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
        } else if (strcmp(argv[i], "-write") == 0 && more) {
            write = argv[++i];
        } else if (strcmp(argv[i], "-worst") == 0 && more) {
            worst = (int)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "-all") == 0) {
            all = true;
        } else {
            files[nfiles++] = argv[i];
        }
    }
    mf_err_clear(&e);
    mf_status status = write != NULL ? write_section(write, &e)
                                     : print_gpu(cluster, files, nfiles, all, worst, &e);
    if (status != MF_OK) {
        fprintf(stderr, "price_accuracy: %s\n", e.text);
    }
    free(files);
    return mf_status_exit_code(status);
}
