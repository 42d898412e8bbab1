/* cluster_report.c - a cluster and where its figures come from. */
#include "report/inputs/cluster_report.h"

#include "report/basis/doubts.h"
#include "report/text/show.h"

#include <stddef.h>
#include <string.h>

/* --- figures ---------------------------------------------------------------------------------- */

typedef enum unit {
    UNIT_NONE,
    UNIT_FLOPS,
    UNIT_B,
    UNIT_BPS,
    UNIT_S,
    UNIT_W,
    UNIT_USD,
    UNIT_H
} unit;

typedef struct figure {
    const char *key; /* of --json */
    const char *name;
    unit unit;
    size_t offset; /* of a double in mf_cluster */
} figure;

#define F(key, name, unit, field)                                                                  \
    { key, name, unit, offsetof(mf_cluster, field) }
static const figure figures[] = {
    F("peak_fp32_flops", "FP32 peak", UNIT_FLOPS, gpu.peak_flops[MF_MATH_FP32]),
    F("peak_bf16_flops", "BF16 peak", UNIT_FLOPS, gpu.peak_flops[MF_MATH_BF16]),
    F("peak_fp8_flops", "FP8 peak", UNIT_FLOPS, gpu.peak_flops[MF_MATH_FP8]),
    F("peak_fp4_flops", "FP4 peak", UNIT_FLOPS, gpu.peak_flops[MF_MATH_FP4]),
    F("measured_bf16_flops", "BF16 measured", UNIT_FLOPS, gpu.measured_flops[MF_MATH_BF16]),
    F("measured_fp8_flops", "FP8 measured", UNIT_FLOPS, gpu.measured_flops[MF_MATH_FP8]),
    F("memory_B", "memory", UNIT_B, gpu.memory_B),
    F("memory_Bps", "memory bandwidth", UNIT_BPS, gpu.memory_Bps),
    F("scaleup_Bps", "scale-up, a direction", UNIT_BPS, scaleup_Bps),
    F("scaleup_effective_Bps", "  of it reached", UNIT_BPS, scaleup_effective_Bps),
    F("scaleup_latency_s", "  latency", UNIT_S, scaleup_latency_s),
    F("nic_Bps", "network, a direction", UNIT_BPS, nic_Bps),
    F("nic_latency_s", "  latency", UNIT_S, nic_latency_s),
    F("host_Bps", "host link, a direction", UNIT_BPS, host_Bps),
    F("host_shared_Bps", "  a node's, both ways", UNIT_BPS, host_shared_Bps),
    F("host_memory_B", "host memory per GPU", UNIT_B, host_memory_B),
    F("power_w", "GPU power", UNIT_W, gpu.power_w),
    F("node_overhead_w", "host's share of power", UNIT_W, node_overhead_w),
    F("price_usd_gpu_h", "price of a GPU hour", UNIT_USD, price_usd_gpu_h),
    F("mtbf_gpu_h", "hours between failures", UNIT_H, mtbf_gpu_h),
};
#undef F
enum { FIGURES = sizeof figures / sizeof figures[0] };

static double value_of(const mf_cluster *c, const figure *f) {
    double v;
    memcpy(&v, (const char *)c + f->offset, sizeof v);
    return v;
}

static mf_shown text_of(double v, unit u) {
    mf_shown t;
    switch (u) {
    case UNIT_FLOPS:
        return mf_show_rate(v, "FLOP/s");
    case UNIT_B:
        return mf_show_bytes(v);
    case UNIT_BPS:
        return mf_show_rate(v, "B/s");
    case UNIT_S:
        return mf_show_time(v);
    case UNIT_W:
        snprintf(t.s, sizeof t.s, "%.0f W", v);
        return t;
    case UNIT_USD:
        snprintf(t.s, sizeof t.s, "%.2f USD", v);
        return t;
    case UNIT_H:
        snprintf(t.s, sizeof t.s, "%.0f h", v);
        return t;
    case UNIT_NONE:
        break;
    }
    snprintf(t.s, sizeof t.s, "%g", v);
    return t;
}

/* --- sources ---------------------------------------------------------------------------------- */

/* Called for every figure of a cluster file: its key with those of the objects around it. */
typedef void (*figure_fn)(const char *key, double value, const char *source, const char *date,
                          void *user);

static void each_figure(const mf_json_value *v, const char *prefix, figure_fn fn, void *user) {
    char key[96];
    double value = 0;
    const char *source = NULL, *date = "";
    bool array = mf_json_value_type(v) == MF_JSON_ARRAY;
    if (mf_json_value_type(v) == MF_JSON_NUMBER) {
        (void)mf_json_f64(v, -1e300, 1e300, &value, NULL);
        fn(prefix, value, "no source given", "", user);
        return;
    }
    if (!array && mf_json_value_type(v) != MF_JSON_OBJECT) {
        return;
    }
    if (!array && mf_json_find(v, "source") != NULL &&
        mf_json_get_f64(v, "value", -1e300, 1e300, &value, NULL) == MF_OK &&
        mf_json_get_string(v, "source", &source, NULL) == MF_OK) {
        (void)mf_json_opt_string(v, "date", &date, NULL);
        fn(prefix, value, source, date, user);
        return;
    }
    for (size_t i = 0; i < mf_json_size(v); i++) {
        if (array) {
            snprintf(key, sizeof key, "%s[%zu]", prefix, i);
        } else {
            snprintf(key, sizeof key, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "",
                     mf_json_key_at(v, i));
        }
        each_figure(mf_json_at(v, i), key, fn, user);
    }
}

