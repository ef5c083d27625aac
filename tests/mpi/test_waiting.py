"""Test, timeouts, stall warnings, Ctrl-C: what waiting looks like from outside."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import signal
import threading
import time

import numpy as np
import pytest

import pypartial as pp

LOGGED_S = 30  # until what is waited for is logged

pytestmark = [pytest.mark.mpi, pytest.mark.sizes(1, 2, 3, 4, 8)]


def test_test_loop(comm, ctx):
    send, out = np.ones(3, "i8"), np.zeros(3, "i8")
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    status = pp.Status()
    for _ in range(5):
        request.Start()
        while not request.Test(status):
            time.sleep(0)
        assert out.tolist() == [comm.size] * 3
    assert status.round == 4
    assert request.Free() == 0


@pytest.mark.mpi(min_size=2)
def test_test_says_false_and_changes_nothing(comm, ctx, gate):
    send, out = np.ones(1), np.full(1, -1.0)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    status = pp.Status()
    if comm.rank == 0:
        request.Start()
        for _ in range(100):
            assert request.Test(status) is False
        assert repr(status) == "Status(empty)"
        assert out[0] == -1
        gate.barrier()
    else:
        gate.barrier()
        request.Start()
    assert request.Wait(status) is True
    assert out[0] == comm.size
    request.Free()


@pytest.mark.mpi(min_size=2)
def test_a_timeout_says_at_once_what_is_known_here(comm, ctx, gate):
    send, out = np.ones(1), np.zeros(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full(), deliver="latest")
    if comm.rank == 0:
        request.Start()
        for timeout in (0, 0.005, 0.2):
            began = time.monotonic()
            with pytest.raises(pp.TimeoutError) as caught:
                request.Wait(timeout=timeout)
            assert time.monotonic() - began >= timeout
            text = str(caught.value)
            assert text.startswith(f"Wait on handle {request.id} (SUM of 1 float64, Full(), "), text
            assert "; as seen from here: round 0" in text
            assert "rank 1" in text
            assert "the ranks' answers" not in text  # nobody was asked
            assert isinstance(caught.value, TimeoutError)
        gate.barrier()
    else:
        gate.barrier()
        request.Start()
    request.Wait(timeout=30)  # it stayed outstanding
    assert out[0] == comm.size
    request.Free()


@pytest.mark.mpi(min_size=2)
def test_a_timeout_tells_what_ranks_said_when_they_were_asked(comm, gate, caplog):
    """Rank 1 waits on another handle, the others are outside."""
    with pp.Context(comm, stall_warning=0.05) as ctx:
        a, b = np.ones(1), np.ones(1)
        first = ctx.Allreduce_init(None, a, policy=pp.Full())
        second = ctx.Allreduce_init(None, b, policy=pp.Full())
        if comm.rank == 1:
            second.Start()
        gate.barrier()
        if comm.rank == 0:
            first.Start()
            text, said = "", f" 1 (waiting on handle {second.id})"
            with caplog.at_level(logging.WARNING, logger="pypartial"):
                while not caplog.records or said not in text.partition("; the ranks' answers ")[2]:
                    with pytest.raises(pp.TimeoutError) as caught:
                        first.Wait(timeout=0.2)
                    text = str(caught.value)
            assert said in caplog.records[0].getMessage()
            gate.barrier()
            second.Start()
        elif comm.rank == 1:
            gate.barrier()
            first.Start()
        else:
            gate.barrier()
            first.Start()
            second.Start()
        pp.Waitall([first, second], timeout=30)
        first.Free()
        second.Free()


@pytest.mark.mpi(min_size=2)
def test_collective_calls_that_timed_out_go_on(comm, ctx, gate):
    """Meanwhile rank 0 has left, so that the others' rounds complete without it."""

    def patiently(call):
        """The call of rank 0 times out, and the others come only then."""
        if comm.rank == 0:
            for timeout in (0, 0.002):
                with pytest.raises(pp.TimeoutError, match=r"as seen from here: .*rank [1-9]"):
                    call(timeout=timeout)
            gate.barrier()
        else:
            gate.barrier()
        return call()

    send, out = np.ones(3, "i8"), np.zeros(3, "i8")
    request = patiently(functools.partial(ctx.Allreduce_init, send, out))
    if comm.rank == 0:
        with pytest.raises(pp.TimeoutError):
            request.Flush(timeout=0)
        for call in (request.Start, request.Free, ctx.Free):
            with pytest.raises(pp.Error, match=r"in progress|inside a collective call"):
                call()
        gate.barrier()
    else:
        gate.barrier()
        request.Start()
        request.Wait(timeout=30)
    status = pp.Status()
    gate.barrier()
    patiently(functools.partial(request.Flush, status))
    assert status.cause == "flush"
    assert out.tolist() == [comm.size - 1] * 3 or comm.rank > 0
    request.Start()
    assert patiently(request.Free) in (0, 1)


