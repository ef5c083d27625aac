/*
 * mpi_deaths.c - a rank that sees another one die tells all ranks.
 *
 * The ranks of a node look whether the others' processes live; MPI may also report a death itself.  A rank that learns
 * of a death sends an *obituary* to all other ranks, also if it learned of it by an obituary: the sender may be
 * failing itself, and MPI may not deliver all of its messages.  So each rank hears an obituary from every other rank
 * that lives, and by that knows that they have been told.
 */
#include "mpi_parts.h"

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

enum { LAPS = 8 };               /* calls of pp_mpi_look_after() in which every watched process is looked at once */

/* ---- what MPI says -------------------------------------------------------------------------- */

#ifdef MPIX_ERR_PROC_FAILED
pp_status_t pp_mpi_class(int code)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_PROC_FAILED_PENDING ? PP_ERR_PEER_FAILED : PP_ERR_MPI;
}

static int failed_group(MPI_Comm comm, MPI_Group *failed)
{
#ifdef OPEN_MPI
    return MPIX_Comm_get_failed(comm, failed);
#else
    int code = MPIX_Comm_failure_ack(comm);
    return code == MPI_SUCCESS ? MPIX_Comm_failure_get_acked(comm, failed) : code;
#endif
}

int32_t pp_mpi_failed(MPI_Comm comm)
{
    MPI_Group failed, all;
    int       count = 0, first = 0, peer = -1;
    if (failed_group(comm, &failed) != MPI_SUCCESS)
        return -1;
    MPI_Group_size(failed, &count);
    if (count > 0) {
        MPI_Comm_group(comm, &all);
        MPI_Group_translate_ranks(failed, 1, &first, all, &peer);
        MPI_Group_free(&all);
    }
    if (failed != MPI_GROUP_EMPTY)
        MPI_Group_free(&failed);
    return peer;
}

/* From then on receives from MPI_ANY_SOURCE go on without the dead ranks. */
static bool acknowledge(const pp_mpi_t *mpi, int code)
{
    return pp_mpi_class(code) == PP_ERR_PEER_FAILED && MPIX_Comm_failure_ack(mpi->comm) == MPI_SUCCESS;
}
#else
pp_status_t pp_mpi_class(int code)
{
    (void)code;
    return PP_ERR_MPI;
}

int32_t pp_mpi_failed(MPI_Comm comm)
{
    (void)comm;
    return -1;
}

static bool acknowledge(const pp_mpi_t *mpi, int code)
{
    (void)mpi, (void)code;
    return false;
}
#endif

/* ---- errors --------------------------------------------------------------------------------- */

pp_status_t pp_mpi_error(int code, const char *what)
{
    char reason[MPI_MAX_ERROR_STRING] = "unknown error";
    int  length;
    MPI_Error_string(code, reason, &length);
    return pp_fail(pp_mpi_class(code), "%s: %s", what, reason);
}

pp_status_t pp_mpi_break_down(pp_mpi_t *mpi, int code, const char *what, int32_t peer)
{
    if (mpi->failure == PP_OK) {
        char reason[MPI_MAX_ERROR_STRING] = "unknown error";
        int  length;
        MPI_Error_string(code, reason, &length);
        int32_t dead = peer < 0 || pp_mpi_class(code) != PP_ERR_PEER_FAILED ? pp_mpi_find_dead(mpi) : -1;
        mpi->failure = dead >= 0 ? PP_ERR_PEER_FAILED : pp_mpi_class(code);
        peer = dead >= 0 ? dead : peer;
        mpi->failed_peer = peer;
        mpi->gave_up = mpi->failure != PP_ERR_PEER_FAILED || peer < 0;
        mpi->lost = mpi->gave_up ? mpi->transport.rank : peer;
        snprintf(mpi->failure_text, TEXT_BYTES, "%s: %s", what, reason);
        mpi->transport.bulk_in_flight = true;      /* until a poll has told the sink */
        pp_mpi_tell(mpi);
    }
    return pp_mpi_refuse(mpi);
}

pp_status_t pp_mpi_refuse(const pp_mpi_t *mpi)
{
    if (mpi->failed_peer >= 0)
        return pp_fail(mpi->failure, "rank %d: %s", mpi->failed_peer, mpi->failure_text);
    return pp_fail(mpi->failure, "%s", mpi->failure_text);
}

