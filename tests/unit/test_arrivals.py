"""Arrival models: distributions, determinism, files, and what is refused by name.

Moments are checked over 100,000 draws with a fixed seed.  The tolerance of a mean is five standard
errors; that of a standard deviation is stated with the test.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypartial.sim.arrivals import (
    BASE_NS,
    LONGEST_NS,
    MODELS_HELP,
    VARIATION,
    Arrivals,
    parse_arrivals,
)

MS = 10**6
DRAWS = 100_000
WITHOUT_FILES = [
    "linear:1ms",
    "normal:100ms:20ms",
    "lognormal:100ms:50ms",
    "ucf101",
    "wmt16",
    "cloud",
    "slow:3:20x",
    "random:200ms",
    "random:6x:p=1/16",
    "rotating:50ms:400ms",
]
DRAWN = [text for text in WITHOUT_FILES if not text.startswith("linear")]


def model(text: str, ranks: int = 8, steps: int = 10, seed: int = 1, **options: Any) -> Arrivals:
    return parse_arrivals(text, ranks, steps, seed, **options)


def draws(text: str) -> npt.NDArray[np.int64]:
    """Return `DRAWS` draws, from ten steps."""
    arrivals = model(text, DRAWS // 10)
    return np.concatenate([arrivals.times(step) for step in range(10)])


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Return one text of every model."""
    (tmp_path / "sample.txt").write_text("1ms\n2ms\n3ms\n4ms\n")
    (tmp_path / "trace.csv").write_text("1,2,3,4,5,6,7,8\n" * 10)
    files = [f"empirical:{tmp_path}/sample.txt", f"trace:{tmp_path}/trace.csv"]
    return [*WITHOUT_FILES, *files]


# ---- all models ----------------------------------------------------------------------------------


def test_times_are_a_function_of_model_ranks_seed_and_step(texts: list[str]) -> None:
    for text in texts:
        arrivals = model(text)
        forth = [arrivals.times(step) for step in range(10)]
        assert all(times.shape == (8,) and times.dtype == np.int64 for times in forth)
        assert min(times.min() for times in forth) >= 0
        np.random.seed(5)  # the models must not look at it
        other = model(text)
        back = [other.times(step) for step in reversed(range(10))]
        np.testing.assert_array_equal(forth, back[::-1], err_msg=text)
        np.testing.assert_array_equal(forth[7], arrivals.times(7), err_msg=text)


def test_the_caller_may_change_the_array(texts: list[str]) -> None:
    for text in texts:
        arrivals = model(text)
        before = arrivals.times(2).copy()
        arrivals.times(2)[:] = -1
        np.testing.assert_array_equal(arrivals.times(2), before, err_msg=text)


@pytest.mark.parametrize("text", DRAWN)
def test_steps_and_seeds_draw_different_times(text: str) -> None:
    first = model(text).times(0)
    assert (first != model(text).times(1)).any()
    assert (first != model(text, seed=2).times(0)).any()


def test_the_text_is_canonical_and_read_back(texts: list[str]) -> None:
    for text in texts:
        arrivals = model(text)
        assert arrivals.text == text
        assert arrivals.ranks == 8
    for text, canonical in (
        (" Linear:1000us ", "linear:1ms"),
        ("normal: 0.1s :20ms", "normal:100ms:20ms"),
        ("slow:03:20", "slow:3:20x"),
        ("slow:3:1.5X".lower(), "slow:3:1.5x"),
        ("UCF101", "ucf101"),
    ):
        arrivals = model(text)
        assert arrivals.text == canonical
        np.testing.assert_array_equal(arrivals.times(1), model(canonical).times(1))


@pytest.mark.parametrize("text", WITHOUT_FILES)
def test_no_loop_over_the_ranks(text: str) -> None:
    arrivals = model(text, 65536)
    arrivals.times(0)
    lines = 0

    def count(_frame: Any, _event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        arrivals.times(1)
    finally:
        sys.settrace(before)
    assert lines < 1000  # a loop over the ranks has 65536 at least


def test_negative_steps_are_named(texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match="step -1: steps are numbered from 0"):
            model(text).times(-1)


def test_the_help_shows_every_model() -> None:
    lines = [line for line in MODELS_HELP.splitlines() if not line.startswith(" ")]
    shown = [line.split("  ")[0] for line in lines]
    names = {name.strip().partition(":")[0] for entry in shown for name in entry.split(",")}
    assert names == {text.partition(":")[0] for text in WITHOUT_FILES} | {"empirical", "trace"}


# ---- distributions -------------------------------------------------------------------------------


def test_linear_is_exact() -> None:
    expected = np.arange(8) * 1_500_000
    for step in (0, 9):
        np.testing.assert_array_equal(model("linear:1.5ms").times(step), expected)


# Standard errors of the standard deviation: sd / sqrt(2 n) times a factor for the fourth moment,
# which is 2 at most for these.  1.5 % is more than three of them.
@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("normal:100ms:10ms", 100, 10),
        ("lognormal:100ms:30ms", 100, 30),
        ("ucf101", 1235, 706),
        ("wmt16", 475, 144),
        ("cloud", 454, 116),
    ],
)
def test_moments(text: str, mean: float, deviation: float) -> None:
    sample = draws(text) / MS
    assert sample.mean() == pytest.approx(mean, abs=5 * deviation / DRAWS**0.5)
    assert sample.std() == pytest.approx(deviation, rel=0.015)


