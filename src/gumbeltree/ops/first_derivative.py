"""Raise a clear error on double backward through a hand-written gradient."""

from typing import Any

from torch import Tensor
from torch.autograd.function import Function


class FirstDerivativeOnly(Function):
    """Pass gradients through unchanged; raise an error if they are differentiated again.

    Call it as ``FirstDerivativeOnly.apply(name, count, *tensors)``: the first `count` tensors are
    the gradients, the others the tensors that they were computed from.
    """

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients."""
        ctx.name = name
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        """Raise the error."""
        raise RuntimeError(
            f"the implementation {ctx.name!r} does not support second derivatives (double "
            "backward); build the encoder with impl='reference'"
        )
