"""Sizes, durations and rates: what is read, what is written, and what is refused by name."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypartial.units import (
    format_duration,
    format_size,
    parse_duration,
    parse_patience,
    parse_picoseconds,
    parse_rate,
    parse_seconds,
    parse_size,
    spell_duration,
    spell_seconds,
)

# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("64", 64), ("64K", 65536), ("64k", 65536), ("4M", 4 << 20), ("1G", 1 << 30), ("2KiB", 2048)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_size_beyond_any_memory_is_named() -> None:
    assert parse_size("8589934591G") < 1 << 63
    for text in ("8589934592G", "9" * 400, "9" * 5000):
        with pytest.raises(ValueError, match="is too large") as caught:
            parse_size(text)
        assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "0", "00", "K", "-4", "1.5K", "64 bytes", "4T", "64KK", "4\u212a"]
)
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (8, "8 B"),
        (64 << 10, "64 KB"),
        (3 << 19, "1.5 MB"),
        (1 << 30, "1 GB"),
        (10**6 << 30, "1000000 GB"),
    ],
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert format_size(size) == text


# ---- durations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("1ms", 10**6),
        ("500us", 5 * 10**5),
        ("0.5s", 5 * 10**8),
        ("1.5ms", 1_500_000),
        ("0.6ns", 1),
        ("9007199.254740993s", 9007199254740993),
    ],
)
def test_durations_are_read(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "1", "ms", "-1ms", "1 min", "1e3us", "100ps", "nan", "1.s"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["9223372036.854775808s", "9" * 5000 + "s", "9" * 308 + "ms"])
def test_a_duration_beyond_centuries_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is too long") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "picoseconds"),
    [("0", 0), ("0.1ns", 100), ("25ps", 25), ("0.018ns", 18), ("6ns", 6000), ("1.4ps", 1)],
)
def test_picoseconds_are_read(text: str, picoseconds: int) -> None:
    assert parse_picoseconds(text) == picoseconds


def test_what_rounds_to_no_picosecond_is_named() -> None:
    with pytest.raises(ValueError, match=r"'0.0004ns' is shorter than 1 ps: write 0"):
        parse_picoseconds("0.0004ns")
    with pytest.raises(ValueError, match="'25' is not a duration"):
        parse_picoseconds("25")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (200, "200 ns"),
        (999, "999 ns"),
        (1500, "1.5 us"),
        (1_500_000, "1.5 ms"),
        (123_456_789, "123.5 ms"),
        (999_960_000, "1 s"),
        (12 * 10**9, "12 s"),
        (10**14, "100000 s"),
        (-1500, "-1.5 us"),
        (0.5, "0.5 ns"),
    ],
)
def test_durations_are_written(nanoseconds: float, text: str) -> None:
    assert format_duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0"), (7, "7ns"), (1_500_000, "1.5ms"), (10**11, "100s"), (1_234_567, "1.234567ms")],
)
def test_durations_are_spelled(nanoseconds: int, text: str) -> None:
    assert spell_duration(nanoseconds) == text


@given(st.integers(0, (1 << 63) - 1))
def test_a_spelled_duration_is_read_back(nanoseconds: int) -> None:
    assert parse_duration(spell_duration(nanoseconds)) == nanoseconds


# ---- rates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10GB/s", Fraction(10**10)),
        ("1.5KiB/s", Fraction(1536)),
        ("7B/s", Fraction(7)),
        ("0.1TB/s", Fraction(10**11)),
    ],
)
def test_rates_are_read(text: str, rate: Fraction) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "0GB/s", "10", "10GB", "10Gb/s", "-1GB/s", "10iB/s", "1" * 5000 + "B/s"]
)
def test_what_is_no_rate_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate: write bytes per second") as caught:
        parse_rate(text)
    assert repr(text) in str(caught.value)


# ---- seconds -------------------------------------------------------------------------------------


@given(st.floats(0, 9e9, allow_nan=False))
def test_seconds_are_the_same_after_they_were_written_and_read(seconds: float) -> None:
    assert parse_seconds(spell_seconds(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (0.005, "5ms"), (2e-4, "200us"), (1.5, "1.5s"), (1e-10, "0.1ns"), (90.0, "90s")],
)
def test_seconds_are_written_in_the_largest_unit(seconds: float, text: str) -> None:
    assert spell_seconds(float(seconds)) == text


@pytest.mark.parametrize("text", ["", "5", "1e-3s", "-1ms", "1ps", "99999999999999999999s"])
def test_what_is_no_time_in_seconds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|too long"):
        parse_seconds(text)


def test_patience() -> None:
    assert [parse_patience(text) for text in ("none", " Auto", "200ms")] == [None, "auto", 0.2]
    for text in ("0", "later", "-1s"):
        with pytest.raises(ValueError, match=r"above 0|is not a duration"):
            parse_patience(text)
