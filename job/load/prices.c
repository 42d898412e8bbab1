/* prices.c - request -> cluster, software profile, profile store -> prices. */
#include "job/load/prices.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

mf_status mf_prices_open_store(const char *path, mf_store **out, int64_t *rows, int64_t *damaged,
                               mf_err *e) {
    struct stat info;
    *out = NULL;
    *rows = *damaged = 0;
    if (path == NULL) {
        return MF_OK;
    }
    if (stat(path, &info) != 0) {
        return mf_err_set(e, MF_USAGE, "--store: no such file \"%s\"", path);
    }
    if (S_ISREG(info.st_mode) && info.st_size == 0) { /* opening would make a store of no rows */
        return mf_err_set(e, MF_DAMAGED,
                          "%s: damaged profile store: the file is empty; rebuild it with: moefold "
                          "profile --rebuild --store %s",
                          path, path);
    }
    mf_status s = mf_store_open(path, out, e);
    return s == MF_OK ? mf_store_check(*out, rows, damaged, e) : s;
}

mf_status mf_prices_read(const mf_job_request *r, const char *cluster_name,
                         const char *software_name, mf_cluster *cluster, mf_software *software,
                         mf_err *e) {
    const char *option = r->cluster_option != NULL ? r->cluster_option : "cluster";
    mf_status s = mf_request_named(mf_cluster_load(cluster_name, cluster, e), option, e);
    if (s == MF_OK) {
        char base[sizeof software->name];
        const char *name = r->software != NULL ? r->software : software_name;
        if (r->software == NULL && name != NULL && strchr(name, '@') != NULL) {
            snprintf(base, sizeof base, "%.*s", (int)strcspn(name, "@"), name);
            name = base;
        }
        s = mf_request_named(mf_software_load(name, software, e), "software", e);
    }
    return s;
}

mf_status mf_prices_create(const mf_job_request *r, const mf_cluster *cluster,
                           const mf_software *software, mf_cost **cost, mf_err *e) {
    mf_store *store = NULL;
    int64_t rows, damaged;
    mf_status s = mf_prices_open_store(r->store, &store, &rows, &damaged, e);
    if (s == MF_OK) {
        s = mf_cost_create(cluster, software, store, cost, e);
    }
    mf_store_close(store);
    return s;
}

mf_status mf_prices_load(const mf_job_request *r, const char *cluster_name,
                         const char *software_name, mf_cluster *cluster, mf_software *software,
                         mf_cost **cost, mf_err *e) {
    mf_status s = mf_prices_read(r, cluster_name, software_name, cluster, software, e);
    return s == MF_OK ? mf_prices_create(r, cluster, software, cost, e) : s;
}
