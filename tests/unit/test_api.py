"""The Python layer above the core: statuses, requests over a stand-in core, reports, loading."""

import ast
import builtins
import contextlib
import copy
import importlib.util
import inspect
import os
import pickle
import pydoc
import re
import subprocess
import sys
import time
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import mpi4py
import numpy as np
import pytest

import pypartial as pp
from pypartial import _explain, _launch, _native, allreduce
from pypartial._buffer import Vector
from pypartial._calls import CollectiveCalls
from pypartial._mpi_library import identify, is_mpi_library, mapped_files
from pypartial.status import RESULT

PACKAGE = Path(pp.__file__).parent


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


# ---- the package --------------------------------------------------------------------------------


def test_import_loads_little_and_starts_no_mpi():
    code = (
        "import sys, pypartial\n"
        "heavy = 'mpi4py.MPI pypartial._core pypartial._core_sim typer rich matplotlib scipy'\n"
        "heavy = [*heavy.split(), 'networkx', 'pytest']\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = run_python(code)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_all_names_exist():
    assert sorted(pp.__all__) == list(pp.__all__)
    assert all(hasattr(pp, name) for name in pp.__all__)


def test_errors():
    for kind in (pp.ArgumentError, pp.MismatchError, pp.TimeoutError):
        assert issubclass(kind, pp.Error)
    assert issubclass(pp.ThreadLevelError, pp.Error)
    assert issubclass(pp.PeerFailedError, pp.Error)
    assert issubclass(pp.ArgumentError, ValueError)
    assert issubclass(pp.TimeoutError, TimeoutError)


def test_every_public_docstring_says_something():
    for thing in (pp.Context, pp.Request, pp.Status, *map(pp.__dict__.get, pp.__all__)):
        assert inspect.getdoc(thing)
        for name, member in vars(thing).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{thing.__name__}.{name}"


@pytest.mark.parametrize("kind", [pp.Activation, pp.Cause])
def test_help_of_an_enumeration_shows_its_values_and_not_the_methods_of_str(kind):
    text = pydoc.plain(pydoc.render_doc(kind))
    for member in kind:
        assert f'``"{member.value}"``' in text
        assert repr(member) in text
    for word in ("capitalize", "startswith", "__add__", "encode"):
        assert word not in text
    assert len(text.splitlines()) < 70


def test_help_of_requests_says_how_they_are_used():
    text = pydoc.plain(pydoc.render_doc(pp.Request))
    for words in (
        "Context.Allreduce_init",
        "belong to the application",
        "AllreduceRequest",
        ">>> ",
    ):
        assert words in text
    text = pydoc.plain(pydoc.render_doc(pp.AllreduceRequest))
    for name in ("Start", "Wait", "Test", "Flush", "Free", "View", "More", "Drain"):
        assert re.search(rf"^ \|  {name}\(self", text, re.MULTILINE), name


SECTIONS = (
    "Parameters",
    "Attributes",
    "Returns",
    "Yields",
    "Raises",
    "Warns",
    "See Also",
    "Notes",
    "References",
    "Examples",
)


def docstrings():
    """Yield name and docstring of everything that the package documents, private parts included."""
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield f"{file.name}: {getattr(node, 'name', 'module')}", text


def check_sections(text):
    """Check that every section has its heading, underlined, in the order of numpydoc."""
    lines = ["", *text.splitlines()]
    found = []
    for number, line in enumerate(lines):
        underlined = lines[number + 1 : number + 2] == ["-" * len(line)]
        if line in SECTIONS:
            assert underlined, f"{line!r} has no line under it"
            assert not lines[number - 1], f"no empty line before {line!r}"
            assert any(lines[number + 2 : number + 3]), f"{line!r} is empty"
            found.append(line)
        elif line and set(line) == {"-"}:
            assert lines[number - 1] in SECTIONS, f"{lines[number - 1]!r} is no section"
        else:
            assert "---" not in line, f"a heading within a line: {line!r}"
    assert found == [name for name in SECTIONS if name in found]


def test_the_sections_of_docstrings_are_well_formed():
    names = []
    for name, text in docstrings():
        names.append(name)
        try:
            check_sections(text)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    assert {"_allreduce_init.py: Allreduce_init", "_preduce_init.py: Preduce_init"} <= set(names)


@pytest.mark.parametrize(
    "text",
    [
        "Do.\n\nNotes ----- One line.",
        "Do.\n\nNotes\n---\nx",
        "Do.\nNotes\n-----\nx",
        "Do.\n\nNotes\n-----\n",
        "Do.\n\nRemarks\n-------\nx",
        "Do.\n\nRaises\n------\nx\n\nReturns\n-------\nx",
    ],
)
def test_ill_formed_sections_are_noticed(text):
    with pytest.raises(AssertionError):
        check_sections(text)


# ---- statuses -----------------------------------------------------------------------------------


def result_bytes(contributors=(0, 1, 65), known=1, initiator=1, cause=1, external=0):
    words = [0] * 16
    for rank in contributors:
        words[rank // 64] |= 1 << rank % 64
    return RESULT.pack(7, 9, 2, cause, initiator, known, *words, 5, 3, 1, 1, external)


def test_status():
    status = pp.Status()
    assert repr(status) == "Status(empty)"
    with pytest.raises(pp.Error, match="empty"):
        _ = status.round
    status._fill(result_bytes())
    assert (status.round, status.first, status.active) == (7, 5, 2)
    assert (status.contributions, status.missed, status.staleness) == (9, 3, 1)
    assert status.included is True
    assert status.contributors == (0, 1, 65)
    assert status.initiator == 1
    assert status.cause is pp.Cause.DEPARTED
    assert status.cause == "departed"
    assert status.activation is pp.Activation.INTERNAL
    assert repr(status) == (
        "Status(round=7, first=5, included=True, active=2, contributors=(0, 1, 65), "
        "contributions=9, missed=3, staleness=1, cause='departed', initiator=1, "
        "activation='internal')"
    )


def test_status_is_overwritten():
    status = pp.Status()
    status._fill(result_bytes())
    assert status.initiator == 1
    status._fill(result_bytes((), known=0, initiator=-1, cause=3, external=1))
    assert status.initiator is None
    assert status.contributors is None
    assert (status.cause, status.activation) == ("flush", "external")
    assert f"{status.cause} {status.activation}" == "flush external"


def test_status_copies_and_pickles():
    status = pp.Status()
    assert pickle.loads(pickle.dumps(status)) == status
    status._fill(result_bytes())
    for other in (copy.copy(status), pickle.loads(pickle.dumps(status))):
        assert other == status
        assert other.contributors == (0, 1, 65)
    assert status != pp.Status()
    with pytest.raises(TypeError):
        hash(status)


# ---- requests over a stand-in core --------------------------------------------------------------


class Core:
    """Stands in for the compiled module: what it returns is set by the test."""

    PP_ERR_ARGUMENT, PP_ERR_MISMATCH, PP_ERR_THREAD_LEVEL = -1, -3, -4
    PP_ERR_PEER_FAILED, PP_ERR_MEMORY, PP_ERR_INTERNAL = -5, -6, -8
    PP_COMPUTING, PP_WAITING, PP_IN_CALL = 0, 1, 2
    PP_WAITS_FOR_NO_DEVICE, PP_CONTRIBUTION_ON_ITS_WAY, PP_DEVICE_PART = range(3)
    PP_DOT, PP_GOAL = 0, 1
    NULL = None

    def __init__(self):
        self.starts, self.waits, self.pending = 0, [], 0
        self.status, self.error = 0, b"what the core says"
        self.states, self.questions = [], 0

    # ffi
    def new(self, declaration, count=None):
        if "rank_state" in declaration:
            return self.states
        return [None] if declaration.endswith("**") else bytearray(result_bytes())

    def buffer(self, data):
        return memoryview(data).cast("B") if data else bytearray(RESULT.size)

    def string(self, text):
        return text

    # lib
    def pp_error_text(self):
        return self.error

    def pp_handle_id(self, coll):
        return 2

    def pp_start(self, coll):
        self.starts += 1
        return self.status

    def pp_wait(self, coll, timeout_us, result):
        self.waits.append(timeout_us)
        time.sleep(timeout_us / 1e6 if self.pending else 0)
        self.pending = max(self.pending - 1, 0)
        return 1 if self.pending else self.status

    def pp_await(self, coll, timeout_us):
        return self.pp_wait(coll, timeout_us, None)

    def pp_wait_slice(self, coll):
        return self.pp_wait(coll, _native.SLICE_US, None)

    def pp_test(self, coll, result):
        return self.pp_wait(coll, 0, result)

    def pp_question_open(self, ctx, handle, states, question):
        self.questions += 1
        return self.status

    def pp_question_close(self, ctx, question):
        self.questions -= 1

    def pp_handle_obstacles(self, coll, text):
        text[0] = b"rank 1 is not here\nrank 2 neither\n"
        return 0

    def pp_text_free(self, text):
        pass

    def pp_timed_out(self, coll):
        return 0


class Context:
    rank, size = 0, 3
    _ctx = None
    _stall_warning = None


@pytest.fixture
def core():
    return Core()


@pytest.fixture
def request_(core):
    native = _native.Native(core, core, None, "Open MPI 5.0.1", "Open MPI v5.0.1", "libmpi.so")
    settings = allreduce.Settings("SUM", pp.Full(), "latest", None, None, np.dtype("f4"), 6)
    context = Context()
    context._calls = CollectiveCalls(native, None, None)
    vector = Vector([], np.dtype("f4"), [])
    return allreduce.AllreduceRequest(context, native, "coll", settings, vector)


def test_start_and_wait(core, request_):
    status = pp.Status()
    request_.Start()
    core.pending = 3
    assert request_.Wait(status) is True
    assert core.starts == 1
    assert len(core.waits) == 3
    assert max(core.waits) <= _native.SLICE_US
    assert status.round == 7
    assert request_.Test(status) is True


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-1, pp.ArgumentError),
        (-2, pp.Error),
        (-3, pp.MismatchError),
        (-4, pp.ThreadLevelError),
        (-5, pp.PeerFailedError),
        (-6, MemoryError),
        (-7, pp.Error),
        (-8, pp.Error),
    ],
)
def test_errors_of_the_core(core, request_, code, kind):
    core.status = code
    for call in (request_.Start, request_.Wait, request_.Test):
        with pytest.raises(kind, match="what the core says") as raised:
            call()
        assert raised.type is kind


