/* comm.h - communication between ranks: the groups of a layout as communicators.
 *
 * Communicators are created at the start, in an order that is the same on all ranks, and none in a
 * step. With one rank every call is a local copy. All members of a group make its calls in the same
 * order, that of the program. Counts and sizes have 64 bits. Not thread-safe.
 *
 * Communicators of processes (MPI, or a file that the ranks of one host share) take host memory,
 * and a call returns when its work is done. Those of NCCL (executor/cuda/comm_nccl_cuda.h) take
 * device memory, and a call enqueues its work on a stream.
 */
#ifndef MF_EXECUTOR_COMM_H
#define MF_EXECUTOR_COMM_H

#include "core/base/status.h"
#include "core/layout/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mf_comm mf_comm;

typedef enum mf_comm_type { MF_COMM_F32, MF_COMM_F64, MF_COMM_BF16, MF_COMM_I32 } mf_comm_type;
typedef enum mf_comm_reduce { MF_COMM_SUM, MF_COMM_MAX } mf_comm_reduce;

/* Largest group of a run with the CPU backend. */
#define MF_COMM_MAX_GROUP 1024

/* Did mpirun, srun, comm_launch.h or another launcher start this process? */
bool mf_comm_launched(void);
/* Joins the other ranks of this host if MOEFOLD_RANK (from 0), MOEFOLD_RANKS and MOEFOLD_RANKS_FILE
 * (the name of a new file that the ranks share, best in /dev/shm) are set. Otherwise starts MPI, if
 * this build has it and a launcher started this process. Otherwise there is one rank. Errors:
 * MF_LIBRARY with MPI's message; MF_USAGE for impossible numbers or the file of another run. */
mf_status mf_comm_start(int64_t *rank, int64_t *size, mf_err *e);
void mf_comm_stop(void);
/* Ends all ranks with an exit code; any rank may call it. Ranks of MPI end immediately, those of
 * one host when they next wait for another. */
void mf_comm_abort(int code);
/* Can this build run ranks of MPI? */
bool mf_comm_has_mpi(void);

/* Creates this rank's communicators of a resolved layout and checks each group by one all-reduce.
 * Collective. Errors: MF_LAYOUT when the layout has another number of ranks than run, MF_LIBRARY.
 */
mf_status mf_comm_create(const mf_layout *l, mf_comm **out, mf_err *e);
void mf_comm_destroy(mf_comm *c);

/* Place of this rank among those of its host, from 0. Collective. Errors: MF_LIBRARY, MF_NOMEM. */
mf_status mf_comm_place_in_host(mf_comm *c, int64_t *out, mf_err *e);

/* One more group: the ranks that give the same color, in order of rank. Collective, in the same
 * order on all ranks; color -1: this rank is in none of them. *out names the group in the calls
 * below. Errors: MF_LIBRARY; MF_INTERNAL past MF_COMM_MAX_ADDED. */
#define MF_COMM_MAX_ADDED 8
mf_status mf_comm_add(mf_comm *c, int64_t color, mf_group_kind *out, mf_err *e);

/* From here on mf_comm_add returns the added groups again, in the same order and for the same
 * colors, and makes new ones after the last of them. */
void mf_comm_add_again(mf_comm *c);

int64_t mf_comm_rank(const mf_comm *c);
int64_t mf_comm_group_size(const mf_comm *c, mf_group_kind g);
int64_t mf_comm_group_rank(const mf_comm *c, mf_group_kind g);

/* fn is called with true before every call that waits for other ranks and with false after it;
 * NULL: never. Only communicators of processes wait. */
typedef void (*mf_comm_wait_fn)(void *user, bool waits);
void mf_comm_on_wait(mf_comm *c, mf_comm_wait_fn fn, void *user);

/* Later calls enqueue on this stream (a cudaStream_t; at first the default one). No effect on
 * communicators of processes. */
void mf_comm_use_stream(mf_comm *c, void *stream);

/* Counts are elements; in and out must not overlap, except where a function says so. */

/* In place. MPI does not sum BF16 here. */
mf_status mf_comm_all_reduce(mf_comm *c, mf_group_kind g, mf_comm_type type, mf_comm_reduce op,
                             void *data, int64_t count, mf_err *e);
/* out holds group_size pieces of `count`, in order of group rank. */
mf_status mf_comm_all_gather(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                             void *out, int64_t count, mf_err *e);
/* data holds counts[i] elements of each member i, side by side; this rank's own part is in place
 * before the call. */
mf_status mf_comm_all_gather_v(mf_comm *c, mf_group_kind g, mf_comm_type type, void *data,
                               const int64_t *counts, mf_err *e);
/* Sums `in`, which holds counts[i] elements for each member i, side by side; member i gets its
 * part. NCCL may write the result over its part of `in`. In host memory BF16 is summed in float in
 * order of group rank and rounded at the end; NCCL's result is tested against that. */
mf_status mf_comm_reduce_scatter(mf_comm *c, mf_group_kind g, mf_comm_type type, const void *in,
                                 void *out, const int64_t *counts, mf_err *e);
/* send[i], receive[i] in elements of `width` bytes, side by side in order of group rank. */
mf_status mf_comm_all_to_all(mf_comm *c, mf_group_kind g, size_t width, const void *in,
                             const int64_t *send, void *out, const int64_t *receive, mf_err *e);
/* To the next member, from the previous one, `steps` away (negative: the other way). */
mf_status mf_comm_ring(mf_comm *c, mf_group_kind g, int64_t steps, const void *in, void *out,
                       size_t size_B, mf_err *e);

/* Messages between pipeline stages, by world rank. A send returns immediately and keeps its buffer
 * busy until mf_comm_wait_send of its slot, which has to come before the slot's next send. A
 * receive names the slot that the sender uses. Messages between two ranks with one slot and one tag
 * arrive in order; NCCL knows no tags: those of one slot are received in the order in which they
 * are sent. */
#define MF_COMM_SLOTS 4
mf_status mf_comm_send(mf_comm *c, int slot, int64_t to, int tag, const void *data, size_t size_B,
                       mf_err *e);
mf_status mf_comm_wait_send(mf_comm *c, int slot, mf_err *e);
mf_status mf_comm_receive(mf_comm *c, int slot, int64_t from, int tag, void *data, size_t size_B,
                          mf_err *e);
mf_status mf_comm_barrier(mf_comm *c, mf_err *e);

/* Lends memory for `elements` BF16 values, which sums of BF16 use from now on; the caller keeps
 * owning it. A sum that needs more allocates it and keeps it. */
void mf_comm_lend(mf_comm *c, void *memory, int64_t elements);

#endif
