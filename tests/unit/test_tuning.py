"""Choosing an algorithm: the cost model, the table of what was measured, and its file."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pypartial import _native, tuning
from pypartial._core import ffi, lib
from pypartial._names import LINK, REASON, algorithms
from pypartial.bench import fit
from pypartial.tuning import Cost, Entry, Measured, Switch

ALGORITHMS = tuple(algorithms(ffi, lib))
DOUBLING, RABENSEIFNER, RING = "recursive_doubling", "rabenseifner", "ring"
COST = Cost(overhead_us=3, copy_ns=0.5, latency_us=2, byte_ns=0.25, reduce_ns=0.125)
LATENCY_ONLY = Cost(0, 0, 1, 0, 0)
SENT_ONLY = Cost(0, 0, 0, 1000, 0)
REDUCED_ONLY = Cost(0, 0, 0, 0, 1000)
RANKS = [1, 2, 3, 4, 5, 7, 8, 9, 33, 1000]
by_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.fixture(scope="module")
def native() -> _native.Native:
    return _native.load()


def entry(ranks: int, *switches: tuple[int, str], link: str = "node", **other: Any) -> Entry:
    values: dict[str, Any] = {
        "mpi": _native.load().library.splitlines()[0],
        "version": tuning_version(),
        "host": "here",
        "cores": os.cpu_count(),
        "date": "2026-01-02T03:04:05+00:00",
        "cost": COST,
        "measured": (Measured(8, dict.fromkeys(ALGORITHMS, 1.0)),),
    }
    points = tuple(Switch(*switch) for switch in switches or [(0, DOUBLING)])
    return Entry(ranks=ranks, link=link, switches=points, **(values | other))


def tuning_version() -> str:
    return ffi.string(lib.pp_version()).decode()


# ---- the model -----------------------------------------------------------------------------------


def cost(parameters: Cost, algorithm: str, count: int, element_bytes: int, ranks: int) -> float:
    c, us = ffi.new("pp_cost_t *"), ffi.new("double *")
    tuning.set_cost(c, parameters)
    number = algorithms(ffi, lib).constant(lib, algorithm)
    assert lib.pp_model_cost(c, number, count, element_bytes, ranks, us) == lib.PP_OK
    return us[0]


@pytest.mark.parametrize(
    ("algorithm", "ranks", "messages", "sent", "reduced"),
    [  # of a vector of 1 MB, in messages and in megabytes
        (DOUBLING, 2, 1, 1, 1),
        (DOUBLING, 8, 3, 3, 3),
        (DOUBLING, 3, 3, 3, 2),
        (DOUBLING, 13, 5, 5, 4),
        (RABENSEIFNER, 2, 2, 1, 1 / 2),
        (RABENSEIFNER, 8, 6, 7 / 4, 7 / 8),
        (RABENSEIFNER, 3, 4, 3, 3 / 2),
        (RABENSEIFNER, 13, 8, 2 + 7 / 4, 1 + 7 / 8),
        (RING, 2, 2, 1, 1 / 2),
        (RING, 8, 14, 7 / 4, 7 / 8),
        (RING, 3, 4, 4 / 3, 2 / 3),
    ],
)
def test_longest_chains(
    algorithm: str, ranks: int, messages: int, sent: float, reduced: float
) -> None:
    count = 1_000_000
    assert cost(LATENCY_ONLY, algorithm, count, 1, ranks) == messages
    assert cost(SENT_ONLY, algorithm, count, 1, ranks) == pytest.approx(sent * count, rel=1e-5)
    expected = pytest.approx(reduced * count, rel=1e-5)
    assert cost(REDUCED_ONLY, algorithm, count, 1, ranks) == expected


@by_algorithm
@pytest.mark.parametrize("ranks", RANKS)
def test_more_elements_never_cost_less(algorithm: str, ranks: int) -> None:
    counts = [0, 1, 2, ranks - 1, ranks, ranks + 1, 4097, 10**6, 10**9, 2**62]
    times = [cost(COST, algorithm, count, 4, ranks) for count in sorted(set(counts))]
    assert times == sorted(times)
    assert all(math.isfinite(us) and us >= COST.overhead_us for us in times)


@by_algorithm
@pytest.mark.parametrize("count", [0, 1, 1000, 10**7])
def test_more_ranks_never_cost_less_among_powers_of_two(algorithm: str, count: int) -> None:
    times = [cost(COST, algorithm, count, 4, 1 << exponent) for exponent in range(11)]
    # A ring's chunks get smaller faster than their number grows only where they are rounded.
    assert all(after >= before * (1 - 1e-3) for before, after in itertools.pairwise(times))


@by_algorithm
def test_one_rank_sends_nothing(algorithm: str) -> None:
    assert cost(LATENCY_ONLY, algorithm, 1000, 8, 1) == 0
    assert cost(SENT_ONLY, algorithm, 1000, 8, 1) == 0


# ---- choosing ------------------------------------------------------------------------------------


def choice(native: _native.Native, entries: list[Entry], size: int, ranks: int, link: str = "node"):
    found = tuning.choose(native, entries, size, 4, ranks, link)
    return found.algorithm, found.reason


def reason(name: str) -> str:
    return REASON.value(lib, getattr(lib, f"PP_REASON_{name}"))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("link", LINK)
def test_the_model_chooses_the_cheapest(native: _native.Native, ranks: int, link: str) -> None:
    defaults = ffi.new("pp_cost_t *")
    assert lib.pp_model_defaults(LINK.constant(lib, link), defaults) == lib.PP_OK
    parameters = Cost(**{f.name: getattr(defaults, f.name) for f in dataclasses.fields(Cost)})
    for count in [0, 1, ranks - 1, ranks, 1 << 12, 1 << 15, 1 << 18, 1 << 24]:
        times = {name: cost(parameters, name, count, 4, ranks) for name in ALGORITHMS}
        cheapest = min(times, key=lambda name: times[name])
        assert choice(native, [], 4 * count, ranks, link) == (cheapest, reason("DEFAULTS"))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16, 33])
@pytest.mark.parametrize("link", LINK)
def test_the_defaults_are_sensible(native: _native.Native, ranks: int, link: str) -> None:
    for size in (0, 4, 64, 1024, 8192):
        assert choice(native, [], size, ranks, link)[0] == DOUBLING
    assert choice(native, [], 64 << 20, ranks, link)[0] != DOUBLING


def test_measured_switch_points_decide_at_their_bytes(native: _native.Native) -> None:
    table = [
        entry(4, (0, RING), (1000, RABENSEIFNER), (2000, DOUBLING)),
        entry(8, (0, RABENSEIFNER)),
        entry(4, (0, RABENSEIFNER), link="network"),
    ]
    measured = reason("MEASURED")
    expected = {0: RING, 996: RING, 1000: RABENSEIFNER, 1996: RABENSEIFNER, 2000: DOUBLING}
    for size, algorithm in expected.items():
        assert choice(native, table, size, 4) == (algorithm, measured)
    assert choice(native, table, 1 << 40, 4) == (DOUBLING, measured)
    assert choice(native, table, 0, 8) == (RABENSEIFNER, measured)
    assert choice(native, table, 0, 4, "network") == (RABENSEIFNER, measured)
    assert tuning.spans(native, table[:1], 4, "node") == (
        [Switch(0, RING), Switch(1024, RABENSEIFNER), Switch(2048, DOUBLING)],
        measured,
    )


def test_the_nearest_entry_lends_its_costs(native: _native.Native) -> None:
    """Where latency is all, doubling is cheapest; where only reducing costs, it is not."""
    table = [entry(2, cost=LATENCY_ONLY), entry(32, cost=REDUCED_ONLY)]
    for ranks, algorithm in [(4, DOUBLING), (7, DOUBLING), (9, RING), (64, RABENSEIFNER)]:
        assert choice(native, table, 1 << 20, ranks) == (algorithm, reason("MODEL"))
    assert choice(native, table, 64, 4, "network")[1] == reason("DEFAULTS")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ranks": 0}, "ranks=0"),
        ({"link": 2}, "link=2"),
        ({"switch_count": 9}, "switch_count=9 of the row for 4 ranks"),
        ({"switch_count": -1}, "switch_count=-1 of the row"),
        ({"switches": [(0, 0)]}, "algorithm=0"),
        ({"switches": [(0, 4)]}, "algorithm=4"),
        ({"switches": [(1, 1)]}, "is at 1 bytes"),
        ({"switches": [(0, 1), (9, 2), (9, 1)]}, "switch point 2 for 4 ranks is at 9 bytes"),
        ({"latency_us": -1.0}, "latency_us=-1"),
        ({"byte_ns": math.nan}, "byte_ns=nan"),
        ({"copy_ns": math.inf}, "copy_ns=inf"),
    ],
)
def test_what_the_core_refuses(change: dict[str, Any], text: str) -> None:
    """Before it looks at the context, of which there is none."""
    tuned = tuning.to_c(_native.load(), [entry(4)])
    for name, value in change.items():
        if name == "switches":
            tuned[0].switch_count = len(value)
            for number, (size, algorithm) in enumerate(value):
                tuned[0].switches[number].bytes = size
                tuned[0].switches[number].algorithm = algorithm
        else:
            where = tuned[0] if hasattr(tuned[0], name) else tuned[0].cost
            setattr(where, name, value)
    assert lib.pp_ctx_tune(ffi.NULL, tuned, 1) == lib.PP_ERR_ARGUMENT
    assert text in ffi.string(lib.pp_error_text()).decode()


# ---- what is made of times -----------------------------------------------------------------------


def times_by_model(parameters: Cost, ranks: int) -> list[Measured]:
    return [
        Measured(size, {name: cost(parameters, name, size // 4, 4, ranks) for name in ALGORITHMS})
        for size in (8, 1024, 16384, 65536, 1 << 18, 1 << 20, 1 << 24)
    ]


@pytest.mark.parametrize("ranks", [3, 4, 8, 13])
def test_the_fit_finds_what_times_were_made_from(native: _native.Native, ranks: int) -> None:
    times = times_by_model(COST, ranks)
    found = fit.fit_cost(native, times, ranks)
    for size in times:
        for name, us in size.us.items():
            assert fit.model_us(native, found, name, size.bytes, ranks) == pytest.approx(us)


def test_no_fitted_parameter_is_negative(native: _native.Native) -> None:
    """Times that get shorter with size and with messages ask for negative ones."""
    odd = [
        Measured(size, {DOUBLING: 9.0, RABENSEIFNER: 5.0, RING: 1e6 / size}) for size in (8, 4096)
    ]
    found = fit.fit_cost(native, odd, 4)
    assert all(value >= 0 for value in dataclasses.asdict(found).values())


@pytest.mark.parametrize("seed", range(20))
def test_the_fit_is_the_best_without_negative_parameters(native: _native.Native, seed: int) -> None:
    """The conditions of Karush, Kuhn and Tucker: what a least-squares fit must fulfil, and only it.

    No parameter that is not zero can be changed for the better, none that is zero be increased.
    """
    draws = np.random.default_rng(seed)
    times = [
        Measured(size.bytes, {name: us * draws.lognormal(0, 1) for name, us in size.us.items()})
        for size in times_by_model(COST, 4)
    ]
    cells = [(size.bytes, name, us) for size in times for name, us in size.us.items()]
    found = dataclasses.asdict(fit.fit_cost(native, times, 4))
    units = [Cost(**{name: float(name == one) for name in found}) for one in found]
    matrix = np.array(
        [
            [fit.model_us(native, unit, name, size, 4) / us for unit in units]
            for size, name, us in cells
        ]
    )
    scale = matrix.max(axis=0)
    values = np.array(list(found.values())) * scale
    slope = (matrix / scale).T @ (matrix / scale @ values - 1)
    assert np.all(slope > -1e-6)
    assert np.all(np.abs(slope[values > 0]) < 1e-6)


def sizes_of(*columns: tuple[int, float, float, float]) -> list[Measured]:
    names = (DOUBLING, RABENSEIFNER, RING)
    return [Measured(size, dict(zip(names, us, strict=True))) for size, *us in columns]


def test_switch_points_are_half_way_and_ignore_noise() -> None:
    noisy = sizes_of(
        (16, 1, 2, 4), (64, 2.05, 2, 4), (256, 4, 6, 9), (1024, 16, 8, 16), (4096, 64, 32, 16)
    )
    expected = (Switch(0, DOUBLING), Switch(513, RABENSEIFNER), Switch(2049, RING))
    assert fit.switch_points(noisy, 8) == expected
    assert fit.switch_points(noisy[:1], 8) == (Switch(0, DOUBLING),)


def test_there_are_never_too_many_switch_points() -> None:
    jagged = sizes_of(*((2**n, 1 + n % 2, 2 - n % 2, 9) for n in range(24)))
    assert len(fit.switch_points(jagged, 24)) == 24
    assert 1 <= len(fit.switch_points(jagged, 8)) <= 8


# ---- the file ------------------------------------------------------------------------------------


def test_location() -> None:
    home = os.path.expanduser("~")
    assert tuning.location({}) == Path(home, ".cache", "pypartial", "tuning.json")
    assert tuning.location({"XDG_CACHE_HOME": "/c"}) == Path("/c/pypartial/tuning.json")
    assert tuning.location({"XDG_CACHE_HOME": "c"}) == tuning.location({})
    given = {"XDG_CACHE_HOME": "/c", "PYPARTIAL_TUNING": "/t.json"}
    assert tuning.location(given) == Path("/t.json")
    assert tuning.location({"PYPARTIAL_TUNING": "off"}) is None


def test_what_is_written_is_read(native: _native.Native, tmp_path: Path) -> None:
    path = tmp_path / "new" / "tuning.json"
    four, two = entry(4, (0, DOUBLING), (4096, RING)), entry(2, link="network")
    tuning.write(_native.load(), path, [four])
    tuning.write(_native.load(), path, [two])
    assert tuning.read(path) == (two, four) or tuning.read(path) == (four, two)
    table = tuning.load(native, path)
    assert {one.ranks for one in table.entries} == {2, 4}
    assert not table.ignored
    again = entry(4, (0, RABENSEIFNER))
    tuning.write(_native.load(), path, [again])
    assert [e for e in tuning.read(path) or () if e.ranks == 4] == [again]
    assert sorted(p.name for p in path.parent.iterdir()) == ["tuning.json", "tuning.json.lock"]


def test_other_machines_keep_their_entries(native: _native.Native, tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    elsewhere = [entry(4, cores=(os.cpu_count() or 1) + 1), entry(4, mpi="Other MPI 1.0")]
    outdated = entry(8, version="0.0.0")
    tuning.write(_native.load(), path, [*elsewhere, outdated])
    table = tuning.load(native, path)
    assert (table.entries, table.ignored) == ((), True)
    assert "measured with pypartial 0.0.0" in table.why
    tuning.write(_native.load(), path, [entry(2)])
    assert tuning.load(native, path).entries == (entry(2),)
    left = tuning.read(path) or ()
    assert all(one in left for one in elsewhere)
    assert outdated not in left
    tuning.write(_native.load(), path.with_name("other.json"), elsewhere)
    table = tuning.load(native, path.with_name("other.json"))
    assert (table.entries, table.ignored) == ((), False)
    assert "nothing for this MPI" in table.why


def table_text(**change: Any) -> str:
    """Return a table whose only entry is changed; dots in names lead into what it holds."""
    values = dataclasses.asdict(entry(4, (0, DOUBLING), (4096, RING)))
    for name, value in change.items():
        *path, last = name.split("__")
        at: Any = values
        for step in path:
            at = at[int(step) if step.isdigit() else step]
        at[int(last) if last.isdigit() else last] = value
    return json.dumps({"schema": 1, "entries": [values]})


def test_the_text_is_right_unchanged() -> None:
    assert tuning.parse(table_text()) == (entry(4, (0, DOUBLING), (4096, RING)),)


BROKEN = {
    "empty": "",
    "cut": table_text()[:-40],
    "nested": "[" * 100_000,
    "number": "7",
    "no entries": '{"schema": 1}',
    "schema": table_text().replace('"schema": 1', '"schema": 2'),
    "entry": '{"schema": 1, "entries": [3]}',
    "missing": '{"schema": 1, "entries": [{"ranks": 4}]}',
    "ranks": table_text(ranks=0),
    "ranks text": table_text(ranks="4"),
    "ranks bool": table_text(ranks=True),
    "huge": table_text(ranks=1 << 31),
    "link": table_text(link="wire"),
    "host": table_text(host=None),
    "cost": table_text(cost__latency_us=-1),
    "cost nan": table_text(cost__latency_us=math.nan),
    "cost text": table_text(cost__latency_us="1"),
    "algorithm": table_text(switches__0__algorithm="auto"),
    "algorithm measured": table_text(measured__0__us={"other": 1}),
    "algorithm list": table_text(switches__0__algorithm=[]),
    "first": table_text(switches__0__bytes=1),
    "order": table_text(switches__1__bytes=0),
    "no switches": table_text(switches=[]),
    "many switches": table_text(switches=[{"bytes": n, "algorithm": RING} for n in range(9)]),
    "switches": table_text(switches={}),
    "measured": table_text(measured__0__us=[1, 2, 3]),
    "bytes": table_text(measured__0__bytes=1.5),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_ignored(native: _native.Native, tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    table = tuning.load(native, path)
    assert (table.entries, table.ignored) == ((), True)
    assert "pypartial tune" in table.why
    tuning.write(_native.load(), path, [entry(2)])
    assert tuning.load(native, path).entries == (entry(2),)


def test_what_is_no_file_is_ignored(native: _native.Native, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "file").write_text("")
    for name in ("pipe", "bytes", ".", "file/tuning.json"):
        table = tuning.load(native, tmp_path / name)
        assert (table.entries, table.ignored) == ((), True), name
    for name in ("pipe", ".", "file/tuning.json"):
        with pytest.raises(OSError):
            tuning.write(_native.load(), tmp_path / name, [entry(2)])


def test_a_terminal_does_not_see_what_is_hidden_in_a_table(
    native: _native.Native, tmp_path: Path
) -> None:
    hidden = {"host": "\x1b[2Jhome", "date": "\x9b31mtoday\x07", "mpi": f"{native.library}\n\u202e"}
    for change in (hidden, {**hidden, "version": "\x1b]0;0.0.0"}):
        tuning.write(_native.load(), tmp_path / "tuning.json", [entry(4, **change)])
        why = tuning.load(native, tmp_path / "tuning.json").why
        assert why.isprintable()
        assert ("version" in change) == ("\\x1b]0;0.0.0" in why)
        assert ("version" in change) != ("\\x1b[2Jhome" in why)


def test_no_file_is_no_fault(native: _native.Native, tmp_path: Path) -> None:
    table = tuning.load(native, tmp_path / "none" / "tuning.json")
    assert (table.entries, table.ignored) == ((), False)
    assert "pypartial tune makes it" in table.why
    assert tuning.load(native, None).entries == ()


def test_a_failed_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tuning.json"
    tuning.write(_native.load(), path, [entry(4)])
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        tuning.write(_native.load(), path, [entry(2)])
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tuning.json", "tuning.json.lock"]


# Writes ten entries like that of another file, one after the other.
WRITER = """
import dataclasses, sys
from pathlib import Path
from pypartial import _native, tuning

