"""``pypartial trace merge``: synthetic traces become one timeline; what is of no use is refused."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import cffi
import jsonschema
import numpy as np
import pytest
from support.timelines import HANDLE, WALL_NS, Clock, Made, rounds, write

from pypartial.cli import TraceOptions, app
from pypartial.cli.trace import _run
from pypartial.timeline import files
from pypartial.timeline.chrome import save_chrome
from pypartial.timeline.files import EVENT, HEAD, read_run
from pypartial.timeline.profiler import Profile

SIGHT = Path(__file__).resolve().parents[2] / "csrc" / "include" / "pypartial_sight.h"
NUMBER, TEXT, ENCLOSED = {"type": "number"}, {"type": "string"}, {"const": "e"}


def phase(ph: list[str], required: list[str], **properties: Any) -> dict[str, Any]:
    """One kind of event of the trace format; nothing else may be in it."""
    common = {"ph": {"enum": ph}, "name": TEXT, "pid": {"type": "integer"}, "tid": NUMBER}
    known = {**common, "ts": {"type": "number", "minimum": 0}, "args": {"type": "object"}}
    return {
        "properties": {**known, **properties},
        "required": ["ph", "name", "pid", *required],
        "additionalProperties": False,
    }


# "Trace Event Format", Google: the object form, and the phases that a timeline has.
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "oneOf": [
                    phase(["X"], ["tid", "ts", "dur"], dur={"type": "number", "minimum": 0}),
                    phase(["i"], ["tid", "ts", "s"], s={"enum": ["g", "p", "t"]}),
                    phase(["C"], ["ts", "args"], args={"additionalProperties": NUMBER}),
                    phase(["M"], ["args"]),
                    phase(["s"], ["tid", "ts", "id", "cat"], id=NUMBER, cat=TEXT),
                    phase(
                        ["f"], ["tid", "ts", "id", "cat", "bp"], id=NUMBER, cat=TEXT, bp=ENCLOSED
                    ),
                ],
            },
        },
    },
}


def merged(folder: Path, *profiles: Path) -> dict[str, Any]:
    """Merge, check the format, and return the timeline."""
    out = folder.parent / "timeline.json"
    found = [Profile(path, order) for order, path in enumerate(profiles)]
    save_chrome(read_run(folder), found, out)
    timeline: dict[str, Any] = json.loads(out.read_text())
    if not profiles:  # of which torch says what is in them
        events = timeline["traceEvents"]
        some = [*events[:1000], *events[-1000:]] if len(events) > 2000 else events
        jsonschema.validate({**timeline, "traceEvents": some}, SCHEMA)
    return timeline


def only(timeline: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    events = timeline["traceEvents"]
    return [one for one in events if all(one.get(key) == value for key, value in wanted.items())]


def arrows(timeline: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return both ends of all arrows; each start has one end."""
    starts, ends = only(timeline, ph="s"), only(timeline, ph="f")
    assert sorted(one["id"] for one in starts) == sorted({one["id"] for one in ends})
    assert len(starts) == len(ends)
    by_id = {one["id"]: one for one in ends}
    return [(one, by_id[one["id"]]) for one in starts]


def run(*words: object) -> int:
    job = app.parse([str(word) for word in words], 1)
    return _run(job) if isinstance(job, TraceOptions) else int(job)


# ---- the format ----------------------------------------------------------------------------------


def test_the_format_is_that_of_the_header() -> None:
    text = SIGHT.read_text(encoding="utf-8")
    declared = text.partition("/* CDEF BEGIN */")[2].partition("/* CDEF END */")[0]
    ffi = cffi.FFI()
    ffi.cdef("typedef int pp_ctx_t; typedef int pp_status_t;" + declared)
    for name, of in (("pp_event_t", EVENT), ("pp_trace_head_t", HEAD)):
        assert ffi.sizeof(name) == of.itemsize
        offsets = {field: of.fields[field][1] for field in of.names}
        assert {field: ffi.offsetof(name, field) for field, _ in ffi.typeof(name).fields} == offsets
    kinds = ffi.typeof("pp_event_kind_t").relements
    assert len(kinds) == 13
    for name, number in kinds.items():
        assert getattr(files, name.removeprefix("PP_EVENT_")) == number
    constants = dict(re.findall(r"(PP_TRACE_\w+) = (\d+)", text))
    assert int(constants["PP_TRACE_VERSION"]) == files.VERSION
    assert int(constants["PP_TRACE_HEAD"]) == HEAD.itemsize


