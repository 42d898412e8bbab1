/* cmd_train.c - `moefold train`: runs a plan, or a layout given by flags, on GPUs or CPU ranks. */
#include "cli/refold.h"
#include "cli/restart.h"
#include "cli/train_settings.h"
#include "compare/compare_points.h"
#include "core/base/flag.h"
#include "executor/files/files.h"
#include "executor/ranks/launch.h"
#include "executor/ranks/rank_registry.h"
#include "job/kept/host_cpu.h"
#include "job/kept/host_load.h"
#include "report/text/output.h"
#include "report/text/show.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LL(x) ((long long)(x))

typedef struct watcher {
    const mf_cli *cli;
    FILE *out; /* where steps are printed */
    const mf_train_settings *s;
    mf_rank_registry *registry;
    mf_train_metrics last;
    mf_device *device; /* of this rank, while it trains */
    int64_t used_B;    /* of its memory, by its driver's count; 0: unknown */
    double arena_B;    /* at the start; where routing takes more memory than planned it grows */
    double sum_s;
    int64_t timed; /* steps behind the first, cold one */
    int64_t steps_printed;
    double steps_s;    /* all steps */
    double save_sum_s; /* of all checkpoints, the last one's included */
    double stall_sum_s;
    int64_t saves;
    bool beside;        /* they were written beside the steps */
    mf_host_load began; /* behind the first step of CPU ranks */
    mf_err failed;      /* what could not be written, which ended the run; "": nothing */
} watcher;

/* A run that nobody can follow ends after the step at hand. */
static bool is_followed(watcher *w) {
    if (w->failed.text[0] == '\0' && (fflush(w->out) != 0 || ferror(w->out))) {
        mf_err_set(&w->failed, MF_IO, "standard %s: %s", w->out == w->cli->err ? "error" : "output",
                   strerror(errno));
    }
    return w->failed.text[0] == '\0';
}

/* --- what is said ------------------------------------------------------------------------------
 */

/* The plan as it runs and its model, for `compare` and for whoever wants to run it again. */
static bool save_plan(watcher *w) {
    const mf_train_options *o = &w->s->o;
    char path[4096];
    mf_err e;
    bool fits = mf_path_join(path, sizeof path, o->out, "plan.json", NULL);
    mf_status s = fits ? mf_plan_save(&w->s->job.plan, path, &e) : mf_err_set(&e, MF_IO, "--out");
    if (s == MF_OK && o->config != NULL &&
        mf_path_join(path, sizeof path, o->out, "config.json", NULL)) {
        s = mf_file_write(path, o->config, strlen(o->config), &e);
    }
    if (s != MF_OK) {
        w->failed = e;
    }
    return s == MF_OK;
}

/* The memory of a step, which is all taken by now. Of a GPU also what it is, and what its driver
 * says of its memory: beside the arena the libraries' own, and whoever else is there. */
static void print_memory(FILE *out, const mf_train_start *start) {
    const mf_device_ops *ops = start->device->ops;
    mf_shown arena = mf_show_bytes((double)start->arena_B);
    char name[128];
    if (ops->on_host) {
        fprintf(out, "arena       %s on the largest rank\n", arena.s);
        return;
    }
    ops->describe(start->device, name, sizeof name);
    fprintf(out, "device      %s: arena of %s as planned", name, arena.s);
    int64_t used_B = ops->used_B(start->device);
    if (used_B > 0) {
        fprintf(out, ", %s in use by its driver's count", mf_show_bytes((double)used_B).s);
    }
    putc('\n', out);
    if (mf_exec_dispatch_text(start->exec)[0] != '\0') {
        fprintf(out, "dispatch    %s\n", mf_exec_dispatch_text(start->exec));
    }
}

static int started(void *user, const mf_train_start *start) {
    watcher *w = user;
    w->device = start->device;
    w->used_B = start->device->ops->used_B(start->device);
    w->arena_B = (double)start->arena_B;
    print_memory(w->out, start);
    fprintf(w->out, "stream      %s tokens in %d file%s\n",
            mf_show_count((double)start->stream_tokens).s, start->streams,
            start->streams == 1 ? "" : "s");
    if (start->resumed != NULL) {
        fprintf(w->out, "resumed     %s\n", start->resumed);
    }
    putc('\n', w->out);
    return !is_followed(w) || (w->s->o.out != NULL && !save_plan(w));
}

