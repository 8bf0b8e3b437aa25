"""Check whether Triton kernels can run; choose their precision, tiles and launch options."""

import importlib.util
import os
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gumbeltree.extras import pip_command

WIDEST = 1024
"""Largest state width that the kernels support."""
CHAINED_FROM = (3, 5)
"""First Triton version with programmatic dependent launch."""
WIDE = 320
"""State width above which some products use larger tiles."""


def why_not_triton(device: torch.device | None = None) -> str | None:
    """Return why Triton is not available, or its kernels on a CUDA device, or None if they are."""
    if importlib.util.find_spec("triton"):
        return None if device is None else _trial(device)
    return f"Triton is missing: {pip_command('triton')}"


@cache
def _trial(device: torch.device) -> str | None:
    """Return why kernels cannot be compiled and run on a device, or None if they can."""
    try:
        from gumbeltree.device.find_rows_kernels import trial_kernel

        x = torch.zeros(1, device=device)
        with torch.cuda.device_of(x):
            trial_kernel[(1,)](x)
        return None if float(x) == 1 else "Triton kernels do not run on this device"
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return (
            f"Triton cannot compile kernels ({line}); install a C compiler and the Python headers"
        )


def why_not(weight: Tensor, by_name: bool = False) -> str | None:
    """Return why Triton kernels cannot run on the device of `weight`, or None if they can.

    Triton's interpreter, which runs kernels on a CPU, is so slow that it runs only `by_name`.
    """
    interpreted = by_name and os.environ.get("TRITON_INTERPRET") == "1"
    if not weight.is_cuda and not interpreted:
        return f"its kernels need a CUDA device, but the weights are on {weight.device}"
    if (reason := why_not_triton(weight.device if weight.is_cuda else None)) is not None:
        return reason
    if weight.dtype != torch.float32 and not (interpreted and weight.dtype == torch.float64):
        return f"its kernels need torch.float32 weights, got {weight.dtype}"
    return None


def check_kernels(weight: Tensor) -> None:
    """Raise an error if kernels that were asked for by name cannot run."""
    if (reason := why_not(weight, by_name=True)) is not None:
        raise NotImplementedError(
            f"impl='fused' is not available here: {reason}; use impl='auto' or 'exact'"
        )


def precision_of(device: str) -> str:
    """Return PyTorch's current precision of matrix products: ieee, tf32 or bf16."""
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16:
        return "bf16"
    return float32_products()


def float32_products() -> str:
    """Return PyTorch's current precision of float32 products: ieee or tf32."""
    # the older setting updates the newer one, but not vice versa
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if newer == "none":
        newer = torch.backends.fp32_precision  # type: ignore[attr-defined]
    if newer is not None:
        return "tf32" if newer == "tf32" else "ieee"
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def dot_precision(precision: str) -> str:
    """Return the `input_precision` of tl.dot, which has no effect on bfloat16 operands."""
    return "ieee" if precision == "bf16" else precision


def operand(x: Tensor, precision: str) -> Tensor:
    """Return `x` contiguous and in the dtype of the products."""
    return (x.bfloat16() if precision == "bf16" else x).contiguous()


def product(
    a: Tensor, b: Tensor, precision: str, out: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return a @ b + bias in the dtype of `a`, accumulated in float32 or wider.

    With bf16 the operands are rounded to bfloat16; otherwise PyTorch's setting decides between IEEE
    and TF32.
    """
    if precision != "bf16":
        return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)
    if a.device.type == "cuda":
        wide = torch.mm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    else:
        wide = a.bfloat16().float() @ b.bfloat16().float()
    return torch.add(wide, 0.0 if bias is None else bias, out=out)


def batched_product(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """Return the batched a @ b; see `product`."""
    if precision != "bf16":
        return torch.bmm(a, b)
    if a.device.type == "cuda":
        return torch.bmm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    return torch.bmm(a.bfloat16().float(), b.bfloat16().float())


def chain_options(x: Tensor, precision: str) -> dict[str, Any]:
    """Return the launch options of consecutive kernels on the device of `x`.

    From compute capability 9, kernels use programmatic dependent launch: they start and read their
    inputs while the previous kernel is still running (`kernel_math.join_chain`). The previous
    kernel must be a Triton kernel, because a CUDA graph does not support this after a memory copy.
    IEEE products occupy the multiprocessors, so programs launched early would only slow them down.
    """
    can = x.is_cuda and torch.version.cuda is not None and can_chain()
    if not can or precision == "ieee" or torch.cuda.get_device_capability(x.device) < (9, 0):
        return {"CHAIN": False}
    return {"CHAIN": True, "launch_pdl": True}


def can_chain() -> bool:
    """Return whether this version of Triton can chain kernels; its interpreter cannot."""
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return version >= CHAINED_FROM and os.environ.get("TRITON_INTERPRET") != "1"


class Tile(NamedTuple):
    """Tile sizes and launch options of one program of a matrix product."""

    BM: int
    """Rows (sentences)."""
    BN: int
    """Columns, or units with several columns each."""
    BK: int
    """Block size along the reduction."""
    warps: int
    stages: int
    """Depth of the software pipeline."""


def tile_for(
    tiles: Mapping[str, Tile], precision: str, x: Tensor, D: int = 0, columns: int = 1
) -> Tile:
    """Return the tile for a precision, with as many stages as fit into shared memory.

    Args:
        tiles: Tiles "tf32", "ieee" (without tensor cores, operands in registers) and optionally
            "wide", which replaces "tf32" for wide states.
        precision: Precision of the products.
        x: Any tensor on the device.
        D: Width of the states.
        columns: Columns per unit.
    """
    kind = "wide" if D > WIDE and "wide" in tiles else "tf32"
    tile = tiles["ieee" if precision == "ieee" else kind]
    if not x.is_cuda:
        return tile
    properties = torch.cuda.get_device_properties(x.device)
    room: int = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    width = 2 if precision == "bf16" else 4
    # rows are loaded in float32 and rounded to bfloat16 afterwards
    stage = (tile.BM * 4 + tile.BN * columns * width) * tile.BK
    # leave 2 KiB for the compiler
    return tile._replace(stages=max(1, min(tile.stages, (room - 2048) // stage)))
