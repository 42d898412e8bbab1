/* job.c - a request or a plan file -> model, cluster, prices, layout -> a simulated step. */
#include "job/load/job.h"

#include "core/base/version.h"
#include "job/load/option_applicability.h"
#include "job/load/prices.h"
#include "job/load/unsaid.h"
#include "job/request/stage_text.h"
#include "planner/space/space.h"
#include "simulator/prediction.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- pieces ----------------------------------------------------------------------------------- */

mf_status mf_job_say_left_out(const mf_job_request *r, const mf_model *m, mf_err *e) {
    if (m->left_out[0] == '\0') {
        return MF_OK;
    }
    if (r->strict) {
        return mf_err_set(e, MF_INFEASIBLE, "%s: left out: %s (--strict)", m->name, m->left_out);
    }
    if (r->notes != NULL) {
        fprintf(r->notes, "note: %s: left out: %s\n", m->name, m->left_out);
    }
    return MF_OK;
}

/* Why the model cannot be planned. */
static mf_status check_model(const mf_job_request *r, const mf_model *m, mf_err *e) {
    const char *unknown = mf_model_not_lowered(m);
    if (unknown != NULL) {
        return mf_err_set(e, MF_INFEASIBLE, "%s: %s can be read and counted, not planned yet",
                          m->name, unknown);
    }
    return mf_job_say_left_out(r, m, e);
}

/* Applies the plan's --set, then the request's, which wins. A model file that already is the plan's
 * model is taken as it is: it may hold the overrides already, or lack what they change. */
static mf_status load_changed(mf_job *j, const char *name, mf_err *e) {
    const mf_job_request *r = &j->asked;
    char planned[MF_MODEL_SET];
    const char *set[2 * MF_MODEL_SETS];
    mf_model_identity is;
    memcpy(planned, j->plan.model.set, sizeof planned);
    size_t count = (size_t)mf_model_split_set(planned, set);
    if (r->model != NULL && r->set_count == 0 && count > 0 &&
        mf_model_load(name, &j->model, NULL) == MF_OK) {
        mf_model_identify(&j->model, &is);
        if (strcmp(is.fingerprint, j->plan.model.fingerprint) == 0) {
            return MF_OK;
        }
    }
    for (size_t i = 0; i < r->set_count && count < sizeof set / sizeof set[0]; i++) {
        set[count++] = r->set[i];
    }
    return mf_model_load_with(name, set, count, &j->model, e);
}

/* The error of a plan that was made for a model with other fields. */
static mf_status name_set(const mf_job *j, mf_status s, mf_err *e) {
    const mf_plan *p = &j->plan;
    if (e == NULL || s != MF_INPUT || strcmp(p->model.name, j->model.name) != 0 ||
        p->model.set[0] != '\0') {
        return s;
    }
    char text[sizeof e->text];
    char layers[64] = "";
    snprintf(text, sizeof text, "%s", e->text);
    if (p->model.layers != j->model.layers) {
        snprintf(layers, sizeof layers, " num_hidden_layers=%lld", (long long)p->model.layers);
    }
    return mf_err_set(e, s,
                      "%.1500s; a plan of this model that was changed by --set needs the same "
                      "--set again%s%s",
                      text, layers[0] != '\0' ? ", here with" : "", layers);
}

/* The model that a plan names: the request says where it is, when it does not ship. */
static mf_status load_plan_model(mf_job *j, mf_err *e) {
    const mf_job_request *r = &j->asked;
    const char *name = r->model != NULL ? r->model : j->plan.model.name;
    mf_status s = load_changed(j, name, e);
    if (s == MF_USAGE && r->model == NULL && r->set_count == 0) {
        return mf_err_set(e, MF_USAGE,
                          "%s: the plan is for the model \"%s\", which does not ship: give its "
                          "config.json with --model",
                          r->plan, name);
    }
    if (s != MF_OK) {
        return mf_request_named(s, "model", e);
    }
    s = mf_plan_check(&j->plan, &j->model, e);
    s = s == MF_OK ? s : name_set(j, s, e);
    return s == MF_OK ? s : mf_err_prefix(e, "%s", r->plan);
}

