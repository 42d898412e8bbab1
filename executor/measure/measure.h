/* measure.h - measures points on this machine's GPUs.
 *
 * What to measure is a list of points without times: an op key (profiles/ops_table.h), whether it
 * is held out of every fit, and a word about where it comes from. mf_measure_plan_* make such
 * lists, mf_measure_keep_missing leaves what a store lacks; mf_measure_gpu and
 * mf_measure_collectives time whatever list they get and hand out every reading immediately.
 *
 * How it is timed: random data, operands rotated so that no run finds its data in the L2 cache,
 * batches of runs between two events (short kernels as graphs of many, so that the host's launch
 * time does not show), warm; the median, 10th and 90th percentile of the batches; a spread of more
 * than 5 % is measured again and the quieter of the two readings kept.
 */
#ifndef MF_EXECUTOR_MEASURE_H
#define MF_EXECUTOR_MEASURE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/cluster/cluster.h"
#include "core/layout/layout.h"
#include "core/model/model.h"
#include "executor/measure/measure_machine.h"
#include "profiles/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An algorithm as a store remembers it. */
typedef struct mf_measure_choice {
    char text[MF_CHOICE_MAX];
} mf_measure_choice;

/* --- which points (no GPU needed) ------------------------------------------------------------- */

typedef struct mf_measure_list {
    mf_point *point; /* [n] canonical; gpu and times empty; source says where it was drawn */
    int64_t n, allocated;
} mf_measure_list;

void mf_measure_list_clear(mf_measure_list *l);
/* Appends the op key unless the list has it (compared among points of the same op); held-out points
 * stay held out. Errors: MF_INPUT of mf_point_parse, MF_NOMEM. */
mf_status mf_measure_list_add(mf_measure_list *l, const char *key, bool holdout, const char *source,
                              mf_err *e);
/* Beside points that are not of shapes drawn at random, of BF16: weight gradients that add also
 * where they write, as in the first micro-batch of a step; gradients of MLA's attention also by our
 * own kernel. */
mf_status mf_measure_add_variants(mf_measure_list *l, mf_err *e);

/* The general grid of one GPU: products, grouped products, attention, memory-bound kernels, copies,
 * launches, over the ranges of the shipped models; held-out points drawn at random with `seed`. */
mf_status mf_measure_plan_gpu(uint64_t seed, mf_measure_list *l, mf_err *e);
/* Collectives of 2 .. ranks GPUs of one host by size, dispatch and combine by tokens and skew, and
 * compute beside collectives; three of four GPUs, sizes between powers of two and routings at
 * random are held out. */
mf_status mf_measure_plan_collectives(int ranks, uint64_t seed, mf_measure_list *l, mf_err *e);

/* What a model needs on GPUs of a cluster: every op of its blocks (forward, both gradients,
 * recomputation) that has a key of its own, under every layout of the degrees; base holds the rest
 * (sequence, precision, flags). Degrees end with 0; layouts that do not divide are left out.
 * Errors: MF_LAYOUT when none divides, MF_NOMEM. */
typedef struct mf_measure_degrees {
    int64_t tp[8], cp[8], ep[12], etp[8], mbs[8];
} mf_measure_degrees;
/* Powers of two: tensor to 8, context to 4, experts to 64, expert tensor 1, micro-batch to 4. */
mf_measure_degrees mf_measure_degrees_usual(void);
mf_status mf_measure_plan_model(const mf_model *m, const mf_cluster *c, const mf_layout *base,
                                const mf_measure_degrees *d, mf_measure_list *l, mf_err *e);

/* What the steps of every model need beside their blocks: launches and replays, the optimizer's
 * kernels and copies from and to the host, by size. */
mf_status mf_measure_plan_step(mf_measure_list *l, mf_err *e);

/* Leaves the points that the store has no row of from this GPU and the versions that matter to them
 * (mf_measure_same_versions); a row that is held out of fits stands for a held-out point alone, and
 * with `energy` one without its energy for none. *there (may be NULL) counts the others. */
mf_status mf_measure_keep_missing(mf_measure_list *l, mf_store *store,
                                  const mf_measure_machine *machine, bool energy, int64_t *there,
                                  mf_err *e);

/* Leaves what energies are measured of: kernels that work on the GPU alone, one in MF_ENERGY_SHARE
 * of the list's and at least four of each op, drawn by their keys: the same ones every time, in a
 * random order. A point takes two seconds. */
enum { MF_ENERGY_SHARE = 24 };
void mf_measure_keep_energy(mf_measure_list *l);

/* The algorithms that the store remembers for the points on this GPU; *out [l->n] to be freed. */
mf_status mf_measure_remember(const mf_measure_list *l, mf_store *store,
                              const mf_measure_machine *machine, mf_measure_choice **out,
                              mf_err *e);

/* --- measuring -------------------------------------------------------------------------------- */

typedef struct mf_measure_reading {
    double time_s, low_s, high_s; /* median, 10th and 90th percentile of the batches */
    double energy_J, sustained_s; /* of one run under the power cap; 0: not asked for */
    int64_t samples;              /* runs in them */
    int sm_MHz, temperature_C;    /* when last looked at; 0 = not known */
    mf_measure_choice choice;     /* algorithm that ran (kernels/gemm/gemm_choice.h), or "" */
} mf_measure_reading;

typedef struct mf_measure_options {
    uint64_t seed; /* of the data */
    bool shared;   /* other processes that come to the GPU meanwhile are accepted */
    bool energy;   /* kernels that work on the GPU alone: also their energy */
    /* Remembered algorithms of the list's points [n], "" = to be found by measuring, as are those
     * that no longer run; NULL: none. */
    const mf_measure_choice *choice;
    /* Called for every point of the list, index its place: measured, or why no kernel takes it. */
    void (*measured)(int64_t index, const mf_measure_reading *r, void *user);
    void (*refused)(int64_t index, const char *why, void *user);
    void *user;
} mf_measure_options;

/* What there is, before anything runs on it. Errors: MF_USAGE (no GPU, no driver). */
mf_status mf_measure_look(mf_measure_machine *out, mf_err *e);

/* Measures the points of one GPU in list order; those of other ops are passed over. Errors:
 * MF_LIBRARY, MF_INPUT (a GPU that slows down from heat, or that another process came to), MF_USAGE
 * (no GPU). */
mf_status mf_measure_gpu(const mf_measure_options *o, const mf_measure_list *l, mf_err *e);
/* The same for collectives and ops beside them, on all GPUs that the points ask for. */
mf_status mf_measure_collectives(const mf_measure_options *o, const mf_measure_list *l, mf_err *e);
#ifdef __cplusplus
}
#endif
#endif
