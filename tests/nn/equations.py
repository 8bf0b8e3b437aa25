"""Checks of encoders that build no tree, shared by their tests."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.encoded import VECTORS
from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.states import Draw

LENGTHS = [3, 1, 6, 2, 6, 1, 4]


def words_of() -> tuple[Tensor, Tensor]:
    """Return random word vectors `[7, 6, 5]` and their lengths."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.tensor(LENGTHS)
    return torch.randn(len(LENGTHS), 6, 5, dtype=torch.float64, generator=generator), lengths


def check_gradients(encoder: Encoder, by_hand: Callable[..., Tensor]) -> None:
    """Compare vectors and all gradients with an implementation for one sentence `[L, E]`."""
    words, lengths = words_of()
    words.requires_grad_()
    vector, order = encoder(words, lengths)
    assert order is None
    assert vector.shape == (len(LENGTHS), encoder.vector_dim)
    expected = torch.stack([by_hand(encoder, x[:L]) for x, L in zip(words, LENGTHS, strict=True)])
    torch.testing.assert_close(vector, expected)
    weight = torch.linspace(-1, 1, vector.numel(), dtype=vector.dtype).view_as(vector)
    inputs = {"words": words, **dict(encoder.named_parameters())}
    found, wanted = (
        torch.autograd.grad((x * weight).sum(), list(inputs.values())) for x in (vector, expected)
    )
    for name, one, other in zip(inputs, found, wanted, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
        assert other.any(), name


def check_batch(encoder: Encoder) -> None:
    """Compare a batch with its sentences, one by one and in another order."""
    words, lengths = words_of()
    vector = encoder(words, lengths).vector
    for row, L in enumerate(LENGTHS):
        alone = encoder(words[row : row + 1, :L], lengths[row : row + 1]).vector
        torch.testing.assert_close(vector[row], alone[0])
    permutation = torch.tensor([4, 0, 6, 2, 1, 5, 3])
    moved = encoder(words[permutation], lengths[permutation]).vector
    torch.testing.assert_close(moved, vector[permutation])
    # bounds above the longest sentence and the number of words
    packed = Sentences.padded(words, lengths)
    of = packed.layout
    start = torch.cat([of.start, of.start[-1:].expand(2)])
    roomy = Layout(of.cap + 3, start, of.lengths, of.sentence, of.rank, of.active)
    rows = F.pad(packed.words, (0, 0, 0, 3), value=9.0)
    torch.testing.assert_close(
        encoder.encode(Sentences(rows, roomy), Draw(), VECTORS).vector, vector
    )


def check_padding(encoder: Encoder) -> None:
    """Check that entries past the end of a sentence have neither effect nor gradient."""
    words, lengths = words_of()
    plain = encoder(words, lengths).vector
    wide = torch.full((len(LENGTHS), 9, 5), torch.nan, dtype=torch.float64)
    for row, L in enumerate(LENGTHS):
        wide[row, :L] = words[row, :L]
    wide.requires_grad_()
    vector = encoder(wide, lengths).vector
    assert torch.equal(vector, plain)
    (gradient,) = torch.autograd.grad(vector.square().sum(), wide)
    for row, L in enumerate(LENGTHS):
        assert (gradient[row, L:] == 0).all()
        assert (gradient[row, :L] != 0).any(1).all()


def check_autocast(encoder: Encoder) -> None:
    """Check that bfloat16 matrix products change vectors little and leave gradients finite."""
    words, lengths = words_of()
    encoder, words = encoder.float(), words.float()
    plain = encoder(words, lengths).vector
    with torch.autocast("cpu", torch.bfloat16):
        vector = encoder(words, lengths).vector
    torch.testing.assert_close(vector.float(), plain, atol=0.1, rtol=0.1)
    vector.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