# ---- what is drawn -------------------------------------------------------------------------------


def test_a_rank_is_a_process_and_a_handle_a_thread(tmp_path: Path) -> None:
    timeline = merged(rounds(3, 10).save(tmp_path / "t"))
    named = {one["pid"]: one["args"]["name"] for one in only(timeline, name="process_name")}
    assert named == {rank: f"rank {rank} (node0)" for rank in range(3)}
    threads = {one["args"]["name"] for one in only(timeline, name="thread_name")}
    assert threads == {f"handle {HANDLE}", "rounds"}
    for rank in range(3):
        waits = only(timeline, ph="X", name="Wait", pid=rank)
        late = only(timeline, ph="X", name="late", pid=rank)
        assert len(waits) + len(late) == len(only(timeline, name="Start", pid=rank)) == 10
        assert all(one["args"]["late"] for one in late)
        assert not any(one["args"]["late"] for one in waits)
    assert only(timeline, name="late")
    (wait,) = [one for one in only(timeline, name="Wait", pid=0) if one["args"]["round"] == 3]
    initiator = wait["args"].pop("initiator")
    assert initiator in range(3)
    told = {"round": 3, "active": 3, "contributions": 3, "staleness": 0}
    assert wait["args"] == {**told, "cause": "policy", "late": 0}
    counters = only(timeline, ph="C", name=f"handle {HANDLE}", pid=1)
    assert len(counters) == 10
    assert set(counters[0]["args"]) == {"active", "staleness"}


def test_times_are_exact_and_begin_with_the_earliest_event(tmp_path: Path) -> None:
    made = Made(2)
    for rank, ns in ((0, 5_000_000_123), (1, 4_999_000_001)):
        made.add(rank, files.START, ns, handle=1)
        made.add(rank, files.WAIT, ns + 7, handle=1)
        made.add(rank, files.GIVEN, ns + 2_000_009, handle=1)
    made.save(tmp_path / "t")
    timeline = merged(tmp_path / "t")
    found = [(one["pid"], one["ts"], one["dur"]) for one in only(timeline, name="Wait")]
    assert found == [(0, 1000.129, 2000.002), (1, 0.007, 2000.002)]
    assert '"ts":1000.129,' in (tmp_path / "timeline.json").read_text()


def test_a_result_without_a_wait_is_a_wait_of_no_length(tmp_path: Path) -> None:
    """That of a Test, or of a Flush, which has no Start either, and no arrow."""
    made = Made(2)
    for rank in (0, 1):
        made.add(rank, files.START, 1000, handle=1)
        for number, ns in ((7, 3000), (8, 4000)):
            fields = {"handle": 1, "number": number, "flags": files.EXTERNAL * rank}
            made.add(rank, files.GIVEN, ns, **fields)
    timeline = merged(made.save(tmp_path / "t"))
    found = [(one["name"], one["ts"], one["dur"]) for one in only(timeline, ph="X", pid=1)]
    assert found == [("Start", 0, 2), ("Wait", 2, 0), ("Wait", 3, 0)]
    assert [(one["ts"], other["ts"]) for one, other in arrows(timeline)] == [(0, 2)]


