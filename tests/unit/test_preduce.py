"""Requests of P-Reduce over a stand-in core, their arguments, generators, and statuses."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi
import numpy as np
import pytest

import pypartial as pp
from pypartial import _native
from pypartial._calls import CollectiveCalls
from pypartial._preduce_init import Arguments
from pypartial.groups import Generator, groups_of, members_of, next_members
from pypartial.status import RESULT, GroupResult

HEADER = Path(__file__).resolve().parents[2] / "csrc" / "include" / "pypartial.h"
PENDING = 1
ALONE = {"round": 0}
RANK, SIZE = 1, 6
UNTYPED: Any = pp.groups  # to pass what its types forbid


# ---- generators ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: UNTYPED.Table([]), r"phases must have at least one phase, not \[\]"),
        (lambda: UNTYPED.Table("01"), "phases must be a list, not '01'"),
        (lambda: UNTYPED.Table([3]), r"phases\[0\] must be a list, not 3"),
        (
            lambda: UNTYPED.Table([[[0, 1]], [[]]]),
            r"phases\[1\]\[0\] must have at least one rank",
        ),
        (lambda: UNTYPED.Table([[[0, 1], [2, 1]]]), r"phases\[0\]: rank 1 is in two groups"),
        (lambda: UNTYPED.Table([[[1, 1]]]), r"phases\[0\]\[0\]: rank 1 is in the group twice"),
        (lambda: UNTYPED.Table([[[0, -2]]]), r"phases\[0\]\[0\]: -2 is not a rank"),
        (lambda: UNTYPED.Table([[[0, 1.5]]]), r"a rank of phases\[0\]\[0\] must be .*1\.5"),
        (lambda: UNTYPED.Static(nodes=0), "nodes must be in 1..2147483647, not 0"),
        (lambda: UNTYPED.Static(per_node="4"), "per_node must be an integer, not '4'"),
        (lambda: UNTYPED.Random(2.5), "size must be an integer, not 2.5"),
        (lambda: UNTYPED.Random(2, reuse="no"), "reuse must be True or False, not 'no'"),
        (lambda: UNTYPED.Smart(2, division=1), "division must be True or False, not 1"),
        (lambda: UNTYPED.Smart(2, c_thres=0), "c_thres must be in 1..2147483647, not 0"),
        (lambda: UNTYPED.Smart(2, foresight=100_001), r"foresight must be in 0\.\.100000"),
        (lambda: UNTYPED.Controller(2, history="all"), "history must be 'auto' or .*'all'"),
        (lambda: UNTYPED.Controller(2, history=0), "history must be in 1..2147483647, not 0"),
    ],
)
def test_generators_that_are_wrong(make: Callable[[], Generator], text: str) -> None:
    with pytest.raises(pp.ArgumentError, match=text):
        make()


def test_generators_that_fit() -> None:
    for generator in (
        pp.groups.Given(),
        pp.groups.Table([[[0, 7]]]),
        pp.groups.Static(),
        pp.groups.Static(2),
        pp.groups.Static(per_node=1),
        pp.groups.Static(4, 2),
        pp.groups.Random(8),
        pp.groups.Smart(2),
        pp.groups.Controller(3, history=4),
    ):
        generator.check(8)
    for size in (1, 2, 9):  # in a context of one rank any counts as 1
        for generator in (pp.groups.Smart(size), pp.groups.Controller(size, history=1)):
            generator.check(1)


def test_generators_are_values() -> None:
    assert UNTYPED.Smart(np.int64(3), division=np.True_) == pp.groups.Smart(3)
    assert type(UNTYPED.Smart(np.int64(3)).size) is int
    assert pp.groups.Smart(3) != pp.groups.Smart(3, inter_intra=True)
    assert pp.groups.Table([[(1, 0)]]) == pp.groups.Table([[[0, 1]]])
    assert len({pp.groups.Table([[[1, 0]]]), pp.groups.Table([[[0, 1]]])}) == 1
    with pytest.raises(AttributeError):
        pp.groups.Random(2).size = 3  # type: ignore[misc]
    assert repr(pp.groups.Controller(2)) == "Controller(size=2, history='auto', unfreeze=True)"
    assert repr(pp.groups.Smart(2)).endswith("c_thres=4, foresight=100, unfreeze=True)")


def test_tables_with_idle_ranks() -> None:
    table = pp.groups.Table([[[2, 0, 4], [1, 3]], [], [[5]]])
    following = next_members(table.phases, 6)
    assert following == [2, 3, 4, 1, 0, 5, *range(6), *range(6)]
    assert groups_of(following[:6]) == [(0, 2, 4), (1, 3)]
    assert groups_of(following[6:12]) == []


@pytest.mark.parametrize(
    ("generator", "node_of", "layout"),
    [
        (pp.groups.Static(), [0, 0, 1, 1], (2, 2)),
        (pp.groups.Static(), [0, 0, 0, 0], (1, 4)),
        (pp.groups.Static(nodes=4), [0, 0, 0, 0], (4, 1)),
        (pp.groups.Static(per_node=2), [0, 1, 0, 1], (2, 2)),
        (pp.groups.Static(1, 4), [0, 1, 0, 1], (1, 4)),
    ],
)
def test_the_layout_of_the_static_table(
    generator: pp.groups.Static, node_of: list[int], layout: tuple[int, int]
) -> None:
    assert generator.layout(node_of) == layout


@pytest.mark.parametrize("node_of", [[0, 1, 0, 1], [0, 0, 1], [0, 0, 0, 1]])
def test_nodes_that_have_no_static_table(node_of: list[int]) -> None:
    with pytest.raises(pp.ArgumentError, match=r"2 nodes are not equally large.*pass nodes= and"):
        pp.groups.Static().layout(node_of)


def test_a_group_in_any_order() -> None:
    assert members_of((5, np.int32(1), 0), RANK, SIZE) == [0, 1, 5]


# ---- statuses ------------------------------------------------------------------------------------

GROUP = GroupResult(17, 4, (0, 2), (0.25, 0.5), 0.25)


def round_bytes() -> bytes:
    return RESULT.pack(7, 9, 2, 1, 1, 1, *[3] + [0] * 15, 5, 3, 1, 1, 0)


def test_the_status_of_a_group() -> None:
    status = pp.Status()
    status._fill(GROUP)
    assert (status.round, status.iteration, status.group) == (17, 4, (0, 2))
    assert (status.weights, status.initial) == ((0.25, 0.5), 0.25)
    assert repr(status) == (
        "Status(round=17, iteration=4, group=(0, 2), weights=(0.25, 0.5), initial=0.25)"
    )
    for other in (copy.copy(status), pickle.loads(pickle.dumps(status))):
        assert other == status and other.group == (0, 2)
    status._fill(GROUP._replace(round=18))
    assert other != status


@pytest.mark.parametrize(
    "name",
    ["contributors", "active", "cause", "initiator", "included", "staleness", "first", "missed"],
)
def test_a_group_has_no_attributes_of_a_round(name: str) -> None:
    status = pp.Status()
    status._fill(GROUP)
    with pytest.raises(pp.Error, match="describes a group of P-Reduce, which has round, group"):
        getattr(status, name)


@pytest.mark.parametrize("name", ["group", "weights", "iteration", "initial"])
def test_a_round_has_no_attributes_of_a_group(name: str) -> None:
    status = pp.Status()
    with pytest.raises(pp.Error, match="is empty"):
        getattr(status, name)
    status._fill(round_bytes())
    with pytest.raises(pp.Error, match="describes a round of an allreduce, which has no group"):
        getattr(status, name)


def test_one_status_for_both() -> None:
    status, other = pp.Status(), pp.Status()
    status._fill(round_bytes())
    assert status.round == 7 and status.contributors == (0, 1)
    other._fill(GROUP)
    assert status != other
    status._fill(GROUP)
    assert status == other and status.round == 17
    status._fill(round_bytes())
    assert status.round == 7 and status.contributors == (0, 1)


# ---- a stand-in core -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ffi() -> Any:
    """The types and the constants of the public header."""
    ffi = cffi.FFI()
    text = HEADER.read_text(encoding="utf-8")
    found = re.search(r"/\* CDEF BEGIN \*/(.*)/\* CDEF END \*/", text, re.DOTALL)
    assert found
    ffi.cdef(found[1])
    return ffi


GENERATORS = [b"table", b"given", b"random", b"smart", b"controller"]


class Core:
    """What its waits answer is set by the test: PENDING, an error, or the fields of a group."""

    def __init__(self, ffi: Any) -> None:
        self._ffi, self._constants = ffi, ffi.dlopen(None)
        self.answers: list[int | dict[str, Any]] = []
        self.result: dict[str, Any] | None = None
        self.said: list[Any] = []
        self.nodes: list[int] = []
        self.outstanding = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("PP_"):
            raise AttributeError(name)
        return getattr(self._constants, name)

    def pp_handle_id(self, handle: Any) -> int:
        return 2

    def pp_generator_number(self, name: bytes) -> int:
        return GENERATORS.index(name)

    def pp_error_text(self) -> Any:
        return self._ffi.new("char[]", b"what the core says")

    def pp_start(self, handle: Any) -> int:
        self.said.append("start")
        return 0

    def pp_preduce_start(self, handle: Any, iteration: int, members: Any, count: int) -> int:
        self.said.append((iteration, members if count else []))
        self.outstanding = True
        return 0

    def pp_wait(self, handle: Any, timeout_us: int, result: Any) -> int:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            return answer
        self.result = answer
        return 0

    def pp_wait_slice(self, handle: Any) -> int:
        return self.pp_wait(handle, 0, None)

    def pp_test(self, handle: Any, result: Any) -> int:
        return self.pp_wait(handle, 0, result)

    def pp_preduce_result(self, handle: Any, result: Any) -> int:
        if self.result is None:
            return int(self.PP_ERR_STATE)
        for name in ("round", "iteration", "runs", "kept", "fresh", "initial"):
            setattr(result, name, self.result.get(name, 0))
        members, weights = self.result.get("members", []), self.result.get("weights", [])
        self.kept_alive = [
            self._ffi.new("int32_t[]", members),
            self._ffi.new("double[]", weights),
        ]
        result.members, result.weights = self.kept_alive
        result.count = len(members)
        return 0

    def pp_preduce_ran(self, handle: Any) -> int:
        self.said.append("ran")
        return 0

    def pp_is_outstanding(self, handle: Any) -> int:
        return int(self.PP_PENDING) if self.outstanding else 0

    def pp_preduce_deliver(self, handle: Any) -> int:
        self.outstanding = False
        return 0

    def pp_preduce_backend(self, handle: Any) -> int:
        return int(self.PP_BACKEND_SCHEDULE)

    def pp_flush_begin(self, handle: Any) -> int:
        self.said.append("flush")
        return 0

    def pp_land_all(self, ctx: Any, until: Any, timeout_us: int) -> int:
        return 0

    def pp_call_wait(self, ctx: Any, timeout_us: int) -> int:
        return 0

    def pp_collect(self, handle: Any, result: Any) -> int:
        return self.pp_wait(handle, 0, result)

    def pp_handle_free_begin(self, handle: Any, discarded: Any) -> int:
        self.said.append("free")
        return 0

    def pp_ctx_nodes(self, ctx: Any, node_of: Any) -> int:
        node_of[0 : len(self.nodes)] = self.nodes
        return 0

    def pp_groups_static_table(self, nodes: int, per_node: int, table: Any) -> int:
        self.said.append((nodes, per_node))
        ranks = nodes * per_node
        table[0 : 4 * ranks] = [*range(ranks)] * 4
        return 0


@pytest.fixture
def core(ffi: Any) -> Core:
    return Core(ffi)


def native_of(core: Core, mpi: Any = None) -> Any:
    made: Any = _native.Native
    return made(core._ffi, core, mpi, "Open MPI 5.0.1", "Open MPI v5.0.1", "libmpi.so")


OPTIONS = {
    "weights": "constant",
    "alpha": 0.5,
    "missing": "closest",
    "backend": "auto",
    "device_path": "auto",
    "cache": 64,
}


def read(groups: Any, buf: Any = None, **options: Any) -> Arguments:
    native: Any = None  # is for buffers on a device
    return Arguments.read(native, np.zeros(3) if buf is None else buf, groups, OPTIONS | options)


def made(core: Core, arguments: Arguments, comm: Any = None) -> pp.PreduceRequest:
    mpi = None
    if comm is not None:
        from mpi4py import MPI

        mpi = MPI
    native = native_of(core, mpi)
    rank, size = (RANK, SIZE) if comm is None else (comm.rank, comm.size)
    context: Any = SimpleNamespace(
        rank=rank, size=size, comm=comm, _ctx=None, _stall_warning=None, _forget=lambda _: None
    )
    context._calls = CollectiveCalls(native, context._ctx, None)
    request = pp.PreduceRequest(context, native, core._ffi.new("char *"), arguments)
    if comm is not None:
        request._use_communicators(arguments.vector)
    return request


@pytest.fixture
def smart(core: Core) -> pp.PreduceRequest:
    return made(core, read(pp.groups.Smart(2)))


@pytest.fixture
def given(core: Core) -> pp.PreduceRequest:
    return made(core, read(pp.groups.Given()))


# ---- requests ------------------------------------------------------------------------------------


def test_a_group_and_its_status(core: Core, smart: pp.PreduceRequest) -> None:
    status = pp.Status()
    smart.Start()
    core.answers = [
        PENDING,
        {"round": 3, "iteration": 1, "members": [0, 1], "weights": [0.5, 0.5]},
    ]
    assert smart.Wait(status) is True
    assert (status.round, status.iteration, status.group) == (3, 0, (0, 1))
    assert status.weights == (0.5, 0.5) and status.initial == 0
    core.answers = [ALONE | {"iteration": 2}, ALONE]
    assert smart.Wait(status, timeout=1) is True
    assert (status.round, status.iteration) == (0, 1)
    assert status.group == (RANK,) and list(status.weights) == [1.0]
    assert smart.Wait() is True
    assert core.said == ["start"] and not core.answers


def test_test_does_not_block(core: Core, smart: pp.PreduceRequest) -> None:
    status = pp.Status()
    core.answers = [PENDING, {"round": 3, "iteration": 1, "members": [1], "weights": [1.0]}]
    assert smart.Test(status) is False
    assert repr(status) == "Status(empty)"
    assert smart.Test(status) is True
    assert status.group == (1,)


def test_a_timeout_and_bad_arguments(core: Core, smart: pp.PreduceRequest) -> None:
    bad: Any = "status"
    with pytest.raises(pp.ArgumentError, match=r"must be a pypartial\.Status"):
        smart.Wait(bad)
    with pytest.raises(pp.ArgumentError, match="timeout must be 0 or more"):
        smart.Wait(timeout=-1)
    assert not core.said


def test_groups_are_given_where_the_handle_asks_for_them(
    core: Core, smart: pp.PreduceRequest, given: pp.PreduceRequest
) -> None:
    with pytest.raises(pp.ArgumentError, match=r"group=\[0, 1\] is for handles with groups.Given"):
        smart.Start(group=[0, 1])
    with pytest.raises(pp.ArgumentError, match="group is missing"):
        given.Start()
    with pytest.raises(pp.ArgumentError, match="must contain this rank, 1"):
        given.Start(group=[0, 2])
    assert not core.said
    given.Start(group=[5, 1])
    given.Start(3, [1, 0])
    assert core.said == [(0, [1, 5]), (4, [0, 1])]


def test_a_flush_has_a_status(core: Core, smart: pp.PreduceRequest) -> None:
    status = pp.Status()
    everybody = list(range(SIZE))
    core.answers = [{"round": 9, "iteration": 0, "members": everybody, "weights": [1 / 6] * 6}]
    smart.Flush(status)
    assert status.group == tuple(everybody) and status.iteration == -1
    assert core.said == ["flush"]


def test_what_a_request_is(core: Core, smart: pp.PreduceRequest) -> None:
    assert smart.backend == "schedule"
    assert smart.generator == pp.groups.Smart(2)
    assert (smart.weights, smart.alpha, smart.missing) == ("constant", 0.5, "closest")
    assert smart.dtype == np.float64 and smart.count == 3
    assert repr(smart) == (
        f"<pypartial.PreduceRequest 2: {pp.groups.Smart(2)!r}, 3 float64, 'constant'>"
    )
    smart._refuse("the end")
    for call in (smart.Start, lambda: smart.Start(3), smart.Wait, smart.Test, smart.Flush):
        with pytest.raises(pp.Error, match="the end"):
            call()
    with pytest.raises(pp.Error, match="the end"):
        _ = smart.backend
    assert not core.said


# ---- arguments -----------------------------------------------------------------------------------


def plan_of(core: Core, groups: Generator, **options: Any) -> tuple[Any, Any]:
    config, keep = read(groups, **options).config(native_of(core), core._ffi.NULL, SIZE)
    return config, keep


def test_the_plans_of_generators(core: Core) -> None:
    config, _keep = plan_of(core, pp.groups.Random(3, reuse=True), cache=5, alpha=0.25)
    plan = config.plan
    assert plan.generator == core.pp_generator_number(b"random")
    assert (plan.size, plan.reuse, plan.cache, plan.alpha) == (3, 1, 5, 0.25)
    smart = pp.groups.Smart(2, division=False, inter_intra=True, c_thres=7, foresight=30)
    plan = plan_of(core, smart)[0].plan
    assert plan.generator == core.pp_generator_number(b"smart")
    assert (plan.division, plan.inter_intra, plan.c_thres, plan.foresight) == (0, 1, 7, 30)
    assert plan.unfreeze == 1
    plan = plan_of(core, pp.groups.Smart(2, unfreeze=False))[0].plan
    assert plan.unfreeze == 0
    plan = plan_of(core, pp.groups.Controller(2))[0].plan
    assert plan.generator == core.pp_generator_number(b"controller")
    assert (plan.history, plan.unfreeze) == (0, 1)
    plan = plan_of(core, pp.groups.Controller(2, history=9, unfreeze=False))[0].plan
    assert (plan.history, plan.unfreeze) == (9, 0)
    alone = read(pp.groups.Controller(4), np.zeros(4)).config(native_of(core), core._ffi.NULL, 1)
    assert alone[0].plan.size == 1
    assert plan_of(core, pp.groups.Given())[0].plan.generator == core.pp_generator_number(b"given")


def test_the_tables_of_a_plan(core: Core) -> None:
    config, _keep = plan_of(core, pp.groups.Table([[[0, 3, 5]], [[1, 2]]]))
    assert config.plan.generator == core.pp_generator_number(b"table") and config.plan.phases == 2
    assert core._ffi.unpack(config.table, 12) == [3, 1, 2, 5, 4, 0, 0, 2, 1, 3, 4, 5]
    core.nodes = [0, 0, 0, 1, 1, 1]
    config, _keep = plan_of(core, pp.groups.Static())
    assert core.said == [(2, 3)]
    assert config.plan.generator == core.pp_generator_number(b"table") and config.plan.phases == 4
    assert config.table[23] == 5
    core.nodes = [0, 1, 0, 1, 0, 1]
    with pytest.raises(pp.ArgumentError, match="pass nodes= and per_node="):
        plan_of(core, pp.groups.Static())


def test_a_call_that_goes_on_needs_the_same_arguments() -> None:
    buf = np.zeros(3)
    one = read(pp.groups.Smart(2), buf)
    assert one.same_as(read(pp.groups.Smart(2), buf))
    for other in (
        read(pp.groups.Smart(3), buf),
        read(pp.groups.Smart(2), np.ones(3)),
        read(pp.groups.Smart(2), buf, alpha=0.25),
        read(pp.groups.Smart(2), buf, backend="comm"),
        read(pp.groups.Smart(2), buf, cache=3),
    ):
        assert not one.same_as(other)


# ---- groups on communicators ---------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[Any]:
    """A communicator of this process."""
    from mpi4py import MPI

    comm = MPI.COMM_SELF.Dup()
    yield comm
    comm.Free()


def group(serial: int, **more: Any) -> dict[str, Any]:
    return {"round": serial, "iteration": 1, "members": [0], "weights": [1.0], "kept": -1} | more


def by_comm(core: Core, comm: Any, buf: Any, **options: Any) -> pp.PreduceRequest:
    arguments = read(pp.groups.Given(), buf, backend="comm", **options)
    return made(core, arguments, comm)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g"])
def test_start_copies_and_wait_writes(core: Core, alone: Any, dtype: str) -> None:
    first, second, empty = np.array([1.5, 2], dtype), np.array([3], dtype), np.zeros(0, dtype)
    request = by_comm(core, alone, [first, empty, second])
    request.Start(group=[0])
    first[:], second[:] = 9, 9
    core.answers = [group(1, runs=1), group(2, runs=1), group(2)]
    status = pp.Status()
    request.Wait(status, timeout=5)
    assert first.tolist() == [1.5, 2] and second.tolist() == [3]
    assert core.said == [(0, [0]), "ran", "ran"] and status.round == 2
    request.Start(group=[0])
    core.answers = [ALONE]
    request.Wait()
    request.Free()


def test_start_reads_no_buffers_of_a_handle_that_has_ended(
    core: Core, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have ended, too."""
    request = by_comm(core, alone, np.zeros(2))
    read_again: list[str] = []
    monkeypatch.setattr(request._by_comm, "start", lambda: read_again.append("read"))
    request._refuse("the context has ended")
    with pytest.raises(pp.Error, match="the context has ended"):
        request.Start(group=[0])
    assert not read_again


