"""``pypartial bench torch`` on ranks: from start to end, and with a model that is wrong."""

from __future__ import annotations

import json
import shlex
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from support.mpirun import mpirun, python
from support.pytorch import need_torch

need_torch()

LIMIT_S = 120
SCHEMA = json.loads(
    resources.files("pypartial.bench").joinpath("results.schema.json").read_text(encoding="utf-8")
)
WAYS = [
    ("gloo", None),
    ("optimizer", "full"),
    ("optimizer", "majority"),
    ("hook", "full"),
    ("hook", "majority"),
    ("backend", None),
]
# Rank 1 adds something to one weight of the model that the hook trains synchronously.
WRONG = """
import sys
from mpi4py import MPI
import torch
from pypartial.bench import torch_steps
make = torch_steps.trainee
def make_wrong(way, policy, *rest):
    found = make(way, policy, *rest)
    if MPI.COMM_WORLD.rank == 1 and (str(way), str(policy)) == ("hook", "full"):
        right = found.apply
        def wrong():
            right()
            with torch.no_grad():
                found.network[0].weight[0, 0] += 1e-6
        found.apply = wrong
    return found
torch_steps.trainee = make_wrong
from pypartial.cli import main
main(sys.argv[1:])
"""

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(LIMIT_S + 60)]


def test_from_start_to_end(tmp_path: Path) -> None:
    results, picture = tmp_path / "torch.json", tmp_path / "torch.svg"
    words = shlex.split("""
        bench torch --hidden 8 --hidden 16 --batch 4 --blocks 2 --steps 5 --base 1ms --late 4ms
    """)
    files = ("--json", str(results), "--plot", str(picture))
    run = mpirun(3, python("-m", "pypartial", *words, *files), timeout_s=LIMIT_S)
    run.check()
    report = json.loads(results.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    rows = report["rows"]
    cases = [("balanced", 8), ("balanced", 16), ("late", 8)]
    assert len(rows) == len(cases) * len(WAYS)
    assert [(row["way"], row["policy"]) for row in rows] == 3 * WAYS
    assert [row["part"] for row in rows] == [part for part, _ in cases for _ in WAYS]
    assert all(row["verified"] and (row["blocks"], row["steps"]) == (2, 5) for row in rows)
    assert all(row["ratio_to_gloo"]["median"] == 1 for row in rows if row["way"] == "gloo")
    for row in rows:
        assert row["step_us"]["median"] > 0
        assert (row["late_us"] is not None) == (row["part"] == "late")
    synchronous = [row for row in rows if row["part"] == "late" and row["policy"] != "majority"]
    assert all(row["step_us"]["median"] > 5000 for row in synchronous)  # they wait for the late one
    assert "beside a late rank" in picture.read_text(encoding="utf-8")


def test_a_wrong_weight_of_one_rank_is_reported() -> None:
    words = shlex.split("""
        bench torch --part balanced --hidden 8 --way hook,optimizer --policy full --blocks 1
        --steps 4
    """)
    run = mpirun(2, python("-c", WRONG, *words), timeout_s=LIMIT_S)
    assert run.returncode == 1, run.explain()
    text = "\n".join(run.lines(0))
    assert text.count("│ NO") == 1, run.explain()
    complaints = [line for line in run.lines(0) if "not verified" in line]
    assert len(complaints) == 1, run.explain()
    assert "hook, full, hidden 8, balanced" in complaints[0]
    assert "the ranks had different weights before the end" in complaints[0]
