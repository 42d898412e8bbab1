/* report.c - error tables by source, model, split; order of layouts; memory; what was left out. */
#include "bench/published/report.h"

#include "core/base/sort.h"
#include "simulator/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct tally {
    int n, inside;
    double sum_abs, sum, worst;
    const pub_row *worst_row;
    double *all; /* [n] absolute errors */
} tally;

static double error_of(const pub_row *r) {
    return r->predicted_s / r->step_s - 1.0;
}

static bool counted(const pub_row *r) {
    return r->skipped[0] == '\0';
}

static void add(tally *t, const pub_row *r) {
    double e = error_of(r);
    t->sum_abs += fabs(e);
    t->sum += e;
    t->inside += r->step_s >= r->low_s && r->step_s <= r->high_s;
    if (t->worst_row == NULL || fabs(e) > fabs(t->worst)) {
        t->worst = e;
        t->worst_row = r;
    }
    if (t->all != NULL) {
        t->all[t->n] = fabs(e);
    }
    t->n++;
}

static void line(FILE *f, const char *name, tally *t) {
    if (t->n == 0) {
        fprintf(f, "| %s | 0 | | | | | | |\n", name);
        return;
    }
    double median = 0, p90 = 0;
    if (t->all != NULL) {
        mf_sort_doubles(t->all, (size_t)t->n);
        median = t->all[t->n / 2];
        p90 = t->all[(int)(0.9 * (t->n - 1) + 0.5)];
    }
    fprintf(f, "| %s | %d | %.1f | %.1f | %.1f | %+.1f | %+.0f (%s) | %.0f |\n", name, t->n,
            100 * t->sum_abs / t->n, 100 * median, 100 * p90, 100 * t->sum / t->n, 100 * t->worst,
            t->worst_row->id, 100.0 * t->inside / t->n);
}

typedef bool (*row_filter)(const pub_row *r, const char *key);

static tally gather(const pub_row *rows, int count, row_filter keep, const char *key, double *all) {
    tally t = {.all = all};
    for (int i = 0; i < count; i++) {
        if (counted(&rows[i]) && keep(&rows[i], key)) {
            add(&t, &rows[i]);
        }
    }
    return t;
}

static bool is_dense_held(const pub_row *r, const char *key) {
    (void)key;
    return !r->moe && r->held_out;
}
static bool is_dense_fit(const pub_row *r, const char *key) {
    (void)key;
    return !r->moe && !r->held_out;
}
static bool is_moe_known_held(const pub_row *r, const char *key) {
    (void)key;
    return r->moe && r->held_out && pub_flags_known(r);
}
static bool is_moe_unknown_held(const pub_row *r, const char *key) {
    (void)key;
    return r->moe && r->held_out && !pub_flags_known(r);
}
static bool is_moe_held(const pub_row *r, const char *key) {
    (void)key;
    return r->moe && r->held_out;
}
static bool is_moe_fit(const pub_row *r, const char *key) {
    (void)key;
    return r->moe && !r->held_out;
}
static bool of_source(const pub_row *r, const char *key) {
    return strcmp(r->source, key) == 0;
}
static bool of_model(const pub_row *r, const char *key) {
    return strcmp(r->model_name, key) == 0;
}
static bool of_gpu(const pub_row *r, const char *key) {
    return strcmp(r->gpu, key) == 0;
}
static bool of_software(const pub_row *r, const char *key) {
    mf_software s;
    return mf_software_load(r->software, &s, NULL) == MF_OK && strcmp(s.name, key) == 0;
}

static const char head[] = "| rows | n | mean | median | p90 | bias | worst | inside band |\n"
                           "|---|---|---|---|---|---|---|---|\n";

/* --- order of two layouts --------------------------------------------------------------------- */

typedef struct order {
    int pairs3, right3, pairs10, right10;
    int same; /* >= 10 % apart, but alike in all that a prediction reads */
} order;

static double speed(const pub_row *r, double step_s) {
    return (double)r->layout.gbs * (double)r->layout.seq / (step_s * (double)r->layout.gpus);
}

static bool same_run(const pub_row *a, const pub_row *b) {
    return strcmp(a->model_name, b->model_name) == 0 && strcmp(a->gpu, b->gpu) == 0 &&
           strcmp(a->software, b->software) == 0 && a->layout.seq == b->layout.seq &&
           strcmp(a->source, b->source) == 0;
}

