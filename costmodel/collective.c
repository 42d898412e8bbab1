/* collective.c - prices of collectives: measured curves, else NCCL's model corrected by what was
 * measured.
 *
 * A curve is one (collective, ranks, ranks per domain) of this very GPU: it passes through its
 * points and bends between them, and runs on beyond them, as the corrected model does. A group in
 * one domain of a size between two that have curves lies between them. Everything else is the
 * corrected model t = f0 L + f1 (T - L) + f2 sqrt(L (T - L)) with T NCCL's estimate and
 * L its latency: the square root is the slow climb of bandwidth at middle sizes that latency plus
 * bytes over bandwidth misses. Three factors per class of collective and place, fitted to all
 * points of the class there. Monotone in bytes by construction.
 */
#include "core/base/sort.h"
#include "costmodel/cost_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CURVE_BENDS = 7 }; /* knots between two measured sizes */
static const double z90 = 1.645;
static const double model_noise[MF_PLACES] = {0.12, 0.20, 0.12};
/* Priors of the three factors, and standard deviations of their logarithms. */
static const double prior_mean[3] = {1.3, 1.0, 0.5};
/* Across domains latency is the fabric's, not the GPU's: one site's slow network (EFA answers after
 * 0.4 ms) must not become everybody's, so that only bandwidth is fitted there. */
static const double prior_sd[MF_PLACES][3] = {
    {0.6, 0.15, 1.0}, {0.02, 0.08, 0.02}, {0.6, 0.15, 1.0}};
static const double own_sd[MF_PLACES][3] = {{0.4, 0.08, 0.6}, {0.02, 0.08, 0.02}, {0.4, 0.08, 0.6}};

static int class_of(mf_op_kind kind) {
    return kind == MF_OP_ALL_REDUCE   ? MF_COLL_REDUCE
           : kind == MF_OP_ALL_TO_ALL ? MF_COLL_ALLTOALL
           : kind == MF_OP_SEND_RECV  ? MF_COLL_P2P
                                      : MF_COLL_GATHER;
}

/* A message has two ends wherever its group lies. */
static int place_of(int class, const mf_geometry *g) {
    bool pair = class != MF_COLL_P2P && g->n <= 2;
    return g->domains > 1 ? MF_PLACE_ACROSS : pair ? MF_PLACE_PAIR : MF_PLACE_INSIDE;
}

static double corrected(const double *f, double time_s, double latency_s) {
    double over = fmax(0, time_s - latency_s);
    return f[0] * latency_s + f[1] * over + f[2] * sqrt(latency_s * over);
}

double mf_collective_limit_s(const mf_geometry *g, mf_op_kind kind, double bytes) {
    double in = bytes * (g->n - 1) / g->n / g->in_peak_Bps, net = 0;
    double rails = fmin(g->inside * g->net_peak_Bps, fmax(g->in_peak_Bps, g->net_peak_Bps));
    if (kind == MF_OP_SEND_RECV) {
        return bytes / (g->domains > 1 ? g->net_peak_Bps : g->in_peak_Bps);
    }
    if (kind == MF_OP_ALL_TO_ALL) {
        return fmax(bytes * (g->inside - 1) / g->n / g->in_peak_Bps,
                    g->domains > 1 ? bytes * (g->n - g->inside) / g->n / g->net_peak_Bps : 0);
    }
    if (g->domains > 1) { /* a domain must take in what the others hold */
        net = bytes * (g->domains - 1) / g->domains / rails;
        in = g->inside > 1 ? in : 0;
    }
    return fmax(in, net); /* an all-reduce in the switch sends and receives the buffer once */
}

/* --- curves ----------------------------------------------------------------------------------- */

static const mf_curve *find_curve(const mf_collectives *k, mf_op_kind kind, const mf_geometry *g) {
    for (int i = 0; i < k->ncurves; i++) {
        const mf_curve *c = &k->curve[i];
        if (c->kind == kind && c->ranks == (int64_t)g->n && c->inside == (int64_t)g->inside) {
            return c;
        }
    }
    return NULL;
}

static double model_at(const mf_coll_fit *f, const mf_geometry *g, mf_op_kind kind, double bytes,
                       bool nvls) {
    double latency, time = mf_nccl_time_s(g, kind, bytes, nvls, &latency);
    return corrected(f->f, time, latency);
}