@pytest.mark.mpi(min_size=2)
def test_a_call_that_goes_on_has_the_same_arguments(comm, ctx, gate):
    out = np.zeros(3)
    if comm.rank == 0:
        with pytest.raises(pp.TimeoutError):
            ctx.Allreduce_init(None, out, timeout=0)
        for other in ({"policy": pp.Full()}, {"algorithm": "ring"}, {"average": "size"}):
            with pytest.raises(pp.ArgumentError, match=r"other arguments: SUM of 3 float64, Maj"):
                ctx.Allreduce_init(None, out, **other)
        with pytest.raises(pp.ArgumentError, match="other arguments"):
            ctx.Allreduce_init(None, np.zeros(3))
        gate.barrier()
    else:
        gate.barrier()
    ctx.Allreduce_init(None, out).Free()


def texts_with_answers(caplog):
    """What was logged, but not of a rank that did not answer: a busy machine held it up."""
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if "no answer" not in text]


def stays_away(request, enough):
    """Wait in vain until enough was logged; False: the request is complete."""
    limit = time.monotonic() + LOGGED_S
    while not enough() and time.monotonic() < limit:
        try:
            request.Wait(timeout=0.5)
        except pp.TimeoutError:
            continue
        return False
    return True


@pytest.mark.sizes(2, 3)
@pytest.mark.parametrize("policy", [pp.Full(), pp.Majority()], ids=str)
def test_stall_warning(comm, gate, caplog, policy):
    """A wait that takes long is logged, with the ranks waited for, again and again."""
    with pp.Context(comm, stall_warning=0.1) as ctx:
        send, out = np.ones(1), np.zeros(1)
        request = ctx.Allreduce_init(send, out, policy=policy)
        with caplog.at_level(logging.WARNING, logger="pypartial"):
            if comm.rank == 0:
                request.Start()
                stalled = stays_away(request, lambda: len(texts_with_answers(caplog)) >= 2)
                gate.barrier()
            else:
                gate.barrier()
                stalled = False
                request.Start()
            if stalled or comm.rank:
                request.Wait()
        if comm.rank == 0 and stalled:
            texts = texts_with_answers(caplog)
            assert len(texts) >= 2, texts
            assert all(f"handle {request.id}" in text for text in texts)
            assert all(re.search(r"ranks? [1-9]\S* \(computing", text) for text in texts), texts
        if isinstance(policy, pp.Full):
            assert stalled == (comm.rank == 0)
        request.Flush()
        request.Free()


def lets_go(gate, caplog):
    """Hold the other ranks back until something was logged."""
    limit = time.monotonic() + LOGGED_S
    while not texts_with_answers(caplog) and time.monotonic() < limit:
        time.sleep(0.01)
    gate.Ibarrier().Wait()


@pytest.mark.sizes(2, 3)
def test_a_collective_call_that_stalls_is_logged(comm, gate, caplog):
    with pp.Context(comm, stall_warning=0.1) as ctx:
        request = ctx.Allreduce_init(None, np.ones(1), policy=pp.Full())
        if comm.rank == 0:
            release = threading.Thread(target=lets_go, args=(gate, caplog))
            with caplog.at_level(logging.WARNING, logger="pypartial"):
                release.start()
                request.Flush()
            release.join()
            text = texts_with_answers(caplog)[0]
            assert "Flush" in text
            assert re.search(r"not in it yet: ranks? 1\S* \(computing, last call making a", text)
        else:
            gate.Ibarrier().Wait()
            request.Flush()
        request.Free()


# ---- ranks that hold a round up, and why ---------------------------------------------------------

LAST = 2  # the rank that the others wait for, if it is not drawn
AWAY = r"if a rank is in a call of its own, put that into `with ctx\.away\(\):`"
OR_USE = rf"{AWAY} \(or use ctx\.comm\)"


