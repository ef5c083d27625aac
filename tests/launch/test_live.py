"""Programs that hang by the rules of rounds alone, and what ends them; and what nothing ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.live import check_ended, departed, drawn, metric_cases, run_live
from support.mpirun import mpirun, python, why_no_hosts

SCRIPTS = Path(__file__).resolve().parent / "scripts"
PATIENCE_S = 0.2
CASE_S = 60  # a case that takes so long has hung
LIMIT_S = 100
CHOSEN = drawn(24, seed=12)
SOME = random.Random(12).sample(metric_cases(), 30)

pytestmark = pytest.mark.timeout(3 * LIMIT_S)


@pytest.mark.parametrize(
    ("number", "ranks"), [(0, 2), (1, 3), (2, 5), (3, (2, 2))], ids=["2", "3", "5", "2x2"]
)
def test_programs_of_all_kinds_end(number, ranks):
    """And all sums are exact."""
    if not isinstance(ranks, int) and (reason := why_no_hosts()):
        pytest.skip(reason)
    mine = CHOSEN[6 * number : 6 * number + 6]
    run = run_live(ranks, mine, patience=PATIENCE_S, case_s=CASE_S)
    print(f"{departed(run, mine)} rounds did without some rank")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "ranks", "node_ranks"),
    [(0, 2, ""), (1, 3, ""), (2, 4, ""), (3, 5, ""), (4, 4, "2")],
    ids=["2", "3", "4", "5", "2x2"],
)
def test_training_loops_that_also_meet_end(number, ranks, node_ranks):
    """Calls that the library sees without any patience, those that it does not see with some."""
    mine = SOME[6 * number : 6 * number + 6]
    limits = {"patience": PATIENCE_S, "case_s": CASE_S}
    check_ended(run_live(ranks, mine, **limits, script="metrics", node_ranks=node_ranks), mine)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ranks", "node_ranks", "transports"),
    [(3, 0, ["auto", "mpi"]), (4, 2, ["auto"])],
    ids=["node", "nodes"],
)
def test_a_drawn_rank_that_computes_holds_its_round_up(ranks, node_ranks, transports):
    """For as long as it has patience, whatever became of its patience with other handles."""
    env = {"PYPARTIAL_TRANSPORT": "", "PYPARTIAL_NODE_RANKS": str(node_ranks or "")}
    run = mpirun(ranks, python(str(SCRIPTS / "holds.py"), *transports), timeout_s=LIMIT_S, env=env)
    run.check()
    for rank in range(ranks):
        assert f"end of rank {rank}" in run.lines(rank), run.explain()


def test_active_ranks_of_the_first_of_m():
    """As many as expected, on 8 ranks: (P + 1) / (m + 1), within an interval of 99.9 %."""
    command = python(str(SCRIPTS / "first_of.py"), "400", "1", "2", "4", "8")
    run = mpirun(8, command, timeout_s=LIMIT_S, env={"PYPARTIAL_TRANSPORT": ""})
    run.check()
    assert len([line for line in run.lines(0) if line.startswith("m ")]) == 4, run.explain()
    print(*run.lines(0), sep="\n")