static int stepped(void *user, const mf_train_metrics *m) {
    watcher *w = user;
    const bool left_out =
        w->steps_printed > 0 ? m->skipped > w->last.skipped : !isfinite(m->grad_norm);
    w->last = *m;
    w->steps_s += m->step_time_s;
    if (m->step == w->s->o.steps) {
        w->used_B = w->device->ops->used_B(w->device);
    }
    if (w->steps_printed++ > 0) {
        w->sum_s += m->step_time_s;
        w->timed++;
    } else if (mf_cluster_is_cpu(&w->s->job.cluster)) {
        w->began = mf_host_load_now();
    }
    fprintf(w->out, "step %lld/%lld  loss %.4f", LL(m->step), LL(w->s->o.steps), m->lm_loss);
    if (w->s->job.model.mtp_layers > 0) {
        fprintf(w->out, "  mtp %.4f", m->mtp_loss);
    }
    if (w->s->o.exec.aux_coef > 0) {
        fprintf(w->out, "  aux %.4f", m->aux_loss);
    }
    if (w->s->o.exec.z_coef > 0) {
        fprintf(w->out, "  z %.4f", m->z_loss);
    }
    fprintf(w->out, "  norm %.3f  lr %.3g  %s  %s", m->grad_norm, m->lr,
            mf_show_time(m->step_time_s).s, mf_show_rate(m->tokens_per_s, "tokens/s").s);
    fprintf(w->out, "  %s/rank  MFU %s  %s",
            mf_show_rate(1e12 * m->model_tflops_per_gpu, "FLOP/s").s, mf_show_percent(m->mfu).s,
            mf_show_bytes(m->memory_B).s);
    if (w->s->job.model.experts > 0) {
        fprintf(w->out, "  load %.2f", m->expert_load_max_over_mean);
    }
    fprintf(w->out, "%s  left %s\n", left_out ? "  update left out" : "", mf_show_time(m->eta_s).s);
    return !is_followed(w);
}

static void saved(void *user, const mf_train_saved *s) {
    watcher *w = user;
    w->save_sum_s += s->took_s;
    w->stall_sum_s += s->stall_s;
    w->beside = s->beside;
    w->saves++;
}

static void warned(void *user, const char *line) {
    const watcher *w = user;
    fflush(w->out);
    fprintf(w->cli->err, "moefold train: %s\n", line);
    fflush(w->cli->err);
}

static void lost(void *user, const char *line) {
    const watcher *w = user;
    mf_rank_registry_reported(w->registry);
    fprintf(w->cli->err, "moefold train: %s\n", line);
    fflush(w->cli->err);
}

/* By what checkpoints cost training here, and how often the cluster says that a job of this size
 * fails; 0: it does not say. Never shorter than a save takes. */
static double best_interval_s(const watcher *w, double *mtbf_s) {
    const mf_job *j = &w->s->job;
    const double saves = (double)w->saves;
    *mtbf_s = 3600.0 * j->cluster.mtbf_gpu_h / (double)j->plan.layout.gpus;
    if (w->saves == 0 || !(*mtbf_s > 0.0)) {
        return 0.0;
    }
    return fmax(mf_train_save_interval_s(w->stall_sum_s / saves, *mtbf_s), w->save_sum_s / saves);
}

static void print_saves(const watcher *w) {
    double mtbf_s = 0.0, interval_s = best_interval_s(w, &mtbf_s), saves = (double)w->saves;
    if (w->saves == 0) {
        return;
    }
    fprintf(w->out, "%lld checkpoint%s of %s each", LL(w->saves), w->saves > 1 ? "s" : "",
            mf_show_time(w->save_sum_s / saves).s);
    if (w->beside) {
        fprintf(w->out, ", for which training stood still %s each",
                mf_show_time(w->stall_sum_s / saves).s);
    }
    if (w->steps_s > 0.0) {
        fprintf(w->out, " (%s of the time)",
                mf_show_percent(w->stall_sum_s / (w->stall_sum_s + w->steps_s)).s);
    }
    if (interval_s > 0.0) {
        fprintf(w->out,
                "; one failure in %s is expected: least is lost with one every %s "
                "(Young and Daly), --save-minutes %.3g",
                mf_show_time(mtbf_s).s, mf_show_time(interval_s).s, interval_s / 60.0);
    }
    putc('\n', w->out);
}

/* Share of others in what the cores did since the steps began: prices were measured on cores that
 * were free, or will be. Every rank works as much as this one. */
static double busy_with_others(const watcher *w) {
    const double ranks = (double)w->s->job.plan.layout.gpus;
    const mf_host_load now = mf_host_load_now();
    const mf_host_load mine = {.all_s = now.all_s,
                               .own_s = w->began.own_s + ranks * (now.own_s - w->began.own_s)};
    return w->began.all_s > 0 ? mf_host_load_of_others(&w->began, &mine) : 0;
}

