/* cmd_price.c - `moefold price`: one op, its time, its band and what the price rests on. */
#include "cli/args_request.h"
#include "cli/commands.h"
#include "job/figures/op_price.h"
#include "job/load/prices.h"
#include "report/inputs/price_report.h"
#include "report/text/output.h"

static mf_status list_ops(FILE *out, bool json, mf_err *e) {
    mf_json_writer w;
    if (!json) {
        mf_price_report_ops(out);
        return MF_OK;
    }
    mf_json_writer_init(&w);
    mf_price_report_ops_json(&w);
    return mf_output_json(&w, out, e);
}

static mf_status print_json(FILE *out, const mf_op_priced *p, const mf_cost *cost, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_price_report_json(&w, p, cost);
    mf_json_write_end(&w);
    return mf_output_json(&w, out, e);
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    const bool json = a->value[MF_OPT_JSON].given;
    mf_job_request r;
    mf_cluster cluster;
    mf_software software;
    mf_cost *cost = NULL;
    mf_op_priced p;
    if (a->words == 0) {
        return list_ops(cli->out, json, e);
    }
    mf_status s = mf_args_require(a, MF_OPT_CLUSTER, e);
    s = s == MF_OK ? mf_args_request(a, &r, e) : s;
    s = s == MF_OK ? mf_prices_load(&r, r.cluster, NULL, &cluster, &software, &cost, e) : s;
    s = s == MF_OK ? mf_op_price(cost, a->word, a->words, &p, e) : s;
    if (s == MF_OK && json) {
        s = print_json(cli->out, &p, cost, e);
    } else if (s == MF_OK) {
        mf_price_report_print(cli->out, &p, cost);
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
    .about = "Prices one op alone on the device or the links. OP and its keys are those of the "
             "profile store, in any order; keys with a default may be left out, and KiB, MiB and "
             "GiB may follow bytes. Without an op it lists all ops and their keys.\nThe basis says "
             "what the price rests on: a measured point, points nearby, a fitted roofline, another "
             "GPU through data-sheet ratios, or NCCL's own model. The time is that of a GPU that "
             "rested before; for kernels there is also the energy, and the time under the power "
             "cap when many run without a rest.",
    .example = "moefold price gemm m=4096 n=7168 k=2048 dtype=bf16 --cluster h200",
    .words = MF_ARGS_MAX_WORDS,
    .options = options,
    .run = run,
};
