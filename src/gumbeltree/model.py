"""A whole model: strings in; vectors, trees and classes out."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from gumbeltree.classifier import Head
from gumbeltree.config import ModelConfig
from gumbeltree.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.states import Encoding
from gumbeltree.tree import Tree


class Prediction(NamedTuple):
    """The class of a sentence or pair."""

    label: str
    probabilities: dict[str, float]
    """Probability of each label, in the order of the model's labels."""
    logits: tuple[float, ...]
    """Class scores before the softmax, in the same order."""


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
        self.embedding = nn.Embedding(tokenizer.get_vocab_size(), config.encoder.embedding_dim)
        self.embedding.weight.requires_grad_(config.embedding.tuned)
        self.dropout = nn.Dropout(config.embedding.dropout)
        self.encoder = GumbelTreeEncoder(config.encoder)
        self.head = Head(config.head, config.encoder.hidden_dim)
        self.reset_embedding()

    def reset_embedding(self) -> None:
        """Draw word vectors from N(0, 0.01^2); those of <pad> and <unk> are zero."""
        nn.init.normal_(self.embedding.weight, std=0.01)
        special = [self.tokenizer.token_to_id(word) for word in ("<pad>", "<unk>")]
        with torch.no_grad():
            self.embedding.weight[[i for i in special if i is not None]] = 0

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.config.head.labels

    def embed(self, ids: Tensor) -> Tensor:
        """Return word vectors `[B, T, E]` of ids `[B, T]`, with dropout in training."""
        vectors: Tensor = self.dropout(self.embedding(ids))
        return vectors

    def forward(
        self,
        ids: Tensor,
        lengths: Tensor,
        second_ids: Tensor | None = None,
        second_lengths: Tensor | None = None,
    ) -> Tensor:
        """Return class scores `[B, C]`; the two sentences of pairs are encoded as one batch.

        Args:
            ids: word ids `[B, T]`.
            lengths: int64 `[B]`.
            second_ids: the second sentences of pairs, `[B, T2]`.
            second_lengths: int64 `[B]`.
        """
        if second_ids is None or second_lengths is None:
            scores: Tensor = self.head(self.encoder(self.embed(ids), lengths).vector)
            return scores
        width = max(ids.shape[1], second_ids.shape[1])
        both = torch.cat([_widen(ids, width), _widen(second_ids, width)])
        vectors = self.encoder(self.embed(both), torch.cat([lengths, second_lengths])).vector
        scores = self.head(*vectors.chunk(2))
        return scores

    def encode(self, texts: Sequence[str], batch_size: int = 256) -> NDArray[np.float32]:
        """Return the vectors of `texts`, float32 `[len(texts), D]`, greedy trees."""
        check_texts(texts)
        vectors = np.empty((len(texts), self.config.encoder.hidden_dim), dtype=np.float32)
        for rows, encoding in self._encode(texts, batch_size):
            vectors[rows] = encoding.vector.float().cpu().numpy()
        return vectors

    def parse(self, text: str) -> Tree:
        """Return the greedy tree of one text."""
        if not isinstance(text, str):
            raise TypeError(f"expected one string, got {type(text).__name__}")
        return self.parse_many([text])[0]

    def parse_many(self, texts: Sequence[str], batch_size: int = 256) -> list[Tree]:
        """Return the greedy tree of each text."""
        check_texts(texts)
        trees: dict[int, Tree] = {}
        for rows, encoding in self._encode(texts, batch_size):
            for row, order in zip(rows, encoding.order.tolist(), strict=True):
                offsets = self.tokenizer.encode(texts[row]).offsets
                words = [texts[row][start:end] for start, end in offsets]
                trees[row] = Tree(words, order[: len(words) - 1])
        return [trees[i] for i in range(len(texts))]

    def predict(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        second: Sequence[str] | None = None,
        batch_size: int = 256,
    ) -> list[Prediction]:
        """Return the class of each sentence or pair.

        Args:
            texts: sentences, or (first, second) pairs for a model of pairs.
            second: the second sentences, where `texts` holds the first ones.
            batch_size: sentences encoded at once.
        """
        columns = self._columns(texts, second)
        weight = self.embedding.weight
        with torch.inference_mode(), evaluating(self):
            vectors = [torch.from_numpy(self.encode(c, batch_size)).to(weight) for c in columns]
            logits = self.head(*vectors)
            probabilities = logits.float().softmax(-1).tolist()
        return [
            Prediction(
                self.labels[max(range(len(p)), key=p.__getitem__)],
                dict(zip(self.labels, p, strict=True)),
                tuple(scores),
            )
            for p, scores in zip(probabilities, logits.float().tolist(), strict=True)
        ]

    def _columns(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], second: Sequence[str] | None
    ) -> list[list[str]]:
        """Return one list of sentences a column; raise where they do not fit the head."""
        for column in (texts, second):
            if isinstance(column, str):
                raise TypeError(f"expected a list, got one string; pass [{column[:20]!r}]")
        single = all(isinstance(x, str) for x in texts)
        if self.config.head.kind == "single":
            if second is not None or not single:
                raise ValueError("this model classifies single sentences: pass a list of strings")
            return [list(cast("Sequence[str]", texts))]
        if second is not None:
            if not single or len(texts) != len(second):
                raise ValueError(
                    f"this model classifies pairs: pass two lists of strings of one length, got "
                    f"{len(texts)} and {len(second)} items"
                )
            return [list(cast("Sequence[str]", texts)), list(second)]
        if not all(isinstance(x, tuple | list) and len(x) == 2 for x in texts):
            raise ValueError(
                "this model classifies pairs: pass (first, second) tuples, or two lists of strings"
            )
        return [[x[0] for x in texts], [x[1] for x in texts]]

    def _encode(
        self, texts: Sequence[str], batch_size: int
    ) -> Iterator[tuple[list[int], Encoding]]:
        """Yield rows of `texts` and their encodings, a batch of similar lengths at a time."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"`batch_size` must be a whole number from 1 on, got {batch_size!r}")
        tokens = self.tokenizer.encode_batch_fast(list(texts)) if len(texts) else []
        empty = [i for i, t in enumerate(tokens) if not t.ids]
        if empty:
            raise ValueError(
                f"text {empty[0]} must hold at least one word, got {texts[empty[0]]!r}; drop empty "
                "texts"
            )
        by_length = sorted(range(len(tokens)), key=lambda i: len(tokens[i].ids))
        for start in range(0, len(by_length), batch_size):
            rows = by_length[start : start + batch_size]
            ids, lengths = pad([tokens[i].ids for i in rows])
            device = self.embedding.weight.device
            with torch.inference_mode(), evaluating(self):
                encoding = self.encoder(self.embed(ids.to(device)), lengths.to(device))
            yield rows, encoding


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for a while; every part gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_texts(texts: Sequence[str]) -> None:
    """Raise unless `texts` is a list of strings that can be written as UTF-8."""
    if isinstance(texts, str):
        raise TypeError(f"expected a list of strings, got one string; pass [{texts[:20]!r}]")
    if not hasattr(texts, "__len__") or not hasattr(texts, "__getitem__"):
        raise TypeError(f"expected a list of strings, got {type(texts).__name__}")
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


def pad(ids: Iterable[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return ids `[B, T]`, zero beyond the end, and lengths `[B]` of ragged lists."""
    rows = [torch.tensor(row) for row in ids]
    lengths = torch.tensor([len(row) for row in rows])
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


def _widen(ids: Tensor, width: int) -> Tensor:
    return nn.functional.pad(ids, (0, width - ids.shape[1]))
