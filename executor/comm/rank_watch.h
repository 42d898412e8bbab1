/* rank_watch.h - shows the ranks of a host what each of them is doing, and notices when one of them
 * has ended or stands still.
 *
 * With MPI alone the survivors of a killed or stopped rank wait in a collective for ever. Here
 * every rank writes its step and op, whether it waits for others, and a heartbeat of its watching
 * thread to memory that the ranks of a host share (comm_ops.h). The watching threads check each
 * other's heartbeats: the first that misses a rank reports which one and in which op, and all that
 * noticed end.
 */
#ifndef MF_EXECUTOR_RANK_WATCH_H
#define MF_EXECUTOR_RANK_WATCH_H

#include "core/program/lower.h"
#include "executor/comm/comm.h"

typedef struct mf_rank_watch mf_rank_watch;

/* Called at most once on one host, from the watching thread, with one line: "rank 2 (process 4711
 * on HOST) is gone: step 7, expert_fc1 (forward) of layer 3". */
typedef void (*mf_rank_watch_lost_fn)(void *user, const char *line);

/* What the main thread waits for: nothing, as it works itself; other ranks; its device. */
typedef enum mf_rank_watch_waits {
    MF_RANK_WATCH_WORKS,
    MF_RANK_WATCH_FOR_RANKS,
    MF_RANK_WATCH_FOR_DEVICE
} mf_rank_watch_waits;

/* Collective. `model` names the layers in messages (NULL: positions by number) and must outlive the
 * watch. *out is NULL with one rank, and every call takes NULL. When a rank is lost, the watching
 * thread calls `lost` (NULL: prints nothing) and ends the process with exit code 1, as the main
 * thread may wait for the missing rank for ever. hang_s: how long a rank may make no progress while
 * another waits for it; 0: for ever. These ranks count as lost:
 * - a rank whose process does not run (stopped, or without time on a core), which is killed;
 * - in any step but the first, one whose main thread works at one op for hang_s and for four times
 * as long as at any op before; it is killed, too;
 * - all ranks, when each waits for others that long (a deadlock).
 * When this process was stopped itself, as when a whole job is suspended, the times start again.
 * From here on `c` tells the watch when it waits. Errors: MF_LIBRARY, MF_NOMEM. */
mf_status mf_rank_watch_open(mf_comm *c, const mf_model *model, double hang_s,
                             mf_rank_watch_lost_fn lost, void *user, mf_rank_watch **out,
                             mf_err *e);
/* `asked` (NULL: never) becomes other than 0 when the run is asked to end. From then on the watch
 * also reports a host that is silent for a moment, as its death may be the reason (through `lost`;
 * the process does not end). */
void mf_rank_watch_heed(mf_rank_watch *b, const volatile int *asked);
/* What this rank does now. */
void mf_rank_watch_set_op(mf_rank_watch *b, int64_t step, int position, const mf_op *op);
void mf_rank_watch_set_phase(mf_rank_watch *b, int64_t step, const char *phase);
/* From here on its main thread waits for this. The communicator reports the begin and the end of
 * MF_RANK_WATCH_FOR_RANKS; after it the state before counts again. */
void mf_rank_watch_set_waits(mf_rank_watch *b, mf_rank_watch_waits what);
/* From here on it is in a step, or in none; first: in its first one. */
void mf_rank_watch_enter_step(mf_rank_watch *b, bool first);
void mf_rank_watch_leave_step(mf_rank_watch *b);
/* Seconds that it has waited for other ranks, all in all. */
double mf_rank_watch_waited_s(const mf_rank_watch *b);
/* Is this the first rank of its host that reports why the run ends? The others stay silent, as they
 * mostly fail for the same reason. True without a watch. */
bool mf_rank_watch_first(mf_rank_watch *b);
/* This rank reports the reason of its own end from another thread: from here on no rank of the host
 * reports that another is gone. */
void mf_rank_watch_speak(mf_rank_watch *b);
/* Call it before mf_rank_watch_speak when a wait took too long: if the process of another rank does
 * not run, reports that rank and ends this process. Takes a second; not from the main thread. */
void mf_rank_watch_find_stopped(mf_rank_watch *b);
/* Call it when a call that involves other hosts has failed, which may be because one of them is
 * gone. Waits for MF_RANK_WATCH_SUSPECT_S. If a host is silent, the watch of this host's first rank
 * reports it in that time and the run ends; otherwise returns. Returns immediately where there is
 * no other host. */
void mf_rank_watch_await_lost_host(mf_rank_watch *b);
/* This rank ends on purpose: the others do not report it. */
void mf_rank_watch_leave(mf_rank_watch *b);
/* Stops the watch and frees. together: all ranks call it, so that the shared memory goes, too. */
void mf_rank_watch_close(mf_rank_watch *b, bool together);

/* How often the watching thread looks at the other ranks. */
#define MF_RANK_WATCH_PERIOD_S 0.05
/* Longer than the silence by which a host is then judged (rank_watch_thread.c). */
#define MF_RANK_WATCH_SUSPECT_S 3.0

#endif
