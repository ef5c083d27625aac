"""``bench gossip`` without a launcher: options, what is checked, the table, the plot."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from pypartial.bench import gossip, gossip_table
from pypartial.bench.contenders import Contender
from pypartial.bench.gossip_options import BenchGossipOptions, GossipWay
from pypartial.bench.gossip_ways import RIVALS, Mixer
from pypartial.bench.group_ways import Shares
from pypartial.bench.options import Buffers, DType, Transport
from pypartial.bench.results import GossipMeta, GossipRow, Report
from pypartial.cli import app
from pypartial.statistics import Latency, Spread

WAYS = tuple(way for way in GossipWay if way is not GossipWay.ACTIVE)


def read(*words: str, ranks: int = 8) -> Any:
    return app.parse(["bench", "gossip", *words], ranks)


def test_defaults() -> None:
    options = read()
    assert isinstance(options, BenchGossipOptions)
    assert options.sizes == (8, 64 << 10, 1 << 20, 4 << 20)
    assert (options.ways, options.topology) == (WAYS, "ring")
    assert options.buffers == tuple(Buffers)
    assert (options.budget_ns, options.blocks, options.calls) == (250 * 10**6, None, None)
    assert (options.transport, options.dtype) == (Transport.AUTO, DType.FLOAT32)
    assert (options.json, options.plot) == (None, None)


def test_every_option(tmp_path: Path) -> None:
    words = shlex.split("""
        --size 8,64K --way AD-PSGD,hop --topology ring-based --buffers library --budget 10ms
        --blocks 3 --calls 70 --transport mpi --dtype float64
    """)
    files = tmp_path / "gossip.json", tmp_path / "gossip.svg"
    options = read(*words, "--json", str(files[0]), "--plot", str(files[1]))
    assert options.ways == (GossipWay.AD_PSGD, GossipWay.HOP)
    assert (options.sizes, options.topology) == ((8, 64 << 10), "ring-based")
    assert (options.buffers, options.budget_ns) == ((Buffers.LIBRARY,), 10**7)
    assert (options.blocks, options.calls) == (3, 70)
    assert (options.transport, options.dtype) == (Transport.MPI, DType.FLOAT64)
    assert (options.json, options.plot) == files
    assert gossip.about_seconds(options) is None
    assert gossip.turns(options) == 2 * (2 + len(RIVALS)) * 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--size 66", "--size 66: not a multiple of 4 bytes"),
        ("--way gossip", "'gossip' is not one of ad-psgd, ad-psgd-active, d-psgd, hop"),
        ("--way hop,hop", "--way: the same value is given twice"),
        ("--topology nowhere", "--topology nowhere: "),
        ("--topology torus:3x3", "--topology torus:3x3: "),
        ("--topology complete --way ad-psgd-active", "has the odd cycle"),
        ("--dtype int32", "--dtype int32: models are float32 or float64"),
        ("--budget 0", "--budget 0: no call fits into it"),
        ("--plot x.txt", "must end in .png, .pdf or .svg"),
    ],
)
def test_usage_errors(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(*words.split()) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_one_rank_has_no_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(ranks=1) == 2
    assert "start several" in capsys.readouterr().err


# ---- what is checked -----------------------------------------------------------------------------


class _Comm:
    """Two ranks: this one, and one whose model is what a function makes of it."""

    rank, size = 0, 2

    def __init__(self, other: Any) -> None:
        self._other = other

    def allgather(self, head: Any) -> list[Any]:
        return [head, self._other(head)]

    def Ibarrier(self) -> MPI.Request:
        return MPI.REQUEST_NULL


SHARES = Shares(2, 4, DType.FLOAT64)
MEAN = SHARES.average([0, 1])
HALVES = np.full((2, 2), 0.5)


def _failures(model: Any, weights: Any, other: Any) -> str:
    mixer = Mixer(Contender(), np.asarray(model), weights)
    comm: Any = _Comm(other)
    trial = gossip._Trial("way", Buffers.NUMPY, mixer, SHARES, comm)
    trial._end(1)
    return " ".join(trial.failures)


def test_what_weights_make_of_models_is_right() -> None:
    assert not _failures(MEAN, HALVES, lambda head: head)


def test_a_wrong_model_is_found() -> None:
    assert "the models are" in _failures(MEAN, HALVES, lambda head: 1.1 * head)
    assert "the mean is" in _failures(MEAN, None, lambda head: 1.1 * head)
    assert "differ as much" in _failures(SHARES.of(0), None, lambda _: SHARES.of(1))
    assert "treated differently" in _failures(MEAN, HALVES, lambda _: None)


# ---- table and plot ------------------------------------------------------------------------------

META = GossipMeta("MPI 5", "1", "3", 4, 2, 1, "auto", "float32", "ring")


def row(way: str, size: int, us: float, verified: bool = True) -> GossipRow:
    ratios = [Spread(us / over, 0.1, 2.0) for over in (10, 20, 40)]
    times = Latency(us, us, us, 2 * us)
    return GossipRow(way, "library", size, 4, times, us / 2, *ratios, [0.5, 0.25], 9, 70, verified)


ROWS = [row("ad-psgd", 8, 10), row("mpi", 8, 20), row("ad-psgd", 1024, 30, verified=False)]


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    gossip_table.print_report(Report(META, ROWS))
    said = capsys.readouterr().out
    assert "Gossip on ring: float32, 4 ranks on 2 cores; MPI 5" in said
    assert "after 2 iterations" in " ".join(said.split())
    assert "1.00" in said and "0.50" in said and "2.5e-01" in said and "9 x 70" in said
    assert said.count("NO") == 1


def test_plot(tmp_path: Path) -> None:
    from pypartial.bench.plot import save_gossip_plot

    path = tmp_path / "gossip.svg"
    save_gossip_plot(Report(META, ROWS), path)
    text = path.read_text(encoding="utf-8")
    assert "Iterations on ring" in text
