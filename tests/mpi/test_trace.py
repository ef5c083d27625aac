"""Traces of real ranks: what is in the files, and folders in which none can be."""

from __future__ import annotations

import os
import random
import resource
import threading
import time
import warnings

import numpy as np
import pytest
from mpi4py import MPI
from support.ranks import patient_ctx  # noqa: F401  # the fixture `ctx`
from support.traces import EXTERNAL, LATE, TraceFile

import pypartial as pp
from pypartial import _sight
from pypartial.report import CAUSES

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3, 5)]
several = pytest.mark.mpi(min_size=2)

EVENTS = 20_000  # a file of 1 MB


@pytest.fixture
def folder(comm, tmp_path):
    """A folder that all ranks have, and that is not there yet."""
    return comm.bcast(tmp_path / "trace")


def one_request(ctx, policy="majority"):
    return ctx.Allreduce_init(np.ones(3), np.zeros(3), policy=policy)


def steps(request, number):
    """Make some steps; return what the statuses said."""
    found, status = [], pp.Status()
    for _ in range(number):
        request.Start()
        request.Wait(status)
        found.append(as_given(status))
    return found


def as_given(status):
    """A status of a round as an event has it, but for whether it was late."""
    return (
        *(status.round, status.active, status.contributions, status.staleness),
        -1 if status.initiator is None else status.initiator,
        CAUSES.index(status.cause.value) + 1,
        status.activation == "external",
    )


def given_of(events):
    names = ("number", "a", "b", "c", "d", "cause")
    return [(*(int(e[n]) for n in names), bool(e["flags"] & EXTERNAL)) for e in events]


def goes_on(ctx, folder):
    """After a refusal the context is as before, and can be traced elsewhere."""
    request = one_request(ctx)
    steps(request, 3)
    ctx.trace(folder, events=EVENTS)
    told = steps(request, 3)
    request.Flush()
    request.Free()
    assert given_of(TraceFile(folder, ctx.rank).of("GIVEN"))[:3] == told


# ---- what is in a file --------------------------------------------------------------------------


def test_results_are_what_statuses_said(comm, folder, ctx):
    draws, status = random.Random(comm.rank), pp.Status()
    ctx.trace(folder, events=EVENTS)
    options = [{"policy": "solo"}, {"policy": "majority"}, {"policy": "full", "deliver": "each"}]
    requests = [ctx.Allreduce_init(np.ones(3), np.zeros(3), **each) for each in options]
    told, missing = [[] for _ in options], [[] for _ in options]
    for _ in range(60):
        for index, request in enumerate(requests):
            if draws.random() < 0.1:
                time.sleep(1e-3)
            request.Start()
            if draws.random() < 0.2:
                while not request.Test(status):
                    time.sleep(0)
            else:
                request.Wait(status)
            told[index].append(as_given(status))
            missing[index].append(not status.included)
    for index, request in enumerate(requests[:2]):
        request.Flush(status)
        told[index].append(as_given(status))
    told[2] += [as_given(each) for each in requests[2].Drain()]
    file = TraceFile(folder, comm.rank)
    assert file.head["count"] <= EVENTS
    handles = list(dict.fromkeys(file.of("START")["handle"]))
    assert len(handles) == len(requests)
    for index, handle in enumerate(handles):
        given = file.of("GIVEN")[file.of("GIVEN")["handle"] == handle]
        assert given_of(given) == told[index]
        # What was under way at the Start is not late, and does not include it.
        assert all(missing[index][i] for i in np.flatnonzero(given["flags"][:60] & LATE))
    assert list(file.of("START")["number"]) == list(range(1, 181))


def test_results_of_groups_gossip_and_queues(comm, folder, ctx):
    graph = pp.topology.ring() if comm.size > 1 else pp.topology.complete()
    requests = [
        ctx.Preduce_init(np.ones(3), groups=pp.groups.Controller(min(2, comm.size))),
        ctx.Gossip_init(np.ones(3), pp.topology.complete()),
        ctx.Queue_init(np.ones(3), graph, staleness=2),
    ]
    ctx.trace(folder, events=EVENTS)
    told, status = [], pp.Status()
    for _ in range(30):
        for request in requests:
            request.Start()
            request.Wait(status)
            if request is requests[2]:
                told.append((status.iteration, status.received, status.staleness))
            else:
                stale = status.staleness if request is requests[1] else 0
                told.append((status.round, len(status.group), stale))
    given = TraceFile(folder, comm.rank).of("GIVEN")
    assert [tuple(map(int, event)) for event in given[["number", "a", "c"]]] == told
    assert set(given["cause"]) == {0} and set(given["d"]) == {-1}
    for request in requests:
        request.Flush()


