"""Ranks that die at any moment, while the launcher lets the others go on: everybody is told.

Or is ended with the job, as by Open MPI where it loses a connection. ``ci/long faults`` kills 60 of
each kind, and measures.
"""

from __future__ import annotations

import re

import pytest
from support.deaths import (
    GO_ON,
    MOMENTS,
    MOMENTS_OF_GOSSIP,
    MOMENTS_OF_GROUPS,
    MOMENTS_OF_QUEUES,
    complaints,
    kill,
)
from support.mpirun import why_no_hosts

LIMIT_S = 180
# The launcher itself may stay when MPI has ended all ranks of some hosts.
LIMIT_HOSTS_S = 15
GROUP = 3  # ranks

pytestmark = pytest.mark.timeout(2 * LIMIT_S)


@pytest.fixture(scope="module")
def hosts():
    if reason := why_no_hosts():
        pytest.skip(reason)


def check(ranks, moments, victim, *, limit_s=LIMIT_S, **how):
    run, sights = kill(ranks, moments, victim=victim, limit_s=limit_s, **how)
    assert not complaints(sights), f"{complaints(sights)}\n{run.explain()}"
    assert not run.survivors, run.explain()
    return run, [sight.moment for sight in sights]


def check_all_told(run, seen, go_on, moments=MOMENTS):
    """Two of each group, which has one victim.

    Open MPI's own fault tolerance crashes if it hears of a death while a communicator is being
    duplicated (5.0.11, `ompi_comm_revoke_local`): a survivor may say nothing of the opening.
    """
    for moment in moments:
        allowed = (0, 1, 2) if (moment, go_on) == ("open", "ulfm") else (2,)
        assert seen.count(moment) in allowed, f"{moment}\n{run.explain()}"


@pytest.mark.parametrize(
    ("transport", "victim"),
    [
        ("auto", -1),
        ("mpi", 0),
        pytest.param("auto", 0, marks=pytest.mark.long),
        pytest.param("mpi", -1, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("go_on", GO_ON)
def test_on_one_node(go_on, transport, victim):
    """Nothing but the library tells, or also MPI: all survivors of all groups see it."""
    ranks = GROUP * len(MOMENTS)
    run, seen = check(ranks, MOMENTS, victim, transport=transport, go_on=go_on, seed=victim)
    check_all_told(run, seen, go_on)


@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize(("go_on", "victim"), [*zip(GO_ON, (0, -1), strict=True)])
def test_in_groups(go_on, transport, victim):
    """A rank that decides which groups there are, or another one, in a group or outside."""
    how = {"transport": transport, "go_on": go_on, "seed": victim}
    run, seen = check(GROUP * len(MOMENTS_OF_GROUPS), MOMENTS_OF_GROUPS, victim, **how)
    check_all_told(run, seen, go_on, MOMENTS_OF_GROUPS)


@pytest.mark.parametrize(
    ("transport", "go_on", "victim"),
    [("auto", "continuous", 0), ("auto", "ulfm", -1), ("mpi", "continuous", 1)],
)
def test_in_gossip(transport, go_on, victim):
    """In an average of small or large models, and while it has its model for itself."""
    how = {"transport": transport, "go_on": go_on, "seed": victim}
    run, seen = check(GROUP * len(MOMENTS_OF_GOSSIP), MOMENTS_OF_GOSSIP, victim, **how)
    check_all_told(run, seen, go_on, MOMENTS_OF_GOSSIP)


@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize(("go_on", "victim"), [*zip(GO_ON, (0, -1), strict=True)])
def test_in_queues(go_on, transport, victim):
    """While it averages, copies or waits; small or large models."""
    how = {"transport": transport, "go_on": go_on, "seed": victim}
    run, seen = check(GROUP * len(MOMENTS_OF_QUEUES), MOMENTS_OF_QUEUES, victim, **how)
    check_all_told(run, seen, go_on, MOMENTS_OF_QUEUES)


@pytest.mark.parametrize(
    ("transport", "victim"),
    [
        ("auto", 0),
        ("mpi", 1),
        pytest.param("auto", 1, marks=pytest.mark.long),
        pytest.param("mpi", 0, marks=pytest.mark.long),
    ],
)
def test_one_that_is_alone_on_its_node_is_told(transport, victim):
    """By the one that shares a node with the dead: nobody else may look, and MPI says nothing."""
    ranks, how = GROUP * len(MOMENTS), {"transport": transport, "go_on": "continuous"}
    run, seen = check(ranks, MOMENTS, victim, seed=victim, node_ranks=GROUP - 1, **how)
    check_all_told(run, seen, "continuous")


@pytest.mark.parametrize("victim", [0, pytest.param(-1, marks=pytest.mark.long)])
@pytest.mark.parametrize("moment", [*MOMENTS, "groups"])
def test_on_hosts(hosts, moment, victim):
    """Also of a rank that is alone on its host, and to such a rank."""
    how = {"transport": "auto", "go_on": "continuous", "seed": victim}
    for limit_s in (LIMIT_HOSTS_S, LIMIT_S):  # on a busy machine the start alone may take the first
        run, _ = check((1, GROUP), [moment], victim, limit_s=limit_s, **how)
        ready = set(re.findall(r"rank (\d+) is ready", run.output))
        if len(ready) == 1 + GROUP:
            return
    pytest.fail(f"only ranks {sorted(ready)} were ready\n{run.explain()}")


@pytest.mark.parametrize("victim", [0, -1])
def test_on_hosts_with_fault_tolerance(hosts, victim):
    ranks = (len(MOMENTS), (GROUP - 1) * len(MOMENTS))
    run, seen = check(ranks, MOMENTS, victim, transport="auto", go_on="ulfm", seed=victim)
    check_all_told(run, seen, "ulfm")
