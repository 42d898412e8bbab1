/* cost.c - the price of an op. */
#include "costmodel/cost_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const double interpolated_efolds = 1.0; /* nearer than this to a point: interpolated */

const mf_cluster *mf_cost_cluster(const mf_cost *cost) {
    return &cost->cluster;
}
const mf_software *mf_cost_software(const mf_cost *cost) {
    return &cost->software;
}

const char *mf_cost_measured(const mf_cost *cost) {
    return cost->measured;
}

void mf_cost_set_software(mf_cost *cost, const mf_software *s) {
    assert(s->nvls == cost->software.nvls);
    cost->software = *s;
    mf_price_memo_clear(cost->memo);
}

double mf_cost_exposed(const mf_cost *cost, unsigned overlap_bit) {
    int i = 0;
    while ((1u << i) != overlap_bit) {
        i++;
    }
    return fmin(0.95, fmax(0.0, cost->software.overlap_exposed[i]));
}

const char *mf_basis_text(mf_basis b) {
    static const char *const text[] = {
#define X(name, words) words,
        MF_BASIS_MAP(X)
#undef X
    };
    return (unsigned)b < MF_BASIS_COUNT ? text[b] : "?";
}

mf_op mf_cost_loaded(const mf_op *op, double load) {
    mf_op o = *op;
    if ((op->flags & MF_OPF_ROUTED) == 0 || !(load > 0) || !(load < 1 || load > 1)) {
        return o;
    }
    switch (mf_op_kind_class((mf_op_kind)op->kind)) {
    case MF_CLASS_GEMM:
    case MF_CLASS_GROUPED: {
        int64_t *rows = &o.dim[op->flags & MF_OPF_WGRAD ? MF_OP_DIM_K : MF_OP_DIM_M];
        *rows = (int64_t)ceil((double)*rows * load);
        break;
    }
    case MF_CLASS_ATTENTION:
    case MF_CLASS_MEMORY:
    case MF_CLASS_COLLECTIVE:
    case MF_CLASS_P2P:
    case MF_CLASS_COPY:
        break;
    }
    o.bytes *= load;
    o.flops *= load;
    return o;
}

/* --- by family -------------------------------------------------------------------------------- */

static int variant_on(const mf_cost *cost, const mf_op *op) {
    mf_op plain = *op;
    if (cost->scales_blocks) {
        plain.flags &= ~(uint32_t)MF_OPF_BLOCK_SCALED;
    }
    return mf_variant_of(&plain);
}

/* Time by formula and residuals; *half the relative half-width of its band. */
static void family_price(const mf_cost *cost, const mf_op *op, const mf_family *family,
                         mf_price *out, double *half) {
    const mf_fitted *f = &cost->fitted[op->kind][variant_on(cost, op)];
    out->time_s = family->base(&cost->device, op, f->theta);
    out->basis = f->basis;
    *half = f->half;
    if (f->field.n == 0) {
        return;
    }
    double x[MF_FIELD_DIMS] = {0};
    mf_residual_value at;
    family->coords(op, x);
    mf_residuals_at(&f->field, x, -1, &at);
    if (f->own && at.nearest <= 0 && !(op->flags & MF_OPF_ACT)) { /* points are of products alone */
        out->time_s = at.time_s;
        out->basis = at.restated ? MF_BASIS_TRANSFERRED : MF_BASIS_MEASURED;
        *half = at.half;
        return;
    }
    out->time_s *= exp(at.residual);
    double near = at.nearest / (at.nearest + interpolated_efolds); /* 0 at a point, 1 far away */
    *half = hypot(f->half * (f->own ? near : 1), at.half);
    if (f->own && f->basis == MF_BASIS_FITTED && at.nearest < interpolated_efolds) {
        out->basis = at.restated ? MF_BASIS_TRANSFERRED : MF_BASIS_INTERPOLATED;
    }
}

mf_gpu_kind mf_gpu_kind_of(const mf_gpu *gpu) {
    static const char *const text[] = {
#define X(name, text) text,
        MF_GPU_KIND_MAP(X)
#undef X
    };
    for (int i = 0; i < MF_GPU_OTHER; i++) {
        if (strcmp(gpu->name, text[i]) == 0 || strcmp(gpu->arch, text[i]) == 0) {
            return (mf_gpu_kind)i;
        }
    }
    return MF_GPU_OTHER;
}

