/* train_settings.c - options of `moefold train` -> a job and what the executor is to do with it. */
#include "cli/train_settings.h"
#include "cli/args_request.h"
#include "cli/host_measure.h"

#include "executor/comm/comm.h"
#include "executor/device/gpus_here.h"
#include "job/kept/host_cpu.h"
#include "job/load/prices.h"
#include "report/step/report.h"
#include "report/text/show.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LL(x) ((long long)(x))

/* --- words -------------------------------------------------------------------------------------
 */

/* Index of an option's word in its list of words; `absent` when it was not given. */
static mf_status word_of(const mf_args *a, mf_option_id id, int absent, int *out, mf_err *e) {
    const mf_option *o = mf_option_get(id);
    const char *text = a->value[id].text;
    *out = absent;
    if (!a->value[id].given) {
        return MF_OK;
    }
    int index = 0;
    for (const char *at = o->words; *at == ' '; index++) {
        size_t length = strcspn(++at, " ");
        if (strlen(text) == length && memcmp(text, at, length) == 0) {
            *out = index;
            return MF_OK;
        }
        at += length;
    }
    return mf_err_set(e, MF_USAGE, "--%s: unknown word \"%s\": expected one of%s", o->name, text,
                      o->words);
}

static double real_of(const mf_args *a, mf_option_id id, double absent) {
    return a->value[id].given ? a->value[id].f : absent;
}

static int64_t whole_of(const mf_args *a, mf_option_id id, int64_t absent) {
    return a->value[id].given ? a->value[id].i : absent;
}

/* --- model, layout, machine --------------------------------------------------------------------
 */

static mf_status write_config(mf_train_settings *s, mf_err *e) {
    const mf_job_request *r = &s->job.asked;
    const char *name = r->model != NULL ? r->model : s->job.plan.model.name;
    char text[MF_MODEL_SET];
    const char *set[MF_MODEL_SETS];
    size_t length;
    memcpy(text, s->job.model.set, sizeof text); /* a plan's own among them */
    const size_t kept = (size_t)mf_model_split_set(text, set);
    const bool all = kept > 0 || r->set_count == 0;
    mf_status status = mf_model_config_text(name, all ? set : r->set, all ? kept : r->set_count,
                                            &s->config, &length, e);
    s->o.config = s->config;
    return status;
}

/* Does the run go to GPUs? By --backend; without it where there are GPUs, unless the cluster is one
 * of CPU ranks. */
static mf_status choose_backend(const mf_args *a, mf_train_settings *s, mf_err *e) {
    int backend;
    mf_err why = {0};
    mf_status status = word_of(a, MF_OPT_BACKEND, -1, &backend, e);
    bool cpu_asked =
        a->value[MF_OPT_CLUSTER].given && strcmp(a->value[MF_OPT_CLUSTER].text, "cpu") == 0;
    if (status != MF_OK || backend == 0 || (backend < 0 && cpu_asked)) {
        return status;
    }
    int gpus = mf_gpus_here(s->gpu, sizeof s->gpu, &why);
    if (backend == 1 && gpus == 0) {
        return mf_err_set(e, MF_USAGE, "--backend cuda: %s", why.text);
    }
    s->o.cuda = gpus > 0;
    if (gpus == 0 && mf_gpus_have_driver()) {
        snprintf(s->unused, sizeof s->unused, "%.300s", why.text);
    }
    return MF_OK;
}

/* What the options ask for; the model is that of --init and the cluster this machine where neither
 * is named, and one rank trains. */
static mf_status make_request(const mf_args *a, mf_train_settings *s, mf_job_request *r,
                              mf_err *e) {
    mf_status status = mf_args_request(a, r, e);
    s->detected = r->cluster == NULL && r->plan == NULL;
    r->model = r->model != NULL ? r->model : mf_args_text(a, MF_OPT_INIT, NULL);
    const char *here = s->o.cuda ? mf_cluster_of_gpu(s->gpu) : "cpu";
    if (status == MF_OK && s->detected && here == NULL) {
        return mf_err_set(
            e, MF_USAGE,
            "%s: no shipped cluster has this GPU: --cluster FILE describes it, --backend cpu "
            "trains on CPU ranks",
            s->gpu);
    }
    r->cluster = s->detected ? here : r->cluster;
    if (r->plan == NULL && !mf_request_gives(r, MF_GIVEN_GPUS)) {
        r->layout.gpus = 1;
        r->given |= 1u << MF_GIVEN_GPUS;
    }
    return status;
}

