"""docs/errors.md treats every exception class and every place that warns."""

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
PACKAGE = Path(pypartial.__file__).resolve().parent

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
    """Give the functions that call LOGGER.warning() or warnings.warn()."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-2:] in (
            ["LOGGER", "warning"],
            ["warnings", "warn"],
        ):
            yield ".".join(inside)
        yield from warned(node, (*inside, node.name) if named else inside)


def all_warned() -> set[str]:
    found = set()
    for file in PACKAGE.rglob("*.py"):
        module = file.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for function in warned(ast.parse(file.read_text(encoding="utf-8"))):
            found.add(f"{module}.{function}")
    return found


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
