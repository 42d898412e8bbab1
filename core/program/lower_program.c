/* lower_program.c - positions, their assignment to virtual stages, and the program of a step. */
#include "core/program/lower.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

int mf_model_positions(const mf_model *m) {
    return (int)(2 + m->layers + m->mtp_layers);
}

mf_position_kind mf_position_kind_of(const mf_model *m, int position) {
    if (position == 0) {
        return MF_POS_EMBEDDING;
    }
    if (position <= m->layers) {
        return MF_POS_LAYER;
    }
    return position <= m->layers + m->mtp_layers ? MF_POS_MTP : MF_POS_HEAD;
}

int mf_position_index(const mf_model *m, int position) {
    return position <= m->layers ? position - 1 : position - 1 - (int)m->layers;
}

void mf_position_text(const mf_model *m, int position, char *out, size_t size) {
    const int index = mf_position_index(m, position);
    switch (mf_position_kind_of(m, position)) {
    case MF_POS_LAYER:
        snprintf(out, size, "layer %d", index);
        break;
    case MF_POS_MTP:
        snprintf(out, size, "MTP depth %d", index + 1);
        break;
    case MF_POS_EMBEDDING:
        snprintf(out, size, "the embedding");
        break;
    case MF_POS_HEAD:
        snprintf(out, size, "the head");
        break;
    }
}

const mf_layer_class *mf_position_class(const mf_model *m, int position) {
    mf_position_kind kind = mf_position_kind_of(m, position);
    if (kind != MF_POS_LAYER && kind != MF_POS_MTP) {
        return NULL;
    }
    int class = kind == MF_POS_MTP ? m->mtp_class : m->layer_class[mf_position_index(m, position)];
    return &m->layer_classes[class];
}

bool mf_position_is_moe(const mf_model *m, int position) {
    const mf_layer_class *x = mf_position_class(m, position);
    return x != NULL && x->ffn == MF_FFN_MOE;
}

/* --- assignment ------------------------------------------------------------------------------- */

mf_status mf_assignment_even(const mf_model *m, const mf_layout *l, mf_assignment *out, mf_err *e) {
    int64_t vstages = l->pp * l->vpp;
    int positions = mf_model_positions(m);
    if (vstages > MF_MAX_VSTAGES || positions > MF_MAX_POSITIONS || vstages > positions) {
        return mf_err_set(e, MF_LAYOUT,
                          "PP %lld x VPP %lld: %d positions do not fill as many virtual stages",
                          LL(l->pp), LL(l->vpp), positions);
    }
    memset(out, 0, sizeof *out);
    out->positions = positions;
    out->vstages = (int)vstages;
    for (int i = 0; i < positions; i++) {
        /* Layers that offload are spread evenly: layer i is one when the running fraction steps
         * up. */
        bool offloads = floor((double)(i + 1) * l->offload_share + 1e-9) >
                        floor((double)i * l->offload_share + 1e-9);
        out->memory[i] = l->memory;
        out->memory[i].offload = offloads ? l->memory.offload : 0;
    }
    /* Layers that divide are spread evenly, the ends come on top. Otherwise embedding, each MTP
     * depth and head weigh one layer each. */
    int64_t layers = m->layers;
    bool even = layers % vstages == 0;
    int64_t units = even ? layers : positions;
    int64_t base = units / vstages, extra = units % vstages;
    int at = 0;
    for (int64_t v = 0; v < vstages; v++) {
        /* Longer stages in the middle. */
        int64_t middle = (vstages - extra) / 2;
        int64_t n = base + (v >= middle && v < middle + extra ? 1 : 0);
        out->first[v] = at;
        at += (int)n;
        if (even && v == 0) {
            at += 1; /* embedding */
        }
    }
    if (even) {
        at += (int)m->mtp_layers + 1;
    }
    out->first[vstages] = at;
    return at == positions
               ? MF_OK
               : mf_err_set(e, MF_INTERNAL, "assignment covers %d of %d positions", at, positions);
}

