/* reported_memory.c - the peak that a program reports: what PyTorch's allocator handed out, which
 * knows neither the CUDA context nor NCCL's buffers, and what Megatron holds beside its tensors. */
#include "job/figures/reported_memory.h"

#include <math.h>

enum { MAX_SHAPES = 64 };

/* Transformer Engine adds weight gradients to Megatron's buffer inside the product, and hands
 * autograd a tensor that nobody reads: one of each shape of a layer's weights, in BF16, made once
 * and kept (get_dummy_wgrad of module/base.py). */
static double unread_gradients_B(const mf_program *p, int64_t stage) {
    int64_t seen[MAX_SHAPES][2];
    int shapes = 0;
    double sum_B = 0;
    for (int i = 0; i < p->assignment.positions; i++) {
        const mf_block *b = p->blocks[p->block_of[i]];
        bool layer = mf_position_kind_of(&p->model, i) == MF_POS_LAYER;
        for (int k = 0; k < b->nops && layer && mf_program_stage_of(p, i) == stage; k++) {
            const mf_op *op = &b->ops[k];
            bool product = op->kind == MF_OP_GEMM || op->kind == MF_OP_GROUPED_GEMM;
            bool known = !product || op->pass != MF_PASS_W;
            for (int s = 0; s < shapes && !known; s++) {
                known = seen[s][0] == op->dim[MF_OP_DIM_M] && seen[s][1] == op->dim[MF_OP_DIM_N];
            }
            if (!known && shapes < MAX_SHAPES) {
                seen[shapes][0] = op->dim[MF_OP_DIM_M];
                seen[shapes++][1] = op->dim[MF_OP_DIM_N];
                sum_B += 2.0 * (double)op->dim[MF_OP_DIM_M] * (double)op->dim[MF_OP_DIM_N];
            }
        }
    }
    return sum_B;
}

/* Megatron's own head does the same with a tensor that goes when the gradient was added: it stands
 * while all activations do (LinearWithGradAccumulationAndAsyncCommunication of
 * tensor_parallel/layers.py). */
static double head_gradient_B(const mf_program *p, int64_t stage) {
    if (!mf_program_holds(p, stage, MF_TABLE_HEAD)) {
        return 0;
    }
    return 2.0 * (double)p->model.vocab * (double)p->model.hidden / (double)p->layout.tp;
}

/* Its optimizer on the host has the moments there, and a copy of the FP32 parameters, whose
 * originals stay (HybridDeviceOptimizer: "momentum + variance"). */
static double kept_parameters_B(const mf_program *p, int64_t stage) {
    mf_stage_memory m = mf_param_memory(&p->layout, mf_program_stage_params(p, stage));
    return m.optimizer_host_B * 4.0 / (4.0 + (p->layout.moments_bf16 ? 4.0 : 8.0));
}

mf_status mf_reported_memory(const mf_job *j, const mf_plan *plan, double *out_B, mf_err *e) {
    const mf_plan_prediction *x = &plan->prediction;
    const uint32_t report = j->software.memory_report;
    const bool fsdp = plan->layout.zero == 3;
    const bool lowered = plan == &j->plan && j->program != NULL;
    mf_program *own = NULL;
    *out_B = x->peak_memory_B;
    if (report == 0) {
        return MF_OK;
    }
    mf_status status = lowered ? MF_OK
                               : mf_program_lower(&j->model, &plan->layout, &j->cluster,
                                                  &plan->assignment, &own, e);
    const mf_program *p = lowered ? j->program : own;
    *out_B = 0;
    for (int64_t s = 0; status == MF_OK && s < x->stages; s++) {
        const mf_plan_stage *stage = &x->stage[s];
        double sum_B = stage->peak_B;
        if (report & MF_REPORT_ALLOCATED) { /* what is allocated has no gaps */
            sum_B -= stage->kind_B[MF_MEM_CONTEXT] + stage->kind_B[MF_MEM_COMM] +
                     stage->kind_B[MF_MEM_GAPS];
        }
        sum_B += report & MF_REPORT_HOST_PARAMETERS ? kept_parameters_B(p, s) : 0;
        sum_B += report & MF_REPORT_UNREAD_GRADIENTS && !fsdp ? unread_gradients_B(p, s) : 0;
        sum_B += report & MF_REPORT_HEAD_GRADIENT && !fsdp ? head_gradient_B(p, s) : 0;
        *out_B = fmax(*out_B, sum_B);
    }
    mf_program_destroy(own);
    return status;
}
