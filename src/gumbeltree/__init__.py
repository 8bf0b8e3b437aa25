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
    from gumbeltree.model import ModelOutput, SentenceModel, save
    from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
    from gumbeltree.nn.encoders.padded import PaddedEncoder
    from gumbeltree.packaged import pretrained_models
    from gumbeltree.runtimes import load
    from gumbeltree.sharded import open_vectors
    from gumbeltree.states import Draw, Encoding, NodeState
    from gumbeltree.threads import get_threads, set_threads
    from gumbeltree.training.loop import train
    from gumbeltree.training.text import train_text
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
    "PaddedEncoder": "nn.encoders.padded",
    "Prediction": "answers",
    "SentenceModel": "model",
    "Sentences": "layout",
    "Tree": "tree",
    "evaluate": "evaluation",
    "get_threads": "threads",
    "load": "runtimes",
    "load_recipe": "config",
    "open_vectors": "sharded",
    "prepare": "data.compile",
    "pretrained_models": "packaged",
    "save": "model",
    "set_threads": "threads",
    "train": "training.loop",
    "train_text": "training.text",
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
    "PaddedEncoder",
    "Prediction",
    "SentenceModel",
    "Sentences",
    "Tree",
    "__version__",
    "evaluate",
    "get_threads",
    "load",
    "load_recipe",
    "open_vectors",
    "prepare",
    "pretrained_models",
    "save",
    "set_threads",
    "train",
    "train_text",
    "with_settings",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gumbeltree' has no attribute {name!r}")
    try:
        return getattr(import_module(f"gumbeltree.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        from gumbeltree.extras import TORCH_PACKAGES, torch_is_missing

        if error.name not in TORCH_PACKAGES:
            raise
        # an AttributeError would be reported as a missing name
        raise ImportError(torch_is_missing(f"gumbeltree.{name}")) from error


def __dir__() -> list[str]:
    return __all__
