/* mpi_opening.c - the collective opening of the transport over MPI. */
#define _GNU_SOURCE   /* sched_getaffinity */
#include "mpi_parts.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <string.h>

enum {
    BULK_TAGS_MAX = 1 << 20,
    CHUNK_BYTES_DEFAULT = 1 << 30,
    NODE_BYTES_COMMITTED = 4096
};

/* Thread sanitizer leaves little address space. */
#ifdef __SANITIZE_THREAD__
static const size_t NODE_BYTES_MAX = (size_t)1 << 36;
#else
static const size_t NODE_BYTES_MAX = (size_t)1 << 44;
#endif
static const size_t NODE_BYTES_MIN = (size_t)1 << 32;

/* Collective: the worst status of all, with the text of the lowest rank that has it. */
static pp_status_t agree(MPI_Comm comm, pp_status_t status)
{
    struct {
        int status, rank;
    } mine = {status, 0}, worst = {0, 0};
    char text[TEXT_BYTES] = "";
    MPI_Comm_rank(comm, &mine.rank);
    int code = MPI_Allreduce(&mine, &worst, 1, MPI_2INT, MPI_MINLOC, comm);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "opening the transport");
    if (worst.status >= 0)
        return PP_OK;
    if (mine.rank == worst.rank)
        snprintf(text, sizeof text, "%s", pp_error_text());
    code = MPI_Bcast(text, sizeof text, MPI_CHAR, worst.rank, comm);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "opening the transport");
    if (mine.rank == worst.rank)
        return pp_fail(worst.status, "%s", text);
    return pp_fail(worst.status, "rank %d: %s", worst.rank, text);
}

static int32_t query_thread_level(void)
{
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    return level == MPI_THREAD_MULTIPLE     ? 3
           : level == MPI_THREAD_SERIALIZED ? 2
           : level == MPI_THREAD_FUNNELED   ? 1
                                            : 0;
}

static uint32_t count_bulk_tags(MPI_Comm comm)
{
    int *limit = NULL, found = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &limit, &found);
    int tags = found ? *limit - BULK_TAG_FIRST : 32767 - BULK_TAG_FIRST;   /* MPI's minimum */
    return (uint32_t)(tags < BULK_TAGS_MAX ? tags : BULK_TAGS_MAX);
}

/* The local part. */
static pp_status_t make_transport(MPI_Comm comm, uint64_t chunk_bytes, pp_mpi_t **result)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    pp_mpi_t *mpi = calloc(1, sizeof *mpi);
    *result = mpi;
    if (!mpi)
        return pp_fail(PP_ERR_MEMORY, "no memory for the transport");
    mpi->transport = (pp_transport_t){
        .ops = &pp_mpi_ops, .rank = rank, .size = size, .bulk_tags = count_bulk_tags(comm),
        .pins_pages = true};
    mpi->comm = comm;
    mpi->chunk_bytes = chunk_bytes == 0        ? CHUNK_BYTES_DEFAULT
                       : chunk_bytes > INT_MAX ? INT_MAX
                                               : (size_t)chunk_bytes;
    mpi->thread_level = query_thread_level();
    mpi->letters_end = &mpi->letters;
    mpi->doorbell.page.fd = -1;
    for (int i = 0; i < STANDING_RECEIVES; i++)
        mpi->receives[i] = MPI_REQUEST_NULL;
    mpi->receive_bytes = pp_alloc_aligned((size_t)STANDING_RECEIVES * PARCEL_BYTES_MAX);
    mpi->bell_of = malloc((size_t)size * sizeof *mpi->bell_of);
    mpi->open_parcels = calloc((size_t)size, sizeof(slot_t *));
    mpi->to_send = calloc((size_t)size, sizeof *mpi->to_send);
    mpi->half_read = calloc((size_t)size, sizeof(letter_t *));
    if (!mpi->receive_bytes || !mpi->bell_of || !mpi->open_parcels || !mpi->to_send || !mpi->half_read)
        return pp_fail(PP_ERR_MEMORY, "no memory for the transport of %d ranks", size);
    for (int i = 0; i < size; i++)
        mpi->bell_of[i] = -1;
    return PP_OK;
}

