/* build.c - a cost model from samples: every family fitted, residuals planted, curves gathered.
 *
 * Per (kind, variant): the GPU's own points if there are any; else the parameters of the GPU with
 * the most points (the same architecture first), which carry over because they are efficiencies
 * over a GPU's own sustained rates and times; else the priors. Own points are fitted with the
 * transferred parameters as their prior. Residuals carry over within an architecture only.
 */
#include "core/base/sort.h"
#include "costmodel/cost_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double z90 = 1.645;
static const double transfer_noise_arch = 0.08;  /* to a GPU of the same architecture */
static const double transfer_noise_other = 0.15; /* to another one */
static const double derived_noise = 0.20;        /* nobody measured it */

/* Fewer points than this correct a transferred figure and do not replace it. */
enum { OWN_MIN = 4 };

typedef struct group {
    mf_op_kind kind;
    int variant;
    const mf_family *family;
    const mf_sample **list; /* of twice all samples */
} group;

static size_t leave_quoted(const mf_sample **list, size_t n) {
    size_t measured = 0;
    for (size_t i = 0; i < n; i++) {
        measured += !list[i]->quoted;
    }
    if (measured < MF_MEASURED_MIN) {
        return n;
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (!list[i]->quoted) {
            list[kept++] = list[i];
        }
    }
    return kept;
}

/* Samples by kind and variant, then GPU, then as they came. */
typedef struct sorted {
    int key; /* (kind * variants + variant) * GPUs + GPU */
    size_t at;
    const mf_sample *sample;
} sorted;

static int key_of(int kind, int variant, int device) {
    return (kind * MF_VARIANTS + variant) * MF_SAMPLE_DEVICES + device;
}

static int sorted_order(const void *a, const void *b) {
    const sorted *p = a, *q = b;
    return p->key != q->key ? (p->key > q->key) - (p->key < q->key)
                            : (p->at > q->at) - (p->at < q->at);
}

/* The samples of one GPU that are of the group's kind, into list. */
static size_t select_device(const sorted *samples, size_t n, const group *g, int device,
                            const mf_sample **list) {
    const int key = key_of((int)g->kind, g->variant, device);
    size_t lo = 0, hi = n, count = 0;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (samples[mid].key < key) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    for (; lo < n && samples[lo].key == key; lo++) {
        list[count++] = samples[lo].sample;
    }
    return leave_quoted(list, count);
}

static bool same_arch(const mf_cost_device *a, const mf_cost_device *b) {
    return strcmp(a->cluster->gpu.arch, b->cluster->gpu.arch) == 0;
}

/* The other GPU to draw on: the one with the most points, of the same architecture (near) if there
 * is any; -1 = none. */
static int reference_of(const mf_cost_device *devices, int ndevices, const sorted *samples,
                        size_t n, const group *g, bool near) {
    int best = -1;
    size_t best_score = 0;
    for (int d = 1; d < ndevices; d++) {
        if (devices[d].cluster == NULL) {
            continue;
        }
        size_t count = select_device(samples, n, g, d, g->list);
        bool sibling = near && same_arch(&devices[d], &devices[0]);
        size_t score = count == 0 ? 0 : count + (sibling ? n : 0);
        if (score > best_score) {
            best = d;
            best_score = score;
        }
    }
    return best;
}

/* Distance of a sibling's residual from the GPU's own at the same shape, e-folds. */
static const double sibling_efolds = 0.1;

static int make_nodes(const double *theta, const mf_family *family, const mf_cost_device *devices,
                      const mf_sample *const *list, size_t n, mf_residual_node *nodes) {
    int dims = 0;
    for (size_t i = 0; i < n; i++) {
        const mf_sample *s = list[i];
        dims = family->coords(&s->op, nodes[i].x);
        double base_s = family->base(&devices[mf_sample_as(s)], &s->op, theta);
        double own_s = family->base(&devices[s->device], &s->op, theta);
        nodes[i].time_s = s->time_s * (own_s / base_s);
        nodes[i].restated = mf_is_restated(own_s, base_s);
        nodes[i].spread = s->spread;
        nodes[i].residual = log(s->time_s / base_s);
    }
    return dims;
}