int pp_mpi_last_tag(MPI_Comm comm)
{
    int *limit = NULL, found = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &limit, &found);
    return found ? *limit : 32767;             /* MPI's minimum */
}

int pp_mpi_tell_sink(pp_mpi_t *mpi)
{
    if (mpi->failure == PP_OK || mpi->failure_told || mpi->opening)
        return 0;
    pp_sink_t *sink = &mpi->transport.sink;
    mpi->failure_told = true;
    /* MPI may still read and write the elements of what is not complete: pp_instance_release() leaves it these. */
    mpi->transport.bulk_in_flight = mpi->outstanding > mpi->parcels_out;
    sink->failed(sink->engine, mpi->failure, mpi->failed_peer, mpi->failure_text);
    return 1;
}

/* ---- looking -------------------------------------------------------------------------------- */

bool pp_mpi_watch(pp_mpi_t *mpi)
{
    int32_t          me = mpi->transport.rank;
    const pp_card_t *mine = &mpi->cards[me];
    free(mpi->watched);
    mpi->watched_count = mpi->next_watched = 0;
    mpi->watched = calloc((size_t)mpi->transport.size, sizeof *mpi->watched);
    for (int32_t r = 0; mpi->watched && r < mpi->transport.size; r++) {
        const pp_card_t *card = &mpi->cards[r];
        if (r == me)             /* so that each rank of the node begins at another one */
            mpi->next_watched = mpi->watched_count;
        else if (card->host == mine->host && mine->process.numbers != 0
                 && card->process.numbers == mine->process.numbers)
            mpi->watched[mpi->watched_count++] = (watched_t){.rank = r, .process = card->process};
    }
    return mpi->watched;
}

int32_t pp_mpi_find_dead(pp_mpi_t *mpi)
{
    int32_t failed = pp_mpi_failed(mpi->comm);
    for (int32_t i = 0; i < mpi->watched_count && failed < 0; i++)
        if (pp_process_died(&mpi->watched[i].process))
            failed = mpi->watched[i].rank;
    return failed;
}

void pp_mpi_look_after(pp_mpi_t *mpi)
{
    for (int32_t looks = (mpi->watched_count + LAPS - 1) / LAPS; looks > 0 && mpi->failure == PP_OK; looks--) {
        const watched_t *watched = &mpi->watched[mpi->next_watched % mpi->watched_count];
        mpi->next_watched = (mpi->next_watched + 1) % mpi->watched_count;
        if (pp_process_died(&watched->process))
            pp_mpi_lose(mpi, watched->rank, false);
    }
    pp_mpi_tell_sink(mpi);
}

/* ---- telling -------------------------------------------------------------------------------- */

void pp_mpi_lose(pp_mpi_t *mpi, int32_t lost, bool gave_up)
{
    if (mpi->failure != PP_OK)
        return;
    mpi->failure = PP_ERR_PEER_FAILED;
    mpi->failed_peer = mpi->lost = lost;
    mpi->gave_up = gave_up;
    snprintf(mpi->failure_text, TEXT_BYTES, "%s", gave_up ? "its MPI has failed" : "its process has died");
    mpi->transport.bulk_in_flight = true;
    pp_mpi_tell(mpi);
}

static void wake(pp_mpi_t *mpi, int32_t peer)
{
    pp_ring_t ring;
    if (mpi->bell_of[peer] < 0)
        return;
    pp_bell_t *bell = &mpi->doorbell.bells[mpi->bell_of[peer]];
    pp_bell_wake(bell, pp_bell_announce(bell, 1, &ring));
}

/* An error in one send is ignored: the other ranks are still told. */
static void send_obituaries(pp_mpi_t *mpi, const frame_t *obituary, MPI_Comm comm, int tag)
{
    for (int32_t peer = 0; peer < mpi->transport.size; peer++) {
        MPI_Request request;
        if (peer == mpi->transport.rank || (peer == mpi->lost && !mpi->gave_up)
            || MPI_Isend(obituary, sizeof *obituary, MPI_BYTE, peer, tag, comm, &request) != MPI_SUCCESS)
            continue;
        MPI_Request_free(&request);
        if (comm == mpi->comm && !mpi->borrows)
            wake(mpi, peer);
    }
}