@pytest.fixture
def stalled(comm, transport):
    """Make a context in which waits soon say what they wait for; no rank leaves by patience."""
    return functools.partial(
        pp.Context, comm, seed=7, transport=transport, patience=None, stall_warning=0.2
    )


def is_told(request, caplog, why):
    """Wait in vain, until a warning and the error say why. Busy ranks may answer late."""
    texts, limit = [], time.monotonic() + LOGGED_S
    while not (texts and re.search(why, texts[-1]) and any(re.search(why, t) for t in texts[:-1])):
        assert time.monotonic() < limit, (why, texts)
        with (
            caplog.at_level(logging.WARNING, logger="pypartial"),
            pytest.raises(pp.TimeoutError) as caught,
        ):
            request.Wait(timeout=1)
        texts = [*(record.getMessage() for record in caplog.records), str(caught.value)]


def held_up(why, waiting="ranks 0-1", advice=OR_USE):
    """Of a round: why, and that nobody is blamed who waits."""
    advised = f"; {advice}" if advice else ""
    return rf": round \d+ is held up; {why}{advised}; waiting for the round: {waiting}$"


@pytest.mark.sizes(3)
@pytest.mark.parametrize(
    ("options", "full"),
    [({}, ""), ({"patience": 0.1, "backlog": 1}, ", its backlog is full")],
    ids=["max_lag", "backlog"],
)
def test_a_rank_that_withholds_is_told(comm, gate, caplog, stalled, options, full):
    """It is in a call of its own; one of the ranks that are drawn waits in any case."""
    with stalled(**options) as ctx:
        request = ctx.Allreduce_init(None, np.ones(2), policy=pp.FirstOf(2), deliver="each")
        request.Start()
        request.Wait()
        if comm.rank == LAST:
            gate.barrier()
        else:
            with pytest.raises(pp.TimeoutError):
                for _ in range(99):
                    request.Start()
                    request.Wait(timeout=2)
            why = (
                rf"withheld from it by max_lag: rank 2 \(computing, last call Wait of handle "
                rf"{request.id}, has not taken its rounds since round 0{full}\)"
            )
            is_told(request, caplog, held_up(why))
            gate.barrier()
        for _ in request.Drain():
            pass
        request.Free()


@pytest.mark.sizes(3)
def test_a_drawn_rank_that_computes_is_told(comm, gate, caplog, stalled):
    with stalled() as ctx:
        status = pp.Status()
        request = ctx.Allreduce_init(None, np.ones(2), policy=pp.Majority())
        request.Start()
        gate.barrier()  # all ranks are there, so the one that is drawn triggers the round
        request.Wait(status)
        request.Free()
    drawn, others = status.initiator, [rank for rank in range(3) if rank != status.initiator]
    with stalled() as ctx:
        request = ctx.Allreduce_init(None, np.ones(2), policy=pp.Majority())
        if comm.rank != drawn:
            request.Start()
            why = rf"drawn to trigger it: rank {drawn} \(computing, last call making a handle\)"
            waiting = "ranks 0, 2" if drawn == 1 else f"ranks {others[0]}-{others[1]}"
            is_told(request, caplog, held_up(why, waiting))
        gate.barrier()
        if comm.rank == drawn:
            request.Start()
        request.Wait(timeout=30)
        request.Free()


@pytest.mark.sizes(3)
def test_a_rank_that_full_waits_for_is_told(comm, gate, caplog, stalled):
    """With the automatic patience a rank knows when it was given its last result."""
    with stalled(patience="auto") as ctx:
        request = ctx.Allreduce_init(None, np.ones(2), policy=pp.Full())
        request.Start()
        request.Wait()
        if comm.rank != LAST:
            request.Start()
            why = (
                r"2 of 3 ranks are ready; not ready: rank 2 \(computing, last call Wait of handle "
                rf"{request.id} \(\d+\.\d s ago\)\)"
            )
            is_told(request, caplog, held_up(why, advice=AWAY))
        gate.barrier()
        if comm.rank == LAST:
            request.Start()
        request.Wait(timeout=30)
        request.Free()


