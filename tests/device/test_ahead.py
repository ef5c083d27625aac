"""Chunks of a large result go to the device while others are reduced.

tests/unit/test_device_ahead.py has the cases that need a round to stand still.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from support.device import Stream

import pypartial as pp

pytestmark = pytest.mark.mpi

CHUNK = 1 << 20  # bytes, at the most; and there are two or more a rank
COUNT = (3 << 20) // 8 + 3  # elements of a vector, whose last chunk is not whole
REFUSED = 800  # CUDA_ERROR_NOT_PERMITTED
ORDER = np.arange(COUNT)


@pytest.fixture(autouse=True)
def _marks_chunks():
    if os.environ.get("PYPARTIAL_TRANSPORT") == "mpi":
        pytest.skip("rounds by messages have no chunks")
    if os.environ.get("PYPARTIAL_NODE_RANKS"):
        pytest.skip("among nodes a chunk of a node is not one of the result")


@pytest.fixture
def cupy(monkeypatch):
    """As much of CuPy as views need."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "support" / "standin"))
    yield importlib.import_module("cupy")
    sys.modules.pop("cupy")


@pytest.fixture
def alone(comm):
    """A context of each rank's own; only its calls move chunks."""
    mine = comm.Split(comm.rank)
    with pp.Context(mine, progress="caller") as ctx:
        yield ctx
    mine.Free()


@pytest.fixture
def copies(stand_in):
    """Return a function that says how many copies were queued since its last call."""
    last = 0

    def since():
        nonlocal last
        calls = (stand_in.fake_calls(name) for name in (b"cuMemcpyAsync", b"cuMemcpy2DAsync"))
        before, last = last, sum(calls)
        return last - before

    since()
    return since


@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
def test_results_are_whole(comm, ctx, array, deliver):
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), deliver=deliver)
    for step in range(5):
        send.put(ORDER + step)
        request.Start()
        request.Wait()
        assert (out.get() == comm.size * (ORDER + step)).all()
        send.settle()
    assert ctx.stats().staged_bytes == 2 * 5 * COUNT * 8
    request.Free()


@pytest.mark.parametrize("in_place", [False, True])
def test_each_chunk_is_copied_when_it_is_finished(alone, array, stream, copies, in_place):
    """One rank alone moves them all.  None goes early to where contributions come from."""
    send = array(COUNT, "i8")
    out = send if in_place else array(COUNT, "i8")
    request = alone.Allreduce_init(None if in_place else send, out)
    counts = []
    for step in range(6):
        send.put(ORDER + step)
        request.Start()
        stream.wait()
        copies()
        request.Wait()
        counts.append(copies())
        assert (out.get() == ORDER + step).all()
        send.settle()
    # The first two pin an entry of the ring each.
    assert counts == [1, 1, *[1 if in_place else -(-COUNT * 8 // CHUNK)] * 4]
    assert alone.stats().staged_bytes == 6 * 2 * COUNT * 8
    request.Free()


def test_no_chunk_goes_early_to_where_a_view_is_read(alone, array, stream, copies, cupy):
    send, out, slow, other = array(COUNT, "i8"), array(COUNT, "i8"), Stream(), Stream()
    request, kept = alone.Allreduce_init(send, out), array(COUNT, "i8")
    for step in range(6):
        send.put(ORDER + step)
        request.Start()
        stream.wait()
        view = request.View(stream=slow)
        slow.wait()  # the ring is not read any more
        slow.hold(True)
        kept.copy_from(view.data.ptr, slow)
        send.put(-ORDER)
        request.Start()
        stream.wait()
        copies()
        request.Wait(stream=other)
        assert copies() == 1  # of the whole, behind what reads the view
        slow.hold(False)
        slow.wait()
        other.wait()
        assert (kept.get() == ORDER + step).all()
        assert (out.get() == -ORDER).all()
    request.Free()
    slow.close()
    other.close()


@pytest.mark.parametrize("counts", [(COUNT - 5, 5), (0, 7, 200_000, 1, COUNT - 200_008)])
def test_several_buffers(comm, ctx, array, counts):
    sends, outs = [array(n, "i8") for n in counts], [array(n, "i8") for n in counts]
    request = ctx.Allreduce_init(sends, outs, policy=pp.Full())
    ends = np.cumsum(counts)[:-1]
    for step in range(3):
        for send, part in zip(sends, np.split(ORDER + step, ends), strict=True):
            send.put(part)
        request.Start()
        request.Wait()
        found = np.concatenate([out.get() for out in outs])
        assert (found == comm.size * (ORDER + step)).all()
    request.Free()


@pytest.mark.sizes(2, 3, 4)
def test_some_ranks_have_their_buffers_on_the_host(comm, ctx, array):
    """Their chunks are those of the others."""
    on_host = comm.rank == 0
    send, out = (np.empty(COUNT, "i8") if on_host else array(COUNT, "i8") for _ in range(2))
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), device_path="staged")
    for step in range(3):
        if on_host:
            send[:] = ORDER + step
        else:
            send.put(ORDER + step)
        request.Start()
        request.Wait()
        assert ((out if on_host else out.get()) == comm.size * (ORDER + step)).all()
    request.Free()


def test_memory_that_the_driver_does_not_pin(alone, array, stream, stand_in, copies):
    send, out = array(COUNT, "i8"), array(COUNT, "i8")
    request = alone.Allreduce_init(send, out)
    for step in range(3):
        send.put(ORDER + step)
        request.Start()
        stream.wait()
        copies()
        stand_in.fake_fail(b"cuMemHostRegister", 0, REFUSED)
        request.Wait()
        stand_in.fake_fail(b"cuMemHostRegister", 1, 0)
        assert copies() == 1
        assert (out.get() == ORDER + step).all()
        send.settle()
    request.Free()
