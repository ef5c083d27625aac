"""Training with PyTorch: an optimizer, a communication hook of DDP, and a backend.

All three make the gradients' allreduce a partial one, so that a slow rank does not stop the others:

- `DistributedOptimizer` wraps any optimizer of torch. It alone keeps replicas bit-identical with
  partial rounds, and it is the fastest. Prefer it.
- `partial_allreduce_hook`, with `HookState`, serves programs that already use DDP.
- ``dist.init_process_group("pypartial", init_method="mpi://")`` is a backend of torch.distributed
  on MPI, for programs that make process groups themselves. It is registered by importing this
  package.

The package needs torch. ``import pypartial`` does not load it.
"""

from __future__ import annotations

from ._version import check_torch

check_torch()

from .backend import new_group  # noqa: E402  torch is there from here on
from .hook import HookState, partial_allreduce_hook  # noqa: E402
from .optimizer import DistributedOptimizer  # noqa: E402

__all__ = ["DistributedOptimizer", "HookState", "new_group", "partial_allreduce_hook"]
