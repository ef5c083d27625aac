"""One rank's handle of queues, for programs of the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._core_sim import ffi, lib
from .._queue_options import fill
from ..status import QueueResult
from .handle import AnyHandle, Call

__all__ = ["QueueHandle", "QueueOptions"]


@dataclass(frozen=True)
class QueueOptions:
    """The arguments of a Queue_init.

    Attributes
    ----------
    outs : tuple
        For each rank its out-neighbours, ascending.
    backup : int
        At most: less where a rank has no more in-neighbours.
    back : int
        As ``pp_queues_plan_t`` has it.
    weighted : bool
        In-neighbours weigh by the graph, all the same: `weight`.
    """

    outs: tuple[tuple[int, ...], ...]
    count: int = 1
    dtype: str = "float64"
    max_ig: int = 4
    backup: int = 0
    staleness: int | None = None
    skip: int | None = None
    skip_trigger: int = 2
    protocol: str = "tokens"
    back: int = 1
    weighted: bool = False
    plant: int = 0
    pieces: int = 1
    fenced: bool = False
    raw: tuple[tuple[str, int], ...] = ()

    def ins(self, rank: int) -> list[int]:
        """Return the in-neighbours of a rank."""
        return [other for other, outs in enumerate(self.outs) if rank in outs]

    @property
    def weight(self) -> float | None:
        """The weight of each in-neighbour; None: Hop's weights."""
        return 1 / (1 + max(map(len, self.outs))) if self.weighted else None


class QueueHandle(AnyHandle):
    """One rank's handle of queues."""

    begins = "pp_queue_init_begin"

    def __init__(self, options: QueueOptions, context: int = 0, rank: int = 0) -> None:
        super().__init__(options, context, in_place=True)
        self.rank = rank
        self.found = ffi.new("pp_queues_result_t *")
        self.counted = ffi.new("int32_t *")

    def config(self, ranks: int, plant: str = "none") -> Any:
        """Return the core's ``pp_queues_config_t``; `plant` is of groups."""
        options: QueueOptions = self.options
        ins, outs = options.ins(self.rank), list(options.outs[self.rank])
        config = ffi.new("pp_queues_config_t *")
        config.ins = self._keep(ffi.new("int32_t[]", ins))
        config.outs = self._keep(ffi.new("int32_t[]", outs))
        backup = min(options.backup, max(len(ins) - 1, 0))
        fill(lib, config.plan, options, backup, len(ins), len(outs), options.back)
        config.plan.plant = options.plant
        config.weights = self._keep(ffi.new("double[]", [options.weight or 0.0] * len(ins)))
        return self._filled(config)

    def size(self, sender: int = -1, iteration: int = -1) -> Call:
        """Return the call after which `counted` is how many updates there are."""
        return self.call("pp_queue_size", iteration, sender, self.counted)

    def _describe(self) -> Call:
        return self.call("pp_queue_result", self.found)

    def collected(self) -> tuple[QueueResult, bytes]:
        """Return what the core has just filled in, and the vector."""
        values = (int(getattr(self.found, name)) for name in QueueResult._fields)
        return QueueResult(*values), self.recv.tobytes()
