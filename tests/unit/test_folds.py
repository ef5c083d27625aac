"""The host's arithmetic on a device, with the stand-in for the driver: tests/unit/c/folds_cases.c.

The kernels are pypartial/_device_kernels.cu itself, compiled for the host.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import fakecuda
from support.once import once

from pypartial._core import lib

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
LIMIT_S = 120
NOT_REACHED = 77
# Devices have no long double.
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
TYPES = {name: getattr(lib, f"PP_{name.upper()}") for name in [*INTEGERS, *FLOATS]}

pytestmark = pytest.mark.skipif(
    fakecuda.cpp_compiler() is None, reason="the kernels are compiled by a C++ compiler"
)


class Cases:
    """The program with the cases, the stand-in and the kernels."""

    def __init__(self, factory: pytest.TempPathFactory, name: str, sanitizers: str = "") -> None:
        folder = once(factory, f"folds-{name}", lambda made: self._build(made, sanitizers))
        self.program = folder / "folds_cases"
        self.stand_in = folder / fakecuda.STAND_IN
        self.kernels = folder / fakecuda.KERNELS_ON_HOST

    def _build(self, folder: Path, sanitizers: str) -> None:
        stand_in = fakecuda.build(folder, sanitizers=sanitizers)
        # Those of ThreadSanitizer would take long to compile; they have nothing that threads share.
        fakecuda.build_kernels(folder, sanitizers=sanitizers.replace("thread", ""))
        flags = ["-O3"]  # as installed
        if sanitizers:
            flags = ["-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
        sources = [*sorted((CSRC / "base").glob("*.c")), *sorted((CSRC / "reduce").glob("*.c"))]
        sources += [CSRC / "cuda" / name for name in ("driver.c", "folds.c", "pool.c")]
        subprocess.run(
            [
                *(*fakecuda.compiler(), "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror"),
                *("-pthread", *flags, f"-I{CSRC}", *map(str, sources)),
                *(str(Path(__file__).parent / "c" / "folds_cases.c"), str(stand_in)),
                *("-ldl", "-lm", "-o", str(folder / "folds_cases")),
            ],
            check=True,
        )

    def ran(
        self, case: str, number: int = 0, kernels: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a case."""
        own = {"PYPARTIAL_CUDA_DRIVER": str(self.stand_in), "FAKECUDA_DEVICES": "2"}
        return subprocess.run(
            [self.program, kernels or self.kernels, case, str(number)],
            env={**os.environ, **own, "ASAN_OPTIONS": "handle_segv=0"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def __call__(self, case: str, number: int = 0) -> None:
        """Run a case that must end well."""
        ran = self.ran(case, number)
        assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory, "installed")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory, "checked", "address,undefined")


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory, "raced", "thread")


# ---- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
def test_folds_have_the_host_s_bits(installed: Cases, name: str) -> None:
    installed("folds", TYPES[name])


@pytest.mark.parametrize("name", TYPES)
def test_conversions_have_the_host_s_bits(installed: Cases, name: str) -> None:
    installed("conversions", TYPES[name])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_averages_have_the_host_s_bits(installed: Cases, name: str) -> None:
    installed("means", TYPES[name])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half(installed: Cases, name: str) -> None:
    installed("halves", TYPES[name])


@pytest.mark.parametrize("name", ["uint16", "float32", "complex128"])
def test_arithmetic_is_defined(checked: Cases, name: str) -> None:
    """Nothing that C++ leaves undefined, such as a product of two uint16 that overflows int."""
    checked("folds", TYPES[name])


# What a kernel says, and what it says if it is wrong. Each takes a run of the compiler.
SPOILED = [
    ("folds", "float32", "bits_of(x) : canonical_nan(x)", "bits_of(x) : canonical_nan(x) + 1"),
    ("means", "float32", "m < written; m++", "m < written && m < 63; m++"),
    ("halves", "float16", "0xfff + ((size >> 13) & 1)", "0x1000"),
]
SPOILED_TOO = [
    ("folds", "complex64", "l.re * r.im + l.im * r.re", "l.re * r.im - l.im * r.re"),
    ("folds", "int32", "i + cut.groups * N", "i + cut.groups * N - 1"),
    ("conversions", "bool", "uint8) { return value != 0; }", "uint8) { return value; }"),
    ("folds", "float64", ": bits_of(x) | quiet_bit(x)", ": canonical_nan(x)"),
    ("folds", "float32", "(r < l ? bits_of(r) : bits_of(l))", "bits_of(l)"),
    ("folds", "int8", "return l < r ? l : r;", "return (unsigned)l < (unsigned)r ? l : r;"),
    ("means", "float32", "canonical(sum + product)", "sum + product"),
    ("means", "float64", "plus(sum.of[i], initial_weight,", "plus(sum.of[i], (T)1,"),
    ("folds", "float64", "i < N && divide_by > 1", "i < N && divide_by > 2"),
    ("means", "float64", "divide_by > 1 ? quotient", "divide_by > 2 ? quotient"),
]


@pytest.mark.parametrize(
    ("case", "name", "right", "wrong"),
    [*SPOILED, *(pytest.param(*one, marks=pytest.mark.long) for one in SPOILED_TOO)],
)
def test_a_kernel_that_is_wrong_is_found(
    installed: Cases, case: str, name: str, right: str, wrong: str, tmp_path: Path
) -> None:
    text = fakecuda.KERNELS.read_text(encoding="utf-8")
    assert right in text
    source = tmp_path / fakecuda.KERNELS.name
    source.write_text(text.replace(right, wrong), encoding="utf-8")
    ran = installed.ran(case, TYPES[name], fakecuda.build_kernels(tmp_path, source=source))
    assert (ran.returncode, ran.stderr != "") == (1, True)


# ---- launches ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        "images",
        "other_device",
        "undefined",
        "in_order",
        "lines",
        "unloaded_early",
        "forked",
        "pooled",
        "behind",
    ],
)
def test_images_and_streams(checked: Cases, case: str) -> None:
    """The function of this name in folds_cases.c says what the case holds."""
    checked(case)


@pytest.mark.parametrize("number", range(3))
def test_a_kernel_that_leaves_its_memory_is_found(checked: Cases, number: int) -> None:
    """Number 0 does not: then nothing is found."""
    checked("astray", number)


@pytest.mark.long  # tests/stress/sanitize has ranks on devices under ThreadSanitizer, too
@pytest.mark.parametrize("case", ["threads", "in_order", "behind"])
def test_threads_do_not_race(raced: Cases, case: str) -> None:
    raced(case)


def test_each_call_may_fail(checked: Cases) -> None:
    """One run for each call of the driver; the last one has no more calls to fail."""
    failed = set()
    for number in range(1, 100):
        ran = checked.ran("failures", number)
        if ran.returncode == NOT_REACHED:
            break
        assert ran.returncode == 0, f"call {number}: {ran.stdout} {ran.stderr}"
        failed.add(ran.stdout.strip())
    else:
        pytest.fail("the calls do not end")
    assert {"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuMemcpyAsync"} <= failed
