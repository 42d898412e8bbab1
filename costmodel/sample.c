/* sample.c - the points of a store as samples. */
#include "costmodel/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Relative sigma of a time whose spread nobody wrote down. */
static const double unrecorded_spread = 0.02;

typedef struct reader {
    mf_samples *out;
    mf_err *e;
    mf_status status;
} reader;

/* Index of a GPU's samples, a new one for a GPU not met before; -1 where there is no place for one
 * more. Sets *status to MF_NOMEM where memory is out while the GPU's cluster is loaded. */
static int device_of(mf_samples *out, const char *gpu, mf_status *status, mf_err *e) {
    for (int i = 0; i < out->ndevices; i++) {
        if (strcmp(out->gpu[i], gpu) == 0) {
            return i;
        }
    }
    if (out->ndevices == MF_SAMPLE_DEVICES) {
        return -1;
    }
    int i = out->ndevices;
    out->device[i].cluster = NULL;
    snprintf(out->gpu[i], sizeof out->gpu[i], "%s", gpu);
    const mf_status loaded = mf_cluster_load(gpu, &out->cluster[i], NULL);
    if (loaded == MF_NOMEM) {
        *status = mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    if (loaded == MF_OK) {
        /* measured where all of a domain was at hand, whatever a job would use of it */
        out->cluster[i].domain_gpus_used = out->cluster[i].domain_gpus;
        mf_device_init(&out->device[i], &out->cluster[i]);
    }
    out->ndevices++;
    return i;
}

/* Attention was measured with several kernels: the one that runs is priced. Reduction inside
 * network switches is a site's own and no part of the model. */
static bool stands_for_runs(const mf_point *p) {
    bool slow_attention = mf_point_is(p, "impl", "fa2") || mf_point_is(p, "impl", "reference");
    return !slow_attention && !mf_point_is(p, "algo", "sharp");
}

/* A point of another purpose than the price of an op: compute beside communication, launches. */
static bool take_other(mf_samples *out, const mf_point *p, int device, mf_status *status,
                       mf_err *e) {
    if (strcmp(p->op, "launch") == 0) {
        mf_launch *l = &out->launch[device];
        l->stream_s = mf_point_is(p, "mode", "stream") ? p->time_s : l->stream_s;
        l->replay_s = mf_point_is(p, "mode", "replay") ? p->time_s : l->replay_s;
        return true;
    }
    if (strcmp(p->op, "beside") != 0) {
        return false;
    }
    if (out->ncontention == out->contention_allocated) {
        size_t allocated = out->contention_allocated > 0 ? 2 * out->contention_allocated : 64;
        mf_contention_point *more = realloc(out->contention, allocated * sizeof *more);
        if (more == NULL) {
            *status = mf_err_set(e, MF_NOMEM, "cost model: out of memory");
            return true;
        }
        out->contention = more;
        out->contention_allocated = allocated;
    }
    static const mf_op_kind comms[] = {MF_OP_ALL_REDUCE, MF_OP_ALL_GATHER, MF_OP_REDUCE_SCATTER,
                                       MF_OP_ALL_TO_ALL, MF_OP_SEND_RECV,  MF_OP_DISPATCH,
                                       MF_OP_COMBINE};
    mf_contention_point b = {.device = device,
                             .of_comm = mf_point_is(p, "of", "comm"),
                             .product = mf_point_is(p, "op", "gemm"),
                             .size = (int64_t)mf_point_value(p, "size"),
                             .ranks = (int64_t)mf_point_value(p, "ranks"),
                             .bytes = mf_point_value(p, "bytes"),
                             .time_s = p->time_s};
    for (size_t i = 0; i < sizeof comms / sizeof comms[0]; i++) {
        b.comm = mf_point_is(p, "comm", mf_op_text(comms[i])) ? (uint8_t)comms[i] : b.comm;
    }
    out->contention[out->ncontention++] = b;
    return true;
}

/* Rows that a user took in: with nothing but a time, or from what nccl-tests printed. */
static bool is_users_own(const mf_point *p) {
    static const char printed[] = "nccl-tests"; /* profiles/nccl_tests.c */
    return p->source[0] == '\0' || strncmp(p->source, printed, sizeof printed - 1) == 0;
}

static mf_status take_energy(mf_samples *out, const mf_point *p, const mf_op *op, mf_err *e) {
    if (out->nenergy == out->energy_allocated) {
        size_t allocated = out->energy_allocated > 0 ? 2 * out->energy_allocated : 64;
        mf_energy_point *more = realloc(out->energy, allocated * sizeof *more);
        if (more == NULL) {
            return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
        }
        out->energy = more;
        out->energy_allocated = allocated;
    }
    out->energy[out->nenergy++] = (mf_energy_point){*op, p->energy_J, p->sustained_s, p->time_s};
    return MF_OK;
}

static int take_point(const mf_point *p, void *user) {
    reader *r = user;
    mf_samples *out = r->out;
    mf_sample s = {.device = device_of(out, p->gpu, &r->status, r->e)};
    if (r->status != MF_OK) {
        return 1;
    }
    if (p->holdout || p->time_s <= 0 || s.device < 0 || out->device[s.device].cluster == NULL ||
        !stands_for_runs(p)) {
        return 0;
    }
    if (take_other(out, p, s.device, &r->status, r->e)) {
        return r->status != MF_OK;
    }
    if (mf_cost_point_op(p, out->device[s.device].cluster, &s.op, NULL) != MF_OK) {
        return 0; /* no program does this (peer rows) */
    }
    if (s.device == 0 && strcmp(p->date, out->date) > 0) { /* ISO dates sort as text */
        snprintf(out->date, sizeof out->date, "%s", p->date);
    }
    if (p->energy_J > 0 && s.device == 0) {
        r->status = take_energy(out, p, &s.op, r->e);
        if (r->status != MF_OK) {
            return 1;
        }
    }
    s.time_s = p->time_s;
    s.spread = (p->high_s - p->low_s) / (2 * 1.2816 * p->time_s); /* 10..90 % to sigma */
    if (!(s.spread > 0)) {
        s.spread = unrecorded_spread;
        s.quoted = !is_users_own(p);
    }
    s.as = s.device == 0 && !is_users_own(p) ? out->shipped : 0;
    s.fixed = !mf_point_is(p, "algo", "auto") && mf_point_find(p, "algo") != NULL;
    if (mf_op_kind_class((mf_op_kind)s.op.kind) == MF_CLASS_COLLECTIVE &&
        (!s.fixed || mf_point_is(p, "algo", "nvls"))) {
        s.op.flags |= MF_SAMPLE_NVLS;
    }
    if (out->n == out->allocated) {
        size_t allocated = out->allocated > 0 ? 2 * out->allocated : 256;
        mf_sample *more = realloc(out->sample, allocated * sizeof *more);
        if (more == NULL) {
            r->status = mf_err_set(r->e, MF_NOMEM, "cost model: out of memory");
            return 1;
        }
        out->sample = more;
        out->allocated = allocated;
    }
    out->sample[out->n++] = s;
    return 0;
}

/* The largest measured copy on a device is its copy bandwidth. */
static void use_copies(mf_samples *out) {
    double largest[MF_SAMPLE_DEVICES] = {0};
    for (size_t i = 0; i < out->n; i++) {
        const mf_sample *s = &out->sample[i];
        mf_cost_device *d = &out->device[s->device];
        if (s->op.kind == MF_OP_SPLIT && (s->op.flags & MF_SAMPLE_COPY) &&
            s->op.bytes > fmax(largest[s->device], 4 * d->l2_B)) {
            mf_cost_device *as = &out->device[mf_sample_as(s)];
            double stated = d->copy_Bps / as->copy_Bps;
            largest[s->device] = s->op.bytes;
            as->copy_Bps = fmin(s->op.bytes / s->time_s, as->memory_Bps);
            d->copy_Bps = fmin(as->copy_Bps * stated, d->memory_Bps);
        }
    }
}

/* The cluster's GPU with the figures that it ships with, at which the shipped points were measured:
 * a cluster may state others. Which GPUs are in one domain is no figure: as the cluster has it. */
static mf_status add_shipped(mf_samples *out, const mf_cluster *c, mf_err *e) {
    mf_cluster *as = &out->cluster[1];
    const mf_status loaded = mf_cluster_load(c->gpu.name, as, NULL);
    if (loaded == MF_NOMEM) {
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    if (loaded != MF_OK || strcmp(as->gpu.name, c->gpu.name) != 0) {
        return MF_OK;
    }
    as->gpus_per_node = c->gpus_per_node;
    as->domain_gpus = as->domain_gpus_used = c->domain_gpus;
    mf_device_init(&out->device[1], as);
    out->ndevices = 2; /* no point names it: its name stays "" */
    out->shipped = 1;
    return MF_OK;
}

mf_status mf_samples_read(mf_samples *out, const mf_cluster *c, mf_store *store, mf_err *e) {
    reader r = {out, e, MF_OK};
    memset(out, 0, sizeof *out);
    snprintf(out->gpu[0], sizeof out->gpu[0], "%s", c->gpu.name); /* device 0: the cluster's own */
    out->cluster[0] = *c;
    out->cluster[0].domain_gpus_used = c->domain_gpus;
    mf_device_init(&out->device[0], &out->cluster[0]);
    out->ndevices = 1;
    mf_status st = add_shipped(out, c, e);
    if (st != MF_OK) {
        return st;
    }
    st = store != NULL ? mf_store_each(store, NULL, NULL, take_point, &r, NULL, e)
                       : mf_store_each_shipped(take_point, &r, e);
    use_copies(out);
    return st != MF_OK ? st : r.status;
}

void mf_samples_clear(mf_samples *s) {
    free(s->sample);
    free(s->contention);
    free(s->energy);
    memset(s, 0, sizeof *s);
}
