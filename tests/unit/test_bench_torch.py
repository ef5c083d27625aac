"""``bench torch`` without ranks and without PyTorch: options, table, plot, what is refused."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from support.tables import assert_fits

import pypartial as pp
from pypartial.bench import torch_options, torch_table
from pypartial.bench.options import Transport
from pypartial.bench.results import Report, TorchMeta, TorchRow
from pypartial.bench.torch_options import (
    BenchTorchOptions,
    TorchPart,
    TorchWay,
    entries,
    parameter_bytes,
)
from pypartial.cli import app, bench
from pypartial.statistics import Spread


def read(*words: str, ranks: int = 4) -> Any:
    return app.parse(["bench", "torch", *words], ranks)


def test_defaults() -> None:
    options = read()
    assert isinstance(options, BenchTorchOptions)
    assert options.parts == (TorchPart.BALANCED, TorchPart.LATE)
    assert options.hidden == (256, 1024)
    assert options.ways == (TorchWay.OPTIMIZER, TorchWay.HOOK, TorchWay.BACKEND)
    assert options.policies == (pp.Full(), pp.Majority())
    assert (options.batch, options.budget_ns, options.blocks, options.steps) == (
        *(32, 3 * 10**9),
        *(None, None),
    )
    assert (options.base_ns, options.late_ns) == (5 * 10**6, 30 * 10**6)
    assert (options.transport, options.seed) == (Transport.AUTO, 0)
    assert (options.json, options.plot) == (None, None)


def test_every_option(tmp_path: Path) -> None:
    words = shlex.split("""
        --part late --hidden 8 --hidden 16 --way Hook,backend --way optimizer --policy solo
        --policy quorum:2 --batch 3 --budget 10ms --blocks 4 --steps 7 --base 1ms --late 2ms
        --transport mpi --seed 5
    """)
    files = tmp_path / "torch.json", tmp_path / "torch.svg"
    options = read(*words, "--json", str(files[0]), "--plot", str(files[1]))
    assert options.parts == (TorchPart.LATE,)
    assert options.hidden == (8, 16)
    assert options.ways == (TorchWay.HOOK, TorchWay.BACKEND, TorchWay.OPTIMIZER)
    assert options.policies == (pp.Solo(), pp.Quorum(2))
    assert (options.batch, options.budget_ns, options.blocks, options.steps) == (3, 10**7, 4, 7)
    assert (options.base_ns, options.late_ns) == (10**6, 2 * 10**6)
    assert (options.transport, options.seed) == (Transport.MPI, 5)
    assert (options.json, options.plot) == files


@pytest.mark.parametrize(
    ("words", "ranks", "said"),
    [
        ("", 1, "mpirun -n 4 pypartial bench torch"),
        ("--budget 0", 4, "--budget 0"),
        ("--late 11s", 4, "--late 11s"),
        ("--base 11s", 4, "--base 11s"),
        ("--way gloo", 4, "always measured"),
        ("--way hook,hook", 4, "--way: the same value"),
        ("--way horovod", 4, "'horovod' is not one of gloo, optimizer, hook, backend"),
        ("--policy quorum:5", 4, "--policy quorum:5"),
        ("--policy full --policy full", 4, "--policy: the same value"),
        ("--policy mpi", 4, "mpi"),
        ("--hidden 8 --hidden 8", 4, "--hidden: the same value"),
        ("--part late --part late", 4, "--part: the same value"),
        (f"--seed {1 << 64}", 4, "--seed"),
        ("--plot torch.doc", 4, ".svg"),
    ],
)
def test_what_is_refused(
    words: str, ranks: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read(*words.split(), ranks=ranks) == 2
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert said in told


def test_which_ways_have_policies() -> None:
    found = [(str(way), str(policy)) for way, policy in entries(read())]
    assert found == [
        ("gloo", "full"),
        ("optimizer", "full"),
        ("optimizer", "majority"),
        ("hook", "full"),
        ("hook", "majority"),
        ("backend", "full"),
    ]


def test_the_networks_sizes() -> None:
    """Those of the table: 0.6 and 8.7 MB."""
    assert torch_options.parameter_bytes(1) == 4 * (65 + 2 + 2 + 20)
    assert torch_options.parameter_bytes(256) == 603_176
    assert torch_options.parameter_bytes(1024) == 8_704_040


def test_without_torch_the_command_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("pypartial.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(pp), "torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # what `import torch` then says: there is none
    assert bench.torch(read("--hidden", "8"), MPI.COMM_SELF) == 1
    assert capsys.readouterr().err == (
        "pypartial: pypartial.torch needs PyTorch: pip install 'torch>=2.7'\n"
    )


# ---- table and plot ------------------------------------------------------------------------------

META = TorchMeta(
    mpi="Open MPI 5.0.11",
    version="0.1.0",
    python="3.11.7",
    torch="2.13.0",
    ranks=4,
    cores=2,
    nodes=1,
    transport="auto",
    seed=0,
    batch=32,
    base_us=5000.0,
    late_us=30_000.0,
)


def row(part: str, way: str, policy: str | None, us: float, verified: bool = True) -> TorchRow:
    ratio = us / 4000
    late = Spread(36_000.0, 35_000.0, 37_000.0) if part == "late" else None
    return TorchRow(
        part=part,
        way=way,
        policy=policy,
        bytes=603_176,
        ranks=4,
        step_us=Spread(us, 0.9 * us, 1.1 * us),
        late_us=late,
        ratio_to_gloo=Spread(ratio, 0.9 * ratio, 1.1 * ratio),
        blocks=9,
        steps=70,
        verified=verified,
    )


ROWS = [
    row("balanced", "gloo", None, 4000),
    row("balanced", "optimizer", "majority", 2000, verified=False),
    row("late", "gloo", None, 4000),
    row("late", "hook", "full", 3000),
]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    torch_table.print_report(Report(META, ROWS))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == (
        "Training steps: 4 ranks on 2 cores; PyTorch 2.13.0, Open MPI 5.0.11"
    )
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert cells[0][:3] == ["589.039 KB", "gloo", "4 ms"]
    assert cells[1] == [
        *("589.039 KB", "optimizer, majority", "2 ms", "1.8 ms", "2.2 ms", ""),
        *("0.50", "0.45", "0.55", "9 x 70", "NO"),
    ]
    assert cells[3][5:7] == ["36 ms", "0.75"]
    text = " ".join(" ".join(lines).split())
    assert "ranks compute for 5 ms, the last one for 30 ms longer" in text


def test_the_table_fits_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    torch_table.print_report(Report(META, ROWS))
    assert_fits(capsys.readouterr().out)


def test_small_networks_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    small = [replace(ROWS[0], bytes=parameter_bytes(hidden)) for hidden in (8, 16)]
    torch_table.print_report(Report(META, small))
    text = capsys.readouterr().out
    assert "2.94531 KB" in text
    assert "6.85156 KB" in text


def test_a_table_without_a_late_rank_does_not_explain_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch_table.print_report(Report(META, ROWS[:2]))
    assert "longer" not in capsys.readouterr().out


def test_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")
    from pypartial.bench.plot import save_torch_plot

    path = tmp_path / "torch.svg"
    save_torch_plot(Report(META, ROWS), path)
    text = path.read_text(encoding="utf-8")
    for words in ("589.039 KB of parameters, beside a late rank", "optimizer", "step, gloo = 1"):
        assert words in text, words