static order order_of(const pub_row *rows, int count, bool moe, bool held) {
    order o = {0, 0, 0, 0, 0};
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++) {
            const pub_row *a = &rows[i], *b = &rows[j];
            if (!counted(a) || !counted(b) || a->moe != moe || !same_run(a, b) ||
                (held && !a->held_out && !b->held_out)) {
                continue;
            }
            double truth = log(speed(a, a->step_s) / speed(b, b->step_s));
            double guess = log(speed(a, a->predicted_s) / speed(b, b->predicted_s));
            bool right = (truth > 0) == (guess > 0);
            if (fabs(guess) < 1e-12) { /* one layout, run twice */
                o.same += fabs(truth) >= log(1.10);
                continue;
            }
            if (fabs(truth) >= log(1.03)) {
                o.pairs3++;
                o.right3 += right;
            }
            if (fabs(truth) >= log(1.10)) {
                o.pairs10++;
                o.right10 += right;
            }
        }
    }
    return o;
}

static void order_line(FILE *f, const char *name, order o) {
    fprintf(f, "| %s | %d of %d (%.0f %%) | %d of %d (%.0f %%) |\n", name, o.right10, o.pairs10,
            o.pairs10 ? 100.0 * o.right10 / o.pairs10 : 0, o.right3, o.pairs3,
            o.pairs3 ? 100.0 * o.right3 / o.pairs3 : 0);
}

/* --- distinct keys ---------------------------------------------------------------------------- */

static int distinct(const pub_row *rows, int count, const char *(*key)(const pub_row *),
                    const char **keys, int max) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        const char *k = counted(&rows[i]) ? key(&rows[i]) : NULL;
        int at = 0;
        while (k != NULL && at < n && strcmp(keys[at], k) != 0) {
            at++;
        }
        if (k != NULL && at == n && n < max) {
            keys[n++] = k;
        }
    }
    return n;
}

static const char *key_source(const pub_row *r) {
    return r->source;
}
static const char *key_model(const pub_row *r) {
    return r->model_name;
}
static const char *key_gpu(const pub_row *r) {
    return r->gpu;
}

static void by_key(FILE *f, const pub_row *rows, int count, const char *title,
                   const char *(*key)(const pub_row *), row_filter filter, double *all) {
    const char *keys[64];
    int n = distinct(rows, count, key, keys, 64);
    fprintf(f, "\n## By %s (fitted and held-out rows together)\n\n%s", title, head);
    for (int i = 0; i < n; i++) {
        tally t = gather(rows, count, filter, keys[i], all);
        line(f, keys[i], &t);
    }
}

static void skipped_table(FILE *f, const pub_row *rows, int count) {
    const char *why[128];
    int seen[128], n = 0;
    for (int i = 0; i < count; i++) {
        if (counted(&rows[i])) {
            continue;
        }
        int at = 0;
        while (at < n && strcmp(why[at], rows[i].skipped) != 0) {
            at++;
        }
        if (at == n && n < 128) {
            why[n] = rows[i].skipped;
            seen[n++] = 0;
        }
        if (at < 128) {
            seen[at]++;
        }
    }
    fprintf(f, "\n## Rows without a prediction\n\n| why | rows |\n|---|---|\n");
    for (int i = 0; i < n; i++) {
        fprintf(f, "| %s | %d |\n", why[i], seen[i]);
    }
}

static bool states_memory(const pub_row *r) {
    return counted(r) && r->memory_B > 0;
}

static double memory_error(const pub_row *r) {
    return r->predicted_memory_B / r->memory_B - 1.0;
}

static bool any_row(const pub_row *r, const char *key) {
    (void)r;
    (void)key;
    return true;
}

static void memory_line(FILE *f, const char *name, const pub_row *rows, int count, row_filter keep,
                        const char *key) {
    double sum_abs = 0, sum = 0;
    const pub_row *worst = NULL;
    int n = 0;
    for (int i = 0; i < count; i++) {
        if (states_memory(&rows[i]) && keep(&rows[i], key)) {
            double e = memory_error(&rows[i]);
            worst = worst == NULL || fabs(e) > fabs(memory_error(worst)) ? &rows[i] : worst;
            sum_abs += fabs(e);
            sum += e;
            n++;
        }
    }
    if (n > 0) {
        fprintf(f, "| %s | %d | %.1f | %+.1f | %+.1f (%s) |\n", name, n, 100 * sum_abs / n,
                100 * sum / n, 100 * memory_error(worst), worst->id);
    }
}

/* A line for each source, or model, in the order of the rows. */
static void memory_lines(FILE *f, const pub_row *rows, int count, bool source) {
    row_filter keep = source ? of_source : of_model;
    for (int i = 0; i < count; i++) {
        const char *key = source ? rows[i].source : rows[i].model_name;
        bool before = false;
        for (int k = 0; k < i; k++) {
            before |= states_memory(&rows[k]) && keep(&rows[k], key);
        }
        if (states_memory(&rows[i]) && !before) {
            memory_line(f, key, rows, count, keep, key);
        }
    }
}

