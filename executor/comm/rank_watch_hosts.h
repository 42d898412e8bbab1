/* rank_watch_hosts.h - private to the rank watch: hosts watch each other. The first rank of each
 * sends a small UDP message to that of the first host four times a second, and gets one back. MPI
 * is not used, as it waits for ever where a cable is unplugged. A host that was heard before and is
 * silent for too long is lost. */
#ifndef MF_EXECUTOR_RANK_WATCH_HOSTS_H
#define MF_EXECUTOR_RANK_WATCH_HOSTS_H

#include "executor/comm/rank_watch_slots.h"

typedef struct rank_watch_hosts rank_watch_hosts;

/* Collective over all ranks; `me` is this rank's place on its host. *out is NULL on all ranks but
 * the first of each host, with one host, and where no message can be sent (hosts are then not
 * watched). Errors: MF_LIBRARY, MF_NOMEM. */
mf_status rank_watch_hosts_open(mf_comm *c, int me, int ranks, rank_watch_hosts **out, mf_err *e);
/* Called regularly by the watching thread: sends to the other hosts whether a rank of this one
 * waits for others and whether all of them have waited for too long (a deadlock), and receives the
 * same from them. anew: this process was stopped itself, times start again. */
void rank_watch_hosts_beat(rank_watch_hosts *h, double now_s, bool anew, bool waits, bool deadlock);
/* Does a rank of another host wait for others? Have all ranks of all other hosts for too long? */
bool rank_watch_hosts_wait(const rank_watch_hosts *h);
bool rank_watch_hosts_deadlock(const rank_watch_hosts *h);
/* Is a host lost? The line that says so: "host b (ranks 2 to 3) is not heard of any more: ..." */
bool rank_watch_hosts_lost(const rank_watch_hosts *h, double now_s, double hang_s, char *line,
                           size_t size);
/* NULL is fine. */
void rank_watch_hosts_close(rank_watch_hosts *h);

#endif