/* Time on a curve, of points at the cluster's figures; *half its band. */
static double curve_through(const mf_curve *c, const mf_coll_fit *f, const mf_geometry *g,
                            double bytes, bool nvls, double *half, uint8_t *basis) {
    double x = log(bytes);
    int lo = 0, hi = c->n; /* first knot at or above x */
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (c->log_B[mid] < x - 1e-12) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    *basis = MF_BASIS_INTERPOLATED;
    if (hi < c->n && c->log_B[hi] <= x + 1e-12) {
        *half = c->half[hi];
        *basis = c->measured[hi] ? MF_BASIS_MEASURED : MF_BASIS_INTERPOLATED;
        return exp(c->log_s[hi]);
    }
    if (hi == 0 || hi == c->n) {
        int end = hi == 0 ? 0 : c->n - 1;
        double away = fabs(x - c->log_B[end]);
        double growth = hi == 0 ? 0.12 : 0.04, most = fmax(f->half, c->half[end]);
        if (hi == 0) { /* latency is the harder part to guess */
            most = 2 * most + 0.1;
        }
        *half = fmin(c->half[end] + 0.04 + growth * away, most);
        *basis = away < log(4.0) ? MF_BASIS_INTERPOLATED : MF_BASIS_FITTED;
        return exp(c->log_s[end]) * model_at(f, g, (mf_op_kind)c->kind, bytes, nvls) /
               model_at(f, g, (mf_op_kind)c->kind, exp(c->log_B[end]), nvls);
    }
    double w = (x - c->log_B[hi - 1]) / (c->log_B[hi] - c->log_B[hi - 1]);
    *half = fmax(c->half[hi], c->half[hi - 1]);
    return exp(c->log_s[hi - 1] * (1 - w) + c->log_s[hi] * w);
}

static double curve_at(const mf_curve *c, const mf_coll_fit *f, const mf_geometry *g, double bytes,
                       bool nvls, double *half, uint8_t *basis) {
    const double time_s = curve_through(c, f, g, bytes, nvls, half, basis);
    *basis = c->restated ? MF_BASIS_TRANSFERRED : *basis;
    return time_s;
}

/* --- between curves --------------------------------------------------------------------------- */

static bool may_multicast(const mf_geometry *g) {
    return g->nvls && g->inside >= 5;
}

/* Curve of the next smaller (step -1) or larger (+1) group in one domain, and its geometry; NULL
 * when there is none. */
static const mf_curve *next_curve(const mf_collectives *k, const mf_cost_device *d, mf_op_kind kind,
                                  mf_group_shape shape, int step, mf_geometry *g) {
    const mf_curve *best = NULL;
    for (int i = 0; i < k->ncurves; i++) {
        const mf_curve *c = &k->curve[i];
        bool side = step < 0 ? c->ranks < shape.size : c->ranks > shape.size;
        if (c->kind == kind && c->inside == c->ranks && side &&
            (best == NULL || (step < 0 ? c->ranks > best->ranks : c->ranks < best->ranks))) {
            best = c;
        }
    }
    if (best != NULL) {
        mf_group_shape theirs = shape;
        theirs.size = best->ranks;
        mf_geometry_of(d->cluster, theirs, g);
    }
    return best != NULL && g->domains <= 1 ? best : NULL;
}

/* Of its buffer a member of a group of n sends (n-1)/n (rings; all-to-all as well). Where two
 * groups move as many bytes a member they take nearly the same time, so the logarithm of the time
 * at equal traffic is taken on a line in (n-1)/n between the two sizes. A message between two
 * members is the same in every group. */
static double traffic_share(double n) {
    return (n - 1) / n;
}

/* Widens the band of the two curves; on three of four H200 nine in ten sizes lay within 12 %. */
static const double between_half = 0.08;

