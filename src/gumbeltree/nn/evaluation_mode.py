"""Copies of modules in evaluation mode that leave the mode of the original unchanged."""

from typing import TypeVar, cast

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def in_evaluation_mode(module: Module) -> Module:
    """Return a module in evaluation mode that shares every tensor with `module`.

    `module` itself does not change, so other threads can train or use it meanwhile. Code compiled
    by `torch.compile` is bound to the original and its mode, so the copy runs uncompiled.
    """
    views: dict[int, nn.Module] = {}

    def view(original: nn.Module) -> nn.Module:
        original = getattr(original, "_orig_mod", original)
        if id(original) not in views:
            copy = views[id(original)] = object.__new__(type(original))
            children = {
                # empty containers are false as well
                name: None if child is None else view(child)
                for name, child in original._modules.items()
            }
            attributes = {
                name: value
                for name, value in original.__dict__.items()
                if not hasattr(value, "_torchdynamo_orig_callable")
            }
            copy.__dict__ = {
                **attributes,
                "_modules": children,
                "_compiled_call_impl": None,
                "training": False,
            }
        return views[id(original)]

    return cast("Module", view(module))
