"""Arrival models: how long each simulated rank computes before its call, in every step.

The times of a step come from a generator seeded with (seed, step), so they depend on the model, the
ranks, the seed and the step only. The distributions are NumPy's: another release of it may draw
other numbers from the same seed.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..units import parse_duration, spell_duration

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    *("BASE_NS", "LONGEST_NS", "MODELS_HELP", "VARIATION"),
    *("Arrivals", "arrivals_complaint", "parse_arrivals", "trace_shape"),
]

BASE_NS = 100_000_000
"""The base computation of a step, to which some models add a delay: 100 ms."""

VARIATION = 0.05
"""The base computation of a rank and step is uniform within this fraction around its mean."""

LONGEST_NS = 10**15
"""The longest computation of a step (11.6 days): sums of such times stay far below 2**63."""

_FACTOR = re.compile(r"([0-9]+(?:\.[0-9]+)?)x?", re.IGNORECASE)
_SHARE = re.compile(r"p=([0-9]{1,9}(?:\.[0-9]{1,9}|/0*[1-9][0-9]{0,8})?)")
_SLOWED = "random:6x:p=1/16"
_SEED_LIMIT = 1 << 64
_LINE_LIMIT = 1 << 24

MODELS_HELP = """\
linear:1ms            rank r computes r x 1 ms (eager-SGD, Fig. 8)
normal:MEAN:SD        normal, truncated at 0
lognormal:MEAN:SD     log-normal with this mean and standard deviation
empirical:FILE        drawn with replacement from FILE: one duration a line
ucf101, wmt16, cloud  training times of eager-SGD, section 2 (an LSTM, a
                      Transformer, ResNet-50)
slow:R:20x            rank R is 20 times slower than the others
random:200ms          one rank, drawn in each step, comes 200 ms later
random:6x:p=1/16      each rank is 6 times slower in a step with probability p
rotating:50ms:400ms   delays rise from rank to rank; they move on by one rank
                      in each step
