"""Load a model with a runtime: torch, or NumPy, which is smaller and starts faster."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gumbeltree.extras import has_nvidia_driver, has_torch, torch_is_missing

if TYPE_CHECKING:
    from gumbeltree.text_model import TextModel

RUNTIMES = ("auto", "numpy", "torch")


def load(folder: str | Path, device: str | None = None, runtime: str = "auto") -> "TextModel":
    """Load a model in evaluation mode.

    With torch installed, the model is a `SentenceModel`, a torch module. Without it, the NumPy
    runtime provides `encode`, `parse` and `predict` with the same results. It computes models in
    half precision in float32; `load(folder).float()` does the same with torch.

    Args:
        folder: a folder written by `save`, the folder of a run, the name of a packaged model, or
            "hub:org/name[@revision]".
        device: device of a torch model; "cpu" by default.
        runtime: "torch", "numpy", or "auto" for torch if it is installed.

    Raises:
        ValueError: If settings and weights do not match, or weights are NaN or infinite.
    """
    check_runtime(runtime)
    if runtime == "auto":
        runtime = "torch" if device not in (None, "cpu") or has_torch() else "numpy"
    if runtime == "numpy":
        if device not in (None, "cpu"):
            raise ValueError(f"the NumPy runtime computes on the CPU, not on {device}")
        from gumbeltree.light.model import load as load_light

        return load_light(folder)
    if not has_torch():
        raise ImportError(torch_is_missing("this model or device"))
    from gumbeltree.model import load as load_torch

    return load_torch(folder, device or "cpu")


def load_for_use(name: str, device: str = "auto", runtime: str = "auto") -> "TextModel":
    """Load the model of a command.

    On a CPU, "auto" selects NumPy, which starts much faster than torch, unless a part of the model
    exists only in torch.

    Args:
        name: see `load`.
        device: cpu, cuda, cuda:N, or auto for a CUDA device if there is one.
        runtime: auto, numpy or torch.
    """
    check_choice(device, runtime)
    from gumbeltree.light.model import is_light
    from gumbeltree.light.model import load as load_light
    from gumbeltree.store import find_model, model_config

    if runtime == "auto":
        on_cpu = device == "cpu" or (device == "auto" and not (has_torch() and has_nvidia_driver()))
        if on_cpu and (not has_torch() or is_light(model_config(find_model(name)))):
            return load_light(name)
    elif runtime == "numpy":
        return load_light(name)
    from gumbeltree.device.pick import pick_device

    return load(name, pick_device(device), "torch")


def check_choice(device: str, runtime: str) -> None:
    """Raise unless `--device` and `--runtime` have valid values that can be combined."""
    check_runtime(runtime)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ValueError(f"`--device` must be cpu, cuda, cuda:N or auto, got {device!r}")
    if runtime == "numpy" and device.startswith("cuda"):
        raise ValueError(f"--runtime numpy computes on the CPU; omit --device {device}")


def check_runtime(runtime: str) -> None:
    """Raise unless a runtime has this name."""
    if runtime not in RUNTIMES:
        raise ValueError(f"the runtime must be one of {', '.join(RUNTIMES)}, got {runtime!r}")
