"""Gossip for programs of simulated ranks that share memory.

``("gossip_init", options, 0, model)`` makes a handle, ``("gossip_start", handle, add)`` starts it
and ``("call", handle, handle.hold())`` makes one of its other calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from .._core_sim import ffi
from .groups import PLANTS
from .handle import AnyHandle, Call

__all__ = ["Average", "GossipHandle", "GossipOptions"]


@dataclass(frozen=True)
class GossipOptions:
    """The arguments of a Gossip_init; `edges`: by rank the neighbours that it draws among."""

    edges: tuple[tuple[int, ...], ...]
    count: int = 1
    dtype: str = "float64"
    pieces: int = 1
    fenced: bool = False
    continuous: bool = False
    raw: tuple[tuple[str, int], ...] = ()  # wrong values for members of the core's struct

    def handle(self) -> GossipHandle:
        """Return a handle, not open yet, with these arguments."""
        return GossipHandle(self)


@dataclass(frozen=True)
class Average:
    """What a request completed with; `round` 0: no average, the rank's model as it was."""

    round: int
    members: tuple[int, ...]
    staleness: int
    data: bytes


class GossipHandle(AnyHandle):
    """One rank's handle of gossip."""

    options: GossipOptions
    begins = "pp_gossip_init_begin"
    pretends = ""  # a handle needs the memory that an agreement reserves

    def __init__(self, options: GossipOptions, context: int = 0, model: Any = None) -> None:
        super().__init__(options, context, in_place=True)
        self.recv[:] = 0 if model is None else model
        self._found = ffi.new("pp_gossip_result_t *")
        self._model = ffi.new("void **")
        self._given: Any = None  # what a call reads or writes

    def config(self, ranks: int, plant: str = "none") -> Any:
        """Return the core's ``pp_gossip_config_t``."""
        edges = self.options.edges
        starts = accumulate(map(len, edges), initial=0)
        config = ffi.new("pp_gossip_config_t *")
        config.edges = self._keep(ffi.new("int32_t[]", [*starts, *chain.from_iterable(edges)]))
        config.topology_text = self._keep(ffi.new("char[]", b"of a test"))
        config.plant = PLANTS[plant]
        config.continuous = self.options.continuous
        return self._filled(config)

    def _pieces(self, array: Any) -> tuple[Any, int]:
        """Return an array as pieces like those of the handle."""
        self._given = array, ffi.new("pp_piece_t[]", len(self.pieces))
        offset = self.recv.ctypes.data
        for piece, own in zip(self._given[1], self.pieces, strict=True):
            at = int(ffi.cast("intptr_t", own.recv)) - offset + array.ctypes.data
            piece.recv, piece.count = ffi.cast("void *", at), own.count
        return self._given[1], len(self.pieces)

    def start(self, add: Any = None) -> Call:
        """Return the call that adds to the model and asks for an average."""
        if add is None:
            return self.call("pp_start")
        return self.call("pp_gossip_start", *self._pieces(np.array(add, self.recv.dtype)))

    def hold(self, timeout_us: int = -1) -> Call:
        """Return the call after which `model` is this rank's alone."""
        return self.call("pp_gossip_hold", timeout_us, self._model)

    def release(self) -> Call:
        """Return the call that lets the model go."""
        return self.call("pp_gossip_release")

    @property
    def model(self) -> Any:
        """The model that is held, in place; that of halves is of float32."""
        dtype = np.promote_types(self.recv.dtype, np.float32)
        size_bytes = self.recv.size * dtype.itemsize
        memory: Any = ffi.buffer(ffi.cast("char *", self._model[0]), size_bytes)
        return np.frombuffer(memory, dtype)

    def _describe(self) -> Call:
        return self.call("pp_gossip_result", self._found)

    def collected(self) -> Average:
        """Return what the core has just filled in."""
        group = self._found.group
        members: Sequence[int] = ffi.unpack(group.members, group.count)
        return Average(group.round, tuple(members), self._found.staleness, self.recv.tobytes())
