"""Operations on lists of tensors, a kernel for many of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["copy_each"]


def copy_each(to: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> None:
    """Copy each of some tensors to another one, of any type.

    The lists that torch is given have one type each. Some versions of its ``_foreach_copy_`` take
    the type of the first destination for that of all, on a device (pytorch/pytorch#173383). Others
    copy one by one where types differ.
    """
    groups: dict[tuple[torch.dtype, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]]
    groups = {}
    for one, other in zip(to, of, strict=True):
        pair = groups.setdefault((one.dtype, other.dtype), ([], []))
        pair[0].append(one)
        pair[1].append(other)
    for destinations, sources in groups.values():
        torch._foreach_copy_(destinations, sources)
