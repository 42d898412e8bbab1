/* host_load.c - CPU seconds of this program and of the whole machine, as the kernel counts them. */
#define _DEFAULT_SOURCE /* getloadavg */
#include "job/host_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static double seconds_of(const struct rusage *u) {
    return (double)u->ru_utime.tv_sec + 1e-6 * (double)u->ru_utime.tv_usec +
           (double)u->ru_stime.tv_sec + 1e-6 * (double)u->ru_stime.tv_usec;
}

mf_host_load mf_host_load_now(void) {
    mf_host_load out = {0, 0};
    long long user, nice, system;
    struct rusage self, children;
    FILE *f = fopen("/proc/stat", "r");
    if (f != NULL && fscanf(f, "cpu %lld %lld %lld", &user, &nice, &system) == 3) {
        out.all_s = (double)(user + nice + system) / (double)sysconf(_SC_CLK_TCK);
    }
    if (f != NULL) {
        fclose(f);
    }
    if (getrusage(RUSAGE_SELF, &self) == 0 && getrusage(RUSAGE_CHILDREN, &children) == 0) {
        out.own_s = seconds_of(&self) + seconds_of(&children);
    }
    return out;
}

double mf_host_load_of_others(const mf_host_load *from, const mf_host_load *to) {
    const double all_s = to->all_s - from->all_s, own_s = to->own_s - from->own_s;
    return all_s > 0 ? fmin(fmax(1 - own_s / all_s, 0), 1) : 0;
}

int mf_host_load_is_busy(void) {
    double minute;
    return getloadavg(&minute, 1) == 1 && minute > 0.25 * (double)sysconf(_SC_NPROCESSORS_ONLN);
}
