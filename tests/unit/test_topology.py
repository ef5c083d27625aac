"""Topologies: neighbours, weights, spectral gaps, texts, and what is refused."""

from __future__ import annotations

import doctest
import json
import pickle
import re
import sys
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import pypartial as pp
from pypartial import cli
from pypartial.cli import app
from pypartial.topology import RankGraph

SCALING = (
    *("ring", "ring-based", "double-ring", "exponential", "exponential:directed"),
    *("bipartite-exponential", "complete", "star", "hypercube"),
)
FIXED = ("torus:4x4", "torus:1x5", "torus:2x3", "machines:4,2,2", "machines:3", "machines:1,1")


def on(text: str, ranks: int | None = None) -> RankGraph:
    topology = pp.topology.parse(text)
    return topology.on(ranks or topology.ranks or 0)


def allowed(text: str, ranks: int) -> bool:
    if text == "hypercube":
        return ranks in (1, 2, 4, 8, 16, 32, 64)
    return text not in ("double-ring", "bipartite-exponential") or ranks % 2 == 0 or ranks == 1


def graphs() -> list[RankGraph]:
    """Every named topology on each of 1 to 64 ranks that it allows, and others."""
    found = [on(text, ranks) for text in SCALING for ranks in range(1, 65) if allowed(text, ranks)]
    found += [on(text) for text in FIXED]
    for seed in range(4):
        code = np.random.default_rng(seed).integers(13, size=11)
        tree = nx.from_prufer_sequence(code.tolist())
        found.append(pp.topology.of(tree).on(13))
        mixed = nx.compose(tree, nx.gnp_random_graph(13, 0.2, seed=seed))
        found.append(pp.topology.of(mixed).on(13))
    return [*found, pp.topology.of(TWISTED).on(5)]


# Directed, regular, and its weights are no normal matrix: eigenvalues are not singular values.
TWISTED = nx.DiGraph([(i, (i + 1) % 5) for i in range(5)])
TWISTED.add_edges_from([(0, 2), (1, 0), (2, 4), (3, 1), (4, 3)])


GRAPHS = graphs()

# ---- which ranks are neighbours ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ranks", "rank", "neighbours"),
    [
        ("ring", 8, 0, (1, 7)),
        ("ring", 2, 0, (1,)),
        ("ring-based", 8, 1, (0, 2, 5)),
        ("ring-based", 7, 0, (1, 3, 4, 6)),
        ("double-ring", 16, 0, (1, 4, 7, 8)),
        ("double-ring", 16, 9, (1, 8, 10, 13)),
        ("exponential", 16, 0, (1, 2, 4, 8, 12, 14, 15)),
        ("exponential", 9, 0, (1, 2, 4, 5, 7, 8)),
        ("bipartite-exponential", 20, 0, (1, 3, 5, 9, 11, 15, 17, 19)),
        ("complete", 4, 2, (0, 1, 3)),
        ("star", 4, 0, (1, 2, 3)),
        ("star", 4, 3, (0,)),
        ("hypercube", 16, 5, (1, 4, 7, 13)),
        ("torus:3x4", 12, 0, (1, 3, 4, 8)),
        ("machines:4,2,2", 8, 0, (1, 2, 3, 4, 6)),
        ("machines:4,2,2", 8, 4, (0, 5, 6)),
        ("machines:2,2", 4, 0, (1, 2)),
        ("machines:4,2,2:0-4,5-6,1-7", 8, 1, (0, 2, 3, 7)),
    ],
)
def test_neighbours(text: str, ranks: int, rank: int, neighbours: tuple[int, ...]) -> None:
    graph = on(text, ranks)
    assert graph.in_neighbours[rank] == graph.out_neighbours[rank] == neighbours
    assert not graph.directed


def test_neighbours_of_a_directed_graph() -> None:
    graph = on("exponential:directed", 9)
    assert graph.directed
    assert graph.out_neighbours[3] == (2, 4, 5, 7)
    assert graph.in_neighbours[3] == (1, 2, 4, 8)


@pytest.mark.parametrize("text", SCALING)
def test_one_rank_has_no_neighbours(text: str) -> None:
    graph = on(text, 1)
    assert graph.in_neighbours == graph.out_neighbours == ((),)
    assert graph.weights.tolist() == [[1.0]]
    assert (graph.diameter, graph.spectral_gap, graph.sides()) == (0, 1.0, ((0,), ()))
    assert graph.hop_gap == (None if graph.directed else 1.0)


