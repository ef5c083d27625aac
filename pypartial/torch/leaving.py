"""What a rank does about its partial groups while it is inside a blocking call of the backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["Members", "blocking", "begins", "ends"]

Members = frozenset[int]  # ranks of torch's world

# The contexts of this process's partial groups.
_contexts: dict[Context, Members] = {}


def begins(ctx: Context, members: Members) -> None:
    """Note a partial group that has been made."""
    _contexts[ctx] = members


def ends(ctx: Context) -> None:
    """Forget a partial group."""
    _contexts.pop(ctx, None)


@contextmanager
def blocking(
    members: Members, besides: Context | None = None, *, meets: bool = True
) -> Iterator[None]:
    """Leave partial groups while this rank waits for other ranks.

    Without it, a rank that waits here might hold up a round of a partial group that another rank
    waits for, before that one comes here. A group all of whose ranks make the call is left for the
    time of the call. Of the others this rank says that it has left, as if its patience had run out;
    it is back with its next all_reduce there.

    Parameters
    ----------
    members : frozenset of int
        The ranks that make this call, as far as this rank can know: none for a send or a receive.
    besides : Context, optional
        Not this one: the call is one of its own collective calls.
    meets : bool
        Whether no rank comes out of the call before all ranks have begun it. False: the ranks of a
        group that is left for the call wait for each other before they come back. For the rounds
        count a rank inside as back when another rank has come out. It may still wait for a third
        one, which makes rounds first: a broadcast is over for its root at once.
    """
    left = []
    with ExitStack() as stack:
        for ctx, ranks in _contexts.items():
            if ctx is besides:
                continue
            if ranks <= members:
                stack.enter_context(ctx.away())
                left.append(ctx)
            else:
                ctx._step_aside()
        yield
        if not meets:
            for ctx in left:
                ctx.comm.Barrier()
