/* cost_internal.h - what several files of costmodel/ use; nobody outside includes it.
 *
 * Shape of the folder:
 *   fit.c         Levenberg-Marquardt on the logarithm of time, few positive parameters with priors
 *   residuals.c       what the fit leaves over, interpolated between measured points; its spread
 *   model_gemm.c, model_attention.c, model_memory.c, model_dispatch.c
 *                 families: op -> time by a formula with parameters
 *   collective.c  NCCL's own model and measured curves
 *   energy.c      what ops take under the power cap
 *   contention.c      what compute loses to communication; host.c: what ops cost the host
 *   sample.c      points of the store -> ops with a measured time
 *   cost.c        builds all of it once, and prices
 */
#ifndef MF_COSTMODEL_COST_INTERNAL_H
#define MF_COSTMODEL_COST_INTERNAL_H

#include "costmodel/cost.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

/* --- a GPU as the formulas see it ------------------------------------------------------------- */

typedef struct mf_cost_device {
    const mf_cluster *cluster;
    double sms;
    double rate[MF_MATH_COUNT]; /* FLOP/s of a large matrix product: measured, else of the peak */
    double peak[MF_MATH_COUNT]; /* data sheet; both fall back to the next wider type */
    double copy_Bps;            /* measured device copy, read + write */
    double memory_Bps;          /* data sheet */
    double l2_B;
    double host_Bps;
} mf_cost_device;

void mf_device_init(mf_cost_device *d, const mf_cluster *c);

/* --- fitting ---------------------------------------------------------------------------------- */

#define MF_FIT_MAX 7

/* Time of op by the formula, parameters theta > 0. Pure. */
typedef double (*mf_base_fn)(const mf_cost_device *d, const mf_op *op, const double *theta);

typedef struct mf_sample {
    mf_op op;
    double time_s;
    double spread; /* relative half-width of the measurement; 0 = not known */
    int device;    /* index into the devices of a build */
    int as;        /* > 0: index of the device with the figures that it was measured at: the GPU as
                      it ships, where a cluster states others for it. 0: `device` itself */
    bool fixed;    /* collectives: the algorithm was fixed by hand */
    bool quoted;   /* published, without a spread: gives way to enough points that have one */
} mf_sample;

static inline int mf_sample_as(const mf_sample *s) {
    return s->as > 0 ? s->as : s->device;
}

/* Is a formula's time at the cluster's own figures another than at those that a point was measured
 * at? Then nobody has measured the point as it is priced. */
static inline bool mf_is_restated(double own_s, double measured_s) {
    return fabs(own_s / measured_s - 1) > 1e-9;
}

/* With this many points that have a spread, a GPU's published points are left out. */
enum { MF_MEASURED_MIN = 16 };

#define MF_SAMPLE_DEVICES 32 /* most GPUs that samples come from */

/* A flag of sample ops alone. Of a collective: NVLink multicast was allowed when it was measured.
 * Of a split: not the kernel of a step but the driver's own copy, which sets the copy bandwidth. */
enum { MF_SAMPLE_NVLS = 128, MF_SAMPLE_COPY = 128 };

/* A family of ops priced by one formula. */
typedef struct mf_family {
    const char *name;
    int nparams;
    double mean[MF_FIT_MAX]; /* prior of each parameter ... */
    double sd[MF_FIT_MAX];   /* ... and standard deviation of its logarithm */
    mf_base_fn base;
    /* Coordinates in which residuals are interpolated; returns their number. */
    int (*coords)(const mf_op *op, double *x);
    double noise; /* relative error that the formula keeps where nothing was measured */
} mf_family;

/* Finds the parameters that minimise a Huber loss of log(time / measured) plus the priors
 * (mean, sd of the logarithm); theta holds the start and receives the result. samples[i] belongs to
 * devices[samples[i]->device]. Deterministic. */
void mf_fit(mf_base_fn base, const mf_cost_device *devices, const mf_sample *const *samples,
            size_t n, int nparams, const double *mean, const double *sd, double *theta);

/* --- residuals -------------------------------------------------------------------------------- */

#define MF_FIELD_DIMS 7 /* six of a family, and whether another GPU was measured there */

typedef struct mf_residual_node {
    double x[MF_FIELD_DIMS];
    double residual; /* log(measured / formula) */
    double spread;
    double time_s; /* as measured, or for the cluster's own figures */
    bool restated; /* those are others than it was measured at */
    int axis;
} mf_residual_node;

