"""What the programs of scenarios do with handles of P-Reduce, and what they note."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from pypartial.sim.preduce_handle import Group, PreduceHandle, PreduceOptions

from .replay import Asked

if TYPE_CHECKING:
    from pypartial.sim.world import World

    from .plan import Scenario
    from .scenario import Log

__all__ = ["GroupCalls", "given_group", "initial_model"]

Array = np.ndarray[Any, Any]


def given_group(
    scenario: Scenario, index: int, rank: int, phase: int, step: int
) -> tuple[int, ...]:
    """Return the group that a step names for a handle with ``given`` groups.

    Where a rank may be a step ahead of others that were away, all steps name the same groups.
    """
    if not scenario.names_vary():
        phase = step = 0
    draw = random.Random(f"{scenario.seed} {index} {phase} {step}")
    ranks = list(range(scenario.ranks))
    draw.shuffle(ranks)
    while ranks:
        size = draw.randint(1, min(4, len(ranks)))
        if rank in ranks[:size]:
            return tuple(sorted(ranks[:size]))
        del ranks[:size]
    raise AssertionError(f"there is no rank {rank}")


def _noise(scenario: Scenario, index: int, rank: int, number: int) -> Array:
    options = scenario.handles[index]
    noise = np.random.default_rng((scenario.seed, rank, index, number))
    drawn: Array = noise.standard_normal(options.count).astype(options.dtype)
    return drawn


def initial_model(scenario: Scenario, index: int, rank: int) -> Array:
    """Return the initial model of a rank."""
    return _noise(scenario, index, rank, 0)


class GroupCalls:
    """The calls of one rank's handles of P-Reduce."""

    world: World
    scenario: Scenario
    rank: int
    logs: list[Log]
    random: random.Random
    handles: dict[int, Any]
    gave: dict[int, bytes]
    phase = step_of_phase = 0  # of the program

    def is_group(self, index: int) -> bool:
        """Whether a handle is one of P-Reduce."""
        return isinstance(self.scenario.handles[index], PreduceOptions)

    def train(self, index: int) -> bytes:
        """Change the model, as a step of a training does.

        From a result to the next Start the library must not have written into it.
        """
        log, model = self.logs[index], self.handles[index].recv
        who = f"handle {index}: rank {self.rank}"
        assert model.tobytes() == self.gave[index], f"{who}: the vector was written"
        log.starts += 1
        noise = _noise(self.scenario, index, self.rank, log.starts)
        model[:] = noise + model * model.dtype.type(0.5)
        found: bytes = model.tobytes()
        self.gave[index] = found
        return found

    def ask(self, index: int) -> Generator[Any, Any, None]:
        """Start: ask for a group."""
        log, handle = self.logs[index], self.handles[index]
        assert isinstance(handle, PreduceHandle)
        iteration, members = 0, None
        if self.random.random() < 0.25:
            iteration = log.iteration + self.random.randint(1, 5)
        if handle.options.generator == "given":
            step = self.phase, self.step_of_phase
            members = given_group(self.scenario, index, self.rank, *step)
        asked = Asked(self.train(index), iteration, begun=self.world.now)
        log.iteration = iteration or log.iteration + 1
        asked.iteration = log.iteration
        log.asked.append(asked)
        log.started.append(self.world.now)
        yield ("groups_start", handle, iteration, members)
        handle.recv.fill(77)  # the application may overwrite it at once

    def answered(self, index: int, group: Group) -> None:
        """Note what the last request gave."""
        log = self.logs[index]
        asked = log.asked[-1]
        asked.serial, asked.after, asked.ended = group.round, group.data, self.world.now
        log.groups.append(group)
        self.gave[index] = group.data
        log.iteration = group.iteration

    def average_all(self, index: int, held: bool) -> Generator[Any, Any, None]:
        """Flush. `held`: the last request was not collected."""
        log, handle = self.logs[index], self.handles[index]
        model = None if held else self.train(index)
        asked = Asked(model, log.iteration, flush=True, begun=self.world.now)
        log.asked.append(asked)
        group = yield from self.collective("flush", handle)
        if held:  # its groups have run until then
            log.asked[-2].ended = self.world.now
        self.answered(index, group)
        log.flushed += 1

    def collective(self, *request: Any) -> Generator[Any, Any, Any]:
        """Make a collective call."""
        raise NotImplementedError
