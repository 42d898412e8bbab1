/* sim.c - one call from program to result: schedule, memory plan, step, rates. */
#include "simulator/sim.h"

#include "simulator/step.h"
#include "simulator/trace.h"

#include <stdlib.h>
#include <string.h>

const char *mf_breakdown_text(mf_breakdown_kind k) {
    static const char *const text[] = {
#define X(name, text) text,
        MF_BREAKDOWN_MAP(X)
#undef X
    };
    return (unsigned)k < MF_BD_COUNT ? text[k] : "?";
}

static void rates(const mf_program *p, mf_sim *s) {
    const mf_layout *l = &p->layout;
    const mf_gpu *gpu = &p->cluster.gpu;
    double tokens = (double)l->gbs * (double)l->seq, gpus = (double)l->gpus;
    double flops = mf_model_flops_per_token(&p->model, l->seq);
    s->tokens_per_s_per_gpu = tokens / s->step_time_s / gpus;
    s->model_tflops_per_gpu = s->tokens_per_s_per_gpu * flops / 1e12;
    s->peak_bf16_flops = gpu->peak_flops[MF_MATH_BF16];
    s->peak_flops = gpu->peak_flops[mf_precision_math(l->precision)];
    s->mfu_bf16 = s->peak_bf16_flops > 0 ? s->model_tflops_per_gpu * 1e12 / s->peak_bf16_flops : 0;
    s->mfu = s->peak_flops > 0 ? s->model_tflops_per_gpu * 1e12 / s->peak_flops : 0;
}

/* --- one simulation -----------------------------------------------------------------------------
 */

/* When each event of each stage starts, and the trace that is being drawn. */
typedef struct recorder {
    const mf_schedule *s;
    double **start_s; /* [stages][events]; -1 = not yet */
    double *end_s;    /* [stages] end of the last event */
    mf_trace *trace;  /* NULL = none */
} recorder;

static void record(const mf_block_instance *i, void *user) {
    recorder *k = user;
    if (i->op == NULL && i->rank == 0) {
        double *start_s = &k->start_s[i->stage][i->event];
        *start_s = *start_s < 0 ? i->start_s : *start_s;
        k->end_s[i->stage] = i->end_s;
    }
    if (k->trace != NULL) {
        mf_trace_draw(k->trace, i);
    }
}

static mf_status recorder_init(recorder *k, const mf_schedule *s, mf_err *e) {
    size_t stages = (size_t)s->stages;
    *k = (recorder){.s = s};
    k->start_s = calloc(stages, sizeof *k->start_s);
    k->end_s = calloc(stages, sizeof *k->end_s);
    bool ok = k->start_s != NULL && k->end_s != NULL;
    for (size_t p = 0; p < stages && ok; p++) {
        k->start_s[p] = malloc(((size_t)s->count[p] + 1) * sizeof *k->start_s[p]);
        ok = k->start_s[p] != NULL;
        for (int64_t i = 0; i < s->count[p] && ok; i++) {
            k->start_s[p][i] = -1;
        }
    }
    return ok ? MF_OK : mf_err_set(e, MF_NOMEM, "simulation: out of memory");
}

static void recorder_clear(recorder *k) {
    for (int64_t p = 0; k->start_s != NULL && p < k->s->stages; p++) {
        free(k->start_s[p]);
    }
    free(k->start_s);
    free(k->end_s);
}

/* Bytes that a stage holds when nothing runs. */
static double standing_B(const mf_memory_stage *m) {
    return m->peak_B - m->kind_B[MF_MEM_ACTIVATIONS] - m->kind_B[MF_MEM_HELD] -
           m->kind_B[MF_MEM_WORKSPACE];
}

/* Memory of a stage during each of its events. Gaps of the arrangement count in every event. The
 * caller frees *bytes. */
