"""When torch is loaded, and what is said if it is missing or too old; it is a stand-in here."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mpirun import Run, program, python

from pypartial import __file__ as PACKAGE

LIMIT_S = 60
NOBODY_MAY = "raise RuntimeError('torch was loaded')"
MISSING = "raise ImportError('there is none')"
COMMAND = "pip install 'torch>=2.7'"


def run(folder: Path, torch: str, program_text: str) -> Run:
    """Run a program for which `import torch` executes a text."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(torch, encoding="utf-8")
    paths = f"{folder}:{Path(PACKAGE).parents[1]}"
    return program(python("-c", program_text), timeout_s=LIMIT_S, env={"PYTHONPATH": paths})


def test_the_package_does_not_load_torch(tmp_path: Path) -> None:
    names = "pp.Context, pp.methods.EagerSGD(), dir(pp), pp.__all__, hasattr(pp, 'jax')"
    ran = run(tmp_path, NOBODY_MAY, f"import pypartial as pp; {names}; print('end')")
    assert (ran.returncode, ran.output) == (0, "end\n"), ran.explain()


def test_the_torch_layer_loads_torch(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    ran = run(tmp_path, NOBODY_MAY, "import pypartial as pp; pp.torch")
    assert ran.returncode == 1, ran.explain()
    assert "RuntimeError: torch was loaded" in ran.output, ran.explain()


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        (MISSING, f"ImportError: pypartial.torch needs PyTorch: {COMMAND}"),
        ("pass", f"ImportError: pypartial.torch needs PyTorch: {COMMAND}"),  # as a mere folder is
        (
            "__version__ = '2.5.1+cpu'",
            f"ImportError: pypartial.torch needs PyTorch 2.7 or newer, and this is 2.5.1+cpu: "
            f"{COMMAND}",
        ),
    ],
    ids=["missing", "another", "too old"],
)
@pytest.mark.parametrize(
    "statement", ["import pypartial.torch", "import pypartial as pp; pp.torch"]
)
def test_without_torch_the_command_is_given(
    torch: str, said: str, statement: str, tmp_path: Path
) -> None:
    ran = run(tmp_path, torch, statement)
    assert ran.returncode == 1, ran.explain()
    assert ran.output.splitlines()[-1] == said, ran.explain()