def test_edges_are_arrays_for_the_core() -> None:
    graph = on("exponential:directed", 5)
    for (starts, ranks), lists in (
        (graph.in_edges(), graph.in_neighbours),
        (graph.out_edges(), graph.out_neighbours),
    ):
        assert starts.dtype == ranks.dtype == np.int32
        assert tuple(tuple(ranks[a:b].tolist()) for a, b in pairwise(starts)) == lists
    assert [array.tolist() for array in on("ring", 1).in_edges()] == [[0, 0], []]


def test_every_graph_is_connected_and_without_self_loops() -> None:
    for graph in GRAPHS:
        reached, front = {0}, [0]
        while front:
            front = [r for at in front for r in graph.out_neighbours[at] if r not in reached]
            reached.update(front)
        assert len(reached) == graph.ranks
        for rank, found in enumerate(graph.in_neighbours):
            assert rank not in found
            assert list(found) == sorted(set(found))
            assert all(rank in graph.out_neighbours[other] for other in found)


# ---- sides ---------------------------------------------------------------------------------------


def test_sides_or_an_odd_cycle() -> None:
    kinds = set()
    for graph in GRAPHS:
        edges = {frozenset((a, b)) for a, ends in enumerate(graph.in_neighbours) for b in ends}
        cycle = graph.odd_cycle
        kinds.add(cycle is None)
        if cycle is None:
            own, other = graph.sides()
            assert own[0] == 0
            assert sorted([*own, *other]) == list(range(graph.ranks))
            assert all(len(edge & set(own)) == 1 for edge in edges)
            continue
        assert len(cycle) % 2 == 1 == len(cycle) - len(set(cycle)) + 1
        assert cycle[0] == min(cycle)
        assert {frozenset(edge) for edge in pairwise([*cycle, cycle[0]])} <= edges
    assert kinds == {True, False}


def test_an_odd_cycle_is_named() -> None:
    words = "topology ring on 5 ranks is not bipartite: it has the odd cycle 0-1-2-3-4-0"
    with pytest.raises(pp.ArgumentError, match=f"^{words}$"):
        on("ring", 5).sides()
    with pytest.raises(pp.ArgumentError, match=r"0-1-2-3-4-5-\.\.\.-99-100-0$"):
        on("ring", 101).sides()


# ---- weights and gaps ----------------------------------------------------------------------------


def test_weights_are_doubly_stochastic_and_follow_the_edges() -> None:
    for graph in GRAPHS:
        weights = graph.weights
        assert weights.dtype == np.float64
        assert weights.min() >= 0
        np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-14)
        np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-14)
        for rank, found in enumerate(graph.in_neighbours):
            assert set(np.flatnonzero(weights[:, rank])) == {*found, rank}
            if graph.is_regular:
                np.testing.assert_allclose(weights[[rank, *found], rank], 1 / (len(found) + 1))


def test_weights_of_ranks_with_different_degrees() -> None:
    weights = on("star", 4).weights
    assert weights[0].tolist() == weights[:, 0].tolist() == [0.25] * 4
    assert weights[2].tolist() == [0.25, 0, 0.75, 0]
    assert not on("star", 4).is_regular
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 1


def test_a_column_of_the_weights_is_what_a_rank_averages() -> None:
    weights = on("exponential:directed", 9).weights
    assert np.flatnonzero(weights[:, 3]).tolist() == [1, 2, 3, 4, 8]
    assert np.flatnonzero(weights[3]).tolist() == [2, 3, 4, 5, 7]


@pytest.mark.parametrize(
    ("text", "ranks", "gap"),
    [("ring", 8, 0.1953), ("ring-based", 8, 0.5), ("ring-based", 16, 0.1464), ("complete", 8, 1)],
)
def test_spectral_gaps(text: str, ranks: int, gap: float) -> None:
    assert on(text, ranks).spectral_gap == pytest.approx(gap, abs=5e-5)


@pytest.mark.parametrize(
    ("text", "ranks", "gap"),
    [
        ("ring-based", 8, 0.6667),
        ("machines:4,2,2:0-4,4-6,0-6", 8, 0.2682),
        ("machines:4,2,2:0-4,5-6,1-7", 8, 0.2688),
    ],
)
def test_gaps_that_hop_prints(text: str, ranks: int, gap: float) -> None:
    assert on(text, ranks).hop_gap == pytest.approx(gap, abs=5e-5)


