/* layouts_case.h - a layout's ranks on a device, held against one rank of the CPU, both in BF16:
 * all gradients of a batch, then the losses and the norm of three steps. */
#ifndef MF_TESTS_GPU_LAYOUTS_CASE_H
#define MF_TESTS_GPU_LAYOUTS_CASE_H

#include "executor/comm/comm_status.h"
#include "tests/gpu/exec_compare.h"
#include "tests/gpu/layouts_list.h"
#include "tests/support/grid_case.h"

enum { LAYOUTS_SEQ = 64, LAYOUTS_GBS = 8 };

/* How much of it runs: all, but under tools that make every kernel slow. */
typedef struct layouts_size {
    int64_t batch, steps; /* samples of a step, steps: at most LAYOUTS_GBS, GRID_STEPS */
} layouts_size;

static layouts_size layouts_sized = {LAYOUTS_GBS, GRID_STEPS};
static bool layouts_deterministic; /* on a device that is fixed */

#define LAYOUTS_LR 3e-3 /* what an update changes is far above what rounding does */

/* Faults that are planted on purpose: ops that all ranks leave out; the comparison has to see it.
 */
typedef struct layouts_fault {
    const char *name;
    mf_op_kind kind;
    mf_group_kind group;
    unsigned passes; /* of these alone */
} layouts_fault;

enum { LAYOUTS_BLOCKS = MF_PASS_F | MF_PASS_BACKWARD };

static const layouts_fault layouts_faults[] = {
    {"gradients", MF_OP_ALL_REDUCE, MF_GROUP_DP_CP, MF_PASS_O},
    {"shards", MF_OP_REDUCE_SCATTER, MF_GROUP_DP_CP, MF_PASS_O},
    {"weights", MF_OP_ALL_GATHER, MF_GROUP_DP_CP, MF_PASS_O},
    {"expert-weights", MF_OP_ALL_GATHER, MF_GROUP_EDP, MF_PASS_O},
    {"tp", MF_OP_REDUCE_SCATTER, MF_GROUP_TP, LAYOUTS_BLOCKS},
    {"combine", MF_OP_COMBINE, MF_GROUP_EP, LAYOUTS_BLOCKS},
    {"dispatch", MF_OP_DISPATCH, MF_GROUP_EP, MF_PASS_B}, /* a window then has what came before */
    {"ring", MF_OP_SEND_RECV, MF_GROUP_CP, LAYOUTS_BLOCKS},
    {"etp", MF_OP_REDUCE_SCATTER, MF_GROUP_ETP, MF_PASS_F},
    {"statistics", MF_OP_ALL_REDUCE, MF_GROUP_TP, LAYOUTS_BLOCKS}, /* of the loss */
    {"fetch", MF_OP_COPY_H2D, MF_GROUP_NONE, LAYOUTS_BLOCKS},      /* of activations */
};
enum { LAYOUTS_FAULTS = sizeof layouts_faults / sizeof layouts_faults[0] };

typedef struct layouts_case {
    grid_case g;
    mf_device *device;
    mf_comm *wire;
    const layouts_fault *fault; /* NULL: none */
    int left_out;
    bool bits; /* layouts_bits first */
} layouts_case;

static inline bool layouts_skips(void *user, const mf_op *op) {
    layouts_case *c = user;
    const layouts_fault *f = c->fault;
    bool skips =
        f != NULL && op->kind == f->kind && op->group == f->group && (op->pass & f->passes) != 0;
    c->left_out += skips;
    return skips;
}

static inline void layouts_layout(const layouts_row *r, mf_layout *l) {
    mf_layout_init(l);
    l->gpus = r->ranks;
    l->tp = r->tp > 0 ? r->tp : 1;
    l->cp = r->cp > 0 ? r->cp : 1;
    l->pp = r->pp > 0 ? r->pp : 1;
    l->vpp = r->vpp > 0 ? r->vpp : 1;
    l->ep = r->ep > 0 ? r->ep : 1;
    l->etp = r->etp > 0 ? r->etp : 1;
    l->gbs = layouts_sized.batch;
    l->deterministic = layouts_deterministic;
    int64_t each = l->gbs * l->tp * l->cp * l->pp / l->gpus; /* samples of a DP rank */
    l->mbs = r->mbs > 0 ? r->mbs : l->pp > 1 || each < 4 ? 1 : each / 2;
    l->seq = LAYOUTS_SEQ;
    l->zero = (uint8_t)r->zero;
    l->expert_zero = (uint8_t)r->expert_zero;
    l->schedule = r->schedule;
    l->dispatcher = r->dispatcher;
    l->cp_type = r->cp_type;
    l->memory.recompute = r->recompute;
    l->memory.offload = r->offload;
    l->offload_optimizer = r->states;
    l->precision = MF_PREC_BF16;
    l->overlap = MF_OVERLAP_EP | MF_OVERLAP_TP | MF_OVERLAP_DP | MF_OVERLAP_PP | MF_OVERLAP_CP;
    l->aux_scope = MF_AUX_SEQUENCE;
    l->token_headroom = (double)l->ep; /* the worst case */
    l->capacity_factor = layouts_models[r->model].capacity;
}

