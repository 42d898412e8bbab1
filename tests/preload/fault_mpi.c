/* A library to load in front of MPI's (LD_PRELOAD): calls that fail as they do where another host
 * has closed its connections. As soon as the file MF_MPI_BROKEN is there, no sum and no message
 * comes about any more.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

static bool broken(void) {
    const char *file = getenv("MF_MPI_BROKEN");
    return file != NULL && access(file, F_OK) == 0;
}

int MPI_Allreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
    return broken() ? MPI_ERR_OTHER : PMPI_Allreduce(in, out, count, type, op, comm);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    return broken() ? MPI_ERR_OTHER : PMPI_Isend(data, count, type, to, tag, comm, request);
}
