"""Ranks that go by Hop's rules (`csrc/queues`), under any order of messages, and what must hold.

A `World` has a `Rank` for each state. What ranks send each other waits in a bag, out of which
anything may come next; or, with `memory`, ranks look at what the others have published, one look
at a time. After each event a `Rank` compares its state with the rules, written down here once more
with sets of updates in place of rings.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pypartial._core_sim import ffi, lib
from pypartial._queue_options import Mode
from pypartial.sim.handle import check
from pypartial.sim.queues import EVENTS, describe, open_queues

__all__ = [
    *("GRAPHS", "MODES", "Graph", "Rank", "Stuck", "World"),
    *("draw_world", "regular", "table_1"),
]

PLANTS = {
    "none": lib.PP_QUEUES_PLANT_NONE,
    "lost-token": lib.PP_QUEUES_PLANT_LOST_TOKEN,
    "twice": lib.PP_QUEUES_PLANT_TWICE,
    "late-tokens": lib.PP_QUEUES_PLANT_LATE_TOKENS,
    "fresh-only": lib.PP_QUEUES_PLANT_FRESH_ONLY,
}
MODES = {
    "standard": Mode(),
    "tight": Mode(max_ig=1),
    "none": Mode(protocol="none"),
    "none-staleness": Mode(protocol="none", staleness=2),
    "notify-ack": Mode(protocol="notify-ack"),
    "topology": Mode(protocol="none", weighted=True),
    "backup": Mode(backup=1),
    "staleness": Mode(staleness=3, max_ig=8),
    "newest": Mode(staleness=0),
    "hybrid": Mode(backup=1, staleness=2),
    "skip-backup": Mode(backup=1, skip=10, max_ig=3, skip_trigger=1),
    "skip-staleness": Mode(staleness=3, skip=2, max_ig=5),
    "skip-hybrid": Mode(staleness=1, backup=1, skip=7, max_ig=2, skip_trigger=1),
}


# ---- graphs --------------------------------------------------------------------------------------


class Graph:
    """Out-neighbours of each rank, without itself; connected."""

    def __init__(self, outs: Sequence[Iterable[int]]) -> None:
        self.outs = [sorted(set(out) - {rank}) for rank, out in enumerate(outs)]
        self.ranks = len(outs)
        self.ins = [[j for j in range(self.ranks) if i in self.outs[j]] for i in range(self.ranks)]
        self.path = [self._paths(rank) for rank in range(self.ranks)]
        edges = [(j, i) for j in range(self.ranks) for i in self.outs[j]]
        self.back = max((self.path[i][j] for j, i in edges), default=0)

    def _paths(self, rank: int) -> list[int]:
        lengths = {rank: 0}
        queue = deque([rank])
        while queue:
            at = queue.popleft()
            for out in self.outs[at]:
                if out not in lengths:
                    lengths[out] = lengths[at] + 1
                    queue.append(out)
        return [lengths[other] for other in range(self.ranks)]


def regular(ranks: int, degree: int, seed: int, directed: bool) -> Graph:
    """A connected graph of random cycles: each rank has `degree` in- and out-neighbours at most."""
    draw = random.Random(seed)
    outs: list[set[int]] = [set() for _ in range(ranks)]
    for cycle in range(degree if directed else max(degree // 2, 1)):
        order = list(range(ranks)) if cycle == 0 else draw.sample(range(ranks), ranks)
        for a, b in zip(order, order[1:] + order[:1], strict=True):
            outs[a].add(b)
            if not directed:
                outs[b].add(a)
    return Graph(outs)


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "ring": lambda p: Graph([((i - 1) % p, (i + 1) % p) for i in range(p)]),
    "ring-based": lambda p: Graph(
        [{(i - 1) % p, (i + 1) % p, *((i + d) % p for d in (p // 2, -(p // 2)))} for i in range(p)]
    ),
    "exponential": lambda p: Graph(
        [{(i + s * 2**j) % p for j in range(p.bit_length()) for s in (1, -1)} for i in range(p)]
    ),
    "random": lambda p: regular(p | 1, 4, p, False),  # it has an odd cycle
    "directed": lambda p: regular(p, 2, p, True),
    "directed-ring": lambda p: Graph([[(i + 1) % p] for i in range(p)]),
}


# ---- a rank --------------------------------------------------------------------------------------


def table_1(graph: Graph, mode: Mode) -> list[list[float]]:
    """Return the most that each rank may be ahead of each other one (Hop, Table 1)."""

    def most(i: int, j: int) -> float:
        step = 1 if mode.staleness is None else mode.staleness + 1
        # A rank may be s + 1 ahead of one that has decided to jump, and that one ahead by tokens.
        bounded = not mode.backup and (not mode.skip or graph.path[j][i] == 1)
        by_updates = step * graph.path[j][i] if bounded else math.inf
        by_tokens = {"tokens": mode.max_ig, "notify-ack": 2, "none": math.inf}[mode.protocol]
        return 0 if i == j else min(by_updates, by_tokens * graph.path[i][j])

    return [[most(i, j) for j in range(graph.ranks)] for i in range(graph.ranks)]


class Stuck(AssertionError):
    """Ranks wait, and nothing can happen any more."""


class Rank:
    """The state of a rank, and what the rules say of it."""

    def __init__(self, world: World, rank: int) -> None:
        graph, mode = world.graph, world.mode
        self.world, self.rank, self.mode = world, rank, mode
        self.ins, self.outs = graph.ins[rank], graph.outs[rank]
        plan = describe(mode, len(self.ins), len(self.outs), graph.back)
        plan.plant = PLANTS[world.plant]
        plan.backup = min(mode.backup, max(len(self.ins) - 1, 0))
        self.backup = int(plan.backup)
        weights = [1 / (1 + max(len(self.ins), 1))] * len(self.ins)
        self.queues = open_queues(plan, weights if mode.weighted else None)
        self.action = ffi.new("pp_queues_action_t *")
        self.status = ffi.new("pp_queues_result_t *")
        self.ring = int(lib.pp_sim_queues_ring(plan))
        self.bound = mode.staleness or 0
        self.exact = mode.staleness is None

        self.phase = "entered"  # started, waits, averages, averaged
        self.left = False
        self.iteration = 0  # what the others know of: entered
        self.goal = 1
        self.decided = 0
        self.said = 0  # updates and headers of all iterations below are sent
        self.entered = 0  # how often
        self.announced = [0] * len(self.outs)
        self.unbound = [False] * len(self.outs)
        self.seen: list[dict[int, str]] = [{} for _ in self.ins]
        self.from_: list[int | None] = [None] * len(self.ins)
        self.averaged = [-1] * len(self.ins)
        self.newest = [-1] * len(self.ins)
        self.parts: list[tuple[int, int]] = []
        self.opened = self.ring  # with a window: rounds below
        self.came: dict[int, int] = {}
        self.early: list[tuple[Any, ...]] = []
        self.dropped = self.received = self.staleness = 0

    # ---- the rules -------------------------------------------------------------------------------

    @property
    def due(self) -> int:
        return self.goal if self.phase == "averaged" else self.goal - 1

    @property
    def oldest(self) -> int:
        """The oldest iteration within the bound: each must have sent something at all."""
        return max(self.due - self.bound, 0)

    def slowest(self) -> int | None:
        here = zip(self.announced, self.unbound, strict=True)
        return min((told for told, unbound in here if not unbound), default=None)

    def gone(self, sender: int, iteration: int) -> bool:
        """Whether a later update has taken an update's place in the ring."""
        later = range(iteration + self.ring, self.newest[sender] + 1, self.ring)
        return any(other in self.seen[sender] for other in later)

    def hear(self, sender: int, iteration: int, what: str) -> None:
        seen = self.seen[sender]
        late = iteration < self.oldest or iteration <= self.averaged[sender]
        if iteration in seen or late or self.gone(sender, iteration):
            return
        seen[iteration] = what
        self.newest[sender] = max(self.newest[sender], iteration)
        if len(seen) > 8 * self.ring + 64:
            keep = min(self.oldest, self.newest[sender] - self.ring)
            self.seen[sender] = {at: was for at, was in seen.items() if at >= keep}

    def fate(self, sender: int, iteration: int) -> str | None:
        if self.gone(sender, iteration):
            return "header"
        left = self.from_[sender]
        absent = "header" if left is not None and iteration >= left else None
        return self.seen[sender].get(iteration, absent)

    def update_of(self, sender: int) -> int | None:
        """The update that is averaged now."""
        if self.exact:
            return self.due if self.fate(sender, self.due) == "update" else None
        there = [at for at, what in self.seen[sender].items() if what == "update"]
        newest = max(there, default=-1)
        new = newest > self.averaged[sender] and newest >= self.oldest
        return newest if new and not self.gone(sender, newest) else None

    def is_received(self, sender: int) -> bool:
        old = not self.exact and self.averaged[sender] >= self.oldest
        return old or self.update_of(sender) is not None

    def is_omitted(self, sender: int) -> bool:
        if self.exact:
            return self.fate(sender, self.due) == "header"
        seen = self.seen[sender].items()
        within = any(at >= self.oldest and what == "header" for at, what in seen)
        return within or self.from_[sender] is not None

    def has_enough(self) -> bool:
        received = [self.is_received(sender) for sender in range(len(self.ins))]
        omitted = [self.is_omitted(sender) for sender in range(len(self.ins))]
        settled = all(a or b for a, b in zip(received, omitted, strict=True))
        return settled or sum(received) >= len(self.ins) - self.backup

    def weights(self) -> tuple[float, list[float]]:
        """The weights of the own model and of the parts."""
        if self.mode.weighted:
            each = 1 / (1 + max(len(self.ins), 1))
            return 1 - each * len(self.parts), [each] * len(self.parts)
        floor = self.due - self.bound - 1
        shares = [1 if self.exact else at - floor for _, at in self.parts]
        own = 1 if self.exact or not shares else max(self.iteration - floor, 0)
        total = own + sum(shares)
        return own / total, [share / total for share in shares]

    def reckon(self) -> None:
        """Decide on the goal as the rules say."""
        slowest = self.slowest()
        if slowest is None or self.phase == "averages":
            return
        if self.world.is_left(self):
            if self.phase == "entered":
                self.iteration = max(self.iteration, slowest)
                self.goal = self.iteration + 1
            else:
                self.goal = max(self.goal, slowest)
        elif self.phase == "waits" and self.mode.skip and self.goal == self.iteration + 1:
            is_behind = slowest - self.iteration > self.mode.skip_trigger
            self.goal = min(slowest, self.iteration + self.mode.skip) if is_behind else self.goal

    # ---- events ----------------------------------------------------------------------------------

    def event(self, name: str, neighbour: int = 0, iteration: int = 0) -> None:
        """Tell the state of an event, do what is due, and compare it with the rules."""
        if self.world.moves:
            check(lib.pp_sim_queues_move(self.queues))
        self._note(name, neighbour, iteration)
        check(lib.pp_sim_queues_event(self.queues, EVENTS[name], neighbour, iteration))
        self.reckon()
        while self._act():
            pass
        if self.world.plant == "none":
            self._compare()

    def _note(self, name: str, neighbour: int, iteration: int) -> None:
        if name == "start":
            self.phase = "started"
        elif name == "wait":
            self.phase = "waits"
        elif name == "averaged":
            for sender, at in self.parts:
                assert at > self.averaged[sender], "an update is averaged twice"
                self.averaged[sender] = at
            self.phase = "averaged"
        elif name in ("leave", "back"):
            self.left = name == "leave"
        elif name in ("update", "header"):
            self.hear(neighbour, iteration, name)
        elif name == "gone":
            seen = self.seen[neighbour]
            older = [at for at in seen if at <= iteration and seen[at] == "update"]
            seen.update(dict.fromkeys(older, "header"))
            self.phase = "waits"
        elif name in ("left", "here"):
            self.from_[neighbour] = iteration if name == "left" else None
        else:
            self.unbound[neighbour] = name == "unbound"
            if name == "token":
                self.announced[neighbour] = max(self.announced[neighbour], iteration)

    def _compare(self) -> None:
        due = lib.pp_sim_queues_due(self.queues)
        assert due == self.due, f"rank {self.rank}: {due} is due, and not {self.due}"
        if self.phase == "waits" and not self._holds_back():
            assert not self.has_enough(), f"rank {self.rank} waits although it has enough"
            missing = [self.is_received(j) or self.is_omitted(j) for j in range(len(self.ins))]
            told = [lib.pp_sim_queues_awaits_update(self.queues, j) for j in range(len(self.ins))]
            assert told == [not known for known in missing]
        if self.phase == "averaged":
            slowest = self.slowest()
            assert slowest is not None and self.mode.protocol == "tokens"
            assert slowest + self.mode.max_ig < self.goal, f"rank {self.rank} has its tokens"

    def _holds_back(self) -> bool:
        slowest = self.slowest()
        if self.mode.protocol != "notify-ack" or slowest is None:
            return False
        return slowest < self.iteration and self.said == self.iteration

    def _act(self) -> bool:
        """Do the next action; False: nothing is due."""
        lib.pp_sim_queues_next(self.queues, self.action)
        action = self.action[0]
        kind = action.kind
        if kind == lib.PP_QUEUES_NOTHING:
            return False
        if kind == lib.PP_QUEUES_SEND:
            assert action.iteration == self.said == self.iteration
            self.said += 1
            self.world.send(self, action.iteration)
        elif kind == lib.PP_QUEUES_OMIT:
            assert action.iteration == self.said
            self.said = action.end
            for iteration in range(action.iteration, action.end):
                self.world.omit(self, iteration)
        elif kind == lib.PP_QUEUES_ANNOUNCE:
            self.world.decide(self, action.iteration)
            self.world.announce(self, action.iteration)
        elif kind == lib.PP_QUEUES_AVERAGE:
            self._average(action)
        elif kind == lib.PP_QUEUES_ENTER:
            self._enter(action.iteration)
        else:
            self.world.presence(self, kind == lib.PP_QUEUES_TELL_LEFT, action.iteration)
        return True

    def _average(self, action: Any) -> None:
        parts = [action.parts[i] for i in range(action.count)]
        self.parts = [(part.neighbour, part.iteration) for part in parts]
        for sender, at in self.parts:
            assert at > self.averaged[sender], "an update is averaged twice"
        if self.world.plant == "none":
            assert self.phase == "waits" and not self._holds_back()
            assert action.iteration == self.due and self.has_enough()
            there = [(sender, self.update_of(sender)) for sender in range(len(self.ins))]
            assert self.parts == [(sender, at) for sender, at in there if at is not None]
            self.staleness = max([0, *(self.due - at for _, at in self.parts)])
            own, weights = self.weights()
            assert math.isclose(action.own, own, abs_tol=1e-12)
            assert all(
                math.isclose(a.weight, b, abs_tol=1e-12)
                for a, b in zip(parts, weights, strict=True)
            )
        self.phase = "averages"

    def _enter(self, iteration: int) -> None:
        assert self.phase == "averaged"
        lib.pp_sim_queues_result(self.queues, self.status)
        result = self.status[0]
        assert result.iteration == iteration
        if self.world.plant == "none":
            assert iteration == self.goal
            assert result.received == len(self.parts)
            assert result.staleness == self.staleness
            assert result.skipped == 0 or self.mode.skip or self.world.leavers
        self.dropped += result.dropped
        self.received += result.received
        self.iteration, self.goal, self.phase = iteration, iteration + 1, "entered"
        self.entered += 1
        self.world.enter(self)