def test_the_spectral_gap_is_that_of_eigenvalues_or_of_singular_values() -> None:
    for graph in GRAPHS[::7]:
        if not graph.directed:
            sizes = np.sort(np.abs(np.linalg.eigvalsh(graph.weights)))[::-1]
            second = sizes[1] if graph.ranks > 1 else 0
            assert graph.spectral_gap == pytest.approx(sizes[0] - second, abs=1e-12)
    graph = pp.topology.of(TWISTED).on(5)
    spread = graph.weights - 1 / 5
    assert graph.spectral_gap == pytest.approx(1 - np.linalg.norm(spread, 2), abs=1e-12)
    assert graph.hop_gap is None


def test_diameters() -> None:
    assert [on("ring", ranks).diameter for ranks in (2, 8, 9)] == [1, 4, 4]
    assert on("hypercube", 16).diameter == 4
    assert on("exponential:directed", 8).diameter == 3


# ---- values --------------------------------------------------------------------------------------


def test_topologies_are_values() -> None:
    bridges = [(4, 0), (4, 6), (0, 6)]
    machines = pp.topology.machines([4, 2, 2], bridges=bridges)
    assert machines == pp.topology.machines((4, 2, 2), bridges=[*bridges[::-1], (0, 4)])
    assert machines != pp.topology.machines([4, 2, 2], bridges=bridges[:2])
    assert pp.topology.ring() != pp.topology.star()
    assert pp.topology.of(nx.path_graph(4)) != pp.topology.of(nx.star_graph(3))
    assert pp.topology.of(nx.Graph([(1, 0)])) == pp.topology.of(nx.Graph([(0, 1)]))
    for topology in (machines, pp.topology.ring(), pp.topology.torus(2, 3)):
        assert pickle.loads(pickle.dumps(topology)) == topology
    assert pp.topology.ring().on(8) is pp.topology.ring().on(8)


def test_fingerprints() -> None:
    same = on("machines:4,2,2"), on("machines:4,2,2:0-4,4-6,0-6")
    assert same[0].fingerprint == same[1].fingerprint
    different = {
        *(on(text, ranks).fingerprint for text in ("ring", "star") for ranks in (5, 6)),
        on("exponential", 6).fingerprint,
        on("exponential:directed", 6).fingerprint,
        pp.topology.of(nx.Graph([(0, 2), (2, 1), (1, 3), (3, 4), (4, 0)])).on(5).fingerprint,
    }
    assert len(different) == 7
    both = nx.DiGraph([(0, 1), (1, 0)])
    assert pp.topology.of(both).on(2).fingerprint != on("ring", 2).fingerprint


@pytest.mark.parametrize("text", [*SCALING, *FIXED, "machines:4,2,2:0-4,0-6,4-6"])
def test_a_text_is_read_back(text: str) -> None:
    topology = pp.topology.parse(text)
    assert str(topology) == text
    name, _, rest = text.replace("-", "_", text.partition(":")[0].count("-")).partition(":")
    assert pp.topology.parse(f" {name.upper()}{rest and ':'}{rest} ") == topology
    if not rest:
        assert getattr(pp.topology, name)() == topology


def test_texts_of_functions_with_arguments() -> None:
    assert pp.topology.parse("exponential:directed") == pp.topology.exponential(directed=True)
    assert pp.topology.parse("torus:2x3") == pp.topology.torus(2, 3)
    machines = pp.topology.machines([2, 1], bridges=[(2, 1)])
    assert pp.topology.parse("machines:2,1:1-2") == machines
    assert str(pp.topology.machines([4], bridges=[])) == "machines:4"


@pytest.mark.parametrize(
    "text",
    [
        *("", "rings", "ring:3", "torus", "torus:4", "torus:4x", "torus:4x4x4", "of", "of(3)"),
        *(
            "machines",
            "machines:",
            "machines:4,,2",
            "machines:4,2:",
            "machines:4,2:0",
            "exponential:",
        ),
        *("machines:4,2:0-4,", "torus:99999x99999", "torus:²x2", 3, None),
    ],
)
def test_what_is_no_text_of_a_topology(text: object) -> None:
    with pytest.raises(pp.ArgumentError, match=re.escape(repr(text))):
        pp.topology.parse(text)  # type: ignore[arg-type]


# ---- graphs of one's own -------------------------------------------------------------------------


