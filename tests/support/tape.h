/* tape.h - every operation on numbers written down, so that the derivative of one result by all
 * that it was made of comes out of a walk back (reverse accumulation, Linnainmaa 1970). Plain
 * double, one node a number: slow, simple, and apart from everything that it is a reference for. */
#ifndef MF_TESTS_TAPE_H
#define MF_TESTS_TAPE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t num; /* a number on the tape */

typedef struct tape_node {
    double value, grad;
    num of[3]; /* -1: none */
    double by[3];
} tape_node;

typedef struct tape {
    tape_node *node;
    int64_t count, allocated;
} tape;

static inline num tape_put(tape *t, double value) {
    if (t->count == t->allocated) {
        t->allocated = t->allocated > 0 ? 2 * t->allocated : 1 << 16;
        t->node = realloc(t->node, (size_t)t->allocated * sizeof *t->node);
        if (t->node == NULL) {
            fprintf(stderr, "tape: out of memory\n");
            abort();
        }
    }
    t->node[t->count] = (tape_node){.value = value, .of = {-1, -1, -1}};
    return (num)t->count++;
}

static inline double val(const tape *t, num a) {
    return t->node[a].value;
}

static inline num tape_1(tape *t, double value, num a, double da) {
    num r = tape_put(t, value);
    t->node[r].of[0] = a;
    t->node[r].by[0] = da;
    return r;
}

static inline num tape_2(tape *t, double value, num a, double da, num b, double db) {
    num r = tape_1(t, value, a, da);
    t->node[r].of[1] = b;
    t->node[r].by[1] = db;
    return r;
}

static inline num t_add(tape *t, num a, num b) {
    return tape_2(t, val(t, a) + val(t, b), a, 1.0, b, 1.0);
}
static inline num t_sub(tape *t, num a, num b) {
    return tape_2(t, val(t, a) - val(t, b), a, 1.0, b, -1.0);
}
static inline num t_mul(tape *t, num a, num b) {
    return tape_2(t, val(t, a) * val(t, b), a, val(t, b), b, val(t, a));
}
static inline num t_div(tape *t, num a, num b) {
    double q = val(t, a) / val(t, b);
    return tape_2(t, q, a, 1.0 / val(t, b), b, -q / val(t, b));
}
/* a + b c */
static inline num t_fma(tape *t, num a, num b, num c) {
    num r = tape_2(t, val(t, a) + val(t, b) * val(t, c), b, val(t, c), c, val(t, b));
    t->node[r].of[2] = a;
    t->node[r].by[2] = 1.0;
    return r;
}
/* k a + c */
static inline num t_line(tape *t, num a, double k, double c) {
    return tape_1(t, k * val(t, a) + c, a, k);
}
static inline num t_exp(tape *t, num a) {
    double v = exp(val(t, a));
    return tape_1(t, v, a, v);
}
static inline num t_log(tape *t, num a) {
    return tape_1(t, log(val(t, a)), a, 1.0 / val(t, a));
}
static inline num t_rsqrt(tape *t, num a) {
    double v = 1.0 / sqrt(val(t, a));
    return tape_1(t, v, a, -0.5 * v / val(t, a));
}
static inline num t_sigmoid(tape *t, num a) {
    double v = 1.0 / (1.0 + exp(-val(t, a)));
    return tape_1(t, v, a, v * (1.0 - v));
}
static inline num t_clamp(tape *t, num a, double low, double high) {
    double v = val(t, a);
    return v < low ? tape_put(t, low) : v > high ? tape_put(t, high) : tape_1(t, v, a, 1.0);
}

/* Fills grad of every number with d root / d number. */
static inline void tape_backward(tape *t, num root) {
    for (int64_t i = 0; i < t->count; i++) {
        t->node[i].grad = 0.0;
    }
    t->node[root].grad = 1.0;
    for (int64_t i = root; i >= 0; i--) {
        const tape_node *n = &t->node[i];
        for (int k = 0; k < 3; k++) {
            if (n->of[k] >= 0) {
                t->node[n->of[k]].grad += n->by[k] * n->grad;
            }
        }
    }
}

static inline void tape_clear(tape *t) {
    free(t->node);
    *t = (tape){0};
}

#endif
