"""What one rank's handles of all kinds share, for programs of the simulation.

They call the core's functions directly, without the package's API: an error is a `CoreError`, and
options may be wrong on purpose. A kind of handle has a file of its own, and a line in
`requests.KINDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._core_sim import ffi, lib
from .._names import TYPE


class CoreError(Exception):
    """An error status of the core, with its text."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.text = ffi.string(lib.pp_error_text()).decode()
        super().__init__(status, self.text)


def check(status: int) -> int:
    """Return a non-negative status; raise otherwise."""
    if status < 0:
        raise CoreError(status)
    return status


class Call(NamedTuple):
    """A call of a function of the core.

    Attributes
    ----------
    then : Call or None
        What is called after ``PP_OK``, before the rank is interrupted again.
    timeout_ns : int
        Of ``pp_wait``, for ranks that share memory: the virtual time it waits at most; 0: no limit.
    """

    function: str
    arguments: tuple[Any, ...]
    then: Call | None = None
    timeout_ns: int = 0


class AnyHandle(ABC):
    """One rank's handle. Its vector is `recv`; `send` is what a Start reads.

    Attributes
    ----------
    begins, pretends : str
        The core's functions that begin its making, and that open it without an agreement.
    """

    begins: ClassVar[str]
    pretends: ClassVar[str]

    def __init__(self, options: Any, context: int, in_place: bool) -> None:
        self.options = options
        self.context = context
        self.recv = np.zeros(options.count, options.dtype)
        self.send = self.recv if in_place else np.zeros_like(self.recv)
        self.pieces = ffi.new("pp_piece_t[]", options.pieces)
        fence = options.fenced << lib.PP_FENCE_SHIFT
        bounds = [i * options.count // options.pieces for i in range(options.pieces + 1)]
        for i, piece in enumerate(self.pieces):
            at = bounds[i] * self.recv.itemsize
            if not in_place:
                piece.send = ffi.cast("void *", self.send.ctypes.data + at | fence)
            piece.recv = ffi.cast("void *", self.recv.ctypes.data + at | fence)
            piece.count = bounds[i + 1] - bounds[i]
        self.result = ffi.new("pp_result_t *")
        self.coll: Any = ffi.NULL
        self._kept: list[Any] = []  # what the configuration points to

    @abstractmethod
    def config(self, ranks: int, plant: str = "none") -> Any:
        """Return the core's configuration, which points into this object.

        `plant` is a defect of the generators of groups (`groups.PLANTS`).
        """

    def _filled(self, config: Any) -> Any:
        """Return a configuration with what all kinds have."""
        options = self.options
        config.pieces = self.pieces
        config.piece_count = options.pieces
        config.type = TYPE.constant(lib, options.dtype)
        config.memory = lib.PP_MEMORY_FENCED if options.fenced else lib.PP_MEMORY_HOST
        for member, value in options.raw:
            setattr(config, member, value)
        return config

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value

    def call(self, function: str, *arguments: Any) -> Call:
        """Return a call of a function on this handle."""
        return Call(function, (self.coll, *arguments))

    def start(self) -> Call:
        """Return the call that starts a request; a kind's own may take what the request is for."""
        return self.call("pp_start")

    def collect(self, function: str, *arguments: Any, timeout_ns: int = 0) -> Call:
        """Return a call that may give a result, and tells of it in what `collected` reads."""
        return Call(function, (self.coll, *arguments, self.result), self._describe(), timeout_ns)

    def _describe(self) -> Call | None:
        """Return the call that describes a result that `result` has no room for; None: it has."""
        return None

    @abstractmethod
    def collected(self) -> Any:
        """Return what the core has just filled in, and the vector."""
