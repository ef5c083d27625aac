"""Tests that need PyTorch: skipped where it is not installed, unless it was asked for."""

from __future__ import annotations

import importlib.util
import os

NEEDED = "PYPARTIAL_TEST_TORCH"  # not empty: these tests must run, as in ci/test


def has_torch() -> bool:
    """Return whether PyTorch is installed.

    The folder tests/torch alone would be a package without a file: tests are on the path.
    """
    spec = importlib.util.find_spec("torch")
    return spec is not None and spec.origin is not None


def need_torch() -> None:
    """Skip the tests of the module that calls this, or fail, unless there is PyTorch."""
    if has_torch():
        return
    import pytest  # not where the site is built

    if os.environ.get(NEEDED):
        raise RuntimeError(f"{NEEDED} is set, and PyTorch is not installed: pip install torch")
    pytest.skip("PyTorch is not installed: pip install torch", allow_module_level=True)