static mf_status load_job(const mf_args *given, mf_train_settings *s, mf_err *e) {
    mf_job_request request;
    int dtype;
    mf_status status = choose_backend(given, s, e);
    status = status == MF_OK ? make_request(given, s, &request, e) : status;
    if (status != MF_OK) {
        return status;
    }
    /* whoever starts ranks has measured, and says so */
    status = s->o.cuda || mf_comm_launched()
                 ? mf_job_load_layout(&s->job, &request, e)
                 : mf_host_load_job(&s->job, &request, mf_job_load_layout, given->notes, e);
    if (status == MF_OK && (s->job.plan.layout.traits & ~(unsigned)MF_TRAITS_OWN) != 0) {
        return mf_err_set(e, MF_LAYOUT,
                          "traits are of other programs: moefold's own knows act_pass, loss_pass "
                          "and general_attention alone");
    }
    s->job.plan.layout.software_traits = 0; /* whoever it was planned for, moefold runs it */
    status = status == MF_OK ? word_of(given, MF_OPT_DTYPE, -1, &dtype, e) : status;
    if (status != MF_OK) {
        return status;
    }
    if (dtype >= 0 && given->value[MF_OPT_PRECISION].given) {
        return mf_err_set(e, MF_USAGE, "--dtype and --precision exclude each other");
    }
    bool plain = !s->job.from_file && !given->value[MF_OPT_PRECISION].given;
    if (dtype >= 0 || plain) {
        bool bf16 = dtype == 1 || (dtype < 0 && s->o.cuda);
        s->job.plan.layout.precision = bf16 ? MF_PREC_BF16 : MF_PREC_FP32;
    }
    if (s->detected && !s->o.cuda) {
        mf_host_cpu_memory(&s->job.cluster, s->job.plan.layout.gpus);
    }
    bool cpu = mf_cluster_is_cpu(&s->job.cluster);
    if (cpu && given->value[MF_OPT_BACKEND].given && s->o.cuda) {
        return mf_err_set(e, MF_USAGE, "--backend cuda: %s is a cluster of CPU ranks",
                          s->job.cluster.name);
    }
    s->o.cuda = s->o.cuda && !cpu;
    if (!cpu && !s->o.cuda) {
        return mf_err_set(e, MF_USAGE,
                          "%s is a cluster of GPUs, and none is used here%s%s: with --cluster cpu "
                          "CPU ranks try the %s out",
                          s->job.cluster.name, s->unused[0] != '\0' ? "; " : "", s->unused,
                          s->job.from_file ? "plan" : "layout");
    }
    return write_config(s, e);
}

/* --- optimizer, data, run ----------------------------------------------------------------------
 */

/* Loads of the experts of each position by the job's routing, which its prediction has as well. */
static mf_status force_routing(mf_train_settings *s, mf_err *e) {
    const mf_model *m = &s->job.model;
    const mf_routing *r = &s->job.routing;
    const int positions = mf_model_positions(m);
    int64_t layer = 0;
    s->o.exec.force_balance = r->kind == MF_ROUTING_BALANCED;
    if (s->o.exec.force_balance) {
        return MF_OK;
    }
    s->forced = calloc((size_t)(positions * m->experts), sizeof *s->forced);
    if (s->forced == NULL) {
        return mf_err_set(e, MF_NOMEM, "train: out of memory");
    }
    for (int at = 0; at < positions; at++) {
        if (mf_position_is_moe(m, at)) {
            mf_routing_loads(r, m, m->experts, layer++, s->forced + at * m->experts);
        }
    }
    s->o.exec.forced = s->forced;
    return MF_OK;
}

