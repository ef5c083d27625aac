"""Ranks of one node that cannot share memory use messages, and one of them says so, once."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from support.mpirun import mpirun, python

SCRIPT = str(Path(__file__).parent / "scripts" / "fallback.py")
ADDRESS_SPACE = str(Path(__file__).parent / "scripts" / "address_space.py")
RANKS, LIMIT_S = 3, 60
WARNING = "RuntimeWarning in fallback.py: "
PIDS = "unshare --pid --fork --kill-child"

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def need(container):
    """Skip the test where such namespaces cannot be made."""
    command = [*container.split(), "true"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no namespaces here: {tried.stderr.strip()}")


def printed(run, ranks=RANKS):
    """Return what each rank printed."""
    run.check()
    return [run.lines(rank) for rank in range(ranks)]


def check_told_once(run, what):
    """Fail unless rank 0 alone was told, and the results were right."""
    first, *others = printed(run)
    assert [WARNING in line for line in first].count(True) == 1, run.explain()
    assert what in first[-1]
    assert "transport='mpi'" in first[-1]
    assert not any(WARNING in line for lines in others for line in lines), run.explain()


def assert_messages(line):
    """Both large handles have an algorithm of messages, whichever is chosen."""
    name, first, second = line.split()
    assert name == "large:"
    assert first == second != "shared_memory"


def test_nothing_is_said_where_memory_is_shared():
    for lines in printed(mpirun(RANKS, python(SCRIPT, "nothing"), timeout_s=LIMIT_S)):
        assert lines == ["small: shared_memory", "large: shared_memory shared_memory"]


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("files", "File too large"), ("most-files", "Cannot allocate memory")],
)
def test_no_memory_to_share(limit, reason):
    run = mpirun(RANKS, python(SCRIPT, limit), timeout_s=LIMIT_S)
    for lines in printed(run):
        assert lines[0] == "small: recursive_doubling"
        assert_messages(lines[1])
    check_told_once(run, f"rank 0 cannot make memory for the 3 ranks of its node: {reason}.")


@pytest.mark.parametrize("limit", ["large-files", "address-space"])
def test_too_little_memory_for_a_handle(limit):
    """The others of the context have room; two handles that have none are one warning."""
    run = mpirun(RANKS, python(SCRIPT, limit), timeout_s=LIMIT_S)
    for lines in printed(run):
        assert lines[0] == "small: shared_memory"
        assert_messages(lines[1])
    check_told_once(run, "has no room for the ")


def test_no_address_space_is_reserved():
    """Nor do arrays and handles that come and go take more and more of it."""
    for lines in printed(mpirun(4, python(ADDRESS_SPACE), timeout_s=LIMIT_S), 4):
        assert lines == ["shared_memory", "modest", "constant"]


def test_limits_of_batch_systems():
    """4 ranks with a handle of 4 MB, with 4 GB of address space each."""
    command = ["sh", "-c", f"ulimit -v 4194304 && exec {shlex.join(python(ADDRESS_SPACE))}"]
    for lines in printed(mpirun(4, command, timeout_s=LIMIT_S), 4):
        assert lines == ["shared_memory", "modest", "constant"]


@pytest.mark.parametrize(
    "container",
    [
        pytest.param(f"{PIDS} --mount-proc", id="own-proc"),
        pytest.param(PIDS, id="host-proc"),
        pytest.param(f"{PIDS} --mount-proc --user --map-root-user", id="own-users"),
    ],
)
def test_ranks_in_different_containers_are_apart(container):
    """Also where one of them could reach the memory, but has other numbers for processes."""
    need(container)
    words = shlex.join(python(SCRIPT, "nothing"))
    inside = f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && exec {container} {words}; exec {words}'
    # Open MPI's own copies between processes go by process numbers, too.
    options = ["--mca", "smsc", "^cma"]
    run = mpirun(RANKS, ["sh", "-c", inside], timeout_s=LIMIT_S, options=options)
    for lines in printed(run):
        assert lines[0] == "small: recursive_doubling"
        assert_messages(lines[1])
    check_told_once(run, "not all of the 3 ranks on the node of rank 0 can open its memory")


def test_other_namespaces_do_not_matter():
    need("unshare --mount --ipc")
    command = ["unshare", "--mount", "--ipc", *python(SCRIPT, "nothing")]
    for lines in printed(mpirun(RANKS, command, timeout_s=LIMIT_S)):
        assert lines[0] == "small: shared_memory"
