"""What a context sees of its ranks: rows for reports, and the file of a trace."""

from __future__ import annotations

import os
import threading
import uuid
import zlib
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import in_range
from ._native import warn
from .errors import ArgumentError, Error, MismatchError
from .recording import met
from .report import COUNTERS, SAMPLE, Report, build

if TYPE_CHECKING:
    from types import TracebackType

    from mpi4py import MPI

    from ._calls import Away, CollectiveCalls
    from ._core import CData
    from ._native import Native

__all__ = ["TRACE_VARIABLE", "Sight", "Span", "Trace", "trace_key"]

TRACE_VARIABLE = "PYPARTIAL_TRACE"
_FILE = "rank-{:05d}.pptrace"
# The first two names, in this order: of what no name is left for, and of what the core tells.
_NAMES = ("other", "ctx.comm")


def _rows(native: Native, ctx: CData, most: int) -> dict[int, tuple[Any, Any]]:
    """Return by rank what is known here: counters, and timed steps in order."""
    ffi, lib = native.ffi, native.lib
    taken, ranks = ffi.new("pp_row_t[]", most), ffi.new("int32_t[]", most)
    found = {}
    for i in range(lib.pp_ctx_rows(ctx, taken, ranks, most)):
        row = taken[i]
        counts = {name: getattr(row, name) for name in COUNTERS}
        kept = np.frombuffer(ffi.buffer(row.sample)[:], SAMPLE)
        kept = kept[kept["start_ns"] > 0]
        found[ranks[i]] = ({**counts, "causes": list(row.causes)}, np.sort(kept, order="start_ns"))
    return found


def trace_key() -> int:
    """Return a number that stands for what PYPARTIAL_TRACE names; 0: nothing."""
    folder = os.environ.get(TRACE_VARIABLE, "")
    return zlib.crc32(os.fsencode(folder)) & 0x7FFFFFFF | 1 if folder else 0


