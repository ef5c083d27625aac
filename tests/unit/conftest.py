"""For the tests without ranks: parts of the C core that are compiled by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import fakecuda
from support.rules import Rules


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    """The rules of rounds."""
    return Rules(tmp_path_factory.mktemp("rules"))


@pytest.fixture(scope="session")
def cuda_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the stand-in for the CUDA driver."""
    return fakecuda.build(tmp_path_factory.mktemp("fakecuda"))
