"""max_lag: who withholds its part of a round, and that `missed` never exceeds it.

(design: "Staleness bound", "Delivery", "Leaving")
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from support.rules import ALL_FACTS, Facts, Rules

# ---- verdicts ------------------------------------------------------------------------------------


def test_a_rank_withholds_what_is_further_than_max_lag_from_what_it_was_given(rules: Rules) -> None:
    """Rounds r > g + max_lag; g: the newest given, at least the next to complete if it waits."""
    quorum = rules.quorum(1, 2)
    for completed, given, waits, max_lag in product(range(6), range(8), (False, True), range(5)):
        newest = given - 1
        if waits:
            newest = max(newest, completed)
        bound = rules.lib.pp_rule_bound(given, completed, waits, max_lag)
        facts = rules.facts(Facts(waits=waits))
        for round in range(completed, completed + 10):
            withholds = rules.lib.pp_rule_withholds(quorum, facts, round, bound)
            assert withholds == (round > newest + max_lag)
            assert not (withholds and waits and round == completed)


def test_only_leaving_being_elsewhere_and_patience_lift_it(rules: Rules) -> None:
    """Full always waits for ranks that are not ready and have not left."""
    lib = rules.lib
    for size, policy, deadline in product(range(1, 6), ("PP_FIRST_OF", "PP_QUORUM"), (False, True)):
        for k in range(1, size + 1):
            rule = rules.rule(policy, k, size, deadline=deadline)
            full = policy == "PP_QUORUM" and k == size and not deadline
            for facts, late in product(ALL_FACTS, (False, True)):
                known, bound = rules.facts(facts), 5 if late else 6
                exempt = facts.left or facts.elsewhere or facts.aside
                awaited = full and not facts.ready
                withholds = lib.pp_rule_withholds(rule, known, 5, bound)
                assert withholds == (late and not exempt and not awaited)
                permits = lib.pp_rule_permits(rule, known, 5, bound)
                assert permits == (facts.left if awaited else not withholds)


def test_without_a_bound_nothing_is_withheld(rules: Rules) -> None:
    unbounded = (1 << 63) - 1
    for rounds in (0, 1, 1 << 40, 1 << 62):
        bound = rules.lib.pp_rule_bound(rounds, rounds, False, unbounded)
        facts = rules.facts(Facts())
        assert rules.lib.pp_rule_permits(rules.first_of(1, 2), facts, rounds + 10**9, bound)


# ---- a rank among others -------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """A rank, seen from the newest round that is complete at it: 0 is the next to complete."""

    activated: int = 0  # rounds that others have activated from here on
    taken: int = 0  # of these: rounds to which it has given its part
    given: int = 0  # rounds given or counted as given
    seen: int = 0  # rounds complete when its last request was, or counted as given
    ungiven: int = 0  # complete rounds that no request was given (`latest`: 0 or 1)
    waits: bool = False
    left: bool = False
    elsewhere: bool = False
    aside: bool = False


class Application:
    """What can happen to a rank whose rounds the others activate as fast as they can."""

    def __init__(self, rules: Rules, max_lag: int, window: int, each: bool, leaves: bool) -> None:
        self.lib, self.max_lag, self.window, self.each = rules.lib, max_lag, window, each
        self.leaves = leaves  # the rank may leave, be elsewhere, or lose others' patience
        self.facts, self.rule = rules.facts, rules.first_of(1, 2)
        self.missed: set[int] = set()

    def facts_of(self, rank: Rank) -> Any:
        return self.facts(
            Facts(waits=rank.waits, left=rank.left, elsewhere=rank.elsewhere, aside=rank.aside)
        )

    def permits(self, rank: Rank) -> bool:
        # The core's numbers are not negative.
        bound = self.lib.pp_rule_bound(100 + rank.given, 100, rank.waits, self.max_lag)
        return self.lib.pp_rule_permits(self.rule, self.facts_of(rank), 100 + rank.taken, bound)

    def count(self, rank: Rank) -> Rank:
        """What is complete or in flight while the rank is exempt counts as given."""
        if rank.left or rank.elsewhere or rank.aside:
            return replace(rank, given=max(rank.given, rank.taken), seen=max(rank.seen, rank.taken))
        return rank

    def complete(self, rank: Rank) -> Rank:
        rank = replace(
            rank,
            **{name: getattr(rank, name) - 1 for name in ("activated", "taken", "given", "seen")},
        )
        if rank.waits:
            return replace(rank, waits=False, given=max(rank.given, 0), seen=max(rank.seen, 0))
        return replace(rank, ungiven=rank.ungiven + 1 if self.each else 1)

    def start(self, rank: Rank) -> Rank:
        self.missed.add(max(0, -rank.seen))
        rank = replace(rank, aside=False)
        if not rank.ungiven:
            return replace(rank, waits=True)
        newest = 1 - rank.ungiven if self.each else 0
        return replace(
            rank,
            ungiven=rank.ungiven - 1,
            given=max(rank.given, newest),
            seen=max(rank.seen, 0),
        )

    def happens(self, rank: Rank) -> Iterator[Rank]:
        """Everything that can be next."""
        if rank.activated < self.window:
            yield replace(rank, activated=rank.activated + 1)
        if rank.taken < rank.activated and self.permits(rank):
            yield replace(rank, taken=rank.taken + 1)
        if rank.taken > 0:
            yield self.complete(rank)
        if not rank.waits and not rank.left:
            yield self.start(rank)
        if self.leaves:
            yield replace(rank, left=not rank.left)
            yield replace(rank, elsewhere=not rank.elsewhere)
            if not rank.aside:
                yield replace(rank, aside=True)


def reachable(application: Application, most_ungiven: int) -> set[Rank]:
    """All states, up to a length of the queue of `each`, which grows while a rank has left."""
    states, news = {Rank()}, [Rank()]
    while news:
        rank = news.pop()
        for following in map(application.count, application.happens(rank)):
            assert following.seen >= -application.max_lag
            if following not in states and following.ungiven <= most_ungiven:
                states.add(following)
                news.append(following)
    return states


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    ("max_lag", "window"), [*((lag, lag + 1) for lag in range(5)), (0, 3), (2, 4)]
)
def test_missed_is_at_most_max_lag(rules: Rules, max_lag: int, window: int, each: bool) -> None:
    """In every state that a rank can come to; and so many can be missed."""
    application = Application(rules, max_lag, window, each, leaves=True)
    states = reachable(application, most_ungiven=max_lag + 2)
    assert application.missed == set(range(max_lag + 1))
    # Who waits is never in the way of the round that it waits for.
    assert all(application.permits(rank) for rank in states if rank.waits and rank.taken == 0)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("max_lag", range(5))
def test_no_more_than_max_lag_rounds_wait_to_be_given(
    rules: Rules, max_lag: int, each: bool
) -> None:
    """For `each`, unless a rank leaves; a wider window changes nothing."""
    application = Application(rules, max_lag, max_lag + 3, each, leaves=False)
    states = reachable(application, most_ungiven=9)
    assert max(rank.ungiven for rank in states) == (max_lag if each else min(max_lag, 1))
    assert application.missed == set(range(max_lag + 1))


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("max_lag", range(5))
def test_missed_is_at_most_max_lag_in_long_runs(rules: Rules, max_lag: int, each: bool) -> None:
    chances = random.Random(max_lag)
    for window in (max_lag + 1, max_lag + 4):
        application = Application(rules, max_lag, window, each, leaves=True)
        rank = Rank()
        for _ in range(6000):
            application.leaves = chances.random() < 0.1
            rank = application.count(chances.choice(list(application.happens(rank))))
        assert max(application.missed) <= max_lag
