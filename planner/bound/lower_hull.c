/* lower_hull.c - main layers on stages under a mean of paths. */
#include "planner/bound/lower_hull.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

static int by_time(const void *x, const void *y) {
    const mf_time_memory_point *a = x, *b = y;
    if (a->time_s < b->time_s || a->time_s > b->time_s) {
        return a->time_s < b->time_s ? -1 : 1;
    }
    return (a->saved_B > b->saved_B) - (a->saved_B < b->saved_B);
}

/* Few at most times: a call for every comparison would take longer than all the rest. */
static void sort(mf_time_memory_point *w, int n) {
    enum { FEW = 40 };
    if (n > FEW) {
        qsort(w, (size_t)n, sizeof *w, by_time);
        return;
    }
    for (int i = 1; i < n; i++) {
        mf_time_memory_point moved = w[i];
        int at = i;
        for (; at > 0 && by_time(&moved, &w[at - 1]) < 0; at--) {
            w[at] = w[at - 1];
        }
        w[at] = moved;
    }
}

int mf_lower_hull_make(mf_time_memory_point *w, int n) {
    int kept = 0;
    sort(w, n);
    for (int i = 0; i < n; i++) {
        if (kept > 0 && w[i].saved_B >= w[kept - 1].saved_B) {
            continue;
        }
        while (kept >= 2) { /* is the last one above the line from the one before to this? */
            const mf_time_memory_point *a = &w[kept - 2], *b = &w[kept - 1];
            double share = (a->saved_B - b->saved_B) / (a->saved_B - w[i].saved_B);
            if (b->time_s < a->time_s + share * (w[i].time_s - a->time_s)) {
                break;
            }
            kept--;
        }
        w[kept++] = w[i];
    }
    return kept;
}

double mf_lower_hull_time_s(const mf_time_memory_point *w, int n, double saved_B) {
    if (n == 0 || saved_B >= w[0].saved_B) {
        return n > 0 ? w[0].time_s : HUGE_VAL;
    }
    for (int i = 1; i < n; i++) {
        if (saved_B >= w[i].saved_B) {
            double share = (saved_B - w[i].saved_B) / (w[i - 1].saved_B - w[i].saved_B);
            return w[i].time_s + share * (w[i - 1].time_s - w[i].time_s);
        }
    }
    return HUGE_VAL;
}

/* Lowers y[0 .. n] to the largest convex curve that is nowhere above it. */
static void make_convex(double *y, int n) {
    for (int from = 0; from < n;) {
        int to = from + 1;
        double least = y[to] - y[from];
        for (int k = from + 2; k <= n; k++) {
            double rise = (y[k] - y[from]) / (k - from);
            if (rise <= least) {
                least = rise;
                to = k;
            }
        }
        for (int k = from + 1; k < to; k++) {
            y[k] = y[from] + least * (k - from);
        }
        from = to;
    }
}

void mf_layers_curve(const mf_order_summary *o, int p, int layers, double free_B, double layer_B,
                     const mf_time_memory_point *w, int n, double *curve_s) {
    int most = 0, fast = 0; /* up to so many fit; all of them with the fastest choice */
    curve_s[0] = 0.0;
    for (int k = 1; k <= layers; k++) {
        const double left_B = free_B - k * layer_B;
        curve_s[k] = HUGE_VAL;
        if (k <= o->layers && n > 0 && left_B >= 0.0 && most == k - 1) {
            const double flight = k * (double)o->flight[p * (o->layers + 1) + k];
            const bool all = flight * w[0].saved_B <= left_B;
            curve_s[k] = k * (all ? w[0].time_s : mf_lower_hull_time_s(w, n, left_B / flight));
            fast = all && fast == k - 1 ? k : fast;
            most = isinf(curve_s[k]) ? most : k;
        }
    }
    if (fast < most) { /* else it is a line */
        make_convex(curve_s, most);
    }
}

double mf_place_layers(const double *curve_s, int stages, int layers, int *held) {
    double sum_s = 0.0;
    int left = layers;
    for (int p = 0; p < stages; p++) {
        sum_s += curve_s[(size_t)p * (size_t)(layers + 1) + (size_t)held[p]];
        left -= held[p];
    }
    for (; left > 0; left--) {
        double best_s = HUGE_VAL;
        int best = 0;
        for (int p = 0; p < stages; p++) {
            const double *at = curve_s + (size_t)p * (size_t)(layers + 1) + held[p];
            if (held[p] < layers && isfinite(at[1]) && at[1] - at[0] < best_s) {
                best_s = at[1] - at[0];
                best = p;
            }
        }
        held[best] += isfinite(best_s);
        sum_s += best_s; /* infinite: no stage has memory for one more */
    }
    return left < 0 ? HUGE_VAL : sum_s;
}
