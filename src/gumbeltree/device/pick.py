"""Choice of the device that a command or a training run uses."""


def pick_device(name: str) -> str:
    """Return the device that `--device` selects: cpu, cuda, cuda:N, or auto (cuda if available)."""
    # imported on use, so that commands can show their help without torch
    import torch

    count = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if count else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ValueError(f"`--device` must be cpu, cuda, cuda:N or auto, got {name!r}")
    if kind == "cuda" and int(index or 0) >= count:
        raise ValueError(
            f"`--device {name}` is not available (CUDA devices found: {count}); pass --device auto"
        )
    return name