static double gpu_share(const mf_cost *cost, int rate, int math) {
    mf_gpu_kind gpu = cost->gpu_kind;
    double share = cost->software.gpu_eff[rate][gpu];
    double low = cost->software.gpu_eff[MF_RATE_LOW_PRECISION][gpu];
    bool is_low = rate != MF_RATE_ATTENTION && (math == MF_MATH_FP8 || math == MF_MATH_FP4);
    return cost->software.gpu_power_eff * (share > 0 ? share : 1) * (is_low && low > 0 ? low : 1);
}

/* Clocks of memory do not fall with power: the kernels of a kind of GPU alone. */
static double memory_share(const mf_cost *cost) {
    double share = cost->software.gpu_eff[MF_RATE_MEMORY][cost->gpu_kind];
    return share > 0 ? share : 1;
}

static double scale_share(const mf_software *s, const mf_op *op) {
    return (op->flags & MF_OPF_BLOCK_SCALED) && s->block_scale_eff > 0 ? s->block_scale_eff : 1;
}

static double ring_share(const mf_software *s, const mf_op *op) {
    return (op->flags & MF_OPF_ACC_FP32) && s->ring_attention_eff > 0 ? s->ring_attention_eff : 1;
}

/* Kernels of mixers that keep a state, which no program writes by hand as it does attention's. */
static double scan_share(const mf_software *s, const mf_op *op) {
    switch (op->kind) {
    case MF_OP_CONV_FWD:
    case MF_OP_CONV_BWD:
    case MF_OP_DECAY_FWD:
    case MF_OP_DECAY_BWD:
    case MF_OP_SCAN_FWD:
    case MF_OP_SCAN_BWD:
    case MF_OP_GATED_NORM_FWD:
    case MF_OP_GATED_NORM_BWD:
        return s->scan_eff > 0 ? s->scan_eff : 1;
    default:
        return 1;
    }
}

/* Factor of a program on the rate that an op reaches alone. */
static double program_share(const mf_cost *cost, const mf_op *op) {
    const mf_software *s = &cost->software;
    switch (mf_op_kind_class((mf_op_kind)op->kind)) {
    case MF_CLASS_GEMM:
        return s->gemm_eff[op->math] * scale_share(s, op) * gpu_share(cost, MF_RATE_GEMM, op->math);
    case MF_CLASS_GROUPED:
        return s->gemm_eff[op->math] * scale_share(s, op) * s->grouped_eff *
               gpu_share(cost, MF_RATE_GROUPED, op->math);
    case MF_CLASS_ATTENTION:
        return s->attention_eff * ring_share(s, op) * gpu_share(cost, MF_RATE_ATTENTION, op->math);
    case MF_CLASS_MEMORY:
        return s->memory_eff * memory_share(cost) * scan_share(s, op);
    case MF_CLASS_COLLECTIVE:
        return op->kind == MF_OP_DISPATCH || op->kind == MF_OP_COMBINE
                   ? s->comm_eff[op->dim[MF_OP_DIM_DISPATCHER]]
                   : s->collective_eff;
    case MF_CLASS_P2P:
        return s->collective_eff;
    case MF_CLASS_COPY:
        return 1;
    }
    return 1;
}

/* No program runs an op faster than it runs alone, whatever a fit of its steps says; what a job
 * measured may (mf_software_slow), down to the op's limit. */
static double capped(const mf_cost *cost, double share) {
    const double cap = cost->software.rate_cap;
    return fmin(cap > 0 ? cap : 1, share);
}

static double rate_share(const mf_cost *cost, const mf_op *op) {
    return capped(cost, program_share(cost, op));
}

/* Rows of an embedding's gradient, 8 bytes an element, are moved once however many tokens have
 * them; the 2 bytes that come in are there for each. */
static double least_bytes(const mf_op *op) {
    return op->kind == MF_OP_EMBEDDING_BWD ? op->bytes * 2 / 10 : op->bytes;
}

