"""The command line: what is read from it, who reads it, what `info` says."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import typer
from support import fakecuda
from support.mpirun import SEGMENTS, launcher

import pypartial
from pypartial import _launch as launch
from pypartial import cli, tuning
from pypartial.bench.options import (
    Buffers,
    DType,
    LatencyOptions,
    OverheadOptions,
    SkewOptions,
    Transport,
    TuneOptions,
    Work,
)
from pypartial.cli import app, core, info
from pypartial.cli.sim import alone
from pypartial.policy import Quorum

LAUNCHER_VARIABLES = (*launch._SIZES, *launch._RANKS)


def words_of(text: str) -> list[str]:
    return text.split()


def skew(*words: str, ranks: int = 8) -> Any:
    return app.parse(["bench", "skew", *words], ranks)


def latency(*words: str, ranks: int = 8) -> Any:
    return app.parse(["bench", "latency", *words], ranks)


def overhead(*words: str) -> Any:
    return app.parse(["bench", "overhead", *words], 1)


# ---- bench skew ----------------------------------------------------------------------------------


def test_defaults() -> None:
    options = skew()
    assert isinstance(options, SkewOptions)
    assert [str(way) for way in options.policies] == ["solo", "majority", "full", "mpi"]
    assert options.sizes == (64, 64 << 10, 1 << 20)
    assert (options.skew_ns, options.rounds, options.seed) == (10**6, 200, 0)
    assert (options.work, options.transport) == (Work.SLEEP, Transport.AUTO)
    assert options.dtype is DType.FLOAT32
    assert options.json is None
    assert options.plot is None


def test_every_option(tmp_path: Path) -> None:
    words = words_of("""
        --policy solo --policy quorum:3 --policy mpi --size 64 --size 4M --skew 500us --rounds 7
        --warmup 0 --work compute --transport mpi --dtype int64 --seed 5
    """)
    results = tmp_path / "skew.json"
    options = skew(*words, "--json", str(results))
    assert [str(way) for way in options.policies] == ["solo", "quorum:3", "mpi"]
    assert options.policies[1] == Quorum(3)
    assert options.sizes == (64, 4 << 20)
    assert (options.skew_ns, options.rounds, options.warmup) == (500_000, 7, 0)
    assert (options.work, options.transport) == (Work.COMPUTE, Transport.MPI)
    assert (options.dtype, options.seed, options.json) == (DType.INT64, 5, results)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--size 64X", "'64X' is not a size"),
        ("--size 66", "--size 66: not a multiple of 4 bytes, the size of float32"),
        ("--size 4 --dtype int64", "not a multiple of 8 bytes"),
        ("--size 64 --size 64", "--size: the same value is given twice"),
        ("--policy most", "'most' is not a policy: write mpi or one of solo, majority, first:M"),
        ("--policy quorum:9", "only 8 ranks"),
        ("--skew 1", "'1' is not a duration"),
        ("--rounds 0", "--rounds"),
        ("--work rest", "--work"),
        ("--transport tcp", "--transport"),
        ("--dtype float16", "--dtype"),
        ("--size 9999999999G", "'9999999999G' is too large"),
        ("--seed 18446744073709551616", "--seed 18446744073709551616 is not in"),
        ("--json no-such-folder/skew.json", "there is no folder no-such-folder"),
        ("--json /proc/skew.json", "--json /proc/skew.json: cannot be written: No such file"),
        ("--plot /proc/skew.png", "--plot /proc/skew.png: cannot be written: No such file"),
        ("--plot skew.txt", "must end in .png, .pdf or .svg"),
        ("--speed 1", "--speed"),
    ],
)
def test_usage_errors(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert skew(*words.split()) == 2
    assert message in capsys.readouterr().err


# ---- bench latency, bench overhead ---------------------------------------------------------------


def test_defaults_of_latency() -> None:
    options = latency()
    assert isinstance(options, LatencyOptions)
    assert [str(way) for way in options.policies] == ["full", "solo"]
    assert (options.sizes[0], options.sizes[-1]) == (8, 64 << 20)
    assert options.buffers == (Buffers.LIBRARY, Buffers.NUMPY)
    assert (options.skew_ns, options.budget_ns, options.seed) == (0, 250 * 10**6, 0)
    assert (options.blocks, options.calls, options.json, options.plot) == (None,) * 4
    assert (options.work, options.transport) == (Work.SLEEP, Transport.AUTO)


def test_every_option_of_latency(tmp_path: Path) -> None:
    words = words_of("""
        --policy majority --policy quorum:3 --size 8 --size 4M --skew 500us --work compute
        --buffers numpy --budget 2s --blocks 3 --calls 70 --transport mpi --dtype int64 --seed 5
    """)
    files = tmp_path / "latency.json", tmp_path / "latency.svg"
    options = latency(*words, "--json", str(files[0]), "--plot", str(files[1]))
    assert [str(way) for way in options.policies] == ["majority", "quorum:3"]
    assert (options.sizes, options.buffers) == ((8, 4 << 20), (Buffers.NUMPY,))
    assert (options.skew_ns, options.work) == (500_000, Work.COMPUTE)
    assert (options.budget_ns, options.blocks, options.calls) == (2 * 10**9, 3, 70)
    assert (options.transport, options.dtype, options.seed) == (Transport.MPI, DType.INT64, 5)
    assert (options.json, options.plot) == files


def test_options_of_overhead(tmp_path: Path) -> None:
    options = overhead()
    assert isinstance(options, OverheadOptions)
    assert (str(options.policy), options.size) == ("full", 8)
    assert (options.buffers, options.json) == (tuple(Buffers), None)
    results = tmp_path / "overhead.json"
    words = words_of("--policy solo --size 1K --buffers library --loops 7 --calls 9 --json")
    options = overhead(*words, str(results))
    assert (str(options.policy), options.size, options.loops, options.calls) == (
        "solo",
        1024,
        7,
        9,
    )
    assert (options.buffers, options.json) == ((Buffers.LIBRARY,), results)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("latency --size 66", "--size 66: not a multiple of 4 bytes"),
        ("latency --policy mpi", "--policy mpi: MPI's own are always measured here"),
        ("latency --policy quorum:9", "only 8 ranks"),
        ("latency --buffers mpi", "--buffers"),
        ("latency --buffers numpy --buffers numpy", "--buffers: the same value is given twice"),
        ("latency --device-path ipc", "--device-path ipc: no policy has buffers on a device"),
        ("skew --device-path ipc --buffers cuda-staged-by-hand", "--device-path ipc: no policy"),
        ("skew --device-path nvlink --buffers cupy", "--device-path"),
        ("latency --skew 1", "'1' is not a duration"),
        ("latency --budget 1h", "'1h' is not a duration"),
        ("latency --budget 0", "--budget 0: no call fits into it"),
        ("latency --blocks 0", "--blocks"),
        ("latency --calls 0", "--calls"),
        ("latency --json no-such-folder/x.json", "there is no folder no-such-folder"),
        ("latency --plot x.txt", "must end in .png, .pdf or .svg"),
        ("overhead --size 7", "--size 7: not a multiple of 4 bytes"),
        ("overhead --policy mpi", "'mpi' is not a policy"),
        ("overhead --policy quorum:2", "only 1 rank"),
        ("overhead --buffers numpy --buffers numpy", "--buffers: the same value is given twice"),
        ("overhead --loops 0", "--loops"),
        ("overhead --json /proc/x.json", "--json /proc/x.json: cannot be written"),
        ("overhead --plot x.png", "--plot"),
    ],
)
def test_usage_errors_of_both(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.parse(["bench", *words.split()], 8) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["bench skew", "bench latency", "bench groups", "sim skew"])
def test_one_file_for_results_and_plot_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the same name, by a link, or by a hard link: the plot would overwrite the results."""
    plot = tmp_path / "x.svg"
    link, hard = tmp_path / "link", tmp_path / "hard"
    link.symlink_to(plot)
    for name in (plot, tmp_path / ".." / tmp_path.name / "x.svg", link):
        assert app.parse([*command.split(), "--json", str(name), "--plot", str(plot)], 8) == 2
        assert "--json and --plot name the same file" in capsys.readouterr().err
        assert not plot.exists()
    plot.touch()
    hard.hardlink_to(plot)
    assert app.parse([*command.split(), "--json", str(hard), "--plot", str(plot)], 8) == 2
    assert "--json and --plot name the same file" in capsys.readouterr().err


