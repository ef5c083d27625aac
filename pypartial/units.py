"""Sizes, durations and rates as people write them: parsing and formatting."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Literal

_SIZE = re.compile(r"([0-9]+)([KMG]?)(?:I?B)?", re.ASCII | re.IGNORECASE)
_SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE_LIMIT = 1 << 63
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ps|ns|us|ms|s)")
_PICOSECONDS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
_DURATION_LIMIT_PS = 1000 << 63
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:([KMGT])(i?))?B/s")
_RATE_EXPONENTS = {None: 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as ``64``, ``64K``, ``4M`` or ``1G``.

    Suffixes are powers of 1024, in upper or lower case; ``KB`` and ``KiB`` mean the same as ``K``.

    Raises
    ------
    ValueError
        If the text is not a size, or if the size is zero, or 2**63 bytes or more.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or not match[1].strip("0"):
        raise ValueError(f"{text!r} is not a size: write bytes, or K, M or G, such as 64 or 64K")
    digits = match[1].lstrip("0")
    # Python refuses to convert integers of thousands of digits, so count the digits first.
    size = _SIZE_LIMIT if len(digits) > 19 else int(digits) * _SIZE_FACTORS[match[2].upper()]
    if size >= _SIZE_LIMIT:
        raise ValueError(f"{text!r} is too large: no memory has 2**63 bytes")
    return size


def format_size(size: int) -> str:
    """Return a size as people write it: ``64 B``, ``64 KB``, ``1.5 MB`` (units of 1024)."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            # :g would write large numbers with an exponent.
            number = size / factor
            return f"{number:.0f} {unit}" if number >= 1e5 else f"{number:g} {unit}"
    return f"{size} B"


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration such as ``1ms``, ``500us``, ``0.5s`` or ``0``.

    Raises
    ------
    ValueError
        If the text is not a duration, or if the duration is 2**63 ns or more. Only zero needs no
        unit.
    """
    picoseconds = None if text.strip().endswith("ps") else _picoseconds(text)
    if picoseconds is None:
        raise ValueError(f"{text!r} is not a duration: write 0, or a number with ns, us, ms or s")
    return round(picoseconds / 1000)


def parse_picoseconds(text: str) -> int:
    """Return the picoseconds of a short duration such as ``100ps``, ``0.1ns`` or ``0``.

    Raises
    ------
    ValueError
        If the text is not a duration, or if the duration is above 0 and below 1 ps.
    """
    picoseconds = _picoseconds(text)
    if picoseconds is None:
        raise ValueError(f"{text!r} is not a duration: write 0, or a number with ps, ns, us or ms")
    if 0 < picoseconds < 1:
        raise ValueError(f"{text!r} is shorter than 1 ps: write 0, or at least 1ps")
    return round(picoseconds)


def _picoseconds(text: str) -> Fraction | None:
    """Return a duration exactly, in picoseconds; None if the text is not a duration."""
    number = text.strip()
    if number == "0":
        return Fraction(0)
    match = _DURATION.fullmatch(number)
    if match is None:
        return None
    # Python refuses to convert integers of thousands of digits, so look at the float first.
    if float(match[1]) * _PICOSECONDS[match[2]] <= 2.0 * _DURATION_LIMIT_PS:
        picoseconds = Fraction(match[1]) * _PICOSECONDS[match[2]]
        if picoseconds < _DURATION_LIMIT_PS:
            return picoseconds
    raise ValueError(f"{text!r} is too long: durations are shorter than 2**63 ns, 292 years")


def spell_duration(nanoseconds: int) -> str:
    """Return a duration so that `parse_duration` reads it back exactly: ``1.5ms``, ``0``."""
    return _spell(Decimal(nanoseconds))


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration such as ``1ms``, ``500us``, ``0.5s`` or ``0``.

    Raises
    ------
    ValueError
        If the text is not a duration, or if the duration is 2**63 ns or more.
    """
    picoseconds = None if text.strip().endswith("ps") else _picoseconds(text)
    if picoseconds is None:
        raise ValueError(f"{text!r} is not a duration: write 0, or a number with ns, us, ms or s")
    return float(picoseconds / 10**12)


def spell_seconds(seconds: float) -> str:
    """Return a duration so that `parse_seconds` reads back the same float: ``5ms``, ``0``."""
    # repr() gives the shortest digits for this float; changing the unit only moves the point.
    return _spell(Decimal(repr(seconds)).scaleb(9))


def parse_patience(text: str) -> float | Literal["auto"] | None:
    """Return the patience that ``none``, ``auto`` or a duration above 0 stands for.

    Returns
    -------
    float or "auto" or None
        Seconds if the text is a duration.

    Raises
    ------
    ValueError
        If the text is neither of the words, nor a duration above 0.
    """
    word = text.strip().lower()
    if word == "none":
        return None
    if word == "auto":
        return "auto"
    seconds = parse_seconds(word)
    if not seconds:
        raise ValueError(f"{text!r}: a patience is above 0; write none for ever")
    return seconds


def _spell(nanoseconds: Decimal) -> str:
    for unit in ("s", "ms", "us", "ns"):
        factor = _PICOSECONDS[unit] // 1000
        if nanoseconds >= factor or (unit == "ns" and nanoseconds):
            number = f"{nanoseconds / factor:f}"
            return (number.rstrip("0").rstrip(".") if "." in number else number) + unit
    return "0"


def format_duration(nanoseconds: float) -> str:
    """Return a duration as people write it, with four digits: ``200 ns``, ``1.5 ms``, ``12 s``."""
    number = nanoseconds
    for unit in ("ns", "us", "ms"):
        # Round before comparing: 999.99 us are 1 ms.
        text = f"{number:.4g}"
        if abs(float(text)) < 1000:
            return f"{text} {unit}"
        number /= 1000
    return f"{number:.0f} s" if abs(number) >= 1000 else f"{number:.4g} s"


def parse_rate(text: str) -> Fraction:
    """Return the bytes per second of a rate such as ``10GB/s`` or ``1.5GiB/s``.

    K, M, G and T are powers of 1000, as for all rates of memories and networks; Ki, Mi, Gi and Ti
    are powers of 1024.

    Raises
    ------
    ValueError
        If the text is not a rate, or if the rate is zero.
    """
    match = _RATE.fullmatch(text.strip())
    # 24 digits are more than any rate has, and fewer than Python refuses to convert.
    if match is None or len(match[1]) > 24 or not Fraction(match[1]):
        raise ValueError(f"{text!r} is not a rate: write bytes per second, such as 10GB/s")
    thousand = Fraction(1024 if match[3] else 1000)
    return Fraction(match[1]) * thousand ** _RATE_EXPONENTS[match[2]]
