/* cmd_profile.c - `moefold profile`: measure into a profile store; rebuild, check, take in, write
 * out. */
#include "cli/commands.h"
#include "cli/profile_measure.h"
#include "core/base/text.h"
#include "job/load/prices.h"
#include "profiles/store.h"
#include "report/text/output.h"
#include "report/text/show.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct outcome {
    const char *action;
    int64_t rows, damaged;
} outcome;

/* An action works on the store at `path` and says what came of it. */
typedef struct action {
    mf_option_id id;
    mf_status (*run)(const mf_args *a, const char *path, outcome *out, mf_err *e);
} action;

static mf_status count_rows(const char *path, outcome *out, mf_err *e) {
    mf_store *store;
    mf_status s = mf_prices_open_store(path, &store, &out->rows, &out->damaged, e);
    mf_store_close(store);
    return s;
}

static mf_status rebuild(const mf_args *a, const char *path, outcome *out, mf_err *e) {
    (void)a;
    out->action = "rebuilt";
    mf_status s = mf_store_rebuild(path, e);
    return s == MF_OK ? count_rows(path, out, e) : s;
}

static mf_status check(const mf_args *a, const char *path, outcome *out, mf_err *e) {
    (void)a;
    out->action = "sound";
    return count_rows(path, out, e);
}

/* A store that is not there yet begins with the shipped measurements, and is not made for a file
 * that is refused. */
static mf_status import(const mf_args *a, const char *path, outcome *out, mf_err *e) {
    const char *from = a->value[MF_OPT_IMPORT].text;
    struct stat info;
    mf_store *store = NULL;
    mf_status s = MF_OK;
    out->action = "taken in";
    bool csv = mf_text_ends_with(from, ".csv");
    if (access(from, R_OK) != 0) {
        return mf_err_set(e, MF_INPUT, "%s: cannot be opened: %s", from, strerror(errno));
    }
    if (!csv && !a->value[MF_OPT_GPU].given) {
        return mf_err_set(e, MF_USAGE, "--import of nccl-tests output needs --gpu NAME");
    }
    const bool made = stat(path, &info) != 0;
    if (made) {
        s = mf_store_rebuild(path, e);
    }
    if (s == MF_OK) {
        s = mf_store_open(path, &store, e);
    }
    if (s == MF_OK && csv) {
        s = mf_store_import_csv(store, from, &out->rows, e);
    } else if (s == MF_OK) {
        int64_t nodes = a->value[MF_OPT_NODES].given ? a->value[MF_OPT_NODES].i : 0;
        s = mf_store_import_nccl_tests(store, from, a->value[MF_OPT_GPU].text, nodes, &out->rows,
                                       e);
    }
    mf_store_close(store);
    if (made && s != MF_OK) {
        (void)unlink(path);
    }
    return s;
}

static mf_status export(const mf_args *a, const char *path, outcome *out, mf_err *e) {
    mf_store *store = NULL;
    mf_status s = count_rows(path, out, e);
    out->action = "written";
    if (s == MF_OK || s == MF_DAMAGED) { /* damaged rows are left out and reported */
        s = mf_store_open(path, &store, e);
    }
    if (s == MF_OK) {
        s = mf_store_export_csv(store, a->value[MF_OPT_EXPORT].text, e);
    }
    mf_store_close(store);
    return s;
}

static const action actions[] = {
    {MF_OPT_REBUILD, rebuild},
    {MF_OPT_CHECK, check},
    {MF_OPT_IMPORT, import},
    {MF_OPT_EXPORT, export},
};
enum { ACTIONS = sizeof actions / sizeof actions[0] };

/* Options that say what is measured; the general grid has no layout. */
static const mf_option_id of_model[] = {MF_OPT_SET, MF_OPT_STRICT,      MF_OPT_SEQ,
                                        MF_OPT_TP,  MF_OPT_CP,          MF_OPT_EP,
                                        MF_OPT_ETP, MF_OPT_MICRO_BATCH, MF_OPT_PRECISION};
enum { OF_MODEL = sizeof of_model / sizeof of_model[0] };

static mf_status exclude(const mf_args *a, const action *act, mf_option_id id, mf_err *e) {
    return a->value[id].given ? mf_err_set(e, MF_USAGE, "--%s and --%s exclude each other",
                                           mf_option_get(act->id)->name, mf_option_get(id)->name)
                              : MF_OK;
}

/* What an action would pass over in silence. */
static mf_status check_unused(const mf_args *a, const action *act, mf_err *e) {
    mf_status s = MF_OK;
    bool import = act != NULL && act->id == MF_OPT_IMPORT;
    bool csv = import && mf_text_ends_with(a->value[MF_OPT_IMPORT].text, ".csv");
    if (act != NULL) {
        s = exclude(a, act, MF_OPT_MODEL, e);
        s = s == MF_OK ? exclude(a, act, MF_OPT_SHARED, e) : s;
        s = s == MF_OK ? exclude(a, act, MF_OPT_ENERGY, e) : s;
    }
    for (size_t i = 0; i < OF_MODEL && s == MF_OK; i++) {
        if (act != NULL) {
            s = exclude(a, act, of_model[i], e);
        } else if (a->value[of_model[i]].given && !a->value[MF_OPT_MODEL].given) {
            s = mf_err_set(e, MF_USAGE, "--%s needs --model: the general grid is of no layout",
                           mf_option_get(of_model[i])->name);
        }
    }
    if (s == MF_OK && a->value[MF_OPT_NODES].given && (!import || csv)) {
        s = mf_err_set(e, MF_USAGE, "--nodes goes with --import of what nccl-tests printed");
    }
    if (s == MF_OK && csv && a->value[MF_OPT_GPU].given) {
        s = mf_err_set(e, MF_USAGE, "--gpu: the rows of a CSV file name their GPU themselves");
    }
    return s == MF_OK && act != NULL && !import ? exclude(a, act, MF_OPT_GPU, e) : s;
}

