"""`Context.comm`: the caller's communicator, whose blocking collective calls step aside."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import pypartial as pp

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(2, 3, 4)]

STEPS = 30  # a random draw has named every rank by then


class Own(MPI.Intracomm):
    """A class of the application's own."""

    def __new__(cls, comm=None, name=""):
        return super().__new__(cls, comm)

    def __init__(self, comm, name):
        self.name_given = name

    def twice(self, value):
        return 2 * self.allreduce(value)


KINDS = {
    "Intracomm": lambda comm: comm.Dup(),
    "Cartcomm": lambda comm: comm.Create_cart([comm.size], [True]),
    "Graphcomm": lambda comm: comm.Create_graph([1] * comm.size, [0] * comm.size),
    "Distgraphcomm": lambda comm: comm.Create_dist_graph_adjacent([comm.rank], [comm.rank]),
    "Own": lambda comm: Own(comm.Dup(), "mine"),
}


# ---- what it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_callers_communicator(comm, kind):
    given = KINDS[kind](comm)
    with pp.Context(given) as ctx:
        seen = ctx.comm
        assert isinstance(seen, type(given))
        assert seen == given and given == seen
        assert (seen.handle, seen.py2f(), seen.name) == (given.handle, given.py2f(), given.name)
        assert seen.Get_topology() == given.Get_topology()
        assert inspect.signature(seen.Allreduce) == inspect.signature(given.Allreduce)
        assert seen.Allreduce.__doc__ == given.Allreduce.__doc__
        with pp.Context(seen) as inner:
            assert inner.comm == given and type(inner.comm) is type(seen)
        made = [seen.Dup(), seen.Clone(), seen.Dup_with_info(MPI.INFO_NULL), seen.Split(comm.rank)]
        made += [seen.Create(seen.Get_group()), seen.Create_group(seen.Get_group())]
        copy, copied = seen.Idup()
        copied.Wait()
        for other in [*made, copy]:
            assert "pypartial" not in type(other).__module__
            other.Free()
        with pytest.raises(ValueError, match="cannot serialize"):  # as without a context
            pickle.dumps(seen)
        if kind == "Own":
            assert (seen.name_given, seen.twice(1)) == ("mine", 2 * comm.size)
    given.Barrier()  # it belongs to the caller still
    given.Free()


def test_it_can_be_pickled_where_the_callers_can(ctx):
    again = pickle.loads(pickle.dumps(ctx.comm))
    assert again == MPI.COMM_WORLD and type(again) is type(ctx.comm)


def test_it_keeps_no_context(comm):
    ctx = pp.Context(comm)
    seen, kept = ctx.comm, weakref.ref(ctx)
    ctx.Free()
    del ctx
    assert kept() is None or gc.collect() is None
    assert kept() is None
    assert seen.allreduce(1) == comm.size  # there is nothing to leave


# ---- what it does --------------------------------------------------------------------------------


def vectors(comm):
    return np.full(comm.size, 1.0), np.zeros(comm.size)


def ones(comm):
    return [1] * comm.size