mf_status mf_assignment_check(const mf_model *m, const mf_layout *l, const mf_assignment *a,
                              mf_err *e) {
    if (a->vstages != l->pp * l->vpp) {
        return mf_err_set(e, MF_LAYOUT, "assignment has %d virtual stages, PP x VPP = %lld",
                          a->vstages, LL(l->pp * l->vpp));
    }
    if (a->positions != mf_model_positions(m)) {
        return mf_err_set(e, MF_LAYOUT, "assignment places %d positions, %s has %d", a->positions,
                          m->name, mf_model_positions(m));
    }
    if (a->first[0] != 0 || a->first[a->vstages] != a->positions) {
        return mf_err_set(e, MF_LAYOUT, "assignment does not start at embedding and end at head");
    }
    for (int v = 0; v < a->vstages; v++) {
        if (a->first[v + 1] <= a->first[v]) {
            return mf_err_set(e, MF_LAYOUT, "virtual stage %d holds no layer", v);
        }
    }
    return MF_OK;
}

/* --- the program ------------------------------------------------------------------------------ */

static bool same_key(const mf_block_key *a, const mf_block_key *b) {
    return a->kind == b->kind && a->layer_class == b->layer_class && a->parts == b->parts &&
           a->split == b->split && a->shared_embedding == b->shared_embedding &&
           a->shared_head == b->shared_head && a->after_depth == b->after_depth &&
           a->before_depth == b->before_depth && a->memory.recompute == b->memory.recompute &&
           a->memory.offload == b->memory.offload;
}

int64_t mf_program_stage_of(const mf_program *p, int position) {
    return p->stage_of[position];
}

static void note_stages(mf_program *p) {
    const mf_assignment *a = &p->assignment;
    for (int v = 0; v < a->vstages; v++) {
        const int32_t stage = (int32_t)mf_layout_stage_of(&p->layout, v);
        for (int i = a->first[v]; i < a->first[v + 1]; i++) {
            p->stage_of[i] = stage;
        }
    }
}

static mf_block_key position_key(const mf_program *p, int position) {
    const mf_model *m = &p->model;
    mf_block_key key = {
        .kind = mf_position_kind_of(m, position), .parts = MF_HALF_BOTH, .split = p->split};
    int64_t stage = mf_program_stage_of(p, position);
    int last = p->assignment.positions - 1;
    if (key.kind == MF_POS_LAYER) {
        key.layer_class = m->layer_class[mf_position_index(m, position)];
        key.memory = p->assignment.memory[position];
    } else if (key.kind == MF_POS_MTP) {
        key.layer_class = m->mtp_class;
        key.memory = p->assignment.memory[position];
        /* A tied head is the embedding, of which this block has a copy or reads the one there is.
         */
        key.shared_head = m->tied_embeddings || mf_program_stage_of(p, last) == stage;
        key.shared_embedding = mf_program_stage_of(p, 0) == stage;
        key.after_depth = mf_position_index(m, position) > 0;
        key.before_depth = mf_position_index(m, position) + 1 < m->mtp_layers;
        for (int i = (int)m->layers + 1; i < position;
             i++) { /* an earlier MTP depth holds the copies */
            bool here = mf_program_stage_of(p, i) == stage;
            key.shared_head |= here;
            key.shared_embedding |= here;
        }
    } else if (key.kind == MF_POS_HEAD) {
        key.shared_embedding = mf_program_stage_of(p, 0) == stage;
        for (int i = (int)m->layers + 1; i < position; i++) {
            key.shared_embedding |= mf_program_stage_of(p, i) == stage;
        }
    }
    return key;
}

static double param_B(const mf_layout *l) {
    return l->precision == MF_PREC_FP32 ? 4.0 : 2.0;
}

mf_op mf_pipeline_send(const mf_model *m, const mf_layout *l, const char *name) {
    double tokens = (double)l->mbs * (double)l->seq / (double)(l->tp * l->cp);
    double streams = m->hyper_streams > 0 ? (double)m->hyper_streams : 1.0;
    double bytes = tokens * streams * (double)m->hidden * param_B(l);
    mf_op op = {
        .kind = MF_OP_SEND_RECV,
        .pass = MF_PASS_F,
        .stream = MF_STREAM_PP,
        .math = MF_MATH_BF16,
        .module = MF_MODULE_PIPELINE,
        .group = MF_GROUP_PP,
        .forward = -1,
        .shape = mf_layout_group(l, MF_GROUP_PP),
        .dim = {1},
        .name = name,
    };
    op.bytes = l->pp > 1 ? bytes : 0.0;
    return op;
}

