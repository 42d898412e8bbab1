/* first_gradient.c - which weight gradients the first micro-batch of a step writes instead of
 * adding to them (executor/step/bind.c runs them so). */
#include "core/program/lower.h"

static bool writes(const mf_op *op, int16_t t) {
    for (int k = 0; k < op->nout; k++) {
        if (op->out[k] == t) {
            return true;
        }
    }
    return false;
}

static const mf_tensor *weight_of(const mf_block *b, int16_t gradient) {
    for (int t = 0; t < b->ntensors; t++) {
        if (b->tensors[t].class == MF_TENSOR_WEIGHT && b->tensors[t].grad == gradient) {
            return &b->tensors[t];
        }
    }
    return NULL;
}

/* A tied table is the embedding's and the head's, MTP depths read both. */
static bool is_shared(const mf_model *m, const mf_tensor *weight) {
    return weight->table != MF_TABLE_NONE && (m->tied_embeddings || m->mtp_layers > 0);
}

bool mf_op_makes_gradient(const mf_model *m, const mf_block *b, int i) {
    const mf_op *op = &b->ops[i];
    const bool product = op->kind == MF_OP_GEMM || op->kind == MF_OP_GROUPED_GEMM;
    if (!product || op->pass != MF_PASS_W || op->pieces > 1 || op->nout < 1) {
        return false;
    }
    const int16_t gradient = op->out[0];
    const mf_tensor *weight = weight_of(b, gradient);
    if (weight == NULL || is_shared(m, weight) || b->tensors[gradient].for_w) {
        return false;
    }
    for (int k = b->nforward; k < i; k++) {
        if (writes(&b->ops[k], gradient)) {
            return false;
        }
    }
    return true;
}

int mf_op_gradient_side(const mf_block *b, int i) {
    return b->tensors[b->ops[i].out[0]].part == MF_PART_EXPERT;
}

bool mf_layout_shards_gradients(const mf_layout *l, int side) {
    return side ? l->expert_zero >= 2 && l->edp > 1 : l->zero >= 2 && l->dp * l->cp > 1;
}
