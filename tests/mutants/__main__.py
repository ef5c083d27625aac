"""Whether the tests find small defects of the C core.

    python -m tests.mutants run [NUMBER ...]   plants each mutant of the list, and runs the tests
    python -m tests.mutants table              what came out
    python -m tests.mutants draw               makes a new list, which makes the results void

A run copies the sources, and builds and tests the copy with the compiler, the MPI and the tools of
this environment. A mutant is tested until a test fails. Each result is written when it is there,
and a mutant with a result is not run again: a run that was stopped goes on. 80 mutants take some
hours. First, as number 0, the tests run without a mutant: what fails there would find each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from .drawing import Mutant, draw, plant

ROOT = Path(__file__).resolve().parents[2]
LIST, RESULTS = Path(__file__).with_name("list.json"), Path(__file__).with_name("results.tsv")
HEAD = "mutant\tverdict\tby\tseconds\twhat failed first; of one that survived, why"
COUNT, ORDERS, SEED = 80, 8, 2026

QUICK = "-O1 -fno-lto"  # for the compiler: a mutant is built in seconds
PYTEST = "{python} -m pytest -x -q -p no:cacheprovider -c pyproject.toml --import-mode=importlib"
MANY = "--numprocesses 2 --dist worksteal"
# In this order; the first to fail ends it. (name, command, limit in seconds)
STAGES = [
    ("fuzzer", "{python} -m tests.fuzz --cases 1000000 --seconds 10", 60),
    ("simulated ranks", f"{PYTEST} {MANY} tests/sim", 600),
    ("unit tests", f"{PYTEST} {MANY} tests/unit", 600),
    ("3 ranks", f"{PYTEST} -k 3-auto-0 tests/launch/test_mpi_layer.py", 600),
]
OF_DEVICES = [
    ("devices", f"{PYTEST} {MANY} tests/launch/test_device.py tests/launch/test_direct.py", 900),
]
OF_ORDERS = [
    ("ThreadSanitizer", "{python} tests/stress/sanitize --short --only tsan", 600),
]


NONE = Mutant(0, "", "", "", "", "")  # the sources as they are


def stages(mutant: Mutant) -> list[tuple[str, str, int]]:
    if mutant is NONE:
        return [*STAGES, *OF_DEVICES, *OF_ORDERS]
    if mutant.kind == "order":
        return OF_ORDERS + STAGES
    return [*STAGES, *(OF_DEVICES if mutant.is_of_devices else [])]


def read_list() -> list[Mutant]:
    return [Mutant(**one) for one in json.loads(LIST.read_text(encoding="utf-8"))]


def read_results(path: Path) -> dict[int, list[str]]:
    if not path.exists():
        return {}
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {int(row[0]): row[1:] for row in rows}


def judge(folder: Path, mutant: Mutant, environment: dict[str, str]) -> list[str]:
    """Return the verdict on a mutant: a row of the results."""
    began = time.monotonic()

    def row(verdict: str, by: str = "", why: str = "") -> list[str]:
        return [verdict, by, f"{time.monotonic() - began:.0f}", why]

    path = None
    if mutant is not NONE and (path := plant(folder, mutant)) is None:
        return row("gone")
    try:
        build(folder, environment)
        for name, command, limit_s in stages(mutant):
            words = command.format(python=sys.executable).split()
            code, output = run(words, environment, folder, limit_s)
            if code:
                return row("killed", name, reason(output))
            if code is None:
                return row("killed", name, f"not over after {limit_s} s")
        return row("survived")
    finally:
        if path is not None:
            shutil.copy(ROOT / path.relative_to(folder), path)


def reason(output: str) -> str:
    """Return the line that says what failed."""
    lines = [line.strip() for line in output.splitlines()]
    told = [line for line in lines if line.startswith(("FAILED", "ERROR", "failed:", "rank"))]
    return (told or lines or [""])[-1].replace("\t", " ")[:120]


def build(folder: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


def run_all(numbers: list[int], results: Path) -> None:
    from support.built import copy_worktree
    from support.mpirun import end_with_parent

    end_with_parent()
    done = read_results(results)
    if not results.exists():
        results.write_text(HEAD + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="pp-mutants-") as name:
        folder = Path(name)
        copy_worktree(folder)
        environment = {**os.environ, "CFLAGS": QUICK, "PYTHONPATH": name}
        environment["PYPARTIAL_TEST_SHORT"] = "1"
        build(folder, environment)
        for mutant in [NONE, *read_list()]:
            if mutant.number in done or (numbers and mutant.number not in [0, *numbers]):
                continue
            row = judge(folder, mutant, environment)
            with results.open("a", encoding="utf-8") as file:
                file.write("\t".join([str(mutant.number), *row]) + "\n")
            print(f"{mutant.number:3} {' '.join(row)}", flush=True)
            if mutant is NONE and row[0] != "survived":
                sys.exit("without a mutant a test fails: mend it, and remove the results")


def run(
    words: list[str], environment: dict[str, str], folder: Path, limit_s: int
) -> tuple[int | None, str]:
    from support.mpirun import run as run_limited

    with tempfile.TemporaryDirectory() as logs:
        return run_limited(words, environment, Path(logs), limit_s, cwd=folder)


def table(results: Path) -> None:
    done = read_results(results)
    for mutant in read_list():
        verdict, *_ = done.get(mutant.number, ["not run"])
        if verdict != "killed":
            print(f"{mutant.number:3} {verdict:9} {mutant.file}, {mutant.function}: {mutant.kind}")
            print(f"      - {mutant.line}\n      + {mutant.instead}")
    verdicts = [row[0] for number, row in done.items() if number]
    print(", ".join(f"{verdicts.count(one)} {one}" for one in ("killed", "survived", "gone")))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=Raw
    )
    parser.add_argument("what", choices=["run", "table", "draw"])
    parser.add_argument("numbers", nargs="*", type=int, metavar="NUMBER")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    if asked.what == "draw":
        mutants = [asdict(one) for one in draw(ROOT, COUNT, ORDERS, SEED)]
        LIST.write_text(json.dumps(mutants, indent=1) + "\n", encoding="utf-8")
    elif asked.what == "run":
        run_all(asked.numbers, asked.results)
    else:
        table(asked.results)


Raw = argparse.RawDescriptionHelpFormatter
main()
