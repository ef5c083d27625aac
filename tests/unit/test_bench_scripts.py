"""The scripts under bench/ and the tables of the documentation that they make."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import select
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import numpy as np
import pytest
from support import mpirun

from pypartial.bench.contenders import Contender

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "bench" / "tables"
SCRIPTS = sorted(path.stem for path in TABLES.glob("[!_]*.py"))
PAGES = [ROOT / "docs" / name for name in ("performance.md", "simulation.md")]
CHOOSING = ROOT / "docs" / "choosing.md"
MEASURED = re.compile(r"<!-- table: (\S+)(?: (\w+))? -->")
REFERENCE = "<!-- reference -->"
END = "<!-- end of table -->"


@pytest.fixture(scope="module")
def common():
    sys.path.insert(0, str(TABLES))
    yield importlib.import_module("_common")
    sys.path.remove(str(TABLES))


@pytest.fixture(scope="module")
def pages(common):
    return importlib.import_module("pages")


@pytest.fixture(scope="module")
def everything(common):
    script = str(ROOT / "bench" / "all")
    spec = importlib.util.spec_from_loader("bench_all", SourceFileLoader("bench_all", script))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False
    )


def test_no_program_has_the_name_of_a_package():
    """The folder of a program comes first on its path: cuda.py hid the package that CuPy needs."""
    names = {path.stem for path in (ROOT / "bench" / "programs").glob("*.py")}
    taken = {"cuda", "cupy", "mpi4py", "numpy", "nvidia", "torch"} | set(sys.stdlib_module_names)
    assert names
    assert not names & taken


# ---- the pages ----------------------------------------------------------------------------------


def tables_of(page: Path) -> list[tuple[int, str]]:
    """Return the line of each table's head, and the last mark before it that still holds."""
    found, mark, fenced, before = [], "", False, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if text.startswith("```"):
            fenced = not fenced
        elif MEASURED.fullmatch(text) or text == REFERENCE:
            mark = text
        elif text == END:
            mark = ""
        elif text.startswith("|") and not before.startswith("|") and not fenced:
            found.append((number, mark))
            if mark == REFERENCE:  # it holds for one table
                mark = ""
        before = text
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_table_is_a_reference_or_names_its_script(page):
    tables = tables_of(page)
    assert tables
    unmarked = [line for line, mark in tables if not mark]
    assert not unmarked, f"{page.name}: tables without a mark in lines {unmarked}"
    for line, mark in tables:
        named = MEASURED.fullmatch(mark)
        if named:
            assert (ROOT / named[1]).is_file(), f"{page.name}:{line}: there is no {named[1]}"
            assert Path(named[1]).parent == Path("bench/tables")


@pytest.mark.parametrize("page", [*PAGES, CHOOSING], ids=lambda page: page.name)
def test_marks_are_in_pairs(page):
    text = page.read_text(encoding="utf-8")
    marks = re.findall(r"<!-- (?:table|end of).*? -->", text)
    assert marks
    assert len(marks) % 2 == 0
    for begin, end in zip(marks[::2], marks[1::2], strict=True):
        assert MEASURED.fullmatch(begin)
        assert end == END