/* Options about what this model does not have. */
static mf_status check_model(const mf_args *a, const mf_model *m, mf_err *e) {
    static const mf_option_id of_experts[] = {MF_OPT_AUX_LOSS,      MF_OPT_AUX_COEF,
                                              MF_OPT_Z_COEF,        MF_OPT_BIAS_RATE,
                                              MF_OPT_FORCE_BALANCE, MF_OPT_FORCE_ROUTING};
    for (size_t i = 0; i < sizeof of_experts / sizeof of_experts[0]; i++) {
        const mf_value *v = &a->value[of_experts[i]];
        const bool none = of_experts[i] == MF_OPT_AUX_LOSS && v->given && !strcmp(v->text, "none");
        if (v->given && !none && m->experts == 0) { /* to have none is no mistake */
            return mf_err_set(e, MF_USAGE, "--%s: %s has no experts",
                              mf_option_get(of_experts[i])->name, m->name);
        }
    }
    if (a->value[MF_OPT_BIAS_RATE].given && !m->correction_bias) {
        return mf_err_set(e, MF_USAGE, "--bias-rate: the routers of %s have no correction bias",
                          m->name);
    }
    return MF_OK;
}

static mf_status fill_loss(const mf_args *a, mf_train_settings *s, mf_err *e) {
    static const mf_aux_scope scopes[] = {MF_AUX_MICRO_BATCH, MF_AUX_MICRO_BATCH, MF_AUX_SEQUENCE,
                                          MF_AUX_GLOBAL};
    const mf_model *m = &s->job.model;
    int scope;
    double coef = real_of(a, MF_OPT_AUX_COEF, m->aux_loss_coef);
    mf_status status = word_of(a, MF_OPT_AUX_LOSS, coef > 0.0 ? 1 : 0, &scope, e);
    status = status == MF_OK ? check_model(a, m, e) : status;
    if (status != MF_OK) {
        return status;
    }
    if (scope > 0 && !(coef > 0.0)) {
        return mf_err_set(e, MF_USAGE, "--aux-loss needs --aux-coef: %s says no coefficient",
                          m->name);
    }
    if (scope == 0 && coef > 0.0 && a->value[MF_OPT_AUX_COEF].given) {
        return mf_err_set(e, MF_USAGE, "--aux-coef: there is no loss with --aux-loss none");
    }
    if (a->value[MF_OPT_AUX_LOSS].given) {
        s->job.plan.layout.aux_scope = scopes[scope];
    }
    s->o.exec.aux_coef = m->experts > 0 && scope > 0 ? coef : 0.0;
    s->o.exec.z_coef = real_of(a, MF_OPT_Z_COEF, 0.0);
    s->o.exec.force_balance = a->value[MF_OPT_FORCE_BALANCE].given;
    if (a->value[MF_OPT_FORCE_BALANCE].given && a->value[MF_OPT_FORCE_ROUTING].given) {
        return mf_err_set(e, MF_USAGE, "--force-balance is --force-routing balanced: give one");
    }
    if (a->value[MF_OPT_FORCE_ROUTING].given) {
        const mf_status forced = force_routing(s, e);
        if (forced != MF_OK) {
            return forced;
        }
    }
    s->o.exec.bias_rate = m->correction_bias ? real_of(a, MF_OPT_BIAS_RATE, 0.001) : 0.0;
    return MF_OK;
}

/* What would keep --record from its measurements after the run is found before it. */
static mf_status check_record(const mf_args *a, mf_err *e) {
    const char *path = a->value[MF_OPT_RECORD].text;
    mf_store *store = NULL;
    int64_t rows = 0, damaged = 0;
    if (!a->value[MF_OPT_RECORD].given) {
        return MF_OK;
    }
    if (a->value[MF_OPT_STEPS].i < 2) {
        return mf_err_set(e, MF_USAGE,
                          "--record needs 2 steps at least: the first of a run is not "
                          "measured");
    }
    mf_status s =
        access(path, F_OK) == 0 ? mf_prices_open_store(path, &store, &rows, &damaged, e) : MF_OK;
    mf_store_close(store);
    return s;
}

