"""More, away, and what a rank may do after a Wait that timed out."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(2, 3, 4)]


def test_more_gives_the_rounds_that_a_rank_missed(comm, transport):
    """The last rank computes for as long as the window allows; More gives all that it missed."""
    with pp.Context(comm, transport=transport, window=4) as ctx:
        send, out = np.zeros(comm.size, "i8"), np.zeros(comm.size, "i8")
        send[comm.rank] = 1
        request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver="each")
        status, rounds, total = pp.Status(), [], np.zeros(comm.size, "i8")

        def take():
            nonlocal total
            rounds.append(status.round)
            total = total + out

        request.Start()
        request.Wait(status)
        take()
        while request.More(status):
            take()
        comm.barrier()
        if comm.rank == 0:
            for _ in range(3):
                request.Start()
                request.Wait(status)
                take()
        comm.barrier()
        while rounds[-1] < 3:  # rank 0's last one may be complete here a little later
            if request.More(status):
                take()
        while request.More(status):
            take()
        assert request.More(status) is False
        for last in request.Drain():
            status = last
            take()
        assert rounds == list(range(len(rounds)))
        assert total.tolist() == [4] + [1] * (comm.size - 1)
        assert request.Free() == 0


def test_more_is_for_rounds_and_between_requests(comm, ctx):
    each = ctx.Allreduce_init(None, np.zeros(2), policy=pp.Full(), deliver="each")
    other = ctx.Allreduce_init(None, np.zeros(2))
    with pytest.raises(pp.Error, match="More is for deliver='each'"):
        other.More()
    each.Start()
    with pytest.raises(pp.Error, match="More on a request that was not collected"):
        each.More()
    each.Wait()
    assert each.More() is False
    each.Free()
    other.Free()


@pytest.mark.parametrize("policy", [pp.Majority(), pp.Quorum(2)], ids=str)
def test_a_rank_that_is_away_holds_nobody_up(comm, transport, policy):
    """Without any patience: the metric's allreduce of one rank waits for the others' rounds."""
    with pp.Context(comm, transport=transport, patience=None) as ctx:
        send, out = np.ones(5, "i8"), np.zeros(5, "i8")
        request = ctx.Allreduce_init(send, out, policy=policy, max_lag=0)
        total = np.zeros(5, "i8")
        for step in range(30):
            request.Start()
            request.Wait(timeout=60)
            total += out
            if step % 10 == 9:
                with ctx.away():
                    assert comm.allreduce(1) == comm.size
        request.Flush()
        total += out
        assert total.tolist() == [30 * comm.size] * 5
        request.Free()


def test_nothing_of_the_context_works_while_a_rank_is_away(comm, ctx):
    request = ctx.Allreduce_init(None, np.zeros(2))
    raised = []

    def elsewhere():
        for call in (request.Start, request.Wait, request.Flush, ctx.away().__enter__):
            try:
                call()
            except pp.Error as error:
                raised.append(str(error))

    with pytest.raises(KeyError), ctx.away():
        for call in (request.Start, request.Wait, request.Flush, request.Free, ctx.Free):
            with pytest.raises(pp.Error, match="away"):
                call()
        with pytest.raises(pp.Error, match="away"):
            ctx.Allreduce_init(None, np.zeros(2))
        with pytest.raises(pp.Error, match="away"), ctx.away():
            pass
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        raise KeyError
    assert ["away" in text for text in raised] == [True] * 4
    request.Start()
    request.Wait(timeout=60)
    request.Free()


def test_away_needs_a_thread(comm):
    """Refused before anything is communicated; the context goes on."""
    with pp.Context(comm, progress="caller") as ctx:
        with pytest.raises(pp.Error, match=r"away.* is not possible with progress='caller'"):
            ctx.away()
        assert comm.allreduce(1) == comm.size
        request = ctx.Allreduce_init(None, np.zeros(2), policy=pp.Full())
        request.Start()
        request.Wait(timeout=60)


@pytest.mark.parametrize("warnings_are", ["errors", "warnings"])
@pytest.mark.parametrize("kind", ["rounds", "groups"])
def test_the_end_of_a_block_frees_what_is_alive(comm, transport, kind, warnings_are, caplog):
    """In the order of making; what is discarded is told, and leaves no rank behind."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error" if warnings_are == "errors" else "always")
        with pp.Context(comm, transport=transport) as ctx:
            requests = [
                ctx.Allreduce_init(np.ones(2), np.zeros(2), policy=pp.Solo())
                if kind == "rounds"
                else ctx.Preduce_init(np.zeros(2), pp.groups.Table([[range(comm.size)]]))
                for _ in range(3)
            ]
            requests[1].Free()
            if comm.rank == 1 or kind == "groups":
                requests[2].Start()
                requests[2].Wait()
            comm.Barrier()
            if comm.rank == 0 and kind == "rounds":  # late: it is in no round
                requests[2].Start()
    texts = [str(one.message) for one in seen] + [record.message for record in caplog.records]
    told = [text for text in texts if "discarded Starts of rank 0" in text and "(1)" in text]
    assert len(told) == (comm.rank == 0 and kind == "rounds"), texts
    for request in requests:
        with pytest.raises(pp.Error, match="freed"):
            request.Start()


