"""Turn a state dict of the authors' code into a model folder."""

import re
import warnings
from pathlib import Path

import torch
from torch import Tensor

from gumbeltree.config import EmbeddingConfig, EncoderConfig, HeadConfig, ModelConfig
from gumbeltree.model import SentenceModel, save
from gumbeltree.registry import UnknownNameError
from gumbeltree.text.tokenizer import PAD, UNKNOWN, whitespace_tokenizer
from gumbeltree.weights import check_fit

SNLI_LABELS = ("neutral", "entailment", "contradiction")

# the authors' names -> ours; each stands for all keys that begin with it
NAMES = {
    "word_embedding.": "embedding.",
    "encoder.leaf_rnn_cell.": "encoder.leaf.",
    "encoder.word_linear.": "encoder.leaf.",
    "encoder.treelstm_layer.comp_linear.": "encoder.cell.",
    "encoder.comp_query": "encoder.query",
    "classifier.bn_mlp_input.": "head.batch_norm_in.",
    "classifier.bn_mlp_output.": "head.batch_norm_out.",
    "classifier.mlp.": "head.hidden.",
    "classifier.clf_linear.": "head.output.",
}

NEEDED = (
    "word_embedding.weight",
    "encoder.treelstm_layer.comp_linear.weight",
    "encoder.comp_query",
    "classifier.mlp.0.0.weight",
    "classifier.clf_linear.weight",
)


def import_reference(
    checkpoint: str | Path,
    vocabulary: str | Path,
    out: str | Path,
    variant: str = "reference",
    lower: bool = False,
) -> SentenceModel:
    """Convert a sentence-pair model of the authors' code and save it.

    Args:
        checkpoint: state dict written by `torch.save`; read with `weights_only=True`.
        vocabulary: text file, the first field of each line is a word, ids in line order.
        out: model folder to write.
        variant: "reference" (scores divided by sqrt(D)) or "paper" (the released checkpoints).
        lower: whether the model's text is to be lower-cased.
    """
    weights = read_state_dict(Path(checkpoint))
    words = read_vocabulary(Path(vocabulary))
    try:
        config = infer_config(weights, variant)
    except UnknownNameError:
        raise
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from error
    rows = weights["embedding.weight"].shape[0]
    if rows != len(words) + 2:
        raise ValueError(
            f"{checkpoint} has {rows} word vectors, but {vocabulary} has {len(words)} lines, which "
            f"with {PAD} and {UNKNOWN} makes {len(words) + 2}; pass the vocabulary it was trained "
            "with"
        )
    model = SentenceModel(config, whitespace_tokenizer(words, lower))
    expected = model.state_dict()
    for name in expected:
        if name.endswith("num_batches_tracked"):
            # files older than this counter; nothing in evaluation reads it
            weights.setdefault(name, torch.tensor(0))
    check_fit(expected, weights, str(checkpoint))
    model.load_state_dict(weights)
    model.eval()
    provenance = {"imported": Path(checkpoint).name, "variant": variant, "lower": lower}
    save(model, out, provenance)
    return model


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read the authors' state dict under our names; refuse whatever else the file holds."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a state dict of the authors' code")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError:
        raise
    except Exception as error:
        # torch's own words advise to switch the protection off; keep what the file wanted to run
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        found = f"it holds {wanted[1]}" if wanted else "not written by torch.save, or damaged"
        raise ValueError(
            f"{path} is not a state dict that can be read safely ({found}); "
            "save one with torch.save(model.state_dict(), path)"
        ) from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds {type(data).__name__}, expected a state dict of tensors")
    for key, value in data.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            raise ValueError(
                f"{path} holds {key!r}, a {type(value).__name__}, expected a state dict of tensors"
            )
    missing = [name for name in NEEDED if name not in data]
    if missing:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}: not a pair model of the authors' code"
        )
    weights: dict[str, Tensor] = {}
    for key, value in data.items():
        prefix = next((name for name in NAMES if str(key).startswith(name)), None)
        if prefix is None:
            raise ValueError(
                f"{path} has the key {key!r}, which no pair model of the authors' code has; "
                f"expected keys beginning with {', '.join(NAMES)}"
            )
        name = NAMES[prefix] + key.removeprefix(prefix)
        if prefix == "classifier.mlp.":
            # mlp.{i}.0.weight: the linear part of hidden layer i
            name = re.sub(r"\.0\.(weight|bias)$", r".\1", name)
        if not key.endswith("num_batches_tracked"):
            if not value.is_floating_point():
                raise ValueError(
                    f"{path}: {key} must hold floating-point numbers, got {value.dtype}"
                )
            value = value.float()
            if not bool(torch.isfinite(value).all()):
                raise ValueError(f"{path}: {key} holds NaN or infinity")
        weights[name] = value
    weights["encoder.query"] = weights["encoder.query"].flatten()
    return weights


def read_vocabulary(path: Path) -> list[str]:
    """Return the first field of each line; refuse blank lines and repeated words."""
    words: list[str] = []
    line_of: dict[str, int] = {}
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                # a byte order mark is no part of the first word
                fields = line.decode("utf-8-sig" if number == 1 else "utf-8").split()
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number}: expected UTF-8, {error}") from error
            if not fields:
                raise ValueError(f"{path}, line {number}: expected a word, got a blank line")
            word = fields[0]
            if word in line_of:
                raise ValueError(
                    f"{path}, line {number}: {word!r} stands at line {line_of[word]} already; ids "
                    "would be ambiguous"
                )
            line_of[word] = number
            words.append(word)
    return words


def infer_config(weights: dict[str, Tensor], variant: str) -> ModelConfig:
    """Return the settings that the shapes of `weights` imply."""
    leaf = "affine" if "encoder.leaf.weight" in weights else "lstm"
    word_name = "encoder.leaf.weight" if leaf == "affine" else "encoder.leaf.weight_ih"
    names = ["embedding.weight", word_name, "head.hidden.0.weight", "head.output.weight"]
    for name in names:
        if name not in weights:
            raise ValueError(
                "no leaf: expected encoder.leaf_rnn_cell.weight_ih or encoder.word_linear.weight"
            )
        if weights[name].dim() != 2:
            raise ValueError(f"{name} must be a matrix, got {list(weights[name].shape)}")
    _, word, hidden, output = (weights[name].shape for name in names)
    D = weights["encoder.query"].shape[0]
    if hidden[1] == D:
        raise ValueError(
            f"this is a single-sentence model: its classifier takes {D} features, a pair model's "
            f"takes 4 x {D}; only pair models (SNLI) can be imported"
        )
    encoder = EncoderConfig(embedding_dim=word[1], hidden_dim=D, leaf=leaf)
    head = HeadConfig(
        kind="pair",
        labels=SNLI_LABELS if output[0] == 3 else tuple(str(i) for i in range(output[0])),
        hidden_dim=hidden[0],
        hidden_layers=sum(n.startswith("head.hidden.") and n.endswith(".weight") for n in weights),
        batch_norm=any(name.startswith("head.batch_norm_in.") for name in weights),
    )
    return ModelConfig(encoder.with_variant(variant), head, EmbeddingConfig())