/* Predicted beside measured, and where that goes on. */
static void print_end(const watcher *w, double mean_s, double predicted_s) {
    const double grown_B = w->steps_printed > 0 ? fmax(w->last.memory_B - w->arena_B, 0.0) : 0.0;
    const double planned_B = w->s->job.plan.prediction.peak_memory_B + grown_B;
    const bool of_driver = w->used_B > 0;
    if (w->steps_printed > 0) {
        fprintf(w->out, "\nmean step %s, %.2f x the predicted %s; memory %s%s, predicted %s%s\n",
                mf_show_time(mean_s).s, mean_s / predicted_s, mf_show_time(predicted_s).s,
                mf_show_bytes(of_driver ? (double)w->used_B : w->last.memory_B).s,
                of_driver ? " by the driver's count" : "", mf_show_bytes(planned_B).s,
                grown_B > 0.0 ? " with the memory that routing took" : "");
        const double others = busy_with_others(w);
        if (others >= MF_HOST_CPU_QUIET) {
            fprintf(w->out,
                    "the machine was busy: other programs did %s of what its cores did meanwhile, "
                    "and steps took longer for it\n",
                    mf_show_percent(others).s);
        }
    }
    if (w->last.skipped > 0) {
        fprintf(w->out, "%s update%s left out: loss or gradient norm not finite\n",
                mf_show_i64((long long)w->last.skipped).s, w->last.skipped > 1 ? "s" : "");
    }
    print_saves(w);
    if (w->s->o.out != NULL) {
        fprintf(w->out,
                "weights in %s/hf, checkpoints in %s/checkpoints; op by op: moefold compare "
                "--run %s\n",
                w->s->o.out, w->s->o.out, w->s->o.out);
    }
}

static mf_status summarise(const watcher *w, const mf_args *a, mf_err *e) {
    double predicted_s = w->s->job.plan.prediction.step_time_s;
    double mean_s = w->timed > 0 ? w->sum_s / (double)w->timed : w->last.step_time_s;
    if (!a->value[MF_OPT_JSON].given) {
        print_end(w, mean_s, predicted_s);
        return MF_OK;
    }
    mf_json_writer j;
    mf_json_writer_init(&j);
    mf_json_write_object(&j, NULL, false);
    mf_json_write_i64(&j, "step", w->last.step);
    mf_json_write_f64(&j, "lm_loss", w->last.lm_loss);
    mf_json_write_f64(&j, "aux_loss", w->last.aux_loss);
    if (w->s->o.exec.z_coef > 0) {
        mf_json_write_f64(&j, "z_loss", w->last.z_loss);
    }
    mf_json_write_f64(&j, "grad_norm", w->last.grad_norm);
    mf_json_write_i64(&j, "skipped", (int64_t)w->last.skipped);
    mf_json_write_f64(&j, "step_time_s", mean_s);
    mf_json_write_f64(&j, "predicted_step_time_s", predicted_s);
    if (w->began.all_s > 0) {
        mf_json_write_f64(&j, "cores_used_by_others", busy_with_others(w));
    }
    mf_json_write_f64(&j, "tokens_per_s", w->last.tokens_per_s);
    mf_json_write_f64(&j, "memory_B", w->last.memory_B);
    mf_json_write_f64(&j, "predicted_memory_B", w->s->job.plan.prediction.peak_memory_B);
    if (w->saves > 0) {
        double mtbf_s = 0.0, interval_s = best_interval_s(w, &mtbf_s);
        mf_json_write_f64(&j, "save_time_s", w->save_sum_s / (double)w->saves);
        mf_json_write_f64(&j, "save_stall_s", w->stall_sum_s / (double)w->saves);
        if (interval_s > 0.0) {
            mf_json_write_f64(&j, "best_save_interval_s", interval_s);
        }
    }
    mf_plan_write_layout(&j, "layout", &w->s->job.plan.layout);
    mf_json_write_string(&j, "out", w->s->o.out);
    mf_json_write_end(&j);
    return mf_output_json(&j, w->cli->out, e);
}

/* What ops took goes to a profile store, when asked for. */
static mf_status record(const watcher *w, const mf_args *a, mf_err *e) {
    char times[4096];
    mf_op_times t = {0};
    int64_t points = 0;
    const char *path = a->value[MF_OPT_RECORD].text;
    if (!a->value[MF_OPT_RECORD].given) {
        return MF_OK;
    }
    snprintf(times, sizeof times, "%s/op_times.json", w->s->o.out);
    if (w->timed == 0 && access(times, F_OK) != 0) { /* resumed at its last step */
        return mf_err_set(e, MF_IO,
                          "--record: the first step of a run is not measured, and this "
                          "one had no other");
    }
    mf_status s = mf_op_times_load(times, &t, e);
    s = s == MF_OK ? mf_compare_record(&w->s->job, &t, w->s->o.out, path, &points, e) : s;
    mf_op_times_clear(&t);
    if (s == MF_OK) {
        fprintf(w->cli->err, "%s: %lld measured points\n", path, LL(points));
    }
    return s;
}

