"""How jobs end: with an exception, without Free, killed. Judged from outside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.mpirun import mpirun, python

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LIMIT_S = 120
QUICK_S = 60  # the end of a job that one rank ends: generous for a busy machine

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def launch(ranks, script, *arguments, module=None):
    via = ["-m", module] if module else []
    return mpirun(ranks, python(*via, str(SCRIPTS / f"{script}.py"), *arguments), timeout_s=LIMIT_S)


@pytest.mark.parametrize(
    ("where", "culprit", "policy"),
    [
        ("outside", 0, "solo"),
        ("outside", 2, "full"),
        ("with", 1, "full"),
        ("with", 0, "solo"),
        ("request", 1, "full"),
        ("both", 0, "solo"),
        ("swallowed", 1, "full"),
    ],
)
def test_exception_in_one_rank(where, culprit, policy):
    """Under ``python -m mpi4py`` the job ends quickly, with one traceback, of the first error."""
    run = launch(3, "raises", where, str(culprit), policy, module="mpi4py")
    assert run.returncode not in (0, None), run.explain()
    assert run.seconds < QUICK_S, run.explain()
    text = "\n".join(run.lines(culprit))
    assert text.count("Traceback (most recent call last)") == 1, run.explain()
    assert f"RuntimeError: rank {culprit} gives up" in text, run.explain()
    run.check_clean()


@pytest.mark.parametrize(
    ("where", "policy"),
    [
        ("with", "solo"),
        ("with", "full"),
        ("request", "solo"),
        ("request", "full"),
        ("both", "full"),
        ("swallowed", "full"),
    ],
)
def test_exception_in_a_with_block_under_plain_python(where, policy):
    """Without ``-m mpi4py`` the peers are told by the rank that leaves its block."""
    run = launch(3, "raises", where, "1", policy)
    assert run.returncode not in (0, None), run.explain()
    assert run.seconds < QUICK_S, run.explain()
    text = "\n".join(run.lines(1))
    assert text.count("Traceback (most recent call last)") == 1, run.explain()
    assert "RuntimeError: rank 1 gives up" in text, run.explain()
    for rank in (0, 2):
        text = "\n".join(run.lines(rank))
        assert not text or "PeerFailedError" in text, run.explain()
    run.check_clean()


# In shared memory, by messages, and on nodes of two ranks.
WAYS = {
    "memory": {},
    "messages": {"PYPARTIAL_TRANSPORT": "mpi"},
    "nodes": {"PYPARTIAL_NODE_RANKS": "2"},
}


def launch_way(way, ranks, script, *arguments):
    command = python("-m", "mpi4py", str(SCRIPTS / f"{script}.py"), *arguments)
    return mpirun(ranks, command, timeout_s=LIMIT_S, env=WAYS[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("majority", 2), ("majority", 5), ("solo", 3), ("quorum:2", 3), ("full", 5), ("groups", 3)],
)
def test_trials_that_ranks_leave_at_their_own_steps(kind, ranks, way):
    """Each is told by who left first; the next context begins at once, and sees no old message."""
    launch_way(way, ranks, "trials", kind, "all", "5").check_all_ended(ranks)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "leavers"),
    [
        *(("full", "one"), ("full", "flush"), ("full", "collect")),
        *(("static", "one"), ("static", "collect"), ("table", "flush")),
    ],
)
def test_what_is_complete_where_a_rank_leaves_is_complete_elsewhere(kind, leavers, way):
    """Vectors of 1.2 MB, which MPI moves only while somebody polls."""
    launch_way(way, 3, "trials", kind, leavers, "150000").check_all_ended(3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "call",
    [
        *("wait", "test", "start", "flush", "drain", "free", "init", "context", "away"),
        *("groups", "groups-flush"),
    ],
)
def test_calls_of_a_context_that_another_rank_gives_up(call, way):
    """Long before anything else would end them."""
    run = launch_way(way, 3, "told", call, "raise")
    check_told(run, 3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["wait", "groups"])
def test_a_rank_gives_up_in_the_middle_of_its_wait(call, way):
    check_told(launch_way(way, 4, "told", call, "mid"), 4)


def check_told(run, ranks):
    run.check_all_ended(ranks)
    (seconds,) = {line.split()[-1] for line in run.lines(0) if line.startswith("told after")}
    assert float(seconds) < QUICK_S, run.explain()


@pytest.mark.parametrize("what", ["sum", "sync", "groups"])
def test_a_worker_gives_up_before_models_are_averaged(what):
    """The others, who wait to average with it, are told."""
    run = launch(3, "method_raises", what)
    run.check()
    for rank in (0, 1):
        seen = run.lines(rank)[-1]
        assert seen.startswith(f"rank {rank} sees rank 2 gave the context up"), run.explain()
    assert not run.lines(2), run.explain()


@pytest.mark.parametrize(
    ("method", "call"),
    [("groups", "finish"), ("sum", "flush"), ("synchronous", "finish"), ("sync", "step")],
)
def test_ranks_that_meet_without_one_whose_script_has_ended(method, call):
    """They are told which one it is. Nobody waits for it inside MPI."""
    run = launch(3, "early_end", method, call)
    for rank in (1, 2):
        seen = f"rank {rank} sees the ranks cannot meet: the script of rank 0 has ended"
        assert run.lines(rank)[-1].startswith(seen), run.explain()
    run.check_clean()


@pytest.mark.parametrize("state", ["context", "quiet", "outstanding", "pending", "unequal"])
@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_no_rank_frees(state, progress):
    if progress == "caller" and state in ("pending", "unequal"):
        pytest.skip("the barrier in it, or the late rank, needs a thread that serves the others")
    launch(3, "no_free", "all", state, progress).check_all_ended(3)


@pytest.mark.parametrize("state", ["context", "quiet", "outstanding", "pending", "unequal"])
def test_some_ranks_free(state):
    """Ranks that have ended serve the others until these free the context, which cannot succeed."""
    run = launch(4, "no_free", "some", state, "thread")
    assert run.returncode is not None, run.explain()
    assert run.seconds < QUICK_S, run.explain()
    for rank in (1, 3):
        assert f"end of rank {rank}" in run.lines(rank), run.explain()
    for rank in (0, 2):
        text = "\n".join(run.lines(rank))
        assert re.search(r"PeerFailedError: .*without freeing the context", text), run.explain()
        # The line that raised. The first that learns it, in ctx.Free(), tells the other at once.
        assert re.search(r"(ctx|other)\.Free\(\)", text), run.explain()
    assert "Segmentation" not in run.output, run.explain()
    run.check_clean()


@pytest.mark.parametrize("what", ["request", "context"])
def test_an_interrupted_free(what):
    """The handle or context is gone on the rank that was interrupted, and nobody waits for ever."""
    launch(3, "interrupted", what).check_all_ended(3)


@pytest.mark.parametrize("level", ["single", "funneled", "serialized"])
def test_too_low_a_thread_level(level):
    launch(2, "levels", level).check_all_ended(2)


def test_mpi_not_initialised_or_finalised():
    launch(2, "not_initialised").check_all_ended(2)


def test_use_after_mpi_finalize():
    launch(2, "finalised").check_all_ended(2)


@pytest.mark.parametrize("call", ["wait", "flush"])
@pytest.mark.parametrize("end", ["script", "finalize"])
def test_mpi_ends_while_a_thread_is_inside_a_call(call, end):
    """The call must not go on with memory that the end has released."""
    run = launch(2, "left_inside", call, end)
    run.check_all_ended(2)
    assert run.returncode == 0, run.explain()
    assert ("was told" in run.output) == (end == "finalize"), run.explain()


@pytest.mark.parametrize("call", ["alloc", "stats"])
def test_a_context_is_freed_while_threads_begin_calls(call):
    """What they look at must not be memory that was given back, whose bytes are changed here."""
    command = python(str(SCRIPTS / "freed_inside.py"), call, "4")
    run = mpirun(1, command, timeout_s=LIMIT_S, env={"MALLOC_PERTURB_": "165"})
    run.check_all_ended(1)


def test_a_killed_rank_ends_the_job():
    run = launch(3, "killed", "1")
    assert run.returncode not in (0, None), run.explain()
    assert run.seconds < QUICK_S, run.explain()
    run.check_clean()


@pytest.mark.parametrize("policy", ["full", "quorum"])
def test_a_rank_that_died_is_named(policy):
    """The job goes on: who waits for the dead in shared memory is told.

    Without MPI's own fault tolerance, which may be quicker to tell. The launcher's exit code says
    nothing then, and files of MPI's own may stay behind.
    """
    script = python(str(SCRIPTS / "died.py"), "auto", policy)
    go_on = ["--runtime-options", "recoverable,continuous"]
    run = mpirun(3, script, timeout_s=LIMIT_S, options=go_on)
    assert run.seconds < QUICK_S, run.explain()
    for rank in (0, 1):
        assert f"rank {rank} sees: rank 2: its process has died" in run.lines(rank), run.explain()


@pytest.mark.parametrize("progress", ["thread", "caller"])
def test_a_rank_that_died_is_named_to_who_only_tests(progress):
    script = python(str(SCRIPTS / "died.py"), "auto", "full", progress)
    go_on = ["--runtime-options", "recoverable,continuous"]
    run = mpirun(3, script, timeout_s=LIMIT_S, options=go_on)
    assert run.seconds < QUICK_S, run.explain()
    for rank in (0, 1):
        assert f"rank {rank} sees: rank 2: its process has died" in run.lines(rank), run.explain()


def test_a_rank_that_died_in_a_round_is_noticed():
    """Without fault tolerance, by who waits for a round that nobody finishes; nobody hangs."""
    script = python(str(SCRIPTS / "died_in_round.py"), "3")
    go_on = ["--runtime-options", "recoverable,continuous"]
    for _ in range(6):
        run = mpirun(2, script, timeout_s=LIMIT_S, options=go_on)
        assert run.seconds < QUICK_S, run.explain()
        if "rank 0 sees: rank 1: its process has died" in run.lines(0):
            return
        assert "rank 0 goes on" in run.lines(0), run.explain()
    pytest.fail("the rank never died in a round")


def test_a_hanging_rank_is_seen():
    """The harness itself: a job that hangs is ended, and nothing of it remains."""
    run = mpirun(2, python("-c", "import time; time.sleep(1000)"), timeout_s=2)
    assert run.returncode != 0
    assert run.seconds < QUICK_S
    run.check_clean()


KEPT = """
import os, re, time
import numpy as np
from mpi4py import MPI
import pypartial as pp
comm = MPI.COMM_WORLD
other = comm.bcast(os.getpid(), 1)
ctx = pp.Context(comm, transport=os.environ["TRANSPORT"])
out = np.zeros(1 << 17)  # 1 MB
request = ctx.Allreduce_init(np.ones_like(out), out, policy=pp.Solo(), deliver="each")
def kept_mb():
    with open(f"/proc/{other}/status") as status:
        return int(re.search("RssAnon:\\\\s+(\\\\d+)", status.read())[1]) / 1024
