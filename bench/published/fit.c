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

enum { STEPS = 5, MAX_PARAMETERS = 48 };
static const double freedom = 4.0;  /* of the t distribution */
static const double nudge = 0.02;   /* of a logarithm, for derivatives */
static const double longest = 0.10; /* step of a logarithm, and half a standard deviation more */
static const double smallest = 0.3; /* gain of a step worth another one */

/* Unknowns: for each parameter its common part, then one part per release. */
typedef struct fit {
    const pub_profiles *prior;
    pub_profiles *p;
    pub_row *rows;
    int count, without; /* rows; the fold that is left out, -1 = none */
    double width;       /* all standard deviations of priors times this */
    int releases, unknowns;
    double *x;      /* [unknowns] */
    double *normal; /* [unknowns][unknowns] */
    double *slope;  /* [unknowns] */
    double *column; /* [parameters][rows] derivative of log step time */
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

static double miss_of(const pub_row *r) {
    return log(r->predicted_s / r->step_s);
}

/* Minus the logarithm of the posterior, without constants. */
static double objective(const fit *f) {
    double sum = 0;
    for (int i = 0; i < f->count; i++) {
        if (used(f, &f->rows[i])) {
            double z = miss_of(&f->rows[i]) / sigma_of(&f->rows[i]);
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

static mf_status evaluate(fit *f, double *out) {
    set_profiles(f, -1);
    mf_status status = pub_predict(f->p, f->rows, f->count, true, f->e);
    *out = status == MF_OK ? objective(f) : 0;
    return status;
}

/* --- one step --------------------------------------------------------------------------------- */

/* Derivatives of all rows by each parameter; the predictions of x are in the rows before and
 * after. */
static mf_status derive(fit *f) {
    double *at = malloc(((size_t)f->count + 1) * sizeof *at);
    if (at == NULL) {
        return mf_err_set(f->e, MF_NOMEM, "fit: out of memory");
    }
    mf_status status = MF_OK;
    for (int i = 0; i < f->count; i++) {
        at[i] = f->rows[i].predicted_s;
    }
    for (int q = 0; q < pub_parameter_count && status == MF_OK; q++) {
        set_profiles(f, q);
        status = pub_predict(f->p, f->rows, f->count, true, f->e);
        for (int i = 0; i < f->count && status == MF_OK; i++) {
            bool counts = used(f, &f->rows[i]) && at[i] > 0;
            f->column[q * f->count + i] = counts ? log(f->rows[i].predicted_s / at[i]) / nudge : 0;
        }
    }
    for (int i = 0; i < f->count && status == MF_OK; i++) {
        f->rows[i].predicted_s = at[i];
    }
    free(at);
    return status;
}

/* Normal equations of the reweighted rows and the priors. */
static void set_equations(fit *f) {
    size_t n = (size_t)f->unknowns;
    memset(f->normal, 0, n * n * sizeof *f->normal);
    memset(f->slope, 0, n * sizeof *f->slope);
    for (int i = 0; i < f->count; i++) {
        const pub_row *r = &f->rows[i];
        if (!used(f, r)) {
            continue;
        }
        double sigma = sigma_of(r), z = miss_of(r) / sigma;
        double weight = (freedom + 1) / (freedom + z * z) / (sigma * sigma);
        int place[2 * MAX_PARAMETERS];
        double by[2 * MAX_PARAMETERS];
        int m = 0;
        for (int q = 0; q < pub_parameter_count; q++) {
            for (int own = 0; own < (pub_parameters[q].own > 0 ? 2 : 1); own++) {
                place[m] = unknown_of(f, q, own ? r->profile : -1);
                by[m++] = f->column[q * f->count + i];
            }
        }
        for (int a = 0; a < m; a++) {
            f->slope[place[a]] -= weight * by[a] * miss_of(r);
            for (int b = 0; b < m; b++) {
                f->normal[(size_t)place[a] * n + (size_t)place[b]] += weight * by[a] * by[b];
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
    mf_status status = MF_OK;
    bool better = false;
    for (double share = 1; share > 0.1 && !better && status == MF_OK; share *= 0.5) {
        for (int u = 0; u < f->unknowns; u++) {
            int q = u / (f->releases + 1), release = u % (f->releases + 1) - 1;
            double most = longest + 0.5 * prior_sd(f, q, release);
            f->x[u] = from[u] + share * fmin(most, fmax(-most, f->slope[u]));
        }
        status = evaluate(f, &after);
        better = after < *now;
    }
    if (status == MF_OK && !better) {
        memcpy(f->x, from, bytes);
        status = evaluate(f, &after);
    }
    *now = after;
    free(from);
    return status;
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

static mf_status fit_without(const pub_profiles *prior, pub_profiles *p, pub_row *rows, int count,
                             int without, double width, mf_err *e) {
    fit f = {.prior = prior,
             .p = p,
             .rows = rows,
             .count = count,
             .without = without,
             .width = width,
             .releases = p->count,
             .unknowns = pub_parameter_count * (p->count + 1),
             .e = e};
    size_t n = (size_t)f.unknowns;
    f.x = calloc(n, sizeof *f.x);
    f.normal = calloc(n * n, sizeof *f.normal);
    f.slope = calloc(n, sizeof *f.slope);
    f.column = calloc((size_t)pub_parameter_count * ((size_t)count + 1), sizeof *f.column);
    mf_status status = MF_OK;
    double now = 0;
    if (f.x == NULL || f.normal == NULL || f.slope == NULL || f.column == NULL) {
        status = mf_err_set(e, MF_NOMEM, "fit: out of memory");
    }
    status = status == MF_OK ? evaluate(&f, &now) : status;
    fprintf(stderr, "fit: at the priors %.2f\n", now);
    double before = HUGE_VAL;
    for (int step = 0; step < STEPS && status == MF_OK && before - now > smallest; step++) {
        before = now;
        status = derive(&f);
        if (status == MF_OK) {
            set_equations(&f);
            solve(&f);
            status = walk(&f, &now);
        }
        fprintf(stderr, "fit: step %d %.2f\n", step + 1, now);
    }
    free(f.x);
    free(f.normal);
    free(f.slope);
    free(f.column);
    return status;
}

mf_status pub_fit(pub_profiles *p, pub_row *rows, int count, mf_err *e) {
    pub_profiles prior;
    mf_status status = load_priors(p, &prior, e);
    status = status == MF_OK ? fit_without(&prior, p, rows, count, -1, 1.0, e) : status;
    return status == MF_OK ? pub_predict(p, rows, count, false, e) : status;
}

mf_status pub_cross_validate(const pub_profiles *p, pub_row *rows, int count, mf_err *e) {
    static const double widths[] = {0.5, 0.7, 1.0};
    pub_profiles prior, trial = *p;
    mf_status status = load_priors(p, &prior, e);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0] && status == MF_OK; w++) {
        double sum[2] = {0, 0}, n[2] = {0, 0};
        for (int fold = 0; fold < PUB_FOLDS && status == MF_OK; fold++) {
            status = fit_without(&prior, &trial, rows, count, fold, widths[w], e);
            for (int i = 0; i < count && status == MF_OK; i++) {
                const pub_row *r = &rows[i];
                if (!r->skipped[0] && !r->held_out && r->fold == fold) {
                    sum[r->moe] += fabs(r->predicted_s / r->step_s - 1);
                    n[r->moe] += 1;
                }
            }
        }
        printf("priors x %g: left-out folds of the fitted rows miss by %.1f %% (dense, %g rows), "
               "%.1f %% (MoE, %g rows)\n",
               widths[w], 100 * sum[0] / n[0], n[0], 100 * sum[1] / n[1], n[1]);
    }
    return status;
}
