"""How the gradients, or the model, get from rank to rank, if they are on a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .._device_request import DeviceRequest
from .._names import DEVICE_PATH
from ..errors import ArgumentError

if TYPE_CHECKING:
    from .._handle import Request
    from .accelerator import Home

__all__ = ["check_path", "path_in_use"]


def check_path(path: str, home: Home, what: str = "models") -> None:
    """Raise unless this is a `device_path`, and one for what is in this place.

    Parameters
    ----------
    path : str
    home : Home
    what : str, optional
        What is there, in the plural.
    """
    DEVICE_PATH.check(path)
    if path != "auto" and not home.is_device:
        raise ArgumentError(
            f"device_path={path!r} is for {what} on a CUDA device, and here they are on "
            f"{home.name}: leave it out"
        )


def path_in_use(requests: Iterable[Request]) -> tuple[str | None, str]:
    """Return the `device_path` of requests, and why it is not the one that was asked for.

    None and an empty text if their buffers are the host's. If requests differ, all their paths are
    named.
    """
    found = [request for request in requests if isinstance(request, DeviceRequest)]
    paths = dict.fromkeys(request.device_path for request in found)
    reasons = dict.fromkeys(request.device_path_reason for request in found)
    return ", ".join(paths) or None, "; ".join(filter(None, reasons))
