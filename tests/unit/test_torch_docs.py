"""What docs/torch.md says of the backend is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.pytorch import need_torch

need_torch()

import torch.distributed as dist  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not here")


def test_the_table_of_the_backend_names_calls_of_torch() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- supported -->\n\n(.*?)\n\n<!-- end of supported -->", text, re.S)
    head, _, *rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    assert head == ["call", "gloo", "here"]
    assert all(len(row) == 3 for row in rows)
    for name in re.findall(r"`(\w+)`", " ".join(row[0] for row in rows)):
        assert name == "all_reduce_coalesced" or hasattr(dist, name) or name == "torch", name


def test_the_page_names_the_oldest_version() -> None:
    from pypartial.torch._version import OLDEST

    numbers = ".".join(map(str, OLDEST))
    text = PAGE.read_text(encoding="utf-8")
    assert f"any version from {numbers} on" in text
    settings = (PAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'torch = ["torch>={numbers}"]' in settings
