"""Wrong calls of P-Reduce: a clear exception that names the value, on every rank, and no hang.

In collective calls one rank alone is wrong, and all of them must notice. Afterwards the context is
in order: a good handle works.
"""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from mpi4py import MPI
from support.on_device import soon

import pypartial as pp
from pypartial import groups
from pypartial._group_comm import CommGroups

pytestmark = pytest.mark.mpi

SIZE = MPI.COMM_WORLD.size


def whole() -> groups.Table:
    """Each phase is one group of all ranks."""
    return groups.Table([[range(SIZE)]])


def usable(comm, ctx, **options):
    """A group of all ranks averages."""
    model = np.full(2, float(comm.rank))
    request = ctx.Preduce_init(model, whole(), **options)
    request.Start()
    request.Wait()
    assert model == pytest.approx([(comm.size - 1) / 2] * 2)
    request.Free()


# Arguments of Preduce_init that are wrong by themselves, and what the error must say.
WRONG = {
    "no generator": ({"groups": "smart:3"}, "groups must be a generator.*'smart:3'"),
    "the class of a generator": ({"groups": groups.Given}, "groups must be a generator"),
    "integers": ({"buf": np.zeros(4, "i4")}, "int32.*averages floating numbers"),
    "complex numbers": ({"buf": np.zeros(4, "c8")}, "complex64.*averages floating numbers"),
    "bool": ({"buf": np.zeros(4, "?")}, "bool.*averages floating numbers"),
    "not contiguous": ({"buf": np.zeros(8)[::2]}, "buf is not contiguous"),
    "types in a list": ({"buf": [np.zeros(1, "f4"), np.zeros(1)]}, "float32.*float64"),
    "no buffer": ({"buf": 17}, "buf is 17"),
    "overlap": ({"buf": [np.ones(4)] * 2}, r"buf\[0\] and buf\[1\] overlap"),
    "read-only": ({"buf": b"12345678"}, "buf is read-only"),
    "empty list": ({"buf": []}, "buf is an empty list"),
    "alpha of 1": ({"alpha": 1.0}, r"alpha must be .*not 1\.0"),
    "negative alpha": ({"alpha": -0.5}, r"alpha must be .*not -0\.5"),
    "alpha that is no number": ({"alpha": float("nan")}, "alpha must be .*not nan"),
    "a word as alpha": ({"alpha": "half"}, "alpha must be .*not 'half'"),
    "weights": ({"weights": "equal"}, "weights must be one of .*'equal'"),
    "missing": ({"missing": "none"}, "missing must be one of .*'none'"),
    "backend": ({"backend": "magic"}, "backend must be one of .*'magic'"),
    "cache": ({"cache": -1}, r"cache must be in 0\.\.4096, not -1"),
    "timeout": ({"timeout": -1}, "timeout must be 0 or more seconds, not -1"),
    "size of 0": ({"groups": groups.Smart(0)}, r"Smart\(size=0.*size must be at least 2"),
    "rank P in a table": ({"groups": groups.Table([[[0, SIZE]]])}, f"rank {SIZE}.*{SIZE} ranks"),
    "nodes": ({"groups": groups.Static(SIZE + 1, 1)}, f"nodes={SIZE + 1}.*must be {SIZE}"),
    "ranks of a node": ({"groups": groups.Static(per_node=2 * SIZE)}, f"must be {SIZE}"),
}
if SIZE > 1:
    WRONG["size of 1"] = ({"groups": groups.Smart(1)}, r"Smart\(size=1.*size must be at least 2")
    text = f"context's {SIZE} ranks, not {SIZE + 1}"
    WRONG["size above P"] = ({"groups": groups.Random(SIZE + 1)}, text)
if SIZE > 2:
    WRONG["history"] = ({"groups": groups.Controller(2, history=1)}, "history must be at least")


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("who", ["everybody", "one rank"])
@pytest.mark.sizes(1, 2, 5)
def test_wrong_arguments(comm, ctx, name, who):
    bad_rank = comm.size - 1
    mine = who == "everybody" or comm.rank == bad_rank
    wrong, pattern = WRONG[name]
    arguments = {"buf": np.zeros(4), "groups": groups.Given()} | (wrong if mine else {})
    with pytest.raises(pp.ArgumentError if mine else pp.MismatchError) as caught:
        ctx.Preduce_init(**arguments)
    text = str(caught.value)
    assert re.search(pattern, text), text
    if not mine:
        assert f"rank {bad_rank}" in text
    assert isinstance(caught.value, ValueError) == mine
    usable(comm, ctx)


