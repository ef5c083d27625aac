"""Requests of a partial allreduce whose buffers are in the memory of a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ._arguments import seconds
from ._device import library_stream, streams_finder
from ._device_array import array_at, load_cupy, stream_at
from ._device_request import DeviceRequest, no_stream
from ._handle import _check_status
from .allreduce import AllreduceRequest
from .status import Cause, Status

if TYPE_CHECKING:
    from . import allreduce
    from ._core import CData
    from ._device_buffer import DeviceVector
    from ._native import Native
    from .context import Context

__all__ = ["DeviceAllreduceRequest"]


class DeviceAllreduceRequest(DeviceRequest, AllreduceRequest):
    """A persistent partial allreduce of buffers in the memory of a CUDA device.

    `Context.Allreduce_init` makes it if its buffers are CuPy arrays, CUDA tensors of PyTorch, or
    other objects with `__cuda_array_interface__` or a DLPack export of CUDA. It is used as any
    `AllreduceRequest`. Results have the same bits as those of buffers in host memory.

    Notes
    -----
    **Streams.** The calls order themselves with the work of a *stream*, and the host does not wait
    for that work. (For some operations of its own a call waits: docs/cuda.md, "Streams" and "How it
    is made".) ``stream=None`` is the current stream of the library that the array is from, at the
    time of the call: ``cupy.cuda.get_current_stream()``, ``torch.cuda.current_stream()``, else the
    `stream` of the object's interface, else the legacy default stream. If several buffers have
    different ones, the call raises `ArgumentError`: pass a stream. A stream can also be an
    object of CuPy, PyTorch or with ``__cuda_stream__``, or a number as in
    `__cuda_array_interface__`: an address, 1 for the legacy default stream, 2 for the calling
    thread's.

    - `Start` contributes what is in the buffer when the work queued on its stream so far is done.
      Work that is queued there afterwards waits for the copy and may overwrite the buffer. (An
      array of `Context.alloc` is written behind the `Wait` instead.)
    - `Wait`, and every other call that gives a result, returns when the copy of the result into the
      receive buffer is queued on its stream: work that is queued there afterwards sees it. If two
      of these calls have different streams, order these yourself.

    This rank counts as ready when the copy of its contribution has arrived. Until then other ranks
    take it for one that computes. Whether a request is late is decided by `Start`.

    **Memory.** With ``"staged"`` elements travel by pinned memory of the host: by what the rounds
    read and write themselves, or by bounce buffers, three or more, where a vector is short or is
    converted on the way, or rounds are made of messages. With eight results on their way the next
    request is complete only when the oldest has arrived: its stream is that far behind.
    """

    __slots__ = (
        "_asked",
        "_cupy",
        "_device",
        "_find_source",
        "_find_target",
        "_target",
        "_viewed_on",
    )

    def __init__(
        self,
        context: Context,
        native: Native,
        handle: CData,
        settings: allreduce.Settings,
        vector: DeviceVector,
    ) -> None:
        """Wrap a handle of the C core; `Context.Allreduce_init` does this."""
        super().__init__(context, native, handle, settings, vector)
        self._device = vector.device
        self._target: Any = vector.targets[0][1]
        self._find_source = streams_finder(vector.sources)
        self._find_target = streams_finder(vector.targets)
        self._cupy: Any = None  # the module, from the first view on
        self._viewed_on: Any = None  # keeps the stream of the last view alive

    # ---- the data path --------------------------------------------------------------------------

    def Start(self, stream: Any = None) -> None:
        """Contribute what is in the send buffers, and ask for a result.

        Local. It waits neither for another rank nor for what is queued on the device.

        Parameters
        ----------
        stream : stream or int, optional
            Where the work that writes the buffer is queued, see the class. None: the current stream
            of the array's library.

        Raises
        ------
        ArgumentError
            If `stream` is none, is of another device or context, is being captured, or was
            destroyed (where the driver notices it). Nothing was contributed.
        MemoryError
            If no more memory can be pinned. Nothing was contributed.
        Error, PeerFailedError
            As `Request.Start`.
        """
        self._use(stream, self._find_source)
        super().Start()

    def Wait(
        self, status: Status | None = None, timeout: float | None = None, stream: Any = None
    ) -> bool:
        """Wait until the request is complete; its result is then on its way to the receive buffers.

        Local and blocking: it waits for a round, not for the work that is queued on `stream`.

        Parameters
        ----------
        status : Status, optional
            Filled with what the request completed with.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.
        stream : stream or int, optional
            Where the work that reads the result will be queued. None: the current stream of the
            array's library.

        Returns
        -------
        bool
            True.

        Raises
        ------
        ArgumentError
            As `Request.Wait`, and for `stream` as `Start`. The call has not waited.
        TimeoutError, Error, PeerFailedError
            As `Request.Wait`.
        """
        self._use(stream, self._find_target)
        return super().Wait(status, timeout)

    def Test(self, status: Status | None = None, stream: Any = None) -> bool:
        """Collect the request if it is complete. Local; does not wait for a round.

        It takes as long as it takes to queue the copy of the result, and with ``"ipc"`` as some
        operations of the library on the device (docs/cuda.md, "How it is made"). See
        `Request.Test`, and `Wait` for `stream`.
        """
        self._use(stream, self._find_target)
        return super().Test(status)

    def More(self, status: Status | None = None, stream: Any = None) -> bool:
        """Take the next complete round that this rank was not given yet. Local, as `Test`.

        False also if eight results are on their way. See `AllreduceRequest.More`, and `Wait` for
        `stream`.
        """
        self._use(stream, self._find_target)
        return super().More(status)

    def View(
        self, status: Status | None = None, timeout: float | None = None, stream: Any = None
    ) -> Any:
        """Wait until the request is complete, and return its result as a CuPy array.

        Local and blocking, as `Wait`. On the path ``"ipc"`` the result is mostly not copied: the
        array shows memory that the ranks share, and the receive buffers keep what they had. With
        ``"staged"`` and ``"direct"``, with half precision, of several rounds that were merged, on
        the per-thread default stream, and while the device still reads a result before, the result
        is copied to the receive buffers as by `Wait`, and the array shows these.

        Parameters
        ----------
        status : Status, optional
            Filled with what the request completed with.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.
        stream : stream or int, optional
            Where the work that reads the result will be queued. None: the current stream of the
            array's library. A stream that is given as a number has to live until the next call.

        Returns
        -------
        cupy.ndarray
            Of shape ``(count,)`` and the element type of the receive buffers, whose elements it
            holds one buffer after the other. Only read it. It shows this result to work that is
            queued on `stream` before the next call of any method of the request; afterwards it
            shows something undefined. If it shows the receive buffers, the next result comes there
            after that work; but not if `stream` is the per-thread default stream.

        Raises
        ------
        ArgumentError, TimeoutError, Error, PeerFailedError
            As `Wait`.
        Error
            If CuPy is not installed, or cannot use the device. The call has not waited.

        Notes
        -----
        The next call records an event on `stream`. While that is being captured into a graph the
        call raises `ArgumentError`, and has done nothing.
        """
        self._live()
        if self._cupy is None:
            self._cupy = load_cupy(self._native, self._device, f"{self._name()}: View")
        used = stream if stream is not None else library_stream(self._target)
        self._asked = self._use(stream, self._find_target), used
        return super().View(status, timeout)

    def _view(self, elements: CData, keeper: CData) -> Any:
        """Return an array of the result, in memory that ranks share or in the receive buffers."""
        # The next call records an event on this stream. This one has done so for the view before.
        number, self._viewed_on = self._asked
        if elements != self._native.ffi.NULL:
            address = int(self._native.ffi.cast("uintptr_t", elements))
            return self._array(address, self._settings.count)
        parts = [
            self._array(int(self._native.ffi.cast("uintptr_t", at)), count)
            for at, count in self._receives
        ]
        if len(parts) == 1:
            return parts[0]
        # Behind the copies of the result, and before what the application queues there.
        stream = stream_at(self._cupy, self._device, number)
        with self._cupy.cuda.Device(self._device), stream:
            return self._cupy.concatenate(parts)

    def _array(self, address: int, count: int) -> Any:
        dtype = self._settings.dtype
        return array_at(self._cupy, self._device, address, (count,), dtype, self)

    # ---- collective calls -----------------------------------------------------------------------

    def Flush(
        self, status: Status | None = None, timeout: float | None = None, stream: Any = None
    ) -> None:
        """Run one more, synchronous round with everything that is pending on any rank.

        Collective, blocking. It first waits until this rank's contributions have come off the
        device. A `TimeoutError` before that says so: the call has not begun, and this rank has not
        left. See `Request.Flush`, and `Wait` for `stream`.
        """
        _check_status(status)
        limit = None if timeout is None else seconds(timeout)
        self._live()
        self._refuse_flush()
        super().Flush(status, self._before(f"Flush of {self._name()}", stream, limit))

    def Drain(self, timeout: float | None = None, stream: Any = None) -> Iterator[Status]:
        """Deliver the remaining rounds one by one, the flush last.

        The first step waits until this rank's contributions have come off the device, with a
        timeout as that of `Flush`. See `AllreduceRequest.Drain`, and `Wait` for `stream`: None is
        looked up in each step.
        """
        limit = None if timeout is None else seconds(timeout)
        super().Drain(limit)  # for what it refuses
        return self._drain_on(limit, stream)

    def _drain_on(self, timeout: float | None, stream: Any) -> Iterator[Status]:
        status = None
        while status is None or status.cause is not Cause.FLUSH:
            self._live()
            left = self._before(f"Drain of {self._name()}", stream, timeout)
            status = next(self._drain(left))
            yield status

    def Free(self, timeout: float | None = None) -> int:
        """End the handle and release its memory.

        Collective, blocking. It first waits until this rank's contributions have come off the
        device, and its results are there, with a timeout as that of `Flush`: the request can be
        used after that. See `Request.Free`.
        """
        limit = None if timeout is None else seconds(timeout)
        return super().Free(self._before_free(limit))

    def _drop(self) -> None:
        super()._drop()
        self._target = self._viewed_on = None
        self._asked = 0, None
        self._find_source = self._find_target = no_stream