def test_each_script_has_its_place_in_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {Path(name).stem for name, _ in MEASURED.findall(text)}
    assert named == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_table_is_what_its_script_makes(common, name):
    """The columns are the script's, and the line under it says that the script made it."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    (made,) = re.findall(
        rf"<!-- table: bench/tables/{name}.py -->\n\n(.*?)\n\n{END}", text, re.DOTALL
    )
    assert f"`python bench/tables/{name}.py`*" in " ".join(made.split())
    head = getattr(importlib.import_module(name), "HEAD", None)  # `algorithms` knows it at the end
    if head is not None:
        assert made.partition("\n")[0] == "| " + " | ".join(head) + " |"


def test_each_table_of_choosing_has_its_place():
    """The keys of what `tables` returns are the second words of the marks."""
    tree = ast.parse((ROOT / "bench" / "plots" / "choosing.py").read_text(encoding="utf-8"))
    (tables,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "tables"
    ]
    (made,) = [node for node in ast.walk(tables) if isinstance(node, ast.Dict)]
    places = MEASURED.findall(CHOOSING.read_text(encoding="utf-8"))
    assert places == [("bench/plots/choosing.py", ast.literal_eval(key)) for key in made.keys]


# ---- the scripts --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name):
    done = run(TABLES / f"{name}.py", "--help")
    assert done.returncode == 0, done.stderr
    for option in ("--quick", "--json", "--markdown", "--repeats"):
        assert option in done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_says_of_itself(common, name):
    script = importlib.import_module(name)
    full, quick = script.SECONDS
    assert 0 < quick <= full
    assert all(repeats >= 1 for repeats in script.REPEATS)
    assert script.__doc__.strip()


def test_all_scripts_are_listed():
    done = run(ROOT / "bench" / "all", "--list")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == SCRIPTS


def test_all_of_quick_is_expected_to_take_20_minutes(everything):
    assert sum(everything.seconds(name, True) for name in SCRIPTS) <= 1200


def test_only(everything):
    assert everything.names(["late*", "calls"]) == ["calls", *(n for n in SCRIPTS if "late" in n)]
    done = run(ROOT / "bench" / "all", "--list", "--only", "nothing")
    assert done.returncode == 1
    assert "no such script" in done.stderr


def test_quick_figures_are_not_for_the_pages():
    done = run(ROOT / "bench" / "all", "--quick", "--update")
    assert done.returncode == 2
    assert "--quick" in done.stderr


def test_what_failed_is_said_at_the_end(everything, capsys):
    assert everything.report({0: ["a"], 77: ["b"], 1: ["c"], -9: ["d"]}) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "1 made, 1 left out, 2 failed",
        "left out: b",
        "failed: c, d",
    ]
    assert everything.report({0: ["a"], 77: ["b"]}) == 0


# ---- Markdown -----------------------------------------------------------------------------------


def test_a_fragment(common):
    table = common.Table(["size", "us"], [["8 B", "1.5"], ["a | b", "two\nlines"]], "Notes.")
    assert common.fragment("bench/tables/x.py", table, "*conditions*").splitlines() == [
        "<!-- table: bench/tables/x.py -->",
        "",
        "| size | us |",
        "| - | - |",
        "| 8 B | 1.5 |",
        "| a \\| b | two lines |",
        "",
        "Notes.",
        "",
        "*conditions*",
        "",
        END,
    ]


def test_a_row_has_as_many_cells_as_the_head(pages):
    with pytest.raises(ValueError, match="1 cells under 2 heads"):
        pages.table(["a", "b"], [["c"]])


def test_the_end_of_a_table_may_be_the_end_of_the_page(pages, tmp_path):
    page = tmp_path / "page.md"
    old, new = (pages.fragment("x.py name", text) for text in ("old", "new"))
    page.write_text(f"Before.\n\n{old}".rstrip("\n"))
    assert pages.put(page, new)
    assert page.read_text() == f"Before.\n\n{new}".rstrip("\n")


def test_a_table_without_an_end_is_refused(pages, tmp_path):
    """The next table's end is not its own."""
    page = tmp_path / "page.md"
    other = pages.fragment("y.py", "other")
    text = f"{pages.BEGIN.format('x.py')}\n\nold\n\n{other}"
    page.write_text(text)
    with pytest.raises(ValueError, match=r"x\.py --> without"):
        pages.put(page, pages.fragment("x.py", "new"))
    assert page.read_text() == text
    assert pages.put(page, pages.fragment("y.py", "new"))


def test_a_table_that_is_not_put_is_a_failure(everything, monkeypatch, capsys):
    def refuse(_name):
        raise ValueError("no end")

    for update, code, said in (
        (lambda _: True, 0, ""),
        (lambda _: False, 1, "no page"),
        (refuse, 1, "no end"),
    ):
        monkeypatch.setattr(everything, "update", update)
        assert everything.updated("calls") == code
        assert said in capsys.readouterr().out