for step in range(150 if comm.rank == 0 else 0):
    request.Start()
    request.Wait()
    time.sleep(0.005)  # about as long as the other rank needs to see a round
    if step == 50:
        before = kept_mb()
if comm.rank == 0:
    print("grown by MB:", int(kept_mb() - before), flush=True)
"""


@pytest.mark.parametrize("transport", ["auto", "mpi"], ids=["memory", "messages"])
def test_a_rank_that_has_ended_keeps_no_results(transport):
    """Nobody takes those of the rounds that it serves: a hundred of 1 MB."""
    run = mpirun(2, python("-c", KEPT), timeout_s=60, env={"TRANSPORT": transport})
    run.check()
    (grown,) = [line for line in run.lines(0) if line.startswith("grown by MB: ")]
    assert int(grown.rpartition(" ")[2]) < 40, run.explain()


# Rank 0 starts, and comes no more; its arrays are given back before the other one starts.
DROPPED = """
import gc, sys
import numpy as np
from mpi4py import MPI
import pypartial as pp

comm, (kind, how) = MPI.COMM_WORLD, sys.argv[1:]
gone = comm.Dup()

def main():
    ctx = pp.Context(comm, stall_warning=None, patience=None)
    make = ctx.alloc if kind == "alloc" else np.zeros
    send, out = make(100_000, "i8"), make(100_000, "i8")
    send[:] = 10**comm.rank
    request = ctx.Allreduce_init(send, out, policy=pp.Full())
    if comm.rank == 0:
        request.Start()
        if how == "free":
            try:
                request.Free(timeout=0.3)
            except pp.TimeoutError:
                pass
            del send, out
            gc.collect()
            others = [ctx.alloc(100_000, "i8") for _ in range(2)]
            for other in others:
                other[:] = 555
            gone.Barrier()
            missing = request.Free()
            comm.bcast(missing)
            assert all((other == 555).all() for other in others)
            ctx.Free()
        return
    gone.Barrier()
    request.Start()
    request.Wait()
    if how == "free":
        result = set(out.tolist())
        request.Free()
        missing = comm.bcast(None)
        ctx.Free()
    else:
        result, missing = set(out.tolist()), 0
    assert result == {(10**comm.size - 1) // 9 - missing}, result
    print(f"end of rank {comm.rank}", flush=True)

main()
if comm.rank == 0 and how != "free":
    gc.collect()
    gone.Barrier()
"""


@pytest.mark.parametrize("kind", ["alloc", "numpy"])
@pytest.mark.parametrize(
    ("how", "ranks", "nodes"),
    [("script", 2, 0), ("free", 3, 0), ("free", 4, 2)],
    ids=["script", "free", "free-nodes"],
)
def test_a_contribution_counts_when_its_arrays_are_gone(kind, how, ranks, nodes):
    """Also if rounds read it where it lay: those of a script that ends, or of a Free in vain."""
    env = {"PYPARTIAL_NODE_RANKS": str(nodes or "")}
    command = python("-c", DROPPED, kind, how)
    run = mpirun(ranks, command, timeout_s=LIMIT_S, env=env)
    run.check()
    for rank in range(1, ranks):
        assert f"end of rank {rank}" in run.lines(rank), run.explain()
