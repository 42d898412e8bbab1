/* host_load.c - CPU seconds of this program and of the whole machine, as the kernel counts them. */
#include "job/kept/host_load.h"

#include "core/base/clock.h"

#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
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

bool mf_host_load_is_busy(void) {
    const struct timespec nap = {.tv_nsec = 200 * 1000 * 1000};
    const mf_host_load from = mf_host_load_now();
    const double began_s = mf_clock_s();
    nanosleep(&nap, NULL);
    const mf_host_load to = mf_host_load_now();
    const double cores_s = (mf_clock_s() - began_s) * (double)sysconf(_SC_NPROCESSORS_ONLN);
    return to.all_s - from.all_s > 0.25 * cores_s;
}