# ---- tune ----------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "tuning.json"
    monkeypatch.setenv("PYPARTIAL_TUNING", str(path))
    return path


def test_defaults_of_tune(table: Path) -> None:
    options = app.parse(["tune"], 4)
    assert isinstance(options, TuneOptions)
    assert (options.sizes[0], options.sizes[-1]) == (8, 16 << 20)
    assert (options.ranks, options.budget_ns) == ((), 20 * 10**9)
    assert (options.table, options.json) == (table, None)
    assert not table.parent.exists()


def test_every_option_of_tune(table: Path, tmp_path: Path) -> None:
    results = tmp_path / "tune.json"
    words = words_of("tune --size 1M --size 8 --ranks 4 --ranks 2 --budget 500ms --dry-run --json")
    options = app.parse([*words, str(results)], 4)
    assert isinstance(options, TuneOptions)
    assert (options.sizes, options.ranks) == ((8, 1 << 20), (4, 2))
    assert (options.budget_ns, options.table, options.json) == (500 * 10**6, None, results)


@pytest.mark.parametrize(
    ("words", "ranks", "message"),
    [
        ("", 1, "one rank sends no messages: start several, with mpirun -n 4 pypartial tune"),
        ("--ranks 5", 4, "--ranks 5: there are only 4 ranks; start more, with mpirun -n 5"),
        ("--ranks 1", 4, "--ranks"),
        ("--ranks 2 --ranks 2", 4, "--ranks: the same value is given twice"),
        ("--size 7", 4, "--size 7: not a multiple of 4 bytes"),
        ("--size 8 --size 8", 4, "--size: the same value is given twice"),
        ("--budget 0", 4, "--budget 0: no call fits into it"),
        ("--budget 1", 4, "'1' is not a duration"),
        ("--json /proc/x.json", 4, "--json /proc/x.json: cannot be written"),
    ],
)
def test_usage_errors_of_tune(
    words: str, ranks: int, message: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.parse(["tune", *words.split()], ranks) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in said


def test_tune_without_a_place_for_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYPARTIAL_TUNING", "off")
    assert app.parse(["tune"], 4) == 2
    assert "PYPARTIAL_TUNING" in capsys.readouterr().err
    assert isinstance(app.parse(["tune", "--dry-run"], 4), TuneOptions)
    monkeypatch.setenv("PYPARTIAL_TUNING", "/proc/version")
    assert app.parse(["tune"], 4) == 2
    assert "/proc/version: cannot be written" in capsys.readouterr().err
    for path in ("/proc/no/table.json", "/dev/null/folder/table.json", f"/tmp/{300 * 'x'}/table"):
        monkeypatch.setenv("PYPARTIAL_TUNING", path)
        assert app.parse(["tune"], 4) == 2
        assert f"{path}: cannot be written" in " ".join(capsys.readouterr().err.split())


# ---- files ---------------------------------------------------------------------------------------


def test_files_are_tried_without_changing_anything(tmp_path: Path) -> None:
    there, new = tmp_path / "there.json", tmp_path / "new.png"
    there.write_text("what was there")
    link, pipe = tmp_path / "link.json", tmp_path / "pipe.json"
    link.symlink_to(tmp_path / "later.json")
    os.mkfifo(pipe)  # to open it would wait for a reader
    for path in (there, link, pipe):
        assert isinstance(skew("--json", str(path), "--plot", str(new)), SkewOptions)
    assert there.read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "link.json",
        "pipe.json",
        "there.json",
    ]


