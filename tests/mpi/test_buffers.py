"""What may be passed as a buffer, seen from the result."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from zlib import crc32

import numpy as np
import pytest
from mpi4py import MPI

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3)]


def test_list_of_buffers(comm, ctx):
    sends = [np.full(n, comm.rank + n, "i4") for n in (3, 0, 1, 1000)]
    outs = [np.zeros_like(send) for send in sends]
    request = ctx.Allreduce_init(sends, outs, policy=pp.Full())
    assert request.count == 1004
    for _ in range(2):
        request.Start()
        for send in sends:
            send += 1  # free to be overwritten
        request.Wait()
    for n, out in zip((3, 0, 1, 1000), outs, strict=True):
        assert out.tolist() == [sum(rank + n + 1 for rank in range(comm.size))] * n
    request.Free()


# Inline, as bulk, and copied with the lock released.
COUNTS = [4, 5_000, 100_000]


@pytest.mark.parametrize("count", COUNTS)
def test_in_place_reads_at_start(comm, ctx, count):
    out = np.full(count, 1, "i8")
    request = ctx.Allreduce_init(MPI.IN_PLACE, out, policy=pp.Full())
    for _ in range(3):
        request.Start()
        out[:] = 777  # free to be overwritten
        request.Wait()
    assert (out == comm.size**3).all()
    request.Free()


@pytest.mark.parametrize("count", COUNTS)
def test_buffers_are_used_when_it_says_so(comm, ctx, count):
    """`sendbuf` is read in Start only, `recvbuf` written in Wait only, and never read."""
    send, out = np.ones(count), np.full(count, -1.0)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    request.Start()
    send[:] = 1000
    assert (out == -1).all()
    out[:] = 2000
    request.Wait()
    assert (out == comm.size).all()
    out[:] = -2
    comm.barrier()
    assert (out == -2).all()
    request.Free()


# Of a round in shared memory: one is moved by the rank that has claimed it, the others in chunks.
LARGE = [(3_000, 1, 0, 5_001), (70_001, 0, 1, 200_003), (1 << 20,)]


@pytest.mark.parametrize("counts", LARGE)
@pytest.mark.parametrize("dtype", ["i4", "f2", "f8"])
@pytest.mark.parametrize("policy", [pp.Full(), pp.Solo(), pp.Majority()])
def test_large_results(comm, ctx, counts, dtype, policy):
    """Whichever rank reduces a part of it, each gets every element, of its own request's round."""
    sends = [np.zeros(n, dtype) for n in counts]
    outs = [np.zeros(n, dtype) for n in counts]
    patterns = [(np.arange(n) % 7).astype(dtype) for n in counts]
    request = ctx.Allreduce_init(sends, outs, policy=policy, deliver="latest")
    status = pp.Status()
    rounds = {}
    for step in range(12):
        for send, pattern in zip(sends, patterns, strict=True):
            send[:] = pattern + (step + comm.rank)
        request.Start()
        request.Wait(status)
        rounds[status.round] = [crc32(out) for out in outs]
        if policy == pp.Full():
            ranks = comm.size * step + sum(range(comm.size))
            for out, pattern in zip(outs, patterns, strict=True):
                assert np.array_equal(out, comm.size * pattern + ranks)
    request.Flush()
    # The same bits everywhere.
    for other in comm.allgather(rounds):
        for at in rounds.keys() & other.keys():
            assert other[at] == rounds[at]
    request.Free()


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("deliver", ["latest", "each"])
def test_receive_buffers_are_the_applications_between_waits(comm, ctx, deliver):
    """What a Wait that timed out had put into them does not count."""
    count = 1 << 20
    send, out = np.zeros(count, "i8"), np.zeros(count, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), deliver=deliver)
    for step in range(30):
        send[:] = step
        # No round is complete before one rank starts, when all others have timed out.
        if step % comm.size == comm.rank:
            comm.barrier()
            request.Start()
        else:
            request.Start()
            with pytest.raises(pp.TimeoutError):
                request.Wait(timeout=0)
            comm.barrier()
        while True:
            try:
                request.Wait(timeout=1e-4 * (1 + step % 4))
                break
            except pp.TimeoutError:  # maybe, in the middle of the round
                out[:] = -1
        assert (out == comm.size * step).all()
    request.Free()


@pytest.mark.parametrize("count", COUNTS)
def test_the_last_result_is_read_while_the_next_round_runs(comm, ctx, count):
    send, out = np.ones(count, "i8"), np.zeros(count, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), deliver="sum")
    replica = np.zeros(count, "i8")
    request.Start()
    request.Wait()
    for _ in range(5):
        request.Start()
        replica += out
        request.Wait()
    replica += out
    assert (replica == 6 * comm.size).all()
    request.Flush()
    request.Free()


@pytest.mark.parametrize("count", COUNTS)
def test_handles_share_a_receive_buffer(comm, ctx, count):
    out = np.zeros(count, "i8")
    requests = [
        ctx.Allreduce_init(np.full(count, value, "i8"), out, policy=pp.Full()) for value in (1, 100)
    ]
    for _ in range(3):
        pp.Startall(requests)
        for value, request in zip((1, 100), requests, strict=True):
            request.Wait()
            assert (out == value * comm.size).all()
    for request in requests:
        request.Free()


def test_buffers_live_as_long_as_the_request(comm, ctx):
    out = np.zeros(1 << 16)
    request = ctx.Allreduce_init(np.ones(1 << 16), out, policy=pp.Full())
    garbage = [np.full(1 << 16, 7.0) for _ in range(20)]
    request.Start()
    request.Wait()
    assert (out == comm.size).all()
    del garbage
    request.Free()


@pytest.mark.parametrize("end", ["abandon", "free"])
@pytest.mark.sizes(1)
def test_buffers_stay_until_no_thread_can_be_inside_a_call(comm, end):
    """With the context other threads may be inside; with a request none is."""
    send, out = np.ones(3), np.zeros(3)
    kept = [weakref.ref(send), weakref.ref(out)]
    with suppress(ZeroDivisionError), pp.Context(comm) as ctx:
        request = ctx.Allreduce_init(send, out, policy=pp.Full())
        del send, out
        if end == "abandon":
            raise ZeroDivisionError
        request.Free()
    gc.collect()
    assert [ref() is not None for ref in kept] == [end == "abandon"] * 2
    with pytest.raises(pp.Error):
        request.Start()
    del request
    gc.collect()
    assert [ref() for ref in kept] == [None, None]
