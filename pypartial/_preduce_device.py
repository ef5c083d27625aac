"""Requests of P-Reduce whose buffers are in the memory of a CUDA device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._arguments import seconds
from ._device import streams_finder
from ._device_request import DeviceRequest, no_stream
from ._group_elements import DeviceBuffers, DeviceElements, HostElements
from ._handle import _check_status
from .errors import ArgumentError, TimeoutError
from .preduce import PreduceRequest

if TYPE_CHECKING:
    from ._buffer import Vector
    from ._core import CData
    from ._group_elements import Elements
    from ._native import Native
    from ._preduce_init import Arguments
    from .context import Context
    from .status import Status

__all__ = ["DevicePreduceRequest"]


class DevicePreduceRequest(DeviceRequest, PreduceRequest):
    """A persistent partial all-reduce in groups, of buffers in the memory of a CUDA device.

    `Context.Preduce_init` makes it if its buffers are CuPy arrays, CUDA tensors of PyTorch, or
    other objects with `__cuda_array_interface__` or a DLPack export of CUDA. It is used as any
    `PreduceRequest`. Averages have the same bits as those of buffers in host memory.

    Notes
    -----
    **Streams.** As of a `DeviceAllreduceRequest`: the calls order themselves with the work of a
    stream, and the host does not wait for that work. `Start` gives what is in the buffers when the
    work queued on its stream so far is done; work that is queued there afterwards may overwrite
    them.
    `Wait`, `Test` and `Flush` return when the copy of the average into the buffers is queued on
    their stream: give a `Start`, its `Wait` and the next `Start` the same stream, or order their
    streams yourself. `Flush` does both: it reads the buffers on its stream, and writes them there.

    This rank asks for its group when the copy of its model has arrived. Until then other ranks take
    it for one that computes.

    With ``missing="initial"`` `Context.Preduce_init` copies the initial model off the device when
    what is queued on the current stream is done, and waits for that.

    **Memory.** Elements travel by pinned memory of the host: two vectors, and more if more
    averages are on their way at once. With eight on their way the next request is complete only
    when the oldest has arrived: its stream is that far behind.

    **backend="comm"** averages in host memory. With ``device_path="direct"`` models stay on their
    devices: MPI gets addresses there, and each member's kernels weigh its model and divide the sum.
    If a device fails in a group, that rank's context fails, and the other members wait inside MPI
    until the program is aborted.
    """

    __slots__ = ("_device", "_find_target")

    def __init__(
        self, context: Context, native: Native, handle: CData, arguments: Arguments
    ) -> None:
        """Wrap a handle of the C core; `Context.Preduce_init` does this."""
        super().__init__(context, native, handle, arguments)
        vector: Any = arguments.vector
        self._device, self._find_target = vector.device, streams_finder(vector.targets)

    def _elements(self, vector: Vector) -> Elements:
        if self.device_path == "direct":
            return DeviceElements(self._native, self._handle)
        buffers = DeviceBuffers(self._native, self._handle, vector)
        return HostElements(self._native, buffers, self._settings)

    # ---- the data path --------------------------------------------------------------------------

    def Start(self, iteration: int | None = None, group: Any = None, stream: Any = None) -> None:
        """Give what is in the buffers, and ask for a group.

        Local. It waits neither for another rank nor for what is queued on the device.

        Parameters
        ----------
        iteration, group
            As of `PreduceRequest.Start`.
        stream : stream or int, optional
            Where the work that writes the buffers is queued, see the class. None: the current
            stream of the array's library.

        Raises
        ------
        ArgumentError
            As `PreduceRequest.Start`; and if `stream` is none, is of another device or
            context, is being captured, or was destroyed (where the driver notices it). Nothing was
            started.
        MemoryError
            If no more memory can be pinned. Nothing was started.
        MismatchError, Error, PeerFailedError
            As `PreduceRequest.Start`.
        """
        self._use(stream, self._find_target)
        super().Start(iteration, group)

    def Wait(
        self, status: Status | None = None, timeout: float | None = None, stream: Any = None
    ) -> bool:
        """Wait until the request is complete; the average is then on its way to the buffers.

        Local and blocking: it waits for the group, and for the device only as long as this rank's
        model has not come off it.

        Parameters
        ----------
        status : Status, optional
            Filled with the group.
        timeout : float, optional
            Seconds to wait at most, 0 or more. None: no limit.
        stream : stream or int, optional
            Where the work that reads the average will be queued. None: the current stream of the
            array's library.

        Returns
        -------
        bool
            True.

        Raises
        ------
        ArgumentError
            As `PreduceRequest.Wait`, and for `stream` as `Start`. The call has not waited.
        TimeoutError, Error, MismatchError, PeerFailedError
            As `PreduceRequest.Wait`.
        """
        self._use(stream, self._find_target)
        return super().Wait(status, timeout)

    def Test(self, status: Status | None = None, stream: Any = None) -> bool:
        """Collect the request if it is complete. Local; does not wait for a group.

        See `PreduceRequest.Test`, and `Wait` for `stream`.
        """
        self._use(stream, self._find_target)
        return super().Test(status)

    # ---- collective calls -----------------------------------------------------------------------

    def Flush(
        self, status: Status | None = None, timeout: float | None = None, stream: Any = None
    ) -> None:
        """Average the models of all ranks, with equal weights.

        Collective, blocking. It first waits until what this rank gives has come off the device. If
        that takes longer than `timeout`, the call has not begun, and when repeated goes on with the
        same copy; unless another collective call of the context has begun meanwhile, or Ctrl-C has
        ended the first try: then it copies anew, into other pinned memory. See
        `PreduceRequest.Flush`, and `Wait` for `stream`.
        """
        _check_status(status)
        limit = None if timeout is None else seconds(timeout)
        self._live()
        self._refuse_flush()
        name = f"Flush of {self._name()}"
        try:
            super().Flush(status, self._before(name, stream, limit))
        except (TimeoutError, ArgumentError):  # it has not begun, and can be repeated
            raise
        except BaseException:  # such as Ctrl-C when the copy has come off: the next call is new
            self._context._calls.forget(name)
            raise

    def Free(self, timeout: float | None = None) -> int:
        """End the handle and release its memory.

        Collective, blocking. It first waits until this rank's model has come off the device, and
        its averages are there. A `TimeoutError` before that says so: the call has not begun, and
        the request can be used. See `PreduceRequest.Free`.
        """
        limit = None if timeout is None else seconds(timeout)
        self._refuse_flush()
        return super().Free(self._before_free(limit))

    def _drop(self) -> None:
        super()._drop()
        self._find_target = no_stream
