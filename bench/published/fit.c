/* fit.c - fits the software profiles on rows that are not held out.
 *
 * The most probable parameters under log-normal priors (fit_parameters.c) and errors of the
 * logarithm of step time that follow a Student t, so that a row that misses by many standard
 * deviations hardly pulls: Gauss-Newton steps on reweighted rows, each as long as it helps, a fixed
 * number of them. Every step takes one prediction of all rows per parameter.
 */
#include "bench/published/fit_parameters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12, MAX_PARAMETERS = 48 };
/* Of the t distribution. --cross-validate at 2, 4, 8 and 20: left-out MoE rows miss by 14.8, 15.1,
 * 15.4 and 16.0 %, with a bias of -2.5, -1.7, -0.8 and +0.1 %; dense rows by 4.5 to 4.6 %. */
static const double freedom = 8.0;
/* Of the widths that --cross-validate tries one that left-out dense and MoE rows bear well together
 * (4.6 and 15.4 % at 0.7; 4.6 and 15.6 at 1; 4.6 and 15.2 at 0.5, with twice the bias). */
static const double chosen_width = 0.7;
static const double nudge = 0.02;    /* of a logarithm, for derivatives */
static const double longest = 0.10;  /* step of a logarithm, and half a standard deviation more */
static const double smallest = 0.03; /* gain of a step worth another one */

/* Unknowns: for each parameter its common part, then one part per release. */
typedef struct fit {
    const pub_profiles *prior;
    pub_costs *costs;
    pub_profiles *p;
    pub_row *rows;
    int count, without; /* rows; the fold that is left out, -1 = none */
    double width;       /* all standard deviations of priors times this */
    int releases, unknowns;
    double *x;      /* [unknowns] */
    double *normal; /* [unknowns][unknowns] */
    double *slope;  /* [unknowns] */
    double *column; /* [parameters][rows] derivative of log step time */
    double *miss;   /* [rows] log of predicted over published */
    mf_err *e;
} fit;

static int unknown_of(const fit *f, int q, int release) {
    return q * (f->releases + 1) + (release < 0 ? 0 : release + 1);
}

static bool used(const fit *f, const pub_row *r) {
    return !r->skipped[0] && !r->held_out && r->fold != f->without && r->predicted_s > 0;
}

/* Standard deviation of a row's logarithm: noise between runs, and what its unsaid flags move. */
static double sigma_of(const pub_row *r) {
    return !r->moe ? 0.05 : pub_flags_known(r) ? 0.08 : 0.12;
}

/* --- values ----------------------------------------------------------------------------------- */

static double prior_sd(const fit *f, int q, int release) {
    const pub_parameter_def *d = &pub_parameters[q];
    return f->width * (release < 0 ? d->common : d->own);
}

/* Writes the profiles of `x`, with parameter `nudged` (-1 = none) a little larger. */
static void set_profiles(fit *f, int nudged) {
    for (int k = 0; k < f->releases; k++) {
        for (int q = 0; q < pub_parameter_count; q++) {
            const pub_parameter_def *d = &pub_parameters[q];
            mf_software before = f->prior->software[k];
            double own = d->own > 0 ? f->x[unknown_of(f, q, k)] : 0;
            double part = f->x[unknown_of(f, q, -1)] + own + (q == nudged ? nudge : 0);
            for (int i = 0; i < d->width; i++) {
                double value = *pub_parameter(&before, d, i) * exp(part);
                *pub_parameter(&f->p->software[k], d, i) = fmin(fmax(value, d->low), d->high);
            }
        }
    }
}

/* Unknowns of the profiles as they stand: each logarithm split into its most probable parts. */
static void resume(fit *f) {
    for (int q = 0; q < pub_parameter_count; q++) {
        const pub_parameter_def *d = &pub_parameters[q];
        double sum = 0, own_weight = d->own > 0 ? 1 / (d->own * d->own) : 0;
        double part[PUB_MAX_PROFILES] = {0};
        for (int k = 0; k < f->releases; k++) {
            mf_software before = f->prior->software[k], now = f->p->software[k];
            part[k] = log(*pub_parameter(&now, d, 0) / *pub_parameter(&before, d, 0));
            sum += part[k];
        }
        double common =
            own_weight > 0
                ? sum * own_weight / (1 / (d->common * d->common) + f->releases * own_weight)
                : sum / f->releases;
        f->x[unknown_of(f, q, -1)] = common;
        for (int k = 0; k < f->releases; k++) {
            f->x[unknown_of(f, q, k)] = own_weight > 0 ? part[k] - common : 0;
        }
    }
}