/* Shapes that both were measured at before they say how far apart their residuals are. */
enum { SHARED_MIN = 8 };

/* Sigma of a residual that stands for another GPU's. apart [n]: distances of those of one shape. */
static double sibling_sigma(double *apart, size_t n) {
    if (n < SHARED_MIN) {
        return transfer_noise_arch;
    }
    mf_sort_doubles(apart, n);
    return 1.4826 * apart[n / 2]; /* of a normal distribution, from its median */
}

/* Adds a sibling GPU's residuals where this GPU has no points: a library picks similar kernels on
 * GPUs of one architecture. They are weighted by how well the two agree at shapes where both were
 * measured. `theirs` nodes follow the n own ones. apart [theirs]: work space. Returns the number of
 * nodes. */
static size_t join_sibling(mf_residual_node *nodes, size_t n, size_t theirs, int dims,
                           double *apart) {
    size_t all = n, pairs = 0;
    for (size_t i = n; i < n + theirs; i++) {
        size_t at = n;
        for (size_t j = 0; j < n && at == n; j++) {
            double d = 0;
            for (int k = 0; k < dims && d < 1e-9; k++) {
                d = fmax(d, fabs(nodes[i].x[k] - nodes[j].x[k]));
            }
            at = d < 1e-9 ? j : n;
        }
        if (at < n) {
            apart[pairs++] = fabs(nodes[i].residual - nodes[at].residual);
        } else {
            nodes[all] = nodes[i];
            nodes[all++].x[dims] = sibling_efolds;
        }
    }
    double sigma = sibling_sigma(apart, pairs);
    for (size_t i = n; i < all; i++) {
        nodes[i].spread = hypot(nodes[i].spread, sigma);
    }
    return all;
}

/* sibling: samples of a GPU of the same architecture and the parameters that fit them; may be
 * empty. */
