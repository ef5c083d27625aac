"""Gossip in scenarios: averages of two neighbours, replayed bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from support.gossip_replay import Own, Replay

from pypartial._core_sim import lib
from pypartial.sim.gossip_handle import Average, GossipOptions

from .kind import Calls, Edges, Kind, connects, draw_graph, fail, plant

if TYPE_CHECKING:
    from pypartial.sim.world import Begun

    from .plan import Scenario
    from .scenario import Log, Outcome, Program

__all__ = ["GossipKind"]

_COUNTS = (0, 1, 3, 4, 5, 8, 17, 17, 40, 40, 40, 300)
_HOLD_TRIES, _HOLD_PAUSE_NS = 100_000, 10_000


def _around(edges: Edges) -> Edges:
    """Return the graph in which each edge goes both ways: who asks does not matter."""
    both = [set(ends) for ends in edges]
    for rank, ends in enumerate(edges):
        for end in ends:
            both[end].add(rank)
    return tuple(tuple(sorted(ends)) for ends in both)


class GossipKind(Kind):
    options, word, graph = GossipOptions, "gossip_", "edges"
    dtypes = ("float64", "float32", "float16")
    waits_for_computing = False
    coverage: ClassVar = {
        "pairs_in_memory": "gossip in memory that all ranks share",
        "pairs_by_messages": "gossip by messages",
        "passive": "ranks that ask for no average",
        "adds_merged": "an add of gossip to one that no average has taken",
        "stale": "a model that changed between Wait and Start",
        "pairs_flushed": "a flush of gossip",
        "pairs_patience": "gossip in a program that only patience keeps alive",
    }
    plants: ClassVar = {
        "lost-add": plant("LOST_ADD"),
        "other-slot": plant("OTHER_SLOT"),
        "member-twice": plant("MEMBER_TWICE"),
        "initiator-first": plant("INITIATOR_FIRST"),
    }

    def draw(self, draw: random.Random, ranks: int, node: bool) -> GossipOptions:
        edges = draw_graph(draw, ranks)
        if draw.random() < 0.3:  # only some ask, as with initiators="active"
            edges = tuple(
                e if rank == 0 or draw.random() < 0.5 else () for rank, e in enumerate(edges)
            )
            edges = edges if connects(_around(edges)) else draw_graph(draw, ranks)
        dtypes = self.dtypes if node else self.dtypes[:2]
        return GossipOptions(
            edges=edges,
            count=draw.choice(_COUNTS),
            dtype=draw.choice(dtypes),
            pieces=draw.choice((1, 1, 2)),
            fenced=draw.random() < 0.1,
        )

    def complaint(self, options: GossipOptions, scenario: Scenario) -> str | None:
        if options.dtype == "float16" and not scenario.on_a_node():
            return "halves by messages: the replay does not follow them"
        complaint = super().complaint(options, scenario)
        if complaint is None and not connects(_around(options.edges)):
            return f"{options.edges} is not connected"
        return complaint

    # ---- what programs do

    def _draw(self, program: Program, index: int, number: int) -> Any:
        options = program.scenario.handles[index]
        noise = np.random.default_rng((program.scenario.seed, program.rank, index, number))
        return noise.standard_normal(options.count).astype(options.dtype)

    def first(self, program: Program, index: int) -> Any:
        model = self._draw(program, index, 0)
        program.logs[index].own = Own(model)
        return model

    def start(self, program: Program, index: int, again: bool = False) -> Calls:
        log, handle = program.logs[index], program.handles[index]
        log.starts += 1
        if not again:
            # Another thread's calls would be refused meanwhile.
            alone = not any(phase.threads for phase in program.scenario.phases)
            if alone and program.random.random() < 0.1:
                yield from self._hold(program, index)
            program.unwritten(index)
        add = None
        if program.random.random() < 0.8:
            add = self._draw(program, index, log.starts)
            log.own.adds.append(add)
        handle.recv.fill(77)  # the application may overwrite it at any time
        yield ("gossip_start", handle, add)

    def _hold(self, program: Program, index: int) -> Calls:
        """Change the model inside ``locked()``."""
        handle, own = program.handles[index], program.logs[index].own
        for _ in range(_HOLD_TRIES):  # ranks that share no memory do not wait inside a call
            if (yield ("call", handle, handle.hold())) == lib.PP_OK:
                break
            yield _HOLD_PAUSE_NS
        else:
            fail("the model has not come", f"rank {program.rank}")
        found = handle.model.copy()
        yield program.random.choice((0, 3000))
        assert handle.model.tobytes() == found.tobytes(), "the model changed while it was held"
        left = self._draw(program, index, program.random.getrandbits(30))
        handle.model[:] = left
        own.alone.append((found.astype(handle.options.dtype).tobytes(), left))
        yield ("call", handle, handle.release())

    def given(self, program: Program, index: int, result: Average) -> None:
        log, own = program.logs[index], program.logs[index].own
        edges, rank = program.scenario.handles[index].edges, program.rank
        if result.round:
            (other,) = set(result.members) - {rank}
            if other not in edges[rank] and rank not in edges[other]:
                fail(f"rank {rank} was averaged with no neighbour", result)
            own.given[result.round] = result.data
        elif edges[rank]:
            fail(f"rank {rank} was given no average", result)
        else:
            own.alone.append((result.data, None))
        log.groups.append(result)

    def flushed(self, program: Program, index: int, result: Average, held: bool) -> None:
        self.freed(program, index, held)
        if result.members != tuple(range(program.scenario.ranks)):
            fail("a flush without all ranks", result)
        program.logs[index].own.given[result.round] = result.data

    def freed(self, program: Program, index: int, held: bool) -> None:
        if held and not program.scenario.handles[index].edges[program.rank]:
            program.logs[index].own.alone.append((None, None))

    # ---- how it is judged

    def judge(
        self, scenario: Scenario, index: int, logs: Sequence[Log], begun: Sequence[Begun]
    ) -> None:
        Replay([log.own for log in logs], not scenario.on_a_node()).run(begun)

    def occurred(self, scenario: Scenario, index: int, outcome: Outcome) -> dict[str, bool]:
        options, logs, begun = scenario.handles[index], outcome.logs[index], outcome.begun[index]
        return {
            "pairs_in_memory": scenario.on_a_node(),
            "pairs_by_messages": not scenario.on_a_node(),
            "passive": scenario.ranks > 1 and not all(options.edges),
            "adds_merged": any(group.serial and not group.members for group in begun),
            "stale": any(given.staleness > 0 for log in logs for given in log.groups),
            "pairs_flushed": any(group.flush for group in begun),
            "pairs_patience": scenario.needs_patience(),
        }