/* Megatron's "block" recomputation: of each virtual stage the first layers only. */
static void recompute_first(const mf_model *m, int64_t layers, mf_assignment *a) {
    for (int v = 0; v < a->vstages; v++) {
        int64_t left = layers;
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            if (mf_position_kind_of(m, i) == MF_POS_LAYER && left-- <= 0) {
                a->memory[i].recompute = MF_RECOMPUTE_NONE;
            }
        }
    }
}

/* Layers on virtual stages, and what each recomputes. */
static mf_status assign(mf_job *j, mf_err *e) {
    const mf_job_request *r = &j->asked;
    mf_assignment *out = &j->plan.assignment;
    mf_status s = mf_assignment_even(&j->model, &j->plan.layout, out, e);
    if (s == MF_OK && r->stages != NULL) {
        s = mf_request_named(mf_stage_text_apply(&j->model, r->stages, out, e), "pipeline-layout",
                             e);
    }
    if (s == MF_OK && mf_request_gives(r, MF_GIVEN_RECOMPUTE_LAYERS)) {
        recompute_first(&j->model, r->recompute_layers, out);
    }
    return s;
}

/* What an option changed, for every layer; elsewhere layers choose as they did, and stand on the
 * stages that they stood on if these are the same. */
static mf_status assign_changed(mf_job *j, const mf_layout *was, const mf_assignment *from,
                                mf_err *e) {
    const mf_job_request *r = &j->asked;
    const mf_layout *l = &j->plan.layout;
    mf_assignment *out = &j->plan.assignment;
    mf_status s = assign(j, e);
    if (s != MF_OK) {
        return s;
    }
    if (was->pp == l->pp && was->vpp == l->vpp && r->stages == NULL) {
        mf_assignment kept = *out;
        memcpy(kept.first, from->first, sizeof kept.first);
        memcpy(out->first,
               mf_assignment_check(&j->model, l, &kept, NULL) == MF_OK ? kept.first : out->first,
               sizeof out->first);
    }
    for (int i = 0; i < out->positions; i++) {
        if (!mf_request_gives(r, MF_GIVEN_RECOMPUTE)) {
            out->memory[i].recompute = from->memory[i].recompute;
        }
        if (!mf_request_gives(r, MF_GIVEN_OFFLOAD)) {
            out->memory[i].offload = from->memory[i].offload;
        }
    }
    if (mf_request_gives(r, MF_GIVEN_RECOMPUTE_LAYERS)) {
        recompute_first(&j->model, r->recompute_layers, out);
    }
    return mf_assignment_check(&j->model, l, out, e);
}

/* Folds the plan anew with what options say otherwise; what they do not name stays. */
static mf_status change_plan(mf_job *j, mf_err *e) {
    const mf_job_request *r = &j->asked;
    mf_layout *l = &j->plan.layout;
    const mf_assignment from = j->plan.assignment;
    const mf_layout was = *l;
    const mf_schedule_kind schedule = l->schedule;
    mf_status s = r->change(r->change_user, l, e);
    if ((r->pinned & MF_PIN(SCHEDULE)) == 0) { /* VPP tells these two apart */
        l->schedule = schedule;
        if (l->pp == 1 && schedule != MF_SCHED_MERGED && (r->pinned & MF_PIN(VPP)) == 0) {
            l->vpp = 1;
        }
        if (schedule == MF_SCHED_1F1B || schedule == MF_SCHED_INTERLEAVED) {
            l->schedule = l->vpp > 1 ? MF_SCHED_INTERLEAVED : MF_SCHED_1F1B;
        }
    }
    l->dp = l->edp = l->micro_batches = 0; /* they follow */
    s = s == MF_OK ? mf_layout_resolve(l, &j->model, e) : s;
    s = s == MF_OK ? assign_changed(j, &was, &from, e) : s;
    return s == MF_OK ? s : mf_err_prefix(e, "%s, changed", r->plan);
}

