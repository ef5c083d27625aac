"""The micro-benchmark behind ``pypartial bench skew``.

One room per step: `options` (what was asked for), `pace` (the clockwork of a round), `pattern`
(data whose sums can be checked, and the ledger that checks them), `skew` (the measurement),
`results` (statistics and JSON), `table` and `plot`. Only rank 0 imports the last two, after the
measurement.
"""
