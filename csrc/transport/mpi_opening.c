/*
 * mpi_opening.c - the collective opening of the transport over MPI.
 *
 * It never blocks inside MPI.  The ranks exchange everything by *gathering*, with nonblocking calls, and a rank that
 * waits looks meanwhile whether the others live.  They first gather each rank's card, which says who it is.  If a rank
 * dies before it has given its first card, only MPI can notice.
 */
#define _GNU_SOURCE   /* sched_getaffinity */
#include "mpi_parts.h"

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BULK_TAGS_MAX = 1 << 20,
    CHUNK_BYTES_DEFAULT = 1 << 30,
    NODE_BYTES_COMMITTED = 4096,
    NODE_BYTES_MIN = 16 << 20,   /* with less room the ranks of a node share no memory */
    YIELDS_US = 1000,            /* after that a waiter sleeps between polls, a hundredth of the time waited so far, */
    SLEEP_US_MAX = 500,          /* but no longer than this */
    LOOK_US = 20000,             /* between looks whether the other ranks live */
    TELL_US = 300000             /* time that ranks get to hear of a failure: they may be computing */
};

/* ---- waiting -------------------------------------------------------------------------------- */

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void rest(uint64_t waited_us)
{
    uint64_t sleep_us = waited_us / 100;
    if (waited_us < YIELDS_US)
        sched_yield();
    else
        usleep((useconds_t)(sleep_us < SLEEP_US_MAX ? sleep_us : SLEEP_US_MAX));
}

/* The opening has failed: returns when the other ranks know, or have had their time. */
static pp_status_t give_up(pp_mpi_t *mpi)
{
    for (uint64_t begin = now_us(), now = begin; now - begin < TELL_US && !pp_mpi_all_told(mpi); now = now_us())
        rest(now - begin);
    return pp_mpi_refuse(mpi);
}

static void look(pp_mpi_t *mpi)
{
    pp_mpi_look_after(mpi);
#ifdef OPEN_MPI                  /* any other MPI can be asked only together with an acknowledgement */
    int32_t failed = pp_mpi_failed(mpi->comm);
    if (failed >= 0)
        pp_mpi_lose(mpi, failed, false);
#endif
}

/* Waits for a step.  A step that is given up stays MPI's, with its buffers. */
static pp_status_t complete(pp_mpi_t *mpi, int code, MPI_Request *request)
{
    uint64_t begin = now_us(), now = begin, looked = begin;
    int      done = 0;
    for (;; now = now_us()) {
        if (code == MPI_SUCCESS)
            code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            pp_mpi_break_down(mpi, code, "opening a context failed", -1);
        else if (done)
            return PP_OK;
        if (!mpi->borrows)
            pp_mpi_look_for_obituaries(mpi);
        if (now - looked > LOOK_US) {
            pp_mpi_look_for_obituaries(mpi);
            look(mpi);
            looked = now;
        }
        if (mpi->failure != PP_OK)
            return give_up(mpi);
        rest(now - begin);
    }
}

/* A reduction instead of an allgather: MPI's nonblocking allgather may send from every rank to every other, which on
   many hosts makes many connections for nothing. */
pp_status_t pp_mpi_gather(pp_mpi_t *mpi, const void *mine, size_t bytes, void **all)
{
    size_t         total = bytes * (size_t)mpi->transport.size;
    unsigned char *buffer = total <= INT_MAX ? calloc(1, total) : NULL;
    MPI_Request    request = MPI_REQUEST_NULL;
    *all = NULL;
    if (!buffer)
        return pp_fail(PP_ERR_MEMORY, "no memory to open a context on %d ranks", mpi->transport.size);
    memcpy(buffer + bytes * (size_t)mpi->transport.rank, mine, bytes);
    int code = MPI_Iallreduce(MPI_IN_PLACE, buffer, (int)total, MPI_BYTE, MPI_BOR, mpi->comm, &request);
    PP_TRY(complete(mpi, code, &request));
    *all = buffer;
    return PP_OK;
}

