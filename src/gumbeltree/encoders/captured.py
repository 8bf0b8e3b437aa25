"""Sentences encoded by captured CUDA graphs, so that Python costs little a batch."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gumbeltree.data.rows import Shape, rounded_cap, rounded_T
from gumbeltree.graphs import Graphs
from gumbeltree.ops.layout import Layout
from gumbeltree.states import Encoding


class CapturedEncoder:
    """Encodes batches of ids, greedy trees; batches of similar sizes share a graph.

    Args:
        model: a `SentenceModel` on a CUDA device whose encoder has `encode_rows`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device: torch.device = model.embedding.weight.device
        self.graphs = Graphs(self.device)
        self.places = places(model)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        # a copy of the model makes graphs of its own
        return nothing, ()

    def fits(self) -> bool:
        """Return whether all weights are still where the graphs read them."""
        return self.places == places(self.model)

    def __call__(self, ids: Sequence[Sequence[int]]) -> Encoding:
        """Return vectors `[B, D]` and orders `[B, T-1]`; the next call overwrites them."""
        shape, numbers = packed(ids)

        def function(numbers: Tensor) -> Encoding:
            rows, lengths, sentence, rank, start = numbers.split(
                [shape.cap, *[shape.examples] * 3, shape.T + 1]
            )
            layout = Layout.from_start(shape.cap, start, lengths, sentence, rank)
            encoding: Encoding = self.model.encoder.encode_rows(self.model.embed(rows), layout)
            return encoding

        key = (shape, torch.is_autocast_enabled("cuda"), torch.get_float32_matmul_precision())
        encoding: Encoding = self.graphs(key, function, numbers)
        return encoding


def packed(ids: Sequence[Sequence[int]]) -> tuple[Shape, NDArray[np.int64]]:
    """Return the shape of some sentences and, as numbers, their ids in rows and their layout."""
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    order = np.argsort(-lengths, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    lengths = lengths[order]
    words = int(lengths.sum())
    T, cap = rounded_T(int(lengths[0])), rounded_cap(words)
    chained = itertools.chain.from_iterable(ids[i] for i in order)
    flat = np.fromiter(chained, dtype=np.int64, count=words)
    first = np.cumsum(lengths) - lengths
    position = np.arange(T)[:, None]
    inside = position < lengths  # [T, B]
    rows = np.zeros(cap, dtype=np.int64)
    rows[:words] = flat[(first + position)[inside]]
    start = np.concatenate([[0], np.cumsum(inside.sum(1))])
    numbers = np.concatenate([rows, lengths, order, rank, start])
    return Shape(len(ids), 1, T, cap), numbers


def places(model: nn.Module) -> tuple[int, ...]:
    """Return where the weights and buffers of a model lie in memory."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return tuple(x.data_ptr() for x in tensors)


def nothing() -> None:
    """Return None, as which graphs are copied and pickled."""