static mf_status walk(const recorder *k, const mf_program *p, int64_t stage,
                      const mf_memory_stage *m, double **bytes, mf_err *e) {
    *bytes = malloc(((size_t)k->s->count[stage] + 1) * sizeof **bytes);
    if (*bytes == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    mf_status status = mf_memory_walk(p, k->s, stage, *bytes, e);
    for (int64_t i = 0; i < k->s->count[stage]; i++) {
        (*bytes)[i] += m->kind_B[MF_MEM_GAPS];
    }
    return status;
}

static mf_status timeline(const recorder *k, const mf_program *p, mf_sim *out, mf_err *e) {
    int64_t stage = out->memory->peak_stage, n = k->s->count[stage], count = 0;
    double *bytes = NULL;
    mf_status status = walk(k, p, stage, &out->memory->stage[stage], &bytes, e);
    if (status != MF_OK) {
        goto out;
    }
    mf_sim_memory_sample *sample = malloc(((size_t)n + 1) * sizeof *sample);
    if (sample == NULL) {
        status = mf_err_set(e, MF_NOMEM, "simulation: out of memory");
        goto out;
    }
    for (int64_t i = 0; i < n; i++) {
        if (k->start_s[stage][i] >= 0) {
            sample[count++] = (mf_sim_memory_sample){k->start_s[stage][i], bytes[i]};
        }
    }
    sample[count++] =
        (mf_sim_memory_sample){k->end_s[stage], standing_B(&out->memory->stage[stage])};
    out->sample = sample;
    out->samples = count;
out:
    free(bytes);
    return status;
}

static mf_status draw_memory(const recorder *k, const mf_program *p, const mf_memory *m,
                             mf_err *e) {
    mf_status status = MF_OK;
    for (int64_t stage = 0; stage < k->s->stages && status == MF_OK; stage++) {
        double *bytes = NULL;
        status = walk(k, p, stage, &m->stage[stage], &bytes, e);
        if (status == MF_OK) {
            mf_trace_memory(k->trace, stage, k->start_s[stage], bytes, k->s->count[stage]);
        }
        free(bytes);
    }
    return status;
}

/* Energies that were measured on this GPU or on an H200 hold for Hopper; for other GPUs they are
 * estimates from data sheets. */
static bool knows_power(const mf_cost *cost) {
    const mf_power p = mf_cost_power(cost);
    return p.cap_W > p.idle_W &&
           (p.measured || strcmp(mf_cost_cluster(cost)->gpu.arch, "hopper") == 0);
}

static mf_status play(const mf_cost *cost, const mf_program *p, const mf_schedule *s,
                      const mf_sim_options *o, mf_sim *out, mf_err *e) {
    recorder k;
    mf_status status = recorder_init(&k, s, e);
    if (status == MF_OK && o->trace != NULL) {
        int64_t ranks = o->every_rank ? p->layout.gpus / p->layout.pp : 1;
        status = mf_trace_open(o->trace, p, s, ranks, o->trace_ranks, o->trace_ops, &k.trace, e);
        if (status == MF_OK && knows_power(cost)) {
            status = mf_trace_power(k.trace, cost, e);
        }
    }
    if (status == MF_OK) {
        const mf_step_options step = {.every_rank = o->every_rank,
                                      .keep_ops = o->trace != NULL,
                                      .routing = o->routing,
                                      .observe = record,
                                      .user = &k,
                                      .cancel = o->cancel};
        status = mf_step_play(cost, p, s, &step, out, e);
    }
    if (status == MF_OK) {
        status = timeline(&k, p, out, e);
    }
    if (status == MF_OK && k.trace != NULL) {
        double fixed_s = mf_cost_software(cost)->fixed_step_s;
        mf_trace_host(k.trace, out->step_time_s - fixed_s, out->step_time_s);
        status = draw_memory(&k, p, out->memory, e);
    }
    mf_status closed = mf_trace_close(k.trace, status == MF_OK ? e : NULL);
    recorder_clear(&k);
    return status == MF_OK ? closed : status;
}

mf_status mf_sim_step(const mf_cost *cost, const mf_program *p, const mf_sim_options *o,
                      mf_sim **out, mf_err *e) {
    static const mf_sim_options defaults;
    mf_schedule *schedule = NULL;
    mf_sim *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL) {
        return mf_err_set(e, MF_NOMEM, "simulation: out of memory");
    }
    mf_status status = mf_schedule_create(&p->layout, &schedule, e);
    if (status == MF_OK) {
        status = o != NULL && o->sums    ? mf_memory_sums(p, schedule, &s->memory, e)
                 : o != NULL && o->judge ? mf_memory_judge(p, schedule, &s->memory, e)
                                         : mf_memory_plan(p, schedule, &s->memory, e);
    }
    if (status == MF_OK) {
        status = play(cost, p, schedule, o ? o : &defaults, s, e);
    }
    mf_schedule_destroy(schedule);
    if (status != MF_OK) {
        mf_sim_destroy(s);
        return status;
    }
    rates(p, s);
    *out = s;
    return MF_OK;
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
