"""A whole model: strings in; vectors, trees and classes out."""

import copy
import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType
from typing import Any, NamedTuple, TypeVar, cast

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
from gumbeltree.nn.heads.head import Answer
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
from gumbeltree.text.ids import Sentence, TextCounts, TextReader, batches, chunks
from gumbeltree.tree import Tree
from gumbeltree.weights import check_fit, halved, read_weights, restored

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Module = TypeVar("Module", bound=nn.Module)


class ModelOutput(NamedTuple):
    """What a model says about B examples."""

    output: Tensor
    """The head's output `[B, ...]`."""
    log_prob: Tensor | None = None
    """Log-probability of the sampled choices in all sentences of an example, `[B]`, where the
    estimator needs it."""
    entropy: Tensor | None = None
    """Entropy of the choices, likewise."""
    losses: dict[str, Tensor] = {}  # noqa: RUF012
    """Losses of the encoder's own, `[B]` each, by name."""


class SentenceModel(nn.Module):
    """Embedding, encoder and head, with the tokenizer that belongs to them.

    Args:
        config: sizes and parts.
        tokenizer: turns text into ids; its vocabulary gives the number of word vectors.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.provenance: dict[str, Any] = {}
        """Where the weights come from: anything JSON can hold; kept from load to save."""
        self._captured: CapturedEncoder | None = None
        self.embedding = nn.Embedding(tokenizer.get_vocab_size(), config.encoder.embedding_dim)
        self.embedding.weight.requires_grad_(config.embedding.tuned)
        self.dropout = nn.Dropout(config.embedding.dropout)
        self.encoder = ENCODERS[config.encoder.kind](config.encoder)
        if not isinstance(self.encoder, Encoder):
            raise TypeError(
                f"the encoder {config.encoder.kind!r} is a {type(self.encoder).__name__}; derive "
                "it from gumbeltree.nn.encoders.encoder.Encoder"
            )
        self.head = HEADS[config.head.kind](config.head, self.encoder.vector_dim)
        self.reset_embedding()

    def reset_embedding(self) -> None:
        """Draw word vectors from N(0, 0.01^2); those of <pad> and <unk> are zero."""
        nn.init.normal_(self.embedding.weight, std=0.01)
        special = [self.tokenizer.token_to_id(word) for word in ("<pad>", "<unk>")]
        with torch.no_grad():
            self.embedding.weight[[i for i in special if i is not None]] = 0

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; empty where answers are no classes."""
        labels: tuple[str, ...] = self.head.labels
        return labels

    def embed(self, sentences: Sentences) -> Sentences:
        """Return sentences of word vectors for those of ids, with dropout in training."""
        ids, weight = sentences.words, self.embedding.weight
        tuned = weight.requires_grad and torch.is_grad_enabled()
        if tuned and ids.device.type == "cpu" and sentences.layout.known:
            # a word's gradient is summed sentence by sentence, however the batch is laid out
            places = sentences.layout.word_places().argsort()
            vectors = self.embedding(ids[places]).index_select(0, places.argsort())
        else:
            vectors = self.embedding(ids)
        return sentences.with_words(self.dropout(vectors))

    def encode_batch(
        self, sentences: Sentences, draw: Draw | None = None, keep: Keep = VECTORS
    ) -> Encoding:
        """Return the encodings of sentences whose words are ids; see `Encoder.forward`."""
        encoding: Encoding = self.encoder(self.embed(sentences), draw=draw, keep=keep)
        return encoding

    def forward(self, sentences: Sentences, draw: Draw | None = None) -> ModelOutput:
        """Return what the head says about examples.

        Args:
            sentences: word ids; for pairs the first sentences of all examples, then the second
                ones.
            draw: how choices are made. None: sampled with new keys in training, the highest score
                otherwise.
        """
        if not isinstance(sentences, Sentences):
            raise TypeError(
                f"expected Sentences, got {type(sentences).__name__}; make them with Sentences.of, "
                "or from a padded batch with Sentences.padded"
            )
        count = self.head.sentences
        if len(sentences) % count:
            raise ValueError(
                f"{type(self.head).__name__} reads {count} sentences an example, got "
                f"{len(sentences)}; pass the first ones of all examples, then the second ones"
            )
        encoding = self.encode_batch(sentences, draw, self.head.keep)
        read = Encoding(encoding.vector) if self.head.keep == VECTORS else encoding
        columns = read.chunk(count)
        output: Tensor = self.head(*columns)

        def of_examples(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.view(len(columns), -1).sum(0)

        losses = {name: x.view(len(columns), -1).sum(0) for name, x in encoding.losses.items()}
        log_prob, entropy = of_examples(encoding.log_prob), of_examples(encoding.entropy)
        return ModelOutput(output, log_prob, entropy, losses)

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why the forward pass cannot be captured as a CUDA graph, or None if it can."""
        if not own(self.head, "capturable"):
            return f"{type(self.head).__name__} does not say that it can be captured"
        if not isinstance(self.encoder, Encoder):
            return f"{type(self.encoder).__name__} is no encoder of its own"
        if self.encoder.needs:
            return f"{type(self.encoder).__name__} needs more than words, which graphs do not read"
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
        """Return the vectors of `texts`, float32 `[len(texts), D]`, greedy trees.

        The model's mode does not matter: dropout, sampling and batch statistics are off.

        Args:
            texts: sentences, in any iterable; of longer ones the first `max_words` words are read.
            batch_size: most sentences encoded at once; fewer where they are long.
            pretokenized: texts are words separated by white space and are split nowhere else;
                escapes of the Penn Treebank, such as -LRB-, are undone.
            counts: what to add to: texts, words, unknown words, texts cut. Without, texts that are
                cut are logged as a warning.

        Raises:
            ValueError: If weights are NaN or infinite, among others.
        """
        texts = checked_texts(texts)
        self._check_weights()
        vectors = np.empty((len(texts), self.encoder.vector_dim), dtype=np.float32)
        read = self._read([texts], batch_size, pretokenized, counts)
        # the next texts are tokenised while the device encodes these
        for start, (sentences,) in ahead(read) if self._is_captured() else read:
            found = self._vectors(sentences, batch_size)
            _check_vectors(found, range(start, start + len(found)))
            vectors[start : start + len(found)] = found.float().cpu().numpy()
        return vectors

    def parse(
        self, text: str, *, pretokenized: bool = False, counts: TextCounts | None = None
    ) -> Tree:
        """Return the greedy tree of one text; see `encode` for the arguments."""
        if not isinstance(text, str):
            raise TypeError(f"expected one string, got {type(text).__name__}")
        return self.parse_many([text], pretokenized=pretokenized, counts=counts)[0]

    def parse_many(
        self,
        texts: Iterable[str],
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> list[Tree]:
        """Return the greedy tree of each text; see `encode` for the arguments."""
        self.check_builds_trees()
        texts = checked_texts(texts)
        self._check_weights()
        trees: dict[int, Tree] = {}
        for start, (sentences,) in self._read([texts], batch_size, pretokenized, counts, True):
            for rows, encoding in self._encode(sentences, batch_size):
                assert encoding.order is not None
                _check_vectors(encoding.vector, [start + row for row in rows])
                for row, order in zip(rows, encoding.order.tolist(), strict=True):
                    words = sentences[row].words
                    trees[start + row] = Tree(words, order[: len(words) - 1])
        return [trees[i] for i in range(len(texts))]

    def predict(
        self,
        texts: Iterable[str] | Iterable[tuple[str, str]],
        second: Iterable[str] | None = None,
        batch_size: int = 256,
        *,
        pretokenized: bool = False,
        counts: TextCounts | None = None,
    ) -> list[Any]:
        """Return the answer to each sentence or pair: a `Prediction` where these are classes.

        Args:
            texts: sentences, or (first, second) pairs for a model of pairs, in any iterable.
            second: the second sentences, where `texts` holds the first ones.
            batch_size: most sentences encoded at once; fewer where they are long.
            pretokenized: see `encode`.
            counts: see `encode`.
        """
        columns = [checked_texts(column) for column in self._columns(texts, second)]
        self._check_weights()
        head = in_evaluation_mode(self.head)
        answers: list[Answer] = []
        for chunk in self._examples(columns, batch_size, pretokenized, counts):
            with torch.inference_mode():
                output = head(*(self._encodings(column, batch_size) for column in chunk))
                fine = output.isfinite().reshape(len(output), -1).all(1)
                if not bool(fine.all()):
                    raise ValueError(
                        f"the model gives NaN or infinite scores, at first for text "
                        f"{len(answers) + int(fine.int().argmin())}; its weights are broken: train "
                        "it anew"
                    )
                answers += head.answers(output)
        return answers

    # The names of the next three are those of huggingface_hub's ModelHubMixin, which is not the
    # base: its save_pretrained deletes config.json before it saves, and so breaks folders that
    # `save` refuses and hides from `save` those it may replace; its from_pretrained reads
    # config.json on its own, drops the keys it does not know and passes over a failed download. Nor
    # need a model wait for huggingface_hub, which is imported at the first use of the Hub.

    def save_pretrained(
        self,
        folder: str | Path,
        license: str | None = None,
        language: str | None = None,
        *,
        half_embeddings: bool = False,
    ) -> None:
        """Write a model folder as `gumbeltree.save` does, and its card, README.md.

        Args:
            folder: as for `gumbeltree.save`. A README.md that was not generated stays.
            license: of the weights, such as "mit"; in the card only if given, here or in the
                provenance.
            language: of the texts, such as "en"; the same.
            half_embeddings: as for `gumbeltree.save`.
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
        """Upload the model and its card to the Hub, in one commit; return the commit's address.

        Args:
            repo_id: "org/name"; made if absent. Other files in it stay.
            private: whether only you may see it; None leaves that to the Hub.
            token: None takes the one of `hf auth login` or HF_TOKEN.
            message: of the commit.
            license: of the weights, such as "mit"; in the card only if given, here or in the
                provenance.
            language: of the texts, such as "en"; the same.
            card: the text of README.md; generated if None.
            half_embeddings: as for `gumbeltree.save`.
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
        """Load a model folder, a packaged model or one on the Hub, strictly, in evaluation mode.

        Args:
            name: a folder; or else the name of a packaged model, without a slash; or else
                "org/name" on the Hub. "hub:org/name" is never a folder.
            revision: branch, tag or commit on the Hub.
            token: None takes the one of `hf auth login` or HF_TOKEN, where there is one.
            cache_dir: where downloads are kept; None takes huggingface_hub's own folder.
            local_files_only: use what was downloaded before, without the network.
            device: where the weights go.
        """
        local = not str(name).startswith(PREFIX) and Path(name).is_dir()
        if local or packaged_folder(str(name)) is not None:
            if revision is not None:
                where = (
                    f"a folder; write {PREFIX}{name} for the Hub's"
                    if local
                    else "a packaged model; leave it out"
                )
                raise ValueError(f"`revision` belongs to models on the Hub, but {name} is {where}")
            return load(name, device)
        return load(fetch(str(name), revision, token, cache_dir, local_files_only), device)

    def check_builds_trees(self, name: str = "this model") -> None:
        """Raise unless the encoder merges words into a tree."""
        if not self.encoder.builds_trees:
            raise ValueError(
                f"{name} builds no tree: its encoder is {self.config.encoder.kind!r}; give a model "
                "with another one, such as 'gumbel_tree'"
            )

    def _check_weights(self) -> None:
        """Raise if a weight of the encoder is NaN or infinite: its trees may look sound."""
        with torch.inference_mode():
            # a sum takes little time, and where it is finite all numbers are
            if math.isfinite(sum(x.sum() for x in self.encoder.parameters())):
                return
        for name, x in self.encoder.named_parameters():
            if not bool(x.isfinite().all()):
                raise ValueError(
                    f"the model has NaN or infinite numbers in encoder.{name}; its weights are "
                    "broken: train it anew, with a lower learning rate"
                )

    def _columns(
        self, texts: Iterable[str] | Iterable[tuple[str, str]], second: Iterable[str] | None
    ) -> list[list[str]]:
        """Return one list of sentences a column; raise where they do not fit the head."""
        first = listed(texts)
        single = all(isinstance(x, str) for x in first)
        if self.head.sentences == 1:
            if second is not None or not single:
                raise ValueError("this model classifies single sentences: pass a list of strings")
            return [cast("list[str]", first)]
        if second is not None:
            seconds = listed(second)
            if not single or len(first) != len(seconds):
                raise ValueError(
                    f"this model classifies pairs: pass two lists of strings of one length, got "
                    f"{len(first)} and {len(seconds)} items"
                )
            return [cast("list[str]", first), seconds]
        if not all(isinstance(x, tuple | list) and len(x) == 2 for x in first):
            raise ValueError(
                "this model classifies pairs: pass (first, second) tuples, or two lists of strings"
            )
        return [[x[0] for x in first], [x[1] for x in first]]

    def _read(
        self,
        columns: Sequence[Sequence[str]],
        batch_size: int,
        pretokenized: bool,
        counts: TextCounts | None,
        offsets: bool = False,
    ) -> Iterator[tuple[int, list[list[Sentence]]]]:
        """Yield the first row of a chunk, and for each column the ids of its texts."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"`batch_size` must be a whole number from 1 on, got {batch_size!r}")
        reader = TextReader(self.tokenizer, self.config.max_words, pretokenized, counts)
        for rows in chunks(columns):
            yield rows.start, [reader.read(column[rows], rows.start, offsets) for column in columns]
        if counts is None and reader.counts.cut:
            logger.warning("%s", reader.counts)

    def _is_captured(self) -> bool:
        """Return whether sentences are encoded by captured graphs."""
        device = self.embedding.weight.device
        return device.type == "cuda" and self.why_not_captured(sample=False) is None

    def _encode(
        self, sentences: Sequence[Sentence], batch_size: int, keep: Keep = VECTORS
    ) -> Iterator[tuple[list[int], Encoding]]:
        """Yield rows of `sentences` and their encodings, a batch of similar lengths at a time."""
        device = self.embedding.weight.device
        if not self._is_captured():
            self._captured = None
        elif self._captured is None or not self._captured.fits(self):
            self._captured = CapturedEncoder(self)
        captured = self._captured
        model = in_evaluation_mode(self)
        for rows in batches([len(sentence.ids) for sentence in sentences], batch_size):
            chosen = [sentences[row].ids for row in rows]
            with torch.inference_mode():
                if captured is not None:
                    encoding = captured(model, chosen, keep)
                else:
                    encoding = model.encode_batch(Sentences.of(chosen, device), Draw(), keep)
            yield rows, encoding

    def _examples(
        self,
        columns: Sequence[Sequence[str]],
        batch_size: int,
        pretokenized: bool,
        counts: TextCounts | None,
    ) -> Iterator[list[list[Sentence]]]:
        """Yield examples that the head reads together: a chunk, or fewer where it needs nodes."""
        for _, chunk in self._read(columns, batch_size, pretokenized, counts):
            some = len(chunk[0]) if self.head.keep == VECTORS else batch_size
            for start in range(0, len(chunk[0]), some):
                yield [column[start : start + some] for column in chunk]

    def _encodings(self, sentences: Sequence[Sentence], batch_size: int) -> Encoding:
        """Return what the head reads of sentences, on the model's device."""
        if self.head.keep == VECTORS:
            return Encoding(self._vectors(sentences, batch_size))
        found = list(self._encode(sentences, batch_size, self.head.keep))
        device = self.embedding.weight.device
        back = torch.tensor([row for rows, _ in found for row in rows]).argsort().to(device)
        return Encoding.joined([encoding for _, encoding in found]).map(lambda x: x[back])

    def _vectors(self, sentences: Sequence[Sentence], batch_size: int) -> Tensor:
        """Return vectors `[len(sentences), D]` on the model's device."""
        weight = self.embedding.weight
        vectors = weight.new_empty(len(sentences), self.encoder.vector_dim)
        for rows, encoding in self._encode(sentences, batch_size):
            places = torch.tensor(rows).to(weight.device, non_blocking=True)
            vectors[places] = encoding.vector.to(vectors.dtype)
        return vectors


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items of an iterator, each made in a thread while the one before is used."""
    end = object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield cast("Item", item)


def in_evaluation_mode(module: Module) -> Module:
    """Return a module that shares all tensors with `module` and is in evaluation mode.

    `module` itself is not touched, so other threads may train or use it at the same time. Code that
    `torch.compile` made is left aside: it is bound to the original and would run in its mode.
    Hooks get the module that is returned here.
    """
    made: dict[int, nn.Module] = {}

    def view(original: nn.Module) -> nn.Module:
        original = getattr(original, "_orig_mod", original)
        if id(original) not in made:
            if isinstance(original, torch.jit.ScriptModule):
                # its flag is not Python's
                made[id(original)] = copy.deepcopy(original).eval()
                return made[id(original)]
            other = made[id(original)] = object.__new__(type(original))
            own = {
                name: MethodType(value.__func__, other)
                if isinstance(value, MethodType) and value.__self__ is original
                else value
                for name, value in original.__dict__.items()
                if not hasattr(value, "_torchdynamo_orig_callable")
            }
            own["_modules"] = {
                name: child if child is None else view(child)
                for name, child in original._modules.items()
            }
            other.__dict__ = {**own, "training": False, "_compiled_call_impl": None}
        return made[id(original)]

    return cast("Module", view(module))


def listed(texts: Iterable[Item]) -> list[Item]:
    """Return what any iterable gives, as a list; one string is not meant as its characters."""
    if isinstance(texts, str):
        raise TypeError(f"expected a list of strings, got one string; pass [{texts[:20]!r}]")
    # a table would give the names of its columns
    table = isinstance(texts, Mapping) or hasattr(texts, "columns")
    try:
        if not table and not isinstance(texts, bytes | bytearray):
            return list(texts)
    except TypeError:
        # neither an iterable nor a sequence; what an iterable raises itself is passed on
        if hasattr(texts, "__iter__") or hasattr(texts, "__getitem__"):
            raise
    advice = "; pass one of its columns" if table else ""
    raise TypeError(f"expected a list of strings, got {type(texts).__name__}{advice}")


def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return a list of strings that can be written as UTF-8, or raise."""
    texts = listed(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"expected a list of strings, got {type(text).__name__} in it")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text {i} is not valid Unicode: {text[error.start : error.start + 10]!r} at "
                f"character {error.start}; read it with its own encoding"
            ) from None
    return texts


def _check_vectors(vectors: Tensor, numbers: Sequence[int]) -> None:
    """Raise if the vectors `[n, D]` of texts with these numbers are NaN or infinite."""
    fine = vectors.isfinite().all(1)
    if not bool(fine.all()):
        first = min(number for number, well in zip(numbers, fine.tolist(), strict=True) if not well)
        raise ValueError(
            f"the model gives NaN or infinite numbers for text {first}; its weights are broken: "
            "train it anew, with a lower learning rate"
        )


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
    tokenizer = read_tokenizer(folder)
    weights = read_weights(folder / WEIGHTS)
    try:
        with torch.device("meta"):
            model = SentenceModel(config, tokenizer)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    if model.encoder.trees == "fixed":
        # version 1 had a query vector that nothing read
        weights.pop("encoder.query", None)
    model.to(restored(weights, folder / WEIGHTS))
    check_fit(model.state_dict(), weights, str(folder / WEIGHTS))
    model.to_empty(device=device).load_state_dict(weights)
    model.provenance = provenance
    return model.eval()
