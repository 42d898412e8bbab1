/* shadow_case.h - a Hugging Face reference of tests/data/hf trained for some steps on any device,
 * and all that the steps leave, so that runs can be held against each other to the bit. */
#ifndef MF_TESTS_SHADOW_CASE_H
#define MF_TESTS_SHADOW_CASE_H

#include "executor/step/program_run.h"
#include "executor/train/train.h"
#include "tests/support/shadow_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shadow_setup {
    const char *family;
    mf_precision precision;
    int64_t mbs; /* of a global batch of 4; 0: 2 */
    uint16_t recompute, offload;
    double capacity; /* factor; 0: dropless */
    bool mtp;        /* with the model's MTP depths, weights from a seed */
    bool force, graph;
    double aux_coef, z_coef;
    int zero;
    void (*layout)(mf_layout *l); /* more of it; NULL: nothing */
} shadow_setup;

typedef struct shadow_case {
    shadow_setup setup;
    mf_model model;
    mf_layout layout;
    mf_cluster cluster;
    mf_assignment assignment;
    mf_program *program;
    mf_schedule *schedule;
    mf_comm *comm, *wire;
    mf_device *device;
    mf_exec *exec;
    mf_safetensors *weights, *batch; /* NULL: weights from a seed */
    mf_status (*sample)(void *user, int64_t index, int32_t *tokens, mf_err *e);
    int64_t step;           /* batch that samples come from */
    const mf_op *under_way; /* as far as a listener to ops has heard */
    char unpaired[80]; /* the first op of which a listener did not hear both before and behind it */
} shadow_case;

static inline mf_status shadow_sample(void *user, int64_t index, int32_t *tokens, mf_err *e) {
    const shadow_case *c = user;
    const mf_st_tensor *t = mf_safetensors_find(c->batch, "tokens");
    (void)e;
    for (int64_t i = 0; i <= c->layout.seq; i++) {
        tokens[i] = (int32_t)mf_st_get(t, (c->step * c->layout.gbs + index) * c->layout.seq + i);
    }
    return MF_OK;
}

static inline void shadow_layout_of(const shadow_setup *s, mf_layout *l) {
    mf_layout_init(l);
    l->gpus = 1;
    l->mbs = s->mbs > 0 ? s->mbs : 2;
    l->gbs = 4;
    l->seq = 64;
    l->precision = s->precision;
    l->overlap = 0;
    l->dispatcher = MF_DISPATCH_ALLGATHER;
    l->capacity_factor = s->capacity;
    l->memory.recompute = s->recompute;
    l->memory.offload = s->offload;
    l->zero = l->expert_zero = (uint8_t)s->zero;
    if (s->layout != NULL) {
        s->layout(l);
    }
}

static inline mf_status shadow_case_read(shadow_case *c, mf_err *e) {
    const char *no_mtp = "num_nextn_predict_layers=0", *family = c->setup.family;
    bool depths = strcmp(family, "deepseek_v3") == 0 && !c->setup.mtp;
    char path[256];
    snprintf(path, sizeof path, "tests/data/hf/%s/config.json", family);
    mf_status s = mf_model_load_with(path, &no_mtp, depths, &c->model, e);
    snprintf(path, sizeof path, "tests/data/hf/%s/model.safetensors", family);
    s = s == MF_OK ? mf_safetensors_open(path, &c->weights, e) : s;
    snprintf(path, sizeof path, "tests/data/hf/%s/batch.safetensors", family);
    return s == MF_OK ? mf_safetensors_open(path, &c->batch, e) : s;
}

static inline void shadow_case_options(const shadow_setup *s, mf_exec_options *o) {
    mf_exec_options_init(o);
    o->bias_rate = 1e-3;
    o->aux_coef = s->aux_coef;
    o->z_coef = s->z_coef;
    o->force_balance = s->force;
    o->graph = s->graph;
}

