"""Algorithms: the names that the core has, and the worked example of docs/algorithms.md."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pypartial as pp
from pypartial._core import ffi, lib
from pypartial._names import algorithm_options, algorithms

ROOT = Path(__file__).resolve().parents[2]

# Runs in a copy of the sources. The oracles of `check` see every result.
PROGRAM = """
from pypartial._core_sim import ffi, lib
from pypartial._names import algorithms
from pypartial.policy import Full, Majority
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.network import parse_network
from fuzz.oracles import check
from fuzz.scenario import Phase, Scenario
from pypartial.sim.schedule import execute, parse_schedule

print(*algorithms(ffi, lib))
for ranks in (1, 2, 5, 8):
    for policy in (Full(), Majority()):
        handle = Options(count=2 * ranks + 1, policy=policy, algorithm="star", segments=2)
        phases = (Phase((4, 7, 5), ("flush 0",)), Phase((3,)))
        assert check(Scenario(ranks, 7, (handle,), phases)).rounds > 4
execution = execute(parse_schedule("star"), 5, 64, parse_network("L=1us,o=0ns"))
print(execution.messages)
"""


def test_names_are_the_cores():
    names = list(algorithms(ffi, lib))
    assert {"recursive_doubling", "rabenseifner", "ring"} <= set(names)
    assert len(names) == len(set(names)) == lib.pp_algorithm_count()
    assert list(algorithm_options(ffi, lib)) == ["auto", *names]
    for number, name in enumerate(names, lib.PP_ALGORITHM_FIRST):
        assert ffi.string(lib.pp_algorithm_name(number)).decode() == name
        assert algorithms(ffi, lib).constant(lib, name) == number
    assert ffi.string(lib.pp_algorithm_name(lib.PP_ALGORITHM_AUTO)) == b"auto"
    assert ffi.string(lib.pp_algorithm_name(lib.PP_SHARED_MEMORY)) == b"shared_memory"
    for number in (-2, len(names) + 1):
        assert lib.pp_algorithm_name(number) == ffi.NULL
        assert not lib.pp_algorithm_chunk_a_rank(number)
    with pytest.raises(pp.ArgumentError, match=r"must be one of 'auto', .*, not 'trees'"):
        algorithm_options(ffi, lib).constant(lib, "trees")


def test_the_documentation_lists_them():
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(algorithms(ffi, lib))


@pytest.mark.long
def test_an_algorithm_is_a_file_and_a_line(tmp_path):
    """The star of the documentation, in a copy of the sources in which nothing else is changed."""
    tree = tmp_path / "tree"
    for name in ("csrc", "pypartial"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "_core*.c")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree)
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    star, line = re.findall(r"^```c\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tree / "csrc/algo/star.c").write_text(star, encoding="utf-8")
    table = tree / "csrc/algo/table.c"
    before = table.read_text(encoding="utf-8")
    assert before.count("    A(ring)\n") == 1
    table.write_text(before.replace("    A(ring)\n", line), encoding="utf-8")

    paths = os.pathsep.join(map(str, (tree, ROOT / "tests")))
    quickly = {**os.environ, "CFLAGS": "-O0", "PYTHONPATH": paths}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(build, cwd=tree, env=quickly, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, cwd=tree, env=quickly, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [*algorithms(ffi, lib), "star", "8"]
