/* fit.c - few positive parameters of a formula from measured times. */
#include "costmodel/cost_internal.h"

#include <math.h>
#include <string.h>

enum { FIT_POINTS_MAX = 80, FIT_ROUNDS = 24 };
static const double fit_noise = 0.05; /* relative error of a point that counts as one sigma */
static const double huber = 1.5;      /* sigmas from which a point counts less */

typedef struct fit_problem {
    mf_base_fn base;
    const mf_cost_device *devices;
    const mf_sample *const *samples;
    size_t n, step;
    int np;
    const double *mean, *sd;
} fit_problem;

static double point_error(const fit_problem *f, size_t i, const double *theta) {
    const mf_sample *s = f->samples[i];
    return log(f->base(&f->devices[mf_sample_as(s)], &s->op, theta) / s->time_s) / fit_noise;
}

static double huber_weight(double r) {
    return fabs(r) <= huber ? 1.0 : huber / fabs(r);
}

static double loss(const fit_problem *f, const double *theta) {
    double sum = 0;
    for (size_t i = 0; i < f->n; i += f->step) {
        double r = fabs(point_error(f, i, theta));
        sum += r <= huber ? r * r : huber * (2 * r - huber);
    }
    for (int p = 0; p < f->np; p++) {
        double d = log(theta[p] / f->mean[p]) / f->sd[p];
        sum += d * d;
    }
    return sum;
}

/* Adds the rows of the Gauss-Newton system in log(theta). */
static void assemble(const fit_problem *f, const double *theta, double a[MF_FIT_MAX][MF_FIT_MAX],
                     double *b) {
    const double h = 1e-3;
    for (size_t i = 0; i < f->n; i += f->step) {
        double r = point_error(f, i, theta), w = huber_weight(r), j[MF_FIT_MAX];
        for (int p = 0; p < f->np; p++) {
            double moved[MF_FIT_MAX];
            memcpy(moved, theta, sizeof moved);
            moved[p] *= exp(h);
            j[p] = (point_error(f, i, moved) - r) / h;
        }
        for (int p = 0; p < f->np; p++) {
            for (int q = 0; q < f->np; q++) {
                a[p][q] += w * j[p] * j[q];
            }
            b[p] -= w * j[p] * r;
        }
    }
    for (int p = 0; p < f->np; p++) {
        double s2 = f->sd[p] * f->sd[p];
        a[p][p] += 1 / s2;
        b[p] -= log(theta[p] / f->mean[p]) / s2;
    }
}

/* Solves (A + lambda diag A) x = b for a symmetric positive definite A. */
static void solve(double a[MF_FIT_MAX][MF_FIT_MAX], const double *b, double lambda, int n,
                  double *x) {
    double m[MF_FIT_MAX][MF_FIT_MAX + 1] = {{0}};
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            m[i][j] = a[i][j] * (i == j ? 1 + lambda : 1);
        }
        m[i][n] = b[i];
    }
    for (int i = 0; i < n; i++) {
        for (int r = i + 1; r < n; r++) {
            double q = m[r][i] / m[i][i];
            for (int j = i; j <= n; j++) {
                m[r][j] -= q * m[i][j];
            }
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        x[i] = m[i][n];
        for (int j = i + 1; j < n; j++) {
            x[i] -= m[i][j] * x[j];
        }
        x[i] /= m[i][i];
    }
}

void mf_fit(mf_base_fn base, const mf_cost_device *devices, const mf_sample *const *samples,
            size_t n, int nparams, const double *mean, const double *sd, double *theta) {
    const fit_problem f = {base,    devices, samples, n, 1 + n / (FIT_POINTS_MAX + 1),
                           nparams, mean,    sd};
    double lambda = 1e-2, best = loss(&f, theta);
    for (int round = 0; round < FIT_ROUNDS && n > 0; round++) {
        double a[MF_FIT_MAX][MF_FIT_MAX] = {{0}}, b[MF_FIT_MAX] = {0}, dx[MF_FIT_MAX];
        assemble(&f, theta, a, b);
        bool better = false;
        for (int attempt = 0; attempt < 8 && !better; attempt++) {
            double next[MF_FIT_MAX] = {0};
            solve(a, b, lambda, nparams, dx);
            for (int p = 0; p < nparams; p++) {
                next[p] = theta[p] * exp(fmax(-1.0, fmin(1.0, dx[p])));
            }
            double l = loss(&f, next);
            better = l < best;
            if (better) {
                bool done = best - l < 1e-3 * best;
                memcpy(theta, next, (size_t)nparams * sizeof *theta);
                best = l;
                lambda = fmax(lambda * 0.3, 1e-6);
                if (done) {
                    return;
                }
            } else {
                lambda *= 4;
            }
        }
        if (!better) {
            return;
        }
    }
}