like, path, first = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
(one,) = tuning.read(like)
for ranks in range(first, first + 10):
    tuning.write(_native.load(), path, [dataclasses.replace(one, ranks=ranks)])
"""


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    like, path = tmp_path / "like.json", tmp_path / "tuning.json"
    tuning.write(_native.load(), like, [entry(1)])
    command = [sys.executable, "-c", WRITER, str(like), str(path)]
    writers = [subprocess.Popen([*command, str(1 + 10 * n)], cwd=tmp_path) for n in range(3)]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        seen = max(seen, len(tuning.read(path) or ()))  # never a broken one
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert seen <= 30
    assert sorted(one.ranks for one in tuning.read(path) or ()) == list(range(1, 31))


# ---- contexts ------------------------------------------------------------------------------------


def test_a_broken_table_is_named_once_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import numpy as np
    from mpi4py import MPI

    import pypartial as pp

    path = tmp_path / "tuning.json"
    path.write_text("{")
    monkeypatch.setenv("PYPARTIAL_TUNING", str(path))
    with caplog.at_level(logging.WARNING, "pypartial"):
        for _ in range(2):
            with pp.Context(MPI.COMM_SELF, transport="mpi") as ctx:
                out = np.zeros(3)
                request = ctx.Allreduce_init(np.ones(3), out, policy=pp.Full())
                assert request.algorithm == DOUBLING
                assert request.algorithm_reason == reason("DEFAULTS")
                request.Start()
                request.Wait()
                assert (out == 1).all()
                request.Free()
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert "mpirun -n P pypartial tune" in warnings[0]
