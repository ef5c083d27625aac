"""The tuning table: what ``pypartial tune`` measured, for ``algorithm="auto"`` to choose by.

The table is a JSON file: ``{"schema": 1, "entries": [...]}``, with an `Entry` for each number of
ranks on a kind of link. An entry says what was measured, on which machine, with which MPI and when.
The file is ``tuning.json`` in the folder ``pypartial`` of the user's cache, which is
``$XDG_CACHE_HOME`` or ``~/.cache``. The environment variable ``PYPARTIAL_TUNING`` names another
file, or says ``off``.

Rank 0 chooses for all ranks of a context, and only its table is read. A table that cannot be used
is ignored, with a warning. The cost model then chooses with its default parameters; every algorithm
gives right results.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._cache import cache_folder
from ._mpi_library import identify
from ._names import LINK, REASON, Names, algorithms
from ._native import LOGGER

if TYPE_CHECKING:
    from ._core import CData
    from ._native import Native

__all__ = ["Choice", "Cost", "Entry", "Measured", "Switch", "Table"]

SCHEMA = 1
VARIABLE = "PYPARTIAL_TUNING"
_REMEDY = "measure again with mpirun -n P pypartial tune, or set PYPARTIAL_TUNING=off"
_MOST_CHARACTERS = 1 << 22
_INT32_MAX = (1 << 31) - 1
_BYTES_MAX = 1 << 62


@dataclass(frozen=True)
class Cost:
    """Parameters of the cost model, ``pp_cost_t`` of the C core.

    Attributes
    ----------
    overhead_us : float
        Microseconds of a round, whatever its algorithm.
    copy_ns : float
        Nanoseconds for each byte of the vector, whatever the algorithm.
    latency_us : float
        Microseconds of a message, however short.
    byte_ns : float
        Nanoseconds for each byte sent.
    reduce_ns : float
        Nanoseconds for each byte reduced.
    """

    overhead_us: float
    copy_ns: float
    latency_us: float
    byte_ns: float
    reduce_ns: float


@dataclass(frozen=True)
class Switch:
    """A switch point: from `bytes` bytes of a vector on, use `algorithm`."""

    bytes: int
    algorithm: str


@dataclass(frozen=True)
class Measured:
    """What an allreduce of `bytes` bytes took, in microseconds by algorithm."""

    bytes: int
    us: Mapping[str, float]


@dataclass(frozen=True)
class Entry:
    """What was measured for a number of ranks on a kind of link.

    Attributes
    ----------
    ranks : int
        How many ranks took part; one of each node if the link is ``"network"``.
    link : {"node", "network"}
        Whether the ranks were on one node, or on several.
    mpi, version : str
        The MPI library, and the version of this package.
    host : str
        The host of rank 0.
    cores : int
        The cores of that host.
    date : str
        Date and time in UTC, ISO 8601.
    cost : Cost
        The parameters of the cost model, fitted to `measured`.
    switches : tuple of Switch
        Ascending, the first at 0 bytes; chosen by `measured`.
    measured : tuple of Measured
        The measured times.
    """

    ranks: int
    link: str
    mpi: str
    version: str
    host: str
    cores: int
    date: str
    cost: Cost
    switches: tuple[Switch, ...]
    measured: tuple[Measured, ...]


@dataclass(frozen=True)
class Table:
    """The entries of the tuning table that are valid here.

    Attributes
    ----------
    path : Path or None
        The file; None if tuning is off, or if the user has no home directory.
    entries : tuple of Entry
        The entries of the file that were measured with this MPI and version, on as many cores.
    why : str
        In words: where the entries come from, or why there are none.
    ignored : bool
        Whether there is a file that is not used because it is broken or outdated.
    """

    path: Path | None
    entries: tuple[Entry, ...]
    why: str
    ignored: bool = False


@dataclass(frozen=True)
class Choice:
    """An algorithm, and the reason for it in words."""

    algorithm: str
    reason: str


# ---- the file ------------------------------------------------------------------------------------


def location(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the table's file, which need not exist; None if tuning is off or there is no home."""
    given = environ.get(VARIABLE, "")
    if given == "off":
        return None
    if given:
        return Path(given)
    folder = cache_folder(environ)
    return folder and folder / "tuning.json"


def parse(text: str) -> tuple[Entry, ...]:
    """Read a table.

    Raises
    ------
    ValueError
        If the text is not a table that this version understands; the error says why.
    """
    import json

    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("entries"), list):
        raise ValueError("it is not a tuning table: it has no list of entries")
    if table.get("schema") != SCHEMA:
        schema = f"{table.get('schema')!r:.60}"
        raise ValueError(f"its schema is {schema}, and this version reads {SCHEMA}")
    return tuple(_entry(number, values) for number, values in enumerate(table["entries"]))


