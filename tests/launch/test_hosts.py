"""Ranks on several hosts, which `tests/support/hosts` makes out of this machine."""

from __future__ import annotations

import functools
import re
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from support.mpirun import (
    HOSTS,
    end_survivors,
    make_environment,
    marked,
    mpirun,
    python,
    scratch,
    why_no_hosts,
)

TESTS = Path(__file__).resolve().parent.parent
LIMIT_S = 100  # of one mpirun; the ranks' own is shorter, and prints where each of them is
RANKS_LIMIT_S = LIMIT_S - 10
START_S, GONE_S = 30, 10  # for ranks to start, and for those of a killed run to end

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2 * LIMIT_S + 60)]


@pytest.fixture(scope="module", autouse=True)
def hosts():
    if reason := why_no_hosts():
        pytest.skip(reason)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((2, 2), id="2x2"),
        pytest.param((2, 2, 2), id="3x2", marks=pytest.mark.long),
    ],
)
def test_rounds(ranks):
    """Every policy and delivery, judged by the oracles; payloads of 32 KB and more than 1 MiB."""
    policies = ("solo", "majority", "first:2", "quorum:2", "full")
    arguments = [f"--policy={policy}" for policy in policies]
    arguments += ["--size=32768", "--size=1200000", "--rounds=40", f"--limit={RANKS_LIMIT_S}"]
    program = python("-m", "mpi4py", str(TESTS / "stress" / "rounds.py"), *arguments)
    mpirun(ranks, program, timeout_s=LIMIT_S).check_counts()


def synchronous(ranks, *options):
    script = str(TESTS / "launch" / "scripts" / "full.py")
    program = python("-m", "mpi4py", script, str(RANKS_LIMIT_S))
    # Not another transport than the program asks for.
    env = {"PYPARTIAL_TRANSPORT": ""}
    run = mpirun(ranks, program, timeout_s=LIMIT_S, env=env, options=options)
    run.check()
    return run


@functools.cache
def on_one_host(ranks):
    return synchronous(ranks)


def places(run, ranks):
    """Return where each rank was, and how many ranks it could wake."""
    found = [re.fullmatch(r"on (\S+) with (\d+) neighbours", run.lines(r)[0]) for r in range(ranks)]
    assert all(found), run.explain()
    return [(place[1], int(place[2])) for place in found]


def digests(run):
    found = [line for line in run.lines(0) if line.startswith("full ")]
    assert found, run.explain()
    return found


@pytest.mark.parametrize(
    ("ranks", "options", "hosts_of_ranks"),
    [
        pytest.param((2, 2), [], [1, 1, 2, 2], marks=pytest.mark.long),
        ((1, 3), [], [1, 2, 2, 2]),
        ((2, 2, 2), [], [1, 1, 2, 2, 3, 3]),
        ((2, 2, 2), ["--map-by", "node"], [1, 2, 3, 1, 2, 3]),
    ],
    ids=["2x2", "1+3", "3x2", "3x2-in-turn"],
)
def test_synchronous_rounds_are_those_of_one_host(ranks, options, hosts_of_ranks):
    """Bit for bit; and the ranks were where they should be, with the neighbours of one host."""
    size = sum(ranks)
    apart, together = synchronous(ranks, *options), on_one_host(size)
    expected = [(f"host{host}", hosts_of_ranks.count(host)) for host in hosts_of_ranks]
    assert places(apart, size) == expected, apart.explain()
    assert [number for _, number in places(together, size)] == [size] * size, together.explain()
    assert digests(apart) == digests(together)


def test_nothing_is_left_of_a_killed_run():
    """The harness itself: all namespaces of a run end with their processes."""
    mark, sleep = uuid.uuid4().hex, ["sleep", "1000"]
    with scratch() as (folder, segments):
        process = subprocess.Popen(
            [str(HOSTS), "run", "--hosts", "2", "--", *sleep],
            env=make_environment({}, mark, folder, segments),
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_S
        ranks = 0
        while ranks < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            ranks = [command.split() for command in marked(mark).values()].count(sleep)
        process.kill()
        process.wait()
        survivors = end_survivors(mark, patience_s=GONE_S)
    assert ranks == 2, "the ranks did not start"
    assert not survivors