CALLS = {
    "Barrier": lambda c: c.Barrier(),
    "barrier": lambda c: c.barrier(),
    "Bcast": lambda c: c.Bcast(np.ones(1)),
    "bcast": lambda c: c.bcast(1),
    "Gather": lambda c: c.Gather(np.ones(1), vectors(c)[1]),
    "Gatherv": lambda c: c.Gatherv(np.ones(1), [vectors(c)[1], ones(c)]),
    "gather": lambda c: c.gather(1),
    "Scatter": lambda c: c.Scatter(vectors(c)[0], np.ones(1)),
    "Scatterv": lambda c: c.Scatterv([vectors(c)[0], ones(c)], np.ones(1)),
    "scatter": lambda c: c.scatter(ones(c)),
    "Allgather": lambda c: c.Allgather(np.ones(1), vectors(c)[1]),
    "Allgatherv": lambda c: c.Allgatherv(np.ones(1), [vectors(c)[1], ones(c)]),
    "allgather": lambda c: c.allgather(1),
    "Alltoall": lambda c: c.Alltoall(*vectors(c)),
    "Alltoallv": lambda c: c.Alltoallv(*([one, ones(c)] for one in vectors(c))),
    "alltoall": lambda c: c.alltoall(ones(c)),
    "Reduce": lambda c: c.Reduce(*vectors(c)),
    "reduce": lambda c: c.reduce(1),
    "Allreduce": lambda c: c.Allreduce(*vectors(c)),
    "allreduce": lambda c: c.allreduce(1),
    "Reduce_scatter": lambda c: c.Reduce_scatter(vectors(c)[0], np.ones(1), ones(c)),
    "Reduce_scatter_block": lambda c: c.Reduce_scatter_block(vectors(c)[0], np.ones(1)),
    "Scan": lambda c: c.Scan(*vectors(c)),
    "scan": lambda c: c.scan(1),
    "Exscan": lambda c: c.Exscan(*vectors(c)),
    "exscan": lambda c: c.exscan(1),
    "Split": lambda c: c.Split(0).Free(),
    "Dup": lambda c: c.Dup().Free(),
    "Create": lambda c: c.Create(c.Get_group()).Free(),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_blocking_collective_call_steps_aside(comm, monkeypatch, name):
    """Once each, and has ended when it returns; also by an exception."""
    told = []
    native = pp._native.load()

    class Lib:
        pp_aside_begin = staticmethod(lambda: told.append("begin"))
        pp_aside_end = staticmethod(lambda: told.append("end"))

    with pp.Context(comm) as ctx:
        fake = type("Fake", (), {"lib": Lib, "ffi": native.ffi})
        monkeypatch.setattr(pp._aside._native, "load", lambda: fake)
        CALLS[name](ctx.comm)
        assert told == ["begin", "end"]
        for call in (ctx.comm.Ibarrier, lambda: ctx.comm.Isend(b"", MPI.PROC_NULL)):
            call().Wait()
        ctx.comm.Sendrecv(b"", MPI.PROC_NULL, recvbuf=bytearray(), source=MPI.PROC_NULL)
        with pytest.raises(MPI.Exception):
            ctx.comm.Bcast(np.ones(1), root=comm.size)
        assert told == ["begin", "end"] * 2
        monkeypatch.undo()


@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
@pytest.mark.parametrize("is_drawn", [True, False], ids=["majority", "quorum"])
def test_rounds_go_on_without_a_rank_inside(comm, transport, is_drawn, deliver):
    """Without any patience: one rank is in the call while the others make all their rounds."""
    policy = pp.Majority() if is_drawn else pp.Quorum(comm.size - 1)
    with pp.Context(comm, transport=transport, patience=None) as ctx:
        send, out = np.ones(3, "i8"), np.zeros(3, "i8")
        request = ctx.Allreduce_init(send, out, policy=policy, deliver=deliver, max_lag=0)
        if comm.rank > 0:
            for _ in range(STEPS):
                request.Start()
                request.Wait(timeout=60)
        assert ctx.comm.allreduce(1) == comm.size
        for _ in range(STEPS):
            request.Start()
            request.Wait(timeout=60)
            assert ctx.comm.allreduce(1) == comm.size
        request.Free()


def test_threads_and_contexts_go_on_beside_it(comm, transport):
    """A thread sits in the call of one context; another makes the rounds of both, and a flush."""
    with (
        pp.Context(comm, transport=transport, patience=None) as ctx,
        pp.Context(comm, transport=transport, patience=None) as other,
    ):
        out = np.zeros(3, "i8")
        requests = [
            one.Allreduce_init(np.ones(3, "i8"), out, policy=policy)
            for one, policy in ((ctx, pp.Full()), (other, pp.Majority()))
        ]
        thread = threading.Thread(target=ctx.comm.barrier)
        if comm.rank > 0:
            thread.start()
        total = np.zeros(3, "i8")
        for _ in range(STEPS):
            for request in requests:
                request.Start()
                request.Wait(timeout=60)
            total += out
        requests[1].Flush()
        assert (total + out).tolist() == [STEPS * comm.size] * 3
        if comm.rank == 0:
            ctx.comm.barrier()
        else:
            thread.join()
        for request in requests:
            assert request.Free() == 0


def test_a_context_that_was_given_up_is_passed_over(comm):
    with pytest.raises(KeyError), pp.Context(comm, patience=None) as ctx:
        raise KeyError
    assert ctx.comm.allreduce(1) == comm.size


def test_inside_away_and_with_progress_by_the_caller_it_is_plain(comm):
    with pp.Context(comm, patience=None) as ctx, ctx.away():
        assert ctx.comm.allreduce(1) == comm.size
    with pp.Context(comm, progress="caller") as ctx:
        request = ctx.Allreduce_init(None, np.ones(1), policy=pp.Full())
        for _ in range(3):
            request.Start()
            request.Wait(timeout=60)
            assert ctx.comm.allreduce(1) == comm.size
        request.Free()
