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