static bool between_curves(const mf_collectives *k, const mf_cost_device *d, mf_op_kind kind,
                           mf_group_shape shape, const mf_geometry *g, double bytes, mf_price *out,
                           double *half) {
    mf_geometry geometry[2];
    double log_s[2], halves[2], share[2];
    bool restated = false;
    for (int i = 0; i < 2; i++) {
        const mf_curve *c =
            g->domains > 1 ? NULL : next_curve(k, d, kind, shape, 2 * i - 1, &geometry[i]);
        if (c == NULL) {
            return false;
        }
        share[i] = traffic_share(geometry[i].n);
        bool message = kind == MF_OP_SEND_RECV;
        double same = message ? bytes : bytes * traffic_share(g->n) / share[i];
        int class = class_of(kind);
        uint8_t basis;
        restated = restated || c->restated;
        log_s[i] = log(curve_at(c, &k->fit[class][place_of(class, &geometry[i])], &geometry[i],
                                same, k->nvls, &halves[i], &basis));
    }
    const mf_geometry *less = &geometry[0], *more = &geometry[1];
    bool alike = more->n <= 2 * less->n && !(less->in_Bps < more->in_Bps); /* a mesh adds links */
    if (kind == MF_OP_ALL_REDUCE && k->nvls) { /* two algorithms have nothing in between */
        alike = alike && may_multicast(less) == may_multicast(more);
    }
    if (!alike) {
        return false;
    }
    double w = (traffic_share(g->n) - share[0]) / (share[1] - share[0]);
    out->time_s = exp((1 - w) * log_s[0] + w * log_s[1]);
    out->basis = restated ? MF_BASIS_TRANSFERRED : MF_BASIS_INTERPOLATED;
    *half = fmax(halves[0], halves[1]) + between_half;
    return true;
}

void mf_collective_price(const mf_collectives *k, const mf_cost_device *d, mf_op_kind kind,
                         mf_group_shape shape, double bytes, mf_price *out, double *half) {
    *out = (mf_price){0};
    *half = 0;
    out->basis = MF_BASIS_NCCL_MODEL;
    if (shape.size <= 1 || bytes <= 0) {
        return;
    }
    mf_geometry g;
    mf_geometry_of(d->cluster, shape, &g);
    const mf_coll_fit *f = &k->fit[class_of(kind)][place_of(class_of(kind), &g)];
    const mf_curve *c = k->ncurves > 0 ? find_curve(k, kind, &g) : NULL;
    *half = f->half;
    if (c != NULL) {
        out->time_s = curve_at(c, f, &g, bytes, k->nvls, half, &out->basis);
    } else if (!between_curves(k, d, kind, shape, &g, bytes, out, half)) {
        out->time_s = model_at(f, &g, kind, bytes, k->nvls);
        out->basis = f->own ? MF_BASIS_FITTED : MF_BASIS_NCCL_MODEL;
    }
    out->limit_s = mf_collective_limit_s(&g, kind, bytes);
    out->link = g.domains > 1 ? MF_LINK_NETWORK : MF_LINK_SCALEUP;
    out->sm_share = fmin(1, mf_collective_sms(kind, &g) / d->sms);
}

/* --- building --------------------------------------------------------------------------------- */

static double coll_base(const mf_cost_device *d, const mf_op *op, const double *theta) {
    mf_geometry g;
    mf_geometry_of(d->cluster, op->shape, &g);
    double latency, time = mf_nccl_time_s(&g, (mf_op_kind)op->kind, op->bytes,
                                          (op->flags & MF_SAMPLE_NVLS) != 0, &latency);
    return corrected(theta, time, latency);
}

/* Points that stand for how this cost model's collectives run: with or without NVLink multicast. */
static bool usable(const mf_sample *s, const mf_geometry *g, bool nvls) {
    if (s->op.kind != MF_OP_ALL_REDUCE) {
        return true;
    }
    if (nvls) {
        return !s->fixed || (s->op.flags & MF_SAMPLE_NVLS) != 0;
    }
    return !(s->op.flags & MF_SAMPLE_NVLS) || (!s->fixed && !may_multicast(g));
}

static double order_key(const mf_sample *s) {
    return s->op.bytes;
}

static int order_samples(const void *a, const void *b) {
    const mf_sample *const *p = a, *const *q = b;
    double x = order_key(*p), y = order_key(*q);
    if (x < y || x > y) {
        return x < y ? -1 : 1;
    }
    return ((*p)->time_s > (*q)->time_s) - ((*p)->time_s < (*q)->time_s);
}

