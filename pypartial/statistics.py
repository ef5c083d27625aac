"""Statistics over samples, for the reports of the commands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


# Student's t distribution, 97.5 % quantiles for 1 to 9 degrees of freedom.
_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, within 0.01 %.

    A table, and from 10 degrees of freedom on the Cornish-Fisher expansion around the normal
    quantile (Abramowitz and Stegun, 26.7.5). By hand: scipy would be 140 MB to install for one
    number that every `bench skew` prints.
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959963984540054
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def confidence_interval(samples: npt.ArrayLike) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a mean; None for fewer than two samples.

    For independent samples it is mean ± t · s / √n, with the sample standard deviation s and
    Student's t for n-1 degrees of freedom.
    """
    values = np.asarray(samples, dtype=float)
    if values.size < 2:
        return None
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    reach = student_quantile(values.size - 1) * error
    return mean - reach, mean + reach


@dataclass(frozen=True)
class Latency:
    """Latencies of all ranks and rounds, in microseconds.

    `ci95` is the 95 % confidence interval of the mean. It is taken over the rounds, each with the
    mean of its ranks: the ranks of one round wait for each other, so they are not independent.
    """

    mean: float
    p50: float
    p99: float
    max: float
    ci95: tuple[float, float] | None = None

    @classmethod
    def of(cls, nanoseconds: npt.ArrayLike) -> Latency:
        """Summarise samples: one a round (or block), or a row of them for each rank."""
        values = np.asarray(nanoseconds, dtype=float) / 1e3
        p50, p99 = np.percentile(values, [50, 99])
        by_round = values.mean(axis=0) if values.ndim > 1 else values
        interval = confidence_interval(by_round)
        return cls(float(values.mean()), float(p50), float(p99), float(values.max()), interval)


@dataclass(frozen=True)
class Active:
    """Active ranks of the rounds, with the 95 % confidence interval of their mean."""

    mean: float
    min: int
    max: int
    ci95: tuple[float, float] | None

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> Active:
        """Summarise one number a round."""
        values = np.asarray(samples, dtype=int)
        return cls(
            float(values.mean()), int(values.min()), int(values.max()), confidence_interval(values)
        )

    def agrees_with(self, expected: float) -> bool:
        """Return whether the confidence interval, its ends included, contains `expected`."""
        if self.ci95 is None:
            return self.mean == expected
        return self.ci95[0] <= expected <= self.ci95[1]


@dataclass(frozen=True)
class Spread:
    """The median of many samples, and the range that holds four fifths of them."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> Spread:
        """Summarise samples of any shape."""
        p10, median, p90 = np.percentile(np.asarray(samples, dtype=float), [10, 50, 90])
        return cls(float(median), float(p10), float(p90))
