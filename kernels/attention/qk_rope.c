/* qk_rope.c - reference of heads that are normed and turned. */
#include "kernels/attention/qk_rope.h"

#include <math.h>

size_t mf_kernel_qk_rope_workspace_B(int64_t head_dim) {
    return (size_t)(2 * MF_QK_ROPE_BLOCKS * head_dim) * sizeof(float);
}

/* Column c of a turned head, and what its pair is. */
typedef struct place {
    int64_t partner;
    float cos, sin; /* own * cos + partner * sin is the element after the turn */
} place;

static place place_of(const mf_kernel_rope_shape *s, int64_t row, int64_t c, bool inverse) {
    if (c >= s->rot_dim) {
        return (place){c, 1.0f, 0.0f};
    }
    int64_t half = s->rot_dim / 2;
    bool first = s->interleaved ? c % 2 == 0 : c < half;
    int64_t apart = s->interleaved ? 1 : half, partner = first ? c + apart : c - apart;
    int64_t pair = s->interleaved ? c / 2 : c % half, angle = s->positions[row] * half + pair;
    return (place){partner, s->cos[angle], first == inverse ? s->sin[angle] : -s->sin[angle]};
}

/* Of part 0 (q) or 1 (k): heads, its columns in a joined row, its place in rstd. */
static int64_t heads_of(const mf_kernel_rope_shape *s, int part) {
    return part == 0 ? s->heads : s->kv_heads;
}
static int64_t joined_at(const mf_kernel_rope_shape *s, int part, int64_t r, int64_t h) {
    return r * s->joined_stride + (part * s->heads + h) * s->head_dim;
}
static int64_t rstd_at(const mf_kernel_rope_shape *s, int part, int64_t r, int64_t h) {
    return part * s->rows * s->heads + r * heads_of(s, part) + h;
}

static void norm_and_turn(const mf_kernel_qk_rope *a, int part, int64_t r, int64_t h, void *to) {
    const mf_kernel_rope_shape *s = &a->shape;
    const void *w = part == 0 ? a->weight_q : a->weight_k;
    int64_t d = s->head_dim, x = joined_at(s, part, r, h), y = (r * heads_of(s, part) + h) * d;
    double square = 0.0;
    for (int64_t c = 0; c < d; c++) {
        double v = (double)mf_kernel_get(a->joined, s->dtype, x + c);
        square += v * v;
    }
    float rstd = (float)(1.0 / sqrt(square / (double)d + (double)a->eps));
    for (int64_t c = 0; c < d; c++) {
        place p = place_of(s, r, c, false);
        float own =
            mf_kernel_get(a->joined, s->dtype, x + c) * rstd * mf_kernel_get(w, s->dtype, c);
        float other = mf_kernel_get(a->joined, s->dtype, x + p.partner) * rstd *
                      mf_kernel_get(w, s->dtype, p.partner);
        mf_kernel_put(to, s->dtype, y + c, own * p.cos + other * p.sin);
    }
    if (a->rstd) {
        a->rstd[rstd_at(s, part, r, h)] = rstd;
    }
}

mf_status mf_kernel_qk_rope_forward(const mf_kernel_qk_rope *a, mf_err *e) {
    const mf_kernel_rope_shape *s = &a->shape;
    void *const to[2] = {a->q, a->k};
    for (int part = 0; part < 2; part++) {
        int64_t heads = heads_of(s, part);
        for (int64_t rh = 0; to[part] && rh < s->rows * heads; rh++) {
            norm_and_turn(a, part, rh / heads, rh % heads, to[part]);
        }
    }
    const mf_kernel_rope_split rest = {.shape = *s, .joined = a->joined, .v = a->v};
    return mf_kernel_rope_split_run(&rest, e);
}

/* Column c of g in the head of dy at y. */
static float turned_back(const mf_kernel_rope_shape *s, const void *dy, int64_t row, int64_t y,
                         int64_t c) {
    place p = place_of(s, row, c, true);
    return mf_kernel_get(dy, s->dtype, y + c) * p.cos +
           mf_kernel_get(dy, s->dtype, y + p.partner) * p.sin;
}

static void head_grad(const mf_kernel_qk_rope_grad *a, int part, int64_t r, int64_t h) {
    const mf_kernel_rope_shape *s = &a->shape;
    const void *w = part == 0 ? a->weight_q : a->weight_k, *dy = part == 0 ? a->dq : a->dk;
    int64_t d = s->head_dim, at = joined_at(s, part, r, h), y = (r * heads_of(s, part) + h) * d;
    float rstd = a->rstd[rstd_at(s, part, r, h)];
    double dot = 0.0;
    for (int64_t c = 0; c < d; c++) {
        dot += (double)(turned_back(s, dy, r, y, c) * mf_kernel_get(w, s->dtype, c)) *
               (double)mf_kernel_get(a->joined, s->dtype, at + c);
    }
    float k = (float)(dot / (double)d) * rstd * rstd;
    for (int64_t c = 0; c < d; c++) {
        float x = mf_kernel_get(a->joined, s->dtype, at + c);
        float g = turned_back(s, dy, r, y, c);
        float dx = rstd * (g * mf_kernel_get(w, s->dtype, c) - x * k);
        if (a->add) {
            dx = mf_kernel_rounded(s->dtype, dx) + mf_kernel_get(a->add, s->dtype, at + c);
        }
        mf_kernel_put(a->djoined, s->dtype, at + c, dx);
    }
}

/* Of column c of a part's weight. */
static double weight_grad(const mf_kernel_qk_rope_grad *a, int part, int64_t c) {
    const mf_kernel_rope_shape *s = &a->shape;
    const void *dy = part == 0 ? a->dq : a->dk;
    int64_t heads = heads_of(s, part);
    double sum = 0.0;
    for (int64_t rh = 0; rh < s->rows * heads; rh++) {
        int64_t r = rh / heads, h = rh % heads;
        float x = mf_kernel_get(a->joined, s->dtype, joined_at(s, part, r, h) + c);
        float g = turned_back(s, dy, r, rh * s->head_dim, c);
        sum += (double)(g * x * a->rstd[rstd_at(s, part, r, h)]);
    }
    return sum;
}

mf_status mf_kernel_qk_rope_backward(const mf_kernel_qk_rope_grad *a, mf_err *e) {
    const mf_kernel_rope_shape *s = &a->shape;
    for (int part = 0; part < 2; part++) {
        int64_t heads = heads_of(s, part);
        for (int64_t c = 0; c < s->head_dim; c++) {
            a->dweight[part * s->head_dim + c] += (float)weight_grad(a, part, c);
        }
        for (int64_t rh = 0; rh < s->rows * heads; rh++) {
            head_grad(a, part, rh / heads, rh % heads);
        }
    }
    const mf_kernel_rope_join join = {
        .shape = *s, .dv = a->dv, .add = a->add, .djoined = a->djoined};
    mf_kernel_rope_heads rest = mf_kernel_rope_join_heads(&join);
    rest.span[0].to = rest.span[1].to = NULL; /* v alone */
    return mf_kernel_rope_heads_move(&rest, e);
}