static mf_status choose(const mf_args *a, const action **out, mf_err *e) {
    *out = NULL;
    for (int i = 0; i < ACTIONS; i++) {
        if (a->value[actions[i].id].given) {
            if (*out != NULL) {
                return mf_err_set(e, MF_USAGE, "--%s and --%s exclude each other",
                                  mf_option_get((*out)->id)->name,
                                  mf_option_get(actions[i].id)->name);
            }
            *out = &actions[i];
        }
    }
    return check_unused(a, *out, e);
}

static mf_status measure(const mf_args *a, const mf_cli *cli, const char *path, mf_err *e) {
    mf_measured out;
    mf_status s = mf_profile_measure(a, cli, path, &out, e);
    if (s != MF_OK) {
        return s;
    }
    if (!a->value[MF_OPT_JSON].given) {
        fprintf(cli->out, "%s: %s points of %s measured, %s there already", path,
                mf_show_i64(out.measured).s, out.gpu, mf_show_i64(out.there).s);
        if (out.refused > 0) {
            fprintf(cli->out, ", %s without a kernel", mf_show_i64(out.refused).s);
        }
        fputc('\n', cli->out);
        return MF_OK;
    }
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "store", path);
    mf_json_write_string(&w, "action", "measure");
    mf_json_write_string(&w, "gpu", out.gpu);
    mf_json_write_i64(&w, "measured", out.measured);
    mf_json_write_i64(&w, "there", out.there);
    mf_json_write_i64(&w, "refused", out.refused);
    mf_json_write_end(&w);
    return mf_output_json(&w, cli->out, e);
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    const action *act;
    outcome out = {0};
    const char *path = a->value[MF_OPT_STORE].text;
    mf_status s = choose(a, &act, e);
    if (s == MF_OK) {
        s = mf_args_require(a, MF_OPT_STORE, e);
    }
    if (s == MF_OK && act == NULL) {
        return measure(a, cli, path, e);
    }
    if (s == MF_OK) {
        s = act->run(a, path, &out, e);
    }
    if (s != MF_OK) {
        return s;
    }
    if (!a->value[MF_OPT_JSON].given) {
        fprintf(cli->out, "%s: %s measurements %s\n", path, mf_show_i64(out.rows).s, out.action);
        return MF_OK;
    }
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_json_write_object(&w, NULL, false);
    mf_json_write_string(&w, "store", path);
    mf_json_write_string(&w, "action", mf_option_get(act->id)->name);
    mf_json_write_i64(&w, "measurements", out.rows);
    mf_json_write_end(&w);
    return mf_output_json(&w, cli->out, e);
}

static const mf_option_id options[] = {
    MF_OPT_STORE,     MF_OPT_MODEL,  MF_OPT_SET,    MF_OPT_STRICT,  MF_OPT_SEQ,
    MF_OPT_TP,        MF_OPT_CP,     MF_OPT_EP,     MF_OPT_ETP,     MF_OPT_MICRO_BATCH,
    MF_OPT_PRECISION, MF_OPT_SHARED, MF_OPT_ENERGY, MF_OPT_REBUILD, MF_OPT_CHECK,
    MF_OPT_IMPORT,    MF_OPT_EXPORT, MF_OPT_GPU,    MF_OPT_NODES,   MF_OPT_JSON,
    MF_OPT_PROGRESS,  MF_OPT_HELP,   MF_OPT_COUNT,
};

const mf_command mf_cmd_profile = {
    .name = "profile",
    .summary = "measure this machine's GPUs into a profile store, or look after one",
    .usage = {"--store FILE [--model NAME ...]",
              "--store FILE --rebuild | --check | --import FILE | --export FILE"},
    .about =
        "A profile store holds measured times of ops and collectives. With --store FILE every "
        "other command prices from it, without from the shipped measurements. Rows carry "
        "checksums: a damaged one is reported and never used. A store that does not exist yet "
        "begins with the shipped measurements.\nWithout another action this command measures what "
        "the store lacks of this GPU, driver and libraries. By default that is a general grid over "
        "the ranges of the shipped models (five minutes on one GPU); with --model it is the ops of "
        "that model under every layout of the usual degrees (--tp, --ep and so on fix one), with "
        "launches, optimizer and copies to the host. With several GPUs their collectives and "
        "exchanges of tokens are measured, too. For every product the library's fastest algorithm "
        "is found and remembered. Every point is stored at once, so that the same command goes on "
        "with an interrupted run. A GPU that is throttled, or that another process uses, is "
        "refused, even in the middle of a run.\nWith --energy a sample of the kernels runs for two "
        "seconds each, without a rest: the energy of one run, by the driver's counter, and its "
        "time under the power cap are stored beside its time. Measuring needs a GPU and a build "
        "with CUDA; without them, --import takes measurements made elsewhere.",
    .example = "moefold profile --store my.db --model qwen3-30b-a3b --tp 1",
    .options = options,
    .run = run,
};
