"""`ci/compare`: statistics, verdicts, and what it does about revisions that lack something."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "ci" / "compare"


@pytest.fixture(scope="module")
def compare():
    spec = spec_from_loader("ci_compare", SourceFileLoader("ci_compare", str(SCRIPT)))
    module = module_from_spec(spec)
    sys.modules["ci_compare"] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ci_compare"]


def cell(compare, goal=1.0, **more):
    return compare.Cell("a cell", goal, "us", compare.Bench(1, "bench overhead"), **more)


# ---- statistics ---------------------------------------------------------------------------------


def test_the_median_is_that_of_the_paired_ratios(compare):
    """Pairs that belong together cancel what changes between the pairs."""
    found = compare.ratio([1, 10, 100, 1000, 10000], [2, 30, 100, 2000, 20000])
    assert found.median == 2
    assert (found.low, found.high) == (1, 3)


def test_equal_figures_have_a_ratio_of_one(compare):
    assert compare.ratio([3.0, 4, 5], [3.0, 4, 5]) == compare.Ratio(1, 1, 1)


def test_the_interval_is_always_the_same_and_narrows(compare):
    draws = np.random.default_rng(5)
    few, many = (
        compare.ratio(np.ones(count), draws.normal(1.5, 0.1, count)) for count in (15, 1500)
    )
    assert few.low < 1.5 < few.high
    assert many.high - many.low < (few.high - few.low) / 4
    again = np.random.default_rng(5)
    assert compare.ratio(np.ones(15), again.normal(1.5, 0.1, 15)) == few


def test_the_interval_holds_the_median_as_often_as_it_says(compare):
    """Of 200 samples of 15 the binomial distribution puts more than 180 of the intervals right."""
    draws = np.random.default_rng(6)
    right = 0
    for _ in range(200):
        found = compare.ratio(np.ones(15), np.exp(draws.normal(0, 0.2, 15)))
        right += found.low <= 1 <= found.high
    assert right > 180


# ---- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.9, 0.8, 1.0), "ok"),
        ((1.03, 1.0, 1.1), "ok"),
        ((1.05, 1.0, 1.1), "unclear"),
        ((1.05, 1.03, 1.1), "unclear"),
        ((1.05, 1.04, 1.1), "MISSED"),
    ],
)
def test_a_goal_is_missed_if_the_whole_interval_is_above_it(compare, interval, verdict):
    assert compare.judge(compare.Ratio(*interval), 1.03) == verdict


def test_what_one_revision_does_not_have(compare):
    assert compare.Outcome(cell(compare), [], [1.0, 2.0]).verdict == "not in old"
    assert compare.Outcome(cell(compare), [1.0, 2.0], []).verdict == "MISSED"
    assert compare.Outcome(cell(compare), [1.0, 2.0], [1.0, 2.0]).as_dict()["ci95"] == [1, 1]


def test_the_table_names_what_was_missed(compare):
    outcomes = [
        compare.Outcome(cell(compare), [1.0, 1.0], [2.0, 2.0]),
        compare.Outcome(cell(compare), [], []),
    ]
    lines = compare.report("v1", "worktree", 2, outcomes).splitlines()
    assert lines[0] == "worktree against v1, 2 launches of each in turn"
    assert " ".join(lines[3].split()) == "a cell 1 us 2 us 2.000 2.000 - 2.000 1.00 MISSED"
    assert " ".join(lines[4].split()) == "a cell - - 1.00 not in old"


# ---- cells --------------------------------------------------------------------------------------


def test_cells_have_names_of_their_own_and_are_chosen_by_them(compare):
    names = [cell.name for cell in compare.choose([])]
    assert len(set(names)) == len(names)
    chosen = compare.choose(["latency/2/auto/library/8B", "overhead/numpy/*"])
    assert [cell.name for cell in chosen] == [
        "latency/2/auto/library/8B",
        *(f"overhead/numpy/{call}" for call in ("Start", "Wait", "Start+Wait")),
    ]


def test_options_of_cells_that_share_a_launch_are_given_once(compare):
    cells = [cell(compare, asks="--size 8 --policy solo"), cell(compare, asks="--size 64K")]
    cells.append(cell(compare, asks="--policy solo"))
    assert compare.asked(cells) == ["--size", "8", "--policy", "solo", "--size", "64K"]


def test_a_figure_is_found_by_the_fields_of_its_row(compare):
    rows = [
        {"of": "a", "bytes": n, "ns": {"median": figure}} for n, figure in ((8, 1.0), (64, 2.0))
    ]
    wanted = {"row": (("of", "a"), ("bytes", 64)), "value": "ns.median"}
    assert compare.find(rows, cell(compare, **wanted)) == 2
    assert compare.find(rows, cell(compare, **{**wanted, "row": (("bytes", 9),)})) is None
    assert compare.find(rows, cell(compare, **{**wanted, "value": "ns.p99"})) is None
    assert compare.find(rows, cell(compare, **{**wanted, "value": "us.p99"})) is None


# ---- revisions ----------------------------------------------------------------------------------

OLD = """
import sys
for option in ("--patience", "--grace"):
    if option in sys.argv:
        sys.exit(print("Error: No such option: " + option) or 2)
if "first-of:2" in sys.argv:
    sys.exit(print("Error: unknown policy") or 2)
print(*sys.argv[1:], file=open("ran", "w"))
sys.exit("--fail" in sys.argv)
"""


def launched(compare, revision, folder, words):
    revision.launch(1, ["-c", OLD], words, ["--json", "x"], folder, None)
    return (folder / "ran").read_text().split()


def test_options_that_a_revision_does_not_know_are_left_out(compare, tmp_path):
    revision = compare.Revision("old", tmp_path)
    words = ["bench", "skew", "--patience", "none", "--size", "8", "--grace", "0"]
    left = ["bench", "skew", "--size", "8", "--json", "x"]
    assert launched(compare, revision, tmp_path, words) == left
    assert revision.lacking == {("bench", "skew", "--patience"), ("bench", "skew", "--grace")}


def test_a_command_that_is_refused_is_not_one_that_fails(compare, tmp_path):
    revision = compare.Revision("old", tmp_path)
    with pytest.raises(compare.NotThere, match="unknown policy"):
        launched(compare, revision, tmp_path, ["bench", "skew", "--policy", "first-of:2"])
    with pytest.raises(compare.Problem, match="exit code 1"):
        launched(compare, revision, tmp_path, ["bench", "skew", "--fail"])


def test_of_a_refused_launch_other_cells_are_measured(compare):
    class Source:
        def figures(self, _revision, cells):
            if any("first-of" in cell.asks for cell in cells):
                raise compare.NotThere
            return dict.fromkeys(cells, 1.0)

    cells = [cell(compare, asks=f"--policy {policy}") for policy in ("solo", "first-of:2")]
    assert compare.figures(Source(), None, cells) == {cells[0]: 1.0}


# ---- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "REV is missing"),
        (["nowhere", "--repeats", "1"], "--repeats 1: an interval needs at least 2"),
        (["nowhere", "--repeats", "x"], "invalid int value"),
        (["nowhere", "--cells", "latency/3/*"], "--cells latency/3/*: there is no such cell"),
        (["no-such-revision"], "no-such-revision: there is no such revision"),
        (["nowhere", "-x"], "unrecognized arguments"),
        (["nowhere", "--json", "/no/such/folder/x"], "/no/such/folder/x: there is no such folder"),
    ],
)
def test_bad_arguments(arguments, message):
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