@pytest.mark.parametrize(
    ("text", "least", "most"), [("ucf101", 201, 3410), ("wmt16", 179, 3482), ("cloud", 399, 1892)]
)
def test_workloads_stay_in_their_range(text: str, least: int, most: int) -> None:
    sample = draws(text)
    assert least * MS <= sample.min() < 1.05 * least * MS
    # wmt16's mean is 21 standard deviations below its longest batch.
    assert (0.3 if text == "wmt16" else 0.8) * most * MS < sample.max() <= most * MS


def test_a_lognormal_has_a_normal_logarithm() -> None:
    logarithms = np.log(draws("lognormal:100ms:100ms"))
    assert logarithms.std() == pytest.approx(np.log(2) ** 0.5, rel=0.015)
    # Exactly half are below exp(mu) = mean / sqrt(2); five standard errors.
    below = (logarithms < np.log(100 * MS / 2**0.5)).mean()
    assert below == pytest.approx(0.5, abs=5 * 0.5 / DRAWS**0.5)


def test_a_normal_is_truncated_and_not_clipped() -> None:
    sample = draws("normal:10ms:20ms")
    assert sample.min() >= 0
    assert (sample == 0).sum() < 10
    # E = m + s phi(a) / (1 - Phi(a)) for a = -m / s = -0.5: 10 + 20 x 0.50916.
    assert sample.mean() / MS == pytest.approx(20.183, abs=5 * 14 / DRAWS**0.5)


def test_no_spread_is_no_spread() -> None:
    for text in ("normal:3ms:0", "lognormal:3ms:0"):
        np.testing.assert_allclose(model(text).times(0), 3 * MS, atol=1)


def test_a_heavy_tail_stays_in_bounds() -> None:
    times = model("lognormal:1ns:1000000s", 65536).times(0)
    assert times.min() >= 0
    assert model("lognormal:1000000s:1000000s", 65536).times(0).max() == LONGEST_NS


def test_empirical_draws_with_replacement(tmp_path: Path) -> None:
    path = tmp_path / "sample"
    path.write_text("# measured\n0.001\n\n2ms # twice as long\n4000us\n4e-3\n")
    sample = draws(f"empirical:{path}")
    values, counts = np.unique(sample, return_counts=True)
    assert values.tolist() == [1 * MS, 2 * MS, 4 * MS]
    # Shares of 1/4, 1/4 and 1/2 within five standard errors.
    np.testing.assert_allclose(counts / DRAWS, [0.25, 0.25, 0.5], atol=5 * 0.5 / DRAWS**0.5)


# ---- delays --------------------------------------------------------------------------------------


def test_the_base_computation_varies_a_little() -> None:
    base = model("slow:0:1x", DRAWS).times(0)
    assert (1 - VARIATION) * BASE_NS <= base.min() < base.max() <= (1 + VARIATION) * BASE_NS
    deviation = VARIATION * BASE_NS / 3**0.5
    assert base.mean() == pytest.approx(BASE_NS, abs=5 * deviation / DRAWS**0.5)
    assert base.std() == pytest.approx(deviation, rel=0.015)
    assert np.unique(model("slow:3:20x", 64).times(0)).size == 64


def test_the_slow_rank_is_slow_in_every_step() -> None:
    plain, slow = model("slow:3:1x"), model("slow:3:20x")
    for step in range(5):
        ratio = slow.times(step) / plain.times(step)
        np.testing.assert_allclose(ratio, np.where(np.arange(8) == 3, 20, 1), rtol=1e-6)
    np.testing.assert_array_equal(model("slow:0:0.5x", base_ns=0).times(0), 0)


def test_random_delays_one_rank_of_a_step() -> None:
    arrivals = model("random:200ms", base_ns=10 * MS)
    late = [np.flatnonzero(arrivals.times(step) > 200 * MS) for step in range(4000)]
    assert all(ranks.size == 1 for ranks in late)
    counts = np.bincount(np.concatenate(late), minlength=8)
    # Every rank's share is 1/8, within five standard errors.
    np.testing.assert_allclose(counts / 4000, 1 / 8, atol=5 * (7 / 64 / 4000) ** 0.5)
    times = arrivals.times(0)
    assert times.max() == pytest.approx(210 * MS, abs=VARIATION * 10 * MS + 1)
    assert times.min() == pytest.approx(10 * MS, abs=VARIATION * 10 * MS + 1)


