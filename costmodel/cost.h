/* cost.h - the price of an op: measured where measured, fitted between, derived from data sheets
 * beyond; each with an error band and the basis it rests on.
 *
 * A cost model is built once from (cluster, software profile, profile store) and then only read:
 * every pricing function is pure and thread-safe, allocation-free and quick (<= 1 us typical),
 * since search prices millions of ops.
 */
#ifndef MF_COSTMODEL_COST_H
#define MF_COSTMODEL_COST_H

#include "core/base/json.h"
#include "core/program/program.h"
#include "profiles/store.h"

typedef struct mf_cost mf_cost;

/* GPUs whose kernels and sustained clocks a software profile tells apart. */
#define MF_GPU_KIND_MAP(X)                                                                         \
    X(HOPPER, "hopper")                                                                            \
    X(B200, "b200")                                                                                \
    X(GB200, "gb200")                                                                              \
    X(B300, "b300")                                                                                \
    X(GB300, "gb300")                                                                              \
    X(OTHER, "other")
typedef enum mf_gpu_kind {
#define X(name, text) MF_GPU_##name,
    MF_GPU_KIND_MAP(X)
#undef X
        MF_GPU_KIND_COUNT
} mf_gpu_kind;

/* Rates that gpu_eff scales; low precision comes on top of GEMM and grouped GEMM, memory on top of
 * memory_eff. */
enum {
    MF_RATE_GEMM,
    MF_RATE_GROUPED,
    MF_RATE_ATTENTION,
    MF_RATE_HOST,
    MF_RATE_LOW_PRECISION,
    MF_RATE_MEMORY,
    MF_RATE_COUNT
};

/* Defaults of a program for options that a user may leave out: the likely value first, then others
 * that its releases choose, too. Of models [0] without experts, [1] with them; of dispatchers [0]
 * inside one scale-up domain, [1] beyond it. Counts of 0: the layout's own default, and no other.
 */
#define MF_DEFAULTS_MAX 3
typedef struct mf_profile_defaults {
    int graphs[2], dispatchers[3];
    mf_graph_mode graph[2][MF_DEFAULTS_MAX];
    mf_dispatcher dispatcher[3][MF_DEFAULTS_MAX];
    double band[2]; /* by which an option that is left out moves a step, one by one; kinds as of
                       graphs */
} mf_profile_defaults;

/* The profile of this project's own executor. */
#define MF_SOFTWARE_OURS "moefold"

/* What the peak of memory holds that a program prints: PyTorch's allocator knows neither the CUDA
 * context nor NCCL's buffers; beside a plan's tensors Megatron holds gradients that nobody reads, a
 * gradient of its head in BF16, and the FP32 parameters whose moments are on the host. */
#define MF_REPORT_MAP(X)                                                                           \
    X(ALLOCATED, "allocated", 0)                                                                   \
    X(UNREAD_GRADIENTS, "unread_gradients", 1)                                                     \
    X(HEAD_GRADIENT, "head_gradient", 2)                                                           \
    X(HOST_PARAMETERS, "host_parameters", 3)
enum {
#define X(name, text, bit) MF_REPORT_##name = 1u << bit,
    MF_REPORT_MAP(X)
#undef X
        MF_REPORT_NONE = 0
};

/* Named software profile: few, physically named parameters, chosen by release alone. Shipped as
 * profiles/software/NAME.json. Efficiencies multiply a rate; 1 = the rate the measurements give. */