# Good arguments that must be the same on all ranks.
DIFFERENT = {
    "count": ({"buf": np.zeros(5)}, "4.*5|5.*4"),
    "type": ({"buf": np.zeros(4, "f4")}, "float32"),
    "generator": ({"groups": groups.Given()}, r"Given\(\)"),
    "table": ({"groups": groups.Table([[range(SIZE)], []])}, "Table"),
    "groups of a table": ({"groups": groups.Table([[]])}, "Table"),
    "weights": ({"weights": "dynamic"}, "weights"),
    "backend": ({"backend": "schedule"}, "backend"),
    "cache": ({"cache": 3}, "cache"),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("odd_one", [0, -1], ids=["rank 0", "the last rank"])
@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_ranks_that_differ(comm, ctx, name, odd_one):
    arguments = {"buf": np.zeros(4), "groups": whole()}
    more, pattern = DIFFERENT[name]
    if comm.rank == odd_one % comm.size:
        arguments |= more
    with pytest.raises(pp.MismatchError) as caught:
        ctx.Preduce_init(**arguments)
    text = str(caught.value)
    assert re.search(pattern, text), text
    usable(comm, ctx)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (groups.Smart(2), groups.Smart(2, c_thres=5)),
        (groups.Smart(2), groups.Smart(2, unfreeze=False)),
        (groups.Random(2), groups.Random(2, reuse=True)),
        (groups.Controller(2), groups.Controller(2, unfreeze=False)),
        (groups.Random(2), groups.Controller(2)),
    ],
    ids=str,
)
@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_generators_that_differ(comm, ctx, one, other):
    with pytest.raises(pp.MismatchError) as caught:
        ctx.Preduce_init(np.zeros(4), other if comm.rank == comm.size - 1 else one)
    assert repr(one) in str(caught.value) or repr(other) in str(caught.value)
    usable(comm, ctx)


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_a_table_like_that_of_static(comm, ctx):
    """With communicators only Static splits: the ranks would block in different calls of MPI."""
    static = groups.Static(nodes=1, per_node=SIZE)
    ends = [[0, SIZE - 1]] if SIZE > 2 else []
    table = groups.Table([[], [range(SIZE)], ends, [range(SIZE)]])
    with pytest.raises(pp.MismatchError) as caught:
        ctx.Preduce_init(np.zeros(4), table if comm.rank else static, backend="comm")
    assert "Static(" in str(caught.value) and "Table(" in str(caught.value)
    usable(comm, ctx)


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_an_allreduce_on_one_rank(comm, ctx):
    """The ranks make handles of different kinds."""
    with pytest.raises(pp.MismatchError):
        if comm.rank == 0:
            ctx.Allreduce_init(None, np.zeros(4))
        else:
            ctx.Preduce_init(np.zeros(4), whole())
    usable(comm, ctx)


# ---- the life of a request -----------------------------------------------------------------------


@pytest.mark.sizes(1, 2, 3)
def test_wait_before_start_and_start_before_wait(comm, ctx):
    model = np.full(2, float(comm.rank))
    request = ctx.Preduce_init(model, whole())
    for call in (request.Wait, request.Test):
        with pytest.raises(pp.Error, match="nothing was started"):
            call()
    request.Start()
    with pytest.raises(pp.Error, match="not collected"):
        request.Start()
    request.Wait()
    assert model == pytest.approx([(comm.size - 1) / 2] * 2)
    request.Free()


@pytest.mark.sizes(1, 2, 3)
def test_iterations(comm, ctx):
    status = pp.Status()
    request = ctx.Preduce_init(np.zeros(2), whole())
    for iteration, expected in ((None, 0), (None, 1), (5, 5), (None, 6), (7, 7)):
        request.Start(iteration)
        request.Wait(status)
        assert status.iteration == expected
    for wrong in (7, 3, 0):
        with pytest.raises(pp.ArgumentError, match=f"the last one, which was 7, and is {wrong}"):
            request.Start(wrong)
    for wrong in (-1, 1.5, "8", True, 2**64 - 1):
        with pytest.raises(pp.ArgumentError, match="iteration must be"):
            request.Start(wrong)
    request.Start(8)
    request.Wait(status)
    assert status.iteration == 8
    last = 2**64 - 2
    request.Start(iteration=last)
    request.Wait(status)
    assert status.iteration == last
    with pytest.raises(pp.ArgumentError, match=f"the last iteration was {last}, .* the largest"):
        request.Start()
    request.Free()