def test_a_round_is_a_slice_of_no_length_where_nothing_began_it(tmp_path: Path) -> None:
    made = Made(1)
    which = {"handle": 2, "number": 5}
    made.add(0, files.ACTIVATE, 10_000, **which, d=-1)
    made.add(0, files.JOIN, 11_000, **which)
    made.add(0, files.CLAIM, 12_000, handle=3, number=1)  # at the same time: a row of its own
    made.add(0, files.PUBLISH, 14_000, **which, key=64, a=1, b=2, c=3, d=0, cause=3)
    made.add(0, files.PUBLISH, 15_000, handle=3, number=1)
    made.add(0, files.PUBLISH, 16_000, handle=2, number=6)
    timeline = merged(made.save(tmp_path / "t"))
    (five,) = only(timeline, name="round 5")
    (one,) = only(timeline, name="round 1")
    (six,) = only(timeline, name="round 6")
    assert (five["ts"], five["dur"], five["tid"] != one["tid"]) == (0, 4, True)
    assert (five["args"]["bytes"], five["args"]["cause"]) == (64, "deadline")
    assert (six["ts"], six["dur"]) == (6, 0)


def test_rounds_that_others_publish_are_forgotten(tmp_path: Path) -> None:
    made = Made(1)
    for number in range(100):
        made.add(0, files.CLAIM, 1000 * (number + 1), handle=1, number=number)
    timeline = merged(made.save(tmp_path / "t"))
    slices = only(timeline, ph="X")
    assert [one["dur"] for one in slices[:92]] == [0] * 92
    assert [one["args"].get("unfinished") for one in slices[92:]] == [True] * 8
    assert len(only(timeline, name="thread_name")) == 8


def test_calls_spans_and_the_progress_thread(tmp_path: Path) -> None:
    made = Made(1)
    name = len("MPI_Bcast") + 1
    made.add(0, files.SPAN, 1000, a=name, b=77)
    made.add(0, files.AWAKE, 1500)
    made.add(0, files.SPAN, 2000, a=0, b=77)
    made.add(0, files.SPAN, 2500, a=name, b=78)
    made.add(0, files.CALL, 3000, a=0)
    made.add(0, files.CALL_END, 4000)
    made.add(0, files.SPAN_END, 5000, a=0, b=77)
    made.add(0, files.ASLEEP, 5500)
    made.add(0, files.SPAN_END, 6000, a=name, b=77)
    made.add(0, files.SPAN_END, 7000, a=name, b=78)
    timeline = merged(made.save(tmp_path / "t", names=['MPI_"B"', "forward"]))
    names = {one["tid"]: one["args"]["name"] for one in only(timeline, name="thread_name")}
    found = [
        (names[one["tid"]], one["name"], one["ts"], one["dur"]) for one in only(timeline, ph="X")
    ]
    spans = "spans of thread "
    assert found == [
        ("collective calls", 'MPI_"B"', 2, 1),
        (spans + "77", 'MPI_"B"', 1, 3),
        ("progress", "awake", 0.5, 4),
        (spans + "77", "rward", 0, 5),  # an offset within a name
        (spans + "78", "rward", 1.5, 4.5),
    ]


# ---- arrows and clocks ---------------------------------------------------------------------------


def test_arrows_point_from_the_initiator_to_those_that_others_activated(tmp_path: Path) -> None:
    timeline = merged(rounds(4, 50).save(tmp_path / "t"))
    found = arrows(timeline)
    assert len(found) == 50 * 3 - 10  # not to the late ones
    for start, end in found:
        (wait,) = [
            one
            for one in only(timeline, name="Wait", pid=end["pid"])
            if one["ts"] <= end["ts"] < one["ts"] + one["dur"]
        ]
        assert wait["args"]["initiator"] == start["pid"] != end["pid"]
        began = [one["ts"] for one in only(timeline, name="Start", pid=start["pid"])]
        assert began[wait["args"]["round"]] == start["ts"] < end["ts"]


def test_an_arrow_needs_both_of_its_ends(tmp_path: Path) -> None:
    folder = rounds(3, 20).save(tmp_path / "t")
    everything = arrows(merged(folder))
    (folder / "rank-00001.pptrace").unlink()
    found = arrows(merged(folder))
    kept = [pair for pair in everything if 1 not in {one["pid"] for one in pair}]
    assert 0 < len(found) == len(kept) < len(everything)