# ---- all ranks -----------------------------------------------------------------------------------


class World:
    """Ranks, and what is under way between them.

    Parameters
    ----------
    graph : Graph
    mode : Mode
    seed : int
        Of the order in which things happen.
    memory : bool
        Ranks look at what others have published, as on a node; else they send messages.
    leavers : sequence of int
        Ranks that leave now and then, and come back.
    window : bool
        Of messages: one of a round that is not open yet waits, as in the engine.
    plant : str
        A defect of `PLANTS`.
    moves : bool
        States move to another address before each event.
    """

    def __init__(
        self,
        graph: Graph,
        mode: Mode,
        seed: int = 0,
        memory: bool = False,
        leavers: Sequence[int] = (),
        plant: str = "none",
        moves: bool = False,
        window: bool = False,
    ) -> None:
        self.window = window
        self.graph, self.mode, self.plant, self.moves = graph, mode, plant, moves
        self.memory, self.leavers = memory, list(leavers)
        self.draw = random.Random(seed)
        self.bag: list[tuple[Any, ...]] = []
        self.notices: dict[tuple[int, int], deque[tuple[str, str, int]]] = {}
        self.lost: Callable[[int, int], bool] = lambda _source, _iteration: False
        self.stopped: set[int] = set()  # ranks that do nothing any more
        self.end = 0
        self.told_left = [False] * graph.ranks
        self.words = [[0, -1, 0] for _ in range(graph.ranks)]  # announced, published, has left
        self.rings: list[dict[int, int]] = [{} for _ in range(graph.ranks)]
        self.looks: dict[tuple[int, int], tuple[int, int]] = {}
        self.gap = [[0] * graph.ranks for _ in range(graph.ranks)]  # the largest seen
        self.table = table_1(graph, mode)
        self.ranks = [Rank(self, rank) for rank in range(graph.ranks)]
        self.most = [[self._most(rank, sender) for sender in rank.ins] for rank in self.ranks]
        slow = self.draw.choice(("none", "few", "links", "all"))
        hold = (1.0, 0.3, 0.02)
        self.speed = [self.draw.choice(hold) if slow in ("few", "all") else 1.0 for _ in self.ranks]
        self.links = {
            (rank, out): self.draw.choice(hold) if slow in ("links", "all") else 1.0
            for rank in range(graph.ranks)
            for out in graph.outs[rank]
        }
        self.newest_first = self.draw.random() < 0.2
        self.app = self.draw.choice((0.1, 0.5, 0.9))

    # ---- Table 1 ---------------------------------------------------------------------------------

    def _most(self, rank: Rank, sender: int) -> float:
        """The most updates of a sender in a rank's queue (section 4), with those of the bound."""
        lead = {"tokens": self.mode.max_ig, "notify-ack": 0, "none": rank.ring}
        lead["none"] = (rank.bound + 1) * self.graph.path[rank.rank][sender]
        return lead[self.mode.protocol] + 1 + rank.bound + (self.mode.skip is not None)

    def decide(self, rank: Rank, iteration: int) -> None:
        """A rank has decided to be in an iteration: by tokens only."""
        rank.decided = max(rank.decided, iteration)
        if self.leavers or self.mode.protocol != "tokens":
            return
        for other in self.ranks:
            ahead = rank.decided - other.decided
            assert ahead <= self.mode.max_ig * self.graph.path[rank.rank][other.rank], "Table 1"

    def enter(self, rank: Rank) -> None:
        rank.decided = max(rank.decided, rank.iteration)
        i = rank.rank
        for j, other in enumerate(self.ranks):
            self.gap[i][j] = max(self.gap[i][j], rank.iteration - other.iteration)
            if not self.leavers:
                ahead = rank.iteration - other.decided
                assert ahead <= self.table[i][j], f"Table 1: rank {i} is {ahead} ahead of {j}"
                tokens = other.decided - rank.iteration + self.mode.max_ig
                if self.mode.protocol == "tokens" and j in rank.outs:
                    assert 0 <= tokens <= self.mode.max_ig * (self.graph.path[j][i] + 1)

    def is_left(self, rank: Rank) -> bool:
        """Whether the others think that a rank has left, or will."""
        return rank.left or self.told_left[rank.rank]

    # ---- what ranks do ---------------------------------------------------------------------------

    def send(self, rank: Rank, iteration: int) -> None:
        self.words[rank.rank][1] = iteration
        self.rings[rank.rank][iteration % rank.ring] = iteration
        for at, out in enumerate(rank.outs):
            wants = lib.pp_sim_queues_wants(rank.queues, at)
            self._post(rank.rank, out, "update" if wants else "header", iteration)

    def omit(self, rank: Rank, iteration: int) -> None:
        for out in rank.outs:
            self._post(rank.rank, out, "header", iteration)

    def announce(self, rank: Rank, iteration: int) -> None:
        self.words[rank.rank][0] = iteration
        for at, sender in enumerate(rank.ins):
            if lib.pp_sim_queues_tells(rank.queues, at) and not self.lost(rank.rank, iteration):
                self._notify(rank.rank, sender, "token", iteration)

    def presence(self, rank: Rank, left: bool, iteration: int) -> None:
        self.told_left[rank.rank] = left
        self.words[rank.rank][2] = int(left)
        if not left:
            self.words[rank.rank][0] = iteration
            rank.decided = max(rank.decided, iteration)
        for out in rank.outs:
            self._notify(rank.rank, out, "left" if left else "here", iteration)
        for sender in rank.ins:
            self._notify(rank.rank, sender, "unbound" if left else "token", iteration)

    def _post(self, source: int, target: int, what: str, iteration: int) -> None:
        if not self.memory:
            self.bag.append((source, target, what, iteration))

    def _notify(self, source: int, target: int, what: str, iteration: int) -> None:
        if not self.memory:
            queue = self.notices.setdefault((source, target), deque())
            queue.append((what, "in" if what in ("left", "here") else "out", iteration))
            self.bag.append((source, target))

    def _deliver(self, message: tuple[Any, ...]) -> None:
        source, target = message[:2]
        rank = self.ranks[target]
        if len(message) == 2:
            what, side, iteration = self.notices[message].popleft()
            at = (rank.ins if side == "in" else rank.outs).index(source)
            rank.event(what, at, iteration)
            return
        if self.window and message[3] >= rank.opened:
            rank.early.append(message)
            return
        at = rank.ins.index(source)
        rank.event(message[2], at, message[3])
        if message[2] == "update" and not self.leavers:
            size = lib.pp_sim_queues_size(rank.queues, -1, at)
            assert size <= self.most[target][at], f"{size} updates of rank {source} at {target}"
        if self.window:
            self._open(rank, message[3])

    def _open(self, rank: Rank, iteration: int) -> None:
        """By messages a round is opened when the one `ring` before is complete."""
        rank.came[iteration] = rank.came.get(iteration, 0) + 1
        while rank.came.get(rank.opened - rank.ring, 0) == len(rank.ins):
            del rank.came[rank.opened - rank.ring]
            rank.opened += 1
        ready = [message for message in rank.early if message[3] < rank.opened]
        rank.early = [message for message in rank.early if message[3] >= rank.opened]
        self.bag += ready

    # ---- the memory of a node --------------------------------------------------------------------

    def _look(self, rank: Rank, other: int) -> None:
        """Look at another rank's words: its announcement first, what it has published later."""
        announced, published, left = self.words[other]
        if other in rank.outs:
            rank.event("unbound" if left else "token", rank.outs.index(other), announced)
        if other not in rank.ins:
            return
        if self.draw.random() < 0.3:
            self.looks[rank.rank, other] = (announced, left)
            return
        announced, left = self.looks.pop((rank.rank, other), (announced, left))
        at, due = rank.ins.index(other), int(lib.pp_sim_queues_due(rank.queues))
        oldest = int(lib.pp_sim_queues_oldest(rank.queues))
        if left:
            rank.event("left", at, published + 1)
        elif rank.from_[at] is not None:
            rank.event("here", at)
        if not rank.exact and published >= 0:
            rank.event("update", at, published)
        for iteration in range(oldest, max(due, announced - 1) + 1):
            if iteration <= published and rank.exact:
                there = self.rings[other].get(iteration % rank.ring) == iteration
                rank.event("update" if there else "header", at, iteration)
            elif published < iteration < announced:
                rank.event("header", at, iteration)

    def _finish(self, rank: Rank) -> None:
        """The average is done, unless an update was overwritten meanwhile."""
        gone = [
            (sender, at)
            for sender, at in rank.parts
            if self.memory and self.rings[rank.ins[sender]].get(at % rank.ring) != at
        ]
        assert not gone or self.leavers, "an update was overwritten that is needed"
        for sender, at in gone:
            rank._note("gone", sender, at)
            check(lib.pp_sim_queues_event(rank.queues, EVENTS["gone"], sender, at))
        if gone:
            rank.event("wait")
        else:
            rank.event("averaged")

    # ---- schedules -------------------------------------------------------------------------------

    def can_step(self, rank: Rank) -> bool:
        if rank.rank in self.stopped:
            return False
        unfinished = rank.phase in ("started", "averages")
        return unfinished or rank.left or (rank.phase == "entered" and rank.iteration < self.end)

    def _step(self, rank: Rank) -> None:
        """Let a rank's program go on."""
        if rank.phase == "averages":
            self._finish(rank)
        elif rank.left:
            if self.draw.random() < 0.2:
                rank.event("back")
            elif rank.phase == "started" and self.draw.random() < 0.3:
                rank.event("wait")  # another thread
        elif rank.rank in self.leavers and self.draw.random() < 0.05:
            rank.event("leave")
        elif rank.phase == "entered":
            rank.event("start")
        else:
            rank.event("wait")

    def _message(self) -> None:
        """Deliver any message."""
        for _ in range(20):
            at = self.draw.randrange(len(self.bag))
            at = len(self.bag) - 1 - at // 4 if self.newest_first else at
            if self.draw.random() < self.links[self._link(self.bag[at])]:
                break
        self.bag[at], self.bag[-1] = self.bag[-1], self.bag[at]
        self._deliver(self.bag.pop())

    def _link(self, message: tuple[Any, ...]) -> tuple[int, int]:
        source, target = message[0], message[1]
        return (source, target) if (source, target) in self.links else (target, source)

    def _look_around(self) -> bool:
        """All ranks look at all words, until none learns anything; whether a program can go on."""
        for _ in range(3):
            for rank in self.ranks:
                for other in {*rank.ins, *rank.outs}:
                    self.looks.pop((rank.rank, other), None)
                    while True:
                        self._look(rank, other)
                        if (rank.rank, other) not in self.looks:
                            break
        return any(self.can_step(rank) for rank in self.ranks)

    def settle(self) -> None:
        """Let happen what can happen, in any order, until nothing can."""
        able = [rank for rank in self.ranks if self.can_step(rank)]
        while True:
            programs = able and (not self.bag or self.draw.random() < self.app)
            if programs:
                rank = self.draw.choice(able)
                if self.draw.random() < self.speed[rank.rank] or len(able) == 1:
                    self._step(rank)
            elif self.bag:
                self._message()
            elif not self.memory or not self._look_around():
                return
            if self.memory:
                rank = self.draw.choice(self.ranks)
                self._look(rank, self.draw.choice([*rank.ins, *rank.outs]))
            able = [rank for rank in self.ranks if self.can_step(rank)]

    def run(self, iterations: int) -> None:
        """Let all ranks enter this iteration."""
        self.end = iterations
        self.settle()
        behind = [rank.rank for rank in self.ranks if rank.iteration < iterations]
        if set(behind) - self.stopped:
            raise Stuck(f"ranks {behind} wait for ever: {[r.iteration for r in self.ranks]}")
        self.check_quiet()

    def check_quiet(self) -> None:
        """Nothing is under way: each rank knows what its neighbours have announced."""
        for rank in self.ranks:
            for out, told in zip(rank.outs, rank.announced, strict=True):
                there = not self.told_left[out] and self.mode.protocol != "none"
                decided = self.ranks[out].decided
                assert not there or told == decided, f"rank {rank.rank} lacks a token of {out}"

    def stop(self, rank: int, iterations: int = 10**6) -> list[int]:
        """Let one rank send its update, and compute for ever; return how far each gets ahead."""
        self.ranks[rank].event("start")
        self.stopped = {rank}
        self.end = iterations
        self.settle()
        self.check_quiet()
        return [other.iteration - self.ranks[rank].iteration for other in self.ranks]


def draw_world(mode: str, seed: int, ranks: tuple[int, int] = (3, 11)) -> World:
    """Draw a graph, a transport, leavers and an order."""
    draw = random.Random(f"{mode} {seed}")
    graph = GRAPHS[draw.choice(list(GRAPHS))](draw.randint(*ranks))
    leavers = draw.sample(range(graph.ranks), draw.randint(1, graph.ranks))
    return World(
        graph,
        MODES[mode],
        seed,
        memory=draw.random() < 0.4,
        leavers=leavers if draw.random() < 0.4 else (),
        moves=draw.random() < 0.1,
        window=draw.random() < 0.5,
    )
