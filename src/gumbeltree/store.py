"""Model folders: config.json, model.safetensors, tokenizer.json. Loading runs no code from them."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from gumbeltree import __version__
from gumbeltree.config import ModelConfig, from_dict
from gumbeltree.model import SentenceModel

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


def save(
    model: SentenceModel, folder: str | Path, provenance: dict[str, Any] | None = None
) -> None:
    """Write a model folder; an older model in it is replaced file by file, each at once.

    Args:
        model: what to save.
        folder: made if absent; refused if it holds something that is no model.
        provenance: anything JSON can hold about where the weights come from.
    """
    folder = Path(folder)
    in_use = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if in_use and not (folder / CONFIG).is_file():
        raise FileExistsError(
            f"{folder} exists and is no model folder (no {CONFIG} in it); name another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "format": "gumbeltree",
        "format_version": 1,
        "gumbeltree_version": __version__,
        "model": dataclasses.asdict(model.config),
        "provenance": provenance or {},
    }
    weights = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    _replace(folder / WEIGHTS, lambda path: save_file(weights, path))
    _replace(folder / TOKENIZER, lambda path: model.tokenizer.save(str(path)))
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    _replace(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _replace(path: Path, write: Any) -> None:
    """Write beside `path`, then move it there in one step."""
    temporary = path.with_name(path.name + ".part")
    write(temporary)
    os.replace(temporary, path)


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a model folder, checked as far as its outermost keys."""
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is no model folder: it has no {CONFIG}; make one with `gumbeltree demo` or "
            "`gumbeltree import-reference`"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict) or config.get("format") != "gumbeltree":
        raise ValueError(f'{path} is not a gumbeltree model: expected "format": "gumbeltree"')
    if config.get("format_version") != 1:
        raise ValueError(
            f"{path} has format version {config.get('format_version')!r}, this gumbeltree "
            f"({__version__}) reads version 1; install a newer one"
        )
    return config


def load(folder: str | Path, device: str | torch.device = "cpu") -> SentenceModel:
    """Load a model folder, strictly, in evaluation mode.

    Args:
        folder: as written by `save`.
        device: where its weights go.
    """
    folder = Path(folder)
    config: ModelConfig = from_dict(ModelConfig, read_config(folder).get("model"), "model")
    for name in (WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is incomplete: it has no {name}; copy it whole")
    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:
        raise ValueError(f"{folder / TOKENIZER} is not a tokenizer: {error}") from error
    try:
        weights = load_file(folder / WEIGHTS)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged or cut short: {error}") from error
    model = SentenceModel(config, tokenizer)
    check_fit(model.state_dict(), weights, str(folder / WEIGHTS))
    model.load_state_dict(weights)
    return model.to(device).eval()


def check_fit(expected: dict[str, Tensor], found: dict[str, Tensor], source: str) -> None:
    """Raise unless both hold the same names with the same shapes."""
    shapes = [{name: list(x.shape) for name, x in tensors.items()} for tensors in (expected, found)]
    names = sorted(shapes[0].keys() | shapes[1].keys())
    wrong = [name for name in names if shapes[0].get(name) != shapes[1].get(name)]
    if wrong:
        listing = "; ".join(
            f"{name}: expected {shapes[0].get(name, 'nothing')}, "
            f"found {shapes[1].get(name, 'nothing')}"
            for name in wrong[:5]
        )
        raise ValueError(f"the weights in {source} do not fit the model: {listing}")
