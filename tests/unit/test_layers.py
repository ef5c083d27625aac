"""The checker of the walls between rooms, on small trees with something wrong in them."""

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CLEAN = {
    "csrc/include/pypartial.h": "int pp_high(void);",
    "csrc/include/pypartial_sim.h": "",
    "csrc/low/low.h": "/* low.h - no atomics,\n * no clock, no thread. */\n"
    "int pp_one(int), pp_two(int);",
    "csrc/low/one.c": '#include "low.h"\nint pp_one(int n) { return n; }',
    "csrc/low/two.c": '#include "low.h"\nint pp_two(int n) { return pp_one(n); }',
    "csrc/high/high.c": '#include "../low/low.h"\nint pp_high(void) { return pp_two(1); }',
    "pypartial/__init__.py": "",
    "ci/layers": "",
}


@pytest.fixture
def layers(monkeypatch):
    """The checker, with the tables of a small architecture: low, and high above it."""
    loader = importlib.machinery.SourceFileLoader("layers", str(ROOT / "ci" / "layers"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("layers", loader))
    monkeypatch.setitem(sys.modules, "layers", module)  # where dataclasses look for it
    loader.exec_module(module)
    module.C_ROOMS = {"include": [], "low": ["include"], "high": ["low"]}
    module.C_HEADERS = {"include/pypartial_sim.h": ["high/"]}
    words = "no atomics, no clock, no thread"
    module.PROMISES = [module.Promise("low/", "low/low.h", words, module.PURE)]
    module.CIRCLES, module.ARROWS, module.LONG = set(), set(), set()
    module.PYTHON_ROOMS = {"__init__": []}
    return module


def problems(layers, root, changes):
    """What the checker says of the clean tree with other files in it."""
    for name, text in (CLEAN | changes).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    return list(layers.check(root))


def test_a_tree_that_is_as_it_should_be(layers, tmp_path):
    assert problems(layers, tmp_path, {}) == []


CIRCLE = {"csrc/low/one.c": '#include "low.h"\nint pp_one(int n) { return n ? pp_two(n - 1) : 0; }'}


def test_a_circle_of_files(layers, tmp_path):
    (problem,) = problems(layers, tmp_path, CIRCLE)
    assert "csrc/low: 2 files in a circle" in problem
    assert "low/one.c -> low/two.c (pp_two), low/two.c -> low/one.c (pp_one)" in problem


def test_a_long_circle_and_a_file_beside_it(layers, tmp_path):
    changes = {
        "csrc/low/one.c": "int pp_two(int); int pp_one(int n) { return pp_two(n); }",
        "csrc/low/two.c": "int pp_three(int); int pp_two(int n) { return pp_three(n); }",
        "csrc/low/three.c": "int pp_one(int); int pp_three(int n) { return pp_one(n); }",
        "csrc/low/four.c": "int pp_one(int); int pp_four(int n) { return pp_one(n); }",
    }
    (problem,) = problems(layers, tmp_path, changes)
    assert "3 files in a circle" in problem
    assert "four" not in problem


def test_variables_count_and_calls_through_tables_do_not(layers, tmp_path):
    through_table = {
        "csrc/low/one.c": "struct t { int (*f)(int); };\n"
        "int pp_one(int n) { return n; }\n"
        "int pp_call(struct t *t, int n) { return t->f(n); }",
        "csrc/low/two.c": "struct t { int (*f)(int); };\n"
        "int pp_one(int), pp_call(struct t *, int);\n"
        "static int mine(int n) { return n; }\n"
        "int pp_two(int n) { struct t t = {mine}; return pp_one(pp_call(&t, n)); }",
    }
    assert problems(layers, tmp_path, through_table) == []
    variable = {
        "csrc/low/one.c": "extern int pp_count; int pp_one(int n) { return n + pp_count; }",
        "csrc/low/two.c": "int pp_count, pp_one(int); int pp_two(int n) { return pp_one(n); }",
    }
    (problem,) = problems(layers, tmp_path, variable)
    assert "(pp_count)" in problem


def test_a_call_upwards(layers, tmp_path):
    upwards = {"csrc/low/one.c": "int pp_high(void); int pp_one(int n) { return n + pp_high(); }"}
    (problem,) = problems(layers, tmp_path, upwards)
    assert problem == (
        "csrc/low/one.c: pp_high() of csrc/high/high.c: there is no arrow low -> high"
    )


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("#include <stdatomic.h>\nint pp_one(int n) { return n; }", "stdatomic"),
        ("_Atomic int n_; int pp_one(int n) { return n; }", "_Atomic"),
        ("int pp_one(int n) { return __atomic_load_n(&n, 0); }", "__atomic_load_n"),
        ("long time(long *); int pp_one(int n) { return time(0) + n; }", "time"),
        ("int sched_yield(void); int pp_one(int n) { return sched_yield(); }", "sched_yield"),
        ("int MPI_Barrier(long); int pp_one(int n) { return MPI_Barrier(n); }", "MPI_Barrier"),
    ],
)
def test_a_header_is_taken_at_its_word(layers, tmp_path, line, word):
    found = problems(layers, tmp_path, {"csrc/low/one.c": line})
    says = "but csrc/low/low.h says: no atomics, no clock, no thread"
    assert f"csrc/low/one.c: {word}, {says}" in found


