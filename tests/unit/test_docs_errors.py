"""docs/errors.md treats every exception class, every text of one, and every place that warns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pypartial
from pypartial import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
HEADER = ROOT / "csrc" / "include" / "pypartial.h"
CSRC = ROOT / "csrc"
PACKAGE = Path(pypartial.__file__).resolve().parent
CLASSES = [*errors.__all__, "MemoryError", "ImportError"]
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
# What a private class is documented as.
PRIVATE = {"NoKernelsError": "Error"}
# Texts that are handed on, or made elsewhere: `test_key_words_are_in_texts` sees their parts.
HANDED_ON = {
    "(explain or explainer()).text(now - began)",
    "BETWEEN",
    "_broken(error, driver)",
    "_not_a_policy(text)",
    "explain('pypartial was built for another MPI.', built_for, used)",
    "explain(problem, None, used)",
    "explain(problem, built_for, used)",
    "missing",
    "own",
    "self._defect",
    "self._gone",
    "str(error)",
    "why",
}
# Only callers of the C core see these; the package asks before.
OF_C = {
    "More is for rounds: a request of this handle has one result",
    "elements of this handle are on their way between device and host: call pp_land() first",
    "the handle's buffers are the host's",
    "the model comes to the host, and MPI gets no address of its device",
    "no memory of the host stands for the buffers: the model stays on its device",
    "a context needs MPI, which is #",
    "nothing has come off the device yet: call Start and Wait first",
    "the caller runs no groups of this handle, or its buffers are the host's",
    "no request has been collected yet",
    "rank # is interrupted in the middle of a call",
    "there are no elements",
    "there are no kernels for device #: call pp_device_kernels() first",
    "there is no group that the caller is to run",
    "there is no result to collect: no Flush or Drain of the handle has finished",
}

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not here")


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Return what stands under each heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def statuses() -> dict[str, str]:
    """Return the exception of each error status of the C core, as its header says."""
    text = HEADER.read_text(encoding="utf-8")
    return dict(re.findall(r"^ +(PP_ERR_\w+) = -\d+,? +/\* .*: (\w+) \*/$", text, re.MULTILINE))


def warned(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Give the functions that call LOGGER.warning(), warnings.warn(), or `warn` of _native."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-2:] in (
            ["LOGGER", "warning"],
            ["warnings", "warn"],
            ["_native", "warn"],
            ["warn"],
        ):
            yield ".".join(inside)
        yield from warned(node, (*inside, node.name) if named else inside)


def all_warned() -> set[str]:
    found = set()
    for file in PACKAGE.rglob("*.py"):
        module = file.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for function in warned(ast.parse(file.read_text(encoding="utf-8"))):
            found.add(f"{module}.{function}")
    return found - {"_native.warn"}


def test_every_warning_follows_one_rule():
    """One rank may warn alone inside a collective call, so that it must not raise there."""
    callers = [
        file.relative_to(PACKAGE).as_posix()
        for file in python_files()
        if "warnings.warn(" in file.read_text(encoding="utf-8")
    ]
    assert callers == ["_native.py"]


@pytest.mark.parametrize("name", errors.__all__)
def test_each_exception_has_a_section(page, name):
    assert sections(page)[name].strip()


@pytest.mark.parametrize("name", ["MemoryError", "ImportError", "KeyboardInterrupt"])
def test_so_have_those_of_python(page, name):
    assert sections(page)[name].strip()


def test_each_section_of_an_exception_is_in_the_list_at_the_head(page):
    head = page.partition("\n## ")[0]
    for name in (*errors.__all__, "MemoryError", "ImportError"):
        assert f"| `{name}` |" in head, name
        assert f"(#{name.lower()})" in head, name


def test_each_status_of_the_core_is_treated(page):
    raised = statuses()
    assert len(raised) >= 8
    for status, name in raised.items():
        assert name in sections(page), f"{status} raises {name}"


def test_each_place_that_warns_is_treated(page):
    """A section says for which code it stands, in a comment: <!-- warns: module.function -->."""
    treated = re.findall(r"^<!-- warns: (\S+) -->$", sections(page)["Warnings"], re.MULTILINE)
    assert sorted(treated) == sorted(all_warned())


# ---- texts ---------------------------------------------------------------------------------------


def key_words(page: str, name: str) -> list[str]:
    """Return what the tables of a section quote from the texts, numbers (N) as #."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", sections(page)[name], re.MULTILINE):
        head, _, *rows = [line.strip("|").split("|") for line in table.splitlines()]
        names = [cell.strip() for cell in head]
        column = names.index("key words") if "key words" in names else 0
        for cells in rows:
            found += re.findall(r"`([^`]+)`", re.sub(r"\bN\b", "#", cells[column]))
    return found