static inline void layouts_text(const layouts_row *r, char *out, size_t size) {
    char recompute[96], offload[64];
    mf_layout l;
    layouts_layout(r, &l);
    mf_recompute_format(l.memory.recompute, recompute, sizeof recompute);
    mf_offload_format(l.memory.offload, offload, sizeof offload);
    int64_t dp = l.gpus / (l.tp * l.cp * l.pp), edp = l.gpus / (l.ep * l.etp * l.pp);
    snprintf(
        out, size,
        "%d ranks %s tp%d cp%d%s dp%d pp%d vpp%d ep%d etp%d edp%d mbs%d zero%d/%d %s %s%s%s%s%s "
        "states%g",
        r->ranks, layouts_models[r->model].name, (int)l.tp, (int)l.cp,
        l.cp > 1 ? mf_cp_type_text(l.cp_type) : "", (int)dp, (int)l.pp, (int)l.vpp, (int)l.ep,
        (int)l.etp, (int)edp, (int)l.mbs, r->zero, r->expert_zero,
        l.pp > 1 ? mf_schedule_text(l.schedule) : "-",
        l.ep > 1 ? mf_dispatcher_text(l.dispatcher) : "-", r->recompute != 0 ? " again:" : "",
        r->recompute != 0 ? recompute : "", r->offload != 0 ? " offload:" : "",
        r->offload != 0 ? offload : "", r->states);
}

/* Tokens with some order in them, so that there is something to learn; the same everywhere. */
static inline mf_status layouts_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    const grid_case *g = user;
    uint64_t state = (uint64_t)(g->step * LAYOUTS_GBS + index + 1) * 0x9E3779B97F4A7C15u;
    (void)e;
    for (int64_t i = 0; i <= LAYOUTS_SEQ; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t random = (state >> 33) % 7;
        tokens[i] = (int32_t)((random + 3 * (uint64_t)i + (uint64_t)index) % 127);
    }
    return MF_OK;
}

static inline mf_status layouts_model_load(const layouts_model *m, mf_model *out, mf_err *e) {
    char path[128];
    size_t count = 0;
    while (count < LAYOUTS_OVERRIDES && m->override[count] != NULL) {
        count++;
    }
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", m->config);
    return mf_model_load_with(path, m->override, count, out, e);
}

static inline mf_status layouts_program(layouts_case *c, const layouts_row *r, mf_err *e) {
    grid_case *g = &c->g;
    const layouts_model *m = &layouts_models[r->model];
    layouts_layout(r, &g->layout);
    mf_status s = layouts_model_load(m, &g->model, e);
    s = s == MF_OK ? mf_cluster_load(c->device->ops->on_host ? "cpu" : "h200", &g->cluster, e) : s;
    g->model.aux_loss_coef = g->model.experts > 0 ? 0.01 : 0.0;
    s = s == MF_OK ? mf_layout_resolve(&g->layout, &g->model, e) : s;
    s = s == MF_OK ? mf_assignment_even(&g->model, &g->layout, &g->assignment, e) : s;
    s = s == MF_OK
            ? mf_program_lower(&g->model, &g->layout, &g->cluster, &g->assignment, &g->program, e)
            : s;
    return s == MF_OK ? mf_schedule_create(&g->layout, &g->schedule, e) : s;
}

/* Ready for its first step. Collective; on every rank the same status. */
static inline mf_status layouts_open(layouts_case *c, const layouts_row *r, mf_device *device,
                                     const layouts_fault *fault, mf_err *e) {
    grid_case *g = &c->g;
    mf_exec_options o;
    memset(c, 0, sizeof *c);
    c->device = device;
    mf_exec_options_init(&o);
    o.eps = 1e-4; /* small gradients then do not leap by their sign */
    o.aux_coef = 0.01;
    o.force_balance = layouts_models[r->model].even;
    mf_status s = layouts_program(c, r, e);
    s = s == MF_OK ? mf_comm_create(&g->layout, &g->comm, e) : s;
    if (s == MF_OK && r->ranks > 1 && device->ops->connect != NULL) {
        s = device->ops->connect(device, g->comm, &g->layout, &c->wire, e);
    }
    o.wire = c->wire;
    o.skips = layouts_skips;
    o.user = c;
    c->fault = fault;
    s = s == MF_OK ? mf_exec_create(g->program, g->schedule, g->comm, device, &o, &g->exec, e) : s;
    if (s == MF_OK) {
        mf_rank_coords at = mf_layout_coords(&g->layout, mf_comm_rank(g->comm));
        s = mf_train_init_weights(g->exec, g->program, &at, 17, e);
        s = s == MF_OK ? mf_exec_share_weights(g->exec, e) : s;
        s = s == MF_OK ? mf_exec_prepare(g->exec, e) : s;
    }
    return g->comm != NULL ? mf_comm_agree(g->comm, s, e) : s;
}

