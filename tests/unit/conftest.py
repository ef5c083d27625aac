"""For the tests without ranks: parts of the C core that are compiled by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import fakecuda
from support.rules import Rules

# A busy machine may hold up any example.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if settings.get_current_profile_name() != "deep":
    settings.load_profile("unit")


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    """The rules of rounds."""
    return Rules(tmp_path_factory.mktemp("rules"))


@pytest.fixture(scope="session")
def cuda_stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the stand-in for the CUDA driver."""
    return fakecuda.build(tmp_path_factory.mktemp("fakecuda"))
