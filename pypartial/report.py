"""Who is slow: what the library has counted of each rank, and a verdict."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .status import Cause
from .units import format_duration

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["COUNTERS", "SAMPLE", "RankReport", "Report", "Verdict", "build"]

# pp_sample_t and the counters of pp_row_t (csrc/include/pypartial_sight.h).
SAMPLE = np.dtype(
    [(name, "u8") for name in ("key", "start_ns", "given_ns", "waited_ns", "computed_ns")]
    + [("handle", "u4"), ("late", "u4")]
)
COUNTERS = (
    "calls",
    "given",
    "late",
    "external",
    "contributions",
    "active",
    "missed",
    "staleness",
    "most_stale",
)
CAUSES = tuple(cause.value for cause in Cause)

FALSE_ALARMS = 0.01  # of a verdict, where the ranks are equally fast
_STANDS_OUT = 1.1  # times the others' computation
_SHARE = 0.05  # of a step, that a rank must take longer
_FEWEST = 5  # timed steps that say something of a rank


@dataclass(frozen=True)
class RankReport:
    """What one rank did. Times are in seconds; they are of its last 256 timed steps at most.

    Attributes
    ----------
    rank : int
    calls : int
        Starts, of all requests of the context.
    given : int
        Results that it was given, also by Flush and Drain; the next six describe these.
    late : int
        Those of rounds that were complete before its Start.
    external : int
        Those of rounds that a message of another rank activated at this one.
    contributions, active, missed, staleness : int
        Sums of what `Status` says; of groups `active` is their size.
    most_stale : int
    causes : dict
        Rounds by the name of their `Cause`.
    behind_s, behind_p95_s : float or None
        How long it came after the first rank, to what both could join: median, and 95th percentile.
    last : float or None
        The share of these in which it was the last to come.
    computes_s : float or None
        From a Start to the next of the same request, outside the library and blocking calls that it
        sees: the median of the means of stretches of steps.
    waits_s : float or None
        Inside the Wait of a request, likewise.
    waited_for_s : float
        For how long other ranks waited for it, all together.
    timed : int
        How many timed steps the times are of.
    """

    rank: int
    calls: int
    given: int
    late: int
    external: int
    contributions: int
    active: int
    missed: int
    staleness: int
    most_stale: int
    causes: dict[str, int]
    behind_s: float | None
    behind_p95_s: float | None
    last: float | None
    computes_s: float | None
    waits_s: float | None
    waited_for_s: float
    timed: int


@dataclass(frozen=True)
class Verdict:
    """The rank that stands out, if any does.

    A rank does if its computation, by the request that takes most of it, takes longer than that of
    the others by a tenth and by a twentieth of a step, and if the rank-sum test of Mann and Whitney
    says so at 1 %, divided by the number of ranks: so often at most it names a rank where all are
    equally fast.

    Attributes
    ----------
    rank : int or None
    text : str
        One sentence, with the evidence.
    times : float or None
        Its mean computation over the median of the others'; None if they compute nothing.
    p : float or None
        How probable such a difference is among ranks that are equally fast.
    """

    rank: int | None
    text: str
    times: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Report:
    """What `Context.report` returns: a row for each rank, who waited for whom, and the verdict.

    ``print(report)`` shows a table; `to_json` has all of it.

    Attributes
    ----------
    size : int
        Ranks of the context.
    ranks : tuple of RankReport
        Of those that the report knows.
    waited : numpy.ndarray
        Seconds in the timed steps, of shape (size, size): ``waited[a, b]`` is how long rank a
        waited for rank b, the last that came to what both joined.
    verdict : Verdict
    """

    size: int
    ranks: tuple[RankReport, ...]
    waited: npt.NDArray[np.float64]
    verdict: Verdict

    def to_json(self) -> str:
        """Return all of it as a JSON object: size, verdict, ranks, waited_s."""
        return json.dumps(
            {
                "size": self.size,
                "verdict": asdict(self.verdict),
                "ranks": [asdict(rank) for rank in self.ranks],
                "waited_s": self.waited.tolist(),
            }
        )

    def line(self) -> str:
        """Return what is worth a line of a log."""
        known = f"; {len(self.ranks)} of {self.size} ranks" if len(self.ranks) < self.size else ""
        for slow in self.ranks:
            if slow.rank == self.verdict.rank and slow.last is not None:
                return (
                    f"rank {slow.rank} came last in {_share(slow.last)} of {slow.calls:,} calls, "
                    f"{_time(slow.behind_s)} behind the first{known}"
                )
        return self.verdict.text + known

    def __str__(self) -> str:
        heading = "rank calls stale late last behind p95 computes waits awaited by"
        rows = [_row(tuple(heading.split()))]
        rows += [_row(self._cells(rank)) for rank in self.ranks]
        notes = []
        causes = {
            name: most
            for name in CAUSES
            if (most := max((rank.causes[name] for rank in self.ranks), default=0))
        }
        if causes:
            notes.append(
                "rounds: " + ", ".join(f"{count:,} {name}" for name, count in causes.items())
            )
        if any(rank.calls > rank.timed + 1 for rank in self.ranks):
            most = max(rank.timed for rank in self.ranks)
            notes.append(f"times are of the last timed calls of each rank, {most} at most")
        if len(self.ranks) < self.size:
            notes.append(
                f"{len(self.ranks)} of {self.size} ranks; of all of them: ctx.report(all=True)"
            )
        notes.append(self.verdict.text)
        return "\n".join([*rows, *(line for note in notes for line in textwrap.wrap(note, 80))])

    def _cells(self, rank: RankReport) -> tuple[str, ...]:
        by = int(self.waited[:, rank.rank].argmax()) if rank.waited_for_s else None
        return (
            str(rank.rank),
            _count(rank.calls),
            f"{rank.staleness / rank.given:.2f}" if rank.given else "-",
            _share(rank.late / rank.given if rank.given else None),
            _share(rank.last),
            *map(_time, (rank.behind_s, rank.behind_p95_s, rank.computes_s, rank.waits_s)),
            _time(rank.waited_for_s),
            "-" if by is None else str(by),
        )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return format_duration(1e9 * seconds) if seconds < 1e6 else f"{seconds:.0e} s"


def _count(number: int) -> str:
    if number < 10**5:
        return str(number)
    unit = 1 + (len(str(number)) - 5) // 3
    return f"{number // 1000**unit} {' kMGTPE'[unit]}"


def _share(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f} %"


def _row(cells: tuple[str, ...]) -> str:
    widths = (5, 7, 6, 6, 6, 9, 9, 9, 9, 9, 5)
    return " ".join(
        f"{cell:>{width - 1}}" for cell, width in zip(cells, widths, strict=True)
    ).rstrip()


def build(
    size: int,
    counts: Mapping[int, Mapping[str, Any]],
    samples: Mapping[int, npt.NDArray[Any]],
) -> Report:
    """Make a report of what is known of ranks.

    Parameters
    ----------
    size : int
        Ranks of the context.
    counts : mapping
        By rank: a number for each of `COUNTERS`, and ``"causes"``, one for each of `CAUSES`.
    samples : mapping
        By the same ranks: arrays of `SAMPLE`, whose times are of one clock.
    """
    waited = np.zeros((size, size))
    ranks, _, behind, last = meetings(samples, waited)
    rows = []
    for rank, counted in counts.items():
        own = samples[rank]
        late_by, came_last = behind[ranks == rank], last[ranks == rank]
        met = ~np.isnan(late_by)
        rows.append(
            RankReport(
                rank=rank,
                **{name: int(counted[name]) for name in COUNTERS},
                causes=dict(zip(CAUSES, map(int, counted["causes"]), strict=True)),
                behind_s=_median(late_by[met]),
                behind_p95_s=float(np.percentile(late_by[met], 95)) if met.any() else None,
                last=float(came_last[met].mean()) if met.any() else None,
                computes_s=_typical(own["computed_ns"] / 1e9),
                waits_s=_typical(own["waited_ns"] / 1e9),
                waited_for_s=float(waited[:, rank].sum()),
                timed=len(own),
            )
        )
    return Report(size, tuple(rows), waited, _judge(size, samples))


def _median(values: npt.NDArray[Any]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _is_uneven(values: npt.NDArray[Any]) -> bool:
    """Return whether steps are of several lengths, as of a request used several times in a step."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return bool(high > 2 * low or values.mean() > 2 * median)