/* Scattered residuals in log space, a k-d tree over them, and how far they can be trusted. */
typedef struct mf_residuals {
    int n, dims;
    mf_residual_node *node; /* [n], tree order */
    double sigma;           /* robust spread of the residuals */
    double reach;      /* calibrated so that nine in ten left-out points fall into their band */
    double loo_median; /* median error of left-out points */
} mf_residuals;

typedef struct mf_residual_value {
    double residual;
    double half;    /* relative half-width of the band */
    double nearest; /* distance to the nearest point, e-folds */
    double time_s;  /* of the point itself when nearest is 0 */
    bool restated;  /* the point was measured at other figures than the cluster's */
} mf_residual_value;

/* Takes n nodes (copied), merges those with equal coordinates, builds the tree and calibrates.
 * noise: half-width that stays where nothing is near. */
mf_status mf_residuals_build(mf_residuals *f, const mf_residual_node *nodes, int n, int dims,
                             double noise, mf_err *e);
void mf_residuals_clear(mf_residuals *f);
/* skip >= 0 leaves that node out (for calibration); -1 = none. */
void mf_residuals_at(const mf_residuals *f, const double *x, int skip, mf_residual_value *out);

/* --- families --------------------------------------------------------------------------------- */

extern const mf_family mf_family_gemm, mf_family_grouped, mf_family_attention_fwd,
    mf_family_attention_bwd, mf_family_copy, mf_family_dispatch_fused, mf_family_dispatch_alltoall;

/* Formula of a memory-bound kind (its efficiency over the copy bandwidth is its prior). */
const mf_family *mf_family_memory(mf_op_kind kind);
/* Family of a kind and variant (mf_math of compute, mf_dispatcher of dispatch and combine); NULL
 * for collectives and for the all-gather dispatcher, which collective.c prices. */
const mf_family *mf_family_of(mf_op_kind kind, int variant);
int mf_variant_of(const mf_op *op);

/* Is it a weight gradient that writes its FP32 result? */
bool mf_writes_anew(const mf_op *op);
/* By formula: time of a product that writes an FP32 result over that of one that adds to it. */
double mf_anew_share(const mf_family *family, const mf_cost_device *d, const double *theta,
                     const mf_op *adds);

double mf_math_element_B(int math);
double mf_gemm_bytes(const mf_op *op);
double mf_gemm_limit_s(const mf_cost_device *d, const mf_op *op);
double mf_attention_limit_s(const mf_cost_device *d, const mf_op *op);
double mf_memory_limit_s(const mf_cost_device *d, double bytes);
/* Sum over queries of the keys that each may see. */
double mf_attention_keys(const mf_op *op);
/* FLOPs of the blocks of keys that a kernel walks over, over those that its mask leaves. */
double mf_attention_walked(const mf_op *op);
/* What the gradients of sinks take beside a backward pass without (MF_OPF_SINKS). */
double mf_attention_sinks_s(const mf_op *op);
/* FLOPs of attention whose products know no mask (MF_OPF_SCORES). */
double mf_attention_square_flops(const mf_op *op);

/* --- links ------------------------------------------------------------------------------------ */

/* A group on the machine: n members, `inside` of them per scale-up domain, `domains` domains. */
typedef struct mf_geometry {
    double n, inside, domains;
    double in_Bps;                      /* scale-up per GPU and direction that collectives reach */
    double in_peak_Bps;                 /* data sheet */
    double net_Bps;                     /* one GPU's NIC, efficiency and oversubscription applied */
    double net_peak_Bps;                /* one GPU's NIC, data sheet */
    double net_latency_s, in_latency_s; /* of a hop */
    bool nvls;                          /* the switch can multicast and reduce */
} mf_geometry;

void mf_geometry_of(const mf_cluster *c, mf_group_shape shape, mf_geometry *g);

/* Expected number of units (ranks, domains) that hold at least one of a token's experts. */
double mf_expected_hits(double experts, double top_k, double units, double groups,
                        double groups_max);
double mf_dispatch_limit_s(const mf_cluster *c, const mf_op *op);
/* Does an exchange make a pass over memory to put rows into the order of experts or take them out
 * of it (MF_OP_DIM_ORDERED)? Then *out is the op that does only that. The kernel of combine reads
 * rows in that order, as it was measured; CPU ranks sum them first. */
bool mf_dispatch_pass(const mf_cluster *c, const mf_op *op, mf_op *out);
/* The pass over memory behind a grouped product that adds biases to its rows. */
bool mf_bias_pass(const mf_op *op, mf_op *out);
/* The pass over memory behind a gather of CP, or in front of its scatter: a rank has two chunks of
 * a sample that lie apart, so that what members send is not yet in the order of the sample. */