static mf_status load_plan(mf_job *j, mf_err *e) {
    const mf_job_request *r = &j->asked;
    if (r->beside_plan != NULL && r->change == NULL) {
        return mf_err_set(
            e, MF_USAGE,
            "--%s cannot stand beside --plan, which fixes the layout: moefold simulate "
            "--plan %s --%s ... --out NEW.json makes a plan with it",
            r->beside_plan, r->plan, r->beside_plan);
    }
    mf_status s = mf_plan_load(r->plan, &j->plan, e);
    j->plan.layout.deterministic |= r->layout.deterministic;
    if (s != MF_OK) {
        return mf_request_named(s, "plan", e);
    }
    j->from_file = true;
    s = load_plan_model(j, e);
    return s == MF_OK && r->beside_plan != NULL ? change_plan(j, e) : s;
}

static mf_status load_names(mf_job *j, mf_err *e) {
    const mf_job_request *r = &j->asked;
    if (r->model == NULL) {
        return mf_err_set(e, MF_USAGE, "--model NAME|FILE is required");
    }
    if (r->cluster == NULL) {
        return mf_err_set(e, MF_USAGE, "--cluster NAME|FILE is required");
    }
    j->plan.layout = r->layout;
    return mf_request_named(mf_model_load_with(r->model, r->set, r->set_count, &j->model, e),
                            r->model_option != NULL ? r->model_option : "model", e);
}

static void set_provenance(mf_job *j, const char *cluster, const char *routing) {
    mf_plan_provenance *p = &j->plan.provenance;
    const char *store = j->asked.store != NULL ? j->asked.store
                        : j->host.known        ? j->host.store
                                               : "shipped";
    const char *slash = strrchr(store, '/');
    memset(p, 0, sizeof *p);
    snprintf(p->generator, sizeof p->generator, "%s", MF_GENERATOR);
    snprintf(p->cluster, sizeof p->cluster, "%s",
             strlen(cluster) < sizeof p->cluster ? cluster : j->cluster.name);
    mf_cluster_fingerprint(&j->cluster, p->cluster_fingerprint);
    snprintf(p->software, sizeof p->software, "%s", j->software.name);
    snprintf(p->measurements, sizeof p->measurements, "%.95s", slash != NULL ? slash + 1 : store);
    snprintf(p->routing, sizeof p->routing, "%s", routing);
    mf_model_identify(&j->model, &j->plan.model);
}

/* Scales of 32 elements (MX) are read by the tensor cores of Blackwell and CDNA4, NVFP4's of 16 by
 * Blackwell's alone; an architecture that is not listed is taken at its peaks. */
static const char *lacks_scales(const mf_gpu *gpu, mf_precision p) {
    static const char *const without_mx[] = {"ampere", "hopper", "cdna3"};
    for (size_t i = 0; i < sizeof without_mx / sizeof without_mx[0]; i++) {
        if (p == MF_PREC_MXFP8 && strcmp(gpu->arch, without_mx[i]) == 0) {
            return "scales of 32 elements (MX); fp8-block takes those of 128";
        }
    }
    return p == MF_PREC_NVFP4 && strcmp(gpu->arch, "cdna4") == 0 ? "scales of 16 elements" : NULL;
}

mf_status mf_job_check_cluster(const mf_layout *l, const mf_cluster *c, mf_err *e) {
    static const char *const math[MF_MATH_COUNT] = {"FP32", "BF16", "FP8", "FP4"};
    const char *scales = lacks_scales(&c->gpu, l->precision);
    mf_math m = mf_precision_math(l->precision);
    if (c->gpu.peak_flops[m] <= 0) {
        return mf_err_set(e, MF_LAYOUT, "precision %s: the %s has no %s arithmetic",
                          mf_precision_text(l->precision), c->gpu.name, math[m]);
    }
    if (l->fp8_attention && c->gpu.peak_flops[MF_MATH_FP8] <= 0) {
        return mf_err_set(e, MF_LAYOUT, "FP8 attention: the %s has no %s arithmetic", c->gpu.name,
                          math[MF_MATH_FP8]);
    }
    if (l->fp8_attention && m == MF_MATH_FP32) { /* MFU has one peak: no product may be above it */
        return mf_err_set(e, MF_LAYOUT, "FP8 attention: precision %s keeps attention in %s",
                          mf_precision_text(l->precision), math[m]);
    }
    if (scales != NULL) {
        return mf_err_set(e, MF_LAYOUT, "precision %s: the %s's matrix products take no %s",
                          mf_precision_text(l->precision), c->gpu.name, scales);
    }
    if (c->max_gpus > 0 && (double)l->gpus > c->max_gpus) {
        return mf_err_set(e, MF_LAYOUT, "%lld GPUs: the cluster %s ends at %.0f",
                          (long long)l->gpus, c->name, c->max_gpus);
    }
    return MF_OK;
}

