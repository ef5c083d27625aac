"""The gradients of parameters in a flat vector, on their way to other ranks and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import ArgumentError, Error
from ..status import Status
from .accelerator import as_torch
from .flags import DeviceFlags, Flags, HostFlags
from .foreach import copy_each
from .layout import Layout, gradient_type

__all__ = ["Gradients"]


class Gradients:
    """A vector with the gradients of parameters, and the `Flags` of the parameters behind them.

    Between two calls ``p.grad`` of each parameter may be anything that PyTorch makes of it. A
    gradient that was accumulated in the view that `give` has set lies in the vector already, and
    is not copied.

    One that lay elsewhere is replaced by a view, and its memory is free when the optimizer makes
    its step. To copy the result there instead would keep ``p.grad`` the same tensor. That costs a
    copy and the memory of all gradients in each step, and a program that sets gradients to zero in
    place would never have them in the vector. But a program that goes on writing to the tensor that
    was there, as a captured CUDA graph does, writes to nothing. So `collect` refuses a view that
    was not written since `give` has put it in a tensor's place.

    The program may give ``p.grad`` other memory and leave it the same tensor: ``p.grad.data = ...``
    does, and so do ``model.double()`` and ``model.share_memory()``. So the tensors that it has are
    not those of this object, and it is their addresses that say whether a gradient lies in the
    vector.

    Parameters
    ----------
    layout : Layout
    vector : numpy.ndarray or torch.Tensor
        At least `length(layout)` elements of the layout's type, in the layout's home.
    rank : int
        This rank.
    others : sequence
        What `others` has returned for the layout.
    """

    def __init__(
        self, layout: Layout, vector: Any, rank: int, others: Sequence[torch.Tensor | None]
    ) -> None:
        self._layout = layout
        self._vector = vector
        self._look()
        self._addresses = [view.data_ptr() for view in self._views]
        part = vector[layout.size : self.length(layout)]
        is_device = layout.home.is_device
        self._flags: Flags = DeviceFlags(part, rank) if is_device else HostFlags(part)
        # What p.grad becomes: a view of its own, or a tensor where gradients have another type.
        self._is_view = [other is None for other in others]
        self._own = [
            view.detach() if other is None else other
            for view, other in zip(self._views, others, strict=True)
        ]
        # Whether the program makes gradients there; it made the last one that was collected.
        self._is_in_use = [False] * len(self._own)
        self._unscaled = self._whole._version  # torch's count of writes, before it was multiplied
        self.settle()

    @staticmethod
    def length(layout: Layout) -> int:
        """Return how many elements the vector needs."""
        return layout.size + len(layout.places)

    @staticmethod
    def others(layout: Layout) -> list[torch.Tensor | None]:
        """Allocate the gradients that are no views, having another type; None for those that are.

        The vector is not needed for it: ranks can agree before they make what belongs to it.
        """
        return [
            None
            if gradient_type(p) == as_torch(layout.dtype)
            else torch.empty_like(p, dtype=gradient_type(p), requires_grad=False)
            for p in layout.parameters
        ]

    def _look(self) -> None:
        """Make the views of the vector."""
        self._whole = self._layout.home.view(self._vector)
        self._views = self._layout.views(self._whole)

    def _find(self) -> None:
        """Make the views anew if they are not where the vector is.

        ``share_memory_()`` of one tensor moves all that share its memory, and NumPy's array stays.
        """
        if any(map(_lies_elsewhere, self._views, self._addresses)):
            self._look()

    @torch.no_grad()
    def collect(self, factor: float | None = None) -> None:
        """Write the parameters' gradients, multiplied by a factor, and their flags to the vector.

        Parameters
        ----------
        factor : float, optional
            1 if None.

        Raises
        ------
        ArgumentError
            If a gradient is sparse; nothing was written.
        Error
            If a gradient is one that was applied, and nobody has written since. Nothing was
            written.
        """
        grads = [p.grad for p in self._layout.parameters]
        for place, grad in zip(self._layout.places, grads, strict=True):
            if grad is not None and grad.layout != torch.strided:
                raise ArgumentError(
                    f"the gradient of parameter {place.name} is sparse ({grad.layout}); only dense "
                    "gradients are supported: make the layer with sparse=False"
                )
        self._check_written(grads)
        self._find()
        absent, to, of = [], [], []
        given = zip(self._views, self._addresses, self._own, grads, strict=True)
        for view, address, own, grad in given:
            if grad is None:
                absent.append(view)
            elif grad is not own or _lies_elsewhere(own, address):
                to.append(view)
                of.append(grad)
        if absent:
            torch._foreach_zero_(absent)
        copy_each(to, of)
        # Before it multiplies, which an exception may end: `take_back` sees whether it has.
        self._unscaled = self._whole._version
        self._factor = 1.0 if factor is None else factor
        if self._factor != 1:
            self._whole[: self._layout.size].mul_(self._factor)
        self._flags.write([grad is not None for grad in grads])

    def _check_written(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Raise if a gradient is still what `give` has set, as far as torch counts what is written.

        Once somebody has written it, it is known that gradients are made there. So a graph that was
        captured with it may write it, which torch does not count.
        """
        written = self._versions()
        for number, (grad, own) in enumerate(zip(grads, self._own, strict=True)):
            if grad is not own or self._has_other_memory(number):
                self._is_in_use[number] &= grad is None
            elif written[number] != self._applied[number]:
                self._is_in_use[number] = True
            elif not self._is_in_use[number]:
                raise Error(
                    f"the gradient of parameter {self._layout.places[number].name} was applied by "
                    "the last step(), and no backward pass has written it since: to contribute it "
                    "would count it twice. Call zero_grad() before a step without a backward "
                    "pass. If a CUDA graph, or code of your own, writes gradients to tensors that "
                    "step() has replaced, have it write to p.grad: zero_grad(set_to_none=False) "
                    "behind the first step, and then capture the graph"
                )

    def keep(self) -> None:
        """Keep gradients that `give` drops until the current stream has read them."""
        for p, own in zip(self._layout.parameters, self._own, strict=True):
            if p.grad is not None and p.grad is not own:
                self._layout.home.keep(p.grad)

    def settle(self) -> None:
        """Take the gradients as they are now for applied: an optimizer's step has read them."""
        self._factor = 1.0  # that the gradients in the vector have been multiplied by
        self._applied = self._versions()
        # Kept, so that no other memory has their place; share_memory() moves what is in them.
        self._storages = [one.untyped_storage() for one in self._own]

    def _has_other_memory(self, number: int) -> bool:
        """Whether the program has given the gradient other memory since, as `p.grad.data = ...`."""
        now, then = self._own[number].untyped_storage(), self._storages[number]
        return bool(now._cdata != then._cdata)

    @property
    def is_waiting(self) -> bool:
        """Whether backward has made a gradient since the last step that nobody collected."""
        has_changed = self._versions() != self._applied
        has_changed |= any(map(self._has_other_memory, range(len(self._own))))
        given = zip(self._layout.parameters, self._own, strict=True)
        grads = [
            p.grad for p, own in given if p.grad is not None and (has_changed or p.grad is not own)
        ]
        # What backward has made, or added in place; or zero_grad() has set to zero.
        return any(grad.layout != torch.strided or bool(grad.any()) for grad in grads)

    def _versions(self) -> list[int]:
        """Return how often torch has written the gradients; the views count together."""
        return [one._version for one in self._own]

    @property
    def are_there(self) -> bool:
        """Whether any parameter has a gradient."""
        return any(p.grad is not None for p in self._layout.parameters)

    @torch.no_grad()
    def take_back(self) -> None:
        """Divide by the factor of `collect` again, if nothing was contributed and applied since."""
        if self._factor != 1 and self._whole._version != self._unscaled:
            self._whole[: self._layout.size].div_(self._factor)
            self._factor = 1.0
            given = zip(
                *(self._layout.parameters, self._own, self._views, self._is_view), strict=True
            )
            for p, own, view, is_view in given:
                if p.grad is own and not is_view:  # `give` has set it, multiplied
                    own.copy_(view)

    def expect_others(self) -> None:
        """Take the gradients for applied, and refuse them until they are known to be written."""
        self.settle()
        self._is_in_use = [False] * len(self._own)

    def note_written(self) -> None:
        """Note that the program has written the gradients, though torch may not count it.

        It does not count what ``torch._foreach_zero_`` writes under a ``TorchDispatchMode``.
        """
        self._applied = [-1] * len(self._own)

    def skip(self) -> None:
        """Forget the gradients: zeros are contributed in place of them."""
        self.forget()
        self._flags.lack()

    def forget(self) -> None:
        """Set the parameters' gradients to None: other calls have overwritten the vector."""
        for p in self._layout.parameters:
            p.grad = None

    def clear(self) -> None:
        """Write zeros: no gradient, and no flag."""
        self._vector[: self.length(self._layout)] = 0
        self._flags.lack()

    def read(self, status: Status | None) -> Sequence[float]:
        """Return the flags of what is in the vector now; see `Flags.read`."""
        return self._flags.read(status)

    @torch.no_grad()
    def give(self, flags: Sequence[float]) -> None:
        """Make what is in the vector the gradients of the parameters: views of it.

        A parameter for which no rank had a gradient gets None.
        """
        self._find()
        given = zip(self._layout.parameters, self._views, self._addresses, flags, strict=True)
        for number, (p, view, address, flag) in enumerate(given):
            if not flag:
                p.grad = None
                continue
            own = self._own[number]
            if not self._is_view[number]:
                own.copy_(view)
                self._layout.home.keep(own)  # the optimizer's step reads it, on the current stream
            elif _lies_elsewhere(own, address):
                own = self._own[number] = view.detach()
            if p.grad is not own:
                p.grad = own


def _lies_elsewhere(tensor: torch.Tensor, address: int) -> bool:
    return tensor.data_ptr() != address