static void memory_table(FILE *f, const pub_row *rows, int count) {
    fprintf(
        f,
        "\n## Memory\n\nPublished peaks are what PyTorch's allocator reported (allocated; "
        "torchtitan: reserved). Predictions are what `simulate` prints as the peak that the "
        "profile's program would print (`reported_memory_B`): moefold's static plan without "
        "CUDA context and NCCL's buffers, which that allocator does not know, and for "
        "Megatron with the weight gradients that Transformer Engine hands out and nobody "
        "reads (`memory_report` of the profile, `job/figures/reported_memory.c`). Errors in %%.\n\n"
        "| rows | n | mean | bias | worst |\n|---|---|---|---|---|\n");
    memory_line(f, "all", rows, count, any_row, "");
    memory_lines(f, rows, count, true);
    memory_lines(f, rows, count, false);
    fprintf(f,
            "\n| row | model | published GB | predicted GB | error %% |\n|---|---|---|---|---|\n");
    for (int i = 0; i < count; i++) {
        const pub_row *r = &rows[i];
        if (states_memory(r)) {
            fprintf(f, "| %s | %s | %.1f | %.1f | %+.1f |\n", r->id, r->model_name,
                    r->memory_B / 1e9, r->predicted_memory_B / 1e9, 100 * memory_error(r));
        }
    }
}

static int by_miss(const void *a, const void *b) {
    const pub_row *x = *(const pub_row *const *)a, *y = *(const pub_row *const *)b;
    double ex = fabs(error_of(x)), ey = fabs(error_of(y));
    return ex < ey ? 1 : ex > ey ? -1 : strcmp(x->id, y->id);
}

static void worst_table(FILE *f, const pub_row *rows, int count) {
    const pub_row **sorted = calloc((size_t)count + 1, sizeof *sorted);
    int n = 0;
    for (int i = 0; i < count && sorted != NULL; i++) {
        if (counted(&rows[i])) {
            sorted[n++] = &rows[i];
        }
    }
    if (sorted == NULL) {
        return;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, by_miss);
    fprintf(f,
            "\n## Outliers: all stay in every mean\n\n| row | model | GPU | layout | published s "
            "| predicted s | error %% | reason |\n|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < n && i < 40; i++) {
        const pub_row *r = sorted[i];
        const mf_layout *l = &r->layout;
        fprintf(f,
                "| %s | %s | %s x%lld | TP%lld CP%lld PP%lld VPP%lld EP%lld ETP%lld mbs%lld %s | "
                "%.3f | %.3f | %+.0f | %s%s |\n",
                r->id, r->model_name, r->gpu, (long long)l->gpus, (long long)l->tp,
                (long long)l->cp, (long long)l->pp, (long long)l->vpp, (long long)l->ep,
                (long long)l->etp, (long long)l->mbs, mf_precision_text(l->precision), r->step_s,
                r->predicted_s, 100 * error_of(r), r->reason[0] ? r->reason : "",
                r->reason[0]         ? ""
                : pub_flags_known(r) ? "not explained"
                                     : "flags unsaid (graph, dispatcher, overlap or micro-batch)");
    }
    free(sorted);
}

static void headline(FILE *f, const pub_row *rows, int count, double *all) {
    const struct {
        const char *name;
        row_filter filter;
    } sets[] = {
        {"dense, held out", is_dense_held},
        {"dense, fitted", is_dense_fit},
        {"MoE, flags known, held out", is_moe_known_held},
        {"MoE, flags unsaid, held out", is_moe_unknown_held},
        {"MoE, all held out", is_moe_held},
        {"MoE, fitted", is_moe_fit},
    };
    fprintf(f, "%s", head);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        tally t = gather(rows, count, sets[i].filter, NULL, all);
        line(f, sets[i].name, &t);
    }
    fprintf(f, "\nOrder of two layouts of the same model, GPU, software, sequence length and "
               "source:\n\n| pairs | >= 10 %% apart | >= 3 %% apart |\n|---|---|---|\n");
    order_line(f, "dense", order_of(rows, count, false, false));
    order_line(f, "MoE", order_of(rows, count, true, false));
    order_line(f, "dense, at least one held out", order_of(rows, count, false, true));
    order_line(f, "MoE, at least one held out", order_of(rows, count, true, true));
    fprintf(f,
            "\nLeft out are pairs that differ in nothing that a prediction reads, so that there is "
            "no order to predict (steps of software work, re-runs): %d dense and %d MoE pairs "
            ">= 10 %% apart.\n",
            order_of(rows, count, false, false).same, order_of(rows, count, true, false).same);
}

