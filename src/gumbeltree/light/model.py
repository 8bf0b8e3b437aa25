"""Models of the NumPy runtime: text -> vectors, trees and predictions, without torch."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gumbeltree.config import ModelConfig
from gumbeltree.encoded import VECTORS, Encoded, Keep
from gumbeltree.light.network import Network
from gumbeltree.light.weights import weight_bytes
from gumbeltree.store import WEIGHTS, find_model, parts_of, read_model
from gumbeltree.text_model import TextModel
from gumbeltree.threads import limited


class LightModel(TextModel):
    """A model of the NumPy runtime; create one with `gumbeltree.load`.

    Args:
        folder: a complete model folder.
        config: its settings.
        tokenizer: its tokenizer.
        provenance: origin of the weights.
    """

    def __init__(
        self, folder: Path, config: ModelConfig, tokenizer: Tokenizer, provenance: dict[str, Any]
    ) -> None:
        self.config, self.tokenizer, self.provenance = config, tokenizer, provenance
        self.network = Network.read(folder / WEIGHTS, config, tokenizer.get_vocab_size())
        self.encoder, self.head = self.network.encoder, self.network.head

    @limited(1)
    def encode_ids(
        self,
        ids: Sequence[Sequence[int]],
        keep: Keep = VECTORS,
        noise: NDArray[np.float32] | None = None,
    ) -> Encoded:
        """Encode one batch; see `TextModel.encode_ids`."""
        return self.network.encode(ids, keep, noise)

    def joined(self, encodings: Sequence[Encoded], rows: NDArray[np.int64]) -> Encoded:
        """Concatenate vectors and trees; see `TextModel.joined`."""
        vector = np.concatenate([encoding.vector for encoding in encodings])[rows]
        orders = [encoding.order for encoding in encodings if encoding.order is not None]
        if not orders:
            return Encoded(vector)
        width = max(order.shape[1] for order in orders)
        wide = [np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1) for x in orders]
        return Encoded(vector, np.concatenate(wide)[rows])

    def as_numpy(self, encoding: Encoded) -> Encoded:
        """Return the encoding itself."""
        return encoding

    def head_output(self, *encodings: Encoded) -> NDArray[np.floating[Any]]:
        """Return the output of the head; see `TextModel.head_output`."""
        return self.output_of(*(encoding.vector for encoding in encodings))

    @limited(1)
    def output_of(self, *vectors: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the output of the head for vectors; see `TextModel.output_of`."""
        return self.network.head.output(*vectors)

    def weight_bytes(self) -> Iterator[tuple[str, str, NDArray[np.uint8]]]:
        """Yield the bytes of each weight; see `TextModel.weight_bytes`."""
        return weight_bytes(self.network.weights, self.network.stored_dtype)


def load(name: str | Path) -> LightModel:
    """Load a model with the NumPy runtime.

    Args:
        name: see `gumbeltree.load`.

    Raises:
        NeedsTorchError: If a part of the model has no NumPy version.
        ValueError: If settings and weights do not match, or weights are NaN or infinite.
    """
    folder = find_model(name)
    return LightModel(folder, *read_model(folder))


def is_light(config: ModelConfig) -> bool:
    """Return whether every part of a model has a NumPy version."""
    parts = parts_of(dataclasses.asdict(config))
    return all(kind in registry.light for registry, kind in parts)