def test_a_plot_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert skew("--plot", "skew.png") == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.parse(["--help"], 1) == 0
    assert "bench" in capsys.readouterr().out
    assert skew("--help") == 0
    assert "powers of 1024" in capsys.readouterr().out


COMMANDS = (
    *("", "info", "bench", "bench skew", "bench latency", "bench overhead"),
    *("bench groups", "bench gossip", "bench torch", "tune"),
    *("sim", "sim skew", "sim schedule", "sim groups", "sim gossip", "sim gain"),
    *("groups", "groups show", "groups analyse", "topology", "topology show"),
    *("trace", "trace merge", "trace report"),
)


def test_all_commands_are_tested_for_their_help() -> None:
    found = {""}
    groups = [("", typer.main.get_command(app.app))]
    while groups:
        prefix, group = groups.pop()
        for name, command in getattr(group, "commands", {}).items():
            found.add(f"{prefix}{name}")
            groups.append((f"{prefix}{name} ", command))
    assert found == set(COMMANDS)


@pytest.mark.parametrize("group", ["bench", "sim", "groups", "topology", "trace"])
def test_no_summary_of_a_command_is_cut(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert app.parse([group, "--help"], 1) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


def test_the_same_option_is_the_same_everywhere() -> None:
    """It takes the same kind of value: a size is in bytes, in every command."""
    found: dict[str, set[str]] = {}
    kinds: dict[str, set[str]] = {}
    commands = [typer.main.get_command(app.app)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for option in command.params:
            for name in option.opts:
                if option.metavar and "|" not in option.metavar and name != "--buffers":
                    found.setdefault(name, set()).add(option.metavar)
                    kinds.setdefault(option.metavar, set()).add(name)
    assert {name: words for name, words in found.items() if len(words) > 1} == {}
    assert kinds["SIZE"] == {"--size"}
    assert kinds["POLICY"] == {"--policy"}
    assert kinds["RANKS"] == {"--group-size"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_fits_a_terminal(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.parse([*command.split(), "--help"], 1) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_h_is_short_for_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.parse([*command.split(), "--help"], 1) == 0
    long = capsys.readouterr().out
    assert app.parse([*command.split(), "-h"], 1) == 0
    assert capsys.readouterr().out == long
    assert " ".join(["Usage: pypartial", *command.split()]) in long
    assert "-h, --help" in long


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.parse(["--version"], 1) == 0
    assert capsys.readouterr().out == f"pypartial {pypartial.__version__}\n"


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.parse([], 1) == 2
    assert "Commands" in "".join(capsys.readouterr())


# ---- who reads -----------------------------------------------------------------------------------


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


class FakeComm:
    """Two ranks as one of them sees them; `said` is what rank 0 broadcasts."""

    size = 2

    def __init__(self, rank: int, said: Any = None) -> None:
        self.rank = rank
        self.said = said
        self.aborted: int | None = None
        self.tests = 0

    def Ibarrier(self) -> FakeComm:
        return self

    def Test(self) -> bool:
        self.tests += 1
        return self.tests > 2

    def bcast(self, value: Any) -> Any:
        if self.rank == 0:
            self.said = value
        return self.said

    def Abort(self, code: int) -> None:
        self.aborted = code


@pytest.fixture
def two_processes(no_launcher: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")


def test_rank_0_reads_for_all(two_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    comm = FakeComm(0)
    monkeypatch.setattr(cli, "world", lambda: comm)
    options = cli.read(["bench", "skew", "--rounds", "3"])
    assert isinstance(options, SkewOptions)
    assert comm.said == options


def test_the_other_ranks_are_told(two_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "world", lambda: FakeComm(1, said=2))
    assert cli.read(["this", "is", "not", "read"]) == 2


def test_a_launcher_of_another_mpi_is_named(
    two_processes: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = FakeComm(0)
    alone.size = 1
    monkeypatch.setattr(cli, "world", lambda: alone)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert cli.read(["bench", "skew"]) == 1
    assert "belong to different MPI libraries" in capsys.readouterr().err
    assert cli.read(["bench", "latency"]) == 1
    assert cli.read(["bench", "overhead"]) == 1
    assert capsys.readouterr().err.count("belong to different MPI libraries") == 2
    assert cli.read(["info"]) == cli.InfoOptions()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert cli.read(["bench", "skew"]) == 1
    assert capsys.readouterr().err == ""


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> FakeComm:
    """Have every command raise an error; return the communicator that it runs on, as rank 1."""
    comm = FakeComm(1)
    mpi = types.SimpleNamespace(
        COMM_WORLD=comm, Is_initialized=lambda: True, Is_finalized=lambda: False
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)

    def fail(_job: Any) -> int:
        raise error

    monkeypatch.setattr(cli, "run", fail)
    return comm


def test_ctrl_c_alone_is_one_line(
    no_launcher: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in commands that simulate."""
    failing(monkeypatch, KeyboardInterrupt()).size = 1
    with pytest.raises(SystemExit) as ending:
        cli.main(["bench", "overhead"])
    assert ending.value.code == 130
    assert capsys.readouterr().err == "pypartial: interrupted\n"


def test_ctrl_c_on_one_rank_ends_all_ranks(
    no_launcher: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traceback says where the rank was."""
    comm = failing(monkeypatch, KeyboardInterrupt())
    with pytest.raises(SystemExit):
        cli.main(["bench", "overhead"])
    assert comm.aborted == 1
    assert "KeyboardInterrupt" in capsys.readouterr().err


def test_an_exception_ends_all_ranks(
    no_launcher: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comm = failing(monkeypatch, RuntimeError("rank 1 has a problem"))
    with pytest.raises(RuntimeError):
        cli.main(["info"])
    assert comm.aborted == 1
    assert "rank 1 has a problem" in capsys.readouterr().err


def test_a_lack_of_memory_is_one_line(
    no_launcher: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comm = failing(monkeypatch, MemoryError("--size 4 GB: no memory for a contribution"))
    with pytest.raises(SystemExit) as ending:
        cli.main(["info"])
    assert comm.aborted == 1
    said = "out of memory: --size 4 GB: no memory for a contribution"
    assert capsys.readouterr().err == f"pypartial: rank 1: {said}\n"
    comm.size = 1
    with pytest.raises(SystemExit) as ending:
        cli.main(["info"])
    assert ending.value.code == f"pypartial: {said}"


def test_the_exit_code_is_the_jobs(no_launcher: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", lambda _job: 1)
    with pytest.raises(SystemExit) as ending:
        cli.main(["info"])
    assert ending.value.code == 1


# ---- processes -----------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """This process's environment without a launcher's variables."""
    names = {name for name in os.environ if name.startswith(("OMPI_", "PMIX_", "PMI_"))}
    names.discard(SEGMENTS)
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return kept | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment(), check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "words",
    ["--help", "info", "sim schedule ring --ranks 4 --dump dot", "sim skew --ranks 4 --steps 2"],
)
def test_an_output_that_takes_no_more_is_one_line(words: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pypartial", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1:] == [
        "pypartial: the output cannot be written: No space left on device"
    ]
    assert "Traceback" not in done.stderr


def test_a_closed_output_does_no_harm() -> None:
    words = "sim skew --ranks 2 --steps 2"
    done = run("sh", "-c", f"{sys.executable} -m pypartial {words} >&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_help_needs_no_mpi() -> None:
    code = (
        "import sys, pypartial.cli\n"
        "try:\n    pypartial.cli.main(['--help'])\n"
        "finally:\n    assert 'mpi4py.MPI' not in sys.modules\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert "Usage: pypartial" in done.stdout


def test_waiting_ranks_import_no_command_line() -> None:
    code = (
        "import sys, pypartial.cli, pypartial.cli.bench\n"
        "unwanted = {'typer', 'click', 'rich', 'matplotlib', 'scipy', 'networkx'}\n"
        "print(sorted(unwanted & set(sys.modules)))\n"
    )
    done = run(sys.executable, "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.fixture
def mpirun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """How to start three ranks, while no other process of pytest-xdist starts any."""
    try:
        program = launcher()
    except RuntimeError as error:
        pytest.skip(str(error))
    with (tmp_path_factory.getbasetemp().parent / "mpirun.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield [program.program, "-n", "3", *program.crowds]


@pytest.mark.parametrize(
    ("command", "measuring"),
    [("bench overhead", [0]), ("tune --ranks 2 --dry-run", [0, 1]), ("tune --dry-run", [0, 1, 2])],
)
def test_memory_is_needed_by_the_ranks_that_measure(
    command: str, measuring: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = app.parse(command.split(), 3)
    name = "tune" if command.startswith("tune") else "bench"
    module: Any = importlib.import_module(f"pypartial.cli.{name}")
    asked: list[bool] = []

    def ready(*_words: Any, measures: bool = True) -> bool:
        asked.append(measures)
        return False

    monkeypatch.setattr(module, "ready", ready)
    if name == "tune":
        ranks = "node", [0, 1, 2]
        monkeypatch.setattr(module.tune_bench, "participants", lambda _comm: ranks)
    run = module.tune if name == "tune" else module.overhead
    assert [run(options, types.SimpleNamespace(rank=rank)) for rank in range(3)] == [1, 1, 1]
    assert [rank for rank in range(3) if asked[rank]] == measuring


@pytest.mark.parametrize(
    ("seconds", "rank", "said"),
    [
        (41.6, 0, "pypartial: this takes about 42 s\n"),
        (170.0, 0, "pypartial: this takes about 3 minutes\n"),
        (9.0, 0, ""),
        (None, 0, ""),
        (41.6, 1, ""),
    ],
)
def test_long_commands_say_how_long_they_take(
    seconds: float | None, rank: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = importlib.import_module("pypartial.cli.bench")
    bench.announce("about", seconds, types.SimpleNamespace(rank=rank))
    assert capsys.readouterr().err == said


def test_a_usage_error_is_printed_once(mpirun: list[str]) -> None:
    done = run(*mpirun, sys.executable, "-m", "pypartial", "bench", "skew", "--size", "x")
    assert done.returncode == 2
    assert done.stderr.count("'x' is not a size") == 1


def test_info_under_a_launcher(mpirun: list[str]) -> None:
    done = run(*mpirun, sys.executable, "-m", "pypartial", "info")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loaded by mpi4py") == 1
    assert "ranks 0-2" in done.stdout


def test_a_benchmark_from_start_to_end(mpirun: list[str], tmp_path: Path) -> None:
    results, picture = tmp_path / "skew.json", tmp_path / "skew.png"
    words = words_of("""
        bench skew --policy solo --policy majority --policy quorum:2 --policy full --policy mpi
        --size 4 --size 64 --size 64K --skew 500us --rounds 12 --warmup 2
    """)
    files = ("--json", str(results), "--plot", str(picture))
    done = run(*mpirun, sys.executable, "-m", "pypartial", *words, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(results.read_text())
    assert (report["meta"]["ranks"], report["meta"]["skew_us"]) == (3, 500.0)
    rows = report["rows"]
    assert [(row["policy"], row["bytes"]) for row in rows[:2]] == [("solo", 4), ("majority", 4)]
    assert len(rows) == 15
    assert all(row["verified"] and row["rounds"] == 12 for row in rows)
    assert all(row["latency_us"]["mean"] > 0 for row in rows)
    assert all(row["active"]["min"] == 3 for row in rows if row["policy"] in ("full", "mpi"))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "quorum:2" in done.stdout


def test_latency_from_start_to_end(mpirun: list[str], tmp_path: Path) -> None:
    results, picture = tmp_path / "latency.json", tmp_path / "latency.png"
    words = words_of("""
        bench latency --policy solo --policy majority --policy quorum:2 --policy full
        --size 8 --size 64K --budget 3ms --blocks 3
    """)
    files = ("--json", str(results), "--plot", str(picture))
    done = run(*mpirun, sys.executable, "-m", "pypartial", *words, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(results.read_text())
    assert (report["meta"]["ranks"], report["meta"]["skew_us"]) == (3, 0)
    rows = report["rows"]
    ways = [(row["policy"], row["buffers"]) for row in rows if row["bytes"] == 8]
    assert ways[:3] == [("solo", "library"), ("solo", "numpy"), ("majority", "library")]
    others = {"mpi", "mpi-nonblocking", "memcpy"}
    others |= set() if report["meta"]["lacking"] else {"mpi-persistent"}
    assert {policy for policy, _ in ways[8:]} == others
    assert len(rows) == 2 * len(ways)
    assert all(row["verified"] and row["blocks"] == 3 for row in rows)
    assert all(row["latency_us"]["p50"] > 0 and row["gb_per_s"] > 0 for row in rows)
    assert all(row["ratio_to_mpi"] > 0 and row["ratio_to_memcpy"] > 0 for row in rows)
    assert all(row["active"]["min"] == 3 for row in rows if row["policy"] in ("full", "mpi"))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "quorum:2" in done.stdout


@pytest.mark.long
def test_skewed_latency(mpirun: list[str], tmp_path: Path) -> None:
    """The first of three ranks waits 2 ms for the last, but not with solo."""
    results = tmp_path / "latency.json"
    words = words_of(
        "bench latency --policy solo --buffers numpy --size 64 --skew 1ms --blocks 3 --calls 4"
    )
    done = run(*mpirun, sys.executable, "-m", "pypartial", *words, "--json", str(results))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["policy"]: row for row in json.loads(results.read_text())["rows"]}
    assert all(row["verified"] and row["rounds"] == 12 for row in rows.values())
    assert rows["mpi"]["latency_us"]["p50"] > 1000
    assert rows["solo"]["ratio_to_mpi"] < 1
    assert rows["memcpy"]["latency_us"]["p50"] < 1000  # never skewed
    assert rows["solo"]["active_expected"] == 1


@pytest.mark.long
def test_groups_from_start_to_end(mpirun: list[str], tmp_path: Path) -> None:
    """Groups of 2 of 3 ranks: the third one sleeps. Groups of 3: nobody does."""
    results, picture = tmp_path / "groups.json", tmp_path / "groups.png"
    words = words_of("""
        bench groups --size 64K --group-size 2,3
        --generator given,static,random,smart,controller,full
        --backend auto,schedule,comm --budget 2ms --blocks 2 --base 1ms --iterations 6 --runs 2
    """)
    files = ("--json", str(results), "--plot", str(picture))
    done = run(*mpirun, sys.executable, "-m", "pypartial", *words, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(results.read_text())
    rows = report["rows"]
    assert len(rows) == 2 * (5 * 3 + 1 + 2)
    assert {row["backend"] for row in rows} == {"node", "schedule", "comm", None}
    assert {(row["size"], row["groups"]) for row in rows} == {(2, 1), (3, 1)}
    assert all(row["verified"] and row["latency_us"]["p50"] > 0 for row in rows)
    assert all(row["ratio_to_mpi"] > 0 and row["ratio_to_create_group"] > 0 for row in rows)
    fixed = [row for row in rows if row["way"] in ("given", "static", "full", "mpi")]
    assert all(row["members"] == pytest.approx(row["size"], abs=0.5) for row in fixed)
    iterations = report["iterations"]
    names = [(row["generator"], row["size"]) for row in iterations if row["backend"] != "comm"]
    assert names[0] == ("full", 0)
    assert ("smart", 3) in names
    for row in iterations:
        assert row["verified"]
        assert [side["name"] for side in row["sides"]] == ["fast", "slow"]
        # The slow rank sleeps for 6 ms in an iteration, and for 1 ms in the other runs.
        assert row["sides"][1]["iteration_us"]["median"] > 5500
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "controller:2" in done.stdout


def test_a_wrong_average_of_one_rank_is_reported(mpirun: list[str]) -> None:
    code = (
        "import sys, pypartial.cli\n"
        "from mpi4py import MPI\n"
        "from pypartial.bench import group_ways, groups\n"
        "make = group_ways.group_way\n"
        "def make_wrong(way, ctx, baseline, model, *rest):\n"
        "    found = make(way, ctx, baseline, model, *rest)\n"
        "    right = found.call\n"
        "    def wrong():\n"
        "        right()\n"
        "        model[0] += 1000\n"
        "    if way.name == 'static':\n"
        "        found.call = wrong\n"
        "    return found\n"
        "if MPI.COMM_WORLD.rank == 2:\n"
        "    groups.group_way = make_wrong\n"
        "pypartial.cli.main(sys.argv[1:])\n"
    )
    words = words_of("""
        bench groups --part latency --size 64 --group-size 3 --generator static,smart --blocks 2
        --calls 3
    """)
    done = run(*mpirun, sys.executable, "-c", code, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count(" NO ") == 1
    complaints = [line for line in done.stderr.splitlines() if "not verified" in line]
    assert complaints
    assert all("not verified: static, auto, 16 x float32, rank " in line for line in complaints)


def test_groups_that_average_nothing_are_reported(mpirun: list[str], tmp_path: Path) -> None:
    """What is averaged in groups is a copy: the mean over the ranks is kept, and each status."""
    code = (
        "import sys, pypartial.cli\n"
        "from pypartial.bench import groups\n"
        "preduce, full, group_way = groups.preduce, groups.full, groups.group_way\n"
        "groups.preduce = lambda ctx, model, *rest: preduce(ctx, model.copy(), *rest)\n"
        "groups.full = lambda ctx, model: full(ctx, model.copy())\n"
        "groups.group_way = lambda way, ctx, comm, model, *rest: group_way(\n"
        "    way, ctx, comm, model.copy(), *rest\n"
        ")\n"
        "pypartial.cli.main(sys.argv[1:])\n"
    )
    results = tmp_path / "groups.json"
    words = words_of("""
        bench groups --size 64 --group-size 2 --generator random,smart --blocks 2 --calls 5
        --base 2ms --iterations 10 --runs 1 --json
    """)
    four = [mpirun[0], "-n", "4", *mpirun[3:]]
    done = run(*four, sys.executable, "-c", code, *words, str(results))
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(results.read_text())
    assert {row["groups"] for row in report["rows"]} == {1, 2}
    assert not any(row["verified"] for row in report["rows"])
    assert [row["generator"] for row in report["iterations"]] == ["full", "random", "smart"]
    assert not any(row["verified"] for row in report["iterations"])


def test_groups_with_the_arrivals_of_a_trace(mpirun: list[str], tmp_path: Path) -> None:
    """Its two lines are needed again and again."""
    trace = tmp_path / "times"
    trace.write_text("1ms 1ms 2ms\n0 1ms 0\n")
    words = words_of("""
        bench groups --part iterations --size 64 --group-size 2 --generator random --base 5ms
        --iterations 2 --runs 3 --arrivals
    """)
    done = run(*mpirun, sys.executable, "-m", "pypartial", *words, f"trace:{trace}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" yes ") == 2


@pytest.mark.long
def test_tune_from_start_to_end(mpirun: list[str], table: Path, tmp_path: Path) -> None:
    """On all ranks and on two; the table is merged, read by `info`, and left by a dry run."""
    results = tmp_path / "tune.json"
    words = words_of("tune --size 8 --size 64K --budget 60ms")
    command = [*mpirun, sys.executable, "-m", "pypartial"]
    done = run(*command, *words, "--json", str(results))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Table: {table}" in done.stdout
    rows = json.loads(results.read_text())["rows"]
    assert [row["bytes"] for row in rows] == [8] * 3 + [64 << 10] * 3
    assert {row["algorithm"] for row in rows} == {"recursive_doubling", "rabenseifner", "ring"}
    assert all(row["verified"] and row["ranks"] == 3 and row["link"] == "node" for row in rows)
    assert all(row["latency_us"]["p50"] > 0 and row["model_us"] > 0 for row in rows)
    first = json.loads(table.read_text())["entries"]
    assert [(one["ranks"], one["link"], one["switches"][0]["bytes"]) for one in first] == [
        (3, "node", 0)
    ]
    done = run(*command, *words, "--ranks", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    both = json.loads(table.read_text())["entries"]
    assert [one["ranks"] for one in both] == [2, 3]
    assert both[1] == first[0]
    done = run(*command, *words, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(table.read_text())["entries"] == both
    done = run(*command, "info")
    assert f"{table}: measured {both[0]['date'][:10]}" in done.stdout
    assert "measured for  ranks: 2 (node), 3 (node)" in done.stdout
    assert re.search(r"3 ranks +\w+.*; measured on this number of ranks", done.stdout)


def test_tune_writes_no_table_of_wrong_sums(mpirun: list[str], table: Path) -> None:
    code = (
        "import sys, pypartial.cli\n"
        "from mpi4py import MPI\n"
        "from pypartial.bench import contenders\n"
        "if MPI.COMM_WORLD.rank == 1:\n"
        "    right = contenders._Partial.call\n"
        "    def wrong(self):\n"
        "        right(self)\n"
        "        if self.request.algorithm == 'ring':\n"
        "            self.receive[-1] += 1\n"
        "    contenders._Partial.call = wrong\n"
        "    made = contenders._Partial.__init__\n"
        "    def make(self, ctx, policy, pair, algorithm):\n"
        "        made(self, ctx, policy, pair, algorithm)\n"
        "        self.receive = pair.receive\n"
        "    contenders._Partial.__init__ = make\n"
        "pypartial.cli.main(sys.argv[1:])\n"
    )
    done = run(
        *mpirun, sys.executable, "-c", code, *words_of("tune --size 64 --size 128 --budget 10ms")
    )
    assert done.returncode == 1, done.stdout + done.stderr
    complaints = [line for line in done.stderr.splitlines() if "not verified" in line]
    assert complaints
    assert all("not verified: ring, full, " in line and "rank 1" in line for line in complaints)
    assert not table.exists()


def test_a_table_that_cannot_be_written_is_named_once_and_before(
    mpirun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYPARTIAL_TUNING", "/proc/none/tuning.json")
    words = words_of("tune --size 8 --budget 3ms")
    done = run(*mpirun, sys.executable, "-m", "pypartial", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("/proc/none/tuning.json: cannot be written: ") == 1
    assert "Traceback" not in done.stderr
    assert "fastest" not in done.stdout  # known before anything is measured


def test_a_wrong_sum_of_one_rank_is_reported_once(mpirun: list[str]) -> None:
    code = (
        "import sys, pypartial.cli\n"
        "from mpi4py import MPI\n"
        "from pypartial.bench import contenders\n"
        "if MPI.COMM_WORLD.rank == 2:\n"
        "    right = contenders._MpiNonblocking.call\n"
        "    def wrong(self):\n"
        "        right(self)\n"
        "        self._pair.receive[-1] += 1\n"
        "    contenders._MpiNonblocking.call = wrong\n"
        "pypartial.cli.main(sys.argv[1:])\n"
    )
    words = words_of("bench latency --policy full --buffers numpy --size 64 --blocks 1 --calls 3")
    done = run(*mpirun, sys.executable, "-c", code, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count(" NO ") == 1
    complaints = [line for line in done.stderr.splitlines() if "not verified" in line]
    assert complaints
    assert all("mpi-nonblocking, 16 x float32, rank 2, " in line for line in complaints)


@pytest.mark.parametrize(
    "launched",
    [pytest.param(False, id="alone"), pytest.param(True, id="mpirun", marks=pytest.mark.long)],
)
def test_overhead_from_start_to_end(mpirun: list[str], tmp_path: Path, launched: bool) -> None:
    results = tmp_path / "overhead.json"
    words = words_of("bench overhead --loops 5 --calls 20 --json")
    command = [*(mpirun if launched else []), sys.executable, "-m", "pypartial", *words]
    done = run(*command, str(results))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(results.read_text())["rows"]
    found = {(row["call"], row["of"]) for row in rows}
    assert found >= {(call, "pypartial") for call in ("Start", "Wait", "Start+Wait", "Test")}
    assert ("Allreduce", "mpi4py") in found
    assert all(row["verified"] and row["ns"]["median"] > 0 for row in rows)
    assert done.stdout.count("Calls from Python") == 1


@pytest.mark.parametrize("limited", [False, True], ids=["of the machine", "of one process"])
def test_a_size_that_does_not_fit_is_named_once(
    mpirun: list[str], tmp_path: Path, limited: bool
) -> None:
    """Before anything is measured, with one line, and on all ranks alike."""
    size = "1G" if limited else "1000000G"
    code = (
        "import os, resource, sys, pypartial.cli\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK')) == sys.argv[1]:\n"
        "    from mpi4py import MPI\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))\n"
        "pypartial.cli.main(sys.argv[2:])\n"
    )
    words = ["bench", "skew", "--size", "64", "--size", size, "--json", str(tmp_path / "x.json")]
    done = run(*mpirun, sys.executable, "-c", code, "2" if limited else "none", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    complaints = [line for line in done.stderr.splitlines() if "pypartial" in line]
    assert len(complaints) == 1, done.stderr
    assert f"pypartial: --size {size.replace('G', ' GB')}: " in complaints[0]
    assert ("rank 2 has no memory" if limited else "of memory") in complaints[0]
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() == ""


def test_files_that_cannot_be_saved_are_named_once(mpirun: list[str], tmp_path: Path) -> None:
    """At the beginning if it is seen there; a full disk is seen at the end, with the table."""
    words = words_of("bench skew --policy full --size 64 --skew 0 --rounds 2 --warmup 0 --json")
    done = run(*mpirun, sys.executable, "-m", "pypartial", *words, "/proc/skew.json")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("--json /proc/skew.json: cannot be written") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() == ""
    done = run(*mpirun, sys.executable, "-m", "pypartial", *words, "/dev/full")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("pypartial: /dev/full cannot be written: No space left") == 1
    assert "Traceback" not in done.stderr
    assert "64 B" in done.stdout


# ---- info ----------------------------------------------------------------------------------------


def facts(rank: int, node: str, neighbours: int, shares: bool = False) -> info.RankFacts:
    return info.RankFacts(rank, node, 4, neighbours, shares)


def test_nodes_are_listed_with_their_ranks() -> None:
    ranks = [facts(0, "a", 2), facts(1, "a", 2), facts(2, "b", 1)]
    assert info.nodes(ranks) == [
        ("a", "ranks 0-1; 4 cores; doorbells reach 2 of 2 ranks"),
        ("b", "rank 2; 4 cores; no other rank is on this node"),
    ]
    mixed = [facts(0, "a", 1), facts(1, "a", 2)]
    assert info.nodes(mixed)[0][1].endswith("doorbells reach 1 to 2 of 2 ranks")


def info_of(more: dict[str, str]) -> str:
    """Run ``pypartial info`` with these variables, and return what it says."""
    command = [sys.executable, "-m", "pypartial", "info"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment() | more, check=True
    ).stdout


def test_devices_are_listed(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise ModuleNotFoundError('hidden', name='cupy')")
    more = {"PYPARTIAL_CUDA_DRIVER": str(fakecuda.build(tmp_path)), "FAKECUDA_DEVICES": "2"}
    more["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    said = info_of(more)
    assert re.search(
        r"driver +for CUDA 12\.8\n +device 0 +stand-in 0\n +device 1 +stand-in 1", said
    )
    assert re.search(r'ranks of a node +device_path="staged": there is no CuPy', said)
    assert re.search(r'MPI and devices +no device_path="direct": MPI ', said)
    more |= {"PYPARTIAL_CUDA_KERNELS": str(tmp_path / "some"), "FAKECUDA_PEERS": "0"}
    said = info_of(more)
    assert re.search(r'ranks of a node +device_path="staged": PYPARTIAL_CUDA_KERNELS=', said)
    (tmp_path / "some").write_text("kernels")
    said = info_of(more)
    assert re.search(r'ranks on one device +device_path="ipc" or "staged"', said)
    denied = "0 cannot access the memory of 1, 1 cannot access the memory of 0"
    assert re.search(rf'ranks on 0 and 1 +device_path="staged": {denied}', said)
    more["FAKECUDA_PEERS"] = "1"
    said = info_of(more)
    assert re.search(r'ranks on 0 and 1 +device_path="ipc" or "staged"', said)
    more["FAKECUDA_FAIL"] = "cuDeviceGetName:2:999"
    said = info_of(more)
    assert re.search(r"driver's error +.*cuDeviceGetName", said)
    assert "Optional packages" in said
    more = {"PYPARTIAL_CUDA_DRIVER": str(tmp_path / "none.so")}
    said = info_of(more)
    assert re.search(r"driver +the CUDA driver that PYPARTIAL_CUDA_DRIVER names cannot be", said)


def test_without_a_card_nothing_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    lib = types.SimpleNamespace(pp_devices=lambda _version, _count: -1)
    ffi = types.SimpleNamespace(new=lambda _declaration: [0])
    native: Any = types.SimpleNamespace(ffi=ffi, lib=lib, error=lambda _status: "install a driver")
    found: dict[str, list[str]] = {}
    monkeypatch.setattr(info.glob, "glob", lambda pattern: found.get(pattern, []))
    monkeypatch.setenv("PYPARTIAL_CUDA_DRIVER", "/no/libcuda.so.1")
    assert info.devices(native) == [("driver", "install a driver")]
    monkeypatch.delenv("PYPARTIAL_CUDA_DRIVER")
    assert info.devices(native) == [("none", "no NVIDIA card here")]
    found["/dev/nvidia*"] = ["/dev/nvidia0"]
    assert info.devices(native) == [("driver", "install a driver")]


def test_info_fits_a_terminal_and_a_fact_in_a_pipe_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = [("what", "a fact in words " * 9), ("its file", "/opt/mpi")]
    monkeypatch.setenv("COLUMNS", "80")
    info._print([("MPI", facts)], None)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith(12 * " ") for line in lines[2:-1])
    monkeypatch.delenv("COLUMNS")
    info._print([("MPI", facts)], None)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_devices_without_kernels_are_named() -> None:
    """One that NVRTC compiles for, one that it does not, and a third; they see each other."""

    def access(one: int, other: int, can: list[int]) -> int:
        can[0] = 1
        return 0

    ffi = types.SimpleNamespace(new=lambda declaration: [0])
    lib = types.SimpleNamespace(pp_device_access=access)
    native: Any = types.SimpleNamespace(ffi=ffi, lib=lib, check=lambda status: None)
    both, old = 'device_path="ipc" or "staged"', "NVRTC 13.0 does not compile for it"
    assert info.device_paths(native, [None, old, None]) == [
        ("ranks on 0", both),
        ("ranks on 1", f'device_path="staged": {old}'),
        ("ranks on 2", both),
        ("ranks on 0 and 1", 'device_path="staged": there are no kernels for 1'),
        ("ranks on 0 and 2", both),
        ("ranks on 1 and 2", 'device_path="staged": there are no kernels for 1'),
    ]
    assert info.device_paths(native, [old, old]) == [
        ("ranks of a node", f'device_path="staged": {old}')
    ]
    assert info.device_paths(native, [None]) == [("ranks on one device", both)]


def test_spans() -> None:
    assert info.spans([0, 1, 2, 5, 7, 8]) == ["0-2", "5", "7-8"]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([facts(0, "a", 2, True), facts(1, "a", 2, True)], "shared memory"),
        ([facts(0, "a", 2), facts(1, "a", 2), facts(2, "b", 1)], "not all ranks share memory"),
        ([facts(0, "a", 2), facts(1, "a", 2)], "futex"),
        ([facts(0, "a", 1)], "there is one rank"),
        ([facts(0, "a", 1), facts(1, "b", 1)], "no two ranks share a node"),
    ],
)
def test_transports_say_why(ranks: list[info.RankFacts], words: str) -> None:
    assert words in dict(info.transports(ranks))["auto"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no such file: mpirun -n P pypartial tune makes it"),
        ("{", "ignored: it is not JSON"),
        ('{"schema": 9, "entries": []}', "ignored: its schema is 9, and this version reads 1"),
        ('{"schema": 1, "entries": []}', "nothing for this MPI"),
    ],
)
def test_info_says_what_is_chosen_by(table: Path, content: str | None, words: str) -> None:
    if content is not None:
        table.parent.mkdir()
        table.write_text(content)
    native = core.load()
    found = tuning.load(native, tuning.location())
    said = dict(info.choices(native, found, [facts(0, "a", 2, True), facts(1, "a", 2, True)]))
    assert said["tuning table"].startswith(f"{table}: ")
    assert words in said["tuning table"]
    assert said["2 ranks"].startswith("recursive_doubling, ")
    assert said["2 ranks"].endswith("on; by the cost model, with default parameters")
    assert "shared memory" in said[""]
    apart = dict(info.choices(native, found, [facts(0, "a", 1), facts(1, "b", 1)]))
    assert apart["2 ranks"] != said["2 ranks"]
    assert "" not in apart
    assert "nothing to choose" in dict(info.choices(native, found, [facts(0, "a", 1)]))["1 rank"]


@pytest.mark.parametrize("spec", [None, ModuleSpec("torch", None)], ids=["nothing", "a folder"])
def test_missing_packages_are_named_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    found = dict(info.optional_packages())
    assert "pip install matplotlib" in found["matplotlib"]
    assert set(found) == {"matplotlib", "networkx", "ml_dtypes", "cupy", "torch"}
    assert all(text.startswith("not installed; for ") for text in found.values())


def test_a_package_without_metadata_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    here = ModuleSpec("torch", None, origin="torch.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: here)
    monkeypatch.setattr(importlib.metadata, "version", fail)
    assert dict(info.optional_packages())["torch"].startswith("unknown version, for ")


def test_info_explains_a_missing_core(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ImportError("pypartial was built for another MPI.")

    monkeypatch.setattr(core, "load", fail)
    from mpi4py import MPI

    assert info.info(MPI.COMM_SELF) == 1
    printed = capsys.readouterr()
    assert "built for another MPI" in printed.err
    assert "loaded by mpi4py" in printed.out


def test_info_explains_a_missing_mpi(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(info, "_why_no_mpi", lambda: "mpi4py finds no MPI library: none")
    assert info.info(None) == 1
    printed = capsys.readouterr()
    assert "finds no MPI library" in printed.err
    assert "Optional packages" in printed.out


# ---- simulations --------------------------------------------------------------------------------


def test_a_simulation_does_not_initialise_mpi():
    """Without a launcher nobody needs it."""
    code = """
import pypartial.cli
try:
    pypartial.cli.main(["sim", "schedule", "ring", "--quiet"])
except SystemExit as ending:
    print("code", ending.code)
from mpi4py import MPI
print("initialised", MPI.Is_initialized())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "code 0\ninitialised False" in done.stdout


def test_under_a_launcher_rank_0_works_and_the_others_wait():
    done = []
    comm = FakeComm(0)
    assert alone(lambda: done.append(0) or 7, comm) == 7
    assert (comm.said, done) == (7, [0])
    assert alone(lambda: done.append(1) or 0, FakeComm(1, said=7)) == 7
    assert done == [0]