trace:FILE            from FILE: one line a step, one column a rank"""


class Arrivals(ABC):
    """How long each rank computes before its call, step by step.  See `parse_arrivals`.

    Attributes
    ----------
    text : str
        The model in its canonical spelling, which `parse_arrivals` reads.
    ranks : int
    has_base : bool
        Whether ranks compute for the base time, where nothing disturbs them.
    """

    has_base: ClassVar[bool] = False

    def __init__(self, text: str, ranks: int, seed: int) -> None:
        self.text = text
        self.ranks = ranks
        self._seed = seed

    def times(self, step: int) -> npt.NDArray[np.int64]:
        """Return the nanoseconds that each rank computes in a step, an array of shape ``(ranks,)``.

        The array belongs to the caller. Calls do not depend on each other or on their order.

        Raises
        ------
        ValueError
            If the step is negative, or after the last line of a trace.
        """
        if step < 0:
            raise ValueError(f"step {step}: steps are numbered from 0")
        generator = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(step,)))
        whole = np.rint(self._draw(step, generator))
        times: npt.NDArray[np.int64] = np.minimum(whole, LONGEST_NS).astype(np.int64)
        return times

    @abstractmethod
    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        """Return the times of a step in nanoseconds, not yet rounded."""


class _Linear(Arrivals):
    """Rank r computes r times the skew."""

    def __init__(self, text: str, ranks: int, seed: int, skew_ns: int) -> None:
        super().__init__(text, ranks, seed)
        self._skew_ns = skew_ns

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        return np.arange(self.ranks, dtype=np.int64) * self._skew_ns


class _Normal(Arrivals):
    """Independent normal times; negative ones are drawn again."""

    def __init__(self, text: str, ranks: int, seed: int, mean: int, deviation: int) -> None:
        super().__init__(text, ranks, seed)
        self._mean, self._deviation = mean, deviation

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        drawn = generator.normal(self._mean, self._deviation, self.ranks)
        # Ends: at least half of the distribution is not negative.
        while (again := np.flatnonzero(drawn < 0)).size:
            drawn[again] = generator.normal(self._mean, self._deviation, again.size)
        return drawn


class _LogNormal(Arrivals):
    """Independent log-normal times, given by the mean and standard deviation of the times."""

    def __init__(self, text: str, ranks: int, seed: int, mean: int, deviation: int) -> None:
        super().__init__(text, ranks, seed)
        variance = math.log1p((deviation / mean) ** 2)
        self._mu, self._sigma = math.log(mean) - variance / 2, math.sqrt(variance)

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        return generator.lognormal(self._mu, self._sigma, self.ranks)


class _Empirical(Arrivals):
    """Independent draws, with replacement, from a list."""

    def __init__(self, text: str, ranks: int, seed: int, sample: list[int]) -> None:
        super().__init__(text, ranks, seed)
        self._sample = np.array(sample, dtype=np.int64)

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        return self._sample[generator.integers(self._sample.size, size=self.ranks)]


@dataclass(frozen=True)
class _Figures:
    """Range, mean and standard deviation of a measured distribution, in milliseconds."""

    least: int
    most: int
    mean: int
    deviation: int


# eager-SGD (Li et al., PPoPP 2020): sections 2.1 (Fig. 1b), 2.2 (Fig. 3) and 2.3 (Fig. 4).
_WORKLOADS = {
    "ucf101": _Figures(201, 3410, 1235, 706),
    "wmt16": _Figures(179, 3482, 475, 144),
    "cloud": _Figures(399, 1892, 454, 116),
}


class _Beta(Arrivals):
    """Independent times of a Beta distribution, scaled to the range of a measured distribution.

    The paper gives four figures and a histogram. A scaled Beta distribution has four parameters,
    too, and the method of moments makes all four figures exact: if m and v are the mean and the
    variance scaled to 0..1, then a = m c and b = (1 - m) c with c = m (1 - m) / v - 1.
    """

    def __init__(self, text: str, ranks: int, seed: int, figures: _Figures) -> None:
        super().__init__(text, ranks, seed)
        self._least = figures.least * 10**6
        self._range = (figures.most - figures.least) * 10**6
        mean = (figures.mean - figures.least) / (figures.most - figures.least)
        variance = (figures.deviation / (figures.most - figures.least)) ** 2
        weight = mean * (1 - mean) / variance - 1
        self._a, self._b = mean * weight, (1 - mean) * weight

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        return self._least + self._range * generator.beta(self._a, self._b, self.ranks)


class _Based(Arrivals):
    """A base computation that varies a little, so that arrival times are distinct."""

    has_base = True

    def __init__(self, text: str, ranks: int, seed: int, base_ns: int) -> None:
        super().__init__(text, ranks, seed)
        self._base_ns = base_ns

    def _base(self, generator: np.random.Generator) -> npt.NDArray[Any]:
        low, high = self._base_ns * (1 - VARIATION), self._base_ns * (1 + VARIATION)
        return generator.uniform(low, high, self.ranks)


class _Slow(_Based):
    """One rank takes a multiple of its base computation."""

    def __init__(
        self, text: str, ranks: int, seed: int, base_ns: int, rank: int, factor: float
    ) -> None:
        super().__init__(text, ranks, seed, base_ns)
        self._rank, self._factor = rank, factor

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        drawn = self._base(generator)
        drawn[self._rank] *= self._factor
        return drawn


class _Random(_Based):
    """One rank, drawn in each step, is delayed (eager-SGD, section 6.2.1)."""

    def __init__(self, text: str, ranks: int, seed: int, base_ns: int, delay_ns: int) -> None:
        super().__init__(text, ranks, seed, base_ns)
        self._delay_ns = delay_ns

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        drawn = self._base(generator)
        drawn[generator.integers(self.ranks)] += self._delay_ns
        return drawn


class _Slowed(_Based):
    """Each rank is slower in some steps, drawn for itself (Hop, section 7)."""

    def __init__(
        self, text: str, ranks: int, seed: int, base_ns: int, factor: float, share: float
    ) -> None:
        super().__init__(text, ranks, seed, base_ns)
        self._factor, self._share = factor, share

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        drawn = self._base(generator)
        drawn[generator.random(self.ranks) < self._share] *= self._factor
        return drawn


class _Rotating(_Based):
    """All ranks are delayed, linearly; the delays shift by one rank (eager-SGD, section 6.2.3)."""

    def __init__(
        self, text: str, ranks: int, seed: int, base_ns: int, least: int, most: int
    ) -> None:
        super().__init__(text, ranks, seed, base_ns)
        self._delays = np.linspace(least, most, ranks)

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        # Rank r has in the next step the delay that rank r + 1 has in this one.
        delays = np.roll(self._delays, -(step % self.ranks))
        drawn: npt.NDArray[Any] = self._base(generator) + delays
        return drawn


class _Trace(Arrivals):
    """Times from a file."""

    def __init__(self, text: str, ranks: int, seed: int, rows: npt.NDArray[np.int64]) -> None:
        super().__init__(text, ranks, seed)
        self._rows = rows

    def _draw(self, step: int, generator: np.random.Generator) -> npt.NDArray[Any]:
        if step >= len(self._rows):
            raise ValueError(f"step {step}: {self.text} was read for {len(self._rows)} steps")
        row: npt.NDArray[Any] = self._rows[step]
        return row


# ---- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Request:
    """The arguments of `parse_arrivals`, and the text behind the model's name."""

    text: str
    rest: str
    ranks: int
    steps: int
    seed: int
    base_ns: int
    steps_option: str

    def parts(self, usage: str) -> list[str]:
        """Return the parts between the colons, as many as the usage shows."""
        parts = self.rest.split(":")
        if len(parts) != usage.count(":") or not all(part.strip() for part in parts):
            raise ValueError(f"{self.text!r} is incomplete or too long: write {usage}")
        return [part.strip() for part in parts]

    def durations(self, usage: str) -> list[int]:
        """Return the parts between the colons, which must be durations."""
        return [self.duration(part) for part in self.parts(usage)]

    def duration(self, part: str) -> int:
        """Return a duration that a rank may compute for."""
        try:
            return self.bounded(parse_duration(part))
        except ValueError as error:
            raise ValueError(f"{self.text!r}: {error}") from None

    def factor(self, part: str) -> float:
        """Return a factor of the base computation."""
        match = _FACTOR.fullmatch(part)
        factor = float(match[1]) if match else 0.0
        if not factor > 0:
            raise ValueError(f"{self.text!r}: {part!r} is not a factor above 0; write 20x or 1.5x")
        self.bounded(self.base_ns * (1 + VARIATION) * factor)
        return factor

    def bounded(self, nanoseconds: float) -> int:
        """Return a time; raise if it is longer than a rank may compute."""
        if nanoseconds > LONGEST_NS:
            raise ValueError(
                f"{self.text!r}: a rank would compute for {nanoseconds / 1e9:.6g} s in a step; "
                f"more than {LONGEST_NS // 10**9} s are not supported"
            )
        return round(nanoseconds)


