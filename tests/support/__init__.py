"""What the tests share: starting mpirun, judging its ranks, and the oracles."""