@pytest.mark.sizes(3)
@pytest.mark.parametrize("where", ["elsewhere", "away"])
def test_a_rank_that_is_in_another_call_is_told(comm, gate, caplog, stalled, where):
    """It waits on another handle; or it is in a call that the others have left."""
    with stalled() as ctx:
        request, other = (ctx.Allreduce_init(None, np.ones(2), policy=pp.Full()) for _ in range(2))
        with ctx.away() if where == "away" else contextlib.nullcontext():
            if comm.rank == LAST and where == "away":
                gate.barrier()
        if comm.rank == LAST and where == "elsewhere":
            other.Start()
            gate.barrier()
        elif comm.rank != LAST:
            request.Start()
            does = {
                "elsewhere": rf"waiting on handle {other.id}",
                "away": r"inside a collective call, away\(\), \d collective calls done",
            }[where]
            why = rf"2 of 3 ranks are ready; not ready: rank 2 \({does}\)"
            is_told(request, caplog, held_up(why, advice=None))
            gate.barrier()
            if where == "elsewhere":
                other.Start()
        if comm.rank == LAST:
            request.Start()
        request.Wait(timeout=30)
        if where == "elsewhere":
            other.Wait(timeout=30)
        request.Free()
        other.Free()


@pytest.mark.sizes(3)
def test_a_rank_that_does_not_answer_is_told(comm, gate, caplog, stalled):
    """Nor would one that is stopped; so what this rank sees is told as well."""
    with stalled(progress="caller" if comm.rank == LAST else "thread") as ctx:
        request = ctx.Allreduce_init(None, np.ones(2), policy=pp.Full())
        if comm.rank != LAST:
            request.Start()
            why = r": round 0 is held up; perhaps missing: rank 2 \(no answer: [^)]*\); waiting for"
            is_told(request, caplog, why + " the round: ranks 0-1; as seen from here: round 0 ")
        gate.barrier()
        if comm.rank == LAST:
            request.Start()
        request.Wait(timeout=30)
        request.Free()


@pytest.mark.sizes(3)
def test_a_rank_that_a_group_waits_for_is_told(comm, gate, caplog, stalled):
    with stalled() as ctx:
        request = ctx.Preduce_init(np.ones(2), pp.groups.Table([[range(3)]]))
        if comm.rank != LAST:
            request.Start()
            why = r": rank 2 \(computing, last call making a handle\); waiting: ranks 0-1"
            is_told(request, caplog, why)
        gate.barrier()
        if comm.rank == LAST:
            request.Start()
        request.Wait(timeout=30)
        request.Free()


def interrupt_soon(after_s):
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.mpi(min_size=2)
def test_ctrl_c_in_wait(comm, ctx, gate):
    send, out = np.ones(1), np.zeros(1)
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    if comm.rank == 0:
        request.Start()
        with pytest.raises(KeyboardInterrupt):
            timer = interrupt_soon(0.15)
            request.Wait()
        timer.join()
        with pytest.raises(pp.Error, match="not collected"):
            request.Start()
        gate.barrier()
    else:
        gate.barrier()
        request.Start()
    request.Wait()
    assert out[0] == comm.size
    request.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("second", ["rounds", "groups", "communicators"])
@pytest.mark.parametrize("ends", ["timeout", "interrupt"])
def test_a_waitall_that_ended_early_is_repeated(comm, ctx, gate, second, ends):
    """What was complete is not collected before all is: result and status come with the rest."""
    firsts, model = np.zeros(comm.size, "i8"), np.full(3, float(comm.rank))
    mine = np.arange(comm.size) == comm.rank
    a = ctx.Allreduce_init(mine.astype("i8"), firsts, policy=pp.Solo(), deliver="each")
    if second == "rounds":
        b = ctx.Allreduce_init(model.copy(), model, policy=pp.Full(), average="size")
    else:
        backend = "comm" if second == "communicators" else "auto"
        b = ctx.Preduce_init(model, pp.groups.Table([[range(comm.size)]]), backend=backend)
    statuses = [pp.Status(), pp.Status()]
    if comm.rank == 0:
        pp.Startall([a, b])
        for _ in range(3):
            if ends == "timeout":
                with pytest.raises(pp.TimeoutError, match="handle 2"):
                    pp.Waitall([a, b], statuses, timeout=0.1)
            else:
                with pytest.raises(KeyboardInterrupt):
                    timer = interrupt_soon(0.1)
                    pp.Waitall([a, b], statuses)
                timer.join()
        assert statuses == [pp.Status(), pp.Status()]
    gate.Barrier()
    if comm.rank != 0:
        pp.Startall([a, b])
    pp.Waitall([a, b], statuses, timeout=60)
    assert model.tolist() == [(comm.size - 1) / 2] * 3
    assert statuses[0].round == 0
    assert statuses[0].contributors == (0,)
    assert firsts.tolist() == [1] + [0] * (comm.size - 1)
    with pytest.raises(pp.Error, match="nothing was started"):
        b.Wait()
    if second == "rounds" and ends == "timeout":  # all may be started again after a timeout
        if comm.rank == 0:
            pp.Startall([b])
            with pytest.raises(pp.TimeoutError):
                pp.Waitall([b], timeout=0)
            pp.Startall([b])
        gate.Barrier()
        if comm.rank != 0:
            b.Start()
        pp.Waitall([b])
    for _ in a.Drain():
        pass
    b.Free()
    a.Free()


