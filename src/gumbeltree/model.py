"""The complete model, which encodes, parses and classifies text."""

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from gumbeltree.atomic import replace_file
from gumbeltree.captured import CapturedEncoder
from gumbeltree.card import generated, model_card
from gumbeltree.config import ModelConfig
from gumbeltree.encoded import VECTORS, BestTrees, Encoded, Keep
from gumbeltree.generators import each_within
from gumbeltree.hub import CARD, PREFIX, check_id, fetch, upload
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.evaluation_mode import in_evaluation_mode
from gumbeltree.nn.initial_weights import SkipDraws
from gumbeltree.ops.lookup import lookup
from gumbeltree.packaged import packaged_folder
from gumbeltree.parts import ENCODERS, HEADS
from gumbeltree.registry import own
from gumbeltree.states import Draw, Encoding
from gumbeltree.store import (
    CONFIG,
    WEIGHTS,
    WORD_VECTORS,
    find_model,
    read_model,
    write_folder,
)
from gumbeltree.text.spelling import SPELLINGS
from gumbeltree.text_model import TextModel
from gumbeltree.threads import limited
from gumbeltree.weights import check_fit, halved, read_weights, restored


class ModelOutput(NamedTuple):
    """Output of a model for B examples."""

    output: Tensor
    """Output of the head, `[B, ...]`."""
    log_prob: Tensor | None = None
    """Log-probability of the sampled choices in all sentences of an example, `[B]`, if the
    estimator needs it."""
    entropy: Tensor | None = None
    """Entropy of the choices, `[B]`, if the estimator needs it."""
    losses: dict[str, Tensor] = {}  # noqa: RUF012
    """Additional losses of the encoder, `[B]` each, by name."""
    order: Tensor | None = None
    """Merges of all sentences, if the estimator needs their log-probability."""


