/* sort.h - numbers in ascending order, for medians and quantiles. */
#ifndef MF_CORE_BASE_SORT_H
#define MF_CORE_BASE_SORT_H

#include <stddef.h>

/* Sorts x[n] in place, no NaN among them. Thread-safe. */
void mf_sort_doubles(double *x, size_t n);
/* Sorts them and returns the one in the middle, the mean of two of an even number; n >= 1. */
double mf_median(double *x, size_t n);

#endif
