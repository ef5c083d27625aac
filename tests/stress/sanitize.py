#!/usr/bin/env python3
"""Builds the C core and its drivers with sanitizers, and runs them.

    python tests/stress/sanitize.py [--rounds 300] [--seeds 20000] [--ranks 3] [--ranks 4]

AddressSanitizer with UndefinedBehaviorSanitizer, and ThreadSanitizer, on rounds.c (MPI, progress
threads); the former, with leaks, on simulated.c (many ranks in one process). Needs mpicc and gcc or
clang with their sanitizer libraries. The last line is "N passed, N failed".
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from support.mpirun import cores, mpirun  # noqa: E402

FLAGS = ["-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-pthread"]
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
# Open MPI and what it loads keep some memory until the process ends. A leak is ours if none of
# their frames is on the stack of its allocation.
LEAKS_OF_OTHERS = [
    "libmpi.so",
    "libopen-pal.so",
    "libpmix.so",
    "libprrte.so",
    "libevent",
    "libhwloc.so",
    "libucs.so",
    "libuct.so",
    "libucp.so",
]
ENVIRONMENT = {
    "address": {
        # Whole stacks at every allocation, to know whose leak it is.
        "ASAN_OPTIONS": "detect_stack_use_after_return=1:fast_unwind_on_malloc=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
    "thread": {
        # MPI is not instrumented: its locks are not seen, so only what involves our code counts.
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 second_deadlock_stack=1 halt_on_error=1",
        # Shared-memory key-value store and memory hooks that do not work under TSan.
        "PMIX_MCA_gds": "hash",
        "UCX_MEM_EVENTS": "no",
        "UCX_MEM_MMAP_HOOK_MODE": "none",
    },
}


def mpicc() -> str:
    beside = shutil.which("mpicc", path=os.path.dirname(sys.executable))
    found = os.environ.get("PYPARTIAL_MPICC") or beside or shutil.which("mpicc")
    if not found:
        sys.exit("sanitize: no mpicc")
    return found


def build(folder: Path, sanitizer: str, drivers: list[str]) -> dict[str, Path]:
    """Compile everything with a sanitizer; return the programs."""
    objects = folder / sanitizer
    objects.mkdir()
    sources = sorted((ROOT / "csrc").rglob("*.c"))
    sources += [HERE / "c" / f"{name}.c" for name in drivers]
    flags = [*FLAGS, *SANITIZERS[sanitizer], f"-I{ROOT / 'csrc' / 'include'}"]

    def compile_one(numbered: tuple[int, Path]) -> Path:
        number, source = numbered
        target = objects / f"{number}-{source.stem}.o"
        command = [mpicc(), *flags, '-DPP_VERSION="test"', "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return target

    with ThreadPoolExecutor(cores()) as pool:
        compiled = list(pool.map(compile_one, enumerate(sources)))
    core, mains = compiled[: -len(drivers)], compiled[-len(drivers) :]
    programs = {}
    for name, main_object in zip(drivers, mains, strict=True):
        programs[name] = objects / name
        command = [mpicc(), *flags, *map(str, core), str(main_object), "-lm", "-ldl"]
        subprocess.run([*command, "-o", str(programs[name])], check=True)
    return programs


def suppressions(folder: Path) -> Path:
    file = folder / "leaks"
    file.write_text("".join(f"leak:{library}\n" for library in LEAKS_OF_OTHERS))
    return file


def without_randomisation() -> list[str]:
    """A prefix that keeps addresses where TSan expects them; some kernels randomise too much."""
    tool = shutil.which("setarch")
    if tool and subprocess.run([tool, "-R", "true"], capture_output=True).returncode == 0:
        return [tool, "-R"]
    return []


def run_ranks(program: Path, sanitizer: str, ranks: int, arguments: list[str], leaks: Path) -> str:
    """Return what was wrong, an empty text for nothing."""
    env = dict(ENVIRONMENT[sanitizer])
    if sanitizer == "address" and arguments[0] == "leave":
        env["ASAN_OPTIONS"] += ":detect_leaks=0"
    elif sanitizer == "address":
        env["LSAN_OPTIONS"] = f"suppressions={leaks}:print_suppressions=0"
    prefix = without_randomisation() if sanitizer == "thread" else []
    run = mpirun(ranks, [*prefix, str(program), *arguments], timeout_s=600, env=env)
    done = all(f"rank {rank}: done" in run.lines(rank) for rank in range(ranks))
    good = run.returncode == 0 and done and "Sanitizer" not in run.output
    good = good and not run.survivors and not run.leftovers and "runtime error" not in run.output
    return "" if good else run.explain()


def run_simulated(program: Path, seeds: int) -> str:
    result = subprocess.run(
        [program, str(seeds)],
        env={**os.environ, **ENVIRONMENT["address"], "LSAN_OPTIONS": "print_suppressions=0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
    )
    good = result.returncode == 0 and f"{seeds} seeds: done" in result.stdout
    return "" if good else f"return code {result.returncode}\n{result.stdout[-8000:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=300, help="of every combination")
    parser.add_argument("--seeds", type=int, default=20_000, help="simulated runs")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=SANITIZERS, action="append")
    options = parser.parse_args()
    passed = failed = 0

    def report(what: str, began: float, problem: str) -> None:
        nonlocal passed, failed
        passed, failed = passed + (not problem), failed + bool(problem)
        verdict = f"FAILED\n{problem}" if problem else "clean"
        print(f"{what}: {time.monotonic() - began:.1f} s: {verdict}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="pp-sanitize-"))
    try:
        leaks = suppressions(folder)
        for sanitizer in options.only or SANITIZERS:
            began = time.monotonic()
            drivers = ["rounds", "simulated"] if sanitizer == "address" else ["rounds"]
            programs = build(folder, sanitizer, drivers)
            print(f"{sanitizer}: built in {time.monotonic() - began:.1f} s", flush=True)
            if "simulated" in programs:
                began = time.monotonic()
                problem = run_simulated(programs["simulated"], options.seeds)
                report(f"{sanitizer}, {options.seeds} simulated runs", began, problem)
            for ranks, part in itertools.product(options.ranks or [3, 4], ["work", "leave"]):
                began = time.monotonic()
                arguments = [part, str(options.rounds), str(options.seed)]
                problem = run_ranks(programs["rounds"], sanitizer, ranks, arguments, leaks)
                report(f"{sanitizer}, {ranks} ranks, {part}", began, problem)
    finally:
        shutil.rmtree(folder)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