/* Half-width of the band from the median of the fit's residuals, so that one strange site does not
 * blur all; never below what a formula can claim. n >= 1; error: [n]. */
static double fit_half(const mf_cost_device *devices, const mf_sample *const *list, size_t n,
                       const double *theta, double noise, double *error) {
    for (size_t i = 0; i < n; i++) {
        error[i] = fabs(
            log(coll_base(&devices[mf_sample_as(list[i])], &list[i]->op, theta) / list[i]->time_s));
    }
    mf_sort_doubles(error, n);
    double few = 1 + 2 / (double)n; /* three factors bend to a handful of points */
    return fmax(z90 * noise * 0.6, few * z90 * 1.4826 * error[n / 2]);
}

static const int64_t whole_host = 8;

/* Samples of one class and place, of every device or of device 0 alone. */
static size_t select_samples(const mf_cost_device *devices, const mf_sample *samples, size_t n,
                             bool own, int class, int place, bool nvls, const mf_sample **list) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const mf_sample *s = &samples[i];
        mf_geometry g;
        if (mf_op_kind_class((mf_op_kind)s->op.kind) != MF_CLASS_COLLECTIVE &&
            s->op.kind != MF_OP_SEND_RECV) {
            continue;
        }
        if (s->op.kind == MF_OP_DISPATCH || s->op.kind == MF_OP_COMBINE ||
            class_of((mf_op_kind)s->op.kind) != class || devices[s->device].cluster == NULL ||
            (own && s->device != 0)) {
            continue;
        }
        mf_geometry_of(devices[s->device].cluster, s->op.shape, &g);
        /* Rings of few reach less than those of a whole host: on another GPU they would teach that.
         */
        bool few = s->device != 0 && place == MF_PLACE_INSIDE && s->op.shape.size < whole_host;
        if (place_of(class, &g) == place && usable(s, &g, nvls) && !few) {
            list[count++] = s;
        }
    }
    return count;
}

static void fit_class(mf_collectives *k, const mf_cost_device *devices, const mf_sample *samples,
                      size_t n, int class, int place, const mf_sample **list, double *error) {
    mf_coll_fit *f = &k->fit[class][place];
    memcpy(f->f, prior_mean, sizeof f->f);
    size_t all = select_samples(devices, samples, n, false, class, place, k->nvls, list);
    mf_fit(coll_base, devices, list, all, 3, prior_mean, prior_sd[place], f->f);
    f->half = all > 0 ? fit_half(devices, list, all, f->f, model_noise[place], error)
                      : z90 * model_noise[place];
    double pooled[3];
    memcpy(pooled, f->f, sizeof pooled);
    size_t mine = select_samples(devices, samples, n, true, class, place, k->nvls, list);
    if (mine > 0) {
        mf_fit(coll_base, devices, list, mine, 3, pooled, own_sd[place], f->f);
        f->half = fit_half(devices, list, mine, f->f, model_noise[place], error);
        f->own = true;
    }
}

/* Isotonic regression: times that rise with size and are nearest to the measured ones in the mean
 * of the logarithms; neighbours that fall are pooled. For readings whose noise goes both ways. */
static void pool_falling(double *log_s, int n) {
    for (int i = 1; i < n; i++) {
        int first = i;
        double sum = log_s[i];
        while (first > 0 && log_s[first - 1] > sum / (i - first + 1)) {
            sum += log_s[--first];
        }
        double mean = sum / (i - first + 1);
        for (int k = first; k <= i; k++) {
            log_s[k] = mean;
        }
    }
}

/* What a sample says of the cluster's own figures: as much less as the model is for them. */
static double own_time_s(const mf_coll_fit *f, const mf_cost_device *devices, const mf_sample *s) {
    return s->time_s * (coll_base(&devices[s->device], &s->op, f->f) /
                        coll_base(&devices[mf_sample_as(s)], &s->op, f->f));
}

/* Measured sizes in ascending order; equal sizes (in place, out of place) become their geometric
 * mean. More bytes never take less time: where they seem to, the smaller size was disturbed (a
 * first call, a busy network), so that each size takes the least time of all sizes from it on;
 * unless spreads were recorded, which tell noise from disturbance. */