class Odd:
    """What an argument should not be: converting it raises what it likes."""

    def __float__(self):
        raise RuntimeError

    def __repr__(self):
        return "<odd>"


@pytest.mark.parametrize(
    "timeout", [-1, float("nan"), "1", b"1", [1], 1j, np.zeros(2), np.array([]), Odd()], ids=repr
)
def test_bad_timeouts(core, request_, timeout):
    text = re.escape(f"timeout must be 0 or more seconds, not {timeout!r}")
    with pytest.raises(pp.ArgumentError, match=text):
        request_.Wait(timeout=timeout)
    with pytest.raises(pp.ArgumentError, match=text):
        pp.Waitall([request_], timeout=timeout)
    with pytest.raises(pp.ArgumentError, match=text):
        pp.Waitall([], timeout=timeout)
    assert core.waits == []


@pytest.mark.parametrize(
    "timeout", [0, 2, 0.01, np.float32(0.01), Fraction(1, 100), Decimal("0.01"), float("inf")]
)
def test_good_timeouts(core, request_, timeout):
    core.pending = 1
    assert request_.Wait(timeout=timeout) is True
    core.pending = 1
    assert pp.Waitall([request_], timeout=timeout) is True
    assert all(type(waited_us) is int for waited_us in core.waits)


@pytest.mark.parametrize("status", [3, "status", pp.Status, [pp.Status()]], ids=repr)
def test_bad_statuses(core, request_, status):
    text = re.escape(f"pypartial.Status, not {status!r}")
    calls = [request_.Wait, request_.Test, request_.Flush]
    calls += [
        lambda status: request_.Wait(status, "what is looked at first"),
        lambda status: pp.Waitall([request_, request_], [pp.Status(), status], "afterwards"),
    ]
    for call in calls:
        with pytest.raises(pp.ArgumentError, match=text):
            call(status)
    assert core.waits == []


