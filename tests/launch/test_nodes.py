"""Several nodes on one machine: how jobs end, and what may be done at once. Judged from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mpirun import mpirun, python

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LIMIT_S = 120
QUICK_S = 60  # far below the limit, generous for a busy machine
GO_ON = ["--runtime-options", "recoverable,continuous"]  # the launcher does not end the job
GAVE_UP = "gave the context up: an exception left its with block (KeyboardInterrupt)"

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def launch(ranks, nodes_of, script, *arguments, options=()):
    """Run a script; `nodes_of` ranks a node, 0 for one node."""
    command = python(str(SCRIPTS / f"{script}.py"), *arguments)
    env = {"PYPARTIAL_NODE_RANKS": str(nodes_of or "")}
    return mpirun(ranks, command, timeout_s=LIMIT_S, env=env, options=options)


@pytest.mark.parametrize("policy", ["full", "quorum"])
def test_a_rank_that_died_is_named_on_all_nodes(policy):
    """By who shares a node with it, to all."""
    run = launch(4, 2, "died", "auto", policy, options=GO_ON)
    assert run.seconds < QUICK_S, run.explain()
    for rank in range(3):
        assert f"rank {rank} sees: rank 3: its process has died" in run.lines(rank), run.explain()


def test_a_rank_that_died_in_a_round_is_named_on_all_nodes():
    """It leads every other round of its node, and may hold a claim, or be in the middle of one."""
    run = launch(4, 2, "died_in_round", "50", options=GO_ON)
    assert run.seconds < QUICK_S, run.explain()
    for rank in range(3):
        assert f"rank {rank} sees: rank 3: its process has died" in run.lines(rank), run.explain()


@pytest.mark.parametrize("victim", [1, 4])
def test_a_killed_rank_ends_the_job(victim):
    """Also one that is alone on its node, which no other could miss."""
    run = launch(5, 2, "killed", str(victim))
    assert run.returncode not in (0, None), run.explain()
    assert run.seconds < QUICK_S, run.explain()
    run.check_clean()


@pytest.mark.parametrize(("ranks", "nodes_of", "culprit"), [(3, 0, 1), (4, 2, 0), (5, 2, 1)])
def test_ctrl_c_in_a_wait(ranks, nodes_of, culprit):
    run = launch(ranks, nodes_of, "ctrl_c", str(culprit))
    run.check()
    for rank in range(ranks):
        seen = f"PeerFailedError: rank {culprit} {GAVE_UP}"
        if rank == culprit:
            seen = "KeyboardInterrupt"
        assert f"rank {rank} sees {seen}" in run.lines(rank), run.explain()


@pytest.mark.parametrize("policy", ["solo", "full"])
def test_an_exception_on_one_rank(policy):
    """The one that is alone on its node."""
    run = launch(5, 2, "raises", "with", "4", policy)
    assert run.returncode not in (0, None), run.explain()
    assert run.seconds < QUICK_S, run.explain()
    assert "RuntimeError: rank 4 gives up" in "\n".join(run.lines(4)), run.explain()
    for rank in range(4):
        text = "\n".join(run.lines(rank))
        assert not text or "PeerFailedError" in text, run.explain()
    run.check_clean()


@pytest.mark.parametrize("state", ["outstanding", "pending", "unequal"])
def test_no_rank_frees(state):
    launch(5, 2, "no_free", "all", state, "thread").check_all_ended(5)


@pytest.mark.parametrize("what", ["request", "context"])
def test_an_interrupted_free(what):
    launch(5, 2, "interrupted", what).check_all_ended(5)


@pytest.mark.parametrize("level", ["single", "serialized"])
def test_too_low_a_thread_level(level):
    launch(4, 2, "levels", level).check_all_ended(4)


@pytest.mark.parametrize(("ranks", "nodes_of"), [(2, 0), (4, 2)])
def test_several_threads_at_once(ranks, nodes_of):
    launch(ranks, nodes_of, "threads").check_all_ended(ranks)


@pytest.mark.parametrize("nodes_of", [0, 2])
def test_contexts_on_overlapping_communicators(nodes_of):
    """Whose nodes have unequal numbers of ranks."""
    launch(5, nodes_of, "overlapping").check_all_ended(5)


def test_a_forked_child_makes_a_context():
    launch(4, 2, "forked", "after").check_all_ended(4)
