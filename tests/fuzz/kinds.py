"""The kinds of handles of scenarios beside partial allreduces and P-Reduce, by their options."""

from __future__ import annotations

from .gossip_kind import GossipKind
from .kind import Kind
from .queue_kind import QueueKind

__all__ = ["KINDS"]

KINDS: dict[type, Kind] = {kind.options: kind for kind in (GossipKind(), QueueKind())}