/* Address space for the memory that the ranks of a node share, as much as can be had: what is used of it is
   committed piece by piece. */
static bool create_memory(pp_shared_t *memory, pp_shared_ticket_t *ticket)
{
    for (size_t bytes = NODE_BYTES_MAX; bytes >= NODE_BYTES_MIN; bytes /= 16)
        if (pp_shared_create(memory, "pypartial-node", bytes, NODE_BYTES_COMMITTED, ticket))
            return true;
    return false;
}

/* By the first of `size` ranks that MPI has on this node; `error`: of its own attempt, 0 if the others failed. */
static void explain_apart(pp_mpi_t *mpi, int size, int error)
{
    if (error)
        snprintf(mpi->apart, sizeof mpi->apart, "rank %d can make no memory for the %d ranks of its node: %s",
                 mpi->transport.rank, size, strerror(error));
    else
        snprintf(mpi->apart, sizeof mpi->apart, "not all of the %d ranks on its node can open the memory of rank "
                 "%d, as in different containers", size, mpi->transport.rank);
}

/* Collective over the node: a page of bells for all of it, and memory; neither if anybody cannot open it. */
static int share_page(pp_mpi_t *mpi, MPI_Comm node, bool *shared)
{
    pp_shared_ticket_t tickets[2] = {0};
    pp_shared_t        memory = {.fd = -1};
    int                rank, size, error = 0, mine[2] = {0}, all[2] = {0};
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    if (rank == 0) {
        mine[0] = pp_doorbell_create(&mpi->doorbell, size, &tickets[0]);
        error = mine[0] ? 0 : errno;
        mine[1] = create_memory(&memory, &tickets[1]);
        error = mine[1] || error ? error : errno;
    }
    int code = MPI_Bcast(tickets, sizeof tickets, MPI_BYTE, 0, node);
    if (code == MPI_SUCCESS && rank != 0) {
        mine[0] = pp_doorbell_attach(&mpi->doorbell, &tickets[0]);
        mine[1] = pp_shared_attach(&memory, &tickets[1]);
    }
    if (mine[0])
        mpi->doorbell.bells[rank].rank = mpi->transport.rank;
    if (code == MPI_SUCCESS)
        code = MPI_Allreduce(mine, all, 2, MPI_INT, MPI_LAND, node);
    pp_shared_seal(&mpi->doorbell.page);
    if (!all[0])
        pp_doorbell_free(&mpi->doorbell);
    if (all[0] && all[1])
        mpi->memory = pp_shared_keep(&memory);
    else
        pp_shared_free(&memory);
    if (rank == 0 && size > 1 && !mpi->memory)
        explain_apart(mpi, size, error);
    *shared = all[0];
    return code;
}

/* The tables of who can be rung, from the page: everybody has written its rank into its bell. */
static pp_status_t list_neighbours(pp_mpi_t *mpi, int bell, int bells)
{
    mpi->neighbour_count = bells;
    mpi->bell = &mpi->doorbell.bells[bell];
    mpi->neighbours = calloc((size_t)bells, sizeof *mpi->neighbours);
    mpi->to_ring = calloc((size_t)bells, sizeof *mpi->to_ring);
    mpi->to_wake = calloc((size_t)bells, sizeof *mpi->to_wake);
    for (int i = 0; mpi->neighbours && i < bells; i++)
        mpi->neighbours[i].hope = HOPE_MAX;
    if (!mpi->neighbours || !mpi->to_ring || !mpi->to_wake)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d neighbours", bells);
    for (int i = 0; i < bells; i++)
        if (i != bell)
            mpi->bell_of[mpi->doorbell.bells[i].rank] = i;
    return PP_OK;
}

/* Collective over the node: launchers give each rank cores of its own, or all of them all. */
static int count_cores(MPI_Comm node, int32_t *count)
{
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;
    if (!known)
        CPU_ZERO(&mine);
    int code = MPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, node);
    *count = code == MPI_SUCCESS ? CPU_COUNT(&all) : 0;
    return code;
}

