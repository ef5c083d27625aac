"""`report.build` on made-up samples: the verdict, who waited for whom, and what is printed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import pypartial as pp
from pypartial.report import CAUSES, COUNTERS, FALSE_ALARMS, SAMPLE, build

STEP_NS, STEPS, DRAWS = 5e6, 20, 1000


def counts(ranks, **given):
    numbers = dict.fromkeys(COUNTERS, 0) | {"causes": [0] * len(CAUSES)} | given
    return dict.fromkeys(ranks, numbers)


def samples(computed_ns, handle=1):
    """Samples of a synchronous loop: of each rank and step, so much computation."""
    computed_ns = np.asarray(computed_ns)
    starts, found = np.zeros(len(computed_ns)), {}
    for rank in range(len(computed_ns)):
        found[rank] = np.zeros(computed_ns.shape[1], SAMPLE)
        found[rank]["handle"], found[rank]["computed_ns"] = handle, computed_ns[rank]
    for step, durations in enumerate(computed_ns.T):
        given = starts.max() + 1000
        for rank, start in enumerate(starts):
            own = found[rank][step : step + 1]
            own["key"], own["start_ns"], own["given_ns"] = step + 1, start, given
            own["waited_ns"] = given - start
        starts = given + durations
    return found


def alone(computed_ns):
    """The same of ranks that never meet: quick to make."""
    found = np.zeros(computed_ns.shape, SAMPLE)
    found["handle"], found["start_ns"], found["computed_ns"] = 1, 1, computed_ns
    return dict(enumerate(found))


def report(found, size=None):
    return build(len(found) if size is None else size, counts(found), found)


def even(draws, size, noise=0.05, steps=STEPS):
    return STEP_NS * draws.lognormal(0, noise, (size, steps))


def heavy(draws, size, steps=STEPS):
    """Every tenth step or so is much longer."""
    return STEP_NS * (1 + 0.1 * draws.pareto(1.1, (size, steps)))


# ---- the verdict --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 8, 64])
@pytest.mark.parametrize("times", [1.3, 2, 5])
def test_a_slow_rank_is_named(size, times):
    for slow in {0, 1, size // 2, size - 1}:
        computed = even(np.random.default_rng(slow), size)
        computed[slow] *= times
        verdict = report(samples(computed)).verdict
        assert verdict.rank == slow
        assert verdict.times == pytest.approx(times, rel=0.1)
        assert verdict.p < FALSE_ALARMS
        assert f"Rank {slow} computes" in verdict.text


@pytest.mark.parametrize("times", [2, 5])
def test_a_slow_rank_is_named_under_heavy_noise(times):
    for seed in range(30):
        computed = heavy(np.random.default_rng(seed), 4)
        computed[seed % 4] *= times
        assert report(samples(computed)).verdict.rank == seed % 4


@pytest.mark.parametrize("size", [2, 3, 8, 64])
@pytest.mark.parametrize("noise", [even, heavy])
def test_equal_ranks_are_seldom_accused(size, noise):
    """A false alarm comes once in a hundred reports; three deviations more are chance."""
    draws, wrong = np.random.default_rng(size), 0
    for _ in range(DRAWS):
        found = alone(noise(draws, size))
        wrong += report(found).verdict.rank is not None
    assert wrong <= DRAWS * FALSE_ALARMS + 3 * math.sqrt(DRAWS * FALSE_ALARMS)


@pytest.mark.parametrize("steps", [5, 6, 256])
def test_equal_ranks_are_seldom_accused_after_few_steps_and_wide_noise(steps):
    """Noise as wide as a tenth passes the limits on how much longer a rank takes."""
    draws, wrong = np.random.default_rng(steps), 0
    for _ in range(300):
        wrong += report(alone(even(draws, 4, noise=1, steps=steps))).verdict.rank is not None
    assert wrong <= 3 + 3 * math.sqrt(3)


def test_a_rank_that_is_hardly_slower_is_not_named():
    """However sure it is: 5 % are not worth a verdict."""
    computed = even(np.random.default_rng(1), 4, noise=0.001, steps=256)
    computed[2] *= 1.05
    verdict = report(samples(computed)).verdict
    assert (verdict.rank, verdict.p < FALSE_ALARMS) == (None, True)
    assert verdict.text.startswith("No rank stands out: at most rank 2 computes")


def test_a_rank_that_computes_longer_where_computation_is_nothing_is_not_named():
    """Twice nothing is nothing: less than a twentieth of a step."""
    computed = even(np.random.default_rng(1), 3)
    found = samples(computed)
    for rank, own in found.items():
        own["computed_ns"] = computed[rank] / 100 * (2 if rank == 1 else 1)
        own["waited_ns"] = STEP_NS
    assert report(found).verdict.rank is None


def test_of_several_requests_the_one_with_the_computation_is_judged():
    """Rank 1 is slow in what it computes for the big request, and fast in the others."""
    draws = np.random.default_rng(3)
    big, small = even(draws, 3), even(draws, 3) / 100
    big[1] *= 2
    small[2] *= 5
    first, second = samples(big, handle=1), samples(small, handle=2)
    found = {rank: np.concatenate([second[rank], first[rank]]) for rank in first}
    assert report(found).verdict.rank == 1


def test_ranks_with_too_few_steps_are_not_compared():
    computed = even(np.random.default_rng(1), 3)
    computed[2] *= 5
    found = samples(computed)
    found[2] = found[2][:4]
    assert report(found).verdict.rank is None
    found[1] = found[1][:4]
    assert "fewer than two have 5 timed steps" in report(found).verdict.text


def test_others_that_compute_nothing():
    """There is no number of times; the JSON is valid all the same."""
    found = samples(np.array([[0.0] * STEPS, [STEP_NS] * STEPS]))
    made = report(found)
    assert made.verdict.rank == 1

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    assert json.loads(made.to_json(), parse_constant=refuse)["verdict"]["times"] is None


# ---- who waited for whom ------------------------------------------------------------------------


def by_hand(size, found):
    """Return behind, last and waited, by loops."""
    meetings = {}
    for rank, own in found.items():
        for sample in own:
            if sample["key"]:
                meeting = meetings.setdefault((int(sample["handle"]), int(sample["key"])), [])
                meeting.append((int(sample["start_ns"]), rank, sample))
    behind, last = {rank: [] for rank in found}, {rank: [] for rank in found}
    waited = np.zeros((size, size))
    for meeting in meetings.values():
        if len(meeting) < 2:
            continue
        meeting.sort(key=lambda one: one[:2])
        for start, rank, _ in meeting:
            behind[rank].append((start - meeting[0][0]) / 1e9)
            last[rank].append((start, rank) == meeting[-1][:2])
        on_time = [one for one in meeting if not one[2]["late"]]
        for start, rank, sample in on_time[:-1]:
            latest, whom, _ = on_time[-1]
            waited[rank, whom] += min(int(sample["waited_ns"]), latest - start) / 1e9
    return behind, last, waited


@pytest.mark.parametrize("seed", range(40))
def test_meetings_are_as_by_hand(seed):
    """Random handles, rounds without some ranks, late Starts, samples without a meeting."""
    draws = np.random.default_rng(seed)
    size, keys = int(draws.integers(1, 7)), 12
    found = {}
    for rank in range(size):
        place = np.array(
            [(h, k) for h in (1, 2, 5) for k in range(1, keys) if draws.random() < 0.7]
        )
        own = np.zeros(len(place), SAMPLE)
        if len(place):
            own["handle"], own["key"] = place.T
        own["key"][draws.random(len(own)) < 0.1] = 0
        own["start_ns"] = draws.permutation(1000)[: len(own)] * size + rank + 1
        own["waited_ns"] = draws.integers(0, 3000, len(own))
        own["late"] = draws.random(len(own)) < 0.3
        found[rank] = own
    made = report(found)
    behind, last, waited = by_hand(size, found)
    np.testing.assert_allclose(made.waited, waited, atol=1e-15)
    for row in made.ranks:
        if not behind[row.rank]:
            assert (row.behind_s, row.behind_p95_s, row.last) == (None, None, None)
            continue
        assert row.behind_s == pytest.approx(np.median(behind[row.rank]))
        assert row.behind_p95_s == pytest.approx(np.percentile(behind[row.rank], 95))
        assert row.last == pytest.approx(np.mean(last[row.rank]))
        assert row.waited_for_s == pytest.approx(waited[:, row.rank].sum())


def test_times_of_a_clock_that_is_far_ahead():
    """Clocks count from the start of a host: 10 years in nanoseconds are not rounded."""
    found = samples(np.full((2, STEPS), STEP_NS))
    for own in found.values():
        own["start_ns"] += 3 * 10**17
    found[1]["start_ns"] += 7
    assert report(found).ranks[1].behind_s == pytest.approx(7e-9)


# ---- what is printed ----------------------------------------------------------------------------


@pytest.mark.parametrize(("uses", "computed_ns"), [(4, 1e9), (240, 1e3)])
def test_another_request_hides_no_slow_rank(uses, computed_ns):
    """One that is used a few times, whose cycles last long; one that is often used at once."""
    computed = even(np.random.default_rng(1), 3, steps=60)
    computed[2] *= 2
    found = samples(computed)
    for rank, own in samples(np.full((3, uses), computed_ns), handle=2).items():
        found[rank] = np.concatenate([own, found[rank]])
    assert report(found).verdict.rank == 2


@pytest.mark.parametrize("uses", [3, 8, 12])
def test_a_request_that_is_used_several_times_a_step(uses):
    """The first use has the computation; a rank that takes longer for the others is not slow."""
    computed = even(np.random.default_rng(1), 3, steps=252)
    computed[2] *= 2
    computed[:, np.arange(252) % uses > 0] /= 1000
    computed[1, np.arange(252) % uses > 0] *= 2
    verdict = report(samples(computed)).verdict
    assert verdict.rank == 2
    assert verdict.times == pytest.approx(2, rel=0.2)


def test_steps_of_two_lengths_count_both():
    computed = even(np.random.default_rng(1), 3, steps=60)
    computed[1] *= 2
    computed[:, ::2] /= 100
    verdict = report(samples(computed)).verdict
    assert verdict.rank == 1
    assert verdict.times == pytest.approx(2, rel=0.1)


def test_a_rank_that_knows_no_other_says_so():
    found = samples(even(np.random.default_rng(1), 1))
    assert "only rank 0 is known" in report(found, 4).verdict.text
    assert report(found, 4).line().endswith("1 of 4 ranks")


def test_few_steps_may_be_chance():
    computed = np.full((3, 5), STEP_NS)
    computed[0, :3] *= 4
    assert report(samples(computed)).verdict.text.endswith("which may be chance")


def test_a_report_says_of_how_many_calls_its_times_are():
    found = samples(even(np.random.default_rng(1), 2, steps=100))
    assert "times are of" not in str(build(2, counts(found, calls=101), found))
    assert "timed calls of each rank, 100 at most" in str(build(2, counts(found, calls=102), found))


def test_a_report_of_many_ranks_has_80_columns():
    size = 1024
    found = samples(even(np.random.default_rng(1), size, steps=6))
    for own in found.values():
        own["waited_ns"] = 10**13  # hours
    numbers = dict.fromkeys(COUNTERS, 10**10) | {"causes": [10**10] * len(CAUSES)}
    made = build(4096, dict.fromkeys(found, numbers), found)
    lines = str(made).splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.split()[0].isdigit()]) >= size
    assert "1024 of 4096 ranks" in str(made) and "report(all=True)" in str(made)


def test_a_report_has_a_row_for_each_rank_and_the_verdict():
    computed = even(np.random.default_rng(1), 3)
    computed[1] *= 2
    found = samples(computed)
    found[0]["start_ns"] -= np.uint64(2)  # it is always first, and nobody waits for it
    found = {rank: own[1:] for rank, own in found.items()}
    numbers = counts(found, calls=123_456, given=20, late=5, staleness=30, causes=[18, 2, 0, 0])
    text = str(build(3, numbers, found))
    heading, *rows = text.splitlines()
    columns = "rank calls stale late last behind p95 computes waits awaited by"
    assert heading.split() == columns.split()
    assert rows[1].split()[:6] == ["1", "123", "k", "1.50", "25", "%"]
    assert rows[0].split()[-3:] == ["0", "ns", "-"]
    assert rows[1].split()[-1] in "02"  # who waited most for it
    assert f"rounds: 18 {CAUSES[0]}, 2 {CAUSES[1]}" in text
    assert "of 3 ranks" not in text
    assert "Rank 1 computes" in text
    assert build(3, numbers, found).line().startswith("rank 1 came last in ")


def test_a_line_without_a_slow_rank_says_so():
    assert report(samples(even(np.random.default_rng(2), 3))).line().startswith("No rank stands")


@pytest.mark.parametrize("size", [1, 3])
def test_no_step_was_timed(size):
    found = {rank: np.zeros(0, SAMPLE) for rank in range(size)}
    made = report(found)
    assert made.verdict == pp.Verdict(None, "No rank stands out: no step was timed")
    assert made.line() == made.verdict.text
    assert [row.computes_s for row in made.ranks] == [None] * size
    assert str(made).splitlines()[1].split() == ["0", "0", *"-------", "0", "ns", "-"]


def test_one_rank_has_nobody_to_compare_with():
    made = report(samples(even(np.random.default_rng(1), 1)))
    row = made.ranks[0]
    assert (row.behind_s, row.last, row.waited_for_s) == (None, None, 0)
    assert row.computes_s == pytest.approx(STEP_NS / 1e9, rel=0.1)
    assert made.verdict.rank is None


def test_json_has_all():
    computed = even(np.random.default_rng(1), 3)
    computed[2] *= 2
    found = samples(computed)
    made = build(3, counts(found, calls=7, most_stale=2, causes=[5, 4, 3, 2]), found)
    read = json.loads(made.to_json())
    assert (read["size"], read["verdict"]["rank"]) == (3, 2)
    assert tuple(pp.RankReport(**row) for row in read["ranks"]) == made.ranks
    assert pp.Verdict(**read["verdict"]) == made.verdict
    np.testing.assert_array_equal(read["waited_s"], made.waited)
    assert made.ranks[0].causes == dict(zip(CAUSES, [5, 4, 3, 2], strict=True))