def test_a_bad_status_in_flush_is_noticed_before_it_begins(core, request_):
    """The core that stands in has no collective calls: to begin one would be an AttributeError."""
    assert not hasattr(core, "pp_flush_begin")
    with pytest.raises(pp.ArgumentError, match="not 'x'"):
        request_.Flush("x")


@pytest.mark.parametrize("values", [[3], 3, None, ["a"], "ab", [None]], ids=repr)
def test_what_is_no_request_is_noticed_before_anything_is_done(core, request_, values):
    if isinstance(values, list):
        values = [request_, *values]
        text = re.escape(f"requests[1] must be a pypartial.Request, not {values[1]!r}")
    else:
        text = "requests"
    for call in (pp.Startall, pp.Waitall):
        with pytest.raises(pp.ArgumentError, match=text):
            call(values)
    with pytest.raises(pp.ArgumentError, match=text):
        pp.Waitall(values, timeout=1)
    assert core.starts == 0
    assert core.waits == []


def test_bad_statuses_of_waitall(core, request_):
    with pytest.raises(pp.ArgumentError, match=r"statuses must be a list of pypartial\.Status"):
        pp.Waitall([request_], pp.Status())
    with pytest.raises(pp.ArgumentError, match=r"statuses\[0\] must be a pypartial\.Status, not 3"):
        pp.Waitall([request_], [3])
    assert core.waits == []