static mf_status plant_field(mf_fitted *f, const mf_family *family, const mf_cost_device *devices,
                             const mf_sample *const *list, size_t n,
                             const mf_sample *const *sibling, size_t theirs,
                             const double *sibling_theta, mf_err *e) {
    mf_residual_node *nodes = calloc(n + theirs + 1, sizeof *nodes);
    double *apart = malloc((theirs + 1) * sizeof *apart);
    if (nodes == NULL || apart == NULL) {
        free(nodes);
        free(apart);
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    int dims = make_nodes(f->theta, family, devices, list, n, nodes);
    if (dims > 1 && theirs > 0) { /* along a line own neighbours are all that counts */
        make_nodes(sibling_theta, family, devices, sibling, theirs, nodes + n);
        n = join_sibling(nodes, n, theirs, dims, apart);
        dims++;
    }
    mf_status st = mf_residuals_build(&f->field, nodes, (int)n, dims, family->noise, e);
    free(nodes);
    free(apart);
    return st;
}

/* A few points of a sibling correct the parameters transferred from the best measured GPU and do
 * not replace them: two sizes cannot tell a fixed time from a rate. */
static void learn_first(const mf_cost_device *devices, int ndevices, const sorted *samples,
                        size_t n, const group *g, size_t sibling, double *mean, double *sd) {
    int most = reference_of(devices, ndevices, samples, n, g, false);
    size_t count = most > 0 ? select_device(samples, n, g, most, g->list) : 0;
    if (sibling >= MF_MEASURED_MIN || count <= sibling) {
        return;
    }
    double theta[MF_FIT_MAX];
    memcpy(theta, mean, sizeof theta);
    mf_fit(g->family->base, devices, g->list, count, g->family->nparams, mean, sd, theta);
    memcpy(mean, theta, sizeof theta);
    for (int i = 0; i < g->family->nparams; i++) {
        sd[i] *= 0.6;
    }
}

static mf_status fit_group(mf_fitted *f, const mf_cost_device *devices, int ndevices,
                           const sorted *samples, size_t n, const group *g, mf_err *e) {
    const mf_family *family = g->family;
    double mean[MF_FIT_MAX], sd[MF_FIT_MAX];
    memcpy(mean, family->mean, sizeof mean);
    memcpy(sd, family->sd, sizeof sd);
    memcpy(f->theta, mean, sizeof mean);
    f->basis = MF_BASIS_DERIVED;
    f->half = z90 * hypot(derived_noise, family->noise);
    size_t mine = select_device(samples, n, g, 0, g->list);
    bool measured = mine >= MF_MEASURED_MIN && !g->list[0]->quoted;
    int reference = reference_of(devices, ndevices, samples, n, g, true);
    bool near = reference > 0 && same_arch(&devices[reference], &devices[0]);
    size_t theirs = reference > 0 ? select_device(samples, n, g, reference, g->list) : 0;
    if (measured && (!near || theirs <= mine)) {
        reference = -1; /* it has enough points of its own */
        near = false;
        theirs = 0;
    }
    if (near) {
        learn_first(devices, ndevices, samples, n, g, theirs, mean, sd);
        theirs = select_device(samples, n, g, reference, g->list);
    }
    if (reference > 0) {
        mf_fit(family->base, devices, g->list, theirs, family->nparams, mean, sd, f->theta);
        f->basis = MF_BASIS_TRANSFERRED;
        f->half = z90 * hypot(near ? transfer_noise_arch : transfer_noise_other, family->noise);
        memcpy(mean, f->theta, sizeof mean);
        for (int i = 0; i < family->nparams && !measured; i++) {
            sd[i] *=
                near ? 0.4 : 0.6; /* transferred from another GPU; a point or two only correct it */
        }
    }
    memcpy(f->taught, f->theta, sizeof f->taught);
    if (mine == 0) {
        return near ? plant_field(f, family, devices, g->list, theirs, NULL, 0, NULL, e) : MF_OK;
    }
    const mf_sample **own = g->list + (near ? theirs : 0); /* behind the sibling's */
    mine = select_device(samples, n, g, 0, own);
    mf_fit(family->base, devices, own, mine, family->nparams, mean, sd, f->theta);
    f->own = true;
    if (mine >= OWN_MIN) {
        f->half = 0; /* the field knows better */
        f->basis = MF_BASIS_FITTED;
    }
    return plant_field(f, family, devices, own, mine, g->list, measured && near ? theirs : 0,
                       f->taught, e);
}

/* What a GPU's own points say of a forward product's rate, they say of its weight gradient. */
static void carry_correction(mf_fitted *row) {
    for (int v = 0; v < MF_VARIANT_WGRAD; v++) {
        mf_fitted *wgrad = &row[v + MF_VARIANT_WGRAD];
        if (row[v].own && !wgrad->own && wgrad->basis == MF_BASIS_TRANSFERRED &&
            row[v].taught[0] > 0) {
            wgrad->theta[0] *= row[v].theta[0] / row[v].taught[0];
        }
    }
}

/* Types of arithmetic and passes that nobody measured take the fit of the nearest one that
 * somebody did: the next wider type in the same pass, else the other pass. */
static void inherit_products(mf_fitted *row) {
    static const int wider[MF_VARIANT_WGRAD] = {[MF_MATH_FP32] = MF_MATH_BF16,
                                                [MF_MATH_BF16] = MF_MATH_BF16,
                                                [MF_MATH_FP8] = MF_MATH_BF16,
                                                [MF_MATH_FP4] = MF_MATH_FP8,
                                                [MF_VARIANT_BLOCK] = MF_MATH_FP8};
    bool known[MF_VARIANTS];
    for (int v = 0; v < MF_VARIANTS; v++) {
        known[v] = row[v].basis != MF_BASIS_DERIVED;
    }
    for (int v = 0; v < MF_VARIANTS; v++) {
        int wgrad = v >= MF_VARIANT_WGRAD ? MF_VARIANT_WGRAD : 0, a = v - wgrad;
        for (int step = 0; step < 2 && !known[a + wgrad] && !known[a]; step++) {
            a = wider[a];
        }
        const mf_fitted *from = known[a + wgrad] ? &row[a + wgrad] : &row[a];
        if (!known[v] && from->basis != MF_BASIS_DERIVED) {
            memcpy(row[v].theta, from->theta, sizeof row[v].theta);
        }
    }
}

static void inherit(mf_cost *cost) {
    carry_correction(cost->fitted[MF_OP_GEMM]);
    carry_correction(cost->fitted[MF_OP_GROUPED_GEMM]);
    inherit_products(cost->fitted[MF_OP_GEMM]);
    inherit_products(cost->fitted[MF_OP_GROUPED_GEMM]);
    inherit_products(cost->fitted[MF_OP_ATTENTION_FWD]);
    inherit_products(cost->fitted[MF_OP_ATTENTION_BWD]);
    mf_fitted *split = cost->fitted[MF_OP_SPLIT];
    if (split[0].basis == MF_BASIS_DERIVED && split[MF_VARIANT_COPY].basis != MF_BASIS_DERIVED) {
        memcpy(split[0].theta, split[MF_VARIANT_COPY].theta, sizeof split[0].theta);
    }
    for (int v = 0; v < MF_VARIANTS; v++) { /* combine is dispatch run backwards */
        mf_fitted *c = &cost->fitted[MF_OP_COMBINE][v];
        const mf_fitted *d = &cost->fitted[MF_OP_DISPATCH][v];
        if (c->basis == MF_BASIS_DERIVED && d->basis != MF_BASIS_DERIVED) {
            memcpy(c->theta, d->theta, sizeof c->theta);
            c->half = hypot(fmin(d->half, c->half), 0.1);
            c->basis = MF_BASIS_TRANSFERRED;
        }
    }
}

/* --- weight gradients that write -------------------------------------------------------------- */

bool mf_writes_anew(const mf_op *op) {
    const mf_op_class class = mf_op_kind_class((mf_op_kind)op->kind);
    return (class == MF_CLASS_GEMM || class == MF_CLASS_GROUPED) && (op->flags & MF_OPF_ANEW) != 0;
}

/* The point of the same product on the same GPU that adds to its output; NULL: nobody measured it.
 */
static const mf_sample *that_adds(const mf_sample *samples, size_t n, const mf_sample *writes) {
    for (size_t i = 0; i < n; i++) {
        const mf_op *a = &samples[i].op, *b = &writes->op;
        if (samples[i].device == writes->device && a->kind == b->kind && a->math == b->math &&
            a->flags == (b->flags & ~(uint32_t)MF_OPF_ANEW) &&
            memcmp(a->dim, b->dim, sizeof a->dim) == 0) {
            return &samples[i];
        }
    }
    return NULL;
}

/* What pairs of a device's BF16 points say of that share; returns how many there are. */
static int anew_nodes(const mf_cost *cost, int grouped, const mf_cost_device *devices, int device,
                      const mf_sample *samples, size_t n, mf_residual_node *nodes, int *dims) {
    const mf_op_kind kind = grouped ? MF_OP_GROUPED_GEMM : MF_OP_GEMM;
    int count = 0;
    for (size_t i = 0; i < n; i++) {
        const mf_sample *writes = &samples[i];
        const mf_sample *adds = writes->device == device && writes->op.kind == (uint8_t)kind &&
                                        writes->op.math == MF_MATH_BF16 &&
                                        mf_writes_anew(&writes->op)
                                    ? that_adds(samples, n, writes)
                                    : NULL;
        if (adds != NULL) {
            const int variant = mf_variant_of(&adds->op);
            const mf_family *family = mf_family_of(kind, variant);
            const double share = mf_anew_share(family, &devices[mf_sample_as(writes)],
                                               cost->fitted[kind][variant].theta, &adds->op);
            mf_residual_node *node = &nodes[count++];
            *dims = family->coords(&adds->op, node->x);
            node->time_s = writes->time_s;
            node->spread = hypot(writes->spread, adds->spread);
            node->residual = log(writes->time_s / adds->time_s / share);
        }
    }
    return count;
}

/* Points of the GPU itself, else of the one of its architecture that has most. */
static mf_status plant_anew(mf_cost *cost, int grouped, const mf_cost_device *devices, int ndevices,
                            const mf_sample *samples, size_t n, mf_err *e) {
    static const double noise = 0.05;
    mf_residual_node *nodes = calloc(n + 1, sizeof *nodes);
    int best = 0, most = 0, dims = 0;
    if (nodes == NULL) {
        return mf_err_set(e, MF_NOMEM, "cost model: out of memory");
    }
    for (int d = 0; d < ndevices && (best > 0 || most == 0); d++) {
        if (d > 0 && (devices[d].cluster == NULL || !same_arch(&devices[d], &devices[0]))) {
            continue;
        }
        const int count = anew_nodes(cost, grouped, devices, d, samples, n, nodes, &dims);
        best = count > most ? d : best;
        most = count > most ? count : most;
    }
    mf_status st = MF_OK;
    if (most > 0) {
        most = anew_nodes(cost, grouped, devices, best, samples, n, nodes, &dims);
        st = mf_residuals_build(&cost->anew[grouped], nodes, most, dims, noise, e);
    }
    free(nodes);
    return st;
}

mf_status mf_cost_build(const mf_cluster *c, const mf_software *s, const mf_cost_device *devices,
                        int ndevices, const mf_sample *samples, size_t n, mf_cost **out,
                        mf_err *e) {
    mf_status st = MF_NOMEM;
    mf_cost *cost = calloc(1, sizeof *cost);
    const mf_sample **list = malloc((2 * n + 1) * sizeof(const mf_sample *));
    sorted *in_order = malloc((n + 1) * sizeof *in_order);
    *out = NULL;
    if (cost == NULL || list == NULL || in_order == NULL) {
        st = mf_err_set(e, MF_NOMEM, "cost model: out of memory");
        goto out;
    }
    size_t sorted_n = 0;
    for (size_t i = 0; i < n; i++) {
        const mf_sample *p = &samples[i];
        if (!mf_writes_anew(&p->op)) {
            in_order[sorted_n++] =
                (sorted){key_of(p->op.kind, mf_variant_of(&p->op), p->device), i, p};
        }
    }
    if (sorted_n > 0) {
        qsort(in_order, sorted_n, sizeof *in_order, sorted_order);
    }
    cost->cluster = *c;
    cost->gpu_kind = mf_gpu_kind_of(&c->gpu);
    cost->scales_blocks =
        strcmp(c->gpu.arch, "blackwell") == 0 || strcmp(c->gpu.arch, "cdna4") == 0;
    cost->software = *s;
    cost->contention.memory = 1;
    cost->device = devices[0];
    cost->device.cluster = &cost->cluster;
    mf_energy_init(&cost->energy, &cost->cluster, cost->cluster.gpu.power_w);
    for (int k = 0; k < MF_OP_COUNT; k++) {
        for (int v = 0; v < MF_VARIANTS; v++) {
            group g = {(mf_op_kind)k, v, mf_family_of((mf_op_kind)k, v), list};
            if (g.family == NULL) {
                continue;
            }
            st = fit_group(&cost->fitted[k][v], devices, ndevices, in_order, sorted_n, &g, e);
            if (st != MF_OK) {
                goto out;
            }
        }
    }
    inherit(cost);
    for (int grouped = 0; grouped < 2 && st == MF_OK; grouped++) {
        st = plant_anew(cost, grouped, devices, ndevices, samples, n, e);
    }
    if (st != MF_OK) {
        goto out;
    }
    st = mf_collectives_build(&cost->coll, devices, samples, n, s->nvls, e);
    if (st == MF_OK && s->nvls_best) {
        st = mf_collectives_build(&cost->plain, devices, samples, n, false, e);
    }
    if (st == MF_OK) {
        cost->memo = mf_price_memo_create();
        *out = cost;
        cost = NULL;
    }
out:
    mf_cost_destroy(cost);
    free(in_order);
    free(list);
    return st;
}

void mf_cost_destroy(mf_cost *cost) {
    if (cost == NULL) {
        return;
    }
    for (int k = 0; k < MF_OP_COUNT; k++) {
        for (int v = 0; v < MF_VARIANTS; v++) {
            mf_residuals_clear(&cost->fitted[k][v].field);
        }
    }
    mf_residuals_clear(&cost->anew[0]);
    mf_residuals_clear(&cost->anew[1]);
    mf_collectives_clear(&cost->coll);
    mf_collectives_clear(&cost->plain);
    mf_price_memo_destroy(cost->memo);
    free(cost);
}
