"""Model folders: config.json, model.safetensors, tokenizer.json. Loading runs no code from them."""

import dataclasses
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from gumbeltree import __version__
from gumbeltree.atomic import replace_file
from gumbeltree.config import ModelConfig
from gumbeltree.migrate import FORMAT_VERSION, current_model
from gumbeltree.model import SentenceModel
from gumbeltree.packaged import packaged_folder, packaged_hint
from gumbeltree.registry import suggest
from gumbeltree.settings import from_dict

log = logging.getLogger(__name__)

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
KEYS = ("format", "format_version", "gumbeltree_version", "model", "provenance")
VECTORS = "embedding.weight"
"""The word vectors, which may be narrower than all else."""
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Number types that a whole model may have."""
FULL = (torch.float32, torch.float64)
"""Those beside which word vectors may be in float16."""


def save(
    model: SentenceModel,
    folder: str | Path,
    provenance: dict[str, Any] | None = None,
    *,
    half_embeddings: bool = False,
) -> None:
    """Write a model folder; an older model in it is replaced file by file, each at once.

    Args:
        model: what to save.
        folder: made if absent; refused if it holds something that is no model.
        provenance: anything JSON can hold about where the weights come from; None takes the
            model's own.
        half_embeddings: round the word vectors, most of a small model's size, to float16: half as
            large, off by 1 part in 2,048 or 3e-8 at most. `load` makes them float32 again.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        try:
            read_config(folder)
        except (OSError, ValueError) as error:
            raise FileExistsError(
                f"{folder} exists and is no model folder of gumbeltree; name another folder"
            ) from error
    config = {
        "format": "gumbeltree",
        "format_version": FORMAT_VERSION,
        "gumbeltree_version": __version__,
        "model": dataclasses.asdict(model.config),
        "provenance": model.provenance if provenance is None else provenance,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    weights = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    if half_embeddings:
        weights[VECTORS] = _halved(weights[VECTORS])
    vocabulary = model.tokenizer.to_str(pretty=True)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / WEIGHTS, lambda path: save_file(weights, path))
    replace_file(folder / TOKENIZER, lambda path: path.write_text(vocabulary, encoding="utf-8"))
    replace_file(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _halved(vectors: Tensor) -> Tensor:
    """Return word vectors in float16, or refuse what that cannot hold."""
    if vectors.dtype not in FULL:
        raise ValueError(
            f"`half_embeddings` needs a model in float32, got {_kind(vectors.dtype)}; call "
            "model.float() first, or save it as it is"
        )
    half = vectors.half()
    if not bool(half.isfinite().all()):
        raise ValueError(
            "`half_embeddings` needs word vectors within -65,504..65,504, got "
            f"{vectors.min():.4g}..{vectors.max():.4g}; save them as they are"
        )
    return half


def find_model(name: str | Path) -> Path:
    """Return the model folder that `name` means: itself, `model` in the folder of a run, or a copy.

    A folder comes before a packaged model of the same name.

    Args:
        name: a folder, the name of a packaged model (see `gumbeltree.pretrained_models`), or
            "hub:org/name" with "@revision" behind it or not, which is downloaded unless that was
            done before. Nothing else is ever downloaded.
    """
    # a path turned the slash around on Windows
    text = name.as_posix() if isinstance(name, Path) else name
    if text.startswith("hub:"):
        from gumbeltree.hub import fetch

        return fetch(text)
    folder = Path(name)
    packaged = packaged_folder(text)
    if packaged is not None:
        if not folder.is_dir():
            log.info("%s: taking the packaged model, as there is no folder of that name", text)
            return packaged
        log.info("%s: taking the folder of that name, not the packaged model", text)
    inner = folder / "model"
    return inner if not (folder / CONFIG).is_file() and (inner / CONFIG).is_file() else folder


def hub_hint(folder: Path) -> str:
    """Return how to load `folder` from the Hub, should that have been meant."""
    name = folder.as_posix()
    meant = not folder.exists() and not folder.is_absolute() and name.count("/") == 1
    return f"; a model on the Hugging Face Hub is called hub:{name}" if meant else ""


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a model folder, checked as far as its outermost keys."""
    path = folder / CONFIG
    if not path.is_file():
        if (folder / "settings.json").is_file():
            raise FileNotFoundError(
                f"{folder} is a training run without a model yet: it was stopped before its first "
                "evaluation was saved; go on with `gumbeltree train ... --resume`"
            )
        seeds = sorted(inner.parent.name for inner in folder.glob("seed-*/model"))
        if seeds:
            raise FileNotFoundError(
                f"{folder} holds a model for each of several seeds; name one, such as "
                f"{folder / seeds[0]}"
            )
        raise FileNotFoundError(
            f"{folder} is no model folder: it has no {CONFIG}; make one with `gumbeltree train`, "
            f"`gumbeltree demo` or `gumbeltree import-reference`{hub_hint(folder)}"
            f"{packaged_hint(folder)}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict) or config.get("format") != "gumbeltree":
        raise ValueError(f'{path} is not a gumbeltree model: expected "format": "gumbeltree"')
    version = config.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version!r}, this gumbeltree ({__version__}) reads 1 to "
            f"{FORMAT_VERSION}; install a newer one"
        )
    if version == 1 and isinstance(config.get("model"), dict):
        config["model"] = current_model(config["model"])
    unknown = sorted(config.keys() - KEYS)
    if unknown:
        raise ValueError(
            f"{path}: unknown key '{unknown[0]}'; known: {', '.join(KEYS)}."
            f"{suggest(unknown[0], list(KEYS))}"
        )
    return config


def load(folder: str | Path, device: str | torch.device = "cpu") -> SentenceModel:
    """Load a model folder, strictly, in evaluation mode.

    Args:
        folder: as written by `save`; or the folder of a run, the name of a packaged model, or
            "hub:org/name[@revision]".
        device: where its weights go.
    """
    folder = find_model(folder)
    config = model_config(folder)
    provenance = read_config(folder).get("provenance", {})
    if not isinstance(provenance, dict):
        raise ValueError(f"{folder / CONFIG}: `provenance` must be a table, got {provenance!r}")
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
    check_tokenizer(tokenizer, folder / TOKENIZER)
    try:
        with torch.device("meta"):
            model = SentenceModel(config, tokenizer)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    if model.encoder.trees == "fixed":
        # version 1 had a query vector that nothing read
        weights.pop("encoder.query", None)
    model.to(_restored(weights, folder / WEIGHTS))
    check_fit(model.state_dict(), weights, str(folder / WEIGHTS))
    model.to_empty(device=device).load_state_dict(weights)
    model.provenance = provenance
    return model.eval()


def _restored(weights: dict[str, Tensor], path: Path) -> torch.dtype:
    """Return the number type of a model; word vectors saved in float16 get it back, in place."""
    rest = [x for name, x in weights.items() if name != VECTORS]
    others = Counter(x.dtype for x in rest if x.is_floating_point())
    others = others or Counter(x.dtype for x in rest)
    if VECTORS not in weights or not others:
        # what is missing is named with all else that does not fit
        return torch.float32
    vectors, ((other, _),) = weights[VECTORS], others.most_common(1)
    if vectors.dtype == torch.float16 and other in FULL:
        weights[VECTORS] = vectors.to(other)
    elif vectors.dtype != other or other not in TYPES:
        raise ValueError(
            f"{path}: expected word vectors in float32 or float16 and all else in float32, got "
            f"{VECTORS} in {_kind(vectors.dtype)} and the others in {_kind(other)}; save the model "
            "anew with gumbeltree.save"
        )
    return other


def has_half_embeddings(folder: Path) -> bool:
    """Return whether a model folder was saved with `half_embeddings`."""
    with safetensors.safe_open(folder / WEIGHTS, framework="pt") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    others = {kind for name, kind in kinds.items() if name != VECTORS}
    return kinds[VECTORS] == "F16" and not others.isdisjoint(("F32", "F64"))


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def model_config(folder: Path) -> ModelConfig:
    """Return the settings of the model in a folder."""
    try:
        config: ModelConfig = from_dict(ModelConfig, read_config(folder).get("model"), "model")
    except ValueError as error:
        if str(folder / CONFIG) in str(error):
            raise
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    return config


def check_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Raise unless ids run from 0 on without a gap and the word for unknown ones is there."""
    words = tokenizer.get_vocab()
    if sorted(words.values()) != list(range(len(words))):
        last = max(words, key=words.__getitem__)
        raise ValueError(
            f"{path} must number its {len(words)} words from 0 on, each once, got up to "
            f"{words[last]} for {last!r}"
        )
    unknown = getattr(tokenizer.model, "unk_token", None)
    if not words or (unknown is not None and unknown not in words):
        raise ValueError(f"{path} must hold its own word for unknown ones, {unknown!r}, got none")


def check_fit(expected: dict[str, Tensor], found: dict[str, Tensor], source: str) -> None:
    """Raise unless both hold the same names with the same shapes and types."""

    def show(x: Tensor | None) -> str:
        return (
            "nothing" if x is None else f"{list(x.shape)} {x.dtype}".removesuffix(" torch.float32")
        )

    names = sorted(expected.keys() | found.keys())
    rows = [(name, show(expected.get(name)), show(found.get(name))) for name in names]
    wrong = [f"{name}: expected {a}, found {b}" for name, a, b in rows if a != b]
    if wrong:
        raise ValueError(f"the weights in {source} do not fit the model: {'; '.join(wrong[:5])}")
