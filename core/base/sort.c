/* sort.c - numbers in ascending order. */
#include "core/base/sort.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void mf_sort_doubles(double *x, size_t n) {
    qsort(x, n, sizeof *x, ascending);
}

double mf_median(double *x, size_t n) {
    mf_sort_doubles(x, n);
    return n % 2 == 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}