bool mf_chunk_pass(const mf_op *op, mf_op *out);
/* The pass that an op makes over memory, whichever of these it is. */
bool mf_op_pass(const mf_cluster *c, const mf_op *op, mf_op *out);

/* --- collectives ------------------------------------------------------------------------------ */

enum { MF_COLL_REDUCE, MF_COLL_GATHER, MF_COLL_ALLTOALL, MF_COLL_P2P, MF_COLL_CLASSES };
/* Where a group lies: three or more ranks of a domain, across domains, two ranks of a domain. A
 * pair exchanges everything in one step of the ring, and reaches less of the link than a ring of
 * many. */
enum { MF_PLACE_INSIDE, MF_PLACE_ACROSS, MF_PLACE_PAIR, MF_PLACES };

typedef struct mf_curve {
    uint8_t kind;
    int64_t ranks, inside;
    int n;
    double *log_B, *log_s; /* [n] knots by size; time rises with size */
    double *half;          /* [n] band */
    bool *measured;        /* [n] a measured point, else a bend between two */
    bool restated;         /* measured at other figures than the cluster's */
} mf_curve;

/* Correction of NCCL's model: t = f[0] L + f[1] (T - L) + f[2] sqrt(L (T - L)), L the latency. */
typedef struct mf_coll_fit {
    double f[3];
    double half; /* band */
    bool own;    /* from this GPU's points */
} mf_coll_fit;

typedef struct mf_collectives {
    mf_coll_fit fit[MF_COLL_CLASSES][MF_PLACES];
    int ncurves;
    mf_curve *curve;
    bool nvls;
} mf_collectives;

mf_status mf_collectives_build(mf_collectives *k, const mf_cost_device *devices,
                               const mf_sample *samples, size_t n, bool nvls, mf_err *e);
void mf_collectives_clear(mf_collectives *k);
/* Time, limit, basis, link and SMs of all_reduce, all_gather, reduce_scatter, all_to_all,
 * send_recv; bytes as in program.h; *half is the relative half-width of the band. */
void mf_collective_price(const mf_collectives *k, const mf_cost_device *d, mf_op_kind kind,
                         mf_group_shape shape, double bytes, mf_price *out, double *half);
double mf_collective_limit_s(const mf_geometry *g, mf_op_kind kind, double bytes);
/* NCCL's model: time, and *latency_s = time of nothing. */
double mf_nccl_time_s(const mf_geometry *g, mf_op_kind kind, double bytes, bool nvls,
                      double *latency_s);
/* SMs that a collective occupies. */
double mf_collective_sms(mf_op_kind kind, const mf_geometry *g);

/* --- energy ----------------------------------------------------------------------------------- */

/* Energy of an op above what the GPU draws anyway (cost.h). */
enum {
    MF_ENERGY_BYTE,
    MF_ENERGY_OPERAND,
    MF_ENERGY_PRODUCT,
    MF_ENERGY_ATTENTION,
    MF_ENERGY_ATTENTION_BWD,
    MF_ENERGY_IDLE,
    MF_ENERGY_TERMS
};
typedef struct mf_energy {
    double cap_W, shipped_cap_W, idle_W, clock_Hz;
    double flop_J[3][MF_MATH_COUNT]; /* of products, of attention, of its gradients */
    double byte_J, operand_J; /* of copies and the like; of what products and attention touch */
    bool measured;
} mf_energy;

/* A point whose energy was measured. */
typedef struct mf_energy_point {
    mf_op op;
    double energy_J, sustained_s, rested_s;
} mf_energy_point;

/* Carried over from an H200. shipped_W: power limit of that GPU as it ships, which the owner of a
 * cluster may have lowered. */
void mf_energy_init(mf_energy *m, const mf_cluster *c, double shipped_W);
/* Fits it to points of the GPU itself; with few points it stays as it is. */
void mf_energy_fit(mf_energy *m, const mf_energy_point *point, size_t n);

/* --- the model -------------------------------------------------------------------------------- */

/* Variants of a product: its arithmetic (mf_math), FP8 with a scale per block, and each of them as
 * weight gradient, whose operands lie along the sum and whose output is read as well. Of a split:
 * the kernel (0) and the driver's copy. Of dispatch and combine: the dispatcher. */
enum { MF_VARIANT_BLOCK = MF_MATH_COUNT, MF_VARIANT_WGRAD };
enum { MF_VARIANT_COPY = 1 };
#define MF_VARIANTS (2 * MF_VARIANT_WGRAD)

