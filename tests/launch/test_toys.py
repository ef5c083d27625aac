"""The worked examples of docs/extending.md, built as their own commits would be, and simulated."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import built

ROOT = Path(__file__).resolve().parents[2]
TOYS = Path(__file__).with_name("toys")
QUICK = "-O1 -fno-lto"
LIMIT_S = 300

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2 * LIMIT_S)]


@dataclass(frozen=True)
class Toy:
    """An example: its files are in the folder of its name.

    Attributes
    ----------
    most : int
        Files that it may change, without its own.
    changes : tuple
        (file, text that stands there once, the text instead). CLASS is what `NAME.py` defines.
    """

    name: str
    most: int
    changes: tuple[tuple[str, str, str], ...]

    @property
    def folder(self) -> Path:
        return TOYS / self.name

    def own(self) -> list[str]:
        sources = (path for path in self.folder.glob("*/**/*") if path.is_file())
        return [str(path.relative_to(self.folder)) for path in sources]

    def definition(self) -> str:
        """Return the class that goes into a file of the package, if any does."""
        file = self.folder / f"{self.name}.py"
        if not file.exists():
            return ""
        text = file.read_text(encoding="utf-8")
        return text[text.index("@dataclass") :]

    def add_to(self, tree: Path) -> None:
        for file in self.own():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / file).write_bytes((self.folder / file).read_bytes())
        for file, before, after in self.changes:
            text = (tree / file).read_text(encoding="utf-8")
            assert text.count(before) == 1, f"{file}: {before!r}"
            after = after.replace("CLASS", self.definition())
            (tree / file).write_text(text.replace(before, after), encoding="utf-8")


EXAMPLES = [
    Toy(
        "in_turn",
        6,
        (
            (
                "csrc/policy/policies.c",
                "    line(quorum)\n",
                "    line(quorum)          \\\n    line(in_turn)\n",
            ),
            ("pypartial/policy.py", "def as_policy(", "CLASS\n\ndef as_policy("),
            ("pypartial/policy.py", '"Full", "Majority"', '"Full", "InTurn", "Majority"'),
            ("pypartial/__init__.py", "FirstOf, Full, Majority", "FirstOf, Full, InTurn, Majority"),
            ("pypartial/__init__.py", '    "Full",\n', '    "Full",\n    "InTurn",\n'),
        ),
    ),
    Toy(
        "neighbours",
        3,
        (
            (
                "csrc/groups/parts.h",
                "    line(given)\n",
                "    line(given)             \\\n    line(neighbours)\n",
            ),
            ("pypartial/groups.py", "def least_history(", "CLASS\n\ndef least_history("),
            ("pypartial/groups.py", '"Given", "Random"', '"Given", "Neighbours", "Random"'),
            ("pypartial/sim/generators.py", "Generator, Random", "Generator, Neighbours, Random"),
            (
                "pypartial/sim/generators.py",
                '    "random": Random,\n',
                '    "random": Random,\n    "neighbours": Neighbours,\n',
            ),
        ),
    ),
    Toy(
        "barrier",
        10,
        (
            (
                "csrc/include/pypartial.h",
                "enum { PP_CONTRIBUTORS_MAX",
                "pp_status_t pp_barrier_init_begin(pp_ctx_t *ctx, const int32_t *k,\n"
                "    const char *complaint, pp_handle_t **handle);\n\n"
                "enum { PP_CONTRIBUTORS_MAX",
            ),
            (
                "pypartial/context.py",
                "class Context(AllreduceInit, GossipInit, PreduceInit, QueueInit, Sight):",
                "class Context(AllreduceInit, BarrierInit, GossipInit, PreduceInit, QueueInit, "
                "Sight):",
            ),
            (
                "pypartial/context.py",
                "from ._allreduce_init import AllreduceInit\n",
                "from ._allreduce_init import AllreduceInit\nfrom .barrier import BarrierInit\n",
            ),
        ),
    ),
]


@pytest.mark.parametrize("toy", EXAMPLES, ids=lambda toy: toy.name)
def test_it_works_and_changes_few_files(toy: Toy, tmp_path: Path) -> None:
    assert len({file for file, _, _ in toy.changes}) <= toy.most
    built.copy_worktree(tmp_path)
    toy.add_to(tmp_path)
    paths = [tmp_path, tmp_path / "tests"]
    env = {**os.environ, "CFLAGS": QUICK, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    for command in (["setup.py", "-q", "build_ext", "--inplace"], [toy.folder / "program.py"]):
        run = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.split() == toy.name.split("_")


@pytest.mark.parametrize("toy", EXAMPLES, ids=lambda toy: toy.name)
def test_the_documentation_shows_it(toy: Toy) -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    for file in toy.own():
        assert file in page
        is_linked = f"(../tests/launch/toys/{toy.name}/{file})" in page
        assert is_linked or (toy.folder / file).read_text(encoding="utf-8") in page
    assert toy.definition() in page
    for file, _, after in toy.changes:
        assert file in page
        if file.startswith("csrc"):
            assert after in page
