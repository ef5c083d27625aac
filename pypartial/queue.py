"""Requests of queues (Hop), and the options they are made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import INT64_MAX, in_range, seconds
from ._average import AverageRequest
from ._handle import _check_status
from ._native import SLICE_US, Native
from .status import QueueResult, Status
from .topology import Topology

if TYPE_CHECKING:
    from ._buffer import Vector
    from ._core import CData
    from ._queue_options import Mode
    from .context import Context

__all__ = ["QueueRequest"]


@dataclass(frozen=True)
class Settings:
    """The options that a request was made with."""

    topology: Topology
    mode: Mode
    backups: tuple[int, ...]
    dtype: np.dtype[Any]
    count: int
    layout: str

    def __str__(self) -> str:
        return f"{self.topology}, {self.count} {self.dtype.name}, '{self.mode.protocol}'"


class QueueRequest(AverageRequest):
    """A persistent average with the neighbours in a graph: started, waited for, started again.

    `Context.Queue_init` makes it and describes its options; applications do not call the
    constructor. `Request` describes the life of a request, and its use by several threads. What
    differs from a round of an allreduce:

    - `Start` sends what is in the buffers as this rank's update of its iteration. `Wait` ends when
      enough updates of neighbours are there; their average with the own one is in the buffers
      then, and the rank has entered its next iteration, which `Status.iteration` says.
    - A rank waits for its neighbours only, and for no more of them than its options say.
    - A rank inside a collective call of the context, or away, has left: it omits its updates, and
      holds nobody up. With `backup` or `staleness` so has one inside a blocking call of
      `Context.comm`; without them it is waited for, as in MPI. Any other call is waited for, too:
      there is no patience.
    - A rank that is back goes on where its slowest out-neighbour is. If the process has another
      request, but for those of `Context.Gossip_init`, it goes on where it was, and leaves nothing
      out.
    - `Flush` averages the models of all ranks. There is no `View`, `More` or `Drain`.
    - `Free` drops a request that is outstanding, and returns 1 then.

    Notes
    -----
    **Buffers.** Between `Start` and `Wait` the application may read the buffers, and compute
    gradients there (the parallel graph of Hop): it applies them after `Wait`. From the first `Wait`
    or `Test` until one of them gives the average the buffers are the library's, also after a
    `TimeoutError`.

    References
    ----------
    Q. Luo et al., "Hop: Heterogeneity-Aware Decentralized Training", ASPLOS 2019, sections 3 to 6.

    Examples
    --------
    >>> request = ctx.Queue_init(model, pp.topology.ring(), backup=1)  # doctest: +SKIP
    >>> request.Start()  # doctest: +SKIP
    >>> for step in range(100):  # doctest: +SKIP
    ...     gradient = compute(model)  # reads it
    ...     request.Wait()  # the average is in `model`
    ...     model -= 0.1 * gradient
    ...     request.Start()
    >>> request.Flush()  # the average over all ranks  # doctest: +SKIP
    """

    __slots__ = ("_described",)

    def __init__(
        self, context: Context, native: Native, handle: CData, vector: Vector, settings: Any
    ) -> None:
        """Wrap a handle of the C core; `Context.Queue_init` does this."""
        super().__init__(context, native, handle, vector.owners, settings)
        self._described = native.ffi.new("pp_queues_result_t *")

    # ---- the data path --------------------------------------------------------------------------

    def Start(self) -> None:
        """Send what is in the buffers as this rank's update of its iteration.

        Local; never waits for another rank. It copies the buffers, which the application may read
        until `Wait`, and not write.

        Raises
        ------
        Error
            If the previous request was not collected by `Wait` or `Test`; if another thread is
            inside a collective call of the context; or if the handle was freed. Nothing was sent.
        PeerFailedError
            If another rank has failed.
        """
        super().Start()

    def Wait(self, status: Status | None = None, timeout: float | None = None) -> bool:
        """Wait until enough updates have come, and the next iteration may be entered.

        Local and blocking. The average is in the buffers then.

        Ctrl-C interrupts it, and leaves the request outstanding or, if it completes within 50 ms,
        collected: see `Request.Wait`. A wait longer than the context's `stall_warning` seconds logs
        a warning (logger ``"pypartial"``) that names the ranks it waits for.

        Parameters
        ----------
        status : Status, optional
            Filled: `Status.iteration`, `Status.gap`, `Status.staleness`, `Status.received`,
            `Status.dropped` and `Status.skipped`.
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
        PeerFailedError
            If another rank has failed.
        """
        if timeout is None and (status is None or type(status) is Status):
            code = self._pp_wait_slice(self._handle)  # the shortest way
            if code:
                self._wait_on(code, SLICE_US, None)
        else:
            _check_status(status)
            self._wait(None if timeout is None else seconds(timeout))
        if status is not None:
            self._fill(status)
        return True

    def _result_of(self) -> QueueResult:
        """Return what was collected last."""
        found = self._described
        self._native.check(self._lib.pp_queue_result(self._handle, found))
        return QueueResult(*(int(getattr(found, name)) for name in QueueResult._fields))

    def _fill(self, status: Status) -> None:
        status._fill(self._result_of())

    def queue_size(self, iteration: int | None = None, sender: int | None = None) -> int:
        """Return how many updates have come that may still be averaged (Hop, section 4.1).

        Local; never blocks.

        Parameters
        ----------
        iteration : int, optional
            Of this iteration only.
        sender : int, optional
            Of this in-neighbour only.

        Raises
        ------
        ArgumentError
            If `iteration` is below 0, or `sender` is no in-neighbour of this rank.
        Error
            If the handle was freed.
        PeerFailedError
            If another rank has failed.
        """
        self._live()
        of = -1 if iteration is None else in_range("iteration", iteration, 0, INT64_MAX)
        rank = -1 if sender is None else in_range("sender", sender, 0, self._context.size - 1)
        size = self._native.ffi.new("int32_t *")
        self._native.check(self._lib.pp_queue_size(self._handle, of, rank, size))
        return int(size[0])

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Which ranks are neighbours."""
        topology: Topology = self._settings.topology
        return topology