def test_a_fragment_takes_the_place_of_the_old_one(common, everything, tmp_path, monkeypatch):
    old, other = (
        common.fragment(f"bench/tables/{name}.py", common.Table(["head"], [[name]]), "then")
        for name in ("calls", "late")
    )
    new = common.fragment("bench/tables/calls.py", common.Table(["head"], [["new \\1"]]), "now")
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    page.write_text(f"Before.\n\n{old}\nBetween.\n\n{other}\nAfter.\n")
    (tmp_path / "calls.md").write_text(new)
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    monkeypatch.setattr(everything, "WORK", tmp_path)
    monkeypatch.setattr(everything, "PAGES", ("docs/performance.md",))
    assert everything.update("calls")
    assert page.read_text() == f"Before.\n\n{new}\nBetween.\n\n{other}\nAfter.\n"
    page.write_text("Nothing.\n")
    assert not everything.update("calls")


class Once(Contender):
    """Fills a buffer when it is called for the first time in a block, or each time."""

    def __init__(self, receive: np.ndarray, block: int) -> None:
        self.receive, self.block, self.calls = receive, block, 0

    def call(self) -> None:
        if self.calls % self.block == 0:
            self.receive.fill(7)
        self.calls += 1


def test_timed_calls_on_a_device_that_do_not_write_are_noticed(common, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "programs"))
    program = importlib.import_module("on_device")
    receive = np.zeros(4, "f4")
    blocks = program.measured({"right": (Once(receive, 1), receive, 7)}, 3)
    assert len(blocks["right"]) == program.BLOCKS
    with pytest.raises(SystemExit, match="wrong: not verified"):
        program.measured({"wrong": (Once(receive, 4), receive, 7)}, 3)


# ---- launching and compiling --------------------------------------------------------------------


def test_a_launch_gives_what_the_program_saves(common, monkeypatch):
    """With the variables of a measurement, and in a folder that is gone afterwards."""
    commands = importlib.import_module("commands")
    monkeypatch.setenv("PYPARTIAL_TUNING", "somewhere")
    program = (
        "import json, os, sys; names = ('PYPARTIAL_TUNING', 'GIVEN', 'TMPDIR'); "
        "json.dump([os.getcwd(), *map(os.environ.get, names)], open(sys.argv[1], 'w'))"
    )
    saved = commands.launched(1, [sys.executable, "-c", program], env={"GIVEN": "x"})
    assert saved == [saved[0], "off", "x", saved[0]]
    assert not Path(saved[0]).exists()
    with pytest.raises(commands.Problem, match="exit code 3\nlast words"):
        commands.launched(1, ["sh", "-c", "echo last words; exit 3"])


def test_what_a_launch_started_ends_with_it(common, tmp_path, monkeypatch):
    """Also what has left the launch's session."""
    monkeypatch.setattr(mpirun, "SURVIVES_S", 0.5)
    commands = importlib.import_module("commands")
    note = tmp_path / "pid"
    script = f"setsid sh -c 'echo $$ >{note}; exec sleep 600' &"
    script += f" while [ ! -s {note} ]; do :; done; exit 1"
    with pytest.raises(commands.Problem, match="exit code 1"):
        commands.launched(1, ["sh", "-c", script])
    process = select.poll()
    try:
        process.register(os.pidfd_open(int(note.read_text())), select.POLLIN)
    except ProcessLookupError:
        return
    assert process.poll(10_000), "it goes on"  # until it has ended, reaped or not


def test_commands_of_a_launch(common):
    commands = importlib.import_module("commands")
    assert commands.command("sim", "fuzz", python="p") == [
        *["p", "-m", "pypartial", "sim", "fuzz", "--json"]
    ]
    assert commands.start(1) == []
    assert commands.start(1, ["other"]) == ["other", "-n", "1"]
    assert commands.start(2)[1:3] == ["-n", "2"]


FAKE_MPICC = """#!/bin/sh
# The wrapper of an MPI with a version; it notes what it compiles.
folder=$(dirname "$0")
case " $* " in
*" -show "*) cat "$folder/show" ;;
*" -E "*) cat "$folder/version" ;;
*) echo compiled >>"$folder/log"; while [ "$1" != -o ]; do shift; done; cp "$folder/version" "$2" ;;
esac
"""


