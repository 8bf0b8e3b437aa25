"""Plain LSTMs over one sentence, and batches to compare encoders of sequences with them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.parts import ENCODERS
from tests.models import encoder_settings

LENGTHS = [3, 1, 6, 2, 6, 1, 4]


def encoder_of(kind: str, **settings: object) -> Encoder:
    """Return an encoder of 5D words in float64 with random weights."""
    encoder: Encoder = ENCODERS[kind](encoder_settings(kind=kind, **settings)).double()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder


def words_of(width: int = 5) -> tuple[Tensor, Tensor]:
    """Return random words `[B, T, width]` in float64 and their lengths `[B]`."""
    lengths = torch.tensor(LENGTHS)
    return torch.randn(len(LENGTHS), max(LENGTHS), width, dtype=torch.float64), lengths


def lstm(words: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> list[Tensor]:
    """Return h after each of the words `[T, E]`, with gates in the order i, f, g, o."""
    h = c = words.new_zeros(weight_hh.shape[1])
    states = []
    for word in words:
        i, f, g, o = (weight_ih @ word + weight_hh @ h + bias).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return states


def both_ways(words: Tensor, *directions: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return h of two LSTMs, one from each end, concatenated, `[T, 2D]`."""
    ahead = lstm(words, *directions[0])
    back = lstm(words.flip(0), *directions[1])[::-1]
    return torch.stack([torch.cat(pair) for pair in zip(ahead, back, strict=True)])


def check_against(encoder: Encoder, plain: Callable[[Tensor], Tensor]) -> None:
    """Compare vectors and gradients of a batch with those of its sentences one by one."""
    words, lengths = words_of()
    words.requires_grad_()
    variables = [words, *encoder.parameters()]
    vector, order = encoder(words, lengths)
    assert order is None
    assert vector.shape == (len(LENGTHS), encoder.vector_dim)
    expected = torch.stack([plain(words[b, :length]) for b, length in enumerate(LENGTHS)])
    torch.testing.assert_close(vector, expected, rtol=1e-10, atol=1e-12)
    weight = torch.randn_like(vector)
    ours, theirs = (torch.autograd.grad((x * weight).sum(), variables) for x in (vector, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
        assert a.abs().sum() > 0


def check_company(encoder: Encoder) -> None:
    """Check that neither padding nor the other sentences of a batch change a vector."""
    words, lengths = words_of()
    outside = torch.arange(words.shape[1]) >= lengths[:, None]
    vector = encoder(words, lengths).vector
    for garbage in (torch.nan, 1e6):
        dirty = words.masked_fill(outside[..., None], garbage)
        assert torch.equal(encoder(dirty, lengths).vector, vector)
        wide = nn.functional.pad(dirty, (0, 0, 0, 3), value=garbage)
        assert torch.equal(encoder(wide, lengths).vector, vector)
    order = torch.randperm(len(LENGTHS))
    shuffled = encoder(words[order], lengths[order]).vector
    torch.testing.assert_close(shuffled, vector[order], rtol=0, atol=1e-12)
    for b, length in enumerate(LENGTHS):
        alone = encoder(words[b : b + 1, :length], lengths[b : b + 1]).vector[0]
        torch.testing.assert_close(alone, vector[b], rtol=0, atol=1e-12)