pp_status_t pp_mpi_agree(pp_mpi_t *mpi, pp_status_t status)
{
    int32_t mine = status, *all, worst = 0, rank = mpi->transport.rank;
    char    text[TEXT_BYTES], (*texts)[TEXT_BYTES];
    snprintf(text, sizeof text, "%s", status < 0 ? pp_error_text() : "");
    PP_TRY(pp_mpi_gather(mpi, &mine, sizeof mine, (void **)&all));
    for (int32_t r = 0; r < mpi->transport.size; r++)
        worst = all[r] < all[worst] ? r : worst;
    pp_status_t agreed = all[worst] < 0 ? all[worst] : PP_OK;
    free(all);
    if (agreed == PP_OK)
        return PP_OK;
    PP_TRY(pp_mpi_gather(mpi, text, sizeof text, (void **)&texts));
    if (worst == rank)
        pp_fail(agreed, "%s", texts[worst]);
    else
        pp_fail(agreed, "rank %d: %s", worst, texts[worst]);
    free(texts);
    return agreed;
}

/* ---- meeting -------------------------------------------------------------------------------- */

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
    int tags = pp_mpi_last_tag(comm) - BULK_TAG_FIRST;
    return (uint32_t)(tags < BULK_TAGS_MAX ? tags : BULK_TAGS_MAX);
}

