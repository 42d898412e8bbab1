/* comm_nccl_cuda.h - the groups of a layout as NCCL communicators: one process a GPU, device
 * memory. The calls of executor/comm/comm.h enqueue on the stream that mf_comm_use_stream has set
 * (the default stream until then), return at once, and may be captured in a CUDA graph. Host code:
 * needs no nvcc. */
#ifndef MF_EXECUTOR_COMM_NCCL_CUDA_H
#define MF_EXECUTOR_COMM_NCCL_CUDA_H

#include "executor/comm/comm.h"

/* Communicators over the GPUs that are current in the ranks of `host`, which has to outlive them
 * and stays the caller's. Every rank of `host` calls it, with the layout of `host`; so is
 * mf_comm_add. The same GPU has to be current in later calls.
 *
 * Made in one order: the world, the groups of more than one member in the order of mf_group_kind
 * (those of the same ranks share one), and for every slot that the layout's schedule uses one over
 * each two neighbouring stages of a pipeline (the last and the first are neighbours): NCCL runs the
 * calls of one communicator one behind the other, and so a send waits for no other message than
 * those before it from the same stage in the same slot. Each is tried: a sum is checked, or what
 * the two ranks tell each other.
 *
 * A send is done when its place in the stream is reached and the receive of the other side runs, so
 * that it goes on a stream of its own, or in an order that suits both sides. Its buffer is free for
 * what follows on the stream; mf_comm_wait_send does nothing. Messages of one slot all go to the
 * next stage, or all to the one before. all_gather_v and reduce_scatter are one call to NCCL where
 * all counts are equal.
 *
 * Ranks that share a GPU need NCCL 2.30, which is told so by environment variables (those that
 * are set stay); they are slow, and there for tests.
 *
 * Errors: MF_LIBRARY with the words of CUDA or NCCL, also when the library that was loaded is not
 * the one that this was compiled for; MF_NOMEM; MF_LAYOUT when `host` has another number of ranks.
 * What ails one rank is returned by all, told by one (executor/comm/comm_status.h). */
mf_status mf_comm_nccl_create(mf_comm *host, const mf_layout *l, mf_comm **out, mf_err *e);

/* The group's communicator (an ncclComm_t, of the rank's GPU), which stays the communicators'.
 * NULL: a group of one, or communicators that are not NCCL's. */
void *mf_comm_nccl_group(const mf_comm *c, mf_group_kind g);
/* Do ranks of the world share GPUs? */
bool mf_comm_nccl_is_shared(const mf_comm *c);

/* Is this compiled for an NCCL that lets ranks share a GPU? */
bool mf_comm_nccl_shares_gpus(void);

#endif