static inline void layouts_close(layouts_case *c) {
    mf_exec_destroy(c->g.exec);
    mf_comm_destroy(c->wire);
    c->g.exec = NULL;
    grid_close(&c->g);
}

/* Reduced gradients of this rank's elements of parameter i, in host memory; to be freed. */
static inline float *layouts_gradient(layouts_case *c, int i, int64_t *first, int64_t *count) {
    const float *there = mf_exec_own_gradient(c->g.exec, i, first, count);
    float *values = exec_allocate((size_t)*count * sizeof *values);
    exec_copy(c->device, values, there, (size_t)*count * sizeof *values);
    return values;
}

/* --- the reference ------------------------------------------------------------------------------
 */

static inline void layouts_keep(layouts_case *c, grid_reference *ref) {
    const mf_params *list = mf_exec_params(c->g.exec);
    mf_rank_coords at = mf_layout_coords(&c->g.layout, 0);
    for (int i = 0; i < list->count; i++) {
        const mf_param *q = &list->list[i];
        int64_t first, count;
        float *from = layouts_gradient(c, i, &first, &count);
        mf_param_piece p;
        for (int k = 0; mf_param_piece_at(c->g.program, &at, q, k, &p); k++) {
            ref->tensor = realloc(ref->tensor, (size_t)(ref->count + 1) * sizeof *ref->tensor);
            grid_tensor *t = &ref->tensor[ref->count++];
            *t = (grid_tensor){.rows = p.rows, .cols = p.cols};
            snprintf(t->name, sizeof t->name, "%s", p.name);
            t->gradient = exec_allocate((size_t)(p.rows * p.cols) * sizeof(float));
            t->weight = exec_allocate((size_t)(p.rows * p.cols) * sizeof(float));
            for (int64_t r = 0; r < p.rows; r++) {
                memcpy(t->gradient + r * p.cols, from + (p.at_row + r) * q->cols + p.at_col,
                       (size_t)p.cols * sizeof(float));
            }
            t->gradient_norm = grid_norm(t->gradient, p.rows * p.cols);
        }
        free(from);
    }
}

static inline mf_status layouts_reference(int model, grid_reference *ref, mf_err *e) {
    const layouts_row one = {.ranks = 1, .model = model, .mbs = 2};
    layouts_case c;
    mf_exec_result r;
    *ref = (grid_reference){0};
    mf_status s = layouts_open(&c, &one, mf_device_cpu(), NULL, e);
    const mf_exec_batch batch = {layouts_sample, &c.g};
    for (; c.g.step < layouts_sized.steps && s == MF_OK; c.g.step++) {
        s = mf_exec_step(c.g.exec, &batch, LAYOUTS_LR, &r, e);
        if (s == MF_OK && c.g.step == 0) {
            layouts_keep(&c, ref);
        }
        ref->lm_loss[c.g.step] = r.lm_loss;
        ref->mtp_loss[c.g.step] = r.mtp_loss;
        ref->aux_loss[c.g.step] = r.aux_loss;
        ref->norm[c.g.step] = r.grad_norm;
    }
    layouts_close(&c);
    return s;
}

/* --- a layout against it ------------------------------------------------------------------------
 */

typedef struct layouts_errors {
    double all, tensor;     /* of gradients: of all together, of the worst parameter */
    double loss, norm, aux; /* largest of all steps, relative */
    char worst[200];        /* parameter */
    int left_out;           /* ops, by a planted fault */
    bool window;            /* a fused dispatcher went through one; */
    char dispatch[256];     /* in words */
} layouts_errors;

static inline void layouts_gradients(layouts_case *c, const grid_reference *ref,
                                     layouts_errors *out) {
    const mf_params *list = mf_exec_params(c->g.exec);
    grid_sums sums;
    char own[200];
    double difference = 0.0, size = 0.0;
    grid_sums_init(&sums, ref);
    for (int i = 0; i < list->count; i++) {
        int64_t first, count;
        float *values = layouts_gradient(c, i, &first, &count);
        grid_error(&c->g, ref, &list->list[i], true, values, first, count, &sums, own);
        free(values);
    }
    out->tensor = grid_sums_error(&c->g, ref, &sums, true, out->worst);
    for (int i = 0; i < ref->count; i++) {
        const grid_tensor *t = &ref->tensor[i];
        double copies = sums.held[i] / (double)(t->rows * t->cols);
        difference += sums.difference[i] / copies;
        size += t->gradient_norm * t->gradient_norm;
    }
    out->all = sqrt(difference / (size + 1e-30));
    grid_sums_clear(&sums);
}

