/* cmd_price.c - `moefold price`: one op, its time, its band and what the price rests on. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "costmodel/price_text.h"
#include "job/job.h"
#include "job/prices.h"
#include "profiles/ops_table.h"
#include "report/output.h"
#include "report/text/show.h"

#include <string.h>

typedef struct priced {
    char key[256]; /* canonical */
    const char *op;
    mf_op what;
    mf_price price;
    double busbw_Bps;             /* 0 where nccl-tests defines none */
    double sustained_s, energy_J; /* run after run under the power cap; 0: of no kernel */
} priced;

static const char *const link_text[] = {
    [MF_LINK_NONE] = "none",
    [MF_LINK_SCALEUP] = "scale-up",
    [MF_LINK_NETWORK] = "network",
    [MF_LINK_HOST] = "host",
};

/* The op and its dims as one text, as the store spells keys. */
static mf_status join_words(const mf_args *a, char *out, size_t size, mf_err *e) {
    size_t used = 0;
    for (int i = 0; i < a->words; i++) {
        int n = snprintf(out + used, size - used, "%s%s", i > 0 ? " " : "", a->word[i]);
        used += (size_t)n;
        if (used >= size) {
            return mf_err_set(e, MF_USAGE, "the op is longer than %zu characters", size - 1);
        }
    }
    return MF_OK;
}

