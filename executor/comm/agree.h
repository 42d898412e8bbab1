/* agree.h - one outcome for all ranks of what each of them tried alone. */
#ifndef MF_EXECUTOR_AGREE_H
#define MF_EXECUTOR_AGREE_H

#include "executor/comm/comm.h"

/* When any rank failed, all return the status of the lowest that did; the text stays with that one
 * and is empty on the others, so that a fault is told once. Collective. */
mf_status mf_comm_agree(mf_comm *c, mf_status mine, mf_err *e);

#endif