def test_start_leaves_the_copy_of_a_request_that_is_outstanding(core: Core, alone: Any) -> None:
    """The core refuses it, and knows of requests whose Wait or Start was interrupted, too."""
    model = np.ones(2)
    request = by_comm(core, alone, model)
    request.Start(group=[0])
    model[:] = 3
    request.Start(group=[0])
    core.answers = [ALONE]
    request.Wait()
    assert model.tolist() == [1, 1]
    model[:] = 3
    request.Start(group=[0])
    core.outstanding = False  # what the core is asked after Ctrl-C came before it was
    model[:] = 4
    request.Start(group=[0])
    core.answers = [ALONE]
    request.Wait()
    assert model.tolist() == [4, 4]
    request.Free()


def test_dynamic_weights_and_the_initial_model(core: Core, alone: Any) -> None:
    model = np.array([8.0, 4.0])
    request = by_comm(core, alone, model, weights="dynamic", missing="initial")
    model[:] = 2
    request.Start(group=[0])
    dynamic = group(1, weights=[0.75], initial=0.25)
    core.answers = [dynamic | {"runs": 1}, dynamic]
    request.Wait()
    assert model.tolist() == [0.75 * 2 + 0.25 * 8, 0.75 * 2 + 0.25 * 4]
    request.Free()


