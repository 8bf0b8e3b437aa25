"""The complete model, which encodes, parses and classifies text."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
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
from gumbeltree.hub import CARD, PREFIX, check_id, fetch, upload
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.evaluation_mode import in_evaluation_mode
from gumbeltree.packaged import packaged_folder
from gumbeltree.parts import ENCODERS, HEADS
from gumbeltree.registry import own
from gumbeltree.states import VECTORS, Draw, Encoding, Keep
from gumbeltree.store import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    WORD_VECTORS,
    find_model,
    model_config,
    read_config,
    read_tokenizer,
    write_folder,
)
from gumbeltree.text.batches import ahead, as_list, as_texts, batches, chunks
from gumbeltree.text.ids import Sentence, TextCounts, TextReader
from gumbeltree.tree import Tree
from gumbeltree.weights import check_fit, halved, read_weights, restored

logger = logging.getLogger(__name__)


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


class SentenceModel(nn.Module):
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
        self.head = HEADS[config.head.kind](config.head, self.encoder.vector_dim)
        """Head, which turns sentence vectors into predictions."""
        self.reset_embedding()

    def reset_embedding(self) -> None:
        """Draw word vectors from N(0, 0.01^2); set those of `<pad>` and `<unk>` to zero."""
        nn.init.normal_(self.embedding.weight, std=0.01)
        special = [self.tokenizer.token_to_id(word) for word in ("<pad>", "<unk>")]
        with torch.no_grad():
            self.embedding.weight[[i for i in special if i is not None]] = 0

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; empty if the head does not classify."""
        labels: tuple[str, ...] = self.head.labels
        return labels

    def embed(self, sentences: Sentences) -> Sentences:
        """Replace word ids `[N]` by word vectors `[N, E]`, with dropout in training."""
        ids, weight = sentences.words, self.embedding.weight
        tuned = weight.requires_grad and torch.is_grad_enabled()
        if tuned and ids.device.type == "cpu" and sentences.layout.known:
            # sum each word's gradient in sentence order, so that it does not depend on the layout
            places = sentences.layout.word_places().argsort()
            vectors = self.embedding(ids[places]).index_select(0, places.argsort())
        else:
            vectors = self.embedding(ids)
        return sentences.with_words(self.dropout(vectors))

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

    def forward(self, sentences: Sentences, draw: Draw | None = None) -> ModelOutput:
        """Return the output of the head for B examples.

        Args:
            sentences: word ids; for pairs, the first sentences of all examples followed by all
                second ones.
            draw: how to choose merges. By default, sample with new keys in training and take the
                highest score otherwise.
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
        encoding = self.encode_batch(sentences, draw, self.head.keep)
        output: Tensor = self.head(*self._head_input(encoding).chunk(count))

        def per_example(x: Tensor) -> Tensor:
            return x.view(count, -1).sum(0)

        log_prob, entropy = (
            None if x is None else per_example(x) for x in (encoding.log_prob, encoding.entropy)
        )
        losses = {name: per_example(x) for name, x in encoding.losses.items()}
        return ModelOutput(output, log_prob, entropy, losses)

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why the forward pass cannot be captured as a CUDA graph, or None if it can.

        Args:
            sample: whether merges are sampled, as in training.
        """
        if not own(self.head, "capturable"):
            return f"{type(self.head).__name__} does not declare itself capturable"
        if not isinstance(self.encoder, Encoder):
            return f"{type(self.encoder).__name__} is not an Encoder"
        if self.encoder.needs:
            return f"{type(self.encoder).__name__} needs inputs besides words, which graphs lack"
        reason: str | None = self.encoder.why_not_captured(sample)
        return reason

    def encode(
        self,
        texts: Iterable[str],
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> NDArray[np.float32]:
        """Return the vectors of `texts`, float32 `[len(texts), D]`, using greedy trees.

        Args:
            texts: sentences, in any iterable; only the first `max_words` words of each are read.
            batch_size: maximum number of sentences encoded at once; fewer if they are long.
            pretokenized: split texts at white space only, and undo Penn Treebank escapes
                such as -LRB-.
            counts: updated with the number of texts, words, unknown words and truncated texts. If
                None, a warning is logged when texts are truncated.
        """
        texts = as_texts(texts)
        vectors = np.empty((len(texts), self.encoder.vector_dim), dtype=np.float32)
        for rows, _, (encoding,) in self._encode([texts], batch_size, pretokenized, counts):
            vectors[rows] = encoding.vector.float().cpu().numpy()
        return vectors

    def parse(
        self, text: str, *, pretokenized: bool = False, counts: TextCounts | None = None
    ) -> Tree:
        """Return the greedy tree of one text.

        Args:
            text: a sentence.
            pretokenized: see `encode`.
            counts: see `encode`.
        """
        return self.parse_many([text], pretokenized=pretokenized, counts=counts)[0]

    def parse_many(
        self,
        texts: Iterable[str],
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> list[Tree]:
        """Return the greedy tree of each text.

        Args:
            texts: see `encode`.
            batch_size: see `encode`.
            pretokenized: see `encode`.
            counts: see `encode`.
        """
        self.check_builds_trees()
        columns = [as_texts(texts)]
        trees: list[Tree] = []
        for _, (sentences,), (encoding,) in self._encode(
            columns, batch_size, pretokenized, counts, offsets=True
        ):
            assert encoding.order is not None
            for sentence, order in zip(sentences, encoding.order.tolist(), strict=True):
                trees.append(Tree(sentence.words, order[: len(sentence.ids) - 1]))
        return trees

    def predict(
        self,
        texts: Iterable[str] | Iterable[tuple[str, str]],
        second: Iterable[str] | None = None,
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> list[Any]:
        """Return the head's answer for each sentence or pair; classifiers return a `Prediction`.

        Args:
            texts: sentences, or (first, second) pairs for a pair model, in any iterable.
            second: the second sentences, if `texts` contains only the first ones.
            batch_size: maximum number of sentences encoded at once; fewer if they are long.
            pretokenized: see `encode`.
            counts: see `encode`.
        """
        columns, head = self._columns(texts, second), in_evaluation_mode(self.head)
        answers: list[Any] = []
        for _, _, encodings in self._encode(columns, batch_size, pretokenized, counts, head.keep):
            with torch.inference_mode():
                answers += head.answers(head(*map(self._head_input, encodings)))
        return answers

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

    def check_builds_trees(self, name: str = "this model") -> None:
        """Raise a ValueError unless the encoder merges words into a tree.

        Args:
            name: name of the model in the error message.
        """
        if not self.encoder.builds_trees:
            raise ValueError(
                f"{name} builds no tree: its encoder is {self.config.encoder.kind!r}; use a model "
                "with another encoder, such as 'gumbel_tree'"
            )

    def _head_input(self, encoding: Encoding) -> Encoding:
        """Return only the outputs that the head uses."""
        return Encoding(encoding.vector) if self.head.keep == VECTORS else encoding

    def _columns(
        self, texts: Iterable[str] | Iterable[tuple[str, str]], second: Iterable[str] | None
    ) -> list[list[str]]:
        """Return one list of texts per sentence of an example; raise if the head expects others."""
        first: list[Any] = as_list(texts)
        if self.head.sentences == 1:
            if second is not None or not all(isinstance(x, str) for x in first):
                raise ValueError("this model classifies single sentences: pass a list of strings")
            return [as_texts(first)]
        if second is None:
            if not all(isinstance(x, tuple | list) and len(x) == 2 for x in first):
                raise ValueError(
                    "this model classifies pairs: pass (first, second) tuples, or two lists of "
                    "strings"
                )
            return [as_texts(x[0] for x in first), as_texts(x[1] for x in first)]
        columns = [as_texts(first), as_texts(second)]
        if len(columns[0]) != len(columns[1]):
            raise ValueError(
                "this model classifies pairs: pass two lists of equal length, got "
                f"{len(columns[0])} and {len(columns[1])} texts"
            )
        return columns

    def _is_captured(self) -> bool:
        """Return whether sentences are encoded by captured CUDA graphs."""
        device = self.embedding.weight.device
        return device.type == "cuda" and self.why_not_captured(sample=False) is None

    def _encode(
        self,
        columns: Sequence[list[str]],
        batch_size: int,
        pretokenized: bool,
        counts: TextCounts | None,
        keep: Keep = VECTORS,
        offsets: bool = False,
    ) -> Iterator[tuple[slice, list[list[Sentence]], list[Encoding]]]:
        """Encode texts chunk by chunk, in order.

        Yields:
            The rows of a chunk, and for each column its sentences and their encodings.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"`batch_size` must be a positive integer, got {batch_size!r}")
        reader = TextReader(self.tokenizer, self.config.max_words, pretokenized, counts)
        if not self._is_captured():
            self._captured = None
        elif self._captured is None or not self._captured.fits(self):
            self._captured = CapturedEncoder(self)
        captured, model = self._captured, in_evaluation_mode(self)
        device = self.embedding.weight.device

        def read() -> Iterator[tuple[slice, list[list[Sentence]]]]:
            # node states take much memory, so keep those of one batch at a time
            for rows in chunks(columns, None if keep == VECTORS else batch_size):
                yield rows, [reader.read(texts[rows], rows.start, offsets) for texts in columns]

        def encoded(sentences: list[Sentence]) -> Encoding:
            parts, order = [], []
            with torch.inference_mode():
                for rows in batches([len(sentence.ids) for sentence in sentences], batch_size):
                    ids = [sentences[row].ids for row in rows]
                    if captured is not None:
                        parts.append(captured(model, ids, keep))
                    else:
                        batch = Sentences.of(ids, device)
                        parts.append(model.encode_batch(batch, Draw(), keep))
                    order.append(rows)
                back = torch.from_numpy(np.concatenate(order).argsort()).to(device)
                return Encoding.joined(parts).map(lambda x: x[back])

        # on a GPU, tokenise the next chunk while this one is encoded
        for rows, chunk in read() if captured is None else ahead(read()):
            yield rows, chunk, [encoded(sentences) for sentences in chunk]
        if counts is None and reader.counts.cut:
            logger.warning("%s", reader.counts)


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
    config = model_config(folder)
    provenance = read_config(folder).get("provenance", {})
    if not isinstance(provenance, dict):
        raise ValueError(f"{folder / CONFIG}: `provenance` must be an object, got {provenance!r}")
    for name in (WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is incomplete: it has no {name}")
    tokenizer = read_tokenizer(folder)
    weights = read_weights(folder / WEIGHTS)
    try:
        with torch.device("meta"):
            model = SentenceModel(config, tokenizer)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    if model.encoder.trees == "fixed":
        # version 1 saved an unused query vector
        weights.pop("encoder.query", None)
    model.to(restored(weights, folder / WEIGHTS))
    check_fit(model.state_dict(), weights, str(folder / WEIGHTS))
    model.to_empty(device=device).load_state_dict(weights)
    model.provenance = provenance
    return model.eval()
