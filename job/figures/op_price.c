/* op_price.c - prices one op that is given as words. */
#include "job/figures/op_price.h"

#include "costmodel/price_text.h"
#include "job/load/job.h"
#include "profiles/ops_table.h"

#include <string.h>

/* The op and its dims as one text, as the store spells keys. */
static mf_status join_words(const char *const *word, int words, char *out, size_t size, mf_err *e) {
    size_t used = 0;
    for (int i = 0; i < words; i++) {
        int n = snprintf(out + used, size - used, "%s%s", i > 0 ? " " : "", word[i]);
        used += (size_t)n;
        if (used >= size) {
            return mf_err_set(e, MF_USAGE, "the op is longer than %zu characters", size - 1);
        }
    }
    return MF_OK;
}

/* Ranks that one host has no space for stand on as many hosts as they take. */
static mf_status place_ranks(const char *const *word, int words, const mf_cluster *c, mf_point *p,
                             mf_err *e) {
    if (mf_point_find(p, "ranks") == NULL || mf_point_find(p, "nodes") == NULL ||
        mf_point_value(p, "ranks") <= (double)c->gpus_per_node) {
        return MF_OK;
    }
    int64_t ranks = (int64_t)mf_point_value(p, "ranks"), each = c->gpus_per_node;
    while (ranks % each != 0) {
        each--;
    }
    int64_t nodes = ranks / each;
    for (int i = 1; i < words; i++) {
        if (strncmp(word[i], "nodes=", 6) == 0) {
            return mf_point_value(p, "nodes") * (double)c->gpus_per_node >= (double)ranks
                       ? MF_OK
                       : mf_err_set(e, MF_USAGE,
                                    "%s: %s holds %lld GPUs a host: %lld ranks take %lld", p->op,
                                    c->name, (long long)c->gpus_per_node, (long long)ranks,
                                    (long long)nodes);
        }
    }
    mf_point_set_i64(p, "nodes", nodes);
    return mf_point_canonical(p, e);
}

/* Scales that the GPU's products do not take; pricing has refused whole types that it lacks. */
static mf_status check_recipe(const mf_op_priced *p, const mf_cluster *c, mf_err *e) {
    static const char key[] = "dtype=";
    const char *at = strstr(p->key, key);
    char word[32];
    mf_layout probe;
    mf_layout_init(&probe);
    if (at == NULL) {
        return MF_OK;
    }
    at += strlen(key);
    snprintf(word, sizeof word, "%.*s", (int)strcspn(at, " "), at);
    bool recipe = mf_precision_parse(word, &probe.precision, NULL) == MF_OK;
    return recipe ? mf_job_check_cluster(&probe, c, e) : MF_OK;
}

mf_status mf_op_price(const mf_cost *cost, const char *const *word, int words, mf_op_priced *out,
                      mf_err *e) {
    char text[512];
    mf_point point;
    *out = (mf_op_priced){0};
    mf_status s = join_words(word, words, text, sizeof text, e);
    if (s == MF_OK) {
        s = mf_point_parse(text, &point, e);
    }
    if (s == MF_OK) {
        s = place_ranks(word, words, mf_cost_cluster(cost), &point, e);
    }
    if (s == MF_OK) {
        mf_point_format(&point, out->key, sizeof out->key);
        s = mf_cost_price_text(cost, out->key, &out->what, &out->price, e);
    }
    if (s != MF_OK) {
        return s;
    }
    if (out->price.link == MF_LINK_NONE && out->price.time_s > 0) {
        out->sustained_s = mf_cost_sustained_s(cost, &out->what, 1, out->price.time_s);
        const double clock = mf_cost_clock_share(out->sustained_s / out->price.time_s);
        out->energy_J = mf_cost_energy_J(cost, &out->what, 1, out->sustained_s, clock);
    }
    double factor = mf_op_busbw_factor(point.op, mf_point_value(&point, "ranks"));
    out->busbw_Bps =
        factor > 0 && out->price.time_s > 0 ? factor * out->what.bytes / out->price.time_s : 0;
    return check_recipe(out, mf_cost_cluster(cost), e);
}
