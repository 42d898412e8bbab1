/* measure_draw.c - ops that lowering emits for shipped models under random layouts, as points. */
#include "executor/measure/measure_draw.h"

#include "core/program/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- an op as a key --------------------------------------------------------------------------- */

static const char *dtype_of(const mf_op *op, mf_precision precision) {
    if (op->math == MF_MATH_FP32) {
        return "fp32";
    }
    return op->math == MF_MATH_BF16 ? "bf16" : mf_precision_text(precision);
}

static bool gemm_key(const mf_op *op, const char *dtype, char *key, size_t size) {
    const char *layout = op->flags & MF_OPF_WGRAD ? "tn" : op->pass == MF_PASS_B ? "nn" : "nt";
    snprintf(key, size, "gemm dtype=%s m=%lld n=%lld k=%lld layout=%s acc=%d", dtype,
             (long long)op->dim[MF_OP_DIM_M], (long long)op->dim[MF_OP_DIM_N],
             (long long)op->dim[MF_OP_DIM_K], layout, (op->flags & MF_OPF_ACC_FP32) != 0);
    return op->dim[MF_OP_DIM_M] > 0 && op->dim[MF_OP_DIM_N] > 0 && op->dim[MF_OP_DIM_K] > 0;
}

/* The key's n and k belong to the weight; m is rows per expert. */
static bool grouped_key(const mf_op *op, const char *dtype, char *key, size_t size) {
    bool wgrad = (op->flags & MF_OPF_WGRAD) != 0, dgrad = !wgrad && op->pass == MF_PASS_B;
    int64_t experts = op->dim[MF_OP_DIM_GROUPS];
    int64_t rows = op->dim[wgrad ? MF_OP_DIM_K : MF_OP_DIM_M];
    int64_t n = op->dim[wgrad ? MF_OP_DIM_M : dgrad ? MF_OP_DIM_K : MF_OP_DIM_N];
    int64_t k = op->dim[wgrad || dgrad ? MF_OP_DIM_N : MF_OP_DIM_K];
    if (experts < 1 || rows < experts || n < 1 || k < 1) {
        return false;
    }
    snprintf(key, size, "grouped_gemm dtype=%s experts=%lld m=%lld n=%lld k=%lld pass=%s acc=%d",
             dtype, (long long)experts, (long long)(rows / experts), (long long)n, (long long)k,
             wgrad   ? "wgrad"
             : dgrad ? "dgrad"
                     : "fwd",
             (op->flags & MF_OPF_ACC_FP32) != 0);
    return true;
}

static bool attention_key(const mf_op *op, const char *dtype, char *key, size_t size) {
    snprintf(key, size,
             "attention pass=%s b=%lld h=%lld hkv=%lld s=%lld skv=%lld dqk=%lld dv=%lld causal=%d "
             "window=%lld dtype=%s",
             op->kind == MF_OP_ATTENTION_BWD ? "bwd" : "fwd", (long long)op->dim[MF_OP_DIM_BATCH],
             (long long)op->dim[MF_OP_DIM_HEADS], (long long)op->dim[MF_OP_DIM_KV_HEADS],
             (long long)op->dim[MF_OP_DIM_SEQ_Q], (long long)op->dim[MF_OP_DIM_SEQ_K],
             (long long)op->dim[MF_OP_DIM_D_QK], (long long)op->dim[MF_OP_DIM_D_V],
             (op->flags & MF_OPF_CAUSAL) != 0, (long long)op->dim[MF_OP_DIM_WINDOW], dtype);
    return true;
}

bool mf_measure_op_key(const mf_op *op, mf_precision precision, char *key, size_t size) {
    const char *dtype = dtype_of(op, precision);
    switch (mf_op_kind_class((mf_op_kind)op->kind)) {
    case MF_CLASS_GEMM:
        return gemm_key(op, dtype, key, size);
    case MF_CLASS_GROUPED:
        return grouped_key(op, dtype, key, size);
    case MF_CLASS_ATTENTION:
        return attention_key(op, dtype, key, size);
    case MF_CLASS_MEMORY:
        snprintf(key, size, "memory op=%s bytes=%.0f", mf_op_text((mf_op_kind)op->kind),
                 op->bytes > 1 ? op->bytes : 1);
        return true;
    case MF_CLASS_COLLECTIVE:
    case MF_CLASS_P2P:
    case MF_CLASS_COPY:
        return false;
    }
    return false;
}

