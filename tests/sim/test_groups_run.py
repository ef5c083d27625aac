"""Groups in virtual time: serial replay, how they mix, what a slow rank costs, and the commands."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pypartial.sim.arrivals import parse_arrivals
from pypartial.sim.events import Times, drawn_times
from pypartial.sim.generators import parse_generator
from pypartial.sim.group_run import Course, Result, read_log, simulate
from pypartial.sim.handle import CoreError
from pypartial.sim.mixing import analyse, frozen_stretches
from pypartial.sim.skew import TooLong

BASE_NS = 100_000_000
ALL = (
    *("random:3", "random:2,reuse", "smart:3", "smart:3,inter-intra", "smart:2,no-division"),
    *("controller:3", "controller:2,no-unfreeze"),
)


def constant(times: Sequence[int]) -> Times:
    return lambda _: times


def modelled(arrivals: str, ranks: int, iterations: int, seed: int) -> Times:
    return drawn_times(parse_arrivals(arrivals, ranks, iterations, seed, BASE_NS))


def run(generator: str, times: Times, ranks: int, iterations: int, **more: Any) -> Result:
    return simulate(Course(parse_generator(generator), ranks, iterations, times, **more))


# ---- the order of groups -------------------------------------------------------------------------


def average(groups: list[dict[str, Any]], ranks: int) -> np.ndarray[Any, Any]:
    """Let each group of a list average three values of each rank, one after the other."""
    values = np.random.default_rng(1).random((ranks, 3))
    for group in groups:
        total = np.zeros(3)
        for member in group["members"]:  # the lower rank's value is always the left one
            total = total + values[member]
        values[group["members"]] = total / len(group["members"])
    return values


@pytest.mark.parametrize(
    ("ranks", "per_node"), [(16, 4), pytest.param(1000, 8, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("generator", [*ALL, "static"])
def test_many_groups(generator: str, ranks: int, per_node: int) -> None:
    """In the order of their numbers groups give the same bits as in the order of their times."""
    # With random groups each request makes one, else the members of a group share it. The fastest
    # rank ends the simulation, so the others make fewer.
    iterations = (16_000 if generator == "random:3" else 64_000) // ranks
    log = io.StringIO()
    times = modelled("lognormal:100ms:60ms", ranks, iterations, 3)
    # Groups take 30 ms, so that those of different ranks overlap.
    course = Course(parse_generator(generator), ranks, iterations, times, 3, per_node, 30_000_000)
    result = simulate(course, log)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    begun = [line for line in lines if line["event"] == "begin"]
    ends = {line["group"]: line["t"] for line in lines if line["event"] == "end"}
    assert len(begun) == len(ends) == len(result.groups) > 10_000
    free = [0] * ranks
    last = [0] * ranks
    for group in begun:
        for member in group["members"]:
            assert free[member] <= group["t"], "groups of a rank overlap"
            assert last[member] < group["group"], "not in the order of serial numbers"
            free[member], last[member] = ends[group["group"]], group["group"]
    assert min(result.iterations) > 0  # everybody is served
    values = average(begun, ranks)
    assert (values == average(sorted(begun, key=lambda group: group["group"]), ranks)).all()
    before = average([], ranks)
    assert np.abs(values.mean(axis=0) - before.mean(axis=0)).max() < 1e-12
    assert values.std() < before.std() / 3


def test_the_same_seed_gives_the_same_log() -> None:
    def log(seed: int) -> str:
        text = io.StringIO()
        plan = parse_generator("smart:3")
        course = Course(plan, 9, 20, modelled("slow:0:3x", 9, 20, seed), seed)
        simulate(course, text)
        return text.getvalue()

    assert log(1) == log(1) != log(2)


def test_times_of_groups_and_of_waiting() -> None:
    log = io.StringIO()
    times = constant([1_000_000, 3_000_000])
    result = simulate(Course(parse_generator("controller:2"), 2, 5, times, group_ns=1_000_000), log)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    moments = [(line["event"], line["t"] // 1_000_000) for line in lines]
    assert moments[:4] == [("begin", 3), ("end", 4), ("begin", 7), ("end", 8)]
    # Of 4 ms each waits for the group, and rank 0 for rank 1.
    assert (result.waiting([0]), result.waiting([1])) == (3 / 4, 1 / 4)


def test_a_generator_that_forgets_a_release_stops_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pypartial.sim import group_run
    from pypartial.sim.groups import Machine

    class Forgetful(Machine):
        def __init__(self, *args: Any, table: None) -> None:
            plan, ranks, seed, node_of, weights, alpha = args
            super().__init__(plan, ranks, seed, node_of, weights, alpha, "lost-release")

    monkeypatch.setattr(group_run, "Machine", Forgetful)
    with pytest.raises((RuntimeError, CoreError), match=r"no rank can go on|does not run group"):
        run("random:2", constant([1000 + rank for rank in range(6)]), 6, 100)


# ---- how groups mix ------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "rho"), [((1, 1, 1), 1 / 2), ((1, 1, 2), 19 / 28)])
def test_rho_of_figure_4_with_ties_at_random(times: tuple[int, ...], rho: float) -> None:
    result = run("controller:2,no-unfreeze", constant([1000 * t for t in times]), 3, 8000)
    assert analyse(result.groups, 3).rho == pytest.approx(rho, abs=0.008)


@pytest.mark.parametrize(("ranks", "size"), [(8, 2), (8, 4), (16, 3)])
def test_rho_of_random_groups(ranks: int, size: int) -> None:
    result = run(f"random:{size}", constant([1000 + r for r in range(ranks)]), ranks, 3000)
    expected = 1 - (size - 1) / (ranks - 1)
    assert analyse(result.groups, ranks).rho == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize(("ranks", "size", "window"), [(8, 2, 28), (12, 3, 24), (16, 4, 20)])
def test_ranks_in_phase_do_not_stay_apart(ranks: int, size: int, window: int) -> None:
    times = constant([100_000 + rank for rank in range(ranks)])
    filtered, plain = (
        run(f"controller:{size}{more}", times, ranks, 1500) for more in ("", ",no-unfreeze")
    )
    assert 0 < max(frozen_stretches(filtered.groups, ranks, window)) <= ranks
    assert max(frozen_stretches(plain.groups, ranks, window)) > 1000
    if size == 2:
        assert filtered.iteration_ns(range(ranks)) < 1.04 * plain.iteration_ns(range(ranks))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "size"), [(8, 2), (3, 2), (4, 3), (5, 2), (16, 3)])
def test_a_rank_20_times_slower_costs_groups_little(ranks: int, size: int, seed: int) -> None:
    times = modelled("slow:0:20x", ranks, 1500, seed)
    filtered, plain = (
        run(generator, times, ranks, 1500, seed=seed)
        for generator in (f"controller:{size}", f"controller:{size},no-unfreeze")
    )
    fast = range(1, ranks)
    assert filtered.iteration_ns(fast) < 1.03 * plain.iteration_ns(fast)


def stretches(groups: Sequence[Sequence[int]], ranks: int) -> list[int]:
    """Return how many groups it takes to connect all ranks, again and again; the last may not."""
    lengths, components = [0], {rank: {rank} for rank in range(ranks)}
    for group in groups:
        lengths[-1] += 1
        joined = set[int]().union(*(components[rank] for rank in group))
        components.update(dict.fromkeys(joined, joined))
        if len(joined) == ranks:
            lengths.append(0)
            components = {rank: {rank} for rank in range(ranks)}
    return lengths


@pytest.mark.parametrize(
    "more",
    ["", ",inter-intra", ",no-division", ",foresight=0", ",foresight=10", ",c-thres=1"],
)
def test_smart_leaves_no_ranks_apart(more: str) -> None:
    """Whatever the ranks' periods are: halves in phase, slow ranks, nodes of another speed.

    When the last T groups do not connect the ranks, each rank asks with an empty group buffer at
    its third request at the latest. A rank of each component but the fastest then connects it with
    another one, so there are half as many. Of at most 8 ranks one component is left after 3 such
    turns, 9 requests of the slowest rank; that some have to be made again takes 3 more at most.
    """
    for case in range(60):
        draw = random.Random(case)
        ranks = draw.randint(2, 8)
        size = draw.randint(2, min(ranks, 4))
        if draw.random() < 0.5:
            half = ranks // 2
            factors = [draw.choice((1, 2))] * half + [draw.choice((1, 1.5, 3))] * (ranks - half)
        else:
            factors = [draw.choice((1, 1, 1.5, 2, 3, 4, 8)) for _ in range(ranks)]
        times = jittered(factors, draw.choice((0, 0, 0.02)))
        per_node = draw.choice((2, 3, 4, ranks))
        result = run(f"smart:{size}{more}", times, ranks, 300, seed=case, per_node=per_node)
        window = (8 if "inter-intra" in more else 4) * -(-(ranks - 1) // (size - 1))
        most = window + 12 * len(result.groups) / min(result.iterations)
        assert max(stretches(result.groups, ranks)) < most, (case, ranks, size, factors)


# ---- what a slow rank costs the others -----------------------------------------------------------


def slowdown(generator: str, factor: str, seed: int) -> float:
    """How many times longer the iterations of ranks 1 to 15 take where rank 0 is slow."""
    slow, even = (
        run(generator, modelled(f"slow:0:{how}", 16, 200, seed), 16, 200, seed=seed)
        for how in (factor, "1x")
    )
    return slow.iteration_ns(range(1, 16)) / even.iteration_ns(range(1, 16))


@pytest.mark.parametrize("factor", ["3x", "6x"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("generator", "most"),
    [("smart:3", 1.15), ("controller:3", 1.1), ("smart:3,inter-intra", 1.25)],
)
def test_fast_ranks_go_on(generator: str, most: float, seed: int, factor: str) -> None:
    assert slowdown(generator, factor, seed) < most


@pytest.mark.parametrize(
    ("generator", "least"), [("static", 5), ("smart:3,inter-intra,foresight=0,no-unfreeze", 1.7)]
)
def test_what_does_not_tolerate_a_slow_rank(generator: str, least: float) -> None:
    """So the simulation would show it."""
    assert slowdown(generator, "6x", 0) > least


def test_foresight_costs_nothing_where_no_rank_is_slow() -> None:
    times = modelled("slow:0:1x", 16, 200, 0)
    with_it, without = (
        run(f"smart:3,inter-intra{more}", times, 16, 200).iteration_ns(range(16))
        for more in ("", ",foresight=0")
    )
    assert with_it < 1.01 * without


def jittered(factors: Sequence[float], within: float = 0.05) -> Times:
    """Ranks that compute for so many times the base, within 5 %."""
    draw = random.Random(1)
    least, most = 1 - within, 1 + within
    return lambda _: [int(BASE_NS * factor * draw.uniform(least, most)) for factor in factors]


@pytest.mark.parametrize("factor", [4, 6])
def test_a_slow_node_is_with_the_others_again_and_again(factor: int) -> None:
    times = jittered([1] * 4 + [factor] * 4)
    result = run("smart:2,inter-intra", times, 8, 400, per_node=4)
    crossing = [at for at, group in enumerate(result.groups) if group[0] < 4 <= group[-1]]
    ends = [0, *crossing, len(result.groups)]
    assert max(later - at for at, later in pairwise(ends)) < 100
    assert result.iteration_ns(range(4)) < 1.1 * BASE_NS


def test_two_ranks_a_node_cost_no_more_than_four() -> None:
    """The only rank beside its node's head does not wait for the head's group."""
    for per_node in (2, 4):
        times = jittered([1] * 8)
        result = run("smart:2,inter-intra", times, 8, 400, per_node=per_node)
        assert result.iteration_ns(range(8)) < 1.1 * BASE_NS


# ---- commands ------------------------------------------------------------------------------------


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pypartial", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def test_show() -> None:
    ran = command("groups", "show", "static", "--nodes", "4", "--per-node", "4")
    whole = "{0,1,2,3} {4,5,6,7} {8,9,10,11} {12,13,14,15}"
    assert ran.stdout.splitlines() == [
        "0: {0,4,8,12} {2,3} {6,7} {10,11} {14,15}",
        f"1: {whole}",
        "2: {0,3} {1,9} {4,7} {5,13} {8,11} {12,15}",
        f"3: {whole}",
    ]


def test_simulate_and_analyse(tmp_path: Path) -> None:
    log, results, analysis = (tmp_path / name for name in ("log", "results.json", "rho.json"))
    words = ("--ranks", "6", "--iterations", "50", "--weights", "closest", "--per-node", "3")
    ran = command(
        *("sim", "groups", "--generator", "smart:2", *words, "--seed", "4"),
        *("--arrivals", "slow:5:3x", "--log", str(log), "--json", str(results)),
    )
    assert ran.returncode == 0, ran.stderr
    assert "5 fast" in ran.stdout and "1 slow" in ran.stdout
    report = json.loads(results.read_text())
    assert report["format"] == 1 and report["meta"]["arrivals"] == "slow:5:3x"
    (row,) = report["rows"]
    fast, slow = row["sides"]
    assert fast["ratio"] < 1.3 < 2.5 < slow["ratio"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert set(lines[0]) == {"t", "event", "group", "members", "weights", "iterations"}
    assert sum(row["sizes"].values()) == len(lines) / 2
    assert all(sum(line["weights"]) == pytest.approx(1) for line in lines)

    ran = command("groups", "analyse", str(log), "--lipschitz", "10", "--json", str(analysis))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(analysis.read_text())["analysis"]
    with log.open() as file:
        expected = analyse(read_log(file, "log"), 6, 10)
    assert (found["rho"], found["rate"]) == pytest.approx((expected.rho, expected.rate))
    assert f"rho            {expected.rho:.4f}" in ran.stdout
    assert found["frozen"] == expected.frozen and "E[W]" in ran.stdout


def test_a_rank_that_completes_nothing_has_no_times(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    ran = command(
        *("sim", "groups", "--generator", "smart:2", "--ranks", "4", "--iterations", "20"),
        *("--arrivals", "slow:0:1000x", "--json", str(results)),
    )
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if "1 slow" in line]
    cells = [cell.strip() for cell in line.split("│")]
    assert cells[2:4] == ["1 slow", "-"] and cells[5:7] == ["-", "-"]
    fast, slow = json.loads(results.read_text())["rows"][0]["sides"]
    assert slow["undisturbed_ns"] > 0 and fast["waiting"] is not None
    assert slow["iteration_ns"] is slow["ratio"] is slow["waiting"] is None


def test_analyse_a_generator() -> None:
    ran = command("groups", "analyse", "random:2", "--ranks", "8", "--iterations", "400")
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("rho  ")]
    assert float(line.split()[1]) == pytest.approx(6 / 7, abs=0.03)


def test_an_arrival_model_without_a_slow_rank() -> None:
    ran = command("sim", "groups", "--generator", "controller:2", "--arrivals", "cloud")
    assert ran.returncode == 0, ran.stderr
    assert "16 all" in ran.stdout


def test_a_trace(tmp_path: Path) -> None:
    """It needs a line for each iteration, and no more."""
    trace, results = tmp_path / "trace", tmp_path / "results.json"
    trace.write_text("1ms 2ms\n" * 5)
    words = ("sim", "groups", "--generator", "controller:2", "--arrivals", f"trace:{trace}")
    ran = command(*words, "--ranks", "2", "--iterations", "5", "--json", str(results))
    assert ran.returncode == 0, ran.stderr
    (row,) = json.loads(results.read_text())["rows"]
    assert row["sides"][0]["iteration_ns"] == 2_000_000 and row["sizes"] == {"2": 5}
    ran = command(*words, "--ranks", "2", "--iterations", "6")
    assert ran.returncode == 2 and "use --iterations 5" in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sim groups --generator ring:3", "'ring:3' is not a generator"),
        ("sim groups --generator smart:17", "no groups of 17 among 16 ranks"),
        ("sim groups --generator controller:3,history=7", "history=7 is less than 8"),
        ("sim groups --generator static --ranks 15", "15 ranks are not nodes of 4"),
        ("sim groups --arrivals slow:16:2x", "'16' is not one of 16 ranks"),
        ("sim groups --alpha 1", "--alpha 1 is not in [0, 1)"),
        ("sim groups --base 900000s", "--arrivals: 'slow:0:6x': a rank would compute for 5.67e+06"),
        ("sim groups --base 1000000s --arrivals slow:0:0.5x", "--base: 1000000s is longer than"),
        ("sim groups --group-time 9000000000s", "--group-time: 9000000000s is longer than"),
        ("sim groups --log x", "--log: one file has the groups of one --generator"),
        ("sim groups --generator smart:2 --log none/x", "there is no folder none"),
        ("groups analyse none.jsonl", "nor a generator (random:SIZE, smart:SIZE,"),
        ("groups analyse smart:3 --lipschitz 0", "--lipschitz 0 is not a number above 0"),
        ("groups analyse smart:x", "at least 2 ranks"),
        ("groups show static --nodes 4097", "more than 4096 ranks"),
        ("groups show smart:3", "'smart:3': groups show knows only static; for the others:"),
    ],
)
def test_usage_errors(words: str, said: str) -> None:
    ran = command(*words.split())
    assert ran.returncode == 2
    assert said in " ".join(ran.stderr.split())


def test_groups_and_results_in_one_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "groups")
    files = ("--log", str(tmp_path / "groups"), "--json", str(link))
    ran = command("sim", "groups", "--generator", "smart:2", *files)
    assert ran.returncode == 2
    assert "--log and --json name the same file" in " ".join(ran.stderr.split())


def test_simulations_that_take_too_long() -> None:
    """The machine's clock has 64 bits."""
    plan = parse_generator("random:2")
    with pytest.raises(TooLong, match="choose fewer iterations"):
        simulate(Course(plan, 2, 21_000, constant([10**15, 10**15])))