/* CPU ranks have space for all rows that routing may send them, unless the user has said how much,
 * or a plan for the same ranks has. */
static void set_headroom(mf_job *j, const mf_plan_provenance *from) {
    bool stated = j->from_file ? strcmp(from->cluster_fingerprint,
                                        j->plan.provenance.cluster_fingerprint) == 0
                               : false;
    stated |= mf_request_gives(&j->asked, MF_GIVEN_TOKEN_HEADROOM);
    j->plan.layout.headroom_worst_case = mf_cluster_is_cpu(&j->cluster) && !stated;
}

/* Counts from a file must be of this model (mf_routing_check) and have one row for all MoE layers,
 * or one for each, with or without the MTP depths. */
static mf_status check_routing(const mf_routing *r, const mf_model *m, const char *path,
                               mf_err *e) {
    int64_t layers = 0, depths = 0;
    for (int at = 0; at < mf_model_positions(m); at++) {
        if (mf_position_is_moe(m, at)) {
            layers += mf_position_kind_of(m, at) == MF_POS_LAYER;
            depths += mf_position_kind_of(m, at) == MF_POS_MTP;
        }
    }
    if (r->kind != MF_ROUTING_HISTOGRAM) {
        return MF_OK;
    }
    if (mf_routing_check(r, m, e) != MF_OK) {
        return mf_err_prefix(e, "%s", path);
    }
    if (r->layers != 1 && r->layers != layers && r->layers != layers + depths) {
        return mf_err_set(e, MF_INPUT,
                          "%s: expected 1 or %lld rows, one for each MoE layer of %s, got %lld",
                          path, (long long)layers, m->name, (long long)r->layers);
    }
    return MF_OK;
}

mf_status mf_job_read_routing(mf_job *j, const char *planned, const char **name, mf_err *e) {
    const mf_job_request *r = &j->asked;
    const bool given = r->routing != NULL;
    mf_err why;
    mf_err_clear(&why);
    *name = given ? r->routing : planned[0] != '\0' ? planned : "balanced";
    mf_status s = mf_routing_parse(*name, &j->routing, &why);
    if (s != MF_OK && s != MF_NOMEM && !given) {
        if (r->notes != NULL) {
            fprintf(r->notes,
                    "note: the plan's routing cannot be read, balanced stands for it: %s\n",
                    why.text);
        }
        mf_routing_clear(&j->routing);
        mf_routing_init(&j->routing);
        *name = "balanced";
        return MF_OK;
    }
    if (s == MF_OK && strlen(*name) >= sizeof j->plan.provenance.routing) { /* a plan keeps it */
        s = mf_err_set(&why, MF_INPUT,
                       "routing: expected a path of at most %zu characters, got %zu",
                       sizeof j->plan.provenance.routing - 1, strlen(*name));
    }
    if (s != MF_OK) {
        return mf_request_named(mf_err_set(e, s, "%s", why.text), "routing", e);
    }
    s = check_routing(&j->routing, &j->model, *name, e);
    const int64_t choices = j->model.top_k * j->plan.layout.seq; /* of a sample */
    if (s == MF_OK && choices > 0) {
        j->routing.most = (double)mf_layout_capacity(&j->plan.layout, &j->model) *
                          (double)j->model.experts / (double)choices;
    }
    if (s == MF_OK) {
        mf_routing_tabulate(&j->routing, &j->model);
    }
    return s;
}

/* --- the job ---------------------------------------------------------------------------------- */

void mf_job_init(mf_job *j) {
    memset(j, 0, sizeof *j);
    mf_plan_init(&j->plan);
    mf_routing_init(&j->routing);
}

