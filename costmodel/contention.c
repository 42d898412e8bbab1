/* contention.c - what compute and communication that run at the same time lose to each other, as
 * measured ("beside" points).
 *
 * Compute: the share of the multiprocessors that communication takes, by its size, and how much
 * bandwidth-bound kernels lose per byte that it moves.
 *
 * A product that slows down to 1 / (1 - share) of its speed has lost that share of the
 * multiprocessors, whatever it lost them to; the mean over products of different sizes evens out
 * how their tiles fall into waves. Shares carry over to GPUs of the same architecture by their
 * number of multiprocessors. Without measurements NCCL's usual number of channels stands in
 * (nccl_model.c), and a byte moved is a byte of bandwidth lost.
 *
 * Communication: its blocks get onto the multiprocessors when blocks of compute leave them, and it
 * takes part of their bandwidth. Over its sizes, its time beside compute is a line above its time
 * alone: a wait and a factor, found by least squares, apart for products and for kernels bound by
 * memory. They carry over within an architecture as they are.
 */
#include "costmodel/sample.h"

#include <math.h>
#include <string.h>

static const double most_share = 0.6;

/* --- from points ------------------------------------------------------------------------------ */

/* Time of the same work alone on that GPU; 0: not measured. */
static double alone_s(const mf_samples *s, const mf_contention_point *p) {
    for (size_t i = 0; i < s->n; i++) {
        const mf_sample *x = &s->sample[i];
        if (x->device != p->device) {
            continue;
        }
        bool same = false;
        if (p->product) {
            same = x->op.kind == MF_OP_GEMM && x->op.math == MF_MATH_BF16 &&
                   (x->op.flags & (MF_OPF_WGRAD | MF_OPF_ACC_FP32)) == 0 &&
                   x->op.pass != MF_PASS_B && x->op.dim[MF_OP_DIM_M] == p->size &&
                   x->op.dim[MF_OP_DIM_N] == p->size && x->op.dim[MF_OP_DIM_K] == p->size;
        } else {
            same = x->op.kind == MF_OP_SPLIT && (x->op.flags & MF_SAMPLE_COPY) &&
                   fabs(x->op.bytes - 2 * (double)p->size) < 1;
        }
        if (same) {
            return x->time_s;
        }
    }
    return 0;
}

static bool is_exchange(int kind) {
    return kind == MF_OP_DISPATCH || kind == MF_OP_COMBINE;
}

/* Time of the communication alone; 0: not measured. */
static double comm_s(const mf_samples *s, const mf_contention_point *p) {
    for (size_t i = 0; i < s->n; i++) {
        const mf_sample *x = &s->sample[i];
        const bool fused =
            !is_exchange(p->comm) || x->op.dim[MF_OP_DIM_DISPATCHER] == MF_DISPATCH_FUSED;
        if (x->device == p->device && x->op.kind == p->comm && x->op.shape.size == p->ranks &&
            x->op.shape.stride == 1 && fused && fabs(x->op.bytes - p->bytes) < 1) {
            return x->time_s;
        }
    }
    return 0;
}

static mf_contention_row *row_of(mf_contention *b, const mf_contention_point *p) {
    for (int i = 0; i < b->n; i++) {
        if (b->row[i].comm == p->comm && fabs(b->row[i].log_B - log(p->bytes)) < 1e-9) {
            return &b->row[i];
        }
    }
    if (b->n == MF_CONTENTION_ROWS) {
        return NULL;
    }
    b->row[b->n] = (mf_contention_row){.comm = p->comm, .log_B = log(p->bytes)};
    return &b->row[b->n++];
}

/* The GPU whose points are used: the cluster's own, else one of its architecture; -1: none. */
static int device_of(const mf_samples *s) {
    int found = -1;
    for (size_t i = 0; i < s->ncontention; i++) {
        int d = s->contention[i].device;
        const mf_cluster *c = s->device[d].cluster, *own = s->device[0].cluster;
        if (d == 0) {
            return 0;
        }
        if (found < 0 && c != NULL && own != NULL && strcmp(c->gpu.arch, own->gpu.arch) == 0) {
            found = d;
        }
    }
    return found;
}

/* The line together = wait + factor x alone through a kind's points, factor >= 1 and wait >= 0. */
static mf_contention_loss line_of(const mf_samples *s, int device, mf_op_kind comm, bool product) {
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < s->ncontention; i++) {
        const mf_contention_point *p = &s->contention[i];
        const double alone =
            p->device == device && p->of_comm && p->comm == comm && p->product == product
                ? comm_s(s, p)
                : 0;
        if (alone > 0) {
            n++;
            x += alone;
            y += p->time_s;
            xx += alone * alone;
            xy += alone * p->time_s;
        }
    }
    if (!(n > 0)) {
        return (mf_contention_loss){0, 0};
    }
    const double spread = n * xx - x * x;
    double factor = spread > 1e-6 * n * xx ? (n * xy - x * y) / spread : y / x;
    factor = fmax(1, factor);
    double wait_s = (y - factor * x) / n;
    if (wait_s < 0) {
        wait_s = 0;
        factor = fmax(1, xy / xx);
    }
    return (mf_contention_loss){factor, wait_s};
}

