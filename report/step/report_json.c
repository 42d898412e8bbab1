/* report_json.c - a predicted step as JSON. */
#include "job/load/job.h"
#include "job/load/unsaid.h"
#include "report/basis/accuracy.h"
#include "report/basis/host_copies_text.h"
#include "report/step/report.h"

#include <math.h>

void mf_report_under_megatron_json(mf_json_writer *w, const mf_under_megatron *m) {
    mf_json_write_object(w, "in_megatron", false);
    mf_json_write_string(w, "software", m->software);
    mf_json_write_f64(w, "correction_factor", m->factor > 0 ? m->factor : (double)NAN);
    mf_json_write_f64(w, "step_time_s", m->why[0] == '\0' ? m->step_time_s : (double)NAN);
    mf_json_write_string(w, "inexpressible", m->why);
    mf_json_write_end(w);
}

static void write_what(mf_json_writer *w, const mf_report *r) {
    mf_model_counts counts;
    mf_model_count(r->model, &counts);
    mf_json_write_object(w, "model", false);
    mf_json_write_string(w, "name", r->model->name);
    mf_json_write_string(w, "family", r->model->family);
    mf_json_write_i64(w, "parameters", counts.total);
    mf_json_write_i64(w, "active_parameters", counts.active);
    mf_json_write_end(w);
    mf_json_write_string(w, "cluster", r->cluster->name);
    mf_json_write_string(w, "gpu", r->cluster->gpu.name);
    mf_json_write_string(w, "software", r->plan->provenance.software);
    mf_json_write_string(w, "routing", r->plan->provenance.routing);
    mf_json_write_string(w, "software_date", r->software->date);
    mf_json_write_string(w, "gpu_measured", r->measured);
    mf_corrections_json(w, r->correction);
    if (r->megatron != NULL) {
        mf_report_under_megatron_json(w, r->megatron);
    }
}

static void write_stages(mf_json_writer *w, const mf_plan_prediction *p) {
    mf_json_write_array(w, "stages", false);
    for (int64_t i = 0; i < p->stages; i++) {
        const mf_plan_stage *s = &p->stage[i];
        mf_json_write_object(w, NULL, true);
        mf_json_write_i64(w, "stage", i);
        mf_json_write_f64(w, "peak_memory_B", s->peak_B);
        mf_json_write_f64(w, "headroom_B", p->usable_B - s->peak_B);
        mf_json_write_f64(w, "host_memory_B", s->host_B);
        mf_plan_write_stage_use(w, s);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

void mf_report_energies_json(mf_json_writer *w, bool carried, const char *gpu) {
    mf_json_write_string(w, "energies_of", carried ? "h200" : gpu);
}

static void write_power(mf_json_writer *w, const mf_step_power *p, const char *gpu) {
    if (p->known) {
        mf_json_write_f64(w, "energy_J_per_gpu", p->energy_J);
        mf_json_write_f64(w, "power_W", p->power_W);
        mf_report_energies_json(w, mf_report_carries_energy(p, gpu), gpu);
        if (p->clock_Hz > 0) {
            mf_json_write_f64(w, "clock_MHz", p->clock_Hz / 1e6);
        }
    }
}

void mf_report_json(mf_json_writer *w, const mf_report *r) {
    const mf_plan_prediction *p = &r->plan->prediction;
    const mf_layout *l = &r->plan->layout;
    const double *peak = r->cluster->gpu.peak_flops;
    write_what(w, r);
    mf_json_write_bool(w, "fits", p->fits);
    mf_json_write_f64(w, "step_time_s", p->step_time_s);
    mf_json_write_f64(w, "step_time_low_s", p->step_time_low_s);
    mf_json_write_f64(w, "step_time_high_s", p->step_time_high_s);
    if (r->unsaid != 0) {
        char words[128];
        mf_unsaid_format(r->unsaid, words, sizeof words);
        mf_json_write_string(w, "unsaid", words);
    }
    mf_json_write_f64(w, "tokens_per_s_per_gpu", p->tokens_per_s_per_gpu);
    mf_json_write_f64(w, "model_tflops_per_gpu", p->model_tflops_per_gpu);
    mf_json_write_string(w, "flops_convention", mf_flops_convention);
    mf_json_write_f64(w, "mfu", p->mfu);
    mf_json_write_f64(w, "mfu_bf16", p->mfu_bf16);
    mf_json_write_f64(w, "peak_tflops", peak[mf_precision_math(l->precision)] / 1e12);
    mf_json_write_f64(w, "peak_bf16_tflops", peak[MF_MATH_BF16] / 1e12);
    write_power(w, &r->power, r->cluster->gpu.name);
    mf_json_write_f64(w, "peak_memory_B", p->peak_memory_B);
    if (r->reported_B > 0) {
        mf_json_write_f64(w, "reported_memory_B", r->reported_B);
    }
    mf_json_write_f64(w, "capacity_B", p->capacity_B);
    mf_json_write_f64(w, "usable_B", p->usable_B);
    mf_json_write_f64(w, "headroom_B", p->usable_B - p->peak_memory_B);
    mf_host_copies_json(w, &r->copies);
    bool overflows;
    mf_json_write_f64(w, "max_routed_load", mf_report_max_load(r, &overflows));
    mf_json_write_bool(w, "tokens_overflow", overflows);
    mf_json_write_object(w, "breakdown_s", false);
    for (int k = 0; k < p->breakdown_count; k++) {
        mf_json_write_f64(w, p->breakdown_s[k].key, p->breakdown_s[k].value);
    }
    mf_json_write_end(w);
    write_stages(w, p);
    mf_accuracy_json(w, r->software, r->cluster->gpu.name, r->model);
    mf_plan_write_layout(w, "layout", l);
}

void mf_report_json_remedies(mf_json_writer *w, const mf_explanation *x) {
    mf_json_write_array(w, "remedies", false);
    for (int i = 0; i < x->remedies; i++) {
        mf_json_write_object(w, NULL, true);
        mf_json_write_string(w, "what", x->remedy[i].what);
        mf_json_write_f64(w, "step_time_s", x->remedy[i].step_time_s);
        mf_json_write_f64(w, "gain", x->remedy[i].gain);
        mf_json_write_string(w, "basis", x->remedy[i].basis);
        mf_json_write_end(w);
    }
    mf_json_write_end(w);
}

void mf_report_json_explanation(mf_json_writer *w, const mf_explanation *x) {
    mf_json_write_object(w, "explanation", false);
    mf_json_write_string(w, "memory", x->memory);
    mf_json_write_string(w, "time", x->time);
    mf_json_write_end(w);
    mf_report_json_remedies(w, x);
}
