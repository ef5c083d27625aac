"""Which generator of groups, in text and as values; `pypartial.sim.groups` runs them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ..groups import FORESIGHT_MOST, Controller, Generator, Random, Smart, Static

__all__ = ["GENERATORS_HELP", "USAGES", "Plan", "names_generator", "parse_generator"]

GENERATORS_HELP = """\
random:SIZE      the rank that asks, and others at random (Ripples 4.1)
                 ,reuse: a group that a rank is in already serves its request
smart:SIZE       all idle ranks are divided at once (Ripples 5)
                 ,no-division ,inter-intra ,c-thres=4 ,foresight=100 (0: off)
                 ,no-unfreeze
controller:SIZE  ranks in the order in which they ask (Partial Reduce)
                 ,no-unfreeze ,history=GROUPS
static           the table of Ripples 4.2, by nodes"""

_CLASSES: dict[str, type[Generator]] = {
    "random": Random,
    "smart": Smart,
    "controller": Controller,
    "static": Static,
}
USAGES = ", ".join(name if name == "static" else f"{name}:SIZE" for name in _CLASSES)


@dataclass(frozen=True)
class Plan:
    """A generator and its options, all of which have the defaults of `pypartial.groups`.

    Nothing is checked, so that tests can describe what the core must refuse.

    Attributes
    ----------
    generator : str
        ``random``, ``smart``, ``controller`` or ``static``.
    size : int
        Ranks of a group, at least 2; 0 with ``static``, whose table has groups of several sizes.
    reuse : bool
        ``random``: a group that a rank is in already serves its request.
    division, inter_intra : bool
        ``smart``: whether all idle ranks are divided at once; whether a division makes groups
        between nodes and then one in each node.
    c_thres : int
        ``smart``: a rank so many requests behind the asking one is left out.
    foresight : int
        ``smart``: a rank whose next request is further ahead than this, in hundredths of a mean
        computation, is left out; 0: no such filter.
    history : int
        ``controller``: the groups of the sync-graph, enough to connect all ranks; 0: automatic.
    unfreeze : bool
        ``smart``, ``controller``: whether it connects ranks that the last groups leave unconnected.
    """

    generator: str
    size: int = 0
    reuse: bool = Random.reuse
    division: bool = Smart.division
    inter_intra: bool = Smart.inter_intra
    c_thres: int = Smart.c_thres
    foresight: int = Smart.foresight
    history: int = 0
    unfreeze: bool = Controller.unfreeze

    @property
    def text(self) -> str:
        """The plan in the words that `parse_generator` reads."""
        parts = [self.generator + (f":{self.size}" if self.size else "")]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("generator", "size") or value == field.default:
                continue
            word = field.name.replace("_", "-")
            if isinstance(value, bool):
                parts.append(word if value else f"no-{word}")
            else:
                parts.append(f"{word}={value}")
        return ",".join(parts)


def _options(generator: type[Generator]) -> dict[str, tuple[str, bool | None]]:
    """Return the words of a generator's options, and for each its field and its value.

    The value is None where the user writes one.
    """
    words: dict[str, tuple[str, bool | None]] = {}
    for field in fields(generator):
        word = field.name.replace("_", "-")
        if isinstance(field.default, bool):
            words[f"no-{word}" if field.default else word] = field.name, not field.default
        elif field.name not in ("size", "nodes", "per_node"):
            words[word] = field.name, None
    return words


_OPTIONS = {name: _options(generator) for name, generator in _CLASSES.items()}


def names_generator(text: str) -> bool:
    """Return whether a text begins with the name of a generator; its options may be wrong."""
    return text.partition(",")[0].partition(":")[0].strip().lower() in _CLASSES


def parse_generator(text: str) -> Plan:
    """Read a generator: ``smart:3``, ``controller:2,no-unfreeze``, ``static``.

    Raises
    ------
    ValueError
        If the text is not a generator; the error says what to write.
    """
    first, *options = (part.strip() for part in text.strip().lower().split(","))
    name, colon, size = first.partition(":")
    if name not in _OPTIONS:
        raise ValueError(f"{text!r} is not a generator: write one of {USAGES}")
    if name == "static" and colon:
        raise ValueError(f"{text!r}: static has no size; write static")
    if name != "static" and not (_is_number(size) and int(size) >= 2):
        raise ValueError(f"{text!r}: a group has at least 2 ranks; write {name}:2")
    plan = Plan(name, int(size or 0))
    for option in options:
        word, equals, value = option.partition("=")
        if word not in _OPTIONS[name]:
            allowed = ", ".join(_OPTIONS[name]) or "none"
            raise ValueError(f"{text!r}: {word!r} is not an option of {name}; it has: {allowed}")
        field, fixed = _OPTIONS[name][word]
        given = _value(text, option, word, equals, value, fixed is None)
        changes: dict[str, Any] = {field: given if fixed is None else fixed}
        plan = replace(plan, **changes)
    return plan


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 8


def _value(text: str, option: str, word: str, equals: str, value: str, takes: bool) -> int:
    if takes != bool(equals) or (takes and not _is_number(value)):
        raise ValueError(f"{text!r}: {option!r}: write {word}{'=4' if takes else ''}")
    if word in ("c-thres", "history") and int(value) < 1:
        raise ValueError(f"{text!r}: {word} is at least 1")
    if word == "foresight" and int(value) > FORESIGHT_MOST:
        raise ValueError(f"{text!r}: foresight is at most {FORESIGHT_MOST}")
    return int(value or 0)
