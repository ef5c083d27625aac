"""Tables have as many columns as the terminal has room for, and wide ones where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from support.tables import assert_fits, columns_of

from pypartial import _launch
from pypartial.bench import tune_table
from pypartial.bench.results import Report
from pypartial.tables import Column, print_table

COLUMNS = (
    Column("rank", numbers=False),
    *(Column("mean"), Column("p50", 2), Column("10 %", 1), Column("90 %", 1)),
)
CELLS = ("majority", "12.5 ms", "12.4 ms", "11 ms", "14 ms")
NOTE = "mean: over all ranks and steps, which is a note that takes more than one line."


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    print_table("A title of several words, which is long", COLUMNS, [[CELLS], [CELLS]], [NOTE])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(48, 5), (47, 4), (38, 4), (37, 2), (20, 2)],
    ids=["all", "least", "two", "pair", "no"],
)
def test_the_least_important_columns_are_left_out(
    columns: int, shown: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of one importance together; and a line says so, and how to see them."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(capsys)
    kept = [column for column in COLUMNS if column.spare <= {5: 2, 4: 1, 2: 0}[shown]]
    assert columns_of(text) == [[column.heading for column in kept]]
    if columns > 20:
        assert_fits(text, columns)
    hint = " ".join(text.split())
    missing = {5: None, 4: "p50", 2: "p50, 10 %, 90 %"}[shown]
    assert ("No room" in hint) == (missing is not None)
    if missing is not None:
        assert f"No room for {missing}: COLUMNS=48 shows them, --json FILE saves them." in hint


def test_a_pipe_has_room_for_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = printed(capsys)
    assert columns_of(text) == [[column.heading for column in COLUMNS]]
    assert "No room" not in text


@pytest.mark.parametrize("launched", [False, True])
def test_the_width_is_that_of_the_terminal(launched: bool) -> None:
    """Under a launcher of the launcher's, although the rank has a pipe to it."""
    names = (*_launch._SIZES, *_launch._RANKS, "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    inner = [sys.executable, "-c", "from pypartial import _launch as l; print(l.terminal_width())"]
    program = (
        "import fcntl, os, struct, subprocess, sys, termios\n"
        "fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('4H', 24, 97, 0, 0))\n"
        f"told = subprocess.run({inner!r}, stdout={'subprocess.PIPE' if launched else None})\n"
        "print((told.stdout or b'').decode())\n"
    )
    screen, out = os.openpty()
    environment = kept | ({"PMI_SIZE": "2"} if launched else {})
    subprocess.run([sys.executable, "-c", program], stdout=out, env=environment, check=True)
    os.close(out)
    assert b"97" in os.read(screen, 1000)
    os.close(screen)


def test_the_table_of_tune(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("recursive_doubling", "ring", "rabenseifner", "recursive_halving", "two_tree")
    row: dict[str, Any] = {"ranks": 4, "bytes": 64 << 10, "model_us": 12.0, "verified": True}
    row |= {"chosen": "rabenseifner", "chosen_before": "recursive_doubling"}
    rows: Any = [Row(**row, algorithm=name) for name in names]
    meta: Any = Row(link="node", cores=2, mpi="Open MPI 5.0.11", before="cost model")
    tune_table.print_report(Report(meta, rows), [])
    text = capsys.readouterr().out
    assert_fits(text)
    assert columns_of(text)[0][:3] == ["ranks", "size", "fastest"]


class Row:
    """A row of results, of which a table reads some members."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)
        self.latency_us = type("Latency", (), {"p50": 12.5})