/* Attention by whole products, scores passing through memory in between: no point is of that. */
static const double stored_half = 0.3;
static double stored_scores_s(const mf_cost *cost, const mf_op *op) {
    const mf_software *s = &cost->software;
    const double products = s->gemm_eff[MF_MATH_BF16] * gpu_share(cost, MF_RATE_GEMM, MF_MATH_BF16);
    const double passes = s->memory_eff * memory_share(cost);
    return mf_attention_square_flops(op) /
               (cost->device.rate[MF_MATH_BF16] * capped(cost, products)) +
           op->bytes / (cost->device.copy_Bps * capped(cost, passes));
}

double mf_cost_host_share_Bps(const mf_cost *cost, const mf_op *copy) {
    const mf_cluster *c = &cost->cluster;
    const int64_t gpus = copy->dim[MF_OP_DIM_GPUS];
    const int64_t of_a_host = gpus < c->gpus_per_node ? gpus : c->gpus_per_node;
    return of_a_host > 1 && c->host_shared_Bps > 0 ? c->host_shared_Bps / (double)of_a_host : 0;
}

/* A copy goes as fast as the GPU's link and its share of the host's memory let it. */
static double copy_limit_s(const mf_cost *cost, const mf_op *op) {
    const double share_Bps = mf_cost_host_share_Bps(cost, op);
    const double link_Bps = cost->device.host_Bps;
    return op->bytes / (share_Bps > 0 ? fmin(share_Bps, link_Bps) : link_Bps);
}

static double limit_of(const mf_cost *cost, const mf_op *op) {
    switch (mf_op_kind_class((mf_op_kind)op->kind)) {
    case MF_CLASS_GEMM:
    case MF_CLASS_GROUPED:
        return mf_gemm_limit_s(&cost->device, op);
    case MF_CLASS_ATTENTION:
        return mf_attention_limit_s(&cost->device, op);
    case MF_CLASS_MEMORY:
        return fmax(mf_memory_limit_s(&cost->device, least_bytes(op)),
                    op->flops / cost->device.peak[op->math]);
    case MF_CLASS_COPY:
        return copy_limit_s(cost, op);
    case MF_CLASS_COLLECTIVE:
    case MF_CLASS_P2P:
        return 0; /* set with the time */
    }
    return 0;
}

/* --- communication ---------------------------------------------------------------------------- */

static void dispatch_price(const mf_cost *cost, const mf_op *op, mf_price *out, double *half) {
    if (op->shape.size <= 1) {
        *half = 0;
        return;
    }
    const mf_family *family =
        mf_family_of((mf_op_kind)op->kind, (int)op->dim[MF_OP_DIM_DISPATCHER]);
    if (family == NULL) { /* every rank sees every token; combine reduces them back */
        double gathered = (double)op->dim[MF_OP_DIM_TOKENS] * (double)op->dim[MF_OP_DIM_ROW_B] *
                          (double)op->shape.size;
        mf_op_kind kind = op->kind == MF_OP_COMBINE ? MF_OP_REDUCE_SCATTER : MF_OP_ALL_GATHER;
        mf_collective_price(&cost->coll, &cost->device, kind, op->shape, gathered, out, half);
        return;
    }
    mf_geometry g;
    mf_geometry_of(&cost->cluster, op->shape, &g);
    family_price(cost, op, family, out, half);
    out->limit_s = mf_dispatch_limit_s(&cost->cluster, op);
    out->link = g.domains > 1 ? MF_LINK_NETWORK : MF_LINK_SCALEUP;
    out->sm_share = fmin(1, mf_collective_sms((mf_op_kind)op->kind, &g) / cost->device.sms);
}

static void collective_price(const mf_cost *cost, const mf_op *op, mf_price *out, double *half) {
    const mf_op_kind kind = (mf_op_kind)op->kind;
    mf_collective_price(&cost->coll, &cost->device, kind, op->shape, op->bytes, out, half);
    if (cost->software.nvls_best && kind == MF_OP_ALL_REDUCE) {
        mf_price plain;
        double plain_half;
        mf_collective_price(&cost->plain, &cost->device, kind, op->shape, op->bytes, &plain,
                            &plain_half);
        if (plain.time_s < out->time_s) {
            *out = plain;
            *half = plain_half;
        }
    }
}

