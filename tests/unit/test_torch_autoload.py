"""What ``import torch`` knows of the backend by itself, where the package is installed."""

from __future__ import annotations

import pytest
from support.mpirun import Run, program, python
from support.pytorch import need_torch

need_torch()

LIMIT_S = 120


def run(text: str, **env: str) -> Run:
    """Run a program; an installation before this entry point has none: install the package."""
    ran = program(python("-c", text), timeout_s=LIMIT_S, env=env)
    assert ran.returncode == 0, ran.explain()
    return ran


def test_import_torch_registers_the_backend_and_loads_nothing() -> None:
    text = """
import sys, torch
named = torch.distributed.Backend
loaded = [m for m in sys.modules if m.partition(".")[0] in ("pypartial", "mpi4py")]
print(named.PYPARTIAL, named.default_device_backend_map["cpu"], loaded)
"""
    assert run(text).output == "pypartial gloo []\n"


@pytest.mark.parametrize("value", ["0", "1"])
def test_import_of_the_package_registers_it_as_well(value: str) -> None:
    text = "import pypartial.torch, torch; print(torch.distributed.Backend.PYPARTIAL)"
    assert run(text, TORCH_DEVICE_BACKEND_AUTOLOAD=value).output == "pypartial\n"


@pytest.mark.parametrize(
    "torch",
    [
        "raise ImportError('none')",
        "def is_available(): return False",
        "def is_available(): return True",  # of which all else is missing
    ],
)
def test_it_never_fails(torch: str, tmp_path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "distributed.py").write_text(torch)
    text = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    text += "import _pypartial_torch as it; it.register(); print('end')"
    assert run(text).output == "end\n"
