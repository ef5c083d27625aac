"""Runs PyTorch's own tests of torch.distributed on two backends, and compares the outcomes.

`tests/torch_own/list.txt` has a line for each test: its name, what becomes of it on gloo and on
pypartial, and the reason if it does not pass there as well. Tests that gloo does not pass are not
run on pypartial ("-").
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.mpirun import Run, launch, launcher, program, python

FOLDER = Path(__file__).resolve().parents[1] / "torch_own"
LIST = FOLDER / "list.txt"
REFERENCE, BACKEND = "gloo", "pypartial"
# From the best to the worst: that of the worst rank counts.
OUTCOMES = ("passed", "skipped", "failed", "hang", "crash")
NOT_RUN = "-"
ERROR = re.compile(r"[\w.]+(Error|Exception|Exit)\b")  # at the left margin of a traceback
SHORT = 200
START_S = 60.0  # in which the ranks have begun with the first test
OTHERS_S = 12.0  # after one rank has failed; a barrier of the tests waits for 10 s
LAUNCH_S = 4 * 3600.0


@dataclass(frozen=True)
class Outcome:
    """What became of a test on a backend."""

    name: str
    text: str = ""  # the error, or why it was skipped
    seconds: float = 0.0

    def short(self) -> str:
        """Return the error of a traceback in one line, without the frames of C++."""
        text = self.text.rpartition("\nTraceback ")[2].partition("\nException raised from ")[0]
        lines = text.splitlines()
        starts = [n for n, line in enumerate(lines) if ERROR.match(line)]
        said = lines[starts[-1] :] if starts else lines[-1:]
        return " ".join(" ".join(said).split())[:SHORT]


@dataclass(frozen=True)
class Entry:
    """A line of the list."""

    gloo: str
    pypartial: str
    reason: str = ""


# ---- the list -----------------------------------------------------------------------------------


def read_list(text: str) -> dict[str, Entry]:
    """Return the entries of a list; complain about lines that say too little or contradict."""
    entries: dict[str, Entry] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(maxsplit=3)
        if len(words) < 3 or not set(words[1:3]) <= {*OUTCOMES, NOT_RUN}:
            raise ValueError(f"line {number}: a name and two of {OUTCOMES} are wanted: {line!r}")
        name, entry = words[0], Entry(*words[1:])
        if name in entries:
            raise ValueError(f"line {number}: {name} is there twice")
        if worse(entry.gloo, entry.pypartial) != bool(entry.reason):
            raise ValueError(
                f"line {number}: a reason is for tests that gloo passes alone: {line!r}"
            )
        entries[name] = entry
    if list(entries) != sorted(entries):
        raise ValueError("the names are not sorted")
    return entries


def write_list(entries: Mapping[str, Entry], head: str) -> str:
    """Return the text of a list."""
    width = max(map(len, entries), default=0)
    lines = [
        f"{name:<{width}}  {entry.gloo:<7}  {entry.pypartial:<7}  {entry.reason}".rstrip()
        for name, entry in sorted(entries.items())
    ]
    return head + "\n".join(lines) + "\n"


def worse(gloo: str, pypartial: str) -> bool:
    """Return whether the backend does not pass what gloo passes."""
    return gloo == "passed" and pypartial != "passed"


def differences(
    listed: Mapping[str, Entry], gloo: Mapping[str, Outcome], pypartial: Mapping[str, Outcome]
) -> dict[str, str]:
    """Return what contradicts the list, by the names of the tests.

    It says which tests that gloo passes the backend does not pass. What became of the others is
    not judged.
    """
    found = {}
    for name, own in pypartial.items():
        entry = listed.get(name)
        reason = entry.reason if entry else ""
        if worse(gloo[name].name, own.name) and not reason:
            found[name] = f"{own.name}, and gloo passes it: {own.short()}"
        elif own.name == "passed" and reason:
            found[name] = f"passed, but the list says why it is not: {reason}"
    return found


def updated(
    listed: Mapping[str, Entry], gloo: Mapping[str, Outcome], pypartial: Mapping[str, Outcome]
) -> dict[str, Entry]:
    """Return the list with these outcomes; reasons stay, and new ones are what the error says.

    What gloo has passed before, with another PyTorch or on more ranks, and does not now, stays.
    """
    entries = dict(listed)
    for name, reference in gloo.items():
        own, before, reason = pypartial.get(name), listed.get(name), ""
        if own is None and before and before.gloo == "passed":
            continue
        if own and worse(reference.name, own.name):
            reason = (before.reason if before else "") or f"? {own.short()}"
        entries[name] = Entry(reference.name, own.name if own else NOT_RUN, reason)
    return entries


# ---- the runs -----------------------------------------------------------------------------------


def names_of_tests() -> list[str]:
    """Return the names of PyTorch's tests."""
    script = (
        "import torch.testing._internal.distributed.distributed_test as own;"
        "print(*[name for name in dir(own.DistributedTest._DistTestBase) if name[:5] == 'test_'])"
    )
    env = {"BACKEND": REFERENCE, "WORLD_SIZE": "3", "PYTHONWARNINGS": "ignore"}
    done = program(python("-c", script), timeout_s=START_S * 5, env=env)
    if done.returncode:
        raise RuntimeError(done.output)
    return done.output.splitlines()[-1].split()