def read(path: Path) -> tuple[Entry, ...] | None:
    """Return the entries of a table's file; None if there is no such file.

    Raises
    ------
    ValueError
        As `parse`, or if the file cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it has more than {_MOST_CHARACTERS} characters")
    return parse(text)


def write(native: Native, path: Path, new: Sequence[Entry]) -> None:
    """Write entries into a table, and keep its entries for other ranks, links and machines.

    The file is replaced as a whole, so that a reader sees the old or the new one; writers take
    turns. Broken and outdated entries are dropped.

    Raises
    ------
    OSError
        If the file cannot be written; it is then as it was.
    """
    import fcntl
    import json
    import tempfile

    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise OSError(f"{target} is not a regular file")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(target.name + ".lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            old = read(target) or ()
            _check_algorithms(old, algorithms(native.ffi, native.lib))
        except ValueError:
            old = ()
        entries = [*(entry for entry in old if not any(_replaces(one, entry) for one in new)), *new]
        entries.sort(key=lambda entry: (entry.mpi, entry.cores, entry.link, entry.ranks))
        table = {"schema": SCHEMA, "entries": [asdict(entry) for entry in entries]}
        with _temporary(tempfile.mkstemp(".json", "tuning", target.parent)) as (descriptor, name):
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(table, indent=1, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, target)


@contextlib.contextmanager
def _temporary(made: tuple[int, str]) -> Iterator[tuple[int, str]]:
    """Remove a temporary file if the block fails."""
    try:
        yield made
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made[1])
        raise


def _replaces(new: Entry, old: Entry) -> bool:
    same_machine = identify(new.mpi) == identify(old.mpi) and new.cores == old.cores
    same_place = new.ranks == old.ranks and new.link == old.link
    return same_machine and (same_place or new.version != old.version)


def _entry(number: int, values: Any) -> Entry:
    where = f"entry {number}"
    given = _record(where, values, Entry)
    cost = _record(f"{where}, cost", given["cost"], Cost)
    switches = [
        Switch(
            _whole(f"{where}, switches, bytes", one["bytes"], 0, _BYTES_MAX),
            _text(f"{where}, switches", one["algorithm"]),
        )
        for one in _records(f"{where}, switches", given["switches"], Switch)
    ]
    bounds = [switch.bytes for switch in switches]
    if not 1 <= len(bounds) <= 8 or bounds[0] != 0 or bounds != sorted(set(bounds)):
        raise ValueError(f"{where}: switch points {bounds} are not 1 to 8, from 0 on, ascending")
    measured = [
        Measured(
            _whole(f"{where}, measured, bytes", one["bytes"], 0, _BYTES_MAX),
            {
                name: _time(f"{where}, measured", us)
                for name, us in _mapping(f"{where}, measured", one["us"]).items()
            },
        )
        for one in _records(f"{where}, measured", given["measured"], Measured)
    ]
    return Entry(
        ranks=_whole(f"{where}, ranks", given["ranks"], 1, _INT32_MAX),
        link=_name(f"{where}, link", given["link"], LINK),
        cores=_whole(f"{where}, cores", given["cores"], 1, _INT32_MAX),
        cost=Cost(**{name: _time(f"{where}, {name}", value) for name, value in cost.items()}),
        switches=tuple(switches),
        measured=tuple(measured),
        **{
            name: _text(f"{where}, {name}", given[name])
            for name in ("mpi", "version", "host", "date")
        },
    )


def _mapping(where: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{where}: {values!r:.60} is not an object")
    return values


def _record(where: str, values: Any, kind: type) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    given = _mapping(where, values)
    if sorted(given) != sorted(names):
        raise ValueError(f"{where}: its keys are {sorted(given)}, not {sorted(names)}")
    return given


def _records(where: str, values: Any, kind: type) -> list[dict[str, Any]]:
    if not isinstance(values, list):
        raise ValueError(f"{where}: {values!r:.60} is not a list")
    return [_record(where, one, kind) for one in values]


def _whole(where: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{where}: {value!r:.60} is not an integer in {least}..{most}")
    return value


def _time(where: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e15:  # also refuses NaN
        raise ValueError(f"{where}: {value!r:.60} is not a time from 0 on")
    return float(value)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {value!r:.60} is not a text")
    return value


def _name(where: str, value: Any, names: Names[str]) -> str:
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{where}: {value!r:.60} is not one of {', '.join(names)}")
    return value


# ---- what is used here ---------------------------------------------------------------------------


def load(native: Native, path: Path | None) -> Table:
    """Return the entries of a table that are valid on this machine, and why."""
    if path is None:
        return Table(None, (), f"{VARIABLE}=off" if VARIABLE in os.environ else "no home directory")
    try:
        entries = read(path)
        _check_algorithms(entries or (), algorithms(native.ffi, native.lib))
    except ValueError as error:
        return Table(path, (), f"{error}; {_REMEDY}", ignored=True)
    if entries is None:
        return Table(path, (), "there is no such file: mpirun -n P pypartial tune makes it")
    here = [
        entry
        for entry in entries
        if identify(entry.mpi) == identify(native.library) and entry.cores == os.cpu_count()
    ]
    if not here:
        why = f"it has nothing for this MPI on {os.cpu_count()} cores: mpirun -n P pypartial tune"
        return Table(path, (), why)
    version = native.text(native.lib.pp_version())
    current = tuple(entry for entry in here if entry.version == version)
    if not current:
        other = _shown(here[0].version)
        why = f"it was measured with pypartial {other}, and this is {version}; {_REMEDY}"
        return Table(path, (), why, ignored=True)
    newest = max(current, key=lambda entry: entry.date)
    why = f"measured {newest.date} on {newest.host} with {newest.mpi}"
    return Table(path, current, _shown(why))


def _shown(text: str) -> str:
    """Return a text of a file without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _check_algorithms(entries: Sequence[Entry], known: Names[str]) -> None:
    """Raise `ValueError` if entries name an algorithm that the core does not have."""
    for number, entry in enumerate(entries):
        for switch in entry.switches:
            _name(f"entry {number}, switches", switch.algorithm, known)
        for one in entry.measured:
            for name in one.us:
                _name(f"entry {number}, measured", name, known)


