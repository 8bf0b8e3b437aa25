"""Encode sentences with captured CUDA graphs, which avoids the overhead of kernel launches."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gumbeltree.device.find_rows import find_rows
from gumbeltree.device.graphs import Graphs, torch_settings
from gumbeltree.layout import (
    Arrangement,
    Bounds,
    Layout,
    Sentences,
    concatenate_ids,
    pack_numbers,
    unpack_numbers,
)
from gumbeltree.states import VECTORS, Draw, Encoding, Keep


class CapturedEncoder:
    """Encode batches of word ids with greedy trees; batches of similar size share a graph.

    Threads can share it if all use the same CUDA stream, which is the default.

    Args:
        model: a capturable `SentenceModel` on a CUDA device; no reference to it is kept.
    """

    def __init__(self, model: Any) -> None:
        self.graphs = Graphs(model.embedding.weight.device)
        self.places, self.word_symbols = places(model), model.word_symbols()
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        # copied and pickled as None: a copy of the model captures its own graphs
        return type(None), ()

    def fits(self, model: nn.Module) -> bool:
        """Return whether the weights are still at the addresses that the graphs read."""
        return self.places == places(model)

    def __call__(self, model: Any, ids: Sequence[Sequence[int]], keep: Keep = VECTORS) -> Encoding:
        """Return the encodings of sentences given as word ids."""
        bounds, numbers = placed(ids, self.word_symbols)

        def function(numbers: Tensor) -> Encoding:
            B, T, cap, most_symbols = bounds
            words, lengths, sentence, rank, start = unpack_numbers(numbers, cap, B, B, B, T + 1)
            tables = find_rows(cap, start, lengths)
            places = cap, start, lengths, sentence, rank
            layout = Layout(*places, tables=tables, most_symbols=most_symbols)
            encoding: Encoding = model.encode_batch(Sentences(words, layout), Draw(), keep)
            return encoding

        with self.lock:
            model.encoder.prepare(bounds.T)
            found: Encoding = self.graphs((bounds, keep, torch_settings()), function, numbers)
            # the next call overwrites the output of a graph
            return found.map(Tensor.clone)


def placed(
    ids: Sequence[Sequence[int]], word_symbols: NDArray[np.int64] | None = None
) -> tuple[Bounds, NDArray[np.int64]]:
    """Return the bounds of sentences, and their ids and layout in one array.

    Args:
        ids: word ids of each sentence.
        word_symbols: number of symbols of each word in the vocabulary; see `DeviceSplit`.
    """
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    arrangement = Arrangement.of(lengths, Bounds.of(lengths).T)
    words, firsts = concatenate_ids(ids, arrangement)
    most_symbols = 0
    if word_symbols is not None:
        most_symbols = int(np.add.reduceat(word_symbols[words], firsts).max())
    bounds = Bounds.of(lengths, most_symbols=most_symbols)
    rows = np.zeros(bounds.cap, dtype=np.int64)
    rows[: len(words)] = arrangement.rows(words, firsts)
    return bounds, pack_numbers(rows, *arrangement)


def places(model: nn.Module) -> tuple[int, ...]:
    """Return the addresses of the weights and buffers of a model."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return tuple(x.data_ptr() for x in tensors)