typedef struct mf_software {
    char name[32];
    char release[16];               /* "26.06"; "" for ideal and moefold */
    char date[16];                  /* when its figures were found; may be missing in a file: "" */
    double gemm_eff[MF_MATH_COUNT]; /* rate over what the shape reaches in isolation */
    double block_scale_eff; /* GEMM rate with a scale per block over one per tensor. 0 = 1, may be
                               missing in a file */
    double grouped_eff;     /* grouped GEMM rate over one GEMM of the same tokens */
    double attention_eff;
    double ring_attention_eff; /* ... of a ring's pieces over keys of other members: kernels on
                                  parts of the sequence, their merges. 0 = 1, may be missing */
    double memory_eff;         /* memory-bound ops over copy bandwidth */
    double scan_eff;  /* convolutions, scans and gated norms of linear mixers, over that again. 0 =
                         1, may be missing in a file */
    double host_op_s; /* host time to issue one op, no graph */
    /* 1: launches cost what was measured where it was, in place of host_op_s and of host_graph's
     * step. May be missing in a file: 0 */
    double host_measured;
    double host_layer_s; /* ... more per layer and pass: framework, synchronisation */
    double moe_sync_s; /* device idle per MoE layer and pass: counts of tokens go to the host, small
                          kernels follow it one by one. May be missing in a file: 0 */
    double host_graph[MF_GRAPH_COUNT];  /* factor on host time by graph mode */
    double comm_eff[MF_DISPATCH_COUNT]; /* dispatcher bandwidth over its ceiling */
    double collective_eff;
    double overlap_exposed[5]; /* share that stays exposed per MF_OVERLAP_* bit, 0..1 */
    /* Of the gathers and reductions of ZeRO-3, which run a block ahead: how well a program
     * prefetches is apart from how well it hides what it does at the end of a step. 0 = as
     * overlap_exposed says of dp; may be missing in a file. */
    double prefetch_exposed;
    /* ... of those that stay inside a domain, where compute loses to NCCL's kernels and no network
     * is late. 0 = the same; may be missing in a file. */
    double prefetch_inside;
    /* Time of AdamW per element of offloaded states on a GPU's share of the host's CPU. 0 = the
     * program copies them to the device and back; may be missing in a file. */
    double host_adam_s;
    double fixed_step_s; /* of a step */
    /* What a collective that its block waits for adds to its own time: queues signal each other
     * before it begins and when it has ended. May be missing in a file: 0 */
    double signal_s;
    double gpu_power_eff; /* sustained clocks in long training runs over short tests */
    /* 1: the first micro-batch of a step writes weight gradients, which others add to. May be
     * missing in a file: 0, all add to what was cleared. */
    double first_anew;
    /* 1: activations that wait in host memory travel beside the neighbouring block of their pass,
     * through a place of their own, which the device copies them to and from; the last block of a
     * forward pass and the first of a backward one do their own. May be missing in a file: 0, their
     * copies go on beside whatever is there, from and to where they are. */
    double copies_in_pass;
    /* Energy of ops in a step over that of the same kernels alone, beside what the GPU draws
     * anyway: products and attention slow down as the mix of a block's ops takes more than the GPU
     * may draw (mf_cost_stretch), beside gpu_power_eff. 0: nothing slows them down. May be missing
     * in a file: 0 */
    double power_cap;
    /* The same of a program whose rates were fitted to runs under the power limits that GPUs ship
     * with: what slows down is what a lower limit adds to that. 0: nothing. May be missing in a
     * file: 0 */
    double fitted_power;
    /* How much of those rates this kind of GPU keeps: power limit, maturity of its kernels. 0 = 1.
     * May be missing in a file. */
    double gpu_eff[MF_RATE_COUNT][MF_GPU_KIND_COUNT];
    double rate_cap; /* what no rate exceeds over that of an op alone; what-ifs and corrections to
                      * less time ask for more. 0 = 1 */
    double band;     /* relative half-width added when flags are unknown */
    bool nvls;       /* collectives may use NVLink multicast */
    bool nvls_best;  /* ... and take it only where it is faster; in a file "nvls" is then 2 */
    uint32_t traits; /* MF_TRAIT_* of core/layout/layout.h; may be missing in a file: 0 */
    uint32_t memory_report;     /* MF_REPORT_* of what it prints; may be missing in a file: 0, the
                                 * device's memory */
    mf_profile_defaults unsaid; /* may be missing in a file: a layout says everything */
} mf_software;

/* The newest release of Megatron that has a profile. */
const char *mf_software_newest_megatron(void);

/* By name, or "megatron-YY.MM" -> the newest known profile not newer, or by path to a file.
 * NULL = "moefold". Unknown: MF_USAGE listing the known ones. A file that misses a key, has one too
 * many or a value out of range: MF_INPUT with file:line:col. */
mf_status mf_software_load(const char *name, mf_software *out, mf_err *e);
mf_status mf_software_from_json(const mf_json *doc, mf_software *out, mf_err *e);
/* Makes every op, launch and collective that it prices take `factor` times as long. A file says it
 * with {"name", "extends", "step_factor": figure}: what a measured job corrects a profile by. */
