/* comm.h - what ranks say to each other: the groups of a layout as communicators.
 *
 * Made once at start, in one recorded order that is the same on all ranks; nothing is created in a
 * step. With one rank (or without MPI) every call is a local copy. All calls of one group happen in
 * the same order on all its members: the program's order. Host memory. Not thread-safe.
 */
#ifndef MF_EXECUTOR_COMM_H
#define MF_EXECUTOR_COMM_H

#include "core/layout.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mf_comm mf_comm;

typedef enum mf_comm_type { MF_COMM_F32, MF_COMM_F64, MF_COMM_BF16, MF_COMM_I32 } mf_comm_type;
typedef enum mf_comm_reduce { MF_COMM_SUM, MF_COMM_MAX } mf_comm_reduce;

/* Did mpirun, srun or another launcher start this process? */
bool mf_comm_launched(void);
/* Starts MPI where this build has it and a launcher started this process; else one rank. Errors:
 * MF_LIBRARY with MPI's own words. */
/* Largest group of a run with the CPU backend. */
#define MF_COMM_MAX_GROUP 1024

mf_status mf_comm_start(int64_t *rank, int64_t *size, mf_err *e);
void mf_comm_stop(void);
/* Ends all ranks at once with an exit code, from any of them. */
void mf_comm_abort(int code);
/* Is this build able to run more than one rank? */
bool mf_comm_has_mpi(void);

/* Communicators of a resolved layout for world rank `rank`; every rank calls it. The exercise: one
 * all-reduce over each group, whose sum is checked. Errors: MF_LAYOUT (the layout wants another
 * number of ranks than run), MF_LIBRARY. */
mf_status mf_comm_create(const mf_layout *l, mf_comm **out, mf_err *e);
void mf_comm_destroy(mf_comm *c);

/* One more group: the ranks that give the same color, in order of rank. Every rank calls it, in the
 * same order as the others; color -1: this rank is in none of them. *out stands for the group in
 * the calls below. Errors: MF_LIBRARY; MF_INTERNAL past MF_COMM_MAX_ADDED. */
#define MF_COMM_MAX_ADDED 8
mf_status mf_comm_add(mf_comm *c, int64_t color, mf_group_kind *out, mf_err *e);

int64_t mf_comm_rank(const mf_comm *c);
int64_t mf_comm_group_size(const mf_comm *c, mf_group_kind g);
int64_t mf_comm_group_rank(const mf_comm *c, mf_group_kind g);

/* Counts are elements; in and out must not overlap unless in place (in == NULL). */
mf_status mf_comm_all_reduce(mf_comm *c, mf_group_kind g, mf_comm_type type, mf_comm_reduce op,
                             void *data, int64_t count, mf_err *e);
/* out holds group_size pieces of `count`, in order of group rank. */
mf_status mf_comm_all_gather(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                             void *out, int64_t count, mf_err *e);
/* counts[i] elements of member i, side by side; this rank's own part stands in place. */
mf_status mf_comm_all_gather_v(mf_comm *c, mf_group_kind g, mf_comm_type type, void *data,
                               const int64_t *counts, mf_err *e);
/* Sum; member i gets counts[i] elements of what lies side by side at `in`. BF16 is summed in float
 * in order of group rank and rounded once: what a GPU's collective is held against. */
mf_status mf_comm_reduce_scatter(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                                 void *out, const int64_t *counts, mf_err *e);
/* send[i], receive[i] in elements of `width` bytes, side by side in order of group rank. */
mf_status mf_comm_all_to_all(mf_comm *c, mf_group_kind g, size_t width, const void *in,
                             const int64_t *send, void *out, const int64_t *receive, mf_err *e);
/* To the next member, from the previous one, `steps` away (negative: the other way). */
mf_status mf_comm_ring(mf_comm *c, mf_group_kind g, int64_t steps, const void *in, void *out,
                       size_t size_B, mf_err *e);
/* Between pipeline stages: world ranks. A send returns at once and keeps its buffer busy until
 * mf_comm_wait_send of its slot, which has to come before the slot's next send; messages between
 * two ranks with one tag arrive in order. */
#define MF_COMM_SLOTS 4
mf_status mf_comm_send(mf_comm *c, int slot, int64_t to, int tag, const void *data, size_t size_B,
                       mf_err *e);
/* Room for `elements` BF16 values that sums of BF16 may use from now on; stays the caller's. Sums
 * that need more take memory of their own, once. */
void mf_comm_lend(mf_comm *c, void *room, int64_t elements);

mf_status mf_comm_wait_send(mf_comm *c, int slot, mf_err *e);

/* Room for `elements` BF16 values that sums of BF16 use from now on; it stays the caller's. Sums
 * that need more take memory of their own, once. */
void mf_comm_lend(mf_comm *c, void *room, int64_t elements);
mf_status mf_comm_receive(mf_comm *c, int64_t from, int tag, void *data, size_t size_B, mf_err *e);
mf_status mf_comm_barrier(mf_comm *c, mf_err *e);

#endif
