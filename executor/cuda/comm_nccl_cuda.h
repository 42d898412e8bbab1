/* comm_nccl_cuda.h - the groups of a layout as NCCL communicators: one process a GPU, device
 * memory. The calls of executor/comm/comm.h enqueue on the stream that mf_comm_use_stream has set
 * (the default stream until then), return immediately, and may be captured in a CUDA graph. Host
 * code: needs no nvcc. */
#ifndef MF_EXECUTOR_COMM_NCCL_CUDA_H
#define MF_EXECUTOR_COMM_NCCL_CUDA_H

#include "executor/comm/comm.h"

/* Creates communicators over the GPUs that are current in the ranks of `host`, which the caller
 * keeps and which must outlive them. Collective over `host`, with its layout; so is mf_comm_add.
 * The same GPU must be current in later calls.
 *
 * They are created in one order: the world; the groups of more than one member in the order of
 * mf_group_kind (groups of the same ranks share one); and, for every slot that the layout's
 * schedule uses, one for each two neighbouring stages of a pipeline (the last and the first are
 * neighbours). NCCL runs the calls of one communicator one after the other, so with these a send
 * waits only for earlier messages from the same stage in the same slot. Each is tested by a sum or
 * an exchange.
 *
 * A send runs when the stream reaches it and completes when the other side's receive runs, so it
 * needs a stream of its own, or an order that suits both sides. Later work on the stream may reuse
 * its buffer; mf_comm_wait_send does nothing. Messages of one slot all go to the next stage, or all
 * to the one before. all_gather_v and reduce_scatter are one call to NCCL where all counts are
 * equal.
 *
 * Ranks that share a GPU need NCCL 2.30 and environment variables, which this sets unless the user
 * has; they are slow, and meant for tests.
 *
 * Errors: MF_LIBRARY with the message of CUDA or NCCL, also when the loaded library is not the one
 * that this was compiled for; MF_NOMEM; MF_LAYOUT when `host` has another number of ranks. An error
 * of one rank is returned by all and reported by one (executor/comm/comm_status.h). */
mf_status mf_comm_nccl_create(mf_comm *host, const mf_layout *l, mf_comm **out, mf_err *e);

/* The group's ncclComm_t on the rank's GPU, which c owns. NULL: a group of one, or communicators
 * that are not NCCL's. */
void *mf_comm_nccl_group(const mf_comm *c, mf_group_kind g);
/* Do ranks of the world share GPUs? */
bool mf_comm_nccl_is_shared(const mf_comm *c);

/* Is this compiled for an NCCL that lets ranks share a GPU? */
bool mf_comm_nccl_shares_gpus(void);

#endif