/* From a model and a layout; the plan is that of the device. */
static inline mf_status shadow_case_program(shadow_case *c, const mf_device *device, mf_err *e) {
    mf_cluster cpu;
    mf_status s = mf_cluster_load("cpu", &cpu, e);
    s = s == MF_OK ? mf_cluster_load(device->ops->on_host ? "cpu" : "h200", &c->cluster, e) : s;
    c->cluster.scaleup_Bps =
        cpu.scaleup_Bps; /* into how many pieces ops are divided goes by these */
    c->cluster.nic_Bps = cpu.nic_Bps;
    c->cluster.gpu.sms = cpu.gpu.sms;
    memcpy(c->cluster.gpu.peak_flops, cpu.gpu.peak_flops, sizeof cpu.gpu.peak_flops);
    c->cluster.domain_gpus_used = 2 * c->layout.tp;  /* pairs for hierarchical CP */
    c->layout.token_headroom = (double)c->layout.ep; /* the worst case */
    s = s == MF_OK ? mf_layout_resolve(&c->layout, &c->model, e) : s;
    s = s == MF_OK ? mf_assignment_even(&c->model, &c->layout, &c->assignment, e) : s;
    s = s == MF_OK
            ? mf_program_lower(&c->model, &c->layout, &c->cluster, &c->assignment, &c->program, e)
            : s;
    return s == MF_OK ? mf_schedule_create(&c->layout, &c->schedule, e) : s;
}

/* Up to where an executor can be made, on the host alone. */
static inline mf_status shadow_case_lower(shadow_case *c, const shadow_setup *setup,
                                          const mf_device *device, mf_err *e) {
    memset(c, 0, sizeof *c);
    c->setup = *setup;
    c->sample = shadow_sample;
    mf_status s = shadow_case_read(c, e);
    shadow_layout_of(setup, &c->layout);
    c->model.aux_loss_coef = c->model.experts > 0 ? setup->aux_coef : 0.0;
    return s == MF_OK ? shadow_case_program(c, device, e) : s;
}

/* `o`: of shadow_case_options, with more in it; its wire is set here. */
static inline mf_status shadow_case_start(shadow_case *c, mf_device *device, mf_exec_options *o,
                                          mf_err *e) {
    c->device = device;
    mf_status s = mf_comm_create(&c->layout, &c->comm, e);
    if (s == MF_OK && !device->ops->on_host) {
        s = shadow_comm_create(device, c->comm, &c->layout, &c->wire, e);
        if (s == MF_OK) {
            mf_comm_use_stream(c->wire, device->ops->queue(device, MF_STREAM_COMPUTE)->stream);
        }
        o->wire = c->wire;
    }
    s = s == MF_OK ? mf_exec_create(c->program, c->schedule, c->comm, device, o, &c->exec, e) : s;
    if (s == MF_OK && (c->setup.mtp || c->weights == NULL)) {
        const mf_rank_coords at = mf_layout_coords(&c->layout, mf_comm_rank(c->comm));
        s = mf_train_init_weights(c->exec, c->program, &at, 7, e);
        s = s == MF_OK ? mf_exec_share_weights(c->exec, e) : s;
    } else if (s == MF_OK) {
        s = mf_exec_load(c->exec, c->weights, e);
    }
    return s == MF_OK ? mf_exec_prepare(c->exec, e) : s;
}

static inline mf_status shadow_case_open(shadow_case *c, const shadow_setup *setup,
                                         mf_device *device, mf_err *e) {
    mf_exec_options o;
    shadow_case_options(setup, &o);
    mf_status s = shadow_case_lower(c, setup, device, e);
    return s == MF_OK ? shadow_case_start(c, device, &o, e) : s;
}

static inline void shadow_case_close(shadow_case *c) {
    mf_exec_destroy(c->exec);
    mf_comm_destroy(c->wire);
    mf_comm_destroy(c->comm);
    mf_schedule_destroy(c->schedule);
    mf_program_destroy(c->program);
    mf_safetensors_close(c->weights);
    mf_safetensors_close(c->batch);
    memset(c, 0, sizeof *c);
}

/* --- what steps leave ---------------------------------------------------------------------------
 */

enum { SHADOW_STEPS = 16 };

typedef struct shadow_bytes {
    size_t size_B, allocated_B;
    char *data;
    size_t ops_at[SHADOW_STEPS]; /* where each step says how many ops it ran */
    int steps;
} shadow_bytes;