def test_each_rank_is_slower_with_a_probability() -> None:
    plain, slowed = model("slow:0:1x", 16), model("random:6x:p=1/16", 16)
    ratios = np.array([slowed.times(step) / plain.times(step) for step in range(4000)])
    slow = ratios > 2
    np.testing.assert_allclose(ratios, np.where(slow, 6, 1), rtol=1e-6)
    # The share of each rank is 1/16, of a pair 1/256, within five standard errors.
    np.testing.assert_allclose(slow.mean(axis=0), 1 / 16, atol=5 * (15 / 256 / 4000) ** 0.5)
    both = (slow[:, 1:] & slow[:, :-1]).mean()
    assert both == pytest.approx(1 / 256, abs=5 * (1 / 256 / 60_000) ** 0.5)


def test_a_probability_is_a_fraction_or_a_number() -> None:
    texts = ("random:2X:p=0.25", "random:2:p=1/4", " random : 2x : p=1/4 ")
    drawn = [model(text, 64).times(3) for text in texts]
    assert (drawn[0] == drawn[1]).all() and (drawn[1] == drawn[2]).all()
    assert model("random:2X:p=0.25").text == "random:2x:p=0.25"
    assert (model("random:1x:p=1").times(3) == model("random:5x:p=0").times(3)).all()


