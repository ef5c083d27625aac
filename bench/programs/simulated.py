"""Simulates one round of one policy, as `sim skew --arrivals linear:1ms --size 64 --steps 1` does.

    python simulated.py solo|full RANKS FILE

Writes by how much the process grew, and how long it took. `sim skew` simulates full beside any
other policy; this stops before.
"""

import gc
import json
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pypartial as pp
from pypartial.sim.arrivals import BASE_NS, parse_arrivals
from pypartial.sim.network import PRESETS
from pypartial.sim.skew import Run, compare


class Enough(Exception):
    """What was asked for has been simulated."""


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


def main() -> None:
    policy, ranks, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    begun: list[tuple[float, int]] = []

    def progress(name: str, _share: float) -> None:
        if not begun:
            begun.append((time.monotonic(), peak_bytes()))
        elif name == "full" and policy != "full":  # the one that all are compared with
            raise Enough

    arrivals = parse_arrivals("linear:1ms", ranks, 1, 0, BASE_NS)
    network = PRESETS["infiniband-mvapich"]
    run = Run(ranks, 64, 1, arrivals, network, barrier=True)
    gc.disable()
    with suppress(Enough):
        compare(run, [] if policy == "full" else [pp.Policy.parse(policy)], progress)
    seconds, grown = time.monotonic() - begun[0][0], peak_bytes() - begun[0][1]
    row = {"policy": policy, "ranks": ranks, "seconds": seconds, "bytes": grown / ranks}
    meta = {"version": pp.__version__}
    file.write_text(json.dumps({"meta": meta, "rows": [row]}), encoding="utf-8")


if __name__ == "__main__":
    main()
