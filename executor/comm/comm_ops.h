/* comm_ops.h - private to the implementations of comm.h: their table of functions.
 *
 * A transport is how the processes of a run find each other (a file of one host, MPI, or one
 * process alone); its communicators have a table of operations. NCCL has such a table but is no
 * transport: its ranks first meet over a transport's communicator.
 */
#ifndef MF_EXECUTOR_COMM_OPS_H
#define MF_EXECUTOR_COMM_OPS_H

#include "executor/comm/comm.h"

enum { MF_COMM_GROUPS = MF_GROUP_COUNT + MF_COMM_MAX_ADDED };

/* Memory that all ranks of a host see. */
typedef struct mf_comm_shared {
    void *data;
    int ranks, me; /* of this host */
    void *own;     /* the transport's */
    void (*release)(struct mf_comm_shared *s);
} mf_comm_shared;

/* Called for groups of two or more members (comm.c copies where there is one); counts are as in
 * comm.h. Entries that one process never needs are NULL. */
typedef struct mf_comm_ops {
    void (*destroy)(mf_comm *c); /* of its state; NULL: it has none */
    /* Makes group g, which is new, of the ranks with this color: its size and this rank in it. */
    mf_status (*add)(mf_comm *c, int g, int64_t color, mf_err *e);
    void (*use_stream)(mf_comm *c, void *stream);
    mf_status (*copy)(mf_comm *c, const void *in, void *out, size_t size_B, mf_err *e);
    mf_status (*all_reduce)(mf_comm *c, int g, mf_comm_type type, mf_comm_reduce op, void *data,
                            int64_t count, mf_err *e);
    mf_status (*all_gather)(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                            int64_t count, mf_err *e);
    mf_status (*all_gather_v)(mf_comm *c, int g, mf_comm_type type, void *data,
                              const int64_t *counts, mf_err *e);
    mf_status (*reduce_scatter)(mf_comm *c, int g, mf_comm_type type, const void *in, void *out,
                                const int64_t *counts, mf_err *e);
    mf_status (*all_to_all)(mf_comm *c, int g, size_t width, const void *in, const int64_t *send,
                            void *out, const int64_t *receive, mf_err *e);
    /* to, from: members. */
    mf_status (*ring)(mf_comm *c, int g, int64_t to, int64_t from, const void *in, void *out,
                      size_t size_B, mf_err *e);
    mf_status (*send)(mf_comm *c, int slot, int64_t to, int tag, const void *data, size_t size_B,
                      mf_err *e);
    mf_status (*wait_send)(mf_comm *c, int slot, mf_err *e);
    mf_status (*receive)(mf_comm *c, int slot, int64_t from, int tag, void *data, size_t size_B,
                         mf_err *e);
    mf_status (*barrier)(mf_comm *c, mf_err *e);
    mf_status (*map_shared)(mf_comm *c, size_t head_B, size_t each_B, mf_comm_shared *out,
                            mf_err *e);
} mf_comm_ops;

struct mf_comm {
    const mf_comm_ops *ops;
    void *state; /* the implementation's */
    mf_layout layout;
    int64_t rank;
    int added, asked; /* number of groups made, and of those asked for again */
    int64_t size[MF_COMM_GROUPS], member[MF_COMM_GROUPS];
    void *lent; /* mf_comm_lend */
    int64_t lent_elements;
    mf_comm_wait_fn on_wait;
    void *on_wait_user;
};

typedef struct mf_comm_transport {
    bool (*launched)(void); /* should this process be a rank of it? */
    bool (*running)(void);
    mf_status (*start)(mf_err *e);
    mf_status (*place)(int64_t *rank, int64_t *size, mf_err *e); /* while it runs */
    void (*stop)(void);
    void (*abort)(int code);
    /* Sets ops and state of a communicator of several ranks and tries each group. On an error the
     * caller destroys what was made. */
    mf_status (*open)(mf_comm *c, mf_err *e);
} mf_comm_transport;

extern const mf_comm_transport mf_comm_one, mf_comm_local, mf_comm_mpi;

/* A communicator without ops: rank, and sizes and members of the layout's groups are set. NULL: out
 * of memory, as e says. */
mf_comm *mf_comm_new(const mf_layout *l, int64_t rank, mf_err *e);
size_t mf_comm_type_B(mf_comm_type type);
/* Makes one all-reduce over group g in host memory and checks its sum. */
mf_status mf_comm_try_group(mf_comm *c, int g, const char *library, mf_err *e);

/* Memory that all ranks of this host see, zeroed: head_B, and each_B for every rank. Collective
 * over all ranks; so is s->release. Errors: MF_LIBRARY, MF_NOMEM; MF_INTERNAL with one rank. */
mf_status mf_comm_map_shared(mf_comm *c, size_t head_B, size_t each_B, mf_comm_shared *out,
                             mf_err *e);

/* For tests: sets the longest message (elements, or bytes where bytes are moved) of one call to
 * MPI, which is INT_MAX at first. The same on all ranks. No effect on other transports. */
void mf_comm_mpi_set_longest(mf_comm *c, int64_t piece);

#endif