def test_comments_do_not_break_a_promise(layers, tmp_path):
    commented = {"csrc/low/one.c": "/* not atomic_load() */ int pp_one(int n) { return n; }"}
    assert problems(layers, tmp_path, commented) == []


def test_a_promise_that_was_taken_back(layers, tmp_path):
    silent = {"csrc/low/low.h": "int pp_one(int), pp_two(int);"}
    (problem,) = problems(layers, tmp_path, silent)
    assert problem.startswith("csrc/low/low.h does not say")


def test_a_header_that_is_for_some_only(layers, tmp_path):
    code = CLEAN["csrc/low/one.c"] + '\n#include "pypartial_sim.h"'
    (problem,) = problems(layers, tmp_path, {"csrc/low/one.c": code})
    assert problem == 'csrc/low/one.c: #include "pypartial_sim.h" is for high/'


@pytest.mark.parametrize("name", ["csrc/low/long.h", "pypartial/__init__.py", "ci/layers"])
def test_files_that_are_too_long(layers, tmp_path, name):
    assert problems(layers, tmp_path, {name: "\n" * 699}) == []
    (problem,) = problems(layers, tmp_path, {name: "\n" * 700})
    assert problem == f"{name}: 701 lines, and 700 are the most"


def test_heavy_packages_load_late_but_in_rooms_that_load_late(layers, tmp_path):
    layers.PYTHON_ROOMS = {"__init__": [], "torch": [], "cli": []}
    late = "def run():\n    import torch, typer"
    files = {"pypartial/torch/layout.py": "import torch", "pypartial/cli/app.py": "import typer"}
    assert problems(layers, tmp_path, files | {"pypartial/cli/core.py": late}) == []
    wrong = {"pypartial/torch/layout.py": "import typer", "pypartial/cli/core.py": "import torch"}
    assert problems(layers, tmp_path, files | wrong) == [
        "pypartial/cli/core.py: import torch belongs inside the function that needs it",
        "pypartial/torch/layout.py: import typer belongs inside the function that needs it",
    ]


def test_exceptions_are_for_what_they_name(layers, tmp_path):
    layers.CIRCLES, layers.LONG = {"low/one.c", "low/two.c"}, {"csrc/low/long.h"}
    assert problems(layers, tmp_path, CIRCLE | {"csrc/low/long.h": "\n" * 700}) == []
    layers.CIRCLES = {"low/one.c"}
    assert len(problems(layers, tmp_path, CIRCLE)) == 1


def test_exceptions_that_are_not_needed_any_more(layers, tmp_path):
    layers.CIRCLES, layers.LONG = {"low/one.c"}, {"csrc/low/long.h"}
    layers.ARROWS = {("low/one.c", "high")}
    found = problems(layers, tmp_path, {})
    assert len(found) == 3
    assert all("not needed any more" in problem for problem in found)


@pytest.mark.long
def test_the_repository_passes_but_for_a_planted_circle(tmp_path):
    """Two files of a copy call each other: that, and nothing else, is refused."""
    for folder in ("csrc", "pypartial", "ci"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    base = tmp_path / "csrc" / "base"
    for file, mine, other in (("text.c", "here", "there"), ("version.c", "there", "here")):
        with open(base / file, "a", encoding="utf-8") as code:
            code.write(f"int {other}(void); int {mine}(void) {{ return {other}(); }}\n")
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "ci" / "layers")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (1, "")
    (problem,) = ran.stdout.splitlines()
    assert "base/text.c -> base/version.c (there)" in problem
    assert "base/version.c -> base/text.c (here)" in problem
