"""``pypartial sim gain``: known computations, its table and files, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.tables import assert_fits, columns_of

from pypartial.cli import app
from pypartial.cli.gain import _predict
from pypartial.sim.gain_options import GainOptions

STEPS = 200
# Three ranks take 5 ms, rank 1 takes longer; the times of the others differ a little, as real ones.
FAST_S, SLOW_S = 5e-3, 11e-3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recording of 4 ranks."""
    path = tmp_path / "arrivals.csv"
    draws = np.random.default_rng(2)
    times = FAST_S * draws.uniform(0.99, 1.01, (STEPS, 4))
    times[:, 1] = SLOW_S * draws.uniform(0.99, 1.01, STEPS)
    np.savetxt(path, times, fmt="%.9f", delimiter=",", header="seconds")
    return path


def parsed(file: Path, *words: str) -> GainOptions:
    options = app.parse(["sim", "gain", str(file), *words], 1)
    assert isinstance(options, GainOptions)
    return options


def rows(file: Path, *words: str) -> dict[str, dict[str, float]]:
    results = file.with_suffix(".json")
    assert _predict(parsed(file, *words, "--json", str(results))) == 0
    return {row["name"]: row for row in json.loads(results.read_text())["rows"]}


def over_steps(fast: Sequence[float], slow: float) -> float:
    """Return the mean over steps, of which a slow rank makes fewer in the same time."""
    total = sum(STEPS * time for time in fast) + STEPS * fast[0]
    return total / (len(fast) * STEPS + STEPS * fast[0] / slow)


def test_one_slow_rank(file: Path) -> None:
    found = rows(file, "--policy", "solo", "--policy", "quorum:3", "--generator", "controller:2")
    free = over_steps([FAST_S] * 3, SLOW_S)
    full = found["full"]
    assert list(found) == ["full", "solo", "quorum:3", "controller:2"]
    assert full["step_s"] == pytest.approx(SLOW_S, rel=0.01)
    assert full["waiting"] == pytest.approx(3 / 4 * (1 - FAST_S / SLOW_S), rel=0.02)
    assert (full["active"], full["staleness"], full["speedup_vs_synchronous"]) == (4, 0, 1)
    for name, more in (("solo", 0.01), ("quorum:3", 0.02), ("controller:2", 0.3)):
        row = found[name]
        assert free * 0.99 < row["step_s"] < free * (1 + more)
        assert row["speedup_vs_synchronous"] == pytest.approx(full["step_s"] / row["step_s"])
        assert 0 <= row["waiting"] < 0.2  # of three fast ranks one has no partner yet
    assert found["solo"]["active"] == 1
    assert 3 <= found["quorum:3"]["active"] < 3.6
    # Each contribution but the first rank's is in the round after; of the slow rank one in two is.
    assert found["solo"]["staleness"] == pytest.approx(1, abs=0.35)
    assert 0 < found["quorum:3"]["staleness"] < 0.3
    assert found["controller:2"]["active"] == 2
    # The slow rank's model is two steps behind, in one of six members of groups or so.
    assert 0 < found["controller:2"]["staleness"] < 1


def test_staleness_does_not_grow_with_the_steps(file: Path) -> None:
    """A slow rank falls further and further behind; the models that it is given do not."""
    few, many = (
        rows(file, "--steps", steps, "--generator", "controller:2")["controller:2"]["staleness"]
        for steps in ("50", "200")
    )
    assert many == pytest.approx(few, rel=0.5)


def test_a_bound_holds_the_fast_ranks_back(file: Path) -> None:
    found = rows(file, "--policy", "solo", "--deliver", "each")
    assert found["solo"]["step_s"] == pytest.approx(SLOW_S, rel=0.05)


@pytest.mark.parametrize(
    ("ranks", "words", "policies", "plans"),
    [
        (1, "", "full solo majority quorum:1", ""),
        (2, "", "full solo majority quorum:1", ""),
        (2, "--per-node 2", "full solo majority quorum:1", "static"),
        (64, "", "full solo majority quorum:48", "random:3 smart:3 controller:3 static"),
        (5, "--policy full --policy solo --generator smart:5", "full solo", "smart:5"),
    ],
)
def test_what_is_compared(
    tmp_path: Path, ranks: int, words: str, policies: str, plans: str
) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(",".join(["5ms"] * ranks) + "\n")
    options = parsed(path, *words.split())
    assert [str(policy) for policy in options.rounds.policies] == policies.split()
    assert [plan.text for plan in options.groups.plans] == plans.split()
    assert (options.rounds.ranks, options.rounds.steps, options.recorded) == ((ranks,), 1, 1)


def test_many_times_are_not_all_used_unless_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.csv"
    path.write_text(("1 " * 640 + "\n") * 150)
    assert (parsed(path).rounds.steps, parsed(path).groups.iterations) == (100, 100)
    assert parsed(path, "--steps", "150").rounds.steps == 150


def test_the_table_fits_a_terminal(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    plot = file.with_suffix(".png")
    assert _predict(parsed(file, "--plot", str(plot), "--steps", "20")) == 0
    text = capsys.readouterr().out
    assert_fits(text.partition("Plot: ")[0])
    assert columns_of(text) == [["", "step", "x", "waiting", "active", "staleness"]]
    assert "4 ranks, 20 of 200 steps" in " ".join(text.split())
    assert "│ full " in text and "│ smart:3 " in text
    assert plot.stat().st_size > 10_000


def test_the_command_on_one_rank_that_takes_no_time(tmp_path: Path) -> None:
    path, results = tmp_path / "arrivals.csv", tmp_path / "gain.json"
    path.write_text("0\n0\n")
    words = [sys.executable, "-m", "pypartial", "sim", "gain", str(path), "--json", str(results)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"Results: {results}" in ran.stdout
    found = json.loads(results.read_text())
    assert (found["meta"]["ranks"], found["meta"]["recorded"]) == (1, 2)
    assert [row["step_s"] for row in found["rows"]] == [0] * 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "has no times: write one line a step, one column a rank"),
        ("# of a program that raised\n", "has no times"),
        ("1,2\n1,2,3\n", "line 2: 3 columns, but 2 in the lines before"),
        ("rank0,rank1\n1,2\n", "line 1: 'rank0' is not a time"),
        ("1,-2\n", "line 1: -2 is not a time from 0 on"),
        ("1,nan\n", "line 1: nan is not a time"),
    ],
)
def test_a_file_of_no_use_is_one_line(
    tmp_path: Path, content: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a"
    if content is not None:
        path.write_text(content)
    assert app.parse(["sim", "gain", str(path)], 1) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert said in error and "'FILE'" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--steps 201", "use --steps 200"),
        ("--policy quorum:5", "only 4 ranks"),
        ("--policy most", "'most' is not a policy"),
        (
            "--policy solo --policy solo,grace=0s --generator smart:5",
            "no groups of 5 among 4 ranks",
        ),
        ("--generator ring", "'ring' is not a generator"),
        ("--generator static --per-node 3", "4 ranks are not nodes of 3"),
        ("--plot gain.txt", "must end in .png"),
        ("--json none/gain.json", "there is no folder none"),
    ],
)
def test_usage_errors(
    file: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.parse(["sim", "gain", str(file), *words.split()], 1) == 2
    assert said in " ".join(capsys.readouterr().err.split())
