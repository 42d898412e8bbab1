/* exec_compare.h - a step of the device held against a record of the CPU's, op by op.
 *
 * Lockstep: before each op the device gets what the CPU's op read, and what stood in its outputs.
 * Each op is then compared alone, and one that is wrong is named whatever came before.
 * Free: the device goes its own way; rounding adds up, and bounds grow with the blocks behind. Rows
 * that a router sent elsewhere on a near tie are sent where the CPU sent them.
 *
 * Errors are |device - CPU| / |CPU| over a whole tensor.
 */
#ifndef MF_TESTS_GPU_EXEC_COMPARE_H
#define MF_TESTS_GPU_EXEC_COMPARE_H

#include "tests/gpu/exec_choices.h"

#define EXEC_EPS 0x1p-8 /* BF16: one unit in the last place */

typedef struct exec_watch {
    const exec_record *record;
    exec_case *of; /* of the device */
    const exec_under *under;
    bool lockstep, quiet;
    int skip;   /* entry of the record that is left out; -1: none */
    int at;     /* the next op */
    int blocks; /* behind it */
    int last_position;
    uint8_t last_pass;
    uint64_t noise;
    /* what came of it */
    int compared, wrong; /* outputs */
    int wrong_left_out;  /* of them, of the op that was left out */
    double worst;        /* error over bound */
    double worst_error, worst_bound;
    char worst_text[400], first_text[400];
    int64_t routed, otherwise;
    double widest;
} exec_watch;

/* Largest errors by kind and type, over all that a program compared in lockstep. */
static double exec_kind_worst[MF_OP_COUNT][2];

/* --- bounds -------------------------------------------------------------------------------------
 */

/* Integers, and values that are only moved or added once in float. */
static inline bool exec_is_exact(const mf_exec_op *x, int k) {
    const mf_op *op = x->op;
    bool alone = x->sum[k].data == NULL;
    switch ((int)op->kind) {
    case MF_OP_EMBEDDING_FWD:
    case MF_OP_ADD:
        return true;
    case MF_OP_PERMUTE:
    case MF_OP_SPLIT:
        return alone;
    case MF_OP_UNPERMUTE:
        return k == 1; /* gradients of probabilities, by their rows */
    default:
        return x->block->tensors[op->out[k]].indices;
    }
}

/* Of one op whose operands are the same: BF16 results are rounded once on both sides, and differ
 * where the sums before differ by less than a float's rounding; attention rounds its probabilities
 * as well, and products round gradients that are float (weight gradients: exec_want). What is exact
 * is the same to the bit. */
static inline double exec_lockstep_bound(const mf_exec_op *x, int k) {
    const mf_op *op = x->op;
    if (exec_is_exact(x, k)) {
        return 0.0;
    }
    bool attention = op->kind == MF_OP_ATTENTION_FWD || op->kind == MF_OP_ATTENTION_BWD;
    if (x->out[k].dtype == MF_KERNEL_BF16) {
        return attention ? 2 * EXEC_EPS : EXEC_EPS;
    }
    if (op->kind == MF_OP_GEMM && op->pass == MF_PASS_B && x->in[0].dtype == MF_KERNEL_F32) {
        return EXEC_EPS;
    }
    return 1e-4;
}

/* k C^blocks eps. k: gradients of queries and keys are differences of numbers that are alike; they
 * are off by up to 6 eps where the CPU's results are disturbed as "noisy" does. */
#define EXEC_FREE_K 8.0
#define EXEC_FREE_C 1.03
static inline double exec_bound_after(int blocks) {
    return EXEC_FREE_K * pow(EXEC_FREE_C, blocks) * EXEC_EPS;
}

static inline double exec_free_bound(const exec_watch *w, const mf_exec_op *x, int k) {
    return x->block->tensors[x->op->out[k]].indices ? 0.0 : exec_bound_after(w->blocks);
}

/* --- the CPU as another device ------------------------------------------------------------------
 */

/* One value in sixteen moves: BF16 by one unit in the last place, floats by 2^-20. */
static inline void exec_disturb(uint64_t *noise, const mf_exec_op *x) {
    for (int k = 0; k < x->op->nout && x->block != NULL; k++) {
        const mf_exec_tensor *t = &x->out[k];
        bool exact = exec_is_exact(x, k);
        for (int64_t i = 0; i < t->rows_max * t->cols && !exact; i++) {
            *noise = *noise * 6364136223846793005u + 1442695040888963407u;
            uint64_t random = *noise >> 40;
            if (random % 16 != 0) {
                continue;
            }
            if (t->dtype == MF_KERNEL_BF16) {
                uint16_t *v = (uint16_t *)t->data + i;
                bool edge = (*v & 0x7f) == 0 || (*v & 0x7f) == 0x7f;
                *v = (uint16_t)(edge ? *v : random & 16 ? *v + 1 : *v - 1);
            } else {
                ((float *)t->data)[i] *= random & 16 ? 1.0f + 0x1p-20f : 1.0f - 0x1p-20f;
            }
        }
    }
}

