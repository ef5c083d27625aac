"""Ctrl-C while a model is trained without end: torch_ctrl_c.py TARGET.

TARGET is a rank, which is interrupted in its twentieth step, or "launcher": then that is, as by the
keyboard. Ranks that are not ended say what they see.
"""

import os
import signal
import sys

import torch
from mpi4py import MPI

import pypartial as pp

target = sys.argv[1]
comm = MPI.COMM_WORLD
torch.set_num_threads(1)
model = torch.nn.Linear(200, 200)
adam = torch.optim.AdamW(model.parameters())
seen = None
step = 0
try:
    with pp.Context(comm) as ctx, pp.torch.DistributedOptimizer(adam, ctx) as optimizer:
        while True:
            optimizer.zero_grad()
            model(torch.randn(8, 200)).square().mean().backward()
            step += 1
            if step == 20 and target == str(comm.rank):
                signal.raise_signal(signal.SIGINT)
            if step == 20 and target == "launcher" and comm.rank == 0:
                os.kill(os.getppid(), signal.SIGINT)
            optimizer.step()
except KeyboardInterrupt:
    seen = "KeyboardInterrupt"
except pp.PeerFailedError as error:
    seen = f"PeerFailedError: {error}"
print(f"rank {comm.rank} sees {seen}", flush=True)
