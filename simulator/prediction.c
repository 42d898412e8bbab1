/* prediction.c - a simulated step as the prediction that a plan carries. */
#include "simulator/prediction.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mf_status mf_sim_prediction(const mf_sim *s, mf_plan_prediction *p, mf_err *e) {
    memset(p, 0, sizeof *p);
    p->stage = calloc((size_t)s->stages, sizeof *p->stage);
    if (p->stage == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    p->fits = s->memory->fits;
    p->step_time_s = s->step_time_s;
    p->step_time_low_s = s->low_s;
    p->step_time_high_s = s->high_s;
    p->tokens_per_s_per_gpu = s->tokens_per_s_per_gpu;
    p->model_tflops_per_gpu = s->model_tflops_per_gpu;
    p->mfu = s->mfu;
    p->mfu_bf16 = s->mfu_bf16;
    p->peak_memory_B = s->memory->peak_B;
    p->capacity_B = s->memory->capacity_B;
    p->usable_B = s->memory->usable_B;
    p->breakdown_count = MF_BD_COUNT;
    for (int k = 0; k < MF_BD_COUNT; k++) {
        snprintf(p->breakdown_s[k].key, sizeof p->breakdown_s[k].key, "%s",
                 mf_breakdown_text((mf_breakdown_kind)k));
        p->breakdown_s[k].value = s->breakdown_s[k];
    }
    p->stages = s->stages;
    for (int64_t i = 0; i < s->stages; i++) {
        const mf_memory_stage *m = &s->memory->stage[i];
        p->stage[i].peak_B = m->peak_B;
        p->stage[i].host_B = m->host_B;
        memcpy(p->stage[i].kind_B, m->kind_B, sizeof p->stage[i].kind_B);
        p->stage[i].busy_s = s->stage[i].busy_s;
        p->stage[i].idle_s = s->stage[i].idle_s;
    }
    return MF_OK;
}