typedef struct mf_fitted {
    double theta[MF_FIT_MAX];
    double taught[MF_FIT_MAX]; /* theta before the GPU's own points corrected it */
    mf_residuals field;
    double half;   /* band where no point is near */
    uint8_t basis; /* mf_basis where no point is near */
    bool own;      /* the field holds points of this very GPU */
} mf_fitted;

/* Prices asked for lately (memo.c); of one mf_cost, for all threads. price: what to ask when it is
 * not there. */
typedef struct mf_price_memo mf_price_memo;
typedef void (*mf_price_fn)(const mf_cost *cost, const mf_op *op, double load, mf_price *out);
mf_price_memo *mf_price_memo_create(void); /* NULL: out of memory */
void mf_price_memo_destroy(mf_price_memo *m);
/* Forgets everything; not while another thread asks. NULL: nothing. */
void mf_price_memo_clear(mf_price_memo *m);
void mf_price_memo_get(mf_price_memo *m, const mf_cost *cost, const mf_op *op, double load,
                       mf_price_fn price, mf_price *out);
/* Prices of n ops, as mf_price_memo_get gives each of them; faster than n calls. out: [n] */
void mf_price_memo_get_all(mf_price_memo *m, const mf_cost *cost, const mf_op *ops, int n,
                           double load, mf_price_fn price, mf_price *out);

/* What communication takes from compute beside it (contention.c). */
enum { MF_CONTENTION_ROWS = 32 };
typedef struct mf_contention_row {
    uint8_t comm; /* mf_op_kind */
    double log_B; /* its size */
    double sum;   /* of the shares of the SMs that products lost ... */
    int points;   /* ... so many of them */
} mf_contention_row;
/* What communication loses to compute that runs beside it. */
typedef struct mf_contention_loss {
    double factor; /* its time grows by; 0 = not measured */
    double wait_s; /* until compute that was there first leaves it multiprocessors */
} mf_contention_loss;
enum { MF_CONTENTION_MEMORY, MF_CONTENTION_PRODUCT, MF_CONTENTION_WORKS };
typedef struct mf_contention {
    int n;
    mf_contention_row row[MF_CONTENTION_ROWS];
    double sms;    /* of the GPU where that was measured */
    double memory; /* bandwidth that kernels bound by it lose per byte that communication moves */
    mf_contention_loss loss[MF_OP_COUNT]
                           [MF_CONTENTION_WORKS]; /* of communication, by what is beside */
} mf_contention;

/* Share of a GPU's `sms` that communication inside a domain takes: a collective of NCCL, or the
 * fused dispatch or combine; `otherwise` where nobody measured it. */
double mf_contention_share(const mf_contention *b, mf_op_kind kind, double bytes, double sms,
                           double otherwise);

/* The kind under which communication stands in there: rows that NCCL exchanges are its all-to-all.
 */
mf_op_kind mf_contention_kind(const mf_op *op);

/* Measured host times of one launch: into a stream, and as part of the replay of a graph; 0: not
 * measured. */
typedef struct mf_launch {
    double stream_s, replay_s;
} mf_launch;

mf_gpu_kind mf_gpu_kind_of(const mf_gpu *gpu);

struct mf_cost {
    mf_price_memo *memo; /* NULL while it is built, and where there is no memory for it */
    mf_cluster cluster;
    mf_gpu_kind gpu_kind;
    /* Blackwell's and CDNA4's matrix units apply the scales of blocks themselves; on GPUs before
     * them a kernel does, whose measurements say nothing of the others. */
    bool scales_blocks;
    mf_software software;
    mf_cost_device device;
    mf_fitted fitted[MF_OP_COUNT][MF_VARIANTS];
    mf_residuals anew[2]; /* weight gradients that write over those that add, by groups or not:
                             measured over what formulas say */
    mf_collectives coll;
    mf_collectives plain; /* without NVLink multicast, where the faster is taken; else empty */
    mf_contention contention;
    mf_launch launch;
    char measured[16]; /* date */
    mf_energy energy;
};

/* The op with the routed rows of this rank. */
mf_op mf_cost_loaded(const mf_op *op, double load);

/* Builds from samples in memory. devices[0] is the cluster's own GPU, the others are what transfer
 * may draw on (.cluster NULL: not to be used). Everything is copied. */
mf_status mf_cost_build(const mf_cluster *c, const mf_software *s, const mf_cost_device *devices,
                        int ndevices, const mf_sample *samples, size_t n, mf_cost **out, mf_err *e);

/* An op from a canonical point: class, dims, flops, bytes, group on that cluster. Errors: MF_USAGE
 * naming the key and what is expected. */
mf_status mf_cost_point_op(const mf_point *p, const mf_cluster *c, mf_op *out, mf_err *e);

#endif
