"""Wrong calls: a clear exception that names the value, on every rank, and no hang.

In collective calls one rank alone is wrong, and all of them must notice. Afterwards the context is
in order: a good handle works.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import pypartial as pp

pytestmark = pytest.mark.mpi


def usable(comm, ctx):
    """A round of a good handle works."""
    out = np.zeros(2, "i8")
    request = ctx.Allreduce_init(np.ones(2, "i8"), out, policy=pp.Full())
    request.Start()
    request.Wait()
    assert out.tolist() == [comm.size] * 2
    request.Free()


def overlapping():
    memory = np.zeros(10)
    return memory[:6], memory[4:]


def frozen():
    array = np.zeros(4)
    array.setflags(write=False)
    return array


class Own(pp.Policy):
    """A policy that asks for what there is not."""

    def __init__(self, *trigger):
        self.__dict__["asks"] = trigger

    def trigger(self, size):
        return self.asks


class Surrogates:
    """Shows itself as what cannot be encoded."""

    def __repr__(self):
        return "<\udc80 and \0 too>"


class Fails(ArithmeticError):
    """An exception that cannot even say what it is about."""

    def __str__(self):
        raise RuntimeError


class Unshowable:
    """Raises when it is looked at."""

    def __repr__(self):
        raise Fails


# Arguments of Allreduce_init that are wrong by themselves, and what the error must say.
WRONG = {
    "dtypes differ": (lambda: (np.zeros(4, "f4"), np.zeros(4, "f8")), {}, "float32.*float64"),
    "counts differ": (lambda: (np.zeros(4), np.zeros(5)), {}, "4 elements.*5"),
    "send not contiguous": (lambda: (np.zeros(8)[::2], np.zeros(4)), {}, r"sendbuf.*\(16,\)"),
    "recv not contiguous": (lambda: (np.zeros(4), np.zeros((4, 4))[:, 0]), {}, r"recvbuf.*\(32,\)"),
    "recv read-only": (lambda: (np.zeros(4), frozen()), {}, "recvbuf.*read-only"),
    "recv read-only in place": (lambda: (MPI.IN_PLACE, frozen()), {}, "recvbuf.*read-only"),
    "recv is bytes": (lambda: ([b"12345678", MPI.DOUBLE],) * 2, {}, "recvbuf.*read-only"),
    "overlap": (overlapping, {}, "sendbuf.*recvbuf.*overlap"),
    "same memory": (None, {}, "IN_PLACE"),
    "not a buffer": (lambda: (17, np.zeros(1)), {}, "17"),
    "no numbers": (lambda: (None, np.array(["a", "b"])), {}, "recvbuf.*(str|<U1)"),
    "objects": (lambda: (None, np.array([None])), {}, "recvbuf.*object"),
    "count too large": (lambda: (None, [np.zeros(4), 5]), {}, "the count is 5.*4 elements"),
    "negative count": (lambda: (None, [np.zeros(4), -1]), {}, "-1"),
    "lists of unequal length": (lambda: ([np.zeros(1)], [np.zeros(1), np.ones(1)]), {}, "1 .*2"),
    "empty list": (lambda: (None, []), {}, "recvbuf.*empty"),
    "types in a list": (lambda: (None, [np.zeros(1, "i4"), np.zeros(1)]), {}, "int32.*float64"),
    "Quorum(P+1)": (None, {"policy": pp.Quorum(MPI.COMM_WORLD.size + 1)}, "Quorum"),
    "no policy": (None, {"policy": "sole"}, "'sole' is not a policy: write one of solo"),
    "no text of a policy": (None, {"policy": b"solo"}, "policy must be .* not b'solo'"),
    "the base of the policies": (None, {"policy": pp.Policy}, r"policy must.*not <class"),
    "a trigger of one's own": (None, {"policy": Own("most", 1)}, "trigger must be one of.*'most'"),
    "a trigger for nobody": (None, {"policy": Own("quorum", 0)}, "k=0 of the policy"),
    "no trigger": (None, {"policy": Own()}, "ValueError: not enough values"),
    "surrogates": (None, {"policy": Surrogates()}, r"policy must.*not <.* and .* too>"),
    "not showable": (None, {"policy": Unshowable()}, "Fails"),
    "negative max_lag": (None, {"max_lag": -1}, "max_lag.*-1"),
    "max_lag beyond the window": (None, {"max_lag": 4}, "max_lag.*4"),
    "max_lag a word": (None, {"max_lag": "none"}, "max_lag.*'none'"),
    "max_lag no number": (None, {"max_lag": None}, "max_lag must be 'auto' or .*None"),
    "deliver": (None, {"deliver": "newest"}, "'newest'"),
    "algorithm": (None, {"algorithm": "magic"}, "'magic'"),
    "average": (None, {"average": "mean"}, "'mean'"),
    "average of integers": (lambda: (None, np.zeros(1, "i4")), {"average": "size"}, "int32"),
    "average of MAX": (None, {"average": "size", "op": MPI.MAX}, "MAX"),
    "operation on type": (None, {"op": MPI.BAND}, "BAND.*float64"),
    "order of complex": (lambda: (None, np.zeros(1, "c8")), {"op": MPI.MAX}, "MAX.*complex64"),
    "unknown operation": (None, {"op": MPI.MAXLOC}, "MAXLOC"),
    "no operation": (None, {"op": "sum"}, "'sum'"),
}


def arguments(name, wrong):
    """Return (send, receive), options, pattern: of the wrong call, or of a good one."""
    buffers, options, pattern = WRONG[name]
    if not wrong:
        return (None, np.zeros(4)), {}, pattern
    if name == "same memory":
        memory = np.zeros(4)
        return (memory, memory), options, pattern
    return (buffers() if buffers else (None, np.zeros(4))), options, pattern


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("who", ["everybody", "one rank"])
@pytest.mark.sizes(1, 2, 5)
def test_wrong_arguments(comm, ctx, name, who):
    bad_rank = comm.size - 1
    mine = who == "everybody" or comm.rank == bad_rank
    (send, receive), options, pattern = arguments(name, mine)
    with pytest.raises(pp.ArgumentError if mine else pp.MismatchError) as caught:
        ctx.Allreduce_init(send, receive, **options)
    text = str(caught.value)
    assert re.search(pattern, text), text
    if not mine:
        assert f"rank {bad_rank}" in text
    assert isinstance(caught.value, ValueError) == mine
    usable(comm, ctx)


# Good options that must be the same on all ranks.
DIFFERENT = {
    "count": (np.zeros(5), {}, "4.*5|5.*4"),
    "type": (np.zeros(4, "f4"), {}, "float32"),
    "type of equal size": (np.zeros(4, "i8"), {}, "int64"),
    "op": (np.zeros(4), {"op": MPI.MAX}, "MAX"),
    "policy": (np.zeros(4), {"policy": pp.Solo()}, "policy"),
    "k of the quorum": (np.zeros(4), {"policy": pp.Quorum(1)}, "policy"),
    "deliver": (np.zeros(4), {"deliver": "latest"}, "deliver"),
    "max_lag": (np.zeros(4), {"max_lag": 2}, "max_lag"),
    "average": (np.zeros(4), {"average": "size"}, "average"),
    "algorithm": (np.zeros(4), {"algorithm": "ring"}, "algorithm"),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("odd_one", [0, -1], ids=["rank 0", "the last rank"])
@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3, 5)
def test_ranks_that_differ(comm, ctx, name, odd_one):
    odd_one %= comm.size
    receive, options, pattern = DIFFERENT[name]
    base = {"policy": pp.Quorum(2)} if name == "k of the quorum" else {}
    if comm.rank != odd_one:
        receive, options = np.zeros(4), base
    with pytest.raises(pp.MismatchError) as caught:
        ctx.Allreduce_init(None, receive, **options)
    text = str(caught.value)
    assert re.search(pattern, text), text
    assert len(set(re.findall(r"rank \d+", text))) == 2, f"names two ranks: {text}"
    usable(comm, ctx)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"seed": -1}, "seed.*-1"),
        ({"seed": 1.5}, "seed.*1.5"),
        ({"window": 0}, "window.*0"),
        ({"progress": "magic"}, "'magic'"),
        ({"transport": "pigeon"}, "transport must be.*'pigeon'"),
        ({"transport": np.zeros(2)}, r"transport must be.*array\(\[0"),
        ({"transport": ["auto"]}, r"transport must be.*\['auto'\]"),
        ({"progress": np.zeros(2)}, r"progress must be.*array\(\[0"),
        ({"transport": Surrogates()}, "transport must be.*<.* and .* too>"),
        ({"stall_warning": "30"}, "stall_warning.*'30'"),
        ({"stall_warning": 1j}, "stall_warning.*1j"),
        ({"stall_warning": 0}, "stall_warning.*0"),
        ({"stall_warning": "soon"}, "stall_warning.*'soon'"),
    ],
    ids=str,
)
@pytest.mark.sizes(1, 2, 3)
def test_wrong_context(comm, options, pattern):
    for everybody in (True, False):
        mine = everybody or comm.rank == 0
        with pytest.raises(pp.ArgumentError if mine else pp.MismatchError, match=pattern):
            pp.Context(comm, **(options if mine else {}))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("options", [{"seed": 5}, {"window": 7}], ids=str)
def test_contexts_that_differ(comm, options):
    with pytest.raises(pp.MismatchError, match=next(iter(options))):
        pp.Context(comm, **(options if comm.rank == comm.size - 1 else {}))


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_contexts_may_differ_in_progress_and_stall_warning(comm):
    progress, stall_warning = ("caller", None) if comm.rank else ("thread", 5)
    with pp.Context(comm, progress=progress, stall_warning=stall_warning) as ctx:
        usable(comm, ctx)


@pytest.mark.parametrize("shape", [-3, (-1,), (2, -1), [0, -5], np.int64(-1)], ids=str)
@pytest.mark.sizes(1)
def test_negative_dimensions_of_alloc(ctx, shape):
    with pytest.raises(pp.ArgumentError, match="negative") as caught:
        ctx.alloc(shape)
    assert repr(shape) in str(caught.value)
    with pytest.raises(ValueError, match="negative"):
        np.zeros(shape)


class Raising:
    """What could be an integer, and raises what it likes."""

    def __index__(self):
        raise RuntimeError("no number today")


OTHER_SHAPES = [2.5, (2.5,), "12", None, ((1, 2), 3), True, np.True_, (True, 2), (1,) * 100]
OTHER_SHAPES += [(0, 1 << 80), (0, 1 << 40, 1 << 40)]


@pytest.mark.parametrize("shape", [1 << 50, 1 << 61, 1 << 80, (1 << 40, 1 << 40)], ids=str)
@pytest.mark.sizes(1, 2)
def test_arrays_larger_than_memory(ctx, shape):
    with pytest.raises(MemoryError, match=f"an array of {8 * np.prod(shape, dtype=object)} bytes"):
        ctx.alloc(shape)
    assert ctx.alloc(3).shape == (3,)


@pytest.mark.parametrize(
    "dtype", [object, "V0", [("a", object)], "S5", "M8[s]", [("a", "f4")], "(2,)f4"], ids=str
)
@pytest.mark.sizes(1)
def test_elements_that_are_no_numbers(ctx, dtype):
    with pytest.raises(pp.ArgumentError, match="is not a type of numbers"):
        ctx.alloc(3, dtype)


@pytest.mark.parametrize("dtype", ["notatype", 7, [("a", "i4"), ("a", "i4")], "i4,(2,2"], ids=str)
@pytest.mark.sizes(1)
def test_elements_of_no_type(ctx, dtype):
    with pytest.raises(pp.ArgumentError, match="dtype must be a type of NumPy, not ") as caught:
        ctx.alloc(3, dtype)
    assert repr(dtype) in str(caught.value)


@pytest.mark.parametrize("wrong", ["policy", "buffers", "groups"])
def test_a_refused_call_keeps_no_buffer(comm, ctx, wrong):
    """Not even until the garbage is collected, which memory of a device does not bring about."""
    send, out = np.zeros(4), np.zeros(3 if wrong == "buffers" else 4)
    alive = weakref.ref(send)
    gc.disable()
    try:
        if wrong == "groups":
            ctx.Preduce_init(send, 3)
        else:
            ctx.Allreduce_init(send, out, policy=3 if wrong == "policy" else pp.Full())
    except pp.Error as error:
        assert isinstance(error, pp.ArgumentError)
    else:
        pytest.fail("it was accepted")
    finally:
        del send, out
        gc.enable()
    assert alive() is None


@pytest.mark.sizes(1)
def test_integers_that_raise(comm, ctx):
    buffer = np.zeros(3)
    for call in (
        lambda: ctx.alloc(Raising()),
        lambda: ctx.alloc((2, Raising())),
        lambda: pp.Quorum(Raising()),
        lambda: pp.Context(comm, seed=Raising()),
        lambda: pp.Context(comm, window=Raising()),
        lambda: ctx.Allreduce_init(None, buffer, max_lag=Raising()),
    ):
        with pytest.raises(pp.ArgumentError, match=r"integer.*RuntimeError: no number today"):
            call()


@pytest.mark.parametrize("shape", OTHER_SHAPES, ids=str)
@pytest.mark.sizes(1)
def test_other_wrong_shapes_of_alloc(ctx, shape):
    with pytest.raises(pp.ArgumentError, match="shape"):
        ctx.alloc(shape)


@pytest.mark.parametrize("shape", [3, 0, (), (0, 4), (2, 3), [4], np.int8(2), range(3)], ids=str)
@pytest.mark.sizes(1)
def test_shapes_of_alloc(ctx, shape):
    array = ctx.alloc(shape, "f4")
    expected = np.zeros(shape, "f4")
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    assert not array.any()
    assert array.__array_interface__["data"][0] % 64 == 0 or not array.size


@pytest.mark.sizes(1)
def test_communicators(comm):
    with pytest.raises(pp.ArgumentError, match="'world'"):
        pp.Context("world")
    with pytest.raises(pp.ArgumentError, match="COMM_NULL"):
        pp.Context(MPI.COMM_NULL)


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_intercommunicator(comm):
    half = comm.Split(comm.rank == 0, comm.rank)
    inter = half.Create_intercomm(0, comm, 0 if comm.rank else 1)
    with pytest.raises(pp.ArgumentError, match="intercommunicator"):
        pp.Context(inter)
    inter.Free()
    half.Free()


# ---- order of calls -----------------------------------------------------------------------------


def test_flush_and_drain_are_for_different_deliveries(comm, ctx):
    each = ctx.Allreduce_init(None, np.zeros(1), deliver="each")
    latest = ctx.Allreduce_init(None, np.zeros(1), deliver="latest")
    with pytest.raises(pp.Error, match="Drain"):
        each.Flush()
    with pytest.raises(pp.Error, match="Flush"):
        latest.Drain()
    each.Free()
    latest.Free()


def test_use_after_free(comm, ctx):
    request = ctx.Allreduce_init(None, np.zeros(1), policy=pp.Full())
    each = ctx.Allreduce_init(None, np.zeros(1), policy=pp.Full(), deliver="each")
    drain = each.Drain()
    for freed in (request, each):
        freed.Free()
        for call in (freed.Start, freed.Wait, freed.Test, freed.View, freed.Free, freed.Flush,
                     freed.Drain, freed.dump, lambda freed=freed: freed.algorithm):  # fmt: skip
            with pytest.raises(pp.Error, match=f"handle {freed.id} was freed"):
                call()
        assert "was freed" in repr(freed)
    with pytest.raises(pp.Error, match="freed"):
        next(drain)


def test_use_of_a_freed_context(comm):
    with pp.Context(comm) as ctx:
        pass
    for call in (ctx.Free, ctx.stats, lambda: ctx.alloc(3), ctx.__enter__,
                 lambda: ctx.Allreduce_init(None, np.zeros(1))):  # fmt: skip
        with pytest.raises(pp.Error, match="the context was freed"):
            call()


def test_context_freed_with_live_handles(comm):
    """Refused on every rank; nothing is lost, and it can be done right afterwards."""
    ctx = pp.Context(comm)
    out = np.zeros(1)
    request = ctx.Allreduce_init(np.ones(1), out, policy=pp.Full())
    with pytest.raises(pp.Error, match="1 live handle"):
        ctx.Free()
    request.Start()
    request.Wait()
    assert out[0] == comm.size
    request.Free()
    ctx.Free()


def test_left_by_an_exception(comm):
    """It waits for nobody: the ranks need not agree. Everything is refused afterwards."""
    kept = []
    with pytest.raises(ZeroDivisionError), pp.Context(comm) as ctx:
        kept.append(ctx.Allreduce_init(None, np.zeros(1), policy=pp.Full()))
        if comm.rank == 0:
            kept[0].Start()
        comm.barrier()
        raise ZeroDivisionError
    for call in (kept[0].Wait, kept[0].Start, kept[0].Free, ctx.Free, ctx.stats):
        with pytest.raises(pp.Error, match=r"abandoned, because .* \(ZeroDivisionError\)$"):
            call()
    comm.barrier()


@pytest.mark.sizes(1, 3)
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_the_first_exception_is_the_one_that_is_seen(comm, transport, kind):
    """With requests outstanding, in blocks inside each other, and with a view and a Drain begun."""
    kept, error = [], kind("first")
    with (
        pytest.raises(kind) as raised,
        pp.Context(comm, transport=transport) as ctx,
        ctx.Allreduce_init(None, np.zeros(9), policy=pp.Full()) as outer,
        ctx.Allreduce_init(None, np.zeros(9), policy=pp.Full(), deliver="each") as inner,
        contextlib.ExitStack() as stack,
    ):
        outer.Start()
        kept.append(outer.View())
        comm.barrier()
        outer.Start()
        inner.Start()
        stack.enter_context(ctx.away())
        kept.append(inner.Drain())
        comm.barrier()  # who is in a call when another one leaves is told
        raise error
    assert raised.value is error
    assert error.__context__ is None
    comm.barrier()


@pytest.mark.sizes(1, 3)
def test_a_program_that_swallowed_an_exception_is_told_which(comm):
    """Its other ranks do not know: it must not leave the context's block as if all were well."""
    with (
        pytest.raises(pp.Error, match=r"handle \d+ \(ValueError: first\)$"),
        pp.Context(comm) as ctx,
    ):
        other = ctx.Allreduce_init(None, np.zeros(1))
        with (
            contextlib.suppress(ValueError),
            ctx.Allreduce_init(None, np.zeros(1), policy=pp.Full()) as request,
        ):
            request.Start()
            comm.barrier()
            raise ValueError("first")
        for call in (other.Start, other.View):
            with pytest.raises(pp.Error, match=r"handle \d+ \(ValueError: first\)$"):
                call()
    comm.barrier()


