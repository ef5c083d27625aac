"""Which path device_path="auto" is, by the size of the vector."""

from __future__ import annotations

import pytest

import pypartial as pp
from pypartial._ipc import IPC_FROM, choose_path

MB = 1 << 20


@pytest.mark.parametrize(("size", "path"), [(16 * MB - 1, "auto"), (16 * MB, "ipc")])
def test_an_allreduce_is_as_was_measured(
    monkeypatch: pytest.MonkeyPatch, size: int, path: str
) -> None:
    monkeypatch.delenv(IPC_FROM, raising=False)
    assert choose_path("auto", size, measured=True) == path
    assert choose_path("staged", size, measured=True) == "staged"
    assert choose_path("auto", size, measured=False) == "auto"


@pytest.mark.parametrize("measured", [True, False])
def test_the_variable_comes_first(monkeypatch: pytest.MonkeyPatch, measured: bool) -> None:
    monkeypatch.setenv(IPC_FROM, str(32 * MB))
    assert choose_path("auto", 32 * MB - 1, measured=measured) == "auto"
    assert choose_path("auto", 32 * MB, measured=measured) == "ipc"


def test_what_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IPC_FROM, "16M")
    with pytest.raises(pp.ArgumentError, match="PYPARTIAL_IPC_FROM='16M' is not a number"):
        choose_path("auto", 1, measured=True)