static int merge_sizes(const mf_coll_fit *f, const mf_cost_device *devices,
                       const mf_sample *const *list, size_t n, mf_curve *c) {
    int knots = 0;
    assert(c->log_s != NULL); /* allocated with the curve */
    for (size_t i = 0; i < n;) {
        double sum = 0, spread = 0;
        size_t j = i;
        for (; j < n && !(list[j]->op.bytes > list[i]->op.bytes); j++) {
            const double own_s = own_time_s(f, devices, list[j]);
            sum += log(own_s);
            c->restated = c->restated || mf_is_restated(own_s, list[j]->time_s);
            spread = fmax(spread, list[j]->spread);
        }
        double mean = sum / (double)(j - i);
        c->log_B[knots] = log(list[i]->op.bytes);
        c->log_s[knots] = mean;
        c->half[knots] = z90 * spread;
        c->measured[knots++] = true;
        i = j;
    }
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        quoted = quoted || list[i]->quoted;
    }
    if (!quoted) {
        pool_falling(c->log_s, knots);
    }
    for (int k = knots - 2; k >= 0; k--) {
        c->log_s[k] = fmin(c->log_s[k], c->log_s[k + 1]);
    }
    return knots;
}

/* Knots between measured sizes follow the bend of the corrected model: where latency turns into
 * bandwidth, a straight line in the logarithms is far too high. Kept within the two points and
 * monotone. */
static void add_bends(const mf_curve *points, const mf_coll_fit *f, const mf_geometry *g, bool nvls,
                      mf_curve *c) {
    c->n = 0;
    for (int i = 0; i < points->n; i++) {
        double b0 = points->log_B[i], t0 = points->log_s[i];
        c->log_B[c->n] = b0;
        c->log_s[c->n] = t0;
        c->half[c->n] = points->half[i];
        c->measured[c->n++] = true;
        if (i + 1 == points->n || points->log_B[i + 1] - b0 < log(1.5)) {
            continue;
        }
        double b1 = points->log_B[i + 1], t1 = points->log_s[i + 1], gap = b1 - b0;
        double off0 = t0 - log(model_at(f, g, (mf_op_kind)c->kind, exp(b0), nvls));
        double off1 = t1 - log(model_at(f, g, (mf_op_kind)c->kind, exp(b1), nvls));
        for (int k = 1; k <= CURVE_BENDS; k++) {
            double w = (double)k / (CURVE_BENDS + 1);
            double t = log(model_at(f, g, (mf_op_kind)c->kind, exp(b0 + w * gap), nvls)) +
                       (1 - w) * off0 + w * off1;
            c->log_B[c->n] = b0 + w * gap;
            c->log_s[c->n] = fmin(t1, fmax(t, c->log_s[c->n - 1]));
            c->half[c->n] = fmax(points->half[i], points->half[i + 1]) + 0.02 +
                            4 * w * (1 - w) * (0.06 * gap + 0.25 * fabs(off1 - off0));
            c->measured[c->n++] = false;
        }
    }
}

static mf_status curve_alloc(mf_curve *c, size_t allocated, mf_err *e) {
    c->log_B = calloc(3 * allocated + 1, sizeof *c->log_B);
    c->measured = calloc(allocated + 1, sizeof *c->measured);
    if (c->log_B == NULL || c->measured == NULL) {
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    c->log_s = c->log_B + allocated;
    c->half = c->log_s + allocated;
    return MF_OK;
}

static void curve_clear(mf_curve *c) {
    free(c->log_B);
    free(c->measured);
}

/* Published points among enough measured ones give way (through a framework, call by call, 1 MiB
 * took twice as long); beyond them they stay. Sorted by size; returns how many are left. */
static size_t leave_quoted(const mf_sample **list, size_t n) {
    double least = HUGE_VAL, most = 0;
    size_t measured = 0, kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (!list[i]->quoted) {
            least = fmin(least, list[i]->op.bytes);
            most = list[i]->op.bytes;
            measured++;
        }
    }
    for (size_t i = 0; i < n; i++) {
        double bytes = list[i]->op.bytes;
        bool among = list[i]->quoted && bytes >= least && bytes <= most;
        if (measured < MF_MEASURED_MIN || !among) {
            list[kept++] = list[i];
        }
    }
    return kept;
}

