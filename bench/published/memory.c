/* memory.c - the peak that a row's program would report: what PyTorch's allocator handed out, which
 * knows neither the CUDA context nor NCCL's buffers, and what Megatron holds beside its tensors. */
#include "bench/published/predict.h"

#include <string.h>

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

double pub_reported_memory_B(const mf_software *software, const mf_program *p, const mf_memory *m) {
    bool megatron = strncmp(software->name, "megatron", strlen("megatron")) == 0;
    bool fsdp = p->layout.zero == 3;
    double most_B = 0;
    for (int64_t s = 0; s < m->stages; s++) {
        const mf_memory_stage *stage = &m->stage[s];
        double own_B = stage->peak_B - stage->kind_B[MF_MEM_CONTEXT] - stage->kind_B[MF_MEM_COMM] -
                       stage->kind_B[MF_MEM_GAPS]; /* what is allocated has none */
        own_B += megatron ? kept_parameters_B(p, s) : 0;
        own_B += megatron && !fsdp ? unread_gradients_B(p, s) + head_gradient_B(p, s) : 0;
        most_B = own_B > most_B ? own_B : most_B;
    }
    return most_B;
}