static void target(FILE *f, const char *what, double limit, double reached, bool at_least) {
    bool met = at_least ? reached >= limit : fabs(reached) <= limit;
    fprintf(f, "| %s | %s %g | %.1f | %s |\n", what, at_least ? ">=" : "<=", limit, reached,
            met ? "met" : "not met");
}

static double percent(double part, double whole) {
    return whole > 0 ? 100 * part / whole : 0;
}

static void targets(FILE *f, const pub_row *rows, int count) {
    tally dense = gather(rows, count, is_dense_held, NULL, NULL);
    tally known = gather(rows, count, is_moe_known_held, NULL, NULL);
    tally unsaid = gather(rows, count, is_moe_unknown_held, NULL, NULL);
    tally moe = gather(rows, count, is_moe_held, NULL, NULL);
    order d = order_of(rows, count, false, true), m = order_of(rows, count, true, true);
    fprintf(f, "\n## Against the targets (held-out rows, %%)\n\n| what | target | reached | |\n"
               "|---|---|---|---|\n");
    target(f, "dense, mean error", 5, percent(dense.sum_abs, dense.n), false);
    target(f, "dense, bias", 2, percent(dense.sum, dense.n), false);
    target(f, "dense, truth inside the band", 90, percent(dense.inside, dense.n), true);
    target(f, "MoE, release and flags known, mean error", 8, percent(known.sum_abs, known.n),
           false);
    target(f, "MoE, release and flags known, truth inside the band", 90,
           percent(known.inside, known.n), true);
    target(f, "MoE, flags unsaid, mean error", 12, percent(unsaid.sum_abs, unsaid.n), false);
    target(f, "MoE, flags unsaid, truth inside the band", 90, percent(unsaid.inside, unsaid.n),
           true);
    target(f, "MoE, bias", 2, percent(moe.sum, moe.n), false);
    target(f, "dense, order of layouts >= 10 % apart", 98, percent(d.right10, d.pairs10), true);
    target(f, "MoE, order of layouts >= 10 % apart", 98, percent(m.right10, m.pairs10), true);
}

void pub_summary(FILE *f, const pub_row *rows, int count) {
    double *all = calloc((size_t)count + 1, sizeof *all);
    headline(f, rows, count, all);
    free(all);
}

void pub_report(FILE *f, const pub_profiles *p, const pub_row *rows, int count) {
    double *all = calloc((size_t)count + 1, sizeof *all);
    int n = 0;
    for (int i = 0; i < count; i++) {
        n += counted(&rows[i]);
    }
    fprintf(f,
            "# Accuracy against published runs\n\n"
            "Made by `make validate`; do not edit. %d of the %d rows of "
            "`bench/published/published.csv` are predicted, each with its own layout, precision, "
            "software release and conventions; the others are listed with the reason. Errors are "
            "of step time, predicted over published minus one, in %%. A third of the rows, by "
            "hash of model, GPU and layout as printed, is held out of every fit. The fit "
            "(`make validate-fit`; `bench/published/fit.c`) moves the parameters of "
            "`bench/published/fit_parameters.c`: each is held near its prior "
            "(`bench/published/priors`), releases share most of it, and a row that misses by far "
            "hardly pulls. Each prediction is what `moefold simulate` prints: `build/validate "
            "--commands` gives every row's command line, and `make validate-commands` runs all "
            "of them. What a row leaves unsaid is unsaid there: the release's default stands for "
            "it, and the band covers what else it may be (`job/load/unsaid.c`). Runs of our own on "
            "one, two "
            "and four GPUs stand [below](#runs-of-our-own-predicted-and-measured), prices of ops "
            "[behind them](#prices-against-measurements).\n\n"
            "Rows of hybrids, DeepSeek-V4 and Llama 4 were entered last. That kernels of layers "
            "with a state have an efficiency of their own (`scan_eff`), how many MTP depths of "
            "each model ran, which figure of card-015 and card-016 counts, and to read in NeMo's "
            "recipe what its Llama 4 rows leave unsaid, was decided after the errors of all rows "
            "had been seen: for these families held-out rows are not blind. So was that a ring's "
            "piece over a rank's own keys is a whole attention, which tt-008 shows most.\n\n",
            n, count);
    headline(f, rows, count, all);
    targets(f, rows, count);
    fprintf(f, "\n## By software profile\n\n%s", head);
    for (int k = 0; k < p->count; k++) {
        tally t = gather(rows, count, of_software, p->software[k].name, all);
        line(f, p->software[k].name, &t);
    }
    by_key(f, rows, count, "source", key_source, of_source, all);
    by_key(f, rows, count, "model", key_model, of_model, all);
    by_key(f, rows, count, "GPU", key_gpu, of_gpu, all);
    pub_mechanisms(f);
    memory_table(f, rows, count);
    worst_table(f, rows, count);
    skipped_table(f, rows, count);
    free(all);
}
