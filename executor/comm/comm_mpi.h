/* comm_mpi.h - private: what the files of the transport over MPI share (comm_mpi.c, with its
 * operations in mpi_operations.c). Only for builds with MPI. */
#ifndef MF_EXECUTOR_COMM_MPI_H
#define MF_EXECUTOR_COMM_MPI_H

#include "executor/comm/comm_ops.h"

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

/* A message on its way: a request for each piece. */
typedef struct mf_mpi_message {
    MPI_Request *request;
    int pieces, allocated;
} mf_mpi_message;

typedef struct mf_mpi_state {
    MPI_Comm group[MF_COMM_GROUPS];
    MPI_Comm pipeline; /* the world again, for messages between stages */
    mf_mpi_message send[MF_COMM_SLOTS];
    MPI_Request *exchange; /* [2 * ranks] */
    int64_t piece;
    uint16_t *own; /* pieces of a BF16 sum, where the lent memory is too small */
    int64_t own_elements;
} mf_mpi_state;

/* Every result of MPI passes through here: MPI's own words and the call's text. */
#define MF_MPI_TRY(call, e)                                                                        \
    do {                                                                                           \
        int mpi_result_ = (call);                                                                  \
        if (mpi_result_ != MPI_SUCCESS) {                                                          \
            return mf_mpi_failed(mpi_result_, #call, e);                                           \
        }                                                                                          \
    } while (0)

mf_status mf_mpi_failed(int result, const char *call, mf_err *e);

extern const mf_comm_ops mf_mpi_ops;
/* As in mf_comm_ops. */
void mf_mpi_destroy(mf_comm *c);
mf_status mf_mpi_add(mf_comm *c, int g, int64_t color, mf_err *e);
mf_status mf_mpi_map_shared(mf_comm *c, size_t head_B, size_t each_B, mf_comm_shared *out,
                            mf_err *e);

#endif
