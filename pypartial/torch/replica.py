"""A rank's replica of a model whose rounds are all applied alike: what else has written to it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from .._native import warn
from ..methods.meeting import Meeting
from .state import copy_state, parameters_of
from .tensors import copy, digest

__all__ = ["Replica", "spell"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in the text of a function, or of an object
_PLAIN = (int, float, str, np.generic, type(None))

_SET = (
    "hyperparameters were set between rounds, which ranks apply at different steps of theirs: give "
    "before_round=, or a scheduler by scheduler="
)
_WRITTEN = (
    "parameters were written after step(): write them in a step_post_hook of the wrapped "
    "optimizer, which every round calls"
)
_UNSEEN = "nothing was seen; the optimizer may not be deterministic, or .data was written"


class Replica:
    """Parameters, state and hyperparameters of an optimizer, which ranks should have alike.

    So they do, unless a program changes them between rounds: ranks are at different ones then.

    Parameters
    ----------
    meeting : Meeting
    optimizer : torch.optim.Optimizer
    rank : int
    """

    def __init__(self, meeting: Meeting, optimizer: torch.optim.Optimizer, rank: int) -> None:
        self._meeting, self._optimizer, self._rank = meeting, optimizer, rank
        self._parameters = parameters_of(optimizer)
        self._seen: set[str] = set()
        self.remember()

    def remember(self) -> None:
        """Note what is there, after a round. Local."""
        self._versions = [p._version for p in self._parameters]
        self._values = self._hyperparameters()

    def notice(self) -> None:
        """See what has changed since then. Local."""
        if [p._version for p in self._parameters] != self._versions:
            self._seen.add(_WRITTEN)
        now = self._hyperparameters()
        if len(now) != len(self._values) or any(map(_has_changed, self._values, now)):
            self._seen.add(_SET)

    def _hyperparameters(self) -> list[tuple[int, str, Any, int]]:
        """Return each with the number of its group, its name, and how often torch has written it.

        Of numbers, tuples of them, texts and tensors only: others cannot be compared, or copied.
        """
        return [
            (number, key, value, getattr(value, "_version", 0))
            for number, group in enumerate(self._optimizer.param_groups)
            for key, value in group.items()
            if isinstance(value, (*_PLAIN, torch.Tensor))
            or (type(value) is tuple and all(isinstance(one, _PLAIN) for one in value))
        ]

    def settle(self) -> None:
        """Give all ranks rank 0's where they differ, and warn on all. Collective, blocking.

        All ranks have applied the same rounds.
        """
        self.notice()
        texts = [(number, key, spell(value)) for number, key, value, _ in self._hyperparameters()]
        told = self._meeting.gather(([digest(p) for p in self._parameters], texts, self._seen))
        by_parameter = zip(self._parameters, *(digests for digests, _, _ in told), strict=True)
        parted = [p for p, *theirs in by_parameter if len(set(theirs)) > 1]
        copy(self._meeting, parted)
        differing = ["parameters"] if parted else []
        if copy_state(self._meeting, self._optimizer, self._rank):
            differing.append("optimizer states")
        if any(theirs != told[0][1] for _, theirs, _ in told):
            self._copy_hyperparameters()
            differing.append("hyperparameters")
        self._seen = set()
        self.remember()
        if not differing:
            return
        seen = [
            f"{what} (on ranks {[rank for rank, it in enumerate(told) if what in it[2]]})"
            for what in (_SET, _WRITTEN)
            if any(what in it[2] for it in told)
        ]
        text = f"the {', '.join(differing)} of the ranks differed, and are rank 0's from here on. "
        warn(f"{text}What was seen: {'; '.join(seen) or _UNSEEN}", UserWarning)

    @torch.no_grad()
    def _copy_hyperparameters(self) -> None:
        own = self._hyperparameters() if self._rank == 0 else []
        told = self._meeting.gather([(number, key, _on_host(it)) for number, key, it, _ in own])
        for number, key, value in told[0]:
            group = self._optimizer.param_groups[number]
            if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
                group[key].copy_(value)
            else:
                group[key] = value


def spell(value: object) -> str:
    """Return the text of a hyperparameter.

    It has no addresses: each process has its own. Nor have tensors their device, but all digits.
    """
    if isinstance(value, torch.Tensor):
        return f"{value.tolist()} of {value.dtype}"
    if type(value) in (list, tuple):
        return f"({', '.join(map(spell, value))})"  # type: ignore[call-overload]
    return _ADDRESS.sub("", str(value))


def _has_changed(before: tuple[int, str, Any, int], now: tuple[int, str, Any, int]) -> bool:
    (*_, old, times), (*_, new, now_times) = before, now
    return times != now_times or (old is not new and spell(old) != spell(new))


def _on_host(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
