"""Sentences encoded by captured CUDA graphs, so that Python costs little a batch."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gumbeltree.data.rows import Shape, arranged, rounded_cap, rounded_T
from gumbeltree.graphs import Graphs, torch_settings
from gumbeltree.ops.layout import Layout
from gumbeltree.states import Encoding


class CapturedEncoder:
    """Encodes batches of ids, greedy trees; batches of similar sizes share a graph.

    Threads may share it, one at a time; their CUDA streams must be one.

    Args:
        model: a `SentenceModel` on a CUDA device whose encoder has `encode_rows`. It is not kept.
    """

    def __init__(self, model: Any) -> None:
        self.graphs = Graphs(model.embedding.weight.device)
        self.places = places(model)
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        # a copy of the model makes graphs of its own
        return nothing, ()

    def fits(self, model: nn.Module) -> bool:
        """Return whether all weights are still where the graphs read them."""
        return self.places == places(model)

    def __call__(self, model: Any, ids: Sequence[Sequence[int]]) -> Encoding:
        """Return vectors `[B, D]` and orders `[B, T-1]`."""
        shape, numbers = packed(ids)

        def function(numbers: Tensor) -> Encoding:
            rows, lengths, sentence, rank, start = numbers.split(
                [shape.cap, *[shape.examples] * 3, shape.T + 1]
            )
            layout = Layout.from_start(shape.cap, start, lengths, sentence, rank)
            encoding: Encoding = model.encoder.encode_rows(model.embed(rows), layout)
            return encoding

        with self.lock:
            found: Encoding = self.graphs((shape, torch_settings()), function, numbers)
            # the next call overwrites what a graph returns
            assert found.order is not None
            return Encoding(found.vector.clone(), found.order.clone())


def packed(ids: Sequence[Sequence[int]]) -> tuple[Shape, NDArray[np.int64]]:
    """Return the shape of some sentences and, as numbers, their ids in rows and their layout."""
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    words = int(lengths.sum())
    T, cap = rounded_T(int(lengths.max())), rounded_cap(words)
    order, rank, start = arranged(lengths, T)
    lengths = lengths[order]
    chained = itertools.chain.from_iterable(ids[i] for i in order)
    flat = np.fromiter(chained, dtype=np.int64, count=words)
    first = np.cumsum(lengths) - lengths
    position = np.arange(T)[:, None]
    inside = position < lengths  # [T, B]
    rows = np.zeros(cap, dtype=np.int64)
    rows[:words] = flat[(first + position)[inside]]
    numbers = np.concatenate([rows, lengths, order, rank, start])
    return Shape(len(ids), 1, T, cap), numbers


def places(model: nn.Module) -> tuple[int, ...]:
    """Return where the weights and buffers of a model lie in memory."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return tuple(x.data_ptr() for x in tensors)


def nothing() -> None:
    """Return None, as which graphs are copied and pickled."""
