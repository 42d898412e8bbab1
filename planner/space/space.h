/* space.h - the layouts that a search may choose from, and how many there are.
 *
 * The space is a product with holes: degrees that divide, schedules that fit the degrees, choices
 * that make a difference (a choice that cannot matter, such as a dispatcher with EP 1, counts
 * once). It is described by a handful of short lists per pipeline degree; a layout is a path
 * through them. Counting multiplies the lists, so 10^9 layouts are counted in milliseconds.
 *
 * Everything here is pure: validity is asked of mf_layout_valid, nothing is priced.
 */
#ifndef MF_PLANNER_SPACE_H
#define MF_PLANNER_SPACE_H

#include "core/cluster/cluster.h"
#include "core/layout/layout.h"

/* Dimensions that a flag can pin. Pinned ones keep the value of the base layout. */
#define MF_DIM_MAP(X)                                                                              \
    X(TP, "tp")                                                                                    \
    X(CP, "cp")                                                                                    \
    X(PP, "pp")                                                                                    \
    X(VPP, "vpp")                                                                                  \
    X(EP, "ep")                                                                                    \
    X(ETP, "etp")                                                                                  \
    X(MICRO_BATCH, "micro_batch")                                                                  \
    X(SCHEDULE, "schedule")                                                                        \
    X(ZERO, "zero")                                                                                \
    X(EXPERT_ZERO, "expert_zero")                                                                  \
    X(DISPATCHER, "dispatcher")                                                                    \
    X(CP_TYPE, "cp_type")                                                                          \
    X(PRECISION, "precision")                                                                      \
    X(RECOMPUTE, "recompute")                                                                      \
    X(OFFLOAD, "offload")                                                                          \
    X(STAGES, "stages") /* layers per virtual stage: even ones only */
typedef enum mf_dim {
#define X(name, text) MF_DIM_##name,
    MF_DIM_MAP(X)
#undef X
        MF_DIM_COUNT
} mf_dim;
const char *mf_dim_text(mf_dim d);
#define MF_PIN(name) (1u << MF_DIM_##name)

/* Beside the dimensions: what is pinned for all layers means the activation of routed experts alone
 * (moe_act of Megatron-Core), not that of dense layers. */
#define MF_PIN_MOE_ACT (1u << 31)

#define MF_SPACE_MAX_MBS 8

/* Limits of the program that is to run the plan on the space; all zero: no limits. */
typedef struct mf_space_limits {
    uint32_t schedules;   /* 1u << MF_SCHED_*; 0 = all */
    uint32_t dispatchers; /* 1u << MF_DISPATCH_*, where EP > 1; 0 = all */
    int64_t least_ep;     /* of models with experts; 0 = 1 */
    int64_t most_chunks;  /* PP x VPP; 0 = any number */
    bool chunked;         /* with PP > 1 only VPP > 1 */
    bool equal_zero;      /* dense and expert parameters are sharded at one level */
} mf_space_limits;

/* What to search. `base` gives GPUs, batch, sequence, everything that is not searched, and the
 * values of pinned dimensions. */
typedef struct mf_space {
    const mf_model *model;
    mf_layout base;
    uint32_t pinned;     /* MF_PIN bits */
    uint32_t precisions; /* 1u << MF_PREC_*; 0 = base.precision alone */
    int64_t domain_gpus; /* of one NVLink domain that are used; 0 = not known: hierarchical CP
                          * counts beside the types that it is made of */
    mf_space_limits limits;
} mf_space;

/* Attention side: what decides the dense half of a layer. */
typedef struct mf_dense_point {
    uint8_t precision, cp_type;
    int32_t tp, cp, pp, mbs;
    int64_t dp, micro_batches;
} mf_dense_point;

/* Expert side. */
typedef struct mf_expert_point {
    int32_t pp, ep, etp;
    uint8_t dispatcher;
} mf_expert_point;

typedef struct mf_order_point {
    uint8_t schedule;
    int32_t vpp;
} mf_order_point;

typedef struct mf_zero_point {
    uint8_t zero, expert_zero;
} mf_zero_point;

/* Lists. Each function fills out[max] and returns the count, which may exceed max: then
 * only max are filled. The order is fixed: degrees ascending. */

/* All dense points of the space, pipeline degree slowest. */
int64_t mf_space_dense(const mf_space *s, mf_dense_point *out, int64_t max);
/* Expert points of a pipeline degree. Dense models have one. */
int64_t mf_space_experts(const mf_space *s, int64_t pp, mf_expert_point *out, int64_t max);
/* Schedules with their VPP for a pipeline degree and a number of micro-batches. */
int64_t mf_space_orders(const mf_space *s, int64_t pp, int64_t micro_batches, mf_order_point *out,
                        int64_t max);
/* ZeRO pairs; levels that cannot differ (one rank in the group) count as one. */
int64_t mf_space_zeros(const mf_space *s, int64_t dense_ranks, int64_t expert_ranks,
                       mf_zero_point *out, int64_t max);

/* For sorting points: -1, 0 or 1 by the first of keys[count] that two of them differ in. */
int mf_space_compare(const int64_t (*keys)[2], int count);

/* The layout at four points, resolved. Valid by construction (asserted). */
mf_layout mf_space_layout(const mf_space *s, const mf_dense_point *d, const mf_expert_point *x,
                          const mf_order_point *o, const mf_zero_point *z);

/* Number of distinct valid layouts. Errors: MF_NOMEM. */
mf_status mf_space_count(const mf_space *s, int64_t *out, mf_err *e);

/* Whether the batch is one that can be searched with: a search plays orders of all micro-batches of
 * a rank, several at a time. Errors: MF_LAYOUT, when they are too many whatever the layout. */
mf_status mf_space_check_batch(const mf_space *s, mf_err *e);

/* Why a space is empty: MF_LAYOUT naming the rule of layouts that one pinned value breaks by
 * itself, or all of them together, or what is held whatever the degrees. MF_OK: it is not, or
 * neither is to blame. Errors: MF_NOMEM. */
mf_status mf_space_rule(const mf_space *s, mf_err *e);

/* Why a space is empty that no pin makes so: what the degrees of its GPUs leave of the global
 * batch, as "no combination of degrees ...". Never NULL. */
void mf_space_why_empty(const mf_space *s, char *out, size_t size);

/* One line on what the search leaves out: dimensions that are held, and where. Never NULL. */
void mf_space_describe_left_out(const mf_space *s, char *out, size_t size);

#endif