static void set_misses(fit *f) {
    for (int i = 0; i < f->count; i++) {
        const pub_row *r = &f->rows[i];
        f->miss[i] = r->skipped[0] || !(r->predicted_s > 0) ? 0 : log(r->predicted_s / r->step_s);
    }
}

/* Minus the logarithm of the posterior, without constants. */
static double objective(const fit *f) {
    double sum = 0;
    for (int i = 0; i < f->count; i++) {
        if (used(f, &f->rows[i])) {
            double z = f->miss[i] / sigma_of(&f->rows[i]);
            sum += 0.5 * (freedom + 1) * log(1 + z * z / freedom);
        }
    }
    for (int q = 0; q < pub_parameter_count; q++) {
        for (int k = -1; k < f->releases; k++) {
            double sd = prior_sd(f, q, k);
            double z = sd > 0 ? f->x[unknown_of(f, q, k)] / sd : 0;
            sum += 0.5 * z * z;
        }
    }
    return sum;
}

static double evaluate(fit *f) {
    set_profiles(f, -1);
    pub_predict(f->costs, f->p, f->rows, f->count, true);
    set_misses(f);
    return objective(f);
}

/* --- one step --------------------------------------------------------------------------------- */

/* Derivatives of all rows by each parameter; the predictions of x are in the rows before and
 * after. */
static mf_status derive(fit *f) {
    double *at = calloc((size_t)f->count + 1, sizeof *at);
    if (at == NULL) {
        return mf_err_set(f->e, MF_NOMEM, "fit: out of memory");
    }
    for (int i = 0; i < f->count; i++) {
        at[i] = f->rows[i].predicted_s;
    }
    for (int q = 0; q < pub_parameter_count; q++) {
        set_profiles(f, q);
        pub_predict(f->costs, f->p, f->rows, f->count, true);
        for (int i = 0; i < f->count; i++) {
            bool counts = used(f, &f->rows[i]) && at[i] > 0;
            f->column[q * f->count + i] = counts ? log(f->rows[i].predicted_s / at[i]) / nudge : 0;
        }
    }
    for (int i = 0; i < f->count; i++) {
        f->rows[i].predicted_s = at[i];
    }
    free(at);
    return MF_OK;
}

typedef struct gradient { /* of one row */
    int n, place[2 * MAX_PARAMETERS];
    double by[2 * MAX_PARAMETERS];
} gradient;

static gradient gradient_of(const fit *f, int i) {
    gradient g = {.n = 0};
    for (int q = 0; q < pub_parameter_count; q++) {
        for (int own = 0; own < (pub_parameters[q].own > 0 ? 2 : 1); own++) {
            g.place[g.n] = unknown_of(f, q, own ? f->rows[i].profile : -1);
            g.by[g.n++] = f->column[q * f->count + i];
        }
    }
    return g;
}

/* Normal equations of the reweighted rows and the priors. */
static void set_equations(fit *f) {
    size_t n = (size_t)f->unknowns;
    memset(f->normal, 0, n * n * sizeof *f->normal);
    memset(f->slope, 0, n * sizeof *f->slope);
    for (int i = 0; i < f->count; i++) {
        if (!used(f, &f->rows[i])) {
            continue;
        }
        double sigma = sigma_of(&f->rows[i]), z = f->miss[i] / sigma;
        double weight = (freedom + 1) / (freedom + z * z) / (sigma * sigma);
        gradient g = gradient_of(f, i);
        for (int a = 0; a < g.n; a++) {
            f->slope[g.place[a]] -= weight * g.by[a] * f->miss[i];
            for (int b = 0; b < g.n; b++) {
                f->normal[(size_t)g.place[a] * n + (size_t)g.place[b]] +=
                    weight * g.by[a] * g.by[b];
            }
        }
    }
    for (int q = 0; q < pub_parameter_count; q++) {
        for (int k = -1; k < f->releases; k++) {
            size_t u = (size_t)unknown_of(f, q, k);
            double sd = prior_sd(f, q, k);
            f->normal[u * n + u] += sd > 0 ? 1 / (sd * sd) : 1; /* not an unknown: stays 0 */
            f->slope[u] -= sd > 0 ? f->x[u] / (sd * sd) : 0;
        }
    }
}

