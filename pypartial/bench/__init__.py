"""The benchmarks behind ``pypartial bench``: `skew`, `latency` and `overhead`.

One module for each step: `options` (the options of a run), `contenders` (the ways to sum that are
compared), `pace` (the timing of a round), `clock` (the stopwatch), `pattern` (data whose sums can
be checked), `ledger` (the accounts that check them), `trials` (a contender measured in turns), the
measurements themselves, `conditions` (where they run), `results` (JSON), `table`, `latency_table`,
`overhead_table` and `plot`. Only rank 0 imports the last four, after the measurement.
"""
