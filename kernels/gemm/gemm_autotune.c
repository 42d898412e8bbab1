/* gemm_autotune.c - see gemm_autotune.h. */
#include "kernels/gemm/gemm_autotune.h"
#include "core/base/sort.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const double near_best = 1.10;  /* the clock moves by that much between two looks */
static const double same_time = 1.005; /* what repeated rounds differ by */
static const double finals_s = 4e-3;   /* for all rounds, if three of them fit */
static const double longer_s = 0.3e-3; /* a product of which fewer are looked at again: */
enum { MOST_SHORT = 3, MOST_LONG = 2 };

static double least_of(const double *time_s, int n) {
    double least = time_s[0];
    for (int i = 1; i < n; i++) {
        least = time_s[i] < least ? time_s[i] : least;
    }
    return least;
}

/* The fastest `most` of those near the best, the library's guess among them if it is near. */
static mf_gemm_autotune nearest(const double *time_s, int n, int most) {
    mf_gemm_autotune f = {0};
    const double least = least_of(time_s, n);
    for (int i = 0; i < n; i++) {
        if (time_s[i] > near_best * least) {
            continue;
        }
        int at = f.count < most ? f.count++ : most;
        for (; at > 0 && time_s[i] < time_s[f.proposal[at - 1]]; at--) {
            if (at < most) {
                f.proposal[at] = f.proposal[at - 1];
            }
        }
        if (at < most) {
            f.proposal[at] = i;
        }
    }
    if (time_s[0] <= near_best * least) { /* the library's guess has its turn in any case */
        bool there = false;
        for (int i = 0; i < f.count; i++) {
            there |= f.proposal[i] == 0;
        }
        f.proposal[f.count - 1] = there ? f.proposal[f.count - 1] : 0;
    }
    return f;
}

mf_gemm_autotune mf_gemm_autotune_of(const double *time_s, int n, int runs) {
    mf_gemm_autotune f =
        nearest(time_s, n, least_of(time_s, n) > longer_s ? MOST_LONG : MOST_SHORT);
    double round_s = 0.0;
    for (int i = 0; i < f.count; i++) {
        round_s += runs * time_s[f.proposal[i]];
    }
    const double fit = finals_s / round_s;
    f.rounds = f.count == 1 ? 1 : fit >= MF_GEMM_ROUNDS ? MF_GEMM_ROUNDS : 3;
    return f;
}

mf_gemm_autotune mf_gemm_autotune_at_cap(const double *time_s, int n) {
    mf_gemm_autotune f = nearest(time_s, n, MF_GEMM_AUTOTUNE_MOST);
    f.rounds = 1;
    return f;
}

int mf_gemm_turn(const mf_gemm_autotune *finals, int round, int place) {
    return (place + round) % finals->count;
}

static double median(const double *time_s, int rounds) {
    double sorted[MF_GEMM_ROUNDS];
    assert(rounds >= 1 && rounds <= MF_GEMM_ROUNDS);
    memcpy(sorted, time_s, (size_t)rounds * sizeof *sorted);
    mf_sort_doubles(sorted, (size_t)rounds);
    return sorted[rounds / 2];
}

int mf_gemm_winner(const mf_gemm_autotune *finals, const mf_gemm_rounds *rounds, double *median_s) {
    double of[MF_GEMM_AUTOTUNE_MOST] = {median(rounds->time_s[0], finals->rounds)}, least = of[0];
    for (int i = 1; i < finals->count; i++) {
        of[i] = median(rounds->time_s[i], finals->rounds);
        least = of[i] < least ? of[i] : least;
    }
    int winner = 0;
    for (int i = 1; i < finals->count; i++) {
        if (of[i] <= same_time * least &&
            (of[winner] > same_time * least || finals->proposal[i] < finals->proposal[winner])) {
            winner = i;
        }
    }
    *median_s = of[winner];
    return winner;
}
