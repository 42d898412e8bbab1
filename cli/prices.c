/* prices.c - options -> cluster, software profile, profile store -> prices. */
#include "cli/prices.h"

#include <string.h>
#include <sys/stat.h>

mf_status mf_prices_name(mf_status s, mf_option_id id, mf_err *e) {
    bool named = e != NULL && strncmp(e->text, "--", 2) == 0;
    return s == MF_USAGE && !named ? mf_err_prefix(e, "--%s", mf_option_get(id)->name) : s;
}

mf_option_id mf_prices_option(const mf_args *a, mf_option_id one, mf_option_id list) {
    return a->value[list].given ? list : one;
}

const char *mf_prices_text(const mf_args *a, mf_option_id id, const char *absent) {
    return a->value[id].given ? a->value[id].text : absent;
}

mf_status mf_prices_open_store(const char *path, mf_store **out, int64_t *rows, int64_t *damaged,
                               mf_err *e) {
    struct stat info;
    *out = NULL;
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

mf_status mf_prices_read(const mf_args *a, const char *cluster_name, const char *software_name,
                         mf_cluster *cluster, mf_software *software, mf_err *e) {
    mf_status s = mf_prices_name(mf_cluster_load(cluster_name, cluster, e),
                                 mf_prices_option(a, MF_OPT_CLUSTER, MF_OPT_CLUSTERS), e);
    if (s == MF_OK) {
        s = mf_prices_name(
            mf_software_load(mf_prices_text(a, MF_OPT_SOFTWARE, software_name), software, e),
            MF_OPT_SOFTWARE, e);
    }
    return s;
}

mf_status mf_prices_create(const mf_args *a, const mf_cluster *cluster, const mf_software *software,
                           mf_cost **cost, mf_err *e) {
    mf_store *store = NULL;
    int64_t rows = 0, damaged = 0;
    const char *path = mf_prices_text(a, MF_OPT_STORE, NULL);
    mf_status s = path != NULL ? mf_prices_open_store(path, &store, &rows, &damaged, e) : MF_OK;
    if (s == MF_OK) {
        s = mf_cost_create(cluster, software, store, cost, e);
    }
    mf_store_close(store);
    return s;
}

mf_status mf_prices_load(const mf_args *a, const char *cluster_name, const char *software_name,
                         mf_cluster *cluster, mf_software *software, mf_cost **cost, mf_err *e) {
    mf_status s = mf_prices_read(a, cluster_name, software_name, cluster, software, e);
    return s == MF_OK ? mf_prices_create(a, cluster, software, cost, e) : s;
}
