"""Convert a checkpoint of the authors' code into a model folder."""

import re
import warnings
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from gumbeltree.config import EmbeddingConfig, EncoderConfig, HeadConfig, ModelConfig
from gumbeltree.model import SentenceModel, save
from gumbeltree.text.files import Report, read_lines
from gumbeltree.text.tokenizer import PAD, UNKNOWN, whitespace_tokenizer
from gumbeltree.weights import check_fit

SNLI_LABELS = ("neutral", "entailment", "contradiction")

# prefixes of parameter names in the authors' code and here
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
    """Convert a sentence-pair model of the authors' code, save it and return it.

    Args:
        checkpoint: state dict written by `torch.save`; code in the file is never run.
        vocabulary: text file whose lines start with a word; the line order determines the ids.
        out: model folder to write.
        variant: "reference" (scores divided by sqrt(D)) or "paper" (the released checkpoints).
        lower: whether the model lower-cases its input.
    """
    state = read_state_dict(Path(checkpoint))
    words = read_vocabulary(Path(vocabulary))
    try:
        encoder, head = infer_config(state)
    except ValueError as error:
        raise ValueError(f"{checkpoint}: {error}") from error
    rows = len(state["word_embedding.weight"])
    if rows != len(words) + 2:
        raise ValueError(
            f"{checkpoint} has {rows} word vectors, but the {len(words)} words of {vocabulary} "
            f"plus {PAD} and {UNKNOWN} make {len(words) + 2}; pass the vocabulary that the model "
            "was trained with"
        )
    config = ModelConfig(encoder.with_variant(variant), head, EmbeddingConfig())
    model = SentenceModel(config, whitespace_tokenizer(words, lower))
    weights = {_our_name(name): value for name, value in state.items()}
    expected = model.state_dict()
    for name in expected:
        if name.endswith("num_batches_tracked"):
            # old versions of torch do not save this counter, and evaluation does not need it
            weights.setdefault(name, torch.tensor(0))
    check_fit(expected, weights, str(checkpoint))
    model.load_state_dict(weights)
    model.eval()
    save(model, out, {"imported": Path(checkpoint).name, "variant": variant, "lower": lower})
    return model


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict without running code from the file; weights become float32."""
    size = path.stat().st_size
    with open(path, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # torch.save does not compress; a compressed file could exhaust the memory
            if zipfile.is_zipfile(file):
                entries = zipfile.ZipFile(file).infolist()
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                    raise ValueError("compressed entries")
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            # torch suggests disabling the protection; report only what the file tries to load
            blocked = re.search(r"GLOBAL (\S+)", str(error))
            reason = f"it contains {blocked[1]}" if blocked else "damaged or not from torch.save"
            raise ValueError(
                f"{path} is not a state dict that can be read safely ({reason}); "
                "save one with torch.save(model.state_dict(), path)"
            ) from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} contains a {type(state).__name__} instead of a state dict")
    weights: dict[str, Tensor] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            raise ValueError(
                f"{path} is not a state dict: {name!r} is a {type(value).__name__}, not a dense "
                "tensor"
            )
        # a few bytes can be expanded to any shape, or shared by any number of tensors
        size -= value.nbytes
        if value.nbytes > value.untyped_storage().nbytes() or size < 0:
            raise ValueError(
                f"{path}: {name} has shape {list(value.shape)}, for which the file stores too few "
                "values; save contiguous tensors that share no memory"
            )
        value = value.float() if value.is_floating_point() else value
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{path}: {name} contains NaN or infinity")
        weights[str(name)] = value.flatten() if name == "encoder.comp_query" else value
    return weights


def _our_name(name: str) -> str:
    prefix = next((prefix for prefix in NAMES if name.startswith(prefix)), "")
    ours = NAMES.get(prefix, "") + name.removeprefix(prefix)
    # mlp.{i}.0 is the linear part of hidden layer i
    return re.sub(r"\.0\.(weight|bias)$", r".\1", ours) if prefix == "classifier.mlp." else ours


def read_vocabulary(path: Path) -> list[str]:
    """Return the first field of each line; blank lines and repeated words are errors."""
    lines: dict[str, int] = {}
    for number, line in read_lines(path, Report()):
        word = (line.split() or [""])[0]
        if not word:
            raise ValueError(f"{path}, line {number}: blank line in the vocabulary; remove it")
        if word in lines:
            raise ValueError(f"{path}, line {number}: {word!r} repeats line {lines[word]}")
        lines[word] = number
    return list(lines)


def infer_config(state: dict[str, Tensor]) -> tuple[EncoderConfig, HeadConfig]:
    """Infer the settings from the shapes of the authors' weights."""
    leaf = "affine" if "encoder.word_linear.weight" in state else "lstm"
    names = (
        "word_embedding.weight",
        "encoder.word_linear.weight" if leaf == "affine" else "encoder.leaf_rnn_cell.weight_ih",
        "classifier.mlp.0.0.weight",
        "classifier.clf_linear.weight",
    )
    for name in names:
        if name not in state or state[name].dim() != 2:
            raise ValueError(f"not a pair model of the authors' code: it has no matrix {name}")
    if "encoder.comp_query" not in state:
        raise ValueError("not a pair model of the authors' code: it has no encoder.comp_query")
    _, word, hidden, output = (state[name].shape for name in names)
    D = len(state["encoder.comp_query"])
    if hidden[1] == D:
        raise ValueError(
            f"this is a single-sentence model: its classifier takes {D} features, a pair model's "
            f"takes 4 x {D}; only pair models (SNLI) can be imported"
        )
    return EncoderConfig(embedding_dim=word[1], hidden_dim=D, leaf=leaf), HeadConfig(
        kind="pair",
        labels=SNLI_LABELS if output[0] == 3 else tuple(map(str, range(output[0]))),
        hidden_dim=hidden[0],
        hidden_layers=sum(bool(re.fullmatch(r"classifier\.mlp\.\d+\.0\.weight", x)) for x in state),
        batch_norm=any(name.startswith("classifier.bn_mlp_input.") for name in state),
    )
