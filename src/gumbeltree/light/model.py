"""Models of the NumPy runtime: text -> vectors, trees and predictions, without torch."""

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gumbeltree.config import QUERY_SCORES, ModelConfig
from gumbeltree.encoded import VECTORS, BestTrees, Encoded, Keep
from gumbeltree.generators import each_within
from gumbeltree.light.network import Network
from gumbeltree.light.weights import weight_bytes
from gumbeltree.registry import own
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

    def beam_steps(self, ids: Sequence[int], beams: int) -> Generator[None, None, BestTrees]:
        """Search for trees in short steps; see `TextModel.beam_steps`."""
        if not own(self.encoder, "beam_steps"):
            return (yield from super().beam_steps(ids, beams))
        encoder: Any = self.encoder
        steps: Generator[None, None, BestTrees]
        steps = encoder.beam_steps(self.network.embed(ids), beams)
        return (yield from each_within(_quiet, steps))

    def joined(self, encodings: Sequence[Encoded], rows: NDArray[np.int64]) -> Encoded:
        """Concatenate vectors and trees; see `TextModel.joined`."""
        vector = np.concatenate([encoding.vector for encoding in encodings])[rows]
        orders = [encoding.order for encoding in encodings if encoding.order is not None]
        if not orders:
            return Encoded(vector)

        def together(parts: list[NDArray[Any]]) -> NDArray[Any]:
            """Concatenate merges, padded to the longest sentence."""
            width = max(x.shape[-1] for x in parts)
            return np.concatenate([widened(x, width) for x in parts])[rows]

        beams = [encoding.beams for encoding in encodings if encoding.beams is not None]
        if not beams:
            return Encoded(vector, together(orders))
        best = together([x.order for x in beams])
        log_prob = np.concatenate([x.log_prob for x in beams])[rows]
        return Encoded(vector, together(orders), beams=BestTrees(best, log_prob))

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


@contextmanager
def _quiet() -> Iterator[None]:
    """Compute on one thread; see `Network.encode` for the flags."""
    with limited(1), np.errstate(all="ignore"):
        yield


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


def widened(order: NDArray[Any], width: int) -> NDArray[Any]:
    """Pad merges `[..., steps]` with -1 to `[..., width]`."""
    more = [(0, 0)] * (order.ndim - 1) + [(0, width - order.shape[-1])]
    return np.pad(order, more, constant_values=-1)


def is_light(config: ModelConfig) -> bool:
    """Return whether every part of a model has a NumPy version."""
    parts = parts_of(dataclasses.asdict(config))
    queried = getattr(config.encoder, "score", "dot") in QUERY_SCORES
    return queried and all(kind in registry.light for registry, kind in parts)
