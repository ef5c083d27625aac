"""Which torch the package works with."""

from __future__ import annotations

import re

OLDEST = (2, 7)  # in 2.6 destroy_process_group does not tell a backend, and FSDP2 fails on CPUs
_INSTALL = "pip install 'torch>={}.{}'".format(*OLDEST)


def check_torch() -> None:
    """Raise ImportError, with the command that helps, if torch is missing or too old."""
    try:
        import torch

        version = torch.__version__
    except (ImportError, AttributeError) as error:  # any folder called torch can be imported
        raise ImportError(f"pypartial.torch needs PyTorch: {_INSTALL}") from error
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and tuple(map(int, numbers.groups())) < OLDEST:
        raise ImportError(
            f"pypartial.torch needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, and this is "
            f"{version}: {_INSTALL}"
        )
