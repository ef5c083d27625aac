"""The Python blocks of Markdown pages: found, judged by the marks before them, and run.

A Python block is a whole program and runs on 4 ranks, or on one if it does not mention mpi4py.
HTML comments say otherwise. They stand on lines of their own directly before the block:

    <!-- ranks: 2 -->          it runs on so many ranks
    <!-- not run: REASON -->   it is an excerpt; the reason must be given

A block that uses PyTorch needs no mark: it is found by its text, and runs where PyTorch is.

``<!-- one program -->`` before the first block of a page joins the page's blocks: together they are
one program. Its number of ranks stands before the first block.

Lines of a program have the numbers that they have on the page, so that a traceback points there.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .mpirun import Run, mpirun, python

RANKS = 4
LIMIT_S = 180.0  # for one program
JOINED = "one program"

_FENCE = re.compile(r" {0,8}(?P<fence>`{3,}|~{3,})\s*(?P<info>[^`]*)")
_COMMENT = re.compile(r"\s*<!--\s*(.*?)\s*-->\s*")
_MARK = re.compile(r"(ranks|not run)\b(?:\s*:\s*(.*))?")
_PYTHON = {"python", "python3", "py", "pycon"}


class MarkError(ValueError):
    """A block whose marks, or whose language, say nothing that can be done."""


@dataclass(frozen=True)
class Block:
    """A Python block of a page."""

    page: str
    line: int  # of its first line of code, from 1 on
    language: str
    text: str
    comments: tuple[str, ...] = ()  # the HTML comments directly before it

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def joined(self) -> bool:
        """Whether it says that the page's blocks are one program."""
        return JOINED in self.comments

    def mark(self, wanted: str) -> str | None:
        """Return what a mark says; None if there is no such mark."""
        for comment in self.comments:
            match = _MARK.fullmatch(comment)
            if match and match[1] == wanted:
                if not match[2]:
                    raise MarkError(f"{self.name}: say it: <!-- {wanted}: ... -->")
                return match[2]
        return None

    @property
    def runs(self) -> bool:
        return self.mark("not run") is None

    def ranks(self) -> int | None:
        """Return the number of ranks that it asks for; None if it asks for none."""
        text = self.mark("ranks")
        if text is None:
            return None
        if not re.fullmatch("[1-9][0-9]*", text):
            raise MarkError(f"{self.name}: ranks: {text!r} is not a positive integer")
        return int(text)


@dataclass(frozen=True)
class Program:
    """A block that runs, or the joined blocks of a page."""

    name: str
    text: str
    ranks: int

    @property
    def needs_torch(self) -> bool:
        return re.search(r"\btorch\b", self.text) is not None


def blocks(page: str, text: str) -> Iterator[Block]:
    """Give the Python blocks of a page, in order."""
    comments: list[str] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if match := _COMMENT.fullmatch(line):
            comments.append(match[1])
        elif match := _FENCE.fullmatch(line):
            first, body = number, []
            closing = re.compile(rf"\s*{re.escape(match['fence'])}{match['fence'][0]}*\s*")
            while number < len(lines) and not closing.fullmatch(lines[number]):
                body.append(lines[number])
                number += 1
            number += 1
            language = _language(match["info"])
            if language in _PYTHON:
                code = textwrap.dedent("\n".join(body)) + "\n"
                yield Block(page, first + 1, language, code, tuple(comments))
            comments = []
        elif line.strip():
            comments = []


def _language(info: str) -> str:
    """Return a fence's language, a directive's too: ``{code-block} python``."""
    words = info.lower().split()
    if words and words[0] in ("{code-block}", "{code}", "{sourcecode}"):
        words = words[1:]
    return words[0] if words else ""


def programs(page: str, text: str) -> list[Program]:
    """Return the programs of a page.

    Raises
    ------
    MarkError
        If a block is to run that cannot, or a mark is incomplete.
    """
    found = list(blocks(page, text))
    running = [block for block in found if block.runs]
    for block in running:
        if block.language == "pycon":
            raise MarkError(
                f"{block.name}: an interactive session does not run: write a program, or mark it "
                "<!-- not run: ... -->"
            )
    if any(block.joined for block in found[1:]):
        raise MarkError(f"{page}: <!-- {JOINED} --> stands before the page's first block only")
    if not found or not found[0].joined:
        return [_program(block.name, [block]) for block in running]
    for block in running[1:]:
        if block.ranks() is not None:
            raise MarkError(f"{block.name}: the ranks of one program stand before its first block")
    return [_program(page, running)] if running else []


def _program(name: str, parts: Sequence[Block]) -> Program:
    """Join blocks; each keeps the numbers of its lines."""
    text = ""
    for part in parts:
        text += "\n" * (part.line - 1 - text.count("\n")) + part.text
    return Program(name, text, parts[0].ranks() or (RANKS if "mpi4py" in text else 1))


def pages(root: Path) -> list[Path]:
    """Return the pages of a repository whose blocks run."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def all_programs(root: Path, of: Iterable[Path] | None = None) -> list[Program]:
    """Return the programs of some pages of a repository, of all pages if none are named."""
    found: list[Program] = []
    for page in pages(root) if of is None else of:
        found += programs(page.relative_to(root).as_posix(), page.read_text(encoding="utf-8"))
    return found


def run(program: Program, folder: Path, limit_s: float = LIMIT_S) -> Run:
    """Run a program from a folder; one rank's exception ends all ranks."""
    file = folder / (re.sub(r"\W+", "_", program.name) + ".py")
    file.write_text(program.text, encoding="utf-8")
    return mpirun(program.ranks, python("-m", "mpi4py", str(file)), timeout_s=limit_s)