def test_rotating_delays_shift_by_one_rank() -> None:
    arrivals = model("rotating:50ms:400ms", base_ns=0)
    skew = np.arange(50, 401, 50) * MS
    np.testing.assert_array_equal(arrivals.times(0), skew)
    np.testing.assert_array_equal(arrivals.times(1), np.roll(skew, -1))
    np.testing.assert_array_equal(arrivals.times(8), skew)
    assert model("rotating:50ms:400ms", 1, base_ns=0).times(3).tolist() == [50 * MS]
    on_top = model("rotating:50ms:400ms", base_ns=10 * MS).times(0) - skew
    np.testing.assert_allclose(on_top, 10 * MS, rtol=VARIATION + 1e-6)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "# rank 0, rank 1\n0.001, 2ms\n\n3e-3,0.004s # slow\n5ms,6ms\n",
        "0.001 2ms\n3ms\t4ms\n0.005 0.006\n",
        "1ms,2ms\r\n3ms,4ms\r\n5ms,6ms\r\n7ms,8ms\r\n",
    ],
)
def test_a_trace_gives_the_time_of_each_rank_and_step(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace: 1"
    path.write_bytes(content.encode())
    arrivals = model(f"trace:{path}", 2, 3)
    times = [arrivals.times(step).tolist() for step in range(3)]
    assert times == [[1 * MS, 2 * MS], [3 * MS, 4 * MS], [5 * MS, 6 * MS]]
    with pytest.raises(ValueError, match=r"step 3: trace:.* was read for 3 steps"):
        arrivals.times(3)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "has no times: write one line a step"),
        ("# nothing\n\n", "has no times: write one line a step"),
        ("1,2,3\n" * 4, "has 3 columns, one a rank, but there are 2 ranks: use --ranks 3"),
        ("1,2\n" * 3, "has 3 lines, one a step, but 4 steps are asked for: use --steps 3"),
        ("1,2\n1\n1,2\n1,2\n", "line 2: 1 columns, but 2 in the lines before"),
        ("1,2\n" * 4 + "1,2,3\n", "line 5: 3 columns, but 2 in the lines before"),
        ("rank0,rank1\n" + "1,2\n" * 4, "line 1: 'rank0' is not a time; .*# before a heading"),
        ("1,2\n1,\n", "line 2: '' is not a time"),
        ("1,2\n1,nan\n", "line 2: nan is not a time from 0 on"),
        ("1,2\n-1,2\n", "line 2: -1 is not a time from 0 on"),
        ("1,2\n1,-1ms\n", "line 2: '-1ms' is not a time"),
        ("1,2\n1,inf\n", "line 2: inf is not a time"),
        ("1,2\n1,1000001\n", "line 2: 1000001 is more than 1000000 s; a number without a unit"),
        ("1,2\n1,1e308\n", "line 2: 1e308 is more than 1000000 s"),
        ("1,2\n1,1000001s\n", "line 2: 1000001s is more than 1000000 s"),
    ],
)
def test_a_trace_that_does_not_fit_says_why(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=named) as caught:
        model(f"trace:{path}", 2, 4)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"# nothing\n", "has no durations: write one a line"),
        (b"1ms\n1ms 2ms\n", "line 2: 2 values; write one duration a line"),
        (b"1ms\nsoon\n", "line 2: 'soon' is not a time; write seconds such as 0.25, or a duration"),
        (b"\xff\xfe1\n", "is not a text file"),
    ],
)
def test_a_sample_that_cannot_be_used_says_why(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / "sample"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=named) as caught:
        model(f"empirical:{path}")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["trace", "empirical"])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"none\.csv cannot be read: No such file"):
        model(f"{name}:{tmp_path}/none.csv")
    with pytest.raises(ValueError, match=f"{tmp_path} cannot be read: Is a directory"):
        model(f"{name}:{tmp_path}")
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    with pytest.raises(ValueError, match="pipe' cannot be read: it is not a regular file"):
        model(f"{name}:{tmp_path}/pipe")
    with pytest.raises(ValueError, match=r"'a\\x00b' cannot be read"):
        model(f"{name}:a\0b")
    for text in (name, f"{name}:", f"{name}: "):
        with pytest.raises(ValueError, match=f"{text!r} names no file: write {name}:FILE"):
            model(text)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "'' is not an arrival model: write one of ucf101, wmt16, cloud, linear:1ms"),
        ("steady:1ms", "'steady:1ms' is not an arrival model"),
        ("linear", "'linear' is incomplete or too long: write linear:1ms"),
        ("linear:", "'linear:' is incomplete"),
        ("linear:1ms:2ms", "is incomplete or too long: write linear:1ms"),
        ("linear:fast", "'linear:fast': 'fast' is not a duration"),
        ("linear:-1ms", "'linear:-1ms': '-1ms' is not a duration"),
        ("linear:nan", "'nan' is not a duration"),
        ("linear:200000s", r"a rank would compute for 1.4e\+06 s in a step; more than 1000000 s"),
        ("normal:100ms", "is incomplete or too long: write normal:100ms:10ms"),
        ("normal:100ms:-1ms", "'-1ms' is not a duration"),
        ("normal:100ms:", "is incomplete or too long"),
        ("lognormal:0:1ms", "'lognormal:0:1ms': the mean of log-normal times must be above 0"),
        ("ucf101:2", "'ucf101:2': ucf101 takes no values; write ucf101"),
        ("slow:8:2x", "'slow:8:2x': '8' is not one of 8 ranks; write 0..7"),
        ("slow:-1:2x", "'-1' is not one of 8 ranks"),
        ("slow:" + "9" * 5000 + ":2x", "is not one of 8 ranks"),
        ("slow:a:2x", "'a' is not one of 8 ranks"),
        ("slow:1:0x", "'0x' is not a factor above 0; write 20x or 1.5x"),
        ("slow:1:-2x", "'-2x' is not a factor"),
        ("slow:1:nanx", "'nanx' is not a factor"),
        ("slow:1:1e9x", "'1e9x' is not a factor"),
        ("slow:1:99999999999x", "a rank would compute for 1.05e"),
        ("slow:1:" + "9" * 5000 + "x", "a rank would compute for inf s"),
        ("slow:1", "is incomplete or too long: write slow:3:20x"),
        ("random:2000000s", "a rank would compute for 2e"),
        ("random:6x", "'random:6x': '6x' is not a duration"),
        ("random:6x:1/16", "'1/16' is not a probability; write p=1/16 or p=0.1"),
        ("random:6x:p=17/16", "'p=17/16' is not a probability"),
        ("random:6x:p=1/0", "'p=1/0' is not a probability"),
        ("random:6x:p=nan", "'p=nan' is not a probability"),
        ("random:0x:p=1/16", "'0x' is not a factor above 0"),
        ("random:6x:p=1/16:2", "is incomplete or too long: write random:6x:p=1/16"),
        ("random:99999999999x:p=0", "a rank would compute for 1.05e"),
        ("rotating:400ms:50ms", "is above the greatest; write rotating:50ms:400ms"),
        ("rotating:50ms", "is incomplete or too long: write rotating:50ms:400ms"),
    ],
)
def test_nonsense_is_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        model(text)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 1, 1, 1), "ranks=0 is not in 1.."),
        ((1, 0, 1, 1), "steps=0 is not in 1.."),
        ((1, 1, -1, 1), "seed=-1 is not in 0.."),
        ((1, 1, 1 << 64, 1), "seed=18446744073709551616 is not in 0..18446744073709551615"),
        ((1, 1, 1, -1), "base_ns=-1 is not in 0.."),
        ((1, 1, 1, LONGEST_NS + 1), "base_ns=1000000000000001 is not in 0..1000000000000000"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: tuple[int, ...], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_arrivals("cloud", *arguments)


@given(st.text(max_size=20), st.sampled_from(["", *(t.partition(":")[0] + ":" for t in DRAWN)]))
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    try:
        arrivals = model(name + text)
    except ValueError:
        return
    assert arrivals.times(0).shape == (8,)
