"""Options of ``pypartial sim gossip``, in types that need no compiled module."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from .._names import PROTOCOL
from .._queue_options import Mode, read_mode
from ..errors import ArgumentError
from ..topology import RankGraph, Topology, spell_cycle
from ..units import spell_duration
from .arrivals import LONGEST_NS, arrivals_complaint

__all__ = [
    *("METHODS_HELP", "ComputationGraph", "GossipOptions", "Method"),
    *("parse_link", "parse_method"),
]

METHODS_HELP = """\
ad-psgd             an average with a neighbour, drawn at random
ad-psgd-active      the same; only one side of a bipartite topology asks
ad-psgd-continuous  the next average begins when the last one is over
d-psgd              the average of all neighbours, in every iteration
hop                 queues; hop:max_ig=4,backup=1 for example. Options:
                    max_ig=4 (or staleness + 1), backup=0, staleness=S,
                    skip=M, skip_trigger=2,
                    protocol=tokens (or notify-ack, none)"""

_FACTOR_MOST = 10**6
_LINK = re.compile(r"(\d{1,7}(?:-\d{1,7})?):(\d{1,9}(?:\.\d{1,9})?)x?", re.ASCII)


@dataclass(frozen=True)
class Method:
    """What is simulated.

    Attributes
    ----------
    text : str
    mode : Mode or None
        Of queues; None: ranks average in pairs.
    active : bool
        Only one side of the graph asks for averages.
    continuous : bool
        A rank's next average begins when its last is over.
    """

    text: str
    mode: Mode | None = None
    active: bool = False
    continuous: bool = False

    def complaint(self, graph: RankGraph) -> str | None:
        """Return why the method does not run on a graph; None if it does."""
        if self.mode is not None:
            try:
                self.mode.backups(graph)
            except ArgumentError as error:
                return str(error)
        elif graph.directed:
            return f"topology {graph.topology} is directed"
        elif self.active and graph.odd_cycle is not None:
            return f"topology {graph.topology} has the odd cycle {spell_cycle(graph.odd_cycle)}"
        return None


class ComputationGraph(str, Enum):
    """Whether a rank computes while its update travels (Hop, Figure 2)."""

    PARALLEL = "parallel"
    SERIAL = "serial"


@dataclass(frozen=True)
class GossipOptions:
    """Options of one run of ``pypartial sim gossip``.

    Attributes
    ----------
    methods : tuple of Method
        To simulate, one after the other.
    ranks, iterations : int
        Each simulation ends when the fastest rank has made so many iterations.
    topology : Topology
    arrivals : str
        In the form that `parse_arrivals` reads.
    links : tuple of pairs
        Slow links: a rank, whose links all are, or two; and how many times as long models take.
    message_ns : int
        How long a model takes over a link that is not slow.
    graph : ComputationGraph
    seed, base_ns : int
    log, json : Path or None
        Files for what ranks do, and for the results.
    """

    methods: tuple[Method, ...]
    ranks: int
    iterations: int
    topology: Topology
    arrivals: str
    links: tuple[tuple[tuple[int, ...], float], ...]
    message_ns: int
    graph: ComputationGraph
    seed: int
    base_ns: int
    log: Path | None = None
    json: Path | None = None

    def complaint(self) -> str | None:
        """Return what is wrong with these options; None if nothing is."""
        arrivals = self.arrivals, self.ranks, self.iterations, self.seed, self.base_ns
        graph = self.topology.on(self.ranks)
        for ends, _ in self.links:
            if max(ends) >= self.ranks:
                return f"--link: {max(ends)} is not one of {self.ranks} ranks"
            if len(ends) > 1 and not graph.graph.has_edge(*ends):
                return f"--link: topology {self.topology} does not connect {ends[0]} with {ends[1]}"
        if self.links and not self.message_ns:
            return "--link: messages take no time; give --message-time, too"
        if self.message_ns > LONGEST_NS:
            return f"--message-time is longer than {spell_duration(LONGEST_NS)}"
        if self.log is not None and len(self.methods) > 1:
            return "--log: one file has what one --method does; name one only"
        for method in self.methods:
            complaint = method.complaint(graph)
            if complaint is None and method.continuous and not self.message_ns:
                complaint = "averages take no time; give --message-time, too"
            if complaint is not None:
                return f"--method {method.text}: {complaint}"
        return arrivals_complaint(*arrivals, steps_option="--iterations")


def parse_method(text: str) -> Method:
    """Read a method: ``ad-psgd``, ``hop:max_ig=8,backup=1``; a `ValueError` says what to write."""
    word = text.strip().lower()
    name, colon, rest = word.partition(":")
    if word in _PLAIN:
        return _PLAIN[word]
    if name != "hop" or (colon and not rest):
        known = ", ".join(_PLAIN)
        raise ValueError(f"{text!r} is not a method: write one of {known}, hop:max_ig=4,backup=1")
    given: dict[str, Any] = {}
    for option in filter(None, rest.split(",")):
        key, _, value = (part.strip() for part in option.partition("="))
        if key not in _OPTIONS:
            raise ValueError(f"{text!r}: {key!r} is not an option; hop has {', '.join(_OPTIONS)}")
        is_number = value.isascii() and value.isdecimal() and len(value) < 8
        if not (value in PROTOCOL if key == "protocol" else is_number):
            example = " or ".join(PROTOCOL) if key == "protocol" else "4"
            raise ValueError(f"{text!r}: {option.strip()!r}: write {key}={example}")
        given[key] = value if key == "protocol" else int(value)
    try:
        return Method(word, read_mode(**given))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def parse_link(text: str) -> tuple[tuple[int, ...], float]:
    """Read a rank with slow links, or the two of one link, and how slow: ``3:10x``, ``3-4:10x``."""
    found = _LINK.fullmatch(text.strip().lower())
    if found is None or not 0 < float(found[2]) <= _FACTOR_MOST:
        raise ValueError(
            f"{text!r} is not a rank, or two, and a factor up to {_FACTOR_MOST}: write 0:10x for "
            "all links of rank 0, or 0-1:10x"
        )
    return tuple(map(int, found[1].split("-"))), float(found[2])


_OPTIONS = tuple(field.name for field in fields(Mode) if field.name != "weighted")
_PLAIN = {
    method.text: method
    for method in (
        Method("ad-psgd"),
        Method("ad-psgd-active", active=True),
        Method("ad-psgd-continuous", continuous=True),
        Method("d-psgd", Mode(protocol="none", weighted=True)),
    )
}
