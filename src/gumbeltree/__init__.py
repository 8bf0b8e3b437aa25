"""Gumbel Tree-LSTM: sentence encoders that learn their own tree structure."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gumbeltree.answers import Prediction
    from gumbeltree.config import EncoderConfig, HeadConfig, ModelConfig, load_recipe, with_settings
    from gumbeltree.data.compile import prepare
    from gumbeltree.encoded import Keep
    from gumbeltree.evaluation import evaluate
    from gumbeltree.layout import Sentences
    from gumbeltree.model import ModelOutput, SentenceModel, load, save
    from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
    from gumbeltree.packaged import pretrained_models
    from gumbeltree.states import Draw, Encoding, NodeState
    from gumbeltree.training.loop import train
    from gumbeltree.tree import Tree

# public names and their modules, imported on first use so that `gumbeltree --help` is fast
_MODULES = {
    "Draw": "states",
    "Encoding": "states",
    "EncoderConfig": "config",
    "GumbelTreeEncoder": "nn.encoders.gumbel_tree",
    "HeadConfig": "config",
    "Keep": "encoded",
    "ModelConfig": "config",
    "ModelOutput": "model",
    "NodeState": "states",
    "Prediction": "answers",
    "SentenceModel": "model",
    "Sentences": "layout",
    "Tree": "tree",
    "evaluate": "evaluation",
    "load": "model",
    "load_recipe": "config",
    "prepare": "data.compile",
    "pretrained_models": "packaged",
    "save": "model",
    "train": "training.loop",
    "with_settings": "config",
}

__all__ = [
    "Draw",
    "EncoderConfig",
    "Encoding",
    "GumbelTreeEncoder",
    "HeadConfig",
    "Keep",
    "ModelConfig",
    "ModelOutput",
    "NodeState",
    "Prediction",
    "SentenceModel",
    "Sentences",
    "Tree",
    "__version__",
    "evaluate",
    "load",
    "load_recipe",
    "prepare",
    "pretrained_models",
    "save",
    "train",
    "with_settings",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gumbeltree' has no attribute {name!r}")
    return getattr(import_module(f"gumbeltree.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
