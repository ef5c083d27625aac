"""Jobs of which ranks are killed, and which the launcher lets go on: what the others see.

For tests/launch/test_deaths.py and ci/long.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.mpirun import Run, mpirun, python

SCRIPT = Path(__file__).resolve().parent.parent / "launch" / "scripts" / "dies.py"
MOMENTS = ("wait", "round", "flush", "init", "open", "before")
MOMENTS_OF_GROUPS = ("groups", "models", "averages")
MOMENTS_OF_GOSSIP = ("gossip", "neighbours", "held")
MOMENTS_OF_QUEUES = ("queues", "updates", "ends", "away")
IN_THE_LOCK = "died while it formed a group"  # of the node
# Without remote writes over TCP: when a connection breaks, Open MPI 5.0.11 finishes a write by a
# message on that very connection, whose lock it holds (mca_btl_tcp_endpoint_close calls
# mca_btl_tcp_endpoint_send), and the rank stays in MPI for ever.
NO_REMOTE_WRITES = ["--mca", "btl_tcp_flags", "9"]
# Without MPI's fault tolerance, and with it: then with collective modules that know it.
GO_ON = {
    "continuous": ["--runtime-options", "recoverable,continuous", *NO_REMOTE_WRITES],
    "ulfm": ["--with-ft", "ulfm", "--mca", "coll", "^han,adapt", *NO_REMOTE_WRITES],
}
GRACE_S, LINGER_S, LINGER_HOSTS_S = 1.0, 15.0, 3.0
SOON_S = 0.03  # a victim lives for so long at most, as in the script
LINE = re.compile(r"rank (\d+) in (\w+) (hangs|after ([\d.]+) s: (\w+): (.*))")


@dataclass(frozen=True)
class Sight:
    """What a survivor saw."""

    rank: int
    moment: str
    seconds: float  # since the moment began; infinite: it hung
    error: str
    text: str


def kill(
    ranks: int | Sequence[int],
    moments: Sequence[str],
    *,
    victim: int,
    transport: str,
    go_on: str,
    seed: int,
    limit_s: float,
    node_ranks: int = 0,
) -> tuple[Run, list[Sight]]:
    """Run a job in which one rank of each group dies; return it, and what survivors saw.

    Parameters
    ----------
    ranks : int or sequence of int
        As of `mpirun`; between hosts without ULFM there is but one group, because MPI ends the job.
    moments : sequence of str
        Of one of the lists above: one for each group.
    victim : int
        The rank of each group that dies; negative: counted from the end.
    transport : str
        As of `pypartial.Context`.
    go_on : str
        Of `GO_ON`.
    seed : int
        Of the time that a victim lives.
    limit_s : float
        As of `mpirun`.
    node_ranks : int
        Take each so many ranks of a group for a node: ranks of others are not looked after.
    """
    with tempfile.TemporaryDirectory(prefix="pp-") as folder:
        arguments = [",".join(moments), str(victim), transport, str(seed), folder]
        program = python(str(SCRIPT), *arguments)
        env = {"PYPARTIAL_NODE_RANKS": str(node_ranks or "")}
        # The launcher may stay when all its ranks are gone, mostly on several hosts, and then keeps
        # to no limit.
        linger_s = LINGER_S if isinstance(ranks, int) else LINGER_HOSTS_S
        stays = {"grace_s": GRACE_S, "linger_s": linger_s}
        run = mpirun(ranks, program, timeout_s=limit_s, env=env, options=GO_ON[go_on], **stays)
    return run, [
        Sight(
            int(found[1]), found[2], float(found[4] or "inf"), found[5] or "hangs", found[6] or ""
        )
        for found in LINE.finditer(run.output)
    ]


def complaints(sights: Sequence[Sight], within_s: float = float("inf")) -> list[str]:
    """Return what is wrong; who is silent was ended with the job."""
    return [
        f"rank {sight.rank} in {sight.moment} after {sight.seconds} s: {sight.error}: {sight.text}"
        for sight in sights
        if sight.error != "PeerFailedError" or not sight.seconds <= within_s
    ]
