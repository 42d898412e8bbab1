/* host_cpu.c - where measured times of this machine's CPU ranks are kept, and their use. */
#include "job/kept/host_cpu.h"

#include "core/base/fingerprint.h"
#include "core/base/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* This version, the processor as the kernel names it, and the cores that there are. */
static uint64_t name_machine(long cores) {
    char line[256], name[256] = "";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f != NULL && name[0] == '\0' && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "model name", 10) == 0) {
            snprintf(name, sizeof name, "%s", line);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return mf_fingerprint_i64(mf_fingerprint_text(mf_fingerprint_text(0, MF_GENERATOR), name),
                              cores);
}

static bool find_folder(char *out, size_t size) {
    const char *said = getenv("MOEFOLD_CPU"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int n = 0;
    if (said != NULL && said[0] != '\0') {
        n = snprintf(out, size, "%s", said);
        return strcmp(said, "off") != 0 && (size_t)n < size;
    }
    if (cache != NULL && cache[0] == '/') {
        n = snprintf(out, size, "%s/moefold", cache);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(out, size, "%s/.cache/moefold", home);
    }
    return n > 0 && (size_t)n < size;
}

bool mf_host_cpu_find(int64_t ranks, mf_host_cpu *out) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *out = (mf_host_cpu){.known = false};
    if (ranks < 1 || ranks > MF_HOST_CPU_MOST || ranks > 2 * cores ||
        !find_folder(out->base, sizeof out->base)) {
        return false;
    }
    snprintf(out->folder, sizeof out->folder, "%s/cpu-%016" PRIx64, out->base, name_machine(cores));
    snprintf(out->store, sizeof out->store, "%s/cpu-%d.db", out->folder, (int)ranks);
    snprintf(out->software, sizeof out->software, "%s/cpu-%d.json", out->folder, (int)ranks);
    snprintf(out->busy, sizeof out->busy, "%s/cpu-%d.busy", out->folder, (int)ranks);
    out->known = access(out->store, R_OK) == 0 && access(out->software, R_OK) == 0;
    return true;
}

void mf_host_cpu_mark_write(const mf_host_cpu *h, mf_host_cpu_mark before, double others,
                            int noisy) {
    const bool quiet = others < MF_HOST_CPU_QUIET;
    const bool noise = noisy > 0 && before.repeats < MF_HOST_CPU_REPEATS;
    FILE *f = !quiet || noise ? fopen(h->busy, "w") : NULL;
    if (f == NULL) {
        (void)remove(h->busy);
        return;
    }
    fprintf(f, "%.3f %d %d\n", others, noisy, before.repeats);
    fclose(f);
}

bool mf_host_cpu_mark_read(const mf_host_cpu *h, mf_host_cpu_mark *out) {
    FILE *f = fopen(h->busy, "r");
    *out = (mf_host_cpu_mark){0};
    if (f == NULL) {
        return false;
    }
    const int read = fscanf(f, "%lf %d %d", &out->others, &out->noisy, &out->repeats);
    if (read < 1 || !(out->others >= 0 && out->others <= 1) || out->noisy < 0 || out->repeats < 0) {
        *out = (mf_host_cpu_mark){.others = 1};
    }
    fclose(f);
    return true;
}

bool mf_host_cpu_is_due(const mf_host_cpu *h, bool (*is_busy)(void)) {
    mf_host_cpu_mark mark;
    return !h->known || (mf_host_cpu_mark_read(h, &mark) && !is_busy());
}

bool mf_host_cpu_is_asked(const mf_job_request *r, const char *cluster) {
    return r->store == NULL && strcmp(cluster, "cpu") == 0;
}

void mf_host_cpu_memory(mf_cluster *c, int64_t ranks) {
    const long pages = sysconf(_SC_PHYS_PAGES), page_B = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_B > 0) {
        c->gpu.memory_B = (double)pages * (double)page_B / (double)ranks;
    }
}

void mf_host_cpu_correct(const mf_host_cpu *h, mf_software *s) {
    mf_software corrected;
    if (strcmp(s->name, "moefold") == 0 &&
        mf_software_load(h->software, &corrected, NULL) == MF_OK) {
        *s = corrected;
    }
}