def test_events_are_in_order_and_in_pairs(comm, folder, ctx):
    requests = [one_request(ctx), one_request(ctx, "full")]
    ctx.trace(folder, events=EVENTS)
    for _ in range(30):
        for request in requests:
            request.Start()
        for request in requests:
            request.Wait()
    with ctx.away():
        time.sleep(1e-3)
    for request in requests:
        request.Flush()
    file = TraceFile(folder, comm.rank)
    assert (np.diff(file.events["ns"].astype(np.int64)) >= -1_000_000).all()
    waits, pending = file.of("START", "WAIT", "GIVEN"), {}
    for event in waits[waits["handle"] > 0]:
        pair = pending.get(int(event["handle"]), 3), int(event["kind"])
        # A Wait may find its result; a Flush gives one that nobody started.
        assert pair in {(3, 1), (1, 2), (1, 3), (2, 3), (3, 3)}
        pending[int(event["handle"])] = int(event["kind"])
    calls = [(int(call["kind"]), file.name(int(call["a"]))) for call in file.of("CALL", "CALL_END")]
    begun = calls[::2]
    assert [name.split()[0] for _, name in begun] == ["away", "Flush", "Flush"]
    assert calls[1::2] == [(kind + 1, name) for kind, name in begun]
    naps = file.of("AWAKE", "ASLEEP")["kind"]
    assert (np.diff(naps.astype(int)) != 0).all()


def test_times_are_of_the_system_clock_in_loops_of_microseconds(comm, folder):
    """And before and after a pause. A Wait that finds its result is told by that alone."""
    comm.Barrier()
    with pp.Context(MPI.COMM_SELF) as ctx:
        ctx.trace(folder / str(comm.rank), events=EVENTS)
        request, times = one_request(ctx, "solo"), [time.monotonic_ns()]
        for step in range(2000):
            request.Start()
            request.Wait()
            times.append(time.monotonic_ns())
            if step % 1000 == 999:
                time.sleep(0.02)
        waits = 0 if ctx.stats().shares_memory else 2000  # for a message to itself
        file = TraceFile(folder / str(comm.rank), 0)
    start, given = file.of("START"), file.of("GIVEN")
    assert (len(start), len(file.of("WAIT"))) == (2000, waits)
    assert (start["ns"] + 1000 >= times[:-1]).all() and (given["ns"] - 1000 <= times[1:]).all()
    whole = np.diff(start["ns"].astype(np.int64))
    assert (start["key"][1:] > 0).all() and (start["key"][1:] <= whole).all()
    assert (start["key"][1:] >= start["ns"][1:] - given["ns"][:-1]).all()
    assert start["key"][1000] >= 20e6


def test_a_wait_that_is_repeated_is_one(comm, folder, ctx, gate):
    """From the first try to the result; the report counts the time inside the tries."""
    request = one_request(ctx, "full")
    ctx.trace(folder, events=EVENTS)
    for _ in range(2):
        if comm.rank:
            gate.Barrier()
        request.Start()
        if comm.rank == 0:
            for _ in range(3 if comm.size > 1 else 0):
                with pytest.raises(pp.TimeoutError):
                    request.Wait(timeout=0.02)
                time.sleep(0.02)
            gate.Barrier()
        request.Wait()
    _, samples = _sight._rows(ctx._native, ctx._ctx, comm.size)[comm.rank]
    file = TraceFile(folder, comm.rank)
    if comm.rank == 0 and comm.size > 1:
        assert [int(kind) for kind in file.of("START", "WAIT", "GIVEN")["kind"]] == 2 * [1, 2, 3]
        whole = file.of("GIVEN")["ns"] - file.of("WAIT")["ns"]
        assert (whole >= 120e6).all()
        assert 60e6 <= samples["waited_ns"][0] <= whole[0] - 60e6
        assert samples["computed_ns"][0] >= 60e6
    request.Flush()