/* --- a random layout -------------------------------------------------------------------------- */

static int64_t power_of_two(uint64_t *state, int most) {
    return (int64_t)1 << mf_measure_random_int(state, most + 1);
}

typedef struct shelf {
    mf_cluster cluster;
    size_t count;
    mf_model *model; /* [count] the shipped ones */
} shelf;

static mf_status fill_shelf(shelf *s, mf_err *e) {
    size_t count;
    const char *const *names = mf_model_shipped(&count);
    mf_status status = mf_cluster_load("h200", &s->cluster, e);
    s->count = 0;
    s->model = malloc(count * sizeof *s->model);
    if (s->model == NULL) {
        return mf_err_set(e, MF_NOMEM, "measuring: out of memory");
    }
    for (size_t i = 0; i < count && status == MF_OK; i++) {
        status = mf_model_load(names[i], &s->model[s->count], e);
        s->count += status == MF_OK && mf_model_not_lowered(&s->model[s->count]) == NULL;
    }
    return status;
}

static mf_status draw_block(const shelf *s, uint64_t *state, mf_block **out,
                            mf_precision *precision, mf_err *e) {
    mf_layout l;
    for (int attempt = 0; attempt < 1000; attempt++) {
        const mf_model *m = &s->model[mf_measure_random_int(state, (int64_t)s->count)];
        mf_layout_init(&l);
        l.software_traits = MF_TRAIT_ACT_PASS;
        l.tp = power_of_two(state, 3);
        l.cp = mf_measure_random_int(state, 4) == 0 ? 2 : 1;
        l.ep = m->experts > 0 ? power_of_two(state, 5) : 1;
        l.mbs = power_of_two(state, 2);
        l.seq = 2048 * power_of_two(state, 3);
        l.gpus = l.tp * l.cp > l.ep ? l.tp * l.cp : l.ep;
        l.gbs = l.mbs * l.gpus;
        int64_t kind = mf_measure_random_int(state, 4);
        l.precision = kind == 0 ? MF_PREC_FP8_BLOCK : kind == 1 ? MF_PREC_FP8_TENSOR : MF_PREC_BF16;
        if (!mf_layout_valid(&l, m)) {
            continue;
        }
        mf_memory_choice memory = {0, 0};
        mf_block_key key =
            mf_block_key_layer((uint8_t)mf_measure_random_int(state, m->classes), memory, false);
        key.kind = mf_measure_random_int(state, 8) == 0 ? MF_POS_HEAD : MF_POS_LAYER;
        *precision = l.precision;
        return mf_block_lower(m, &l, &s->cluster, &key, out, e);
    }
    return mf_err_set(e, MF_INTERNAL, "no layout was valid");
}

/* --- drawing ---------------------------------------------------------------------------------- */

static const double largest_flops = 12e12;
static const double smallest_flops = 2e8;

typedef struct quota {
    mf_op_class class;
    int math; /* of products; -1 any */
    int fit, held;
} quota;

static mf_status take(mf_measure_list *l, quota *q, const char *key, mf_err *e) {
    int64_t before = l->n;
    bool held = q->held > 0 && (q->fit == 0 || before % 3 == 0);
    mf_status status = mf_measure_list_add(l, key, held, "drawn from models and layouts", e);
    if (status == MF_OK && l->n > before) {
        held ? q->held-- : q->fit--;
    }
    return status;
}

