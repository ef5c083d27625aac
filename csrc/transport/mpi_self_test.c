/* mpi_self_test.c - whether MPI takes memory that this process cannot touch.  See pp_mpi.h. */
#include "mpi_parts.h"

static int exchange(void *send, void *receive, int bytes)
{
    MPI_Request requests[2];
    int code = MPI_Irecv(receive, bytes, MPI_BYTE, 0, 0, MPI_COMM_SELF, &requests[0]);
    if (code == MPI_SUCCESS)
        code = MPI_Isend(send, bytes, MPI_BYTE, 0, 0, MPI_COMM_SELF, &requests[1]);
    return code == MPI_SUCCESS ? MPI_Waitall(2, requests, MPI_STATUSES_IGNORE) : code;
}

pp_status_t pp_mpi_self_test(void *send, void *receive, void *sum, size_t bytes)
{
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    int code = exchange(send, receive, (int)bytes);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "a message failed");
    code = MPI_Allreduce(send, sum, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_SELF);
    return code == MPI_SUCCESS ? PP_OK : pp_mpi_error(code, "an allreduce failed");
}