class SentenceModel(TextModel, nn.Module):
    """Embedding, encoder and head, together with their tokenizer.

    `encode`, `parse`, `parse_many` and `predict` always run in evaluation mode and leave the mode
    of the model unchanged. Several threads can call them while another one trains.

    Args:
        config: settings of the model.
        tokenizer: converts text to ids; the size of its vocabulary is the number of word vectors.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.config = config
        """Settings of the model."""
        self.tokenizer = tokenizer
        """Tokenizer with the vocabulary."""
        self.provenance: dict[str, Any] = {}
        """Origin of the weights, any JSON data; preserved by `load` and `save`."""
        self._captured: CapturedEncoder | None = None
        self.embedding = nn.Embedding(tokenizer.get_vocab_size(), config.encoder.embedding_dim)
        self.embedding.weight.requires_grad_(config.embedding.tuned)
        self.dropout = nn.Dropout(config.embedding.dropout)
        self.encoder = ENCODERS[config.encoder.kind](config.encoder)
        """Encoder, such as a `GumbelTreeEncoder`."""
        if not isinstance(self.encoder, Encoder):
            raise TypeError(
                f"the encoder {config.encoder.kind!r} is a {type(self.encoder).__name__}; derive "
                "it from gumbeltree.nn.encoders.encoder.Encoder"
            )
        self.spelling: Tensor | None
        spell = SPELLINGS.get(self.encoder.spelling)
        self.register_buffer("spelling", torch.from_numpy(spell(tokenizer)) if spell else None)
        self.head = HEADS[config.head.kind](config.head, self.encoder.vector_dim)
        """Head, which turns sentence vectors into predictions."""
        if getattr(config.encoder, "mixture", "") == "answers" and not self.head.averages_answers:
            raise ValueError(
                f"`encoder.mixture` is 'answers', but the head {config.head.kind!r} does not "
                "average the answers for several trees; use mixture=vectors, or a head that "
                "classifies sentences or pairs"
            )
        self.reset_embedding()

    def reset_embedding(self) -> None:
        """Draw random word vectors; set those of `<pad>` and `<unk>` to zero."""
        nn.init.normal_(self.embedding.weight, std=self.config.embedding.std)
        special = [self.tokenizer.token_to_id(word) for word in ("<pad>", "<unk>")]
        with torch.no_grad():
            self.embedding.weight[[i for i in special if i is not None]] = 0

    def embed(self, sentences: Sentences) -> Sentences:
        """Replace word ids `[N]` by word vectors `[N, E]`, with dropout in training.

        If the encoder reads the spelling of the words, it is added to the sentences.
        """
        ids, weight = sentences.words, self.embedding.weight
        tuned = weight.requires_grad and torch.is_grad_enabled()
        if tuned and ids.device.type == "cpu" and sentences.layout.known:
            # sum each word's gradient in sentence order, so that it does not depend on the layout
            places = sentences.layout.word_places().argsort()
            vectors = self.embedding(ids[places]).index_select(0, places.argsort())
        else:
            vectors = lookup(weight, ids)
        extras = {} if self.spelling is None else {self.encoder.spelling: self.spelling[ids]}
        return sentences.with_words(self.dropout(vectors), **extras)

    def encode_batch(
        self, sentences: Sentences, draw: Draw | None = None, keep: Keep = VECTORS
    ) -> Encoding:
        """Return the encoder's output for a batch.

        Args:
            sentences: word ids.
            draw: how to choose merges; see `forward`.
            keep: what to return in addition to vectors and trees.
        """
        encoding: Encoding = self.encoder(self.embed(sentences), draw=draw, keep=keep)
        return encoding

    def forward(
        self, sentences: Sentences, draw: Draw | None = None, head: bool = True
    ) -> ModelOutput:
        """Return the output of the head for B examples.

        Args:
            sentences: word ids; for pairs, the first sentences of all examples followed by all
                second ones.
            draw: how to choose merges. By default, sample with new keys in training and take the
                highest score otherwise.
            head: whether to run the head. Otherwise the output is empty, and the encoder computes
                only log-probabilities and entropies.
        """
        if not isinstance(sentences, Sentences):
            raise TypeError(
                f"`sentences` must be Sentences, got {type(sentences).__name__}; create them with "
                "Sentences.of, or from a padded batch with Sentences.padded"
            )
        count = self.head.sentences
        if len(sentences) % count:
            raise ValueError(
                f"{type(self.head).__name__} reads {count} sentences per example, got "
                f"{len(sentences)}; pass the first ones of all examples, then the second ones"
            )
        if head:
            encoding = self.encode_batch(sentences, draw, self.head.keep)
            output: Tensor = self.head(*self._head_input(encoding).chunk(count))
        else:
            encoding = self.encoder.score(self.embed(sentences), draw or Draw())
            output = encoding.vector[:0]

        def per_example(x: Tensor) -> Tensor:
            return x.view(count, -1).sum(0)

        log_prob, entropy = (
            None if x is None else per_example(x) for x in (encoding.log_prob, encoding.entropy)
        )
        losses = {name: per_example(x) for name, x in encoding.losses.items()}
        order = None if log_prob is None else encoding.order
        return ModelOutput(output, log_prob, entropy, losses, order)

    def word_symbols(self) -> NDArray[np.int64] | None:
        """Return the number of symbols of each word, `[V]`, if the encoder joins words to a text.

        Graphs for captured batches fix an upper bound on the length of the texts.
        """
        if self.spelling is None or not self.encoder.joins_words:
            return None
        counts: NDArray[np.int64] = (self.spelling > 0).sum(1).cpu().numpy()
        return counts

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why the forward pass cannot be captured as a CUDA graph, or None if it can.

        Args:
            sample: whether merges are sampled, as in training.
        """
        if not own(self.head, "capturable"):
            return f"{type(self.head).__name__} does not declare itself capturable"
        if not isinstance(self.encoder, Encoder):
            return f"{type(self.encoder).__name__} is not an Encoder"
        if others := sorted(self.encoder.needs - {"order"}):
            return f"{type(self.encoder).__name__} needs {', '.join(others)}, which graphs lack"
        reason: str | None = self.encoder.why_not_captured(sample)
        return reason

    @property
    def reads_ahead(self) -> bool:  # type: ignore[override]
        """Whether the host tokenises the next texts while a GPU encodes the current ones."""
        return self._is_captured()

    @property
    def step_words(self) -> int:  # type: ignore[override]
        """Number of words to encode at a time where others wait; a GPU needs large batches."""
        return 2048 if self.embedding.weight.device.type == "cpu" else 2**15

    @property
    def parallel(self) -> bool:  # type: ignore[override]
        """Whether threads encode several batches at once; other threads ignore autocast."""
        device = self.embedding.weight.device.type
        return device == "cpu" and not torch.is_autocast_enabled(device)

    @torch.inference_mode()
    @limited(1)
    def encode_ids(
        self,
        ids: Sequence[Sequence[int]],
        keep: Keep = VECTORS,
        noise: NDArray[np.float32] | None = None,
    ) -> Encoding:
        """Encode one batch in evaluation mode; see `TextModel.encode_ids`."""
        device, model = self.embedding.weight.device, in_evaluation_mode(self)
        if not self._is_captured():
            self._captured = None
        elif self._captured is None or not self._captured.fits(self):
            self._captured = CapturedEncoder(self)
        if noise is None and self._captured is not None:
            return self._captured(model, ids, keep)
        drawn = None if noise is None else torch.from_numpy(noise).to(device)
        return model.encode_batch(Sentences.of(ids, device), Draw(drawn), keep)

    def beam_steps(self, ids: Sequence[int], beams: int) -> Generator[None, None, BestTrees]:
        """Search for trees in short steps; see `TextModel.beam_steps`."""
        # on a GPU, the search is part of a captured graph, which runs as a whole
        if not (self.parallel and own(self.encoder, "beam_steps")):
            return (yield from super().beam_steps(ids, beams))
        model = in_evaluation_mode(self)

        def steps() -> Generator[None, None, BestTrees]:
            found = yield from model.encoder.beam_steps(model.embed(Sentences.of([ids])), beams)
            return BestTrees(*(x.numpy() for x in found))

        return (yield from each_within(_inference, steps()))

    @torch.inference_mode()
    def joined(self, encodings: Sequence[Encoding], rows: NDArray[np.int64]) -> Encoding:
        """Concatenate encodings; see `TextModel.joined`."""
        index = torch.from_numpy(rows).to(self.embedding.weight.device)
        return Encoding.joined(encodings).map(lambda x: x[index])

    def as_numpy(self, encoding: Encoding) -> Encoded:
        """Return an encoding as NumPy arrays; see `TextModel.as_numpy`."""

        def array(x: Tensor | None) -> Any:
            # NumPy has no bfloat16
            return None if x is None else (x if x.dtype.itemsize > 2 else x.float()).cpu().numpy()

        nodes = None if encoding.nodes is None else encoding.nodes.h
        return Encoded(
            vector=array(encoding.vector),
            order=array(encoding.order),
            nodes=array(nodes),
            scores=array(encoding.scores),
            beams=encoding.beams and BestTrees(*map(array, encoding.beams)),
        )

    @torch.inference_mode()
    @limited(1)
    def head_output(self, *encodings: Encoding) -> NDArray[np.float32]:
        """Return the output of the head in evaluation mode, float32 `[B, ...]`."""
        output: Tensor = in_evaluation_mode(self.head)(*map(self._head_input, encodings))
        array: NDArray[np.float32] = output.float().cpu().numpy()
        return array

    def output_of(self, vectors: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return the output of the head for vectors; see `TextModel.output_of`."""
        weight = self.embedding.weight
        return self.head_output(Encoding(torch.from_numpy(vectors).to(weight)))

    def weight_bytes(self) -> Iterator[tuple[str, str, NDArray[np.uint8]]]:
        """Yield the bytes of each weight; see `TextModel.weight_bytes`."""
        for name, weight in sorted(self.state_dict().items()):
            flat = weight.detach().cpu().contiguous().reshape(-1)
            about = f"{weight.dtype} {list(weight.shape)}".removeprefix("torch.")
            yield name, about, flat.view(torch.uint8).numpy()

    # The names follow huggingface_hub's ModelHubMixin. It is not a base class because its
    # save_pretrained deletes config.json first and its from_pretrained drops unknown settings.

    def save_pretrained(
        self,
        folder: str | Path,
        license: str | None = None,
        language: str | None = None,
        *,
        half_embeddings: bool = False,
    ) -> None:
        """Write a model folder as `gumbeltree.save` does, with a model card, README.md.

        Args:
            folder: see `gumbeltree.save`. A README.md written by hand is kept.
            license: license of the weights, such as "mit"; omitted from the card by default.
            language: language of the texts, such as "en"; omitted from the card by default.
            half_embeddings: see `gumbeltree.save`.
        """
        card = model_card(self, license=license, language=language)
        save(self, folder, half_embeddings=half_embeddings)
        readme = Path(folder, CARD)
        if not readme.exists() or generated(readme.read_text(encoding="utf-8", errors="replace")):
            replace_file(readme, lambda path: path.write_text(card, encoding="utf-8"))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        message: str | None = None,
        license: str | None = None,
        language: str | None = None,
        card: str | None = None,
        half_embeddings: bool = False,
    ) -> str:
        """Upload the model and its card to the Hub in one commit; return the URL of the commit.

        Args:
            repo_id: "org/name"; created if needed. Other files in it are kept.
            private: whether a new repository is private; None uses the Hub's default.
            token: access token; by default that of `hf auth login` or HF_TOKEN.
            message: commit message.
            license: see `save_pretrained`.
            language: see `save_pretrained`.
            card: text of README.md; generated by default.
            half_embeddings: see `gumbeltree.save`.
        """
        check_id(repo_id)
        card = card or model_card(self, repo_id, license, language)
        with TemporaryDirectory() as folder:
            save(self, folder, half_embeddings=half_embeddings)
            Path(folder, CARD).write_text(card, encoding="utf-8")
            return upload(Path(folder), repo_id, private, token, message)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        device: str | torch.device = "cpu",
    ) -> "SentenceModel":
        """Load a model folder, a packaged model or a model on the Hub, in evaluation mode.

        Args:
            name: a folder, the name of a packaged model, or "org/name" on the Hub, tried in this
                order. "hub:org/name" always refers to the Hub.
            revision: branch, tag or commit on the Hub.
            token: access token; by default that of `hf auth login` or HF_TOKEN.
            cache_dir: folder for downloads; by default that of huggingface_hub.
            local_files_only: use earlier downloads only, without network access.
            device: device of the weights.
        """
        local = not str(name).startswith(PREFIX) and Path(name).is_dir()
        if not local and packaged_folder(str(name)) is None:
            return load(fetch(str(name), revision, token, cache_dir, local_files_only), device)
        if revision is not None:
            kind = f"a folder; for the Hub pass {PREFIX}{name}" if local else "a packaged model"
            raise ValueError(f"`revision` applies to models on the Hub, but {name} is {kind}")
        return load(name, device)

    def _head_input(self, encoding: Encoding) -> Encoding:
        """Return only the outputs that the head uses."""
        if self.head.keep != VECTORS:
            return encoding
        return Encoding(encoding.vector, alternatives=encoding.alternatives)

    def _is_captured(self) -> bool:
        """Return whether sentences are encoded by captured CUDA graphs."""
        device = self.embedding.weight.device
        # graphs of plain text read words alone
        known = not self.encoder.needs
        return device.type == "cuda" and known and self.why_not_captured(sample=False) is None


@contextmanager
def _inference() -> Iterator[None]:
    with torch.inference_mode(), limited(1):
        yield


def save(
    model: SentenceModel,
    folder: str | Path,
    provenance: dict[str, Any] | None = None,
    *,
    half_embeddings: bool = False,
) -> None:
    """Write a model folder, atomically replacing each file of an existing model.

    Args:
        model: the model to save.
        folder: created if needed; must be empty or contain a model.
        provenance: origin of the weights, any JSON data; by default that of the model.
        half_embeddings: round the word vectors to float16, which halves their size on disk. The
            error is at most 1 part in 2,048, or 3e-8 near zero. `load` restores float32.
    """
    weights = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    if half_embeddings:
        weights[WORD_VECTORS] = halved(weights[WORD_VECTORS])
    write_folder(
        Path(folder),
        dataclasses.asdict(model.config),
        model.provenance if provenance is None else provenance,
        model.tokenizer,
        lambda path: save_file(weights, path),
    )


def load(folder: str | Path, device: str | torch.device = "cpu") -> SentenceModel:
    """Load a model in evaluation mode.

    Args:
        folder: a folder written by `save`, the folder of a run, the name of a packaged model, or
            "hub:org/name[@revision]".
        device: device of the weights.

    Raises:
        ValueError: If settings and weights do not match, or weights are NaN or infinite.
    """
    folder = find_model(folder)
    config, tokenizer, provenance = read_model(folder)
    weights = read_weights(folder / WEIGHTS)
    try:
        with torch.device("meta"), SkipDraws():
            model = SentenceModel(config, tokenizer)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    if model.encoder.trees == "fixed":
        # version 1 saved an unused query vector
        weights.pop("encoder.query", None)
    model.to(restored(weights, folder / WEIGHTS))
    check_fit(model.state_dict(), weights, str(folder / WEIGHTS))
    # copy, because the weights may be mapped from the file; `to_empty` would import sympy
    copies = {name: x.to(device, copy=True) for name, x in weights.items()}
    model.load_state_dict(copies, assign=True)
    model.provenance = provenance
    # moves nothing: cuDNN needs the weights of each `nn.LSTM` in one block of memory
    return model.to(device).eval()
