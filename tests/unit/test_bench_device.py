"""Buffers on a device in `bench latency` and `bench skew`: options, ratios, and what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fakecuda
from support.pytorch import need_torch

from pypartial.bench import device_arrays, latency, table
from pypartial.bench.device_arrays import DeviceBuffer
from pypartial.bench.options import (
    Buffers,
    DeviceBuffers,
    DevicePath,
    LatencyOptions,
    Rival,
    SkewOptions,
    parse_buffers,
    ways_and_buffers,
)
from pypartial.bench.results import DeviceFacts, LatencyRow, Row, with_ratios, with_speedups
from pypartial.policy import Full, Solo
from pypartial.statistics import Active, Latency

LIMIT_S = 60
CUPY, TORCH, BY_HAND = DeviceBuffers
HOST = tuple(Buffers)
FACTS = DeviceFacts("H", 2, "570.86.15", "12.8", {"cupy": "14.0.0"})


# ---- options -------------------------------------------------------------------------------------


def test_kinds_of_buffers_are_named() -> None:
    assert parse_buffers("host", HOST) == HOST
    assert parse_buffers(" CuPy", HOST) == (CUPY,)
    assert parse_buffers("cuda-staged-by-hand", HOST) == (BY_HAND,)
    with pytest.raises(ValueError, match=r"'gpu' is not a kind of buffers: host, .*torch"):
        parse_buffers("gpu", HOST)


@pytest.mark.parametrize(
    ("buffers", "expected"),
    [
        (HOST, [(Solo(), HOST[0]), (Solo(), HOST[1]), (Rival.MPI, Buffers.NUMPY)]),
        ((CUPY, TORCH), [(Solo(), CUPY), (Solo(), TORCH), (Rival.MPI, BY_HAND)]),
        ((BY_HAND,), [(Rival.MPI, BY_HAND)]),
        (
            (Buffers.NUMPY, CUPY),
            [
                (Solo(), Buffers.NUMPY),
                (Solo(), CUPY),
                (Rival.MPI, Buffers.NUMPY),
                (Rival.MPI, BY_HAND),
            ],
        ),
    ],
)
def test_mpi_has_buffers_of_its_own(buffers: Any, expected: Any) -> None:
    assert ways_and_buffers([Solo(), Rival.MPI], buffers) == expected


def latency_options(**changes: Any) -> LatencyOptions:
    values: dict[str, Any] = {"policies": (Solo(),), "sizes": (64,), "skew_ns": 0, "budget_ns": 1}
    return LatencyOptions(**(values | changes))


@pytest.mark.parametrize(
    ("buffers", "ways", "pairs"),
    [
        ((CUPY,), ["solo cupy", "mpi cuda-staged-by-hand", "memcpy cupy"], 3),
        ((BY_HAND,), ["mpi cuda-staged-by-hand", "memcpy cuda-staged-by-hand"], 2),
    ],
)
def test_what_latency_compares_on_a_device(buffers: Any, ways: list[str], pairs: int) -> None:
    options = latency_options(buffers=buffers)
    assert [f"{way} {kind.value}" for way, kind in latency._ways(options, True)] == ways
    assert latency.pairs(options) == pairs


def test_options_that_make_no_sense_are_named() -> None:
    skew: dict[str, Any] = {"policies": (Full(),), "sizes": (64,), "skew_ns": 1}
    skew |= {"rounds": 1, "warmup": 0}
    only = SkewOptions(**skew, buffers=(BY_HAND,)).complaint(2)
    assert only == "--buffers cuda-staged-by-hand: only mpi has them; add --policy mpi"
    assert "add --buffers cupy" in (latency_options(device=0).complaint(2) or "")
    assert latency_options(device=0, buffers=(CUPY,)).complaint(2) is None
    for kinds in (HOST, (BY_HAND,)):
        told = latency_options(device_path=DevicePath.AUTO, buffers=kinds).complaint(2) or ""
        assert told.startswith("--device-path auto: no policy has buffers on a device; add --buf")
    only = SkewOptions(**skew | {"policies": (Rival.MPI,)}, buffers=(CUPY,))
    assert "--device-path ipc" in (replace(only, device_path=DevicePath.IPC).complaint(2) or "")
    mixed = latency_options(device_path=DevicePath.IPC, buffers=(*HOST, TORCH))
    assert mixed.complaint(2) is None
    twice = latency_options(buffers=(CUPY, CUPY)).complaint(2)
    assert twice == "--buffers: the same value is given twice"


# ---- results -------------------------------------------------------------------------------------


def row(policy: str, buffers: str, us: float, kind: type[Row] = LatencyRow) -> Any:
    values: dict[str, Any] = {
        "policy": policy,
        "bytes": 64,
        "ranks": 2,
        "rounds": 1,
        "latency_us": Latency(us, us, us, us),
        "speedup_vs_mpi": None,
        "active": Active.of([2]),
        "active_expected": None,
        "cpu_us_per_round": 1.0,
        "verified": True,
        "buffers": buffers,
    }
    if kind is LatencyRow:
        values |= {"blocks": 1, "calls": 1, "best_us": us, "mean_of_ranks_us": us, "gb_per_s": 1.0}
        values |= {"ratio_to_mpi": None, "ratio_to_memcpy": None}
    return kind(**values)


def test_only_rows_of_the_same_memory_are_compared() -> None:
    places = [("solo", "numpy", 1), ("mpi", "numpy", 2), ("memcpy", "numpy", 4)]
    places += [("solo", "cupy", 30), ("mpi", "cuda-staged-by-hand", 60), ("memcpy", "cupy", 10)]
    rows = with_ratios([row(*place) for place in places])
    assert [one.ratio_to_mpi for one in rows] == [0.5, 1, 2, 0.5, 1, 10 / 60]
    assert [one.ratio_to_memcpy for one in rows] == [0.25, 0.5, 1, 3, 6, 1]
    skewed = with_speedups([row(*place, Row) for place in places])
    assert [one.speedup_vs_mpi for one in skewed] == [2, 1, 0.5, 2, 1, 6]


def test_notes_have_the_device_and_versions() -> None:
    assert table.about_device(None, []) == []
    rows = [row("mpi", "cuda-staged-by-hand", 1)]
    told = table.about_device(FACTS, rows)
    assert told[-1] == "Device: H; CUDA 12.8, driver 570.86.15; cupy 14.0.0."


def test_notes_have_the_path_in_use() -> None:
    rows = [row("mpi", "cuda-staged-by-hand", 1), row("solo", "cupy", 1), row("full", "cupy", 1)]
    paths = [None, "staged", "ipc"]
    rows = [replace(one, device_path=path) for one, path in zip(rows, paths, strict=True)]
    assert table.about_device(FACTS, rows)[-1] == "Path of elements on a device: staged, ipc."
    facts = device_arrays.with_path(FACTS, "ipc", ["", "rank 1: no", "rank 1: no"])
    assert facts == replace(FACTS, device_path="ipc", device_path_reason="rank 1: no")
    (*_, told) = table.about_device(facts, rows[:2])
    assert told == (
        "Path of elements on a device: staged, because another one is not possible: rank 1: no."
    )
    assert device_arrays.with_path(None, "auto", []) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan\nGCC: 12.2",
            "570.86.15",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1  Release", "580.1"),
        (None, None),
    ],
)
def test_the_version_of_the_driver(text: str | None, version: str | None, tmp_path: Path) -> None:
    file = tmp_path / "version"
    if text is not None:
        file.write_text(text)
    assert device_arrays.driver_version(file) == version


class Memory(device_arrays.ArrayLibrary):
    """Arrays whose copies are made when somebody waits for them."""

    def __init__(self) -> None:
        self.queue: list[tuple[Any, Any]] = []

    def empty(self, count: int, dtype: str) -> Any:
        return np.zeros(count, dtype)

    pinned = empty

    def copy_out(self, host: Any, array: Any) -> None:
        self.queue.append((host, array))

    copy_in = copy = copy_out

    def synchronize(self) -> None:
        for target, source in self.queue:
            target[:] = source
        self.queue.clear()


def test_a_buffer_is_filled_and_read_when_the_device_is_done() -> None:
    memory = Memory()
    buffer = DeviceBuffer(memory, 4, "float32")
    buffer.fill([1, 2, 3, 4])
    assert buffer.array.tolist() == [1, 2, 3, 4]
    memory.copy(buffer.array, np.full(4, 7))  # is on its way
    assert np.asarray(buffer).tolist() == [7] * 4
    kept = np.array(buffer)
    buffer.fill(-1)
    assert kept.tolist() == [7] * 4
    assert np.asarray(buffer, "i8").dtype == np.int64
    assert buffer.nbytes == 16


# ---- what is missing -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(fakecuda.build(tmp_path_factory.mktemp("driver")))


# A module of this name, and what it makes of CUDA.
FOR_13 = "__version__ = '14'\nclass cuda:\n class runtime:\n  runtimeGetVersion = lambda: 13000\n"
BROKEN = "raise ImportError('libcudart.so.12: cannot open')\n"
REFUSES = (
    FOR_13.replace("13000", "12000") + " def Device(n): raise RuntimeError('no kernel image')\n"
)
FOR_CPUS = "__version__ = '2.11.0'\nclass version: cuda = None\n"
MISSING = {
    "no driver": (None, "cupy", "", "there is no NVIDIA driver: "),
    "no device": ("0", "cupy", "", "driver finds no device: "),
    "no CuPy": ("1", "cupy", None, "cupy is not installed: pip install 'cupy-cuda12x[ctk]'"),
    "broken": ("1", "cupy", BROKEN, "cupy cannot be loaded: libcudart.so.12: cannot open: pip "),
    "too new": ("1", "cupy", FOR_13, "is built for CUDA 13, and the driver is for CUDA 12: pip i"),
    "refused": ("1", "cupy", REFUSES, "cupy cannot use device 0: no kernel image; pypartial info"),
    "no torch": ("1", "torch", None, "torch is not installed: pip install --force-reinstall torch"),
    "torch for CPUs": ("1", "torch", FOR_CPUS, "torch 2.11.0 is built without CUDA: pip install "),
    "no library": ("1", "cuda-staged-by-hand", None, "cupy is not installed: pip install 'cupy-"),
}


@pytest.mark.parametrize(("devices", "kind", "module", "text"), MISSING.values(), ids=MISSING)
def test_what_is_missing_is_said_with_what_mends_it(
    devices: str | None,
    kind: str,
    module: str | None,
    text: str,
    driver: str,
    tmp_path: Path,
) -> None:
    """A finder in front hides what is installed."""
    name = "torch" if kind == "torch" else "cupy"
    if module:
        (tmp_path / f"{name}.py").write_text(module)
    hidden = [other for other in ("cupy", "torch") if module is None or other != name]
    code = (
        "import sys, importlib.util\n"
        "found = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda n, *a: None if n in {hidden} else found(n, *a)\n"
        "import pypartial.cli\n"
        f"words = ['bench', 'skew', '--size', '8', '--buffers', '{kind}']\n"
        "sys.exit(pypartial.cli.main(words))"
    )
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "FAKECUDA_DEVICES": devices or "1"}
    environment["PYPARTIAL_CUDA_DRIVER"] = driver
    if devices is None:
        environment["PYPARTIAL_CUDA_DRIVER"] = ""
        environment["LD_LIBRARY_PATH"] = ""
        if Path("/dev/nvidia0").exists():
            pytest.skip("there is a driver")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert f"pypartial: --buffers {kind}: " in done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# ---- PyTorch -------------------------------------------------------------------------------------


def test_pinned_arrays_of_pytorch_know_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensors of the host in place of pinned ones and of a device's."""
    need_torch()
    import torch

    arrays = device_arrays.TorchArrays.__new__(device_arrays.TorchArrays)
    arrays._torch, arrays._device = torch, "cpu"
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **more: empty(*a, **more))
    host, array = arrays.pinned(4, "float32"), arrays.empty(4, "float32")
    host[:] = [1, 2, 3, 4]
    arrays.copy_in(array, host)
    assert array.tolist() == [1, 2, 3, 4]
    arrays.copy(other := arrays.empty(4, "float32"), array)
    host[:] = 0
    arrays.copy_out(host, other)
    assert host.tolist() == [1, 2, 3, 4]