def test_a_with_block_of_a_request(comm, ctx):
    """Its normal end is a collective Free, so that the context can be freed afterwards."""
    out = np.zeros(1, "i8")
    with ctx.Allreduce_init(np.ones(1, "i8"), out, policy=pp.Full()) as request:
        request.Start()
        request.Wait()
        assert out[0] == comm.size
    with pytest.raises(pp.Error, match=f"{request._name()} was freed"):
        request.Start()
    with ctx.Allreduce_init(np.ones(1, "i8"), out) as request:
        assert request.Free() == 0
    usable(comm, ctx)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("groups", [False, True], ids=["rounds", "groups"])
def test_free_says_how_many_starts_it_discards(comm, transport, groups):
    """Rank 0 has started, and is in Free before any other rank: nobody has left yet.

    By messages a round of Full begins with the first Start, and is no longer pending.
    """
    vector = np.ones(2)
    with pp.Context(comm, transport=transport) as ctx:
        if groups:
            request = ctx.Preduce_init(vector, pp.groups.Controller(comm.size))
        else:
            request = ctx.Allreduce_init(np.ones(2), vector, policy=pp.Full())
        if comm.rank == 0:
            request.Start()
            with pytest.raises(pp.TimeoutError):
                request.Free(timeout=0)
        comm.barrier()
        assert request.Free() == (comm.rank == 0 and (groups or transport != "mpi"))


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_the_end_of_a_block_is_refused_on_one_rank(comm, transport):
    """Its Flush timed out, and comes first: it makes both calls itself, and the context goes on."""
    with pp.Context(comm, transport=transport) as ctx:
        out = np.zeros(1, "i8")
        made = ctx.Allreduce_init(np.ones(1, "i8"), out, policy=pp.Full())
        if comm.rank == 0:
            with pytest.raises(pp.Error, match=r"Flush of handle \d+ timed out"), made as request:
                request.Start()
                request.Wait()
                with pytest.raises(pp.TimeoutError):
                    request.Flush(timeout=0)
                comm.barrier()
            request.Flush()
            assert request.Free() == 0
        else:
            with made as request:
                request.Start()
                request.Wait()
                comm.barrier()
                request.Flush()
        usable(comm, ctx)


