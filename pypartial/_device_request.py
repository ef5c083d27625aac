"""What the requests with buffers in the memory of a CUDA device share: path, streams, waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._device import LEGACY_STREAM, as_stream
from ._handle import Request
from ._names import DEVICE_PATH
from ._native import warn

_REASON_BYTES = 512


def no_stream() -> int:
    """Stand for the stream of a request that was freed, and refers to no array any more."""
    return LEGACY_STREAM


class DeviceRequest(Request):
    """Helpers of the requests of all kinds with buffers on a device, of which each is a base.

    The classes of requests have slots, and two bases with slots do not go together: so this one has
    none, and says what the others have.
    """

    __slots__ = ()

    _device: int
    _find_target: Callable[[], int]

    # ---- the device, and the path ---------------------------------------------------------------

    @property
    def device(self) -> int:
        """Number of the CUDA device, as CuPy and PyTorch count them."""
        return self._device

    @property
    def device_path(self) -> str:
        """How elements get from rank to rank, the same on all ranks.

        ``"staged"``, ``"ipc"`` or ``"direct"``, see `Context.Allreduce_init`.
        """
        return self._path()[0]

    @property
    def device_path_reason(self) -> str:
        """Why the path asked for, or chosen, is not possible; else ``""``.

        It is the same on all ranks.
        """
        return self._path()[1]

    def _path(self) -> tuple[str, str]:
        self._live()
        ffi, lib = self._native.ffi, self._lib
        path, why = ffi.new("int32_t *"), ffi.new("char[]", _REASON_BYTES)
        self._native.check(lib.pp_device_path(self._handle, path, why, _REASON_BYTES))
        return DEVICE_PATH.value(lib, path[0]), self._native.text(why)

    def _made(self, asked: str) -> None:
        """Say on rank 0, once for a context, that the path asked for is not possible."""
        reason = self.device_path_reason if asked != "auto" else ""
        if reason and self._context.rank == 0 and not self._context._told_of_path:
            self._context._told_of_path = True
            text = (
                f"device_path={asked!r} is not possible, so elements travel by the host's memory: "
                f"{reason}"
            )
            warn(text)

    # ---- streams and waits ----------------------------------------------------------------------

    def _use(self, stream: Any, find_current: Callable[[], int]) -> int:
        """Name the stream of the next calls, and return its number."""
        self._live()
        number = as_stream(stream, self._device) if stream is not None else find_current()
        self._native.check(self._lib.pp_use_stream(self._handle, number))
        return number

    def _before(self, name: str, stream: Any, timeout: float | None) -> float | None:
        """Prepare a step of a collective call that gives a result, unless it has begun.

        Return how much of its timeout is left.
        """
        self._use(stream, self._find_target)
        if self._context._calls.in_progress(name):
            return timeout
        return self._land(name, timeout, results=False)

    def _before_free(self, timeout: float | None) -> float | None:
        """Prepare `Free`, unless it has begun; return how much of its timeout is left."""
        name = f"Free of {self._name()}"
        if self._context._calls.in_progress(name):
            return timeout
        self._live()
        return self._land(name, timeout, results=True)

    def _land(self, name: str, timeout: float | None, *, results: bool) -> float | None:
        """Wait until contributions are off the device, and `results` there; return what is left."""
        call = self._context._calls.prepare(name)[0]
        return self._context._calls.await_device(
            name,
            f"this rank's copies on device {self._device}",
            timeout,
            lambda slice_us: self._lib.pp_land(self._handle, call, results, slice_us),
        )