/* --- before an op -------------------------------------------------------------------------------
 */

static inline bool exec_same_op(const exec_entry *t, const mf_exec_op *x) {
    return t->op.kind == x->op->kind && t->op.pass == x->op->pass && t->op.piece == x->op->piece &&
           t->position == x->position && t->op.nin == x->op->nin && t->op.nout == x->op->nout &&
           strcmp(t->op.name, x->op->name) == 0;
}

static inline bool exec_is_weight(const mf_exec_op *x, int k) {
    const int16_t t = x->op->in[k];
    return x->block->tensors[t].class == MF_TENSOR_WEIGHT;
}

static inline void exec_wrong(exec_watch *w, const char *why, double error, double bound) {
    char name[160];
    w->wrong++;
    w->wrong_left_out += w->at == w->skip;
    char text[400];
    snprintf(text, sizeof text, "%s, %s: error %.2e, bound %.2e",
             exec_op_name(&w->record->list[w->at], name), why, error, bound);
    if (w->wrong == 1) {
        snprintf(w->first_text, sizeof w->first_text, "%s", text);
    }
    if (!w->quiet && w->wrong <= 12) {
        printf("      wrong: %s\n", text);
    }
}

/* Weights must be the CPU's already, to the bit; everything else is made so. */
static inline void exec_put_operands(exec_watch *w, const exec_entry *t, const mf_exec_op *x) {
    for (int k = 0; k < x->nin; k++) {
        if (exec_is_weight(x, k)) {
            char *got = exec_download(x, &x->in[k], false, k);
            if (memcmp(got, t->in[k], t->in_B[k]) != 0) {
                exec_wrong(w, "a weight, before the op", (double)INFINITY, 0.0);
            }
            free(got);
        } else {
            exec_upload(x, &x->in[k], false, k, t->in[k], t->in_B[k]);
        }
    }
    for (int k = 0; k < x->op->nout; k++) {
        exec_upload(x, &x->out[k], true, k, t->before[k], t->out_B[k]);
        if (t->sum[k] != NULL) {
            exec_upload(x, &x->sum[k], true, k, t->sum[k], t->out_B[k]);
        }
    }
}

/* The norm and the update then have the CPU's gradients, to be compared alone as well. */
static inline void exec_put_gradients(const exec_watch *w) {
    const mf_params *list = mf_exec_params(w->of->exec);
    mf_err e;
    for (int i = 0; i < list->count; i++) {
        int64_t first, count;
        float *g = mf_exec_own_gradient(w->of->exec, i, &first, &count);
        if (mf_exec_put(w->of->exec, g, w->record->gradient[i], (size_t)count * sizeof *g, &e) !=
            MF_OK) {
            exec_die("gradients", &e);
        }
    }
}

static inline void exec_watch_before(void *user, const mf_exec_op *x) {
    exec_watch *w = user;
    const exec_entry *t = w->at < w->record->count ? &w->record->list[w->at] : NULL;
    if (t == NULL || !exec_same_op(t, x)) {
        printf("FATAL op %d: the device runs %s where the CPU ran %s\n", w->at, x->op->name,
               t != NULL ? t->op.name : "none");
        exit(1);
    }
    if (x->block == NULL) {
        if (w->lockstep && exec_gradients_stand(x->op)) {
            exec_put_gradients(w);
        }
        return;
    }
    for (int k = 0; k < x->nin + x->op->nout; k++) {
        bool in = k < x->nin;
        int i = in ? k : k - x->nin;
        size_t size_B = exec_tensor_B(in ? &x->in[i] : &x->out[i]);
        if (size_B != (in ? t->in_B[i] : t->out_B[i])) {
            printf("FATAL op %d %s: an operand of another size\n", w->at, x->op->name);
            exit(1);
        }
    }
    bool forward = x->op->pass == MF_PASS_F, was = w->last_pass == MF_PASS_F;
    w->blocks += x->position != w->last_position || forward != was;
    w->last_position = x->position;
    w->last_pass = x->op->pass;
    if (w->lockstep) {
        exec_put_operands(w, t, x);
    }
}

/* --- after an op --------------------------------------------------------------------------------
 */

/* What output k should be, to be freed. A device whose products take operands of one type rounds
 * float gradients (the router's) to BF16 before it makes a weight gradient of them; the CPU does
 * not, and where terms cancel the two are further apart than any bound that would find a fault. So
 * what rounding adds is added to the CPU's result. */
