/* board.h - what each rank is doing, where the other ranks of its host can see it; and a watch that
 * notices when one of them is gone or does not come on.
 *
 * MPI alone leaves the survivors of a killed rank waiting in a collective, and so does a rank that
 * is stopped. Here every rank keeps its step and op in memory shared by the ranks of a host
 * (comm_ops.h), whether it waits for others, and a count that its own watching thread raises as
 * long as the process runs. The threads look after each other's: the first to miss a rank says
 * which it was and in which op, and all that noticed end.
 */
#ifndef MF_EXECUTOR_BOARD_H
#define MF_EXECUTOR_BOARD_H

#include "core/program/lower.h"
#include "executor/comm/comm.h"

typedef struct mf_board mf_board;

/* Called at most once on one host, from the watching thread, with one line: "rank 2 (process 4711
 * on HOST) is gone: step 7, expert_fc1 (forward) of layer 3". */
typedef void (*mf_board_lost_fn)(void *user, const char *line);

/* What the main thread waits for: nothing, as it works itself; other ranks; its device. */
typedef enum mf_board_waits {
    MF_BOARD_WORKS,
    MF_BOARD_FOR_RANKS,
    MF_BOARD_FOR_DEVICE
} mf_board_waits;

/* Collective. `model` names the layers that ranks are at (NULL: positions by number); it has to
 * outlive the board. *out is NULL with one rank; every call takes NULL. After `lost` (NULL: nothing
 * is said) the process ends with exit code 1 from the watching thread: the main one may wait for
 * ever for the missing rank. hang_s: so long a rank may stand still while another one waits, 0: for
 * ever. Lost is then
 * - a rank whose process does not run (stopped, or without time on a core), which is killed;
 * - in any step but the first, one whose main thread works at one thing for hang_s, and four times
 *   as long as at anything before, which is killed, too;
 * - likewise all ranks where each waits for others.
 * Where this process stood still itself, as when a whole job is stopped, the time begins anew.
 * `c` tells the board from here on when it waits. Errors: MF_LIBRARY, MF_NOMEM. */
mf_status mf_board_open(mf_comm *c, const mf_model *model, double hang_s, mf_board_lost_fn lost,
                        void *user, mf_board **out, mf_err *e);
/* While *asked (NULL: never) is not 0, as the run is told to end, another host that is silent for a
 * moment is told of, too (by `lost`, behind which nothing ends): its death may be why. */
void mf_board_heed(mf_board *b, const volatile int *asked);
/* What this rank does now. */
void mf_board_op(mf_board *b, int64_t step, int position, const mf_op *op);
void mf_board_phase(mf_board *b, int64_t step, const char *phase);
/* From here on its main thread waits for this. What it did before it does again once
 * MF_BOARD_FOR_RANKS is over, of which the communicator tells. */
void mf_board_wait(mf_board *b, mf_board_waits what);
/* From here on it is in a step, or in none; first: in its first one. */
void mf_board_enter_step(mf_board *b, bool first);
void mf_board_leave_step(mf_board *b);
/* Seconds that it has waited for other ranks, all in all. */
double mf_board_waited_s(const mf_board *b);
/* Is this the first rank of its host that has something to say of why the run ends? The others keep
 * quiet: what ails one ails many. True without a board. */
bool mf_board_first(mf_board *b);
/* This rank has something to say of its own end from another thread: from here on no rank of the
 * host says of another that it is gone. */
void mf_board_speak(mf_board *b);
/* Before that, after it waited in vain: does the process of another rank not run? Then that is
 * told, and this process ends. Takes a second; not from the main thread. */
void mf_board_blame(mf_board *b);
/* A call that other hosts take part in has failed: it may be because one of them is gone, which the
 * call does not say. Waits for MF_BOARD_SUSPECT_S, in which the watch of this host's first rank
 * tells of a host that is silent, and the run ends; it returns where all hosts are there, and at
 * once where there is no other. */
void mf_board_suspect(mf_board *b);
/* This rank ends on purpose: nobody shall miss it. */
void mf_board_leave(mf_board *b);
/* Stops the watch and frees. together: all ranks call it, so that the shared memory goes, too. */
void mf_board_close(mf_board *b, bool together);

/* The process is looked after every so often. */
#define MF_BOARD_PERIOD_S 0.05
/* Longer than the silence by which a host is then judged (board_watch.c). */
#define MF_BOARD_SUSPECT_S 3.0

#endif
