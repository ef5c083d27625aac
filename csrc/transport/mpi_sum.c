/* mpi_sum.c - sums over a communicator of the application's.  See pp_mpi.h. */
#include "mpi_parts.h"

enum { ELEMENTS_MOST = 1 << 30 };    /* MPI counts them by int */

pp_status_t pp_mpi_sum(const void *comm, void *vector, size_t count, size_t element_bytes)
{
    const MPI_Comm    *members = comm;
    const MPI_Datatype type = element_bytes == sizeof(float) ? MPI_FLOAT : MPI_DOUBLE;
    char              *at = vector;
    for (size_t some; count > 0; count -= some, at += some * element_bytes) {
        some = count < ELEMENTS_MOST ? count : ELEMENTS_MOST;
        const int code = MPI_Allreduce(MPI_IN_PLACE, at, (int)some, type, MPI_SUM, *members);
        if (code != MPI_SUCCESS)
            return pp_mpi_error(code, "an allreduce over the members of a group failed");
    }
    return PP_OK;
}
