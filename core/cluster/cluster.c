/* cluster.c - shipped clusters by name, and the arithmetic of capacity and links. */
#include "core/cluster/cluster.h"
#include "core/base/paths.h"

#include "core/cluster/cluster_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static const char *const shipped[] = {"a100",   "a100-40", "b200",  "b300", "cpu",
                                      "gb200",  "gb300",   "h100",  "h20",  "h200",
                                      "mi300x", "mi325x",  "mi355x"};
enum { SHIPPED = sizeof shipped / sizeof shipped[0] };

const char *const *mf_cluster_shipped(size_t *count) {
    *count = SHIPPED;
    return shipped;
}

const char *mf_cluster_of_gpu(const char *gpu) {
    static const char *const known[][2] = {{"H200", "h200"}, {"H100", "h100"}, {"H20", "h20"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strstr(gpu, known[i][0]) != NULL) {
            return known[i][1];
        }
    }
    return NULL;
}

static bool is_shipped(const char *name) {
    for (size_t i = 0; i < SHIPPED; i++) {
        if (strcmp(shipped[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* The longest shipped name inside a longer one, as in "H100-SXM5-80GB"; NULL: none. */
static const char *named_inside(const char *name) {
    const char *longest = NULL;
    for (size_t i = 0; i < SHIPPED; i++) {
        const size_t length = strlen(shipped[i]);
        for (const char *at = name; *at != '\0'; at++) {
            if (strncasecmp(at, shipped[i], length) == 0 &&
                (longest == NULL || length > strlen(longest))) {
                longest = shipped[i];
            }
        }
    }
    return longest;
}

static mf_status unknown_name(const char *name, mf_err *e) {
    const char *inside = named_inside(name);
    const char *near = inside != NULL ? inside : mf_nearest_word(name, shipped, SHIPPED);
    if (near != NULL) {
        return mf_err_set(e, MF_USAGE, "unknown cluster \"%.60s\": did you mean \"%s\"?", name,
                          near);
    }
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < SHIPPED; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, " %s", shipped[i]);
    }
    return mf_err_set(e, MF_USAGE, "unknown cluster \"%.60s\"; known:%s, or a path to a file", name,
                      known);
}

mf_status mf_cluster_load_file(const char *name_or_path, mf_cluster *out, mf_json **file,
                               mf_err *e) {
    struct stat info;
    mf_json *doc = NULL;
    mf_status st;
    size_t size = strlen(name_or_path) + strlen(mf_data_dir()) + 32;
    char *path = malloc(size);
    if (path == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    if (is_shipped(name_or_path)) {
        snprintf(path, size, "%s/clusters/%s.json", mf_data_dir(), name_or_path);
    } else if (strchr(name_or_path, '/') == NULL && stat(name_or_path, &info) != 0) {
        st = unknown_name(name_or_path, e);
        goto out;
    } else {
        snprintf(path, size, "%s", name_or_path);
    }
    st = mf_json_load(path, &doc, e);
    st = st == MF_OK ? mf_cluster_read(doc, path, 0, out, e) : st;
out:
    free(path);
    if (st == MF_OK) {
        *file = doc;
    } else {
        mf_json_destroy(doc);
    }
    return st;
}

mf_status mf_cluster_load(const char *name_or_path, mf_cluster *out, mf_err *e) {
    mf_json *file = NULL;
    mf_status st = mf_cluster_load_file(name_or_path, out, &file, e);
    mf_json_destroy(file);
    return st;
}

mf_status mf_cluster_from_json(const mf_json *doc, mf_cluster *out, mf_err *e) {
    return mf_cluster_read(doc, NULL, 0, out, e);
}

mf_status mf_cluster_base(const char *name, const char *from_path, int depth, mf_cluster *out,
                          mf_err *e) {
    mf_json *doc = NULL;
    mf_status st;
    const char *slash = from_path != NULL ? strrchr(from_path, '/') : NULL;
    bool beside = !is_shipped(name) && name[0] != '/' && slash != NULL;
    int folder = beside ? (int)(slash - from_path) + 1 : 0;
    size_t size = strlen(name) + (size_t)folder + strlen(mf_data_dir()) + 32;
    char *path = malloc(size);
    if (path == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    if (is_shipped(name)) {
        snprintf(path, size, "%s/clusters/%s.json", mf_data_dir(), name);
    } else {
        snprintf(path, size, "%.*s%s", folder, beside ? from_path : "", name);
    }
    struct stat info;
    if (!is_shipped(name) && stat(path, &info) != 0) {
        st = unknown_name(name, e);
        goto out;
    }
    st = mf_json_load(path, &doc, e);
    st = st == MF_OK ? mf_cluster_read(doc, path, depth, out, e) : st;
out:
    mf_json_destroy(doc);
    free(path);
    return st;
}

bool mf_cluster_is_cpu(const mf_cluster *c) {
    return strcmp(c->gpu.arch, "cpu") == 0;
}

double mf_cluster_usable_B(const mf_cluster *c, double reserve) {
    return c->gpu.memory_B * (1.0 - reserve);
}

double mf_cluster_scaleup_reached_Bps(const mf_cluster *c, int64_t gpus) {
    const double all_Bps = c->scaleup_effective_Bps > 0.0 ? c->scaleup_effective_Bps
                                                          : MF_SCALEUP_REACHED * c->scaleup_Bps;
    const double pairs_Bps = (double)(gpus - 1) * c->scaleup_pair_effective_Bps;
    return pairs_Bps > 0.0 && pairs_Bps < all_Bps ? pairs_Bps : all_Bps;
}

bool mf_cluster_link(const mf_cluster *c, int64_t span_gpus, double *bandwidth_Bps,
                     double *latency_s) {
    if (span_gpus <= c->domain_gpus_used) {
        *bandwidth_Bps = mf_cluster_scaleup_reached_Bps(c, span_gpus);
        *latency_s = c->scaleup_latency_s;
        return true;
    }
    int t = 0;
    while (t + 1 < c->tiers && c->tier[t].gpus < span_gpus) {
        t++;
    }
    *bandwidth_Bps = c->nic_Bps * c->nic_efficiency / c->tier[t].oversubscription;
    *latency_s = c->nic_latency_s + c->tier[t].latency_s;
    return false;
}