def test_entering_and_leaving_wait_for_nobody(comm, ctx):
    """One rank after the other is away, and has come back before the next goes."""
    for rank in range(comm.size):
        if comm.rank == rank:
            with ctx.away():
                pass
        comm.barrier()
    request = ctx.Allreduce_init(None, np.zeros(1), policy=pp.Full())
    request.Start()
    request.Wait(timeout=60)
    request.Free()


@pytest.mark.parametrize("buffers", ["numpy", "library"])
@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
def test_a_program_goes_on_after_a_timeout(comm, transport, deliver, buffers):
    """Starts add to what is pending, and the request stays as it is: nothing is lost."""
    with pp.Context(comm, transport=transport) as ctx:
        make = ctx.alloc if buffers == "library" else np.zeros
        send, out = make(3, "i8"), make(3, "i8")
        send[:] = 1
        request = ctx.Allreduce_init(send, out, policy=pp.Full(), deliver=deliver)
        status = pp.Status()
        if comm.rank == 0:
            for tries in range(3):
                send[:] = 10**tries
                request.Start()
                with pytest.raises(pp.TimeoutError):
                    request.Wait(timeout=0.001)
            send[:] = -1  # it is the application's
            comm.barrier()
        else:
            comm.barrier()
            request.Start()
        request.Wait(status, timeout=60)
        assert status.round == 0
        total, contributions = out.copy(), status.contributions
        if deliver == "each":
            for status in request.Drain():
                total += out
                contributions += status.contributions
        else:
            request.Flush(status)
            total += out
            contributions += status.contributions
        assert total.tolist() == [111 + comm.size - 1] * 3
        assert contributions == comm.size + 2
        request.Free()


def test_a_start_without_a_timeout_still_needs_its_wait(comm, ctx):
    request = ctx.Allreduce_init(None, np.zeros(2), policy=pp.Full())
    request.Start()
    with pytest.raises(pp.Error, match="not collected"):
        request.Start()
    request.Wait(timeout=60)
    request.Free()


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("call", ["Wait", "Test", "View", "More"])
def test_results_of_a_flush_that_timed_out_are_its_own(comm, transport, call):
    """Whatever has come meanwhile is given when it is repeated, and by nothing else."""
    send, out = np.zeros(comm.size, "i8"), np.zeros(comm.size, "i8")
    send[comm.rank] = 1
    deliver = "each" if call == "More" else "sum"
    with pp.Context(comm, seed=7, transport=transport, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver=deliver)
        total, starts = np.zeros_like(out), 0

        def flush(timeout=None):
            if deliver == "sum":
                request.Flush(timeout=timeout)
                total[:] += out
            else:
                for _ in request.Drain(timeout=timeout):
                    total[:] += out

        if comm.rank == 0:
            with pytest.raises(pp.TimeoutError):
                flush(timeout=0)
        comm.Barrier()
        for _ in range(3 if comm.rank == 1 else 0):
            request.Start()
            request.Wait()
            total += out
            starts += 1
        comm.Barrier()
        if comm.rank == 0:
            with pytest.raises(pp.Error, match=r"inside a collective call .* still in progress"):
                getattr(request, call)()
        flush()
        assert (total == comm.allgather(starts)).all()
        request.Free()


@pytest.mark.parametrize(("window", "rounds"), [(4, 8), (8, 7)])
@pytest.mark.sizes(2)
def test_a_result_that_was_not_collected_keeps_no_round_up(comm, window, rounds):
    """The rank was away meanwhile; then it holds rounds up for its patience only."""
    send, out = np.zeros(2, "i8"), np.zeros(2, "i8")
    send[comm.rank] = 1
    with pp.Context(comm, seed=7, window=window, patience=0.1) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver="sum")
        total, starts = np.zeros_like(out), 0

        def take_part():
            nonlocal starts
            request.Start()
            request.Wait(timeout=30)
            total[:] += out
            starts += 1

        if comm.rank == 1:
            request.Start()
            starts += 1
            comm.Barrier()
            with ctx.away():
                comm.Barrier()
            comm.Barrier()
            request.Wait()
            total += out
        else:
            comm.Barrier()
            for _ in range(rounds):
                take_part()
            comm.Barrier()
            for _ in range(3 * window):
                take_part()
            comm.Barrier()
            with ctx.away():
                pass
        request.Flush()
        total += out
        assert (total == comm.allgather(starts)).all()
        request.Free()


@pytest.mark.sizes(2)
def test_rounds_while_a_rank_is_away_count_as_given(comm, transport):
    """Also if it has not looked at them before it came back."""
    send, out, status = np.ones(2), np.zeros(2), pp.Status()
    with pp.Context(comm, seed=7, transport=transport, patience=None) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Solo(), deliver="sum")
        for _ in range(10):
            if comm.rank == 0:
                comm.Barrier()
                for _ in range(3):
                    request.Start()
                    request.Wait()
                comm.Barrier()
                with ctx.away():
                    pass
            else:
                with ctx.away():
                    comm.Barrier()
                    comm.Barrier()
                request.Start()
                request.Wait(status)
                assert status.missed == 0
        request.Flush()
        request.Free()
