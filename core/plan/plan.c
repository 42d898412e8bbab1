/* plan.c - plans as data: fingerprints, checks, and the canonical text. */
#include "core/plan/plan.h"

#include "core/base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mf_plan_init(mf_plan *p) {
    memset(p, 0, sizeof *p);
    mf_layout_init(&p->layout);
}

void mf_plan_clear(mf_plan *p) {
    free(p->prediction.stage);
    memset(p, 0, sizeof *p);
}

/* --- checks ----------------------------------------------------------------------------------- */

mf_status mf_plan_check(const mf_plan *p, const mf_model *m, mf_err *e) {
    mf_model_identity now;
    mf_model_identify(m, &now);
    if (strcmp(now.fingerprint, p->model.fingerprint) != 0) {
        return mf_err_set(e, MF_INPUT,
                          "the plan is for another model: %s with fingerprint %s, got %s with %s",
                          p->model.name, p->model.fingerprint, m->name, now.fingerprint);
    }
    mf_layout l = p->layout;
    mf_status status = mf_layout_resolve(&l, m, e);
    if (status != MF_OK) {
        mf_err_prefix(e, "layout of the plan");
        return status;
    }
    if (l.dp != p->layout.dp || l.edp != p->layout.edp ||
        l.micro_batches != p->layout.micro_batches) {
        return mf_err_set(
            e, MF_INPUT,
            "the plan's DP %" PRId64 ", EDP %" PRId64 ", %" PRId64
            " micro-batches do not follow from its degrees (%" PRId64 ", %" PRId64 ", %" PRId64 ")",
            p->layout.dp, p->layout.edp, p->layout.micro_batches, l.dp, l.edp, l.micro_batches);
    }
    return mf_assignment_check(m, &l, &p->assignment, e);
}

/* --- text ------------------------------------------------------------------------------------- */

static void write_memory(mf_json_writer *w, mf_memory_choice choice) {
    char text[160];
    mf_recompute_format(choice.recompute, text, sizeof text);
    mf_json_write_string(w, "recompute", text);
    mf_offload_format(choice.offload, text, sizeof text);
    mf_json_write_string(w, "offload", text);
}

void mf_plan_write_layout(mf_json_writer *w, const char *key, const mf_layout *l) {
    char overlap[64];
    mf_json_write_object(w, key, false);
    mf_json_write_i64(w, "gpus", l->gpus);
    mf_json_write_i64(w, "tp", l->tp);
    mf_json_write_i64(w, "cp", l->cp);
    mf_json_write_i64(w, "dp", l->dp);
    mf_json_write_i64(w, "pp", l->pp);
    mf_json_write_i64(w, "vpp", l->vpp);
    mf_json_write_i64(w, "ep", l->ep);
    mf_json_write_i64(w, "etp", l->etp);
    mf_json_write_i64(w, "edp", l->edp);
    mf_json_write_i64(w, "micro_batch", l->mbs);
    mf_json_write_i64(w, "global_batch", l->gbs);
    mf_json_write_i64(w, "micro_batches", l->micro_batches);
    mf_json_write_i64(w, "seq", l->seq);
    mf_json_write_string(w, "schedule", mf_schedule_text(l->schedule));
    mf_json_write_string(w, "dispatcher", mf_dispatcher_text(l->dispatcher));
    mf_json_write_string(w, "cp_type", mf_cp_type_text(l->cp_type));
    mf_overlap_format(l->overlap, overlap, sizeof overlap);
    mf_json_write_string(w, "overlap", overlap);
    mf_json_write_i64(w, "zero", l->zero);
    mf_json_write_i64(w, "expert_zero", l->expert_zero);
    mf_json_write_string(w, "precision", mf_precision_text(l->precision));
    mf_json_write_bool(w, "fp8_attention", l->fp8_attention);
    mf_json_write_bool(w, "fp8_primary_weights", l->fp8_primary_weights);
    mf_json_write_string(w, "moments", l->moments_bf16 ? "bf16" : "fp32");
    mf_json_write_string(w, "cuda_graph", mf_graph_text(l->graph));
    mf_json_write_f64(w, "offload_optimizer", l->offload_optimizer);
    write_memory(w, l->memory);
    mf_json_write_f64(w, "token_headroom", mf_layout_asked_headroom(l));
    mf_json_write_f64(w, "reserve", l->reserve);
    if (l->grads_bf16) { /* from here on: only members that are not at their defaults */
        mf_json_write_string(w, "grad_dtype", "bf16");
    }
    if (l->aux_scope != MF_AUX_MICRO_BATCH) {
        mf_json_write_string(w, "aux_scope", mf_aux_scope_text(l->aux_scope));
    }
    if (l->capacity_factor > 0.0) {
        mf_json_write_f64(w, "capacity_factor", l->capacity_factor);
    }
    if (l->pad_to_capacity) {
        mf_json_write_bool(w, "pad_to_capacity", true);
    }
    if (l->deterministic) {
        mf_json_write_bool(w, "deterministic", true);
    }
    if (l->traits != 0) {
        char traits[256];
        mf_traits_format(l->traits, traits, sizeof traits);
        mf_json_write_string(w, "traits", traits);
    }
    mf_json_write_end(w);
}