/* What a lost rank leads to. */
static mf_status fill_restarts(const mf_args *a, mf_train_settings *s, mf_err *e) {
    int restarts = 0;
    mf_status status = word_of(a, MF_OPT_ON_FAILURE, 0, &restarts, e);
    if (status == MF_OK && restarts == 0 && a->value[MF_OPT_MAX_RESTARTS].given) {
        return mf_err_set(e, MF_USAGE, "--max-restarts needs --on-failure restart");
    }
    if (status == MF_OK && restarts != 0 && !a->value[MF_OPT_OUT].given) {
        return mf_err_set(e, MF_USAGE,
                          "--on-failure restart needs --out, whose checkpoints it goes on from");
    }
    s->restarts = restarts != 0 ? whole_of(a, MF_OPT_MAX_RESTARTS, 3) : 0;
    return status;
}

static mf_status fill_options(const mf_args *a, mf_train_settings *s, mf_err *e) {
    mf_train_options *o = &s->o;
    int shuffle, schedule, decay;
    mf_status status = word_of(a, MF_OPT_SHUFFLE, 0, &shuffle, e);
    status = status == MF_OK ? word_of(a, MF_OPT_LR_SCHEDULE, MF_LR_COSINE, &schedule, e) : status;
    status = status == MF_OK ? word_of(a, MF_OPT_DECAY, 0, &decay, e) : status;
    status = status == MF_OK ? fill_loss(a, s, e) : status;
    status = status == MF_OK ? check_record(a, e) : status;
    status = status == MF_OK ? fill_restarts(a, s, e) : status;
    if (status != MF_OK) {
        return status;
    }
    o->exec.graph = s->job.plan.layout.graph == MF_GRAPH_STEP;
    o->model = &s->job.model;
    o->cluster = &s->job.cluster;
    o->layout = &s->job.plan.layout;
    o->assignment = &s->job.plan.assignment;
    o->init = a->value[MF_OPT_INIT].text;
    o->data = a->value[MF_OPT_DATA].text;
    o->shuffle = shuffle == 0;
    o->seed = (uint64_t)whole_of(a, MF_OPT_SEED, 1);
    o->steps = a->value[MF_OPT_STEPS].i;
    o->lr = real_of(a, MF_OPT_LR, o->lr);
    o->lr_min = real_of(a, MF_OPT_LR_MIN, o->lr / 10);
    o->lr_schedule = (mf_lr_schedule)schedule;
    o->warmup = whole_of(a, MF_OPT_WARMUP, 0);
    if (o->lr_schedule == MF_LR_CONSTANT && a->value[MF_OPT_LR_MIN].given) {
        return mf_err_set(e, MF_USAGE, "--lr-min: --lr-schedule constant keeps --lr to the end");
    }
    if (o->lr_min > o->lr) {
        return mf_err_set(e, MF_USAGE, "--lr-min: the rate falls from --lr %g: %g is above it",
                          o->lr, o->lr_min);
    }
    o->exec.beta1 = real_of(a, MF_OPT_ADAM_BETA1, o->exec.beta1);
    o->exec.beta2 = real_of(a, MF_OPT_ADAM_BETA2, o->exec.beta2);
    o->exec.eps = real_of(a, MF_OPT_ADAM_EPS, o->exec.eps);
    o->exec.weight_decay = real_of(a, MF_OPT_WEIGHT_DECAY, o->exec.weight_decay);
    o->exec.decay_matrices_only = decay == 1;
    o->exec.clip = real_of(a, MF_OPT_CLIP, o->exec.clip);
    o->out = a->value[MF_OPT_OUT].text;
    o->resume = a->value[MF_OPT_RESUME].given;
    o->max_skips = whole_of(a, MF_OPT_MAX_SKIPS, o->max_skips);
    o->spike = real_of(a, MF_OPT_SPIKE, o->spike);
    o->rerun = a->value[MF_OPT_RERUN].given;
    o->deterministic = s->job.plan.layout.deterministic;
    o->hang_s = real_of(a, MF_OPT_HANG_AFTER, o->hang_s);
    o->save_every = whole_of(a, MF_OPT_SAVE_EVERY, 0);
    o->save_s = 60.0 * real_of(a, MF_OPT_SAVE_MINUTES, 0.0);
    o->save_waits = a->value[MF_OPT_SAVE_WAIT].given;
    o->keep = (int)whole_of(a, MF_OPT_KEEP, o->keep);
    bool record = a->value[MF_OPT_RECORD].given;
    if (o->out == NULL && (o->resume || o->save_every > 0 || o->save_s > 0 || record)) {
        return mf_err_set(e, MF_USAGE, "--%s needs --out",
                          o->resume           ? "resume"
                          : record            ? "record"
                          : o->save_every > 0 ? "save-every"
                                              : "save-minutes");
    }
    return MF_OK;
}

