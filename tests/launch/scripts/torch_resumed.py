"""Training with checkpoints, which goes on where the last one was made.

    torch_resumed.py METHOD FILE LAST [KILLED]

METHOD is sync or eager. A checkpoint is made every 10 steps, until LAST steps are done. In step
KILLED rank 1 is killed. Ranks print what they have loaded, saved, and have in the end.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
from mpi4py import MPI

import pypartial as pp

EVERY = 10
METHODS = {"sync": pp.methods.Synchronous(), "eager": pp.methods.EagerSGD()}

method, file, last = METHODS[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3])
killed = int(sys.argv[4]) if len(sys.argv) > 4 else None
comm = MPI.COMM_WORLD
torch.set_num_threads(1)


def tell(what):
    """Print what the model and the optimizer's state are, in short."""
    states = [sgd.state[p]["momentum_buffer"] for p in model.parameters() if p in sgd.state]
    content = [
        *(p.detach() for p in model.parameters()),
        *states,
        torch.tensor(decay.get_last_lr()),
    ]
    digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in content)).hexdigest()[:16]
    print(f"{what} {digest}", flush=True)


def batch(step):
    """Return the batch of this rank in a step, the same in every run."""
    source = torch.Generator().manual_seed(1000 * step + comm.rank)
    return torch.randn(16, 10, generator=source)


model = torch.nn.Linear(10, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
decay = torch.optim.lr_scheduler.StepLR(sgd, 15, 0.5)
first, seed, loaded = 0, 7, None
if file.exists():
    loaded = torch.load(file, weights_only=True)
    first, seed = loaded["steps"], loaded["optimizer"]["worker"]["seed"]
    model.load_state_dict(loaded["model"])
else:
    torch.nn.init.constant_(model.weight, 0.1)
    torch.nn.init.zeros_(model.bias)

with (
    pp.Context(comm, seed=seed) as ctx,
    pp.torch.DistributedOptimizer(sgd, ctx, method, scheduler=decay) as optimizer,
):
    if loaded is not None:
        optimizer.load_state_dict(loaded["optimizer"])
        tell(f"loaded at {first}")
    for step in range(first, last):
        optimizer.zero_grad()
        inputs = batch(step)
        torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        if step == killed and comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            optimizer.flush()  # collective: nothing is on its way, and all ranks are equal
            tell(f"saved at {step + 1}")
            with optimizer.away():
                if comm.rank == 0:
                    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**content, "steps": step + 1}, file.with_suffix(".new"))
                    file.with_suffix(".new").replace(file)  # never half a checkpoint
                comm.barrier()
tell("end")