@pytest.mark.parametrize("format", [["goal"], "png", None, 3, np.zeros(2), {}], ids=repr)
def test_bad_formats_of_dump(request_, format):
    with pytest.raises(pp.ArgumentError, match=re.escape(f"not {format!r}")):
        request_.dump(format)


def check_not_copied(thing):
    calls = [copy.copy, copy.deepcopy, lambda thing: copy.deepcopy([thing])]
    calls += [
        lambda thing, protocol=protocol: pickle.dumps(thing, protocol)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    for call in calls:
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            call(thing)


def test_requests_are_not_copied(request_):
    check_not_copied(request_)


def test_contexts_are_not_copied():
    check_not_copied(pp.Context.__new__(pp.Context))


TIMED_OUT = (
    r"Wait on handle 2 \(SUM of 6 float32, Full\(\), 'latest'\): not complete after .*s; "
    r"as seen from here: rank 1 is not here; rank 2 neither$"
)


@pytest.mark.parametrize("timeout", [0, 0.01, 0.12])
def test_timeout_says_at_once_what_is_seen_from_here(core, request_, timeout):
    core.pending = 1000
    core.pp_question_open = None  # nobody is asked
    began = time.monotonic()
    with pytest.raises(pp.TimeoutError, match=TIMED_OUT):
        request_.Wait(timeout=timeout)
    assert time.monotonic() - began >= timeout
    assert sum(core.waits) <= timeout * 1e6


def test_ctrl_c_leaves_the_request_outstanding(core, request_, monkeypatch):
    def interrupted(coll, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr(request_, "_pp_wait", interrupted)
    monkeypatch.setattr(request_, "_pp_wait_slice", interrupted)
    for timeout in (None, 1):
        with pytest.raises(KeyboardInterrupt):
            request_.Wait(timeout=timeout)
    monkeypatch.undo()
    assert request_.Wait()


def test_stall_warnings_at_doubling_intervals(core, request_, monkeypatch, caplog):
    monkeypatch.setattr(Context, "_stall_warning", 0.06)
    core.pending = 10**6
    waited = []

    def text(self, waited_s):
        waited.append(waited_s)
        if len(waited) == 3:
            core.pending = 0
        return f"waited {waited_s:.3f}"

    monkeypatch.setattr(_explain.Explainer, "text", text)
    request_.Wait()
    assert [record.getMessage() for record in caplog.records] == [
        f"pypartial: waited {waited_s:.3f}" for waited_s in waited
    ]
    assert {record.name for record in caplog.records} == {"pypartial"}
    assert len(waited) == 3
    assert all(waited_s >= 0.06 * 2**number for number, waited_s in enumerate(waited))


class Ends:
    """Notes how a request ends: by Free, or by giving up its context."""

    def __init__(self, request_, monkeypatch, free_raises=None):
        self.seen = []
        self.free_raises = free_raises
        self.request = request_
        monkeypatch.setattr(pp.Request, "Free", lambda _: self.free())
        monkeypatch.setattr(Context, "_abandon", self.abandon, raising=False)

    def free(self):
        self.seen.append("Free")
        if self.free_raises is not None:
            raise self.free_raises
        self.request._refuse("handle 2 was freed")

    def abandon(self, error, block):
        assert block == "the with block of handle 2"
        self.seen.append(f"abandon: {type(error).__name__}")


@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["normally", "by an exception"])
def test_a_with_block_in_which_the_request_was_freed(request_, monkeypatch, error):
    ends = Ends(request_, monkeypatch)
    with contextlib.suppress(ZeroDivisionError), request_:
        request_.Free()
        if error is not None:
            raise error
    assert ends.seen == ["Free"]


def test_a_with_block_goes_on_with_a_free_that_timed_out(request_, monkeypatch):
    ends = Ends(request_, monkeypatch)
    monkeypatch.setattr(request_._context._calls, "in_progress", "Free of handle 2".__eq__)
    with request_:
        request_._refuse("handle 2 is being freed: its Free timed out; call it again")
    assert ends.seen == ["Free"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_a_with_block_whose_free_is_interrupted(request_, monkeypatch, kind):
    """By Ctrl-C, or by what another signal's handler raises: no collective call is possible now."""
    ends = Ends(request_, monkeypatch, free_raises=kind())
    with pytest.raises(kind), request_:
        pass
    assert ends.seen == ["Free", f"abandon: {kind.__name__}"]


def test_startall_and_waitall(core, request_):
    statuses = [pp.Status(), pp.Status()]
    pp.Startall([request_, request_])
    assert pp.Waitall([request_, request_], statuses, timeout=1) is True
    assert core.starts == 2
    assert statuses[0] == statuses[1] != pp.Status()
    pp.Startall(iter([request_]))
    assert pp.Waitall(iter([request_]), iter([pp.Status()])) is True
    assert core.starts == 3
    core.waits.clear()
    with pytest.raises(pp.ArgumentError, match="2 requests, but 1 statuses"):
        pp.Waitall([request_, request_], statuses[:1])
    assert core.waits == []


# ---- reports ------------------------------------------------------------------------------------


ADVICE = "if a rank is in a call of its own, put that into `with ctx.away():`"
OR_USE = f"{ADVICE} (or use ctx.comm)"
SILENT = "outside the library with progress='caller', stopped, or gone"


def state(rank, **values):
    defaults = dict.fromkeys(_explain.RankState._fields, 0)
    defaults.update(rank=rank, answered=True, activity=_explain.COMPUTING, handle=2, round=5)
    defaults.update(completed=5, joined=5, place=rank, calls=1, taken=5)
    defaults.update(values)
    return _explain.RankState(**defaults)


def waits(rank, **values):
    return state(rank, **{"activity": _explain.WAITING, "ready": True, "waits": True} | values)


def wait_report(states, policy, handle=2):
    """What is said, and whether that is all."""
    text, explains = _explain.report_wait(handle, states, 0, policy)
    assert "{" not in text
    return text if explains else f"{text}, or what is seen from here"


WITHHOLDS = {"withholding": True, "last": "Wait of handle 2"}


@pytest.mark.parametrize(
    ("states", "policy", "text"),
    [
        pytest.param(
            [waits(0), waits(1), state(2, **WITHHOLDS, quiet_ns=12_340_000_000, taken=3)],
            pp.Majority(),
            "withheld from it by max_lag: rank 2 (computing, last call Wait of handle 2 (12.3 s "
            f"ago), has not taken its rounds since round 2); {OR_USE}; waiting for the round: "
            "ranks 0-1",
            id="a rank that withholds, and a drawn one that waits itself",
        ),
        pytest.param(
            [waits(0, place=1), state(1, place=0, **WITHHOLDS, taken=0), state(2)],
            pp.Majority(),
            "withheld from it by max_lag: rank 1 (computing, last call Wait of handle 2); "
            f"{OR_USE}; waiting for the round: rank 0",
            id="both of one rank",
        ),
        pytest.param(
            [waits(0, place=1), state(1, place=0, calls=3), state(2)],
            pp.Majority(),
            f"drawn to trigger it: rank 1 (computing, 3 collective calls done); {OR_USE}; waiting "
            "for the round: rank 0",
            id="a drawn rank that computes",
        ),
        pytest.param(
            [
                waits(0, place=3),
                state(1, place=0, passes=True, left=True),
                state(2, place=2, activity=_explain.WAITING, handle=3, round=9),
                state(3, place=1, passes=True, aside=True),
            ],
            pp.FirstOf(2),
            "",
            id="draws that go on, one of them to a rank that waits",
        ),
        pytest.param(
            [
                waits(0, place=4),
                state(1, place=0, passes=True, left=True),
                state(2, place=2, activity=_explain.WAITING, handle=3, round=9),
                state(3, place=1, activity=_explain.IN_CALL, call="Flush of handle 2"),
                state(4, place=3),
            ],
            pp.FirstOf(2),
            "drawn to trigger it: rank 2 (waiting on handle 3), rank 3 (inside a "
            "collective call, Flush of handle 2); waiting for the round: rank 0",
            id="draws that go on to a rank that is elsewhere; a call that others have left",
        ),
        pytest.param(
            [waits(0), state(1), state(2, aside=True), state(3, left=True), state(4), waits(5)],
            pp.Quorum(3),
            f"2 of 6 ranks are ready; not ready: ranks 1, 4 (computing); {OR_USE}; waiting for the "
            "round: ranks 0, 5",
            id="ranks that a quorum needs",
        ),
        pytest.param(
            [waits(0), waits(1), state(2, **WITHHOLDS)],
            pp.Quorum(2),
            "withheld from it by max_lag: rank 2 (computing, last call Wait of handle 2, has not "
            f"taken its rounds since round 4); {OR_USE}; waiting for the round: ranks 0-1",
            id="a quorum that is there",
        ),
        pytest.param(
            [waits(0, overdue=True), state(1), state(2, **WITHHOLDS, taken=0)],
            pp.Full(deadline=1),
            "withheld from it by max_lag: rank 2 (computing, last call Wait of handle 2); "
            f"{OR_USE}; waiting for the round: rank 0",
            id="a deadline that is over",
        ),
        pytest.param(
            [waits(0, joined=6), state(1, last="Start of handle 2"), waits(2, joined=6)],
            pp.Full(),
            f"2 of 3 ranks are ready; not ready: rank 1 (computing, last call Start of handle 2); "
            f"{ADVICE}; waiting for the round: ranks 0, 2",
            id="Full, which ctx.comm does not lift",
        ),
        pytest.param(
            [waits(0, joined=6), state(1, joined=6), state(2), state(3, answered=False)],
            pp.Solo(),
            "yet to take part: rank 2 (computing); perhaps missing: rank 3 (no answer: "
            f"{SILENT}); {OR_USE}; waiting for the round: rank 0",
            id="a rank whose part is missing, and one that does not answer",
        ),
        pytest.param(
            [waits(0), state(1, completed=0, place=-1, activity=_explain.IN_CALL, call="making")],
            pp.Majority(),
            "yet to take part: rank 1 (inside a collective call, making); waiting for the round: "
            "rank 0",
            id="a rank that does not know the handle yet",
        ),
    ],
)
def test_a_report_names_every_rank_that_holds_a_round_up_and_why(states, policy, text):
    held_up = f"round 5 is held up; {text}" if text else "round 5: no rank is missing; all ranks: "
    assert wait_report(states, policy).startswith(held_up)
    if text:
        assert wait_report(states, policy) == held_up


def test_report_when_nobody_is_missing():
    text = wait_report([waits(r, joined=6) for r in range(3)], pp.Full())
    assert text == (
        "round 5: no rank is missing; all ranks: ranks 0-2 (waiting on this handle for round 5), "
        "or what is seen from here"
    )


def test_report_of_devices_that_are_waited_for():
    states = [waits(0, joined=6), waits(1, joined=6, device_wait=_explain.PART)]
    assert (
        "no rank is missing, but devices have yet to do their part: rank 1 (waiting on this handle "
        "for round 5; its device has yet to do its part of a round)"
    ) in wait_report(states, pp.Full())
    states[1] = waits(1, ready=False, waits=False, device_wait=_explain.CONTRIBUTION)
    text = "not ready: rank 1 (waiting on this handle for round 5; its contribution is on its way"
    assert text in wait_report(states, pp.Full())


def test_report_of_many_ranks_is_short():
    """Also if each has taken another number of rounds: ranks with one reason are named together."""
    quiet = [state(r, last="Wait of handle 2", quiet_ns=r * 10**9) for r in range(1, 32)]
    text = wait_report([waits(0), *quiet], pp.Full())
    assert "not ready: ranks 1-31 (computing, last call Wait of handle 2 (1.0-31.0 s ago))" in text
    text = wait_report([waits(r) if r % 2 else state(r) for r in range(1000)], pp.Full())
    assert "not ready: ranks 0, 2, 4" in text
    assert "28, 30 and 484 more (computing)" in text


def test_report_of_a_group():
    """The ranks that do not wait first; which of them are in it only rank 0 may know."""
    states = [waits(0), state(1), state(2, aside=True), waits(3), state(4, answered=False)]
    assert _explain.report_group(2, states, 0) == (
        f"ranks 1-2 (computing), rank 4 (no answer: {SILENT}); waiting: ranks 0, 3",
        False,
    )
    assert _explain.report_group(2, states[:1], 0) == ("waiting: rank 0", False)


def call_report(states):
    return _explain.report_call(2, states, 0)[0]


def test_report_of_a_collective_call():
    inside = {"activity": _explain.IN_CALL, "call": "Flush of handle 2"}
    states = [
        state(0, calls=4, **inside),
        state(1, calls=3, **inside | {"call": "Drain of handle 1"}),
        state(2, calls=4, last="Start of handle 1"),
        state(3, calls=4, **inside),
        state(4, calls=5),
    ]
    assert call_report(states) == (
        "it is collective call number 5 of this context; not in it yet: rank 1 (inside a "
        "collective call, Drain of handle 1, 3 collective calls done), rank 2 (computing, last "
        "call Start of handle 1)"
    )
    text = call_report(states[:1] + states[3:])
    assert "every rank has called it; all ranks: ranks 0, 3 (inside" in text
    assert "different" not in text


def test_report_of_different_collective_calls():
    inside = {"activity": _explain.IN_CALL, "calls": 4, "call": "Flush of handle 2"}
    states = [
        state(0, **inside),
        state(1, **inside | {"call": "Free of handle 3"}),
        state(2, **inside),
        state(3, **inside | {"call": "making a handle"}),
        state(4, calls=5, activity=_explain.IN_CALL, call="away()"),  # has been in it already
    ]
    beginning = (
        "it is collective call number 5 of this context; the ranks are in different collective "
        "calls: ranks 0, 2 in Flush of handle 2; rank 1 in Free of handle 3; rank 3 in making a "
        "handle"
    )
    assert call_report(states) == beginning
    states.append(state(5, calls=4))
    assert call_report(states) == f"{beginning}; not in it yet: rank 5 (computing)"


def test_a_warning_that_is_an_error_is_logged(caplog):
    """Raised by a collective call that has succeeded, it would lose a handle on this rank alone."""
    with pytest.warns(RuntimeWarning, match="less memory"):
        _native.warn("less memory")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _native.warn("no memory")
    assert [record.getMessage() for record in caplog.records] == ["pypartial: no memory"]


def test_lines_of_the_log_say_whose_they_are():
    """In a program that sets up no logging, which prints the bare message."""
    code = "from pypartial import _native; _native.LOGGER.warning('%s waits', 'rank 3')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "pypartial: rank 3 waits\n"


@pytest.mark.parametrize(
    ("started", "remedy"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}, "srun --mpi=pmix"),
        ({"PMI_SIZE": "4"}, "different MPI libraries"),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),  # the script of a job
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({}, None),
    ],
)
def test_a_process_that_should_not_be_alone_is_told(started, remedy):
    code = "from mpi4py import MPI; import pypartial as pp; pp.Context(MPI.COMM_WORLD).Free()"
    names = (*_launch._SIZES, *_launch._RANKS)
    kept = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=kept | started,
        timeout=60,
        check=True,
    )
    told = [line for line in done.stderr.splitlines() if "alone" in line]
    assert len(told) == (remedy is not None), done.stderr
    if remedy is not None:
        assert "RuntimeWarning" in told[0] and "started 4 processes" in told[0]
        assert remedy in told[0]