def use(native: Native, ctx: CData) -> None:
    """Give a context this machine's table, on its rank 0, after the context was opened."""
    table = load(native, location())
    if table.ignored:
        _warn(f"the tuning table {table.path} is ignored: {table.why}")
    if table.entries:
        tuned = to_c(native, table.entries)
        native.check(native.lib.pp_ctx_tune(ctx, tuned, len(table.entries)))


@functools.cache
def _warn(text: str) -> None:
    """Log a warning once in this process, however many contexts it makes."""
    LOGGER.warning("%s", text)


def to_c(native: Native, entries: Sequence[Entry]) -> CData:
    """Return entries as an array of ``pp_tuned_t``."""
    lib, known = native.lib, algorithms(native.ffi, native.lib)
    tuned = native.ffi.new("pp_tuned_t[]", len(entries))
    for target, entry in zip(tuned, entries, strict=True):
        target.ranks = entry.ranks
        target.link = LINK.constant(lib, entry.link)
        set_cost(target.cost, entry.cost)
        target.switch_count = len(entry.switches)
        for number, switch in enumerate(entry.switches):
            target.switches[number].bytes = switch.bytes
            target.switches[number].algorithm = known.constant(lib, switch.algorithm)
    return tuned


def set_cost(target: CData, cost: Cost) -> None:
    """Fill in a ``pp_cost_t``."""
    for name, value in asdict(cost).items():
        setattr(target, name, value)


def choose(
    native: Native, entries: Sequence[Entry], size: int, itemsize: int, ranks: int, link: str
) -> Choice:
    """Return the algorithm that "auto" stands for with a vector of `size` bytes, and why."""
    lib = native.lib
    choice = native.ffi.new("pp_choice_t *")
    tuned = to_c(native, entries)
    count = size // itemsize
    kind = LINK.constant(lib, link)
    native.check(lib.pp_choose(tuned, len(entries), count, itemsize, ranks, kind, choice))
    return Choice(algorithm_name(native, choice.algorithm), reason_text(native, choice.reason))


def algorithm_name(native: Native, algorithm: int) -> str:
    """Return the name of a ``pp_algorithm_t``."""
    return native.text(native.lib.pp_algorithm_name(algorithm))


def reason_text(native: Native, reason: int) -> str:
    """Return a ``pp_reason_t`` in words."""
    return REASON.value(native.lib, reason)


def spans(
    native: Native, entries: Sequence[Entry], ranks: int, link: str
) -> tuple[list[Switch], str]:
    """Return the sizes, powers of two, from which "auto" stands for which algorithm, and why."""
    found: list[Switch] = []
    reason = ""
    for exponent in range(2, 31):
        choice = choose(native, entries, 1 << exponent, 4, ranks, link)
        reason = choice.reason
        if not found or found[-1].algorithm != choice.algorithm:
            found.append(Switch(1 << exponent if found else 0, choice.algorithm))
    return found, reason