class Watch:
    """Looks at what the ranks of one launch have written.

    After a test that failed in all ranks the launch goes on. If a later test then ends it, that one
    is not judged: it runs again, first in a new launch.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        ranks: int,
        limit_s: float,
        progress: Callable[[str, Outcome], None],
    ) -> None:
        self.folder, self.names, self.ranks, self.limit_s = folder, names, ranks, limit_s
        self.progress = progress
        self.done: list[Outcome] = []
        self.since = time.monotonic()
        self.begun = False  # the first test
        self.failed_at: float | None = None
        self.shaky = False  # a test has failed
        self.stops = False  # the ranks cannot go on with the next test

    def found(self) -> dict[int, Outcome]:
        """Return what ranks have reported of the test that runs."""
        found = {}
        for rank in range(self.ranks):
            file = self.folder / f"{len(self.done)}.{rank}.json"
            if file.exists():
                told = json.loads(file.read_text())
                found[rank] = Outcome(told["outcome"], told["text"], told["seconds"])
        return found

    def over(self) -> bool:
        """Return whether the launch has to be ended: a rank failed, or the time is up."""
        if not self.begun:
            self.begun, now = (self.folder / "0").exists(), time.monotonic()
            self.stops = not self.begun and now - self.since > START_S
            self.since = now if self.begun else self.since
        while self.begun and not self.stops and len(self.done) < len(self.names):
            found = self.found()
            failed = [outcome for outcome in found.values() if outcome.name == "failed"]
            now = time.monotonic()
            self.failed_at = (self.failed_at or now) if failed else None
            if len(found) == self.ranks and len(failed) in (0, self.ranks):
                self.finish(worst(found.values()))
                self.shaky = self.shaky or bool(failed)
            elif self.failed_at is not None and now - self.failed_at > OTHERS_S:
                self.stop(worst(found.values()))
            elif now - self.since > self.limit_s:
                missing = [rank for rank in range(self.ranks) if rank not in found]
                self.stop(Outcome("hang", f"ranks {missing} do not end"))
            else:
                break
        return self.stops

    def finish(self, outcome: Outcome) -> None:
        """Note what became of the test that runs; the next one begins."""
        self.progress(self.names[len(self.done)], outcome)
        self.done.append(outcome)
        self.since, self.failed_at = time.monotonic(), None

    def stop(self, outcome: Outcome) -> None:
        """Note what became of the last test of this launch, if it can be told."""
        self.stops = True
        if not self.shaky:
            self.finish(outcome)

    def ended(self, run: Run) -> None:
        """Note what the launch leaves open: the test amid which it ended has crashed it."""
        if self.over() or not self.begun or len(self.done) == len(self.names):
            return
        failed = [outcome for outcome in self.found().values() if outcome.name == "failed"]
        last = [*run.output.strip().splitlines()[-30:], f"exit code {run.returncode}"]
        self.stop(worst(failed) if failed else Outcome("crash", "\n".join(last)))


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return that of the rank that fared worst; of several the first that ended."""
    return max(outcomes, key=lambda outcome: (OUTCOMES.index(outcome.name), -outcome.seconds))


def run_tests(
    backend: str,
    names: Sequence[str],
    ranks: int,
    limit_s: float,
    progress: Callable[[str, Outcome], None],
) -> dict[str, Outcome]:
    """Run the tests, many in one launch."""
    results: dict[str, Outcome] = {}
    while left := [name for name in names if name not in results]:
        with tempfile.TemporaryDirectory(prefix="pp-own-") as home:
            folder = Path(home)
            (folder / "names").write_text("\n".join(left))
            watch = Watch(folder, left, ranks, limit_s, progress)
            command = [*launch(ranks), *launcher().labels]
            command += python(str(FOLDER / "ranks.py"), backend, str(folder))
            run = program(command, timeout_s=LAUNCH_S, over=watch.over, patience_s=5)
            watch.ended(run)
            if not watch.begun:
                raise RuntimeError(f"the ranks did not begin with a test\n{run.explain()}")
            results |= dict(zip(left, watch.done, strict=False))
    return results


def torch_version() -> str:
    """Return that of the interpreter."""
    done = program([sys.executable, "-c", "import torch; print(torch.__version__)"], timeout_s=100)
    return done.output.strip().splitlines()[-1]
