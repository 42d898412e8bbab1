/* create.c - a rank's state: what stands for the whole run, and weights from a checkpoint. */
#include "executor/exec.h"

#include "executor/rope.h"
#include "kernels/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void mf_exec_options_init(mf_exec_options *o) {
    *o = (mf_exec_options){.beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .clip = 1.0,
                           .mtp_coef = 0.3};
}

/* --- what stands for the whole run --------------------------------------------------------------
 */

/* Positions of the tokens that CP rank c holds of one sample: chunks c and 2 CP - 1 - c. */
static int32_t zigzag(const mf_layout *l, int64_t c, int64_t i) {
    int64_t half = l->seq / (2 * l->cp);
    if (l->cp == 1) {
        return (int32_t)i;
    }
    return (int32_t)(i < half ? c * half + i : (2 * l->cp - 1 - c) * half + (i - half));
}

/* CP ranks whose rows core attention sees at once: by its queries. */
static int64_t near_of(const mf_exec *x) {
    for (int i = 0; i < x->p->nblocks; i++) {
        const mf_block *b = x->p->blocks[i];
        for (int k = 0; k < b->nforward; k++) {
            if (b->ops[k].kind == MF_OP_ATTENTION_FWD) {
                return b->ops[k].dim[3] / (x->p->layout.seq / x->p->layout.cp);
            }
        }
    }
    return 1;
}

/* Parts of the CP group, where its communication is of two kinds. */
static mf_status join_near(mf_exec *x, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    int64_t near = near_of(x), rank = mf_comm_rank(x->comm);
    int64_t stride = mf_layout_group(l, MF_GROUP_CP).stride;
    x->env.near = near;
    if (near == 1 || near == l->cp) {
        return MF_OK;
    }
    mf_status status = mf_comm_add(x->comm, rank - x->at.c % near * stride, &x->env.cp_near, e);
    return status == MF_OK
               ? mf_comm_add(x->comm, rank - x->at.c / near * near * stride, &x->env.cp_far, e)
               : status;
}

static void fill_positions(mf_exec *x) {
    const mf_layout *l = &x->p->layout;
    int64_t near = x->env.near;
    int64_t local = l->seq / l->cp;
    for (int64_t c = 0; c < l->cp; c++) {
        for (int64_t b = 0; b < l->mbs; b++) {
            for (int64_t i = 0; i < local; i++) {
                int32_t at = zigzag(l, c, i);
                x->ring_position[(c * l->mbs + b) * local + i] = at;
                x->full_position[(b * l->cp + c) * local + i] = at;
                int64_t block = c / near * l->mbs + b;
                x->near_position[(block * near + c % near) * local + i] = at;
            }
        }
    }
    for (int64_t b = 0; b <= l->mbs; b++) {
        x->cu[b] = (int32_t)(b * local);
        x->full_cu[b] = (int32_t)(b * l->seq);
        x->near_cu[b] = (int32_t)(b * local * near);
    }
    memcpy(x->positions_of_rows, x->ring_position + x->at.c * l->mbs * local,
           (size_t)(l->mbs * local) * sizeof(int32_t));
}

/* Largest that an op, a position's gradients or the sums of pass O need. */
static size_t scratch_needed(const mf_exec *x) {
    size_t most = (size_t)mf_exec_reduce_scratch(x) * sizeof(float);
    for (int i = 0; i < x->p->assignment.positions; i++) {
        size_t elements = 0;
        for (int k = x->params.first[i]; k < x->params.first[i + 1]; k++) {
            elements += (size_t)(x->params.list[k].rows * x->params.list[k].cols);
        }
        elements += x->positions[i].block != NULL ? (size_t)x->positions[i].block->shared : 0;
        most = elements * sizeof(float) > most ? elements * sizeof(float) : most;
    }
    for (int i = 0; i < x->p->nblocks; i++) {
        const mf_block *b = x->p->blocks[i];
        for (int k = 0; k < b->nops; k++) {
            size_t need = x->backend->scratch_B(b, &b->ops[k], &x->p->layout, &x->p->model);
            most = need > most ? need : most;
        }
    }
    return most;
}

static int longest_block(const mf_exec *x) {
    int most = 0;
    for (int i = 0; i < x->p->nblocks; i++) {
        most = x->p->blocks[i]->nops > most ? x->p->blocks[i]->nops : most;
    }
    return most;
}

/* Scratch stands in the arena as planned; what its end is lent for needs none of the rest. */
static mf_status share_scratch(mf_exec *x, mf_err *e) {
    x->env.scratch_B = (size_t)(x->scratch_B - x->lent_B);
    mf_comm_lend(x->comm, (char *)x->scratch + x->env.scratch_B, x->lent_B / 2);
    return scratch_needed(x) <= x->env.scratch_B
               ? MF_OK
               : mf_err_set(e, MF_INTERNAL, "the plan's scratch of %zu bytes is %zu too small",
                            x->env.scratch_B, scratch_needed(x) - x->env.scratch_B);
}

