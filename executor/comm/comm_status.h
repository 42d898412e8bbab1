/* comm_status.h - combines the statuses of all ranks into one. */
#ifndef MF_EXECUTOR_COMM_STATUS_H
#define MF_EXECUTOR_COMM_STATUS_H

#include "executor/comm/comm.h"

/* Returns the same status on all ranks: MF_OK, or that of the lowest failing rank that has an error
 * text (if none has one, the lowest failing rank, which then gets a text). Only that rank keeps its
 * text, the others' becomes empty, so that a fault is reported one time however often the ranks
 * agree on it. e of a rank that passes MF_OK is ignored. Collective. */
mf_status mf_comm_agree(mf_comm *c, mf_status mine, mf_err *e);

#endif