def test_rounds_are_published_once_as_they_were_given(comm, folder, ctx):
    ctx.trace(folder, events=EVENTS)
    # Long enough that a round is claimed some time before it is published.
    request = ctx.Allreduce_init(np.ones(10_000), np.zeros(10_000), policy="solo")
    steps(request, 50)
    request.Flush()
    comm.Barrier()
    names = ("number", "a", "b", "d", "cause")
    files = [TraceFile(folder, rank) for rank in range(comm.size)]
    of = lambda file, kind: [tuple(map(int, e)) for e in file.of(kind)[list(names)]]  # noqa: E731
    published = [event for file in files for event in of(file, "PUBLISH")]
    given = {event for file in files for event in of(file, "GIVEN")}
    assert given <= set(published)
    stats = ctx.stats()
    if stats.shares_memory and stats.neighbours == comm.size:
        assert len(published) == len(set(published))
        claimed = [int(n) for file in files for n in file.of("CLAIM")["number"]]
        assert sorted(claimed) == sorted(event[0] for event in published)
    if comm.size > 1 and not stats.shares_memory:
        for file in files:
            assert {e[0] for e in of(file, "PUBLISH")} <= set(map(int, file.of("JOIN")["number"]))
    comm.Barrier()


def test_spans_are_inside_each_other(comm, folder, ctx):
    ctx.trace(folder, events=EVENTS)

    def work(name):
        for _ in range(20):
            with ctx.span(name), pytest.raises(KeyError), ctx.span("inner"):
                raise KeyError

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "zwölf")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file, stacks, seen = TraceFile(folder, comm.rank), {}, []
    for event in file.of("SPAN", "SPAN_END"):
        stack, name = stacks.setdefault(int(event["b"]), []), file.name(int(event["a"]))
        if event["kind"] == 12:
            stack.append(name)
            seen.append(tuple(stack))
        else:
            assert stack.pop() == name
    assert not any(stacks.values()) and len(stacks) == 2
    outer = ("one", "zwölf")
    assert {name: seen.count((name,)) for name in outer} == dict.fromkeys(outer, 20)
    assert {name: seen.count((name, "inner")) for name in outer} == dict.fromkeys(outer, 20)


def test_a_span_without_a_trace_is_nothing(ctx):
    with ctx.span("any"):
        pass


def test_more_names_than_have_room(comm, folder, ctx):
    ctx.trace(folder, events=EVENTS)
    names = [f"{number:05d}" * 100 for number in range(200)]
    for name in names:
        with ctx.span(name):
            pass
    file = TraceFile(folder, comm.rank)
    found = [file.name(int(event["a"])) for event in file.of("SPAN")]
    kept = found.index("other")
    assert found == names[:kept] + ["other"] * (200 - kept)
    assert kept > 100


def test_the_newest_events_are_kept(comm, folder, ctx):
    ctx.trace(folder, events=1000)
    request = one_request(ctx, "full")
    told = steps(request, 900)
    file = TraceFile(folder, comm.rank)
    assert file.head["count"] > 2700 and len(file.events) == 1000
    given = given_of(file.of("GIVEN"))
    assert len(given) > 50 and given == told[-len(given) :]
    request.Flush()


def test_the_head_says_who_wrote_it(comm, folder):
    runs = []
    for name in ("a", "b"):
        with pp.Context(comm) as ctx:
            ctx.trace(folder / name, events=EVENTS)
            request = one_request(ctx)
            steps(request, 5)
            assert not TraceFile(folder / name, comm.rank).head["met"][1].any()
            request.Flush()
        file = TraceFile(folder / name, comm.rank)
        head = file.head
        runs.append(tuple(map(int, head["run"])))
        assert (head["rank"], head["size"]) == (comm.rank, comm.size)
        assert (head["pid"], head["capacity"]) == (os.getpid(), EVENTS)
        assert head["host"].decode() == os.uname().nodename[:63]
        begun, ended = head["met"]
        assert begun[1] == ended[1] == 0  # one machine
        assert begun[0] <= file.events["ns"].min() and file.events["ns"].max() <= ended[0]
        assert abs(int(head["wall_ns"]) - (time.time_ns() - time.monotonic_ns())) < 1e9
    assert runs[0] != runs[1]
    assert len(set(comm.allgather(tuple(runs)))) == 1


