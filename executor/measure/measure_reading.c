/* measure_reading.c - summing batches up, and reading again what spreads. */
#include "executor/measure/measure_reading.h"

#include <stdlib.h>

static const double quiet = 0.05; /* (p90 - p10) / median beyond this spreads */

static int order(const void *a, const void *b) {
    const double *p = a, *q = b;
    return (*p > *q) - (*p < *q);
}

static double at_share(const double *sorted, int n, double share) {
    double at = share * (n - 1);
    int i = (int)at;
    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

void mf_measure_summary(double *value, int n, mf_measure_time *out) {
    qsort(value, (size_t)n, sizeof *value, order);
    out->time_s = at_share(value, n, 0.5);
    out->low_s = at_share(value, n, 0.1);
    out->high_s = at_share(value, n, 0.9);
}

static double spread(const mf_measure_time *t) {
    return (t->high_s - t->low_s) / t->time_s;
}

mf_status mf_measure_quietest(mf_measure_read read, void *user, int again, mf_measure_time *out,
                              mf_err *e) {
    mf_status status = read(user, out, e);
    for (int i = 0; i < again && status == MF_OK && spread(out) > quiet; i++) {
        mf_measure_time next = *out; /* with the algorithm that runs */
        status = read(user, &next, e);
        if (status == MF_OK && spread(&next) < spread(out)) {
            *out = next;
        }
    }
    return status;
}