# ---- loading the core ---------------------------------------------------------------------------


CRAY = (
    "MPI VERSION    : CRAY MPICH version 8.1.28.15 (ANL base 3.4a2)\n"
    "MPI BUILD INFO : Wed Nov 15 20:57 2023 (git hash 1cde46f)\n"
)


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        ("Open MPI 5.0.11", ("open mpi", "5.0")),
        ("Open MPI v5.0.11, package: Open MPI user@host 4.1 Distribution", ("open mpi", "5.0")),
        ("Open MPI v4.1.4, package: Debian OpenMPI", ("open mpi", "4.1")),
        ("MPICH Version:\t4.3.1\nMPICH Release date: x", ("mpich", "4.3")),
        ("MPICH 4.3.1", ("mpich", "4.3")),
        ("MPICH Version:\t4.1.2\nMPICH CC:\t/opt/intel/2024.1/bin/icx", ("mpich", "4.1")),
        ("MPICH Version:\t4.1.1\n=== ParaStation MPI 5.9 ===", ("mpich", "4.1")),
        ("MVAPICH2 Version      :\t2.3.7\nMVAPICH2 MPICH 3.2", ("mvapich", "2.3")),
        ("MVAPICH Version:\t3.0\nMVAPICH Release date:\tx", ("mvapich", "3.0")),
        ("MVAPICH 2.3.7", ("mvapich", "2.3")),
        ("Intel(R) MPI Library 2021.10 for Linux* OS", ("intel", "2021.10")),
        ("Intel(R) MPI Library 2021.18 for Linux* OS\n", ("intel", "2021.18")),
        ("Intel MPI 2021.10.0", ("intel", "2021.10")),
        (CRAY, ("cray mpich", "8.1")),
        ("MPI VERSION    : CRAY MPICH version 9.0.0.113 (ANL base 4.1.2)", ("cray mpich", "9.0")),
        ("Cray MPICH 8.1.28.15", ("cray mpich", "8.1")),
        ("HPE MPT 2.23  08/26/20 02:54:49-root", ("hpe", "2.23")),
    ],
)
def test_identity_of_an_mpi(text, identity):
    assert identify(text) == identity


