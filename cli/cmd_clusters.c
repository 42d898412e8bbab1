/* cmd_clusters.c - `moefold clusters`: the clusters that ship, or one and where its figures come
 * from. */
#include "cli/cli.h"
#include "cli/commands.h"
#include "report/basis/doubts.h"
#include "report/inputs/cluster_report.h"
#include "report/text/output.h"

static mf_status list(const mf_cli *cli, mf_json_writer *w, mf_err *e) {
    size_t count;
    const char *const *names = mf_cluster_shipped(&count);
    mf_cluster c;
    if (w == NULL) {
        mf_cluster_report_heads(cli->out);
    }
    for (size_t i = 0; i < count; i++) {
        mf_status s = mf_cluster_load(names[i], &c, e);
        if (s != MF_OK) {
            return s;
        }
        if (w != NULL) {
            mf_cluster_report_json(w, &c, NULL);
        } else {
            mf_cluster_report_row(cli->out, &c);
        }
    }
    return MF_OK;
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    mf_json_writer w;
    mf_cluster c = {.doubts = 0};
    mf_doubts doubts = {0};
    mf_json *file = NULL;
    mf_status s = MF_OK;
    bool json = a->value[MF_OPT_JSON].given;
    mf_json_writer_init(&w);
    if (a->words == 1) {
        s = mf_cluster_load_file(a->word[0], &c, &file, e);
        if (s == MF_OK && json) {
            mf_cluster_report_json(&w, &c, file);
        } else if (s == MF_OK) {
            mf_cluster_report_print(cli->out, &c, file);
        }
        mf_doubt_cluster(&doubts, &c);
        mf_doubts_print(s == MF_OK ? a->notes : NULL, &doubts);
        mf_json_destroy(file);
    } else if (json) {
        mf_json_write_array(&w, NULL, false);
        s = list(cli, &w, e);
        mf_json_write_end(&w);
    } else {
        s = list(cli, NULL, e);
    }
    if (s == MF_OK && json) {
        s = mf_output_json(&w, cli->out, e);
    }
    mf_json_writer_clear(&w);
    return s;
}

static const mf_option_id options[] = {MF_OPT_VERBOSE, MF_OPT_JSON, MF_OPT_HELP, MF_OPT_COUNT};

const mf_command mf_cmd_clusters = {
    .name = "clusters",
    .summary = "the clusters that ship, or one cluster and its figures",
    .usage = {"[NAME|FILE] [--json]"},
    .about = "Without a name it lists the shipped clusters, with figures per GPU. With a name, or "
             "a path to a cluster file, it shows that cluster. The files are "
             "profiles/clusters/NAME.json, where every figure stands beside its source.",
    .example = "moefold clusters h100",
    .words = 1,
    .options = options,
    .run = run,
};
