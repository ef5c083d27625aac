"""What ``pypartial sim skew`` reports: theory, determinism, bounds, and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest
from support.tables import assert_fits, columns_of

from pypartial._core_sim import ffi, lib
from pypartial._names import algorithms
from pypartial.cli import app
from pypartial.cli.sim_run import _skew
from pypartial.policy import Majority, Policy
from pypartial.sim import memory, skew
from pypartial.sim.allreduce_handle import Handle, Options, Round
from pypartial.sim.arrivals import Arrivals, parse_arrivals
from pypartial.sim.handle import CoreError
from pypartial.sim.network import parse_network
from pypartial.sim.options import Death, Deliver
from pypartial.sim.skew import Row, Run, compare
from pypartial.sim.world import Deadlock, World

NETWORK = parse_network("L=2us,o=500ns,g=300ns,G=0.1ns,S=64K")


def run(ranks: int, steps: int, arrivals: str = "linear:1ms", **changes: object) -> Run:
    model = parse_arrivals(arrivals, ranks, steps, 1)
    barrier = arrivals.startswith("linear")
    return dataclasses.replace(
        Run(ranks, 64, steps, model, NETWORK, seed=1, barrier=barrier),
        **changes,  # type: ignore[arg-type]
    )


def rows(run: Run, *policies: str) -> dict[str, Row]:
    return {row.policy: row for row in compare(run, [Policy.parse(text) for text in policies])}


# ---- theory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 9, 64])
def test_active_ranks_agree_with_theory_for_distinct_arrivals(ranks: int) -> None:
    """Solo 1, majority (P+1)/2, first of m (P+1)/(m+1), quorum k, full P."""
    found = rows(run(ranks, 200), "solo", "majority", "first:2", f"quorum:{ranks - 1}", "full")
    for row in found.values():
        assert row.active_expected is not None
        assert row.active.agrees_with(row.active_expected), (row.policy, row.active)
        assert row.verified
    assert found["solo"].active.ci95 == (1.0, 1.0)
    low, high = found["majority"].active.ci95 or (0.0, 0.0)
    assert high - low < 0.25 * ranks  # an interval that says something


def test_active_ranks_of_shuffled_arrivals() -> None:
    """The order of arrival changes in every step, and the times are a millisecond apart."""

    class Shuffled(Arrivals):
        def _draw(self, step: int, generator: np.random.Generator) -> np.ndarray:
            return generator.permutation(self.ranks) * 1_000_000

    shuffled = dataclasses.replace(run(12, 400), arrivals=Shuffled("shuffled", 12, 3))
    for row in rows(shuffled, "solo", "majority").values():
        assert row.active_expected is not None
        assert row.active.agrees_with(row.active_expected), (row.policy, row.active)


def test_times_of_a_linear_skew() -> None:
    """Full waits for the last; solo for nobody; the mean computation is (P - 1) / 2 ms."""
    found = rows(run(16, 20), "solo", "full")
    rounds_us = 4 * (2 * 3.0) + 10  # four hops there, four exchanges; and what ports add
    assert 7500 <= found["solo"].step_us.mean <= 7500 + rounds_us
    assert 15000 <= found["full"].step_us.mean <= 15000 + 2 * rounds_us
    ratio = found["full"].step_us.mean / found["solo"].step_us.mean
    assert found["solo"].speedup_vs_synchronous == pytest.approx(ratio, abs=1e-4)
    assert found["full"].idle.mean == pytest.approx(0.5, abs=0.01)
    assert found["full"].idle.per_rank[0] == pytest.approx(1.0, abs=0.001)
    assert found["full"].idle.per_rank[15] < 0.01


def test_traffic_is_counted_with_headers() -> None:
    """Three activations of 32 bytes, three exchanges of 80 + 64, a rank and round."""
    (row,) = rows(run(8, 50), "full").values()
    assert row.messages_per_rank_step == 6
    assert row.bytes_per_rank_step == 3 * 32 + 3 * (80 + 64)
    assert row.rounds == 50


def test_without_a_barrier_a_slow_rank_slows_nobody() -> None:
    """eager-SGD's point: solo and majority go on, full waits in every step."""
    found = rows(run(8, 30, "slow:3:20x"), "solo", "majority")
    assert found["full"].speedup_vs_synchronous == 1
    assert found["solo"].speedup_vs_synchronous > 4
    assert found["majority"].speedup_vs_synchronous > 1.5  # some draws are the slow rank's
    assert found["solo"].stale_share > 0.5
    assert sum(found["solo"].staleness.values()) > 0


