/* state.c - what checkpoints and metrics look at between two steps. */
#include "executor/step/exec.h"

#include <stdlib.h>
#include <string.h>

static void find_state(const mf_exec *x, int i, mf_exec_state *out) {
    const mf_param *q = &x->params.list[i];
    int half = q->expert;
    *out = (mf_exec_state){0};
    float *weight = mf_exec_own_weight(x, i, &out->first, &out->count);
    if (out->count == 0) {
        return;
    }
    int64_t moment_B = (int64_t)mf_kernel_dtype_B(x->moment_type);
    int64_t in_shard = mf_exec_in_shard(x, q->position, half, q->offset + out->first);
    out->value[MF_EXEC_WEIGHT] = weight;
    out->value[MF_EXEC_MOMENT1] = x->moments[0][half] + moment_B * in_shard;
    out->value[MF_EXEC_MOMENT2] = x->moments[1][half] + moment_B * in_shard;
    out->dtype[MF_EXEC_WEIGHT] = MF_KERNEL_F32;
    out->dtype[MF_EXEC_MOMENT1] = out->dtype[MF_EXEC_MOMENT2] = x->moment_type;
}

static size_t state_B(const mf_exec_state *s, int k) {
    return (size_t)s->count * mf_kernel_dtype_B(s->dtype[k]);
}

static int64_t states_B(const mf_exec *x, int i) {
    mf_exec_state s;
    int64_t size_B = 0;
    find_state(x, i, &s);
    for (int k = 0; k < MF_EXEC_STATES; k++) {
        size_B += mf_align_B((int64_t)state_B(&s, k));
    }
    return size_B;
}

int64_t mf_exec_staging_B(const mf_exec *x) {
    int64_t size_B = 0;
    for (int i = 0; i < x->params.count; i++) {
        size_B += states_B(x, i);
    }
    return size_B;
}

/* Space for the states of all parameters: a checkpoint names them before it writes them. Memory of
 * the kind that the device copies to fastest. */
static mf_status make_staging(mf_exec *x, mf_err *e) {
    int64_t at = 0;
    void *memory = NULL;
    if (x->staging != NULL) {
        return MF_OK;
    }
    free(x->staging_at);
    x->staging_at = calloc((size_t)x->params.count + 1, sizeof *x->staging_at);
    for (int i = 0; x->staging_at != NULL && i < x->params.count; i++) {
        x->staging_at[i] = at;
        at += states_B(x, i);
    }
    mf_status status = x->staging_at != NULL
                           ? mf_exec_device(x)->allocate_host(x->device, at + 1, &memory, e)
                           : MF_NOMEM;
    x->staging = memory;
    return status == MF_OK
               ? MF_OK
               : mf_err_set(e, MF_NOMEM, "no %lld bytes of host memory for a checkpoint",
                            (long long)at);
}

/* The places of a parameter's states in staging; copies: from where they are, without waiting. */
static mf_status stage(mf_exec *x, int i, bool copies, mf_exec_state *s, mf_err *e) {
    mf_status status = MF_OK;
    char *host = x->staging + x->staging_at[i];
    for (int k = 0; k < MF_EXEC_STATES && status == MF_OK; k++) {
        status =
            copies ? mf_exec_read_state(x, host, s->value[k], (int64_t)state_B(s, k), e) : MF_OK;
        s->value[k] = host;
        host += mf_align_B((int64_t)state_B(s, k));
    }
    return status;
}

mf_status mf_exec_state_of(mf_exec *x, int i, mf_exec_state *out, mf_err *e) {
    find_state(x, i, out);
    if ((mf_exec_device(x)->on_host && !x->staged) || out->count == 0) {
        return MF_OK;
    }
    mf_status status = make_staging(x, e);
    status = status == MF_OK ? stage(x, i, !x->staged, out, e) : status;
    return status == MF_OK && !x->staged ? mf_exec_device(x)->wait(x->device, e) : status;
}

mf_status mf_exec_state_stage(mf_exec *x, mf_err *e) {
    const float *corrections;
    x->staged = false;
    mf_status status = make_staging(x, e);
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        mf_exec_state s;
        find_state(x, i, &s);
        status = s.count > 0 ? stage(x, i, true, &s, e) : MF_OK;
    }
    status = status == MF_OK ? mf_exec_corrections(x, &corrections, e) : status;
    status = status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
    x->staged = status == MF_OK;
    return status;
}

