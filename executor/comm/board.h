/* board.h - what each rank is doing, where the other ranks of its host can see it; and a watch that
 * notices when one of them is gone.
 *
 * MPI alone leaves the survivors of a killed rank waiting in a collective. Here every rank keeps
 * its step and op in memory shared by the ranks of a host (comm_ops.h) and a thread of each
 * looks after the others' processes: the first to miss one says which rank it was and in which
 * op, and all that noticed end.
 */
#ifndef MF_EXECUTOR_BOARD_H
#define MF_EXECUTOR_BOARD_H

#include "executor/ops/ops.h"

typedef struct mf_board mf_board;

/* Called at most once on one host, from the watching thread, with one line: "rank 2 (process 4711)
 * is gone: step 7, expert_fc1 (forward) of position 3". */
typedef void (*mf_board_lost_fn)(void *user, const char *line);

/* Collective. *out is NULL with one rank; every call takes NULL. After `lost` (NULL: nothing is
 * said) the process ends with exit code 1 from the watching thread: the main one may wait for ever
 * for the missing rank. Errors: MF_LIBRARY, MF_NOMEM. */
mf_status mf_board_open(mf_comm *c, mf_board_lost_fn lost, void *user, mf_board **out, mf_err *e);
/* What this rank does now. */
void mf_board_op(mf_board *b, int64_t step, const mf_exec_op *op);
void mf_board_phase(mf_board *b, int64_t step, const char *phase);
/* Is this the first rank of its host that has something to say of why the run ends? The others keep
 * quiet: what ails one ails many. True without a board. */
bool mf_board_first(mf_board *b);
/* This rank has something to say of its own end from another thread: from here on no rank of the
 * host says of another that it is gone. */
void mf_board_speak(mf_board *b);
/* This rank ends on purpose: nobody shall miss it. */
void mf_board_leave(mf_board *b);
/* Stops the watch and frees. together: all ranks call it, so that the shared memory goes, too. */
void mf_board_close(mf_board *b, bool together);

/* The process is looked after every so often. */
#define MF_BOARD_PERIOD_S 0.05

#endif
