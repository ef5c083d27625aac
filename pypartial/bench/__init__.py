"""The benchmarks behind ``pypartial bench``: `skew`, `latency` and `overhead`.

One room per step: `options` (what was asked for), `contenders` (the ways to sum that are compared),
`pace` (the clockwork of a round), `clock` (the stopwatch), `pattern` (data whose sums can be
checked), `ledger` (the accounts that check them), `trials` (a contender measured in turns), the
measurements themselves, `conditions` (where they run), `results` (JSON), `table`, `latency_table`,
`overhead_table` and `plot`. Only rank 0 imports the last four, after the measurement.
"""