void mf_software_slow(mf_software *s, double factor);
const char *const *mf_software_shipped(size_t *count);

/* The evidence that a price rests on. */
#define MF_BASIS_MAP(X)                                                                            \
    X(MEASURED, "measured point")                                                                  \
    X(INTERPOLATED, "between measured points")                                                     \
    X(FITTED, "fitted roofline")                                                                   \
    X(TRANSFERRED, "transferred from another GPU by data-sheet ratios")                            \
    X(DERIVED, "data sheet: derived, not measured")                                                \
    X(NCCL_MODEL, "NCCL's own model")
typedef enum mf_basis {
#define X(name, text) MF_BASIS_##name,
    MF_BASIS_MAP(X)
#undef X
        MF_BASIS_COUNT
} mf_basis;

typedef struct mf_price {
    double time_s;        /* alone on the device / the links */
    double low_s, high_s; /* band */
    double limit_s;       /* FLOPs or bytes over the peak: no op can be faster */
    double sm_share;      /* share of the SMs that communication takes while it runs, 0..1 */
    double link_share;    /* share of its link that it uses while it runs, 0..1 */
    uint8_t link;         /* mf_link_kind */
    uint8_t basis;        /* mf_basis */
} mf_price;

typedef enum mf_link_kind {
    MF_LINK_NONE,
    MF_LINK_SCALEUP,
    MF_LINK_NETWORK,
    MF_LINK_HOST
} mf_link_kind;

/* store NULL: the shipped measurements. The store may be closed afterwards. *out to be destroyed.
 */
mf_status mf_cost_create(const mf_cluster *c, const mf_software *s, mf_store *store, mf_cost **out,
                         mf_err *e);
void mf_cost_destroy(mf_cost *cost);
/* Another profile on the same measurements; its nvls must be that of the profile at creation. Not
 * while another thread prices. */
void mf_cost_set_software(mf_cost *cost, const mf_software *s);
const mf_cluster *mf_cost_cluster(const mf_cost *cost);
const mf_software *mf_cost_software(const mf_cost *cost);
/* Date of the newest point that was measured on the cluster's own GPU; "" where nobody measured it.
 */
const char *mf_cost_measured(const mf_cost *cost);
/* Share of communication (one MF_OVERLAP_* bit) that stays exposed although it may overlap, 0 up to
 * 0.95. */
double mf_cost_exposed(const mf_cost *cost, unsigned overlap_bit);

/* Price of an op. load scales the routed rows of MF_OPF_ROUTED ops (1 = balanced). */
void mf_cost_op(const mf_cost *cost, const mf_op *op, double load, mf_price *out);
/* Prices of n ops, as mf_cost_op gives each of them; faster than n calls. out: [n] */
void mf_cost_ops(const mf_cost *cost, const mf_op *ops, int n, double load, mf_price *out);

/* What the host's memory gives each of the job's GPUs of a host for copies like this one, both
 * directions together, while all of them copy: the cluster's host_shared_Bps over as many as there
 * are. 0: no limit beside the GPU's own link, as for one GPU or where the cluster does not say. */
double mf_cost_host_share_Bps(const mf_cost *cost, const mf_op *copy);

/* What an op adds to its own time where its block waits for it: signal_s of the software for
 * collectives inside a block (streams TP, CP and EP), else 0; 0, too, where its price is 0, as in a
 * group of one. */
double mf_cost_signal_s(const mf_cost *cost, const mf_op *op, const mf_price *price);

/* What a weight gradient that adds to an FP32 sum (MF_OPF_ACC_FP32) takes less where it writes it
 * anew, as in the first micro-batch of a step; 0 where the software adds in all of them. */
double mf_cost_anew_s(const mf_cost *cost, const mf_op *op);

/* Host time to issue an op under a graph mode. */
double mf_cost_host_s(const mf_cost *cost, const mf_op *op, mf_graph_mode graph);
/* Host time of a block and pass beyond its ops. */
double mf_cost_host_block_s(const mf_cost *cost, mf_graph_mode graph);
/* Time that the device idles for `op` however far ahead the host is; 0 for most. */
double mf_cost_host_sync_s(const mf_cost *cost, const mf_op *op, mf_graph_mode graph);