mf_status mf_measure_draw_models(mf_measure_list *l, uint64_t *state, mf_err *e) {
    quota quotas[] = {{MF_CLASS_GEMM, MF_MATH_BF16, 260, 200},
                      {MF_CLASS_GEMM, MF_MATH_FP8, 100, 50},
                      {MF_CLASS_GROUPED, MF_MATH_BF16, 260, 110},
                      {MF_CLASS_ATTENTION, -1, 130, 60}};
    shelf s = {.model = NULL};
    mf_status status = fill_shelf(&s, e);
    for (int round = 0; round < 4000 && status == MF_OK; round++) {
        mf_block *b = NULL;
        mf_precision precision = MF_PREC_BF16;
        char key[256];
        status = draw_block(&s, state, &b, &precision, e);
        if (status == MF_LAYOUT) {
            status = MF_OK;
            continue;
        }
        for (int pick = 0; pick < 6 && status == MF_OK; pick++) { /* a few ops of each block */
            const mf_op *op = &b->ops[mf_measure_random_int(state, b->nops)];
            for (size_t i = 0; i < sizeof quotas / sizeof quotas[0] && status == MF_OK; i++) {
                quota *q = &quotas[i];
                if (mf_op_kind_class((mf_op_kind)op->kind) == q->class &&
                    (q->math < 0 || q->math == op->math) && q->fit + q->held > 0 &&
                    op->flops <= largest_flops && op->flops >= smallest_flops &&
                    mf_measure_op_key(op, precision, key, sizeof key)) {
                    status = take(l, q, key, e);
                }
            }
        }
        mf_block_destroy(b);
    }
    free(s.model);
    return status;
}

/* --- what one model needs --------------------------------------------------------------------- */

mf_measure_degrees mf_measure_degrees_usual(void) {
    return (mf_measure_degrees){.tp = {1, 2, 4, 8},
                                .cp = {1, 2, 4},
                                .ep = {1, 2, 4, 8, 16, 32, 64},
                                .etp = {1},
                                .mbs = {1, 2, 4}};
}

static mf_status take_block(const mf_model *m, const mf_cluster *c, const mf_layout *l,
                            mf_block_key key, mf_measure_list *list, mf_err *e) {
    mf_block *b = NULL;
    char text[256], source[96];
    mf_status s = mf_block_lower(m, l, c, &key, &b, e);
    snprintf(source, sizeof source, "what %.60s needs", m->name);
    for (int i = 0; s == MF_OK && i < b->nops; i++) {
        if (mf_measure_op_key(&b->ops[i], l->precision, text, sizeof text)) {
            s = mf_measure_list_add(list, text, false, source, e);
        }
    }
    mf_block_destroy(b);
    return s;
}

static mf_status take_layout(const mf_model *m, const mf_cluster *c, const mf_layout *l,
                             mf_measure_list *list, mf_err *e) {
    const mf_memory_choice kept = {0, 0};
    mf_status s = MF_OK;
    for (int class = 0; class < m->classes && s == MF_OK; class ++) {
        s = take_block(m, c, l, mf_block_key_layer((uint8_t) class, kept, false), list, e);
    }
    static const uint8_t ends[] = {MF_POS_EMBEDDING, MF_POS_HEAD};
    for (size_t i = 0; i < sizeof ends && s == MF_OK; i++) {
        mf_block_key key = mf_block_key_layer(0, kept, false);
        key.kind = ends[i];
        s = take_block(m, c, l, key, list, e);
    }
    return s;
}

mf_status mf_measure_plan_model(const mf_model *m, const mf_cluster *c, const mf_layout *base,
                                const mf_measure_degrees *d, mf_measure_list *list, mf_err *e) {
    int64_t layouts = 0;
    mf_status s = MF_OK;
    for (int t = 0; d->tp[t] > 0; t++) {
        for (int p = 0; d->cp[p] > 0; p++) {
            for (int x = 0; d->ep[x] > 0 && (m->experts > 0 || x == 0); x++) {
                for (int y = 0; d->etp[y] > 0; y++) {
                    for (int b = 0; d->mbs[b] > 0 && s == MF_OK; b++) {
                        mf_layout l = *base;
                        l.software_traits |= MF_TRAIT_ACT_PASS; /* each pass alone */
                        l.tp = d->tp[t];
                        l.cp = d->cp[p];
                        l.ep = m->experts > 0 ? d->ep[x] : 1;
                        l.etp = d->etp[y];
                        l.mbs = d->mbs[b];
                        int64_t attention = l.tp * l.cp, experts = l.ep * l.etp;
                        l.gpus = attention > experts ? attention : experts;
                        l.gbs = l.mbs * l.gpus;
                        if (mf_layout_valid(&l, m)) {
                            layouts++;
                            s = take_layout(m, c, &l, list, e);
                        }
                    }
                }
            }
        }
    }
    s = s == MF_OK ? mf_measure_add_variants(list, e) : s;
    return s != MF_OK || layouts > 0
               ? s
               : mf_err_set(e, MF_LAYOUT, "no layout of %s has these degrees", m->name);
}
