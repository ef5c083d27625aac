"""Which path device_path="auto" is, by the size of the vector."""

from __future__ import annotations

import pytest

import pypartial as pp
from pypartial._ipc import IPC_FROM, NOT_SET, choose_path, ipc_from

MB = 1 << 20


@pytest.mark.parametrize(("size", "path"), [(16 * MB - 1, "auto"), (16 * MB, "ipc")])
def test_an_allreduce_is_as_was_measured(size: int, path: str) -> None:
    assert choose_path("auto", size, NOT_SET, measured=True) == path
    assert choose_path("staged", size, NOT_SET, measured=True) == "staged"
    assert choose_path("auto", size, NOT_SET, measured=False) == "auto"


@pytest.mark.parametrize("measured", [True, False])
def test_the_variable_comes_first(measured: bool) -> None:
    assert choose_path("auto", 32 * MB - 1, 32 * MB, measured=measured) == "auto"
    assert choose_path("auto", 32 * MB, 32 * MB, measured=measured) == "ipc"


@pytest.mark.parametrize(
    ("given", "size"),
    [("", NOT_SET), ("0", 0), ("0001048576", MB), (str(NOT_SET - 1), NOT_SET - 1)],
)
def test_the_variable(monkeypatch: pytest.MonkeyPatch, given: str, size: int) -> None:
    monkeypatch.setenv(IPC_FROM, given)
    assert ipc_from() == size


@pytest.mark.parametrize("given", ["16M", "-1", "1e6", str(NOT_SET), str(1 << 64), 5000 * "1"])
def test_what_is_no_number(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(IPC_FROM, given)
    with pytest.raises(pp.ArgumentError, match=f"PYPARTIAL_IPC_FROM='{given}' is not a number"):
        ipc_from()