@pytest.mark.sizes(3)
@pytest.mark.parametrize("policy", [pp.Solo(), pp.Full()], ids=str)
def test_one_rank_leaves_the_block_of_a_request_by_an_exception(comm, transport, policy):
    """It waits for nobody; the others are told in their calls, and leave theirs so, too."""
    context = pp.Context(comm, transport=transport)
    out = np.zeros(1000)
    began = time.monotonic()
    with (
        pytest.raises((ZeroDivisionError, pp.PeerFailedError)) as raised,
        context.Allreduce_init(np.ones(1000), out, policy=policy) as request,
    ):
        request.Start()
        request.Wait(timeout=60)
        comm.barrier()
        if comm.rank == 1:
            raise ZeroDivisionError
        request.Free(timeout=60)
    assert raised.type is (ZeroDivisionError if comm.rank == 1 else pp.PeerFailedError)
    assert time.monotonic() - began < 30
    block = f"an exception left the with block of {request._name()}"
    for call in (request.Start, request.Wait, context.Free, context.stats):
        with pytest.raises(pp.Error, match=rf"abandoned, because {block} \(.*{raised.typename}"):
            call()
    with pytest.raises(pp.Error):
        request.Free()
    comm.barrier()


@pytest.mark.sizes(1, 3)
def test_forked_child(comm, ctx):
    """Every call raises in the child, none hangs or crashes; the parent goes on."""
    out = np.zeros(1)
    request = ctx.Allreduce_init(np.ones(1), out, policy=pp.Full())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            calls = (request.Start, request.Wait, request.Test, request.Flush, request.Free,
                     ctx.Free, ctx.stats, lambda: ctx.Allreduce_init(None, out),
                     lambda: pp.Context(MPI.COMM_SELF), lambda: pp.Context(comm))  # fmt: skip
            for call in calls:
                try:
                    call()
                except pp.Error as error:
                    assert "fork" in str(error), error
                else:
                    raise AssertionError(f"{call} works in a forked child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    request.Start()
    request.Wait()
    assert out[0] == comm.size
    request.Free()


def test_no_one_shot_allreduce(ctx):
    for name in ("Allreduce", "allreduce", "Iallreduce"):
        with pytest.raises(AttributeError, match="Allreduce_init"):
            getattr(ctx, name)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = ctx.Nothing