mf_status mf_train_settings_load(const mf_args *a, mf_train_settings *s, mf_err *e) {
    memset(s, 0, sizeof *s);
    mf_train_options_init(&s->o);
    mf_status status = mf_args_require(a, MF_OPT_DATA, e);
    status = status == MF_OK ? mf_args_require(a, MF_OPT_STEPS, e) : status;
    status = status == MF_OK ? load_job(a, s, e) : status;
    status = status == MF_OK ? mf_model_check_executed(&s->job.model, e) : status;
    status = status == MF_OK ? fill_options(a, s, e) : status;
    if (status == MF_OK) {
        const mf_sim_options sim = {0};
        s->job.model.aux_loss_coef = s->o.exec.aux_coef; /* none: nothing is counted */
        status = mf_job_simulate(&s->job, &sim, e);
    }
    const mf_plan_prediction *p = &s->job.plan.prediction;
    if (status == MF_OK && !p->fits) {
        return mf_err_set(e, MF_INFEASIBLE, "does not fit: a rank needs %s of %s usable",
                          mf_show_bytes(p->peak_memory_B).s, mf_show_bytes(p->usable_B).s);
    }
    return status;
}

void mf_train_settings_clear(mf_train_settings *s) {
    free(s->config);
    free(s->forced);
    mf_job_clear(&s->job);
}

/* --- for people --------------------------------------------------------------------------------
 */

static void print_optimizer(FILE *out, const mf_train_options *o) {
    static const char *const schedule[] = {"constant", "linear", "cosine", "wsd"};
    fprintf(out, "optimizer   AdamW, betas %g and %g, epsilon %g, decay %g of %s, clip %g\n",
            o->exec.beta1, o->exec.beta2, o->exec.eps, o->exec.weight_decay,
            o->exec.decay_matrices_only ? "matrices" : "all", o->exec.clip);
    fprintf(out, "rate        %g, %s", o->lr, schedule[o->lr_schedule]);
    if (o->lr_schedule != MF_LR_CONSTANT && o->warmup < o->steps) {
        fprintf(out, " to %g in step %lld", o->lr_min, LL(o->steps));
    }
    if (o->warmup > 0) {
        fprintf(out, ", after a warm-up of %lld step%s", LL(o->warmup), o->warmup == 1 ? "" : "s");
    } else {
        fputs(", no warm-up", out);
    }
    putc('\n', out);
    if (o->model->experts > 0) {
        fprintf(out, "balance     ");
        if (o->exec.aux_coef > 0) {
            fprintf(out, "auxiliary loss (%s), coefficient %g",
                    mf_aux_scope_text(o->layout->aux_scope), o->exec.aux_coef);
        } else {
            fputs("no auxiliary loss", out);
        }
        if (o->exec.bias_rate > 0) {
            fprintf(out, "; correction bias by %g", o->exec.bias_rate);
        }
        if (o->exec.z_coef > 0) {
            fprintf(out, "; z-loss, coefficient %g", o->exec.z_coef);
        }
        if (o->layout->capacity_factor > 0) {
            fprintf(out, "; capacity factor %g%s", o->layout->capacity_factor,
                    o->layout->pad_to_capacity ? ", padded" : "");
        }
        if (o->exec.force_balance) {
            fputs("; forced balance", out);
        }
        if (o->exec.forced != NULL) {
            fputs("; forced, uneven routing", out);
        }
        putc('\n', out);
    }
}