def test_which_files_are_mpi_libraries():
    assert all(map(is_mpi_library, ["/a/libmpi.so.40", "/a/libmpi.so.12.3", "/libmpich.so"]))
    assert all(map(is_mpi_library, ["/a/libmpi_cray.so.12", "/a/libmpi_gnu_123.so.12"]))
    assert not any(map(is_mpi_library, ["/a/libmpi_gtl_cuda.so", "/a/libmpifort_gnu_123.so.12"]))
    assert not any(map(is_mpi_library, ["/a/libmpi_mpifh.so.40", "/a/libmpiprof.so", "/a"]))
    assert os.path.realpath(sys.executable) in {os.path.realpath(f) for f in mapped_files()}


@pytest.fixture
def native():
    if importlib.util.find_spec("pypartial._core") is None:
        pytest.skip("the core is not compiled")
    return _native.load()


def test_the_core_runs_on_mpi4pys_mpi(native):
    assert native is _native.load()
    assert native.text(native.lib.pp_version()) == pp.__version__
    assert identify(native.built_for) == identify(native.library)
    assert is_mpi_library(native.library_file)


def test_a_slice_is_as_long_as_the_core_waits(native):
    assert native.lib.PP_SLICE_US == _native.SLICE_US


def stub_names(stub):
    text = (PACKAGE / stub).read_text(encoding="utf-8")
    lib = text[text.index("class Lib") :]
    return set(re.findall(r"^    (?:def )?(\w+)[:(]", lib, re.MULTILINE))


