/* capacity_prices.c - what a GPU-hour costs: as the cluster's file says, or --price. */
#include "core/base/number_text.h"
#include "job/capacity.h"

#include <stdio.h>
#include <string.h>

/* The last '=': a path may hold one. */
static bool is_price_of(const char *text, const char *name, const char **usd) {
    const char *equals = strrchr(text, '=');
    *usd = equals != NULL ? equals + 1 : NULL;
    return equals != NULL && strlen(name) == (size_t)(equals - text) &&
           strncmp(text, name, (size_t)(equals - text)) == 0;
}

mf_status mf_capacity_check_prices(const mf_capacity_request *r, mf_err *e) {
    const char *usd = NULL;
    double price;
    for (int i = 0; i < r->prices; i++) {
        bool known = false;
        for (int k = 0; k < r->clusters && !known; k++) {
            known = is_price_of(r->price[i], r->cluster[k], &usd);
        }
        if (usd == NULL) {
            return mf_err_set(e, MF_USAGE, "--price: expected CLUSTER=USD, got \"%s\"",
                              r->price[i]);
        }
        if (!known) {
            return mf_err_set(e, MF_USAGE, "--price: \"%.*s\" is none of --clusters",
                              (int)(usd - 1 - r->price[i]), r->price[i]);
        }
        mf_status s = mf_parse_f64(usd, 0, 1e6, &price, e);
        if (s != MF_OK) {
            return mf_err_prefix(e, "--price");
        }
    }
    return MF_OK;
}

mf_capacity_price mf_capacity_price_of(const mf_capacity_request *r, const char *name,
                                       const mf_cluster *c) {
    mf_capacity_price p = {.known = c->price_usd_gpu_h > 0, .usd_gpu_h = c->price_usd_gpu_h};
    const char *usd;
    snprintf(p.date, sizeof p.date, "%s", c->price_date);
    snprintf(p.source, sizeof p.source, "%s", c->price_source);
    for (int i = 0; i < r->prices; i++) {
        if (is_price_of(r->price[i], name, &usd) &&
            mf_parse_f64(usd, 0, 1e6, &p.usd_gpu_h, NULL) == MF_OK) {
            p.known = true;
            p.date[0] = '\0';
            snprintf(p.source, sizeof p.source, "--price");
        }
    }
    return p;
}