void mf_exec_state_release(mf_exec *x) {
    mf_exec_device(x)->release_host(x->device, x->staging);
    free(x->staging_at);
    x->staging = NULL;
    x->staging_at = NULL;
    x->staged = false;
}

mf_status mf_exec_corrections(mf_exec *x, const float **out, mf_err *e) {
    size_t size_B = (size_t)(x->p->assignment.positions * x->p->model.experts) * sizeof(float);
    if (x->corrections_copy == NULL) {
        x->corrections_copy = malloc(size_B + 1);
    }
    *out = x->corrections_copy;
    if (*out != NULL && x->staged) {
        return MF_OK;
    }
    return *out != NULL ? mf_exec_fetch(x, x->corrections_copy, x->corrections, size_B, e)
                        : mf_err_set(e, MF_NOMEM, "executor: out of memory");
}

mf_status mf_exec_state_put(mf_exec *x, int i, const mf_exec_state *s, mf_err *e) {
    mf_exec_state there;
    mf_status status = MF_OK;
    find_state(x, i, &there);
    for (int k = 0; k < MF_EXEC_STATES && status == MF_OK && there.count > 0; k++) {
        if (there.value[k] != s->value[k]) {
            status = mf_exec_write_state(x, there.value[k], s->value[k], (int64_t)state_B(s, k), e);
        }
    }
    return status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
}

mf_status mf_exec_put_own_weight(mf_exec *x, int i, const float *values, mf_err *e) {
    int64_t first, count;
    float *master = mf_exec_own_weight(x, i, &first, &count);
    mf_status status = mf_exec_write_state(x, master, values, 4 * count, e);
    return status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
}

bool mf_exec_draws_own_weight(const mf_exec *x, int i) {
    int64_t first, count;
    const float *master = mf_exec_own_weight(x, i, &first, &count);
    return !mf_exec_device(x)->on_host && mf_exec_param(x, i) == NULL &&
           (const char *)(master + count) <= x->host_states;
}

mf_status mf_exec_clear_own_weight(mf_exec *x, int i, mf_err *e) {
    int64_t first, count;
    float *master = mf_exec_own_weight(x, i, &first, &count);
    return mf_exec_device(x)->zero(x->queue, master, (size_t)count * sizeof *master, e);
}

mf_status mf_exec_draw_own_weight(mf_exec *x, int i, mf_kernel_normal piece, mf_err *e) {
    piece.w = mf_exec_own_weight(x, i, &piece.first, &piece.count);
    return piece.count > 0 ? mf_exec_device(x)->normal(x->queue, &piece, e) : MF_OK;
}

bool mf_exec_state_copied(const mf_exec *x, int i, mf_group_kind *group) {
    bool expert = x->params.list[i].expert;
    *group = expert ? MF_GROUP_EDP : MF_GROUP_DP_CP;
    return (expert ? x->p->layout.expert_zero : x->p->layout.zero) == 0;
}

static mf_kernel_update_state *reported(const mf_exec *x) {
    return (void *)(x->report + (x->in.update - x->in.sums));
}

int64_t mf_exec_steps(const mf_exec *x) {
    return reported(x)->step;
}

mf_status mf_exec_set_steps(mf_exec *x, int64_t steps, int64_t skipped, mf_err *e) {
    mf_kernel_update_state *host = reported(x);
    host->step = steps;
    host->skipped = skipped;
    mf_status status = mf_exec_put(x, &x->update->step, &steps, sizeof steps, e);
    return status == MF_OK ? mf_exec_put(x, &x->update->skipped, &skipped, sizeof skipped, e)
                           : status;
}

mf_status mf_exec_expert_load(mf_exec *x, double *counts, mf_err *e) {
    int64_t experts = x->p->model.experts, positions = x->p->assignment.positions;
    const float *loads = (const float *)(const void *)(x->report + (x->in.loads - x->in.sums));
    /* Where there is a correction bias, the step has summed over the stage already. */
    bool first = mf_comm_group_rank(x->comm, MF_GROUP_TP_CP_DP) == 0;
    memset(counts, 0, (size_t)(positions * experts) * sizeof *counts);
    for (int64_t i = 0; i < positions; i++) {
        const position_bind *q = &x->positions[i];
        bool summed = q->correction != NULL;
        for (int64_t k = 0; q->load != NULL && (!summed || first) && k < experts; k++) {
            counts[i * experts + k] = (double)loads[i * experts + k];
        }
    }
    return mf_comm_all_reduce(x->comm, MF_GROUP_WORLD, MF_COMM_F64, MF_COMM_SUM, counts,
                              positions * experts, e);
}

