"""Options and help texts that several commands share."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

REPEATABLE = "May be repeated."
LISTED = "Several are separated by commas, or the option is repeated."
POLICY_HELP = (
    "Which ranks a round waits for: solo (the first one), majority (one drawn rank), first:M (the "
    "first of M drawn ranks), quorum:K (K ranks) or full (all). A policy may end in "
    ",deadline=TIME and ,grace=TIME, as in solo,grace=200us."
)
SIZE_HELP = "Size of each rank's buffer in bytes; K, M and G are powers of 1024, as in 64K."
PATIENCE_HELP = (
    "How long a rank may hold up a round that others wait for, before the round goes on without "
    "it. A time such as 200ms; auto: five times the rank's usual time between calls, and at least "
    "1s; none: for ever."
)

# Options that are a positive number, a time, a file to write.
count = functools.partial(typer.Option, min=1, metavar="N")
duration = functools.partial(typer.Option, metavar="TIME")
file = functools.partial(typer.Option, dir_okay=False, writable=True, metavar="FILE")

JsonOption = Annotated[Path | None, file(help="Write the results to this file, as JSON.")]
