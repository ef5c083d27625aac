"""Rounds in turn: in the simulator the fuzzer's oracles judge every result."""

from fuzz.oracles import check
from fuzz.scenario import Phase, Scenario

import pypartial as pp
from pypartial.sim.allreduce_handle import Options

# By messages; in memory that all ranks share; by messages between nodes of two ranks.
WAYS: tuple[tuple[int, ...], ...] = ((), (20, 500), (20, 500, 2))
PHASES = (Phase((4, 7, 5), ("flush 0",)), Phase((3,)))
FIRST = 4  # rounds, during which no rank has left

for ranks in (1, 2, 5):
    for text in ("in-turn:1", f"in-turn:{ranks}"):
        handle = Options(count=2 * ranks, policy=pp.Policy.parse(text))
        for memory in WAYS:
            logs = check(Scenario(ranks, 7, (handle,), PHASES, memory=memory)).logs[0]
            results = [record.result for log in logs for record in log.records]
            initiators = {r.round: r.initiator for r in results if r.round < FIRST}
            if text == "in-turn:1":
                assert initiators == {round: round % ranks for round in initiators}
print("in turn")