static inline char *exec_want(const exec_watch *w, const exec_entry *t, const mf_exec_op *x,
                              int k) {
    const mf_exec_tensor *a = &x->in[0], *b = &x->in[1], *o = &x->out[k];
    char *want = malloc(t->out_B[k]);
    if (want == NULL) {
        abort();
    }
    memcpy(want, t->after[k], t->out_B[k]);
    if (!w->lockstep || x->op->kind != MF_OP_GEMM || x->op->pass != MF_PASS_W ||
        a->dtype != MF_KERNEL_F32 || b->dtype != MF_KERNEL_BF16 || w->under->device->ops->mixed) {
        return want;
    }
    for (int64_t i = 0; i < x->op->dim[MF_OP_DIM_M]; i++) {
        for (int64_t j = 0; j < x->op->dim[MF_OP_DIM_N]; j++) {
            double added = 0.0;
            for (int64_t r = 0; r < x->op->dim[MF_OP_DIM_K]; r++) {
                const float v = mf_kernel_get(t->in[0], a->dtype, r * a->cols + i);
                const float rounded = mf_kernel_bf16_widen(mf_kernel_bf16_round(v));
                added += ((double)rounded - (double)v) *
                         (double)mf_kernel_get(t->in[1], b->dtype, r * b->cols + j);
            }
            const int64_t at = i * o->cols + j;
            const double sum = (double)mf_kernel_get(want, o->dtype, at);
            mf_kernel_put(want, o->dtype, at, (float)(sum + (double)x->op->alpha * added));
        }
    }
    return want;
}

static inline void exec_compare_output(exec_watch *w, const exec_entry *t, const mf_exec_op *x,
                                       int k, const char *got) {
    const mf_exec_tensor *o = &x->out[k];
    double bound = w->lockstep ? exec_lockstep_bound(x, k) : exec_free_bound(w, x, k);
    char *want = exec_want(w, t, x, k);
    bool same = memcmp(got, want, t->out_B[k]) == 0;
    double error = same         ? 0.0
                   : bound == 0 ? (double)INFINITY
                                : exec_error(got, want, o->dtype, o->rows_max * o->cols);
    free(want);
    double over = same ? 0.0 : error / bound;
    char what[120], name[160];
    snprintf(what, sizeof what, "output %d \"%.60s\"", k, x->block->tensors[x->op->out[k]].name);
    w->compared++;
    if (w->under->verbose && !w->quiet) {
        printf("      %-60s %s %.2e\n", exec_op_name(t, name), what, error);
    }
    if (over > w->worst) {
        w->worst = over;
        w->worst_error = error;
        w->worst_bound = bound;
        snprintf(w->worst_text, sizeof w->worst_text, "%s %s", exec_op_name(t, name), what);
    }
    if (w->lockstep && !w->quiet) {
        double *most = &exec_kind_worst[t->op.kind][o->dtype == MF_KERNEL_BF16];
        *most = fmax(*most, error);
    }
    if (!(error <= bound)) {
        exec_wrong(w, what, error, bound);
    }
}

/* A router's choices: near ties are settled as the CPU settled them. */
static inline void exec_settle_choices(exec_watch *w, const exec_entry *t, const mf_exec_op *x,
                                       char *const *got) {
    const exec_choices c = exec_settle(x, t, got);
    double bound = w->lockstep ? 1e-5 : 8 * exec_free_bound(w, x, 1);
    w->routed += c.rows;
    w->otherwise += c.otherwise;
    w->widest = fmax(w->widest, c.widest);
    if (c.widest > bound) {
        exec_wrong(w, "choices that do not tie", c.widest, bound);
    }
    if (c.otherwise == 0) {
        return;
    }
    for (int k = 0; k < x->op->nout; k++) {
        if (k > 1) { /* counts of the choices */
            memcpy(got[k], t->after[k], t->out_B[k]);
        }
        exec_upload(x, &x->out[k], true, k, got[k], t->out_B[k]);
    }
}

static inline void exec_watch_after(void *user, const mf_exec_op *x) {
    exec_watch *w = user;
    const exec_entry *t = &w->record->list[w->at];
    char *got[MF_OP_MAX_OUT] = {NULL};
    if (x->block == NULL) {
        w->at++;
        return;
    }
    if (w->under->noisy && w->at != w->skip) {
        exec_disturb(&w->noise, x);
    }
    for (int k = 0; k < x->op->nout; k++) {
        got[k] = exec_download(x, &x->out[k], true, k);
    }
    if (x->op->kind == MF_OP_ROUTER_FWD && x->op->pass == MF_PASS_F) {
        exec_settle_choices(w, t, x, got);
    }
    for (int k = 0; k < x->op->nout; k++) {
        exec_compare_output(w, t, x, k, got[k]);
        free(got[k]);
    }
    w->at++;
}

/* Of the op that after_op has not counted yet. */
static inline bool exec_watch_skips(void *user, const mf_op *op) {
    const exec_watch *w = user;
    (void)op;
    return w->at == w->skip;
}

#endif
