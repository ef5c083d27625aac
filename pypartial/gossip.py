"""Requests of gossip: averages with a neighbour, which may compute meanwhile, or with all."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import seconds
from ._average import AverageRequest
from ._buffer import Memory, shape_of, split, understand
from ._handle import _check_status
from ._native import SLICE_S, SLICE_US, Native, wait_in_slices
from .errors import ArgumentError
from .queue import QueueRequest
from .status import GroupResult, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._core import CData
    from ._gossip_init import Arguments
    from ._queue_init import Arguments as QueueArguments
    from .context import Context
    from .topology import Topology

__all__ = ["GossipRequest", "SyncGossipRequest"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """The options that a request was made with; `shapes` are those of its buffers."""

    topology: Topology
    mode: str
    initiators: str
    continuous: bool
    dtype: np.dtype[Any]
    shapes: tuple[Shape, ...]
    orders: tuple[str, ...]
    layout: str
    is_list: bool

    @property
    def count(self) -> int:
        """Number of elements of all buffers together."""
        return sum(map(math.prod, self.shapes))

    def __str__(self) -> str:
        return f"{self.topology}, {self.count} {self.dtype.name}, '{self.mode}'"

    def read_like(self, name: str, buffers: Any, writable: bool) -> list[Memory]:
        """Return the memory of buffers; raise `ArgumentError` if they are not like `buf`."""
        memories = [understand(*named, writable=writable) for named in split(name, buffers)]
        if len(memories) != len(self.shapes):
            raise ArgumentError(
                f"{name} has {len(memories)} buffers, and buf has {len(self.shapes)}"
            )
        for memory, shape, orders in zip(memories, self.shapes, self.orders, strict=True):
            found = shape_of(memory)
            if memory.dtype != self.dtype or found != shape:
                raise ArgumentError(
                    f"{memory.name} has shape {found} and dtype {memory.dtype.name}, and the model "
                    f"{shape} and {self.dtype.name}: they must be equal"
                )
            if not set(memory.orders) & set(orders):
                raise ArgumentError(f"{memory.name} and buf are arrays of opposite memory order")
        return memories


class GossipRequest(AverageRequest):
    """A persistent average with one neighbour: started, waited for, and started again.

    `Context.Gossip_init` makes it and describes its options; applications do not call the
    constructor. `Request` describes the life of a request, and its use by several threads. A
    request cannot be copied or pickled. What differs from a round of an allreduce:

    - The library has this rank's *model*, which is a copy of `buf` at first. `Start` adds to the
      model, and asks for an average with a neighbour, drawn at random. `Wait` and `Test` write the
      model to `buf` as it is with that average. The `Status` has `Status.group`, `Status.weights`
      and `Status.staleness`.
    - Nobody waits for a rank that computes: its neighbours average with it all the same. So its
      model may change at any time, also between `Wait` and the next `Start`. Where not all ranks
      share the memory of one node, its progress thread takes part in these averages; with
      ``progress="caller"`` it does so only inside calls, and its neighbours wait meanwhile.
    - `locked` gives the model itself, and `Read` a copy of it.
    - A rank that is inside a collective call of the context, or away, or frees the handle, is
      averaged by its neighbours as before, and its own request goes on.
    - `Flush` averages over all ranks. There is no `View`, `More` or `Drain`.
    - `Free` drops the model, with what was added since the last `Wait`, and returns 0: call `Flush`
      before.

    Notes
    -----
    **Buffers.** The library reads `buf` inside `Context.Gossip_init` only, and writes it inside
    `Wait`, `Test` and `Flush` only. At all other times it belongs to the application. An array of
    `Context.alloc` belongs to the library from `Start` until `Wait`, or another call, has given a
    result.

    References
    ----------
    X. Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (AD-PSGD),
    ICML 2018, sections 3 and Appendix A.

    Examples
    --------
    >>> request = ctx.Gossip_init(weights, pp.topology.ring())  # doctest: +SKIP
    >>> for step in range(100):  # doctest: +SKIP
    ...     request.Start(add=-lr * gradient(weights))
    ...     request.Wait()  # the model is in `weights`, averaged with a neighbour's
    >>> request.Flush()  # the average of all models  # doctest: +SKIP
    >>> request.Free()  # doctest: +SKIP
    0
    """

    __slots__ = ("_adding", "_described")

    _settings: Settings

    def __init__(
        self, context: Context, native: Native, handle: CData, arguments: Arguments
    ) -> None:
        """Wrap a handle of the C core; `Context.Gossip_init` does this."""
        super().__init__(context, native, handle, arguments.vector.owners, arguments.settings)
        self._described = native.ffi.new("pp_gossip_result_t *")
        self._adding: tuple[Any, CData, int] | None = None  # the last array that was added

    # ---- the data path --------------------------------------------------------------------------

    def Start(self, add: Any = None) -> None:
        """Add to the model, and ask for an average with a neighbour.

        Local; never waits for another rank. While another thread is inside `Read` it raises, as
        inside `locked`. What is added is in the next average that begins with
        this rank, whoever asks for it; it is never lost. The neighbour is drawn by the context's
        seed, this rank and the number of the Start. If the last `Wait` raised `TimeoutError`, this
        only adds, and the request stays as it was.

        Parameters
        ----------
        add : buffer, or list of buffers, optional
            What to add, such as the gradient times minus the learning rate, or what an optimizer
            has changed: of the shapes and the dtype of `buf`. It is read during the call.

        Raises
        ------
        ArgumentError
            If `add` is not like `buf`. Nothing was added or started.
        Error
            If the previous request was not collected by `Wait` or `Test`; inside `locked`; if
            another thread is inside a collective call of the context; or if the handle was freed.
            Nothing was added or started.
        PeerFailedError
            If another rank has failed.
        """
        if add is None:
            status = self._pp_start(self._handle)
        else:
            self._live()
            last = self._adding
            if last is None or add is not last[0]:
                last = add, *self._pieces("add", add, writable=False)
            self._adding = last if isinstance(add, np.ndarray) else None
            status = self._lib.pp_gossip_start(self._handle, last[1], last[2])
        if status:
            self._native.check(status)
            self._context._log_note()

    def _pieces(self, name: str, buffers: Any, writable: bool) -> tuple[CData, int]:
        """Return buffers that are like those of the handle as the core takes them."""
        memories = self._settings.read_like(name, buffers, writable)
        pieces = self._native.ffi.new("pp_piece_t[]", len(memories))
        for piece, memory in zip(pieces, memories, strict=True):
            piece.recv = self._native.ffi.cast("void *", memory.address)
            piece.count = memory.count
        return pieces, len(memories)

    def Wait(self, status: Status | None = None, timeout: float | None = None) -> bool:
        """Wait until the average has happened; the model is then in `buf`, as it is with it.

        Local and blocking, but for no rank that computes: it waits for averages that were asked for
        before, with this rank or its neighbour. `buf` has the model as of this very average, even
        if others have averaged it again since. A rank without neighbours to draw from, as a passive
        one, has its model as it was.

        Parameters
        ----------
        status : Status, optional
            Filled with the average.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Returns
        -------
        bool
            True, as in mpi4py.

        Raises
        ------
        ArgumentError, TimeoutError, PeerFailedError
            As `Request.Wait`.
        Error
            The same, and inside `locked` of any request of the context.
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

    def _fill(self, status: Status) -> None:
        native, result = self._native, self._described
        native.check(self._lib.pp_gossip_result(self._handle, result))
        group = result.group
        members = tuple(native.ffi.unpack(group.members, group.count))
        status._fill(
            GroupResult(
                int(group.round),
                int(group.iteration) - 1,
                members,
                (1 / len(members),) * len(members),
                0.0,
                int(result.staleness),
            )
        )

    # ---- the model itself -----------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[Any]:
        """Have the model for this rank alone, for the time of a ``with`` block.

        Local, blocking: entering waits for an outstanding request of this rank, and for averages
        that were asked for before. Inside, the model may be read and changed in place; what was
        added to it is in it. Neighbours that have drawn this rank wait for the end of the block, so
        keep it short. An exception ends the block, too, and what was changed stays.

        Inside, every call of the context that can wait for another rank raises `Error` in this
        thread, and `Start` of this request; make no such calls of your own either.

        Yields
        ------
        numpy.ndarray, or list of them
            The model, in the shape of `buf`; of float32 if `buf` has elements of half precision.
            Do not use it after the block: then it is others' memory, or none. Copy what you keep.

        Raises
        ------
        Error
            If this thread is inside `locked` already, if a collective call of the context is in
            progress, or if the handle was freed.
        PeerFailedError
            If another rank has failed; at the end of the block, too.

        Examples
        --------
        >>> with request.locked() as model:  # doctest: +SKIP
        ...     model *= 1 - weight_decay
        """
        with self._held() as address:
            arrays = self._arrays(address)
            yield arrays if self._settings.is_list else arrays[0]

    @contextmanager
    def _held(self) -> Iterator[CData]:
        """Hold the model, and give its address."""
        self._live()
        native, handle = self._native, self._handle
        address = native.ffi.new("void **")

        def hold(slice_us: int) -> int:
            return self._lib.pp_gossip_hold(handle, slice_us, address)

        begun, released = True, 0  # also if Ctrl-C ends the first call
        try:
            code = hold(SLICE_US)
            begun = code >= 0
            if code == 1:  # PP_PENDING
                warning = self._context._stall_warning
                code = wait_in_slices(hold, SLICE_S, None, warning, self._explainer)
            native.check(code)
            yield address[0]
        finally:  # an exception ends it, too
            if begun:
                released = self._lib.pp_gossip_release(handle)
        native.check(released)

    def _arrays(self, address: CData) -> list[np.ndarray[Any, Any]]:
        """Return the model at an address as arrays."""
        ffi, settings = self._native.ffi, self._settings
        dtype = settings.dtype if settings.dtype.itemsize > 2 else np.dtype(np.float32)
        size_bytes = settings.count * dtype.itemsize
        memory: Any = ffi.buffer(ffi.cast("char *", address), size_bytes)
        flat, arrays, at = np.frombuffer(memory, dtype), [], 0
        for shape, orders in zip(settings.shapes, settings.orders, strict=True):
            count = math.prod(shape)
            order: Any = "C" if "C" in orders else "F"
            arrays.append(flat[at : at + count].reshape(shape, order=order))
            at += count
        return arrays

    def Read(self, out: Any) -> None:
        """Copy the model, with what was added to it, to buffers; the copy is not torn.

        Local, blocking as entering `locked` is.

        Parameters
        ----------
        out : buffer, or list of buffers
            Of the shapes and the dtype of `buf`.

        Raises
        ------
        ArgumentError
            If `out` is not like `buf`, or cannot be written.
        Error, PeerFailedError
            As `locked`.
        """
        self._live()
        pieces, _ = self._pieces("out", out, writable=True)
        ffi, dtype = self._native.ffi, self._settings.dtype
        with self._held() as address:
            models = self._arrays(address)
            for piece, model in zip(pieces, models, strict=True):
                memory: Any = ffi.buffer(
                    ffi.cast("char *", piece.recv), model.size * dtype.itemsize
                )
                np.frombuffer(memory, dtype)[:] = model.ravel("K")

    # ---- collective calls -----------------------------------------------------------------------

    def Flush(self, status: Status | None = None, timeout: float | None = None) -> None:
        """Average the models of all ranks; each has the average then, in its model and in `buf`.

        Collective, blocking. It returns when all ranks have called it. What was added is in the
        average. A request that was not collected is over; its average has happened. The handle can
        be used again.

        Parameters
        ----------
        status : Status, optional
            Filled; its `group` are the ranks that took part.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.

        Raises
        ------
        ArgumentError, TimeoutError, PeerFailedError
            As `Request.Flush`.
        Error
            The same, and inside `locked`.
        """
        super().Flush(status, timeout)

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Which ranks are neighbours."""
        return self._settings.topology


class SyncGossipRequest(QueueRequest):
    """A persistent average with all neighbours, by the weights of a graph (D-PSGD).

    ``Context.Gossip_init(..., mode="sync")`` makes it. It is a `QueueRequest` whose updates all
    neighbours wait for, and which adds: this rank's model is what is in `buf`. `Start` adds to it,
    and sends it to the neighbours. Until `Wait` the application may read it there, and compute a
    gradient. `Wait` writes the weighted average of the models of this rank and its in-neighbours,
    all of the same iteration.

    References
    ----------
    X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?" (D-PSGD),
    NeurIPS 2017, Algorithm 1.

    Examples
    --------
    >>> request = ctx.Gossip_init(model, "ring", mode="sync")  # doctest: +SKIP
    >>> request.Start()  # doctest: +SKIP
    >>> for step in range(100):  # doctest: +SKIP
    ...     change = -lr * gradient(model)  # reads it
    ...     request.Wait()
    ...     request.Start(add=change)
    """

    __slots__ = ("_pieces",)

    _settings: Settings

    def __init__(
        self,
        context: Context,
        native: Native,
        handle: CData,
        arguments: QueueArguments,
        like: Settings,
    ) -> None:
        """Wrap a handle of the C core; `Context.Gossip_init` does this."""
        vector = arguments.vector
        super().__init__(context, native, handle, vector, like)
        self._pieces = [self._array(piece.recv, piece.count) for piece in vector.pieces]

    def _array(self, address: int, count: int) -> np.ndarray[Any, Any]:
        ffi, dtype = self._native.ffi, self._settings.dtype
        memory: Any = ffi.buffer(ffi.cast("char *", address), count * dtype.itemsize)
        return np.frombuffer(memory, dtype)

    def Start(self, add: Any = None) -> None:
        """Add to the model in `buf`, and send it to the neighbours.

        Local; never waits for another rank.

        Parameters
        ----------
        add : buffer, or list of buffers, optional
            What to add, such as the gradient times minus the learning rate: of the shapes and the
            dtype of `buf`. It is read during the call.

        Raises
        ------
        ArgumentError
            If `add` is not like `buf`. Nothing was added or sent.
        Error, PeerFailedError
            As `QueueRequest.Start`.
        """
        self._live()
        if add is None or self._is_outstanding():
            super().Start()
            return
        added = self._settings.read_like("add", add, writable=False)
        before = [piece.copy() for piece in self._pieces]
        for piece, memory in zip(self._pieces, added, strict=True):
            piece += self._array(memory.address, memory.count)
        try:
            super().Start()
        except BaseException:
            for piece, last in zip(self._pieces, before, strict=True):
                piece[:] = last
            raise