/* A file that a plan names: from here, or else beside the plan's own file, at `path`. */
static const char *find_file(const mf_job_request *r, const char *name, char *path, size_t size) {
    const char *slash = r->plan != NULL ? strrchr(r->plan, '/') : NULL;
    const bool is_file = strchr(name, '/') != NULL || strchr(name, '.') != NULL;
    if (slash == NULL || !is_file || name[0] == '/' || access(name, R_OK) == 0) {
        return name;
    }
    const int used = snprintf(path, size, "%.*s/%s", (int)(slash - r->plan), r->plan, name);
    return used > 0 && (size_t)used < size && access(path, R_OK) == 0 ? path : name;
}

/* A plan may have been priced with a correction that is not here, or left out. */
static void note_lost_correction(const mf_job *j, const mf_plan_provenance *from) {
    const mf_job_request *r = &j->asked;
    if (strchr(from->software, '@') != NULL && r->software == NULL && !j->correction.used &&
        r->notes != NULL) {
        fprintf(r->notes, "note: the plan's times are of %s, these of %s without that correction\n",
                from->software, j->software.name);
    }
}

mf_status mf_job_read(mf_job *j, const mf_job_request *r, mf_err *e) {
    mf_job_init(j);
    j->asked = *r;
    mf_status s = r->plan != NULL ? load_plan(j, e) : load_names(j, e);
    s = s == MF_OK ? check_model(r, &j->model, e) : s;
    if (s != MF_OK) {
        return s;
    }
    const mf_plan_provenance from = j->plan.provenance;
    char paths[2][4096];
    const char *cluster =
        r->cluster != NULL ? r->cluster : find_file(r, from.cluster, paths[0], sizeof paths[0]);
    const char *routing;
    s = mf_job_read_routing(j, find_file(r, from.routing, paths[1], sizeof paths[1]), &routing, e);
    if (s == MF_OK) {
        s = mf_prices_read(r, cluster, from.software[0] != '\0' ? from.software : NULL, &j->cluster,
                           &j->software, e);
        s = s == MF_OK ? mf_corrections_use(r, &j->cluster, &j->software, &j->correction, e) : s;
        note_lost_correction(j, &from);
        if (s == MF_OK && mf_host_cpu_is_asked(r, cluster) &&
            mf_host_cpu_find(j->plan.layout.gpus, &j->host) && j->host.known) {
            mf_host_cpu_correct(&j->host, &j->software);
        }
        j->plan.layout.software_traits = j->software.traits;
        j->plan.layout.deterministic &= !mf_cluster_is_cpu(&j->cluster); /* CPU ranks always are */
    }
    if (s == MF_OK) {
        set_provenance(j, cluster, routing);
        set_headroom(j, &from);
        if (j->from_file &&
            strcmp(from.cluster_fingerprint, j->plan.provenance.cluster_fingerprint) != 0) {
            snprintf(j->made_for, sizeof j->made_for, "%s", from.cluster);
        }
    }
    return s;
}

mf_status mf_job_price_as(const mf_job *j, const mf_cluster *c, const mf_software *s, mf_cost **out,
                          mf_err *e) {
    mf_job_request r = j->asked;
    r.store = r.store == NULL && j->host.known ? j->host.store : r.store;
    return mf_prices_create(&r, c, s, out, e);
}

mf_status mf_job_price(mf_job *j, mf_err *e) {
    return mf_job_price_as(j, &j->cluster, &j->software, &j->cost, e);
}

mf_status mf_job_load(mf_job *j, const mf_job_request *r, mf_err *e) {
    mf_status s = mf_job_read(j, r, e);
    if (s == MF_OK) {
        mf_unsaid_hold(j);
    }
    return s == MF_OK ? mf_job_price(j, e) : s;
}

