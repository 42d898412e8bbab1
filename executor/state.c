/* state.c - what checkpoints and metrics look at between two steps. */
#include "executor/exec.h"

#include <string.h>

void mf_exec_state_of(mf_exec *x, int i, mf_exec_state *out) {
    const mf_param *q = &x->params.list[i];
    int half = q->expert;
    *out = (mf_exec_state){0};
    float *weight = mf_exec_own_weight(x, i, &out->first, &out->count);
    if (out->count == 0) {
        return;
    }
    int64_t moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type);
    int64_t in_shard = q->offset + out->first - x->owned_first[half];
    out->value[MF_EXEC_WEIGHT] = weight;
    out->value[MF_EXEC_MOMENT1] = x->moments[0][half] + moment_B * in_shard;
    out->value[MF_EXEC_MOMENT2] = x->moments[1][half] + moment_B * in_shard;
    out->dtype[MF_EXEC_WEIGHT] = MF_KERNEL_F32;
    out->dtype[MF_EXEC_MOMENT1] = out->dtype[MF_EXEC_MOMENT2] = x->moment_type;
}

bool mf_exec_state_copied(const mf_exec *x, int i, mf_group_kind *group) {
    bool expert = x->params.list[i].expert;
    *group = expert ? MF_GROUP_EDP : MF_GROUP_DP_CP;
    return (expert ? x->p->layout.expert_zero : x->p->layout.zero) == 0;
}

int64_t mf_exec_steps(const mf_exec *x) {
    return x->step;
}

void mf_exec_set_steps(mf_exec *x, int64_t steps) {
    x->step = steps;
}

mf_status mf_exec_expert_load(mf_exec *x, double *counts, mf_err *e) {
    int64_t experts = x->p->model.experts, positions = x->p->assignment.positions;
    /* Where there is a correction bias, the step has summed over the stage already. */
    bool first = mf_comm_group_rank(x->comm, MF_GROUP_TP_CP_DP) == 0;
    memset(counts, 0, (size_t)(positions * experts) * sizeof *counts);
    for (int64_t i = 0; i < positions; i++) {
        const position_bind *q = &x->positions[i];
        bool summed = q->correction != NULL;
        for (int64_t k = 0; q->load != NULL && (!summed || first) && k < experts; k++) {
            counts[i * experts + k] = (double)q->load[k];
        }
    }
    return mf_comm_all_reduce(x->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_SUM, counts,
                              positions * experts, e);
}
