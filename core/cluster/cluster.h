/* cluster.h - what a job runs on: GPU, NVLink domain, host links, network tiers, price, failures.
 *
 * Read from JSON (profiles/clusters/NAME.json or a file of the user's). Keys are the names of the
 * fields below, those of mf_gpu under "gpu" (peaks as "peak_bf16_flops", "measured_fp8_flops",
 * ...), tiers as a list of objects under "tiers". A figure is a number, or stands beside its
 * source:
 * {"value": 450e9, "source": "...", "date": "..."}. The unit behind a key may be another one of its
 * kind: memory_GiB, nic_Gbitps, scaleup_GBps, peak_bf16_tflops, nic_latency_us, power_kw.
 * "extends": "h100" (a shipped name, or a path beside the file) starts from another cluster; there
 * a new gpus_per_node takes the domain along where the two were equal, and a new data-sheet rate
 * leaves the measured one behind.
 *
 * SI units throughout: bytes, bytes per second and direction, seconds, FLOP/s. 0 means "not known"
 * where a comment says so. Plain data without pointers; reading is thread-safe.
 */
#ifndef MF_CORE_CLUSTER_H
#define MF_CORE_CLUSTER_H

#include "core/base/json.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define MF_CLUSTER_MAX_TIERS 4
#define MF_CLUSTER_MAX_NODE 1024 /* most GPUs of a node */
#define MF_CLUSTER_MAX_DOUBTS 4

/* Share of the scale-up data-sheet rate that collectives reach where a cluster does not say: 240 of
 * 300 GB/s on A100, 370.8 of 450 on H100, 721.8 of 900 on B200 (NCCL 2.30's tuning table). */
#define MF_SCALEUP_REACHED 0.80

/* Arithmetic types a GPU may have dense peaks for. */
typedef enum mf_math {
    MF_MATH_FP32,
    MF_MATH_BF16,
    MF_MATH_FP8,
    MF_MATH_FP4,
    MF_MATH_COUNT
} mf_math;

typedef struct mf_gpu {
    char name[32];                    /* under which the profile store knows it, such as "h200" */
    char arch[16];                    /* "ampere" "hopper" "blackwell" "cdna3" "cdna4" "cpu" */
    double peak_flops[MF_MATH_COUNT]; /* dense data-sheet peaks; 0 = not supported */
    double measured_flops[MF_MATH_COUNT]; /* best measured large matmul; 0 = not measured */
    double memory_B;                      /* bytes that the driver gives a process (capacity) */
    double memory_Bps;                    /* data-sheet HBM bandwidth */
    double memory_measured_Bps;           /* device copy, read + write; 0 = not measured */
    double l2_B;
    int64_t sms;
    double power_w; /* TDP */
} mf_gpu;

/* A level of the network above the NVLink domain: groups of up to `gpus` GPUs see the NIC
 * bandwidth divided by `oversubscription`. Tiers are listed from the smallest reach up; the last
 * reaches everything (gpus = INT64_MAX; its "gpus" is left out in JSON). */
typedef struct mf_tier {
    char name[24];
    int64_t gpus;
    double oversubscription; /* >= 1 */
    double latency_s;        /* one hop through this tier */
} mf_tier;

typedef struct mf_cluster {
    char name[64];
    mf_gpu gpu;
    int64_t gpus_per_node;
    int64_t domain_gpus;          /* GPUs that share NVLink (72 for NVL72, 8 for HGX) */
    int64_t domain_gpus_used;     /* of those, how many a job uses (64 of 72) */
    double scaleup_Bps;           /* per GPU and direction, data sheet */
    double scaleup_effective_Bps; /* what collectives reach; 0 = scaleup_Bps x transfer ratio */
    double scaleup_pair_Bps;      /* between one pair (a mesh such as xGMI gives one link) */
    double scaleup_pair_effective_Bps; /* of that, what collectives reach over each pair's links; 0
                                        * = a switch: a pair reaches what all do */
    double scaleup_latency_s;
    double nic_Bps;        /* per GPU and direction */
    double nic_efficiency; /* share of it that large messages reach */
    double nic_latency_s;
    double host_Bps;        /* GPU <-> host memory, per GPU and direction */
    double host_shared_Bps; /* all GPUs of a node <-> its memory, both directions together; 0 = not
                             * known: each GPU has its link to itself */
    double host_memory_B;   /* per GPU */
    int tiers;
    mf_tier tier[MF_CLUSTER_MAX_TIERS];
    double price_usd_gpu_h; /* 0 = not known */
    char price_date[32];    /* of that price, as the file says it; "" = it does not */
    char price_source[128]; /* the same */
    double node_overhead_w; /* per GPU: host, NICs, fans */
    double mtbf_gpu_h;      /* hours between failures of one GPU's share; 0 = not known */
    double max_gpus;        /* sizes beyond are refused; 0 = no limit */
    /* What looks like a slip of a unit, the first few: "file:line:col: ..." */
    int doubts;
    char doubt[MF_CLUSTER_MAX_DOUBTS][256];
} mf_cluster;