def test_a_graph_is_copied_and_its_attributes_do_not_count() -> None:
    given = nx.Graph()
    given.add_edge(2, 1, weight=7.0)
    given.add_edge(np.int64(0), 2)
    graph = pp.topology.of(given).on(3)
    given.add_edge(0, 1)
    assert graph.in_neighbours == ((2,), (2,), (0, 1))
    assert graph.weights[1].tolist() == pytest.approx([0, 2 / 3, 1 / 3])
    with pytest.raises(nx.NetworkXError):
        graph.graph.add_edge(0, 1)


def test_a_directed_graph_of_ones_own() -> None:
    graph = pp.topology.of(nx.DiGraph([(0, 2), (2, 1), (1, 0)])).on(3)
    assert graph.in_neighbours == ((1,), (2,), (0,))
    assert graph.odd_cycle is not None


LINE = nx.DiGraph([(0, 1), (1, 2)])
PAIRS = nx.DiGraph([(0, 1), (1, 0), (2, 3), (3, 2)])


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (nx.Graph([(0, 1), (2, 3)]), "is not connected: there is no path from rank 0 to rank 2"),
        (PAIRS, "is not connected: there is no path from rank 0 to rank 2"),
        (LINE, "a directed graph must be regular"),
        (nx.DiGraph([(0, 1), (1, 0), (0, 2), (1, 2)]), "must be regular"),
        (nx.Graph([(0, 1), (1, 1), (2, 2)]), "must have no self-loops: ranks [1, 2] have one"),
        (nx.Graph([(1, 2)]), "its 2 nodes must be the ranks from 0 on"),
        (nx.Graph([("a", "b")]), "its 2 nodes must be the ranks from 0 on"),
        (nx.Graph(), "its 0 nodes must be the ranks"),
        (nx.MultiGraph([(0, 1)]), "must be a Graph or DiGraph"),
        (nx.MultiDiGraph([(0, 1)]), "must be a Graph or DiGraph"),
        ([(0, 1)], "must be a Graph or DiGraph of networkx, not [(0, 1)]"),
    ],
)
def test_graphs_that_are_refused(graph: object, words: str) -> None:
    with pytest.raises(pp.ArgumentError, match=re.escape(words)):
        pp.topology.of(graph)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ranks", "words"),
    [
        ("double-ring", 7, "topology double-ring: the number of ranks must be even, or 1, not 7"),
        ("bipartite-exponential", 3, "must be even, or 1, not 3"),
        ("hypercube", 6, "topology hypercube: the number of ranks must be a power of two, not 6"),
        ("torus:4x4", 8, "topology torus:4x4: the number of ranks must be 16, not 8"),
        ("torus:4x4", 1, "must be 16, not 1"),
        ("machines:4,2,2", 9, "topology machines:4,2,2: the number of ranks must be 8, not 9"),
        ("ring", -1, "ranks must be in 1..2147483647, not -1"),
    ],
)
def test_numbers_of_ranks_that_are_refused(text: str, ranks: int, words: str) -> None:
    with pytest.raises(pp.ArgumentError, match=re.escape(words)):
        pp.topology.parse(text).on(ranks)
    with pytest.raises(pp.ArgumentError, match="ranks must be an integer"):
        pp.topology.parse(text).on(8.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([],), "sizes must have at least one machine"),
        ((4,), "sizes must be a list, not 4"),
        (("422",), "sizes must be a list, not '422'"),
        (([4, 0],), "a size must be in 1.."),
        (([4, 2], []), "topology machines:4,2 is not connected: there is no path from rank 0 to"),
        (([4, 2, 2], [(0, 4)]), "is not connected: there is no path from rank 0 to rank 6"),
        (([4, 2], [(0, 3)]), "bridges: 0 and 3 are in the same machine"),
        (([4, 2], [(4, 4)]), "bridges: 4 and 4 are in the same machine"),
        (([4, 2], [(0, 6)]), "a rank of a bridge must be in 0..5, not 6"),
        (([4, 2], [(0, 4, 5)]), "a bridge must be two ranks, not (0, 4, 5)"),
        (([4, 2], [4]), "a bridge must be a list, not 4"),
        (([4, 2], 4), "bridges must be a list, not 4"),
    ],
)
def test_machines_that_are_refused(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(pp.ArgumentError, match=re.escape(words)):
        pp.topology.machines(*arguments)  # type: ignore[arg-type]


def test_a_torus_without_rows_is_refused() -> None:
    with pytest.raises(pp.ArgumentError, match="rows must be in"):
        pp.topology.torus(0, 3)


def test_without_networkx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    ring = pp.topology.parse("ring")  # needs no graph yet
    with pytest.raises(ImportError, match=r"^pypartial.topology needs networkx: pip install"):
        ring.on(997)


def test_the_examples_in_docstrings() -> None:
    failed, tried = doctest.testmod(pp.topology)
    assert failed == 0 < tried


def test_the_page_shows_what_its_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text(encoding="utf-8")
    program = page.partition("what this program prints:")[2]
    exec(program.partition("```python\n")[2].partition("```")[0], {})
    printed = capsys.readouterr().out
    assert printed.count("\n") == len(SCALING)
    assert printed in page


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    page = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text(encoding="utf-8")
    shown = page.partition("    $ pypartial topology show ")[2].partition("\n\n")[0]
    words, _, lines = shown.partition("\n")
    monkeypatch.chdir(tmp_path)
    assert show(words, capsys) == (0, lines.replace("    ", "", 1).replace("\n    ", "\n") + "\n")


# ---- the command ---------------------------------------------------------------------------------


def show(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """Return the exit code of ``pypartial topology show``, and what it prints."""
    job = app.parse(["topology", "show", *words.split()], 1)
    code = job if isinstance(job, int) else cli.run(job)
    return code, "".join(capsys.readouterr())


def test_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert show("ring-based --ranks 8", capsys) == (
        0,
        "ring-based on 8 ranks\n"
        "degree         3\n"
        "diameter       2\n"
        "bipartite      no: odd cycle 0-1-5-6-7-0\n"
        "spectral gap   0.5000 (1 - second singular value, with self-loops)\n"
        "Hop's gap      0.6667 (lambda_1 - lambda_2, signed, neighbours only; undirected)\n",
    )


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("torus:4x4", ["torus:4x4 on 16 ranks", "bipartite      yes"]),
        ("machines:4,2,2", ["machines:4,2,2 on 8 ranks", "degree         1 to 5"]),
        ("ring", ["ring on 8 ranks", "bipartite      yes"]),
        ("star --ranks 1", ["star on one rank", "degree         0"]),
        ("exponential:directed", ["exponential:directed on 8 ranks, directed", "degree         3"]),
        ("ring --ranks 1023", ["bipartite      no: odd cycle 0-1-2-3-4-5-...-1021-1022-0"]),
    ],
)
def test_lines_of_the_command(
    words: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = show(words, capsys)
    assert code == 0
    assert set(lines) <= set(printed.splitlines())
    assert max(map(len, printed.splitlines())) <= 80


def test_files_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    for name in ("hypercube", "exponential:directed"):
        results, plot = tmp_path / "results.json", tmp_path / f"{name}.svg"
        code, printed = show(f"{name} --ranks 8 --json {results} --plot {plot}", capsys)
        assert (code, printed.splitlines()[-2:]) == (0, [f"Results: {results}", f"Plot: {plot}"])
        assert "<svg" in plot.read_text()
        saved = json.loads(results.read_text())
        graph = on(name, 8)
        assert saved["format"] == 1
        assert (saved["topology"], saved["ranks"]) == (name, 8)
        assert saved["in_neighbours"] == [list(found) for found in graph.in_neighbours]
        assert (saved["spectral_gap"], saved["hop_gap"]) == (graph.spectral_gap, graph.hop_gap)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rings", "'NAME': 'rings' is not a topology: write ring, ring-based,"),
        ("machines:4,2:0-1", "'NAME': bridges: 0 and 1 are in the same machine"),
        (
            "hypercube --ranks 6",
            "'--ranks': topology hypercube: the number of ranks must be a power",
        ),
        ("torus:4x4 --ranks 8", "'--ranks': topology torus:4x4: the number of ranks must be 16"),
        ("torus:64x32", "2048 ranks are more than 1024"),
        ("ring --ranks 1025", "1025 ranks are more than 1024"),
        ("ring --plot ring.txt", "--plot ring.txt: the name must end in"),
    ],
)
def test_usage_errors(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = show(words, capsys)
    assert code == 2
    assert message in " ".join(printed.split())


def test_the_command_without_networkx(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    for words in ("ring --ranks 991", "torus:2x2"):
        code, printed = show(words, capsys)
        assert code == 2
        assert "needs networkx: pip install networkx" in printed
