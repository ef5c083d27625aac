"""The rules of rounds (csrc/policy), compiled by themselves: all that policy.h declares."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import cffi

CSRC = Path(__file__).resolve().parents[2] / "csrc"

# The header's inline functions become functions that a library has.
VISIBLE = """
#include "base/base.h"
#include "base/tally.h"
#define static
#define inline
#include "base/habit.h"
#include "policy/policy.h"
"""


class Facts(NamedTuple):
    """What an observer knows of a rank: pp_facts_t."""

    waits: bool = False
    pending: bool = False
    ready: bool = False
    left: bool = False
    out: bool = False
    aside: bool = False
    elsewhere: bool = False
    overdue: bool = False

    @property
    def gone(self) -> bool:
        return self.left or self.aside


EVERYTHING = (Facts(*bits) for bits in product((False, True), repeat=len(Facts._fields)))
ALL_FACTS = [facts for facts in EVERYTHING if facts.left or not facts.out]  # who is out has left


def declarations(header: str) -> str:
    """What a header declares, for cffi: without directives and the bodies of inline functions."""
    text = re.sub(r"/\*.*?\*/", "", (CSRC / header).read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    body = r"(\{[^\n]*\}|\{\n.*?\n\})\n"
    return re.sub(rf"static inline ([^{{;]+?)\s*{body}", r"\1;\n", text, flags=re.DOTALL)


def enumerations(header: str) -> str:
    """The enumerations of a header that have names."""
    text = (CSRC / header).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"typedef enum \w+ \{.*?\} \w+;", text, re.DOTALL))


class Rules:
    """`lib` and `ffi` as of any cffi library, and the values that tests pass often."""

    def __init__(self, folder: Path) -> None:
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        assert compiler, "a C compiler is needed"
        (folder / "visible.c").write_text(VISIBLE, encoding="utf-8")
        base = [CSRC / "base" / name for name in ("random.c", "habit.c")]
        sources = [*base, *sorted((CSRC / "policy").glob("*.c"))]
        subprocess.run(
            [
                *(*compiler.split(), "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"),
                *(f"-I{CSRC}", *map(str, sources), "visible.c", "-o", "rules.so"),
            ],
            cwd=folder,
            check=True,
        )
        self.ffi: Any = cffi.FFI()
        self.ffi.cdef(enumerations("include/pypartial.h"))
        self.ffi.cdef(
            "".join(map(declarations, ("base/tally.h", "base/habit.h", "policy/policy.h")))
        )
        self.lib: Any = self.ffi.dlopen(str(folder / "rules.so"))
        self.facts = lru_cache(maxsize=None)(self.new_facts)
        self.rule = lru_cache(maxsize=4096)(self.new_rule)

    def new_facts(self, facts: Facts) -> Any:
        return self.ffi.new("pp_facts_t *", facts._asdict())

    def new_rule(
        self, policy: str, k: int, size: int, deadline: bool = False, seed: int = 0
    ) -> Any:
        rule = self.lib.pp_rule_make(getattr(self.lib, policy), k, size, deadline, seed)
        return self.ffi.new("pp_rule_t *", rule)

    def first_of(self, k: int, size: int, **more: Any) -> Any:
        return self.rule("PP_FIRST_OF", k, size, **more)

    def quorum(self, k: int, size: int, **more: Any) -> Any:
        return self.rule("PP_QUORUM", k, size, **more)

    def mask(self, ranks: set[int], size: int) -> Any:
        words = self.ffi.new("uint64_t[]", (size + 63) // 64)
        for rank in ranks:
            words[rank // 64] |= 1 << rank % 64
        return words

    def order(self, rule: Any, round: int, left: Any = None) -> list[int]:
        """The ranks in the order in which a round's initiators are drawn."""
        none = self.ffi.NULL if left is None else left
        return [self.lib.pp_order_rank(rule, round, none, place) for place in range(rule.size)]
