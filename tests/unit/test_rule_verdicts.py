"""Quorums, triggers, patience and what came of a round: all facts of up to five ranks.

The models follow the contract (design: "Triggering", "Leaving", "Status"), not the code.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from statistics import median_high, median_low
from typing import Any

import pytest
from support.rules import ALL_FACTS, Facts, Rules

S = 1_000_000_000
MOST = (1 << 64) - 1


def kinds(rules: Rules, sizes: range) -> Iterator[tuple[str, int, int, bool, Any]]:
    """Every rule of so many ranks: (policy, k, P, with a deadline, the rule)."""
    for size in sizes:
        for policy, k in product(("PP_FIRST_OF", "PP_QUORUM"), range(1, size + 1)):
            for deadline in (False, True):
                yield policy, k, size, deadline, rules.rule(policy, k, size, deadline=deadline)


# ---- answers -------------------------------------------------------------------------------------


def test_what_policies_answer(rules: Rules) -> None:
    lib = rules.lib
    for policy, k, size, deadline, rule in kinds(rules, range(1, 6)):
        first = policy == "PP_FIRST_OF"
        full = not first and k == size and not deadline
        anybody = full or (first and k == size)
        trigger = lib.PP_BY_DRAW if first else lib.PP_BY_COUNT
        assert rule.trigger == (lib.PP_BY_ANYBODY if anybody else trigger)
        assert rule.lockstep == full
        assert (rule.drawn, rule.needed) == ((k, 0) if first else (0, k))


def test_who_is_ready(rules: Rules) -> None:
    for facts in ALL_FACTS:
        ready = facts.pending and (facts.waits or facts.elsewhere)
        assert rules.lib.pp_facts_ready(rules.facts(facts)) == ready


# ---- quorum --------------------------------------------------------------------------------------

# A latched rank may have left since; only a rank that waits can be overdue.
COUNTED = [
    Facts(waits=waits, pending=ready, ready=ready, left=left, aside=aside, overdue=overdue)
    for waits, ready, left, aside, overdue in product((False, True), repeat=5)
    if waits or not overdue
]


def is_quorum(ranks: tuple[Facts, ...], k: int) -> bool:
    """At least k are ready, or all that have not left if these are fewer; one waits here."""
    if not any(facts.waits for facts in ranks):
        return False
    if sum(facts.ready for facts in ranks) >= k:
        return True
    stay = [facts for facts in ranks if not facts.gone]
    return len(stay) < k and all(facts.ready for facts in stay)


def verdict(rules: Rules, rule: Any, ranks: tuple[Facts, ...]) -> tuple[bool, int]:
    count, cause = rules.ffi.new("pp_count_t *"), rules.ffi.new("pp_cause_t *")
    for facts in ranks:
        rules.lib.pp_rule_count(count, rules.facts(facts))
    return rules.lib.pp_rule_enough(rule, count, cause), cause[0]


def judged(rules: Rules, rule: Any, **tally: int) -> tuple[int, int | None]:
    """Cause and initiator of a complete round."""
    values = rules.ffi.new("pp_tally_t *", {"initiator": rules.lib.PP_NO_INITIATOR, **tally})
    rules.lib.pp_rule_judge(rule, values)
    initiator = values.initiator
    return values.cause, None if initiator == rules.lib.PP_NO_INITIATOR else initiator


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_quorum_is_exactly_guaranteed(rules: Rules, size: int) -> None:
    """Counted over all ranks, in any order: the sums know none."""
    lib = rules.lib
    for ranks in combinations_with_replacement(COUNTED, size):
        overdue = any(facts.overdue for facts in ranks)
        ready = sum(facts.ready for facts in ranks)
        for k in range(1, size + 1):
            rule = rules.quorum(k, size)
            enough, cause = verdict(rules, rule, ranks)
            assert enough == (is_quorum(ranks, k) or overdue)
            if not enough:
                continue
            cause, _ = judged(rules, rule, active=ready, cause=cause)
            if ready >= k:
                assert cause == lib.PP_CAUSE_POLICY
            else:
                departed = is_quorum(ranks, k)
                assert cause == (lib.PP_CAUSE_DEPARTED if departed else lib.PP_CAUSE_DEADLINE)


def test_five_ranks_may_be_a_quorum(rules: Rules) -> None:
    few = [facts for facts in COUNTED if not facts.overdue and not (facts.left and facts.aside)]
    for ranks in combinations_with_replacement(few, 5):
        for k in range(1, 6):
            assert verdict(rules, rules.quorum(k, 5), ranks)[0] == is_quorum(ranks, k)


def test_who_has_left_by_patience_is_counted_apart(rules: Rules) -> None:
    """A higher count of collective calls voids "left", and never "left by patience"."""
    for facts in ALL_FACTS:
        count = rules.ffi.new("pp_count_t *")
        rules.lib.pp_rule_count(count, rules.facts(facts))
        assert count.ready == facts.ready
        for_good = facts.aside or facts.out
        assert count.aside == (for_good and not facts.ready)
        assert count.left == (facts.left and not for_good and not facts.ready)
        assert (count.waits, count.overdue) == (facts.waits, facts.waits and facts.overdue)


def nobody_is_overdue(size: int) -> Iterator[tuple[Facts, ...]]:
    return combinations_with_replacement([f for f in COUNTED if not f.overdue], size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_full_is_a_quorum_of_all(rules: Rules, size: int) -> None:
    """Without a deadline nobody counts: who waits triggers, each gives when ready or left.

    Nobody leaves a Full by patience.
    """
    full, cause = rules.quorum(size, size), rules.ffi.new("pp_cause_t *")
    for ranks in nobody_is_overdue(size):
        if any(facts.aside for facts in ranks):
            continue
        known = [rules.facts(facts) for facts in ranks]
        triggered = any(rules.lib.pp_rule_triggers(full, facts, -1, cause) for facts in known)
        given = all(rules.lib.pp_rule_permits(full, facts, 3, MOST) for facts in known)
        assert (triggered and given) == is_quorum(ranks, size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_full_with_a_deadline_is_counted_and_takes_parts_as_they_are(
    rules: Rules, size: int
) -> None:
    full = rules.quorum(size, size, deadline=True)
    for ranks in nobody_is_overdue(size):
        assert verdict(rules, full, ranks)[0] == is_quorum(ranks, size)
    assert all(rules.lib.pp_rule_permits(full, rules.facts(facts), 3, 4) for facts in ALL_FACTS)
    assert verdict(rules, full, (Facts(waits=True, overdue=True),) + (Facts(),) * (size - 1))[0]


# ---- one rank by itself --------------------------------------------------------------------------


def test_who_triggers_by_itself(rules: Rules) -> None:
    """Who waits here: with Solo and Full at once, else by a draw, or when its deadline is over."""
    lib, cause = rules.lib, rules.ffi.new("pp_cause_t *")
    for policy, k, size, deadline, rule in kinds(rules, range(1, 6)):
        at_once = k == size and (policy == "PP_FIRST_OF" or not deadline)
        places = range(-1, size) if policy == "PP_FIRST_OF" else [-1]
        for facts, place in product(ALL_FACTS, places):
            triggers = lib.pp_rule_triggers(rule, rules.facts(facts), place, cause)
            assert triggers == (facts.waits and (at_once or place >= 0 or facts.overdue))
            if not triggers:
                continue
            if at_once or 0 <= place < k:
                assert cause[0] == lib.PP_CAUSE_POLICY
            else:
                assert cause[0] == (lib.PP_CAUSE_DEPARTED if place >= k else lib.PP_CAUSE_DEADLINE)


# ---- patience ------------------------------------------------------------------------------------


def holds_up(kind: tuple[Any, ...], facts: Facts, drawn: bool, activated: bool, late: bool) -> bool:
    """It withholds its part, is drawn and does not wait, or a quorum needs it.

    `late`: max_lag is reached. A draw that cannot wait for it is handed on.
    """
    policy, k, size, deadline = kind
    if policy == "PP_QUORUM" and k == size and not deadline:
        return False  # Full waits as MPI does
    exempt = facts.gone or facts.elsewhere
    if late and not exempt:
        return True
    if activated or facts.gone:
        return False
    if policy == "PP_QUORUM":
        return not facts.ready
    return drawn and not facts.waits and not (facts.pending and facts.elsewhere)


def test_who_holds_a_round_up(rules: Rules) -> None:
    for policy, k, size, deadline, _ in kinds(rules, range(1, 4)):
        rule = rules.rule(policy, k, size, deadline=deadline)
        kind = (policy, k, size, deadline)
        for facts, drawn, activated, late in product(ALL_FACTS, *[(False, True)] * 3):
            held = rules.lib.pp_rule_holds_up(
                rule, rules.facts(facts), drawn, activated, 7, 7 if late else 8
            )
            assert held == holds_up(kind, facts, drawn, activated, late)


# Ranks in a round that somebody waits for: what is known of them, and whether max_lag is reached.
READY = Facts(waits=True, pending=True, ready=True)
HERE = [
    *((READY, False), (READY._replace(left=True), False)),
    *((Facts(), False), (Facts(), True), (Facts(pending=True), False), (Facts(pending=True), True)),
    *((Facts(left=True), True), (Facts(aside=True), True), (Facts(elsewhere=True), False)),
    (Facts(elsewhere=True, pending=True, ready=True), True),
]
FEW_HERE = [HERE[i] for i in (0, 2, 3, 6, 9)]


def reached_by_draws(rules: Rules, rule: Any, ranks: list[Facts]) -> set[int]:
    reached, passes = set(), (rules.lib.PP_DRAW_HANDED_ON, rules.lib.PP_DRAW_LENT)
    for place in range(rule.drawn):
        while place >= 0:
            reached.add(place)
            if rules.lib.pp_rule_draw(rules.facts(ranks[place])) not in passes:
                break
            place = rules.lib.pp_rule_next_place(rule, place)
    return reached


def is_triggered(rules: Rules, rule: Any, ranks: list[Facts], reached: set[int]) -> bool:
    cause = rules.ffi.new("pp_cause_t *")
    if rule.trigger == rules.lib.PP_BY_COUNT:
        return verdict(rules, rule, tuple(ranks))[0]
    return any(
        rules.lib.pp_rule_triggers(rule, rules.facts(f), p if p in reached else -1, cause)
        for p, f in enumerate(ranks)
    )


def run_dry(rules: Rules, rule: Any, ranks: list[Facts], late: list[bool]) -> tuple[bool, bool]:
    """Lets ranks that hold the round up leave by patience until none does.

    Returns whether the round is triggered then, and whether all give their parts.
    """
    lib = rules.lib
    while True:
        reached = reached_by_draws(rules, rule, ranks)
        triggered = is_triggered(rules, rule, ranks, reached)
        known = [
            (rules.facts(facts), 7 if is_late else 8)
            for facts, is_late in zip(ranks, late, strict=True)
        ]
        holders = [
            place
            for place, (facts, bound) in enumerate(known)
            if lib.pp_rule_holds_up(rule, facts, place in reached, triggered, 7, bound)
        ]
        if not holders:
            return triggered, all(lib.pp_rule_permits(rule, f, 7, bound) for f, bound in known)
        for place in holders:
            assert not ranks[place].aside  # it has said so
            ranks[place] = ranks[place]._replace(aside=True)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_patience_lets_every_round_go_on_that_somebody_waits_for(rules: Rules, size: int) -> None:
    """Others may compute, withhold or be elsewhere."""
    for here in product(HERE if size < 4 else FEW_HERE, repeat=size):
        if not any(facts.waits for facts, _ in here):
            continue
        late = [is_late for _, is_late in here]
        for policy, k in product(("PP_FIRST_OF", "PP_QUORUM"), range(1, size + 1)):
            if policy == "PP_QUORUM" and k == size:
                continue
            rule = rules.rule(policy, k, size)
            triggered, given = run_dry(rules, rule, [facts for facts, _ in here], late)
            assert triggered
            assert given


# ---- how much patience ---------------------------------------------------------------------------


def habit_of(rules: Rules, times: list[int]) -> Any:
    habit = rules.ffi.new("pp_habit_t *")
    for ns in times:
        rules.lib.pp_habit_add(habit, ns)
    return habit


def check_patience(rules: Rules, own: list[int], others: list[int]) -> None:
    patience = rules.lib.pp_habit_patience(habit_of(rules, own), habit_of(rules, others))
    times = own if len(own) >= 3 else others
    if len(times) < 3:
        assert patience == 2 * S
        return
    last = times[-16:]
    longest = (1 << 63) - 1
    low, high = (max(S, min(5 * usual, longest)) for usual in (median_low(last), median_high(last)))
    assert low <= patience <= high


def test_patience_is_five_times_what_is_usual(rules: Rules) -> None:
    chances = random.Random(4)
    counts = [0, 1, 2, 3, 4, 15, 16, 17, 40]
    for _ in range(3000):
        most = chances.choice([3, S, 10 * S, 1 << 62, MOST])
        own, others = (
            [chances.randint(0, most) for _ in range(chances.choice(counts))] for _ in range(2)
        )
        check_patience(rules, own, others)


def test_patience_before_and_after_there_are_three_times(rules: Rules) -> None:
    for own, others in product(range(6), range(6)):
        check_patience(rules, [2 * S] * own, [7 * S] * others)


def test_only_the_last_times_count(rules: Rules) -> None:
    for old in range(20):
        check_patience(rules, [90 * S] * old + [2 * S] * 9, [])
        check_patience(rules, [S] * old + [3 * S] * 16, [])
    none = habit_of(rules, [])
    patience = {
        rules.lib.pp_habit_patience(habit_of(rules, older + [2 * S, 4 * S] * 8), none)
        for older in ([], [0], [9 * S], [0] * 20, [9 * S] * 20)
    }
    assert len(patience) == 1


def test_patience_is_a_second_at_least_and_never_overflows(rules: Rules) -> None:
    for ns in (0, 1, S // 5 - 1, S // 5, S // 5 + 1, MOST // 10, MOST // 10 + 1, MOST // 5, MOST):
        check_patience(rules, [ns] * 5, [])
        check_patience(rules, [], [ns] * 5)


def test_a_handle_knows_its_habit_after_billions_of_rounds(rules: Rules) -> None:
    habit, none = habit_of(rules, [4 * S] * 16), rules.ffi.new("pp_habit_t *")
    habit.count = (1 << 32) - 2
    for _ in range(4):
        rules.lib.pp_habit_add(habit, 4 * S)
        assert rules.lib.pp_habit_patience(habit, none) == 20 * S


# ---- what came of it -----------------------------------------------------------------------------


def test_cause_and_initiator_of_a_complete_round(rules: Rules) -> None:
    """A flush above all; a quorum has no initiator, and departed if fewer than k were active."""
    lib = rules.lib
    causes = [lib.PP_CAUSE_POLICY, lib.PP_CAUSE_DEPARTED, lib.PP_CAUSE_DEADLINE]
    assert causes == sorted(causes) and causes[-1] < lib.PP_CAUSE_FLUSH
    for policy, k, size, _, rule in kinds(rules, range(1, 5)):
        sums = product(range(size + 1), range(size + 1), causes, (None, 0, size - 1))
        for active, flushing, cause, initiator in sums:
            who = {} if initiator is None else {"initiator": initiator}
            seen = judged(rules, rule, active=active, flushing=flushing, cause=cause, **who)
            if flushing == size:
                assert seen == (lib.PP_CAUSE_FLUSH, None)
            elif policy == "PP_QUORUM":
                assert seen == (max(cause, lib.PP_CAUSE_DEPARTED) if active < k else cause, None)
            else:
                assert seen == (cause, initiator)
