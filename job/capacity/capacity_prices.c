/* capacity_prices.c - what a GPU-hour costs: as the cluster's file says, or --price. */
#include "core/base/number_text.h"
#include "job/capacity/capacity.h"

#include <stdio.h>
#include <string.h>

/* The last '=': a path may hold one. */
static bool is_price_of(const char *text, const char *name, const char **usd) {
    const char *equals = strrchr(text, '=');
    *usd = equals != NULL ? equals + 1 : NULL;
    return equals != NULL && strlen(name) == (size_t)(equals - text) &&
           strncmp(text, name, (size_t)(equals - text)) == 0;
}

/* "2.5" or "2.5@2026-11-01"; date[32]: "" without one. */
static mf_status read_price(const char *text, double *usd, char *date, mf_err *e) {
    char number[64];
    int64_t days;
    const char *at = strchr(text, '@');
    date[0] = '\0';
    if (at == NULL) {
        return mf_parse_f64(text, 0, 1e6, usd, e);
    }
    snprintf(number, sizeof number, "%.*s", (int)(at - text < 63 ? at - text : 63), text);
    mf_status s = mf_parse_f64(number, 0, 1e6, usd, e);
    s = s == MF_OK ? mf_parse_date(at + 1, &days, e) : s;
    if (s == MF_OK) {
        snprintf(date, 32, "%s", at + 1);
    }
    return s;
}

/* Is its CLUSTER a word of --clusters? */
static bool is_given(const mf_capacity_request *r, const char *text, const char **usd) {
    bool is = false;
    for (int k = 0; k < r->clusters && !is; k++) {
        is = is_price_of(text, r->cluster[k], usd);
    }
    return is;
}

/* Is its CLUSTER what a file of --clusters calls its cluster? names: what they all may be called. A
 * file that cannot be read is not reported here. */
static bool is_called(const mf_capacity_request *r, const char *text, char *names, size_t size) {
    const char *usd;
    bool is = false;
    size_t used = 0;
    names[0] = '\0';
    for (int k = 0; k < r->clusters && !is; k++) {
        mf_cluster c;
        const bool read = mf_cluster_load(r->cluster[k], &c, NULL) == MF_OK;
        is = read && is_price_of(text, c.name, &usd);
        if (used < size) {
            used += (size_t)snprintf(names + used, size - used, "%s%s", k > 0 ? ", " : "",
                                     read ? c.name : r->cluster[k]);
        }
    }
    return is;
}

mf_status mf_capacity_check_prices(const mf_capacity_request *r, mf_err *e) {
    const char *usd = NULL;
    char names[320], date[32];
    double price;
    for (int i = 0; i < r->prices; i++) {
        const bool given = is_given(r, r->price[i], &usd);
        if (usd == NULL || usd - 1 == r->price[i]) {
            return mf_err_set(e, MF_USAGE,
                              "--price: expected CLUSTER=USD or CLUSTER=USD@DATE, got \"%s\"",
                              r->price[i]);
        }
        if (!given && !is_called(r, r->price[i], names, sizeof names)) {
            return mf_err_set(e, MF_USAGE, "--price: \"%.*s\" is none of --clusters (%s)",
                              (int)(usd - 1 - r->price[i]), r->price[i], names);
        }
        mf_status s = read_price(usd, &price, date, e);
        if (s != MF_OK) {
            return mf_err_prefix(e, "--price");
        }
        if (!(price > 0 || r->power_usd_kWh > 0)) {
            return mf_err_set(
                e, MF_USAGE,
                "--price: expected a price above 0, or --power-price beside it, where "
                "energy alone costs; got \"%s\"",
                r->price[i]);
        }
    }
    return MF_OK;
}

mf_capacity_price mf_capacity_price_of(const mf_capacity_request *r, const char *name,
                                       const mf_cluster *c) {
    mf_capacity_price p = {.known = c->price_usd_gpu_h > 0, .usd_gpu_h = c->price_usd_gpu_h};
    const char *usd;
    const bool dated = c->price_date[0] >= '0' && c->price_date[0] <= '9'; /* else words */
    snprintf(p.date, sizeof p.date, "%s", dated ? c->price_date : "");
    snprintf(p.source, sizeof p.source, "%s", c->price_source);
    for (int i = 0; i < r->prices; i++) {
        const bool is =
            is_price_of(r->price[i], name, &usd) ||
            (is_price_of(r->price[i], c->name, &usd) && !is_given(r, r->price[i], &usd));
        if (is && usd != NULL && read_price(usd, &p.usd_gpu_h, p.date, NULL) == MF_OK) {
            p.known = true;
            snprintf(p.source, sizeof p.source, "--price");
        }
    }
    return p;
}