def parse_arrivals(
    text: str,
    ranks: int,
    steps: int,
    seed: int,
    base_ns: int = BASE_NS,
    *,
    steps_option: str = "--steps",
) -> Arrivals:
    """Return the arrival model that a text such as ``linear:1ms`` or ``slow:3:20x`` stands for.

    ``linear:SKEW``
        Rank r computes r times SKEW (eager-SGD, Fig. 8).
    ``normal:MEAN:SD``
        Independent normal times. Negative ones are drawn again, so MEAN and SD are those of the
        distribution before it is truncated at 0.
    ``lognormal:MEAN:SD``
        Independent log-normal times; MEAN and SD are of the times, not of their logarithms.
    ``empirical:FILE``
        Independent draws, with replacement, from a file with one duration a line.
    ``ucf101``, ``wmt16``, ``cloud``
        The workloads of eager-SGD, section 2: Beta distributions on the measured range with the
        measured mean and standard deviation.
    ``slow:R:Kx``
        Rank R takes K times as long as the others, who compute for `base_ns`.
    ``random:DELAY``
        One rank, drawn in each step, comes DELAY later, after `base_ns` (eager-SGD, 6.2.1).
    ``random:Kx:p=SHARE``
        Each rank takes K times as long in a step with probability SHARE, such as ``1/16`` (Hop, 7).
    ``rotating:LEAST:MOST``
        Delays rise linearly from LEAST at rank 0 to MOST at the last rank, after `base_ns`; in
        each step rank r gets the delay that rank r + 1 had before (eager-SGD, 6.2.3).
    ``trace:FILE``
        One line a step, one column a rank, separated by commas or blanks.

    In files ``#`` begins a comment, empty lines do not count, and a number without a unit is
    seconds (``0.25``, ``1.5e-3``, ``250ms``).

    Parameters
    ----------
    text : str
        The model.
    ranks, steps : int
        Ranks and steps that need times; only a trace is limited to the steps.
    seed : int
        0..2**64 - 1.
    base_ns : int
        Mean of the base computation, which is uniform within 5 % around it.
    steps_option : str
        The option with which the user says how many steps there are, for errors.

    Raises
    ------
    ValueError
        If the text is not a model, if the model does not fit the number of ranks or steps, or if a
        file cannot be used. The error names the value and says what to write.
    """
    for name, value, least, most in (
        ("ranks", ranks, 1, (1 << 31) - 1),
        ("steps", steps, 1, (1 << 62) - 1),
        ("seed", seed, 0, _SEED_LIMIT - 1),
        ("base_ns", base_ns, 0, LONGEST_NS),
    ):
        if not least <= value <= most:
            raise ValueError(f"{name}={value} is not in {least}..{most}")
    name, colon, rest = text.strip().partition(":")
    name = name.strip().lower()
    request = _Request(text, rest.strip(), ranks, steps, seed, base_ns, steps_option)
    if name in _WORKLOADS:
        if colon:
            raise ValueError(f"{text!r}: {name} takes no values; write {name}")
        return _Beta(name, ranks, seed, _WORKLOADS[name])
    if name not in _MODELS:
        known = ", ".join([*_WORKLOADS, *(usage for usage, _ in _MODELS.values())])
        raise ValueError(f"{text!r} is not an arrival model: write one of {known}")
    usage, read = _MODELS[name]
    return read(request, usage)