mf_status mf_job_read_layout(mf_job *j, const mf_job_request *r, mf_err *e) {
    static const mf_given_option required[] = {MF_GIVEN_GPUS, MF_GIVEN_GLOBAL_BATCH, MF_GIVEN_SEQ};
    mf_status s = mf_job_read(j, r, e);
    s = s == MF_OK ? mf_job_check_options(j, e) : s;
    s = s == MF_OK ? mf_unsaid_fill(j, e) : s;
    if (s != MF_OK || j->from_file) {
        return s == MF_OK ? mf_job_check_cluster(&j->plan.layout, &j->cluster, e) : s;
    }
    for (size_t i = 0; s == MF_OK && i < sizeof required / sizeof required[0]; i++) {
        s = mf_request_require(r, required[i], e);
    }
    if (s == MF_OK) {
        s = mf_layout_resolve(&j->plan.layout, &j->model, e);
    }
    if (s == MF_OK) {
        s = mf_job_check_cluster(&j->plan.layout, &j->cluster, e);
    }
    return s == MF_OK ? assign(j, e) : s;
}

mf_status mf_job_load_layout(mf_job *j, const mf_job_request *r, mf_err *e) {
    mf_status s = mf_job_read_layout(j, r, e);
    return s == MF_OK ? mf_job_price(j, e) : s;
}

void mf_job_forget(mf_job *j) {
    mf_sim_destroy(j->sim);
    mf_program_destroy(j->program);
    free(j->plan.prediction.stage);
    j->sim = NULL;
    j->program = NULL;
    j->plan.prediction.stage = NULL;
    j->plan.predicted = false;
}

/* Widens the band by the other layouts that the request's words could mean, and by what no layout
 * expresses. */
static mf_status widen(mf_job *j, const mf_sim_options *o, mf_err *e) {
    mf_plan_prediction *p = &j->plan.prediction;
    mf_layout other[MF_UNSAID_WAYS];
    mf_status s = MF_OK;
    int others = mf_unsaid_others(j, other);
    for (int i = 0; s == MF_OK && i < others; i++) {
        const mf_sim_options options = {
            .every_rank = o->every_rank, .routing = o->routing, .cancel = o->cancel, .sums = true};
        mf_program *program = NULL;
        mf_sim *sim = NULL;
        s = mf_program_lower(&j->model, &other[i], &j->cluster, &j->plan.assignment, &program, e);
        s = s == MF_OK ? mf_sim_step(j->cost, program, &options, &sim, e) : s;
        if (s == MF_OK) {
            p->step_time_low_s = fmin(p->step_time_low_s, sim->low_s);
            p->step_time_high_s = fmax(p->step_time_high_s, sim->high_s);
        }
        mf_sim_destroy(sim);
        mf_program_destroy(program);
    }
    p->step_time_low_s *= 1 - mf_unsaid_widening(j);
    p->step_time_high_s *= 1 + mf_unsaid_widening(j);
    return s;
}

mf_status mf_job_simulate(mf_job *j, const mf_sim_options *o, mf_err *e) {
    mf_sim_options options = *o;
    options.routing = &j->routing;
    mf_job_forget(j);
    mf_status s = mf_program_lower(&j->model, &j->plan.layout, &j->cluster, &j->plan.assignment,
                                   &j->program, e);
    if (s == MF_OK) {
        s = mf_sim_step(j->cost, j->program, &options, &j->sim, e);
    }
    if (s == MF_OK) {
        s = mf_sim_prediction(j->sim, &j->plan.prediction, e);
    }
    if (s == MF_OK) {
        s = widen(j, &options, e);
    }
    j->plan.predicted = s == MF_OK;
    return s;
}

mf_status mf_job_under_megatron(const mf_job *j, const mf_plan *p, mf_under_megatron *out,
                                mf_err *e) {
    mf_store *store = NULL;
    mf_cost *cost = NULL;
    int64_t rows, damaged;
    mf_status s = mf_prices_open_store(j->asked.store, &store, &rows, &damaged, e);
    if (s == MF_OK) {
        s = mf_price_under_megatron(&j->asked, &j->model, &j->cluster, p, &j->routing, store, &cost,
                                    out, e);
    }
    mf_cost_destroy(cost);
    mf_store_close(store);
    return s;
}

void mf_job_clear(mf_job *j) {
    mf_job_forget(j);
    if (!j->borrowed) {
        mf_cost_destroy(j->cost);
    }
    mf_routing_clear(&j->routing);
    mf_plan_clear(&j->plan);
    j->cost = NULL;
}
