"""The doorbell between the ranks of a node, without ranks: tests/unit/c/bell_cases.c."""

import subprocess

import pytest
from support.c_cases import compiled


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def cases(request, tmp_path_factory):
    parts = ["base/*.c", "transport/doorbell.c"]
    options = [f"-fsanitize={request.param}", "-fno-sanitize-recover=all"]
    program = compiled(tmp_path_factory.mktemp("cases"), "bell_cases", parts, *options)

    def run(what):
        return subprocess.run(
            [program, what], check=True, text=True, stdout=subprocess.PIPE, timeout=60
        ).stdout

    return run


def test_who_needs_no_wake_up(cases):
    cases("answers")


def test_no_wake_up_is_lost(cases):
    assert cases("wakes") == "0\n"
