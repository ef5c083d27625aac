"""Many groups of one handle of P-Reduce on simulated ranks, replayed while they run."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import numpy as np
from fuzz.group_oracles import association, note_lasts
from fuzz.replay import Asked, Formed, Replay

from pypartial.sim.preduce_handle import Group, PreduceHandle, PreduceOptions
from pypartial.sim.world import Begun, World

__all__ = ["GROUPS", "execute"]

GROUPS = (
    *("random:2", "random:3", "random:3,reuse"),
    *("smart:3", "smart:3,no-division", "smart:3,inter-intra", "controller:3", "given", "table"),
)
_STEPS = 20  # between flushes, at most
_COUNT = 9


class _Run:
    """All ranks make some steps and a flush, again and again, until there are enough groups."""

    def __init__(self, generator: str, ranks: int, wanted: int, seed: int, memory: bool) -> None:
        self.generator, self.ranks, self.wanted, self.seed = generator, ranks, wanted, seed
        pairs = tuple((low, low + 1) for low in range(0, ranks - 1, 2))
        fours = tuple(tuple(range(low, min(low + 4, ranks))) for low in range(0, ranks, 4))
        table = (pairs, fours) if generator == "table" else ()
        self.options = PreduceOptions(generator, count=_COUNT, table=table)
        if generator == "table" and not memory:  # constant weights have a way of their own
            self.options = PreduceOptions(generator, count=_COUNT, table=table, weights="closest")
        self.memory = memory
        self.world = World(ranks, seed=seed, memory=(50, 100) if memory else (), keep_groups=True)
        self.made = 0
        self.over = False
        self.logs: list[list[Asked]] = [[] for _ in range(ranks)]
        self.sizes: list[int] = []  # the most memory of a rank after each flush
        self.flushed = 0

    def run(self) -> int:
        self.world.run([self.program(rank) for rank in range(self.ranks)])
        assert self.made >= self.wanted
        assert len(set(self.sizes[1:])) <= 1 or max(self.sizes[len(self.sizes) // 2 :]) <= max(
            self.sizes[: len(self.sizes) // 2]
        ), f"memory grows: {self.sizes}"
        return self.made

    def given(self, rank: int, part: int, step: int) -> tuple[int, ...]:
        ranks = list(range(self.ranks))
        random.Random(f"{self.seed} {part} {step}").shuffle(ranks)
        at = ranks.index(rank) // 3 * 3
        return tuple(sorted(ranks[at : at + 3]))

    def ask(
        self, handle: PreduceHandle, log: list[Asked], request: Any, then: Any
    ) -> Generator[Any, Any, None]:
        asked = Asked(handle.recv.tobytes(), begun=self.world.now, flush=then is None)
        if then is None:
            group: Group = yield request
        else:
            yield request
            group = yield then
        asked.serial, asked.after, asked.ended = group.round, group.data, self.world.now
        asked.iteration = group.iteration
        log.append(asked)

    def program(self, rank: int) -> Generator[Any, Any, None]:
        draw = random.Random(f"{self.seed} {rank}")
        noise = np.random.default_rng((self.seed, rank))
        handle = yield ("groups_init", self.options)
        part = 0
        while not self.over:
            for step in range(_STEPS if self.generator == "given" else draw.randint(5, _STEPS)):
                yield draw.randrange(100_000)
                handle.recv[:] += noise.standard_normal(_COUNT)
                members = self.given(rank, part, step) if self.generator == "given" else None
                request = ("groups_start", handle, 0, members)
                yield from self.ask(handle, self.logs[rank], request, ("wait", handle))
            yield from self.ask(handle, self.logs[rank], ("flush", handle), None)
            part += 1
            yield ("barrier",)
            if rank == 0:
                self.judge()
            yield ("barrier",)
        yield ("free", handle)
        yield ("ctx_free",)

    def judge(self) -> None:
        """Replay what ran since the last flush, and forget it."""
        heard = list(self.world.groups_begun())
        note_lasts(self.logs, heard)
        begun = [group for group in heard if group.members]
        last = [0] * self.ranks
        for group in begun:
            for member in group.members:
                assert last[member] < group.serial, f"rank {member}: another order"
                last[member] = group.serial
        formed = [_formed(g) for g in begun if g.flush or len(g.members) > 1]
        dynamic = self.options.weights != "constant"
        add = association(self.memory, _COUNT, 8)
        Replay(self.logs, "float64", add, dynamic=dynamic).run(formed)
        assert all(len(log) > 1 for log in self.logs)
        self.logs[:] = [[] for _ in range(self.ranks)]
        self.made += len(formed) - 1
        self.over = self.made >= self.wanted
        ranks = range(0, self.ranks, max(1, self.ranks // 16))
        self.sizes.append(max(int(self.world.stats(rank).buffer_bytes) for rank in ranks))


def _formed(group: Begun) -> Formed:
    told = group.serial, group.members, group.weights, group.initial, group.flush
    return Formed(*told)


def execute(generator: str, ranks: int, wanted: int, seed: int = 0, *, memory: bool) -> int:
    """Average groups, and judge them; return how many they were, `wanted` at least.

    Parameters
    ----------
    generator : str
        One of `GROUPS`.
    ranks, wanted, seed : int
    memory : bool
        Whether the ranks share memory.
    """
    return _Run(generator, ranks, wanted, seed, memory).run()