static void print_source(const char *key, double value, const char *source, const char *date,
                         void *user) {
    FILE *out = user;
    char number[32];
    snprintf(number, sizeof number, "%.10g", value);
    fprintf(out, "  %-28s %10s  %s%s%s%s\n", key, number, source, date[0] != '\0' ? " (" : "", date,
            date[0] != '\0' ? ")" : "");
}

static void json_source(const char *key, double value, const char *source, const char *date,
                        void *user) {
    mf_json_writer *w = user;
    mf_json_write_object(w, key, true);
    mf_json_write_f64(w, "value", value);
    mf_json_write_string(w, "source", source);
    mf_json_write_string(w, "date", date);
    mf_json_write_end(w);
}

/* --- one cluster ------------------------------------------------------------------------------ */

/* The last tier reaches everything. */
static bool reaches_all(const mf_tier *t) {
    return t->gpus <= 0 || t->gpus > (INT64_C(1) << 40);
}

void mf_cluster_report_print(FILE *out, const mf_cluster *c, const mf_json *file) {
    fprintf(out, "%s: %s (%s), %lld per node, %lld in a scale-up domain", c->name, c->gpu.name,
            c->gpu.arch, (long long)c->gpus_per_node, (long long)c->domain_gpus);
    if (c->domain_gpus_used != c->domain_gpus) {
        fprintf(out, " of which %lld are used", (long long)c->domain_gpus_used);
    }
    fprintf(out, ", %lld SMs\n", (long long)c->gpu.sms);
    for (int i = 0; i < FIGURES; i++) {
        double v = value_of(c, &figures[i]);
        if (v > 0) {
            fprintf(out, "  %-24s %s\n", figures[i].name, text_of(v, figures[i].unit).s);
        }
    }
    for (int i = 0; i < c->tiers; i++) {
        const mf_tier *t = &c->tier[i];
        fprintf(out, "  network tier %-11s reaches %s GPUs, oversubscription %g, %s a hop\n",
                t->name, reaches_all(t) ? "all" : mf_show_i64(t->gpus).s, t->oversubscription,
                mf_show_time(t->latency_s).s);
    }
    if (c->max_gpus > 0) {
        fprintf(out, "  at most %.0f GPUs\n", c->max_gpus);
    }
    fputs("\nthe file's own figures, and where they come from\n", out);
    each_figure(mf_json_root(file), "", print_source, out);
}

void mf_cluster_report_json(mf_json_writer *w, const mf_cluster *c, const mf_json *file) {
    mf_json_write_object(w, NULL, false);
    mf_json_write_string(w, "name", c->name);
    mf_json_write_string(w, "gpu", c->gpu.name);
    mf_json_write_string(w, "arch", c->gpu.arch);
    mf_json_write_i64(w, "sms", c->gpu.sms);
    mf_json_write_i64(w, "gpus_per_node", c->gpus_per_node);
    mf_json_write_i64(w, "domain_gpus", c->domain_gpus);
    mf_json_write_i64(w, "domain_gpus_used", c->domain_gpus_used);
    for (int i = 0; i < FIGURES; i++) {
        double v = value_of(c, &figures[i]);
        if (v > 0) {
            mf_json_write_f64(w, figures[i].key, v);
        } else {
            mf_json_write_null(w, figures[i].key); /* not known, or not supported */
        }
    }
    mf_json_write_f64(w, "nic_efficiency", c->nic_efficiency);
    mf_json_write_array(w, "tiers", false);
    for (int i = 0; i < c->tiers; i++) {
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "name", c->tier[i].name);
        if (reaches_all(&c->tier[i])) {
            mf_json_write_null(w, "gpus");
        } else {
            mf_json_write_i64(w, "gpus", c->tier[i].gpus);
        }
        mf_json_write_f64(w, "oversubscription", c->tier[i].oversubscription);
        mf_json_write_f64(w, "latency_s", c->tier[i].latency_s);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
    if (file != NULL) {
        mf_json_write_object(w, "sources", false);
        each_figure(mf_json_root(file), "", json_source, w);
        mf_json_write_end(w);
        mf_doubts doubts = {0};
        mf_doubt_cluster(&doubts, c);
        mf_doubts_json(w, &doubts);
    }
    mf_json_write_end(w);
}

/* --- all of them ------------------------------------------------------------------------------ */

void mf_cluster_report_heads(FILE *out) {
    fprintf(out, "%-10s %5s %6s %14s %10s %10s %11s %11s %7s\n", "cluster", "node", "domain",
            "BF16 peak", "memory", "bandwidth", "scale-up", "network", "USD/h");
}

void mf_cluster_report_row(FILE *out, const mf_cluster *c) {
    char price[16] = "-";
    if (c->price_usd_gpu_h > 0) {
        snprintf(price, sizeof price, "%.2f", c->price_usd_gpu_h);
    }
    fprintf(out, "%-10s %5lld %6lld %14s %10s %10s %11s %11s %7s\n", c->name,
            (long long)c->gpus_per_node, (long long)c->domain_gpus_used,
            mf_show_rate(c->gpu.peak_flops[MF_MATH_BF16], "FLOP/s").s,
            mf_show_bytes(c->gpu.memory_B).s, mf_show_rate(c->gpu.memory_Bps, "B/s").s,
            mf_show_rate(c->scaleup_Bps, "B/s").s, mf_show_rate(c->nic_Bps, "B/s").s, price);
}
