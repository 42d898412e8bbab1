/* profile_measure.c - options of `moefold profile` as what is to be measured, and its progress. */
#include "cli/profile_measure.h"

#include "core/base/clock.h"
#include "core/base/flag.h"
#include "executor/measure/measure_store.h"
#include "executor/measure/measure_take.h"
#include "executor/measure/measure_worker.h"
#include "job/load/job.h"
#include "job/load/prices.h"

#include <stdlib.h>
#include <string.h>

static const char elsewhere[] =
    "; measurements made elsewhere are taken in with --import: what nccl-tests printed, text or "
    "JSON, with --gpu NAME, or a CSV file of points as --export writes it";
enum { RANKS_MAX = 8 };
static const uint64_t seed =
    1; /* the same points every time, so that a run can be taken up again */

/* --- what to measure -------------------------------------------------------------------------- */

static void one_degree(int64_t *list, const mf_args *a, mf_option_id id) {
    if (a->value[id].given) {
        list[0] = a->value[id].i;
        list[1] = 0;
    }
}

static mf_status plan_model(const mf_args *a, const mf_measure_machine *machine, mf_measure_list *l,
                            mf_err *e) {
    mf_layout base;
    mf_cluster cluster;
    mf_model *m = malloc(sizeof *m);
    mf_measure_degrees d = mf_measure_degrees_usual();
    const mf_job_request asked = {.strict = a->value[MF_OPT_STRICT].given, .notes = a->notes};
    if (m == NULL) {
        return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
    }
    mf_status s =
        mf_model_load_with(a->value[MF_OPT_MODEL].text, a->set, (size_t)a->set_count, m, e);
    s = s == MF_OK ? mf_job_say_left_out(&asked, m, e) : mf_request_named(s, "model", e);
    mf_layout_init(&base);
    base.seq = a->value[MF_OPT_SEQ].given ? a->value[MF_OPT_SEQ].i : 4096;
    s = s == MF_OK ? mf_args_apply(a, &base, e) : s;
    one_degree(d.tp, a, MF_OPT_TP);
    one_degree(d.cp, a, MF_OPT_CP);
    one_degree(d.ep, a, MF_OPT_EP);
    one_degree(d.etp, a, MF_OPT_ETP);
    one_degree(d.mbs, a, MF_OPT_MICRO_BATCH);
    /* Shapes do not depend on the cluster; one that ships lends its numbers to an unknown GPU. */
    if (s == MF_OK && mf_cluster_load(machine->gpu, &cluster, NULL) != MF_OK) {
        s = mf_cluster_load("h200", &cluster, e);
    }
    s = s == MF_OK ? mf_measure_plan_model(m, &cluster, &base, &d, l, e) : s;
    s = s == MF_OK ? mf_measure_plan_step(l, e) : s;
    free(m);
    return s;
}

static mf_status plan(const mf_args *a, const mf_measure_machine *machine, mf_measure_list *l,
                      mf_err *e) {
    mf_status s = a->value[MF_OPT_MODEL].given ? plan_model(a, machine, l, e)
                                               : mf_measure_plan_gpu(seed, l, e);
    int ranks = machine->gpus < RANKS_MAX ? machine->gpus : RANKS_MAX;
    if (s == MF_OK && ranks > 1 && machine->nccl[0] != '\0') {
        s = mf_measure_plan_collectives(ranks, seed, l, e);
    }
    return s;
}

/* --- progress --------------------------------------------------------------------------------- */

typedef struct progress {
    const mf_cli *cli;
    bool wanted;
    double start_s, next_s;
} progress;

static void show(void *user, int64_t done, int64_t all, const char *op) {
    progress *p = user;
    double wall_s = mf_clock_s() - p->start_s;
    bool terminal = p->cli->err_is_terminal;
    if (!p->wanted || (wall_s < p->next_s && done < all)) {
        return;
    }
    p->next_s = wall_s + (terminal ? 0.2 : 5.0);
    fprintf(p->cli->err, "%s%lld of %lld points (%s) in %.0f s, about %.0f s left%s",
            terminal ? "\r\033[K" : "", (long long)done, (long long)all, op, wall_s,
            wall_s / (double)(done > 0 ? done : 1) * (double)(all - done),
            terminal && done < all ? "" : "\n");
    fflush(p->cli->err);
}

/* --- the action ------------------------------------------------------------------------------- */

static mf_status open_worker(const mf_args *a, const mf_cli *cli, mf_measure_worker **w,
                             mf_measure_machine *machine, mf_err *e) {
    const bool shared = a->value[MF_OPT_SHARED].given;
    const mf_measure_manner manner = {.shared = shared, .energy = a->value[MF_OPT_ENERGY].given};
    char path[4096];
    if (!mf_measure_worker_path(path, sizeof path)) {
        return mf_err_set(e, MF_USAGE, "this build cannot measure: it was made without CUDA%s",
                          elsewhere);
    }
    mf_status s = mf_measure_worker_open(path, manner, w, machine, e);
    s = s == MF_OK ? mf_measure_machine_check(machine, shared, e) : s;
    if (s == MF_USAGE && e != NULL) {
        const mf_err why = *e;
        return mf_err_set(e, s, "%.400s%s", why.text, elsewhere);
    }
    if (s == MF_OK && !shared && mf_measure_machine_blind(machine)[0] != '\0') {
        fprintf(cli->err, "moefold profile: %s\n", mf_measure_machine_blind(machine));
    }
    if (s == MF_OK && a->value[MF_OPT_GPU].given) {
        snprintf(machine->gpu, sizeof machine->gpu, "%.31s", a->value[MF_OPT_GPU].text);
    }
    return s;
}

mf_status mf_profile_measure(const mf_args *a, const mf_cli *cli, const char *path,
                             mf_measured *out, mf_err *e) {
    mf_measure_worker *w = NULL;
    mf_measure_machine machine;
    mf_measure_list l = {NULL, 0, 0};
    mf_measure_choice *choice = NULL;
    mf_store *store = NULL;
    progress p = {.cli = cli,
                  .wanted = cli->err_is_terminal || a->value[MF_OPT_PROGRESS].given,
                  .start_s = mf_clock_s()};
    *out = (mf_measured){.gpu = ""};
    mf_status s = open_worker(a, cli, &w, &machine, e);
    if (s == MF_OK) {
        snprintf(out->gpu, sizeof out->gpu, "%s", machine.gpu);
        s = plan(a, &machine, &l, e);
    }
    const bool energy = a->value[MF_OPT_ENERGY].given;
    if (s == MF_OK && energy) {
        mf_measure_keep_energy(&l);
    }
    s = s == MF_OK ? mf_measure_store_open(path, &store, e) : s;
    s = s == MF_OK ? mf_measure_keep_missing(&l, store, &machine, energy, &out->there, e) : s;
    if (s == MF_OK && l.n > 0) {
        s = mf_measure_remember(&l, store, &machine, &choice, e);
        s = s == MF_OK ? mf_measure_worker_give(w, &l, choice, e) : s;
        s = s == MF_OK ? mf_measure_take(w, &l, store, &machine, show, &p, &out->measured,
                                         &out->refused, e)
                       : s;
    }
    if (s != MF_OK && mf_flag_is_set(cli->cancel)) {
        s = mf_err_set(e, MF_INTERRUPTED,
                       "interrupted after %lld of %lld points, which are stored; the same command "
                       "goes on from there",
                       (long long)out->measured, (long long)l.n);
    }
    mf_measure_worker_close(w);
    mf_store_close(store);
    mf_measure_list_clear(&l);
    free(choice);
    return s;
}