def test_a_result_whose_start_is_lost_has_no_arrow(tmp_path: Path) -> None:
    """Later rounds of the same rank do."""
    made = Made(2)
    for number in (5, 6):
        if number == 6:
            made.add(0, files.START, 2000, handle=1)
        made.add(0, files.GIVEN, 3000 + number, handle=1, number=number)
        made.add(1, files.GIVEN, 4000 + number, handle=1, number=number, flags=files.EXTERNAL)
    assert [end["ts"] for _, end in arrows(merged(made.save(tmp_path / "t")))] == [2.006]


def test_an_event_of_no_kind_is_left_out(tmp_path: Path) -> None:
    made = Made(1)
    for kind, ns in ((files.AWAKE, 1000), (files.SPAN_END + 1, 2000), (files.START, 3000)):
        made.add(0, kind, ns, handle=1)
    (awake,) = only(merged(made.save(tmp_path / "t")), name="awake")
    assert awake["args"] == {"unfinished": True}


def test_clocks_of_eight_ranks_are_aligned(tmp_path: Path) -> None:
    draws = np.random.default_rng(5)
    offsets = draws.integers(-(10**9) // 2, 10**9, 8)
    clocks = [
        Clock(int(ns), float(ppm))
        for ns, ppm in zip(offsets, draws.uniform(-100, 100, 8), strict=True)
    ]
    clocks[0] = Clock()
    clocks[7] = Clock(10**9, 100)
    true = rounds(8, 1000)
    expected = merged(true.save(tmp_path / "true"))
    true.clocks = clocks
    timeline = merged(true.save(tmp_path / "t"))
    apart = [
        abs(one["ts"] - other["ts"])
        for one, other in zip(timeline["traceEvents"], expected["traceEvents"], strict=True)
        if "ts" in one
    ]
    assert len(apart) > 35_000
    assert max(apart) < 100
    assert all(end["ts"] - start["ts"] > -100 for start, end in arrows(timeline))
    errors = timeline["otherData"]["clock_error_us"]
    assert errors == {str(rank): 2 for rank in range(8)}


# ---- killed runs ---------------------------------------------------------------------------------


def test_a_killed_run_opens(tmp_path: Path) -> None:
    """There is no last meeting, and the newest events are counted, but not written."""
    made = rounds(3, 20, [Clock(), Clock(10**6), Clock(-(10**6))])
    folder = made.save(tmp_path / "t", capacity=400)
    for path in sorted(folder.iterdir()):
        data = bytearray(path.read_bytes())
        head = np.frombuffer(data, HEAD, 1)
        ring = np.frombuffer(data, EVENT, offset=HEAD.itemsize)
        count = int(head["count"][0])
        waits = np.flatnonzero(ring["kind"] == files.WAIT)
        ring[waits[-1] + 1 : count] = 0  # killed in its last Wait
        ring[waits[-1] + 1]["kind"] = files.GIVEN  # half written
        ring[waits[-1] + 2]["ns"] = ring["ns"].max()
        ring[waits[-1] + 3]["kind"], ring[waits[-1] + 3]["ns"] = 200, ring["ns"].max()
        head["count"] = min(count + 3, 400)
        head["met"][0, 1] = 0
        path.write_bytes(data)
    timeline = merged(folder)
    unfinished = [one for one in only(timeline, ph="X") if one["args"].get("unfinished")]
    assert [one["name"] for one in unfinished if "round" not in one["name"]] == ["Wait"] * 3
    assert timeline["otherData"]["unfinished_ranks"] == [0, 1, 2]
    assert max(one["ts"] for one in timeline["traceEvents"] if "ts" in one) < 250_000
    for rank in range(3):
        assert len(only(timeline, name="Start", pid=rank)) == 20
    assert len(arrows(timeline)) == 38 - 3


def test_a_ring_drops_the_oldest_events(tmp_path: Path, capsys: Any) -> None:
    made = Made(1)
    for number in range(300):
        ns = 10**6 + 1000 * number
        made.add(0, files.START, ns, handle=1, number=number + 1)
        made.add(0, files.WAIT, ns + 100, handle=1)
        made.add(0, files.GIVEN, ns + 200, handle=1, number=number)
    # Of the 902 events counted two are not written: their places have some of the lap before.
    folder = made.save(tmp_path / "t", capacity=250, count=902)
    timeline = merged(folder)
    found = [one["args"]["round"] for one in only(timeline, name="Wait")]
    assert found == list(range(217, 300))
    assert only(timeline, name="Start")[0]["ts"] >= 0
    assert timeline["otherData"]["dropped_events"] == {"0": 652}
    assert run("trace", "merge", folder, "-o", tmp_path / "a.json") == 0
    assert "rank 0: the oldest 652 events were overwritten" in capsys.readouterr().err


def test_a_trace_without_events(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, 1, [], count=0, capacity=10)
    assert [one["ph"] for one in merged(tmp_path / "t")["traceEvents"]] == ["M", "M"]


# ---- torch.profiler ------------------------------------------------------------------------------


def profile(path: Path, rank: int | None, ts: float, base: int = WALL_NS - 10**9) -> Path:
    """Write what torch 2.13 writes, which is not quite as other JSON."""
    info = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0"}]}
    said = "" if rank is None else f'"distributedInfo": {json.dumps(info)},'
    thread = {"ph": "M", "name": "thread_name", "ts": ts, "pid": 77, "tid": 77}
    events = [
        {"ph": "M", "name": "process_name", "ts": ts, "pid": 77, "tid": 0, "args": {"name": "py"}},
        {**thread, "args": {"name": "thread 77 (python)"}},
        {
            "ph": "X",
            "name": "aten::mm",
            "pid": 77,
            "tid": 77,
            "ts": ts,
            "dur": 2.5,
            "args": {"a": 1},
        },
        {"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": ts + 1, "dur": 2},
        {"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "pid": 77, "tid": 77, "ts": ts},
        {
            "ph": "f",
            "id": 3,
            "cat": "ac2g",
            "name": "ac2g",
            "pid": 0,
            "tid": 7,
            "ts": ts,
            "bp": "e",
        },
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": ts + 9},
    ]
    text = f'{{ "schemaVersion": 1,\n {said}\n "baseTimeNanoseconds": {base},\n "traceEvents": [\n'
    text += ",\n".join(json.dumps(one, indent=2) for one in events) + '\n ],"traceName": "a" }'
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_a_profile_joins_its_rank(tmp_path: Path) -> None:
    folder = rounds(2, 5, [Clock(), Clock(10**8)]).save(tmp_path / "t")
    # 1.01 s after each clock's zero: that of rank 1 is 0.1 s ahead.
    one = profile(tmp_path / "a.json.gz", 1, 2.11e6)
    other = profile(tmp_path / "b.json", 0, 2.01e6)
    timeline = merged(folder, one, other)
    found = {event["pid"]: event for event in only(timeline, name="aten::mm")}
    start = min(event["ts"] for event in timeline["traceEvents"] if "ts" in event)
    assert start == 0
    first = min(int(e["ns"]) for es in rounds(2, 5).events.values() for e in es)
    for rank in (0, 1):
        assert found[rank]["ts"] == pytest.approx((1.01e9 - first) / 1e3, abs=1e-3)
        assert (found[rank]["dur"], found[rank]["args"]) == (2.5, {"a": 1})
        threads = only(timeline, name="thread_name", pid=rank, tid=found[rank]["tid"])
        assert [event["args"]["name"] for event in threads] == ["thread 77 (python)"]
        (kernel,) = only(timeline, name="kernel", pid=rank)
        assert kernel["tid"] != found[rank]["tid"]
        (end,) = only(timeline, name="Record Window End", pid=rank)
        assert end["s"] == "t"
    ids = [event["id"] for event in only(timeline, cat="ac2g")]
    assert [ids.count(one) for one in ids] == [2] * 4
    assert len(only(timeline, name="process_name")) == 2


def test_a_profile_earlier_than_all_events_begins_the_timeline(tmp_path: Path) -> None:
    folder = rounds(1, 5).save(tmp_path / "t")
    timeline = merged(folder, profile(tmp_path / "a.json", None, 1.5e6))
    (first,) = only(timeline, name="aten::mm")
    assert first["ts"] == 0


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "torch.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(3) + 1
    profiler.export_chrome_trace(str(path))
    timeline = merged(rounds(1, 5).save(tmp_path / "t"), path)
    assert only(timeline, name="aten::add", pid=0)
    assert any("python" in one["args"]["name"] for one in only(timeline, name="thread_name"))


def test_a_profile_longer_than_a_block(tmp_path: Path, monkeypatch: Any) -> None:
    path = profile(tmp_path / "a.json", 0, 3e6)
    whole = merged(rounds(1, 5).save(tmp_path / "t"), path)
    monkeypatch.setattr("pypartial.timeline.profiler._BLOCK", 300)
    assert merged(tmp_path / "t", path) == whole


# ---- the command, and what is of no use ----------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: Any) -> None:
    folder = rounds(2, 5).save(tmp_path / "t")
    out = tmp_path / "out.json"
    profiles = [profile(tmp_path / f"{rank}.json", None, 3e6) for rank in (0, 1)]
    assert run("trace", "merge", folder, "-o", out, "--with-profiler", *profiles) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"Timeline: {out}\n", "")
    timeline = json.loads(out.read_text())
    assert [one["pid"] for one in only(timeline, name="aten::mm")] == [0, 1]
    assert timeline["otherData"]["ranks"] == 2


def test_the_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    """It initialises no MPI, and needs no launcher."""
    folder, out = rounds(2, 5).save(tmp_path / "t"), tmp_path / "out.json"
    words = [sys.executable, "-m", "pypartial", "trace", "merge", str(folder), "-o", str(out)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", f"Timeline: {out}\n")
    assert arrows(json.loads(out.read_text()))


def damaged(folder: Path, what: str) -> None:
    """Make a folder of three ranks of no use."""
    events = [{"ns": 1000, "kind": files.AWAKE}, {"ns": 2000, "kind": files.ASLEEP}]
    for rank in range(3):
        path = write(folder, rank, 3, events)
    if what == "two runs":
        write(folder, 2, 3, events, run=(17, 5))
    elif what == "another size":
        write(folder, 2, 4, events)
    elif what == "one rank twice":
        (folder / "rank-00002.pptrace").write_bytes((folder / "rank-00001.pptrace").read_bytes())
    elif what == "cut off":
        path.write_bytes(path.read_bytes()[:-20])
    elif what == "cut off after an event":
        path.write_bytes(path.read_bytes()[:-48])
    elif what == "no head":
        path.write_bytes(path.read_bytes()[:1000])
    elif what == "another version":
        write(folder, 2, 3, events, version=2)
    elif what == "another event":
        write(folder, 2, 3, events, event_bytes=56)
    elif what == "another magic":
        write(folder, 2, 3, events, magic=b"ELF")
    elif what == "a damaged head":
        write(folder, 2, 0, events)


@pytest.mark.parametrize("command", ["merge", "report"])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("two runs", "has traces of two runs: rank-00000.pptrace and rank-00002.pptrace"),
        ("another size", "has traces of two runs"),
        ("one rank twice", "has two traces of rank 1"),
        ("cut off", "rank-00002.pptrace is cut off: of 2 events it has 1 whole ones"),
        (
            "cut off after an event",
            "rank-00002.pptrace is cut off: of 2 events it has 1 whole ones",
        ),
        ("no head", "rank-00002.pptrace is not a trace of pypartial"),
        ("another version", "is of version 2, with 48 bytes an event; here 1 and 48 are read"),
        ("another event", "is of version 1, with 56 bytes an event"),
        ("another magic", "rank-00002.pptrace is not a trace of pypartial"),
        ("a damaged head", "rank-00002.pptrace has a damaged head"),
    ],
)
def test_traces_of_no_use_are_one_line(
    tmp_path: Path, what: str, said: str, command: str, capsys: Any
) -> None:
    damaged(tmp_path / "t", what)
    more = ("-o", tmp_path / "a.json") if command == "merge" else ()
    assert run("trace", command, tmp_path / "t", *more) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pypartial trace: ")
    assert said in line
    assert not (tmp_path / "a.json").exists()