static void communication_price(const mf_cost *cost, const mf_op *op, mf_price *out, double *half) {
    if (op->kind == MF_OP_DISPATCH || op->kind == MF_OP_COMBINE) {
        dispatch_price(cost, op, out, half);
    } else {
        collective_price(cost, op, out, half);
    }
    if (out->link == MF_LINK_SCALEUP) {
        out->sm_share = mf_contention_share(&cost->contention, mf_contention_kind(op), op->bytes,
                                            cost->device.sms, out->sm_share);
    }
}

/* Band of attention over chosen keys, priced as over keys side by side: public kernels come near
 * that forward (FlashMLA: 640 of 660 TFLOP/s on H800), backward nobody says. */
static const double sparse_half = 0.5;

/* --- weight gradients that write -------------------------------------------------------------- */

/* Time of a weight gradient that writes its output over the time of one that adds to it: by formula
 * where nobody measured both. */
static double anew_share(const mf_cost *cost, const mf_op *adds) {
    const mf_family *family = mf_family_of((mf_op_kind)adds->kind, mf_variant_of(adds));
    const double *theta = cost->fitted[adds->kind][variant_on(cost, adds)].theta;
    const mf_residuals *f = &cost->anew[adds->kind == MF_OP_GROUPED_GEMM];
    double share = mf_anew_share(family, &cost->device, theta, adds);
    if (f->n > 0) {
        double x[MF_FIELD_DIMS] = {0};
        mf_residual_value at;
        family->coords(adds, x);
        mf_residuals_at(f, x, -1, &at);
        share *= exp(at.residual);
    }
    return fmin(share, 1);
}

/* --- the price -------------------------------------------------------------------------------- */

static bool is_nothing(const mf_op *op) {
    switch (mf_op_kind_class((mf_op_kind)op->kind)) {
    case MF_CLASS_GEMM:
    case MF_CLASS_GROUPED:
        return op->dim[MF_OP_DIM_M] <= 0 || op->dim[MF_OP_DIM_N] <= 0 || op->dim[MF_OP_DIM_K] <= 0;
    case MF_CLASS_ATTENTION:
        return op->flops <= 0;
    case MF_CLASS_MEMORY:
    case MF_CLASS_COLLECTIVE:
    case MF_CLASS_P2P:
    case MF_CLASS_COPY:
        return op->bytes <= 0;
    }
    return true;
}

bool mf_op_pass(const mf_cluster *c, const mf_op *op, mf_op *out) {
    return mf_dispatch_pass(c, op, out) || mf_bias_pass(op, out) || mf_chunk_pass(op, out);
}

/* The pass over memory behind (or in front of) an exchange between ranks, or behind a product. */
static void add_pass(const mf_cost *cost, const mf_op *pass, mf_price *out) {
    const double limit_s = limit_of(cost, pass);
    double half = 0;
    mf_price p = {.basis = MF_BASIS_DERIVED};
    family_price(cost, pass, mf_family_of((mf_op_kind)pass->kind, mf_variant_of(pass)), &p, &half);
    const double time_s = fmax(p.time_s / rate_share(cost, pass), limit_s);
    half += cost->software.band;
    out->link_share *= out->time_s / (out->time_s + time_s);
    out->time_s += time_s;
    out->limit_s += limit_s;
    out->low_s += fmax(time_s / (1 + half), limit_s);
    out->high_s += time_s * (1 + half);
}

