"""Which generator of groups, in text and as values; `pypartial.sim.groups` runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

__all__ = ["GENERATORS_HELP", "Plan", "parse_generator"]

GENERATORS_HELP = """\
random:SIZE      the rank that asks, and others at random (Ripples 4.1)
                 ,reuse: a group that a rank is in already serves its request
smart:SIZE       all idle ranks are divided at once (Ripples 5)
                 ,no-division ,inter-intra ,c-thres=4 ,foresight=100 (0: off)
controller:SIZE  ranks in the order in which they ask (Partial Reduce)
                 ,no-unfreeze ,history=GROUPS
static           the table of Ripples 4.2, by nodes"""


_FORESIGHT_MOST = 100_000  # the generator computes with 64 bits


@dataclass(frozen=True)
class Plan:
    """A generator and its options.

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
        ``controller``: whether it connects ranks that the last groups leave unconnected.
    """

    generator: str
    size: int = 0
    reuse: bool = False
    division: bool = True
    inter_intra: bool = False
    c_thres: int = 4
    foresight: int = 100
    history: int = 0
    unfreeze: bool = True

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


_OPTIONS = {
    "random": ("reuse",),
    "smart": ("no-division", "inter-intra", "c-thres", "foresight"),
    "controller": ("no-unfreeze", "history"),
    "static": (),
}


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
        known = "random:3, smart:3, controller:3 or static"
        raise ValueError(f"{text!r} is not a generator: write {known}")
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
        plan = _CHANGES[word](plan, _value(text, option, word, equals, value))
    return plan


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 8


def _value(text: str, option: str, word: str, equals: str, value: str) -> int:
    takes = word in ("c-thres", "foresight", "history")
    if takes != bool(equals) or (takes and not _is_number(value)):
        raise ValueError(f"{text!r}: {option!r}: write {word}{'=4' if takes else ''}")
    if word == "c-thres" and int(value) < 1:
        raise ValueError(f"{text!r}: c-thres is at least 1")
    if word == "foresight" and int(value) > _FORESIGHT_MOST:
        raise ValueError(f"{text!r}: foresight is at most {_FORESIGHT_MOST}")
    return int(value or 0)


_CHANGES: dict[str, Callable[[Plan, int], Plan]] = {
    "reuse": lambda plan, _: replace(plan, reuse=True),
    "no-division": lambda plan, _: replace(plan, division=False),
    "inter-intra": lambda plan, _: replace(plan, inter_intra=True),
    "c-thres": lambda plan, value: replace(plan, c_thres=value),
    "foresight": lambda plan, value: replace(plan, foresight=value),
    "no-unfreeze": lambda plan, _: replace(plan, unfreeze=False),
    "history": lambda plan, value: replace(plan, history=value),
}
