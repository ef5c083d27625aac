"""Tells torch of the backend ``pypartial`` and of ``mpi://``, without loading the package.

torch calls `register` at the end of ``import torch``, in every program of an environment in which
the package is installed (entry point group ``torch.backends``). So this module is outside of the
package, whose import takes time, and what it registers loads the package when a process group is
made. It must never fail. What is wrong, such as a torch that is too old, is said then.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

NAME, SCHEME, DEVICES = "pypartial", "mpi", ("cpu", "cuda")


def register() -> None:
    """Make the backend and its rendezvous known to torch."""
    with suppress(Exception):
        import torch.distributed as dist

        if dist.is_available():
            named: Any = dist  # its types do not name all that is there
            named.Backend.register_backend(NAME, _create, extended_api=True, devices=list(DEVICES))
            named.register_rendezvous_handler(SCHEME, _rendezvous)


def _create(*arguments: Any) -> Any:
    from pypartial.torch.backend import create

    return create(*arguments)


def _rendezvous(*arguments: Any, **options: Any) -> Any:
    from pypartial.torch.rendezvous import rendezvous

    return rendezvous(*arguments, **options)