/* A number that is the same on all ranks that one kernel runs, as far as the host's name and boot id tell. */
static uint64_t name_host(void)
{
    char     name[MPI_MAX_PROCESSOR_NAME + 64] = "";
    int      length = 0;
    uint64_t hash = UINT64_C(14695981039346656037);
    MPI_Get_processor_name(name, &length);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        length += (int)fread(name + length, 1, sizeof name - 1 - (size_t)length, file);
        fclose(file);
    }
    for (int i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Makes all that gathering needs. */
static pp_mpi_t *make_transport(MPI_Comm comm)
{
    int       rank, size;
    pp_mpi_t *mpi = calloc(1, sizeof *mpi);
    if (!mpi)
        return NULL;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    mpi->transport = (pp_transport_t){
        .ops = &pp_mpi_ops, .rank = rank, .size = size, .bulk_tags = count_bulk_tags(comm),
        .pins_pages = true};
    mpi->comm = mpi->given = comm;
    mpi->borrows = mpi->opening = true;
    mpi->thread_level = query_thread_level();
    mpi->letters_end = &mpi->letters;
    mpi->doorbell.page.fd = -1;
    for (int i = 0; i < STANDING_RECEIVES; i++)
        mpi->receives[i] = MPI_REQUEST_NULL;
    return mpi;
}

static pp_status_t make_tables(pp_mpi_t *mpi)
{
    int32_t size = mpi->transport.size;
    mpi->receive_bytes = pp_alloc_aligned((size_t)STANDING_RECEIVES * PARCEL_BYTES_MAX);
    mpi->bell_of = malloc((size_t)size * sizeof *mpi->bell_of);
    mpi->open_parcels = calloc((size_t)size, sizeof(slot_t *));
    mpi->to_send = calloc((size_t)size, sizeof *mpi->to_send);
    mpi->half_read = calloc((size_t)size, sizeof(letter_t *));
    mpi->heard = calloc((size_t)size, sizeof *mpi->heard);
    if (!mpi->receive_bytes || !mpi->bell_of || !mpi->open_parcels || !mpi->to_send || !mpi->half_read || !mpi->heard)
        return pp_fail(PP_ERR_MEMORY, "no memory for the transport of %d ranks", size);
    for (int32_t i = 0; i < size; i++)
        mpi->bell_of[i] = -1;
    return PP_OK;
}

/* The cards that earlier contexts have gathered, by rank in MPI_COMM_WORLD. */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static pp_card_t      *known;

/* Remembers this context's cards, or (`recall`) fills them with the remembered ones. */
static void exchange(pp_mpi_t *mpi, bool recall)
{
    int32_t   size = mpi->transport.size;
    int       everybody = 0, *ours = calloc((size_t)size * 2, sizeof *ours), *theirs = ours + size;
    MPI_Group group, world;
    MPI_Comm_group(mpi->given, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_size(world, &everybody);
    for (int32_t r = 0; ours && r < size; r++)
        ours[r] = r;
    if (ours)
        MPI_Group_translate_ranks(group, size, ours, world, theirs);
    pthread_mutex_lock(&known_lock);
    if (!known)
        known = calloc((size_t)everybody, sizeof *known);
    for (int32_t r = 0; ours && known && r < size; r++)
        if (theirs[r] >= 0 && recall)
            mpi->cards[r] = known[theirs[r]];
        else if (theirs[r] >= 0)
            known[theirs[r]] = mpi->cards[r];
    pthread_mutex_unlock(&known_lock);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    free(ours);
}

/* Collective, and the first step.  Ranks that have met in an earlier context watch each other from the beginning. */
static pp_status_t introduce(pp_mpi_t *mpi)
{
    pp_card_t mine = {.host = name_host(), .room = pp_shared_room(), .process = pp_process_self()}, *cards = NULL;
    mpi->cards = calloc((size_t)mpi->transport.size, sizeof *mpi->cards);
    if (mpi->cards) {
        exchange(mpi, true);
        mpi->cards[mpi->transport.rank] = mine;
    }
    pp_status_t status = mpi->cards && pp_mpi_watch(mpi) ? make_tables(mpi)
        : pp_fail(PP_ERR_MEMORY, "no memory for the transport of %d ranks", mpi->transport.size);
    PP_TRY(pp_mpi_gather(mpi, &mine, sizeof mine, (void **)&cards));
    free(mpi->cards);
    mpi->cards = cards;
    exchange(mpi, false);
    if (status == PP_OK && !pp_mpi_watch(mpi))
        status = pp_fail(PP_ERR_MEMORY, "no memory for the transport of %d ranks", mpi->transport.size);
    return pp_mpi_agree(mpi, status);
}

/* Collective.  The duplicate has none of the caller's hints: one of them lets messages overtake each other, another
   promises that no rank receives from MPI_ANY_SOURCE. */
static pp_status_t duplicate(pp_mpi_t *mpi)
{
#if MPI_VERSION >= 4 || (defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5)
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Comm   *own = malloc(sizeof *own);     /* stays MPI's if the step is given up */
    if (!own)
        return pp_fail(PP_ERR_MEMORY, "no memory for a communicator");
    int code = MPI_Comm_idup_with_info(mpi->comm, MPI_INFO_NULL, own, &request);
    PP_TRY(complete(mpi, code, &request));
    mpi->comm = *own;
    free(own);
#else
    int code = MPI_Comm_dup_with_info(mpi->comm, MPI_INFO_NULL, &mpi->comm);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "duplicating the communicator failed");
#endif
    mpi->borrows = false;
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    pp_status_t status = pp_mpi_post_receives(mpi);
    if (status < 0)
        pp_mpi_lose(mpi, mpi->transport.rank, true);
    return status;
}

pp_status_t pp_mpi_meet(const void *comm, pp_mpi_t **result)
{
    MPI_Comm given = *(const MPI_Comm *)comm;
    int      inter = 0;
    *result = NULL;
    MPI_Comm_test_inter(given, &inter);
    if (inter)
        return pp_fail(PP_ERR_ARGUMENT, "the communicator is an intercommunicator, but a context needs an "
                       "intracommunicator");
    pp_mpi_t *mpi = make_transport(given);
    if (!mpi)
        return pp_fail(PP_ERR_MEMORY, "no memory for the transport");
    pp_status_t status = introduce(mpi);
    if (status == PP_OK)
        status = duplicate(mpi);
    if (status < 0) {
        pp_mpi_abandon(mpi);
        return status;
    }
    *result = mpi;
    return PP_OK;
}

/* ---- nodes ---------------------------------------------------------------------------------- */

typedef struct offer {           /* a rank's cores; from the first rank of a node also page and memory */
    pp_shared_ticket_t page, memory;
    cpu_set_t          cores;
} offer_t;

typedef struct answer {          /* whether a rank could open them */
    bool page, memory;
} answer_t;

typedef struct node {            /* this rank's, while the transport opens */
    int32_t  size, index;
    int32_t *ranks;
    int      error;              /* errno, if the first rank could not make them; 0: it could */
} node_t;

/* Called by the first of `size` ranks that MPI has on this node.  `error`: errno of its own attempt; 0: other ranks
   could not open the memory. */
static void explain_apart(pp_mpi_t *mpi, int size, int error)
{
    if (error)
        snprintf(mpi->apart, sizeof mpi->apart, "rank %d cannot make memory for the %d ranks of its node: %s",
                 mpi->transport.rank, size, strerror(error));
    else
        snprintf(mpi->apart, sizeof mpi->apart, "not all of the %d ranks on the node of rank %d can open its memory; "
                 "they may be in different containers, or have no file descriptor left", size, mpi->transport.rank);
}

typedef struct resident {
    uint64_t host;
    int32_t  rank;
} resident_t;

static int by_host(const void *left, const void *right)
{
    const resident_t *a = left, *b = right;
    if (a->host != b->host)
        return a->host < b->host ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Sets card.host of each rank to the lowest rank of its node.  `node_ranks` > 0: each so many ranks of a host are a
   node. */
static pp_status_t find_nodes(pp_mpi_t *mpi, int32_t node_ranks, node_t *node)
{
    int32_t   size = mpi->transport.size, me = mpi->transport.rank;
    resident_t *residents = calloc((size_t)size, sizeof *residents);
    node->ranks = calloc((size_t)size, sizeof *node->ranks);
    if (!residents || !node->ranks) {
        free(residents);
        return pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", size);
    }
    for (int32_t r = 0; r < size; r++)
        residents[r] = (resident_t){mpi->cards[r].host, r};
    qsort(residents, (size_t)size, sizeof *residents, by_host);
    for (int32_t i = 0, first = 0; i < size; i++) {
        if (residents[i].host != residents[first].host || (node_ranks > 0 && i - first == node_ranks))
            first = i;
        mpi->cards[residents[i].rank].host = (uint64_t)residents[first].rank;
    }
    free(residents);
    for (int32_t r = 0; r < size; r++) {
        if (r == me)
            node->index = node->size;
        if (mpi->cards[r].host == mpi->cards[me].host)
            node->ranks[node->size++] = r;
    }
    return pp_mpi_watch(mpi) ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", size);
}

/* Some launchers give each rank cores of its own, others give all ranks all cores. */
static void count_cores(pp_mpi_t *mpi, const node_t *node, const offer_t *offers)
{
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int32_t i = 0; i < node->size; i++)
        CPU_OR(&all, &all, &offers[node->ranks[i]].cores);
    mpi->cores = CPU_COUNT(&all);
}

/* The memory grows only as far as every rank of the node can map it. */
static uint64_t common_room(const pp_mpi_t *mpi, const node_t *node)
{
    uint64_t room = UINT64_MAX;
    for (int32_t i = 0; i < node->size; i++) {
        uint64_t of_one = mpi->cards[node->ranks[i]].room;
        room = of_one < room ? of_one : room;
    }
    return room < NODE_BYTES_MIN ? 0 : room;
}

/* The first rank of a node makes a page of bells and memory for all its ranks; each rank offers its cores. */
static void make_offer(pp_mpi_t *mpi, node_t *node, pp_shared_t *memory, offer_t *offer, answer_t *answer)
{
    if (sched_getaffinity(0, sizeof offer->cores, &offer->cores) != 0)
        CPU_ZERO(&offer->cores);
    if (node->index != 0)
        return;
    answer->page = pp_doorbell_create(&mpi->doorbell, node->size, &offer->page);
    node->error = answer->page ? 0 : errno;
    answer->memory = pp_shared_create(memory, "pypartial-node", common_room(mpi, node), NODE_BYTES_COMMITTED,
                                      &offer->memory);
    node->error = answer->memory || node->error ? node->error : errno;
}

/* Drops page and memory if a rank of the node could not open them.  Returns whether there is a page. */
static bool keep_shared(pp_mpi_t *mpi, const node_t *node, pp_shared_t *memory, const answer_t *answers)
{
    answer_t all = {true, true};
    for (int32_t i = 0; i < node->size; i++) {
        all.page &= answers[node->ranks[i]].page;
        all.memory &= answers[node->ranks[i]].memory;
    }
    pp_shared_seal(&mpi->doorbell.page);
    if (!all.page)
        pp_doorbell_free(&mpi->doorbell);
    if (all.page && all.memory)
        mpi->memory = pp_shared_keep(memory);
    else
        pp_shared_free(memory);
    if (node->index == 0 && node->size > 1 && !mpi->memory)
        explain_apart(mpi, node->size, node->error);
    return all.page;
}

/* Makes the tables of ranks that can be rung, from the page: each rank has written its number into its bell. */
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

/* Lists the nodes, if every rank shares memory with its node. */
static pp_status_t list_nodes(pp_mpi_t *mpi, const answer_t *answers)
{
    int32_t  size = mpi->transport.size;
    int32_t *lowest = calloc((size_t)size, sizeof *lowest);
    bool     all = true;
    for (int32_t r = 0; lowest && r < size; r++) {
        lowest[r] = (int32_t)mpi->cards[r].host;
        all &= answers[r].page && answers[r].memory;
    }
    if (lowest && all)
        mpi->nodes = pp_nodes_new(lowest, size, mpi->transport.rank);
    bool failed = !lowest || (all && !mpi->nodes);
    free(lowest);
    return failed ? pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", size) : PP_OK;
}

/* Collective. */
static pp_status_t share(pp_mpi_t *mpi, node_t *node, pp_shared_t *memory)
{
    offer_t   mine, *offers;
    answer_t  answer = {false, false}, *answers;
    memset(&mine, 0, sizeof mine);
    make_offer(mpi, node, memory, &mine, &answer);
    PP_TRY(pp_mpi_gather(mpi, &mine, sizeof mine, (void **)&offers));
    const offer_t *first = &offers[node->ranks[0]];
    if (node->index != 0) {
        answer.page = pp_doorbell_attach(&mpi->doorbell, &first->page);
        answer.memory = pp_shared_attach(memory, &first->memory);
    }
    count_cores(mpi, node, offers);
    free(offers);
    if (answer.page)
        mpi->doorbell.bells[node->index].rank = mpi->transport.rank;
    PP_TRY(pp_mpi_gather(mpi, &answer, sizeof answer, (void **)&answers));
    bool        page = keep_shared(mpi, node, memory, answers);
    pp_status_t status = list_nodes(mpi, answers);
    free(answers);
    PP_TRY(status);
    if (page)
        return list_neighbours(mpi, node->index, node->size);
    if (!pp_doorbell_private(&mpi->doorbell))
        return pp_fail(PP_ERR_MEMORY, "no memory for a doorbell");
    return list_neighbours(mpi, 0, 1);
}

pp_status_t pp_mpi_open(pp_mpi_t *mpi, uint64_t chunk_bytes, int32_t node_ranks)
{
    node_t      node = {0};
    pp_shared_t memory = {.fd = -1};
    mpi->chunk_bytes = chunk_bytes == 0        ? CHUNK_BYTES_DEFAULT
                       : chunk_bytes > INT_MAX ? INT_MAX
                                               : (size_t)chunk_bytes;
    pp_status_t status = pp_mpi_agree(mpi, find_nodes(mpi, node_ranks, &node));
    if (status == PP_OK)
        status = share(mpi, &node, &memory);
    pp_shared_free(&memory);     /* unless it is kept */
    free(node.ranks);
    return status;
}

void pp_mpi_opened(pp_mpi_t *mpi)
{
    free(mpi->cards);
    mpi->cards = NULL;
    mpi->opening = false;
}