def test_a_program_is_compiled_once_for_each_mpi(common, tmp_path, monkeypatch):
    programs = importlib.import_module("_programs")
    monkeypatch.setattr(programs, "WORK", tmp_path / "work")

    def compiled(mpi: str, version: str, show: str = "cc -lmpi") -> tuple[Path, int]:
        folder = tmp_path / mpi
        folder.mkdir(exist_ok=True)
        (folder / "version").write_text(version)
        (folder / "show").write_text(show)
        (folder / "mpicc").write_text(FAKE_MPICC)
        (folder / "mpicc").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
        program = programs.compile_c("allreduce")
        assert program.read_text() == version
        return program, len((folder / "log").read_text().splitlines())

    first = compiled("one", "1")
    assert compiled("one", "1") == first  # not again
    other = compiled("two", "1")  # elsewhere, of the same version
    newer = compiled("one", "2")  # a new version in the same place, or changed sources
    linked = compiled("one", "1", "cc -lmpi_debug")  # another library
    assert len({first[0], other[0], newer[0], linked[0]}) == 4
    assert [first[1], other[1], newer[1], linked[1]] == [1, 1, 2, 3]
    assert compiled("one", "1") == (first[0], 3)  # that one is still there
    assert len(list((tmp_path / "work").iterdir())) == 4


def test_a_compiler_that_fails_is_a_problem(common, tmp_path, monkeypatch):
    programs = importlib.import_module("_programs")
    (tmp_path / "mpicc").write_text("#!/bin/sh\necho no licence >&2\nexit 4\n")
    (tmp_path / "mpicc").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(programs.Problem, match="exit code 4\nno licence"):
        programs.compile_c("allreduce")


@pytest.mark.parametrize("skew_us", [0, 100], ids=["balanced", "skewed"])
@pytest.mark.parametrize("wrong", [None, "full", "solo"])
def test_calls_in_c_that_do_not_write_are_noticed(common, tmp_path, wrong, skew_us):
    """The library's stand-in writes no result but the first of a block: that one does not count."""
    mpicc = shutil.which("mpicc", path=os.path.dirname(sys.executable)) or shutil.which("mpicc")
    sources = [ROOT / "bench" / "c" / "allreduce.c", ROOT / "tests/unit/c/allreduce_cases.c"]
    program, results, calls = tmp_path / "allreduce", tmp_path / "results.json", 5
    number = {"full": 0, "solo": 1, None: -1}[wrong]  # in the order in which handles are made
    words = [mpicc, "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc' / 'include'}"]
    words += [f"-DWRONG={number}", f"-DEVERY={1 + calls}", *map(str, sources), "-o", str(program)]
    subprocess.run(words, check=True)
    asked = ["64", "3", str(calls), str(skew_us), str(results)]
    done = subprocess.run(
        [str(program), *asked], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode == 0) == (wrong is None), done.stderr
    assert results.exists() == (wrong is None)
    if wrong is not None:
        assert f"allreduce: {wrong}: element 0 is -1" in done.stderr


# ---- figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123456, "0.0123"),
        (0.34, "0.340"),
        (3.14159, "3.14"),
        (56.25, "56.2"),
        (564.4, "564"),
        (16442, "16,400"),
        (-4.5, "-4.50"),
    ],
)
def test_numbers_have_three_digits(common, value, text):
    assert common.number(value) == text


def test_sizes(common):
    assert [common.size_text(n) for n in (8, 1000, 1 << 10, 64 << 10, 4 << 20)] == [
        "8 B",
        "1000 B",
        "1 KB",
        "64 KB",
        "4 MB",
    ]


def test_one_value_has_no_interval(common):
    assert common.middle([2.0]) == common.extremes([2.0]) == "2.00"
    assert common.middle([]) == ""
    assert common.extremes([3.6, 12.0, 5.2]) == "5.20 (3.60-12.0)"


