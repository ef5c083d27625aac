"""Short forms of the stress commands; the long ones are in tests/stress/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mpirun import mpirun, program, python, why_no_hosts

STRESS = Path(__file__).resolve().parent.parent / "stress"
LIMIT_S = 150

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def check(ranks, script, *arguments, transport="auto", node_ranks=0):
    run = mpirun(
        ranks,
        python(str(STRESS / script), *arguments),
        timeout_s=LIMIT_S,
        env={"PYPARTIAL_TRANSPORT": transport, "PYPARTIAL_NODE_RANKS": str(node_ranks or "")},
    )
    run.check_counts()


@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (3, ["--rounds", "240"]),  # too few for shares of partial rounds to be required
        # Several initiators are rare on few cores.
        (7, ["--at-once", "0.7", "--policy", "solo"]),
        pytest.param(7, ["--at-once", "0.7"], marks=pytest.mark.long),
    ],
)
def test_rounds(ranks, arguments, transport):
    check(ranks, "rounds.py", "--short", *arguments, transport=transport)


@pytest.mark.parametrize(
    ("ranks", "transport", "node_ranks"),
    [
        (7, "auto", 0),
        pytest.param(5, "mpi", 0, marks=pytest.mark.long),
        pytest.param((2, 2), "auto", 0, marks=pytest.mark.long),
    ],
)
def test_preduce(ranks, transport, node_ranks):
    """300 groups of each generator, and fewer of other weights and vectors."""
    if not isinstance(ranks, int) and (reason := why_no_hosts()):
        pytest.skip(reason)
    check(ranks, "preduce.py", "--short", transport=transport, node_ranks=node_ranks)


@pytest.mark.parametrize(
    ("ranks", "transport"),
    [(3, "auto"), (3, "mpi"), pytest.param((2, 2), "auto", marks=pytest.mark.long)],
)
def test_gossip(ranks, transport):
    """100 averages of each mode."""
    if not isinstance(ranks, int) and (reason := why_no_hosts()):
        pytest.skip(reason)
    check(ranks, "gossip.py", "--short", transport=transport)


@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_queues(transport):
    """100 iterations of each mode of Hop."""
    check(3, "queues.py", "--short", transport=transport)


# An id that is "mpi" would make pytest-mpi skip the test.
@pytest.mark.long
@pytest.mark.parametrize(
    ("transport", "parts"), [("auto", ()), ("mpi", ("slow", "buckets"))], ids=["shared", "messages"]
)
def test_replicas(transport, parts):
    options = [word for part in parts for word in ("--part", part)]
    check(4, "replicas.py", "--short", *options, transport=transport)


def test_large_in_small():
    """Chunks of 100,000 bytes instead of 1 GiB."""
    check(2, "large.py", "--elements", str((1 << 21) + 5), "--chunk", "100000")


@pytest.mark.long
@pytest.mark.parametrize("where", ["sim", "mpi"], ids=["simulated", "real"])
def test_groups(where):
    """Instances on any ranks: 10^4 simulated groups, 300 real ones on 3, 5 and 9 ranks."""
    ran = program(python(str(STRESS / "groups"), "--short", "--only", where), timeout_s=LIMIT_S)
    ran.check_counts(least=3)