static inline void shadow_bytes_add(shadow_bytes *b, const void *data, size_t size_B) {
    if (b->size_B + size_B > b->allocated_B) {
        b->allocated_B = 2 * (b->size_B + size_B);
        b->data = realloc(b->data, b->allocated_B);
        if (b->data == NULL) {
            abort();
        }
    }
    if (size_B > 0) {
        memcpy(b->data + b->size_B, data, size_B);
    }
    b->size_B += size_B;
}

static inline void shadow_bytes_clear(shadow_bytes *b) {
    free(b->data);
    *b = (shadow_bytes){0};
}

/* Losses, norm, what became of the update, and how many tokens experts got. */
static inline mf_status shadow_keep_result(shadow_case *c, const mf_exec_result *r, shadow_bytes *b,
                                           mf_err *e) {
    enum { OPS = 5 };
    const double all[] = {r->lm_loss, r->mtp_loss,           r->aux_loss,
                          r->z_loss,  r->grad_norm,          (double)r->ops,
                          r->skipped, (double)r->overflowed, (double)mf_exec_steps(c->exec)};
    size_t n = (size_t)(c->assignment.positions * c->model.experts);
    double *load = calloc(n + 1, sizeof *load);
    if (load == NULL) {
        return mf_err_set(e, MF_NOMEM, "out of memory");
    }
    if (b->steps < SHADOW_STEPS) {
        b->ops_at[b->steps++] = b->size_B + OPS * sizeof all[0];
    }
    shadow_bytes_add(b, all, sizeof all);
    mf_status s = mf_exec_expert_load(c->exec, load, e);
    shadow_bytes_add(b, load, n * sizeof *load);
    free(load);
    return s;
}

/* Steps [c->step, to) with learning rates that change, each one's results behind `b`. */
static inline mf_status shadow_steps(shadow_case *c, int64_t to, shadow_bytes *b, mf_err *e) {
    const mf_exec_batch batch = {c->sample, c};
    mf_status s = MF_OK;
    for (; c->step < to && s == MF_OK; c->step++) {
        mf_exec_result r;
        s = mf_exec_step(c->exec, &batch, 1e-3 / (double)(1 + c->step), &r, e);
        s = s == MF_OK ? shadow_keep_result(c, &r, b, e) : s;
    }
    return s;
}

/* Master weights, moments, and correction biases behind `b`. */
static inline mf_status shadow_keep_states(shadow_case *c, shadow_bytes *b, mf_err *e) {
    const mf_params *list = mf_exec_params(c->exec);
    mf_status status = MF_OK;
    for (int i = 0; i < list->count && status == MF_OK; i++) {
        mf_exec_state s = {0};
        status = mf_exec_state_of(c->exec, i, &s, e);
        for (int k = 0; k < MF_EXEC_STATES && status == MF_OK; k++) {
            shadow_bytes_add(b, s.value[k], (size_t)s.count * mf_kernel_dtype_B(s.dtype[k]));
        }
    }
    mf_exec_state_release(c->exec);
    mf_queue *q = c->device->ops->queue(c->device, MF_STREAM_COMPUTE);
    for (int i = 0; i < c->assignment.positions && status == MF_OK; i++) {
        const float *there = mf_exec_correction_bias(c->exec, i);
        float bias[MF_ROUTE_MAX_EXPERTS];
        size_t size_B = there != NULL ? (size_t)c->model.experts * sizeof *bias : 0;
        if (size_B > 0) {
            status = c->device->ops->copy(q, bias, there, size_B, e);
            status = status == MF_OK ? c->device->ops->wait(c->device, e) : status;
            shadow_bytes_add(b, bias, size_B);
        }
    }
    return status;
}

/* A whole run: so many steps, and what they leave. */
static inline mf_status shadow_train(const shadow_setup *setup, mf_device *device, int64_t steps,
                                     shadow_bytes *out, mf_err *e) {
    shadow_case c;
    *out = (shadow_bytes){0};
    mf_status s = shadow_case_open(&c, setup, device, e);
    s = s == MF_OK ? shadow_steps(&c, steps, out, e) : s;
    s = s == MF_OK ? shadow_keep_states(&c, out, e) : s;
    shadow_case_close(&c);
    return s;
}

#endif