/* Losses, norm and this rank's gradients; to be freed. */
static inline char *layouts_kept(layouts_case *c, size_t *size_B, mf_err *e) {
    const mf_exec_batch batch = {layouts_sample, &c->g};
    const mf_params *list = mf_exec_params(c->g.exec);
    mf_exec_result r;
    if (mf_exec_gradients(c->g.exec, &batch, &r, e) != MF_OK) {
        return NULL;
    }
    const double said[] = {r.lm_loss, r.mtp_loss, r.aux_loss, r.grad_norm};
    char *kept = exec_kept(said, sizeof said);
    *size_B = sizeof said;
    for (int i = 0; i < list->count; i++) {
        int64_t first, count;
        float *values = layouts_gradient(c, i, &first, &count);
        kept = realloc(kept, *size_B + (size_t)count * sizeof *values);
        memcpy(kept + *size_B, values, (size_t)count * sizeof *values);
        *size_B += (size_t)count * sizeof *values;
        free(values);
    }
    return kept;
}

/* Streams on queues of their own leave what one queue leaves, to the bit, each time. Of a device
 * that is fixed (mf_device_ops.fix). */
static inline mf_status layouts_bits(layouts_case *c, mf_err *e) {
    enum { ROUNDS = 4 };
    size_t size_B = 0, again_B = 0;
    mf_exec_use_streams(c->g.exec, false);
    char *want = layouts_kept(c, &size_B, e);
    mf_exec_use_streams(c->g.exec, true);
    mf_status s = want != NULL ? MF_OK : e->status;
    for (int k = 0; k < ROUNDS && s == MF_OK; k++) {
        char *got = layouts_kept(c, &again_B, e);
        size_t at = 0;
        while (got != NULL && at < size_B && want[at] == got[at]) {
            at++;
        }
        s = got == NULL ? e->status
            : at < size_B
                ? mf_err_set(e, MF_TOLERANCE, "round %d: byte %zu of %zu is another on streams", k,
                             at, size_B)
                : MF_OK;
        free(got);
    }
    free(want);
    return s;
}

/* A step op by op, then steps that are played as a graph where the device can. */
static inline mf_status layouts_run(layouts_case *c, const grid_reference *ref, layouts_errors *out,
                                    mf_err *e) {
    const mf_exec_batch batch = {layouts_sample, &c->g};
    mf_exec_result r;
    *out = (layouts_errors){.window = mf_exec_window_B(c->g.exec) > 0};
    snprintf(out->dispatch, sizeof out->dispatch, "%s", mf_exec_dispatch_text(c->g.exec));
    c->g.step = 0;
    mf_status s = c->bits ? layouts_bits(c, e) : MF_OK;
    for (; c->g.step < layouts_sized.steps && s == MF_OK; c->g.step++) {
        int64_t k = c->g.step;
        mf_exec_use_graph(c->g.exec, k > 0);
        s = mf_exec_step(c->g.exec, &batch, LAYOUTS_LR, &r, e);
        if (s == MF_OK && k == 0) {
            layouts_gradients(c, ref, out);
        }
        bool wrong = s != MF_OK || r.skipped || r.overflowed;
        out->loss =
            fmax(out->loss, wrong ? (double)INFINITY : exec_off(r.lm_loss, ref->lm_loss[k]));
        out->loss =
            fmax(out->loss, fabs(ref->mtp_loss[k]) > 0 ? exec_off(r.mtp_loss, ref->mtp_loss[k])
                                                       : fabs(r.mtp_loss));
        out->left_out = c->left_out;
        out->norm = fmax(out->norm, exec_off(r.grad_norm, ref->norm[k]));
        out->aux =
            fmax(out->aux, fabs(ref->aux_loss[k]) > 0 ? exec_off(r.aux_loss, ref->aux_loss[k])
                                                      : fabs(r.aux_loss));
    }
    return s;
}

/* Bounds: rounding to BF16 in other places, and where routers choose for themselves, rows that go
 * elsewhere on a near tie, each of which is a part of its expert's gradient. */
static inline bool layouts_near(const layouts_row *r, const layouts_errors *x) {
    bool even = layouts_models[r->model].even;
    return x->all <= (even ? 0.03 : 0.1) && x->tensor <= (even ? 0.1 : 0.6) && x->loss <= 2e-3 &&
           x->norm <= (even ? 1e-2 : 3e-2) && x->aux <= 5e-2;
}

#endif
