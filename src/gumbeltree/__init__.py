"""Gumbel Tree-LSTM: sentence vectors over trees learned from plain text."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gumbeltree.config import EncoderConfig, HeadConfig, ModelConfig, load_recipe, with_settings
    from gumbeltree.data.compile import prepare
    from gumbeltree.encoders.gumbel_tree import GumbelTreeEncoder
    from gumbeltree.heads.classes import Prediction
    from gumbeltree.model import SentenceModel
    from gumbeltree.packaged import pretrained_models
    from gumbeltree.states import Encoding, NodeState
    from gumbeltree.store import load, save
    from gumbeltree.training.loop import train
    from gumbeltree.tree import Tree

# public names and their homes, imported on first use: `gumbeltree --help` need not wait for torch
_HOMES = {
    "Encoding": "states",
    "EncoderConfig": "config",
    "GumbelTreeEncoder": "encoders.gumbel_tree",
    "HeadConfig": "config",
    "ModelConfig": "config",
    "NodeState": "states",
    "Prediction": "heads.classes",
    "SentenceModel": "model",
    "Tree": "tree",
    "load": "store",
    "load_recipe": "config",
    "prepare": "data.compile",
    "pretrained_models": "packaged",
    "save": "store",
    "train": "training.loop",
    "with_settings": "config",
}

__all__ = [
    "EncoderConfig",
    "Encoding",
    "GumbelTreeEncoder",
    "HeadConfig",
    "ModelConfig",
    "NodeState",
    "Prediction",
    "SentenceModel",
    "Tree",
    "__version__",
    "load",
    "load_recipe",
    "prepare",
    "pretrained_models",
    "save",
    "train",
    "with_settings",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gumbeltree' has no attribute {name!r}")
    return getattr(import_module(f"gumbeltree.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