def has(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def text_of(node: ast.expr) -> str | None:
    """Return a literal's text, with # for what is put into it; None for other expressions."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "#" for v in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def c_text(source: str) -> str:
    """Return the literals of a piece of C as one, with # for what printf() puts into them."""
    text = "".join(literal[1:-1] for literal in re.findall(LITERAL, source))
    return re.sub(r"%(?:zu|llu|lld|[dusx])", "#", text).replace('\\"', '"')


def python_files() -> Iterator[Path]:
    """Give the files of the library; the commands print texts of their own."""
    commands = [PACKAGE / name for name in ("bench", "cli", "sim")]
    for file in sorted(PACKAGE.rglob("*.py")):
        if not any(file.is_relative_to(folder) for folder in commands):
            yield file


def made_in_python() -> Iterator[tuple[str, str | None, str]]:
    """Give where the library makes an error: its class, its text, the expression of that."""
    for file in python_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name = ast.unparse(node.func).split(".")[-1]
                name = PRIVATE.get(name, name)
                if name in CLASSES:
                    yield name, text_of(node.args[0]), ast.unparse(node.args[0])


def made_in_c() -> Iterator[tuple[str, str]]:
    """Give class and text of the errors of the core that the package does not exclude before."""
    classes = statuses()
    of_ranks = ("PP_ERR_STATE", "PP_ERR_MISMATCH", "PP_ERR_PEER_FAILED", "PP_ERR_MEMORY")
    made = rf"\bpp_(?:engine_)?fail\((?:[^,;()]+, )?(\w+), \s*({LITERAL}(?:\s*{LITERAL})*)"
    files = [*CSRC.glob("api*.c"), *(CSRC / "transport").glob("mpi*.c")]
    rooms = ("coll", "cuda", "node", "progress")
    files += [file for name in rooms for file in (CSRC / name).rglob("*.c")]
    for file in files:
        for status, literals in re.findall(made, file.read_text(encoding="utf-8")):
            if status in of_ranks:
                yield classes[status], c_text(literals)


def says_something(text: str) -> bool:
    """Return whether a text has words of its own, beside those that are put into it."""
    return re.search(r"[a-z]", text) is not None


def test_each_text_of_the_package_has_key_words(page):
    made = list(made_in_python())
    assert len(made) > 50
    assert {code for _, text, code in made if text is None} == HANDED_ON
    texts = [(name, text) for name, text, _ in made if text is not None and says_something(text)]
    unknown = [
        (name, text)
        for name, text in texts
        if "internal error" not in text
        and not any(has(text, words) for words in key_words(page, name))
    ]
    assert not unknown


def test_each_text_of_the_core_has_key_words(page):
    texts = set(made_in_c())
    assert len(texts) > 50
    unknown = {
        (name, text)
        for name, text in texts
        if says_something(text) and not any(has(text, words) for words in key_words(page, name))
    }
    assert {text for _, text in unknown} == OF_C


def test_key_words_are_in_texts(page):
    """The sentences around them may change; they may not."""
    texts = set()
    for file in python_files():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        expressions = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
        docs = {node.value for node in expressions if text_of(node.value) is not None}
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.expr))
        texts |= {text_of(node) or "" for node in nodes if node not in docs}
    for file in CSRC.rglob("*.c"):
        source = file.read_text(encoding="utf-8")
        texts |= {c_text(found) for found in re.findall(rf"{LITERAL}(?:\s*{LITERAL})*", source)}
    for name in CLASSES:
        for words in key_words(page, name):
            assert any(has(text, words) for text in texts), f"{name}: {words}"
    reasons = re.findall(r"^- `([^`]+)`:", sections(page)["Warnings"], re.MULTILINE)
    assert len(reasons) == 3
    for words in reasons:
        assert any(has(text, words) for text in texts), f"Warnings: {words}"
