"""Random scenarios of partial allreduces over simulated ranks, judged by every oracle.

`fuzz.scenario` says what a scenario is, `fuzz.oracles` what must hold; a failure
says how to replay it. A longer search: ``pytest tests/sim --hypothesis-profile=deep``, or
``python -m tests.fuzz``.
"""

from fuzz.oracles import check
from hypothesis import given
from strategies import examples, scenarios


@examples(400)
@given(scenario=scenarios(collective=False))
def test_one_handle(scenario):
    check(scenario)


@examples(400)
@given(scenario=scenarios())
def test_one_handle_with_collective_calls(scenario):
    check(scenario)


@examples(400)
@given(scenario=scenarios(handles=(2, 3), ranks=(1, 7)))
def test_several_handles(scenario):
    check(scenario)


@examples(100)
@given(scenario=scenarios(ranks=(10, 17)))
def test_more_ranks(scenario):
    check(scenario)


@examples(100)
@given(scenario=scenarios(ranks=(1, 8), bulk=True))
def test_bulk(scenario):
    check(scenario)


@examples(100)
@given(scenario=scenarios(handles=(1, 2), noise=True))
def test_inexact_sums_agree_bit_for_bit(scenario):
    check(scenario)