def arrivals_complaint(
    text: str, ranks: int, steps: int, seed: int, base_ns: int, *, steps_option: str = "--steps"
) -> str | None:
    """Return why `parse_arrivals` refuses a model; None if it does not."""
    try:
        parse_arrivals(text, ranks, steps, seed, base_ns, steps_option=steps_option)
    except ValueError as error:
        return f"--arrivals: {error}"
    return None


def _read_linear(request: _Request, usage: str) -> Arrivals:
    (skew,) = request.durations(usage)
    request.bounded(skew * (request.ranks - 1))
    return _Linear(f"linear:{spell_duration(skew)}", request.ranks, request.seed, skew)


def _read_normal(request: _Request, usage: str) -> Arrivals:
    mean, deviation = request.durations(usage)
    text = f"normal:{spell_duration(mean)}:{spell_duration(deviation)}"
    return _Normal(text, request.ranks, request.seed, mean, deviation)


def _read_lognormal(request: _Request, usage: str) -> Arrivals:
    mean, deviation = request.durations(usage)
    if not mean:
        raise ValueError(f"{request.text!r}: the mean of log-normal times must be above 0")
    text = f"lognormal:{spell_duration(mean)}:{spell_duration(deviation)}"
    return _LogNormal(text, request.ranks, request.seed, mean, deviation)


def _read_slow(request: _Request, usage: str) -> Arrivals:
    rank, number = request.parts(usage)
    # An index with more than 10 digits is out of range, and need not be converted.
    decimal = rank.isascii() and rank.isdecimal()
    if not decimal or len(rank) > 10 or int(rank) >= request.ranks:
        raise ValueError(
            f"{request.text!r}: {rank!r} is not one of {request.ranks} ranks; "
            f"write 0..{request.ranks - 1}"
        )
    factor = request.factor(number)
    text = f"slow:{int(rank)}:{number.lower().removesuffix('x')}x"
    return _Slow(text, request.ranks, request.seed, request.base_ns, int(rank), factor)


def _read_random(request: _Request, usage: str) -> Arrivals:
    if ":" in request.rest:
        return _read_slowed(request)
    (delay,) = request.durations(usage.partition(" ")[0])
    request.bounded(request.base_ns * (1 + VARIATION) + delay)
    text = f"random:{spell_duration(delay)}"
    return _Random(text, request.ranks, request.seed, request.base_ns, delay)


def _read_slowed(request: _Request) -> Arrivals:
    number, share = request.parts(_SLOWED)
    factor = request.factor(number)
    match = _SHARE.fullmatch(share)
    if match is None or Fraction(match[1]) > 1:
        raise ValueError(f"{request.text!r}: {share!r} is not a probability; write p=1/16 or p=0.1")
    text = f"random:{number.lower().removesuffix('x')}x:{share}"
    at = float(Fraction(match[1]))
    return _Slowed(text, request.ranks, request.seed, request.base_ns, factor, at)


def _read_rotating(request: _Request, usage: str) -> Arrivals:
    least, most = request.durations(usage)
    if least > most:
        raise ValueError(
            f"{request.text!r}: the least delay is above the greatest; "
            f"write rotating:{spell_duration(most)}:{spell_duration(least)}"
        )
    request.bounded(request.base_ns * (1 + VARIATION) + most)
    text = f"rotating:{spell_duration(least)}:{spell_duration(most)}"
    return _Rotating(text, request.ranks, request.seed, request.base_ns, least, most)


