"""The JSON that commands save: its header, and the schema of the package, applied to real files."""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import json
import platform
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from support.mpirun import launch, program, python

from pypartial import provenance, statistics
from pypartial.bench import results
from pypartial.cli import app
from pypartial.sim import gain, gossip_run, group_report, mixing
from pypartial.sim import skew as simulated

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install jsonschema")

SCHEMA = json.loads(
    resources.files("pypartial.bench").joinpath("results.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
LIMIT_S = 120.0

# Command and ranks of each; short.
COMMANDS = {
    "bench skew --policy solo --policy mpi --size 64 --skew 100us --rounds 3 --warmup 1": 2,
    "bench skew --policy full --size 8 --skew 0 --rounds 1 --warmup 0 --work compute": 2,
    "bench latency --policy full --buffers numpy --size 8 --blocks 2 --calls 3": 2,
    "bench overhead --loops 3 --calls 5 --buffers numpy": 1,
    "bench groups --part latency --size 8 --generator static --blocks 2 --calls 3": 3,
    "bench groups --part iterations --size 8 --generator smart --base 1ms --iterations 5": 2,
    "bench groups --part iterations --size 8 --generator static --arrivals cloud --runs 1 "
    "--base 1ms --iterations 1": 2,
    "tune --size 8 --budget 10ms --dry-run": 2,
    "sim skew --ranks 3 --steps 3": 1,
    "sim skew --ranks 3 --steps 3 --kill 2:1s:1ms --patience 5ms --deliver sum": 1,
    "sim schedule ring --ranks 3 --size 12": 1,
    "sim groups --ranks 4 --iterations 5": 1,
    "sim groups --ranks 4 --iterations 5 --generator smart:2 --arrivals cloud": 1,
    "sim gossip --ranks 4 --iterations 5": 1,
    "sim gossip --ranks 4 --iterations 5 --method hop:max_ig=4 --arrivals cloud": 1,
    "groups analyse controller:2 --ranks 4 --iterations 20": 1,
}


def titles(report: dict[str, Any]) -> list[str]:
    """Return which kinds of results a report may be."""
    return [
        kind["title"]
        for kind in SCHEMA["anyOf"]
        if jsonschema.Draft202012Validator({**kind, "$defs": SCHEMA["$defs"]}).is_valid(report)
    ]


@pytest.fixture
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No other process of pytest-xdist starts an mpirun meanwhile."""
    with (tmp_path_factory.getbasetemp().parent / "mpirun.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def save(words: str, ranks: int, path: Path) -> dict[str, Any]:
    """Run a command and return the report that it saves."""
    start = launch(ranks) if ranks > 1 else []
    command = [*start, *python("-m", "pypartial", *words.split(), "--json", str(path))]
    done = program(command, timeout_s=LIMIT_S)
    assert done.returncode == ("--plant" in words), done.explain()
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("words", "ranks"), COMMANDS.items())
def test_what_commands_save_fits_the_schema(
    words: str, ranks: int, tmp_path: Path, one_at_a_time: None
) -> None:
    path = tmp_path / "results.json"
    began = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    report = save(words, ranks, path)
    VALIDATOR.validate(report)
    command = " ".join(words.split()[: 1 if words.startswith("tune") else 2])
    assert titles(report) == [f"pypartial {command}"]
    assert list(report)[:4] == ["format", "date", "command", "machine"]
    assert report["format"] == 1
    assert began <= datetime.datetime.fromisoformat(report["date"])
    assert report["command"] == ["pypartial", *words.split(), "--json", str(path)]
    assert report["machine"]["python"] == platform.python_version()
    assert "MPI" in report["machine"]["mpi"]
    if "plant" in words:
        assert report["failure"]["kind"]


# ---- the schema ---------------------------------------------------------------------------------


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (results.DeviceFacts, "deviceFacts"),
        (results.Row, "benchSkewRow"),
        (results.SkewMeta, "benchSkewMeta"),
        (results.LatencyRow, "benchLatencyRow"),
        (results.LatencyMeta, "benchLatencyMeta"),
        (results.OverheadRow, "benchOverheadRow"),
        (results.OverheadMeta, "benchOverheadMeta"),
        (results.GroupLatencyRow, "benchGroupsRow"),
        (results.GroupsMeta, "benchGroupsMeta"),
        (results.IterationRow, "benchIterationsRow"),
        (results.IterationSide, "benchIterationsSide"),
        (results.GossipRow, "benchGossipRow"),
        (results.GossipMeta, "benchGossipMeta"),
        (results.TorchRow, "benchTorchRow"),
        (results.TorchMeta, "benchTorchMeta"),
        (results.TuneRow, "tuneRow"),
        (results.TuneMeta, "tuneMeta"),
        (simulated.Row, "simSkewRow"),
        (simulated.Times, "times"),
        (simulated.Idle, "idle"),
        (group_report.Row, "simGroupsRow"),
        (group_report.Side, "simGroupsSide"),
        (gain.Way, "simGainWay"),
        (gossip_run.GossipRow, "simGossipRow"),
        (mixing.Analysis, "groupsAnalysis"),
        (statistics.Latency, "latency"),
        (statistics.Active, "active"),
        (statistics.Spread, "spread"),
    ],
)
def test_the_schema_describes_every_field(kind: Any, name: str) -> None:
    fields = [field.name for field in dataclasses.fields(kind)]
    described = SCHEMA["$defs"][name]
    assert list(described["properties"]) == fields
    assert described["required"] == fields


REPORT = {
    **provenance.header(),
    "command": ["pypartial", "sim", "schedule", "ring"],
    "meta": {"version": "1", "schedule": "ring", "ranks": 2, "bytes": 8, "network": {}, "seed": 0},
    "finished_ns": [5, 6],
    "messages": 4,
    "bytes_sent": 64,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "1 was expected"),
        ({"date": "yesterday"}, "does not match"),
        ({"command": "pypartial"}, "not of type 'array'"),
        ({"machine": {"cores": 0}}, "required property|less than"),
        ({"messages": "4"}, "not valid under any"),
    ],
)
def test_the_schema_refuses_what_is_wrong(changes: dict[str, Any], said: str) -> None:
    VALIDATOR.validate(REPORT)
    with pytest.raises(jsonschema.ValidationError, match=said):
        VALIDATOR.validate({**REPORT, **changes})


@pytest.mark.parametrize("field", list(REPORT))
def test_every_field_must_be_there(field: str) -> None:
    report = {name: value for name, value in REPORT.items() if name != field}
    assert not VALIDATOR.is_valid(report)


# ---- the header ---------------------------------------------------------------------------------


def test_the_words_are_those_that_were_read() -> None:
    app.parse(["sim", "skew", "--ranks", "3"], 1)
    assert provenance.header()["command"] == ["pypartial", "sim", "skew", "--ranks", "3"]
    provenance.note_command(None)
    assert provenance.header()["command"] == ["pypartial", *sys.argv[1:]]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: A  CPU @ 2 GHz\nmodel name\t: B\n", "A CPU @ 2 GHz"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", platform.processor() or platform.machine()),
        (None, platform.processor() or platform.machine()),
    ],
)
def test_the_name_of_the_processor(text: str | None, name: str, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert provenance._cpu(str(path)) == name


def test_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    machine = provenance.machine()
    assert machine["mpi"] is None
    assert machine["cores"] >= 1
