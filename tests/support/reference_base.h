/* reference_base.h - of tests/support/reference_model.h: options and results, weights, linear maps,
 * norms, rotary positions. */
#ifndef MF_TESTS_REFERENCE_BASE_H
#define MF_TESTS_REFERENCE_BASE_H

#include "core/model/model.h"
#include "tests/support/tape.h"

#include <stdarg.h>

typedef struct ref_tensor {
    char name[128];
    int64_t rows, cols;
    bool buffer;
    double *value, *grad, *m, *v;
    num at; /* first number on the tape */
} ref_tensor;

typedef enum ref_scope { REF_MICRO_BATCH, REF_SEQUENCE, REF_GLOBAL } ref_scope;

typedef struct ref_options {
    int64_t seq, samples; /* samples per step */
    int64_t group;        /* samples of a micro-batch of one rank */
    int64_t micro_steps;  /* M */
    ref_scope scope;
    double aux_coef, z_coef, mtp_coef, bias_rate;
    double capacity; /* 0: dropless */
    bool forced;     /* choices are balanced by force */
    double lr, beta1, beta2, eps, decay, clip;
} ref_options;

typedef struct ref_result {
    double lm_loss, mtp_loss, aux_loss, z_loss, grad_norm;
    double nearest;  /* smallest distance between a chosen and the best unchosen expert */
    int64_t dropped; /* choices over capacity */
} ref_result;

typedef struct ref_model {
    mf_model m;
    ref_options o;
    ref_tensor *tensor;
    int count;
    int found; /* the tensor that was asked for last: most often it is asked for again */
    tape t;
    int64_t step;
    double *load; /* [layers + mtp][experts] choices of the step, before dropping */
    ref_result r;
    char prefix[64]; /* "model.layers.3." of the layer at hand */
    num aux, z;      /* sums over layers so far; -1 */
} ref_model;

/* --- weights ---------------------------------------------------------------------------------- */

static inline double ref_draw(const char *name, int64_t i) {
    uint64_t h = 0x9e3779b97f4a7c15ull * (uint64_t)(i + 1);
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    }
    h = (h ^ h >> 31) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 29) * 0x94d049bb133111ebull;
    h ^= h >> 32;
    return (double)(h >> 11) * 0x1p-52 - 1.0; /* [-1, 1) */
}

static inline int ref_add_tensor(const mf_model_tensor *from, void *user) {
    ref_model *r = user;
    r->tensor = realloc(r->tensor, (size_t)(r->count + 1) * sizeof *r->tensor);
    ref_tensor *t = &r->tensor[r->count++];
    *t = (ref_tensor){.rows = from->rows, .cols = from->cols, .buffer = from->buffer};
    snprintf(t->name, sizeof t->name, "%s", from->name);
    int64_t n = t->rows * t->cols;
    t->value = calloc((size_t)(4 * n), sizeof *t->value);
    t->grad = t->value + n;
    t->m = t->grad + n;
    t->v = t->m + n;
    bool norm = strstr(t->name, "norm") != NULL;
    bool router = strstr(t->name, "gate.weight") != NULL || strstr(t->name, "router.w") != NULL;
    double size = norm           ? 0.3
                  : t->cols == 1 ? 0.2
                  : router       ? 3.0 / sqrt((double)t->cols)
                                 : 1.3 / sqrt((double)t->cols);
    for (int64_t i = 0; i < n; i++) {
        double drawn = (norm ? 1.0 : 0.0) + size * ref_draw(t->name, i);
        t->value[i] = from->buffer ? (double)(float)(0.1 * drawn) : (double)(float)drawn;
    }
    return 0;
}

static inline void ref_init(ref_model *r, const mf_model *m, const ref_options *o) {
    *r = (ref_model){.m = *m, .o = *o};
    mf_model_tensors(m, ref_add_tensor, r);
    r->load = calloc((size_t)((m->layers + m->mtp_layers) * (m->experts + 1)), sizeof *r->load);
}

static inline void ref_clear(ref_model *r) {
    for (int i = 0; i < r->count; i++) {
        free(r->tensor[i].value);
    }
    free(r->tensor);
    free(r->load);
    tape_clear(&r->t);
}

static inline ref_tensor *ref_find(ref_model *r, const char *name) {
    for (int i = 0; i < r->count; i++) {
        int at = (r->found + i) % r->count;
        if (strcmp(r->tensor[at].name, name) == 0) {
            r->found = at;
            return &r->tensor[at];
        }
    }
    return NULL;
}

