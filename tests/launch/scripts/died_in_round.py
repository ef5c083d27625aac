"""The last rank dies, mostly in the middle of a round, and the launcher lets the others go on.

    died_in_round.py SECONDS     for which the others make rounds, or until they see it

Solo with buffers in shared memory: a call that is late does not wait for a round, but gets its send
buffer back only when the round is over that reads it. Prints what the others see; if no round was
under way, they go on.
"""

import signal
import sys
import time

import numpy as np
from mpi4py import MPI
from survivors import end

import pypartial as pp

COUNT, LIVES_S, PATIENCE_S = 1 << 23, 0.1, float(sys.argv[1])
comm = MPI.COMM_WORLD
ctx = pp.Context(comm)
send, receive = (ctx.alloc(COUNT, np.float32) for _ in range(2))
request = ctx.Allreduce_init(send, receive, policy=pp.Solo())
for _ in range(3):
    request.Start()
    request.Wait()
request.Flush()
if comm.rank == comm.size - 1:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process wherever it is
    signal.setitimer(signal.ITIMER_REAL, LIVES_S)
until = time.monotonic() + PATIENCE_S
try:
    while time.monotonic() < until:
        request.Start()
        request.Wait()
    print(f"rank {comm.rank} goes on", flush=True)
except pp.PeerFailedError as error:
    print(f"rank {comm.rank} sees: {error}", flush=True)
end(comm.rank, comm.size - 1)