/* Collective.  No page for the node is not an error; no bell at all is. */
static int find_node(const pp_mpi_t *mpi, int32_t node_ranks, MPI_Comm *node)
{
    MPI_Comm whole;
    int      rank;
    int code = MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, mpi->transport.rank, MPI_INFO_NULL, &whole);
    if (node_ranks <= 0 || code != MPI_SUCCESS) {
        *node = whole;
        return code;
    }
    MPI_Comm_rank(whole, &rank);
    code = MPI_Comm_split(whole, rank / node_ranks, rank, node);
    MPI_Comm_free(&whole);
    return code;
}

static pp_status_t open_doorbell(pp_mpi_t *mpi, int32_t node_ranks)
{
    MPI_Comm node;
    int      rank, size;
    bool     shared = false;
    int code = find_node(mpi, node_ranks, &node);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "finding the ranks of the node");
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    code = count_cores(node, &mpi->cores);
    if (code == MPI_SUCCESS)
        code = share_page(mpi, node, &shared);
    MPI_Comm_free(&node);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "sharing the doorbell");
    if (shared)
        return list_neighbours(mpi, rank, size);
    if (!pp_doorbell_private(&mpi->doorbell))
        return pp_fail(PP_ERR_MEMORY, "no memory for a doorbell");
    return list_neighbours(mpi, 0, 1);
}

/* Collective. */
static pp_status_t find_nodes(pp_mpi_t *mpi)
{
    enum { NO_MEMORY = -1 };
    int32_t  size = mpi->transport.size, mine = mpi->memory ? mpi->doorbell.bells[0].rank : NO_MEMORY;
    int32_t *lowest = calloc((size_t)size, sizeof *lowest);
    pp_status_t status = agree(mpi->comm, lowest ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", size));
    if (status >= 0) {
        int code = MPI_Allgather(&mine, 1, MPI_INT32_T, lowest, 1, MPI_INT32_T, mpi->comm);
        bool all = true;
        for (int32_t r = 0; r < size; r++)
            all &= lowest[r] != NO_MEMORY;
        if (code != MPI_SUCCESS)
            status = pp_mpi_error(code, "finding out who is on which node");
        else if (all && !(mpi->nodes = pp_nodes_new(lowest, size, mpi->transport.rank)))
            status = pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", size);
    }
    free(lowest);
    return status;
}

/* Collective, from `comm` being ours; *mpi is what there is to release on failure. */
static pp_status_t open_transport(MPI_Comm comm, uint64_t chunk_bytes, int32_t node_ranks, pp_mpi_t **mpi)
{
    PP_TRY(agree(comm, make_transport(comm, chunk_bytes, mpi)));
    PP_TRY(agree(comm, open_doorbell(*mpi, node_ranks)));
    pp_status_t status = find_nodes(*mpi);
    if (status == PP_OK)
        status = pp_mpi_post_receives(*mpi);
    return agree(comm, status);
}

pp_status_t pp_mpi_open(const void *comm, uint64_t chunk_bytes, int32_t node_ranks, pp_mpi_t **result)
{
    MPI_Comm given = *(const MPI_Comm *)comm, own;
    pp_mpi_t *mpi = NULL;
    int       inter = 0;
    *result = NULL;
    MPI_Comm_test_inter(given, &inter);
    if (inter)
        return pp_fail(PP_ERR_ARGUMENT, "the communicator is an intercommunicator");
    /* Without the caller's hints: one of them lets messages overtake each other, another promises
       that nobody receives from MPI_ANY_SOURCE. */
    int code = MPI_Comm_dup_with_info(given, MPI_INFO_NULL, &own);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "duplicating the communicator");
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    pp_status_t status = open_transport(own, chunk_bytes, node_ranks, &mpi);
    if (status < 0) {
        pp_mpi_abandon(mpi);
        MPI_Comm_free(&own);
        return status;
    }
    *result = mpi;
    return PP_OK;
}