mf_status mf_program_lower(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                           const mf_assignment *a, mf_program **out, mf_err *e) {
    return mf_program_lower_from(m, l, c, a, NULL, out, e);
}

mf_status mf_program_lower_from(const mf_model *m, const mf_layout *l, const mf_cluster *c,
                                const mf_assignment *a, const mf_block_source *source,
                                mf_program **out, mf_err *e) {
    *out = NULL;
    const char *unknown = mf_model_not_lowered(m);
    if (unknown != NULL) {
        return mf_err_set(e, MF_INFEASIBLE, "%s: %s can be read and counted, not planned yet",
                          m->name, unknown);
    }
    mf_status status = mf_assignment_check(m, l, a, e);
    if (status != MF_OK) {
        return status;
    }
    mf_program *p = calloc(1, sizeof *p);
    mf_block_key *keys = calloc((size_t)a->positions, sizeof *keys);
    if (p != NULL) {
        p->blocks = calloc((size_t)a->positions, sizeof(mf_block *));
    }
    if (p == NULL || keys == NULL || p->blocks == NULL) {
        status = mf_err_set(e, MF_NOMEM, "lowering: out of memory");
        goto fail;
    }
    p->model = *m;
    p->layout = *l;
    p->cluster = *c;
    p->assignment = *a;
    p->borrowed = source != NULL;
    p->split = mf_layout_splits(l);
    note_stages(p);
    for (int i = 0; i < a->positions; i++) {
        mf_block_key key = position_key(p, i);
        int b = 0;
        while (b < p->nblocks && !same_key(&keys[b], &key)) {
            b++;
        }
        if (b == p->nblocks) {
            status = source != NULL ? source->lower(source->user, &key, &p->blocks[b], e)
                                    : mf_block_lower(m, l, c, &key, &p->blocks[b], e);
            if (status != MF_OK) {
                goto fail;
            }
            keys[b] = key;
            p->nblocks++;
        }
        p->block_of[i] = b;
        const mf_block *block = p->blocks[b];
        assert(block != NULL);
        p->dp[i] = mf_param_dp_ops(l, block->params);
    }
    p->send_forward = mf_pipeline_send(m, l, "send_forward");
    p->send_backward = mf_pipeline_send(m, l, "send_backward");
    p->send_backward.pass = MF_PASS_B;
    p->send_backward.dim[MF_OP_DIM_PLACES] = -1;
    p->send_states[0] = p->send_forward;
    p->send_states[1] = p->send_backward;
    p->send_states[0].bytes *= 2.0;
    p->send_states[1].bytes *= 2.0;
    free(keys);
    *out = p;
    return MF_OK;
fail:
    free(keys);
    mf_program_destroy(p);
    return status;
}

/* Does the virtual stage behind v begin with an MTP depth that is not the first? */
static bool between_depths(const mf_program *p, int64_t v) {
    int next = p->assignment.first[v + 1];
    return mf_position_kind_of(&p->model, next) == MF_POS_MTP &&
           mf_position_index(&p->model, next) > 0;
}

const mf_op *mf_program_send(const mf_program *p, int64_t v, int direction) {
    return between_depths(p, v) ? &p->send_states[direction]
           : direction == 0     ? &p->send_forward
                                : &p->send_backward;
}

int64_t mf_program_message_B(const mf_program *p, int64_t v) {
    return p->blocks[p->block_of[p->assignment.first[v + 1] - 1]]->boundary_B;
}

int64_t mf_program_boundary_B(const mf_program *p, int64_t stage) {
    int64_t most = 0;
    for (int64_t chunk = 0; chunk < p->layout.vpp; chunk++) {
        int64_t v = mf_layout_vstage(&p->layout, stage, chunk);
        int first = p->assignment.first[v] - (v > 0 ? 1 : 0); /* with what comes in */
        for (int i = first; i < p->assignment.first[v + 1]; i++) {
            int64_t size_B = p->blocks[p->block_of[i]]->boundary_B;
            most = size_B > most ? size_B : most;
        }
    }
    return most;
}

void mf_program_destroy(mf_program *p) {
    if (p == NULL) {
        return;
    }
    for (int i = 0; i < p->nblocks && !p->borrowed; i++) {
        mf_block_destroy(p->blocks[i]);
    }
    free(p->blocks);
    free(p);
}