def test_the_bound_holds_the_fast_ranks_back() -> None:
    """With max_lag a slow rank misses no more rounds than that, and the others wait for it."""
    free = rows(run(6, 30, "slow:3:20x"), "solo")["solo"]
    bound = rows(run(6, 30, "slow:3:20x", max_lag=2), "solo")["solo"]
    assert bound.step_us.mean > 2 * free.step_us.mean
    assert max(int(rounds.rstrip("+")) for rounds in bound.staleness) <= 3


@pytest.mark.parametrize("deliver", list(Deliver))
@pytest.mark.parametrize("size", [64, 7, 40_000])
def test_every_delivery_and_size(deliver: Deliver, size: int) -> None:
    found = rows(run(5, 10, "normal:1ms:500us", deliver=deliver, size=size), "solo", "quorum:3")
    assert all(row.verified for row in found.values())


# ---- the same seed --------------------------------------------------------------------------


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pypartial", "sim", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_same_seed_gives_byte_identical_json(tmp_path) -> None:
    saved = []
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        path = tmp_path / f"{name}.json"
        options = ("--ranks", "20", "--steps", "15", "--arrivals", "ucf101", "--seed", seed)
        network = ("--network", "piz-daint-like,jitter=2us,noise=100ns,reduce=10GB/s")
        ran = command("skew", *options, *network, "--json", str(path))
        assert ran.returncode == 0, ran.stderr
        saved.append(path.read_bytes())
    results = [text[text.index(b'"meta"') :] for text in saved]  # behind the date
    assert results[0] == results[1]
    assert results[0] != results[2]
    report = json.loads(saved[0])
    assert report["meta"]["seed"] == 5
    assert {row["policy"] for row in report["rows"]} == {"solo", "majority", "full"}
    for row in report["rows"]:
        assert len(row["idle"]["per_rank"]) == 20


@pytest.mark.parametrize("terminal", [True, pytest.param(False, marks=pytest.mark.long)])
def test_progress_is_a_percentage_on_a_terminal(terminal: bool) -> None:
    words = "skew --ranks 16 --ranks 300 --steps 100 --policy majority --arrivals normal:1ms:1ms"
    program = [sys.executable, "-m", "pypartial", "sim", *words.split()]
    screen, stderr = os.openpty() if terminal else os.pipe()
    with open(screen, "rb", buffering=0) as shown:
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=stderr)
        os.close(stderr)
        text = b""
        with contextlib.suppress(OSError):  # a terminal that nobody has open any more
            while more := shown.read(1024):
                text += more
        assert process.wait() == 0
    if not terminal:
        assert text == b""
        return
    shares = [int(share) for share in re.findall(rb"(\d+)%", text)]
    assert shares == sorted(shares)
    assert len(set(shares)) > 2, text
    assert 0 <= shares[0] <= shares[-1] <= 100
    assert b"300 ranks, 64 B: majority" in text


def test_a_comparison_reports_how_much_is_done() -> None:
    told: list[tuple[str, float]] = []
    policies = [Policy.parse(text) for text in ("solo", "majority")]
    compare(run(3, 5, "normal:1ms:500us"), policies, lambda *now: told.append(now))
    assert [text for text, _ in told[::6]] == ["solo", "majority", "full"]
    assert [share for _, share in told] == pytest.approx(
        [(policy + step / 5) / 3 for policy in range(3) for step in range(6)]
    )


