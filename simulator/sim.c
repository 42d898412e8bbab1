/* sim.c - one call from program to result: schedule, memory plan, step, rates. */
#include "simulator/sim.h"

#include "simulator/step.h"

#include <stdlib.h>

const char *mf_breakdown_text(mf_breakdown_kind k) {
    static const char *const text[] = {
#define X(name, text) text,
        MF_BREAKDOWN_MAP(X)
#undef X
    };
    return (unsigned)k < MF_BD_COUNT ? text[k] : "?";
}

static mf_math expert_math(mf_precision p) {
    switch (p) {
    case MF_PREC_FP8_TENSOR:
    case MF_PREC_FP8_BLOCK:
    case MF_PREC_MXFP8:
        return MF_MATH_FP8;
    case MF_PREC_NVFP4:
        return MF_MATH_FP4;
    case MF_PREC_FP32:
        return MF_MATH_FP32;
    case MF_PREC_BF16:
    case MF_PREC_COUNT:
        break;
    }
    return MF_MATH_BF16;
}

static void rates(const mf_program *p, mf_sim *s) {
    const mf_layout *l = &p->layout;
    const mf_gpu *gpu = &p->cluster.gpu;
    double tokens = (double)l->gbs * (double)l->seq, gpus = (double)l->gpus;
    double flops = mf_model_flops_per_token(&p->model, l->seq);
    s->tokens_per_s_per_gpu = tokens / s->step_time_s / gpus;
    s->model_tflops_per_gpu = s->tokens_per_s_per_gpu * flops / 1e12;
    s->peak_bf16_flops = gpu->peak_flops[MF_MATH_BF16];
    s->peak_flops = gpu->peak_flops[expert_math(l->precision)];
    s->mfu_bf16 = s->peak_bf16_flops > 0 ? s->model_tflops_per_gpu * 1e12 / s->peak_bf16_flops : 0;
    s->mfu = s->peak_flops > 0 ? s->model_tflops_per_gpu * 1e12 / s->peak_flops : 0;
}

/* Routed rows of the busiest rank at each position. */
static mf_status loads(const mf_program *p, const mf_routing *routing, double **out, mf_err *e) {
    *out = NULL;
    if (routing == NULL || routing->kind == MF_ROUTING_BALANCED || p->model.experts == 0) {
        return MF_OK;
    }
    mf_status status = mf_routing_check(routing, &p->model, e);
    if (status != MF_OK) {
        return status;
    }
    double *load = calloc((size_t)p->assignment.positions, sizeof *load);
    if (load == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    int64_t moe = 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        mf_position_kind kind = mf_position_kind_of(&p->model, i);
        load[i] = 1.0;
        if (kind != MF_POS_LAYER && kind != MF_POS_MTP) {
            continue;
        }
        int class = kind == MF_POS_MTP ? p->model.mtp_class
                                       : p->model.layer_class[mf_position_index(&p->model, i)];
        if (p->model.layer_classes[class].ffn == MF_FFN_MOE) {
            load[i] = mf_routing_max_load(routing, &p->model, p->layout.ep, moe++);
        }
    }
    *out = load;
    return MF_OK;
}

mf_status mf_sim_step(const mf_cost *cost, const mf_program *p, const mf_sim_options *o,
                      mf_sim **out, mf_err *e) {
    static const mf_sim_options defaults;
    o = o ? o : &defaults;
    *out = NULL;
    mf_schedule *schedule = NULL;
    double *load = NULL;
    mf_sim *s = calloc(1, sizeof *s);
    mf_status status = s ? MF_OK : mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    if (status == MF_OK) {
        status = mf_schedule_create(&p->layout, &schedule, e);
    }
    if (status == MF_OK) {
        status = mf_memory_plan(p, schedule, &s->memory, e);
    }
    if (status == MF_OK) {
        status = loads(p, o->routing, &load, e);
    }
    if (status == MF_OK) {
        mf_step_options step = {.load_of_position = load, .cancel = o->cancel};
        status = mf_step_play(cost, p, schedule, &step, s, e);
    }
    if (status == MF_OK) {
        rates(p, s);
        *out = s;
        s = NULL;
    }
    mf_sim_destroy(s);
    mf_schedule_destroy(schedule);
    free(load);
    return status;
}

void mf_sim_destroy(mf_sim *s) {
    if (s == NULL) {
        return;
    }
    mf_memory_destroy(s->memory);
    free(s->stage);
    free(s->sample);
    free(s);
}
