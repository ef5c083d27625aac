"""Arguments: what a caller gave, as the plain value that it stands for, or an `ArgumentError`."""

from __future__ import annotations

import math
import operator
from typing import Any

from .errors import ArgumentError


def real_number(value: Any) -> float:
    """Return `value` as a float, NaN if it is no real number; text is none, whatever it says."""
    if isinstance(value, (str, bytes, bytearray)):
        return math.nan
    try:
        return float(value)
    except Exception:  # objects that could be numbers raise what they like
        return math.nan


def whole_number(name: str, value: Any) -> int:
    """Return `value` as an int if it is an integer (NumPy's too, bool not)."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise ArgumentError(f"{name} must be an integer, not {value!r}")


def in_range(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int if it is an integer in ``low..high``."""
    number = whole_number(name, value)
    if not low <= number <= high:
        raise ArgumentError(f"{name} must be in {low}..{high}, not {number}")
    return number