static void price_op(const mf_cost *cost, const mf_op *op, double load, mf_price *out) {
    *out = (mf_price){.basis = MF_BASIS_DERIVED};
    if (is_nothing(op)) {
        return;
    }
    mf_op o = mf_cost_loaded(op, load), pass;
    if (o.kind == MF_OP_GROUPED_GEMM && o.dim[MF_OP_DIM_GROUPS] <= 1) {
        o.kind = MF_OP_GEMM; /* one expert: libraries run the plain product */
    }
    mf_op_class class = mf_op_kind_class((mf_op_kind)o.kind);
    double half = 0, pieces = 1;
    if (o.pieces > 1 && (class == MF_CLASS_COLLECTIVE || class == MF_CLASS_P2P)) {
        /* Pieces follow each other on the link: each is its share of the whole, whose latency is
         * paid once. */
        pieces = o.pieces;
        o.bytes *= pieces;
        o.pieces = 1;
    } else if (o.flags & MF_OPF_TOGETHER) { /* its share of the whole product */
        pieces = o.pieces;
        o.dim[MF_OP_DIM_M] *= o.pieces;
        o.flops *= pieces;
        o.bytes *= pieces;
    }
    if (class == MF_CLASS_COLLECTIVE || class == MF_CLASS_P2P) {
        communication_price(cost, &o, out, &half);
        if (out->time_s <= 0) {
            return; /* a group of one */
        }
    } else if (mf_writes_anew(&o)) {
        mf_op adds = o;
        adds.flags &= ~(uint32_t)MF_OPF_ANEW;
        family_price(cost, &adds, mf_family_of((mf_op_kind)o.kind, mf_variant_of(&adds)), out,
                     &half);
        out->time_s *= anew_share(cost, &adds);
        out->limit_s = limit_of(cost, &o);
    } else {
        family_price(cost, &o, mf_family_of((mf_op_kind)o.kind, mf_variant_of(&o)), out, &half);
        if (o.flags & MF_OPF_SPARSE) { /* points are of keys side by side */
            out->basis = MF_BASIS_DERIVED;
            half = hypot(half, sparse_half);
        }
        out->limit_s = limit_of(cost, &o);
        out->link = class == MF_CLASS_COPY ? MF_LINK_HOST : MF_LINK_NONE;
        if (class == MF_CLASS_COPY && out->limit_s > out->time_s &&
            mf_cost_host_share_Bps(cost, &o) > 0) { /* points are of one GPU alone */
            out->basis = MF_BASIS_DERIVED;
        }
    }
    out->limit_s /= pieces;
    out->time_s = fmax(out->time_s / pieces / rate_share(cost, &o), out->limit_s);
    if (o.flags & MF_OPF_SCORES) {
        out->basis = MF_BASIS_DERIVED;
        out->time_s = fmax(stored_scores_s(cost, &o), out->limit_s);
        half = stored_half;
    }
    if (o.kind == MF_OP_ATTENTION_BWD && (o.flags & MF_OPF_SINKS)) { /* points have no sinks */
        out->basis = MF_BASIS_DERIVED;
        out->time_s += mf_attention_sinks_s(&o);
    }
    half += cost->software.band;
    out->low_s = fmax(out->time_s / (1 + half), out->limit_s);
    out->high_s = out->time_s * (1 + half);
    if (out->link != MF_LINK_NONE) {
        out->link_share = fmin(1, out->limit_s / out->time_s);
    }
    if (class == MF_CLASS_COLLECTIVE) {
        o.bytes /= pieces; /* each piece makes a pass over its own */
    }
    if (mf_op_pass(&cost->cluster, &o, &pass)) {
        add_pass(cost, &pass, out);
    }
}

void mf_cost_op(const mf_cost *cost, const mf_op *op, double load, mf_price *out) {
    if (cost->memo) {
        mf_price_memo_get(cost->memo, cost, op, load, price_op, out);
    } else {
        price_op(cost, op, load, out);
    }
}

void mf_cost_ops(const mf_cost *cost, const mf_op *ops, int n, double load, mf_price *out) {
    if (cost->memo) {
        mf_price_memo_get_all(cost->memo, cost, ops, n, load, price_op, out);
        return;
    }
    for (int i = 0; i < n; i++) {
        price_op(cost, &ops[i], load, &out[i]);
    }
}

double mf_cost_anew_s(const mf_cost *cost, const mf_op *op) {
    mf_price adds, writes;
    if (!(cost->software.first_anew > 0) || (op->flags & MF_OPF_ACC_FP32) == 0) {
        return 0;
    }
    mf_op anew = *op;
    anew.flags |= MF_OPF_ANEW;
    mf_cost_op(cost, op, 1, &adds);
    mf_cost_op(cost, &anew, 1, &writes);
    return fmax(0, adds.time_s - writes.time_s);
}

double mf_cost_signal_s(const mf_cost *cost, const mf_op *op, const mf_price *price) {
    const bool inside =
        op->stream == MF_STREAM_TP || op->stream == MF_STREAM_CP || op->stream == MF_STREAM_EP;
    return inside && price->time_s > 0 ? cost->software.signal_s : 0;
}