def test_report_and_trace_agree(comm, folder, ctx):
    ctx.trace(folder, events=EVENTS)
    request = one_request(ctx)
    for _ in range(40):
        time.sleep(1e-3)
        request.Start()
        request.Wait()
    row = next(row for row in ctx.report().ranks if row.rank == comm.rank)
    _, samples = _sight._rows(ctx._native, ctx._ctx, comm.size)[comm.rank]
    file = TraceFile(folder, comm.rank)
    start, wait, given = (file.of(kind) for kind in ("START", "WAIT", "GIVEN"))
    assert (len(start), len(given)) == (row.calls, row.given) == (40, 40)
    assert np.sum(given["flags"] & LATE > 0) == row.late
    assert np.sum(given["flags"] & EXTERNAL > 0) == row.external
    sums = (row.active, row.contributions, row.staleness)
    assert tuple(given[name].sum() for name in "abc") == sums
    assert len(samples) == 39
    np.testing.assert_array_equal(samples["start_ns"], start["ns"][:-1])
    np.testing.assert_array_equal(samples["given_ns"], given["ns"][:-1])
    np.testing.assert_array_equal(samples["key"], given["key"][:-1])
    began = given["ns"].copy()
    began[np.searchsorted(given["ns"], wait["ns"])] = wait["ns"]
    np.testing.assert_array_equal(samples["waited_ns"], (given["ns"] - began)[:-1])
    whole = np.diff(start["ns"].astype(np.int64))
    own = whole - samples["waited_ns"].astype(np.int64)
    assert (samples["computed_ns"] <= own).all() and (samples["computed_ns"] >= 1e6).all()
    request.Flush()


def test_two_contexts(comm, folder, ctx):
    """Each has a trace of its own."""
    with pp.Context(comm) as other:
        ctx.trace(folder / "first", events=EVENTS)
        other.trace(folder / "second", events=EVENTS)
        requests = [one_request(each) for each in (ctx, other)]
        told = [steps(each, 7 + 3 * i) for i, each in enumerate(requests)]
        for request in requests:
            request.Flush()
            request.Free()
    for name, expected in zip(("first", "second"), told, strict=True):
        given = given_of(TraceFile(folder / name, comm.rank).of("GIVEN"))
        assert given[: len(expected)] == expected and len(given) == len(expected) + 1


def test_a_variable_names_the_folder(comm, folder, monkeypatch):
    """The second context's is inside the first's."""
    monkeypatch.setattr(_sight, "_traced", 0)
    monkeypatch.setenv("PYPARTIAL_TRACE", str(folder))
    for name in (".", "2", "3"):
        with pp.Context(comm) as ctx:
            request = one_request(ctx)
            told = steps(request, 4)
            request.Flush()
            with pytest.raises(pp.Error, match="has a trace already"):
                ctx.trace(folder / "other")
        assert given_of(TraceFile(folder / name, comm.rank).of("GIVEN"))[:4] == told
    comm.Barrier()
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["2", "3"]


def test_a_variable_traces_contexts_of_parts(comm, folder, monkeypatch):
    """Each has a folder, also where a rank has made another context before."""
    monkeypatch.setattr(_sight, "_traced", 0)
    monkeypatch.setenv("PYPARTIAL_TRACE", str(folder))
    part = comm.Split(comm.rank % 2)
    if comm.rank == comm.size - 1:
        pp.Context(MPI.COMM_SELF).Free()
    with pp.Context(part) as ctx:
        request = one_request(ctx)
        steps(request, 4)
        request.Flush()
    part.Free()
    comm.Barrier()
    assert len(list(folder.rglob("rank-*.pptrace"))) == comm.size + 1


# ---- refusals -----------------------------------------------------------------------------------


def refused(comm, odd):
    """What is raised if the ranks of `odd` cannot."""
    return pp.ArgumentError if comm.rank in odd else pp.MismatchError


FIRST = pytest.param("first", marks=pytest.mark.thorough)
WHO = pytest.mark.parametrize("odd", ["all", FIRST, "last"])


def ranks_of(comm, odd):
    return {"all": range(comm.size), "first": [0], "last": [comm.size - 1]}[odd]


@WHO
def test_a_folder_in_which_no_file_can_be(comm, folder, ctx, odd):
    """As root, who may write everywhere: below a file there is no folder."""
    odd, file = ranks_of(comm, odd), folder.parent / "file"
    if comm.rank == 0:
        file.write_text("")
    comm.Barrier()
    with pytest.raises(refused(comm, odd), match=r"no trace can be written to .*Not a directory"):
        ctx.trace(file / "trace" if comm.rank in odd else folder)
    comm.Barrier()
    assert not list(folder.glob("*"))
    goes_on(ctx, folder)