static mf_status add_curve(mf_collectives *k, const mf_cost_device *devices,
                           const mf_sample *const *list, size_t n, mf_op_kind kind,
                           const mf_geometry *g, mf_err *e) {
    mf_curve points = {.kind = (uint8_t)kind};
    mf_curve *c = &k->curve[k->ncurves++];
    *c = (mf_curve){.kind = (uint8_t)kind, .ranks = (int64_t)g->n, .inside = (int64_t)g->inside};
    mf_status st = curve_alloc(&points, n, e);
    st = st == MF_OK ? curve_alloc(c, n * (CURVE_BENDS + 1), e) : st;
    if (st == MF_OK) {
        const mf_coll_fit *f = &k->fit[class_of(kind)][place_of(class_of(kind), g)];
        points.n = merge_sizes(f, devices, list, n, &points);
        add_bends(&points, f, g, k->nvls, c);
        c->restated = points.restated;
    }
    curve_clear(&points);
    return st;
}

static mf_status build_curves(mf_collectives *k, const mf_cost_device *devices,
                              const mf_sample *samples, size_t n, const mf_sample **list,
                              mf_err *e) {
    k->curve = calloc(n + 1, sizeof *k->curve);
    if (k->curve == NULL) {
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        const mf_sample *s = &samples[i];
        mf_op_kind kind = (mf_op_kind)s->op.kind;
        bool coll = mf_op_kind_class(kind) == MF_CLASS_COLLECTIVE || kind == MF_OP_SEND_RECV;
        if (!coll || kind == MF_OP_DISPATCH || kind == MF_OP_COMBINE || s->device != 0) {
            continue;
        }
        mf_geometry g, h;
        mf_geometry_of(devices[0].cluster, s->op.shape, &g);
        if (find_curve(k, kind, &g) != NULL || !usable(s, &g, k->nvls)) {
            continue;
        }
        size_t count = 0;
        for (size_t j = i; j < n; j++) {
            if (samples[j].device != 0 || samples[j].op.kind != kind) {
                continue;
            }
            mf_geometry_of(devices[0].cluster, samples[j].op.shape, &h);
            if ((int64_t)h.n == (int64_t)g.n && (int64_t)h.inside == (int64_t)g.inside &&
                usable(&samples[j], &h, k->nvls)) {
                list[count++] = &samples[j];
            }
        }
        qsort(list, count, sizeof(const mf_sample *), order_samples);
        count = leave_quoted(list, count);
        mf_status st = add_curve(k, devices, list, count, kind, &g, e);
        if (st != MF_OK) {
            return st;
        }
    }
    return MF_OK;
}

mf_status mf_collectives_build(mf_collectives *k, const mf_cost_device *devices,
                               const mf_sample *samples, size_t n, bool nvls, mf_err *e) {
    *k = (mf_collectives){.nvls = nvls};
    const mf_sample **list = malloc((n + 1) * sizeof(const mf_sample *));
    double *error = malloc((n + 1) * sizeof *error);
    if (list == NULL || error == NULL) {
        free(list);
        free(error);
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    for (int class = 0; class < MF_COLL_CLASSES; class ++) {
        for (int place = 0; place < MF_PLACES; place++) {
            fit_class(k, devices, samples, n, class, place, list, error);
        }
    }
    mf_status st = build_curves(k, devices, samples, n, list, e);
    free(list);
    free(error);
    return st;
}

bool mf_chunk_pass(const mf_op *op, mf_op *out) {
    const bool gathers = op->kind == MF_OP_ALL_GATHER || op->kind == MF_OP_REDUCE_SCATTER;
    if (!gathers || op->dim[MF_OP_DIM_CHUNKS] == 0) {
        return false;
    }
    *out = (mf_op){.kind = MF_OP_SPLIT,
                   .pass = op->pass,
                   .math = op->math,
                   .shape = {1, 1},
                   .bytes = 2 * op->bytes};
    return true;
}

void mf_collectives_clear(mf_collectives *k) {
    for (int i = 0; i < k->ncurves; i++) {
        curve_clear(&k->curve[i]);
    }
    free(k->curve);
    *k = (mf_collectives){0};
}