@pytest.mark.mpi(min_size=2)
def test_several_threads_wait_on_several_handles(comm, ctx):
    """One thread a handle: they share the context's lock and doorbell."""
    number = 3
    outs = [np.zeros(1) for _ in range(number)]
    requests = [ctx.Allreduce_init(np.ones(1), out, policy=pp.Full()) for out in outs]
    errors = []

    def work(request, out):
        try:
            for _ in range(30):
                request.Start()
                request.Wait()
                assert out[0] == comm.size
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(requests, outs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for request in requests:
        request.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 3)
def test_one_collective_call_of_a_context_at_a_time(comm, ctx, gate):
    """While a thread is in one, others may wait, but neither start nor call a second one."""
    out = np.zeros(1)
    flushed = ctx.Allreduce_init(np.ones(1), np.zeros(1), policy=pp.Full())
    waited = ctx.Allreduce_init(np.ones(1), out, policy=pp.Full())
    alone = ctx.Allreduce_init(np.ones(1), np.zeros(1), policy=pp.Solo())
    waited.Start()
    other = pp.Context(comm)
    elsewhere = other.Allreduce_init(np.ones(1), np.zeros(1), policy=pp.Full())
    if comm.rank == 0:
        thread = threading.Thread(target=flushed.Flush)
        thread.start()
        while True:  # until the thread is inside
            try:
                alone.Start()
            except pp.Error:
                break
            alone.Wait()
        init = lambda: ctx.Allreduce_init(None, np.zeros(1))  # noqa: E731
        for call in (alone.Start, alone.Flush, alone.Free, flushed.Flush, ctx.Free, init):
            with pytest.raises(pp.Error, match="collective call of th"):
                call()
        waited.Wait(timeout=30)
        assert out[0] == comm.size
        assert ctx.stats().rounds > 0
        elsewhere.Start()  # of another context
        elsewhere.Wait(timeout=30)
        gate.barrier()
        thread.join()
    else:
        waited.Wait()
        elsewhere.Start()
        elsewhere.Wait()
        gate.barrier()
        flushed.Flush()
    usable = ctx.Allreduce_init(np.ones(1), out, policy=pp.Full())
    usable.Start()
    usable.Wait()
    assert out[0] == comm.size
    for request in (flushed, waited, alone, elsewhere, usable):
        request.Free()
    other.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.sizes(2, 4)
@pytest.mark.parametrize("state", ["quiet", "timed"])
def test_an_idle_context_costs_nothing(comm, state):
    """Under 1 % of a core a rank, more only to look for messages of other nodes.

    The same with a deadline and patience, of a rank that is waited for, and has left since.
    """
    timed = state == "timed"
    policy = pp.Majority(deadline=0.001) if timed else pp.Full()
    with pp.Context(comm, seed=7, patience=0.01 if timed else "auto") as ctx:
        request = ctx.Allreduce_init(None, np.ones(1), policy=policy)
        request.Start()
        request.Wait()
        comm.barrier()
        for _ in range(3 if timed and comm.rank == 0 else 0):
            request.Start()
            request.Wait()
        comm.barrier()
        time.sleep(0.2)
        before, began = time.process_time(), time.monotonic()
        time.sleep(1.0)
        used, passed = time.process_time() - before, time.monotonic() - began
        everybody_rings = ctx.stats().neighbours == comm.size
        assert used < (0.01 if everybody_rings else 0.1) * passed
        request.Flush()
        request.Free()
