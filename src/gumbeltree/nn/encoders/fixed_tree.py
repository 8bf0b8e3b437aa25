"""Encoder whose trees are not learned: of a fixed shape, random, or the gold trees of the data."""

from functools import cache

import torch
from torch import Tensor

from gumbeltree.config import FixedTreeConfig
from gumbeltree.encoded import MissingInputError
from gumbeltree.fixed_orders import NO_GOLD, order_table
from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders.tree_encoder import TreeEncoder
from gumbeltree.noise import NoiseLayers, is_keys, keyed_noise
from gumbeltree.states import Draw, Encoding, Keep


class FixedTreeEncoder(TreeEncoder):
    """Merge the words of each sentence into a tree determined by its length, random, or given.

    Args:
        config: settings; see `FixedTreeConfig`.
    """

    Config = FixedTreeConfig
    trees = "fixed"
    capturable = True

    def __init__(self, config: FixedTreeConfig) -> None:
        super().__init__(config)
        self.orders = FixedTrees(config.trees)
        if config.trees == "gold":
            self.needs = frozenset({"order"})
        if config.impl != "fused":
            # reject impossible settings early; for kernels, the device is not known yet
            self.explain()

    @property
    def query(self) -> Tensor:
        """Zero, because candidates are not scored."""
        return next(self.parameters()).new_zeros(self.config.hidden_dim)

    @property
    def shape_of_trees(self) -> str:
        """Kind of trees: left, right, balanced, random or gold."""
        return self.orders.kind

    @property
    def draws_trees(self) -> bool:
        """Whether trees depend on noise."""
        return self.orders.kind == "random"

    def prepare(self, T: int) -> None:
        """Build the table of trees, if the kind needs one."""
        self.orders.prepare(T, next(self.parameters()).device)

    def check_needs(self, sentences: Sentences) -> None:
        """Raise an error if the sentences lack the gold trees that the encoder follows."""
        if self.needs and sentences.order is None:
            raise MissingInputError(NO_GOLD)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        """Return vectors and trees; merges follow `sentences.order` if it is set."""
        if sentences.order is None:
            layout = sentences.layout
            order = self.orders(layout.own_lengths(), layout.T, draw.noise)
            sentences = sentences.with_order(order)
        return self.merge(sentences, Draw(), keep)


class FixedTrees:
    """Merge orders by sentence length.

    Args:
        kind: left, right, balanced or random.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        # never dropped: captured graphs read them
        self.tables: dict[tuple[int, torch.device], Tensor] = {}

    def __deepcopy__(self, memo: object) -> "FixedTrees":
        return FixedTrees(self.kind)

    def __reduce__(self) -> "tuple[type[FixedTrees], tuple[str]]":
        return FixedTrees, (self.kind,)

    def prepare(self, T: int, device: torch.device) -> None:
        """Build the table for sentences of up to T words, if the kind needs one."""
        place = _width(T), device
        if self.kind in ("balanced", "random") and place not in self.tables:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("call `prepare` before capturing a graph")
            self.tables[place] = _table(self.kind, place[0]).to(device)

    def __call__(self, lengths: Tensor, T: int, noise: Tensor | None = None) -> Tensor:
        """Return merges, int64 `[B, T-1]`, -1 past the end of a sentence.

        Args:
            lengths: words per sentence, int64 `[B]`.
            T: upper bound of the lengths.
            noise: noise or keys for random trees; see `NoiseLayers`. Without noise, every length
                has one fixed random tree.
        """
        step = torch.arange(T - 1, device=lengths.device)
        last = lengths[:, None] - 2 - step  # last position at each step
        if self.kind == "left":
            order = torch.zeros_like(last)
        elif self.kind == "right":
            order = last
        elif self.kind == "random" and noise is not None:
            order = _drawn(last, noise)
        else:
            self.prepare(T, lengths.device)
            # one table serves all widths up to a power of two
            order = self.tables[_width(T), lengths.device][lengths][:, : T - 1]
        return torch.where(last >= 0, order, -1)


def _drawn(last: Tensor, noise: Tensor) -> Tensor:
    """Draw positions uniformly from 0..last, `[B, T-1]`, as the argmax of noise."""
    width = last.shape[1]
    if width == 0:
        return last
    step = torch.arange(width, device=last.device)
    if is_keys(noise) and last.is_cuda:
        # computing a whole table takes fewer kernels than one layer at a time
        noise = keyed_noise(noise, width + 1)
    if not is_keys(noise):
        return torch.where(step <= last[:, :, None], noise, -torch.inf).argmax(-1)
    drawn, order = NoiseLayers(noise, None, width), torch.zeros_like(last)
    for t in range(width):
        layer = torch.where(step <= last[:, t, None], drawn(t, len(last), width), -torch.inf)
        order[:, t] = layer.argmax(-1)
    return order


def _width(T: int) -> int:
    return 1 << (T - 1).bit_length()


@cache
def _table(kind: str, T: int) -> Tensor:
    """Return the merges for each length up to T, int64 `[T + 1, T - 1]`."""
    return torch.from_numpy(order_table(kind, T))