def test_which_communicators_are_kept(core: Core, alone: Any) -> None:
    request = by_comm(core, alone, np.zeros(1))
    groups = request._by_comm
    assert groups is not None
    made_now: dict[int, Any] = {}
    create = groups._create

    def note(made: dict[int, Any], number: int, of: GroupResult) -> None:
        create(made, number, of)
        made_now[of.round] = made[number]

    replaced: Any = groups
    replaced._create = note
    request.Start(group=[0])
    core.answers = [group(1, runs=1, kept=0, fresh=1), group(2, runs=1, kept=0)]
    core.answers += [group(3, runs=1), group(4, runs=1), group(4)]
    request.Wait()
    assert list(made_now) == [1, 3, 4]
    assert [bool(comm) for comm in made_now.values()] == [True, False, False]
    request.Free()
    assert not any(made_now.values())  # all are freed


def test_a_group_that_was_averaged_does_not_run_again(core: Core, alone: Any) -> None:
    """Ctrl-C may come when the average is there and the core does not know it yet."""
    model = np.ones(1)
    request = by_comm(core, alone, model, weights="dynamic")
    request.Start(group=[0])
    half = group(1, weights=[0.5])
    core.answers = [half | {"runs": 1}, half | {"runs": 1}, half]
    request.Wait()
    assert model.tolist() == [0.5] and core.said[1:] == ["ran", "ran"]
    request.Free()


def test_a_flush_by_mpi_takes_what_is_in_the_buffers(core: Core, alone: Any) -> None:
    model = np.ones(2)
    request = by_comm(core, alone, model, weights="dynamic")
    model[:] = 3
    core.answers = [group(1, weights=[0.125])]
    status = pp.Status()
    request.Flush(status)
    assert model.tolist() == [3, 3] and status.group == (0,)
    request.Free()
