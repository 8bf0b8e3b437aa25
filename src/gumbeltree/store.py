"""Model folders: config.json, model.safetensors and tokenizer.json. Loading executes no code."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors
from tokenizers import Tokenizer

from gumbeltree import __version__
from gumbeltree.atomic import replace_file
from gumbeltree.config import PARTS, ModelConfig
from gumbeltree.hub import FILES, fetch
from gumbeltree.migrate import FORMAT_VERSION, current_model
from gumbeltree.packaged import packaged_folder, packaged_hint
from gumbeltree.plugins import plugin_of
from gumbeltree.registry import Registry, UnknownNameError, suggest
from gumbeltree.settings import from_dict
from gumbeltree.text.files import shown
from gumbeltree.text.tokenizer_file import MOST_BYTES, check_description, parse_tokenizer

log = logging.getLogger(__name__)

CONFIG, WEIGHTS, TOKENIZER = FILES
KEYS = ("format", "format_version", "gumbeltree_version", "model", "plugins", "provenance")
WORD_VECTORS = "embedding.weight"
"""Name of the word vectors among the weights; they can be saved as float16."""


def write_folder(
    folder: Path,
    model: dict[str, Any],
    provenance: dict[str, Any],
    tokenizer: Tokenizer,
    write_weights: Callable[[Path], None],
) -> None:
    """Write a model folder, atomically replacing each file of an existing model.

    Args:
        folder: created if needed; must be empty or contain a model.
        model: settings of the model.
        provenance: origin of the weights, any JSON data.
        tokenizer: the tokenizer.
        write_weights: writes the weights to a path.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        try:
            read_config(folder)
        except (OSError, ValueError) as error:
            raise FileExistsError(
                f"{folder} exists and is not a gumbeltree model folder; choose another folder"
            ) from error
    config = {
        "format": "gumbeltree",
        "format_version": FORMAT_VERSION,
        "gumbeltree_version": __version__,
        "model": model,
        **plugins_of(model),
        "provenance": provenance,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    vocabulary = tokenizer.to_str(pretty=True)
    try:
        # so that the folder can be loaded again
        check_description(vocabulary)
    except ValueError as error:
        raise ValueError(f"cannot save the model: its tokenizer {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / WEIGHTS, write_weights)
    replace_file(folder / TOKENIZER, lambda path: path.write_text(vocabulary, encoding="utf-8"))
    replace_file(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def plugins_of(model: dict[str, Any]) -> dict[str, Any]:
    """Return the plugins of a model's parts as the key `plugins`; empty without plugins."""
    found = [
        plugin_of(registry.kind, kind, registry.table.get(kind, "gumbeltree."))
        for registry, kind in parts_of(model)
    ]
    plugins = [one for number, one in enumerate(found) if one and one not in found[:number]]
    return {"plugins": plugins} if plugins else {}


def parts_of(settings: dict[str, Any]) -> Iterator[tuple[Registry, str]]:
    """Yield the registry and the kind of every part in the settings of a model."""
    for name, value in settings.items():
        if isinstance(value, dict):
            if name in PARTS and "kind" in value:
                yield PARTS[name], value["kind"]
            yield from parts_of(value)


def read_model(folder: Path) -> tuple[ModelConfig, Tokenizer, dict[str, Any]]:
    """Return the settings, the tokenizer and the provenance of a complete model folder."""
    config = model_config(folder)
    provenance = read_config(folder).get("provenance", {})
    if not isinstance(provenance, dict):
        raise ValueError(f"{folder / CONFIG}: `provenance` must be an object, got {provenance!r}")
    for name in (WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is incomplete: it has no {name}")
    return config, read_tokenizer(folder), provenance


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a model folder."""
    path = folder / TOKENIZER
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; the limit is {MOST_BYTES:,}")
    try:
        tokenizer = parse_tokenizer(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a tokenizer: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
    check_tokenizer(tokenizer, path)
    return tokenizer


def find_model(name: str | Path) -> Path:
    """Return the model folder that a name refers to.

    Args:
        name: a model folder, the folder of a run, the name of a packaged model (see
            `gumbeltree.pretrained_models`), or "hub:org/name[@revision]", which is downloaded
            unless it is in the cache. A folder takes precedence over a packaged model.
    """
    # Windows paths have backslashes
    text = name.as_posix() if isinstance(name, Path) else name
    if text.startswith("hub:"):
        return fetch(text)
    folder = Path(name)
    packaged = packaged_folder(text)
    if packaged is not None:
        if not folder.is_dir():
            log.info("%s: using the packaged model", text)
            return packaged
        log.info("%s: using the folder, not the packaged model of the same name", text)
    inner = folder / "model"
    return inner if not (folder / CONFIG).is_file() and (inner / CONFIG).is_file() else folder


def hub_hint(folder: Path) -> str:
    """Return a hint on loading from the Hub if `folder` looks like the name of a repository."""
    name = folder.as_posix()
    meant = not folder.exists() and not folder.is_absolute() and name.count("/") == 1
    return f"; for a model on the Hugging Face Hub pass hub:{name}" if meant else ""


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a model folder, after checking its top-level keys."""
    path = folder / CONFIG
    if not path.is_file():
        if (folder / "settings.json").is_file():
            raise FileNotFoundError(
                f"{folder} is a training run without a model: it stopped before its first "
                "evaluation was saved; continue it with `gumbeltree train ... --resume`"
            )
        seeds = sorted(inner.parent.name for inner in folder.glob("seed-*/model"))
        if seeds:
            raise FileNotFoundError(
                f"{folder} contains models of several seeds; pass one of them, such as "
                f"{folder / seeds[0]}"
            )
        raise FileNotFoundError(
            f"{folder} is not a model folder: it has no {CONFIG}; create one with `gumbeltree "
            f"train`{hub_hint(folder)}{packaged_hint(folder)}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or config.get("format") != "gumbeltree":
        raise ValueError(f'{path} is not a gumbeltree model: "format" is not "gumbeltree"')
    version = config.get("format_version")
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version!r}, but gumbeltree {__version__} reads 1 to "
            f"{FORMAT_VERSION}; upgrade gumbeltree"
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


def has_half_embeddings(folder: Path) -> bool:
    """Return whether a model folder was saved with `half_embeddings`."""
    with safetensors.safe_open(folder / WEIGHTS, framework="numpy") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    others = {kind for name, kind in kinds.items() if name != WORD_VECTORS}
    return kinds[WORD_VECTORS] == "F16" and not others.isdisjoint(("F32", "F64"))


def model_config(folder: Path) -> ModelConfig:
    """Return the settings of the model in a folder."""
    content: dict[str, Any] = {}
    try:
        content = read_config(folder)
        config: ModelConfig = from_dict(ModelConfig, content.get("model"), "model")
    except ValueError as error:
        if str(folder / CONFIG) in str(error):
            raise
        message = _with_plugins(error, content.get("plugins"))
        raise ValueError(f"{folder / CONFIG}: {message}") from error
    return config


def _with_plugins(error: ValueError, plugins: object) -> str:
    """Return an error message; for an unknown part, it names the plugins of the model instead."""
    given = plugins if isinstance(plugins, list) else []
    named = [plugin for plugin in given if isinstance(plugin, dict) and "module" in plugin]
    if not isinstance(error, UnknownNameError) or not named:
        return str(error)
    unknown = str(error).partition("; known:")[0]
    modules = ", ".join(str(plugin["module"]) for plugin in named)
    packages = [str(plugin["package"]) for plugin in named if "package" in plugin]
    install = f"install {', '.join(packages)}, or " if packages else ""
    return (
        f"{unknown}; the model was made with the plugin {modules}, which is not loaded; {install}"
        f"pass --plugin {named[0]['module']} or the path of its file (in Python, import it first)"
    )


def check_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Raise unless ids are 0..V-1 and include the unknown token."""
    words = tokenizer.get_vocab()
    if sorted(words.values()) != list(range(len(words))):
        last = max(words, key=words.__getitem__)
        raise ValueError(
            f"{path} must assign ids 0..{len(words) - 1} to its {len(words)} words, but assigns "
            f"{words[last]} to {shown(last)}"
        )
    unknown = getattr(tokenizer.model, "unk_token", None)
    if not words or (unknown is not None and unknown not in words):
        raise ValueError(f"{path} does not contain its unknown token, {shown(unknown)}")