@pytest.mark.parametrize("events", [999, 2**32 + 1, "many"])
@WHO
def test_a_number_of_events_that_is_none(comm, folder, ctx, odd, events):
    odd = ranks_of(comm, odd)
    with pytest.raises(refused(comm, odd), match="events"):
        ctx.trace(folder, events=events if comm.rank in odd else EVENTS)
    goes_on(ctx, folder)


@WHO
@pytest.mark.parametrize("path", [3.5, None, "a\0b"], ids=str)
def test_what_names_no_folder(comm, folder, ctx, odd, path):
    odd = ranks_of(comm, odd)
    with pytest.raises(refused(comm, odd), match="no trace can be written"):
        ctx.trace(path if comm.rank in odd else folder)
    goes_on(ctx, folder)


@WHO
def test_a_folder_that_has_a_trace(comm, folder, ctx, odd):
    """The old trace is kept, and no new file is left."""
    odd = ranks_of(comm, odd)
    folder.mkdir(exist_ok=True)
    comm.Barrier()
    file = folder / f"rank-{comm.rank:05d}.pptrace"
    if comm.rank in odd:
        file.write_text("of before")
    with pytest.raises(refused(comm, odd), match="is there already: name another folder"):
        ctx.trace(folder, events=EVENTS)
    assert file.exists() == (comm.rank in odd)
    assert comm.rank not in odd or file.read_text() == "of before"
    goes_on(ctx, folder.parent / "second")


@several
def test_different_folders(comm, folder, ctx):
    with pytest.raises(pp.MismatchError, match="the ranks disagree: rank 0 traces into"):
        ctx.trace(folder / "ab"[comm.rank == comm.size - 1], events=EVENTS)
    comm.Barrier()
    assert not list(folder.rglob("*.pptrace"))
    goes_on(ctx, folder)


@several
@pytest.mark.parametrize("one", ["", "other"])
def test_variables_that_differ(comm, folder, monkeypatch, one):
    monkeypatch.setattr(_sight, "_traced", 0)
    name = one if comm.rank == comm.size - 1 else str(folder)
    monkeypatch.setenv("PYPARTIAL_TRACE", name)
    with pytest.raises(pp.MismatchError, match="PYPARTIAL_TRACE"):
        pp.Context(comm)
    monkeypatch.delenv("PYPARTIAL_TRACE")
    with pp.Context(comm) as ctx:
        goes_on(ctx, folder)


def test_a_variable_that_names_a_folder_with_a_trace(comm, folder, monkeypatch):
    """The context is not made, and the next one can be."""
    monkeypatch.setattr(_sight, "_traced", 0)
    monkeypatch.setenv("PYPARTIAL_TRACE", str(folder))
    folder.mkdir(exist_ok=True)
    comm.Barrier()
    (folder / f"rank-{comm.rank:05d}.pptrace").write_text("of before")
    with pytest.raises(pp.ArgumentError, match="is there already"):
        pp.Context(comm)
    monkeypatch.delenv("PYPARTIAL_TRACE")
    with pp.Context(comm) as ctx:
        goes_on(ctx, folder / "second")


@WHO
def test_a_disk_that_is_full(comm, folder, ctx, odd):
    """A limit on the size of files stands in for it. The rank is told once, and goes on."""
    odd = ranks_of(comm, odd)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if comm.rank in odd:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
        try:
            ctx.trace(folder, events=EVENTS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        request = one_request(ctx)
        with ctx.span("any"):
            told = steps(request, 10)
        request.Flush()
    texts = [str(warning.message) for warning in said]
    if comm.rank in odd:
        assert len(texts) == 1 and "this rank is not traced" in texts[0]
        assert not (folder / f"rank-{comm.rank:05d}.pptrace").exists()
    else:
        assert texts == []
        assert given_of(TraceFile(folder, comm.rank).of("GIVEN"))[:10] == told


def test_a_context_that_is_over(comm, folder):
    with pp.Context(comm) as ctx:
        pass
    with pytest.raises(pp.Error, match="freed"):
        ctx.trace(folder)