/* What each virtual stage holds, in which types, and the memory that is left for rows. */
static void print_ranks(FILE *out, const mf_train_settings *s) {
    const mf_layout *l = &s->job.plan.layout;
    const mf_assignment *a = &s->job.plan.assignment;
    if (s->o.cuda) {
        fprintf(out, "ranks       %lld on %s\n", LL(l->gpus), s->gpu);
    } else {
        fprintf(out, "ranks       %lld CPU process%s%s\n", LL(l->gpus), l->gpus == 1 ? "" : "es",
                s->detected ? ", memory as this machine has it" : "");
        if (s->detected && s->unused[0] != '\0') {
            fprintf(out, "            its GPUs are not used: %s\n", s->unused);
        }
    }
    if (a->vstages > 1) {
        fprintf(out, "stages     ");
        for (int v = 0; v < a->vstages; v++) {
            fprintf(out, " %d", a->first[v + 1] - a->first[v]);
        }
        fprintf(out, " of %d positions (embedding, layers%s, head)\n", a->positions,
                s->job.model.mtp_layers > 0 ? ", MTP depths" : "");
    }
    fprintf(out, "types       %s ops, fp32 %sweights, fp32 gradients, %s moments\n",
            mf_precision_text(l->precision), l->precision == MF_PREC_FP32 ? "" : "master ",
            l->moments_bf16 ? "bf16" : "fp32");
    fputs("headroom    ", out);
    if (s->job.model.experts > 0) {
        fprintf(out, "%g x the balanced number of routed rows, ", mf_layout_token_headroom(l));
    }
    fprintf(out, "%s of memory withheld\n", mf_show_percent(l->reserve).s);
}

static void print_run(FILE *out, const mf_train_options *o) {
    unsigned long long seed = o->seed;
    fprintf(out, "weights     ");
    if (o->init != NULL) {
        fprintf(out, "from %s\n", o->init);
    } else {
        fprintf(out, "from seed %llu\n", seed);
    }
    fprintf(out, "data        %s, ", o->data);
    if (o->shuffle) {
        fprintf(out, "shuffled by seed %llu\n", seed);
    } else {
        fputs("in order\n", out);
    }
    if (o->out == NULL) {
        fputs("out         nothing is written (no --out)\n", out);
        return;
    }
    fprintf(out, "out         %s, saved ", o->out);
    if (o->save_every > 0) {
        fprintf(out, "every %lld steps and ", LL(o->save_every));
    }
    if (o->save_s > 0) {
        fprintf(out, "every %g minutes and ", o->save_s / 60.0);
    }
    fputs(o->save_waits ? "at the end, training waits, " : "at the end, ", out);
    if (o->keep > 0) {
        fprintf(out, "newest %d kept", o->keep);
    } else {
        fputs("all kept", out);
    }
    fputs(o->resume ? ", resumed\n" : "\n", out);
}

void mf_train_settings_print(FILE *out, const mf_train_settings *s) {
    const mf_report r = mf_report_of(&s->job, &s->job.plan);
    mf_report_print_job(out, &r);
    print_ranks(out, s);
    print_run(out, &s->o);
    print_optimizer(out, &s->o);
    const mf_plan_prediction *p = &s->job.plan.prediction;
    fprintf(out, "predicted   step %s (%s to %s), ", mf_show_time(p->step_time_s).s,
            mf_show_time(p->step_time_low_s).s, mf_show_time(p->step_time_high_s).s);
    const double tokens = (double)(s->o.layout->gbs * s->o.layout->seq);
    fprintf(out, "%s tokens/s, memory %s of %s usable\n",
            mf_show_i64((long long)(tokens / p->step_time_s)).s, mf_show_bytes(p->peak_memory_B).s,
            mf_show_bytes(p->usable_B).s);
}
