"""Turn a state dict of the authors' code into a model folder."""

import pickle
from pathlib import Path

import torch
from torch import Tensor

from gumbeltree.config import EmbeddingConfig, EncoderConfig, HeadConfig, ModelConfig
from gumbeltree.model import SentenceModel
from gumbeltree.store import check_fit, save
from gumbeltree.text.tokenizer import PAD, UNKNOWN, whitespace_tokenizer

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
    config = infer_config(weights, variant)
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
        data = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(
            f"{path} is not a state dict that can be read safely ({str(error).splitlines()[0]}); "
            "save one with torch.save(model.state_dict(), path)"
        ) from error
    if not isinstance(data, dict) or not all(isinstance(x, Tensor) for x in data.values()):
        raise ValueError(f"{path} holds {type(data).__name__}, expected a state dict of tensors")
    weights: dict[str, Tensor] = {}
    for key, value in data.items():
        prefix = next((name for name in NAMES if str(key).startswith(name)), None)
        if prefix is None:
            raise ValueError(
                f"{path} has the key {key!r}, which no pair model of the authors' code has; "
                f"expected keys beginning with {', '.join(NAMES)}"
            )
        name = NAMES[prefix] + str(key).removeprefix(prefix)
        if prefix == "classifier.mlp.":
            # mlp.{i}.0.weight: the linear part of hidden layer i
            name = name.replace(".0.weight", ".weight").replace(".0.bias", ".bias")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{path}: {key} holds NaN or infinity")
        weights[name] = value.float() if value.is_floating_point() else value
    needed = ["embedding.weight", "encoder.cell.weight", "encoder.query", "head.output.weight"]
    missing = [name for name in [*needed, "head.hidden.0.weight"] if name not in weights]
    if missing:
        theirs = {ours: name for name, ours in NAMES.items()}
        listing = ", ".join(
            next((theirs[o] + m.removeprefix(o) for o in theirs if m.startswith(o)), m)
            for m in missing
        )
        raise ValueError(f"{path} lacks {listing}: not a pair model of the authors' code")
    weights["encoder.query"] = weights["encoder.query"].flatten()
    return weights


def read_vocabulary(path: Path) -> list[str]:
    """Return the first field of each line; refuse blank lines and repeated words."""
    words: list[str] = []
    line_of: dict[str, int] = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.split()
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
    D = weights["encoder.query"].shape[0]
    hidden = weights["head.hidden.0.weight"]
    if hidden.shape[1] == D:
        raise ValueError(
            f"this is a single-sentence model: its classifier takes {D} features, a pair model's "
            f"takes 4 x {D}; only pair models (SNLI) can be imported"
        )
    classes = weights["head.output.weight"].shape[0]
    leaf = "lstm" if "encoder.leaf.weight_ih" in weights else "affine"
    word = weights.get("encoder.leaf.weight_ih", weights.get("encoder.leaf.weight"))
    if word is None:
        raise ValueError(
            "this state dict has no leaf: expected encoder.leaf_rnn_cell.weight_ih or "
            "encoder.word_linear.weight"
        )
    encoder = EncoderConfig(embedding_dim=word.shape[1], hidden_dim=D, leaf=leaf)
    head = HeadConfig(
        kind="pair",
        labels=SNLI_LABELS if classes == 3 else tuple(str(i) for i in range(classes)),
        hidden_dim=hidden.shape[0],
        hidden_layers=sum(n.startswith("head.hidden.") and n.endswith(".weight") for n in weights),
        batch_norm="head.batch_norm_in.weight" in weights,
    )
    return ModelConfig(encoder.with_variant(variant), head, EmbeddingConfig())
