"""``pypartial bench gossip`` on ranks: from start to end, and with a model that is wrong."""

from __future__ import annotations

import json
import shlex
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from support.mpirun import mpirun, python

LIMIT_S = 120
SCHEMA = json.loads(
    resources.files("pypartial.bench").joinpath("results.schema.json").read_text(encoding="utf-8")
)
WAYS = ["ad-psgd", "ad-psgd-active", "d-psgd", "hop", "preduce", "full"]
RIVALS = ["mpi", "mpi-sendrecv", "mpi-neighbor"]
# Rank 1 changes one element of its model before Hop's checks.
WRONG = """
import sys
from mpi4py import MPI
from pypartial.bench import gossip
make = gossip.mixer
def make_wrong(way, *rest):
    found = make(way, *rest)
    if MPI.COMM_WORLD.rank == 1 and way == "hop":
        right = found.result
        def wrong():
            result = right().copy()
            result[0] *= 1.5
            return result
        found.result = wrong
    return found
gossip.mixer = make_wrong
from pypartial.cli import main
main(sys.argv[1:])
"""

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(LIMIT_S + 60)]


def test_from_start_to_end(tmp_path: Path) -> None:
    results, picture = tmp_path / "gossip.json", tmp_path / "gossip.svg"
    words = shlex.split(f"""
        bench gossip --size 8,4K --way {",".join(WAYS)} --buffers library --blocks 2 --calls 20
    """)
    files = ("--json", str(results), "--plot", str(picture))
    run = mpirun(4, python("-m", "pypartial", *words, *files), timeout_s=LIMIT_S)
    run.check()
    report = json.loads(results.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    rows = report["rows"]
    assert [(row["way"], row["bytes"]) for row in rows] == [
        (way, size) for size in (8, 4096) for way in WAYS + RIVALS
    ]
    assert all(row["verified"] and (row["blocks"], row["calls"]) == (2, 20) for row in rows)
    for row in rows:
        distances = row["consensus"]
        assert len(distances) == 20
        if row["way"] in ("full", "mpi"):
            assert max(distances) < 1e-6
        elif row["way"] in ("d-psgd", "hop"):  # of a ring of 4 the second eigenvalue is 1/3
            assert all(found <= 1e-5 + 3.0**-k for k, found in enumerate(distances, 1))
    assert "Iterations on ring" in picture.read_text(encoding="utf-8")


def test_a_wrong_model_of_one_rank_is_reported() -> None:
    words = shlex.split("bench gossip --size 64 --way hop,full --blocks 1 --calls 3")
    run = mpirun(2, python("-c", WRONG, *words), timeout_s=LIMIT_S)
    assert run.returncode == 1, run.explain()
    complaints = [line for line in run.lines(0) if "not verified" in line]
    assert complaints and all("not verified: hop, " in line for line in complaints), run.explain()