LAUNCHES = (1000.0, 3000.0)  # of what a table's first figure is made


def latencies(*ways: str, **fields: object) -> list[list[dict[str, object]]]:
    """Return the rows of each launch, in which each way takes the same time."""
    return [
        [
            {"policy": way, "way": way, "bytes": 8, "latency_us": {"p50": us}, **fields}
            for way in ways
        ]
        for us in LAUNCHES
    ]


def figures_of(name: str) -> tuple[list[str], slice]:
    """Return the cells that a script makes of two launches, and which of them are medians."""
    table = importlib.import_module(name)
    ways = ("mpi", "full", "solo")
    ratios = dict.fromkeys(("ratio_to_mpi", "ratio_to_mpi_persistent", "ratio_to_memcpy"), 1.0)
    ratios["ratio_to_create_group"] = 1.0
    group = {"groups": 1, "size": 2, **ratios}
    if name == "calls":
        rows = [{"ns": {"median": ns}, **ratios} for ns in LAUNCHES]
        return table.cells(rows), slice(0, 1)
    if name in ("balanced_messages", "shared_memory"):
        both = [
            [row | {"buffers": kind} for kind in ("library", "numpy") for row in rows]
            for rows in latencies(*ways, **ratios)
        ]
        return table.cells(both, 2, 8), slice(2, 4)
    if name == "gloo":
        return table.cells([[{"bytes": 8, "us": us}] for us in LAUNCHES], latencies(*ways), 8), (
            slice(0, 1)
        )
    if name == "intel_mpi":
        both = [
            [row | {"buffers": kind} for kind in ("library", "numpy") for row in rows]
            for rows in latencies(*ways)
        ]
        return table.cells(both, both, 8), slice(0, 2)
    if name == "group_messages":
        rows = latencies("mpi", "full", *table.GENERATORS, **group)
        return table.cells(rows, 2, 8), slice(2, 3)
    if name == "groups":
        rows = latencies("mpi", "mpi-create-group", *table.GENERATORS, **group)
        return table.cells(rows, 1, 2, 8), slice(2, 4)
    if name == "in_c":
        return table.cells([{"mpi": us, "full": us} for us in LAUNCHES], "full"), slice(0, 1)
    assert name == "torch_steps"
    ways_of = [("gloo", None), *table.WAYS]
    steps = [
        [
            {"part": "late", "bytes": 8, "way": way, "policy": policy, "step_us": {"median": us}}
            | {"ratio_to_gloo": {"median": 1.0}}
            for way, policy in ways_of
        ]
        for us in (1e3 * us for us in LAUNCHES)
    ]
    return table.cells(steps, 2, "late", 8), slice(2, 3)


@pytest.mark.parametrize(
    "name",
    [
        *("balanced_messages", "calls", "gloo", "group_messages", "groups", "in_c", "intel_mpi"),
        *("shared_memory", "torch_steps"),
    ],
)
def test_the_median_of_two_launches_lies_between_them(common, name):
    cells, medians = figures_of(name)
    assert [cell.partition(" (")[0] for cell in cells[medians]] == (["2,000"] * len(cells[medians]))


def test_an_interval_is_always_the_same(common):
    values = np.random.default_rng(5).normal(1.5, 0.1, 15)
    found = common.interval(values)
    assert found.low < found.median < found.high
    assert found == common.interval(values)


def test_sides_take_turns_in_an_order_that_alternates(common):
    assert list(common.Run(repeats=3).turns(["a", "b"])) == ["a", "b", "b", "a", "a", "b"]


def test_the_best_of_mpis_own_calls(common):
    rows = [
        {"policy": policy, "bytes": 8, "latency_us": {"p50": us}}
        for policy, us in [("mpi", 2.0), ("mpi-persistent", 1.0), ("full", 0.5)]
    ]
    assert common.mpi_times(rows, 8) == {"mpi": 2.0, "mpi-persistent": 1.0}
    assert common.find(rows, policy="full")["latency_us"]["p50"] == 0.5
    with pytest.raises(KeyError, match="solo"):
        common.find(rows, policy="solo")