void pp_mpi_tell(pp_mpi_t *mpi)
{
    /* It belongs to MPI for ever: this rank never asks whether it has been sent. */
    frame_t *obituary = calloc(1, sizeof *obituary);
    if (!obituary)
        return;
    *obituary = (frame_t){.lost = (uint32_t)mpi->lost + 1, .gave_up = mpi->gave_up};
    if (!mpi->borrows)
        send_obituaries(mpi, obituary, mpi->comm, MESSAGE_TAG);
    /* Other ranks may not have their own communicator yet.  This is the only message on the caller's. */
    if (mpi->opening)
        send_obituaries(mpi, obituary, mpi->given, pp_mpi_last_tag(mpi->given));
}

/* ---- being told ----------------------------------------------------------------------------- */

void pp_mpi_read_obituary(pp_mpi_t *mpi, int32_t peer, const frame_t *frame)
{
    mpi->heard_count += !mpi->heard[peer];
    mpi->heard[peer] = true;
    pp_mpi_lose(mpi, (int32_t)frame->lost - 1, frame->gave_up);
}

bool pp_mpi_is_obituary(const pp_mpi_t *mpi, int at, const MPI_Status *status)
{
    int count = 0;
    MPI_Get_count(status, MPI_BYTE, &count);
    return (size_t)count >= sizeof(frame_t) && ((const frame_t *)pp_mpi_receive_buffer(mpi, at))->lost;
}

/* Looks on the caller's communicator. */
static void look_on_given(pp_mpi_t *mpi)
{
    frame_t    obituary = {0};
    MPI_Status status;
    int        arrived = 0, count = 0, tag = pp_mpi_last_tag(mpi->given);
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, mpi->given, &arrived, &status) != MPI_SUCCESS || !arrived)
        return;
    MPI_Get_count(&status, MPI_BYTE, &count);
    if (count == sizeof obituary
        && MPI_Recv(&obituary, count, MPI_BYTE, status.MPI_SOURCE, tag, mpi->given, &status) == MPI_SUCCESS)
        pp_mpi_lose(mpi, (int32_t)obituary.lost - 1, obituary.gave_up);
}

static void look_on_own(pp_mpi_t *mpi)
{
    for (int i = 0; i < STANDING_RECEIVES && mpi->failure == PP_OK; i++) {
        const frame_t *frame = (const frame_t *)pp_mpi_receive_buffer(mpi, i);
        MPI_Status     status;
        int            arrived = 0;
        if (MPI_Request_get_status(mpi->receives[i], &arrived, &status) != MPI_SUCCESS || !arrived)
            return;
        if (pp_mpi_is_obituary(mpi, i, &status))
            pp_mpi_lose(mpi, (int32_t)frame->lost - 1, frame->gave_up);
    }
}

void pp_mpi_look_for_obituaries(pp_mpi_t *mpi)
{
    if (mpi->borrows)
        look_on_given(mpi);
    else
        look_on_own(mpi);
}

/* After a failure only obituaries count. */
static bool listen_once(pp_mpi_t *mpi)
{
    MPI_Status   status;
    int          at = mpi->head, arrived = 0;
    MPI_Request *receive = &mpi->receives[at];
    int code = *receive == MPI_REQUEST_NULL ? MPI_SUCCESS : MPI_Test(receive, &arrived, &status);
    if (code != MPI_SUCCESS) {
        mpi->deaf = !acknowledge(mpi, code);
        return false;
    }
    if (arrived && status.MPI_SOURCE >= 0 && pp_mpi_is_obituary(mpi, at, &status))
        pp_mpi_read_obituary(mpi, status.MPI_SOURCE, (const frame_t *)pp_mpi_receive_buffer(mpi, at));
    if (*receive != MPI_REQUEST_NULL)
        return false;
    mpi->deaf = pp_mpi_post_receive(mpi, at) != MPI_SUCCESS;
    mpi->head = arrived ? (at + 1) % STANDING_RECEIVES : at;
    return arrived;
}

bool pp_mpi_all_told(pp_mpi_t *mpi)
{
    int32_t others = mpi->transport.size - 1 - !mpi->gave_up;
    if (mpi->failure == PP_OK)
        return true;
    if (mpi->borrows) {          /* this rank cannot know which ranks have been told: MPI is given its time */
        look_on_given(mpi);
        return false;
    }
    for (int i = 0; i < STANDING_RECEIVES && !mpi->deaf && listen_once(mpi); i++)
        continue;
    return mpi->deaf || mpi->heard_count >= others;
}
