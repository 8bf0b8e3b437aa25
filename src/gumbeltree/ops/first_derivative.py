"""Refuse second derivatives with a reason, where a gradient is written by hand."""

from typing import Any

from torch import Tensor
from torch.autograd.function import Function


class OnlyFirst(Function):
    """Pass gradients through; refuse, with the reason, to differentiate them again.

    Called as ``OnlyFirst.apply(name, count, *tensors)``: the first `count` tensors are the
    gradients, the others what they were computed from.
    """

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients."""
        ctx.name = name
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        """Raise."""
        raise RuntimeError(
            f"the implementation {ctx.name!r} has first derivatives only, and its gradient was "
            "differentiated again (double backward); build the encoder with impl='reference'"
        )
