"""Requests of a partial all-reduce in groups (P-Reduce), and the arguments they are made with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import in_range, seconds
from ._average import AverageRequest
from ._group_comm import CommGroups
from ._group_elements import HostBuffers, HostElements
from ._handle import _check_status
from ._names import BACKEND
from ._native import SLICE_US, Native
from .errors import ArgumentError, Error
from .groups import Generator, Given, Static, members_of
from .status import GroupResult, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._buffer import Vector
    from ._core import CData
    from ._group_elements import Elements
    from ._preduce_init import Arguments
    from .context import Context

__all__ = ["PreduceRequest"]

_LAST_ITERATION = (1 << 64) - 2  # the core counts from 1


@dataclass(frozen=True)
class Settings:
    """The options that a request was made with."""

    groups: Generator
    weights: str
    alpha: float
    missing: str
    dtype: np.dtype[Any]
    count: int

    @property
    def keeps_initial(self) -> bool:
        """Whether the initial model counts in averages."""
        return self.weights == "dynamic" and self.missing == "initial"

    @property
    def splits(self) -> bool:
        """Whether ``backend="comm"`` makes the communicators by MPI_Comm_split."""
        return isinstance(self.groups, Static)

    def __str__(self) -> str:
        return f"{self.groups!r}, {self.count} {self.dtype.name}, '{self.weights}'"


class PreduceRequest(AverageRequest):
    """A persistent partial all-reduce in groups: started, waited for, and started again.

    `Context.Preduce_init` makes it and describes its options; applications do not call the
    constructor. `Request` describes the life of a request, and its use by several threads. A
    request cannot be copied or pickled. What differs from a round of an allreduce:

    - `Start` copies the buffers and asks for a group. `Wait` and `Test` write to the same buffers
      the average over it, and the `Status` has `Status.group` and `Status.weights`.
    - Ranks outside the group take no notice. Ranks may start a request different numbers of times.
    - A rank inside a collective call of the context, or away, has left: it is in no new group, and
      taken out of those that have not begun. Groups shrink, to this rank alone if need be. With
      `Given`, `Table` and `Static` a rank that has started before the call is in its group still.
    - `Flush` averages over all ranks. There is no `View`, `More` or `Drain`.

    Notes
    -----
    **Buffers.** The library reads the buffers inside `Start` and `Flush` only, and writes them
    inside `Wait`, `Test` and `Flush` only. At all other times they belong to the application.

    **backend="comm"** is for comparisons, and survives less. A group runs inside `Wait`, in the
    application's thread, by MPI_Comm_create_group and MPI_Allreduce, which block until all
    members are in their `Wait`. Ctrl-C, `timeout` and stall warnings have no effect in the
    meantime; after Ctrl-C repeat the `Wait`, which goes on: the others have what this rank gave.
    The death of a member may block the others for ever. `Test` raises. After a `Start` call `Wait`
    before any collective call of the context, on any handle: the other members wait inside MPI.
    `Context.Preduce_init` ends by duplicating the context's communicator, which blocks until all
    ranks have come, whatever the `timeout`.

    References
    ----------
    Q. Luo et al., "Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized
    Training" (Ripples), ASPLOS 2020, sections 3 to 6. X. Miao et al., "Heterogeneity-Aware
    Distributed Machine Learning Training via Partial Reduce", SIGMOD 2021, section 3.

    Examples
    --------
    >>> request = ctx.Preduce_init(model, pp.groups.Controller(3))  # doctest: +SKIP
    >>> status = pp.Status()  # doctest: +SKIP
    >>> for step in range(100):  # doctest: +SKIP
    ...     train(model)
    ...     request.Start()
    ...     request.Wait(status)  # the average over status.group is in `model`
    >>> request.Flush()  # the average over all ranks  # doctest: +SKIP
    >>> request.Free()  # doctest: +SKIP
    0
    """

    __slots__ = ("_by_comm", "_described", "_is_given")

    _settings: Settings

    def __init__(
        self, context: Context, native: Native, handle: CData, arguments: Arguments
    ) -> None:
        """Wrap a handle of the C core; `Context.Preduce_init` does this."""
        super().__init__(context, native, handle, arguments.vector.owners, arguments.settings)
        self._is_given = isinstance(self._settings.groups, Given)
        self._described = native.ffi.new("pp_group_result_t *")
        self._by_comm: CommGroups | None = None

    def _use_communicators(self, vector: Vector) -> None:
        """Run the groups on communicators; collective."""
        mpi: Any = self._native.MPI
        try:
            elements = self._elements(vector)
            self._by_comm = CommGroups(self._context, self._native, elements, self._settings)
        except mpi.Exception as error:
            raise Error(
                f"MPI failed in making communicators for {self._name()}: {error}"
            ) from error

    def _elements(self, vector: Vector) -> Elements:
        """Return what groups on communicators average."""
        buffers = HostBuffers(self._native, self._handle, vector)
        return HostElements(self._native, buffers, self._settings)

    # ---- the data path --------------------------------------------------------------------------

    def Start(self, iteration: int | None = None, group: Any = None) -> None:
        """Give what is in the buffers, and ask for a group.

        Local; never waits for another rank. It copies the buffers, and the application may
        overwrite them as soon as it returns. A buffer of `Context.alloc` is averaged in place where
        the backend is ``"node"``: it belongs to the library until `Wait`.

        Parameters
        ----------
        iteration : int, optional
            The number of the model's iteration, from 0. It must exceed that of the last request,
            which `Status.iteration` says. None: one more; the first one is 0.
        group : sequence of int, optional
            The ranks of the group, this one among them, in any order: with the generator
            `groups.Given` only, and required there. All members pass the same ranks.

        Raises
        ------
        ArgumentError
            If `iteration` is not an integer above the last one, or `group` is not a list of
            different ranks of the context, this one among them, or does not go with the generator.
            The error is local; nothing was started.
        MismatchError
            With `groups.Given`, if another rank waits for a different group with this rank.
        Error
            If the previous request was not collected by `Wait` or `Test`; if another thread is
            inside a collective call of the context; or if the handle was freed. Nothing was
            started.
        PeerFailedError
            If another rank has failed.
        """
        if self._by_comm is not None:
            self._live()  # else the buffers may have ended
            # Before the core asks. If Ctrl-C comes in between nothing was started, and the next
            # Start copies anew. Of a request that is outstanding the copy stays: the core refuses.
            if not self._is_outstanding():
                self._by_comm.start()
            self._start(iteration, group)
        elif iteration is None and group is None and not self._is_given:
            status = self._pp_start(self._handle)  # the shortest way
            if status:
                self._started(status)
        else:
            self._start(iteration, group)

    def _start(self, iteration: int | None, group: Any) -> None:
        """Ask the core for a group."""
        if iteration is None and group is None and not self._is_given:
            status = self._pp_start(self._handle)
        else:
            self._live()
            number = 0 if iteration is None else self._core_iteration(iteration)
            members = self._members(group)
            status = self._lib.pp_preduce_start(
                self._handle, number, members or self._native.ffi.NULL, len(members)
            )
        if status:
            self._started(status)

    def _started(self, status: int) -> None:
        """Raise the error of a Start, or log its note."""
        self._native.check(status)
        self._context._log_note()

    def _core_iteration(self, iteration: Any) -> int:
        """Return an iteration as the core counts it, from 1; raise if it is wrong."""
        number = in_range("iteration", iteration, 0, _LAST_ITERATION)
        if self._lib.pp_preduce_result(self._handle, self._described) == 0:
            last = self._described.iteration - 1
            if number <= last:
                raise ArgumentError(
                    f"iteration must exceed the last one, which was {last}, and is {number}"
                )
        return number + 1

    def _members(self, group: Any) -> list[int]:
        """Return the group of a Start, none unless the caller gives groups."""
        if not self._is_given:
            if group is not None:
                raise ArgumentError(
                    f"group={group!r} is for handles with groups.Given(), not with "
                    f"{self._settings.groups!r}"
                )
            return []
        if group is None:
            raise ArgumentError("group is missing: with groups.Given() each Start names its group")
        return members_of(group, self._context.rank, self._context.size)

    def Wait(self, status: Status | None = None, timeout: float | None = None) -> bool:
        """Wait until the request is complete; the average over its group is then in the buffers.

        Local and blocking: it returns when the members of the group have started, and have averaged
        their models. A rank that is alone, idle in a table for example, keeps its own model; it is
        again in the buffers as it was at `Start`.

        Ctrl-C interrupts it, and leaves the request outstanding or, if it completes within 50 ms,
        collected: see `Request.Wait`. A wait longer than the context's `stall_warning` seconds logs
        a warning (logger ``"pypartial"``) that names the ranks it waits for.

        Parameters
        ----------
        status : Status, optional
            Filled with the group.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Returns
        -------
        bool
            True, as in mpi4py.

        Raises
        ------
        ArgumentError
            If `status` is not a `Status`, or `timeout` is not 0 or more seconds. The call has not
            waited.
        TimeoutError
            After `timeout` seconds. The request stays outstanding: wait for it again.
        Error
            If nothing was started, if the handle was freed, or if this rank is inside
            `Context.away`.
        MismatchError
            With `groups.Given`, if another rank waits for a different group with this rank.
        PeerFailedError
            If another rank has failed.
        """
        if self._by_comm is None and timeout is None and (status is None or type(status) is Status):
            code = self._pp_wait_slice(self._handle)  # the shortest way
            if code:
                self._wait_on(code, SLICE_US, None)
        else:
            _check_status(status)
            limit = None if timeout is None else seconds(timeout)
            if self._by_comm is None:
                self._wait(limit)
            else:
                self._run_groups(self._by_comm, limit)
                self._by_comm.deliver()
        if status is not None:
            self._fill(status)
        return True

    def _run_groups(self, by_comm: CommGroups, timeout: float | None) -> None:
        """Wait, and run the groups of this rank on communicators, until the request is complete.

        Where Ctrl-C interrupts it, a repeated Wait goes on. The core gives a group again until it
        is told that it ran, and the result until it is told that the buffers have it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            group = self._group()
            if not self._described.runs:
                break
            by_comm.run(group, self._described.kept)
            self._native.check(self._lib.pp_preduce_ran(self._handle))

    def _await(self, timeout: float | None) -> None:
        if self._by_comm is None:
            super()._await(timeout)
        else:  # not over before its result is delivered
            self._run_groups(self._by_comm, timeout)

    def Test(self, status: Status | None = None) -> bool:
        """Collect the request if it is complete. Local; never blocks.

        Parameters
        ----------
        status : Status, optional
            Filled if the method returns True.

        Returns
        -------
        bool
            True if the request was complete: everything is then as after `Wait`. False if it was
            not: nothing has changed.

        Raises
        ------
        ArgumentError, MismatchError, PeerFailedError
            As `Wait`.
        Error
            As `Wait`; and with ``backend="comm"``, whose groups block.
        """
        if self._by_comm is not None:
            raise Error(f"{self._name()}: backend='comm' has no Test: groups run inside Wait")
        return super().Test(status)

    def _group(self) -> GroupResult:
        """Return what was collected last."""
        native, result = self._native, self._described
        native.check(self._lib.pp_preduce_result(self._handle, result))
        iteration = int(result.iteration) - 1
        if not result.round:
            return GroupResult(0, iteration, (self._context.rank,), (1.0,), 0.0)
        return GroupResult(
            int(result.round),
            iteration,
            tuple(native.ffi.unpack(result.members, result.count)),
            tuple(native.ffi.unpack(result.weights, result.count)),
            float(result.initial),
        )

    def _fill(self, status: Status) -> None:
        status._fill(self._group())

    # ---- collective calls -----------------------------------------------------------------------

    def Flush(self, status: Status | None = None, timeout: float | None = None) -> None:
        """Average the models of all ranks, with equal weights.

        Collective, blocking. It returns when all ranks have called it. All of them have the same
        average then (Partial Reduce, Algorithm 2, line 8). A rank gives what is in its buffers. If
        its request was not collected, it gives what that request has, its Start's copy or an
        average, and the request is over. A table begins anew with its first phase. The handle can
        be used again.

        Parameters
        ----------
        status : Status, optional
            Filled; its `group` are the ranks that took part.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Raises
        ------
        ArgumentError
            If `status` is not a `Status`, or `timeout` is not 0 or more seconds. The error is local
            and nothing was communicated: the other ranks wait in their Flush. Repeat the call.
        TimeoutError
            After `timeout` seconds. The same call, made again, goes on with it. Until then this
            rank counts as left, and every other collective call of the context raises.
        Error
            If another thread is inside a collective call of the context, or if the handle was
            freed. With ``backend="comm"`` also if a request is outstanding.
        PeerFailedError
            If another rank has failed.
        """
        super().Flush(status, timeout)

    def _refuse_flush(self) -> None:
        if self._by_comm is not None and self._is_outstanding():
            raise Error(
                f"{self._name()}: the request is outstanding; with backend='comm' call Wait before "
                "Flush and Free, because the other members wait inside MPI"
            )

    def _collect_call(
        self, name: str, begin: Callable[[CData], int], timeout: float | None
    ) -> None:
        if self._by_comm is None:
            super()._collect_call(name, begin, timeout)
            return
        self._by_comm.start()
        super()._collect_call(name, begin, timeout)
        self._by_comm.flush(self._group())

    def Free(self, timeout: float | None = None) -> int:
        """End the handle and release its memory.

        Collective, blocking. A request that is outstanding is discarded. The application's buffers
        are no longer kept alive.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Returns
        -------
        int
            How many requests of this rank were discarded: 1 if one was outstanding.

        Raises
        ------
        ArgumentError, TimeoutError, PeerFailedError
            As `Request.Free`.
        Error
            If the handle was freed already. With ``backend="comm"`` also if a request is
            outstanding.
        """
        self._refuse_flush()
        discarded = super().Free(timeout)
        if self._by_comm is not None:
            self._by_comm.free()
            self._by_comm = None
        return discarded

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """How members add up their models: ``"node"``, ``"schedule"`` or ``"comm"``."""
        self._live()
        return BACKEND.value(self._lib, self._lib.pp_preduce_backend(self._handle))

    @property
    def generator(self) -> Generator:
        """The generator: which ranks average with each other."""
        return self._settings.groups

    @property
    def weights(self) -> str:
        """``"constant"`` or ``"dynamic"``."""
        return self._settings.weights

    @property
    def alpha(self) -> float:
        """How much less an older version counts with dynamic weights."""
        return self._settings.alpha

    @property
    def missing(self) -> str:
        """What the share of a missing version goes to: ``"closest"`` or ``"initial"``."""
        return self._settings.missing
