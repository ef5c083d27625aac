"""What a checkpoint keeps of a worker, and how a run goes on from one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from .._arguments import INT64_MAX, in_range
from ..errors import ArgumentError, Error

if TYPE_CHECKING:
    from ..context import Context
    from .base import Method

__all__ = ["lacking", "rounds_of", "worker_state"]


def worker_state(
    method: Method, ctx: Context, *, rounds: int, steps: int, newest: int
) -> dict[str, Any]:
    """Return ``method``, ``rounds`` and ``seed``, the same on all ranks behind a meeting.

    Parameters
    ----------
    method : Method
    ctx : Context
    rounds : int
        How many updates were applied.
    steps : int
        How many of this rank's steps have come behind the last meeting of all ranks.
    newest : int
        The round, or group, of that meeting; -1 if there was none.

    Raises
    ------
    Error
        If there are such steps.
    """
    if steps:
        raise Error(
            f"{steps} steps were made since the last flush, and a checkpoint would lose rounds: "
            "call flush() on all ranks before"
        )
    return {"method": repr(method), "rounds": rounds, "seed": _next_seed(ctx.seed, newest + 1)}


def _next_seed(seed: int, made: int) -> int:
    """Return the seed of a context that goes on with new draws behind so many rounds."""
    if not made:
        return seed
    digest = hashlib.blake2b(f"{seed} {made}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def rounds_of(state: Any, method: Method, *, has_begun: bool) -> int:
    """Return the rounds of a state that `worker_state` has returned; raise unless it fits.

    Parameters
    ----------
    state : dict
    method : Method
        The one that goes on.
    has_begun : bool
        Whether its worker has made a step, which is too late.
    """
    if has_begun:
        raise Error("load_state_dict comes before the first step")
    if not isinstance(state, dict) or not {"method", "rounds", "seed"} <= state.keys():
        raise ArgumentError(f"state must be what state_dict() returned, not {state!r}")
    if state["method"] != repr(method):
        raise ArgumentError(f"the state is of {state['method']}, and this worker has {method!r}")
    return in_range("rounds", state["rounds"], 0, INT64_MAX)


def lacking(error: BaseException, round: int, what: str = "an update raised") -> str:
    """Return why nothing goes on behind an update that has raised.

    Its round is over, and cannot be applied once more. `what`: what else has ended it.
    """
    return (
        f"{what} {error!r}, so that the model of this rank lacks round {round}: end the "
        "program, and go on from a checkpoint"
    )
