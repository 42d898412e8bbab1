/* create.c - a rank's state: what stands for the whole run, and weights from a checkpoint. */
#include "executor/step/exec.h"

#include "executor/ops/rope.h"
#include "kernels/attention/attention.h"

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
                return b->ops[k].dim[MF_OP_DIM_SEQ_Q] / (x->p->layout.seq / x->p->layout.cp);
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
    mf_status status = mf_exec_add_group(x, rank - x->at.c % near * stride, &x->env.cp_near, e);
    return status == MF_OK
               ? mf_exec_add_group(x, rank - x->at.c / near * near * stride, &x->env.cp_far, e)
               : status;
}

/* Row of sample b that CP rank m of `ranks` neighbours holds as its row i, where the rows of all of
 * them stand in order of position (executor/ops/collectives.c). */
static int64_t joined_row(const mf_layout *l, int64_t ranks, int64_t m, int64_t b, int64_t i) {
    int64_t local = l->seq / l->cp, half = local / 2;
    if (l->cp == 1) {
        return b * local + i;
    }
    int64_t chunk = i < half ? m : 2 * ranks - 1 - m;
    return (b * 2 * ranks + chunk) * half + i % half;
}

#define AT(base, place) ((void *)((base) + x->in.place))

/* Positions of rows, in the host's copy of the inputs. */
static void fill_positions(mf_exec *x, char *host) {
    const mf_layout *l = &x->p->layout;
    int64_t near = x->env.near, local = l->seq / l->cp, own = local / l->tp;
    int32_t *ring = AT(host, ring_position), *full = AT(host, full_position);
    int32_t *beside = AT(host, near_position), *place = AT(host, place);
    int32_t *of_place = AT(host, place_sample), *sample = AT(host, sample);
    for (int64_t c = 0; c < l->cp; c++) {
        for (int64_t b = 0; b < l->mbs; b++) {
            for (int64_t i = 0; i < local; i++) {
                int32_t at = zigzag(l, c, i);
                int64_t block = c / near * l->mbs * near * local;
                ring[(c * l->mbs + b) * local + i] = at;
                full[joined_row(l, l->cp, c, b, i)] = at;
                beside[block + joined_row(l, near, c % near, b, i)] = at;
                place[(c * l->mbs + b) * local + i] = (int32_t)(b * l->seq + at);
                of_place[b * l->seq + at] = (int32_t)b;
                sample[b * local + i] = (int32_t)b;
            }
        }
    }
    (void)own;
    int32_t *cu = AT(host, cu), *full_cu = AT(host, full_cu), *near_cu = AT(host, near_cu);
    for (int64_t b = 0; b <= l->mbs; b++) {
        cu[b] = (int32_t)(b * local);
        full_cu[b] = (int32_t)(b * l->seq);
        near_cu[b] = (int32_t)(b * local * near);
    }
    memcpy(AT(host, positions), ring + x->at.c * l->mbs * local,
           (size_t)(l->mbs * local) * sizeof(int32_t));
    memcpy(x->zigzag, ring + x->at.c * l->mbs * local, (size_t)local * sizeof(int32_t));
}

