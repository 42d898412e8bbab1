/* comm_status.h - makes one status out of those that ranks got each on its own. */
#ifndef MF_EXECUTOR_COMM_STATUS_H
#define MF_EXECUTOR_COMM_STATUS_H

#include "executor/comm/comm.h"

/* When any rank failed, all return the status of one that did: the lowest with a text, else the
 * lowest, which is given one. The text stays with that rank and is empty on the others, so that a
 * fault is told once, by whoever knows it, however often its outcome is agreed on. e of a rank that
 * gives MF_OK counts for nothing. Collective. */
mf_status mf_comm_agree(mf_comm *c, mf_status mine, mf_err *e);

#endif
