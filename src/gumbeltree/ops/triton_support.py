"""Whether Triton kernels can run, and with which products."""

import importlib.util
import os

import torch
from torch import Tensor

WIDEST = 1024
"""Units for which the kernels' tiles were made."""


def why_not(weight: Tensor, by_name: bool = False) -> str | None:
    """Return why Triton kernels cannot run on the device of `weight`, or None if they can."""
    interpreted = by_name and os.environ.get("TRITON_INTERPRET") == "1"
    if not weight.is_cuda and not interpreted:
        return f"its kernels run on CUDA devices, the weights are on {weight.device}"
    if importlib.util.find_spec("triton") is None:
        return "it needs Triton: pip install triton"
    if weight.dtype != torch.float32 and not (interpreted and weight.dtype == torch.float64):
        return f"its states are torch.float32, the weights are {weight.dtype}"
    return None


def precision_of(device: str) -> str:
    """Return the precision of products that torch is set to: ieee, tf32 or bf16."""
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16:
        return "bf16"
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def dot_precision(precision: str) -> str:
    """Return what tl.dot is told; bfloat16 operands have only one way to be multiplied."""
    return "ieee" if precision == "bf16" else precision


def operand(x: Tensor, precision: str) -> Tensor:
    """Return `x` in the type of the products, its rows one after the other."""
    return (x.bfloat16() if precision == "bf16" else x).contiguous()


def product(
    a: Tensor, b: Tensor, precision: str, out: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return a @ b, and `bias` added to each row, as wide as `a`; sums are in float32 at least.

    IEEE or TF32, as torch is set, or the operands rounded to bfloat16.
    """
    if precision != "bf16":
        return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)
    if a.device.type == "cuda":
        wide = torch.mm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    else:
        wide = a.bfloat16().float() @ b.bfloat16().float()
    return torch.add(wide, 0.0 if bias is None else bias, out=out)


def batched_product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """Return a @ b for each pair of matrices, as `product` does."""
    if precision != "bf16":
        return torch.bmm(a, b)
    if a.device.type == "cuda":
        return torch.bmm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    return torch.bmm(a.bfloat16().float(), b.bfloat16().float())