/* --- from one program to another ---------------------------------------------------------------
 */

struct mf_exec_kept {
    int parameters;
    mf_exec_state *state; /* [parameters], each in memory of its own unless `memory` has all */
    mf_device *device;
    void *memory;       /* of the device; NULL: in the host's */
    float *corrections; /* [positions, experts] */
    int64_t steps, skipped;
};

static size_t corrections_B(const mf_exec *x) {
    return (size_t)(x->p->assignment.positions * x->p->model.experts) * sizeof(float);
}

/* The device's memory for all states, where it has space for it. */
static void find_memory(mf_exec *x, double spare_B, mf_exec_kept *k) {
    const int64_t size_B = mf_exec_staging_B(x);
    k->device = x->device;
    if (!mf_exec_device(x)->on_host && size_B > 0 && (double)size_B <= spare_B &&
        mf_exec_device(x)->allocate(x->device, size_B, &k->memory, NULL) != MF_OK) {
        k->memory = NULL;
    }
}

/* *at: the next place in k->memory, if there is any. */
static mf_status keep_state(mf_exec *x, int i, mf_exec_kept *k, int64_t *at, mf_err *e) {
    mf_status status = MF_OK;
    mf_exec_state *s = &k->state[i];
    find_state(x, i, s);
    for (int v = 0; v < MF_EXEC_STATES && s->count > 0; v++) {
        const void *there = s->value[v];
        const size_t size_B = state_B(s, v);
        s->value[v] = status != MF_OK     ? NULL
                      : k->memory != NULL ? (char *)k->memory + *at
                                          : malloc(size_B);
        *at += mf_align_B((int64_t)size_B);
        if (status == MF_OK) {
            status = s->value[v] != NULL
                         ? mf_exec_read_state(x, s->value[v], there, (int64_t)size_B, e)
                         : mf_err_set(e, MF_NOMEM, "no host memory for the weights' states");
        }
    }
    return status;
}

mf_status mf_exec_keep(mf_exec *x, double spare_B, mf_exec_kept **out, mf_err *e) {
    int64_t at = 0;
    mf_exec_kept *k = calloc(1, sizeof *k);
    *out = k;
    if (k != NULL) {
        k->state = calloc((size_t)x->params.count + 1, sizeof *k->state);
        k->corrections = malloc(corrections_B(x) + 1);
    }
    if (k == NULL || k->state == NULL || k->corrections == NULL) {
        return mf_err_set(e, MF_NOMEM, "no host memory for the weights' states");
    }
    find_memory(x, spare_B, k);
    mf_status status = mf_exec_copy(x, k->corrections, x->corrections, corrections_B(x), e);
    for (int i = 0; i < x->params.count && status == MF_OK; i++) {
        k->parameters = i + 1;
        status = keep_state(x, i, k, &at, e);
    }
    k->steps = reported(x)->step;
    k->skipped = reported(x)->skipped;
    return status == MF_OK ? mf_exec_device(x)->wait(x->device, e) : status;
}

mf_status mf_exec_restore(mf_exec *x, const mf_exec_kept *k, mf_err *e) {
    mf_status status = mf_exec_put(x, x->corrections, k->corrections, corrections_B(x), e);
    for (int i = 0; i < k->parameters && status == MF_OK; i++) {
        status = mf_exec_state_put(x, i, &k->state[i], e);
    }
    return status == MF_OK ? mf_exec_set_steps(x, k->steps, k->skipped, e) : status;
}

void mf_exec_kept_destroy(mf_exec_kept *k) {
    for (int i = 0; k != NULL && i < k->parameters; i++) {
        for (int s = 0; s < MF_EXEC_STATES && k->state[i].count > 0 && k->memory == NULL; s++) {
            free(k->state[i].value[s]);
        }
    }
    if (k != NULL) {
        if (k->memory != NULL) {
            k->device->ops->release(k->device, k->memory);
        }
        free(k->state);
        free(k->corrections);
    }
    free(k);
}
