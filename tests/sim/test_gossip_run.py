"""Gossip and queues in virtual time: runs by hand, bounds, the papers' values, the command."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.queues import Graph, World

from pypartial._queue_options import Mode
from pypartial.cli import app
from pypartial.sim.generators import Plan
from pypartial.sim.gossip_options import (
    ComputationGraph,
    GossipOptions,
    parse_link,
    parse_method,
)
from pypartial.sim.gossip_run import GossipRow, _Pairs, neighbour, simulate
from pypartial.sim.groups import Begin, Machine
from pypartial.topology import parse

MS = 10**6


def options(arrivals: str = "random:6x:p=1/16", **changes: Any) -> GossipOptions:
    graph = ComputationGraph(changes.pop("graph", "parallel"))
    links = tuple(parse_link(link) for link in changes.pop("links", ()))
    given: dict[str, Any] = {
        "ranks": 16,
        "iterations": 200,
        "message_ns": 0,
        "seed": 0,
        "base_ns": 100 * MS,
        **changes,
    }
    topology = parse(given.pop("topology", "ring-based"))
    return GossipOptions(
        (), arrivals=arrivals, topology=topology, graph=graph, links=links, **given
    )


def run(method: str, *arrivals: str, **changes: Any) -> GossipRow:
    return simulate(options(*arrivals, **changes), parse_method(method))


def logged(method: str, *arrivals: str, **changes: Any) -> list[list[str]]:
    log = io.StringIO()
    simulate(options(*arrivals, **changes), parse_method(method), log)
    return [line.split() for line in log.getvalue().splitlines()]


def times_in_ms(lines: list[list[str]]) -> list[tuple[Any, ...]]:
    return [(int(line[0]) / MS, *line[1:]) for line in lines]


# ---- by hand -------------------------------------------------------------------------------------


def test_turns_by_hand(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("1ms 5ms\n" * 3)
    changes = {"ranks": 2, "iterations": 3, "message_ns": 2 * MS, "graph": "serial"}
    lines = logged("ad-psgd", f"trace:{tmp_path}/trace", topology="ring", **changes)
    assert [f"{line[0]:g} {' '.join(line[1:])}" for line in times_in_ms(lines)] == [
        *("1 add 0", "3 avg 0 1", "3 0 1"),
        *("4 add 0", "6 avg 0 1"),
        *("6 add 1", "6 0 2"),  # rank 1 has asked at 5: its turn begins
        *("8 avg 0 1", "8 add 0", "8 1 1"),  # rank 0 has asked at 7
        *("10 avg 0 1", "10 0 3"),
    ]


def test_queues_by_hand(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("2ms 3ms 5ms\n" * 2)
    changes = {"topology": "complete", "ranks": 3, "iterations": 2, "message_ns": 2 * MS}
    model = f"trace:{tmp_path}/trace"
    *lines, end = times_in_ms(logged("d-psgd", model, **changes))
    assert lines == [(2, "0", "1"), (3, "1", "1"), (5, "2", "1")]
    assert (end[0], end[2]) == (7, "2")  # with rank 2's update, which it sends when it enters
    *lines, end = times_in_ms(logged("d-psgd", model, graph="serial", **changes))
    # Rank 2 sends at 5 what the others get at 7, and has theirs. All get the last updates at 12.
    assert sorted(lines) == [(5, "2", "1"), (7, "0", "1"), (7, "1", "1")]
    assert (end[0], end[2]) == (12, "2")


def test_draws_are_those_of_the_library() -> None:
    graph = parse("ring-based").on(8)
    machine = Machine(Plan("neighbour", 2), 8, 5, table=[a.tolist() for a in graph.out_edges()])
    for count in range(1, 20):
        for rank in range(8):
            begun = next(a for a in machine.start(rank) if isinstance(a, Begin))
            other = neighbour(5, rank, count, graph.out_neighbours[rank])
            assert sorted(begun.members) == sorted((rank, other))
            for member in begun.members:
                machine.finish(member, begun.serial)


# ---- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        *("d-psgd", "hop", "hop:max_ig=2,backup=1", "hop:max_ig=8,staleness=2"),
        *("hop:protocol=notify-ack", "hop:protocol=none,staleness=1"),
        "hop:max_ig=4,backup=1,skip=6",
    ],
)
@pytest.mark.parametrize("topology", ["ring", "exponential:directed"])
def test_a_log_keeps_the_gaps_of_table_1(method: str, topology: str) -> None:
    mode = parse_method(method).mode
    assert mode is not None
    graph = parse(topology).on(9)
    table = World(Graph(graph.out_neighbours), mode, 0).table
    iterations = [0] * 9
    changes = {"ranks": 9, "iterations": 60, "topology": topology, "links": ("3:4x",)}
    for _, rank, entered in logged(method, "slow:2:9x", message_ns=30 * MS, **changes):
        i = int(rank)
        assert iterations[i] < int(entered) <= iterations[i] + (mode.skip or 1)
        iterations[i] = int(entered)
        if mode.skip is None:
            assert all(iterations[i] - at <= table[i][j] for j, at in enumerate(iterations))
    assert max(iterations) == 60


@pytest.mark.parametrize("method", ["ad-psgd", "ad-psgd-active", "ad-psgd-continuous"])
def test_a_model_is_in_one_average_at_a_time(method: str) -> None:
    topology = "bipartite-exponential"
    edges = parse(topology).on(10).graph.edges
    changes = {"ranks": 10, "iterations": 60, "message_ns": 20 * MS, "topology": topology}
    iterations, free = [0] * 10, [0] * 10
    for time, what, *ranks in logged(method, links=("3:4x",), **changes):
        if what == "avg":
            one, other = map(int, ranks)
            takes = (80 if 3 in (one, other) else 20) * MS
            assert one < other and (one, other) in edges
            assert max(free[one], free[other]) + takes <= int(time)
            free[one] = free[other] = int(time)
        elif what != "add":
            iterations[int(what)] += 1
            assert iterations[int(what)] == int(ranks[0])


def test_nothing_that_is_added_is_lost() -> None:
    given = options(graph="serial", message_ns=40 * MS, links=("3:4x",))
    run = _Pairs(given, parse_method("ad-psgd"), None, None)
    run.begin()
    run.run()
    there = run.models.sum(axis=0) + run.added.sum(axis=0)
    drawn = np.random.default_rng(0).standard_normal((sum(run.gradients), there.size))
    np.testing.assert_allclose(there, drawn.sum(axis=0), atol=1e-9)


@pytest.mark.parametrize(("method", "queue"), [("hop:max_ig=3,backup=1", 12), ("d-psgd", 6)])
def test_queues_reach_the_size_of_section_4(method: str, queue: int) -> None:
    assert run(method, "slow:3:50x").queue == queue


# ---- the values of the papers --------------------------------------------------------------------


def iteration_ns(method: str, *arrivals: str, **changes: Any) -> float:
    return run(method, *arrivals, **changes).iteration_ns


def test_backup_and_staleness_against_random_slowdown() -> None:
    """Hop, Figures 14 to 17: 1.81 times as many iterations with a backup worker."""
    parallel, serial = ({"graph": graph, "iterations": 500} for graph in ("parallel", "serial"))
    standard = iteration_ns("hop:max_ig=8", **parallel)
    assert standard / iteration_ns("hop:max_ig=8,backup=1", **parallel) >= 1.35
    assert standard / iteration_ns("hop:max_ig=8,staleness=5", **parallel) >= 1.42
    standard = iteration_ns("hop:max_ig=8", **serial)
    assert standard / iteration_ns("hop:max_ig=8,backup=1", **serial) >= 1.7


def test_skipping_goes_past_a_slow_worker() -> None:
    """Hop, Figure 19: one worker is 4 times slower."""
    standard = iteration_ns("hop", "slow:0:4x")
    skips = run("hop:backup=1,skip=10", "slow:0:4x")
    assert standard / skips.iteration_ns >= 3.5
    assert skips.skipped > 0 and skips.gradient_ns > skips.iteration_ns
    assert standard / iteration_ns("hop:backup=1,skip=2", "slow:0:4x") >= 1.9


def test_nobody_waits_for_a_slow_worker_of_ad_psgd() -> None:
    """AD-PSGD, Table 3: 1.33 / 1.22 = 1.09."""
    slow, even = run("ad-psgd", "slow:0:100x"), run("ad-psgd", "slow:0:1x")
    assert slow.gradient_ns / even.gradient_ns <= 1.09
    assert iteration_ns("d-psgd", "slow:0:100x") > 95 * iteration_ns("d-psgd", "slow:0:1x")


@pytest.mark.parametrize(
    ("method", "topology", "least", "most"),
    [
        ("ad-psgd", "ring", 0.4, 0.7),
        ("ad-psgd", "bipartite-exponential", 0.3, 0.6),
        ("ad-psgd-active", "ring", 0.88, 0.95),
        ("ad-psgd-active", "bipartite-exponential", 0.8, 0.95),
        ("ad-psgd-continuous", "ring", 0.99, 1.01),
    ],
)
def test_a_slow_link_holds_models(method: str, topology: str, least: float, most: float) -> None:
    """Who waits for it holds a model, and neighbours of the model wait, too."""
    changes: dict[str, Any] = {"topology": topology, "message_ns": 10 * MS, "graph": "serial"}
    even = run(method, "slow:0:1x", **changes)
    slow = run(method, "slow:0:1x", links=("6-7:100x",), **changes)
    assert least <= even.gradient_ns / slow.gradient_ns <= most


def test_models_of_better_connected_ranks_are_closer() -> None:
    apart = [
        run("d-psgd", "slow:0:1x", topology=topology).apart
        for topology in ("ring", "ring-based", "complete")
    ]
    assert apart[0] > apart[1] > apart[2] > 0
    far = run("ad-psgd", "slow:0:1x", topology="ring").apart
    assert far > run("ad-psgd", "slow:0:1x", topology="complete").apart


# ---- the command ---------------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    words = [
        *("sim", "gossip", "--ranks", "4", "--iterations", "20", "--message-time", "1ms"),
        *("--link", "0:10x", "--method", "hop:max_ig=3,backup=1,staleness=1,skip=2,skip_trigger=1"),
        *("--log", str(tmp_path / "log"), "--json", str(tmp_path / "json")),
    ]
    command = [sys.executable, "-m", "pypartial", *words]
    environment = {**os.environ, "COLUMNS": "80"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert "│ hop:max_ig=3," in ran.stdout and "│ skip_trigger=1" in ran.stdout
    saved = json.loads((tmp_path / "json").read_text())
    (row,) = saved["rows"]
    assert row["iteration_ns"] >= row["undisturbed_ns"] > 0
    assert saved["meta"]["links"] == [[[0], 10]]
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert int(log[-1][2]) == 20


@pytest.mark.parametrize(
    ("words", "missing"), [("--ranks 2", 1), ("--topology exponential:directed", 3), ("", None)]
)
def test_by_default_methods_that_the_topology_allows(words: str, missing: int | None) -> None:
    job = app.parse(["sim", "gossip", *words.split()], 1)
    assert isinstance(job, GossipOptions)
    default = ["d-psgd", "hop:max_ig=8,backup=1", "hop:max_ig=8,staleness=5", "ad-psgd"]
    texts = [method.text for method in job.methods]
    assert texts == [text for at, text in enumerate(default) if at != missing]


def test_the_same_seed_gives_the_same_log() -> None:
    def log(seed: int) -> list[list[str]]:
        return logged("hop:backup=1", iterations=20, seed=seed)

    assert log(1) == log(1) != log(2)


def test_methods_and_links() -> None:
    assert parse_method(" HOP:max_ig=8, backup=1 ").mode == Mode(max_ig=8, backup=1)
    assert parse_method("hop").mode == Mode()
    assert parse_method("hop:protocol=none,staleness=0").mode == Mode(protocol="none", staleness=0)
    assert parse_method("d-psgd").mode == Mode(protocol="none", weighted=True)
    assert parse_link("3:10x") == ((3,), 10) and parse_link("3-4:1.5") == ((3, 4), 1.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--method sgd", "'sgd' is not a method: write one of ad-psgd, ad-psgd-active,"),
        ("--method ad-psgd:2", "'ad-psgd:2' is not a method"),
        ("--method hop:", "'hop:' is not a method"),
        ("--method hop:max=3", "'max' is not an option; hop has max_ig, backup, staleness,"),
        ("--method hop:max_ig=x", "'max_ig=x': write max_ig=4"),
        ("--method hop:protocol=token", "write protocol=tokens or notify-ack or none"),
        ("--method hop:max_ig=0", "'hop:max_ig=0': max_ig=0 is not in 1.."),
        ("--method hop:backup=3", "backup=3 is not below the number of in-neighbours of rank 0, 3"),
        ("--method hop:skip=2", "skip=2 needs backup or staleness"),
        ("--method ad-psgd-active --ranks 8", "ring-based has the odd cycle 0-"),
        ("--method ad-psgd --topology exponential:directed", "exponential:directed is directed"),
        ("--method ad-psgd-continuous", "averages take no time; give --message-time, too"),
        ("--topology circle", "'circle' is not a topology"),
        ("--topology hypercube --ranks 12", "must be a power of two, not 12"),
        ("--link 3:10x", "--link: messages take no time; give --message-time, too"),
        ("--message-time 1ms --link 16:10x", "--link: 16 is not one of 16 ranks"),
        ("--message-time 1ms --link 0-2:10x", "ring-based does not connect 0 with 2"),
        ("--link 3:0x", "'3:0x' is not a rank, or two, and a factor up to 1000000: write 0:10x"),
        ("--link -1:2x", "'-1:2x' is not a rank"),
        ("--message-time 2000000s", "--message-time is longer than 1000000s"),
        ("--arrivals slow:16:2x", "'16' is not one of 16 ranks"),
        ("--log x --method hop --method d-psgd", "--log: one file has what one --method does"),
        ("--log none/x --method hop", "there is no folder none"),
        ("--json none/x", "there is no folder none"),
    ],
)
def test_usage_errors(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.parse(["sim", "gossip", *words.split()], 1) == 2
    assert said in " ".join(capsys.readouterr().err.split())