static bool same_choice(mf_memory_choice a, mf_memory_choice b) {
    return a.recompute == b.recompute && a.offload == b.offload;
}

/* first[] in full; memory choices as runs of equal ones: [from, to) over positions. */
static void write_assignment(mf_json_writer *w, const mf_assignment *a) {
    mf_json_write_object(w, "assignment", false);
    mf_json_write_i64(w, "positions", a->positions);
    mf_json_write_array(w, "first", true);
    for (int v = 0; v <= a->vstages; v++) {
        mf_json_write_i64(w, NULL, a->first[v]);
    }
    mf_json_write_end(w);
    mf_json_write_array(w, "memory", false);
    for (int from = 0, to; from < a->positions; from = to) {
        for (to = from + 1; to < a->positions && same_choice(a->memory[from], a->memory[to]);
             to++) {
        }
        mf_json_write_object(w, NULL, true);
        mf_json_write_i64(w, "from", from);
        mf_json_write_i64(w, "to", to);
        write_memory(w, a->memory[from]);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
    mf_json_write_end(w);
}

void mf_plan_write_stage_use(mf_json_writer *w, const mf_plan_stage *s) {
    mf_json_write_f64(w, "busy_s", s->busy_s);
    mf_json_write_f64(w, "idle_s", s->idle_s);
    mf_json_write_object(w, "memory_B", true);
    for (int k = 0; k < MF_MEM_COUNT; k++) {
        mf_json_write_f64(w, mf_memory_text((mf_memory_kind)k), s->kind_B[k]);
    }
    mf_json_write_end(w);
}

static void write_prediction(mf_json_writer *w, const mf_plan_prediction *p) {
    mf_json_write_object(w, "prediction", false);
    mf_json_write_bool(w, "fits", p->fits);
    mf_json_write_f64(w, "step_time_s", p->step_time_s);
    mf_json_write_f64(w, "step_time_low_s", p->step_time_low_s);
    mf_json_write_f64(w, "step_time_high_s", p->step_time_high_s);
    mf_json_write_f64(w, "tokens_per_s_per_gpu", p->tokens_per_s_per_gpu);
    mf_json_write_f64(w, "model_tflops_per_gpu", p->model_tflops_per_gpu);
    mf_json_write_f64(w, "mfu", p->mfu);
    mf_json_write_f64(w, "mfu_bf16", p->mfu_bf16);
    mf_json_write_f64(w, "peak_memory_B", p->peak_memory_B);
    mf_json_write_f64(w, "capacity_B", p->capacity_B);
    mf_json_write_f64(w, "usable_B", p->usable_B);
    mf_json_write_object(w, "breakdown_s", false);
    for (int i = 0; i < p->breakdown_count; i++) {
        mf_json_write_f64(w, p->breakdown_s[i].key, p->breakdown_s[i].value);
    }
    mf_json_write_end(w);
    mf_json_write_array(w, "stages", false);
    for (int64_t i = 0; i < p->stages; i++) {
        const mf_plan_stage *s = &p->stage[i];
        mf_json_write_object(w, NULL, true);
        mf_json_write_f64(w, "peak_B", s->peak_B);
        mf_json_write_f64(w, "host_B", s->host_B);
        mf_plan_write_stage_use(w, s);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
    mf_json_write_end(w);
}

static void write_provenance(mf_json_writer *w, const mf_plan_provenance *p) {
    mf_json_write_object(w, "provenance", false);
    mf_json_write_string(w, "generator", p->generator);
    mf_json_write_string(w, "cluster", p->cluster);
    mf_json_write_string(w, "cluster_fingerprint", p->cluster_fingerprint);
    mf_json_write_string(w, "software", p->software);
    mf_json_write_string(w, "measurements", p->measurements);
    mf_json_write_string(w, "routing", p->routing);
    if (p->searched) {
        mf_json_write_object(w, "search", false);
        mf_json_write_i64(w, "space", p->space);
        mf_json_write_f64(w, "lower_bound_s", p->lower_bound_s);
        mf_json_write_f64(w, "gap", p->gap);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

/* The overrides of the named model, where there are any. */
static void write_set(mf_json_writer *w, const mf_model_identity *m) {
    char text[MF_MODEL_SET];
    const char *set[MF_MODEL_SETS];
    memcpy(text, m->set, sizeof text);
    const int count = mf_model_split_set(text, set);
    if (count > 0) {
        mf_json_write_array(w, "set", true);
        for (int i = 0; i < count; i++) {
            mf_json_write_string(w, NULL, set[i]);
        }
        mf_json_write_end(w);
    }
}

void mf_plan_write(mf_json_writer *w, const char *key, const mf_plan *p) {
    mf_json_write_object(w, key, false);
    mf_json_write_string(w, "format", MF_PLAN_FORMAT);
    mf_json_write_i64(w, "version", MF_PLAN_VERSION);
    mf_json_write_object(w, "model", false);
    mf_json_write_string(w, "name", p->model.name);
    mf_json_write_string(w, "family", p->model.family);
    mf_json_write_string(w, "fingerprint", p->model.fingerprint);
    mf_json_write_i64(w, "layers", p->model.layers);
    mf_json_write_i64(w, "mtp_layers", p->model.mtp_layers);
    mf_json_write_i64(w, "hidden", p->model.hidden);
    mf_json_write_i64(w, "experts", p->model.experts);
    mf_json_write_i64(w, "parameters", p->model.parameters);
    write_set(w, &p->model);
    mf_json_write_end(w);
    mf_plan_write_layout(w, "layout", &p->layout);
    write_assignment(w, &p->assignment);
    if (p->predicted) {
        write_prediction(w, &p->prediction);
    }
    write_provenance(w, &p->provenance);
    mf_json_write_end(w);
}

mf_status mf_plan_to_json(const mf_plan *p, char **out, size_t *length, mf_err *e) {
    mf_json_writer w;
    mf_json_writer_init(&w);
    mf_plan_write(&w, NULL, p);
    return mf_json_writer_finish(&w, out, length, e);
}

mf_status mf_plan_save(const mf_plan *p, const char *path, mf_err *e) {
    char *text = NULL;
    size_t length = 0;
    mf_status status = mf_plan_to_json(p, &text, &length, e);
    if (status == MF_OK) {
        status = mf_file_save(path, text, length, e);
    }
    free(text);
    return status;
}