def test_a_missing_rank_is_said(tmp_path: Path, capsys: Any) -> None:
    folder = rounds(4, 5).save(tmp_path / "t")
    for rank in (1, 3):
        (folder / f"rank-0000{rank}.pptrace").unlink()
    assert run("trace", "merge", folder, "-o", tmp_path / "a.json") == 0
    assert capsys.readouterr().err == ("pypartial trace: of 4 ranks, these have no trace: 1, 3\n")
    assert json.loads((tmp_path / "a.json").read_text())["otherData"]["missing_ranks"] == [1, 3]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "is not a trace of torch.profiler"),
        ('{"traceEvents": [{"ph": "X"', "is cut off, or no JSON"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_profiles_of_no_use(tmp_path: Path, content: str | None, said: str, capsys: Any) -> None:
    folder, path = rounds(2, 5).save(tmp_path / "t"), tmp_path / "a.json"
    profile(path, 0, 3e6)
    other = tmp_path / "b.json"
    if content is not None:
        other.write_text(content)
    words = ("-o", tmp_path / "out.json", "--with-profiler", path, other)
    assert run("trace", "merge", folder, *words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and "b.json" in line


def test_a_profile_of_a_rank_without_a_trace(tmp_path: Path, capsys: Any) -> None:
    folder = rounds(2, 5).save(tmp_path / "t")
    path = profile(tmp_path / "p.json", 5, 3e6)
    words = ("-o", tmp_path / "out.json", "--with-profiler", path)
    assert run("trace", "merge", folder, *words) == 1
    assert "p.json is of rank 5, of which there is no trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("none -o a.json", "'none' does not exist"),
        ("t", "Missing option '--output' / '-o'"),
        ("t -o none/a.json", "cannot be written: No such file or directory"),
        ("t -o a.json b.json", "b.json"),
    ],
)
def test_usage_errors(tmp_path: Path, words: str, said: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").mkdir()
    assert run("trace", "merge", *words.split()) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_profile_is_not_written_over(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = rounds(1, 5).save(tmp_path / "t")
    path = profile(tmp_path / "a.json", 0, 3e6)
    monkeypatch.chdir(tmp_path)
    assert run("trace", "merge", folder, "-o", "a.json", "--with-profiler", path) == 2
    assert "--output a.json: cannot be written: it is read" in capsys.readouterr().err
    assert run("trace", "merge", folder, "-o", "b.json", "--with-profiler", path) == 0


def test_a_closed_pipe_is_not_a_trace_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_words: Any) -> bool:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("pypartial.cli.trace.save", broken)
    with pytest.raises(BrokenPipeError):
        run("trace", "merge", rounds(1, 5).save(tmp_path / "t"), "-o", tmp_path / "a.json")


def test_a_folder_without_traces(tmp_path: Path, capsys: Any) -> None:
    assert run("trace", "merge", tmp_path, "-o", tmp_path / "a.json") == 1
    assert "has no traces: there is no file rank-*.pptrace" in capsys.readouterr().err


def test_memory_does_not_grow_with_the_events(tmp_path: Path) -> None:
    """Only the ends of arrows stay: 16 and 24 bytes, and half as much again while they grow."""
    peaks = []
    for laps in (10, 20):
        folder = tmp_path / str(laps)
        for path in rounds(2, 500).save(folder).iterdir():
            head, ring = np.fromfile(path, HEAD, 1), np.fromfile(path, EVENT, offset=HEAD.itemsize)
            many = np.tile(ring, laps)
            many["number"] += np.repeat(np.arange(laps) * 500, len(ring))
            many["ns"] += np.repeat(np.arange(laps) * 10**10, len(ring))
            head["count"] = head["capacity"] = len(many)
            path.write_bytes(head.tobytes() + many.tobytes())
        tracemalloc.start()
        save_chrome(read_run(folder), [], tmp_path / "a.json")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    results = 10 * 2 * 500
    assert peaks[1] - peaks[0] < 60 * results