def _blocks(values: npt.NDArray[Any], uneven: bool) -> npt.NDArray[np.float64]:
    """Return the means of 20 stretches of steps, or of 6 that have steps of all lengths."""
    size = max(len(values) // (6 if uneven else 20), 1)
    whole = len(values) // size * size
    stretches = np.asarray(values[len(values) - whole :], float).reshape(-1, size)
    means: npt.NDArray[np.float64] = stretches.mean(axis=1)
    return means


def _typical(values: npt.NDArray[Any]) -> float | None:
    """Return a mean that few long steps change little."""
    return float(np.median(_blocks(values, _is_uneven(values)))) if len(values) else None


def meetings(
    samples: Mapping[int, npt.NDArray[Any]], waited: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[Any], ...]:
    """Compare arrivals that have the same key; fill `waited`.

    Return all samples in one array, and of each its rank before it, and after it how many seconds
    it came after the first, NaN where no other rank is known, and whether it was the last.
    """
    ranks = np.concatenate([np.full(len(own), rank) for rank, own in samples.items()])
    every = np.concatenate([np.asarray(own, SAMPLE) for own in samples.values()])
    behind, last = np.full(len(every), np.nan), np.zeros(len(every), bool)
    order = np.lexsort((every["start_ns"], every["key"], every["handle"]))
    order = order[every["key"][order] > 0]
    if not len(order):
        return ranks, every, behind, last
    at = every[order]
    differs = (np.diff(at["handle"]) != 0) | (np.diff(at["key"]) != 0)
    begins = np.flatnonzero(np.concatenate([[True], differs]))
    ends = np.append(begins[1:], len(order))
    group = np.repeat(np.arange(len(begins)), ends - begins)
    several = (ends - begins > 1)[group]
    starts = at["start_ns"].astype(np.int64)
    behind[order[several]] = (starts - starts[begins][group])[several] / 1e9
    last[order[ends - 1]] = True
    # The last of those on time is the one for whom the others wait, at most as long as they wait.
    on_time = at["late"] == 0
    places = np.where(on_time, np.arange(len(order)), -1)
    awaited = np.maximum.reduceat(places, begins)[group]
    waits = on_time & several & (awaited > np.arange(len(order)))
    for_ns = np.minimum(at["waited_ns"].astype(np.int64), starts[awaited] - starts)[waits]
    np.add.at(waited, (ranks[order][waits], ranks[order[awaited]][waits]), for_ns / 1e9)
    return ranks, every, behind, last


def _judge(size: int, samples: Mapping[int, npt.NDArray[Any]]) -> Verdict:
    """Name the rank that computes longest, if it stands out."""
    every = np.concatenate(list(samples.values()))
    if not len(every):
        return Verdict(None, "No rank stands out: no step was timed")
    # Of several requests that one between whose Starts most is computed; cycles of one that is
    # used a few times last from one use to the next.
    handles, uses = np.unique(every["handle"], return_counts=True)
    usual = handles[uses >= _FEWEST * len(samples)]
    medians = [np.median(every["computed_ns"][every["handle"] == handle]) for handle in usual]
    busiest = usual[int(np.argmax(medians))] if len(usual) else handles[0]
    of = {rank: own[own["handle"] == busiest] for rank, own in samples.items()}
    computed = {rank: own["computed_ns"] for rank, own in of.items() if len(own) >= _FEWEST}
    if len(samples) == 1 < size:
        (alone,) = samples
        return Verdict(
            None, f"No rank stands out: only rank {alone} is known; of all: ctx.report(all=True)"
        )
    if len(computed) < 2:
        return Verdict(
            None, f"No rank stands out: fewer than two have {_FEWEST} timed steps to compare"
        )
    # In equally many stretches of all ranks: else equal ranks would not have equal chances.
    uneven = 2 * sum(map(_is_uneven, computed.values())) > len(computed)
    blocks = {rank: _blocks(own, uneven) for rank, own in computed.items()}
    means = {rank: float(np.median(own)) for rank, own in blocks.items()}
    slow = max(means, key=means.__getitem__)
    others = [rank for rank in means if rank != slow]
    mine, theirs = means[slow], float(np.median([means[rank] for rank in others]))
    steps = np.concatenate([of[rank]["computed_ns"] + of[rank]["waited_ns"] for rank in others])
    chance = _rank_sum(blocks[slow], np.concatenate([blocks[rank] for rank in others]))
    p = min(1.0, chance * len(blocks))
    times = mine / theirs if theirs else None
    evidence = f"rank {slow} computes {_time(mine / 1e9)} a step, " + (
        "and the others nothing"
        if times is None
        else f"{times:.2f} times the median of the others' ({_time(theirs / 1e9)})"
    )
    least = max((_STANDS_OUT - 1) * theirs, _SHARE * (_typical(steps) or 0.0))
    if mine - theirs < least:
        return Verdict(None, f"No rank stands out: at most {evidence}", times, p)
    if p > FALSE_ALARMS:
        return Verdict(None, f"No rank stands out: {evidence}, which may be chance", times, p)
    return Verdict(
        slow,
        f"R{evidence[1:]}; if all were equally fast, such a verdict would come in {_chance(p)}",
        times,
        p,
    )


def _chance(p: float) -> str:
    return f"{p:.1%} of reports" if p >= 1e-3 else "less than 0.1 % of reports"


def _rank_sum(slow: npt.NDArray[Any], others: npt.NDArray[Any]) -> float:
    """Return how probable it is that the first are so much longer by chance (one-sided).

    Mann and Whitney's test in the normal approximation, with corrections for ties and continuity.
    """
    n, m = len(slow), len(others)
    _, inverse, counts = np.unique(
        np.concatenate([slow, others]), return_inverse=True, return_counts=True
    )
    places = np.cumsum(counts) - (counts - 1) / 2  # of equal values the mean
    u = float(places[inverse[:n]].sum()) - n * (n + 1) / 2
    ties = float((counts.astype(float) ** 3 - counts).sum())
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc((u - n * m / 2 - 0.5) / math.sqrt(2 * variance))