/* Slow-down of a running compute op while communication with these shares runs beside it (>= 1). */
double mf_cost_compute_slowdown(const mf_cost *cost, const mf_op *compute, double sm_share,
                                double memory_Bps);
/* The same in two steps, the first once for each op: the share of the memory bandwidth that it
 * takes when it runs alone for time_s (its price at load 1), MF_MEMORY_BOUND where it is bound by
 * it. */
#define MF_MEMORY_BOUND (-1.0)
double mf_cost_memory_share(const mf_cost *cost, const mf_op *compute, double time_s);
double mf_cost_slowdown(const mf_cost *cost, double memory_share, double sm_share,
                        double memory_Bps);

/* What communication inside a scale-up domain loses to compute that runs beside it, to kernels
 * bound by memory or to others (products, attention): its time grows by the factor (>= 1) while
 * both run, and where the compute was there first it waits for multiprocessors, at most wait_s. As
 * measured; 1 and 0 without a measurement. */
void mf_cost_comm_slowdown(const mf_cost *cost, const mf_op *comm, bool memory_bound,
                           double *factor, double *wait_s);

const char *mf_basis_text(mf_basis b);

/* --- power --------------------------------------------------------------------------------------
 *
 * Energies of ops add up and the power of a GPU is capped, so that a stretch of work takes no less
 * than its energy over the cap: a roofline of energy. An op takes
 *     idle_W x time + J/FLOP x FLOPs + J/byte x bytes,
 * J/FLOP of products and attention grows with the clock. They are fitted to the measured energies
 * of this GPU's points, else those of an H200 carried over: J/FLOP by power over the best product
 * that was measured, J/byte as they are, the idle power by the power limit that the GPU ships with.
 * Prices (mf_cost_op) are those of a GPU that rested before. */

typedef struct mf_power {
    double cap_W;         /* what a GPU settles at in a long run */
    double idle_W;        /* of them, drawn whatever runs */
    double clock_Hz;      /* the highest of the multiprocessors; 0: not known */
    double settled_clock; /* over the highest: where J/FLOP are stated, as long runs have it */
    double flight_W;      /* more of them while collectives are in flight */
    bool measured;        /* the GPU's own energies */
} mf_power;
mf_power mf_cost_power(const mf_cost *cost);

/* Energy of an op that takes time_s at that clock over the highest one. Communication: what the GPU
 * draws anyway, what NCCL's kernels draw while they are in flight, and the bytes. */
double mf_cost_energy_J(const mf_cost *cost, const mf_op *op, double load, double time_s,
                        double clock);

/* The clock over the highest one at which products and attention take `stretch` times as long as
 * rested. */
double mf_cost_clock_share(double stretch);

/* Sustained work: times at the highest clock, energies above the idle power at the clock of long
 * runs; of ops that slow down with the clock (mf_cost_is_clocked) and of the others. */
typedef struct mf_work {
    double clocked_s, other_s, clocked_J, other_J;
} mf_work;
/* Factor (>= 1) on the time of ops that slow down with the clock, at which the work draws the power
 * cap. */
double mf_cost_stretch_of(const mf_cost *cost, const mf_work *w);

/* Does the power limit slow ops down beside what the profile's rates hold already? */
bool mf_cost_is_capped(const mf_cost *cost);

/* Time of an op that repeats without a pause; time_s: its price. */
double mf_cost_sustained_s(const mf_cost *cost, const mf_op *op, double load, double time_s);

/* Factor (>= 1) on the prices of a block's ops that slow down with the clock (mf_cost_is_clocked),
 * in a step of such blocks: the other ops keep their speed and leave the rest of the power cap to
 * these. op_s [nops]: prices of all ops; NULL: they are asked for. 1 where the software profile has
 * no power cap. */
double mf_cost_stretch(const mf_cost *cost, const mf_block *b, double load, const double *op_s);
bool mf_cost_is_clocked(const mf_op *op);
/* Factor (>= 1) on the price of an op in a block with that stretch: the stretch for ops that slow
 * down with the clock; for collectives inside a domain that a block waits for (TP, CP) what the
 * clock has lost. */
double mf_cost_slowed(const mf_cost *cost, const mf_op *op, double stretch);
/* Is the op a collective of NCCL, for which a GPU draws flight_W? */
bool mf_cost_is_collective(const mf_op *op);

#endif