def test_several_ranks_and_sizes_and_a_plot(tmp_path) -> None:
    for ranks, sizes in (("4", "64"), ("4 9", "64"), ("4", "64 1K"), ("4 9", "64 1K")):
        path = tmp_path / "plot.png"
        several = [o for r in ranks.split() for o in ("--ranks", r)]
        several += [o for s in sizes.split() for o in ("--size", s)]
        ran = command("skew", *several, "--steps", "3", "--plot", str(path))
        assert ran.returncode == 0, ran.stderr
        assert path.read_bytes().startswith(b"\x89PNG")
        path.unlink()


@pytest.mark.parametrize("arrivals", ["linear:1ms", "normal:1ms:1ms"])
def test_one_world_is_freed_before_the_next(arrivals: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command switches the garbage collector off: nothing may be left in a circle."""
    worlds: list[weakref.ref[World]] = []
    alive: list[int] = []

    class Counted(World):
        def __init__(self, *arguments: object, **options: object) -> None:
            alive.append(sum(world() is not None for world in worlds))
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            worlds.append(weakref.ref(self))

    monkeypatch.setattr(skew, "World", Counted)
    gc.disable()
    try:
        rows(run(4, 3, arrivals), "solo", "majority")
        assert [world() for world in worlds] == [None] * 3
    finally:
        gc.enable()
    assert alive == [0, 0, 0]


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("", 100),
        ("--ranks 256", 100),
        ("--ranks 64 --ranks 4096", 6),
        ("--ranks 65536", 1),
        ("--ranks 65536 --steps 100", 100),
    ],
)
def test_many_ranks_make_few_steps_unless_they_are_asked_for(words: str, steps: int) -> None:
    assert app.parse(["sim", "skew", *words.split()], 1).steps == steps  # type: ignore[union-attr]


def test_the_table_fits_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "sim skew --ranks 4 --ranks 16 --steps 5 --policy solo --policy quorum:3,deadline=5ms"
    options = app.parse(words.split(), 1)
    monkeypatch.setenv("COLUMNS", "80")
    assert _skew(options) == 0
    text = capsys.readouterr().out
    assert_fits(text)
    assert "active" in columns_of(text)[0]
    monkeypatch.delenv("COLUMNS")
    assert _skew(options) == 0
    assert len(columns_of(capsys.readouterr().out)[0]) == 15


# ---- what goes wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ranks", "0"), "--ranks"),
        (("--ranks", "4", "--policy", "quorum:5"), "only 4 ranks"),
        (("--policy", "most"), "'most' is not a policy"),
        (("--arrivals", "slow:64:20x"), "64"),
        (("--arrivals", "trace:/no/such/file"), "/no/such/file"),
        (("--arrivals", "sometimes"), "sometimes"),
        (("--network", "L=2us"), "o"),
        (("--network", "token-ring"), "token-ring"),
        (("--max-lag", "4"), "--window"),
        (("--kill", "64:1ms"), "no rank 64"),
        (("--kill", "3"), "RANK:TIME"),
        (("--size", "0"), "size"),
        (("--base", "long"), "long"),
        (("--steps", "0"), "--steps"),
    ],
)
def test_nonsense_is_a_usage_error(arguments: tuple[str, ...], said: str) -> None:
    ran = command("skew", *arguments)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_trace_with_too_few_steps_or_ranks_says_what_to_change(tmp_path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("1ms 2ms 3ms\n2ms 1ms 3ms\n")
    good = command("skew", "--ranks", "3", "--steps", "2", "--arrivals", f"trace:{path}")
    assert good.returncode == 0, good.stderr
    for ranks, steps, said in (("3", "5", "--steps 2"), ("4", "2", "--ranks 3")):
        ran = command("skew", "--ranks", ranks, "--steps", steps, "--arrivals", f"trace:{path}")
        assert ran.returncode == 2
        assert said in " ".join(ran.stderr.split())


def test_more_ranks_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (("skew", "--ranks", "100000000"), ("schedule", "ring", "--ranks", "200000")):
        ran = command(*arguments)
        assert ran.returncode == 1
        assert "choose fewer --ranks" in ran.stderr
        assert "Traceback" not in ran.stderr
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    memory.require(1000, 64)
    with pytest.raises(memory.OutOfMemory, match="--ranks or --size"):
        memory.require(1000, 1 << 20)
    with pytest.raises(memory.OutOfMemory, match="another schedule"):
        memory.require(2000, 64, ring=True)


def test_a_death_in_the_loop() -> None:
    run_ = run(5, 20, "normal:1ms:100us")
    with pytest.raises(CoreError, match="rank 2"):
        rows(dataclasses.replace(run_, death=Death(2, 7_000_000, 1_000_000)), "majority")
    with pytest.raises(Deadlock, match="waits for messages from rank 2"):
        rows(dataclasses.replace(run_, death=Death(2, 7_000_000, None)), "majority")
    ran = command("skew", "--ranks", "5", "--arrivals", "normal:1ms:100us", "--kill", "2:7ms")
    assert ran.returncode == 1
    assert "deadlock" in ran.stderr
    assert "waits for messages from rank 2" in ran.stderr


# ---- schedules ------------------------------------------------------------------------------


def test_schedules_print_each_rank_or_the_latest() -> None:
    network = ("--network", "L=2us,o=500ns,g=300ns")
    ran = command("schedule", "activation", "--ranks", "8", *network)
    times = [line.split() for line in ran.stdout.splitlines() if not line.startswith("#")]
    assert [int(rank) for rank, _ in times] == list(range(8))
    assert int(times[0][1]) == 0
    assert max(int(time) for _, time in times) == 9000
    quiet = command("schedule", "activation", "--ranks", "8", *network, "--quiet")
    assert quiet.stdout == "9000\n"


@pytest.mark.parametrize("form", ["goal", "dot"])
@pytest.mark.parametrize("schedule", ["activation", "recursive-doubling", *algorithms(ffi, lib)])
def test_schedules_are_written(schedule: str, form: str) -> None:
    ran = command("schedule", schedule, "--ranks", "3", "--size", "12", "--dump", form)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("digraph" if form == "dot" else "num_ranks 3")
    assert ("activation" in ran.stdout) == (schedule == "activation")


def test_segments_of_a_schedule() -> None:
    words = ("schedule", "ring", "--ranks", "2", "--size", "16M", "--quiet", "--network")
    words += ("L=2us,o=500ns,G=0.25ns,reduce=4GB/s",)
    one, default = (int(command(*words, *more).stdout) for more in (("--segments", "1"), ()))
    assert default < one
    refused = command(*words[:4], "--dump", "dot", "--segments", "2")
    assert refused.returncode == 2
    assert "--segments" in refused.stderr


def test_schedules_are_saved(tmp_path) -> None:
    path = tmp_path / "times.json"
    ran = command("schedule", "ring", "--ranks", "3", "--size", "12", "--json", str(path))
    assert ran.returncode == 0, ran.stderr
    report = json.loads(path.read_text())
    assert len(report["finished_ns"]) == 3
    assert report["messages"] == 12


# ---- scale ----------------------------------------------------------------------------------


def test_memory_of_a_rank_grows_with_the_logarithm() -> None:
    """The core's share; measured in a process of its own, where nothing else comes and goes."""
    program = """
import resource, sys
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.world import World
from pypartial._core_sim import ffi, lib
from pypartial._names import algorithms
from pypartial.policy import Solo
from pypartial.sim.network import parse_network
network = parse_network("L=2us,o=500ns")
ranks = int(sys.argv[1])
used = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = used()
world = World(ranks, network=network)
handles = world.agreed(Options(count=8, policy=Solo()))
print((used() - before) / ranks)
"""
    ranks = (256, 1024, 4096, 16384)
    one = [
        float(
            subprocess.run(
                [sys.executable, "-c", program, str(number)],
                capture_output=True,
                text=True,
                check=True,
                timeout=300,
            ).stdout
        )
        for number in ranks
    ]
    for number, measured in zip(ranks[1:], one[1:], strict=True):
        assert measured * number <= memory.estimate(number, 64)
    # Up to 1024 ranks masks of ranks are kept; from there on two more factors of two are all.
    assert one[3] - one[2] < 0.35 * one[2]
    assert one[3] < 64_000


def test_a_round_of_many_ranks_keeps_its_promises() -> None:
    """Above the number of ranks that are named: no masks, and the sums are right."""
    found = rows(run(2048, 1), "solo", "majority")
    assert found["solo"].active.mean == 1
    assert all(row.verified for row in found.values())
    assert found["solo"].messages_per_rank_step == 22


def test_simulated_handles_can_be_opened_without_an_agreement() -> None:
    """They are like the others: rounds, Flush and Free."""
    world = World(5, seed=2)
    handles = world.agreed(Options(policy=Majority(), deliver="sum", max_lag=3))
    sums = []

    def program(rank: int):
        handle = handles[rank]
        total = 0
        for _ in range(4):
            yield 1000 * rank
            handle.send[:] = 1
            yield ("start", handle)
            yield ("wait", handle)
            total += handle.recv[0]
        yield ("flush", handle)
        total += handle.recv[0]
        yield ("free", handle)
        yield ("ctx_free",)
        sums.append(int(total))

    world.run([program(rank) for rank in range(5)])
    assert sums == [4 * 5] * 5


@pytest.mark.parametrize("deliver", list(Deliver))
def test_a_wrong_sum_is_found(deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a single round, and of several with deliver="sum"."""
    changes = {"deliver": deliver, "window": 8}
    right = rows(run(5, 20, "random:200ms", **changes), "solo")["solo"]
    assert (right.verified, right.unchecked) == (True, 0)
    collected, several = Handle.collected, set()

    def wrong(handle: Handle) -> Round:
        result = collected(handle)
        several.add(result.first < result.round)
        if result.round == 9 and (deliver is not Deliver.SUM or result.first < result.round):
            handle.recv[0] += 1
        return result

    monkeypatch.setattr(Handle, "collected", wrong)
    words = "--ranks 5 --steps 20 --arrivals random:200ms --policy solo --window 8 --seed 1"
    options = app.parse(["sim", "skew", *words.split(), "--deliver", deliver.value], 1)
    for row in compare(run(5, 20, "random:200ms", **changes), [Policy.parse("solo")]):
        assert row.verified == (row.policy == "full" and deliver is Deliver.SUM)
    assert several == {False, deliver is Deliver.SUM}
    assert _skew(options) == 1


def test_a_sum_with_a_round_that_nobody_was_given_is_not_checked() -> None:
    record = skew._Record.empty(1, 1)
    record.contributions, record.sums = {1: 2, 2: 3, 4: 1}, {(1, 2): 5, (2, 4): 7}
    record.check_sums(256)
    assert (record.verified, record.unchecked) == (True, 1)
    record.sums = {(1, 2): 6}
    record.check_sums(256)
    assert not record.verified


# ---- many ranks, and patience ---------------------------------------------------------------


@pytest.mark.parametrize("ranks", [512, pytest.param(4096, marks=pytest.mark.long)])
def test_the_first_of_m_has_its_mean_of_active_ranks(ranks: int) -> None:
    """(P + 1) / (m + 1) of them, within a 95 % interval; one rank under Solo, in every round."""
    policies = ("first:1", "first:2", "first:4", "solo")
    for label, row in rows(run(ranks, 8), *policies).items():
        if label == "full":
            continue
        expected = row.active_expected
        assert expected is not None
        assert row.active.agrees_with(expected), (label, row.active, expected)
        assert row.verified


@pytest.mark.parametrize("arrivals", ["linear:1ms", "wmt16", "slow:1:8x", "random:400ms"])
@pytest.mark.parametrize("ranks", [8, 32])
def test_automatic_patience_never_ends_in_a_usual_loop(ranks: int, arrivals: str) -> None:
    changed = rows(run(ranks, 60, arrivals, patience=-1), "solo", "majority", "first:3")
    plain = rows(run(ranks, 60, arrivals), "solo", "majority", "first:3")
    for label, row in changed.items():
        assert set(row.causes) == {"policy"}
        assert row.causes == plain[label].causes
        assert row.active == plain[label].active


def test_a_patience_that_is_too_short_shows() -> None:
    row = rows(run(8, 60, "wmt16", patience=50_000_000), "majority")["majority"]
    assert row.causes["departed"] > 0
    assert row.verified
