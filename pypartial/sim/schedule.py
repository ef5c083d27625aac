"""``pypartial sim schedule``: one execution of a schedule over a simulated network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._core_sim import ffi, lib
from .._names import FORMAT, algorithms
from . import memory
from .handle import check
from .network import Network
from .options import ACTIVATION
from .world import describe_network


def parse_schedule(text: str) -> str:
    """Return the schedule that a text names, in which ``-`` may stand for ``_``.

    Raises
    ------
    ValueError
        If the text names no schedule.
    """
    name = text.strip().lower().replace("-", "_")
    known = [ACTIVATION, *algorithms(ffi, lib)]
    if name not in known:
        raise ValueError(f"{text!r} is not a schedule: write one of {', '.join(known)}")
    return name


def _number(schedule: str) -> int:
    """Return the core's number of a schedule."""
    if schedule == ACTIVATION:
        return lib.PP_SCHEDULE_ACTIVATION
    return algorithms(ffi, lib).constant(lib, schedule)


@dataclass(frozen=True)
class Execution:
    """The cost of one execution.

    Attributes
    ----------
    finished_ns : array of int64, shape (ranks,)
        When each rank finished.
    messages, bytes : int
        Messages and bytes that all ranks sent; a payload that follows its header counts as one.
    """

    finished_ns: npt.NDArray[np.int64]
    messages: int
    bytes: int


def execute(
    schedule: str, ranks: int, size: int, network: Network, seed: int = 0, segments: int = 0
) -> Execution:
    """Execute a schedule once, from time 0.

    Parameters
    ----------
    schedule : str
        `ACTIVATION`, or an algorithm.
    ranks : int
    size : int
        Bytes of a rank's vector; an activation carries no data.
    network : Network
    seed : int
        Seed of the network's draws.
    segments : int
        Segments of the vector, each reduced by itself; 0: by its size, as on real ranks.

    Raises
    ------
    OutOfMemory
        If the simulation does not fit into memory; nothing was allocated.
    """
    vector_bytes = 0 if schedule == ACTIVATION else size
    memory.require(ranks, vector_bytes, ring=_is_ring(schedule))
    described = ffi.new("pp_network_t *")
    describe_network(described, network)
    finished = np.zeros(ranks, np.int64)
    traffic = ffi.new("pp_sim_traffic_t *")
    check(
        lib.pp_sim_schedule(
            _number(schedule),
            ranks,
            size,
            segments,
            seed,
            described,
            ffi.cast("uint64_t *", finished.ctypes.data),
            traffic,
        )
    )
    return Execution(finished, int(traffic.messages), int(traffic.bytes))


def dump(schedule: str, ranks: int, size: int, *, dot: bool) -> str:
    """Return the schedule of all ranks as text, GOAL-like or in DOT."""
    memory.require(ranks, 0, ring=_is_ring(schedule))
    text = ffi.new("char **")
    form = FORMAT.constant(lib, "dot" if dot else "goal")
    check(lib.pp_sim_schedule_dump(_number(schedule), ranks, size, form, text))
    dumped = ffi.string(text[0]).decode()
    lib.pp_text_free(text[0])
    return dumped


def _is_ring(schedule: str) -> bool:
    """Return whether a rank's schedule grows with the number of ranks."""
    return bool(lib.pp_algorithm_chunk_a_rank(_number(schedule)))
