"""The user's folder for what the package can make anew."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder, which need not exist; None if the user has no home directory."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # a relative one is to be ignored (XDG Base Directory)
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "pypartial") if os.path.isabs(cache) else None