/* Ranks that one host has no room for stand on as many hosts as they take. */
static mf_status place_ranks(const mf_args *a, const mf_cluster *c, mf_point *p, mf_err *e) {
    if (mf_point_find(p, "ranks") == NULL || mf_point_find(p, "nodes") == NULL ||
        mf_point_value(p, "ranks") <= (double)c->gpus_per_node) {
        return MF_OK;
    }
    int64_t ranks = (int64_t)mf_point_value(p, "ranks"), each = c->gpus_per_node;
    while (ranks % each != 0) {
        each--;
    }
    int64_t nodes = ranks / each;
    for (int i = 1; i < a->words; i++) {
        if (strncmp(a->word[i], "nodes=", 6) == 0) {
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

static mf_status price_op(const mf_args *a, const mf_cost *cost, priced *out, mf_err *e) {
    char text[512];
    mf_point point;
    *out = (priced){0};
    mf_status s = join_words(a, text, sizeof text, e);
    if (s == MF_OK) {
        s = mf_point_parse(text, &point, e);
    }
    if (s == MF_OK) {
        s = place_ranks(a, mf_cost_cluster(cost), &point, e);
    }
    if (s == MF_OK) {
        mf_point_format(&point, out->key, sizeof out->key);
        s = mf_cost_price_text(cost, out->key, &out->what, &out->price, e);
    }
    if (s != MF_OK) {
        return s;
    }
    out->op = a->word[0];
    if (out->price.link == MF_LINK_NONE && out->price.time_s > 0) {
        out->sustained_s = mf_cost_sustained_s(cost, &out->what, 1, out->price.time_s);
        const double clock = mf_cost_clock_share(out->sustained_s / out->price.time_s);
        out->energy_J = mf_cost_energy_J(cost, &out->what, 1, out->sustained_s, clock);
    }
    double factor = mf_op_busbw_factor(point.op, mf_point_value(&point, "ranks"));
    out->busbw_Bps =
        factor > 0 && out->price.time_s > 0 ? factor * out->what.bytes / out->price.time_s : 0;
    return MF_OK;
}

static void print_text(FILE *out, const priced *p, const mf_cost *cost) {
    const mf_price *r = &p->price;
    fprintf(out, "%s on %s, software profile %s\n", p->key, mf_cost_cluster(cost)->name,
            mf_cost_software(cost)->name);
    fprintf(out, "  time    %s  (%s to %s)\n", mf_show_time(r->time_s).s, mf_show_time(r->low_s).s,
            mf_show_time(r->high_s).s);
    if (r->time_s > 0 && r->limit_s > 0) {
        fprintf(out, "  limit   %s; %s of it is reached\n", mf_show_time(r->limit_s).s,
                mf_show_percent(r->limit_s / r->time_s).s);
    }
    if (r->time_s > 0 && p->what.flops > 0) {
        fprintf(out, "  rate    %s\n", mf_show_rate(p->what.flops / r->time_s, "FLOP/s").s);
    } else if (p->busbw_Bps > 0) {
        fprintf(out, "  busbw   %s\n", mf_show_rate(p->busbw_Bps, "B/s").s);
    } else if (r->time_s > 0 && p->what.bytes > 0) {
        fprintf(out, "  rate    %s\n", mf_show_rate(p->what.bytes / r->time_s, "B/s").s);
    }
    if (r->link != MF_LINK_NONE) {
        fprintf(out, "  link    %s, %s of it while it runs; %s of the SMs\n", link_text[r->link],
                mf_show_percent(r->link_share).s, mf_show_percent(r->sm_share).s);
    }
    fprintf(out, "  basis   %s\n", mf_basis_text((mf_basis)r->basis));
    if (p->sustained_s > 0 && !mf_cluster_is_cpu(mf_cost_cluster(cost))) {
        mf_power power = mf_cost_power(cost);
        bool small = p->energy_J < 1;
        fprintf(out, "  energy  %.3g %s (%s); run after run %s, %.0f W of %.0f W\n",
                (small ? 1e3 : 1) * p->energy_J, small ? "mJ" : "J",
                power.measured ? "measured" : "from an H200's", mf_show_time(p->sustained_s).s,
                p->energy_J / p->sustained_s, power.cap_W);
    }
}

static mf_status print_json(FILE *out, const priced *p, const mf_cost *cost, mf_err *e) {
    const mf_price *r = &p->price;
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "op", p->key);
    mf_json_write_string(&w, "cluster", mf_cost_cluster(cost)->name);
    mf_json_write_string(&w, "gpu", mf_cost_cluster(cost)->gpu.name);
    mf_json_write_string(&w, "software", mf_cost_software(cost)->name);
    mf_json_write_f64(&w, "time_s", r->time_s);
    mf_json_write_f64(&w, "time_low_s", r->low_s);
    mf_json_write_f64(&w, "time_high_s", r->high_s);
    mf_json_write_f64(&w, "limit_s", r->limit_s);
    mf_json_write_f64(&w, "flops", p->what.flops);
    mf_json_write_f64(&w, "bytes_B", p->what.bytes);
    mf_json_write_f64(&w, "tflops", r->time_s > 0 ? p->what.flops / r->time_s / 1e12 : 0);
    mf_json_write_f64(&w, "busbw_Bps", p->busbw_Bps);
    mf_json_write_string(&w, "basis", mf_basis_text((mf_basis)r->basis));
    mf_json_write_f64(&w, "sustained_s", p->sustained_s);
    mf_json_write_f64(&w, "energy_J", p->energy_J);
    mf_json_write_string(&w, "link", link_text[r->link]);
    mf_json_write_f64(&w, "link_share", r->link_share);
    mf_json_write_f64(&w, "sm_share", r->sm_share);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

/* What can be priced, when no op is given. */
static void print_ops(FILE *out) {
    size_t count;
    const mf_op_row *rows = mf_op_rows(&count);
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s: %s\n", rows[i].name, rows[i].meaning);
        for (int k = 0; k < rows[i].dims; k++) {
            const mf_op_dim *d = &rows[i].dim[k];
            int column = fprintf(out, "  %s%s%s", d->key, d->fallback != NULL ? "=" : "",
                                 d->fallback != NULL ? d->fallback : "");
            fprintf(out, "%*s", column < 16 ? 16 - column : 1, "");
            mf_show_wrap(out, d->meaning, 16, 16, 79);
        }
    }
}

static mf_status print_ops_json(FILE *out, mf_err *e) {
    size_t count;
    const mf_op_row *rows = mf_op_rows(&count);
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_array(&w, NULL, false);
    for (size_t i = 0; i < count; i++) {
        mf_json_write_object(&w, NULL, false);
        mf_json_write_string(&w, "op", rows[i].name);
        mf_json_write_string(&w, "meaning", rows[i].meaning);
        mf_json_write_array(&w, "keys", false);
        for (int k = 0; k < rows[i].dims; k++) {
            const mf_op_dim *d = &rows[i].dim[k];
            mf_json_write_object(&w, NULL, true);
            mf_json_write_string(&w, "key", d->key);
            mf_json_write_string(&w, "default", d->fallback);
            mf_json_write_string(&w, "meaning", d->meaning);
            mf_json_write_end(&w);
        }
        mf_json_write_end(&w);
        mf_json_write_end(&w);
    }
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

/* Scales that the GPU's products do not take; pricing has refused whole types that it lacks. */
static mf_status check_recipe(const priced *p, const mf_cluster *c, mf_err *e) {
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

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_cluster cluster;
    mf_software software;
    mf_cost *cost = NULL;
    priced p;
    if (a->words == 0 && a->value[MF_OPT_JSON].given) {
        return print_ops_json(cli->out, e);
    }
    if (a->words == 0) {
        print_ops(cli->out);
        return MF_OK;
    }
    mf_status s = mf_args_require(a, MF_OPT_CLUSTER, e);
    if (s == MF_OK) {
        mf_job_request r;
        s = mf_args_request(a, &r, e);
        s = s == MF_OK ? mf_prices_load(&r, r.cluster, NULL, &cluster, &software, &cost, e) : s;
    }
    if (s == MF_OK) {
        s = price_op(a, cost, &p, e);
    }
    if (s == MF_OK) {
        s = check_recipe(&p, &cluster, e);
    }
    if (s == MF_OK && a->value[MF_OPT_JSON].given) {
        s = print_json(cli->out, &p, cost, e);
    } else if (s == MF_OK) {
        print_text(cli->out, &p, cost);
    }
    mf_cost_destroy(cost);
    return s;
}

static const mf_option_id options[] = {MF_OPT_CLUSTER, MF_OPT_SOFTWARE, MF_OPT_STORE,
                                       MF_OPT_VERBOSE, MF_OPT_JSON,     MF_OPT_HELP,
                                       MF_OPT_COUNT};

const mf_command mf_cmd_price = {
    .name = "price",
    .summary = "one op: time, band, limit, and what the price rests on",
    .usage = {"OP KEY=VALUE ... --cluster NAME [options]"},
    .about =
        "Prices one op alone on the device or the links. OP and its keys are those of the "
        "profile store, in any order; keys with a default may be left out, and KiB, MiB and "
        "GiB may stand behind bytes. Without an op it lists all ops and their keys.\n"
        "The basis says what the price rests on: a measured point, points nearby, a fitted "
        "roofline, another GPU through data-sheet ratios, or NCCL's own model. The time is that of "
        "a GPU that "
        "rested before; of kernels there is the energy, too, and the time of many runs without a "
        "rest, under the power cap.",
    .example = "moefold price gemm m=4096 n=7168 k=2048 dtype=bf16 --cluster h200",
    .words = MF_ARGS_MAX_WORDS,
    .options = options,
    .run = run,
};
