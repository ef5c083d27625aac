"""One execution of one schedule over a simulated network: ``pypartial sim schedule``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._core_sim import ffi, lib
from . import memory
from .handle import check
from .network import Network
from .options import Schedule
from .world import describe_network


def _number(schedule: Schedule) -> int:
    """Return the core's ``pp_sim_schedule_t``."""
    return int(getattr(lib, f"PP_SCHEDULE_{schedule.name}"))


@dataclass(frozen=True)
class Execution:
    """What one execution cost.

    Attributes
    ----------
    finished_ns : array of int64, shape (ranks,)
        When each rank finished.
    messages, bytes : int
        Sent by all ranks together; a payload that follows its header is a message of its own.
    """

    finished_ns: npt.NDArray[np.int64]
    messages: int
    bytes: int


def execute(
    schedule: Schedule, ranks: int, size: int, network: Network, seed: int = 0
) -> Execution:
    """Execute a schedule once, from time 0.

    Parameters
    ----------
    schedule : Schedule
    ranks : int
    size : int
        Bytes of a rank's vector; an activation carries none of them.
    network : Network
    seed : int
        Of the network's draws.

    Raises
    ------
    OutOfMemory
        Before anything is allocated.
    """
    memory.require(ranks, 0 if schedule is Schedule.ACTIVATION else size, ring=_is_ring(schedule))
    described = ffi.new("pp_network_t *")
    describe_network(described, network)
    finished = np.zeros(ranks, np.int64)
    traffic = ffi.new("pp_sim_traffic_t *")
    check(
        lib.pp_sim_schedule(
            _number(schedule),
            ranks,
            size,
            seed,
            described,
            ffi.cast("uint64_t *", finished.ctypes.data),
            traffic,
        )
    )
    return Execution(finished, int(traffic.messages), int(traffic.bytes))


def dump(schedule: Schedule, ranks: int, size: int, *, dot: bool) -> str:
    """Return the schedule of all ranks as text: DOT, or GOAL-like."""
    memory.require(ranks, 0, ring=_is_ring(schedule))
    text = ffi.new("char **")
    form = lib.PP_DOT if dot else lib.PP_GOAL
    check(lib.pp_sim_schedule_dump(_number(schedule), ranks, size, form, text))
    dumped = ffi.string(text[0]).decode()
    lib.pp_text_free(text[0])
    return dumped


def _is_ring(schedule: Schedule) -> bool:
    return schedule is Schedule.RING