/* Cholesky; the matrix is positive by its priors. The solution replaces slope. */
static void solve(fit *f) {
    int n = f->unknowns;
    double *a = f->normal, *x = f->slope;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (int k = 0; k < j; k++) {
                sum -= a[i * n + k] * a[j * n + k];
            }
            a[i * n + j] = i == j ? sqrt(fmax(sum, 1e-12)) : sum / a[j * n + j];
        }
    }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) {
            x[i] -= a[i * n + k] * x[k];
        }
        x[i] /= a[i * n + i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++) {
            x[i] -= a[k * n + i] * x[k];
        }
        x[i] /= a[i * n + i];
    }
}

/* Along the solution, halved until it helps. *now: the objective, before and after. */
static mf_status walk(fit *f, double *now) {
    size_t bytes = (size_t)f->unknowns * sizeof(double);
    double *from = malloc(bytes), after = 0;
    if (from == NULL) {
        return mf_err_set(f->e, MF_NOMEM, "fit: out of memory");
    }
    memcpy(from, f->x, bytes);
    bool better = false;
    for (double share = 1; share > 0.1 && !better; share *= 0.5) {
        for (int u = 0; u < f->unknowns; u++) {
            int q = u / (f->releases + 1), release = u % (f->releases + 1) - 1;
            double most = longest + 0.5 * prior_sd(f, q, release);
            f->x[u] = from[u] + share * fmin(most, fmax(-most, f->slope[u]));
        }
        after = evaluate(f);
        better = after < *now;
    }
    if (!better) {
        memcpy(f->x, from, bytes);
        after = evaluate(f);
    }
    *now = after;
    free(from);
    return MF_OK;
}

/* --- fits ------------------------------------------------------------------------------------- */

static mf_status load_priors(const pub_profiles *p, pub_profiles *prior, mf_err *e) {
    *prior = *p;
    mf_status status = MF_OK;
    for (int k = 0; k < p->count && status == MF_OK; k++) {
        char path[128];
        snprintf(path, sizeof path, "bench/published/priors/%s.json", p->software[k].name);
        status = mf_software_load(path, &prior->software[k], e);
    }
    return status;
}

static mf_status allocate(fit *f) {
    size_t n = (size_t)f->unknowns, rows = (size_t)f->count + 1;
    f->x = calloc(n, sizeof *f->x);
    f->normal = calloc(n * n, sizeof *f->normal);
    f->slope = calloc(n, sizeof *f->slope);
    f->column = calloc((size_t)pub_parameter_count * rows, sizeof *f->column);
    f->miss = calloc(rows, sizeof *f->miss);
    bool ok = f->x && f->normal && f->slope && f->column && f->miss;
    return ok ? MF_OK : mf_err_set(f->e, MF_NOMEM, "fit: out of memory");
}

static void fit_clear(fit *f) {
    free(f->x);
    free(f->normal);
    free(f->slope);
    free(f->column);
    free(f->miss);
}

static mf_status descend(fit *f) {
    resume(f);
    double now = evaluate(f), before = HUGE_VAL;
    mf_status status = MF_OK;
    fprintf(stderr, "fit: profiles as they stand %.2f\n", now);
    for (int step = 0; step < STEPS && status == MF_OK && before - now > smallest; step++) {
        before = now;
        status = derive(f);
        if (status == MF_OK) {
            set_equations(f);
            solve(f);
            status = walk(f, &now);
        }
        fprintf(stderr, "fit: step %d %.2f\n", step + 1, now);
    }
    return status;
}

