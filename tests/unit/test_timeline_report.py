"""``pypartial trace report``: counts and cycles from the events of a trace, printed and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.timelines import Clock, Made, rounds

from pypartial.cli import TraceOptions, app
from pypartial.cli.trace import _run
from pypartial.timeline import files
from pypartial.timeline.files import Trace


def measured(
    made: Made, folder: Path, rank: int = 0
) -> tuple[dict[str, Any], list[dict[str, int]]]:
    from pypartial.timeline.cycles import measure

    made.save(folder)
    counts, samples = measure(Trace(folder / f"rank-{rank:05}.pptrace"))
    return counts, [dict(zip(samples.dtype.names, one, strict=True)) for one in samples.tolist()]


def request(
    made: Made, rank: int, start: int, wait: int, given: int, computed: int = 0, **fields: int
) -> None:
    """Add a request; `computed`: in the cycle that its Start ends."""
    handle = fields["handle"]
    made.add(rank, files.START, start, handle=handle, key=computed)
    made.add(rank, files.WAIT, wait, handle=handle)
    made.add(rank, files.GIVEN, given, **fields)


def test_a_cycle_is_from_a_start_to_the_next_one(tmp_path: Path) -> None:
    made = Made(1)
    request(made, 0, 1000, 5000, 7000, handle=1, key=4, flags=1)
    request(made, 0, 9000, 9500, 9600, handle=1, key=5, computed=5500)
    counts, samples = measured(made, tmp_path / "t")
    assert samples == [
        {
            "key": 4,
            "start_ns": 1000,
            "given_ns": 7000,
            "waited_ns": 2000,
            "computed_ns": 5500,
            "handle": 1,
            "late": 1,
        }
    ]
    assert (counts["calls"], counts["given"], counts["late"]) == (2, 2, 1)


def test_only_complete_cycles_count(tmp_path: Path) -> None:
    """A ring may begin with any event, and a request may have no result, or another thread."""
    made = Made(1)
    made.add(0, files.GIVEN, 200, handle=1, key=1)
    made.add(0, files.START, 300, handle=1)
    made.add(0, files.START, 400, handle=1)
    request(made, 0, 500, 510, 600, handle=1, key=3)
    request(made, 0, 900, 910, 990, handle=1, key=4, computed=310)
    made.add(0, files.START, 1900, handle=1)
    counts, samples = measured(made, tmp_path / "t")
    assert [(one["key"], one["start_ns"], one["computed_ns"]) for one in samples] == [(3, 500, 310)]
    assert (counts["calls"], counts["given"]) == (5, 3)


def test_the_first_result_of_a_request_ends_its_cycle(tmp_path: Path) -> None:
    """More gives further ones."""
    made = Made(1)
    request(made, 0, 1000, 1100, 1200, handle=1, key=4, number=4)
    made.add(0, files.GIVEN, 1300, handle=1, key=5, number=5)
    made.add(0, files.START, 2000, handle=1, key=900)
    _, samples = measured(made, tmp_path / "t")
    assert [(one["key"], one["given_ns"]) for one in samples] == [(4, 1200)]


def test_the_counts(tmp_path: Path) -> None:
    made = Made(1)
    fields = {"handle": 1, "a": 3, "b": 5}
    request(made, 0, 1000, 1100, 1200, **fields, number=4, key=4, c=2, cause=1, flags=2)
    request(made, 0, 2000, 2100, 2200, **fields, number=5, key=5, c=0, cause=1)
    request(made, 0, 3000, 3100, 3200, **fields, number=9, key=9, c=7, cause=4, flags=3 + 4 * 4)
    request(made, 0, 4000, 4100, 4200, handle=2, number=30, key=40)  # a group has no cause
    counts, _ = measured(made, tmp_path / "t")
    assert counts == {
        "calls": 4,
        "given": 4,
        "late": 1,
        "external": 2,
        "contributions": 15,
        "active": 9,
        "missed": 4,
        "staleness": 9,
        "most_stale": 7,
        "causes": [2, 0, 0, 1],
    }


def test_times_are_those_of_rank_0s_clock(tmp_path: Path) -> None:
    clocks = [Clock(), Clock(10**9, 100)]
    _, true = measured(rounds(2, 20), tmp_path / "true", 1)
    _, samples = measured(rounds(2, 20, clocks), tmp_path / "t", 1)
    assert len(samples) == 19
    for one, other in zip(samples, true, strict=True):
        for name in ("start_ns", "given_ns", "waited_ns", "computed_ns"):
            assert abs(one[name] - other[name]) <= 2


# ---- the command ---------------------------------------------------------------------------------


def run(*words: object) -> int:
    job = app.parse([str(word) for word in words], 1)
    return _run(job) if isinstance(job, TraceOptions) else int(job)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rounds(4, 50).save(tmp_path / "t")


def test_the_report_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "report", folder) == 0
    said = capsys.readouterr()
    assert said.out.strip() and said.err == ""
    assert run("trace", "report", folder, "--json") == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_one_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "report", folder, "--rank", 2, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rank"], said["calls"], said["given"]) == (2, 50, 50)
    assert said["causes"] == {"policy": 50, "departed": 0, "deadline": 0, "flush": 0}
    assert set(said["waited_for_s"]) <= {"0", "1", "3"}
    assert all(seconds > 0 for seconds in said["waited_for_s"].values())
    for other in (0, 1, 3):
        assert run("trace", "report", folder, "--rank", other, "--json") == 0
        theirs = json.loads(capsys.readouterr().out)
        assert theirs["waited_for_s"].get("2") == said["waited_by_s"].get(str(other))
        assert theirs["waited_by_s"].get("2") == said["waited_for_s"].get(str(other))
    assert run("trace", "report", folder, "--rank", 2) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["rank"], lines["calls"], lines["causes"]) == ("2", "50", "policy: 50")
    assert "waited_by_s" in lines


def test_a_rank_without_a_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "report", folder, "--rank", 4) == 1
    assert "pypartial trace: --rank 4: there is no trace of it" in capsys.readouterr().err


def test_a_missing_rank_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rank-00001.pptrace").unlink()
    assert run("trace", "report", folder) == 0
    assert "of 4 ranks, these have no trace: 1" in capsys.readouterr().err


def test_the_plot(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = folder.parent / "plot.png"
    assert run("trace", "report", folder, "--plot", plot) == 0
    assert f"Plot: {plot}" in capsys.readouterr().out
    assert plot.stat().st_size > 10_000


def test_a_plot_of_no_cycles(tmp_path: Path) -> None:
    made = Made(1)
    made.add(0, files.AWAKE, 1000)
    assert run("trace", "report", made.save(tmp_path / "t"), "--plot", tmp_path / "a.svg") == 0
    assert (tmp_path / "a.svg").exists()


def test_usage_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", "report", folder, "--plot", "a.txt") == 2
    assert "must end in .png" in capsys.readouterr().err
    assert run("trace", "report", folder, "--rank", "-1") == 2