static mf_status allocate_orders(mf_exec *x, mf_err *e) {
    x->merged = calloc((size_t)longest_block(x) * 2 + 1, sizeof *x->merged);
    if (x->merged == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    const mf_assignment *a = &x->p->assignment;
    return mf_pairing_init(&x->pairing, mf_pairing_longest(a->first, a->vstages), e);
}

static mf_status plan_memory(mf_exec *x, mf_err *e) {
    mf_memory *plan = NULL;
    mf_status status = mf_memory_plan(x->p, x->s, &plan, e);
    if (status == MF_OK) {
        x->planned_B = plan->stage[x->stage].peak_B;
        x->planned_host_B = plan->stage[x->stage].host_B;
        mf_memory_destroy(plan);
    }
    return status;
}

static void fill_env(mf_exec *x) {
    const mf_model *m = &x->p->model;
    const mf_layout *l = &x->p->layout;
    float *sine = x->rope + l->seq * (mf_exec_rope_width(m) / 2);
    mf_exec_rope_table(m, l->seq, x->rope, sine);
    x->env.model = m;
    x->env.layout = l;
    x->env.at = x->at;
    x->env.comm = x->comm;
    x->env.rope_cos = x->rope;
    x->env.rope_sin = sine;
    x->env.position = x->positions_of_rows;
    x->env.cu = x->cu;
    x->env.ring_position = x->ring_position;
    x->env.full_position = x->full_position;
    x->env.full_cu = x->full_cu;
    x->env.near_position = x->near_position;
    x->env.near_cu = x->near_cu;
    x->env.scratch = x->scratch;
    x->env.exchange = x->exchange;
    for (int i = 0; i < x->p->assignment.positions; i++) {
        char name[128];
        position_bind *q = &x->positions[i];
        if (q->block == NULL || q->block->params.expert == 0) {
            continue;
        }
        q->load = x->loads + i * m->experts;
        if (mf_param_correction_bias(x->p, i, name, sizeof name)) {
            q->correction = x->corrections + i * m->experts;
        }
    }
}

mf_status mf_exec_create(const mf_program *program, const mf_schedule *schedule, mf_comm *comm,
                         const mf_exec_backend *backend, const mf_exec_options *options,
                         mf_exec **out, mf_err *e) {
    *out = NULL;
    mf_exec *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    x->p = program;
    x->s = schedule;
    x->comm = comm;
    x->backend = backend;
    x->o = *options;
    x->at = mf_layout_coords(&program->layout, mf_comm_rank(comm));
    x->stage = x->at.p;
    mf_status status = mf_exec_bind(x, e);
    if (status == MF_OK) {
        status = mf_exec_reduce_init(x, e);
    }
    if (status == MF_OK) {
        status = join_near(x, e);
    }
    if (status == MF_OK) {
        status = share_scratch(x, e);
    }
    if (status == MF_OK) {
        status = allocate_orders(x, e);
    }
    if (status == MF_OK) {
        status = plan_memory(x, e);
    }
    if (status != MF_OK) {
        mf_exec_destroy(x);
        return status;
    }
    fill_positions(x);
    fill_env(x);
    *out = x;
    return MF_OK;
}

void mf_exec_destroy(mf_exec *x) {
    if (x == NULL) {
        return;
    }
    mf_exec_unbind(x);
    mf_exec_reduce_clear(x);
    free(x->merged);
    mf_pairing_clear(&x->pairing);
    free(x);
}

/* Shards take their part of what is read in full; what is narrower than float is rounded. */
static mf_status load_parameters(mf_exec *x, const mf_safetensors *from, mf_err *e) {
    bool shards = mf_exec_shards_weights(x, 0) || mf_exec_shards_weights(x, 1);
    if (!shards && x->weight_type == MF_KERNEL_F32) {
        return mf_params_load(&x->params, x->p, &x->at, from, mf_exec_weight_at(x, 0, 0),
                              mf_exec_weight_at(x, 1, 0), e);
    }
    float *half[2] = {calloc((size_t)x->params.dense + 1, sizeof(float)),
                      calloc((size_t)x->params.expert + 1, sizeof(float))};
    mf_status status = half[0] == NULL || half[1] == NULL
                           ? mf_err_set(e, MF_NOMEM, "parameters: out of memory")
                           : mf_params_load(&x->params, x->p, &x->at, from, half[0], half[1], e);
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        const mf_param *q = &x->params.list[i];
        mf_exec_set_param(x, i, half[q->expert] + q->offset);
    }
    free(half[0]);
    free(half[1]);
    return status;
}

mf_status mf_exec_load(mf_exec *x, const mf_safetensors *from, mf_err *e) {
    mf_status status = load_parameters(x, from, e);
    for (int i = 0; i < x->p->assignment.positions && status == MF_OK; i++) {
        char name[128];
        if (x->positions[i].correction == NULL ||
            !mf_param_correction_bias(x->p, i, name, sizeof name)) {
            continue;
        }
        const mf_st_tensor *t = mf_safetensors_find(from, name);
        status = t == NULL ? mf_safetensors_missing(from, name, "", e)
                           : mf_st_read(t, 0, x->p->model.experts, 0, 1, x->positions[i].correction,
                                        1, e);
    }
    return status;
}
