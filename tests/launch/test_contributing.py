"""The commands and programs of CONTRIBUTING.md, run in order as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from support.mpirun import Run, program

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LIMIT_S = 180
# What the commands may ask for. The package is not among them: Python is to find the installed one,
# also where the tree is not built.
LINKS = ("ci", "csrc", "docs", "examples", "pyproject.toml", "tests")

pytestmark = pytest.mark.timeout(5 * LIMIT_S)


@dataclass(frozen=True)
class Block:
    """A fenced block: what is written behind the fence, and between the fences."""

    info: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.info}: {self.text.splitlines()[0]}"


BLOCKS = [
    Block(match[1], match[2])
    for match in re.finditer(r"^```(\S[^\n]*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
]
COMMANDS = [block for block in BLOCKS if block.info in ("sh", "sh fails")]


def programs() -> dict[str, str]:
    """Return the Python files that the text shows, by their names."""
    found = [block for block in BLOCKS if re.fullmatch(r"python \w+\.py", block.info)]
    return {block.info.split()[1]: block.text for block in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the root of a checkout, with the files that the text shows; files are made here only."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in LINKS:
        (folder / name).symlink_to(ROOT / name)
    for name, text in programs().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def make_what_it_reads(block: Block, folder: Path) -> None:
    """Run the block before that makes a file, if that was run by another process of the tests."""
    for name in re.findall(r'open\("(\w+\.json)"\)', block.text):
        (maker,) = [other for other in COMMANDS if f"--json {name}" in other.text]
        if not (folder / name).exists():
            run(maker, folder)


def run(block: Block, folder: Path) -> Run:
    tool, text = block.text.split()[0], block.text
    if tool in ("pypartial", "pytest") and not Path(sys.executable).with_name(tool).exists():
        # That on the PATH, if any, is another Python's.
        text = re.sub(rf"(?<![\w/.-]){tool} ", f"{sys.executable} -m {tool} ", text)
    words = ["bash", "-euo", "pipefail", "-c", text]
    return program(words, timeout_s=LIMIT_S, env={"PY_COLORS": "0"}, cwd=folder)


def test_every_block_is_of_a_known_kind() -> None:
    kinds = {"sh", "sh fails", "sh no-run", "python cell"}
    for block in BLOCKS:
        assert block.info in kinds or re.fullmatch(r"python \w+\.py", block.info), block.name
    assert TEXT.count("```") == 2 * len(BLOCKS)
    assert len(COMMANDS) == 8
    for name in programs():
        assert any(name in block.text for block in COMMANDS), f"{name} is not run"


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.name)
def test_a_command(block: Block, folder: Path) -> None:
    if "gdb" in block.text and shutil.which("gdb") is None:
        pytest.skip("there is no gdb here")
    make_what_it_reads(block, folder)
    ran = run(block, folder)
    if block.info == "sh fails":
        assert ran.returncode == 1, ran.explain()
        assert "FAILED" in ran.output, ran.explain()
    else:
        assert ran.returncode == 0, ran.explain()
    if "pytest" in block.text:  # "one test" is one; a pattern that matches everything is noticed
        passed = re.search(r"^=* ?(\d+) passed", ran.output, re.MULTILINE)
        assert passed is not None, ran.explain()
        assert int(passed[1]) <= (1 if "-k" in block.text and "unit" in block.text else 30)


def test_what_is_linked_is_there() -> None:
    for target, _, anchor in re.findall(r"\]\(([^)#:]+)(#([^)]+))?\)", TEXT):
        assert (ROOT / target).exists(), target
        if anchor:
            text = (ROOT / target).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert anchor in {re.sub(r"\W+", "-", h.lower()).strip("-") for h in headings}
    for path in re.findall(r"`((?:tests|csrc|pypartial|docs|ci)/[\w./]+)`", TEXT):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`((?:bench|cli)/[\w./]+)`", TEXT):
        assert (ROOT / "pypartial" / name).exists(), name


def test_the_cell_is_measured(folder: Path) -> None:
    """In ci/compare, whose revisions are this package."""
    (shown,) = [block for block in BLOCKS if block.info == "python cell"]
    spec = spec_from_loader("ci_compare", SourceFileLoader("ci_compare", str(ROOT / "ci/compare")))
    compare = module_from_spec(spec)
    sys.modules["ci_compare"] = compare  # dataclasses look their annotations up there
    try:
        spec.loader.exec_module(compare)
        exec(compile(shown.text, "CONTRIBUTING.md", "exec"), vars(compare))
        cells = list(compare.deadline_cells())
        here = compare.Revision("here", Path(os.environ.get("PYTHONPATH", str(folder))))
        figures = cells[0].source.figures(here, cells)
    finally:
        del sys.modules["ci_compare"]
    assert [cell.name for cell in cells] == ["latency/2/deadline/8B"]
    assert figures[cells[0]] > 0


# ---- noxfile.py, .pre-commit-config.yaml, .clang-format -----------------------------------------


def test_the_sessions_of_nox() -> None:
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    compile(text, "noxfile.py", "exec")
    sessions = re.findall(r"^@nox\.session\ndef (\w+)", text, re.MULTILINE)
    assert sessions == ["build", "unit", "sim", "mpi", "torch", "lint", "types", "docs", "bench"]
    nox = shutil.which("nox")
    if nox is None:
        pytest.skip("there is no nox here: its list of sessions is not asked for")
    listed = subprocess.run(
        [nox, "--list", "-f", str(ROOT / "noxfile.py")], capture_output=True, text=True, check=True
    )
    for session in sessions:
        assert re.search(rf"^[*-] {session} ", listed.stdout, re.MULTILINE), listed.stdout


def test_the_revisions_of_pre_commit_are_pinned() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    hooks = re.findall(r"^      - id: (\S+)$", text, re.MULTILINE)
    assert {"ruff-check", "clang-format", "codespell"} <= set(hooks)
    needed = re.findall(r"^        additional_dependencies: \[(.*)\]$", text, re.MULTILINE)
    assert len(needed) == len(hooks)
    for one in ", ".join(needed).split(", "):
        assert re.fullmatch(r"[\w-]+==\d+(\.\d+)+", one), one