/* --- the command -------------------------------------------------------------------------------
 */

/* As one of the launcher's ranks, or as the only one. */
static mf_status train(const mf_args *a, const mf_cli *cli, mf_train_settings *s, int64_t rank,
                       mf_rank_registry *registry, mf_err *e) {
    watcher w = {.cli = cli, .s = s, .registry = registry};
    mf_err_clear(&w.failed);
    bool alone = false;
    w.out = a->value[MF_OPT_JSON].given ? cli->err : cli->out;
    s->o.started = started;
    s->o.stepped = stepped;
    s->o.saved = saved;
    s->o.warned = warned;
    s->o.lost = lost;
    s->o.user = &w;
    s->o.cancel = cli->cancel;
    if (rank == 0) {
        mf_train_settings_print(w.out, s);
    }
    mf_rank_registry_phase(
        registry, "step 0, communicators"); /* and then the rank watch's, while there is one */
    mf_status status = mf_train(&s->o, &alone, e);
    char phase[40];
    snprintf(phase, sizeof phase, "step %lld, end", LL(s->o.steps));
    mf_rank_registry_phase(registry, phase);
    if ((alone && status == MF_LIBRARY) || status == MF_TRANSIENT) {
        mf_rank_registry_failed(registry);
    }
    if (alone && s->job.plan.layout.gpus > 1) {
        if (e->text[0] != '\0') {
            mf_cli_say(cli, e);
            fflush(NULL);
        } else {
            nanosleep(&(const struct timespec){.tv_sec = 1}, NULL); /* for the one that speaks */
        }
        mf_comm_abort(mf_status_exit_code(status));
    }
    if (w.failed.text[0] != '\0' && status == MF_INTERRUPTED) {
        const mf_err end = *e;
        return mf_err_set(e, w.failed.status, "%s: %s", w.failed.text, end.text);
    }
    status = status == MF_OK && rank == 0 ? summarise(&w, a, e) : status;
    return status == MF_OK && rank == 0 ? record(&w, a, e) : status;
}

/* The ranks printed what went wrong; their exit code is ours. */
static mf_status launch(const mf_args *a, const mf_cli *cli, const mf_train_settings *s,
                        mf_err *e) {
    static const struct {
        int code;
        mf_status status;
    } table[] = {{1, MF_LIBRARY},   {2, MF_INPUT},   {3, MF_INFEASIBLE},   {4, MF_TOLERANCE},
                 {5, MF_TRANSIENT}, {6, MF_LASTING}, {130, MF_INTERRUPTED}};
    mf_refold_job job = {a, s};
    const mf_restart how = {.out = s->o.out,
                            .resumes = a->value[MF_OPT_RESUME].given,
                            .most = s->restarts,
                            .refold = mf_refold,
                            .user = &job};
    int code = 0;
    mf_status status = mf_launch_restarting(cli, &how, s->job.plan.layout.gpus, &code, e);
    for (size_t i = 0; status == MF_OK && i < sizeof table / sizeof table[0]; i++) {
        if (code == table[i].code) {
            return mf_err_set(e, table[i].status, "%s", "");
        }
    }
    return status;
}

/* Rank 0 reports errors that all ranks meet, and ends the job. A rank reports only its own (no
 * memory, a missing library): at once, or when rank 0 has had its time. */
static void leave_to_rank_0(const mf_cli *cli, int64_t rank, mf_err *e) {
    const struct timespec turn = {.tv_nsec = 20 * 1000 * 1000};
    const bool own = e->status == MF_NOMEM || e->status == MF_LIBRARY;
    for (int i = 0; !own && i < 150 && !mf_flag_is_set(cli->cancel); i++) {
        nanosleep(&turn, NULL);
    }
    if (!own && mf_flag_is_set(cli->cancel)) {
        mf_err_set(e, e->status, "%s", "");
        return;
    }
    mf_err_prefix(e, "rank %lld", LL(rank));
}

