"""Whether Triton kernels can run, and with which products."""

import importlib.util
import os
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

WIDEST = 1024
"""Units for which the kernels' tiles were made."""
CHAINED_FROM = (3, 5)
"""The first version of Triton whose kernels can wait for the one before."""
WIDE = 320
"""States of more units have tiles of their own in some products."""


def why_not_triton() -> str | None:
    """Return why there is no Triton, or None if there is."""
    return None if importlib.util.find_spec("triton") else "it needs Triton: pip install triton"


@cache
def _trial(device: torch.device) -> str | None:
    """Return why a kernel cannot be compiled and run on a device, or None if it can."""
    try:
        from gumbeltree.device.find_rows_kernels import trial_kernel

        x = torch.zeros(1, device=device)
        with torch.cuda.device_of(x):
            trial_kernel[(1,)](x)
        return None if float(x) == 1 else "Triton's kernels do not run on this device"
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return (
            f"Triton cannot make kernels here ({line}); it needs a C compiler and Python's headers"
        )


def why_not(weight: Tensor, by_name: bool = False) -> str | None:
    """Return why Triton kernels cannot run on the device of `weight`, or None if they can."""
    interpreted = by_name and os.environ.get("TRITON_INTERPRET") == "1"
    if not weight.is_cuda and not interpreted:
        return f"its kernels run on CUDA devices, the weights are on {weight.device}"
    if (reason := why_not_triton()) is not None:
        return reason
    if weight.is_cuda and (reason := _trial(weight.device)) is not None:
        return reason
    if weight.dtype != torch.float32 and not (interpreted and weight.dtype == torch.float64):
        return f"its states are torch.float32, the weights are {weight.dtype}"
    return None


def precision_of(device: str) -> str:
    """Return the precision of products that torch is set to: ieee, tf32 or bf16."""
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16:
        return "bf16"
    return float32_products()


def float32_products() -> str:
    """Return the precision of float32 products that torch is set to: ieee or tf32."""
    # the older interface sets the newer one, not the other way round
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if newer == "none":
        newer = torch.backends.fp32_precision  # type: ignore[attr-defined]
    if newer is not None:
        return "tf32" if newer == "tf32" else "ieee"
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


def chain_options(x: Tensor, precision: str) -> dict[str, Any]:
    """Return how kernels are launched that follow each other on the device of `x`.

    Where the device can (compute capability 9), a kernel's programs come and read what they can
    while the kernel before still runs (`kernel_math.join_chain`). The kernel before must be one of
    Triton's: in a CUDA graph, a copy of memory cannot be followed like that. IEEE products keep
    the multiprocessors busy, and programs that come early would be in their way.
    """
    can = x.is_cuda and torch.version.cuda is not None and can_chain()
    if not can or precision == "ieee" or torch.cuda.get_device_capability(x.device) < (9, 0):
        return {"CHAIN": False}
    return {"CHAIN": True, "launch_pdl": True}


def can_chain() -> bool:
    """Return whether this Triton makes kernels that can be chained; those it interprets cannot."""
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return version >= CHAINED_FROM and os.environ.get("TRITON_INTERPRET") != "1"


class Tile(NamedTuple):
    """What one program of a product works on, and how."""

    BM: int
    """Rows, that is sentences."""
    BN: int
    """Columns, or units where each has several columns."""
    BK: int
    """Summands at a time."""
    warps: int
    stages: int
    """Blocks of summands under way at a time."""


def tile_for(
    tiles: Mapping[str, Tile], precision: str, x: Tensor, D: int = 0, columns: int = 1
) -> Tile:
    """Return the tile for a precision, with no more stages than the device of `x` has room for.

    Args:
        tiles: under "tf32"; under "wide" where that differs for wide states; under "ieee", as IEEE
            products run without tensor cores and hold their operands in registers.
        precision: of the products.
        x: any tensor on the device.
        D: units of the states.
        columns: of each of the BN units.
    """
    kind = "wide" if D > WIDE and "wide" in tiles else "tf32"
    tile = tiles["ieee" if precision == "ieee" else kind]
    if not x.is_cuda:
        return tile
    properties = torch.cuda.get_device_properties(x.device)
    room: int = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    width = 2 if precision == "bf16" else 4
    # the rows are rounded to bfloat16 only after they were loaded
    stage = (tile.BM * 4 + tile.BN * columns * width) * tile.BK
    # the rest is for what the compiler needs besides
    return tile._replace(stages=max(1, min(tile.stages, (room - 2048) // stage)))
