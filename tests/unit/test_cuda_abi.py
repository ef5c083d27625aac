"""csrc/cuda/driver.h declares the driver's binary interface as NVIDIA's cuda.h does.

The package is built without cuda.h, so the test runs where there is one: in the toolkit, or in the
wheel nvidia-cuda-runtime, which PyTorch's build for GPUs brings along.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support import fakecuda

HEADER = fakecuda.CSRC / "cuda" / "driver.h"


def find_cuda_h() -> Path | None:
    """Return the folder of a cuda.h."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [Path(name, "include") for name in [*named, "/usr/local/cuda", "/usr"] if name]
    folders += Path(sysconfig.get_path("purelib"), "nvidia").glob("*/include")
    return next((folder for folder in folders if (folder / "cuda.h").is_file()), None)


def text() -> str:
    """The header without comments, its continued lines joined."""
    joined = re.sub(r"\s*\\\n\s*", " ", HEADER.read_text(encoding="utf-8"))
    return re.sub(r"/\*.*?\*/", "", joined, flags=re.DOTALL)


def constants() -> dict[str, str]:
    return dict(re.findall(r"\b(CU(?:DA)?_\w+) = (-?(?:0x)?[0-9a-f]+)\b", text()))


def functions() -> dict[str, str]:
    """The parameters of each function, by its symbol."""
    return dict(re.findall(r"\bF\(cu\w+, (cu\w+),\s*(\([^)]*\))\)", text()))


def enumerations() -> list[str]:
    (names,) = re.findall(r"typedef unsigned int\s+([^;]+);", text())
    return re.split(r",\s*", names)


def fields() -> list[str]:
    """Those of the only structure whose fields the library uses."""
    (body,) = re.findall(r"typedef struct CUDA_MEMCPY2D \{(.*?)\}", text(), flags=re.DOTALL)
    return re.findall(r"(\w+)(?=[,;])", body)


def offsets(folder: Path) -> dict[str, int]:
    """Where driver.h has these fields."""
    source, made = folder / "offsets.c", folder / "offsets"
    lines = [f'printf("{name} %zu\\n", offsetof(CUDA_MEMCPY2D, {name}));' for name in fields()]
    head = [f'#include "{HEADER}"', "#include <stddef.h>", "#include <stdio.h>"]
    source.write_text("\n".join([*head, "int main(void) {", *lines, "}", ""]), encoding="utf-8")
    subprocess.run([*fakecuda.compiler(), "-std=gnu11", str(source), "-o", str(made)], check=True)
    said = subprocess.run([str(made)], capture_output=True, text=True, check=True).stdout
    return {name: int(at) for name, at in map(str.split, said.splitlines())}


def compile_with_cuda_h(checks: list[str], folder: Path) -> str:
    """Return what the compiler says of some declarations behind cuda.h."""
    cuda = find_cuda_h()
    assert cuda is not None
    source = folder / "checks.c"
    source.write_text(
        "\n".join(['#include "cuda.h"', "#include <stddef.h>", *checks, ""]), encoding="utf-8"
    )
    command = [*fakecuda.compiler(), "-std=gnu11", "-fsyntax-only", "-Werror", f"-I{cuda}"]
    return subprocess.run([*command, str(source)], capture_output=True, text=True).stderr


needs_cuda_h = pytest.mark.skipif(find_cuda_h() is None, reason="there is no cuda.h here")


def test_the_header_is_read() -> None:
    """Otherwise the tests below could not fail."""
    assert constants()["CUDA_ERROR_ILLEGAL_ADDRESS"] == "700"
    assert constants()["CU_DEVICE_INVALID"] == "-2"
    assert functions()["cuMemAlloc_v2"] == "(CUdeviceptr *address, size_t bytes)"
    assert functions()["cuLaunchKernel"].endswith("void **extra)")
    assert len(functions()) == len(re.findall(r"\bF\(", text())) > 35
    assert "CUresult" in enumerations()
    assert len(fields()) == 16


@needs_cuda_h
def test_constants(tmp_path: Path) -> None:
    checks = [f'_Static_assert({name} == {value}, "");' for name, value in constants().items()]
    assert compile_with_cuda_h(checks, tmp_path) == ""


@needs_cuda_h
def test_types(tmp_path: Path) -> None:
    checks = re.findall(r"_Static_assert\(sizeof.*;", text())
    assert len(checks) == 4
    for name in enumerations():
        checks.append(f'_Static_assert(sizeof({name}) == 4 && ({name})-1 > 0, "{name}");')
    assert compile_with_cuda_h(checks, tmp_path) == ""


@needs_cuda_h
def test_fields(tmp_path: Path) -> None:
    checks = [
        f'_Static_assert(offsetof(CUDA_MEMCPY2D, {name}) == {at}, "{name}");'
        for name, at in offsets(tmp_path).items()
    ]
    assert len(checks) == len(fields())
    assert compile_with_cuda_h(checks, tmp_path) == ""


@needs_cuda_h
def test_functions(tmp_path: Path) -> None:
    """Each symbol is declared, with these parameters."""
    checks = [
        f"CUresult (*const checked_{symbol}){parameters} = {symbol};"
        for symbol, parameters in functions().items()
    ]
    assert compile_with_cuda_h(checks, tmp_path) == ""


@needs_cuda_h
@pytest.mark.parametrize(
    "wrong",
    [
        '_Static_assert(CUDA_ERROR_NO_DEVICE == 101, "");',
        "CUresult (*const checked)(CUdeviceptr *address, int bytes) = cuMemAlloc_v2;",
        "CUresult (*const checked)(CUstream stream) = cuStreamDestroy_v3;",
    ],
)
def test_a_difference_is_noticed(wrong: str, tmp_path: Path) -> None:
    assert "error:" in compile_with_cuda_h([wrong], tmp_path)