/* --- cross-validation ------------------------------------------------------------------------- */

/* The fit without a fold, misses taken as linear around (from, start): no prediction is needed. */
static void refit_linear(fit *f, const double *from, const double *start) {
    enum { ROUNDS = 12 };
    memcpy(f->x, from, (size_t)f->unknowns * sizeof *f->x);
    for (int round = 0; round <= ROUNDS; round++) {
        for (int i = 0; i < f->count; i++) {
            gradient g = gradient_of(f, i);
            f->miss[i] = start[i];
            for (int a = 0; a < g.n && f->rows[i].profile >= 0; a++) {
                f->miss[i] += g.by[a] * (f->x[g.place[a]] - from[g.place[a]]);
            }
        }
        if (round < ROUNDS) {
            set_equations(f);
            solve(f);
            for (int u = 0; u < f->unknowns; u++) {
                f->x[u] += f->slope[u];
            }
        }
    }
}

static void print_widths(fit *f, const double *from, const double *start) {
    static const double widths[] = {0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0};
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        double sum[2] = {0, 0}, bias[2] = {0, 0}, n[2] = {0, 0};
        f->width = widths[w];
        for (f->without = 0; f->without < PUB_FOLDS; f->without++) {
            refit_linear(f, from, start);
            for (int i = 0; i < f->count; i++) {
                const pub_row *r = &f->rows[i];
                if (!r->skipped[0] && !r->held_out && r->fold == f->without) {
                    sum[r->moe] += fabs(expm1(f->miss[i]));
                    bias[r->moe] += expm1(f->miss[i]);
                    n[r->moe] += 1;
                }
            }
        }
        printf(
            "priors x %-4g: folds left out of the fit miss by %.2f %% (dense), %.2f %% (MoE), bias "
            "%+.2f and %+.2f %%\n",
            widths[w], 100 * sum[0] / n[0], 100 * sum[1] / n[1], 100 * bias[0] / n[0],
            100 * bias[1] / n[1]);
    }
}

static mf_status cross_validate(fit *f) {
    size_t unknowns = (size_t)f->unknowns, rows = (size_t)f->count;
    double *from = calloc(unknowns, sizeof *from), *start = calloc(rows + 1, sizeof *start);
    mf_status status = MF_OK;
    if (from == NULL || start == NULL) {
        status = mf_err_set(f->e, MF_NOMEM, "cross-validation: out of memory");
        goto out;
    }
    resume(f);
    evaluate(f);
    if ((status = derive(f)) == MF_OK) {
        memcpy(from, f->x, unknowns * sizeof *from);
        memcpy(start, f->miss, rows * sizeof *start);
        print_widths(f, from, start);
    }
out:
    free(from);
    free(start);
    return status;
}

static mf_status with_profiles(pub_costs *costs, pub_profiles *p, pub_row *rows, int count,
                               mf_err *e, mf_status (*work)(fit *f)) {
    pub_profiles prior;
    fit f = {.prior = &prior,
             .costs = costs,
             .p = p,
             .rows = rows,
             .count = count,
             .without = -1,
             .width = chosen_width,
             .releases = p->count,
             .unknowns = pub_parameter_count * (p->count + 1),
             .e = e};
    mf_status status = load_priors(p, &prior, e);
    status = status == MF_OK ? allocate(&f) : status;
    status = status == MF_OK ? work(&f) : status;
    fit_clear(&f);
    return status;
}

mf_status pub_fit(pub_costs *costs, pub_profiles *p, pub_row *rows, int count, mf_err *e) {
    mf_status status = with_profiles(costs, p, rows, count, e, descend);
    pub_predict(costs, p, rows, count, false);
    return status;
}

mf_status pub_cross_validate(pub_costs *costs, const pub_profiles *p, pub_row *rows, int count,
                             mf_err *e) {
    pub_profiles trial = *p; /* derivatives nudge them */
    mf_status status = with_profiles(costs, &trial, rows, count, e, cross_validate);
    pub_predict(costs, p, rows, count, false);
    return status;
}