def test_the_stubs_name_what_the_modules_have(native):
    from pypartial import _core_sim

    names = stub_names("_core.pyi")
    assert names == {name for name in dir(native.lib) if not name.startswith("_")}
    more = stub_names("_core_sim.pyi")
    assert names | more == {name for name in dir(_core_sim.lib) if not name.startswith("_")}
    assert not names & more


@pytest.mark.parametrize(
    ("library", "files", "text"),
    [
        ("Open MPI v1.10.7, package", None, "was built for another MPI"),
        ("MPICH Version: 3.1", None, "was built for another MPI"),
        (None, {"/elsewhere/libmpi.so.40"}, "use two MPI libraries"),
    ],
)
def test_another_mpi_is_refused(native, monkeypatch, library, files, text):
    class OtherMPI:
        @staticmethod
        def Get_library_version():
            return library or native.library

    monkeypatch.setattr(mpi4py, "MPI", OtherMPI)
    if files is not None:
        monkeypatch.setattr(_native, "mapped_files", lambda: files)
    with pytest.raises(ImportError, match=text) as raised:
        _native.load.__wrapped__()
    message = str(raised.value)
    assert f"pypartial was built for: {native.built_for}" in message
    assert f"mpi4py uses: {library or native.library.splitlines()[0]}" in message
    assert "PYPARTIAL_MPICC=" in message


def test_a_core_that_cannot_be_loaded(native, monkeypatch):
    def no_core(name, globals_=None, locals_=None, fromlist=(), level=0):
        if "_core" in (fromlist or ()):
            raise ImportError("libmpi.so.40: cannot open shared object file")
        return plain_import(name, globals_, locals_, fromlist, level)

    plain_import = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", no_core)
    with pytest.raises(ImportError, match=r"libmpi.so.40: cannot open.*\n.*mpi4py uses"):
        _native.load.__wrapped__()