def _read_empirical(request: _Request, usage: str) -> Arrivals:
    path = _path(request, usage)
    sample = []
    for line, cells in _lines(path):
        if len(cells) != 1:
            raise ValueError(f"{path}, line {line}: {len(cells)} values; write one duration a line")
        sample.append(_cell(cells[0], path, line))
    if not sample:
        raise ValueError(f"{path} has no durations: write one a line")
    return _Empirical(f"empirical:{path}", request.ranks, request.seed, sample)


def trace_shape(path: str) -> tuple[int, int]:
    """Return how many lines, one a step, and columns, one a rank, a trace has.

    Raises
    ------
    ValueError
        If the file cannot be used.
    """
    lines = columns = 0
    for row in _rows(path):
        lines, columns = lines + 1, len(row)
    return lines, columns


def _rows(path: str) -> Iterator[list[int]]:
    """Yield the times of each line of a trace; there is at least one."""
    columns = 0
    for line, cells in _lines(path):
        if columns and len(cells) != columns:
            raise ValueError(
                f"{path}, line {line}: {len(cells)} columns, but {columns} in the lines before; "
                "write one column a rank in every line"
            )
        columns = len(cells)
        yield [_cell(cell, path, line) for cell in cells]
    if not columns:
        raise ValueError(f"{path} has no times: write one line a step, one column a rank")


def _read_trace(request: _Request, usage: str) -> Arrivals:
    path = _path(request, usage)
    rows: list[npt.NDArray[np.int64]] = []
    columns = lines = 0
    for times in _rows(path):
        columns, lines = len(times), lines + 1
        # Lines behind the last step are checked, and not kept.
        if lines <= request.steps:
            rows.append(np.array(times, dtype=np.int64))
    if columns != request.ranks:
        raise ValueError(
            f"{path} has {columns} columns, one a rank, but there are {request.ranks} ranks: "
            f"use --ranks {columns}, or a file with {request.ranks} columns"
        )
    if lines < request.steps:
        raise ValueError(
            f"{path} has {lines} lines, one a step, but {request.steps} steps are asked for: "
            f"use {request.steps_option} {lines}, or a file with {request.steps} lines"
        )
    return _Trace(f"trace:{path}", request.ranks, request.seed, np.stack(rows))


def _path(request: _Request, usage: str) -> str:
    """Return the path in a model's text."""
    if not request.rest:
        raise ValueError(f"{request.text!r} names no file: write {usage}")
    return request.rest


def _lines(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbers of the lines of a file that hold values, and their values."""
    try:
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise ValueError("it is not a regular file")  # opening a pipe would wait for a writer
        with open(path, encoding="utf-8") as file:
            for number in itertools.count(1):
                line = file.readline(_LINE_LIMIT)
                if len(line) == _LINE_LIMIT:
                    raise ValueError(f"line {number} has {_LINE_LIMIT:,} characters or more")
                if not line:
                    return
                values = line.partition("#")[0].strip()
                if values:
                    yield number, values.split(",") if "," in values else values.split()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file") from error
    except ValueError as error:  # a name with a NUL, or no end of a line
        raise ValueError(f"{path!r} cannot be read: {error}") from error


def _cell(cell: str, path: str, line: int) -> int:
    """Return the nanoseconds of a value in a file: a number of seconds, or a duration."""
    value = cell.strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            nanoseconds = parse_duration(value)
        except ValueError:
            raise ValueError(
                f"{path}, line {line}: {value!r} is not a time; write seconds such as 0.25, or a "
                "duration such as 250ms (and # before a heading)"
            ) from None
    else:
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{path}, line {line}: {value} is not a time from 0 on")
        nanoseconds = round(seconds * 1e9) if seconds * 1e9 <= LONGEST_NS else LONGEST_NS + 1
    if nanoseconds > LONGEST_NS:
        raise ValueError(
            f"{path}, line {line}: {value} is more than {LONGEST_NS // 10**9} s; "
            "a number without a unit is seconds"
        )
    return nanoseconds


_MODELS: dict[str, tuple[str, Callable[[_Request, str], Arrivals]]] = {
    "linear": ("linear:1ms", _read_linear),
    "normal": ("normal:100ms:10ms", _read_normal),
    "lognormal": ("lognormal:100ms:10ms", _read_lognormal),
    "empirical": ("empirical:FILE", _read_empirical),
    "slow": ("slow:3:20x", _read_slow),
    "random": (f"random:200ms or {_SLOWED}", _read_random),
    "rotating": ("rotating:50ms:400ms", _read_rotating),
    "trace": ("trace:FILE", _read_trace),
}
