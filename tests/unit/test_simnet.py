"""The simulated network by itself, under the sanitizers."""

import subprocess

import pytest
from support.c_cases import SANITIZED, compiled

WORLDS = 200


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    parts = ["base/*.c", "transport/sim*.c"]
    return compiled(tmp_path_factory.mktemp("cases"), "net_cases", parts, *SANITIZED)


def test_messages_of_a_pair_arrive_in_order_whatever_they_cost(cases):
    """Random networks of 32 kinds; nothing is lost, nothing comes twice or too early."""
    command = [cases, str(WORLDS)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    kinds = dict(line.rsplit(":", 1) for line in ran.stdout.splitlines())
    assert len(kinds) == 32
    assert {kind: int(count) for kind, count in kinds.items() if int(count)} == {}
