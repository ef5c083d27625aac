"""For the tests without ranks: parts of the C core that are compiled by themselves."""

from __future__ import annotations

import pytest
from support.rules import Rules


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    """The rules of rounds."""
    return Rules(tmp_path_factory.mktemp("rules"))
