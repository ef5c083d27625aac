"""Short forms of the stress commands; the long ones are in the heads of tests/stress/*.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mpirun import mpirun, python

STRESS = Path(__file__).resolve().parent.parent / "stress"
LIMIT_S = 150

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def check(ranks, script, *arguments):
    """The command ends well and says so in its last line, and it tried something."""
    run = mpirun(ranks, python(str(STRESS / script), *arguments), timeout_s=LIMIT_S)
    run.check()
    *report, last = run.lines(0)
    passed, _, failed, _ = last.replace(",", "").split()
    assert int(passed) > 0 == int(failed), run.explain()
    return report


@pytest.mark.parametrize(
    "arguments",
    [
        "--rounds 1000",
        "--rounds 200 --elements 60000 --deliver sum --algorithm ring",
        "--rounds 200 --elements 60000 --deliver each --algorithm rabenseifner",
        "--rounds 300 --window 1 --deliver latest",
        "--rounds 300 --max-lag 1 --delay-us 0",
    ],
)
def test_rounds(arguments):
    ranks = 7 if arguments == "--rounds 1000" else 3
    report = check(ranks, "stress.py", *arguments.split())
    assert all("rounds, partial" in line for line in report)


@pytest.mark.parametrize("part", ["slow", "buckets"])
def test_replicas(part):
    check(4, "replicas.py", "--part", part, "--steps", "150")


def test_huge_in_small():
    check(2, "huge.py", "--elements", str((1 << 21) + 5))
