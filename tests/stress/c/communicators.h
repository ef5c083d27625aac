/* communicators.h - how many communicators the program has made: every call that makes one is counted. */
#ifndef COMMUNICATORS_H
#define COMMUNICATORS_H

#include <mpi.h>

static int communicators;

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *made)
{
    communicators++;
    return PMPI_Comm_dup(comm, made);
}
int MPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *made)
{
    communicators++;
    return PMPI_Comm_dup_with_info(comm, info, made);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *made)
{
    communicators++;
    return PMPI_Comm_split(comm, color, key, made);
}
int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *made)
{
    communicators++;
    return PMPI_Comm_create(comm, group, made);
}
int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *made)
{
    communicators++;
    return PMPI_Comm_create_group(comm, group, tag, made);
}
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *request)
{
    communicators++;
    return PMPI_Comm_idup(comm, made, request);
}
int MPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *made, MPI_Request *request)
{
    communicators++;
    return PMPI_Comm_idup_with_info(comm, info, made, request);
}
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made)
{
    communicators++;
    return PMPI_Comm_split_type(comm, type, key, info, made);
}

#endif
