"""Whether simulations print what they printed: 200 commands, and a digest of what each prints.

    python -m tests.stored check     runs them all; prints those that print something else
    python -m tests.stored record    draws new ones, and keeps what they print now
    python -m tests.stored show N    prints what command N prints, to compare two revisions by diff

A change that means to leave the protocols as they are leaves every digest as it is. The commands
are 60 of ``sim skew``, 60 of ``sim groups`` with their groups, and 80 replays of random programs,
which print all that each rank was given.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STORE = Path(__file__).with_name("seeds.json")
SEED = 2026
SKEWS, GROUPS, REPLAYS = 60, 60, 80
LIMIT_S = 300

_ARRIVALS = ("linear:1ms", "normal:10ms:3ms", "lognormal:10ms:5ms", "random:20ms", "slow:1:4x")


def skew(source: random.Random) -> list[str]:
    policy = source.choice(
        ("solo", "majority", "full", "first:2", "quorum:2", "solo,grace=1ms", "full,deadline=5ms")
    )
    return [
        *("skew", "--ranks", str(source.choice((3, 8, 17, 64))), "--policy", policy),
        *("--steps", "20", "--arrivals", source.choice(_ARRIVALS)),
        *("--size", source.choice(("8", "64", "64K", "1M"))),
        *("--deliver", source.choice(("latest", "sum", "each"))),
        *("--seed", str(source.randrange(1 << 30))),
    ]


def groups(source: random.Random) -> list[str]:
    generator = source.choice(
        ("random:3", "random:2,reuse", "smart:3", "smart:2,inter-intra", "controller:3", "static")
    )
    return [
        *("groups", "--ranks", str(source.choice((4, 8, 16))), "--generator", generator),
        *("--iterations", "40", "--arrivals", source.choice(_ARRIVALS)),
        *("--per-node", source.choice(("1", "4"))),
        *("--group-time", source.choice(("0", "2ms"))),
        *("--weights", source.choice(("constant", "closest", "initial"))),
        *("--seed", str(source.randrange(1 << 30))),
    ]


def replay(source: random.Random) -> list[str]:
    from tests.fuzz.draw import draw_scenario

    return ["fuzz", "--replay", draw_scenario(SEED, source.randrange(1 << 30), "all").to_text()]


def output(command: list[str]) -> str:
    """Return what a command prints, and the groups that it logs."""
    words = [sys.executable, "-m", "pypartial", "sim", *command]
    if command[0] == "fuzz" and importlib.util.find_spec("tests.fuzz"):
        words = [sys.executable, "-m", "tests.fuzz", *command[1:]]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "groups"
        more = ["--log", str(log)] if command[0] == "groups" else []
        environment = {**os.environ, "COLUMNS": "200"}
        ran = subprocess.run(
            [*words, *more], env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        logged = log.read_text(encoding="utf-8") if log.exists() else ""
    return f"{ran.stdout}{ran.stderr}exit code {ran.returncode}\n{logged}".replace(folder, "")


def digests(commands: list[list[str]]) -> list[str]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(output, commands)
        return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]


def record() -> int:
    source = random.Random(SEED)
    kinds = [skew] * SKEWS + [groups] * GROUPS + [replay] * REPLAYS
    commands = [kind(source) for kind in kinds]
    pairs = [[*pair] for pair in zip(digests(commands), commands, strict=True)]
    lines = ",\n".join(json.dumps(pair) for pair in pairs)
    STORE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return 0


def stored() -> list[tuple[str, list[str]]]:
    return [(old, command) for old, command in json.loads(STORE.read_text(encoding="utf-8"))]


def check() -> int:
    pairs = stored()
    new = digests([command for _, command in pairs])
    changed = [n for n, (old, _) in enumerate(pairs) if old != new[n]]
    for number in changed:
        print(f"{number}: pypartial sim {shlex.join(pairs[number][1])}")
    print(f"{len(pairs) - len(changed)} as stored, {len(changed)} changed")
    return 1 if changed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stored",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["check", "record", "show"])
    parser.add_argument("number", nargs="?", type=int, default=0, metavar="N")
    asked = parser.parse_args()
    if asked.what == "show":
        print(output(stored()[asked.number][1]), end="")
        return 0
    return record() if asked.what == "record" else check()


sys.exit(main())