def test_what_an_analysis_cannot_tell(tmp_path: Path) -> None:
    log, analysis = tmp_path / "log", tmp_path / "rho.json"
    log.write_text('{"event": "begin", "members": [0, 1]}\n' * 3)
    words = ("groups", "analyse", str(log), "--json", str(analysis), "--ranks", "2")
    ran = command(*words, "--lipschitz", "1e-320", "--history", "4")
    assert ran.returncode == 0, ran.stderr
    assert "frozen         not looked at: fewer than 4 groups" in ran.stdout
    found = json.loads(analysis.read_text())["analysis"]
    assert found["frozen"] is found["rate"] is None
    ran = command(*words, "--history", "3")
    assert "frozen         0, longest 0 groups (of the last 3 groups)" in ran.stdout
    assert json.loads(analysis.read_text())["analysis"]["frozen"] == []
    for option, value in (("--arrivals", "cloud"), ("--seed", "0")):
        ran = command(*words, option, value)
        assert ran.returncode == 2
        assert f"{option}: a log is not simulated" in " ".join(ran.stderr.split())


def test_logs_that_cannot_be_analysed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text, words, said in (
        ("x\n", (), "line 1: not a line of a log"),
        ("[" * 200_000, (), "line 1: not a line of a log"),
        ("", (), "there are no groups"),
        ('{"event": "begin", "members": [0, 5]}', ("--ranks", "3"), "use --ranks 6"),
        ('{"event": "begin", "members": [0, 5000]}', (), "at most 4,096"),
    ):
        log.write_text(text)
        ran = command("groups", "analyse", str(log), *words)
        assert ran.returncode == 1
        assert said in ran.stderr and "Traceback" not in ran.stderr