void mf_contention_build(mf_contention *b, const mf_samples *s) {
    const int device = device_of(s);
    double lost = 0, taken2 = 0;
    *b = (mf_contention){.memory = 1};
    for (size_t i = 0; i < s->ncontention; i++) {
        const mf_contention_point *p = &s->contention[i];
        const double alone = p->device == device && !p->of_comm ? alone_s(s, p) : 0;
        const double together = p->device == device ? comm_s(s, p) : 0;
        if (!(alone > 0)) {
            continue;
        }
        if (p->product) {
            mf_contention_row *r = row_of(b, p);
            if (r != NULL) {
                r->sum += fmin(most_share, fmax(0, 1 - alone / p->time_s));
                r->points++;
            }
        } else if (together > 0 && !is_exchange(p->comm)) {
            const int as = device == 0 ? s->shipped : device; /* measured at its figures */
            double taken = 2 * p->bytes / together / s->device[as].copy_Bps;
            lost += (p->time_s / alone - 1) * taken;
            taken2 += taken * taken;
        }
    }
    if (device >= 0) {
        b->sms = s->device[device].sms;
        b->memory = taken2 > 0 ? fmin(3, fmax(0, lost / taken2)) : 1;
        for (int k = 0; k < MF_OP_COUNT; k++) {
            b->loss[k][MF_CONTENTION_MEMORY] = line_of(s, device, (mf_op_kind)k, false);
            b->loss[k][MF_CONTENTION_PRODUCT] = line_of(s, device, (mf_op_kind)k, true);
        }
    }
}

/* --- asked ------------------------------------------------------------------------------------ */

mf_op_kind mf_contention_kind(const mf_op *op) {
    const bool fused = op->dim[MF_OP_DIM_DISPATCHER] == MF_DISPATCH_FUSED;
    return is_exchange(op->kind) && !fused ? MF_OP_ALL_TO_ALL : (mf_op_kind)op->kind;
}

double mf_contention_share(const mf_contention *b, mf_op_kind kind, double bytes, double sms,
                           double otherwise) {
    const mf_contention_row *below = NULL, *above = NULL;
    const double x = log(fmax(1, bytes));
    for (int i = 0; i < b->n; i++) {
        const mf_contention_row *r = &b->row[i];
        if (r->comm != kind) {
            continue;
        }
        below = r->log_B <= x && (below == NULL || r->log_B > below->log_B) ? r : below;
        above = r->log_B >= x && (above == NULL || r->log_B < above->log_B) ? r : above;
    }
    if (below == NULL && above == NULL) {
        return otherwise;
    }
    below = below != NULL ? below : above; /* beyond the last size: as there */
    above = above != NULL ? above : below;
    double gap = above->log_B - below->log_B, w = gap > 0 ? (x - below->log_B) / gap : 0;
    double share = (1 - w) * below->sum / below->points + w * above->sum / above->points;
    return fmin(1, share * b->sms / sms);
}

double mf_cost_memory_share(const mf_cost *cost, const mf_op *compute, double time_s) {
    mf_op_class class = mf_op_kind_class((mf_op_kind)compute->kind);
    if (class == MF_CLASS_MEMORY) {
        return MF_MEMORY_BOUND;
    }
    bool product = class == MF_CLASS_GEMM || class == MF_CLASS_GROUPED;
    return product && time_s > 0 ? mf_gemm_bytes(compute) / time_s / cost->device.copy_Bps : 0;
}

void mf_cost_comm_slowdown(const mf_cost *cost, const mf_op *comm, bool memory_bound,
                           double *factor, double *wait_s) {
    const mf_contention_loss *loss =
        &cost->contention.loss[mf_contention_kind(comm)]
                              [memory_bound ? MF_CONTENTION_MEMORY : MF_CONTENTION_PRODUCT];
    const bool known = loss->factor > 0;
    *factor = known ? loss->factor : 1;
    *wait_s = known ? loss->wait_s : 0;
}

/* Without calls into libm: plays ask often. */
static double larger(double a, double b) {
    return a > b ? a : b;
}

/* Compute kernels wait for the SMs that communication holds; kernels bound by memory need about
 * half of the SMs only, but take part of the bandwidth. */
double mf_cost_slowdown(const mf_cost *cost, double memory_share, double sm_share,
                        double memory_Bps) {
    const double saturating = 0.5;
    double left = 1 - (sm_share < 0.9 ? larger(0, sm_share) : 0.9),
           taken = memory_Bps / cost->device.copy_Bps;
    if (memory_share < 0) {
        return larger(1, saturating / left) * (1 + cost->contention.memory * larger(0, taken));
    }
    return larger(1 / left, memory_share + larger(0, taken));
}

double mf_cost_compute_slowdown(const mf_cost *cost, const mf_op *compute, double sm_share,
                                double memory_Bps) {
    mf_price p;
    mf_cost_op(cost, compute, 1, &p);
    return mf_cost_slowdown(cost, mf_cost_memory_share(cost, compute, p.time_s), sm_share,
                            memory_Bps);
}