@pytest.mark.parametrize(
    ("group", "pattern"),
    [
        (None, "group is missing"),
        ([], "at least one rank"),
        ([SIZE], rf"rank {SIZE} is not in 0\.\.{SIZE - 1}"),
        ([-1], "-1 is not a rank"),
        ("0", "must be a list"),
        ([0.5], "must be an integer, not 0.5"),
    ],
    ids=str,
)
@pytest.mark.sizes(1, 3)
def test_groups_that_are_wrong(comm, ctx, group, pattern):
    model = np.full(2, float(comm.rank))
    request = ctx.Preduce_init(model, groups.Given())
    with pytest.raises(pp.ArgumentError, match=pattern):
        request.Start(group=group)
    with pytest.raises(pp.ArgumentError, match="twice"):
        request.Start(group=[comm.rank] * 2)
    if comm.size > 1:
        with pytest.raises(pp.ArgumentError, match=f"must contain this rank, {comm.rank}"):
            request.Start(group=[(comm.rank + 1) % comm.size])
    request.Start(group=range(comm.size))
    request.Wait()
    assert model == pytest.approx([(comm.size - 1) / 2] * 2)
    request.Free()


@pytest.mark.sizes(1, 2)
def test_what_groups_do_not_have(ctx):
    request = ctx.Preduce_init(np.zeros(2), whole())
    for name, instead in (("View", "Wait"), ("More", "Wait"), ("Drain", "Flush")):
        with pytest.raises(pp.Error, match=f"have no {name}.*call {instead}"):
            getattr(request, name)()
    with pytest.raises(AttributeError, match=r"no one-shot Preduce.*ctx\.Preduce_init"):
        ctx.Preduce(np.zeros(2))
    request.Free()
    with pytest.raises(pp.Error, match="was freed"):
        request.Start()


@pytest.mark.sizes(1, 2)
def test_test_with_communicators(comm, ctx):
    request = ctx.Preduce_init(np.zeros(2), whole(), backend="comm")
    assert request.backend == "comm"
    request.Start()
    with pytest.raises(pp.Error, match="backend='comm' has no Test"):
        request.Test()
    for call in (request.Flush, request.Free):
        with pytest.raises(pp.Error, match="the request is outstanding"):
            call()
    request.Wait()
    request.Free()
    usable(comm, ctx, backend="comm")


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_a_flush_and_a_free_that_timed_out_on_communicators(comm, ctx):
    """They are not refused when they are repeated, as for a request that is outstanding."""
    model = np.full(2, float(comm.rank))
    request = ctx.Preduce_init(model, whole(), backend="comm")
    for call in (request.Flush, request.Free):
        if comm.rank == 0:
            with pytest.raises(pp.TimeoutError):
                call(timeout=0)
        comm.Barrier()
        call()
        assert model == pytest.approx([(comm.size - 1) / 2] * 2)


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_an_init_that_timed_out_goes_on_with_the_same_arguments(comm, ctx):
    model = np.full(2, float(comm.rank))
    if comm.rank == 0:
        with pytest.raises(pp.TimeoutError, match="Preduce_init"):
            ctx.Preduce_init(model, whole(), timeout=0)
        with pytest.raises(pp.ArgumentError, match="Preduce_init goes on with the call that timed"):
            ctx.Preduce_init(model, groups.Given())
    comm.Barrier()
    request = ctx.Preduce_init(model, whole())
    request.Start()
    request.Wait()
    assert model == pytest.approx([(comm.size - 1) / 2] * 2)
    request.Free()


def test_a_flush_beside_a_flush_does_nothing(comm, ctx):
    """Another thread is inside: the call is refused before it looks at the model."""
    model = np.full(3, float(comm.rank))
    request = ctx.Preduce_init(model, pp.groups.Given())
    if comm.rank == 0 and comm.size > 1:
        inside = threading.Thread(target=request.Flush)
        inside.start()

        def has_begun():
            with pytest.raises(pp.Error) as caught:
                request.Wait(timeout=0)
            return "inside a collective call" in str(caught.value)

        soon(has_begun)
        model[:] = 100
        with pytest.raises(pp.Error, match="Flush inside a collective call"):
            request.Flush()
        comm.Barrier()
        inside.join()
    else:
        if comm.size > 1:
            comm.Barrier()
        request.Flush()
    np.testing.assert_allclose(model, (comm.size - 1) / 2)
    request.Free()


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_wait_that_was_interrupted_beside_its_group_is_repeated(comm, ctx, monkeypatch, where):
    """MPI averages it, before or after Ctrl-C came; the members are the same."""
    model = np.full(3, float(comm.rank))
    whole = pp.groups.Table([[range(comm.size)]])
    request = ctx.Preduce_init(model, whole, backend="comm")
    run = CommGroups.run

    def interrupted(groups, *which):
        monkeypatch.setattr(CommGroups, "run", run)
        if where == "after":
            run(groups, *which)
        raise KeyboardInterrupt

    if comm.rank == 0:
        monkeypatch.setattr(CommGroups, "run", interrupted)
    request.Start()
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            request.Wait()
    request.Wait()
    np.testing.assert_allclose(model, (comm.size - 1) / 2)
    request.Flush()
    request.Free()