/* From a parsed file. Without "extends", required are gpu.name, memory_B, memory_Bps,
 * peak_bf16_flops and sms; gpus_per_node, scaleup_Bps and host_Bps. Left out, domain_gpus is
 * gpus_per_node, domain_gpus_used is domain_gpus, scaleup_pair_Bps is scaleup_Bps (a switch; where
 * it is less, scaleup_pair_effective_Bps is 0.8 of it), nic_efficiency 0.95, tiers one that reaches
 * everything; without nic_Bps max_gpus is domain_gpus_used. A relative path in "extends" is seen
 * from the working directory. Errors: MF_INPUT with file:line:col for unknown keys and units (with
 * "did you mean"), wrong types, values out of range for their unit, figures that contradict each
 * other. Figures that are possible, but far from those of any GPU that trains (memory_MiB of 80),
 * are doubts; ranks on CPUs have none. */
mf_status mf_cluster_from_json(const mf_json *doc, mf_cluster *out, mf_err *e);

/* By shipped name or path; a file without a name is called after itself. A relative path in
 * "extends" is seen from the file. Unknown names: MF_USAGE with the nearest known name. */
mf_status mf_cluster_load(const char *name_or_path, mf_cluster *out, mf_err *e);

/* The same, with the file that was read: its figures stand beside their sources. What is handed
 * over as a pipe can be read once. The caller destroys *file; with an error it is left alone. */
mf_status mf_cluster_load_file(const char *name_or_path, mf_cluster *out, mf_json **file,
                               mf_err *e);

/* The shipped cluster of a GPU by its driver's name ("NVIDIA H200"); NULL: none. */
const char *mf_cluster_of_gpu(const char *gpu);

/* Shipped names in alphabetical order; *count entries, static lifetime. */
const char *const *mf_cluster_shipped(size_t *count);

/* 16 hexadecimal digits, of every field that shapes times; names and prose are left out. Stable
 * across machines and builds. */
void mf_cluster_fingerprint(const mf_cluster *c, char out[20]);

/* Ranks are CPU processes: they hold no driver's context, and memory for the worst case of
 * routing. */
bool mf_cluster_is_cpu(const mf_cluster *c);

/* The memory tier arithmetic shared by all: bytes a plan may use = memory_B x (1 - reserve). */
double mf_cluster_usable_B(const mf_cluster *c, double reserve);

/* Bandwidth per GPU and direction, and latency, seen by a group whose members span `span_gpus`
 * consecutive GPUs of the job: inside the domain what collectives reach over scale-up links (of a
 * mesh no more than what they reach over the links to the other GPUs in the span), beyond it NIC x
 * efficiency over the oversubscription of the smallest tier that reaches, and the NIC's latency
 * with the tier's on top. Returns true when inside the domain. */
bool mf_cluster_link(const mf_cluster *c, int64_t span_gpus, double *bandwidth_Bps,
                     double *latency_s);

/* What collectives of `gpus` GPUs of one domain reach over scale-up links. It grows with each of
 * the cluster's figures: how much of a mesh's link they reach is a figure of its own, and no
 * quotient of others, which would fall where one of them rises. */
double mf_cluster_scaleup_reached_Bps(const mf_cluster *c, int64_t gpus);

#endif