/* A weight of the layer at hand ("" outside layers); NULL where the model has none. */
static inline ref_tensor *ref_weight(ref_model *r, const char *format, ...) {
    char name[192];
    va_list list;
    int at = snprintf(name, sizeof name, "%s", r->prefix);
    va_start(list, format);
    vsnprintf(name + at, sizeof name - (size_t)at, format, list);
    va_end(list);
    return ref_find(r, name);
}

/* --- pieces of layers --------------------------------------------------------------------------
 */

static inline void ref_linear(ref_model *r, const char *name, const num *x, num *y) {
    const ref_tensor *w = ref_weight(r, "%s.weight", name), *b = ref_weight(r, "%s.bias", name);
    for (int64_t i = 0; i < w->rows; i++) {
        num sum = b != NULL ? b->at + (num)i : tape_put(&r->t, 0.0);
        for (int64_t j = 0; j < w->cols; j++) {
            sum = t_fma(&r->t, sum, w->at + (num)(i * w->cols + j), x[j]);
        }
        y[i] = sum;
    }
}

static inline void ref_norm_eps(ref_model *r, const char *name, const num *x, int64_t n, double eps,
                                num *y) {
    const ref_tensor *w = ref_weight(r, "%s.weight", name);
    num sum = tape_put(&r->t, 0.0);
    for (int64_t i = 0; i < n; i++) {
        sum = t_fma(&r->t, sum, x[i], x[i]);
    }
    num scale = t_rsqrt(&r->t, t_line(&r->t, sum, 1.0 / (double)n, eps));
    for (int64_t i = 0; i < n; i++) {
        y[i] = t_mul(&r->t, t_mul(&r->t, x[i], scale), w->at + (num)i);
    }
}

static inline void ref_norm(ref_model *r, const char *name, const num *x, int64_t n, num *y) {
    ref_norm_eps(r, name, x, n, r->m.rms_norm_eps, y);
}

static inline num ref_silu(ref_model *r, num a) {
    return t_mul(&r->t, a, t_sigmoid(&r->t, a));
}

/* --- rotary positions --------------------------------------------------------------------------
 */

static inline double ref_frequency(const mf_model *m, int64_t i, int64_t width) {
    const mf_rope_scaling *s = &m->rope_scaling;
    const double pi = acos(-1.0);
    double base = 1.0 / pow(m->rope_theta, 2.0 * (double)i / (double)width);
    if (s->kind == MF_ROPE_LINEAR) {
        return base / s->factor;
    }
    if (s->kind == MF_ROPE_LLAMA3) { /* by wavelength, as Llama 3.1's code has it */
        double wave = 2.0 * pi / base;
        double longest = s->original / s->low_freq_factor;
        double shortest = s->original / s->high_freq_factor;
        if (wave > longest) {
            return base / s->factor;
        }
        if (wave < shortest) {
            return base;
        }
        double smooth =
            (s->original / wave - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
        return (1.0 - smooth) * base / s->factor + smooth * base;
    }
    if (s->kind == MF_ROPE_YARN) {
        double edge[2];
        for (int k = 0; k < 2; k++) {
            double turns = k == 0 ? s->beta_fast : s->beta_slow;
            edge[k] =
                (double)width * log(s->original / (turns * 2.0 * pi)) / (2.0 * log(m->rope_theta));
        }
        if (s->truncate) {
            edge[0] = floor(edge[0]);
            edge[1] = ceil(edge[1]);
        }
        edge[0] = edge[0] < 0.0 ? 0.0 : edge[0];
        edge[1] = edge[1] > (double)(width - 1) ? (double)(width - 1) : edge[1];
        double ramp = ((double)i - edge[0]) / (edge[1] - edge[0]);
        ramp = ramp < 0.0 ? 0.0 : ramp > 1.0 ? 1.0 : ramp;
        return base / s->factor * ramp + base * (1.0 - ramp);
    }
    return base;
}

static inline double ref_temperature(double factor, double m) {
    return 0.1 * m * log(factor) + 1.0;
}

static inline void ref_rope(ref_model *r, num *x, int64_t width, int64_t position) {
    const mf_model *m = &r->m;
    double scale = m->rope_scaling.kind == MF_ROPE_YARN ? m->rope_scaling.table_scale : 1.0;
    for (int64_t i = 0; i < width / 2; i++) {
        int64_t u = m->rope_interleave ? 2 * i : i, v = m->rope_interleave ? u + 1 : i + width / 2;
        double angle = (double)position * ref_frequency(m, i, width);
        double c = scale * cos(angle), s = scale * sin(angle);
        num a = x[u], b = x[v];
        x[u] = t_sub(&r->t, t_line(&r->t, a, c, 0.0), t_line(&r->t, b, s, 0.0));
        x[v] = t_add(&r->t, t_line(&r->t, b, c, 0.0), t_line(&r->t, a, s, 0.0));
    }
}

#endif
