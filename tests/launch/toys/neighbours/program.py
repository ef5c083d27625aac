"""Groups of neighbours: in the simulator the fuzzer's oracles judge every result."""

from fuzz.oracles import check
from fuzz.scenario import Phase, Scenario

from pypartial.sim.preduce_handle import PreduceOptions

PHASES = (Phase((4, 7, 5), ("flush 0",)), Phase((3,)))
FIRST = 4  # groups, during which no rank has left

for ranks in (2, 3, 5):
    handle = PreduceOptions(generator="neighbours:2", count=3)
    for memory in ((), (20, 500)):  # rank 0 forms the groups; or they are formed in shared memory
        begun = check(Scenario(ranks, 7, (handle,), PHASES, memory=memory)).begun[0]
        for low, high in (group.members for group in begun[:FIRST]):
            assert (high - low) % ranks in (1, ranks - 1)
print("neighbours")
