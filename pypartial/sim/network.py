"""Networks: the cost of messages between simulated ranks, by LogGPS parameters and presets.

A message of s bytes keeps its sender busy for o, is under way for L + (s - 1) G, and keeps its
receiver busy for o. Consecutive sends of a rank, and consecutive receives, begin at least
max(o, g + (s - 1) G) apart. Messages of more than S bytes go by rendezvous: request, clear-to-send,
data. LogGP is by Alexandrov et al. (SPAA 1995), S by Ino et al. (LogGPS, PPoPP 2001).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from ..units import parse_duration, parse_picoseconds, parse_rate, parse_size

__all__ = ["PRESETS", "Link", "Network", "parse_network"]

_LIMIT = 1 << 62
_RANKS_LIMIT = 1 << 31


def _check(name: str, value: object, least: int = 0, limit: int = _LIMIT) -> None:
    """Raise ValueError unless ``least <= value < limit``, and an integer."""
    if type(value) is not int:
        raise ValueError(f"{name}={value!r} is not an integer")
    if not least <= value < limit:
        raise ValueError(f"{name}={value} is not in {least}..2**{limit.bit_length() - 1} - 1")


@dataclass(frozen=True)
class Link:
    """The cost of a message between two ranks. Immutable; compared by value.

    Attributes
    ----------
    latency_ns : int
        L: the time of the first byte from the sender to the receiver.
    overhead_ns : int
        o: the time for which the sender is busy, and then the receiver.
    gap_ns : int
        g: the least time between the beginnings of consecutive sends of a rank, and of its
        receives.
    byte_ps : int
        G: the time of each further byte, in picoseconds.
    rendezvous_bytes : int or None
        S: larger messages go by rendezvous. None: no message does.
    jitter_ns : int
        Each message takes longer by a time drawn from 0..jitter_ns.

    Raises
    ------
    ValueError
        If a value is not an integer in 0..2**62 - 1; the error names it.
    """

    latency_ns: int
    overhead_ns: int
    gap_ns: int
    byte_ps: int
    rendezvous_bytes: int | None
    jitter_ns: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name != "rendezvous_bytes" or value is not None:
                _check(name, value)


@dataclass(frozen=True)
class Network:
    """The cost of messages and reductions on a simulated machine. Immutable; compared by value.

    Attributes
    ----------
    name : str
        As `parse_network` reads it, or any other text.
    between : Link
        The link between ranks of different nodes.
    within : Link or None
        The link between ranks of one node; None: the same as between nodes.
    node_ranks : int
        Number of consecutive ranks on one node.
    noise_ns : int
        Each o takes longer by an exponentially distributed time with this mean; 0: no noise.
    reduce_ps : int
        Picoseconds for which a reduction keeps its rank busy, for each byte; 0: it costs nothing.
    headers_free : bool
        Whether a message costs only its payload (at least one byte).
    source : str
        The source of the values.

    Raises
    ------
    ValueError
        If a value is not an integer, or out of its range; the error names it.
    """

    name: str
    between: Link
    within: Link | None = None
    node_ranks: int = 1
    noise_ns: int = 0
    reduce_ps: int = 0
    headers_free: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        _check("node_ranks", self.node_ranks, 1, _RANKS_LIMIT)
        _check("noise_ns", self.noise_ns)
        _check("reduce_ps", self.reduce_ps)

    @property
    def inside(self) -> Link:
        """The link between ranks of one node: `within`, or `between` if that is None."""
        return self.between if self.within is None else self.within

    def describe(self) -> dict[str, object]:
        """Return all values, ready for JSON, in a fixed order; ``within`` is never None."""
        values: dict[str, object] = dataclasses.asdict(self)
        values["within"] = dataclasses.asdict(self.inside)
        return values


PRESETS: dict[str, Network] = {
    network.name: network
    for network in (
        # All values are defaults of the program, file simulator.ggo of github.com/spcl/LogGOPSim:
        # L=2500, o=1500, g=1000, G=6 (ns), S=65535, O=0.  Useful to compare with it; the program's
        # example, dissemination among 16 ranks, takes 22 us there.
        Network(
            name="loggopsim",
            between=Link(2500, 1500, 1000, 6000, 65535),
            source="defaults of LogGOPSim (Hoefler, Schneider, Lumsdaine, LSAP 2010), "
            "simulator.ggo",
        ),
        # Netgauge's loggp pattern on Tukey (Argonne), MVAPICH over InfiniBand: file
        # tests/conf/ng-mpi-tukey.dat of github.com/codes-org/codes.  o: mean of o_s = 1.146 us and
        # o_r = 1.065 us at 2 bytes.  L: half the round trip at 2 bytes (10.836 us) less twice o;
        # the file's own L, 6.78 us, is half of a first round trip and contains o.  g: 1.08 us at 2
        # bytes.  G: 0.498 ns at 0.5..4 MiB.  S: o jumps from 2.7 us at 8 KiB to 20.4 us at 16 KiB,
        # so the change of protocol lies between; 8 KiB is an assumption.
        Network(
            name="infiniband-mvapich",
            between=Link(3206, 1106, 1080, 498, 8192),
            source="Netgauge on Tukey (Argonne; MVAPICH over InfiniBand): "
            "tests/conf/ng-mpi-tukey.dat of codes-org/codes; S is an assumption",
        ),
        # The machine of the paper that introduced LogGP (Alexandrov, Ionescu, Schauser, Scheiman,
        # SPAA 1995): L = 7.5 us, o = 1.7 us, g = 13.6 us, G = 0.03 us.  The gap is eight times the
        # overhead: a machine on which many small messages are dear.
        Network(
            name="meiko-cs2",
            between=Link(7500, 1700, 13600, 30000, None),
            source="Meiko CS-2: Alexandrov et al., LogGP, SPAA 1995; S is not in the paper",
        ),
        # Like the machine on which eager-SGD was measured (Cray Aries).  L and G: Belli and
        # Hoefler, Notified Access, IPDPS 2015, Table I (Piz Daint, Cray XC30): 1.02 us and 0.105
        # ns for puts to another node (FMA), 0.25 us and 0.08 ns in shared memory.  Assumptions: o
        # and g (200 ns: a half round trip of 1.4 us between nodes), S (8 KiB, the default of
        # Cray's MPI), 8 ranks of a node (cores of a node; eager-SGD ran one rank a node: add
        # node=1).
        Network(
            name="piz-daint-like",
            between=Link(1020, 200, 200, 105, 8192),
            within=Link(250, 200, 200, 80, 8192),
            node_ranks=8,
            source="L and G: Belli and Hoefler, Notified Access, IPDPS 2015, Table I; o, g, S "
            "and the ranks of a node are assumptions",
        ),
    )
}
"""Networks with a name, by name."""


def _size(text: str) -> int | None:
    if text == "none":
        return None
    return 0 if text == "0" else parse_size(text)


def _node_ranks(text: str) -> int:
    # At most as many digits as an int32 has: Python refuses to convert thousands of digits.
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:11]) < _RANKS_LIMIT):
        raise ValueError(f"{text!r} is not a number of ranks: write 1 to 2147483647, such as 16")
    return int(text)


def _reduce(text: str) -> int:
    if text == "0":
        return 0
    picoseconds = round(10**12 / parse_rate(text))
    if not 0 < picoseconds < _LIMIT:
        raise ValueError(
            f"{text!r} is not within 1B/s and 1TB/s: write 0 for reductions at no cost"
        )
    return picoseconds


_LINK_KEYS: dict[str, tuple[str, Callable[[str], int | None]]] = {
    "L": ("latency_ns", parse_duration),
    "o": ("overhead_ns", parse_duration),
    "g": ("gap_ns", parse_duration),
    "G": ("byte_ps", parse_picoseconds),
    "S": ("rendezvous_bytes", _size),
    "jitter": ("jitter_ns", parse_duration),
}
_NETWORK_KEYS: dict[str, tuple[str, Callable[[str], int]]] = {
    "node": ("node_ranks", _node_ranks),
    "noise": ("noise_ns", parse_duration),
    "reduce": ("reduce_ps", _reduce),
}
_NODE = "node."
_EXAMPLE = "L=2us,o=500ns,g=300ns,G=0.1ns,S=64K"


def parse_network(text: str) -> Network:
    """Return the network that a preset's name or a list of values stands for.

    ``loggopsim`` is a preset of `PRESETS`; ``L=2us,o=500ns,g=300ns,G=0.1ns,S=64K`` gives all
    values; ``piz-daint-like,o=1us`` is a preset with some of its values replaced. Keys, which are
    case sensitive: ``L``, ``o``, ``g`` (durations, rounded to nanoseconds), ``G`` (a duration a
    byte, rounded to picoseconds), ``S`` (a size, or ``none``), ``jitter``; with the prefix
    ``node.`` the same inside a node, by default as between nodes; ``node`` (ranks of a node),
    ``noise`` (a duration) and ``reduce`` (a rate such as ``10GB/s``, or 0: at no cost).  Without
    a preset ``L`` and ``o`` must be given; ``g``, ``G``, ``jitter``, ``noise`` and ``reduce`` are
    0 and ``S`` is ``none``.

    The network's name is the text without blanks, which gives the same network again.

    Raises
    ------
    ValueError
        If the text is not a network; the error names the wrong part and says what to write.
    """
    parts = [part.strip() for part in text.split(",")]
    preset = None if "=" in parts[0] else _preset(parts.pop(0), text)
    between: dict[str, int | None] = {}
    within: dict[str, int | None] = {}
    machine: dict[str, int] = {}
    seen: set[str] = set()
    spelled = []
    for part in parts:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            hint = " (a preset comes first)" if part in PRESETS else ""
            raise ValueError(f"{part!r} in {text!r} is not KEY=VALUE{hint}: write {_EXAMPLE}")
        if key in seen:
            raise ValueError(f"{key} is given twice in {text!r}")
        seen.add(key)
        spelled.append(f"{key}={value}")
        try:
            if key in _NETWORK_KEYS:
                name, read = _NETWORK_KEYS[key]
                machine[name] = read(value)
            elif key.removeprefix(_NODE) in _LINK_KEYS:
                link_name, read_link = _LINK_KEYS[key.removeprefix(_NODE)]
                (within if key.startswith(_NODE) else between)[link_name] = read_link(value)
            else:
                raise ValueError(_unknown(key))
        except ValueError as error:
            raise ValueError(f"{part!r}: {error}") from None
    if preset is None:
        return _build(",".join(spelled), text, between, within, machine)
    if not parts:
        return preset
    return _override(preset, spelled, text, between, within, machine)


def _preset(name: str, text: str) -> Network:
    """Return the preset of this name."""
    if name not in PRESETS:
        raise ValueError(
            f"{name or text!r} is not a network: write {', '.join(PRESETS)} or {_EXAMPLE}"
        )
    return PRESETS[name]


def _unknown(key: str) -> str:
    """Return a text that names the known keys."""
    keys = [*_LINK_KEYS, *_NETWORK_KEYS]
    near = [
        known for known in [*keys, *(_NODE + k for k in _LINK_KEYS)] if known.lower() == key.lower()
    ]
    if near:
        return f"there is no key {key!r}: write {' or '.join(near)} (upper and lower case differ)"
    return (
        f"there is no key {key!r}: write {', '.join(keys)}, or inside a node "
        f"{', '.join(_NODE + known for known in _LINK_KEYS)}"
    )


def _build(
    name: str,
    text: str,
    between: dict[str, int | None],
    within: dict[str, int | None],
    machine: dict[str, int],
) -> Network:
    """Return the network of an explicit list."""
    missing = [key for key in ("L", "o") if _LINK_KEYS[key][0] not in between]
    if missing:
        raise ValueError(
            f"{text!r} lacks {' and '.join(missing)}: write {_EXAMPLE}, or a preset first "
            f"({', '.join(PRESETS)})"
        )
    blank = Network(name, Link(0, 0, 0, 0, None))
    return _override(blank, [], text, between, within, machine)


def _override(
    network: Network,
    spelled: list[str],
    text: str,
    between: dict[str, int | None],
    within: dict[str, int | None],
    machine: dict[str, int],
) -> Network:
    """Return the network with these values in place of its own; ``within`` follows `inside`."""
    changes = ",".join(spelled)
    link = _replace(network.between, between)
    inner = network.within
    if within:
        inner = _replace(link if inner is None else inner, within)
    result = Network(
        name=f"{network.name},{changes}" if changes else network.name,
        between=link,
        within=inner,
        node_ranks=machine.get("node_ranks", network.node_ranks),
        noise_ns=machine.get("noise_ns", network.noise_ns),
        reduce_ps=machine.get("reduce_ps", network.reduce_ps),
        headers_free=network.headers_free,
        source=f"{network.source}; changed: {changes}" if changes else network.source,
    )
    if within and result.node_ranks == 1:
        raise ValueError(
            f"{text!r} gives values inside a node, but a node has one rank: add node=16"
        )
    return result


def _replace(link: Link, changes: dict[str, int | None]) -> Link:
    """Return the link with these values in place of its own."""
    return Link(**{**dataclasses.asdict(link), **changes})
