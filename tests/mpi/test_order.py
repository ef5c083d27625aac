"""Ranks that are in different collective calls at the same place: told so, on every rank."""

from __future__ import annotations

import os

import numpy as np
import pytest

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(2, 3, 5)]


def once(test):
    """Mark what takes long: a rank waits for 2 s before it asks whether others are elsewhere."""
    parted = os.environ.get("PYPARTIAL_TRANSPORT") == "mpi"
    parted = parted or bool(os.environ.get("PYPARTIAL_NODE_RANKS"))
    reason = "such calls are MPI's, whatever rounds are made of: tested with all ranks on one node"
    return pytest.mark.sizes(3)(pytest.mark.skipif(parted, reason=reason)(test))


ORDER = "collective calls must be in the same order on all ranks"


@pytest.fixture
def lost(comm):
    """A context that the test spoils: it is given up like one that an exception leaves."""

    class ByTheTest(Exception):
        pass

    with pytest.raises(ByTheTest), pp.Context(comm) as ctx:
        yield ctx
        comm.barrier()  # nobody gives it up before everybody has seen the error
        raise ByTheTest


def two_handles(ctx):
    return [ctx.Allreduce_init(np.ones(4), np.zeros(4), policy=pp.Full()) for _ in range(2)]


@once
def test_a_live_handle_on_one_rank(comm, lost):
    first, second = two_handles(lost)
    second.Free()
    forgets = comm.rank == comm.size - 1
    with pytest.raises(pp.MismatchError, match=f"Free of the context.*{ORDER}"):
        if not forgets:
            first.Free()
        lost.Free()


@once
def test_flush_meets_init(comm, lost):
    first, _ = two_handles(lost)
    with pytest.raises(pp.MismatchError, match=ORDER):
        if comm.rank == 0:
            two_handles(lost)
        else:
            first.Flush()


@pytest.mark.sizes(2, 3)
def test_a_block_that_one_rank_makes_alone(comm, lost):
    """The others flush meanwhile, and it waits for a round that they do not join any more."""
    request = lost.Allreduce_init(np.ones(4), np.zeros(4))
    comm.Barrier()  # a rank that is late in that call would be told there
    last = comm.size - 1
    blocks = rf"rank {last} has made a block `with ctx.away\(\):` in its place"
    with pytest.raises(pp.MismatchError, match=rf"is in Flush of handle 1, and {blocks}: {ORDER}"):
        if comm.rank != last:
            request.Flush()
        with lost.away():
            pass
        while True:
            request.Start()
            request.Wait()


@pytest.mark.parametrize("call", ["Flush", "Free"])
@pytest.mark.parametrize("kind", ["rounds", "random", "table"])
def test_one_block_more_on_one_rank(comm, lost, kind, call):
    """All ranks are in the same call after it; but it is another one of each context."""
    if kind == "rounds":
        request = lost.Allreduce_init(np.ones(4), np.zeros(4))
    else:
        groups = pp.groups.Random(2) if kind == "random" else pp.groups.Table([[range(comm.size)]])
        request = lost.Preduce_init(np.ones(4), groups=groups)
    comm.Barrier()  # a rank that is late in that call would be told there
    with pytest.raises(pp.MismatchError, match=rf"`with ctx.away\(\):`.*{ORDER}"):
        for _ in range(1 + (comm.rank == comm.size - 1)):
            with lost.away():  # others may be in the call already, and see it
                pass
        getattr(request, call)()


def test_handles_after_a_mismatch(comm, ctx):
    """A call that failed on all ranks leaves them alike: the next handle is the same everywhere."""
    with pytest.raises(pp.MismatchError, match="rank 0 has Free of the context, rank 1 has 3 el"):
        if comm.rank == 0:
            ctx.Free()
        else:
            ctx.Allreduce_init(np.ones(3), np.zeros(3))
    out = np.zeros(2)
    request = ctx.Allreduce_init(np.ones(2), out, policy=pp.Full())
    assert len(set(comm.allgather(request.id))) == 1
    request.Start()
    request.Wait()
    assert (out == comm.size).all()
    request.Free()