class Span:
    """A ``with`` block that a trace shows; see `Context.span`."""

    __slots__ = ("_kind", "_name", "_trace")

    def __init__(self, trace: Trace | None, name: str, kind: str = "SPAN") -> None:
        self._trace, self._name, self._kind = trace, name, kind

    def __enter__(self) -> None:
        """Begin the span."""
        if self._trace is not None:
            self._trace.tell(self._kind, self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """End it, also by an exception."""
        if self._trace is not None:
            self._trace.tell(f"{self._kind}_END", self._name)


class Trace:
    """The trace of one rank, from its opening to the end of the context.

    The file is the core's, which maps it until `finish`, or until the process ends: the core goes
    on writing while MPI ends. Opening is collective: all ranks have a trace then, or none has, but
    for those whose disk is full.
    """

    def __init__(
        self, native: Native, ctx: CData, comm: MPI.Comm, folder: Any, events: int
    ) -> None:
        self._native, self._ctx, self._pid = native, ctx, os.getpid()
        self._comm = comm.Dup()
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()
        self._head: Any = None
        path, why = self._open(folder, events)
        run = uuid.uuid4().bytes if comm.rank == 0 else b""
        heard = self._comm.allgather((path, why, run))
        refused = [rank for rank, (_, theirs, _) in enumerate(heard) if theirs is not None]
        folders = [theirs for theirs, _, _ in heard]
        if refused or len(set(folders)) > 1:
            self._discard(path)
            if why is not None:
                raise ArgumentError(why)
            if refused:
                raise MismatchError(f"rank {refused[0]}: {heard[refused[0]][1]}")
            other = next(rank for rank, path in enumerate(folders) if path != folders[0])
            raise MismatchError(
                f"the ranks disagree: rank 0 traces into {folders[0]!r}, rank {other} into "
                f"{folders[other]!r}"
            )
        begun = met(self._comm)
        if self._head is None:
            return
        head = self._head
        head.rank, head.size = comm.rank, comm.size
        head.run[0], head.run[1] = (
            int.from_bytes(heard[0][2][i : i + 8], "little") for i in (0, 8)
        )
        head.wall_ns = time_ns() - monotonic_ns()
        self._note(0, begun)
        for name in _NAMES:
            self._name(name)
        native.check(native.lib.pp_trace_begin(ctx, head))

    def _open(self, folder: Any, events: int) -> tuple[str, str | None]:
        """Make the file; return the folder, and why it cannot be made."""
        lib = self._native.lib
        try:
            events = in_range("events", events, 1000, 2**32)
            if not folder:
                raise ValueError("it has no name")
            path = os.path.abspath(os.fsdecode(folder))
            os.makedirs(path, exist_ok=True)
            file = os.path.join(path, _FILE.format(self._comm.rank))
            out = self._native.ffi.new("pp_trace_head_t **")
            status = lib.pp_trace_open(os.fsencode(file), events, out)
        except ArgumentError as error:
            return str(folder), str(error)
        except (OSError, TypeError, ValueError) as error:
            return str(folder), f"no trace can be written to {folder!r}: {error}"
        if status == lib.PP_ERR_STATE:
            return path, (
                f"{file} is there already: name another folder for the trace of this run, or "
                "delete that one"
            )
        if status == lib.PP_ERR_MEMORY:
            warn(f"this rank is not traced: {file}: {self._native.text(lib.pp_error_text())}")
        elif status < 0:
            text = self._native.text(lib.pp_error_text())
            return path, f"no trace can be written to {file}: {text}"
        else:
            self._head = out[0]
        return path, None

    def _discard(self, folder: str) -> None:
        """Take back what this rank has made: the trace has not begun."""
        if self._head is not None:
            self._native.lib.pp_trace_close(self._head)
            os.unlink(os.path.join(folder, _FILE.format(self._comm.rank)))
        self._comm.Free()

    def _note(self, at: int, where: tuple[int, int, int]) -> None:
        note = self._head.met[at]
        note.ns, note.ahead_ns, note.error_ns = where

    def _name(self, text: str) -> int:
        """Return where the file has this name; the last ones find no room, and share one."""
        text = str(text)
        with self._lock:
            found = self._names.get(text)
            if found is None:
                data = text.encode("utf-8", "replace").replace(b"\0", b" ") + b"\0"
                at = self._head.told
                if at + len(data) > len(self._head.names):
                    return 0
                self._native.ffi.memmove(self._head.names + at, data, len(data))
                self._head.told = at + len(data)
                found = self._names[text] = at
        return found

    def tell(self, kind: str, name: str) -> None:
        """Write an event of this thread: SPAN, SPAN_END, CALL or CALL_END.

        A forked child writes none: its file is the parent's.
        """
        if self._head is not None and self._pid == os.getpid():
            number = getattr(self._native.lib, f"PP_EVENT_{kind}")
            thread = threading.get_native_id() & 0x7FFFFFFF
            self._native.lib.pp_trace_tell(self._ctx, number, self._name(name), thread)

    def finish(self) -> None:
        """Compare the clocks once more, and give the file back; collective, after all have come.

        The context is over, so nothing writes to the file any more.
        """
        ended = met(self._comm)
        self._comm.Free()
        if self._head is not None:
            self._note(1, ended)
            self._native.lib.pp_trace_close(self._head)
            self._head = None


# Contexts of this process that PYPARTIAL_TRACE has traced.
_traced = 0


class Sight:
    """Of `Context`: reports and traces."""

    __slots__ = ("_trace",)

    _trace: Trace | None

    _native: Native
    _ctx: CData
    _calls: CollectiveCalls
    _comm: MPI.Comm
    _rank: int
    _size: int
    _live: Callable[[], None]
    _away: Callable[[], Away]
    _abandon: Callable[[BaseException, str], None]

    def report(self, *, all: bool = False) -> Report:
        """Return who is slow: a row for each rank, who waited for whom, and a verdict.

        Local, and does not block. The library counts always, and sends no message for it: the ranks
        of a node show each other what they have counted in the memory that they share. Ranks that
        share none, as with ``transport="mpi"``, are in their own report alone.

        Parameters
        ----------
        all : bool, optional
            Have all ranks of all nodes in it. The call is then collective and blocking: every rank
            makes it. It duplicates `comm` for that time.

        Returns
        -------
        Report
            ``print`` shows it as a table.

        Raises
        ------
        MismatchError
            With `all`, if other ranks are in another collective call of the context.
        Error
            If the context was freed; with `all` also as `away`.
        """
        self._live()
        known = _rows(self._native, self._ctx, self._size)
        if all:
            self._meet(1)
            with self._away():
                comm = self._comm.Dup()
                _, ahead, _ = met(comm)
                counts, steps = known[self._rank]
                steps["start_ns"] -= np.uint64(ahead & (2**64 - 1))
                known = dict(enumerate(comm.allgather((counts, steps))))
                comm.Free()
        counted = {rank: counts for rank, (counts, _) in known.items()}
        return build(self._size, counted, {rank: steps for rank, (_, steps) in known.items()})

    def trace(self, folder: str | os.PathLike[str], *, events: int = 2**19) -> None:
        """Write what happens from now on to a file a rank, for ``pypartial trace``.

        Collective, blocking: all ranks name the same folder, which is made if need be, and has no
        trace yet. The trace ends when the context is freed. Each rank writes events of 48 bytes to
        its own file, which is mapped, so a rank that is killed keeps what it had. The environment
        variable ``PYPARTIAL_TRACE=FOLDER`` does the same for each context of a program. The second
        one of the program's rank 0 has FOLDER/2; the first one whose rank 0 is rank 4 of the
        program FOLDER/1-4; and so on.

        Parameters
        ----------
        folder : path
        events : int, optional
            How many events a file keeps, the newest ones; at least 1,000. The default takes 25 MB
            for each rank. A step of one request has 4 events or a few more.

        Raises
        ------
        ArgumentError
            On a rank that cannot write there, or whose folder has a trace already.
        MismatchError
            If another rank cannot, or if the ranks name different folders. No rank is traced.
        Error
            If the context has a trace already, or was freed.

        Warns
        -----
        RuntimeWarning
            On a rank whose disk has no room for the file. It is not traced, and all else goes on.

        Examples
        --------
        >>> ctx.trace("trace")  # doctest: +SKIP
        >>> with ctx.span("forward"):  # doctest: +SKIP
        ...     loss = model(batch)
        """
        self._live()
        if self._trace is not None:
            raise Error("the context has a trace already, which ends with it")
        self._meet(2)
        with self._away():
            self._trace = Trace(self._native, self._ctx, self._comm, folder, events)
        self._calls.trace = self._trace

    def _meet(self, what: int) -> None:
        """Make two collective calls of the context, which raise where ranks are in other ones.

        `what`: a number of the call, so that ranks in two of these are, too.
        """
        context: Any = self
        context.Allreduce_init(np.zeros(what), np.zeros(what), policy="full").Free()

    def span(self, name: str) -> Span:
        """Return a ``with`` block that the trace shows by this name. Local.

        Without a trace it does nothing. Blocks of one thread may be inside each other.
        """
        return Span(self._trace, name)

    def _trace_by_name(self) -> None:
        global _traced
        folder = os.environ[TRACE_VARIABLE]
        _traced += 1
        world = self._native.MPI.COMM_WORLD.rank
        if (_traced, world) != (1, 0):
            folder = os.path.join(folder, f"{_traced}-{world}" if world else str(_traced))
        try:
            with self._away():
                folder = self._comm.bcast(folder)  # ranks may have made other contexts before
            self.trace(folder)
        except BaseException as error:
            self._abandon(error, "the opening of its trace")
            raise
