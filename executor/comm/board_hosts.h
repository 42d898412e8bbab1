/* board_hosts.h - private to the board: hosts that look after each other. The first rank of each
 * sends a small message four times a second to that of the first host, and the first host back,
 * past MPI, which waits for ever where a link is cut; a host that was heard before and is silent
 * for too long is lost.
 */
#ifndef MF_EXECUTOR_BOARD_HOSTS_H
#define MF_EXECUTOR_BOARD_HOSTS_H

#include "executor/comm/board_slots.h"

typedef struct board_hosts board_hosts;

/* Collective over all ranks; `me` is the place of this rank on its host. *out is NULL on ranks
 * other than the first of their host, where there is one host, and where no message can be sent
 * (then hosts do not look after each other). Errors: MF_LIBRARY, MF_NOMEM. */
mf_status board_hosts_open(mf_comm *c, int me, int ranks, board_hosts **out, mf_err *e);
/* From the watching thread, every so often: tells the others of this one's host whether a rank here
 * waits for others and whether all of them have for too long; hears what they tell. anew: this
 * process stood still itself. */
void board_hosts_beat(board_hosts *h, double now_s, bool anew, bool waits, bool knot);
/* Does a rank of another host wait for others? Have all ranks of all other hosts for too long? */
bool board_hosts_wait(const board_hosts *h);
bool board_hosts_knot(const board_hosts *h);
/* Is a host lost? The line that says so: "host b (ranks 2 to 3) is not heard of any more: ..." */
bool board_hosts_lost(const board_hosts *h, double now_s, double hang_s, char *line, size_t size);
/* NULL is fine. */
void board_hosts_close(board_hosts *h);

#endif
