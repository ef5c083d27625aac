"""Collective calls and long waits: what times out, goes on, asks and is told."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import pypartial as pp
from pypartial import _explain, _native, allreduce
from pypartial._buffer import Vector
from pypartial._calls import Away, CollectiveCalls
from pypartial.status import RESULT

STATE = dict.fromkeys([*_explain.RankState._fields, "last_handle"], 0)


class Core:
    """Stands in for the compiled module. A call is over after so many slices of waiting."""

    PP_PENDING, PP_COMPUTING, PP_WAITING, PP_IN_CALL = 1, 0, 1, 2
    PP_WAITS_FOR_NO_DEVICE, PP_CONTRIBUTION_ON_ITS_WAY, PP_DEVICE_PART = range(3)
    PP_ERR_ARGUMENT, PP_ERR_MISMATCH, PP_ERR_THREAD_LEVEL = -1, -3, -4
    PP_ERR_PEER_FAILED, PP_ERR_MEMORY, PP_ERR_INTERNAL = -5, -6, -8
    NULL = None
    pp_start = pp_test = pp_wait_slice = None

    def __init__(self):
        self.said, self.pending, self.states, self.more = [], 0, [], []
        self.on_wait = lambda: None

    def new(self, declaration, count=None):
        if "rank_state" in declaration:
            self.states = [SimpleNamespace(**STATE) for _ in range(count)]
            return self.states
        return [7]

    def buffer(self, data):
        return bytearray(RESULT.size)

    def string(self, text):
        return text

    def pp_error_text(self):
        return b"what the core says"

    def pp_ctx_rank(self, ctx):
        return 0

    def pp_ctx_size(self, ctx):
        return 3

    def pp_handle_id(self, coll):
        return 2

    def begin(self, name):
        self.said.append(name)
        return 0

    def pp_flush_begin(self, coll):
        return self.begin("flush")

    def pp_drain_begin(self, coll):
        return self.begin("drain")

    def pp_handle_free_begin(self, coll, discarded):
        return self.begin("free")

    def pp_collect(self, coll, result):
        return self.begin("collect")

    def pp_land_all(self, ctx, until, timeout_us):
        return 0

    def pp_call_wait(self, ctx, timeout_us):
        return self.pp_wait(ctx, timeout_us, None)

    def pp_wait(self, coll, timeout_us, result):
        self.on_wait()
        time.sleep(timeout_us / 1e6 if self.pending else 0)
        self.pending = max(self.pending - 1, 0)
        return self.PP_PENDING if self.pending else 0

    def obstacles(self, of, text):
        text[0] = b"here\n"
        return 0

    pp_handle_obstacles = pp_ctx_obstacles = obstacles

    def pp_text_free(self, text):
        pass

    def pp_timed_out(self, coll):
        return self.begin("timed out")

    def pp_more(self, coll, result):
        self.said.append("more")
        return self.more.pop(0)

    def pp_away_begin(self, ctx):
        return self.begin("away")

    def pp_away_end(self, ctx):
        return self.begin("back")

    def pp_call_name(self, call):
        return b""

    def pp_question_open(self, ctx, handle, states, question):
        return self.begin("ask")

    def pp_question_close(self, ctx, question):
        self.said.append("asked")


@pytest.fixture
def core():
    return Core()


@pytest.fixture
def made(core):
    """Make a request of a context that warns after so long, for a delivery."""

    def make(stall_warning=None, deliver="sum"):
        native = _native.Native(core, core, None, "Open MPI 5.0.1", "Open MPI v5.0.1", "libmpi.so")
        forgotten = []
        context = SimpleNamespace(
            rank=0, size=3, _ctx=None, _stall_warning=stall_warning, _forget=forgotten.append
        )
        context._calls = CollectiveCalls(native, None, stall_warning)
        settings = allreduce.Settings("SUM", pp.Solo(), deliver, None, None, np.dtype("f4"), 6)
        vector = Vector([], np.dtype("f4"), [])
        return allreduce.AllreduceRequest(context, native, "coll", settings, vector)

    return make


# ---- calls that time out -------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.005, 0.07])
def test_a_call_returns_when_its_time_is_over(core, made, timeout):
    request, waited = made(), []
    core.pending = 100
    core.pp_call_wait = lambda ctx, us: (waited.append(us), core.PP_PENDING)[1]
    with pytest.raises(pp.TimeoutError):
        request.Flush(timeout=timeout)
    assert max(waited) <= _native.SLICE_US
    assert waited[0] == min(int(timeout * 1e6), _native.SLICE_US)


def test_a_free_that_timed_out_is_all_that_the_handle_can_do(core, made):
    request = made()
    core.pending = 100
    with pytest.raises(pp.TimeoutError):
        request.Free(timeout=0)
    for call in (request.Start, request.Wait, request.Flush, request.dump):
        with pytest.raises(pp.Error, match="its Free timed out; call Free again"):
            call()
    core.pending = 0
    assert request.Free() == 7
    assert core.said == ["free"]
    with pytest.raises(pp.Error, match="was freed"):
        request.Free()


def test_a_step_of_drain_that_timed_out_goes_on_with_the_next_drain(core, made):
    request = made(deliver="each")
    core.pending = 100
    with pytest.raises(pp.TimeoutError):
        next(request.Drain(timeout=0))
    core.pending = 0
    next(request.Drain())
    assert core.said == ["drain", "collect"]


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_a_bad_timeout_begins_nothing(core, made, timeout):
    request, each = made(), made(deliver="each")
    for call in (request.Flush, request.Free, each.Drain):
        with pytest.raises(pp.ArgumentError, match="timeout must be 0 or more seconds"):
            call(timeout=timeout)
    assert core.said == []


def test_a_free_without_memory_can_be_repeated(core, made):
    """`MemoryError` is an error of the core, but none of `pp.Error`: nothing was interrupted."""
    request = made()
    core.pp_handle_free_begin = lambda coll, discarded: core.PP_ERR_MEMORY
    with pytest.raises(MemoryError):
        request.Free()
    del core.pp_handle_free_begin
    assert request.Free() == 7


@pytest.fixture
def cut_offs(core):
    """List what tells, in each call of pp_land_all(), which contributions it waits for."""
    given = []

    def pp_land_all(ctx, until, timeout_us):
        given.append(until)
        return core.PP_PENDING

    core.pp_land_all = pp_land_all
    core.new = lambda declaration, count=None: [7]  # another object each time
    return given


def in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_call_that_timed_out_before_it_began_goes_on(core, made, cut_offs):
    """In its thread; tries of other threads are others, though numbers of threads come again."""
    request = made()

    def fails():
        with pytest.raises(pp.TimeoutError, match="have not come to or from their device"):
            request.Flush(timeout=0)

    for _ in range(2):
        fails()
    assert all(until is cut_offs[0] for until in cut_offs)
    seen = [cut_offs[0]]
    for _ in range(3):
        in_a_thread(fails)
        assert all(cut_offs[-1] is not until for until in seen)
        seen.append(cut_offs[-1])


def test_a_call_that_was_interrupted_before_it_began_does_not(core, made, cut_offs):
    request, waits = made(), core.pp_land_all

    def interrupts(ctx, until, timeout_us):
        waits(ctx, until, timeout_us)
        if timeout_us:
            raise KeyboardInterrupt
        return core.PP_PENDING

    for core.pp_land_all in (interrupts, waits):
        with pytest.raises((KeyboardInterrupt, pp.TimeoutError)):
            request.Flush(timeout=0.001)
    assert cut_offs[-1] is not cut_offs[0]


# ---- away, More, and what Start tells ----------------------------------------------------------


def test_away_is_left_by_an_exception(core, made):
    calls = made()._context._calls
    with pytest.raises(ZeroDivisionError), Away(lambda: None, calls):
        assert core.said == ["away"]
        raise ZeroDivisionError
    assert core.said == ["away", "back"]


def test_nobody_goes_away_from_a_context_that_is_gone_or_in_a_call(core, made):
    def gone():
        raise pp.Error("the context was freed")

    request = made()
    with pytest.raises(pp.Error, match="was freed"), Away(gone, request._context._calls):
        pass
    core.pending = 100
    with pytest.raises(pp.TimeoutError):
        request.Flush(timeout=0)
    with (
        pytest.raises(pp.Error, match="Flush of handle 2 timed out"),
        Away(lambda: None, request._context._calls),
    ):
        pass
    assert core.said == ["flush"]


@pytest.mark.parametrize(("status", "kind"), [(-5, pp.PeerFailedError), (-6, MemoryError)])
def test_an_error_of_coming_back_does_not_hide_the_exception_that_passes(core, made, status, kind):
    core.pp_away_end = lambda ctx: status
    away = Away(lambda: None, made()._context._calls)
    with pytest.raises(ZeroDivisionError), away:
        raise ZeroDivisionError
    with pytest.raises(kind), away:
        pass


def test_more_gives_rounds_while_there_are_some(core, made):
    request, status = made(deliver="each"), pp.Status()
    core.more = [0, 1, -5]
    assert request.More(status) is True
    assert status.round == 0
    assert request.More() is False
    with pytest.raises(pp.PeerFailedError):
        request.More()
    with pytest.raises(pp.Error, match="More is for deliver='each'"):
        made().More()
    with pytest.raises(pp.ArgumentError, match="status must be"):
        request.More(7)


def test_what_start_has_to_tell_is_logged(core, made):
    request, told = made(), []
    request._context._log_note = lambda: told.append("note")
    for code in (0, 2):
        request._pp_start = lambda handle, code=code: code
        request.Start()
    assert told == ["note"]


# ---- questions -----------------------------------------------------------------------------------


def test_a_wait_goes_on_while_the_ranks_are_asked(core, made, caplog, monkeypatch):
    monkeypatch.setattr(_explain, "ASK_S", 60)
    request = made(stall_warning=0.01)
    core.pending = 4
    waits = []

    def answer():
        waits.append(list(core.said))
        for state in core.states if len(waits) == 3 else ():
            state.answered = 1

    core.on_wait = answer
    request._wait_on(1, 10_000, None)
    assert waits[0] == waits[1] == ["ask"]
    assert core.said == ["ask", "asked"]
    (record,) = caplog.records
    assert "round 0 is held up; drawn to trigger it: rank 2 (computing); " in record.getMessage()


def test_ranks_that_do_not_answer_are_named(core, made, caplog, monkeypatch):
    monkeypatch.setattr(_explain, "ASK_S", 0.02)
    request = made(stall_warning=0.01)
    core.pending = 4
    request._wait_on(1, 10_000, None)
    assert "perhaps missing: ranks 0-2 (no answer" in caplog.records[0].getMessage()


def test_a_question_ends_with_the_wait(core, made, caplog, monkeypatch):
    monkeypatch.setattr(_explain, "ASK_S", 60)
    request = made(stall_warning=0.01)
    core.pending = 2
    request._wait_on(1, 10_000, None)
    assert core.said == ["ask", "asked"]
    assert caplog.records == []


def test_a_timeout_tells_what_was_heard(core, made):
    request = made(stall_warning=0.01)
    core.pending = 100
    with pytest.raises(pp.TimeoutError, match=r" answers .* ago: .* \(no answer.*: here$"):
        request._wait_on(1, 10_000, 0.03)
    assert core.said == ["ask", "asked", "timed out"]


def test_a_question_that_cannot_be_asked(core, made, caplog):
    request = made(stall_warning=0.01)
    core.pending = 4
    core.pp_question_open = lambda *_: -7
    request._wait_on(1, 10_000, None)
    assert "cannot ask the other ranks: what the core says" in caplog.records[0].getMessage()
    assert core.said == []
