"""How a collective call of a process group is made: its arguments, its beginning, its end."""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from .. import _native
from ..errors import ArgumentError, Error, MismatchError
from .watch import Watch, came_soon, describe

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Asked", "Call", "Gate", "asked", "eager"]

Method = TypeVar("Method", bound=Callable[..., Any])

_torch: Any = torch  # its types do not name all that is there
_set_eval_frame = _torch._C._dynamo.eval_frame.set_eval_frame
_profiler_enabled = _torch.autograd._profiler_enabled
_event = _torch._C._profiler._RecordFunctionFast


def eager(event: str, inputs: int = 0) -> Callable[[Method], Method]:
    """Make a method one that torch.compile does not trace, and that its profiler shows.

    The tracer of torch.compile ends a graph at a function of C that it does not know, and that
    function ends the tracing of all that the method calls. `torch.compiler.disable` would import
    the tracer, which costs each program a second.

    Parameters
    ----------
    event : str
        The name of the call to the profiler, as torch's own backends name it.
    inputs : int
        Which argument has the tensors whose shapes the profiler shows.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = _set_eval_frame(None)
            try:
                if not _profiler_enabled():
                    return method(self, *args, **kwargs)
                with _event(f"pypartial:{event}", _tensors(args[inputs:]), {}):
                    return method(self, *args, **kwargs)
            finally:
                _set_eval_frame(before)

        return call  # type: ignore[return-value]

    return decorate


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors of a call's first argument."""
    first = values[0] if values else []
    while isinstance(first, (list, tuple)) and first and not isinstance(first[0], torch.Tensor):
        first = first[0]
    return list(first) if isinstance(first, (list, tuple)) else [first][: torch.is_tensor(first)]


class Asked(NamedTuple):
    """What a call is asked for, beside its tensors."""

    op: Any = None  # SUM
    root: int = 0
    timeout: timedelta | None = None  # the group's


_DEFAULT = Asked()
_OPERATIONS = (dist.ReduceOp, dist.ReduceOp.RedOpType)


def asked(call: str, given: tuple[Any, ...], named: dict[str, Any] = {}) -> Asked:  # noqa: B006
    """Return what a call is asked for.

    By an object of options, as torch.distributed does, or by values, as torch's own process groups
    take, too: a root, an operation, a timeout.
    """
    if len(given) == 1 and not named and hasattr(given[0], "timeout"):
        options = given[0]
        return Asked(
            getattr(options, "reduceOp", None), getattr(options, "rootRank", 0), options.timeout
        )
    found = _DEFAULT
    for name, value in (*(("", value) for value in given), *named.items()):
        if value is None:
            continue
        if isinstance(value, timedelta) and name in ("", "timeout"):
            found = found._replace(timeout=value)
        elif isinstance(value, _OPERATIONS) and name in ("", "op"):
            found = found._replace(op=value)
        elif isinstance(value, int) and name in ("", "root"):
            found = found._replace(root=value)
        elif hasattr(value, "timeout") and name in ("", "opts"):
            found = asked(call, (value,))
        else:
            raise ArgumentError(
                f"{call}: {name and name + '='}{value!r} is neither a root, an operation, a "
                "timeout nor an object of options"
            )
    return found


@functools.lru_cache(maxsize=4096)
def _signature(call: str, what: tuple[object, ...]) -> int:
    """Return a number by which ranks compare calls."""
    text = describe(call, what).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


class Gate:
    """Where the ranks of a group meet at the beginning of each call.

    MPI's own calls cannot be left when a rank does not come, and do not notice that it came for
    something else. So the ranks meet in a small reduction that does not block. Those that follow it
    block, but all ranks are there then, and in the same call.

    A rank that gives up while it waits has taken part in that reduction, and cannot withdraw. So
    all ranks confirm, in a second one, that they are still there. In that a rank that has given up
    takes part, too, by the thread of its watch. After its confirmation a rank waits without a
    timeout.
    """

    def __init__(self, comm: MPI.Comm, watch: Watch) -> None:
        from mpi4py import MPI

        self.comm, self.watch, self.lib = comm, watch, _native.load().lib
        self._peers = list(range(comm.size))
        self._own, self._least = array("q", [0, 0]), array("q", [0, 0])
        self._arguments = ([self._own, MPI.INT64_T], [self._least, MPI.INT64_T], MPI.MIN)
        self._request: MPI.Prequest | None = None
        with suppress(NotImplementedError):  # MPI before 4.0
            self._request = comm.Allreduce_init(*self._arguments)

    def _start(self) -> Callable[[], bool]:
        """Begin a reduction; return what tests whether it is complete."""
        if self._request is None:
            return self.comm.Iallreduce(*self._arguments).Test
        self._request.Start()
        return self._request.Test

    def free(self) -> None:
        """Free the communicator, of which nothing is under way."""
        if self._request is not None:
            self._request.Free()
        self.comm.Free()

    def meet(self, call: str, what: tuple[object, ...], timeout: timedelta | None) -> None:
        """Wait until all ranks are here; raise if they are in different calls."""
        watch = self.watch
        watch.begin(call, what)
        number = _signature(call, what)
        self._own[0], self._own[1] = number, -number
        test = self._start()
        try:
            if not came_soon(test):
                watch.wait(test, call, what, timeout, self._peers)
        except BaseException as error:
            watch.give_up(error, self._refusal(test))
            raise
        are_different = self._least[0] != -self._least[1]
        self._confirm(call, what)
        if are_different:
            self._refuse(describe(call, what))

    def _confirm(self, call: str, what: tuple[object, ...]) -> None:
        """Raise if a rank has given up the call."""
        self._own[0] = 1
        test = self._start()
        if not came_soon(test):
            self.watch.wait(test, call, what, timedelta.max, self._peers)
        if self._least[0] == 0:
            self.watch.wait_for_reason()

    def _refusal(self, test: Callable[[], bool]) -> Callable[[], bool]:
        """Return what says no to the others, if they come; it is called until it returns True."""
        tests = [test]

        def refuse() -> bool:
            if not tests[-1]():
                return False
            if len(tests) == 2:
                return True
            self._own[0] = 0
            tests.append(self._start())
            return False

        return refuse

    def _refuse(self, mine: str) -> None:
        """Raise, on all ranks: they have found out together."""
        told = self.comm.allgather(mine)
        other = next(rank for rank, theirs in enumerate(told) if theirs != told[0])
        raise MismatchError(
            f"the ranks are in different calls: rank 0 in {told[0]}, rank {other} in "
            f"{told[other]}. All ranks of a process group make the same calls in the same order, "
            "and several threads need a group each"
        )


class Call:
    """A collective call of a group, for the time of a ``with`` block. This rank steps aside."""

    __slots__ = ("_gate", "_name", "_timeout", "_what")

    def __init__(
        self, gate: Gate, name: str, what: tuple[object, ...], timeout: timedelta | None
    ) -> None:
        self._gate, self._name, self._what, self._timeout = gate, name, what, timeout

    def __enter__(self) -> MPI.Comm:
        self._gate.lib.pp_aside_begin()
        try:
            self._gate.meet(self._name, self._what, self._timeout)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self._gate.comm

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from mpi4py import MPI

        self._gate.lib.pp_aside_end()
        self._gate.watch.end()
        if kind is not None and issubclass(kind, MPI.Exception):
            raise Error(f"{self._name}: MPI reports: {error}") from error