/* What stands in the inputs for the whole run. */
static mf_status fill_inputs(mf_exec *x, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    char *host = calloc(1, (size_t)x->in.size_B + 1);
    if (host == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    float *rope = AT(host, rope);
    fill_positions(x, host);
    mf_rope_table tables[MF_MODEL_MAX_CLASSES];
    const int count = mf_model_rope_tables(&x->p->model, tables);
    for (int k = 0; k < count; k++) {
        float *cosines = rope + k * l->seq * x->p->model.head_dim;
        mf_exec_rope_table(&x->p->model, &tables[k], l->seq, cosines,
                           cosines + l->seq * (tables[k].width / 2));
    }
    mf_status status = mf_exec_put(x, x->inputs, host, (size_t)x->in.size_B, e);
    free(host);
    return status;
}

/* Largest of a position's gradients. */
static size_t position_needs(const mf_exec *x) {
    size_t most = 0;
    for (int i = 0; i < x->p->assignment.positions; i++) {
        size_t elements = x->positions[i].block != NULL ? (size_t)x->positions[i].block->shared : 0;
        for (int k = x->params.first[i]; k < x->params.first[i + 1]; k++) {
            elements += (size_t)(x->params.list[k].rows * x->params.list[k].cols);
        }
        most = elements * sizeof(float) > most ? elements * sizeof(float) : most;
    }
    return most;
}

/* What is summed over ranks: once a step beside compute, and the gradients of a position. */
static size_t sums_need(const mf_exec *x, mf_stream stream) {
    bool on_host = mf_exec_device(x)->on_host, alone = x->p->layout.gpus == 1 && !on_host;
    bool parts = mf_exec_zero(x, 0) >= 2 || mf_exec_zero(x, 1) >= 2;
    size_t workspace_B = stream == MF_STREAM_COMPUTE && !alone
                             ? (size_t)mf_exec_reduce_scratch(x) * sizeof(float)
                             : 0;
    size_t each = on_host || (stream == MF_STREAM_DP && parts && !alone) ? position_needs(x) : 0;
    return workspace_B > each ? workspace_B : each;
}

/* Largest that an op of the stream or sums over ranks need. */
static size_t scratch_needed(const mf_exec *x, mf_stream stream) {
    size_t most = sums_need(x, stream);
    for (int i = 0; i < x->p->assignment.positions; i++) {
        const mf_block *b = x->positions[i].block;
        for (int k = 0; b != NULL && k < b->nops; k++) {
            size_t need = x->device->ops->scratch_B(b, &b->ops[k], &x->p->layout, &x->p->model);
            most = b->ops[k].stream == stream && need > most ? need : most;
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
    const mf_scratch *s = &x->scratch_plan;
    mf_comm_lend(x->comm, (char *)x->scratch + s->size_B - s->lent_B, s->lent_B / 2);
    for (int i = 0; i < MF_STREAM_COUNT; i++) {
        size_t need = scratch_needed(x, (mf_stream)i), has = (size_t)s->part_B[i];
        if (need > has) {
            return mf_err_set(e, MF_INTERNAL,
                              "the plan's scratch of %zu bytes for %s is %zu too small", has,
                              mf_stream_text((mf_stream)i), need - has);
        }
    }
    mf_exec_use_scratch(x, MF_STREAM_COMPUTE);
    return MF_OK;
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
    x->env.device = x->device;
    x->env.model = m;
    x->env.layout = l;
    x->env.at = x->at;
    x->env.comm = x->wire;
    const int tables = mf_model_rope_tables(m, x->env.rope);
    for (int k = 0; k < tables; k++) {
        x->env.rope_cos[k] = (const float *)AT(x->inputs, rope) + k * l->seq * m->head_dim;
        x->env.rope_sin[k] = x->env.rope_cos[k] + l->seq * (x->env.rope[k].width / 2);
    }
    x->env.position = AT(x->inputs, positions);
    x->env.sample = AT(x->inputs, sample);
    x->env.cu = AT(x->inputs, cu);
    x->env.ring_position = AT(x->inputs, ring_position);
    x->env.full_position = AT(x->inputs, full_position);
    x->env.full_cu = AT(x->inputs, full_cu);
    x->env.near_position = AT(x->inputs, near_position);
    x->env.near_cu = AT(x->inputs, near_cu);
    x->env.place = AT(x->inputs, place);
    x->env.place_sample = AT(x->inputs, place_sample);
    x->env.overflow = &x->update->overflow;
    x->env.exchange = x->exchange;
    x->env.window = x->window.group != NULL ? &x->window : NULL;
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

/* Host memory of a step. */
static mf_status allocate_host(mf_exec *x, mf_err *e) {
    const mf_layout *l = &x->p->layout;
    x->sample = calloc((size_t)l->seq + 1, sizeof *x->sample);
    x->zigzag = calloc((size_t)(l->seq / l->cp) + 1, sizeof *x->zigzag);
    const size_t positions = (size_t)x->p->assignment.positions + 1;
    x->begun = calloc(positions, sizeof *x->begun);
    x->reduced[0] = calloc(positions, sizeof *x->reduced[0]);
    x->reduced[1] = calloc(positions, sizeof *x->reduced[1]);
    return x->sample != NULL && x->zigzag != NULL && x->begun != NULL && x->reduced[0] != NULL &&
                   x->reduced[1] != NULL
               ? mf_exec_step_buffers_init(x, e)
               : mf_err_set(e, MF_NOMEM, "executor: out of memory");
}

mf_status mf_exec_create(const mf_program *program, const mf_schedule *schedule, mf_comm *comm,
                         mf_device *device, const mf_exec_options *options, mf_exec **out,
                         mf_err *e) {
    *out = NULL;
    mf_exec *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return mf_err_set(e, MF_NOMEM, "executor: out of memory");
    }
    x->p = program;
    x->s = schedule;
    x->comm = comm;
    x->wire = options->wire != NULL ? options->wire : comm;
    x->device = device;
    x->queue = device->ops->queue(device, MF_STREAM_COMPUTE);
    mf_comm_use_stream(x->wire, x->queue->stream);
    x->o = *options;
    x->at = mf_layout_coords(&program->layout, mf_comm_rank(comm));
    x->stage = x->at.p;
    mf_status status = mf_exec_bind(x, e);
    status = status == MF_OK ? mf_exec_streams_init(x, e) : status;
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
    status = status == MF_OK ? mf_exec_open_messages(x, e) : status;
    status = status == MF_OK ? allocate_host(x, e) : status;
    status = status == MF_OK ? mf_exec_progress_init(x, e) : status;
    status = status == MF_OK ? mf_exec_work_init(x, e) : status;
    status = status == MF_OK ? mf_exec_beside_init(x, e) : status;
    status = status == MF_OK ? fill_inputs(x, e) : status;
    status = status == MF_OK ? mf_exec_update_init(x, e) : status;
    status = status == MF_OK ? mf_exec_force_routing(x, e) : status;
    if (status != MF_OK) {
        mf_exec_destroy(x);
        return status;
    }
    fill_env(x);
    *out = x;
    return MF_OK;
}

void mf_exec_destroy(mf_exec *x) {
    if (x == NULL) {
        return;
    }
    if (x->graph != NULL) {
        x->device->ops->forget(x->graph);
    }
    mf_exec_update_clear(x);
    mf_exec_streams_clear(x);
    mf_exec_window_close(x);
    mf_exec_unbind(x);
    mf_exec_reduce_clear(x);
    mf_exec_beside_clear(x);
    mf_exec_step_buffers_clear(x);
    mf_exec_device(x)->release(x->device, x->forced);
    mf_exec_progress_clear(x);
    mf_exec_work_clear(x);
    free(x->sample);
    free(x->zigzag);
    free(x->begun);
    free(x->reduced[0]);
    free(x->reduced[1]);
    mf_exec_state_release(x);
    free(x->corrections_copy);
    free(x->merged);
    mf_pairing_clear(&x->pairing);
    free(x);
}

/* Shards take their part of what is read in full; what is narrower than float is rounded. */
static mf_status load_parameters(mf_exec *x, const mf_safetensors *from, mf_err *e) {
    bool shards = mf_exec_shards_weights(x, 0) || mf_exec_shards_weights(x, 1);
    if (!shards && x->weight_type == MF_KERNEL_F32 && mf_exec_device(x)->on_host) {
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
        status = mf_exec_set_param(x, i, half[q->expert] + q->offset, e);
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
        float bias[MF_ROUTE_MAX_EXPERTS];
        int64_t n = x->p->model.experts;
        bool flat = t != NULL && t->dims == 2 && t->shape[0] == 1; /* ERNIE: one row */
        status = t == NULL ? mf_safetensors_missing(from, name, "", e)
                 : flat    ? mf_st_read(t, 0, 1, 0, n, bias, n, e)
                           : mf_st_read(t, 0, n, 0, 1, bias, 1, e);
        if (status == MF_OK) {
            status = mf_exec_put(x, x->positions[i].correction, bias, (size_t)n * sizeof *bias, e);
        }
    }
    return status;
}