static mf_status run(const mf_args *a, const mf_cli *cli, mf_err *e) {
    bool launched = mf_comm_launched();
    signal(SIGPIPE, SIG_IGN); /* a reader that goes is an output that fails */
    int64_t rank = 0, size = 1;
    mf_rank_registry *registry = launched ? mf_rank_registry_join() : NULL;
    mf_status status = launched ? mf_comm_start(&rank, &size, e) : MF_OK;
    mf_train_settings *s = malloc(sizeof *s);
    mf_rank_registry_phase(registry, "step 0, settings");
    if (status == MF_OK && s == NULL) {
        status = mf_err_set(e, MF_NOMEM, "out of memory");
    }
    if (status == MF_OK && s != NULL) {
        status = mf_train_settings_load(a, s, e);
        const bool launches = !launched && (s->job.plan.layout.gpus > 1 || s->restarts > 0);
        if (status != MF_OK && rank != 0) {
            leave_to_rank_0(cli, rank, e);
        }
        if (status == MF_OK) {
            status = launches ? launch(a, cli, s, e) : train(a, cli, s, rank, registry, e);
        }
        mf_train_settings_clear(s);
    }
    free(s);
    if (launched) {
        /* Once one rank has ended, its launcher may kill the one that has something to say. */
        mf_cli_say(cli, e);
        mf_comm_stop();
    }
    mf_rank_registry_leave(registry);
    mf_rank_registry_destroy(registry);
    return status;
}

static const mf_option_id options[] = {
    MF_OPT_PLAN,         MF_OPT_MODEL,         MF_OPT_SET,           MF_OPT_STRICT,
    MF_OPT_CLUSTER,      MF_OPT_GPUS,          MF_OPT_GLOBAL_BATCH,  MF_OPT_SEQ,
    MF_OPT_SOFTWARE,     MF_OPT_STORE,         MF_OPT_INIT,          MF_OPT_DATA,
    MF_OPT_SHUFFLE,      MF_OPT_STEPS,         MF_OPT_SEED,          MF_OPT_LR,
    MF_OPT_LR_MIN,       MF_OPT_LR_SCHEDULE,   MF_OPT_WARMUP,        MF_OPT_ADAM_BETA1,
    MF_OPT_ADAM_BETA2,   MF_OPT_ADAM_EPS,      MF_OPT_WEIGHT_DECAY,  MF_OPT_DECAY,
    MF_OPT_CLIP,         MF_OPT_AUX_LOSS,      MF_OPT_AUX_COEF,      MF_OPT_BIAS_RATE,
    MF_OPT_Z_COEF,       MF_OPT_FORCE_BALANCE, MF_OPT_FORCE_ROUTING, MF_OPT_DTYPE,
    MF_OPT_BACKEND,      MF_OPT_MAX_SKIPS,     MF_OPT_SPIKE,         MF_OPT_RERUN,
    MF_OPT_HANG_AFTER,   MF_OPT_ON_FAILURE,    MF_OPT_MAX_RESTARTS,  MF_OPT_SAVE_EVERY,
    MF_OPT_SAVE_MINUTES, MF_OPT_SAVE_WAIT,     MF_OPT_KEEP,          MF_OPT_RESUME,
    MF_OPTS_LAYOUT,      MF_OPT_OUT,           MF_OPT_RECORD,        MF_OPT_JSON,
    MF_OPT_HELP,         MF_OPT_COUNT,
};

const mf_command mf_cmd_train = {
    .name = "train",
    .summary = "run a plan, or a layout given by flags, on GPUs or CPU ranks",
    .usage = {"--plan FILE --data PATH --steps N [--out DIR] [options]",
              "--model NAME --global-batch N --seq N --data PATH --steps N [layout options]"},
    .about = "Runs the step program that simulate plays: on this machine's GPUs where there are "
             "some (and libmoefold_cuda.so is beside the program), else on CPU ranks. There is one "
             "process per rank, started here unless a launcher (mpirun, srun) has done so. A plan "
             "for another number of ranks than run is refused. It prints every setting and the "
             "predicted step, then a line for every step.\nWith --out it writes metrics.jsonl, a "
             "TensorBoard event file, op_times.json for `compare`, routing.csv for `simulate "
             "--routing`, checkpoints that any layout can read, and at the end the weights as a "
             "Hugging Face folder. --record adds what ops took to a profile store. SIGINT, SIGTERM "
             "and SIGHUP save and end with exit code 130; --resume goes on from there: on CPU "
             "ranks of the same layout, and on GPUs with --deterministic, to the bit as if nothing "
             "had happened, else to rounding. docs/training.md has the formats.",
    .example =
        "moefold train --init DIR --data corpus.txt --global-batch 8 --seq 128 --gpus 4 --tp 2 "
        "--ep 4 --steps 100 --out run",
    .options = options,
    .run = run,
};
